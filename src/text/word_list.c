/* SPDX-License-Identifier: Apache-2.0 */
#include "text/word_list.h"

nrd_error *nrd_word_list_encode(const nrd_tokenizer *t, const char *const *phrases,
                                const size_t *lengths, size_t n_phrases, nrd_ids *ids, nrd_ids *ends)
{
    for (size_t i = 0; i < n_phrases; i++) {
        size_t before = ids->n;
        NRD_TRY(nrd_tokenizer_encode(t, phrases[i], lengths[i], NRD_ENCODE_PARSE_SPECIAL, ids));
        if (ids->n > INT32_MAX) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "the word list has more than %d tokens", INT32_MAX);
        }
        if (ids->n > before) {
            nrd_ids_push(ends, (int32_t)ids->n);
        }
    }
    return nrd_ids_error(ends);
}

nrd_error *nrd_word_list_check(const char *list_name, const int32_t *tensor, size_t n_elements,
                               size_t *out_n_phrases)
{
    size_t row = n_elements / 2, n = 0;
    const int32_t *ends = row ? tensor + row : tensor;
    int32_t last = 0;

    *out_n_phrases = 0;
    if (n_elements % 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected shape [2, L], got %zu elements", list_name,
                          n_elements);
    }
    while (n < row && ends[n] != -1) {
        if (ends[n] <= last || (size_t)ends[n] > row) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "%s: offset %zu is %d, expected more than %d and at most %zu", list_name,
                              n, ends[n], last, row);
        }
        last = ends[n++];
    }
    for (size_t i = n; i < row; i++) {
        if (ends[i] != -1) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "%s: offset %zu is %d after the padding of -1 began", list_name, i,
                              ends[i]);
        }
    }
    *out_n_phrases = n;
    return NULL;
}
