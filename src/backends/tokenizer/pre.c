/* SPDX-License-Identifier: Apache-2.0
 * preprocessing: text to the input tensors of tensorrt_llm. */
#include "backends/tokenizer/pictures.h"
#include "backends/tokenizer/tokenizer_backend.h"
#include "base/limits.h"
#include "text/prompt_limit.h"
#include "text/word_list.h"

#include <string.h>

enum { MAX_PHRASES = 4096 };

typedef struct text_ref {
    const char *s;
    size_t n;
} text_ref;

/* The strings of a BYTES tensor with `rows` rows, all the same number a row. */
static TRITONSERVER_Error *read_strings(const nrd_tb_tensor *t, int64_t rows, text_ref **out,
                                        size_t *out_per_row)
{
    size_t offset = 0;
    bool bad = false;

    *out = NULL;
    *out_per_row = 0;
    if (t->dtype != TRITONSERVER_TYPE_BYTES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must be a string tensor", t->name);
    }
    if (t->n_elements < 0 || t->n_elements % rows || t->n_elements / rows > MAX_PHRASES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "%s has %lld strings for a batch of %lld, at most %d a row are allowed",
                             t->name, (long long)t->n_elements, (long long)rows, MAX_PHRASES);
    }
    if ((uint64_t)t->n_elements > t->bytes / sizeof(uint32_t)) { /* each has a length in front */
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s has %llu bytes for %lld strings", t->name,
                             (unsigned long long)t->bytes, (long long)t->n_elements);
    }
    text_ref *refs = malloc(((size_t)t->n_elements + 1) * sizeof *refs);
    if (!refs) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t i = 0; i < t->n_elements; i++) {
        if (!nrd_tb_next_string(t, &offset, &refs[i].s, &refs[i].n, &bad)) {
            free(refs);
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                 "%s ends before its string %lld of %lld", t->name, (long long)i,
                                 (long long)t->n_elements);
        }
    }
    *out = refs;
    *out_per_row = (size_t)(t->n_elements / rows);
    return NULL;
}

/* One long row pads all others to its length. */
static TRITONSERVER_Error *check_elements(const char *name, int64_t n_rows, size_t width)
{
    if ((uint64_t)width <= (uint64_t)NRD_LIMIT_TEXT_ELEMENTS / (uint64_t)n_rows) {
        return NULL;
    }
    return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                         "%s would have %lld rows of %zu elements, more than %d in all", name,
                         (long long)n_rows, width, NRD_LIMIT_TEXT_ELEMENTS);
}

/* Ragged rows of ids -> [rows, longest] with padding. */
static TRITONSERVER_Error *put_ids(TRITONBACKEND_Response *response, const char *name,
                                   const nrd_ids *rows, int64_t n_rows, int32_t pad)
{
    size_t longest = 0;
    int32_t *out;
    for (int64_t r = 0; r < n_rows; r++) {
        longest = rows[r].n > longest ? rows[r].n : longest;
    }
    NRD_TB_TRY(check_elements(name, n_rows, longest));
    int64_t shape[] = {n_rows, (int64_t)longest};
    NRD_TB_TRY(nrd_tb_output(response, name, TRITONSERVER_TYPE_INT32, shape, 2,
                             (size_t)n_rows * longest * sizeof *out, (void **)&out));
    for (int64_t r = 0; r < n_rows; r++) {
        for (size_t i = 0; i < longest; i++) {
            *out++ = i < rows[r].n ? rows[r].ids[i] : pad;
        }
    }
    return NULL;
}

static TRITONSERVER_Error *put_lengths(TRITONBACKEND_Response *response, const char *name,
                                       const nrd_ids *rows, int64_t n_rows)
{
    int64_t shape[] = {n_rows, 1};
    int32_t *out;
    NRD_TB_TRY(nrd_tb_output(response, name, TRITONSERVER_TYPE_INT32, shape, 2,
                             (size_t)n_rows * sizeof *out, (void **)&out));
    for (int64_t r = 0; r < n_rows; r++) {
        out[r] = (int32_t)rows[r].n;
    }
    return NULL;
}

/* The ids of one text. What tokenizer_type adds is added only where the files' own rules did not. */
static TRITONSERVER_Error *encode_text(const nrd_tok_model *m, const text_ref *t, nrd_ids *ids)
{
    const uint32_t flags =
        NRD_ENCODE_PARSE_SPECIAL | (m->add_special_tokens ? NRD_ENCODE_ADD_SPECIAL : 0u);
    const int32_t bos = nrd_tokenizer_bos_id(m->tokenizer), eos = m->end_id;

    NRD_TB_TRY(nrd_tb_error(nrd_prompt_limit_check(m->tokenizer, t->n)));
    NRD_TB_TRY(nrd_tb_error(nrd_tokenizer_encode(m->tokenizer, t->s, t->n, flags, ids)));
    if (!m->add_special_tokens) {
        return NULL;
    }
    if (m->type == NRD_TOK_LLAMA && bos >= 0 && (ids->n == 0 || ids->ids[0] != bos)) {
        nrd_ids_push(ids, bos);
        memmove(ids->ids + 1, ids->ids, (ids->n - 1) * sizeof *ids->ids);
        ids->ids[0] = bos;
    }
    if (m->type == NRD_TOK_T5 && eos >= 0 && (ids->n == 0 || ids->ids[ids->n - 1] != eos)) {
        nrd_ids_push(ids, eos);
    }
    return NULL;
}

/* The same of a text that pictures belong to. */
static TRITONSERVER_Error *encode_with_pictures(const nrd_tok_model *m, const text_ref *t, const nrd_tok_pictures *pictures,
                                                nrd_ids *ids)
{
    nrd_str prompt = {0};
    TRITONSERVER_Error *err = nrd_tb_error(nrd_tok_pictures_prompt(pictures, m->picture_form, t->s, t->n, &prompt));

    err = err ? err : encode_text(m, prompt.len > 0 ? &(text_ref){prompt.data, prompt.len} : t, ids);
    err = err ? err : nrd_tb_error(nrd_tok_pictures_first(pictures, m->picture_form, m->tokenizer, t->s, t->n, ids));
    nrd_str_fini(&prompt);
    return err;
}

/* Encodes the first string of every row into `ids` and emits ids and lengths. pictures NULL: none belong to it. */
static TRITONSERVER_Error *put_text(const nrd_tok_model *m, TRITONBACKEND_Request *request,
                                    const nrd_tb_tensor *text, const nrd_tok_pictures *pictures,
                                    TRITONBACKEND_Response *response, const char *ids_name, const char *len_name,
                                    nrd_ids *ids, int64_t n_rows, int32_t pad)
{
    text_ref *refs = NULL;
    size_t per_row = 0;
    TRITONSERVER_Error *err = read_strings(text, n_rows, &refs, &per_row);

    if (!err && per_row < 1) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s is empty", text->name);
    }
    for (int64_t r = 0; !err && r < n_rows; r++) {
        const text_ref *t = &refs[(size_t)r * per_row];
        err = pictures ? encode_with_pictures(m, t, pictures, &ids[r]) : encode_text(m, t, &ids[r]);
    }
    free(refs);
    if (!err && nrd_tb_wants(request, ids_name)) {
        err = put_ids(response, ids_name, ids, n_rows, pad);
    }
    if (!err && nrd_tb_wants(request, len_name)) {
        err = put_lengths(response, len_name, ids, n_rows);
    }
    return err;
}

/* [B, n] phrases -> [B, 2, L]: ids in row 0, inclusive cumulative ends in row 1. */
static TRITONSERVER_Error *put_word_list(const nrd_tok_model *m, const nrd_tb_tensor *phrases,
                                         TRITONBACKEND_Response *response, const char *name,
                                         int64_t n_rows)
{
    TRITONSERVER_Error *err = NULL;
    text_ref *refs = NULL;
    size_t per_row = 0, longest = phrases ? 1 : 0;
    nrd_ids *lists = calloc((size_t)n_rows * 2, sizeof *lists); /* ids, ends of each row */
    const char **s = NULL;
    size_t *n = NULL;
    int32_t *out;

    if (!lists) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    if (phrases) {
        err = read_strings(phrases, n_rows, &refs, &per_row);
        s = calloc(per_row + 1, sizeof *s);
        n = calloc(per_row + 1, sizeof *n);
        err = err || (s && n) ? err : nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t r = 0; !err && phrases && r < n_rows; r++) {
        for (size_t i = 0; i < per_row && !err; i++) {
            s[i] = refs[(size_t)r * per_row + i].s;
            n[i] = refs[(size_t)r * per_row + i].n;
            err = nrd_tb_error(nrd_prompt_limit_check(m->tokenizer, n[i]));
        }
        err = err ? err : nrd_tb_error(nrd_word_list_encode(m->tokenizer, s, n, per_row, &lists[2 * r],
                                                &lists[2 * r + 1]));
        longest = lists[2 * r].n > longest ? lists[2 * r].n : longest;
    }
    int64_t shape[] = {n_rows, 2, (int64_t)longest};
    if (!err) {
        err = check_elements(name, 2 * n_rows, longest);
    }
    if (!err) {
        err = nrd_tb_output(response, name, TRITONSERVER_TYPE_INT32, shape, 3,
                            (size_t)n_rows * 2 * longest * sizeof *out, (void **)&out);
    }
    for (int64_t r = 0; !err && r < 2 * n_rows; r++) {
        for (size_t i = 0; i < longest; i++) {
            *out++ = i < lists[r].n ? lists[r].ids[i] : (r & 1 ? -1 : 0);
        }
    }
    for (int64_t r = 0; r < 2 * n_rows; r++) {
        nrd_ids_fini(&lists[r]);
    }
    free(lists);
    free(s);
    free(n);
    free(refs);
    return err;
}

/* Dense logit bias [B, vocab], or [B, 0] when there are no words. Every token of a phrase gets the
 * phrase's whole weight; repeated tokens add up. */
static TRITONSERVER_Error *put_bias(const nrd_tok_model *m, const nrd_tb_tensor *words,
                                    const nrd_tb_tensor *weights, TRITONBACKEND_Response *response,
                                    int64_t n_rows)
{
    TRITONSERVER_Error *err = NULL;
    text_ref *refs = NULL;
    nrd_ids ids = {0};
    size_t per_row = 0;
    float *out;
    int64_t vocab = words ? nrd_tokenizer_vocab_size(m->tokenizer) : 0;
    int64_t shape[] = {n_rows, vocab};

    if (!words != !weights || (words && words->n_elements != weights->n_elements)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "EMBEDDING_BIAS_WORDS has %lld entries and EMBEDDING_BIAS_WEIGHTS %lld: "
                             "one weight per phrase is needed",
                             (long long)(words ? words->n_elements : 0),
                             (long long)(weights ? weights->n_elements : 0));
    }
    NRD_TB_TRY(check_elements("EMBEDDING_BIAS", n_rows, (size_t)vocab));
    NRD_TB_TRY(nrd_tb_output(response, "EMBEDDING_BIAS", TRITONSERVER_TYPE_FP32, shape, 2,
                             (size_t)(n_rows * vocab) * sizeof *out, (void **)&out));
    if (!words) {
        return NULL;
    }
    memset(out, 0, (size_t)(n_rows * vocab) * sizeof *out);
    err = read_strings(words, n_rows, &refs, &per_row);
    for (size_t i = 0; !err && i < per_row * (size_t)n_rows; i++) {
        double weight = 0;
        float *row = out + (int64_t)(i / per_row) * vocab;
        ids.n = 0;
        nrd_tb_get_f64(weights, (int64_t)i, &weight);
        err = nrd_tb_error(nrd_prompt_limit_check(m->tokenizer, refs[i].n));
        err = err ? err
                  : nrd_tb_error(nrd_tokenizer_encode(m->tokenizer, refs[i].s, refs[i].n,
                                                      NRD_ENCODE_PARSE_SPECIAL, &ids));
        for (size_t k = 0; !err && k < ids.n; k++) {
            row[ids.ids[k]] += (float)weight;
        }
    }
    nrd_ids_fini(&ids);
    free(refs);
    return err;
}

static TRITONSERVER_Error *put_scalar(TRITONBACKEND_Response *response, const char *name,
                                      const nrd_tb_tensor *given, int32_t fallback, int64_t n_rows)
{
    int64_t shape[] = {n_rows, 1}, v;
    int32_t *out;
    NRD_TB_TRY(nrd_tb_output(response, name, TRITONSERVER_TYPE_INT32, shape, 2,
                             (size_t)n_rows * sizeof *out, (void **)&out));
    for (int64_t r = 0; r < n_rows; r++) {
        out[r] = given && nrd_tb_get_i64(given, r, &v) ? (int32_t)v : fallback;
    }
    return NULL;
}

static TRITONSERVER_Error *put_copy(TRITONBACKEND_Response *response, const char *name,
                                    const nrd_tb_tensor *t)
{
    void *out;
    NRD_TB_TRY(nrd_tb_output(response, name, t->dtype, t->shape, t->n_dims, t->bytes, &out));
    if (t->bytes) {
        memcpy(out, t->data, t->bytes);
    }
    return NULL;
}

/* Per prompt token: the extra id where the id is a row of the prompt table, else 0. */
static TRITONSERVER_Error *put_extra_ids(const nrd_tok_model *m, const nrd_tb_tensor *extra,
                                         TRITONBACKEND_Response *response, const nrd_ids *ids,
                                         int64_t n_rows)
{
    int32_t vocab = nrd_tokenizer_vocab_size(m->tokenizer);
    size_t longest = 0;
    uint64_t *out;

    if (extra->n_elements != n_rows) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "PROMPT_TABLE_EXTRA_ID has %lld ids for a batch of %lld: one a row is "
                             "needed",
                             (long long)extra->n_elements, (long long)n_rows);
    }
    for (int64_t r = 0; r < n_rows; r++) {
        longest = ids[r].n > longest ? ids[r].n : longest;
    }
    NRD_TB_TRY(check_elements("OUT_PROMPT_TABLE_EXTRA_IDS", n_rows, longest));
    int64_t shape[] = {n_rows, (int64_t)longest};
    NRD_TB_TRY(nrd_tb_output(response, "OUT_PROMPT_TABLE_EXTRA_IDS", TRITONSERVER_TYPE_UINT64, shape,
                             2, (size_t)n_rows * longest * sizeof *out, (void **)&out));
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t v = 0;
        nrd_tb_get_i64(extra, r, &v);
        for (size_t i = 0; i < longest; i++) {
            *out++ = i < ids[r].n && ids[r].ids[i] >= vocab ? (uint64_t)v : 0;
        }
    }
    return NULL;
}

/* The decoder's prompt; without DECODER_QUERY it is the single token pad_id. */
static TRITONSERVER_Error *put_decoder(const nrd_tok_model *m, TRITONBACKEND_Request *request,
                                       const nrd_tb_tensor *query, TRITONBACKEND_Response *response,
                                       int64_t n_rows, int32_t pad)
{
    nrd_ids *ids = calloc((size_t)n_rows, sizeof *ids);
    TRITONSERVER_Error *err = NULL;
    if (!ids) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    if (query) {
        err = put_text(m, request, query, NULL, response, "DECODER_INPUT_ID", "REQUEST_DECODER_INPUT_LEN",
                       ids, n_rows, pad);
    } else {
        for (int64_t r = 0; r < n_rows && !err; r++) {
            nrd_ids_push(&ids[r], pad);
            err = nrd_tb_error(nrd_ids_error(&ids[r]));
        }
        if (!err && nrd_tb_wants(request, "DECODER_INPUT_ID")) {
            err = put_ids(response, "DECODER_INPUT_ID", ids, n_rows, pad);
        }
        if (!err && nrd_tb_wants(request, "REQUEST_DECODER_INPUT_LEN")) {
            err = put_lengths(response, "REQUEST_DECODER_INPUT_LEN", ids, n_rows);
        }
    }
    for (int64_t r = 0; r < n_rows; r++) {
        nrd_ids_fini(&ids[r]);
    }
    free(ids);
    return err;
}

/* What cannot be obeyed is refused, not left out. */
static TRITONSERVER_Error *check_supported(const nrd_tok_model *m, const nrd_tb_inputs *in)
{
    static const char *const names[] = {"IMAGES", "VIDEO_BYTES", "IMAGE", "IMAGE_BYTES", "IMAGE_URL"};
    /* all but the first go on as IMAGES, which published repositories lack, and theirs have no other model that takes IMAGE */
    const bool takes_videos = nrd_tb_config_has_output(&m->config, "IS_VIDEO_INPUT");
    const size_t n = nrd_tb_config_has_output(&m->config, "IMAGES") ? (takes_videos ? 1 : 2) : sizeof names / sizeof *names;

    for (size_t i = 0; i < n; i++) {
        if (nrd_tb_find(in, names[i])) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "%s is not supported by this version", names[i]);
        }
    }
    return NULL;
}

#define PUT_IF_WANTED(name, call)                                                                  \
    do {                                                                                           \
        if (!err && nrd_tb_wants(request, name)) {                                                 \
            err = (call);                                                                          \
        }                                                                                          \
    } while (0)

TRITONSERVER_Error *nrd_preprocess(const nrd_tok_model *m, TRITONBACKEND_Request *request,
                                   const nrd_tb_inputs *in, TRITONBACKEND_Response *response)
{
    const nrd_tb_tensor *query = nrd_tb_find(in, "QUERY");
    const nrd_tb_tensor *output_len = nrd_tb_find(in, "REQUEST_OUTPUT_LEN");
    const nrd_tb_tensor *end = nrd_tb_find(in, "END_ID"), *pad = nrd_tb_find(in, "PAD_ID");
    const nrd_tb_tensor *extra = nrd_tb_find(in, "PROMPT_TABLE_EXTRA_ID");
    const nrd_tb_tensor *table = nrd_tb_find(in, "PROMPT_EMBEDDING_TABLE"); /* v0.12: passes through */
    TRITONSERVER_Error *err = NULL;
    int64_t v, n_rows;

    NRD_TB_TRY(check_supported(m, in));
    if (!query || query->n_dims < 1) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "QUERY is missing");
    }
    n_rows = m->config.max_batch_size > 0 ? query->shape[0] : 1;
    if (n_rows < 1 || n_rows > NRD_LIMIT_TEXT_ROWS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "QUERY has a batch of %lld, expected 1 to %d", (long long)n_rows,
                             NRD_LIMIT_TEXT_ROWS);
    }
    nrd_tok_pictures pictures = {0};
    int32_t pad_id = pad && nrd_tb_get_i64(pad, 0, &v) ? (int32_t)v : m->pad_id;
    nrd_ids *ids = calloc((size_t)n_rows, sizeof *ids);
    if (!ids) {
        return nrd_tb_error(nrd_error_no_memory());
    }

    err = nrd_tok_pictures_read(&pictures, in, n_rows, m->config.max_batch_size > 0);
    err = err ? err
              : put_text(m, request, query, &pictures, response, "INPUT_ID", "REQUEST_INPUT_LEN", ids, n_rows, pad_id);
    if (pictures.files) {
        PUT_IF_WANTED("IMAGES", nrd_tok_pictures_put(&pictures, response));
    }
    if (pictures.is_video) {
        PUT_IF_WANTED("IS_VIDEO_INPUT", nrd_tok_pictures_put_is_video(&pictures, response));
    }
    nrd_tok_pictures_fini(&pictures);
    PUT_IF_WANTED("BAD_WORDS_IDS", put_word_list(m, nrd_tb_find(in, "BAD_WORDS_DICT"), response,
                                                 "BAD_WORDS_IDS", n_rows));
    PUT_IF_WANTED("STOP_WORDS_IDS", put_word_list(m, nrd_tb_find(in, "STOP_WORDS_DICT"), response,
                                                  "STOP_WORDS_IDS", n_rows));
    PUT_IF_WANTED("EMBEDDING_BIAS", put_bias(m, nrd_tb_find(in, "EMBEDDING_BIAS_WORDS"),
                                             nrd_tb_find(in, "EMBEDDING_BIAS_WEIGHTS"), response,
                                             n_rows));
    PUT_IF_WANTED("OUT_END_ID", put_scalar(response, "OUT_END_ID", end, m->end_id, n_rows));
    PUT_IF_WANTED("OUT_PAD_ID", put_scalar(response, "OUT_PAD_ID", pad, m->pad_id, n_rows));
    if (output_len) {
        PUT_IF_WANTED("REQUEST_OUTPUT_LEN", put_copy(response, "REQUEST_OUTPUT_LEN", output_len));
    }
    if (table) {
        PUT_IF_WANTED("OUT_PROMPT_EMBEDDING_TABLE",
                      put_copy(response, "OUT_PROMPT_EMBEDDING_TABLE", table));
    }
    if (!err) {
        err = put_decoder(m, request, nrd_tb_find(in, "DECODER_QUERY"), response, n_rows, pad_id);
    }
    if (extra) {
        PUT_IF_WANTED("OUT_PROMPT_TABLE_EXTRA_IDS", put_extra_ids(m, extra, response, ids, n_rows));
    }
    for (int64_t r = 0; r < n_rows; r++) {
        nrd_ids_fini(&ids[r]);
    }
    free(ids);
    return err;
}
