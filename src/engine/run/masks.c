/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/masks.h"

#include "base/limits.h"
#include "base/mem.h"
#include "guided/guided.h"

#include <string.h>

static size_t words_of(const nrd_masks *m)
{
    return ((size_t)m->vocab + 31) / 32;
}

static void free_words(nrd_masks *m)
{
    m->dev->ops->free(m->dev, NRD_MEM_HOST, m->host);
    if (!m->shared) {
        m->dev->ops->free(m->dev, NRD_MEM_DEVICE, m->mem);
    }
    m->host = m->mem = NULL;
    m->cap = 0;
}

static nrd_error *alloc_words(nrd_masks *m, size_t cap)
{
    void *p = NULL;
    free_words(m);
    NRD_TRY(m->dev->ops->alloc(m->dev, &p, NRD_MEM_HOST, cap * sizeof *m->host, "token masks"));
    m->host = p;
    if (!m->shared) {
        NRD_TRY(m->dev->ops->alloc(m->dev, &p, NRD_MEM_DEVICE, cap * sizeof *m->host, "token masks"));
    }
    m->mem = p;
    m->cap = cap;
    return NULL;
}

nrd_error *nrd_masks_init(nrd_masks *m, nrd_device *dev, bool shared, int32_t vocab, int32_t max_rows)
{
    nrd_error *err = NULL;
    *m = (nrd_masks){.dev = dev, .shared = shared, .vocab = vocab, .max_rows = max_rows};
    NRD_NEW_GOTO(m->rows, max_rows, err, fail);
    NRD_NEW_GOTO(m->fresh, max_rows, err, fail);
    NRD_NEW_GOTO(m->no_choice, max_rows, err, fail);
fail:
    return err; /* the rest goes with fini */
}

static void free_copies(nrd_masks *m)
{
    for (int32_t i = 0; i < m->n_rows; i++) {
        if (m->rows[i].is_copy) {
            nrd_guide_state_free(m->rows[i].state);
            m->rows[i].is_copy = false;
        }
    }
}

void nrd_masks_fini(nrd_masks *m)
{
    if (!m->dev) {
        return;
    }
    free_copies(m);
    free_words(m);
    free(m->rows);
    free(m->fresh);
    free(m->no_choice);
}

nrd_error *nrd_masks_reserve(nrd_masks *m, nrd_stream *s, const nrd_plan *p)
{
    size_t n = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        n += e->row >= 0 && e->seq->dec.guide ? words_of(m) * (size_t)(1 + e->n_draft) : 0;
    }
    free_copies(m);
    m->n = 0;
    m->n_rows = m->n_fresh = 0;
    if (m->n_no_choice > 0) {
        memset(m->no_choice, 0, (size_t)m->max_rows * sizeof *m->no_choice);
        m->n_no_choice = 0;
    }
    if (n > m->cap) {
        NRD_TRY(m->dev->ops->stream_sync(s)); /* the step before may still read the old array */
        return alloc_words(m, n * 2);
    }
    return NULL;
}

/* Where the guide stands behind the draft's first n tokens; NULL: they may not come, or end the text. */
static nrd_guide_state *state_behind(const nrd_seq *q, int32_t n)
{
    const int32_t *draft = q->dec.tokens + q->dec.n_known;
    nrd_guide_state *s = nrd_guide_state_copy(q->dec.guide);
    for (int32_t i = 0; s && i < n; i++) {
        if (draft[i] == q->req.end_id || !nrd_guide_accept(s, draft[i])) {
            nrd_guide_state_free(s);
            return NULL;
        }
    }
    return s;
}

const uint32_t *nrd_masks_add(nrd_masks *m, const nrd_seq *q, int32_t row, int32_t n_ahead)
{
    nrd_guide_state *state = n_ahead > 0 ? state_behind(q, n_ahead) : q->dec.guide;
    const uint32_t *mask = m->mem + m->n;

    if (!state) {
        return NULL;
    }
    m->n += words_of(m);
    m->rows[m->n_rows++] = (nrd_guided_row){q, state, row, n_ahead > 0};
    if (!nrd_guide_has_mask(state)) {
        m->fresh[m->n_fresh++] = state;
    }
    return mask;
}

/* What the guide allows; the end token where the text is complete, or where nothing else is left. */
static void fill(const nrd_masks *m, const nrd_guided_row *r, uint32_t *out)
{
    size_t words = words_of(m), n = 0;
    const uint32_t *mask = nrd_guide_mask(r->state, &n);
    bool any = false;

    memset(out, 0, words * sizeof *out);
    for (size_t i = 0; mask && i < n && i < words; i++) {
        out[i] = mask[i];
        any = any || mask[i];
    }
    int32_t end = r->seq->req.end_id >= 0 && r->seq->req.end_id < m->vocab ? r->seq->req.end_id : -1;
    if (end >= 0 && (nrd_guide_is_complete(r->state) || !any)) {
        out[end / 32] |= 1u << (end % 32);
    } else if (!any) {
        out[0] |= 1u; /* some token must be chosen; the guide then ends the sequence */
    }
}

/* A guide that passed a limit is: the choice then ends its sequence. */
static bool is_ready(const nrd_guided_row *r)
{
    const nrd_guide *g = nrd_guide_state_guide(r->state);
    return !nrd_guide_is_lent(g) && (nrd_guide_limit(g) || nrd_guide_has_mask(r->state));
}

static nrd_error *upload(nrd_masks *m, nrd_stream *s)
{
    for (int32_t i = 0; i < m->n_rows; i++) {
        uint32_t *out = m->host + (size_t)i * words_of(m);
        if (is_ready(&m->rows[i])) {
            fill(m, &m->rows[i], out);
        } else {
            memset(out, 0xff, words_of(m) * sizeof *out);
            m->no_choice[m->rows[i].row] = true;
            m->n_no_choice++;
        }
    }
    free_copies(m);
    return m->shared || m->n == 0 ? NULL : m->dev->ops->copy(s, m->mem, m->host, m->n * sizeof *m->host);
}

nrd_error *nrd_masks_begin(nrd_masks *m, nrd_stream *s, nrd_mask_worker *worker)
{
    m->pending = m->n_fresh > 0;
    if (!m->pending) {
        return upload(m, s);
    }
    nrd_mask_worker_begin(worker, m->fresh, (size_t)m->n_fresh);
    return NULL;
}

nrd_error *nrd_masks_finish(nrd_masks *m, nrd_stream *s, nrd_mask_worker *worker)
{
    if (!m->pending) {
        return NULL;
    }
    nrd_mask_worker_wait(worker, NRD_LIMIT_GUIDE_STEP_MS * 1000000ull);
    m->pending = false;
    return upload(m, s);
}
