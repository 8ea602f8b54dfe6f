/* SPDX-License-Identifier: Apache-2.0
 * Input: a length of a tokenizer.model (two bytes, little endian), the model, a text. Loading ends with a tokenizer
 * (tokenizer_check.h) or an error. */
#include "text/internal.h"
#include "tokenizer_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    size_t model_n = (size_t)(data[0] | data[1] << 8);
    model_n = model_n < size - 2 ? model_n : size - 2;
    nrd_tokenizer *t = nrd_tok_new();
    nrd_error *err = nrd_tok_load_spm_bytes(t, data + 2, model_n);

    fuzz_check_tokenizer(t, err, (const char *)data + 2 + model_n, size - 2 - model_n);
    return 0;
}
