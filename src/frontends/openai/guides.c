/* SPDX-License-Identifier: Apache-2.0
 * Fields that bind the text: schemas, expressions, grammars. */
#include "frontends/openai/params.h"

#include <string.h>

nrd_error *nrd_oai_set_guide(nrd_oai_request *r, const char *type, const char *field)
{
    if (r->guide_type) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "the text is already bound by another field");
    }
    r->guide_type = type;
    r->guide_field = field;
    return NULL;
}

/* "a" | "b" as a grammar. */
static nrd_error *put_choices(nrd_str *out, const nrd_json *list, const char *field)
{
    if (!nrd_json_is(list, NRD_JSON_ARRAY) || list->n == 0) {
        return nrd_oai_bad(field, "must be a list of strings");
    }
    nrd_str_puts(out, "root ::= ");
    for (size_t i = 0; i < list->n; i++) {
        const nrd_json *s = &list->child[i];
        if (!nrd_json_is(s, NRD_JSON_STRING)) {
            return nrd_oai_bad(field, "must be a list of strings");
        }
        nrd_str_puts(out, i ? " | \"" : "\"");
        for (size_t k = 0; k < s->n; k++) {
            if ((unsigned char)s->str[k] < 0x20) {
                nrd_str_printf(out, "\\x%02x", (unsigned)s->str[k]);
            } else {
                nrd_str_printf(out, s->str[k] == '"' || s->str[k] == '\\' ? "\\%c" : "%c", s->str[k]);
            }
        }
        nrd_str_putc(out, '"');
    }
    return NULL;
}

static nrd_error *read_format(nrd_oai_request *r, const nrd_json *format)
{
    const char *type = nrd_json_get_str(format, "type", "");
    if (!strcmp(type, "text")) {
        return NULL;
    }
    if (!strcmp(type, "json_object")) {
        return nrd_oai_set_guide(r, "json", "response_format");
    }
    if (!strcmp(type, "json_schema")) {
        const nrd_json *schema = nrd_json_get(nrd_json_get(format, "json_schema"), "schema");
        if (!schema) {
            return nrd_oai_bad("response_format", "json_schema.schema is missing");
        }
        nrd_json_put(&r->guide, schema, -1);
        return nrd_oai_set_guide(r, "json_schema", "response_format");
    }
    if (!strcmp(type, "structural_tag")) {
        nrd_json_put(&r->guide, format, -1);
        return nrd_oai_set_guide(r, "structural_tag", "response_format");
    }
    return nrd_oai_bad("response_format", "type must be text, json_object, json_schema or structural_tag");
}

/* Text that is bound only behind a trigger may have reasoning before it. What is not right about the guide is
 * said where it is compiled. */
static bool begins_free(const nrd_oai_request *r)
{
    const nrd_json_limits limits = {.max_depth = 128};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, r->guide.data, r->guide.len, &limits);
    const nrd_json *root = err ? NULL : nrd_json_root(doc), *format = nrd_json_get(root, "format");
    const char *type = format ? nrd_json_get_str(format, "type", "") : "triggered_tags";
    const bool is_free = !strcmp(type, "any_text") || !strcmp(type, "dispatch") ||
                         (!strcmp(type, "triggered_tags") && !nrd_json_get_bool(format, "at_least_one", false));

    nrd_error_free(err);
    nrd_json_doc_free(doc);
    return is_free;
}

nrd_error *nrd_oai_read_guides(nrd_oai_request *r, const nrd_json *root)
{
    static const struct {
        const char *field, *inner, *type;
        enum { AS_TEXT, AS_JSON, AS_CHOICES } form;
    } rows[] = {
        {"guided_json", "structured_outputs.json", "json_schema", AS_JSON},
        {"guided_regex", "structured_outputs.regex", "regex", AS_TEXT},
        {"guided_grammar", "structured_outputs.grammar", "ebnf_grammar", AS_TEXT},
        {"guided_choice", "structured_outputs.choice", "ebnf_grammar", AS_CHOICES},
        {"structural_tag", "structured_outputs.structural_tag", "structural_tag", AS_JSON},
    };
    const nrd_json *format = nrd_json_get(root, "response_format");
    const nrd_json *nested = nrd_json_get(root, "structured_outputs");

    NRD_TRY(nrd_oai_check_object(nested, "structured_outputs"));
    if (nrd_oai_given(format)) {
        NRD_TRY(read_format(r, format));
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const nrd_json *v = nrd_json_get(root, rows[i].field);
        const char *field = v ? rows[i].field : rows[i].inner;
        v = v ? v : nrd_json_get(nested, rows[i].inner + sizeof "structured_outputs." - 1);
        if (!v || v->type == NRD_JSON_NULL) {
            continue;
        }
        NRD_TRY(nrd_oai_set_guide(r, rows[i].type, field));
        if (rows[i].form == AS_CHOICES) {
            NRD_TRY(put_choices(&r->guide, v, field));
        } else if (v->type == NRD_JSON_STRING) {
            nrd_str_append(&r->guide, v->str, v->n);
        } else if (rows[i].form == AS_JSON) {
            nrd_json_put(&r->guide, v, -1);
        } else {
            return nrd_oai_bad(field, "must be a string");
        }
    }
    if (r->guide.len > 0 && memchr(r->guide.data, '\0', r->guide.len)) {
        return nrd_oai_bad(r->guide_field, "must not hold the character NUL");
    }
    r->begins_bound = r->guide_type && !(!strcmp(r->guide_type, "structural_tag") && begins_free(r));
    return NULL;
}
