/* SPDX-License-Identifier: Apache-2.0
 * The protocols: see api.h. */
#include "tools/load/api.h"

#include "base/json.h"

#include <string.h>

static const struct {
    const char *name, *path; /* %s: the model */
    bool streams;
} kinds[] = {
    [NRD_API_GENERATE] = {"generate", "/v2/models/%s/generate", false},
    [NRD_API_GENERATE_STREAM] = {"generate_stream", "/v2/models/%s/generate_stream", true},
    [NRD_API_INFER] = {"infer", "/v2/models/%s/infer", false},
    [NRD_API_COMPLETIONS] = {"completions", "/v1/completions", true},
    [NRD_API_CHAT] = {"chat", "/v1/chat/completions", true},
    [NRD_API_RAW] = {"raw", "/", false},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

bool nrd_api_find(nrd_api_kind *out, const char *name)
{
    for (int i = 0; i < N_KINDS; i++) {
        if (!strcmp(name, kinds[i].name)) {
            *out = (nrd_api_kind)i;
            return true;
        }
    }
    return false;
}

const char *nrd_api_name(nrd_api_kind kind)
{
    return kinds[kind].name;
}

const char *nrd_api_names(void)
{
    return "generate, generate_stream, infer, completions, chat or raw";
}

bool nrd_api_streams(const nrd_api *a)
{
    return kinds[a->kind].streams && !a->is_plain;
}

void nrd_api_path(const nrd_api *a, nrd_str *out)
{
    const char *path = a->path ? a->path : kinds[a->kind].path,
               *mark = a->path ? NULL : strstr(path, "%s");
    if (!mark) {
        nrd_str_puts(out, path);
        return;
    }
    nrd_str_append(out, path, (size_t)(mark - path));
    nrd_str_puts(out, a->model);
    nrd_str_puts(out, mark + 2);
}

/* ---- requests ---- */

static void put_ids(nrd_str *out, const nrd_prompt *p)
{
    nrd_str_putc(out, '[');
    for (int32_t i = 0; i < p->n_in; i++) {
        if (i) {
            nrd_str_putc(out, ',');
        }
        nrd_str_put_i64(out, p->ids[i]);
    }
    nrd_str_putc(out, ']');
}

static void put_sampling(nrd_str *out, const nrd_api *a)
{
    if (a->sampling && a->sampling[0]) {
        nrd_str_putc(out, ',');
        nrd_str_puts(out, a->sampling);
    }
}

static void put_generate(const nrd_api *a, const nrd_prompt *p, nrd_str *out)
{
    nrd_str_puts(out, "{\"text_input\":");
    nrd_json_put_string(out, p->text, p->n_text);
    nrd_str_printf(out, ",\"max_tokens\":%d,\"bad_words\":\"\",\"stop_words\":\"\"", p->max_tokens);
    if (a->ignores_end) {
        nrd_str_printf(out, ",\"min_length\":%d", p->max_tokens);
    }
    if (a->kind == NRD_API_GENERATE_STREAM) {
        nrd_str_puts(out, ",\"stream\":true");
    } else {
        nrd_str_puts(out,
                     ",\"exclude_input_in_output\":true"); /* so that text is the answer alone */
    }
    put_sampling(out, a);
    nrd_str_putc(out, '}');
}

static void put_openai(const nrd_api *a, const nrd_prompt *p, nrd_str *out)
{
    nrd_str_puts(out, "{\"model\":");
    nrd_json_put_cstr(out, a->model);
    nrd_str_puts(out, a->kind == NRD_API_CHAT ? ",\"messages\":[" : ",\"prompt\":");
    if (a->kind == NRD_API_CHAT) {
        if (a->system) {
            nrd_str_puts(out, "{\"role\":\"system\",\"content\":");
            nrd_json_put_cstr(out, a->system);
            nrd_str_puts(out, "},");
        }
        nrd_str_puts(out, "{\"role\":\"user\",\"content\":");
    }
    if (p->ids) {
        put_ids(out, p);
    } else {
        nrd_json_put_string(out, p->text, p->n_text);
    }
    nrd_str_puts(out, a->kind == NRD_API_CHAT ? "}]" : "");
    nrd_str_printf(out, ",\"max_tokens\":%d", p->max_tokens);
    if (!a->is_plain) {
        nrd_str_puts(out, ",\"stream\":true");
        nrd_str_puts(out, a->asks_usage ? ",\"stream_options\":{\"include_usage\":true}" : "");
    }
    nrd_str_puts(out, a->ignores_end ? ",\"ignore_eos\":true" : "");
    put_sampling(out, a);
    nrd_str_putc(out, '}');
}

static void put_tensor(nrd_str *out, const char *name, const char *type, int32_t value)
{
    nrd_str_printf(out, ",{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":[1,1],\"data\":[%d]}",
                   name, type, value);
}

static void put_infer(const nrd_api *a, const nrd_prompt *p, nrd_str *out)
{
    if (p->ids) {
        nrd_str_printf(out,
                       "{\"inputs\":[{\"name\":\"input_ids\",\"datatype\":\"INT32\",\"shape\":[1,%"
                       "d],\"data\":",
                       p->n_in);
        put_ids(out, p);
        nrd_str_putc(out, '}');
        put_tensor(out, "input_lengths", "INT32", p->n_in);
        put_tensor(out, "request_output_len", "INT32", p->max_tokens);
        put_tensor(out, "end_id", "INT32", a->ignores_end ? -1 : a->end_id);
        put_tensor(out, "pad_id", "INT32", a->pad_id);
    } else {
        nrd_str_puts(out, "{\"inputs\":[{\"name\":\"text_input\",\"datatype\":\"BYTES\",\"shape\":["
                          "1,1],\"data\":[");
        nrd_json_put_string(out, p->text, p->n_text);
        nrd_str_puts(out, "]}");
        put_tensor(out, "max_tokens", "INT32", p->max_tokens);
        if (a->ignores_end) {
            put_tensor(out, "min_length", "INT32", p->max_tokens);
        }
    }
    nrd_str_puts(out, "]}");
}

nrd_error *nrd_api_body(const nrd_api *a, const nrd_prompt *p, nrd_str *out)
{
    switch (a->kind) {
    case NRD_API_GENERATE:
    case NRD_API_GENERATE_STREAM:
        put_generate(a, p, out);
        break;
    case NRD_API_INFER:
        put_infer(a, p, out);
        break;
    default:
        put_openai(a, p, out);
    }
    return nrd_str_error(out);
}

/* ---- answers ---- */

static void put_text(nrd_piece *out, const nrd_json *text)
{
    if (nrd_json_is(text, NRD_JSON_STRING) && text->n > 0) {
        nrd_str_append(&out->text, text->str, text->n);
        out->has_tokens = true;
    }
}

/* {"error": "text"} or {"error": {"message": "text"}} */
static bool read_error(const nrd_json *root, nrd_piece *out)
{
    const nrd_json *error = nrd_json_get(root, "error");
    if (!error) {
        return false;
    }
    nrd_str_puts(&out->text, nrd_json_str(error, nrd_json_get_str(error, "message",
                                                                  "an error without a message")));
    out->is_error = true;
    return true;
}

static void read_openai(const nrd_json *root, nrd_piece *out)
{
    const nrd_json *choice = nrd_json_at(nrd_json_get(root, "choices"), 0),
                   *usage = nrd_json_get(root, "usage");
    const nrd_json *message = nrd_json_get(choice, "delta");

    message = message ? message : nrd_json_get(choice, "message");
    put_text(out, nrd_json_get(choice, "text"));
    put_text(out, nrd_json_get(message, "content"));
    if (!out->has_tokens) { /* what a model thinks before it answers is generated as well */
        put_text(out, nrd_json_get(message, "reasoning_content"));
    }
    out->n_tokens = (int32_t)nrd_json_get_int(usage, "completion_tokens", 0);
    out->n_in = (int32_t)nrd_json_get_int(usage, "prompt_tokens", 0);
}

static void read_infer(const nrd_json *root, nrd_piece *out)
{
    const nrd_json *outputs = nrd_json_get(root, "outputs");
    for (size_t i = 0; i < nrd_json_len(outputs); i++) {
        const nrd_json *tensor = nrd_json_at(outputs, i), *data = nrd_json_get(tensor, "data");
        const char *name = nrd_json_get_str(tensor, "name", "");
        if (!strcmp(name, "text_output")) {
            put_text(out, nrd_json_at(data, 0));
        } else if (!strcmp(name, "sequence_length")) {
            out->n_tokens = (int32_t)nrd_json_int(nrd_json_at(data, 0), 0);
        } else if (!strcmp(name, "output_ids")) {
            out->has_tokens = nrd_json_len(data) > 0;
        }
    }
}

void nrd_api_read(const nrd_api *a, const char *data, size_t n, nrd_piece *out)
{
    static const nrd_json_limits limits = {
        .max_bytes = 64 << 20, .max_nodes = 4000000, .special = true};
    nrd_json_doc *doc = NULL;
    nrd_str kept = out->text;

    nrd_str_clear(&kept);
    *out = (nrd_piece){.text = kept};
    if (a->kind == NRD_API_RAW) {
        nrd_str_append(&out->text, data, n);
        out->has_tokens = true;
        return;
    }
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        out->is_end = true;
        return;
    }
    nrd_error *err = nrd_json_parse(&doc, data, n, &limits);
    const nrd_json *root = nrd_json_root(doc);
    if (err) {
        nrd_str_printf(&out->text, "the answer is no JSON: %s", nrd_error_message(err));
        out->is_error = true;
        nrd_error_free(err);
    } else if (read_error(root, out)) {
        /* its text is in the piece */
    } else if (a->kind == NRD_API_COMPLETIONS || a->kind == NRD_API_CHAT) {
        read_openai(root, out);
    } else if (a->kind == NRD_API_INFER) {
        read_infer(root, out);
    } else {
        const nrd_json *text = nrd_json_get(root, "text_output");
        put_text(out, text);
        out->has_tokens = text != NULL; /* half a character is a token without text */
    }
    nrd_json_doc_free(doc);
}
