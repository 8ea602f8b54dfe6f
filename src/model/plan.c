/* SPDX-License-Identifier: Apache-2.0
 * The list of tensors that a checkpoint or an engine will hold, and how each is made. The family's
 * weight rules (model/families) are applied to every layer of this rank: find the source tensors, take the
 * rank's share, choose the type. A checkpoint of our own needs no rules: its tensors are taken as
 * they are. How rows are made of the sources is told in plan_read.c. Called by model/build.c, which writes files. */
#include "model/plan_internal.h"

#include "base/dtype.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/families/family.h"
#include "model/needs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making tensors ---- */

nrd_error *nrd_plan_add(nrd_plan *p, nrd_plan_tensor *t, const char *name)
{
    if (p->n == p->cap) {
        const size_t cap = p->cap ? p->cap * 2 : 256;
        nrd_plan_tensor *grown = realloc(p->tensors, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        p->tensors = grown;
        p->cap = cap;
    }
    t->name = nrd_arena_strndup(&p->arena, name, strlen(name));
    if (!t->name) {
        return nrd_error_no_memory();
    }
    t->has_row_scales = !t->is_vector && nrd_plan_has_row_scales(t->dtype);
    t->rows = 0;
    for (int i = 0; i < t->n_parts; i++) {
        t->rows += t->parts[i].n_rows;
    }
    if (!nrd_dtype_bytes(t->dtype, (uint64_t)t->cols, &t->data_bytes) ||
        !nrd_size_mul(t->data_bytes, (size_t)t->rows, &t->data_bytes)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "%s: rows of %lld elements cannot be kept as %s (blocks of %d)", name,
                          (long long)t->cols, nrd_dtype_name(t->dtype), nrd_dtype_block(t->dtype));
    }
    const nrd_need *need = nrd_need_of_full(name);
    if (need) {
        NRD_TRY(nrd_plan_multiply(&p->spec, need->name, t));
    }
    p->total_bytes += t->data_bytes + (t->has_row_scales ? (uint64_t)t->rows * 4 : 0);
    p->tensors[p->n++] = *t;
    return NULL;
}

/* Replaces '*' by the layer. */
static void expand(char out[NRD_PLAN_MAX_NAME], const char *prefix, const char *pattern, int32_t layer)
{
    const char *star = strchr(pattern, '*');
    if (star) {
        snprintf(out, NRD_PLAN_MAX_NAME, "%s%.*s%d%s", prefix, (int)(star - pattern), pattern, layer,
                 star + 1);
    } else {
        snprintf(out, NRD_PLAN_MAX_NAME, "%s%s", prefix, pattern);
    }
}

const nrd_src_tensor *nrd_plan_use(nrd_plan *p, const char *name)
{
    const nrd_src_tensor *t = nrd_source_find(p->src, 0, name);
    if (t) {
        p->used[t - nrd_source_tensor_at(p->src, 0, 0)] = 1;
    }
    return t;
}

static const nrd_src_tensor *find_used(nrd_plan *p, const char *prefix, const char *pattern, int32_t layer)
{
    char name[NRD_PLAN_MAX_NAME];

    expand(name, prefix, pattern, layer);
    return nrd_plan_use(p, name);
}

static const nrd_src_tensor *lookup_one(nrd_plan *p, const char *pattern, int32_t layer)
{
    static const char *const no_prefix[] = {"", NULL};
    const bool hf = nrd_source_get_kind(p->src) == NRD_SOURCE_HF, of_model = nrd_str_has_prefix(pattern, "model.");
    const nrd_src_tensor *t = NULL;

    for (const char *const *prefix = hf ? nrd_source_arch(p->src)->hf_prefixes : no_prefix; *prefix && !t; prefix++) {
        /* "model.language_model." stands where others have "model." */
        t = find_used(p, *prefix, of_model && nrd_str_has_prefix(*prefix, "model.") ? pattern + 6 : pattern, layer);
    }
    /* folders that were saved without a head have not got it */
    return t || !hf || !of_model ? t : find_used(p, "", pattern + 6, layer);
}

/* `pattern`: one name, or several with '|' between them. */
static const nrd_src_tensor *lookup(nrd_plan *p, const char *pattern, int32_t layer)
{
    char one[NRD_PLAN_MAX_NAME];
    const nrd_src_tensor *t = NULL;

    for (const char *at = pattern; *at && !t;) {
        size_t n = strcspn(at, "|");
        snprintf(one, sizeof one, "%.*s", (int)n, at);
        t = lookup_one(p, one, layer);
        at += n + (at[n] == '|');
    }
    return t;
}

static nrd_error *check_shape(const nrd_plan *p, const nrd_src_tensor *t, int64_t rows,
                              int64_t cols, bool is_vector, bool turned)
{
    int64_t want[2] = {turned ? cols : rows, turned ? rows : cols};
    bool ok = is_vector ? t->n_dims == 1 && t->dims[0] == rows
                        : t->n_dims == 2 && t->dims[0] == want[0] && t->dims[1] == want[1];
    if (!ok) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: tensor '%s' has shape [%lld%s%lld], expected [%lld%s%lld] by the "
                          "model's configuration",
                          nrd_source_path(p->src), t->name, (long long)t->dims[0],
                          t->n_dims > 1 ? ", " : " x ", (long long)(t->n_dims > 1 ? t->dims[1] : 1),
                          (long long)want[0], is_vector ? " x " : ", ",
                          (long long)(is_vector ? 1 : want[1]));
    }
    if (!t->packed && !nrd_plan_is_float(t->dtype) && !nrd_dtype_is_quant(t->dtype) && t->dtype != NRD_DTYPE_F64) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "%s: tensor '%s' has type %s, which cannot be used for weights; types that "
                          "can: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, "
                          "IQ4_XS, MXFP4", nrd_source_path(p->src), t->name, t->type_name);
    }
    if (nrd_dtype_is_quant(t->dtype) && turned) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%s' of type %s cannot be transposed",
                          nrd_source_path(p->src), t->name, t->type_name);
    }
    return NULL;
}

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

typedef struct {
    const nrd_weight_rule *rule;
    const nrd_need *need; /* of rule->dst */
    uint32_t flags;       /* the rule's, and what follows from need, family and source */
    int32_t layer, out_layer; /* -1: none */
    const nrd_src_tensor **stack; /* [experts] of a stacked weight, [heads] of a norm; its first is src[0] */
    char name[NRD_PLAN_MAX_NAME];
    int n_src;
    const nrd_src_tensor *src[3];
    nrd_dtype dtype[3]; /* of each part */
} job;

/* Rows of the whole weight. */
static int64_t whole_rows(const nrd_plan *p, const nrd_need *n)
{
    return nrd_dim_of(&p->spec, n->shard == NRD_SHARD_VOCAB ? NRD_DIM_VOCAB : n->rows);
}

/* Rows that its source has. */
static int64_t source_rows(const nrd_plan *p, const job *j)
{
    int64_t rows = whole_rows(p, j->need);
    if (j->flags & (NRD_RULE_FIRST_HALF | NRD_RULE_SECOND_HALF | NRD_RULE_EVEN_ROWS | NRD_RULE_ODD_ROWS)) {
        return 2 * rows;
    }
    if (j->flags & (NRD_RULE_HEAD_KEYS | NRD_RULE_HEAD_VALUES)) { /* both */
        return nrd_dim_of(&p->spec, NRD_DIM_KEYS) + nrd_dim_of(&p->spec, NRD_DIM_VALUES);
    }
    if (j->flags & NRD_RULE_TURNED_HEADS) {
        return (int64_t)p->spec.n_heads * p->spec.latent.kv_rank;
    }
    if (j->flags & NRD_RULE_GATE_ROWS) { /* the queries, too */
        return 2 * rows;
    }
    if (j->flags & NRD_RULE_DELTA_GROUPS) {
        const nrd_recurrent_spec *r = &p->spec.recurrent;
        const bool small = rows == r->n_heads && j->need->rows == NRD_DIM_RECURRENT_HEADS;
        return small ? 2 * rows : 2 * (int64_t)r->n_groups * r->n_state + 2 * (int64_t)r->n_heads * r->head_dim;
    }
    if (j->flags & (NRD_RULE_DT_ROWS | NRD_RULE_BC_ROWS)) {
        return nrd_dim_of(&p->spec, NRD_DIM_RECURRENT_DT) + nrd_dim_of(&p->spec, NRD_DIM_RECURRENT_BC);
    }
    return j->flags & NRD_RULE_SKIP_TWO ? rows + 2 : rows;
}

static int64_t source_cols(const nrd_plan *p, const job *j)
{
    return j->flags & NRD_RULE_TURNED_HEADS ? p->spec.latent.nope_dim : nrd_dim_of(&p->spec, j->need->cols);
}

static int64_t first_row(const nrd_plan *p, const job *j, int64_t rows)
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

static bool one_type(const job *j)
{
    return j->dtype[0] == j->dtype[1] && j->dtype[1] == j->dtype[2];
}

/* One tensor where the layer's weights are of one type, else three: for weights and biases alike,
 * since who reads an engine looks at the weights only (split_qkv). */
static nrd_error *add_qkv(nrd_plan *p, job *j, nrd_plan_tensor *t)
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
        int64_t before = stacked ? (i > 0 ? total[0] : 0) + (i > 1 ? total[1] : 0) : 0;
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
        t->dtype = stacked || one_type(j) ? j->dtype[0] : NRD_DTYPE_F32;
        if (stacked && !grouped && p->spec.tp_size == 1) { /* one piece, so that it need not be copied */
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
static nrd_error *add_head_norm(nrd_plan *p, job *j, nrd_plan_tensor *t)
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

/* What stands for a weight that no source has. */
static nrd_fill constant_of(const job *j)
{
    return j->flags & NRD_RULE_ONES                ? NRD_FILL_ONE
           : j->flags & NRD_RULE_ZEROS             ? NRD_FILL_ZERO
           : j->flags & NRD_RULE_SINUSOIDS         ? NRD_FILL_SINUSOIDS
           : j->flags & NRD_RULE_FAIRSEQ_SINUSOIDS ? NRD_FILL_FAIRSEQ_SINUSOIDS
                                                   : NRD_FILL_NONE;
}

static nrd_error *add_sharded(nrd_plan *p, job *j)
{
    const nrd_need *r = j->need;
    const nrd_model_spec *s = &p->spec;
    int64_t rows = whole_rows(p, r), cols = nrd_dim_of(s, r->cols);
    nrd_plan_tensor t = {.flags = j->flags, .is_vector = r->cols == NRD_DIM_ONE, .n_parts = 1,
                         .is_divided = r->shard != NRD_SHARD_NONE};
    nrd_plan_part *part = &t.parts[0];

    t.cols = cols;
    t.dtype = j->dtype[0];
    part->src = j->src[0];
    part->n_rows = rows;
    part->stack = j->stack;
    part->fill = constant_of(j);
    switch (r->shard) {
    case NRD_SHARD_NONE:
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

/* ---- experts ---- */

static const nrd_src_tensor *lookup_expert(nrd_plan *p, const char *pattern, int32_t layer, int32_t expert)
{
    const char *hash = strchr(pattern, '#');
    char name[NRD_PLAN_MAX_NAME];

    snprintf(name, sizeof name, "%.*s%d%s", (int)(hash - pattern), pattern, expert, hash + 1);
    return lookup(p, name, layer);
}

/* One of `n` matrices or vectors that lie in a source behind each other. */
static nrd_src_tensor one_of(const nrd_src_tensor *all, int32_t i, int32_t n, bool is_vector)
{
    nrd_src_tensor t = *all;
    const bool apart = all->n_dims == 3;

    t.n_dims = is_vector ? 1 : 2;
    t.dims[0] = apart || is_vector ? all->dims[1] : all->dims[0] / n;
    t.dims[1] = is_vector ? 0 : apart ? all->dims[2] : all->dims[1];
    t.data_bytes = all->data_bytes / (size_t)n;
    if (all->packed) {
        t.packed_row0 = all->packed_row0 + (int64_t)i * t.dims[0];
    } else {
        t.data = (const char *)all->data + (size_t)i * t.data_bytes;
    }
    return t;
}

/* The experts of a stacked weight: a source each, or all in one. */
static nrd_error *find_experts(nrd_plan *p, job *j)
{
    const int32_t n = p->spec.moe.n_experts;
    const char *pattern = j->rule->src[0];
    const bool each = strchr(pattern, '#') != NULL, is_vector = j->need->cols == NRD_DIM_ONE;
    const nrd_src_tensor *all = each ? NULL : lookup(p, pattern, j->layer);
    if (all && all->packed) { /* readers give [out, in], whatever the family's own files have */
        j->flags &= ~(uint32_t)NRD_RULE_TRANSPOSE;
    }
    nrd_src_tensor *own = all ? nrd_arena_alloc(&p->arena, (size_t)n * sizeof *own) : NULL;

    j->stack = nrd_arena_alloc(&p->arena, (size_t)n * sizeof *j->stack);
    if (!j->stack || (all && !own)) {
        return nrd_error_no_memory();
    }
    const bool apart = all && (all->n_dims == 3 || is_vector); /* else one below the other */
    if (all && (apart ? all->dims[0] != n || (is_vector && all->n_dims != 2) : all->n_dims != 2 || all->dims[0] % n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' of %lld rows does not hold %d experts",
                          nrd_source_path(p->src), all->name, (long long)all->dims[0], n);
    }
    for (int32_t e = 0; e < n; e++) {
        if (all) {
            own[e] = one_of(all, e, n, is_vector);
        }
        j->stack[e] = all ? &own[e] : each ? lookup_expert(p, pattern, j->layer, e) : NULL;
        if (!j->stack[e]) {
            char name[NRD_PLAN_MAX_NAME];
            expand(name, "", pattern, j->layer);
            return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: tensor '%s' of expert %d is missing",
                              nrd_source_path(p->src), name, e);
        }
        NRD_TRY(check_shape(p, j->stack[e], source_rows(p, j), nrd_dim_of(&p->spec, j->need->cols), is_vector,
                            (j->flags & NRD_RULE_TRANSPOSE) != 0));
        if (j->stack[e]->dtype != j->stack[0]->dtype) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%s' has type %s, that of expert 0 %s",
                              nrd_source_path(p->src), j->stack[e]->name, j->stack[e]->type_name,
                              j->stack[0]->type_name);
        }
    }
    j->n_src = 1;
    j->src[0] = j->stack[0];
    return NULL;
}

/* The norm's sources of each head. */
static nrd_error *find_heads(nrd_plan *p, job *j)
{
    const bool is_q = j->need->shard == NRD_SHARD_Q_NORM;
    const int32_t n = is_q ? p->spec.n_heads : p->spec.n_kv_heads;

    j->stack = nrd_arena_alloc(&p->arena, (size_t)n * sizeof *j->stack);
    if (!j->stack) {
        return nrd_error_no_memory();
    }
    for (int32_t h = 0; h < n; h++) {
        j->stack[h] = lookup_expert(p, j->rule->src[0], j->layer, h);
        if (!j->stack[h]) {
            char name[NRD_PLAN_MAX_NAME];
            expand(name, "", j->rule->src[0], j->layer);
            return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: tensor '%s' of head %d is missing", nrd_source_path(p->src), name, h);
        }
        NRD_TRY(check_shape(p, j->stack[h], p->spec.head_dim, 1, true, false));
    }
    j->n_src = 1;
    j->src[0] = j->stack[0];
    return NULL;
}

/* A vector that the file has as rows. */
static nrd_error *as_vector(nrd_plan *p, const nrd_src_tensor **t)
{
    nrd_src_tensor *flat = nrd_arena_alloc(&p->arena, sizeof *flat);
    if (!flat) {
        return nrd_error_no_memory();
    }
    *flat = **t;
    flat->n_dims = 1;
    flat->dims[0] = (*t)->dims[0] * (*t)->dims[1];
    flat->dims[1] = 0;
    *t = flat;
    return NULL;
}

/* A matrix of which the file has each head's rows apart. */
static nrd_error *as_one(nrd_plan *p, const nrd_src_tensor **t)
{
    nrd_src_tensor *one = nrd_arena_alloc(&p->arena, sizeof *one);
    if (!one) {
        return nrd_error_no_memory();
    }
    *one = **t;
    if (one->n_dims == 3 && one->dims[0] == p->spec.n_heads && one->dims[1] <= INT32_MAX) {
        one->n_dims = 2;
        one->dims[0] *= one->dims[1];
        one->dims[1] = one->dims[2];
    }
    *t = one;
    return NULL;
}

/* A matrix of one row that the file has as a vector, or one for each channel of a convolution, [channels, 1, kernel]. */
static nrd_error *as_rows(nrd_plan *p, const nrd_src_tensor **t)
{
    nrd_src_tensor *row = nrd_arena_alloc(&p->arena, sizeof *row);
    if (!row) {
        return nrd_error_no_memory();
    }
    *row = **t;
    row->dims[1] = row->n_dims == 3 ? row->dims[2] : row->dims[0];
    row->dims[0] = row->n_dims == 3 ? row->dims[0] : 1;
    row->n_dims = 2;
    *t = row;
    return NULL;
}

/* A convolution [out, in, kernel] as rows; their order is changed as they are read. */
static nrd_error *as_kernels(nrd_plan *p, const nrd_src_tensor **t)
{
    nrd_src_tensor *rows = nrd_arena_alloc(&p->arena, sizeof *rows);
    if (!rows) {
        return nrd_error_no_memory();
    }
    *rows = **t;
    if (rows->n_dims == 3 && rows->dims[2] == NRD_PLAN_KERNEL && rows->dims[1] <= INT32_MAX) {
        rows->n_dims = 2;
        rows->dims[1] *= NRD_PLAN_KERNEL;
    }
    *t = rows;
    return NULL;
}

static nrd_error *find_sources(nrd_plan *p, job *j)
{
    const nrd_weight_rule *r = j->rule;
    int64_t kv = nrd_dim_of(&p->spec, NRD_DIM_KV);
    int64_t part_rows[3] = {nrd_dim_of(&p->spec, NRD_DIM_Q), kv, kv};
    int64_t cols = source_cols(p, j);
    bool vector = j->need->cols == NRD_DIM_ONE;

    if (j->need->is_stacked) {
        return find_experts(p, j);
    }
    if (r->src[0] && strchr(r->src[0], '#')) {
        return find_heads(p, j);
    }
    for (j->n_src = 0; j->n_src < 3 && r->src[j->n_src]; j->n_src++) {
        if (j->n_src == 1 && (j->flags & NRD_RULE_NO_KEYS)) {
            continue;
        }
        const nrd_src_tensor *t = lookup(p, r->src[j->n_src], j->layer);
        if (!t) {
            char name[NRD_PLAN_MAX_NAME];
            expand(name, "", r->src[j->n_src], j->layer);
            return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: tensor '%s' is missing",
                              nrd_source_path(p->src), name);
        }
        j->src[j->n_src] = t;
    }
    if (j->src[0]->packed) { /* readers give [out, in], whatever the family's own files have */
        j->flags &= ~(uint32_t)NRD_RULE_TRANSPOSE;
    }
    for (int i = 0; i < j->n_src; i++) {
        int64_t rows = j->n_src > 1 ? part_rows[i] : source_rows(p, j);
        rows *= i == 0 && (j->flags & NRD_RULE_QUERY_ROWS) ? 2 : 1;
        const nrd_src_tensor *t = j->src[i];
        if (!t) { /* the keys' bias */
            continue;
        }
        if (j->flags & NRD_RULE_KERNEL_LAST) {
            NRD_TRY(as_kernels(p, &j->src[i]));
        }
        if ((j->need->rows == NRD_DIM_ONE && !vector && t->n_dims == 1) ||
            (j->need->cols == NRD_DIM_RECURRENT_KERNEL && t->n_dims == 3 && t->dims[1] == 1)) {
            NRD_TRY(as_rows(p, &j->src[i]));
        }
        if (vector && j->src[i]->n_dims == 2 && j->src[i]->dims[0] > 0 && rows % j->src[i]->dims[0] == 0 &&
            j->src[i]->dims[1] == rows / j->src[i]->dims[0]) {
            NRD_TRY(as_vector(p, &j->src[i]));
        }
        if (j->flags & NRD_RULE_HEADS_APART) {
            NRD_TRY(as_one(p, &j->src[i]));
        }
        NRD_TRY(check_shape(p, j->src[i], rows, cols, vector, (j->flags & NRD_RULE_TRANSPOSE) != 0));
    }
    return NULL;
}

static nrd_dtype part_dtype(nrd_plan *p, const job *j, const nrd_src_tensor *t)
{
    const uint32_t flags = j->flags;
    nrd_dtype src = t ? t->dtype : p->spec.dtype;
    int64_t cols = nrd_dim_of(&p->spec, j->need->cols);
    if (j->need->shard == NRD_SHARD_COLS) {
        cols /= j->need->is_stacked ? nrd_spec_moe_tp(&p->spec) : p->spec.tp_size;
    }
    if (flags & NRD_RULE_LINEAR) {
        return nrd_plan_linear_dtype(p, j->name, src, cols);
    }
    /* 1 + w would lose bits of a small w in 16 bits; the factors of a rope are always float32 */
    if ((flags & NRD_RULE_ADD_ONE) || !strcmp(j->name, "rope_factors") || nrd_plan_is_always_f32(j->name)) {
        return NRD_DTYPE_F32;
    }
    if (j->need->cols == NRD_DIM_ONE && nrd_dtype_is_quant(src)) {
        return NRD_DTYPE_F32;
    }
    if (nrd_plan_is_map(j->name)) {
        return nrd_plan_map_dtype(p, src);
    }
    return nrd_plan_plain_dtype(p, src);
}

/* A rule with what follows from the table of needs, from the family and from the kind of the source. */
static job job_of(const nrd_plan *p, const nrd_weight_rule *r, int32_t layer, int32_t out_layer)
{
    job j = {.rule = r, .need = nrd_need_of(r->dst), .flags = r->flags, .layer = layer, .out_layer = out_layer};
    nrd_source_kind kind = nrd_source_get_kind(p->src);

    NRD_ASSERT(j.need, "a rule makes a weight of the table of needs");
    bool embedding = !strcmp(r->dst, "transformer.vocab_embedding.weight");
    bool norm = j.need->cols == NRD_DIM_ONE && strstr(r->dst, "ln_f.weight");
    norm = norm || strstr(r->dst, "layernorm.weight");
    if (j.need->is_linear || (embedding && p->spec.tied_embeddings)) { /* the LM head multiplies by it */
        j.flags |= NRD_RULE_LINEAR;
    }
    if (norm && kind == NRD_SOURCE_HF && (nrd_source_arch(p->src)->traits & T_NORM_PLUS_ONE)) {
        j.flags |= NRD_RULE_ADD_ONE;
    }
    if (p->spec.unit_head && !strcmp(r->dst, "lm_head.weight")) {
        j.flags |= NRD_RULE_UNIT_ROWS;
    }
    if (kind == NRD_SOURCE_DUMMY) {
        j.flags &= NRD_RULE_LINEAR | NRD_RULE_ONES | NRD_RULE_SINUSOIDS | NRD_RULE_FAIRSEQ_SINUSOIDS;
    }
    if (j.need->is_layered) {
        snprintf(j.name, sizeof j.name, NRD_LAYER_PREFIX "%s", out_layer, r->dst);
    } else {
        snprintf(j.name, sizeof j.name, "%s", r->dst);
    }
    return j;
}

static bool is_planned(const nrd_plan *p, const char *name)
{
    for (size_t i = p->n; i-- > 0;) {
        if (!strcmp(p->tensors[i].name, name)) {
            return true;
        }
    }
    return false;
}

/* Of rules for the same weight of sources that differ, the first whose tensor is there. */
static bool is_left_out(nrd_plan *p, const job *j)
{
    if (!(j->rule->flags & NRD_RULE_IF_THERE)) {
        return false;
    }
    if (nrd_source_get_kind(p->src) == NRD_SOURCE_DUMMY) {
        return is_planned(p, j->name);
    }
    return !lookup(p, j->rule->src[0], j->layer) || is_planned(p, j->name);
}

static bool applies(const nrd_plan *p, const job *j)
{
    /* who asks for weights takes the embedding where there is no head */
    if (j->need->is_layered && !nrd_need_is_in(j->need, &p->spec, j->layer - p->source_layer)) {
        return false;
    }
    return strcmp(j->rule->dst, "lm_head.weight") ? nrd_when_holds(&p->spec, j->need->when)
                                                  : !p->spec.tied_embeddings;
}

/* Whether the weights of q, k and v of a layer differ in type, so that no single tensor holds them. */
static nrd_error *split_qkv(nrd_plan *p, const nrd_weight_rule *rules, int32_t layer, bool *out)
{
    *out = false;
    for (; rules->dst; rules++) {
        job j = job_of(p, rules, layer, layer);
        if (j.need->shard != NRD_SHARD_QKV || j.need->cols == NRD_DIM_ONE || !applies(p, &j) || is_left_out(p, &j)) {
            continue;
        }
        NRD_TRY(find_sources(p, &j));
        for (int i = 0; i < j.n_src; i++) {
            j.dtype[i] = part_dtype(p, &j, j.src[i]);
        }
        *out = j.n_src > 1 && !one_type(&j);
    }
    return NULL;
}

/* Which constant stands for a weight that a dummy source has not got. */
static nrd_fill dummy_fill(const job *j)
{
    if (strstr(j->name, "." NRD_RECURRENT "A")) { /* a state that a positive A lets grow would soon be infinite */
        return NRD_FILL_ZERO;
    }
    return j->need->cols != NRD_DIM_ONE ? NRD_FILL_RANDOM : strstr(j->name, ".bias") ? NRD_FILL_ZERO : NRD_FILL_ONE;
}

static nrd_error *apply_rule(nrd_plan *p, job *j)
{
    bool dummy = nrd_source_get_kind(p->src) == NRD_SOURCE_DUMMY;

    if (dummy || constant_of(j) != NRD_FILL_NONE) {
        j->n_src = 1;
    } else {
        NRD_TRY(find_sources(p, j));
    }
    for (int i = 0; i < j->n_src; i++) {
        j->dtype[i] = part_dtype(p, j, j->src[i] ? j->src[i] : j->src[0]);
    }
    size_t first = p->n;
    NRD_TRY(add_sharded(p, j));
    if (!strcmp(j->rule->dst, "attention.qkv.weight") && j->src[0]) {
        NRD_TRY(nrd_plan_add_kv_range(p, j->src[0]->name, j->out_layer));
    }
    for (size_t i = first; dummy && i < p->n; i++) {
        for (int k = 0; k < p->tensors[i].n_parts; k++) {
            nrd_plan_part *part = &p->tensors[i].parts[k];
            part->fill = part->fill == NRD_FILL_NONE ? dummy_fill(j) : part->fill;
        }
    }
    return NULL;
}

/* The LM head of a model whose head is its embedding, divided over tensor-parallel ranks. */
static const nrd_weight_rule *tied_head(const nrd_weight_rule *rules, nrd_weight_rule *out)
{
    for (; rules->dst; rules++) {
        if (!strcmp(rules->dst, "transformer.vocab_embedding.weight")) {
            *out = *rules;
            out->dst = "lm_head.weight";
            return out;
        }
    }
    return NULL;
}

static bool on_this_stage(const nrd_plan *p, const nrd_weight_rule *r)
{
    bool first = p->pp_rank == 0, last = p->pp_rank == p->spec.pp_size - 1;
    if (!strcmp(r->dst, "transformer.vocab_embedding.weight")) {
        return first || (last && p->spec.tied_embeddings);
    }
    if (!strcmp(r->dst, "transformer.position_embedding.weight") ||
        nrd_str_has_prefix(r->dst, "transformer.ln_embed") || nrd_str_has_prefix(r->dst, NRD_CLASSIFIER) ||
        nrd_str_has_prefix(r->dst, NRD_PROJECTION)) {
        return first;
    }
    return !strcmp(r->dst, "rope_factors") || last;
}

typedef enum { RULES_FRONT, RULES_LAYER, RULES_BACK } rule_group;

static rule_group group_of(const nrd_weight_rule *r)
{
    const nrd_need *n = nrd_need_of(r->dst);
    bool back = nrd_str_has_prefix(r->dst, "transformer.ln_f") ||
                nrd_str_has_prefix(r->dst, "lm_head") || nrd_str_has_prefix(r->dst, NRD_CLASSIFIER) ||
                nrd_str_has_prefix(r->dst, NRD_PROJECTION);
    return n && n->is_layered ? RULES_LAYER : back ? RULES_BACK : RULES_FRONT;
}

/* The rules of one group; `layer` counts from this stage's first. */
static nrd_error *apply_rules(nrd_plan *p, const nrd_weight_rule *rules, int32_t layer,
                              rule_group group, bool split_head)
{
    const int32_t first = p->source_layer + p->spec.n_layers / p->spec.pp_size * p->pp_rank;
    if (group == RULES_LAYER && nrd_source_get_kind(p->src) != NRD_SOURCE_DUMMY) {
        NRD_TRY(split_qkv(p, rules, first + layer, &p->qkv_is_split));
    }
    for (const nrd_weight_rule *r = rules; r->dst; r++) {
        job j = job_of(p, r, first + layer, layer);
        if (group_of(r) != group || !applies(p, &j) || (group != RULES_LAYER && !on_this_stage(p, r)) ||
            (split_head && !strcmp(r->dst, "lm_head.weight")) || is_left_out(p, &j)) {
            continue;
        }
        NRD_TRY(apply_rule(p, &j));
    }
    return NULL;
}

/* A classifier whose rows are those of one or two tokens in the LM head. */
static nrd_error *add_token_rows(nrd_plan *p, const nrd_weight_rule *rules)
{
    const nrd_classifier_spec *c = &p->spec.classifier;
    const bool tied = nrd_source_spec(p->src)->tied_embeddings;
    nrd_plan_tensor t = {.cols = p->spec.hidden, .n_parts = c->difference ? 2 : 1};

    while (rules->dst && strcmp(rules->dst, tied ? "transformer.vocab_embedding.weight" : "lm_head.weight") != 0) {
        rules++;
    }
    if (!rules->dst || (rules->flags & NRD_RULE_TRANSPOSE) || nrd_source_get_kind(p->src) == NRD_SOURCE_DUMMY) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: scores from tokens of this model's LM head", nrd_source_path(p->src));
    }
    if (p->pp_rank > 0) {
        return NULL;
    }
    job j = job_of(p, rules, -1, -1);
    NRD_TRY(find_sources(p, &j));
    t.dtype = nrd_plan_plain_dtype(p, j.src[0]->dtype);
    for (int i = 0; i < t.n_parts; i++) {
        t.parts[i] = (nrd_plan_part){.src = j.src[0], .row0 = c->token_ids[i], .n_rows = 1};
    }
    return nrd_plan_add(p, &t, NRD_CLASSIFIER "out.weight");
}

static nrd_error *plan_from_rules(nrd_plan *p)
{
    const nrd_arch *a = nrd_source_arch(p->src);
    bool hf_names = nrd_source_get_kind(p->src) != NRD_SOURCE_GGUF;
    const nrd_weight_rule *rules = hf_names ? a->hf_rules : a->gguf_rules;
    int32_t per_stage = p->spec.n_layers / p->spec.pp_size;
    nrd_weight_rule head;
    /* With several ranks the head is divided and can no longer be the embedding. */
    const bool split_head = p->spec.tied_embeddings && p->spec.tp_size > 1;

    if (split_head) {
        p->spec.tied_embeddings = false;
    }
    if (p->spec.mtp) {
        NRD_TRY(apply_rules(p, hf_names ? nrd_hf_mtp_rules : nrd_gguf_mtp_rules, 0, RULES_FRONT, split_head));
    }
    /* In the order of use, so that loading reads the file from front to back. */
    NRD_TRY(apply_rules(p, rules, -1, RULES_FRONT, split_head));
    for (int32_t i = 0; i < per_stage; i++) {
        NRD_TRY(apply_rules(p, rules, i, RULES_LAYER, split_head));
    }
    NRD_TRY(apply_rules(p, rules, -1, RULES_BACK, split_head));
    if (p->spec.n_projections > 0) {
        NRD_TRY(apply_rules(p, nrd_hf_projection_rules, -1, RULES_BACK, split_head));
    }
    if (p->spec.classifier.from_tokens) {
        NRD_TRY(add_token_rows(p, rules));
    } else if (hf_names && !p->spec.encoder) {
        NRD_TRY(apply_rules(p, nrd_hf_score_rules, -1, RULES_BACK, split_head));
    }
    if (split_head && p->pp_rank == p->spec.pp_size - 1) {
        job j = job_of(p, tied_head(rules, &head), -1, 0);
        NRD_TRY(apply_rule(p, &j));
    }
    return NULL;
}

static nrd_error *add_ready(nrd_plan *p, const nrd_src_tensor *t)
{
    nrd_plan_tensor out = {.n_parts = 1, .is_vector = t->n_dims == 1, .dtype = t->dtype};
    if (t->n_dims < 1 || t->n_dims > 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' has %d dimensions, expected 1 "
                          "or 2", nrd_source_path(p->src), t->name, t->n_dims);
    }
    if (nrd_str_has_suffix(t->name, ".per_channel_scale")) {
        return NULL; /* comes with its weight */
    }
    bool tied = p->spec.tied_embeddings && strstr(t->name, "vocab_embedding");
    if (!out.is_vector && (!strstr(t->name, "_embedding.") || tied)) {
        out.flags = NRD_RULE_LINEAR;
    }
    const nrd_need *need = nrd_need_of_full(t->name);
    if (need && need->is_layered && !need->is_linear) {
        out.flags = 0;
    }
    out.n_stacked = need && need->is_stacked && !out.is_vector ? nrd_spec_own_experts(&p->spec, p->rank) : 0;
    out.cols = out.is_vector ? 1 : t->dims[1];
    out.parts[0] = (nrd_plan_part){.src = t, .n_rows = t->dims[0]};
    if (nrd_plan_has_row_scales(t->dtype) && !nrd_str_has_suffix(t->name, ".weight")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: '%s' has type %s; only weights can have it",
                          nrd_source_path(p->src), t->name, nrd_dtype_name(t->dtype));
    }
    if (nrd_plan_is_always_f32(t->name)) {
        out.dtype = NRD_DTYPE_F32;
    } else if (!nrd_plan_has_row_scales(t->dtype)) {
        out.dtype = out.flags & NRD_RULE_LINEAR ? nrd_plan_linear_dtype(p, t->name, t->dtype, out.cols)
                                                : nrd_plan_plain_dtype(p, t->dtype);
    } else if (p->opt.quantize != NRD_DTYPE_NONE && p->opt.quantize != t->dtype) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: '%s' is already %s; quantize the original "
                          "model instead", nrd_source_path(p->src), t->name,
                          nrd_dtype_name(t->dtype));
    }
    return nrd_plan_add(p, &out, t->name);
}

static int by_place(const void *a, const void *b)
{
    const nrd_src_tensor *x = *(const nrd_src_tensor *const *)a, *y = *(const nrd_src_tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

/* A checkpoint is already what a rank needs; only types may change. Taken in the order of the file. */
static nrd_error *plan_from_checkpoint(nrd_plan *p)
{
    nrd_error *err = NULL;
    const nrd_src_tensor **order = NULL;
    size_t n = nrd_source_n_tensors(p->src, p->rank);

    NRD_NEW_GOTO(order, n, err, done);
    for (size_t i = 0; i < n; i++) {
        order[i] = nrd_source_tensor_at(p->src, p->rank, i);
    }
    qsort(order, n, sizeof *order, by_place);
    for (size_t i = 0; i < n && !err; i++) {
        err = add_ready(p, order[i]);
    }
done:
    free(order);
    return err;
}

static const char *algo_of(nrd_dtype t)
{
    switch (t) {
    case NRD_DTYPE_I8:
        return "W8A16";
    case NRD_DTYPE_F8_E4M3:
        return "FP8";
    default:
        return nrd_dtype_is_quant(t) ? "GGUF" : "";
    }
}

static void set_quant_algo(nrd_plan *p)
{
    const char *algo = "";
    for (size_t i = 0; i < p->n; i++) {
        if ((p->tensors[i].flags & NRD_RULE_LINEAR) && *algo_of(p->tensors[i].dtype)) {
            algo = algo_of(p->tensors[i].dtype);
            if (!strstr(p->tensors[i].name, "lm_head") && !strstr(p->tensors[i].name, "_embedding")) {
                break; /* a layer's weight says more than the head */
            }
        }
    }
    snprintf(p->spec.quant_algo, sizeof p->spec.quant_algo, "%s", algo);
}

static nrd_error *list_unused(nrd_plan *p)
{
    nrd_error *err = NULL;
    size_t n = nrd_source_n_tensors(p->src, 0);

    NRD_NEW_GOTO(p->unused, n, err, fail);
    for (size_t i = 0; i < n; i++) {
        if (!p->used[i] && !nrd_source_is_mtp(p->src, nrd_source_tensor_at(p->src, 0, i)->name)) {
            p->unused[p->n_unused++] = nrd_source_tensor_at(p->src, 0, i)->name;
        }
    }
fail:
    return err;
}

/* Sums of uniform numbers are near enough to a normal distribution of deviation 0.02, the usual
 * initialisation; what matters is that no kernel meets only zeros. */
static nrd_error *fill_pool(nrd_plan *p)
{
    nrd_error *err = NULL;
    NRD_NEW_GOTO(p->pool, NRD_PLAN_POOL, err, fail);
    for (uint64_t i = 0; i < NRD_PLAN_POOL; i++) {
        uint64_t u = nrd_hash_u64(nrd_source_seed(p->src), i);
        double sum = (double)(u & 0xffff) + (double)(u >> 16 & 0xffff) + (double)(u >> 32 & 0xffff) +
                     (double)(u >> 48);
        p->pool[i] = (float)((sum / 65535.0 - 2.0) * 1.7320508 * 0.02);
    }
fail:
    return err;
}

/* A checkpoint is already divided; what the caller asked for must be that. */
static nrd_error *choose_ranks(nrd_plan *p)
{
    const nrd_plan_options *o = &p->opt;
    nrd_model_spec *s = &p->spec;

    if (nrd_source_get_kind(p->src) != NRD_SOURCE_CHECKPOINT) {
        s->tp_size = o->tp_size ? o->tp_size : 1;
        s->pp_size = o->pp_size ? o->pp_size : 1;
        s->moe.ep_size = o->moe_ep_size ? o->moe_ep_size : 1;
        return NULL;
    }
    if ((o->tp_size && o->tp_size != s->tp_size) || (o->pp_size && o->pp_size != s->pp_size) ||
        (o->moe_ep_size && o->moe_ep_size != s->moe.ep_size)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s was converted for tp_size %d, pp_size %d and moe_ep_size %d; "
                          "another division needs the original model", nrd_source_path(p->src), s->tp_size, s->pp_size,
                          s->moe.ep_size);
    }
    return NULL;
}

nrd_error *nrd_plan_make(nrd_plan **out, const nrd_source *src, const nrd_plan_options *opt,
                         int32_t rank)
{
    nrd_error *err = NULL;
    nrd_plan *p = NULL;
    bool checkpoint = nrd_source_get_kind(src) == NRD_SOURCE_CHECKPOINT;

    *out = NULL;
    NRD_NEW_GOTO(p, 1, err, fail);
    p->src = src;
    p->opt = *opt;
    p->spec = *nrd_source_spec(src);
    p->source_layer = nrd_source_first_layer(src);
    NRD_TRY_GOTO(choose_ranks(p), err, fail);
    if (opt->dtype != NRD_DTYPE_NONE && !nrd_plan_is_float(opt->dtype)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "dtype must be float32, float16 or bfloat16, got %s",
                         nrd_dtype_name(opt->dtype));
        goto fail;
    }
    if (opt->dtype != NRD_DTYPE_NONE) {
        p->spec.dtype = opt->dtype;
    }
    NRD_TRY_GOTO(nrd_model_spec_check(&p->spec), err, fail);
    if (rank < 0 || rank >= p->spec.tp_size * p->spec.pp_size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "rank %d is not below tp_size * pp_size = %d", rank,
                         p->spec.tp_size * p->spec.pp_size);
        goto fail;
    }
    p->rank = rank;
    p->tp_rank = rank % p->spec.tp_size;
    p->pp_rank = rank / p->spec.tp_size;
    if (checkpoint) {
        NRD_TRY_GOTO(plan_from_checkpoint(p), err, fail);
    } else {
        NRD_NEW_GOTO(p->used, nrd_source_n_tensors(src, 0), err, fail);
        NRD_TRY_GOTO(plan_from_rules(p), err, fail);
        NRD_TRY_GOTO(list_unused(p), err, fail);
    }
    if (nrd_source_get_kind(src) == NRD_SOURCE_DUMMY) {
        NRD_TRY_GOTO(fill_pool(p), err, fail);
    }
    if (!checkpoint || opt->quantize != NRD_DTYPE_NONE) {
        set_quant_algo(p);
    }
    if (*nrd_source_notes(src)) {
        nrd_str_printf(&p->notes, "%s%s", p->notes.len ? "; " : "", nrd_source_notes(src));
    }
    *out = p;
    return NULL;

fail:
    nrd_plan_free(p);
    return err;
}

void nrd_plan_free(nrd_plan *p)
{
    if (!p) {
        return;
    }
    free(p->tensors);
    free(p->unused);
    free(p->used);
    free(p->pool);
    nrd_arena_fini(&p->arena);
    nrd_str_fini(&p->notes);
    free(p);
}

const nrd_model_spec *nrd_plan_spec(const nrd_plan *p)
{
    return &p->spec;
}

int32_t nrd_plan_rank(const nrd_plan *p)
{
    return p->rank;
}

size_t nrd_plan_n_tensors(const nrd_plan *p)
{
    return p->n;
}

const nrd_plan_tensor *nrd_plan_at(const nrd_plan *p, size_t i)
{
    return &p->tensors[i];
}

uint64_t nrd_plan_total_bytes(const nrd_plan *p)
{
    return p->total_bytes;
}

size_t nrd_plan_unused(const nrd_plan *p, const char *const **out_names)
{
    *out_names = p->unused;
    return p->n_unused;
}

const char *nrd_plan_notes(const nrd_plan *p)
{
    return nrd_str_cstr(&p->notes);
}

static bool planned_shape(const void *plan, const char *name, int64_t *rows, int64_t *cols)
{
    const nrd_plan *p = plan;
    for (size_t i = 0; i < p->n; i++) {
        if (!strcmp(p->tensors[i].name, name)) {
            *rows = p->tensors[i].rows;
            *cols = p->tensors[i].cols;
            return true;
        }
    }
    return false;
}

nrd_error *nrd_plan_check_engine(const nrd_plan *p, nrd_dtype kv_dtype)
{
    nrd_error *err = nrd_needs_check(&p->spec, nrd_plan_rank(p), planned_shape, p);
    if (!err) {
        err = nrd_needs_kv_scales(&p->spec, nrd_plan_rank(p), kv_dtype, planned_shape, p);
    }
    return nrd_error_wrap(err, "%s", nrd_source_path(p->src));
}

nrd_error *nrd_plan_check(const nrd_plan *p)
{
    return nrd_source_check(p->src);
}
