/* SPDX-License-Identifier: Apache-2.0
 * Blocks of the cache out of one runner and into another, by way of host memory. Blocks that lie side by side go in
 * one copy. Rank 0 says which; every rank copies its own. */
#include "engine/run/parcel.h"

#include "base/hash.h"
#include "base/mem.h"
#include "engine/run/steps.h"

#include <string.h>
#include <sys/mman.h>

static size_t block_bytes(const nrd_runner *r, int32_t kv_layer)
{
    const nrd_kv_layer *l = &r->kv.layers[kv_layer];
    return r->dev->ops->kv_block_bytes(r->dev, l->dtype, l->block_tokens, l->n_kv_heads, l->head_dim);
}

void nrd_runner_kv_shape(const nrd_runner *r, nrd_kv_shape *out)
{
    *out = (nrd_kv_shape){
        .host_is_device = r->shared,
        .dtype = r->kv_dtype,
        .block_tokens = r->cfg.block_tokens,
        .n_layers = r->kv.n_layers,
        .window = r->common_window,
        .n_sink = r->cfg.n_sink,
        .tp_size = r->model->tp_size,
        .pp_size = r->model->pp_size,
    };
    for (int32_t i = 0; i < r->kv.n_layers; i++) {
        const nrd_kv_layer *l = &r->kv.layers[i];
        out->layers = nrd_hash_u64(out->layers, (uint64_t)(uint32_t)l->n_kv_heads << 32 | (uint32_t)l->head_dim);
        out->layers = nrd_hash_u64(out->layers, block_bytes(r, i));
    }
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        out->layers = nrd_hash_u64(out->layers, r->w.layers[i].kv_scales_hash);
    }
}

/* How many blocks of the list from `first` on lie side by side. */
static int32_t side_by_side(const int32_t *blocks, int32_t first, int32_t end)
{
    int32_t n = 1;
    while (first + n < end && blocks[first + n] == blocks[first] + n) {
        n++;
    }
    return n;
}

static size_t share_bytes(const nrd_runner *r, int32_t n_blocks)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < r->kv.n_layers; i++) {
        bytes += (size_t)n_blocks * block_bytes(r, i);
    }
    return bytes;
}

/* Blocks [first, n_blocks) of a list, of all layers, to the cache or from it. */
static nrd_error *copy(nrd_runner *r, const int32_t *blocks, int32_t first, int32_t n_blocks,
                       uint8_t *data, bool to_cache)
{
    for (int32_t layer = 0; layer < r->kv.n_layers; layer++) {
        const size_t bytes = block_bytes(r, layer);
        for (int32_t i = first, n; i < n_blocks; i += n) {
            n = side_by_side(blocks, i, n_blocks);
            if (blocks[i] < 0) {
                n = 1;
                continue;
            }
            uint8_t *in_cache = (uint8_t *)r->kv.layers[layer].base + (size_t)blocks[i] * bytes,
                    *in_parcel = data + (size_t)i * bytes;
            NRD_TRY(to_cache
                        ? r->dev->ops->copy(r->stream, in_cache, in_parcel, (size_t)n * bytes)
                        : r->dev->ops->copy(r->stream, in_parcel, in_cache, (size_t)n * bytes));
        }
        data += (size_t)n_blocks * bytes;
    }
    return NULL;
}

nrd_error *nrd_runner_give_blocks(nrd_runner *r, const nrd_kv_table *t, int32_t n_blocks, nrd_kv_parcel *out)
{
    nrd_error *err = NULL;

    NRD_ASSERT(n_blocks <= t->n_blocks, "the prompt is in the cache");
    out->n_blocks = n_blocks;
    NRD_NEW_GOTO(out->data, share_bytes(r, n_blocks), err, fail);
    NRD_TRY_GOTO(copy(r, t->blocks, 0, n_blocks, out->data, false), err, fail);
    NRD_TRY_GOTO(r->dev->ops->stream_sync(r->stream), err, fail);
    return NULL;

fail:
    nrd_kv_parcel_fini(out);
    return err;
}

void nrd_kv_parcel_fini(nrd_kv_parcel *p)
{
    free(p->data);
    nrd_parcel_place_free(&p->place);
    *p = (nrd_kv_parcel){0};
}

nrd_error *nrd_run_take_blocks(nrd_runner *r, const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const nrd_kv_parcel *from = e->seq->run.parcel;
        if (e->take_from > 0) {
            NRD_TRY(copy(r, e->seq->sched.tables[0].blocks, e->take_from - 1, from->n_blocks,
                         from->data, true));
        }
    }
    return NULL;
}

/* ---- the other ranks ---- */

nrd_error *nrd_runner_give_share(nrd_runner *r, const void *order, size_t bytes)
{
    const nrd_give_order *o = order;
    const int32_t rank = r->cfg.rank.rank;
    uint8_t *data = NULL;

    if (bytes < sizeof *o || o->n_blocks < 0 ||
        bytes != sizeof *o + (size_t)o->n_blocks * sizeof *o->blocks) {
        return nrd_errorf(NRD_ERR_INTERNAL, "an order to give blocks of %zu bytes", bytes);
    }
    const size_t size = share_bytes(r, o->n_blocks);
    nrd_error *err = size > 0 ? nrd_parcel_place_map(&o->place, rank, size, true, &data) : NULL;
    if (data) {
        err = copy(r, o->blocks, 0, o->n_blocks, data, false);
        err = err ? err : r->dev->ops->stream_sync(r->stream);
        munmap(data, size);
        NRD_TRY(err);
    }
    nrd_parcel_place_tell(&o->place, rank, err);
    return NULL;
}

int32_t nrd_run_list_takes(const nrd_plan *p, nrd_kv_take *out)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        if (e->take_from > 0 && out) {
            out[n] = (nrd_kv_take){i, e->take_from - 1, e->seq->run.parcel->n_blocks,
                                   e->seq->run.parcel->place};
        }
        n += e->take_from > 0;
    }
    return n;
}

nrd_error *nrd_run_take_share(nrd_runner *r, const nrd_kv_take *take, const int32_t *blocks)
{
    const size_t size = share_bytes(r, take->n_blocks);
    uint8_t *data = NULL;

    if (size == 0) {
        return NULL;
    }
    NRD_TRY(nrd_parcel_place_map(&take->place, r->cfg.rank.rank, size, false, &data));
    nrd_error *err = copy(r, blocks, take->first, take->n_blocks, data, true);
    err = err ? err : r->dev->ops->stream_sync(r->stream); /* it is read until then */
    munmap(data, size);
    return err;
}
