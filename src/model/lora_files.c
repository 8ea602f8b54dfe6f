/* SPDX-License-Identifier: Apache-2.0
 * Adapters in folders: PEFT's, and the two NumPy files of TensorRT-LLM's converter; and the one into the
 * other. */
#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "formats/npy.h"
#include "model/lora.h"
#include "model/peft.h"

#include <string.h>

/* ---- NumPy files ---- */

static nrd_dtype dtype_of(nrd_npy_type t)
{
    return t == NRD_NPY_F32 ? NRD_DTYPE_F32 : t == NRD_NPY_F16 ? NRD_DTYPE_F16
         : t == NRD_NPY_BF16 ? NRD_DTYPE_BF16 : NRD_DTYPE_NONE;
}

/* [rows, width], or [1, rows, width]. */
static nrd_error *two_dims(const nrd_npy *a, const char *what, int64_t *rows, int64_t *width)
{
    bool ok = a->n_dims == 2 || (a->n_dims == 3 && a->dims[0] == 1);
    if (!ok) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has %d dimensions, expected [rows, width] or [1, rows, width]", what,
                          a->n_dims);
    }
    *rows = a->dims[a->n_dims - 2];
    *width = a->dims[a->n_dims - 1];
    return NULL;
}

static nrd_error *from_arrays(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim,
                              const nrd_npy *weights, const nrd_npy *config)
{
    int64_t rows = 0, width = 0, n = 0, config_width = 0;
    NRD_TRY(two_dims(weights, "model.lora_weights.npy", &rows, &width));
    NRD_TRY(two_dims(config, "model.lora_config.npy", &n, &config_width));
    if (dtype_of(weights->type) == NRD_DTYPE_NONE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model.lora_weights.npy is of %s, expected float16, bfloat16 or float32",
                          nrd_npy_type_name(weights->type));
    }
    if (config->type != NRD_NPY_I32) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model.lora_config.npy is of %s, expected int32",
                          nrd_npy_type_name(config->type));
    }
    if (n != rows) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model.lora_config.npy has %lld rows, model.lora_weights.npy %lld",
                          (long long)n, (long long)rows);
    }
    return nrd_lora_from_rows(out, spec, lim, weights->data, dtype_of(weights->type), rows, width, config->data,
                              config_width);
}

static nrd_error *open_arrays(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim, const char *dir,
                              const char *weights_path)
{
    char *path = NULL, *old = NULL;
    nrd_npy weights = {0}, config = {0};
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_path_make(&path, dir, "model.lora_config.npy"), err, done);
    NRD_TRY_GOTO(nrd_path_make(&old, dir, "model.lora_keys.npy"), err, done);
    NRD_TRY_GOTO(nrd_npy_open(&weights, weights_path), err, done);
    NRD_TRY_GOTO(nrd_npy_open(&config, !nrd_path_exists(path) && nrd_path_exists(old) ? old : path), err, done);
    err = nrd_error_wrap(from_arrays(out, spec, lim, &weights, &config), "%s", dir);
done:
    nrd_npy_close(&weights);
    nrd_npy_close(&config);
    free(path);
    free(old);
    return err;
}

/* ---- PEFT folders ---- */

static nrd_error *open_peft(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim, const char *dir)
{
    nrd_peft *p = NULL;
    const nrd_lora_pair_in *pairs;
    int32_t n = 0;

    NRD_TRY(nrd_peft_open(&p, dir));
    nrd_error *err = nrd_peft_pairs(p, spec->model_type, &pairs, &n);
    if (!err) {
        err = nrd_error_wrap(nrd_lora_make(out, spec, lim, pairs, n), "%s", dir);
    }
    nrd_peft_close(p);
    return err;
}

nrd_error *nrd_lora_open(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim, const char *dir)
{
    char *peft = NULL, *arrays = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY_GOTO(nrd_path_make(&peft, dir, "adapter_config.json"), err, done);
    NRD_TRY_GOTO(nrd_path_make(&arrays, dir, "model.lora_weights.npy"), err, done);
    if (nrd_path_exists(peft)) {
        err = open_peft(out, spec, lim, dir);
    } else if (nrd_path_exists(arrays)) {
        err = open_arrays(out, spec, lim, dir, arrays);
    } else {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "%s holds no LoRA adapter: neither adapter_config.json (PEFT) nor "
                         "model.lora_weights.npy (hf_lora_convert)", dir);
    }
done:
    free(peft);
    free(arrays);
    return err;
}

/* ---- from the one to the other ---- */

static void put_values(nrd_dtype to, uint8_t *dst, nrd_dtype from, const uint8_t *src, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        float v = 0;
        nrd_dequantize_row(from, src + i * nrd_dtype_block_bytes(from), &v, 1);
        v *= scale;
        nrd_quantize_row(to, &v, dst + i * nrd_dtype_block_bytes(to), 1);
    }
}

static nrd_error *check_pair(const nrd_lora_pair_in *p)
{
    if (p->gain) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%.200s: DoRA's gains need the rows of the base model, which are not at hand here; serve "
                          "the folder as it is", p->name);
    }
    if (p->dtype != NRD_DTYPE_F32 && p->dtype != NRD_DTYPE_F16 && p->dtype != NRD_DTYPE_BF16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%.200s: type %s, expected float32, float16 or bfloat16", p->name,
                          nrd_dtype_name(p->dtype));
    }
    if (p->rank > NRD_LORA_MAX_RANK || p->in > INT32_MAX || p->out > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%.200s: rank %d of %lld inputs and %lld outputs is too large (rank at "
                          "most %d)", p->name, p->rank, (long long)p->in, (long long)p->out, NRD_LORA_MAX_RANK);
    }
    return NULL;
}

static nrd_error *write_arrays(const char *dir, nrd_dtype dtype, const uint8_t *weights, const int32_t *config,
                               int64_t rows, int64_t width)
{
    const nrd_npy_type type = dtype == NRD_DTYPE_F32 ? NRD_NPY_F32 : dtype == NRD_DTYPE_F16 ? NRD_NPY_F16 : NRD_NPY_BF16;
    const int64_t weight_dims[3] = {1, rows, width}, config_dims[3] = {1, rows, 3};
    char *w = NULL, *c = NULL;

    nrd_error *err = nrd_mkdirs(dir);
    err = err ? err : nrd_path_make(&w, dir, "model.lora_weights.npy");
    err = err ? err : nrd_path_make(&c, dir, "model.lora_config.npy");
    err = err ? err : nrd_npy_write(w, type, weight_dims, 3, weights);
    err = err ? err : nrd_npy_write(c, NRD_NPY_I32, config_dims, 3, config);
    free(w);
    free(c);
    return err;
}

static nrd_error *convert(nrd_peft *p, const char *out_dir, nrd_dtype dtype)
{
    const nrd_lora_pair_in *pairs;
    nrd_error *err = NULL;
    int32_t n = 0, *config = NULL;
    int64_t width = 0;
    uint8_t *weights = NULL;
    size_t elem = nrd_dtype_block_bytes(dtype), cells;

    NRD_TRY(nrd_peft_pairs(p, NULL, &pairs, &n));
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY(check_pair(&pairs[i]));
        int64_t need = pairs[i].rank * (pairs[i].in + pairs[i].out);
        width = need > width ? need : width;
    }
    if (!nrd_size_mul((size_t)n * elem, (size_t)width, &cells)) {
        return nrd_error_no_memory();
    }
    NRD_NEW_GOTO(config, (size_t)n * 3, err, done);
    NRD_NEW_GOTO(weights, cells, err, done);
    for (int32_t i = 0; i < n; i++) {
        const nrd_lora_pair_in *q = &pairs[i];
        uint8_t *row = weights + (size_t)i * (size_t)width * elem;
        size_t n_a = (size_t)q->rank * (size_t)q->in;
        const int32_t numbers[3] = {q->module, q->layer, q->rank};
        memcpy(config + (size_t)i * 3, numbers, sizeof numbers);
        put_values(dtype, row, q->dtype, q->a, n_a, 1);
        put_values(dtype, row + n_a * elem, q->dtype, q->b, (size_t)q->rank * (size_t)q->out, q->scale);
    }
    err = write_arrays(out_dir, dtype, weights, config, n, width);
done:
    free(config);
    free(weights);
    return err;
}

nrd_error *nrd_lora_convert(const char *peft_dir, const char *out_dir, nrd_dtype dtype)
{
    nrd_peft *p = NULL;
    NRD_TRY(nrd_peft_open(&p, peft_dir));
    nrd_error *err = convert(p, out_dir, dtype);
    nrd_peft_close(p);
    return err;
}
