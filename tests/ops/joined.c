/* SPDX-License-Identifier: Apache-2.0
 * What a small layer of one token is made of. linear_joined: the norm or rounding, the product and its activation or sum with the residual;
 * rope_attention: rotation, cache and attention. Both beside the same operations one after the other, which have groups of their own. */
#include "ops/harness.h"

typedef struct joined_row {
    int32_t cols, rows[NRD_LINEAR_MAX_PARTS];
    enum x_form { AS_IS, ROUNDED, RMS, LAYER } form;
    nrd_act_kind act;
    bool gated, adds;
} joined_row;

/* Sizes of models and edges: columns that are no whole 128 bytes, few and many, tiles that K is shared by or not, parts that no tile fits. */
static const joined_row table[] = {
    {4096, {4096, 1024, 1024}, RMS, NRD_ACT_NONE, false, false},
    {4096, {14336, 14336}, RMS, NRD_ACT_SILU, true, false},
    {14336, {4096}, ROUNDED, NRD_ACT_NONE, false, true},
    {4096, {4096}, AS_IS, NRD_ACT_NONE, false, true},
    {1024, {1024, 1024, 1024}, LAYER, NRD_ACT_NONE, false, false},
    {1024, {4096}, LAYER, NRD_ACT_GELU_TANH, false, false},
    {4096, {1024}, ROUNDED, NRD_ACT_NONE, false, true},
    {2048, {8192, 8192}, RMS, NRD_ACT_SILU, true, false},
    {576, {1536, 1536}, RMS, NRD_ACT_SILU, true, false},
    {576, {576, 192, 192}, RMS, NRD_ACT_NONE, false, false},
    {8192, {1000, 24}, RMS, NRD_ACT_NONE, false, false},
    {5120, {2056, 2056}, LAYER, NRD_ACT_GELU_ERF, true, false},
    {80, {24}, RMS, NRD_ACT_RELU2, false, true},
    {272, {8, 8}, ROUNDED, NRD_ACT_GELU_TANH, true, false},
    {1040, {130, 7, 61, 1}, LAYER, NRD_ACT_NONE, false, true},
    {2064, {3}, AS_IS, NRD_ACT_QUICK_GELU, false, false},
};
enum { N_ROWS = sizeof table / sizeof *table, RANDOM = 60 };

static joined_row random_row(void)
{
    static const nrd_act_kind acts[] = {NRD_ACT_NONE, NRD_ACT_SILU, NRD_ACT_GELU_TANH, NRD_ACT_GELU_ERF, NRD_ACT_RELU};
    joined_row r = {.cols = 16 * rnd_in(1, rnd_in(0, 3) == 0 ? 640 : 120), .form = (enum x_form)rnd_in(AS_IS, LAYER), .act = acts[rnd_in(0, 4)],
                    .gated = rnd_in(0, 2) == 0};
    const int32_t n = r.gated ? 2 : rnd_in(1, 4);

    r.adds = !r.gated && rnd_in(0, 1) == 1;
    if (r.form >= RMS && r.cols > 8192) {
        r.form = ROUNDED;
    }
    for (int32_t i = 0; i < n; i++) {
        r.rows[i] = r.gated ? 8 * rnd_in(1, 200) : rnd_in(1, rnd_in(0, 2) == 0 ? 3000 : 300);
    }
    if (r.gated) {
        r.rows[1] = r.rows[0];
    }
    return r;
}

/* What both ways get. */
typedef struct joined_case {
    const joined_row *row;
    nrd_dtype type, act, y_type;
    int32_t n_parts, n_rows, n_y;
    nrd_weight w[NRD_LINEAR_MAX_PARTS], bias[NRD_LINEAR_MAX_PARTS], norm, norm_bias;
    bool has_bias[NRD_LINEAR_MAX_PARTS], has_norm_bias;
    float sum_scale;
    void *x, *made; /* made: x as the product reads it, in the reference always, else where it is not plain */
    float *scale;
    void *residual;
} joined_case;

static nrd_linear_args linear_of(const joined_case *c, const void *x, void *y, nrd_dtype y_type)
{
    nrd_linear_args a = {.n_tokens = 1, .x = x, .x_dtype = c->type, .n_parts = c->n_parts, .y = y, .y_dtype = y_type};

    a.x_row_scale = c->type == NRD_DTYPE_F8_E4M3 ? c->scale : NULL;
    for (int32_t i = 0; i < c->n_parts; i++) {
        a.w[i] = &c->w[i];
        a.bias[i] = c->has_bias[i] ? &c->bias[i] : NULL;
    }
    return a;
}

static nrd_norm_args norm_of(const joined_case *c)
{
    return (nrd_norm_args){.kind = c->row->form == LAYER ? NRD_NORM_LAYER : NRD_NORM_RMS, .eps = 1e-5f, .n_tokens = 1,
                           .hidden = c->row->cols, .residual = c->x, .weight = &c->norm, .bias = c->has_norm_bias ? &c->norm_bias : NULL,
                           .out = c->made, .out_dtype = c->type, .out_row_scale = c->scale, .act_dtype = c->act};
}

/* x as the product reads it. */
static const void *make_x(const target *t, const joined_case *c)
{
    if (c->row->form >= RMS) {
        const nrd_norm_args a = norm_of(c);
        ok(t->ops->norm(t->s, &a));
        return c->made;
    }
    if (c->type == c->act) {
        return c->x;
    }
    const nrd_act_args a = {.n_tokens = 1, .inter = c->row->cols, .x = c->x, .act_dtype = c->act, .out = c->made, .out_dtype = c->type,
                            .out_row_scale = c->scale};
    ok(t->ops->act(t->s, &a));
    return c->made;
}

/* One after the other: y in float32, or the residual. */
static float *reference(const target *t, const joined_case *c, const void *was)
{
    const nrd_dtype between = c->row->adds && c->row->act == NRD_ACT_NONE ? c->act : NRD_DTYPE_F32;
    void *sums = dev_out(t, (size_t)c->n_rows * 4), *y = dev_out(t, (size_t)c->n_rows * 4);
    const nrd_linear_args l = linear_of(c, make_x(t, c), sums, between);
    nrd_act_args act = {.kind = c->row->act, .gated = c->row->gated, .n_tokens = 1, .inter = c->n_y, .x = sums, .act_dtype = NRD_DTYPE_F32,
                        .out = y, .out_dtype = c->row->adds ? c->act : NRD_DTYPE_F32};

    ok(t->ops->linear(t->s, &l));
    if (c->row->act == NRD_ACT_NONE && !c->row->gated) {
        y = sums;
    } else {
        ok(t->ops->act(t->s, &act));
    }
    if (!c->row->adds) {
        return dev_rows(t, NRD_DTYPE_F32, y, NULL, 1, c->n_y);
    }
    void *residual = dev_put(t, was, nrd_row_bytes(c->act, c->n_y));
    const nrd_norm_args n = {.n_tokens = 1, .hidden = c->n_y, .delta = y, .sum_scale = c->sum_scale, .residual = residual, .act_dtype = c->act};
    ok(t->ops->norm(t->s, &n));
    return dev_rows(t, c->act, residual, NULL, 1, c->n_y);
}

static nrd_joined_args joined_of(const joined_case *c, bool is_plain, void *y)
{
    const nrd_norm_args n = norm_of(c);
    const bool normed = c->row->form >= RMS;

    return (nrd_joined_args){.linear = linear_of(c, is_plain || c->type == c->act ? c->x : c->made, y, c->y_type),
                             .act_dtype = c->act,
                             .x_is_plain = is_plain,
                             .norm = n.kind,
                             .norm_eps = n.eps,
                             .norm_weight = normed ? n.weight : NULL,
                             .norm_bias = normed ? n.bias : NULL,
                             .act = c->row->act,
                             .gated = c->row->gated,
                             .residual = c->residual,
                             .sum_scale = c->sum_scale};
}

static joined_case case_of(const target *t, const joined_row *row, nrd_dtype type)
{
    const bool eight = type == NRD_DTYPE_F8_E4M3;
    joined_case c = {.row = row, .type = type, .act = eight ? kind->acts[rnd_in(0, 1)] : type, .has_norm_bias = rnd_in(0, 1),
                     .sum_scale = rnd_in(0, 1) ? 0.7f : 0};
    const nrd_weight norm = weight_new(NRD_DTYPE_F32, row->cols, 1, 1), norm_bias = weight_new(NRD_DTYPE_F32, row->cols, 1, 1);

    for (; c.n_parts < NRD_LINEAR_MAX_PARTS && row->rows[c.n_parts] > 0; c.n_parts++) {
        const int32_t n = row->rows[c.n_parts];
        const nrd_weight w = weight_new(type, n, row->cols, 2.0f / sqrtf((float)row->cols)), bias = weight_new(NRD_DTYPE_F32, n, 1, 1);
        c.w[c.n_parts] = weight_on(t, &w, true);
        c.has_bias[c.n_parts] = rnd_in(0, 2) == 0;
        c.bias[c.n_parts] = weight_on(t, &bias, false);
        c.n_rows += n;
    }
    if (row->gated && rnd_in(0, 1)) { /* the gate behind what it gates */
        const nrd_weight w = c.w[0];
        c.w[0] = c.w[1];
        c.w[1] = w;
    }
    c.n_y = row->gated ? c.n_rows / 2 : c.n_rows;
    c.norm = weight_on(t, &norm, false);
    c.norm_bias = weight_on(t, &norm_bias, false);
    c.x = dev_put(t, host_as(c.act, row->cols, 1), nrd_row_bytes(c.act, row->cols));
    c.made = dev_out(t, (size_t)row->cols * 2);
    c.scale = dev_out(t, 4);
    c.y_type = rnd_in(0, 1) ? NRD_DTYPE_F32 : c.act;
    return c;
}

static void check_case(const target *t, const joined_row *row, nrd_dtype type)
{
    static const char *const forms[] = {"as it is", "rounded", "RMS", "layer norm"};
    joined_case c = case_of(t, row, type);
    const bool is_plain = row->form != AS_IS || (type == c.act && rnd_in(0, 1));
    const size_t bytes = nrd_row_bytes(c.act, c.n_y);
    const void *was = host_as(c.act, c.n_y, 1);
    void *y = dev_out(t, nrd_row_bytes(c.y_type, c.n_y));
    const double sums = type == NRD_DTYPE_F8_E4M3 ? 4e-3 : 1e-5; /* K is cut otherwise, and of F8 tensor cores keep some 14 bits */
    bool done = false;

    c.residual = row->adds ? dev_put(t, was, bytes) : NULL;
    const float *want = reference(t, &c, was);
    const nrd_joined_args a = joined_of(&c, is_plain, y);
    case_name("linear_joined %s, act %s, %d -> %d in %d parts, x %s, act %d%s%s", nrd_dtype_name(type), nrd_dtype_name(c.act), row->cols,
              c.n_rows, c.n_parts, forms[row->form], (int)row->act, row->gated ? " gated" : "", row->adds ? ", added" : "");
    ok(t->ops->linear_joined(t->s, &a, &done));
    if (done) {
        const nrd_dtype y_type = row->adds ? c.act : c.y_type;
        const float *got = dev_rows(t, y_type, row->adds ? c.residual : y, NULL, 1, c.n_y);
        compare(t, row->adds ? "the residual" : "y", got, want, c.n_y, (limit){0, 0, rounding(y_type) + sums});
    }
    case_end();
}

/* ---- rope_kv and attention of one token ---- */

static void check_rope_attention(const target *t, nrd_dtype act, int i)
{
    enum { MOST = 512, PAIRS = 64 };
    const int32_t dim = rnd_in(0, 1) ? 64 : 128, n_kv = rnd_in(1, 8), n_heads = n_kv * rnd_in(1, 5), block_tokens = 16 << rnd_in(0, 2);
    const int32_t n_blocks = MOST / block_tokens, ctx = i < 8 ? 1 + i : rnd_in(1, rnd_in(0, 1) ? MOST : MOST / 2), pos = ctx - 1, rows = (n_heads + 2 * n_kv) * dim;
    const bool has_rope = rnd_in(0, 3) > 0;
    const size_t bytes = t->ops->kv_block_bytes(t->dev, act, block_tokens, n_kv, dim) * (size_t)n_blocks;
    const void *cache = host_as(act, (int64_t)bytes / 2, 1), *qkv = host_as(act, rows, 1);
    int32_t *blocks = host((size_t)n_blocks * 4), starts[2] = {0, 1};
    float *inv_freq = host(PAIRS * sizeof *inv_freq);
    bool done = false;

    for (int32_t k = 0; k < n_blocks; k++) {
        blocks[k] = n_blocks - 1 - k;
    }
    if (rnd_in(0, 9) == 0) {
        blocks[pos / block_tokens] = -1;
    }
    for (int k = 0; k < PAIRS; k++) {
        inv_freq[k] = rnd_unit();
    }
    const nrd_batch_view view = {.n_tokens = 1, .n_seqs = 1, .max_q_len = 1, .max_ctx_len = ctx, .positions = dev_put(t, &pos, 4),
                                 .token_seq = dev_put(t, &starts[0], 4), .q_start = dev_put(t, starts, 8), .ctx_len = dev_put(t, &ctx, 4),
                                 .block_table = dev_put(t, blocks, (size_t)n_blocks * 4), .block_table_stride = n_blocks, .n_single = 1, .single_ctx = ctx};
    nrd_rope_kv_args k = {.batch = &view, .qkv = dev_put(t, qkv, (size_t)rows * 2), .act_dtype = act, .n_heads = n_heads, .rope_scale = 1.1f,
                          .rope = has_rope ? NRD_ROPE_NEOX : NRD_ROPE_NONE, .rotary_dim = has_rope ? dim : 0,
                          .inv_freq = has_rope ? dev_put(t, inv_freq, PAIRS * sizeof *inv_freq) : NULL,
                          .kv = {.base = dev_put(t, cache, bytes), .dtype = act, .n_blocks = n_blocks, .block_tokens = block_tokens, .n_kv_heads = n_kv,
                                 .head_dim = dim}};
    const size_t out = (size_t)n_heads * (size_t)dim;
    nrd_attention_args a = {.batch = &view, .q = k.qkv, .q_stride = rows, .out = dev_out(t, out * 4), .act_dtype = act, .out_dtype = act,
                            .n_heads = n_heads, .scale = 1.0f / sqrtf((float)dim), .kv = k.kv};
    ok(t->ops->rope_kv(t->s, &k));
    ok(t->ops->attention(t->s, &a));
    const float *want = dev_rows(t, act, a.out, NULL, 1, (int64_t)out), *kept = dev_rows(t, act, k.kv.base, NULL, 1, (int64_t)bytes / 2);
    k.qkv = dev_put(t, qkv, (size_t)rows * 2);
    k.kv.base = a.kv.base = dev_put(t, cache, bytes);
    a.q = k.qkv;
    a.out = dev_out(t, out * 4);
    case_name("rope_attention %s, %d of %d heads of %d, %d tokens in blocks of %d%s", nrd_dtype_name(act), n_kv, n_heads, dim, ctx, block_tokens,
              has_rope ? "" : ", no rope");
    ok(t->ops->rope_attention(t->s, &k, &a, &done));
    if (done) {
        compare(t, "out", dev_rows(t, act, a.out, NULL, 1, (int64_t)out), want, (int64_t)out, (limit){0, 0, rounding(act) + 3e-3});
        const float *now = dev_rows(t, act, k.kv.base, NULL, 1, (int64_t)bytes / 2);
        compare(t, "the cache", now, kept, (int64_t)bytes / 2, (limit){0.05, 0, 0}); /* a rounding of numbers up to 8 */
    }
    case_end();
}

void check_joined(void)
{
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F8_E4M3};
    enum { N_TYPES = sizeof types / sizeof *types };

    for (int i = 0; targets[0].ops->linear_joined && i < (N_ROWS + RANDOM) * N_TYPES; i++) {
        const joined_row row = i < N_ROWS * N_TYPES ? table[i / N_TYPES] : random_row();
        check_case(&targets[0], &row, types[i % N_TYPES]);
    }
    for (int i = 0; targets[0].ops->rope_attention && i < 60; i++) {
        check_rope_attention(&targets[0], i % 2 ? NRD_DTYPE_BF16 : NRD_DTYPE_F16, i);
    }
}

/* ---- speed: a layer, one operation after the other and joined ---- */

enum { MAX_LAYERS = 16, CTX = 130, BT = 64 };

typedef struct layer_shape {
    const char *model;
    nrd_dtype type, act, kv;
    int32_t hidden, heads, n_kv, dim, inter;
    nrd_norm_kind norm;
    nrd_act_kind act_kind;
    bool gated, rope;
} layer_shape;

typedef struct layer_run {
    const layer_shape *s;
    nrd_weight w[MAX_LAYERS][5], norm; /* qkv, o, up or gate, down, what is gated */
    int n_layers;
    void *x, *normed, *qkv, *att, *delta, *up, *mid, *mid_act;
    char *cache;
    size_t layer_bytes;
    float *scale;
    nrd_batch_view view;
    nrd_rope_kv_args rope;
    nrd_attention_args attention;
} layer_run;

static nrd_linear_args product_of(const layer_run *r, const nrd_weight *w, const nrd_weight *second, const void *x, void *y)
{
    return (nrd_linear_args){.n_tokens = 1, .x = x, .x_dtype = r->s->type, .x_row_scale = r->s->type == r->s->act ? NULL : r->scale,
                             .n_parts = second ? 2 : 1, .w = {w, second}, .y = y, .y_dtype = r->s->act};
}

static void norm_into(const target *t, const layer_run *r)
{
    const nrd_norm_args a = {.kind = r->s->norm, .eps = 1e-5f, .n_tokens = 1, .hidden = r->s->hidden, .delta = r->delta, .residual = r->x,
                             .weight = &r->norm, .out = r->normed, .out_dtype = r->s->type, .out_row_scale = r->scale, .act_dtype = r->s->act};
    ok(t->ops->norm(t->s, &a));
}

static const nrd_weight *use_layer(layer_run *r, int i)
{
    r->rope.kv.base = r->attention.kv.base = r->cache + (size_t)(i % r->n_layers) * r->layer_bytes;
    return r->w[i % r->n_layers];
}

static void apart_call(const target *t, int i, void *user)
{
    layer_run *r = user;
    const layer_shape *s = r->s;
    const nrd_weight *w = use_layer(r, i);
    const nrd_linear_args qkv = product_of(r, &w[0], NULL, r->normed, r->qkv), o = product_of(r, &w[1], NULL, r->att, r->delta);
    const nrd_linear_args up = product_of(r, &w[2], s->gated ? &w[4] : NULL, r->normed, r->up), down = product_of(r, &w[3], NULL, r->mid, r->delta);
    const nrd_act_args act = {.kind = s->act_kind, .gated = s->gated, .n_tokens = 1, .inter = s->inter, .x = r->up, .act_dtype = s->act,
                              .out = r->mid, .out_dtype = s->type, .out_row_scale = r->scale};

    norm_into(t, r);
    ok(t->ops->linear(t->s, &qkv));
    ok(t->ops->rope_kv(t->s, &r->rope));
    ok(t->ops->attention(t->s, &r->attention));
    ok(t->ops->linear(t->s, &o));
    norm_into(t, r);
    ok(t->ops->linear(t->s, &up));
    ok(t->ops->act(t->s, &act));
    ok(t->ops->linear(t->s, &down));
}

static void joined_one(const target *t, const layer_run *r, nrd_joined_args a)
{
    bool done;
    a.act_dtype = r->s->act;
    a.norm = r->s->norm;
    a.norm_eps = 1e-5f;
    ok(t->ops->linear_joined(t->s, &a, &done));
    verdict(t, "a layer's product is taken", done);
}

static void joined_call(const target *t, int i, void *user)
{
    layer_run *r = user;
    const layer_shape *s = r->s;
    const nrd_weight *w = use_layer(r, i);
    bool done;

    joined_one(t, r, (nrd_joined_args){.linear = product_of(r, &w[0], NULL, r->x, r->qkv), .x_is_plain = true, .norm_weight = &r->norm});
    ok(t->ops->rope_attention(t->s, &r->rope, &r->attention, &done));
    if (!done) {
        ok(t->ops->rope_kv(t->s, &r->rope));
        ok(t->ops->attention(t->s, &r->attention));
    }
    joined_one(t, r, (nrd_joined_args){.linear = product_of(r, &w[1], NULL, r->att, NULL), .residual = r->x});
    joined_one(t, r, (nrd_joined_args){.linear = product_of(r, &w[2], s->gated ? &w[4] : NULL, r->x, r->mid_act), .x_is_plain = true,
                                       .norm_weight = &r->norm, .act = s->act_kind, .gated = s->gated});
    joined_one(t, r, (nrd_joined_args){.linear = product_of(r, &w[3], NULL, r->mid_act, NULL), .x_is_plain = true, .residual = r->x});
}

static void load_layers(const target *t, layer_run *r, const int64_t shapes[5][2], double bytes)
{
    nrd_weight w[5] = {0};

    for (int i = 0; i < 5; i++) {
        w[i] = shapes[i][0] > 0 ? weight_new(r->s->type, shapes[i][0], shapes[i][1], 0.02f) : w[i];
    }
    r->n_layers = (int)(512e6 / bytes) + 1 < MAX_LAYERS ? (int)(512e6 / bytes) + 1 : MAX_LAYERS;
    for (int k = 0; k < r->n_layers; k++) {
        for (int i = 0; i < 5; i++) {
            const int at = i == 3 ? 4 : i == 4 ? 3 : i; /* what is gated behind its gate */
            if (shapes[at][0] > 0) {
                r->w[k][at] = weight_on(t, &w[at], true);
            }
        }
    }
}

/* A sequence of CTX tokens. */
static void make_step(const target *t, layer_run *r)
{
    const layer_shape *s = r->s;
    const int32_t pos = CTX - 1, starts[2] = {0, 1}, ctx = CTX, blocks[4] = {0, 1, 2, 3};

    r->layer_bytes = t->ops->kv_block_bytes(t->dev, s->kv, BT, s->n_kv, s->dim) * 4;
    r->cache = dev_pool(t, s->kv, r->layer_bytes * (size_t)r->n_layers);
    r->view = (nrd_batch_view){.n_tokens = 1, .n_seqs = 1, .max_q_len = 1, .max_ctx_len = 256, .positions = dev_put(t, &pos, 4),
                               .token_seq = dev_put(t, &starts[0], 4), .q_start = dev_put(t, starts, 8), .ctx_len = dev_put(t, &ctx, 4),
                               .block_table = dev_put(t, blocks, 16), .block_table_stride = 4, .n_single = 1, .single_ctx = CTX};
    const nrd_kv_layer kv = {.base = r->cache, .dtype = s->kv, .n_blocks = 4, .block_tokens = BT, .n_kv_heads = s->n_kv, .head_dim = s->dim};
    r->rope = (nrd_rope_kv_args){.batch = &r->view, .qkv = r->qkv, .act_dtype = s->act, .n_heads = s->heads, .rope_scale = 1,
                                 .rope = s->rope ? NRD_ROPE_NEOX : NRD_ROPE_NONE, .rotary_dim = s->rope ? s->dim : 0,
                                 .inv_freq = s->rope ? dev_put(t, host_normal(64, 0.3f), 256) : NULL, .kv = kv};
    r->attention = (nrd_attention_args){.batch = &r->view, .q = r->qkv, .q_stride = (int64_t)(s->heads + 2 * s->n_kv) * s->dim, .out = r->att,
                                        .act_dtype = s->act, .out_dtype = s->type, .out_row_scale = s->type == s->act ? NULL : r->scale,
                                        .n_heads = s->heads, .scale = 0.1f, .kv = kv};
}

static void speed_layer(const target *t, const layer_shape *s)
{
    const int64_t wide = (int64_t)s->heads * s->dim;
    const int64_t shapes[5][2] = {{wide + 2 * (int64_t)s->n_kv * s->dim, s->hidden}, {s->hidden, wide}, {s->inter, s->hidden},
                                  {s->hidden, s->inter}, {s->gated ? s->inter : 0, s->hidden}};
    const nrd_weight norm = weight_new(NRD_DTYPE_F32, s->hidden, 1, 1);
    const void *zeros = host(1 << 17);
    layer_run r = {.s = s};
    double bytes = 0;

    for (int i = 0; i < 5; i++) {
        bytes += (double)nrd_weight_bytes(s->type, NRD_LAYOUT_ROWS, shapes[i][0], shapes[i][1]);
    }
    load_layers(t, &r, shapes, bytes);
    r.norm = weight_on(t, &norm, false);
    void **rows[] = {&r.normed, &r.qkv, &r.att, &r.delta, &r.up, &r.mid, &r.mid_act};
    for (int i = 0; i < 7; i++) {
        *rows[i] = dev_put(t, zeros, 1 << 17);
    }
    r.x = dev_put(t, host_as(s->act, s->hidden, 1), nrd_row_bytes(s->act, s->hidden));
    r.scale = dev_put(t, zeros, 4);
    make_step(t, &r);
    ok(t->ops->reserve(t->s, 64, 8, s->inter, 1024, 1000));
    const work w = {bytes, bytes, PEAK_FLOAT};
    speed_row(measure(t, apart_call, &r, 16), w, "%s %s, one token", s->model, nrd_dtype_name(s->type));
    speed_row(measure(t, joined_call, &r, 16), w, "%s %s, joined", s->model, nrd_dtype_name(s->type));
    case_end();
}

void speed_joined(void)
{
    static const layer_shape shapes[] = {
        {"gpt2-medium", NRD_DTYPE_F16, NRD_DTYPE_F16, NRD_DTYPE_F16, 1024, 16, 16, 64, 4096, NRD_NORM_LAYER, NRD_ACT_GELU_TANH, false, false},
        {"SmolLM2-135M", NRD_DTYPE_BF16, NRD_DTYPE_BF16, NRD_DTYPE_BF16, 576, 9, 3, 64, 1536, NRD_NORM_RMS, NRD_ACT_SILU, true, true},
        {"SmolLM2-360M", NRD_DTYPE_BF16, NRD_DTYPE_BF16, NRD_DTYPE_BF16, 960, 15, 5, 64, 2560, NRD_NORM_RMS, NRD_ACT_SILU, true, true},
        {"Qwen2-0.5B", NRD_DTYPE_BF16, NRD_DTYPE_BF16, NRD_DTYPE_BF16, 896, 14, 2, 64, 4864, NRD_NORM_RMS, NRD_ACT_SILU, true, true},
        {"Qwen2-1.5B", NRD_DTYPE_BF16, NRD_DTYPE_BF16, NRD_DTYPE_BF16, 1536, 12, 2, 128, 8960, NRD_NORM_RMS, NRD_ACT_SILU, true, true},
        {"Llama-3.2-1B", NRD_DTYPE_F8_E4M3, NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, 2048, 32, 8, 64, 8192, NRD_NORM_RMS, NRD_ACT_SILU, true, true},
        {"Llama-3.2-1B", NRD_DTYPE_BF16, NRD_DTYPE_BF16, NRD_DTYPE_BF16, 2048, 32, 8, 64, 8192, NRD_NORM_RMS, NRD_ACT_SILU, true, true},
    };

    for (size_t i = 0; targets[0].ops->linear_joined && i < sizeof shapes / sizeof *shapes; i++) {
        speed_layer(&targets[0], &shapes[i]);
    }
}
