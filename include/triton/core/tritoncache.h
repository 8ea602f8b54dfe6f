/* SPDX-License-Identifier: Apache-2.0
 * triton/core/tritoncache.h - how the core and a response cache library talk.
 *
 * Purpose   A cache is a shared library libtritoncache_<name>.so that keeps the buffers of
 * responses under a key. Binary compatible with the published interface, API version 0.1. Owner The
 * core owns entries and allocators; they are borrowed for the length of one call. A cache may be
 * called by several threads at once. Errors    NULL or an error object. A lookup that finds nothing
 * says NOT_FOUND; an insert under a key that exists says ALREADY_EXISTS.
 */
#ifndef TRITON_CORE_TRITONCACHE_H
#define TRITON_CORE_TRITONCACHE_H

#include <stddef.h>
#include <stdint.h>

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Visible whatever the compiler's default is; each library's version script has the last word. */
#define TRITONCACHE_DECLSPEC __attribute__((__visibility__("default")))
#define TRITONCACHE_ISPEC __attribute__((__visibility__("default")))

/* Opaque objects. */
typedef struct TRITONCACHE_Cache TRITONCACHE_Cache;
typedef struct TRITONCACHE_CacheEntry TRITONCACHE_CacheEntry;
typedef struct TRITONCACHE_Allocator TRITONCACHE_Allocator;

/* Same major and a core minor that is not smaller: compatible. */
#define TRITONCACHE_API_VERSION_MAJOR 0
#define TRITONCACHE_API_VERSION_MINOR 1

/* Gives the version of this interface that the core offers. Any thread. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *TRITONCACHE_ApiVersion(uint32_t *major, uint32_t *minor);

/* ---- an entry is a list of buffers ---- */

/* Gives the number of buffers of an entry. INVALID_ARG for NULL. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntryBufferCount(TRITONCACHE_CacheEntry *entry, size_t *count);

/* Adds a buffer, which stays the cache's and must live until Copy returns; the attributes are
 * copied. INVALID_ARG for no bytes or for memory that is not the CPU's. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntryAddBuffer(TRITONCACHE_CacheEntry *entry, void *base,
                                TRITONSERVER_BufferAttributes *buffer_attributes);

/* Gives a buffer, borrowed, and writes its attributes into an object of the caller. INVALID_ARG
 * for an index out of range. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntryGetBuffer(TRITONCACHE_CacheEntry *entry, size_t index, void **base,
                                TRITONSERVER_BufferAttributes *buffer_attributes);

/* Puts another buffer in the place of one; the attributes are copied, or stay as they are for
 * NULL. INVALID_ARG for an index out of range. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntrySetBuffer(TRITONCACHE_CacheEntry *entry, size_t index, void *new_base,
                                TRITONSERVER_BufferAttributes *buffer_attributes);

/* Lets the core copy between its own memory and the buffers of the entry. During CacheInsert and
 * CacheLookup only, by the calling thread. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *TRITONCACHE_Copy(TRITONCACHE_Allocator *allocator,
                                                          TRITONCACHE_CacheEntry *entry);

/* ---- written by the cache ---- config: the JSON text of the --cache-config options. */

/* Makes the cache, which the core returns with CacheFinalize. `config` is borrowed for the call.
 * On error the server does not start. */
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheInitialize(TRITONCACHE_Cache **cache,
                                                                  const char *config);

/* Frees the cache. The server makes no further call with it. */
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheFinalize(TRITONCACHE_Cache *cache);

/* Keeps an entry under a key. Gets the sizes from the entry, sets its own buffers in it, then
 * calls Copy. Key, entry and allocator are borrowed for the call. */
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheInsert(TRITONCACHE_Cache *cache,
                                                              const char *key,
                                                              TRITONCACHE_CacheEntry *entry,
                                                              TRITONCACHE_Allocator *allocator);

/* Finds an entry. Adds its buffers to the entry, then calls Copy. Key, entry and allocator are
 * borrowed for the call. */
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheLookup(TRITONCACHE_Cache *cache,
                                                              const char *key,
                                                              TRITONCACHE_CacheEntry *entry,
                                                              TRITONCACHE_Allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
