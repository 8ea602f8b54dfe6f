/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/eval/compare.h"

#include "base/json.h"
#include "base/mem.h"

#include <stdlib.h>

enum { CONTEXT_TOKENS = 8 };

typedef struct place {
    float divergence;
    size_t at; /* a position of the measure */
} place;

static int by_divergence(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->divergence > y->divergence ? -1 : x->divergence < y->divergence ? 1 : x->at < y->at ? -1 : x->at > y->at;
}

/* Number of the token that position `at` foretells: a window's first token is foretold by none. */
static size_t token_of(const nrd_qtexts *t, size_t at, size_t *out_start)
{
    size_t window = 0;
    while (window + 1 < t->n && at >= t->starts[window + 1] - (window + 1)) {
        window++;
    }
    *out_start = t->starts[window];
    return at + window + 1;
}

static void put_text(nrd_str *out, const nrd_tokenizer *t, const int32_t *ids, size_t n)
{
    nrd_str text = {0};
    nrd_tokenizer_decode(t, ids, n, 0, &text);
    nrd_json_put_string(out, text.data ? text.data : "", text.len);
    nrd_str_fini(&text);
}

static void put_place(const nrd_qmeasure *m, const nrd_tokenizer *t, const place *p, bool as_json, nrd_str *out)
{
    size_t start;
    const int32_t *ids = m->texts->ids.ids;
    const size_t token = token_of(m->texts, p->at, &start);
    const size_t from = token - start > CONTEXT_TOKENS ? token - CONTEXT_TOKENS : start;
    const double a = (double)m->next[0][p->at], b = (double)m->next[1][p->at];

    if (as_json) {
        nrd_str_printf(out, "{\"token\": %zu, \"divergence\": %.6g, \"log_probs\": [%.6g, %.6g], \"context\": ", token,
                       (double)p->divergence, a, b);
        put_text(out, t, ids + from, token - from);
        nrd_str_puts(out, ", \"next\": ");
        put_text(out, t, ids + token, 1);
        nrd_str_putc(out, '}');
        return;
    }
    nrd_str_printf(out, "%10.4f  %8.3f  %8.3f  ", (double)p->divergence, a, b);
    put_text(out, t, ids + from, token - from);
    nrd_str_puts(out, " -> ");
    put_text(out, t, ids + token, 1);
    nrd_str_putc(out, '\n');
}

static void put_numbers(const nrd_qmeasure *m, const place *sorted, const char *first, const char *second, bool as_json,
                        nrd_str *out)
{
    const double a = nrd_qmeasure_perplexity(m, false), b = nrd_qmeasure_perplexity(m, true), n = (double)m->n;
    const double mean = m->divergence / n, same = (double)m->n_same / n;
    const double median = (double)sorted[m->n / 2].divergence, worst = (double)sorted[m->n / 100].divergence;

    if (as_json) {
        nrd_str_puts(out, "{\"models\": [");
        nrd_json_put_cstr(out, first);
        nrd_str_puts(out, ", ");
        nrd_json_put_cstr(out, second);
        nrd_str_printf(out, "], \"perplexity\": [%.6g, %.6g], \"kl_divergence\": %.6g, \"kl_divergence_median\": %.6g, "
                       "\"kl_divergence_p99\": %.6g, \"same_best_token\": %.6g, \"tokens\": %zu, \"worst\": [", a, b, mean,
                       median, worst, same, m->n);
        return;
    }
    nrd_str_printf(out, "perplexity %.4f  %s\nperplexity %.4f  %s  (%+.2f %%)\n", a, first, b, second, (b / a - 1) * 100);
    nrd_str_printf(out, "divergence %.5f nats a token, median %.5f, 99th percentile %.5f\nsame best token %.2f %%  (%zu tokens)\n",
                   mean, median, worst, 100 * same, m->n);
}

nrd_error *nrd_eval_comparison(const nrd_qmeasure *m, const nrd_tokenizer *t, const char *first, const char *second,
                               int32_t n_worst, bool as_json, nrd_str *out)
{
    nrd_error *err = NULL;
    place *sorted = NULL;
    const size_t shown = (size_t)n_worst < m->n ? (size_t)n_worst : m->n;

    NRD_NEW_GOTO(sorted, m->n, err, done);
    for (size_t i = 0; i < m->n; i++) {
        sorted[i] = (place){m->each[i], i};
    }
    qsort(sorted, m->n, sizeof *sorted, by_divergence);
    put_numbers(m, sorted, first, second, as_json, out);
    if (!as_json && shown > 0) {
        nrd_str_puts(out, "\ndivergence   first's  second's  log probabilities of the next token\n");
    }
    for (size_t i = 0; i < shown; i++) {
        nrd_str_puts(out, as_json && i ? ", " : "");
        put_place(m, t, &sorted[i], as_json, out);
    }
    nrd_str_puts(out, as_json ? "]}\n" : "");
    err = nrd_str_error(out);
done:
    free(sorted);
    return err;
}
