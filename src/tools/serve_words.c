/* SPDX-License-Identifier: Apache-2.0
 * Words of a command line. */
#include "tools/serve_internal.h"

#include <stdlib.h>

nrd_error *nrd_serve_add_word(nrd_serve_words *w, char *word)
{
    if (w->n == NRD_SERVE_MAX_WORDS) {
        free(word);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "at most %d options", NRD_SERVE_MAX_WORDS);
    }
    w->v[w->n++] = word;
    w->v[w->n] = NULL;
    return NULL;
}

void nrd_serve_words_fini(nrd_serve_words *w)
{
    for (int i = 0; i < w->n; i++) {
        free(w->v[i]);
    }
}
