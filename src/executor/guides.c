/* SPDX-License-Identifier: Apache-2.0
 * Guides of requests: the vocabulary is read when the first one comes, compiled guides are kept.
 *
 * Life of an entry: the first request with this type and text puts it into the table and compiles
 * without the table's lock; others with the same text wait for it, all others go on. READY entries
 * stay until GUIDES_KEPT are there or they take GUIDES_KEPT_BYTES, and one is the longest unused; FAILED ones leave the table at once. */
#include "executor/internal.h"

#include "base/limits.h"
#include "base/mem.h"
#include "text/shared.h"

#include <string.h>

typedef struct entry {
    struct entry *next; /* guarded by guides.mu, as all below */
    char *type, *text;
    int refs; /* the table's and those of the threads that are in nrd_guides_get with it */
    enum { COMPILING, READY, FAILED } state;
    nrd_guide *guide;
    uint64_t used;
    nrd_error_code code; /* of FAILED */
    char *message;
} entry;

struct nrd_guides {
    char *tokenizer_dir;
    pthread_mutex_t vocab_mu; /* held while the vocabulary is read: every guide needs it */
    nrd_text *tokenizer;      /* shares; guarded by vocab_mu until it is there, as vocab */
    nrd_guide_vocab *vocab;
    pthread_mutex_t mu;
    pthread_cond_t compiled; /* an entry is no longer COMPILING */
    entry *entries;          /* guarded by mu, as below */
    int n_entries;
    uint64_t clock;
};

nrd_guides *nrd_guides_new(const char *tokenizer_dir)
{
    nrd_guides *g = nrd_xcalloc(1, sizeof *g);
    pthread_mutex_init(&g->vocab_mu, NULL);
    pthread_mutex_init(&g->mu, NULL);
    pthread_cond_init(&g->compiled, NULL);
    g->tokenizer_dir = nrd_xstrdup(tokenizer_dir);
    return g;
}

static void unref(entry *e)
{
    if (--e->refs == 0) {
        nrd_guide_unref(e->guide);
        free(e->message);
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
    while (g->entries) {
        drop(g, g->entries);
    }
    nrd_guide_vocab_free(g->vocab);
    nrd_text_close(g->tokenizer);
    free(g->tokenizer_dir);
    pthread_cond_destroy(&g->compiled);
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
    char *whole = nrd_xmalloc(n + 1);
    size_t k = 0;

    whole[0] = '\n';
    memcpy(whole + 1, text, n);
    nrd_error *err = nrd_tokenizer_encode(t, whole, 1, 0, &line);
    if (!err) {
        err = nrd_tokenizer_encode(t, whole, n + 1, 0, &ids);
    }
    if (!err && ids.n > line.n && ids.n - line.n <= cap &&
        memcmp(ids.ids, line.ids, line.n * sizeof *ids.ids) == 0) {
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
    NRD_TRY(nrd_error_wrap(nrd_text_open(&text, g->tokenizer_dir), "guided decoding: tokenizer_dir"));
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
    while (e && ((e->guide && nrd_guide_is_full(e->guide)) || strcmp(e->type, type) != 0 ||
                 strcmp(e->text, text) != 0)) {
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

/* With mu held, but not while the guide is compiled. */
static entry *compile_locked(nrd_guides *g, const char *type, const char *text)
{
    entry *e = nrd_xcalloc(1, sizeof *e);
    nrd_guide *guide = NULL;

    e->type = nrd_xstrdup(type);
    e->text = nrd_xstrdup(text);
    e->refs = 2; /* the table's and the caller's */
    e->next = g->entries;
    g->entries = e;
    g->n_entries++;
    pthread_mutex_unlock(&g->mu);
    nrd_error *err = nrd_guide_new(&guide, g->vocab, type, text);
    pthread_mutex_lock(&g->mu);
    e->guide = guide;
    e->state = err ? FAILED : READY;
    if (err) {
        e->code = nrd_error_get_code(err);
        e->message = nrd_xstrdup(nrd_error_message(err));
        nrd_error_free(err);
        drop(g, e);
    }
    pthread_cond_broadcast(&g->compiled);
    return e;
}

nrd_error *nrd_guides_get(nrd_guides *g, const char *type, const char *text, nrd_guide **out)
{
    nrd_error *err = NULL;

    *out = NULL;
    text = text ? text : "";
    NRD_TRY(need_vocab(g));
    pthread_mutex_lock(&g->mu);
    entry *e = find(g, type, text);
    if (e) {
        e->refs++;
        while (e->state == COMPILING) {
            pthread_cond_wait(&g->compiled, &g->mu);
        }
    } else {
        e = compile_locked(g, type, text);
    }
    e->used = ++g->clock;
    drop_oldest(g);
    if (e->state == READY) {
        *out = nrd_guide_ref(e->guide);
    } else {
        err = nrd_errorf(e->code, "guided_decoding_guide: %s", e->message);
    }
    unref(e);
    pthread_mutex_unlock(&g->mu);
    return err;
}
