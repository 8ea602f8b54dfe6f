/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/internal.h - what the files of this folder share.
 *
 * openai.c has the routes; adapters.c loads and unloads LoRA adapters, which
 * adapter_list.c keeps; admit.c decides who may ask; list.c, tokenize.c and openapi.c answer questions.
 * Life of a request: params.c, guides.c and chat_in.c read the body into an nrd_oai_request; generate.c sends one
 * request for each choice to the model (inputs.c) and turns ids into text (pieces.c); answer.c writes the JSON, whole or in chunks;
 * parse.c finds reasoning and tool calls in the text, delta.c what of that is new. Answers that are no text have
 * another life (pooled.h): embeddings.c, scores.c, classify.c. Sound into text: speech.h.
 * The one form of a conversation is the body of /v1/chat/completions. Another API is an nrd_oai_form: it
 * turns its body into that one (messages_in.c, ollama_in.c, responses.h) and writes its own answers
 * (messages_out.c, ollama_out.c) with convert.c; forms.c says which path speaks which.
 */
#ifndef NRD_FRONTENDS_OPENAI_INTERNAL_H
#define NRD_FRONTENDS_OPENAI_INTERNAL_H

#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"
#include "frontends/http/api.h"
#include "frontends/http/call.h"
#include "frontends/http/local.h"
#include "frontends/http/work.h"
#include "frontends/openai/background.h"
#include "frontends/openai/batches.h"
#include "frontends/openai/response_store.h"
#include "text/harmony.h"
#include "text/prompt_limit.h"
#include "text/generation.h"
#include "text/sampling.h"
#include "text/shared.h"
#include "text/video_times.h"
#include "text/whisper.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    OAI_MAX_CHOICES = NRD_LIMIT_CHOICES,
    OAI_MAX_STOPS = NRD_LIMIT_STOPS,
    OAI_MAX_PROMPTS = NRD_LIMIT_PROMPTS,
    OAI_MAX_INPUTS = 2048, /* of a request for embeddings */
    OAI_MAX_VALUES = NRD_LIMIT_JSON_VALUES, /* of a body's JSON */
    OAI_MAX_LISTED = 256, /* names in /v1/models */
    /* Bytes. Processor time to turn 8 KB into tokens, SmolLM2's tokenizer on an AMD EPYC: 0.2 ms of
     * source text, 0.6 ms of random letters, no word of which was seen before. */
    OAI_SHORT_BODY = 8 << 10,
    OAI_MAX_TIME_S = 86400, /* max_time */
    OAI_MAX_NEW_TOKENS = 1 << 24, /* the engine cuts to what the sequence may hold */
};

typedef struct nrd_openai nrd_openai; /* as openai.h, which stands above this header */

/* Gemma 4's mark in front of what is not the answer itself. */
#define NRD_OAI_CHANNEL "<|channel>"

/* A model that can be talked to. Counted: the list holds one reference until the name or its tokenizer
 * means something else, each request another. */
/* Of a model that takes videos: frames that it sees at once, else 0; whether each such group has a place of its own in the prompt. */
typedef struct nrd_oai_videos {
    int64_t frames;
    bool apart;
} nrd_oai_videos;

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
    bool has_channels;              /* its template writes reasoning between special tokens (Gemma 4) */
    bool is_harmony;                /* answers are in GPT-OSS's format, whose marks are: */
    nrd_harmony_ids harmony;
    char *chat_error;
    nrd_sampling sampling; /* where a request does not say */
    const nrd_generation *search; /* likewise, with an encoder that reads text; NULL: others, and where it is not to count */
    int32_t max_beams;
    int64_t max_batch;   /* of its configuration */
    const char *pooling; /* of embeddings: "last", "mean"; NULL: none are given */
    char *description;           /* nrd_exec_describe's, or NULL: owns, as the document below */
    nrd_json_doc *description_doc;
    bool is_encoder;             /* makes embeddings, labels and no text */
    bool sees;                   /* prompts may have pictures */
    nrd_oai_videos videos;
    int64_t picture_tokens;      /* that one becomes, at most; 0: not known */
    const nrd_json *labels;      /* a classifier's or reranker's; NULL: it has none. Borrows, as the two below */
    const char *function, *pair_function;
    const char *prompt;          /* of a reranker that says yes or no; "": none */
    int64_t max_tokens;          /* of an input; 0: not known */
    const char *family, *type;   /* "qwen3", "q4_k"; "": not known. Borrow from the description */
    int64_t context_length, n_parameters; /* 0: not known */
    bool decoupled;
    uint32_t outputs; /* that the configuration declares, a bit for each of nrd_oai_outputs */
    bool bad_words; /* takes bad_words_list */
    bool short_names; /* takes seed and min_tokens, not random_seed and min_length (after v0.19) */
    bool stop_words, unsigned_inputs; /* takes stop_words_list (releases from v0.6); UINT32 for INT32 (up to v0.6) */
    nrd_whisper *whisper;        /* what its tokenizer says of speech, or NULL; owns */
    bool hears, hears_half;      /* takes encoder_input_features, in half precision */
    bool is_bls; /* reached through a bls model, which is not offered by its name */
    uint64_t checked_ns;
} nrd_oai_model;

/* Loaded at run time. */
typedef struct nrd_oai_adapter {
    struct nrd_oai_adapter *next;
    char *name, *dir, *llm;
    uint64_t number;
} nrd_oai_adapter;

struct nrd_openai {
    nrd_http_api *api; /* borrows */
    nrd_http_router *router; /* owns; of the own port, NULL: none */
    nrd_http_server *http;   /* owns; NULL: none */
    int64_t created;
    pthread_mutex_t mu;
    nrd_oai_model *models; /* guarded by mu */
    nrd_oai_adapter *adapters; /* loaded at run time, the newest first; guarded by mu */
    uint64_t n_adapters;              /* loaded so far; guarded by mu */
    nrd_response_store *kept; /* owns; answers of /v1/responses */
    nrd_background *background; /* owns; those that no client waits for */
    nrd_file_store *files;    /* owns; of /v1/files */
    nrd_batches *batches;     /* owns */
    atomic_int n_running; /* requests that generate */
};

typedef struct nrd_oai_request nrd_oai_request;
typedef struct nrd_oai_choice nrd_oai_choice;

/* How one API asks and answers. All texts are constants. The functions have no state of their own: any
 * thread that has the request may call them. */
typedef struct nrd_oai_form {
    bool is_chat;
    const char *id_prefix;    /* of the answer's id */
    const char *stream_type;  /* content type of streams */
    const char *before_error, *after_error; /* around an error in a stream */
    const char *(*renamed)[2]; /* fields: as read here, as its clients know it; ends with NULL; NULL: none */
    /* The body as one of chat/completions, or of completions where it clears r->chat; NULL: it is that.
     * Errors name the field of the body as it came. */
    nrd_error *(*convert)(nrd_oai_request *r, const nrd_json *root, nrd_str *out);
    void (*put_answer)(nrd_oai_request *r); /* whole into r->out, when all choices are done */
    void (*put_chunk)(nrd_str *out, nrd_oai_choice *c); /* what became new in one choice */
    void (*put_last)(nrd_str *out, const nrd_oai_request *r); /* the end of a stream, behind all chunks */
    void (*put_error)(nrd_str *out, int status, const char *message, const char *param, const char *code);
    /* The end of a stream that failed; NULL: an error between before_error and after_error. */
    void (*put_failure)(nrd_str *out, const nrd_oai_request *r, const char *message);
} nrd_oai_form;

/* Log probabilities of a prompt's tokens. One piece of memory where they are kept. */
typedef struct nrd_oai_probs {
    const float *log_probs; /* [n]; NULL: none */
    const int32_t *ranks;   /* [n] */
    const int32_t *top_ids; /* [n, n_prompt_top] or NULL */
    const float *top_log_probs;
    const uint32_t *offsets; /* [n] byte of the prompt where each token's text begins */
    size_t n;
} nrd_oai_probs;

struct nrd_oai_choice {
    nrd_oai_request *r;
    int index; /* in the answer */
    const nrd_ids *prompt;
    nrd_http_call *call; /* shares while it runs */
    nrd_detok *detok;
    nrd_harmony *harmony; /* instead of detok: then text is the content alone. NULL: other models */
    nrd_str text;   /* all of the answer that is certain */
    size_t n_sent;  /* bytes of text that were looked at for chunks */
    size_t n_reasoning_sent, n_content_sent;
    nrd_ids ids;
    float *log_probs; /* of ids; cap in n_log_cap */
    int32_t *top_ids; /* [n_log_probs, r->n_top], -1: none */
    float *top_log_probs;
    size_t n_log_probs, n_log_cap, n_log_sent;
    uint32_t *offsets; /* byte of text where each id's text begins */
    nrd_oai_probs prompt_probs; /* owned */
    int32_t n_tokens;
    float cum_log_prob;
    int32_t n_cached;
    int64_t n_prompt; /* tokens, those of pictures too; 0: not known */
    int64_t arrival_ns, first_token_ns, last_token_ns; /* 0: not told */
    const char *finish; /* "stop", "length", "tool_calls" */
    bool done, begun, cut; /* cut: by a stop string */
    bool ended;      /* by a token, which is not in ids: */
    int32_t end_token;
    size_t n_ids_sent; /* of token_ids, with the one that ended it */
    bool timed_out;
    uint64_t first_ns; /* when the first response came, steady clock; 0: none yet */
    int stop;       /* cut: which of the request's stop strings */
    int n_blocks;   /* of messages and responses: begun so far in the stream */
    int open_block; /* of them: what the last is; 0: none is open */
    int64_t n_events; /* of responses: in the stream so far */
};

struct nrd_oai_request {
    nrd_openai *o;
    nrd_http_request *req; /* shares; NULL: nothing is generated */
    const nrd_oai_form *form;
    nrd_oai_model *model;
    nrd_json_doc *doc; /* the body, as one of chat/completions or completions; strings below borrow from it */
    char id[48];
    int64_t created;   /* seconds since 1970 */
    uint64_t begun_ns; /* steady clock */
    uint64_t load_ns;  /* before that, until its model was loaded */
    char *extra; /* header lines of the answer; owned */
    nrd_str unknown; /* names of unknown fields, for a header of the answer */

    bool chat, stream, include_usage, return_timings, echo, log_probs, has_tools, parallel_tool_calls, ignore_eos;
    bool skip_special, include_stop, think_open, add_special;
    bool tokens_as_ids; /* in lists of log probabilities tokens are named by their ids */
    bool reasoning_in_content; /* as the model writes it, with its marks */
    bool hide_reasoning, token_ids, running_usage; /* token_ids: ids are told beside the text; running_usage: in every chunk */
    bool prompt_probs; /* those of the prompt's tokens are members of the answer */
    bool only_prompt;  /* nothing is generated: max_tokens 0 with echo */
    int n_prompt_top;  /* of each of the prompt's tokens; -1: they are not asked for */
    bool only_counts; /* the prompt's tokens are asked for: fields of the answer may be missing */
    int n, best_of, n_top;
    int64_t max_tokens, min_tokens, top_k, priority;
    double temperature, top_p, min_p, presence, frequency, repetition;
    double max_time_s; /* 0: no limit */
    struct { /* where model->search is; of others no_repeat_ngram_size alone counts */
        double length_penalty;
        int64_t beams, no_repeat_ngram_size;
        int32_t early_stopping;
    } search;
    uint64_t seed;
    uint64_t group; /* of its choices, for the engine */
    const nrd_json *tools;
    nrd_str shown;  /* parts with the pictures of the tools' messages read last, for a message of the user */
    nrd_str images; /* base64 with commas between, as the model reads them; empty: none */
    int n_images;
    nrd_str videos; /* likewise; their frames together are n_frames */
    int n_videos, n_frames;
    nrd_video_time *video_times; /* [n_videos] owns */
    nrd_str reasoning;  /* how long it may reason, as the model reads it; empty: as it likes */
    nrd_str logit_bias; /* JSON, as the model reads it; empty: none */
    const char *guide_type; /* NULL: free text */
    const char *guide_field; /* of the body, which says it */
    bool begins_bound;      /* by a guide from its first token on: no reasoning comes before it */
    nrd_str guide;
    struct {
        const char *s;
        size_t n;
    } stops[OAI_MAX_STOPS];
    size_t n_stops;
    nrd_ids stop_ids; /* that end an answer besides the model's */
    nrd_str allowed; /* ids of which it is made, a JSON list; empty: all */
    nrd_ids bad_ids, bad_ends; /* phrases that it must not have: ids of all, and where each ends */
    const char *cache_salt; /* NULL: none */
    int key; /* the place of the API key that it came with, -1: there are none */
    nrd_quota *quota; /* of the key whose place it has; NULL: none */
    struct { /* of responses */
        nrd_str echoed; /* members of the answer that repeat what was asked */
        nrd_str input;  /* the items that came, a JSON list */
        nrd_kept_response *previous; /* shares; NULL: none is continued */
        nrd_json_doc *tools; /* by function: {name, namespace, custom} of a tool that is known by another name; NULL: none */
        bool store, background;
        nrd_bg_job *job; /* shares, of one in the background; NULL: none */
        bool detached;   /* it has no client any more */
    } resp;
    struct { /* of llama.cpp's forms */
        nrd_str fields; /* names of the members to answer with, a JSON list; empty: all */
        bool tokens;    /* ids are told too */
        bool silent;    /* the prompt is only to be in the cache: nothing is told of the answer */
    } llama;
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

/* field.c */
/* An error of one field of the body: "field: " and the text, with the field for programs. */
nrd_error *nrd_oai_errorf(nrd_error_code code, const char *field, const char *fmt, ...)
    NRD_PRINTF(3, 4) NRD_MUST_USE;
/* There, and not null. */
static inline bool nrd_oai_given(const nrd_json *v)
{
    return v && v->type != NRD_JSON_NULL;
}
/* What is absent or null is right too. */
nrd_error *nrd_oai_check_object(const nrd_json *v, const char *field) NRD_MUST_USE;
nrd_error *nrd_oai_check_string(const nrd_json *v, const char *field) NRD_MUST_USE;
/* The value of a field; what is absent or null leaves *out alone. */
nrd_error *nrd_oai_get_bool(const nrd_json *root, const char *name, bool *out) NRD_MUST_USE;
nrd_error *nrd_oai_get_num(const nrd_json *root, const char *name, double low, double high, double *out) NRD_MUST_USE;
nrd_error *nrd_oai_get_int(const nrd_json *root, const char *name, int64_t low, int64_t high, int64_t *out) NRD_MUST_USE;
/* Whether a text of n bytes may be tokenized; field: where it stands in the body. */
nrd_error *nrd_oai_check_prompt(const nrd_oai_model *m, size_t n, const char *field) NRD_MUST_USE;
/* The error of a model without phrases that are for /v2 and its logs. Takes err, keeps its code; NULL: none.
 * guide: the field of the body that a guide was made of, which an error about it names; NULL: none. */
nrd_error *nrd_oai_plain_error(nrd_error *err, const char *guide) NRD_MUST_USE;

/* search.c */
/* Beams and lengths of a request whose other fields are read. */
nrd_error *nrd_oai_read_search(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;

/* reasoning.c */
/* What the body of a chat says of the model's effort; NULL: nothing. */
const char *nrd_oai_effort(const nrd_json *root);
bool nrd_oai_thinks_not(const nrd_json *root); /* it asks for an answer without reasoning */
/* Whether the reasoning is a field of the answer, stays in its content, or is left out. */
nrd_error *nrd_oai_read_reasoning_place(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;
/* How many tokens of reasoning it allows; -1: no limit. */
nrd_error *nrd_oai_read_budget(const nrd_oai_request *r, const nrd_json *root, int64_t *out) NRD_MUST_USE;
/* Writes r->reasoning; with a budget of 0 the prompt ends behind the reasoning that its template begins. After r->think_open. */
nrd_error *nrd_oai_keep_budget(nrd_oai_request *r, int64_t budget, nrd_str *prompt) NRD_MUST_USE;

/* words.c */
/* Reads bad_words into r->bad_ids and r->bad_ends, allowed_token_ids into r->allowed. */
nrd_error *nrd_oai_read_allowed(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;
nrd_error *nrd_oai_read_bad_words(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;

/* pictures.c */
/* The model sees, and its template knows where pictures stand. */
bool nrd_oai_takes_pictures(const nrd_oai_model *m);
nrd_error *nrd_oai_check_picture(const char *base64, size_t n, const char *field) NRD_MUST_USE;
/* Of a part that is one: its base64 goes to r->images. UNSUPPORTED: an address. */
nrd_error *nrd_oai_add_picture(nrd_oai_request *r, const nrd_json *part, size_t index) NRD_MUST_USE;
/* A part with a picture, from base64 as other APIs have it; field: where it stands. */
nrd_error *nrd_oai_put_image_url(nrd_str *out, const nrd_json *base64, const char *field) NRD_MUST_USE;

/* videos.c: the same of videos, which are frames. add: of a part that is one. */
bool nrd_oai_takes_videos(const nrd_oai_model *m);
bool nrd_oai_is_video(const nrd_json *part);
nrd_error *nrd_oai_add_video(nrd_oai_request *r, const nrd_json *part, size_t index) NRD_MUST_USE;
/* Of a rendered chat: the groups' places, each behind its time, where the template has put one for the video. */
nrd_error *nrd_oai_put_times(const nrd_oai_request *r, nrd_str *chat) NRD_MUST_USE;

/* parts.c */
/* A message's content, a text or parts, as such a template reads it: a list of parts, or a text with words as places; pictures go to r->images. */
nrd_error *nrd_oai_put_picture_parts(nrd_oai_request *r, nrd_str *out, const nrd_json *content, size_t index) NRD_MUST_USE;
/* The same of a tool's message. Where the template has no place for pictures in one, they stand in a message of the user
 * behind it, whose parts go to r->shown. */
nrd_error *nrd_oai_put_tool_parts(nrd_oai_request *r, nrd_str *out, const nrd_json *content, size_t index) NRD_MUST_USE;
/* That message, where there are such parts. */
void nrd_oai_put_shown(nrd_oai_request *r, nrd_str *out);

/* admit.c */
/* Always takes err. */
void nrd_oai_fail(nrd_http_request *req, nrd_error *err, const char *extra);
int nrd_oai_status(const nrd_error *err);
nrd_http_failer nrd_oai_reply_error; /* in the form of the path's API */
nrd_http_handler nrd_oai_on_method; /* 405, in the form of the path's API */
/* Authentication, rate limit, CORS. False: it was answered. *out_extra: header lines or NULL, owned. */
bool nrd_oai_admit(nrd_openai *o, nrd_http_request *req, bool counts, char **out_extra);
/* Whether the key may have another request under way, and has tokens left; false: 429 has been answered, with the header
 * lines `extra` (borrows). *out: whose place is given back, with the tokens that models have counted; NULL: none. */
bool nrd_oai_take_place(nrd_openai *o, nrd_http_request *req, const char *extra, nrd_quota **out);
void nrd_oai_give_place(nrd_openai *o, nrd_http_request *req, nrd_quota *k);
/* The same for a request whose method is DELETE; others are answered. */
bool nrd_oai_admit_delete(nrd_openai *o, nrd_http_request *req, char **out_extra);
/* The place of the key that a request brings, -1: there are none, or none of them fits. */
int nrd_oai_key(const nrd_openai *o, const nrd_http_request *req);
/* The header lines with a warning behind them. Takes extra (or NULL); the caller frees what comes. */
char *nrd_oai_warn_unknown(char *extra, const char *names);
nrd_error *nrd_oai_body(nrd_http_request *req, nrd_json_doc **out) NRD_MUST_USE;

/* gate.c */
typedef struct nrd_oai_question nrd_oai_question;
typedef struct nrd_oai_what { /* was asked; one of them */
    const nrd_oai_form *form;
    nrd_error *(*put)(nrd_oai_question *q);
    const struct nrd_pooled_kind *pooled;
} nrd_oai_what;
/* Takes extra and doc, the body where it was read already (else NULL). */
typedef void nrd_oai_go(nrd_openai *o, nrd_http_request *req, char *extra, nrd_json_doc *doc, const nrd_oai_what *what);
/* A request that has no body. */
static inline bool nrd_oai_only_reads(const nrd_http_request *req)
{
    return req->head.method == NRD_HTTP_GET || req->head.method == NRD_HTTP_HEAD;
}
/* Calls go when the model that the body names may be used, which it may until the request ends; at once where
 * models do not come and go. Errors are answered. Takes extra. */
void nrd_oai_pass(nrd_openai *o, nrd_http_request *req, char *extra, nrd_oai_what what, nrd_oai_go *go);

/* several.c */
/* One of several models, by its name (NAME:latest too) or one of its parts; NULL: none of that name. */
nrd_switch_model *nrd_oai_switch_model(nrd_openai *o, const char *name);
/* Unless it is forbidden, or clients bring adapters or models, whose names would then be the
 * one model's while they are away. What a batch asks
 * could not be warned. */
bool nrd_oai_takes_any_name(const nrd_openai *o, const nrd_http_request *req);
/* The same as nrd_oai_find_asked. */
nrd_switch_model *nrd_oai_switch_asked(nrd_openai *o, const nrd_http_request *req, const char *name);
/* NOT_FOUND, with the names that there are. */
nrd_error *nrd_oai_no_such_model(nrd_openai *o, const char *name) NRD_MUST_USE;
/* Orders that a page of another origin gives, by a form, are answered with 403: true. */
bool nrd_oai_refuse_foreign(nrd_openai *o, nrd_http_request *req, const char *extra);

/* query.c */
/* The value of a name in the query, unescaped; false: it is not there, or has no room. */
bool nrd_oai_query(const nrd_http_request *req, const char *name, char *out, size_t n);
/* limit and order of a list. */
nrd_error *nrd_oai_query_limit(const nrd_http_request *req, long long usual, long long most, long long *out) NRD_MUST_USE;
nrd_error *nrd_oai_query_order(const nrd_http_request *req, bool *out_ascending) NRD_MUST_USE;

/* files.c */
nrd_http_handler nrd_oai_on_file, nrd_oai_on_file_content;
void nrd_oai_put_file(nrd_str *out, const nrd_file_info *f);
nrd_error *nrd_oai_put_files(nrd_oai_question *q) NRD_MUST_USE; /* the list, as its query asks for it */
/* Who asks, for the store of files. */
void nrd_oai_owner(const nrd_openai *o, const nrd_http_request *req, char out[NRD_FILE_OWNER]);

/* upload.c */
nrd_http_handler nrd_oai_on_files;

/* batch_api.c */
nrd_http_handler nrd_oai_on_batches, nrd_oai_on_batch, nrd_oai_on_batch_cancel;
/* How batches ask the endpoints; server: whose loops run them. */
nrd_batch_asks nrd_oai_asks(nrd_openai *o, nrd_http_server *server);

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
/* Outputs of tensorrt_llm that are asked for where it declares them: releases differ. */
enum { OAI_N_OUTPUTS = 8, OAI_REUSED_BLOCKS = 4, OAI_FIRST_TIME = 5 };
extern const char *const nrd_oai_outputs[OAI_N_OUTPUTS];
/* The name is asked for anew the next time. */
void nrd_oai_forget_model(nrd_openai *o, const char *name);
/* By a name that the configuration gives, or by the repository's. NOT_FOUND names those there are.
 * Shares: the caller gives its reference back. May open files, so not on a loop thread. */
nrd_error *nrd_oai_find_model(nrd_openai *o, const char *name, nrd_oai_model **out) NRD_MUST_USE;
/* The same for a request. Where one model is served, without adapters, any name means it, and the answer has a header
 * that says so (--strict-model-names: not). */
nrd_error *nrd_oai_find_asked(nrd_openai *o, nrd_http_request *req, const char *name, nrd_oai_model **out) NRD_MUST_USE;
/* The same; absent or null is the one model that is served, adapters aside. INVALID_ARG: there are several. req is asked
 * for only with a name. */
nrd_error *nrd_oai_find_only(nrd_openai *o, nrd_http_request *req, const nrd_json *name, nrd_oai_model **out) NRD_MUST_USE;
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
struct nrd_oai_question {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *model;           /* of the path; NULL: the question is in the body */
    nrd_json_doc *doc;     /* the body */
    nrd_str out;
    /* private to question.c */
    nrd_error *(*put)(nrd_oai_question *q);
    nrd_error *err;
    char *extra;
};
/* Answers with what put appends to q->out; put may run on a worker. Without a body `model` is what is
 * asked about, copied; NULL: nothing. */
void nrd_oai_ask(nrd_openai *o, nrd_http_request *req, const char *model,
                 nrd_error *(*put)(nrd_oai_question *q));
/* work(arg), then done(arg, …) on the loop: at once where the body is short and its model is known, else by a worker. The
 * body is read before (unless *doc has it) or by `work`; *err: it could not, then work is not called. */
void nrd_oai_work(nrd_openai *o, nrd_http_request *req, nrd_json_doc **doc, nrd_error **err, void (*work)(void *arg),
                  void (*done)(void *arg, bool ran), void *arg);

/* list.c */
nrd_http_handler nrd_oai_on_models, nrd_oai_on_model;

/* tokenize.c */
nrd_http_handler nrd_oai_on_tokenize, nrd_oai_on_detokenize;

/* fim.c */
typedef struct nrd_oai_fim { /* all borrowed */
    const nrd_json *prefix, *suffix; /* strings; what stands before and behind the answer; NULL: nothing */
    const nrd_json *begun;           /* a string that the answer goes on from, NULL: none */
    const nrd_json *files;           /* [{filename, text}], NULL: none */
    const char *prefix_field, *suffix_field; /* where they stand in the body */
} nrd_oai_fim;
/* The prompt for a text between two others; texts are taken as they are, without special tokens. UNSUPPORTED:
 * the model has no tokens for it. */
nrd_error *nrd_oai_fim_prompt(const nrd_oai_model *m, const nrd_oai_fim *fim, nrd_ids *out) NRD_MUST_USE;
/* Marks of such prompts end the request's answers too. */
nrd_error *nrd_oai_fim_ends(nrd_oai_request *r) NRD_MUST_USE;

/* forms.c */
extern const nrd_oai_form nrd_oai_form_chat, nrd_oai_form_text, nrd_oai_form_messages, nrd_oai_form_ollama_chat,
    nrd_oai_form_ollama_generate, nrd_oai_form_responses, nrd_oai_form_llama, nrd_oai_form_infill;
/* By the path: errors come before the body says anything. */
const nrd_oai_form *nrd_oai_form_of(const nrd_http_request *req);

/* convert.c */
/* As nrd_oai_read of r->doc, which is a body in r's form; what is made of it is claimed. Any thread. */
nrd_error *nrd_oai_read_form(nrd_oai_request *r, nrd_claim *claim) NRD_MUST_USE;
/* Takes err. The field that it names, as the clients of this form know it. */
nrd_error *nrd_oai_rename_field(nrd_error *err, const nrd_oai_form *form) NRD_MUST_USE;
/* Appends the name of an object's next member. */
void nrd_oai_put_key(nrd_str *out, const char *name);
/* The same with the value, as it is. */
void nrd_oai_put_member(nrd_str *out, const char *name, const nrd_json *value);
/* Members of `root` for the chat's body. `special`: those that the form has already read, or whose
 * name means something else there; `unknown`: those that an answer of this form has no place for. Both
 * end with NULL. */
void nrd_oai_put_rest(nrd_oai_request *r, nrd_str *out, const nrd_json *root, const char *const *special,
                      const char *const *unknown);

/* ollama.c */
nrd_http_handler nrd_oai_on_ollama_chat, nrd_oai_on_ollama_generate, nrd_oai_on_ollama_tags, nrd_oai_on_ollama_ps,
    nrd_oai_on_ollama_show, nrd_oai_on_ollama_version, nrd_oai_on_ollama_order;

/* pull.c */
nrd_http_handler nrd_oai_on_pull, nrd_oai_on_delete;

/* ollama_in.c */
nrd_error *nrd_oai_ollama_chat(nrd_oai_request *r, const nrd_json *root, nrd_str *out) NRD_MUST_USE;
nrd_error *nrd_oai_ollama_generate(nrd_oai_request *r, const nrd_json *root, nrd_str *out) NRD_MUST_USE;
/* As nrd_oai_find_model; NAME:latest is NAME where nothing else has this name. */
nrd_error *nrd_oai_ollama_find(nrd_openai *o, nrd_http_request *req, const nrd_json *name, nrd_oai_model **out) NRD_MUST_USE;

/* ollama_out.c */
void nrd_oai_ollama_put_time(nrd_str *o, int64_t seconds); /* since 1970, as a JSON string */

/* llama.c */
nrd_http_handler nrd_oai_on_llama_completion, nrd_oai_on_llama_infill, nrd_oai_on_llama_props, nrd_oai_on_llama_slots,
    nrd_oai_on_apply_template;
/* The prompt that the messages in the body become, as a chat's do. Any thread. */
nrd_error *nrd_oai_question_prompt(nrd_oai_question *q, nrd_oai_model *m, nrd_str *out) NRD_MUST_USE;

/* llama_in.c */
nrd_error *nrd_oai_llama_completion(nrd_oai_request *r, const nrd_json *root, nrd_str *out) NRD_MUST_USE;
nrd_error *nrd_oai_llama_infill(nrd_oai_request *r, const nrd_json *root, nrd_str *out) NRD_MUST_USE;

/* mixed_ids.c */
/* A text, an id, or a list of both, as ids; flags: of nrd_tokenizer_encode. */
nrd_error *nrd_oai_mixed_ids(const nrd_oai_model *m, const nrd_json *v, const char *field, uint32_t flags,
                             nrd_ids *out) NRD_MUST_USE;

/* llama_out.c */
void nrd_oai_llama_put_settings(nrd_str *o, const nrd_sampling *s); /* members of an object */

/* health.c */
nrd_http_handler nrd_oai_on_health, nrd_oai_on_load, nrd_oai_on_metrics, nrd_oai_on_reset_prefix_cache;

/* switch.c */
nrd_http_handler nrd_oai_on_sleep, nrd_oai_on_wake_up, nrd_oai_on_is_sleeping, nrd_oai_on_models_load,
    nrd_oai_on_models_unload;
nrd_error *nrd_oai_needs_several(void) NRD_MUST_USE; /* what a server whose models stay says to orders */

/* count.c */
nrd_http_handler nrd_oai_on_count_tokens, nrd_oai_on_count_chat, nrd_oai_on_count_responses;

/* messages.c */
nrd_http_handler nrd_oai_on_messages;

/* messages_in.c */
nrd_error *nrd_oai_messages_convert(nrd_oai_request *r, const nrd_json *root, nrd_str *out) NRD_MUST_USE;

/* responses.c */
nrd_http_handler nrd_oai_on_responses, nrd_oai_on_response, nrd_oai_on_response_items, nrd_oai_on_response_cancel;

/* params.c */
void nrd_oai_note_name(nrd_oai_request *r, const char *name, size_t n); /* what has no effect, for the warning */
void nrd_oai_note_unknown(nrd_oai_request *r, const nrd_json *v); /* v: a member of the body */
/* Finds the model, checks and keeps every field, renders and tokenizes. Any thread. */
nrd_error *nrd_oai_read(nrd_oai_request *r, const nrd_json *root) NRD_MUST_USE;

/* chat_in.c */
/* What the chat template makes of a body's messages and tools. */
nrd_error *nrd_oai_render(nrd_oai_request *r, const nrd_json *root, nrd_str *out) NRD_MUST_USE;

/* generate.c */
nrd_http_handler nrd_oai_on_chat, nrd_oai_on_completions;
void nrd_oai_generate(nrd_openai *o, nrd_http_request *req, const nrd_oai_form *form);
void nrd_oai_request_free(nrd_oai_request *r); /* one that never had an HTTP request; any thread */

/* inputs.c */
/* Inputs of one element, and any other; what `data` points to is copied. */
nrd_error *nrd_oai_add_i32(nrd_http_call *call, const nrd_oai_model *m, const char *name,
                           int64_t value) NRD_MUST_USE;
/* Those that name the model's adapter; nothing where it is none. */
nrd_error *nrd_oai_add_adapter(nrd_http_call *call, const nrd_oai_model *m) NRD_MUST_USE;
/* That interactive requests go first, where it is one of a batch. */
nrd_error *nrd_oai_add_background(nrd_http_call *call) NRD_MUST_USE;
nrd_error *nrd_oai_add_bool(nrd_http_call *call, const char *name, bool value) NRD_MUST_USE;
nrd_error *nrd_oai_add(nrd_http_call *call, const char *name, TRITONSERVER_DataType type,
                       const int64_t *shape, size_t n_dims, const void *data,
                       size_t bytes) NRD_MUST_USE;

/* embeddings.c, scores.c, classify.c: with pooled.h */
nrd_http_handler nrd_oai_on_embeddings, nrd_oai_on_ollama_embeddings, nrd_oai_on_rerank, nrd_oai_on_score, nrd_oai_on_classify;

/* speech.c */
nrd_http_handler nrd_oai_on_transcriptions, nrd_oai_on_translations;

/* openapi.c */
nrd_http_handler nrd_oai_on_openapi;

/* answer.c */
size_t nrd_oai_answer_bytes(const nrd_oai_request *r); /* about what that takes */
nrd_error *nrd_oai_chunk(nrd_oai_choice *c) NRD_MUST_USE; /* what became new in one choice */
void nrd_oai_last_chunks(nrd_oai_request *r);          /* usage and the end of the stream */
void nrd_oai_put_error(nrd_str *out, int status, const char *message, const char *param, const char *code); /* OpenAI's */
long long nrd_oai_prompt_tokens(const nrd_oai_choice *c); /* those of pictures too, once the model has answered */
long long nrd_oai_cached_tokens(const nrd_oai_choice *c); /* how many of them came from the cache */
long long nrd_oai_used_tokens(const nrd_oai_request *r); /* of prompts that were answered, and of the answers */

/* log_probs.c */
/* Of a choice's tokens from `from` on, as its form lists them, or null; with_prompt: of the prompt's too, where that is echoed. */
void nrd_oai_put_choice_log_probs(nrd_str *o, const nrd_oai_choice *c, size_t from, bool with_prompt);
/* Log probabilities of the tokens from `from` on, as OpenAI lists them; with their ids as llama.cpp does. */
void nrd_oai_put_log_probs(nrd_str *o, const nrd_oai_choice *c, size_t from, bool with_ids);
void nrd_oai_put_log_prob(nrd_str *o, float v);
/* A token's text, quoted; its bytes, as numbers with commas between. */
void nrd_oai_put_token(nrd_str *o, const nrd_oai_request *r, int32_t id, nrd_str *bytes);

/* ---- prompt_probs.c ---- */

/* Copies what came with the first response; nothing where none came or they are here already. */
nrd_error *nrd_oai_take_prompt_probs(nrd_oai_choice *c, const nrd_oai_probs *from) NRD_MUST_USE;
void nrd_oai_put_prompt_probs(nrd_str *o, const nrd_oai_choice *c); /* a list, null for the first token */

/* parse.c */
typedef struct nrd_oai_parsed {
    const char *reasoning, *content; /* borrow: of nrd_oai_parse, spans of the text */
    size_t n_reasoning, n_content;
    int n_calls;
    bool pending; /* a call was begun and is not complete */
} nrd_oai_parsed;
typedef struct nrd_oai_parse_options {
    bool think_open;       /* the prompt ended inside of reasoning */
    bool keep_reasoning;   /* it is content, with its marks; calls are looked for behind it all the same */
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
/* Call number `index` of an answer, a member of such a list. */
void nrd_oai_put_call(nrd_str *calls, int index, const nrd_oai_parse_options *o, const char *name, size_t n_name,
                      const char *arguments, size_t n_arguments);
/* Bytes at the end of text[0..n) that may be the beginning of `mark`. */
size_t nrd_oai_partial(const char *text, size_t n, const char *mark, size_t n_mark);

/* call_forms.c */
/* A call at the beginning of s[0..n) that is not in JSON. Gives its bytes, or 0: there is none, or not of one of the
 * tools. *name borrows from s; `arguments` is cleared and gets a JSON object. */
size_t nrd_oai_read_call_form(const char *s, size_t n, const nrd_json *tools, nrd_view *name, nrd_str *arguments);

/* delta.c */
/* nrd_oai_parse of the first n bytes of a choice, with what its request asks for. */
void nrd_oai_split(const nrd_oai_choice *c, size_t n, bool final, bool chunk, nrd_str *calls, nrd_oai_parsed *p);
size_t nrd_oai_certain(const nrd_oai_choice *c); /* bytes that cannot become part of a stop string any more */
typedef struct nrd_oai_delta {
    const char *reasoning, *content; /* borrow from the choice's text */
    size_t n_reasoning, n_content;
    int n_calls; /* they come at the end, all of them */
    nrd_oai_parsed all; /* what is certain so far */
} nrd_oai_delta;
/* What is new since the last time; `calls` as nrd_oai_parse gives them. */
void nrd_oai_next_delta(nrd_oai_choice *c, nrd_str *calls, nrd_oai_delta *out);
/* Calls as nrd_oai_parse gives them, as a list: forms whose calls look otherwise read them again, since there is
 * one writer. NULL: no memory, and `o` is spoilt. The caller frees it. */
nrd_json_doc *nrd_oai_read_calls(nrd_str *o, const nrd_str *calls);
/* The arguments of a call as an object; text that is none becomes an empty one, which clients can read. */
void nrd_oai_put_arguments(nrd_str *o, const char *text, size_t n);

#endif
