/* SPDX-License-Identifier: Apache-2.0
 * common.cuh - element types, warp and block reductions, programmatic launch, for all kernels. */
#ifndef NRD_OPS_COMMON_CUH
#define NRD_OPS_COMMON_CUH

#include "device/cuda/cuda_dev.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

typedef __nv_bfloat16 bf16;
typedef __half f16;
struct f8 { /* e4m3 */
    uint8_t v;
};

/* Waits until all kernels before this one in the stream are complete and visible; a no-op where the
 * launch was an ordinary one. (PTX ISA, griddepcontrol; sm_90 on.) */
static __device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel of the stream start as soon as every block of this one has. */
static __device__ __forceinline__ void pdl_go()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ float to_f(float v) { return v; }
static __device__ __forceinline__ float to_f(bf16 v) { return __bfloat162float(v); }
static __device__ __forceinline__ float to_f(f16 v) { return __half2float(v); }
static __device__ __forceinline__ float to_f(f8 v)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(v.v, __NV_E4M3)));
}
static __device__ __forceinline__ float to_f(int8_t v) { return (float)v; }

template <typename T> static __device__ __forceinline__ T from_f(float v);
template <> __device__ __forceinline__ float from_f<float>(float v) { return v; }
template <> __device__ __forceinline__ bf16 from_f<bf16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ f16 from_f<f16>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ f8 from_f<f8>(float v)
{
    f8 r;
    r.v = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
    return r;
}
template <> __device__ __forceinline__ int8_t from_f<int8_t>(float v)
{
    return (int8_t)fminf(127.0f, fmaxf(-127.0f, rintf(v)));
}

/* y[at] = v; y of bf16, fp16 or else float32. */
static __device__ __forceinline__ void store_as(void *y, int dtype, int64_t at, float v)
{
    if (dtype == NRD_DTYPE_BF16) {
        ((bf16 *)y)[at] = from_f<bf16>(v);
    } else if (dtype == NRD_DTYPE_F16) {
        ((f16 *)y)[at] = from_f<f16>(v);
    } else {
        ((float *)y)[at] = v;
    }
}

/* Eight consecutive elements; p is aligned to their size (16 bytes at least for 16-bit types). */
template <typename T> static __device__ __forceinline__ void load8(const T *p, float *v)
{
    if constexpr (sizeof(T) == 4) {
        const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        const uint4 a = *(const uint4 *)p;
        T t[8];
        memcpy(t, &a, 16);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = to_f(t[i]);
        }
    }
}

template <typename T> static __device__ __forceinline__ void store8(T *p, const float *v)
{
    if constexpr (std::is_same<T, int8_t>::value) {
        int8_t t[8];
        uint2 a;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            t[i] = from_f<int8_t>(v[i]);
        }
        memcpy(&a, t, sizeof a);
        *(uint2 *)p = a;
    } else if constexpr (sizeof(T) == 1) { /* two e4m3 an instruction */
        uint16_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pair[i] = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * i], v[2 * i + 1]), __NV_SATFINITE,
                                               __NV_E4M3);
        }
        *(uint2 *)p = make_uint2(pair[0] | (uint32_t)pair[1] << 16, pair[2] | (uint32_t)pair[3] << 16);
    } else if constexpr (sizeof(T) == 2) {
        T t[8];
        uint4 a;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            t[i] = from_f<T>(v[i]);
        }
        memcpy(&a, t, 16);
        *(uint4 *)p = a;
    } else {
        ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
}

struct op_sum {
    static constexpr float zero = 0.0f;
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct op_max {
    static constexpr float zero = -INFINITY;
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

struct op_amax { /* of magnitudes */
    static constexpr float zero = 0.0f;
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

template <typename Op> static __device__ __forceinline__ float warp_reduce(float v)
{
#if __CUDA_ARCH__ >= 800
    constexpr bool bits = std::is_same<Op, op_amax>::value; /* their bits are in the same order */
#else
    constexpr bool bits = false;
#endif
    if constexpr (bits) {
        v = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v)));
    } else {
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, o));
        }
    }
    return v;
}

/* The whole block gets the result. blockDim.x is a multiple of 32; `red` holds 32 floats. The same
 * order of additions for every call: results do not depend on timing. */
template <typename Op> static __device__ __forceinline__ float block_reduce(float v, float *red)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;

    v = warp_reduce<Op>(v);
    __syncthreads(); /* red may still be read from the call before */
    if (lane == 0) {
        red[warp] = v;
    }
    __syncthreads();
    return warp_reduce<Op>(lane < n_warps ? red[lane] : Op::zero);
}

/* 2^x as one instruction (ex2.approx, relative error 2^-22); exp2f adds a range fix for denormals. */
static __device__ __forceinline__ float fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Within 2 units of the last place; y / inf = 0. */
static __device__ __forceinline__ float fast_div(float x, float y)
{
    float q;
    asm("div.approx.f32 %0, %1, %2;" : "=f"(q) : "f"(x), "f"(y));
    return q;
}

static __device__ __forceinline__ float act_apply(int kind, float x)
{
    switch (kind) {
    case NRD_ACT_SILU:
        return __fdividef(x, 1.0f + __expf(-x)); /* IEEE division took a third of the kernel */
    case NRD_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case NRD_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case NRD_ACT_RELU:
        return fmaxf(x, 0.0f);
    case NRD_ACT_RELU2:
        return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    case NRD_ACT_CLAMPED_SWIGLU:
        x = fminf(x, NRD_SWIGLU_LIMIT);
        return __fdividef(x, 1.0f + __expf(-NRD_SWIGLU_ALPHA * x));
    case NRD_ACT_QUICK_GELU:
        return __fdividef(x, 1.0f + __expf(-NRD_QUICK_GELU_ALPHA * x));
    default:
        return x;
    }
}

/* The other half of a gated pair, as act_apply's result is multiplied by it. */
static __device__ __forceinline__ float act_other(int kind, float up)
{
    return kind == NRD_ACT_CLAMPED_SWIGLU ? fminf(fmaxf(up, -NRD_SWIGLU_LIMIT), NRD_SWIGLU_LIMIT) + 1.0f : up;
}

/* Runs the statement with T = the C++ type of an activation dtype. */
#define ACT_TYPE(dtype, ...)                                                                       \
    do {                                                                                           \
        if ((dtype) == NRD_DTYPE_BF16) {                                                           \
            typedef bf16 T;                                                                        \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == NRD_DTYPE_F16) {                                                     \
            typedef f16 T;                                                                         \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

static inline bool is_act_dtype(nrd_dtype t)
{
    return t == NRD_DTYPE_BF16 || t == NRD_DTYPE_F16 || t == NRD_DTYPE_F32;
}

static inline bool aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* May store8 write rows of this type here? */
static inline bool aligned_store8(const void *p, nrd_dtype dtype)
{
    return dtype == NRD_DTYPE_F8_E4M3 ? ((uintptr_t)p & 7) == 0 : aligned16(p);
}

/* FP8 scale of a row with largest magnitude `amax`. */
static __device__ __forceinline__ float f8_scale(float amax)
{
    return amax > 0.0f ? amax * (1.0f / 448.0f) : 1.0f;
}

#endif
