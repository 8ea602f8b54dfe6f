/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/verify.h"

#include "base/hash.h"
#include "engine/decode/decode.h"
#include "engine/speculate/proposer.h"
#include "engine/speculate/typical.h"
#include "guided/guided.h"
#include "nereid/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Draws beside those of the choices: whether a token stays, and which one comes in its place. */
enum { DRAW_STAY = 0x5741, DRAW_INSTEAD = 0x494e };

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

/* scratch: p and q [vocab], candidates [vocab]. */
size_t nrd_speculate_scratch_bytes(int32_t vocab)
{
    return (size_t)vocab * (2 * sizeof(float) + sizeof(candidate));
}

bool nrd_speculate_suits(const nrd_seq *q)
{
    return q->req.width == 1 && !q->req.no_sample;
}

static bool wants_logits(const nrd_seq *q, const nrd_proposer *p)
{
    return p && (p->scratch || (p->posterior_threshold > 0 && !q->dec.greedy));
}

bool nrd_speculate_wants_logits(const nrd_seq *q)
{
    return wants_logits(q, q->spec.proposer) || wants_logits(q, q->spec.then);
}

static int best_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

/* What the sampling keeps of a row, as probabilities; 0 for the rest. Greedy: all of it, at temperature 1. */
static void distribution(const nrd_seq *q, const float *logits, int32_t vocab, candidate *c, float *out)
{
    const nrd_sampling *s = &q->req.sampling;
    const bool all = q->dec.greedy;
    const double inv_t = all ? 1.0 : 1.0 / (double)s->temperature;
    double total = 0, peak = -INFINITY, sum = 0;
    int32_t kept = vocab;

    for (int32_t i = 0; i < vocab; i++) {
        float v = logits[i];
        c[i] = (candidate){v == v ? v : -INFINITY, i};
        peak = (double)c[i].logit > peak ? (double)c[i].logit : peak;
    }
    if (!all && (s->top_k > 0 || (s->top_p > 0 && s->top_p < 1))) {
        qsort(c, (size_t)vocab, sizeof *c, best_first);
        kept = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    }
    for (int32_t i = 0; i < kept; i++) {
        total += exp(((double)c[i].logit - peak) * inv_t);
    }
    if (!all && s->top_p > 0 && s->top_p < 1) {
        int32_t i = 0;
        for (; i < kept && sum < (double)s->top_p * total; i++) {
            sum += exp(((double)c[i].logit - peak) * inv_t);
        }
        kept = i;
    }
    memset(out, 0, (size_t)vocab * sizeof *out);
    total = 0;
    for (int32_t i = 0; i < kept; i++) {
        double p = exp(((double)c[i].logit - peak) * inv_t);
        p = !all && s->min_p > 0 && p < (double)s->min_p ? 0 : p;
        out[c[i].id] = (float)p;
        total += p;
    }
    for (int32_t i = 0; i < kept && total > 0; i++) {
        out[c[i].id] = (float)((double)out[c[i].id] / total);
    }
}

/* One token from max(0, p - q); from p where nothing is left. */
static int32_t draw_instead(const float *p, const float *q, int32_t vocab, float u)
{
    double total = 0, sum = 0;
    int32_t last = 0;

    for (int32_t i = 0; i < vocab; i++) {
        total += p[i] > q[i] ? (double)p[i] - (double)q[i] : 0;
    }
    const bool rest = total > 1e-9;
    const double target = (double)u * (rest ? total : 1.0);
    for (int32_t i = 0; i < vocab; i++) {
        double w = rest ? (p[i] > q[i] ? (double)p[i] - (double)q[i] : 0) : (double)p[i];
        if (w > 0) {
            last = i;
            sum += w;
            if (sum > target) {
                break;
            }
        }
    }
    return last;
}

/* Whether logits are all that a choice depends on. */
static bool only_logits(const nrd_seq *q, const nrd_step_result *r)
{
    const nrd_sampling *s = &q->req.sampling;
    return nrd_speculate_wants_logits(q) && r->logits && q->run.bias.n == 0 && q->req.bad.n == 0 && s->no_repeat_ngram_size <= 0 && !q->dec.keeps_counts &&
           !q->dec.guide && q->req.first_time <= 0 && s->top_p_decay == 1.0f &&
           s->min_length <= nrd_seq_n_generated(q);
}

static bool compares_logits(const nrd_seq *q, const nrd_step_result *r)
{
    return only_logits(q, r) && q->spec.proposer->scratch && (!q->dec.greedy || q->spec.proposer->threshold >= 0);
}

static const float *row_of(const nrd_step_result *r, int32_t row)
{
    return r->logits + (size_t)row * (size_t)r->logits_stride;
}

/* How far the draft stays by typical acceptance. False: it is not asked for. */
static bool judge(const nrd_seq *q, const nrd_step_result *r, int32_t row, int32_t n_draft, const nrd_token_tree *tree, int32_t *lengths)
{
    const nrd_proposer *p = q->spec.proposer;
    if (n_draft == 0 || !only_logits(q, r) || p->posterior_threshold <= 0 || q->dec.greedy) {
        return false;
    }
    const nrd_typical t = {p->posterior_threshold, p->posterior_alpha, q->req.sampling.temperature};
    nrd_typical_lengths(&t, row_of(r, row), (size_t)r->logits_stride, p->vocab,
                        tree ? tree->ids : q->dec.tokens + q->dec.n_known, tree ? tree->parent : NULL, n_draft, lengths);
    return true;
}

/* The token at a place of the draft: the draft's where it stays, else one in its place. */
static int32_t settle(const nrd_seq *q, const nrd_step_result *r, int32_t row, int32_t i, int32_t guess,
                      float *out_log_prob)
{
    const nrd_proposer *from = q->spec.proposer;
    const float *logits = row_of(r, row), *guessed = from->logits(from, i);
    const uint64_t seed = nrd_decode_seed(q), draw = (uint64_t)nrd_seq_n_generated(q);
    float *p = from->scratch, *pq = p + from->vocab;
    candidate *c = (candidate *)(void *)(pq + from->vocab);
    int32_t token = guess;

    distribution(q, logits, from->vocab, c, p);
    distribution(q, guessed, from->vocab, c, pq);
    const float t = from->threshold >= 0 ? from->threshold
                                         : nrd_sample_uniform(nrd_hash_u64(seed, DRAW_STAY), draw);
    if (p[guess] < t * pq[guess] || p[guess] <= 0) {
        token = q->dec.greedy ? r->ids[row]
                              : draw_instead(p, pq, from->vocab,
                                             nrd_sample_uniform(nrd_hash_u64(seed, DRAW_INSTEAD), draw));
    }
    double peak = -INFINITY, total = 0;
    for (int32_t k = 0; k < from->vocab; k++) {
        peak = (double)logits[k] > peak ? (double)logits[k] : peak;
    }
    for (int32_t k = 0; k < from->vocab; k++) {
        total += exp((double)logits[k] - peak);
    }
    out_log_prob[0] = (float)((double)logits[token] - peak - log(total));
    out_log_prob[1] = p[token] > 0 ? logf(p[token]) : -INFINITY;
    return token;
}

/* Log probabilities of a token that the device did not choose, in the place of its row's. */
static void keep_log_probs(nrd_seq *q, const nrd_step_result *r, int32_t row, const float *log_prob, int32_t n_new)
{
    nrd_step_result one = *r;
    one.log_probs = log_prob;
    one.log_probs_norm = log_prob + 1;
    one.top_ids = r->n_top > 0 ? r->top_ids + (size_t)row * (size_t)r->n_top : NULL;
    one.top_log_probs = r->n_top > 0 ? r->top_log_probs + (size_t)row * (size_t)r->n_top : NULL;
    nrd_decode_keep_log_probs(q, &one, 0, n_new);
}

/* A guide's text comes next, in the tokens that the tokenizer cuts it into: not the model's, though both spell it. Or the
 * end of a reasoning whose budget is used up. */
static bool is_forced(const nrd_seq *q)
{
    const int32_t *close;
    int32_t first;
    if (nrd_decode_reasoning_close(q, &close) > 0) {
        return true;
    }
    return q->req.may_jump && q->dec.guide && nrd_guide_jump(q->dec.guide, q->dec.tokens + q->req.n_prompt,
                                             (size_t)nrd_seq_n_generated(q), &first, 1) > 0;
}

/* The next token of the draft, if it is right: of a continuation the one behind, whatever was chosen. */
static int32_t next_of(const nrd_token_tree *tree, int32_t n_draft, int32_t node, int32_t token)
{
    return tree ? nrd_tree_child(tree, n_draft, node, token) : node + 1 < n_draft ? node + 1 : -1;
}

nrd_seq_finish nrd_speculate_accept(nrd_seq *q, const nrd_step_result *r, int32_t row, int32_t n_draft,
                                    const nrd_token_tree *tree, nrd_draft_accept *out)
{
    const bool by_logits = n_draft > 0 && !tree && compares_logits(q, r), told = q->req.want_log_probs || q->req.n_top > 0;
    nrd_seq_finish finish = NRD_SEQ_FINISH_NONE;
    int32_t lengths[NRD_MAX_TREE];
    const bool typical = !by_logits && judge(q, r, row, n_draft, tree, lengths);
    bool holds = true;

    out->n_new = out->n_accepted = 0;
    for (int32_t node = -1; holds && finish == NRD_SEQ_FINISH_NONE;) {
        const int32_t at = row + 1 + node;
        float log_prob[2];
        int32_t n_new = 0, token = r->ids[at];
        if (r->no_choice && r->no_choice[at]) {
            break; /* its mask was not there: what holds so far does */
        }
        int32_t next = typical ? nrd_typical_next(lengths, tree ? tree->parent : NULL, n_draft, node) : -1;
        const bool stays = next >= 0;
        if (stays) {
            token = tree ? tree->ids[next] : q->dec.tokens[q->dec.n_known];
            log_prob[0] = nrd_typical_log_prob(row_of(r, at), q->spec.proposer->vocab, 1, token);
            log_prob[1] = nrd_typical_log_prob(row_of(r, at), q->spec.proposer->vocab, q->req.sampling.temperature, token);
        } else {
            next = next_of(tree, n_draft, node, token);
        }
        const bool guessed = next >= 0;
        const int32_t guess = !guessed ? -1 : tree ? tree->ids[next] : q->dec.tokens[q->dec.n_known];
        if (guessed && by_logits) {
            token = settle(q, r, at, next, guess, log_prob);
        }
        holds = guessed && token == guess;
        finish = nrd_decode_accept(q, token, &n_new);
        if (told && guessed && (by_logits || stays)) {
            keep_log_probs(q, r, at, log_prob, n_new);
        } else if (told) {
            nrd_decode_keep_log_probs(q, r, at, n_new);
        }
        out->n_new += n_new;
        if (holds && tree) {
            out->path[out->n_accepted] = next;
        }
        out->n_accepted += holds;
        node = next;
        if (holds && finish == NRD_SEQ_FINISH_NONE && is_forced(q)) {
            break;
        }
    }
    return finish;
}
