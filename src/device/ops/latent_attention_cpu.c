/* SPDX-License-Identifier: Apache-2.0
 * latent_attention on the CPU.
 *
 * A task is a token and some of its heads: K_h^T q of each head, then the sequence's rows in chunks of 64 tokens (the
 * flash attention of attention_cpu.h: scores, running maximum, exponentials, weighted sum of rows), then V_h of the
 * sum. All heads of a task read the same rows. The products of rows are those of adapters (lora_cpu.h), whose bits do
 * not depend on how many rows go together.
 *
 * Every 16 chunks the sums are merged into a total and begun anew, so that these splits of a long context can be tasks
 * of their own where there are few, which phase 1 merges: the same operations in the same order.
 * Bound: decode reads the cache once for each group of heads, and K and V of all heads; prefill: products. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { HEADS = 16, FEW_HEADS = 4, CHUNK = NRD_ATTN_CHUNK_TOKENS, SPLIT = NRD_ATTN_CHUNK_TOKENS * NRD_ATTN_SPLIT_CHUNKS };
/* nrd_cpu_cmd.i: heads of a task, splits that are tasks (0: none), rows of output need a pass of their own */
enum { GROUP, SPLITS, BY_ROWS };

/* Sums of some heads: maxima, sums of exponentials and of rows, each row of padded() numbers. */
typedef struct state {
    float *max, *sum, *o;
} state;

static int32_t rank_of(const nrd_latent_attention_args *a)
{
    return a->kv.head_dim - a->rope_dim;
}

static int32_t padded(int32_t n)
{
    return (n + 15) & ~15;
}

static size_t state_floats(const nrd_latent_attention_args *a)
{
    return (size_t)HEADS * (size_t)(padded(rank_of(a)) + 2);
}

static state state_at(float *p)
{
    return (state){p, p + HEADS, p + 2 * HEADS};
}

static void clear(const nrd_latent_attention_args *a, const state *s)
{
    memset(s->max, 0, state_floats(a) * sizeof(float));
    for (int32_t i = 0; i < HEADS; i++) {
        s->max[i] = -INFINITY;
    }
}

/* The task's heads of one token, and the room that it works in. */
typedef struct work {
    const nrd_latent_attention_args *a;
    const nrd_cpu_kernels *k;
    int32_t token, seq, head, n;
    int32_t end;    /* positions from here on are hidden */
    bool sees_all;  /* those before are not */
    float *q;       /* [n, head_dim] K_h^T q and the rotated part, times the scale */
    float *score;   /* [n, CHUNK] */
} work;

static const uint8_t *rows_at(const work *w, int32_t pos)
{
    const nrd_kv_layer *kv = &w->a->kv;
    const nrd_batch_view *b = w->a->batch;
    const int32_t id = b->block_table[(int64_t)w->seq * b->block_table_stride + pos / kv->block_tokens];
    const int64_t row = (int64_t)id * kv->block_tokens + pos % kv->block_tokens;

    return id < 0 || id >= kv->n_blocks
               ? NULL
               : (const uint8_t *)kv->base + (size_t)(row * kv->head_dim) * nrd_dtype_block_bytes(kv->dtype);
}

/* How many of the positions from `pos` to before `to` lie behind each other. */
static int32_t run_length(const work *w, int32_t pos, int32_t to)
{
    const int32_t bt = w->a->kv.block_tokens, left = bt - pos % bt;
    return left < to - pos ? left : to - pos;
}

static void absorb(const work *w)
{
    const nrd_latent_attention_args *a = w->a;
    const int32_t rank = rank_of(a), width = a->kv.head_dim, q_width = a->nope_dim + a->rope_dim;
    const size_t head_bytes = (size_t)a->nope_dim * (size_t)rank * nrd_dtype_block_bytes(a->k_b->dtype);

    for (int32_t i = 0; i < w->n; i++) {
        const float *q = (const float *)a->q + ((int64_t)w->token * a->n_heads + w->head + i) * q_width;
        float *to = w->q + (int64_t)i * width;
        memset(to, 0, (size_t)rank * sizeof *to);
        w->k->lora_add(a->k_b->dtype, (const uint8_t *)a->k_b->data + (size_t)(w->head + i) * head_bytes, rank, a->nope_dim, q,
                       0, 1, rank, to, 0);
        memcpy(to + rank, q + a->nope_dim, (size_t)a->rope_dim * sizeof *to);
        w->k->scale_row(to, a->scale, NULL, width);
    }
}

/* Scores of positions [from, to), at most CHUNK of them; -inf for what may not be seen. */
static void score_chunk(const work *w, int32_t from, int32_t to)
{
    const nrd_latent_attention_args *a = w->a;
    const nrd_attention_args see = {.batch = a->batch, .window = a->window, .n_sink = a->n_sink};
    const int32_t width = a->kv.head_dim;

    for (int32_t p = from, n; p < to; p += n) {
        const uint8_t *rows = rows_at(w, p);
        n = run_length(w, p, to);
        for (int32_t i = 0; rows && i < w->n; i += NRD_LORA_DOT_TOKENS) {
            const int32_t few = w->n - i < NRD_LORA_DOT_TOKENS ? w->n - i : NRD_LORA_DOT_TOKENS;
            w->k->lora_dots(a->kv.dtype, rows, n, width, w->q + (int64_t)i * width, width, few,
                            w->score + (int64_t)i * CHUNK + p - from, CHUNK);
        }
        for (int32_t k = p; k < p + n && (!rows || !w->sees_all); k++) {
            if (!rows || !nrd_attention_sees(&see, w->seq, w->token, k)) {
                for (int32_t i = 0; i < w->n; i++) {
                    w->score[i * CHUNK + k - from] = -INFINITY;
                }
            }
        }
    }
}

static void add_chunk(const work *w, int32_t from, int32_t to, const state *s)
{
    const nrd_latent_attention_args *a = w->a;
    const int32_t rank = rank_of(a), pad = padded(rank);
    int32_t first;

    score_chunk(w, from, to);
    for (int32_t i = 0; i < w->n; i++) {
        float *x = w->score + (int64_t)i * CHUNK, *o = s->o + (int64_t)i * pad;
        const float high = w->k->max_row(x, to - from, &first), top = high > s->max[i] ? high : s->max[i];
        if (top == -INFINITY) {
            memset(x, 0, (size_t)(to - from) * sizeof *x);
            continue; /* nothing seen yet */
        }
        const float factor = expf(s->max[i] - top);
        s->sum[i] = s->sum[i] * factor + (float)w->k->exp_row(x, to - from, top, 1.0f, x);
        s->max[i] = top;
        if (factor < 1.0f) {
            w->k->scale_row(o, factor, NULL, pad);
        }
    }
    for (int32_t p = from, n; p < to; p += n) {
        const uint8_t *rows = rows_at(w, p);
        n = run_length(w, p, to);
        if (rows) {
            w->k->lora_add(a->kv.dtype, rows, a->kv.head_dim, n, w->score + p - from, CHUNK, w->n, rank, s->o, pad);
        }
    }
}

static void merge(const work *w, const state *total, const state *s)
{
    w->k->attention_merge(w->n, padded(rank_of(w->a)), total->max, total->sum, total->o, s->max, s->sum, s->o);
}

/* V_h of each head's sum, where the output has it; v: room. */
static void finish(const nrd_cpu_run *r, const nrd_cpu_cmd *c, const work *w, const state *total, float *v)
{
    const nrd_latent_attention_args *a = w->a;
    const int32_t rank = rank_of(a), pad = padded(rank), dim = a->v_dim;
    const int64_t width = (int64_t)a->n_heads * dim;
    const size_t head_bytes = (size_t)dim * (size_t)rank * nrd_dtype_block_bytes(a->v_b->dtype);

    for (int32_t i = 0; i < w->n; i++) {
        const int64_t at = (int64_t)(w->head + i) * dim;
        float *o = total->o + (int64_t)i * pad;
        w->k->scale_row(o, total->sum[i] > 0 ? 1.0f / total->sum[i] : 0.0f, NULL, rank);
        w->k->lora_dots(a->v_b->dtype, (const uint8_t *)a->v_b->data + (size_t)(w->head + i) * head_bytes, dim, rank, o, pad, 1,
                        v, dim);
        if (c->i[BY_ROWS]) {
            memcpy((float *)(void *)r->shared + w->token * width + at, v, (size_t)dim * sizeof *v);
        } else if (a->out_dtype == NRD_DTYPE_ACT_Q8) {
            w->k->act_q8_part(v, dim, at / 32, width, (uint8_t *)a->out + (size_t)w->token * nrd_act_q8_row_bytes(width));
        } else {
            memcpy((float *)a->out + w->token * width + at, v, (size_t)dim * sizeof *v);
        }
    }
}

/* Groups of heads first, so that their K and V stay near for the next token. */
static work work_of(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t task)
{
    const nrd_latent_attention_args *a = &c->u.latent_attention;
    const nrd_batch_view *b = a->batch;
    const int32_t head = task / b->n_tokens * c->i[GROUP], token = task % b->n_tokens, seq = b->token_seq[token];
    const int32_t behind = b->tree_mask ? b->ctx_len[seq] : b->positions[token] + 1;

    return (work){.a = a,
                  .k = r->k,
                  .token = token,
                  .seq = seq,
                  .head = head,
                  .n = a->n_heads - head < c->i[GROUP] ? a->n_heads - head : c->i[GROUP],
                  .end = behind < b->ctx_len[seq] ? behind : b->ctx_len[seq],
                  .sees_all = !b->tree_mask && a->window <= 0};
}

/* One task, or with splits one split of it. */
static void run_tile(nrd_cpu_run *r, const nrd_cpu_cmd *c, float *partials, int32_t task)
{
    const nrd_latent_attention_args *a = &c->u.latent_attention;
    const int32_t splits = c->i[SPLITS];
    work w = work_of(r, c, splits > 0 ? task / splits : task);
    float *room = (float *)(void *)r->scratch;
    const state own = state_at(room), total = state_at(splits > 0 ? partials + (size_t)task * state_floats(a) : room + state_floats(a));

    w.q = room + 2 * state_floats(a);
    w.score = w.q + HEADS * a->kv.head_dim;
    absorb(&w);
    clear(a, &total);
    const int32_t first = splits > 0 ? task % splits : 0;
    for (int32_t from = first * SPLIT; from < w.end && (splits == 0 || from == first * SPLIT); from += SPLIT) {
        const int32_t to = from + SPLIT < w.end ? from + SPLIT : w.end;
        clear(a, &own);
        for (int32_t p = from; p < to; p += CHUNK) {
            add_chunk(&w, p, p + CHUNK < to ? p + CHUNK : to, &own);
        }
        merge(&w, &total, &own);
    }
    if (splits == 0) {
        finish(r, c, &w, &total, w.score + HEADS * CHUNK);
    }
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_latent_attention_args *a = &c->u.latent_attention;
    const int64_t width = (int64_t)a->n_heads * a->v_dim;
    float *rows = (float *)(void *)r->shared, *partials = rows + c->at[0];

    if (phase == 2) { /* heads that are no whole blocks of 32: quantize finished rows */
        r->k->act_q8_row(rows + task * width, width, (uint8_t *)a->out + (size_t)task * nrd_act_q8_row_bytes(width));
    } else if (phase == 1) {
        const work w = work_of(r, c, task);
        float *of_task = partials + (size_t)task * (size_t)c->i[SPLITS] * state_floats(a);
        const state total = state_at(of_task);
        for (int32_t i = 1; i < c->i[SPLITS]; i++) {
            const state s = state_at(of_task + (size_t)i * state_floats(a));
            merge(&w, &total, &s);
        }
        finish(r, c, &w, &total, (float *)(void *)r->scratch);
    } else {
        run_tile(r, c, partials, task);
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_latent_attention_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_latent_attention_args *a = &c->u.latent_attention;
    const nrd_batch_view *b = a->batch;
    size_t shared = 0;

    c->op = &op;
    if (b->n_tokens == 0) {
        return NULL;
    }
    if (a->act_dtype != NRD_DTYPE_F32 || (a->out_dtype != NRD_DTYPE_F32 && a->out_dtype != NRD_DTYPE_ACT_Q8)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: latent_attention from %s to %s", nrd_dtype_name(a->act_dtype),
                          nrd_dtype_name(a->out_dtype));
    }
    const int64_t many = (int64_t)b->n_tokens * ((a->n_heads + HEADS - 1) / HEADS);
    c->i[GROUP] = n_threads > 1 && many < 4 * n_threads ? FEW_HEADS : HEADS;
    const int64_t tasks = (int64_t)b->n_tokens * ((a->n_heads + c->i[GROUP] - 1) / c->i[GROUP]);
    if (tasks > INT32_MAX / 2) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: latent_attention of %d tokens and %d heads in one step", b->n_tokens,
                          a->n_heads);
    }
    const int32_t splits = (b->max_ctx_len + SPLIT - 1) / SPLIT;
    c->n_tasks[0] = (int32_t)tasks;
    c->i[BY_ROWS] = a->out_dtype == NRD_DTYPE_ACT_Q8 && a->v_dim % 32;
    if (c->i[BY_ROWS]) {
        shared = ((size_t)b->n_tokens * (size_t)a->n_heads * (size_t)a->v_dim + 15) & ~(size_t)15;
        c->n_tasks[2] = b->n_tokens;
    }
    c->at[0] = shared;
    if (n_threads > 1 && splits > 1 && tasks < 4 * n_threads) {
        c->i[SPLITS] = splits;
        c->n_tasks[0] = (int32_t)tasks * splits;
        c->n_tasks[1] = (int32_t)tasks;
        shared += (size_t)c->n_tasks[0] * state_floats(a);
    }
    c->shared_bytes = shared * sizeof(float);
    c->scratch_bytes = (2 * state_floats(a) + (size_t)HEADS * (size_t)(a->kv.head_dim + CHUNK) + (size_t)padded(a->v_dim) + 64) *
                       sizeof(float);
    return NULL;
}
