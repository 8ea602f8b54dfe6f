/* SPDX-License-Identifier: Apache-2.0
 * attention: out[t] = softmax(softcap(scale q K^T) + alibi + rel_bias + mask) V over the paged cache, with
 * the sink's share in the denominator; two passes in double. Blocks of the table that are -1 are skipped. No visible token: zeros. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

nrd_error *nrd_attention_check(const nrd_attention_args *a)
{
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;

    if (!b || b->n_tokens < 0 || b->n_seqs < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "attention: no batch");
    }
    if (b->n_tokens == 0) {
        return NULL;
    }
    if (!a->q || !a->out || !b->positions || !b->q_start || !b->ctx_len || !b->block_table) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "attention: q, out and the batch arrays are needed");
    }
    if (kv->n_kv_heads <= 0 || kv->head_dim <= 0 || kv->block_tokens <= 0 || !kv->base ||
        a->n_heads <= 0 || a->n_heads % kv->n_kv_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "attention: %d heads over %d kv heads of %d, blocks of %d",
                          a->n_heads, kv->n_kv_heads, kv->head_dim, kv->block_tokens);
    }
    if (!nrd_is_float_dtype(a->act_dtype) ||
        nrd_row_bytes(a->out_dtype, (int64_t)a->n_heads * kv->head_dim) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "attention: %s to %s", nrd_dtype_name(a->act_dtype),
                          nrd_dtype_name(a->out_dtype));
    }
    if (a->ahead < 0 || a->ahead >= NRD_ATTENTION_MAX_AHEAD || (a->ahead > 0 && b->tree_mask)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "attention: %d tokens ahead%s", a->ahead,
                          a->ahead > 0 ? " beside a tree" : "");
    }
    if (a->chunked && (a->window <= 0 || a->ahead > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "attention: chunks of %d%s", a->window, a->ahead > 0 ? ", tokens ahead" : "");
    }
    if (a->rel_bias && (a->rel_back < 0 || a->rel_ahead < 0 || a->rel_back >= NRD_ATTENTION_MAX_AHEAD ||
                        a->rel_ahead >= NRD_ATTENTION_MAX_AHEAD || b->tree_mask || a->alibi)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "attention: biases of distances -%d to %d%s", a->rel_back, a->rel_ahead,
                          b->tree_mask || a->alibi ? " beside a tree or position biases" : "");
    }
    if (b->tree_mask && b->tree_mask_words <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "attention: tree mask of %d words", b->tree_mask_words);
    }
    return NULL;
}

/* The position of a cached token within its sequence: branches of a tree share positions. */
static int32_t position_of(const nrd_attention_args *a, int32_t s, int32_t slot)
{
    const nrd_batch_view *b = a->batch;
    int32_t first_new = b->ctx_len[s] - (b->q_start[s + 1] - b->q_start[s]);
    return b->tree_mask && slot >= first_new ? b->positions[b->q_start[s] + slot - first_new] : slot;
}

bool nrd_attention_sees(const nrd_attention_args *a, int32_t s, int32_t i, int32_t pos)
{
    const nrd_batch_view *b = a->batch;
    int32_t q_len = b->q_start[s + 1] - b->q_start[s], first_new = b->ctx_len[s] - q_len, at = pos;

    if (b->tree_mask && pos >= first_new) { /* the bits decide among this step's tokens */
        int32_t j = pos - first_new;
        const uint32_t *row = b->tree_mask + (int64_t)i * b->tree_mask_words;
        if (j >= q_len || j / 32 >= b->tree_mask_words || !(row[j / 32] >> (j % 32) & 1u)) {
            return false;
        }
        at = b->positions[b->q_start[s] + j]; /* two branches may hold the same position */
    } else if (pos > b->positions[i] + a->ahead) {
        return false;
    }
    return a->window <= 0 || at > nrd_attention_unseen(a, b->positions[i]) || at < a->n_sink;
}

/* Tokens of the longest context, at least one. */
static size_t longest(const nrd_batch_view *b)
{
    int32_t max_ctx = 1;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        max_ctx = b->ctx_len[s] > max_ctx ? b->ctx_len[s] : max_ctx;
    }
    return (size_t)max_ctx;
}

size_t nrd_attention_ref_bytes(const nrd_attention_args *a)
{
    const size_t dim = (size_t)a->kv.head_dim;
    return (longest(a->batch) + dim) * sizeof(double) + (size_t)a->n_heads * dim * sizeof(float);
}

void nrd_attention_ref(const nrd_attention_args *a)
{
    void *work = nrd_xmalloc(nrd_attention_ref_bytes(a));
    nrd_attention_ref_in(a, work);
    free(work);
}

void nrd_attention_ref_in(const nrd_attention_args *a, void *work)
{
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;
    int32_t dim = kv->head_dim, group = a->n_heads / kv->n_kv_heads, bt = kv->block_tokens;
    int64_t q_stride = a->q_stride ? a->q_stride : (int64_t)a->n_heads * dim;
    int64_t width = (int64_t)a->n_heads * dim;
    size_t block_bytes = nrd_kv_block_bytes(kv->dtype, bt, kv->n_kv_heads, dim);

    double *score = work; /* [max_ctx] */
    double *sum = score + longest(b); /* [dim] */
    float *out = (float *)(void *)(sum + dim); /* [width] */

    for (int32_t s = 0; s < b->n_seqs; s++) {
        const int32_t *table = b->block_table + (int64_t)s * b->block_table_stride;
        for (int32_t i = b->q_start[s]; i < b->q_start[s + 1]; i++) {
            for (int32_t h = 0; h < a->n_heads; h++) {
                double peak = -INFINITY, total = 0;
                memset(sum, 0, (size_t)dim * sizeof *sum);
                for (int32_t p = 0; p < b->ctx_len[s]; p++) {
                    score[p] = -INFINITY;
                    if (table[p / bt] < 0 || !nrd_attention_sees(a, s, i, p)) {
                        continue;
                    }
                    const char *block = (const char *)kv->base + (size_t)table[p / bt] * block_bytes;
                    double dot = 0;
                    for (int32_t d = 0; d < dim; d++) {
                        int64_t k = nrd_kv_k_index(kv, h / group, p % bt, d);
                        dot += (double)nrd_load_f32(a->act_dtype, a->q, i * q_stride + (int64_t)h * dim + d) *
                               (double)nrd_kv_load(kv->dtype, block, k, nrd_kv_scale(kv, h / group, false));
                    }
                    dot *= (double)a->scale;
                    if (a->softcap > 0) {
                        dot = (double)a->softcap * tanh(dot / (double)a->softcap);
                    }
                    if (a->alibi) {
                        dot -= (double)a->alibi[h] * abs(position_of(a, s, p) - b->positions[i]);
                    }
                    if (a->rel_bias) {
                        dot += (double)nrd_attention_rel_bias(a, h, p - b->positions[i]);
                    }
                    score[p] = dot;
                    peak = dot > peak ? dot : peak;
                }
                for (int32_t p = 0; p < b->ctx_len[s]; p++) {
                    if (score[p] == -INFINITY) {
                        continue;
                    }
                    const char *block = (const char *)kv->base + (size_t)table[p / bt] * block_bytes;
                    double e = exp(score[p] - peak);
                    total += e;
                    for (int32_t d = 0; d < dim; d++) {
                        int64_t v = nrd_kv_v_index(kv, h / group, p % bt, d);
                        sum[d] += e * (double)nrd_kv_load(kv->dtype, block, v, nrd_kv_scale(kv, h / group, true));
                    }
                }
                if (a->sink_logits && total > 0) {
                    total += exp((double)a->sink_logits[h] - peak);
                }
                for (int32_t d = 0; d < dim; d++) {
                    out[(int64_t)h * dim + d] = total > 0 ? (float)(sum[d] / total) : 0.0f;
                }
            }
            nrd_store_row(a->out_dtype, a->out, i, width, out, a->out_row_scale);
        }
    }
}
