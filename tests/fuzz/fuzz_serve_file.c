/* SPDX-License-Identifier: Apache-2.0
 * The files of nereid serve --config and --extra_llm_api_options. Every word that is read is an option, and holds no end of a line. */
#include "tools/serve_file.c"
#include "tools/llm_api.c"
#include "tools/llm_api_drafts.c"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

nrd_error *nrd_serve_add_word(nrd_serve_words *w, char *word)
{
    if (w->n == NRD_SERVE_MAX_WORDS) {
        free(word);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "too many");
    }
    w->v[w->n++] = word;
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static nrd_serve_words w;
    char *text = nrd_xstrndup((const char *)data, size), *copy = nrd_xstrdup(text);

    nrd_error_free(nrd_serve_read_text(&w, text));
    nrd_error_free(nrd_llm_api_read(&w, &(nrd_llm_api_reader){.program = "fuzz", .is_bench = size % 2 == 1}, copy));
    for (int i = 0; i < w.n; i++) {
        if (strncmp(w.v[i], "--", 2) != 0 || strlen(w.v[i]) < 3 || strchr(w.v[i], '\n')) {
            abort();
        }
        free(w.v[i]);
    }
    w.n = 0;
    free(text);
    free(copy);
    return 0;
}
