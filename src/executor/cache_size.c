/* SPDX-License-Identifier: Apache-2.0
 * How large the KV cache of an executor is. */
#include "executor/draft_model.h"
#include "executor/eagle_model.h"
#include "executor/internal.h"

/* What a GPU may be asked for after the start: counts of tokens for penalties, masks, recorded steps,
 * kernels that the driver loads when they are first used. Never given to the cache, whatever its share. */
static double run_time_bytes(const nrd_exec *x)
{
    const double slots = (double)x->lim.max_batch_size * (double)x->lim.max_beam_width + (double)x->sched_lim.max_draft_rows;
    return 256e6 + slots * (double)x->spec->vocab * (sizeof(uint16_t) + 0.25 /* two masks, a bit each */);
}

/* In the words of the published backend, which users and their programs look for in the log. */
static void tell(const nrd_exec *x, const nrd_device_info *di)
{
    const nrd_exec_info *i = &x->info;
    const double gib = 1 << 30;
    const long long n_tokens = (long long)i->n_kv_blocks * i->tokens_per_block;
    const int32_t n_most = (x->lim.max_seq_len + i->tokens_per_block - 1) / i->tokens_per_block;

    nrd_exec_log(x, 2, "Memory usage when calculating max tokens in paged kv cache: total: %.2f GiB, available: %.2f GiB",
                 (double)di->mem_total_bytes / gib, (double)di->mem_free_bytes / gib);
    nrd_exec_log(x, 2, "Number of blocks in KV cache primary pool: %d", i->n_kv_blocks);
    nrd_exec_log(x, 2, "Number of blocks in KV cache secondary pool: %d, onboard blocks to primary memory before reuse: true",
                 i->n_kv_host_blocks);
    nrd_exec_log(x, 2, "Max KV cache pages per sequence: %d", n_most);
    nrd_exec_log(x, 2, "Number of tokens per block: %d.", i->tokens_per_block);
    nrd_exec_log(x, 2, "[MemUsageChange] Allocated %.2f GiB for max tokens in paged KV cache (%lld).", (double)i->kv_cache_bytes / gib,
                 n_tokens);
    nrd_exec_log(x, 2, "Using %lld total tokens in paged KV cache, and %d blocks per sequence", n_tokens, n_most); /* older releases */
}

/* Without attention a block takes no memory of the device, but about 60 bytes to know of it: so many, or those of the
 * longest sequence. */
#define EMPTY_BLOCKS (1 << 20)

nrd_error *nrd_exec_size_kv(nrd_exec *x)
{
    nrd_device_info di;
    int32_t bt = x->info.tokens_per_block;
    uint64_t block_bytes = nrd_runner_kv_block_bytes(x->runner);
    const uint64_t with_draft = block_bytes + nrd_exec_draft_block_bytes(x) + nrd_exec_eagle_block_bytes(x);

    x->dev->ops->get_info(x->dev, &di);
    NRD_TRY(nrd_exec_free_bytes(x, &di));
    double share = x->cfg.kv_cache_free_mem_fraction > 0 ? x->cfg.kv_cache_free_mem_fraction
                   : di.host_is_device                   ? 0.5
                                                         : 0.9;
    if (di.host_is_device) { /* states are taken as they are touched: not all of them is missing yet */
        const uint64_t states = nrd_runner_state_bytes(x->runner);
        di.mem_free_bytes -= states < di.mem_free_bytes ? states : di.mem_free_bytes;
    }
    double room = share * (double)di.mem_free_bytes;
    double most = (double)di.mem_free_bytes - (di.host_is_device ? 0 : run_time_bytes(x));
    room = room > most ? most > 0 ? most : 0 : room;
    const int32_t need = nrd_sched_worst_blocks(&x->sched_lim, bt, x->lim.max_input_len, x->lim.max_seq_len, 1);
    double n = with_draft > 0 ? room / (double)with_draft : need > EMPTY_BLOCKS ? need : EMPTY_BLOCKS;
    double by_tokens = x->cfg.max_tokens_in_paged_kv_cache > 0
                           ? (double)((x->cfg.max_tokens_in_paged_kv_cache + bt - 1) / bt)
                           : n;
    double useful = ((double)((x->lim.max_seq_len + bt - 1) / bt) + 1) *
                    (double)x->lim.max_batch_size * (double)x->lim.max_beam_width;
    if (x->spec->encoder) { /* one step at a time, whose sequences end with it */
        useful = (double)x->lim.max_num_tokens / bt + 2.0 * x->lim.max_batch_size;
    }
    n = by_tokens < n ? by_tokens : n;
    if (x->cfg.max_tokens_in_paged_kv_cache == 0) {
        /* With reuse, room for the prefixes of those who have left. */
        double cap = x->cfg.enable_kv_cache_reuse && !x->spec->encoder ? useful * 4 : useful;
        n = n > cap ? cap : n;
    }
    n = n > 1e9 ? 1e9 : n;
    if (n < (double)need) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "the KV cache would hold %d tokens (%d blocks of %d; %.0f MB free, share "
            "%.2f, max_tokens_in_paged_kv_cache %lld), but one sequence of max_seq_len "
            "%d needs %d blocks; %s or build with a smaller max_seq_len",
            (int32_t)n * bt, (int32_t)n, bt, (double)di.mem_free_bytes / 1e6, share,
            (long long)x->cfg.max_tokens_in_paged_kv_cache, x->lim.max_seq_len, need,
            di.host_is_device ? "give it more memory"
                              : "take others off this device, raise kv_cache_free_gpu_mem_fraction, use the "
                                "device \"cpu\"");
    }
    nrd_kv_config kc = {
        .n_blocks = (int32_t)n, .block_tokens = bt, .reuse = x->cfg.enable_kv_cache_reuse,
        .n_states = nrd_runner_n_states(x->runner)};
    if (kc.reuse) {
        /* without attention there is nothing in a block that could be kept */
        double n_host = block_bytes > 0 ? (double)(x->cfg.kv_cache_host_memory_bytes / block_bytes) : 0;
        kc.n_host_blocks = (int32_t)(n_host < 5e8 ? n_host : 5e8);
    } else if (x->cfg.kv_cache_host_memory_bytes > 0) {
        nrd_exec_log(x, 1, "kv_cache_host_memory_bytes has no effect without KV cache reuse");
    }
    NRD_TRY(nrd_kv_new(&x->kv, &kc));
    x->kv_config = kc;
    x->info.n_kv_blocks = kc.n_blocks;
    x->info.n_kv_host_blocks = kc.n_host_blocks;
    x->info.kv_cache_bytes = (uint64_t)kc.n_blocks * block_bytes;
    x->info.state_bytes = nrd_runner_state_bytes(x->runner);
    if (block_bytes > 0) {
        tell(x, &di);
    }
    NRD_TRY(nrd_exec_alloc_kv(x, kc.n_blocks, kc.n_host_blocks));
    return nrd_runner_record_ahead(x->runner);
}
