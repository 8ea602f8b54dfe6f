/* SPDX-License-Identifier: Apache-2.0
 * core/cache.h - the response cache. */
#ifndef NRD_CORE_CACHE_H
#define NRD_CORE_CACHE_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>

nrd_error *nrd_cache_open(nrd_cache **out, const char *name, const char *cache_dir,
                          const char *config) NRD_MUST_USE;
void nrd_cache_close(nrd_cache *c); /* NULL is fine */
/* Answers and releases a prepared request whose response is kept; false: it has to run, and its
 * response will be kept. */
bool nrd_cache_answer(nrd_request *r);

#endif
