/* SPDX-License-Identifier: Apache-2.0 */
#include "core/strings.h"

#include <stdlib.h>
#include <string.h>

nrd_error *nrd_strings_push(nrd_strings *l, const char *s)
{
    char *copy = strdup(s);
    char **grown = copy ? realloc(l->items, (l->n + 1) * sizeof *grown) : NULL;

    if (!grown) {
        free(copy);
        return nrd_error_no_memory();
    }
    l->items = grown;
    l->items[l->n++] = copy;
    return NULL;
}

void nrd_strings_add(nrd_strings *l, const char *s)
{
    nrd_error *err = l->no_memory ? NULL : nrd_strings_push(l, s);
    l->no_memory = l->no_memory || err;
    nrd_error_free(err);
}

nrd_error *nrd_strings_error(const nrd_strings *l)
{
    return l->no_memory ? nrd_error_no_memory() : NULL;
}

void nrd_strings_fini(nrd_strings *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->items[i]);
    }
    free(l->items);
    *l = (nrd_strings){0};
}
