/* SPDX-License-Identifier: Apache-2.0
 * tools/pbtree.h - config.pbtxt as a tree, also where a template's ${NAME} still stand in it.
 *
 * Purpose   Reads protobuf's text format without its message types. The server's reader (core/config)
 *           checks every field and needs protobuf-c; the tools are built without that library, and
 *           must read templates, which the server refuses.
 * Owner     One thread.
 * Errors    NOT_FOUND and what reading says; INVALID_ARG "FILE:LINE: <reason>".
 * Limits    NRD_PBTREE_MAX_BYTES, NRD_PBTREE_MAX_DEPTH.
 */
#ifndef NRD_TOOLS_PBTREE_H
#define NRD_TOOLS_PBTREE_H

#include "base/error.h"

#include <stddef.h>

enum { NRD_PBTREE_MAX_BYTES = 16 << 20, NRD_PBTREE_MAX_DEPTH = 64 };

/* One field; the elements of a list "x: [a, b]" are fields of the same name. */
typedef struct nrd_pbtree {
    char *name;
    char *value; /* strings without quotation marks and escapes, else as written; NULL: a message */
    int line;    /* of the name, from 1 */
    struct nrd_pbtree *fields; /* of a message */
    size_t n_fields;
} nrd_pbtree;

/* *out becomes the message that the whole file is; nrd_pbtree_fini it also after an error. */
nrd_error *nrd_pbtree_read(nrd_pbtree *out, const char *path) NRD_MUST_USE;
void nrd_pbtree_fini(nrd_pbtree *message); /* safe on a zeroed struct */

/* The field after `last` (NULL: the first) that has this name; NULL: none, or message is NULL. */
const nrd_pbtree *nrd_pbtree_next(const nrd_pbtree *message, const char *name,
                                  const nrd_pbtree *last);
/* Value of the first field with this name; NULL: there is none, or it is a message. */
const char *nrd_pbtree_value(const nrd_pbtree *message, const char *name);
size_t nrd_pbtree_count(const nrd_pbtree *message, const char *name);

#endif
