/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a safetensors file: open, read everything that is given away, close. */
#include "formats/safetensors.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_safetensors *f = NULL;
    nrd_error *err = nrd_safetensors_open_memory(&f, data, n);
    volatile unsigned sum = 0;

    if (err) {
        nrd_error_free(err);
        return 0;
    }
    for (size_t i = 0; i < nrd_safetensors_n(f); i++) {
        const nrd_safetensor *t = nrd_safetensors_at(f, i);
        const uint8_t *p = t->data;
        sum += (unsigned)strlen(t->name);
        for (size_t k = 0; k < t->data_bytes; k++) {
            sum += p[k];
        }
    }
    nrd_safetensors_close(f);
    (void)sum;
    return 0;
}
