/* SPDX-License-Identifier: Apache-2.0
 * backends/tensorrtllm/llm.h - the model "tensorrt_llm": Triton requests <-> executor requests.
 *
 * Purpose   params.c reads the model's parameters, rules.c tells which release a repository was written for. A request goes from
 *           api.c, the entry points, through request.c, with pictures through pictures.c and reader.c, to rows.c, which makes executor
 *           requests with convert.c (tensors) and request_params.c. What the executor answers goes through responder.c, an
 *           instance's thread, and respond.c, which makes responses; metrics.c feeds nv_trt_llm_*.
 * Owner     nrd_llm_model is immutable after initialisation. nrd_llm_instance owns an executor, a responder
 *           thread and threads that read pictures. An nrd_llm_request is made by Execute, listed in its instance under `mu`, run by
 *           Execute or by a reader, and freed with its last response, mostly by the responder.
 * Lifetime  The Triton request is kept until the last response: its statistics are reported then.
 */
#ifndef NRD_BACKENDS_TENSORRTLLM_LLM_H
#define NRD_BACKENDS_TENSORRTLLM_LLM_H

#include "backends/util/util.h"
#include "nereid/executor.h"
#include "nereid/server.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct nrd_llm_metrics nrd_llm_metrics;
typedef struct nrd_llm_metric_set nrd_llm_metric_set; /* metric_table.h */
typedef struct nrd_llm_rank_metrics nrd_llm_rank_metrics;
enum { NRD_LLM_MAX_LABELS = 2 };
typedef struct nrd_llm_label {
    const char *name, *value;
} nrd_llm_label;

/* Zeros in the place of log probabilities that were not asked for. */
typedef enum {
    LLM_DUMMY_NONE,          /* the output is left out */
    LLM_DUMMY_OF_NEW_TOKENS, /* one for each new token */
    LLM_DUMMY_OF_PROMPT,     /* one for each token of the prompt */
} nrd_llm_dummy;

/* What differs from release to release. */
typedef struct nrd_llm_rules {
    bool has_sequence_length; /* v0.6 on: must be asked for. Before, beams are padded with end_id */
    bool has_sequence_index;  /* v0.14 on */
    bool has_old_metric_names; /* v0.6: nv_trt_llm_*_statistics */
    bool has_unique_ids;      /* up to v0.9: an id is refused while another request has it */
    bool has_dummy_logits;    /* v0.8 to v0.13 */
    bool has_reuse_by_default; /* v0.19: enable_kv_cache_reuse is true where it is not given */
    nrd_llm_dummy dummy_log_probs;
} nrd_llm_rules;

typedef struct nrd_llm_model {
    nrd_tb_config config;
    nrd_exec_config exec_config;
    char *engine_dir;
    int32_t *windows;    /* max_attention_window_size */
    char *device;
    bool exclude_input_in_output;
    int32_t cancellation_check_period_ms, stats_check_period_ms;
    nrd_llm_rules rules;
    bool f16_logits;         /* declared as TYPE_FP16: they are sent so */
    bool has_stream_state;   /* our own templates: postprocessing keeps track of characters */
} nrd_llm_model;

typedef struct nrd_llm_instance {
    nrd_llm_model *model;
    TRITONBACKEND_ModelInstance *triton;
    nrd_exec *exec;
    nrd_exec_info info;
    nrd_llm_metrics *metrics;
    nrd_llm_rank_metrics *rank_metrics;
    nrd_llm_metric_set *lora_metrics, *draft_metrics, *picture_metrics, *handover_metrics; /* NULL: a server without metrics */
    struct nrd_llm_reader *reader; /* reader.h */
    pthread_t responder;
    bool responder_runs;
    pthread_mutex_t mu;
    struct nrd_llm_request *requests; /* in flight; guarded by mu */
    atomic_bool told_of_ids;          /* ids past the vocabulary were warned of */
} nrd_llm_instance;

/* One row of a Triton request = one executor request. */
typedef struct nrd_llm_row {
    struct nrd_llm_request *request;
    uint64_t exec_id;
    int32_t index;           /* row of the batch */
    bool is_done;
    bool is_counted; /* its prompt, nrd_llm_count_tokens; only the responder */
    const char *error_reason; /* of its error, nereid/llm_tensors.h; NULL: none */
    bool streaming, exclude_input;
    bool return_log_probs, return_context_logits, return_generation_logits, return_perf_metrics;
    bool return_num_input, return_num_output; /* counts of tokens */
    bool wants_labels;
    int32_t n_prompt; /* tokens that came, also those of an encoder */
    int32_t n_beams, n_input_ids, n_sequences, n_top, end_id;
    struct nrd_llm_tail *tails; /* [n_sequences], only where stream_state is sent */
    nrd_finish_reason finish_reason; /* of its first beam, where it is done */
    struct nrd_llm_probs *probs; /* [n_sequences], only where streamed answers have output_log_probs */
    uint64_t last_ns;        /* steady clock of the last piece of a stream; 0: none yet */
} nrd_llm_row;

/* stream_state: the newest generated ids of a sequence, all of it while it is short. Long enough that
 * decoding from its start gives the same text behind it (a character has at most four byte tokens). */
enum { LLM_STREAM_TAIL = 64 };
typedef struct nrd_llm_tail {
    int32_t ids[LLM_STREAM_TAIL];
    int32_t n;
} nrd_llm_tail;

/* The log probabilities of all tokens of a sequence so far. */
typedef struct nrd_llm_probs {
    float *p; /* [n] owned */
    int32_t n, cap;
} nrd_llm_probs;

/* Outputs, as bits of nrd_llm_request.wants. */
enum {
    LLM_OUT_OUTPUT_IDS = 1u << 0,
    LLM_OUT_SEQUENCE_LENGTH = 1u << 1,
    LLM_OUT_CUM_LOG_PROBS = 1u << 2,
    LLM_OUT_OUTPUT_LOG_PROBS = 1u << 3,
    LLM_OUT_CONTEXT_LOGITS = 1u << 4,
    LLM_OUT_GENERATION_LOGITS = 1u << 5,
    LLM_OUT_BATCH_INDEX = 1u << 6,
    LLM_OUT_SEQUENCE_INDEX = 1u << 7,
    LLM_OUT_STREAM_STATE = 1u << 8,
    LLM_OUT_CONTEXT_PARAMS = 1u << 10,
    LLM_OUT_NUM_INPUT = 1u << 11,
    LLM_OUT_NUM_OUTPUT = 1u << 12,
    LLM_OUT_PERF = 1u << 9, /* any of the kv_cache_*, *_time_ns and draft outputs */
};

typedef struct nrd_llm_request {
    struct nrd_llm_request *prev, *next;
    nrd_llm_instance *instance;
    TRITONBACKEND_Request *triton;
    TRITONBACKEND_ResponseFactory *factory;
    char *id;
    nrd_llm_row *rows;
    int32_t n_rows, n_rows_done;
    uint32_t wants;
    bool has_failed, is_answered; /* guarded by the instance's mu; is_answered: its id is free again */
    bool is_stopped; /* guarded by it as well */
    uint64_t exec_start_ns, compute_start_ns;
    uint64_t compute_end_ns; /* when its newest answer came from the executor; 0: none */
    int64_t n_input_tokens, n_output_tokens; /* for the length histograms */
    nrd_claim claim; /* memory of its rows in the executor */
} nrd_llm_request;

/* loss.c */
/* Takes `err`, of the executor; NULL is fine. */
TRITONSERVER_Error *nrd_llm_error(nrd_error *err);
/* Once the engine is lost, the model is no longer ready. Before the requests hear it, so that a client that was told finds it so. */
void nrd_llm_note_loss(nrd_llm_instance *inst);

/* claim.c: what the server allows a request (nereid/server.h); other servers allow everything. */
void nrd_llm_claim_join(nrd_llm_request *q);
/* The memory that the executor will keep for `e`, of one row. */
TRITONSERVER_Error *nrd_llm_claim(nrd_llm_request *q, const nrd_exec_request *e);
void nrd_llm_unclaim(nrd_llm_request *q); /* all of it */
void nrd_llm_count_tokens(nrd_llm_request *q, int64_t n);

/* request.c: always takes the request; an error becomes its answer. */
void nrd_llm_run(nrd_llm_instance *inst, TRITONBACKEND_Request *request);

/* rows.c */
/* Hands over the rows. From the last one's enqueue on, the responder may free q at any moment. */
void nrd_llm_run_rows(nrd_llm_instance *inst, nrd_llm_request *q, nrd_tb_inputs *in);
/* Answers all rows with `err`, which it takes, and so ends q. */
void nrd_llm_fail_rows(nrd_llm_instance *inst, nrd_llm_request *q, TRITONSERVER_Error *err);

/* pictures.c: requests that wait until their pictures are read. Execute's thread calls all of these. */
TRITONSERVER_Error *nrd_llm_pictures_start(nrd_llm_instance *inst);
void nrd_llm_pictures_stop(nrd_llm_instance *inst); /* those that wait are refused */
bool nrd_llm_has_pictures(TRITONBACKEND_Request *request, const nrd_tb_inputs *in);
TRITONSERVER_Error *nrd_llm_pictures_check_room(nrd_llm_instance *inst); /* UNAVAILABLE: as many wait as may */
/* Takes *in on success, and the rows of q always: an error is theirs. */
void nrd_llm_push_pictures(nrd_llm_instance *inst, nrd_llm_request *q, nrd_tb_inputs *in);

/* responder.c: the instance's thread. Stop ends the executor, which answers what runs; where none was started, nothing. */
TRITONSERVER_Error *nrd_llm_responder_start(nrd_llm_instance *inst);
void nrd_llm_responder_stop(nrd_llm_instance *inst);

/* rules.c */
nrd_llm_rules nrd_llm_rules_of(const nrd_tb_config *c);

/* params.c */
TRITONSERVER_Error *nrd_llm_params_read(nrd_llm_model *m);
void nrd_llm_params_fini(nrd_llm_model *m);

/* warnings.c: one line a parameter, in the log. */
/* A parameter that stands in the file without a value: empty, or still a template's "${…}". */
bool nrd_llm_param_is_open(const nrd_llm_model *m, const char *key);
void nrd_llm_warn_of_open(const nrd_llm_model *m);
void nrd_llm_warn_of_no_effect(const nrd_llm_model *m);
void nrd_llm_warn_of_misspelled(const nrd_llm_model *m);

/* describe.c */
/* In ModelInitialize only. A server that does not take it logs so: nothing else depends on it. */
void nrd_llm_describe(const nrd_llm_model *m, TRITONBACKEND_Model *model);

/* adapters.c */
/* Loads the adapters that the configuration names. */
TRITONSERVER_Error *nrd_llm_adapters_load(nrd_llm_instance *inst);
/* Reads the adapter from its folder unless it is there. */
nrd_error *nrd_llm_adapter_ensure(nrd_llm_instance *inst, uint64_t number, const char *dir);

/* convert.c: fills `out` for row `row`; what it points to lives in `in` or in `arena`. */
TRITONSERVER_Error *nrd_llm_convert(nrd_llm_instance *inst, const nrd_tb_inputs *in,
                                    int64_t n_rows, int64_t row, nrd_arena *arena,
                                    nrd_exec_request *out);
/* Which counts of tokens the row's answers shall have. */
TRITONSERVER_Error *nrd_llm_read_counts(const nrd_tb_inputs *in, int64_t n_rows, int64_t index, nrd_llm_row *row);

/* bias.c: a JSON object of token ids and numbers -> bias_ids, bias_values; they live in `arena`. */
TRITONSERVER_Error *nrd_llm_read_bias(const char *text, nrd_arena *arena, nrd_exec_request *out);
/* The text of NRD_LLM_ALLOWED -> embedding_bias [vocab] in `arena`, with what is there already: last of all parameters. */
TRITONSERVER_Error *nrd_llm_allow_only(const char *text, int32_t vocab, nrd_arena *arena, nrd_exec_request *out);

/* reasoning.c: the text of NRD_LLM_REASONING; its ids live in `arena`. */
TRITONSERVER_Error *nrd_llm_read_reasoning(const char *text, nrd_arena *arena, nrd_exec_request *out);

/* images.c: the texts of NRD_LLM_IMAGES and NRD_LLM_VIDEOS -> images, videos; they live in `arena`. */
TRITONSERVER_Error *nrd_llm_read_images(const char *text, nrd_arena *arena, nrd_exec_request *out);
TRITONSERVER_Error *nrd_llm_read_videos(const char *text, nrd_arena *arena, nrd_exec_request *out);

/* The outputs that a request asks for; an error when a mandatory one is missing. */
TRITONSERVER_Error *nrd_llm_wants(const nrd_llm_rules *rules, TRITONBACKEND_Request *request,
                                  uint32_t *out);

/* respond.c: turns one executor response into Triton responses; may free the request. */
void nrd_llm_respond(nrd_llm_instance *inst, nrd_exec_response *r);
/* Ends a row whose executor request was never accepted. Takes `err` always. */
void nrd_llm_respond_error(nrd_llm_instance *inst, nrd_llm_row *row, TRITONSERVER_Error *err);

/* metrics.c: NULL metrics are accepted everywhere (a server without metrics). */
TRITONSERVER_Error *nrd_llm_metrics_new(nrd_llm_metrics **out, const nrd_llm_instance *inst);
void nrd_llm_metrics_free(nrd_llm_metrics *m);
void nrd_llm_metrics_iteration(nrd_llm_metrics *m, const nrd_iter_stats *s,
                               bool is_static_batching);
/* No request runs: the gauges of the last step's work go back to zero. */
void nrd_llm_metrics_idle(nrd_llm_metrics *m, bool is_static_batching);
/* The counters of transfers between models become what the executor says. */
void nrd_llm_metrics_handovers(nrd_llm_metrics *m, nrd_exec *exec);
/* One step of the engine, in order: how long, and how long nothing ran before it. */
void nrd_llm_metrics_step(nrd_llm_metrics *m, const nrd_iter_stats *s);
/* A request is over. ms: since the model got it. */
void nrd_llm_metrics_request(nrd_llm_metrics *m, int64_t n_input_tokens, int64_t n_output_tokens, double ms,
                             nrd_finish_reason why);
/* Where the time of an answer that is whole went: waiting, prompt, answer. */
void nrd_llm_metrics_phases(nrd_llm_metrics *m, const nrd_perf_metrics *p);
void nrd_llm_metrics_first_token(nrd_llm_metrics *m,
                                 double ms); /* since the model got the request */
void nrd_llm_metrics_next_token(nrd_llm_metrics *m, double ms); /* since the token before it */

/* A metric with the model's name and version, and one label more (NULL: none). */
TRITONSERVER_Error *nrd_llm_metric_new(TRITONSERVER_Metric **out, TRITONSERVER_MetricFamily *family,
                                       const nrd_llm_instance *inst, const char *label, const char *value,
                                       const TRITONSERVER_MetricArgs *args);
/* The same with n_more labels, at most NRD_LLM_MAX_LABELS. */
TRITONSERVER_Error *nrd_llm_metric_new_of(TRITONSERVER_Metric **out,
                                          TRITONSERVER_MetricFamily *family,
                                          const nrd_llm_instance *inst, const nrd_llm_label *more,
                                          int n_more, const TRITONSERVER_MetricArgs *args);

/* rank_metrics.c: where ranks are. NULL: an engine of one rank, or a server without metrics. */
TRITONSERVER_Error *nrd_llm_rank_metrics_new(nrd_llm_rank_metrics **out,
                                             const nrd_llm_instance *inst);
void nrd_llm_rank_metrics_free(nrd_llm_rank_metrics *m);

/* lora_metrics.c: the caches of adapters. NULL metrics are accepted. */
TRITONSERVER_Error *nrd_llm_lora_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst);
void nrd_llm_lora_metrics_update(nrd_llm_metric_set *m, nrd_exec *exec); /* one thread at a time */

/* handover_metrics.c: prompts on their way between models. NULL metrics are accepted. */
TRITONSERVER_Error *nrd_llm_handover_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst);
void nrd_llm_handover_metrics_update(nrd_llm_metric_set *m, nrd_exec *exec); /* one thread at a time */

/* picture_metrics.c: the cache of pictures. NULL metrics are accepted: the model does not see. */
TRITONSERVER_Error *nrd_llm_picture_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst);
void nrd_llm_picture_metrics_update(nrd_llm_metric_set *m, nrd_exec *exec); /* one thread at a time */

/* draft_metrics.c: speculation. NULL metrics are accepted. */
TRITONSERVER_Error *nrd_llm_draft_metrics_new(nrd_llm_metric_set **out, const nrd_llm_instance *inst);
void nrd_llm_draft_metrics_step(nrd_llm_metric_set *m, const nrd_iter_stats *s);

#endif
