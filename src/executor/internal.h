/* SPDX-License-Identifier: Apache-2.0
 * executor/internal.h - what the files of this room share.
 *
 * Purpose   Requests (owned by the loop thread once they are in the inbox), responses (owned by the
 *           outbox, then by the caller), and the executor itself.
 * Owner     Fields of nrd_exec say who guards them. Lock order: mu, then pool.mu; neither is held
 *           during a device call.
 */
#ifndef NRD_EXECUTOR_INTERNAL_H
#define NRD_EXECUTOR_INTERNAL_H

#include "base/error.h"
#include "engine/kv_cache.h"
#include "engine/lora.h"
#include "engine/record.h"
#include "engine/run/runner.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculate/proposer.h"
#include "executor/classifier.h"
#include "executor/projection.h"
#include "executor/picture_cache.h"
#include "executor/pictures.h"
#include "executor/ranks/pulse.h"
#include "executor/ranks/ranks.h"
#include "executor/scores.h"
#include "executor/step_limit.h"
#include "guided/guided.h"
#include "model/engine.h"
#include "nereid/device.h"
#include "nereid/executor.h"

#include <pthread.h>
#include <stdatomic.h>

/* What the executor keeps of an nrd_exec_request, and around an nrd_exec_response. */
typedef struct nrd_exec_request_state nrd_exec_request_state;
typedef struct nrd_exec_response_state nrd_exec_response_state;
typedef struct nrd_guides nrd_guides;
typedef struct nrd_draft_model nrd_draft_model;
typedef struct nrd_medusa_model nrd_medusa_model;
typedef struct nrd_redrafter_model nrd_redrafter_model;
typedef struct nrd_eagle_model nrd_eagle_model;
typedef struct nrd_lora_folders nrd_lora_folders;
typedef struct nrd_handover nrd_handover;

/* Responses are recycled, so that a step of streaming sequences allocates nothing. */
typedef struct nrd_exec_pool {
    pthread_mutex_t mu;
    nrd_exec_response_state *free_list; /* guarded by mu */
    nrd_exec_response_state *loops;     /* the loop's own part of it */
    _Atomic int32_t refs; /* the executor and every response outside */
} nrd_exec_pool;

/* A growing array of one kind; `n` bytes are in use. */
typedef struct nrd_exec_buffer {
    void *data;
    size_t cap;
} nrd_exec_buffer;

enum { NRD_EXEC_PARAMS_BYTES = 24 };

struct nrd_exec_response_state {
    nrd_exec_response pub; /* first: callers hold a pointer to it */
    nrd_exec_response_state *next;
    nrd_exec_pool *pool;
    nrd_exec_buffer beams, ids, log_probs, top_ids, top_log_probs, generation_logits;
    float *context_logits; /* owned; or NULL */
    float *embedding;      /* owned; or NULL */
    nrd_exec_scores *prompt_scores; /* owned; or NULL */
    bool is_private;       /* only for await by id */
    uint8_t params[NRD_EXEC_PARAMS_BYTES]; /* context_phase_params */
};

typedef struct nrd_guide_waiter {
    /* By a worker, without a lock: takes both, of which one is NULL. */
    void (*done)(void *user, nrd_guide *guide, nrd_error *err);
    void *user;
    struct nrd_guide_waiter *prev, *next; /* guides.c */
    struct nrd_guide_entry *entry;
} nrd_guide_waiter;

struct nrd_exec_request_state {
    uint64_t id, client_id;
    nrd_exec *exec;
    nrd_exec_request_state *next;      /* inbox */
    nrd_exec_request_state *hash_next; /* active table */
    bool streaming, echo_prompt;
    int32_t n_cross, n_encoder; /* the prompt's first places: nrd_seq_request */
    nrd_seq_picture *states;    /* [n_states] those of pictures, or NULL */
    int32_t n_states;
    int32_t *cross_order, *cross_seen, n_cross_seen; /* nrd_seq_request; or NULL */
    float *features;            /* [frames, features of one] that an encoder hears; or NULL */
    int32_t n_prompt, n_seqs, n_open; /* n_open: sequences without their final response */
    int32_t n_idle;                   /* sequences that the scheduler gave back */
    nrd_seq *seqs;
    int32_t *n_sent; /* [n_seqs] generated tokens already in responses */
    int32_t *prompt;
    uint64_t *extra;
    int32_t *axes; /* [n_prompt, NRD_ROPE_AXES] where positions have axes, of a prompt with pictures or given places; or NULL */
    int32_t axes_shift; /* of what follows that prompt */
    nrd_kv_range *ranges;
    nrd_kv_retention retention;
    nrd_reasoning *reasoning; /* NULL: without a budget */
    int32_t *phrase_ids; /* stop and bad words, and their ends */
    float *bias_values; /* [n_bias] host, until uploaded */
    int32_t *bias_ids;  /* [n_bias] rising; NULL: n_bias is the vocabulary */
    int32_t n_bias;
    nrd_token_bias bias; /* on the device; all sequences share it */
    uint8_t *table; /* prompt table in the runner's type, host, until uploaded */
    const uint8_t *table_mem;
    size_t table_bytes;
    int32_t n_table_rows;
    nrd_pictures *pictures; /* shares, until they are rows of the table; or NULL */
    int32_t n_return; /* beams in a response */
    bool want_context_logits, want_generation_logits;
    float *context_logits;     /* [n_prompt, vocab] */
    nrd_exec_buffer *generation_logits; /* [n_seqs]: rows of vocab, one a live beam of each step */
    bool lacks_logits;                  /* there was no memory for some of them */
    nrd_exec_scores *score;             /* borrowed: the caller waits */
    nrd_exec_scores *prompt_scores;     /* [n_prompt] owned, until a response has them; or NULL */
    int32_t no_speech_id; /* of a model that hears; -1: not asked for */
    float no_speech_prob; /* below 0: not known yet */
    bool is_guided;
    char *guide_type, *guide_text; /* until it is in the inbox or asked for */
    nrd_guide_waiter guide_wait;
    nrd_guide *guide;    /* between the compile and the loop */
    nrd_error *guide_err;
    bool is_taken;     /* loop thread: the scheduler has, or had, its sequences */
    bool is_cancelled; /* loop thread: before that; or it came so */
    nrd_pooling pooling;
    float *embedding; /* [hidden, or the labels where they are more] with pooling, until it is in the response */
    bool wants_labels; /* with pooling */
    bool wants_projection; /* likewise: the vector as the model makes it */
    double *sums;     /* [hidden] with MEAN */
    nrd_perf_metrics perf;
    nrd_exec_response_state *spare; /* so many that its ends can be told without memory; owns */
    nrd_exec_request_state *cancel_next; /* guarded by mu, as cancel_asked: in a list of cancels */
    bool cancel_asked;
    nrd_adapter *adapter; /* pinned; or NULL */
    bool adapter_held;    /* it is on the device, or on its way there */
    bool is_told;         /* that the loop was given up: it has had its final answer */
    bool gives;           /* handover.c, as what follows: it ends with its prompt, which another executor goes on with */
    int32_t handover_tokens; /* room that it has there */
    uint8_t params[NRD_EXEC_PARAMS_BYTES];
    size_t n_params;         /* 0: none yet */
    nrd_handover *handover;  /* what it goes on with, until that is in the cache; or NULL. Owns */
    int32_t n_overtaken;  /* by requests whose adapters were there */
    int64_t deadline_ns, start_by_ns; /* 0: none */
    int64_t due_ns;       /* deadlines.c, as the two below: the next of both; 0: in no list */
    nrd_exec_request_state *due_prev, *due_next;
};

enum { ACTIVE_BUCKETS = 4096 };

typedef struct nrd_exec_limits {
    int32_t max_batch_size, max_beam_width, max_num_tokens, max_input_len, max_seq_len;
    int32_t max_encoder_input; /* tokens; 0: the model has no encoder. max_input_len and max_seq_len count its blocks in */
    int32_t max_picture_states; /* of a request, that layers read; 0: requests bring no such pictures. Likewise */
    int32_t max_queue_size;
    bool chunked_context;
} nrd_exec_limits;

typedef enum {
    NRD_EXEC_NO_METHOD = 0,
    NRD_EXEC_NGRAM, /* what the text has said before: engine/speculate/ngram.c */
    NRD_EXEC_DRAFT_MODEL,
    NRD_EXEC_LOOKAHEAD,
    NRD_EXEC_MEDUSA,
    NRD_EXEC_EAGLE,
    NRD_EXEC_EAGLE3,
    NRD_EXEC_MTP, /* by the means of EAGLE heads */
    NRD_EXEC_REDRAFTER,
} nrd_exec_method;

/* Who guesses, and how much. */
typedef struct nrd_exec_speculative {
    nrd_exec_method method;
    int32_t max_draft; /* tokens of a draft, or nodes of its tree; 0: no drafts */
    int32_t min_match, max_match;
    nrd_lookahead lookahead;
    bool always; /* drafts are not weighed against their cost */
    float posterior_threshold, posterior_alpha; /* typical acceptance; threshold 0: exact, alpha 0: the threshold's root */
    nrd_dtype quantize; /* of heads that come in more bits: I8, F8_E4M3; NONE: as they come */
    char *model;   /* path of the draft model, or of the heads, owns; NULL: none, or the engine's */
    char *choices; /* medusa_choices or eagle_choices, owns; NULL: the default */
    int32_t top_k, depth; /* of EAGLE's trees; top_k 0: chains, where there are no choices. Of a ReDrafter: beams, and their length */
} nrd_exec_speculative;

/* The watch over the loop: stall.c. */
typedef struct nrd_exec_watch {
    pthread_t thread;
    bool started, ends; /* ends: guarded by mu of the executor, with which cv is waited for */
    pthread_cond_t cv;
    int64_t limit_ms;              /* the longest that the loop may be in the device */
    bool is_wished;                /* the user's number, for all steps */
    bool computes_here;            /* the device is this machine's processors */
    _Atomic int64_t in_device;     /* since when; 0: it is not */
    _Atomic int64_t step_limit_ms; /* instead of limit_ms; 0: none, it is in the device for something else than a step */
    _Atomic int32_t loop_thread;   /* its number; 0: it has not begun */
    nrd_step_limit step_limit;     /* the loop's, as busy_ns */
    uint64_t busy_ns;              /* since when the device has had the oldest step under way and no other before it */
    struct {
        int64_t since, looked_ms, waited_ms; /* in_device; for how long by the looks */
    } stay;                                  /* the watch's, as pulse */
    nrd_pulse pulse;
} nrd_exec_watch;

struct nrd_exec {
    nrd_exec_config cfg;
    nrd_exec_info info;
    nrd_exec_limits lim;
    bool lists_prompts; /* with text/prompt_limit.h */
    nrd_device *dev;
    const char *device_name; /* as it was opened: cpu, cuda, ... */
    bool rows_are_alone;     /* what stands beside a row in a step changes none of its bits, also without `deterministic` */
    nrd_engine *engine;
    nrd_engine *encoder; /* of a decoder that reads an encoder's states; else NULL */
    const nrd_model_spec *spec;
    nrd_ranks *ranks; /* NULL: this is the only one */
    nrd_classifier *classifier; /* NULL: the model has no labels */
    nrd_projection *projection; /* NULL: vectors are the pooled states */
    nrd_vision *vision; /* NULL: the model does not see, as the tower */
    nrd_tower *tower;
    char no_pictures[256]; /* why it takes none, though it sees; else empty */
    nrd_picture_cache *picture_cache; /* with a tower */
    nrd_runner *runner;
    nrd_kv *kv;
    nrd_sched *sched;
    nrd_sched_limits sched_lim;
    nrd_kv_config kv_config;
    nrd_record *record; /* NULL: nothing is recorded */
    bool overlap;

    pthread_t thread;
    bool thread_started;
    nrd_exec_watch watch;
    pthread_mutex_t mu;
    pthread_cond_t in_cv;  /* the loop waits for work */
    pthread_cond_t out_cv; /* callers wait for responses, shutdown for the end */
    /* guarded by mu */
    nrd_exec_request_state *inbox_head, *inbox_tail;
    nrd_exec_request_state *cancels;       /* active ones, asked to end */
    nrd_exec_request_state *cancels_taken; /* likewise, by the loop */
    nrd_exec_request_state
        *active[ACTIVE_BUCKETS];     /* accepted, final response not yet in the outbox */
    int32_t n_active, n_waiting;     /* n_waiting: not started yet, for the queue limit */
    int32_t n_compiling;             /* of them, their guide is not there yet */
    nrd_exec_response_state *out_head, *out_tail;
    uint64_t next_id;
    bool stopping, cut, stopped;
    bool mask_news; /* a guide is ready that a step did not wait for */
    bool adapter_news; /* one has come to the device, or room there may be free */
    const char *lost;    /* why the engine is lost: lost_text; or NULL */
    char lost_text[512];
    char rank_lost[256]; /* which rank was lost or does not get on, and how; empty: none */
    int64_t rank_lost_ms; /* when */
    bool is_given_up;     /* the loop does not come back from the device; all requests were told */
    bool is_abandoned;    /* and nobody waits for it any more */
    nrd_iter_stats *iter_ring;
    int32_t iter_cap, iter_first, iter_n;

    nrd_exec_handover_stats handovers; /* guarded by the lock of handover.c */

    /* loop thread only */
    int64_t handover_due_ns; /* when one that is kept may be over; 0: none is */
    nrd_exec_request_state *due_head, *due_tail; /* by due_ns */
    nrd_exec_request_state *held_back, *held_back_tail; /* their adapters are not on the device yet */
    int32_t bank_rank; /* that the runner knows */
    nrd_plan plans[NRD_SCHED_MAX_MICRO]; /* [n_plans] */
    int32_t n_plans;
    int32_t first_plan, n_under_way; /* with pipeline stages: the oldest plan that runs, and how many do */
    nrd_sched_event *events;
    int32_t inflight;                /* plan that runs now; -1: none */
    bool is_late[NRD_SCHED_MAX_MICRO]; /* plans that were made when nothing ran, though steps may overlap */
    bool is_held;                    /* nothing can run before a mask is made */
    nrd_exec_response_state *held_head, *held_tail; /* answers that leave together: of a step, with V1 of a batch */
    bool is_answering;               /* what a step says is held until all of it is */
    uint64_t iteration;
    uint64_t n_terminated_step;
    uint64_t n_accepted; /* draft tokens that held, of all steps before */
    uint64_t draft_ns;   /* of the step that was started last */
    uint64_t last_end_ns; /* of the last step's work on the device, or where the loop's work began since; 0: it waits */
    int32_t n_touched_blocks; /* of the cache, most in use at once */

    nrd_exec_pool *pool;
    nrd_exec_speculative speculative;
    nrd_draft_model *draft; /* draft_model.c; NULL: none */
    nrd_medusa_model *medusa; /* medusa_model.c; NULL: none */
    nrd_eagle_model *eagle; /* eagle_model.c; NULL: none */
    nrd_redrafter_model *redrafter; /* redrafter_model.c; NULL: none */
    nrd_guides *guides; /* NULL: no tokenizer_dir */
    nrd_lora_cache *adapters;
    nrd_lora_folders *folders;
};

/* lora.c */
nrd_error *nrd_exec_lora_open(nrd_exec *x) NRD_MUST_USE;
void nrd_exec_lora_close(nrd_exec *x);
/* Loads the folders in `dir` whose names are ids; others are logged and left out. */
nrd_error *nrd_exec_lora_prefetch(nrd_exec *x, const char *dir) NRD_MUST_USE;
/* The request's adapter, pinned; NULL: none. Any thread. */
nrd_error *nrd_exec_lora_of(nrd_exec *x, const nrd_exec_request *in, nrd_adapter **out) NRD_MUST_USE;
/* Its adapter may leave the device. Before the request is freed. */
void nrd_exec_drop_adapter(nrd_exec_request_state *r);

/* admit.c; loop thread */
/* Gives the request to the scheduler, now or when its adapter is on the device. */
void nrd_exec_admit(nrd_exec *x, nrd_exec_request_state *r);
/* Those held back whose adapters have come. */
void nrd_exec_admit_held_back(nrd_exec *x);
bool nrd_exec_is_held_back(const nrd_exec *x, const nrd_exec_request_state *r);
void nrd_exec_take_back(nrd_exec *x, nrd_exec_request_state *r); /* out of those held back */

/* deadlines.c; loop thread */
/* From now on the request is in nrd_exec_deadline_due, if it has a deadline; until remove. */
void nrd_exec_deadline_add(nrd_exec_request_state *r);
void nrd_exec_deadline_remove(nrd_exec_request_state *r); /* fine where it is not there */
/* Takes out a request whose time is over, and says whether it is that to start; NULL: none. */
nrd_exec_request_state *nrd_exec_deadline_due(nrd_exec *x, int64_t now_ns, bool *out_to_start);
int64_t nrd_exec_deadline_next(const nrd_exec *x); /* when to ask; 0: never */

/* limits.c */
nrd_error *nrd_exec_check_config(const nrd_exec_config *c) NRD_MUST_USE;
/* What the caller asked for, within what the engine was built for: x->lim. Needs x->engine and x->encoder. */
void nrd_exec_settle_limits(nrd_exec *x);
int32_t nrd_exec_draft_rows(const nrd_exec *x); /* draft tokens of a step, at most */
static inline int32_t nrd_exec_max_entries(const nrd_exec *x)
{
    return x->lim.max_batch_size * x->lim.max_beam_width;
}
/* Rows of a pass that drafts, at most: of a tree's or a search's level no more than the drafts have nodes. */
int32_t nrd_exec_draft_outputs(const nrd_exec *x);
int32_t nrd_exec_longest_chain(const nrd_exec *x); /* tokens of a draft of speculative_config; 0: there are none, or they are trees */

/* cache_size.c */
/* Makes the cache, of all ranks: a share of the free memory, capped by max_tokens_in_paged_kv_cache and by what all
 * sequences together could use. Needs the runner and x->sched_lim. INVALID_ARG: it has no room for one sequence. */
nrd_error *nrd_exec_size_kv(nrd_exec *x) NRD_MUST_USE;

/* open.c */
/* Everything up to the running loop. What was opened before an error stays for nrd_exec_open to close. */
nrd_error *nrd_exec_open_all(nrd_exec *x, const char *engine_dir) NRD_MUST_USE;

/* speculative.c */
/* Whether the method suits a model with layers that have a recurrent state. */
nrd_error *nrd_exec_speculative_check_recurrent(const nrd_exec_speculative *c, const nrd_model_spec *m) NRD_MUST_USE;
nrd_error *nrd_exec_speculative_read(const char *json, nrd_exec_speculative *out) NRD_MUST_USE; /* NULL or "": off */
/* err, which opening heads gave, says that no folder of them was named where that is so. */
nrd_error *nrd_exec_speculative_heads(const nrd_exec_speculative *c, nrd_error *err) NRD_MUST_USE;
void nrd_exec_speculative_fini(nrd_exec_speculative *c);
/* What decoding_mode adds. */
nrd_error *nrd_exec_speculative_of_mode(const nrd_exec_config *c, nrd_exec_speculative *out) NRD_MUST_USE;
/* What a request asks of drafts, by field and limit. */
nrd_error *nrd_exec_speculative_check(const nrd_exec *x, const nrd_exec_request *in) NRD_MUST_USE;
bool nrd_exec_method_has_network(nrd_exec_method m); /* drafts are made by one of its own vocabulary */

/* proposers.c */
/* Of one sequence of so many tokens. */
size_t nrd_exec_speculative_bytes(const nrd_exec *x, int32_t max_total);
/* Prepares a sequence's decoding, with a proposer where the executor has a method for it. Any
 * thread. */
nrd_error *nrd_exec_speculative_prepare(const nrd_exec *x, const nrd_exec_request *in, nrd_seq *q) NRD_MUST_USE;

/* guides.c; any thread */
nrd_guides *nrd_guides_new(const char *tokenizer_dir); /* NULL: no memory */
void nrd_guides_free(nrd_guides *g); /* no sequence with a guide, and nobody who waits, may be left */
/* Finds a guide, which the caller then has a reference to, or has it compiled: *out is NULL, and w->done
 * will be called once, unless nrd_guides_leave is in time. `w` with done and user set, else zero, must stay
 * until then. */
nrd_error *nrd_guides_want(nrd_guides *g, const char *type, const char *text, nrd_guide_waiter *w,
                           nrd_guide **out) NRD_MUST_USE;
/* True: done will not be called. False: it was, or is about to be. */
bool nrd_guides_leave(nrd_guides *g, nrd_guide_waiter *w);
/* A guide that passed a limit is of no use to later requests: its memory goes with those that have it. */
void nrd_guides_forget(nrd_guides *g, const nrd_guide *guide);

/* bias.c */
nrd_error *nrd_exec_bias_check(const nrd_exec_request *in, int32_t vocab) NRD_MUST_USE;
/* Copies the request's bias, as few values as hold it. */
nrd_error *nrd_exec_bias_copy(nrd_exec_request_state *r, const nrd_exec_request *in) NRD_MUST_USE;

/* request_check.c */
enum { NRD_EXEC_MAX_PHRASES = 1024 }; /* stop or bad ones of a request */
nrd_error *nrd_exec_request_check(const nrd_exec *x, const nrd_exec_request *in) NRD_MUST_USE;

/* request.c */
nrd_error *nrd_exec_request_new(nrd_exec_request_state **out, nrd_exec *x,
                                const nrd_exec_request *in) NRD_MUST_USE;
nrd_error *nrd_exec_request_new_score(nrd_exec_request_state **out, nrd_exec *x,
                                      uint64_t lora_task_id, const int32_t *ids, int32_t n,
                                      nrd_exec_scores *job) NRD_MUST_USE;
void nrd_exec_request_free(nrd_exec_request_state *r);
nrd_error *nrd_exec_request_upload(nrd_exec_request_state *r)
    NRD_MUST_USE; /* loop thread: what must be on the device */
nrd_error *nrd_exec_request_bind_guide(nrd_exec_request_state *r)
    NRD_MUST_USE; /* loop thread: the guide, or its error, is there */

/* encoder_input.c */
/* The most places of a sequence that the states of an encoder or a picture take; 0: there are none. */
int32_t nrd_exec_encoder_room(const nrd_exec *x);
bool nrd_exec_hears(const nrd_exec *x); /* its encoder reads features of sound */
/* Tokens, or states of frames, that the encoder reads of a checked request. */
int32_t nrd_exec_encoder_length(const nrd_exec *x, const nrd_exec_request *in);
/* The features of a checked request as float32. */
nrd_error *nrd_exec_encoder_copy(nrd_exec_request_state *r, const nrd_exec_request *in) NRD_MUST_USE;
nrd_error *nrd_exec_encoder_check(const nrd_exec *x, const nrd_exec_request *in) NRD_MUST_USE;
/* Makes input_ids of `in` the prompt of both networks, of which the first *out_cross places are for the encoder's states;
 * its memory is *out_ids, which the caller frees. */
nrd_error *nrd_exec_encoder_join(const nrd_exec *x, nrd_exec_request *in, int32_t **out_ids, int32_t *out_cross) NRD_MUST_USE;

/* cross_mask.c; n: states of the encoder; n_begin: tokens that the text begins with */
nrd_error *nrd_exec_cross_mask_check(const nrd_exec *x, const nrd_exec_request *in, int32_t n, int32_t n_begin) NRD_MUST_USE;
nrd_error *nrd_exec_cross_mask_copy(nrd_exec_request_state *r, const nrd_exec_request *in) NRD_MUST_USE; /* of a checked request */

/* prompt_table.c */
nrd_error *nrd_exec_prompt_table_check(const nrd_exec *x, const nrd_exec_request *in) NRD_MUST_USE;
/* After the prompt: also the extra ids of its tokens. */
nrd_error *nrd_exec_prompt_table_copy(nrd_exec_request_state *r, const nrd_exec_request *in) NRD_MUST_USE;
nrd_error *nrd_exec_prompt_table_upload(nrd_exec_request_state *r) NRD_MUST_USE; /* loop thread */
void nrd_exec_prompt_table_free(nrd_exec_request_state *r);

/* mrope.c: a client's own places of the prompt's tokens. copy is after the prompt table's, whose extra ids it adds to. */
nrd_error *nrd_exec_mrope_check(const nrd_exec *x, const nrd_exec_request *in) NRD_MUST_USE;
nrd_error *nrd_exec_mrope_copy(nrd_exec_request_state *r, const nrd_exec_request *in) NRD_MUST_USE;

/* reasoning.c */
nrd_error *nrd_exec_reasoning_check(const nrd_exec *x, const nrd_exec_request *in) NRD_MUST_USE;
nrd_error *nrd_exec_reasoning_copy(nrd_exec_request_state *r, const nrd_exec_request *in) NRD_MUST_USE;

/* vision.c */
/* The tower's weights, and whether requests may bring pictures: before limits are settled. */
nrd_error *nrd_exec_vision_read(nrd_exec *x, const char *engine_dir) NRD_MUST_USE;
nrd_error *nrd_exec_vision_open(nrd_exec *x) NRD_MUST_USE; /* the tower on the device: behind the runner */
void nrd_exec_vision_close(nrd_exec *x);
/* The pictures become the request's prompt table. Loop thread. */
nrd_error *nrd_exec_vision_run(nrd_exec_request_state *r) NRD_MUST_USE;

/* response.c */
nrd_error *nrd_exec_pool_new(nrd_exec_pool **out) NRD_MUST_USE;
void nrd_exec_pool_unref(nrd_exec_pool *p);
void nrd_exec_response_put(nrd_exec_response_state *r);
bool nrd_exec_buffer_reserve(nrd_exec_buffer *b, size_t bytes);
/* What a sequence has to say now; `finish` NONE: it goes on. */
/* Answers that a request has from its start, one for each end: telling it needs no memory. */
nrd_error *nrd_exec_spare_new(nrd_exec_request_state *r) NRD_MUST_USE;
void nrd_exec_spare_free(nrd_exec_request_state *r);
/* NULL: no memory for an answer that is not the last one of its sequence. */
nrd_exec_response_state *nrd_exec_response_make(nrd_exec_request_state *r, nrd_seq *q,
                                                nrd_seq_finish finish, bool is_final);
nrd_exec_response_state *nrd_exec_response_make_error(nrd_exec_request_state *r,
                                                      nrd_error *err); /* takes err always */

/* world.c */
/* Starts the other ranks of the engine, which is open, as its device is; they load while this one does.
 * Nothing for an engine of one rank. */
nrd_error *nrd_exec_start_ranks(nrd_exec *x, const char *engine_dir,
                                const nrd_runner_config *rc) NRD_MUST_USE;
/* Waits until the other ranks are loaded. di->mem_free_bytes: what each rank may count on. */
nrd_error *nrd_exec_free_bytes(nrd_exec *x, nrd_device_info *di) NRD_MUST_USE;
nrd_error *nrd_exec_alloc_kv(nrd_exec *x, int32_t n_blocks, int32_t n_host_blocks) NRD_MUST_USE; /* of all ranks */

/* stall.c */
/* limit_ms and is_wished, by NEREID_RANK_STALL_SECS. INVALID_ARG: it is no such number. */
nrd_error *nrd_exec_stall_limit(nrd_exec_watch *w) NRD_MUST_USE;
nrd_error *nrd_exec_stall_start(nrd_exec *x) NRD_MUST_USE;
void nrd_exec_stall_stop(nrd_exec *x);
/* Around what the loop's thread does in the device, waits included. leave takes err, and returns it, or INTERNAL where the
 * loop was given up meanwhile: requests have been told then. */
void nrd_exec_enter_device(nrd_exec *x);
nrd_error *nrd_exec_leave_device(nrd_exec *x, nrd_error *err) NRD_MUST_USE;
/* The same for a step of this plan, which has a limit of its own. */
void nrd_exec_enter_step(nrd_exec *x, const nrd_plan *p);
/* The oldest step under way has ended; what it took is learned from. */
void nrd_exec_step_ended(nrd_exec *x, const nrd_plan *p);
/* A step calls back: until the next enter the loop is not in the device. False: it was given up, and nothing of a request
 * may be touched. */
bool nrd_exec_pause_device(nrd_exec *x);
/* Of a loop that was given up: its end, or that it is left alone. With mu held. */
void nrd_exec_await_given_up(nrd_exec *x);
/* Instead of the loop's end: what it may still use stays. */
void nrd_exec_abandon(nrd_exec *x);

/* answers.c; loop thread */
/* n_new tokens of the sequence, or its end; finish NONE: it goes on. */
void nrd_exec_answer(nrd_exec *x, nrd_seq *q, int32_t n_new, nrd_seq_finish finish);
/* What was held leaves together. */
void nrd_exec_release_held(nrd_exec *x);
/* An error as the final answer, if it has had none; takes `err`. The request is the caller's still. */
void nrd_exec_fail_request(nrd_exec *x, nrd_exec_request_state *r, nrd_error *err);
/* The same for requests whose sequences the scheduler has. */
void nrd_exec_end_request(nrd_exec *x, nrd_exec_request_state *r, nrd_error *err);
void nrd_exec_end_wrong(nrd_exec *x, nrd_seq *q); /* NRD_SEQ_FINISH_ERROR: its guide passed a limit, or its logits are NaN */
/* Behind a commit: adds to the event the tokens that need no step. */
void nrd_exec_jump_forward(nrd_exec *x, nrd_sched_event *e);
/* A request whose first token was chosen elsewhere is the scheduler's now: it says that token. */
void nrd_exec_begin_handed(nrd_exec *x, nrd_exec_request_state *r);

/* step_rows.c: callbacks of the runner; user: the executor */
void nrd_exec_on_context_rows(void *user, nrd_seq *q, int32_t first, int32_t n,
                                   const float *logits, int64_t stride);
void nrd_exec_on_input(void *user, int32_t layer, int32_t expert, int32_t position, int32_t n_tokens, int64_t cols,
                            const void *x, nrd_dtype dtype);
void nrd_exec_on_cache(void *user, int32_t layer, int32_t n_tokens, int64_t stride, const float *keys, const float *values);
void nrd_exec_on_state_sum(void *user, nrd_seq *q, int32_t first, int32_t n, const double *sum);
void nrd_exec_on_choice_row(void *user, nrd_seq *q, int32_t beam, int32_t n_generated,
                                 const float *logits);

/* loop.c */
void *nrd_exec_loop_main(void *exec);
void nrd_exec_on_mask_ready(void *user);

/* active.c; with mu held */
void nrd_exec_active_add(nrd_exec *x, nrd_exec_request_state *r);
nrd_exec_request_state *nrd_exec_active_find(nrd_exec *x, uint64_t id);
void nrd_exec_out_push(nrd_exec *x, nrd_exec_response_state *r); /* who waits is woken by the caller (out_cv) */

/* queue.c */
/* Takes the request always. Once it is admitted the loop may end it at any moment. Any thread. */
nrd_error *nrd_exec_submit(nrd_exec *x, nrd_exec_request_state *r, uint64_t *out_id) NRD_MUST_USE;

/* log.c */
void nrd_exec_log(const nrd_exec *x, int level, const char *fmt, ...) NRD_PRINTF(3, 4);

#endif
