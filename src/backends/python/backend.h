/* SPDX-License-Identifier: Apache-2.0
 * backends/python/backend.h - the server's side of the Python backend.
 *
 * Purpose   One connection per stub process: starting and ending it, commands, calls, the requests
 *           that it has open, and the inferences that it has asked for.
 *
 *           A connection is used once. When its process ends, however that happens, the connection
 *           is dead: waiting threads are woken, open requests get an error, and the instance makes
 *           a new one.
 * Owner     nrd_py_conn is counted: the instance, the monitor, the service thread and every inference
 *           in flight hold it. Commands come from one thread at a time (nrd_py_instance.mu); calls are
 *           served by the connection's service thread.
 * Errors    TRITONSERVER_Error as in backends/util. A dead stub is INTERNAL with Triton's text.
 * Lifetime  backend > model > instance > connection; memory of a connection may outlive its instance
 *           until the last inference in flight is over.
 */
#ifndef NRD_BACKENDS_PYTHON_BACKEND_H
#define NRD_BACKENDS_PYTHON_BACKEND_H

#include "backends/python/ipc.h"
#include "backends/util/util.h"
#include "base/str.h"
#include "triton/core/tritonbackend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct nrd_py_env { /* an unpacked execution environment */
    struct nrd_py_env *next;
    char *source, *folder;
    int64_t mtime, size;
    bool unpacked; /* the folder is ours to delete */
} nrd_py_env;

typedef struct nrd_py_backend {
    char *name;
    char *folder;       /* where the stub's files are */
    char *model_folder; /* a backend whose model.py serves all its models; NULL: ours */
    char *prefix;       /* name of shared memory, as far as it has one */
    char *python;       /* interpreter of models without an environment */
    int timeout_s;
    bool sandbox;
    pthread_mutex_t mu; /* guards envs */
    nrd_py_env *envs;
    int epoll;          /* ends of stub processes */
    int stop_fd;
    pthread_t monitor;
    bool monitor_runs;
} nrd_py_backend;

typedef struct nrd_py_model {
    nrd_tb_config config;
    nrd_py_backend *backend;
    TRITONBACKEND_Model *model;
    char *folder;       /* of the model in its repository */
    char *config_text;  /* JSON */
    char *env_folder;   /* execution environment; NULL: none */
} nrd_py_model;

typedef struct nrd_py_instance nrd_py_instance;
typedef struct nrd_py_infer nrd_py_infer;

/* A request that the stub knows by number. */
typedef struct nrd_py_request {
    struct nrd_py_request *next; /* in the connection's table */
    uint64_t id;
    int refs;                               /* guarded by nrd_py_conn.mu */
    TRITONBACKEND_Request *request;         /* until it is released. guarded by nrd_py_conn.mu */
    TRITONBACKEND_ResponseFactory *factory; /* made when first needed. guarded by nrd_py_conn.mu */
    TRITONSERVER_InferenceTrace *trace;     /* valid with `request` */
    bool closed;                            /* the final response was sent. guarded by mu */
    bool answered;                          /* at least one response was sent. guarded by mu */
} nrd_py_request;

typedef struct nrd_py_metric {
    TRITONSERVER_MetricFamily *family;
    TRITONSERVER_Metric *metric;
    bool is_used;
} nrd_py_metric;

enum { PY_TABLE = 256 };

typedef struct nrd_py_conn {
    _Atomic int refs;
    nrd_py_backend *backend;
    TRITONSERVER_Server *server;
    TRITONSERVER_ResponseAllocator *allocator; /* of inner inferences */
    char *name;
    nrd_py_map map;
    nrd_py_heap *heap;        /* the server's half */
    nrd_py_returner to_stub;
    nrd_py_message message;   /* memory kept between executions */
    pid_t pid;
    int sock, pidfd;
    bool remote;              /* its memory can be read */
    bool has_ready;           /* the model has is_ready() */
    bool initialized;
    bool decoupled;
    _Atomic bool dead;        /* the process is gone and was waited for */
    _Atomic bool ending;      /* its end is expected */
    _Atomic bool stop_service;
    pthread_t service;
    bool service_runs;

    pthread_mutex_t mu;       /* guards what follows */
    pthread_cond_t changed;
    nrd_py_instance *instance; /* whose process it is, once it is initialized */
    bool drained;             /* dead, and all its calls were served */
    uint64_t next_id;
    nrd_py_request *requests[PY_TABLE];
    nrd_py_infer *infers[PY_TABLE];
    int n_infers, n_jobs;     /* inferences and model control calls in flight */
    nrd_py_metric *metrics;
    size_t n_metrics;
    pthread_mutex_t aux_mu;   /* one readiness question at a time */
} nrd_py_conn;

struct nrd_py_instance {
    nrd_py_model *model;
    TRITONBACKEND_ModelInstance *handle;
    char *name;
    const char *kind;
    int32_t device;
    pthread_mutex_t mu;  /* one execution or restart at a time */
    pthread_mutex_t conn_mu; /* guards `conn` for readers beside an execution */
    pthread_cond_t restarted;
    int n_restarts;      /* restarts that wait or run. guarded by conn_mu */
    bool ending;         /* guarded by mu */
    nrd_py_conn *conn;   /* NULL while a restart did not work out */
};

/* ---- env.c ---- */

/* Folder of an execution environment (a folder, or an archive that is unpacked once). Borrows from
 * the backend. */
TRITONSERVER_Error *nrd_py_env_get(nrd_py_backend *b, const char *path, const char **out_folder);
void nrd_py_env_free_all(nrd_py_backend *b);

/* ---- conn.c ---- */

void nrd_py_conn_ref(nrd_py_conn *c);
void nrd_py_conn_unref(nrd_py_conn *c);

typedef struct nrd_py_reply {
    uint32_t failed;
    uint64_t offset, bytes;
} nrd_py_reply;

/* Waits for the reply that follows number `seen`. limit_s > 0: in total; a process without a heartbeat for the backend's time
 * limit is killed in any case. */
TRITONSERVER_Error *nrd_py_conn_await(nrd_py_conn *c, uint32_t seen, int limit_s, nrd_py_reply *out);
/* The text of a reply, which the caller owns; NULL: no memory. */
char *nrd_py_conn_take_text(nrd_py_conn *c, const nrd_py_reply *reply);
/* Sends a command whose body is at `offset` (taken always) and waits for the reply. */
TRITONSERVER_Error *nrd_py_conn_command(nrd_py_conn *c, nrd_py_command type, uint64_t offset,
                                        uint64_t bytes, nrd_py_reply *out);
/* The same with texts; *out_text (may be NULL) is owned by the caller. A failed reply is an error. */
TRITONSERVER_Error *nrd_py_conn_text(nrd_py_conn *c, nrd_py_command type, const char *text,
                                     char **out_text);
/* Asks is_ready(); waits at most five seconds. */
TRITONSERVER_Error *nrd_py_conn_ready(nrd_py_conn *c, bool *out_ready);
TRITONSERVER_Error *nrd_py_conn_unhealthy(const nrd_py_conn *c);
/* Kills a process that does not do what it should. */
void nrd_py_conn_kill(nrd_py_conn *c);
/* Waits for a process that has ended, and wakes who waits for it. An instance: it is to be started again, and is not freed before
 * that is over. */
nrd_py_instance *nrd_py_conn_died(nrd_py_conn *c);

/* Answers to calls of the stub. */
void nrd_py_answer(nrd_py_conn *c, uint32_t slot, uint64_t a, uint64_t offset, uint64_t bytes);
void nrd_py_answer_error(nrd_py_conn *c, uint32_t slot, TRITONSERVER_Error *err); /* always takes err */

/* ---- stub.c ---- */

/* Starts a process and waits until it is up. `name` is the instance's or, for completing a
 * configuration, the model's. */
TRITONSERVER_Error *nrd_py_conn_start(nrd_py_conn **out, nrd_py_model *m, const char *name);
/* Its end is expected: no restart begins because of it. */
void nrd_py_conn_detach(nrd_py_conn *c);
/* Ends the process (finalize first when it was initialized) and lets go of the connection. */
void nrd_py_conn_stop(nrd_py_conn *c);

/* ---- calls.c: what the stub asks for ---- */

void *nrd_py_serve(void *conn);
void nrd_py_metrics_free(nrd_py_conn *c);

/* ---- messages.c ---- */

/* INTERNAL: an input that cannot be read, or is too large; the message is not whole then. */
/* A member of a JSON object that is begun in `json`. */
void nrd_py_put_parameter(nrd_str *json, const char *key, TRITONSERVER_ParameterType type, const void *value);
TRITONSERVER_Error *nrd_py_put_request(nrd_py_message *m, const nrd_py_request *r);
/* A response of this kind, its tensors behind data_at, into `response` (NULL: it is read and thrown away). The reader stands behind it
 * afterwards. An error: what the model answered with, or a message that cannot be read. */
TRITONSERVER_Error *nrd_py_read_response(nrd_py_conn *c, nrd_py_reader *r, uint64_t data_at, uint8_t kind,
                                         TRITONBACKEND_Response *response);

/* ---- requests.c: those that the stub knows ---- */

/* Into the table, with a reference of the caller's. NULL: no memory. */
nrd_py_request *nrd_py_request_add(nrd_py_conn *c, TRITONBACKEND_Request *request);
void nrd_py_request_put(nrd_py_conn *c, nrd_py_request *r);    /* one reference less */
void nrd_py_request_remove(nrd_py_conn *c, nrd_py_request *r); /* from the table, if it is still there */
/* Its factory, made while the request is still ours. */
TRITONSERVER_Error *nrd_py_request_factory(nrd_py_conn *c, nrd_py_request *r);
/* The trace of an open request, or NULL. */
TRITONSERVER_InferenceTrace *nrd_py_request_trace(nrd_py_conn *c, uint64_t id);
/* Takes both. */
void nrd_py_send_response(TRITONBACKEND_Response *response, uint32_t flags, TRITONSERVER_Error *err);
/* The last response of a request could not be made: the client hears that there are no more. */
void nrd_py_request_end_bare(nrd_py_conn *c, nrd_py_request *r);
/* Ends a request with an error; only with the final flag when it was answered before and `err` is NULL. Takes err. */
void nrd_py_request_close(nrd_py_conn *c, nrd_py_request *r, TRITONSERVER_Error *err);
/* Calls about a request. */
void nrd_py_request_send(nrd_py_conn *c, const nrd_py_entry *e);
void nrd_py_request_drop(nrd_py_conn *c, uint64_t id);
void nrd_py_request_cancelled(nrd_py_conn *c, const nrd_py_entry *e);
/* Errors to every request that is still open; the stub is gone. */
void nrd_py_requests_fail(nrd_py_conn *c);

/* ---- process.c: of an instance ---- */

/* (Re)starts and initializes it. */
TRITONSERVER_Error *nrd_py_instance_start(nrd_py_instance *in);
/* A running process: the one that is there, or a new one in the place of a dead one. */
TRITONSERVER_Error *nrd_py_instance_revive(nrd_py_instance *in);
/* Starts again in a thread of its own, because the process is gone. No lock may be held. */
void nrd_py_instance_restart(nrd_py_instance *in);

/* ---- monitor.c ---- */

TRITONSERVER_Error *nrd_py_monitor_start(nrd_py_backend *b);
void nrd_py_monitor_stop(nrd_py_backend *b);

/* ---- execute.c ---- */

TRITONSERVER_Error *nrd_py_execute(nrd_py_instance *in, TRITONBACKEND_Request **requests,
                                   uint32_t n);

/* ---- infer.c: inferences that a model asks for ---- */

TRITONSERVER_Error *nrd_py_infer_allocator(TRITONSERVER_ResponseAllocator **out);
void nrd_py_infer_start(nrd_py_conn *c, const nrd_py_entry *e);
void nrd_py_infer_next(nrd_py_conn *c, const nrd_py_entry *e);
void nrd_py_infer_cancel(nrd_py_conn *c, const nrd_py_entry *e);
void nrd_py_infer_drop(nrd_py_conn *c, uint64_t id);
/* Cancels everything; used when the stub is gone. */
void nrd_py_infer_cancel_all(nrd_py_conn *c);

#endif
