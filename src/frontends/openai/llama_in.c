/* SPDX-License-Identifier: Apache-2.0
 * Bodies of llama.cpp's /completion and /infill as those of /v1/completions.
 * Source: the reference of llama.cpp's server (completion, infill). */
#include "frontends/openai/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- prompts ---- */

static void put_ids(nrd_str *out, const nrd_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++) {
        nrd_str_printf(out, i ? ",%d" : "[%d", ids->ids[i]);
    }
    nrd_str_puts(out, ids->n ? "]" : "[]");
}

/* One prompt: a text, ids, a list of both, or {"prompt_string"}. */
static nrd_error *put_one(nrd_oai_request *r, nrd_str *out, const nrd_json *p)
{
    nrd_ids ids = {0};
    if (p->type == NRD_JSON_OBJECT) {
        if (nrd_json_len(nrd_json_get(p, "multimodal_data")) > 0) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "prompt", "has multimodal_data; only text is supported");
        }
        p = nrd_json_get(p, "prompt_string");
    }
    if (nrd_json_is(p, NRD_JSON_STRING)) {
        nrd_json_put(out, p, -1);
        return NULL;
    }
    nrd_error *err = nrd_oai_mixed_ids(r->model, p, "prompt", NRD_ENCODE_ADD_SPECIAL | NRD_ENCODE_PARSE_SPECIAL, &ids);
    put_ids(out, &ids);
    nrd_ids_fini(&ids);
    return err;
}

/* Several prompts: a list without numbers. */
static bool is_list(const nrd_json *p)
{
    bool is = nrd_json_is(p, NRD_JSON_ARRAY) && p->n > 0;
    for (size_t i = 0; is && i < p->n; i++) {
        is = !nrd_json_is_number(&p->child[i]);
    }
    return is;
}

static nrd_error *put_llama_prompts(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    const nrd_json *p = nrd_json_get(root, "prompt");
    nrd_oai_put_key(out, "prompt");
    if (!is_list(p)) {
        return p ? put_one(r, out, p) : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "prompt", "is missing");
    }
    for (size_t i = 0; i < p->n; i++) {
        nrd_str_putc(out, i ? ',' : '[');
        NRD_TRY(put_one(r, out, &p->child[i]));
    }
    nrd_str_putc(out, ']');
    return NULL;
}

/* ---- options ---- */

/* Ways of sampling that are not offered: with the value that they are off with they may be there. */
static nrd_error *refuse_samplers(const nrd_json *root)
{
    static const struct {
        const char *name;
        double off;
    } rows[] = {{"typical_p", 1}, {"mirostat", 0}, {"dry_multiplier", 0}, {"xtc_probability", 0}, {"dynatemp_range", 0},
                {"top_n_sigma", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const nrd_json *v = nrd_json_get(root, rows[i].name);
        const double x = nrd_json_num(v, rows[i].off);
        if (nrd_oai_given(v) && (!nrd_json_is_number(v) || x < rows[i].off || x > rows[i].off)) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, rows[i].name, "is not offered; leave it out or send %g", rows[i].off);
        }
    }
    if (nrd_json_len(nrd_json_get(root, "lora")) > 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "lora", "adapters are models of their own; name one in model");
    }
    if (nrd_json_get_bool(root, "post_sampling_probs", false)) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "post_sampling_probs", "only probabilities of the model are given");
    }
    return NULL;
}

/* A list of [token id or text, bias or false] as an object of ids; of a text each token. */
static nrd_error *put_bias(nrd_oai_request *r, nrd_str *out, const nrd_json *bias)
{
    static const char shape[] = "must be a list of [token id or text, number or false], or an object";
    nrd_error *err = NULL;
    nrd_ids ids = {0};
    size_t n = 0;

    if (!nrd_oai_given(bias) || nrd_json_is(bias, NRD_JSON_OBJECT)) {
        if (nrd_oai_given(bias)) {
            nrd_oai_put_member(out, "logit_bias", bias);
        }
        return NULL;
    }
    if (bias->type != NRD_JSON_ARRAY) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "logit_bias", "%s", shape);
    }
    nrd_str_puts(out, ",\"logit_bias\":{");
    for (size_t i = 0; i < bias->n && !err; i++) {
        const nrd_json *pair = &bias->child[i], *value = nrd_json_is(pair, NRD_JSON_ARRAY) ? nrd_json_at(pair, 1) : NULL;
        const bool never = nrd_json_is(value, NRD_JSON_BOOL) && !value->boolean;
        if (nrd_json_len(pair) != 2 || (!never && !nrd_json_is_number(value))) {
            err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, "logit_bias", "%s", shape);
            break;
        }
        ids.n = 0;
        err = nrd_oai_mixed_ids(r->model, nrd_json_at(pair, 0), "logit_bias", NRD_ENCODE_PARSE_SPECIAL, &ids);
        for (size_t k = 0; k < ids.n && !err; k++) {
            nrd_str_printf(out, "%s\"%d\":", n++ ? "," : "", ids.ids[k]);
            if (never) {
                nrd_str_puts(out, "-100");
            } else {
                nrd_json_put(out, value, -1);
            }
        }
    }
    nrd_str_putc(out, '}');
    nrd_ids_fini(&ids);
    return err;
}

/* How many tokens: -1 and -2 are no limit; 0 only brings the prompt into the cache, for which one is made
 * and not told. */
static void put_length(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    const nrd_json *most = nrd_json_get(root, "n_predict");
    most = nrd_oai_given(most) ? most : nrd_json_get(root, "max_tokens");
    const bool whole = nrd_oai_given(most) && most->type == NRD_JSON_INT;
    r->llama.silent = whole && most->i == 0;
    if (r->llama.silent) {
        nrd_str_puts(out, ",\"max_tokens\":1");
    } else if (nrd_oai_given(most) && !(whole && (most->i == -1 || most->i == -2))) {
        nrd_oai_put_member(out, "max_tokens", most);
    } else {
        nrd_str_printf(out, ",\"max_tokens\":%d", OAI_MAX_NEW_TOKENS);
    }
}

static nrd_error *put_limits(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    const nrd_json *ms = nrd_json_get(root, "t_max_predict_ms"), *seed = nrd_json_get(root, "seed");
    const nrd_json *probs = nrd_json_get(root, "n_probs");

    put_length(r, out, root);
    if (nrd_oai_given(ms) && nrd_json_num(ms, -1) > 0) {
        nrd_oai_put_key(out, "max_time");
        nrd_json_put_double(out, nrd_json_num(ms, 0) / 1000);
    }
    if (nrd_oai_given(seed) && !(nrd_json_is_number(seed) && (nrd_json_int(seed, 0) == -1 || nrd_json_int(seed, 0) == UINT32_MAX))) { /* those are drawn */
        nrd_oai_put_member(out, "seed", seed);
    }
    if (nrd_oai_given(probs) && !(probs->type == NRD_JSON_INT && probs->i == 0)) {
        nrd_oai_put_member(out, "logprobs", probs);
    }
    return put_bias(r, out, nrd_json_get(root, "logit_bias"));
}

static nrd_error *put_llama_options(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    static const char *const names[][2] = {{"repeat_penalty", "repetition_penalty"}, {"n_cmpl", "n"},
                                           {"json_schema", "guided_json"}};
    static const char *const special[] = {
        "model", "prompt", "n_predict", "max_tokens", "repeat_penalty", "n_cmpl", "json_schema", "grammar",
        "t_max_predict_ms", "seed", "n_probs", "logit_bias", "return_tokens", "response_fields",
        "input_prefix", "input_suffix", "input_extra", "typical_p", "mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range",
        "top_n_sigma", "lora", "post_sampling_probs",
        /* without effect: how the machine is used, or values of what is off */
        "cache_prompt", "id_slot", "n_keep", "n_discard", "n_indent", "n_cache_reuse", "samplers", "min_keep", "repeat_last_n",
        "timings_per_token", "return_progress", "sse_ping_interval", "t_max_prompt_ms", "dry_base", "dry_allowed_length",
        "dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold", "mirostat_tau", "mirostat_eta", "dynatemp_exponent",
        NULL};
    static const char *const unknown[] = {"best_of", "echo", "suffix", "logprobs", "stream_options", "return_timings", "return_token_ids", "prompt_logprobs", "return_tokens_as_token_ids", "truncate_prompt_tokens", "add_special_tokens", "max_time",
                                          "repetition_penalty", NULL};
    const nrd_json *fields = nrd_json_get(root, "response_fields"), *grammar = nrd_json_get(root, "grammar");

    NRD_TRY(refuse_samplers(root));
    NRD_TRY(nrd_oai_get_bool(root, "return_tokens", &r->llama.tokens));
    if (nrd_oai_given(fields)) {
        if (fields->type != NRD_JSON_ARRAY) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "response_fields", "must be a list of names");
        }
        nrd_json_put(&r->llama.fields, fields, -1);
        NRD_TRY(nrd_str_error(&r->llama.fields));
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (nrd_oai_given(nrd_json_get(root, names[i][0]))) {
            nrd_oai_put_member(out, names[i][1], nrd_json_get(root, names[i][0]));
        }
    }
    if (nrd_oai_given(grammar) && !(grammar->type == NRD_JSON_STRING && grammar->n == 0)) {
        nrd_oai_put_member(out, "guided_grammar", grammar);
    }
    NRD_TRY(put_limits(r, out, root));
    nrd_oai_put_rest(r, out, root, special, unknown);
    return NULL;
}

static nrd_error *begin_llama(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    NRD_TRY(nrd_oai_find_only(r->o, r->req, nrd_json_get(root, "model"), &r->model));
    nrd_oai_put_key(out, "model");
    nrd_json_put_cstr(out, r->model->name);
    return NULL;
}

nrd_error *nrd_oai_llama_completion(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    NRD_TRY(begin_llama(r, out, root));
    NRD_TRY(put_llama_prompts(r, out, root));
    return put_llama_options(r, out, root);
}

nrd_error *nrd_oai_llama_infill(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    static const char *const texts[] = {"input_prefix", "input_suffix", "prompt"};
    nrd_oai_fim fim = {.files = nrd_json_get(root, "input_extra"), .prefix_field = texts[0], .suffix_field = texts[1]};
    const nrd_json **const parts[] = {&fim.prefix, &fim.suffix, &fim.begun};
    nrd_ids ids = {0};

    NRD_TRY(begin_llama(r, out, root));
    for (size_t i = 0; i < 3; i++) {
        const nrd_json *v = nrd_json_get(root, texts[i]);
        if (nrd_oai_given(v) ? v->type != NRD_JSON_STRING : i < 2) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, texts[i], "must be a string");
        }
        *parts[i] = nrd_oai_given(v) ? v : NULL;
    }
    nrd_error *err = nrd_oai_fim_prompt(r->model, &fim, &ids);
    nrd_oai_put_key(out, "prompt");
    put_ids(out, &ids);
    nrd_ids_fini(&ids);
    NRD_TRY(err);
    NRD_TRY(nrd_oai_fim_ends(r));
    return put_llama_options(r, out, root);
}
