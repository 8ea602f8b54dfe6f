/* SPDX-License-Identifier: Apache-2.0 */
#include "text/sampling.h"

#include "text/internal.h"

#include <math.h>

/* In the order of tok_wish. A value outside of its range is as good as none: text can be made
 * without it. top_k may be below 1 in files, which means off. */
static const struct {
    const char *json, *gguf;
    double min, max;
} rows[TOK_N_WISHES] = {
    [TOK_TEMPERATURE] = {"temperature", "general.sampling.temp", 0, 100},
    [TOK_TOP_P] = {"top_p", "general.sampling.top_p", 1e-6, 1},
    [TOK_MIN_P] = {"min_p", "general.sampling.min_p", 0, 1},
    [TOK_REPETITION] = {"repetition_penalty", "general.sampling.penalty_repeat", 0.01, 10},
    [TOK_TOP_K] = {"top_k", "general.sampling.top_k", -1, INT32_MAX},
};

static void take(nrd_tokenizer *t, int i, double value)
{
    if (value >= rows[i].min && value <= rows[i].max) { /* not so for NAN, which stands for absent */
        /* a file's float32 0.7 is 0.699999988: nobody meant more than a millionth */
        t->wishes[i] = (nrd_tok_wish_value){true, round(value * 1e6) / 1e6};
    }
}

void nrd_tok_take_sampling_json(nrd_tokenizer *t, const nrd_json *generation_config)
{
    for (int i = 0; i < TOK_N_WISHES; i++) {
        take(t, i, nrd_json_get_num(generation_config, rows[i].json, (double)NAN));
    }
}

void nrd_tok_take_sampling_gguf(nrd_tokenizer *t, const nrd_gguf *g)
{
    for (int i = 0; i < TOK_N_WISHES; i++) {
        take(t, i, nrd_gguf_num(g, rows[i].gguf, (double)NAN));
    }
}

void nrd_tok_put_sampling(const nrd_tokenizer *t, nrd_str *out)
{
    for (int i = 0; i < TOK_N_WISHES; i++) {
        if (t->wishes[i].given) {
            nrd_str_printf(out, "%s\n\"%s\": ", out->len > 1 ? "," : "", rows[i].json);
            nrd_json_put_double(out, t->wishes[i].value);
        }
    }
}

static double wish(const nrd_tokenizer *t, int i, double otherwise)
{
    return t->wishes[i].given ? t->wishes[i].value : otherwise;
}

nrd_sampling nrd_tokenizer_sampling(const nrd_tokenizer *t)
{
    const bool has_set = t->wishes[TOK_TEMPERATURE].given || t->wishes[TOK_TOP_K].given ||
                         t->wishes[TOK_TOP_P].given || t->wishes[TOK_MIN_P].given;
    if (t->has_encoder && !t->generation.says.do_sample) { /* transformers looks at the others only beside it */
        nrd_sampling best = NRD_SAMPLING_BARE;
        best.temperature = 0;
        best.repetition_penalty = wish(t, TOK_REPETITION, 1);
        return best;
    }
    nrd_sampling s = has_set || t->has_encoder ? NRD_SAMPLING_BARE : NRD_SAMPLING_GENERAL;
    double top_k = wish(t, TOK_TOP_K, s.top_k);

    s.temperature = wish(t, TOK_TEMPERATURE, s.temperature);
    s.top_p = wish(t, TOK_TOP_P, s.top_p);
    s.min_p = wish(t, TOK_MIN_P, s.min_p);
    s.repetition_penalty = wish(t, TOK_REPETITION, s.repetition_penalty);
    s.top_k = top_k > 0 ? (int32_t)top_k : 0;
    return s;
}
