/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/json_swap.h - a mutation for targets that read JSON: a value becomes one of another type, or a copy of another
 * value of the input. Byte by byte a list hardly ever becomes a text that is still JSON around it, and readers that forget to
 * ask for the type are found by just that. Include it in one target; half of the mutations are libFuzzer's own. */
#ifndef NRD_TESTS_FUZZ_JSON_SWAP_H
#define NRD_TESTS_FUZZ_JSON_SWAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

enum { SWAP_MAX_VALUES = 512, SWAP_MAX_COPY = 4096 };

typedef struct swap_value {
    size_t at, n;
} swap_value;

static inline size_t swap_text_end(const uint8_t *s, size_t n, size_t i)
{
    for (i++; i < n && s[i] != '"'; i++) {
        i += s[i] == '\\';
    }
    return i < n ? i + 1 : n;
}

/* Where the value that begins at i ends: behind its brackets, its quotes, or its last letter. */
static inline size_t swap_value_end(const uint8_t *s, size_t n, size_t i)
{
    size_t depth = 0;
    while (i < n) {
        if (s[i] == '"') {
            i = swap_text_end(s, n, i);
        } else if (s[i] == '[' || s[i] == '{') {
            depth++;
            i++;
        } else if (s[i] == ']' || s[i] == '}' || s[i] == ',') {
            if (depth == 0) {
                return i;
            }
            depth -= s[i] != ',';
            i++;
        } else {
            i++;
            continue;
        }
        if (depth == 0) {
            return i;
        }
    }
    return n;
}

/* The values: what stands behind a colon, or in a list. Names of members are found as well where they follow a comma, and
 * then the input is no JSON any more, which is right sometimes. */
static inline size_t swap_values(const uint8_t *s, size_t n, swap_value *out)
{
    size_t found = 0;
    for (size_t i = 0; i < n && found < SWAP_MAX_VALUES;) {
        if (s[i] == '"') {
            i = swap_text_end(s, n, i);
            continue;
        }
        const bool begins = s[i] == ':' || s[i] == '[' || s[i] == ',';
        for (i++; begins && i < n && (s[i] == ' ' || s[i] == '\n'); i++) {
        }
        if (begins && i < n && s[i] != ']' && s[i] != '}') {
            out[found++] = (swap_value){i, swap_value_end(s, n, i) - i};
        }
    }
    return found;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    static const char *const others[] = {
        "null", "true", "5", "-1.5", "18446744073709551616", "\"\"", "[]", "{}", "[{}]", "[\"a\",1]", "{\"a\":\"b\"}",
        "\"\\u0005\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""};
    enum { N_OTHERS = sizeof others / sizeof others[0] };
    static swap_value values[SWAP_MAX_VALUES];
    uint8_t copy[SWAP_MAX_COPY];
    const size_t n = seed % 2 == 0 ? swap_values(data, size, values) : 0;

    if (n == 0) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    seed = (seed / 2) * 2654435761u;
    const swap_value old = values[(seed >> 8) % n], from = values[(seed >> 16) % n];
    const uint8_t *with = data + from.at;
    size_t more = from.n;
    if (seed % 4 != 0 || more > sizeof copy) {
        with = (const uint8_t *)others[(seed >> 4) % N_OTHERS];
        more = strlen((const char *)with);
    }
    if (size - old.n + more > max_size) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    memcpy(copy, with, more);
    memmove(data + old.at + more, data + old.at + old.n, size - old.at - old.n);
    memcpy(data + old.at, copy, more);
    return size - old.n + more;
}

#endif
