/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/measure.h"

#include "base/logits.h"
#include "base/mem.h"
#include "base/progress.h"
#include "nereid/executor.h"

#include <math.h>
#include <stdlib.h>

enum { BEST = NRD_QMEASURE_BEST };

typedef struct reading {
    nrd_qmeasure *m;
    bool second;
    int32_t vocab;
    const int32_t *ids; /* of the window */
    size_t n, first;    /* its tokens; the number of its first position */
} reading;

nrd_error *nrd_qmeasure_init(nrd_qmeasure *m, const nrd_qtexts *texts)
{
    nrd_error *err = NULL;

    *m = (nrd_qmeasure){.texts = texts, .n = texts->ids.n - texts->n};
    NRD_NEW_GOTO(m->ids, m->n * BEST, err, fail);
    NRD_NEW_GOTO(m->log_probs, m->n * BEST, err, fail);
    NRD_NEW_GOTO(m->each, m->n, err, fail);
    NRD_NEW_GOTO(m->next[0], m->n, err, fail);
    NRD_NEW_GOTO(m->next[1], m->n, err, fail);
    return NULL;

fail:
    nrd_qmeasure_fini(m);
    return err;
}

void nrd_qmeasure_fini(nrd_qmeasure *m)
{
    free(m->ids);
    free(m->log_probs);
    free(m->each);
    free(m->next[0]);
    free(m->next[1]);
    *m = (nrd_qmeasure){0};
}

static double divergence(const int32_t *ids, const float *log_probs, int32_t k, const float *logits, double total)
{
    double sum = 0, rest_p = 1, rest_q = 1;
    for (int32_t i = 0; i < k; i++) {
        const double lp = (double)log_probs[i], lq = (double)logits[ids[i]] - total, p = exp(lp);
        sum += p * (lp - lq);
        rest_p -= p;
        rest_q -= exp(lq);
    }
    if (rest_p > 1e-9 && rest_q > 1e-9) {
        sum += rest_p * log(rest_p / rest_q);
    }
    return sum > 0 ? sum : 0;
}

static void on_row(void *user, int32_t position, const float *logits)
{
    reading *r = user;
    nrd_qmeasure *m = r->m;
    if ((size_t)position + 1 >= r->n) {
        return; /* nothing follows */
    }
    const double total = nrd_log_sum_exp(logits, r->vocab);
    const size_t number = r->first + (size_t)position, at = number * BEST;
    const double next = (double)logits[r->ids[position + 1]] - total;
    m->log_sum[r->second] += next;
    m->next[r->second][number] = (float)next;
    if (!r->second) {
        nrd_best_of(logits, r->vocab, m->n_best, m->ids + at);
        for (int32_t i = 0; i < m->n_best; i++) {
            m->log_probs[at + (size_t)i] = (float)((double)logits[m->ids[at + (size_t)i]] - total);
        }
        return;
    }
    int32_t best;
    nrd_best_of(logits, r->vocab, 1, &best);
    m->n_same += best == m->ids[at];
    const double off = divergence(m->ids + at, m->log_probs + at, m->n_best, logits, total);
    m->each[number] = (float)off;
    m->divergence += off;
}

nrd_error *nrd_qmeasure_read(nrd_qmeasure *m, nrd_exec *x, uint64_t lora_id, bool second, const char *label)
{
    nrd_error *err = NULL;
    const nrd_qtexts *t = m->texts;
    nrd_exec_info info = {.size = sizeof info};
    nrd_progress *bar;

    nrd_exec_get_info(x, &info);
    reading r = {.m = m, .second = second, .vocab = info.vocab};
    m->n_best = info.vocab < BEST ? info.vocab : BEST;
    bar = label ? nrd_progress_new_of(label, t->ids.n, "tokens") : NULL;
    for (size_t i = 0; i < t->n && !err; i++) {
        r.ids = t->ids.ids + t->starts[i];
        r.n = t->starts[i + 1] - t->starts[i];
        err = nrd_exec_score_rows_lora(x, lora_id, r.ids, (int32_t)r.n, on_row, &r);
        r.first += r.n - 1;
        if (bar) {
            nrd_progress_add(bar, r.n);
        }
    }
    if (bar) {
        nrd_progress_done(bar);
    }
    return err;
}

nrd_error *nrd_qmeasure_run(nrd_qmeasure *m, const char *engine, bool second, bool as_float, nrd_dtype cache,
                            const char *device, int32_t n_threads)
{
    nrd_exec *x = NULL;
    nrd_exec_config config;

    nrd_exec_config_init(&config);
    config.device = device;
    config.n_threads = n_threads;
    config.compute_dtype = as_float ? NRD_DTYPE_F32 : NRD_DTYPE_NONE;
    config.kv_dtype = cache;
    config.enable_chunked_context = true;
    config.max_batch_size = 1;
    config.max_beam_width = 1;
    config.max_num_tokens = 512;
    config.max_seq_len = nrd_qtexts_longest(m->texts) + 1;
    NRD_TRY(nrd_exec_open(&x, engine, &config));
    nrd_error *err = nrd_qmeasure_read(m, x, 0, second, second ? "measuring after" : "measuring before");
    nrd_exec_close(x);
    return err;
}

double nrd_qmeasure_perplexity(const nrd_qmeasure *m, bool second)
{
    return exp(-m->log_sum[second] / (double)m->n);
}
