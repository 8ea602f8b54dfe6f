/* SPDX-License-Identifier: Apache-2.0
 * Helpers of the format tests: append to a growing file in memory, and damage it in every place. */
#ifndef NRD_TESTS_UNIT_FORMATS_DAMAGE_H
#define NRD_TESTS_UNIT_FORMATS_DAMAGE_H

#include "base/error.h"
#include "base/str.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Opens, walks and closes; true when the input was taken. The walk reads every byte that the object
 * gives away, so that a span that leaves the input is found by the sanitizers. */
typedef bool (*open_fn)(const void *data, size_t n);

static inline void put_u8(nrd_str *s, uint8_t v)
{
    nrd_str_append(s, &v, sizeof v);
}

static inline void put_u16(nrd_str *s, uint16_t v)
{
    nrd_str_append(s, &v, sizeof v);
}

static inline void put_u32(nrd_str *s, uint32_t v)
{
    nrd_str_append(s, &v, sizeof v);
}

static inline void put_u64(nrd_str *s, uint64_t v)
{
    nrd_str_append(s, &v, sizeof v);
}

static inline unsigned touch(const void *data, size_t n)
{
    const volatile unsigned char *p = data;
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += p[i];
    }
    return sum;
}

/* Every prefix, each in an allocation of exactly its size. Gives how many were taken. */
static inline size_t try_truncations(const nrd_str *file, open_fn open_it)
{
    size_t taken = 0;
    for (size_t n = 0; n < file->len; n++) {
        char *copy = malloc(n ? n : 1);
        if (!copy) {
            return SIZE_MAX;
        }
        if (n) {
            memcpy(copy, file->data, n);
        }
        taken += open_it(copy, n);
        free(copy);
    }
    return taken;
}

/* Every single bit of the first `n` bytes flipped. Gives how many were refused. */
static inline size_t try_bit_flips(const nrd_str *file, size_t n, open_fn open_it)
{
    size_t refused = 0;
    char *copy = malloc(file->len);
    if (!copy) {
        return 0;
    }
    memcpy(copy, file->data, file->len);
    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            copy[i] = (char)(file->data[i] ^ (1 << bit));
            refused += !open_it(copy, file->len);
        }
        copy[i] = file->data[i];
    }
    free(copy);
    return refused;
}

/* True when err is an error whose message holds `part`; frees it. */
static inline bool is_error(nrd_error *err, const char *part)
{
    bool yes = err && strstr(nrd_error_message(err), part);
    nrd_error_free(err);
    return yes;
}

#endif
