/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/internal.h - what the files of this folder share.
 *
 * openai.c has the routes; adapters.c loads and unloads LoRA adapters, which
 * adapter_list.c keeps; admit.c decides who may ask; list.c, tokenize.c and openapi.c answer questions.
 * Life of a request: params.c reads the body into an nrd_oai_request; generate.c sends one request for
 * each choice to the model and turns ids into text; answer.c writes the JSON, whole or in chunks;
 * parse.c finds reasoning and tool calls in the text. embeddings.c has a shorter life of its own.
 */
#ifndef NRD_FRONTENDS_OPENAI_INTERNAL_H
#define NRD_FRONTENDS_OPENAI_INTERNAL_H

#include "base/json.h"
#include "base/str.h"
#include "frontends/http/api.h"
#include "frontends/http/call.h"
#include "frontends/http/work.h"
#include "text/sampling.h"
#include "text/shared.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    OAI_MAX_CHOICES = 128,
    OAI_MAX_STOPS = 16,
    OAI_MAX_PROMPTS = 128,
    OAI_MAX_INPUTS = 2048, /* of a request for embeddings */
    OAI_MAX_LISTED = 256, /* names in /v1/models */
    /* Bytes. Processor time to turn 8 KB into tokens, SmolLM2's tokenizer on an AMD EPYC: 0.2 ms of
     * source text, 0.6 ms of random letters, no word of which was seen before. */
    OAI_SHORT_BODY = 8 << 10,
    OAI_MAX_NEW_TOKENS = 1 << 24, /* the engine cuts to what the sequence may hold */
};

typedef struct nrd_openai nrd_openai; /* as openai.h, which stands above this header */

/* A model that can be talked to. Counted: the list holds one reference until the name or its tokenizer
 * means something else, each request another. */
typedef struct nrd_oai_model {
    struct nrd_oai_model *next;
    char *name, *llm, *tokenizer_dir;
    uint64_t adapter;  /* lora_task_id; 0: the model itself */
    char *adapter_dir; /* where the adapter lies; owned */
    char *parent;      /* of an adapter: its model's name; owned */
    bool adapter_loads; /* requests tell the model where the adapter lies */
    char *served; /* the names that its configuration gives it, with commas; NULL: none */
    atomic_int refs;
    nrd_text *text;                 /* shares */
    const nrd_tokenizer *tokenizer; /* borrows from text, as chat */
    const nrd_chat *chat;           /* NULL: see chat_error */
    char *chat_error;
    nrd_sampling sampling; /* where a request does not say */
    const char *pooling; /* of embeddings: "last", "mean"; NULL: none are given */
    bool decoupled;
    bool is_bls; /* reached through a bls model, which is not offered by its name */
    uint64_t checked_ns;
} nrd_oai_model;

/* Loaded at run time. */
typedef struct nrd_oai_adapter {
    struct nrd_oai_adapter *next;
    char *name, *dir, *llm;
    uint64_t number;
} nrd_oai_adapter;

typedef struct nrd_oai_turns { /* of one key's rate limit; guarded by the front end's lock */
    double left;
    uint64_t refilled_ns;
} nrd_oai_turns;

struct nrd_openai {
    nrd_http_api *api; /* borrows */
    nrd_http_router *router; /* owns; of the own port, NULL: none */
    nrd_http_server *http;   /* owns; NULL: none */
    nrd_oai_turns *turns;    /* one for each of front->keys; one for all where there are none */
    int64_t created;
    pthread_mutex_t mu;
    nrd_oai_model *models; /* guarded by mu */
    nrd_oai_adapter *adapters; /* loaded at run time, the newest first; guarded by mu */
    uint64_t n_adapters;              /* loaded so far; guarded by mu */
};

typedef struct nrd_oai_request nrd_oai_request;

typedef struct nrd_oai_choice {
    nrd_oai_request *r;
    int index; /* in the answer */
    const nrd_ids *prompt;
    nrd_http_call *call; /* shares while it runs */
    nrd_detok *detok;
    nrd_str text;   /* all of the answer that is certain */
    size_t n_sent;  /* bytes of text that were looked at for chunks */
    size_t n_reasoning_sent, n_content_sent;
    nrd_ids ids;
    float *log_probs; /* of ids; cap in n_log_cap */
    int32_t *top_ids; /* [n_log_probs, r->n_top], -1: none */
    float *top_log_probs;
    size_t n_log_probs, n_log_cap, n_log_sent;
    uint32_t *offsets; /* byte of text where each id's text begins */
    int32_t n_tokens;
    float cum_log_prob;
    int32_t n_cached;
    int64_t arrival_ns, first_token_ns, last_token_ns; /* 0: not told */
    const char *finish; /* "stop", "length", "tool_calls" */
    bool done, begun, cut; /* cut: by a stop string */
} nrd_oai_choice;

struct nrd_oai_request {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    nrd_oai_model *model;
    nrd_json_doc *doc; /* the body; strings below borrow from it */
    char id[48];
    int64_t created;
    char *extra; /* header lines of the answer; owned */
    nrd_str unknown; /* names of unknown fields, for a header of the answer */

    bool chat, stream, include_usage, return_timings, echo, log_probs, has_tools, parallel_tool_calls, ignore_eos;
    bool skip_special, include_stop, think_open;
    int n, best_of, n_top;
    int64_t max_tokens, min_tokens, top_k, priority;
    double temperature, top_p, min_p, presence, frequency, repetition;
    uint64_t seed;
    const nrd_json *tools;
    nrd_str logit_bias; /* JSON, as the model reads it; empty: none */
    const char *guide_type; /* NULL: free text */
    nrd_str guide;
    struct {
        const char *s;
        size_t n;
    } stops[OAI_MAX_STOPS];
    size_t n_stops;
    const nrd_json *stop_token_ids;
    const char *cache_salt; /* NULL: none */
    nrd_ids prompts[OAI_MAX_PROMPTS];
    nrd_str echoes[OAI_MAX_PROMPTS];
    size_t n_prompts;

    nrd_oai_choice *choices;
    int n_choices, n_done, n_active;
    bool streaming; /* the head of the stream was sent */
    bool failed;    /* an error was answered: drop the rest */
    nrd_str out;
    nrd_error *err; /* of reading the body */
    int refs; /* one for each running call and one for the handler; loop thread only */
};

/* admit.c */
/* An error of one field of the body: "field: " and the text, with the field for programs. */
nrd_error *nrd_oai_errorf(nrd_error_code code, const char *field, const char *fmt, ...)
    NRD_PRINTF(3, 4) NRD_MUST_USE;
/* Always takes err. */
void nrd_oai_fail(nrd_http_request *req, nrd_error *err, const char *extra);
/* Appends {"error": {...}}; param and code may be NULL. */
void nrd_oai_put_error(nrd_str *out, int status, const char *message, const char *param,
                       const char *code);
int nrd_oai_status(const nrd_error *err);
/* Authentication, rate limit, CORS. False: it was answered. *out_extra: header lines or NULL, owned. */
bool nrd_oai_admit(nrd_openai *o, nrd_http_request *req, bool counts, char **out_extra);
/* The header lines with a warning behind them. Takes extra (or NULL); the caller frees what comes. */
char *nrd_oai_warn_unknown(char *extra, const char *names);
nrd_error *nrd_oai_body(const nrd_http_request *req, nrd_json_doc **out) NRD_MUST_USE;

/* adapters.c */
nrd_http_handler nrd_oai_on_load_adapter, nrd_oai_on_unload_adapter;

/* adapter_list.c */
/* An adapter that was loaded at run time: fills in what requests need, and the model's name in the repository,
 * owned by the caller; it and the folder are NULL without memory. False: there is none of this name. */
bool nrd_oai_adapter_get(nrd_openai *o, const char *name, nrd_oai_model *m, char **out_llm);
/* The n-th name among those of a model; owned; NULL: no more. */
char *nrd_oai_adapter_name(nrd_openai *o, const char *llm, size_t n);
bool nrd_oai_adapter_add(nrd_openai *o, nrd_oai_adapter *a); /* false: the name is taken, a the caller's still */
bool nrd_oai_adapter_remove(nrd_openai *o, const char *name); /* false: there is none */
/* A number that no other call gets; *out_n: how many adapters there are. */
uint64_t nrd_oai_adapter_turn(nrd_openai *o, size_t *out_n);
void nrd_oai_adapter_free(nrd_oai_adapter *a); /* NULL is fine */
void nrd_oai_free_adapters(nrd_openai *o);

/* models.c */
/* The name is asked for anew the next time. */
void nrd_oai_forget_model(nrd_openai *o, const char *name);
/* By a name that the configuration gives, or by the repository's. NOT_FOUND names those there are.
 * Shares: the caller gives its reference back. May open files, so not on a loop thread. */
nrd_error *nrd_oai_find_model(nrd_openai *o, const char *name, nrd_oai_model **out) NRD_MUST_USE;
/* The same where nothing has to be asked or opened, else NULL. */
nrd_oai_model *nrd_oai_known_model(nrd_openai *o, const char *name);
void nrd_oai_model_unref(nrd_oai_model *m); /* NULL is fine; any thread */
void nrd_oai_free_models(nrd_openai *o);
typedef struct nrd_oai_names {
    nrd_oai_model *v[OAI_MAX_LISTED]; /* shares */
    size_t n;
} nrd_oai_names;
/* The models that are offered, each once. Opens files. */
nrd_error *nrd_oai_offered(nrd_openai *o, nrd_oai_names *list) NRD_MUST_USE;
void nrd_oai_names_fini(nrd_oai_names *list);

/* question.c */
typedef struct nrd_oai_question {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *model;           /* of the path; NULL: the question is in the body */
    nrd_json_doc *doc;     /* the body */
    nrd_str out;
    /* private to question.c */
    nrd_error *(*put)(struct nrd_oai_question *q);
    nrd_error *err;
    char *extra;
} nrd_oai_question;
/* Answers with what put appends to q->out; put may run on a worker. Without a body `model` is what is
 * asked about, copied; NULL: nothing. */
void nrd_oai_ask(nrd_openai *o, nrd_http_request *req, const char *model,
                 nrd_error *(*put)(nrd_oai_question *q));
/* Whether a request may be read on the loop: then the body is read, or *err says why not. */
bool nrd_oai_is_short(nrd_openai *o, const nrd_http_request *req, nrd_json_doc **doc,
                      nrd_error **err);

/* list.c */
nrd_http_handler nrd_oai_on_models, nrd_oai_on_model;

/* tokenize.c */
nrd_http_handler nrd_oai_on_tokenize, nrd_oai_on_detokenize;

/* params.c */
/* Finds the model, checks and keeps every field, renders and tokenizes. Any thread. */
nrd_error *nrd_oai_read(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;

/* generate.c */
nrd_http_handler nrd_oai_on_chat, nrd_oai_on_completions;
void nrd_oai_request_unref(nrd_oai_request *r);

/* Inputs of one element, and any other; what `data` points to is copied. */
nrd_error *nrd_oai_add_i32(nrd_http_call *call, const char *name, int64_t value) NRD_MUST_USE;
/* Those that name the model's adapter; nothing where it is none. */
nrd_error *nrd_oai_add_adapter(nrd_http_call *call, const nrd_oai_model *m) NRD_MUST_USE;
nrd_error *nrd_oai_add_bool(nrd_http_call *call, const char *name, bool value) NRD_MUST_USE;
nrd_error *nrd_oai_add(nrd_http_call *call, const char *name, TRITONSERVER_DataType type,
                       const int64_t *shape, size_t n_dims, const void *data,
                       size_t bytes) NRD_MUST_USE;

/* embeddings.c */
nrd_http_handler nrd_oai_on_embeddings;

/* openapi.c */
nrd_http_handler nrd_oai_on_openapi;

/* answer.c */
void nrd_oai_put_answer(nrd_oai_request *r); /* whole into r->out, when all choices are done */
size_t nrd_oai_answer_bytes(const nrd_oai_request *r); /* about what that takes */
nrd_error *nrd_oai_chunk(nrd_oai_choice *c) NRD_MUST_USE; /* what became new in one choice */
void nrd_oai_last_chunks(nrd_oai_request *r);          /* usage and the end of the stream */

/* parse.c */
typedef struct nrd_oai_parsed {
    size_t reasoning, n_reasoning; /* spans of the text */
    size_t content, n_content;
    int n_calls;
    bool pending; /* a call was begun and is not complete */
} nrd_oai_parsed;
typedef struct nrd_oai_parse_options {
    bool think_open;       /* the prompt ended inside of reasoning */
    bool final;            /* nothing follows */
    bool with_index;       /* calls are parts of a stream */
    const nrd_json *tools; /* NULL: no calls are looked for */
    const char *id;        /* part of the ids of calls */
    int max_calls;
} nrd_oai_parse_options;
/* Splits an answer. `calls` gets the members of a JSON list of tool calls. Before the end, only what
 * can no longer change is in the spans. */
void nrd_oai_parse(const char *text, size_t n, const nrd_oai_parse_options *o, nrd_str *calls,
                   nrd_oai_parsed *out);
/* Bytes at the end of text[0..n) that may be the beginning of `mark`. */
size_t nrd_oai_partial(const char *text, size_t n, const char *mark, size_t n_mark);

/* An output of a response; name and base belong to the response. */
typedef struct nrd_oai_output {
    const char *name;
    TRITONSERVER_DataType type;
    const void *base;
    size_t bytes;
} nrd_oai_output;
nrd_error *nrd_oai_output_get(TRITONSERVER_InferenceResponse *response, uint32_t i,
                              nrd_oai_output *out) NRD_MUST_USE;

#endif
