/* SPDX-License-Identifier: Apache-2.0
 * A table in memory, in the order of creation, and the folder that it describes. Names on disk are ids that were made
 * here: nothing that a client says becomes a part of a path. */
#include "frontends/openai/file_store.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_RECORD = 1 << 20 };

#define TEMPORARY "nereid-files-"

struct nrd_file_draft {
    struct nrd_file_draft *next; /* of the store; guarded by its lock */
    nrd_file_store *store;
    char id[NRD_FILE_ID];
    int fd;
    uint64_t bytes, max_bytes;
};

struct nrd_file_store {
    nrd_file_limits limits;
    bool temporary;
    uint64_t secret[2];
    pthread_mutex_t mu; /* guards all below */
    char *dir;          /* owns; NULL: not made yet */
    int dir_fd, lock_fd;
    nrd_file_info **files; /* [n], the oldest first */
    size_t n, cap;
    nrd_file_draft *drafts;
    uint64_t bytes; /* of files and drafts */
};

static int64_t now_secs(void)
{
    return (int64_t)(nrd_wall_ns() / 1000000000u);
}

static nrd_error *failed(const char *what, const char *name)
{
    if (errno == ENOSPC || errno == EDQUOT) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "the server's disk is full"), NRD_FILE_NO_ROOM);
    }
    return nrd_errorf(NRD_ERR_INTERNAL, "cannot %s '%s': %s", what, name, strerror(errno));
}

/* ---- ids ---- */

nrd_error *nrd_file_new_id(char out[NRD_FILE_ID], const char *prefix)
{
    unsigned char r[12];
    size_t n = (size_t)snprintf(out, NRD_FILE_ID, "%s", prefix);

    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot get random numbers");
    }
    for (size_t i = 0; i < sizeof r && n + 2 < NRD_FILE_ID; i++) {
        n += (size_t)snprintf(out + n, NRD_FILE_ID - n, "%02x", r[i]);
    }
    return NULL;
}

bool nrd_file_is_id(const char *id, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(id, prefix, n) == 0 && strlen(id) == n + 24 && strspn(id + n, "0123456789abcdef") == 24;
}

static void name_of(const char *id, const char *ending, char out[NRD_FILE_ID + 16])
{
    snprintf(out, NRD_FILE_ID + 16, "%s%s", id, ending);
}

/* ---- the folder ---- */

static void forget_folder(nrd_file_store *s)
{
    if (s->dir_fd >= 0) {
        close(s->dir_fd);
    }
    if (s->lock_fd >= 0) {
        close(s->lock_fd);
    }
    s->dir_fd = s->lock_fd = -1;
    free(s->dir);
    s->dir = NULL;
}

/* Opens and locks what s->dir names. */
static nrd_error *enter_folder(nrd_file_store *s)
{
    struct stat st;

    s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir_fd < 0 || fstat(s->dir_fd, &st) != 0) {
        return failed("open the folder", s->dir);
    }
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the folder '%s' holds what clients send: it must belong to the server's user, and "
                          "nobody else may enter it (chmod 700)", s->dir);
    }
    s->lock_fd = openat(s->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd < 0) {
        return failed("create in the folder", s->dir);
    }
    return flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0
               ? NULL
               : nrd_errorf(NRD_ERR_UNAVAILABLE, "the folder '%s' is in use by another server", s->dir);
}

/* Temporary folders whose server was killed: nobody holds their locks. */
static void sweep(const char *parent)
{
    char **names = NULL;
    size_t n = 0;

    nrd_error_free(nrd_dir_list(&names, &n, parent));
    for (size_t i = 0; i < n; i++) {
        char *dir = NULL;
        struct stat st;
        if (strncmp(names[i], TEMPORARY, sizeof TEMPORARY - 1) != 0 || asprintf(&dir, "%s/%s", parent, names[i]) < 0) {
            continue;
        }
        nrd_file_store gone = {.dir = dir, .dir_fd = -1, .lock_fd = -1};
        nrd_error *err = lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
                                 time(NULL) - st.st_mtime > 60
                             ? enter_folder(&gone)
                             : nrd_errorf(NRD_ERR_INVALID_ARG, "not one of them");
        if (!err) {
            nrd_dir_remove(dir);
        }
        nrd_error_free(err);
        forget_folder(&gone);
    }
    nrd_names_free(names, n);
}

/* Lock held. */
static nrd_error *make_temporary(nrd_file_store *s)
{
    const char *parent = nrd_env("TMPDIR", "/tmp");

    sweep(parent);
    if (asprintf(&s->dir, "%s/" TEMPORARY "XXXXXX", parent) < 0) {
        s->dir = NULL;
        return nrd_error_no_memory();
    }
    if (!mkdtemp(s->dir)) {
        nrd_error *err = failed("make a folder", s->dir);
        free(s->dir);
        s->dir = NULL;
        return err;
    }
    nrd_error *err = enter_folder(s);
    if (err) {
        forget_folder(s);
    }
    return err;
}

/* ---- small files, whole ---- */

static nrd_error *write_all(int fd, const char *data, size_t n, const char *name)
{
    while (n > 0) {
        const ssize_t w = write(fd, data, n);
        if (w < 0 && errno == EINTR) {
            continue;
        }
        if (w <= 0) {
            return failed("write", name);
        }
        data += w;
        n -= (size_t)w;
    }
    return NULL;
}

/* The old or the new text, never half of one. */
static nrd_error *write_record(nrd_file_store *s, const char *name, const char *text, size_t n)
{
    char temporary[NRD_FILE_ID + 32];

    snprintf(temporary, sizeof temporary, "%s.new", name);
    const int fd = openat(s->dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return failed("create", temporary);
    }
    nrd_error *err = write_all(fd, text, n, temporary);
    if (!err && (fsync(fd) != 0 || renameat(s->dir_fd, temporary, s->dir_fd, name) != 0)) {
        err = failed("write", name);
    }
    close(fd);
    if (err) {
        unlinkat(s->dir_fd, temporary, 0);
    }
    return err;
}

/* NULL: it is not there or no JSON. */
static nrd_json_doc *read_record(const nrd_file_store *s, const char *name)
{
    nrd_json_doc *doc = NULL;
    struct stat st;
    const int fd = openat(s->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= MAX_RECORD) {
        char *text = malloc((size_t)st.st_size);
        const ssize_t n = text ? read(fd, text, (size_t)st.st_size) : -1;
        if (n > 0) {
            nrd_error_free(nrd_json_parse(&doc, text, (size_t)n, NULL));
        }
        free(text);
    }
    if (fd >= 0) {
        close(fd);
    }
    return doc;
}

nrd_error *nrd_file_store_write(nrd_file_store *s, const char *name, const nrd_str *text)
{
    NRD_TRY(nrd_str_error(text));
    return s->temporary ? NULL : write_record(s, name, nrd_str_cstr(text), text->len);
}

void nrd_file_store_erase(nrd_file_store *s, const char *name)
{
    if (!s->temporary) {
        (void)unlinkat(s->dir_fd, name, 0);
    }
}

nrd_error *nrd_file_store_records(nrd_file_store *s, void (*each)(void *arg, const nrd_json *record), void *arg)
{
    char **names = NULL;
    size_t n = 0;

    if (s->temporary) {
        return NULL;
    }
    NRD_TRY(nrd_dir_list(&names, &n, s->dir));
    for (size_t i = 0; i < n; i++) {
        if (nrd_str_has_suffix(names[i], ".record")) {
            nrd_json_doc *doc = read_record(s, names[i]);
            if (doc) {
                each(arg, nrd_json_root(doc));
            } else {
                NRD_LOG_WARN("'%s/%s' cannot be read and is left alone", s->dir, names[i]);
            }
            nrd_json_doc_free(doc);
        }
    }
    nrd_names_free(names, n);
    return NULL;
}

/* ---- the table ---- */

/* Lock held. */
static nrd_error *make_room(nrd_file_store *s)
{
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 16;
        nrd_file_info **files = realloc(s->files, cap * sizeof *files);
        if (!files) {
            return nrd_error_no_memory();
        }
        s->files = files;
        s->cap = cap;
    }
    return NULL;
}

/* Lock held. */
static void drop(nrd_file_store *s, size_t i)
{
    char name[NRD_FILE_ID + 16];
    nrd_file_info *f = s->files[i];

    name_of(f->id, ".json", name);
    (void)unlinkat(s->dir_fd, name, 0);
    name_of(f->id, ".data", name);
    (void)unlinkat(s->dir_fd, name, 0);
    s->bytes -= f->bytes;
    memmove(s->files + i, s->files + i + 1, (s->n - i - 1) * sizeof *s->files);
    s->n--;
    free(f);
}

/* Lock held. */
static void expire(nrd_file_store *s)
{
    const int64_t now = now_secs();
    for (size_t i = s->n; i-- > 0;) {
        if (s->files[i]->expires && s->files[i]->expires <= now) {
            drop(s, i);
        }
    }
}

static nrd_error *no_file(const char *id)
{
    return nrd_error_because(nrd_errorf(NRD_ERR_NOT_FOUND, "No such File object: %.64s", id), "file_not_found");
}

/* Lock held. SIZE_MAX: there is none. */
static size_t place_of(const nrd_file_store *s, const char *owner, const char *id)
{
    size_t i = 0;
    while (i < s->n && (strcmp(s->files[i]->id, id) != 0 || strcmp(s->files[i]->owner, owner) != 0)) {
        i++;
    }
    return i < s->n ? i : SIZE_MAX;
}

nrd_error *nrd_file_store_list(nrd_file_store *s, const char *owner, const char *purpose, const char *after, bool ascending,
                               size_t max, nrd_file_info **out, size_t *out_n, bool *out_more)
{
    nrd_error *err = NULL;
    size_t skipped = 0, n = 0;

    *out_n = 0;
    *out_more = false;
    pthread_mutex_lock(&s->mu);
    expire(s);
    *out = malloc((s->n < max ? s->n + 1 : max + 1) * sizeof **out);
    const size_t from = after && after[0] ? place_of(s, owner, after) : SIZE_MAX;
    if (!*out) {
        err = nrd_error_no_memory();
    } else if (after && after[0] && from == SIZE_MAX) {
        err = nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "after: there is no file '%.64s'", after), "after");
    } else {
        skipped = from == SIZE_MAX ? 0 : ascending ? from + 1 : s->n - from;
        for (size_t i = skipped; i < s->n; i++) {
            const nrd_file_info *f = s->files[ascending ? i : s->n - 1 - i];
            if (strcmp(f->owner, owner) != 0 || (purpose && purpose[0] && strcmp(f->purpose, purpose) != 0)) {
                continue;
            }
            if (n == max) {
                *out_more = true;
                break;
            }
            (*out)[n++] = *f;
        }
        *out_n = n;
    }
    pthread_mutex_unlock(&s->mu);
    if (err) {
        free(*out);
        *out = NULL;
    }
    return err;
}

nrd_error *nrd_file_store_find(nrd_file_store *s, const char *owner, const char *id, nrd_file_info *out)
{
    pthread_mutex_lock(&s->mu);
    expire(s);
    const size_t i = place_of(s, owner, id);
    if (i != SIZE_MAX) {
        *out = *s->files[i];
    }
    pthread_mutex_unlock(&s->mu);
    return i == SIZE_MAX ? no_file(id) : NULL;
}

nrd_error *nrd_file_store_open(nrd_file_store *s, const char *owner, const char *id, int *out_fd, nrd_file_info *out)
{
    char name[NRD_FILE_ID + 16];

    *out_fd = -1;
    NRD_TRY(nrd_file_store_find(s, owner, id, out));
    name_of(out->id, ".data", name);
    *out_fd = openat(s->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*out_fd >= 0) {
        return NULL;
    }
    return errno == ENOENT ? no_file(id) : failed("open", name);
}

nrd_error *nrd_file_store_remove(nrd_file_store *s, const char *owner, const char *id)
{
    pthread_mutex_lock(&s->mu);
    expire(s);
    const size_t i = place_of(s, owner, id);
    if (i != SIZE_MAX) {
        drop(s, i);
    }
    pthread_mutex_unlock(&s->mu);
    return i == SIZE_MAX ? no_file(id) : NULL;
}

/* ---- drafts ---- */

/* Lock held. It is the id of a file or of a draft. */
static bool is_known(const nrd_file_store *s, const char *id, size_t n)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strlen(s->files[i]->id) == n && !memcmp(s->files[i]->id, id, n)) {
            return true;
        }
    }
    for (const nrd_file_draft *d = s->drafts; d; d = d->next) {
        if (strlen(d->id) == n && !memcmp(d->id, id, n)) {
            return true;
        }
    }
    return false;
}

/* Lock held. */
static nrd_error *check_count(nrd_file_store *s)
{
    size_t n = s->n;
    for (const nrd_file_draft *d = s->drafts; d; d = d->next) {
        n++;
    }
    if (n < s->limits.max_files) {
        return NULL;
    }
    return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "%zu files are kept, which is the limit (--openai-files-kept); delete some",
                                        n), NRD_FILE_NO_ROOM);
}

static nrd_error *open_draft(nrd_file_draft **out, nrd_file_store *s, const char *id, int flags, uint64_t max_bytes)
{
    char name[NRD_FILE_ID + 16];
    nrd_file_draft *d = calloc(1, sizeof *d);

    if (!d) {
        return nrd_error_no_memory();
    }
    name_of(id, ".data", name);
    d->fd = openat(s->dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_APPEND | flags, 0600);
    if (d->fd < 0) {
        nrd_error *err = errno == ENOENT ? no_file(id) : failed("create", name);
        free(d);
        return err;
    }
    snprintf(d->id, sizeof d->id, "%s", id);
    d->store = s;
    d->max_bytes = max_bytes;
    d->next = s->drafts;
    s->drafts = d;
    *out = d;
    return NULL;
}

nrd_error *nrd_file_draft_new(nrd_file_draft **out, nrd_file_store *s, bool is_upload)
{
    char id[NRD_FILE_ID];

    *out = NULL;
    NRD_TRY(nrd_file_new_id(id, "file-"));
    pthread_mutex_lock(&s->mu);
    expire(s);
    nrd_error *err = is_upload ? check_count(s) : NULL;
    err = err || s->dir ? err : make_temporary(s);
    err = err ? err : open_draft(out, s, id, O_CREAT | O_EXCL, is_upload ? s->limits.max_file_bytes : UINT64_MAX);
    pthread_mutex_unlock(&s->mu);
    return err;
}

nrd_error *nrd_file_whole_lines(int fd, uint64_t *out)
{
    char text[4096];
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return failed("read", "a file of lines");
    }
    for (off_t end = st.st_size; end > 0;) {
        const size_t n = end < (off_t)sizeof text ? (size_t)end : sizeof text;
        if (pread(fd, text, n, end - (off_t)n) != (ssize_t)n) {
            return failed("read", "a file of lines");
        }
        const char *eol = memrchr(text, '\n', n);
        if (eol) {
            *out = (uint64_t)(end - (off_t)n) + (uint64_t)(eol + 1 - text);
            return NULL;
        }
        end -= (off_t)n;
    }
    *out = 0;
    return NULL;
}

nrd_error *nrd_file_draft_resume(nrd_file_draft **out, nrd_file_store *s, const char *id)
{
    *out = NULL;
    if (!nrd_file_is_id(id, "file-") || s->temporary) {
        return no_file(id);
    }
    pthread_mutex_lock(&s->mu);
    nrd_error *err = is_known(s, id, strlen(id)) ? no_file(id) : open_draft(out, s, id, 0, UINT64_MAX);
    pthread_mutex_unlock(&s->mu);
    if (err) {
        return err;
    }
    nrd_file_draft *d = *out;
    err = nrd_file_whole_lines(d->fd, &d->bytes);
    if (!err && ftruncate(d->fd, (off_t)d->bytes) != 0) {
        err = failed("cut", id);
    }
    if (err) {
        d->bytes = 0;
        nrd_file_draft_leave(d);
        *out = NULL;
        return err;
    }
    pthread_mutex_lock(&s->mu);
    s->bytes += d->bytes;
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

const char *nrd_file_draft_id(const nrd_file_draft *d)
{
    return d->id;
}

uint64_t nrd_file_draft_bytes(const nrd_file_draft *d)
{
    return d->bytes;
}

int nrd_file_draft_fd(const nrd_file_draft *d)
{
    return d->fd;
}

nrd_error *nrd_file_draft_write(nrd_file_draft *d, const char *data, size_t n)
{
    nrd_file_store *s = d->store;

    if (n > d->max_bytes - d->bytes) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "the file has more than %llu bytes, which is the limit "
                                            "(--openai-file-mb)", (unsigned long long)d->max_bytes), NRD_FILE_TOO_LARGE);
    }
    pthread_mutex_lock(&s->mu);
    const bool fits = s->bytes <= s->limits.max_bytes && n <= s->limits.max_bytes - s->bytes;
    s->bytes += fits ? n : 0;
    pthread_mutex_unlock(&s->mu);
    if (!fits) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "the server keeps files of %llu bytes together, which is the limit "
                                            "(--openai-files-mb); delete some", (unsigned long long)s->limits.max_bytes),
                                 NRD_FILE_NO_ROOM);
    }
    nrd_error *err = write_all(d->fd, data, n, d->id);
    if (err && ftruncate(d->fd, (off_t)d->bytes) == 0) {
        pthread_mutex_lock(&s->mu);
        s->bytes -= n;
        pthread_mutex_unlock(&s->mu);
    } else {
        d->bytes += n;
    }
    return err;
}

/* From the list; the bytes stay counted. */
static void forget_draft(nrd_file_draft *d)
{
    nrd_file_draft **p = &d->store->drafts;
    while (*p != d) {
        p = &(*p)->next;
    }
    *p = d->next;
    close(d->fd);
    free(d);
}

void nrd_file_draft_abort(nrd_file_draft *d)
{
    char name[NRD_FILE_ID + 16];
    if (d) {
        nrd_file_store *s = d->store;
        pthread_mutex_lock(&s->mu);
        name_of(d->id, ".data", name);
        (void)unlinkat(s->dir_fd, name, 0);
        s->bytes -= d->bytes;
        forget_draft(d);
        pthread_mutex_unlock(&s->mu);
    }
}

void nrd_file_draft_leave(nrd_file_draft *d)
{
    if (d) {
        nrd_file_store *s = d->store;
        pthread_mutex_lock(&s->mu);
        s->bytes -= d->bytes;
        forget_draft(d);
        pthread_mutex_unlock(&s->mu);
    }
}

static void put_info(nrd_str *out, const nrd_file_info *f)
{
    nrd_str_printf(out, "{\"id\":\"%s\",\"owner\":\"%s\",\"bytes\":%llu,\"created_at\":%lld,\"expires_at\":%lld,\"purpose\":", f->id,
                   f->owner, (unsigned long long)f->bytes, (long long)f->created, (long long)f->expires);
    nrd_json_put_cstr(out, f->purpose);
    nrd_str_puts(out, ",\"filename\":");
    nrd_json_put_cstr(out, f->name);
    nrd_str_putc(out, '}');
}

nrd_error *nrd_file_draft_commit(nrd_file_draft *d, const char *owner, const char *name, const char *purpose, int64_t secs,
                                 nrd_file_info *out)
{
    nrd_file_store *s = d->store;
    const int64_t most = s->limits.keep_secs;
    nrd_str text = {0};
    nrd_error *err = NULL;
    nrd_file_info *f = NULL;
    char record[NRD_FILE_ID + 16];

    NRD_NEW_GOTO(f, 1, err, fail);
    f->created = now_secs();
    secs = secs > 0 && (most == 0 || secs < most) ? secs : most;
    f->expires = secs ? f->created + secs : 0;
    f->bytes = d->bytes;
    snprintf(f->id, sizeof f->id, "%s", d->id);
    snprintf(f->owner, sizeof f->owner, "%s", owner);
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->purpose, sizeof f->purpose, "%s", purpose);
    put_info(&text, f);
    NRD_TRY_GOTO(nrd_str_error(&text), err, fail);
    if (!s->temporary) {
        name_of(d->id, ".json", record);
        if (fsync(d->fd) != 0) {
            err = failed("write", d->id);
            goto fail;
        }
        NRD_TRY_GOTO(write_record(s, record, text.data, text.len), err, fail);
    }
    pthread_mutex_lock(&s->mu);
    err = make_room(s);
    if (!err) {
        s->files[s->n++] = f;
        *out = *f;
        forget_draft(d);
    }
    pthread_mutex_unlock(&s->mu);
    if (!err) {
        nrd_str_fini(&text);
        return NULL;
    }

fail:
    nrd_str_fini(&text);
    free(f);
    nrd_file_draft_abort(d);
    return err;
}

/* ---- life ---- */

static void take_file(nrd_file_store *s, const char *record)
{
    nrd_json_doc *doc = read_record(s, record);
    const nrd_json *r = nrd_json_root(doc);
    const char *id = nrd_json_get_str(r, "id", "");
    char name[NRD_FILE_ID + 16];
    struct stat st;

    name_of(nrd_file_is_id(id, "file-") ? id : "", ".data", name);
    nrd_file_info *f = calloc(1, sizeof *f);
    if (f && fstatat(s->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) && !make_room(s)) {
        snprintf(f->id, sizeof f->id, "%s", id);
        snprintf(f->owner, sizeof f->owner, "%s", nrd_json_get_str(r, "owner", ""));
        snprintf(f->name, sizeof f->name, "%s", nrd_json_get_str(r, "filename", ""));
        snprintf(f->purpose, sizeof f->purpose, "%s", nrd_json_get_str(r, "purpose", ""));
        f->bytes = (uint64_t)st.st_size;
        f->created = nrd_json_get_int(r, "created_at", 0);
        f->expires = nrd_json_get_int(r, "expires_at", 0);
        s->bytes += f->bytes;
        s->files[s->n++] = f;
        f = NULL;
    } else {
        NRD_LOG_WARN("'%s/%s' describes no file that is there, and is left alone", s->dir, record);
    }
    free(f);
    nrd_json_doc_free(doc);
}

static int by_age(const void *a, const void *b)
{
    const nrd_file_info *x = *(nrd_file_info *const *)a, *y = *(nrd_file_info *const *)b;
    return x->created != y->created ? (x->created > y->created) - (x->created < y->created) : strcmp(x->id, y->id);
}

static nrd_error *read_folder(nrd_file_store *s)
{
    char **names = NULL;
    size_t n = 0;

    NRD_TRY(nrd_dir_list(&names, &n, s->dir));
    for (size_t i = 0; i < n; i++) {
        if (nrd_str_has_prefix(names[i], "file-") && nrd_str_has_suffix(names[i], ".json")) {
            take_file(s, names[i]);
        }
    }
    nrd_names_free(names, n);
    if (s->n > 1) {
        qsort(s->files, s->n, sizeof *s->files, by_age);
    }
    return NULL;
}

void nrd_file_store_remove_strays(nrd_file_store *s)
{
    char **names = NULL;
    size_t n = 0;

    if (s->temporary) {
        return;
    }
    pthread_mutex_lock(&s->mu);
    nrd_error_free(nrd_dir_list(&names, &n, s->dir));
    for (size_t i = 0; i < n; i++) {
        const bool data = nrd_str_has_prefix(names[i], "file-") && nrd_str_has_suffix(names[i], ".data");
        if ((data && !is_known(s, names[i], strlen(names[i]) - 5)) || nrd_str_has_suffix(names[i], ".new")) {
            (void)unlinkat(s->dir_fd, names[i], 0);
        }
    }
    nrd_names_free(names, n);
    pthread_mutex_unlock(&s->mu);
}

static nrd_error *read_secret(nrd_file_store *s)
{
    bool fresh = true;

    if (!s->temporary) {
        const int fd = openat(s->dir_fd, "secret", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        fresh = fd < 0 || read(fd, s->secret, sizeof s->secret) != (ssize_t)sizeof s->secret;
        if (fd >= 0) {
            close(fd);
        }
    }
    if (fresh && getrandom(s->secret, sizeof s->secret, 0) != (ssize_t)sizeof s->secret) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot get random numbers");
    }
    return fresh && !s->temporary ? write_record(s, "secret", (const char *)s->secret, sizeof s->secret) : NULL;
}

nrd_error *nrd_file_store_new(nrd_file_store **out, const nrd_file_limits *limits)
{
    nrd_error *err = NULL;
    nrd_file_store *s = NULL;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    s->limits = *limits;
    s->dir_fd = s->lock_fd = -1;
    s->temporary = !limits->dir[0];
    pthread_mutex_init(&s->mu, NULL);
    if (!s->temporary) {
        NRD_DUP_GOTO(s->dir, limits->dir, err, fail);
        if (!nrd_path_exists(s->dir)) {
            NRD_TRY_GOTO(nrd_mkdirs(s->dir), err, fail);
            if (chmod(s->dir, 0700) != 0) {
                err = failed("close to others the folder", s->dir);
                goto fail;
            }
        }
        NRD_TRY_GOTO(enter_folder(s), err, fail);
        NRD_TRY_GOTO(read_folder(s), err, fail);
    }
    NRD_TRY_GOTO(read_secret(s), err, fail);
    *out = s;
    return NULL;

fail:
    nrd_file_store_free(s);
    return err;
}

void nrd_file_store_free(nrd_file_store *s)
{
    if (!s) {
        return;
    }
    NRD_ASSERT(!s->drafts, "drafts end before their store");
    if (s->temporary && s->dir) {
        nrd_dir_remove(s->dir);
    }
    forget_folder(s);
    for (size_t i = 0; i < s->n; i++) {
        free(s->files[i]);
    }
    free(s->files);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

bool nrd_file_store_stays(const nrd_file_store *s)
{
    return !s->temporary;
}

const nrd_file_limits *nrd_file_store_limits(const nrd_file_store *s)
{
    return &s->limits;
}

const uint64_t *nrd_file_store_secret(const nrd_file_store *s)
{
    return s->secret;
}
