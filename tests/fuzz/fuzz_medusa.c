/* SPDX-License-Identifier: Apache-2.0
 * Medusa heads. First byte: 0 medusa_lm_head.safetensors, 1 medusa_lm_head.pt, 2 rank0.safetensors, 3 model.safetensors; then config.json and
 * the weights (parts.h). What is taken fits the model, all numbers can be read, and what is written of it is taken again. */
#include "model/medusa_heads.h"
#include "weight.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HIDDEN = 16, VOCAB = 40 };

static void read_weight(const nrd_weight *w, int64_t rows, int64_t cols)
{
    if (w && (!w->data || w->rows != rows || w->cols != cols)) {
        abort();
    }
    if (w) {
        fuzz_read_weight(w);
    }
}

static void check(const nrd_medusa_heads *m)
{
    const int32_t n_rows = nrd_medusa_heads_rows(m);

    if (n_rows < 1 || n_rows > VOCAB) {
        abort();
    }
    for (int32_t row = -1; row <= n_rows; row++) {
        const int32_t token = nrd_medusa_heads_token(m, row);
        if (token < 0 || token >= VOCAB) {
            abort();
        }
    }
    for (int32_t h = 0; h < nrd_medusa_heads_n(m); h++) {
        for (int32_t l = 0; l < nrd_medusa_heads_n_layers(m); l++) {
            read_weight(nrd_medusa_heads_linear(m, h, l), HIDDEN, HIDDEN);
            read_weight(nrd_medusa_heads_bias(m, h, l), 1, HIDDEN);
        }
        read_weight(nrd_medusa_heads_lm_head(m, h), n_rows, HIDDEN);
    }
}

static void check_written(const nrd_medusa_heads *m)
{
    nrd_medusa_heads *again = NULL;

    fuzz_write("config.json", NULL);
    if (nrd_medusa_heads_write(m, fuzz_folder()) || !nrd_medusa_heads_are_in(fuzz_folder()) ||
        nrd_medusa_heads_open(&again, fuzz_folder(), HIDDEN, VOCAB)) {
        abort();
    }
    if (nrd_medusa_heads_n(again) != nrd_medusa_heads_n(m) || nrd_medusa_heads_n_layers(again) != nrd_medusa_heads_n_layers(m) ||
        nrd_medusa_heads_rows(again) != nrd_medusa_heads_rows(m)) {
        abort();
    }
    check(again);
    nrd_medusa_heads_close(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"medusa_lm_head.safetensors", "medusa_lm_head.pt", "rank0.safetensors", "model.safetensors"};
    fuzz_part part[2] = {{0}};
    nrd_medusa_heads *m = NULL;

    if (size < 1 || size > 1 << 18) {
        return 0;
    }
    const unsigned form = data[0] % 4;
    const size_t n = fuzz_split(data + 1, size - 1, part, 2);
    for (unsigned i = 0; i < 4; i++) {
        fuzz_write(names[i], i == form && n > 1 ? &part[1] : NULL);
    }
    fuzz_write("config.json", &part[0]);
    nrd_error *err = nrd_medusa_heads_open(&m, fuzz_folder(), HIDDEN, VOCAB);
    if (!err) {
        check(m);
        check_written(m);
    }
    nrd_error_free(err);
    nrd_medusa_heads_close(m);
    return 0;
}
