/* SPDX-License-Identifier: Apache-2.0
 * Finds out how a folder is quantized, lets the format's reader describe every quantized weight, and puts
 * them into the source's table in the place of their parts. Called by model/source_folder.c. */
#include "model/quant/quant_internal.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = NRD_QUANT_MAX_NAME, MAX_CONFIG_BYTES = 16 << 20 };

static const nrd_quant_reader *const readers[] = {&nrd_quant_gptq, &nrd_quant_awq, &nrd_quant_fp8, &nrd_quant_mxfp8,
                                                &nrd_quant_fbgemm_fp8, &nrd_quant_compressed, &nrd_quant_modelopt,
                                                &nrd_quant_bnb, &nrd_quant_mxfp4, &nrd_quant_auto_round, &nrd_quant_hqq, &nrd_quant_torchao,
                                                &nrd_quant_bitnet, &nrd_quant_quark, &nrd_quant_mlx, &nrd_quant_eetq, &nrd_quant_quanto};
enum { N_READERS = (int)(sizeof readers / sizeof readers[0]) };

const char *nrd_quant_notes(const nrd_quant *q)
{
    return q ? nrd_str_cstr(&q->notes) : "";
}

float nrd_quant_kv_top(const nrd_quant *q)
{
    return !q ? 0.0f : q->kv_is_int8 ? 127.0f : 448.0f;
}

bool nrd_quant_int8_inputs(const nrd_quant *q)
{
    return q && q->settings.int8_inputs;
}

/* ---- the table ---- */

/* What had to be unpacked: one sentence for the user. */
typedef struct {
    size_t n;
    uint64_t file_bytes, bytes;
    const char *why;
} unpacked;

/* The length of a quantized module's name; 0: the tensor belongs to none, or is not the one that stands for it. */
static size_t stem_of(nrd_quant *q, const nrd_src_tensor *t)
{
    const char *name = t->name;

    if (q->settings.is_anchor) {
        return q->settings.is_anchor(q, t) ? strlen(name) - strlen(".weight") : 0;
    }
    for (int i = 0; i < 4 && q->reader->anchors[i]; i++) {
        if (nrd_str_has_suffix(name, q->reader->anchors[i])) {
            return strlen(name) - strlen(q->reader->anchors[i]);
        }
    }
    return 0;
}

const int32_t *nrd_quant_order(const nrd_quant_weight *w)
{
    return w->sorted;
}

const float *nrd_quant_input_scale(const nrd_quant_weight *w)
{
    const bool is_plain = w->dtype == NRD_DTYPE_F32 || w->dtype == NRD_DTYPE_F16 || w->dtype == NRD_DTYPE_BF16;
    return is_plain ? NULL : w->columns; /* which plain numbers are multiplied by */
}

bool nrd_quant_int8_input(const nrd_quant_weight *w)
{
    return w && w->int8_input;
}

bool nrd_quant_has_own_input(const nrd_quant_weight *w)
{
    return w && (w->sorted || nrd_quant_input_scale(w));
}

static void free_weight(nrd_quant_weight *w)
{
    if (w) {
        free(w->name);
        free(w->sorted);
        free(w->columns);
        free(w->rotation);
    }
    free(w);
}

static nrd_error *add_weight(nrd_quant *q, const nrd_src_tensor *anchor, size_t len, nrd_dtype plain, unpacked *u)
{
    char stem[MAX_NAME], name[MAX_NAME + 8];
    nrd_quant_weight *w = NULL;
    nrd_error *err = NULL;
    const char *why = NULL;
    size_t bytes;

    if (len >= sizeof stem) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%.60s…' has a name of more than %d bytes", anchor->name,
                          (int)MAX_NAME);
    }
    memcpy(stem, anchor->name, len);
    stem[len] = '\0';
    NRD_NEW_GOTO(w, 1, err, fail);
    snprintf(name, sizeof name, "%s.weight", stem);
    NRD_DUP_GOTO(w->name, name, err, fail);
    w->format = q->reader->method;
    NRD_TRY_GOTO(q->reader->weight(q, stem, w), err, fail);
    const nrd_src_tensor *same = nrd_quant_find(q, w->name);
    if (same && !q->taken[same - q->table]) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is there beside '%s': expected one of them", w->name, anchor->name);
        goto fail;
    }
    NRD_TRY_GOTO(nrd_quant_settle(w, plain, &why), err, fail);
    if (!nrd_dtype_bytes(w->dtype, (uint64_t)w->cols, &bytes) || !nrd_size_mul(bytes, (size_t)w->rows, &bytes)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' of %lld x %lld is too large", w->name, (long long)w->rows,
                         (long long)w->cols);
        goto fail;
    }
    if (why) {
        u->n++;
        u->why = u->why ? u->why : why;
        u->bytes += bytes;
        u->file_bytes += w->file_bytes;
    }
    q->weights[q->n++] = w;
    return NULL;

fail:
    free_weight(w);
    return err;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nrd_src_tensor *)a)->name, ((const nrd_src_tensor *)b)->name);
}

/* The table without the parts, and with the weights; each has at least one part, so there is room. */
static void replace_parts(nrd_quant *q, size_t *n)
{
    size_t left = 0;
    for (size_t i = 0; i < *n; i++) {
        if (!q->taken[i]) {
            q->table[left++] = q->table[i];
        }
    }
    for (size_t i = 0; i < q->n; i++) {
        const nrd_quant_weight *w = q->weights[i];
        size_t row_bytes = (size_t)(w->cols / nrd_dtype_block(w->dtype)) * nrd_dtype_block_bytes(w->dtype);
        q->table[left++] = (nrd_src_tensor){.name = w->name, .dtype = w->dtype, .n_dims = 2,
                                            .dims = {w->rows, w->cols, 1, 1}, .packed = w,
                                            .data_bytes = row_bytes * (size_t)w->rows, .type_name = w->format};
    }
    if (left > 0) { /* a file may have no tensors */
        qsort(q->table, left, sizeof *q->table, by_name);
    }
    *n = left;
}

static nrd_error *read_table(nrd_quant *q, nrd_dtype plain, size_t *n)
{
    nrd_error *err = NULL;
    unpacked u = {0};

    NRD_NEW_GOTO(q->taken, *n + 1, err, done);
    NRD_NEW_GOTO(q->weights, *n + 1, err, done);
    for (size_t i = 0; i < *n && !err; i++) {
        size_t len = stem_of(q, &q->table[i]);
        if (len && !q->taken[i]) {
            err = add_weight(q, &q->table[i], len, plain, &u);
        }
    }
    for (size_t i = 0; i < *n && !err; i++) {
        err = q->taken[i] ? NULL : nrd_quant_check_unrotated(q, &q->table[i]);
    }
    if (err) {
        goto done;
    }
    replace_parts(q, n);
    if (u.n) {
        nrd_str_printf(&q->notes, "%zu of %zu %s weights are unpacked to %s, because %s: %.1f MB instead of %.1f MB; "
                       "--quantize q8_0 takes about half", u.n, q->n, q->reader->method, nrd_dtype_name(plain), u.why,
                       (double)u.bytes / 1e6, (double)u.file_bytes / 1e6);
    }
done:
    free(q->taken);
    q->taken = NULL;
    q->table = NULL;
    return err;
}

/* ---- which format ---- */

/* Files of those that write no quantization_config: each stands for one method. */
static const struct {
    const char *file, *method;
} beside[] = {{"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}, {"hf_quant_config.json", "modelopt"},
              {"quanto_qmap.json", "quanto"}};

static nrd_error *find_config(const nrd_json *config, const char *dir, nrd_json_doc **out_doc, const nrd_json **out,
                              const char **out_method)
{
    const nrd_json *c = nrd_json_get(config, "quantization_config");
    c = nrd_json_is(c, NRD_JSON_OBJECT) ? c : nrd_json_get(nrd_json_get(config, "text_config"), "quantization_config");
    c = nrd_json_is(c, NRD_JSON_OBJECT) ? c : nrd_json_get(config, "quantization"); /* MLX has it by both names */
    *out_doc = NULL;
    *out = NULL;
    if (nrd_json_is(c, NRD_JSON_OBJECT)) {
        *out = c;
        const bool is_mlx = nrd_json_get(c, "group_size") && nrd_json_get(c, "bits");
        *out_method = nrd_json_get_str(c, "quant_method", is_mlx ? nrd_quant_mlx.method : "");
        return NULL;
    }
    for (size_t i = 0; i < sizeof beside / sizeof beside[0] && !*out_doc; i++) {
        NRD_TRY(nrd_json_parse_in(out_doc, dir, beside[i].file, &(nrd_json_limits){.max_bytes = MAX_CONFIG_BYTES}));
        *out_method = beside[i].method;
    }
    *out = *out_doc ? nrd_json_root(*out_doc) : NULL;
    const nrd_json *inner = nrd_json_get(*out, "quantization"); /* ModelOpt's */
    *out = inner ? inner : *out;
    return NULL;
}

static nrd_error *find_reader(nrd_quant *q, const char *method)
{
    static const char maker[] = "intel/"; /* in front of auto-round, in older versions of it */
    const char *name = method + (strncmp(method, maker, sizeof maker - 1) ? 0 : sizeof maker - 1);
    nrd_str known = {0};
    for (int i = 0; i < N_READERS; i++) {
        if (!strcmp(readers[i]->method, name)) {
            q->reader = readers[i];
            nrd_str_fini(&known);
            return NULL;
        }
        nrd_str_printf(&known, "%s%s", i ? ", " : "", readers[i]->method);
    }
    nrd_error *err = nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization_config: quant_method '%s' is not supported; known: "
                                "%s. Give the original model and --quantize, or a GGUF file", method,
                                nrd_str_cstr(&known));
    nrd_str_fini(&known);
    return err;
}

static bool cache_is_int8(const nrd_json *fields)
{
    const nrd_json *scheme = nrd_json_get(fields, "kv_cache_scheme");
    return !strcmp(nrd_json_get_str(scheme, "type", ""), "int") || !strcmp(nrd_json_get_str(fields, "kv_cache_quant_algo", ""), "INT8");
}

/* TensorRT-LLM's quant_algo, and what a weight kept as I8 is by it. */
static const struct {
    const char *algo;
    nrd_dtype bytes;
    nrd_quant_settings settings; /* beside those of its reader */
} checkpoints[] = {
    {"FP8", NRD_DTYPE_F8_E4M3, {0}},
    {"FP8_PER_CHANNEL_PER_TOKEN", NRD_DTYPE_F8_E4M3, {0}},
    {"W4A16_AWQ", NRD_DTYPE_U8, {0}},
    {"W4A8_AWQ", NRD_DTYPE_U8, {0}},
    {"W8A8_SQ_PER_CHANNEL", NRD_DTYPE_I8, {.int8_inputs = true}},
    {"NVFP4", NRD_DTYPE_U8, {0}},
    {"NVFP4_AWQ", NRD_DTYPE_U8, {0}},
    {"W4A16_NVFP4", NRD_DTYPE_U8, {0}},
    {"W4A8_NVFP4_FP8", NRD_DTYPE_U8, {0}},
    {"W4A8_MXFP4_FP8", NRD_DTYPE_U8, {0}},
    {"mxfp4", NRD_DTYPE_U8, {0}}, /* ModelOpt's own names, where TensorRT-LLM has none */
    {"MXFP8", NRD_DTYPE_F8_E4M3, {0}},
    {"fp8_pb_wo", NRD_DTYPE_F8_E4M3, {0}},
    {"W8A16", NRD_DTYPE_I8, {.whole = nrd_quant_weight_only, .bits = 8, .orders = 7}},
    {"W4A16", NRD_DTYPE_I8, {.whole = nrd_quant_weight_only, .bits = 4, .orders = 7}},
    {"W8A16_GPTQ", NRD_DTYPE_I8, {.whole = nrd_quant_gptq_product, .bits = 8, .orders = 7}},
    {"W4A16_GPTQ", NRD_DTYPE_I8, {.whole = nrd_quant_gptq_product, .bits = 4, .orders = 7}},
    {"W4A8_QSERVE_PER_GROUP", NRD_DTYPE_I8, {.whole = nrd_quant_qserve, .group_size = 128}},
    {"W4A8_QSERVE_PER_CHANNEL", NRD_DTYPE_I8, {.whole = nrd_quant_qserve}},
    {"W8A8_SQ_PER_TENSOR_PLUGIN", NRD_DTYPE_I8, {.whole = nrd_quant_smooth, .int8_inputs = true, .static_inputs = true}},
    {"W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", NRD_DTYPE_I8, {.whole = nrd_quant_smooth, .int8_inputs = true, .static_inputs = true}},
    {"W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", NRD_DTYPE_I8, {.whole = nrd_quant_smooth, .int8_inputs = true}},
    {"W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", NRD_DTYPE_I8, {.whole = nrd_quant_smooth, .int8_inputs = true}},
};
enum { N_CHECKPOINTS = (int)(sizeof checkpoints / sizeof checkpoints[0]) };

/* ModelOpt writes it, by which alone layers of NRD_QUANT_MIXED come. */
static bool is_modelopts(int i)
{
    return !checkpoints[i].settings.whole || !strcmp(checkpoints[i].algo, "W8A16");
}

static int checkpoint_of(const char *algo)
{
    int i = 0;
    while (i < N_CHECKPOINTS && strcmp(checkpoints[i].algo, algo) != 0) {
        i++;
    }
    return i;
}

/* Those that are, or with `of_layers` those that a layer of NRD_QUANT_MIXED can have, in one line. */
static void known_checkpoints(bool of_layers, nrd_str *out)
{
    for (int i = 0; i < N_CHECKPOINTS; i++) {
        if (!of_layers || is_modelopts(i)) {
            nrd_str_printf(out, "%s%s", out->len ? ", " : "", checkpoints[i].algo);
        }
    }
}

bool nrd_quant_reads_checkpoint(const char *quant_algo)
{
    return !strcmp(quant_algo, NRD_QUANT_MIXED) || checkpoint_of(quant_algo) < N_CHECKPOINTS;
}

/* What a layer's weight kept as I8 is, where each layer has an algorithm. */
static nrd_error *bytes_of_layer(const nrd_json *layers, const char *stem, nrd_dtype *out)
{
    const nrd_json *layer = nrd_json_get(layers, stem);
    const nrd_json *algo = nrd_json_get(layer, "quant_algo");
    const int i = checkpoint_of(nrd_json_str(algo, ""));
    const bool is_known = i < N_CHECKPOINTS && is_modelopts(i);
    nrd_str known = {0};

    if (is_known && !nrd_json_get_bool(layer, "has_zero_point", false)) {
        *out = checkpoints[i].bytes;
        return NULL;
    }
    known_checkpoints(true, &known);
    nrd_error *err = nrd_errorf(NRD_ERR_UNSUPPORTED, "quant_cfg.json: quantized_layers: '%s' has quant_algo '%s'%s; known: %s, without zero "
                                "points", stem, nrd_json_str(algo, nrd_json_type_name(algo)), is_known ? " and has_zero_point" : "",
                                nrd_str_cstr(&known));
    nrd_str_fini(&known);
    return err;
}

/* Gives weights with scales their types, and takes scales away whose weight is plain: ModelOpt's of an output layer that was left out.
 * `bytes`: what a weight kept as I8 is, unless `layers` says so. */
static nrd_error *prepare_checkpoint(nrd_quant *q, nrd_dtype bytes, const nrd_json *layers, size_t *n)
{
    static const char *const parts[] = {".weights_scaling_factor", ".activation_scaling_factor", ".per_channel_scale",
                                        ".weights_block_scaling_factor"};
    char name[MAX_NAME];
    size_t left = 0;

    for (size_t i = 0; i < *n; i++) { /* before any of them moves, since find needs the table as it is */
        nrd_src_tensor *t = &q->table[i], *weight = NULL;
        for (size_t k = 0; k < sizeof parts / sizeof parts[0] && !weight; k++) {
            const size_t stem = nrd_str_has_suffix(t->name, parts[k]) ? strlen(t->name) - strlen(parts[k]) : 0;
            if (stem && (size_t)snprintf(name, sizeof name, "%.*s.weight", (int)stem, t->name) < sizeof name) {
                weight = nrd_quant_find(q, name);
            }
        }
        if (weight && weight->dtype == NRD_DTYPE_I8) {
            name[strlen(name) - strlen(".weight")] = '\0';
            NRD_TRY(layers ? bytes_of_layer(layers, name, &bytes) : NULL);
            weight->dtype = bytes;
        }
        q->taken[i] = weight && !q->settings.whole &&
                      (weight->dtype == NRD_DTYPE_F32 || weight->dtype == NRD_DTYPE_F16 || weight->dtype == NRD_DTYPE_BF16);
    }
    for (size_t i = 0; i < *n; i++) {
        if (!q->taken[i]) {
            q->table[left++] = q->table[i];
        }
    }
    *n = q->n_table = left;
    return NULL;
}

nrd_error *nrd_quant_open_checkpoint(nrd_quant **out, const nrd_json *config, const nrd_json *layers, nrd_dtype dtype,
                                     nrd_src_tensor *table, size_t *n)
{
    const nrd_json *algo = nrd_json_get(config, "quant_algo");
    const int i = checkpoint_of(nrd_json_str(algo, ""));
    nrd_error *err = NULL;
    nrd_quant *q = NULL;

    *out = NULL;
    if (i == N_CHECKPOINTS && !layers) {
        nrd_str known = {0};
        known_checkpoints(false, &known);
        err = nrd_quant_refuse("quant_algo", algo, nrd_str_cstr(&known));
        nrd_str_fini(&known);
        return err;
    }
    NRD_NEW_GOTO(q, 1, err, fail);
    q->table = table;
    q->n_table = *n;
    q->reader = &nrd_quant_checkpoint;
    q->settings = layers ? (nrd_quant_settings){0} : checkpoints[i].settings;
    NRD_NEW_GOTO(q->taken, *n + 1, err, fail);
    NRD_TRY_GOTO(q->reader->open(q, config), err, fail);
    NRD_TRY_GOTO(prepare_checkpoint(q, layers ? NRD_DTYPE_NONE : checkpoints[i].bytes, layers, n), err, fail);
    free(q->taken);
    q->taken = NULL;
    NRD_TRY_GOTO(read_table(q, dtype, n), err, fail);
    for (size_t k = 0; k < q->n; k++) {
        if (q->weights[k]->orders) {
            NRD_TRY_GOTO(nrd_quant_check_order_of_product(q), err, fail);
            break;
        }
    }
    *out = q;
    return NULL;

fail:
    nrd_quant_close(q);
    return err;
}

nrd_error *nrd_quant_open(nrd_quant **out, const nrd_json *config, const char *dir, nrd_dtype dtype,
                          nrd_src_tensor *table, size_t *n)
{
    nrd_error *err = NULL;
    nrd_quant *q = NULL;
    nrd_json_doc *doc = NULL;
    const nrd_json *fields;
    const char *method = "";

    *out = NULL;
    NRD_TRY(find_config(config, dir, &doc, &fields, &method));
    if (!fields) {
        return NULL;
    }
    NRD_NEW_GOTO(q, 1, err, fail);
    q->table = table;
    q->n_table = *n;
    q->settings.model = config;
    NRD_TRY_GOTO(find_reader(q, method), err, fail);
    NRD_TRY_GOTO(q->reader->open(q, fields), err, fail);
    q->kv_is_int8 = cache_is_int8(fields);
    NRD_TRY_GOTO(read_table(q, dtype, n), err, fail);
    nrd_json_doc_free(doc);
    *out = q;
    return NULL;

fail:
    nrd_json_doc_free(doc);
    nrd_quant_close(q);
    return err;
}

nrd_error *nrd_quant_open_ternary(nrd_quant **out, nrd_dtype dtype, nrd_src_tensor *table, size_t *n)
{
    nrd_error *err = NULL;
    nrd_quant *q = NULL;
    size_t i = 0;

    *out = NULL;
    while (i < *n && !nrd_quant_is_i2_s(NULL, &table[i])) {
        i++;
    }
    if (i == *n) {
        return NULL;
    }
    NRD_NEW_GOTO(q, 1, err, fail);
    q->table = table;
    q->n_table = *n;
    q->reader = &nrd_quant_i2_s;
    q->settings.is_anchor = nrd_quant_is_i2_s;
    NRD_TRY_GOTO(read_table(q, dtype, n), err, fail);
    *out = q;
    return NULL;

fail:
    nrd_quant_close(q);
    return err;
}

void nrd_quant_close(nrd_quant *q)
{
    if (!q) {
        return;
    }
    for (size_t i = 0; i < q->n; i++) {
        free_weight(q->weights[i]);
    }
    free(q->weights);
    free(q->taken);
    nrd_str_fini(&q->notes);
    free(q);
}
