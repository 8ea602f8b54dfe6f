/* SPDX-License-Identifier: Apache-2.0
 * What a repository expects of its model "tensorrt_llm". The published repositories changed from release
 * to release without saying which one they are, but each declares other tensors. */
#include "backends/tensorrtllm/llm.h"

nrd_llm_rules nrd_llm_rules_of(const nrd_tb_config *c)
{
    const bool has_length = nrd_tb_config_has_output(c, "sequence_length"); /* v0.6 on */
    const bool has_drafts = nrd_tb_config_has_input(c, "draft_input_ids");  /* v0.7 on */
    const bool has_logits = nrd_tb_config_has_output(c, "context_logits");  /* v0.8 on */
    const bool has_early = nrd_tb_config_has_input(c, "early_stopping");    /* v0.10 on */
    const bool has_index = nrd_tb_config_has_output(c, "sequence_index");   /* v0.14 on */

    return (nrd_llm_rules){
        .has_sequence_length = has_length,
        .has_sequence_index = has_index,
        .has_old_metric_names = has_length && !has_drafts && !has_logits,
        .has_unique_ids = !has_early && !has_index,
        .dummy_log_probs = has_index || !has_length ? LLM_DUMMY_NONE
                           : has_early              ? LLM_DUMMY_OF_PROMPT
                                                    : LLM_DUMMY_OF_NEW_TOKENS,
        .has_dummy_logits = has_logits && !has_index,
        .has_reuse_by_default = nrd_tb_config_has_input(c, "return_perf_metrics"), /* v0.19 */
    };
}
