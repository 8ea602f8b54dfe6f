/* SPDX-License-Identifier: Apache-2.0
 * backends/whisper/hear.h - the model "whisper_bls": samples in, what is said in them out.
 *
 * Purpose   WAV (16 kHz) becomes log-mel features, TEXT_PREFIX the decoder's prompt; tensorrt_llm answers with token ids,
 *           whose text is TRANSCRIPTS. A decoupled model sends the text so far with every answer, another one answer.
 * Life      hear_start makes the features on the instance's thread and sends the request to tensorrt_llm; the rest happens
 *           in callbacks, so that the number of requests in flight is not bound by instances.
 * Owner     The model is immutable but for llm; the hearing's mu guards what callbacks share.
 */
#ifndef NRD_BACKENDS_WHISPER_HEAR_H
#define NRD_BACKENDS_WHISPER_HEAR_H

#include "backends/util/inner.h"
#include "text/shared.h"
#include "text/whisper.h"

typedef struct nrd_hear_model {
    nrd_tb_config config;
    const char *llm_name;  /* borrows from config */
    nrd_text *text;        /* NULL: the tokenizer is OpenAI's */
    nrd_tokenizer *openai; /* else NULL */
    nrd_whisper *whisper;
    const nrd_tokenizer *tokenizer; /* borrows from one of them */
    int32_t n_mels;
    bool zero_pad;         /* features of the sound alone, not of 30 s */
    TRITONSERVER_ResponseAllocator *allocator;
    nrd_tb_inflight inflight;
    pthread_mutex_t mu;
    nrd_tb_config *llm;    /* of tensorrt_llm; guarded by mu while NULL, then immutable */
} nrd_hear_model;

/* What tensorrt_llm is asked with. */
typedef struct nrd_hear_ask {
    nrd_ids prompt, bad_words; /* bad_words: [2, n] */
    void *features;            /* owns; [n_frames, n_mels] float32 or float16 */
    size_t feature_bytes;
    int32_t n_frames;
    bool half;
} nrd_hear_ask;

/* Reads the client's inputs. `half`: the features' type is float16. The caller calls fini, also after an error. */
TRITONSERVER_Error *nrd_hear_listen(const nrd_hear_model *m, const nrd_tb_inputs *in, bool half, nrd_hear_ask *out);
void nrd_hear_ask_fini(nrd_hear_ask *a);

/* Always takes the request: an error becomes its answer. */
void nrd_hear_start(nrd_hear_model *m, TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request);

#endif
