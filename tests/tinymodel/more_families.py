# SPDX-License-Identifier: Apache-2.0
"""More tiny models as in families.py: families with parts of attention, of activations and of routing that the others
have not got, and families whose classes transformers has not got, as others under their names."""

import math

import numpy as np

import families
import gemma3n
import gemma4
import recurrent
import weights
from families import (D, EXPERT_FF, EXPERTS, FF, HD, HEADS, L, LAYER, Q, RMS, SHARED_FF, VOCAB, Family, attention_part, config, ends,
                      experts, gated, glm, glm4_moe, linear, llama, named_experts, norm, olmoe, plain, qkv, shared_expert, stacked, table)

SOME = {"expert_count": EXPERTS, "expert_used_count": 2}
MANY_HEADS = {"kv": HEADS, **RMS}


def nemo_gpt(bias, gate=False, tied=False, rms=False, plus_one=False):
    """Megatron's GPT under the names of Megatron core."""
    at, head_norms = "decoder.layers.*", {"bias": not rms, "plus_one": plus_one}
    yield from table("embedding.word_embeddings", None, VOCAB, 1 / math.sqrt(D) if tied else 0.7)
    if tied:
        yield from table("embedding.position_embeddings", None, 256, 0.3)
    else:
        yield from linear("output_layer", None, D, VOCAB)
    yield from norm("decoder.final_layernorm", None, gain=2.0, **head_norms)
    yield from norm(f"{at}.input_layernorm", None, **head_norms)
    yield from linear(f"{at}.self_attention.linear_qkv", None, D, Q + 2 * HD, 1.4, bias)
    yield from linear(f"{at}.self_attention.linear_proj", None, Q, D, 1.5, bias)
    yield from norm(f"{at}.pre_mlp_layernorm", None, **head_norms)
    yield from linear(f"{at}.mlp.linear_fc1", None, D, FF, 1.4, bias)
    if gate:
        yield from linear(f"{at}.mlp.linear_fc1_up", None, D, FF, 1.0, bias)
    yield from linear(f"{at}.mlp.linear_fc2", None, FF, D, 1.5, bias)


def arcee():
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")
    yield from plain(f"{L}.mlp.up_proj", f"{L}.mlp.down_proj", False)


def bitnet():
    yield from llama()
    yield from norm(f"{L}.self_attn.attn_sub_norm", "blk.*.attn_sub_norm", Q)
    yield from norm(f"{L}.mlp.ffn_sub_norm", "blk.*.ffn_sub_norm", FF)


def nanochat():
    yield from ends()
    yield from qkv(f"{L}.self_attn", 1)
    yield from linear(f"{L}.self_attn.o_proj", None, Q, D, 1.5)
    yield from plain(f"{L}.mlp.fc1", f"{L}.mlp.fc2", False)


def apertus():
    yield from ends()
    yield from norm(f"{L}.attention_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1, qk=1.0)
    yield from norm(f"{L}.self_attn.q_norm", "blk.*.attn_q_norm", HD, gain=1.4)
    yield from norm(f"{L}.self_attn.k_norm", "blk.*.attn_k_norm", HD, gain=1.4)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.feedforward_layernorm", "blk.*.ffn_norm")
    yield from plain(f"{L}.mlp.up_proj", f"{L}.mlp.down_proj", False)
    for name, deviation, mean in (("alpha_p", 0.4, 0.3), ("alpha_n", 0.4, 0.5)):
        yield f"{L}.mlp.act_fn.{name}", None, (1,), deviation, mean
    yield f"{L}.mlp.act_fn.beta", None, (), 0.0, 0.5
    yield f"{L}.mlp.act_fn.eps", None, (), 0.0, -1e-6


class Apertus(Family):
    """GGUF files have the numbers of the activation in their metadata, and how far each pair of a head is slowed down."""

    def __init__(self):
        scaled = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64}
        super().__init__("apertus", config("ApertusForCausalLM", "apertus", **RMS, hidden_act="xielu", rope_scaling=scaled), apertus(),
                         ("apertus", {}))

    def gguf_tensors(self, tensors):
        for hf, theirs, *_ in self._each():
            if ".act_fn." not in hf:
                yield theirs, tensors[hf]
        c = self.config["rope_scaling"]
        wavelength = 2 * math.pi * 10000.0 ** (np.arange(0, HD, 2) / HD)
        old, low, high, factor = (c[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
        smooth = np.clip((old / wavelength - low) / (high - low), 0, 1)
        yield "rope_freqs.weight", (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)

    def gguf_keys(self):
        tensors = weights.build(self)
        yield from super().gguf_keys()
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            values = [tensors[f"{L}.mlp.act_fn.{name}".replace("*", str(i))] for i in range(self.n_layers)]
            yield f"xielu.{name}", "float32s", [float(x.reshape(-1)[0]) for x in values]


def llama_bias():
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1, True)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5, True)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")
    yield from gated(f"{L}.mlp")


def codegen():
    at = "transformer.h.*"
    yield from ends("transformer.wte", "transformer.ln_f", bias=True, head_bias=True)
    yield from norm(f"{at}.ln_1", None, bias=True)
    yield from linear(f"{at}.attn.qkv_proj", None, D, 3 * Q, 1.4)
    yield from linear(f"{at}.attn.out_proj", None, Q, D, 1.5)
    yield from plain(f"{at}.mlp.fc_in", f"{at}.mlp.fc_out", True, 4 * D)


def opt_350m():
    """Norms behind the sums, none at the end; an embedding of its own width."""
    at, width = "model.decoder.layers.*", D // 2
    yield "model.decoder.embed_tokens.weight", None, (VOCAB, width), 1 / math.sqrt(width), 0.0
    yield from families.table("model.decoder.embed_positions", None, 256 + 2, 0.1)
    yield from linear("model.decoder.project_in", None, width, D)
    yield from linear("model.decoder.project_out", None, D, width)
    yield from norm(f"{at}.self_attn_layer_norm", None, bias=True)
    yield from qkv(f"{at}.self_attn", HEADS, True)
    yield from linear(f"{at}.self_attn.out_proj", None, Q, D, 1.5, True)
    yield from norm(f"{at}.final_layer_norm", None, bias=True)
    yield from plain(f"{at}.fc1", f"{at}.fc2", True)


def hy_v3():
    yield from attention_part(q_norm=HD, k_norm=HD)
    yield from named_experts()
    yield f"{L}.mlp.e_score_correction_bias", None, (EXPERTS,), 0.2, 0.0
    yield from shared_expert(f"{L}.mlp.shared_experts", 2 * EXPERT_FF)
    yield from gated(f"{L}.mlp")


def sarvam_moe():
    yield from attention_part(q_norm=HD, k_norm=HD)
    yield from named_experts(8)
    yield f"{L}.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias", (8,), 0.2, 0.0
    yield from shared_expert(f"{L}.mlp.shared_experts", 2 * EXPERT_FF)
    yield from gated(f"{L}.mlp")


def afmoe():
    """Embeddings are scaled by the root of their size, and short."""
    at, each = f"{L}.mlp", f"{L}.mlp.experts.#"
    yield from families.table("model.embed_tokens", "token_embd", VOCAB, 0.5 / math.sqrt(D))
    yield from norm("model.norm", "output_norm", gain=2.0)
    yield from linear("lm_head", "output", D, VOCAB)
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1, qk=1.0)
    yield from norm(f"{L}.self_attn.q_norm", "blk.*.attn_q_norm", HD, gain=1.4)
    yield from norm(f"{L}.self_attn.k_norm", "blk.*.attn_k_norm", HD, gain=1.4)
    yield from linear(f"{L}.self_attn.gate_proj", "blk.*.attn_gate", D, Q, 1.5)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.post_attention_norm")
    yield from norm(f"{L}.pre_mlp_layernorm", "blk.*.ffn_norm")
    yield from norm(f"{L}.post_mlp_layernorm", "blk.*.post_ffw_norm")
    yield from experts(f"{each}.gate_proj", f"{each}.up_proj", f"{each}.down_proj", f"{at}.router.gate")
    yield f"{at}.expert_bias", "blk.*.exp_probs_b.bias", (EXPERTS,), 0.2, 0.0
    yield from shared_expert(f"{at}.shared_experts", 2 * EXPERT_FF)
    yield from gated(at)


def grok():
    """Embeddings are multiplied, and short; queries and keys long enough that the cap of the scores is felt."""
    at, each = f"{L}.moe_block", f"{L}.moe_block.experts.#"
    norms = (("model.norm", "output_norm", 2.0), (f"{L}.pre_attn_norm", "blk.*.attn_norm", 1.0),
             (f"{L}.post_attn_norm", "blk.*.attn_output_norm", 1.0), (f"{L}.pre_moe_norm", "blk.*.ffn_norm", 1.0),
             (f"{L}.post_moe_norm", "blk.*.layer_output_norm", 1.0))
    yield from families.table("model.embed_tokens", "token_embd", VOCAB, 0.5 / math.sqrt(D))
    for hf, gguf, gain in norms:
        yield f"{hf}.scale", f"{gguf}.weight", (D,), 0.2 * gain, gain
    yield from qkv(f"{L}.attn", 1, qk=2.0)
    yield from linear(f"{L}.attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from experts(f"{each}.linear", f"{each}.linear_v", f"{each}.linear_1", f"{at}.gate")


def arctic():
    at, each = f"{L}.residual_mlp", f"{L}.block_sparse_moe.experts.#"
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.residual_layernorm", "blk.*.ffn_norm")
    yield from linear(f"{at}.w1", "blk.*.ffn_gate", D, D, 1.5)
    yield from linear(f"{at}.w3", "blk.*.ffn_up", D, D)
    yield from linear(f"{at}.w2", "blk.*.ffn_down", D, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm_exps")
    yield from experts(f"{each}.w1", f"{each}.w3", f"{each}.w2", f"{L}.block_sparse_moe.gate")


def cohere2_moe(shared):
    yield from ends(tied=True)
    yield from norm(f"{L}.input_layernorm", None)
    yield from qkv(f"{L}.self_attn", 1)
    yield from linear(f"{L}.self_attn.o_proj", None, Q, D, 1.5)
    yield from named_experts(ff=FF)
    if shared:
        yield from shared_expert(f"{L}.mlp.shared_experts", shared * FF)
        yield from gated(f"{L}.mlp")


def exaone():
    at = "transformer.h.*"
    yield from ends("transformer.wte", "transformer.ln_f")
    yield from norm(f"{at}.ln_1", "blk.*.attn_norm")
    yield from qkv(f"{at}.attn.attention", 1)
    yield from linear(f"{at}.attn.attention.out_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{at}.ln_2", "blk.*.ffn_norm")
    yield from linear(f"{at}.mlp.c_fc_0", "blk.*.ffn_gate", D, FF, 1.5)
    yield from linear(f"{at}.mlp.c_fc_1", "blk.*.ffn_up", D, FF)
    yield from linear(f"{at}.mlp.c_proj", "blk.*.ffn_down", FF, D, 1.5)


def with_late_norms():
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1, qk=1.0)
    yield from norm(f"{L}.self_attn.query_layernorm", "blk.*.attn_q_norm", HD, gain=1.4)
    yield from norm(f"{L}.self_attn.key_layernorm", "blk.*.attn_k_norm", HD, gain=1.4)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")


def hunyuan_dense():
    yield from with_late_norms()
    yield from gated(f"{L}.mlp")


def hunyuan_moe():
    each = f"{L}.mlp.experts.#"
    yield from with_late_norms()
    yield from experts(f"{each}.gate_proj", f"{each}.up_proj", f"{each}.down_proj", f"{L}.mlp.gate.wg", EXPERTS, FF)
    yield from shared_expert(f"{L}.mlp.shared_mlp", FF)


def with_all_biases():
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1, True)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5, True)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")
    yield from linear(f"{L}.mlp.gate_proj", "blk.*.ffn_gate", D, FF, 1.5, True)
    yield from linear(f"{L}.mlp.up_proj", "blk.*.ffn_up", D, FF, 1.0, True)
    yield from linear(f"{L}.mlp.down_proj", "blk.*.ffn_down", FF, D, 1.5, True)


def ernie_moe():
    yield from attention_part()
    yield from named_experts()
    yield f"{L}.mlp.moe_statics.e_score_correction_bias", "blk.*.exp_probs_b.bias", (1, EXPERTS), 0.1, 0.0
    yield from shared_expert(f"{L}.mlp.shared_experts", 2 * EXPERT_FF)
    yield from gated(f"{L}.mlp")


def minimax_m2():
    at = f"{L}.block_sparse_moe"
    yield from attention_part(q_norm=Q, k_norm=HD)
    yield from experts(f"{at}.experts.#.w1", f"{at}.experts.#.w3", f"{at}.experts.#.w2", f"{at}.gate", EXPERTS, FF)
    yield f"{at}.e_score_correction_bias", "blk.*.exp_probs_b.bias", (EXPERTS,), 0.2, 0.0


def dots1(n):
    yield from attention_part(q_norm=HD, k_norm=HD)
    yield from named_experts(n)
    yield f"{L}.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias", (n,), 0.2, 0.0
    yield from shared_expert(f"{L}.mlp.shared_experts", 2 * EXPERT_FF)
    yield from gated(f"{L}.mlp")


def solar_open(n):
    yield from attention_part()
    yield from named_experts(n)
    yield f"{L}.mlp.gate.e_score_correction_bias", None, (n,), 0.2, 0.0
    yield from shared_expert(f"{L}.mlp.shared_experts", 2 * EXPERT_FF)


def dbrx():
    """An expert's matrices lie below each other; those behind the activation are kept as [in, out]."""
    at = "transformer.blocks.*"
    yield from ends("transformer.wte", "transformer.norm_f")
    yield from norm(f"{at}.norm_attn_norm.norm_1", "blk.*.attn_norm")
    yield from linear(f"{at}.norm_attn_norm.attn.Wqkv", "blk.*.attn_qkv", D, Q + 2 * HD, 1.4)
    yield from linear(f"{at}.norm_attn_norm.attn.out_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{at}.norm_attn_norm.norm_2", "blk.*.attn_output_norm")
    yield from linear(f"{at}.ffn.router.layer", "blk.*.ffn_gate_inp", D, EXPERTS, 2.5)
    shape = (EXPERTS * EXPERT_FF, D)
    yield f"{at}.ffn.experts.mlp.w1", "blk.*.ffn_gate_exps.weight", shape, 1.5 / math.sqrt(D), 0.0
    yield f"{at}.ffn.experts.mlp.v1", "blk.*.ffn_up_exps.weight", shape, 1 / math.sqrt(D), 0.0
    yield f"{at}.ffn.experts.mlp.w2", "blk.*.ffn_down_exps.weight", shape, 2 / math.sqrt(EXPERT_FF), 0.0


def olmo():
    yield from families.table("model.embed_tokens", "token_embd", VOCAB, 0.7)
    yield from qkv(f"{L}.self_attn", 1)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from gated(f"{L}.mlp")
    yield from linear("lm_head", "output", D, VOCAB, 2.0)


def mpt():
    at = "transformer.blocks.*"
    yield from ends("transformer.wte", "transformer.norm_f", tied=True)
    yield from norm(f"{at}.norm_1", "blk.*.attn_norm")
    yield from linear(f"{at}.attn.Wqkv", "blk.*.attn_qkv", D, 3 * Q, 1.4)
    yield from linear(f"{at}.attn.out_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{at}.norm_2", "blk.*.ffn_norm")
    yield from plain(f"{at}.ffn.up_proj", f"{at}.ffn.down_proj", False, 4 * D)


def head_norms():
    """Command R+: a norm for each head."""
    yield from llama(tied=True, two_norms=False)
    for name, n in (("q", HEADS), ("k", 1)):
        yield f"{L}.self_attn.{name}_norm.weight", f"blk.*.attn_{name}_norm.weight", (n, HD), 0.3, 1.2


def stablelm_12b():
    yield from llama(norm_bias=True, two_norms=False)
    for name, n in (("q", HEADS), ("k", 1)):
        for head in range(n):
            yield f"{L}.self_attn.{name}_layernorm.norms.{head}.weight", None, (HD,), 0.3, 1.2


def persimmon(qk=True):
    yield from ends(bias=True, last="model.final_layernorm")
    yield from norm(f"{L}.input_layernorm", None, bias=True)
    yield from linear(f"{L}.self_attn.query_key_value", None, D, 3 * Q, 1.4, True)
    for name in ("q", "k") if qk else ():
        yield f"{L}.self_attn.{name}_layernorm.weight", None, (HD,), 0.3, 1.2
        yield f"{L}.self_attn.{name}_layernorm.bias", None, (HD,), 0.4, 0.0
    yield from linear(f"{L}.self_attn.dense", None, Q, D, 1.5, True)
    yield from norm(f"{L}.post_attention_layernorm", None, bias=True)
    yield from plain(f"{L}.mlp.dense_h_to_4h", f"{L}.mlp.dense_4h_to_h", True)


def rows():
    """As families.rows()."""
    yield "llama-mha", config("LlamaForCausalLM", "llama", **MANY_HEADS), llama(HEADS), None
    yield "qwen2-mha", config("Qwen2ForCausalLM", "qwen2", **MANY_HEADS), llama(HEADS, qkv_bias=True), None
    yield "llama-bias", config("LlamaForCausalLM", "llama", **RMS, attention_bias=True), llama_bias(), ("llama", {"pairs": True})
    yield "cwm", config("CwmForCausalLM", "cwm", 4, **RMS, head_dim=HD, sliding_window=12,
                        layer_types=["full_attention"] + 3 * ["sliding_attention"],
                        rope_scaling={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                      "original_max_position_embeddings": 64}), llama(), None
    yield "helium", config("HeliumForCausalLM", "helium", **RMS, head_dim=HD), llama(), None
    yield "jais2", config("Jais2ForCausalLM", "jais2", **LAYER, hidden_act="relu2", head_dim=HD, attention_bias=True,
                          mlp_bias=True), families.plain_decoder("up_proj", "down_proj", True), None
    corrected = {"num_experts_per_tok": 3, "moe_intermediate_size": EXPERT_FF, "norm_topk_prob": True, "n_group": 2,
                 "topk_group": 1, "routed_scaling_factor": 1.8}
    yield "solar_open", config("SolarOpenForCausalLM", "solar_open", **RMS, **corrected, head_dim=HD, n_routed_experts=8,
                               n_shared_experts=2), solar_open(8), None
    yield "exaone_moe", config("ExaoneMoeForCausalLM", "exaone_moe", 4, **RMS, **corrected, head_dim=HD, num_experts=8,
                               num_shared_experts=2, first_k_dense_replace=1, sliding_window=12,
                               sliding_window_pattern="LLLG", layer_types=families.SLIDING_4), dots1(8), (
        "exaone-moe", {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": EXPERT_FF, "expert_shared_count": 2,
                       "expert_group_count": 2, "expert_group_used_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.8,
                       "leading_dense_block_count": 1, "attention.sliding_window": 12, "rope.scaling.type": "none"})
    yield "granite-minicpm", config("GraniteForCausalLM", "granite", **RMS, embedding_multiplier=3.0,
                                    residual_multiplier=1.4 / math.sqrt(3), attention_multiplier=1 / math.sqrt(HD),
                                    logits_scaling=D / 48), llama(), None
    yield "nanochat", config("NanoChatForCausalLM", "nanochat", **RMS, hidden_act="relu2", final_logit_softcapping=6.0), [
        t for t in nanochat() if t[0] != "model.norm.weight"], None
    yield "bitnet", config("BitNetForCausalLM", "bitnet", **RMS, hidden_act="relu2"), bitnet(), ("bitnet-b1.58", {})
    yield "arcee", config("ArceeForCausalLM", "arcee", **RMS, hidden_act="relu2", head_dim=HD), arcee(), (
        "arcee", {"pairs": True})
    yield "exaone", config("ExaoneForCausalLM", "exaone", layer_norm_epsilon=1e-5, num_layers=3,
                           activation_function="silu"), exaone(), ("exaone", {})
    alpha = 50.0
    rope = {"type": "dynamic", "alpha": alpha, "factor": 1.0}
    stretched = {"rope.freq_base": 10000.0 * alpha ** (HD / (HD - 2))}
    yield "hunyuan_v1_dense", config("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", **RMS, head_dim=HD,
                                     rope_scaling=rope), hunyuan_dense(), ("hunyuan-dense", stretched)
    yield "hunyuan_v1_moe", config("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", **RMS, head_dim=HD, num_experts=EXPERTS,
                                   moe_topk=3, rope_scaling=rope), hunyuan_moe(), (
        "hunyuan-moe", {**SOME, **stretched, "expert_used_count": 3, "expert_shared_feed_forward_length": FF})
    yield "ernie4_5", config("Ernie4_5ForCausalLM", "ernie4_5", **RMS, head_dim=HD, use_bias=True), with_all_biases(), (
        "ernie4_5", {})
    yield "ernie4_5_moe", config("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", **RMS, use_bias=False, moe_num_experts=EXPERTS,
                                 moe_k=3, moe_intermediate_size=EXPERT_FF, moe_num_shared_experts=2,
                                 moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=1), ernie_moe(), (
        "ernie4_5-moe", {**SOME, "expert_used_count": 3, "expert_feed_forward_length": EXPERT_FF,
                         "expert_shared_feed_forward_length": 2 * EXPERT_FF})
    yield "internlm3", config("InternLM3ForCausalLM", "internlm3", **RMS, head_dim=HD, qkv_bias=True, bias=True), (
        with_all_biases()), None
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.4}
    yield "ministral3", config("Ministral3ForCausalLM", "ministral3", **RMS, head_dim=HD, sliding_window=None,
                               rope_parameters=yarn), llama(), (
        "mistral3", {"pairs": True, "attention.temperature_scale": 0.4, "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
                     "rope.scaling.original_context_length": 16, "rope.scaling.yarn_log_multiplier": 1.0})
    yield "dots1", config("Dots1ForCausalLM", "dots1", **RMS, head_dim=HD, n_routed_experts=8, n_shared_experts=2, n_group=2,
                          topk_group=1, num_experts_per_tok=3, moe_intermediate_size=EXPERT_FF, norm_topk_prob=True,
                          routed_scaling_factor=1.8, first_k_dense_replace=1, sliding_window=None), dots1(8), (
        "dots1", {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": EXPERT_FF, "expert_shared_count": 2,
                  "expert_group_count": 2, "expert_group_used_count": 1, "expert_weights_norm": True,
                  "expert_weights_scale": 1.8})
    yield "minimax_m2", config("MiniMaxM2ForCausalLM", "minimax_m2", **RMS, head_dim=HD, rotary_dim=HD // 2,
                               num_local_experts=EXPERTS, num_experts_per_tok=3), minimax_m2(), (
        "minimax-m2", {**SOME, "expert_used_count": 3, "expert_feed_forward_length": FF, "rope.dimension_count": HD // 2})
    yield "olmo", config("OlmoForCausalLM", "olmo", clip_qkv=1.1), olmo(), (
        "olmo", {"pairs": True, "layer_norm": True, "attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 1.1})
    yield "olmoe-clip", config("OlmoeForCausalLM", "olmoe", **RMS, num_experts=EXPERTS, num_experts_per_tok=2,
                               norm_topk_prob=False, clip_qkv=1.1, output_router_logits=False, pad_token_id=0), olmoe(), None
    yield "mpt-clip", {"architectures": ["MPTForCausalLM"], "model_type": "mpt", "d_model": D, "n_heads": HEADS,
                       "n_layers": 3, "max_seq_len": 256, "expansion_ratio": 4, "vocab_size": VOCAB, "no_bias": True,
                       "attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": 1.1, "attn_impl": "torch"}}, mpt(), (
        "mpt", {"layer_norm": True, "attention.layer_norm_epsilon": 1e-5, "attention.max_alibi_bias": 8.0,
                "attention.clamp_kqv": 1.1})
    yield "cohere-plus", config("CohereForCausalLM", "cohere", **LAYER, logit_scale=0.4, use_qk_norm=True,
                                tie_word_embeddings=True, pad_token_id=0), head_norms(), (
        "command-r", {"logit_scale": 0.4, "layer_norm": True})
    few = {"kv": ..., "hidden_act": "relu2", "partial_rotary_factor": 0.5, "pad_token_id": 0}
    yield "persimmon", config("PersimmonForCausalLM", "persimmon", **LAYER, **few), persimmon(), None
    yield "persimmon-plain", config("PersimmonForCausalLM", "persimmon", **LAYER, **few, qk_layernorm=False), persimmon(False), None
    yield "stablelm-12b", config("StableLmForCausalLM", "stablelm", **LAYER, use_parallel_residual=True, qk_layernorm=True,
                                 partial_rotary_factor=0.25), stablelm_12b(), None
    yield "codegen", {"architectures": ["CodeGenForCausalLM"], "model_type": "codegen", "n_embd": D, "n_head": HEADS, "n_layer": 3,
                      "n_positions": 256, "rotary_dim": 8, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
                      "vocab_size": VOCAB, "tie_word_embeddings": False}, codegen(), None
    yield "opt-350m", config("OPTForCausalLM", "opt", kv=..., intermediate_size=..., ffn_dim=FF, do_layer_norm_before=False,
                             word_embed_proj_dim=D // 2, activation_function="relu", tie_word_embeddings=True, pad_token_id=0,
                             rope_theta=...), opt_350m(), None
    yield "hy_v3", config("HYV3ForCausalLM", "hy_v3", **RMS, head_dim=HD, num_experts=EXPERTS, num_experts_per_tok=3,
                          num_shared_experts=2, moe_intermediate_size=EXPERT_FF, router_scaling_factor=1.8,
                          mlp_layer_types=["dense", "sparse", "sparse"]), hy_v3(), None
    yield "sarvam_moe", config("SarvamMoEForCausalLM", "sarvam_moe", **RMS, **corrected, head_dim=HD, n_routed_experts=8, n_shared_experts=2,
                               first_k_dense_replace=1, partial_rotary_factor=0.5, pad_token_id=0), sarvam_moe(), (
        "bailingmoe2", {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": EXPERT_FF, "expert_shared_count": 2,
                        "expert_group_count": 2, "expert_group_used_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.8,
                        "expert_shared_feed_forward_length": 2 * EXPERT_FF, "stacked": True, "rope.dimension_count": HD // 2})
    yield "afmoe", config("AfmoeForCausalLM", "afmoe", 5, **RMS, head_dim=HD, num_experts=EXPERTS, num_experts_per_tok=3,
                          num_shared_experts=2, moe_intermediate_size=EXPERT_FF, route_scale=1.8, num_dense_layers=1, sliding_window=12,
                          global_attn_every_n_layers=4, mup_enabled=True), afmoe(), (
        "afmoe", {**SOME, "expert_used_count": 3, "expert_feed_forward_length": EXPERT_FF, "expert_shared_count": 2,
                  "expert_weights_norm": True, "expert_weights_scale": 1.8, "attention.sliding_window": 12})
    yield "grok", config("Grok1ModelForCausalLM", "grok-1", **RMS, intermediate_size=EXPERT_FF, num_experts=EXPERTS, num_experts_per_tok=3,
                         embedding_multiplier_scale=8.4, output_multiplier_scale=0.6, attn_output_multiplier=0.21, max_attn_value=3.0,
                         tie_word_embeddings=True, rope_theta=...), grok(), (
        "grok", {**SOME, "expert_used_count": 3, "embedding_scale": 8.4, "logit_scale": 0.6, "attention.output_scale": 0.21,
                 "attn_logit_softcapping": 3.0})
    nemo = {"layer_norm_eps": 1e-5, "head_dim": HD}
    yield "nemo_gpt", config("NemoGPTForCausalLM", "nemo_gpt", **nemo, hidden_act="gelu_new", use_bias=True, tie_word_embeddings=True,
                             rope_theta=...), nemo_gpt(True, tied=True), None
    yield "nemo_gpt-rms", config("NemoGPTForCausalLM", "nemo_gpt", **nemo, hidden_act="silu", gated_mlp=True, use_bias=False, use_rope=True,
                                 use_rms_norm=True, rope_scaling={"rope_type": "linear", "factor": 2.0}), nemo_gpt(False, True, rms=True), None
    yield "nemo_gpt_1p", config("NemoGPTForCausalLM", "nemo_gpt_1p", **nemo, hidden_act="relu2", use_bias=False, use_rope=True,
                                partial_rotary_factor=0.5), nemo_gpt(False, plus_one=True), None
    yield "arctic", config("ArcticForCausalLM", "arctic", **RMS, intermediate_size=EXPERT_FF, num_local_experts=EXPERTS,
                           num_experts_per_tok=2, moe_layer_frequency=1, parallel_attn_mlp_res=True), arctic(), (
        "arctic", {**SOME, "feed_forward_length": EXPERT_FF, "pairs": True})
    command = {"logit_scale": 0.4, "head_dim": HD, "sliding_window": 12, "tie_word_embeddings": True, "pad_token_id": 0,
               "num_experts": EXPERTS, "num_experts_per_tok": 3}
    yield "cohere2_moe", config("Cohere2MoeForCausalLM", "cohere2_moe", 5, **LAYER, **command, num_shared_experts=2,
                                first_k_dense_replace=1, prefix_dense_intermediate_size=FF, expert_selection_fn="sigmoid",
                                shared_expert_combination_strategy="average"), cohere2_moe(2), None
    yield "cohere2_moe-rms", config("Cohere2MoeForCausalLM", "cohere2_moe", 4, **RMS, **command, layer_types=families.SLIDING_4,
                                    expert_selection_fn="softmax"), cohere2_moe(0), None
    yield "falcon-rw", config("FalconForCausalLM", "falcon", layer_norm_epsilon=1e-5, bias=True, alibi=True,
                              parallel_attn=False, multi_query=False, new_decoder_architecture=False,
                              tie_word_embeddings=True, kv=..., intermediate_size=...), stacked(
        "transformer.h.*", "transformer.word_embeddings", "transformer.ln_f", attn="self_attention"), None


class Dbrx(Family):
    def __init__(self):
        c = {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "d_model": D, "n_heads": HEADS, "n_layers": 3,
             "max_seq_len": 256, "vocab_size": VOCAB, "tie_word_embeddings": False, "rope_theta": 20000.0,
             "attn_config": {"kv_n_heads": 1, "clip_qkv": 1.1, "rope_theta": 20000.0},
             "ffn_config": {"ffn_hidden_size": EXPERT_FF, "moe_num_experts": EXPERTS, "moe_top_k": 3,
                            "moe_normalize_expert_weights": 1.0, "ffn_act_fn": {"name": "silu"}, "hidden_size": D}}
        super().__init__("dbrx", c, dbrx(), ("dbrx", {
            **SOME, "expert_used_count": 3, "feed_forward_length": EXPERT_FF, "attention.head_count_kv": 1,
            "rope.freq_base": 20000.0, "attention.clamp_kqv": 1.1, "layer_norm": True, "attention.layer_norm_epsilon": 1e-5}))

    def gguf_tensors(self, tensors):
        for hf, theirs, *_ in self._each():
            x = tensors[hf]
            if ".experts." in hf:
                x = x.reshape(EXPERTS, EXPERT_FF, D)
                x = np.ascontiguousarray(x.swapaxes(1, 2)) if hf.endswith("w2") else x
            yield theirs, x


class Llama4(Family):
    """A dense layer between those with experts. `chunk`: so short that prompts have several, or what GGUF files mean."""

    mlp = ".feed_forward."

    def __init__(self, name, chunk, steps, beta):
        c = config("Llama4ForCausalLM", "llama4_text", 8, **RMS, head_dim=HD, num_local_experts=EXPERTS, num_experts_per_tok=1,
                   interleave_moe_layer_step=2, intermediate_size=EXPERT_FF, intermediate_size_mlp=FF,
                   attention_chunk_size=chunk, no_rope_layers=[], use_qk_norm=True, attn_temperature_tuning=True,
                   floor_scale=steps, attn_scale=beta)
        super().__init__(name, c, self.parts(), ("llama4", {
            "expert_count": EXPERTS, "expert_used_count": 1, "expert_feed_forward_length": EXPERT_FF,
            "feed_forward_length": FF, "interleave_moe_layer_step": 2}) if chunk == 8192 else None)

    @staticmethod
    def parts():
        at = f"{L}.feed_forward"
        yield from attention_part()
        yield from linear(f"{at}.router", "blk.*.ffn_gate_inp", D, EXPERTS, 2.5)
        shape, gguf = (EXPERTS, D, 2 * EXPERT_FF), "blk.*.ffn_gate_up_exps.weight"
        yield f"{at}.experts.gate_up_proj", gguf, shape, 1.5 / math.sqrt(D), 0.0
        shape, gguf = (EXPERTS, EXPERT_FF, D), "blk.*.ffn_down_exps.weight"
        yield f"{at}.experts.down_proj", gguf, shape, 3 / math.sqrt(EXPERT_FF), 0.0
        yield from shared_expert(f"{at}.shared_expert", EXPERT_FF)
        yield from gated(at)

    def gguf_tensors(self, tensors):
        for hf, theirs, *_ in self._each():
            x = tensors[hf].swapaxes(1, 2) if ".experts." in hf else tensors[hf]
            if "gate_up" in theirs:
                for part, half in zip(("gate", "up"), np.split(x, 2, axis=1)):
                    yield theirs.replace("gate_up", part), np.ascontiguousarray(half)
            else:
                yield theirs, np.ascontiguousarray(x)


class Mllama(Family):
    """Llama 3.2 Vision as it is published: the decoder's sizes and names are inside of another model's. Two of its layers
    read pictures; their weights are there and must not be looked at."""

    def __init__(self):
        c = config("MllamaForConditionalGeneration", "mllama", 6, **RMS, rope_theta=500000.0, cross_attention_layers=[1, 4],
                   rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 64})
        super().__init__("mllama", c, self.parts(), None)

    @staticmethod
    def parts():
        for hf, _, shape, *rest in llama():  # the embedding has rows for the picture's token and seven more
            yield hf, None, (VOCAB + 8, D) if "embed_tokens" in hf else shape, *rest
        at = f"{L}.cross_attn"
        for name, rows in (("q", Q), ("k", HD), ("v", HD)):
            yield from linear(f"{at}.{name}_proj", None, D, rows)
        yield from linear(f"{at}.o_proj", None, Q, D)
        yield from norm(f"{at}.q_norm", None, HD)
        yield from norm(f"{at}.k_norm", None, HD)
        for gate in ("attn", "mlp"):
            yield f"{at}_{gate}_gate", None, (1,), 0.2, 1.0

    def _is_there(self, hf, layer):
        reads_pictures = layer in self.config["cross_attention_layers"]
        return (".self_attn." not in hf or not reads_pictures) and (".cross_attn" not in hf or reads_pictures)

    @staticmethod
    def stored(tensors):
        return {f"language_model.{name}": x for name, x in tensors.items()}

    @staticmethod
    def published(values):
        """config.json of flat values."""
        outer = {k: values[k] for k in ("architectures", "model_type", "torch_dtype")}
        text = {k: v for k, v in values.items() if k != "architectures"}
        return {**outer, "image_token_index": VOCAB, "text_config": {**text, "model_type": "mllama_text_model"},
                "vision_config": {"model_type": "mllama_vision_model"}}


class Renamed(Family):
    """A family of these tables under the names of one whose class transformers has not got: the same results.
    `joined` names what a file keeps in one matrix, from the other's names."""

    def __init__(self, name, of, config_json, table_rows, gguf, names, joined):
        super().__init__(name, config_json, table_rows, gguf)
        self.seed, self.names, self.joined = of, names, joined

    def stored(self, tensors):
        out = {}
        for name, x in tensors.items():
            for parts, whole in self.joined.items():
                if any(f".{part}." in name for part in parts):
                    if f".{parts[0]}." in name:
                        x = np.concatenate([tensors[name.replace(parts[0], part)] for part in parts])
                        name = name.replace(parts[0], whole)
                    else:
                        name = None
                    break
            if name is None:
                continue
            for ours, theirs in self.names.items():
                name = name.replace(ours, theirs)
            out[name] = x
        return out


class OlmoHybridOwn(Renamed):
    """As published: other names of norms in layers with a state, and a convolution each of q, k and v."""

    def stored(self, tensors):
        out = {}
        for name, x in tensors.items():
            layer = int(name.split(".")[2]) if ".layers." in name else None
            if layer is not None and self.config["layer_types"][layer] == "linear_attention":
                name = name.replace("input_layernorm", "attention_layer_norm")
                name = name.replace("post_attention_layernorm", "feedforward_layer_norm")
            if ".conv1d." in name:
                for part, rows in zip("qkv", np.split(x, [recurrent.KEYS, 2 * recurrent.KEYS])):
                    out[name.replace("conv1d", f"{part}_conv1d")] = np.ascontiguousarray(rows)
            else:
                out[name] = x
        return out


class SantaCoder(Renamed):
    """StarCoder's network under GPT-2's name: matrices as [in, out], the queries' apart from that of the one key and value."""

    def __init__(self):
        like = families.FAMILIES["gpt_bigcode"]
        own = {k: v for k, v in like.config.items() if k != "multi_query"}
        super().__init__("santacoder", "gpt_bigcode", {**own, "architectures": ["GPT2LMHeadCustomModel"], "model_type": "gpt2",
                                                       "attention_head_type": "multiquery"}, like.rows, None, {}, {})

    def stored(self, tensors):
        out = {}
        for name, x in tensors.items():
            x = x.T if x.ndim == 2 and ".h." in name else x
            if ".c_attn." in name:
                for part, y in zip(("q_attn", "kv_attn"), np.split(x, [Q], axis=-1)):
                    out[name.replace("c_attn", part)] = np.ascontiguousarray(y)
            else:
                out[name] = np.ascontiguousarray(x)
        return out


JOINED = ("q_proj", "k_proj", "v_proj")


class JoinedGguf(Renamed):
    """GGUF files of which have q, k and v in one."""

    def gguf_tensors(self, tensors):
        for hf, theirs, *_ in self._each():
            if "q_proj" in hf:
                yield theirs.replace("attn_q", "attn_qkv"), np.concatenate([tensors[hf.replace("q_proj", p)] for p in JOINED])
            elif "k_proj" not in hf and "v_proj" not in hf:
                yield theirs, tensors[hf]


def renamed():
    hy = {k: v for name, c, *_ in rows() if name == "hy_v3" for k, v in c.items()}
    yield Renamed("hy_v3-own", "hy_v3", hy, hy_v3(), None, {
        "mlp.gate.weight": "mlp.router.gate.weight", "mlp.e_score_correction_bias": "mlp.expert_bias",
        "mlp.shared_experts": "mlp.shared_mlp"}, {})
    ling = config("BailingMoeV2ForCausalLM", "bailing_moe", **RMS, head_dim=HD, num_experts=8, num_experts_per_tok=3, num_shared_experts=1,
                  moe_intermediate_size=EXPERT_FF, moe_shared_expert_intermediate_size=2 * EXPERT_FF, n_group=2, topk_group=1,
                  norm_topk_prob=True, routed_scaling_factor=1.8, first_k_dense_replace=1, partial_rotary_factor=0.5, use_qk_norm=True,
                  score_function="sigmoid", moe_router_enable_expert_bias=True, use_bias=False, use_qkv_bias=False)
    yield Renamed("bailing_moe", "sarvam_moe", ling, sarvam_moe(), None, {
        "model.embed_tokens": "model.word_embeddings", "self_attn.o_proj": "attention.dense", "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm", "self_attn": "attention",
        "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias"}, {JOINED: "query_key_value"})
    yield SantaCoder()
    yield Renamed("internlm", "llama-bias", config("InternLMForCausalLM", "internlm", **RMS, bias=True), llama_bias(), None, {}, {})
    yield Renamed("skywork", "llama-odd", config("SkyworkForCausalLM", "skywork", **RMS), llama(), None, {}, {})
    yield OlmoHybridOwn("olmo_hybrid-own", "olmo_hybrid", families.FAMILIES["olmo_hybrid"].config, recurrent.olmo_hybrid(), None, {}, {})
    yield Renamed("xverse", "llama-odd", config("XverseForCausalLM", "xverse", **RMS), llama(), ("xverse", {"pairs": True}), {}, {})
    yield Renamed("minicpm", "granite-minicpm", config("MiniCPMForCausalLM", "minicpm", **RMS, scale_emb=3.0, scale_depth=1.4,
                                                       dim_model_base=48), llama(), (
        "minicpm", {"pairs": True, "embedding_scale": 3.0, "residual_scale": 1.4 / math.sqrt(3), "logit_scale": D / 48}), {}, {})
    chatglm = {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "hidden_size": D, "num_layers": 3,
               "num_attention_heads": HEADS, "kv_channels": HD, "multi_query_attention": True, "multi_query_group_num": 1,
               "ffn_hidden_size": FF, "padded_vocab_size": VOCAB, "vocab_size": VOCAB, "seq_length": 256, "layernorm_epsilon": 1e-5,
               "add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True, "post_layer_norm": True, "rope_ratio": 1}
    yield JoinedGguf("chatglm", "glm", chatglm, glm(False), (
        "chatglm", {"rope.dimension_count": HD // 2, "attention.head_count_kv": 1, "feed_forward_length": FF,
                    "attention.layer_norm_rms_epsilon": 1e-5}), {
        "model.embed_tokens": "transformer.embedding.word_embeddings", "model.layers": "transformer.encoder.layers",
        "model.norm": "transformer.encoder.final_layernorm", "lm_head": "transformer.output_layer",
        "self_attn.o_proj": "self_attention.dense", "self_attn": "self_attention", "gate_up_proj": "dense_h_to_4h",
        "down_proj": "dense_4h_to_h"}, {JOINED: "query_key_value"})
    qwen = {"architectures": ["QWenLMHeadModel"], "model_type": "qwen", "hidden_size": D, "num_hidden_layers": 3,
            "num_attention_heads": HEADS, "kv_channels": HD, "intermediate_size": 2 * FF, "vocab_size": VOCAB,
            "layer_norm_epsilon": 1e-5, "max_position_embeddings": 512, "seq_length": 256, "rotary_emb_base": 10000,
            "rotary_pct": 1.0, "use_dynamic_ntk": True, "use_logn_attn": True, "no_bias": True, "tie_word_embeddings": False}
    yield JoinedGguf("qwen", "qwen2-mha", qwen, llama(HEADS, qkv_bias=True), ("qwen", {}), {
        "model.embed_tokens": "transformer.wte", "model.layers": "transformer.h", "model.norm": "transformer.ln_f",
        "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj", "self_attn": "attn",
        "mlp.gate_proj": "mlp.w2", "mlp.up_proj": "mlp.w1", "mlp.down_proj": "mlp.c_proj"}, {JOINED: "c_attn"})
    yield Renamed("baichuan", "llama-mha", config("BaiChuanForCausalLM", "baichuan", kv=..., **RMS), llama(HEADS),
                  ("baichuan", {"pairs": True}), {}, {JOINED: "W_pack"})
    large = config("BaichuanForCausalLM", "baichuan", kv=..., max_position_embeddings=..., model_max_length=256,
                   z_loss_weight=0, **RMS)
    yield Renamed("baichuan2-13b", "baichuan2-13b", large, llama(HEADS), None, {}, {JOINED: "W_pack"})


FAMILIES = {**families.FAMILIES, **{name: Family(name, *rest) for name, *rest in rows()}, "dbrx": Dbrx(), "apertus": Apertus(), "mllama": Mllama(), "gemma3n": gemma3n.Gemma3n(), **gemma4.MODELS,
            "llama4": Llama4("llama4", 10, 7, 0.3), "llama4-8k": Llama4("llama4-8k", 8192, 8192, 0.1),
            **{family.name: family for family in renamed()}}
