/* SPDX-License-Identifier: Apache-2.0
 * config.json of an engine folder: what the engine was built for. */
#include "model/engine_file.h"

#include "base/dtype.h"
#include "model/engine_internal.h"
#include "model/lora.h"

#include <string.h>

void nrd_build_limits_init(nrd_build_limits *l, const nrd_model_spec *spec)
{
    memset(l, 0, sizeof *l);
    l->max_batch_size = 256;
    l->max_seq_len = spec->max_positions;
    l->max_input_len = 1024;
    l->max_num_tokens = 8192;
    l->max_beam_width = 1;
    l->tokens_per_block = 32;
    l->paged_kv_cache = true;
    l->use_paged_context_fmha = true;
    l->kv_dtype = NRD_DTYPE_NONE;
}

nrd_error *nrd_build_limits_check(const nrd_build_limits *l)
{
    const struct {
        const char *name;
        int32_t v, lo, hi;
    } rows[] = {
        {"max_batch_size", l->max_batch_size, 1, 65536},
        {"max_seq_len", l->max_seq_len, 1, 1 << 26}, /* before what may be made of it */
        {"max_input_len", l->max_input_len, 1, 1 << 26},
        {"max_num_tokens", l->max_num_tokens, 1, 1 << 22},
        {"max_beam_width", l->max_beam_width, 1, 256},
        {"max_draft_len", l->max_draft_len, 0, 4096},
        {"max_prompt_embedding_table_size", l->max_prompt_embedding_table_size, 0, 1 << 24},
        {"tokens_per_block", l->tokens_per_block, 1, 1024},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].v < rows[i].lo || rows[i].v > rows[i].hi) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be between %d and %d, got %d",
                              rows[i].name, rows[i].lo, rows[i].hi, rows[i].v);
        }
    }
    if (l->tokens_per_block & (l->tokens_per_block - 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tokens_per_block must be a power of two, got %d",
                          l->tokens_per_block);
    }
    if (l->max_input_len > l->max_seq_len) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "max_input_len (%d) must not be above max_seq_len "
                          "(%d)", l->max_input_len, l->max_seq_len);
    }
    return NULL;
}

/* Appends `text` with its lines after the first pushed in by two more spaces. */
static void put_indented(nrd_str *o, const char *text)
{
    for (; *text && !(*text == '\n' && !text[1]); text++) {
        nrd_str_putc(o, *text);
        if (*text == '\n') {
            nrd_str_puts(o, "  ");
        }
    }
}

/* Nothing for an engine that was not built for adapters. */
static void put_lora(const nrd_build_limits *l, nrd_str *o)
{
    const char *comma = "";
    if (l->max_lora_rank == 0 && l->lora_modules == 0) {
        return;
    }
    nrd_str_printf(o, "    \"lora_config\": {\"max_lora_rank\": %d, \"lora_target_modules\": [",
                   l->max_lora_rank > 0 ? l->max_lora_rank : NRD_LORA_DEFAULT_RANK);
    for (int32_t i = 0; i < NRD_LORA_MODULES; i++) {
        if (l->lora_modules >> i & 1u) {
            nrd_str_printf(o, "%s\"%s\"", comma, nrd_lora_module_name(i));
            comma = ", ";
        }
    }
    nrd_str_puts(o, "]},\n");
}

void nrd_engine_config_json(const nrd_model_spec *spec, const nrd_build_limits *l,
                            const char *source, const char *extra, nrd_str *o)
{
    nrd_str model = {0};
    nrd_model_spec_to_json(spec, &model);
    nrd_str_puts(o, "{\n  \"version\": \"" NRD_VERSION "\",\n  \"pretrained_config\": ");
    put_indented(o, nrd_str_cstr(&model));
    nrd_str_fini(&model);
    nrd_str_printf(o,
                   ",\n  \"build_config\": {\n"
                   "    \"max_batch_size\": %d,\n    \"max_input_len\": %d,\n"
                   "    \"max_seq_len\": %d,\n    \"max_num_tokens\": %d,\n"
                   "    \"opt_num_tokens\": %d,\n    \"max_beam_width\": %d,\n"
                   "    \"max_draft_len\": %d,\n    \"max_prompt_embedding_table_size\": %d,\n"
                   "    \"kv_cache_type\": \"%s\",\n    \"gather_context_logits\": %s,\n"
                   "    \"gather_generation_logits\": %s,\n    \"strongly_typed\": true,\n"
                   "    \"plugin_config\": {\n      \"paged_kv_cache\": %s,\n"
                   "      \"tokens_per_block\": %d,\n      \"use_paged_context_fmha\": %s,\n"
                   "      \"use_fp8_context_fmha\": %s,\n"
                   "      \"use_custom_all_reduce\": %s,\n%s"
                   "      \"remove_input_padding\": true\n    },\n",
                   l->max_batch_size, l->max_input_len, l->max_seq_len, l->max_num_tokens,
                   l->max_num_tokens < l->max_batch_size * l->max_beam_width
                       ? l->max_num_tokens : l->max_batch_size * l->max_beam_width,
                   l->max_beam_width, l->max_draft_len, l->max_prompt_embedding_table_size,
                   l->paged_kv_cache ? "PAGED" : "CONTINUOUS",
                   l->gather_context_logits ? "true" : "false",
                   l->gather_generation_logits ? "true" : "false",
                   l->paged_kv_cache ? "true" : "false", l->tokens_per_block,
                   l->use_paged_context_fmha ? "true" : "false", l->fp8_context_fmha ? "true" : "false",
                   l->nccl_all_reduce ? "false" : "true",
                   l->lora_plugin ? "      \"lora_plugin\": \"auto\",\n" : "");
    put_lora(l, o);
    if (extra && *extra) {
        nrd_str_printf(o, "%s,\n", extra);
    }
    nrd_str_puts(o, "    \"nereid\": {\"kv_dtype\": ");
    nrd_json_put_cstr(o, l->kv_dtype == NRD_DTYPE_NONE ? "auto" : nrd_dtype_name(l->kv_dtype));
    nrd_str_puts(o, ", \"source\": ");
    nrd_json_put_cstr(o, source);
    nrd_str_puts(o, "}\n  }\n}\n");
}

static nrd_error *limit(const nrd_json *o, const char *key, int32_t *out)
{
    const nrd_json *v = nrd_json_get(o, key);
    if (!v) {
        return NULL; /* keeps the default */
    }
    int64_t i = nrd_json_int(v, INT64_MIN);
    if (i < INT32_MIN || i > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "build_config.%s must be a whole number, got %s", key,
                          nrd_json_type_name(v));
    }
    *out = (int32_t)i;
    return NULL;
}

/* In lora_config, or as older versions have it beside the other limits. */
static nrd_error *read_lora(nrd_build_limits *l, const nrd_json *b, const nrd_json *plugin)
{
    const nrd_json *lora = nrd_json_get(b, "lora_config"), *list = nrd_json_get(lora, "lora_target_modules");
    const nrd_json *word = nrd_json_get(plugin, "lora_plugin");

    list = list ? list : nrd_json_get(b, "lora_target_modules");
    l->lora_plugin = nrd_json_is(word, NRD_JSON_STRING) || nrd_json_bool(word, false);
    NRD_TRY(limit(b, "max_lora_rank", &l->max_lora_rank));
    NRD_TRY(limit(lora, "max_lora_rank", &l->max_lora_rank));
    if (l->max_lora_rank < 0 || l->max_lora_rank > NRD_LORA_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "build_config.max_lora_rank is %d, expected 0 to %d", l->max_lora_rank,
                          NRD_LORA_MAX_RANK);
    }
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const char *name = nrd_json_str(nrd_json_at(list, i), "");
        int32_t id = nrd_lora_module_id(name);
        if (id < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "build_config.lora_target_modules: there is no module '%.40s'", name);
        }
        l->lora_modules |= 1u << id;
    }
    return NULL;
}

nrd_error *nrd_build_limits_read(nrd_build_limits *l, const nrd_model_spec *spec, const nrd_json *b)
{
    const nrd_json *plugin = nrd_json_get(b, "plugin_config"), *ours = nrd_json_get(b, "nereid");
    const char *kv = nrd_json_get_str(ours, "kv_dtype", "auto");

    nrd_build_limits_init(l, spec);
    NRD_TRY(limit(b, "max_batch_size", &l->max_batch_size));
    NRD_TRY(limit(b, "max_seq_len", &l->max_seq_len));
    l->max_input_len = l->max_seq_len;
    NRD_TRY(limit(b, "max_input_len", &l->max_input_len));
    NRD_TRY(limit(b, "max_num_tokens", &l->max_num_tokens));
    NRD_TRY(limit(b, "max_beam_width", &l->max_beam_width));
    NRD_TRY(limit(b, "max_draft_len", &l->max_draft_len));
    NRD_TRY(limit(b, "max_prompt_embedding_table_size", &l->max_prompt_embedding_table_size));
    NRD_TRY(limit(plugin, "tokens_per_block", &l->tokens_per_block));
    l->paged_kv_cache = nrd_json_get_bool(plugin, "paged_kv_cache", true);
    l->use_paged_context_fmha = nrd_json_get_bool(plugin, "use_paged_context_fmha", true);
    l->fp8_context_fmha = nrd_json_get_bool(plugin, "use_fp8_context_fmha", false);
    l->nccl_all_reduce = !nrd_json_get_bool(plugin, "use_custom_all_reduce", true);
    l->gather_context_logits = nrd_json_get_bool(b, "gather_context_logits", false);
    l->gather_generation_logits = nrd_json_get_bool(b, "gather_generation_logits", false);
    NRD_TRY(read_lora(l, b, plugin));
    if (strcmp(kv, "auto") && !nrd_dtype_parse(kv, &l->kv_dtype)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "build_config.nereid.kv_dtype: '%s' is no known "
                          "element type", kv);
    }
    return nrd_build_limits_check(l);
}
