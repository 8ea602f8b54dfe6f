/* SPDX-License-Identifier: Apache-2.0
 * Reading of engine files: the file is mapped, header, table and config.json are checked, weights are found by name. Called
 * by the runner and by tools. */
#include "model/engine_file.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/foreign.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/numa.h"
#include "base/order.h"
#include "model/arch.h"
#include "model/engine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* Four independent lanes, so that checking runs at memory speed: one lane would wait for its own
 * multiplication. */
uint64_t nrd_engine_checksum(uint64_t seed, const void *data, size_t n)
{
    const uint64_t k = 0x9e3779b97f4a7c15u;
    const unsigned char *p = data;
    uint64_t lane[4] = {seed ^ k, seed + k, seed ^ ~k, seed - k}, v[4], size = n;

    for (; n >= 32; n -= 32, p += 32) {
        memcpy(v, p, 32);
        for (int i = 0; i < 4; i++) {
            lane[i] = ((lane[i] ^ v[i]) * k);
            lane[i] ^= lane[i] >> 29;
        }
    }
    uint64_t h = nrd_hash_bytes(size, p, n);
    for (int i = 0; i < 4; i++) {
        h = nrd_hash_u64(h, lane[i]);
    }
    return h;
}

uint64_t nrd_engine_weight_checksum(const void *data, size_t n, const float *scales, size_t n_scales)
{
    uint64_t h = nrd_engine_checksum(0, data, n);
    return n_scales ? nrd_engine_checksum(h, scales, n_scales * sizeof(float)) : h;
}

struct nrd_engine {
    nrd_model_spec spec;
    nrd_build_limits limits;
    const uint8_t *data;
    size_t size;
    bool is_mapped;
    nrd_foreign *watch; /* of the file's mapping */
    char *path, *dir, *source;
    const nrd_engine_entry *entries;
    const char *names;
    nrd_weight *weights;
    uint32_t *order; /* indices sorted by name */
    size_t n;
    uint64_t weight_bytes;
    char device[32];
    int32_t rank;
    uint64_t contents; /* what config.json says of the rank's file; 0: nothing */
    uint64_t mark;     /* of all ranks' files; 0: the same */
};

static nrd_error *refuse(const nrd_engine *e, const char *fmt, ...) NRD_PRINTF(2, 3);
static nrd_error *refuse(const nrd_engine *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    nrd_error *err = nrd_errorv(NRD_ERR_INVALID_ARG, fmt, args);
    va_end(args);
    /* the hint stands behind the reason, so the message is put together again */
    nrd_error *full = nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "%s: %s; rebuild it with: nereid build --checkpoint_dir %s "
                                 "--output_dir %s",
                                 e->path, nrd_error_message(err),
                                 e->source && *e->source ? e->source : "MODEL", e->dir);
    nrd_error_free(err);
    return full;
}

static nrd_error *map_file(nrd_engine *e)
{
    struct stat st;
    nrd_error *err = NULL;
    int fd = open(e->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return nrd_errorf(errno == ENOENT ? NRD_ERR_NOT_FOUND : NRD_ERR_INTERNAL,
                          "cannot open '%s': %s%s", e->path, strerror(errno),
                          errno == ENOENT ? "; an engine has a file for each rank: copy all of them, or build it again"
                                          : "");
    }
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is not a regular file", e->path);
    }
    if ((uint64_t)st.st_size < sizeof(nrd_engine_header)) {
        close(fd);
        return refuse(e, "has %lld bytes, less than a header; the file is truncated",
                      (long long)st.st_size);
    }
    /* shared: every process that serves this model uses the same pages */
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot map '%s': %s", e->path, strerror(errno));
    } else {
        e->data = p;
        e->size = (size_t)st.st_size;
        e->is_mapped = true;
        err = nrd_foreign_add(&e->watch, p, e->size);
    }
    close(fd);
    return err;
}

static nrd_error *check_header(nrd_engine *e, nrd_engine_header *h, int32_t rank)
{
    memcpy(h, e->data, sizeof *h);
    if (memcmp(h->magic, NRD_ENGINE_MAGIC, sizeof h->magic)) {
        return refuse(e, "is no Nereid engine (an engine of TensorRT cannot be run)");
    }
    if (h->version < 1 || h->version > NRD_ENGINE_VERSION) {
        return refuse(e, "has format version %u, this build reads 1 to %d", h->version,
                      (int)NRD_ENGINE_VERSION);
    }
    if (h->header_checksum != nrd_engine_checksum(0, h, offsetof(nrd_engine_header, header_checksum))) {
        return refuse(e, "the header's checksum is wrong; the file is damaged");
    }
    if (h->packing != NRD_DEVICE_PACKING) {
        return refuse(e, "has weights packed in version %u, this build has %u", h->packing,
                      NRD_DEVICE_PACKING);
    }
    if (h->file_bytes != e->size) {
        return refuse(e, "has %zu bytes, expected %llu; the file is truncated or damaged", e->size,
                      (unsigned long long)h->file_bytes);
    }
    if (h->header_bytes != sizeof(nrd_engine_header) || h->entry_bytes != sizeof(nrd_engine_entry) ||
        h->n_weights > NRD_ENGINE_MAX_WEIGHTS || h->table_offset != sizeof(nrd_engine_header) ||
        h->names_offset != h->table_offset + h->n_weights * sizeof(nrd_engine_entry) ||
        h->names_offset > e->size || h->names_bytes > e->size - h->names_offset ||
        h->names_bytes > (uint64_t)NRD_ENGINE_MAX_WEIGHTS * (NRD_ENGINE_MAX_NAME + 1) || h->data_offset > e->size ||
        h->data_offset < h->names_offset + h->names_bytes) {
        return refuse(e, "the header's offsets do not fit the file");
    }
    if (h->rank != rank || h->world_size != e->spec.tp_size * e->spec.pp_size) {
        return refuse(e, "is rank %d of %d, expected rank %d of %d", h->rank, h->world_size, rank,
                      e->spec.tp_size * e->spec.pp_size);
    }
    if (e->contents && e->contents != h->table_checksum) {
        return refuse(e, "is of another build than config.json, which is of the other ranks' files; copy all files of one build");
    }
    if (!memchr(h->device, '\0', sizeof h->device)) {
        return refuse(e, "the header's device name has no end");
    }
    return NULL;
}

static bool span_ok(const nrd_engine *e, const nrd_engine_header *h, uint64_t offset, uint64_t bytes)
{
    return offset >= h->data_offset && offset <= e->size && bytes <= e->size - offset &&
           offset % NRD_ENGINE_SMALL_ALIGN == 0;
}

static nrd_error *check_entry(nrd_engine *e, const nrd_engine_header *h, size_t i)
{
    const nrd_engine_entry *t = &e->entries[i];
    size_t expect;

    if (t->name_bytes > NRD_ENGINE_MAX_NAME || t->name_offset > h->names_bytes ||
        t->name_bytes >= h->names_bytes - t->name_offset || !t->name_bytes ||
        strnlen(e->names + t->name_offset, t->name_bytes + 1u) != t->name_bytes) {
        return refuse(e, "the name of weight %zu does not fit the table", i);
    }
    const char *name = e->names + t->name_offset;
    uint64_t n;
    if (t->rows < 0 || t->cols < 1 ||
        __builtin_mul_overflow((uint64_t)t->rows, (uint64_t)t->cols, &n)) {
        return refuse(e, "weight '%s' has shape [%lld, %lld]", name, (long long)t->rows,
                      (long long)t->cols);
    }
    if (t->dtype >= NRD_DTYPE_COUNT_ || !nrd_dtype_block_bytes((nrd_dtype)t->dtype)) {
        return refuse(e, "weight '%s' has the unknown element type %u", name, t->dtype);
    }
    if (!span_ok(e, h, t->offset, t->bytes) || t->n_scales > e->size ||
        (t->n_scales && !span_ok(e, h, t->scales_offset, t->n_scales * sizeof(float)))) {
        return refuse(e, "weight '%s' lies outside of the file", name);
    }
    if (t->layout == NRD_LAYOUT_ROWS &&
        (!nrd_dtype_bytes((nrd_dtype)t->dtype, n, &expect) || expect != t->bytes)) {
        return refuse(e, "weight '%s' has %llu bytes, which is not what its shape needs", name,
                      (unsigned long long)t->bytes);
    }
    if (t->n_stacked > NRD_MOE_MAX_EXPERTS || (t->n_stacked > 1 && t->rows % t->n_stacked)) {
        return refuse(e, "weight '%s' of %lld rows cannot be a stack of %u", name, (long long)t->rows, t->n_stacked);
    }
    if (t->n_scales && t->n_scales != (uint64_t)t->rows) {
        return refuse(e, "weight '%s' has %llu scales for %lld rows", name,
                      (unsigned long long)t->n_scales, (long long)t->rows);
    }
    nrd_weight *w = &e->weights[i];
    w->dtype = (nrd_dtype)t->dtype;
    w->layout = t->layout;
    w->rows = t->rows;
    w->cols = t->cols;
    w->data = e->data + t->offset;
    w->scales = t->n_scales ? e->data + t->scales_offset : NULL;
    w->scale = t->scale;
    w->data_bytes = t->bytes;
    w->n_stacked = (int32_t)t->n_stacked;
    e->weight_bytes += t->bytes + t->n_scales * sizeof(float);
    return NULL;
}

static int by_name(const void *a, const void *b, void *user)
{
    const nrd_engine *e = user;
    return strcmp(e->names + e->entries[*(const uint32_t *)a].name_offset,
                  e->names + e->entries[*(const uint32_t *)b].name_offset);
}

static nrd_error *index_weights(nrd_engine *e)
{
    for (uint32_t i = 0; i < e->n; i++) {
        e->order[i] = i;
    }
    qsort_r(e->order, e->n, sizeof *e->order, by_name, e);
    for (size_t i = 1; i < e->n; i++) {
        if (!by_name(&e->order[i - 1], &e->order[i], e)) {
            return refuse(e, "weight '%s' appears twice",
                          e->names + e->entries[e->order[i]].name_offset);
        }
    }
    return NULL;
}

static nrd_error *read_table(nrd_engine *e, const nrd_engine_header *h, bool verify)
{
    nrd_error *err = NULL;

    e->n = (size_t)h->n_weights;
    /* the header is 128 bytes, so the table is aligned for its 8-byte members */
    e->entries = (const nrd_engine_entry *)(const void *)(e->data + h->table_offset);
    e->names = (const char *)e->data + h->names_offset;
    memcpy(e->device, h->device, sizeof e->device);
    uint64_t sum = nrd_engine_checksum(0, e->entries, e->n * sizeof(nrd_engine_entry));
    if (h->table_checksum != nrd_engine_checksum(sum, e->names, (size_t)h->names_bytes)) {
        return refuse(e, "the table's checksum is wrong; the file is damaged");
    }
    NRD_NEW_GOTO(e->weights, e->n, err, fail);
    NRD_NEW_GOTO(e->order, e->n, err, fail);
    for (size_t i = 0; i < e->n; i++) {
        NRD_TRY_GOTO(check_entry(e, h, i), err, fail);
    }
    NRD_TRY_GOTO(index_weights(e), err, fail);
    for (size_t i = 0; verify && i < e->n; i++) {
        const nrd_engine_entry *t = &e->entries[i];
        if (t->checksum != nrd_engine_weight_checksum(e->weights[i].data, t->bytes, e->weights[i].scales,
                                           t->n_scales)) {
            err = refuse(e, "the checksum of weight '%s' is wrong; the file is damaged",
                         e->names + t->name_offset);
            goto fail;
        }
    }
fail:
    return err;
}

/* list: of engines of several ranks, since 0.2; else NULL. */
static nrd_error *read_rank_contents(nrd_engine *e, const nrd_json *list)
{
    const char *text = nrd_json_str(nrd_json_at(list, (size_t)e->rank), NULL);
    char *end = NULL;

    if (!list) {
        return NULL;
    }
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const char *one = nrd_json_str(nrd_json_at(list, i), "");
        e->mark = nrd_hash_bytes(e->mark, one, strlen(one));
    }
    e->contents = text ? strtoull(text, &end, 16) : 0;
    if (!text || strlen(text) != 16 || *end) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "contents: expected 16 hexadecimal digits for rank %d", e->rank);
    }
    return NULL;
}

static nrd_error *read_config(nrd_engine *e, const nrd_json *root)
{
    const nrd_json *model = nrd_json_get(root, "pretrained_config");
    const nrd_json *build = nrd_json_get(root, "build_config");
    if (!nrd_json_is(model, NRD_JSON_OBJECT) || !nrd_json_is(build, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected the objects 'pretrained_config' and "
                          "'build_config'; is this an engine folder? A checkpoint or model is built "
                          "with: nereid build --checkpoint_dir %s --output_dir ENGINE", e->dir);
    }
    NRD_TRY(nrd_error_wrap(nrd_arch_from_checkpoint(&e->spec, model), "pretrained_config"));
    e->source = strdup(nrd_json_get_str(nrd_json_get(build, "nereid"), "source", ""));
    if (!e->source) {
        return nrd_error_no_memory();
    }
    NRD_TRY(nrd_build_limits_read(&e->limits, &e->spec, build));
    return read_rank_contents(e, nrd_json_get(root, "contents"));
}

static nrd_error *read_config_file(nrd_engine *e)
{
    nrd_json_doc *doc = NULL;
    nrd_json_limits limits = {.max_bytes = MAX_CONFIG_BYTES};
    char *path = NULL;
    NRD_TRY(nrd_path_make(&path, e->dir, "config.json"));
    nrd_error *err = nrd_json_parse_file(&doc, path, &limits);

    if (!err) {
        err = read_config(e, nrd_json_root(doc));
    }
    err = nrd_error_wrap(err, "%s", path);
    nrd_json_doc_free(doc);
    free(path);
    return err;
}

nrd_error *nrd_engine_open_memory(nrd_engine **out, const char *config, size_t config_bytes,
                                  const void *file, size_t file_bytes, int32_t rank, bool verify)
{
    nrd_error *err = NULL;
    nrd_engine *e = NULL;
    nrd_json_doc *doc = NULL;
    nrd_json_limits limits = {.max_bytes = MAX_CONFIG_BYTES};
    nrd_engine_header h;

    *out = NULL;
    NRD_NEW_GOTO(e, 1, err, fail);
    NRD_DUP_GOTO(e->dir, "<memory>", err, fail);
    NRD_DUP_GOTO(e->path, "<memory>", err, fail);
    e->rank = rank;
    NRD_TRY_GOTO(nrd_json_parse(&doc, config, config_bytes, &limits), err, fail);
    NRD_TRY_GOTO(read_config(e, nrd_json_root(doc)), err, fail);
    e->data = file;
    e->size = file_bytes;
    if (file_bytes < sizeof h) {
        err = refuse(e, "has %zu bytes, less than a header; the file is truncated", file_bytes);
        goto fail;
    }
    NRD_TRY_GOTO(check_header(e, &h, rank), err, fail);
    NRD_TRY_GOTO(read_table(e, &h, verify), err, fail);
    nrd_json_doc_free(doc);
    *out = e;
    return NULL;

fail:
    nrd_json_doc_free(doc);
    nrd_engine_close(e);
    return err;
}

void nrd_engine_reseal(void *file, size_t n)
{
    nrd_engine_header h;
    if (n < sizeof h) {
        return;
    }
    memcpy(&h, file, sizeof h);
    size_t table, left = n - sizeof h;
    if (h.table_offset == sizeof h && nrd_size_mul((size_t)h.n_weights, sizeof(nrd_engine_entry), &table) &&
        table <= left && h.names_offset == sizeof h + table && h.names_bytes <= left - table) {
        uint64_t sum = nrd_engine_checksum(0, (const char *)file + sizeof h, table);
        h.table_checksum = nrd_engine_checksum(sum, (const char *)file + h.names_offset, (size_t)h.names_bytes);
    }
    h.header_checksum = nrd_engine_checksum(0, &h, offsetof(nrd_engine_header, header_checksum));
    memcpy(file, &h, sizeof h);
}

nrd_error *nrd_engine_path(char **out, const char *dir, int32_t rank)
{
    nrd_error *err = NULL;
    char **names = NULL, end[40];
    size_t n = 0;

    snprintf(end, sizeof end, "_rank%d.engine", rank);
    NRD_TRY(nrd_path_make(out, dir, end + 1));
    if (nrd_path_exists(*out)) {
        return NULL;
    }
    nrd_error_free(nrd_dir_list(&names, &n, dir)); /* a folder that is not there has no such file */
    for (size_t i = 0; i < n; i++) {
        if (nrd_str_has_suffix(names[i], end)) {
            free(*out);
            *out = NULL;
            err = nrd_path_make(out, dir, names[i]);
            break;
        }
    }
    nrd_names_free(names, n);
    return err;
}

bool nrd_engine_has_rank(const char *dir, int32_t rank)
{
    char *file = NULL;
    nrd_error *err = nrd_engine_path(&file, dir, rank);
    bool has = !err && nrd_path_exists(file);
    nrd_error_free(err);
    free(file);
    return has;
}

bool nrd_engine_is_folder(const char *dir)
{
    char *config = NULL;
    nrd_error *err = nrd_path_make(&config, dir, "config.json");
    bool is = !err && nrd_path_exists(config) && nrd_engine_has_rank(dir, 0);
    nrd_error_free(err);
    free(config);
    return is;
}

nrd_error *nrd_engine_open(nrd_engine **out, const char *dir, int32_t rank, bool verify)
{
    nrd_error *err = NULL;
    nrd_engine *e = NULL;
    nrd_engine_header h;

    *out = NULL;
    NRD_NEW_GOTO(e, 1, err, fail);
    NRD_DUP_GOTO(e->dir, dir, err, fail);
    e->rank = rank;
    NRD_TRY_GOTO(nrd_engine_path(&e->path, dir, rank), err, fail);
    NRD_TRY_GOTO(read_config_file(e), err, fail);
    NRD_TRY_GOTO(map_file(e), err, fail);
    NRD_TRY_GOTO(check_header(e, &h, rank), err, fail);
    NRD_TRY_GOTO(read_table(e, &h, verify), err, fail);
    NRD_TRY_GOTO(nrd_engine_check(e), err, fail);
    *out = e;
    return NULL;

fail:
    nrd_engine_close(e);
    return err;
}

nrd_error *nrd_engine_open_encoder(nrd_engine **out, const char *decoder_dir, const char *dir, bool verify)
{
    char *inside = NULL, *beside = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY_GOTO(nrd_path_make(&inside, decoder_dir, NRD_ENCODER_FOLDER), err, done);
    NRD_TRY_GOTO(nrd_path_make(&beside, decoder_dir, "../" NRD_ENCODER_FOLDER), err, done);
    const char *found = dir ? dir : nrd_engine_is_folder(inside) ? inside : beside;
    if (nrd_engine_is_folder(found)) {
        err = nrd_error_wrap(nrd_engine_open(out, found, 0, verify), "encoder");
    } else {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' is a decoder, and there is no engine of its encoder in '%s'; name it by "
                         "encoder_model_path", decoder_dir, dir ? dir : inside);
    }
done:
    free(inside);
    free(beside);
    return err;
}

nrd_error *nrd_engine_check(const nrd_engine *e)
{
    return nrd_foreign_is_lost(e->watch)
               ? nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' was made shorter while it was in use", e->path)
               : NULL;
}

static bool has_large_pages(void)
{
    char *text = NULL;
    size_t n = 0;
    nrd_error *err =
        nrd_file_read(&text, &n, "/sys/kernel/mm/transparent_hugepage/enabled", 4096);
    bool has = !err && !strstr(text, "[never]");
    nrd_error_free(err);
    free(text);
    return has;
}

static bool read_whole(const char *path, uint8_t *to, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    while (fd >= 0 && done < n) {
        ssize_t got = pread(fd, to + done, n - done, (off_t)done);
        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            break;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    return done == n;
}

bool nrd_engine_settle(nrd_engine *e, uint64_t free_bytes)
{
    if (!e->is_mapped || e->size > free_bytes / 2 || !has_large_pages()) {
        return false;
    }
    uint8_t *p = mmap(NULL, e->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return false;
    }
    (void)madvise(p, e->size, MADV_HUGEPAGE);
    nrd_numa_interleave(p, e->size);
    if (!read_whole(e->path, p, e->size) || memcmp(p, e->data, sizeof(nrd_engine_header)) != 0) {
        munmap(p, e->size);
        return false;
    }
    (void)mprotect(p, e->size, PROT_READ);
    const uint8_t *old = e->data, *entries = (const uint8_t *)(const void *)e->entries;
    for (size_t i = 0; i < e->n; i++) {
        nrd_weight *w = &e->weights[i];
        w->data = p + ((const uint8_t *)w->data - old);
        if (w->scales) {
            w->scales =
                (const float *)(const void *)(p + ((const uint8_t *)(const void *)w->scales - old));
        }
    }
    e->entries = (const nrd_engine_entry *)(const void *)(p + (entries - old));
    e->names = (const char *)p + ((const uint8_t *)(const void *)e->names - old);
    e->data = p;
    nrd_foreign_remove(e->watch);
    e->watch = NULL;
    munmap((void *)(uintptr_t)old, e->size);
    return true;
}

void nrd_engine_close(nrd_engine *e)
{
    if (!e) {
        return;
    }
    if (e->is_mapped) {
        nrd_foreign_remove(e->watch);
        munmap((void *)(uintptr_t)e->data, e->size);
    }
    free(e->weights);
    free(e->order);
    free(e->path);
    free(e->dir);
    free(e->source);
    free(e);
}

const nrd_model_spec *nrd_engine_spec(const nrd_engine *e)
{
    return &e->spec;
}

const nrd_build_limits *nrd_engine_limits(const nrd_engine *e)
{
    return &e->limits;
}

uint64_t nrd_engine_weight_bytes(const nrd_engine *e)
{
    return e->weight_bytes;
}

uint64_t nrd_engine_mark(const nrd_engine *e)
{
    return e->mark;
}

const char *nrd_engine_dir(const nrd_engine *e)
{
    return e->dir;
}

const char *nrd_engine_device(const nrd_engine *e)
{
    return e->device;
}

typedef struct sought {
    const nrd_engine *in;
    const char *name;
} sought;

static int against(const void *key, uint32_t index)
{
    const sought *k = key;
    return strcmp(k->name, k->in->names + k->in->entries[index].name_offset);
}

const nrd_weight *nrd_engine_weight(const nrd_engine *e, const char *name)
{
    const int64_t i = nrd_order_find(e->order, e->n, against, &(sought){e, name});
    return i < 0 ? NULL : &e->weights[i];
}

size_t nrd_engine_n_weights(const nrd_engine *e)
{
    return e->n;
}

const nrd_weight *nrd_engine_weight_at(const nrd_engine *e, size_t i, const char **out_name)
{
    if (i >= e->n) {
        return NULL;
    }
    if (out_name) {
        *out_name = e->names + e->entries[i].name_offset;
    }
    return &e->weights[i];
}
