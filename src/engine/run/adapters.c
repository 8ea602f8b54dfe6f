/* SPDX-License-Identifier: Apache-2.0
 * What LoRA adapters add to the products of a layer. The input is the product's own, in whatever type the
 * weights want it: with quantized weights the adapter sees what they see. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

nrd_error *nrd_runner_set_bank(nrd_runner *r, const nrd_lora_bank *bank)
{
    void *p = NULL;

    if (bank->max_rank > r->adapter_rank) {
        NRD_TRY(r->dev->ops->stream_sync(r->stream)); /* a step may still write the old one */
        nrd_run_free(r, r->adapter_hidden);
        r->adapter_hidden = NULL;
        r->adapter_rank = 0;
        NRD_TRY(nrd_run_alloc(r, &p, (size_t)r->cfg.max_tokens * NRD_LORA_MAX_PARTS * (size_t)bank->max_rank,
                              sizeof(float), "lora adapters"));
        r->adapter_hidden = p;
        r->adapter_rank = bank->max_rank;
    }
    r->bank = *bank;
    return NULL;
}

/* The parts of a product's rows that adapters may change. */
static int32_t parts_of(const nrd_runner *r, int32_t layer, int32_t position, int64_t rows, nrd_lora_args *a)
{
    const nrd_model_spec *m = r->spec;
    const int32_t dim = nrd_spec_head_dim(m, layer), q = m->n_heads * dim, kv = nrd_spec_own_kv_heads(m, layer) * dim;
    const int32_t inter = nrd_spec_inter(m, layer);
    int32_t n = 0;

    if (position == NRD_LORA_AT_QKV && !r->w.layers[layer].q_only) {
        const int32_t n_rows[] = {q, kv, kv, q + 2 * kv}, row0[] = {0, q, q + kv, 0};
        for (; n < 4; n++) {
            a->part[n].row0 = row0[n];
            a->part[n].n_rows = n_rows[n];
        }
        return n;
    }
    if (position == NRD_LORA_AT_UP && m->gated_mlp) {
        for (; n < 2; n++) {
            a->part[n].row0 = n * inter;
            a->part[n].n_rows = inter;
        }
        return n;
    }
    a->part[0].row0 = 0;
    a->part[0].n_rows = (int32_t)rows;
    return 1;
}

nrd_error *nrd_run_adapters(nrd_runner *r, const nrd_batch *b, int32_t layer, int32_t position, const nrd_product *p,
                            const void *x, void *y)
{
    if (!b->token_slot) {
        return NULL;
    }
    nrd_lora_args a = {
        .n_tokens = b->view.n_tokens,
        .token_slot = b->token_slot,
        .single_tokens = b->view.max_q_len == 1,
        .pairs = r->bank.pairs + (int64_t)layer * NRD_LORA_POSITIONS + position,
        .slot_stride = r->bank.slot_stride,
        .max_rank = r->bank.max_rank,
        .x = x,
        .x_dtype = p->in_dtype,
        .x_row_scale = p->in_row_scale ? r->row_scale : NULL,
        .cols = p->cols,
        .y = y,
        .y_dtype = r->act,
        .y_stride = p->rows,
        .hidden = r->adapter_hidden,
    };
    a.n_parts = parts_of(r, layer, position, p->rows, &a);
    NRD_TRY(r->dev->ops->lora(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ADAPTERS, a.n_tokens,
                        (double)p->in_row_bytes + 2.0 * (double)p->rows * (double)r->act_bytes, 0);
}
