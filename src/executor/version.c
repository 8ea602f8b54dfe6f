/* SPDX-License-Identifier: Apache-2.0
 * version.c - what this build is: version, commit, and what it was compiled with. */
#include "nereid/executor.h"

#include "base/str.h"
#include "commit.h" /* written by the Makefile: NRD_COMMIT */

#include <pthread.h>
#include <stdio.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

const char *nrd_version(void)
{
    return NRD_VERSION " (" NRD_COMMIT ")";
}

static char features[256];

static void find_features(void)
{
    nrd_str s = {0};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) {
        nrd_str_puts(&s, "avx2 ");
    }
    if (__builtin_cpu_supports("avx512f")) {
        nrd_str_puts(&s, "avx512 ");
    }
    if (__builtin_cpu_supports("avx512vnni")) {
        nrd_str_puts(&s, "vnni ");
    }
    unsigned a, b, c, d; /* AMX-TILE: a name that not every compiler's __builtin_cpu_supports knows */
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1u)) {
        nrd_str_puts(&s, "amx ");
    }
#endif
#ifdef NRD_HAVE_PCRE2
    nrd_str_puts(&s, "pcre2 ");
#endif
#ifdef NRD_HAVE_UTF8PROC
    nrd_str_puts(&s, "utf8proc ");
#endif
#ifdef NRD_HAVE_YAML
    nrd_str_puts(&s, "libyaml ");
#endif
    if (s.len > 0) {
        snprintf(features, sizeof features, "%.*s", (int)s.len - 1, s.data);
    }
    nrd_str_fini(&s);
}

const char *nrd_features(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_features);
    return features;
}
