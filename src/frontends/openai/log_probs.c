/* SPDX-License-Identifier: Apache-2.0
 * Log probabilities of tokens in answers, as OpenAI's chats and completions list them. */
#include "frontends/openai/internal.h"

#include <math.h>
#include <string.h>

void nrd_oai_put_token(nrd_str *o, const nrd_oai_request *r, int32_t id, nrd_str *bytes)
{
    size_t n = 0;
    const char *s = nrd_tokenizer_token_bytes(r->model->tokenizer, id, &n);
    if (!s || n == 0) { /* special tokens have their written form */
        s = nrd_tokenizer_token(r->model->tokenizer, id, &n);
    }
    if (r->tokens_as_ids) {
        nrd_str_printf(o, "\"token_id:%d\"", id);
    } else {
        nrd_json_put_string(o, s ? s : "", s ? n : 0);
    }
    nrd_str_clear(bytes);
    for (size_t i = 0; i < n && s; i++) {
        nrd_str_printf(bytes, i ? ",%d" : "%d", (int)(unsigned char)s[i]);
    }
}

/* The least number that JSON and OpenAI's clients take. */
void nrd_oai_put_log_prob(nrd_str *o, float v)
{
    nrd_json_put_float(o, isfinite(v) ? v : -9999.0f);
}

/* Without the end of the object. */
static void put_token_log_prob(nrd_str *o, const nrd_oai_request *r, int32_t id, float log_prob, bool with_id,
                               nrd_str *bytes)
{
    nrd_str_putc(o, '{');
    if (with_id) {
        nrd_str_printf(o, "\"id\":%d,", id);
    }
    nrd_str_puts(o, "\"token\":");
    nrd_oai_put_token(o, r, id, bytes);
    nrd_str_puts(o, ",\"logprob\":");
    nrd_oai_put_log_prob(o, log_prob);
    nrd_str_puts(o, ",\"bytes\":[");
    nrd_str_put(o, bytes);
    nrd_str_putc(o, ']');
}

void nrd_oai_put_log_probs(nrd_str *o, const nrd_oai_choice *c, size_t from, bool with_ids)
{
    nrd_str bytes = {0};
    nrd_str_putc(o, '[');
    for (size_t i = from; i < c->n_log_probs; i++) {
        nrd_str_puts(o, i > from ? "," : "");
        put_token_log_prob(o, c->r, c->ids.ids[i], c->log_probs[i], with_ids, &bytes);
        nrd_str_puts(o, ",\"top_logprobs\":[");
        const size_t k = (size_t)c->r->n_top;
        for (size_t j = i * k, first = j; j < (i + 1) * k && c->top_ids[j] >= 0; j++) {
            nrd_str_puts(o, j > first ? "," : "");
            put_token_log_prob(o, c->r, c->top_ids[j], c->top_log_probs[j], with_ids, &bytes);
            nrd_str_putc(o, '}');
        }
        nrd_str_puts(o, "]}");
    }
    nrd_str_putc(o, ']');
    nrd_str_fini(&bytes);
}

/* Tokens [from, n) of a list with k alternatives to each. */
typedef struct token_list {
    const int32_t *ids, *top_ids;
    const float *log_probs, *top_log_probs;
    const uint32_t *offsets;
    size_t from, n, k, shift; /* shift: of their offsets */
    bool is_prompt;           /* the first token has nothing before it */
} token_list;

static bool has_no_probs(const token_list *l, size_t i)
{
    return l->is_prompt && i == 0;
}

/* Whether an object that begins at `begin` has a member of this name, `"name":`. */
static bool has_member(const nrd_str *o, size_t begin, const nrd_str *name)
{
    for (size_t at = begin + 1; at < o->len;) {
        const char *hit = memmem(o->data + at, o->len - at, name->data, name->len);
        if (!hit) {
            return false;
        }
        if (hit[-1] == '{' || hit[-1] == ',') { /* else in another name, behind a backslash */
            return true;
        }
        at = (size_t)(hit - o->data) + 1;
    }
    return false;
}

/* By their texts. Of tokens with the same one, as parts of a character have, the best stands for all: a JSON object has each
 * name once. */
static void put_alternatives(nrd_str *o, const nrd_oai_request *r, const token_list *l, size_t i, nrd_str *bytes)
{
    const size_t begin = o->len;
    nrd_str name = {0};

    nrd_str_putc(o, '{');
    for (size_t j = i * l->k; j < (i + 1) * l->k && l->top_ids[j] >= 0 && !o->no_memory; j++) {
        nrd_str_clear(&name);
        nrd_oai_put_token(&name, r, l->top_ids[j], bytes);
        nrd_str_putc(&name, ':');
        if (name.no_memory) {
            nrd_str_spoil(o);
        } else if (!has_member(o, begin, &name)) {
            nrd_str_puts(o, o->len > begin + 1 ? "," : "");
            nrd_str_put(o, &name);
            nrd_oai_put_log_prob(o, l->top_log_probs[j]);
        }
    }
    nrd_str_putc(o, '}');
    nrd_str_fini(&name);
}

typedef enum { LIST_TOKENS, LIST_LOG_PROBS, LIST_TOP, LIST_OFFSETS } list_kind;

static void put_list(nrd_str *o, const nrd_oai_request *r, const token_list *lists, size_t n_lists, list_kind kind, nrd_str *bytes)
{
    const char *between = "";

    nrd_str_putc(o, '[');
    for (const token_list *l = lists; l < lists + n_lists; l++) {
        for (size_t i = l->from; i < l->n; i++, between = ",") {
            nrd_str_puts(o, between);
            if (kind == LIST_TOKENS) {
                nrd_oai_put_token(o, r, l->ids[i], bytes);
            } else if (kind == LIST_OFFSETS) {
                nrd_str_printf(o, "%zu", l->offsets[i] + l->shift);
            } else if (has_no_probs(l, i)) {
                nrd_str_puts(o, "null");
            } else if (kind == LIST_LOG_PROBS) {
                nrd_oai_put_log_prob(o, l->log_probs[i]);
            } else {
                put_alternatives(o, r, l, i, bytes);
            }
        }
    }
    nrd_str_putc(o, ']');
}

/* with_prompt: of its tokens too, where the prompt is echoed. */
static void put_text_log_probs(nrd_str *o, const nrd_oai_choice *c, size_t from, bool with_prompt)
{
    const nrd_oai_request *r = c->r;
    const nrd_oai_probs *p = &c->prompt_probs;
    const token_list lists[] = {
        {c->prompt->ids, p->top_ids, p->log_probs, p->top_log_probs, p->offsets, 0, with_prompt && r->echo && p->log_probs ? p->n : 0,
         (size_t)(r->n_prompt_top > 0 ? r->n_prompt_top : 0), 0, true},
        {c->ids.ids, c->top_ids, c->log_probs, c->top_log_probs, c->offsets, from, c->n_log_probs, (size_t)r->n_top,
         r->echo ? r->echoes[c->index / r->best_of].len : 0, false},
    };
    nrd_str bytes = {0};

    nrd_str_puts(o, "{\"tokens\":");
    put_list(o, r, lists, 2, LIST_TOKENS, &bytes);
    nrd_str_puts(o, ",\"token_logprobs\":");
    put_list(o, r, lists, 2, LIST_LOG_PROBS, &bytes);
    nrd_str_puts(o, ",\"top_logprobs\":");
    if (r->n_top > 0) {
        put_list(o, r, lists, 2, LIST_TOP, &bytes);
    } else {
        nrd_str_puts(o, "null");
    }
    nrd_str_puts(o, ",\"text_offset\":");
    put_list(o, r, lists, 2, LIST_OFFSETS, &bytes);
    nrd_str_putc(o, '}');
    nrd_str_fini(&bytes);
}

void nrd_oai_put_choice_log_probs(nrd_str *o, const nrd_oai_choice *c, size_t from, bool with_prompt)
{
    if (!c->r->log_probs) {
        nrd_str_puts(o, "null");
    } else if (c->r->chat) {
        nrd_str_puts(o, "{\"content\":");
        nrd_oai_put_log_probs(o, c, from, false);
        nrd_str_puts(o, ",\"refusal\":null}");
    } else {
        put_text_log_probs(o, c, from, with_prompt);
    }
}
