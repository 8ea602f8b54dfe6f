/* SPDX-License-Identifier: Apache-2.0
 * One step of a beam search: candidates of all live beams -> the best `width` of them live on, those that
 * ended go into the list of finished ones -> over, when no live beam can still beat those. */
#include "engine/decode/beam.h"

#include "base/mem.h"
#include "engine/decode/decode.h"

#include <math.h>
#include <string.h>

typedef struct hypothesis {
    int32_t *tokens;  /* live: [max_total] with the prompt; finished: [max_generated] */
    float *log_probs; /* [max_generated] */
    int32_t *rows;    /* [max_generated]: the live beam whose row each token was chosen from */
    int32_t n;        /* generated */
    double cum, rank;
    nrd_seq_finish finish;
} hypothesis;

typedef struct candidate {
    double score; /* with the diversity penalty: for choosing only */
    double cum;
    float log_prob;
    int32_t beam, token, order;
} candidate;

struct nrd_beams {
    int32_t width, n_prompt, max_total;
    int32_t n_generated, n_done;
    bool started, over;
    double best;             /* the sum whose rank says what can still be reached */
    hypothesis *live, *next; /* [width]; change places every step */
    hypothesis *done;        /* [width], best first */
    candidate *cand;         /* [width * n_candidates] */
    int32_t *parent;         /* [width] */
    int32_t *order;          /* [2 * width]: result i is live[-1-x] or done[x] */
    nrd_kv_table *tables;    /* [width] scratch: structs only */
};

int32_t nrd_beams_n_candidates(int32_t width)
{
    return 2 * width; /* at most `width` of them can be end tokens: one for each beam */
}

static nrd_error *hypotheses_new(hypothesis **out, int32_t n, int32_t n_tokens, int32_t n_probs)
{
    nrd_error *err = NULL;
    NRD_NEW_GOTO(*out, n, err, fail);
    for (int32_t i = 0; i < n; i++) {
        NRD_NEW_GOTO((*out)[i].tokens, n_tokens, err, fail);
        NRD_NEW_GOTO((*out)[i].log_probs, n_probs, err, fail);
        NRD_NEW_GOTO((*out)[i].rows, n_probs, err, fail);
    }
fail:
    return err;
}

static void hypotheses_free(hypothesis *h, int32_t n)
{
    for (int32_t i = 0; h && i < n; i++) {
        free(h[i].tokens);
        free(h[i].log_probs);
        free(h[i].rows);
    }
    free(h);
}

nrd_error *nrd_beams_new(nrd_beams **out, int32_t width, const int32_t *prompt, int32_t n_prompt,
                         int32_t max_total)
{
    nrd_error *err = NULL;
    nrd_beams *s = NULL;
    int32_t max_gen = max_total - n_prompt + 1;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    s->width = width;
    s->n_prompt = n_prompt;
    s->max_total = max_total;
    NRD_TRY_GOTO(hypotheses_new(&s->live, width, max_total + 1, max_gen), err, fail);
    NRD_TRY_GOTO(hypotheses_new(&s->next, width, max_total + 1, max_gen), err, fail);
    NRD_TRY_GOTO(hypotheses_new(&s->done, width, max_gen, max_gen), err, fail);
    NRD_NEW_GOTO(s->cand, width * nrd_beams_n_candidates(width), err, fail);
    NRD_NEW_GOTO(s->parent, width, err, fail);
    NRD_NEW_GOTO(s->order, 2 * width, err, fail);
    NRD_NEW_GOTO(s->tables, width, err, fail);
    for (int32_t b = 0; b < width; b++) {
        memcpy(s->live[b].tokens, prompt, (size_t)n_prompt * sizeof *prompt);
        memcpy(s->next[b].tokens, prompt, (size_t)n_prompt * sizeof *prompt);
        s->order[b] = -1 - b;
    }
    *out = s;
    return NULL;

fail:
    nrd_beams_free(s);
    return err;
}

void nrd_beams_free(nrd_beams *s)
{
    if (!s) {
        return;
    }
    hypotheses_free(s->live, s->width);
    hypotheses_free(s->next, s->width);
    hypotheses_free(s->done, s->width);
    free(s->cand);
    free(s->parent);
    free(s->order);
    free(s->tables);
    free(s);
}

/* Of a hypothesis of n generated tokens. */
static double rank_of(const nrd_seq *q, double cum, int32_t n)
{
    const float penalty = q->req.sampling.length_penalty;
    const int32_t length = n + q->req.n_counted;
    return penalty == 0 ? cum : cum / pow(length > 0 ? length : 1, (double)penalty);
}

static int best_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->order < y->order ? -1 : 1;
}

/* All beams' candidates, best first. */
static int32_t collect(nrd_beams *s, const nrd_seq *q, const nrd_step_result *r, int32_t row)
{
    int32_t n_rows = s->started ? s->width : 1, n = 0;
    int32_t per_row = nrd_beams_n_candidates(s->width);
    per_row = per_row < r->n_top ? per_row : r->n_top;
    for (int32_t b = 0; b < n_rows; b++) {
        size_t at = (size_t)(row + b) * (size_t)r->n_top;
        for (int32_t k = 0; k < per_row; k++) {
            float lp = r->top_log_probs[at + (size_t)k];
            double cum = s->live[b].cum + (double)lp;
            if (!(cum > -INFINITY)) {
                continue; /* forbidden tokens, or a beam that could not be filled */
            }
            s->cand[n] = (candidate){
                .score = cum - (double)q->req.sampling.diversity_rate * k,
                .cum = cum,
                .log_prob = lp,
                .beam = b,
                .token = r->top_ids[at + (size_t)k],
                .order = n,
            };
            n++;
        }
    }
    qsort(s->cand, (size_t)n, sizeof *s->cand, best_first);
    return n;
}

/* Puts a hypothesis into the finished list if it belongs to the best `width`. */
static void finish(nrd_beams *s, const hypothesis *from, int32_t n, double cum, double rank,
                   nrd_seq_finish why)
{
    int32_t at = s->n_done;
    while (at > 0 && s->done[at - 1].rank < rank) {
        at--;
    }
    if (at >= s->width) {
        return;
    }
    int32_t last = s->n_done < s->width ? s->n_done++ : s->width - 1;
    hypothesis h = s->done[last];
    memmove(s->done + at + 1, s->done + at, (size_t)(last - at) * sizeof *s->done);
    h.n = n;
    h.cum = cum;
    h.rank = rank;
    h.finish = why;
    memcpy(h.tokens, from->tokens + s->n_prompt, (size_t)n * sizeof *h.tokens);
    memcpy(h.log_probs, from->log_probs, (size_t)n * sizeof *h.log_probs);
    memcpy(h.rows, from->rows, (size_t)n * sizeof *h.rows);
    s->done[at] = h;
}

/* Chooses the next live beams; returns how many there are. */
static int32_t extend(nrd_beams *s, const nrd_seq *q, int32_t n_cand)
{
    int32_t g = s->n_generated, n_live = 0;
    for (int32_t i = 0; i < n_cand && n_live < s->width; i++) {
        const candidate *c = &s->cand[i];
        const hypothesis *from = &s->live[c->beam];
        if (q->req.end_id >= 0 && c->token == q->req.end_id) {
            if (i < s->width) { /* an end token counts only among the best `width` */
                finish(s, from, g, c->cum, rank_of(q, c->cum, g + 1), NRD_SEQ_FINISH_END_ID);
            }
            continue;
        }
        hypothesis *to = &s->next[n_live];
        memcpy(to->tokens + s->n_prompt, from->tokens + s->n_prompt,
               (size_t)g * sizeof *to->tokens);
        memcpy(to->log_probs, from->log_probs, (size_t)g * sizeof *to->log_probs);
        memcpy(to->rows, from->rows, (size_t)g * sizeof *to->rows);
        to->tokens[s->n_prompt + g] = c->token;
        to->log_probs[g] = c->log_prob;
        to->rows[g] = c->beam;
        to->cum = c->cum;
        to->n = g + 1;
        if (nrd_decode_hits_stop(q, to->tokens + s->n_prompt, g + 1)) {
            finish(s, to, g + 1, c->cum, rank_of(q, c->cum, g + 1), NRD_SEQ_FINISH_STOP_WORDS);
            continue;
        }
        s->parent[n_live++] = c->beam;
    }
    return n_live;
}

static bool is_over(const nrd_beams *s, const nrd_seq *q)
{
    float penalty = q->req.sampling.length_penalty;
    if (s->n_done < s->width) {
        return false;
    }
    if (q->req.sampling.early_stopping == 1) {
        return true;
    }
    /* Could the best one still beat the worst finished one? Sums only fall; with a positive length penalty a longer
     * hypothesis divides by more: 0 does not look at that, others ask with the greatest length. */
    int32_t length = s->n_generated;
    if (q->req.sampling.early_stopping != 0 && penalty > 0) {
        length = s->max_total - s->n_prompt + q->req.forced_end;
    }
    return rank_of(q, s->best, length) <= s->done[s->width - 1].rank;
}

/* Results in order: all finished and live ones by rank; finished only when the search is over. */
static void put_in_order(nrd_beams *s, const nrd_seq *q, int32_t n_live)
{
    int32_t n = 0, d = 0, l = 0;
    if (s->over && s->n_done >= s->width) {
        n_live = 0;
    }
    while (n < s->width && (d < s->n_done || l < n_live)) {
        double live_rank = l < n_live ? rank_of(q, s->live[l].cum, s->n_generated) : -INFINITY;
        if (d < s->n_done && (l >= n_live || s->done[d].rank >= live_rank)) {
            s->order[n++] = d++;
        } else {
            s->order[n++] = -1 - l++;
        }
    }
    while (n < s->width) {
        s->order[n] = n > 0 ? s->order[0] : -1; /* fewer hypotheses than beams: repeat the best */
        n++;
    }
}

/* The first child takes the parent's table; others share its whole blocks and copy the last part into
 * tables of parents that have no child. */
int32_t nrd_beams_move_tables(nrd_beams *s, nrd_kv_table *tables, nrd_kv *kv, int32_t n_tokens,
                              int32_t (*out_copies)[2])
{
    int32_t n_copies = 0, spare = 0;
    bool taken[NRD_MAX_BEAM_WIDTH] = {false}, filled[NRD_MAX_BEAM_WIDTH] = {false};

    for (int32_t j = 0; j < s->width; j++) {
        int32_t p = s->parent[j];
        if (!taken[p]) {
            taken[p] = filled[j] = true;
            s->tables[j] = tables[p];
        }
    }
    for (int32_t p = 0; p < s->width; p++) {
        if (!taken[p]) {
            nrd_kv_release(kv, &tables[p]);
        }
    }
    for (int32_t j = 0; j < s->width; j++) {
        if (filled[j]) {
            continue;
        }
        while (taken[spare]) {
            spare++;
        }
        s->tables[j] = tables[spare++];
        int32_t first = 0; /* the sibling that took the parent's table */
        while (!filled[first] || s->parent[first] != s->parent[j]) {
            first++;
        }
        int32_t src, dst;
        bool ok = nrd_kv_fork(kv, &s->tables[j], &s->tables[first], n_tokens, &src, &dst);
        NRD_ASSERT(ok, "beams reserve their blocks");
        if (src >= 0) {
            out_copies[n_copies][0] = src;
            out_copies[n_copies][1] = dst;
            n_copies++;
        }
    }
    memcpy(tables, s->tables, (size_t)s->width * sizeof *s->tables);
    return n_copies;
}

/* The live beams are as long as they may be: they are finished too. With a forced end the last step was the one before: a
 * search that was over there is left as it is. */
static nrd_seq_finish end_at_limit(nrd_beams *s, const nrd_seq *q, int32_t n_live)
{
    if (q->req.forced_end && n_live > 0 && is_over(s, q)) {
        return s->done[0].finish;
    }
    for (int32_t b = 0; b < n_live; b++) {
        finish(s, &s->live[b], s->n_generated, s->live[b].cum,
               rank_of(q, s->live[b].cum, s->n_generated + q->req.forced_end),
               q->req.forced_end ? NRD_SEQ_FINISH_END_ID : NRD_SEQ_FINISH_LENGTH);
    }
    return s->n_done > 0 ? s->done[0].finish : NRD_SEQ_FINISH_LENGTH;
}

nrd_seq_finish nrd_beams_step(nrd_seq *q, const nrd_step_result *r, int32_t row)
{
    nrd_beams *s = q->dec.beams;
    int32_t n_cand = collect(s, q, r, row);
    int32_t n_live = extend(s, q, n_cand);
    nrd_seq_finish why = NRD_SEQ_FINISH_NONE;

    hypothesis *old = s->live;
    s->live = s->next;
    s->next = old;
    s->n_generated++;
    s->started = true;
    q->dec.n_known++;
    /* transformers asks the best that goes on, TensorRT-LLM the best candidate, which may have ended */
    s->best = q->req.unmasked_scores || n_cand == 0 ? s->live[0].cum : s->cand[0].cum;
    for (int32_t b = n_live; b < s->width; b++) {
        /* Too few candidates (a small vocabulary): keep the shape, never choose from it. */
        s->live[b].tokens[s->n_prompt + s->n_generated - 1] = q->dec.tokens[0];
        s->live[b].cum = -INFINITY;
        s->live[b].n = s->n_generated;
        s->parent[b] = n_live > 0 ? s->parent[0] : 0;
    }
    if (q->dec.n_known >= q->req.max_total || n_live == 0) {
        why = end_at_limit(s, q, n_live);
        n_live = 0;
    } else if (is_over(s, q)) {
        why = s->done[0].finish;
    }
    s->over = why != NRD_SEQ_FINISH_NONE;
    put_in_order(s, q, n_live);
    return why;
}

const int32_t *nrd_beams_tokens(const nrd_beams *s, int32_t b, int32_t *out_n)
{
    *out_n = s->n_prompt + s->n_generated;
    return s->live[b].tokens;
}

void nrd_beams_hypothesis(const nrd_beams *s, int32_t i, const int32_t **out_ids, int32_t *out_n,
                          const float **out_log_probs, float *out_cum_log_prob,
                          nrd_seq_finish *out_finish)
{
    int32_t x = s->order[i];
    const hypothesis *h = x >= 0 ? &s->done[x] : &s->live[-1 - x];
    *out_ids = x >= 0 ? h->tokens : h->tokens + s->n_prompt;
    *out_n = x >= 0 ? h->n : s->n_generated;
    *out_log_probs = h->log_probs;
    *out_cum_log_prob = (float)h->cum;
    *out_finish = x >= 0 ? h->finish : NRD_SEQ_FINISH_NONE;
}

const int32_t *nrd_beams_rows(const nrd_beams *s, int32_t i)
{
    const int32_t x = s->order[i];
    return x >= 0 ? s->done[x].rows : s->live[-1 - x].rows;
}
