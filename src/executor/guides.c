/* Guides of requests: the tokenizer is opened when the first one comes, compiled guides are kept. */
#include "executor/internal.h"

#include "base/mem.h"
#include "text/tokenizer.h"

#include <string.h>

enum { KEPT = 64 };

typedef struct kept_guide {
    char *type, *text;
    nrd_guide *guide;
    uint64_t used;
} kept_guide;

struct guides {
    pthread_mutex_t mu;
    char *tokenizer_dir;
    nrd_tokenizer *tokenizer; /* as vocab */
    nrd_guide_vocab *vocab; /* guarded by mu until it is there */
    kept_guide kept[KEPT];  /* guarded by mu */
    uint64_t clock;
};

guides *guides_new(const char *tokenizer_dir)
{
    guides *g = nrd_xcalloc(1, sizeof *g);
    pthread_mutex_init(&g->mu, NULL);
    g->tokenizer_dir = nrd_xstrdup(tokenizer_dir);
    return g;
}

static void drop(kept_guide *k)
{
    nrd_guide_unref(k->guide);
    free(k->type);
    free(k->text);
    *k = (kept_guide){0};
}

void guides_free(guides *g)
{
    if (!g) {
        return;
    }
    for (int i = 0; i < KEPT; i++) {
        drop(&g->kept[i]);
    }
    nrd_guide_vocab_free(g->vocab);
    nrd_tokenizer_close(g->tokenizer);
    free(g->tokenizer_dir);
    pthread_mutex_destroy(&g->mu);
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

static nrd_error *open_vocab(guides *g)
{
    nrd_tokenizer *t = NULL;
    NRD_TRY(nrd_error_wrap(nrd_tokenizer_open(&t, g->tokenizer_dir), "guided decoding: tokenizer_dir"));
    nrd_error *err = nrd_guide_vocab_new(&g->vocab, nrd_tokenizer_vocab_size(t), token_bytes, t);
    if (err) {
        nrd_tokenizer_close(t);
        return err;
    }
    nrd_guide_vocab_set_encode(g->vocab, encode, t);
    g->tokenizer = t;
    return NULL;
}

static nrd_error *get(guides *g, const char *type, const char *text, nrd_guide **out)
{
    kept_guide *oldest = &g->kept[0];
    if (!g->vocab) {
        NRD_TRY(open_vocab(g));
    }
    for (int i = 0; i < KEPT; i++) {
        kept_guide *k = &g->kept[i];
        if (k->guide && !nrd_guide_is_full(k->guide) && !strcmp(k->type, type) &&
            !strcmp(k->text, text)) {
            k->used = ++g->clock;
            *out = nrd_guide_ref(k->guide);
            return NULL;
        }
        oldest = k->used < oldest->used ? k : oldest;
    }
    NRD_TRY(nrd_error_wrap(nrd_guide_new(out, g->vocab, type, text), "guided_decoding_guide"));
    drop(oldest);
    *oldest = (kept_guide){nrd_xstrdup(type), nrd_xstrdup(text), nrd_guide_ref(*out), ++g->clock};
    return NULL;
}

nrd_error *guides_get(guides *g, const char *type, const char *text, nrd_guide **out)
{
    pthread_mutex_lock(&g->mu);
    nrd_error *err = get(g, type, text ? text : "", out);
    pthread_mutex_unlock(&g->mu);
    return err;
}
