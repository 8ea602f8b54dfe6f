/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/copy.h"

#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_THREADS = 8, MAX_TRIES = 1000 };
#define PIECE ((uint64_t)16 << 20)

typedef struct file {
    int fd;            /* -1: not open */
    uint64_t n_pieces; /* that are not done */
} file;

typedef struct job {
    nrd_cloud_store *store;
    const nrd_cloud_file *files;
    size_t n;
    pthread_mutex_t mu; /* guards what follows */
    file *open;
    size_t next;        /* file whose piece is next */
    uint64_t next_at;   /* its first byte */
    nrd_error *err;
} job;

typedef struct piece {
    size_t file;
    int fd;
    uint64_t first, end; /* bytes; end is not included */
    uint64_t at;         /* where the next byte goes */
    nrd_error *err;      /* of the sink */
} piece;

static nrd_error *broken(const nrd_cloud_file *f, const char *what)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "'%s': cannot %s: %s", f->path, what, strerror(errno));
}

static void fail(job *j, nrd_error *err)
{
    pthread_mutex_lock(&j->mu);
    if (j->err) {
        nrd_error_free(err);
    } else {
        j->err = err;
    }
    pthread_mutex_unlock(&j->mu);
}

/* The file is made with its first piece. */
static nrd_error *open_locked(job *j, size_t i)
{
    const nrd_cloud_file *f = &j->files[i];
    file *o = &j->open[i];

    o->n_pieces = f->size ? (f->size - 1) / PIECE + 1 : 1;
    o->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (o->fd < 0) {
        return broken(f, "make the file");
    }
    return ftruncate(o->fd, (off_t)f->size) == 0 ? NULL : broken(f, "make the file as large as the object");
}

/* false: nothing is left, or somebody failed. */
static bool take_piece(job *j, piece *out)
{
    nrd_error *err = NULL;
    bool found = false;

    pthread_mutex_lock(&j->mu);
    if (!j->err && j->next < j->n) {
        const nrd_cloud_file *f = &j->files[j->next];
        err = j->next_at == 0 ? open_locked(j, j->next) : NULL;
        *out = (piece){.file = j->next, .fd = j->open[j->next].fd, .first = j->next_at, .at = j->next_at};
        out->end = f->size - j->next_at < PIECE ? f->size : j->next_at + PIECE;
        j->next_at = out->end;
        if (out->end >= f->size) {
            j->next++;
            j->next_at = 0;
        }
        found = !err;
        j->err = err;
    }
    pthread_mutex_unlock(&j->mu);
    return found;
}

static nrd_error *end_piece(job *j, size_t i)
{
    pthread_mutex_lock(&j->mu);
    file *o = &j->open[i];
    const bool is_last = --o->n_pieces == 0;
    const int fd = o->fd;
    o->fd = is_last ? -1 : o->fd;
    pthread_mutex_unlock(&j->mu);
    return is_last && close(fd) != 0 ? broken(&j->files[i], "write") : NULL;
}

static bool has_failed(job *j)
{
    pthread_mutex_lock(&j->mu);
    const bool failed = j->err != NULL;
    pthread_mutex_unlock(&j->mu);
    return failed;
}

typedef struct writing {
    job *j;
    piece *p;
} writing;

static bool take_bytes(void *user, const void *data, size_t n)
{
    writing *w = user;
    piece *p = w->p;
    const nrd_cloud_file *f = &w->j->files[p->file];
    const char *from = data;

    if (n > p->end - p->at) {
        p->err = nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s': the store sends more bytes than it was asked for", f->name);
        return false;
    }
    while (n > 0) {
        const ssize_t done = pwrite(p->fd, from, n, (off_t)p->at);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            p->err = broken(f, "write");
            return false;
        }
        from += done;
        n -= (size_t)done;
        p->at += (uint64_t)done;
    }
    return !has_failed(w->j);
}

/* Whether the answer was to what was asked. */
static nrd_error *check_reply(const nrd_cloud_file *f, const nrd_http_reply *r, uint64_t first, bool is_whole)
{
    if (r->status == 206 && r->first == first && r->total == f->size) {
        return NULL;
    }
    if (r->status == 200 && is_whole) {
        return NULL;
    }
    return nrd_errorf(NRD_ERR_UNAVAILABLE,
                      "'%s': the store sends another part than bytes from %" PRIu64 " of %" PRIu64, f->name, first,
                      f->size);
}

static nrd_error *copy_piece(job *j, nrd_http_handle *h, piece *p, const char *name)
{
    const nrd_cloud_file *f = &j->files[p->file];
    writing w = {.j = j, .p = p};
    unsigned idle = 0;

    for (int tries = 0; p->at < p->end; tries++) {
        const uint64_t before = p->at;
        const nrd_cloud_request r = {.object = name, .etag = f->etag, .has_range = true, .first = p->at,
                                     .last = p->end - 1, .sink = take_bytes, .user = &w};
        nrd_http_reply reply = {0};
        bool again = false;
        nrd_error *err = nrd_cloud_ask_once(j->store, h, &r, &reply, &again);
        if (p->err) {
            nrd_error_free(err);
            err = p->err;
            p->err = NULL;
            again = false;
        } else if (!err) {
            err = check_reply(f, &reply, before, before == 0 && p->end == f->size);
        }
        nrd_http_reply_fini(&reply);
        if (has_failed(j)) {
            nrd_error_free(err);
            return NULL;
        }
        idle = p->at > before ? 0 : idle + 1;
        if (!err && p->at < p->end) { /* the store said that it was all */
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s': the store sent %" PRIu64 " of %" PRIu64 " bytes", f->name, p->at,
                             f->size);
            again = true;
        }
        if (err && (!again || idle >= NRD_HTTP_ATTEMPTS || tries >= MAX_TRIES)) {
            return err;
        }
        if (err) {
            nrd_error_free(err);
            nrd_http_pause(idle);
        }
    }
    return NULL;
}

static void *copy_some(void *arg)
{
    job *j = arg;
    const char *prefix = nrd_cloud_store_place(j->store)->prefix;
    nrd_http_handle *h = NULL;
    piece p;
    nrd_error *err = nrd_http_handle_new(&h);

    while (!err && take_piece(j, &p)) {
        nrd_str name = {0};
        nrd_str_puts(&name, prefix);
        nrd_str_puts(&name, j->files[p.file].name);
        err = nrd_str_error(&name);
        err = err ? err : copy_piece(j, h, &p, nrd_str_cstr(&name));
        nrd_str_fini(&name);
        err = err ? err : end_piece(j, p.file);
    }
    if (err) {
        fail(j, err);
    }
    nrd_http_handle_free(h);
    return NULL;
}

nrd_error *nrd_cloud_copy(nrd_cloud_store *s, const nrd_cloud_file *files, size_t n)
{
    pthread_t threads[N_THREADS];
    size_t started = 0;
    uint64_t pieces = 0;
    job j = {.store = s, .files = files, .n = n, .open = calloc(n + 1, sizeof *j.open)};

    if (!j.open) {
        return nrd_error_no_memory();
    }

    pthread_mutex_init(&j.mu, NULL);
    for (size_t i = 0; i < n; i++) {
        j.open[i].fd = -1;
        pieces += files[i].size / PIECE + 1;
    }
    while (started + 1 < N_THREADS && started + 1 < pieces &&
           pthread_create(&threads[started], NULL, copy_some, &j) == 0) {
        pthread_setname_np(threads[started++], "copy");
    }
    (void)copy_some(&j); /* this thread is one of them */
    for (size_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    for (size_t i = 0; i < n; i++) {
        if (j.open[i].fd >= 0) {
            close(j.open[i].fd);
        }
    }
    free(j.open);
    pthread_mutex_destroy(&j.mu);
    return j.err ? nrd_error_wrap(j.err, "%s", nrd_cloud_store_place(s)->address) : NULL;
}
