/* SPDX-License-Identifier: Apache-2.0
 * Requests of encoder-decoder models: what the encoder reads and what the decoder's text begins with become one prompt,
 * whose first blocks hold the encoder's states (engine/seq_request.h). */
#include "executor/internal.h"

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
    return x->encoder ? whole_blocks(x, x->lim.max_encoder_input) : 0;
}

static nrd_error *check_decoder_ids(const nrd_exec *x, const nrd_exec_request *in)
{
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

nrd_error *nrd_exec_encoder_check(const nrd_exec *x, const nrd_exec_request *in)
{
    const struct {
        bool used;
        const char *name;
    } fields[] = {
        {in->pooling != NRD_POOLING_NONE, "pooling"},
        {in->return_context_logits, "return_context_logits"},
        {in->prompt_embedding_table != NULL, "prompt_embedding_table"},
        {in->lora_task_id != 0, "lora_task_id"},
        {in->n_draft_input_ids > 0, "draft_input_ids"},
        {in->n_retention_ranges > 0, "retention ranges"},
    };

    if (!x->encoder) {
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
    if (in->n_input_ids > x->lim.max_encoder_input) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "Prompt length (%d) exceeds maximum encoder input length "
                                            "(%d): max_input_len of the encoder's engine, within max_num_tokens",
                                            in->n_input_ids, x->lim.max_encoder_input),
                                 NRD_LLM_PROMPT_TOO_LONG);
    }
    return check_decoder_ids(x, in);
}

nrd_error *nrd_exec_encoder_join(const nrd_exec *x, nrd_exec_request *in, int32_t **out_ids, int32_t *out_cross)
{
    const int32_t n_cross = whole_blocks(x, in->n_input_ids);
    const bool given = in->n_decoder_input_ids > 0;
    const int32_t begin[] = {x->spec->start_id, x->spec->first_id};
    const int32_t n = given ? in->n_decoder_input_ids : x->spec->first_id >= 0 ? 2 : 1;
    nrd_error *err = NULL;
    int32_t *ids = NULL;

    *out_ids = NULL;
    NRD_NEW_GOTO(ids, (size_t)n_cross + (size_t)n, err, fail);
    memcpy(ids, in->input_ids, (size_t)in->n_input_ids * sizeof *ids); /* the rest of the last block stays 0 */
    memcpy(ids + n_cross, given ? in->decoder_input_ids : begin, (size_t)n * sizeof *ids);
    in->input_ids = *out_ids = ids;
    in->n_input_ids = n_cross + n;
    *out_cross = n_cross;
fail:
    return err;
}
