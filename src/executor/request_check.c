/* SPDX-License-Identifier: Apache-2.0
 * Refuses, by field and limit, what is wrong in a request or not supported. */
#include "executor/handover.h"

#include "base/limits.h"

#include <math.h>

enum { MAX_PHRASE_IDS = 65536, MAX_RANGES = 4096 };

static nrd_error *unsupported(const char *what)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is not supported yet", what);
}

static nrd_error *check_guide(const nrd_exec *x, const nrd_exec_request *in)
{
    if (!in->guide_type) {
        return in->guide ? nrd_errorf(NRD_ERR_INVALID_ARG,
                                      "guided_decoding_guide is given without its type")
                         : NULL;
    }
    if (!x->guides) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "guided decoding (guided_decoding_guide_type) needs the "
                                               "parameter tokenizer_dir or xgrammar_tokenizer_info_path");
    }
    if (in->sampling.beam_width > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "guided decoding with beam search is not supported yet");
    }
    return NULL;
}

static nrd_error *out_of_range(const char *name, double got, const char *want)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be %s, got %g", name, want, got);
}

static nrd_error *check_sampling(const nrd_exec *x, const nrd_exec_request *in)
{
    const nrd_sampling_config *s = &in->sampling;
    if (s->beam_width < 1) {
        return out_of_range("beam_width", s->beam_width, "at least 1");
    }
    if (s->beam_width > x->lim.max_beam_width) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "beam_width (%d) exceeds max_beam_width (%d)",
                          s->beam_width, x->lim.max_beam_width);
    }
    if (s->num_return_sequences < 1 || s->num_return_sequences > NRD_LIMIT_RETURN_SEQUENCES) {
        return out_of_range("num_return_sequences", s->num_return_sequences, "in [1, 1024]");
    }
    if (s->beam_width > 1 && s->num_return_sequences > s->beam_width) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "num_return_sequences (%d) must not exceed beam_width (%d)",
                          s->num_return_sequences, s->beam_width);
    }
    if (s->top_k < 0) {
        return out_of_range("top_k", s->top_k, "at least 0");
    }
    if (!(s->top_p <= 1)) {
        return out_of_range("top_p", (double)s->top_p, "in (0, 1]");
    }
    if (!(s->top_p_min >= 0 && s->top_p_min <= 1)) {
        return out_of_range("top_p_min", (double)s->top_p_min, "in [0, 1]");
    }
    if (!(s->top_p_decay > 0 && s->top_p_decay <= 1)) {
        return out_of_range("top_p_decay", (double)s->top_p_decay, "in (0, 1]");
    }
    if (!(s->min_p >= 0 && s->min_p <= 1)) {
        return out_of_range("min_p", (double)s->min_p, "in [0, 1]");
    }
    if (!(s->temperature >= 0) || isinf(s->temperature)) {
        return out_of_range("temperature", (double)s->temperature, "at least 0");
    }
    if (!(s->repetition_penalty > 0) || isinf(s->repetition_penalty)) {
        return out_of_range("repetition_penalty", (double)s->repetition_penalty, "greater than 0");
    }
    if (!isfinite(s->presence_penalty)) {
        return out_of_range("presence_penalty", (double)s->presence_penalty, "finite");
    }
    if (!isfinite(s->frequency_penalty)) {
        return out_of_range("frequency_penalty", (double)s->frequency_penalty, "finite");
    }
    if (!isfinite(s->length_penalty)) {
        return out_of_range("length_penalty", (double)s->length_penalty, "finite");
    }
    if (!isfinite(s->beam_search_diversity_rate)) {
        return out_of_range("beam_search_diversity_rate", (double)s->beam_search_diversity_rate,
                            "finite");
    }
    if (s->min_length < 0) {
        return out_of_range("min_length", s->min_length, "at least 0");
    }
    if (s->no_repeat_ngram_size < 0) {
        return out_of_range("no_repeat_ngram_size", s->no_repeat_ngram_size, "at least 0");
    }
    return NULL;
}

static nrd_error *check_phrases(const char *name, const nrd_phrases *p)
{
    if (p->n == 0) {
        return NULL;
    }
    if (p->n < 0 || p->n > NRD_EXEC_MAX_PHRASES || !p->ids || !p->ends) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: at most %d phrases, got %d", name, NRD_EXEC_MAX_PHRASES,
                          p->n);
    }
    for (int32_t i = 0; i < p->n; i++) {
        int32_t start = i ? p->ends[i - 1] : 0;
        if (p->ends[i] <= start || p->ends[i] > MAX_PHRASE_IDS) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "%s: ends must be strictly increasing and at most %d", name,
                              MAX_PHRASE_IDS);
        }
    }
    return NULL;
}

/* Ids past the vocabulary are rows of the prompt table. */
static nrd_error *check_prompt(const nrd_exec *x, const nrd_exec_request *in)
{
    const int32_t *ids = in->input_ids;
    const int32_t n = in->n_input_ids;
    const nrd_pictures *pictures = in->images_prepared;
    const int64_t n_ids = (int64_t)x->info.vocab + (in->prompt_embedding_table ? in->prompt_vocab_size : pictures ? pictures->n_rows : 0);

    if (!ids || n < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "input_ids must hold at least one token");
    }
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "input_ids[%d] is %d: ids must not be negative",
                              i, ids[i]);
        }
        if (ids[i] >= n_ids) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "input_ids[%d] is %d, expected at most %lld (the model's vocabulary%s)", i,
                              ids[i], (long long)n_ids - 1,
                              in->prompt_embedding_table ? " and the prompt table" : "");
        }
    }
    const int32_t longest = x->lim.max_input_len - (x->encoder ? 0 : nrd_exec_encoder_room(x));
    if (n > longest) {
        return nrd_error_because(
            nrd_errorf(NRD_ERR_INVALID_ARG,
                       "Prompt length (%d) exceeds maximum input length (%d). Set log level to "
                       "info and check TRTLLM logs for how maximum input length is set",
                       n, longest),
            NRD_LLM_PROMPT_TOO_LONG);
    }
    return NULL;
}

static nrd_error *check_outputs(const nrd_exec *x, const nrd_exec_request *in)
{
    if (in->return_context_logits && !x->info.gather_context_logits) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "return_context_logits needs an engine built with gather_context_logits");
    }
    if (in->return_generation_logits && !x->info.gather_generation_logits) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "return_generation_logits needs an engine built with gather_generation_logits");
    }
    if (in->return_generation_logits && in->streaming && in->sampling.beam_width > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "return_generation_logits while streaming needs beam_width 1, got %d: which "
                          "beams there are is known at the end", in->sampling.beam_width);
    }
    if (in->n_top_logprobs < 0 || in->n_top_logprobs > NRD_MAX_TOP_LOGPROBS) {
        return out_of_range("n_top_logprobs", in->n_top_logprobs, "in [0, 20]");
    }
    if (in->n_top_logprobs > 0 && in->sampling.beam_width > 1) {
        return unsupported("n_top_logprobs with beam_width > 1");
    }
    if (in->n_top_prompt_logprobs < 0 || in->n_top_prompt_logprobs > NRD_MAX_TOP_LOGPROBS) {
        return out_of_range("n_top_prompt_logprobs", in->n_top_prompt_logprobs, "in [0, 20]");
    }
    return NULL;
}

/* The draft of a request, by field and limit. */
static nrd_error *check_draft(const nrd_exec *x, const nrd_exec_request *in)
{
    const int32_t n = in->n_draft_input_ids;
    const float t = in->draft_acceptance_threshold;

    if (n <= 0 || !in->draft_input_ids) {
        return in->draft_logits
                   ? nrd_errorf(NRD_ERR_INVALID_ARG, "draft_logits is given without draft_input_ids")
                   : NULL;
    }
    if (n > x->info.max_draft_len) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "draft_input_ids has %d tokens, the engine was built with max_draft_len %d", n,
                          x->info.max_draft_len);
    }
    if (nrd_spec_is_recurrent(x->spec)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "draft_input_ids: %s models have layers with a recurrent state, and take no "
                          "drafts", x->spec->model_type);
    }
    if (in->sampling.beam_width != 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "draft_input_ids needs beam_width 1, got %d",
                          in->sampling.beam_width);
    }
    for (int32_t i = 0; i < n; i++) {
        if (in->draft_input_ids[i] < 0 || in->draft_input_ids[i] >= x->info.vocab) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "draft_input_ids[%d] is %d, expected 0 to %d (the model's "
                              "vocabulary)", i, in->draft_input_ids[i], x->info.vocab - 1);
        }
    }
    if (!(t < 0) && !(t >= 0 && t <= 1)) {
        return out_of_range("draft_acceptance_threshold", (double)t, "in [0, 1]");
    }
    for (int64_t i = 0; in->draft_logits && i < (int64_t)n * x->info.vocab; i++) {
        if (isnan(in->draft_logits[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "draft_logits has NaN for draft token %d",
                              (int)(i / x->info.vocab));
        }
    }
    return NULL;
}

static nrd_error *check_ranges(const nrd_exec_request *in)
{
    if (in->n_retention_ranges < 0 || in->n_retention_ranges > MAX_RANGES ||
        (in->n_retention_ranges > 0 && !in->retention_ranges)) {
        return out_of_range("number of retention ranges", in->n_retention_ranges, "in [0, 4096]");
    }
    for (int32_t i = 0; i < in->n_retention_ranges; i++) {
        const nrd_kv_retention_range *g = &in->retention_ranges[i];
        if (g->start < 0 || (g->end >= 0 && g->end < g->start) || g->priority < 0 ||
            g->priority > NRD_KV_PRIORITY_MAX) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "retention range %d [%d, %d) with priority %d is out of range "
                              "(priority 0 to %d)",
                              i, g->start, g->end, g->priority, NRD_KV_PRIORITY_MAX);
        }
    }
    return NULL;
}

static nrd_error *check_pooling(const nrd_exec *x, const nrd_exec_request *in)
{
    const struct {
        bool used;
        const char *name;
    } fields[] = {
        {in->guide_type != NULL, "guided decoding"},
        {in->sampling.beam_width != 1, "beam_width > 1"},
        {in->sampling.num_return_sequences != 1, "num_return_sequences > 1"},
        {in->return_log_probs || in->n_top_logprobs > 0, "log probabilities"},
        {in->return_context_logits, "return_context_logits"},
        {in->return_prompt_log_probs, "return_prompt_log_probs"},
        {in->return_generation_logits, "return_generation_logits"},
        {in->n_draft_input_ids > 0, "draft_input_ids"},
    };
    if (in->pooling < NRD_POOLING_NONE || in->pooling > NRD_POOLING_LABELS) {
        return out_of_range("pooling", in->pooling, "0 (none), 1 (last), 2 (mean), 3 (first), 4 (the model's) or 5 (labels)");
    }
    if (in->pooling == NRD_POOLING_NONE && x->spec->encoder) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this model is an encoder (%s): it makes embeddings and no text; "
                          "ask /v1/embeddings, or set pooling", x->spec->model_type);
    }
    if (in->pooling == NRD_POOLING_NONE && x->classifier && !x->spec->classifier.from_tokens) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this model is a classifier: it has labels and makes no text; ask "
                          "/classify or /rerank, or set pooling");
    }
    if (in->pooling == NRD_POOLING_LABELS && !x->classifier) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this model (%s) has no labels: it was not trained as a classifier or "
                          "reranker", x->spec->architecture);
    }
    if (in->second_from < 0 || (in->second_from > 0 && in->second_from >= in->n_input_ids)) {
        return out_of_range("second_from", in->second_from, "0, or a place in the prompt");
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && in->pooling; i++) {
        if (fields[i].used) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "pooling generates nothing and does not go with %s",
                              fields[i].name);
        }
    }
    return NULL;
}

static nrd_error *check_deterministic(const nrd_exec *x, const nrd_exec_request *in)
{
    if (!in->deterministic || x->cfg.deterministic || x->rows_are_alone) {
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "deterministic: on this device the tokens depend on what runs beside them, unless the model "
                      "is loaded with the parameter deterministic");
}

nrd_error *nrd_exec_request_check(const nrd_exec *x, const nrd_exec_request *in)
{
    if (in->skip_cross_attn_blocks) {
        return unsupported("skip_cross_attn_blocks");
    }
    NRD_TRY(nrd_handover_check(x, in));
    NRD_TRY(check_deterministic(x, in));
    NRD_TRY(nrd_exec_speculative_check(x, in));
    NRD_TRY(check_pooling(x, in));
    NRD_TRY(check_guide(x, in));
    NRD_TRY(nrd_exec_prompt_table_check(x, in));
    NRD_TRY(nrd_exec_mrope_check(x, in));
    NRD_TRY(nrd_exec_encoder_check(x, in)); /* its limit is the narrower one */
    NRD_TRY(check_prompt(x, in));
    if (in->max_new_tokens < 1 && in->pooling == NRD_POOLING_NONE) {
        return out_of_range("max_new_tokens (request_output_len)", in->max_new_tokens,
                            "at least 1");
    }
    NRD_TRY(check_sampling(x, in));
    NRD_TRY(nrd_exec_bias_check(in, x->info.vocab));
    NRD_TRY(check_phrases("stop_words_list", &in->stop_words));
    NRD_TRY(check_phrases("bad_words_list", &in->bad_words));
    if (!(in->priority >= 0 && in->priority <= 1)) {
        return out_of_range("priority", (double)in->priority, "in [0, 1]");
    }
    NRD_TRY(check_ranges(in));
    NRD_TRY(nrd_exec_reasoning_check(x, in));
    NRD_TRY(check_draft(x, in));
    return check_outputs(x, in);
}
