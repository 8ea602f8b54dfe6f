/* SPDX-License-Identifier: Apache-2.0
 * core/model_internal.h - what a model is made of. */
#ifndef NRD_CORE_MODEL_INTERNAL_H
#define NRD_CORE_MODEL_INTERNAL_H

#include "core/memory.h"
#include "core/objects.h"
#include "core/statistics_internal.h"
#include "core/strings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An input that clients may send although the model does not have it. */
typedef struct nrd_ignored_input {
    char *name;
    TRITONSERVER_DataType dtype;
} nrd_ignored_input;

struct nrd_model { /* TRITONBACKEND_Model */
    atomic_int refs;
    nrd_context *ctx; /* borrowed */
    char *name;
    char *namespace; /* namespace: the repository it came from, or "" */
    int64_t version;
    uint64_t load_number; /* no other load of this process has it; from 1 */
    char *dir;            /* the model's folder */
    nrd_files *files;     /* shared: what keeps that folder; NULL: nobody needs to */
    void (*files_unref)(nrd_files *f); /* gives the share back: the repository stands above models */
    nrd_config *config;   /* fixed once the model is ready */
    bool config_open;     /* during ModelInitialize: ModelSetConfig may replace it */
    bool auto_complete;
    bool decoupled;
    bool never_blocks;   /* says its backend (nrd_backend_never_blocks); fixed once it is ready */
    bool cached;         /* responses are kept in the server's cache */
    uint64_t config_hash[2]; /* of the configuration, the same in every process; where cached */
    uint32_t n_required; /* inputs that are not optional */
    nrd_ignored_input *ignored; /* fixed once the model is ready */
    size_t n_ignored;
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

#endif
