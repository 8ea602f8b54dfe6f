/* SPDX-License-Identifier: Apache-2.0
 * The draft model of speculative_config: a second engine in this executor, on the same device, with blocks of the same
 * numbers. Of a model over several ranks, rank 0 has it, and guesses alone. Its vocabulary must be the model's: a guess is an id. */
#include "executor/draft_model.h"

#include "base/mem.h"
#include "engine/speculate/drafter.h"
#include "executor/internal.h"
#include "executor/model_path.h"
#include "text/shared.h"

#include <string.h>

/* Of a pass that computes what it has missed: those who generate wait for it. */
enum { PASS_TOKENS = 1024 };

struct nrd_draft_model {
    nrd_model_path path;
    nrd_engine *engine;
    nrd_runner *runner;
    nrd_drafter *drafter;
};

/* The first id that says something else, or for which one of them has nothing; -1: none. */
static int32_t first_difference(const nrd_tokenizer *a, const nrd_tokenizer *b)
{
    const int32_t n_a = nrd_tokenizer_vocab_size(a), n_b = nrd_tokenizer_vocab_size(b), n = n_a > n_b ? n_a : n_b;
    for (int32_t id = 0; id < n; id++) {
        size_t len_a = 0, len_b = 0;
        const char *s = nrd_tokenizer_token(a, id, &len_a), *t = nrd_tokenizer_token(b, id, &len_b);
        if (!s != !t || (s && (len_a != len_b || memcmp(s, t, len_a) != 0))) {
            return id;
        }
    }
    return -1;
}

/* Where both have tokenizer files. A model of random weights has none; the sizes say what can be said then. */
static nrd_error *check_tokenizers(const char *own, const char *drafts)
{
    nrd_text *a = NULL, *b = NULL;
    nrd_error *err = own ? nrd_text_open(&a, own) : NULL, *missing = err ? NULL : nrd_text_open(&b, drafts);

    nrd_error_free(err);
    nrd_error_free(missing);
    err = NULL;
    const int32_t id = a && b ? first_difference(nrd_text_tokenizer(a), nrd_text_tokenizer(b)) : -1;
    if (id >= 0) {
        size_t n = 0, n_other = 0;
        const char *token = nrd_tokenizer_token(nrd_text_tokenizer(a), id, &n),
                   *other = nrd_tokenizer_token(nrd_text_tokenizer(b), id, &n_other);
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: the draft model '%s' has another vocabulary: token %d "
                                              "is '%.*s', the model's is '%.*s'; name a draft model of the same tokenizer",
                         drafts, id, other ? (int)n_other : 0, other ? other : "", token ? (int)n : 0, token ? token : "");
    }
    nrd_text_close(a);
    nrd_text_close(b);
    return err;
}

static nrd_error *check_model(const nrd_exec *x, const nrd_model_spec *m, const char *path)
{
    if (m->vocab != x->spec->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "speculative_config: the draft model '%s' has a vocabulary of %d tokens, "
                                               "the model one of %d; name a draft model of the same tokenizer",
                          path, m->vocab, x->spec->vocab);
    }
    if (nrd_spec_is_recurrent(m)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: the draft model '%s' has layers with a recurrent state, "
                                               "from which a token that does not hold cannot be taken",
                          path);
    }
    if (m->tp_size * m->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "speculative_config: the draft model '%s' has tp_size %d, pp_size %d; it "
                                               "runs on one rank: name an engine of one",
                          path, m->tp_size, m->pp_size);
    }
    return NULL;
}

static int32_t pass_tokens(const nrd_exec *x)
{
    const int32_t n_slots = nrd_exec_max_entries(x);
    const int32_t n = x->lim.max_num_tokens < PASS_TOKENS ? x->lim.max_num_tokens : PASS_TOKENS;
    return n > n_slots ? n : n_slots;
}

static nrd_error *open_runner(nrd_exec *x, nrd_draft_model *d)
{
    const nrd_runner_config rc = {
        .compute_f32 = x->cfg.compute_dtype == NRD_DTYPE_F32,
        .deterministic = x->cfg.deterministic,
        .max_tokens = pass_tokens(x),
        .max_entries = nrd_exec_max_entries(x),
        .max_top = 1,
        .max_context = x->lim.max_seq_len,
        .block_tokens = x->info.tokens_per_block,
        .no_graphs = !x->cfg.cuda_graph_mode,
        .no_overlap = x->cfg.no_overlap,
        .max_graphs = x->cfg.cuda_graph_cache_size,
    };
    return nrd_runner_new(&d->runner, x->dev, d->engine, &rc);
}

static nrd_error *open_all(nrd_exec *x, nrd_draft_model *d, const char *own_tokenizer)
{
    const char *path = x->speculative.model;
    nrd_device_info di;

    NRD_TRY(nrd_model_path_open(&d->path, path, x->cfg.device, (nrd_engine_asked){0}));
    NRD_TRY(nrd_engine_open(&d->engine, d->path.engine, 0, x->cfg.verify_checksums));
    NRD_TRY(check_model(x, nrd_engine_spec(d->engine), path));
    NRD_TRY(check_tokenizers(own_tokenizer, d->path.tokenizer));
    x->dev->ops->get_info(x->dev, &di);
    if (di.host_is_device) {
        (void)nrd_engine_settle(d->engine, di.mem_free_bytes);
    }
    return open_runner(x, d);
}

nrd_error *nrd_exec_draft_open(nrd_exec *x, const char *engine_dir)
{
    nrd_error *err = NULL;

    if (x->speculative.method != NRD_EXEC_DRAFT_MODEL) {
        return NULL;
    }
    NRD_NEW_GOTO(x->draft, 1, err, fail);
    err = nrd_error_wrap(open_all(x, x->draft, x->cfg.tokenizer_dir && x->cfg.tokenizer_dir[0] ? x->cfg.tokenizer_dir
                                                                                                : engine_dir),
                         "draft model");
fail:
    return err;
}

size_t nrd_exec_draft_block_bytes(const nrd_exec *x)
{
    return x->draft ? nrd_runner_kv_block_bytes(x->draft->runner) : 0;
}

/* Tokens of a sequence that both can have. */
static int32_t max_context(const nrd_exec *x, const nrd_draft_model *d)
{
    const nrd_model_spec *m = nrd_engine_spec(d->engine);
    int32_t n = nrd_engine_limits(d->engine)->max_seq_len;
    n = m->learned_positions && m->max_positions < n ? m->max_positions : n;
    return x->lim.max_seq_len < n ? x->lim.max_seq_len : n;
}

nrd_error *nrd_exec_draft_start(nrd_exec *x)
{
    nrd_draft_model *d = x->draft;
    const int32_t n_blocks = x->kv_config.n_blocks;
    nrd_device_info di;

    if (!d) {
        return NULL;
    }
    x->dev->ops->get_info(x->dev, &di);
    const uint64_t weights = nrd_engine_weight_bytes(d->engine);
    const nrd_drafter_config dc = {
        .max_draft = x->speculative.max_draft,
        .pass_tokens = pass_tokens(x),
        .max_entries = nrd_exec_max_entries(x),
        .max_context = max_context(x, d),
        .n_blocks = n_blocks,
        .block_tokens = x->info.tokens_per_block,
        .ahead = !di.host_is_device,
        .model_costs = nrd_sched_costs(x->sched),
        .share = (float)((double)weights / (double)nrd_engine_weight_bytes(x->engine)),
    };
    NRD_TRY(nrd_runner_alloc_kv(d->runner, n_blocks, 0));
    NRD_TRY(nrd_runner_record_ahead(d->runner));
    x->info.weight_bytes += weights;
    x->info.kv_cache_bytes += (uint64_t)n_blocks * nrd_runner_kv_block_bytes(d->runner);
    nrd_exec_log(x, 2, "draft model '%s': %.0f MB of weights, %d tokens of a draft", x->speculative.model,
                 (double)weights / 1e6, dc.max_draft);
    return nrd_drafter_new(&d->drafter, d->runner, &dc);
}

nrd_error *nrd_exec_draft_proposer(const nrd_exec *x, nrd_proposer **out)
{
    return nrd_proposer_of_drafter(out, x->draft->drafter);
}

nrd_error *nrd_exec_draft_run(nrd_exec *x, const nrd_plan *p)
{
    return x->draft ? nrd_drafter_run(x->draft->drafter, p) : NULL;
}

void nrd_exec_draft_close(nrd_exec *x)
{
    nrd_draft_model *d = x->draft;
    if (!d) {
        return;
    }
    nrd_drafter_free(d->drafter);
    nrd_runner_free(d->runner);
    nrd_engine_close(d->engine);
    nrd_model_path_close(&d->path);
    free(d);
    x->draft = NULL;
}
