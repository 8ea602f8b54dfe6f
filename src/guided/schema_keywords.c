/* SPDX-License-Identifier: Apache-2.0
 * Which keywords a JSON schema may have, and values of which types. */
#include "guided/internal.h"

#include <string.h>

enum { /* what the value of a keyword may be */
    ANY = 0,
    BOOL = 1,
    NUMBER = 2,
    TEXT = 4,
    LIST = 8,
    OBJECT = 16,
    NAMES = 32, /* a list of strings */
};

static int kind_of(const nrd_json *v)
{
    return v->type == NRD_JSON_BOOL     ? BOOL
           : nrd_json_is_number(v)      ? NUMBER
           : v->type == NRD_JSON_STRING ? TEXT
           : v->type == NRD_JSON_ARRAY  ? LIST
           : v->type == NRD_JSON_OBJECT ? OBJECT
                                        : ANY; /* null is as if it were not there */
}

static bool is_names(const nrd_json *list)
{
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        if (list->child[i].type != NRD_JSON_STRING) {
            return false;
        }
    }
    return true;
}

/* Keywords that are kept, or that only describe. A limit of another type would bind nothing. */
void nrd_guided_check_keywords(builder *b, const nrd_json *s)
{
    static const struct {
        const char *name;
        int kinds;
        const char *what;
    } known[] = {
        {"type", TEXT | NAMES, "a type or a list of types"},
        {"properties", OBJECT, "an object"},
        {"required", NAMES, "a list of names"},
        {"additionalProperties", BOOL | OBJECT, "a schema"},
        {"items", BOOL | OBJECT, "one schema (prefixItems has one for each place)"},
        {"prefixItems", LIST, "a list of schemas"},
        {"enum", LIST, "a list"},
        {"pattern", TEXT, "a string"},
        {"format", TEXT, "a string"},
        {"minimum", NUMBER, "a number"},
        {"maximum", NUMBER, "a number"},
        {"exclusiveMinimum", NUMBER, "a number"},
        {"exclusiveMaximum", NUMBER, "a number"},
        {"$ref", TEXT, "a string"},
        {"nullable", BOOL, "true or false"},
        {"const", ANY, NULL}, {"minItems", ANY, NULL}, {"maxItems", ANY, NULL}, {"minLength", ANY, NULL},
        {"maxLength", ANY, NULL}, {"multipleOf", ANY, NULL}, {"anyOf", ANY, NULL}, {"oneOf", ANY, NULL},
        {"allOf", ANY, NULL}, {"$defs", ANY, NULL}, {"definitions", ANY, NULL}, {"title", ANY, NULL},
        {"description", ANY, NULL}, {"default", ANY, NULL}, {"examples", ANY, NULL}, {"example", ANY, NULL},
        {"$schema", ANY, NULL}, {"$id", ANY, NULL}, {"$comment", ANY, NULL}, {"$anchor", ANY, NULL},
        {"deprecated", ANY, NULL}, {"readOnly", ANY, NULL}, {"writeOnly", ANY, NULL}, {"discriminator", ANY, NULL},
        {"contentMediaType", ANY, NULL}, {"contentEncoding", ANY, NULL}, {"strict", ANY, NULL},
    };
    for (size_t i = 0; i < s->n; i++) {
        const nrd_json *v = &s->child[i];
        size_t k = 0, n = sizeof known / sizeof known[0];
        while (k < n && strcmp(known[k].name, v->key) != 0) {
            k++;
        }
        bool off = !strcmp(v->key, "uniqueItems") && !nrd_json_bool(v, true);
        if (k == n && !off) {
            nrd_guided_fail(b, NRD_ERR_UNSUPPORTED, "schema: '%.60s' is not supported", v->key);
            return;
        }
        const int kind = kind_of(v), may = k < n ? known[k].kinds : ANY;
        if (may != ANY && kind != ANY && !(may & kind) && !((may & NAMES) && kind == LIST && is_names(v))) {
            nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: '%s' must be %s", known[k].name, known[k].what);
            return;
        }
    }
}
