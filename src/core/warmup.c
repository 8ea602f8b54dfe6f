/* SPDX-License-Identifier: Apache-2.0
 * Warm-up: requests made up from model_warmup, run on every instance before the model is ready.
 *
 * They go straight to the instance, past the queue: a sample of batch size n is one execution with
 * n requests. Inputs that the configuration does not declare are controls or states, given as they
 * are. An error in any answer fails the load. */
#include "core/warmup.h"

#include "core/instance.h"
#include "core/instance_internal.h"
#include "core/memory.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/request_run.h"
#include "core/response.h"
#include "core/response_internal.h"
#include "core/sched/scheduler.h"
#include "core/types.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FILE = 1 << 30 };

typedef Inference__ModelWarmup sample_config;
typedef Inference__ModelWarmup__Input input_config;

typedef struct run { /* of one sample */
    pthread_mutex_t mu;
    pthread_cond_t cond;
    uint32_t n_left; /* releases and last responses that are missing */
    nrd_str errors;
} run;

static void count_down(run *u)
{
    pthread_mutex_lock(&u->mu);
    u->n_left--;
    pthread_cond_signal(&u->cond);
    pthread_mutex_unlock(&u->mu);
}

static void released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    (void)flags;
    nrd_request_free((nrd_request *)(void *)request);
    count_down(userp);
}

static void answered(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
    nrd_response *r = (nrd_response *)(void *)response;
    run *u = userp;

    if (r && r->error) {
        pthread_mutex_lock(&u->mu);
        nrd_str_printf(&u->errors, "%s; ", nrd_error_message(r->error));
        pthread_mutex_unlock(&u->mu);
    }
    nrd_response_free(r);
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
        count_down(u);
    }
}

/* ---- making requests ---- */

static nrd_error *read_data(const nrd_model *m, const input_config *c, size_t size, nrd_buf **out)
{
    char *path = NULL, *data = NULL;
    size_t len = 0;
    if (asprintf(&path, "%s/warmup/%s", m->dir, c->input_data_file) < 0) {
        return nrd_error_no_memory();
    }
    nrd_error *err = nrd_model_read_file(&data, &len, path);
    const bool is_text = c->data_type == INFERENCE__DATA_TYPE__TYPE_STRING;

    free(path);
    if (!err && !is_text && len < size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "[request id: <id_unknown>] warmup setting expects %zu bytes, but the "
                         "data provided from %sonly has %zu bytes",
                         size, c->input_data_file, len);
    }
    if (!err) {
        *out = nrd_buf_new(is_text ? len : size);
        err = *out ? NULL : nrd_error_no_memory();
    }
    if (!err) {
        memcpy((*out)->data, data, (*out)->size_bytes);
    }
    free(data);
    return err;
}

static nrd_error *make_data(const nrd_model *m, const char *name, const input_config *c,
                            nrd_buf **out)
{
    const bool is_text = c->data_type == INFERENCE__DATA_TYPE__TYPE_STRING;
    uint64_t count = 0, size = nrd_datatype_size(nrd_datatype_from_config(c->data_type));
    nrd_buf *b;

    *out = NULL;
    if (!nrd_shape_count(c->dims, c->n_dims, &count)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "warmup setting expects all variable-size dimensions are specified for "
                          "input '%s'",
                          name);
    }
    size = size ? size : sizeof(uint32_t); /* as many empty texts */
    if (__builtin_mul_overflow(size, count, &size) || size > MAX_FILE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "warmup input '%s' is too large", name);
    }
    if (c->input_data_type_case ==
        INFERENCE__MODEL_WARMUP__INPUT__INPUT_DATA_TYPE_INPUT_DATA_FILE) {
        return read_data(m, c, size, out);
    }
    if (c->input_data_type_case != INFERENCE__MODEL_WARMUP__INPUT__INPUT_DATA_TYPE_ZERO_DATA &&
        c->input_data_type_case != INFERENCE__MODEL_WARMUP__INPUT__INPUT_DATA_TYPE_RANDOM_DATA) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "[request id: <id_unknown>] warmup setting expects input '%s' to have "
                          "input_data_type set",
                          name);
    }
    b = nrd_buf_new(size);
    if (!b) {
        return nrd_error_no_memory();
    }
    memset(b->data, 0, size);
    if (c->input_data_type_case == INFERENCE__MODEL_WARMUP__INPUT__INPUT_DATA_TYPE_RANDOM_DATA &&
        !is_text) {
        uint64_t seed = nrd_now_ns();
        for (size_t i = 0; i < size; i++) {
            ((unsigned char *)b->data)[i] = (unsigned char)nrd_hash_u64(seed, i);
        }
        if (c->data_type == INFERENCE__DATA_TYPE__TYPE_BOOL) {
            for (size_t i = 0; i < size; i++) {
                ((unsigned char *)b->data)[i] &= 1;
            }
        }
    }
    *out = b;
    return NULL;
}

/* The shape of an input of one row; gives its rank. */
static uint32_t dims_of(const nrd_request *r, const input_config *c, int64_t dims[NRD_MAX_RANK])
{
    uint32_t n = 0;

    if (r->model->config->max_batch_size > 0) {
        dims[n++] = 1;
    }
    for (size_t i = 0; i < c->n_dims && n < NRD_MAX_RANK; i++) {
        dims[n++] = c->dims[i];
    }
    return n;
}

static nrd_error *add_declared(nrd_request *r, const char *name, const input_config *c,
                               nrd_buf *data)
{
    int64_t dims[NRD_MAX_RANK];
    const uint32_t n = dims_of(r, c, dims);
    nrd_attr attr = {.byte_size = data->size_bytes};
    nrd_input *in;

    NRD_TRY(nrd_request_add_input(&in, r, name, nrd_datatype_from_config(c->data_type), dims, n));
    return nrd_input_append(in, data->data, &attr, data);
}

/* Controls and states are not part of the model's inputs: they go in after the check. */
static void add_other(nrd_request *r, const char *name, const input_config *c, nrd_buf *data)
{
    int64_t dims[NRD_MAX_RANK];
    const uint32_t n = dims_of(r, c, dims);

    nrd_request_override(r, name, nrd_datatype_from_config(c->data_type), dims, n, data,
                         data->size_bytes);
}

static nrd_error *make_request(nrd_request **out, nrd_model *m, const sample_config *c,
                               nrd_buf *const *data, run *u)
{
    nrd_request *r = nrd_request_new(m, m->version);
    nrd_error *err = NULL;

    r->release_fn = released;
    r->release_userp = u;
    r->response_fn = answered;
    r->response_userp = u;
    r->core_buffers = true;
    for (size_t i = 0; i < c->n_inputs && !err; i++) {
        if (nrd_model_input(m, c->inputs[i]->key)) {
            err = add_declared(r, c->inputs[i]->key, c->inputs[i]->value, data[i]);
        }
    }
    err = err ? err : nrd_request_prepare(r);
    if (err) {
        nrd_request_free(r);
        return err;
    }
    r->states = nrd_scheduler_first_states(m->scheduler);
    for (size_t i = 0; i < c->n_inputs; i++) {
        if (!nrd_model_input(m, c->inputs[i]->key)) {
            add_other(r, c->inputs[i]->key, c->inputs[i]->value, data[i]);
        }
    }
    r->start_ns = r->queue_ns = nrd_now_ns();
    *out = r;
    return NULL;
}

/* ---- running ---- */

static nrd_error *run_once(nrd_instance *inst, const sample_config *c, nrd_buf *const *data)
{
    nrd_model *m = inst->model;
    nrd_request **batch = calloc(c->batch_size ? c->batch_size : 1, sizeof *batch);
    run u = {.n_left = 2 * c->batch_size};
    nrd_error *err = batch ? NULL : nrd_error_no_memory();
    uint32_t n = 0;

    for (; n < c->batch_size && !err; n += err ? 0 : 1) {
        err = make_request(&batch[n], m, c, data, &u);
    }
    if (err) {
        for (uint32_t i = 0; i < n; i++) {
            nrd_request_free(batch[i]);
        }
        free(batch);
        return err;
    }
    pthread_mutex_init(&u.mu, NULL);
    pthread_cond_init(&u.cond, NULL);
    nrd_instance_execute(inst, batch, n);
    pthread_mutex_lock(&u.mu);
    while (u.n_left > 0) {
        pthread_cond_wait(&u.cond, &u.mu);
    }
    pthread_mutex_unlock(&u.mu);
    if (u.errors.len) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "failed to run warmup sample '%s': %s", c->name,
                         nrd_str_cstr(&u.errors));
    }
    /* A backend's thread may still be on its way out of the last answer, with a share. */
    while (atomic_load(&m->refs) > 1) { /* no other thread can reach the model yet */
        const struct timespec pause = {.tv_nsec = 100000};
        nanosleep(&pause, NULL);
    }
    pthread_cond_destroy(&u.cond);
    pthread_mutex_destroy(&u.mu);
    nrd_str_fini(&u.errors);
    free(batch);
    return err;
}

static nrd_error *run_sample(nrd_model *m, const sample_config *c)
{
    nrd_buf **data = calloc(c->n_inputs + 1, sizeof *data);
    const uint32_t count = c->count ? c->count : 1;
    nrd_error *err = NULL;

    if (!data) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < c->n_inputs && !err; i++) {
        err = make_data(m, c->inputs[i]->key, c->inputs[i]->value, &data[i]);
    }
    for (uint32_t k = 0; k < m->n_instances && !err; k++) {
        for (uint32_t i = 0; i < count && !m->instances[k]->passive && !err; i++) {
            NRD_LOG_VERBOSE(1,
                            "model '%s' instance %s is running warmup sample '%s' for "
                            "iteration %u",
                            m->name, m->instances[k]->name, c->name, i + 1);
            err = run_once(m->instances[k], c, data);
        }
    }
    for (size_t i = 0; i < c->n_inputs; i++) {
        nrd_buf_unref(data[i]);
    }
    free(data);
    return err;
}

nrd_error *nrd_model_warm_up(nrd_model *m)
{
    for (size_t i = 0; i < m->config->n_model_warmup; i++) {
        const sample_config *c = m->config->model_warmup[i];
        if (c->batch_size == 0) {
            NRD_LOG_VERBOSE(1, "Skipping batch 0 warmup sample '%s'", c->name);
            continue;
        }
        if (c->batch_size > (1u << 20)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "warmup sample '%s': batch size is too large",
                              c->name);
        }
        NRD_TRY(run_sample(m, c));
    }
    return NULL;
}
