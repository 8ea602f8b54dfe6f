/* SPDX-License-Identifier: Apache-2.0
 * Reader: checks the header's length, parses it as JSON, checks every tensor's span, and sorts the
 * names. Writer: add all tensors, begin (writes the header), put the data in the same order,
 * commit. Called by model/source.c and model/build.c. */
#include "formats/safetensors.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HEADER_BYTES = 100000000, /* the format's own limit */
    MAX_TENSORS = 1 << 20,
    MAX_DEPTH = 4, /* object of objects of arrays */
};
#define MAX_ELEMENTS ((uint64_t)1 << 48)

struct nrd_safetensors {
    nrd_map map;
    char *path;
    const uint8_t *data;
    size_t size;
    nrd_json_doc *doc; /* owns the names */
    const nrd_json *meta;
    nrd_safetensor *tensors;
    size_t n;
    uint32_t *order; /* sorted by name */
};

static const struct {
    const char *name;
    nrd_dtype dtype;
    uint8_t bytes;
} types[] = {
    {"F32", NRD_DTYPE_F32, 4},  {"F16", NRD_DTYPE_F16, 2},   {"BF16", NRD_DTYPE_BF16, 2},
    {"F64", NRD_DTYPE_F64, 8},  {"F8_E4M3", NRD_DTYPE_F8_E4M3, 1},
    {"I8", NRD_DTYPE_I8, 1},    {"I16", NRD_DTYPE_I16, 2},   {"I32", NRD_DTYPE_I32, 4},
    {"I64", NRD_DTYPE_I64, 8},  {"U8", NRD_DTYPE_U8, 1},     {"BOOL", NRD_DTYPE_BOOL, 1},
    {"U16", NRD_DTYPE_NONE, 2}, {"U32", NRD_DTYPE_NONE, 4},  {"U64", NRD_DTYPE_NONE, 8},
    {"F8_E5M2", NRD_DTYPE_NONE, 1}, {"F8_E8M0", NRD_DTYPE_U8, 1}, /* exponents of scales */
};
enum { N_TYPES = (int)(sizeof types / sizeof types[0]) };

/* ---- reading ---- */

static nrd_error *bad(const nrd_safetensors *s, const char *name, const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s': %s", s->path, name, what);
}

static nrd_error *read_shape(const nrd_safetensors *s, nrd_safetensor *t, const nrd_json *shape,
                             uint64_t *out_n)
{
    *out_n = 1;
    if (!nrd_json_is(shape, NRD_JSON_ARRAY) || nrd_json_len(shape) > NRD_SAFETENSORS_MAX_DIMS) {
        return bad(s, t->name, "'shape' must be an array of at most 5 numbers");
    }
    t->n_dims = (int)nrd_json_len(shape);
    for (int d = 0; d < NRD_SAFETENSORS_MAX_DIMS; d++) {
        t->dims[d] = d < t->n_dims ? nrd_json_int(nrd_json_at(shape, (size_t)d), -1) : 1;
        uint64_t v = (uint64_t)t->dims[d];
        if (t->dims[d] < 0 || v > MAX_ELEMENTS || (*out_n && v > MAX_ELEMENTS / *out_n)) {
            return bad(s, t->name, "'shape' has a number below 0 or more than 2^48 elements");
        }
        *out_n *= v;
    }
    return NULL;
}

/* "q4_1 576 576": what a U8 tensor really is. */
static nrd_error *read_block_type(const nrd_safetensors *s, nrd_safetensor *t)
{
    const char *text = nrd_json_get_str(s->meta, t->name, NULL);
    char type[16];
    long long rows, cols;
    size_t row_bytes;
    int end = 0;

    if (!text || t->dtype != NRD_DTYPE_U8) {
        return NULL;
    }
    nrd_dtype dtype;
    if (sscanf(text, "%15s %lld %lld%n", type, &rows, &cols, &end) != 3 || text[end] ||
        !nrd_dtype_parse(type, &dtype) || !nrd_dtype_is_quant(dtype) || rows < 0 || cols < 1 ||
        (uint64_t)cols > MAX_ELEMENTS || !nrd_dtype_bytes(dtype, (uint64_t)cols, &row_bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: __metadata__ of tensor '%s' is '%.60s', "
                          "expected a block type, rows and columns", s->path, t->name, text);
    }
    if (t->n_dims != 2 || t->dims[0] != rows || (uint64_t)t->dims[1] != row_bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' is [%lld, %lld] bytes, but %s rows "
                          "by __metadata__ need [%lld, %zu]", s->path, t->name,
                          (long long)t->dims[0], (long long)t->dims[1], text, rows, row_bytes);
    }
    t->dtype = dtype;
    t->type_name = nrd_dtype_name(dtype);
    t->dims[1] = cols;
    return NULL;
}

static nrd_error *read_tensor(nrd_safetensors *s, const nrd_json *node, size_t data_start)
{
    nrd_safetensor *t = &s->tensors[s->n];
    const char *type = nrd_json_get_str(node, "dtype", "");
    const nrd_json *span = nrd_json_get(node, "data_offsets");
    int k = 0;
    uint64_t n;

    t->name = node->key;
    if (strlen(node->key) != node->key_len) {
        return bad(s, t->name, "its name has a NUL byte");
    }
    while (k < N_TYPES && strcmp(type, types[k].name)) {
        k++;
    }
    if (k == N_TYPES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s': dtype '%.20s' is not known",
                          s->path, t->name, type);
    }
    t->type_name = types[k].name;
    t->dtype = types[k].dtype;
    NRD_TRY(read_shape(s, t, nrd_json_get(node, "shape"), &n));
    const nrd_json *ends[2] = {nrd_json_at(span, 0), nrd_json_at(span, 1)};
    int64_t from = nrd_json_int(ends[0], -1), to = nrd_json_int(ends[1], -1);
    size_t room = s->size - data_start;
    if (nrd_json_len(span) != 2 || !nrd_json_is(ends[0], NRD_JSON_INT) || !nrd_json_is(ends[1], NRD_JSON_INT)) {
        return bad(s, t->name, "'data_offsets' must be two whole numbers");
    }
    if (from < 0 || to < from || (uint64_t)to > room) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: tensor '%s' has data_offsets %lld to %lld, but there are %zu bytes "
                          "of data; the file is truncated or damaged", s->path, t->name,
                          (long long)from, (long long)to, room);
    }
    t->data = s->data + data_start + from;
    t->data_bytes = (size_t)(to - from);
    if (t->data_bytes != n * types[k].bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' has %zu bytes, but its shape and "
                          "dtype %s need %llu", s->path, t->name, t->data_bytes, type,
                          (unsigned long long)(n * types[k].bytes));
    }
    NRD_TRY(read_block_type(s, t));
    s->n++;
    return NULL;
}

static int by_name(const void *a, const void *b, void *user)
{
    const nrd_safetensor *t = user;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static int by_place(const void *a, const void *b, void *user)
{
    const nrd_safetensor *t = user, *x = &t[*(const uint32_t *)a], *y = &t[*(const uint32_t *)b];
    return x->data != y->data ? (x->data > y->data ? 1 : -1) : (x->data_bytes > y->data_bytes) - (x->data_bytes < y->data_bytes);
}

/* The format has no tensors that share bytes: a file where two do is damaged, or lies. */
static nrd_error *check_overlaps(nrd_safetensors *s)
{
    qsort_r(s->order, s->n, sizeof *s->order, by_place, s->tensors);
    for (size_t i = 1; i < s->n; i++) {
        const nrd_safetensor *a = &s->tensors[s->order[i - 1]], *b = &s->tensors[s->order[i]];
        if (a->data + a->data_bytes > b->data) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensors '%s' and '%s' share bytes; the file is damaged", s->path, a->name, b->name);
        }
    }
    return NULL;
}

static nrd_error *index_names(nrd_safetensors *s)
{
    qsort_r(s->order, s->n, sizeof *s->order, by_name, s->tensors);
    for (size_t i = 1; i < s->n; i++) {
        if (!by_name(&s->order[i - 1], &s->order[i], s->tensors)) {
            return bad(s, s->tensors[s->order[i]].name, "appears twice");
        }
    }
    return NULL;
}

static nrd_error *parse(nrd_safetensors *s)
{
    nrd_error *err = NULL;
    uint64_t header;
    nrd_json_limits limits = {.max_bytes = MAX_HEADER_BYTES, .max_depth = MAX_DEPTH};

    if (s->size < 8) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %zu bytes, expected at least 8; not a "
                          "safetensors file", s->path, s->size);
    }
    memcpy(&header, s->data, 8);
    if (header > MAX_HEADER_BYTES || header > s->size - 8) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: a header of %llu bytes does not fit the file of "
                          "%zu bytes or is over the limit of %d; truncated, or not a safetensors "
                          "file", s->path, (unsigned long long)header, s->size,
                          (int)MAX_HEADER_BYTES);
    }
    NRD_TRY(nrd_error_wrap(nrd_json_parse(&s->doc, (const char *)s->data + 8, (size_t)header,
                                          &limits), "%s: header", s->path));
    const nrd_json *root = nrd_json_root(s->doc);
    size_t n = nrd_json_len(root);
    if (!nrd_json_is(root, NRD_JSON_OBJECT) || n > MAX_TENSORS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: the header must be an object with at most %d "
                          "tensors", s->path, (int)MAX_TENSORS);
    }
    s->meta = nrd_json_get(root, "__metadata__");
    NRD_NEW_GOTO(s->tensors, n, err, fail);
    NRD_NEW_GOTO(s->order, n, err, fail);
    for (size_t i = 0; i < n; i++) {
        const nrd_json *node = &root->child[i];
        if (strcmp(node->key, "__metadata__")) {
            NRD_TRY(read_tensor(s, node, 8 + (size_t)header));
        }
    }
    bool in_order = true; /* as writers write them */
    for (uint32_t i = 0; i < s->n; i++) {
        s->order[i] = i;
        in_order = in_order && (i == 0 || s->tensors[i - 1].data + s->tensors[i - 1].data_bytes <= s->tensors[i].data);
    }
    NRD_TRY(index_names(s));
    if (!in_order) {
        NRD_TRY(check_overlaps(s));
        return index_names(s);
    }
    return NULL;

fail:
    return err; /* the caller closes */
}

static nrd_error *open_any(nrd_safetensors **out, const char *path, const void *data, size_t n)
{
    nrd_error *err = NULL;
    nrd_safetensors *s = NULL;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    NRD_DUP_GOTO(s->path, path ? path : "<memory>", err, fail);
    if (path) {
        NRD_TRY_GOTO(nrd_map_open(&s->map, path), err, fail);
        data = s->map.data;
        n = s->map.size_bytes;
    }
    s->data = data;
    s->size = n;
    NRD_TRY_GOTO(parse(s), err, fail);
    *out = s;
    return NULL;

fail:
    nrd_safetensors_close(s);
    return err;
}

nrd_error *nrd_safetensors_open(nrd_safetensors **out, const char *path)
{
    return open_any(out, path, NULL, 0);
}

nrd_error *nrd_safetensors_open_memory(nrd_safetensors **out, const void *data, size_t n)
{
    return open_any(out, NULL, data, n);
}

bool nrd_safetensors_is_lost(const nrd_safetensors *s)
{
    return nrd_map_is_lost(&s->map);
}

void nrd_safetensors_close(nrd_safetensors *s)
{
    if (!s) {
        return;
    }
    free(s->tensors);
    free(s->order);
    nrd_json_doc_free(s->doc);
    nrd_map_close(&s->map);
    free(s->path);
    free(s);
}

size_t nrd_safetensors_n(const nrd_safetensors *s)
{
    return s->n;
}

const nrd_safetensor *nrd_safetensors_at(const nrd_safetensors *s, size_t i)
{
    return i < s->n ? &s->tensors[i] : NULL;
}

typedef struct sought {
    const nrd_safetensors *in;
    const char *name;
} sought;

static int against(const void *key, uint32_t index)
{
    const sought *k = key;
    return strcmp(k->name, k->in->tensors[index].name);
}

const nrd_safetensor *nrd_safetensors_find(const nrd_safetensors *s, const char *name)
{
    const int64_t i = nrd_order_find(s->order, s->n, against, &(sought){s, name});
    return i < 0 ? NULL : &s->tensors[i];
}

const char *nrd_safetensors_metadata(const nrd_safetensors *s, const char *key)
{
    return nrd_json_get_str(s->meta, key, NULL);
}

/* ---- writing ---- */

struct nrd_safetensors_writer {
    nrd_file_writer *file;
    char *path;
    nrd_str tensors, meta; /* members of the two objects */
    uint64_t announced, written;
    bool begun;
};

nrd_error *nrd_safetensors_writer_open(nrd_safetensors_writer **out, const char *path)
{
    nrd_error *err = NULL;
    nrd_safetensors_writer *w = NULL;

    *out = NULL;
    NRD_NEW_GOTO(w, 1, err, fail);
    NRD_DUP_GOTO(w->path, path, err, fail);
    NRD_TRY_GOTO(nrd_file_writer_open(&w->file, path), err, fail);
    nrd_str_puts(&w->meta, "\"format\":\"pt\"");
    *out = w;
    return NULL;

fail:
    nrd_safetensors_writer_abort(w);
    return err;
}

nrd_error *nrd_safetensors_writer_add(nrd_safetensors_writer *w, const char *name, nrd_dtype dtype,
                                      const int64_t *dims, int n_dims)
{
    bool block = nrd_dtype_is_quant(dtype);
    nrd_dtype stored = block ? NRD_DTYPE_U8 : dtype;
    size_t row_bytes, bytes = 1;
    int k = 0;

    while (k < N_TYPES && (types[k].dtype != stored || stored == NRD_DTYPE_NONE)) {
        k++;
    }
    if (k == N_TYPES || n_dims < 1 || n_dims > 4 || (block && n_dims != 2)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%s' of type %s with %d dimensions "
                          "cannot be written", w->path, name, nrd_dtype_name(dtype), n_dims);
    }
    if (!nrd_dtype_bytes(dtype, (uint64_t)dims[n_dims - 1], &row_bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s': rows of %lld are no multiple of a "
                          "%s block", w->path, name, (long long)dims[n_dims - 1],
                          nrd_dtype_name(dtype));
    }
    bytes = row_bytes;
    nrd_str_putc(&w->tensors, ',');
    nrd_json_put_cstr(&w->tensors, name);
    nrd_str_printf(&w->tensors, ":{\"dtype\":\"%s\",\"shape\":[", types[k].name);
    for (int d = 0; d < n_dims; d++) {
        long long v = block && d == n_dims - 1 ? (long long)row_bytes : (long long)dims[d];
        nrd_str_printf(&w->tensors, "%s%lld", d ? "," : "", v);
        if (dims[d] < 0 || (d < n_dims - 1 && !nrd_size_mul(bytes, (size_t)dims[d], &bytes))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' is too large", w->path, name);
        }
    }
    nrd_str_printf(&w->tensors, "],\"data_offsets\":[%llu,%llu]}",
                   (unsigned long long)w->announced, (unsigned long long)(w->announced + bytes));
    w->announced += bytes;
    if (block) {
        nrd_str_putc(&w->meta, ',');
        nrd_json_put_cstr(&w->meta, name);
        nrd_str_printf(&w->meta, ":\"%s %lld %lld\"", nrd_dtype_name(dtype), (long long)dims[0],
                       (long long)dims[1]);
    }
    return NULL;
}

static nrd_error *write_all(nrd_safetensors_writer *w, const void *data, size_t n)
{
    return fwrite(data, 1, n, nrd_file_writer_stream(w->file)) == n ? NULL : nrd_file_error("write", w->path);
}

nrd_error *nrd_safetensors_writer_begin(nrd_safetensors_writer *w)
{
    nrd_str h = {0};
    nrd_str_printf(&h, "{\"__metadata__\":{%s}%s}", nrd_str_cstr(&w->meta),
                   nrd_str_cstr(&w->tensors));
    while ((h.len + 8) % 64) { /* data on a cache line; the format allows trailing spaces */
        nrd_str_putc(&h, ' ');
    }
    uint64_t n = h.len;
    nrd_error *err = n > MAX_HEADER_BYTES
                         ? nrd_errorf(NRD_ERR_INVALID_ARG, "%s: the header is over %d bytes",
                                      w->path, (int)MAX_HEADER_BYTES)
                         : nrd_file_check_room(w->path, n + w->announced);
    if (!err) {
        err = write_all(w, &n, 8);
    }
    if (!err) {
        err = write_all(w, h.data, h.len);
    }
    nrd_str_fini(&h);
    w->begun = true;
    return err;
}

nrd_error *nrd_safetensors_writer_write(nrd_safetensors_writer *w, const void *data, size_t n)
{
    NRD_ASSERT(w->begun && n <= w->announced - w->written, "no more bytes than were announced");
    w->written += n;
    return write_all(w, data, n);
}

nrd_error *nrd_safetensors_writer_commit(nrd_safetensors_writer *w)
{
    NRD_ASSERT(w->begun && w->written == w->announced, "every announced byte was written");
    nrd_error *err = nrd_file_writer_commit(w->file);
    w->file = NULL;
    nrd_safetensors_writer_abort(w);
    return err;
}

void nrd_safetensors_writer_abort(nrd_safetensors_writer *w)
{
    if (!w) {
        return;
    }
    nrd_file_writer_abort(w->file);
    nrd_str_fini(&w->tensors);
    nrd_str_fini(&w->meta);
    free(w->path);
    free(w);
}
