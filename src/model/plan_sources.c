/* SPDX-License-Identifier: Apache-2.0
 * Where a weight of a rule comes from: its tensors by name, and whether they have the shape that the configuration says. */
#include "model/plan_internal.h"

#include "base/dtype.h"
#include "model/families/family.h"

#include <stdio.h>
#include <string.h>

/* ---- names ---- */

/* Replaces '*' by the layer's number in the source. */
static void expand(char out[NRD_PLAN_MAX_NAME], const nrd_plan *p, const char *prefix, const char *pattern, int32_t layer)
{
    const char *star = strpbrk(pattern, "*^");
    const bool hf = nrd_source_get_kind(p->src) == NRD_SOURCE_HF; /* checkpoints count what is computed */
    if (star) {
        snprintf(out, NRD_PLAN_MAX_NAME, "%s%.*s%d%s", prefix, (int)(star - pattern), pattern,
                 (hf ? nrd_spec_source_layer(&p->spec, layer) : layer) - (*star == '^'), star + 1);
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

    expand(name, p, prefix, pattern, layer);
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

const nrd_src_tensor *nrd_plan_lookup(nrd_plan *p, const char *pattern, int32_t layer)
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

/* ---- shapes ---- */

static nrd_error *wrong_shape(const nrd_plan *p, const nrd_src_tensor *t, const int64_t *want, int n_want)
{
    nrd_str has = {0};

    for (int i = 0; i < t->n_dims; i++) {
        nrd_str_printf(&has, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
    }
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' has shape [%s], expected [%lld%s%.0lld] by the model's configuration",
                                nrd_source_path(p->src), t->name, nrd_str_cstr(&has), (long long)want[0], n_want > 1 ? ", " : "",
                                n_want > 1 ? (long long)want[1] : 0);
    nrd_str_fini(&has);
    return err;
}

static nrd_error *check_shape(const nrd_plan *p, const nrd_src_tensor *t, int64_t rows,
                              int64_t cols, bool is_vector, bool turned)
{
    int64_t want[2] = {turned ? cols : rows, turned ? rows : cols};
    bool ok = is_vector ? t->n_dims == 1 && t->dims[0] == rows
                        : t->n_dims == 2 && t->dims[0] == want[0] && t->dims[1] == want[1];
    if (!ok) {
        return wrong_shape(p, t, want, is_vector ? 1 : 2);
    }
    if (!t->packed && !nrd_plan_is_float(t->dtype) && !nrd_dtype_is_block(t->dtype) && t->dtype != NRD_DTYPE_F64) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "%s: tensor '%s' has type %s, which cannot be used for weights; types that "
                          "can: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ1_S "
                          "to IQ4_XS, TQ1_0, TQ2_0, MXFP4, I2_S", nrd_source_path(p->src), t->name, t->type_name);
    }
    if (nrd_dtype_is_block(t->dtype) && turned) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%s' of type %s cannot be transposed",
                          nrd_source_path(p->src), t->name, t->type_name);
    }
    return NULL;
}

int64_t nrd_plan_whole_rows(const nrd_plan *p, const nrd_need *n)
{
    return nrd_dim_of(&p->spec, n->shard == NRD_SHARD_VOCAB ? NRD_DIM_VOCAB : n->rows);
}

int64_t nrd_plan_state_rows(const nrd_model_spec *s, int part)
{
    const nrd_recurrent_spec *r = &s->recurrent;
    return part < 2 ? (int64_t)r->n_groups * r->n_state : (int64_t)r->n_heads * r->head_dim;
}

/* Rows that its source has. */
static int64_t source_rows(const nrd_plan *p, const nrd_plan_job *j)
{
    int64_t rows = nrd_plan_whole_rows(p, j->need);
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
    return rows + (j->flags & NRD_RULE_SKIP_TWO ? 2 : 0) + (j->flags & NRD_RULE_EIGHT_MORE ? 8 : 0);
}

static int64_t source_cols(const nrd_plan *p, const nrd_plan_job *j)
{
    return j->flags & NRD_RULE_TURNED_HEADS ? p->spec.latent.nope_dim : nrd_dim_of(&p->spec, j->need->cols);
}

/* ---- experts ---- */

static const nrd_src_tensor *lookup_expert(nrd_plan *p, const char *pattern, int32_t layer, int32_t expert)
{
    const char *hash = strchr(pattern, '#');
    char name[NRD_PLAN_MAX_NAME];

    snprintf(name, sizeof name, "%.*s%d%s", (int)(hash - pattern), pattern, expert, hash + 1);
    return nrd_plan_lookup(p, name, layer);
}

/* MLX has a tensor [experts, out, in] for each of a layer's matrices, whatever the family's own files have: switch_mlp.gate_proj for
 * "experts.#.w1" and for the half of "experts.gate_up_proj" that is wanted, of gpt-oss experts.gate_proj. NULL: it is not there. */
static const nrd_src_tensor *lookup_mlx(nrd_plan *p, nrd_plan_job *j)
{
    static const uint32_t first = NRD_RULE_FIRST_HALF | NRD_RULE_EVEN_ROWS, second = NRD_RULE_SECOND_HALF | NRD_RULE_ODD_ROWS;
    static const char *const groups[] = {"switch_mlp", "experts"};
    const char *pattern = j->rule->src[0], *at = strstr(pattern, "experts.");
    const nrd_src_tensor *t = NULL;
    char name[NRD_PLAN_MAX_NAME];

    at = at ? at : strstr(pattern, "input_linear."); /* Granite's */
    at = at ? at : strstr(pattern, "output_linear.");
    if (!at) {
        return NULL;
    }
    const bool is_gate = (j->flags & first) || strstr(at, ".gate_proj") || strstr(at, ".w1");
    const bool is_up = !is_gate && ((j->flags & second) || strstr(at, ".up_proj") || strstr(at, ".w3"));
    const char *module = is_gate ? "gate_proj" : is_up ? "up_proj" : "down_proj";
    for (size_t i = 0; i < sizeof groups / sizeof groups[0] && !t; i++) {
        snprintf(name, sizeof name, "%.*s%s.%s.%s", (int)(at - pattern), pattern, groups[i], module,
                 j->need->cols == NRD_DIM_ONE ? "bias" : "weight");
        t = nrd_plan_lookup(p, name, j->layer);
    }
    j->flags &= t ? ~(first | second | NRD_RULE_TRANSPOSE) : ~0U;
    return t;
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
static nrd_error *find_experts(nrd_plan *p, nrd_plan_job *j)
{
    const int32_t n = p->spec.moe.n_experts;
    const char *pattern = j->rule->src[0];
    const bool each = strchr(pattern, '#') != NULL, is_vector = j->need->cols == NRD_DIM_ONE;
    const nrd_src_tensor *all = each && lookup_expert(p, pattern, j->layer, 0) ? NULL : lookup_mlx(p, j);
    all = all || each ? all : nrd_plan_lookup(p, pattern, j->layer);
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
            expand(name, p, "", pattern, j->layer);
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
static nrd_error *find_heads(nrd_plan *p, nrd_plan_job *j)
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
            expand(name, p, "", j->rule->src[0], j->layer);
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

/* The tensor of a name that ends in "[k]": matrix k of a tensor with three dimensions. */
static nrd_error *find_one(nrd_plan *p, nrd_plan_job *j, const char *pattern, const nrd_src_tensor **out)
{
    const size_t n = strcspn(pattern, "[");
    char name[NRD_PLAN_MAX_NAME];

    *out = NULL;
    if (!pattern[n]) {
        *out = nrd_plan_lookup(p, pattern, j->layer);
        return NULL;
    }
    snprintf(name, sizeof name, "%.*s", (int)n, pattern);
    const nrd_src_tensor *all = nrd_plan_lookup(p, name, j->layer);
    const int32_t k = pattern[n + 1] - '0';
    if (!all) {
        return NULL;
    }
    if (all->n_dims != 3 || k >= all->dims[0] || all->packed || all->dims[0] > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' has %d dimensions, the first of %lld, expected 3 and more than %d",
                          nrd_source_path(p->src), all->name, all->n_dims, (long long)all->dims[0], k);
    }
    nrd_src_tensor *one = nrd_arena_alloc(&p->arena, sizeof *one);
    if (!one) {
        return nrd_error_no_memory();
    }
    *one = one_of(all, k, (int32_t)all->dims[0], false);
    *out = one;
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

/* Rows, and the matrix that they are multiplied by. */
static nrd_error *find_product(nrd_plan *p, nrd_plan_job *j)
{
    const char *const *names = j->rule->src;
    const nrd_src_tensor *by = nrd_plan_lookup(p, names[0], j->layer), *rows = nrd_plan_lookup(p, names[1], j->layer);
    const int64_t n = source_rows(p, j), cols = source_cols(p, j);

    if (!by || !rows) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: tensor '%s' is missing", nrd_source_path(p->src), by ? names[1] : names[0]);
    }
    if (rows->packed || by->packed || rows->n_dims != 2 || rows->dims[0] != n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' must be a matrix of %lld rows that is not quantized, as '%s'",
                          nrd_source_path(p->src), rows->name, (long long)n, by->name);
    }
    const int64_t width = rows->dims[1];
    if (width == cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' beside rows of '%s' that are as wide as the model, %lld",
                          nrd_source_path(p->src), by->name, rows->name, (long long)cols);
    }
    const bool turned = by->n_dims == 2 && by->dims[0] == cols;
    NRD_TRY(check_shape(p, rows, n, width, false, false));
    NRD_TRY(check_shape(p, by, width, cols, false, turned));
    j->src[0] = rows;
    j->times = by;
    j->n_src = 1;
    return NULL;
}

/* ---- all ---- */

nrd_error *nrd_plan_find_sources(nrd_plan *p, nrd_plan_job *j)
{
    const nrd_weight_rule *r = j->rule;
    int64_t kv = nrd_dim_of(&p->spec, NRD_DIM_KV);
    int64_t part_rows[3] = {nrd_dim_of(&p->spec, NRD_DIM_Q), kv, kv};
    int64_t cols = source_cols(p, j);
    bool vector = j->need->cols == NRD_DIM_ONE;
    const bool of_state = j->need->rows == NRD_DIM_RECURRENT_IN || j->need->rows == NRD_DIM_RECURRENT_CHANNELS;

    if (j->need->is_stacked) {
        return find_experts(p, j);
    }
    if (j->flags & NRD_RULE_TIMES) {
        return find_product(p, j);
    }
    if (r->src[0] && strchr(r->src[0], '#')) {
        return find_heads(p, j);
    }
    for (j->n_src = 0; j->n_src < 3 && r->src[j->n_src]; j->n_src++) {
        if (j->n_src == 1 && (j->flags & NRD_RULE_NO_KEYS)) {
            continue;
        }
        const nrd_src_tensor *t;
        NRD_TRY(find_one(p, j, r->src[j->n_src], &t));
        if (!t) {
            char name[NRD_PLAN_MAX_NAME];
            expand(name, p, "", r->src[j->n_src], j->layer);
            return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: tensor '%s' is missing",
                              nrd_source_path(p->src), name);
        }
        j->src[j->n_src] = t;
    }
    bool is_packed = true; /* readers give [out, in], whatever the family's own files have; what was left as it is stays turned */
    for (int i = 0; i < j->n_src; i++) {
        is_packed = is_packed && (!j->src[i] || j->src[i]->packed);
    }
    j->flags &= is_packed ? ~(uint32_t)NRD_RULE_TRANSPOSE : ~0U;
    for (int i = 0; i < j->n_src; i++) {
        int64_t rows = j->n_src == 1 ? source_rows(p, j) : of_state ? nrd_plan_state_rows(&p->spec, i) : part_rows[i];
        rows *= i > 0 && (j->flags & NRD_RULE_JOINED_KV) ? 2 : 1;
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
        NRD_TRY(check_shape(p, j->src[i], rows, cols, vector, (j->flags & NRD_RULE_TRANSPOSE) && !j->src[i]->packed));
    }
    return NULL;
}
