/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/plugin/fetch.h"

#include "hub/plugin/ask.h"
#include "hub/plugin/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_THREADS = 8, MAX_TRIES = 1000, MAX_STREAMS = 3, PIECE = 4 << 20 };

typedef struct job {
    const nrd_hub_access *access;
    const nrd_hub_part *part;
    nrd_hub_progress progress;
    void *user;
    int fd;
    nrd_hub_digest *digest; /* of what is written; whose turn it is to write uses it */
    pthread_mutex_t mu;     /* guards what follows */
    pthread_cond_t moved;   /* `written` or `err` changed */
    uint64_t next;          /* first byte that nobody has taken */
    uint64_t written;       /* the file is a beginning of so many bytes */
    uint64_t shown;         /* bytes that progress was told */
    char direct[2049];      /* where the hub sent on to; "": not known */
    bool has_no_ranges;
    nrd_error *err;
    nrd_hub_reply reply;    /* that belongs to err */
} job;

/* Bytes of the file that a connection has now: from `first`, `got` of `len` so far. */
typedef struct piece {
    job *j;
    char *data; /* NULL: they are written at once */
    uint64_t first, len, got;
    nrd_hub_answer answer;
    bool is_checked; /* the answer is to what was asked */
    nrd_error *err;  /* of the sink */
} piece;

static nrd_error *broken(const job *j, const char *what)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "'%s': cannot %s: %s", j->part->path, what, strerror(errno));
}

static void fail(job *j, nrd_error *err, const nrd_hub_reply *reply)
{
    pthread_mutex_lock(&j->mu);
    if (j->err) {
        nrd_error_free(err);
    } else {
        j->err = err;
        j->reply = *reply;
    }
    pthread_cond_broadcast(&j->moved);
    pthread_mutex_unlock(&j->mu);
}

static bool has_failed(job *j)
{
    pthread_mutex_lock(&j->mu);
    const bool failed = j->err != NULL;
    pthread_mutex_unlock(&j->mu);
    return failed;
}

/* ---- writing ---- */

/* Appends: the caller has the turn. */
static nrd_error *append(job *j, uint64_t at, const char *data, size_t n)
{
    NRD_TRY(nrd_hub_digest_add(j->digest, data, n));
    while (n > 0) {
        const ssize_t done = pwrite(j->fd, data, n, (off_t)at);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return broken(j, "write");
        }
        data += done;
        n -= (size_t)done;
        at += (uint64_t)done;
    }
    return NULL;
}

/* Waits until what stands before the piece is written. */
static nrd_error *append_in_turn(job *j, const piece *p)
{
    pthread_mutex_lock(&j->mu);
    while (j->written < p->first && !j->err) {
        pthread_cond_wait(&j->moved, &j->mu);
    }
    const bool is_mine = !j->err;
    pthread_mutex_unlock(&j->mu);
    if (!is_mine) {
        return NULL;
    }
    NRD_TRY(append(j, p->first, p->data, (size_t)p->len));
    pthread_mutex_lock(&j->mu);
    j->written = p->first + p->len;
    pthread_cond_broadcast(&j->moved);
    pthread_mutex_unlock(&j->mu);
    return NULL;
}

static void show(job *j, uint64_t n, bool is_old)
{
    pthread_mutex_lock(&j->mu);
    const uint64_t room = j->part->size - j->shown, told = n < room ? n : room; /* a stream begins again */
    j->shown += told;
    j->progress(j->user, told, is_old);
    pthread_mutex_unlock(&j->mu);
}

/* ---- one connection ---- */

/* Whether the answer is to what was asked. */
static nrd_error *check_answer(piece *p)
{
    const nrd_http_reply *r = &p->answer.http;
    const uint64_t size = p->j->part->size;

    if (r->status == 206 && r->first == p->first + p->got && r->total == size && p->data) {
        return NULL;
    }
    if (r->status == 200 && p->first + p->got == 0 && (p->len == size || !p->data)) {
        return NULL;
    }
    if (r->status == 200) {
        pthread_mutex_lock(&p->j->mu);
        p->j->has_no_ranges = true;
        pthread_mutex_unlock(&p->j->mu);
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "the server knows no ranges");
    }
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "the server sends bytes from %" PRIu64 " of %" PRIu64 ", expected from %" PRIu64
                      " of %" PRIu64 ": the file was changed, pull it again", r->first, r->total, p->first + p->got, size);
}

static bool take_bytes(void *user, const void *data, size_t n)
{
    piece *p = user;
    job *j = p->j;

    p->err = p->is_checked ? NULL : check_answer(p);
    p->is_checked = true;
    if (!p->err && n > p->len - p->got) {
        p->err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server sends more than the %" PRIu64 " bytes that it promised",
                            j->part->size);
    }
    if (!p->err && p->data) {
        memcpy(p->data + p->got, data, n);
    } else if (!p->err) {
        p->err = append(j, p->got, data, n);
    }
    if (p->err) {
        return false;
    }
    p->got += n;
    show(j, n, false);
    return !has_failed(j);
}

static void copy_direct(job *j, char out[2049])
{
    pthread_mutex_lock(&j->mu);
    snprintf(out, 2049, "%s", j->direct[0] ? j->direct : j->part->url);
    pthread_mutex_unlock(&j->mu);
}

static void keep_direct(job *j, const char *url)
{
    pthread_mutex_lock(&j->mu);
    snprintf(j->direct, sizeof j->direct, "%s", url);
    pthread_mutex_unlock(&j->mu);
}

/* Once. *out_again: asking again may help. An address that the hub sent to lasts an hour or so: a refusal
 * there is one to ask the hub again. */
static nrd_error *ask_piece(nrd_http_handle *h, piece *p, nrd_hub_reply *reply, bool *out_again)
{
    job *j = p->j;
    char url[2049];
    copy_direct(j, url);
    p->is_checked = false;
    const nrd_hub_question q = {.access = j->access, .url = url, .has_range = p->data != NULL,
                                .first = p->first + p->got, .last = p->first + p->len - 1, .etag = j->part->etag,
                                .sink = take_bytes, .user = p, .max_body = PIECE};
    nrd_error *err = nrd_hub_ask(h, &q, &p->answer, reply);
    const bool is_direct = strcmp(url, j->part->url) != 0;
    const long s = p->answer.http.status;

    *out_again = p->answer.again;
    if (p->err) {
        nrd_error_free(err);
        err = p->err;
        p->err = NULL;
        *out_again = false;
    } else if (!err && strcmp(p->answer.url, url) != 0) {
        keep_direct(j, p->answer.url);
    } else if (err && is_direct && (s == 401 || s == 403 || s == 404 || s == 410)) {
        keep_direct(j, "");
        *out_again = true;
    }
    nrd_http_reply_fini(&p->answer.http);
    return err;
}

static nrd_error *fill(nrd_http_handle *h, piece *p, nrd_hub_reply *reply)
{
    unsigned idle = 0;

    for (int tries = 0; p->got < p->len; tries++) {
        const uint64_t before = p->got;
        bool again = false;
        nrd_error *err = ask_piece(h, p, reply, &again);
        if (has_failed(p->j)) {
            nrd_error_free(err);
            return NULL;
        }
        idle = p->got > before ? 0 : idle + 1;
        if (!err && p->got < p->len) { /* the server said that it was all */
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server sent %" PRIu64 " of %" PRIu64 " bytes", p->first + p->got,
                             p->j->part->size);
            again = true;
        }
        if (err && (!again || idle >= NRD_HTTP_ATTEMPTS || tries >= MAX_TRIES)) {
            return err;
        }
        if (err) {
            nrd_error_free(err);
            nrd_hub_wait(reply, idle);
        }
    }
    return NULL;
}

/* ---- all of it ---- */

static bool take_piece(job *j, piece *p)
{
    pthread_mutex_lock(&j->mu);
    const uint64_t left = j->part->size - j->next;
    const bool found = !j->err && left > 0;
    p->first = j->next;
    p->len = left < PIECE ? left : PIECE;
    p->got = 0;
    j->next += found ? p->len : 0;
    pthread_mutex_unlock(&j->mu);
    return found;
}

/* Fetches until nothing is left, or one piece. */
static void fetch_some(job *j, bool is_one)
{
    nrd_hub_reply reply = {.wait_secs = -1};
    nrd_http_handle *h = NULL;
    piece p = {.j = j, .data = malloc(PIECE)};
    nrd_error *err = p.data ? nrd_http_handle_new(&h) : nrd_error_no_memory();
    bool go = true;

    while (!err && go && take_piece(j, &p)) {
        err = fill(h, &p, &reply);
        if (!err && p.got == p.len) {
            err = append_in_turn(j, &p);
        }
        go = !is_one;
    }
    if (err) {
        fail(j, err, &reply);
    }
    nrd_http_handle_free(h);
    free(p.data);
}

static void *worker(void *arg)
{
    fetch_some(arg, false);
    return NULL;
}

static void fetch_pieces(job *j)
{
    pthread_t threads[N_THREADS];
    size_t started = 0;

    fetch_some(j, true); /* tells whether the server knows ranges, and where it sends on to */
    const uint64_t pieces = (j->part->size - j->next) / PIECE + 1;
    while (!has_failed(j) && started + 1 < N_THREADS && started + 1 < pieces &&
           pthread_create(&threads[started], NULL, worker, j) == 0) {
        pthread_setname_np(threads[started++], "fetch");
    }
    fetch_some(j, false); /* this thread is one of them */
    for (size_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* From the first byte. */
static nrd_error *start_again(job *j)
{
    nrd_hub_digest_free(j->digest);
    NRD_TRY(nrd_hub_digest_new(&j->digest, j->part->kind, j->part->size));
    j->next = j->written = 0;
    nrd_error_free(j->err);
    j->err = NULL;
    return ftruncate(j->fd, 0) == 0 ? NULL : broken(j, "empty the file");
}

/* All over one connection, for servers without ranges. A break means the beginning. */
static nrd_error *fetch_stream(job *j)
{
    nrd_http_handle *h = NULL;
    nrd_error *err = nrd_http_handle_new(&h);

    for (unsigned tries = 1; !err; tries++) {
        piece p = {.j = j, .len = j->part->size};
        bool again = false;
        err = start_again(j);
        err = err ? err : ask_piece(h, &p, &j->reply, &again);
        if (!err && p.got < p.len) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server sent %" PRIu64 " of %" PRIu64 " bytes and knows no ranges",
                             p.got, p.len);
            again = true;
        }
        if (!err) {
            j->written = p.got;
            break;
        }
        if (again && tries < MAX_STREAMS) {
            nrd_error_free(err);
            err = NULL;
            nrd_hub_wait(&j->reply, tries);
        }
    }
    nrd_http_handle_free(h);
    return err;
}

/* What an earlier call left: its hash, and where to go on. */
static nrd_error *read_beginning(job *j)
{
    struct stat st;
    char *data = NULL;
    nrd_error *err = NULL;

    if (fstat(j->fd, &st) != 0) {
        return broken(j, "read");
    }
    if ((uint64_t)st.st_size > j->part->size) {
        return start_again(j);
    }
    data = malloc(PIECE);
    if (!data) {
        return nrd_error_no_memory();
    }
    for (uint64_t at = 0; !err && at < (uint64_t)st.st_size;) {
        const ssize_t n = pread(j->fd, data, PIECE, (off_t)at);
        if (n <= 0) {
            err = n < 0 && errno == EINTR ? NULL : broken(j, "read");
            continue;
        }
        err = nrd_hub_digest_add(j->digest, data, (size_t)n);
        at += (uint64_t)n;
    }
    free(data);
    if (!err && st.st_size > 0) {
        j->next = j->written = (uint64_t)st.st_size;
        show(j, j->written, true);
    }
    return err;
}

static nrd_error *check_hash(job *j)
{
    char hex[65];
    const char *what = j->part->kind == NRD_HUB_HASH_SHA256 ? "SHA-256" : "hash";

    NRD_TRY(nrd_hub_digest_end(j->digest, hex));
    if (j->part->kind == NRD_HUB_HASH_NONE || !strcmp(hex, j->part->hash)) {
        return fsync(j->fd) == 0 ? NULL : broken(j, "write");
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "its %s is %s, but the hub says %s: what came was removed, pull it again", what,
                      hex, j->part->hash);
}

static nrd_error *fetch(job *j)
{
    NRD_TRY(nrd_hub_digest_new(&j->digest, j->part->kind, j->part->size));
    NRD_TRY(read_beginning(j));
    const bool is_resumed = j->written > 0;
    for (bool is_second = false;; is_second = true) {
        fetch_pieces(j);
        if (j->err && j->has_no_ranges) {
            NRD_TRY(fetch_stream(j));
        }
        if (j->err) {
            nrd_error *err = j->err;
            j->err = NULL;
            return err;
        }
        nrd_error *err = check_hash(j);
        if (!err) {
            return NULL;
        }
        if (!is_resumed || is_second) {
            (void)unlink(j->part->path);
            return err;
        }
        nrd_error_free(err); /* the beginning may have been of another file */
        NRD_TRY(start_again(j));
    }
}

nrd_error *nrd_hub_fetch(const nrd_hub_access *a, const nrd_hub_part *part, nrd_hub_progress progress, void *user,
                         nrd_hub_reply *reply)
{
    job j = {.access = a, .part = part, .progress = progress, .user = user, .reply = {.wait_secs = -1}};
    nrd_error *err = NULL;

    j.fd = open(part->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (j.fd < 0) {
        return broken(&j, "write");
    }
    pthread_mutex_init(&j.mu, NULL);
    pthread_cond_init(&j.moved, NULL);
    err = fetch(&j);
    *reply = j.reply;
    nrd_hub_digest_free(j.digest);
    pthread_cond_destroy(&j.moved);
    pthread_mutex_destroy(&j.mu);
    if (close(j.fd) != 0 && !err) {
        err = broken(&j, "write");
    }
    return err;
}
