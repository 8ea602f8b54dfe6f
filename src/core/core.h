/* core/core.h - the objects inside the server and who owns them.
 *
 * Purpose   Structures shared by the files of src/core; nothing here is visible outside. The opaque
 *           types of the Triton headers are these structures: as_api()/TO_X() only change the type.
 * Owner     nrd_server: process-wide, any thread. nrd_model: counted (repository, requests and
 *           response factories share it); destroyed by the server's reaper thread, never by a
 * thread of the model itself. nrd_request: its creator, lent to the core from ServerInferAsync
 *           until the release callback. nrd_factory: counted; makes responses. nrd_response:
 * whoever it was handed to last. Units     Times in nanoseconds of the steady clock unless the name
 * says otherwise. Errors    nrd_error * inside; nrd_error and TRITONSERVER_Error are the same
 * object here. Lifetime  server > backend > model > instance. A request holds its model from New to
 * release.
 */
#ifndef NRD_CORE_CORE_H
#define NRD_CORE_CORE_H

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/pool.h"
#include "base/queue.h"
#include "base/str.h"
#include "model_config.pb-c.h"
#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NRD_MAX_RANK = 32,                /* dimensions of a tensor */
    NRD_MAX_INPUT_SEGMENTS = 1 << 20, /* buffers of one input */
};

typedef struct nrd_server nrd_server;
typedef struct nrd_model nrd_model;
typedef struct nrd_instance nrd_instance;
typedef struct nrd_backend nrd_backend;
typedef struct nrd_request nrd_request;
typedef struct nrd_response nrd_response;
typedef struct nrd_factory nrd_factory;
typedef struct nrd_trace nrd_trace;
typedef struct nrd_sched nrd_sched;
typedef struct nrd_seq nrd_seq;
typedef struct nrd_cache nrd_cache;
typedef struct nrd_order nrd_order;
typedef struct nrd_turn nrd_turn;
typedef struct nrd_strategy nrd_strategy;
typedef struct nrd_seq_slot nrd_seq_slot;
typedef struct nrd_seq_states nrd_seq_states;
typedef struct nrd_ensemble nrd_ensemble;
typedef struct nrd_repo nrd_repo;
typedef Inference__ModelConfig nrd_config;

typedef struct nrd_strings {
    char **items;
    size_t n;
} nrd_strings;

void nrd_strings_add(nrd_strings *l, const char *s);
void nrd_strings_fini(nrd_strings *l);

typedef struct nrd_setting {
    struct nrd_setting *next;
    char *scope; /* backend, host policy, metrics or cache name; "" = all */
    char *key, *value;
} nrd_setting;

static inline TRITONSERVER_Error *as_api(nrd_error *err)
{
    return (TRITONSERVER_Error *)(void *)err;
}

static inline nrd_error *from_api(TRITONSERVER_Error *err)
{
    return (nrd_error *)(void *)err;
}

#define NRD_API_TRY(expr)                                                                          \
    do {                                                                                           \
        nrd_error *nrd_api_err_ = (expr);                                                          \
        if (nrd_api_err_) {                                                                        \
            return as_api(nrd_api_err_);                                                           \
        }                                                                                          \
    } while (0)

/* ---- memory.c: counted buffers that travel between steps without copies ---- */

typedef struct nrd_buf {
    atomic_int refs;
    size_t size_bytes;
    void *data; /* 64-byte aligned, part of the same allocation */
} nrd_buf;

nrd_buf *nrd_buf_new(size_t size_bytes); /* NULL on no memory; contents undefined */
nrd_buf *nrd_buf_ref(nrd_buf *b);
void nrd_buf_unref(nrd_buf *b); /* NULL is fine */

typedef struct nrd_attr { /* TRITONSERVER_BufferAttributes */
    size_t byte_size;
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_type_id;
    void *cuda_ipc_handle;
} nrd_attr;

/* The process's pool figures, for metrics: "pinned" memory is limited but ordinary memory here. */
void nrd_pinned_pool_set_size(uint64_t size_bytes);
uint64_t nrd_pinned_pool_size(void);
uint64_t nrd_pinned_pool_used(void);

/* A flag that says "nobody waits for this any more"; true when a parent's is. Counted. */
typedef struct nrd_cancel nrd_cancel;
nrd_cancel *nrd_cancel_new(nrd_cancel *parent); /* shares parent (may be NULL) */
nrd_cancel *nrd_cancel_ref(nrd_cancel *c);
void nrd_cancel_unref(nrd_cancel *c);
void nrd_cancel_set(nrd_cancel *c);
bool nrd_cancel_is_set(const nrd_cancel *c);

/* ---- data types, api_types.c ---- */

uint32_t nrd_tdtype_size(TRITONSERVER_DataType t); /* 0 for BYTES */
TRITONSERVER_DataType nrd_tdtype_from_config(Inference__DataType t);
const char *nrd_tdtype_name(TRITONSERVER_DataType t);
/* Product of dims; false: a dimension is negative or the product overflows. */
bool nrd_shape_count(const int64_t *dims, size_t n, uint64_t *out);
void nrd_shape_put(nrd_str *out, const int64_t *dims, size_t n); /* "[1,-1]" */

typedef struct nrd_param { /* TRITONSERVER_Parameter */
    char *name;
    TRITONSERVER_ParameterType type;
    char *str;
    int64_t i;
    double d;
    bool b;
    const void *bytes;
    uint64_t n_bytes;
} nrd_param;

typedef struct nrd_params {
    nrd_param *items;
    uint32_t n, cap;
} nrd_params;

void nrd_param_init(nrd_param *p, const char *name, TRITONSERVER_ParameterType type,
                    const void *value);
void nrd_param_fini(nrd_param *p);
const void *nrd_param_value(const nrd_param *p); /* as the API hands it out */
void nrd_params_set(nrd_params *l, const char *name, TRITONSERVER_ParameterType type,
                    const void *value); /* replaces */
void nrd_params_copy(nrd_params *to, const nrd_params *from);
void nrd_params_fini(nrd_params *l);

typedef struct nrd_message { /* TRITONSERVER_Message */
    char *text;
    size_t len;
} nrd_message;

nrd_message *nrd_message_new(nrd_str *json); /* takes the text always */

/* ---- trace.c ---- */

nrd_trace *nrd_trace_share(nrd_trace *t); /* one more user; NULL is fine */
void nrd_trace_unshare(nrd_trace *t);     /* the last user calls the release callback */
/* Gives a share back without the callback: the trace stays with its creator. */
void nrd_trace_forget(nrd_trace *t);
void nrd_trace_begin(nrd_trace *t, const nrd_request *r); /* fills in names */
void nrd_trace_report(nrd_trace *t, TRITONSERVER_InferenceTraceActivity a, uint64_t ns);
/* The tensors of a request or a response, where the trace asks for them. */
void nrd_trace_inputs(nrd_trace *t, const nrd_request *r, TRITONSERVER_InferenceTraceActivity a);
void nrd_trace_outputs(nrd_trace *t, const nrd_response *r);
nrd_trace *nrd_trace_child(nrd_trace *t);

/* ---- stats.c ---- */

typedef enum {
    NRD_FAIL_REJECTED,
    NRD_FAIL_CANCELED,
    NRD_FAIL_BACKEND,
    NRD_FAIL_OTHER,
    NRD_FAIL_REASONS,
} nrd_fail_reason;

typedef struct nrd_duration {
    uint64_t count, ns;
} nrd_duration;

typedef struct nrd_batch_stat {
    uint64_t batch_size;
    nrd_duration input, infer, output;
} nrd_batch_stat;

typedef struct nrd_response_stat {
    nrd_duration infer, output, success, fail, empty, cancel;
} nrd_response_stat;

typedef struct nrd_stats {
    pthread_mutex_t mu; /* guards everything below */
    uint64_t last_inference_ms, inference_count, execution_count;
    nrd_duration success, fail, queue, input, infer, output, cache_hit, cache_miss;
    nrd_batch_stat *batches; /* rising batch_size */
    size_t n_batches;
    nrd_response_stat *responses; /* by index of the response */
    size_t n_responses;
} nrd_stats;

/* Sums of a request's parts, gathered by an ensemble from its steps. */
typedef struct nrd_step_sums {
    _Atomic uint64_t queue_ns, input_ns, infer_ns, output_ns;
} nrd_step_sums;

typedef struct nrd_model_metrics nrd_model_metrics; /* series of one model; NULL: metrics off */

void nrd_stats_init(nrd_stats *s);
void nrd_stats_fini(nrd_stats *s);
void nrd_stats_success(nrd_model *m, uint64_t batch_size, uint64_t request_ns, uint64_t queue_ns,
                       uint64_t input_ns, uint64_t infer_ns, uint64_t output_ns);
void nrd_stats_failure(nrd_model *m, uint64_t request_ns, nrd_fail_reason reason);
void nrd_stats_cache_hit(nrd_request *r, uint64_t lookup_ns);
void nrd_stats_cache_miss(nrd_model *m, uint64_t ns); /* looking up and inserting */
void nrd_stats_batch(nrd_model *m, uint64_t batch_size, uint64_t input_ns, uint64_t infer_ns,
                     uint64_t output_ns);
typedef enum { NRD_RESP_OK, NRD_RESP_FAIL, NRD_RESP_EMPTY, NRD_RESP_CANCEL } nrd_resp_outcome;
nrd_error *nrd_stats_response(nrd_model *m, uint64_t index, nrd_resp_outcome outcome,
                              uint64_t start_ns, uint64_t output_start_ns,
                              uint64_t end_ns) NRD_MUST_USE;
void nrd_stats_json(nrd_model *m, nrd_str *out);
/* One request as a backend of `m` reported it: model figures, and, unless it has been released, its
 * trace and the sums of an enclosing ensemble. */
void nrd_stats_request(nrd_model *m, nrd_request *r, bool success, uint64_t exec_start_ns,
                       uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns);

nrd_metrics *nrd_core_metrics(void); /* the process's registry */
nrd_error *nrd_model_metrics_new(nrd_model_metrics **out, nrd_server *s, nrd_model *m) NRD_MUST_USE;
void nrd_model_metrics_free(nrd_model_metrics *mm);
void nrd_model_metrics_pending(nrd_model_metrics *mm, int delta);
void nrd_model_metrics_load_time(nrd_model_metrics *mm, double seconds);
void nrd_model_metrics_first_response(nrd_model_metrics *mm, uint64_t start_ns);

typedef struct nrd_host_metrics nrd_host_metrics; /* CPU and pool figures of the machine */
nrd_error *nrd_host_metrics_new(nrd_host_metrics **out, bool with_cpu) NRD_MUST_USE;
void nrd_host_metrics_update(nrd_host_metrics *h);
void nrd_host_metrics_free(nrd_host_metrics *h);

typedef struct nrd_gpu_metrics nrd_gpu_metrics; /* figures of GPUs, gpu_metrics.c */
nrd_error *nrd_gpu_metrics_new(nrd_gpu_metrics **out) NRD_MUST_USE; /* fine without any GPU */
void nrd_gpu_metrics_update(nrd_gpu_metrics *g);                    /* NULL is fine */
void nrd_gpu_metrics_free(nrd_gpu_metrics *g);

/* ---- requests, request.c ---- */

typedef struct nrd_segment {
    const void *base;
    nrd_attr attr;
    nrd_buf *owner; /* NULL: borrowed from the request's creator */
} nrd_segment;

typedef struct nrd_input { /* TRITONBACKEND_Input */
    char *name;
    TRITONSERVER_DataType dtype;
    bool raw;
    uint32_t n_given, n_dims;
    int64_t given[NRD_MAX_RANK]; /* as the client gave it */
    int64_t dims[NRD_MAX_RANK];  /* for the backend: batch first, then the reshaped rest */
    nrd_segment *segments;
    uint32_t n_segments, cap_segments;
    uint64_t byte_size;
    uint32_t raw_len; /* length prefix made for a raw BYTES input */
    bool is_override; /* made by a scheduler: a control or a state, gone when the request is */
    struct nrd_input *shadowed; /* owned: what an override of the same name stands in front of */
} nrd_input;

typedef enum {
    NRD_REQ_NEW,      /* with its creator */
    NRD_REQ_PREPARED, /* checked, about to be queued */
    NRD_REQ_PENDING,  /* in a queue */
    NRD_REQ_RUNNING,  /* with a backend or an ensemble */
} nrd_req_state;

struct nrd_request { /* TRITONSERVER_InferenceRequest and TRITONBACKEND_Request */
    atomic_int refs;      /* the creator's, and one while a backend's execute runs */
    nrd_server *server;
    nrd_model *model; /* shared; NULL after release until used again */
    char *model_name; /* this text, id and the outputs' names: nrd_pool_strdup */
    int64_t model_version; /* as asked for; -1 = by policy */
    char *id;
    uint32_t flags;
    uint64_t corr_id;
    char *corr_str; /* NULL: the correlation id is the number */
    uint64_t priority;
    uint64_t timeout_us;
    nrd_input **inputs;
    uint32_t n_inputs, cap_inputs;
    char **outputs; /* asked for; none = all */
    uint32_t n_outputs, cap_outputs;
    nrd_params params;
    TRITONSERVER_InferenceRequestReleaseFn_t release_fn;
    void *release_userp;
    TRITONSERVER_InferenceResponseCompleteFn_t response_fn;
    void *response_userp;
    TRITONSERVER_ResponseAllocator *allocator;
    void *allocator_userp;
    bool core_buffers;        /* outputs into nrd_buf: a step of an ensemble */
    nrd_cancel *parent;       /* shared: cancelled with it; NULL outside ensembles */
    nrd_step_sums *step_sums; /* borrowed until release; NULL outside ensembles */
    nrd_trace *trace;         /* shared */
    /* since the last ServerInferAsync */
    nrd_cancel *cancel;   /* shared; kept after release, so that a late cancel is harmless */
    nrd_factory *factory; /* shared; NULL after release */
    _Atomic int state;    /* nrd_req_state */
    uint32_t batch_size;  /* 0: the model does not batch */
    uint64_t start_ns, queue_ns, deadline_ns; /* deadline 0: none */
    nrd_request *next, *prev; /* of the queue that holds it; guarded by that queue's lock */
    nrd_sched *queued_in;     /* guarded likewise */
    uint64_t batch_ns;        /* entered the queue that forms its batch */
    bool is_null;             /* stands for an empty slot of a batch: nobody waits for an answer */
    bool made_corr_id;        /* the correlation id is the sequence batcher's own */
    nrd_seq *seq;             /* borrowed: the batcher to tell of the release; NULL outside */
    nrd_seq_slot *seq_slot;   /* borrowed: where it runs; NULL until it does */
    nrd_seq_states *states;   /* shared: implicit state; NULL: the model has none */
};

nrd_request *nrd_request_new(nrd_model *m, int64_t version); /* shares m */
void nrd_request_free(nrd_request *r);
/* The memory stays until one more nrd_request_free: backends report figures of requests that they
 * have released. */
nrd_request *nrd_request_keep(nrd_request *r);
nrd_error *nrd_request_add_input(nrd_input **out, nrd_request *r, const char *name,
                                 TRITONSERVER_DataType dtype, const int64_t *dims,
                                 uint64_t n) NRD_MUST_USE;
nrd_error *nrd_input_append(nrd_input *in, const void *base, const nrd_attr *attr,
                            nrd_buf *owner) NRD_MUST_USE; /* shares owner */
void nrd_input_drop_data(nrd_input *in);
void nrd_request_remove_input(nrd_request *r, uint32_t index);
nrd_input *nrd_request_find_input(const nrd_request *r, const char *name);
nrd_error *nrd_request_add_output(nrd_request *r, const char *name) NRD_MUST_USE;
bool nrd_request_wants(const nrd_request *r, const char *output);
/* Adds an input that the client did not send; it hides one of the same name. Dropped before the
 * request goes back to its creator. dims include the batch dimension. Shares data. */
void nrd_request_override(nrd_request *r, const char *name, TRITONSERVER_DataType dtype,
                          const int64_t *dims, uint32_t n_dims, nrd_buf *data, size_t byte_size);
void nrd_request_drop_overrides(nrd_request *r);
/* A request with inputs of the same shapes, all zero, whose answers go nowhere. */
nrd_request *nrd_request_new_null(const nrd_request *like);
/* Same inputs and, except for ragged ones, the same shapes behind the batch dimension. */
bool nrd_request_same_shapes(const nrd_request *a, const nrd_request *b);
/* Checks the request against its model and makes it ready to be queued. */
nrd_error *nrd_request_prepare(nrd_request *r) NRD_MUST_USE;
/* Prepares and queues. On error the request stays with the caller, no callback was made. */
nrd_error *nrd_request_run(nrd_request *r) NRD_MUST_USE;
void nrd_request_set_running(nrd_request *r); /* left the queue */
/* Only a sequence batcher's refusal to run the request again is an error: it stays running. */
nrd_error *nrd_request_try_release(nrd_request *r, uint32_t flags) NRD_MUST_USE;
void nrd_request_release(nrd_request *r, uint32_t flags);
/* Answers with the error, counts the failure, releases. Takes err always. */
void nrd_request_fail(nrd_request *r, nrd_error *err, nrd_fail_reason reason);
bool nrd_request_is_cancelled(const nrd_request *r);
/* "[request id: X] " in front of a message, as clients know it. */
nrd_error *nrd_request_errorf(const nrd_request *r, nrd_error_code code, const char *fmt, ...)
    NRD_PRINTF(3, 4) NRD_MUST_USE;

/* ---- responses, response.c ---- */

struct nrd_factory { /* TRITONBACKEND_ResponseFactory */
    atomic_int refs;
    nrd_model *model; /* shared */
    int64_t model_version;
    char *id;
    TRITONSERVER_ResponseAllocator *allocator; /* borrowed until the last response is deleted */
    void *allocator_userp;
    bool core_buffers;
    TRITONSERVER_InferenceResponseCompleteFn_t response_fn;
    void *response_userp;
    nrd_cancel *cancel; /* shared */
    nrd_trace *trace;   /* shared */
    uint64_t start_ns;
    _Atomic bool first_sent, final_sent;
    _Atomic uint64_t n_reported; /* responses whose statistics came in */
    nrd_order *order;  /* shared: responses wait for those of earlier requests; NULL: they do not */
    nrd_turn *turn;    /* borrowed from it; NULL: over */
    char *cache_key;   /* under which the response is kept; NULL: it is not */
    uint64_t cache_ns; /* what the look-up took */
};

nrd_factory *nrd_factory_new(const nrd_request *r);
nrd_factory *nrd_factory_ref(nrd_factory *f);
void nrd_factory_unref(nrd_factory *f); /* NULL is fine */
void nrd_factory_send_flags(nrd_factory *f, uint32_t flags);

typedef struct nrd_output { /* TRITONBACKEND_Output */
    nrd_response *response; /* borrowed: inside it */
    char *name;
    TRITONSERVER_DataType dtype;
    uint32_t n_dims;
    int64_t dims[NRD_MAX_RANK];
    bool has_buffer;
    void *base;
    void *buffer_userp;
    nrd_attr attr;
    nrd_buf *buf; /* core_buffers: shared */
} nrd_output;

struct nrd_response {     /* TRITONSERVER_InferenceResponse and TRITONBACKEND_Response */
    nrd_factory *factory; /* shared */
    nrd_error *error;
    nrd_params params;
    nrd_output **outputs;
    uint32_t n_outputs, cap_outputs;
    bool started; /* the allocator's start function was called */
};

nrd_response *nrd_response_new(nrd_factory *f);
void nrd_response_free(nrd_response *r);
nrd_error *nrd_response_add_output(nrd_output **out, nrd_response *r, const char *name,
                                   TRITONSERVER_DataType dtype, const int64_t *dims,
                                   uint32_t n) NRD_MUST_USE;
/* memory type: wish on entry, fact on return. */
nrd_error *nrd_output_alloc(nrd_output *o, size_t byte_size, TRITONSERVER_MemoryType *type,
                            int64_t *type_id) NRD_MUST_USE;
void nrd_response_send(nrd_response *r, uint32_t flags, nrd_error *err); /* takes both always */

typedef struct nrd_allocator { /* TRITONSERVER_ResponseAllocator */
    TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn;
    TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn;
    TRITONSERVER_ResponseAllocatorStartFn_t start_fn;
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t attr_fn;
    TRITONSERVER_ResponseAllocatorQueryFn_t query_fn;
} nrd_allocator;

/* ---- backends, backend.c ---- */

typedef TRITONSERVER_Error *(*nrd_backend_fn)(TRITONBACKEND_Backend *);
typedef TRITONSERVER_Error *(*nrd_model_fn)(TRITONBACKEND_Model *);
typedef TRITONSERVER_Error *(*nrd_instance_fn)(TRITONBACKEND_ModelInstance *);
typedef TRITONSERVER_Error *(*nrd_execute_fn)(TRITONBACKEND_ModelInstance *,
                                              TRITONBACKEND_Request **, uint32_t);
typedef TRITONSERVER_Error *(*nrd_attribute_fn)(TRITONBACKEND_Backend *,
                                                TRITONBACKEND_BackendAttribute *);

typedef struct nrd_preferred_group {
    Inference__ModelInstanceGroup__Kind kind;
    int32_t count;
    int32_t *gpus;
    size_t n_gpus;
} nrd_preferred_group;

struct nrd_backend { /* TRITONBACKEND_Backend */
    nrd_backend *next;
    int refs; /* guarded by the server's backends_mu */
    char *name, *dir, *lib_path;
    void *dl;
    nrd_message config; /* {"cmdline": {...}} */
    void *state;
    TRITONBACKEND_ExecutionPolicy policy;
    bool parallel_loading;
    nrd_preferred_group *groups;
    size_t n_groups;
    nrd_backend_fn initialize, finalize;
    nrd_model_fn model_initialize, model_finalize;
    nrd_instance_fn instance_initialize, instance_finalize, instance_ready;
    nrd_execute_fn execute;
    nrd_attribute_fn get_attribute;
};

/* Finds the library for the model, opening it unless another model has it open. */
nrd_error *nrd_backend_get(nrd_backend **out, nrd_server *s, const char *name,
                           const char *model_dir, int64_t version) NRD_MUST_USE;
void nrd_backend_put(nrd_server *s, nrd_backend *b);
/* The backend's cmdline settings with defaults, as JSON. */
void nrd_backend_config_json(nrd_server *s, const char *name, nrd_str *out);

/* ---- instances, instance.c ---- */

struct nrd_instance { /* TRITONBACKEND_ModelInstance */
    nrd_model *model; /* borrowed: inside it */
    char *name;
    TRITONSERVER_InstanceGroupKind kind;
    int32_t device_id;
    bool passive;
    const Inference__ModelInstanceGroup *group; /* borrowed from the model's config */
    nrd_message host_policy;
    void *state;
    bool initialized;
    uint64_t n_executions; /* guarded by the limiter; counted only where it limits */
    nrd_attr **usage;      /* reported memory; guarded by the model's mu */
    uint32_t n_usage;
};

nrd_error *nrd_instances_new(nrd_model *m) NRD_MUST_USE;
void nrd_instances_free(nrd_model *m);
void nrd_instance_execute(nrd_instance *inst, nrd_request **requests, uint32_t n);

/* ---- seats and hands, worker.c ----
 *
 * A worker is a seat: one instance, or those that share a device, and the duty to run them. A hand
 * is the thread that sits there; every seat has exactly one, which sleeps when the queue is empty.
 * Hands may change places (nrd_sched_follow), so a hand looks at its seat again whenever it woke.
 */
typedef struct nrd_worker {
    nrd_model *model;         /* borrowed: joined before the model goes */
    nrd_instance **instances; /* one, or all of a device */
    uint32_t n_instances, next;
    nrd_request **batch; /* what its hand has taken */
    uint32_t cap;
    int promptness; /* how often in a row an execution ended at once after its last answer */
    bool started;
    sem_t closed; /* posted when its hand has left for good */
    pthread_t last;
} nrd_worker;

typedef struct nrd_hand {
    struct nrd_hand *next; /* among the sleeping ones of a queue; guarded by its lock */
    nrd_worker *seat;      /* changed by the hand itself or, while it sleeps, by who moves it */
    unsigned n_moved;      /* by others; tells, as an address may come back */
    sem_t wake;
    bool chaining;        /* a step of an ensemble is being queued after the one before it ended */
    uint64_t chained_ns;  /* when this batch first did that; 0: not yet */
    nrd_sched *owed;      /* where it queued a step without waking anybody; NULL: nowhere */
    bool is_named_freely; /* its name no longer tells an instance */
} nrd_hand;

nrd_error *nrd_workers_start(nrd_model *m) NRD_MUST_USE;
void nrd_workers_join(nrd_model *m); /* after nrd_sched_stop */
/* Around the queuing of steps whose predecessor has just given its last answer: a hand that will be
 * free in a moment may see to such a step itself. Returns what end gets. */
bool nrd_hand_begin_chain(void);
void nrd_hand_end_chain(bool was);
/* true: this thread is a hand that sees to the step which it now queues in s, nobody needs to be
 * woken. Called with the lock of s held. */
bool nrd_hand_keeps(nrd_sched *s, uint64_t now_ns);

/* ---- schedulers ---- */

/* A queue in front of a model's instances, sched/dynamic_batcher.c. */
nrd_error *nrd_sched_new(nrd_sched **out, nrd_model *m) NRD_MUST_USE;
/* One that is fed by a sequence batcher, with the batching of its oldest strategy. */
nrd_sched *nrd_sched_new_inner(nrd_model *m,
                               const Inference__ModelSequenceBatching__StrategyOldest *o);
void nrd_sched_enqueue_inner(nrd_sched *s, nrd_request *r);              /* takes always */
nrd_error *nrd_sched_enqueue(nrd_sched *s, nrd_request *r) NRD_MUST_USE; /* takes on success */
/* Waits for work of the hand's seat; 0: stopped, or it has another seat now. At most cap requests
 * that may run as one batch. */
uint32_t nrd_sched_take(nrd_sched *s, nrd_hand *h, nrd_request **batch, uint32_t cap);
/* Sees to the step that h queued in `to` without waking anybody. If nothing waits in the queue of
 * its own seat, it changes places with a hand that sleeps at `to`; else it wakes one. */
void nrd_sched_follow(nrd_sched *to, nrd_hand *h);
bool nrd_sched_waits(const nrd_sched *s); /* for a batch to become larger */
bool nrd_sched_is_open(const nrd_sched *s); /* its hands may change places with those of others */
/* Gives the request a place among the responses, if the model keeps them in order. */
void nrd_sched_keep_order(nrd_sched *s, nrd_request *r);
void nrd_sched_sweep(nrd_sched *s); /* answers cancelled and expired requests */
void nrd_sched_stop(nrd_sched *s);  /* refuses new requests, fails those that wait */
nrd_sched *nrd_sched_ref(nrd_sched *s);
void nrd_sched_unref(nrd_sched *s);
uint32_t nrd_sched_max_batch(const nrd_sched *s);

/* Custom batching, sched/strategy.c. *out NULL: the model has no such library. */
nrd_error *nrd_strategy_new(nrd_strategy **out, nrd_model *m) NRD_MUST_USE;
void nrd_strategy_free(nrd_strategy *s); /* NULL is fine */
void *nrd_strategy_begin(nrd_strategy *s, const nrd_model *m);
bool nrd_strategy_includes(nrd_strategy *s, const nrd_request *r, void *userp);
void nrd_strategy_end(nrd_strategy *s, const nrd_model *m, void *userp);

/* Responses in the order of requests, sched/order.c. */
nrd_order *nrd_order_new(void);
void nrd_order_unref(nrd_order *o);                /* NULL is fine */
void nrd_order_join(nrd_order *o, nrd_factory *f); /* its responses come after all that joined */
void nrd_order_push(nrd_factory *f, nrd_response *r, uint32_t flags); /* takes r always */
void nrd_order_leave(nrd_factory *f); /* no more responses through it; fine if it never joined */

/* The response cache, cache.c. */
nrd_error *nrd_cache_open(nrd_cache **out, const char *name, const char *cache_dir,
                          const char *config) NRD_MUST_USE;
void nrd_cache_close(nrd_cache *c); /* NULL is fine */
/* Answers and releases a prepared request whose response is kept; false: it has to run. */
bool nrd_cache_answer(nrd_request *r);
void nrd_cache_keep(nrd_factory *f, nrd_response *r);

/* Requests of one correlation id go to one slot of one instance, in order,
 * sched/sequence_batcher.c. */
nrd_error *nrd_seq_new(nrd_seq **out, nrd_model *m) NRD_MUST_USE;    /* after the instances */
nrd_error *nrd_seq_enqueue(nrd_seq *s, nrd_request *r) NRD_MUST_USE; /* takes on success */
/* Waits for a batch of the instance; 0: stopped. cap: nrd_seq_max_batch. */
uint32_t nrd_seq_take(nrd_seq *s, uint32_t instance, nrd_hand *h, nrd_request **batch,
                      uint32_t cap);
uint32_t nrd_seq_max_batch(const nrd_seq *s);
/* States as a sequence begins with; NULL: the model has none. */
nrd_seq_states *nrd_seq_first_states(const nrd_seq *s);
/* A request of the batcher was released. *goes_on: it was queued again, hands off. */
nrd_error *nrd_seq_released(nrd_request *r, uint32_t flags, bool *goes_on) NRD_MUST_USE;
void nrd_seq_sweep(nrd_seq *s);  /* ends idle, cancelled and expired sequences */
size_t nrd_seq_live(nrd_seq *s); /* sequences that have begun and not ended */
void nrd_seq_drain(nrd_seq *s);  /* refuses new sequences; those that have begun go on */
/* The model was taken out of service: no sequence goes on beyond what is queued. */
void nrd_seq_abandon(nrd_seq *s);
void nrd_seq_stop(nrd_seq *s); /* ends the takers; no request is queued any more */
void nrd_seq_free(nrd_seq *s);

/* Shared resources of instances, sched/rate_limiter.c. A NULL limiter limits nothing. */
typedef struct nrd_limiter nrd_limiter;
nrd_limiter *nrd_limiter_new(const nrd_setting *given); /* borrows */
void nrd_limiter_free(nrd_limiter *l);
nrd_error *nrd_limiter_add(nrd_limiter *l, const nrd_instance *inst) NRD_MUST_USE; /* borrows */
void nrd_limiter_remove(nrd_limiter *l, const nrd_instance *inst);
void nrd_limiter_acquire(nrd_limiter *l, nrd_instance *inst); /* waits */
void nrd_limiter_release(nrd_limiter *l, nrd_instance *inst);

/* A graph of models, sched/ensemble.c. */
nrd_error *nrd_ensemble_new(nrd_ensemble **out, nrd_model *m) NRD_MUST_USE;
nrd_error *nrd_ensemble_enqueue(nrd_ensemble *e, nrd_request *r) NRD_MUST_USE; /* as above */
void nrd_ensemble_free(nrd_ensemble *e);
/* Checks types and shapes along the graph against the models it uses, now loaded; marks the
 * ensemble as decoupled when one of them is. */
nrd_error *nrd_ensemble_check(nrd_server *s, nrd_config *cfg) NRD_MUST_USE;

/* ---- models, model.c ---- */

struct nrd_model { /* TRITONBACKEND_Model */
    atomic_int refs;
    nrd_server *server;
    char *name;
    char *space; /* namespace: the repository it came from, or "" */
    int64_t version;
    char *dir;          /* the model's folder */
    nrd_config *config; /* fixed once the model is ready */
    bool config_open;   /* during ModelInitialize: ModelSetConfig may replace it */
    bool auto_complete;
    bool decoupled;
    bool cached;         /* responses are kept in the server's cache */
    uint32_t n_required; /* inputs that are not optional */
    nrd_strings *labels; /* per output of the configuration: names of classes, may be empty */
    size_t n_labels;
    nrd_backend *backend; /* NULL for an ensemble */
    bool initialized;
    void *state;
    nrd_instance **instances;
    uint32_t n_instances;
    nrd_worker *workers;
    uint32_t n_workers;
    nrd_strategy *strategy; /* custom batching; NULL: none */
    nrd_sched *sched;       /* one of the three */
    nrd_seq *seq;
    nrd_ensemble *ensemble;
    nrd_stats stats;
    nrd_model_metrics *metrics; /* NULL: off */
    _Atomic int64_t n_pending;
    _Atomic int64_t n_in_flight; /* requests whose last response or release is missing */
    pthread_mutex_t mu;          /* guards usage, here and in instances */
    nrd_attr **usage;
    uint32_t n_usage;
    void (*on_destroy)(void *user, nrd_model *m); /* called by the reaper, before the memory goes */
    void *on_destroy_user;
    bool failed; /* the reaper's: it still has to be buried */
    struct nrd_agents *agents; /* shared: repository agents of this load; NULL: none */
};

/* Loads one version. Takes cfg always. */
nrd_error *nrd_model_new(nrd_model **out, nrd_server *s, const char *space, const char *name,
                         int64_t version, const char *dir, nrd_config *cfg) NRD_MUST_USE;
nrd_model *nrd_model_ref(nrd_model *m);
void nrd_model_unref(nrd_model *m); /* the last one hands it to the reaper */
/* Gives the repository's share back: no request will find the model any more. */
void nrd_model_retire(nrd_model *m);
void nrd_model_destroy(nrd_model *m); /* reaper only */
const Inference__ModelInput *nrd_model_input(const nrd_model *m, const char *name);
const Inference__ModelOutput *nrd_model_output(const nrd_model *m, const char *name);
/* A file that the model's configuration names, with a final NUL; owned. */
nrd_error *nrd_model_read_file(char **out, size_t *out_len, const char *path) NRD_MUST_USE;
/* Runs the samples of model_warmup on every instance, warmup.c. */
nrd_error *nrd_model_warm_up(nrd_model *m) NRD_MUST_USE;
nrd_error *nrd_model_ready(nrd_model *m) NRD_MUST_USE; /* asks the instances */
void nrd_usage_replace(pthread_mutex_t *mu, nrd_attr ***list, uint32_t *n,
                       TRITONSERVER_BufferAttributes **usage, uint32_t n_usage);
void nrd_model_metadata_json(nrd_model *m, const int64_t *versions, size_t n, nrd_str *out);

/* ---- options and server, server.c ---- */

typedef struct nrd_options { /* TRITONSERVER_ServerOptions */
    char *server_id;
    nrd_strings repositories, startup_models;
    TRITONSERVER_ModelControlMode control_mode;
    bool strict_config;
    char *config_name;
    TRITONSERVER_RateLimitMode rate_limit;
    uint64_t pinned_pool_bytes;
    double min_compute_capability;
    bool exit_on_error, strict_readiness;
    uint32_t exit_timeout_s, load_threads, load_retries;
    bool namespacing, peer_access;
    bool metrics, gpu_metrics, cpu_metrics;
    uint64_t metrics_interval_ms;
    char *backend_dir, *agent_dir, *cache_dir;
    nrd_setting *backend_config, *host_policy, *metrics_config, *cuda_pools, *cache_config;
    nrd_setting *resources; /* rate limiter: scope device or "all" */
} nrd_options;

typedef enum {
    NRD_SERVER_STARTING,
    NRD_SERVER_READY,
    NRD_SERVER_EXITING,
    NRD_SERVER_STOPPED,
} nrd_server_state;

struct nrd_server { /* TRITONSERVER_Server */
    nrd_options opt;
    _Atomic int state;
    _Atomic uint32_t exit_timeout_s;
    nrd_repo *repo;
    pthread_mutex_t backend_open_mu; /* before backends_mu */
    pthread_mutex_t backends_mu;
    nrd_backend *backends;  /* guarded by backends_mu */
    nrd_queue *dead_models; /* to the reaper */
    pthread_t reaper, keeper;
    bool has_reaper, has_keeper;
    _Atomic int64_t n_live_models;
    _Atomic int64_t n_in_flight; /* requests whose last response or release is missing */
    pthread_mutex_t keeper_mu;
    pthread_cond_t keeper_cond;
    bool keeper_stop, keeper_kick; /* guarded by keeper_mu */
    nrd_host_metrics *host_metrics;
    nrd_gpu_metrics *gpu_metrics; /* NULL: off */
    nrd_limiter *limiter;         /* NULL: off */
    nrd_cache *cache;             /* NULL: off */
};

nrd_error *nrd_server_new(nrd_server **out, const nrd_options *opt) NRD_MUST_USE;
nrd_error *nrd_server_stop(nrd_server *s) NRD_MUST_USE;
void nrd_server_free(nrd_server *s);
void nrd_server_kick(nrd_server *s); /* have the queues swept now: something was cancelled */
nrd_error *nrd_server_require_ready(nrd_server *s) NRD_MUST_USE;
const char *nrd_setting_find(const nrd_setting *list, const char *scope, const char *key);
void nrd_options_copy(nrd_options *to, const nrd_options *from);
void nrd_options_init(nrd_options *o);
void nrd_options_fini(nrd_options *o);
void nrd_server_print_options(nrd_server *s);
/* The Triton release whose interfaces this core has: what clients are told and check. */
#define NRD_TRITON_VERSION "2.51.0"
extern const char *const nrd_server_extensions[]; /* NULL-terminated */

/* A text table as the start-up log shows it: n_rows * n_cols cells, the first row is the head. */
void nrd_table_put(nrd_str *out, const char *const *cells, size_t n_rows, size_t n_cols);

/* ---- repository, repo/ ---- */

typedef enum {
    NRD_MODEL_UNKNOWN,
    NRD_MODEL_READY,
    NRD_MODEL_UNAVAILABLE,
    NRD_MODEL_LOADING,
    NRD_MODEL_UNLOADING,
} nrd_model_state;

nrd_error *nrd_repo_new(nrd_repo **out, nrd_server *s) NRD_MUST_USE;
void nrd_repo_free(nrd_repo *r);
nrd_error *nrd_repo_load_startup(nrd_repo *r) NRD_MUST_USE;
nrd_error *nrd_repo_poll(nrd_repo *r) NRD_MUST_USE;
nrd_error *nrd_repo_load(nrd_repo *r, const char *name, const nrd_param *const *params,
                         size_t n_params) NRD_MUST_USE;
nrd_error *nrd_repo_unload(nrd_repo *r, const char *name, bool dependents) NRD_MUST_USE;
void nrd_repo_unload_all(nrd_repo *r);
/* From now on the model is UNAVAILABLE with this reason, if it is the one that serves; it may be loaded
 * again. Any thread, also of the model: the reaper then takes what depends on it out of service
 * (nrd_repo_bury, which takes the repository's share of the model). */
void nrd_repo_fail(nrd_repo *r, nrd_model *m, const char *reason);
void nrd_repo_bury(nrd_repo *r, nrd_model *m);
bool nrd_repo_has_failed(nrd_repo *r, const char *name); /* that model; NULL: any */
nrd_error *nrd_repo_register(nrd_repo *r, const char *path, const nrd_param *const *mapping,
                             size_t n) NRD_MUST_USE;
nrd_error *nrd_repo_unregister(nrd_repo *r, const char *path) NRD_MUST_USE;
/* Shares the model. version -1: the highest ready one. */
nrd_error *nrd_repo_get(nrd_model **out, nrd_repo *r, const char *name,
                        int64_t version) NRD_MUST_USE;
/* The model that a step of an ensemble means; `space` is its namespace, "" without namespacing. */
nrd_error *nrd_repo_get_step(nrd_model **out, nrd_repo *r, const char *space, const char *name,
                             int64_t version) NRD_MUST_USE;
bool nrd_repo_all_ready(nrd_repo *r);
void nrd_repo_index_json(nrd_repo *r, bool ready_only, nrd_str *out);
void nrd_repo_print_models(nrd_repo *r);
/* Calls fn for every model that is loaded, with a share of its own for the call, no lock held. */
void nrd_repo_each(nrd_repo *r, const char *name_or_null, void (*fn)(void *user, nrd_model *m),
                   void *user);

/* ---- config/ ---- */

enum { NRD_CONFIG_MAX_BYTES = 16 << 20 };

/* Reads <dir>/config.pbtxt (or the custom name), or overrides it with JSON text (may be NULL). */
nrd_error *nrd_config_load(nrd_config **out, nrd_server *s, const char *name, const char *dir,
                           const char *override_json) NRD_MUST_USE;
nrd_error *nrd_config_autofill(nrd_server *s, nrd_config *cfg, const char *dir) NRD_MUST_USE;
nrd_error *nrd_config_normalize(nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_normalize_groups(nrd_config *cfg, const nrd_preferred_group *groups,
                                       size_t n) NRD_MUST_USE;
nrd_error *nrd_config_validate(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_validate_groups(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_validate_io(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_validate_sequence(const nrd_config *cfg) NRD_MUST_USE;
nrd_error *nrd_config_from_json(nrd_config **out, const char *json, size_t len) NRD_MUST_USE;
bool nrd_config_is_ensemble(const nrd_config *cfg);
int nrd_gpu_count(void);

#endif
