/* SPDX-License-Identifier: Apache-2.0
 * postprocessing: output ids of tensorrt_llm to text.
 *
 * While streaming, tensorrt_llm hands over only the new ids, and a piece decoded alone would lose the
 * space in front of a word or cut a character in two. Our tensorrt_llm therefore sends STREAM_STATE
 * along: [is_last, the ids before this piece (as many as matter)]. The piece's text is what the
 * streaming decoder adds for the new ids behind the old ones; an incomplete character waits for the
 * next piece. The model itself stays stateless. */
#include "backends/tokenizer/tokenizer_backend.h"

#include "base/limits.h"

#include <string.h>

static TRITONSERVER_Error *check_shapes(const nrd_tb_tensor *tokens, const nrd_tb_tensor *lengths,
                                        const nrd_tb_tensor *stream)
{
    if (!tokens || tokens->n_dims != 3 || tokens->dtype != TRITONSERVER_TYPE_INT32) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "TOKENS_BATCH must be an INT32 tensor [batch, beams, length]");
    }
    int64_t n_seqs = 0;
    if (__builtin_mul_overflow(tokens->shape[0], tokens->shape[1], &n_seqs) || n_seqs < 0 ||
        n_seqs > NRD_LIMIT_TEXT_ROWS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "TOKENS_BATCH has %lld x %lld sequences, at most %d are allowed",
                             (long long)tokens->shape[0], (long long)tokens->shape[1],
                             NRD_LIMIT_TEXT_ROWS);
    }
    if (lengths && lengths->n_elements != n_seqs) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "SEQUENCE_LENGTH has %lld entries for %lld x %lld sequences",
                             (long long)lengths->n_elements, (long long)tokens->shape[0],
                             (long long)tokens->shape[1]);
    }
    if (stream && (stream->dtype != TRITONSERVER_TYPE_INT32 || stream->n_elements < 1 ||
                   tokens->shape[0] != 1 || tokens->shape[1] != 1)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "STREAM_STATE must be an INT32 tensor [1, >= 1] for one sequence");
    }
    return NULL;
}

static void decode_piece(const nrd_tok_model *m, const nrd_tb_tensor *stream, const int32_t *ids,
                         size_t n, uint32_t flags, nrd_str *text)
{
    nrd_detok *d = nrd_detok_new(m->tokenizer, flags);
    nrd_str before = {0};
    int64_t v = 0, is_last = 0;

    if (!d) {
        nrd_str_spoil(text);
        return;
    }
    nrd_tb_get_i64(stream, 0, &is_last);
    for (int64_t i = 1; i < stream->n_elements; i++) {
        nrd_tb_get_i64(stream, i, &v);
        nrd_detok_push(d, (int32_t)v, &before);
    }
    for (size_t i = 0; i < n; i++) {
        nrd_detok_push(d, ids[i], text);
    }
    if (is_last) {
        nrd_detok_flush(d, text);
    }
    if (before.no_memory) { /* what comes behind depends on it */
        nrd_str_spoil(text);
    }
    nrd_str_fini(&before);
    nrd_detok_free(d);
}

/* What repositories from v0.6 to v0.13 send through this model on its way to the client. */
static TRITONSERVER_Error *pass_on(TRITONBACKEND_Request *request, const nrd_tb_inputs *in,
                                   TRITONBACKEND_Response *response)
{
    static const struct {
        const char *from, *to;
    } rows[] = {
        {"CUM_LOG_PROBS", "OUT_CUM_LOG_PROBS"},   {"OUTPUT_LOG_PROBS", "OUT_OUTPUT_LOG_PROBS"},
        {"CONTEXT_LOGITS", "OUT_CONTEXT_LOGITS"}, {"GENERATION_LOGITS", "OUT_GENERATION_LOGITS"},
        {"BATCH_INDEX", "OUT_BATCH_INDEX"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const nrd_tb_tensor *t = nrd_tb_find(in, rows[i].from);
        void *out;
        if (!t || !nrd_tb_wants(request, rows[i].to)) {
            continue;
        }
        NRD_TB_TRY(nrd_tb_output(response, rows[i].to, t->dtype, t->shape, t->n_dims, t->bytes, &out));
        if (t->bytes) {
            memcpy(out, t->data, t->bytes);
        }
    }
    return NULL;
}

TRITONSERVER_Error *nrd_postprocess(const nrd_tok_model *m, TRITONBACKEND_Request *request,
                                    const nrd_tb_inputs *in, TRITONBACKEND_Response *response)
{
    const nrd_tb_tensor *tokens = nrd_tb_find(in, "TOKENS_BATCH");
    const nrd_tb_tensor *lengths = nrd_tb_find(in, "SEQUENCE_LENGTH");
    const nrd_tb_tensor *stream = nrd_tb_find(in, "STREAM_STATE");
    uint32_t flags = m->skip_special_tokens ? NRD_DECODE_SKIP_SPECIAL : 0u;
    TRITONSERVER_Error *err = check_shapes(tokens, lengths, stream);
    nrd_str out = {0};
    void *buffer;

    if (!err) {
        err = pass_on(request, in, response);
    }
    if (err || !nrd_tb_wants(request, "OUTPUT")) {
        return err;
    }
    const int64_t n_seqs = tokens->shape[0] * tokens->shape[1];
    const int64_t row_len = n_seqs ? tokens->shape[2] : 0; /* of no rows: any number may stand there */
    int32_t *ids = malloc(((size_t)row_len + 1) * sizeof *ids); /* a copy: the data may be unaligned */
    if (!ids) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t s = 0; s < n_seqs; s++) {
        int64_t n = row_len;
        uint32_t text_len;
        size_t at = out.len;
        if (lengths && nrd_tb_get_i64(lengths, s, &n)) {
            n = n < 0 ? 0 : n > row_len ? row_len : n;
        }
        if (n) {
            memcpy(ids, tokens->data + (size_t)(s * row_len) * sizeof *ids, (size_t)n * sizeof *ids);
        }
        nrd_str_append(&out, "\0\0\0\0", 4); /* length prefix, known below */
        if (stream) {
            decode_piece(m, stream, ids, (size_t)n, flags, &out);
        } else {
            nrd_tokenizer_decode(m->tokenizer, ids, (size_t)n, flags, &out);
        }
        if (out.no_memory) {
            break;
        }
        text_len = (uint32_t)(out.len - at - 4);
        memcpy(out.data + at, &text_len, sizeof text_len);
    }
    free(ids);
    int64_t shape[] = {n_seqs};
    err = nrd_tb_error(nrd_str_error(&out));
    if (!err) {
        err = nrd_tb_output(response, "OUTPUT", TRITONSERVER_TYPE_BYTES, shape, 1, out.len, &buffer);
    }
    if (!err && out.len) {
        memcpy(buffer, out.data, out.len);
    }
    nrd_str_fini(&out);
    return err;
}
