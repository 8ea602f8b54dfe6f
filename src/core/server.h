/* core/server.h - the server: what is there once in a process that serves.
 *
 * Owner     Whoever made it. Any thread. */
#ifndef NRD_CORE_SERVER_H
#define NRD_CORE_SERVER_H

#include "base/error.h"
#include "base/queue.h"
#include "core/host_metrics.h"
#include "core/gpu_metrics.h"
#include "core/objects.h"
#include "core/options.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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
void nrd_server_print_options(nrd_server *s);
/* The Triton release whose interfaces this core has: what clients are told and check. */
#define NRD_TRITON_VERSION "2.51.0"
extern const char *const nrd_server_extensions[]; /* NULL-terminated */

#endif
