/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/cache_memory.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL_HEAD = 64 << 10 };

void *nrd_cpu_map_cache(size_t total)
{
    uint8_t *p = mmap(NULL, total + NRD_CPU_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        return p;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = NRD_CPU_HUGE_PAGE - ((uintptr_t)p + SMALL_HEAD) % NRD_CPU_HUGE_PAGE;
    munmap(p, before);
    if (before < NRD_CPU_HUGE_PAGE) {
        munmap(p + before + (total + page - 1) / page * page, NRD_CPU_HUGE_PAGE - before);
    }
    return p + before;
}
