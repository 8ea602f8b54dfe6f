/* SPDX-License-Identifier: Apache-2.0
 * Tensors on their way into a file, whatever the format. */
#include "tools/quantize/pack_internal.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

nrd_error *nrd_qpack_add(nrd_qtensor *t, int *n, const char *module, const char *part, nrd_dtype dtype, int64_t d0, int64_t d1,
                         void *data)
{
    nrd_qtensor *one = &t[*n];
    *one = (nrd_qtensor){.name = nrd_xasprintf("%s.%s", module, part), .dtype = dtype, .n_dims = d1 < 0 ? 1 : 2,
                         .dims = {d0, d1 < 0 ? 1 : d1}, .data = data};
    ++*n;
    return nrd_dtype_bytes(dtype, (uint64_t)(one->dims[0] * one->dims[1]), &one->bytes) ? NULL : nrd_error_no_memory();
}

void nrd_qpack_bits(uint32_t *words, int64_t first, int64_t stride, int64_t at, int bits, unsigned code)
{
    const int64_t bit = at * bits, word = first + bit / 32 * stride;
    words[word] |= code << (bit % 32); /* 4 and 8 bits never cross a word */
}

nrd_error *nrd_qpack_floats(const float *x, size_t n, nrd_dtype dtype, void **out)
{
    nrd_error *err = NULL;
    uint8_t *data = NULL;
    size_t bytes = 0;
    if (!nrd_dtype_bytes(dtype, n, &bytes)) {
        return nrd_error_no_memory();
    }
    NRD_NEW_GOTO(data, bytes, err, fail);
    if (dtype == NRD_DTYPE_F32) {
        memcpy(data, x, bytes);
    } else {
        nrd_quantize_row(dtype, x, data, (int64_t)n);
    }
    *out = data;
fail:
    return err;
}

void nrd_qtensors_fini(nrd_qtensor *t, int n)
{
    for (int i = 0; i < n; i++) {
        free(t[i].name);
        free(t[i].data);
    }
}
