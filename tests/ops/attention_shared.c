/* SPDX-License-Identifier: Apache-2.0
 * Attention of sequences that begin with the same blocks: the bits that each gets alone. */
#include "ops/harness.h"

static const struct shared_row {
    int32_t n_heads, n_kv, dim, block_tokens, n_common, n_seqs;
    float softcap; /* for every second type of the cache */
} table[] = {
    {9, 3, 64, 32, 10, 12, 0},
    {4, 2, 32, 64, 20, 7, 5.0f}, /* beyond a split of 1,024 */
    {8, 1, 16, 16, 64, 12, 0},   /* ends where a split ends */
};
enum { MAX_SEQS = 12, MAX_NEW = 3 };

typedef struct shared_case {
    int32_t q_start[MAX_SEQS + 1], ctx[MAX_SEQS], pos[MAX_SEQS + MAX_NEW], seq[MAX_SEQS + MAX_NEW],
        n, most, stride, n_blocks;
    int32_t *table;
} shared_case;

/* Sequences of one new token, two groups of which begin with the same blocks, and one with three. */
static void make(const struct shared_row *row, shared_case *c)
{
    *c = (shared_case){.stride = row->n_common + 40, .n_blocks = 2 * row->n_common};
    c->table = host((size_t)(c->stride * row->n_seqs) * 4);
    for (int32_t s = 0; s < row->n_seqs; s++) {
        const int32_t fresh = s == 2 ? MAX_NEW : 1, drawn = rnd_in(1, 30 * row->block_tokens);
        const int32_t common = s % 3 == 1 ? row->n_common / 2
                                          : row->n_common; /* the second group has less in common */
        c->ctx[s] = common * row->block_tokens + (drawn < fresh ? fresh : drawn);
        c->most = c->ctx[s] > c->most ? c->ctx[s] : c->most;
        for (int32_t k = 0; k * row->block_tokens < c->ctx[s]; k++) {
            c->table[s * c->stride + k] = k >= common  ? c->n_blocks++
                                          : s % 3 == 1 ? row->n_common + k
                                                       : k;
        }
        for (int32_t k = 0; k < fresh; k++, c->n++) {
            c->pos[c->n] = c->ctx[s] - fresh + k;
            c->seq[c->n] = s;
        }
        c->q_start[s + 1] = c->n;
    }
}

static void check(const struct shared_row *row, nrd_dtype kv_type, bool capped, const target *t)
{
    shared_case c;
    make(row, &c);
    const int64_t width = (int64_t)row->n_heads * row->dim;
    const size_t block = nrd_kv_block_bytes(kv_type, row->block_tokens, row->n_kv, row->dim);
    uint8_t *pool = host(block * (size_t)c.n_blocks);
    for (int32_t b = 0; b < c.n_blocks; b++) {
        for (int64_t e = 0; e < nrd_kv_head_elems(row->block_tokens, row->dim) * 2 * row->n_kv;
             e++) {
            nrd_kv_store(kv_type, pool + (size_t)b * block, e, 0.03f, rnd_normal());
        }
    }
    float *scales = host((size_t)(2 * row->n_kv) * 4);
    for (int32_t k = 0; k < 2 * row->n_kv; k++) {
        scales[k] = 0.02f + 0.005f * (float)k;
    }
    float *q = host_normal(c.n * width, 1), *out = host((size_t)(c.n * width) * 4),
          *alone = host((size_t)(MAX_NEW * width) * 4);
    const nrd_batch_view view = {.n_tokens = c.n,
                                 .n_seqs = row->n_seqs,
                                 .max_q_len = MAX_NEW,
                                 .max_ctx_len = c.most,
                                 .positions = c.pos,
                                 .token_seq = c.seq,
                                 .q_start = c.q_start,
                                 .ctx_len = c.ctx,
                                 .block_table = c.table,
                                 .block_table_stride = c.stride};
    nrd_attention_args a = {
        .batch = &view,
        .q = q,
        .q_stride = width,
        .out = out,
        .act_dtype = NRD_DTYPE_F32,
        .out_dtype = NRD_DTYPE_F32,
        .n_heads = row->n_heads,
        .scale = 0.1f,
        .softcap = capped ? row->softcap : 0,
        .kv = {pool, kv_type, c.n_blocks, row->block_tokens, row->n_kv, row->dim, scales}};
    ok(t->ops->attention(t->s, &a));
    sync(t);
    case_name("attention over shared blocks, kv %s, %d heads of %d", nrd_dtype_name(kv_type),
              row->n_heads, row->dim);
    for (int32_t s = 0; s < row->n_seqs; s++) {
        const int32_t first = c.q_start[s], fresh = c.q_start[s + 1] - first, start[2] = {0, fresh},
                      zeros[MAX_NEW] = {0};
        const nrd_batch_view one = {.n_tokens = fresh,
                                    .n_seqs = 1,
                                    .max_q_len = fresh,
                                    .max_ctx_len = c.ctx[s],
                                    .positions = &c.pos[first],
                                    .token_seq = zeros,
                                    .q_start = start,
                                    .ctx_len = &c.ctx[s],
                                    .block_table = c.table + (int64_t)s * c.stride,
                                    .block_table_stride = c.stride};
        a.batch = &one;
        a.q = q + first * width;
        a.out = alone;
        ok(t->ops->attention(t->s, &a));
        sync(t);
        same_bytes(t, "", alone, out + first * width, (size_t)(fresh * width) * 4);
    }
    case_end();
}

void check_shared(void)
{
    static const nrd_dtype types[] = {NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16, NRD_DTYPE_I8};

    for (int i = 0; kind->is_exact && i < n_targets;
         i++) { /* only the CPU reads common blocks once */
        for (int k = 0; k < 4; k++) {
            for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
                check(&table[r], types[k], k % 2, &targets[i]);
            }
        }
    }
}
