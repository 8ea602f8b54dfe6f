/* SPDX-License-Identifier: Apache-2.0
 * Reading the small JSON files of a Hugging Face folder. */
#include "text/internal.h"

nrd_error *nrd_tok_read_json(const char *dir, const char *name, nrd_json_doc **out)
{
    const nrd_json_limits limits = {.max_bytes = TOK_MAX_FILE_BYTES, .max_depth = 32};

    NRD_TRY(nrd_json_parse_in(out, dir, name, &limits));
    const nrd_json *root = nrd_json_root(*out);
    if (*out && !nrd_json_is(root, NRD_JSON_OBJECT)) {
        nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s/%s: expected an object, got %s", dir, name, nrd_json_type_name(root));
        nrd_json_doc_free(*out);
        *out = NULL;
        return err;
    }
    return NULL;
}

const nrd_json *nrd_tok_text_of(const nrd_json *node)
{
    const nrd_json *s = nrd_json_is(node, NRD_JSON_OBJECT) ? nrd_json_get(node, "content") : node;
    return nrd_json_is(s, NRD_JSON_STRING) ? s : NULL;
}

bool nrd_tok_says_encoder(const nrd_json *config)
{
    const char *name = nrd_json_str(nrd_json_at(nrd_json_get(config, "architectures"), 0), "");

    if (nrd_str_has_suffix(name, "EncoderModel")) { /* it has no decoder, whatever the whole model's configuration says */
        return false;
    }
    return nrd_json_get_bool(config, "is_encoder_decoder", false) ||
           nrd_json_get_bool(nrd_json_get(config, "text_config"), "is_encoder_decoder", false);
}
