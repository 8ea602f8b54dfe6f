/* SPDX-License-Identifier: Apache-2.0
 * Lists of token ids. */
#include "text/internal.h"

#include <stdlib.h>
#include <string.h>

static bool reserve(nrd_ids *v, size_t more)
{
    size_t need, bytes, cap = v->cap ? v->cap : 64;
    if (v->no_memory || (v->cap - v->n >= more)) {
        return !v->no_memory;
    }
    v->no_memory = true;
    if (!nrd_size_add(v->n, more, &need)) {
        return false;
    }
    while (cap < need) {
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    }
    int32_t *ids = nrd_size_mul(cap, sizeof *ids, &bytes) ? realloc(v->ids, bytes) : NULL;
    if (!ids) {
        return false;
    }
    v->ids = ids;
    v->cap = cap;
    v->no_memory = false;
    return true;
}

void nrd_ids_push(nrd_ids *v, int32_t id)
{
    if (reserve(v, 1)) {
        v->ids[v->n++] = id;
    }
}

void nrd_ids_append(nrd_ids *v, const int32_t *ids, size_t n)
{
    if (n == 0 || !reserve(v, n)) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        v->ids[v->n + i] = ids[i];
    }
    v->n += n;
}

nrd_error *nrd_ids_error(const nrd_ids *v)
{
    return v->no_memory ? nrd_error_no_memory() : NULL;
}

void nrd_ids_fini(nrd_ids *v)
{
    free(v->ids);
    memset(v, 0, sizeof *v);
}
