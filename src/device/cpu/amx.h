/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/amx.h - the tile instructions (AMX-TILE, AMX-INT8, AMX-BF16) as words, and a conversion of AVX512-BF16.
 *
 * Purpose   A tile is up to 16 rows of up to 64 bytes, in one of eight registers of a thread. The
 *           words take the register's number as a literal. Instructions are written as such, so
 *           that no compiler needs an option for them, and order memory: what was stored before
 *           is what a tile loads.
 * Owner     mx_configure ... mx_release by the same thread; in between the kernel saves 8 KiB when
 *           it switches threads, so a task configures at its begin and releases at its end.
 * Note      Tests define NRD_AMX_WORDS: the same words in plain C, for machines without them.
 */
#ifndef NRD_DEVICE_CPU_AMX_H
#define NRD_DEVICE_CPU_AMX_H

#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As the instruction reads it (Intel SDM, LDTILECFG). */
typedef struct mx_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} mx_config;

/* Instructions, registers that the system saves, and its leave to use them (once a process). */
static inline bool mx_usable(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18 };
    unsigned a, b, c, d, low, high;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1u)) { /* OSXSAVE */
        return false;
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1u) || !(d >> 24 & 1u) ||
        !(d >> 25 & 1u)) {
        return false; /* BF16, TILE, INT8 */
    }
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1u)) {
        return false; /* AVX512-BF16 */
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3u) == 3u && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) == 0;
}

#define mx_configure(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)))
#define mx_release() __asm__ volatile("tilerelease" ::: "memory")
#define mx_zero(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define mx_load(t, p, step)                                                                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"((const void *)(p)),                     \
                     "r"((int64_t)(step))                                                          \
                     : "memory")
/* As mx_load, of what comes from L2 and should not take L1's place. */
#define mx_stream(t, p, step)                                                                      \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"((const void *)(p)),                   \
                     "r"((int64_t)(step))                                                          \
                     : "memory")
/* The line at p, to be written. */
#define mx_ask_to_write(p) __asm__ volatile("prefetchw (%0)" ::"r"(p))
#define mx_store(t, p, step)                                                                       \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"((void *)(p)), "r"((int64_t)(step))  \
                     : "memory")
/* c[m][n] += sum over k of a[m][k] * b[k / 4][n][k % 4], signed bytes;
 * bfloat16: b[k / 2][n][k % 2] */
#define mx_dot_i8(c, a, b)                                                                         \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
#define mx_dot_bf16(c, a, b)                                                                       \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* The bfloat16 nearest to 32 floats at x, ties to even, to 64 bytes at p. */
#define mx_round_32(p, x)                                                                          \
    __asm__ volatile("vmovups (%1), %%zmm31\n\tvmovups 64(%1), %%zmm30\n\t"                        \
                     "vcvtne2ps2bf16 %%zmm31, %%zmm30, %%zmm31\n\tvmovups %%zmm31, (%0)" ::"r"(p), \
                     "r"(x)                                                                        \
                     : "memory", "xmm30", "xmm31")

#endif
