/* SPDX-License-Identifier: Apache-2.0
 * What requests are told by the loop: tokens, ends, errors. What a step says to many leaves together. */
#include "executor/handover.h"

#include "base/clock.h"
#include "engine/decode/decode.h"

static void hold(nrd_exec *x, nrd_exec_response_state *o)
{
    o->next = NULL;
    *(x->held_tail ? &x->held_tail->next : &x->held_head) = o;
    x->held_tail = o;
}

static void send(nrd_exec *x, nrd_exec_response_state *o)
{
    if (x->sched_lim.is_static || x->is_answering) {
        hold(x, o);
        return;
    }
    pthread_mutex_lock(&x->mu);
    nrd_exec_out_push(x, o);
    pthread_cond_broadcast(&x->out_cv);
    pthread_mutex_unlock(&x->mu);
}

/* A batch of V1, or all that a step has to say, leaves together: who waits is woken once, not by each token. */
void nrd_exec_release_held(nrd_exec *x)
{
    pthread_mutex_lock(&x->mu);
    while (x->held_head) {
        nrd_exec_response_state *o = x->held_head;
        x->held_head = o->next;
        if (x->is_given_up) {
            nrd_exec_response_put(o);
        } else {
            nrd_exec_out_push(x, o);
        }
    }
    pthread_cond_broadcast(&x->out_cv);
    pthread_mutex_unlock(&x->mu);
    x->held_tail = NULL;
    x->is_answering = false;
}

void nrd_exec_answer(nrd_exec *x, nrd_seq *q, int32_t n_new, nrd_seq_finish finish)
{
    nrd_exec_request_state *r = q->req.owner;
    bool ends = finish != NRD_SEQ_FINISH_NONE;
    if (n_new > 0) {
        const int64_t now = (int64_t)(x->is_answering ? x->last_end_ns : nrd_now_ns());
        r->perf.first_token_ns = r->perf.first_token_ns ? r->perf.first_token_ns : now;
        r->perf.last_token_ns = now;
    }
    if (ends) {
        r->n_open--;
        x->n_terminated_step += r->n_open == 0;
    }
    if (ends || (r->streaming && n_new > 0)) {
        nrd_exec_response_state *o = nrd_exec_response_make(r, q, finish, ends && r->n_open == 0);
        if (o) { /* else the next answer brings these tokens */
            send(x, o);
        }
    }
}

void nrd_exec_fail_request(nrd_exec *x, nrd_exec_request_state *r, nrd_error *err)
{
    if (r->is_told) {
        nrd_error_free(err);
        return;
    }
    nrd_exec_response_state *o = nrd_exec_response_make_error(r, err);
    if (x->is_answering) { /* behind what the step said before */
        hold(x, o);
        return;
    }
    pthread_mutex_lock(&x->mu);
    nrd_exec_out_push(x, o);
    pthread_cond_broadcast(&x->out_cv);
    pthread_mutex_unlock(&x->mu);
}

/* All of a request's sequences end here, with one error. Takes err always. */
void nrd_exec_end_request(nrd_exec *x, nrd_exec_request_state *r, nrd_error *err)
{
    for (int32_t i = 0; i < r->n_seqs; i++) {
        nrd_sched_end(x->sched, &r->seqs[i]);
    }
    r->n_open = 0;
    nrd_exec_fail_request(x, r, err);
}

void nrd_exec_end_wrong(nrd_exec *x, nrd_seq *q)
{
    nrd_exec_request_state *r = q->req.owner;
    const nrd_guide *guide = q->dec.guide ? nrd_guide_state_guide(q->dec.guide) : NULL;
    const char *limit = guide ? nrd_guide_limit(guide) : NULL;

    x->n_terminated_step++;
    if (!limit) {
        nrd_exec_end_request(x, r, nrd_errorf(NRD_ERR_INTERNAL, "the logits of the model (%s) are not numbers: a weight is NaN or infinite, or "
                                     "a number was too large for its type", x->info.architecture));
        return;
    }
    nrd_guides_forget(x->guides, guide); /* the request's sequences share it */
    nrd_exec_end_request(x, r, nrd_errorf(NRD_ERR_INVALID_ARG, "guided_decoding_guide: the guide passes the limit %s", limit));
}

/* Behind a commit: the end of a reasoning whose budget is used up, or text that a guide leaves no choice about, as
 * tokens. A long one comes in several rounds. */
void nrd_exec_jump_forward(nrd_exec *x, nrd_sched_event *e)
{
    nrd_seq *q = e->seq;
    if (!q->req.may_jump || e->n_new == 0 || e->finish != NRD_SEQ_FINISH_NONE) {
        return;
    }
    int32_t ids[NRD_MAX_JUMP], room = q->req.max_total - q->dec.n_known,
                               n_before = nrd_seq_n_generated(q);
    if (!q->dec.guide) {
        const int32_t *close = NULL, n_close = nrd_decode_reasoning_close(q, &close);
        nrd_sched_append(x->sched, close, n_close < room ? n_close : room, e);
        return;
    }
    size_t n = nrd_guide_jump(q->dec.guide, q->dec.tokens + q->req.n_prompt, (size_t)n_before, ids,
                              (size_t)(room < NRD_MAX_JUMP ? room : NRD_MAX_JUMP));
    nrd_sched_append(x->sched, ids, (int32_t)n, e);
}

void nrd_exec_begin_handed(nrd_exec *x, nrd_exec_request_state *r)
{
    nrd_sched_event e;
    nrd_handover_begin(r, &e);
    if (e.finish == NRD_SEQ_FINISH_ERROR) {
        nrd_exec_end_wrong(x, e.seq);
        return;
    }
    nrd_exec_jump_forward(x, &e);
    nrd_exec_answer(x, e.seq, e.n_new, e.finish);
}
