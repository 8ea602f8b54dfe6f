/* SPDX-License-Identifier: Apache-2.0
 * Requests to other models of the server, in the name of a client. */
#include "backends/util/inner.h"

#include "base/clock.h"
#include "nereid/server.h"

#include <string.h>
#include <time.h>

#pragma weak nrd_backend_request_join /* another server may lack it */

enum { WATCH_PERIOD_MS = 50 };

/* ---- configurations ---- */

void nrd_tb_inner_config_free(nrd_tb_config *c)
{
    if (c) {
        nrd_tb_config_fini(c);
        free(c);
    }
}

static TRITONSERVER_Error *parse(nrd_tb_config **out, TRITONSERVER_Message *message)
{
    const char *text = NULL;
    size_t n = 0;
    nrd_tb_config *c = calloc(1, sizeof *c);

    TRITONSERVER_Error *err =
        c ? TRITONSERVER_MessageSerializeToJson(message, &text, &n) : nrd_tb_error(nrd_error_no_memory());
    if (!err) {
        err = nrd_tb_error(nrd_json_parse(&c->doc, text, n, NULL));
    }
    if (err) {
        nrd_tb_inner_config_free(c);
        return err;
    }
    c->root = nrd_json_root(c->doc);
    c->max_batch_size = nrd_json_get_int(c->root, "max_batch_size", 0);
    c->decoupled = nrd_json_get_bool(nrd_json_get(c->root, "model_transaction_policy"), "decoupled", false);
    *out = c;
    return NULL;
}

TRITONSERVER_Error *nrd_tb_inner_config(nrd_tb_config **out, TRITONSERVER_Server *server, const char *name)
{
    TRITONSERVER_Message *message = NULL;

    *out = NULL;
    NRD_TB_TRY(TRITONSERVER_ServerModelConfig(server, name, -1, 1, &message));
    TRITONSERVER_Error *err = parse(out, message);
    nrd_tb_log_error(TRITONSERVER_MessageDelete(message), "message");
    return err;
}

/* ---- requests ---- */

static TRITONSERVER_Error *buffer_alloc(TRITONSERVER_ResponseAllocator *allocator, const char *name,
                                        size_t bytes, TRITONSERVER_MemoryType type, int64_t type_id,
                                        void *user, void **buffer, void **buffer_user,
                                        TRITONSERVER_MemoryType *actual_type, int64_t *actual_id)
{
    (void)allocator, (void)name, (void)type, (void)type_id, (void)user;
    *buffer_user = NULL;
    *actual_type = TRITONSERVER_MEMORY_CPU;
    *actual_id = 0;
    *buffer = bytes ? malloc(bytes) : NULL;
    return bytes && !*buffer ? nrd_tb_error(nrd_error_no_memory()) : NULL;
}

static TRITONSERVER_Error *buffer_release(TRITONSERVER_ResponseAllocator *allocator, void *buffer,
                                          void *buffer_user, size_t bytes, TRITONSERVER_MemoryType type,
                                          int64_t type_id)
{
    (void)allocator, (void)buffer_user, (void)bytes, (void)type, (void)type_id;
    free(buffer);
    return NULL;
}

TRITONSERVER_Error *nrd_tb_inner_allocator(TRITONSERVER_ResponseAllocator **out)
{
    return TRITONSERVER_ResponseAllocatorNew(out, buffer_alloc, buffer_release, NULL);
}

TRITONSERVER_Error *nrd_tb_inner_request(TRITONSERVER_InferenceRequest **out, TRITONSERVER_Server *server, const char *model,
                                         TRITONBACKEND_Request *client)
{
    const char *id = "";

    NRD_TB_TRY(TRITONSERVER_InferenceRequestNew(out, server, model, -1));
    if (nrd_backend_request_join) {
        nrd_backend_request_join(*out, client);
    }
    NRD_TB_TRY(TRITONBACKEND_RequestId(client, &id));
    return TRITONSERVER_InferenceRequestSetId(*out, id);
}

TRITONSERVER_Error *nrd_tb_inner_timeout(TRITONSERVER_InferenceRequest *r, TRITONBACKEND_Request *client, uint64_t start_ns)
{
    uint64_t timeout_us = 0;

    NRD_TB_TRY(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(client, &timeout_us));
    if (timeout_us == 0) {
        return NULL;
    }
    const uint64_t used_us = (nrd_now_ns() - start_ns) / 1000u;
    return TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(r, timeout_us > used_us ? timeout_us - used_us : 1);
}

void nrd_tb_inner_over(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *client, TRITONBACKEND_ResponseFactory *factory,
                       bool is_ok, uint64_t start_ns)
{
    const uint64_t now = nrd_now_ns();

    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportStatistics(instance, client, is_ok, start_ns, start_ns, now, now), "statistics");
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, start_ns, start_ns, now, now), "statistics");
    nrd_tb_log_error(TRITONBACKEND_ResponseFactoryDelete(factory), "response factory");
    nrd_tb_release(client);
}

/* ---- answers ---- */

TRITONSERVER_Error *nrd_tb_inner_error(TRITONSERVER_InferenceResponse *r)
{
    TRITONSERVER_Error *err = r ? TRITONSERVER_InferenceResponseError(r) : NULL;
    if (!err) {
        return NULL;
    }
    TRITONSERVER_Error *out =
        TRITONSERVER_ErrorNew(TRITONSERVER_ErrorCode(err), TRITONSERVER_ErrorMessage(err));
    TRITONSERVER_ErrorDelete(err);
    return out;
}

TRITONSERVER_Error *nrd_tb_inner_output(TRITONSERVER_InferenceResponse *r, uint32_t i, nrd_tb_tensor *out)
{
    TRITONSERVER_MemoryType type;
    uint64_t n_dims = 0;
    int64_t type_id;
    const void *data = NULL;
    void *user;

    NRD_TB_TRY(TRITONSERVER_InferenceResponseOutput(r, i, &out->name, &out->dtype, &out->shape, &n_dims, &data, &out->bytes,
                                                    &type, &type_id, &user));
    out->data = data;
    out->n_dims = (uint32_t)n_dims;
    out->n_elements = 1;
    for (uint32_t k = 0; k < out->n_dims; k++) {
        out->n_elements *= out->shape[k];
    }
    return NULL;
}

bool nrd_tb_inner_find(TRITONSERVER_InferenceResponse *r, const char *name, nrd_tb_tensor *out)
{
    uint32_t n = 0;
    TRITONSERVER_Error *err = TRITONSERVER_InferenceResponseOutputCount(r, &n);

    for (uint32_t i = 0; !err && i < n; i++) {
        err = nrd_tb_inner_output(r, i, out);
        if (!err && !strcmp(out->name, name)) {
            return true;
        }
    }
    TRITONSERVER_ErrorDelete(err);
    return false;
}

/* ---- clients that go away ---- */

static void cancel_abandoned(nrd_tb_inflight *l)
{
    for (nrd_tb_flight *f = l->first; f; f = f->next) {
        bool gone = false;
        TRITONSERVER_Error *err = TRITONBACKEND_ResponseFactoryIsCancelled(f->factory, &gone);
        TRITONSERVER_ErrorDelete(err);
        if (gone) {
            f->cancel(f);
        }
    }
}

static void *watch(void *arg)
{
    nrd_tb_inflight *l = arg;

    pthread_mutex_lock(&l->mu);
    while (!l->stop) {
        if (!l->first) {
            pthread_cond_wait(&l->wake, &l->mu);
            continue;
        }
        cancel_abandoned(l);
        const struct timespec until = nrd_steady_in(WATCH_PERIOD_MS * 1000000u);
        pthread_cond_timedwait(&l->wake, &l->mu, &until);
    }
    pthread_mutex_unlock(&l->mu);
    return NULL;
}

TRITONSERVER_Error *nrd_tb_inflight_start(nrd_tb_inflight *l)
{
    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->mu, NULL);
    nrd_cond_init_steady(&l->wake);
    if (pthread_create(&l->watcher, NULL, watch, l)) {
        pthread_cond_destroy(&l->wake);
        pthread_mutex_destroy(&l->mu);
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "cannot start a thread");
    }
    l->is_started = true;
    return NULL;
}

void nrd_tb_inflight_stop(nrd_tb_inflight *l)
{
    if (!l->is_started) {
        return;
    }
    pthread_mutex_lock(&l->mu);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->mu);
    pthread_join(l->watcher, NULL);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->mu);
    l->is_started = false;
}

void nrd_tb_inflight_add(nrd_tb_inflight *l, nrd_tb_flight *f)
{
    pthread_mutex_lock(&l->mu);
    f->prev = NULL;
    f->next = l->first;
    if (f->next) {
        f->next->prev = f;
    }
    l->first = f;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->mu);
}

void nrd_tb_inflight_remove(nrd_tb_inflight *l, nrd_tb_flight *f)
{
    pthread_mutex_lock(&l->mu);
    if (f->prev) {
        f->prev->next = f->next;
    } else {
        l->first = f->next;
    }
    if (f->next) {
        f->next->prev = f->prev;
    }
    pthread_mutex_unlock(&l->mu);
}
