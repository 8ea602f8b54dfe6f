/* SPDX-License-Identifier: Apache-2.0
 * The buffers that a step's operations write, taken once when the runner is made and as large as its limits allow, but for
 * what few requests need (counts of tokens, rows of prompts). */
#include "engine/run/blocks.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"

#include "model/spec_recurrent.h"

/* The most numbers that t tokens have between the two products of an MLP, of experts or of shared ones. */
static size_t widest_inter(const nrd_model_spec *m, size_t t)
{
    size_t most = t * (size_t)(m->shared_kv_inter > m->inter ? m->shared_kv_inter : m->inter);
    if (m->has_experts) {
        const size_t shared = t * (size_t)m->moe.shared_inter;
        const size_t experts = t * (size_t)m->moe.top_k * (size_t)m->moe.inter;
        most = most > shared ? most : shared;
        most = most > experts ? most : experts;
    }
    if (nrd_spec_reads_pictures(m)) { /* what layers that read pictures add waits there */
        const size_t half = t * (((size_t)m->hidden + 1) / 2);
        most = most > half ? most : half;
    }
    return most;
}

/* Rows of what is handed to layers' first products, to attention's last and to the MLP's last one. */
typedef struct row_sizes {
    size_t normed, att, mid;
} row_sizes;

static row_sizes input_rows(const nrd_runner *r)
{
    const size_t in = r->w.max_in_row_bytes;
    row_sizes s = {in, in, in};

    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        const nrd_layer *y = &r->w.layers[i];
        const nrd_product *const all[] = {&y->qkv, &y->up, &y->dense, &y->down};
        size_t *const of[] = {&s.normed, &s.normed, &s.att, &s.mid};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            const size_t plain = all[k]->can_be_plain ? (size_t)all[k]->cols * r->act_bytes : 0;
            *of[k] = plain > *of[k] ? plain : *of[k];
        }
    }
    return s;
}

/* What the last product of an MLP reads, at most: t rows, or those of all pairs. */
static size_t mid_bytes(const nrd_runner *r, size_t t, size_t row)
{
    size_t most = t * row;
    for (int32_t i = 0; r->spec->has_experts && i < r->spec->n_layers; i++) {
        const size_t bytes = t * (size_t)r->spec->moe.top_k * r->w.layers[i].experts.down.in_row_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

nrd_error *nrd_run_init_activations(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    size_t t = (size_t)r->cfg.max_tokens, a = r->act_bytes;
    size_t qkv = 0;
    const row_sizes in = input_rows(r);
    const size_t recurrent = (size_t)nrd_recurrent_row(m);
    void *p = NULL;
    for (int32_t i = 0; i < m->n_layers; i++) {
        const size_t row = (size_t)(m->n_heads + 2 * nrd_spec_kv_heads(m, i)) * (size_t)nrd_spec_head_dim(m, i);
        qkv = row > qkv ? row : qkv;
    }
    qkv = recurrent > qkv ? recurrent : qkv;

    /* Rows beside the choices (prompt logits) go through the head in groups of this many. */
    r->logit_rows = nrd_run_max_rows(r) > 64 ? nrd_run_max_rows(r) : 64;
    NRD_TRY(nrd_run_alloc_common(r, &r->x, t * (size_t)m->hidden, a, "activations"));
    NRD_TRY(nrd_run_alloc_common(r, &r->normed, t > (size_t)r->logit_rows ? t : (size_t)r->logit_rows, in.normed,
                                 "activations"));
    NRD_TRY(nrd_run_alloc(r, &r->qkv, t * qkv, a, "activations"));
    NRD_TRY(nrd_run_alloc(r, &r->att, t, in.att, "activations"));
    NRD_TRY(nrd_run_alloc_common(r, &r->delta, t * (size_t)m->hidden, a, "activations"));
    NRD_TRY(nrd_run_alloc(r, &r->up, widest_inter(m, t), (m->gated_mlp ? 2 : 1) * a, "activations"));
    NRD_TRY(nrd_run_alloc(r, &r->mid, mid_bytes(r, t, in.mid), 1, "activations"));
    if (r->comm && m->qk_norm_wide && r->model->tp_size > 1) {
        NRD_TRY(nrd_run_alloc_common(r, &p, t, 2 * sizeof(float), "activations"));
        r->head_squares = p;
    }
    NRD_TRY(nrd_run_init_made_input(r));
    NRD_TRY(nrd_run_init_inputs(r));
    NRD_TRY(nrd_run_init_experts(r));
    NRD_TRY(nrd_run_init_latent(r));
    NRD_TRY(nrd_run_init_recurrent(r));
    NRD_TRY(nrd_run_init_layer_inputs(r));
    NRD_TRY(nrd_run_init_altup(r));
    NRD_TRY(nrd_run_alloc_common(r, &p, t > (size_t)r->logit_rows ? t : (size_t)r->logit_rows,
                                 sizeof(float), "activations"));
    r->row_scale = p;
    NRD_TRY(nrd_run_alloc(r, &p, (size_t)r->logit_rows * r->logit_cols, sizeof(float), "logits"));
    r->logits = p;
    if (r->comm && r->w.lm_head.n > 0) {
        NRD_TRY(nrd_run_alloc_common(r, &p, (size_t)r->logit_rows * (size_t)r->w.lm_head.rows, sizeof(float),
                                     "logits"));
        r->part_logits = p;
    }
    NRD_TRY(nrd_run_alloc_common(r, &p, (size_t)r->cfg.max_entries, sizeof(int32_t), "slots"));
    r->slot_tokens = p;
    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, (size_t)r->logit_rows * sizeof(int32_t),
                               "batch"));
    r->row_ids_host = p;
    if (!r->shared) {
        NRD_TRY(nrd_run_alloc(r, &p, (size_t)r->logit_rows, sizeof(int32_t), "batch"));
    }
    r->row_ids = p;
    size_t widest = (size_t)m->hidden;
    const size_t inter = (size_t)(m->shared_kv_inter > m->inter ? m->shared_kv_inter : m->inter);
    widest = inter * 2 > widest ? inter * 2 : widest;
    const size_t of_layers = (size_t)m->altup.per_layer * (size_t)m->n_layers;
    widest = of_layers > widest ? of_layers : widest;
    widest = qkv > widest ? qkv : widest;
    widest = (size_t)m->latent.q_rank > widest ? (size_t)m->latent.q_rank : widest;
    if (m->has_experts) { /* rows of all pairs are regrouped at once */
        const size_t row = (size_t)(m->hidden > m->moe.inter ? m->hidden : m->moe.inter);
        widest = row * (size_t)(m->moe.top_k + 1) > widest ? row * (size_t)(m->moe.top_k + 1) : widest;
    }
    return nrd_run_advised(r->dev->ops->reserve(r->stream, r->cfg.max_tokens, nrd_run_max_rows(r),
                                                (int32_t)widest, r->cfg.max_context,
                                                (int32_t)(r->logit_cols > 0 ? r->logit_cols : 1)),
                           "workspace");
}

void nrd_run_free_activations(nrd_runner *r)
{
    void *common[] = {r->x, r->normed, r->delta, r->row_scale, r->part_logits, r->slot_tokens, r->head_squares};
    void *mem[] = {r->qkv, r->att, r->up, r->mid, r->logits, r->adapter_hidden, r->taps, r->kv_rows};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        nrd_run_free_common(r, common[i]);
    }
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(r, mem[i]);
    }
    nrd_run_free_made_input(r);
    nrd_run_free_counts(r);
    nrd_run_free_experts(r);
    nrd_run_free_latent(r);
    nrd_run_free_recurrent(r);
    nrd_run_free_layer_inputs(r);
    nrd_run_free_altup(r);
    if (!r->shared) {
        nrd_run_free(r, r->row_ids);
        nrd_run_free(r, r->pool_rows);
        nrd_run_free(r, r->pool_sums);
    }
    nrd_run_free_host(r, r->row_ids_host);
    nrd_run_free_host(r, r->kv_rows_host);
    nrd_run_free_host(r, r->rows_host);
}
