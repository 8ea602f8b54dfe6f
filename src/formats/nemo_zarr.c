/* SPDX-License-Identifier: Apache-2.0
 * Weights that Megatron core saved with zarr: for each tensor a folder with .zarray (shape, type) and one chunk. Called by
 * formats/nemo.c. */
#include "formats/nemo_internal.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 512, MAX_HEADER = 1 << 16 };
#define MAX_ELEMENTS ((int64_t)1 << 48)
#define LAYERS ".layers."

static nrd_error *read_type(const nrd_json *z, nrd_dtype *out)
{
    static const struct {
        const char *name;
        nrd_dtype dtype;
    } types[] = {{"bfloat16", NRD_DTYPE_BF16}, {"<f2", NRD_DTYPE_F16}, {"<f4", NRD_DTYPE_F32}};
    const char *name = nrd_json_get_str(z, "dtype", "");

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!strcmp(types[i].name, name)) {
            *out = types[i].dtype;
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "'dtype' is '%.40s'; known: bfloat16, <f2, <f4", name);
}

/* Shape and type of an array of one chunk that is not compressed. */
static nrd_error *read_header(const nrd_json *z, nrd_torch_tensor *t)
{
    const nrd_json *shape = nrd_json_get(z, "shape"), *chunks = nrd_json_get(z, "chunks");
    const nrd_json *filters = nrd_json_get(z, "filters"), *packed = nrd_json_get(z, "compressor");
    int64_t n = 1;

    NRD_TRY(read_type(z, &t->dtype));
    if ((packed && !nrd_json_is(packed, NRD_JSON_NULL)) || (filters && !nrd_json_is(filters, NRD_JSON_NULL))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a compressed array is not supported");
    }
    if (strcmp(nrd_json_get_str(z, "order", "C"), "C") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'order' must be C");
    }
    t->n_dims = (int)nrd_json_len(shape);
    if (!nrd_json_is(shape, NRD_JSON_ARRAY) || t->n_dims < 1 || t->n_dims > NRD_TORCH_MAX_DIMS ||
        nrd_json_len(chunks) != nrd_json_len(shape)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'shape' and 'chunks' must be lists of 1 to %d numbers", (int)NRD_TORCH_MAX_DIMS);
    }
    for (int d = 0; d < t->n_dims; d++) {
        t->dims[d] = nrd_json_int(nrd_json_at(shape, (size_t)d), 0);
        if (t->dims[d] < 1 || t->dims[d] > MAX_ELEMENTS / n) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'shape' has a number that is not above 0, or is too large");
        }
        if (nrd_json_int(nrd_json_at(chunks, (size_t)d), 0) != t->dims[d]) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "an array of several chunks, as tensor parallelism saves it, is not supported");
        }
        n *= t->dims[d];
    }
    return nrd_dtype_bytes(t->dtype, (uint64_t)n, &t->data_bytes)
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "'shape' is too large");
}

/* "model.decoder.layers.self_attention.linear_qkv.weight" [layers, rows, cols]: the tensors of the layers. */
static nrd_error *take_layers(const nrd_torch_tensor *all, nrd_nemo_taker *take, void *user, size_t *n)
{
    const char *at = strstr(all->name, LAYERS);
    char name[MAX_NAME];
    nrd_torch_tensor t = *all;

    if (!at || all->n_dims < 2 || (at[strlen(LAYERS)] >= '0' && at[strlen(LAYERS)] <= '9')) {
        ++*n;
        return take(user, all);
    }
    at += strlen(LAYERS);
    memmove(t.dims, t.dims + 1, (size_t)(t.n_dims - 1) * sizeof *t.dims);
    t.n_dims--;
    t.data_bytes = all->data_bytes / (size_t)all->dims[0];
    for (int64_t i = 0; i < all->dims[0]; i++, ++*n) {
        snprintf(name, sizeof name, "%.*s%lld.%s", (int)(at - all->name), all->name, (long long)i, at);
        t.name = name;
        t.data = (const uint8_t *)all->data + (size_t)i * t.data_bytes;
        NRD_TRY(take(user, &t));
    }
    return NULL;
}

static nrd_error *read_array(const nrd_tar *archive, const nrd_tar_member *header, const char *prefix, nrd_nemo_taker *take, void *user,
                             size_t *n)
{
    static const char zeros[] = "0.0.0.0.0";
    char name[MAX_NAME], path[MAX_NAME + 16];
    nrd_torch_tensor t = {.name = name};
    nrd_json_doc *doc = NULL;
    const size_t folder = strlen(header->name) - strlen("/.zarray"), skip = strlen(prefix);

    if (folder <= skip || folder >= sizeof name - 24 || header->bytes > MAX_HEADER) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a name of more than %d bytes, or more than %d in .zarray", MAX_NAME - 24, (int)MAX_HEADER);
    }
    snprintf(name, sizeof name, "%.*s", (int)(folder - skip), header->name + skip);
    nrd_error *err = nrd_json_parse(&doc, (const char *)header->data, header->bytes, NULL);
    err = err ? err : read_header(nrd_json_root(doc), &t);
    nrd_json_doc_free(doc);
    NRD_TRY(err);
    snprintf(path, sizeof path, "%.*s/%.*s", (int)folder, header->name, 2 * t.n_dims - 1, zeros);
    const nrd_tar_member *chunk = nrd_tar_find(archive, path);
    if (!chunk || chunk->bytes != t.data_bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the chunk %.*s has %zu bytes, expected %zu", 2 * t.n_dims - 1, zeros,
                          chunk ? chunk->bytes : 0, t.data_bytes);
    }
    t.data = chunk->data;
    return take_layers(&t, take, user, n);
}

nrd_error *nrd_nemo_read_zarr(const nrd_tar *archive, const char *prefix, nrd_nemo_taker *take, void *user, size_t *out_n)
{
    *out_n = 0;
    for (size_t i = 0; i < nrd_tar_n(archive); i++) {
        const nrd_tar_member *m = nrd_tar_at(archive, i);
        if (nrd_str_has_prefix(m->name, prefix) && nrd_str_has_suffix(m->name, "/.zarray") &&
            !strstr(m->name, "_extra_state")) {
            NRD_TRY(nrd_error_wrap(read_array(archive, m, prefix, take, user, out_n), "%.200s", m->name));
        }
    }
    return NULL;
}
