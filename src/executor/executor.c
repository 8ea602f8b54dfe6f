/* SPDX-License-Identifier: Apache-2.0
 * The executor API: an executor from open to close.
 *
 * Life of an executor: open (device, engine file, runner, cache, loop thread) -> requests and responses ->
 * stopping: new requests are refused, those under way end, or are cut when the time is up -> stopped: the
 * loop has ended, what is in the outbox can still be taken -> close. When a step fails the engine is lost:
 * all requests are answered with an error and new ones refused until it is closed. */
#include "nereid/executor.h"

#include "base/limits.h"
#include "base/mem.h"
#include "device/device.h"
#include "executor/draft_model.h"
#include "executor/eagle_model.h"
#include "executor/medusa_model.h"
#include "executor/redrafter_model.h"
#include "executor/handover.h"
#include "text/prompt_limit.h"

#include <string.h>

void nrd_exec_config_init(nrd_exec_config *c)
{
    *c = (nrd_exec_config){
        .size = sizeof *c,
        .normalize_log_probs = true,
        .cuda_graph_mode = true,
        .iter_stats_max_iterations = 1000,
        .gpu_weights_percent = 1,
        .scheduler_record_bytes = NRD_RECORD_DEFAULT_BYTES,
        .picture_cache_bytes = NRD_LIMIT_PICTURE_ROWS,
    };
}

/* The loop thread's end; it runs only once all of an executor is there. */
static void join(nrd_exec *x)
{
    if (x->thread_started) {
        nrd_error_free(nrd_exec_shutdown(x, 0));
        nrd_exec_stall_stop(x);
        if (!x->is_abandoned) {
            pthread_join(x->thread, NULL);
        }
    }
}

static void destroy(nrd_exec *x)
{
    if (x->lists_prompts) {
        nrd_prompt_limit_remove(x->lim.max_input_len);
    }
    nrd_exec_stall_stop(x);
    nrd_handover_close(x);
    if (x->is_abandoned) {
        nrd_exec_abandon(x);
        return;
    }
    nrd_exec_lora_close(x);
    nrd_ranks_stop(x->ranks);
    nrd_exec_draft_close(x);
    nrd_exec_medusa_close(x);
    nrd_exec_eagle_close(x);
    nrd_exec_redrafter_close(x);
    nrd_exec_vision_close(x);
    nrd_exec_speculative_fini(&x->speculative);
    nrd_runner_free(x->runner);
    nrd_ranks_free(x->ranks); /* the runner used its memory */
    nrd_sched_free(x->sched);
    nrd_record_free(x->record);
    nrd_kv_free(x->kv);
    for (int i = 0; i < NRD_SCHED_MAX_MICRO; i++) {
        nrd_plan_fini(&x->plans[i]);
    }
    if (x->dev) {
        x->dev->ops->close(x->dev);
    }
    nrd_classifier_free(x->classifier);
    nrd_projection_free(x->projection);
    nrd_engine_close(x->engine);
    nrd_engine_close(x->encoder);
    while (x->out_head) {
        nrd_exec_response_state *o = x->out_head;
        x->out_head = o->next;
        nrd_exec_response_put(o);
    }
    nrd_exec_pool_unref(x->pool);
    nrd_guides_free(x->guides);
    free(x->iter_ring);
    free(x->events);
    pthread_cond_destroy(&x->in_cv);
    pthread_cond_destroy(&x->out_cv);
    pthread_cond_destroy(&x->watch.cv);
    pthread_mutex_destroy(&x->mu);
    free(x);
}

nrd_error *nrd_exec_open(nrd_exec **out, const char *engine_dir, const nrd_exec_config *config)
{
    nrd_error *err = NULL;
    nrd_exec *x = NULL;
    pthread_condattr_t attr;

    *out = NULL;
    if (!engine_dir || !engine_dir[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no engine folder given");
    }
    NRD_NEW_GOTO(x, 1, err, fail);
    nrd_exec_config_init(&x->cfg);
    if (config) {
        size_t n = config->size < sizeof x->cfg ? config->size : sizeof x->cfg;
        memcpy(&x->cfg, config, n);
    }
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&x->mu, NULL);
    pthread_cond_init(&x->in_cv, &attr);
    pthread_cond_init(&x->out_cv, &attr);
    pthread_cond_init(&x->watch.cv, &attr);
    pthread_condattr_destroy(&attr);
    x->next_id = 1;
    x->inflight = -1;
    x->info.size = sizeof x->info;
    err = nrd_exec_stall_limit(&x->watch);
    err = err ? err : nrd_exec_open_all(x, engine_dir);
    if (!err && x->cfg.tokenizer_dir && x->cfg.tokenizer_dir[0]) {
        x->guides = nrd_guides_new(x->cfg.tokenizer_dir);
        err = x->guides ? NULL : nrd_error_no_memory();
    }
    if (err) {
        join(x);
        destroy(x);
        return err;
    }
    nrd_prompt_limit_add(x->lim.max_input_len); /* of an encoder, too: its blocks are counted in */
    x->lists_prompts = true;
    /* Strings and arrays of the config belong to the caller: not kept. */
    x->cfg.max_attention_window = x->cfg.device_ids = x->cfg.participant_ids = NULL;
    x->cfg.device = x->cfg.cpu_isa = x->cfg.guided_decoding_backend = x->cfg.tokenizer_dir = NULL;
    x->cfg.lora_prefetch_dir = x->cfg.scheduler_record = x->cfg.speculative_config = NULL;
    *out = x;
fail:
    return err;
}

void nrd_exec_get_info(const nrd_exec *x, nrd_exec_info *info)
{
    uint32_t size = info->size;
    memcpy(info, &x->info, size < sizeof x->info ? size : sizeof x->info);
    info->size = size;
}

void nrd_exec_close(nrd_exec *x)
{
    if (!x) {
        return;
    }
    join(x);
    destroy(x);
}

/* ---- errors, version ---- */

int nrd_exec_error_code(const nrd_error *err)
{
    return nrd_error_triton_code(err);
}

const char *nrd_exec_error_message(const nrd_error *err)
{
    return nrd_error_message(err);
}

const char *nrd_exec_error_reason(const nrd_error *err)
{
    return nrd_error_reason(err);
}

void nrd_exec_error_free(nrd_error *err)
{
    nrd_error_free(err);
}
