/* SPDX-License-Identifier: Apache-2.0 */
#include "text/generation.h"

#include "text/internal.h"

#include <math.h>
#include <string.h>

enum { MAX_LENGTH = 1 << 24, MAX_NGRAM = 1 << 16 };

/* A value outside of its range is as good as none, as with sampling. */
static void take_int(const nrd_json *config, const char *name, int32_t low, int32_t high, int32_t *out)
{
    const int64_t v = nrd_json_get_int(config, name, (int64_t)low - 1);
    if (v >= low && v <= high) {
        *out = (int32_t)v;
    }
}

static void take_stopping(const nrd_json *v, int32_t *out)
{
    if (nrd_json_is(v, NRD_JSON_BOOL)) {
        *out = v->boolean;
    } else if (!strcmp(nrd_json_str(v, ""), "never")) {
        *out = 2;
    }
}

/* A number, or a list of which the first counts. -1: none. */
static int64_t token_of(const nrd_json *v)
{
    const int64_t id = nrd_json_int(nrd_json_is(v, NRD_JSON_ARRAY) ? nrd_json_at(v, 0) : v, -1);
    return id >= 0 && id <= INT32_MAX ? id : -1;
}

static void take_suppressed(nrd_generation *g, const nrd_json *list, size_t *out_given)
{
    g->n_suppressed = 0;
    *out_given = 0;
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const int64_t id = nrd_json_int(nrd_json_at(list, i), -1);
        if (id < 0 || id > INT32_MAX) {
            continue;
        }
        if (g->n_suppressed < NRD_GENERATION_MAX_SUPPRESSED) {
            g->suppressed[g->n_suppressed++] = (int32_t)id;
        }
        ++*out_given;
    }
}

nrd_error *nrd_tok_check_generation(const nrd_tok_generation *g)
{
    return g->n_given <= NRD_GENERATION_MAX_SUPPRESSED
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "'suppress_tokens' has %zu tokens, at most %d are supported", g->n_given,
                            NRD_GENERATION_MAX_SUPPRESSED);
}

void nrd_tok_take_generation(nrd_tok_generation *out, const nrd_json *config, bool is_own)
{
    nrd_generation *g = &out->says;
    const int32_t n_begin = token_of(nrd_json_get(config, "forced_bos_token_id")) >= 0 ? 2 : 1;

    if (!config) {
        return;
    }
    if (out->given && !is_own) { /* config.json counts for the forced first token alone */
        g->n_begin = n_begin > g->n_begin ? n_begin : g->n_begin;
        return;
    }
    out->given = true;
    *g = NRD_GENERATION_BARE;
    g->n_begin = n_begin;
    g->forced_eos_id = (int32_t)token_of(nrd_json_get(config, "forced_eos_token_id"));
    take_int(config, "num_beams", 1, INT32_MAX, &g->num_beams);
    g->num_beams = g->num_beams < NRD_GENERATION_MAX_BEAMS ? g->num_beams : NRD_GENERATION_MAX_BEAMS;
    take_int(config, "no_repeat_ngram_size", 0, MAX_NGRAM, &g->no_repeat_ngram_size);
    take_int(config, "min_length", 0, MAX_LENGTH, &g->min_length);
    take_int(config, "max_length", 1, MAX_LENGTH, &g->max_length);
    take_int(config, "min_new_tokens", 1, MAX_LENGTH, &g->min_new_tokens);
    take_int(config, "max_new_tokens", 1, MAX_LENGTH, &g->max_new_tokens);
    const double penalty = nrd_json_get_num(config, "length_penalty", 1);
    g->length_penalty = penalty >= -100 && penalty <= 100 ? penalty : 1;
    take_stopping(nrd_json_get(config, "early_stopping"), &g->early_stopping);
    g->do_sample = nrd_json_get_bool(config, "do_sample", false);
    take_suppressed(g, nrd_json_get(config, "suppress_tokens"), &out->n_given);
}

const nrd_generation *nrd_tokenizer_generation(const nrd_tokenizer *t)
{
    return t->has_encoder ? &t->generation.says : NULL; /* the file that says so was taken */
}

int32_t nrd_generation_beams(const char *dir)
{
    static const char *const files[] = {"generation_config.json", "config.json"};
    nrd_tok_generation g = {.says = NRD_GENERATION_BARE};
    bool has_encoder = false;
    nrd_error *err = NULL;

    for (int i = 0; i < 2 && !err; i++) {
        nrd_json_doc *doc = NULL;
        err = nrd_tok_read_json(dir, files[i], &doc);
        const nrd_json *root = err ? NULL : nrd_json_root(doc);
        has_encoder = has_encoder || nrd_tok_says_encoder(root);
        nrd_tok_take_generation(&g, root, i == 0);
        nrd_json_doc_free(doc);
    }
    const int32_t n = !err && has_encoder && !g.says.do_sample ? g.says.num_beams : 1;
    nrd_error_free(err);
    return n;
}

int32_t nrd_generation_min_new(const nrd_generation *g, int32_t n_begin)
{
    const int32_t n = g->min_new_tokens > 0 ? g->min_new_tokens - (n_begin - 1) : g->min_length - n_begin;
    return n > 0 ? n : 0;
}

int32_t nrd_generation_max_new(const nrd_generation *g, int32_t n_begin)
{
    if (g->max_new_tokens == 0 && g->max_length == 0) {
        return 0;
    }
    const int32_t n = g->max_new_tokens > 0 ? g->max_new_tokens - (n_begin - 1) : g->max_length - n_begin;
    return n > 1 ? n : 1;
}
