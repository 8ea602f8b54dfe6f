/* SPDX-License-Identifier: Apache-2.0
 * config.pbtxt to protobuf messages. Nothing here knows the fields of a message: a lexer and a recursive reader follow the
 * descriptors that protobuf-c generates. */
#include "core/config/pbtext.h"

#include "base/number.h"
#include "base/str.h"
#include "core/config/pbfield.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- tokens ---- */

typedef enum { TOK_END, TOK_IDENT, TOK_NUMBER, TOK_STRING, TOK_SYMBOL } tok_kind;

typedef struct lexer {
    const char *p, *end;
    int line, col; /* of *p, from 1 */
    tok_kind kind;
    const char *tok; /* raw text of the current token */
    size_t tok_len;
    int tok_line, tok_col;
    const nrd_pb_type *root;
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

static nrd_error *read_bool(lexer *lx, const nrd_pb_field *f, protobuf_c_boolean *out)
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

static nrd_error *read_enum(lexer *lx, const nrd_pb_field *f, uint32_t *out)
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

/* ---- messages ---- */

static nrd_error *read_fields(lexer *lx, ProtobufCMessage *msg, char close, int depth);

static nrd_error *read_value(lexer *lx, ProtobufCMessage *msg, const nrd_pb_field *f, int depth)
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
        return nrd_pb_put_scalar(msg, f, &(int32_t){(int32_t)i});
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        NRD_TRY(read_magnitude(lx, UINT32_MAX, &u));
        return nrd_pb_put_scalar(msg, f, &(uint32_t){(uint32_t)u});
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        NRD_TRY(read_signed(lx, INT64_MAX, &i));
        return nrd_pb_put_scalar(msg, f, &(int64_t){i});
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        NRD_TRY(read_magnitude(lx, UINT64_MAX, &u));
        return nrd_pb_put_scalar(msg, f, &(uint64_t){u});
    case PROTOBUF_C_TYPE_FLOAT:
        NRD_TRY(read_double(lx, &d));
        return nrd_pb_put_scalar(msg, f, &(float){(float)d});
    case PROTOBUF_C_TYPE_DOUBLE:
        NRD_TRY(read_double(lx, &d));
        return nrd_pb_put_scalar(msg, f, &(double){d});
    case PROTOBUF_C_TYPE_BOOL: {
        protobuf_c_boolean b = 0;
        NRD_TRY(read_bool(lx, f, &b));
        return nrd_pb_put_scalar(msg, f, &(protobuf_c_boolean){b});
    }
    case PROTOBUF_C_TYPE_ENUM: {
        uint32_t e = 0;
        NRD_TRY(read_enum(lx, f, &e));
        return nrd_pb_put_scalar(msg, f, &(uint32_t){e});
    }
    case PROTOBUF_C_TYPE_STRING:
        err = read_string(lx, &s);
        err = err ? err : nrd_str_error(&s);
        err = err ? err : nrd_pb_put_string_value(msg, f, nrd_str_cstr(&s), s.len);
        nrd_str_fini(&s);
        return err;
    case PROTOBUF_C_TYPE_BYTES:
        err = read_string(lx, &s);
        if (!err) {
            const size_t n = s.len;
            uint8_t *data = (uint8_t *)nrd_str_steal(&s);
            err = data ? nrd_pb_put_scalar(msg, f, &(ProtobufCBinaryData){.len = n, .data = data}) : nrd_error_no_memory();
            if (err) {
                free(data);
            }
        }
        nrd_str_fini(&s);
        return err;
    case PROTOBUF_C_TYPE_MESSAGE: {
        char close = at_symbol(lx, '<') ? '>' : '}';
        ProtobufCMessage *sub = NULL;
        NRD_TRY(nrd_pb_put_message(&sub, msg, f));
        NRD_TRY(expect_symbol(lx, close == '>' ? '<' : '{'));
        return read_fields(lx, sub, close, depth + 1);
    }
    }
    return text_error(lx, "field \"%s\" has an unknown type", f->name);
}

static nrd_error *check_once(lexer *lx, const ProtobufCMessage *msg, const nrd_pb_field *f, bool *seen)
{
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        return NULL;
    }
    if (*seen) {
        return text_error(lx, "Non-repeated field \"%s\" is specified multiple times.", f->name);
    }
    *seen = true;
    if (nrd_pb_is_oneof(f)) {
        uint32_t set = *(uint32_t *)nrd_pb_quantifier_of(msg, f);
        const nrd_pb_field *other =
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
    const nrd_pb_field *f = protobuf_c_message_descriptor_get_field_by_name(msg->descriptor, name);
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

    if (depth > NRD_PB_MAX_DEPTH) {
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

nrd_error *nrd_pbtext_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *type,
                            const char *text, size_t len)
{
    lexer lx = {.p = text, .end = text + len, .line = 1, .col = 1, .root = type};
    ProtobufCMessage *msg = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    NRD_TRY(nrd_pb_new_message(&msg, type));
    NRD_TRY_GOTO(next_token(&lx), err, fail);
    NRD_TRY_GOTO(read_fields(&lx, msg, '\0', 0), err, fail);
    NRD_TRY_GOTO(nrd_pb_fill_map_values(msg), err, fail);
    *out = msg;
    return NULL;

fail:
    protobuf_c_message_free_unpacked(msg, NULL);
    return err;
}
