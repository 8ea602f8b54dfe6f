/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/talk_set.h"

#include <math.h>
#include <string.h>

static nrd_error *number(const char *name, const char *value, double least, double most, double *out)
{
    double x;
    if (!nrd_parse_f64(value, &x) || !(x >= least && x <= most)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "/set %s: expected a number from %g to %g, got '%s'", name, least, most, value);
    }
    *out = x;
    return NULL;
}

static nrd_error *whole(const char *name, const char *value, int32_t least, int32_t *out)
{
    long long n;
    if (!nrd_parse_i64(value, &n) || n < least || n > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "/set %s: expected a whole number from %d on, got '%s'", name, (int)least, value);
    }
    *out = (int32_t)n;
    return NULL;
}

static nrd_error *seed(nrd_talk_values *v, const char *value)
{
    unsigned long long n = 0;
    const bool random = !strcmp(value, "random");
    if (!random && !nrd_parse_u64(value, &n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "/set seed: expected a whole number or random, got '%s'", value);
    }
    v->has_seed = !random;
    v->seed = n;
    return NULL;
}

nrd_error *nrd_talk_set(nrd_talk_values *v, const char *name, const char *value)
{
    nrd_sampling *w = v->sampling;
#define IS(word) (!strcmp(name, word))
    return IS("temperature")          ? number(name, value, 0, 100, &w->temperature)
           : IS("top_p")              ? number(name, value, 0, 1, &w->top_p)
           : IS("min_p")              ? number(name, value, 0, 1, &w->min_p)
           : IS("repetition_penalty") ? number(name, value, 0.01, 100, &w->repetition_penalty)
           : IS("top_k")              ? whole(name, value, 0, &w->top_k)
           : IS("max_tokens")         ? whole(name, value, 1, &v->max_tokens)
           : IS("seed")               ? seed(v, value)
                                      : nrd_errorf(NRD_ERR_INVALID_ARG, "/set: unknown name '%s'; /set alone lists them", name);
#undef IS
}

void nrd_talk_put_settings(const nrd_talk_values *v, nrd_str *out)
{
    const nrd_sampling *w = v->sampling;
    nrd_str_printf(out, "  temperature %g\n  top_k %d\n  top_p %g\n  min_p %g\n  repetition_penalty %g\n  max_tokens %d\n",
                   w->temperature, (int)w->top_k, w->top_p, w->min_p, w->repetition_penalty, (int)v->max_tokens);
    if (v->has_seed) {
        nrd_str_printf(out, "  seed %llu\n", (unsigned long long)v->seed);
    } else {
        nrd_str_puts(out, "  seed random\n");
    }
}
