/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/pbfield.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>

void *nrd_pb_member_of(const ProtobufCMessage *msg, const nrd_pb_field *f)
{
    return (char *)(uintptr_t)msg + f->offset;
}

void *nrd_pb_quantifier_of(const ProtobufCMessage *msg, const nrd_pb_field *f)
{
    return (char *)(uintptr_t)msg + f->quantifier_offset;
}

bool nrd_pb_is_oneof(const nrd_pb_field *f)
{
    return (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

bool nrd_pb_is_map(const nrd_pb_field *f)
{
    const nrd_pb_type *t = f->descriptor;
    return f->label == PROTOBUF_C_LABEL_REPEATED && f->type == PROTOBUF_C_TYPE_MESSAGE &&
           t->n_fields == 2 && nrd_str_has_suffix(t->short_name, "Entry") &&
           strcmp(t->fields[0].name, "key") == 0 && strcmp(t->fields[1].name, "value") == 0;
}

size_t nrd_pb_size_of_type(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    case PROTOBUF_C_TYPE_FLOAT:
        return sizeof(float);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return 8;
    case PROTOBUF_C_TYPE_DOUBLE:
        return sizeof(double);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    }
    return 0;
}

nrd_error *nrd_pb_new_message(ProtobufCMessage **out, const nrd_pb_type *type)
{
    *out = malloc(type->sizeof_message);
    if (!*out) {
        return nrd_error_no_memory();
    }
    type->message_init(*out);
    return NULL;
}

/* Appends one zeroed element to a repeated field and returns its place; NULL: no memory. */
static void *grow_repeated(ProtobufCMessage *msg, const nrd_pb_field *f)
{
    size_t *n = nrd_pb_quantifier_of(msg, f);
    void **array = nrd_pb_member_of(msg, f);
    size_t size = nrd_pb_size_of_type(f->type);
    void *place, *grown = realloc(*array, (*n + 1) * size);

    if (!grown) {
        return NULL;
    }
    *array = grown;
    place = (char *)*array + *n * size;
    memset(place, 0, size);
    (*n)++;
    return place;
}

/* Where a value of the field goes: a new element, or the member itself (marking a oneof). NULL: no memory. */
static void *place_for(ProtobufCMessage *msg, const nrd_pb_field *f)
{
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        return grow_repeated(msg, f);
    }
    if (nrd_pb_is_oneof(f)) {
        *(uint32_t *)nrd_pb_quantifier_of(msg, f) = f->id;
        memset(nrd_pb_member_of(msg, f), 0, nrd_pb_size_of_type(f->type));
    } else if (f->label == PROTOBUF_C_LABEL_OPTIONAL && f->type != PROTOBUF_C_TYPE_STRING &&
               f->type != PROTOBUF_C_TYPE_MESSAGE) {
        *(protobuf_c_boolean *)nrd_pb_quantifier_of(msg, f) = 1;
    }
    return nrd_pb_member_of(msg, f);
}

nrd_error *nrd_pb_put_scalar(ProtobufCMessage *msg, const nrd_pb_field *f, const void *value)
{
    void *place = place_for(msg, f);
    if (!place) {
        return nrd_error_no_memory();
    }
    memcpy(place, value, nrd_pb_size_of_type(f->type));
    return NULL;
}

static void replace_string(char **field, char *owned)
{
    if (*field && *field != (char *)(uintptr_t)&protobuf_c_empty_string[0]) {
        free(*field);
    }
    *field = owned;
}

nrd_error *nrd_pb_set_string(char **field, const char *value)
{
    char *copy = strdup(value);
    if (!copy) {
        return nrd_error_no_memory();
    }
    replace_string(field, copy);
    return NULL;
}

nrd_error *nrd_pb_put_string_value(ProtobufCMessage *msg, const nrd_pb_field *f, const char *text, size_t n)
{
    char *copy = strndup(text, n);
    char **place = copy ? place_for(msg, f) : NULL;
    if (!place) {
        free(copy);
        return nrd_error_no_memory();
    }
    replace_string(place, copy);
    return NULL;
}

nrd_error *nrd_pb_put_message(ProtobufCMessage **out, ProtobufCMessage *msg, const nrd_pb_field *f)
{
    ProtobufCMessage **place;

    NRD_TRY(nrd_pb_new_message(out, f->descriptor));
    place = place_for(msg, f);
    if (!place) {
        free(*out); /* has nothing yet */
        return nrd_error_no_memory();
    }
    *place = *out;
    return NULL;
}

nrd_error *nrd_pb_fill_map_values(ProtobufCMessage *msg)
{
    for (unsigned k = 0; k < msg->descriptor->n_fields; k++) {
        const nrd_pb_field *f = &msg->descriptor->fields[k];
        if (f->type != PROTOBUF_C_TYPE_MESSAGE) {
            continue;
        }
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(size_t *)nrd_pb_quantifier_of(msg, f);
            ProtobufCMessage **items = *(ProtobufCMessage ***)nrd_pb_member_of(msg, f);
            for (size_t i = 0; i < n; i++) {
                if (nrd_pb_is_map(f) && items[i]->descriptor->fields[1].type == PROTOBUF_C_TYPE_MESSAGE) {
                    const nrd_pb_field *v = &items[i]->descriptor->fields[1];
                    ProtobufCMessage **value = nrd_pb_member_of(items[i], v);
                    if (!*value) {
                        NRD_TRY(nrd_pb_new_message(value, v->descriptor));
                    }
                }
                NRD_TRY(nrd_pb_fill_map_values(items[i]));
            }
        } else if (!nrd_pb_is_oneof(f) || *(uint32_t *)nrd_pb_quantifier_of(msg, f) == f->id) {
            ProtobufCMessage *sub = *(ProtobufCMessage **)nrd_pb_member_of(msg, f);
            if (sub) {
                NRD_TRY(nrd_pb_fill_map_values(sub));
            }
        }
    }
    return NULL;
}

ProtobufCMessage *nrd_pb_copy(const ProtobufCMessage *msg)
{
    size_t n = protobuf_c_message_get_packed_size(msg);
    uint8_t *buf = malloc(n ? n : 1);
    if (!buf) {
        return NULL;
    }
    protobuf_c_message_pack(msg, buf);
    ProtobufCMessage *copy = protobuf_c_message_unpack(msg->descriptor, NULL, n, buf);
    free(buf);
    return copy;
}
