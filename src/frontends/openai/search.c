/* SPDX-License-Identifier: Apache-2.0
 * How an answer of a model with an encoder is searched for: as its makers chose, and over that as the request says. */
#include "frontends/openai/internal.h"

#include <string.h>

enum { MAX_NGRAM = 65536 };

/* Why there can be no beams; NULL: there can. */
static const char *why_one(const nrd_oai_request *r)
{
    return r->stream                       ? "stream"
           : r->n > 1 || r->best_of > 1    ? "n or best_of above 1"
           : r->log_probs                  ? "logprobs"
           : r->n_prompt_top >= 0          ? "prompt_logprobs"
           : r->guide_type                 ? "a guide for the text"
           : r->temperature > 0            ? "a temperature above 0"
           : r->only_prompt                ? "max_tokens 0"
                                           : NULL;
}

static nrd_error *read_stopping(const nrd_json *root, int32_t *out)
{
    const nrd_json *v = nrd_json_get(root, "early_stopping");

    if (!nrd_oai_given(v)) {
        return NULL;
    }
    if (nrd_json_is(v, NRD_JSON_BOOL)) {
        *out = v->boolean;
        return NULL;
    }
    if (strcmp(nrd_json_str(v, ""), "never") != 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "early_stopping", "must be true, false or \"never\"");
    }
    *out = 2;
    return NULL;
}

static nrd_error *read_beams(nrd_oai_request *r, const nrd_json *root, int32_t own)
{
    const int32_t most = own > 0 && r->model->max_beams > 1 ? r->model->max_beams : 1;
    const char *why = why_one(r);
    int64_t asked = 0;

    r->search.beams = own < 1 || why ? 1 : own < most ? own : most;
    NRD_TRY(nrd_oai_get_int(root, "beam_width", 1, own > 0 ? most : NRD_GENERATION_MAX_BEAMS, &asked));
    r->search.beams = asked > 0 ? asked : r->search.beams;
    if (r->search.beams > 1 && own < 1) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "beam_width", "beam search is offered by the v2 endpoints");
    }
    return why && r->search.beams > 1
               ? nrd_oai_errorf(NRD_ERR_INVALID_ARG, "beam_width", "must be 1 beside %s", why) : NULL;
}

nrd_error *nrd_oai_read_search(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_generation *g = r->model->search, bare = NRD_GENERATION_BARE;
    const int32_t most = g ? nrd_generation_max_new(g, g->n_begin) : 0;

    r->search.beams = 1;
    if (r->chat) {
        return NULL;
    }
    if (most > 0 && !nrd_oai_given(nrd_json_get(root, "max_tokens"))) {
        r->max_tokens = most < OAI_MAX_NEW_TOKENS ? most : OAI_MAX_NEW_TOKENS;
    }
    if (g && !nrd_oai_given(nrd_json_get(root, "min_tokens"))) {
        r->min_tokens = nrd_generation_min_new(g, g->n_begin);
    }
    r->search.length_penalty = g ? g->length_penalty : bare.length_penalty;
    r->search.early_stopping = g ? g->early_stopping : bare.early_stopping;
    r->search.no_repeat_ngram_size = g ? g->no_repeat_ngram_size : 0;
    NRD_TRY(nrd_oai_get_num(root, "length_penalty", -100, 100, &r->search.length_penalty));
    NRD_TRY(nrd_oai_get_int(root, "no_repeat_ngram_size", 0, MAX_NGRAM, &r->search.no_repeat_ngram_size));
    NRD_TRY(read_stopping(root, &r->search.early_stopping));
    return read_beams(r, root, g ? g->num_beams : 0);
}
