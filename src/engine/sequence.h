/* SPDX-License-Identifier: Apache-2.0
 * engine/sequence.h - one sequence on its way through the engine.
 *
 * Purpose   Gathers what the maker asks for and what scheduler, decoder and runner know about a
 *           sequence. Each part is described in its own header and written by its owner only. One
 *           request makes num_return_sequences of them; a beam-search request is one sequence with
 *           `width` beams.
 * Owner     Made by the executor (owns the memory), then handed to the scheduler, and used by the
 *           loop thread only, until nrd_sched_take_idle gives it back.
 */
#ifndef NRD_ENGINE_SEQUENCE_H
#define NRD_ENGINE_SEQUENCE_H

#include "engine/decode/seq_decode.h"
#include "engine/run/seq_run.h"
#include "engine/seq_request.h"
#include "engine/seq_sched.h"
#include "engine/speculate/seq_speculate.h"

enum { NRD_MAX_JUMP = 64, NRD_MAX_BEAM_WIDTH = 64, NRD_MAX_TOP_LOGPROBS = 20 };

struct nrd_seq {
    nrd_seq_request req;
    nrd_seq_sched sched;
    nrd_seq_decode dec;
    nrd_seq_run run;
    nrd_seq_speculate spec;
};

static inline int32_t nrd_seq_n_generated(const nrd_seq *q)
{
    return q->dec.n_known - q->req.n_prompt;
}

static inline bool nrd_seq_is_done(const nrd_seq *q)
{
    return q->sched.state == NRD_SEQ_DONE;
}

#endif
