/* core/model.h - models: one version that was loaded.
 *
 * Owner     Counted: the repository, requests and response factories share it. The last share gives
 *           it to the server's finalizer thread, never a thread of the model itself.
 * Lifetime  Made whole or not at all; afterwards its configuration does not change.
 */
#ifndef NRD_CORE_MODEL_H
#define NRD_CORE_MODEL_H

#include "base/error.h"
#include "base/str.h"
#include "core/memory.h"
#include "core/objects.h"
#include "core/statistics.h"
#include "core/strings.h"
#include "triton/core/tritonbackend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nrd_model { /* TRITONBACKEND_Model */
    atomic_int refs;
    nrd_context *ctx; /* borrowed */
    char *name;
    char *namespace; /* namespace: the repository it came from, or "" */
    int64_t version;
    uint64_t load_number; /* no other load of this process has it; from 1 */
    char *dir;            /* the model's folder */
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
    nrd_worker_slot *workers;
    uint32_t n_workers;
    nrd_strategy *strategy; /* custom batching; NULL: none */
    nrd_scheduler *scheduler;
    nrd_stats stats;
    nrd_model_metrics *metrics; /* NULL: off */
    _Atomic int64_t n_pending;
    _Atomic int64_t n_in_flight; /* requests whose last response or release is missing */
    pthread_mutex_t mu;          /* guards usage, here and in instances */
    nrd_attr **usage;
    uint32_t n_usage;
    void (*on_destroy)(void *user,
                       nrd_model *m); /* called by the finalizer, before the memory goes */
    void *on_destroy_user;
    bool failed;        /* the finalizer's: the repository still has it */
    nrd_agents *agents; /* shared: repository agents of this load; NULL: none */
};

nrd_model *nrd_model_ref(nrd_model *m);
void nrd_model_unref(nrd_model *m); /* the last one gives it to the finalizer */
const Inference__ModelInput *nrd_model_input(const nrd_model *m, const char *name);
const Inference__ModelOutput *nrd_model_output(const nrd_model *m, const char *name);
/* A file that the model's configuration names, with a final NUL; owned. */
nrd_error *nrd_model_read_file(char **out, size_t *out_len, const char *path) NRD_MUST_USE;
nrd_error *nrd_model_ready(nrd_model *m) NRD_MUST_USE; /* asks the instances */
void nrd_usage_replace(pthread_mutex_t *mu, nrd_attr ***list, uint32_t *n,
                       TRITONSERVER_BufferAttributes **usage, uint32_t n_usage);
void nrd_model_metadata_json(nrd_model *m, const int64_t *versions, size_t n, nrd_str *out);

#endif
