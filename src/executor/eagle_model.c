/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/eagle_model.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/speculate/eagle.h"
#include "executor/internal.h"
#include "executor/tree_choices.h"
#include "model/source.h"

/* Of a pass that computes what the heads have missed: those who generate wait for it. */
enum { PASS_TOKENS = 1024 };

struct nrd_eagle_model {
    nrd_eagle_heads *heads; /* the device may read weights where they are mapped */
    nrd_engine *mtp;        /* instead: the engine's MTP layer */
    nrd_eagle_net *net;
    nrd_eagle *eagle;
    nrd_medusa_choices choices; /* n 0: none */
    int32_t n_best;
};

static bool wants(const nrd_exec *x)
{
    const nrd_exec_method m = x->speculative.method;
    return m == NRD_EXEC_EAGLE || m == NRD_EXEC_EAGLE3 || m == NRD_EXEC_MTP;
}

/* Whether this model's states are what heads were trained on. */
static nrd_error *check_model(const nrd_exec *x)
{
    const nrd_model_spec *m = x->spec;
    const char *what = x->speculative.method == NRD_EXEC_MTP ? "MTP layers" : "EAGLE heads";

    if (m->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: %s need all layers on rank 0: pp_size is %d; use tp_size, or the "
                                               "method 'draft_model' or 'ngram'", what, m->pp_size);
    }
    if (m->encoder || m->cross_attention || (m->logits_scale != 0 && m->logits_scale != 1)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: %s are for decoders alone whose logits are not scaled, %s models "
                                               "are not; use the method 'ngram'", what, m->model_type);
    }
    return NULL;
}

/* The engine's own heads are what they are, since decoding_mode names no kind. */
static nrd_error *open_heads(nrd_exec *x, const char *engine_dir)
{
    const nrd_exec_speculative *c = &x->speculative;
    char *own = NULL;

    if (!c->model) {
        NRD_TRY(nrd_path_make(&own, engine_dir, NRD_EAGLE_FOLDER));
    }
    nrd_error *err = nrd_eagle_heads_open(&x->eagle->heads, c->model ? c->model : own, x->spec,
                                          !c->model                      ? NRD_EAGLE_ANY
                                          : c->method == NRD_EXEC_EAGLE3 ? NRD_EAGLE_3
                                                                         : NRD_EAGLE_1);
    free(own);
    return nrd_exec_speculative_heads(c, err);
}

/* Beside the model's engine. */
static nrd_error *open_mtp(nrd_exec *x, const char *engine_dir)
{
    nrd_eagle_model *m = x->eagle;
    char *dir = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_path_make(&dir, engine_dir, NRD_MTP_FOLDER));
    if (!nrd_engine_is_folder(dir)) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "speculative_config: method 'mtp': '%s' has no MTP layer. Either the model has none, or the engine "
                         "was built without it: see --speculative_decoding_mode mtp of nereid convert and nereid build", engine_dir);
        goto done;
    }
    NRD_TRY_GOTO(nrd_engine_open(&m->mtp, dir, 0, x->cfg.verify_checksums), err, done);
    const nrd_model_spec *s = nrd_engine_spec(m->mtp);
    if (!s->mtp || s->hidden != x->spec->hidden || s->vocab != x->spec->vocab || s->dtype != x->spec->dtype) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no MTP layer of the model beside it (hidden_size %d, vocab_size %d, %s)", dir,
                         x->spec->hidden, x->spec->vocab, nrd_dtype_name(x->spec->dtype));
    }
done:
    free(dir);
    return err;
}

nrd_error *nrd_exec_eagle_read(nrd_exec *x, const char *engine_dir, nrd_runner_taps *out)
{
    nrd_error *err = NULL;

    *out = (nrd_runner_taps){0};
    if (!wants(x)) {
        return NULL;
    }
    NRD_NEW_GOTO(x->eagle, 1, err, fail);
    NRD_TRY(check_model(x));
    NRD_TRY(x->speculative.method == NRD_EXEC_MTP ? open_mtp(x, engine_dir) : open_heads(x, engine_dir));
    *out = nrd_eagle_net_taps(x->eagle->heads, x->spec);
fail:
    return err;
}

static int32_t max_passes(const nrd_exec *x)
{
    const nrd_medusa_choices *c = &x->eagle->choices;
    return c->n > 0 ? c->depth[c->n - 1] : x->speculative.depth; /* the deepest is the last one */
}

/* A tree's passes are given its levels so far: no more than the draft has nodes. */
static int32_t pass_tokens(const nrd_exec *x)
{
    const int32_t n = x->lim.max_num_tokens < PASS_TOKENS ? x->lim.max_num_tokens : PASS_TOKENS;
    return n > nrd_exec_draft_outputs(x) ? n : nrd_exec_draft_outputs(x);
}

/* How many tokens behind each place the drafts may have, and the choices. */
static nrd_error *read_choices(nrd_exec *x)
{
    const nrd_exec_speculative *c = &x->speculative;
    nrd_eagle_model *m = x->eagle;
    const int32_t vocab = m->heads ? nrd_eagle_heads_spec(m->heads)->vocab : x->spec->vocab;

    m->n_best = c->top_k > 0 ? c->top_k : 1;
    if (c->choices) {
        NRD_TRY(nrd_exec_tree_choices(&m->choices, "eagle_choices", c->choices, NRD_EAGLE_MAX_DEPTH));
        for (int32_t i = 0; i < m->choices.n; i++) {
            m->n_best = m->choices.rank[i] >= m->n_best ? m->choices.rank[i] + 1 : m->n_best;
        }
    }
    if (m->n_best > vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: a tree with %d tokens behind one, the heads know %d", m->n_best,
                          vocab);
    }
    return NULL;
}

nrd_error *nrd_exec_eagle_open(nrd_exec *x)
{
    nrd_eagle_model *m = x->eagle;

    if (!m) {
        return NULL;
    }
    NRD_TRY(read_choices(x));
    NRD_TRY(nrd_eagle_net_new(&m->net, x->runner, m->heads, m->mtp,
                              &(nrd_eagle_net_config){.max_tokens = pass_tokens(x),
                                                      .max_entries = nrd_exec_max_entries(x),
                                                      .max_rows = nrd_exec_draft_outputs(x),
                                                      .n_outputs = nrd_exec_draft_outputs(x) * (max_passes(x) > 2 ? max_passes(x) : 2),
                                                      .n_best = m->n_best,
                                                      .quantize = x->speculative.quantize}));
    nrd_exec_log(x, 2, "%s: %.0f MB of weights, %d tokens of a draft",
                 !m->heads ? "MTP layer" : nrd_eagle_heads_is_3(m->heads) ? "EAGLE-3 heads" : "EAGLE heads", (double)nrd_eagle_net_weight_bytes(m->net) / 1e6, x->speculative.max_draft);
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
        .max_draft = m->choices.n > 0 && m->choices.n < x->speculative.max_draft ? m->choices.n : x->speculative.max_draft,
        .depth = max_passes(x),
        .top_k = x->speculative.top_k,
        .choices = m->choices.n > 0 ? &m->choices : NULL,
        .n_best = m->n_best,
        .max_rows = nrd_exec_draft_outputs(x),
        .pass_tokens = pass_tokens(x),
        .max_entries = nrd_exec_max_entries(x),
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

nrd_error *nrd_exec_eagle_keep(nrd_exec *x, const nrd_plan *p)
{
    return x->eagle ? nrd_eagle_keep(x->eagle->eagle, p) : NULL;
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
        nrd_engine_close(m->mtp);
        free(m);
        x->eagle = NULL;
    }
}
