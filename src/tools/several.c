/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/several.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/engine.h"
#include "model/spec_recurrent.h"
#include "tools/pbtree.h"
#include "tools/repo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nrd_several_model_fini(nrd_several_model *m)
{
    free(m->name);
    free(m->path);
    free(m->repo);
    free(m->load);
    free(m->parts);
    free(m->record);
    *m = (nrd_several_model){.name = NULL};
}

void nrd_several_fini(nrd_several *s)
{
    for (size_t i = 0; i < s->n; i++) {
        nrd_several_model_fini(&s->models[i]);
    }
    s->n = 0;
}

void nrd_several_split(const char *word, char **out_name, char **out_path)
{
    const char *equals = strchr(word, '=');
    const bool named = equals && equals > word && !nrd_path_exists(word) && !strstr(word, "://");

    *out_name = named ? nrd_xstrndup(word, (size_t)(equals - word)) : NULL;
    *out_path = nrd_xstrdup(named ? equals + 1 : word);
}

nrd_error *nrd_several_check_names(const nrd_several *s)
{
    nrd_error *err = NULL;
    for (size_t i = 0; i < s->n && !err; i++) {
        const char *name = s->models[i].name;
        if (!name[0] || strlen(name) > 200 || strpbrk(name, "\"\\,\n\r\t?#%") || name[0] == '.' || name[0] == '/') {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no name of a model: 1 to 200 characters, none of \" \\ , ? # %%, and no "
                             "point or slash first; give another with NAME=%s", name, s->models[i].path);
        }
        for (size_t k = 0; k < i && !err; k++) {
            char *a = nrd_repo_folder_name(name), *b = nrd_repo_folder_name(s->models[k].name);
            if (!strcmp(a, b)) {
                err = nrd_errorf(NRD_ERR_INVALID_ARG, "two models are called '%s'; give one another name: NAME=%s", name,
                                 s->models[i].path);
            }
            free(a);
            free(b);
        }
    }
    return err;
}

/* Tokens of a cache of bytes_per_token; n_seq: of the longest sequence, with what its encoder reads. */
static int64_t useful_tokens(int64_t n_seq, int64_t block, uint64_t bytes_per_token, uint64_t weights, uint64_t memory)
{
    const int64_t one = n_seq + block;
    int64_t n = (int64_t)(memory / 4 / bytes_per_token);

    n = n > 4 * one ? 4 * one : n;
    const uint64_t left = weights < memory ? (memory - weights) / bytes_per_token : 0;
    n = (uint64_t)n > left ? (int64_t)left : n;
    n = n < one ? one : n; /* less is refused by the engine; what does not fit by the server, with the numbers */
    return (n + block - 1) / block * block;
}

nrd_error *nrd_several_measure(nrd_several_model *m, const char *engine, nrd_device *dev, uint64_t memory, int64_t *tokens)
{
    nrd_device_info info;
    nrd_engine *e = NULL, *encoder = NULL;

    NRD_TRY(nrd_engine_open(&e, engine, 0, false));
    if (nrd_engine_spec(e)->cross_attention) { /* one that is elsewhere is not counted */
        nrd_error_free(nrd_engine_open_encoder(&encoder, engine, NULL, false));
    }
    dev->ops->get_info(dev, &info);
    const nrd_model_spec *spec = nrd_engine_spec(e);
    const nrd_build_limits *lim = nrd_engine_limits(e);
    const int32_t block = lim->tokens_per_block > 0 ? lim->tokens_per_block : 64;
    const nrd_dtype dtype = lim->kv_dtype != NRD_DTYPE_NONE ? lim->kv_dtype : info.kv_dtype;
    const uint64_t ranks = (uint64_t)(spec->tp_size > 1 ? spec->tp_size : 1) * (uint64_t)(spec->pp_size > 1 ? spec->pp_size : 1);
    uint64_t block_bytes = 0;

    for (int32_t i = 0; i < spec->n_layers; i++) {
        block_bytes += nrd_spec_layer_has_cache(spec, i) ? (uint64_t)dev->ops->kv_block_bytes(dev, dtype, block, nrd_spec_kv_heads(spec, i),
                                                                                             nrd_spec_kv_dim(spec, i)) : 0;
    }

    m->weight_bytes = nrd_engine_weight_bytes(e) * ranks + (encoder ? nrd_engine_weight_bytes(encoder) : 0);
    if (spec->encoder) {
        *tokens = 0;
    } else if (*tokens == 0 && block_bytes > 0) {
        const int64_t read = encoder ? nrd_engine_limits(encoder)->max_input_len + block - 1 : 0;
        *tokens = useful_tokens(lim->max_seq_len + read, block, (block_bytes + (uint64_t)block - 1) / (uint64_t)block,
                                m->weight_bytes, memory);
    }
    m->cache_bytes = (uint64_t)((*tokens + block - 1) / block) * block_bytes;
    if (spec->encoder) { /* its cache lives as long as a step */
        m->cache_bytes = (uint64_t)(lim->max_num_tokens / block + 2 * lim->max_batch_size) * block_bytes;
    }
    m->cache_bytes += nrd_recurrent_bytes(spec) * (uint64_t)lim->max_batch_size +
                      nrd_recurrent_cache_bytes(spec, lim->max_batch_size, memory);
    nrd_engine_close(e);
    nrd_engine_close(encoder);
    return NULL;
}

/* ---- a repository ---- */

/* The engine that a repository's model names, and its tokens of cache; both NULL and 0 where none does. */
static void engine_of_repository(const char *repo, char **out_engine, int64_t *out_tokens)
{
    char **names = NULL;
    size_t n = 0;

    *out_engine = NULL;
    *out_tokens = 0;
    nrd_error_free(nrd_dir_list(&names, &n, repo));
    for (size_t i = 0; i < n && !*out_engine; i++) {
        nrd_pbtree tree = {0};
        char *config = nrd_xasprintf("%s/%s/config.pbtxt", repo, names[i]);
        nrd_error *err = nrd_pbtree_read(&tree, config);
        const nrd_pbtree *p = NULL;
        while (!err && (p = nrd_pbtree_next(&tree, "parameters", p)) != NULL) {
            const char *key = nrd_pbtree_value(p, "key"), *value = nrd_pbtree_value(nrd_pbtree_next(p, "value", NULL), "string_value");
            long long tokens = 0;
            if (key && value && !strcmp(key, "gpt_model_path") && nrd_engine_is_folder(value)) {
                *out_engine = nrd_xstrdup(value);
            } else if (key && value && !strcmp(key, "max_tokens_in_paged_kv_cache") && nrd_parse_i64(value, &tokens)) {
                *out_tokens = tokens;
            }
        }
        nrd_error_free(err);
        nrd_pbtree_fini(&tree);
        free(config);
    }
    nrd_names_free(names, n);
}

nrd_error *nrd_several_prepare_repository(nrd_several_model *m, nrd_device *dev, uint64_t memory)
{
    char *engine = NULL;
    int64_t tokens = 0;
    nrd_error *err = NULL;

    engine_of_repository(m->path, &engine, &tokens);
    if (engine) {
        err = nrd_several_measure(m, engine, dev, memory, &tokens);
    } else {
        fprintf(stderr, "nereid serve: %s names no engine folder: its memory is not known, and counts as none\n", m->path);
    }
    free(engine);
    char *folder = nrd_repo_folder_name(m->name);
    err = err ? err : nrd_repo_rename(m->repo, m->path, folder, &m->load, &m->parts);
    free(folder);
    return err;
}

/* ---- what is told ---- */

/* A model as --models-file (frontends/common/switch_core.h) has it. */
static void put_model(nrd_str *out, const nrd_several_model *m)
{
    nrd_str_puts(out, "{\"name\": ");
    nrd_json_put_cstr(out, m->name);
    nrd_str_puts(out, ", \"load\": ");
    nrd_json_put_cstr(out, m->load);
    nrd_str_puts(out, ", \"parts\": [");
    for (const char *p = m->parts; *p; p += *p == ',') {
        const size_t n = strcspn(p, ",");
        nrd_str_puts(out, p == m->parts ? "" : ", ");
        nrd_json_put_string(out, p, n);
        p += n;
    }
    nrd_str_printf(out, "], \"memory_bytes\": %llu, \"file_bytes\": %llu}",
                   (unsigned long long)(m->weight_bytes + m->cache_bytes), (unsigned long long)m->weight_bytes);
}

void nrd_several_put_made(nrd_str *out, const nrd_several_model *m)
{
    nrd_str_puts(out, "{\"model\":");
    put_model(out, m);
    nrd_str_puts(out, ",\"repository\":");
    nrd_json_put_cstr(out, m->repo);
    nrd_str_printf(out, ",\"fetched\":%s", m->fetched ? "true" : "false");
    if (m->record) {
        nrd_str_puts(out, ",\"record\":");
        nrd_json_put_cstr(out, m->record);
    }
    nrd_str_putc(out, '}');
}

static void put_list(nrd_str *out, const nrd_several *s, void (*put)(nrd_str *out, const nrd_several_model *m))
{
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < s->n; i++) {
        nrd_str_puts(out, i ? ",\n  " : "\n  ");
        put(out, &s->models[i]);
    }
    nrd_str_puts(out, "\n ]");
}

nrd_error *nrd_several_write(const nrd_several *s, const nrd_several *pulled, const char *file, char *const *pull, size_t n_pull)
{
    nrd_str out = {0};

    nrd_str_printf(&out, "{\"memory_bytes\": %llu,\n \"pull\": [", (unsigned long long)s->memory_bytes);
    for (size_t i = 0; i < n_pull; i++) {
        nrd_str_puts(&out, i ? ", " : "");
        nrd_json_put_cstr(&out, pull[i]);
    }
    nrd_str_puts(&out, "],\n \"models\": ");
    put_list(&out, s, put_model);
    nrd_str_puts(&out, ",\n \"pulled\": ");
    put_list(&out, pulled, nrd_several_put_made);
    nrd_str_puts(&out, "}\n");
    nrd_error *err = nrd_str_error(&out);
    err = err ? err : nrd_file_write(file, nrd_str_cstr(&out), out.len);
    nrd_str_fini(&out);
    return err;
}
