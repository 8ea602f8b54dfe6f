/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/cache_memory.h - memory of a KV cache, which is used from its start on and may be used little. */
#ifndef NRD_DEVICE_CPU_CACHE_MEMORY_H
#define NRD_DEVICE_CPU_CACHE_MEMORY_H

#include <stddef.h>

enum { NRD_CPU_HUGE_PAGE = 2 << 20 };

/* As mmap: zeros, MAP_FAILED without memory; the caller's to unmap. Large pages, which the caller asks for, begin 64 KB behind the start.
 * Wherever else it begins, up to its first 2 MB, where the first blocks are, would lie in small ones; and with none, each layer of a model
 * that is hardly used would take 2 MB. */
void *nrd_cpu_map_cache(size_t total);

#endif
