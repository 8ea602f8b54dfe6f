/* SPDX-License-Identifier: Apache-2.0
 * A recurrent drafter. First byte: 0 model.safetensors, 1 model.pt, 2 rank0.safetensors; then config.json and the weights (parts.h). What
 * is taken fits together, all numbers can be read, and what is written of it is taken again with the same sizes. */
#include "model/redrafter_heads.h"
#include "weight.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HIDDEN = 16, VOCAB = 40 };

static void read_weight(const nrd_weight *w, int64_t rows, int64_t cols)
{
    if (w->data && (w->rows != rows || w->cols != cols)) {
        abort();
    }
    fuzz_read_weight(w);
}

static void check(const nrd_redrafter_heads *h)
{
    const nrd_redrafter_sizes *n = nrd_redrafter_heads_sizes(h);
    const nrd_redrafter_weights *w = nrd_redrafter_heads_weights(h);

    if (!w->lm_head.data || !w->proj.data != (n->exit == 2 * HIDDEN) || !w->rnn_u.data == n->rnn || n->n_beams < 1 || n->length < 1 ||
        n->n_beams > NRD_REDRAFTER_MAX_BEAMS || n->length > NRD_REDRAFTER_MAX_LEN) {
        abort();
    }
    read_weight(&w->proj, n->exit, 2 * HIDDEN);
    read_weight(&w->proj_bias, 1, n->exit);
    read_weight(&w->rnn_u, HIDDEN, HIDDEN);
    read_weight(&w->rnn_u_bias, 1, HIDDEN);
    read_weight(&w->rnn_w, HIDDEN, HIDDEN);
    for (int32_t l = 0; l < n->n_layers; l++) {
        read_weight(&w->linear[l], n->exit, n->exit);
        read_weight(&w->bias[l], 1, n->exit);
    }
    read_weight(&w->lm_head, VOCAB, n->exit);
}

static void check_written(const nrd_redrafter_heads *h)
{
    nrd_redrafter_heads *again = NULL;
    const nrd_redrafter_sizes *a = nrd_redrafter_heads_sizes(h);

    if (nrd_redrafter_heads_write(h, fuzz_folder(), 0, 0) || !nrd_redrafter_heads_are_in(fuzz_folder()) ||
        nrd_redrafter_heads_open(&again, fuzz_folder(), HIDDEN, VOCAB)) {
        abort();
    }
    const nrd_redrafter_sizes *b = nrd_redrafter_heads_sizes(again);
    if (a->exit != b->exit || a->n_layers != b->n_layers || a->rnn != b->rnn || a->n_beams != b->n_beams || a->length != b->length) {
        abort();
    }
    nrd_redrafter_heads_close(again);
    fuzz_write(NRD_REDRAFTER_FOLDER "/config.json", NULL); /* else the next one would be found there */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"model.safetensors", "model.pt", "rank0.safetensors"};
    fuzz_part part[2] = {{0}};
    nrd_redrafter_heads *h = NULL;

    if (size < 1 || size > 1 << 18) {
        return 0;
    }
    const unsigned form = data[0] % 3;
    const size_t n = fuzz_split(data + 1, size - 1, part, 2);
    for (unsigned i = 0; i < 3; i++) {
        fuzz_write(names[i], i == form && n > 1 ? &part[1] : NULL);
    }
    fuzz_write("config.json", &part[0]);
    nrd_error *err = nrd_redrafter_heads_open(&h, fuzz_folder(), HIDDEN, VOCAB);
    if (!err) {
        check(h);
        check_written(h);
    }
    nrd_error_free(err);
    nrd_redrafter_heads_close(h);
    return 0;
}
