/* device/cpu/kernels.h - the kernels of one instruction set, as a table.
 *
 * Purpose   Chosen once when the device opens. Every table computes the same operations.
 * Owner     Constant data.
 */
#ifndef NRD_DEVICE_CPU_KERNELS_H
#define NRD_DEVICE_CPU_KERNELS_H

#include "device/ops/ops.h"

/* Tokens regrouped for a token tile; see device/ops/linear_cpu.h. */
typedef struct nrd_linear_panel {
    const void *x;      /* first row: ACT_Q8, or float32 with is_float */
    size_t row_bytes;
    int64_t cols;
    int64_t n_blocks;   /* of 32 k, whole super blocks */
    int n_tokens;       /* 1, 2, 4, 8 or 16 */
    int offset;
    bool halves, is_float;
    uint8_t *panel;
} nrd_linear_panel;

/* len: blocks of 32 k, or columns for float weights. out[tokens][16]. */
typedef void (*nrd_linear_tile_fn)(const uint8_t *tile, const uint8_t *panel, int64_t len, float *out);

typedef struct nrd_cpu_kernels {
    const char *name; /* as nrd_device_config.isa */
    void (*linear_panel)(const nrd_linear_panel *a);
    nrd_linear_tile_fn (*linear_tile)(nrd_dtype type, int log2_tokens);
    void (*linear_finish)(const float *out, const float *scale, const float *bias, float softcap, int n,
                          float *y);
    void (*act_q8_row)(const float *x, int64_t cols, void *row);
} nrd_cpu_kernels;

extern const nrd_cpu_kernels nrd_cpu_kernels_generic, nrd_cpu_kernels_avx2, nrd_cpu_kernels_avx512,
    nrd_cpu_kernels_avx512vnni;

/* Best table that this machine runs; `name` ("" or NULL: best) asks for one. */
nrd_error *nrd_cpu_kernels_choose(const nrd_cpu_kernels **out, const char *name) NRD_MUST_USE;

#endif
