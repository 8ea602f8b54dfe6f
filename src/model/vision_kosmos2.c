/* SPDX-License-Identifier: Apache-2.0
 * The tower of Kosmos-2 (Peng et al., 2023) as config.json and preprocessor_config.json describe it: CLIP's sees a square, and a few learned
 * queries read its states and themselves: what they see are the decoder's rows. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <string.h>

enum { START = 64003, END = 64004 /* of the published model */ };

bool nrd_vision_is_kosmos2(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "kosmos-2");
}

nrd_error *nrd_vision_read_kosmos2(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    const nrd_json *v = nrd_json_get(config, "vision_config"), *text = nrd_json_get(config, "text_config");
    nrd_vision_queries *x = &s->queries;

    s->has_class = s->latent = s->framed = true;
    NRD_TRY(nrd_vision_read_sizes(s, v, &(nrd_vision_usual){224, 14, 1024, 4096, 16, 24}, &s->n_layers));
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-5);
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", "quick_gelu", &s->act));
    NRD_TRY(nrd_vision_get_int(config, "latent_query_num", 64, 1, nrd_vision_n_states(s), &x->n)); /* rows have room where states had it */
    NRD_TRY(nrd_vision_get_int(text, "embed_dim", 2048, 1, 1 << 16, &x->hidden));
    NRD_TRY(nrd_vision_get_int(text, "attention_heads", 32, 1, x->hidden, &x->n_heads));
    NRD_TRY(nrd_vision_check_heads("text_config", x->hidden, x->n_heads));
    NRD_TRY(nrd_hf_int(config, "image_start_token_id", START, &s->start_token)); /* put there when a folder is converted */
    NRD_TRY(nrd_hf_int(config, "image_end_token_id", END, &s->end_token));
    NRD_TRY(nrd_vision_in_range("image_start_token_id", s->start_token, 0, INT32_MAX));
    NRD_TRY(nrd_vision_in_range("image_end_token_id", s->end_token, 0, INT32_MAX));
    s->image_token = s->start_token;
    return nrd_vision_read_input(s, processor);
}

nrd_error *nrd_vision_visit_latent(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    static const char *const names[] = {NRD_VISION_LATENT "x_attn.q_proj", NRD_VISION_LATENT "x_attn.k_proj", NRD_VISION_LATENT "x_attn.v_proj",
                                        NRD_VISION_LATENT "x_attn.out_proj"};
    const int64_t hidden = s->queries.hidden;

    NRD_TRY(nrd_vision_visit_pair(visit, user, "post_layernorm", s->hidden, 0, true));
    NRD_TRY(visit(user, NRD_VISION_LATENT "latent_query", s->queries.n, hidden));
    NRD_TRY(nrd_vision_visit_pair(visit, user, NRD_VISION_LATENT "dense", hidden, s->hidden, true));
    for (int i = 0; i < 4; i++) {
        NRD_TRY(nrd_vision_visit_pair(visit, user, names[i], i < 3 ? hidden : out_hidden, hidden, true));
    }
    return NULL;
}
