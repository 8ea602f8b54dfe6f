/* SPDX-License-Identifier: Apache-2.0
 * Tensors of one row -> nrd_exec_request. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/trt_log.h"

#include "base/dtype.h"
#include "base/str.h"

#include <limits.h>
#include <string.h>

typedef struct row_view {
    const nrd_tb_inputs *in;
    int64_t row, n_rows;
    nrd_arena *arena;
} row_view;

/* Elements [0, per_row) of this row; false when the tensor is absent. */
static bool find_row(const row_view *v, const char *name, const nrd_tb_tensor **out, int64_t *out_first,
                     int64_t *out_n)
{
    const nrd_tb_tensor *t = nrd_tb_find(v->in, name);
    if (!t) {
        return false;
    }
    *out = t;
    *out_n = t->n_elements / v->n_rows;
    *out_first = *out_n * v->row;
    return true;
}

static TRITONSERVER_Error *bad(const char *name, const char *why)
{
    return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' %s", name, why);
}

static TRITONSERVER_Error *get_i64(const row_view *v, const char *name, int64_t *out)
{
    const nrd_tb_tensor *t;
    int64_t first, n;
    if (!find_row(v, name, &t, &first, &n)) {
        return NULL;
    }
    return nrd_tb_get_i64(t, first, out) ? NULL : bad(name, "must hold one integer");
}

static TRITONSERVER_Error *get_i32(const row_view *v, const char *name, int32_t *out)
{
    int64_t x = *out;
    NRD_TB_TRY(get_i64(v, name, &x));
    if (x < INT32_MIN || x > INT32_MAX) {
        return bad(name, "is out of the range of 32-bit integers");
    }
    *out = (int32_t)x;
    return NULL;
}

static TRITONSERVER_Error *get_u64(const row_view *v, const char *name, uint64_t *out)
{
    int64_t x = (int64_t)*out;
    NRD_TB_TRY(get_i64(v, name, &x));
    *out = (uint64_t)x;
    return NULL;
}

static TRITONSERVER_Error *get_bool(const row_view *v, const char *name, bool *out)
{
    int64_t x = *out;
    NRD_TB_TRY(get_i64(v, name, &x));
    *out = x != 0;
    return NULL;
}

static TRITONSERVER_Error *get_f32(const row_view *v, const char *name, float *out)
{
    const nrd_tb_tensor *t;
    int64_t first, n;
    double x;
    if (!find_row(v, name, &t, &first, &n)) {
        return NULL;
    }
    if (!nrd_tb_get_f64(t, first, &x)) {
        return bad(name, "must hold one number");
    }
    *out = (float)x;
    return NULL;
}

/* A row of int32s, aligned and owned by the arena; *out_n 0 when absent. */
static TRITONSERVER_Error *get_ids(const row_view *v, const char *name, int32_t **out, int64_t *out_n)
{
    const nrd_tb_tensor *t;
    int64_t first, x;
    *out = NULL;
    *out_n = 0;
    if (!find_row(v, name, &t, &first, out_n)) {
        return NULL;
    }
    *out = nrd_arena_alloc(v->arena, (size_t)*out_n * sizeof **out);
    if (!*out) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t i = 0; i < *out_n; i++) {
        if (!nrd_tb_get_i64(t, first + i, &x) || x < INT32_MIN || x > INT32_MAX) {
            return bad(name, "must hold 32-bit integers");
        }
        (*out)[i] = (int32_t)x;
    }
    return NULL;
}

/* [2, L]: ids, then inclusive cumulative ends, -1 padded. Checked as the receiver must (sizes, rising
 * ends, nothing behind the first -1). */
static TRITONSERVER_Error *get_phrases(const row_view *v, const char *name, nrd_phrases *out)
{
    int32_t *ids;
    int64_t n;
    NRD_TB_TRY(get_ids(v, name, &ids, &n));
    memset(out, 0, sizeof *out);
    if (n % 2) {
        return bad(name, "must have the shape [2, length]");
    }
    const int32_t *ends = ids + n / 2;
    for (int64_t i = 0; i < n / 2; i++) {
        int32_t before = i ? ends[i - 1] : 0;
        if (ends[i] == -1) {
            for (int64_t k = i; k < n / 2; k++) {
                if (ends[k] != -1) {
                    return bad(name, "has an offset behind the first -1");
                }
            }
            break;
        }
        if (ends[i] <= before || ends[i] > n / 2) {
            return bad(name, "has offsets that are not strictly increasing or exceed its length");
        }
        out->n++;
    }
    out->ids = ids;
    out->ends = ends;
    return NULL;
}

static TRITONSERVER_Error *get_sampling(const row_view *v, nrd_exec_request *out)
{
    nrd_sampling_config *s = &out->sampling;
    float early = (float)s->early_stopping;
    NRD_TB_TRY(get_i32(v, "beam_width", &s->beam_width));
    NRD_TB_TRY(get_i32(v, "num_return_sequences", &s->num_return_sequences));
    NRD_TB_TRY(get_f32(v, "temperature", &s->temperature));
    NRD_TB_TRY(get_i32(v, "runtime_top_k", &s->top_k));
    NRD_TB_TRY(get_f32(v, "runtime_top_p", &s->top_p));
    if (s->top_p <= 0) {
        s->top_p = 0; /* TensorRT-LLM: a value <= 0 is treated as absent */
    }
    NRD_TB_TRY(get_f32(v, "runtime_min_p", &s->min_p));
    NRD_TB_TRY(get_f32(v, "runtime_top_p_min", &s->top_p_min));
    NRD_TB_TRY(get_f32(v, "runtime_top_p_decay", &s->top_p_decay));
    NRD_TB_TRY(get_i32(v, "runtime_top_p_reset_ids", &s->top_p_reset_id));
    NRD_TB_TRY(get_f32(v, "len_penalty", &s->length_penalty));
    NRD_TB_TRY(get_f32(v, "repetition_penalty", &s->repetition_penalty));
    NRD_TB_TRY(get_i32(v, "min_length", &s->min_length));
    NRD_TB_TRY(get_i32(v, "min_tokens", &s->min_length)); /* its name after v0.19, as seed is random_seed's */
    NRD_TB_TRY(get_f32(v, "presence_penalty", &s->presence_penalty));
    NRD_TB_TRY(get_f32(v, "frequency_penalty", &s->frequency_penalty));
    NRD_TB_TRY(get_u64(v, "random_seed", &s->random_seed));
    NRD_TB_TRY(get_u64(v, "seed", &s->random_seed));
    NRD_TB_TRY(get_f32(v, "beam_search_diversity_rate", &s->beam_search_diversity_rate));
    NRD_TB_TRY(get_f32(v, "early_stopping", &early));
    if (!(early >= -0x1p31f && early < 0x1p31f)) {
        return bad("early_stopping", "must be a number that fits 32 bits");
    }
    s->early_stopping = (int32_t)early;
    return get_i32(v, "no_repeat_ngram_size", &s->no_repeat_ngram_size);
}

static TRITONSERVER_Error *get_bias(const nrd_llm_instance *inst, const row_view *v,
                                    nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int64_t first, n;
    if (!find_row(v, "embedding_bias", &t, &first, &n) || n == 0) {
        return NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_FP32 || n > inst->info.vocab) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "input 'embedding_bias' has %lld values, the model's vocabulary has %d",
                             (long long)n, inst->info.vocab);
    }
    /* A tokenizer may know fewer ids than the model has rows: the rest gets no bias. */
    float *bias = nrd_arena_alloc(v->arena, (size_t)inst->info.vocab * sizeof *bias);
    if (!bias) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    memset(bias, 0, (size_t)inst->info.vocab * sizeof *bias);
    memcpy(bias, t->data + (size_t)first * sizeof *bias, (size_t)n * sizeof *bias);
    out->embedding_bias = bias;
    return NULL;
}

/* This row's part of a tensor of numbers; NULL when it is absent or empty. */
static const void *row_data(const row_view *v, const char *name, const nrd_tb_tensor **out)
{
    int64_t first, n;
    if (!find_row(v, name, out, &first, &n) || n == 0) {
        return NULL;
    }
    return (*out)->data + (size_t)first * TRITONSERVER_DataTypeByteSize((*out)->dtype);
}

/* The row's string, NUL-terminated and owned by the arena; *out stays when the tensor is absent. */
static TRITONSERVER_Error *get_string(const row_view *v, const char *name, const char **out)
{
    const nrd_tb_tensor *t;
    int64_t first, n;
    size_t offset = 0, len = 0;
    const char *s = NULL;
    bool is_bad = false;

    if (!find_row(v, name, &t, &first, &n) || n == 0) {
        return NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_BYTES || n != 1) {
        return bad(name, "must hold one string a row");
    }
    for (int64_t i = 0; i <= first; i++) {
        if (!nrd_tb_next_string(t, &offset, &s, &len, &is_bad)) {
            return bad(name, "ends before the row's string");
        }
    }
    if (memchr(s, 0, len)) {
        return bad(name, "has a zero byte");
    }
    *out = nrd_arena_strndup(v->arena, s, len);
    return *out ? NULL : nrd_tb_error(nrd_error_no_memory());
}

static nrd_dtype lora_dtype(TRITONSERVER_DataType t)
{
    return t == TRITONSERVER_TYPE_FP16   ? NRD_DTYPE_F16
           : t == TRITONSERVER_TYPE_BF16 ? NRD_DTYPE_BF16
           : t == TRITONSERVER_TYPE_FP32 ? NRD_DTYPE_F32
                                         : NRD_DTYPE_NONE;
}

/* Weights [1, rows, width] and config [1, rows, 3] of an adapter; the executor checks what is in them. */
static TRITONSERVER_Error *get_lora(const row_view *v, nrd_exec_request *out)
{
    const nrd_tb_tensor *w, *c;
    int32_t *config;
    int64_t n;

    NRD_TB_TRY(get_u64(v, "lora_task_id", &out->lora_task_id));
    out->lora_weights = row_data(v, "lora_weights", &w);
    if (out->lora_weights) {
        out->lora_weights_dtype = lora_dtype(w->dtype);
        if (out->lora_weights_dtype == NRD_DTYPE_NONE) {
            return bad("lora_weights", "must be of FP16, BF16 or FP32");
        }
        if (w->n_dims < 2) {
            return bad("lora_weights", "must have the shape [1, rows, width]");
        }
        out->lora_rows = w->n_dims > 2 ? w->shape[w->n_dims - 2] : 1;
        out->lora_width = w->shape[w->n_dims - 1];
    }
    NRD_TB_TRY(get_ids(v, "lora_config", &config, &n));
    if (!config || n == 0) {
        return NULL;
    }
    c = nrd_tb_find(v->in, "lora_config");
    out->lora_config_width = c->shape[c->n_dims - 1] > 4 ? 5 : (int32_t)c->shape[c->n_dims - 1];
    if (c->n_dims < 2 || (out->lora_weights && n != out->lora_rows * out->lora_config_width)) {
        return bad("lora_config", "must have the shape [1, rows, 3], as many rows as lora_weights");
    }
    out->lora_config = config;
    return NULL;
}

/* Draft tokens [1, n] and their logits [1, n, vocab], which the executor wants as FP32. */
static TRITONSERVER_Error *get_draft(const nrd_llm_instance *inst, const row_view *v, nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int32_t *ids;
    int64_t n, first, n_thresholds;

    NRD_TB_TRY(get_ids(v, "draft_input_ids", &ids, &n));
    if (n > INT32_MAX) {
        return bad("draft_input_ids", "is too long");
    }
    out->draft_input_ids = ids;
    out->n_draft_input_ids = (int32_t)n;
    NRD_TB_TRY(get_f32(v, "draft_acceptance_threshold", &out->draft_acceptance_threshold));
    /* to the executor a negative one is none */
    if (out->draft_acceptance_threshold < 0 && find_row(v, "draft_acceptance_threshold", &t, &first, &n_thresholds)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "draft_acceptance_threshold must be in [0, 1], got %g",
                             (double)out->draft_acceptance_threshold);
    }
    const void *logits = row_data(v, "draft_logits", &t);
    if (!logits) {
        return NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_FP32 && t->dtype != TRITONSERVER_TYPE_FP16) {
        return bad("draft_logits", "must be FP32 or FP16");
    }
    if (n > inst->info.max_draft_len || n == 0) { /* the executor says so */
        out->draft_logits = logits;
        return NULL;
    }
    const int64_t rows = t->n_dims < 2 ? 1 : t->shape[t->n_dims - 2], cols = t->shape[t->n_dims - 1];
    if (t->n_dims < 2 || cols != inst->info.vocab || rows != n) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "input 'draft_logits' must have the shape [%lld, %d] (draft tokens, vocabulary), got [%lld, %lld]",
                             (long long)n, inst->info.vocab, (long long)rows, (long long)cols);
    }
    const size_t count = (size_t)n * (size_t)inst->info.vocab;
    float *copy = nrd_arena_alloc(v->arena, count * sizeof *copy);
    if (!copy) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    if (t->dtype == TRITONSERVER_TYPE_FP32) {
        memcpy(copy, logits, count * sizeof *copy);
    }
    for (size_t i = 0; i < count && t->dtype == TRITONSERVER_TYPE_FP16; i++) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)logits + i * sizeof half, sizeof half);
        copy[i] = nrd_f16_to_f32(half);
    }
    out->draft_logits = copy;
    return NULL;
}

/* What the text of an encoder-decoder model begins with. The published preprocessing sends the padding token where it was given
 * nothing: then the model's own beginning is meant. */
static TRITONSERVER_Error *get_decoder_prompt(const nrd_llm_instance *inst, const row_view *v, nrd_exec_request *out)
{
    int32_t *ids, length, pad = inst->info.pad_id;
    int64_t n;

    NRD_TB_TRY(get_i32(v, "pad_id", &pad)); /* what the preprocessing takes it to be */
    NRD_TB_TRY(get_ids(v, "decoder_input_ids", &ids, &n));
    if (!ids) {
        return NULL;
    }
    length = n > INT32_MAX ? INT32_MAX : (int32_t)n;
    NRD_TB_TRY(get_i32(v, "decoder_input_lengths", &length));
    if (length < 0 || length > n) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "input 'decoder_input_lengths' is %d, expected 0 to %lld (the ids of the row)", length,
                             (long long)n);
    }
    if (length == 1 && (ids[0] == pad || ids[0] == inst->info.pad_id)) {
        return NULL;
    }
    out->decoder_input_ids = ids;
    out->n_decoder_input_ids = length;
    return NULL;
}

/* What a model hears: [frames, features] of the row. */
static TRITONSERVER_Error *get_sound(const row_view *v, nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int64_t first, n;

    NRD_TB_TRY(get_i32(v, "encoder_output_lengths", &out->encoder_output_length));
    if (!find_row(v, "encoder_input_features", &t, &first, &n) || n == 0) {
        return NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_FP32 && t->dtype != TRITONSERVER_TYPE_FP16) {
        return bad("encoder_input_features", "must be of FP16 or FP32");
    }
    const int64_t width = t->n_dims > 1 ? t->shape[t->n_dims - 1] : 0;
    if (width < 1 || width > INT32_MAX || n % width || n / width > INT32_MAX) {
        return bad("encoder_input_features", "must have the shape [1, frames, features]");
    }
    out->encoder_input_features = t->data + (size_t)first * TRITONSERVER_DataTypeByteSize(t->dtype);
    out->encoder_features_dtype = t->dtype == TRITONSERVER_TYPE_FP32 ? NRD_DTYPE_F32 : NRD_DTYPE_F16;
    out->n_encoder_frames = (int32_t)(n / width);
    out->encoder_feature_size = (int32_t)width;
    return NULL;
}

/* Of a vision model that is not ours: where its pictures' tokens are. */
static TRITONSERVER_Error *get_places(const row_view *v, nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int64_t first;

    if (!find_row(v, "mrope_rotary_cos_sin", &t, &first, &out->n_mrope_values)) {
        return nrd_tb_find(v->in, "mrope_position_deltas")
                   ? bad("mrope_position_deltas", "needs the input 'mrope_rotary_cos_sin' beside it")
                   : NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_FP32) {
        return bad("mrope_rotary_cos_sin", "must be FP32");
    }
    out->mrope_rotary_cos_sin = (const float *)(const void *)(t->data + (size_t)first * sizeof(float));
    return get_i64(v, "mrope_position_deltas", &out->mrope_position_delta);
}

/* Which states of an encoder each position of the decoder sees. */
static TRITONSERVER_Error *get_cross_mask(const row_view *v, nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int64_t first, n;

    if (!find_row(v, "cross_attention_mask", &t, &first, &n) || n == 0) {
        return NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_BOOL) {
        return bad("cross_attention_mask", "must be BOOL");
    }
    const bool has_both = t->n_dims >= 2;
    const int64_t cols = has_both ? t->shape[t->n_dims - 1] : 0, rows = has_both ? t->shape[t->n_dims - 2] : 0;
    if (!has_both || rows > INT32_MAX || cols > INT32_MAX || rows * cols != n) {
        return bad("cross_attention_mask", "must have the shape [1, positions of the decoder, states of the encoder]");
    }
    out->cross_attention_mask = (const uint8_t *)t->data + first;
    out->n_cross_mask_rows = (int32_t)rows;
    out->n_cross_mask_cols = (int32_t)cols;
    return NULL;
}

/* A prompt that another model computed. */
static TRITONSERVER_Error *get_context_params(const row_view *v, nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int64_t first, n;

    if (!find_row(v, "context_phase_params", &t, &first, &n) || n == 0) {
        return NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_UINT8) {
        return bad("context_phase_params", "must be UINT8");
    }
    out->context_phase_params = t->data + first;
    out->n_context_phase_params = (size_t)n;
    out->kind = NRD_REQUEST_GENERATION_ONLY;
    return NULL;
}

/* Inputs that belong to features the executor refuses by name: hand them over so that it can. */
static TRITONSERVER_Error *get_features(const nrd_llm_instance *inst, const row_view *v, nrd_exec_request *out)
{

    NRD_TB_TRY(get_draft(inst, v, out));
    /* Who asks for no more than the draft and a token brings the next draft, which is better than the rest token by token. */
    out->ends_behind_draft = out->max_new_tokens <= out->n_draft_input_ids + (int64_t)1;
    NRD_TB_TRY(get_lora(v, out));
    NRD_TB_TRY(get_sound(v, out));
    NRD_TB_TRY(get_context_params(v, out));
    /* Ensembles send decoder_input_ids and their length to every model; without an encoder they say
     * nothing. What follows only a client sends that means it. */
    if (inst->info.max_encoder_input_len > 0) {
        NRD_TB_TRY(get_decoder_prompt(inst, v, out));
    }
    NRD_TB_TRY(get_cross_mask(v, out));
    NRD_TB_TRY(get_places(v, out));
    NRD_TB_TRY(get_bool(v, "skip_cross_attn_blocks", &out->skip_cross_attn_blocks));
    NRD_TB_TRY(get_i32(v, "lookahead_window_size", &out->lookahead_window_size));
    NRD_TB_TRY(get_i32(v, "lookahead_ngram_size", &out->lookahead_ngram_size));
    NRD_TB_TRY(get_i32(v, "lookahead_verification_set_size", &out->lookahead_verification_set_size));
    NRD_TB_TRY(get_string(v, "guided_decoding_guide_type", &out->guide_type));
    return get_string(v, "guided_decoding_guide", &out->guide);
}

/* Extra ids of another length than the prompt are ignored, as in TensorRT-LLM. */
static TRITONSERVER_Error *get_extra_ids(const row_view *v, nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int64_t first, n, x;

    if (!find_row(v, "prompt_table_extra_ids", &t, &first, &n) || n < out->n_input_ids ||
        (n > out->n_input_ids && v->n_rows == 1)) {
        return NULL;
    }
    uint64_t *ids = nrd_arena_alloc(v->arena, (size_t)out->n_input_ids * sizeof *ids);
    if (!ids) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int32_t i = 0; i < out->n_input_ids; i++) {
        if (!nrd_tb_get_i64(t, first + i, &x)) {
            return bad("prompt_table_extra_ids", "must hold integers");
        }
        ids[i] = (uint64_t)x;
    }
    out->prompt_table_extra_ids = ids;
    return NULL;
}

/* The table gives the number of rows; prompt_vocab_size may only say that there are fewer. */
static TRITONSERVER_Error *get_prompt_table(const nrd_llm_instance *inst, const row_view *v,
                                            nrd_exec_request *out)
{
    const nrd_tb_tensor *t;
    int32_t rows = 0;

    NRD_TB_TRY(get_extra_ids(v, out));
    out->prompt_embedding_table = row_data(v, "prompt_embedding_table", &t);
    if (!out->prompt_embedding_table) {
        return nrd_tb_find(v->in, "prompt_vocab_size")
                   ? bad("prompt_vocab_size", "needs the input 'prompt_embedding_table' beside it")
                   : NULL;
    }
    const bool of_pictures = inst->info.picture_row_size > 0 && nrd_tb_find(v->in, "image_sizes");
    const int32_t width = of_pictures ? inst->info.picture_row_size : inst->info.hidden;
    if (t->n_dims < 2 || t->shape[t->n_dims - 1] != width || t->shape[t->n_dims - 2] > INT32_MAX) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "input 'prompt_embedding_table' must have the shape [rows, %d] (%s), its last dimension is %lld", width,
                             of_pictures ? "what the model takes of a picture" : "the model's hidden size",
                             t->n_dims ? (long long)t->shape[t->n_dims - 1] : 0LL);
    }
    out->prompt_table_dtype = t->dtype == TRITONSERVER_TYPE_FP16   ? NRD_DTYPE_F16
                              : t->dtype == TRITONSERVER_TYPE_BF16 ? NRD_DTYPE_BF16
                              : t->dtype == TRITONSERVER_TYPE_FP32 ? NRD_DTYPE_F32
                                                                   : NRD_DTYPE_I32;
    if (out->prompt_table_dtype == NRD_DTYPE_I32) {
        return bad("prompt_embedding_table", "must be FP16, BF16 or FP32");
    }
    rows = out->prompt_vocab_size = (int32_t)t->shape[t->n_dims - 2];
    NRD_TB_TRY(get_i32(v, "prompt_vocab_size", &rows));
    if (rows < 1 || rows > out->prompt_vocab_size) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "input 'prompt_vocab_size' is %d, expected 1 to %d (the rows of "
                             "'prompt_embedding_table')",
                             rows, out->prompt_vocab_size);
    }
    out->prompt_vocab_size = rows;
    return NULL;
}

static TRITONSERVER_Error *get_retention(const row_view *v, nrd_exec_request *out)
{
    int32_t *starts, *ends, *priorities, *durations;
    int64_t n, n_ends, n_priorities, n_durations;
    int32_t decode_duration = -1;

    NRD_TB_TRY(get_ids(v, "retention_token_range_starts", &starts, &n));
    NRD_TB_TRY(get_ids(v, "retention_token_range_ends", &ends, &n_ends));
    NRD_TB_TRY(get_ids(v, "retention_token_range_priorities", &priorities, &n_priorities));
    NRD_TB_TRY(get_ids(v, "retention_token_range_durations_ms", &durations, &n_durations));
    NRD_TB_TRY(get_i32(v, "retention_decode_priority", &out->retention_decode_priority));
    NRD_TB_TRY(get_i32(v, "retention_decode_duration_ms", &decode_duration));
    out->retention_decode_duration_ms = decode_duration;
    if (!starts) {
        return NULL;
    }
    if (n_ends != n || n_priorities != n || (durations && n_durations != n)) {
        return bad("retention_token_range_starts",
                   "must have as many entries as the ends, priorities and durations");
    }
    nrd_kv_retention_range *r = nrd_arena_alloc(v->arena, (size_t)n * sizeof *r);
    if (!r) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t i = 0; i < n; i++) {
        r[i].start = starts[i];
        r[i].end = ends[i];
        r[i].priority = priorities[i];
        r[i].duration_ms = durations ? durations[i] : -1;
    }
    out->retention_ranges = r;
    out->n_retention_ranges = (int32_t)n;
    return NULL;
}

/* The published benchmark sends random integers of 31 bits as a prompt, and their backend takes them. In
 * its repositories they stand for some token; in our own ones the executor refuses them. */
static void wrap_ids(nrd_llm_instance *inst, const row_view *v, int32_t *ids, int32_t n)
{
    bool any = false;

    if (inst->model->has_stream_state || nrd_tb_find(v->in, "prompt_embedding_table")) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        any |= ids[i] >= inst->info.vocab;
        ids[i] = ids[i] >= 0 ? ids[i] % inst->info.vocab : ids[i];
    }
    if (any && !atomic_exchange(&inst->told_of_ids, true)) {
        TRT_LOG(WARNING, "model '%s': input_ids past the vocabulary (%d) without a prompt_embedding_table are taken modulo "
                 "its size; this is said once",
                 inst->model->config.name, inst->info.vocab);
    }
}

static TRITONSERVER_Error *get_prompt(nrd_llm_instance *inst, const row_view *v, nrd_exec_request *out)
{
    int32_t *ids, length;
    int64_t n;
    NRD_TB_TRY(get_ids(v, "input_ids", &ids, &n));
    if (!ids) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "input 'input_ids' is missing");
    }
    if (n == 0) {
        return bad("input_ids", "holds no token: the prompt is empty");
    }
    length = n > INT32_MAX ? INT32_MAX : (int32_t)n;
    NRD_TB_TRY(get_i32(v, "input_lengths", &length));
    if (length < 1 || length > n) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "input 'input_lengths' is %d, expected 1 to %lld (the ids of the row)",
                             length, (long long)n);
    }
    wrap_ids(inst, v, ids, length);
    out->input_ids = ids;
    out->n_input_ids = length;
    return NULL;
}

/* Pictures of the row, each as its file: what the parameter "images" has in base64. */
static TRITONSERVER_Error *get_images(const row_view *v, nrd_exec_request *out)
{
    static const char name[] = "image_files";
    const nrd_tb_tensor *t;
    int64_t first, n;
    size_t offset = 0, len = 0;
    const char *s = NULL;
    bool is_bad = false;

    if (!find_row(v, name, &t, &first, &n) || n == 0) {
        return NULL;
    }
    if (t->dtype != TRITONSERVER_TYPE_BYTES || n > NRD_LLM_MAX_IMAGES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' must hold at most %d strings a row: files of pictures",
                             name, NRD_LLM_MAX_IMAGES);
    }
    nrd_exec_image *all = nrd_arena_alloc(v->arena, (size_t)n * sizeof *all);
    if (!all) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t i = 0; i < first + n; i++) {
        if (!nrd_tb_next_string(t, &offset, &s, &len, &is_bad)) {
            return bad(name, "ends before the row's last picture");
        }
        if (len > NRD_LLM_MAX_IMAGE_BYTES) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "input '%s': a picture has %zu bytes, at most %d", name, len,
                                 NRD_LLM_MAX_IMAGE_BYTES);
        }
        if (i >= first) {
            all[i - first] = (nrd_exec_image){s, len};
        }
    }
    out->images = all;
    out->n_images = (int32_t)n;
    return NULL;
}

/* Pictures of the row that are rows of prompt_embedding_table already: height and width of each. */
static TRITONSERVER_Error *get_image_sizes(const row_view *v, nrd_exec_request *out)
{
    static const char name[] = "image_sizes";
    const nrd_tb_tensor *t;
    int64_t first, n;

    if (!find_row(v, name, &t, &first, &n) || n == 0) {
        return NULL;
    }
    if (out->images) {
        return bad(name, "beside pictures as files: only one of them may come");
    }
    if (n % 2 || n / 2 > NRD_LLM_MAX_VIDEO_FRAMES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' must hold height and width of at most %d pictures a row, or of %d frames of "
                             "a video", name, NRD_LLM_MAX_IMAGES, NRD_LLM_MAX_VIDEO_FRAMES);
    }
    int32_t *sizes = nrd_arena_alloc(v->arena, (size_t)n * sizeof *sizes);
    if (!sizes) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t x = 0;
        if (!nrd_tb_get_i64(t, first + i, &x) || x < 1 || x > INT32_MAX) {
            return bad(name, "must hold integers of at least 1");
        }
        sizes[i] = (int32_t)x;
    }
    out->image_sizes = sizes;
    out->n_images = (int32_t)(n / 2);
    return NULL;
}

TRITONSERVER_Error *nrd_llm_convert(nrd_llm_instance *inst, const nrd_tb_inputs *in,
                                    int64_t n_rows, int64_t row, nrd_arena *arena,
                                    nrd_exec_request *out)
{
    const row_view view = {.in = in, .row = row, .n_rows = n_rows, .arena = arena};
    const row_view *v = &view;

    out->size = sizeof *out;
    nrd_exec_request_init(out);
    NRD_TB_TRY(get_prompt(inst, v, out));
    if (!nrd_tb_find(in, "request_output_len")) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "input 'request_output_len' is missing");
    }
    NRD_TB_TRY(get_i32(v, "request_output_len", &out->max_new_tokens));
    NRD_TB_TRY(get_i32(v, "end_id", &out->end_id));
    NRD_TB_TRY(get_i32(v, "pad_id", &out->pad_id));
    NRD_TB_TRY(get_bool(v, "streaming", &out->streaming));
    out->exclude_input_in_output = inst->model->exclude_input_in_output;
    NRD_TB_TRY(get_bool(v, "exclude_input_in_output", &out->exclude_input_in_output));
    NRD_TB_TRY(get_bool(v, "return_log_probs", &out->return_log_probs));
    NRD_TB_TRY(get_bool(v, "return_context_logits", &out->return_context_logits));
    NRD_TB_TRY(get_bool(v, "return_generation_logits", &out->return_generation_logits));
    NRD_TB_TRY(get_bool(v, "return_kv_cache_reuse_stats", &out->return_perf_metrics));
    NRD_TB_TRY(get_bool(v, "return_perf_metrics", &out->return_perf_metrics));
    NRD_TB_TRY(get_sampling(v, out));
    NRD_TB_TRY(get_phrases(v, "stop_words_list", &out->stop_words));
    NRD_TB_TRY(get_phrases(v, "bad_words_list", &out->bad_words));
    NRD_TB_TRY(get_bias(inst, v, out));
    NRD_TB_TRY(get_retention(v, out));
    NRD_TB_TRY(get_prompt_table(inst, v, out));
    NRD_TB_TRY(get_features(inst, v, out));
    NRD_TB_TRY(get_images(v, out));
    NRD_TB_TRY(get_image_sizes(v, out));
    if (out->streaming && !inst->model->config.decoupled) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "Streaming is only supported if model is deployed using decoupled mode.");
    }
    if (out->sampling.num_return_sequences > 1 && out->sampling.beam_width <= 1 && !inst->model->config.decoupled) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "num_return_sequences is %d: more than 1 without beams is only supported if model is deployed "
                             "using decoupled mode.", out->sampling.num_return_sequences);
    }
    return NULL;
}

TRITONSERVER_Error *nrd_llm_read_counts(const nrd_tb_inputs *in, int64_t n_rows, int64_t index, nrd_llm_row *row)
{
    const row_view v = {.in = in, .row = index, .n_rows = n_rows};
    NRD_TB_TRY(get_bool(&v, "return_num_input_tokens", &row->return_num_input));
    return get_bool(&v, "return_num_output_tokens", &row->return_num_output);
}
