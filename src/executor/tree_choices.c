/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/tree_choices.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct parsed {
    int32_t ranks[NRD_MAX_TREE * NRD_MEDUSA_MAX_HEADS], ends[NRD_MAX_TREE];
    int32_t n_ranks, n;
} parsed;

static nrd_error *not_a_list(const char *field, const char *text, const char *at)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected lists of numbers like {0}, {1}, {0, 0}; character %d begins "
                                           "'%.20s'", field, (int)(at - text) + 1, at);
}

static const char *skip(const char *p, const char *of)
{
    return p + strspn(p, of);
}

/* "0, 1}" or "0, 1]"; *p is behind it then. */
static nrd_error *read_list(const char *field, const char *text, const char **p, char close, parsed *out)
{
    for (*p = skip(*p, " "); **p != close; *p = skip(*p, " ")) {
        int32_t v = 0, n = 0;
        for (; **p >= '0' && **p <= '9' && n < 4; ++*p, n++) {
            v = v * 10 + (**p - '0');
        }
        *p = skip(*p, " ");
        if (n == 0 || (**p != ',' && **p != close)) {
            return not_a_list(field, text, *p);
        }
        if (out->n_ranks == NRD_MAX_TREE * NRD_MEDUSA_MAX_HEADS) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has more than %d ranks", field, out->n_ranks);
        }
        out->ranks[out->n_ranks++] = v;
        *p += **p == ',';
    }
    ++*p;
    return NULL;
}

static nrd_error *read_lists(const char *field, const char *text, parsed *out)
{
    const char *p = skip(text, " ");
    const char open = *p, close = open == '{' ? '}' : ']';
    if (open != '{' && open != '[') {
        return not_a_list(field, text, p);
    }
    const bool is_nested = *skip(p + 1, " ") == open;

    p += is_nested;
    for (p = skip(p, " ,"); *p == open && *p; p = skip(p, " ,")) {
        if (out->n == NRD_MAX_TREE) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has more than %d choices", field, NRD_MAX_TREE);
        }
        p++;
        NRD_TRY(read_list(field, text, &p, close, out));
        out->ends[out->n++] = out->n_ranks;
    }
    p += is_nested && *p == close;
    p = skip(p, " ");
    return *p || out->n == 0 ? not_a_list(field, text, p) : NULL;
}

nrd_error *nrd_exec_tree_choices(nrd_medusa_choices *out, const char *field, const char *text, int32_t n_heads)
{
    nrd_error *err = NULL;
    parsed *all = NULL;

    NRD_NEW_GOTO(all, 1, err, done);
    NRD_TRY_GOTO(read_lists(field, text, all), err, done);
    err = nrd_medusa_choices_of(out, field, all->ranks, all->ends, all->n, n_heads);
done:
    free(all);
    return err;
}
