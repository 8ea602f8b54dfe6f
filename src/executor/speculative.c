/* SPDX-License-Identifier: Apache-2.0
 * nrd_exec_config.speculative_config and decoding_mode as a method with its numbers. */
#include "executor/internal.h"
#include "executor/tree_choices.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/eagle.h"
#include "engine/speculate/redrafter.h"
#include "engine/speculate/proposer.h"

#include <stddef.h>
#include <string.h>

enum { MAX_MATCH = 64, DEFAULT_NGRAM = 8, DEFAULT_MODEL = 4, DEFAULT_MTP = 1 /* as the layer was trained */, DEFAULT_MIN_MATCH = 1, DEFAULT_MAX_MATCH = 8 };
enum { DEFAULT_EAGLE_NODES = 60, DEFAULT_EAGLE_DEPTH = 5, DEFAULT_EAGLE_TOP_K = 10 }; /* of trees, as EAGLE-2 has them */
enum { MAX_WINDOW = 64, MAX_NGRAM = 16, MAX_VERIFY = 64 };
static const nrd_lookahead DEFAULT_LOOKAHEAD = {4, 3, 4};

/* Methods by their names; NRD_EXEC_NO_METHOD has none. */
static const char *const methods[] = {NULL, "ngram", "draft_model", "lookahead", "medusa", "eagle", "eagle3", "mtp", "redrafter"};
enum { N_METHODS = sizeof methods / sizeof methods[0] };
enum { NGRAM = 1 << NRD_EXEC_NGRAM, DRAFT_MODEL = 1 << NRD_EXEC_DRAFT_MODEL, LOOKAHEAD = 1 << NRD_EXEC_LOOKAHEAD,
       MEDUSA = 1 << NRD_EXEC_MEDUSA, MTP = 1 << NRD_EXEC_MTP, REDRAFTER = 1 << NRD_EXEC_REDRAFTER,
       EAGLE = 1 << NRD_EXEC_EAGLE | 1 << NRD_EXEC_EAGLE3 };
/* With a network of their own; with one that `model` names; those whose drafts are chains or trees; with matrices that no engine file has. */
enum { NETWORKS = DRAFT_MODEL | EAGLE | MTP, NAMED = DRAFT_MODEL | EAGLE | MEDUSA | REDRAFTER, CHAINS = EAGLE | MTP, HEADS = EAGLE | MEDUSA | REDRAFTER };

/* Members that are whole numbers from `least` to `most`, and which methods have them. */
static const struct {
    const char *name;
    unsigned methods;
    int32_t least, most;
    size_t at;
} numbers[] = {
    {"num_speculative_tokens", NGRAM | NETWORKS, 1, NRD_MAX_PASSES, offsetof(nrd_exec_speculative, max_draft)},
    {"num_speculative_tokens", MEDUSA | REDRAFTER, 1, NRD_MAX_TREE, offsetof(nrd_exec_speculative, max_draft)},
    {"dynamic_tree_max_topK", CHAINS, 1, NRD_EAGLE_MAX_TOP_K, offsetof(nrd_exec_speculative, top_k)},
    {"max_draft_path_len", CHAINS, 1, NRD_EAGLE_MAX_DEPTH, offsetof(nrd_exec_speculative, depth)},
    {"redrafter_num_beams", REDRAFTER, 1, NRD_REDRAFTER_MAX_BEAMS, offsetof(nrd_exec_speculative, top_k)},
    {"redrafter_draft_len_per_beam", REDRAFTER, 1, NRD_REDRAFTER_MAX_LEN, offsetof(nrd_exec_speculative, depth)},
    {"prompt_lookup_min", NGRAM, 1, MAX_MATCH, offsetof(nrd_exec_speculative, min_match)},
    {"prompt_lookup_max", NGRAM, 1, MAX_MATCH, offsetof(nrd_exec_speculative, max_match)},
    {"lookahead_window_size", LOOKAHEAD, 1, MAX_WINDOW, offsetof(nrd_exec_speculative, lookahead.window)},
    {"lookahead_ngram_size", LOOKAHEAD, 2, MAX_NGRAM, offsetof(nrd_exec_speculative, lookahead.ngram)},
    {"lookahead_verification_set_size", LOOKAHEAD, 1, MAX_VERIFY, offsetof(nrd_exec_speculative, lookahead.n_verify)},
};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static nrd_error *read_path(const nrd_json *member, char **out)
{
    const char *path = nrd_json_str(member, "");
    nrd_error *err = NULL;
    if (!path[0] || *out) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: model must be the path of an engine, a GGUF file, a "
                                               "Hugging Face or a checkpoint folder, or of Medusa or EAGLE heads or a ReDrafter, once");
    }
    NRD_DUP_GOTO(*out, path, err, fail);
fail:
    return err;
}

static nrd_error *not_a_number(const nrd_json *m, int32_t least, int32_t most)
{
    nrd_str got = {0};
    nrd_json_put(&got, m, -1);
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: %.40s must be a number from %d to %d, got %.40s", m->key,
                                least, most, got.data ? got.data : "");
    nrd_str_fini(&got);
    return err;
}

/* How likely a token must be that stays, though it was not drawn. */
static nrd_error *read_posterior(const nrd_json *m, nrd_exec_speculative *c)
{
    const double v = nrd_json_num(m, -1);
    if (!(v >= 0 && v <= 1)) {
        return not_a_number(m, 0, 1);
    }
    *(!strcmp(m->key, "posterior_threshold") ? &c->posterior_threshold : &c->posterior_alpha) = (float)v;
    return NULL;
}

/* Types that heads' matrices are brought to, which may be of more bits; by TensorRT-LLM's names. */
static nrd_error *read_quantization(const nrd_json *m, nrd_exec_speculative *c)
{
    const char *name = nrd_json_str(m, "");

    c->quantize = !strcmp(name, "int8") || !strcmp(name, "int8_wo") ? NRD_DTYPE_I8 : !strcmp(name, "fp8") ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_NONE;
    return c->quantize != NRD_DTYPE_NONE ? NULL
                                         : nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: quantization '%.40s' is not supported; known: "
                                                      "int8, fp8", name);
}

static const char *choices_name(const nrd_exec_speculative *c)
{
    return c->method == NRD_EXEC_MEDUSA ? "medusa_choices" : "eagle_choices";
}

/* As text, which a list becomes; its form is checked here, its depth when the heads are there. */
static nrd_error *set_choices(const char *text, nrd_exec_speculative *c)
{
    nrd_error *err = NULL;
    nrd_medusa_choices choices;

    if (c->choices) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is given twice", choices_name(c));
    }
    NRD_TRY(nrd_exec_tree_choices(&choices, choices_name(c), text,
                                    c->method == NRD_EXEC_MEDUSA ? NRD_MEDUSA_MAX_HEADS : NRD_EAGLE_MAX_DEPTH));
    c->max_draft = choices.n;
    NRD_DUP_GOTO(c->choices, text, err, fail);
fail:
    return err;
}

static nrd_error *read_choices(const nrd_json *member, nrd_exec_speculative *c)
{
    nrd_str text = {0};
    if (nrd_json_is(member, NRD_JSON_STRING)) {
        nrd_str_puts(&text, nrd_json_str(member, ""));
    } else {
        nrd_json_put(&text, member, -1);
    }
    nrd_error *err = set_choices(text.data ? text.data : "", c);
    nrd_str_fini(&text);
    return nrd_error_wrap(err, "speculative_config");
}

static nrd_error *read_number(const nrd_json *m, size_t i, nrd_exec_speculative *c)
{
    const int64_t v = nrd_json_int(m, -1);
    if (v < numbers[i].least || v > numbers[i].most) {
        return not_a_number(m, numbers[i].least, numbers[i].most);
    }
    *(int32_t *)(void *)((char *)c + numbers[i].at) = (int32_t)v;
    return NULL;
}

/* One member; *known is false where the method has none of its name. */
static nrd_error *read_member(const nrd_json *m, nrd_exec_speculative *c, bool *known)
{
    const unsigned own = 1u << c->method;
    *known = true;
    if (!strcmp(m->key, "method")) {
        return NULL;
    }
    if (!strcmp(m->key, "adaptive")) {
        c->always = !nrd_json_bool(m, true);
        return nrd_json_is(m, NRD_JSON_BOOL) ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: adaptive must be "
                                                                                     "true or false");
    }
    if ((NAMED & own) && !strcmp(m->key, "model")) {
        return read_path(m, &c->model);
    }
    if ((HEADS & own) && !strcmp(m->key, "quantization")) {
        return read_quantization(m, c);
    }
    if (((MEDUSA | CHAINS) & own) && !strcmp(m->key, choices_name(c))) {
        return read_choices(m, c);
    }
    if (!(LOOKAHEAD & own) && (!strcmp(m->key, "posterior_threshold") || !strcmp(m->key, "posterior_alpha"))) {
        return read_posterior(m, c);
    }
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if ((numbers[i].methods & own) && !strcmp(m->key, numbers[i].name)) {
            return read_number(m, i, c);
        }
    }
    *known = false;
    return NULL;
}

static nrd_error *unknown_member(const nrd_json *m, const nrd_exec_speculative *c)
{
    nrd_str known = {0};
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (numbers[i].methods & 1u << c->method) {
            nrd_str_printf(&known, ", %s", numbers[i].name);
        }
    }
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: '%.40s' is not known; known: method, adaptive%s%s",
                                m->key, EAGLE & 1u << c->method            ? ", model, quantization, eagle_choices"
                                        : c->method == NRD_EXEC_MTP         ? ", eagle_choices"
                                        : c->method == NRD_EXEC_DRAFT_MODEL ? ", model"
                                        : c->method == NRD_EXEC_REDRAFTER   ? ", model, quantization"
                                        : c->method == NRD_EXEC_MEDUSA      ? ", model, quantization, medusa_choices" : "", known.data ? known.data : "");
    nrd_str_fini(&known);
    return err;
}

static nrd_error *read_method(const nrd_json *root, nrd_exec_speculative *c)
{
    const char *method = nrd_json_get_str(root, "method", NULL);

    if (!nrd_json_is(root, NRD_JSON_OBJECT) || !method) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config must be an object with a method, like "
                                               "{\"method\": \"ngram\", \"num_speculative_tokens\": 8}");
    }
    for (int i = 1; i < N_METHODS; i++) {
        if (!strcmp(method, methods[i])) {
            *c = (nrd_exec_speculative){.method = (nrd_exec_method)i,
                                        .max_draft = i == NRD_EXEC_NGRAM    ? DEFAULT_NGRAM
                                                     : i == NRD_EXEC_MEDUSA ? NRD_MEDUSA_DEFAULT_NODES
                                                     : ((CHAINS | REDRAFTER) & 1 << i) ? 0 /* finish_eagle, redrafter_model.c */
                                                                            : DEFAULT_MODEL,
                                        .min_match = DEFAULT_MIN_MATCH,
                                        .max_match = DEFAULT_MAX_MATCH,
                                        .lookahead = DEFAULT_LOOKAHEAD};
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: method '%.40s' is not supported; known: ngram, "
                                           "draft_model, lookahead, medusa, eagle, eagle3, mtp, redrafter", method);
}

static nrd_error *check_lookahead(const nrd_lookahead *l, const char *where)
{
    const int32_t n = nrd_lookahead_nodes(l);
    if (n > NRD_MAX_TREE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%slookahead_window_size %d, lookahead_ngram_size %d and "
                                               "lookahead_verification_set_size %d need %d tokens a step, at most %d can be",
                          where, l->window, l->ngram, l->n_verify, n, NRD_MAX_TREE);
    }
    return NULL;
}

/* Chains, or trees where something of theirs is given. */
static nrd_error *finish_eagle(nrd_exec_speculative *c)
{
    if (c->choices && (c->top_k > 0 || c->depth > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: eagle_choices say all of a tree; leave out dynamic_tree_max_topK "
                                               "and max_draft_path_len");
    }
    if (c->depth > 0 && c->top_k == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: max_draft_path_len is of trees; add dynamic_tree_max_topK, or "
                                               "give num_speculative_tokens for a chain");
    }
    if (c->choices) {
        return NULL;
    }
    const bool given = c->max_draft > 0;
    c->depth = c->top_k > 0 && c->depth == 0 ? DEFAULT_EAGLE_DEPTH : c->depth;
    const int32_t most = c->top_k + (c->depth - 1) * c->top_k * c->top_k; /* candidates */
    c->max_draft = given ? c->max_draft : c->top_k > 0                       ? DEFAULT_EAGLE_NODES
                                        : c->method == NRD_EXEC_MTP       ? DEFAULT_MTP
                                                                          : DEFAULT_MODEL;
    if (c->top_k > 0 && c->max_draft > most) {
        if (given) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: num_speculative_tokens is %d, a tree of dynamic_tree_max_topK %d "
                                                   "and max_draft_path_len %d has at most %d", c->max_draft, c->top_k, c->depth, most);
        }
        c->max_draft = most;
    }
    return NULL;
}

static nrd_error *read_members(const nrd_json *root, nrd_exec_speculative *c)
{
    NRD_TRY(read_method(root, c));
    for (size_t i = 0; i < nrd_json_len(root); i++) {
        bool known = false;
        NRD_TRY(read_member(nrd_json_at(root, i), c, &known));
        if (!known) {
            return unknown_member(nrd_json_at(root, i), c);
        }
    }
    if (c->method == NRD_EXEC_DRAFT_MODEL && !c->model) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: method 'draft_model' needs model, the path of the draft model");
    }
    if (c->posterior_alpha > 0 && c->posterior_threshold == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: posterior_alpha needs posterior_threshold");
    }
    if (CHAINS & 1u << c->method) {
        NRD_TRY(finish_eagle(c));
    }
    if (c->min_match > c->max_match) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: prompt_lookup_min is %d, more than prompt_lookup_max, %d",
                          c->min_match, c->max_match);
    }
    if (c->method == NRD_EXEC_LOOKAHEAD) {
        NRD_TRY(check_lookahead(&c->lookahead, "speculative_config: "));
        c->max_draft = nrd_lookahead_nodes(&c->lookahead);
    }
    return NULL;
}

nrd_error *nrd_exec_speculative_read(const char *json, nrd_exec_speculative *out)
{
    nrd_json_doc *doc = NULL;

    *out = (nrd_exec_speculative){0};
    if (!json || !json[0]) {
        return NULL;
    }
    NRD_TRY(nrd_error_wrap(nrd_json_parse(&doc, json, strlen(json), &(nrd_json_limits){.max_bytes = 16384, .max_depth = 6}),
                           "speculative_config is no JSON object like {\"method\": \"ngram\"}"));
    nrd_error *err = read_members(nrd_json_root(doc), out);
    nrd_json_doc_free(doc);
    if (err) {
        nrd_exec_speculative_fini(out);
    }
    return err;
}

nrd_error *nrd_exec_speculative_heads(const nrd_exec_speculative *c, nrd_error *err)
{
    return c->model ? err : nrd_error_wrap(err, "method '%s' without model takes the engine's own", methods[c->method]);
}

void nrd_exec_speculative_fini(nrd_exec_speculative *c)
{
    free(c->model);
    free(c->choices);
    *c = (nrd_exec_speculative){0};
}

nrd_error *nrd_exec_check_speculative_config(const char *json)
{
    nrd_exec_speculative unused;
    nrd_error *err = nrd_exec_speculative_read(json, &unused);
    nrd_exec_speculative_fini(&unused);
    return err;
}

/* Trees, as they are in the releases that have this mode. */
static nrd_error *eagle_of_mode(const nrd_exec_config *c, nrd_exec_speculative *out)
{
    const bool is_own = out->method == NRD_EXEC_NO_METHOD;
    if (is_own) {
        *out = (nrd_exec_speculative){.method = NRD_EXEC_EAGLE};
    }
    if (c->eagle_top_k < 0 || c->eagle_top_k > NRD_EAGLE_MAX_TOP_K) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "eagle_top_k is %d, expected 0 to %d", c->eagle_top_k, NRD_EAGLE_MAX_TOP_K);
    }
    if (!(c->eagle_posterior_threshold >= 0 && c->eagle_posterior_threshold <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "eagle_posterior_threshold is %g, expected 0 to 1", c->eagle_posterior_threshold);
    }
    if (c->eagle_posterior_threshold > 0) {
        out->posterior_threshold = (float)c->eagle_posterior_threshold;
    }
    if (c->eagle_choices && c->eagle_choices[0]) {
        out->top_k = out->depth = 0;
        return set_choices(c->eagle_choices, out);
    }
    out->top_k = !is_own ? out->top_k : c->eagle_top_k > 0 ? c->eagle_top_k : DEFAULT_EAGLE_TOP_K;
    return is_own ? finish_eagle(out) : NULL;
}

/* decoding_mode, with its parameters, is another way to name a method. */
nrd_error *nrd_exec_speculative_of_mode(const nrd_exec_config *c, nrd_exec_speculative *out)
{
    const int32_t sizes[3] = {c->lookahead_window_size, c->lookahead_ngram_size, c->lookahead_verification_set_size};
    const nrd_exec_method method = c->decoding_mode == NRD_DECODING_LOOKAHEAD ? NRD_EXEC_LOOKAHEAD
                                   : c->decoding_mode == NRD_DECODING_MEDUSA  ? NRD_EXEC_MEDUSA
                                   : c->decoding_mode == NRD_DECODING_EAGLE   ? NRD_EXEC_EAGLE
                                   : c->decoding_mode == NRD_DECODING_EXPLICIT_DRAFT ? NRD_EXEC_REDRAFTER
                                                                                     : NRD_EXEC_NO_METHOD;
    if (method != NRD_EXEC_NO_METHOD && out->method != NRD_EXEC_NO_METHOD && out->method != method &&
        !(method == NRD_EXEC_EAGLE && out->method == NRD_EXEC_EAGLE3)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "decoding_mode is %s, the method of speculative_config '%s'; leave one of them "
                                               "out", methods[method], methods[out->method]);
    }
    if (method == NRD_EXEC_MEDUSA && out->method == NRD_EXEC_NO_METHOD) {
        *out = (nrd_exec_speculative){.method = NRD_EXEC_MEDUSA, .max_draft = NRD_MEDUSA_DEFAULT_NODES};
    }
    if (method == NRD_EXEC_REDRAFTER && out->method == NRD_EXEC_NO_METHOD) {
        *out = (nrd_exec_speculative){.method = NRD_EXEC_REDRAFTER};
    }
    if (out->method == NRD_EXEC_MEDUSA && c->medusa_choices && c->medusa_choices[0]) {
        NRD_TRY(set_choices(c->medusa_choices, out));
    }
    if (method == NRD_EXEC_EAGLE) {
        return eagle_of_mode(c, out);
    }
    if (method != NRD_EXEC_LOOKAHEAD) {
        return NULL;
    }
    if (out->method == NRD_EXEC_NO_METHOD) {
        *out = (nrd_exec_speculative){.method = NRD_EXEC_LOOKAHEAD, .lookahead = DEFAULT_LOOKAHEAD};
    }
    for (size_t i = 0, at = 0; i < N_NUMBERS; i++) {
        if (numbers[i].methods != LOOKAHEAD) {
            continue;
        }
        const int32_t v = sizes[at++];
        if (v != 0 && (v < numbers[i].least || v > numbers[i].most)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is %d, expected %d to %d", numbers[i].name, v, (int)numbers[i].least,
                              (int)numbers[i].most);
        }
        if (v != 0) {
            *(int32_t *)(void *)((char *)out + numbers[i].at) = v;
        }
    }
    NRD_TRY(check_lookahead(&out->lookahead, ""));
    out->max_draft = nrd_lookahead_nodes(&out->lookahead);
    return NULL;
}

nrd_error *nrd_exec_speculative_check_recurrent(const nrd_exec_speculative *c, const nrd_model_spec *m)
{
    const unsigned own = 1u << c->method;
    if (own & (LOOKAHEAD | MEDUSA | REDRAFTER)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative decoding: %s models have layers with a recurrent state, which sees one token after "
                          "the other: a draft cannot be a tree, as it is with the method '%s'; use ngram, draft_model, eagle or mtp",
                          m->model_type, methods[c->method]);
    }
    if ((own & CHAINS) && (c->top_k > 0 || c->choices)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative decoding: %s models have layers with a recurrent state, which sees one token after "
                          "the other: a draft cannot be a tree; leave out dynamic_tree_max_topK and eagle_choices", m->model_type);
    }
    return NULL;
}

nrd_error *nrd_exec_speculative_check(const nrd_exec *x, const nrd_exec_request *in)
{
    const nrd_lookahead *most = &x->speculative.lookahead;
    const struct {
        const char *name;
        int32_t v, least, most;
    } rows[] = {
        {"lookahead_window_size", in->lookahead_window_size, 1, most->window},
        {"lookahead_ngram_size", in->lookahead_ngram_size, 2, most->ngram},
        {"lookahead_verification_set_size", in->lookahead_verification_set_size, 1, most->n_verify},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].v != 0 && x->speculative.method != NRD_EXEC_LOOKAHEAD) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s needs an engine that was opened for lookahead decoding (decoding_mode "
                                                   "lookahead)", rows[i].name);
        }
        if (rows[i].v != 0 && (rows[i].v < rows[i].least || rows[i].v > rows[i].most)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is %d, expected %d to %d, the engine's", rows[i].name, rows[i].v,
                              (int)rows[i].least, (int)rows[i].most);
        }
    }
    if (in->sampling.beam_width > 1 &&
        ((1u << x->speculative.method) & (LOOKAHEAD | MEDUSA | CHAINS | REDRAFTER))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "beam_width is %d, %s decoding takes 1", in->sampling.beam_width,
                          methods[x->speculative.method]);
    }
    return NULL;
}

bool nrd_exec_method_has_network(nrd_exec_method m)
{
    return (NETWORKS & 1u << m) != 0;
}
