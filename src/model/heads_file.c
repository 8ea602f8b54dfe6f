/* SPDX-License-Identifier: Apache-2.0 */
#include "model/heads_file.h"

#include "base/dtype.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

nrd_error *nrd_heads_file_open(nrd_heads_file *f, const char *dir, const char *const *names, int n, bool *found)
{
    *found = false;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, dir, names[i]));
        if (nrd_path_exists(path)) {
            *found = true;
            f->path = path;
            return strstr(names[i], ".safetensors") ? nrd_safetensors_open(&f->safetensors, path)
                                                    : nrd_torch_bin_open(&f->torch_bin, path);
        }
        free(path);
    }
    return NULL;
}

void nrd_heads_file_close(nrd_heads_file *f)
{
    nrd_safetensors_close(f->safetensors);
    nrd_torch_bin_close(f->torch_bin);
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

nrd_error *nrd_heads_file_weight(const nrd_heads_file *f, const char *name, const nrd_heads_tensor *t, int64_t rows, int64_t cols,
                                 nrd_weight *out)
{
    const int64_t got = t->n_dims > 1 ? t->dims[1] : 0;

    if (t->n_dims != (cols == 0 ? 1 : 2) || t->dims[0] != rows || got != cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s has %d dimensions, the first of %lld and the second of %lld; expected %lld "
                                               "and %lld", f->path, name, t->n_dims, (long long)(t->n_dims > 0 ? t->dims[0] : 0),
                          (long long)got, (long long)rows, (long long)cols);
    }
    if (t->dtype != NRD_DTYPE_F32 && t->dtype != NRD_DTYPE_F16 && t->dtype != NRD_DTYPE_BF16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: %s has the type %s, expected float32, float16 or bfloat16", f->path, name,
                          nrd_dtype_name(t->dtype));
    }
    *out = (nrd_weight){.dtype = t->dtype,
                        .layout = NRD_LAYOUT_ROWS,
                        .rows = cols == 0 ? 1 : rows,
                        .cols = cols == 0 ? rows : cols,
                        .data = t->data,
                        .scale = 1,
                        .data_bytes = t->data_bytes};
    return NULL;
}
