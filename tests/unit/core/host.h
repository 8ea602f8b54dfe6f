/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/core/host.h - a server in the test's own process over a repository made for the test.
 * Owner: one test. Errors end the test with their text. */
#ifndef NRD_TESTS_CORE_HOST_H
#define NRD_TESTS_CORE_HOST_H

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include "triton/core/tritonserver.h"

#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct host {
    char dir[64]; /* the repository */
    TRITONSERVER_Server *server;
    TRITONSERVER_ResponseAllocator *allocator;
} host;

static inline void ok_at(TRITONSERVER_Error *err, const char *file, int line)
{
    if (err) {
        print_error("%s:%d: %s\n", file, line, TRITONSERVER_ErrorMessage(err));
        TRITONSERVER_ErrorDelete(err);
        fail();
    }
}
#define OK(expr) ok_at((expr), __FILE__, __LINE__)

/* The call must be refused with a code and a text that contains `part`. */
static inline void refused_at(TRITONSERVER_Error *err, TRITONSERVER_Error_Code code,
                              const char *part, const char *file, int line)
{
    if (!err || TRITONSERVER_ErrorCode(err) != code ||
        !strstr(TRITONSERVER_ErrorMessage(err), part)) {
        print_error("%s:%d: expected '%s', got '%s'\n", file, line, part,
                    err ? TRITONSERVER_ErrorMessage(err) : "success");
        TRITONSERVER_ErrorDelete(err);
        fail();
    }
    TRITONSERVER_ErrorDelete(err);
}
#define REFUSED(expr, code, part)                                                                  \
    refused_at((expr), TRITONSERVER_ERROR_##code, (part), __FILE__, __LINE__)

static inline TRITONSERVER_Error *test_alloc(TRITONSERVER_ResponseAllocator *a, const char *name,
                                             size_t n, TRITONSERVER_MemoryType type, int64_t id,
                                             void *userp, void **buffer, void **buffer_userp,
                                             TRITONSERVER_MemoryType *actual, int64_t *actual_id)
{
    (void)a, (void)name, (void)type, (void)id, (void)userp;
    *buffer = n ? malloc(n) : NULL;
    *buffer_userp = NULL;
    *actual = TRITONSERVER_MEMORY_CPU;
    *actual_id = 0;
    return NULL;
}

static inline TRITONSERVER_Error *test_release(TRITONSERVER_ResponseAllocator *a, void *buffer,
                                               void *buffer_userp, size_t n,
                                               TRITONSERVER_MemoryType type, int64_t id)
{
    (void)a, (void)buffer_userp, (void)n, (void)type, (void)id;
    free(buffer);
    return NULL;
}

static inline void host_init(host *h)
{
    memset(h, 0, sizeof *h);
    snprintf(h->dir, sizeof h->dir, "/tmp/nereid-core-XXXXXX");
    assert_non_null(mkdtemp(h->dir));
    OK(TRITONSERVER_ResponseAllocatorNew(&h->allocator, test_alloc, test_release, NULL));
}

static inline void add_model(const host *h, const char *name, const char *config)
{
    char *dir = nrd_xasprintf("%s/%s/1", h->dir, name),
         *file = nrd_xasprintf("%s/%s/config.pbtxt", h->dir, name);
    assert_null(nrd_mkdirs(dir));
    assert_null(nrd_file_write(file, config, strlen(config)));
    free(dir);
    free(file);
}

/* An ensemble whose steps are these models, one after the other. */
static inline void add_steps(const host *h, const char *name, const char *const *models, int n)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "platform: \"ensemble\"\n"
                     "input [ { name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n"
                     "output [ { name: \"OUT\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n"
                     "ensemble_scheduling { step [\n");
    for (int i = 0; i < n; i++) {
        char from[16] = "IN", to[16] = "OUT";
        if (i > 0) {
            snprintf(from, sizeof from, "t%d", i);
        }
        if (i < n - 1) {
            snprintf(to, sizeof to, "t%d", i + 1);
        }
        nrd_str_printf(&s,
                       "%s{ model_name: \"%s\" model_version: -1 "
                       "input_map { key: \"IN\" value: \"%s\" } "
                       "output_map { key: \"OUT\" value: \"%s\" } }\n",
                       i ? "," : "", models[i], from, to);
    }
    nrd_str_puts(&s, "] }\n");
    add_model(h, name, nrd_str_cstr(&s));
    nrd_str_fini(&s);
}

/* An identity model with one INT32 tensor [-1]; `more` goes into its configuration. */
static inline void add_identity(const host *h, const char *name, const char *more)
{
    char *text =
        nrd_xasprintf("backend: \"identity\"\n"
                      "input [ { name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n"
                      "output [ { name: \"OUT\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n%s\n",
                      more);
    add_model(h, name, text);
    free(text);
}

static inline TRITONSERVER_ServerOptions *host_options(const host *h)
{
    TRITONSERVER_ServerOptions *o;
    char *exe = nrd_path_exe_dir();
    char *backends = nrd_xasprintf("%s/../../../backends", exe);

    OK(TRITONSERVER_ServerOptionsNew(&o));
    OK(TRITONSERVER_ServerOptionsSetModelRepositoryPath(o, h->dir));
    OK(TRITONSERVER_ServerOptionsSetBackendDirectory(o, backends));
    OK(TRITONSERVER_ServerOptionsSetStrictModelConfig(o, false));
    OK(TRITONSERVER_ServerOptionsSetExitTimeout(o, 60));
    OK(TRITONSERVER_ServerOptionsSetLogInfo(o, getenv("NRD_TEST_LOG") != NULL));
    free(backends);
    free(exe);
    return o;
}

static inline void host_start(host *h, TRITONSERVER_ServerOptions *o)
{
    o = o ? o : host_options(h);
    OK(TRITONSERVER_ServerNew(&h->server, o));
    OK(TRITONSERVER_ServerOptionsDelete(o));
}

static inline void host_end(host *h)
{
    char *cmd = nrd_xasprintf("rm -rf '%s'", h->dir);
    if (h->server) {
        OK(TRITONSERVER_ServerDelete(h->server));
    }
    OK(TRITONSERVER_ResponseAllocatorDelete(h->allocator));
    assert_int_equal(system(cmd), 0);
    free(cmd);
}

/* ---- one request and what comes back ---- */

typedef struct answers {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    int n; /* responses with content or error */
    bool final, released;
    int32_t *last; /* content of OUT in the last one */
    size_t n_last;
    int64_t dims[4];
    uint64_t n_dims;
    char *error;
    TRITONSERVER_Error_Code code;
    bool has_sequence_params;
} answers;

static inline void answers_init(answers *a)
{
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->mu, NULL);
    pthread_cond_init(&a->cond, NULL);
}

static inline void answers_fini(answers *a)
{
    pthread_mutex_destroy(&a->mu);
    pthread_cond_destroy(&a->cond);
    free(a->last);
    free(a->error);
}

static inline void on_release(TRITONSERVER_InferenceRequest *r, const uint32_t flags, void *userp)
{
    answers *a = userp;
    (void)flags;
    TRITONSERVER_InferenceRequestDelete(r);
    pthread_mutex_lock(&a->mu);
    a->released = true;
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->mu);
}

static inline void on_response(TRITONSERVER_InferenceResponse *r, const uint32_t flags, void *userp)
{
    answers *a = userp;
    pthread_mutex_lock(&a->mu);
    if (r) {
        TRITONSERVER_Error *err = TRITONSERVER_InferenceResponseError(r);
        uint32_t n = 0, n_params = 0;
        a->n++;
        if (err) {
            free(a->error);
            a->error = nrd_xstrdup(TRITONSERVER_ErrorMessage(err));
            a->code = TRITONSERVER_ErrorCode(err);
            TRITONSERVER_ErrorDelete(err);
        }
        TRITONSERVER_InferenceResponseParameterCount(r, &n_params);
        a->has_sequence_params = n_params == 3;
        TRITONSERVER_InferenceResponseOutputCount(r, &n);
        if (!err && n > 0) {
            const char *name;
            TRITONSERVER_DataType dtype;
            const int64_t *shape;
            const void *base;
            size_t size;
            TRITONSERVER_MemoryType type;
            int64_t id;
            void *up;
            TRITONSERVER_InferenceResponseOutput(r, 0, &name, &dtype, &shape, &a->n_dims, &base,
                                                 &size, &type, &id, &up);
            memcpy(a->dims, shape, (a->n_dims < 4 ? a->n_dims : 4) * sizeof *shape);
            free(a->last);
            a->last = malloc(size + 1);
            memcpy(a->last, base, size);
            a->n_last = size / sizeof *a->last;
        }
        TRITONSERVER_InferenceResponseDelete(r);
    }
    a->final = a->final || (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->mu);
}

static inline TRITONSERVER_InferenceRequest *
new_request(host *h, const char *model, answers *a, const int32_t *data, int64_t n, bool batched)
{
    TRITONSERVER_InferenceRequest *r;
    const int64_t shape[2] = {1, n};

    OK(TRITONSERVER_InferenceRequestNew(&r, h->server, model, -1));
    OK(TRITONSERVER_InferenceRequestSetId(r, "42"));
    OK(TRITONSERVER_InferenceRequestAddInput(r, "IN", TRITONSERVER_TYPE_INT32,
                                             batched ? shape : shape + 1, batched ? 2 : 1));
    OK(TRITONSERVER_InferenceRequestAppendInputData(r, "IN", data, (size_t)n * sizeof *data,
                                                    TRITONSERVER_MEMORY_CPU, 0));
    OK(TRITONSERVER_InferenceRequestSetReleaseCallback(r, on_release, a));
    OK(TRITONSERVER_InferenceRequestSetResponseCallback(r, h->allocator, NULL, on_response, a));
    return r;
}

static inline void wait_done(answers *a)
{
    pthread_mutex_lock(&a->mu);
    while (!a->final || !a->released) {
        pthread_cond_wait(&a->cond, &a->mu);
    }
    pthread_mutex_unlock(&a->mu);
}

static inline void infer(host *h, const char *model, answers *a, const int32_t *data, int64_t n,
                         bool batched)
{
    TRITONSERVER_InferenceRequest *r = new_request(h, model, a, data, n, batched);
    OK(TRITONSERVER_ServerInferAsync(h->server, r, NULL));
    wait_done(a);
}

static inline char *message_text(TRITONSERVER_Message *m)
{
    const char *base;
    size_t n;
    OK(TRITONSERVER_MessageSerializeToJson(m, &base, &n));
    char *text = nrd_xstrndup(base, n);
    OK(TRITONSERVER_MessageDelete(m));
    return text;
}

static inline char *metrics_text(host *h)
{
    TRITONSERVER_Metrics *m;
    const char *base;
    size_t n;
    OK(TRITONSERVER_ServerMetrics(h->server, &m));
    OK(TRITONSERVER_MetricsFormatted(m, TRITONSERVER_METRIC_PROMETHEUS, &base, &n));
    char *text = nrd_xstrndup(base, n);
    OK(TRITONSERVER_MetricsDelete(m));
    return text;
}

#endif
