/* SPDX-License-Identifier: Apache-2.0
 * The other layout: that of GPTQ. Called by pack.c and folder.c. */
#include "tools/quantize/pack_gptq.h"

#include "base/json.h"
#include "base/mem.h"
#include "tools/quantize/pack_internal.h"

#include <string.h>

nrd_error *nrd_qpack_gptq_check(const nrd_qmodules *q, int bits)
{
    const int64_t codes = 32 / bits;
    for (size_t i = 0; i < q->n; i++) {
        const nrd_qmodule *t = &q->modules[i];
        const int64_t dims[2] = {t->rows, t->cols};
        for (int d = 0; d < 2; d++) {
            if (dims[d] % codes) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "--output_format gptq: the %lld %s of '%s' do not fill words of %lld codes; "
                                  "--exclude the module", (long long)dims[d], d ? "columns" : "rows", t->src->name,
                                  (long long)codes);
            }
        }
    }
    return NULL;
}

nrd_error *nrd_qpack_gptq(const nrd_qresult_module *y, nrd_qtensor *t, int *n)
{
    nrd_error *err = NULL;
    const nrd_qrows *q = &y->rows;
    const char *name = y->module->name;
    const int bits = y->grid.bits;
    const int64_t words = q->cols * bits / 32, zero_words = q->rows * bits / 32;
    const int64_t group = y->grid.group > 0 ? y->grid.group : q->cols;
    const unsigned mask = (1u << bits) - 1;
    uint32_t *codes = NULL, *zeros = NULL;
    int32_t *order = NULL;
    float *scales = NULL;
    void *data = NULL;

    NRD_NEW_GOTO(codes, words * q->rows, err, done);
    for (int64_t i = 0; i < q->rows * q->cols; i++) {
        nrd_qpack_bits(codes, i / q->cols, q->rows, i % q->cols, bits, q->codes[i]);
    }
    NRD_TRY_GOTO(nrd_qpack_add(t, n, name, "qweight", NRD_DTYPE_I32, words, q->rows, codes), err, done);
    NRD_NEW_GOTO(zeros, zero_words * q->n_groups, err, done);
    NRD_NEW_GOTO(scales, q->rows * q->n_groups, err, done);
    for (int64_t i = 0; i < q->rows * q->n_groups; i++) {
        const int64_t row = i / q->n_groups, g = i % q->n_groups;
        nrd_qpack_bits(zeros, g * zero_words, 1, row, bits, (q->zeros[i] - 1u) & mask);
        scales[g * q->rows + row] = q->scales[i];
    }
    NRD_TRY_GOTO(nrd_qpack_add(t, n, name, "qzeros", NRD_DTYPE_I32, q->n_groups, zero_words, zeros), err, done);
    NRD_TRY_GOTO(nrd_qpack_floats(scales, (size_t)(q->rows * q->n_groups), NRD_DTYPE_F16, &data), err, done);
    NRD_TRY_GOTO(nrd_qpack_add(t, n, name, "scales", NRD_DTYPE_F16, q->n_groups, q->rows, data), err, done);
    NRD_NEW_GOTO(order, q->cols, err, done);
    for (int64_t c = 0; c < q->cols; c++) {
        order[c] = (int32_t)(c / group);
    }
    err = nrd_qpack_add(t, n, name, "g_idx", NRD_DTYPE_I32, q->cols, -1, order);
done:
    free(scales);
    return err;
}

/* A regular expression that is the name and nothing else. */
static void put_pattern(nrd_str *out, const char *name)
{
    nrd_str pattern = {0};
    nrd_str_puts(&pattern, "-:^");
    for (const char *c = name; *c; c++) {
        nrd_str_printf(&pattern, "%s%c", *c == '.' ? "\\" : "", *c);
    }
    nrd_str_putc(&pattern, '$');
    nrd_json_put_cstr(out, nrd_str_cstr(&pattern));
    nrd_str_fini(&pattern);
}

void nrd_qpack_gptq_config(nrd_str *out, const nrd_qgrid *g, const char *const *ignored, size_t n_ignored, bool with_head)
{
    nrd_str_printf(out, "{\"quant_method\": \"gptq\", \"checkpoint_format\": \"gptq\", \"bits\": %d, \"group_size\": %lld, "
                   "\"desc_act\": false, \"sym\": %s, \"lm_head\": %s, \"pack_dtype\": \"int32\", \"dynamic\": {", g->bits,
                   (long long)(g->group > 0 ? g->group : -1), g->symmetric ? "true" : "false", with_head ? "true" : "false");
    for (size_t i = 0, n = 0; i < n_ignored; i++) {
        if (strcmp(ignored[i], "lm_head") != 0) {
            nrd_str_puts(out, n++ ? ", " : "");
            put_pattern(out, ignored[i]);
            nrd_str_puts(out, ": {}");
        }
    }
    nrd_str_puts(out, "}}");
}
