/* SPDX-License-Identifier: Apache-2.0
 * A dictionary into a request. The engine checks values; here are checked the sizes of arrays, which the
 * engine takes on trust. */
#include "python/module.h"

#include "base/dtype.h"

#include <string.h>

enum { MAX_RANGES = 1024 };

#define ROW(kind, field)                                                                           \
    {                                                                                              \
#field, NRD_PY_##kind, offsetof(nrd_exec_request, field)                                   \
    }
#define SAMPLING(kind, field)                                                                      \
    {                                                                                              \
#field, NRD_PY_##kind, offsetof(nrd_exec_request, sampling.field)                          \
    }
#define OTHER(name)                                                                                \
    {                                                                                              \
        name, NRD_PY_OTHER, 0                                                                      \
    }
static const nrd_py_field rows[] = {
    ROW(I32, kind),
    ROW(I32, max_new_tokens),
    ROW(BOOL, streaming),
    ROW(BOOL, exclude_input_in_output),
    ROW(I32, end_id),
    ROW(I32, pad_id),
    SAMPLING(I32, beam_width),
    SAMPLING(I32, num_return_sequences),
    SAMPLING(I32, top_k),
    SAMPLING(F32, top_p),
    SAMPLING(F32, top_p_min),
    SAMPLING(F32, top_p_decay),
    SAMPLING(I32, top_p_reset_id),
    SAMPLING(F32, min_p),
    SAMPLING(F32, temperature),
    SAMPLING(U64, random_seed),
    SAMPLING(I32, min_length),
    SAMPLING(F32, repetition_penalty),
    SAMPLING(F32, presence_penalty),
    SAMPLING(F32, frequency_penalty),
    SAMPLING(F32, length_penalty),
    SAMPLING(F32, beam_search_diversity_rate),
    SAMPLING(I32, early_stopping),
    SAMPLING(I32, no_repeat_ngram_size),
    ROW(F32, priority),
    ROW(U64, client_id),
    ROW(BOOL, return_log_probs),
    ROW(BOOL, return_context_logits),
    ROW(BOOL, return_generation_logits),
    ROW(BOOL, return_perf_metrics),
    ROW(I32, n_top_logprobs),
    ROW(BOOL, return_prompt_log_probs),
    ROW(I32, n_top_prompt_logprobs),
    ROW(DTYPE, prompt_table_dtype),
    ROW(U64, lora_task_id),
    ROW(I64, lora_rows),
    ROW(I64, lora_width),
    ROW(I32, lora_config_width),
    ROW(DTYPE, lora_weights_dtype),
    ROW(F32, draft_acceptance_threshold),
    ROW(I32, lookahead_window_size),
    ROW(I32, lookahead_ngram_size),
    ROW(I32, lookahead_verification_set_size),
    ROW(DTYPE, encoder_features_dtype),
    ROW(I32, n_encoder_frames),
    ROW(I32, encoder_feature_size),
    ROW(I32, encoder_output_length),
    ROW(I32, n_cross_mask_rows),
    ROW(I32, n_cross_mask_cols),
    ROW(BOOL, skip_cross_attn_blocks),
    ROW(I32, retention_decode_priority),
    ROW(I64, retention_decode_duration_ms),
    ROW(I64, mrope_position_delta),
    ROW(STR, guide_type),
    ROW(STR, guide),
    ROW(STR, cache_salt),
    ROW(U64, group),
    ROW(I32, pooling),
    OTHER("input_ids"),
    OTHER("draft_input_ids"),
    OTHER("draft_logits"),
    OTHER("decoder_input_ids"),
    OTHER("encoder_input_features"),
    OTHER("cross_attention_mask"),
    OTHER("bias_ids"),
    OTHER("bias_values"),
    OTHER("embedding_bias"),
    OTHER("prompt_embedding_table"),
    OTHER("prompt_table_extra_ids"),
    OTHER("mrope_rotary_cos_sin"),
    OTHER("lora_weights"),
    OTHER("lora_config"),
    OTHER("stop_words"),
    OTHER("bad_words"),
    OTHER("retention_ranges"),
    OTHER("images"),
    OTHER("videos"),
};

static bool wrong_size(const char *name, size_t got, const char *what, size_t want)
{
    PyErr_Format(PyExc_ValueError, "%s has %zu elements, expected %zu (%s)", name, got, want, what);
    return false;
}

/* Ids under a name, with their number as the engine counts them. */
static bool ids(PyObject *dict, const char *name, const int32_t **out, int32_t *out_n)
{
    const void *data;
    size_t n;
    if (!nrd_py_bytes(dict, name, sizeof(int32_t), &data, &n)) {
        return false;
    }
    if (n > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%s has %zu elements, at most %d are possible", name, n,
                     INT32_MAX);
        return false;
    }
    *out = data;
    *out_n = (int32_t)n;
    return true;
}

/* Phrases as a pair of bytes: all ids one behind the other, and where each phrase ends. */
static bool phrases(PyObject *dict, const char *name, nrd_phrases *out)
{
    PyObject *pair = PyDict_GetItemString(dict, name), *parts;
    int32_t n_ids = 0, before = 0;

    if (!pair || pair == Py_None) {
        return true;
    }
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2 || !(parts = PyDict_New())) {
        PyErr_Format(PyExc_TypeError, "%s: expected a pair of bytes", name);
        return false;
    }
    bool fine = PyDict_SetItemString(parts, "ids", PyTuple_GetItem(pair, 0)) == 0 &&
                PyDict_SetItemString(parts, "ends", PyTuple_GetItem(pair, 1)) == 0 &&
                ids(parts, "ids", &out->ids, &n_ids) && ids(parts, "ends", &out->ends, &out->n);
    Py_DECREF(parts); /* the pair keeps the bytes */
    for (int32_t i = 0; fine && i < out->n; i++) {
        int32_t end;
        memcpy(&end, (const char *)out->ends + (size_t)i * sizeof end, sizeof end);
        if (end < before || end > n_ids) {
            PyErr_Format(PyExc_ValueError, "%s: phrase %d ends at %d of %d ids", name, i, end,
                         n_ids);
            fine = false;
        }
        before = end;
    }
    return fine;
}

static bool bias(PyObject *dict, const nrd_exec_info *info, nrd_exec_request *r)
{
    const void *all, *values;
    size_t n_all, n_values;

    if (!nrd_py_bytes(dict, "embedding_bias", sizeof(float), &all, &n_all) ||
        !nrd_py_bytes(dict, "bias_values", sizeof(float), &values, &n_values) ||
        !ids(dict, "bias_ids", &r->bias_ids, &r->n_bias)) {
        return false;
    }
    if (all && n_all != (size_t)info->vocab) {
        return wrong_size("embedding_bias", n_all, "the vocabulary", (size_t)info->vocab);
    }
    if (n_values != (size_t)r->n_bias) {
        return wrong_size("bias_values", n_values, "as many as bias_ids", (size_t)r->n_bias);
    }
    r->embedding_bias = all;
    r->bias_values = values;
    return true;
}

static size_t element(nrd_dtype t)
{
    return t == NRD_DTYPE_F32 ? 4 : 2; /* F16, BF16; the engine refuses others */
}

static bool prompt_table(PyObject *dict, const nrd_exec_info *info, nrd_exec_request *r)
{
    const size_t row = (size_t)info->hidden * element(r->prompt_table_dtype);
    const void *table, *extra;
    size_t n, n_extra;

    if (!nrd_py_bytes(dict, "prompt_embedding_table", row, &table, &n) ||
        !nrd_py_bytes(dict, "prompt_table_extra_ids", sizeof(uint64_t), &extra, &n_extra)) {
        return false;
    }
    if (n > INT32_MAX || (extra && n_extra != (size_t)r->n_input_ids)) {
        return wrong_size("prompt_table_extra_ids", n_extra, "one for each input id",
                          (size_t)r->n_input_ids);
    }
    r->prompt_embedding_table = table;
    r->prompt_vocab_size = (int32_t)n;
    r->prompt_table_extra_ids = extra;
    return true;
}

static bool places(PyObject *dict, nrd_exec_request *r)
{
    const void *table;
    size_t n;

    if (!nrd_py_bytes(dict, "mrope_rotary_cos_sin", sizeof(float), &table, &n)) {
        return false;
    }
    r->mrope_rotary_cos_sin = table;
    r->n_mrope_values = (int64_t)n;
    return true;
}

static bool lora(PyObject *dict, nrd_exec_request *r)
{
    const int64_t most = INT64_MAX / 8, wide = r->lora_config_width ? r->lora_config_width : 3;
    const void *weights, *config;
    size_t n, n_config;

    if (!nrd_py_bytes(dict, "lora_weights", element(r->lora_weights_dtype), &weights, &n) ||
        !nrd_py_bytes(dict, "lora_config", sizeof(int32_t), &config, &n_config)) {
        return false;
    }
    if (r->lora_rows < 0 || r->lora_width < 0 || wide < 3 || wide > 4 ||
        (r->lora_width > 0 && r->lora_rows > most / r->lora_width)) {
        PyErr_SetString(PyExc_ValueError, "lora_weights and lora_config must have two dimensions");
        return false;
    }
    if (weights && n != (size_t)(r->lora_rows * r->lora_width)) {
        return wrong_size("lora_weights", n, "rows times width",
                          (size_t)(r->lora_rows * r->lora_width));
    }
    if (config && (r->lora_rows > most / wide || n_config != (size_t)(r->lora_rows * wide))) {
        return wrong_size("lora_config", n_config, "a row for each of lora_weights",
                          (size_t)(r->lora_rows * wide));
    }
    r->lora_weights = weights;
    r->lora_config = config;
    return true;
}

static bool draft(PyObject *dict, const nrd_exec_info *info, nrd_exec_request *r)
{
    const void *logits;
    size_t n;

    if (!ids(dict, "draft_input_ids", &r->draft_input_ids, &r->n_draft_input_ids) ||
        !ids(dict, "decoder_input_ids", &r->decoder_input_ids, &r->n_decoder_input_ids) ||
        !nrd_py_bytes(dict, "draft_logits", sizeof(float), &logits, &n)) {
        return false;
    }
    if (logits && n != (size_t)r->n_draft_input_ids * (size_t)info->vocab) {
        return wrong_size("draft_logits", n, "draft ids times the vocabulary",
                          (size_t)r->n_draft_input_ids * (size_t)info->vocab);
    }
    r->draft_logits = logits;
    r->ends_behind_draft = r->max_new_tokens <= r->n_draft_input_ids + (int64_t)1; /* who asks for no more brings the next draft */
    return true;
}

/* What an encoder reads instead of tokens, and which of its states are seen. */
static bool encoder(PyObject *dict, nrd_exec_request *r)
{
    const void *features, *mask;
    size_t n, n_mask;

    if (!nrd_py_bytes(dict, "encoder_input_features", element(r->encoder_features_dtype), &features, &n) ||
        !nrd_py_bytes(dict, "cross_attention_mask", 1, &mask, &n_mask)) {
        return false;
    }
    if (r->n_encoder_frames < 0 || r->encoder_feature_size < 0) {
        PyErr_SetString(PyExc_ValueError, "n_encoder_frames and encoder_feature_size must not be negative");
        return false;
    }
    const size_t want = (size_t)r->n_encoder_frames * (size_t)r->encoder_feature_size;
    if (features && n != want) {
        return wrong_size("encoder_input_features", n, "frames times features", want);
    }
    if (r->n_cross_mask_rows < 0 || r->n_cross_mask_cols < 0) {
        PyErr_SetString(PyExc_ValueError, "n_cross_mask_rows and n_cross_mask_cols must not be negative");
        return false;
    }
    const size_t of_mask = (size_t)r->n_cross_mask_rows * (size_t)r->n_cross_mask_cols;
    if (mask && n_mask != of_mask) {
        return wrong_size("cross_attention_mask", n_mask, "rows times columns", of_mask);
    }
    r->encoder_input_features = features;
    r->cross_attention_mask = mask;
    return true;
}

/* [(start, end, priority, duration_ms)] */
static bool retention(PyObject *dict, nrd_py_request *q)
{
    PyObject *list = PyDict_GetItemString(dict, "retention_ranges");
    if (!list || list == Py_None) {
        return true;
    }
    const Py_ssize_t n = PyList_Check(list) ? PyList_Size(list) : MAX_RANGES + 1;
    if (n > MAX_RANGES) {
        PyErr_Format(PyExc_ValueError, "retention_ranges: expected a list of at most %d ranges",
                     MAX_RANGES);
        return false;
    }
    if (!(q->ranges = PyMem_Malloc((size_t)(n + 1) * sizeof *q->ranges))) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        nrd_kv_retention_range *a = &q->ranges[i];
        long long ms = 0;
        PyObject *row = PyList_GetItem(list, i);
        if (!row || !PyTuple_Check(row)) {
            PyErr_SetString(PyExc_TypeError,
                            "retention_ranges: expected (start, end, priority, duration_ms)");
            return false;
        }
        if (!PyArg_ParseTuple(row, "iiiL", &a->start, &a->end, &a->priority, &ms)) {
            return false;
        }
        a->duration_ms = ms;
    }
    q->r.retention_ranges = q->ranges;
    q->r.n_retention_ranges = (int32_t)n;
    return true;
}

bool nrd_py_request_read(PyObject *dict, const nrd_exec_info *info, nrd_py_request *out)
{
    nrd_exec_request *r = &out->r;

    *out = (nrd_py_request){0};
    nrd_exec_request_init(r);
    if (nrd_py_fill(dict, rows, sizeof rows / sizeof *rows, r) &&
        ids(dict, "input_ids", &r->input_ids, &r->n_input_ids) &&
        phrases(dict, "stop_words", &r->stop_words) && phrases(dict, "bad_words", &r->bad_words) &&
        bias(dict, info, r) && prompt_table(dict, info, r) && places(dict, r) && lora(dict, r) &&
        draft(dict, info, r) && encoder(dict, r) && retention(dict, out) && nrd_py_pictures(dict, out)) {
        return true;
    }
    nrd_py_request_free(out);
    return false;
}

void nrd_py_request_free(nrd_py_request *q)
{
    PyMem_Free(q->ranges);
    PyMem_Free(q->images);
    PyMem_Free(q->videos);
    q->ranges = NULL;
    q->images = NULL;
    q->videos = NULL;
}
