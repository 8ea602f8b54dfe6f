/* SPDX-License-Identifier: Apache-2.0
 * base/str.h - a growing byte buffer that is always NUL-terminated.
 *
 * Purpose   Building text and byte strings without counting by hand.
 * Owner     One thread at a time. `nrd_str s = {0};` is an empty buffer; nrd_str_fini frees it.
 * Errors    Without memory to grow, the buffer keeps what it has and takes nothing more until
 *           nrd_str_clear or nrd_str_fini. Appends say nothing; who uses the text asks
 *           nrd_str_error first: without it, a text that ends early looks whole.
 */
#ifndef NRD_BASE_STR_H
#define NRD_BASE_STR_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_str {
    char *data; /* NUL-terminated once anything was appended, else NULL */
    size_t len, cap;
    bool no_memory; /* something is missing: nrd_str_error */
} nrd_str;

void nrd_str_fini(nrd_str *s);
void nrd_str_clear(nrd_str *s); /* keeps the memory */
nrd_error *nrd_str_error(const nrd_str *s) NRD_MUST_USE; /* NO_MEMORY; NULL: all of it is there */
bool nrd_str_reserve(nrd_str *s, size_t more_bytes);     /* false: not so many can be written */
void nrd_str_spoil(nrd_str *s); /* what belongs into it could not be made: as if memory had ended here */
void nrd_str_append(nrd_str *s, const void *data, size_t n);
void nrd_str_put(nrd_str *s, const nrd_str *part); /* where part lacks something, s does */
void nrd_str_puts(nrd_str *s, const char *text);
void nrd_str_putc(nrd_str *s, char c);
void nrd_str_printf(nrd_str *s, const char *fmt, ...) NRD_PRINTF(2, 3);
void nrd_str_put_i64(nrd_str *s, int64_t v); /* decimal */
void nrd_str_put_host(nrd_str *s, const char *host); /* as URLs have it: an IPv6 address in brackets */
const char *nrd_str_cstr(const nrd_str *s); /* "" when empty; borrows until the next change */
/* Caller owns the text (free); s becomes empty. NULL: no memory, now or at an append. */
char *nrd_str_steal(nrd_str *s);
/* For programs with nothing to save: every buffer that cannot grow ends the program with a message. */
void nrd_str_end_on_no_memory(void);

bool nrd_str_has_prefix(const char *s, const char *prefix);
bool nrd_str_has_suffix(const char *s, const char *suffix);

/* Whole-string conversions: false on garbage, overflow, empty text or trailing characters. */
bool nrd_parse_i64(const char *text, long long *out);
bool nrd_parse_u64(const char *text, unsigned long long *out);
bool nrd_parse_f64(const char *text, double *out);

#endif
