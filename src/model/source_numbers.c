/* SPDX-License-Identifier: Apache-2.0
 * GGUF files of Apertus keep two numbers of each layer's activation as lists in their metadata. Here they become tensors as others
 * are. Called by source.c. */
#include "model/source_internal.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct nrd_source_number {
    float value;
    char name[44];
} nrd_source_number;

static const char *const keys[] = {"xielu.alpha_p", "xielu.alpha_n"};
enum { N_KEYS = sizeof keys / sizeof *keys };

nrd_error *nrd_source_add_numbers(nrd_source *s)
{
    const int32_t n = s->spec.n_layers;
    double x = 0;

    if (s->spec.act != NRD_ACT_XIELU) {
        return NULL;
    }
    s->numbers = calloc((size_t)n * N_KEYS, sizeof *s->numbers);
    if (!s->numbers) {
        return nrd_error_no_memory();
    }
    for (int k = 0; k < N_KEYS; k++) {
        const nrd_gguf_value *list = nrd_gguf_find(s->gguf, keys[k]);
        for (int32_t i = 0; i < n; i++) {
            nrd_source_number *each = &s->numbers[k * n + i];
            if (!list || list->n != (uint64_t)n || !nrd_gguf_arr_num(list, (uint64_t)i, &x)) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' must be a list of %d numbers, one for each layer", s->path, keys[k], n);
            }
            each->value = (float)x;
            snprintf(each->name, sizeof each->name, "blk.%d.%s", i, keys[k]);
            const nrd_src_tensor t = {.name = each->name, .dtype = NRD_DTYPE_F32, .n_dims = 1, .dims = {1}, .data = &each->value,
                                      .data_bytes = sizeof each->value, .type_name = "F32"};
            NRD_TRY(nrd_table_add(&s->ranks[0], &t));
        }
    }
    return NULL;
}
