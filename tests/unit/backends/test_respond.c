/* SPDX-License-Identifier: Apache-2.0
 * The end of a request of tensorrt_llm, in a server that has no memory for responses: its client hears it. */
#include "backends/tensorrtllm/respond.c"
#include "backends/util/answer.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* ---- a server that makes so many responses, and notes what is sent ---- */

static struct {
    int n_memory; /* responses that there is memory for */
    int n_sent, n_errors, n_final, n_released, n_factories;
    nrd_finish_reason why; /* the last request ended */
} host;

static char a_response, a_factory, an_error;
#define ERROR ((TRITONSERVER_Error *)(void *)&an_error)
#define FACTORY ((TRITONBACKEND_ResponseFactory *)(void *)&a_factory)

TRITONSERVER_Error *TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response **response,
                                                         TRITONBACKEND_ResponseFactory *factory)
{
    assert_ptr_equal(factory, FACTORY);
    if (host.n_memory == 0) {
        return ERROR;
    }
    host.n_memory--;
    *response = (TRITONBACKEND_Response *)(void *)&a_response;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *request)
{
    (void)request;
    return TRITONBACKEND_ResponseNewFromFactory(response, FACTORY);
}

TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response, const uint32_t flags,
                                               TRITONSERVER_Error *error)
{
    assert_non_null(response);
    host.n_sent++;
    host.n_errors += error != NULL;
    host.n_final += (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory *factory,
                                                           const uint32_t flags)
{
    assert_ptr_equal(factory, FACTORY);
    host.n_final += (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *factory)
{
    assert_ptr_equal(factory, FACTORY);
    host.n_factories++;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags)
{
    (void)request;
    (void)flags;
    host.n_released++;
    return NULL;
}

TRITONSERVER_Error *nrd_tb_output(TRITONBACKEND_Response *response, const char *name, TRITONSERVER_DataType dtype,
                                  const int64_t *shape, uint32_t n_dims, size_t bytes, void **out_buffer)
{
    (void)response, (void)name, (void)dtype, (void)shape, (void)n_dims, (void)bytes;
    *out_buffer = NULL;
    return ERROR;
}

TRITONSERVER_Error *nrd_tb_errorf(TRITONSERVER_Error_Code code, const char *fmt, ...)
{
    (void)code, (void)fmt;
    return ERROR;
}

/* ---- what else is called; of no interest here ---- */

#define QUIET(name, ...)                                                                           \
    TRITONSERVER_Error *name(__VA_ARGS__)                                                          \
    {                                                                                              \
        return NULL;                                                                               \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter"
QUIET(TRITONBACKEND_ModelInstanceReportStatistics, TRITONBACKEND_ModelInstance *i, TRITONBACKEND_Request *r, const bool ok,
      const uint64_t a, const uint64_t b, const uint64_t c, const uint64_t d)
QUIET(TRITONBACKEND_ModelInstanceReportBatchStatistics, TRITONBACKEND_ModelInstance *i, const uint64_t n, const uint64_t a,
      const uint64_t b, const uint64_t c, const uint64_t d)
QUIET(TRITONBACKEND_RequestOutputCount, TRITONBACKEND_Request *r, uint32_t *n)
QUIET(TRITONBACKEND_RequestOutputName, TRITONBACKEND_Request *r, const uint32_t i, const char **name)
QUIET(TRITONBACKEND_ResponseSetBoolParameter, TRITONBACKEND_Response *r, const char *name, const bool v)
QUIET(TRITONBACKEND_ResponseSetIntParameter, TRITONBACKEND_Response *r, const char *name, const int64_t v)
QUIET(TRITONBACKEND_ResponseSetStringParameter, TRITONBACKEND_Response *r, const char *name, const char *v)
void nrd_tb_log_error(TRITONSERVER_Error *err, const char *what) {}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *err) {}
uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType t) { return 4; }
bool nrd_tb_wants(TRITONBACKEND_Request *r, const char *name) { return false; }
void nrd_llm_metrics_request(nrd_llm_metrics *m, int64_t a, int64_t b, double ms, nrd_finish_reason why)
{
    host.why = why;
}
void nrd_llm_metrics_phases(nrd_llm_metrics *m, const nrd_perf_metrics *p) {}
void nrd_llm_metrics_first_token(nrd_llm_metrics *m, double ms) {}
void nrd_llm_metrics_next_token(nrd_llm_metrics *m, double ms) {}
void nrd_llm_unclaim(nrd_llm_request *q) {}
void nrd_llm_count_tokens(nrd_llm_request *q, int64_t n) {}

/* ---- the tests ---- */

static nrd_llm_instance instance = {.mu = PTHREAD_MUTEX_INITIALIZER};

static nrd_llm_request *request_of(int32_t n_rows)
{
    nrd_llm_request *q = calloc(1, sizeof *q);
    host = (__typeof__(host)){0};
    q->instance = &instance;
    q->factory = FACTORY;
    q->rows = calloc((size_t)n_rows, sizeof *q->rows);
    q->n_rows = n_rows;
    for (int32_t i = 0; i < n_rows; i++) {
        q->rows[i].request = q;
    }
    instance.requests = q;
    return q;
}

/* Two rows end with errors; the first takes what memory there is. */
static void the_last_answer_ends_the_request(int n_memory, int n_sent)
{
    nrd_llm_request *q = request_of(2);

    host.n_memory = n_memory;
    nrd_llm_respond_error(&instance, &q->rows[0], ERROR);
    assert_int_equal(host.n_final, 0);
    nrd_llm_respond_error(&instance, &q->rows[1], ERROR);
    assert_int_equal(host.n_sent, n_sent);
    assert_int_equal(host.n_errors, n_sent);
    assert_int_equal(host.n_final, 1);
    assert_int_equal(host.n_released, 1);
    assert_int_equal(host.n_factories, 1);
    assert_int_equal(host.why, NRD_FINISH_ERROR);
    assert_null(instance.requests);
}

static void with_memory_it_is_a_response(void **state)
{
    (void)state;
    the_last_answer_ends_the_request(2, 2);
}

static void without_memory_its_end_is_told_alone(void **state)
{
    (void)state;
    the_last_answer_ends_the_request(1, 1);
    the_last_answer_ends_the_request(0, 0);
}

static void send_last_tells_the_end_once(void **state)
{
    (void)state;
    for (int n_memory = 0; n_memory <= 1; n_memory++) {
        host = (__typeof__(host)){.n_memory = n_memory};
        nrd_tb_send_last(FACTORY, ERROR);
        assert_int_equal(host.n_sent, n_memory);
        assert_int_equal(host.n_final, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_memory_it_is_a_response),
        cmocka_unit_test(without_memory_its_end_is_told_alone),
        cmocka_unit_test(send_last_tells_the_end_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
