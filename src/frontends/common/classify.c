/* SPDX-License-Identifier: Apache-2.0
 * The k largest values of each row of an output: a heap keeps the best k candidates, then they
 * are sorted and written as "value:index[:label]". Called by output.c for outputs with the
 * parameter `classification`. */
#include "frontends/common/classify.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/number.h"
#include "frontends/common/error.h"
#include "frontends/common/tensor_json.h"

#include <stdio.h>
#include <string.h>

/* A value in the widest type of its kind, so that order and text are exact. */
typedef struct candidate {
    size_t index;
    union {
        int64_t i;
        uint64_t u;
        double d;
    } v;
} candidate;

typedef enum { KIND_SIGNED, KIND_UNSIGNED, KIND_REAL, KIND_NONE } number_kind;

static number_kind kind_of(TRITONSERVER_DataType type)
{
    switch (type) {
    case TRITONSERVER_TYPE_UINT8:
    case TRITONSERVER_TYPE_UINT16:
    case TRITONSERVER_TYPE_UINT32:
    case TRITONSERVER_TYPE_UINT64:
        return KIND_UNSIGNED;
    case TRITONSERVER_TYPE_INT8:
    case TRITONSERVER_TYPE_INT16:
    case TRITONSERVER_TYPE_INT32:
    case TRITONSERVER_TYPE_INT64:
        return KIND_SIGNED;
    case TRITONSERVER_TYPE_FP32:
    case TRITONSERVER_TYPE_FP64:
        return KIND_REAL;
    default:
        return KIND_NONE;
    }
}

static void read_value(candidate *c, number_kind kind, const char *p, size_t size)
{
    c->v.u = 0;
    if (kind == KIND_REAL && size == 4) {
        float f;
        memcpy(&f, p, 4);
        c->v.d = (double)f;
        return;
    }
    memcpy(&c->v, p, size);
    if (kind == KIND_SIGNED && size < 8) {
        const unsigned shift = 64 - 8 * (unsigned)size;
        c->v.i = (int64_t)(c->v.u << shift) >> shift; /* sign extension */
    }
}

/* a comes before b: the larger value, among equals the lower index. NaN comes last. */
static bool before(const candidate *a, const candidate *b, number_kind kind)
{
    int order = kind == KIND_SIGNED     ? (a->v.i > b->v.i) - (a->v.i < b->v.i)
                : kind == KIND_UNSIGNED ? (a->v.u > b->v.u) - (a->v.u < b->v.u)
                                        : (a->v.d > b->v.d) - (a->v.d < b->v.d);
    if (kind == KIND_REAL && order == 0 && (a->v.d != a->v.d) != (b->v.d != b->v.d)) {
        return b->v.d != b->v.d;
    }
    return order ? order > 0 : a->index < b->index;
}

/* A heap of n whose root comes after all others: puts c where its root was. */
static void sink(candidate *heap, size_t n, candidate c, number_kind kind)
{
    size_t at = 0, child;

    while ((child = 2 * at + 1) < n) {
        if (child + 1 < n && before(&heap[child], &heap[child + 1], kind)) {
            child++;
        }
        if (!before(&c, &heap[child], kind)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = c;
}

static void rise(candidate *heap, size_t at, candidate c, number_kind kind)
{
    while (at > 0 && before(&heap[(at - 1) / 2], &c, kind)) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = c;
}

/* The k best of n, in order. Time n log k: k is what the client asks for. */
static void best_of_row(candidate *best, size_t k, number_kind kind, const char *row, size_t n, size_t size)
{
    for (size_t i = 0; i < n; i++) {
        candidate c = {.index = i};
        read_value(&c, kind, row + i * size, size);
        if (i < k) {
            rise(best, i, c, kind);
        } else if (before(&c, &best[0], kind)) {
            sink(best, k, c, kind);
        }
    }
    for (size_t left = k; left > 1; left--) {
        candidate last = best[left - 1];
        best[left - 1] = best[0];
        sink(best, left - 1, last, kind);
    }
}

static nrd_error *put_class(nrd_str *out, TRITONSERVER_InferenceResponse *response, uint32_t index,
                            number_kind kind, const candidate *c)
{
    char text[400]; /* %f of the largest double has 316 characters */
    const char *label = NULL;
    int n = kind == KIND_SIGNED
                ? snprintf(text, sizeof text, "%lld:%zu", (long long)c->v.i, c->index)
            : kind == KIND_UNSIGNED
                ? snprintf(text, sizeof text, "%llu:%zu", (unsigned long long)c->v.u, c->index)
                : nrd_number_print(text, sizeof text, "%f:%zu", c->v.d, c->index);
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputClassificationLabel(
        response, index, c->index, &label)));
    size_t label_n = label ? strlen(label) + 1 : 0;
    uint32_t total = (uint32_t)((size_t)n + label_n);
    nrd_str_append(out, &total, sizeof total);
    nrd_str_append(out, text, (size_t)n);
    if (label) {
        nrd_str_putc(out, ':');
        nrd_str_append(out, label, label_n - 1);
    }
    return NULL;
}

nrd_error *nrd_classify(nrd_str *out, TRITONSERVER_InferenceResponse *response, uint32_t index,
                             TRITONSERVER_DataType type, const void *data, size_t size_bytes,
                             size_t n_rows, uint64_t k, size_t *out_k)
{
    const number_kind kind = kind_of(type);
    const size_t size = TRITONSERVER_DataTypeByteSize(type);
    candidate *best = NULL;
    nrd_error *err = NULL;

    *out_k = 0;
    if (kind == KIND_NONE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "class result not available for output due to unsupported type '%s'",
                          TRITONSERVER_DataTypeString(type));
    }
    size_t n = n_rows ? size_bytes / size / n_rows : 0;
    if (n > NRD_LIMIT_CLASSES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "classification output tensor too large");
    }
    size_t keep = k < n ? (size_t)k : n;
    NRD_NEW_GOTO(best, keep, err, out);
    for (size_t row = 0; row < n_rows && keep; row++) {
        best_of_row(best, keep, kind, (const char *)data + row * n * size, n, size);
        for (size_t i = 0; i < keep; i++) {
            NRD_TRY_GOTO(put_class(out, response, index, kind, &best[i]), err, out);
        }
    }
    *out_k = keep;

out:
    free(best);
    return err;
}
