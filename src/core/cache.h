/* SPDX-License-Identifier: Apache-2.0
 * core/cache.h - the response cache.
 *
 * Settings of every cache outside the process, beside those of its library: `secret_file` or `secret`
 * (else the environment variable NEREID_CACHE_SECRET), at least 16 characters: servers with the same one
 * share what is kept; `salt`: a text that parts those who share. */
#ifndef NRD_CORE_CACHE_H
#define NRD_CORE_CACHE_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>

nrd_error *nrd_cache_open(nrd_cache **out, const char *name, const char *cache_dir,
                          const char *config) NRD_MUST_USE;
void nrd_cache_close(nrd_cache *c); /* NULL is fine */
/* Fills config_hash of a model whose responses are kept; its configuration does not change any more. */
nrd_error *nrd_cache_hash_config(nrd_model *m) NRD_MUST_USE;
/* Answers and releases a prepared request whose response is kept; false: it has to run, and its
 * response will be kept. */
bool nrd_cache_answer(nrd_request *r);

#endif
