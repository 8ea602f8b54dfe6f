/* SPDX-License-Identifier: Apache-2.0
 * embed: x[t,:] = table[id[t],:] * scale (+ pos_table[position[t],:]) (+ type_table[type[t],:])
 *           to row t of out, or to row out_rows[t]
 * Shapes    table [vocab, hidden] f32, bf16, fp16 or F8 with row scales; out any activation type.
 * Work      a block takes 1,024 columns of a token, eight a thread; odd sizes one block a token. Ids < 0 are read
 *           from slot_tokens on the device: the step is enqueued before the last one is known.
 * Bound     memory, and below 100 tokens the launch.
 * Measured  NVIDIA H200, 1024 x 4096 bf16: 3.14 TB/s (71 %); 1..64 rows 0.9-1.2 us, one
 *           element after the other in one block 4.2 (2026-11-22, make gpu-bench).
 */
#include "device/ops/common.cuh"

struct embed_params {
    const int32_t *ids, *slot_tokens, *positions, *types, *out_rows;
    const void *table, *pos_table, *type_table;
    const float *table_scales;
    const void *const *prompt_table;
    void *out;
    int64_t rows, first_id, n_ids, max_pos, n_types;
    int hidden, cols, first_col, table_dtype, pos_dtype, type_dtype;
    bool adds; /* what comes on top of the table's rows is the first rank's */
    float scale;
};

static __device__ __forceinline__ float element(const void *p, int dtype, int64_t i)
{
    switch (dtype) {
    case NRD_DTYPE_BF16:
        return to_f(((const bf16 *)p)[i]);
    case NRD_DTYPE_F16:
        return to_f(((const f16 *)p)[i]);
    case NRD_DTYPE_F8_E4M3:
        return to_f(((const f8 *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

/* Eight elements from i on, a multiple of eight. */
static __device__ __forceinline__ void eight(const void *p, int dtype, int64_t i, float *v)
{
    switch (dtype) {
    case NRD_DTYPE_BF16:
        load8((const bf16 *)p + i, v);
        break;
    case NRD_DTYPE_F16:
        load8((const f16 *)p + i, v);
        break;
    case NRD_DTYPE_F8_E4M3: {
        const uint2 raw = *(const uint2 *)((const f8 *)p + i);
        f8 e[8];
        memcpy(e, &raw, 8);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = to_f(e[k]);
        }
        break;
    }
    default:
        load8((const float *)p + i, v);
    }
}

/* Where token t comes from. */
struct source {
    const void *prompt; /* not NULL: there */
    int64_t row;        /* of the table; -1: zeros, another rank has it */
};

static __device__ __forceinline__ source find_source(const embed_params &a, int64_t t)
{
    int32_t id = a.ids[t];
    const void *prompt = a.prompt_table ? a.prompt_table[t] : NULL;
    if (id < 0) {
        id = a.slot_tokens ? a.slot_tokens[-1 - id] : 0;
    }
    if (id >= a.n_ids && (prompt || a.first_col > 0)) {
        return {a.adds ? prompt : NULL, a.adds ? 0 : -1};
    }
    const int64_t row = (id >= a.n_ids || id < 0 ? 0 : id) - a.first_id;
    return {NULL, row < 0 || row >= a.rows ? -1 : row};
}

/* Where the row of token t's type begins. */
static __device__ __forceinline__ int64_t type_at(const embed_params &a, int64_t t)
{
    const int64_t type = a.types ? a.types[t] : 0;
    return (type < 0 ? 0 : type < a.n_types ? type : a.n_types - 1) * a.hidden;
}

static __device__ __forceinline__ int64_t out_row(const embed_params &a, int64_t t)
{
    return a.out_rows ? a.out_rows[t] : t;
}

enum { VEC_THREADS = 128 };

/* blockIdx.x a token, blockIdx.y a slice of its row; no prompt table. */
template <typename T> static __global__ void __launch_bounds__(VEC_THREADS) embed_vec_kernel(embed_params a)
{
    const int64_t t = blockIdx.x;
    const int i = (int)(blockIdx.y * VEC_THREADS + threadIdx.x) * 8, col = i - a.first_col;

    pdl_wait();
    pdl_go();
    if (i >= a.hidden) {
        return;
    }
    const int64_t pos = a.pos_table ? a.positions[t] : 0;
    const int64_t row = find_source(a, t).row;
    const float scale = a.table_scales && row >= 0 ? a.scale * a.table_scales[row] : a.scale;
    float v[8] = {}, p[8] = {}, kind[8] = {};
    if (a.pos_table && pos < a.max_pos) {
        eight(a.pos_table, a.pos_dtype, pos * a.hidden + i, p);
    }
    if (a.type_table) {
        eight(a.type_table, a.type_dtype, type_at(a, t) + i, kind);
    }
    if (row >= 0 && col >= 0 && col < a.cols) {
        eight(a.table, a.table_dtype, row * a.cols + col, v);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k] = v[k] * scale + p[k] + kind[k];
    }
    store8((T *)a.out + out_row(a, t) * a.hidden + i, v);
}

template <typename T> static __global__ void embed_kernel(embed_params a)
{
    const int64_t t = blockIdx.x;

    pdl_wait();
    pdl_go();
    const source from = find_source(a, t);
    const void *prompt = from.prompt;
    const bool zeros = !prompt && from.row < 0;
    const int64_t row = from.row * a.cols;
    const float s = a.table_scales && from.row >= 0 ? a.scale * a.table_scales[from.row] : a.scale;
    const int64_t pos = a.pos_table ? a.positions[t] : 0;
    const int64_t kind = a.type_table ? type_at(a, t) : 0;
    T *out = (T *)a.out + out_row(a, t) * a.hidden;

    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) {
        const int col = i - a.first_col;
        float v = prompt                               ? to_f(((const T *)prompt)[i]) * a.scale
                  : zeros || col < 0 || col >= a.cols ? 0
                                                       : element(a.table, a.table_dtype, row + col) * s;
        if (a.pos_table && pos < a.max_pos) {
            v += element(a.pos_table, a.pos_dtype, pos * a.hidden + i);
        }
        if (a.type_table) {
            v += element(a.type_table, a.type_dtype, kind + i);
        }
        out[i] = from_f<T>(v);
    }
}

static bool embed_dtype(const nrd_weight *w)
{
    return is_act_dtype(w->dtype) || (w->dtype == NRD_DTYPE_F8_E4M3 && w->scales);
}

nrd_error *nrd_cuda_embed(nrd_stream *s, const nrd_embed_args *a)
{
    embed_params p = {};

    if (!embed_dtype(a->table) || (a->pos_table && !is_act_dtype(a->pos_table->dtype)) ||
        (a->type_table && !is_act_dtype(a->type_table->dtype)) || !is_act_dtype(a->out_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: embed of dtype %d to dtype %d",
                          (int)a->table->dtype, (int)a->out_dtype);
    }
    if (a->first_col < 0 || a->table->cols > a->hidden - a->first_col || (a->pos_table && a->pos_table->cols != a->hidden) ||
        (a->type_table && a->type_table->cols != a->hidden)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: embed: table has %lld columns, hidden is %d",
                          (long long)a->table->cols, a->hidden);
    }
    if (a->n_tokens <= 0) {
        return NULL;
    }
    p.ids = a->ids;
    p.slot_tokens = a->slot_tokens;
    p.positions = a->positions;
    p.table = a->table->data;
    p.table_scales = a->table->dtype == NRD_DTYPE_F8_E4M3 ? (const float *)a->table->scales : NULL;
    p.adds = a->first_id == 0 && a->first_col == 0;
    p.pos_table = a->pos_table && p.adds ? a->pos_table->data : NULL;
    p.prompt_table = a->prompt_table;
    p.out_rows = a->out_rows;
    p.out = a->out;
    p.rows = a->table->rows;
    p.first_id = a->first_id;
    p.n_ids = a->n_ids > 0 ? a->n_ids : a->table->rows;
    p.max_pos = a->pos_table ? a->pos_table->rows : 0;
    p.hidden = a->hidden;
    p.cols = (int)a->table->cols;
    p.first_col = a->first_col;
    p.table_dtype = a->table->dtype;
    p.pos_dtype = a->pos_table ? a->pos_table->dtype : 0;
    p.type_table = a->type_table && p.adds ? a->type_table->data : NULL;
    p.types = a->types;
    p.n_types = a->type_table ? a->type_table->rows : 0;
    p.type_dtype = a->type_table ? a->type_table->dtype : 0;
    p.scale = a->scale;
    if (a->hidden % 8 == 0 && p.cols % 8 == 0 && p.first_col % 8 == 0 && !a->prompt_table && aligned16(p.table) && aligned16(p.pos_table) &&
        aligned16(p.type_table) && aligned16(p.out)) {
        const dim3 grid((unsigned)a->n_tokens, (unsigned)(a->hidden / 8 + VEC_THREADS - 1) / VEC_THREADS);
        ACT_TYPE(a->out_dtype, return launch(s, embed_vec_kernel<T>, grid, dim3(VEC_THREADS), 0, p));
    }
    ACT_TYPE(a->out_dtype,
             return launch(s, embed_kernel<T>, dim3((unsigned)a->n_tokens), dim3(256), 0, p));
}
