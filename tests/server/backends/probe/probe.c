/* SPDX-License-Identifier: Apache-2.0
 * probe - a backend for tests that tells what it was given.
 *
 * Output SEEN (STRING, one element): JSON with every input of the request ("inputs"), its flags and
 * correlation id, text parameters, its place in the batch and the batch. Output SUM (INT32, one
 * element): the state after this request, which is the state before it plus input IN, for each
 * state that the configuration names (INT32; the first one is answered).
 *
 * Model parameters (all optional):
 *   execute_delay_ms  sleep that long before answering
 *   iterations        give the request back to be run again until it ran that often, with a
 *                     response each time when the model is decoupled; needs a state
 *   fail              text: every request is answered with this error
 *   init_delay_ms     the model takes that long to load
 *   fail_once         path of a file: loading fails while it is not there, and makes it
 *   late_report       figures are reported after the request was released
 *   response_figures  figures of two responses are reported: one with output, one without
 *   log_inputs        write every input into the server's log, for runs that nobody asks about
 */
#include "backends/util/util.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "nereid/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct probe {
    nrd_tb_config cfg;
    uint64_t delay_ms, iterations;
    const char *fail; /* borrowed from cfg */
    bool log_inputs, late_report, response_figures;
} probe;

static uint64_t number(const nrd_tb_config *c, const char *key)
{
    unsigned long long v;
    const char *text = nrd_tb_config_param(c, key);
    return text && nrd_parse_u64(text, &v) ? v : 0;
}

static void pause_ms(uint64_t ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    probe *p = nrd_xcalloc(1, sizeof *p);
    TRITONSERVER_Error *err = nrd_tb_config_load(&p->cfg, model);

    if (err) {
        free(p);
        return err;
    }
    p->delay_ms = number(&p->cfg, "execute_delay_ms");
    p->iterations = number(&p->cfg, "iterations");
    p->fail = nrd_tb_config_param(&p->cfg, "fail");
    p->response_figures = nrd_tb_config_param(&p->cfg, "response_figures") != NULL;
    p->late_report = nrd_tb_config_param(&p->cfg, "late_report") != NULL;
    p->log_inputs = nrd_tb_config_param(&p->cfg, "log_inputs") != NULL;
    pause_ms(number(&p->cfg, "init_delay_ms"));
    NRD_TB_TRY(TRITONBACKEND_ModelSetState(model, p));
    const char *ignored = nrd_tb_config_param(&p->cfg, "ignored_input");
    if (ignored) {
        NRD_TB_TRY(nrd_backend_ignore_input(model, ignored, TRITONSERVER_TYPE_BOOL));
    }
    const char *mark = nrd_tb_config_param(&p->cfg, "fail_once");
    if (mark && !nrd_path_exists(mark)) {
        nrd_error_free(nrd_file_write(mark, "", 0));
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, "probe: not this time");
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    void *state = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &state));
    if (state) {
        nrd_tb_config_fini(&((probe *)state)->cfg);
        free(state);
    }
    return NULL;
}

/* ---- what a request looks like ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nrd_tb_tensor *)a)->name, ((const nrd_tb_tensor *)b)->name);
}

static void put_tensor(nrd_str *out, const nrd_tb_tensor *t)
{
    nrd_str_printf(out, "{\"type\":\"%s\",\"shape\":[", TRITONSERVER_DataTypeString(t->dtype));
    for (uint32_t i = 0; i < t->n_dims; i++) {
        nrd_str_printf(out, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    }
    nrd_str_puts(out, "],\"data\":[");
    if (t->dtype == TRITONSERVER_TYPE_BYTES) {
        size_t at = 0, n;
        const char *s;
        bool bad = false;
        for (int64_t i = 0; i < t->n_elements && nrd_tb_next_string(t, &at, &s, &n, &bad); i++) {
            char *text = nrd_xstrndup(s, n);
            nrd_str_puts(out, i ? "," : "");
            nrd_json_put_cstr(out, text);
            free(text);
        }
    } else {
        for (int64_t i = 0; i < t->n_elements && i < 16; i++) {
            double v = 0;
            nrd_tb_get_f64(t, i, &v);
            nrd_str_printf(out, "%s%.17g", i ? "," : "", v);
        }
    }
    nrd_str_puts(out, "]}");
}

static TRITONSERVER_Error *describe(nrd_str *out, TRITONBACKEND_Request *r, uint32_t place,
                                    uint32_t count)
{
    nrd_tb_inputs in;
    uint32_t flags = 0, n_outputs = 0;
    uint64_t id = 0;
    const char *text = "";

    NRD_TB_TRY(nrd_tb_inputs_read(&in, r));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestFlags(r, &flags));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestOutputCount(r, &n_outputs));
    TRITONSERVER_Error *err = TRITONBACKEND_RequestCorrelationId(r, &id);
    if (err) {
        TRITONSERVER_ErrorDelete(err);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestCorrelationIdString(r, &text));
    }
    nrd_str_printf(out, "{\"place\":%u,\"batch\":%u,\"flags\":%u,\"outputs\":%u,\"id\":%llu,",
                   place, count, flags, n_outputs, (unsigned long long)id);
    nrd_str_puts(out, "\"id_text\":");
    nrd_json_put_cstr(out, text);
    nrd_str_puts(out, ",\"inputs\":{");
    qsort(in.t, in.n, sizeof *in.t, by_name); /* servers have them in different orders */
    for (uint32_t i = 0; i < in.n; i++) {
        nrd_str_puts(out, i ? "," : "");
        nrd_json_put_cstr(out, in.t[i].name);
        nrd_str_putc(out, ':');
        put_tensor(out, &in.t[i]);
    }
    nrd_str_puts(out, "}}");
    nrd_tb_inputs_fini(&in);
    return NULL;
}

/* Text parameters of the request as a further member; nothing when there are none. */
static void describe_parameters(nrd_str *seen, TRITONBACKEND_Request *r)
{
    uint32_t n = 0;

    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestParameterCount(r, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key = "";
        TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_INT;
        const void *value = NULL;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestParameter(r, i, &key, &type, &value));
        if (type == TRITONSERVER_PARAMETER_STRING) {
            seen->len--; /* the closing brace */
            nrd_str_putc(seen, ',');
            nrd_json_put_cstr(seen, key);
            nrd_str_putc(seen, ':');
            nrd_json_put_cstr(seen, value);
            nrd_str_putc(seen, '}');
        }
    }
}

/* ---- state ---- */

static int32_t first_value(const nrd_tb_inputs *in, const char *name)
{
    int64_t v = 0;
    const nrd_tb_tensor *t = nrd_tb_find(in, name);
    if (t) {
        nrd_tb_get_i64(t, 0, &v);
    }
    return (int32_t)v;
}

static TRITONSERVER_Error *add_to_states(const probe *p, TRITONBACKEND_Request *r, int32_t *out)
{
    const nrd_json *states = nrd_json_get(nrd_json_get(p->cfg.root, "sequence_batching"), "state");
    nrd_tb_inputs in;
    TRITONSERVER_Error *err = nrd_tb_inputs_read(&in, r);

    *out = 0;
    for (size_t i = 0; !err && i < nrd_json_len(states); i++) {
        const nrd_json *s = nrd_json_at(states, i);
        const nrd_tb_tensor *old = nrd_tb_find(&in, nrd_json_get_str(s, "input_name", ""));
        TRITONBACKEND_State *state;
        TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
        int64_t type_id = 0;
        void *buffer = NULL;
        if (!old) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "probe: no state input");
            break;
        }
        /* the old state may be in the buffer that is written, so its first value is taken before */
        int32_t value = first_value(&in, old->name) + (p->iterations ? 1 : first_value(&in, "IN"));
        err = TRITONBACKEND_StateNew(&state, r, nrd_json_get_str(s, "output_name", ""), old->dtype,
                                     old->shape, old->n_dims);
        err = err ? err : TRITONBACKEND_StateBuffer(state, &buffer, old->bytes, &type, &type_id);
        if (!err) {
            memset(buffer, 0, old->bytes);
            memcpy(buffer, &value, old->bytes < sizeof value ? old->bytes : sizeof value);
            err = TRITONBACKEND_StateUpdate(state);
        }
        *out = i == 0 ? value : *out;
    }
    nrd_tb_inputs_fini(&in);
    return err;
}

/* ---- execution ---- */

static TRITONSERVER_Error *fill(TRITONBACKEND_Response *response, TRITONBACKEND_Request *r,
                                const probe *p, const nrd_str *seen, int32_t sum)
{
    const int64_t shape[2] = {1, 1};
    const uint32_t n_dims = p->cfg.max_batch_size > 0 ? 2 : 1;
    uint32_t len = (uint32_t)seen->len;
    void *to;

    if (nrd_tb_wants(r, "SEEN")) {
        NRD_TB_TRY(nrd_tb_output(response, "SEEN", TRITONSERVER_TYPE_BYTES, shape, n_dims,
                                 sizeof len + len, &to));
        memcpy(to, &len, sizeof len);
        memcpy((char *)to + sizeof len, seen->data, len);
    }
    if (nrd_tb_wants(r, "SUM")) {
        NRD_TB_TRY(nrd_tb_output(response, "SUM", TRITONSERVER_TYPE_INT32, shape, n_dims,
                                 sizeof sum, &to));
        memcpy(to, &sum, sizeof sum);
    }
    return NULL;
}

static TRITONSERVER_Error *report_response(TRITONBACKEND_ModelInstance *instance,
                                           TRITONBACKEND_ResponseFactory *factory, uint64_t start,
                                           uint64_t output_start)
{
    TRITONBACKEND_ModelInstanceResponseStatistics *s = NULL;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&s));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(s, instance));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(s, factory));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(s, start));
    if (output_start) {
        NRD_TB_TRY(
            TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(s, output_start));
    }
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(s, nrd_now_ns()));
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceReportResponseStatistics(s));
    return TRITONBACKEND_ModelInstanceResponseStatisticsDelete(s);
}

static void report_responses(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *r,
                             uint64_t start)
{
    TRITONBACKEND_ResponseFactory *factory = NULL;

    nrd_tb_log_error(TRITONBACKEND_ResponseFactoryNew(&factory, r), "probe: factory");
    nrd_tb_log_error(report_response(instance, factory, start, nrd_now_ns()), "probe: figures");
    nrd_tb_log_error(report_response(instance, factory, start, 0), "probe: figures");
    nrd_tb_log_error(TRITONBACKEND_ResponseFactoryDelete(factory), "probe: factory");
}

static void answer(const probe *p, TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *r,
                   uint32_t place, uint32_t count, uint64_t start)
{
    TRITONBACKEND_Response *response = NULL;
    nrd_str seen = {0};
    int32_t sum = 0;
    TRITONSERVER_Error *err = describe(&seen, r, place, count);
    describe_parameters(&seen, r);

    if (p->log_inputs) {
        TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__,
                                                         nrd_str_cstr(&seen)));
    }
    err = err ? err : add_to_states(p, r, &sum);
    if (!err && p->fail) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s", p->fail);
    }
    const bool again = !err && p->iterations && (uint64_t)sum < p->iterations;
    if (!again || p->cfg.decoupled) {
        nrd_tb_log_error(TRITONBACKEND_ResponseNew(&response, r), "probe: response");
        err = err ? err : fill(response, r, p, &seen, sum);
        const bool ok = !err;
        nrd_tb_log_error(TRITONBACKEND_ResponseSend(
                             response, again ? 0 : TRITONSERVER_RESPONSE_COMPLETE_FINAL, err),
                         "probe: sending");
        TRITONSERVER_ErrorDelete(err);
        uint64_t now = nrd_now_ns();
        if (!p->late_report) {
            nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportStatistics(instance, r, ok, start,
                                                                         start, now, now),
                             "probe: statistics");
        }
    }
    nrd_str_fini(&seen);
    if (p->response_figures) {
        report_responses(instance, r, start);
    }
    err = TRITONBACKEND_RequestRelease(r, again ? TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
                                                : TRITONSERVER_REQUEST_RELEASE_ALL);
    if (err && again) { /* it stays ours: the sequence is over */
        nrd_tb_send_error(r, err);
        err = TRITONBACKEND_RequestRelease(r, TRITONSERVER_REQUEST_RELEASE_ALL);
    }
    nrd_tb_log_error(err, "probe: releasing");
    if (p->late_report && !again) {
        uint64_t now = nrd_now_ns();
        nrd_tb_log_error(
            TRITONBACKEND_ModelInstanceReportStatistics(instance, r, true, start, start, now, now),
            "probe: statistics");
    }
}

/* Tells in the verbose log that an execution begins, for whoever must know when. */
static void log_begin(TRITONBACKEND_Model *model, TRITONBACKEND_ModelInstance *instance, uint32_t n)
{
    char line[256];
    const char *model_name = "", *name = "";

    if (!TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_VERBOSE)) {
        return;
    }
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelName(model, &model_name));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelInstanceName(instance, &name));
    snprintf(line, sizeof line, "model %s, instance %s, executing %u requests", model_name, name, n);
    TRITONSERVER_ErrorDelete(
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_VERBOSE, __FILE__, __LINE__, line));
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    uint64_t start = nrd_now_ns();
    TRITONBACKEND_Model *model;
    void *state;

    NRD_TB_TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &state));
    probe *p = state;
    log_begin(model, instance, request_count);
    pause_ms(p->delay_ms);
    for (uint32_t i = 0; i < request_count; i++) {
        answer(p, instance, requests[i], i, request_count, start);
    }
    uint64_t now = nrd_now_ns();
    nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, request_count,
                                                                      start, start, now, now),
                     "probe: statistics");
    return NULL;
}
