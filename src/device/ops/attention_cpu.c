/* SPDX-License-Identifier: Apache-2.0
 * attention on the CPU: tasks, splits of the context, output.
 *
 * A task is a tile of query rows of one sequence and KV head. Where there are few tiles (decode of
 * few sequences) and the context is long, the splits of the context become tasks of their own and
 * phase 1 merges them in order: the same operations as one task doing them one after the other.
 *
 * Sequences with one new token and a common beginning (device/cpu/prefix.h) sit in one tile for that:
 * phase 0 leaves their rows' state behind the common chunks, phase 1 goes on with each of them. The
 * block table is read when the command is enqueued.
 *
 * Where there is a matrix unit it takes sequences of many new tokens, and tiles are as large as it likes; other sequences
 * beside them go through theirs in smaller ones. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 16,              /* of a vector: of a tile at most, except of prompts */
    WIDE_FLOATS = 8 * 1024, /* queries of a tile of more */
};

/* i: 0 heads of a tile, 1 tokens of a tile, 2 head tiles of a KV head, 3 token tiles of a sequence,
 * 4 splits that are tasks (0: none), 5 output needs a row-wise pass, 6 sequences of a shared tile,
 * 7 tiles of a task (neighbours, so that each can ask for the next one's cache), 8 tiles, 9 tokens of a tile that is not
 * the matrix unit's, where some are (0: none). */
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
    int32_t token_tile = c->i[3] - 1 - tile % c->i[3]; /* those with the longest context first */
    p->seq = tile / c->i[3];
    first = b->q_start[p->seq] + token_tile * c->i[1];
    p->token = first;
    p->n_tokens = b->q_start[p->seq + 1] - first < c->i[1] ? b->q_start[p->seq + 1] - first : c->i[1];
    p->head = p->kv_head * group + head_tile * c->i[0];
    p->n_heads = group - head_tile * c->i[0] < c->i[0] ? group - head_tile * c->i[0] : c->i[0];
    return p->n_tokens > 0;
}

/* Rows of a tile, in whole vectors; and room for what smaller ones that follow each other round up to. */
static int32_t tile_rows(const nrd_cpu_cmd *c)
{
    return (c->i[0] * c->i[1] + ROWS - 1) / ROWS * ROWS + (c->i[9] ? ROWS : 0);
}

/* Floats of a partial result: rows x head_dim, maxima, sums. */
static size_t partial_floats(const nrd_cpu_cmd *c)
{
    return (size_t)tile_rows(c) * (size_t)(c->u.attention.kv.head_dim + 2);
}

/* Floats that attention_tile works in. */
static size_t tile_floats(const nrd_cpu_cmd *c)
{
    int32_t dim = c->u.attention.kv.head_dim;
    size_t n = (size_t)tile_rows(c) * (size_t)(2 * dim + 64 + (dim > 64 ? dim : 64));
    size_t mx = c->i[9] ? nrd_attn_mx_floats(dim, tile_rows(c)) : 0;
    return n > mx ? n : mx;
}

static void finish(const nrd_cpu_run *r, const nrd_cpu_cmd *c, const place *p, float *total, const float *max,
                   const float *sum)
{
    const nrd_attention_args *a = &c->u.attention;
    int32_t dim = a->kv.head_dim;
    int64_t width = (int64_t)a->n_heads * dim;
    const float v_scale = nrd_kv_scale(&a->kv, p->kv_head, true);

    for (int32_t i = 0; i < p->n_tokens * p->n_heads; i++) {
        int32_t token = p->token + i / p->n_heads, head = p->head + i % p->n_heads;
        float *x = total + (int64_t)i * dim;
        /* a sink far above all scores: infinity, and its share is all there is */
        float sink = a->sink_logits && sum[i] > 0 ? expf(a->sink_logits[head] - max[i]) : 0.0f;
        if (c->i[5] || a->out_dtype != NRD_DTYPE_ACT_Q8) {
            x = (c->i[5] ? (float *)(void *)r->shared : (float *)a->out) + token * width + (int64_t)head * dim;
            memcpy(x, total + (int64_t)i * dim, (size_t)dim * 4);
        }
        r->k->scale_row(x, sum[i] > 0 ? v_scale / (sum[i] + sink) : 0.0f, NULL, dim);
        if (!c->i[5] && a->out_dtype == NRD_DTYPE_ACT_Q8) {
            r->k->act_q8_part(x, dim, (int64_t)head * dim / 32, width,
                              (uint8_t *)a->out + (size_t)token * nrd_act_q8_row_bytes(width));
        }
    }
}

static int32_t shared_chunks(const nrd_cpu_cmd *c, const nrd_cpu_group *g)
{
    return g->n_blocks * c->u.attention.kv.block_tokens / NRD_ATTN_CHUNK_TOKENS;
}

/* Tiles of common beginnings: groups, KV heads, parts of a group's sequences. */
static int32_t shared_tiles(const nrd_cpu_cmd *c)
{
    int32_t n = 0;

    for (int32_t i = 0; i < c->prefix->n_groups; i++) {
        n += (c->prefix->groups[i].n + c->i[6] - 1) / c->i[6];
    }
    return n * c->u.attention.kv.n_kv_heads;
}

static void run_shared(nrd_cpu_run *r, const nrd_cpu_cmd *c, float *state, int32_t task)
{
    const nrd_attention_args *a = &c->u.attention;
    const nrd_cpu_group *g = c->prefix->groups;
    int32_t group = a->n_heads / a->kv.n_kv_heads, dim = a->kv.head_dim, kv_head = task % a->kv.n_kv_heads, n;
    float *scratch = (float *)(void *)r->scratch, *total = scratch + tile_floats(c);

    for (task /= a->kv.n_kv_heads; task >= (n = (g->n + c->i[6] - 1) / c->i[6]); g++) {
        task -= n;
    }
    const int32_t *seqs = c->prefix->members + g->first + task * c->i[6];
    int32_t left = g->n - task * c->i[6];
    nrd_attn_tile t = {
        .a = a, .seq = seqs[0], .kv_head = kv_head, .head = kv_head * group, .n_heads = group,
        .token = a->batch->q_start[seqs[0]], .n_tokens = left < c->i[6] ? left : c->i[6],
        .seqs = seqs, .shared_chunks = shared_chunks(c, g), .state = state, .to_split = INT32_MAX / 64,
        .scratch = scratch, .total = total, .total_max = total + ROWS * dim, .total_sum = total + ROWS * (dim + 1),
    };
    r->k->attention_tile(&t);
}

/* One tile, or with splits one split of it. */
static void run_tile(nrd_cpu_run *r, const nrd_cpu_cmd *c, float *partials, int32_t task)
{
    const nrd_attention_args *a = &c->u.attention;
    int32_t dim = a->kv.head_dim, rows = tile_rows(c);
    float *scratch = (float *)(void *)r->scratch;
    bool split = c->i[4] > 0;
    place p;

    if (!find_tile(c, split ? task / c->i[4] : task, &p)) {
        return;
    }
    const bool mx = c->i[9] && a->batch->q_start[p.seq + 1] - a->batch->q_start[p.seq] >= NRD_ATTN_MX_FROM;
    const int32_t end = p.token + p.n_tokens, step = mx || !c->i[9] ? p.n_tokens : c->i[9];
    float *total = split ? partials + (size_t)task * partial_floats(c) : scratch + tile_floats(c);
    float *max = total + rows * dim, *sum = max + rows;
    for (; p.token < end; p.token += step) {
        p.n_tokens = end - p.token < step ? end - p.token : step;
        nrd_attn_tile t = {
            .a = a, .seq = p.seq, .kv_head = p.kv_head, .head = p.head, .n_heads = p.n_heads,
            .token = p.token, .n_tokens = p.n_tokens,
            .from_split = split ? task % c->i[4] : 0, .to_split = split ? task % c->i[4] + 1 : INT32_MAX / 64,
            .scratch = scratch, .total = total, .total_max = max, .total_sum = sum,
        };
        if (c->prefix && c->prefix->group_of[p.seq] >= 0) {
            t.state = partials;
            t.shared_chunks = shared_chunks(c, &c->prefix->groups[c->prefix->group_of[p.seq]]);
        }
        (mx ? r->k->attention_mx : r->k->attention_tile)(&t);
        if (!split) {
            finish(r, c, &p, total, max, sum);
        } else { /* the next rows follow */
            total += p.n_tokens * p.n_heads * dim;
            max += p.n_tokens * p.n_heads;
            sum += p.n_tokens * p.n_heads;
        }
    }
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_attention_args *a = &c->u.attention;
    int32_t dim = a->kv.head_dim;
    int64_t width = (int64_t)a->n_heads * dim;
    float *partials = (float *)(void *)r->shared;
    place p;

    if (phase == 2) { /* heads that are no whole blocks of 32: quantize finished rows */
        r->k->act_q8_row(partials + task * width, width,
                         (uint8_t *)a->out + (size_t)task * nrd_act_q8_row_bytes(width));
        return;
    }
    if (c->i[5]) {
        partials += (((size_t)a->batch->n_tokens * (size_t)width) + 15) & ~(size_t)15;
    }
    if (c->prefix && phase == 0) {
        run_shared(r, c, partials, task);
        return;
    }
    if (phase == 1 && !c->prefix) {
        if (!find_tile(c, task, &p)) {
            return;
        }
        float *total = partials + (size_t)task * (size_t)c->i[4] * partial_floats(c);
        const int32_t rows = tile_rows(c), present = p.n_tokens * p.n_heads;
        for (int32_t s = 1; s < c->i[4]; s++) {
            const float *part = total + (size_t)s * partial_floats(c);
            for (int32_t at = 0; at < present; at += ROWS) {
                float *max = total + rows * dim + at;
                const float *part_max = part + rows * dim + at;
                r->k->attention_merge(present - at < ROWS ? present - at : ROWS, dim, max, max + rows, total + at * dim, part_max,
                                      part_max + rows, part + at * dim);
            }
        }
        finish(r, c, &p, total, total + rows * dim, total + rows * (dim + 1));
        return;
    }
    int32_t from = task * c->i[7], to = from + c->i[7];
    for (int32_t i = from; i < to && i < c->i[8]; i++) {
        run_tile(r, c, partials, i);
    }
}

/* A head size that is no multiple of 16: the definition itself, one task. */
static void run_ref(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    (void)phase;
    (void)task;
    nrd_attention_ref_in(&c->u.attention, r->scratch);
}

static const nrd_cpu_op op = {run}, op_ref = {run_ref};

/* Tokens of a tile. Those of prompts may take several vectors of rows, whose queries stay in L1: as many as leave
 * the fewest rows empty, no more than 32 tokens (half of a tile's last keys are hidden from its rows), and
 * with four tiles a thread left. */
static int32_t tile_tokens(const nrd_attention_args *a, int n_threads, bool shared, int32_t heads)
{
    const nrd_batch_view *b = a->batch;
    int32_t best = ROWS / heads, tiles = b->n_seqs * a->kv.n_kv_heads;

    for (int32_t rows = 2 * ROWS; !shared && !b->tree_mask && rows <= NRD_ATTN_TILE_ROWS; rows += ROWS) {
        int32_t n = rows / heads, vectors = (best * heads + ROWS - 1) / ROWS;
        if (rows * a->kv.head_dim <= WIDE_FLOATS && n <= 32 && n <= b->max_q_len &&
            (b->max_q_len + n - 1) / n * tiles >= 4 * n_threads && n * vectors * ROWS >= best * rows) {
            best = n;
        }
    }
    return best;
}

static bool takes_unit(const nrd_attention_args *a, const nrd_cpu_kernels *k)
{
    const nrd_batch_view *b = a->batch;
    return k->attention_mx && b->max_q_len >= NRD_ATTN_MX_FROM && a->kv.dtype != NRD_DTYPE_F32 && !a->deterministic &&
           !b->tree_mask && !a->alibi && !a->rel_bias;
}

/* Of the matrix unit: as many as it takes rows, which share what is made of the cache, with four tiles a thread left or a quarter
 * of the rows. All of about the same size. */
static int32_t unit_tokens(const nrd_attention_args *a, int n_threads, int32_t heads, int32_t tiles)
{
    const int32_t q = a->batch->max_q_len;
    int32_t n = NRD_ATTN_MX_ROWS / heads, least = n / 4;

    while (n / 2 >= least && (q + n - 1) / n * tiles < 4 * n_threads) {
        n /= 2;
    }
    n = (q + n - 1) / n;
    return (q + n - 1) / n;
}

/* Tiles, and in *splits how many tasks each becomes; 0: it stays one. shared: sequences may have a beginning in
 * common. i: as a command's. */
static int32_t count_tiles(const nrd_attention_args *a, const nrd_cpu_kernels *k, int n_threads, bool shared, int32_t i[10],
                           int32_t *splits)
{
    const nrd_batch_view *b = a->batch;
    int32_t group = a->n_heads / a->kv.n_kv_heads;

    i[0] = group < ROWS ? group : ROWS;
    i[1] = tile_tokens(a, n_threads, shared, i[0]);
    i[2] = (group + i[0] - 1) / i[0];
    i[9] = 0;
    if (takes_unit(a, k)) {
        i[9] = ROWS / i[0];
        i[1] = unit_tokens(a, n_threads, i[0], b->n_seqs * a->kv.n_kv_heads * i[2]);
    }
    i[3] = (b->max_q_len + i[1] - 1) / i[1];
    int32_t tiles = b->n_seqs * i[3] * a->kv.n_kv_heads * i[2];
    /* Groups of 16 tokens in the longest context; short blocks leave lanes unused. */
    int64_t groups = (b->max_ctx_len + a->kv.block_tokens - 1) / a->kv.block_tokens * nrd_kv_groups(a->kv.block_tokens);
    int32_t n = (int32_t)((groups + 4 * NRD_ATTN_SPLIT_CHUNKS - 1) / (4 * NRD_ATTN_SPLIT_CHUNKS));
    *splits = n_threads > 1 && n > 1 && tiles < 4 * n_threads ? n : 0;
    return tiles;
}

bool nrd_attention_cpu_shares(const nrd_attention_args *a, const nrd_cpu_kernels *k, int n_threads)
{
    const nrd_batch_view *b = a->batch;
    int32_t i[10], splits;

    if (b->n_seqs < 2 || b->n_tokens == 0 || b->max_ctx_len <= NRD_ATTN_MIN_SHARED || b->tree_mask || a->window > 0 ||
        a->kv.block_tokens % NRD_KV_GROUP || a->kv.head_dim % 16 || a->n_heads / a->kv.n_kv_heads > ROWS / 2) {
        return false;
    }
    (void)count_tiles(a, k, n_threads, true, i, &splits);
    return splits == 0;
}

nrd_error *nrd_attention_cpu(nrd_cpu_cmd *c, int n_threads)
{
    nrd_attention_args *a = &c->u.attention;
    const nrd_batch_view *b = a->batch;
    int32_t dim = a->kv.head_dim;

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
        c->scratch_bytes = nrd_attention_ref_bytes(a);
        return NULL;
    }
    int32_t splits, tiles = count_tiles(a, c->k, n_threads, c->prefix != NULL, c->i, &splits);
    size_t shared = 0;

    a->window += a->window > 0 ? a->ahead : 0; /* the kernel counts it from the last token that a row sees */
    c->op = &op;
    c->i[5] = a->out_dtype == NRD_DTYPE_ACT_Q8 && dim % 32;
    if (c->i[5]) {
        shared += ((size_t)b->n_tokens * (size_t)a->n_heads * (size_t)dim + 15) & ~(size_t)15;
        c->n_tasks[2] = b->n_tokens;
    }
    c->i[7] = tiles / (n_threads * 8) + 1;
    c->i[8] = tiles;
    c->n_tasks[0] = (tiles + c->i[7] - 1) / c->i[7];
    if (c->prefix) {
        c->i[6] = ROWS / (a->n_heads / a->kv.n_kv_heads);
        c->n_tasks[1] = c->n_tasks[0];
        c->n_tasks[0] = shared_tiles(c);
        shared += (size_t)b->n_seqs * (size_t)a->n_heads * (size_t)(2 * dim + 4);
    } else if (splits > 0) {
        c->i[4] = splits;
        c->i[7] = 1;
        c->i[8] = c->n_tasks[0] = tiles * splits;
        c->n_tasks[1] = tiles;
        shared += (size_t)c->n_tasks[0] * partial_floats(c);
    }
    c->shared_bytes = shared * 4;
    c->scratch_bytes = (tile_floats(c) + partial_floats(c)) * 4;
    return NULL;
}
