/* SPDX-License-Identifier: Apache-2.0
 * An executor whose engine has several ranks: what the other ranks are told, and what happens when one is
 * lost. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "executor/internal.h"
#include "executor/ranks/launched.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static nrd_error *copy_text(char *out, size_t size, const char *text, const char *what)
{
    size_t n = text ? strlen(text) : 0;
    if (n >= size) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has %zu characters, the limit is %zu", what, n, size - 1);
    }
    memcpy(out, text ? text : "", n + 1);
    return NULL;
}

static nrd_error *fill_config(const nrd_exec *x, const char *engine_dir, const nrd_runner_config *rc, int32_t n_ranks,
                              nrd_rank_config *out)
{
    *out = (nrd_rank_config){
        .engine_mark = nrd_engine_mark(x->engine),
        .n_threads = x->cfg.n_threads,
        .verify_checksums = x->cfg.verify_checksums,
        .compute_f32 = rc->compute_f32,
        .streamed_share = rc->streamed_share,
        .deterministic = rc->deterministic,
        .kv_dtype = rc->kv_dtype,
        .max_tokens = rc->max_tokens,
        .max_entries = rc->max_entries,
        .max_draft_rows = rc->max_draft_rows,
        .max_context = rc->max_context,
        .block_tokens = rc->block_tokens,
        .max_picture_states = rc->max_picture_states,
        .n_sink = rc->n_sink,
        .n_windows = rc->n_windows,
    };
    if (rc->n_windows > NRD_RANKS_MAX_WINDOWS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "max_attention_window_size has %d numbers, the limit is %d",
                          rc->n_windows, (int)NRD_RANKS_MAX_WINDOWS);
    }
    for (int32_t i = 0; i < rc->n_windows; i++) {
        out->windows[i] = rc->windows[i];
    }
    _Static_assert(sizeof out->taps == sizeof rc->taps.layer, "as many as a runner has");
    out->n_taps = rc->taps.n;
    memcpy(out->taps, rc->taps.layer, sizeof out->taps);
    for (int32_t i = 0; i < NRD_RANKS_MAX; i++) {
        const int32_t n = x->cfg.n_device_ids;
        out->launched[i] = i < x->cfg.n_participant_ids ? x->cfg.participant_ids[i] : nrd_launched_of(i, n_ranks);
        out->device_ids[i] = i < n ? x->cfg.device_ids[i] : n > 0 ? x->cfg.device_ids[n - 1] + i - n + 1 : -1;
    }
    NRD_TRY(copy_text(out->engine_dir, sizeof out->engine_dir, engine_dir, "the engine's folder"));
    NRD_TRY(copy_text(out->device, sizeof out->device, x->device_name, "device"));
    return copy_text(out->cpu_isa, sizeof out->cpu_isa, x->cfg.cpu_isa, "cpu_isa");
}

/* From the thread that watches over the ranks. The loop ends what is under way: a step that waits for the
 * lost rank fails by itself. */
static void on_lost(void *user, const char *reason)
{
    nrd_exec *x = user;
    pthread_mutex_lock(&x->mu);
    if (!x->rank_lost[0]) { /* the first is the cause */
        snprintf(x->rank_lost, sizeof x->rank_lost, "%s", reason);
        x->rank_lost_ms = (int64_t)(nrd_now_ns() / 1000000);
    }
    pthread_cond_signal(&x->in_cv);
    pthread_cond_signal(&x->watch.cv);
    pthread_mutex_unlock(&x->mu);
}

void nrd_exec_rank_host(const nrd_exec *x, int32_t rank, char *out, size_t size)
{
    const char *far = x->ranks ? nrd_ranks_far_host(x->ranks, rank) : NULL;
    const bool is_one = rank >= 0 && rank < x->spec->tp_size * x->spec->pp_size;

    if (size == 0) {
        return;
    }
    out[0] = '\0';
    if (is_one && far) {
        snprintf(out, size, "%s", far);
    } else if (is_one && gethostname(out, size) != 0) {
        snprintf(out, size, "?");
    }
    out[size - 1] = '\0';
}

bool nrd_exec_is_launched(void)
{
    return nrd_launched();
}

nrd_error *nrd_exec_start_ranks(nrd_exec *x, const char *engine_dir, const nrd_runner_config *rc)
{
    const nrd_comm_config cc = nrd_runner_comm_config(x->spec, rc);
    const int32_t size = cc.size;
    nrd_rank_config *config = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_launched_check(size, x->cfg.participant_ids, x->cfg.n_participant_ids));
    if (size <= 1) {
        return NULL;
    }
    NRD_TRY(nrd_runner_check_ranks(x->dev, x->spec)); /* before a process is started for nothing */
    NRD_NEW_GOTO(config, 1, err, done);
    NRD_TRY_GOTO(fill_config(x, engine_dir, rc, size, config), err, done);
    err = nrd_ranks_start(&x->ranks, size, nrd_runner_n_buffers(x->spec), x->dev->ops->comm_bytes(x->dev, &cc), config,
                          on_lost, x);
done:
    free(config);
    return err;
}

nrd_error *nrd_exec_free_bytes(nrd_exec *x, nrd_device_info *di)
{
    uint64_t least = UINT64_MAX;
    if (!x->ranks) {
        return NULL;
    }
    NRD_TRY(nrd_ranks_wait_loaded(x->ranks, &least));
    if (di->host_is_device) { /* they share it */
        x->dev->ops->get_info(x->dev, di);
        di->mem_free_bytes = least < di->mem_free_bytes ? least : di->mem_free_bytes; /* of the host that has least */
        di->mem_free_bytes /= (uint64_t)(x->spec->tp_size * x->spec->pp_size);
    } else if (least < di->mem_free_bytes) {
        di->mem_free_bytes = least;
    }
    return NULL;
}

nrd_error *nrd_exec_alloc_kv(nrd_exec *x, int32_t n_blocks, int32_t n_host_blocks)
{
    if (x->ranks) {
        NRD_TRY(nrd_ranks_ask_kv(x->ranks, n_blocks, n_host_blocks));
    }
    NRD_TRY(nrd_runner_alloc_kv(x->runner, n_blocks, n_host_blocks));
    return x->ranks ? nrd_ranks_wait_kv(x->ranks) : NULL;
}
