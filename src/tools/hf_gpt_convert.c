/* SPDX-License-Identifier: Apache-2.0
 * nereid hf_gpt_convert: GPT-2 of Hugging Face as the guides of v0.5 to v0.8 convert it, one .bin for each tensor
 * (formats/ft_folder.h reads it). What is divided, and how, is the plan's affair: its shares only turn to [in, out]. */
#include "tools/tools.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/plan.h"
#include "model/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *in_file, *out_dir, *storage_type, *model, *dataset_cache_dir;
    int32_t tensor_parallelism, processes;
    bool load_on_cpu, convert_on_cpu;
} options;

static const char usage[] =
    "Usage: nereid hf_gpt_convert -i DIR -o DIR [-tp N] [-t float32|float16|bfloat16]\n\n"
    "GPT-2 of Hugging Face -> DIR/N-gpu with config.ini and .bin files (TensorRT-LLM v0.5 to v0.8), for\n"
    "nereid build --checkpoint_dir DIR/N-gpu.\n";

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "in_file", "-i", in_file, "DIR", NULL, "Hugging Face folder"),
    OPT(STR, "out_dir", "-o", out_dir, "DIR", NULL, "gets the folder N-gpu"),
    OPT(INT, "tensor_parallelism", "-tp", tensor_parallelism, "N", "1", "ranks"),
    OPT(STR, "storage_type", "-t", storage_type, "TYPE", "float32", "float32, float16 or bfloat16"),
    OPT(STR, "model", NULL, model, "gpt2", "gpt2", "only gpt2"),
    OPT(INT, "processes", "-p", processes, "N", "4", "taken and written down; one thread converts"),
    OPT(STR, "dataset_cache_dir", NULL, dataset_cache_dir, "DIR", NULL, "taken and written down; nothing is calibrated"),
    OPT(FLAG, "load_model_on_cpu", NULL, load_on_cpu, NULL, NULL, "always"),
    OPT(FLAG, "convert_model_on_cpu", NULL, convert_on_cpu, NULL, NULL, "always"),
    REFUSED("calibrate_kv_cache", "-kv", "the type of the cache is chosen at build: --kv_cache_dtype"),
    REFUSED("smoothquant", "-sq", "use nereid convert --quantize int8 or fp8"),
};
const nrd_tool_table nrd_hf_gpt_convert_table = NRD_TOOL_TABLE("hf_gpt_convert", usage, rows, 0);

/* Ours -> theirs; '*' is the layer. per_rank: a .bin for each rank. */
static const struct {
    const char *ours, *theirs;
    bool per_rank;
} names[] = {
    {"transformer.vocab_embedding.weight", "wte", false},
    {"transformer.position_embedding.weight", "wpe", false},
    {"transformer.ln_f.weight", "final_layernorm.weight", false},
    {"transformer.ln_f.bias", "final_layernorm.bias", false},
    {"lm_head.weight", "lm_head.weight", false},
    {"transformer.layers.*.input_layernorm.weight", "layers.*.input_layernorm.weight", false},
    {"transformer.layers.*.input_layernorm.bias", "layers.*.input_layernorm.bias", false},
    {"transformer.layers.*.attention.qkv.weight", "layers.*.attention.query_key_value.weight", true},
    {"transformer.layers.*.attention.qkv.bias", "layers.*.attention.query_key_value.bias", true},
    {"transformer.layers.*.attention.dense.weight", "layers.*.attention.dense.weight", true},
    {"transformer.layers.*.attention.dense.bias", "layers.*.attention.dense.bias", false},
    {"transformer.layers.*.post_layernorm.weight", "layers.*.post_attention_layernorm.weight", false},
    {"transformer.layers.*.post_layernorm.bias", "layers.*.post_attention_layernorm.bias", false},
    {"transformer.layers.*.mlp.fc.weight", "layers.*.mlp.dense_h_to_4h.weight", true},
    {"transformer.layers.*.mlp.fc.bias", "layers.*.mlp.dense_h_to_4h.bias", true},
    {"transformer.layers.*.mlp.proj.weight", "layers.*.mlp.dense_4h_to_h.weight", true},
    {"transformer.layers.*.mlp.proj.bias", "layers.*.mlp.dense_4h_to_h.bias", false},
};

/* Whether `name` is `pattern` with a number at its '*'; *out_layer: that number, -1 without. */
static bool matches(const char *pattern, const char *name, int *out_layer)
{
    const char *star = strchr(pattern, '*');
    *out_layer = -1;
    if (!star) {
        return !strcmp(pattern, name);
    }
    size_t n = (size_t)(star - pattern), digits = strspn(name + (strncmp(pattern, name, n) ? strlen(name) : n), "0123456789");
    if (strncmp(pattern, name, n) != 0 || digits == 0 || strcmp(star + 1, name + n + digits) != 0) {
        return false;
    }
    long long layer;
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)digits, name + n);
    if (!nrd_parse_i64(text, &layer) || layer > INT32_MAX) {
        return false;
    }
    *out_layer = (int)layer;
    return true;
}

static void put_rows_turned(char *to, const char *from, size_t n_rows, size_t n_cols, size_t bytes)
{
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = 0; c < n_cols; c++) {
            memcpy(to + (c * n_rows + r) * bytes, from + (r * n_cols + c) * bytes, bytes);
        }
    }
}

static nrd_error *write_tensor(const nrd_plan *p, const nrd_plan_tensor *t, const char *path)
{
    nrd_error *err = NULL;
    char *data = NULL, *turned = NULL;
    NRD_NEW_GOTO(data, t->data_bytes, err, done);
    NRD_TRY_GOTO(nrd_plan_read(p, t, 0, t->rows, data, NULL), err, done);
    if (t->flags & NRD_RULE_TRANSPOSE) {
        NRD_NEW_GOTO(turned, t->data_bytes, err, done);
        put_rows_turned(turned, data, (size_t)t->rows, (size_t)t->cols,
                        t->data_bytes / ((size_t)t->rows * (size_t)t->cols));
    }
    err = nrd_file_write(path, turned ? turned : data, t->data_bytes);
done:
    free(data);
    free(turned);
    return err;
}

/* The tensors of one rank (divided), or those that all ranks have (not divided: a plan for one rank). */
static nrd_error *write_tensors(const nrd_plan *p, const char *dir, int32_t rank, bool per_rank)
{
    for (size_t i = 0; i < nrd_plan_n_tensors(p); i++) {
        const nrd_plan_tensor *t = nrd_plan_at(p, i);
        int layer = -1;
        size_t k = 0;
        while (k < sizeof names / sizeof names[0] && !matches(names[k].ours, t->name, &layer)) {
            k++;
        }
        if (k == sizeof names / sizeof names[0]) {
            return nrd_errorf(NRD_ERR_INTERNAL, "the form of v0.5 has no tensor '%s'", t->name);
        }
        if (names[k].per_rank != per_rank) {
            continue;
        }
        nrd_str path = {0};
        const char *star = strchr(names[k].theirs, '*');
        nrd_str_printf(&path, "%s/model.", dir);
        if (star) {
            nrd_str_printf(&path, "%.*s%d%s", (int)(star - names[k].theirs), names[k].theirs, layer, star + 1);
        } else {
            nrd_str_puts(&path, names[k].theirs);
        }
        if (per_rank) {
            nrd_str_printf(&path, ".%d", rank);
        }
        nrd_str_puts(&path, ".bin");
        nrd_error *err = write_tensor(p, t, nrd_str_cstr(&path));
        nrd_str_fini(&path);
        NRD_TRY(err);
    }
    return nrd_plan_check(p);
}

/* The arguments, as the published program prints them and writes them into config.ini; values as Python's. */
static void put_arguments(const options *o, const char *separator, nrd_str *out)
{
    nrd_str_printf(out, "out_dir%s%s\nin_file%s%s\n", separator, o->out_dir, separator, o->in_file);
    nrd_str_printf(out, "tensor_parallelism%s%d\nprocesses%s%d\n", separator, o->tensor_parallelism, separator, o->processes);
    nrd_str_printf(out, "calibrate_kv_cache%sFalse\nsmoothquant%sNone\nmodel%s%s\n", separator, separator, separator, o->model);
    nrd_str_printf(out, "storage_type%s%s\ndataset_cache_dir%s%s\n", separator, o->storage_type, separator,
                   o->dataset_cache_dir ? o->dataset_cache_dir : "None");
    nrd_str_printf(out, "load_model_on_cpu%s%s\nconvert_model_on_cpu%s%s\n", separator, o->load_on_cpu ? "True" : "False",
                   separator, o->convert_on_cpu ? "True" : "False");
}

static nrd_error *write_config(const options *o, const nrd_model_spec *m, const char *dir)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    nrd_str out = {0};
    char *from = nrd_path_join(o->in_file, "config.json"), *to = nrd_path_join(dir, "config.ini");

    NRD_TRY_GOTO(nrd_json_parse_file(&doc, from, NULL), err, done);
    nrd_str_puts(&out, "[gpt]\n");
    put_arguments(o, " = ", &out);
    const nrd_json *root = nrd_json_root(doc);
    for (size_t i = 0; i < nrd_json_len(root); i++) {
        const nrd_json *v = &root->child[i];
        if (nrd_json_is(v, NRD_JSON_OBJECT) || nrd_json_is(v, NRD_JSON_ARRAY)) {
            continue; /* lists of names and settings of tasks: nobody reads them here */
        }
        nrd_str value = {0};
        nrd_json_put(&value, v, -1);
        const char *text = nrd_json_is(v, NRD_JSON_STRING) ? nrd_json_str(v, "") : nrd_str_cstr(&value);
        text = !strcmp(text, "true") ? "True" : !strcmp(text, "false") ? "False" : !strcmp(text, "null") ? "None" : text;
        if (!strpbrk(text, "\r\n")) {
            nrd_str_printf(&out, "%s = %s\n", v->key, text);
        }
        nrd_str_fini(&value);
    }
    /* last, as these must be right: the last of equal keys counts here */
    nrd_str_printf(&out, "intermediate_size = %d\nstorage_dtype = %s\nmulti_query_mode = False\n\n", m->inter, o->storage_type);
    err = nrd_file_write(to, nrd_str_cstr(&out), out.len);
done:
    nrd_json_doc_free(doc);
    nrd_str_fini(&out);
    free(from);
    free(to);
    return err;
}

static nrd_error *convert(const options *o, nrd_dtype dtype)
{
    nrd_error *err = NULL;
    nrd_source *src = NULL;
    nrd_plan *p = NULL;
    char name[32];
    snprintf(name, sizeof name, "%d-gpu", o->tensor_parallelism);
    char *dir = nrd_path_join(o->out_dir, name);

    NRD_TRY_GOTO(nrd_source_open(&src, o->in_file), err, done);
    const nrd_arch *arch = nrd_source_arch(src);
    if (nrd_source_get_kind(src) != NRD_SOURCE_HF || strcmp(arch->model_type, "gpt2") != 0) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' is no GPT-2 of Hugging Face; for other models: convert_checkpoint.py, or "
                         "nereid convert", o->in_file);
        goto done;
    }
    NRD_TRY_GOTO(nrd_mkdirs(dir), err, done);
    for (int32_t rank = -1; rank < o->tensor_parallelism; rank++) { /* -1: what is not divided */
        const nrd_plan_options opt = {.tp_size = rank < 0 ? 1 : o->tensor_parallelism, .dtype = dtype};
        NRD_TRY_GOTO(nrd_plan_make(&p, src, &opt, rank < 0 ? 0 : rank), err, done);
        NRD_TRY_GOTO(write_tensors(p, dir, rank, rank >= 0), err, done);
        nrd_plan_free(p);
        p = NULL;
    }
    err = write_config(o, nrd_source_spec(src), dir);
done:
    nrd_plan_free(p);
    nrd_source_close(src);
    free(dir);
    return err;
}

int nrd_tool_hf_gpt_convert(int argc, char **argv)
{
    options o = {.storage_type = "float32", .model = "gpt2", .tensor_parallelism = 1, .processes = 4};
    nrd_dtype dtype = NRD_DTYPE_NONE;
    nrd_str text = {0};
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_hf_gpt_convert_table, argc, argv, &o, NULL, &n);
    if (status >= 0) {
        return status;
    }
    bool known = nrd_dtype_parse(o.storage_type, &dtype) &&
                 (dtype == NRD_DTYPE_F32 || dtype == NRD_DTYPE_F16 || dtype == NRD_DTYPE_BF16);
    const char *wrong = !o.in_file || !o.out_dir              ? "-i DIR and -o DIR are needed (see --help)"
                        : !known                              ? "--storage-type: expected float32, float16 or bfloat16"
                        : strcmp(o.model, "gpt2") != 0        ? "--model: only gpt2 is supported"
                        : o.tensor_parallelism < 1            ? "--tensor-parallelism: at least 1"
                                                              : NULL;
    if (wrong) {
        fprintf(stderr, "nereid hf_gpt_convert: %s\n", wrong);
        return 2;
    }
    put_arguments(&o, ": ", &text);
    printf("\n=============== Arguments ===============\n%s========================================\n", nrd_str_cstr(&text));
    nrd_str_fini(&text);
    return nrd_tool_finish("hf_gpt_convert", convert(&o, dtype));
}
