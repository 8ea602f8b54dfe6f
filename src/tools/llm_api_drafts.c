/* SPDX-License-Identifier: Apache-2.0
 * speculative_config of TensorRT-LLM's LLM API: how several tokens a step are guessed. A member becomes that of --speculative-config,
 * has no effect, or is refused.
 *
 * Source: the reference of TorchLlmArgs, TensorRT-LLM 1.0 (MTPDecodingConfig, EagleDecodingConfig, NGramDecodingConfig, …). */
#include "tools/llm_api.h"

#include "base/str.h"

#include <string.h>
#include <strings.h>

enum { NGRAM, DRAFT_TARGET, LOOKAHEAD, MEDUSA, EAGLE, MTP, N_METHODS };

/* Eagle is EAGLE-3 there, in its names of several releases. */
static const struct {
    const char *theirs, *ours;
    int method;
} types[] = {
    {"NGram", "ngram", NGRAM}, {"DraftTarget", "draft_model", DRAFT_TARGET}, {"Draft_Target", "draft_model", DRAFT_TARGET},
    {"Lookahead", "lookahead", LOOKAHEAD}, {"Medusa", "medusa", MEDUSA}, {"Eagle", "eagle3", EAGLE}, {"Eagle3", "eagle3", EAGLE}, {"MTP", "mtp", MTP},
};

/* ours NULL: without effect; of the methods whose bits are set. */
static const struct {
    const char *theirs, *ours;
    unsigned methods;
} members[] = {
    {"max_draft_len", "num_speculative_tokens", 1 << NGRAM | 1 << DRAFT_TARGET | 1 << EAGLE | 1 << MTP},
    {"max_draft_len", NULL, 1 << MEDUSA | 1 << LOOKAHEAD},
    {"prompt_lookup_num_tokens", "num_speculative_tokens", 1 << NGRAM},
    {"num_nextn_predict_layers", "num_speculative_tokens", 1 << MTP},
    {"max_matching_ngram_size", "prompt_lookup_max", 1 << NGRAM},
    {"is_keep_all", NULL, 1 << NGRAM},
    {"is_use_oldest", NULL, 1 << NGRAM},
    {"is_public_pool", NULL, 1 << NGRAM},
    {"max_window_size", "lookahead_window_size", 1 << LOOKAHEAD},
    {"max_ngram_size", "lookahead_ngram_size", 1 << LOOKAHEAD},
    {"max_verification_set_size", "lookahead_verification_set_size", 1 << LOOKAHEAD},
    {"speculative_model", "model", 1 << DRAFT_TARGET | 1 << MEDUSA | 1 << EAGLE},
    {"speculative_model_dir", "model", 1 << DRAFT_TARGET | 1 << MEDUSA | 1 << EAGLE},
    {"speculative_model_dir", NULL, 1 << MTP},
    {"medusa_choices", "medusa_choices", 1 << MEDUSA},
    {"num_medusa_heads", NULL, 1 << MEDUSA},
    {"eagle_choices", "eagle_choices", 1 << EAGLE},
    {"dynamic_tree_max_topK", "dynamic_tree_max_topK", 1 << EAGLE},
    {"posterior_threshold", "posterior_threshold", 1 << EAGLE},
    {"use_dynamic_tree", NULL, 1 << EAGLE},
    {"greedy_sampling", NULL, 1 << EAGLE},
    {"num_eagle_layers", NULL, 1 << EAGLE},
    {"max_non_leaves_per_layer", NULL, 1 << EAGLE},
    {"eagle3_one_model", NULL, 1 << EAGLE},
    {"eagle3_layers_to_capture", NULL, 1 << EAGLE},
    {"eagle3_model_arch", NULL, 1 << EAGLE},
    {"use_mtp_vanilla", NULL, 1 << MTP},
    {"mtp_eagle_one_model", NULL, 1 << MTP},
    {"BEGIN_THINKING_PHASE_TOKEN", NULL, 1 << MTP},
    {"END_THINKING_PHASE_TOKEN", NULL, 1 << MTP},
};

static nrd_error *put_member(nrd_str *out, const nrd_json *m, int method)
{
    bool is_known = false;

    if (nrd_json_is(m, NRD_JSON_NULL) || !strcmp(m->key, "decoding_type")) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strcmp(members[i].theirs, m->key) != 0 || !(members[i].methods & 1U << method)) {
            continue;
        }
        is_known = true;
        if (members[i].ours) {
            nrd_str_printf(out, ", \"%s\": ", members[i].ours);
            nrd_json_put(out, m, -1);
        }
    }
    return is_known ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "'%.80s' is not supported; see --speculative-config (docs/speculation.md)", m->key);
}

nrd_error *nrd_llm_api_put_drafts(nrd_str *out, const nrd_json *config)
{
    const char *type = nrd_json_get_str(config, "decoding_type", "");

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcasecmp(types[i].theirs, type) != 0) {
            continue;
        }
        nrd_str_printf(out, "{\"method\": \"%s\"", types[i].ours);
        for (size_t k = 0; k < nrd_json_len(config); k++) {
            NRD_TRY(put_member(out, nrd_json_at(config, k), types[i].method));
        }
        nrd_str_puts(out, "}");
        return nrd_str_error(out);
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "decoding_type '%.40s' is not supported; known are NGram, DraftTarget, Lookahead, Medusa, Eagle3 "
                      "and MTP", type);
}
