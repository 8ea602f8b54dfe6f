/* SPDX-License-Identifier: Apache-2.0
 * Guides of requests: the vocabulary is read when the first one comes, compiled guides are kept.
 *
 * Life of an entry: the first request with this type and text puts it into the table, QUEUED; a worker
 * compiles it without the table's lock (COMPILING) and tells all who wait for it. When the last of them
 * leaves, the compile is stopped. READY entries stay until GUIDES_KEPT are there or they take
 * GUIDES_KEPT_BYTES, and one is the longest unused; FAILED ones leave the table at once, as do those
 * that passed a limit while they ran. */
#include "executor/internal.h"

#include "base/limits.h"
#include "base/mem.h"
#include "text/shared.h"

#include <string.h>
#include <sys/resource.h>

enum {
    N_WORKERS = 2,
    WORKER_NICE = 10, /* behind the threads that others' tokens wait for */
};

typedef struct nrd_guide_entry {
    struct nrd_guide_entry *next;       /* guarded by guides.mu, as all below but `stop` */
    struct nrd_guide_entry *queue_next; /* QUEUED */
    char *type, *text;
    int refs; /* the table's and that of the worker that has it */
    enum { QUEUED, COMPILING, READY, FAILED } state;
    atomic_bool stop; /* nobody waits any more */
    nrd_guide_waiter *waiters;
    nrd_guide *guide;
    uint64_t used;
} entry;

struct nrd_guides {
    char *tokenizer_dir;
    pthread_mutex_t vocab_mu; /* held while the vocabulary is read: every guide needs it */
    nrd_text *tokenizer;      /* shares; guarded by vocab_mu until it is there, as vocab */
    nrd_guide_vocab *vocab;
    pthread_mutex_t mu;
    pthread_cond_t work; /* an entry is QUEUED, or stopping */
    entry *entries;      /* guarded by mu, as below */
    entry *queue_head, *queue_tail;
    pthread_t workers[N_WORKERS]; /* started when there is work for one more */
    int n_workers, n_idle;
    bool stopping;
    int n_entries;
    uint64_t clock;
};

nrd_guides *nrd_guides_new(const char *tokenizer_dir)
{
    nrd_guides *g = calloc(1, sizeof *g);
    char *dir = strdup(tokenizer_dir);
    if (!g || !dir) {
        free(g);
        free(dir);
        return NULL;
    }
    pthread_mutex_init(&g->vocab_mu, NULL);
    pthread_mutex_init(&g->mu, NULL);
    pthread_cond_init(&g->work, NULL);
    g->tokenizer_dir = dir;
    return g;
}

static void unref(entry *e)
{
    if (--e->refs == 0) {
        nrd_guide_unref(e->guide);
        free(e->type);
        free(e->text);
        free(e);
    }
}

/* Out of the table. */
static void drop(nrd_guides *g, entry *e)
{
    entry **p = &g->entries;
    while (*p != e) {
        p = &(*p)->next;
    }
    *p = e->next;
    g->n_entries--;
    unref(e);
}

void nrd_guides_free(nrd_guides *g)
{
    if (!g) {
        return;
    }
    pthread_mutex_lock(&g->mu);
    g->stopping = true;
    for (entry *e = g->entries; e; e = e->next) {
        atomic_store(&e->stop, true);
    }
    pthread_cond_broadcast(&g->work);
    pthread_mutex_unlock(&g->mu);
    for (int i = 0; i < g->n_workers; i++) {
        pthread_join(g->workers[i], NULL);
    }
    while (g->entries) {
        drop(g, g->entries);
    }
    nrd_guide_vocab_free(g->vocab);
    nrd_text_close(g->tokenizer);
    free(g->tokenizer_dir);
    pthread_cond_destroy(&g->work);
    pthread_mutex_destroy(&g->mu);
    pthread_mutex_destroy(&g->vocab_mu);
    free(g);
}

static const char *token_bytes(void *user, int32_t id, size_t *out_n)
{
    const nrd_tokenizer *t = user;
    if (nrd_tokenizer_is_special(t, id)) {
        *out_n = 0;
        return NULL;
    }
    return nrd_tokenizer_token_bytes(t, id, out_n);
}

/* Tokenizers may put a blank before a text, or cut its beginning otherwise than its middle: a line break
 * in front makes it a middle. */
static size_t encode(void *user, const char *text, size_t n, int32_t *out, size_t cap)
{
    const nrd_tokenizer *t = user;
    nrd_ids line = {0}, ids = {0};
    char *whole = malloc(n + 1);
    size_t k = 0;

    if (!whole) {
        return 0; /* no tokens: nothing is forced */
    }
    whole[0] = '\n';
    memcpy(whole + 1, text, n);
    nrd_error *err = nrd_tokenizer_encode(t, whole, 1, 0, &line);
    if (!err) {
        err = nrd_tokenizer_encode(t, whole, n + 1, 0, &ids);
    }
    if (!err && ids.n > line.n && ids.n - line.n <= cap &&
        (line.n == 0 || memcmp(ids.ids, line.ids, line.n * sizeof *ids.ids) == 0)) {
        k = ids.n - line.n;
        memcpy(out, ids.ids + line.n, k * sizeof *out);
    }
    nrd_error_free(err); /* no tokens: nothing is forced */
    nrd_ids_fini(&line);
    nrd_ids_fini(&ids);
    free(whole);
    return k;
}

static nrd_error *read_vocab(nrd_guides *g)
{
    nrd_text *text = NULL;
    NRD_TRY(nrd_error_wrap(nrd_text_open(&text, g->tokenizer_dir), "guided decoding: the tokenizer"));
    void *t = (void *)(uintptr_t)nrd_text_tokenizer(text);
    nrd_error *err = nrd_guide_vocab_new(&g->vocab, nrd_tokenizer_vocab_size(t), token_bytes, t);
    if (err) {
        nrd_text_close(text);
        return err;
    }
    nrd_guide_vocab_set_encode(g->vocab, encode, t);
    g->tokenizer = text;
    return NULL;
}

static nrd_error *need_vocab(nrd_guides *g)
{
    pthread_mutex_lock(&g->vocab_mu);
    nrd_error *err = g->vocab ? NULL : read_vocab(g);
    pthread_mutex_unlock(&g->vocab_mu);
    return err;
}

static entry *find(nrd_guides *g, const char *type, const char *text)
{
    entry *e = g->entries;
    while (e && (atomic_load(&e->stop) || (e->guide && nrd_guide_limit(e->guide)) ||
                 strcmp(e->type, type) != 0 || strcmp(e->text, text) != 0)) {
        e = e->next;
    }
    return e;
}

static bool has_too_many(const nrd_guides *g)
{
    size_t bytes = 0;
    for (const entry *e = g->entries; e; e = e->next) {
        bytes += e->guide ? nrd_guide_bytes(e->guide) : 0;
    }
    return g->n_entries > NRD_LIMIT_GUIDES_KEPT || bytes > NRD_LIMIT_GUIDES_KEPT_BYTES;
}

/* Guides grow while they run: looked at with each request. */
static void drop_oldest(nrd_guides *g)
{
    entry *oldest;
    do {
        oldest = NULL;
        for (entry *e = g->entries; e && has_too_many(g); e = e->next) {
            if (e->state == READY && (!oldest || e->used < oldest->used)) {
                oldest = e;
            }
        }
        if (oldest) {
            drop(g, oldest);
        }
    } while (oldest);
}

/* ---- workers ---- */

/* All who wait for the entry hear it; nobody can leave any more. */
static void tell(nrd_guide_waiter *waiters, nrd_guide *guide, const nrd_error *err)
{
    while (waiters) {
        nrd_guide_waiter *w = waiters;
        waiters = w->next;
        w->next = w->prev = NULL;
        w->done(w->user, guide ? nrd_guide_ref(guide) : NULL,
                err ? nrd_errorf(nrd_error_get_code(err), "guided_decoding_guide: %s", nrd_error_message(err))
                    : NULL);
    }
}

static void compile(nrd_guides *g, entry *e)
{
    nrd_guide *guide = NULL;
    nrd_error *err = atomic_load(&e->stop) ? nrd_errorf(NRD_ERR_UNAVAILABLE, "nobody waits") : need_vocab(g);

    if (!err) {
        err = nrd_guide_new_unless(&guide, g->vocab, e->type, e->text, &e->stop);
    }
    pthread_mutex_lock(&g->mu);
    nrd_guide_waiter *waiters = e->waiters;
    e->waiters = NULL;
    for (nrd_guide_waiter *w = waiters; w; w = w->next) {
        w->entry = NULL;
    }
    e->guide = guide;
    e->state = err ? FAILED : READY;
    e->used = ++g->clock;
    if (guide) {
        nrd_guide_ref(guide); /* until all are told: the table may drop it */
        drop_oldest(g);
    } else {
        drop(g, e);
    }
    unref(e);
    pthread_mutex_unlock(&g->mu);
    tell(waiters, guide, err);
    nrd_guide_unref(guide);
    nrd_error_free(err);
}

static void *worker_main(void *user)
{
    nrd_guides *g = user;
    pthread_setname_np(pthread_self(), "nrd-compile");
    (void)setpriority(PRIO_PROCESS, 0, WORKER_NICE); /* on Linux, of this thread */
    pthread_mutex_lock(&g->mu);
    for (;;) {
        while (!g->queue_head && !g->stopping) {
            g->n_idle++;
            pthread_cond_wait(&g->work, &g->mu);
            g->n_idle--;
        }
        entry *e = g->queue_head;
        if (!e) {
            break;
        }
        g->queue_head = e->queue_next;
        g->queue_tail = g->queue_head ? g->queue_tail : NULL;
        e->state = COMPILING;
        pthread_mutex_unlock(&g->mu);
        compile(g, e);
        pthread_mutex_lock(&g->mu);
    }
    pthread_mutex_unlock(&g->mu);
    return NULL;
}

/* With mu held. False: there is no thread for it. */
static bool call_worker(nrd_guides *g)
{
    if (g->n_idle == 0 && g->n_workers < N_WORKERS &&
        pthread_create(&g->workers[g->n_workers], NULL, worker_main, g) == 0) {
        g->n_workers++;
    }
    pthread_cond_signal(&g->work);
    return g->n_workers > 0;
}

/* With mu held. *out borrows. */
static nrd_error *add_entry(nrd_guides *g, const char *type, const char *text, entry **out)
{
    nrd_error *err = NULL;
    entry *e = NULL;

    NRD_NEW_GOTO(e, 1, err, fail);
    e->type = strdup(type);
    e->text = strdup(text);
    if (!e->type || !e->text || !call_worker(g)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "guided_decoding_guide: no memory or thread to compile it");
        goto fail;
    }
    e->refs = 2; /* the table's and the worker's */
    e->next = g->entries;
    g->entries = e;
    g->n_entries++;
    *(g->queue_tail ? &g->queue_tail->queue_next : &g->queue_head) = e;
    g->queue_tail = e;
    *out = e;
    return NULL;

fail:
    if (e) {
        free(e->type);
        free(e->text);
        free(e);
    }
    return err;
}

/* ---- requests ---- */

nrd_error *nrd_guides_want(nrd_guides *g, const char *type, const char *text, nrd_guide_waiter *w,
                           nrd_guide **out)
{
    nrd_error *err = NULL;

    *out = NULL;
    text = text ? text : "";
    pthread_mutex_lock(&g->mu);
    entry *e = find(g, type, text);
    if (!e) {
        err = add_entry(g, type, text, &e);
    }
    if (e && e->state == READY) {
        *out = nrd_guide_ref(e->guide);
        e->used = ++g->clock;
        drop_oldest(g);
    } else if (e) {
        w->entry = e;
        w->prev = NULL;
        w->next = e->waiters;
        if (w->next) {
            w->next->prev = w;
        }
        e->waiters = w;
    }
    pthread_mutex_unlock(&g->mu);
    return err;
}

void nrd_guides_forget(nrd_guides *g, const nrd_guide *guide)
{
    pthread_mutex_lock(&g->mu);
    for (entry *e = g->entries; e; e = e->next) {
        if (e->guide == guide) {
            drop(g, e);
            break;
        }
    }
    pthread_mutex_unlock(&g->mu);
}

bool nrd_guides_leave(nrd_guides *g, nrd_guide_waiter *w)
{
    pthread_mutex_lock(&g->mu);
    entry *e = w->entry;
    if (e) {
        *(w->prev ? &w->prev->next : &e->waiters) = w->next;
        if (w->next) {
            w->next->prev = w->prev;
        }
        w->entry = NULL;
        w->next = w->prev = NULL;
        if (!e->waiters) {
            atomic_store(&e->stop, true);
        }
    }
    pthread_mutex_unlock(&g->mu);
    return e != NULL;
}
