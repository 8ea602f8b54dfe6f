/* SPDX-License-Identifier: Apache-2.0
 * base/order.h - looking things up in a table by an array of indices that has them in order. */
#ifndef NRD_BASE_ORDER_H
#define NRD_BASE_ORDER_H

#include <stddef.h>
#include <stdint.h>

/* The index for which compare(key, index) is 0; it is below 0 where `key` comes before. -1: none. */
static inline int64_t nrd_order_find(const uint32_t *order, size_t n, int (*compare)(const void *key, uint32_t index), const void *key)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = compare(key, order[mid]);
        if (!c) {
            return order[mid];
        }
        if (c < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return -1;
}

#endif
