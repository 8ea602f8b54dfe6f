/* SPDX-License-Identifier: Apache-2.0
 * What became new and certain in an answer, for every form of streams. */
#include "frontends/openai/internal.h"

#include <stdio.h>
#include <string.h>

/* Marks have told everything apart already; what a guide bound to a call stands where the content would. */
static void split_harmony(const nrd_oai_choice *c, size_t n, const nrd_oai_parse_options *o, nrd_str *calls,
                          nrd_oai_parsed *p)
{
    const nrd_str *reasoning = nrd_harmony_reasoning(c->harmony), *name, *arguments;
    const int n_calls = (int)nrd_harmony_n_calls(c->harmony);

    if (c->r->begins_bound) {
        nrd_oai_parse(nrd_str_cstr(&c->text), n, o, calls, p);
    } else {
        *p = (nrd_oai_parsed){.content = nrd_str_cstr(&c->text), .n_content = n, .pending = n_calls > 0 && !o->final};
    }
    p->reasoning = nrd_str_cstr(reasoning);
    p->n_reasoning = reasoning->len;
    for (int i = 0; o->final && i < n_calls && p->n_calls < o->max_calls; i++) {
        nrd_harmony_call(c->harmony, (size_t)i, &name, &arguments);
        nrd_oai_put_call(calls, p->n_calls++, o, nrd_str_cstr(name), name->len, nrd_str_cstr(arguments), arguments->len);
    }
}

void nrd_oai_split(const nrd_oai_choice *c, size_t n, bool final, bool chunk, nrd_str *calls,
                   nrd_oai_parsed *p)
{
    const nrd_oai_request *r = c->r;
    char id[80];
    snprintf(id, sizeof id, "%s_%d", r->id + strlen(r->form->id_prefix), c->index);
    const nrd_oai_parse_options o = {.think_open = r->think_open,
                                     .keep_reasoning = r->reasoning_in_content,
                                     .final = final,
                                     .with_index = chunk,
                                     .tools = r->tools,
                                     .id = id,
                                     .max_calls = r->parallel_tool_calls ? 64 : 1};
    if (c->harmony) {
        split_harmony(c, n, &o, calls, p);
    } else {
        nrd_oai_parse(nrd_str_cstr(&c->text), n, &o, calls, p);
    }
}

size_t nrd_oai_certain(const nrd_oai_choice *c)
{
    size_t hold = 0;
    for (size_t i = 0; i < c->r->n_stops && !c->done; i++) {
        size_t k = nrd_oai_partial(nrd_str_cstr(&c->text), c->text.len, c->r->stops[i].s,
                                   c->r->stops[i].n);
        hold = k > hold ? k : hold;
    }
    return c->text.len - hold;
}

void nrd_oai_next_delta(nrd_oai_choice *c, nrd_str *calls, nrd_oai_delta *out)
{
    nrd_oai_parsed p;

    memset(out, 0, sizeof *out);
    nrd_oai_split(c, nrd_oai_certain(c), c->done, true, calls, &p);
    out->all = p;
    if (p.n_reasoning > c->n_reasoning_sent) {
        out->reasoning = p.reasoning + c->n_reasoning_sent;
        out->n_reasoning = p.n_reasoning - c->n_reasoning_sent;
        c->n_reasoning_sent = p.n_reasoning;
    }
    if (p.n_content > c->n_content_sent) {
        out->content = p.content + c->n_content_sent;
        out->n_content = p.n_content - c->n_content_sent;
        c->n_content_sent = p.n_content;
    }
    if (p.n_calls > 0) {
        out->n_calls = p.n_calls;
        c->finish = "tool_calls";
    }
}

void nrd_oai_put_arguments(nrd_str *o, const char *text, size_t n)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, text, n, NULL);
    if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
        nrd_str_spoil(o);
    }
    nrd_error_free(err);
    if (nrd_json_is(doc ? nrd_json_root(doc) : NULL, NRD_JSON_OBJECT)) {
        nrd_json_put(o, nrd_json_root(doc), -1);
    } else {
        nrd_str_puts(o, "{}");
    }
    nrd_json_doc_free(doc);
}

nrd_json_doc *nrd_oai_read_calls(nrd_str *o, const nrd_str *calls)
{
    nrd_json_doc *doc = NULL;
    nrd_str list = {0};
    nrd_str_putc(&list, '[');
    nrd_str_put(&list, calls);
    nrd_str_putc(&list, ']');
    nrd_error *err = nrd_str_error(&list);
    err = err ? err : nrd_json_parse(&doc, list.data, list.len, NULL);
    if (err) {
        nrd_str_spoil(o);
    }
    nrd_error_free(err);
    nrd_str_fini(&list);
    return doc;
}
