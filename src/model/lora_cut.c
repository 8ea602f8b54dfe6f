/* SPDX-License-Identifier: Apache-2.0
 * An adapter's share for one rank, cut as the weights beside it are (model/plan.c): heads of attention and columns
 * of the MLP go to ranks of a stage in their order, KV heads of which there are fewer than ranks to several. */
#include "model/lora.h"

#include "base/dtype.h"

#include <string.h>

enum { MAX_RANGES = 3 }; /* q, k and v at once */

typedef struct range {
    int64_t at, n;
} range;

/* What a rank has of the side of a module that is divided. */
typedef struct share {
    bool of_inputs;
    int32_t n_ranges;
    range ranges[MAX_RANGES];
} share;

/* layer: in the whole network, of which `first` is the stage's. */
static share share_of(const nrd_model_spec *whole, const nrd_model_spec *stage, int32_t rank, int32_t module, int32_t layer, int32_t first)
{
    const nrd_model_spec all = nrd_spec_of_layer(whole, layer), part = nrd_spec_of_layer(stage, layer - first);
    const nrd_model_spec *spec = &all, *own = &part;
    const int64_t tp = rank % spec->tp_size, d = spec->head_dim;
    const int64_t q = (int64_t)spec->n_heads * d, kv = (int64_t)spec->n_kv_heads * d;
    const range heads = {tp * own->n_heads * d, own->n_heads * d}, columns = {tp * own->inter, own->inter};
    const range kv_heads = {tp * spec->n_kv_heads / spec->tp_size * d, own->n_kv_heads * d};

    switch (nrd_lora_position(module)) {
    case NRD_LORA_AT_QKV:
        return (share){.n_ranges = 1, .ranges = {heads}};
    case NRD_LORA_AT_QKV + 1:
    case NRD_LORA_AT_QKV + 2:
        return (share){.n_ranges = 1, .ranges = {kv_heads}};
    case NRD_LORA_AT_QKV + 3:
        return (share){.n_ranges = 3,
                       .ranges = {heads, {q + kv_heads.at, kv_heads.n}, {q + kv + kv_heads.at, kv_heads.n}}};
    case NRD_LORA_AT_DENSE:
        return (share){.of_inputs = true, .n_ranges = 1, .ranges = {heads}};
    case NRD_LORA_AT_DOWN:
        return (share){.of_inputs = true, .n_ranges = 1, .ranges = {columns}};
    default: /* NRD_LORA_AT_UP, and the gate behind it */
        return (share){.n_ranges = 1, .ranges = {columns}};
    }
}

static int64_t width_of(const share *s)
{
    int64_t n = 0;
    for (int32_t i = 0; i < s->n_ranges; i++) {
        n += s->ranges[i].n;
    }
    return n;
}

/* The ranges of each of n rows of `width` elements, one behind the other. */
static void gather(uint8_t *dst, const uint8_t *src, int32_t n, int64_t width, const share *s, size_t elem)
{
    for (int32_t r = 0; r < n; r++) {
        for (int32_t i = 0; i < s->n_ranges; i++) {
            const size_t bytes = (size_t)s->ranges[i].n * elem;
            memcpy(dst, src + ((size_t)r * (size_t)width + (size_t)s->ranges[i].at) * elem, bytes);
            dst += bytes;
        }
    }
}

int64_t nrd_lora_whole_row(const nrd_model_spec *spec, int32_t rank, int32_t module, int32_t layer, int64_t i)
{
    const nrd_model_spec own = nrd_spec_of_rank(spec, rank);
    const share s = share_of(spec, &own, rank, module, layer, nrd_spec_first_layer(spec, rank));

    for (int32_t k = 0; !s.of_inputs && k < s.n_ranges; k++) {
        if (i < s.ranges[k].n) {
            return s.ranges[k].at + i;
        }
        i -= s.ranges[k].n;
    }
    return i;
}

static bool is_in_stage(const nrd_lora_row *r, int32_t first, const nrd_model_spec *own)
{
    return r->layer >= first && r->layer < first + own->n_layers;
}

/* adds: this rank's product has the bias, so that it adds what the gain has. */
static size_t cut_row(nrd_lora_row *out, const nrd_lora_row *r, const share *s, bool adds, uint8_t *data)
{
    const size_t elem = nrd_dtype_block_bytes(r->dtype), rank = (size_t)r->rank;

    out->in = s->of_inputs ? width_of(s) : r->in;
    out->out = s->of_inputs ? r->out : width_of(s);
    const size_t a_bytes = rank * (size_t)out->in * elem, b_bytes = rank * (size_t)out->out * elem;
    if (data) {
        uint8_t *a = data, *b = data + nrd_lora_padded(a_bytes);
        const share all_in = {.n_ranges = 1, .ranges = {{0, r->in}}}, all_out = {.n_ranges = 1, .ranges = {{0, r->out}}};
        gather(a, r->a, r->rank, r->in, s->of_inputs ? s : &all_in, elem);
        gather(b, r->b, r->rank, r->out, s->of_inputs ? &all_out : s, elem);
        out->a = a;
        out->b = b;
        if (r->has_gain) {
            uint8_t *gain = b + nrd_lora_padded(b_bytes);
            gather(gain, (const uint8_t *)nrd_lora_gain(r, r->b), 2, r->out, s->of_inputs ? &all_out : s, sizeof(float));
            if (!adds) {
                memset(gain + (size_t)out->out * sizeof(float), 0, (size_t)out->out * sizeof(float));
            }
        }
    }
    return nrd_lora_padded(a_bytes) + nrd_lora_padded(b_bytes) + (r->has_gain ? nrd_lora_gain_bytes(out->out) : 0);
}

nrd_error *nrd_lora_cut(nrd_lora **out, const nrd_lora *l, const nrd_model_spec *spec, int32_t rank)
{
    const nrd_model_spec own = nrd_spec_of_rank(spec, rank);
    const int32_t first = nrd_spec_first_layer(spec, rank);
    size_t bytes = 0, at = 0;
    int32_t n = 0;

    for (int32_t i = 0; i < l->n_rows; i++) {
        if (is_in_stage(&l->rows[i], first, &own)) {
            nrd_lora_row row = l->rows[i];
            const share s = share_of(spec, &own, rank, row.module, row.layer, first);
            bytes += cut_row(&row, &l->rows[i], &s, false, NULL);
            n++;
        }
    }
    NRD_TRY(nrd_lora_alloc(out, n, bytes));
    for (int32_t i = 0; i < l->n_rows; i++) {
        if (is_in_stage(&l->rows[i], first, &own)) {
            nrd_lora_row *row = &(*out)->rows[(*out)->n_rows++];
            const share s = share_of(spec, &own, rank, l->rows[i].module, l->rows[i].layer, first);
            *row = l->rows[i];
            row->layer -= first;
            at += cut_row(row, &l->rows[i], &s, !s.of_inputs || rank % spec->tp_size == 0, (uint8_t *)(*out)->data + at);
        }
    }
    (*out)->max_rank = l->max_rank;
    memcpy((*out)->hash, l->hash, sizeof l->hash);
    return NULL;
}
