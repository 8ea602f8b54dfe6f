/* SPDX-License-Identifier: Apache-2.0
 * Requests with pictures: from Execute to the threads that read them. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/reader.h"

#include "base/clock.h"
#include "base/limits.h"
#include "nereid/llm_tensors.h"
#include "nereid/server.h"

#include <string.h>

#pragma weak nrd_backend_request_times /* in this server only */

typedef struct picture_job {
    nrd_llm_job job;
    nrd_llm_request *q;
    nrd_tb_inputs in;
} picture_job;

bool nrd_llm_has_pictures(TRITONBACKEND_Request *request, const nrd_tb_inputs *in)
{
    uint32_t n = 0;
    const char *key = "";
    TRITONSERVER_ParameterType type;
    const void *value;
    TRITONSERVER_Error *err = TRITONBACKEND_RequestParameterCount(request, &n);
    bool found = nrd_tb_find(in, "image_files") != NULL;

    for (uint32_t i = 0; !err && !found && i < n; i++) {
        err = TRITONBACKEND_RequestParameter(request, i, &key, &type, &value);
        found = !err && (!strcmp(key, NRD_LLM_IMAGES) || !strcmp(key, NRD_LLM_VIDEOS));
    }
    TRITONSERVER_ErrorDelete(err); /* nrd_llm_read_request_params finds it again */
    return found;
}

/* As the server's queue says of those that wait there. */
static TRITONSERVER_Error *check_wanted(const nrd_llm_request *q)
{
    uint64_t start_by = 0, end_by = 0;
    bool gone = false;

    NRD_TB_TRY(TRITONBACKEND_ResponseFactoryIsCancelled(q->factory, &gone));
    if (gone) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_CANCELLED, "Request was cancelled");
    }
    if (nrd_backend_request_times) {
        nrd_backend_request_times(q->triton, &start_by, &end_by);
    }
    return start_by && start_by <= nrd_now_ns() ? nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, "Request timeout expired") : NULL;
}
static void run_pictures(void *user, nrd_llm_job *job, bool is_over)
{
    picture_job *p = (picture_job *)job; /* its first field */
    TRITONSERVER_Error *err = is_over ? nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, "the model is being unloaded")
                                      : check_wanted(p->q);

    if (err) {
        nrd_llm_fail_rows(user, p->q, err);
    } else {
        nrd_llm_run_rows(user, p->q, &p->in);
    }
    nrd_tb_inputs_fini(&p->in);
    free(p);
}

static int32_t max_pictures_waiting(const nrd_llm_instance *inst)
{
    const int32_t n = inst->model->exec_config.max_queue_size;
    return n > 0 && n < NRD_LIMIT_PICTURES_WAITING ? n : NRD_LIMIT_PICTURES_WAITING;
}

TRITONSERVER_Error *nrd_llm_pictures_start(nrd_llm_instance *inst)
{
    return nrd_tb_error(nrd_llm_reader_new(&inst->reader, 0, max_pictures_waiting(inst), run_pictures, inst));
}

void nrd_llm_pictures_stop(nrd_llm_instance *inst)
{
    nrd_llm_reader_free(inst->reader);
    inst->reader = NULL;
}

TRITONSERVER_Error *nrd_llm_pictures_check_room(nrd_llm_instance *inst)
{
    if (nrd_llm_reader_has_room(inst->reader)) {
        return NULL;
    }
    return nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, /* as the executor's queue */
                         "Maximum queue size of %d has been reached, please try again later", max_pictures_waiting(inst));
}

void nrd_llm_push_pictures(nrd_llm_instance *inst, nrd_llm_request *q, nrd_tb_inputs *in)
{
    picture_job *p = calloc(1, sizeof *p);
    nrd_error *err = p ? NULL : nrd_error_no_memory();

    if (p) {
        *p = (picture_job){.q = q, .in = *in};
        err = nrd_llm_reader_push(inst->reader, &p->job);
    }
    if (err) {
        nrd_llm_fail_rows(inst, q, nrd_tb_error(err));
        free(p);
    } else {
        *in = (nrd_tb_inputs){0};
    }
}
