/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/medusa_model.h"

#include "base/mem.h"
#include "executor/internal.h"

#include <string.h>

struct nrd_medusa_model {
    nrd_medusa_heads *file; /* the device may read weights where they are mapped */
    nrd_extra_heads *heads;
    nrd_medusa_choices choices;
    nrd_medusa *medusa;
};

/* ---- choices as text ---- */

typedef struct parsed {
    int32_t ranks[NRD_MAX_TREE * NRD_MEDUSA_MAX_HEADS], ends[NRD_MAX_TREE];
    int32_t n_ranks, n;
} parsed;

static nrd_error *not_a_list(const char *field, const char *text, const char *at)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected lists of numbers like {0}, {1}, {0, 0}; character %d begins "
                                           "'%.20s'", field, (int)(at - text) + 1, at);
}

static const char *skip(const char *p, const char *of)
{
    return p + strspn(p, of);
}

/* "0, 1}" or "0, 1]"; *p is behind it then. */
static nrd_error *read_list(const char *field, const char *text, const char **p, char close, parsed *out)
{
    for (*p = skip(*p, " "); **p != close; *p = skip(*p, " ")) {
        int32_t v = 0, n = 0;
        for (; **p >= '0' && **p <= '9' && n < 4; ++*p, n++) {
            v = v * 10 + (**p - '0');
        }
        *p = skip(*p, " ");
        if (n == 0 || (**p != ',' && **p != close)) {
            return not_a_list(field, text, *p);
        }
        if (out->n_ranks == NRD_MAX_TREE * NRD_MEDUSA_MAX_HEADS) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has more than %d ranks", field, out->n_ranks);
        }
        out->ranks[out->n_ranks++] = v;
        *p += **p == ',';
    }
    ++*p;
    return NULL;
}

static nrd_error *read_lists(const char *field, const char *text, parsed *out)
{
    const char *p = skip(text, " ");
    const char open = *p, close = open == '{' ? '}' : ']';
    if (open != '{' && open != '[') {
        return not_a_list(field, text, p);
    }
    const bool is_nested = *skip(p + 1, " ") == open;

    p += is_nested;
    for (p = skip(p, " ,"); *p == open && *p; p = skip(p, " ,")) {
        if (out->n == NRD_MAX_TREE) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has more than %d choices", field, NRD_MAX_TREE);
        }
        p++;
        NRD_TRY(read_list(field, text, &p, close, out));
        out->ends[out->n++] = out->n_ranks;
    }
    p += is_nested && *p == close;
    p = skip(p, " ");
    return *p || out->n == 0 ? not_a_list(field, text, p) : NULL;
}

nrd_error *nrd_exec_medusa_choices(nrd_medusa_choices *out, const char *field, const char *text, int32_t n_heads)
{
    nrd_error *err = NULL;
    parsed *all = NULL;

    NRD_NEW_GOTO(all, 1, err, done);
    NRD_TRY_GOTO(read_lists(field, text, all), err, done);
    err = nrd_medusa_choices_of(out, field, all->ranks, all->ends, all->n, n_heads);
done:
    free(all);
    return err;
}

/* ---- the model ---- */

static int32_t best_of(const nrd_medusa_choices *c)
{
    int32_t most = 0;
    for (int32_t i = 0; i < c->n; i++) {
        most = c->rank[i] > most ? c->rank[i] : most;
    }
    return most + 1;
}

nrd_error *nrd_exec_medusa_open(nrd_exec *x, const char *engine_dir)
{
    const nrd_exec_speculative *c = &x->speculative;
    nrd_error *err = NULL;
    nrd_medusa_model *m = NULL;

    if (c->method != NRD_EXEC_MEDUSA) {
        return NULL;
    }
    NRD_NEW_GOTO(m, 1, err, fail);
    x->medusa = m;
    NRD_TRY(nrd_exec_speculative_heads(c, nrd_medusa_heads_open(&m->file, c->model ? c->model : engine_dir, x->spec->hidden, x->spec->vocab)));
    const int32_t n_heads = nrd_medusa_heads_n(m->file);
    if (c->choices) {
        NRD_TRY(nrd_exec_medusa_choices(&m->choices, "medusa_choices", c->choices, n_heads));
    } else {
        nrd_medusa_choices_default(&m->choices, n_heads, c->max_draft);
    }
    NRD_TRY(nrd_extra_heads_new(&m->heads, x->runner, m->file, best_of(&m->choices), c->quantize));
    nrd_exec_log(x, 2, "%d Medusa heads: %.0f MB of weights, trees of up to %d tokens", n_heads,
                 (double)nrd_extra_heads_bytes(m->heads) / 1e6, m->choices.n);
fail:
    return err;
}

nrd_error *nrd_exec_medusa_start(nrd_exec *x)
{
    nrd_medusa_model *m = x->medusa;
    if (!m) {
        return NULL;
    }
    const uint64_t weights = nrd_extra_heads_bytes(m->heads);
    x->info.weight_bytes += weights;
    return nrd_medusa_new(&m->medusa, m->heads, &m->choices, x->lim.max_batch_size * x->lim.max_beam_width,
                          nrd_sched_costs(x->sched), (float)((double)weights / (double)nrd_engine_weight_bytes(x->engine)));
}

nrd_error *nrd_exec_medusa_proposer(const nrd_exec *x, nrd_proposer **out)
{
    return nrd_proposer_of_medusa(out, x->medusa->medusa);
}

nrd_error *nrd_exec_medusa_run(nrd_exec *x, const nrd_plan *p)
{
    return x->medusa ? nrd_medusa_run(x->medusa->medusa, p) : NULL;
}

void nrd_exec_medusa_close(nrd_exec *x)
{
    nrd_medusa_model *m = x->medusa;
    if (m) {
        nrd_medusa_free(m->medusa);
        nrd_extra_heads_free(m->heads);
        nrd_medusa_heads_close(m->file);
        free(m);
        x->medusa = NULL;
    }
}
