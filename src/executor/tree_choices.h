/* SPDX-License-Identifier: Apache-2.0
 * executor/tree_choices.h - trees of drafts as text, as medusa_choices and eagle_choices have them.
 *
 * Errors    INVALID_ARG names the field: text that is no list, more ranks or choices than there may be, no tree.
 */
#ifndef NRD_EXECUTOR_TREE_CHOICES_H
#define NRD_EXECUTOR_TREE_CHOICES_H

#include "base/error.h"
#include "engine/speculate/medusa.h"

/* Lists of ranks in brackets or braces, in one more pair or none: "{0}, {1}, {0, 0}", "[[0], [1], [0, 0]]". For heads of a
 * model with n_heads.
 * field: what gave them, for errors. */
nrd_error *nrd_exec_tree_choices(nrd_medusa_choices *out, const char *field, const char *text, int32_t n_heads) NRD_MUST_USE;

#endif
