/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/decode/decode.h"

#include "base/hash.h"
#include "guided/guided.h"

#include <string.h>

void nrd_decode_prepare(nrd_seq *q)
{
    const nrd_sampling *s = &q->req.sampling;
    bool long_bad = false;

    /* TensorRT-LLM: no top-k and no top-p asks for the best token. */
    q->dec.greedy = s->top_k == 1 || (s->top_k == 0 && s->top_p <= 0) || s->temperature <= 0;
    q->dec.keeps_counts =
        s->repetition_penalty != 1.0f || s->presence_penalty != 0 || s->frequency_penalty != 0;
    for (int32_t i = 0; i < q->req.bad.n; i++) {
        int32_t start = i ? q->req.bad.ends[i - 1] : 0;
        long_bad |= q->req.bad.ends[i] - start > 1;
    }
    q->dec.n_known = q->req.n_prompt;
    q->dec.is_reasoning = q->req.reasoning && q->req.reasoning->open;
    q->dec.n_reasoned = 0;
    q->dec.top_p_now = s->top_p;
    q->dec.needs_host = long_bad || s->no_repeat_ngram_size > 0 || q->req.width > 1 ||
                        q->dec.guide || q->req.first_time > 0 || q->req.may_jump || q->spec.asked ||
                        (!q->dec.greedy && s->top_p > 0 && s->top_p_decay != 1.0f);
}

bool nrd_decode_is_held(const nrd_seq *q)
{
    return q->dec.guide && nrd_guide_is_lent(nrd_guide_state_guide(q->dec.guide));
}

int32_t nrd_decode_max_banned(const nrd_seq *q)
{
    return q->req.bad.n + (q->req.sampling.no_repeat_ngram_size > 0 ? q->req.max_total : 0);
}

/* What followed every earlier occurrence of the last m tokens. Knuth, Morris and Pratt's search: a text that
 * repeats itself takes no quadratic time. out: [n]; m of it are used meanwhile. */
static int32_t put_repeated(const int32_t *tokens, int32_t n, int32_t m, int32_t vocab, int32_t *out)
{
    const int32_t *tail = tokens + n - m;
    int32_t *border = out + n - m; /* of each beginning of the tail: the longest part that it begins and ends with */
    int32_t k = 0, at = 0;

    for (int32_t i = 0; i < m; i++) {
        while (i > 0 && at > 0 && tail[i] != tail[at]) {
            at = border[at - 1];
        }
        at += i > 0 && tail[i] == tail[at];
        border[i] = at;
    }
    at = 0;
    for (int32_t i = 0; i < n; i++) {
        if (at == m) {
            if (tokens[i] >= 0 && tokens[i] < vocab) {
                out[k++] = tokens[i];
            }
            at = m > 0 ? border[m - 1] : 0;
        }
        while (at > 0 && tokens[i] != tail[at]) {
            at = border[at - 1];
        }
        at += m > 0 && tokens[i] == tail[at];
    }
    return k;
}

int32_t nrd_decode_banned(const nrd_seq *q, const int32_t *tokens, int32_t n, int32_t vocab,
                          int32_t *out)
{
    int32_t k = 0;
    for (int32_t i = 0; i < q->req.bad.n; i++) {
        int32_t start = i ? q->req.bad.ends[i - 1] : 0, len = q->req.bad.ends[i] - start - 1;
        int32_t last = q->req.bad.ids[start + len];
        if (last >= 0 && last < vocab && len <= n &&
            memcmp(tokens + n - len, q->req.bad.ids + start, (size_t)len * sizeof *tokens) == 0) {
            out[k++] = last;
        }
    }
    int32_t g = q->req.sampling.no_repeat_ngram_size;
    return g > 0 && n >= g - 1 ? k + put_repeated(tokens, n, g - 1, vocab, out + k) : k;
}

uint64_t nrd_decode_seed(const nrd_seq *q)
{
    /* Sequence 0 draws as a request with one sequence does. */
    return q->req.index ? nrd_hash_u64(q->req.sampling.seed, (uint64_t)q->req.index) : q->req.sampling.seed;
}

void nrd_decode_row(const nrd_seq *q, int32_t slot, int32_t n_generated, bool normalize,
                    nrd_sample_row *out)
{
    const nrd_sampling *s = &q->req.sampling;
    *out = (nrd_sample_row){
        .slot = slot,
        .top_k = q->dec.greedy ? 1 : s->top_k,
        .top_p = q->dec.greedy ? 0 : q->dec.top_p_now,
        .min_p = q->dec.greedy ? 0 : s->min_p,
        .temperature = s->temperature,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .seed = nrd_decode_seed(q),
        .draw = (uint64_t)n_generated,
        .flags = NRD_SAMPLE_TELLS,
        .n_suppress_end = n_generated < s->min_length,
        .end_id = q->req.end_id,
    };
    if (q->req.want_log_probs || q->req.n_top > 0 || q->req.width > 1) {
        out->flags |= NRD_SAMPLE_LOGPROB | (normalize ? NRD_SAMPLE_NORMALIZE : 0u);
    }
    if (q->req.width > 1 && q->req.unmasked_scores) {
        out->flags |= NRD_SAMPLE_UNMASKED;
    }
    if (q->dec.keeps_counts) {
        out->flags |= NRD_SAMPLE_COUNTS;
    }
}

bool nrd_decode_hits_stop(const nrd_seq *q, const int32_t *generated, int32_t n)
{
    for (int32_t i = 0; i < q->req.stop.n; i++) {
        int32_t start = i ? q->req.stop.ends[i - 1] : 0, len = q->req.stop.ends[i] - start;
        if (len <= n && memcmp(generated + n - len, q->req.stop.ids + start,
                               (size_t)len * sizeof *generated) == 0) {
            return true;
        }
    }
    return false;
}

/* The guide goes no further: a limit, or no token of the vocabulary spells what must come next. */
static nrd_seq_finish refused(const nrd_seq *q)
{
    return nrd_guide_limit(nrd_guide_state_guide(q->dec.guide)) ? NRD_SEQ_FINISH_ERROR : NRD_SEQ_FINISH_LENGTH;
}

/* Behind one more token. */
static float decayed(const nrd_sampling *s, float top_p, int32_t token)
{
    if (s->top_p_decay == 1.0f) {
        return top_p;
    }
    const float p = top_p * s->top_p_decay;
    return token == s->top_p_reset_id ? s->top_p : p > s->top_p_min ? p : s->top_p_min;
}

float nrd_decode_top_p_behind(const nrd_seq *q, const int32_t *ids, int32_t n)
{
    float p = q->dec.top_p_now;
    for (int32_t i = 0; i < n; i++) {
        p = decayed(&q->req.sampling, p, ids[i]);
    }
    return p;
}

/* Adds a token that is no end token. */
static nrd_seq_finish append(nrd_seq *q, int32_t token, int32_t *n_new)
{
    if (q->dec.guide && !nrd_guide_accept(q->dec.guide, token)) {
        return refused(q);
    }
    q->dec.tokens[q->dec.n_known++] = token;
    ++*n_new;
    nrd_decode_note_reasoning(q);
    if (q->dec.guide && nrd_guide_is_final(q->dec.guide)) {
        return NRD_SEQ_FINISH_END_ID; /* nothing can follow: no step for the end token */
    }
    q->dec.top_p_now = decayed(&q->req.sampling, q->dec.top_p_now, token);
    if (nrd_decode_hits_stop(q, q->dec.tokens + q->req.n_prompt, nrd_seq_n_generated(q))) {
        return NRD_SEQ_FINISH_STOP_WORDS;
    }
    return q->dec.n_known < q->req.max_total ? NRD_SEQ_FINISH_NONE
           : q->req.forced_end               ? NRD_SEQ_FINISH_END_ID
                                             : NRD_SEQ_FINISH_LENGTH;
}

/* Of a token that nothing else could have been. */
static void keep_certain(nrd_seq *q)
{
    const int32_t at = nrd_seq_n_generated(q) - 1, n = q->req.n_top;
    if (q->dec.log_probs) {
        q->dec.log_probs[at] = 0;
    }
    for (int32_t i = 0; i < n && q->dec.top_ids; i++) {
        q->dec.top_ids[(size_t)at * (size_t)n + (size_t)i] = i == 0 ? q->dec.tokens[q->dec.n_known - 1] : -1;
        q->dec.top_log_probs[(size_t)at * (size_t)n + (size_t)i] = 0;
    }
}

nrd_seq_finish nrd_decode_append(nrd_seq *q, const int32_t *ids, int32_t n, int32_t *n_new)
{
    nrd_seq_finish finish = NRD_SEQ_FINISH_NONE;
    for (int32_t i = 0; i < n && finish == NRD_SEQ_FINISH_NONE; i++) {
        const int32_t before = *n_new;
        finish = append(q, ids[i], n_new);
        if (*n_new > before) {
            keep_certain(q);
        }
    }
    return finish;
}

nrd_seq_finish nrd_decode_accept(nrd_seq *q, int32_t token, int32_t *out_n_new)
{
    *out_n_new = 0;
    if (token == NRD_SAMPLE_NO_NUMBERS) {
        return NRD_SEQ_FINISH_ERROR;
    }
    if (q->req.end_id >= 0 && token == q->req.end_id) {
        return q->dec.guide && !nrd_guide_is_complete(q->dec.guide) ? refused(q) : NRD_SEQ_FINISH_END_ID;
    }
    return append(q, token, out_n_new);
}

void nrd_decode_keep_log_probs(nrd_seq *q, const nrd_step_result *r, int32_t row, int32_t n_new)
{
    q->dec.cum_log_prob += (double)r->log_probs[row];
    if (n_new == 0) {
        return;
    }
    int32_t at = nrd_seq_n_generated(q) - 1;
    if (q->dec.log_probs) {
        /* Beside alternatives, on their scale: that of the whole distribution. */
        q->dec.log_probs[at] =
            r->normalize && q->req.n_top == 0 ? r->log_probs_norm[row] : r->log_probs[row];
    }
    if (q->req.n_top > 0 && r->n_top >= q->req.n_top) {
        size_t n = (size_t)q->req.n_top;
        size_t src = (size_t)row * (size_t)r->n_top, dst = (size_t)at * n;
        memcpy(q->dec.top_ids + dst, r->top_ids + src, n * sizeof *q->dec.top_ids);
        memcpy(q->dec.top_log_probs + dst, r->top_log_probs + src,
               n * sizeof *q->dec.top_log_probs);
    }
}
