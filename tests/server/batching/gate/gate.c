/* SPDX-License-Identifier: Apache-2.0
 * A batching strategy for tests that takes its time: asked about a request, it says so in the log and
 * goes on when the file $NRD_TEST_GATE is there. Everything may share a batch. */
#include "triton/core/tritonbackend.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

TRITONSERVER_Error *TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher **batcher,
                                                         TRITONBACKEND_Model *model)
{
    (void)model;
    *batcher = NULL;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher *batcher)
{
    (void)batcher;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher *batcher,
                                                       void **userp)
{
    (void)batcher;
    *userp = NULL;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchFinalize(void *userp)
{
    (void)userp;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request *request,
                                                           void *userp, bool *should_include)
{
    const char *gate = getenv("NRD_TEST_GATE");
    const struct timespec pause = {.tv_nsec = 1000000};

    (void)request, (void)userp;
    TRITONSERVER_ErrorDelete(
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "gate: asked"));
    while (access(gate, F_OK) != 0) {
        nanosleep(&pause, NULL);
    }
    *should_include = true;
    return NULL;
}
