/* SPDX-License-Identifier: Apache-2.0
 * JSON Schema -> expressions over JSON text. Only texts that fit the schema come out; where a keyword
 * cannot be kept, it is refused by name. Members come in the order of `properties`; members that the
 * schema merely allows are not written. */
#include "base/names.h"
#include "guided/internal.h"

#include <math.h>
#include <string.h>

typedef struct json_rules {
    uint32_t value, object, array, string, number, integer, space;
} json_rules;

typedef struct seen_ref {
    const nrd_json *schema;
    uint32_t rule;
} seen_ref;

typedef struct schema_reader {
    builder *b;
    const nrd_json *root;
    json_rules j;
    seen_ref *refs;
    size_t n_refs, cap_refs;
} schema_reader;

static void refuse(schema_reader *r, const char *keyword, const char *why)
{
    nrd_guided_fail(r->b, NRD_ERR_UNSUPPORTED, "schema: '%s' %s", keyword, why);
}

static void add_word(builder *b, expr *seq, const char *s)
{
    nrd_guided_add(b, seq, nrd_guided_word(b, s));
}

static expr *word_seq(builder *b, const char *s)
{
    expr *e = nrd_guided_seq(b);
    add_word(b, e, s);
    return e;
}

/* -? (0 | [1-9][0-9]{0,n}) */
static expr *whole(builder *b, int32_t more)
{
    expr *seq = nrd_guided_seq(b), *alt = nrd_guided_alt(b), *some = nrd_guided_seq(b);
    nrd_guided_add(b, seq, nrd_guided_repeat(b, nrd_guided_word(b, "-"), 0, 1));
    nrd_guided_add(b, alt, nrd_guided_word(b, "0"));
    nrd_guided_add(b, some, nrd_guided_byte_range(b, '1', '9'));
    nrd_guided_add(b, some, nrd_guided_digits(b, 0, more));
    nrd_guided_add(b, alt, some);
    nrd_guided_add(b, seq, alt);
    return seq;
}

static expr *number(builder *b)
{
    expr *seq = whole(b, 15), *fraction = nrd_guided_seq(b), *exponent = nrd_guided_seq(b),
         *e = nrd_guided_alt(b), *sign = nrd_guided_alt(b);
    add_word(b, fraction, ".");
    nrd_guided_add(b, fraction, nrd_guided_digits(b, 1, 16));
    nrd_guided_add(b, seq, nrd_guided_repeat(b, fraction, 0, 1));
    nrd_guided_add(b, e, nrd_guided_word(b, "e"));
    nrd_guided_add(b, e, nrd_guided_word(b, "E"));
    nrd_guided_add(b, exponent, e);
    nrd_guided_add(b, sign, nrd_guided_word(b, "+"));
    nrd_guided_add(b, sign, nrd_guided_word(b, "-"));
    nrd_guided_add(b, exponent, nrd_guided_repeat(b, sign, 0, 1));
    nrd_guided_add(b, exponent, nrd_guided_digits(b, 1, 2));
    nrd_guided_add(b, seq, nrd_guided_repeat(b, exponent, 0, 1));
    return seq;
}

static expr *hex(builder *b)
{
    expr *e = nrd_guided_alt(b);
    nrd_guided_add(b, e, nrd_guided_byte_range(b, '0', '9'));
    nrd_guided_add(b, e, nrd_guided_byte_range(b, 'a', 'f'));
    nrd_guided_add(b, e, nrd_guided_byte_range(b, 'A', 'F'));
    return e;
}

/* One character of a string, as it is or escaped; no escape makes half of a surrogate pair. */
static expr *string_char(builder *b)
{
    cp_set s = {0};
    expr *alt = nrd_guided_alt(b), *escape = nrd_guided_seq(b), *kind = nrd_guided_alt(b),
         *u = nrd_guided_seq(b), *code = nrd_guided_alt(b);
    bool json = b->json;

    nrd_guided_cp_add(b, &s, 0x20, '"' - 1);
    nrd_guided_cp_add(b, &s, '"' + 1, '\\' - 1);
    nrd_guided_cp_add(b, &s, '\\' + 1, 0x10ffff);
    b->json = false;
    nrd_guided_add(b, alt, nrd_guided_chars(b, &s));
    b->json = json;
    add_word(b, escape, "\\");
    for (const char *c = "\"\\/bfnrt"; *c; c++) {
        nrd_guided_add(b, kind, nrd_guided_byte_range(b, (uint8_t)*c, (uint8_t)*c));
    }
    add_word(b, u, "u");
    expr *other = nrd_guided_seq(b), *first = nrd_guided_alt(b), *d = nrd_guided_seq(b),
         *dd = nrd_guided_alt(b);
    nrd_guided_add(b, first, nrd_guided_byte_range(b, '0', '9'));
    nrd_guided_add(b, first, nrd_guided_byte_range(b, 'a', 'c'));
    nrd_guided_add(b, first, nrd_guided_byte_range(b, 'A', 'C'));
    nrd_guided_add(b, first, nrd_guided_byte_range(b, 'e', 'f'));
    nrd_guided_add(b, first, nrd_guided_byte_range(b, 'E', 'F'));
    nrd_guided_add(b, other, first);
    nrd_guided_add(b, other, nrd_guided_repeat(b, hex(b), 3, 3));
    nrd_guided_add(b, dd, nrd_guided_word(b, "d"));
    nrd_guided_add(b, dd, nrd_guided_word(b, "D"));
    nrd_guided_add(b, d, dd);
    nrd_guided_add(b, d, nrd_guided_byte_range(b, '0', '7'));
    nrd_guided_add(b, d, nrd_guided_repeat(b, hex(b), 2, 2));
    nrd_guided_add(b, code, other);
    nrd_guided_add(b, code, d);
    nrd_guided_add(b, u, code);
    nrd_guided_add(b, kind, u);
    nrd_guided_add(b, escape, kind);
    nrd_guided_add(b, alt, escape);
    return alt;
}

static expr *quoted(builder *b, expr *inner)
{
    expr *seq = word_seq(b, "\"");
    nrd_guided_add(b, seq, inner);
    add_word(b, seq, "\"");
    return seq;
}

static expr *any_string(builder *b, int32_t min, int32_t max)
{
    return quoted(b, nrd_guided_repeat(b, string_char(b), min, max));
}

/* item (, item)* within brackets, min to max of them. */
static expr *listed(schema_reader *r, const char *open, const char *close, expr *first, expr *further,
                    int32_t min, int32_t max)
{
    builder *b = r->b;
    expr *seq = word_seq(b, open), *items = nrd_guided_seq(b), *more = nrd_guided_seq(b);
    nrd_guided_add(b, seq, nrd_guided_rule_ref(b, r->j.space));
    if (max != 0) {
        nrd_guided_add(b, items, first);
        add_word(b, more, ",");
        nrd_guided_add(b, more, nrd_guided_rule_ref(b, r->j.space));
        nrd_guided_add(b, more, further);
        nrd_guided_add(b, items,
                       nrd_guided_repeat(b, more, min > 1 ? min - 1 : 0, max < 0 ? -1 : max - 1));
        nrd_guided_add(b, items, nrd_guided_rule_ref(b, r->j.space));
        nrd_guided_add(b, seq, min > 0 ? items : nrd_guided_repeat(b, items, 0, 1));
    }
    add_word(b, seq, close);
    return seq;
}

static expr *any_member(schema_reader *r, uint32_t value)
{
    builder *b = r->b;
    expr *seq = nrd_guided_seq(b);
    nrd_guided_add(b, seq, nrd_guided_rule_ref(b, r->j.string));
    add_word(b, seq, ":");
    nrd_guided_add(b, seq, nrd_guided_rule_ref(b, r->j.space));
    nrd_guided_add(b, seq, nrd_guided_rule_ref(b, value));
    return seq;
}

static void define_json(schema_reader *r)
{
    builder *b = r->b;
    json_rules *j = &r->j;
    expr *line = nrd_guided_seq(b), *space = nrd_guided_alt(b), *value = nrd_guided_alt(b);

    j->value = nrd_guided_new_rule(b);
    j->object = nrd_guided_new_rule(b);
    j->array = nrd_guided_new_rule(b);
    j->string = nrd_guided_new_rule(b);
    j->number = nrd_guided_new_rule(b);
    j->integer = nrd_guided_new_rule(b);
    j->space = nrd_guided_new_rule(b);
    /* Little white space: a model must not be able to write nothing but blanks. */
    nrd_guided_add(b, space, nrd_guided_empty(b));
    nrd_guided_add(b, space, nrd_guided_word(b, " "));
    add_word(b, line, "\n");
    nrd_guided_add(b, line, nrd_guided_repeat(b, nrd_guided_word(b, " "), 0, 32));
    nrd_guided_add(b, space, line);
    nrd_guided_define(b, j->space, space);
    nrd_guided_define(b, j->string, any_string(b, 0, -1));
    nrd_guided_define(b, j->number, number(b));
    nrd_guided_define(b, j->integer, whole(b, 17));
    nrd_guided_define(b, j->object, listed(r, "{", "}", any_member(r, j->value), any_member(r, j->value), 0, -1));
    nrd_guided_define(b, j->array,
                      listed(r, "[", "]", nrd_guided_rule_ref(b, j->value), nrd_guided_rule_ref(b, j->value), 0, -1));
    nrd_guided_add(b, value, nrd_guided_rule_ref(b, j->object));
    nrd_guided_add(b, value, nrd_guided_rule_ref(b, j->array));
    nrd_guided_add(b, value, nrd_guided_rule_ref(b, j->string));
    nrd_guided_add(b, value, nrd_guided_rule_ref(b, j->number));
    nrd_guided_add(b, value, nrd_guided_word(b, "true"));
    nrd_guided_add(b, value, nrd_guided_word(b, "false"));
    nrd_guided_add(b, value, nrd_guided_word(b, "null"));
    nrd_guided_define(b, j->value, value);
}

/* ---- bounds of numbers ---- */

static bool read_bounds(const nrd_json *s, num_bound *lo, num_bound *hi)
{
    static const char *const names[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    bool any = false;
    *lo = (num_bound){-INFINITY, false};
    *hi = (num_bound){INFINITY, false};
    for (int i = 0; i < 4; i++) {
        const nrd_json *v = nrd_json_get(s, names[i]);
        num_bound *at = i < 2 ? lo : hi;
        if (!nrd_json_is_number(v)) {
            continue;
        }
        double x = nrd_json_num(v, 0);
        any = true;
        if (x == at->at) {
            at->open = at->open || i % 2 == 1;
        } else if (i < 2 ? x > at->at : x < at->at) {
            *at = (num_bound){x, i % 2 == 1};
        }
    }
    return any;
}

/* ---- schemas ---- */

static expr *read_schema(schema_reader *r, const nrd_json *s);

/* Takes the text. One that ends early for want of memory would be another guide. */
static expr *text_of(builder *b, nrd_str *text)
{
    nrd_error *err = nrd_str_error(text);
    expr *e = err ? NULL : nrd_guided_text(b, nrd_str_cstr(text), text->len);

    if (err) {
        nrd_guided_no_memory(b);
        nrd_error_free(err);
    }
    nrd_str_fini(text);
    return e;
}

static expr *literal(schema_reader *r, const nrd_json *v)
{
    nrd_str text = {0};
    nrd_json_put(&text, v, -1);
    return text_of(r->b, &text);
}

static int32_t count(schema_reader *r, const nrd_json *s, const char *name, int32_t fallback)
{
    const nrd_json *v = nrd_json_get(s, name);
    int64_t n = nrd_json_int(v, -1);
    if (!v) {
        return fallback;
    }
    if (n < 0 || n > G_MAX_REPEAT) {
        nrd_guided_fail(r->b, NRD_ERR_INVALID_ARG, "schema: '%s' must be from 0 to %d", name,
                        G_MAX_REPEAT);
        return fallback;
    }
    return (int32_t)n;
}

static expr *format(schema_reader *r, const char *name)
{
    static const struct {
        const char *name, *regex;
    } known[] = {
        {"date", "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
        {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
        {"date-time", "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:"
                      "[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
        {"duration", "P([0-9]{1,4}D|T[0-9]{1,4}[HMS])"},
        {"email", "[a-z0-9_]{1,32}(\\.[a-z0-9_]{1,16}){0,2}@[a-z0-9]{1,32}(\\.[a-z0-9]{2,16}){1,2}"},
        {"hostname", "[a-z0-9]{1,32}(\\.[a-z0-9]{1,32}){0,4}"},
        {"ipv4", "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}"},
        {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
        {"uri", "https?://[a-z0-9]{1,32}(\\.[a-z0-9]{1,32}){1,4}(:[1-9][0-9]{1,3})?(/[A-Za-z0-9._~-]{0,64}){0,8}"},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!strcmp(known[i].name, name)) {
            return quoted(r->b,
                          nrd_guided_regex(r->b, known[i].regex, strlen(known[i].regex), false));
        }
    }
    refuse(r, "format", "has a value that is not supported");
    return NULL;
}

static expr *read_string(schema_reader *r, const nrd_json *s)
{
    const nrd_json *pattern = nrd_json_get(s, "pattern");
    const char *fmt = nrd_json_get_str(s, "format", NULL);
    int32_t min = count(r, s, "minLength", 0), max = count(r, s, "maxLength", -1);
    bool sized = min > 0 || max >= 0;

    if (max >= 0 && max < min) {
        nrd_guided_fail(r->b, NRD_ERR_INVALID_ARG, "schema: maxLength is less than minLength");
    }
    if ((pattern && (fmt || sized)) || (fmt && sized)) {
        refuse(r, pattern ? "pattern" : "format", "beside other limits of a string is not supported");
        return NULL;
    }
    if (nrd_json_is(pattern, NRD_JSON_STRING)) {
        r->b->json = true;
        expr *e = nrd_guided_regex(r->b, pattern->str, pattern->n, true);
        r->b->json = false;
        return quoted(r->b, e);
    }
    if (fmt) {
        return format(r, fmt);
    }
    return sized ? any_string(r->b, min, max) : nrd_guided_rule_ref(r->b, r->j.string);
}

static uint32_t as_rule(schema_reader *r, const nrd_json *s)
{
    uint32_t made = nrd_guided_new_rule(r->b);
    nrd_guided_define(r->b, made, read_schema(r, s));
    return made;
}

static expr *read_array(schema_reader *r, const nrd_json *s)
{
    builder *b = r->b;
    const nrd_json *items = nrd_json_get(s, "items"), *prefix = nrd_json_get(s, "prefixItems");
    int32_t min = count(r, s, "minItems", 0), max = count(r, s, "maxItems", -1);
    uint32_t item = r->j.value;

    if (max >= 0 && max < min) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: maxItems is less than minItems");
    }
    if (nrd_json_is(items, NRD_JSON_OBJECT)) {
        item = as_rule(r, items);
    } else if (nrd_json_is(items, NRD_JSON_BOOL) && !items->boolean) {
        max = nrd_json_len(prefix) > 0 ? max : 0;
    }
    if (nrd_json_len(prefix) > 0) { /* exactly these, which is always allowed to be enough */
        int32_t n = (int32_t)prefix->n;
        if (min > n || (max >= 0 && max < n)) {
            refuse(r, "prefixItems", "with minItems or maxItems of another number is not supported");
            return NULL;
        }
        expr *seq = word_seq(b, "[");
        for (int32_t i = 0; i < n; i++) {
            nrd_guided_add(b, seq, nrd_guided_rule_ref(b, r->j.space));
            nrd_guided_add(b, seq, read_schema(r, &prefix->child[i]));
            add_word(b, seq, i + 1 < n ? "," : "");
        }
        nrd_guided_add(b, seq, nrd_guided_rule_ref(b, r->j.space));
        add_word(b, seq, "]");
        return seq;
    }
    return listed(r, "[", "]", nrd_guided_rule_ref(b, item), nrd_guided_rule_ref(b, item), min,
                  max);
}

/* The strings of a list or the names of an object's members. */
static nrd_names names_of(builder *b, const nrd_json *list)
{
    nrd_names out = {0};

    nrd_guided_spend(b, nrd_json_len(list));
    for (size_t i = 0; i < nrd_json_len(list) && !b->err; i++) {
        const nrd_json *v = &list->child[i];
        b->err = nrd_names_add(&out, v->key ? v->key : v->str, v->key ? v->key_len : v->n);
    }
    return out;
}

static expr *member(schema_reader *r, const nrd_json *p, uint32_t value, bool comma)
{
    builder *b = r->b;
    nrd_str key = {0};
    expr *seq = nrd_guided_seq(b);
    if (comma) {
        add_word(b, seq, ",");
        nrd_guided_add(b, seq, nrd_guided_rule_ref(b, r->j.space));
    }
    nrd_json_put_string(&key, p->key, p->key_len);
    nrd_guided_add(b, seq, text_of(b, &key));
    add_word(b, seq, ":");
    nrd_guided_add(b, seq, nrd_guided_rule_ref(b, r->j.space));
    nrd_guided_add(b, seq, nrd_guided_rule_ref(b, value));
    return seq;
}

/* rest[i][c]: members from the i-th on, c: one was written before. Each is a rule, so that optional
 * members do not multiply. */
static expr *members(schema_reader *r, const nrd_json *properties, nrd_names *required)
{
    builder *b = r->b;
    uint32_t rest[2], next[2], empty = nrd_guided_new_rule(b);
    nrd_guided_define(b, empty, nrd_guided_empty(b));
    next[0] = next[1] = empty;
    for (size_t i = properties->n; i-- > 0 && !b->err;) {
        const nrd_json *p = &properties->child[i];
        uint32_t value = as_rule(r, p);
        for (int c = 0; c < 2; c++) {
            expr *alt = nrd_guided_alt(b), *with = nrd_guided_seq(b);
            rest[c] = nrd_guided_new_rule(b);
            nrd_guided_add(b, with, member(r, p, value, c == 1));
            nrd_guided_add(b, with, nrd_guided_rule_ref(b, next[1]));
            nrd_guided_add(b, alt, with);
            if (!nrd_names_have(required, p->key, p->key_len)) {
                nrd_guided_add(b, alt, nrd_guided_rule_ref(b, next[c]));
            }
            nrd_guided_define(b, rest[c], alt);
        }
        next[0] = rest[0];
        next[1] = rest[1];
    }
    return nrd_guided_rule_ref(b, next[0]);
}

static expr *read_object(schema_reader *r, const nrd_json *s)
{
    builder *b = r->b;
    const nrd_json *properties = nrd_json_get(s, "properties"), *required = nrd_json_get(s, "required");
    const nrd_json *further = nrd_json_get(s, "additionalProperties");
    bool closed = nrd_json_is(further, NRD_JSON_BOOL) && !further->boolean;
    nrd_names needed = names_of(b, required), known = names_of(b, properties);
    expr *described = NULL;

    for (size_t i = 0; i < needed.n && !b->err; i++) {
        if (!nrd_names_have(&known, needed.at[i].s, needed.at[i].n)) {
            refuse(r, "required", "names a member that 'properties' does not describe");
        }
    }
    nrd_names_fini(&known);
    if (nrd_json_len(properties) > 0) {
        described = word_seq(b, "{");
        nrd_guided_add(b, described, nrd_guided_rule_ref(b, r->j.space));
        nrd_guided_add(b, described, members(r, properties, &needed));
        nrd_guided_add(b, described, nrd_guided_rule_ref(b, r->j.space));
        add_word(b, described, "}");
    }
    nrd_names_fini(&needed);
    if (nrd_json_len(properties) > 0 || b->err) {
        return described;
    }
    if (closed) {
        return nrd_guided_word(b, "{}");
    }
    if (nrd_json_is(further, NRD_JSON_OBJECT)) {
        uint32_t value = as_rule(r, further);
        return listed(r, "{", "}", any_member(r, value), any_member(r, value), 0, -1);
    }
    return nrd_guided_rule_ref(b, r->j.object);
}

static expr *read_number(schema_reader *r, const nrd_json *s, bool whole_only)
{
    builder *b = r->b;
    const nrd_json *multiple = nrd_json_get(s, "multipleOf");
    double m = nrd_json_num(multiple, 0);
    num_bound lo, hi;
    bool bounded = read_bounds(s, &lo, &hi);

    if (multiple && !(m > 0)) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: 'multipleOf' must be a number above 0");
        return NULL;
    }
    for (int n = 1; multiple && n <= 6; n++) {
        if (fabs(m * pow(10, n) - 1) < 1e-9) { /* 0.1, 0.01 …: so many digits behind the point */
            return whole_only ? nrd_guided_integer_between(b, lo, hi)
                              : nrd_guided_number_between(b, lo, hi, n);
        }
    }
    if (multiple && (m > 1000 || floor(m) != m)) {
        refuse(r, "multipleOf", "of other numbers than 1 to 1000 and 0.1, 0.01 and so on is not supported");
        return NULL;
    }
    if (multiple) {
        return nrd_guided_multiples(b, (int32_t)m, lo, hi);
    }
    if (whole_only) {
        return bounded ? nrd_guided_integer_between(b, lo, hi)
                       : nrd_guided_rule_ref(b, r->j.integer);
    }
    return bounded ? nrd_guided_number_between(b, lo, hi, 0) : nrd_guided_rule_ref(b, r->j.number);
}

static expr *read_type(schema_reader *r, const nrd_json *s, const char *type)
{
    builder *b = r->b;
    if (!strcmp(type, "object")) {
        return read_object(r, s);
    }
    if (!strcmp(type, "array")) {
        return read_array(r, s);
    }
    if (!strcmp(type, "string")) {
        return read_string(r, s);
    }
    if (!strcmp(type, "integer") || !strcmp(type, "number")) {
        return read_number(r, s, type[0] == 'i');
    }
    if (!strcmp(type, "null")) {
        return nrd_guided_word(b, "null");
    }
    if (!strcmp(type, "boolean")) {
        expr *alt = nrd_guided_alt(b);
        nrd_guided_add(b, alt, nrd_guided_word(b, "true"));
        nrd_guided_add(b, alt, nrd_guided_word(b, "false"));
        return alt;
    }
    nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: '%.40s' is no type", type);
    return NULL;
}

/* "#/$defs/name": the node there, or NULL. */
static const nrd_json *resolve(schema_reader *r, const char *ref)
{
    const nrd_json *at = r->root;
    if (ref[0] != '#') {
        return NULL;
    }
    for (const char *p = ref + 1; *p && at;) {
        char key[256];
        size_t n = 0;
        if (*p++ != '/') {
            return NULL;
        }
        while (*p && *p != '/' && n + 1 < sizeof key) {
            char c = *p++;
            if (c == '~' && (*p == '0' || *p == '1')) {
                c = *p++ == '0' ? '~' : '/';
            }
            key[n++] = c;
        }
        key[n] = '\0';
        long long index;
        nrd_guided_spend(r->b, 1 + nrd_json_len(at));
        at = nrd_json_is(at, NRD_JSON_ARRAY) && nrd_parse_i64(key, &index) && index >= 0
                 ? nrd_json_at(at, (size_t)index)
                 : nrd_json_get(at, key);
    }
    return at;
}

static expr *read_ref(schema_reader *r, const char *ref)
{
    builder *b = r->b;
    const nrd_json *target = resolve(r, ref);
    if (!target) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: $ref '%.80s' leads nowhere in this schema",
                        ref);
        return NULL;
    }
    for (size_t i = 0; i < r->n_refs; i++) {
        if (r->refs[i].schema == target) {
            return nrd_guided_rule_ref(b, r->refs[i].rule);
        }
    }
    if (r->n_refs == r->cap_refs) {
        const size_t cap = r->cap_refs ? 2 * r->cap_refs : 16;
        seen_ref *refs = realloc(r->refs, cap * sizeof *refs);
        if (!refs) {
            nrd_guided_no_memory(b);
            return NULL;
        }
        r->refs = refs;
        r->cap_refs = cap;
    }
    uint32_t made = nrd_guided_new_rule(b);
    r->refs[r->n_refs++] = (seen_ref){target, made};
    nrd_guided_define(b, made, read_schema(r, target));
    return nrd_guided_rule_ref(b, made);
}

static bool is_required(builder *b, const nrd_json *object, const nrd_json *member)
{
    const nrd_json *required = nrd_json_get(object, "required");

    nrd_guided_spend(b, nrd_json_len(required));
    for (size_t i = 0; i < nrd_json_len(required); i++) {
        const nrd_json *n = &required->child[i];
        if (nrd_json_is(n, NRD_JSON_STRING) && n->n == member->key_len &&
            memcmp(n->str, member->key, n->n) == 0) {
            return true;
        }
    }
    return false;
}

/* Alternatives of oneOf exclude each other if each has a type of its own, or they are objects that a
 * required member with different constants tells apart. */
static bool are_apart(schema_reader *r, const nrd_json *a, const nrd_json *b)
{
    const char *ref = nrd_json_get_str(a, "$ref", NULL);
    a = ref ? resolve(r, ref) : a;
    ref = nrd_json_get_str(b, "$ref", NULL);
    b = ref ? resolve(r, ref) : b;
    const char *x = nrd_json_get_str(a, "type", NULL), *y = nrd_json_get_str(b, "type", NULL);
    if (x && y && strcmp(x, y) != 0) {
        bool numbers = (!strcmp(x, "integer") && !strcmp(y, "number")) ||
                       (!strcmp(x, "number") && !strcmp(y, "integer"));
        return !numbers;
    }
    const nrd_json *c = nrd_json_get(a, "const"), *d = nrd_json_get(b, "const");
    if (nrd_json_is(c, NRD_JSON_STRING) && nrd_json_is(d, NRD_JSON_STRING)) {
        return c->n != d->n || memcmp(c->str, d->str, c->n) != 0;
    }
    const nrd_json *p = nrd_json_get(a, "properties");
    for (size_t i = 0; i < nrd_json_len(p) && !r->b->err; i++) {
        const nrd_json *others = nrd_json_get(b, "properties"), *q = nrd_json_get(others, p->child[i].key);
        nrd_guided_spend(r->b, nrd_json_len(others));
        c = nrd_json_get(&p->child[i], "const");
        d = nrd_json_get(q, "const");
        if (nrd_json_is(c, NRD_JSON_STRING) && nrd_json_is(d, NRD_JSON_STRING) &&
            (c->n != d->n || memcmp(c->str, d->str, c->n) != 0) &&
            is_required(r->b, a, &p->child[i]) && is_required(r->b, b, &p->child[i])) {
            return true;
        }
    }
    return false;
}

/* Keywords that limit a value; beside a combination they would have to be merged into it. */
static bool has_limits(const nrd_json *s, const char *except)
{
    static const char *const limits[] = {"type", "enum", "const", "properties", "required", "items",
                                         "prefixItems", "minItems", "maxItems", "minLength",
                                         "maxLength", "pattern", "format", "minimum", "maximum",
                                         "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
                                         "anyOf", "oneOf", "allOf", "$ref"};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (strcmp(limits[i], except) != 0 && nrd_json_get(s, limits[i])) {
            return true;
        }
    }
    return false;
}

static expr *read_combination(schema_reader *r, const nrd_json *s, const char *name)
{
    const nrd_json *list = nrd_json_get(s, name);
    expr *alt = nrd_guided_alt(r->b);
    if (!nrd_json_is(list, NRD_JSON_ARRAY) || list->n == 0) {
        nrd_guided_fail(r->b, NRD_ERR_INVALID_ARG, "schema: '%s' must be a list", name);
        return NULL;
    }
    if (has_limits(s, name)) {
        refuse(r, name, "beside other limits is not supported");
        return NULL;
    }
    if (!strcmp(name, "allOf") && list->n > 1) {
        refuse(r, name, "of several schemas is not supported");
        return NULL;
    }
    for (size_t i = 0; i < list->n && !r->b->err; i++) {
        for (size_t k = 0; k < i && !strcmp(name, "oneOf"); k++) {
            nrd_guided_spend(r->b, 1);
            if (!are_apart(r, &list->child[k], &list->child[i])) {
                refuse(r, name, "with alternatives that may both fit is not supported; use anyOf");
                return NULL;
            }
        }
        nrd_guided_add(r->b, alt, read_schema(r, &list->child[i]));
    }
    return alt;
}

static bool has_type(const nrd_json *v, const char *type)
{
    static const struct {
        const char *name;
        nrd_json_type type;
    } types[] = {{"null", NRD_JSON_NULL},     {"boolean", NRD_JSON_BOOL}, {"string", NRD_JSON_STRING},
                 {"object", NRD_JSON_OBJECT}, {"array", NRD_JSON_ARRAY}};
    if (nrd_json_is_number(v)) {
        double x = nrd_json_num(v, 0.5);
        return !strcmp(type, "number") || (!strcmp(type, "integer") && floor(x) == x);
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (!strcmp(types[i].name, type)) {
            return v->type == types[i].type;
        }
    }
    return false;
}

static int32_t n_characters(const nrd_json *text)
{
    int32_t n = 0;
    for (size_t i = 0; i < text->n; i++) {
        n += ((uint8_t)text->str[i] & 0xc0) != 0x80;
    }
    return n;
}

/* Does a value that 'enum' or 'const' names keep the limits that stand beside it? */
static bool fits(schema_reader *r, const nrd_json *s, const nrd_json *v)
{
    static const char *const unread[] = {"properties", "required", "items", "prefixItems", "minItems",
                                         "maxItems", "pattern", "format", "multipleOf"};
    const nrd_json *type = nrd_json_get(s, "type");
    num_bound lo, hi;
    bool ok = !type;

    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++) {
        if (nrd_json_get(s, unread[i])) {
            refuse(r, unread[i], "beside 'enum' or 'const' is not supported");
        }
    }
    for (size_t i = 0; nrd_json_is(type, NRD_JSON_ARRAY) && i < type->n; i++) {
        ok = ok || has_type(v, nrd_json_str(&type->child[i], ""));
    }
    ok = ok || (nrd_json_is(type, NRD_JSON_STRING) && has_type(v, type->str));
    if (nrd_json_is_number(v) && read_bounds(s, &lo, &hi)) {
        double x = nrd_json_num(v, 0);
        ok = ok && (lo.open ? x > lo.at : x >= lo.at) && (hi.open ? x < hi.at : x <= hi.at);
    }
    if (v->type == NRD_JSON_STRING) {
        int32_t n = n_characters(v), max = count(r, s, "maxLength", -1);
        ok = ok && n >= count(r, s, "minLength", 0) && (max < 0 || n <= max);
    }
    return ok;
}

static expr *read_plain(schema_reader *r, const nrd_json *s)
{
    builder *b = r->b;
    const nrd_json *list = nrd_json_get(s, "enum"), *type = nrd_json_get(s, "type");
    const nrd_json *constant = nrd_json_get(s, "const");
    static const char *const combinations[] = {"anyOf", "oneOf", "allOf"};

    for (int i = 0; i < 3; i++) {
        if (nrd_json_get(s, combinations[i])) {
            return read_combination(r, s, combinations[i]);
        }
    }
    if (nrd_json_get(s, "$ref")) {
        if (has_limits(s, "$ref")) {
            refuse(r, "$ref", "beside other limits is not supported");
            return NULL;
        }
        return read_ref(r, nrd_json_get_str(s, "$ref", ""));
    }
    if (constant) {
        if (!fits(r, s, constant)) {
            nrd_guided_fail(b, NRD_ERR_INVALID_ARG,
                            "schema: 'const' does not fit the limits beside it");
        }
        return literal(r, constant);
    }
    if (list) {
        expr *alt = nrd_guided_alt(b);
        if (!nrd_json_is(list, NRD_JSON_ARRAY) || list->n == 0) {
            nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: 'enum' must be a list of values");
            return NULL;
        }
        bool any = false;
        for (size_t i = 0; i < list->n && !b->err; i++) {
            if (fits(r, s, &list->child[i])) {
                nrd_guided_add(b, alt, literal(r, &list->child[i]));
                any = true;
            }
        }
        if (!any) {
            nrd_guided_fail(b, NRD_ERR_INVALID_ARG,
                            "schema: no value of 'enum' fits the limits beside it");
        }
        return alt;
    }
    if (nrd_json_is(type, NRD_JSON_STRING)) {
        return read_type(r, s, type->str);
    }
    if (nrd_json_is(type, NRD_JSON_ARRAY) && type->n > 0) {
        expr *alt = nrd_guided_alt(b);
        for (size_t i = 0; i < type->n; i++) {
            nrd_guided_add(b, alt, read_type(r, s, nrd_json_str(&type->child[i], "")));
        }
        return alt;
    }
    if (nrd_json_get(s, "properties") || nrd_json_get(s, "additionalProperties")) {
        return read_object(r, s);
    }
    if (nrd_json_get(s, "items") || nrd_json_get(s, "prefixItems")) {
        return read_array(r, s);
    }
    if (has_limits(s, "")) {
        nrd_guided_fail(b, NRD_ERR_UNSUPPORTED,
                        "schema: limits without a 'type' are not supported");
        return NULL;
    }
    return nrd_guided_rule_ref(b, r->j.value);
}

static expr *read_schema(schema_reader *r, const nrd_json *s)
{
    builder *b = r->b;
    expr *e = NULL;
    if (b->err) {
        return NULL;
    }
    if (++b->depth > G_MAX_NESTING) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: nested deeper than %d", G_MAX_NESTING);
    } else if (nrd_json_is(s, NRD_JSON_BOOL) && s->boolean) {
        e = nrd_guided_rule_ref(b, r->j.value);
    } else if (!nrd_json_is(s, NRD_JSON_OBJECT)) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: expected an object, got %s",
                        nrd_json_type_name(s));
    } else {
        nrd_guided_check_keywords(r->b, s);
        e = b->err ? NULL : read_plain(r, s);
        if (nrd_json_get_bool(s, "nullable", false) && e) {
            expr *alt = nrd_guided_alt(b);
            nrd_guided_add(b, alt, e);
            nrd_guided_add(b, alt, nrd_guided_word(b, "null"));
            e = alt;
        }
    }
    b->depth--;
    return e;
}

expr *nrd_guided_schema(builder *b, const nrd_json *schema)
{
    schema_reader r = {.b = b, .root = schema};
    define_json(&r);
    expr *e = read_schema(&r, schema);
    free(r.refs);
    return e;
}

expr *nrd_guided_json_object(builder *b)
{
    schema_reader r = {.b = b};
    define_json(&r);
    return nrd_guided_rule_ref(b, r.j.object);
}
