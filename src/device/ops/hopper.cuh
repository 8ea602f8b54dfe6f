/* SPDX-License-Identifier: Apache-2.0
 * hopper.cuh - mbarriers, bulk copies and wgmma of sm_90a.
 * Sources   PTX ISA 9.0: "mbarrier", "cp.async.bulk", "Asynchronous Warpgroup Level Matrix
 *           Instructions" (descriptor fields: 9.7.15.5.1).
 */
#ifndef NRD_OPS_HOPPER_CUH
#define NRD_OPS_HOPPER_CUH

#include "device/ops/common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define NRD_SM90A 1
#endif

static __device__ __forceinline__ uint32_t smem_u32(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void mbar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

static __device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
#endif
}

static __device__ __forceinline__ void mbar_arrive(uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
#endif
}

/* Arrives when all copies of 16 bytes (copy16_or_zero) of this thread have come. */
static __device__ __forceinline__ void mbar_arrive_copied(uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
#endif
}

static __device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
#endif
}

/* L2 eviction priorities as the copy engine takes them (CUTLASS documents the encodings). */
#define L2_EVICT_FIRST 0x12F0000000000000ull
#define L2_EVICT_LAST 0x14F0000000000000ull
#define L2_EVICT_NORMAL 0x1000000000000000ull

static __device__ __forceinline__ void tma_2d(uint32_t dst, const CUtensorMap *map, int c0, int c1,
                                              uint32_t bar, uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "l"(policy)
                 : "memory");
#endif
}

static __device__ __forceinline__ void tma_4d(uint32_t dst, const CUtensorMap *map, int c0, int c1, int c2, int c3, uint32_t bar,
                                              uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
                 : "memory");
#endif
}

/* A box to memory; what lies outside is not written. Shared memory may change after bulk_read_wait of its group. */
static __device__ __forceinline__ void tma_store_2d(const CUtensorMap *map, int c0, int c1, uint32_t src)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(c0), "r"(c1), "r"(src)
                 : "memory");
#endif
}

static __device__ __forceinline__ void bulk_end_group()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/* This thread's bulk stores have read their shared memory, but for the last LEFT groups. */
template <int LEFT> static __device__ __forceinline__ void bulk_read_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
#endif
}

/* Four 8 x 8 matrices of 16-bit elements: lane i gives where row i % 8 of matrix i / 8 goes. */
static __device__ __forceinline__ void stmatrix4(uint32_t addr, const uint32_t *r)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}

/* Four 8 x 8 matrices of 16-bit elements, transposed: lane i gives where column i % 8 of matrix i / 8 goes. */
static __device__ __forceinline__ void stmatrix4_t(uint32_t addr, const uint32_t *r)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}

static inline CUtensorMapDataType tma_type(nrd_dtype dtype)
{
    return dtype == NRD_DTYPE_F8_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
           : dtype == NRD_DTYPE_BF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

/* The map of a row-major matrix for boxes of 128 bytes x box_rows, 128-byte swizzle; what lies outside reads
 * as zeros. Pointer and rows are multiples of 16 bytes. */
static inline bool tma_map(const cuda_device *dev, CUtensorMap *map, nrd_dtype dtype, const void *p,
                           int64_t rows, int64_t cols, int box_rows)
{
    const int size = dtype == NRD_DTYPE_F8_E4M3 ? 1 : 2;
    const cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows};
    const cuuint64_t strides[1] = {(cuuint64_t)cols * (cuuint64_t)size};
    const cuuint32_t box[2] = {(cuuint32_t)(128 / size), (cuuint32_t)box_rows};
    const cuuint32_t ones[2] = {1, 1};

    return dev->encode(map, tma_type(dtype), 2, (void *)p, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Plain bulk copy: 16-byte aligned, a multiple of 16 bytes. */
static __device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, uint32_t bytes,
                                                 uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
                 "[%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
#endif
}

static __device__ __forceinline__ void bulk_copy_hint(uint32_t dst, const void *src, uint32_t bytes,
                                                      uint32_t bar, uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
#endif
}

/* All threads of a cluster's blocks meet; what they wrote to shared memory is visible to all. */
static __device__ __forceinline__ void cluster_meet()
{
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
                 ::: "memory");
#endif
}

/* The same without a word about memory: the fence of the one above takes most of a microsecond. */
static __device__ __forceinline__ void cluster_meet_relaxed()
{
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
    return r;
}

/* As tma_2d, to the same place in all blocks of the mask; completes on each one's barrier. */
static __device__ __forceinline__ void tma_2d_all(uint32_t dst, const CUtensorMap *map, int c0, int c1, uint32_t bar, uint16_t mask,
                                                  uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "h"(mask), "l"(policy)
                 : "memory");
#endif
}

/* Arrives at block `rank`'s barrier that lies where `bar` is here. */
static __device__ __forceinline__ void mbar_arrive_at(uint32_t bar, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
#endif
}

/* Four floats to `here`, an address of this block, in block `rank` of the cluster, and 16 bytes to its barrier at `bar`. */
static __device__ __forceinline__ void cluster_send4(uint32_t here, uint32_t bar, int rank, float4 v)
{
#if __CUDA_ARCH__ >= 900
    uint32_t there, arrived;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(arrived) : "r"(bar), "r"(rank));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(arrived)
                 : "memory");
#else
    (void)here, (void)bar, (void)rank, (void)v;
#endif
}

/* Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void ldmatrix4(uint32_t *r, uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* The same, each transposed. */
static __device__ __forceinline__ void ldmatrix4_t(uint32_t *r, uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* 16 bytes, or that many zeros. */
static __device__ __forceinline__ void copy16_or_zero(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

static __device__ __forceinline__ void copies_end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All groups but the last LEFT have come. */
template <int LEFT> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

static __device__ __forceinline__ void mbar_fence_init()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* The ring of stages that one side of a block fills and the other one empties, at a multiple of 1024 bytes behind FRONT bytes of shared memory
 * that begin with the ring's barriers: those of full stages, and from byte 128 on those of empty ones. Each thread has its own place in it. */
template <int STAGES, int STAGE, int FRONT> struct stage_ring {
    static_assert(STAGES <= 16 && FRONT % 1024 == 0, "barriers of 128 bytes each, stages as their swizzle wants");

    char *const front;
    const uint32_t base, full, empty;
    int slot = 0;
    uint32_t parity = 0;

    /* `raw`: FRONT + STAGES * STAGE bytes, and up to 1023 more in front of them. */
    __device__ __forceinline__ explicit stage_ring(char *raw)
        : front(raw + (((smem_u32(raw) + 1023) & ~1023u) - smem_u32(raw))), base(smem_u32(front) + FRONT), full(smem_u32(front)), empty(full + 128)
    {
    }

    /* One thread: a stage is empty when it was released so many times. */
    __device__ __forceinline__ void init(int releases) const
    {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(full + i * 8, 1);
            mbar_init(empty + i * 8, releases);
        }
        mbar_fence_init();
    }

    __device__ __forceinline__ void advance()
    {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }

    __device__ __forceinline__ int before() const
    {
        return slot == 0 ? STAGES - 1 : slot - 1;
    }

    /* A warp has read a stage that all blocks of its cluster bring to: to be called by all lanes. */
    template <int CLUSTER> __device__ __forceinline__ void release(int stage, int lane) const
    {
        if (lane < CLUSTER) {
            mbar_arrive_at(empty + stage * 8, lane);
        }
    }
};

static __device__ __forceinline__ void wg_fence()
{
#ifdef NRD_SM90A
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void wg_commit()
{
#ifdef NRD_SM90A
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int N> static __device__ __forceinline__ void wg_wait()
{
#ifdef NRD_SM90A
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

/* K-major operand with 128-byte swizzle: rows of 128 bytes, groups of 8 rows 1024 bytes apart. */
static __device__ __forceinline__ uint64_t desc_sw128(uint32_t addr)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* K-major operand without swizzle: core matrices (8 rows x 16 bytes, 128 consecutive bytes) that lie
 * `lead` bytes apart along K and `stride` bytes apart along M or N. */
static __device__ __forceinline__ uint64_t desc_plain(uint32_t addr, uint32_t lead, uint32_t stride)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32;
}

#define F2(d, i) "+f"(d[i]), "+f"(d[i + 1])
#define F4(d, i) F2(d, i), F2(d, i + 2)
#define F8R(d, i) F4(d, i), F4(d, i + 4)
#define F16R(d, i) F8R(d, i), F8R(d, i + 8)
#define F32R(d, i) F16R(d, i), F16R(d, i + 16)
#define F64R(d, i) F32R(d, i), F32R(d, i + 32)

#define REGS4 "{%0,%1,%2,%3}"
#define REGS8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define REGS12 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}"
#define REGS16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define REGS24                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}"
#define REGS32                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31}"
#define REGS48                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}"
#define REGS64                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

#define REGS96                                                                                                                      \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"       \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,"          \
    "%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,"          \
    "%90,%91,%92,%93,%94,%95}"
#define REGS128                                                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,"   \
    "%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"  \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,"  \
    "%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120," \
    "%121,%122,%123,%124,%125,%126,%127}"

/* D (64 x N, f32) += A (smem) B (smem); both K-major. The scale of D is a literal 1: callers start
 * from zeroed registers, because a run-time predicate makes ptxas serialize the group. */
#define WGMMA_SS(SHAPE, REGS, A_, B_, TYPES, TAIL, ...)                                            \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPES " " REGS ", " A_ ", " B_      \
                 ", 1, 1, 1" TAIL ";\n"                                                            \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b))

#define WGMMA_SS_N(N_, REGS, A_, B_, ...)                                                          \
    if constexpr (KIND == NRD_DTYPE_BF16) {                                                        \
        WGMMA_SS("m64n" N_ "k16", REGS, A_, B_, "bf16.bf16", ", 0, 0", __VA_ARGS__);               \
    } else if constexpr (KIND == NRD_DTYPE_F16) {                                                  \
        WGMMA_SS("m64n" N_ "k16", REGS, A_, B_, "f16.f16", ", 0, 0", __VA_ARGS__);                 \
    } else {                                                                                       \
        WGMMA_SS("m64n" N_ "k32", REGS, A_, B_, "e4m3.e4m3", "", __VA_ARGS__);                     \
    }

template <int KIND, int N>
static __device__ __forceinline__ void wgmma_ss(float *d, uint64_t a, uint64_t b)
{
#ifdef NRD_SM90A
    if constexpr (N == 8) {
        WGMMA_SS_N("8", REGS4, "%4", "%5", F4(d, 0))
    } else if constexpr (N == 16) {
        WGMMA_SS_N("16", REGS8, "%8", "%9", F8R(d, 0))
    } else if constexpr (N == 24) {
        WGMMA_SS_N("24", REGS12, "%12", "%13", F8R(d, 0), F4(d, 8))
    } else if constexpr (N == 32) {
        WGMMA_SS_N("32", REGS16, "%16", "%17", F16R(d, 0))
    } else if constexpr (N == 48) {
        WGMMA_SS_N("48", REGS24, "%24", "%25", F16R(d, 0), F8R(d, 16))
    } else if constexpr (N == 64) {
        WGMMA_SS_N("64", REGS32, "%32", "%33", F32R(d, 0))
    } else if constexpr (N == 96) {
        WGMMA_SS_N("96", REGS48, "%48", "%49", F32R(d, 0), F16R(d, 32))
    } else if constexpr (N == 128) {
        WGMMA_SS_N("128", REGS64, "%64", "%65", F64R(d, 0))
    } else if constexpr (N == 192) {
        WGMMA_SS_N("192", REGS96, "%96", "%97", F64R(d, 0), F32R(d, 64))
    } else {
        WGMMA_SS_N("256", REGS128, "%128", "%129", F64R(d, 0), F64R(d, 64))
    }
#else
    (void)d, (void)a, (void)b;
#endif
}

/* The same with A in registers (the layout of mma.sync's A, and of an accumulator's 16 columns). */
#define WGMMA_RS(SHAPE, REGS, A_, B_, TYPES, TAIL, ...)                                            \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPES " " REGS ", " A_ ", " B_      \
                 ", 1, 1, 1" TAIL ";\n"                                                            \
                 : __VA_ARGS__                                                                     \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))

#define WGMMA_RS_N(N_, REGS, A_, B_, ...)                                                          \
    if constexpr (BF) {                                                                            \
        WGMMA_RS("m64n" N_ "k16", REGS, A_, B_, "bf16.bf16", ", 0", __VA_ARGS__);                  \
    } else {                                                                                       \
        WGMMA_RS("m64n" N_ "k16", REGS, A_, B_, "f16.f16", ", 0", __VA_ARGS__);                    \
    }

template <bool BF, int N>
static __device__ __forceinline__ void wgmma_rs(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint64_t b)
{
#ifdef NRD_SM90A
    if constexpr (N == 8) {
        WGMMA_RS_N("8", REGS4, "{%4,%5,%6,%7}", "%8", F4(d, 0))
    } else if constexpr (N == 16) {
        WGMMA_RS_N("16", REGS8, "{%8,%9,%10,%11}", "%12", F8R(d, 0))
    } else if constexpr (N == 32) {
        WGMMA_RS_N("32", REGS16, "{%16,%17,%18,%19}", "%20", F16R(d, 0))
    } else if constexpr (N == 48) {
        WGMMA_RS_N("48", REGS24, "{%24,%25,%26,%27}", "%28", F16R(d, 0), F8R(d, 16))
    } else if constexpr (N == 64) {
        WGMMA_RS_N("64", REGS32, "{%32,%33,%34,%35}", "%36", F32R(d, 0))
    } else if constexpr (N == 96) {
        WGMMA_RS_N("96", REGS48, "{%48,%49,%50,%51}", "%52", F32R(d, 0), F16R(d, 32))
    } else {
        WGMMA_RS_N("128", REGS64, "{%64,%65,%66,%67}", "%68", F32R(d, 0), F32R(d, 32))
    }
#else
    (void)d, (void)a0, (void)a1, (void)a2, (void)a3, (void)b;
#endif
}

/* The same in F8: A's registers hold four numbers of K each, 4t to 4t + 3 and 16 further of row g and g + 8. */
template <int N> static __device__ __forceinline__ void wgmma_rs_f8(float *d, const uint32_t *a, uint64_t b)
{
#ifdef NRD_SM90A
    const uint32_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    if constexpr (N == 64) {
        WGMMA_RS("m64n64k32", REGS32, "{%32,%33,%34,%35}", "%36", "e4m3.e4m3", "", F32R(d, 0));
    } else if constexpr (N == 96) {
        WGMMA_RS("m64n96k32", REGS48, "{%48,%49,%50,%51}", "%52", "e4m3.e4m3", "", F32R(d, 0), F16R(d, 32));
    } else {
        WGMMA_RS("m64n128k32", REGS64, "{%64,%65,%66,%67}", "%68", "e4m3.e4m3", "", F32R(d, 0), F32R(d, 32));
    }
#else
    (void)d, (void)a, (void)b;
#endif
}

/* D (64 x 64, f32) = A B: the first of a group. Its D is only written, so that the compiler has nothing to move
 * there while other products are under way. */
#define N4(d, i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define N16(d, i) N4(d, i), N4(d, i + 4), N4(d, i + 8), N4(d, i + 12)
#define WGMMA_NEW(SHAPE, A_, B_, TAIL, ...)                                                        \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE " " REGS32 ", " A_ ", " B_ ", 0, 1, 1" TAIL ";\n"           \
                 : N16(d, 0), N16(d, 16)                                                           \
                 : __VA_ARGS__                                                                     \
                 : "memory")

template <bool BF> static __device__ __forceinline__ void wgmma_rs_new(float *d, const uint32_t *a, uint64_t b)
{
#ifdef NRD_SM90A
    if constexpr (BF) {
        WGMMA_NEW("m64n64k16.f32.bf16.bf16", "{%32,%33,%34,%35}", "%36", ", 0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                  "l"(b));
    } else {
        WGMMA_NEW("m64n64k16.f32.f16.f16", "{%32,%33,%34,%35}", "%36", ", 0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                  "l"(b));
    }
#else
    (void)d, (void)a, (void)b;
#endif
}

/* D (64 x 64, f32) = A B, or += with `add`, in F8, A as wgmma_rs_f8 takes it. `add` is not known to the compiler, so that D stays in its registers. */
static __device__ __forceinline__ void wgmma_rs_f8_if(float *d, const uint32_t *a, uint64_t b, int add)
{
#ifdef NRD_SM90A
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 " REGS32 ", {%32,%33,%34,%35}, %36, p, 1, 1;\n"
                 "}"
                 : F32R(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#else
    (void)d, (void)a, (void)b, (void)add;
#endif
}

/* A and B in shared memory, F8. */
static __device__ __forceinline__ void wgmma_ss_new_f8(float *d, uint64_t a, uint64_t b)
{
#ifdef NRD_SM90A
    WGMMA_NEW("m64n64k32.f32.e4m3.e4m3", "%32", "%33", "", "l"(a), "l"(b));
#else
    (void)d, (void)a, (void)b;
#endif
}

/* Shared memory written by ordinary stores is visible to wgmma after this and a barrier. */
static __device__ __forceinline__ void fence_async_proxy()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Two numbers as a pair of bfloat16 or float16, x in the low half. */
static __device__ __forceinline__ uint32_t pack_f16(bool bf16, float x, float y)
{
    uint32_t r;
    if (bf16) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        memcpy(&r, &v, 4);
    } else {
        const __half2 v = __floats2half2_rn(x, y);
        memcpy(&r, &v, 4);
    }
    return r;
}

/* Keeps the compiler from moving accumulator registers across the asynchronous instructions. */
template <int N> static __device__ __forceinline__ void wg_hold(float *d)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}
template <int N> static __device__ __forceinline__ void wg_hold(uint32_t *a)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+r"(a[i])::"memory");
    }
}

#endif
