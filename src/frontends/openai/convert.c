/* SPDX-License-Identifier: Apache-2.0
 * Bodies of other APIs as those of /v1/chat/completions. */
#include "frontends/openai/internal.h"

#include <string.h>

void nrd_oai_put_key(nrd_str *out, const char *name)
{
    if (out->len > 0 && out->data[out->len - 1] != '{') {
        nrd_str_putc(out, ',');
    }
    nrd_json_put_cstr(out, name);
    nrd_str_putc(out, ':');
}

void nrd_oai_put_member(nrd_str *out, const char *name, const nrd_json *value)
{
    nrd_oai_put_key(out, name);
    nrd_json_put(out, value, -1);
}

static bool is_one_of(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0) {
        list++;
    }
    return *list != NULL;
}

void nrd_oai_put_rest(nrd_oai_request *r, nrd_str *out, const nrd_json *root, const char *const *special,
                      const char *const *unknown)
{
    for (size_t i = 0; i < root->n; i++) {
        const nrd_json *v = &root->child[i];
        if (is_one_of(unknown, v->key)) {
            nrd_oai_note_unknown(r, v);
        } else if (!is_one_of(special, v->key)) {
            nrd_oai_put_member(out, v->key, v);
        }
    }
}

nrd_error *nrd_oai_rename_field(nrd_error *err, const nrd_oai_form *form)
{
    const char *field = err ? nrd_error_field(err) : NULL;
    for (const char *(*r)[2] = form->renamed; field && r && (*r)[0]; r++) {
        const size_t n = strlen((*r)[0]);
        if (strcmp(field, (*r)[0]) == 0) {
            const char *text = nrd_error_message(err);
            text += strncmp(text, (*r)[0], n) == 0 && strncmp(text + n, ": ", 2) == 0 ? n + 2 : 0;
            nrd_error *named = nrd_oai_errorf(nrd_error_get_code(err), (*r)[1], "%s", text);
            if (nrd_error_reason(err)) {
                named = nrd_error_because(named, nrd_error_reason(err));
            }
            nrd_error_free(err);
            return named;
        }
    }
    return err;
}

nrd_error *nrd_oai_read_form(nrd_oai_request *r, nrd_claim *claim)
{
    const nrd_json_limits limits = {.max_depth = 64, .max_nodes = OAI_MAX_VALUES};
    nrd_json_doc *doc = NULL;
    nrd_str text = {0};
    nrd_error *err = NULL;

    if (r->form->convert) {
        nrd_str_putc(&text, '{');
        NRD_TRY_GOTO(r->form->convert(r, nrd_json_root(r->doc), &text), err, done);
        nrd_str_putc(&text, '}');
        NRD_TRY_GOTO(nrd_str_error(&text), err, done);
        NRD_TRY_GOTO(nrd_claim_json(claim, text.data, text.len, OAI_MAX_VALUES), err, done);
        NRD_TRY_GOTO(nrd_error_wrap(nrd_json_parse(&doc, text.data, text.len, &limits), "the request's body"), err,
                     done);
        nrd_json_doc_free(r->doc);
        r->doc = doc;
    }
    err = nrd_oai_rename_field(nrd_oai_read(r, nrd_json_root(r->doc)), r->form);
done:
    nrd_str_fini(&text);
    return err;
}
