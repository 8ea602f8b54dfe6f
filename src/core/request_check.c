/* SPDX-License-Identifier: Apache-2.0
 * Whether a request suits its model: names, types, shapes, sizes. */
#include "core/request_check.h"

#include "core/memory.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/types.h"

#include "base/error.h"
#include "base/pool.h"
#include "base/str.h"

#include <string.h>

/* Inputs that the backend wants dropped instead of refused (nrd_backend_ignore_input). */
static void drop_ignored_inputs(nrd_request *r)
{
    for (size_t k = 0; k < r->model->n_ignored; k++) {
        const nrd_ignored_input *g = &r->model->ignored[k];
        for (uint32_t i = 0; i < r->n_inputs && !nrd_model_input(r->model, g->name); i++) {
            if (r->inputs[i]->dtype == g->dtype && strcmp(r->inputs[i]->name, g->name) == 0) {
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
    in->dtype = nrd_datatype_from_config(ci->data_type);
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
        in->given[dynamic] = count && nrd_datatype_size(in->dtype)
                                 ? (int64_t)(in->byte_size / count / nrd_datatype_size(in->dtype))
                                 : 0;
    }
    char *name = nrd_pool_strdup(ci->name);
    if (!name) {
        return nrd_error_no_memory();
    }
    nrd_pool_strput(in->name);
    in->name = name;
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
        __builtin_mul_overflow(count, (uint64_t)nrd_datatype_size(in->dtype), &bytes)) {
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

nrd_error *nrd_request_check(nrd_request *r)
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
        TRITONSERVER_DataType want = nrd_datatype_from_config(ci->data_type);
        if (in->dtype != want) {
            return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                      "inference input '%s' data-type is '%s', but model '%s' "
                                      "expects '%s'",
                                      in->name, nrd_datatype_name(in->dtype), r->model_name,
                                      nrd_datatype_name(want));
        }
        NRD_TRY(check_input_shape(r, in, ci));
        NRD_TRY(check_input_data(r, in, ci));
    }
    return NULL;
}
