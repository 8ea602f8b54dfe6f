/* SPDX-License-Identifier: Apache-2.0
 * What the log says of an engine that was opened, in the words of the published backend: scripts and people look for these lines. */
#include "backends/tensorrtllm/llm.h"
#include "backends/tensorrtllm/trt_log.h"

#include <string.h>

/* As many tokens back as each layer sees: a list that layers take in turn. */
static void tell_windows(const nrd_exec_config *c, const nrd_exec_info *info)
{
    const int32_t n = c->n_max_attention_window > 0 ? c->n_max_attention_window : 1;
    nrd_str list = {0};

    for (int32_t i = 0; i < n; i++) {
        const int32_t w = c->n_max_attention_window > 0 ? c->max_attention_window[i] : info->max_seq_len;
        nrd_str_printf(&list, "%s%d", i ? ", " : "", w > 0 && w < info->max_seq_len ? w : info->max_seq_len);
    }
    TRT_LOG(INFO, "TRTGptModel mMaxAttentionWindowSize: (%s) * %d", nrd_str_cstr(&list), (info->n_layers + n - 1) / n);
    nrd_str_fini(&list);
}

static void tell_cache(const nrd_exec_info *info)
{
    const int32_t bt = info->tokens_per_block;

    if (info->n_kv_blocks > 0 && bt > 0) {
        TRT_LOG(INFO, "Allocate %llu bytes for k/v cache.", (unsigned long long)info->kv_cache_bytes);
        TRT_LOG(INFO, "Using %lld total tokens in paged KV cache, and %d blocks per sequence", (long long)info->n_kv_blocks * bt,
                (info->max_seq_len + bt - 1) / bt);
    }
}

void nrd_llm_tell_engine(const nrd_llm_model *m, const nrd_exec_config *c, const nrd_exec_info *info)
{
    const int32_t n_ranks = info->tp_size * info->pp_size;

    if (nrd_tb_config_param(&m->config, "served_model_name")) {
        return; /* a repository of nereid serve, whose user reads a summary */
    }
    TRT_LOG(INFO, "MPI size: %d, rank: 0", n_ranks);
    for (int32_t i = 0; i < n_ranks && i < c->n_device_ids && !strncmp(info->device, "cuda", 4); i++) {
        TRT_LOG(INFO, "Rank %d is using GPU %d", i, c->device_ids[i]);
    }
    TRT_LOG(INFO, "TRTGptModel maxNumSequences: %d", info->max_batch_size);
    TRT_LOG(INFO, "TRTGptModel maxBatchSize: %d", info->max_batch_size);
    TRT_LOG(INFO, "TRTGptModel maxBeamWidth: %d", info->max_beam_width);
    TRT_LOG(INFO, "TRTGptModel maxSequenceLen: %d", info->max_seq_len);
    TRT_LOG(INFO, "TRTGptModel maxDraftLen: %d", info->max_draft_len);
    tell_windows(c, info);
    TRT_LOG(INFO, "TRTGptModel enableTrtOverlap: 0"); /* the parameter has no effect */
    TRT_LOG(INFO, "TRTGptModel normalizeLogProbs: %d", c->normalize_log_probs);
    TRT_LOG(INFO, "TRTGptModel maxNumTokens: %d", info->max_num_tokens);
    TRT_LOG(INFO, "TRTGptModel maxInputLen: %d", info->max_input_len);
    TRT_LOG(INFO, "Loaded engine size: %llu MiB", (unsigned long long)(info->weight_bytes >> 20));
    tell_cache(info);
}
