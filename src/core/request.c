#include "core/core.h"
#include "core/sched/sequence.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A request's life: NEW (its creator builds it) - PREPARED (checked) - PENDING (queued) - RUNNING
 * (with a backend or an ensemble) - NEW again through the release callback, after which the creator
 * may delete it or send it once more. Responses may still follow: the factory makes them. */

nrd_request *nrd_request_new(nrd_model *m, int64_t version)
{
    nrd_request *r = nrd_pool_zget(sizeof *r);
    atomic_init(&r->refs, 1);
    r->server = m->server;
    r->model = nrd_model_ref(m);
    r->model_name = nrd_pool_strdup(m->name);
    r->model_version = version;
    r->id = nrd_pool_strdup("");
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
    nrd_seq_states_unref(r->states);
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
    memset(in, 0, offsetof(nrd_input, given));
    memset((char *)in + offsetof(nrd_input, segments), 0,
           sizeof *in - offsetof(nrd_input, segments));
    in->name = nrd_pool_strdup(name);
    return in;
}

static void grow_inputs(nrd_request *r)
{
    const uint32_t cap = r->cap_inputs ? r->cap_inputs * 2 : 8;
    r->inputs =
        nrd_pool_grow(r->inputs, r->cap_inputs * sizeof *r->inputs, cap * sizeof *r->inputs);
    r->cap_inputs = cap;
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
    nrd_input *in = input_new(name);
    in->dtype = dtype;
    in->n_given = (uint32_t)n;
    if (n) {
        memcpy(in->given, dims, n * sizeof *dims);
    }
    if (r->n_inputs == r->cap_inputs) {
        grow_inputs(r);
    }
    r->inputs[r->n_inputs++] = in;
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
        in->segments = nrd_pool_grow(in->segments, in->cap_segments * sizeof *in->segments,
                                     cap * sizeof *in->segments);
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
    if (r->n_outputs == r->cap_outputs) {
        const uint32_t cap = r->cap_outputs ? r->cap_outputs * 2 : 8;
        r->outputs = nrd_pool_grow(r->outputs, r->cap_outputs * sizeof *r->outputs,
                                   cap * sizeof *r->outputs);
        r->cap_outputs = cap;
    }
    r->outputs[r->n_outputs++] = nrd_pool_strdup(name);
    return NULL;
}

void nrd_request_override(nrd_request *r, const char *name, TRITONSERVER_DataType dtype,
                          const int64_t *dims, uint32_t n_dims, nrd_buf *data, size_t byte_size)
{
    nrd_input *in = input_new(name);
    nrd_attr attr = {.byte_size = byte_size};

    in->dtype = dtype;
    in->is_override = true;
    in->n_dims = n_dims < NRD_MAX_RANK ? n_dims : NRD_MAX_RANK;
    memcpy(in->dims, dims, in->n_dims * sizeof *dims);
    nrd_error_free(nrd_input_append(in, data->data, &attr, data)); /* one segment cannot be many */
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        if (strcmp(r->inputs[i]->name, name) == 0) {
            in->shadowed = r->inputs[i];
            r->inputs[i] = in;
            return;
        }
    }
    if (r->n_inputs == r->cap_inputs) {
        grow_inputs(r);
    }
    r->inputs[r->n_inputs++] = in;
}

void nrd_request_drop_overrides(nrd_request *r)
{
    uint32_t kept = 0;

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

/* ---- checking ---- */

/* Inputs that published clients send although the models do not declare them. They carry nothing
 * the model needs, so they are dropped instead of refused. */
static const struct {
    const char *backend, *input;
    TRITONSERVER_DataType dtype;
} ignored_inputs[] = {
    {"tensorrtllm", "output_log_probs", TRITONSERVER_TYPE_BOOL},
};

static void drop_ignored_inputs(nrd_request *r)
{
    for (size_t k = 0; k < sizeof ignored_inputs / sizeof ignored_inputs[0]; k++) {
        if (strcmp(r->model->config->backend, ignored_inputs[k].backend) != 0 ||
            nrd_model_input(r->model, ignored_inputs[k].input)) {
            continue;
        }
        for (uint32_t i = 0; i < r->n_inputs; i++) {
            if (strcmp(r->inputs[i]->name, ignored_inputs[k].input) == 0 &&
                r->inputs[i]->dtype == ignored_inputs[k].dtype) {
                nrd_request_remove_input(r, i);
                break;
            }
        }
    }
}

/* A raw input has data only: name, type and shape come from the model's only input. */
static nrd_error *complete_raw_input(nrd_request *r)
{
    const nrd_config *cfg = r->model->config;
    nrd_input *in = NULL;
    int dynamic = -1;
    uint64_t count = 1;

    for (uint32_t i = 0; i < r->n_inputs; i++) {
        in = r->inputs[i]->raw ? r->inputs[i] : in;
    }
    if (!in) {
        return NULL;
    }
    if (r->n_inputs != 1 || cfg->n_input != 1) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "Raw request must only have 1 input (found %u) to be deduced but "
                                  "got %zu inputs in '%s' model configuration",
                                  r->n_inputs, cfg->n_input, r->model_name);
    }
    const Inference__ModelInput *ci = cfg->input[0];
    in->dtype = nrd_tdtype_from_config(ci->data_type);
    in->n_given = 0;
    if (cfg->max_batch_size != 0) {
        in->given[in->n_given++] = 1;
    }
    for (size_t i = 0; i < ci->n_dims && in->n_given < NRD_MAX_RANK; i++) {
        if (ci->dims[i] < 0) {
            if (dynamic >= 0) {
                return nrd_request_errorf(
                    r, NRD_ERR_INVALID_ARG,
                    "The shape of the raw input '%s' can not be deduced "
                    "because there are more than one variable-sized dimension",
                    ci->name);
            }
            dynamic = (int)in->n_given;
        } else {
            count *= (uint64_t)ci->dims[i];
        }
        in->given[in->n_given++] = ci->dims[i];
    }
    if (in->dtype == TRITONSERVER_TYPE_BYTES) {
        if (dynamic >= 0 || count != 1) {
            return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                      "For BYTE datatype raw input '%s', the model must have input "
                                      "shape [1]",
                                      ci->name);
        }
        if (in->byte_size > UINT32_MAX) {
            return nrd_request_errorf(r, NRD_ERR_INVALID_ARG, "raw input '%s' is too large",
                                      ci->name);
        }
        nrd_attr attr = {.byte_size = sizeof in->raw_len};
        in->raw_len = (uint32_t)in->byte_size;
        NRD_TRY(nrd_input_append(in, &in->raw_len, &attr, NULL));
        nrd_segment last = in->segments[in->n_segments - 1];
        memmove(in->segments + 1, in->segments, (in->n_segments - 1) * sizeof last);
        in->segments[0] = last;
    } else if (dynamic >= 0) {
        in->given[dynamic] = count && nrd_tdtype_size(in->dtype)
                                 ? (int64_t)(in->byte_size / count / nrd_tdtype_size(in->dtype))
                                 : 0;
    }
    nrd_pool_strput(in->name);
    in->name = nrd_pool_strdup(ci->name);
    in->raw = false;
    return NULL;
}

static nrd_error *check_input_count(const nrd_request *r)
{
    const nrd_config *cfg = r->model->config;
    nrd_str got = {0}, missing = {0};
    nrd_error *err;

    if (r->n_inputs <= cfg->n_input && r->n_inputs >= r->model->n_required) {
        return NULL;
    }
    for (size_t i = 0; i < cfg->n_input; i++) {
        if (!cfg->input[i]->optional && !nrd_request_find_input(r, cfg->input[i]->name)) {
            nrd_str_printf(&missing, "%s'%s'", missing.len ? "," : "", cfg->input[i]->name);
        }
    }
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        nrd_str_printf(&got, "%s'%s'", got.len ? "," : "", r->inputs[i]->name);
    }
    if (cfg->n_input == r->model->n_required) {
        err = nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                 "expected %zu inputs but got %u inputs for model '%s'. Got "
                                 "input(s) [%s], but missing required input(s) [%s]. Please "
                                 "provide all required input(s).",
                                 cfg->n_input, r->n_inputs, r->model_name, nrd_str_cstr(&got),
                                 nrd_str_cstr(&missing));
    } else {
        err = nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                 "expected number of inputs between %u and %zu but got %u inputs "
                                 "for model '%s'. Got input(s) [%s], but missing required input(s) "
                                 "[%s]. Please provide all required input(s).",
                                 r->model->n_required, cfg->n_input, r->n_inputs, r->model_name,
                                 nrd_str_cstr(&got), nrd_str_cstr(&missing));
    }
    nrd_str_fini(&got);
    nrd_str_fini(&missing);
    return err;
}

/* All required inputs are there, also when optional ones make up the number. */
static nrd_error *check_inputs_known(const nrd_request *r)
{
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        if (!nrd_model_input(r->model, r->inputs[i]->name)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "unexpected inference input '%s' for model '%s'",
                              r->inputs[i]->name, r->model_name);
        }
    }
    for (size_t i = 0; i < r->model->config->n_input; i++) {
        const Inference__ModelInput *ci = r->model->config->input[i];
        if (!ci->optional && !nrd_request_find_input(r, ci->name)) {
            return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                      "input '%s' is missing for model '%s'", ci->name,
                                      r->model_name);
        }
    }
    return NULL;
}

static nrd_error *find_batch_size(nrd_request *r)
{
    int64_t batch = -1;
    int32_t max = r->model->config->max_batch_size;

    r->batch_size = 0;
    if (max == 0) {
        return NULL;
    }
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        const nrd_input *in = r->inputs[i];
        if (nrd_model_input(r->model, in->name)->is_shape_tensor) {
            continue;
        }
        if (in->n_given == 0) {
            return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                      "input '%s' has no shape but model requires batch dimension "
                                      "for '%s'",
                                      in->name, r->model_name);
        }
        if (batch < 0) {
            batch = in->given[0];
        } else if (in->given[0] != batch) {
            return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                      "input '%s' batch size does not match other inputs for '%s'",
                                      in->name, r->model_name);
        }
    }
    if (batch > max) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "inference request batch-size must be <= %d for '%s'", max,
                                  r->model_name);
    }
    if (batch <= 0 && r->n_inputs > 0) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "inference request batch-size must be >= 1 for '%s'",
                                  r->model_name);
    }
    r->batch_size = batch > 0 ? (uint32_t)batch : 1;
    return NULL;
}

static nrd_error *shape_error(const nrd_request *r, const nrd_input *in,
                              const Inference__ModelInput *ci, bool batched)
{
    nrd_str want = {0}, got = {0};
    int64_t full[NRD_MAX_RANK + 1] = {0};
    size_t n = 0;

    if (batched) {
        full[n++] = -1;
    }
    for (size_t i = 0; i < ci->n_dims && n < NRD_MAX_RANK; i++) {
        full[n++] = ci->dims[i];
    }
    nrd_shape_put(&want, full, n);
    nrd_shape_put(&got, in->given, in->n_given);
    nrd_error *err = nrd_request_errorf(
        r, NRD_ERR_INVALID_ARG,
        "unexpected shape for input '%s' for model '%s'. Expected %s, got %s. %s", in->name,
        r->model_name, nrd_str_cstr(&want), nrd_str_cstr(&got),
        batched ? "NOTE: Setting a non-zero max_batch_size in the model config requires a batch "
                  "dimension to be prepended to each input shape. If you want to specify the full "
                  "shape including the batch dim in your input dims config, try setting "
                  "max_batch_size to zero. See the model configuration docs for more info on "
                  "max_batch_size."
                : "");
    nrd_str_fini(&want);
    nrd_str_fini(&got);
    return err;
}

static nrd_error *check_input_shape(const nrd_request *r, nrd_input *in,
                                    const Inference__ModelInput *ci)
{
    bool batched = r->model->config->max_batch_size > 0 && !ci->is_shape_tensor;
    const int64_t *dims = in->given + (batched ? 1 : 0);
    size_t n = in->n_given - (batched ? 1u : 0u);
    int64_t variable[NRD_MAX_RANK];
    size_t n_variable = 0, v = 0;

    if (n != ci->n_dims) {
        return shape_error(r, in, ci, batched);
    }
    for (size_t i = 0; i < n; i++) {
        if (dims[i] < 0) {
            nrd_str got = {0};
            nrd_shape_put(&got, in->given, in->n_given);
            nrd_error *err = nrd_request_errorf(
                r, NRD_ERR_INVALID_ARG,
                "All input dimensions should be specified for input '%s' for model '%s', got %s",
                in->name, r->model_name, nrd_str_cstr(&got));
            nrd_str_fini(&got);
            return err;
        }
        if (ci->dims[i] >= 0 && ci->dims[i] != dims[i]) {
            return shape_error(r, in, ci, batched);
        }
        if (ci->dims[i] < 0) {
            variable[n_variable++] = dims[i];
        }
    }
    in->n_dims = 0;
    if (batched) {
        in->dims[in->n_dims++] = r->batch_size;
    }
    if (!ci->reshape) {
        memcpy(in->dims + in->n_dims, dims, n * sizeof *dims);
        in->n_dims += (uint32_t)n;
        return NULL;
    }
    for (size_t i = 0; i < ci->reshape->n_shape && in->n_dims < NRD_MAX_RANK; i++) {
        int64_t d = ci->reshape->shape[i];
        in->dims[in->n_dims++] = d >= 0 ? d : v < n_variable ? variable[v++] : 1;
    }
    return NULL;
}

/* BYTES data is a row of elements, each a 4-byte length and that many bytes. A length never spans
 * two buffers, an element may. */
static nrd_error *check_strings(const nrd_request *r, const nrd_input *in, uint64_t expected)
{
    uint64_t seen = 0;
    size_t rest = 0; /* of the current element */

    for (uint32_t i = 0; i < in->n_segments; i++) {
        const char *p = in->segments[i].base;
        size_t left = in->segments[i].attr.byte_size;
        if (in->segments[i].attr.memory_type == TRITONSERVER_MEMORY_GPU) {
            return NULL; /* not readable from here; the backend checks */
        }
        while (left > 0) {
            if (rest > 0) {
                size_t take = rest < left ? rest : left;
                p += take;
                left -= take;
                rest -= take;
                continue;
            }
            uint32_t len;
            if (left < sizeof len) {
                return nrd_request_errorf(
                    r, NRD_ERR_INVALID_ARG,
                    "incomplete string length indicator for inference input '%s' for model '%s', "
                    "expecting %zu bytes but only %zu bytes available. Please make sure the string "
                    "length indicator is in one buffer.",
                    in->name, r->model_name, sizeof len, left);
            }
            if (++seen > expected) {
                return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                          "unexpected number of string elements %llu for inference "
                                          "input '%s' for model '%s', expecting %llu",
                                          (unsigned long long)seen, in->name, r->model_name,
                                          (unsigned long long)expected);
            }
            memcpy(&len, p, sizeof len);
            p += sizeof len;
            left -= sizeof len;
            rest = len;
        }
    }
    if (rest > 0) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "incomplete string data for inference input '%s' for model '%s', "
                                  "expecting string of length %zu more bytes",
                                  in->name, r->model_name, rest);
    }
    if (seen != expected) {
        return nrd_request_errorf(
            r, NRD_ERR_INVALID_ARG,
            "expected %llu string elements for inference input '%s' for model "
            "'%s', got %llu",
            (unsigned long long)expected, in->name, r->model_name, (unsigned long long)seen);
    }
    return NULL;
}

static nrd_error *check_input_data(const nrd_request *r, const nrd_input *in,
                                   const Inference__ModelInput *ci)
{
    uint64_t count, bytes;

    if (ci->is_non_linear_format_io) {
        return NULL; /* only the backend knows how many bytes such a layout has */
    }
    if (!nrd_shape_count(in->dims, in->n_dims, &count) ||
        __builtin_mul_overflow(count, (uint64_t)nrd_tdtype_size(in->dtype), &bytes)) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "input '%s' for model '%s' has too many elements", in->name,
                                  r->model_name);
    }
    if (in->dtype == TRITONSERVER_TYPE_BYTES) {
        return check_strings(r, in, count);
    }
    if (in->byte_size != bytes) {
        return nrd_request_errorf(
            r, NRD_ERR_INVALID_ARG,
            "input byte size mismatch for input '%s' for model '%s'. Expected "
            "%llu, got %llu",
            in->name, r->model_name, (unsigned long long)bytes, (unsigned long long)in->byte_size);
    }
    return NULL;
}

static nrd_error *check_request(nrd_request *r)
{
    drop_ignored_inputs(r);
    NRD_TRY(complete_raw_input(r));
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        if (!nrd_model_output(r->model, r->outputs[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "unexpected inference output '%s' for model '%s'", r->outputs[i],
                              r->model_name);
        }
    }
    NRD_TRY(check_input_count(r));
    NRD_TRY(check_inputs_known(r));
    NRD_TRY(find_batch_size(r));
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        nrd_input *in = r->inputs[i];
        const Inference__ModelInput *ci = nrd_model_input(r->model, in->name);
        TRITONSERVER_DataType want = nrd_tdtype_from_config(ci->data_type);
        if (in->dtype != want) {
            return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                      "inference input '%s' data-type is '%s', but model '%s' "
                                      "expects '%s'",
                                      in->name, nrd_tdtype_name(in->dtype), r->model_name,
                                      nrd_tdtype_name(want));
        }
        NRD_TRY(check_input_shape(r, in, ci));
        NRD_TRY(check_input_data(r, in, ci));
    }
    return NULL;
}

/* ---- running ---- */

nrd_error *nrd_request_prepare(nrd_request *r)
{
    if (atomic_load(&r->state) != NRD_REQ_NEW) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG, "the request is already in flight");
    }
    if (!r->response_fn || !r->release_fn) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "release and response callbacks must be set before inference");
    }
    if (!r->model) { /* sent a second time: the model may have been replaced since */
        NRD_TRY(nrd_repo_get(&r->model, r->server->repo, r->model_name, r->model_version));
    }
    NRD_TRY(check_request(r));
    nrd_cancel_unref(r->cancel);
    r->cancel = nrd_cancel_new(r->parent);
    nrd_factory_unref(r->factory);
    r->factory = nrd_factory_new(r);
    atomic_store(&r->state, NRD_REQ_PREPARED);
    return NULL;
}

nrd_error *nrd_request_run(nrd_request *r)
{
    nrd_error *err;

    r->start_ns = nrd_now_ns();
    NRD_TRY(nrd_request_prepare(r));
    nrd_trace_begin(r->trace, r);
    if (r->model->cached && nrd_cache_answer(r)) {
        return NULL;
    }
    /* Once queued, the request may be answered and gone before enqueue returns. */
    err = r->model->ensemble ? nrd_ensemble_enqueue(r->model->ensemble, r)
          : r->model->seq    ? nrd_seq_enqueue(r->model->seq, r)
                             : nrd_sched_enqueue(r->model->sched, r);
    if (err) {
        r->seq = NULL;
        if (nrd_error_get_code(err) == NRD_ERR_UNAVAILABLE) { /* not the request's fault */
            nrd_stats_failure(r->model, nrd_now_ns() - r->start_ns, NRD_FAIL_REJECTED);
        }
        nrd_trace_forget(r->factory->trace);
        r->factory->trace = NULL;
        nrd_factory_unref(r->factory);
        r->factory = NULL;
        atomic_store(&r->state, NRD_REQ_NEW);
    }
    return err;
}

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
    if (r->seq) {
        bool goes_on = false;
        nrd_error *err = nrd_seq_released(r, flags, &goes_on);
        if (err || goes_on) {
            return err;
        }
        r->seq = NULL;
        nrd_request_drop_overrides(r);
    } else if (flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, "
                          "while the model is not configured to handle such a flag.");
    }
    r->model = NULL;
    r->factory = NULL;
    r->trace = NULL;
    nrd_seq_states_unref(r->states);
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

nrd_request *nrd_request_new_null(const nrd_request *like)
{
    nrd_request *r = nrd_request_new(like->model, like->model_version);
    nrd_buf *zeros;
    uint64_t largest = 0;

    r->is_null = true;
    r->core_buffers = true;
    r->batch_size = like->batch_size;
    r->release_fn = null_released;
    r->response_fn = null_answered;
    r->start_ns = r->queue_ns = nrd_now_ns();
    r->cancel = nrd_cancel_new(NULL);
    r->factory = nrd_factory_new(r);
    for (uint32_t i = 0; i < like->n_inputs; i++) {
        largest = like->inputs[i]->byte_size > largest ? like->inputs[i]->byte_size : largest;
    }
    zeros = nrd_buf_new(largest);
    NRD_ASSERT(zeros, "as large as an input that fits into memory");
    memset(zeros->data, 0, largest);
    for (uint32_t i = 0; i < like->n_inputs; i++) {
        const nrd_input *from = like->inputs[i];
        uint64_t count = 0, size = from->byte_size;
        nrd_input *in;
        if (from->is_override) {
            continue;
        }
        if (from->dtype == TRITONSERVER_TYPE_BYTES &&
            nrd_shape_count(from->dims, from->n_dims, &count)) {
            size = count * sizeof(uint32_t); /* as many empty strings */
        }
        nrd_attr attr = {.byte_size = size < largest ? size : largest};
        nrd_error_free(
            nrd_request_add_input(&in, r, from->name, from->dtype, from->given, from->n_given));
        memcpy(in->dims, from->dims, sizeof in->dims);
        in->n_dims = from->n_dims;
        if (nrd_model_input(like->model, from->name)->is_shape_tensor) {
            for (uint32_t k = 0; k < from->n_segments; k++) { /* shapes must be true ones */
                nrd_buf *copy = nrd_buf_new(from->segments[k].attr.byte_size);
                NRD_ASSERT(copy, "a shape is a few bytes");
                memcpy(copy->data, from->segments[k].base, copy->size_bytes);
                nrd_error_free(nrd_input_append(in, copy->data, &from->segments[k].attr, copy));
                nrd_buf_unref(copy);
            }
        } else {
            nrd_error_free(nrd_input_append(in, zeros->data, &attr, zeros));
        }
    }
    nrd_buf_unref(zeros);
    return r;
}

void nrd_request_fail(nrd_request *r, nrd_error *err, nrd_fail_reason reason)
{
    nrd_stats_failure(r->model, nrd_now_ns() - r->start_ns, reason);
    nrd_response_send(nrd_response_new(r->factory), TRITONSERVER_RESPONSE_COMPLETE_FINAL, err);
    nrd_request_release(r, TRITONSERVER_REQUEST_RELEASE_ALL);
}

bool nrd_request_is_cancelled(const nrd_request *r)
{
    return r->cancel && nrd_cancel_is_set(r->cancel);
}
