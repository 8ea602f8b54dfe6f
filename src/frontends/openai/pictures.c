/* SPDX-License-Identifier: Apache-2.0
 * Pictures in messages: data: URLs become base64 for the model. Addresses are not fetched: a client could make the server ask its
 * neighbours. */
#include "frontends/openai/internal.h"

#include "nereid/llm_tensors.h"

#include <string.h>

bool nrd_oai_takes_pictures(const nrd_oai_model *m)
{
    const char *template = m->sees ? nrd_tokenizer_chat_template(m->tokenizer) : NULL;
    return template && (strstr(template, "image") || nrd_tokenizer_numbers_pictures(m->tokenizer));
}

/* What stands between pictures and videos for the model cannot be in one. */
nrd_error *nrd_oai_check_picture(const char *base64, size_t n, const char *field)
{
    if (n == 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "has an empty picture");
    }
    if (memchr(base64, ',', n) || memchr(base64, ';', n) || memchr(base64, '\0', n)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a picture in base64");
    }
    return NULL;
}

static nrd_error *add(nrd_oai_request *r, const char *base64, size_t n, const char *field)
{
    if (r->n_images == NRD_LLM_MAX_IMAGES) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "a request may have %d pictures", NRD_LLM_MAX_IMAGES);
    }
    NRD_TRY(nrd_oai_check_picture(base64, n, field));
    nrd_str_puts(&r->images, r->n_images++ ? "," : "");
    nrd_str_append(&r->images, base64, n);
    return nrd_str_error(&r->images);
}

/* data:image/png;base64,… */
nrd_error *nrd_oai_add_picture(nrd_oai_request *r, const nrd_json *part, size_t index)
{
    static const char mark[] = ";base64,";
    const nrd_json *v = nrd_json_get(part, "image_url");
    const nrd_json *url = nrd_json_is(v, NRD_JSON_OBJECT) ? nrd_json_get(v, "url") : v;
    const char *data = nrd_json_is(url, NRD_JSON_STRING) && !strncmp(url->str, "data:", 5) ? strstr(url->str, mark) : NULL;

    if (!nrd_json_is(url, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "message %zu has an image_url without url", index);
    }
    if (!data) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "messages", "message %zu has the picture '%.40s'; pictures are taken as "
                              "data:image/…;base64,… and not fetched from addresses", index, url->str);
    }
    data += sizeof mark - 1;
    return add(r, data, url->n - (size_t)(data - url->str), "messages");
}

nrd_error *nrd_oai_put_image_url(nrd_str *out, const nrd_json *base64, const char *field)
{
    if (!nrd_json_is(base64, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a picture in base64");
    }
    nrd_str url = {0};
    nrd_str_puts(&url, "data:image/any;base64,"); /* what it is its first bytes say */
    nrd_str_append(&url, base64->str, base64->n);
    nrd_str_puts(out, "{\"type\":\"image_url\",\"image_url\":");
    nrd_json_put_string(out, nrd_str_cstr(&url), url.len);
    nrd_str_putc(out, '}');
    nrd_error *err = nrd_str_error(&url);
    nrd_str_fini(&url);
    return err;
}
