/* SPDX-License-Identifier: Apache-2.0 */
#include "model/vision_folder.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/str.h"
#include "model/vision_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_FILE "config.json"

enum { MAX_CONFIG = 4 << 20, MAX_HIDDEN = 1 << 20, MAX_EMBED_SCALE = 1 << 16 };

static nrd_error *parse(nrd_json_doc **out, const char *dir)
{
    const nrd_json_limits limits = {.max_bytes = MAX_CONFIG, .max_depth = 64, .special = true};
    char *path = NULL;

    NRD_TRY(nrd_path_make(&path, dir, CONFIG_FILE));
    nrd_error *err = nrd_json_parse_file(out, path, &limits);
    free(path);
    return err;
}

/* What the published programs call a model of this config.json. */
static const char *type_of(const nrd_json *config)
{
    return nrd_vision_is_pixtral(config) ? "pixtral" : nrd_vision_is_blip2(config) ? "blip2" : nrd_vision_is_phi3(config) ? "phi-3-vision" : nrd_vision_is_vila(config) ? "vila" : nrd_vision_is_qwen1(config) ? "qwen_vl" : nrd_vision_is_cogvlm(config) ? "cogvlm" : nrd_vision_is_kosmos2(config) ? "kosmos-2" : nrd_json_get_str(config, "model_type", "");
}

static nrd_error *check_type(const nrd_source *src, const char *model_type, nrd_vision_folder *out)
{
    nrd_json_doc *doc = NULL;

    NRD_TRY(parse(&doc, nrd_source_path(src)));
    const char *own = nrd_json_get_str(nrd_json_root(doc), "model_type", ""), *found = type_of(nrd_json_root(doc));
    nrd_error *err = NULL;
    if (nrd_vision_is_mllama(nrd_json_root(doc))) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: pictures of Llama 3.2 Vision (mllama) are read by layers of its decoder, not by way of a "
                         "prompt table: an engine of it has the tower, and takes them as image_files or images", nrd_source_path(src));
    } else if (nrd_vision_is_pix2struct(nrd_json_root(doc)) || nrd_vision_is_swin(nrd_json_root(doc))) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: the encoder of %s is in its engine, which takes a picture as image_files or images",
                         nrd_source_path(src), own);
    } else if (model_type && strcmp(model_type, found) != 0 && strcmp(model_type, own) != 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "--model_type is '%s', and %s has a model of the type '%s'", model_type,
                         nrd_source_path(src), found);
    }
    snprintf(out->model_type, sizeof out->model_type, "%s", found);
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *write_config(const char *dir, const nrd_vision_folder *f)
{
    nrd_str text = {0};
    char *path = NULL;
    nrd_error *err = nrd_path_make(&path, dir, CONFIG_FILE);

    nrd_str_puts(&text, "{\"builder_config\": {\"model_name\": \"multiModal\", \"model_type\": ");
    nrd_json_put_string(&text, f->model_type, strlen(f->model_type));
    nrd_str_printf(&text, ", \"precision\": \"%s\", \"max_batch_size\": %d, \"max_hw_dims\": %d, \"hidden_size\": %d, "
                   "\"embedding_scale\": ",
                   f->dtype == NRD_DTYPE_BF16 ? "bfloat16" : f->dtype == NRD_DTYPE_F32 ? "float32" : "float16", f->max_batch_size,
                   f->max_patches, f->hidden);
    nrd_json_put_float(&text, f->embed_scale);
    nrd_str_puts(&text, "}}\n");
    err = err ? err : nrd_str_error(&text);
    err = err ? err : nrd_file_write(path, text.data, text.len);
    nrd_str_fini(&text);
    free(path);
    return err;
}

nrd_error *nrd_vision_folder_write(const nrd_source *src, const char *dir, const char *model_type, nrd_vision_folder *f)
{
    const nrd_model_spec *spec = nrd_source_spec(src);

    f->hidden = spec->hidden;
    f->embed_scale = spec->embed_scale;
    f->dtype = spec->dtype;
    if (nrd_source_get_kind(src) != NRD_SOURCE_HF) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is no Hugging Face folder: a tower is taken out of one", nrd_source_path(src));
    }
    NRD_TRY(check_type(src, model_type, f));
    NRD_TRY(nrd_mkdirs(dir));
    NRD_TRY(nrd_vision_write(src, NULL, dir));
    if (!nrd_vision_is_in(dir)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: a model of the type '%s' has no vision tower here", nrd_source_path(src),
                          f->model_type);
    }
    return write_config(dir, f);
}

static nrd_error *read_builder(const nrd_json *b, nrd_vision_folder *out)
{
    const char *precision = nrd_json_get_str(b, "precision", "float16");
    const int64_t hidden = nrd_json_get_int(b, "hidden_size", 0);
    const int64_t patches = nrd_json_get_int(b, "max_hw_dims", NRD_VISION_MAX_PATCHES);
    const double scale = nrd_json_get_num(b, "embedding_scale", 0);

    if (patches < 1 || patches > NRD_VISION_MAX_PATCHES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "builder_config.max_hw_dims is %lld, expected 1 to %d", (long long)patches,
                          NRD_VISION_MAX_PATCHES);
    }
    if (!nrd_dtype_parse(precision, &out->dtype) ||
        (out->dtype != NRD_DTYPE_F16 && out->dtype != NRD_DTYPE_BF16 && out->dtype != NRD_DTYPE_F32)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "builder_config.precision is '%s', expected float16, bfloat16 or float32", precision);
    }
    if (hidden < 1 || hidden > MAX_HIDDEN) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "builder_config.hidden_size is %lld, expected 1 to %d; make the folder with "
                          "build_multimodal_engine.py", (long long)hidden, MAX_HIDDEN);
    }
    if (!(scale >= 0 && scale <= MAX_EMBED_SCALE)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "builder_config.embedding_scale is %g, expected 0 to %d", scale, MAX_EMBED_SCALE);
    }
    snprintf(out->model_type, sizeof out->model_type, "%s", nrd_json_get_str(b, "model_type", ""));
    out->hidden = (int32_t)hidden;
    out->embed_scale = (float)scale;
    out->max_patches = (int32_t)patches;
    out->max_batch_size = (int32_t)nrd_json_get_int(b, "max_batch_size", 0);
    return NULL;
}

nrd_error *nrd_vision_folder_read(const char *dir, nrd_vision_folder *out)
{
    nrd_json_doc *doc = NULL;

    *out = (nrd_vision_folder){0};
    NRD_TRY(parse(&doc, dir));
    nrd_error *err = nrd_error_wrap(read_builder(nrd_json_get(nrd_json_root(doc), "builder_config"), out), "%s/" CONFIG_FILE, dir);
    nrd_json_doc_free(doc);
    return err;
}
