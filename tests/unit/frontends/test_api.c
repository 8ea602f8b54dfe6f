/* SPDX-License-Identifier: Apache-2.0
 * The HTTP API against a small stand-in for the core, which lives in this file only: what reaches
 * the in-process API, and what its answers look like on the wire. Models of the stand-in:
 *   echo   every input comes back as an output of the same name
 *   late   the same, but the request is released long after its answer
 *   gen    decoupled; n answers, then an empty final one; input `text`, BYTES [1]; n, INT32 [1]
 *   hold   answers with CANCELLED once the request has been cancelled
 *   fail   answers with an INTERNAL error */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "frontends/http/api.h"
#include "nereid/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

/* ---- the stand-in ---- */

#define MAX_TENSORS 4

typedef struct tensor {
    char name[32];
    TRITONSERVER_DataType type;
    int64_t shape[4];
    uint64_t n_dims;
    const void *base;
    size_t size;
    void *owned, *owned_userp;
} tensor;

struct TRITONSERVER_Error {
    TRITONSERVER_Error_Code code;
    char text[512];
};
struct TRITONSERVER_Message {
    char text[512];
};
struct TRITONSERVER_ResponseAllocator {
    TRITONSERVER_ResponseAllocatorAllocFn_t alloc;
    TRITONSERVER_ResponseAllocatorReleaseFn_t release;
};
struct TRITONSERVER_InferenceRequest {
    char model[32], id[32];
    tensor in[MAX_TENSORS];
    int n_in;
    char text_parameter[64];
    atomic_bool cancelled;
    TRITONSERVER_InferenceRequestReleaseFn_t release;
    void *release_userp;
    TRITONSERVER_ResponseAllocator *allocator;
    void *allocator_userp;
    TRITONSERVER_InferenceResponseCompleteFn_t complete;
    void *complete_userp;
};
struct TRITONSERVER_InferenceResponse {
    TRITONSERVER_Error *error;
    char model[32], id[32], text_parameter[64];
    TRITONSERVER_ResponseAllocator *allocator;
    tensor out[MAX_TENSORS];
    int n_out;
    bool flag;
};

static atomic_int n_requests, n_responses, n_errors, n_cancelled; /* alive; cancelled so far */

TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *msg)
{
    TRITONSERVER_Error *e = calloc(1, sizeof *e);
    e->code = code;
    snprintf(e->text, sizeof e->text, "%s", msg);
    atomic_fetch_add(&n_errors, 1);
    return e;
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *e)
{
    atomic_fetch_sub(&n_errors, 1);
    free(e);
}
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error *e)
{
    return e->code;
}
const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *e)
{
    return e->text;
}

static const char *const type_names[] = {"<invalid>", "BOOL", "UINT8", "UINT16", "UINT32",
                                         "UINT64",    "INT8", "INT16", "INT32",  "INT64",
                                         "FP16",      "FP32", "FP64",  "BYTES",  "BF16"};
const char *TRITONSERVER_DataTypeString(TRITONSERVER_DataType t)
{
    return type_names[t];
}
TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char *name)
{
    for (int i = 1; i < 15; i++) {
        if (strcmp(type_names[i], name) == 0) {
            return (TRITONSERVER_DataType)i;
        }
    }
    return TRITONSERVER_TYPE_INVALID;
}

static TRITONSERVER_Error *message(TRITONSERVER_Message **out, const char *text)
{
    *out = calloc(1, sizeof **out);
    snprintf((*out)->text, sizeof(*out)->text, "%s", text);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *m, const char **base,
                                                        size_t *n)
{
    *base = m->text;
    *n = strlen(m->text);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *m)
{
    free(m);
    return NULL;
}

static TRITONSERVER_Error *known(const char *model)
{
    if (strcmp(model, "echo") == 0 || strcmp(model, "gen") == 0 || strcmp(model, "hold") == 0 ||
        strcmp(model, "fail") == 0 || strcmp(model, "late") == 0) {
        return NULL;
    }
    char text[128];
    snprintf(text, sizeof text, "Request for unknown model: '%s' is not found", model);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, text);
}
TRITONSERVER_Error *TRITONSERVER_ServerIsLive(TRITONSERVER_Server *s, bool *live)
{
    (void)s;
    *live = true;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_ServerIsReady(TRITONSERVER_Server *s, bool *ready)
{
    return TRITONSERVER_ServerIsLive(s, ready);
}
TRITONSERVER_Error *TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server *s, const char *model,
                                                    const int64_t version, bool *ready)
{
    (void)s;
    *ready = version == -1 || version == 1;
    return known(model);
}
TRITONSERVER_Error *TRITONSERVER_ServerMetadata(TRITONSERVER_Server *s, TRITONSERVER_Message **m)
{
    (void)s;
    return message(m, "{\"name\":\"triton\"}");
}
static _Atomic uint64_t load_number = 1; /* of every model */
static atomic_int n_metadata;            /* times that a model's metadata were asked for */

void nrd_server_request_join(TRITONSERVER_InferenceRequest *request, nrd_claim *whole)
{
    (void)request;
    (void)whole;
}

void nrd_server_claim_join_request(nrd_claim *c, TRITONSERVER_InferenceRequest *request)
{
    (void)c;
    (void)request;
}

uint64_t nrd_server_load_number(TRITONSERVER_Server *s, const char *model, int64_t version)
{
    TRITONSERVER_Error *e = known(model);
    (void)s;
    (void)version;
    if (e) {
        TRITONSERVER_ErrorDelete(e);
    }
    return e ? 0 : load_number;
}
TRITONSERVER_Error *TRITONSERVER_ServerModelMetadata(TRITONSERVER_Server *s, const char *model,
                                                     const int64_t version,
                                                     TRITONSERVER_Message **m)
{
    TRITONSERVER_Error *e = known(model);
    atomic_fetch_add(&n_metadata, 1);
    (void)s;
    (void)version;
    if (e) {
        return e;
    }
    if (strcmp(model, "gen") != 0) {
        return message(m, "{\"name\":\"echo\",\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\","
                          "\"shape\":[2,-1]},{\"name\":\"F\",\"datatype\":\"FP32\",\"shape\":[-1,"
                          "-1]}]}");
    }
    return message(m, "{\"name\":\"gen\",\"inputs\":[{\"name\":\"text\",\"datatype\":\"BYTES\","
                      "\"shape\":[1]},{\"name\":\"n\",\"datatype\":\"INT32\",\"shape\":[1]}]}");
}
TRITONSERVER_Error *TRITONSERVER_ServerModelStatistics(TRITONSERVER_Server *s, const char *model,
                                                       const int64_t version,
                                                       TRITONSERVER_Message **m)
{
    char text[64];
    (void)s;
    snprintf(text, sizeof text, "{\"stats\":\"%s/%lld\"}", model, (long long)version);
    return message(m, text);
}
TRITONSERVER_Error *TRITONSERVER_ServerModelConfig(TRITONSERVER_Server *s, const char *model,
                                                   const int64_t version, const uint32_t cv,
                                                   TRITONSERVER_Message **m)
{
    TRITONSERVER_Error *e = known(model);
    (void)s;
    (void)version;
    assert_int_equal(cv, 1);
    return e ? e : message(m, "{\"config\":1}");
}
TRITONSERVER_Error *TRITONSERVER_ServerModelIndex(TRITONSERVER_Server *s, uint32_t flags,
                                                  TRITONSERVER_Message **m)
{
    (void)s;
    return message(m, flags ? "[\"ready\"]" : "[\"all\"]");
}
TRITONSERVER_Error *TRITONSERVER_ServerModelTransactionProperties(TRITONSERVER_Server *s,
                                                                  const char *model,
                                                                  const int64_t version,
                                                                  uint32_t *flags, void **p)
{
    (void)s;
    (void)version;
    (void)p;
    *flags = strcmp(model, "gen") == 0 ? TRITONSERVER_TXN_DECOUPLED : TRITONSERVER_TXN_ONE_TO_ONE;
    return known(model);
}

struct TRITONSERVER_Parameter {
    char name[64], value[64];
};
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name,
                                                  const TRITONSERVER_ParameterType type,
                                                  const void *value)
{
    TRITONSERVER_Parameter *p = calloc(1, sizeof *p);
    (void)type;
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(p->value, sizeof p->value, "%s", (const char *)value);
    return p;
}
TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name, const void *bytes,
                                                       const uint64_t n)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)n, (const char *)bytes);
    return TRITONSERVER_ParameterNew(name, TRITONSERVER_PARAMETER_BYTES, text);
}
void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *p)
{
    free(p);
}
/* Answers with what it was given, so that the test can see it. */
TRITONSERVER_Error *TRITONSERVER_ServerLoadModelWithParameters(TRITONSERVER_Server *s,
                                                               const char *model,
                                                               const TRITONSERVER_Parameter **p,
                                                               const uint64_t n)
{
    nrd_str t = {0};
    (void)s;
    if (n == 0) {
        return NULL;
    }
    nrd_str_printf(&t, "load %s", model);
    for (uint64_t i = 0; i < n; i++) {
        nrd_str_printf(&t, " %s=%s", p[i]->name, p[i]->value);
    }
    TRITONSERVER_Error *e = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, t.data);
    nrd_str_fini(&t);
    return e;
}
TRITONSERVER_Error *TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server *s, const char *model)
{
    (void)s;
    return known(model);
}
TRITONSERVER_Error *TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server *s,
                                                                const char *model)
{
    (void)s;
    (void)model;
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_ALREADY_EXISTS, "with dependents");
}

#define LOG_SETTER(name, type)                                                                     \
    TRITONSERVER_Error *TRITONSERVER_ServerOptionsSetLog##name(TRITONSERVER_ServerOptions *o,      \
                                                               type v)                             \
    {                                                                                              \
        (void)v;                                                                                   \
        assert_null(o);                                                                            \
        return NULL;                                                                               \
    }
LOG_SETTER(Info, bool)
LOG_SETTER(Warn, bool)
LOG_SETTER(Error, bool)
LOG_SETTER(Verbose, int)
LOG_SETTER(Format, const TRITONSERVER_LogFormat)

TRITONSERVER_Error *
TRITONSERVER_ResponseAllocatorNew(TRITONSERVER_ResponseAllocator **out,
                                  TRITONSERVER_ResponseAllocatorAllocFn_t alloc,
                                  TRITONSERVER_ResponseAllocatorReleaseFn_t release,
                                  TRITONSERVER_ResponseAllocatorStartFn_t start)
{
    (void)start;
    *out = calloc(1, sizeof **out);
    (*out)->alloc = alloc;
    (*out)->release = release;
    return NULL;
}
TRITONSERVER_Error *
TRITONSERVER_ResponseAllocatorSetQueryFunction(TRITONSERVER_ResponseAllocator *a,
                                               TRITONSERVER_ResponseAllocatorQueryFn_t query)
{
    (void)a;
    (void)query;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator *a)
{
    free(a);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestNew(TRITONSERVER_InferenceRequest **r,
                                                     TRITONSERVER_Server *s, const char *model,
                                                     const int64_t version)
{
    TRITONSERVER_Error *e = known(model);
    (void)s;
    (void)version;
    if (e) {
        return e;
    }
    *r = calloc(1, sizeof **r);
    snprintf((*r)->model, sizeof(*r)->model, "%s", model);
    atomic_fetch_add(&n_requests, 1);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest *r)
{
    atomic_fetch_sub(&n_requests, 1);
    free(r);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest *r,
                                                       const char *id)
{
    snprintf(r->id, sizeof r->id, "%s", id);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddInput(TRITONSERVER_InferenceRequest *r,
                                                          const char *name,
                                                          const TRITONSERVER_DataType type,
                                                          const int64_t *shape, uint64_t n_dims)
{
    assert_true(r->n_in < MAX_TENSORS && n_dims <= 4);
    tensor *t = &r->in[r->n_in++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    memcpy(t->shape, shape, n_dims * sizeof *shape);
    t->n_dims = n_dims;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddRawInput(TRITONSERVER_InferenceRequest *r,
                                                             const char *name)
{
    const int64_t shape = 1;
    return TRITONSERVER_InferenceRequestAddInput(r, name, TRITONSERVER_TYPE_UINT8, &shape, 1);
}
TRITONSERVER_Error *
TRITONSERVER_InferenceRequestAppendInputData(TRITONSERVER_InferenceRequest *r, const char *name,
                                             const void *base, size_t n,
                                             TRITONSERVER_MemoryType memory_type, int64_t memory_id)
{
    tensor *t = &r->in[r->n_in - 1];
    (void)memory_type;
    (void)memory_id;
    assert_string_equal(t->name, name);
    assert_null(t->base);
    t->base = base;
    t->size = n;
    if (strcmp(name, "raw_input") == 0) {
        t->shape[0] = (int64_t)n;
    }
    return NULL;
}
TRITONSERVER_Error *
TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest *r, const char *name)
{
    (void)r;
    (void)name;
    return NULL;
}
TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetStringParameter(TRITONSERVER_InferenceRequest *r, const char *key,
                                                const char *value)
{
    snprintf(r->text_parameter, sizeof r->text_parameter, "%s=%s", key, value);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetIntParameter(TRITONSERVER_InferenceRequest *r,
                                                                 const char *key, const int64_t v)
{
    snprintf(r->text_parameter, sizeof r->text_parameter, "%s=%lld", key, (long long)v);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetBoolParameter(TRITONSERVER_InferenceRequest *r,
                                                                  const char *key, const bool v)
{
    snprintf(r->text_parameter, sizeof r->text_parameter, "%s=%s", key, v ? "yes" : "no");
    return NULL;
}
TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetDoubleParameter(TRITONSERVER_InferenceRequest *r, const char *key,
                                                const double v)
{
    snprintf(r->text_parameter, sizeof r->text_parameter, "%s=%g", key, v);
    return NULL;
}
#define REQUEST_SETTER(name, type)                                                                 \
    TRITONSERVER_Error *TRITONSERVER_InferenceRequestSet##name(TRITONSERVER_InferenceRequest *r,   \
                                                               type v)                             \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)v;                                                                                   \
        return NULL;                                                                               \
    }
REQUEST_SETTER(CorrelationId, uint64_t)
REQUEST_SETTER(CorrelationIdString, const char *)
REQUEST_SETTER(Flags, uint32_t)
REQUEST_SETTER(PriorityUInt64, uint64_t)
REQUEST_SETTER(TimeoutMicroseconds, uint64_t)

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest *r, TRITONSERVER_InferenceRequestReleaseFn_t fn, void *userp)
{
    r->release = fn;
    r->release_userp = userp;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest *r, TRITONSERVER_ResponseAllocator *a, void *a_userp,
    TRITONSERVER_InferenceResponseCompleteFn_t fn, void *userp)
{
    r->allocator = a;
    r->allocator_userp = a_userp;
    r->complete = fn;
    r->complete_userp = userp;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest *r)
{
    atomic_store(&r->cancelled, true);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse *r)
{
    for (int i = 0; i < r->n_out; i++) {
        r->allocator->release(r->allocator, r->out[i].owned, r->out[i].owned_userp, r->out[i].size,
                              TRITONSERVER_MEMORY_CPU, 0);
    }
    if (r->error) {
        TRITONSERVER_ErrorDelete(r->error);
    }
    atomic_fetch_sub(&n_responses, 1);
    free(r);
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse *r)
{
    return r->error ? TRITONSERVER_ErrorNew(r->error->code, r->error->text) : NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceResponseModel(TRITONSERVER_InferenceResponse *r,
                                                        const char **model, int64_t *version)
{
    *model = r->model;
    *version = 1;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse *r,
                                                     const char **id)
{
    *id = r->id;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameterCount(TRITONSERVER_InferenceResponse *r,
                                                                 uint32_t *n)
{
    *n = r->text_parameter[0] ? 2 : 0;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameter(TRITONSERVER_InferenceResponse *r,
                                                            const uint32_t i, const char **name,
                                                            TRITONSERVER_ParameterType *type,
                                                            const void **value)
{
    *name = i ? "a_flag" : "z_saw";
    *type = i ? TRITONSERVER_PARAMETER_BOOL : TRITONSERVER_PARAMETER_STRING;
    *value = i ? (const void *)&r->flag : r->text_parameter;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse *r,
                                                              uint32_t *n)
{
    *n = (uint32_t)r->n_out;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutput(
    TRITONSERVER_InferenceResponse *r, const uint32_t i, const char **name,
    TRITONSERVER_DataType *type, const int64_t **shape, uint64_t *n_dims, const void **base,
    size_t *n, TRITONSERVER_MemoryType *memory_type, int64_t *memory_id, void **userp)
{
    tensor *t = &r->out[i];
    *name = t->name;
    *type = t->type;
    *shape = t->shape;
    *n_dims = t->n_dims;
    *base = t->base;
    *n = t->size;
    *memory_type = TRITONSERVER_MEMORY_CPU;
    *memory_id = 0;
    *userp = t->owned_userp;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseOutputClassificationLabel(TRITONSERVER_InferenceResponse *r,
                                                        const uint32_t i, const size_t class_index,
                                                        const char **label)
{
    (void)r;
    (void)i;
    *label = class_index == 1 ? "one" : NULL;
    return NULL;
}
TRITONSERVER_Error *TRITONSERVER_ServerModelBatchProperties(TRITONSERVER_Server *s,
                                                            const char *model,
                                                            const int64_t version, uint32_t *flags,
                                                            void **p)
{
    (void)s;
    (void)model;
    (void)version;
    (void)p;
    *flags = TRITONSERVER_BATCH_FIRST_DIM;
    return NULL;
}

static TRITONSERVER_InferenceResponse *answer(TRITONSERVER_InferenceRequest *r,
                                              TRITONSERVER_Error *error)
{
    TRITONSERVER_InferenceResponse *a = calloc(1, sizeof *a);
    atomic_fetch_add(&n_responses, 1);
    a->error = error;
    a->allocator = r->allocator;
    memcpy(a->model, r->model, sizeof a->model);
    memcpy(a->id, r->id, sizeof a->id);
    memcpy(a->text_parameter, r->text_parameter, sizeof a->text_parameter);
    return a;
}

static void add_output(TRITONSERVER_InferenceRequest *r, TRITONSERVER_InferenceResponse *a,
                       const tensor *like, const void *data)
{
    tensor *t = &a->out[a->n_out];
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_id;
    void *p;
    *t = *like;
    TRITONSERVER_Error *e =
        r->allocator->alloc(r->allocator, t->name, t->size, TRITONSERVER_MEMORY_CPU, 0,
                            r->allocator_userp, &p, &t->owned_userp, &memory_type, &memory_id);
    if (e) {
        a->error = e;
        return;
    }
    if (t->size) {
        memcpy(p, data, t->size);
    }
    t->owned = p;
    t->base = p;
    a->n_out++;
}

static atomic_int n_models; /* threads that still use a request or what it holds */

static void run_model(TRITONSERVER_InferenceRequest *r)
{
    TRITONSERVER_InferenceResponseCompleteFn_t complete = r->complete;
    void *userp = r->complete_userp;
    const struct timespec nap = {0, 200000};
    TRITONSERVER_InferenceResponse *a = NULL;

    if (strcmp(r->model, "hold") == 0) {
        while (!atomic_load(&r->cancelled)) {
            nanosleep(&nap, NULL);
        }
        atomic_fetch_add(&n_cancelled, 1);
        a = answer(r, TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_CANCELLED, "cancelled"));
    } else if (strcmp(r->model, "fail") == 0) {
        a = answer(r, TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "it \"failed\""));
    } else if (strcmp(r->model, "gen") == 0) {
        int32_t n = 0;
        for (int i = 0; i < r->n_in; i++) {
            if (strcmp(r->in[i].name, "n") == 0) {
                memcpy(&n, r->in[i].base, 4);
            }
        }
        for (int32_t i = 0; i < n; i++) {
            char text[16] = {2, 0, 0, 0, 't', (char)('0' + i % 10)};
            tensor t = {"text_output", TRITONSERVER_TYPE_BYTES, {1}, 1, NULL, 6, NULL, NULL};
            TRITONSERVER_InferenceResponse *one = answer(r, NULL);
            add_output(r, one, &t, text);
            complete(one, 0, userp);
        }
    } else {
        a = answer(r, NULL);
        for (int i = 0; i < r->n_in; i++) {
            add_output(r, a, &r->in[i], r->in[i].base);
        }
    }
    if (strcmp(r->model, "late") == 0) {
        const struct timespec long_nap = {0, 100000000};
        complete(a, TRITONSERVER_RESPONSE_COMPLETE_FINAL, userp);
        nanosleep(&long_nap, NULL);
        r->release(r, TRITONSERVER_REQUEST_RELEASE_ALL, r->release_userp);
        return;
    }
    r->release(r, TRITONSERVER_REQUEST_RELEASE_ALL, r->release_userp);
    complete(a, TRITONSERVER_RESPONSE_COMPLETE_FINAL, userp);
}

static void *model_main(void *request)
{
    run_model(request);
    atomic_fetch_sub(&n_models, 1);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerInferAsync(TRITONSERVER_Server *s,
                                                  TRITONSERVER_InferenceRequest *r,
                                                  TRITONSERVER_InferenceTrace *trace)
{
    pthread_t thread;
    (void)s;
    (void)trace;
    if (r->n_in == 0) {
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "expected 1 inputs but got 0");
    }
    atomic_fetch_add(&n_models, 1);
    pthread_create(&thread, NULL, model_main, r);
    pthread_detach(thread);
    return NULL;
}

/* ---- the client ---- */

static nrd_http_api *api;
static nrd_options options;
static nrd_tracer *tracer;
static nrd_front *front;

static int start_with_all(const char *const *extra, int n)
{
    char *argv[16] = {(char *)(uintptr_t) "t", (char *)(uintptr_t) "--http-port=0",
                      (char *)(uintptr_t) "--http-address=127.0.0.1",
                      (char *)(uintptr_t) "--http-thread-count=2"};
    for (int i = 0; i < n; i++) {
        argv[4 + i] = (char *)(uintptr_t)extra[i];
    }
    nrd_options_init(&options);
    nrd_error *err = nrd_options_parse(&options, 4 + n, argv);
    if (!err) {
        err = nrd_tracer_new(&tracer, &options);
    }
    if (!err) {
        err = nrd_front_new(&front, NULL, &options, tracer);
    }
    if (!err) {
        err = nrd_http_api_new(&api, front);
    }
    if (!err) {
        err = nrd_http_api_listen(api);
    }
    if (err) {
        print_error("%s\n", nrd_error_message(err));
        nrd_error_free(err);
        return -1;
    }
    return 0;
}

static int start_with(const char *extra)
{
    return start_with_all(&extra, extra ? 1 : 0);
}

static int start(void **state)
{
    (void)state;
    atomic_store(&n_cancelled, 0);
    return start_with(NULL);
}

/* Every request, response and error object must be gone: none leaks, none is freed twice. */
static int finish(void **state)
{
    const struct timespec nap = {0, 1000000};
    (void)state;
    for (int i = 0; i < 5000 && (atomic_load(&n_requests) || atomic_load(&n_responses) ||
                                 atomic_load(&n_models)); i++) {
        nanosleep(&nap, NULL);
    }
    nrd_front_stop(front);
    nrd_http_api_free(api);
    nrd_front_free(front);
    nrd_tracer_free(tracer);
    nrd_options_fini(&options);
    return atomic_load(&n_requests) || atomic_load(&n_responses) || atomic_load(&n_errors);
}

static int dial(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)nrd_http_api_port(api)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {20, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static nrd_str reply; /* head and body of the last call */
static char *body;    /* in reply */

/* One request on its own connection; returns the status. */
static int call_n(const char *method, const char *path, const char *fields, const char *data,
                  size_t n)
{
    nrd_str in = {0};
    char buf[65536];
    int fd = dial(), status = 0;
    nrd_str_printf(&in,
                   "%s %s HTTP/1.1\r\n%sConnection: close\r\n%sContent-Length: %zu\r\n"
                   "\r\n",
                   method, path, strstr(fields, "Host: ") ? "" : "Host: localhost\r\n", fields, n);
    nrd_str_append(&in, data, n);
    assert_int_equal(send(fd, in.data, in.len, MSG_NOSIGNAL), (ssize_t)in.len);
    nrd_str_fini(&in);
    nrd_str_clear(&reply);
    for (ssize_t r; (r = recv(fd, buf, sizeof buf, 0)) != 0;) {
        assert_true(r > 0);
        nrd_str_append(&reply, buf, (size_t)r);
    }
    close(fd);
    assert_int_equal(sscanf(reply.data, "HTTP/1.1 %d", &status), 1);
    body = strstr(reply.data, "\r\n\r\n") + 4;
    return status;
}

static int call(const char *method, const char *path, const char *data)
{
    return call_n(method, path, "", data, strlen(data));
}

static void expect(const char *method, const char *path, const char *data, int status,
                   const char *text)
{
    int got = call(method, path, data);
    if (got != status || strcmp(body, text) != 0) {
        print_error("%s %s %s\n -> %d %s\n want %d %s\n", method, path, data, got, body, status,
                    text);
    }
    assert_int_equal(got, status);
    assert_string_equal(body, text);
}

/* ---- tests ---- */

static void test_every_route_answers(void **state)
{
    (void)state;
    expect("GET", "/v2/health/live", "", 200, "");
    expect("GET", "/v2/health/ready", "", 200, "");
    expect("GET", "/v2", "", 200, "{\"name\":\"triton\"}");
    expect("GET", "/v2/models/echo/ready", "", 200, "");
    expect("GET", "/v2/models/echo/versions/2/ready", "", 400,
           "{\"error\":\"Model version not ready\"}");
    expect("GET", "/v2/models/none/ready", "", 404,
           "{\"error\":\"Request for unknown model: 'none' is not found\"}");
    expect("GET", "/v2/models/echo/config", "", 200, "{\"config\":1}");
    expect("GET", "/v2/models/echo/versions/1/config", "", 200, "{\"config\":1}");
    expect("GET", "/v2/models/stats", "", 200, "{\"stats\":\"/-1\"}");
    expect("GET", "/v2/models/ec%68o/stats", "", 200, "{\"stats\":\"echo/-1\"}");
    expect("GET", "/v2/models/echo/versions/7/stats", "", 200, "{\"stats\":\"echo/7\"}");
    expect("POST", "/v2/repository/index", "", 200, "[\"all\"]");
    expect("POST", "/v2/repository/index", "{\"ready\":true}", 200, "[\"ready\"]");
    expect("POST", "/v2/repository/models/echo/load", "", 200, "");
    expect("POST", "/v2/repository/models/echo/unload", "", 200, "");
    expect("GET", "/v2/systemsharedmemory/status", "", 200, "[]");
    expect("GET", "/v2/cudasharedmemory/status", "", 200, "[]");
    assert_int_equal(call("GET", "/v2/trace/setting", ""), 200);
    assert_int_equal(call("GET", "/v2/models/echo/trace/setting", ""), 200);
    assert_int_equal(call("GET", "/v2/logging", ""), 200);
}

static void test_unknown_routes_and_methods_are_refused(void **state)
{
    static const char *const paths[] = {"/",
                                        "/v2/",
                                        "/v1",
                                        "/v2/health",
                                        "/v2/health/x",
                                        "/v2/models",
                                        "/v2/models//infer",
                                        "/v2/models/a/b",
                                        "/v2/models/echo/versions/x/infer",
                                        "/v2/models/a%00/infer",
                                        "/v2/health/live/"};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        expect("GET", paths[i], "", 404, "{\"error\":\"Not Found\"}");
    }
    expect("POST", "/v2/health/live", "", 405, "{\"error\":\"Method Not Allowed\"}");
    expect("GET", "/v2/models/echo/infer", "", 405, "{\"error\":\"Method Not Allowed\"}");
    expect("DELETE", "/v2", "", 405, "{\"error\":\"Method Not Allowed\"}");
}

static void test_load_parameters_reach_the_core(void **state)
{
    (void)state;
    expect("POST", "/v2/repository/models/m/load",
           "{\"parameters\":{\"config\":\"{}\",\"file:1/a\":\"aGVsbG8=\"}}", 503,
           "{\"error\":\"load m config={} file:1/a=hello\"}");
    expect("POST", "/v2/repository/models/echo/unload",
           "{\"parameters\":{\"unload_dependents\":true}}", 400, "{\"error\":\"with dependents\"}");
    expect("POST", "/v2/repository/r/models/echo/load", "", 501,
           "{\"error\":\"'repository_name' specification is not supported\"}");
    assert_int_equal(call("POST", "/v2/repository/models/m/load", "{\"parameters\":{\"x\":\"y\"}}"),
                     400);
    assert_int_equal(
        call("POST", "/v2/repository/models/m/load", "{\"parameters\":{\"file:a\":\"!\"}}"), 400);
}

static void test_infer_takes_and_gives_json(void **state)
{
    (void)state;
    expect("POST", "/v2/models/echo/infer",
           "{\"id\":\"x\",\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2,2],"
           "\"data\":[[1,2],[3,4]]},{\"name\":\"T\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":"
           "[\"a\\\"b\"]}]}",
           200,
           "{\"id\":\"x\",\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":"
           "\"IN\",\"datatype\":\"INT32\",\"shape\":[2,2],\"data\":[1,2,3,4]},{\"name\":\"T\","
           "\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"a\\\"b\"]}]}");
    expect("POST", "/v2/models/echo/infer",
           "{\"parameters\":{\"k\":1.5},\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\","
           "\"shape\":[0],\"data\":[]}]}",
           200,
           "{\"model_name\":\"echo\",\"model_version\":\"1\",\"parameters\":{\"z_saw\":\"k=1.5\","
           "\"a_flag\":false},\"outputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[0],"
           "\"data\":[]}]}");
}

static void test_infer_takes_and_gives_binary(void **state)
{
    const char json[] = "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2],"
                        "\"parameters\":{\"binary_data_size\":8}}],\"outputs\":[{\"name\":\"IN\","
                        "\"parameters\":{\"binary_data\":true}}]}";
    const char want[] = "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":"
                        "\"IN\",\"datatype\":\"INT32\",\"shape\":[2],\"parameters\":{"
                        "\"binary_data_size\":8}}]}";
    const int32_t values[2] = {7, -9};
    char field[64], data[512];
    (void)state;
    snprintf(field, sizeof field, "Inference-Header-Content-Length: %zu\r\n", sizeof json - 1);
    memcpy(data, json, sizeof json - 1);
    memcpy(data + sizeof json - 1, values, 8);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", field, data, sizeof json - 1 + 8),
                     200);
    snprintf(field, sizeof field, "\r\nInference-Header-Content-Length: %zu\r\n", sizeof want - 1);
    assert_non_null(strstr(reply.data, field));
    assert_non_null(strstr(reply.data, "Content-Type: application/octet-stream\r\n"));
    assert_memory_equal(body, want, sizeof want - 1);
    assert_memory_equal(body + sizeof want - 1, values, 8);
    assert_ptr_equal(body + sizeof want - 1 + 8, reply.data + reply.len);
}

static void test_raw_body_is_the_one_input(void **state)
{
    (void)state;
    assert_int_equal(call_n("POST", "/v2/models/echo/infer",
                            "Inference-Header-Content-Length: 0\r\n", "rawbytes", 8),
                     200);
    assert_memory_equal(reply.data + reply.len - 8, "rawbytes", 8);
}

static void test_classification_gives_the_best_of_each_row(void **state)
{
    (void)state;
    expect(
        "POST", "/v2/models/echo/infer",
        "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT8\",\"shape\":[2,3],\"data\":[-5,7,-6,0,"
        "0,-1]}],\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"classification\":2}}]}",
        200,
        "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
        "\"datatype\":\"BYTES\",\"shape\":[2,2],\"data\":[\"7:1:one\",\"-5:0\",\"0:0\","
        "\"0:1:one\"]}]}");
    expect(
        "POST", "/v2/models/echo/infer",
        "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"FP32\",\"shape\":[1,2],\"data\":[0.25,1.5]}"
        "],\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"classification\":9}}]}",
        200,
        "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
        "\"datatype\":\"BYTES\",\"shape\":[1,2],\"data\":[\"1.500000:1:one\",\"0.250000:0\"]}]}");
    assert_int_equal(
        call(
            "POST", "/v2/models/echo/infer",
            "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"BOOL\",\"shape\":[1,1],\"data\":[true]}],"
            "\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"classification\":1}}]}"),
        400);
}

static void test_large_tensor_is_returned_unharmed(void **state)
{
    const char json[] =
        "{\"parameters\":{\"binary_data_output\":true},\"inputs\":[{\"name\":\"IN\","
        "\"datatype\":\"UINT8\",\"shape\":[8000000],\"parameters\":{"
        "\"binary_data_size\":8000000}}]}";
    char field[64];
    const size_t n = 8000000;
    char *data = malloc(sizeof json - 1 + n);
    (void)state;
    memcpy(data, json, sizeof json - 1);
    for (size_t i = 0; i < n; i++) {
        data[sizeof json - 1 + i] = (char)(i * 7 + i / 251);
    }
    snprintf(field, sizeof field, "Inference-Header-Content-Length: %zu\r\n", sizeof json - 1);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", field, data, sizeof json - 1 + n),
                     200);
    assert_memory_equal(reply.data + reply.len - n, data + sizeof json - 1, n);
    free(data);
}

static void test_infer_errors_say_what_is_wrong(void **state)
{
#define IN(rest) "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\"," rest "}]}"
    static const struct {
        const char *model, *data;
        int status;
        const char *text;
    } t[] = {
        {"none", "{}", 404, "Request for unknown model: 'none' is not found"},
        {"echo", "{\"inputs\":", 500, "failed to parse the request JSON buffer: "},
        {"echo", "[]", 500, "Unable to parse 'inputs'"},
        {"echo", "{}", 500, "Unable to parse 'inputs': attempt to access non-existing object"},
        {"echo", "{\"inputs\":[]}", 400, "expected 1 inputs but got 0"},
        {"echo", IN("\"shape\":[1]"), 400, "But no field is set"},
        {"echo", IN("\"shape\":[-1],\"data\":[1]"), 500, "Unable to parse 'shape'"},
        {"echo", IN("\"shape\":[9223372036854775807,3],\"data\":[1]"), 400, "overflows"},
        {"echo", IN("\"shape\":[4000000000],\"data\":[1]"), 400, "--http-max-input-size"},
        {"echo", IN("\"shape\":[2],\"data\":[1]"), 500, "Shape does not match true shape"},
        {"echo", IN("\"shape\":[1],\"data\":[1.5]"), 500, "Unable to parse 'data'"},
        {"echo", IN("\"shape\":[1],\"data\":[1],\"parameters\":{\"binary_data_size\":4}"), 400,
         "But set 'data' 'binary_data_size'"},
        {"echo", IN("\"shape\":[1],\"parameters\":{\"binary_data_size\":4}"), 400,
         "unexpected size for input 'IN', expecting 4 additional bytes for model 'echo'"},
        {"echo", IN("\"shape\":[1],\"parameters\":{\"shared_memory_region\":\"r\"}"), 404,
         "Unable to find shared memory region: 'r'"},
        {"echo", "{\"id\":5,\"inputs\":[]}", 500, "Unable to parse 'id'"},
        {"echo", "{\"parameters\":{\"triton_x\":1},\"inputs\":[]}", 400, "reserved for Triton"},
        {"echo", "{\"parameters\":{\"x\":[]},\"inputs\":[]}", 400, "has invalid type"},
        {"fail", IN("\"shape\":[1],\"data\":[1]"), 500, "it \\\"failed\\\""},
        {"gen", IN("\"shape\":[1],\"data\":[1]"), 501,
         "HTTP end point doesn't support models with decoupled transaction policy"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v2/models/%s/infer", t[i].model);
        int got = call("POST", path, t[i].data);
        if (got != t[i].status || !strstr(body, t[i].text)) {
            print_error("%s -> %d %s\n", t[i].data, got, body);
        }
        assert_int_equal(got, t[i].status);
        assert_non_null(strstr(body, t[i].text));
        assert_memory_equal(body, "{\"error\":\"", 10);
    }
    assert_int_equal(
        call_n("POST", "/v2/models/echo/infer", "Inference-Header-Content-Length: 3\r\n", "{}", 2),
        400);
    assert_int_equal(
        call_n("POST", "/v2/models/echo/infer", "Inference-Header-Content-Length: x\r\n", "{}", 2),
        400);
}

static void test_shared_memory_carries_inputs_and_outputs(void **state)
{
    const char *key = "/nrd_test_api_shm";
    int fd = shm_open(key, O_CREAT | O_RDWR, 0600);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 8192), 0);
    int32_t *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    p[25] = 11; /* offset 100 */
    p[26] = 12;
    expect("POST", "/v2/systemsharedmemory/region/r/register",
           "{\"key\":\"/nrd_test_api_shm\",\"offset\":100,\"byte_size\":4000}", 200, "");
    expect("GET", "/v2/systemsharedmemory/region/r/status", "", 200,
           "[{\"name\":\"r\",\"key\":\"/nrd_test_api_shm\",\"offset\":100,\"byte_size\":4000}]");
    assert_int_equal(call("POST", "/v2/systemsharedmemory/region/r/register",
                          "{\"key\":\"/nrd_test_api_shm\",\"byte_size\":10}"),
                     400);
    assert_int_equal(call("POST", "/v2/systemsharedmemory/region/big/register",
                          "{\"key\":\"/nrd_test_api_shm\",\"byte_size\":8193}"),
                     400);
    expect("POST", "/v2/models/echo/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           200,
           "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
           "\"datatype\":\"INT32\",\"shape\":[2],\"data\":[11,12]}]}");
    assert_int_equal(
        call("POST", "/v2/models/echo/infer",
             "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2],\"data\":[5,6]}],"
             "\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"shared_memory_region\":\"r\","
             "\"shared_memory_offset\":400,\"shared_memory_byte_size\":8}}]}"),
        200);
    assert_int_equal(p[125], 5);
    assert_int_equal(p[126], 6);
    assert_int_equal(call("POST", "/v2/models/echo/infer",
                          IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
                             "\"shared_memory_offset\":3996,\"shared_memory_byte_size\":8}")),
                     400);
    /* a region that is cut short is an error to who uses it; the server lives */
    assert_int_equal(ftruncate(fd, 0), 0);
    expect("POST", "/v2/models/echo/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           400,
           "{\"error\":\"shared memory region 'r' became shorter than the 4000 bytes that were registered; "
           "unregister it\"}");
    assert_int_equal(
        call("POST", "/v2/models/echo/infer",
             "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[2],\"data\":[5,6]}],"
             "\"outputs\":[{\"name\":\"IN\",\"parameters\":{\"shared_memory_region\":\"r\","
             "\"shared_memory_offset\":400,\"shared_memory_byte_size\":8}}]}"),
        400);
    expect("POST", "/v2/systemsharedmemory/region/r/unregister", "", 200, "");
    assert_int_equal(ftruncate(fd, 8192), 0);
    p[25] = 11;
    p[26] = 12;
    expect("POST", "/v2/systemsharedmemory/region/r/register",
           "{\"key\":\"/nrd_test_api_shm\",\"offset\":100,\"byte_size\":4000}", 200, "");
    expect("POST", "/v2/models/echo/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           200,
           "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
           "\"datatype\":\"INT32\",\"shape\":[2],\"data\":[11,12]}]}");
    /* whoever has the answer may take the region back at once */
    expect("POST", "/v2/models/late/infer",
           IN("\"shape\":[2],\"parameters\":{\"shared_memory_region\":\"r\","
              "\"shared_memory_byte_size\":8}"),
           200,
           "{\"model_name\":\"late\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"IN\","
           "\"datatype\":\"INT32\",\"shape\":[2],\"data\":[11,12]}]}");
    expect("POST", "/v2/systemsharedmemory/unregister", "", 200, "");
    expect("GET", "/v2/systemsharedmemory/status", "", 200, "[]");
    munmap(p, 8192);
    close(fd);
    shm_unlink(key);
}

static void test_generate_maps_keys_and_sorts_the_answer(void **state)
{
    (void)state;
    expect("POST", "/v2/models/gen/generate",
           "{\"id\":\"i\",\"text\":\"hi\",\"n\":1,\"temperature\":0.5}", 200,
           "{\"a_flag\":false,\"id\":\"i\",\"model_name\":\"gen\",\"model_version\":\"1\","
           "\"text_output\":\"t0\",\"z_saw\":\"temperature=0.5\"}");
    expect("POST", "/v2/models/echo/generate", "{\"IN\":[1,2,3,4],\"F\":[1.5],\"parameters\":{}}",
           200, "{\"F\":1.5,\"IN\":[1,2,3,4],\"model_name\":\"echo\",\"model_version\":\"1\"}");
}

/* Bodies and answers that are long are read and written by workers, short ones on the loop. */
static void test_long_bodies_and_answers_are_the_workers(void **state)
{
    enum { N = 20000 };
    nrd_str question = {0}, want = {0};
    (void)state;
    assert_int_equal(call("POST", "/v2/models/echo/infer", IN("\"shape\":[2],\"data\":[1,2]")), 200);
    assert_int_equal(nrd_workers_look(front->workers).n_done, 0);
    nrd_str_printf(&question, "{\"inputs\":[{\"name\":\"IN\",\"datatype\":\"INT32\",\"shape\":[%d],\"data\":[",
                   N);
    nrd_str_printf(&want, "{\"model_name\":\"echo\",\"model_version\":\"1\",\"outputs\":[{\"name\":"
                          "\"IN\",\"datatype\":\"INT32\",\"shape\":[%d],\"data\":[", N);
    for (int i = 0; i < N; i++) {
        nrd_str_printf(&question, "%s%d", i ? "," : "", i * 7);
        nrd_str_printf(&want, "%s%d", i ? "," : "", i * 7);
    }
    nrd_str_puts(&question, "]}]}");
    nrd_str_puts(&want, "]}]}");
    expect("POST", "/v2/models/echo/infer", question.data, 200, want.data);
    assert_int_equal(nrd_workers_look(front->workers).n_done, 2);
    question.data[question.len - 2] = 'x'; /* found by the worker, answered by the loop */
    assert_int_equal(call("POST", "/v2/models/echo/infer", question.data), 500);
    assert_int_equal(nrd_workers_look(front->workers).n_done, 3);
    nrd_str_fini(&question);
    nrd_str_fini(&want);
}

static void test_generate_reads_a_model_once_a_load(void **state)
{
    (void)state;
    const int before = atomic_load(&n_metadata);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"text\":\"a\",\"n\":1}"), 200);
    }
    assert_int_equal(atomic_load(&n_metadata) - before, 1);
    atomic_fetch_add(&load_number, 1);
    assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"text\":\"a\",\"n\":1}"), 200);
    assert_int_equal(atomic_load(&n_metadata) - before, 2);
    assert_int_equal(call("POST", "/v2/models/none/generate", "{}"), 404);
}

static void test_generate_errors(void **state)
{
    (void)state;
    expect("POST", "/v2/models/gen/generate", "{\"text\":[\"a\",\"b\"],\"n\":1}", 400,
           "{\"error\":\"The schema can not convert input 'text' to tensor with proper shape\"}");
    expect("POST", "/v2/models/echo/generate", "{\"IN\":[1,2,3]}", 400,
           "{\"error\":\"The schema can not convert input 'IN' to tensor with proper shape\"}");
    expect("POST", "/v2/models/gen/generate", "{\"text\":\"a\",\"n\":2}", 200,
           "{\"error\":\"generate expects model to produce exactly 1 response, use generate stream "
           "for model that generates various number of responses\"}");
    expect("POST", "/v2/models/gen/generate", "{\"x\":null,\"n\":2}", 400,
           "{\"error\":\"parameter 'x' has invalid type. It should be either 'int', 'bool', or "
           "'string'.\"}");
    expect("POST", "/v2/models/gen/generate", "{}", 400,
           "{\"error\":\"expected 1 inputs but got 0\"}");
    assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"parameters\":1}"), 500);
    assert_int_equal(call("POST", "/v2/models/gen/generate", "[1]"), 500);
    assert_int_equal(call("POST", "/v2/models/none/generate", "{}"), 404);
    assert_int_equal(call("POST", "/v2/models/gen/generate", "{\"a\":"), 500);
    assert_non_null(strstr(body, "failed to parse the request JSON buffer: "));
    expect("POST", "/v2/models/fail/generate", "{\"F\":1}", 500,
           "{\"error\":\"it \\\"failed\\\"\"}");
}

#define EVENT(i)                                                                                   \
    "data: {\"model_name\":\"gen\",\"model_version\":\"1\",\"text_output\":\"t" #i "\"}\n\n"
#define CHUNK(i) "43\r\n" EVENT(i) "\r\n"

static void test_stream_sends_events_and_no_marker(void **state)
{
    (void)state;
    assert_int_equal(sizeof EVENT(0) - 1, 0x43);
    expect("POST", "/v2/models/gen/generate_stream", "{\"text\":\"a\",\"n\":3}", 200,
           CHUNK(0) CHUNK(1) CHUNK(2) "0\r\n\r\n");
    assert_non_null(strstr(reply.data, "Content-Type: text/event-stream; charset=utf-8\r\n"));
    expect("POST", "/v2/models/gen/generate_stream", "{\"text\":\"a\",\"n\":0}", 200, "0\r\n\r\n");
    expect("POST", "/v2/models/fail/generate_stream", "{\"F\":1}", 500,
           "21\r\ndata: {\"error\":\"it \\\"failed\\\"\"}\n\n\r\n0\r\n\r\n");
}

static void test_disconnect_cancels(void **state)
{
    static const char *const paths[] = {"infer", "generate", "generate_stream"};
    const char *bodies[] = {IN("\"shape\":[1],\"data\":[1]"), "{\"F\":1}", "{\"F\":1}"};
    const struct timespec nap = {0, 1000000};
    (void)state;
    for (int i = 0; i < 3; i++) {
        nrd_str in = {0};
        int fd = dial();
        nrd_str_printf(&in,
                       "POST /v2/models/hold/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n"
                       "\r\n%s",
                       paths[i], strlen(bodies[i]), bodies[i]);
        assert_int_equal(send(fd, in.data, in.len, 0), (ssize_t)in.len);
        nrd_str_fini(&in);
        for (int k = 0; k < 5000 && atomic_load(&n_requests) == 0; k++) {
            nanosleep(&nap, NULL);
        }
        assert_int_equal(atomic_load(&n_cancelled), i);
        close(fd);
        for (int k = 0; k < 5000 && atomic_load(&n_cancelled) != i + 1; k++) {
            nanosleep(&nap, NULL);
        }
        assert_int_equal(atomic_load(&n_cancelled), i + 1);
        for (int k = 0; k < 5000 && atomic_load(&n_requests) != 0; k++) {
            nanosleep(&nap, NULL);
        }
    }
}

static void test_compressed_bodies_are_unpacked_and_replies_packed(void **state)
{
    const char *json = IN("\"shape\":[1],\"data\":[1]");
    unsigned char packed[512], plain[512];
    uLongf n = sizeof packed, plain_n = sizeof plain;
    (void)state;
    assert_int_equal(compress(packed, &n, (const Bytef *)json, strlen(json)), Z_OK);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer",
                            "Content-Encoding: deflate\r\nAccept-Encoding: gzip;q=0.1, deflate\r\n",
                            (char *)packed, n),
                     200);
    assert_non_null(strstr(reply.data, "Content-Encoding: deflate\r\n"));
    assert_int_equal(
        uncompress(plain, &plain_n, (Bytef *)body, (uLong)(reply.data + reply.len - body)), Z_OK);
    assert_memory_equal(plain, "{\"model_name\":\"echo\"", 20);
    assert_int_equal(
        call_n("POST", "/v2/models/echo/infer", "Content-Encoding: gzip\r\n", (char *)packed, n),
        400);
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", "Content-Encoding: br\r\n", "x", 1),
                     501);
    assert_non_null(strstr(reply.data, "Accept-Encoding: gzip, deflate\r\n"));
    assert_int_equal(call_n("POST", "/v2/models/echo/infer", "Content-Encoding: deflate\r\n",
                            (char *)packed, n - 6),
                     400);
}

static void test_log_settings_are_read_and_written(void **state)
{
    (void)state;
    expect("POST", "/v2/logging",
           "{\"log_verbose_level\":2,\"log_warning\":false,\"log_format\":\"ISO8601\"}", 200,
           "{\"log_file\":\"\",\"log_info\":true,\"log_warning\":false,\"log_error\":true,"
           "\"log_verbose_level\":2,\"log_format\":\"ISO8601\"}");
    expect("POST", "/v2/logging",
           "{\"log_verbose_level\":0,\"log_warning\":true,\"log_format\":\"default\"}", 200,
           "{\"log_file\":\"\",\"log_info\":true,\"log_warning\":true,\"log_error\":true,"
           "\"log_verbose_level\":0,\"log_format\":\"default\"}");
    assert_int_equal(call("POST", "/v2/logging", "{\"log_file\":\"x\"}"), 501);
    assert_int_equal(call("POST", "/v2/logging", "{\"log_info\":1}"), 500);
    assert_int_equal(call("POST", "/v2/logging", "{\"log_verbose_level\":-1}"), 500);
    assert_int_equal(call("POST", "/v2/logging", "{\"log_format\":\"x\"}"), 503);
    assert_int_equal(call("POST", "/v2/logging", "{"), 500);
}

static int start_restricted(void **state)
{
    (void)state;
    return start_with("--http-restricted-api=health,inference:admin-key=secret");
}

static void test_restricted_apis_ask_for_their_header(void **state)
{
    (void)state;
    expect("GET", "/v2/health/live", "", 403,
           "{\"error\":\"This API is restricted, expecting header 'admin-key'\"}");
    assert_int_equal(call_n("GET", "/v2/health/live", "Admin-Key: wrong\r\n", "", 0), 403);
    assert_int_equal(call_n("GET", "/v2/health/live", "Admin-Key: secret\r\n", "", 0), 200);
    assert_int_equal(call("POST", "/v2/models/echo/infer", "{}"), 403);
    assert_int_equal(call("GET", "/v2", ""), 200);
}

static int start_local(void **state)
{
    (void)state;
    static const char *const extra[] = {"--cors-origin=*", "--cors-origin=http://app.example",
                                        "--allowed-host=gpu.example"};
    return start_with_all(extra, sizeof extra / sizeof *extra);
}

static void test_pages_of_other_origins_give_no_orders(void **state)
{
    static const char *const orders[] = {"/v2/repository/models/echo/load", "/v2/repository/models/echo/unload",
                                         "/v2/logging", "/v2/trace/setting",
                                         "/v2/systemsharedmemory/unregister"};
    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        assert_int_equal(call_n("POST", orders[i], "Origin: http://evil.example\r\n", "{}", 2), 403);
        assert_int_equal(call_n("POST", orders[i], "Origin: null\r\n", "{}", 2), 403);
        assert_int_equal(call_n("POST", orders[i], "Origin: http://localhost:1\r\n", "{}", 2), 403);
        assert_int_not_equal(call_n("POST", orders[i], "", "{}", 2), 403);
        assert_int_not_equal(call_n("POST", orders[i], "Origin: http://app.example\r\n", "{}", 2), 403);
        assert_int_not_equal(
            call_n("POST", orders[i], "Host: gpu.example:80\r\nOrigin: https://gpu.example:80\r\n", "{}", 2),
            403);
    }
    assert_int_equal(call_n("GET", "/v2/logging", "Origin: http://evil.example\r\n", "", 0), 200);
}

static void test_a_local_server_answers_to_its_own_names(void **state)
{
    static const char *const ours[] = {"localhost", "LocalHost:8000", "a.localhost.", "127.0.0.1", "127.8.0.1:1",
                                       "[::1]",     "[::1]:8000",     "gpu.example"};
    static const char *const others[] = {"evil.example", "localhost.evil.example:80", "10.0.0.1", "[::2]", "[",
                                         "notlocalhost", "127.0.0.1.evil.example"};
    char field[64];
    (void)state;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        snprintf(field, sizeof field, "Host: %s\r\n", ours[i]);
        assert_int_equal(call_n("GET", "/v2", field, "", 0), 200);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(field, sizeof field, "Host: %s\r\n", others[i]);
        assert_int_equal(call_n("GET", "/v2", field, "", 0), 403);
        assert_int_equal(call_n("GET", "/v2/health/live", field, "", 0), 200);
    }
}

static int start_forward(void **state)
{
    (void)state;
    return start_with("--http-header-forward-pattern=^x-my-.*");
}

static void test_matching_headers_become_parameters(void **state)
{
    (void)state;
    assert_int_equal(
        call_n("POST", "/v2/models/echo/generate", "X-My-Key: v\r\nX-Other: w\r\n", "{\"F\":1}", 7),
        200);
    assert_non_null(strstr(body, "\"z_saw\":\"X-My-Key=v\""));
}

#define T(f) cmocka_unit_test_setup_teardown(f, start, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_every_route_answers),
        T(test_unknown_routes_and_methods_are_refused),
        T(test_load_parameters_reach_the_core),
        T(test_infer_takes_and_gives_json),
        T(test_infer_takes_and_gives_binary),
        T(test_raw_body_is_the_one_input),
        T(test_classification_gives_the_best_of_each_row),
        T(test_large_tensor_is_returned_unharmed),
        T(test_infer_errors_say_what_is_wrong),
        T(test_shared_memory_carries_inputs_and_outputs),
        T(test_generate_maps_keys_and_sorts_the_answer),
        T(test_long_bodies_and_answers_are_the_workers),
        T(test_generate_reads_a_model_once_a_load),
        T(test_generate_errors),
        T(test_stream_sends_events_and_no_marker),
        T(test_disconnect_cancels),
        T(test_compressed_bodies_are_unpacked_and_replies_packed),
        T(test_log_settings_are_read_and_written),
        cmocka_unit_test_setup_teardown(test_pages_of_other_origins_give_no_orders, start_local, finish),
        cmocka_unit_test_setup_teardown(test_a_local_server_answers_to_its_own_names, start_local, finish),
        cmocka_unit_test_setup_teardown(test_restricted_apis_ask_for_their_header, start_restricted,
                                        finish),
        cmocka_unit_test_setup_teardown(test_matching_headers_become_parameters, start_forward,
                                        finish),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    nrd_str_fini(&reply);
    return rc;
}
