/* SPDX-License-Identifier: Apache-2.0
 * hearing - a backend for tests that answers as a speech model would: with the ids that its configuration lists.
 *
 * Parameters of the model:
 *   answers  "IDS/LOG_PROB;IDS/LOG_PROB/NO_SPEECH_PROB…": the first request gets the first, and so on; behind the last one, the last.
 *            An empty list of ids is an error
 *   log      a file that gets a line of JSON for each request: what came
 */
#include "backends/util/util.h"
#include "base/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct hearing {
    nrd_tb_config config;
    const char *next;
    FILE *log;
} hearing;

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    hearing *h = nrd_xcalloc(1, sizeof *h);
    NRD_TB_TRY(nrd_tb_config_load(&h->config, model));
    h->next = nrd_tb_config_param(&h->config, "answers");
    h->log = fopen(nrd_tb_config_param(&h->config, "log"), "w");
    return TRITONBACKEND_ModelSetState(model, h);
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    void *state = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &state));
    hearing *h = state;
    fclose(h->log);
    nrd_tb_config_fini(&h->config);
    free(h);
    return NULL;
}

static void log_numbers(FILE *f, const char *name, const nrd_tb_tensor *t, int64_t most)
{
    int64_t n = t ? t->n_elements : 0;
    fprintf(f, ", \"%s\": [", name);
    for (int64_t i = 0; i < n && i < most; i++) {
        double v = 0;
        if (t->dtype == TRITONSERVER_TYPE_FP16) {
            uint16_t half;
            memcpy(&half, t->data + 2 * i, sizeof half);
            v = (double)nrd_f16_to_f32(half);
        } else if (!nrd_tb_get_f64(t, i, &v)) {
            int64_t whole = 0;
            nrd_tb_get_i64(t, i, &whole);
            v = (double)whole;
        }
        fprintf(f, "%s%.9g", i ? ", " : "", v);
    }
    fputs("]", f);
}

static void log_request(const hearing *h, const nrd_tb_inputs *in, TRITONBACKEND_Request *r)
{
    const nrd_tb_tensor *features = nrd_tb_find(in, "encoder_input_features");
    uint32_t n = 0;

    fprintf(h->log, "{\"shape\": [");
    for (uint32_t i = 0; features && i < features->n_dims; i++) {
        fprintf(h->log, "%s%" PRId64, i ? ", " : "", features->shape[i]);
    }
    fputs("]", h->log);
    log_numbers(h->log, "features", features, 8);
    static const char *const names[] = {"input_ids", "encoder_output_lengths", "request_output_len", "end_id", "temperature",
                                        "runtime_top_k", "random_seed"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        log_numbers(h->log, names[i], nrd_tb_find(in, names[i]), 1000);
    }
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestParameterCount(r, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key = "";
        TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_BOOL;
        const void *value = NULL;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestParameter(r, i, &key, &type, &value));
        if (!strcmp(key, "logit_bias")) {
            fprintf(h->log, ", \"logit_bias\": %s", (const char *)value);
        } else if (type == TRITONSERVER_PARAMETER_INT) {
            fprintf(h->log, ", \"%s\": %" PRId64, key, *(const int64_t *)value);
        }
    }
    fputs("}\n", h->log);
    fflush(h->log);
}

static TRITONSERVER_Error *put(TRITONBACKEND_Response *response, hearing *h)
{
    const size_t n = strcspn(h->next, ";");
    const char *p = h->next, *end = p + n;
    int32_t ids[512], length = 0;
    const int64_t shape[] = {1, 1, 512}, one[] = {1, 1};
    char *rest;
    void *to;

    while (p < end && *p != '/' && length < 512) {
        ids[length++] = (int32_t)strtol(p, &rest, 10);
        p = rest;
    }
    rest = (char *)(uintptr_t)p;
    const float log_prob = p < end ? strtof(p + 1, &rest) : 0;
    if (*rest == '/') {
        NRD_TB_TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, "no_speech_prob", strtod(rest + 1, NULL)));
    }
    h->next += *end ? n + 1 : 0;
    if (length == 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "hearing: nothing was heard");
    }
    memset(ids + length, 0, (512 - (size_t)length) * sizeof *ids);
    NRD_TB_TRY(nrd_tb_output(response, "output_ids", TRITONSERVER_TYPE_INT32, shape, 3, sizeof ids, &to));
    memcpy(to, ids, sizeof ids);
    NRD_TB_TRY(nrd_tb_output(response, "sequence_length", TRITONSERVER_TYPE_INT32, one, 2, sizeof length, &to));
    memcpy(to, &length, sizeof length);
    NRD_TB_TRY(nrd_tb_output(response, "cum_log_probs", TRITONSERVER_TYPE_FP32, one, 2, sizeof log_prob, &to));
    memcpy(to, &log_prob, sizeof log_prob);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    TRITONBACKEND_Model *model = NULL;
    void *state = NULL;
    NRD_TB_TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    NRD_TB_TRY(TRITONBACKEND_ModelState(model, &state));
    for (uint32_t i = 0; i < request_count; i++) {
        TRITONBACKEND_Response *response = NULL;
        nrd_tb_inputs in;
        nrd_tb_log_error(TRITONBACKEND_ResponseNew(&response, requests[i]), "hearing: response");
        TRITONSERVER_Error *err = nrd_tb_inputs_read(&in, requests[i]);
        if (!err) {
            log_request(state, &in, requests[i]);
            err = put(response, state);
            nrd_tb_inputs_fini(&in);
        }
        nrd_tb_log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err), "hearing: sending");
        TRITONSERVER_ErrorDelete(err);
        nrd_tb_log_error(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL), "hearing: releasing");
    }
    return NULL;
}
