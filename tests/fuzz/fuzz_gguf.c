/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a GGUF file: open, read everything that is given away, a tensor's first numbers, rows of I2_S, make a spec, close. */
#include "base/dtype.h"
#include "base/mem.h"
#include "formats/gguf.h"
#include "model/arch.h"
#include "model/quant/quant.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static unsigned sum(const void *data, size_t n)
{
    const volatile uint8_t *p = data;
    unsigned s = 0;
    for (size_t i = 0; i < n; i++) {
        s += p[i];
    }
    return s;
}

/* Any bytes are a block. */
static unsigned first_numbers(const nrd_gguf_tensor *t)
{
    float numbers[256];
    uint8_t ternary[84];
    const int64_t n = nrd_dtype_block(t->dtype);
    unsigned s = 0;

    if (n > 1 && nrd_dequantize_row(t->dtype, t->data, numbers, n)) {
        s += sum(numbers, (size_t)n * sizeof *numbers);
    }
    return s + (nrd_ternary_row(t->dtype, t->data, ternary, n) ? sum(ternary, sizeof ternary) : 0);
}

/* The last row of a matrix of I2_S, in its own type and as numbers. */
static unsigned read_ternary(const nrd_gguf_tensor *g)
{
    nrd_src_tensor t = {.name = g->name, .dtype = g->dtype, .n_dims = g->n_dims, .dims = {g->dims[1], g->dims[0], 1, 1},
                        .data = g->data, .data_bytes = g->data_bytes, .type_name = nrd_gguf_tensor_type_name(g->type)};
    nrd_quant *q = NULL;
    size_t n = 1;
    unsigned s = 0;
    nrd_error *err = nrd_quant_open_ternary(&q, NRD_DTYPE_F16, &t, &n);

    if (!err && q) {
        const nrd_dtype types[] = {t.dtype, NRD_DTYPE_F32};
        const size_t most = (size_t)t.dims[1] * sizeof(float);
        char *row = nrd_xmalloc(most);
        for (int i = 0; i < 2 && !err; i++) {
            err = nrd_quant_rows(t.packed, types[i], t.dims[0] - 1, 1, row, NULL);
            s += err ? 0 : sum(row, (size_t)(t.dims[1] / nrd_dtype_block(types[i])) * nrd_dtype_block_bytes(types[i]));
        }
        free(row);
    }
    nrd_error_free(err);
    nrd_quant_close(q);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_gguf *g = NULL;
    nrd_error *err = nrd_gguf_open_memory(&g, data, n);
    nrd_model_spec spec;
    const nrd_arch *arch;
    unsigned s = 0;

    if (err) {
        nrd_error_free(err);
        return 0;
    }
    for (size_t i = 0; i < nrd_gguf_n_values(g); i++) {
        const nrd_gguf_value *v = nrd_gguf_value_at(g, i);
        nrd_gguf_span text;
        double number;
        s += sum(v->data, v->data_bytes) + (nrd_gguf_arr_num(v, v->n - 1, &number) ? 1u : 0u);
        for (uint64_t k = 0; v->type == NRD_GGUF_ARRAY && k < v->n; k++) {
            s += nrd_gguf_arr_str(v, k, &text) ? sum(text.data, text.n) : 0;
        }
    }
    for (size_t i = 0; i < nrd_gguf_n_tensors(g); i++) {
        const nrd_gguf_tensor *t = nrd_gguf_tensor_at(g, i);
        s += sum(t->data, t->data_bytes);
        s += t->data_bytes > 0 ? first_numbers(t) : 0;
        s += read_ternary(t);
    }
    err = nrd_arch_from_gguf(&spec, &arch, g);
    if (!err && nrd_arch_encoder_of(arch)) {
        nrd_error_free(nrd_arch_encoder_from_gguf(&spec, arch, g));
    }
    nrd_error_free(err);
    nrd_gguf_close(g);
    return s == 1 ? 0 : 0;
}
