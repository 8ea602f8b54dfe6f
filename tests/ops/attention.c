/* SPDX-License-Identifier: Apache-2.0
 * rope_kv and attention over one paged cache. */
#include "ops/harness.h"

/* ---- the table ---- */

enum { MAX_SEQS = 300 };

/* How the sequences of a case are made. */
enum mode {
    DECODE,  /* one new token each */
    PREFILL, /* whole prompts, every second a later chunk */
    MIXED,   /* by turns one token and a prompt */
    LEADING, /* two of one token, then prompts */
    FEW,     /* up to six new tokens each */
    CHUNKS,  /* the last two thirds of each */
    DRAFTS,  /* up to forty new tokens each, every second time as trees */
    N_MODES
};

typedef struct attn_row {
    unsigned on;
    int count;                /* cases, whose sizes are drawn from the ranges below */
    enum mode modes[N_MODES]; /* by turns */
    int n_modes;
    int32_t
        heads[3]
             [2]; /* {heads of K and V, q heads of each}, by turns; 0: at random, up to 3 and 16 */
    int32_t dims[4];      /* by turns, until 0 */
    int32_t blocks[3];    /* tokens of a block, by turns, until 0 */
    int32_t seqs[2], ctx; /* range; the most tokens of a sequence */
    int32_t window;       /* every seventh case; 0: none */
    bool bytes;  /* a cache of 8 bits; else every type, by turns */
    bool ring;   /* what the view says of its work takes it to the kernel for few multiprocessors */
    bool extras; /* trees, other ropes, deterministic, too */
} attn_row;

/* clang-format off */
static const attn_row table[] = {
    {ON_CPU, 96, {MIXED, PREFILL, FEW, DECODE}, 4, {{3, 3}, {1, 4}, {4, 1}}, {64, 16, 48, 20}, {32, 16, 24}, {2, 4}, 90,
     40, false, false, true},
    {ON_CPU, 8, {DECODE, FEW}, 2, {{3, 3}, {1, 4}, {2, 3}}, {64, 256, 32}, {32, 16, 8}, {2, 3}, 1700, 0, false, false, false},
    /* prompts of many tiles, in chunks, beside single tokens and short ones, by tasks of parts of the context */
    {ON_CPU, 6, {CHUNKS, LEADING, PREFILL}, 3, {{1, 3}, {1, 9}, {1, 17}}, {64, 80, 32}, {32, 24, 16}, {1, 3}, 1200, 300, false, false,
     false},
    {ON_CUDA, 160, {DECODE, PREFILL, MIXED, FEW, LEADING}, 5, {{0}}, {64, 128, 256, 80}, {16, 32, 64}, {1, 5}, 300, 150, false, false,
     true},
    {ON_CUDA, 6, {DECODE, PREFILL}, 2, {{0}}, {64, 128, 256}, {16, 32, 64}, {1, 3}, 3000, 0, false, false, false},
    /* prompts of many tiles, whole and in chunks, alone and beside single tokens */
    {ON_CUDA, 30, {PREFILL, LEADING, CHUNKS}, 3, {{1, 4}, {2, 1}, {1, 20}}, {128, 64, 96}, {64, 64, 32}, {2, 5}, 900, 200, false,
     false, false},
    /* sequences without memory among prompts, behind prompts on all multiprocessors that left anything in shared memory */
    {ON_CUDA, 32, {MIXED}, 1, {{8, 4}, {8, 4}, {8, 4}}, {128, 64}, {64, 32}, {14, 14}, 150, 0, false, false, false},
    /* so many short prompts that a block does all rows of one with a KV head, over tiles that it brings once */
    {ON_CUDA | LARGE, 14, {PREFILL, LEADING, CHUNKS}, 3, {{16, 4}, {24, 3}, {32, 2}}, {64, 128, 96}, {64}, {14, 18}, 260, 200, false, false, false},
    /* prompts of so many tokens with so few heads that rope_kv takes all of a run in a block */
    {ON_CUDA, 12, {PREFILL, LEADING, MIXED}, 3, {{3, 3}, {1, 4}, {2, 2}}, {64, 128}, {64, 16}, {32, 40}, 900, 200, false, false, false},
    /* single tokens as the kernel for few multiprocessors takes them, alone and beside prompts */
    {ON_CUDA, 30, {DECODE, LEADING, DECODE}, 3, {{2, 4}, {3, 1}, {1, 8}}, {128}, {64}, {1, 8}, 1500, 0, true, true,
     false},
    {ON_CUDA, 6, {DECODE, LEADING}, 2, {{1, 5}, {2, 2}, {2, 4}}, {128}, {64}, {20, 48}, 300, 0, true, true,
     false},
    /* one to nine sequences of one token: what a server with one user runs */
    {ON_CUDA, 40, {DECODE}, 1, {{8, 4}, {0}, {9, 1}}, {128, 64, 128, 256}, {64, 16, 64}, {1, 9}, 2500, 400, false, false, false},
    /* one of them, and no more than a kernel for short contexts takes */
    {ON_CUDA, 60, {DECODE}, 1, {{3, 3}, {0}, {8, 4}}, {64, 128}, {16, 64, 32}, {1, 1}, 512, 0, false, false, false},
    {ON_CUDA, 20, {DECODE}, 1, {{3, 3}, {0}, {8, 4}}, {64, 128}, {64, 16, 32}, {1, 1}, 40, 0, false, false, false},
    /* drafts and trees of drafts: rows in groups, contexts in parts */
    {ON_CUDA, 60, {DRAFTS}, 1, {{8, 4}, {0}, {2, 7}}, {128, 64, 256}, {64, 16, 32}, {1, 5}, 1500, 300, false, false, false},
    /* many (sequence, head) pairs: the kernel that gives each a single warp */
    {ON_CUDA | LARGE, 6, {DECODE, DECODE, FEW}, 3, {{220, 1}, {220, 2}, {220, 1}}, {64, 128}, {16, 32, 64}, {8, 8}, 120, 70, false,
     false, false},
    /* so many of them that sixteen warps of a multiprocessor take one each; F8 and the others */
    {ON_CUDA | LARGE, 8, {DECODE}, 1, {{220, 1}, {220, 2}, {220, 4}}, {128, 64}, {64}, {8, 8}, 400, 0, true, false, false},
    {ON_CUDA | LARGE, 8, {DECODE}, 1, {{220, 1}, {220, 2}, {220, 8}}, {128, 64}, {64, 32}, {8, 8}, 200, 0, false, false, false},
    /* many single tokens: rope_kv has jobs for them, alone and in front of prompts */
    {ON_CUDA, 6, {DECODE}, 1, {{8, 4}, {3, 3}, {8, 9}}, {128, 64}, {64, 16}, {270, MAX_SEQS}, 70, 0, false, false, false},
    {ON_CUDA, 4, {LEADING}, 1, {{8, 4}, {3, 3}, {7, 5}}, {128, 64}, {64, 32}, {5, 7}, 700, 0, false, false, false},
};
/* clang-format on */

typedef struct attn_case {
    nrd_dtype act, kv_type, out;
    int32_t n_heads, n_kv, dim, block_tokens, n_seqs;
    int32_t fresh[MAX_SEQS], ctx[MAX_SEQS];
    int32_t n_empty; /* the first so many sequences of one token have no memory: zero comes out */
    int32_t window, n_sink;
    int32_t ahead;
    float softcap;
    bool tree, deterministic, norms, drop, f8_products;
    bool wide, shared, /* the heads of a wide norm are two ranks' */
        alibi, rel_bias, sink_logits, chunked;
    int32_t rel_back, rel_ahead;
    bool apart, center, biased, late; /* forms of norms */
    bool v_norm, q_alone;     /* q_alone: queries are also made without keys and values beside them */
    float clip, q_beta;
    bool declare; /* n_single of the view */
    int64_t single_ctx, prompt_pairs;
    nrd_rope_kind rope;
    bool axes; /* pairs turn by a place on an axis of their own */
    int32_t rotary_dim;
} attn_case;

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static void draw_lengths(attn_case *c, const attn_row *row, enum mode mode)
{
    for (int32_t s = 0; s < c->n_seqs; s++) {
        const bool one =
            mode == DECODE || (mode == MIXED && s % 2 == 0) || (mode == LEADING && s < 2);
        c->ctx[s] = rnd_in(1, small_only ? least(row->ctx, 700) : row->ctx);
        c->fresh[s] = one                        ? 1
                      : mode == FEW              ? rnd_in(1, 6)
                      : mode == DRAFTS           ? rnd_in(1, 40)
                      : mode == CHUNKS           ? c->ctx[s] - c->ctx[s] / 3
                      : mode == PREFILL && s % 2 ? rnd_in(1, c->ctx[s])
                                                 : c->ctx[s];
        c->fresh[s] = least(least(c->fresh[s], c->ctx[s]), c->tree          ? 40
                                                           : row->ctx > 500 ? 900
                                                                            : 200);
        if (s < c->n_empty && one && s % 3 == 1) {
            c->ctx[s] = 1;
        }
    }
}

/* Case i of a row: everything by turns, so that each feature meets many others. */
static void attn_draw(attn_case *c, const attn_row *row, int i)
{
    static const nrd_dtype cpu_kv[] = {NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16, NRD_DTYPE_I8};
    const int32_t *heads = row->heads[i % 3];
    int n_dims = 0, n_blocks = 0;

    while (n_dims < 4 && row->dims[n_dims]) {
        n_dims++;
    }
    while (n_blocks < 3 && row->blocks[n_blocks]) {
        n_blocks++;
    }
    *c = (attn_case){.act = kind->acts[i % 10 < 7    ? 0
                                       : i % 10 < 9  ? 1 % kind->n_acts
                                       : row->extras ? 2 % kind->n_acts
                                                     : 0],
                     .dim = row->dims[i / 2 % n_dims],
                     .block_tokens = row->blocks[i / 3 % n_blocks],
                     .n_seqs = rnd_in(row->seqs[0], row->seqs[1])};
    c->out = i % 4 == 3 ? kind->eight : c->act;
    c->kv_type = kind->is_exact          ? cpu_kv[i / 8 % 4]
                 : row->bytes || i % 3 == 1 ? (i / 2 % 2 ? NRD_DTYPE_I8 : NRD_DTYPE_F8_E4M3)
                                            : c->act;
    c->n_kv = heads[0] ? heads[0] : rnd_in(1, 3);
    c->n_heads = c->n_kv * (heads[1] ? heads[1] : (int32_t[]){1, 2, 4, 8, 16, 3, 5, 6, 7}[rnd_in(0, kind->is_exact ? 8 : 5)]);
    c->norms = i % 5 == 2;
    c->wide = c->norms && i % 2;
    c->shared = c->wide && i % 4 == 1;
    c->apart = c->norms && !c->wide && i % 20 >= 10;
    c->center = c->norms && !c->wide && i % 30 >= 10;
    c->biased = c->center && i % 4 == 0;
    c->late = c->norms && !c->wide && i % 40 >= 20;
    c->clip = !c->late && i % 8 == 7 ? 0.9f : 0;
    c->v_norm = i % (kind->is_exact ? 7 : 14) == 2;
    c->q_alone = !c->wide && i % 6 == 3;
    c->q_beta = i % 11 == 5 ? 0.3f : 0;
    c->alibi = i % (kind->is_exact ? 6 : 12) == 4; /* on a GPU such cases leave the usual kernels */
    c->rope = row->extras ? (nrd_rope_kind)(i % 3) : NRD_ROPE_NEOX;
    c->rotary_dim = c->rope == NRD_ROPE_INTERLEAVED || (kind->is_exact && c->dim % 32 == 0)
                        ? c->dim / 2
                        : c->dim;
    c->axes = i % 6 >= 4;
    c->sink_logits = i % 4 == 2;
    c->softcap = i % 9 == 5 ? 20.0f : 0;
    c->window = row->window && i % 7 == 6 ? rnd_in(1, row->window) : 0;
    c->n_sink = c->window && i % 2 ? rnd_in(1, 5) : 0;
    c->drop = c->window && i % 3 == 0;
    c->tree = (row->extras && i % 19 == 18) || (row->modes[i % row->n_modes] == DRAFTS && i % 2);
    c->chunked = c->window && i % 28 < 14;
    const bool sees_more = c->alibi ? i / 12 % 2 : i % (kind->is_exact ? 4 : 12) == 1;
    c->ahead = !c->tree && !c->chunked && sees_more ? i % 8 == 1 || i % 16 == 0 ? 1 << 20 : rnd_in(1, 60) : 0;
    c->rel_bias = !c->tree && !c->alibi && i % (kind->is_exact ? 5 : 13) == 1;
    c->rel_back = rnd_in(0, 70);
    c->rel_ahead = c->ahead ? rnd_in(0, 70) : 0;
    c->deterministic = i % 23 == 22;
    c->f8_products = i % 2 && c->kv_type == NRD_DTYPE_F8_E4M3; /* where a device does not, it changes nothing */
    c->declare = i % 5 != 0 || row->ring;
    c->n_empty = i % 7 == 3 && !c->tree ? c->n_seqs : 0;
    if (row->ring) { /* not true: that must change the way only */
        c->single_ctx = (int64_t)1 << 34;
        c->prompt_pairs = (int64_t)1 << (i % 6 == 1 ? 34 : i % 6 == 3 ? 38 : 36);
    }
    draw_lengths(c, row, row->modes[i % row->n_modes]);
}

/* ---- the batch of a case ---- */

/* Host arrays of one step; a step before it brings the tokens that are in the cache already. */
typedef struct attn_step {
    int32_t n, most_new, most_ctx, stride, words, n_blocks;
    int32_t q_start[MAX_SEQS + 1], ctx[MAX_SEQS], *pos, *axes, *seq, *table;
    uint32_t *mask;
    void *qkv;
} attn_step;

static int64_t width_of(const attn_case *c)
{
    return (int64_t)c->n_heads * c->dim;
}
static int32_t distances_of(const attn_case *c)
{
    return c->rel_back + c->rel_ahead + 1;
}
static int64_t row_of(const attn_case *c)
{
    return width_of(c) + 2 * (int64_t)c->n_kv * c->dim;
}

static bool is_empty(const attn_case *c, int32_t s)
{
    return c->ctx[s] == 1 && s < c->n_empty;
}

/* Blocks in random order; those wholly out of the windows of all that comes are dropped. */
static void make_table(const attn_case *c, attn_step *st)
{
    int32_t next = 0;

    st->stride = (st->most_ctx + c->block_tokens - 1) / c->block_tokens + 1;
    for (int32_t s = 0; s < c->n_seqs; s++) {
        st->n_blocks += (c->ctx[s] + c->block_tokens - 1) / c->block_tokens;
    }
    int32_t *order = host((size_t)st->n_blocks * 4);
    for (int32_t i = 0; i < st->n_blocks; i++) {
        const int32_t j = rnd_in(0, i);
        order[i] = order[j];
        order[j] = i;
    }
    st->table = host((size_t)(c->n_seqs * st->stride) * 4);
    for (int32_t s = 0; s < c->n_seqs; s++) {
        const int32_t keep = c->drop ? c->ctx[s] - c->fresh[s] - c->window + 1 : 0;
        for (int32_t i = 0; i < st->stride; i++) {
            const int32_t first = i * c->block_tokens;
            const bool gone = first + c->block_tokens <= keep && first >= c->n_sink;
            st->table[s * st->stride + i] =
                first < c->ctx[s] && !is_empty(c, s) && !gone ? order[next++] : -1;
        }
    }
}

static void make_step(const attn_case *c, attn_step *st, bool second)
{
    for (int32_t s = 0; s < c->n_seqs; s++) {
        const int32_t n = second ? c->fresh[s] : c->ctx[s] - c->fresh[s];
        st->q_start[s + 1] = st->n += n;
        st->ctx[s] = second ? c->ctx[s] : n;
        st->most_new = n > st->most_new ? n : st->most_new;
        st->most_ctx = c->ctx[s] > st->most_ctx ? c->ctx[s] : st->most_ctx;
    }
    st->words = (st->most_new + 31) / 32;
    st->pos = host((size_t)(st->n + 1) * 4);
    st->axes = host((size_t)(st->n + 1) * NRD_ROPE_AXES * 4);
    for (int32_t i = 0; i < st->n * NRD_ROPE_AXES; i++) {
        st->axes[i] = rnd_in(0, st->most_ctx);
    }
    st->seq = host((size_t)(st->n + 1) * 4);
    st->mask = host((size_t)(st->n * st->words + 1) * 4);
    st->qkv = host_as(c->act, st->n * row_of(c), 1);
    for (int32_t s = 0; s < c->n_seqs; s++) {
        const int32_t old = second ? c->ctx[s] - c->fresh[s] : 0;
        for (int32_t k = 0; k < st->q_start[s + 1] - st->q_start[s]; k++) {
            const int32_t t = st->q_start[s] + k;
            st->seq[t] = s;
            st->pos[t] =
                second && c->tree ? old + (k + 1) / 2 : old + k; /* siblings share a position */
            for (int32_t j = k; j >= 0;
                 j = j > 0 ? (j - 1) / 2 : -1) { /* a node sees its ancestors */
                st->mask[t * st->words + j / 32] |= 1u << (j % 32);
            }
        }
    }
}

static nrd_batch_view view_of(const attn_case *c, const attn_step *st, bool second)
{
    nrd_batch_view v = {.n_tokens = st->n,
                        .n_seqs = c->n_seqs,
                        .max_q_len = st->most_new,
                        .max_ctx_len = st->most_ctx,
                        .positions = st->pos,
                        .axes = c->axes ? st->axes : NULL,
                        .token_seq = st->seq,
                        .q_start = st->q_start,
                        .ctx_len = st->ctx,
                        .block_table = st->table,
                        .block_table_stride = st->stride,
                        .tree_mask = second && c->tree ? st->mask : NULL,
                        .tree_mask_words = st->words};
    while (second && c->declare && v.n_single < c->n_seqs && c->fresh[v.n_single] == 1) {
        v.n_single++;
    }
    v.single_ctx = v.n_single > 0 ? c->single_ctx : 0;
    v.prompt_pairs = v.n_single > 0 && v.n_single < c->n_seqs ? c->prompt_pairs : 0;
    return v;
}

/* The view's arrays in device memory. */
static nrd_batch_view view_on(const target *t, const nrd_batch_view *v)
{
    nrd_batch_view d = *v;
    d.positions = dev_put(t, v->positions, (size_t)v->n_tokens * 4);
    d.axes = v->axes ? dev_put(t, v->axes, (size_t)v->n_tokens * NRD_ROPE_AXES * 4) : NULL;
    d.token_seq = dev_put(t, v->token_seq, (size_t)v->n_tokens * 4);
    d.q_start = dev_put(t, v->q_start, (size_t)(v->n_seqs + 1) * 4);
    d.ctx_len = dev_put(t, v->ctx_len, (size_t)v->n_seqs * 4);
    d.block_table = dev_put(t, v->block_table, (size_t)(v->n_seqs * v->block_table_stride) * 4);
    d.tree_mask = v->tree_mask
                      ? dev_put(t, v->tree_mask, (size_t)(v->n_tokens * v->tree_mask_words) * 4)
                      : NULL;
    return d;
}

/* ---- the reference ---- */

typedef struct attn_made {
    attn_case c;
    attn_step steps[2];
    nrd_batch_view views[2];
    nrd_weight q_norm, k_norm, q_norm_bias, k_norm_bias;
    float *squares[2]; /* [n, 2] of each step's tokens, of this rank */
    float *all_squares[2]; /* and of both */
    float *inv_freq, *alibi, *rel_bias, *sink_logits;
    uint8_t *pair_axis;
    nrd_kv_layer kv;           /* the reference's cache: float32 of what the type holds */
    void *q;                   /* new tokens' rows after rope_kv */
    int32_t n_looked, *looked; /* the tokens whose results are compared */
    float *want;               /* [n_looked, width] */
} attn_made;

static nrd_rope_kv_args rope_args(const attn_made *m, const nrd_batch_view *view)
{
    const attn_case *c = &m->c;
    return (nrd_rope_kv_args){.batch = view,
                              .act_dtype = c->act,
                              .n_heads = c->n_heads,
                              .norm_eps = 1e-6f,
                              .wide_norm = c->wide,
                              .wide_ranks = c->shared ? 2 : 0,
                              .apart_norm = c->apart,
                              .center_norm = c->center,
                              .late_norm = c->late,
                              .clip = c->clip,
                              .v_norm = c->v_norm,
                              .q_scale_beta = c->q_beta,
                              .q_scale_length = 7,
                              .q_scale_offset = 1,
                              .rope = c->rope,
                              .q_norm = c->norms ? &m->q_norm : NULL,
                              .k_norm = c->norms ? &m->k_norm : NULL,
                              .q_norm_bias = c->biased ? &m->q_norm_bias : NULL,
                              .k_norm_bias = c->biased ? &m->k_norm_bias : NULL,
                              .rotary_dim = c->rotary_dim,
                              .inv_freq = m->inv_freq,
                              .pair_axis = c->axes ? m->pair_axis : NULL,
                              .rope_scale = 1.1f,
                              .kv = m->kv};
}

static nrd_attention_args attention_args(const attn_case *c)
{
    return (nrd_attention_args){.q_stride = row_of(c),
                                .act_dtype = c->act,
                                .n_heads = c->n_heads,
                                .softcap = c->softcap,
                                .scale = 1.0f / sqrtf((float)c->dim),
                                .window = c->window,
                                .n_sink = c->n_sink,
                                .ahead = c->ahead,
                                .chunked = c->chunked,
                                .rel_back = c->rel_back,
                                .rel_ahead = c->rel_ahead,
                                .deterministic = c->deterministic,
                                .f8_products = c->f8_products};
}

/* What a number becomes in the cache. */
static float kept(nrd_dtype t, float v, float scale)
{
    uint32_t u = 0;

    if (t == NRD_DTYPE_F8_E4M3) {
        return nrd_f8e4m3_to_f32(nrd_f32_to_f8e4m3(v / scale)) * scale;
    }
    nrd_kv_store(t, &u, 0, scale, v);
    return nrd_kv_load(t, &u, 0, scale);
}

static nrd_head_squares_args squares_args(const attn_case *c, int32_t n_tokens)
{
    return (nrd_head_squares_args){
        .act_dtype = c->act, .n_tokens = n_tokens, .n_heads = c->n_heads, .n_kv_heads = c->n_kv, .head_dim = c->dim};
}

/* Of step k's tokens; the other rank's are larger. */
static void ref_squares(attn_made *m, int k)
{
    nrd_head_squares_args a = squares_args(&m->c, m->steps[k].n);

    m->squares[k] = a.out = host((size_t)(2 * a.n_tokens) * 4);
    m->all_squares[k] = host((size_t)(2 * a.n_tokens) * 4);
    a.qkv = m->steps[k].qkv;
    ok(nrd_head_squares_check(&a));
    nrd_head_squares_ref(&a);
    for (int32_t i = 0; i < 2 * a.n_tokens; i++) {
        m->all_squares[k][i] = m->squares[k][i] * (i % 2 ? 3.5f : 2.25f);
    }
}

static void ref_rope(attn_made *m)
{
    const attn_case *c = &m->c;
    const int64_t half = nrd_kv_head_elems(c->block_tokens, c->dim);
    const int64_t all = (int64_t)m->kv.n_blocks * c->n_kv * 2 * half;
    float *cache = m->kv.base;

    for (int k = 0; k < 2; k++) {
        nrd_rope_kv_args a = rope_args(m, &m->views[k]);
        size_t bytes = nrd_row_bytes(c->act, row_of(c)) * (size_t)m->steps[k].n;
        if (c->shared) {
            ref_squares(m, k);
            a.wide_squares = m->all_squares[k];
        }
        a.qkv = m->q = memcpy(host(bytes), m->steps[k].qkv, bytes);
        ok(nrd_rope_kv_check(&a));
        nrd_rope_kv_ref(&a);
    }
    for (int64_t i = 0; i < all; i++) {
        cache[i] = kept(c->kv_type, cache[i], m->kv.scales[i / half % 2 * c->n_kv + i / (2 * half) % c->n_kv]);
    }
}

/* All tokens of small cases, some of large ones: each is a sequence of its own there. */
static void ref_attention(attn_made *m)
{
    const attn_case *c = &m->c;
    const attn_step *st = &m->steps[1];
    nrd_attention_args a = attention_args(c);
    a.alibi = c->alibi ? m->alibi : NULL;
    a.rel_bias = c->rel_bias ? m->rel_bias : NULL;
    a.sink_logits = c->sink_logits ? m->sink_logits : NULL;
    nrd_batch_view v = m->views[1];
    int64_t pairs = 0, left;

    for (int32_t t = 0; t < st->n; t++) {
        pairs += st->pos[t] + 1;
    }
    const bool all = c->tree || pairs * width_of(c) < 4000000;
    m->looked = host((size_t)st->n * 4);
    a.kv = m->kv;
    a.q = m->q;
    if (all) {
        for (int32_t t = 0; t < st->n; t++) {
            m->looked[t] = t;
        }
        m->n_looked = st->n;
    } else {
        const int64_t step = pairs * width_of(c) / 4000000 + 1;
        int32_t *start = host((size_t)(st->n + 1) * 4), *ctx = host((size_t)st->n * 4),
                *pos = host((size_t)st->n * 4);
        int32_t *blocks = host((size_t)(st->n * st->stride) * 4);
        char *q = host(nrd_row_bytes(c->act, row_of(c)) * (size_t)st->n);
        size_t bytes = nrd_row_bytes(c->act, row_of(c));
        for (left = 0; left < st->n; left += rnd_in(1, (int32_t)(2 * step))) {
            const int32_t t = (int32_t)(m->n_looked == 0 ? st->n - 1 : left), n = m->n_looked++;
            m->looked[n] = t;
            start[n + 1] = n + 1;
            pos[n] = st->pos[t];
            ctx[n] = c->ahead ? st->ctx[st->seq[t]] : pos[n] + 1;
            memcpy(blocks + (int64_t)n * st->stride, st->table + (int64_t)st->seq[t] * st->stride,
                   (size_t)st->stride * 4);
            memcpy(q + (size_t)n * bytes, (char *)m->q + (size_t)t * bytes, bytes);
        }
        v = (nrd_batch_view){.n_tokens = m->n_looked,
                             .n_seqs = m->n_looked,
                             .max_q_len = 1,
                             .max_ctx_len = st->most_ctx,
                             .positions = pos,
                             .token_seq = pos,
                             .q_start = start,
                             .ctx_len = ctx,
                             .block_table = blocks,
                             .block_table_stride = st->stride};
        a.q = q;
    }
    a.batch = &v;
    a.out_dtype = NRD_DTYPE_F32;
    a.out = m->want = host((size_t)(m->n_looked * width_of(c)) * 4);
    ok(nrd_attention_check(&a));
    nrd_attention_ref(&a);
}

/* Of heads' keys and values, up to four times apart. */
static const float *host_scales(int32_t n_kv)
{
    float *x = host((size_t)(2 * n_kv) * 4);

    for (int32_t k = 0; k < 2 * n_kv; k++) {
        x[k] = 0.0125f * exp2f(2.0f * (float)rnd_in(0, 16) / 16.0f);
    }
    return x;
}

static void attn_make(attn_made *m, const attn_case *of)
{
    attn_case *c = &m->c;
    float *norm;

    *m = (attn_made){.c = *of};
    for (int k = 0; k < 2; k++) {
        make_step(c, &m->steps[k], k == 1);
    }
    make_table(c, &m->steps[1]);
    m->steps[0].table = m->steps[1].table;
    m->steps[0].stride = m->steps[1].stride;
    for (int k = 0; k < 2; k++) {
        m->views[k] = view_of(c, &m->steps[k], k == 1);
    }
    const bool whole = c->wide || c->apart;
    const int32_t q_width = whole ? c->n_heads * c->dim : c->dim, k_width = whole ? c->n_kv * c->dim : c->dim;
    m->q_norm = weight_new(NRD_DTYPE_F32, q_width, 1, 0.5f);
    m->k_norm = weight_new(kind->is_exact ? NRD_DTYPE_F16 : NRD_DTYPE_F32, k_width, 1, 1);
    m->q_norm_bias = weight_new(NRD_DTYPE_F32, q_width, 1, 0.5f);
    m->k_norm_bias = weight_new(m->k_norm.dtype, k_width, 1, 0.5f);
    norm = (float *)(uintptr_t)m->q_norm.data;
    m->inv_freq = host((size_t)c->dim * 4);
    m->pair_axis = host((size_t)c->dim);
    m->alibi = host((size_t)c->n_heads * 4);
    m->rel_bias = host_normal(c->n_heads * distances_of(c), 2);
    m->sink_logits = host_normal(c->n_heads, 3);
    for (int32_t k = 0; k < q_width; k++) {
        norm[k] += 1.0f;
    }
    for (int32_t k = 0; k < c->n_heads; k++) {
        if (k % 5 == 4) {
            m->sink_logits[k] *= 100; /* far above or below every score */
        }
        m->alibi[k] = exp2f(-8.0f * (float)(k + 1) / (float)c->n_heads);
    }
    for (int32_t k = 0; k < c->dim; k++) {
        m->inv_freq[k] = powf(10000.0f, -2.0f * (float)k / (float)c->rotary_dim);
        m->pair_axis[k] = (uint8_t)(c->n_seqs % 2 ? k % NRD_ROPE_AXES : k * NRD_ROPE_AXES / c->dim); /* by turns, or in a row */
    }
    m->kv = (nrd_kv_layer){.dtype = NRD_DTYPE_F32,
                           .n_blocks = m->steps[1].n_blocks,
                           .block_tokens = c->block_tokens,
                           .n_kv_heads = c->n_kv,
                           .head_dim = c->dim,
                           .scales = host_scales(c->n_kv)};
    m->kv.base = host(nrd_kv_block_bytes(NRD_DTYPE_F32, c->block_tokens, c->n_kv, c->dim) *
                      (size_t)m->kv.n_blocks);
    case_name(
        "attention %s kv %s -> %s, heads %d/%d x %d, block %d, %d seqs (%d of %d ..)%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
        nrd_dtype_name(c->act), nrd_dtype_name(c->kv_type), nrd_dtype_name(c->out), c->n_heads,
        c->n_kv, c->dim, c->block_tokens, c->n_seqs, c->fresh[0], c->ctx[0],
        c->window ? " window" : "", c->n_sink ? " sink" : "", c->softcap > 0 ? " cap" : "",
        c->tree ? " tree" : "", c->deterministic ? " det" : "", c->norms ? " norms" : "",
        c->shared ? " shared" : c->wide ? " wide" : "", c->alibi ? " alibi" : "", c->ahead ? " ahead" : "", c->rel_bias ? " distances" : "",
        c->sink_logits ? " sink logits" : "", c->chunked ? " chunked" : "", c->apart ? " apart" : "",
        c->biased ? " centered, biased" : c->center ? " centered" : "", c->late ? " late" : "", c->clip > 0 ? " clip" : "", c->q_beta > 0 ? " scaled q" : "",
        c->axes ? " axes" : "", c->f8_products ? " f8 products" : "");
    ref_rope(m);
    ref_attention(m);
}

/* ---- a device ---- */

/* Of a number that the cache may have rounded to the neighbour. */
static double cache_step(nrd_dtype kv)
{
    return kv == NRD_DTYPE_F32 ? 0 : kv == NRD_DTYPE_F16 ? 2e-3 : kv == NRD_DTYPE_BF16 ? 1.6e-2 : 5.1e-2;
}

/* A matrix unit takes so many new tokens of a sequence. */
enum { UNIT_FROM = 32 };
static bool on_unit(const attn_made *m, const target *t, int32_t n)
{
    const attn_case *c = &m->c;
    return has_unit(t) && n >= UNIT_FROM && c->dim % 16 == 0 && c->kv_type != NRD_DTYPE_F32 && !c->tree && !c->deterministic &&
           !c->alibi && !c->rel_bias;
}

/* Softmax weights sum to one: errors of scores (dim roundings) and of e^x enter relatively. The cache may round K
 * and V of this step to the neighbour: half a step of its type. Elsewhere P is rounded to the 16-bit type of the
 * tensor cores; with f8_products Q and P have four bits each. */
static limit attention_limit(const attn_made *m)
{
    const double step = cache_step(m->c.kv_type);

    if (kind->is_exact) {
        return (limit){
            2e-5 + step +
                (m->c.out == kind->eight ? eight_step(m->want, m->n_looked * width_of(&m->c)) : 0),
            1e-5, 0};
    }
    return (limit){0, 0, rounding(m->c.out) + (m->c.act == NRD_DTYPE_F32 ? 1e-4 : m->c.f8_products ? 4e-2 : 4e-3)};
}

static void compare_looked(const attn_made *m, const target *t, const float *out)
{
    const int64_t width = width_of(&m->c);
    float *got = host((size_t)(m->n_looked * width) * 4);
    bool written = true;

    for (int32_t i = 0; i < m->n_looked; i++) {
        memcpy(got + i * width, out + m->looked[i] * width, (size_t)width * 4);
    }
    for (int64_t i = 0; i < m->steps[1].n * width; i++) {
        written = written && isfinite(out[i]);
    }
    if (!written) {
        verdict(t, "an element was not written", false);
    }
    compare(t, "", got, m->want, m->n_looked * width, attention_limit(m));
}

/* The last new token of a sequence alone gives the same bits; on a matrix unit as many as that takes. */
static void last_alone(const attn_made *m, const target *t, const nrd_attention_args *of,
                       const float *out)
{
    const attn_step *st = &m->steps[1];
    const int32_t s = rnd_in(0, m->c.n_seqs - 1), fresh = st->q_start[s + 1] - st->q_start[s],
                  n = on_unit(m, t, fresh) ? UNIT_FROM : 1, last = st->q_start[s + 1] - n,
                  start[2] = {0, n}, zeros[UNIT_FROM] = {0};
    const int64_t width = width_of(&m->c);
    const nrd_batch_view one = {.n_tokens = n,
                                .n_seqs = 1,
                                .max_q_len = n,
                                .max_ctx_len = st->ctx[s],
                                .positions = &st->pos[last],
                                .token_seq = zeros,
                                .q_start = start,
                                .ctx_len = &st->ctx[s],
                                .block_table = st->table + (int64_t)s * st->stride,
                                .block_table_stride = st->stride};
    const nrd_batch_view v = view_on(t, &one);
    nrd_attention_args a = *of;

    a.batch = &v;
    a.q = (const char *)of->q + nrd_row_bytes(m->c.act, row_of(&m->c)) * (size_t)last;
    a.out = dev_out(t, (size_t)(n * width) * 4);
    ok(t->ops->attention(t->s, &a));
    same_bytes(t, n > 1 ? "last tokens alone" : "a token alone", dev_rows(t, NRD_DTYPE_F32, a.out, NULL, n, width),
               out + last * width, (size_t)(n * width) * 4);
}

/* What the cache holds of step 1's tokens. */
static void target_rows(const attn_made *m, const target *t, const nrd_batch_view *v, const nrd_kv_layer *kv)
{
    const attn_case *c = &m->c;
    const nrd_batch_view *b = &m->views[1];
    const int64_t row = 2 * (int64_t)c->n_kv * c->dim;
    const nrd_kv_rows_args a = {.batch = v, .kv = *kv, .out = dev_out(t, (size_t)(b->n_tokens * row) * 4)};
    float *got = host((size_t)(b->n_tokens * row) * 4), *want = host((size_t)(b->n_tokens * row) * 4);

    ok(t->ops->kv_rows(t->s, &a));
    dev_get(t, got, a.out, (size_t)(b->n_tokens * row) * 4);
    for (int64_t i = 0; i < b->n_tokens * row; i++) {
        const int32_t tok = (int32_t)(i / row), head = (int32_t)(i % row / c->dim), d = (int32_t)(i % c->dim);
        const int32_t slot = nrd_kv_slot(b, tok), in = slot % c->block_tokens;
        const int32_t block = b->block_table[(int64_t)b->token_seq[tok] * b->block_table_stride + slot / c->block_tokens];
        const bool is_v = head >= c->n_kv;
        const int64_t at = is_v ? nrd_kv_v_index(&m->kv, head - c->n_kv, in, d) : nrd_kv_k_index(&m->kv, head, in, d);
        const int64_t all = (int64_t)c->n_kv * 2 * nrd_kv_head_elems(c->block_tokens, c->dim);
        want[i] = block < 0 ? 0 : ((const float *)m->kv.base)[block * all + at];
    }
    compare(t, "rows of the cache", got, want, b->n_tokens * row, (limit){0, 0, cache_step(c->kv_type) + 1e-5});
}

/* Whether a case's keys and values are also written without the queries beside them. */
static bool writes_alone(const attn_case *c)
{
    return c->rope == NRD_ROPE_NONE && !c->wide && !c->v_norm && !(c->clip > 0);
}

/* The cache of step k as rope_kv with n_heads 0 writes it, of rows that have keys and values only. */
static void keys_alone(const attn_made *m, const target *t, int k, const nrd_rope_kv_args *of, nrd_kv_layer kv)
{
    const attn_case *c = &m->c;
    const size_t part = nrd_row_bytes(c->act, row_of(c) - width_of(c)), whole = nrd_row_bytes(c->act, row_of(c));
    char *rows = host(part * (size_t)m->steps[k].n);
    nrd_rope_kv_args r = *of;

    for (int32_t i = 0; i < m->steps[k].n; i++) {
        memcpy(rows + part * (size_t)i, (const char *)m->steps[k].qkv + whole * (size_t)i + (whole - part), part);
    }
    r.n_heads = 0;
    r.q_norm = r.q_norm_bias = NULL;
    r.kv = kv;
    r.qkv = dev_put(t, rows, part * (size_t)m->steps[k].n);
    ok(t->ops->rope_kv(t->s, &r));
    sync(t);
}

/* Step 1's queries from rows that have nothing else: they become what they became beside keys and values, and the cache stays as it
 * is, as attention then sees. */
static void queries_alone(const attn_made *m, const target *t, const nrd_rope_kv_args *of)
{
    const attn_case *c = &m->c;
    const int32_t n = m->steps[1].n;
    const int64_t width = width_of(c), row = row_of(c);
    const size_t part = nrd_row_bytes(c->act, width), whole = nrd_row_bytes(c->act, row);
    char *rows = host(part * (size_t)n), *made = host(part * (size_t)n);
    nrd_rope_kv_args r = *of;

    for (int32_t i = 0; i < n; i++) {
        memcpy(rows + part * (size_t)i, (const char *)m->steps[1].qkv + whole * (size_t)i, part);
        memcpy(made + part * (size_t)i, (const char *)m->q + whole * (size_t)i, part);
    }
    r.q_only = true;
    r.qkv = dev_put(t, rows, part * (size_t)n);
    ok(t->ops->rope_kv(t->s, &r));
    compare(t, "q alone", dev_rows(t, c->act, r.qkv, NULL, n, width), rows_of(c->act, made, NULL, n, width), n * width,
            kind->is_exact ? (limit){6e-6, 6e-6, 0} : (limit){0, 0, rounding(c->act)});
}

static void target_squares(const attn_made *m, const target *t, int k, const void *qkv)
{
    nrd_head_squares_args a = squares_args(&m->c, m->steps[k].n);
    float *got = host((size_t)(2 * a.n_tokens) * 4);

    a.qkv = qkv;
    a.out = dev_out(t, (size_t)(2 * a.n_tokens) * 4);
    ok(t->ops->head_squares(t->s, &a));
    dev_get(t, got, a.out, (size_t)(2 * a.n_tokens) * 4);
    compare(t, "squares", got, m->squares[k], 2 * a.n_tokens, (limit){0, 1e-5, 0});
}

static void attn_target(const attn_made *m, const target *t)
{
    const attn_case *c = &m->c;
    const int64_t width = width_of(c), row = row_of(c);
    const int32_t n = m->steps[1].n;
    nrd_kv_layer kv = m->kv;
    nrd_weight q_norm = weight_on(t, &m->q_norm, false), k_norm = weight_on(t, &m->k_norm, false);
    nrd_weight q_bias = weight_on(t, &m->q_norm_bias, false), k_bias = weight_on(t, &m->k_norm_bias, false);
    float *inv_freq = dev_put(t, m->inv_freq, (size_t)c->dim * 4);
    uint8_t *pair_axis = dev_put(t, m->pair_axis, (size_t)c->dim);
    nrd_attention_args a = attention_args(c);
    a.alibi = c->alibi ? dev_put(t, m->alibi, (size_t)c->n_heads * 4) : NULL;
    a.rel_bias = c->rel_bias ? dev_put(t, m->rel_bias, (size_t)(c->n_heads * distances_of(c)) * 4) : NULL;
    a.sink_logits = c->sink_logits ? dev_put(t, m->sink_logits, (size_t)c->n_heads * 4) : NULL;
    nrd_batch_view v = {0};

    kv.dtype = c->kv_type;
    const size_t cache_bytes =
        t->ops->kv_block_bytes(t->dev, c->kv_type, c->block_tokens, c->n_kv, c->dim) * (size_t)kv.n_blocks;
    kv.base = dev_out(t, cache_bytes);
    kv.scales = dev_put(t, m->kv.scales, (size_t)(2 * c->n_kv) * 4);
    nrd_kv_layer unread = kv;
    unread.base = writes_alone(c) ? dev_out(t, cache_bytes) : kv.base;
    for (int k = 0; k < 2; k++) {
        if (m->steps[k].n == 0) {
            continue;
        }
        v = view_on(t, &m->views[k]);
        nrd_rope_kv_args r = rope_args(m, &v);
        r.q_norm = r.q_norm ? &q_norm : NULL;
        r.k_norm = r.k_norm ? &k_norm : NULL;
        r.q_norm_bias = r.q_norm_bias ? &q_bias : NULL;
        r.k_norm_bias = r.k_norm_bias ? &k_bias : NULL;
        r.inv_freq = inv_freq;
        r.pair_axis = c->axes ? pair_axis : NULL;
        r.kv = unread;
        r.qkv = dev_put(t, m->steps[k].qkv, nrd_row_bytes(c->act, row) * (size_t)m->steps[k].n);
        if (c->shared) {
            target_squares(m, t, k, r.qkv);
            r.wide_squares = dev_put(t, m->all_squares[k], (size_t)(2 * m->steps[k].n) * 4);
        }
        ok(t->ops->rope_kv(t->s, &r));
        sync(t);
        if (writes_alone(c)) {
            keys_alone(m, t, k, &r, kv);
        }
        if (c->q_alone && k == 1) {
            queries_alone(m, t, &r);
        }
        a.q = r.qkv;
    }
    if (t->ops->kv_rows) {
        target_rows(m, t, &v, &kv);
    }
    float *got = dev_rows(t, c->act, a.q, NULL, n, row),
          *want = rows_of(c->act, m->q, NULL, n, row);
    for (int32_t i = 0; i < n; i++) { /* q alone: side by side */
        memmove(got + i * width, got + i * row, (size_t)width * 4);
        memmove(want + i * width, want + i * row, (size_t)width * 4);
    }
    compare(t, "q", got, want, n * width,
            kind->is_exact ? (limit){6e-6, 6e-6, 0} : (limit){0, 0, rounding(c->act)});
    a.batch = &v;
    a.kv = kv;
    a.out_dtype = c->out;
    a.out = dev_out(t, nrd_row_bytes(c->out, width) * (size_t)n);
    a.out_row_scale = c->out == NRD_DTYPE_F8_E4M3 ? dev_out(t, (size_t)n * 4) : NULL;
    ok(t->ops->attention(t->s, &a));
    const float *out = dev_rows(t, c->out, a.out, a.out_row_scale, n, width);
    compare_looked(m, t, out);
    if (kind->rows_alone && c->out == NRD_DTYPE_F32 && !c->tree) {
        last_alone(m, t, &a, out);
    }
}

void check_attention(void)
{
    for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
        for (int i = 0;
             is_here(table[r].on) && i < (small_only ? table[r].count / 4 + 1 : table[r].count);
             i++) {
            attn_case c;
            attn_made m;
            attn_draw(&c, &table[r], i);
            attn_make(&m, &c);
            for (int k = 0; k < n_targets; k++) {
                attn_target(&m, &targets[k]);
            }
            case_end();
        }
    }
}
