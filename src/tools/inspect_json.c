/* SPDX-License-Identifier: Apache-2.0
 * nereid inspect --json: what a model, an engine, a tokenizer or a repository is, as one object. */
#include "tools/inspect.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "model/engine.h"
#include "model/source.h"
#include "model/spec_recurrent.h"
#include "text/tokenizer.h"
#include "tools/pbtree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_name(nrd_str *out, const char *before, const char *name, const char *value)
{
    nrd_str_printf(out, "%s\"%s\": ", before, name);
    nrd_json_put_cstr(out, value);
}

static const char *yes_no(bool b)
{
    return b ? "true" : "false";
}

/* ---- tensors ---- */

typedef struct tensors {
    uint64_t n[NRD_DTYPE_COUNT_], bytes[NRD_DTYPE_COUNT_];
    uint64_t n_all, elements, bytes_all;
    nrd_str rows; /* with --tensors */
} tensors;

static void add_tensor(tensors *t, const nrd_inspect_options *o, const char *name, nrd_dtype dtype, const char *type,
                       const int64_t *dims, int n_dims, uint64_t bytes)
{
    const unsigned d = (unsigned)dtype < NRD_DTYPE_COUNT_ ? (unsigned)dtype : (unsigned)NRD_DTYPE_NONE;
    uint64_t elements = 1;

    for (int i = 0; i < n_dims; i++) {
        elements *= (uint64_t)dims[i];
    }
    t->n[d]++;
    t->bytes[d] += bytes;
    t->n_all++;
    t->elements += elements;
    t->bytes_all += bytes;
    if (!o->tensors) {
        return;
    }
    put_name(&t->rows, t->rows.len ? ",\n    {" : "\n    {", "name", name);
    put_name(&t->rows, ", ", "type", dtype == NRD_DTYPE_NONE ? type : nrd_dtype_name(dtype));
    nrd_str_puts(&t->rows, ", \"shape\": [");
    for (int i = 0; i < n_dims; i++) {
        nrd_str_printf(&t->rows, "%s%lld", i ? ", " : "", (long long)dims[i]);
    }
    nrd_str_printf(&t->rows, "], \"bytes\": %llu}", (unsigned long long)bytes);
}

static void put_tensors(nrd_str *out, const tensors *t, const nrd_inspect_options *o)
{
    const char *sep = "";
    nrd_str_printf(out, ",\n  \"parameters\": %llu,\n  \"weight_bytes\": %llu,\n  \"n_tensors\": %llu,\n  \"types\": {",
                   (unsigned long long)t->elements, (unsigned long long)t->bytes_all, (unsigned long long)t->n_all);
    for (int d = 0; d < NRD_DTYPE_COUNT_; d++) {
        if (t->n[d] > 0) {
            nrd_str_puts(out, sep);
            nrd_json_put_cstr(out, nrd_dtype_name((nrd_dtype)d));
            nrd_str_printf(out, ": {\"n_tensors\": %llu, \"bytes\": %llu}", (unsigned long long)t->n[d],
                           (unsigned long long)t->bytes[d]);
            sep = ", ";
        }
    }
    nrd_str_putc(out, '}');
    if (o->tensors) {
        nrd_str_printf(out, ",\n  \"tensors\": [%s]", nrd_str_cstr(&t->rows));
    }
}

/* ---- the model ---- */

static void put_spec(nrd_str *out, const nrd_model_spec *s)
{
    put_name(out, ",\n  ", "architecture", s->architecture);
    put_name(out, ",\n  ", "model_type", s->model_type);
    put_name(out, ",\n  ", "dtype", nrd_dtype_name(s->dtype));
    put_name(out, ",\n  ", "quantization", s->quant_algo);
    nrd_str_printf(out, ",\n  \"n_layers\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n  \"n_heads\": %d,\n"
                        "  \"n_kv_heads\": %d,\n  \"head_dim\": %d,\n  \"vocab_size\": %d,\n  \"max_positions\": %d,\n"
                        "  \"sliding_window\": %d,\n  \"tied_embeddings\": %s",
                   s->n_layers, s->hidden, s->inter, s->n_heads, s->n_kv_heads, s->head_dim, s->vocab, s->max_positions,
                   s->sliding_window, yes_no(s->tied_embeddings));
    if (s->has_experts) {
        nrd_str_printf(out, ",\n  \"experts\": {\"n\": %d, \"top_k\": %d, \"intermediate_size\": %d, \"shared_intermediate_size\": %d}",
                       s->moe.n_experts, s->moe.top_k, s->moe.inter, s->moe.shared_inter);
    }
    nrd_str_printf(out, ",\n  \"bos_id\": %d,\n  \"eos_id\": %d,\n  \"pad_id\": %d,\n  \"stop_ids\": [", s->bos_id, s->eos_id, s->pad_id);
    for (int32_t i = 0; i < s->n_stop_ids; i++) {
        nrd_str_printf(out, "%s%d", i ? ", " : "", s->stop_ids[i]);
    }
    /* keys and values of one token in 16 bits, all ranks together */
    nrd_str_printf(out, "],\n  \"tp_size\": %d,\n  \"pp_size\": %d,\n  \"cache_bytes_per_token\": %llu,\n  \"state_bytes\": %llu",
                   s->tp_size, s->pp_size,
                   (unsigned long long)nrd_spec_all_kv_numbers(s) * 2,
                   (unsigned long long)nrd_recurrent_bytes(s));
}

static nrd_error *put_source(nrd_str *out, const char *path, const nrd_inspect_options *o)
{
    nrd_source *s = NULL;
    tensors t = {.n_all = 0};
    nrd_inspect_options rank = *o;

    NRD_TRY(nrd_source_open(&s, path));
    put_name(out, ",\n  ", "kind", nrd_source_kind_name(s));
    put_spec(out, nrd_source_spec(s));
    for (int32_t r = 0; r < nrd_source_n_ranks(s); r++) {
        rank.tensors = o->tensors && r == o->rank;
        nrd_plan *plan = nrd_inspect_plan(s, r);
        for (size_t i = 0; i < nrd_source_n_tensors(s, r); i++) {
            const nrd_src_tensor x = nrd_inspect_tensor(plan, nrd_source_tensor_at(s, r, i));
            add_tensor(&t, &rank, x.name, x.dtype, x.type_name, x.dims, x.n_dims, x.data_bytes);
        }
        nrd_plan_free(plan);
    }
    put_tensors(out, &t, o);
    nrd_str_fini(&t.rows);
    nrd_source_close(s);
    return NULL;
}

static nrd_error *put_engine(nrd_str *out, const char *path, const nrd_inspect_options *o)
{
    nrd_engine *e = NULL;
    tensors t = {.n_all = 0};

    NRD_TRY(nrd_engine_open(&e, path, o->rank, o->verify));
    const nrd_build_limits *l = nrd_engine_limits(e);
    nrd_str_printf(out, ",\n  \"kind\": \"engine\",\n  \"rank\": %d,\n  \"verified\": %s", o->rank, yes_no(o->verify));
    put_name(out, ",\n  ", "device", nrd_engine_device(e));
    put_spec(out, nrd_engine_spec(e));
    nrd_str_printf(out, ",\n  \"limits\": {\"max_batch_size\": %d, \"max_input_len\": %d, \"max_seq_len\": %d, \"max_num_tokens\": %d, "
                        "\"max_beam_width\": %d, \"max_draft_len\": %d, \"tokens_per_block\": %d, \"kv_cache_type\": ",
                   l->max_batch_size, l->max_input_len, l->max_seq_len, l->max_num_tokens, l->max_beam_width, l->max_draft_len,
                   l->tokens_per_block);
    nrd_json_put_cstr(out, l->kv_dtype == NRD_DTYPE_NONE ? "" : nrd_dtype_name(l->kv_dtype));
    nrd_str_putc(out, '}');
    for (size_t i = 0; i < nrd_engine_n_weights(e); i++) {
        const char *name;
        const nrd_weight *w = nrd_engine_weight_at(e, i, &name);
        const int64_t dims[2] = {w->rows, w->cols};
        add_tensor(&t, o, name, w->dtype, "", dims, w->cols == 1 ? 1 : 2,
                   w->data_bytes + (w->scales ? (uint64_t)w->rows * 4 : 0));
    }
    put_tensors(out, &t, o);
    nrd_str_fini(&t.rows);
    nrd_engine_close(e);
    return NULL;
}

static nrd_error *put_tokenizer(nrd_str *out, const char *path)
{
    nrd_tokenizer *t = NULL;
    size_t n_stops;

    NRD_TRY(nrd_tokenizer_open(&t, path));
    nrd_tokenizer_stop_ids(t, &n_stops);
    put_name(out, ",\n  \"tokenizer\": {", "kind", nrd_tokenizer_kind(t));
    nrd_str_printf(out, ", \"n_tokens\": %d, \"bos_id\": %d, \"eos_id\": %d, \"pad_id\": %d, \"unk_id\": %d, \"n_stop_ids\": %zu, "
                        "\"chat_template\": %s}",
                   nrd_tokenizer_vocab_size(t), nrd_tokenizer_bos_id(t), nrd_tokenizer_eos_id(t), nrd_tokenizer_pad_id(t),
                   nrd_tokenizer_unk_id(t), n_stops, yes_no(nrd_tokenizer_chat_template(t) != NULL));
    nrd_tokenizer_close(t);
    return NULL;
}

/* ---- repositories ---- */

static void put_parameters(nrd_str *out, const nrd_pbtree *config)
{
    const char *sep = "";
    nrd_str_puts(out, ",\n  \"settings\": {");
    for (const nrd_pbtree *p = NULL; (p = nrd_pbtree_next(config, "parameters", p)) != NULL;) {
        const char *key = nrd_pbtree_value(p, "key"), *value = nrd_pbtree_value(nrd_pbtree_next(p, "value", NULL), "string_value");
        if (key) {
            nrd_str_puts(out, sep);
            nrd_json_put_cstr(out, key);
            nrd_str_puts(out, ": ");
            nrd_json_put_cstr(out, value ? value : "");
            sep = ", ";
        }
    }
    nrd_str_putc(out, '}');
}

/* A configuration as it stands in its file. */
static nrd_error *put_served_model(nrd_str *out, const char *path)
{
    nrd_pbtree config = {.name = NULL};
    char *file = nrd_path_join(path, "config.pbtxt");
    nrd_error *err = nrd_pbtree_read(&config, file);

    if (!err) {
        const char *name = nrd_pbtree_value(&config, "name"), *backend = nrd_pbtree_value(&config, "backend");
        const char *platform = nrd_pbtree_value(&config, "platform"), *batch = nrd_pbtree_value(&config, "max_batch_size");
        nrd_str_puts(out, ",\n  \"kind\": \"served model\"");
        put_name(out, ",\n  ", "name", name ? name : nrd_path_base(path));
        put_name(out, ",\n  ", "backend", backend ? backend : "");
        put_name(out, ",\n  ", "platform", platform ? platform : "");
        put_name(out, ",\n  ", "max_batch_size", batch ? batch : "0"); /* a template's may be ${NAME} */
        put_parameters(out, &config);
    }
    nrd_pbtree_fini(&config);
    free(file);
    return err;
}

static nrd_error *put_object(nrd_str *out, const char *path, const nrd_inspect_options *o);

static nrd_error *put_repository(nrd_str *out, const char *path, const nrd_inspect_options *o)
{
    char **names = NULL;
    const char *sep = "\n";
    size_t n = 0;

    NRD_TRY(nrd_dir_list(&names, &n, path));
    nrd_error *err = NULL;
    nrd_str_puts(out, ",\n  \"kind\": \"model repository\",\n  \"models\": [");
    for (size_t i = 0; i < n && !err; i++) {
        char *model = nrd_path_join(path, names[i]);
        if (nrd_inspect_is_served_model(model)) {
            nrd_str_puts(out, sep);
            err = put_object(out, model, o);
            sep = ",\n";
        }
        free(model);
    }
    nrd_str_putc(out, ']');
    nrd_names_free(names, n);
    return err;
}

static nrd_error *put_object(nrd_str *out, const char *path, const nrd_inspect_options *o)
{
    const size_t begin = out->len;
    nrd_error *err = NULL;

    put_name(out, "{\n  ", "path", path);
    if (nrd_path_is_dir(path) && nrd_engine_has_rank(path, 0)) {
        err = put_engine(out, path, o);
    } else if (nrd_inspect_is_served_model(path)) {
        err = put_served_model(out, path);
    } else if (nrd_inspect_is_repository(path)) {
        err = put_repository(out, path, o);
    } else {
        const size_t before = out->len;
        err = put_source(out, path, o);
        if (err) { /* half a model */
            out->len = before;
        }
        nrd_error *tokenizer = put_tokenizer(out, path);
        if (!err || !tokenizer) { /* neither: the reason for the model says more */
            nrd_error_free(err);
            err = NULL;
        }
        nrd_error_free(tokenizer);
    }
    nrd_str_puts(out, "\n}");
    if (err) {
        out->len = begin;
    }
    return err;
}

nrd_error *nrd_inspect_json(const char *path, const nrd_inspect_options *o)
{
    nrd_str out = {0};

    if (!nrd_path_exists(path)) {
        return nrd_path_missing(path);
    }
    nrd_error *err = put_object(&out, path, o);
    err = err ? err : nrd_str_error(&out);
    if (!err) {
        puts(nrd_str_cstr(&out));
    }
    nrd_str_fini(&out);
    return err;
}
