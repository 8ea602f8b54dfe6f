/* SPDX-License-Identifier: Apache-2.0 */
#include "text/prompt_limit.h"

#include "base/limits.h"

#include <pthread.h>

enum { MAX_ENGINES = 256 }; /* with more of them at once there is no limit */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int32_t engines[MAX_ENGINES]; /* guarded by mu, as what follows */
static int n_engines, n_unlisted;

void nrd_prompt_limit_add(int32_t max_tokens)
{
    pthread_mutex_lock(&mu);
    if (n_engines < MAX_ENGINES) {
        engines[n_engines++] = max_tokens;
    } else {
        n_unlisted++;
    }
    pthread_mutex_unlock(&mu);
}

void nrd_prompt_limit_remove(int32_t max_tokens)
{
    int i = 0;

    pthread_mutex_lock(&mu);
    while (i < n_engines && engines[i] != max_tokens) {
        i++;
    }
    if (i < n_engines) {
        engines[i] = engines[--n_engines];
    } else {
        n_unlisted--;
    }
    pthread_mutex_unlock(&mu);
}

/* 0: not known. */
static int32_t most_tokens(void)
{
    int32_t most = 0;

    pthread_mutex_lock(&mu);
    for (int i = 0; i < n_engines; i++) {
        most = engines[i] > most ? engines[i] : most;
    }
    most = n_unlisted > 0 ? 0 : most;
    pthread_mutex_unlock(&mu);
    return most;
}

static size_t longest_token(const nrd_tokenizer *t)
{
    size_t longest = 1;

    for (int32_t id = 0; id < nrd_tokenizer_vocab_size(t); id++) {
        size_t n = 0;
        (void)nrd_tokenizer_token_bytes(t, id, &n);
        longest = n > longest ? n : longest;
        n = 0;
        (void)nrd_tokenizer_token(t, id, &n); /* special tokens stand for their surface */
        longest = n > longest ? n : longest;
    }
    return longest;
}

nrd_error *nrd_prompt_limit_check(const nrd_tokenizer *t, size_t n)
{
    const size_t tokens = n > NRD_LIMIT_PROMPT_TEXT ? (size_t)most_tokens() : 0;

    if (tokens == 0) {
        return NULL;
    }
    const size_t longest = longest_token(t);
    size_t most = tokens * longest; /* both below 2^31 */
    most = most > NRD_LIMIT_PROMPT_TEXT ? most : NRD_LIMIT_PROMPT_TEXT;
    return n <= most ? NULL
                     : nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "Prompt length (%zu bytes) exceeds maximum input length (%zu tokens of up to %zu "
                                  "bytes): at most %zu bytes",
                                  n, tokens, longest, most);
}
