/* SPDX-License-Identifier: Apache-2.0
 * Who guesses a sequence's tokens: the proposer that the executor's method gives it. */
#include "executor/draft_model.h"
#include "executor/eagle_model.h"
#include "executor/internal.h"
#include "executor/medusa_model.h"
#include "executor/redrafter_model.h"

#include "engine/decode/decode.h"
#include "engine/speculate/drafter.h"
#include "engine/speculate/eagle.h"
#include "engine/speculate/proposer.h"
#include "engine/speculate/verify.h"

#include <math.h>

size_t nrd_exec_speculative_bytes(const nrd_exec *x, int32_t max_total)
{
    switch (x->speculative.method) {
    case NRD_EXEC_NGRAM:
        return nrd_proposer_ngram_bytes(max_total);
    case NRD_EXEC_DRAFT_MODEL:
        return nrd_proposer_drafter_bytes();
    case NRD_EXEC_LOOKAHEAD:
        return nrd_proposer_lookahead_bytes(&x->speculative.lookahead, max_total);
    case NRD_EXEC_MEDUSA:
        return nrd_proposer_medusa_bytes();
    case NRD_EXEC_REDRAFTER:
        return nrd_proposer_redrafter_bytes();
    case NRD_EXEC_EAGLE:
    case NRD_EXEC_EAGLE3:
    case NRD_EXEC_MTP:
        return nrd_proposer_eagle_bytes(x->speculative.top_k > 0 || x->speculative.choices);
    case NRD_EXEC_NO_METHOD:
        break;
    }
    return 0;
}

static int32_t asked_or(int32_t asked, int32_t own)
{
    return asked > 0 ? asked : own;
}

static nrd_error *proposer_of(const nrd_exec *x, const nrd_exec_request *in, int32_t max_total, nrd_proposer **out)
{
    const nrd_exec_speculative *c = &x->speculative;

    switch (c->method) {
    case NRD_EXEC_NGRAM:
        return nrd_proposer_ngram(out, c->max_draft, c->min_match, c->max_match, max_total);
    case NRD_EXEC_DRAFT_MODEL:
        return nrd_exec_draft_proposer(x, out);
    case NRD_EXEC_LOOKAHEAD:
        return nrd_proposer_lookahead(out,
                                      &(nrd_lookahead){asked_or(in->lookahead_window_size, c->lookahead.window),
                                                       asked_or(in->lookahead_ngram_size, c->lookahead.ngram),
                                                       asked_or(in->lookahead_verification_set_size, c->lookahead.n_verify)},
                                      max_total);
    case NRD_EXEC_MEDUSA:
        return nrd_exec_medusa_proposer(x, out);
    case NRD_EXEC_REDRAFTER:
        return nrd_exec_redrafter_proposer(x, out);
    case NRD_EXEC_EAGLE:
    case NRD_EXEC_EAGLE3:
    case NRD_EXEC_MTP:
        return nrd_exec_eagle_proposer(x, out);
    case NRD_EXEC_NO_METHOD:
        break;
    }
    return NULL;
}

/* The executor's method for a sequence; *out stays NULL where it has none or could never be used: a proposer keeps a device from
 * running ahead. */
static nrd_error *method_for(const nrd_exec *x, const nrd_exec_request *in, const nrd_seq *q, nrd_proposer **out)
{
    const nrd_exec_speculative *c = &x->speculative;
    const nrd_exec_request_state *r = q->req.owner;

    if (c->method == NRD_EXEC_NO_METHOD || !nrd_speculate_suits(q)) {
        return NULL;
    }
    if (nrd_exec_method_has_network(c->method) && (r->n_table_rows > 0 || r->pictures)) {
        return NULL; /* rows of a prompt table are not in the network's vocabulary */
    }
    NRD_TRY(proposer_of(x, in, q->req.max_total, out));
    (*out)->always = c->always;
    if (c->posterior_threshold > 0) {
        (*out)->vocab = x->spec->vocab;
        (*out)->posterior_threshold = c->posterior_threshold;
        (*out)->posterior_alpha = c->posterior_alpha > 0 ? c->posterior_alpha : sqrtf(c->posterior_threshold);
    }
    return NULL;
}

nrd_error *nrd_exec_speculative_prepare(const nrd_exec *x, const nrd_exec_request *in, nrd_seq *q)
{
    const bool has_own = q->spec.proposer;
    nrd_error *err = method_for(x, in, q, has_own ? &q->spec.then : &q->spec.proposer);
    q->spec.asked = has_own || (q->spec.proposer && q->spec.proposer->always);
    nrd_decode_prepare(q);
    q->run.want_logit_rows |= nrd_speculate_wants_logits(q);
    return err;
}
