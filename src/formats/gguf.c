/* SPDX-License-Identifier: Apache-2.0
 * Reads a GGUF file in one pass: counts, metadata, tensor descriptions, then the start of the data;
 * checks every length against the file; sorts keys and names for searching. Called by
 * model/source.c and by the tokenizer's loader. */
#include "formats/gguf.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KEY_BYTES = 65535,       /* the format's own limit */
    MAX_NAME_BYTES = 255,        /* the format says 64; some writers use more */
    MAX_VALUES = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_ALIGNMENT = 1 << 20,
    DEFAULT_ALIGNMENT = 32,
    MIN_VALUE_BYTES = 8 + 4 + 1, /* key length, type, smallest scalar */
    MIN_TENSOR_BYTES = 8 + 4 + 4 + 8,
};
#define MAX_STRING_ARRAY_BYTES ((uint64_t)UINT32_MAX) /* str_off holds 32-bit offsets */
#define MAX_ELEMENTS ((uint64_t)1 << 48)

struct nrd_gguf {
    nrd_map map;
    char *path; /* "<memory>" when there is no file */
    const uint8_t *data;
    size_t size;
    uint32_t version;
    nrd_gguf_value *values;
    size_t n_values;
    uint32_t *value_order; /* indices of values, sorted by key */
    nrd_gguf_tensor *tensors;
    size_t n_tensors;
    uint32_t *tensor_order; /* indices of tensors, sorted by name */
    uint64_t *tensor_offset; /* as the file says, until the data section is known */
    nrd_arena names;
    nrd_gguf *next; /* owns: a part whose tensors are among these */
};

/* Tensor types by their number in the file. Those without an nrd_dtype are listed so that a
 * message can name them. */
typedef struct {
    const char *name;
    nrd_dtype dtype;
    uint32_t block, block_bytes;
    uint32_t more; /* bytes behind all blocks */
} tensor_type;

static const tensor_type tensor_types[] = {
    [0] = {"F32", NRD_DTYPE_F32, 1, 4},
    [1] = {"F16", NRD_DTYPE_F16, 1, 2},
    [2] = {"Q4_0", NRD_DTYPE_Q4_0, 32, 18},
    [3] = {"Q4_1", NRD_DTYPE_Q4_1, 32, 20},
    [6] = {"Q5_0", NRD_DTYPE_Q5_0, 32, 22},
    [7] = {"Q5_1", NRD_DTYPE_Q5_1, 32, 24},
    [8] = {"Q8_0", NRD_DTYPE_Q8_0, 32, 34},
    [9] = {"Q8_1", NRD_DTYPE_NONE, 32, 36},
    [10] = {"Q2_K", NRD_DTYPE_Q2_K, 256, 84},
    [11] = {"Q3_K", NRD_DTYPE_Q3_K, 256, 110},
    [12] = {"Q4_K", NRD_DTYPE_Q4_K, 256, 144},
    [13] = {"Q5_K", NRD_DTYPE_Q5_K, 256, 176},
    [14] = {"Q6_K", NRD_DTYPE_Q6_K, 256, 210},
    [15] = {"Q8_K", NRD_DTYPE_NONE, 256, 292},
    [16] = {"IQ2_XXS", NRD_DTYPE_IQ2_XXS, 256, 66},
    [17] = {"IQ2_XS", NRD_DTYPE_IQ2_XS, 256, 74},
    [18] = {"IQ3_XXS", NRD_DTYPE_IQ3_XXS, 256, 98},
    [19] = {"IQ1_S", NRD_DTYPE_IQ1_S, 256, 50},
    [20] = {"IQ4_NL", NRD_DTYPE_IQ4_NL, 32, 18},
    [21] = {"IQ3_S", NRD_DTYPE_IQ3_S, 256, 110},
    [22] = {"IQ2_S", NRD_DTYPE_IQ2_S, 256, 82},
    [23] = {"IQ4_XS", NRD_DTYPE_IQ4_XS, 256, 136},
    [24] = {"I8", NRD_DTYPE_I8, 1, 1},
    [25] = {"I16", NRD_DTYPE_I16, 1, 2},
    [26] = {"I32", NRD_DTYPE_I32, 1, 4},
    [27] = {"I64", NRD_DTYPE_I64, 1, 8},
    [28] = {"F64", NRD_DTYPE_F64, 1, 8},
    [29] = {"IQ1_M", NRD_DTYPE_IQ1_M, 256, 56},
    [30] = {"BF16", NRD_DTYPE_BF16, 1, 2},
    [34] = {"TQ1_0", NRD_DTYPE_TQ1_0, 256, 54},
    [35] = {"TQ2_0", NRD_DTYPE_TQ2_0, 256, 66},
    [36] = {NRD_GGUF_I2_S, NRD_DTYPE_NONE, 128, 32, 4}, /* bitnet.cpp's */
    [39] = {"MXFP4", NRD_DTYPE_MXFP4, 32, 17},
    [40] = {"NVFP4", NRD_DTYPE_NONE, 64, 36},
    [41] = {"Q1_0", NRD_DTYPE_NONE, 128, 18},
};

const char *nrd_gguf_tensor_type_name(uint32_t type)
{
    if (type >= sizeof tensor_types / sizeof tensor_types[0] || !tensor_types[type].name) {
        return "unknown";
    }
    return tensor_types[type].name;
}

/* ---- reading forward through the header ---- */

typedef struct {
    const nrd_gguf *g;
    size_t pos;
} cursor;

static size_t left(const cursor *c)
{
    return c->g->size - c->pos;
}

static nrd_error *need(const cursor *c, uint64_t n, const char *what)
{
    if (n > left(c)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: %s at offset %zu needs %llu bytes, but %zu are left; the file is "
                          "truncated or damaged",
                          c->g->path, what, c->pos, (unsigned long long)n, left(c));
    }
    return NULL;
}

static nrd_error *read_u32(cursor *c, uint32_t *out, const char *what)
{
    NRD_TRY(need(c, 4, what));
    memcpy(out, c->g->data + c->pos, 4);
    c->pos += 4;
    return NULL;
}

static nrd_error *read_u64(cursor *c, uint64_t *out, const char *what)
{
    NRD_TRY(need(c, 8, what));
    memcpy(out, c->g->data + c->pos, 8);
    c->pos += 8;
    return NULL;
}

static nrd_error *read_span(cursor *c, nrd_gguf_span *out, uint64_t max, const char *what)
{
    uint64_t n;
    size_t at = c->pos;
    NRD_TRY(read_u64(c, &n, what));
    if (n > max) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: %s at offset %zu is %llu bytes long, the limit is %llu", c->g->path,
                          what, at, (unsigned long long)n, (unsigned long long)max);
    }
    NRD_TRY(need(c, n, what));
    out->data = (const char *)c->g->data + c->pos;
    out->n = (size_t)n;
    c->pos += (size_t)n;
    return NULL;
}

static size_t scalar_bytes(nrd_gguf_type t) /* 0: no scalar */
{
    switch (t) {
    case NRD_GGUF_U8:
    case NRD_GGUF_I8:
    case NRD_GGUF_BOOL:
        return 1;
    case NRD_GGUF_U16:
    case NRD_GGUF_I16:
        return 2;
    case NRD_GGUF_U32:
    case NRD_GGUF_I32:
    case NRD_GGUF_F32:
        return 4;
    case NRD_GGUF_U64:
    case NRD_GGUF_I64:
    case NRD_GGUF_F64:
        return 8;
    case NRD_GGUF_STRING:
    case NRD_GGUF_ARRAY:
        break;
    }
    return 0;
}

static nrd_error *read_string_array(cursor *c, nrd_gguf_value *v)
{
    nrd_error *err = NULL;
    uint32_t *off = NULL;
    size_t start = c->pos;
    nrd_gguf_span s;

    NRD_TRY(need(c, v->n > UINT64_MAX / 8 ? UINT64_MAX : v->n * 8, "array of strings"));
    NRD_NEW_GOTO(off, v->n, err, fail);
    v->data = c->g->data + start;
    for (uint64_t i = 0; i < v->n; i++) {
        if (c->pos - start > MAX_STRING_ARRAY_BYTES) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "%s: the array of strings at offset %zu is longer than 4 GiB",
                             c->g->path, start);
            goto fail;
        }
        off[i] = (uint32_t)(c->pos - start);
        NRD_TRY_GOTO(read_span(c, &s, UINT32_MAX, "string in an array"), err, fail);
    }
    v->data_bytes = c->pos - start;
    v->str_off = off;
    return NULL;

fail:
    free(off);
    return err;
}

static nrd_error *read_array(cursor *c, nrd_gguf_value *v)
{
    uint32_t type;
    size_t at = c->pos;

    NRD_TRY(read_u32(c, &type, "array element type"));
    NRD_TRY(read_u64(c, &v->n, "array length"));
    v->elem_type = (nrd_gguf_type)type;
    if (type == NRD_GGUF_STRING) {
        return read_string_array(c, v);
    }
    size_t each = scalar_bytes(v->elem_type);
    if (!each) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: the array at offset %zu has element type %u; expected a number, "
                          "bool or string",
                          c->g->path, at, type);
    }
    NRD_TRY(need(c, v->n > UINT64_MAX / each ? UINT64_MAX : v->n * each, "array"));
    v->data = c->g->data + c->pos;
    v->data_bytes = (size_t)v->n * each;
    c->pos += v->data_bytes;
    return NULL;
}

static nrd_error *read_value(cursor *c, nrd_gguf_value *v)
{
    uint32_t type;
    size_t at;

    NRD_TRY(read_span(c, &v->key, MAX_KEY_BYTES, "metadata key"));
    at = c->pos;
    NRD_TRY(read_u32(c, &type, "metadata type"));
    v->type = (nrd_gguf_type)type;
    v->elem_type = v->type;
    v->n = 1;
    if (type == NRD_GGUF_ARRAY) {
        return read_array(c, v);
    }
    if (type == NRD_GGUF_STRING) {
        nrd_gguf_span s;
        v->data = c->g->data + c->pos;
        NRD_TRY(read_span(c, &s, UINT32_MAX, "metadata string"));
        v->data_bytes = 8 + s.n;
        return NULL;
    }
    size_t n = scalar_bytes(v->type);
    if (!n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: metadata key '%.*s' at offset %zu has type %u; types are 0 to 12",
                          c->g->path, (int)v->key.n, v->key.data, at, type);
    }
    NRD_TRY(need(c, n, "metadata value"));
    v->data = c->g->data + c->pos;
    v->data_bytes = n;
    c->pos += n;
    return NULL;
}

static nrd_error *tensor_error(const nrd_gguf *g, const nrd_gguf_tensor *t, const char *what,
                               unsigned long long got)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s': %s (%llu)", g->path, t->name, what,
                      got);
}

static nrd_error *tensor_size(const nrd_gguf *g, nrd_gguf_tensor *t)
{
    const tensor_type *type = &tensor_types[t->type];
    uint64_t n = 1;
    size_t bytes;

    for (int i = 0; i < t->n_dims; i++) {
        uint64_t d = (uint64_t)t->dims[i];
        if (d > MAX_ELEMENTS || (n && d > MAX_ELEMENTS / n)) {
            return tensor_error(g, t, "more elements than the limit of 2^48; a dimension is", d);
        }
        n *= d;
    }
    if ((uint64_t)t->dims[0] % type->block) {
        return tensor_error(g, t, "the row length is no multiple of its type's block",
                            (unsigned long long)t->dims[0]);
    }
    if (!nrd_size_mul((size_t)(n / type->block), type->block_bytes, &bytes) || !nrd_size_add(bytes, type->more, &bytes)) {
        return tensor_error(g, t, "the size overflows; elements", n);
    }
    t->data_bytes = bytes;
    return NULL;
}

static nrd_error *read_tensor(cursor *c, nrd_gguf *g, size_t i)
{
    nrd_gguf_tensor *t = &g->tensors[i];
    nrd_gguf_span name;
    uint32_t n_dims;

    NRD_TRY(read_span(c, &name, MAX_NAME_BYTES, "tensor name"));
    if (memchr(name.data, '\0', name.n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor %zu has a NUL byte in its name", g->path,
                          i);
    }
    t->name = nrd_arena_strndup(&g->names, name.data, name.n);
    if (!t->name) {
        return nrd_error_no_memory();
    }
    NRD_TRY(read_u32(c, &n_dims, "number of dimensions"));
    if (n_dims < 1 || n_dims > 4) {
        return tensor_error(g, t, "expected 1 to 4 dimensions, got", n_dims);
    }
    t->n_dims = (int)n_dims;
    for (int d = 0; d < 4; d++) {
        uint64_t v = 1;
        if (d < t->n_dims) {
            NRD_TRY(read_u64(c, &v, "dimension"));
        }
        if (v > MAX_ELEMENTS) {
            return tensor_error(g, t, "more elements than the limit of 2^48; a dimension is", v);
        }
        t->dims[d] = (int64_t)v;
    }
    NRD_TRY(read_u32(c, &t->type, "tensor type"));
    if (t->type >= sizeof tensor_types / sizeof tensor_types[0] || !tensor_types[t->type].name) {
        return tensor_error(g, t, "its type number is not known", t->type);
    }
    t->dtype = tensor_types[t->type].dtype;
    NRD_TRY(read_u64(c, &g->tensor_offset[i], "tensor offset"));
    return tensor_size(g, t);
}

/* ---- lookup ---- */

static int compare_spans(const char *a, size_t na, const char *b, size_t nb)
{
    int c = memcmp(a, b, na < nb ? na : nb);
    return c ? c : (na > nb) - (na < nb);
}

static int by_key(const void *a, const void *b, void *user)
{
    const nrd_gguf_value *v = user;
    const nrd_gguf_span *x = &v[*(const uint32_t *)a].key, *y = &v[*(const uint32_t *)b].key;
    return compare_spans(x->data, x->n, y->data, y->n);
}

static int by_name(const void *a, const void *b, void *user)
{
    const nrd_gguf_tensor *t = user;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static nrd_error *index_tensors(nrd_gguf *g)
{
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        g->tensor_order[i] = i;
    }
    qsort_r(g->tensor_order, g->n_tensors, sizeof(uint32_t), by_name, g->tensors);
    for (size_t i = 1; i < g->n_tensors; i++) {
        if (!by_name(&g->tensor_order[i - 1], &g->tensor_order[i], g->tensors)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' appears twice", g->path,
                              g->tensors[g->tensor_order[i]].name);
        }
    }
    return NULL;
}

static nrd_error *index_all(nrd_gguf *g)
{
    for (uint32_t i = 0; i < g->n_values; i++) {
        g->value_order[i] = i;
    }
    qsort_r(g->value_order, g->n_values, sizeof(uint32_t), by_key, g->values);
    for (size_t i = 1; i < g->n_values; i++) {
        const nrd_gguf_span *k = &g->values[g->value_order[i]].key;
        if (!by_key(&g->value_order[i - 1], &g->value_order[i], g->values)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: metadata key '%.*s' appears twice", g->path,
                              (int)k->n, k->data);
        }
    }
    return index_tensors(g);
}

/* ---- open ---- */

static nrd_error *place_tensors(nrd_gguf *g, size_t header_end)
{
    int64_t align = nrd_gguf_int(g, "general.alignment", DEFAULT_ALIGNMENT);
    if (align < 1 || align > MAX_ALIGNMENT || (align & (align - 1))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: general.alignment must be a power of two up to %d, got %lld",
                          g->path, (int)MAX_ALIGNMENT, (long long)align);
    }
    size_t mask = (size_t)align - 1;
    size_t start = (header_end + mask) & ~mask;
    size_t room = start < g->size ? g->size - start : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        nrd_gguf_tensor *t = &g->tensors[i];
        uint64_t off = g->tensor_offset[i];
        if (off & mask) {
            return tensor_error(g, t, "its offset is no multiple of general.alignment", off);
        }
        if (off > room || t->data_bytes > room - off) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "%s: tensor '%s' needs bytes %llu to %llu of the data section, which "
                              "has %zu; the file is truncated or damaged",
                              g->path, t->name, (unsigned long long)off,
                              (unsigned long long)off + t->data_bytes, room);
        }
        t->data = g->data + start + off;
    }
    return NULL;
}

static nrd_error *read_counts(cursor *c, nrd_gguf *g)
{
    uint64_t n_tensors, n_values;

    NRD_TRY(need(c, 4, "magic"));
    if (memcmp(g->data, "GGUF", 4)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: not a GGUF file: it begins with %02x %02x %02x %02x, expected 'GGUF'",
                          g->path, g->data[0], g->data[1], g->data[2], g->data[3]);
    }
    c->pos = 4;
    NRD_TRY(read_u32(c, &g->version, "version"));
    if (g->version != 2 && g->version != 3) {
        bool swapped = g->version && !(g->version & 0xffffu);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: GGUF version %u is not supported%s; "
                          "expected 2 or 3", g->path, g->version,
                          swapped ? " (a big-endian file)" : "");
    }
    NRD_TRY(read_u64(c, &n_tensors, "tensor count"));
    NRD_TRY(read_u64(c, &n_values, "metadata count"));
    if (n_tensors > MAX_TENSORS || n_tensors > left(c) / MIN_TENSOR_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: tensor count %llu at offset 8 is over the limit of %d or does not "
                          "fit in the file", g->path, (unsigned long long)n_tensors,
                          (int)MAX_TENSORS);
    }
    if (n_values > MAX_VALUES || n_values > left(c) / MIN_VALUE_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: metadata count %llu at offset 16 is over the limit of %d or does not "
                          "fit in the file", g->path, (unsigned long long)n_values,
                          (int)MAX_VALUES);
    }
    g->n_tensors = (size_t)n_tensors;
    g->n_values = (size_t)n_values;
    return NULL;
}

static nrd_error *parse(nrd_gguf *g)
{
    nrd_error *err = NULL;
    cursor c = {g, 0};

    NRD_TRY(read_counts(&c, g));
    NRD_NEW_GOTO(g->values, g->n_values, err, fail);
    NRD_NEW_GOTO(g->value_order, g->n_values, err, fail);
    NRD_NEW_GOTO(g->tensors, g->n_tensors, err, fail);
    NRD_NEW_GOTO(g->tensor_order, g->n_tensors, err, fail);
    NRD_NEW_GOTO(g->tensor_offset, g->n_tensors, err, fail);
    for (size_t i = 0; i < g->n_values; i++) {
        NRD_TRY(read_value(&c, &g->values[i]));
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        NRD_TRY(read_tensor(&c, g, i));
    }
    NRD_TRY(index_all(g));
    return place_tensors(g, c.pos);

fail:
    return err; /* the caller closes g */
}

nrd_error *nrd_gguf_open(nrd_gguf **out, const char *path)
{
    nrd_error *err = NULL;
    nrd_gguf *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    NRD_DUP_GOTO(g->path, path, err, fail);
    NRD_TRY_GOTO(nrd_map_open(&g->map, path), err, fail);
    g->data = g->map.data;
    g->size = g->map.size_bytes;
    NRD_TRY_GOTO(parse(g), err, fail);
    *out = g;
    return NULL;

fail:
    nrd_gguf_close(g);
    return err;
}

nrd_error *nrd_gguf_open_memory(nrd_gguf **out, const void *data, size_t n)
{
    nrd_error *err = NULL;
    nrd_gguf *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    NRD_DUP_GOTO(g->path, "<memory>", err, fail);
    g->data = data;
    g->size = n;
    NRD_TRY_GOTO(parse(g), err, fail);
    *out = g;
    return NULL;

fail:
    nrd_gguf_close(g);
    return err;
}

nrd_error *nrd_gguf_join(nrd_gguf *g, nrd_gguf *part)
{
    const size_t n = g->n_tensors + part->n_tensors;
    nrd_gguf_tensor *tensors = n <= MAX_TENSORS ? realloc(g->tensors, (n + 1) * sizeof *tensors) : NULL;
    if (tensors) {
        g->tensors = tensors;
    }
    uint32_t *order = tensors ? realloc(g->tensor_order, (n + 1) * sizeof *order) : NULL;
    if (order) {
        g->tensor_order = order;
    }
    if (!tensors || !order) {
        return n <= MAX_TENSORS ? nrd_error_no_memory()
                                : nrd_errorf(NRD_ERR_INVALID_ARG, "%s: more than %d tensors in all parts", g->path, MAX_TENSORS);
    }
    const size_t before = g->n_tensors;
    memcpy(g->tensors + before, part->tensors, part->n_tensors * sizeof *tensors);
    g->n_tensors = n;
    nrd_error *err = index_tensors(g);
    if (err) {
        g->n_tensors = before;
        nrd_error_free(index_tensors(g)); /* fine before, and so now */
        return err;
    }
    part->next = g->next;
    g->next = part;
    return NULL;
}

bool nrd_gguf_is_lost(const nrd_gguf *g)
{
    return nrd_map_is_lost(&g->map) || (g->next && nrd_gguf_is_lost(g->next));
}

void nrd_gguf_close(nrd_gguf *g)
{
    if (!g) {
        return;
    }
    nrd_gguf_close(g->next);
    for (size_t i = 0; g->values && i < g->n_values; i++) {
        free((void *)(uintptr_t)g->values[i].str_off);
    }
    free(g->values);
    free(g->value_order);
    free(g->tensors);
    free(g->tensor_order);
    free(g->tensor_offset);
    nrd_arena_fini(&g->names);
    nrd_map_close(&g->map);
    free(g->path);
    free(g);
}

/* ---- access ---- */

size_t nrd_gguf_n_values(const nrd_gguf *g)
{
    return g->n_values;
}

const nrd_gguf_value *nrd_gguf_value_at(const nrd_gguf *g, size_t i)
{
    return i < g->n_values ? &g->values[i] : NULL;
}

typedef struct sought {
    const nrd_gguf *in;
    const char *name;
    size_t n;
} sought;

static int against_value(const void *key, uint32_t index)
{
    const sought *k = key;
    const nrd_gguf_span *is = &k->in->values[index].key;
    return compare_spans(k->name, k->n, is->data, is->n);
}

static int against_tensor(const void *key, uint32_t index)
{
    const sought *k = key;
    return strcmp(k->name, k->in->tensors[index].name);
}

const nrd_gguf_value *nrd_gguf_find(const nrd_gguf *g, const char *key)
{
    const int64_t i = nrd_order_find(g->value_order, g->n_values, against_value, &(sought){g, key, strlen(key)});
    return i < 0 ? NULL : &g->values[i];
}

size_t nrd_gguf_n_tensors(const nrd_gguf *g)
{
    return g->n_tensors;
}

const nrd_gguf_tensor *nrd_gguf_tensor_at(const nrd_gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const nrd_gguf_tensor *nrd_gguf_find_tensor(const nrd_gguf *g, const char *name)
{
    const int64_t i = nrd_order_find(g->tensor_order, g->n_tensors, against_tensor, &(sought){g, name, 0});
    return i < 0 ? NULL : &g->tensors[i];
}

/* One number of any type. Unsigned 64-bit values above INT64_MAX saturate as integers. */
typedef struct {
    bool ok, is_int;
    int64_t i;
    double real;
} number;

#define LOAD_INT(type)                                                                             \
    do {                                                                                           \
        type v_;                                                                                   \
        memcpy(&v_, p, sizeof v_);                                                                 \
        n.i = (int64_t)v_;                                                                         \
        n.real = (double)v_;                                                                       \
    } while (0)

static number load_number(nrd_gguf_type t, const uint8_t *p)
{
    number n = {true, true, 0, 0};
    uint64_t u;
    float f;

    switch (t) {
    case NRD_GGUF_U8:
    case NRD_GGUF_BOOL:
        LOAD_INT(uint8_t);
        return n;
    case NRD_GGUF_I8:
        LOAD_INT(int8_t);
        return n;
    case NRD_GGUF_U16:
        LOAD_INT(uint16_t);
        return n;
    case NRD_GGUF_I16:
        LOAD_INT(int16_t);
        return n;
    case NRD_GGUF_U32:
        LOAD_INT(uint32_t);
        return n;
    case NRD_GGUF_I32:
        LOAD_INT(int32_t);
        return n;
    case NRD_GGUF_I64:
        LOAD_INT(int64_t);
        return n;
    case NRD_GGUF_U64:
        memcpy(&u, p, sizeof u);
        n.i = u > INT64_MAX ? INT64_MAX : (int64_t)u;
        n.real = (double)u;
        return n;
    case NRD_GGUF_F32:
        memcpy(&f, p, sizeof f);
        n.is_int = false;
        n.real = (double)f;
        return n;
    case NRD_GGUF_F64:
        memcpy(&n.real, p, sizeof n.real);
        n.is_int = false;
        return n;
    case NRD_GGUF_STRING:
    case NRD_GGUF_ARRAY:
        break;
    }
    n.ok = false;
    return n;
}

static number find_number(const nrd_gguf *g, const char *key)
{
    const nrd_gguf_value *v = nrd_gguf_find(g, key);
    number none = {false, false, 0, 0};
    return v ? load_number(v->type, v->data) : none;
}

int64_t nrd_gguf_int(const nrd_gguf *g, const char *key, int64_t fallback)
{
    number n = find_number(g, key);
    if (!n.ok) {
        return fallback;
    }
    if (n.is_int) {
        return n.i;
    }
    /* a whole real counts; the bound keeps the conversion defined */
    bool fits = n.real > -9e18 && n.real < 9e18;
    return fits && (double)(int64_t)n.real == n.real ? (int64_t)n.real : fallback;
}

double nrd_gguf_num(const nrd_gguf *g, const char *key, double fallback)
{
    number n = find_number(g, key);
    return n.ok ? n.real : fallback;
}

bool nrd_gguf_bool(const nrd_gguf *g, const char *key, bool fallback)
{
    number n = find_number(g, key);
    return n.ok && n.is_int ? n.i != 0 : fallback;
}

bool nrd_gguf_str(const nrd_gguf *g, const char *key, nrd_gguf_span *out)
{
    const nrd_gguf_value *v = nrd_gguf_find(g, key);
    if (!v || v->type != NRD_GGUF_STRING) {
        return false;
    }
    out->data = (const char *)v->data + 8;
    out->n = v->data_bytes - 8;
    return true;
}

bool nrd_gguf_arr_str(const nrd_gguf_value *v, uint64_t i, nrd_gguf_span *out)
{
    uint64_t n;
    if (!v || v->type != NRD_GGUF_ARRAY || v->elem_type != NRD_GGUF_STRING || i >= v->n) {
        return false;
    }
    const uint8_t *p = v->data + v->str_off[i];
    memcpy(&n, p, 8); /* checked against the file at open */
    out->data = (const char *)p + 8;
    out->n = (size_t)n;
    return true;
}

bool nrd_gguf_arr_num(const nrd_gguf_value *v, uint64_t i, double *out)
{
    if (!v || v->type != NRD_GGUF_ARRAY || i >= v->n || v->elem_type == NRD_GGUF_STRING) {
        return false;
    }
    number n = load_number(v->elem_type, v->data + (size_t)i * scalar_bytes(v->elem_type));
    *out = n.real;
    return n.ok;
}
