/* SPDX-License-Identifier: Apache-2.0
 * Lets call after call of the allocator fail in a unit test. The Makefile links the test so that the calls of our own
 * code come here (--wrap); what other libraries take for themselves is theirs. One program includes it once, and one
 * thread at a time allocates. */
#ifndef TESTS_UNIT_NO_MEMORY_H
#define TESTS_UNIT_NO_MEMORY_H

#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long calls_left = -1; /* before the one that fails; -1: none does */
static bool has_failed;

static bool fails_now(void)
{
    if (calls_left < 0) {
        return false;
    }
    has_failed = has_failed || calls_left == 0;
    return calls_left-- == 0;
}

#define WRAP(type, none, name, parameters, arguments)                                              \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return fails_now() ? none : __real_##name arguments;                                       \
    }

WRAP(void *, NULL, malloc, (size_t n), (n))
WRAP(void *, NULL, calloc, (size_t n, size_t size), (n, size))
WRAP(void *, NULL, realloc, (void *p, size_t n), (p, n))
WRAP(char *, NULL, strdup, (const char *s), (s))
WRAP(char *, NULL, strndup, (const char *s, size_t n), (s, n))
WRAP(int, -1, vasprintf, (char **out, const char *fmt, va_list args), (out, fmt, args))
WRAP(int, -1, __vasprintf_chk, (char **out, int flag, const char *fmt, va_list args), (out, flag, fmt, args))

int __wrap_asprintf(char **out, const char *fmt, ...);
int __wrap_asprintf(char **out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = __wrap_vasprintf(out, fmt, args);
    va_end(args);
    return n;
}

int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...);
int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = __wrap___vasprintf_chk(out, flag, fmt, args);
    va_end(args);
    return n;
}

/* Runs `once` with the first, second, … allocation failing until none is left to fail: it says so or succeeds. Returns
 * how many runs had a failure. What it leaves behind is the leak sanitizer's affair. */
static long each_allocation_fails(nrd_error *(*once)(void *user), void *user)
{
    for (long n = 0;; n++) {
        has_failed = false;
        calls_left = n;
        nrd_error *err = once(user);
        calls_left = -1;
        if (err && (!has_failed || nrd_error_get_code(err) != NRD_ERR_NO_MEMORY)) {
            fail_msg("allocation %ld: %s", n, nrd_error_message(err));
        }
        nrd_error_free(err);
        if (!has_failed) {
            return n;
        }
    }
}

#endif
