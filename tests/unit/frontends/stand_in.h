/* SPDX-License-Identifier: Apache-2.0
 * A small stand-in for the core, for tests of front ends: it defines the functions of the in-process API, so one file of a
 * program includes it. It counts what is alive. Its models:
 *   echo   every input comes back as an output of the same name
 *   late   the same, but the request is released long after its answer
 *   gen    decoupled; n answers, then an empty final one; input `text`, BYTES [1]; n, INT32 [1]
 *   hold   answers with CANCELLED once the request has been cancelled
 *   fail   answers with an INTERNAL error */
#ifndef NRD_TEST_STAND_IN_H
#define NRD_TEST_STAND_IN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "nereid/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

#endif
