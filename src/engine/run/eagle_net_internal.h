/* SPDX-License-Identifier: Apache-2.0
 * engine/run/eagle_net_internal.h - what eagle_net.c, which runs passes, and eagle_net_new.c, which makes the network, share. */
#ifndef NRD_ENGINE_RUN_EAGLE_NET_INTERNAL_H
#define NRD_ENGINE_RUN_EAGLE_NET_INTERNAL_H

#include "engine/run/batch.h"
#include "engine/run/eagle_net.h"
#include "engine/run/extra_product.h"
#include "engine/run/whole_head.h"

struct nrd_eagle_net {
    nrd_runner *r;
    const nrd_eagle_heads *from; /* NULL: an MTP layer */
    nrd_runner *mtp;             /* its runner; or NULL */
    const nrd_engine *mtp_engine;
    const nrd_model_spec *spec; /* of the layer */
    nrd_eagle_net_config cfg;
    bool is_3;

    nrd_extra_product own_fc, qkv, dense, up, down, own_head;
    nrd_extra_weight own_embed_norm, own_state_norm, mlp_norm, own_final_norm, own_embed;
    nrd_whole_head whole;
    const nrd_product *fc, *head;
    const nrd_weight *embed, *embed_norm, *state_norm, *final_norm; /* norms: NULL in EAGLE-1 */
    float embed_scale;
    nrd_rope_table rope;

    nrd_kv_layer kv;
    int32_t n_blocks;
    void *states;              /* [n_blocks * block_tokens + n_outputs, hidden], what its places and the outputs have */
    nrd_weight states_table, pairs_table, taps_table, kept_table, x_table; /* as tables of rows */
    int32_t *kept, *kept_host; /* [2, 2 max_tokens of the runner]: which rows of the step are kept, and where; of two steps by turns */
    int32_t turn;
    int32_t *pair_ids, *tap_ids; /* [max_tokens, 2], [max_tokens, 3]: rows that lie beside each other in a product's input */
    void *x; /* [max_tokens, hidden]; the MTP runner's, where there is one */
    void *pairs, *joined, *y, *qkv_out, *att, *up_out, *mid; /* [max_tokens, ...] */
    nrd_extra_input in;
    nrd_batch batch;
    nrd_graphs graphs;
    int32_t *places, *places_host; /* [max_tokens] */
    int32_t *rows, *rows_host;     /* [max_rows], behind them */
    float *logits;                 /* [max_rows, the head's rows] */
    nrd_sample_row *sample_rows, *sample_rows_host; /* [max_rows] of choices that nobody remembers */
    uint8_t *out, *out_host;       /* [max_rows] chosen, [max_rows] its log probability, [max_rows, n_best] of each */
    int32_t *ids;                  /* [max_rows, n_best] the model's tokens */
};

static inline size_t nrd_eagle_hidden(const nrd_eagle_net *e)
{
    return (size_t)e->spec->hidden;
}

static inline nrd_weight nrd_eagle_table(const nrd_eagle_net *e, void *data, size_t rows)
{
    return (nrd_weight){.dtype = e->r->act,
                        .layout = NRD_LAYOUT_ROWS,
                        .rows = (int64_t)rows,
                        .cols = e->spec->hidden,
                        .data = data,
                        .scale = 1,
                        .data_bytes = rows * nrd_eagle_hidden(e) * e->r->act_bytes};
}

/* Where the best tokens of the outputs lie in `out`. */
static inline size_t nrd_eagle_best_at(const nrd_eagle_net *e)
{
    return 2 * (size_t)e->cfg.max_rows;
}

static inline size_t nrd_eagle_out_words(const nrd_eagle_net *e)
{
    return 2 * (size_t)e->cfg.max_rows * (size_t)(1 + e->cfg.n_best);
}

#endif
