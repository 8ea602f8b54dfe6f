/* SPDX-License-Identifier: Apache-2.0
 * Renames an engine's files and adds the objects of the old config.json. Called by `nereid build`. */
#include "tools/old_layout.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

static void put_int(nrd_str *out, const char *name, const nrd_json *from, const char *key)
{
    nrd_str_printf(out, "    \"%s\": %lld,\n", name, (long long)nrd_json_get_int(from, key, 0));
}

static void put_text(nrd_str *out, const char *name, const char *value)
{
    nrd_str_printf(out, "    \"%s\": ", name);
    nrd_json_put_cstr(out, value);
    nrd_str_puts(out, ",\n");
}

static bool is_on(const nrd_json *o, const char *key)
{
    return nrd_json_get_bool(o, key, false);
}

static void put_old_objects(nrd_str *out, const nrd_json *root, const char *name, int max_output_len)
{
    const nrd_json *m = nrd_json_get(root, "pretrained_config"), *b = nrd_json_get(root, "build_config");
    const nrd_json *map = nrd_json_get(m, "mapping"), *plugins = nrd_json_get(b, "plugin_config");
    const char *dtype = nrd_json_get_str(m, "dtype", "float16");

    nrd_str_puts(out, ",\n  \"builder_config\": {\n");
    put_text(out, "name", name);
    put_text(out, "precision", dtype);
    put_int(out, "tensor_parallel", map, "tp_size");
    put_int(out, "pipeline_parallel", map, "pp_size");
    put_int(out, "num_layers", m, "num_hidden_layers");
    put_int(out, "num_heads", m, "num_attention_heads");
    put_int(out, "num_kv_heads", m, "num_key_value_heads");
    put_int(out, "hidden_size", m, "hidden_size");
    put_int(out, "vocab_size", m, "vocab_size");
    put_text(out, "hidden_act", nrd_json_get_str(m, "hidden_act", "gelu"));
    put_int(out, "max_position_embeddings", m, "max_position_embeddings");
    put_int(out, "max_batch_size", b, "max_batch_size");
    put_int(out, "max_beam_width", b, "max_beam_width");
    put_int(out, "max_input_len", b, "max_input_len");
    nrd_str_printf(out, "    \"max_output_len\": %d,\n", max_output_len);
    put_int(out, "max_num_tokens", b, "max_num_tokens");
    put_int(out, "max_prompt_embedding_table_size", b, "max_prompt_embedding_table_size");
    nrd_str_printf(out, "    \"gather_all_token_logits\": %s,\n    \"int8\": false\n  },\n",
                   is_on(b, "gather_context_logits") && is_on(b, "gather_generation_logits") ? "true" : "false");
    nrd_str_puts(out, "  \"plugin_config\": {\n");
    put_text(out, "gpt_attention_plugin", dtype);
    put_text(out, "gemm_plugin", dtype);
    nrd_str_puts(out, "    \"remove_input_padding\": true,\n    \"paged_kv_cache\": true,\n");
    nrd_str_printf(out, "    \"tokens_per_block\": %lld\n  }", (long long)nrd_json_get_int(plugins, "tokens_per_block", 64));
}

/* Files of an engine that was there before, under the same kind of name. */
static nrd_error *remove_others(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    NRD_TRY(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        if (strstr(names[i], "_rank") && nrd_str_has_suffix(names[i], ".engine")) {
            char *path = nrd_path_join(dir, names[i]);
            remove(path);
            free(path);
        }
    }
    nrd_names_free(names, n);
    return NULL;
}

static nrd_error *rename_ranks(const char *dir, const char *name, const char *dtype, const nrd_json *mapping)
{
    nrd_error *err = NULL;
    long long tp = nrd_json_get_int(mapping, "tp_size", 1), pp = nrd_json_get_int(mapping, "pp_size", 1);
    for (long long rank = 0; rank < tp * pp && !err; rank++) {
        char old[128], new[40], stages[32] = "";
        if (pp > 1) {
            snprintf(stages, sizeof stages, "_pp%lld", pp);
        }
        snprintf(old, sizeof old, "%s_%s_tp%lld%s_rank%lld.engine", name, dtype, tp, stages, rank);
        snprintf(new, sizeof new, "rank%lld.engine", rank);
        char *from = nrd_path_join(dir, new), *to = nrd_path_join(dir, old);
        if (rename(from, to) != 0) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
        }
        free(from);
        free(to);
    }
    return err;
}

nrd_error *nrd_old_layout(const char *dir, int max_output_len)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    nrd_str out = {0};
    char *path = nrd_path_join(dir, "config.json"), *text = NULL;
    size_t n = 0;

    NRD_TRY_GOTO(nrd_file_read(&text, &n, path, MAX_CONFIG_BYTES), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&doc, text, n, NULL), err, done);
    const nrd_json *root = nrd_json_root(doc), *m = nrd_json_get(root, "pretrained_config");
    const char *dtype = nrd_json_get_str(m, "dtype", "float16"), *end = strrchr(text, '}');
    const char *family = nrd_json_get_str(nrd_json_get(m, "nereid"), "model_type", "gpt");
    const char *name = !strcmp(family, "gpt2") ? "gpt" : family;
    while (end > text && strchr(" \n\t", end[-1])) {
        end--;
    }
    nrd_str_append(&out, text, (size_t)(end - text));
    put_old_objects(&out, root, name, max_output_len);
    nrd_str_puts(&out, "\n}\n");
    NRD_TRY_GOTO(remove_others(dir), err, done);
    NRD_TRY_GOTO(rename_ranks(dir, name, dtype, nrd_json_get(m, "mapping")), err, done);
    err = nrd_file_write(path, nrd_str_cstr(&out), out.len);
done:
    nrd_json_doc_free(doc);
    nrd_str_fini(&out);
    free(text);
    free(path);
    return err;
}
