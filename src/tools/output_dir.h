/* SPDX-License-Identifier: Apache-2.0
 * tools/output_dir.h - whether a verb that makes a model of another may write into the folder that it was given.
 *
 * Purpose   The folder's config.json says what it holds. What the verb made before is written over, as those who try things
 *           want it; a model of another kind, somebody's original it may be, is not. (nereid quantize knows its folders by its report.)
 * Owner     One thread.
 * Errors    INVALID_ARG says what would be overwritten.
 */
#ifndef NRD_TOOLS_OUTPUT_DIR_H
#define NRD_TOOLS_OUTPUT_DIR_H

#include "base/error.h"

typedef enum nrd_output_kind {
    NRD_OUTPUT_CHECKPOINT,
    NRD_OUTPUT_ENGINE,
    NRD_OUTPUT_HF,
    NRD_OUTPUT_OTHER,
} nrd_output_kind;

/* What is read (`from`, a folder or a config.json) is named by --`option` and must not lie where the output goes. */
nrd_error *nrd_output_check_source(const char *option, const char *from, const char *output_dir) NRD_MUST_USE;
/* The folder is new, empty or holds what `makes` says. Of another architecture: a warning of `verb` on stderr. */
nrd_error *nrd_output_check(const char *verb, nrd_output_kind makes, const char *architecture, const char *output_dir) NRD_MUST_USE;

#endif
