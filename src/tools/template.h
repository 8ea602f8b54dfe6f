/* SPDX-License-Identifier: Apache-2.0
 * tools/template.h - "${name}" in the templates of the five models.
 *
 * Purpose   The substitution rules of fill_template.py: unknown names stay literally; in a list
 *           "name:value,name:value" a comma inside a value needs one backslash, a colon two.
 * Owner     One thread.
 * Errors    INVALID_ARG naming the piece that does not split into a name and a value.
 */
#ifndef NRD_TOOLS_TEMPLATE_H
#define NRD_TOOLS_TEMPLATE_H

#include "base/error.h"
#include "base/str.h"

#include <stddef.h>

typedef struct nrd_template_values {
    char **names, **values; /* owned */
    size_t n, cap;
} nrd_template_values;

void nrd_template_set(nrd_template_values *v, const char *name, const char *value); /* replaces */
const char *nrd_template_get(const nrd_template_values *v, const char *name);       /* NULL: unset */
nrd_error *nrd_template_set_list(nrd_template_values *v, const char *list) NRD_MUST_USE;
void nrd_template_fill(const nrd_template_values *v, const char *text, size_t n, nrd_str *out);
void nrd_template_fini(nrd_template_values *v);

#endif
