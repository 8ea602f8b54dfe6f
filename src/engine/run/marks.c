/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/operations.h"

#include "base/dtype.h"

#include <math.h>

double nrd_run_bytes(double n, nrd_dtype t)
{
    return n * (double)nrd_dtype_block_bytes(t) / (double)nrd_dtype_block(t);
}

nrd_error *nrd_run_mark(nrd_runner *r, nrd_profile_op op, double rows, double bytes_a_row,
                        double flops)
{
    nrd_profile_sum work = {.bytes = rows * bytes_a_row, .flops = flops};
    return r->marked ? nrd_profile_mark(r->profile, op, work) : NULL;
}

nrd_error *nrd_run_mark_product(nrd_runner *r, nrd_profile_op op, const nrd_product *p, int32_t n,
                                nrd_dtype y)
{
    double bytes = (double)n * (double)p->in_row_bytes;
    bytes += y != NRD_DTYPE_NONE ? (double)n * nrd_run_bytes((double)p->rows, y)
                                 : 0; /* NONE: not kept */
    for (int32_t i = 0; i < p->n; i++) {
        bytes += (double)p->w[i]->data_bytes;
    }
    nrd_profile_sum work = {
        .bytes = bytes,
        .flops = 2.0 * (double)n * (double)p->rows * (double)p->cols,
        .eight_bit = p->rounds_input || p->can_be_plain || p->in_dtype == NRD_DTYPE_ACT_Q8 || p->in_dtype == NRD_DTYPE_F8_E4M3,
    };
    return r->marked ? nrd_profile_mark(r->profile, op, work) : NULL;
}

nrd_error *nrd_run_mark_experts(nrd_runner *r, nrd_profile_op op, const nrd_product *p, int32_t n)
{
    const double all = r->pairs.n_experts, taken = all * (1 - pow(1 - r->pairs.top_k / all, n));
    const double rows = (double)n * r->pairs.top_k / r->spec->moe.ep_size; /* all ranks get as many */
    double bytes = rows * ((double)p->in_row_bytes + nrd_run_bytes((double)p->rows, r->act));
    for (int32_t i = 0; i < p->n; i++) {
        bytes += (double)p->w[i]->data_bytes * taken / all;
    }
    nrd_profile_sum work = {
        .bytes = bytes,
        .flops = 2.0 * rows * (double)p->rows * (double)p->cols,
        .eight_bit = p->in_dtype == NRD_DTYPE_ACT_Q8 || p->in_dtype == NRD_DTYPE_F8_E4M3,
    };
    return r->marked ? nrd_profile_mark(r->profile, op, work) : NULL;
}

/* Context read and (query, key) pairs of the marked step under a window (0: none). */
static void attended(const nrd_plan *p, int32_t window, double *tokens, double *pairs)
{
    *tokens = *pairs = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        double end = e->start + e->n, n = e->n;
        if (window > 0 && end > window) {
            *tokens += n + window - 1 < end ? n + window - 1 : end;
            *pairs += n * window; /* a little too many where the window is not yet full */
        } else {
            *tokens += end;
            *pairs += n * (end - (n - 1) / 2);
        }
    }
}

nrd_error *nrd_run_mark_attention(nrd_runner *r, int32_t layer, const nrd_product *next)
{
    const nrd_model_spec *m = r->spec;
    const nrd_latent_layer *y = &r->w.layers[layer].latent;
    double tokens, pairs, n, heads = (double)m->n_heads * nrd_spec_head_dim(m, layer), flops = 4 * heads, maps = 0;
    if (!r->marked) {
        return NULL;
    }
    attended(r->marked, r->layer_window[layer], &tokens, &pairs);
    n = r->marked->n_tokens;
    if (nrd_spec_is_latent(m)) {
        maps = (double)y->k_b->data_bytes + (double)y->v_b->data_bytes;
        flops = 2.0 * m->n_heads * (2.0 * m->latent.kv_rank + m->latent.rope_dim);
    }
    return nrd_run_mark(r, NRD_PROFILE_ATTENTION, 1,
                        n * (heads * (double)r->act_bytes + (double)next->in_row_bytes) +
                            nrd_run_bytes(tokens * (double)nrd_spec_kv_numbers(m, layer), r->kv_dtype) + maps,
                        pairs * flops);
}
