/* SPDX-License-Identifier: Apache-2.0
 * Networks by config.json of checkpoints and engines: ours say all, those of TensorRT-LLM's own converters leave out what
 * follows from the family. */
#include "model/arch.h"
#include "model/arch_rope.h"
#include "model/families/family.h"
#include "model/quant/quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Completes a spec whose common fields were read from a config.json without our section. */
static nrd_error *from_trtllm(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_arch *a = NULL;
    const nrd_arch *each;
    if (!strcmp(s->architecture, "MedusaForCausalLM")) { /* a Llama with heads, which model/medusa_heads.h reads */
        snprintf(s->architecture, sizeof s->architecture, "LlamaForCausalLM");
    } else if (!strcmp(s->architecture, "ReDrafterForCausalLM")) { /* likewise, model/redrafter_heads.h */
        snprintf(s->architecture, sizeof s->architecture, "%s",
                 nrd_json_get_str(c, "base_model_architecture", "LlamaForCausalLM"));
    }
    for (int i = 0; !a && (each = nrd_arch_at(i)) != NULL; i++) {
        a = !strcmp(each->architecture, s->architecture) ? each : NULL;
        for (int k = 0; k < 3 && !a; k++) {
            const char *n = each->hf_architectures[k];
            a = n && !strcmp(n, s->architecture) ? each : NULL;
        }
    }
    if (!a) {
        return nrd_arch_unknown("architecture", s->architecture, NULL);
    }
    if (!(a->traits & T_TRTLLM)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a '%s' checkpoint made by another converter cannot "
                          "be read; convert the original model with 'nereid convert'",
                          s->architecture);
    }
    if (s->quant_algo[0] && !nrd_quant_reads_checkpoint(s->quant_algo)) {
        return nrd_spec_foreign_quantization(s->quant_algo);
    }
    bool qk_norm = s->qk_norm, gated;
    nrd_arch_of_family(s, a);
    s->qk_norm = qk_norm || s->qk_norm;
    const char *act = nrd_json_get_str(c, "hidden_act", NULL);
    if (act && !nrd_act_parse(act, &s->act, &gated)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "hidden_act '%s' is not supported", act);
    }
    s->qkv_bias = nrd_json_get_bool(c, "attn_bias", s->qkv_bias);
    s->dense_bias = nrd_json_get_bool(c, "dense_bias", s->dense_bias);
    s->mlp_bias = nrd_json_get_bool(c, "mlp_bias", s->mlp_bias);
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    s->learned_positions = !strcmp(nrd_json_get_str(c, "position_embedding_type", ""),
                                   "learned_absolute");
    if (!s->learned_positions) {
        s->rope.kind = !strcmp(nrd_json_get_str(c, "position_embedding_type", ""), "rope_gptj")
                           ? NRD_ROPE_INTERLEAVED : NRD_ROPE_NEOX;
        s->rope.rotary_dim = s->head_dim;
        s->rope.base = nrd_json_get_num(c, "rotary_base", 1e4);
        NRD_TRY(nrd_arch_rope_scaling(nrd_json_get(c, "rotary_scaling"), c, s, &s->rope));
    }
    return NULL;
}

nrd_error *nrd_arch_from_checkpoint(nrd_model_spec *s, const nrd_json *config)
{
    NRD_TRY(nrd_model_spec_read(s, config));
    if (!nrd_json_get(config, "nereid")) {
        NRD_TRY(from_trtllm(s, config));
    }
    return nrd_model_spec_check(s);
}
