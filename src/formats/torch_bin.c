/* SPDX-License-Identifier: Apache-2.0
 * Reads pytorch_model.bin: first the directory of the zip, then the pickle by a small stack machine
 * that only builds numbers, texts, containers and descriptions of tensors, then the spans of those
 * tensors in the file. Any other instruction or name is refused or kept as an opaque value. Called
 * by model/source_files.c. */
#include "formats/torch_bin.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/torch_pickle.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PICKLE_BYTES = 64 << 20,
    MAX_MEMBERS = 1 << 20,
    MAX_NAME = 4096,
    MAX_SETTINGS = 512,
};
#define MAX_ELEMENTS ((int64_t)1 << 48)

typedef struct { /* a stored (uncompressed) member of the zip */
    const char *name;
    size_t name_bytes;
    const uint8_t *data;
    size_t bytes;
} member;

typedef struct {
    const char *name; /* "dictionary/key" */
    const char *text; /* NULL: it is a number */
    int64_t value;
} setting;

struct nrd_torch_bin {
    nrd_map map;
    char *path;
    const uint8_t *data;
    size_t size;
    member *members; /* sorted by name */
    size_t n_members;
    nrd_torch_tensor *tensors;
    size_t n, cap;
    setting settings[MAX_SETTINGS];
    size_t n_settings;
    const char *prefix; /* of a storage's member, before its key */
    size_t prefix_bytes;
    nrd_arena arena; /* names of tensors; values of the pickle while it is read */
};

/* ---- the zip ---- */

static uint16_t u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static uint32_t u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static uint64_t u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static nrd_error *zip_error(const nrd_torch_bin *t, const char *what, uint64_t at)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s (offset %llu); the file is truncated or damaged",
                      t->path, what, (unsigned long long)at);
}

static bool fits(const nrd_torch_bin *t, uint64_t at, uint64_t n)
{
    return at <= t->size && n <= t->size - at;
}

typedef struct {
    uint64_t offset, n, bytes;
} directory;

static nrd_error *find_directory(const nrd_torch_bin *t, directory *d)
{
    enum { END = 22, LOCATOR = 20, END64 = 56, MAX_COMMENT = 65535 };
    if (t->size < END) {
        return zip_error(t, "too small for a zip archive", 0);
    }
    size_t at = t->size - END, last = at > MAX_COMMENT ? at - MAX_COMMENT : 0;
    while (u32(t->data + at) != 0x06054b50u) {
        if (at == last) {
            return zip_error(t, "no end of a zip directory", at);
        }
        at--;
    }
    d->n = u16(t->data + at + 10);
    d->bytes = u32(t->data + at + 12);
    d->offset = u32(t->data + at + 16);
    bool big = d->n == 0xffff || d->bytes == 0xffffffffu || d->offset == 0xffffffffu;
    if (big && at >= LOCATOR && u32(t->data + at - LOCATOR) == 0x07064b50u) {
        uint64_t end64 = u64(t->data + at - LOCATOR + 8);
        if (!fits(t, end64, END64) || u32(t->data + end64) != 0x06064b50u) {
            return zip_error(t, "no zip64 directory where the locator says", end64);
        }
        d->n = u64(t->data + end64 + 32);
        d->bytes = u64(t->data + end64 + 40);
        d->offset = u64(t->data + end64 + 48);
    }
    if (!fits(t, d->offset, d->bytes) || d->n > MAX_MEMBERS || d->n > d->bytes / 46) {
        return zip_error(t, "the zip directory does not fit", d->offset);
    }
    return NULL;
}

/* The 64-bit values of a member stand in an extra field, in the order of those that overflowed. */
static bool zip64_extra(const uint8_t *p, size_t n, uint64_t *usize, uint64_t *csize,
                        uint64_t *offset)
{
    while (n >= 4) {
        size_t len = u16(p + 2);
        if (len > n - 4) {
            return false;
        }
        if (u16(p) == 1) {
            const uint8_t *v = p + 4;
            size_t left = len;
            uint64_t *const fields[] = {usize, csize, offset};
            for (int i = 0; i < 3; i++) {
                if (*fields[i] == 0xffffffffu) {
                    if (left < 8) {
                        return false;
                    }
                    *fields[i] = u64(v);
                    v += 8;
                    left -= 8;
                }
            }
            return true;
        }
        p += 4 + len;
        n -= 4 + len;
    }
    return *usize != 0xffffffffu && *csize != 0xffffffffu && *offset != 0xffffffffu;
}

static nrd_error *read_member(nrd_torch_bin *t, uint64_t *at, uint64_t end)
{
    const uint8_t *p = t->data + *at;
    member *m = &t->members[t->n_members];

    if (end - *at < 46 || u32(p) != 0x02014b50u) {
        return zip_error(t, "expected an entry of the zip directory", *at);
    }
    uint16_t method = u16(p + 10), name_bytes = u16(p + 28), extra = u16(p + 30);
    uint64_t csize = u32(p + 20), usize = u32(p + 24), local = u32(p + 42);
    uint64_t whole = 46u + (uint64_t)name_bytes + extra + u16(p + 32);
    if (whole > end - *at) {
        return zip_error(t, "an entry of the zip directory does not fit", *at);
    }
    if (!zip64_extra(p + 46 + name_bytes, extra, &usize, &csize, &local)) {
        return zip_error(t, "a zip64 field does not fit", *at);
    }
    m->name = (const char *)p + 46;
    m->name_bytes = name_bytes;
    if (method != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: member '%.*s' is compressed (method %u); "
                          "expected stored members as PyTorch writes them", t->path,
                          (int)name_bytes, m->name, method);
    }
    if (!fits(t, local, 30) || u32(t->data + local) != 0x04034b50u) {
        return zip_error(t, "no member where the zip directory says", local);
    }
    uint64_t start = local + 30 + u16(t->data + local + 26) + u16(t->data + local + 28);
    if (usize != csize || !fits(t, start, usize)) {
        return zip_error(t, "a member lies outside of the file", local);
    }
    m->data = t->data + start;
    m->bytes = (size_t)usize;
    t->n_members++;
    *at += whole;
    return NULL;
}

static int by_member(const void *a, const void *b)
{
    const member *x = a, *y = b;
    size_t n = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
    int c = memcmp(x->name, y->name, n);
    return c ? c : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

static nrd_error *read_zip(nrd_torch_bin *t)
{
    nrd_error *err = NULL;
    directory d = {0};

    NRD_TRY(find_directory(t, &d));
    NRD_NEW_GOTO(t->members, d.n, err, fail);
    uint64_t at = d.offset;
    for (uint64_t i = 0; i < d.n; i++) {
        NRD_TRY(read_member(t, &at, d.offset + d.bytes));
    }
    qsort(t->members, t->n_members, sizeof *t->members, by_member);
fail:
    return err;
}

static const member *find_member(const nrd_torch_bin *t, const char *name, size_t n)
{
    member key = {.name = name, .name_bytes = n};
    return t->n_members ? bsearch(&key, t->members, t->n_members, sizeof key, by_member) : NULL;
}

/* ---- tensors ---- */

static nrd_error *describe(nrd_torch_bin *t, const nrd_pickle_value *key, const nrd_pickle_value *v)
{
    nrd_torch_tensor out = {.dtype = v->dtype, .n_dims = (int)v->sizes->n, .dims = {1, 1, 1, 1, 1}};
    char member_name[MAX_NAME];
    int64_t n = 1;
    size_t each = nrd_dtype_block_bytes(v->dtype);

    if (v->sizes->n > NRD_TORCH_MAX_DIMS || v->strides->n != v->sizes->n || memchr(key->str, '\0', key->n)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%.*s' has %zu dimensions, expected at "
                          "most %d", t->path, (int)key->n, key->str, v->sizes->n, (int)NRD_TORCH_MAX_DIMS);
    }
    for (size_t d = v->sizes->n; d > 0; d--) {
        const nrd_pickle_value *size = v->sizes->items[d - 1], *stride = v->strides->items[d - 1];
        if (size->kind != NRD_PICKLE_INT || stride->kind != NRD_PICKLE_INT || size->i < 0 ||
            (size->i && n > MAX_ELEMENTS / size->i)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%.*s' has a bad shape", t->path,
                              (int)key->n, key->str);
        }
        if (size->i > 1 && stride->i != n) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%.*s' is not contiguous; save it "
                              "again after .contiguous()", t->path, (int)key->n, key->str);
        }
        out.dims[d - 1] = size->i;
        n *= size->i;
    }
    int len = snprintf(member_name, sizeof member_name, "%.*s%.*s", (int)t->prefix_bytes, t->prefix,
                       (int)v->storage->n, v->storage->str);
    const member *data = len > 0 && len < MAX_NAME ? find_member(t, member_name, (size_t)len) : NULL;
    if (!data) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%.*s' refers to the storage '%.*s', "
                          "which is not in the file", t->path, (int)key->n, key->str,
                          (int)v->storage->n, v->storage->str);
    }
    uint64_t have = data->bytes / each;
    if (v->i < 0 || (uint64_t)v->i > have || (uint64_t)n > have - (uint64_t)v->i) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%.*s' needs elements %lld to %lld of a "
                          "storage of %llu", t->path, (int)key->n, key->str, (long long)v->i,
                          (long long)v->i + (long long)n, (unsigned long long)have);
    }
    out.name = nrd_arena_strndup(&t->arena, key->str, key->n);
    if (!out.name) {
        return nrd_error_no_memory();
    }
    out.data = data->data + (size_t)v->i * each;
    out.data_bytes = (size_t)n * each;
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 256;
        nrd_torch_tensor *tensors = realloc(t->tensors, cap * sizeof *tensors);
        if (!tensors) {
            return nrd_error_no_memory();
        }
        t->tensors = tensors;
        t->cap = cap;
    }
    t->tensors[t->n++] = out;
    return NULL;
}

/* Training scripts wrap the state dictionary into one with other things. */
static const nrd_pickle_value *state_dict(const nrd_pickle_value *root)
{
    static const char *const wraps[] = {"state_dict", "model", "module", "model_state_dict"};
    for (size_t i = 0; i + 1 < root->n; i += 2) {
        const nrd_pickle_value *k = root->items[i], *v = root->items[i + 1];
        for (size_t w = 0; w < sizeof wraps / sizeof *wraps && k->kind == NRD_PICKLE_STR && v->kind == NRD_PICKLE_DICT; w++) {
            if (k->n == strlen(wraps[w]) && !memcmp(k->str, wraps[w], k->n)) {
                return v;
            }
        }
    }
    return root;
}

/* Whole numbers, yes and no, and texts of one of the root's dictionaries; those beyond the limit are left out. */
static nrd_error *collect_settings(nrd_torch_bin *t, const nrd_pickle_value *key, const nrd_pickle_value *dict)
{
    for (size_t i = 0; i + 1 < dict->n && t->n_settings < MAX_SETTINGS; i += 2) {
        const nrd_pickle_value *k = dict->items[i], *v = dict->items[i + 1];
        const bool is_text = v->kind == NRD_PICKLE_STR;
        if (k->kind != NRD_PICKLE_STR || (v->kind != NRD_PICKLE_INT && v->kind != NRD_PICKLE_BOOL && !is_text) ||
            key->n > MAX_NAME || k->n > MAX_NAME || (is_text && v->n > MAX_NAME)) {
            continue;
        }
        char *name = nrd_arena_alloc(&t->arena, key->n + k->n + 2);
        const char *text = is_text ? nrd_arena_strndup(&t->arena, v->str, v->n) : NULL;
        if (!name || (is_text && !text)) {
            return nrd_error_no_memory();
        }
        memcpy(name, key->str, key->n);
        name[key->n] = '/';
        memcpy(name + key->n + 1, k->str, k->n);
        name[key->n + k->n + 1] = '\0';
        t->settings[t->n_settings++] = (setting){.name = name, .text = text, .value = v->i};
    }
    return NULL;
}

static nrd_error *collect(nrd_torch_bin *t, const nrd_pickle_value *root)
{
    if (!root || root->kind != NRD_PICKLE_DICT) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected a dictionary of tensors", t->path);
    }
    for (size_t i = 0; i + 1 < root->n; i += 2) {
        if (root->items[i]->kind == NRD_PICKLE_STR && root->items[i + 1]->kind == NRD_PICKLE_DICT) {
            NRD_TRY(collect_settings(t, root->items[i], root->items[i + 1]));
        }
    }
    root = state_dict(root);
    for (size_t i = 0; i + 1 < root->n; i += 2) {
        const nrd_pickle_value *k = root->items[i], *v = root->items[i + 1];
        if (k->kind == NRD_PICKLE_STR && v->kind == NRD_PICKLE_TENSOR) {
            NRD_TRY(describe(t, k, v));
        }
    }
    return NULL;
}

/* name/data.pkl beside name/data/KEY */
static nrd_error *run_pickle(nrd_torch_bin *t, const member *pickle)
{
    const nrd_pickle_value *root = NULL;
    const size_t folder = pickle->name_bytes - strlen("data.pkl");
    char *prefix = nrd_arena_alloc(&t->arena, folder + strlen("data/"));
    size_t at = 0;

    if (!prefix) {
        return nrd_error_no_memory();
    }
    memcpy(prefix, pickle->name, folder);
    memcpy(prefix + folder, "data/", strlen("data/"));
    t->prefix = prefix;
    t->prefix_bytes = folder + strlen("data/");
    NRD_TRY(nrd_pickle_read(&t->arena, t->path, pickle->data, pickle->bytes, &at, &root, NULL));
    return collect(t, root);
}

/* ---- before PyTorch 1.6: pickles of a magic number, a version, the machine, the object and the storages' keys, then each storage:
 * its number of elements in 8 bytes, and these ---- */

static const uint8_t old_magic[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};

static int by_key(const void *a, const void *b)
{
    const nrd_pickle_value *x = *(const nrd_pickle_value *const *)a, *y = *(const nrd_pickle_value *const *)b;
    const size_t n = x->n < y->n ? x->n : y->n;
    const int c = memcmp(x->str, y->str, n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* The storages from `at` on, in the order of their keys. */
static nrd_error *old_storages(nrd_torch_bin *t, const nrd_pickle_value *keys, nrd_pickle_storages *known, size_t at)
{
    nrd_error *err = NULL;

    if (keys->n > MAX_MEMBERS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %zu storages, the limit is %d", t->path, keys->n, (int)MAX_MEMBERS);
    }
    NRD_NEW_GOTO(t->members, keys->n, err, fail);
    if (known->n) {
        qsort((void *)known->items, known->n, sizeof *known->items, by_key);
    }
    for (size_t i = 0; i < keys->n; i++) {
        const nrd_pickle_value *key = keys->items[i];
        const nrd_pickle_value *const *of = key->kind == NRD_PICKLE_STR && known->n
                                                ? bsearch((const void *)&key, (const void *)known->items, known->n, sizeof *known->items,
                                                          by_key)
                                                : NULL;
        if (!of) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: storage %zu is none that the pickle names", t->path, i);
        }
        const size_t each = nrd_dtype_block_bytes((*of)->dtype);
        if (!fits(t, at, 8) || u64(t->data + at) > (t->size - at - 8) / each) {
            return zip_error(t, "a storage lies outside of the file", at);
        }
        const size_t bytes = (size_t)u64(t->data + at) * each;
        t->members[t->n_members++] = (member){.name = key->str, .name_bytes = key->n, .data = t->data + at + 8, .bytes = bytes};
        at += 8 + bytes;
    }
    qsort(t->members, t->n_members, sizeof *t->members, by_member);
fail:
    return err;
}

static nrd_error *parse_old(nrd_torch_bin *t)
{
    const nrd_pickle_value *version = NULL, *machine = NULL, *root = NULL, *keys = NULL;
    nrd_pickle_storages storages = {0};
    const size_t n = t->size < MAX_PICKLE_BYTES ? t->size : MAX_PICKLE_BYTES;
    size_t at = sizeof old_magic;

    t->prefix = "";
    NRD_TRY(nrd_pickle_read(&t->arena, t->path, t->data, n, &at, &version, NULL));
    if (!version || version->kind != NRD_PICKLE_INT || version->i != 1001) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: a version of PyTorch's format that is not known; expected 1001", t->path);
    }
    NRD_TRY(nrd_pickle_read(&t->arena, t->path, t->data, n, &at, &machine, NULL));
    nrd_error *err = nrd_pickle_read(&t->arena, t->path, t->data, n, &at, &root, &storages);
    err = err ? err : nrd_pickle_read(&t->arena, t->path, t->data, n, &at, &keys, NULL);
    if (!err && (!keys || keys->kind != NRD_PICKLE_LIST)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no list of storages behind the pickle", t->path);
    }
    err = err ? err : old_storages(t, keys, &storages, at);
    free((void *)storages.items);
    return err ? err : collect(t, root);
}

static nrd_error *parse(nrd_torch_bin *t)
{
    const char *tail = "data.pkl";

    if (t->size >= sizeof old_magic && !memcmp(t->data, old_magic, sizeof old_magic)) {
        return parse_old(t);
    }
    NRD_TRY(read_zip(t));
    for (size_t i = 0; i < t->n_members; i++) {
        const member *m = &t->members[i];
        size_t n = strlen(tail);
        /* "archive/data.pkl": one folder, named after the file by some versions */
        if (m->name_bytes < n + 1 || memcmp(m->name + m->name_bytes - n, tail, n) ||
            m->name[m->name_bytes - n - 1] != '/') {
            continue;
        }
        if (m->bytes > MAX_PICKLE_BYTES) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: data.pkl has %zu bytes, the limit is %d",
                              t->path, m->bytes, (int)MAX_PICKLE_BYTES);
        }
        return run_pickle(t, m);
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: a zip archive without data.pkl; not made by PyTorch",
                      t->path);
}

static nrd_error *open_any(nrd_torch_bin **out, const char *path, const void *data, size_t n)
{
    nrd_error *err = NULL;
    nrd_torch_bin *t = NULL;

    *out = NULL;
    NRD_NEW_GOTO(t, 1, err, fail);
    NRD_DUP_GOTO(t->path, path ? path : "<memory>", err, fail);
    if (path) {
        NRD_TRY_GOTO(nrd_map_open(&t->map, path), err, fail);
        data = t->map.data;
        n = t->map.size_bytes;
    }
    t->data = data;
    t->size = n;
    NRD_TRY_GOTO(parse(t), err, fail);
    *out = t;
    return NULL;

fail:
    nrd_torch_bin_close(t);
    return err;
}

nrd_error *nrd_torch_bin_open(nrd_torch_bin **out, const char *path)
{
    return open_any(out, path, NULL, 0);
}

nrd_error *nrd_torch_bin_open_memory(nrd_torch_bin **out, const void *data, size_t n)
{
    return open_any(out, NULL, data, n);
}

bool nrd_torch_bin_is_lost(const nrd_torch_bin *t)
{
    return nrd_map_is_lost(&t->map);
}

void nrd_torch_bin_close(nrd_torch_bin *t)
{
    if (!t) {
        return;
    }
    free(t->members);
    free(t->tensors);
    nrd_arena_fini(&t->arena);
    nrd_map_close(&t->map);
    free(t->path);
    free(t);
}

static const setting *find_setting(const nrd_torch_bin *t, const char *name)
{
    for (size_t i = 0; i < t->n_settings; i++) {
        if (!strcmp(t->settings[i].name, name)) {
            return &t->settings[i];
        }
    }
    return NULL;
}

bool nrd_torch_bin_int(const nrd_torch_bin *t, const char *name, int64_t *out)
{
    const setting *s = find_setting(t, name);

    if (s && !s->text) {
        *out = s->value;
    }
    return s && !s->text;
}

const char *nrd_torch_bin_text(const nrd_torch_bin *t, const char *name)
{
    const setting *s = find_setting(t, name);
    return s ? s->text : NULL;
}

size_t nrd_torch_bin_n(const nrd_torch_bin *t)
{
    return t->n;
}

const nrd_torch_tensor *nrd_torch_bin_at(const nrd_torch_bin *t, size_t i)
{
    return i < t->n ? &t->tensors[i] : NULL;
}
