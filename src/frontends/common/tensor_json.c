/* SPDX-License-Identifier: Apache-2.0
 * The values of one tensor from and to JSON: sizes first, then nested arrays element by element
 * into the tensor's memory, with checks of type and range; and the other direction for answers.
 * Called by infer and generate; long arrays of numbers are read by tensor_text.c instead. */
#include "frontends/common/tensor_json.h"

#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

bool nrd_tensor_count(const int64_t *shape, size_t n_dims, size_t *out)
{
    size_t n = 1;
    for (size_t i = 0; i < n_dims; i++) {
        if (shape[i] < 0 || !nrd_size_mul(n, (size_t)shape[i], &n)) {
            return false;
        }
    }
    *out = n;
    return true;
}

static nrd_error *not_a(const char *what, const char *as)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-%s as %s", what, as);
}

static nrd_error *bytes_size(const nrd_json *data, size_t *io_bytes)
{
    if (nrd_json_is(data, NRD_JSON_ARRAY)) {
        for (size_t i = 0; i < data->n; i++) {
            NRD_TRY(bytes_size(&data->child[i], io_bytes));
        }
        return NULL;
    }
    if (!nrd_json_is(data, NRD_JSON_STRING)) {
        return nrd_error_wrap(not_a("string", "string"), "Unable to parse JSON bytes array");
    }
    if (data->n > UINT32_MAX || !nrd_size_add(*io_bytes, data->n + 4, io_bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "string tensor too large");
    }
    return NULL;
}

nrd_error *nrd_tensor_json_size(const nrd_json *data, TRITONSERVER_DataType type, size_t count,
                                size_t *out_bytes)
{
    *out_bytes = 0;
    if (type == TRITONSERVER_TYPE_BYTES) {
        return bytes_size(data, out_bytes);
    }
    if (!nrd_size_mul(count, TRITONSERVER_DataTypeByteSize(type), out_bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor size overflows");
    }
    return NULL;
}

/* ---- JSON to bytes ---- */

typedef struct reader {
    char *at, *end;
    TRITONSERVER_DataType type;
} reader;

static nrd_error *wrong_shape(void)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "Shape does not match true shape of 'data' field");
}

static nrd_error *read_signed(const nrd_json *v, int bits, void *out)
{
    if (!nrd_json_is(v, NRD_JSON_INT)) {
        return not_a("signed-integer", "signed-integer");
    }
    int64_t i = v->i, top = bits == 64 ? INT64_MAX : ((int64_t)1 << (bits - 1)) - 1;
    if (i > top || i < -top - 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "value %lld does not fit INT%d", (long long)i, bits);
    }
    memcpy(out, &i, (size_t)bits / 8); /* little-endian: the low bytes come first */
    return NULL;
}

static nrd_error *read_unsigned(const nrd_json *v, int bits, void *out)
{
    uint64_t u;
    if (nrd_json_is(v, NRD_JSON_UINT)) {
        u = v->u;
    } else if (nrd_json_is(v, NRD_JSON_INT) && v->i >= 0) {
        u = (uint64_t)v->i;
    } else {
        return not_a("unsigned-integer", "unsigned-integer");
    }
    if (bits < 64 && u >> bits) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "value %llu does not fit UINT%d",
                          (unsigned long long)u, bits);
    }
    memcpy(out, &u, (size_t)bits / 8);
    return NULL;
}

static nrd_error *read_real(const nrd_json *v, TRITONSERVER_DataType type, void *out)
{
    if (!nrd_json_is_number(v)) {
        return not_a("number", "double");
    }
    double d = nrd_json_num(v, 0);
    float f = (float)d;
    memcpy(out, type == TRITONSERVER_TYPE_FP64 ? (void *)&d : (void *)&f,
           type == TRITONSERVER_TYPE_FP64 ? 8 : 4);
    return NULL;
}

static nrd_error *read_scalar(reader *r, const nrd_json *v)
{
    size_t left = (size_t)(r->end - r->at), size = TRITONSERVER_DataTypeByteSize(r->type);
    char *to = r->at;

    if (r->type == TRITONSERVER_TYPE_BYTES) {
        if (!nrd_json_is(v, NRD_JSON_STRING)) {
            return not_a("string", "string");
        }
        if (left < 4 || left - 4 < v->n) {
            return wrong_shape();
        }
        uint32_t n = (uint32_t)v->n;
        memcpy(to, &n, 4);
        memcpy(to + 4, v->str, v->n);
        r->at += 4 + v->n;
        return NULL;
    }
    if (left < size) {
        return wrong_shape();
    }
    r->at += size;
    switch (r->type) {
    case TRITONSERVER_TYPE_BOOL:
        if (!nrd_json_is(v, NRD_JSON_BOOL)) {
            return not_a("boolean", "boolean");
        }
        *to = v->boolean ? 1 : 0;
        return NULL;
    case TRITONSERVER_TYPE_UINT8:
    case TRITONSERVER_TYPE_UINT16:
    case TRITONSERVER_TYPE_UINT32:
    case TRITONSERVER_TYPE_UINT64:
        return read_unsigned(v, (int)size * 8, to);
    case TRITONSERVER_TYPE_INT8:
    case TRITONSERVER_TYPE_INT16:
    case TRITONSERVER_TYPE_INT32:
    case TRITONSERVER_TYPE_INT64:
        return read_signed(v, (int)size * 8, to);
    default:
        return read_real(v, r->type, to);
    }
}

static nrd_error *read_nested(reader *r, const nrd_json *v)
{
    if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
        return read_scalar(r, v);
    }
    for (size_t i = 0; i < v->n; i++) {
        NRD_TRY(read_nested(r, &v->child[i]));
    }
    return NULL;
}

nrd_error *nrd_tensor_json_read(const nrd_json *data, const char *name, TRITONSERVER_DataType type,
                                void *out, size_t size_bytes)
{
    if (type == TRITONSERVER_TYPE_FP16 || type == TRITONSERVER_TYPE_BF16) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "receiving %s data via JSON is not supported. Please use the binary data "
                          "format for input %s",
                          type == TRITONSERVER_TYPE_FP16 ? "FP16" : "BF16", name);
    }
    if (type != TRITONSERVER_TYPE_BYTES && TRITONSERVER_DataTypeByteSize(type) == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid datatype for input %s", name);
    }
    reader r = {out, (char *)out + size_bytes, type};
    nrd_error *err = read_nested(&r, data);
    if (!err && r.at != r.end) {
        err = wrong_shape();
    }
    return nrd_error_wrap(err, "Unable to parse 'data'");
}

/* ---- bytes to JSON ---- */

static void put_u64(nrd_str *out, uint64_t u)
{
    char text[20];
    int i = sizeof text;
    do {
        text[--i] = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    nrd_str_append(out, text + i, sizeof text - (size_t)i);
}

static void put_i64(nrd_str *out, int64_t v)
{
    if (v < 0) {
        nrd_str_putc(out, '-');
    }
    put_u64(out, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

/* What JSON has no word for, in the words that Triton and its clients use. */
static bool put_special(nrd_str *out, double d)
{
    if (d - d == 0) {
        return false;
    }
    nrd_str_puts(out, d != d ? "NaN" : d > 0 ? "Infinity" : "-Infinity");
    return true;
}

static void put_number(nrd_str *out, TRITONSERVER_DataType type, const char *p)
{
    switch (type) {
    case TRITONSERVER_TYPE_BOOL:
        nrd_str_puts(out, *p ? "true" : "false");
        break;
    case TRITONSERVER_TYPE_UINT8:
    case TRITONSERVER_TYPE_UINT16:
    case TRITONSERVER_TYPE_UINT32:
    case TRITONSERVER_TYPE_UINT64: {
        uint64_t u = 0;
        memcpy(&u, p, TRITONSERVER_DataTypeByteSize(type));
        put_u64(out, u);
        break;
    }
    case TRITONSERVER_TYPE_INT8:
        put_i64(out, *(const signed char *)p);
        break;
    case TRITONSERVER_TYPE_INT16: {
        int16_t v;
        memcpy(&v, p, 2);
        put_i64(out, v);
        break;
    }
    case TRITONSERVER_TYPE_INT32: {
        int32_t v;
        memcpy(&v, p, 4);
        put_i64(out, v);
        break;
    }
    case TRITONSERVER_TYPE_INT64: {
        int64_t v;
        memcpy(&v, p, 8);
        put_i64(out, v);
        break;
    }
    case TRITONSERVER_TYPE_FP32: {
        float f;
        memcpy(&f, p, 4);
        if (!put_special(out, f)) {
            nrd_json_put_float(out, f);
        }
        break;
    }
    default: {
        double d;
        memcpy(&d, p, 8);
        if (!put_special(out, d)) {
            nrd_json_put_double(out, d);
        }
        break;
    }
    }
}

static nrd_error *wrong_size(const char *name)
{
    return nrd_errorf(NRD_ERR_INTERNAL,
                      "output tensor shape does not match size of output for '%s'", name);
}

/* Before `more` bytes are added. */
static nrd_error *check_length(const nrd_str *out, const char *name, size_t more)
{
    const size_t most = NRD_LIMIT_ANSWER_TEXT;
    return out->len > most || more > most - out->len
               ? nrd_errorf(NRD_ERR_INVALID_ARG,
                            "output '%s' makes the JSON of the answer longer than %zu bytes. Please use "
                            "the binary data format for output",
                            name, most)
               : NULL;
}

static nrd_error *write_bytes(nrd_str *out, const char *name, const char *p, size_t left,
                              size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t n;
        if (left < 4) {
            return wrong_size(name);
        }
        memcpy(&n, p, 4);
        if (left - 4 < n) {
            return wrong_size(name);
        }
        NRD_TRY(check_length(out, name, n));
        if (i) {
            nrd_str_putc(out, ',');
        }
        nrd_json_put_string(out, p + 4, n);
        p += 4 + n;
        left -= 4 + n;
    }
    return left ? wrong_size(name) : NULL;
}

nrd_error *nrd_tensor_json_write(nrd_str *out, const char *name, TRITONSERVER_DataType type,
                                 const void *data, size_t size_bytes, size_t count, bool unwrap_one)
{
    size_t size = TRITONSERVER_DataTypeByteSize(type), need;
    const bool brackets = !(unwrap_one && count == 1);

    if (type == TRITONSERVER_TYPE_FP16 || type == TRITONSERVER_TYPE_BF16) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "sending %s data via JSON is not supported. Please use the binary data "
                          "format for output",
                          type == TRITONSERVER_TYPE_FP16 ? "FP16" : "BF16");
    }
    if (type != TRITONSERVER_TYPE_BYTES && size == 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "invalid datatype for output %s", name);
    }
    if (brackets) {
        nrd_str_putc(out, '[');
    }
    if (type == TRITONSERVER_TYPE_BYTES) {
        NRD_TRY(write_bytes(out, name, data, size_bytes, count));
    } else {
        if (!nrd_size_mul(count, size, &need) || need != size_bytes) {
            return wrong_size(name);
        }
        for (size_t i = 0; i < count; i++) {
            NRD_TRY(check_length(out, name, 1));
            if (i) {
                nrd_str_putc(out, ',');
            }
            put_number(out, type, (const char *)data + i * size);
        }
    }
    if (brackets) {
        nrd_str_putc(out, ']');
    }
    return NULL;
}
