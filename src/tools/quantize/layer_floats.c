/* SPDX-License-Identifier: Apache-2.0
 * The numbers of a layer's tensors while scales move in it. */
#include "tools/quantize/layer_internal.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "model/finite.h"

#include <stdlib.h>

enum { PIECE = 1 << 16 }; /* numbers of a tensor; a block of any type divides it */

typedef struct reading {
    const nrd_src_tensor *src;
    float *out;
    int64_t n;
    _Atomic bool is_unread;
} reading;

static void read_pieces(void *user, int64_t from, int64_t to)
{
    reading *r = user;
    const size_t piece_bytes = r->n > PIECE ? (size_t)(r->src->data_bytes * PIECE / (uint64_t)r->n) : 0;

    for (int64_t k = from; k < to; k++) {
        float *out = r->out + k * PIECE;
        const int64_t n = r->n - k * PIECE < PIECE ? r->n - k * PIECE : PIECE;
        if (!nrd_dequantize_row(r->src->dtype, (const uint8_t *)r->src->data + (size_t)k * piece_bytes, out, n)) {
            r->is_unread = true;
            return;
        }
    }
}

nrd_error *nrd_qwork_read(nrd_qmath *m, const nrd_src_tensor *src, bool turned, float **out)
{
    nrd_error *err = NULL;
    float *read = NULL;
    const size_t n = (size_t)nrd_src_tensor_numbers(src);

    NRD_NEW_GOTO(*out, n, err, fail);
    NRD_TRY(nrd_src_tensor_check_finite(src, 0, src->n_dims > 0 ? src->dims[0] : 1));
    reading r = {.src = src, .out = *out, .n = (int64_t)n};
    if (!src->packed) {
        nrd_qmath_each(m, (r.n + PIECE - 1) / PIECE, read_pieces, &r);
    }
    if (src->packed || r.is_unread) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' has type %s, which is not read as numbers here", src->name,
                          src->type_name);
    }
    if (turned) {
        read = *out;
        *out = NULL;
        NRD_NEW_GOTO(*out, n, err, fail);
        nrd_qmath_turn(m, read, src->dims[0], src->dims[1], *out);
    }
fail:
    free(read);
    return err;
}

nrd_error *nrd_qwork_floats(nrd_qwork *w, const nrd_src_tensor *src, bool turned, float **out)
{
    nrd_qresult *r = w->out;
    for (size_t i = 0; i < r->n; i++) {
        if (r->modules[i].module->src == src) {
            *out = r->modules[i].w;
            return NULL;
        }
    }
    for (size_t i = 0; i < r->n_tensors; i++) {
        if (r->tensors[i].src == src) {
            *out = r->tensors[i].data;
            return NULL;
        }
    }
    r->tensors = nrd_xrealloc(r->tensors, (r->n_tensors + 1) * sizeof *r->tensors);
    r->tensors[r->n_tensors] = (nrd_qresult_tensor){.src = src, .turned = turned};
    NRD_TRY(nrd_qwork_read(w->math, src, turned, &r->tensors[r->n_tensors++].data));
    *out = r->tensors[r->n_tensors - 1].data;
    return NULL;
}

nrd_error *nrd_qwork_divide(nrd_qwork *w, const nrd_qmaker *maker, const float *s)
{
    float *x = NULL;
    if (!maker->src) {
        return NULL;
    }
    NRD_TRY(nrd_qwork_floats(w, maker->src, maker->turned, &x));
    const int64_t cols = maker->is_vector ? 1 : maker->src->dims[!maker->turned];
    for (int64_t r = 0; r < maker->n_rows; r++) {
        float *row = x + (maker->row0 + r) * cols;
        const float by = s[maker->first + r];
        for (int64_t c = 0; c < cols; c++) {
            row[c] = maker->add_one ? (1 + row[c]) / by - 1 : row[c] / by;
        }
    }
    return NULL;
}
