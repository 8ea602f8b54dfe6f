/* tools/repo.h - writing the five-model repository. Owner: one thread. Errors: the path concerned. */
#ifndef NRD_TOOLS_REPO_H
#define NRD_TOOLS_REPO_H

#include "base/error.h"

#include <stddef.h>

/* `templates` NULL: the built-in ones. `lists`: "name:value,…" over the defaults, in order. */
nrd_error *nrd_repo_write(const char *repo, const char *engine_dir, const char *tokenizer_dir,
                          const char *templates, const char *const *lists, size_t n_lists)
    NRD_MUST_USE;

#endif
