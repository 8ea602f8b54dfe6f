# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the families that differ from Llama in names and flags: a table of tensors each.

A row of the table: the tensor's name in the Hugging Face model, its name in a GGUF file (None: the file has
none), its shape, the deviation and mean of its values (specs.py says why they are so large). '*' is the layer.
Odd numbers of heads, a hidden size that is no power of two, one KV head where the family may have fewer.
"""

import math

import numpy as np

import recurrent

D, HEADS, HD, FF, VOCAB = 72, 3, 24, 90, 331
Q = HEADS * HD


def norm(hf, gguf, n=D, bias=False, gain=1.0, plus_one=False):
    yield f"{hf}.weight", gguf and f"{gguf}.weight", (n,), 0.2 * gain, gain - (1.0 if plus_one else 0.0)
    if bias:
        yield f"{hf}.bias", gguf and f"{gguf}.bias", (n,), 0.1, 0.0


def linear(hf, gguf, n_in, n_out, gain=1.0, bias=False):
    yield f"{hf}.weight", gguf and f"{gguf}.weight", (n_out, n_in), gain / math.sqrt(n_in), 0.0
    if bias:
        yield f"{hf}.bias", gguf and f"{gguf}.bias", (n_out,), 0.1, 0.0


def table(hf, gguf, n, deviation):
    yield f"{hf}.weight", gguf and f"{gguf}.weight", (n, D), deviation, 0.0


def ends(embed="model.embed_tokens", last="model.norm", head="lm_head", bias=False, tied=False, plus_one=False,
         head_bias=False):
    yield from table(embed, "token_embd", VOCAB, 1 / math.sqrt(D) if tied else 0.7)
    yield from norm(last, "output_norm", bias=bias, gain=2.0, plus_one=plus_one)
    if not tied:
        yield from linear(head, "output", D, VOCAB, bias=head_bias)


def qkv(at, kv, bias=False, qk=1.4):
    yield from linear(f"{at}.q_proj", "blk.*.attn_q", D, Q, qk, bias)
    yield from linear(f"{at}.k_proj", "blk.*.attn_k", D, kv * HD, qk, bias)
    yield from linear(f"{at}.v_proj", "blk.*.attn_v", D, kv * HD, 1.0, bias)


def gated(at):
    yield from linear(f"{at}.gate_proj", "blk.*.ffn_gate", D, FF, 1.5)
    yield from linear(f"{at}.up_proj", "blk.*.ffn_up", D, FF)
    yield from linear(f"{at}.down_proj", "blk.*.ffn_down", FF, D, 1.5)


def plain(up, down, bias, ff=FF):
    yield from linear(up, "blk.*.ffn_up", D, ff, 1.4, bias)
    yield from linear(down, "blk.*.ffn_down", ff, D, 1.5, bias)


L = "model.layers.*"


# ---- experts: '#' is the expert, whose matrices lie stacked in a GGUF file ----

EXPERTS, EXPERT_FF, SHARED_FF = 7, 54, 66


def experts(gate, up, down, router, n=EXPERTS, ff=EXPERT_FF):
    """The router's gain makes choices clear: a tie that rounding decides would be another model."""
    yield from linear(router, "blk.*.ffn_gate_inp", D, n, 2.5)
    yield from linear(gate, "blk.*.ffn_gate_exps", D, ff, 1.5)
    yield from linear(up, "blk.*.ffn_up_exps", D, ff)
    yield from linear(down, "blk.*.ffn_down_exps", ff, D, 2.0)


def shared_expert(at, ff=SHARED_FF):
    yield from linear(f"{at}.gate_proj", "blk.*.ffn_gate_shexp", D, ff, 1.5)
    yield from linear(f"{at}.up_proj", "blk.*.ffn_up_shexp", D, ff)
    yield from linear(f"{at}.down_proj", "blk.*.ffn_down_shexp", ff, D, 1.5)


def attention_part(kv=1, bias=False, q_norm=None, k_norm=None, tied=False):
    yield from ends(tied=tied)
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", kv, bias, 1.0 if q_norm else 1.4)
    if q_norm:
        yield from norm(f"{L}.self_attn.q_norm", "blk.*.attn_q_norm", q_norm, gain=1.4)
        yield from norm(f"{L}.self_attn.k_norm", "blk.*.attn_k_norm", k_norm, gain=1.4)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")


def mixtral(n=EXPERTS):
    at = f"{L}.block_sparse_moe"
    yield from attention_part()
    yield from experts(f"{at}.experts.#.w1", f"{at}.experts.#.w3", f"{at}.experts.#.w2", f"{at}.gate", n, FF)


def phimoe():
    at = f"{L}.block_sparse_moe"
    yield from ends(bias=True, head_bias=True)
    yield from norm(f"{L}.input_layernorm", None, bias=True)
    yield from qkv(f"{L}.self_attn", 1, True)
    yield from linear(f"{L}.self_attn.o_proj", None, Q, D, 1.5, True)
    yield from norm(f"{L}.post_attention_layernorm", None, bias=True)
    yield from experts(f"{at}.experts.#.w1", f"{at}.experts.#.w3", f"{at}.experts.#.w2", f"{at}.gate", EXPERTS, FF)


def named_experts(n=EXPERTS, ff=EXPERT_FF):
    at = f"{L}.mlp"
    each = f"{at}.experts.#"
    yield from experts(f"{each}.gate_proj", f"{each}.up_proj", f"{each}.down_proj", f"{at}.gate", n, ff)


def qwen3_moe(dense=False):
    yield from attention_part(q_norm=HD, k_norm=HD)
    yield from named_experts()
    if dense:
        yield from gated(f"{L}.mlp")


def qwen2_moe():
    yield from attention_part(bias=True)
    yield from named_experts()
    yield from shared_expert(f"{L}.mlp.shared_expert")
    yield f"{L}.mlp.shared_expert_gate.weight", "blk.*.ffn_gate_inp_shexp.weight", (1, D), 1.5 / math.sqrt(D), 0.0


def olmoe():
    yield from attention_part(q_norm=Q, k_norm=HD)
    yield from named_experts(ff=FF)


def granitemoe(shared=False):
    at = f"{L}.block_sparse_moe"
    yield from attention_part(tied=True)
    yield from linear(f"{at}.router.layer", "blk.*.ffn_gate_inp", D, EXPERTS, 2.5)
    yield f"{at}.input_linear.weight", "blk.*.ffn_gate_up_exps.weight", (EXPERTS, 2 * FF, D), 1.3 / math.sqrt(D), 0.0
    yield f"{at}.output_linear.weight", "blk.*.ffn_down_exps.weight", (EXPERTS, D, FF), 2.0 / math.sqrt(FF), 0.0
    if shared:
        yield from linear(f"{L}.shared_mlp.input_linear", "blk.*.ffn_gate_up_shexp", D, 2 * SHARED_FF, 1.3)
        yield from linear(f"{L}.shared_mlp.output_linear", "blk.*.ffn_down_shexp", SHARED_FF, D, 1.5)


def gpt_oss(ff):
    """Matrices of experts as [in, out], gate and up by turns, so large that both meet their limits."""
    at = f"{L}.mlp"
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1, True)
    yield f"{L}.self_attn.sinks", "blk.*.attn_sinks.weight", (HEADS,), 1.5, 1.0
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5, True)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.post_attention_norm")
    yield from linear(f"{at}.router", "blk.*.ffn_gate_inp", D, EXPERTS, 2.5, True)
    yield f"{at}.experts.gate_up_proj", "blk.*.ffn_gate_up_exps.weight", (EXPERTS, D, 2 * ff), 4 / math.sqrt(D), 0.0
    yield f"{at}.experts.gate_up_proj_bias", "blk.*.ffn_gate_up_exps.bias", (EXPERTS, 2 * ff), 0.5, 0.0
    yield f"{at}.experts.down_proj", "blk.*.ffn_down_exps.weight", (EXPERTS, ff, D), 0.3 / math.sqrt(ff), 0.0
    yield f"{at}.experts.down_proj_bias", "blk.*.ffn_down_exps.bias", (EXPERTS, D), 0.2, 0.0


def glm4_moe(n):
    yield from attention_part(q_norm=HD, k_norm=HD, bias=True)
    yield from named_experts(n)
    yield f"{L}.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias", (n,), 0.2, 0.0
    yield from shared_expert(f"{L}.mlp.shared_experts", 2 * EXPERT_FF)
    yield from gated(f"{L}.mlp")


# ---- latent attention: heads whose query, key and value differ in width, and a row that is none of these ----

NOPE, ROPE, V_DIM, Q_RANK, KV_RANK = 20, 8, 14, 30, 36


def latent_attention(q_rank, v_dim=V_DIM):
    """Norms with a gain, so that scores tell positions apart."""
    at, heads = f"{L}.self_attn", HEADS * (NOPE + ROPE)
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    if q_rank:
        yield from linear(f"{at}.q_a_proj", "blk.*.attn_q_a", D, q_rank)
        yield from norm(f"{at}.q_a_layernorm", "blk.*.attn_q_a_norm", q_rank, gain=1.3)
        yield from linear(f"{at}.q_b_proj", "blk.*.attn_q_b", q_rank, heads, 1.2)
    else:
        yield from linear(f"{at}.q_proj", "blk.*.attn_q", D, heads, 1.4)
    yield from linear(f"{at}.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa", D, KV_RANK + ROPE, 1.4)
    yield from norm(f"{at}.kv_a_layernorm", "blk.*.attn_kv_a_norm", KV_RANK, gain=1.3)
    yield from linear(f"{at}.kv_b_proj", "blk.*.attn_kv_b", KV_RANK, HEADS * (NOPE + v_dim), 1.2)
    yield from linear(f"{at}.o_proj", "blk.*.attn_output", HEADS * v_dim, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")


def deepseek(q_rank, n, corrected):
    yield from latent_attention(q_rank)
    yield from named_experts(n)
    if corrected:
        yield f"{L}.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias", (n,), 0.2, 0.0
    yield from shared_expert(f"{L}.mlp.shared_experts", 2 * EXPERT_FF)
    yield from gated(f"{L}.mlp")


def vaultgemma():
    """Norms multiply by 1 + w."""
    yield from ends(tied=True)
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", 1, qk=0.7)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D)
    yield from norm(f"{L}.pre_feedforward_layernorm", "blk.*.ffn_norm")
    yield from gated(f"{L}.mlp")


def youtu():
    yield from latent_attention(Q_RANK)
    yield from gated(f"{L}.mlp")


def minicpm3(q_rank, v_dim):
    """Embeddings are small, because they are multiplied."""
    for hf, theirs, shape, deviation, mean in latent_attention(q_rank, v_dim):
        yield hf, theirs, shape, 0.06 if "embed_tokens" in hf else deviation, mean
    yield from gated(f"{L}.mlp")


def llama(kv=1, qkv_bias=False, norm_bias=False, tied=False, two_norms=True):
    yield from ends(tied=tied, bias=norm_bias)
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm", bias=norm_bias)
    yield from qkv(f"{L}.self_attn", kv, qkv_bias)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    if two_norms:
        yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm", bias=norm_bias)
    yield from gated(f"{L}.mlp")


def granite_swa():
    yield from llama(tied=True)
    yield f"{L}.self_attn.sinks", None, (HEADS,), 1.5, 1.0


def granitemoe_swa():
    names = {"router.layer.weight": "router.weight", "input_linear.weight": "experts.gate_up_proj",
             "output_linear.weight": "experts.down_proj"}
    for name, *rest in granitemoe(True):
        at, part = name.split(".block_sparse_moe.") if ".block_sparse_moe." in name else (name, None)
        yield f"{at}.block_sparse_moe.{names[part]}" if part else name, *rest
    yield f"{L}.self_attn.sinks", None, (HEADS,), 1.5, 1.0


def behind(q_norm, k_norm, kv=1):
    yield from ends()
    yield from qkv(f"{L}.self_attn", kv, qk=1.0)
    yield from norm(f"{L}.self_attn.q_norm", "blk.*.attn_q_norm", q_norm, gain=1.4)
    yield from norm(f"{L}.self_attn.k_norm", "blk.*.attn_k_norm", k_norm, gain=1.4)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.post_attention_norm")
    yield from gated(f"{L}.mlp")
    yield from norm(f"{L}.post_feedforward_layernorm", "blk.*.post_ffw_norm")


def hyperclovax():
    yield from attention_part()
    yield from norm(f"{L}.post_norm1", None)
    yield from gated(f"{L}.mlp")
    yield from norm(f"{L}.post_norm2", None)


def flex_olmo():
    yield from (t for t in behind(Q, HD) if ".mlp." not in t[0])
    yield from named_experts(ff=FF)


def fused_mlp():
    yield from linear(f"{L}.mlp.gate_up_proj", "blk.*.ffn_up", D, 2 * FF, 1.3)
    yield from linear(f"{L}.mlp.down_proj", "blk.*.ffn_down", FF, D, 1.5)


def phi3(kv=1):
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from linear(f"{L}.self_attn.qkv_proj", "blk.*.attn_qkv", D, Q + 2 * kv * HD, 1.4)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")
    yield from fused_mlp()


def glm(post_norms, kv=1):
    yield from ends()
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm")
    yield from qkv(f"{L}.self_attn", kv, True)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm")
    yield from fused_mlp()
    if post_norms:
        yield from norm(f"{L}.post_self_attn_layernorm", "blk.*.post_attention_norm")
        yield from norm(f"{L}.post_mlp_layernorm", "blk.*.post_ffw_norm")


def plain_decoder(up, down, bias, kv=1, plus_one=False, tied=False):
    yield from ends(bias=True, plus_one=plus_one, tied=tied)
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm", bias=True, plus_one=plus_one)
    yield from qkv(f"{L}.self_attn", kv, bias)
    yield from linear(f"{L}.self_attn.o_proj", "blk.*.attn_output", Q, D, 1.5, bias)
    yield from norm(f"{L}.post_attention_layernorm", "blk.*.ffn_norm", bias=True, plus_one=plus_one)
    yield from plain(f"{L}.mlp.{up}", f"{L}.mlp.{down}", bias)


def phi():
    yield from ends(last="model.final_layernorm", bias=True, head_bias=True)
    yield from norm(f"{L}.input_layernorm", "blk.*.attn_norm", bias=True)
    yield from qkv(f"{L}.self_attn", HEADS, True)
    yield from linear(f"{L}.self_attn.dense", "blk.*.attn_output", Q, D, 1.5, True)
    yield from plain(f"{L}.mlp.fc1", f"{L}.mlp.fc2", True)


def gptj():
    at = "transformer.h.*"
    yield from ends("transformer.wte", "transformer.ln_f", bias=True, head_bias=True)
    yield from norm(f"{at}.ln_1", None, bias=True)
    yield from qkv(f"{at}.attn", HEADS)
    yield from linear(f"{at}.attn.out_proj", None, Q, D, 1.5)
    yield from plain(f"{at}.mlp.fc_in", f"{at}.mlp.fc_out", True, 4 * D)


def stacked(at, embed, last, head=None, kv=HEADS, bias=True, attn="attention", ff=4 * D, norms=None, more=()):
    """NeoX, Falcon and BLOOM: one matrix for q, k and v, by KV heads."""
    yield from ends(embed, last, head, bias=True, tied=head is None)
    for name, theirs in norms or (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")):
        yield from norm(f"{at}.{name}", f"blk.*.{theirs}", bias=True)
    yield from linear(f"{at}.{attn}.query_key_value", "blk.*.attn_qkv", D, (HEADS + 2 * kv) * HD, 1.4, bias)
    yield from linear(f"{at}.{attn}.dense", "blk.*.attn_output", Q, D, 1.5, bias)
    yield from plain(f"{at}.mlp.dense_h_to_4h", f"{at}.mlp.dense_4h_to_h", bias, ff)
    yield from more


def gpt_bigcode():
    at = "transformer.h.*"
    yield from ends("transformer.wte", "transformer.ln_f", bias=True, tied=True)
    yield from table("transformer.wpe", "position_embd", 256, 0.1)
    yield from norm(f"{at}.ln_1", "blk.*.attn_norm", bias=True)
    yield from linear(f"{at}.attn.c_attn", "blk.*.attn_qkv", D, Q + 2 * HD, 1.4, True)
    yield from linear(f"{at}.attn.c_proj", "blk.*.attn_output", Q, D, 1.5, True)
    yield from norm(f"{at}.ln_2", "blk.*.ffn_norm", bias=True)
    yield from plain(f"{at}.mlp.c_fc", f"{at}.mlp.c_proj", True, 4 * D)


def opt():
    at = "model.decoder.layers.*"
    yield from ends("model.decoder.embed_tokens", "model.decoder.final_layer_norm", bias=True, tied=True)
    yield from table("model.decoder.embed_positions", None, 256 + 2, 0.1)
    yield from norm(f"{at}.self_attn_layer_norm", None, bias=True)
    yield from qkv(f"{at}.self_attn", HEADS, True)
    yield from linear(f"{at}.self_attn.out_proj", None, Q, D, 1.5, True)
    yield from norm(f"{at}.final_layer_norm", None, bias=True)
    yield from plain(f"{at}.fc1", f"{at}.fc2", True)


def xglm():
    at = "model.layers.*"
    yield from ends("model.embed_tokens", "model.layer_norm", bias=True, tied=True)
    yield from norm(f"{at}.self_attn_layer_norm", None, bias=True)
    yield from qkv(f"{at}.self_attn", HEADS, True)
    yield from linear(f"{at}.self_attn.out_proj", None, Q, D, 1.5, True)
    yield from norm(f"{at}.final_layer_norm", None, bias=True)
    yield from plain(f"{at}.fc1", f"{at}.fc2", True)


def gpt_neo():
    at = "transformer.h.*"
    yield from ends("transformer.wte", "transformer.ln_f", bias=True, tied=True)
    yield from table("transformer.wpe", None, 256, 0.1)
    yield from norm(f"{at}.ln_1", None, bias=True)
    yield from qkv(f"{at}.attn.attention", HEADS, qk=0.6)
    yield from linear(f"{at}.attn.attention.out_proj", None, Q, D, 1.5, True)
    yield from norm(f"{at}.ln_2", None, bias=True)
    yield from plain(f"{at}.mlp.c_fc", f"{at}.mlp.c_proj", True)


def mpt():
    at = "transformer.blocks.*"
    yield from ends("transformer.wte", "transformer.norm_f", tied=True)
    yield from norm(f"{at}.norm_1", None)
    yield from linear(f"{at}.attn.Wqkv", None, D, 3 * Q, 1.4)
    yield from linear(f"{at}.attn.out_proj", None, Q, D, 1.5)
    yield from norm(f"{at}.norm_2", None)
    yield from plain(f"{at}.ffn.up_proj", f"{at}.ffn.down_proj", False, 4 * D)


def config(architecture, model_type, layers=3, kv=1, **more):
    c = {"architectures": [architecture], "model_type": model_type, "hidden_size": D, "num_hidden_layers": layers,
         "num_attention_heads": HEADS, "num_key_value_heads": kv, "intermediate_size": FF, "vocab_size": VOCAB,
         "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": False, **more}
    return {k: v for k, v in c.items() if v is not ...}


RMS, LAYER = {"rms_norm_eps": 1e-5}, {"layer_norm_eps": 1e-5}
SHORT = [1.0 + 0.02 * i for i in range(HD // 2)]
LONG = [1.0 + 0.4 * i for i in range(HD // 2)]
SLIDING_4 = 3 * ["sliding_attention"] + ["full_attention"]


def rows():
    """name, config, tensors, GGUF family and what its metadata says beyond sizes, how q and k rows are stored."""
    yield "llama-odd", config("LlamaForCausalLM", "llama", **RMS), llama(), ("llama", {"pairs": True})
    yield "ministral", config("MinistralForCausalLM", "ministral", 4, **RMS, head_dim=HD, sliding_window=12,
                              layer_types=SLIDING_4), llama(), None
    yield "phi3", config("Phi3ForCausalLM", "phi3", **RMS, original_max_position_embeddings=256, pad_token_id=0,
                         sliding_window=20), phi3(), ("phi3", {"attention.sliding_window": 20})
    scaling = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}
    yield "phi3-longrope", config("Phi3ForCausalLM", "phi3", **RMS, original_max_position_embeddings=16,
                                  pad_token_id=0, sliding_window=None, rope_scaling=scaling), phi3(), (
        "phi3", {"rope.scaling.original_context_length": 16, "factors": True,
                 "rope.scaling.attn_factor": math.sqrt(1 + math.log(16) / math.log(16))})
    yield "smollm3", config("SmolLM3ForCausalLM", "smollm3", 4, **RMS, no_rope_layers=[1, 1, 1, 0],
                            tie_word_embeddings=True, pad_token_id=0), llama(tied=True), ("smollm3", {"pairs": True})
    yield "granite", config("GraniteForCausalLM", "granite", **RMS, embedding_multiplier=3.0,
                            residual_multiplier=0.22, attention_multiplier=0.11, logits_scaling=1.7), llama(), (
        "granite", {"pairs": True, "embedding_scale": 3.0, "residual_scale": 0.22, "attention.scale": 0.11,
                    "logit_scale": 1.7})
    yield "granite_swa", config(
        "GraniteSWAForCausalLM", "granite_swa", 4, **{**RMS, "tie_word_embeddings": True}, embedding_multiplier=3.0, residual_multiplier=0.22,
        attention_multiplier=0.11, logits_scaling=1.7, sliding_window=9, layer_rope_theta=[0, 10000.0, 10000.0, 10000.0],
        layer_types=["full_attention", *SLIDING_4[:3]]), granite_swa(), None
    yield "hyperclovax", config("HyperCLOVAXForCausalLM", "hyperclovax", **RMS, embedding_multiplier=3.0, attention_multiplier=0.11,
                                residual_multiplier=1.0, logits_scaling=0.6, head_dim=HD), hyperclovax(), None
    yield "olmo2", config("Olmo2ForCausalLM", "olmo2", **RMS), behind(Q, HD), ("olmo2", {})
    yield "olmo3", config("Olmo3ForCausalLM", "olmo3", 4, **RMS, rope_theta=500000.0, sliding_window=12, layer_types=SLIDING_4,
                          rope_scaling={"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.1,
                                        "beta_fast": 32.0, "beta_slow": 1.0,
                                        "original_max_position_embeddings": 64}), behind(Q, HD), (
        "olmo2", {"attention.sliding_window": 12, "rope.freq_base": 500000.0, "rope.scaling.type": "yarn",
                  "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.1, "rope.scaling.original_context_length": 64})
    yield "glm", config("GlmForCausalLM", "glm", **RMS, head_dim=HD, partial_rotary_factor=0.5, attention_bias=True,
                        pad_token_id=0), glm(False), None
    yield "glm4", config("Glm4ForCausalLM", "glm4", **RMS, head_dim=HD, partial_rotary_factor=0.5,
                         attention_bias=True, pad_token_id=0), glm(True), ("glm4", {"rope.dimension_count": HD // 2})
    yield "exaone4", config("Exaone4ForCausalLM", "exaone4", 4, **RMS, sliding_window=12, sliding_window_pattern=4,
                            layer_types=SLIDING_4, head_dim=HD), behind(HD, HD), ("exaone4", {"attention.sliding_window": 12})
    yield "seed_oss", config("SeedOssForCausalLM", "seed_oss", **RMS, head_dim=HD, attention_bias=True,
                             attention_out_bias=False), llama(qkv_bias=True), ("seed_oss", {})
    yield "cohere", config("CohereForCausalLM", "cohere", **LAYER, logit_scale=0.4, use_qk_norm=False,
                           tie_word_embeddings=True, pad_token_id=0), llama(tied=True, two_norms=False), (
        "command-r", {"logit_scale": 0.4, "layer_norm": True})
    yield "cohere2", config("Cohere2ForCausalLM", "cohere2", 4, **LAYER, logit_scale=0.4, head_dim=HD,
                            sliding_window=12, layer_types=SLIDING_4, tie_word_embeddings=True,
                            pad_token_id=0), llama(tied=True, two_norms=False), (
        "cohere2", {"logit_scale": 0.4, "layer_norm": True, "attention.sliding_window": 12})
    yield "nemotron", config("NemotronForCausalLM", "nemotron", norm_eps=1e-5, hidden_act="relu2", head_dim=HD,
                             partial_rotary_factor=0.5), plain_decoder("up_proj", "down_proj", False, plus_one=True), (
        "nemotron", {"rope.dimension_count": HD // 2, "layer_norm": True, "plus_one": True})
    yield "stablelm", config("StableLmForCausalLM", "stablelm", **LAYER, use_qkv_bias=True,
                             partial_rotary_factor=0.25), llama(qkv_bias=True, norm_bias=True), (
        "stablelm", {"rope.dimension_count": HD // 4, "layer_norm": True})
    yield "stablelm-parallel", config("StableLmForCausalLM", "stablelm", **LAYER, use_parallel_residual=True,
                                      partial_rotary_factor=0.25), llama(norm_bias=True, two_norms=False), (
        "stablelm", {"rope.dimension_count": HD // 4, "layer_norm": True})
    yield "starcoder2", config("Starcoder2ForCausalLM", "starcoder2", norm_epsilon=1e-5, use_bias=True,
                               hidden_act="gelu_pytorch_tanh", sliding_window=20, tie_word_embeddings=True), (
        plain_decoder("c_fc", "c_proj", True, tied=True)), (
        "starcoder2", {"attention.sliding_window": 20, "layer_norm": True})
    yield "phi", config("PhiForCausalLM", "phi", kv=HEADS, **LAYER, hidden_act="gelu_new", partial_rotary_factor=0.5,
                        qk_layernorm=False), phi(), ("phi2", {"rope.dimension_count": HD // 2, "layer_norm": True})
    yield "gptj", {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_embd": D, "n_head": HEADS,
                   "n_layer": 3, "n_positions": 256, "rotary_dim": 8, "activation_function": "gelu_new",
                   "layer_norm_epsilon": 1e-5, "vocab_size": VOCAB, "tie_word_embeddings": False}, gptj(), None
    yield "gpt_neo", {"architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "hidden_size": D, "num_heads": HEADS, "num_layers": 4,
                      "intermediate_size": FF, "max_position_embeddings": 256, "window_size": 9, "layer_norm_epsilon": 1e-5,
                      "attention_types": [[["global", "local"], 1], [["local"], 2]], "activation_function": "gelu_new",
                      "vocab_size": VOCAB, "tie_word_embeddings": True}, gpt_neo(), None
    neox = dict(kv=..., **LAYER, hidden_act="gelu", rotary_pct=0.25)
    for name, parallel in (("gpt_neox", True), ("gpt_neox-serial", False)):
        yield name, config("GPTNeoXForCausalLM", "gpt_neox", **neox, use_parallel_residual=parallel), stacked(
            "gpt_neox.layers.*", "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", ff=FF), (
            "gptneox", {"rope.dimension_count": HD // 4, "layer_norm": True, "grouped": HEADS,
                        "use_parallel_residual": parallel})
    moe = {"num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_FF, "output_router_logits": False}
    few = {"expert_count": EXPERTS, "expert_used_count": 2}
    yield "mixtral", config("MixtralForCausalLM", "mixtral", **RMS, head_dim=HD, num_local_experts=5,
                            num_experts_per_tok=2, sliding_window=None), mixtral(5), (
        "llama", {"pairs": True, "expert_count": 5, "expert_used_count": 2})
    yield "qwen3_moe", config("Qwen3MoeForCausalLM", "qwen3_moe", **RMS, **{**moe, "num_experts_per_tok": 4},
                              head_dim=HD, num_experts=EXPERTS, norm_topk_prob=True), qwen3_moe(), (
        "qwen3moe", {**few, "expert_used_count": 4, "expert_feed_forward_length": EXPERT_FF})
    yield "qwen3_moe-mixed", config("Qwen3MoeForCausalLM", "qwen3_moe", 4, **RMS, **{**moe, "num_experts_per_tok": 1},
                                    head_dim=HD, num_experts=EXPERTS, norm_topk_prob=False, decoder_sparse_step=2,
                                    mlp_only_layers=[3]), qwen3_moe(True), None
    yield "qwen2_moe", config("Qwen2MoeForCausalLM", "qwen2_moe", **RMS, **moe, num_experts=EXPERTS,
                              norm_topk_prob=False, shared_expert_intermediate_size=SHARED_FF), qwen2_moe(), (
        "qwen2moe", {**few, "expert_feed_forward_length": EXPERT_FF, "expert_shared_feed_forward_length": SHARED_FF})
    yield "olmoe", config("OlmoeForCausalLM", "olmoe", **RMS, num_experts=EXPERTS, num_experts_per_tok=2,
                          norm_topk_prob=False, clip_qkv=None, output_router_logits=False, pad_token_id=0), (
        olmoe()), ("olmoe", few)
    yield "flex_olmo", config("FlexOlmoForCausalLM", "flex_olmo", **RMS, num_experts=EXPERTS, num_experts_per_tok=3,
                              norm_topk_prob=False, output_router_logits=False, pad_token_id=0), flex_olmo(), None
    yield "mellum", config("MellumForCausalLM", "mellum", 4, **RMS, head_dim=HD, num_local_experts=EXPERTS, num_experts_per_tok=3,
                           moe_intermediate_size=EXPERT_FF, norm_topk_prob=True, output_router_logits=False, sliding_window=12,
                           layer_types=SLIDING_4, mlp_layer_types=["dense", "sparse", "sparse", "sparse"], rope_theta=...,
                           rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500000.0},
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}), (
        qwen3_moe(True)), None
    granite_scales = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.11,
                      "logits_scaling": 1.7, "num_local_experts": EXPERTS, "tie_word_embeddings": True}
    gguf_scales = {"pairs": True, "embedding_scale": 3.0, "residual_scale": 0.22, "attention.scale": 0.11,
                   "logit_scale": 1.7}
    yield "granitemoe", config("GraniteMoeForCausalLM", "granitemoe", **RMS, **granite_scales, num_experts_per_tok=4), (
        granitemoe()), ("granitemoe", {**gguf_scales, **few, "expert_used_count": 4})
    yield "granitemoeshared", config("GraniteMoeSharedForCausalLM", "granitemoeshared", **RMS, **granite_scales,
                                     num_experts_per_tok=2, shared_intermediate_size=SHARED_FF), granitemoe(True), (
        "granitemoe", {**gguf_scales, **few, "expert_shared_feed_forward_length": SHARED_FF})
    yield "granitemoe_swa", config(
        "GraniteMoeSWAForCausalLM", "granitemoe_swa", 4, **RMS, **granite_scales, num_experts_per_tok=2, shared_intermediate_size=SHARED_FF,
        sliding_window=9, layer_rope_theta=[0, 10000.0, 10000.0, 10000.0], layer_types=["full_attention", *SLIDING_4[:3]]), (
        granitemoe_swa()), None
    corrected = {"expert_count": 9, "expert_used_count": 2, "expert_feed_forward_length": EXPERT_FF, "expert_shared_count": 2,
                 "expert_group_count": 3, "expert_group_used_count": 2, "expert_weights_norm": True,
                 "expert_weights_scale": 1.8}
    yield "glm4_moe", config("Glm4MoeForCausalLM", "glm4_moe", **RMS, **moe, head_dim=HD, n_routed_experts=9,
                             num_local_experts=9, n_shared_experts=2, n_group=3, topk_group=2,
                             norm_topk_prob=True, routed_scaling_factor=1.8, first_k_dense_replace=1,
                             use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5,
                             pad_token_id=0), glm4_moe(9), ("glm4moe", {**corrected, "rope.dimension_count": HD // 2})
    yield from deepseeks({**RMS, **moe})
    scaling = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, "short_mscale": 1.2, "long_mscale": 1.2,
               "original_max_position_embeddings": 256}
    yield "phimoe", config("PhimoeForCausalLM", "phimoe", **RMS, num_local_experts=EXPERTS, num_experts_per_tok=2,
                           router_jitter_noise=0.3, attention_bias=True, lm_head_bias=True, sliding_window=None,
                           original_max_position_embeddings=256, rope_scaling=scaling), phimoe(), None
    falcon = {"layer_norm_epsilon": 1e-5, "bias": False, "alibi": False, "parallel_attn": True,
              "tie_word_embeddings": True, "kv": ..., "intermediate_size": ...}
    yield "falcon", config("FalconForCausalLM", "falcon", **falcon, multi_query=True), stacked(
        "transformer.h.*", "transformer.word_embeddings", "transformer.ln_f", kv=1, bias=False,
        attn="self_attention", norms=[("input_layernorm", "attn_norm")]), ("falcon", {"layer_norm": True, "grouped": 1})
    yield "falcon-40b", config("FalconForCausalLM", "falcon", **falcon, new_decoder_architecture=True,
                               num_kv_heads=1), stacked(
        "transformer.h.*", "transformer.word_embeddings", "transformer.ln_f", kv=1, bias=False,
        attn="self_attention", norms=[("ln_attn", "attn_norm_2"), ("ln_mlp", "attn_norm")]), (
        "falcon", {"layer_norm": True, "grouped": 1, "attention.head_count_kv": 1})
    yield "gpt_bigcode", {"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "n_embd": D,
                          "n_head": HEADS, "n_layer": 3, "n_positions": 256, "n_inner": 4 * D, "multi_query": True,
                          "activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5,
                          "vocab_size": VOCAB}, gpt_bigcode(), ("starcoder", {"layer_norm": True})
    yield "xglm", {"architectures": ["XGLMForCausalLM"], "model_type": "xglm", "d_model": D, "num_layers": 3, "attention_heads": HEADS,
                   "ffn_dim": FF, "max_position_embeddings": 256, "activation_function": "gelu", "vocab_size": VOCAB,
                   "scale_embedding": True, "pad_token_id": 1, "tie_word_embeddings": True}, xglm(), None
    yield "opt", {"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": D, "num_hidden_layers": 3,
                  "num_attention_heads": HEADS, "ffn_dim": FF, "vocab_size": VOCAB, "max_position_embeddings": 256,
                  "word_embed_proj_dim": D, "do_layer_norm_before": True, "activation_function": "relu",
                  "pad_token_id": 1}, opt(), None
    yield "bloom", {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": D, "n_layer": 3,
                    "n_head": HEADS, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5, "seq_length": 256}, stacked(
        "transformer.h.*", "transformer.word_embeddings", "transformer.ln_f", attn="self_attention",
        more=norm("transformer.word_embeddings_layernorm", "token_embd_norm", bias=True)), (
        "bloom", {"layer_norm": True, "grouped": HEADS})
    yield "mpt", {"architectures": ["MPTForCausalLM"], "model_type": "mpt", "d_model": D, "n_heads": HEADS,
                  "n_layers": 3, "max_seq_len": 256, "expansion_ratio": 4, "vocab_size": VOCAB, "no_bias": True,
                  "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch"}}, mpt(), None


def deepseeks(common):
    """Of groups, each time others than the experts' own scores would choose; scores and positions scaled."""
    sizes = {"qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": V_DIM, "kv_lora_rank": KV_RANK,
             "n_routed_experts": 9, "n_shared_experts": 2, "first_k_dense_replace": 1, "pad_token_id": 0}
    yarn = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
            "mscale": 0.707, "mscale_all_dim": 0.707}
    lengths = {"attention.key_length": NOPE + ROPE, "attention.value_length": V_DIM, "attention.kv_lora_rank": KV_RANK,
               "rope.dimension_count": ROPE, "expert_count": 9, "expert_used_count": 2, "expert_shared_count": 2,
               "expert_feed_forward_length": EXPERT_FF, "leading_dense_block_count": 1}
    scaled = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32,
              "rope.scaling.yarn_log_multiplier": 0.0707}
    yield "deepseek_v2-lite", config("DeepseekV2ForCausalLM", "deepseek_v2", kv=HEADS, **common, **sizes, q_lora_rank=None,
                                     topk_method="greedy", rope_scaling=yarn), deepseek(None, 9, False), (
        "deepseek2", {**lengths, **scaled, "expert_weights_scale": 1.0})
    yield "deepseek_v2", config("DeepseekV2ForCausalLM", "deepseek_v2", kv=HEADS, **common, **sizes, q_lora_rank=Q_RANK,
                                topk_method="group_limited_greedy", n_group=3, topk_group=2,
                                routed_scaling_factor=2.5), deepseek(Q_RANK, 9, False), (
        "deepseek2", {**lengths, "attention.q_lora_rank": Q_RANK, "expert_weights_scale": 2.5, "expert_group_count": 3,
                      "expert_group_used_count": 2})
    other = {"mscale": 1.0, "mscale_all_dim": 0.6}  # cos and sin are scaled, too
    yield "deepseek_v3", config("DeepseekV3ForCausalLM", "deepseek_v3", kv=HEADS, **common, **sizes, q_lora_rank=Q_RANK,
                                n_group=3, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.8,
                                rope_scaling={**yarn, **other}), deepseek(Q_RANK, 9, True), None
    yield "deepseek_v3-plain", config("DeepseekV3ForCausalLM", "deepseek_v3", kv=HEADS, **common, **sizes, q_lora_rank=None,
                                      n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.3,
                                      rope_scaling=yarn), deepseek(None, 9, True), (
        "deepseek2", {**lengths, **scaled, "attention.head_count_kv": 1, "attention.key_length": KV_RANK + ROPE,
                      "attention.value_length": KV_RANK, "attention.key_length_mla": NOPE + ROPE,
                      "attention.value_length_mla": V_DIM, "expert_gating_func": 2, "expert_weights_norm": True,
                      "expert_weights_scale": 1.3, "heads_apart": True})


    yield "vaultgemma", config("VaultGemmaForCausalLM", "vaultgemma", rms_norm_eps=1e-6, head_dim=HD, sliding_window=16, pad_token_id=0,
                               query_pre_attn_scalar=40, attn_logit_softcapping=4.0, final_logit_softcapping=6.0, rope_theta=900.0,
                               hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True), vaultgemma(), None
    heads = {k: v for k, v in sizes.items() if k.startswith(("qk_", "v_", "kv_", "pad_"))}
    plain = {k: v for k, v in common.items() if "expert" not in k}
    yield "youtu", config("YoutuForCausalLM", "youtu", kv=HEADS, **plain, **heads, q_lora_rank=Q_RANK, tie_word_embeddings=False,
                          rope_theta=900.0), youtu(), None
    # the scales that GGUF files leave out and the width of values as when no key says them, then other ones
    mla = {k: v for k, v in heads.items() if k != "v_head_dim"}
    factors = {"rope_type": "longrope", "short_factor": SHORT[:ROPE // 2], "long_factor": LONG[:ROPE // 2]}
    yield "minicpm3", config("MiniCPM3ForCausalLM", "minicpm3", kv=HEADS, **plain, **mla, q_lora_rank=Q_RANK, rope_scaling={
        **factors, "original_max_position_embeddings": 256}), minicpm3(Q_RANK, HD), ("minicpm3", {
            "attention.key_length": NOPE + ROPE, "attention.kv_lora_rank": KV_RANK, "attention.q_lora_rank": Q_RANK,
            "rope.dimension_count": ROPE, "factors": True})
    yield "minicpm3-scaled", config("MiniCPM3ForCausalLM", "minicpm3", kv=HEADS, **plain, **heads, q_lora_rank=None, scale_emb=5.0,
                                    scale_depth=None, dim_model_base=48, rope_scaling=yarn), minicpm3(None, V_DIM), None
    yield "glm4_moe_lite", config("Glm4MoeLiteForCausalLM", "glm4_moe_lite", kv=HEADS, **common, **sizes, q_lora_rank=Q_RANK,
                                  n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8,
                                  mlp_layer_types=["dense", "sparse", "sparse"], rope_theta=900.0), deepseek(Q_RANK, 9, True), None


class Family:
    """As specs.Spec, from a table."""

    prefix = no_gguf = None
    mlp = ".mlp."

    def __init__(self, name, config_json, table_rows, gguf):
        self.name = self.seed = name
        self.config = config_json
        self.gguf_arch, self.extra = gguf or (None, {})
        self.no_gguf = None if gguf else "no GGUF form here"
        self.rows = list(table_rows)
        self.n_layers = next(config_json[k] for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if k in config_json)

    def _is_there(self, hf, layer):
        """Whether a layer has an MLP or experts, where a model has both kinds."""
        c, rest = self.config, hf.split(self.mlp)[-1]
        if not recurrent.is_there(c, hf, layer):
            return False
        some_dense = ("mlp_layer_types", "mlp_only_layers", "first_k_dense_replace", "moe_layer_start_index", "interleave_moe_layer_step",
                      "num_dense_layers")
        if self.mlp not in hf or not any(key in c for key in some_dense):
            return True
        step = c.get("decoder_sparse_step", c.get("interleave_moe_layer_step", 1))
        first = c.get("first_k_dense_replace", c.get("moe_layer_start_index", c.get("num_dense_layers", 0)))
        dense = "mlp_layer_types" in c and c["mlp_layer_types"][layer] == "dense"
        dense = dense or layer < first or layer in c.get("mlp_only_layers", []) or (layer + 1) % step != 0
        return dense == rest.startswith(("gate_proj", "up_proj", "down_proj"))

    def _each(self):
        for hf, gguf, shape, deviation, mean in self.rows:
            for i in range(self.n_layers if "*" in hf else 1):
                if self._is_there(hf, i):
                    yield hf.replace("*", str(i)), gguf and gguf.replace("*", str(i)), shape, deviation, mean

    def _n_experts(self):
        names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
        return next(self.config[k] for k in names if k in self.config)

    def tensors(self):
        for hf, _, shape, deviation, mean in self._each():
            for e in range(self._n_experts() if "#" in hf else 1):
                yield hf.replace("#", str(e)), shape, deviation, mean

    # ---- GGUF: what llama.cpp's writer does to a tensor of this family ----

    def _stored(self, theirs, x):
        if self.extra.get("pairs") and ("attn_q." in theirs or "attn_k." in theirs):
            x = x.reshape(-1, 2, HD // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        if "attn_qkv" in theirs and "grouped" in self.extra:
            x = x.reshape(self.extra["grouped"], -1, HD, *x.shape[1:])
            x = np.concatenate([x[:, :-2].reshape(-1, *x.shape[3:]), x[:, -2].reshape(-1, *x.shape[3:]),
                                x[:, -1].reshape(-1, *x.shape[3:])])
        if self.extra.get("plus_one") and "norm.weight" in theirs and "ssm_norm" not in theirs:
            x = x + np.float32(1)
        return np.ascontiguousarray(x)

    def gguf_tensors(self, tensors):
        for hf, theirs, *_ in self._each():
            if "#" in hf:
                yield theirs, np.stack([tensors[hf.replace("#", str(e))] for e in range(self._n_experts())])
            elif "gate_up" in theirs:  # Granite's experts: two tensors in the file
                for part, x in zip(("gate", "up"), np.split(tensors[hf], 2, axis=-2)):
                    yield theirs.replace("gate_up", part), np.ascontiguousarray(x)
            elif theirs is None:
                raise ValueError(f"{hf} has no name in GGUF files")
            elif "kv_b" in theirs and self.extra.get("heads_apart"):
                k, v = np.split(tensors[hf].reshape(HEADS, NOPE + V_DIM, KV_RANK), [NOPE], axis=1)
                yield theirs.replace("kv_b", "k_b"), np.ascontiguousarray(k.swapaxes(1, 2))
                yield theirs.replace("kv_b", "v_b"), np.ascontiguousarray(v)
            elif "stacked" in self.extra and ".self_attn.q_proj" in hf:
                yield theirs.replace("attn_q", "attn_qkv"), np.concatenate([tensors[hf.replace("q_proj", f"{p}_proj")] for p in "qkv"])
            elif "stacked" in self.extra and (".self_attn.k_proj" in hf or ".self_attn.v_proj" in hf):
                continue
            elif "ssm_in" in theirs and "delta" in self.extra:
                for part, x in recurrent.delta_parts(tensors[hf]):
                    yield theirs.replace("ssm_in", part), x
            elif "inp_shexp" in theirs or "exp_probs" in theirs:
                yield theirs, tensors[hf].reshape(-1)
            else:
                theirs, x = recurrent.stored(theirs, tensors[hf], self.extra)
                yield theirs, self._stored(theirs, x)
        if self.extra.get("factors"):
            n = self.extra.get("rope.dimension_count", HD) // 2
            yield "rope_factors_long.weight", np.array(LONG[:n], np.float32)
            yield "rope_factors_short.weight", np.array(SHORT[:n], np.float32)

    def gguf_keys(self):
        c = self.config
        get = lambda *names: next((c[n] for n in names if n in c and c[n] is not None), None)  # noqa: E731
        norm_key = "layer_norm_epsilon" if self.extra.get("layer_norm") else "layer_norm_rms_epsilon"
        eps = get("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        keys = {
            "block_count": self.n_layers, "embedding_length": get("hidden_size") or D, "context_length": 256,
            "feed_forward_length": get("intermediate_size", "n_inner") or 4 * D, "attention.head_count": HEADS,
            "attention.head_count_kv": 1 if get("multi_query") else get("num_key_value_heads") or HEADS,
            f"attention.{norm_key}": eps, "rope.freq_base": 10000.0}
        special = ("pairs", "grouped", "plus_one", "layer_norm", "factors", "heads_apart", "final_norm", "multiplied", "tiled", "delta", "grouped_delta", "stacked")
        keys.update({k: v for k, v in self.extra.items() if k not in special})
        for name, value in keys.items():
            kind = {bool: "bool", float: "float32", str: "string", list: "int32s"}.get(type(value), "uint32")
            yield f"{self.gguf_arch}.{name}", kind, value


class Qwen3NextOlder(Family):
    """As GGUF files of the first weeks have it: q, k, v and the gate in one matrix."""

    def __init__(self):
        row = next(rest for name, *rest in recurrent.rows() if name == "qwen3_next")
        super().__init__("qwen3_next-older", *row)
        self.seed = "qwen3_next"
        self.extra = {**self.extra, "grouped_delta": True}
        del self.extra["delta"]


class GptOss(Family):
    """d, hd: other widths than the other families', where blocks of 32 must fit. heads: as many as ranks need that divide
    experts in two ways; together they are as wide as the state."""

    def __init__(self, name, ff, d=D, hd=HD, heads=HEADS):
        yarn = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                "original_max_position_embeddings": 32}
        c = config("GptOssForCausalLM", "gpt_oss", 4, **RMS, head_dim=hd, num_local_experts=EXPERTS, num_experts_per_tok=3,
                   sliding_window=12, layer_types=2 * ["sliding_attention", "full_attention"], attention_bias=True,
                   rope_scaling=yarn, swiglu_limit=7.0, output_router_logits=False)
        c.update(hidden_size=d, intermediate_size=ff, num_attention_heads=heads)
        wider = {D: d, HD: hd, HEADS: heads}  # the width of all heads is that of the state
        table_rows = [(hf, gguf, tuple(wider.get(n, n) for n in shape), deviation, mean)
                      for hf, gguf, shape, deviation, mean in gpt_oss(ff)]
        super().__init__(name, c, table_rows, ("gpt-oss", {
            "expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": ff, "attention.sliding_window": 12,
            "attention.head_count": heads, "attention.key_length": hd, "attention.value_length": hd, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32}))

    def gguf_tensors(self, tensors):
        for hf, theirs, *_ in self._each():
            x = tensors[hf]
            if hf.endswith(("gate_up_proj", "down_proj")):
                x = x.swapaxes(1, 2)
            if "gate_up" in theirs:
                yield theirs.replace("gate_up", "gate"), np.ascontiguousarray(x[:, 0::2])
                yield theirs.replace("gate_up", "up"), np.ascontiguousarray(x[:, 1::2])
            else:
                yield theirs, np.ascontiguousarray(x)


class InternLM2(Family):
    """The Llama of these tables under the names of InternLM 2, whose class transformers has not got: the same
    results. q, k and v lie together for each KV head."""

    NAMES = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "input_layernorm": "attention_norm",
             "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attention.wo",
             "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}

    def __init__(self):
        super().__init__("internlm2", config("InternLM2ForCausalLM", "internlm2", **RMS, bias=False), llama(),
                         ("internlm2", {"pairs": True}))
        self.seed = "llama-odd"

    def stored(self, tensors):
        out = {}
        for name, x in tensors.items():
            if ".q_proj" in name:
                k, v = (tensors[name.replace(".q_proj", f".{p}_proj")] for p in "kv")
                by_head = [y.reshape(len(k) // HD, -1, HD, D) for y in (x, k, v)]
                out[name.replace("self_attn.q_proj", "attention.wqkv")] = np.concatenate(by_head, 1).reshape(-1, D)
            elif "k_proj" not in name and "v_proj" not in name:
                for ours, theirs in self.NAMES.items():
                    name = name.replace(ours, theirs)
                out[name] = x
        return out


FAMILIES = {**{name: Family(name, *rest) for name, *rest in (*rows(), *recurrent.rows())}, "internlm2": InternLM2(),
            "qwen3_next-older": Qwen3NextOlder(),
            "gpt_oss": GptOss("gpt_oss", 54),
            "gpt_oss-6": GptOss("gpt_oss-6", 54, hd=12, heads=6),
            "gpt_oss-32": GptOss("gpt_oss-32", 96, 96, 32)}
