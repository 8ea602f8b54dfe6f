/* SPDX-License-Identifier: Apache-2.0
 * The protocols: see api.h. */
#include "tools/load/api.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *path; /* %s: the model */
    bool streams;
} kinds[] = {
    [NRD_API_GENERATE] = {"generate", "/v2/models/%s/generate", false},
    [NRD_API_GENERATE_STREAM] = {"generate_stream", "/v2/models/%s/generate_stream", true},
    [NRD_API_INFER] = {"infer", "/v2/models/%s/infer", false},
    [NRD_API_INFER_STREAM] = {"infer_stream", "", true},
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

const char *nrd_api_names(void)
{
    return "generate, generate_stream, infer, infer_stream, completions, chat or raw";
}

bool nrd_api_streams(const nrd_api *a)
{
    return kinds[a->kind].streams && !a->is_plain;
}

void nrd_api_path(const nrd_api *a, nrd_str *out)
{
    if (a->grpc) {
        nrd_str_printf(out, "/inference.GRPCInferenceService/%s", a->kind == NRD_API_INFER ? "ModelInfer" : "ModelStreamInfer");
        return;
    }
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
        nrd_str_printf(out, ",\"min_length\":%d,\"min_tokens\":%d", p->max_tokens, p->max_tokens); /* up to v0.19, after it */
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

/* Tensors of an inference, each [1, n]. */
typedef struct tensors {
    nrd_grpc_tensor v[6];
    int32_t numbers[6]; /* the data of those with one number */
    size_t n;
    bool streams; /* the data of "stream" */
} tensors;

static void add_number(tensors *t, const char *name, int32_t value)
{
    t->numbers[t->n] = value;
    t->v[t->n] = (nrd_grpc_tensor){name, "INT32", 1, &t->numbers[t->n], sizeof value};
    t->n++;
}

static void list_tensors(const nrd_api *a, const nrd_prompt *p, tensors *t)
{
    *t = (tensors){.n = 1, .streams = true};
    if (p->ids) {
        t->v[0] = (nrd_grpc_tensor){"input_ids", "INT32", p->n_in, p->ids, (size_t)p->n_in * sizeof *p->ids};
        add_number(t, "input_lengths", p->n_in);
        add_number(t, "request_output_len", p->max_tokens);
        add_number(t, "end_id", a->ignores_end ? -1 : a->end_id);
        add_number(t, "pad_id", a->pad_id);
    } else {
        t->v[0] = (nrd_grpc_tensor){"text_input", "BYTES", 1, p->text, p->n_text};
        add_number(t, "max_tokens", p->max_tokens);
        if (a->ignores_end) {
            add_number(t, a->least, p->max_tokens);
        }
    }
    if (a->kind == NRD_API_INFER_STREAM) {
        t->v[t->n++] = (nrd_grpc_tensor){p->ids ? "streaming" : "stream", "BOOL", 1, &t->streams, 1};
    }
}

static void put_infer(const tensors *t, const nrd_prompt *p, nrd_str *out)
{
    for (size_t i = 0; i < t->n; i++) {
        const nrd_grpc_tensor *v = &t->v[i];
        nrd_str_printf(out, "%s{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":[1,%lld],\"data\":",
                       i ? "," : "{\"inputs\":[", v->name, v->type, (long long)v->n);
        if (i > 0) {
            nrd_str_printf(out, "[%d]", t->numbers[i]);
        } else if (p->ids) {
            put_ids(out, p);
        } else {
            nrd_str_putc(out, '[');
            nrd_json_put_string(out, p->text, p->n_text);
            nrd_str_putc(out, ']');
        }
        nrd_str_putc(out, '}');
    }
    nrd_str_puts(out, "]}");
}

/* A message of gRPC; `out` is empty. */
static nrd_error *put_message(const nrd_api *a, const tensors *t, nrd_str *out)
{
    size_t n = 0;
    char *made = a->grpc->request(a->model, t->v, t->n, a->kind == NRD_API_INFER_STREAM, &n);
    if (!made) {
        return nrd_error_no_memory();
    }
    nrd_str_append(out, made, n);
    free(made);
    return NULL;
}

nrd_error *nrd_api_body(const nrd_api *a, const nrd_prompt *p, nrd_str *out)
{
    tensors t;
    switch (a->kind) {
    case NRD_API_GENERATE:
    case NRD_API_GENERATE_STREAM:
        put_generate(a, p, out);
        break;
    case NRD_API_INFER:
    case NRD_API_INFER_STREAM:
        list_tensors(a, p, &t);
        if (a->grpc) {
            NRD_TRY(put_message(a, &t, out));
        } else {
            put_infer(&t, p, out);
        }
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

/* `sequence_length` of tensorrt_llm counts the prompt as well, that of a stream one piece alone. */
static bool counts_answers(const nrd_api *a)
{
    return a->kind == NRD_API_INFER && !a->sends_ids;
}

static void read_infer(const nrd_api *a, const nrd_json *root, nrd_piece *out)
{
    const nrd_json *outputs = nrd_json_get(root, "outputs");
    for (size_t i = 0; i < nrd_json_len(outputs); i++) {
        const nrd_json *tensor = nrd_json_at(outputs, i), *data = nrd_json_get(tensor, "data");
        const char *name = nrd_json_get_str(tensor, "name", "");
        if (!strcmp(name, "text_output")) {
            put_text(out, nrd_json_at(data, 0));
        } else if (!strcmp(name, "sequence_length") && counts_answers(a)) {
            out->n_tokens = (int32_t)nrd_json_int(nrd_json_at(data, 0), 0);
        } else if (!strcmp(name, "output_ids")) {
            out->has_tokens = nrd_json_len(data) > 0;
        }
    }
}

/* An output of gRPC. */
typedef struct {
    const nrd_api *api;
    nrd_piece *piece;
} reading;

static void on_output(void *arg, const nrd_grpc_output *o)
{
    const reading *r = arg;
    nrd_piece *out = r->piece;
    int32_t n;
    if (!strcmp(o->name, "text_output") && o->n_data >= 4) { /* one element, its length before it */
        nrd_str_append(&out->text, (const char *)o->data + 4, o->n_data - 4);
        out->has_tokens = true;
    } else if (!strcmp(o->name, "output_ids")) {
        out->has_tokens = o->n_data > 0;
    } else if (!strcmp(o->name, "sequence_length") && o->n_data >= sizeof n && counts_answers(r->api)) {
        memcpy(&n, o->data, sizeof n);
        out->n_tokens = n;
    }
}

static void read_message(const nrd_api *a, const char *data, size_t n, nrd_piece *out)
{
    reading r = {a, out};
    char why[512];
    const char *wrong = a->grpc->read(data, n, a->kind == NRD_API_INFER_STREAM, on_output, &r, why, sizeof why);
    if (wrong) {
        nrd_str_puts(&out->text, wrong);
        out->is_error = true;
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
    if (a->grpc) {
        read_message(a, data, n, out);
        return;
    }
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
        read_infer(a, root, out);
    } else {
        const nrd_json *text = nrd_json_get(root, "text_output");
        put_text(out, text);
        out->has_tokens = text != NULL; /* half a character is a token without text */
    }
    nrd_json_doc_free(doc);
}
