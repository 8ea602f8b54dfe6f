/* SPDX-License-Identifier: Apache-2.0
 * Which instruction set: asked once, at open. */
#include "device/cpu/kernels.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void) /* a name that not every compiler's __builtin_cpu_supports knows */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u);
}

static bool can_run(const nrd_cpu_kernels *k)
{
    if (k == &nrd_cpu_kernels_generic) {
        return true;
    }
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (k == &nrd_cpu_kernels_avx2) {
        return avx2;
    }
    if (k == &nrd_cpu_kernels_avx512) {
        return avx512;
    }
    return avx512 && __builtin_cpu_supports("avx512vnni") && (k != &nrd_cpu_kernels_amx || nrd_cpu_amx_usable());
}

static const nrd_cpu_kernels *const all[] = {
    &nrd_cpu_kernels_amx,  &nrd_cpu_kernels_avx512vnni, &nrd_cpu_kernels_avx512,
    &nrd_cpu_kernels_avx2, &nrd_cpu_kernels_generic,
};
#define KNOWN "generic, avx2, avx512, avx512vnni, amx"

#else

static bool can_run(const nrd_cpu_kernels *k)
{
    (void)k;
    return true;
}

static const nrd_cpu_kernels *const all[] = {&nrd_cpu_kernels_generic};
#define KNOWN "generic"

#endif

nrd_error *nrd_cpu_kernels_choose(const nrd_cpu_kernels **out, const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (name && *name && strcmp(name, all[i]->name) != 0) {
            continue;
        }
        if (can_run(all[i])) {
            *out = all[i];
            return NULL;
        }
        if (name && *name) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: this processor does not run \"%s\"", name);
        }
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED,
                      "cpu: unknown instruction set \"%s\"; known: " KNOWN, name);
}
