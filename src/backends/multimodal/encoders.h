/* SPDX-License-Identifier: Apache-2.0
 * backends/multimodal/encoders.h - one request of the model "multimodal_encoders".
 *
 * Purpose   Pictures in, rows of the decoder's embeddings out: OUT_PROMPT_EMBEDDING_TABLE, OUT_PROMPT_VOCAB_SIZE and
 *           OUT_IMAGE_SIZES, which tensorrt_llm takes as prompt_embedding_table, prompt_vocab_size and image_sizes.
 *           Pictures come as IMAGE or pixel_values (numbers that the client's processor made) or as image_files. A request
 *           without pictures has an answer without outputs.
 * Owner     The thread of the request; the model is immutable.
 * Errors    INVALID_ARG names the input and the limit; UNSUPPORTED: what another kind of model would need.
 */
#ifndef NRD_BACKENDS_MULTIMODAL_ENCODERS_H
#define NRD_BACKENDS_MULTIMODAL_ENCODERS_H

#include "backends/util/util.h"
#include "nereid/vision.h"

typedef struct nrd_mm_model {
    nrd_tb_config config;
    nrd_vision_encoder *encoder;
    nrd_vision_encoder_info info;
    TRITONSERVER_DataType table_type; /* that the configuration declares for the rows: FP16, BF16 or FP32 */
} nrd_mm_model;

TRITONSERVER_Error *nrd_mm_answer(const nrd_mm_model *m, TRITONBACKEND_Request *request, const nrd_tb_inputs *in,
                                  TRITONBACKEND_Response *response);

#endif
