/* SPDX-License-Identifier: Apache-2.0
 * latent_kv and latent_attention over one paged cache of rows, and move_tokens there. */
#include "ops/harness.h"

enum { MAX_SEQS = 5, MOVE_BLOCKS = 5, MOVE_PAIRS = 40 };

typedef struct latent_row {
    unsigned on;
    int count;
    int32_t rank, rope, nope, v, heads, block_tokens, ctx, fresh; /* the most tokens of a sequence, of them new ones */
    bool extras; /* trees, windows, by turns */
} latent_row;

static const latent_row table[] = {
    {ON_ALL, 24, 36, 8, 20, 14, 3, 8, 70, 20, true},
    {ON_ALL, 12, 64, 16, 32, 32, 20, 16, 150, 40, true},
    {ON_ALL, 8, 96, 32, 48, 64, 5, 32, 300, 3, true},
    {ON_ALL, 4, 128, 64, 64, 32, 4, 64, 2600, 1, false},
    {ON_ALL | LARGE, 2, 512, 64, 128, 128, 6, 64, 300, 2, true},
    {ON_CUDA, 4, 576, 64, 128, 96, 18, 64, 300, 30, true},
    {ON_CUDA, 3, 512, 64, 128, 128, 40, 64, 500, 1, false},
    {ON_CUDA, 10, 512, 64, 128, 128, 16, 64, 1500, 9, true},
    {ON_CUDA, 10, 256, 32, 64, 64, 40, 32, 400, 20, true},
};

typedef struct latent_case {
    const latent_row *row;
    nrd_dtype act, kv_type, out, map;
    int32_t n_seqs, fresh[MAX_SEQS], ctx[MAX_SEQS], window, n_sink;
    bool tree, drop, deterministic;
    nrd_rope_kind rope;
} latent_case;

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static void draw(latent_case *c, const latent_row *row, int i)
{
    *c = (latent_case){.row = row, .act = kind->acts[i % 5 < 3 ? 0 : i % 5 == 3 ? 1 % kind->n_acts : 2 % kind->n_acts]};
    c->kv_type = kind->is_exact ? (nrd_dtype[]){NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16}[i % 3]
                 : i % 4 == 3   ? NRD_DTYPE_F32
                                : c->act;
    c->map = (nrd_dtype[]){NRD_DTYPE_BF16, NRD_DTYPE_F32, NRD_DTYPE_F16}[i / 2 % 3];
    c->out = i % 4 == 2 ? kind->eight : c->act;
    c->rope = i % 3 == 1 ? NRD_ROPE_NEOX : NRD_ROPE_INTERLEAVED;
    c->tree = row->extras && i % 6 == 5;
    c->window = row->extras && i % 5 == 4 ? rnd_in(1, row->ctx / 2) : 0;
    c->n_sink = c->window && i % 2 ? rnd_in(1, 5) : 0;
    c->drop = c->window > 0 && !c->tree;
    c->deterministic = i % 7 == 6;
    c->n_seqs = rnd_in(1, MAX_SEQS);
    for (int32_t s = 0; s < c->n_seqs; s++) {
        c->ctx[s] = rnd_in(1, row->ctx);
        c->fresh[s] = least(c->ctx[s], i % 3 == 0 ? 1 : rnd_in(1, c->tree ? least(16, row->fresh) : row->fresh));
    }
}

/* Host arrays of the step that fills the cache, and of the one that is looked at. */
typedef struct latent_step {
    int32_t n, most_new, words, q_start[MAX_SEQS + 1], ctx[MAX_SEQS], *pos, *seq;
    uint32_t *mask;
    void *q, *latent;
} latent_step;

typedef struct latent_made {
    latent_case c;
    latent_step steps[2];
    nrd_batch_view views[2];
    int32_t *blocks, stride, n_blocks, most_ctx;
    nrd_weight norm, k_b, v_b;
    float *inv_freq, *want;
    void *q; /* of the second step behind latent_kv */
} latent_made;

static int64_t q_width(const latent_case *c)
{
    return (int64_t)c->row->heads * (c->row->nope + c->row->rope);
}

static int64_t out_width(const latent_case *c)
{
    return (int64_t)c->row->heads * c->row->v;
}

static void make_step(const latent_case *c, latent_step *st, bool second)
{
    for (int32_t s = 0; s < c->n_seqs; s++) {
        const int32_t n = second ? c->fresh[s] : c->ctx[s] - c->fresh[s];
        st->q_start[s + 1] = st->n += n;
        st->ctx[s] = second ? c->ctx[s] : n;
        st->most_new = n > st->most_new ? n : st->most_new;
    }
    st->words = (st->most_new + 31) / 32;
    st->pos = host((size_t)(st->n + 1) * 4);
    st->seq = host((size_t)(st->n + 1) * 4);
    st->mask = host((size_t)(st->n * st->words + 1) * 4);
    st->q = host_as(c->act, st->n * q_width(c), 1);
    st->latent = host_as(c->act, (int64_t)st->n * (c->row->rank + c->row->rope), 1);
    for (int32_t s = 0; s < c->n_seqs; s++) {
        const int32_t old = second ? c->ctx[s] - c->fresh[s] : 0;
        for (int32_t k = 0; k < st->q_start[s + 1] - st->q_start[s]; k++) {
            const int32_t t = st->q_start[s] + k;
            st->seq[t] = s;
            st->pos[t] = second && c->tree ? old + (k + 1) / 2 : old + k; /* siblings share a position */
            for (int32_t j = k; j >= 0; j = j > 0 ? (j - 1) / 2 : -1) { /* a node sees its ancestors */
                st->mask[t * st->words + j / 32] |= 1u << (j % 32);
            }
        }
    }
}

/* Blocks in random order; those that no window reaches are dropped. */
static void make_table(latent_made *m)
{
    const latent_case *c = &m->c;
    const int32_t bt = c->row->block_tokens;
    int32_t next = 0;

    for (int32_t s = 0; s < c->n_seqs; s++) {
        m->n_blocks += (c->ctx[s] + bt - 1) / bt;
        m->most_ctx = c->ctx[s] > m->most_ctx ? c->ctx[s] : m->most_ctx;
    }
    m->stride = (m->most_ctx + bt - 1) / bt + 1;
    int32_t *order = host((size_t)m->n_blocks * 4);
    for (int32_t i = 0; i < m->n_blocks; i++) {
        const int32_t j = rnd_in(0, i);
        order[i] = order[j];
        order[j] = i;
    }
    m->blocks = host((size_t)(c->n_seqs * m->stride) * 4);
    for (int32_t s = 0; s < c->n_seqs; s++) {
        const int32_t keep = c->drop ? c->ctx[s] - c->fresh[s] - c->window + 1 : 0;
        for (int32_t i = 0; i < m->stride; i++) {
            const bool gone = (i + 1) * bt <= keep && i * bt >= c->n_sink;
            m->blocks[s * m->stride + i] = i * bt < c->ctx[s] && !gone ? order[next++] : -1;
        }
    }
}

static nrd_batch_view view_of(const latent_made *m, const latent_step *st, bool second)
{
    return (nrd_batch_view){.n_tokens = st->n,
                            .n_seqs = m->c.n_seqs,
                            .max_q_len = st->most_new,
                            .max_ctx_len = m->most_ctx,
                            .positions = st->pos,
                            .token_seq = st->seq,
                            .q_start = st->q_start,
                            .ctx_len = st->ctx,
                            .block_table = m->blocks,
                            .block_table_stride = m->stride,
                            .tree_mask = second && m->c.tree ? st->mask : NULL,
                            .tree_mask_words = st->words};
}

static nrd_batch_view view_on(const target *t, const nrd_batch_view *v)
{
    nrd_batch_view d = *v;
    d.positions = dev_put(t, v->positions, (size_t)v->n_tokens * 4);
    d.token_seq = dev_put(t, v->token_seq, (size_t)v->n_tokens * 4);
    d.q_start = dev_put(t, v->q_start, (size_t)(v->n_seqs + 1) * 4);
    d.ctx_len = dev_put(t, v->ctx_len, (size_t)v->n_seqs * 4);
    d.block_table = dev_put(t, v->block_table, (size_t)(v->n_seqs * v->block_table_stride) * 4);
    d.tree_mask = v->tree_mask ? dev_put(t, v->tree_mask, (size_t)(v->n_tokens * v->tree_mask_words) * 4) : NULL;
    return d;
}

static nrd_kv_layer cache_of(const latent_case *c, int32_t n_blocks)
{
    return (nrd_kv_layer){.dtype = c->kv_type,
                          .n_blocks = n_blocks,
                          .block_tokens = c->row->block_tokens,
                          .head_dim = c->row->rank + c->row->rope};
}

static nrd_latent_kv_args kv_args(const latent_case *c)
{
    return (nrd_latent_kv_args){.act_dtype = c->act,
                                .n_heads = c->row->heads,
                                .nope_dim = c->row->nope,
                                .rope_dim = c->row->rope,
                                .norm_eps = 1e-3f,
                                .rope = c->rope,
                                .rope_scale = 1.1f};
}

static nrd_latent_attention_args attention_args(const latent_case *c)
{
    return (nrd_latent_attention_args){.act_dtype = c->act,
                                       .n_heads = c->row->heads,
                                       .nope_dim = c->row->nope,
                                       .rope_dim = c->row->rope,
                                       .v_dim = c->row->v,
                                       .scale = 1.2f / sqrtf((float)(c->row->nope + c->row->rope)),
                                       .window = c->window,
                                       .n_sink = c->n_sink,
                                       .deterministic = c->deterministic};
}

static void make(latent_made *m, const latent_case *of)
{
    const latent_row *row = of->row;
    const latent_case *c = &m->c;
    nrd_latent_attention_args a = attention_args(of);
    nrd_kv_layer kv;

    *m = (latent_made){.c = *of};
    make_table(m);
    m->norm = weight_new(NRD_DTYPE_F32, row->rank, 1, 0.3f);
    m->k_b = weight_new(c->map, (int64_t)row->heads * row->nope, row->rank, 1 / sqrtf((float)row->rank));
    m->v_b = weight_new(c->map, (int64_t)row->heads * row->v, row->rank, 1 / sqrtf((float)row->rank));
    float *norm = (float *)(uintptr_t)m->norm.data;
    for (int32_t i = 0; i < row->rank; i++) {
        norm[i] += 1.0f;
    }
    m->inv_freq = host((size_t)row->rope * 2);
    for (int32_t i = 0; i < row->rope / 2; i++) {
        m->inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)row->rope);
    }
    kv = cache_of(c, m->n_blocks);
    kv.base = host(nrd_kv_block_bytes(c->kv_type, kv.block_tokens, 0, kv.head_dim) * (size_t)m->n_blocks);
    for (int k = 0; k < 2; k++) {
        latent_step *st = &m->steps[k];
        make_step(c, st, k == 1);
        m->views[k] = view_of(m, st, k == 1);
        nrd_latent_kv_args l = kv_args(c);
        const size_t bytes = nrd_row_bytes(c->act, q_width(c)) * (size_t)st->n;
        l.batch = &m->views[k];
        l.q = m->q = memcpy(host(bytes ? bytes : 1), st->q, bytes);
        l.latent = st->latent;
        l.norm = &m->norm;
        l.inv_freq = m->inv_freq;
        l.kv = kv;
        ok(nrd_latent_kv_check(&l));
        nrd_latent_kv_ref(&l);
    }
    case_name("latent %s kv %s -> %s, maps %s, %d heads of %d + %d and %d, rows of %d, block %d, %d seqs (%d of %d ..)%s%s%s%s",
              nrd_dtype_name(c->act), nrd_dtype_name(c->kv_type), nrd_dtype_name(c->out), nrd_dtype_name(c->map), row->heads,
              row->nope, row->rope, row->v, row->rank, row->block_tokens, c->n_seqs, c->fresh[0], c->ctx[0],
              c->window ? " window" : "", c->n_sink ? " sink" : "", c->tree ? " tree" : "", c->deterministic ? " det" : "");
    a.batch = &m->views[1];
    a.q = m->q;
    a.k_b = &m->k_b;
    a.v_b = &m->v_b;
    a.kv = kv;
    a.out_dtype = NRD_DTYPE_F32;
    a.out = m->want = host((size_t)(m->steps[1].n * out_width(c)) * 4);
    ok(nrd_latent_attention_check(&a));
    nrd_latent_attention_ref(&a);
}

/* As attention's: the cache may round a row of this step to the neighbour. */
static limit limit_of(const latent_made *m)
{
    const latent_case *c = &m->c;
    const double step = c->kv_type == NRD_DTYPE_F32 ? 0 : c->kv_type == NRD_DTYPE_F16 ? 2e-3 : 1.6e-2;

    if (kind->is_exact) {
        return (limit){3e-5 + step + (c->out == kind->eight ? eight_step(m->want, m->steps[1].n * out_width(c)) : 0), 1e-5, 0};
    }
    return (limit){0, 0, rounding(c->out) + (c->act == NRD_DTYPE_F32 ? 1e-4 + step : 4e-3)};
}

/* The last new token of a sequence alone gives the same bits. */
static void last_alone(const latent_made *m, const target *t, const nrd_latent_attention_args *of, const float *out)
{
    const latent_case *c = &m->c;
    const latent_step *st = &m->steps[1];
    const int32_t s = rnd_in(0, c->n_seqs - 1), last = st->q_start[s + 1] - 1, start[2] = {0, 1}, zero = 0;
    const int64_t width = out_width(c);
    const nrd_batch_view one = {.n_tokens = 1,
                                .n_seqs = 1,
                                .max_q_len = 1,
                                .max_ctx_len = st->ctx[s],
                                .positions = &st->pos[last],
                                .token_seq = &zero,
                                .q_start = start,
                                .ctx_len = &st->ctx[s],
                                .block_table = m->blocks + (int64_t)s * m->stride,
                                .block_table_stride = m->stride};
    const nrd_batch_view v = view_on(t, &one);
    nrd_latent_attention_args a = *of;

    a.batch = &v;
    a.q = (const char *)of->q + nrd_row_bytes(c->act, q_width(c)) * (size_t)last;
    a.out = dev_out(t, (size_t)width * 4);
    ok(t->ops->latent_attention(t->s, &a));
    same_bytes(t, "a token alone", dev_rows(t, NRD_DTYPE_F32, a.out, NULL, 1, width), out + last * width, (size_t)width * 4);
}

static void on_target(const latent_made *m, const target *t)
{
    const latent_case *c = &m->c;
    const int32_t n = m->steps[1].n;
    const nrd_weight norm = weight_on(t, &m->norm, false), k_b = weight_on(t, &m->k_b, false),
                     v_b = weight_on(t, &m->v_b, false);
    const float *inv_freq = dev_put(t, m->inv_freq, (size_t)c->row->rope * 2);
    nrd_latent_attention_args a = attention_args(c);
    nrd_kv_layer kv = cache_of(c, m->n_blocks);
    nrd_batch_view v = {0};

    kv.base = dev_out(t, t->ops->kv_block_bytes(t->dev, c->kv_type, kv.block_tokens, 0, kv.head_dim) * (size_t)m->n_blocks);
    for (int k = 0; k < 2; k++) {
        const latent_step *st = &m->steps[k];
        if (st->n == 0) {
            continue;
        }
        v = view_on(t, &m->views[k]);
        nrd_latent_kv_args l = kv_args(c);
        l.batch = &v;
        l.q = dev_put(t, st->q, nrd_row_bytes(c->act, q_width(c)) * (size_t)st->n);
        l.latent = dev_put(t, st->latent, nrd_row_bytes(c->act, kv.head_dim) * (size_t)st->n);
        l.norm = &norm;
        l.inv_freq = inv_freq;
        l.kv = kv;
        ok(t->ops->latent_kv(t->s, &l));
        sync(t);
        a.q = l.q;
    }
    compare(t, "q", dev_rows(t, c->act, a.q, NULL, n, q_width(c)), rows_of(c->act, m->q, NULL, n, q_width(c)), n * q_width(c),
            kind->is_exact ? (limit){6e-6, 6e-6, 0} : (limit){0, 0, rounding(c->act)});
    a.batch = &v;
    a.k_b = &k_b;
    a.v_b = &v_b;
    a.kv = kv;
    a.out_dtype = c->out;
    a.out = dev_out(t, nrd_row_bytes(c->out, out_width(c)) * (size_t)n);
    a.out_row_scale = c->out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)n * 4) : NULL;
    ok(t->ops->latent_attention(t->s, &a));
    const float *out = dev_rows(t, c->out, a.out, a.out_row_scale, n, out_width(c));
    compare(t, "", out, m->want, n * out_width(c), limit_of(m));
    if ((kind->rows_alone || c->deterministic) && c->out == NRD_DTYPE_F32 && !c->tree) {
        last_alone(m, t, &a, out);
    }
}

/* ---- move_tokens ---- */

/* A cache whose place p holds row from[p], as latent_kv writes it. */
static nrd_kv_layer cache_of_rows(const target *t, const latent_case *c, const char *rows, const int32_t *from)
{
    nrd_kv_layer kv = cache_of(c, MOVE_BLOCKS);
    const int32_t n = MOVE_BLOCKS * kv.block_tokens, starts[2] = {0, n};
    const size_t row = nrd_row_bytes(c->act, kv.head_dim);
    const size_t bytes = MOVE_BLOCKS * t->ops->kv_block_bytes(t->dev, kv.dtype, kv.block_tokens, 0, kv.head_dim);
    int32_t *places = host((size_t)n * 4), *zeros = host((size_t)n * 4), blocks[MOVE_BLOCKS];
    char *latent = host((size_t)n * row);
    float *freq = host((size_t)c->row->rope * 2); /* no angle: a row does not depend on its place */
    const nrd_weight weight = weight_new(NRD_DTYPE_F32, c->row->rank, 1, 0);
    float *ones = (float *)(uintptr_t)weight.data;

    for (int32_t i = 0; i < c->row->rank; i++) {
        ones[i] = 1;
    }
    for (int32_t i = 0; i < n; i++) {
        places[i] = i;
        memcpy(latent + (size_t)i * row, rows + (size_t)from[i] * row, row);
    }
    for (int32_t i = 0; i < MOVE_BLOCKS; i++) {
        blocks[i] = i;
    }
    kv.base = dev_put(t, host(bytes), bytes);
    const nrd_weight norm = weight_on(t, &weight, false);
    const nrd_batch_view view = {.n_tokens = n,
                                 .n_seqs = 1,
                                 .max_q_len = n,
                                 .max_ctx_len = n,
                                 .positions = dev_put(t, places, (size_t)n * 4),
                                 .token_seq = dev_put(t, zeros, (size_t)n * 4),
                                 .q_start = dev_put(t, starts, sizeof starts),
                                 .ctx_len = dev_put(t, &starts[1], 4),
                                 .block_table = dev_put(t, blocks, sizeof blocks),
                                 .block_table_stride = MOVE_BLOCKS};
    nrd_latent_kv_args a = kv_args(c);
    a.batch = &view;
    a.q = dev_put(t, host(nrd_row_bytes(c->act, q_width(c)) * (size_t)n), nrd_row_bytes(c->act, q_width(c)) * (size_t)n);
    a.latent = dev_put(t, latent, (size_t)n * row);
    a.norm = &norm;
    a.inv_freq = dev_put(t, freq, (size_t)c->row->rope * 2);
    a.kv = kv;
    ok(t->ops->latent_kv(t->s, &a));
    sync(t); /* the norm goes with this function */
    return kv;
}

/* What was moved or copied is what would be there had it been written to where it went. */
static void move_check(const target *t, const latent_row *row)
{
    const latent_case c = {.row = row, .act = kind->acts[0], .kv_type = NRD_DTYPE_BF16, .rope = NRD_ROPE_NEOX};
    const int32_t bt = row->block_tokens, n = MOVE_BLOCKS * bt, copied[2] = {1, 3};
    const size_t bytes = MOVE_BLOCKS * t->ops->kv_block_bytes(t->dev, c.kv_type, bt, 0, row->rank + row->rope);
    const char *rows = host_as(c.act, (int64_t)n * (row->rank + row->rope), 1);
    int32_t pairs[2 * MOVE_PAIRS], *from = host((size_t)n * 4);
    char *want = host(bytes), *got = host(bytes);

    for (int32_t i = 0; i < n; i++) {
        from[i] = i;
    }
    const nrd_kv_layer kv = cache_of_rows(t, &c, rows, from);
    for (int i = 0; i < MOVE_PAIRS; i++) {
        pairs[2 * i] = i % 5 == 4 ? pairs[2 * i - 1] : rnd_in(0, n - 1);
        pairs[2 * i + 1] = rnd_in(0, n - 1);
        from[pairs[2 * i + 1]] = from[pairs[2 * i]];
    }
    memcpy(from + 3 * bt, from + bt, (size_t)bt * 4);
    const nrd_move_tokens_args move = {.n_layers = 1, .n_pairs = MOVE_PAIRS, .kv = &kv, .pairs = pairs};
    const nrd_copy_blocks_args copy = {.n_layers = 1, .n_pairs = 1, .src = &kv, .dst = &kv, .pairs = copied};
    ok(t->ops->move_tokens(t->s, &move));
    ok(t->ops->copy_blocks(t->s, &copy));
    const nrd_kv_layer right = cache_of_rows(t, &c, rows, from);
    dev_get(t, want, right.base, bytes);
    dev_get(t, got, kv.base, bytes);
    case_name("move_tokens and copy_blocks of latent rows, blocks of %d", bt);
    same_bytes(t, "", got, want, bytes);
    case_end();
}

void check_latent(void)
{
    for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
        for (int i = 0; is_here(table[r].on) && i < (small_only ? table[r].count / 4 + 1 : table[r].count); i++) {
            latent_case c;
            latent_made m;
            draw(&c, &table[r], i);
            make(&m, &c);
            for (int k = 0; k < n_targets; k++) {
                on_target(&m, &targets[k]);
            }
            case_end();
        }
    }
    for (int k = 0; k < n_targets; k++) {
        move_check(&targets[k], &table[0]);
        move_check(&targets[k], &table[1]);
    }
}
