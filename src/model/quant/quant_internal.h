/* SPDX-License-Identifier: Apache-2.0
 * model/quant/quant_internal.h - what quant.c, which knows the readers, shares with parts.c, which they know.
 *
 * Owner     The thread that opens a folder; nrd_quant_open's callers see nothing of it. */
#ifndef NRD_MODEL_QUANT_QUANT_INTERNAL_H
#define NRD_MODEL_QUANT_QUANT_INTERNAL_H

#include "model/quant/quant.h"

struct nrd_quant {
    const nrd_quant_reader *reader;
    nrd_quant_settings settings;
    nrd_src_tensor *table; /* only during open: the source's, sorted */
    size_t n_table;
    uint8_t *taken;        /* one for each */
    nrd_quant_weight **weights;
    size_t n;
    nrd_str notes;
    bool kv_is_int8; /* scales of the cache are for int8, not for E4M3 */
};

/* In the table, borrowed; NULL: not there. */
nrd_src_tensor *nrd_quant_find(const nrd_quant *q, const char *name);

#endif
