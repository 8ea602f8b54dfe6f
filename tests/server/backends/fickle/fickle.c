/* SPDX-License-Identifier: Apache-2.0
 * fickle - a backend for tests that says it never blocks, and does what a request asks for.
 *
 * Output OUT is a copy of input IN (INT32). Integer parameters of a request:
 *   sleep_us       sleep that long before answering
 *   release_later  answer, but keep the request until another thread releases it that many
 *                  microseconds later
 */
#include "backends/util/util.h"
#include "base/clock.h"
#include "nereid/server.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct later {
    TRITONBACKEND_Request *request;
    useconds_t us;
} later;

bool nrd_backend_never_blocks(TRITONBACKEND_Model *model)
{
    (void)model;
    return true;
}

static int64_t number(TRITONBACKEND_Request *r, const char *name)
{
    uint32_t n = 0;

    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestParameterCount(r, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key = "";
        TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_BOOL;
        const void *value = NULL;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestParameter(r, i, &key, &type, &value));
        if (type == TRITONSERVER_PARAMETER_INT && strcmp(key, name) == 0) {
            return *(const int64_t *)value;
        }
    }
    return 0;
}

static TRITONSERVER_Error *copy(TRITONBACKEND_Response *response, TRITONBACKEND_Request *r)
{
    nrd_tb_inputs in;
    void *to;

    NRD_TB_TRY(nrd_tb_inputs_read(&in, r));
    const nrd_tb_tensor *t = nrd_tb_find(&in, "IN");
    TRITONSERVER_Error *err =
        t ? nrd_tb_output(response, "OUT", t->dtype, t->shape, t->n_dims, t->bytes, &to)
          : nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "fickle: no input IN");
    if (!err) {
        memcpy(to, t->data, t->bytes);
    }
    nrd_tb_inputs_fini(&in);
    return err;
}

static void release(TRITONBACKEND_Request *r)
{
    nrd_tb_log_error(TRITONBACKEND_RequestRelease(r, TRITONSERVER_REQUEST_RELEASE_ALL),
                     "fickle: releasing");
}

static void *release_later(void *arg)
{
    later *l = arg;
    usleep(l->us);
    release(l->request);
    free(l);
    return NULL;
}

static void answer(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *r)
{
    const uint64_t start = nrd_now_ns();
    const int64_t us = number(r, "sleep_us"), later_us = number(r, "release_later");
    TRITONBACKEND_Response *response = NULL;
    pthread_t thread;

    if (us > 0) {
        usleep((useconds_t)us);
    }
    nrd_tb_log_error(TRITONBACKEND_ResponseNew(&response, r), "fickle: response");
    TRITONSERVER_Error *err = copy(response, r);
    const bool ok = !err;
    nrd_tb_log_error(
        TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err),
        "fickle: sending");
    TRITONSERVER_ErrorDelete(err);
    const uint64_t end = nrd_now_ns();
    nrd_tb_log_error(
        TRITONBACKEND_ModelInstanceReportStatistics(instance, r, ok, start, start, end, end),
        "fickle: statistics");
    if (later_us > 0) {
        later *l = nrd_xcalloc(1, sizeof *l);
        *l = (later){r, (useconds_t)later_us};
        if (pthread_create(&thread, NULL, release_later, l) == 0) {
            pthread_detach(thread);
            return;
        }
        free(l);
    }
    release(r);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    const uint64_t start = nrd_now_ns();

    for (uint32_t i = 0; i < request_count; i++) {
        answer(instance, requests[i]);
    }
    const uint64_t end = nrd_now_ns();
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, request_count,
                                                                      start, start, end, end),
                     "fickle: statistics");
    return NULL;
}
