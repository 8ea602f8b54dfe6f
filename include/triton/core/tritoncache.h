/* triton/core/tritoncache.h - how the core and a response cache library talk.
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
TRITONCACHE_DECLSPEC TRITONSERVER_Error *TRITONCACHE_ApiVersion(uint32_t *major, uint32_t *minor);

/* ---- an entry is a list of buffers ---- */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntryBufferCount(TRITONCACHE_CacheEntry *entry, size_t *count);
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntryAddBuffer(TRITONCACHE_CacheEntry *entry, void *base,
                                TRITONSERVER_BufferAttributes *buffer_attributes);
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntryGetBuffer(TRITONCACHE_CacheEntry *entry, size_t index, void **base,
                                TRITONSERVER_BufferAttributes *buffer_attributes);
TRITONCACHE_DECLSPEC TRITONSERVER_Error *
TRITONCACHE_CacheEntrySetBuffer(TRITONCACHE_CacheEntry *entry, size_t index, void *new_base,
                                TRITONSERVER_BufferAttributes *buffer_attributes);

/* Lets the core copy between its own memory and the buffers of the entry. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error *TRITONCACHE_Copy(TRITONCACHE_Allocator *allocator,
                                                          TRITONCACHE_CacheEntry *entry);

/* ---- written by the cache ---- config: the JSON text of the --cache-config options. */
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheInitialize(TRITONCACHE_Cache **cache,
                                                                  const char *config);
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheFinalize(TRITONCACHE_Cache *cache);

/* Gets the sizes from the entry, sets its own buffers in it, then calls Copy. */
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheInsert(TRITONCACHE_Cache *cache,
                                                              const char *key,
                                                              TRITONCACHE_CacheEntry *entry,
                                                              TRITONCACHE_Allocator *allocator);

/* Adds its buffers to the entry, then calls Copy. */
TRITONCACHE_ISPEC TRITONSERVER_Error *TRITONCACHE_CacheLookup(TRITONCACHE_Cache *cache,
                                                              const char *key,
                                                              TRITONCACHE_CacheEntry *entry,
                                                              TRITONCACHE_Allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
