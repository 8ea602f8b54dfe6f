/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/output_dir.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nrd_error *nrd_output_check_source(const char *option, const char *from, const char *output_dir)
{
    char *config = nrd_path_join(output_dir, "config.json");
    const bool is_same = nrd_path_is_same(from, output_dir) || nrd_path_is_same(from, config);

    free(config);
    return is_same ? nrd_errorf(NRD_ERR_INVALID_ARG, "--output_dir is where --%s lies, and its config.json would be overwritten; give another folder",
                                option)
                   : NULL;
}

/* *out_architecture: borrows; NULL: it does not say. */
static nrd_output_kind kind_of(const nrd_json *config, const char **out_architecture)
{
    const nrd_json *inner = nrd_json_get(config, "pretrained_config");

    *out_architecture = nrd_json_get_str(inner ? inner : config, "architecture", NULL);
    if (inner || nrd_json_get(config, "builder_config")) {
        return NRD_OUTPUT_ENGINE;
    }
    if (*out_architecture) {
        return NRD_OUTPUT_CHECKPOINT;
    }
    if (nrd_json_get(config, "model_type") || nrd_json_get(config, "architectures")) {
        return NRD_OUTPUT_HF;
    }
    return NRD_OUTPUT_OTHER;
}

nrd_error *nrd_output_check(const char *verb, nrd_output_kind makes, const char *architecture, const char *output_dir)
{
    static const char *const words[] = {
        [NRD_OUTPUT_CHECKPOINT] = "a checkpoint", [NRD_OUTPUT_ENGINE] = "an engine", [NRD_OUTPUT_HF] = "a Hugging Face model",
        [NRD_OUTPUT_OTHER] = "a config.json that is no model's",
    };
    char *path = nrd_path_join(output_dir, "config.json");
    const char *held = NULL;
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;

    if (nrd_path_exists(path)) {
        nrd_error_free(nrd_json_parse_file(&doc, path, NULL)); /* what is no JSON is no model's */
        const nrd_output_kind kind = kind_of(doc ? nrd_json_root(doc) : NULL, &held);
        if (kind != makes) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "--output_dir '%s' holds %s, whose config.json would be overwritten; give another folder%s",
                             output_dir, words[kind], kind == NRD_OUTPUT_HF || kind == NRD_OUTPUT_OTHER ? "" : ", or remove this one");
        } else if (held && strcmp(held, architecture) != 0) {
            fprintf(stderr, "nereid %s: warning: '%s' holds %s of %s, which is overwritten\n", verb, output_dir, words[kind], held);
        }
    }
    nrd_json_doc_free(doc);
    free(path);
    return err;
}
