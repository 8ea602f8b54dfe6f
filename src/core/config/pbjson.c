/* SPDX-License-Identifier: Apache-2.0
 * Protobuf messages as JSON and back, by their descriptors: for everything that prints or takes a configuration. */
#include "core/config/pbjson.h"

#include "base/number.h"
#include "core/config/pbfield.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- printing ---- */

/* Whole numbers have no ".0" in protobuf's JSON. */
static void put_real(nrd_str *out, double v, bool is_float)
{
    if (v == trunc(v) && fabs(v) < 1e6) {
        nrd_str_printf(out, "%d", (int)v);
    } else if (is_float) {
        nrd_json_put_float(out, (float)v);
    } else {
        nrd_json_put_double(out, v);
    }
}

/* 64-bit integers are strings in protobuf's JSON. Published answers have numbers instead, save in
 * these places, and readers have learnt to expect that. */
static bool is_text_in_json(const ProtobufCMessage *msg, const nrd_pb_field *f)
{
    static const struct {
        const char *type, *field;
    } places[] = {
        {"inference.ModelSequenceBatching.InitialState", "dims"},
        {"inference.ModelInstanceGroup.SecondaryDevice", "device_id"},
        {"inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape", "dim"},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (strcmp(msg->descriptor->name, places[i].type) == 0 &&
            strcmp(f->name, places[i].field) == 0) {
            return true;
        }
    }
    return false;
}

static void put_value(nrd_str *out, const nrd_pb_field *f, const void *v, bool as_key)
{
    char buf[32] = "";

    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        snprintf(buf, sizeof buf, "%d", *(const int32_t *)v);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        snprintf(buf, sizeof buf, "%u", *(const uint32_t *)v);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        snprintf(buf, sizeof buf, "%lld", (long long)*(const int64_t *)v);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        snprintf(buf, sizeof buf, "%llu", (unsigned long long)*(const uint64_t *)v);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        snprintf(buf, sizeof buf, "%s", *(const protobuf_c_boolean *)v ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        put_real(out, (double)*(const float *)v, true);
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        put_real(out, *(const double *)v, false);
        return;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *e =
            protobuf_c_enum_descriptor_get_value(f->descriptor, *(const int *)v);
        if (e) {
            nrd_json_put_cstr(out, e->name);
        } else {
            nrd_str_printf(out, "%d", *(const int *)v);
        }
        return;
    }
    case PROTOBUF_C_TYPE_STRING: {
        const char *s = *(char *const *)v;
        nrd_json_put_cstr(out, s ? s : "");
        return;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *b = v;
        nrd_json_put_string(out, (const char *)b->data, b->len);
        return;
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *m = *(ProtobufCMessage *const *)v;
        if (m) {
            nrd_pbjson_put(out, m);
        } else {
            nrd_str_puts(out, "{}");
        }
        return;
    }
    }
    if (as_key) {
        nrd_json_put_cstr(out, buf);
    } else {
        nrd_str_puts(out, buf);
    }
}

static void put_repeated(nrd_str *out, const ProtobufCMessage *msg, const nrd_pb_field *f)
{
    size_t n = *(size_t *)nrd_pb_quantifier_of(msg, f);
    const char *items = *(char **)nrd_pb_member_of(msg, f);
    size_t size = nrd_pb_size_of_type(f->type);

    if (nrd_pb_is_map(f)) {
        nrd_str_putc(out, '{');
        for (size_t i = 0; i < n; i++) {
            const ProtobufCMessage *entry = ((ProtobufCMessage *const *)(const void *)items)[i];
            const nrd_pb_field *k = &entry->descriptor->fields[0], *v = &entry->descriptor->fields[1];
            if (i) {
                nrd_str_putc(out, ',');
            }
            put_value(out, k, nrd_pb_member_of(entry, k), true);
            nrd_str_putc(out, ':');
            put_value(out, v, nrd_pb_member_of(entry, v), false);
        }
        nrd_str_putc(out, '}');
        return;
    }
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i) {
            nrd_str_putc(out, ',');
        }
        put_value(out, f, items + i * size, is_text_in_json(msg, f));
    }
    nrd_str_putc(out, ']');
}

static bool is_printed(const ProtobufCMessage *msg, const nrd_pb_field *f)
{
    if (nrd_pb_is_oneof(f)) {
        return *(uint32_t *)nrd_pb_quantifier_of(msg, f) == f->id;
    }
    if (f->label != PROTOBUF_C_LABEL_REPEATED && f->type == PROTOBUF_C_TYPE_MESSAGE) {
        return *(ProtobufCMessage **)nrd_pb_member_of(msg, f) != NULL;
    }
    return true;
}

/* Fields in the order of their declaration, as published answers have them: the descriptor sorts
 * by number, but the members of the struct lie in order (choices behind the rest). */
static void declaration_order(const nrd_pb_type *type, const nrd_pb_field **order)
{
    for (unsigned i = 0; i < type->n_fields; i++) {
        unsigned k = i;
        for (; k > 0 && order[k - 1]->offset > type->fields[i].offset; k--) {
            order[k] = order[k - 1];
        }
        order[k] = &type->fields[i];
    }
}

void nrd_pbjson_put(nrd_str *out, const ProtobufCMessage *msg)
{
    enum { MAX_FIELDS = 64 }; /* the widest message of our schemas has 26 */
    const nrd_pb_field *order[MAX_FIELDS];
    bool first = true;

    NRD_ASSERT(msg->descriptor->n_fields <= MAX_FIELDS, "messages of our schemas are narrow");
    declaration_order(msg->descriptor, order);
    nrd_str_putc(out, '{');
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++) {
        const nrd_pb_field *f = order[i];
        if (!is_printed(msg, f)) {
            continue;
        }
        if (!first) {
            nrd_str_putc(out, ',');
        }
        first = false;
        nrd_json_put_cstr(out, f->name);
        nrd_str_putc(out, ':');
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            put_repeated(out, msg, f);
        } else {
            put_value(out, f, nrd_pb_member_of(msg, f), is_text_in_json(msg, f));
        }
    }
    nrd_str_putc(out, '}');
}

/* ---- reading ---- */

static nrd_error *from_json(ProtobufCMessage *msg, const nrd_json *json, int depth);

/* Field by its published name or by the lowerCamelCase form that JSON also allows. */
static const nrd_pb_field *field_by_json_name(const nrd_pb_type *type, const char *name)
{
    const nrd_pb_field *f = protobuf_c_message_descriptor_get_field_by_name(type, name);
    char buf[128];
    size_t n = 0;

    if (f) {
        return f;
    }
    for (const char *p = name; *p; p++) {
        if (n + 3 > sizeof buf) {
            return NULL;
        }
        if (isupper((unsigned char)*p)) {
            buf[n++] = '_';
        }
        buf[n++] = (char)tolower((unsigned char)*p);
    }
    buf[n] = '\0';
    return protobuf_c_message_descriptor_get_field_by_name(type, buf);
}

static nrd_error *json_mismatch(const nrd_pb_field *f, const nrd_json *v, const char *expected)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected %s, got %s", f->name, expected,
                      nrd_json_type_name(v));
}

/* Whole numbers, also written as strings (proto3 JSON writes 64-bit values so). */
static nrd_error *json_integer(const nrd_pb_field *f, const nrd_json *v, int64_t min, uint64_t max,
                               int64_t *out)
{
    bool negative = false;
    uint64_t u = 0;

    if (nrd_json_is(v, NRD_JSON_INT)) {
        negative = v->i < 0;
        u = negative ? 0 - (uint64_t)v->i : (uint64_t)v->i;
    } else if (nrd_json_is(v, NRD_JSON_UINT)) {
        u = v->u;
    } else if (nrd_json_is(v, NRD_JSON_REAL) && floor(v->real) == v->real &&
               fabs(v->real) < 9.0e18) {
        negative = v->real < 0;
        u = (uint64_t)fabs(v->real);
    } else if (nrd_json_is(v, NRD_JSON_STRING)) {
        long long s;
        unsigned long long us;
        if (nrd_parse_i64(v->str, &s)) {
            negative = s < 0;
            u = negative ? 0 - (uint64_t)s : (uint64_t)s;
        } else if (nrd_parse_u64(v->str, &us)) {
            u = us;
        } else {
            return json_mismatch(f, v, "an integer");
        }
    } else {
        return json_mismatch(f, v, "an integer");
    }
    if (negative ? u > 0 - (uint64_t)min : u > max) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: integer out of range", f->name);
    }
    *out = negative ? (int64_t)(0 - u) : (int64_t)u;
    return NULL;
}

static nrd_error *json_value(ProtobufCMessage *msg, const nrd_pb_field *f, const nrd_json *v, int depth)
{
    int64_t i;
    double d;

    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        NRD_TRY(json_integer(f, v, INT32_MIN, INT32_MAX, &i));
        return nrd_pb_put_scalar(msg, f, &(int32_t){(int32_t)i});
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        NRD_TRY(json_integer(f, v, 0, UINT32_MAX, &i));
        return nrd_pb_put_scalar(msg, f, &(uint32_t){(uint32_t)i});
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        NRD_TRY(json_integer(f, v, INT64_MIN, INT64_MAX, &i));
        return nrd_pb_put_scalar(msg, f, &(int64_t){i});
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        NRD_TRY(json_integer(f, v, 0, UINT64_MAX, &i));
        return nrd_pb_put_scalar(msg, f, &(uint64_t){(uint64_t)i});
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE:
        if (nrd_json_is_number(v)) {
            d = nrd_json_num(v, 0);
        } else if (!nrd_json_is(v, NRD_JSON_STRING) || !nrd_parse_f64(v->str, &d)) {
            return json_mismatch(f, v, "a number");
        }
        return f->type == PROTOBUF_C_TYPE_FLOAT ? nrd_pb_put_scalar(msg, f, &(float){(float)d})
                                                : nrd_pb_put_scalar(msg, f, &(double){d});
    case PROTOBUF_C_TYPE_BOOL: {
        bool b;
        if (nrd_json_is(v, NRD_JSON_BOOL)) {
            b = v->boolean;
        } else if (nrd_json_is(v, NRD_JSON_STRING) && strcmp(v->str, "true") == 0) {
            b = true; /* map keys are always strings */
        } else if (nrd_json_is(v, NRD_JSON_STRING) && strcmp(v->str, "false") == 0) {
            b = false;
        } else {
            return json_mismatch(f, v, "true or false");
        }
        return nrd_pb_put_scalar(msg, f, &(protobuf_c_boolean){b});
    }
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *e = NULL;
        if (nrd_json_is(v, NRD_JSON_STRING)) {
            e = protobuf_c_enum_descriptor_get_value_by_name(f->descriptor, v->str);
        } else if (nrd_json_is(v, NRD_JSON_INT) && v->i >= 0 && v->i < INT32_MAX) {
            e = protobuf_c_enum_descriptor_get_value(f->descriptor, (int)v->i);
        }
        if (!e) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: invalid value %s for the enumeration",
                              f->name, nrd_json_str(v, nrd_json_type_name(v)));
        }
        return nrd_pb_put_scalar(msg, f, &(uint32_t){(uint32_t)e->value});
    }
    case PROTOBUF_C_TYPE_STRING:
        if (!nrd_json_is(v, NRD_JSON_STRING)) {
            return json_mismatch(f, v, "a string");
        }
        return nrd_pb_put_string_value(msg, f, v->str, strlen(v->str));
    case PROTOBUF_C_TYPE_BYTES:
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: bytes in JSON are not supported", f->name);
    case PROTOBUF_C_TYPE_MESSAGE: {
        ProtobufCMessage *sub = NULL;
        NRD_TRY(nrd_pb_put_message(&sub, msg, f));
        return from_json(sub, v, depth + 1);
    }
    }
    return json_mismatch(f, v, "a known type");
}

static nrd_error *json_map(ProtobufCMessage *msg, const nrd_pb_field *f, const nrd_json *v, int depth)
{
    if (!nrd_json_is(v, NRD_JSON_OBJECT)) {
        return json_mismatch(f, v, "an object");
    }
    for (size_t i = 0; i < nrd_json_len(v); i++) {
        const nrd_json *item = nrd_json_at(v, i);
        ProtobufCMessage *entry = NULL;
        nrd_json key = {.type = NRD_JSON_STRING, .str = item->key, .n = item->key_len};
        NRD_TRY(nrd_pb_put_message(&entry, msg, f));
        NRD_TRY(json_value(entry, &entry->descriptor->fields[0], &key, depth));
        NRD_TRY(json_value(entry, &entry->descriptor->fields[1], item, depth));
    }
    return NULL;
}

static nrd_error *from_json(ProtobufCMessage *msg, const nrd_json *json, int depth)
{
    if (depth > NRD_PB_MAX_DEPTH) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "JSON is nested too deep");
    }
    if (!nrd_json_is(json, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected an object, got %s",
                          msg->descriptor->short_name, nrd_json_type_name(json));
    }
    for (size_t i = 0; i < nrd_json_len(json); i++) {
        const nrd_json *v = nrd_json_at(json, i);
        const nrd_pb_field *f = field_by_json_name(msg->descriptor, v->key);
        if (!f) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: Cannot find field.", v->key);
        }
        if (nrd_json_is(v, NRD_JSON_NULL)) {
            continue;
        }
        if (nrd_pb_is_oneof(f) && *(uint32_t *)nrd_pb_quantifier_of(msg, f) != 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "%s: another member of the same choice is already set", f->name);
        }
        if (nrd_pb_is_map(f)) {
            NRD_TRY(json_map(msg, f, v, depth));
        } else if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
                return json_mismatch(f, v, "an array");
            }
            for (size_t k = 0; k < nrd_json_len(v); k++) {
                NRD_TRY(json_value(msg, f, nrd_json_at(v, k), depth));
            }
        } else {
            if (f->type == PROTOBUF_C_TYPE_MESSAGE && !nrd_pb_is_oneof(f)) {
                ProtobufCMessage **old = nrd_pb_member_of(msg, f);
                protobuf_c_message_free_unpacked(*old, NULL); /* a repeated key replaces */
                *old = NULL;
            }
            NRD_TRY(json_value(msg, f, v, depth));
        }
    }
    return NULL;
}

nrd_error *nrd_pbjson_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *type,
                            const nrd_json *json)
{
    ProtobufCMessage *msg = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY(nrd_pb_new_message(&msg, type));
    NRD_TRY_GOTO(from_json(msg, json, 0), err, fail);
    NRD_TRY_GOTO(nrd_pb_fill_map_values(msg), err, fail);
    *out = msg;
    return NULL;

fail:
    protobuf_c_message_free_unpacked(msg, NULL);
    return err;
}
