/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/pooled.h - requests whose answer is made of one vector for each of their inputs.
 *
 * Purpose   What /v1/embeddings, /v1/rerank, /v1/score and /classify share: the body is read on the loop or, where it is
 *           long, by a worker; each input becomes a request to the model, all of them at once, so that they share its
 *           steps; when the last vector is there the answer is written. A kind says what is between.
 * Owner     pooled.c counts references; all but `read` and `put` run on the loop thread.
 * Errors    The first one answers, and ends the other inputs.
 */
#ifndef NRD_FRONTENDS_OPENAI_POOLED_H
#define NRD_FRONTENDS_OPENAI_POOLED_H

#include "frontends/openai/internal.h"

typedef struct nrd_pooled nrd_pooled;

typedef struct nrd_pooled_input {
    nrd_pooled *r;
    nrd_ids ids;
    size_t second_from; /* where a pair's second text begins; 0: one text */
    nrd_http_call *call; /* shares while it runs */
    float *vector;       /* [n] once it is known */
    size_t n;
} nrd_pooled_input;

typedef struct nrd_pooled_kind {
    size_t bytes; /* of the request, which begins with an nrd_pooled */
    /* Finds the model, checks the fields, fills the inputs and says what is wanted. Any thread. */
    nrd_error *(*read)(nrd_pooled *r, const nrd_json *root);
    /* Checks a vector that came, and may change it. NULL: nothing to do. */
    nrd_error *(*keep)(nrd_pooled_input *in);
    size_t (*answer_bytes)(const nrd_pooled *r); /* about what `put` writes */
    void (*put)(nrd_pooled *r);                  /* into r->out. Any thread */
    void (*fini)(nrd_pooled *r);                 /* NULL: nothing more to free */
} nrd_pooled_kind;

struct nrd_pooled {
    const nrd_pooled_kind *kind;
    nrd_openai *o;
    nrd_http_request *req; /* shares; NULL: nothing is asked of a model */
    nrd_oai_model *model;
    nrd_json_doc *doc;
    const char *pooling; /* what the model is asked for; a constant */
    char *extra;
    nrd_error *err; /* of reading the body */
    nrd_str out;    /* the answer */
    nrd_quota *quota; /* of the key whose place it has; NULL: none */
    bool failed;
    uint64_t begun_ns;
    nrd_pooled_input *inputs;
    size_t n_inputs, n_done, n_active;
    int refs; /* one for each running call and one for the handler; loop thread only */
};

/* The life of a request of this kind. */
void nrd_pooled_run(nrd_openai *o, nrd_http_request *req, const nrd_pooled_kind *kind);
void nrd_pooled_unref(nrd_pooled *r);

/* embeddings.c, scores.c, classify.c */
extern const nrd_pooled_kind nrd_pooled_embeddings, nrd_pooled_ollama, nrd_pooled_rerank, nrd_pooled_score, nrd_pooled_labels;

/* ---- for `read` ---- */

/* Room for so many inputs, to be filled from inputs[0] on; field: of the error where they are too many. */
nrd_error *nrd_pooled_reserve(nrd_pooled *r, size_t n, const char *field) NRD_MUST_USE;
/* The tokens of a text, without special ones around it. */
nrd_error *nrd_pooled_encode(const nrd_pooled *r, const nrd_json *text, const char *field, nrd_ids *out) NRD_MUST_USE;
/* A list of token ids of the model. */
nrd_error *nrd_pooled_take_ids(const nrd_pooled *r, const nrd_json *list, const char *field, nrd_ids *out) NRD_MUST_USE;
/* truncate_prompt_tokens of the body: *out is the most tokens that an input may have, 0: they are not cut. -1 in the body
 * is what the model takes. */
nrd_error *nrd_pooled_limit(const nrd_pooled *r, const nrd_json *root, size_t *out) NRD_MUST_USE;
/* The text, or the pair (b not NULL), with special tokens around it, cut to `limit` where that is not 0: into an input. */
nrd_error *nrd_pooled_frame(nrd_pooled *r, const nrd_ids *a, const nrd_ids *b, size_t limit, nrd_pooled_input *in)
    NRD_MUST_USE;
/* rerank_prompt.c: the same for a reranker with a prompt of its own (model->prompt). `task` may be NULL. */
typedef struct nrd_rerank_texts {
    const nrd_json *query, *document, *task; /* strings; borrow */
} nrd_rerank_texts;
nrd_error *nrd_pooled_frame_prompt(nrd_pooled *r, const nrd_rerank_texts *t, size_t limit, nrd_pooled_input *in) NRD_MUST_USE;
/* Names of fields that are not `known`, up to a NULL, are listed in a header of the answer. */
void nrd_pooled_note_unknown(nrd_pooled *r, const nrd_json *root, const char *const *known);

/* ---- for `put` ---- */

size_t nrd_pooled_n_tokens(const nrd_pooled *r);
void nrd_pooled_put_usage(const nrd_pooled *r, nrd_str *out); /* "usage":{…} */
/* softmax, sigmoid or nothing, as nrd_exec_describe names them. */
void nrd_pooled_apply(const char *function, float *v, size_t n);

#endif
