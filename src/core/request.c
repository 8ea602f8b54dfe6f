/* SPDX-License-Identifier: Apache-2.0
 * The object of a request: made, filled with inputs, outputs and parameters, prepared for a run,
 * released to its creator, used again or freed. Inputs that a request has for one run only are
 * dropped when it is released. Also the null requests that fill empty slots of sequence batches. */
#include "core/request.h"

#include "core/cancel.h"
#include "core/memory.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request_internal.h"
#include "core/response.h"
#include "core/sched/scheduler.h"
#include "core/sched/sequence.h"
#include "core/statistics.h"
#include "core/trace.h"
#include "core/types.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/pool.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A request's life: NEW (its creator builds it) - PREPARED (checked) - PENDING (queued) - RUNNING
 * (with a backend or an ensemble) - NEW again through the release callback, after which the creator
 * may delete it or send it once more. Responses may still follow: the factory makes them. */

nrd_request *nrd_request_new(nrd_model *m, int64_t version)
{
    nrd_request *r = nrd_pool_zget(sizeof *r);
    if (!r) {
        return NULL;
    }
    atomic_init(&r->refs, 1);
    r->ctx = m->ctx;
    r->model = nrd_model_ref(m);
    r->model_name = nrd_pool_strdup(m->name);
    r->model_version = version;
    r->id = nrd_pool_strdup("");
    if (!r->model_name || !r->id) {
        nrd_request_free(r);
        return NULL;
    }
    return r;
}

static void input_free(nrd_input *in)
{
    for (uint32_t i = 0; i < in->n_segments; i++) {
        nrd_buf_unref(in->segments[i].owner);
    }
    if (in->shadowed) {
        input_free(in->shadowed);
    }
    nrd_pool_put(in->segments, in->cap_segments * sizeof *in->segments);
    nrd_pool_strput(in->name);
    nrd_pool_put(in, sizeof *in);
}

nrd_request *nrd_request_keep(nrd_request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void nrd_request_free(nrd_request *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1) {
        return;
    }
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        input_free(r->inputs[i]);
    }
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        nrd_pool_strput(r->outputs[i]);
    }
    nrd_pool_put(r->inputs, r->cap_inputs * sizeof *r->inputs);
    nrd_pool_put(r->outputs, r->cap_outputs * sizeof *r->outputs);
    nrd_params_fini(&r->params);
    nrd_factory_unref(r->factory);
    nrd_cancel_unref(r->cancel);
    nrd_cancel_unref(r->parent);
    nrd_account_unref(r->account);
    nrd_sequence_states_unref(r->states);
    if (r->model) {
        nrd_model_unref(r->model);
    }
    nrd_pool_strput(r->model_name);
    nrd_pool_strput(r->id);
    free(r->corr_str);
    nrd_pool_put(r, sizeof *r);
}

nrd_error *nrd_request_errorf(const nrd_request *r, nrd_error_code code, const char *fmt, ...)
{
    nrd_error *err;
    va_list args;

    va_start(args, fmt);
    err = nrd_errorv(code, fmt, args);
    va_end(args);
    nrd_error *full = nrd_errorf(code, "[request id: %s] %s", r->id[0] ? r->id : "<id_unknown>",
                                 nrd_error_message(err));
    nrd_error_free(err);
    return full;
}

/* ---- building ---- */

nrd_input *nrd_request_find_input(const nrd_request *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        if (strcmp(r->inputs[i]->name, name) == 0) {
            return r->inputs[i];
        }
    }
    return NULL;
}

/* All zero but the dimensions, of which only the first n_given and n_dims count. */
static nrd_input *input_new(const char *name)
{
    nrd_input *in = nrd_pool_get(sizeof *in);
    if (!in) {
        return NULL;
    }
    memset(in, 0, offsetof(nrd_input, given));
    memset((char *)in + offsetof(nrd_input, segments), 0,
           sizeof *in - offsetof(nrd_input, segments));
    in->name = nrd_pool_strdup(name);
    if (!in->name) {
        input_free(in);
        return NULL;
    }
    return in;
}

/* Takes in on success. */
static bool push_input(nrd_request *r, nrd_input *in)
{
    if (r->n_inputs == r->cap_inputs) {
        const uint32_t cap = r->cap_inputs ? r->cap_inputs * 2 : 8;
        nrd_input **grown =
            nrd_pool_grow(r->inputs, r->cap_inputs * sizeof *r->inputs, cap * sizeof *r->inputs);
        if (!grown) {
            return false;
        }
        r->inputs = grown;
        r->cap_inputs = cap;
    }
    r->inputs[r->n_inputs++] = in;
    return true;
}

nrd_error *nrd_request_add_input(nrd_input **out, nrd_request *r, const char *name,
                                 TRITONSERVER_DataType dtype, const int64_t *dims, uint64_t n)
{
    if (nrd_request_find_input(r, name)) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG, "input '%s' already exists in request",
                                  name);
    }
    if (n > NRD_MAX_RANK) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "input '%s' has %llu dimensions, at most %d are supported", name,
                                  (unsigned long long)n, (int)NRD_MAX_RANK);
    }
    if (r->n_inputs >= NRD_LIMIT_INPUTS) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG, "more than %d inputs", NRD_LIMIT_INPUTS);
    }
    nrd_input *in = input_new(name);
    if (!in || !push_input(r, in)) {
        if (in) {
            input_free(in);
        }
        return nrd_error_no_memory();
    }
    in->dtype = dtype;
    in->n_given = (uint32_t)n;
    if (n) {
        memcpy(in->given, dims, n * sizeof *dims);
    }
    *out = in;
    return NULL;
}

void nrd_request_remove_input(nrd_request *r, uint32_t i)
{
    input_free(r->inputs[i]);
    r->n_inputs--;
    memmove(r->inputs + i, r->inputs + i + 1, (r->n_inputs - i) * sizeof *r->inputs);
}

nrd_error *nrd_input_append(nrd_input *in, const void *base, const nrd_attr *attr, nrd_buf *owner)
{
    if (in->n_segments >= NRD_MAX_INPUT_SEGMENTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "input '%s' has more than %d buffers", in->name,
                          (int)NRD_MAX_INPUT_SEGMENTS);
    }
    if (__builtin_add_overflow(in->byte_size, attr->byte_size, &in->byte_size)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "input '%s' is too large", in->name);
    }
    if (attr->byte_size == 0) {
        return NULL; /* nothing to show to a backend */
    }
    if (in->n_segments == in->cap_segments) {
        const uint32_t cap = in->cap_segments ? in->cap_segments * 2 : 1;
        nrd_segment *grown = nrd_pool_grow(
            in->segments, in->cap_segments * sizeof *in->segments, cap * sizeof *in->segments);
        if (!grown) {
            return nrd_error_no_memory();
        }
        in->segments = grown;
        in->cap_segments = cap;
    }
    nrd_segment *s = &in->segments[in->n_segments++];
    s->base = base;
    s->attr = *attr;
    s->owner = owner ? nrd_buf_ref(owner) : NULL;
    return NULL;
}

void nrd_input_drop_data(nrd_input *in)
{
    for (uint32_t i = 0; i < in->n_segments; i++) {
        nrd_buf_unref(in->segments[i].owner);
    }
    in->n_segments = 0;
    in->byte_size = 0;
}

nrd_error *nrd_request_add_output(nrd_request *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        if (strcmp(r->outputs[i], name) == 0) {
            return NULL; /* asking twice is asking once */
        }
    }
    if (r->n_outputs >= NRD_LIMIT_OUTPUTS) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG, "more than %d requested outputs",
                                  NRD_LIMIT_OUTPUTS);
    }
    if (r->n_outputs == r->cap_outputs) {
        const uint32_t cap = r->cap_outputs ? r->cap_outputs * 2 : 8;
        char **grown = nrd_pool_grow(r->outputs, r->cap_outputs * sizeof *r->outputs,
                                     cap * sizeof *r->outputs);
        if (!grown) {
            return nrd_error_no_memory();
        }
        r->outputs = grown;
        r->cap_outputs = cap;
    }
    char *copy = nrd_pool_strdup(name);
    if (!copy) {
        return nrd_error_no_memory();
    }
    r->outputs[r->n_outputs++] = copy;
    return NULL;
}

void nrd_request_override(nrd_request *r, const char *name, TRITONSERVER_DataType dtype,
                          const int64_t *dims, uint32_t n_dims, nrd_buf *data, size_t byte_size)
{
    nrd_input *in = data ? input_new(name) : NULL;
    nrd_attr attr = {.byte_size = byte_size};

    if (!in) {
        r->no_memory = true;
        return;
    }
    in->dtype = dtype;
    in->is_override = true;
    in->n_dims = n_dims < NRD_MAX_RANK ? n_dims : NRD_MAX_RANK;
    memcpy(in->dims, dims, in->n_dims * sizeof *dims);
    nrd_error *err = nrd_input_append(in, data->data, &attr, data); /* one segment cannot be many */
    r->no_memory = r->no_memory || err;
    nrd_error_free(err);
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        if (strcmp(r->inputs[i]->name, name) == 0) {
            in->shadowed = r->inputs[i];
            r->inputs[i] = in;
            return;
        }
    }
    if (!push_input(r, in)) {
        input_free(in);
        r->no_memory = true;
    }
}

void nrd_request_drop_overrides(nrd_request *r)
{
    uint32_t kept = 0;

    r->no_memory = false;

    for (uint32_t i = 0; i < r->n_inputs; i++) {
        nrd_input *in = r->inputs[i];
        while (in && in->is_override) {
            nrd_input *below = in->shadowed;
            in->shadowed = NULL;
            input_free(in);
            in = below;
        }
        if (in) {
            r->inputs[kept++] = in;
        }
    }
    r->n_inputs = kept;
}

bool nrd_request_same_shapes(const nrd_request *a, const nrd_request *b)
{
    if (a->n_inputs != b->n_inputs) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_inputs; i++) {
        const nrd_input *x = a->inputs[i], *y = nrd_request_find_input(b, x->name);
        const Inference__ModelInput *c = nrd_model_input(a->model, x->name);
        if (!y) {
            return false;
        }
        if (!c || c->allow_ragged_batch) {
            continue;
        }
        if (x->n_dims != y->n_dims ||
            (x->n_dims > 1 &&
             memcmp(x->dims + 1, y->dims + 1, (x->n_dims - 1) * sizeof x->dims[0]) != 0)) {
            return false;
        }
    }
    return true;
}

bool nrd_request_wants(const nrd_request *r, const char *output)
{
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        if (strcmp(r->outputs[i], output) == 0) {
            return true;
        }
    }
    return r->n_outputs == 0;
}

/* ---- running ---- */

void nrd_request_set_running(nrd_request *r)
{
    int was = atomic_exchange(&r->state, NRD_REQ_RUNNING);
    if (was == NRD_REQ_PENDING) {
        atomic_fetch_sub(&r->model->n_pending, 1);
        nrd_model_metrics_pending(r->model->metrics, -1);
    }
}

nrd_error *nrd_request_try_release(nrd_request *r, uint32_t flags)
{
    nrd_model *m = r->model;
    nrd_factory *f = r->factory;
    nrd_trace *t = r->trace;

    nrd_request_set_running(r);
    if (r->owner) {
        bool goes_on = false;
        nrd_error *err = r->owner->ops->released(r->owner, r, flags, &goes_on);
        if (err || goes_on) {
            return err;
        }
        r->owner = NULL;
        nrd_request_drop_overrides(r);
    } else if (flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, "
                          "while the model is not configured to handle such a flag.");
    }
    r->model = NULL;
    r->factory = NULL;
    r->trace = NULL;
    nrd_sequence_states_unref(r->states);
    r->states = NULL;
    atomic_store(&r->state, NRD_REQ_NEW);
    /* Last touch of the request: its creator may delete it inside the callback. */
    r->release_fn((TRITONSERVER_InferenceRequest *)(void *)r, flags, r->release_userp);
    nrd_trace_unshare(t);
    nrd_factory_unref(f);
    nrd_model_unref(m);
    return NULL;
}

void nrd_request_release(nrd_request *r, uint32_t flags)
{
    nrd_error *err =
        nrd_request_try_release(r, flags & ~(uint32_t)TRITONSERVER_REQUEST_RELEASE_RESCHEDULE);
    NRD_ASSERT(!err, "only rescheduling can be refused");
}

/* ---- stand-ins for empty slots ---- */

static void null_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    (void)flags, (void)userp;
    nrd_request_free((nrd_request *)(void *)request);
}

static void null_answered(TRITONSERVER_InferenceResponse *response, const uint32_t flags,
                          void *userp)
{
    (void)flags, (void)userp;
    nrd_response_free((nrd_response *)(void *)response);
}

/* A shape tensor of a null request has true values, everything else is zero. */
static nrd_error *fill_null(nrd_input *in, const nrd_input *from, bool is_shape, nrd_buf *zeros,
                            size_t size)
{
    nrd_attr attr = {.byte_size = size < zeros->size_bytes ? size : zeros->size_bytes};

    if (!is_shape) {
        return nrd_input_append(in, zeros->data, &attr, zeros);
    }
    for (uint32_t k = 0; k < from->n_segments; k++) {
        nrd_buf *copy = nrd_buf_new(from->segments[k].attr.byte_size);
        if (!copy) {
            return nrd_error_no_memory();
        }
        memcpy(copy->data, from->segments[k].base, copy->size_bytes);
        nrd_error *err = nrd_input_append(in, copy->data, &from->segments[k].attr, copy);
        nrd_buf_unref(copy);
        if (err) {
            return err;
        }
    }
    return NULL;
}

static nrd_error *add_null_inputs(nrd_request *r, const nrd_request *like)
{
    nrd_error *err = NULL;
    uint64_t largest = 0;

    for (uint32_t i = 0; i < like->n_inputs; i++) {
        largest = like->inputs[i]->byte_size > largest ? like->inputs[i]->byte_size : largest;
    }
    nrd_buf *zeros = nrd_buf_new(largest);
    if (!zeros) {
        return nrd_error_no_memory();
    }
    memset(zeros->data, 0, largest);
    for (uint32_t i = 0; i < like->n_inputs && !err; i++) {
        const nrd_input *from = like->inputs[i];
        uint64_t count = 0, size = from->byte_size;
        nrd_input *in = NULL;
        if (from->is_override) {
            continue;
        }
        if (from->dtype == TRITONSERVER_TYPE_BYTES &&
            nrd_shape_count(from->dims, from->n_dims, &count)) {
            size = count * sizeof(uint32_t); /* as many empty strings */
        }
        err = nrd_request_add_input(&in, r, from->name, from->dtype, from->given, from->n_given);
        if (!err) {
            memcpy(in->dims, from->dims, sizeof in->dims);
            in->n_dims = from->n_dims;
            err = fill_null(in, from, nrd_model_input(like->model, from->name)->is_shape_tensor,
                            zeros, size);
        }
    }
    nrd_buf_unref(zeros);
    return err;
}

nrd_request *nrd_request_new_null(const nrd_request *like)
{
    nrd_request *r = nrd_request_new(like->model, like->model_version);

    if (!r) {
        return NULL;
    }
    r->is_null = true;
    r->core_buffers = true;
    r->batch_size = like->batch_size;
    r->release_fn = null_released;
    r->response_fn = null_answered;
    r->start_ns = r->queue_ns = nrd_now_ns();
    r->cancel = nrd_cancel_new(NULL);
    r->factory = r->cancel ? nrd_factory_new(r) : NULL;
    nrd_error *err = r->factory ? add_null_inputs(r, like) : nrd_error_no_memory();
    if (err) {
        nrd_error_free(err);
        nrd_request_free(r);
        return NULL;
    }
    return r;
}

void nrd_request_fail(nrd_request *r, nrd_error *err, nrd_fail_reason reason)
{
    nrd_stats_failure(r->model, nrd_now_ns() - r->start_ns, reason);
    nrd_factory_send_error(r->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err);
    nrd_request_release(r, TRITONSERVER_REQUEST_RELEASE_ALL);
}

uint64_t nrd_request_end_by(const nrd_request *r)
{
    return r->timeout_us && r->timeout_us < UINT64_MAX / 2000u ? r->start_ns + r->timeout_us * 1000u : 0;
}

uint64_t nrd_request_time_left_us(const nrd_request *r)
{
    const uint64_t end = nrd_request_end_by(r), now = end ? nrd_now_ns() : 0;
    return end == 0 ? 0 : end > now + 1000u ? (end - now) / 1000u : 1;
}

void nrd_request_set_account(nrd_request *r, nrd_account *a)
{
    if (a) {
        nrd_account_unref(r->account);
        r->account = nrd_account_ref(a);
    }
}

bool nrd_request_is_cancelled(const nrd_request *r)
{
    return r->cancel && nrd_cancel_is_set(r->cancel);
}
