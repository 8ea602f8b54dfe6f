/* SPDX-License-Identifier: Apache-2.0
 * Contents of messages that may show pictures and videos: these become parts of the types "image" and "video" for the model's
 * template, which puts the model's own mark in their place, or words of the text. */
#include "frontends/openai/internal.h"

#include <string.h>

/* The template prints a message's text, and its places are words of that: <|image_1|> and so on. */
static bool takes_words(const nrd_oai_model *m)
{
    return nrd_tokenizer_numbers_pictures(m->tokenizer) && !strstr(nrd_tokenizer_chat_template(m->tokenizer), "image");
}

/* A part of the type text; NULL: it is another one. */
static const nrd_json *text_of(const nrd_json *part)
{
    const nrd_json *text = nrd_json_get(part, "text");
    return !strcmp(nrd_json_get_str(part, "type", ""), "text") && nrd_json_is(text, NRD_JSON_STRING) ? text : NULL;
}

static nrd_error *wrong_part(const nrd_json *part, size_t index)
{
    return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "messages", "message %zu has a part of type '%.40s'; text and image_url are supported, and by models "
                          "that take them video_url and video", index, nrd_json_get_str(part, "type", ""));
}

static nrd_error *put_part(nrd_oai_request *r, nrd_str *out, const nrd_json *part, size_t index)
{
    const char *type = nrd_json_get_str(part, "type", "");
    const nrd_json *text = text_of(part);

    if (!strcmp(type, "image_url")) {
        nrd_str_puts(out, "{\"type\":\"image\"}");
        return nrd_oai_add_picture(r, part, index);
    }
    if (nrd_oai_is_video(part) && nrd_oai_takes_videos(r->model)) {
        nrd_str_puts(out, "{\"type\":\"video\"}");
        return nrd_oai_add_video(r, part, index);
    }
    if (!text) {
        return wrong_part(part, index);
    }
    nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
    nrd_json_put(out, text, -1);
    nrd_str_putc(out, '}');
    return NULL;
}

/* Parts as lines of one text. */
static nrd_error *put_lines(nrd_oai_request *r, nrd_str *out, const nrd_json *content, size_t index)
{
    nrd_str text = {0};
    nrd_error *err = NULL;

    for (size_t i = 0; i < content->n && !err; i++) {
        const nrd_json *part = &content->child[i], *s = text_of(part);
        nrd_str_puts(&text, i ? "\n" : "");
        if (s) {
            nrd_str_append(&text, s->str, s->n);
        } else if (!strcmp(nrd_json_get_str(part, "type", ""), "image_url")) {
            err = nrd_oai_add_picture(r, part, index);
            nrd_str_printf(&text, "<|image_%d|>", r->n_images);
        } else {
            err = wrong_part(part, index);
        }
    }
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    err = err ? err : nrd_str_error(&text);
    nrd_str_fini(&text);
    return err;
}

nrd_error *nrd_oai_put_picture_parts(nrd_oai_request *r, nrd_str *out, const nrd_json *content, size_t index)
{
    if (takes_words(r->model)) {
        if (nrd_json_is(content, NRD_JSON_ARRAY)) {
            return put_lines(r, out, content, index);
        }
        nrd_json_put(out, content, -1);
        return NULL;
    }
    nrd_str_putc(out, '[');
    if (nrd_json_is(content, NRD_JSON_STRING)) {
        nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
        nrd_json_put(out, content, -1);
        nrd_str_putc(out, '}');
    }
    for (size_t i = 0; nrd_json_is(content, NRD_JSON_ARRAY) && i < content->n; i++) {
        nrd_str_puts(out, i ? "," : "");
        NRD_TRY(put_part(r, out, &content->child[i], index));
    }
    nrd_str_putc(out, ']');
    return NULL;
}

/* What the template makes of a tool's message with these parts behind one text. */
static bool render_tool(const nrd_chat *chat, const char *more, nrd_str *out)
{
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;

    nrd_str_printf(&text, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":"
                          "\"text\",\"text\":\"b\"}]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}%s]}]", more);
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : nrd_json_parse(&doc, text.data, text.len, NULL);
    const nrd_chat_input in = {.messages = doc ? nrd_json_root(doc) : NULL, .add_generation_prompt = true};
    err = err ? err : nrd_chat_render(chat, &in, out);
    const bool ok = !err && !out->no_memory;
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    return ok;
}

/* The template has a place for pictures in a tool's message, and does not just print the list of parts. */
static bool tools_may_show(const nrd_chat *chat)
{
    nrd_str with = {0}, without = {0};
    const bool ok = render_tool(chat, ",{\"type\":\"image\"}", &with) && render_tool(chat, "", &without) &&
                    strcmp(nrd_str_cstr(&with), nrd_str_cstr(&without)) != 0 && !strstr(nrd_str_cstr(&without), "type");
    nrd_str_fini(&with);
    nrd_str_fini(&without);
    return ok;
}

static bool is_shown(const nrd_json *part)
{
    return !strcmp(nrd_json_get_str(part, "type", ""), "image_url") || nrd_oai_is_video(part);
}

nrd_error *nrd_oai_put_tool_parts(nrd_oai_request *r, nrd_str *out, const nrd_json *content, size_t index)
{
    bool any = false, shows = false;

    for (size_t i = 0; i < content->n; i++) {
        shows = shows || is_shown(&content->child[i]);
    }
    if (!shows || takes_words(r->model) || tools_may_show(r->model->chat)) {
        return nrd_oai_put_picture_parts(r, out, content, index);
    }
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < content->n; i++) {
        const nrd_json *part = &content->child[i];
        const bool is_picture = is_shown(part);
        nrd_str *to = is_picture ? &r->shown : out;
        nrd_str_puts(to, (is_picture ? r->shown.len > 0 : any) ? "," : "");
        any = any || !is_picture;
        NRD_TRY(put_part(r, to, part, index));
    }
    nrd_str_puts(out, any ? "]" : "{\"type\":\"text\",\"text\":\"\"}]"); /* a template may look at the first part */
    return NULL;
}

void nrd_oai_put_shown(nrd_oai_request *r, nrd_str *out)
{
    if (r->shown.len > 0) {
        nrd_str_puts(out, ",{\"role\":\"user\",\"content\":[");
        nrd_str_put(out, &r->shown);
        nrd_str_puts(out, "]}");
        nrd_str_clear(&r->shown);
    }
}
