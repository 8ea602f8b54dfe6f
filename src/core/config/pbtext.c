/* SPDX-License-Identifier: Apache-2.0
 * config.pbtxt and JSON to protobuf messages and back. Nothing here knows the fields of a message:
 * a lexer and a recursive reader follow the descriptors that protobuf-c generates, and the JSON
 * printer and reader do the same. Called by config/load.c and by everything that prints a
 * configuration. */
#include "core/config/pbtext.h"

#include "base/error.h"
#include "base/json.h"
#include "base/number.h"
#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- fields by reflection ---- */

typedef ProtobufCFieldDescriptor pb_field;
typedef ProtobufCMessageDescriptor pb_type;

static void *member_of(const ProtobufCMessage *msg, const pb_field *f)
{
    return (char *)(uintptr_t)msg + f->offset;
}

static void *quantifier_of(const ProtobufCMessage *msg, const pb_field *f)
{
    return (char *)(uintptr_t)msg + f->quantifier_offset;
}

static bool is_oneof(const pb_field *f)
{
    return (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

/* protobuf-c turns map<K, V> into a repeated message "…Entry" with the fields key and value. */
static bool is_map(const pb_field *f)
{
    const pb_type *t = f->descriptor;
    return f->label == PROTOBUF_C_LABEL_REPEATED && f->type == PROTOBUF_C_TYPE_MESSAGE &&
           t->n_fields == 2 && nrd_str_has_suffix(t->short_name, "Entry") &&
           strcmp(t->fields[0].name, "key") == 0 && strcmp(t->fields[1].name, "value") == 0;
}

static size_t size_of_type(ProtobufCType type)
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

static nrd_error *new_message(ProtobufCMessage **out, const pb_type *type)
{
    *out = malloc(type->sizeof_message);
    if (!*out) {
        return nrd_error_no_memory();
    }
    type->message_init(*out);
    return NULL;
}

/* Appends one zeroed element to a repeated field and returns its place; NULL: no memory. */
static void *grow_repeated(ProtobufCMessage *msg, const pb_field *f)
{
    size_t *n = quantifier_of(msg, f);
    void **array = member_of(msg, f);
    size_t size = size_of_type(f->type);
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
static void *place_for(ProtobufCMessage *msg, const pb_field *f)
{
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        return grow_repeated(msg, f);
    }
    if (is_oneof(f)) {
        *(uint32_t *)quantifier_of(msg, f) = f->id;
        memset(member_of(msg, f), 0, size_of_type(f->type));
    } else if (f->label == PROTOBUF_C_LABEL_OPTIONAL && f->type != PROTOBUF_C_TYPE_STRING &&
               f->type != PROTOBUF_C_TYPE_MESSAGE) {
        *(protobuf_c_boolean *)quantifier_of(msg, f) = 1;
    }
    return member_of(msg, f);
}

/* A value that is no text and no message. */
static nrd_error *put_scalar(ProtobufCMessage *msg, const pb_field *f, const void *value)
{
    void *place = place_for(msg, f);
    if (!place) {
        return nrd_error_no_memory();
    }
    memcpy(place, value, size_of_type(f->type));
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

static nrd_error *put_string_value(ProtobufCMessage *msg, const pb_field *f, const char *text, size_t n)
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

/* A new message as a value of the field; msg owns it. */
static nrd_error *put_message(ProtobufCMessage **out, ProtobufCMessage *msg, const pb_field *f)
{
    ProtobufCMessage **place;

    NRD_TRY(new_message(out, f->descriptor));
    place = place_for(msg, f);
    if (!place) {
        free(*out); /* has nothing yet */
        return nrd_error_no_memory();
    }
    *place = *out;
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

/* ---- text: tokens ---- */

typedef enum { TOK_END, TOK_IDENT, TOK_NUMBER, TOK_STRING, TOK_SYMBOL } tok_kind;

typedef struct lexer {
    const char *p, *end;
    int line, col; /* of *p, from 1 */
    tok_kind kind;
    const char *tok; /* raw text of the current token */
    size_t tok_len;
    int tok_line, tok_col;
    const pb_type *root;
} lexer;

static nrd_error *text_error(const lexer *lx, const char *fmt, ...) NRD_PRINTF(2, 3) NRD_MUST_USE;
static nrd_error *text_error(const lexer *lx, const char *fmt, ...)
{
    char *why = NULL;
    va_list args;
    nrd_error *err;

    va_start(args, fmt);
    if (vasprintf(&why, fmt, args) < 0) {
        why = NULL;
    }
    va_end(args);
    err = why ? nrd_errorf(NRD_ERR_INVALID_ARG, "%d:%d: %s", lx->tok_line, lx->tok_col, why) : nrd_error_no_memory();
    free(why);
    return err;
}

static void step(lexer *lx)
{
    if (*lx->p == '\n') {
        lx->line++;
        lx->col = 1;
    } else if (*lx->p == '\t') {
        lx->col += 8 - (lx->col - 1) % 8; /* the text format counts tab stops of eight */
    } else {
        lx->col++;
    }
    lx->p++;
}

static bool is_ident_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static nrd_error *next_token(lexer *lx)
{
    while (lx->p < lx->end) {
        if (*lx->p == '#') {
            while (lx->p < lx->end && *lx->p != '\n') {
                step(lx);
            }
        } else if (isspace((unsigned char)*lx->p)) {
            step(lx);
        } else {
            break;
        }
    }
    lx->tok = lx->p;
    lx->tok_line = lx->line;
    lx->tok_col = lx->col;
    lx->tok_len = 0;
    if (lx->p >= lx->end) {
        lx->kind = TOK_END;
        return NULL;
    }
    char c = *lx->p;
    if (c == '"' || c == '\'') {
        step(lx);
        for (;;) {
            if (lx->p >= lx->end || *lx->p == '\n') {
                return text_error(lx, "String literals cannot cross line boundaries.");
            }
            if (*lx->p == c) {
                step(lx);
                break;
            }
            if (*lx->p == '\\' && lx->p + 1 < lx->end) {
                step(lx);
            }
            step(lx);
        }
        lx->kind = TOK_STRING;
    } else if (isdigit((unsigned char)c) ||
               (c == '.' && lx->p + 1 < lx->end && isdigit((unsigned char)lx->p[1]))) {
        while (lx->p < lx->end &&
               (is_ident_char(*lx->p) || *lx->p == '.' ||
                ((*lx->p == '+' || *lx->p == '-') && (lx->p[-1] == 'e' || lx->p[-1] == 'E')))) {
            step(lx);
        }
        lx->kind = TOK_NUMBER;
    } else if (is_ident_char(c)) {
        while (lx->p < lx->end && is_ident_char(*lx->p)) {
            step(lx);
        }
        lx->kind = TOK_IDENT;
    } else {
        step(lx);
        lx->kind = TOK_SYMBOL;
    }
    lx->tok_len = (size_t)(lx->p - lx->tok);
    return NULL;
}

static bool at_symbol(const lexer *lx, char c)
{
    return lx->kind == TOK_SYMBOL && lx->tok[0] == c;
}

static nrd_error *expect_symbol(lexer *lx, char c)
{
    if (!at_symbol(lx, c)) {
        return text_error(lx, "Expected \"%c\", found \"%.*s\".", c, (int)lx->tok_len, lx->tok);
    }
    return next_token(lx);
}

/* One string token, unescaped and appended. */
static nrd_error *append_string_token(lexer *lx, nrd_str *out)
{
    const char *p = lx->tok + 1, *end = lx->tok + lx->tok_len - 1;
    static const char from[] = "abfnrtv\\'\"?", to[] = "\a\b\f\n\r\t\v\\'\"?";

    while (p < end) {
        if (*p != '\\') {
            nrd_str_putc(out, *p++);
            continue;
        }
        p++;
        if (p >= end) {
            return text_error(lx, "Invalid escape sequence in string literal.");
        }
        const char *hit = *p ? strchr(from, *p) : NULL;
        if (hit) {
            nrd_str_putc(out, to[hit - from]);
            p++;
        } else if (*p == 'x' || *p == 'X') {
            unsigned v = 0;
            int n = 0;
            for (p++; p < end && n < 2 && isxdigit((unsigned char)*p); p++, n++) {
                unsigned char d = (unsigned char)*p;
                v = v * 16 + ((unsigned)(isdigit(d) ? d - '0' : tolower(d) - 'a' + 10));
            }
            if (n == 0) {
                return text_error(lx, "Expected hex digits for escape sequence.");
            }
            nrd_str_putc(out, (char)v);
        } else if (*p >= '0' && *p <= '7') {
            unsigned v = 0;
            for (int n = 0; p < end && n < 3 && *p >= '0' && *p <= '7'; p++, n++) {
                v = v * 8 + (unsigned)(*p - '0');
            }
            nrd_str_putc(out, (char)(v & 0xff));
        } else {
            return text_error(lx, "Invalid escape sequence in string literal.");
        }
    }
    return NULL;
}

static nrd_error *read_string(lexer *lx, nrd_str *out)
{
    if (lx->kind != TOK_STRING) {
        return text_error(lx, "Expected string, got: %.*s", (int)lx->tok_len, lx->tok);
    }
    while (lx->kind == TOK_STRING) { /* adjacent literals are one string */
        NRD_TRY(append_string_token(lx, out));
        NRD_TRY(next_token(lx));
    }
    return NULL;
}

/* Magnitude of an integer token: decimal, 0x, or leading-0 octal. */
static nrd_error *read_magnitude(lexer *lx, uint64_t max, uint64_t *out)
{
    char buf[64];
    char *stop = NULL;

    if (lx->kind != TOK_NUMBER || lx->tok_len >= sizeof buf ||
        (memchr(lx->tok, '.', lx->tok_len) != NULL)) {
        return text_error(lx, "Expected integer, got: %.*s", (int)lx->tok_len, lx->tok);
    }
    memcpy(buf, lx->tok, lx->tok_len);
    buf[lx->tok_len] = '\0';
    errno = 0;
    unsigned long long v = strtoull(buf, &stop, 0);
    if (*stop != '\0') {
        return text_error(lx, "Expected integer, got: %s", buf);
    }
    if (errno == ERANGE || v > max) {
        return text_error(lx, "Integer out of range (%s)", buf);
    }
    *out = v;
    return next_token(lx);
}

static nrd_error *read_signed(lexer *lx, uint64_t max, int64_t *out)
{
    bool negative = at_symbol(lx, '-');
    uint64_t v;

    if (negative) {
        NRD_TRY(next_token(lx));
        max++; /* two's complement reaches one further down */
    }
    NRD_TRY(read_magnitude(lx, max, &v));
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return NULL;
}

static nrd_error *read_double(lexer *lx, double *out)
{
    bool negative = at_symbol(lx, '-');
    char buf[128];
    char *stop = NULL;
    double v;

    if (negative) {
        NRD_TRY(next_token(lx));
    }
    if (lx->tok_len >= sizeof buf || (lx->kind != TOK_NUMBER && lx->kind != TOK_IDENT)) {
        return text_error(lx, "Expected double, got: %.*s", (int)lx->tok_len, lx->tok);
    }
    memcpy(buf, lx->tok, lx->tok_len);
    buf[lx->tok_len] = '\0';
    if (lx->kind == TOK_IDENT) {
        if (strcasecmp(buf, "inf") == 0 || strcasecmp(buf, "infinity") == 0) {
            v = INFINITY;
        } else if (strcasecmp(buf, "nan") == 0) {
            v = NAN;
        } else {
            return text_error(lx, "Expected double, got: %s", buf);
        }
    } else {
        v = nrd_number_read(buf, &stop);
        if (*stop == 'f' || *stop == 'F') {
            stop++;
        }
        if (*stop != '\0') {
            return text_error(lx, "Expected double, got: %s", buf);
        }
    }
    *out = negative ? -v : v;
    return next_token(lx);
}

static nrd_error *read_bool(lexer *lx, const pb_field *f, protobuf_c_boolean *out)
{
    char buf[8] = "";

    if (lx->tok_len < sizeof buf) {
        memcpy(buf, lx->tok, lx->tok_len);
        buf[lx->tok_len] = '\0';
    }
    if (strcmp(buf, "true") == 0 || strcmp(buf, "True") == 0 || strcmp(buf, "t") == 0 ||
        strcmp(buf, "1") == 0) {
        *out = 1;
    } else if (strcmp(buf, "false") == 0 || strcmp(buf, "False") == 0 || strcmp(buf, "f") == 0 ||
               strcmp(buf, "0") == 0) {
        *out = 0;
    } else {
        return text_error(lx, "Invalid value for boolean field \"%s\". Value: \"%.*s\".", f->name,
                          (int)lx->tok_len, lx->tok);
    }
    return next_token(lx);
}

static nrd_error *read_enum(lexer *lx, const pb_field *f, uint32_t *out)
{
    const ProtobufCEnumDescriptor *e = f->descriptor;
    char buf[128];

    if (lx->kind == TOK_IDENT && lx->tok_len < sizeof buf) {
        memcpy(buf, lx->tok, lx->tok_len);
        buf[lx->tok_len] = '\0';
        const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value_by_name(e, buf);
        if (!v) {
            return text_error(lx, "Unknown enumeration value of \"%s\" for field \"%s\".", buf,
                              f->name);
        }
        *out = (uint32_t)v->value;
        return next_token(lx);
    }
    if (lx->kind == TOK_NUMBER || at_symbol(lx, '-')) {
        int64_t n;
        NRD_TRY(read_signed(lx, INT32_MAX, &n));
        if (!protobuf_c_enum_descriptor_get_value(e, (int)n)) {
            return text_error(lx, "Unknown enumeration value of \"%d\" for field \"%s\".", (int)n,
                              f->name);
        }
        *out = (uint32_t)n;
        return NULL;
    }
    return text_error(lx, "Expected integer or identifier, got: %.*s", (int)lx->tok_len, lx->tok);
}

/* ---- text: messages ---- */

static nrd_error *read_fields(lexer *lx, ProtobufCMessage *msg, char close, int depth);

static nrd_error *read_value(lexer *lx, ProtobufCMessage *msg, const pb_field *f, int depth)
{
    nrd_error *err = NULL;
    nrd_str s = {0};
    double d;
    int64_t i;
    uint64_t u;

    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        NRD_TRY(read_signed(lx, INT32_MAX, &i));
        return put_scalar(msg, f, &(int32_t){(int32_t)i});
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        NRD_TRY(read_magnitude(lx, UINT32_MAX, &u));
        return put_scalar(msg, f, &(uint32_t){(uint32_t)u});
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        NRD_TRY(read_signed(lx, INT64_MAX, &i));
        return put_scalar(msg, f, &(int64_t){i});
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        NRD_TRY(read_magnitude(lx, UINT64_MAX, &u));
        return put_scalar(msg, f, &(uint64_t){u});
    case PROTOBUF_C_TYPE_FLOAT:
        NRD_TRY(read_double(lx, &d));
        return put_scalar(msg, f, &(float){(float)d});
    case PROTOBUF_C_TYPE_DOUBLE:
        NRD_TRY(read_double(lx, &d));
        return put_scalar(msg, f, &(double){d});
    case PROTOBUF_C_TYPE_BOOL: {
        protobuf_c_boolean b = 0;
        NRD_TRY(read_bool(lx, f, &b));
        return put_scalar(msg, f, &(protobuf_c_boolean){b});
    }
    case PROTOBUF_C_TYPE_ENUM: {
        uint32_t e = 0;
        NRD_TRY(read_enum(lx, f, &e));
        return put_scalar(msg, f, &(uint32_t){e});
    }
    case PROTOBUF_C_TYPE_STRING:
        err = read_string(lx, &s);
        err = err ? err : nrd_str_error(&s);
        err = err ? err : put_string_value(msg, f, nrd_str_cstr(&s), s.len);
        nrd_str_fini(&s);
        return err;
    case PROTOBUF_C_TYPE_BYTES:
        err = read_string(lx, &s);
        if (!err) {
            const size_t n = s.len;
            uint8_t *data = (uint8_t *)nrd_str_steal(&s);
            err = data ? put_scalar(msg, f, &(ProtobufCBinaryData){.len = n, .data = data}) : nrd_error_no_memory();
            if (err) {
                free(data);
            }
        }
        nrd_str_fini(&s);
        return err;
    case PROTOBUF_C_TYPE_MESSAGE: {
        char close = at_symbol(lx, '<') ? '>' : '}';
        ProtobufCMessage *sub = NULL;
        NRD_TRY(put_message(&sub, msg, f));
        NRD_TRY(expect_symbol(lx, close == '>' ? '<' : '{'));
        return read_fields(lx, sub, close, depth + 1);
    }
    }
    return text_error(lx, "field \"%s\" has an unknown type", f->name);
}

static nrd_error *check_once(lexer *lx, const ProtobufCMessage *msg, const pb_field *f, bool *seen)
{
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        return NULL;
    }
    if (*seen) {
        return text_error(lx, "Non-repeated field \"%s\" is specified multiple times.", f->name);
    }
    *seen = true;
    if (is_oneof(f)) {
        uint32_t set = *(uint32_t *)quantifier_of(msg, f);
        const pb_field *other =
            set ? protobuf_c_message_descriptor_get_field(msg->descriptor, set) : NULL;
        if (other) {
            return text_error(
                lx, "Field \"%s\" is specified along with field \"%s\", another member of oneof.",
                f->name, other->name);
        }
    }
    return NULL;
}

static nrd_error *read_field(lexer *lx, ProtobufCMessage *msg, bool *seen, int depth)
{
    char name[128];

    if (lx->kind != TOK_IDENT || lx->tok_len >= sizeof name) {
        return text_error(lx, "Expected identifier, got: %.*s", (int)lx->tok_len, lx->tok);
    }
    memcpy(name, lx->tok, lx->tok_len);
    name[lx->tok_len] = '\0';
    NRD_TRY(next_token(lx));
    const pb_field *f = protobuf_c_message_descriptor_get_field_by_name(msg->descriptor, name);
    if (!f) {
        return text_error(lx, "Message type \"%s\" has no field named \"%s\".",
                          msg->descriptor->name, name);
    }
    NRD_TRY(check_once(lx, msg, f, &seen[f - msg->descriptor->fields]));
    if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        if (at_symbol(lx, ':')) { /* optional before a message */
            NRD_TRY(next_token(lx));
        }
    } else {
        NRD_TRY(expect_symbol(lx, ':'));
    }
    if (at_symbol(lx, '[') && f->label == PROTOBUF_C_LABEL_REPEATED) {
        NRD_TRY(next_token(lx));
        if (at_symbol(lx, ']')) {
            NRD_TRY(next_token(lx));
        } else {
            for (;;) {
                NRD_TRY(read_value(lx, msg, f, depth));
                if (at_symbol(lx, ']')) {
                    NRD_TRY(next_token(lx));
                    break;
                }
                NRD_TRY(expect_symbol(lx, ','));
            }
        }
    } else {
        NRD_TRY(read_value(lx, msg, f, depth));
    }
    if (at_symbol(lx, ',') || at_symbol(lx, ';')) {
        NRD_TRY(next_token(lx));
    }
    return NULL;
}

static nrd_error *read_fields(lexer *lx, ProtobufCMessage *msg, char close, int depth)
{
    nrd_error *err = NULL;
    bool *seen = NULL;

    if (depth > NRD_PBTEXT_MAX_DEPTH) {
        return text_error(lx, "Message is too deep, the parser exceeded the configured recursion "
                              "limit.");
    }
    seen = calloc(msg->descriptor->n_fields + 1u, sizeof *seen);
    if (!seen) {
        return nrd_error_no_memory();
    }
    while (!err) {
        if (close ? at_symbol(lx, close) : lx->kind == TOK_END) {
            if (close) {
                err = next_token(lx);
            }
            break;
        }
        err = read_field(lx, msg, seen, depth);
    }
    free(seen);
    return err;
}

/* An absent map value message or string must still be a valid object. */
static nrd_error *fill_map_values(ProtobufCMessage *msg)
{
    for (unsigned k = 0; k < msg->descriptor->n_fields; k++) {
        const pb_field *f = &msg->descriptor->fields[k];
        if (f->type != PROTOBUF_C_TYPE_MESSAGE) {
            continue;
        }
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(size_t *)quantifier_of(msg, f);
            ProtobufCMessage **items = *(ProtobufCMessage ***)member_of(msg, f);
            for (size_t i = 0; i < n; i++) {
                if (is_map(f) && items[i]->descriptor->fields[1].type == PROTOBUF_C_TYPE_MESSAGE) {
                    const pb_field *v = &items[i]->descriptor->fields[1];
                    ProtobufCMessage **value = member_of(items[i], v);
                    if (!*value) {
                        NRD_TRY(new_message(value, v->descriptor));
                    }
                }
                NRD_TRY(fill_map_values(items[i]));
            }
        } else if (!is_oneof(f) || *(uint32_t *)quantifier_of(msg, f) == f->id) {
            ProtobufCMessage *sub = *(ProtobufCMessage **)member_of(msg, f);
            if (sub) {
                NRD_TRY(fill_map_values(sub));
            }
        }
    }
    return NULL;
}

nrd_error *nrd_pbtext_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *type,
                            const char *text, size_t len)
{
    lexer lx = {.p = text, .end = text + len, .line = 1, .col = 1, .root = type};
    ProtobufCMessage *msg = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY(new_message(&msg, type));
    NRD_TRY_GOTO(next_token(&lx), err, fail);
    NRD_TRY_GOTO(read_fields(&lx, msg, '\0', 0), err, fail);
    NRD_TRY_GOTO(fill_map_values(msg), err, fail);
    *out = msg;
    return NULL;

fail:
    protobuf_c_message_free_unpacked(msg, NULL);
    return err;
}

/* ---- JSON: printing ---- */

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
static bool is_text_in_json(const ProtobufCMessage *msg, const pb_field *f)
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

static void put_value(nrd_str *out, const pb_field *f, const void *v, bool as_key)
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

static void put_repeated(nrd_str *out, const ProtobufCMessage *msg, const pb_field *f)
{
    size_t n = *(size_t *)quantifier_of(msg, f);
    const char *items = *(char **)member_of(msg, f);
    size_t size = size_of_type(f->type);

    if (is_map(f)) {
        nrd_str_putc(out, '{');
        for (size_t i = 0; i < n; i++) {
            const ProtobufCMessage *entry = ((ProtobufCMessage *const *)(const void *)items)[i];
            const pb_field *k = &entry->descriptor->fields[0], *v = &entry->descriptor->fields[1];
            if (i) {
                nrd_str_putc(out, ',');
            }
            put_value(out, k, member_of(entry, k), true);
            nrd_str_putc(out, ':');
            put_value(out, v, member_of(entry, v), false);
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

static bool is_printed(const ProtobufCMessage *msg, const pb_field *f)
{
    if (is_oneof(f)) {
        return *(uint32_t *)quantifier_of(msg, f) == f->id;
    }
    if (f->label != PROTOBUF_C_LABEL_REPEATED && f->type == PROTOBUF_C_TYPE_MESSAGE) {
        return *(ProtobufCMessage **)member_of(msg, f) != NULL;
    }
    return true;
}

/* Fields in the order of their declaration, as published answers have them: the descriptor sorts
 * by number, but the members of the struct lie in order (choices behind the rest). */
static void declaration_order(const pb_type *type, const pb_field **order)
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
    const pb_field *order[MAX_FIELDS];
    bool first = true;

    NRD_ASSERT(msg->descriptor->n_fields <= MAX_FIELDS, "messages of our schemas are narrow");
    declaration_order(msg->descriptor, order);
    nrd_str_putc(out, '{');
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++) {
        const pb_field *f = order[i];
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
            put_value(out, f, member_of(msg, f), is_text_in_json(msg, f));
        }
    }
    nrd_str_putc(out, '}');
}

/* ---- JSON: reading ---- */

static nrd_error *from_json(ProtobufCMessage *msg, const nrd_json *json, int depth);

/* Field by its published name or by the lowerCamelCase form that JSON also allows. */
static const pb_field *field_by_json_name(const pb_type *type, const char *name)
{
    const pb_field *f = protobuf_c_message_descriptor_get_field_by_name(type, name);
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

static nrd_error *json_mismatch(const pb_field *f, const nrd_json *v, const char *expected)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected %s, got %s", f->name, expected,
                      nrd_json_type_name(v));
}

/* Whole numbers, also written as strings (proto3 JSON writes 64-bit values so). */
static nrd_error *json_integer(const pb_field *f, const nrd_json *v, int64_t min, uint64_t max,
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

static nrd_error *json_value(ProtobufCMessage *msg, const pb_field *f, const nrd_json *v, int depth)
{
    int64_t i;
    double d;

    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        NRD_TRY(json_integer(f, v, INT32_MIN, INT32_MAX, &i));
        return put_scalar(msg, f, &(int32_t){(int32_t)i});
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        NRD_TRY(json_integer(f, v, 0, UINT32_MAX, &i));
        return put_scalar(msg, f, &(uint32_t){(uint32_t)i});
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        NRD_TRY(json_integer(f, v, INT64_MIN, INT64_MAX, &i));
        return put_scalar(msg, f, &(int64_t){i});
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        NRD_TRY(json_integer(f, v, 0, UINT64_MAX, &i));
        return put_scalar(msg, f, &(uint64_t){(uint64_t)i});
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE:
        if (nrd_json_is_number(v)) {
            d = nrd_json_num(v, 0);
        } else if (!nrd_json_is(v, NRD_JSON_STRING) || !nrd_parse_f64(v->str, &d)) {
            return json_mismatch(f, v, "a number");
        }
        return f->type == PROTOBUF_C_TYPE_FLOAT ? put_scalar(msg, f, &(float){(float)d})
                                                : put_scalar(msg, f, &(double){d});
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
        return put_scalar(msg, f, &(protobuf_c_boolean){b});
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
        return put_scalar(msg, f, &(uint32_t){(uint32_t)e->value});
    }
    case PROTOBUF_C_TYPE_STRING:
        if (!nrd_json_is(v, NRD_JSON_STRING)) {
            return json_mismatch(f, v, "a string");
        }
        return put_string_value(msg, f, v->str, strlen(v->str));
    case PROTOBUF_C_TYPE_BYTES:
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: bytes in JSON are not supported", f->name);
    case PROTOBUF_C_TYPE_MESSAGE: {
        ProtobufCMessage *sub = NULL;
        NRD_TRY(put_message(&sub, msg, f));
        return from_json(sub, v, depth + 1);
    }
    }
    return json_mismatch(f, v, "a known type");
}

static nrd_error *json_map(ProtobufCMessage *msg, const pb_field *f, const nrd_json *v, int depth)
{
    if (!nrd_json_is(v, NRD_JSON_OBJECT)) {
        return json_mismatch(f, v, "an object");
    }
    for (size_t i = 0; i < nrd_json_len(v); i++) {
        const nrd_json *item = nrd_json_at(v, i);
        ProtobufCMessage *entry = NULL;
        nrd_json key = {.type = NRD_JSON_STRING, .str = item->key, .n = item->key_len};
        NRD_TRY(put_message(&entry, msg, f));
        NRD_TRY(json_value(entry, &entry->descriptor->fields[0], &key, depth));
        NRD_TRY(json_value(entry, &entry->descriptor->fields[1], item, depth));
    }
    return NULL;
}

static nrd_error *from_json(ProtobufCMessage *msg, const nrd_json *json, int depth)
{
    if (depth > NRD_PBTEXT_MAX_DEPTH) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "JSON is nested too deep");
    }
    if (!nrd_json_is(json, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected an object, got %s",
                          msg->descriptor->short_name, nrd_json_type_name(json));
    }
    for (size_t i = 0; i < nrd_json_len(json); i++) {
        const nrd_json *v = nrd_json_at(json, i);
        const pb_field *f = field_by_json_name(msg->descriptor, v->key);
        if (!f) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: Cannot find field.", v->key);
        }
        if (nrd_json_is(v, NRD_JSON_NULL)) {
            continue;
        }
        if (is_oneof(f) && *(uint32_t *)quantifier_of(msg, f) != 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "%s: another member of the same choice is already set", f->name);
        }
        if (is_map(f)) {
            NRD_TRY(json_map(msg, f, v, depth));
        } else if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
                return json_mismatch(f, v, "an array");
            }
            for (size_t k = 0; k < nrd_json_len(v); k++) {
                NRD_TRY(json_value(msg, f, nrd_json_at(v, k), depth));
            }
        } else {
            if (f->type == PROTOBUF_C_TYPE_MESSAGE && !is_oneof(f)) {
                ProtobufCMessage **old = member_of(msg, f);
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
    NRD_TRY(new_message(&msg, type));
    NRD_TRY_GOTO(from_json(msg, json, 0), err, fail);
    NRD_TRY_GOTO(fill_map_values(msg), err, fail);
    *out = msg;
    return NULL;

fail:
    protobuf_c_message_free_unpacked(msg, NULL);
    return err;
}
