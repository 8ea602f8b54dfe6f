/* SPDX-License-Identifier: Apache-2.0
 * moe_linear on the CPU: linear's tiles, expert by expert.
 *
 * How many pairs an expert has is known when the command runs, so tasks are numbered as if as many experts had pairs
 * as can: task i of phase 1 is a chunk of row tiles of the (i / chunks)-th expert that has any. In a decode step of a
 * few experts with one pair each all threads thus share every expert's rows.
 * Up to 16 pairs of an expert every thread makes its own panels; phase 0 makes those of the others once for all. */
#include "device/ops/linear_parts.h"

#include "device/ops/pack.h"

enum { MAX_T = NRD_LINEAR_MX_TOKENS, CHUNK_BYTES = 160 << 10 };
/* nrd_cpu_cmd.i, .at */
enum { CHUNK, CHUNKS, PANEL_ROW_BYTES };
enum { AT_HELD, AT_PANELS };

/* One expert and its pairs. */
typedef struct expert_job {
    int32_t expert, first, n;
} expert_job;

/* Walks over experts with at least `least` pairs; false behind the last. Begin with expert -1. */
static bool next_expert(const nrd_moe_pairs *p, int32_t least, expert_job *j)
{
    while (++j->expert < p->n_experts) {
        j->first = p->first[j->expert];
        j->n = p->first[j->expert + 1] - j->first;
        if (j->n >= least) {
            return true;
        }
    }
    return false;
}

/* Panels of experts with many pairs lie one behind the other, each from a multiple of MAX_T rows on: wherever the
 * pairs before end, the `slot` experts before leave room for that. */
static size_t shared_row(const expert_job *j, int32_t slot)
{
    return (size_t)(j->first + slot * MAX_T) / MAX_T * MAX_T;
}

/* Room for one expert's weights. */
typedef struct expert_weights {
    nrd_weight w[NRD_LINEAR_MAX_PARTS], bias[NRD_LINEAR_MAX_PARTS];
} expert_weights;

static nrd_weight bias_of(const nrd_weight *all, int32_t expert, int64_t rows)
{
    nrd_weight b = *all;
    b.rows = rows;
    b.cols = 1;
    b.data_bytes = (uint64_t)rows * nrd_dtype_block_bytes(b.dtype);
    b.data = (const uint8_t *)all->data + (size_t)expert * b.data_bytes;
    return b;
}

/* What linear would be given for one expert's pairs. */
static nrd_linear_args args_of(const nrd_moe_linear_args *a, const expert_job *j, expert_weights *e, const int32_t **ids)
{
    const size_t x_row = nrd_row_bytes(a->x_dtype, a->w[0]->cols);
    nrd_linear_args l = {
        .n_tokens = j->n, .x = a->x, .x_dtype = a->x_dtype, .n_parts = a->n_parts, .y_dtype = a->y_dtype, .deterministic = a->deterministic};

    *ids = a->pairs.token + j->first;
    if (a->x_sorted) {
        l.x = (const uint8_t *)a->x + (size_t)j->first * x_row;
        *ids = NULL;
    }
    for (int p = 0; p < a->n_parts; p++) {
        e->w[p] = nrd_weight_of_stack(a->w[p], j->expert);
        l.w[p] = &e->w[p];
        if (a->bias[p]) {
            e->bias[p] = bias_of(a->bias[p], j->expert, e->w[p].rows);
            l.bias[p] = &e->bias[p];
        }
    }
    return l;
}

/* One token tile of an expert with many pairs. */
static void panels(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t task)
{
    const nrd_moe_linear_args *a = &c->u.moe_linear;
    expert_job j = {.expert = -1};
    expert_weights e;
    const int32_t *ids;

    for (int32_t slot = 0; next_expert(&a->pairs, MAX_T + 1, &j); slot++) {
        const int32_t n_tiles = (j.n + MAX_T - 1) / MAX_T;
        if (task < n_tiles) {
            nrd_linear_args l = args_of(a, &j, &e, &ids);
            const int32_t t0 = task * MAX_T;
            nrd_linear_cpu_make_panels(r, &l, ids, t0, t0 + MAX_T < j.n ? t0 + MAX_T : j.n,
                                       r->shared + shared_row(&j, slot) * (size_t)c->i[PANEL_ROW_BYTES]);
            return;
        }
        task -= n_tiles;
    }
}

/* The panels of an expert with few pairs, which a thread keeps for its next chunk. */
static const uint8_t *own_panels(nrd_cpu_run *r, const nrd_cpu_cmd *c, const nrd_linear_args *l, const int32_t *ids,
                                 int32_t expert)
{
    int32_t *held = (int32_t *)(void *)(r->scratch + c->at[AT_HELD]);
    uint8_t *at = r->scratch + c->at[AT_PANELS];

    if (r->owner != c || *held != expert) {
        nrd_linear_cpu_make_panels(r, l, ids, 0, l->n_tokens, at);
        r->owner = c;
        *held = expert;
    }
    return at;
}

static void products(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t task)
{
    const nrd_moe_linear_args *a = &c->u.moe_linear;
    int32_t slot = task / c->i[CHUNKS], many = 0;
    int64_t from = (int64_t)(task % c->i[CHUNKS]) * c->i[CHUNK], to = from + c->i[CHUNK], base = 0, y0 = 0, stride = 0;
    expert_job j = {.expert = -1};
    expert_weights e;
    const int32_t *ids;

    for (bool more = next_expert(&a->pairs, 1, &j); slot > 0 || !more; slot--) {
        if (!more) {
            return; /* fewer experts than could have pairs */
        }
        many += j.n > MAX_T;
        more = next_expert(&a->pairs, 1, &j);
    }
    nrd_linear_args l = args_of(a, &j, &e, &ids);
    const uint8_t *p0 = j.n > MAX_T ? r->shared + shared_row(&j, many) * (size_t)c->i[PANEL_ROW_BYTES]
                                    : own_panels(r, c, &l, ids, j.expert);
    for (int p = 0; p < l.n_parts; p++) {
        stride += e.w[p].rows;
    }
    for (int p = 0; p < l.n_parts; p++) {
        int64_t n = (e.w[p].rows + 15) / 16;
        int64_t lo = from > base ? from - base : 0, hi = to - base < n ? to - base : n;
        if (lo < hi) {
            nrd_linear_cpu_do_tiles(r, &l, p, lo, hi, (float *)a->y + j.first * stride + y0, 0, stride, p0);
        }
        base += n;
        y0 += e.w[p].rows;
    }
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    if (phase == 0) {
        panels(r, c, task);
    } else {
        products(r, c, task);
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_moe_linear_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_moe_linear_args *a = &c->u.moe_linear;
    const int64_t n_pairs = (int64_t)a->n_tokens * a->pairs.top_k;
    const int64_t most = n_pairs < a->pairs.n_experts ? n_pairs : a->pairs.n_experts; /* experts with pairs */
    const expert_job any = {.n = MAX_T};
    expert_weights e;
    const int32_t *ids;
    int64_t tiles = 0;
    size_t tile_max = 0;

    nrd_linear_args l = args_of(a, &any, &e, &ids);
    NRD_TRY(nrd_linear_cpu_types(&l));
    for (int p = 0; p < a->n_parts; p++) {
        size_t bytes = nrd_tile16_bytes(e.w[p].dtype, e.w[p].cols);
        tile_max = bytes > tile_max ? bytes : tile_max;
        tiles += (e.w[p].rows + 15) / 16;
    }
    int64_t chunk = CHUNK_BYTES / (int64_t)tile_max, fair = tiles * most / (n_threads * 4);
    chunk = chunk < fair ? chunk : fair;
    chunk = chunk < 1 ? 1 : chunk;
    chunk += n_pairs >= 2 * MAX_T ? chunk % 2 : 0; /* pairs of tiles, as in linear */
    c->op = &op;
    c->i[CHUNK] = (int32_t)chunk;
    c->i[CHUNKS] = (int32_t)((tiles + chunk - 1) / chunk);
    if (most * c->i[CHUNKS] > INT32_MAX) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: %lld experts of %lld rows in one step", (long long)most,
                          (long long)tiles * 16);
    }
    c->n_tasks[1] = (int32_t)(most * c->i[CHUNKS]);
    c->at[AT_HELD] = nrd_linear_cpu_room(&l);
    c->at[AT_PANELS] = c->at[AT_HELD] + 64;
    c->scratch_bytes = c->at[AT_PANELS] + nrd_linear_cpu_panel_bytes(c->k, &l);
    if (a->n_tokens > MAX_T) { /* an expert has at most one pair of a token */
        const int64_t large = n_pairs / (MAX_T + 1) < most ? n_pairs / (MAX_T + 1) : most;
        const size_t few = nrd_linear_cpu_panel_bytes(c->k, &l) / MAX_T; /* parts may need panels of their own where more tokens share one kind */
        l.n_tokens = (a->n_tokens + MAX_T - 1) / MAX_T * MAX_T;
        size_t row_bytes = nrd_linear_cpu_panel_bytes(c->k, &l) / (size_t)l.n_tokens;
        row_bytes = few > row_bytes ? few : row_bytes;
        c->i[PANEL_ROW_BYTES] = (int32_t)row_bytes;
        c->n_tasks[0] = (int32_t)(n_pairs / MAX_T + large);
        c->shared_bytes = (size_t)(n_pairs + (large + 1) * MAX_T) * row_bytes;
    }
    return NULL;
}
