/* SPDX-License-Identifier: Apache-2.0
 * Answers: made from what a sequence has said since the last one, kept in buffers that are used again.
 *
 * A response goes from the pool to the outbox, to the caller, and back; the pool ends with the executor
 * or with the last response that is outside, whichever is later. */
#include "executor/internal.h"

#include "base/mem.h"
#include "engine/decode/beam.h"

#include <string.h>

enum { POOL_MAX_FREE = 1024 };

nrd_error *nrd_exec_pool_new(nrd_exec_pool **out)
{
    nrd_error *err = NULL;
    nrd_exec_pool *p = NULL;
    NRD_NEW_GOTO(p, 1, err, fail);
    pthread_mutex_init(&p->mu, NULL);
    p->refs = 1;
    *out = p;
fail:
    return err;
}

static void response_destroy(nrd_exec_response_state *r)
{
    nrd_exec_buffer *bufs[] = {&r->beams,   &r->ids,           &r->log_probs,
                               &r->top_ids, &r->top_log_probs, &r->generation_logits};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) {
        free(bufs[i]->data);
    }
    free(r->context_logits);
    free(r->embedding);
    free(r->prompt_scores);
    nrd_error_free(r->pub.error);
    free(r);
}

static void destroy_list(nrd_exec_response_state *list)
{
    while (list) {
        nrd_exec_response_state *r = list;
        list = r->next;
        response_destroy(r);
    }
}

void nrd_exec_pool_unref(nrd_exec_pool *p)
{
    if (!p) {
        return;
    }
    if (atomic_fetch_sub(&p->refs, 1) > 1) {
        return;
    }
    destroy_list(p->free_list);
    destroy_list(p->loops);
    pthread_mutex_destroy(&p->mu);
    free(p);
}

/* With room for an answer of a token: one that was made beside others asks for no memory when its turn comes. NULL: no memory. */
static nrd_exec_response_state *response_new(void)
{
    nrd_exec_response_state *r = calloc(1, sizeof *r);
    if (r && !(nrd_exec_buffer_reserve(&r->beams, sizeof(nrd_beam_output)) && nrd_exec_buffer_reserve(&r->ids, sizeof(int32_t)) &&
               nrd_exec_buffer_reserve(&r->log_probs, sizeof(float)))) {
        response_destroy(r);
        r = NULL;
    }
    return r;
}

/* One that is not in use; NULL: no memory. Any thread. */
static nrd_exec_response_state *take_free(nrd_exec_pool *p)
{
    pthread_mutex_lock(&p->mu);
    nrd_exec_response_state *r = p->free_list;
    p->free_list = r ? r->next : NULL;
    pthread_mutex_unlock(&p->mu);
    return r ? r : response_new();
}

/* The loop takes all there are when it has none, so that a step of many answers asks for the lock once. */
static nrd_exec_response_state *take_free_in_loop(nrd_exec_pool *p)
{
    if (!p->loops) {
        pthread_mutex_lock(&p->mu);
        p->loops = p->free_list;
        p->free_list = NULL;
        pthread_mutex_unlock(&p->mu);
    }
    nrd_exec_response_state *r = p->loops;
    p->loops = r ? r->next : NULL;
    return r ? r : response_new();
}

/* r belongs to a caller from now on. NULL stays NULL. */
static nrd_exec_response_state *begin_response(nrd_exec_pool *p, nrd_exec_response_state *r)
{
    if (!r) {
        return NULL;
    }
    atomic_fetch_add(&p->refs, 1);
    r->next = NULL;
    r->pool = p;
    r->pub = (nrd_exec_response){.size = sizeof r->pub};
    return r;
}

void nrd_exec_response_put(nrd_exec_response_state *r)
{
    nrd_exec_pool *p = r->pool;
    int32_t n = 0;
    nrd_error_free(r->pub.error);
    r->pub.error = NULL;
    free(r->context_logits);
    r->context_logits = NULL;
    free(r->embedding);
    r->embedding = NULL;
    free(r->prompt_scores);
    r->prompt_scores = NULL;
    free(r->generation_logits.data); /* too large to keep */
    r->generation_logits = (nrd_exec_buffer){0};
    pthread_mutex_lock(&p->mu);
    for (const nrd_exec_response_state *f = p->free_list;
         f && n < POOL_MAX_FREE && r->ids.cap > 4096; f = f->next) {
        n++; /* long answers are kept only while the pool is small */
    }
    if (n < 16) {
        r->next = p->free_list;
        p->free_list = r;
        r = NULL;
    }
    pthread_mutex_unlock(&p->mu);
    if (r) {
        response_destroy(r);
    }
    nrd_exec_pool_unref(p);
}

bool nrd_exec_buffer_reserve(nrd_exec_buffer *b, size_t bytes)
{
    if (bytes <= b->cap) {
        return true;
    }
    size_t cap = b->cap * 2 > bytes ? b->cap * 2 : bytes;
    void *p = realloc(b->data, cap < 64 ? 64 : cap);
    if (!p) {
        return false;
    }
    b->data = p;
    b->cap = cap < 64 ? 64 : cap;
    return true;
}

/* A generated part with the prompt in front when asked for. */
static bool put_ids(nrd_exec_response_state *o, const nrd_exec_request_state *r, nrd_beam_output *b,
                    size_t at, const int32_t *generated, int32_t n)
{
    int32_t echo = r->echo_prompt && !r->streaming ? r->n_prompt - r->n_cross : 0;
    int32_t *dst = (int32_t *)o->ids.data + at;
    if (echo > 0) {
        memcpy(dst, r->prompt + r->n_cross, (size_t)echo * sizeof *dst);
    }
    if (n > 0) {
        memcpy(dst + echo, generated, (size_t)n * sizeof *dst);
    }
    b->ids = dst;
    b->n_ids = echo + n;
    return true;
}

/* The rows that each hypothesis came by, of all rows that were kept; zeros behind the end of shorter ones. */
static bool put_beam_logits(nrd_exec_response_state *o, const nrd_exec_request_state *r, const nrd_seq *q, int32_t n_out)
{
    const size_t vocab = (size_t)r->exec->spec->vocab;
    const float *kept = r->generation_logits[q->req.index].data;
    const int32_t *ids;
    const float *log_probs;
    float cum;
    nrd_seq_finish why;
    int32_t n, longest = 0;

    for (int32_t b = 0; b < n_out; b++) {
        nrd_beams_hypothesis(q->dec.beams, b, &ids, &n, &log_probs, &cum, &why);
        longest = n > longest ? n : longest;
    }
    if (longest == 0) {
        return true;
    }
    if (r->lacks_logits ||
        !nrd_exec_buffer_reserve(&o->generation_logits, (size_t)n_out * (size_t)longest * vocab * sizeof(float))) {
        return false;
    }
    float *to = o->generation_logits.data;
    for (int32_t b = 0; b < n_out; b++) {
        const int32_t *rows = nrd_beams_rows(q->dec.beams, b);
        nrd_beams_hypothesis(q->dec.beams, b, &ids, &n, &log_probs, &cum, &why);
        for (int32_t g = 0; g < longest; g++, to += vocab) {
            if (g < n) {
                memcpy(to, kept + ((size_t)g * (size_t)q->req.width + (size_t)rows[g]) * vocab, vocab * sizeof *to);
            } else {
                memset(to, 0, vocab * sizeof *to);
            }
        }
    }
    o->pub.generation_logits = o->generation_logits.data;
    o->pub.n_generation_logits = longest;
    return true;
}

static bool put_beams(nrd_exec_response_state *o, const nrd_exec_request_state *r, const nrd_seq *q,
                      nrd_seq_finish finish)
{
    size_t per = (size_t)q->req.max_total + 1;
    size_t w = (size_t)q->req.width;
    if (!nrd_exec_buffer_reserve(&o->beams, w * sizeof(nrd_beam_output)) ||
        !nrd_exec_buffer_reserve(&o->ids, w * per * sizeof(int32_t)) ||
        !nrd_exec_buffer_reserve(&o->log_probs, w * per * sizeof(float))) {
        return false;
    }
    int32_t n_out = r->n_return < q->req.width ? r->n_return : q->req.width;
    nrd_beam_output *beams = o->beams.data;
    for (int32_t b = 0; b < n_out; b++) {
        const int32_t *ids;
        const float *log_probs;
        int32_t n;
        nrd_seq_finish why;
        nrd_beam_output *out = &beams[b];
        *out = (nrd_beam_output){0};
        nrd_beams_hypothesis(q->dec.beams, b, &ids, &n, &log_probs, &out->cum_log_prob, &why);
        put_ids(o, r, out, (size_t)b * per, ids, n);
        if (q->req.want_log_probs) {
            float *dst = (float *)o->log_probs.data + (size_t)b * per;
            if (n > 0) {
                memcpy(dst, log_probs, (size_t)n * sizeof *dst);
            }
            out->log_probs = dst;
            out->n_log_probs = n;
        }
        out->finish_reason = finish == NRD_SEQ_FINISH_NONE ? NRD_FINISH_NONE
                             : why != NRD_SEQ_FINISH_NONE  ? (nrd_finish_reason)why
                                                           : (nrd_finish_reason)finish;
    }
    o->pub.n_beams = n_out;
    return !r->generation_logits || put_beam_logits(o, r, q, n_out);
}

static bool put_single(nrd_exec_response_state *o, nrd_exec_request_state *r, const nrd_seq *q,
                       nrd_seq_finish finish)
{
    int32_t total = nrd_seq_n_generated(q);
    int32_t first = r->streaming ? r->n_sent[q->req.index] : 0, n = total - first;
    size_t n_ids = (size_t)(n + (r->streaming ? 0 : r->n_prompt));
    size_t n_top = (size_t)n * (size_t)q->req.n_top;

    if (!nrd_exec_buffer_reserve(&o->beams, sizeof(nrd_beam_output)) ||
        !nrd_exec_buffer_reserve(&o->ids, n_ids * sizeof(int32_t)) ||
        !nrd_exec_buffer_reserve(&o->log_probs, (size_t)n * sizeof(float)) ||
        !nrd_exec_buffer_reserve(&o->top_ids, n_top * sizeof(int32_t)) ||
        !nrd_exec_buffer_reserve(&o->top_log_probs, n_top * sizeof(float))) {
        return false;
    }
    nrd_beam_output *b = o->beams.data;
    *b = (nrd_beam_output){
        .cum_log_prob = (float)q->dec.cum_log_prob,
        .finish_reason = (nrd_finish_reason)finish,
    };
    put_ids(o, r, b, 0, q->dec.tokens + r->n_prompt + first, n);
    if (q->dec.log_probs && n > 0) {
        memcpy(o->log_probs.data, q->dec.log_probs + first, (size_t)n * sizeof(float));
        b->log_probs = o->log_probs.data;
        b->n_log_probs = n;
    }
    if (n_top > 0) {
        o->pub.n_top = q->req.n_top;
        size_t at = (size_t)first * (size_t)q->req.n_top;
        memcpy(o->top_ids.data, q->dec.top_ids + at, n_top * sizeof(int32_t));
        memcpy(o->top_log_probs.data, q->dec.top_log_probs + at, n_top * sizeof(float));
        b->top_ids = o->top_ids.data;
        b->top_log_probs = o->top_log_probs.data;
        b->n_log_probs = n;
    }
    if (r->generation_logits && n > 0) {
        size_t vocab = (size_t)r->exec->spec->vocab;
        if (r->lacks_logits || !nrd_exec_buffer_reserve(&o->generation_logits, (size_t)n * vocab * sizeof(float))) {
            return false;
        }
        memcpy(o->generation_logits.data,
               (const float *)r->generation_logits[q->req.index].data + (size_t)first * vocab,
               (size_t)n * vocab * sizeof(float));
        o->pub.generation_logits = o->generation_logits.data;
        o->pub.n_generation_logits = n;
    }
    o->pub.n_beams = 1;
    r->n_sent[q->req.index] = total;
    return true;
}

static void put_common(nrd_exec_response_state *o, const nrd_exec_request_state *r,
                       int32_t sequence_index, bool is_final)
{
    o->pub.id = r->id;
    o->pub.client_id = r->client_id;
    o->pub.is_final = is_final;
    o->pub.sequence_index = sequence_index;
    o->pub.n_input_ids = r->n_prompt - (r->exec->encoder ? 0 : r->n_cross);
    o->pub.vocab = r->exec->spec->vocab;
    o->pub.n_top = 0;
    o->is_private = r->score != NULL;
}

nrd_error *nrd_exec_spare_new(nrd_exec_request_state *r)
{
    for (int32_t i = 0; i <= r->n_seqs; i++) { /* each sequence's end, and one error */
        nrd_exec_response_state *o = begin_response(r->exec->pool, take_free(r->exec->pool));
        if (!o) {
            return nrd_error_no_memory();
        }
        o->next = r->spare;
        r->spare = o;
    }
    return NULL;
}

static nrd_exec_response_state *take_spare(nrd_exec_request_state *r)
{
    nrd_exec_response_state *o = r->spare;
    NRD_ASSERT(o, "each sequence ends once, and a request fails once");
    r->spare = o->next;
    o->next = NULL;
    return o;
}

void nrd_exec_spare_free(nrd_exec_request_state *r)
{
    while (r->spare) {
        nrd_exec_response_put(take_spare(r));
    }
}

nrd_exec_response_state *nrd_exec_response_make_error(nrd_exec_request_state *r, nrd_error *err)
{
    nrd_exec_response_state *o = take_spare(r);
    put_common(o, r, 0, true);
    o->pub.is_sequence_final = true;
    o->pub.error = err;
    return o;
}

nrd_exec_response_state *nrd_exec_response_make(nrd_exec_request_state *r, nrd_seq *q,
                                                nrd_seq_finish finish, bool is_final)
{
    const bool ends = finish != NRD_SEQ_FINISH_NONE || is_final;
    nrd_exec_response_state *o = ends ? take_spare(r) : begin_response(r->exec->pool, take_free_in_loop(r->exec->pool));
    if (!o) {
        return NULL;
    }
    put_common(o, r, q->req.index, is_final);
    o->pub.is_sequence_final = finish != NRD_SEQ_FINISH_NONE;
    if (!(q->req.width > 1 ? put_beams(o, r, q, finish) : put_single(o, r, q, finish))) {
        o->pub.error = nrd_error_no_memory();
    }
    o->pub.beams = o->beams.data;
    if (r->context_logits && q->req.index == 0 && ends) { /* whoever keeps the newest answer has them */
        o->context_logits = r->context_logits;
        o->pub.context_logits = o->context_logits;
        r->context_logits = NULL;
    }
    if (r->prompt_scores && q->req.index == 0) {
        const nrd_exec_scores *s = o->prompt_scores = r->prompt_scores;
        r->prompt_scores = NULL;
        o->pub.prompt_log_probs = s->log_probs;
        o->pub.prompt_ranks = s->ranks;
        o->pub.n_prompt_top = s->top_k;
        o->pub.prompt_top_ids = s->top_ids;
        o->pub.prompt_top_log_probs = s->top_log_probs;
    }
    if (r->embedding && finish == NRD_SEQ_FINISH_LENGTH) {
        o->embedding = r->embedding;
        o->pub.embedding = o->embedding;
        o->pub.n_embedding = r->exec->spec->hidden;
        if (r->wants_labels) {
            nrd_classifier_run(r->exec->classifier, r->embedding, o->embedding);
            o->pub.n_embedding = nrd_classifier_labels(r->exec->classifier);
        } else if (r->wants_projection) {
            nrd_projection_run(r->exec->projection, r->embedding, o->embedding);
            o->pub.n_embedding = nrd_projection_size(r->exec->projection);
        }
        r->embedding = NULL;
    }
    if (r->n_params > 0) {
        memcpy(o->params, r->params, sizeof o->params);
        o->pub.context_phase_params = o->params;
        o->pub.n_context_phase_params = r->n_params;
    }
    o->pub.no_speech_prob = r->no_speech_prob;
    r->perf.kv_new_blocks = q->sched.n_new_blocks;
    r->perf.kv_reused_blocks = q->sched.n_reused_blocks;
    r->perf.kv_total_blocks = q->sched.n_new_blocks;
    r->perf.n_paused = q->sched.n_paused;
    r->perf.n_draft_tokens = r->perf.n_accepted_draft_tokens = 0;
    for (int32_t i = 0; i < r->n_seqs; i++) {
        r->perf.n_draft_tokens += r->seqs[i].spec.n_proposed;
        r->perf.n_accepted_draft_tokens += r->seqs[i].spec.n_accepted;
    }
    o->pub.perf = r->perf;
    return o;
}
