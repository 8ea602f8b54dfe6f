/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/eagle_model.h"

#include "base/mem.h"
#include "engine/speculate/eagle.h"
#include "executor/internal.h"

/* Of a pass that computes what the heads have missed: those who generate wait for it. */
enum { PASS_TOKENS = 1024 };

struct nrd_eagle_model {
    nrd_eagle_heads *heads; /* the device may read weights where they are mapped */
    nrd_eagle_net *net;
    nrd_eagle *eagle;
};

static bool wants(const nrd_exec *x)
{
    return x->speculative.method == NRD_EXEC_EAGLE || x->speculative.method == NRD_EXEC_EAGLE3;
}

/* Whether this model's states are what heads were trained on. */
static nrd_error *check_model(const nrd_exec *x)
{
    const nrd_model_spec *m = x->spec;

    if (m->tp_size * m->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: EAGLE heads need an engine of one rank, this one has tp_size %d, "
                                               "pp_size %d; use the method 'ngram'", m->tp_size, m->pp_size);
    }
    if (m->encoder || (m->logits_scale != 0 && m->logits_scale != 1)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: EAGLE heads are for decoders whose logits are not scaled, %s models "
                                               "are not; use the method 'ngram'", m->model_type);
    }
    return NULL;
}

nrd_error *nrd_exec_eagle_read(nrd_exec *x, nrd_runner_taps *out)
{
    nrd_error *err = NULL;

    *out = (nrd_runner_taps){0};
    if (!wants(x)) {
        return NULL;
    }
    NRD_NEW_GOTO(x->eagle, 1, err, fail);
    NRD_TRY(check_model(x));
    NRD_TRY(nrd_eagle_heads_open(&x->eagle->heads, x->speculative.model, x->spec, x->speculative.method == NRD_EXEC_EAGLE3));
    *out = nrd_eagle_net_taps(x->eagle->heads, x->spec);
fail:
    return err;
}

static int32_t max_entries(const nrd_exec *x)
{
    return x->lim.max_batch_size * x->lim.max_beam_width;
}

static int32_t pass_tokens(const nrd_exec *x)
{
    const int32_t n = x->lim.max_num_tokens < PASS_TOKENS ? x->lim.max_num_tokens : PASS_TOKENS;
    return n > max_entries(x) ? n : max_entries(x);
}

nrd_error *nrd_exec_eagle_open(nrd_exec *x)
{
    nrd_eagle_model *m = x->eagle;

    if (!m) {
        return NULL;
    }
    NRD_TRY(nrd_eagle_net_new(&m->net, x->runner, m->heads,
                              &(nrd_eagle_net_config){.max_tokens = pass_tokens(x),
                                                      .max_entries = max_entries(x),
                                                      .max_rows = max_entries(x),
                                                      .n_best = 1}));
    nrd_exec_log(x, 2, "EAGLE%s heads: %.0f MB of weights, %d tokens of a draft", nrd_eagle_heads_is_3(m->heads) ? "-3" : "",
                 (double)nrd_eagle_net_weight_bytes(m->net) / 1e6, x->speculative.max_draft);
    return NULL;
}

size_t nrd_exec_eagle_block_bytes(const nrd_exec *x)
{
    return x->eagle ? nrd_eagle_net_block_bytes(x->eagle->net) : 0;
}

nrd_error *nrd_exec_eagle_start(nrd_exec *x)
{
    nrd_eagle_model *m = x->eagle;
    const int32_t n_blocks = x->kv_config.n_blocks;

    if (!m) {
        return NULL;
    }
    const uint64_t weights = nrd_eagle_net_weight_bytes(m->net);
    const nrd_eagle_config c = {
        .max_draft = x->speculative.max_draft,
        .n_best = 1,
        .pass_tokens = pass_tokens(x),
        .max_entries = max_entries(x),
        .step_tokens = x->lim.max_num_tokens,
        .max_context = x->lim.max_seq_len,
        .n_blocks = n_blocks,
        .block_tokens = x->info.tokens_per_block,
        .model_costs = nrd_sched_costs(x->sched),
        .share = (float)((double)weights / (double)nrd_engine_weight_bytes(x->engine)),
    };
    NRD_TRY(nrd_eagle_net_alloc(m->net, n_blocks));
    x->info.weight_bytes += weights;
    x->info.kv_cache_bytes += (uint64_t)n_blocks * nrd_eagle_net_block_bytes(m->net);
    return nrd_eagle_new(&m->eagle, m->net, &c);
}

nrd_error *nrd_exec_eagle_proposer(const nrd_exec *x, nrd_proposer **out)
{
    return nrd_proposer_of_eagle(out, x->eagle->eagle);
}

nrd_error *nrd_exec_eagle_run(nrd_exec *x, const nrd_plan *p)
{
    return x->eagle ? nrd_eagle_run(x->eagle->eagle, p) : NULL;
}

void nrd_exec_eagle_close(nrd_exec *x)
{
    nrd_eagle_model *m = x->eagle;
    if (m) {
        nrd_eagle_free(m->eagle);
        nrd_eagle_net_free(m->net);
        nrd_eagle_heads_close(m->heads);
        free(m);
        x->eagle = NULL;
    }
}
