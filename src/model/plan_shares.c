/* SPDX-License-Identifier: Apache-2.0
 * A rank's share of a weight: which rows and columns of its sources. */
#include "model/plan_internal.h"

#include "base/dtype.h"

#include <stdio.h>
#include <string.h>

/* A rank's share [*row0, *row0 + *n) of `total` rows. */
static void share(const nrd_plan *p, int64_t total, int64_t *row0, int64_t *n)
{
    *n = total / p->spec.tp_size;
    *row0 = *n * p->tp_rank;
}

/* The same of one of its experts. */
static void share_expert(const nrd_plan *p, int64_t total, int64_t *row0, int64_t *n)
{
    *n = total / nrd_spec_moe_tp(&p->spec);
    *row0 = *n * nrd_spec_moe_tp_rank(&p->spec, p->rank);
}

static int64_t first_row(const nrd_plan *p, const nrd_plan_job *j, int64_t rows)
{
    if (j->flags & NRD_RULE_BC_ROWS) {
        return nrd_dim_of(&p->spec, NRD_DIM_RECURRENT_DT);
    }
    return j->flags & NRD_RULE_SECOND_HALF ? rows : j->flags & NRD_RULE_SKIP_TWO ? 2 : 0;
}

/* The row ranges of q, k, v of this rank, in a source where they are stacked. */
static void qkv_shares(const nrd_plan *p, int64_t row0[3], int64_t n[3], int64_t total[3])
{
    const nrd_model_spec *s = &p->spec;
    int64_t d = s->head_dim;
    total[0] = (int64_t)s->n_heads * d;
    total[1] = total[2] = (int64_t)s->n_kv_heads * d;
    share(p, total[0], &row0[0], &n[0]);
    if (s->n_kv_heads >= s->tp_size) {
        share(p, total[1], &row0[1], &n[1]);
    } else { /* several ranks use the same head */
        n[1] = d;
        row0[1] = (int64_t)p->tp_rank * s->n_kv_heads / s->tp_size * d;
    }
    n[2] = n[1];
    row0[2] = row0[1];
}

void nrd_plan_own_kv_heads(const nrd_plan *p, int64_t *out_first, int64_t *out_n)
{
    int64_t row0[3], n[3], total[3];

    qkv_shares(p, row0, n, total);
    *out_first = row0[1] / p->spec.head_dim;
    *out_n = n[1] / p->spec.head_dim;
}

bool nrd_plan_is_one_type(const nrd_plan_job *j)
{
    return j->dtype[0] == j->dtype[1] && j->dtype[1] == j->dtype[2];
}

/* One tensor where the layer's weights are of one type, else three: for weights and biases alike,
 * since who reads an engine looks at the weights only (split_qkv). */
static nrd_error *add_qkv(nrd_plan *p, nrd_plan_job *j, nrd_plan_tensor *t)
{
    int64_t row0[3], n[3], total[3];
    bool stacked = j->n_src == 1;
    char name[NRD_PLAN_MAX_NAME];

    qkv_shares(p, row0, n, total);
    bool grouped = (j->flags & NRD_RULE_GROUPED_QKV) != 0;
    int64_t d = p->spec.head_dim, queries = total[0] / p->spec.n_kv_heads;
    for (int i = 0; i < 3; i++) {
        nrd_plan_part *part = &t->parts[i];
        if (grouped) {
            *part = (nrd_plan_part){.src = j->src[0], .row0 = row0[i], .n_rows = n[i],
                                    .group0 = i ? queries + (i - 1) * d : 0, .group_rows = i ? d : queries,
                                    .group_stride = queries + 2 * d};
            continue;
        }
        if (j->flags & NRD_RULE_QVK_QUARTERS) {
            const int64_t quarter = total[0] / 4;
            *part = (nrd_plan_part){.src = j->src[0], .row0 = row0[i], .n_rows = n[i], .group0 = (3 - i) % 3 * quarter,
                                    .group_rows = quarter, .group_stride = 3 * quarter};
            continue;
        }
        int64_t before = stacked ? (i > 0 ? total[0] : 0) + (i > 1 ? total[1] : 0) : 0;
        before += i > 1 && (j->flags & NRD_RULE_JOINED_KV) ? total[1] : 0;
        part->src = j->src[stacked ? 0 : i];
        part->fill = !stacked && !part->src ? NRD_FILL_ZERO : NRD_FILL_NONE; /* the keys' bias */
        part->row0 = part->fill ? 0 : before + row0[i];
        part->n_rows = n[i];
        if (i == 0 && (j->flags & NRD_RULE_QUERY_ROWS)) {
            part->group_rows = d;
            part->group_stride = 2 * d;
        }
    }
    if (!p->qkv_is_split) {
        t->n_parts = 3;
        /* a bias of several types: float32 holds them all */
        t->dtype = stacked || nrd_plan_is_one_type(j) ? j->dtype[0] : NRD_DTYPE_F32;
        if (stacked && t->parts[0].group_rows == 0 && p->spec.tp_size == 1) { /* one piece, so that it need not be copied */
            t->parts[0].n_rows = total[0] + total[1] + total[2];
            t->n_parts = 1;
        }
        return nrd_plan_add(p, t, j->name);
    }
    const char *at = strstr(j->name, ".qkv.");
    NRD_ASSERT(at, "only qkv weights are divided by heads");
    for (int i = 0; i < 3; i++) {
        nrd_plan_tensor one = *t;
        one.parts[0] = t->parts[i];
        one.n_parts = 1;
        one.dtype = j->dtype[i];
        snprintf(name, sizeof name, "%.*s.%c.%s", (int)(at - j->name), j->name, "qkv"[i], at + 5);
        NRD_TRY(nrd_plan_add(p, &one, name));
    }
    return NULL;
}

/* A norm of q or k: where heads have weights of their own, those of the rank's heads. */
static nrd_error *add_head_norm(nrd_plan *p, nrd_plan_job *j, nrd_plan_tensor *t)
{
    const int which = j->need->shard == NRD_SHARD_Q_NORM ? 0 : 1;
    const int64_t d = p->spec.head_dim;
    nrd_plan_part *part = &t->parts[0];
    int64_t row0[3], n[3], total[3];

    t->is_divided = p->spec.qk_norm_apart || p->spec.qk_norm_wide;
    if (t->is_divided) {
        qkv_shares(p, row0, n, total);
        part->row0 = row0[which];
        part->n_rows = n[which];
    }
    if (j->stack) { /* a source for each head */
        part->stack += part->row0 / d;
        part->stack_rows = d;
        part->row0 = 0;
    }
    return nrd_plan_add(p, t, j->name);
}

/* Where the rows of one of the delta rule's products are that a key head has beside its others. */
static void delta_groups(const nrd_model_spec *s, const char *name, nrd_plan_tensor *t)
{
    const nrd_recurrent_spec *r = &s->recurrent;
    const int64_t heads = r->n_heads / r->n_groups, keys = r->n_state, values = heads * r->head_dim;
    const int64_t stride = 2 * keys + 2 * values;

    if (!strcmp(name, NRD_RECURRENT "in.weight")) {
        const int64_t rows[] = {keys, keys, values};
        for (int i = 2; i >= 0; i--) {
            t->parts[i] = (nrd_plan_part){.src = t->parts[0].src, .n_rows = r->n_groups * rows[i], .group0 = i * keys,
                                          .group_rows = rows[i], .group_stride = stride};
        }
        t->n_parts = 3;
        return;
    }
    nrd_plan_part *part = &t->parts[0];
    const bool is_gate = !strcmp(name, NRD_RECURRENT "gate.weight"), is_alpha = !strcmp(name, NRD_RECURRENT "alpha.weight");
    part->group0 = is_gate ? 2 * keys + values : is_alpha ? heads : 0;
    part->group_rows = is_gate ? values : heads;
    part->group_stride = is_gate ? stride : 2 * heads;
}

nrd_fill nrd_plan_constant_of(const nrd_plan_job *j)
{
    return j->flags & NRD_RULE_ONES                ? NRD_FILL_ONE
           : j->flags & NRD_RULE_ZEROS             ? NRD_FILL_ZERO
           : j->flags & NRD_RULE_SINUSOIDS         ? NRD_FILL_SINUSOIDS
           : j->flags & NRD_RULE_FAIRSEQ_SINUSOIDS ? NRD_FILL_FAIRSEQ_SINUSOIDS
                                                   : NRD_FILL_NONE;
}

nrd_error *nrd_plan_add_shares(nrd_plan *p, nrd_plan_job *j)
{
    const nrd_need *r = j->need;
    const nrd_model_spec *s = &p->spec;
    int64_t rows = nrd_plan_whole_rows(p, r), cols = nrd_dim_of(s, r->cols);
    const nrd_shard shard = nrd_need_shard(r, s);
    nrd_plan_tensor t = {.flags = j->flags, .is_vector = r->cols == NRD_DIM_ONE, .n_parts = 1,
                         .is_divided = shard != NRD_SHARD_NONE};
    nrd_plan_part *part = &t.parts[0];
    int64_t row0[3], n[3], total[3];

    t.cols = cols;
    t.dtype = j->dtype[0];
    part->src = j->src[0];
    part->n_rows = rows;
    part->stack = j->stack;
    part->times = j->times;
    part->fill = nrd_plan_constant_of(j);
    switch (shard) {
    case NRD_SHARD_NONE:
        for (int i = 0; j->n_src > 1 && i < j->n_src; i++) { /* of a state's q, k and v */
            t.parts[i] = (nrd_plan_part){.src = j->src[i], .n_rows = nrd_plan_state_rows(s, i)};
        }
        t.n_parts = j->n_src > 1 ? j->n_src : 1;
        break;
    case NRD_SHARD_Q_NORM:
    case NRD_SHARD_K_NORM:
        return add_head_norm(p, j, &t);
    case NRD_SHARD_ROWS:
        (r->is_stacked ? share_expert : share)(p, rows, &part->row0, &part->n_rows);
        break;
    case NRD_SHARD_COLS:
        (r->is_stacked ? share_expert : share)(p, cols, &part->col0, &t.cols);
        break;
    case NRD_SHARD_QKV:
        return add_qkv(p, j, &t);
    case NRD_SHARD_KV:
        qkv_shares(p, row0, n, total);
        part->row0 = row0[1];
        part->n_rows = n[1];
        break;
    case NRD_SHARD_VOCAB: {
        int64_t each = (rows + s->tp_size - 1) / s->tp_size;
        part->row0 = each * p->tp_rank < rows ? each * p->tp_rank : rows;
        part->n_rows = rows - part->row0 < each ? rows - part->row0 : each;
        if (part->n_rows < each) {
            t.parts[1].fill = NRD_FILL_ZERO;
            t.parts[1].n_rows = each - part->n_rows;
            t.n_parts = 2;
        }
        break;
    }
    }
    part->row0 += first_row(p, j, rows);
    if (j->flags & (NRD_RULE_EVEN_ROWS | NRD_RULE_ODD_ROWS)) {
        part->group0 = j->flags & NRD_RULE_ODD_ROWS ? 1 : 0;
        part->group_rows = 1;
        part->group_stride = 2;
    }
    if (j->flags & (NRD_RULE_HEAD_KEYS | NRD_RULE_HEAD_VALUES)) {
        const bool values = (j->flags & NRD_RULE_HEAD_VALUES) != 0;
        part->group0 = values ? s->latent.nope_dim : 0;
        part->group_rows = values ? s->latent.v_dim : s->latent.nope_dim;
        part->group_stride = s->latent.nope_dim + s->latent.v_dim;
    } else if (j->flags & NRD_RULE_TURNED_HEADS) {
        part->group_rows = s->latent.nope_dim;
    }
    if (j->flags & NRD_RULE_GATE_ROWS) {
        part->group0 = part->group_rows = s->head_dim;
        part->group_stride = 2 * (int64_t)s->head_dim;
    }
    if (j->flags & NRD_RULE_DELTA_GROUPS) {
        delta_groups(s, r->name, &t);
    }
    if (part->src && t.cols != cols && t.dtype == part->src->dtype &&
        (t.cols % nrd_dtype_block(t.dtype) || part->col0 % nrd_dtype_block(t.dtype))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "tensor '%s' (%s) cannot be divided by tp_size %d: %lld columns a rank "
                          "are no multiple of its blocks of %d; use --quantize q8_0 or fewer ranks",
                          j->name, nrd_dtype_name(t.dtype), s->tp_size, (long long)t.cols,
                          nrd_dtype_block(t.dtype));
    }
    if (r->is_stacked) {
        t.n_stacked = t.is_vector ? 0 : nrd_spec_own_experts(s, p->rank);
        t.is_divided = t.is_divided || s->moe.ep_size > 1;
        part->stack = part->stack ? part->stack + nrd_spec_first_expert(s, p->rank) : NULL;
        part->stack_rows = part->n_rows;
        part->n_rows *= nrd_spec_own_experts(s, p->rank);
    }
    return nrd_plan_add(p, &t, j->name);
}
