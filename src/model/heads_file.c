/* SPDX-License-Identifier: Apache-2.0 */
#include "model/heads_file.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/finite.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 128 };

nrd_error *nrd_heads_file_open_at(nrd_heads_file *f, const char *path)
{
    nrd_error *err = NULL;
    NRD_DUP_GOTO(f->path, path, err, fail);
    return strstr(nrd_path_base(path), ".safetensors") ? nrd_safetensors_open(&f->safetensors, path)
                                                       : nrd_torch_bin_open(&f->torch_bin, path);
fail:
    return err;
}

nrd_error *nrd_heads_file_open(nrd_heads_file *f, const char *dir, const char *const *names, int n, bool *found)
{
    *found = false;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, dir, names[i]));
        if (nrd_path_exists(path)) {
            nrd_error *err = nrd_heads_file_open_at(f, path);
            *found = true;
            free(path);
            return err;
        }
        free(path);
    }
    return NULL;
}

void nrd_heads_file_close(nrd_heads_file *f)
{
    nrd_safetensors_close(f->safetensors);
    nrd_torch_bin_close(f->torch_bin);
    for (size_t i = 0; i < f->n_scales; i++) {
        free(f->scales[i]);
    }
    free(f->scales);
    free(f->path);
    *f = (nrd_heads_file){0};
}

bool nrd_heads_file_find(const nrd_heads_file *f, const char *name, nrd_heads_tensor *out)
{
    const nrd_safetensor *s = f->safetensors ? nrd_safetensors_find(f->safetensors, name) : NULL;
    if (s) {
        *out = (nrd_heads_tensor){s->dtype, s->n_dims, {s->dims[0], s->dims[1], s->dims[2], s->dims[3]}, s->data, s->data_bytes};
        return true;
    }
    for (size_t i = 0; f->torch_bin && i < nrd_torch_bin_n(f->torch_bin); i++) {
        const nrd_torch_tensor *t = nrd_torch_bin_at(f->torch_bin, i);
        if (!strcmp(t->name, name)) {
            *out = (nrd_heads_tensor){t->dtype, t->n_dims, {t->dims[0], t->dims[1], t->dims[2], t->dims[3]}, t->data, t->data_bytes};
            return true;
        }
    }
    return false;
}

/* Numbers of a tensor as float32. */
static float number_at(const nrd_heads_tensor *t, size_t i)
{
    uint16_t half;
    float v;
    if (t->dtype == NRD_DTYPE_F32) {
        memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
        return v;
    }
    memcpy(&half, (const char *)t->data + i * sizeof half, sizeof half);
    return t->dtype == NRD_DTYPE_F16 ? nrd_f16_to_f32(half) : nrd_bf16_to_f32(half);
}

static bool is_float(nrd_dtype dtype)
{
    return dtype == NRD_DTYPE_F32 || dtype == NRD_DTYPE_F16 || dtype == NRD_DTYPE_BF16;
}

static int64_t n_numbers(const nrd_heads_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        n *= t->dims[i];
    }
    return n;
}

static nrd_error *find_scales(const nrd_heads_file *f, const char *name, const nrd_weight *w, nrd_heads_tensor *out)
{
    const bool is_one = w->dtype == NRD_DTYPE_F8_E4M3; /* may be */
    const long long rows = w->rows;
    char scale_name[MAX_NAME];

    snprintf(scale_name, sizeof scale_name, "%s_scale", name);
    if (!nrd_heads_file_find(f, scale_name, out)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: %s has the type %s, but there is no tensor %s", f->path, name, nrd_dtype_name(w->dtype),
                          scale_name);
    }
    const bool of_rows = out->n_dims >= 1 && out->n_dims <= 2 && out->dims[0] == rows && (out->n_dims == 1 || out->dims[1] == 1);
    if (!is_float(out->dtype) || !(of_rows || (is_one && out->n_dims <= 2 && n_numbers(out) == 1))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s must have the shape [%lld] or [%lld, 1]%s, and the type float32, float16 or bfloat16",
                          f->path, scale_name, rows, rows, is_one ? ", or be one number" : "");
    }
    return NULL;
}

/* What the matrix `name` is multiplied by, all of it or row by row; the file owns it. */
static nrd_error *take_scales(nrd_heads_file *f, const char *name, nrd_weight *w)
{
    nrd_error *err = NULL;
    nrd_heads_tensor t;
    float *v = NULL;

    NRD_TRY(find_scales(f, name, w, &t));
    if (n_numbers(&t) != w->rows) {
        w->scale = number_at(&t, 0);
        return w->scale > 0 && w->scale <= FLT_MAX
                   ? NULL
                   : nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s_scale is %g, expected a number above 0", f->path, name, (double)w->scale);
    }
    float **all = realloc(f->scales, (f->n_scales + 1) * sizeof *all);
    if (!all) {
        return nrd_error_no_memory();
    }
    f->scales = all;
    NRD_NEW_GOTO(v, w->rows, err, fail);
    for (int64_t i = 0; i < w->rows; i++) {
        v[i] = number_at(&t, (size_t)i);
    }
    w->scales = f->scales[f->n_scales++] = v;
fail:
    return err;
}

nrd_error *nrd_heads_file_weight(nrd_heads_file *f, const char *name, const nrd_heads_tensor *t, int64_t rows, int64_t cols,
                                 nrd_weight *out)
{
    const int64_t got = t->n_dims > 1 ? t->dims[1] : 0;
    const bool is_8_bits = t->dtype == NRD_DTYPE_I8 || t->dtype == NRD_DTYPE_F8_E4M3;

    if (t->n_dims != (cols == 0 ? 1 : 2) || t->dims[0] != rows || got != cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s has %d dimensions, the first of %lld and the second of %lld; expected %lld "
                                               "and %lld", f->path, name, t->n_dims, (long long)(t->n_dims > 0 ? t->dims[0] : 0),
                          (long long)got, (long long)rows, (long long)cols);
    }
    if (!is_float(t->dtype) && (!is_8_bits || cols == 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: %s has the type %s, expected float32, float16 or bfloat16%s", f->path, name,
                          nrd_dtype_name(t->dtype), cols == 0 ? "" : ", or int8 or fp8 with scales");
    }
    NRD_TRY(nrd_error_wrap(nrd_check_finite(name, t->dtype, t->data, 0, (uint64_t)(rows * (cols ? cols : 1))), "%s", f->path));
    *out = (nrd_weight){.dtype = t->dtype,
                        .layout = NRD_LAYOUT_ROWS,
                        .rows = cols == 0 ? 1 : rows,
                        .cols = cols == 0 ? rows : cols,
                        .data = t->data,
                        .scale = 1,
                        .data_bytes = t->data_bytes};
    return is_8_bits ? take_scales(f, name, out) : NULL;
}

nrd_error *nrd_heads_file_put(nrd_safetensors_writer *w, const char *name, const nrd_weight *t, bool is_vector, bool data)
{
    const bool of_rows = t->scales != NULL;
    const int64_t dims[2] = {is_vector ? t->cols : t->rows, t->cols}, scale_dims[2] = {of_rows ? t->rows : 1, 1};
    char scale_name[MAX_NAME];

    NRD_TRY(data ? nrd_safetensors_writer_write(w, t->data, (size_t)t->data_bytes)
                 : nrd_safetensors_writer_add(w, name, t->dtype, dims, is_vector ? 1 : 2));
    if (!of_rows && t->dtype != NRD_DTYPE_F8_E4M3) {
        return NULL;
    }
    snprintf(scale_name, sizeof scale_name, "%s_scale", name);
    return data ? nrd_safetensors_writer_write(w, of_rows ? t->scales : &t->scale, (size_t)scale_dims[0] * sizeof(float))
                : nrd_safetensors_writer_add(w, scale_name, NRD_DTYPE_F32, scale_dims, 2);
}
