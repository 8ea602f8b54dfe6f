/* SPDX-License-Identifier: Apache-2.0
 * Records the steps that come most often before the first request waits for them. */
#include "engine/run/steps.h"

#include "base/clock.h"

/* At most: a hundred recorded steps take less than half a second on an H200. */
static const double record_seconds = 1;
/* Contexts beyond these, and drafts of more sequences, are recorded when they come. */
enum { RECORD_CTX = 1024, RECORD_DRAFTS_CTX = 512, RECORD_DRAFTS_OF = 32 };

static nrd_error *record(nrd_runner *r, const nrd_batch_pad *pad)
{
    const nrd_plan nobody = {0};

    /* the block of the step before is uploaded from memory that this one fills */
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    NRD_TRY(nrd_batch_fill(&r->batch[0], r->stream, &nobody, pad, r->mask_worker));
    r->batch[0].two_steps = nrd_run_takes_two_steps(r, &r->batch[0]); /* greedy choices */
    NRD_TRY(nrd_run_share(r, &nobody, &r->batch[0], pad, true));
    return nrd_run_padded(r, &r->batch[0], pad, true, NULL);
}

static bool is_time_left(uint64_t start_ns)
{
    return (double)(nrd_now_ns() - start_ns) / 1e9 < record_seconds;
}

/* The context that is recorded behind this one, at most `most`; 0: none. */
static int32_t next_ctx(const nrd_runner *r, int32_t ctx, int32_t most)
{
    const int32_t next = ctx < r->cfg.max_context ? nrd_graphs_ctx(ctx + 1, r->cfg.max_context) : 0;
    return next <= most ? next : 0;
}

/* Steps in which n sequences have chains of drafted tokens, one of them as many as there can be. */
static nrd_error *record_drafts(nrd_runner *r, int32_t n, int32_t ctx, uint64_t start_ns)
{
    const int32_t longest = 1 + r->cfg.max_chain, all = n * longest;
    nrd_batch_pad pad = {0};

    for (int32_t each = 2; n == 1 && each < longest && nrd_run_pad(r, 1, each, each, ctx, &pad) && is_time_left(start_ns); each++) {
        NRD_TRY(record(r, &pad));
    }
    for (int32_t tokens = n + longest - 1; tokens < all && nrd_run_pad(r, n, tokens, longest, ctx, &pad) && is_time_left(start_ns);
         tokens = pad.shape.tokens + 1) {
        NRD_TRY(record(r, &pad));
    }
    return nrd_run_pad(r, n, all, longest, ctx, &pad) && is_time_left(start_ns) ? record(r, &pad) : NULL;
}

nrd_error *nrd_runner_record_ahead(nrd_runner *r)
{
    const uint64_t start_ns = nrd_now_ns();
    const int32_t first = next_ctx(r, 0, RECORD_CTX), most = r->cfg.max_chain > 0 ? RECORD_DRAFTS_OF : 0;
    nrd_batch_pad pad = {0};

    if (r->spec->encoder) { /* nothing is chosen there, and ALBERT has no head */
        return NULL;
    }
    for (int32_t ctx = first; ctx > 0; ctx = next_ctx(r, ctx, RECORD_CTX)) {
        for (int32_t rows = 1; nrd_run_pad(r, rows, rows, 1, ctx, &pad) && is_time_left(start_ns); rows = pad.shape.rows + 1) {
            NRD_TRY(record(r, &pad));
        }
    }
    for (int32_t ctx = first; ctx > 0; ctx = next_ctx(r, ctx, RECORD_DRAFTS_CTX)) {
        for (int32_t n = 1; n <= most && n <= r->cfg.max_entries; n++) {
            NRD_TRY(record_drafts(r, n, ctx, start_ns));
        }
    }
    return r->dev->ops->stream_sync(r->stream);
}
