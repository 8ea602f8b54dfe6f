/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/kv_pools.h"

#include "engine/run/operations.h"
#include "engine/run/steps.h"

#include "base/mem.h"

static size_t layer_block_bytes(const nrd_runner *r, int32_t layer)
{
    return r->dev->ops->kv_block_bytes(r->dev, r->kv_dtype, r->cfg.block_tokens,
                                       nrd_spec_kv_heads(r->spec, layer), nrd_spec_kv_dim(r->spec, layer));
}

size_t nrd_runner_kv_block_bytes(const nrd_runner *r)
{
    size_t n = 0;
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        n += nrd_spec_layer_has_cache(r->spec, i) ? layer_block_bytes(r, i) : 0;
    }
    return n;
}

static nrd_kv_layer layer_of(const nrd_runner *r, void *base, int32_t n_blocks, int32_t layer)
{
    return (nrd_kv_layer){
        .base = base,
        .dtype = r->kv_dtype,
        .n_blocks = n_blocks,
        .block_tokens = r->cfg.block_tokens,
        .n_kv_heads = nrd_spec_kv_heads(r->spec, layer),
        .head_dim = nrd_spec_kv_dim(r->spec, layer),
        .scales = r->w.layers[layer].kv_scales ? (const float *)r->w.layers[layer].kv_scales->data : NULL,
    };
}

/* layers: [kv.n_layers + 1] */
static nrd_error *alloc_pool(nrd_runner *r, nrd_mem_kind kind, int32_t n_blocks, nrd_kv_layer **out)
{
    nrd_error *err = NULL;

    NRD_NEW_GOTO(*out, r->kv.n_layers + 1, err, fail);
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        const int32_t at = r->w.layers[i].kv_layer;
        size_t bytes;
        void *base = NULL;
        if (at < 0 || r->w.layers[i].q_only) {
            continue;
        }
        if (!nrd_size_mul((size_t)n_blocks, layer_block_bytes(r, i), &bytes)) {
            return nrd_error_no_memory();
        }
        NRD_TRY(nrd_run_advised(r->dev->ops->alloc(r->dev, &base, kind, bytes, "kv cache"), "kv cache"));
        (*out)[at] = layer_of(r, base, n_blocks, i);
    }
fail:
    return err;
}

nrd_error *nrd_runner_alloc_kv(nrd_runner *r, int32_t n_blocks, int32_t n_host)
{
    if (r->comm && r->dev->ops->comm_meet) {
        NRD_TRY(r->dev->ops->comm_meet(r->comm)); /* all ranks are loaded by now, and come here at the same time */
    }
    r->kv.n_blocks = n_blocks;
    r->kv.n_layers = r->kv.n_own = nrd_spec_kv_layers(r->spec);
    NRD_TRY(alloc_pool(r, NRD_MEM_DEVICE, n_blocks, &r->kv.layers));
    return n_host > 0 ? alloc_pool(r, NRD_MEM_HOST, n_host, &r->kv.host_layers) : NULL;
}

nrd_error *nrd_run_alloc_shared_kv(nrd_runner *r, int32_t n_blocks)
{
    nrd_error *err = NULL;
    void *base = NULL;
    size_t bytes;

    NRD_NEW_GOTO(r->kv.layers, r->spec->n_layers, err, fail);
    r->kv.n_blocks = n_blocks;
    r->kv.n_layers = r->spec->n_layers;
    r->kv.n_own = 1;
    if (!nrd_size_mul((size_t)n_blocks, layer_block_bytes(r, 0), &bytes)) {
        return nrd_error_no_memory();
    }
    NRD_TRY(nrd_run_alloc(r, &base, bytes, 1, "kv cache"));
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        r->kv.layers[i] = layer_of(r, base, n_blocks, i);
    }
fail:
    return err;
}

void nrd_run_free_kv(nrd_runner *r)
{
    for (int32_t i = 0; r->kv.host_layers && i < r->kv.n_own; i++) {
        nrd_run_free_host(r, r->kv.host_layers[i].base);
    }
    for (int32_t i = 0; r->kv.layers && i < r->kv.n_own; i++) {
        nrd_run_free(r, r->kv.layers[i].base);
    }
    free(r->kv.layers);
    free(r->kv.host_layers);
}

enum { COPIES_A_CALL = 64 };

static bool has_target(const int32_t (*pairs)[2], int32_t n, int32_t block)
{
    for (int32_t i = 0; i < n; i++) {
        if (pairs[i][1] == block) {
            return true;
        }
    }
    return false;
}

static nrd_error *move_tokens(nrd_runner *r, const nrd_plan *p)
{
    nrd_move_tokens_args a = {
        .n_layers = r->kv.n_layers,
        .n_pairs = p->n_moves,
        .kv = r->kv.layers,
        .pairs = p->n_moves > 0 ? &p->moves[0][0] : NULL,
    };
    return p->n_moves > 0 ? r->dev->ops->move_tokens(r->stream, &a) : NULL;
}

/* One call copies its pairs in any order, so a call ends where
 * the pools change and where a pair reads or writes what one before it wrote. */
nrd_error *nrd_run_copy_blocks(nrd_runner *r, const nrd_plan *p)
{
    NRD_TRY(move_tokens(r, p));
    for (int32_t i = 0; i < p->n_copies;) {
        int32_t pairs[COPIES_A_CALL][2], n = 0, at = r->kv.n_blocks;
        bool from_host = p->copies[i][0] >= at, to_host = p->copies[i][1] >= at;
        for (; i < p->n_copies && n < COPIES_A_CALL; i++) {
            int32_t src = p->copies[i][0], dst = p->copies[i][1];
            if ((src >= at) != from_host || (dst >= at) != to_host) {
                break;
            }
            src -= from_host ? at : 0;
            dst -= to_host ? at : 0;
            if (has_target(pairs, n, dst) || (from_host == to_host && has_target(pairs, n, src))) {
                break;
            }
            pairs[n][0] = src;
            pairs[n++][1] = dst;
        }
        nrd_copy_blocks_args a = {
            .n_layers = r->kv.n_layers,
            .n_pairs = n,
            .src = from_host ? r->kv.host_layers : r->kv.layers,
            .dst = to_host ? r->kv.host_layers : r->kv.layers,
            .pairs = &pairs[0][0],
        };
        NRD_TRY(r->dev->ops->copy_blocks(r->stream, &a));
    }
    return NULL;
}
