/* SPDX-License-Identifier: Apache-2.0
 * An inference from its request to its last response; output.c has what becomes of outputs. */
#include "frontends/common/infer.h"

#include "base/clock.h"
#include "base/number.h"
#include "nereid/llm_tensors.h"
#include "nereid/server.h"

#include <string.h>
#include <strings.h>

#pragma weak nrd_server_lend_thread /* another core may lack it */

/* A region of shared memory that an input borrows. */
struct nrd_infer_use {
    struct nrd_infer_use *next;
    nrd_shm_region *region;
};

/* ---- life ---- */

void nrd_infer_init(nrd_infer *i, nrd_front *front, void (*destroy)(nrd_infer *i))
{
    memset(i, 0, sizeof *i);
    i->front = front;
    i->destroy = destroy;
    nrd_arena_init(&i->arena);
    atomic_init(&i->submitted, false);
    atomic_init(&i->refs, 1);
    atomic_init(&i->lost, NULL);
    atomic_init(&i->awaited, 2);
}

void nrd_infer_ref(nrd_infer *i)
{
    atomic_fetch_add_explicit(&i->refs, 1, memory_order_relaxed);
}

static void let_inputs_go(nrd_infer *i)
{
    for (struct nrd_infer_use *u = i->uses; u; u = u->next) {
        nrd_error *err = nrd_shm_check(u->region);
        if (err) {
            nrd_error_free(atomic_exchange(&i->lost, err));
        }
        nrd_shm_put(i->front->shm, u->region);
        u->region = NULL;
    }
}

nrd_error *nrd_infer_check_regions(nrd_infer *i)
{
    for (const nrd_infer_output *o = i->outputs; o; o = o->next) {
        NRD_TRY(nrd_shm_check(o->region));
    }
    return atomic_exchange(&i->lost, NULL);
}

void nrd_infer_let_go(nrd_infer *i)
{
    for (nrd_infer_output *o = i->outputs; o; o = o->next) {
        nrd_shm_put(i->front->shm, o->region);
        o->region = NULL;
    }
}

void nrd_infer_unref(nrd_infer *i)
{
    if (!i || atomic_fetch_sub_explicit(&i->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (i->request) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceRequestDelete(i->request)));
    }
    nrd_infer_let_go(i);
    let_inputs_go(i);
    nrd_error_free(atomic_load(&i->lost));
    if (i->counted) {
        nrd_limit_give(&i->front->limit);
    }
    nrd_quota_give(i->front->quotas, i->quota, nrd_claim_tokens(&i->claim));
    nrd_arena_fini(&i->arena);
    nrd_claim_give_all(&i->claim);
    nrd_claim_give_all(&i->tensors);
    nrd_trace_unref(i->trace);
    i->destroy(i);
}

nrd_error *nrd_infer_room(nrd_infer *i, size_t bytes, const char *what, void *out_pointer)
{
    NRD_TRY(nrd_claim_bytes(&i->claim, bytes, what));
    void *p = nrd_arena_alloc(&i->arena, bytes ? bytes : 1);
    memcpy(out_pointer, &p, sizeof p);
    return p ? NULL : nrd_error_no_memory();
}

nrd_refusal nrd_infer_admit(nrd_infer *i, int key)
{
    nrd_quotas *q = i->front->quotas;
    const nrd_refusal r = nrd_quota_ask(q, key);

    if (nrd_quotas_count_tokens(q, key)) {
        nrd_claim_open(&i->claim);
    }
    return r.why ? r : nrd_quota_take(q, key, &i->quota);
}

nrd_error *nrd_infer_open(nrd_infer *i, const char *model, int64_t version)
{
    uint32_t flags = 0;
    NRD_TRY(nrd_from_triton(TRITONSERVER_ServerModelTransactionProperties(
        i->front->core, model, version, &flags, NULL)));
    i->decoupled = (flags & TRITONSERVER_TXN_DECOUPLED) != 0;
    NRD_TRY(nrd_limit_take(&i->front->limit));
    i->counted = true;
    return nrd_from_triton(
        TRITONSERVER_InferenceRequestNew(&i->request, i->front->core, model, version));
}

void nrd_infer_trace(nrd_infer *i, const char *model, const char *traceparent, size_t n)
{
    i->trace = nrd_tracer_sample(i->front->tracer, model, traceparent, n);
}

/* ---- parameters ---- */

nrd_infer_param nrd_infer_param_of(const char *name)
{
    static const struct {
        const char *name;
        nrd_infer_param what;
    } known[] = {{"sequence_id", NRD_INFER_SEQUENCE_ID},
                 {"sequence_start", NRD_INFER_SEQUENCE_START},
                 {"sequence_end", NRD_INFER_SEQUENCE_END},
                 {"priority", NRD_INFER_PRIORITY},
                 {"timeout", NRD_INFER_TIMEOUT}};
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        if (strcmp(name, known[k].name) == 0) {
            return known[k].what;
        }
    }
    return strncmp(name, "triton_", 7) == 0 ? NRD_INFER_RESERVED : NRD_INFER_CUSTOM;
}

static TRITONSERVER_Error *set_custom(TRITONSERVER_InferenceRequest *r, const char *name,
                                      nrd_infer_value value)
{
    switch (value.type) {
    case NRD_VALUE_BOOL:
        return TRITONSERVER_InferenceRequestSetBoolParameter(r, name, value.v.b);
    case NRD_VALUE_INT:
        return TRITONSERVER_InferenceRequestSetIntParameter(r, name, value.v.i);
    case NRD_VALUE_UINT:
        return TRITONSERVER_InferenceRequestSetDoubleParameter(r, name, (double)value.v.u);
    case NRD_VALUE_REAL:
        return TRITONSERVER_InferenceRequestSetDoubleParameter(r, name, value.v.d);
    case NRD_VALUE_TEXT:
        break;
    }
    return TRITONSERVER_InferenceRequestSetStringParameter(r, name, value.v.s);
}

nrd_error *nrd_infer_whose(nrd_infer *i, int key)
{
    char salt[33];

    if (key < 0) {
        return NULL;
    }
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetIntParameter(i->request, NRD_LLM_FLOW, 1 + (int64_t)key)));
    if (!i->front->options->cache_salt_per_key) {
        return NULL;
    }
    nrd_keys_salt(i->front->keys, key, salt);
    return nrd_from_triton(
        TRITONSERVER_InferenceRequestSetStringParameter(i->request, NRD_LLM_CACHE_SALT_OF_KEY, salt));
}

nrd_error *nrd_infer_set(nrd_infer *i, nrd_infer_param what, const char *name,
                         nrd_infer_value value)
{
    TRITONSERVER_InferenceRequest *r = i->request;
    switch (what) {
    case NRD_INFER_SEQUENCE_ID:
        return nrd_from_triton(
            value.type == NRD_VALUE_TEXT
                ? TRITONSERVER_InferenceRequestSetCorrelationIdString(r, value.v.s)
                : TRITONSERVER_InferenceRequestSetCorrelationId(r, value.v.u));
    case NRD_INFER_SEQUENCE_START:
        i->flags |= value.v.b ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_START : 0u;
        return NULL;
    case NRD_INFER_SEQUENCE_END:
        i->flags |= value.v.b ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_END : 0u;
        return NULL;
    case NRD_INFER_PRIORITY:
        return nrd_from_triton(TRITONSERVER_InferenceRequestSetPriorityUInt64(r, value.v.u));
    case NRD_INFER_TIMEOUT:
        return nrd_from_triton(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(r, value.v.u));
    case NRD_INFER_CUSTOM:
    case NRD_INFER_RESERVED:
        break;
    }
    if (!strcmp(name, NRD_LLM_ADAPTER_DIR)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the parameter '%s' is reserved: folders of this machine are not named by "
                          "clients", name);
    }
    return nrd_from_triton(set_custom(r, name, value));
}

/* Names that say what a request is, which a header may not: some of them come from front ends alone. */
static bool is_reserved(const char *key)
{
    return nrd_infer_param_of(key) != NRD_INFER_CUSTOM || !strncasecmp(key, "triton_", 7) || !strcmp(key, "headers") ||
           !strcmp(key, "binary_data_output");
}

nrd_error *nrd_infer_forward(nrd_infer *i, const nrd_header_pattern *pattern, const char *name,
                             size_t name_n, const char *value, size_t value_n)
{
    if (!pattern) {
        return NULL;
    }
    const char *key = nrd_arena_strndup(&i->arena, name, name_n);
    if (!key) {
        return nrd_error_no_memory();
    }
    if (!nrd_header_pattern_matches(pattern, key, name_n) || !strcmp(key, "triton_grpc_error")) {
        return NULL; /* the latter is for the endpoint itself */
    }
    if (is_reserved(key)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Header '%s' is reserved for Triton usage and cannot be forwarded.", key);
    }
    const char *text = nrd_arena_strndup(&i->arena, value, value_n);
    return text ? nrd_from_triton(
                      TRITONSERVER_InferenceRequestSetStringParameter(i->request, key, text))
                : nrd_error_no_memory();
}

/* ---- deadlines ---- */

void nrd_infer_end_within(nrd_infer *i, uint64_t us)
{
    const uint64_t now = nrd_now_ns();
    const uint64_t end = us < (UINT64_MAX - now) / 1000u ? now + us * 1000u : 0;

    if (end && (i->end_by_ns == 0 || end < i->end_by_ns)) {
        i->end_by_ns = end;
    }
}

static bool parse_number(const char *text, double *out)
{
    char *end;
    *out = nrd_number_read(text, &end);
    return end != text && !*end;
}

nrd_error *nrd_infer_deadline(nrd_infer *i, const char *value, size_t n)
{
    char text[32];
    double at = 0;

    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t')) {
        n--;
    }
    if (n < sizeof text) {
        memcpy(text, value, n);
        text[n] = 0;
    }
    if (n >= sizeof text || !parse_number(text, &at) || !(at >= 0 && at <= 1e11)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "x-request-deadline must be a time in seconds since 1970, got '%.*s'",
                          (int)(n < 40 ? n : 40), value);
    }
    const double left_us = at * 1e6 - (double)nrd_wall_us();
    nrd_infer_end_within(i, left_us > 1 ? (uint64_t)left_us : 1);
    return NULL;
}

/* The core counts from now on. */
static nrd_error *set_timeout(nrd_infer *i)
{
    uint64_t timeout_us = 0;
    const uint64_t now = nrd_now_ns();

    if (i->end_by_ns == 0) {
        return NULL;
    }
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestTimeoutMicroseconds(i->request, &timeout_us)));
    const uint64_t left_us = i->end_by_ns > now + 1000u ? (i->end_by_ns - now) / 1000u : 1;
    return timeout_us && timeout_us <= left_us
               ? NULL
               : nrd_from_triton(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(i->request, left_us));
}

/* ---- inputs ---- */

nrd_error *nrd_infer_add_input(nrd_infer *i, const char *name, TRITONSERVER_DataType type,
                               const int64_t *shape, size_t n_dims)
{
    return nrd_from_triton(
        TRITONSERVER_InferenceRequestAddInput(i->request, name, type, shape, n_dims));
}

nrd_error *nrd_infer_append(nrd_infer *i, const char *name, const void *base, size_t n)
{
    return nrd_from_triton(TRITONSERVER_InferenceRequestAppendInputData(
        i->request, name, base, n, TRITONSERVER_MEMORY_CPU, 0));
}

bool nrd_infer_is_copied(const nrd_infer *i, const nrd_shm_region *region)
{
    return nrd_shm_is_cuda(region) || (region && i->front->options->cache_config.n > 0);
}

nrd_error *nrd_infer_append_shared(nrd_infer *i, const char *name, const nrd_infer_range *range)
{
    struct nrd_infer_use *use = nrd_arena_alloc(&i->arena, sizeof *use);
    void *base;
    if (!use) {
        return nrd_error_no_memory();
    }
    NRD_TRY(nrd_shm_get(i->front->shm, range->region, range->offset, range->size, &use->region,
                        &base));
    use->next = i->uses;
    i->uses = use;
    if (nrd_infer_is_copied(i, use->region)) {
        void *copy;
        NRD_TRY(nrd_infer_room(i, (size_t)range->size + 1, "an input", &copy));
        NRD_TRY(nrd_shm_read(use->region, base, copy, (size_t)range->size));
        base = copy;
    }
    return nrd_infer_append(i, name, base, (size_t)range->size);
}

nrd_error *nrd_infer_add_copy(nrd_infer *i, const char *name, TRITONSERVER_DataType type,
                              const int64_t *shape, size_t n_dims, const void *data, size_t n)
{
    char *copy;
    NRD_TRY(nrd_infer_room(i, n, "an input", &copy));
    memcpy(copy, data, n);
    NRD_TRY(nrd_infer_add_input(i, name, type, shape, n_dims));
    return nrd_infer_append(i, name, copy, n);
}

/* ---- to the core and back ---- */

static void hand_on(nrd_infer *i, TRITONSERVER_InferenceResponse *response, bool final)
{
    if (i->trace) {
        nrd_trace_stamp(i->trace, "INFER_RESPONSE_COMPLETE", nrd_now_ns());
    }
    i->on_response(i, response, final);
}

static void on_release(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    nrd_infer *i = userp;
    (void)request;
    if (!(flags & TRITONSERVER_REQUEST_RELEASE_ALL)) {
        return;
    }
    if (i->uses) {
        let_inputs_go(i);
        if (atomic_fetch_sub(&i->awaited, 1) == 1) {
            hand_on(i, i->last, true);
        }
    }
    nrd_infer_unref(i);
}

static void on_complete(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
    nrd_infer *i = userp;
    const bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    if (final && i->uses) {
        i->last = response;
        if (atomic_fetch_sub(&i->awaited, 1) != 1) {
            return; /* the release hands it on */
        }
    }
    hand_on(i, response, final);
}

nrd_error *nrd_infer_claim_answer(nrd_infer *i, size_t bytes)
{
    if (bytes >= NRD_CLAIM_LEAST) {
        nrd_claim_follow(&i->claim, i->request);
    }
    return nrd_claim_bytes(&i->claim, bytes, "the JSON of its answer");
}

void nrd_infer_lend_thread(void)
{
    if (nrd_server_lend_thread) {
        nrd_server_lend_thread(true);
    }
}

nrd_error *nrd_infer_submit(nrd_infer *i)
{
    NRD_TRY(set_timeout(i));
    if (i->flags) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetFlags(i->request, i->flags)));
    }
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_InferenceRequestSetReleaseCallback(i->request, on_release, i)));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetResponseCallback(
        i->request, i->front->allocator, i, on_complete, i)));
    nrd_claim_join_core(&i->claim, i->request);
    /* the release, the final response */
    atomic_fetch_add_explicit(&i->refs, 2, memory_order_relaxed);
    nrd_error *err = nrd_from_triton(
        TRITONSERVER_ServerInferAsync(i->front->core, i->request, nrd_trace_of(i->trace)));
    if (err) {
        atomic_fetch_sub(&i->refs, 2);
    } else {
        atomic_store(&i->submitted, true);
    }
    return err;
}

void nrd_infer_cancel(nrd_infer *i)
{
    if (atomic_load(&i->submitted)) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceRequestCancel(i->request)));
    }
}

nrd_error *nrd_infer_response_error(TRITONSERVER_InferenceResponse *response)
{
    return nrd_from_triton(TRITONSERVER_InferenceResponseError(response));
}

void nrd_infer_response_delete(TRITONSERVER_InferenceResponse *response)
{
    if (response) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceResponseDelete(response)));
    }
}
