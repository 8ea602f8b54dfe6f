/* SPDX-License-Identifier: Apache-2.0
 * An adapter as messages: a head that says what comes, the rows with the places of their pairs, and the pairs' bytes in
 * pieces, each a message with the same head. */
#include "executor/ranks/adapters.h"

#include "base/mem.h"
#include "engine/lora_slots.h"

#include <string.h>

enum { PIECE_BYTES = 4 << 20 };

typedef struct head {
    int32_t slot, n_rows, max_rank; /* n_rows 0: the slot is empty */
    bool is_first;                  /* the rows follow it, else bytes */
    size_t bytes, at, n;            /* of all data; of this piece */
} head;

typedef struct row {
    nrd_lora_row row; /* its pointers have no meaning here */
    size_t a, b;      /* offsets in the data */
} row;

struct nrd_rank_adapters {
    nrd_device *dev;
    nrd_runner *runner;
    const nrd_model_spec *spec;
    int32_t rank, bank_rank;
    nrd_lora_slots *slots;
    nrd_lora *coming; /* what is not complete yet */
};

/* ---- rank 0 ---- */

static nrd_error *send(nrd_segment *s, const head *h, const void *data, size_t bytes)
{
    void *mem = NULL;

    NRD_TRY(nrd_segment_begin(s, &mem));
    memcpy(mem, h, sizeof *h);
    if (bytes > 0) {
        memcpy((uint8_t *)mem + sizeof *h, data, bytes);
    }
    nrd_segment_end(s, NRD_MESSAGE_ADAPTER, sizeof *h + bytes);
    return NULL;
}

static nrd_error *send_rows(nrd_segment *s, const head *h, const nrd_lora *l)
{
    const uint8_t *data = l->data;
    nrd_error *err = NULL;
    row *rows = NULL;

    NRD_NEW_GOTO(rows, (size_t)l->n_rows, err, done);
    for (int32_t i = 0; i < l->n_rows; i++) {
        rows[i].row = l->rows[i];
        rows[i].a = (size_t)((const uint8_t *)l->rows[i].a - data);
        rows[i].b = (size_t)((const uint8_t *)l->rows[i].b - data);
    }
    err = send(s, h, rows, (size_t)l->n_rows * sizeof *rows);
done:
    free(rows);
    return err;
}

nrd_error *nrd_rank_send_adapter(nrd_segment *s, int32_t slot, const nrd_lora *l)
{
    head h = {.slot = slot, .is_first = true};

    if (!l) {
        return send(s, &h, NULL, 0);
    }
    /* at most a row for each of the model's layers and modules: far below a message's size */
    h.n_rows = l->n_rows;
    h.max_rank = l->max_rank;
    h.bytes = l->bytes;
    NRD_TRY(send_rows(s, &h, l));
    h.is_first = false;
    for (; h.at < h.bytes; h.at += h.n) {
        h.n = h.bytes - h.at < PIECE_BYTES ? h.bytes - h.at : PIECE_BYTES;
        NRD_TRY(send(s, &h, (const uint8_t *)l->data + h.at, h.n));
    }
    return NULL;
}

/* ---- the others ---- */

nrd_error *nrd_rank_adapters_new(nrd_rank_adapters **out, nrd_device *dev, nrd_runner *runner,
                                 const nrd_model_spec *spec, int32_t rank)
{
    nrd_error *err = NULL;

    NRD_NEW_GOTO(*out, 1, err, fail);
    **out = (nrd_rank_adapters){.dev = dev, .runner = runner, .spec = spec, .rank = rank};
fail:
    return err;
}

static nrd_error *begin(nrd_rank_adapters *a, const head *h, const uint8_t *rows)
{
    nrd_lora_free(a->coming);
    NRD_TRY(nrd_lora_alloc(&a->coming, h->n_rows, h->bytes));
    a->coming->n_rows = h->n_rows;
    a->coming->max_rank = h->max_rank;
    for (int32_t i = 0; i < h->n_rows; i++) {
        row r;
        memcpy(&r, rows + (size_t)i * sizeof r, sizeof r);
        r.row.a = (const uint8_t *)a->coming->data + r.a;
        r.row.b = (const uint8_t *)a->coming->data + r.b;
        a->coming->rows[i] = r.row;
    }
    return NULL;
}

/* Its own share into the slot; the rest is not needed any more. */
static nrd_error *finish(nrd_rank_adapters *a, int32_t slot)
{
    nrd_lora *share = NULL;
    nrd_error *err = nrd_lora_cut(&share, a->coming, a->spec, a->rank);

    nrd_lora_free(a->coming);
    a->coming = NULL;
    if (!err && !a->slots) {
        err = nrd_lora_slots_new(&a->slots, a->dev, nrd_spec_of_rank(a->spec, a->rank).n_layers);
    }
    if (err) {
        nrd_lora_free(share);
        return err;
    }
    NRD_TRY(nrd_lora_slots_put(a->slots, slot, share));
    const nrd_lora_bank bank = nrd_lora_slots_bank(a->slots);
    if (bank.max_rank > a->bank_rank) {
        NRD_TRY(nrd_runner_set_bank(a->runner, &bank));
        a->bank_rank = bank.max_rank;
    }
    return NULL;
}

nrd_error *nrd_rank_adapters_take(nrd_rank_adapters *a, const void *message, size_t bytes)
{
    const uint8_t *data = (const uint8_t *)message + sizeof(head);
    head h = {0};

    if (bytes >= sizeof h) {
        memcpy(&h, message, sizeof h);
    }
    const size_t rest = h.is_first ? (size_t)h.n_rows * sizeof(row) : h.n;
    if (bytes != sizeof h + rest || h.slot < 0 || h.slot >= NRD_LORA_SLOTS) {
        return nrd_errorf(NRD_ERR_INTERNAL, "a LoRA adapter's message of %zu bytes for slot %d", bytes, h.slot);
    }
    if (h.is_first && h.n_rows == 0) {
        return a->slots ? nrd_lora_slots_put(a->slots, h.slot, NULL) : NULL;
    }
    if (h.is_first) {
        return begin(a, &h, data);
    }
    memcpy((uint8_t *)a->coming->data + h.at, data, h.n);
    return h.at + h.n == h.bytes ? finish(a, h.slot) : NULL;
}
