/* SPDX-License-Identifier: Apache-2.0
 * All ways to guess beside one tiny engine: the engine with Medusa heads, a ReDrafter and an MTP layer in it, and folders of EAGLE heads. */
#ifndef NRD_TEST_TINY_METHODS_H
#define NRD_TEST_TINY_METHODS_H

#include "tiny_eagle.h"

static tiny_engine tiny_all;
static char tiny_eagle_dir[] = "/tmp/nereid-test-eagle-XXXXXX", tiny_eagle3_dir[] = "/tmp/nereid-test-eagle3-XXXXXX";

typedef struct tiny_method {
    const char *json, *model; /* `model` is what %s of json stands for */
    bool trees;               /* beams are refused, and sums may be added in another order than without drafts */
    bool reuse, pauses;       /* what test_mix turns on */
} tiny_method;

static const tiny_method tiny_methods[] = {
    {"{\"method\": \"ngram\", \"adaptive\": false, \"prompt_lookup_min\": 1, \"num_speculative_tokens\": 5}", NULL, false, true, false},
    {"{\"method\": \"draft_model\", \"model\": \"%s\", \"adaptive\": false, \"num_speculative_tokens\": 3}", tiny_all.dir, false, true, true},
    {"{\"method\": \"draft_model\", \"model\": \"%s\", \"num_speculative_tokens\": 4}", tiny_all.dir, false, false, false},
    {"{\"method\": \"lookahead\", \"adaptive\": false}", NULL, true, true, true},
    {"{\"method\": \"lookahead\", \"adaptive\": false, \"lookahead_window_size\": 5, \"lookahead_ngram_size\": 5, "
     "\"lookahead_verification_set_size\": 6}", NULL, true, false, false},
    {"{\"method\": \"medusa\", \"model\": \"%s\", \"adaptive\": false, \"num_speculative_tokens\": 12}", tiny_all.dir, true, true, false},
    {"{\"method\": \"redrafter\", \"model\": \"%s\", \"adaptive\": false, \"redrafter_num_beams\": 4, "
     "\"redrafter_draft_len_per_beam\": 3}", tiny_all.dir, true, true, false},
    {"{\"method\": \"eagle\", \"model\": \"%s\", \"adaptive\": false, \"num_speculative_tokens\": 3}", tiny_eagle_dir, true, true, true},
    {"{\"method\": \"eagle3\", \"model\": \"%s\", \"adaptive\": false, \"num_speculative_tokens\": 10, "
     "\"dynamic_tree_max_topK\": 3, \"max_draft_path_len\": 3}", tiny_eagle3_dir, true, true, false},
    {"{\"method\": \"mtp\", \"adaptive\": false, \"num_speculative_tokens\": 2}", NULL, true, true, true},
};
enum { TINY_METHODS = sizeof tiny_methods / sizeof *tiny_methods };

/* Its speculative_config; the caller frees it. */
static inline char *tiny_method_json(const tiny_method *m)
{
    return nrd_xasprintf(m->json, m->model);
}

static inline void tiny_methods_make(void)
{
    tiny_build(&tiny_all, tiny_llama, 16);
    tiny_write_medusa(tiny_all.dir);
    tiny_write_redrafter(tiny_all.dir);
    tiny_write_mtp(tiny_all.dir, 16);
    if (!mkdtemp(tiny_eagle_dir) || !mkdtemp(tiny_eagle3_dir)) {
        abort();
    }
    tiny_write_eagle(tiny_eagle_dir, tiny_eagle1, NULL, NULL, false);
    tiny_write_eagle(tiny_eagle3_dir, tiny_eagle3, NULL, NULL, false);
}

static inline void tiny_methods_remove(void)
{
    tiny_remove(&tiny_all);
    tiny_remove_files(tiny_eagle_dir);
    tiny_remove_files(tiny_eagle3_dir);
}

#endif
