/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/step_table.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- between measurements ---- */

/* y at x, of points by x; constant before the first. */
static double interpolate(const double *xs, const double *ys, int32_t n, double x)
{
    if (n == 1 || x <= xs[0]) {
        return ys[0];
    }
    int32_t i = 1;
    while (i < n - 1 && x > xs[i]) {
        i++;
    }
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
}

static double generation_ms(const nrd_step_table *t, double rows, double context)
{
    double at[NRD_STEP_LEVELS], ms[NRD_STEP_LEVELS];
    for (int32_t i = 0; i < t->n_generation; i++) {
        const nrd_step_level *l = &t->generation[i];
        at[i] = l->rows;
        ms[i] = interpolate(l->context, l->ms, l->n, context);
    }
    return interpolate(at, ms, t->n_generation, rows);
}

double nrd_step_table_ms(const nrd_step_table *t, const nrd_sim_step *s)
{
    const double n = s->n_generation, p = s->n_context_tokens;
    const double context = n > 0 ? s->generation_pairs / n : 0;

    if (p == 0) {
        return generation_ms(t, n, context);
    }
    const double before = s->context_pairs - p * (p + 1) / 2; /* pairs with tokens of earlier steps, or more prompts' less */
    const double attention = n > 0 ? generation_ms(t, n, context) - generation_ms(t, n, 0) : 0;
    const double ms = interpolate(t->prompt_tokens, t->prompt_ms, t->n_prompts, p + n) + before * t->pair_us / 1e3 + attention;
    return fmax(ms, t->prompt_ms[0]);
}

bool nrd_step_table_add(nrd_step_table *t, double rows, double context, double ms)
{
    nrd_step_level *l = t->n_generation > 0 ? &t->generation[t->n_generation - 1] : NULL;
    if (!l || l->rows != rows) {
        if (t->n_generation == NRD_STEP_LEVELS) {
            return false;
        }
        l = &t->generation[t->n_generation++];
        *l = (nrd_step_level){.rows = rows};
    }
    if (l->n == NRD_STEP_LEVELS) {
        return false;
    }
    l->context[l->n] = context;
    l->ms[l->n++] = ms;
    return true;
}

/* ---- as JSON ---- */

static void put_number(nrd_str *out, const char *before, double v)
{
    nrd_str_puts(out, before);
    nrd_json_put_double(out, v);
}

void nrd_step_table_put(const nrd_step_table *t, nrd_str *out)
{
    nrd_str_puts(out, "{\n    \"device\": ");
    nrd_json_put_cstr(out, t->device);
    nrd_str_printf(out, ", \"tp_size\": %d, \"pp_size\": %d,\n    \"max_batch_size\": %d, \"max_num_tokens\": %d, "
                   "\"max_seq_len\": %d, \"mixed_context_tokens\": %d, \"even_context_tokens\": %d,\n    \"n_kv_blocks\": %d, \"tokens_per_block\": %d,\n"
                   "    \"generation\": [", t->tp_size, t->pp_size, t->max_batch_size, t->max_num_tokens, t->max_seq_len,
                   t->mixed_context_tokens, t->even_context_tokens, t->n_blocks, t->block_tokens);
    const char *comma = "";
    for (int32_t i = 0; i < t->n_generation; i++) {
        const nrd_step_level *l = &t->generation[i];
        for (int32_t k = 0; k < l->n; k++, comma = ",") {
            nrd_str_puts(out, comma);
            put_number(out, "\n      {\"rows\": ", l->rows);
            put_number(out, ", \"context\": ", l->context[k]);
            put_number(out, ", \"ms\": ", l->ms[k]);
            nrd_str_putc(out, '}');
        }
    }
    nrd_str_puts(out, "],\n    \"prompts\": [");
    for (int32_t i = 0; i < t->n_prompts; i++) {
        nrd_str_puts(out, i > 0 ? "," : "");
        put_number(out, "\n      {\"tokens\": ", t->prompt_tokens[i]);
        put_number(out, ", \"ms\": ", t->prompt_ms[i]);
        nrd_str_putc(out, '}');
    }
    put_number(out, "],\n    \"prompt_pair_us\": ", t->pair_us);
    nrd_str_puts(out, "\n  }");
}

static nrd_error *get_count(const nrd_json *o, const char *key, int32_t least, int32_t *out)
{
    const int64_t v = nrd_json_get_int(o, key, -1);
    if (v < least || v > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "\"%s\" is %lld, expected %d or more", key, (long long)v, least);
    }
    *out = (int32_t)v;
    return NULL;
}

static nrd_error *get_positive(const nrd_json *o, const char *list, size_t i, const char *key, double *out)
{
    *out = nrd_json_get_num(o, key, 0);
    return *out > 0 && isfinite(*out) ? NULL
                                      : nrd_errorf(NRD_ERR_INVALID_ARG, "\"%s\" number %zu: \"%s\" must be above 0", list, i, key);
}

static nrd_error *read_generation(nrd_step_table *t, const nrd_json *list)
{
    double rows, context, ms;
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *o = nrd_json_at(list, i);
        NRD_TRY(get_positive(o, "generation", i, "rows", &rows));
        NRD_TRY(get_positive(o, "generation", i, "context", &context));
        NRD_TRY(get_positive(o, "generation", i, "ms", &ms));
        const nrd_step_level *l = t->n_generation > 0 ? &t->generation[t->n_generation - 1] : NULL;
        if (l && (rows < l->rows || (rows == l->rows && context <= l->context[l->n - 1]))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "\"generation\" number %zu: rows, then contexts must ascend", i);
        }
        if (!nrd_step_table_add(t, rows, context, ms)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "\"generation\" has more than %d levels", NRD_STEP_LEVELS);
        }
    }
    return t->n_generation > 0 ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "\"generation\" has no measurement");
}

static nrd_error *read_prompts(nrd_step_table *t, const nrd_json *list)
{
    const size_t n = nrd_json_len(list);
    if (n < 1 || n > NRD_STEP_LEVELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "\"prompts\" has %zu measurements, expected 1 to %d", n, NRD_STEP_LEVELS);
    }
    for (size_t i = 0; i < n; i++, t->n_prompts++) {
        NRD_TRY(get_positive(nrd_json_at(list, i), "prompts", i, "tokens", &t->prompt_tokens[i]));
        NRD_TRY(get_positive(nrd_json_at(list, i), "prompts", i, "ms", &t->prompt_ms[i]));
        if (i > 0 && t->prompt_tokens[i] <= t->prompt_tokens[i - 1]) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "\"prompts\" number %zu: tokens must ascend", i);
        }
    }
    return NULL;
}

static nrd_error *read_all(nrd_step_table *t, const nrd_json *o)
{
    if (!nrd_json_is(o, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no member \"steps\": expected what nereid bench steps --json writes");
    }
    snprintf(t->device, sizeof t->device, "%s", nrd_json_get_str(o, "device", ""));
    NRD_TRY(get_count(o, "tp_size", 1, &t->tp_size));
    NRD_TRY(get_count(o, "pp_size", 1, &t->pp_size));
    NRD_TRY(get_count(o, "max_batch_size", 1, &t->max_batch_size));
    NRD_TRY(get_count(o, "max_num_tokens", 1, &t->max_num_tokens));
    NRD_TRY(get_count(o, "max_seq_len", 1, &t->max_seq_len));
    t->mixed_context_tokens = (int32_t)nrd_json_get_int(o, "mixed_context_tokens", 0);
    t->even_context_tokens = (int32_t)nrd_json_get_int(o, "even_context_tokens", 0);
    NRD_TRY(get_count(o, "n_kv_blocks", 1, &t->n_blocks));
    NRD_TRY(get_count(o, "tokens_per_block", 1, &t->block_tokens));
    t->pair_us = nrd_json_get_num(o, "prompt_pair_us", 0);
    NRD_TRY(read_generation(t, nrd_json_get(o, "generation")));
    return read_prompts(t, nrd_json_get(o, "prompts"));
}

nrd_error *nrd_step_table_read(nrd_step_table *out, const char *path)
{
    nrd_json_doc *doc = NULL;
    *out = (nrd_step_table){0};
    NRD_TRY(nrd_json_parse_file(&doc, path, NULL));
    nrd_error *err = read_all(out, nrd_json_get(nrd_json_root(doc), "steps"));
    nrd_json_doc_free(doc);
    return nrd_error_wrap(err, "%s", path);
}
