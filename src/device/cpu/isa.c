/* SPDX-License-Identifier: Apache-2.0
 * Which instruction set: asked once, at open. */
#include "device/cpu/kernels.h"

#include <string.h>

typedef struct instruction_set {
    const char *name;
    const nrd_cpu_kernels *k; /* NULL: not in this build */
} instruction_set;

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

static const instruction_set all[] = {
    {"amx", &nrd_cpu_kernels_amx},         {"avx512vnni", &nrd_cpu_kernels_avx512vnni},
    {"avx512", &nrd_cpu_kernels_avx512},   {"avx2", &nrd_cpu_kernels_avx2},
    {"generic", &nrd_cpu_kernels_generic},
};
#define KNOWN "generic, avx2, avx512, avx512vnni, amx"

#else

static bool can_run(const nrd_cpu_kernels *k)
{
    (void)k;
    return true;
}

static const instruction_set all[] = {{"generic", &nrd_cpu_kernels_generic}};
#define KNOWN "generic"

#endif

nrd_error *nrd_cpu_kernels_choose(const nrd_cpu_kernels **out, const char *name)
{
    bool any = !name || !*name;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!any && strcmp(name, all[i].name) != 0) {
            continue;
        }
        if (all[i].k && can_run(all[i].k)) {
            *out = all[i].k;
            return NULL;
        }
        if (!any) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, all[i].k ? "cpu: this processor does not run \"%s\""
                                                            : "cpu: \"%s\" is not in this build: 'make all' compiles it",
                              name);
        }
    }
    return any ? nrd_errorf(NRD_ERR_UNSUPPORTED,
                            "cpu: no instruction set of this build runs here: 'make all' compiles all of them")
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: unknown instruction set \"%s\"; known: " KNOWN, name);
}
