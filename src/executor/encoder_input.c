/* SPDX-License-Identifier: Apache-2.0
 * Requests of encoder-decoder models, of tokens or of sound: what the encoder reads and what the decoder's text begins with
 * become one prompt, whose first blocks hold the encoder's states (engine/seq_request.h). */
#include "executor/internal.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static int32_t whole_blocks(const nrd_exec *x, int32_t n)
{
    const int32_t bt = x->info.tokens_per_block;
    return (n + bt - 1) / bt * bt;
}

int32_t nrd_exec_encoder_room(const nrd_exec *x)
{
    return whole_blocks(x, x->encoder ? x->lim.max_encoder_input : x->lim.max_picture_states);
}

bool nrd_exec_hears(const nrd_exec *x)
{
    return x->encoder && nrd_engine_spec(x->encoder)->n_mels > 0;
}

int32_t nrd_exec_encoder_length(const nrd_exec *x, const nrd_exec_request *in)
{
    return nrd_exec_hears(x) ? (int32_t)(((int64_t)in->n_encoder_frames + 1) / 2) : in->n_input_ids;
}

/* Sizes and type of what the encoder hears. */
static nrd_error *check_features(const nrd_exec *x, const nrd_exec_request *in)
{
    const int32_t most = 2 * x->lim.max_encoder_input, n_mels = nrd_engine_spec(x->encoder)->n_mels;

    if (!in->encoder_input_features) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "encoder_input_features are needed: this model (%s) hears", x->spec->model_type);
    }
    if (in->encoder_features_dtype != NRD_DTYPE_F32 && in->encoder_features_dtype != NRD_DTYPE_F16) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "encoder_input_features must be float32 or float16");
    }
    if (in->encoder_feature_size != n_mels) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "encoder_input_features have %d features a frame, this model reads %d",
                          in->encoder_feature_size, n_mels);
    }
    if (in->n_encoder_frames < 1 || in->n_encoder_frames > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "encoder_input_features have %d frames, expected 1 to %d (two for each place of "
                          "the encoder's max_input_len, within max_num_tokens)", in->n_encoder_frames, most);
    }
    if (in->encoder_output_length != 0 && in->encoder_output_length != nrd_exec_encoder_length(x, in)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "encoder_output_lengths is %d, expected %d: half of the frames of "
                          "encoder_input_features", in->encoder_output_length, nrd_exec_encoder_length(x, in));
    }
    return NULL;
}

nrd_error *nrd_exec_encoder_copy(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    nrd_error *err = NULL;

    if (!nrd_exec_hears(r->exec)) {
        return NULL;
    }
    const size_t n = (size_t)in->n_encoder_frames * (size_t)in->encoder_feature_size;
    NRD_NEW_GOTO(r->features, n, err, fail);
    if (in->encoder_features_dtype == NRD_DTYPE_F32) {
        memcpy(r->features, in->encoder_input_features, n * sizeof *r->features);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)in->encoder_input_features + i * sizeof half, sizeof half);
        r->features[i] = nrd_f16_to_f32(half);
    }
fail:
    return err;
}

/* What the text begins with; none: the model's own beginning. */
static int32_t beginning(const nrd_exec *x, const nrd_exec_request *in, const int32_t **out)
{
    const bool heard = nrd_exec_hears(x) && in->n_decoder_input_ids <= 0;
    *out = heard ? in->input_ids : in->decoder_input_ids;
    return heard ? in->n_input_ids : in->n_decoder_input_ids;
}

/* Tokens that the text begins with. */
static int32_t count_beginning(const nrd_exec *x, const nrd_exec_request *in)
{
    const int32_t *given = NULL;
    const int32_t n = beginning(x, in, &given);
    return n > 0 ? n : x->spec->first_id >= 0 ? 2 : 1;
}

static nrd_error *check_decoder_ids(const nrd_exec *x, const nrd_exec_request *in)
{
    if (nrd_exec_hears(x) && in->n_decoder_input_ids <= 0) {
        const int32_t longest = x->lim.max_input_len - nrd_exec_encoder_room(x);
        return in->n_input_ids <= longest
                   ? NULL
                   : nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "Prompt length (%d) exceeds maximum input length (%d): "
                                                  "max_input_len of the decoder's engine", in->n_input_ids, longest),
                                       NRD_LLM_PROMPT_TOO_LONG);
    }
    const int32_t n = in->n_decoder_input_ids, most = x->lim.max_input_len - nrd_exec_encoder_room(x);

    if (n <= 0 && x->spec->start_id < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "decoder_input_ids must hold at least one token: the model names none that a "
                          "text begins with");
    }
    if (n > 0 && !in->decoder_input_ids) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "decoder_input_ids has %d tokens and no data", n);
    }
    if (n > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "decoder_input_ids has %d tokens, at most %d (max_input_len of the decoder's "
                          "engine)", n, most);
    }
    for (int32_t i = 0; i < n; i++) {
        if (in->decoder_input_ids[i] < 0 || in->decoder_input_ids[i] >= x->info.vocab) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "decoder_input_ids[%d] is %d, expected 0 to %d (the model's vocabulary)",
                              i, in->decoder_input_ids[i], x->info.vocab - 1);
        }
    }
    return NULL;
}

/* The rule of times, and whether something is said. */
static nrd_error *check_speech(const nrd_exec *x, const nrd_exec_request *in)
{
    const int32_t vocab = x->info.vocab, n = in->n_decoder_input_ids > 0 ? in->n_decoder_input_ids : in->n_input_ids;

    if (in->first_time_id == 0 && in->no_speech_id == -1) {
        return NULL;
    }
    if (!nrd_exec_hears(x)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is not supported by this model (%s), which hears nothing",
                          in->first_time_id != 0 ? "no_timestamps_token_id" : "no_speech_token_id", x->spec->model_type);
    }
    if (in->first_time_id < 0 || in->first_time_id >= vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no_timestamps_token_id is %d, expected 0 to %d: times are behind it",
                          in->first_time_id - 1, vocab - 2);
    }
    if (in->max_first_time < -1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "max_initial_timestamp_index is %d, expected at least 0", in->max_first_time);
    }
    if (in->no_speech_id < -1 || in->no_speech_id >= vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no_speech_token_id is %d, expected 0 to %d (the model's vocabulary)",
                          in->no_speech_id, vocab - 1);
    }
    if (in->no_speech_at < 0 || (in->no_speech_id >= 0 && in->no_speech_at >= n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no_speech_position is %d, expected a place in the text's beginning of %d tokens",
                          in->no_speech_at, n);
    }
    return NULL;
}

nrd_error *nrd_exec_encoder_check(const nrd_exec *x, const nrd_exec_request *in)
{
    const struct {
        bool used;
        const char *name;
    } fields[] = {
        {in->pooling != NRD_POOLING_NONE, "pooling"},
        {in->return_context_logits, "return_context_logits"},
        {in->return_prompt_log_probs, "return_prompt_log_probs"},
        {in->prompt_embedding_table != NULL, "prompt_embedding_table"},
        {in->lora_task_id != 0, "lora_task_id"},
        {in->n_draft_input_ids > 0, "draft_input_ids"},
        {in->n_retention_ranges > 0, "retention ranges"},
    };

    if (!nrd_exec_hears(x) && (in->encoder_input_features || in->encoder_output_length > 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is not supported by this model (%s), which hears nothing",
                          in->encoder_input_features ? "encoder_input_features" : "encoder_output_lengths",
                          x->spec->model_type);
    }
    NRD_TRY(check_speech(x, in));
    if (!x->encoder) {
        NRD_TRY(nrd_exec_cross_mask_check(x, in, 0, 0));
        return in->n_decoder_input_ids > 0
                   ? nrd_errorf(NRD_ERR_UNSUPPORTED, "decoder_input_ids: the model (%s) has no encoder; what it reads are "
                                "input_ids", x->spec->architecture)
                   : NULL;
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].used) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is not supported for encoder-decoder models", fields[i].name);
        }
    }
    if (nrd_exec_hears(x)) {
        NRD_TRY(check_features(x, in));
        NRD_TRY(check_decoder_ids(x, in));
        return nrd_exec_cross_mask_check(x, in, nrd_exec_encoder_length(x, in), count_beginning(x, in));
    }
    if (in->n_input_ids > x->lim.max_encoder_input) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "Prompt length (%d) exceeds maximum encoder input length "
                                            "(%d): max_input_len of the encoder's engine, within max_num_tokens",
                                            in->n_input_ids, x->lim.max_encoder_input),
                                 NRD_LLM_PROMPT_TOO_LONG);
    }
    NRD_TRY(check_decoder_ids(x, in));
    return nrd_exec_cross_mask_check(x, in, nrd_exec_encoder_length(x, in), count_beginning(x, in));
}

nrd_error *nrd_exec_encoder_join(const nrd_exec *x, nrd_exec_request *in, int32_t **out_ids, int32_t *out_cross)
{
    const int32_t n_cross = whole_blocks(x, nrd_exec_encoder_length(x, in));
    const int32_t begin[] = {x->spec->start_id, x->spec->first_id}, *given = NULL;
    const int32_t n_given = beginning(x, in, &given), n = count_beginning(x, in);
    nrd_error *err = NULL;
    int32_t *ids = NULL;

    *out_ids = NULL;
    NRD_NEW_GOTO(ids, (size_t)n_cross + (size_t)n, err, fail);
    if (!nrd_exec_hears(x)) { /* the rest of the last block stays 0, as places of what is heard do */
        memcpy(ids, in->input_ids, (size_t)in->n_input_ids * sizeof *ids);
    }
    memcpy(ids + n_cross, n_given > 0 ? given : begin, (size_t)n * sizeof *ids);
    in->input_ids = *out_ids = ids;
    in->n_input_ids = n_cross + n;
    *out_cross = n_cross;
fail:
    return err;
}
