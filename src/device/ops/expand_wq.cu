/* expand_wq: weights into the layout of wq.cuh at load; and slices of them to bf16 for products of many
 * rows.
 * Work      wq_pack: one thread a 32-bit word of the chunks. wq_expand: one warp a chunk, a lane's
 *           16 bytes of codes become pieces of 8 bytes, 32 bytes of a row by four lanes.
 * Bound     wq_pack runs once for each weight, behind the upload over PCIe. wq_expand: what it writes,
 *           2 bytes a number, stays in the L2 for the product behind it.
 * Sources   base/dtype.c is the definition of the formats in plain C.
 */
#include "device/ops/wq.cuh"

#include <algorithm>

/* The number at element i of a block as it is stored: 4 bits as they are, 8 bits + 128. */
static __device__ uint32_t code_of(int dtype, const uint8_t *b, int i)
{
    const int lo = i & 15, top = i >> 4 & 1; /* of a 32-block */
    const int l = i & 31, n = i >> 7, j = i >> 5 & 3;

    switch (dtype) {
    case NRD_DTYPE_Q4_0:
        return b[2 + lo] >> (4 * top) & 15;
    case NRD_DTYPE_Q4_1:
        return b[4 + lo] >> (4 * top) & 15;
    case NRD_DTYPE_Q4_K:
        return b[16 + (i >> 6) * 32 + l] >> (4 * (j & 1)) & 15;
    case NRD_DTYPE_Q5_0:
        return (b[6 + lo] >> (4 * top) & 15 | (b[2 + i / 8] >> (i % 8) & 1) << 4) + 112;
    case NRD_DTYPE_Q5_1:
        return (b[8 + lo] >> (4 * top) & 15 | (b[4 + i / 8] >> (i % 8) & 1) << 4) + 128;
    case NRD_DTYPE_Q5_K:
        return (b[48 + (i >> 6) * 32 + l] >> (4 * (j & 1)) & 15 | (b[16 + l] >> (i >> 5) & 1) << 4) + 128;
    case NRD_DTYPE_Q6_K: {
        const int low = b[n * 64 + (j & 1) * 32 + l] >> (4 * (j >> 1)) & 15;
        return (low | (b[128 + n * 32 + l] >> (2 * j) & 3) << 4) + 96;
    }
    case NRD_DTYPE_Q8_0:
        return (uint8_t)(b[2 + i] ^ 0x80);
    default:
        return (uint8_t)(b[0] ^ 0x80);
    }
}

static __device__ __forceinline__ uint32_t u16_at(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

/* 6-bit factors of group g in Q4_K and Q5_K: groups 4..7 have their top bits in 0..3. */
static __device__ uint32_t k4_factor(const uint8_t *s, int g, bool of_min)
{
    if (g < 4) {
        return s[g + (of_min ? 4 : 0)] & 63;
    }
    return of_min ? s[g + 4] >> 4 | (s[g] >> 6) << 4 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
}

struct pack_params {
    const uint8_t *src;
    uint32_t *dst;
    int64_t row_bytes, rows, cols, words; /* words: all of dst */
    int k_chunks, block, block_bytes, dtype;
};

struct pack_at {
    const pack_params *a;
    int64_t r0, c0; /* of the chunk */

    /* The block of an element, NULL in the padding. */
    __device__ const uint8_t *block(int row, int col) const
    {
        const int64_t r = r0 + row, c = c0 + col;
        return r < a->rows && c < a->cols ? a->src + r * a->row_bytes + c / a->block * a->block_bytes : NULL;
    }
};

static __device__ uint32_t code_at(const pack_at &at, int row, int col, uint32_t zero)
{
    const uint8_t *b = at.block(row, col);
    return b ? code_of(at.a->dtype, b, (int)((at.c0 + col) % at.a->block)) : zero;
}

/* Register i of the operand: rows g, g + 8, g, g + 8; the later ones hold the later two columns. */
static __device__ uint32_t code_word(const pack_at &at, int bits, int w)
{
    const int lane = w / 4 % 32, g = lane >> 2, t = lane & 3;
    uint32_t r = 0;

    if (bits == 4) {
        const int group = w / 128 * 2 + w % 4 / 2, col = group * 32 + w % 2 * 16 + 4 * t;
        for (int i = 0; i < 4; i++) {
            const int row = g + 8 * (i & 1), c = col + (i & 2);
            r |= code_at(at, row, c, 0) << (4 * i) | code_at(at, row, c + 1, 0) << (16 + 4 * i);
        }
    } else {
        const int group = w / 128, col = group * 32 + w % 4 / 2 * 16 + 4 * t + w % 2 * 2;
        for (int i = 0; i < 2; i++) {
            r |= code_at(at, g + 8 * i, col, 128) << (8 * i) |
                 code_at(at, g + 8 * i, col + 1, 128) << (16 + 8 * i);
        }
    }
    return r;
}

static __device__ uint32_t meta_word(const pack_at &at, int meta, int w)
{
    const uint8_t *b;
    uint32_t r = 0;

    switch (meta) {
    case WQ_S:
        for (int i = 0; i < 2; i++) {
            b = at.block(w / 4, (w % 4 * 2 + i) * 32);
            r |= b ? u16_at(b) << (16 * i) : 0;
        }
        return r;
    case WQ_M:
        b = at.block(w / 8, w % 8 * 32);
        return b ? u16_at(b) | u16_at(b + 2) << 16 : 0;
    case WQ_K:
        b = at.block(w < 64 ? w / 4 : w - 64, 0);
        if (w >= 64) {
            return b ? u16_at(b) | u16_at(b + 2) << 16 : 0;
        }
        for (int i = 0; i < 4; i++) {
            r |= b ? k4_factor(b + 4, w % 2 * 4 + i, w % 4 >= 2) << (8 * i) : 0;
        }
        return r;
    default: /* WQ_K16 */
        if (w >= 64) {
            for (int i = 0; i < 2; i++) {
                b = at.block((w - 64) * 2 + i, 0);
                r |= b ? u16_at(b + 208) << (16 * i) : 0;
            }
            return r;
        }
        b = at.block(w / 4, 0);
        for (int i = 0; i < 4; i++) {
            r |= (b ? (uint32_t)(b[192 + w % 4 * 4 + i] ^ 0x80) : 0x80u) << (8 * i);
        }
        return r;
    }
}

static __device__ uint32_t pack_word(const pack_params &a, int64_t i)
{
    const wq_format f = wq_of(a.dtype);
    const int chunk_words = wq_chunk(f.bits, f.meta) / 4, code_words = WQ_ROWS * WQ_COLS * f.bits / 32;
    const int64_t chunk = i / chunk_words;
    const int w = (int)(i % chunk_words);
    const pack_at at = {&a, chunk / a.k_chunks * WQ_ROWS, chunk % a.k_chunks * WQ_COLS};

    return w < code_words ? code_word(at, f.bits, w) : meta_word(at, f.meta, w - code_words);
}

static __global__ void pack_kernel(pack_params a)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.words;
         i += (int64_t)gridDim.x * blockDim.x) {
        a.dst[i] = pack_word(a, i);
    }
}

nrd_error *wq_pack(nrd_stream *s, nrd_dtype dtype, const void *src, int64_t row_bytes, int64_t rows,
                   int64_t cols, void *dst)
{
    pack_params p = {};

    p.src = (const uint8_t *)src;
    p.dst = (uint32_t *)dst;
    p.row_bytes = row_bytes;
    p.rows = rows;
    p.cols = cols;
    p.words = (int64_t)(wq_bytes(dtype, rows, cols) / 4);
    p.k_chunks = (int)((cols + WQ_COLS - 1) / WQ_COLS);
    p.dtype = dtype;
    switch (dtype) { /* bytes of a block: base/dtype.c */
    case NRD_DTYPE_Q4_0:
        p.block = 32, p.block_bytes = 18;
        break;
    case NRD_DTYPE_Q4_1:
        p.block = 32, p.block_bytes = 20;
        break;
    case NRD_DTYPE_Q5_0:
        p.block = 32, p.block_bytes = 22;
        break;
    case NRD_DTYPE_Q5_1:
        p.block = 32, p.block_bytes = 24;
        break;
    case NRD_DTYPE_Q8_0:
        p.block = 32, p.block_bytes = 34;
        break;
    case NRD_DTYPE_Q4_K:
        p.block = 256, p.block_bytes = 144;
        break;
    case NRD_DTYPE_Q5_K:
        p.block = 256, p.block_bytes = 176;
        break;
    case NRD_DTYPE_Q6_K:
        p.block = 256, p.block_bytes = 210;
        break;
    default:
        p.block = p.block_bytes = 1;
    }
    const int64_t blocks = std::min<int64_t>((p.words + 255) / 256, 65535);
    pack_kernel<<<(unsigned)blocks, 256, 0, s->s>>>(p);
    CUDA_TRY(cudaGetLastError());
    return NULL;
}

struct expand_params {
    const char *src; /* first chunk */
    const float *row_scale;
    bf16 *dst;
    int64_t rows, cols, chunks;
    int k_chunks;
};

/* Scale and offset of a row's group (half group j of WQ_K16). */
static __device__ __forceinline__ float2 scale_of(int meta, const char *m, int row, int group, int j)
{
    switch (meta) {
    case WQ_S:
        return make_float2(__half2float(((const __half *)m)[row * 8 + group]), 0.0f);
    case WQ_M:
        return wq_halves(((const uint32_t *)m)[row * 8 + group]);
    case WQ_K: {
        const float2 d = wq_halves(((const uint32_t *)m)[64 + row]);
        const uint8_t *f = (const uint8_t *)m + row * 16;
        return make_float2(d.x * (float)f[group], -d.y * (float)f[8 + group]);
    }
    case WQ_K16: {
        const int f = ((const uint8_t *)m)[row * 16 + group * 2 + j] - 128;
        return make_float2(__half2float(((const __half *)m)[128 + row]) * (float)f, 0.0f);
    }
    default:
        return make_float2(1.0f, 0.0f);
    }
}

template <int BITS, int META> static __global__ void __launch_bounds__(256) expand_wq_kernel(expand_params a)
{
    constexpr int CODES = WQ_ROWS * WQ_COLS * BITS / 8;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int64_t chunk = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;

    pdl_wait(); /* the product in front may still read dst */
    pdl_go();
    if (chunk >= a.chunks) {
        return;
    }
    const char *from = a.src + chunk * wq_chunk(BITS, META), *meta = from + CODES;
    const int64_t r0 = chunk / a.k_chunks * WQ_ROWS, c0 = chunk % a.k_chunks * WQ_COLS;
#pragma unroll 4
    for (int half = 0; half < 16; half++) {
        const int group = half / 2, j = half % 2;
        const uint32_t *w = (const uint32_t *)from +
                            (BITS == 4 ? group / 2 * 128 + lane * 4 + group % 2 * 2 + j
                                       : group * 128 + lane * 4 + j * 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int64_t row = r0 + g + 8 * h, col = c0 + group * 32 + j * 16 + 4 * t;
            const float2 s = scale_of(META, meta, g + 8 * h, group, j);
            const float of_row = META == WQ_ROW && row < a.rows ? a.row_scale[row] : 1.0f;
            bf16 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) { /* registers h and h + 2, low and high half */
                const int q = BITS == 4 ? (int)(w[0] >> (16 * (i & 1) + 4 * (h + (i & 2))) & 15)
                                        : (int)(w[i / 2] >> (16 * (i & 1) + 8 * h) & 255) - 128;
                const float n = BITS == 4 && META == WQ_S ? (float)(q - 8) : (float)q;
                v[i] = from_f<bf16>(META == WQ_ROW ? n * of_row : fmaf(n, s.x, s.y));
            }
            if (row < a.rows && col < a.cols) {
                bf16 *to = a.dst + row * a.cols + col;
                if (a.cols % 4 == 0) {
                    uint2 u;
                    memcpy(&u, v, 8);
                    *(uint2 *)to = u;
                } else {
                    for (int i = 0; i < 4 && col + i < a.cols; i++) {
                        to[i] = v[i];
                    }
                }
            }
        }
    }
}

nrd_error *wq_expand(nrd_stream *s, const nrd_weight *w, int64_t first, int64_t rows, void *dst)
{
    const wq_format f = wq_of(w->dtype);
    expand_params p = {};

    p.k_chunks = (int)((w->cols + WQ_COLS - 1) / WQ_COLS);
    p.src = (const char *)w->data + first / WQ_ROWS * p.k_chunks * wq_chunk(f.bits, f.meta);
    p.row_scale = f.meta == WQ_ROW ? (const float *)w->scales + first : NULL;
    p.dst = (bf16 *)dst;
    p.rows = rows;
    p.cols = w->cols;
    p.chunks = (rows + WQ_ROWS - 1) / WQ_ROWS * p.k_chunks;
    const dim3 grid((unsigned)((p.chunks + 7) / 8));
    switch (f.bits * 8 + f.meta) {
    case 4 * 8 + WQ_S:
        return launch(s, expand_wq_kernel<4, WQ_S>, grid, dim3(256), 0, p);
    case 4 * 8 + WQ_M:
        return launch(s, expand_wq_kernel<4, WQ_M>, grid, dim3(256), 0, p);
    case 4 * 8 + WQ_K:
        return launch(s, expand_wq_kernel<4, WQ_K>, grid, dim3(256), 0, p);
    case 8 * 8 + WQ_S:
        return launch(s, expand_wq_kernel<8, WQ_S>, grid, dim3(256), 0, p);
    case 8 * 8 + WQ_M:
        return launch(s, expand_wq_kernel<8, WQ_M>, grid, dim3(256), 0, p);
    case 8 * 8 + WQ_K:
        return launch(s, expand_wq_kernel<8, WQ_K>, grid, dim3(256), 0, p);
    case 8 * 8 + WQ_K16:
        return launch(s, expand_wq_kernel<8, WQ_K16>, grid, dim3(256), 0, p);
    case 8 * 8 + WQ_ROW:
        return launch(s, expand_wq_kernel<8, WQ_ROW>, grid, dim3(256), 0, p);
    default:
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: no expansion of weights of dtype %d", (int)w->dtype);
    }
}
