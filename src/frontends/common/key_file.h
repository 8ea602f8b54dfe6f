/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/key_file.h - the file of --api-key-file.
 *
 * Purpose   A key a line; behind it, apart by blanks, what this key may ask for: rate-limit=N, token-limit=N,
 *           max-concurrent=N, as the options --key-rate-limit and so on say it for all keys. A line that begins with #
 *           is a remark.
 * Owner     No state; any thread.
 * Errors    The file cannot be read, is larger than 1 MiB or holds no key; a line says something else: named by its
 *           number, as its text is a secret.
 */
#ifndef NRD_FRONTENDS_COMMON_KEY_FILE_H
#define NRD_FRONTENDS_COMMON_KEY_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum nrd_key_limit {
    NRD_KEY_RATE,   /* requests a minute */
    NRD_KEY_TOKENS, /* tokens a minute */
    NRD_KEY_AT_ONCE,
    NRD_KEY_N_LIMITS,
} nrd_key_limit;

typedef struct nrd_key_line {
    const char *key; /* n bytes, in the file's text */
    size_t n;
    int64_t limits[NRD_KEY_N_LIMITS]; /* 0: any number; -1: not said */
} nrd_key_line;

typedef struct nrd_key_file {
    char *text;
    nrd_key_line *lines;
    size_t n_lines;
} nrd_key_file;

nrd_error *nrd_key_file_read(nrd_key_file *out, const char *path) NRD_MUST_USE;
void nrd_key_file_fini(nrd_key_file *f); /* all zero is fine */

#endif
