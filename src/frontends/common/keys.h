/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/keys.h - the API keys of the server, and the comparison of secrets.
 *
 * Purpose   --api-key, --api-key-file and NEREID_API_KEY, asked for in the same way by every protocol:
 *           a field "Authorization: Bearer KEY" (metadata "authorization" of gRPC), by HTTP also
 *           "x-api-key: KEY", which Anthropic's clients send.
 *           The file is read again when it has changed, at most once a second, by whoever asks then.
 * Owner     Any thread. A key's place stays the same while the process lives.
 * Errors    new: those of the key file (key_file.h); out of memory.
 */
#ifndef NRD_FRONTENDS_COMMON_KEYS_H
#define NRD_FRONTENDS_COMMON_KEYS_H

#include "base/error.h"
#include "frontends/common/key_file.h"
#include "frontends/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What whoever brings no key, or a wrong one, is told. */
#define NRD_KEYS_REFUSAL "Incorrect API key provided, or none."

typedef struct nrd_keys nrd_keys;

nrd_error *nrd_keys_new(nrd_keys **out, const nrd_options *o) NRD_MUST_USE;
void nrd_keys_free(nrd_keys *k); /* NULL is fine */
size_t nrd_keys_count(const nrd_keys *k);  /* with those that do not hold any more; 0: no key is asked for */
size_t nrd_keys_places(const nrd_keys *k); /* the most that count can become */
bool nrd_keys_holds(const nrd_keys *k, int i);
/* Whether any key can have a limit, and what key i < count may ask for, -1: who has no key. 0: any number. */
bool nrd_keys_have_limits(const nrd_keys *k);
int64_t nrd_keys_limit(const nrd_keys *k, int i, nrd_key_limit which);

/* field[0..n): the value "Bearer KEY"; NULL: there is none. Gives the key's place, below count, or -1. */
int nrd_keys_find(nrd_keys *k, const char *field, size_t n);
/* The same for key[0..n), the key alone. */
int nrd_keys_find_bare(nrd_keys *k, const char *key, size_t n);

/* A name of key i < count that others cannot guess, another in each process: 32 digits and the end. */
void nrd_keys_salt(const nrd_keys *k, int i, char out[33]);

/* A name of key i < count that is the same in every process with this secret, and that tells others nothing of the
 * key: 32 digits and the end. */
void nrd_keys_name(const nrd_keys *k, int i, const uint64_t secret[2], char out[33]);

/* Whether a key is asked for in this group of calls, as --http-restricted-api and
 * --grpc-restricted-protocol name it: inference, and whatever changes the server or tells of others'
 * memory. Not "openai", which asks by itself, as its errors have another form. NULL: no group. */
bool nrd_keys_guard(const char *group);

/* Whether both texts are the same. The time depends on their lengths only. */
bool nrd_same_secret(const void *a, size_t n_a, const void *b, size_t n_b);

#endif
