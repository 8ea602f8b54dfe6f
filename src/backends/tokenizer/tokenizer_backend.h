/* SPDX-License-Identifier: Apache-2.0
 * backends/tokenizer/tokenizer_backend.h - the models "preprocessing" and "postprocessing".
 *
 * Purpose   Text to the input tensors of tensorrt_llm (pre.c) and its output ids to text (post.c).
 *           One backend library with two roles, named by the model parameter `role` or, without it,
 *           told from the model's inputs.
 * Owner     A model's state is immutable after initialisation: instances share it.
 * Errors    Per request; a bad request never disturbs its neighbours in the batch.
 */
#ifndef NRD_BACKENDS_TOKENIZER_TOKENIZER_BACKEND_H
#define NRD_BACKENDS_TOKENIZER_TOKENIZER_BACKEND_H

#include "backends/util/util.h"
#include "text/shared.h"

/* The parameter tokenizer_type. */
typedef enum { NRD_TOK_AUTO, NRD_TOK_LLAMA, NRD_TOK_T5, NRD_TOK_UNKNOWN } nrd_tok_type;

typedef struct nrd_tok_picture_form nrd_tok_picture_form;

typedef struct nrd_tok_model {
    nrd_tb_config config;
    nrd_text *text; /* shares: with all of this process who name the same files */
    const nrd_tokenizer *tokenizer; /* borrows from text */
    nrd_tok_type type;
    bool is_pre;
    bool add_special_tokens;  /* pre */
    bool skip_special_tokens; /* post */
    const nrd_tok_picture_form *picture_form; /* pre; NULL: none */
    int32_t end_id, pad_id;   /* the tokenizer's; -1: none */
} nrd_tok_model;

/* Both fill the response of one request. */
TRITONSERVER_Error *nrd_preprocess(const nrd_tok_model *m, TRITONBACKEND_Request *request,
                                   const nrd_tb_inputs *in, TRITONBACKEND_Response *response);
TRITONSERVER_Error *nrd_postprocess(const nrd_tok_model *m, TRITONBACKEND_Request *request,
                                    const nrd_tb_inputs *in, TRITONBACKEND_Response *response);

#endif
