/* SPDX-License-Identifier: Apache-2.0
 * JSON documents of the core as protobuf messages: one walk over the descriptor of the message,
 * with a function for each kind of field. Called by admin.c for metadata, configurations,
 * statistics and the index. */
#include "frontends/grpc/json_message.h"

#include <math.h>
#include <string.h>

static nrd_error *misfit(const ProtobufCFieldDescriptor *f, const nrd_json *v)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "field '%s' cannot hold a JSON %s", f->name,
                      nrd_json_type_name(v));
}

/* Bytes of one element of a field. */
static size_t width_of(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default: /* 32-bit numbers, float, bool and enum */
        return 4;
    }
}

static nrd_error *put_signed(const ProtobufCFieldDescriptor *f, const nrd_json *v, void *at)
{
    long long i = 0;
    const bool ok =
        nrd_json_is(v, NRD_JSON_STRING) ? nrd_parse_i64(v->str, &i) : nrd_json_is(v, NRD_JSON_INT);
    i = nrd_json_is(v, NRD_JSON_INT) ? v->i : i;
    if (!ok || (width_of(f) == 4 && (i < INT32_MIN || i > INT32_MAX))) {
        return misfit(f, v);
    }
    if (width_of(f) == 4) {
        *(int32_t *)at = (int32_t)i;
    } else {
        *(int64_t *)at = i;
    }
    return NULL;
}

static nrd_error *put_unsigned(const ProtobufCFieldDescriptor *f, const nrd_json *v, void *at)
{
    unsigned long long u = 0;
    bool ok = false;
    if (nrd_json_is(v, NRD_JSON_STRING)) {
        ok = nrd_parse_u64(v->str, &u);
    } else if (nrd_json_is(v, NRD_JSON_UINT)) {
        u = v->u;
        ok = true;
    } else if (nrd_json_is(v, NRD_JSON_INT) && v->i >= 0) {
        u = (unsigned long long)v->i;
        ok = true;
    }
    if (!ok || (width_of(f) == 4 && u > UINT32_MAX)) {
        return misfit(f, v);
    }
    if (width_of(f) == 4) {
        *(uint32_t *)at = (uint32_t)u;
    } else {
        *(uint64_t *)at = u;
    }
    return NULL;
}

static nrd_error *put_enum(const ProtobufCFieldDescriptor *f, const nrd_json *v, void *at)
{
    const ProtobufCEnumDescriptor *e = f->descriptor;
    const ProtobufCEnumValue *found =
        nrd_json_is(v, NRD_JSON_STRING) ? protobuf_c_enum_descriptor_get_value_by_name(e, v->str)
        : nrd_json_is(v, NRD_JSON_INT) && v->i >= INT32_MIN && v->i <= INT32_MAX
            ? protobuf_c_enum_descriptor_get_value(e, (int)v->i)
            : NULL;
    if (!found) {
        return misfit(f, v);
    }
    *(int *)at = found->value;
    return NULL;
}

static nrd_error *put_value(nrd_arena *arena, const ProtobufCFieldDescriptor *f, const nrd_json *v,
                            void *at)
{
    char *text;
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return put_signed(f, v, at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return put_unsigned(f, v, at);
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE:
        if (!nrd_json_is_number(v)) {
            return misfit(f, v);
        }
        if (f->type == PROTOBUF_C_TYPE_FLOAT) {
            *(float *)at = (float)nrd_json_num(v, NAN);
        } else {
            *(double *)at = nrd_json_num(v, NAN);
        }
        return NULL;
    case PROTOBUF_C_TYPE_BOOL:
        if (nrd_json_is(v, NRD_JSON_STRING) &&
            (strcmp(v->str, "true") == 0 || strcmp(v->str, "false") == 0)) {
            *(protobuf_c_boolean *)at = v->str[0] == 't'; /* a key of a map */
            return NULL;
        }
        if (!nrd_json_is(v, NRD_JSON_BOOL)) {
            return misfit(f, v);
        }
        *(protobuf_c_boolean *)at = v->boolean;
        return NULL;
    case PROTOBUF_C_TYPE_ENUM:
        return put_enum(f, v, at);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
        if (!nrd_json_is(v, NRD_JSON_STRING)) {
            return misfit(f, v);
        }
        text = nrd_arena_strndup(arena, v->str, v->n);
        if (!text) {
            return nrd_error_no_memory();
        }
        if (f->type == PROTOBUF_C_TYPE_STRING) {
            *(char **)at = text;
        } else {
            ((ProtobufCBinaryData *)at)->data = (uint8_t *)text;
            ((ProtobufCBinaryData *)at)->len = v->n;
        }
        return NULL;
    case PROTOBUF_C_TYPE_MESSAGE:
        return nrd_grpc_message_from_json(arena, f->descriptor, v, (ProtobufCMessage **)at);
    }
    return misfit(f, v);
}

static ProtobufCMessage *new_message(nrd_arena *arena, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *m = nrd_arena_alloc(arena, type->sizeof_message);
    if (m) {
        protobuf_c_message_init(type, m);
    }
    return m;
}

/* One member of a map: an entry message with the fields 1 (key) and 2 (value). */
static nrd_error *put_entry(nrd_arena *arena, const ProtobufCFieldDescriptor *f,
                            const nrd_json *member, ProtobufCMessage **out)
{
    const ProtobufCMessageDescriptor *type = f->descriptor;
    const ProtobufCFieldDescriptor *key = protobuf_c_message_descriptor_get_field(type, 1);
    const ProtobufCFieldDescriptor *value = protobuf_c_message_descriptor_get_field(type, 2);
    nrd_json name = {.type = NRD_JSON_STRING, .str = member->key, .n = member->key_len};

    *out = new_message(arena, type);
    if (!*out) {
        return nrd_error_no_memory();
    }
    NRD_TRY(put_value(arena, key, &name, (char *)*out + key->offset));
    return put_value(arena, value, member, (char *)*out + value->offset);
}

static nrd_error *put_repeated(nrd_arena *arena, const ProtobufCFieldDescriptor *f,
                               const nrd_json *v, char *message)
{
    const bool is_map = f->type == PROTOBUF_C_TYPE_MESSAGE && nrd_json_is(v, NRD_JSON_OBJECT);
    const size_t width = width_of(f);
    size_t total;

    if (!is_map && !nrd_json_is(v, NRD_JSON_ARRAY)) {
        return misfit(f, v);
    }
    if (v->n == 0) {
        return NULL;
    }
    char *array = nrd_size_mul(v->n, width, &total) ? nrd_arena_alloc(arena, total) : NULL;
    if (!array) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < v->n; i++) {
        void *at = array + i * width;
        NRD_TRY(is_map ? put_entry(arena, f, &v->child[i], at)
                       : put_value(arena, f, &v->child[i], at));
    }
    *(size_t *)(void *)(message + f->quantifier_offset) = v->n;
    *(void **)(void *)(message + f->offset) = array;
    return NULL;
}

nrd_error *nrd_grpc_message_from_json(nrd_arena *arena, const ProtobufCMessageDescriptor *type,
                                      const nrd_json *object, ProtobufCMessage **out)
{
    if (!nrd_json_is(object, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "%s cannot be made of a JSON %s", type->name,
                          nrd_json_type_name(object));
    }
    *out = new_message(arena, type);
    if (!*out) {
        return nrd_error_no_memory();
    }
    char *message = (char *)*out;
    for (size_t i = 0; i < object->n; i++) {
        const nrd_json *v = &object->child[i];
        const ProtobufCFieldDescriptor *f =
            protobuf_c_message_descriptor_get_field_by_name(type, v->key);
        if (!f || nrd_json_is(v, NRD_JSON_NULL)) {
            continue;
        }
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            NRD_TRY(put_repeated(arena, f, v, message));
            continue;
        }
        NRD_TRY(put_value(arena, f, v, message + f->offset));
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            *(uint32_t *)(void *)(message + f->quantifier_offset) = f->id;
        }
    }
    return NULL;
}
