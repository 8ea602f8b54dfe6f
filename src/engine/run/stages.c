/* SPDX-License-Identifier: Apache-2.0
 * Pipeline stages: each has some of the layers. The residual goes from stage to stage, each rank's to the rank of
 * the same number in the next stage; the last stage has the head, and its first rank sends rank 0 what came out.
 * Rank 0 alone chooses, so guides, beams and penalties are what they are with one rank, and nobody else needs to
 * know a sequence. */
#include "engine/run/steps.h"

static nrd_error *residual(nrd_runner *r, int32_t n_tokens, bool sends)
{
    const int32_t away = sends ? r->model->tp_size : -r->model->tp_size;
    nrd_transfer_args a = {
        .comm = r->comm,
        .peer = r->cfg.rank.rank + away,
        .x = r->x,
        .row_bytes = (int64_t)r->model->hidden * (int64_t)r->act_bytes,
        .stride = (int64_t)r->model->hidden * (int64_t)r->act_bytes,
        .n_rows = n_tokens,
    };
    return sends ? r->dev->ops->send(r->stream, &a) : r->dev->ops->receive(r->stream, &a);
}

nrd_error *nrd_run_take_over(nrd_runner *r, int32_t n_tokens)
{
    return residual(r, n_tokens, false);
}

nrd_error *nrd_run_hand_over(nrd_runner *r, int32_t n_tokens)
{
    return residual(r, n_tokens, true);
}

static nrd_transfer_args rows(const nrd_runner *r, int32_t peer, int32_t n_rows, size_t width, size_t stride)
{
    return (nrd_transfer_args){
        .comm = r->comm,
        .peer = peer,
        .x = r->logits,
        .row_bytes = (int64_t)(width * sizeof(float)),
        .stride = (int64_t)(stride * sizeof(float)),
        .n_rows = n_rows,
    };
}

static int32_t speaker(const nrd_runner *r)
{
    return (r->model->pp_size - 1) * r->model->tp_size;
}

nrd_error *nrd_run_hear_rows(nrd_runner *r, int32_t n_rows, size_t width)
{
    nrd_transfer_args a = rows(r, speaker(r), n_rows, width, width);
    return r->dev->ops->receive(r->stream, &a);
}

nrd_error *nrd_run_tell_rows(nrd_runner *r, int32_t n_rows, size_t width, size_t stride)
{
    nrd_transfer_args a = rows(r, 0, n_rows, width, stride);
    if (!nrd_run_is_staged(r) || r->cfg.rank.rank != speaker(r)) {
        return NULL;
    }
    return r->dev->ops->send(r->stream, &a);
}
