/* SPDX-License-Identifier: Apache-2.0
 * A batching strategy for tests: a batch may hold as many elements of input INPUT0 as the model
 * parameter MAX_VOLUME says. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "triton/core/tritonbackend.h"

#include <stdlib.h>

typedef struct volume {
    uint64_t max, used;
} volume;

TRITONSERVER_Error *TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher **batcher,
                                                         TRITONBACKEND_Model *model)
{
    TRITONSERVER_Message *message = NULL;
    nrd_json_doc *doc = NULL;
    const char *text;
    size_t len;
    unsigned long long v = 0;
    volume *b = nrd_xcalloc(1, sizeof *b);

    TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelConfig(model, 1, &message));
    TRITONSERVER_ErrorDelete(TRITONSERVER_MessageSerializeToJson(message, &text, &len));
    nrd_error_free(nrd_json_parse(&doc, text, len, NULL));
    const nrd_json *p = nrd_json_get(nrd_json_get(nrd_json_root(doc), "parameters"), "MAX_VOLUME");
    bool ok = p && nrd_parse_u64(nrd_json_get_str(p, "string_value", ""), &v);
    nrd_json_doc_free(doc);
    TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(message));
    if (!ok) {
        free(b);
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "volume: no MAX_VOLUME");
    }
    b->max = v;
    *batcher = (TRITONBACKEND_Batcher *)(void *)b;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher *batcher)
{
    free(batcher);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher *batcher,
                                                       void **userp)
{
    volume *b = nrd_xcalloc(1, sizeof *b);
    b->max = ((const volume *)(const void *)batcher)->max;
    *userp = b;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchFinalize(void *userp)
{
    free(userp);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request *request,
                                                           void *userp, bool *should_include)
{
    volume *b = userp;
    TRITONBACKEND_Input *in = NULL;
    uint64_t bytes = 0;
    TRITONSERVER_Error *err = TRITONBACKEND_RequestInput(request, "INPUT0", &in);

    if (!err) {
        err = TRITONBACKEND_InputProperties(in, NULL, NULL, NULL, NULL, &bytes, NULL);
    }
    b->used += bytes / 4;
    *should_include = !err && b->used <= b->max;
    return err;
}
