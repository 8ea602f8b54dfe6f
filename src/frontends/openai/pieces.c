/* SPDX-License-Identifier: Apache-2.0
 * Responses of the model -> ids, text, what is known of tokens; stop strings. */
#include "frontends/openai/generate.h"

#include "nereid/llm_tensors.h"

#include <stdlib.h>
#include <string.h>

/* The error of a response, with the word that the model gives for its reason and the field of the body that it is about. */
static nrd_error *response_error(const nrd_oai_request *r, TRITONSERVER_InferenceResponse *response)
{
    nrd_error *err = nrd_oai_plain_error(nrd_infer_response_error(response), r->guide_field);
    const char *reason = err ? nrd_infer_find_parameter(response, NRD_LLM_ERROR_REASON, TRITONSERVER_PARAMETER_STRING) : NULL;

    if (reason && !strcmp(reason, NRD_LLM_PROMPT_TOO_LONG)) {
        err = nrd_error_because(nrd_error_at(err, r->form->is_chat ? "messages" : "prompt"), NRD_LLM_PROMPT_TOO_LONG);
    }
    return nrd_oai_rename_field(err, r->form);
}

static void take_int(TRITONSERVER_InferenceResponse *response, const char *name, int64_t *out)
{
    const int64_t *v = nrd_infer_find_parameter(response, name, TRITONSERVER_PARAMETER_INT);
    *out = v ? *v : *out;
}

nrd_error *nrd_oai_read_piece(const nrd_oai_request *r, TRITONSERVER_InferenceResponse *response, nrd_oai_piece *p)
{
    uint32_t n = 0;
    const int32_t *length = NULL;

    memset(p, 0, sizeof *p);
    NRD_TRY(response_error(r, response));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        nrd_infer_tensor o;
        NRD_TRY(nrd_infer_get_tensor(response, i, &o));
        if (!strcmp(o.name, "output_ids")) {
            p->ids = o.base;
            p->n_ids = o.size / sizeof *p->ids;
        } else if (!strcmp(o.name, "sequence_length") && o.size >= sizeof *length) {
            length = o.base;
        } else if (!strcmp(o.name, "output_log_probs")) {
            p->log_probs = o.base;
            p->n_log_probs = o.size / sizeof *p->log_probs;
        } else if (!strcmp(o.name, "top_log_prob_ids")) {
            p->top_ids = o.base;
            p->n_top_ids = o.size / sizeof *p->top_ids;
        } else if (!strcmp(o.name, "top_log_probs")) {
            p->top_log_probs = o.base;
            p->n_top_log_probs = o.size / sizeof *p->top_log_probs;
        } else if (!strcmp(o.name, "prompt_log_probs")) {
            p->prompt.log_probs = o.base;
            p->prompt.n = o.size / sizeof *p->prompt.log_probs;
        } else if (!strcmp(o.name, "prompt_log_prob_ranks")) {
            p->prompt.ranks = o.base;
        } else if (!strcmp(o.name, "prompt_top_log_prob_ids")) {
            p->prompt.top_ids = o.base;
        } else if (!strcmp(o.name, "prompt_top_log_probs")) {
            p->prompt.top_log_probs = o.base;
        } else if (!strcmp(o.name, "cum_log_probs") && o.size >= sizeof p->cum_log_prob) {
            p->cum_log_prob = *(const float *)o.base;
        } else if (!strcmp(o.name, "kv_cache_reused_blocks") && o.size >= sizeof p->reused_blocks) {
            p->reused_blocks = *(const int32_t *)o.base;
        } else if (!strcmp(o.name, "arrival_time_ns") && o.size >= sizeof p->arrival_ns) {
            p->arrival_ns = *(const int64_t *)o.base;
        } else if (!strcmp(o.name, "first_token_time_ns") && o.size >= sizeof p->first_token_ns) {
            p->first_token_ns = *(const int64_t *)o.base;
        } else if (!strcmp(o.name, "last_token_time_ns") && o.size >= sizeof p->last_token_ns) {
            p->last_token_ns = *(const int64_t *)o.base;
        }
    }
    if (length && *length >= 0 && (size_t)*length < p->n_ids) {
        p->n_ids = (size_t)*length;
    }
    if (p->n_log_probs > p->n_ids) { /* a stream's answers have those of all tokens so far */
        p->log_probs += p->n_log_probs - p->n_ids;
        p->n_log_probs = p->n_ids;
    }
    take_int(response, NRD_LLM_FINISH_REASON, &p->finish_reason);
    int64_t per_block = p->tokens_per_block;
    take_int(response, NRD_LLM_TOKENS_PER_BLOCK, &per_block);
    p->tokens_per_block = (int32_t)per_block;
    take_int(response, NRD_LLM_PROMPT_TOKENS, &p->prompt_tokens);
    return NULL;
}

static bool is_end(const nrd_oai_request *r, int32_t id)
{
    size_t n = 0;
    const int32_t *stops = nrd_tokenizer_stop_ids(r->model->tokenizer, &n);
    bool end = !r->ignore_eos && id == nrd_tokenizer_eos_id(r->model->tokenizer);
    for (size_t i = 0; i < n && !r->ignore_eos; i++) {
        end = end || stops[i] == id;
    }
    for (size_t i = 0; i < r->stop_ids.n; i++) {
        end = end || r->stop_ids.ids[i] == id;
    }
    return end;
}

static bool grow(void **p, size_t n, size_t size)
{
    void *fresh = realloc(*p, n * size);
    *p = fresh ? fresh : *p;
    return fresh != NULL;
}

/* Room for one more token's probabilities. */
static nrd_error *reserve_token(nrd_oai_choice *c)
{
    const size_t k = (size_t)c->r->n_top, cap = c->n_log_cap ? 2 * c->n_log_cap : 64;
    if (c->n_log_probs < c->n_log_cap) {
        return NULL;
    }
    if (!grow((void **)&c->log_probs, cap, sizeof *c->log_probs) ||
        !grow((void **)&c->offsets, cap, sizeof *c->offsets) ||
        !grow((void **)&c->top_ids, cap * k + 1, sizeof *c->top_ids) ||
        !grow((void **)&c->top_log_probs, cap * k + 1, sizeof *c->top_log_probs)) {
        return nrd_error_no_memory();
    }
    c->n_log_cap = cap;
    return NULL;
}

/* Keeps token i of a piece. */
static nrd_error *add_token(nrd_oai_choice *c, const nrd_oai_piece *p, size_t i)
{
    size_t k = (size_t)c->r->n_top, stride = (size_t)nrd_oai_asked_top(c->r);
    NRD_TRY(reserve_token(c));
    for (size_t j = 0; j < k; j++) {
        size_t at = i * stride + j;
        bool has = at < p->n_top_ids && at < p->n_top_log_probs;
        c->top_ids[c->n_log_probs * k + j] = has ? p->top_ids[at] : -1;
        c->top_log_probs[c->n_log_probs * k + j] = has ? p->top_log_probs[at] : 0;
    }
    c->log_probs[c->n_log_probs] = i < p->n_log_probs ? p->log_probs[i] : 0;
    c->offsets[c->n_log_probs++] = (uint32_t)c->text.len;
    nrd_ids_push(&c->ids, p->ids[i]);
    return nrd_ids_error(&c->ids);
}

/* Ends the text before the first stop string. `from`: where a new one can begin at the earliest. */
static bool cut_at_stop(nrd_oai_choice *c, size_t from)
{
    const nrd_oai_request *r = c->r;
    size_t best = SIZE_MAX, end = 0;
    for (size_t i = 0; i < r->n_stops && c->text.len > 0; i++) {
        size_t n = r->stops[i].n, start = from > n ? from - n : 0;
        const char *hit = memmem(c->text.data + start, c->text.len - start, r->stops[i].s, n);
        size_t at = hit ? (size_t)(hit - c->text.data) : SIZE_MAX;
        if (at < best) {
            best = at;
            end = at + n;
            c->stop = (int)i;
        }
    }
    if (best == SIZE_MAX) {
        return false;
    }
    c->text.len = r->include_stop ? end : best;
    c->text.data[c->text.len] = '\0';
    return true;
}

static nrd_error *text_error(const nrd_oai_choice *c)
{
    return c->harmony && nrd_harmony_no_memory(c->harmony) ? nrd_error_no_memory() : nrd_str_error(&c->text);
}

nrd_error *nrd_oai_take_ids(nrd_oai_choice *c, const nrd_oai_piece *p)
{
    NRD_TRY(nrd_oai_take_prompt_probs(c, &p->prompt));
    if (c->r->only_prompt) {
        return NULL;
    }
    for (size_t i = 0; i < p->n_ids && !c->finish; i++) {
        const size_t before = c->text.len;
        c->n_tokens++;
        if (is_end(c->r, p->ids[i])) {
            c->finish = "stop";
            c->ended = true;
            c->end_token = p->ids[i];
            break;
        }
        NRD_TRY(add_token(c, p, i));
        if (c->harmony) {
            nrd_harmony_push(c->harmony, p->ids[i], &c->text);
        } else {
            nrd_detok_push(c->detok, p->ids[i], &c->text);
        }
        NRD_TRY(text_error(c));
        if (cut_at_stop(c, before)) {
            c->finish = "stop";
            c->cut = true;
        }
    }
    return NULL;
}

nrd_error *nrd_oai_finish_choice(nrd_oai_choice *c)
{
    nrd_oai_request *r = c->r;
    size_t before = c->text.len;
    if (!c->cut) {
        if (c->harmony) {
            nrd_harmony_end(c->harmony, &c->text);
        } else {
            nrd_detok_flush(c->detok, &c->text);
        }
        c->cut = cut_at_stop(c, before);
    }
    if (!c->finish) {
        c->finish = c->cut ? "stop" : "length";
    }
    c->done = true;
    r->n_done++;
    return text_error(c);
}
