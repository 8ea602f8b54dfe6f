/* attention on the CPU: tasks, splits of the context, output.
 *
 * A task is a tile of query rows of one sequence and KV head. Where there are few tiles (decode of
 * few sequences) and the context is long, the splits of the context become tasks of their own and
 * phase 1 merges them in order: the same operations as one task doing them one after the other. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { ROWS = 16 };

/* i: 0 heads of a tile, 1 tokens of a tile, 2 head tiles of a KV head, 3 token tiles of a sequence,
 * 4 splits that are tasks (0: none), 5 output needs a row-wise pass. */
typedef struct place {
    int32_t seq, kv_head, head, n_heads, token, n_tokens;
} place;

static bool find_tile(const nrd_cpu_cmd *c, int32_t tile, place *p)
{
    const nrd_attention_args *a = &c->u.attention;
    const nrd_batch_view *b = a->batch;
    int32_t group = a->n_heads / a->kv.n_kv_heads, first;

    int32_t head_tile = tile % c->i[2];
    tile /= c->i[2];
    p->kv_head = tile % a->kv.n_kv_heads;
    tile /= a->kv.n_kv_heads;
    int32_t token_tile = tile % c->i[3];
    p->seq = tile / c->i[3];
    first = b->q_start[p->seq] + token_tile * c->i[1];
    p->token = first;
    p->n_tokens = b->q_start[p->seq + 1] - first < c->i[1] ? b->q_start[p->seq + 1] - first : c->i[1];
    p->head = p->kv_head * group + head_tile * c->i[0];
    p->n_heads = group - head_tile * c->i[0] < c->i[0] ? group - head_tile * c->i[0] : c->i[0];
    return p->n_tokens > 0;
}

/* Floats of a partial result: rows x head_dim, maxima, sums. */
static size_t partial_floats(const nrd_attention_args *a)
{
    return (size_t)ROWS * (size_t)(a->kv.head_dim + 2);
}

/* Floats that attention_tile works in. */
static size_t tile_floats(int32_t dim)
{
    return (size_t)(3 * ROWS * dim + ROWS * 64 + 256);
}

static void finish(const nrd_cpu_run *r, const nrd_cpu_cmd *c, const place *p, float *total, const float *sum)
{
    const nrd_attention_args *a = &c->u.attention;
    int32_t dim = a->kv.head_dim;
    int64_t width = (int64_t)a->n_heads * dim;
    float v_scale = a->kv.dtype == NRD_DTYPE_I8 ? a->kv.v_scale : 1.0f;

    for (int32_t i = 0; i < p->n_tokens * p->n_heads; i++) {
        int32_t token = p->token + i / p->n_heads, head = p->head + i % p->n_heads;
        float *x = total + (int64_t)i * dim;
        r->k->scale_row(x, sum[i] > 0 ? v_scale / sum[i] : 0.0f, NULL, dim);
        if (c->i[5]) {
            memcpy((float *)(void *)r->shared + token * width + (int64_t)head * dim, x, (size_t)dim * 4);
        } else if (a->out_dtype == NRD_DTYPE_ACT_Q8) {
            r->k->act_q8_part(x, dim, (int64_t)head * dim / 32, width,
                              (uint8_t *)a->out + (size_t)token * nrd_act_q8_row_bytes(width));
        } else {
            memcpy((float *)a->out + token * width + (int64_t)head * dim, x, (size_t)dim * 4);
        }
    }
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_attention_args *a = &c->u.attention;
    int32_t dim = a->kv.head_dim;
    int64_t width = (int64_t)a->n_heads * dim;
    float *scratch = (float *)(void *)r->scratch, *partials = (float *)(void *)r->shared;
    place p;

    if (phase == 2) { /* heads that are no whole blocks of 32: quantize finished rows */
        r->k->act_q8_row(partials + task * width, width,
                         (uint8_t *)a->out + (size_t)task * nrd_act_q8_row_bytes(width));
        return;
    }
    if (c->i[5]) {
        partials += (((size_t)a->batch->n_tokens * (size_t)width) + 15) & ~(size_t)15;
    }
    if (phase == 1) {
        if (!find_tile(c, task, &p)) {
            return;
        }
        float *total = partials + (size_t)task * (size_t)c->i[4] * partial_floats(a);
        for (int32_t s = 1; s < c->i[4]; s++) {
            const float *part = total + (size_t)s * partial_floats(a);
            r->k->attention_merge(p.n_tokens * p.n_heads, dim, total + ROWS * dim, total + ROWS * (dim + 1), total,
                                  part + ROWS * dim, part + ROWS * (dim + 1), part);
        }
        finish(r, c, &p, total, total + ROWS * (dim + 1));
        return;
    }
    bool split = c->i[4] > 0;
    if (!find_tile(c, split ? task / c->i[4] : task, &p)) {
        return;
    }
    float *total = split ? partials + (size_t)task * partial_floats(a) : scratch + tile_floats(dim);
    nrd_attn_tile t = {
        .a = a, .seq = p.seq, .kv_head = p.kv_head, .head = p.head, .n_heads = p.n_heads,
        .token = p.token, .n_tokens = p.n_tokens,
        .from_split = split ? task % c->i[4] : 0, .to_split = split ? task % c->i[4] + 1 : INT32_MAX / 64,
        .scratch = scratch, .total = total, .total_max = total + ROWS * dim, .total_sum = total + ROWS * (dim + 1),
    };
    r->k->attention_tile(&t);
    if (!split) {
        finish(r, c, &p, total, t.total_sum);
    }
}

/* A head size that is no multiple of 16: the definition itself, one task. */
static void run_ref(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    (void)r;
    (void)phase;
    (void)task;
    nrd_attention_ref(&c->u.attention);
}

static const nrd_cpu_op op = {run}, op_ref = {run_ref};

nrd_error *nrd_attention_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_attention_args *a = &c->u.attention;
    const nrd_batch_view *b = a->batch;
    int32_t dim = a->kv.head_dim, group;

    if (b->n_tokens == 0) {
        c->op = &op_ref;
        return NULL;
    }
    if (a->act_dtype != NRD_DTYPE_F32 || (a->out_dtype != NRD_DTYPE_F32 && a->out_dtype != NRD_DTYPE_ACT_Q8)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: attention from %s to %s", nrd_dtype_name(a->act_dtype),
                          nrd_dtype_name(a->out_dtype));
    }
    if (nrd_kv_block_bytes(a->kv.dtype, 1, 1, 1) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: kv cache of type %s", nrd_dtype_name(a->kv.dtype));
    }
    if (dim % 16) {
        c->op = &op_ref;
        c->n_tasks[0] = 1;
        return NULL;
    }
    group = a->n_heads / a->kv.n_kv_heads;
    c->op = &op;
    c->i[0] = group < ROWS ? group : ROWS;
    c->i[1] = ROWS / c->i[0];
    c->i[2] = (group + c->i[0] - 1) / c->i[0];
    c->i[3] = (b->max_q_len + c->i[1] - 1) / c->i[1];
    int32_t tiles = b->n_seqs * c->i[3] * a->kv.n_kv_heads * c->i[2];
    /* Groups of 16 tokens in the longest context; short blocks leave lanes unused. */
    int64_t groups = (b->max_ctx_len + a->kv.block_tokens - 1) / a->kv.block_tokens * nrd_kv_groups(a->kv.block_tokens);
    int32_t splits = (int32_t)((groups + 4 * NRD_ATTN_SPLIT_CHUNKS - 1) / (4 * NRD_ATTN_SPLIT_CHUNKS));
    size_t shared = 0;

    c->i[5] = a->out_dtype == NRD_DTYPE_ACT_Q8 && dim % 32;
    if (c->i[5]) {
        shared += ((size_t)b->n_tokens * (size_t)a->n_heads * (size_t)dim + 15) & ~(size_t)15;
        c->n_tasks[2] = b->n_tokens;
    }
    c->n_tasks[0] = tiles;
    if (n_threads > 1 && splits > 1 && tiles < 4 * n_threads) {
        c->i[4] = splits;
        c->n_tasks[0] = tiles * splits;
        c->n_tasks[1] = tiles;
        shared += (size_t)c->n_tasks[0] * partial_floats(a);
    }
    c->shared_bytes = shared * 4;
    c->scratch_bytes = (tile_floats(dim) + partial_floats(a)) * 4;
    return NULL;
}
