/* SPDX-License-Identifier: Apache-2.0
 * Writing of engine files: every weight's description is added, begin fixes the offsets, data is put from any thread, and
 * commit writes table and header and gives the file its name. */
#include "model/engine_file.h"

#include "base/file.h"
#include "base/mem.h"
#include "model/engine_internal.h"
#include "model/needs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    BIG_ALIGN = 4096, /* pages: large weights can be advised and moved by themselves */
    BIG_BYTES = 65536,
};

static uint64_t align_up(uint64_t v, uint64_t a)
{
    return (v + a - 1) & ~(a - 1);
}

struct nrd_engine_writer {
    nrd_engine_header h;
    nrd_engine_entry *entries;
    size_t n, cap;
    nrd_str names;
    char *path;
    nrd_file_writer *file;
    int fd;
};

nrd_error *nrd_engine_writer_open(nrd_engine_writer **out, const char *dir, int32_t rank,
                                  int32_t world_size, const char *device)
{
    nrd_error *err = NULL;
    nrd_engine_writer *w = NULL;
    char name[32];

    *out = NULL;
    NRD_NEW_GOTO(w, 1, err, fail);
    memcpy(w->h.magic, NRD_ENGINE_MAGIC, sizeof w->h.magic);
    w->h.version = 1;
    w->h.packing = NRD_DEVICE_PACKING;
    w->h.header_bytes = sizeof(nrd_engine_header);
    w->h.entry_bytes = sizeof(nrd_engine_entry);
    w->h.rank = rank;
    w->h.world_size = world_size;
    snprintf(w->h.device, sizeof w->h.device, "%s", device);
    snprintf(name, sizeof name, "rank%d.engine", rank);
    NRD_TRY_GOTO(nrd_path_make(&w->path, dir, name), err, fail);
    NRD_TRY_GOTO(nrd_file_writer_open(&w->file, w->path), err, fail);
    w->fd = fileno(nrd_file_writer_stream(w->file));
    *out = w;
    return NULL;

fail:
    nrd_engine_writer_abort(w);
    return err;
}

nrd_error *nrd_engine_writer_add(nrd_engine_writer *w, const char *name, const nrd_weight *weight,
                                 int64_t n_scales)
{
    if (w->n >= NRD_ENGINE_MAX_WEIGHTS || strlen(name) > NRD_ENGINE_MAX_NAME) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "an engine file holds at most %d weights with names "
                          "of %d bytes, got '%s'", (int)NRD_ENGINE_MAX_WEIGHTS, (int)NRD_ENGINE_MAX_NAME, name);
    }
    if (w->n == w->cap) {
        const size_t cap = w->cap ? w->cap * 2 : 256;
        nrd_engine_entry *grown = realloc(w->entries, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        w->entries = grown;
        w->cap = cap;
    }
    if (nrd_str_has_suffix(name, NRD_ORDER) || nrd_str_has_suffix(name, NRD_COLUMNS) || nrd_str_has_suffix(name, NRD_INT8_INPUT)) {
        w->h.version = 2;
    }
    nrd_engine_entry *e = &w->entries[w->n++];
    memset(e, 0, sizeof *e);
    e->name_offset = (uint32_t)w->names.len;
    e->name_bytes = (uint32_t)strlen(name);
    nrd_str_append(&w->names, name, strlen(name) + 1);
    e->dtype = (uint32_t)weight->dtype;
    e->layout = weight->layout;
    e->rows = weight->rows;
    e->cols = weight->cols;
    e->bytes = weight->data_bytes;
    e->n_scales = (uint64_t)n_scales;
    e->scale = weight->scale;
    e->n_stacked = (uint32_t)weight->n_stacked;
    return NULL;
}

nrd_error *nrd_engine_writer_begin(nrd_engine_writer *w)
{
    uint64_t at;

    w->h.n_weights = w->n;
    w->h.table_offset = sizeof(nrd_engine_header);
    w->h.names_offset = w->h.table_offset + w->n * sizeof(nrd_engine_entry);
    w->h.names_bytes = w->names.len;
    w->h.data_offset = at = align_up(w->h.names_offset + w->h.names_bytes, BIG_ALIGN);
    for (size_t i = 0; i < w->n; i++) {
        nrd_engine_entry *e = &w->entries[i];
        at = align_up(at, e->bytes >= BIG_BYTES ? BIG_ALIGN : NRD_ENGINE_SMALL_ALIGN);
        e->offset = at;
        at += e->bytes;
        if (e->n_scales) {
            at = align_up(at, NRD_ENGINE_SMALL_ALIGN);
            e->scales_offset = at;
            at += e->n_scales * sizeof(float);
        }
    }
    w->h.file_bytes = align_up(at, NRD_ENGINE_SMALL_ALIGN); /* vector loads may touch the last line */
    NRD_TRY(nrd_file_check_room(w->path, w->h.file_bytes));
    return ftruncate(w->fd, (off_t)w->h.file_bytes) ? nrd_file_error("write", w->path) : NULL;
}

static nrd_error *write_at(const nrd_engine_writer *w, const void *data, size_t n, uint64_t offset)
{
    const char *p = data;
    while (n > 0) {
        ssize_t k = pwrite(w->fd, p, n < (1u << 30) ? n : 1u << 30, (off_t)offset);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            errno = k < 0 ? errno : ENOSPC;
            return nrd_file_error("write", w->path);
        }
        p += k;
        offset += (uint64_t)k;
        n -= (size_t)k;
    }
    return NULL;
}

nrd_error *nrd_engine_writer_put(nrd_engine_writer *w, size_t i, const void *data,
                                 const float *scales)
{
    nrd_engine_entry *e = &w->entries[i];
    e->checksum = nrd_engine_weight_checksum(data, e->bytes, scales, e->n_scales);
    NRD_TRY(write_at(w, data, e->bytes, e->offset));
    return e->n_scales ? write_at(w, scales, e->n_scales * sizeof(float), e->scales_offset) : NULL;
}

static void writer_free(nrd_engine_writer *w)
{
    free(w->entries);
    nrd_str_fini(&w->names);
    free(w->path);
    free(w);
}

nrd_error *nrd_engine_writer_commit(nrd_engine_writer *w)
{
    nrd_error *err = NULL;
    uint64_t sum = nrd_engine_checksum(0, w->entries, w->n * sizeof(nrd_engine_entry));
    w->h.table_checksum = nrd_engine_checksum(sum, nrd_str_cstr(&w->names), w->names.len);
    w->h.header_checksum = nrd_engine_checksum(0, &w->h, offsetof(nrd_engine_header, header_checksum));
    NRD_TRY_GOTO(write_at(w, &w->h, sizeof w->h, 0), err, fail);
    NRD_TRY_GOTO(write_at(w, w->entries, w->n * sizeof(nrd_engine_entry), w->h.table_offset), err, fail);
    NRD_TRY_GOTO(write_at(w, nrd_str_cstr(&w->names), w->names.len, w->h.names_offset), err, fail);
    err = nrd_file_writer_commit(w->file);
    writer_free(w);
    return err;

fail:
    nrd_engine_writer_abort(w);
    return err;
}

void nrd_engine_writer_abort(nrd_engine_writer *w)
{
    if (w) {
        nrd_file_writer_abort(w->file);
        writer_free(w);
    }
}

/* The checksum of a rank's table, in which are those of its weights. */
static nrd_error *read_contents(const char *dir, int32_t rank, uint64_t *out)
{
    char *path = NULL;
    nrd_engine_header h;

    NRD_TRY(nrd_engine_path(&path, dir, rank));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool read_all = fd >= 0 && pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h;
    nrd_error *err = read_all ? NULL : nrd_errorf(NRD_ERR_INTERNAL, "cannot read '%s': %s", path, strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
    free(path);
    *out = read_all ? h.table_checksum : 0;
    return err;
}

nrd_error *nrd_engine_config_contents(const char *dir, int32_t n_ranks, nrd_str *config)
{
    nrd_str whole = {0};

    NRD_TRY(nrd_str_error(config));
    const char *end = strrchr(nrd_str_cstr(config), '}');
    NRD_ASSERT(end, "the text is an object");
    while (end > nrd_str_cstr(config) && end[-1] == '\n') {
        end--;
    }
    nrd_str_append(&whole, nrd_str_cstr(config), (size_t)(end - nrd_str_cstr(config)));
    nrd_str_puts(&whole, ",\n  \"contents\": [");
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        uint64_t sum = 0;
        nrd_error *err = read_contents(dir, rank, &sum);
        if (err) {
            nrd_str_fini(&whole);
            return err;
        }
        nrd_str_printf(&whole, "%s\"%016llx\"", rank ? ", " : "", (unsigned long long)sum);
    }
    nrd_str_puts(&whole, "]\n}\n");
    nrd_str_fini(config);
    *config = whole;
    return nrd_str_error(config);
}
