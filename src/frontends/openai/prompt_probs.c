/* SPDX-License-Identifier: Apache-2.0
 * Log probabilities of a prompt's own tokens: of echo with logprobs, as OpenAI's completions have them, and of prompt_logprobs, as
 * vLLM's answers have them. */
#include "frontends/openai/internal.h"

#include <string.h>

/* Where the text of each token begins, as far as the prompt's text goes. */
static nrd_error *find_offsets(const nrd_oai_choice *c, const nrd_str *echo, uint32_t *out)
{
    nrd_detok *d = nrd_detok_new(c->r->model->tokenizer, NRD_DECODE_SKIP_SPECIAL);
    nrd_str text = {0};

    if (!d) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < c->prompt->n; i++) {
        out[i] = (uint32_t)(text.len < echo->len ? text.len : echo->len);
        nrd_detok_push(d, c->prompt->ids[i], &text);
    }
    nrd_error *err = nrd_str_error(&text);
    nrd_detok_free(d);
    nrd_str_fini(&text);
    return err;
}

nrd_error *nrd_oai_take_prompt_probs(nrd_oai_choice *c, const nrd_oai_probs *from)
{
    const nrd_oai_request *r = c->r;
    const size_t n = c->prompt->n, k = (size_t)r->n_prompt_top, others = n * k;
    nrd_oai_probs *p = &c->prompt_probs;

    if (p->log_probs || !from->log_probs) {
        return NULL;
    }
    if (from->n != n || (k > 0 && !from->top_ids)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "log probabilities of %zu tokens for a prompt of %zu", from->n, n);
    }
    float *mem = malloc((3 * n + 2 * others) * sizeof *mem);
    if (!mem) {
        return nrd_error_no_memory();
    }
    *p = (nrd_oai_probs){.n = n, .log_probs = mem};
    p->ranks = memcpy(mem + n, from->ranks, n * sizeof *p->ranks);
    memcpy(mem, from->log_probs, n * sizeof *mem);
    uint32_t *offsets = (uint32_t *)(void *)(mem + 2 * n);
    p->offsets = offsets;
    if (others > 0) {
        p->top_ids = memcpy(mem + 3 * n, from->top_ids, others * sizeof *p->top_ids);
        p->top_log_probs = memcpy(mem + 3 * n + others, from->top_log_probs, others * sizeof *mem);
    }
    return find_offsets(c, &r->echoes[c->index / r->best_of], offsets);
}

static void put_alternative(nrd_str *o, const nrd_oai_request *r, int32_t id, float log_prob, int32_t rank, nrd_str *bytes)
{
    nrd_str_printf(o, "\"%d\":{\"logprob\":", id);
    nrd_oai_put_log_prob(o, log_prob);
    nrd_str_printf(o, ",\"rank\":%d,\"decoded_token\":", rank);
    nrd_oai_put_token(o, r, id, bytes);
    nrd_str_putc(o, '}');
}

void nrd_oai_put_prompt_probs(nrd_str *o, const nrd_oai_choice *c)
{
    const nrd_oai_request *r = c->r;
    const nrd_oai_probs *p = &c->prompt_probs;
    const size_t k = (size_t)r->n_prompt_top;
    nrd_str bytes = {0};

    nrd_str_puts(o, "[null");
    for (size_t i = 1; i < p->n; i++) { /* nothing is before the first token */
        const int32_t id = c->prompt->ids[i];
        nrd_str_puts(o, ",{");
        put_alternative(o, r, id, p->log_probs[i], p->ranks[i], &bytes);
        for (size_t j = 0; j < k; j++) {
            if (p->top_ids[i * k + j] != id) {
                nrd_str_putc(o, ',');
                put_alternative(o, r, p->top_ids[i * k + j], p->top_log_probs[i * k + j], (int32_t)j + 1, &bytes);
            }
        }
        nrd_str_putc(o, '}');
    }
    nrd_str_putc(o, ']');
    nrd_str_fini(&bytes);
}
