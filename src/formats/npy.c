/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/npy.h"

#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 65536, ALIGN = 64 };

static const struct {
    const char *descr, *name;
    size_t bytes;
} types[] = {
    [NRD_NPY_F32] = {"<f4", "float32", 4},  [NRD_NPY_F16] = {"<f2", "float16", 2},
    [NRD_NPY_BF16] = {"|V2", "bfloat16", 2}, [NRD_NPY_I32] = {"<i4", "int32", 4},
    [NRD_NPY_I64] = {"<i8", "int64", 8},
};
enum { N_TYPES = (int)(sizeof types / sizeof types[0]) };

const char *nrd_npy_type_name(nrd_npy_type t)
{
    return types[t].name;
}

/* What stands behind 'key': in the header's dictionary; NULL: no such key. */
static const char *value_of(const char *header, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", key);
    const char *p = strstr(header, quoted);
    if (!p) {
        return NULL;
    }
    p += strlen(quoted);
    p += strspn(p, " \t");
    if (*p != ':') {
        return NULL;
    }
    p++;
    return p + strspn(p, " \t");
}

static bool read_type(const char *header, nrd_npy_type *out)
{
    const char *v = value_of(header, "descr");
    for (int i = 0; v && i < N_TYPES; i++) {
        size_t n = strlen(types[i].descr);
        if ((*v == '\'' || *v == '"') && !strncmp(v + 1, types[i].descr, n) && v[1 + n] == *v) {
            *out = (nrd_npy_type)i;
            return true;
        }
    }
    return false;
}

static bool read_shape(const char *header, nrd_npy *a)
{
    const char *v = value_of(header, "shape");
    if (!v || *v != '(') {
        return false;
    }
    a->n = 1;
    for (v++; *(v += strspn(v, " \t,")) != ')';) {
        char *end = NULL;
        long long dim = *v >= '0' && *v <= '9' ? strtoll(v, &end, 10) : -1;
        if (dim < 0 || a->n_dims == NRD_NPY_MAX_DIMS || !nrd_size_mul(a->n, (size_t)dim, &a->n)) {
            return false;
        }
        a->dims[a->n_dims++] = dim;
        v = end;
    }
    return true;
}

static nrd_error *read_header(nrd_npy *a, const char *path, const char *header, size_t at)
{
    const char *order = value_of(header, "fortran_order");
    size_t bytes = 0;

    if (!read_type(header, &a->type)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: its element type is none of float32, float16, bfloat16 "
                          "(two raw bytes), int32, int64, little endian", path);
    }
    if (!order || strncmp(order, "False", 5) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: arrays in Fortran order are not supported", path);
    }
    if (!read_shape(header, a) || !nrd_size_mul(a->n, types[a->type].bytes, &bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: its shape cannot be read (at most %d dimensions)", path,
                          NRD_NPY_MAX_DIMS);
    }
    if (a->map.size_bytes - at < bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %zu bytes of data expected, got %zu", path, bytes,
                          a->map.size_bytes - at);
    }
    a->data = a->map.data + at;
    return NULL;
}

nrd_error *nrd_npy_open(nrd_npy *out, const char *path)
{
    nrd_npy a = {0};
    char *header = NULL;
    nrd_error *err = NULL;

    *out = a;
    NRD_TRY(nrd_map_open(&a.map, path));
    const uint8_t *d = a.map.data;
    size_t n = a.map.size_bytes, head = n >= 7 && d[6] >= 2 ? 12 : 10, len = 0;
    if (n < head || memcmp(d, "\x93NUMPY", 6) != 0 || d[6] < 1 || d[6] > 3) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s is no NumPy file", path);
        goto fail;
    }
    len = (size_t)d[8] | (size_t)d[9] << 8;
    len |= head == 12 ? (size_t)d[10] << 16 | (size_t)d[11] << 24 : 0;
    if (len > MAX_HEADER || len > n - head) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: a header of %zu bytes, expected at most %zu", path, len,
                         n - head < MAX_HEADER ? n - head : (size_t)MAX_HEADER);
        goto fail;
    }
    NRD_NEW_GOTO(header, len + 1, err, fail);
    memcpy(header, d + head, len);
    NRD_TRY_GOTO(read_header(&a, path, header, head + len), err, fail);
    free(header);
    *out = a;
    return NULL;

fail:
    free(header);
    nrd_map_close(&a.map);
    return err;
}

void nrd_npy_close(nrd_npy *a)
{
    nrd_map_close(&a->map);
    *a = (nrd_npy){0};
}

nrd_error *nrd_npy_write(const char *path, nrd_npy_type type, const int64_t *dims, int n_dims, const void *data)
{
    nrd_file_writer *w = NULL;
    nrd_str header = {0};
    size_t bytes = types[type].bytes;

    nrd_str_printf(&header, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type].descr);
    for (int i = 0; i < n_dims; i++) {
        nrd_str_printf(&header, i ? " %lld," : "%lld,", (long long)dims[i]);
        bytes *= (size_t)dims[i];
    }
    nrd_str_puts(&header, "), }");
    while ((10 + header.len + 1) % ALIGN) {
        nrd_str_putc(&header, ' ');
    }
    nrd_str_putc(&header, '\n');
    const char head[10] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, (char)(header.len & 255), (char)(header.len >> 8)};
    nrd_error *err = nrd_file_writer_open(&w, path);
    if (!err) {
        FILE *f = nrd_file_writer_stream(w);
        fwrite(head, 1, sizeof head, f);
        fwrite(nrd_str_cstr(&header), 1, header.len, f);
        fwrite(data, 1, bytes, f);
        err = nrd_file_writer_commit(w);
    }
    nrd_str_fini(&header);
    return err;
}
