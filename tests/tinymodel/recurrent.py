# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of families (families.py) with layers that remember a sequence in a state.

Which layers those are follows from the configuration; their tensors are under one of MIXERS. A convolution over more
tokens than a piece of a prompt may have, fewer heads of keys than of values, and states of a size that is no multiple of
what a processor takes at a time.
"""

import math

import numpy as np

import families as f

MIXERS = (".conv.", ".mamba.", ".linear_attn.", ".temporal_block.linear_", ".temporal_block.conv_1d.", ".temporal_block.rg_lru.")
ATTENTION = (".self_attn.", ".temporal_block.")


# Layers of one sublayer (Nemotron-H): a letter each, and what stands behind "mixer." in those
SUBLAYERS = {"M": ("in_proj", "conv1d", "dt_bias", "A_log", "D", "norm", "out_proj"), "*": ("q_proj", "k_proj", "v_proj", "o_proj"),
             "-": ("up_proj", "down_proj"), "E": ("experts", "shared_experts", "gate")}


def kinds(config):
    """For each layer whether it has a state, or None where no layer has."""
    n = config.get("num_hidden_layers")
    if "layer_types" in config and {"conv", "mamba", "linear_attention"} & set(config["layer_types"]):
        return [not t.endswith("attention") or t == "linear_attention" for t in config["layer_types"]]
    if "block_types" in config:
        return [config["block_types"][i % len(config["block_types"])] == "recurrent" for i in range(n)]
    if "attn_layer_period" in config:
        return [i % config["attn_layer_period"] != config["attn_layer_offset"] for i in range(n)]
    if "attn_layer_indices" in config:
        return [i not in config["attn_layer_indices"] for i in range(n)]
    return None


def is_there(config, hf, layer):
    """Whether a layer has this tensor, as far as that depends on its having a state."""
    states = kinds(config)
    if "num_dense_layers" in config and ".feed_forward." in hf:
        return (layer < config["num_dense_layers"]) == hf.split(".feed_forward.")[1].startswith("w")
    if "hybrid_override_pattern" in config and ".mixer." in hf:
        return hf.split(".mixer.")[1].split(".")[0] in SUBLAYERS[config["hybrid_override_pattern"][layer]]
    if states is None or "*" not in hf:
        return True
    if "expert_layer_period" in config and ".feed_forward." in hf:
        has_experts = layer % config["expert_layer_period"] == config["expert_layer_offset"]
        return has_experts == any(part in hf for part in (".experts.", ".router."))
    if config["model_type"] == "olmo_hybrid" and ("input_layernorm" in hf or "feedforward_layernorm" in hf):
        return states[layer] == ("input_" in hf)
    if any(m in hf for m in MIXERS):
        return states[layer]
    return not states[layer] if any(a in hf for a in ATTENTION) else True


def conv(hf, gguf, channels, kernel, bias=False):
    yield f"{hf}.weight", gguf and f"{gguf}.weight", (channels, 1, kernel), 0.6, 0.0
    if bias:
        yield f"{hf}.bias", gguf and f"{gguf}.bias", (channels,), 0.3, 0.0


def lfm2(bias=False, n_dense=None):
    """n_dense: layers without experts; None: all."""
    yield from f.ends(last="model.embedding_norm", tied=True)
    yield from f.norm(f"{f.L}.operator_norm", "blk.*.attn_norm")
    yield from f.linear(f"{f.L}.conv.in_proj", "blk.*.shortconv.in_proj", f.D, 3 * f.D, 1.4, bias)
    yield from conv(f"{f.L}.conv.conv", "blk.*.shortconv.conv", f.D, 4, bias)
    yield from f.linear(f"{f.L}.conv.out_proj", "blk.*.shortconv.out_proj", f.D, f.D, 1.2, bias)
    yield from f.qkv(f"{f.L}.self_attn", 1, qk=1.0)
    yield from f.norm(f"{f.L}.self_attn.q_layernorm", "blk.*.attn_q_norm", f.HD, gain=1.4)
    yield from f.norm(f"{f.L}.self_attn.k_layernorm", "blk.*.attn_k_norm", f.HD, gain=1.4)
    yield from f.linear(f"{f.L}.self_attn.out_proj", "blk.*.attn_output", f.Q, f.D, 1.5)
    yield from f.norm(f"{f.L}.ffn_norm", "blk.*.ffn_norm")
    for hf, theirs, *sizes in (("w1", "gate", f.D, f.FF, 1.5), ("w3", "up", f.D, f.FF), ("w2", "down", f.FF, f.D, 1.5)):
        yield from f.linear(f"{f.L}.feed_forward.{hf}", f"blk.*.ffn_{theirs}", *sizes)
    if n_dense is not None:
        yield f"{f.L}.feed_forward.gate.weight", "blk.*.ffn_gate_inp.weight", (f.EXPERTS, f.D), 2.5 / math.sqrt(f.D), 0.0
        yield f"{f.L}.feed_forward.expert_bias", "blk.*.exp_probs_b.bias", (f.EXPERTS,), 0.3, 0.0
        for part, theirs, n_in, n_out in (("w1", "gate", f.D, f.EXPERT_FF), ("w3", "up", f.D, f.EXPERT_FF), ("w2", "down", f.EXPERT_FF, f.D)):
            yield (f"{f.L}.feed_forward.experts.#.{part}.weight", f"blk.*.ffn_{theirs}_exps.weight", (n_out, n_in), 1.5 / math.sqrt(n_in),
                   0.0)


# ---- Mamba-2: heads of a size that is no multiple of 16, and two groups ----

SSM_HEADS, SSM_DIM, GROUPS, STATE = 6, 24, 2, 20
INNER = SSM_HEADS * SSM_DIM
CHANNELS = INNER + 2 * GROUPS * STATE


def mamba2(at, conv_bias=True):
    yield from f.linear(f"{at}.in_proj", "blk.*.ssm_in", f.D, INNER + CHANNELS + SSM_HEADS, 1.4)
    yield from conv(f"{at}.conv1d", "blk.*.ssm_conv1d", CHANNELS, 4, conv_bias)
    yield f"{at}.dt_bias", "blk.*.ssm_dt.bias", (SSM_HEADS,), 0.5, -0.5
    yield f"{at}.A_log", "blk.*.ssm_a", (SSM_HEADS,), 0.6, 0.2
    yield f"{at}.D", "blk.*.ssm_d", (SSM_HEADS,), 0.5, 1.0
    yield from f.norm(f"{at}.norm", "blk.*.ssm_norm", INNER)
    yield from f.linear(f"{at}.out_proj", "blk.*.ssm_out", INNER, f.D, 1.5)


B = "backbone.layers.*"


def backbone(tied=False):
    yield from f.ends(embed="backbone.embeddings", last="backbone.norm_f", tied=tied)
    yield from f.norm(f"{B}.norm", "blk.*.attn_norm")


def mamba2_alone():
    yield from backbone()
    yield from mamba2(f"{B}.mixer")


def nemotron_h(experts):
    at = f"{B}.mixer"
    yield from backbone()
    yield from mamba2(at)
    for part, n, gain in (("q", f.Q, 1.4), ("k", f.HD, 1.4), ("v", f.HD, 1.0)):
        yield from f.linear(f"{at}.{part}_proj", f"blk.*.attn_{part}", f.D, n, gain)
    yield from f.linear(f"{at}.o_proj", "blk.*.attn_output", f.Q, f.D, 1.5)
    yield from f.linear(f"{at}.up_proj", "blk.*.ffn_up", f.D, f.FF, 1.4)
    yield from f.linear(f"{at}.down_proj", "blk.*.ffn_down", f.FF, f.D, 1.5)
    if experts:
        yield from f.linear(f"{at}.gate", "blk.*.ffn_gate_inp", f.D, f.EXPERTS, 2.5)
        yield f"{at}.gate.e_score_correction_bias", "blk.*.exp_probs_b.bias", (f.EXPERTS,), 0.1, 0.0
        for name, end, ff in (("experts.#", "exps", f.EXPERT_FF), ("shared_experts", "shexp", f.SHARED_FF)):
            yield from f.linear(f"{at}.{name}.up_proj", f"blk.*.ffn_up_{end}", f.D, ff, 1.4)
            yield from f.linear(f"{at}.{name}.down_proj", f"blk.*.ffn_down_{end}", ff, f.D, 1.5)


# ---- Mamba: a state of each channel, and time steps of fewer numbers than there are channels ----

MAMBA_STATE, DT_RANK, EXPANDED = 12, 7, 2 * 72  # twice the width of the state


def mamba(bias=False):
    at = f"{B}.mixer"
    yield from backbone(tied=not bias)
    yield from f.linear(f"{at}.in_proj", "blk.*.ssm_in", f.D, 2 * EXPANDED, 1.4, bias)
    yield from conv(f"{at}.conv1d", "blk.*.ssm_conv1d", EXPANDED, 4, True)
    yield from f.linear(f"{at}.x_proj", "blk.*.ssm_x", EXPANDED, DT_RANK + 2 * MAMBA_STATE, 1.6)
    yield f"{at}.dt_proj.weight", "blk.*.ssm_dt.weight", (EXPANDED, DT_RANK), 0.5, 0.0
    yield f"{at}.dt_proj.bias", "blk.*.ssm_dt.bias", (EXPANDED,), 0.5, -0.5
    yield f"{at}.A_log", "blk.*.ssm_a", (EXPANDED, MAMBA_STATE), 0.6, 0.2
    yield f"{at}.D", "blk.*.ssm_d", (EXPANDED,), 0.5, 1.0
    yield from f.linear(f"{at}.out_proj", "blk.*.ssm_out", EXPANDED, f.D, 1.5, bias)


def jamba():
    at, ff = f"{f.L}.mamba", f"{f.L}.feed_forward"
    yield from f.ends(last="model.final_layernorm")
    yield from f.norm(f"{f.L}.input_layernorm", "blk.*.attn_norm")
    yield from f.linear(f"{at}.in_proj", "blk.*.ssm_in", f.D, 2 * EXPANDED, 1.4)
    yield from conv(f"{at}.conv1d", "blk.*.ssm_conv1d", EXPANDED, 4, True)
    yield from f.linear(f"{at}.x_proj", "blk.*.ssm_x", EXPANDED, DT_RANK + 2 * MAMBA_STATE, 1.6)
    yield f"{at}.dt_proj.weight", "blk.*.ssm_dt.weight", (EXPANDED, DT_RANK), 0.5, 0.0
    yield f"{at}.dt_proj.bias", "blk.*.ssm_dt.bias", (EXPANDED,), 0.5, -0.5
    yield f"{at}.A_log", "blk.*.ssm_a", (EXPANDED, MAMBA_STATE), 0.6, 0.2
    yield f"{at}.D", "blk.*.ssm_d", (EXPANDED,), 0.5, 1.0
    yield from f.linear(f"{at}.out_proj", "blk.*.ssm_out", EXPANDED, f.D, 1.5)
    for part, n in (("dt", DT_RANK), ("b", MAMBA_STATE), ("c", MAMBA_STATE)):
        yield from f.norm(f"{at}.{part}_layernorm", f"blk.*.ssm_{part}_norm", n, gain=1.2)
    yield from f.qkv(f"{f.L}.self_attn", 1)
    yield from f.linear(f"{f.L}.self_attn.o_proj", "blk.*.attn_output", f.Q, f.D, 1.5)
    yield from f.norm(f"{f.L}.pre_ff_layernorm", "blk.*.ffn_norm")
    yield from f.gated(ff)
    yield from f.experts(f"{ff}.experts.#.gate_proj", f"{ff}.experts.#.up_proj", f"{ff}.experts.#.down_proj", f"{ff}.router", ff=f.FF)


def granite_hybrid(experts):
    moe, shared = f"{f.L}.block_sparse_moe", f"{f.L}.shared_mlp"
    yield from f.attention_part(tied=True)
    yield from mamba2(f"{f.L}.mamba")
    if experts:
        yield from f.linear(f"{moe}.router.layer", "blk.*.ffn_gate_inp", f.D, f.EXPERTS, 2.5)
        yield f"{moe}.input_linear.weight", "blk.*.ffn_gate_up_exps.weight", (f.EXPERTS, 2 * f.FF, f.D), 1.3 / math.sqrt(f.D), 0.0
        yield f"{moe}.output_linear.weight", "blk.*.ffn_down_exps.weight", (f.EXPERTS, f.D, f.FF), 2.0 / math.sqrt(f.FF), 0.0
    end = "_shexp" if experts else ""
    yield from f.linear(f"{shared}.input_linear", f"blk.*.ffn_gate_up{end}", f.D, 2 * f.SHARED_FF, 1.3)
    yield from f.linear(f"{shared}.output_linear", f"blk.*.ffn_down{end}", f.SHARED_FF, f.D, 1.5)


# ---- gated linear units: as many channels as the state has numbers, in three blocks, with gates that matter ----


def recurrent_gemma():
    at, lru = f"{f.L}.temporal_block", f"{f.L}.temporal_block.rg_lru"
    yield from f.ends(last="model.final_norm", tied=True, plus_one=True)
    for part in ("temporal", "channel"):
        yield from f.norm(f"{f.L}.{part}_pre_norm", None, plus_one=True)
    for part, n_out, gain in (("q", f.Q, 1.4), ("k", f.HD, 1.4), ("v", f.HD, 1.0)):
        yield from f.linear(f"{at}.{part}_proj", None, f.D, n_out, gain)
    yield from f.linear(f"{at}.o_proj", None, f.Q, f.D, 1.5, True)
    for part, gain in (("x", 1.4), ("y", 1.4), ("out", 1.5)):
        yield from f.linear(f"{at}.linear_{part}", None, f.D, f.D, gain, True)
    yield from conv(f"{at}.conv_1d", None, f.D, 4, True)
    for gate in ("input", "recurrent"):
        yield f"{lru}.{gate}_gate_weight", None, (f.HEADS, f.HD, f.HD), 1.5 / math.sqrt(f.HD), 0.0
        yield f"{lru}.{gate}_gate_bias", None, (f.HEADS, f.HD), 0.5, 0.0
    yield f"{lru}.recurrent_param", None, (f.D,), 0.7, -2.0
    for part, n_in, n_out, gain in (("gate", f.D, f.FF, 1.5), ("up", f.D, f.FF, 1.0), ("down", f.FF, f.D, 1.5)):
        yield from f.linear(f"{f.L}.mlp_block.{part}_proj", None, n_in, n_out, gain, True)


def bamba():
    yield from f.ends(last="model.final_layernorm")
    yield from f.norm(f"{f.L}.input_layernorm", None)
    yield from mamba2(f"{f.L}.mamba")
    yield from f.qkv(f"{f.L}.self_attn", 1)
    yield from f.linear(f"{f.L}.self_attn.o_proj", None, f.Q, f.D, 1.5)
    yield from f.norm(f"{f.L}.pre_ff_layernorm", None)
    yield from f.gated(f"{f.L}.feed_forward")


# What multiplies results in Falcon-H1: no two alike, and none 1. In GGUF files they are in the weights.
FALCON = {"embedding_multiplier": 2.5, "lm_head_multiplier": 0.7, "key_multiplier": 0.8, "attention_in_multiplier": 1.2,
          "attention_out_multiplier": 0.6, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.55, "mlp_multipliers": [0.75, 1.4],
          "ssm_multipliers": [0.9, 1.15, 0.65, 1.35, 0.85]}


def falcon_h1(normed=False):
    yield from f.ends(last="model.final_layernorm")
    yield from f.norm(f"{f.L}.input_layernorm", "blk.*.attn_norm")
    yield from (t for t in mamba2(f"{f.L}.mamba") if normed or ".norm." not in t[0])
    yield from f.qkv(f"{f.L}.self_attn", 1)
    yield from f.linear(f"{f.L}.self_attn.o_proj", "blk.*.attn_output", f.Q, f.D, 1.5)
    yield from f.norm(f"{f.L}.pre_ff_layernorm", "blk.*.ffn_norm")
    yield from f.gated(f"{f.L}.feed_forward")


def falcon_multiplied(theirs, x):
    """A tensor as llama.cpp's converter of Falcon-H1 writes it."""
    c, part = FALCON, theirs.split(".")[-2]
    if part == "ssm_in":
        rows = np.repeat(c["ssm_multipliers"], [INNER, INNER, GROUPS * STATE, GROUPS * STATE, SSM_HEADS])
        return x * (rows * c["ssm_in_multiplier"])[:, None].astype(x.dtype)
    one = {"token_embd": c["embedding_multiplier"], "output": c["lm_head_multiplier"],
           "attn_q": c["attention_in_multiplier"], "attn_v": c["attention_in_multiplier"],
           "attn_k": c["attention_in_multiplier"] * c["key_multiplier"], "attn_output": c["attention_out_multiplier"],
           "ssm_out": c["ssm_out_multiplier"], "ffn_gate": c["mlp_multipliers"][0], "ffn_down": c["mlp_multipliers"][1]}
    return x * x.dtype.type(one.get(part, 1.0))


# ---- gated delta rule: two value heads for each key head, keys longer than values ----

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 20, 12
KEYS, VALUES = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM


def delta_net(at, apart):
    if apart:
        for name, gguf, n, gain in (("qkv", "attn_qkv", 2 * KEYS + VALUES, 1.4), ("z", "attn_gate", VALUES, 1.4),
                                    ("b", "ssm_beta", VALUE_HEADS, 1.5), ("a", "ssm_alpha", VALUE_HEADS, 1.5)):
            yield from f.linear(f"{at}.in_proj_{name}", f"blk.*.{gguf}", f.D, n, gain)
    else:
        yield from f.linear(f"{at}.in_proj_qkvz", "blk.*.ssm_in", f.D, 2 * KEYS + 2 * VALUES, 1.4)
        yield from f.linear(f"{at}.in_proj_ba", "blk.*.ssm_ba", f.D, 2 * VALUE_HEADS, 1.5)
    yield from conv(f"{at}.conv1d", "blk.*.ssm_conv1d", 2 * KEYS + VALUES, 4)
    yield f"{at}.dt_bias", "blk.*.ssm_dt.bias", (VALUE_HEADS,), 0.5, -0.5
    yield f"{at}.A_log", "blk.*.ssm_a", (VALUE_HEADS,), 0.6, 0.2
    yield from f.norm(f"{at}.norm", "blk.*.ssm_norm", VALUE_DIM)
    yield from f.linear(f"{at}.out_proj", "blk.*.ssm_out", VALUES, f.D, 1.5)


def olmo_hybrid():
    at, own = f"{f.L}.linear_attn", f"{f.L}.self_attn"
    yield from f.ends()
    yield from f.norm(f"{f.L}.input_layernorm", None)
    for name, n, gain in (("q", KEYS, 1.4), ("k", KEYS, 1.4), ("v", VALUES, 1.4), ("g", VALUES, 1.4), ("b", VALUE_HEADS, 1.5),
                          ("a", VALUE_HEADS, 1.5)):
        yield from f.linear(f"{at}.{name}_proj", None, f.D, n, gain)
    yield from conv(f"{at}.conv1d", None, 2 * KEYS + VALUES, 4)
    yield f"{at}.dt_bias", None, (VALUE_HEADS,), 0.5, -0.5
    yield f"{at}.A_log", None, (VALUE_HEADS,), 0.6, 0.2
    yield from f.norm(f"{at}.o_norm", None, VALUE_DIM)
    yield from f.linear(f"{at}.o_proj", None, VALUES, f.D, 1.5)
    yield from f.qkv(own, 1, qk=1.0)
    yield from f.norm(f"{own}.q_norm", None, f.Q, gain=1.4)
    yield from f.norm(f"{own}.k_norm", None, f.HD, gain=1.4)
    yield from f.linear(f"{own}.o_proj", None, f.Q, f.D, 1.5)
    yield from f.norm(f"{f.L}.post_attention_layernorm", None)
    yield from f.gated(f"{f.L}.mlp")
    yield from f.norm(f"{f.L}.post_feedforward_layernorm", None)


def qwen3_next(apart=False, experts="each"):
    yield from f.ends(plus_one=True)
    yield from f.norm(f"{f.L}.input_layernorm", "blk.*.attn_norm", plus_one=True)
    yield from delta_net(f"{f.L}.linear_attn", apart)
    yield from f.linear(f"{f.L}.self_attn.q_proj", "blk.*.attn_q", f.D, 2 * f.Q, 1.0)  # each head's query, then its gate
    yield from f.linear(f"{f.L}.self_attn.k_proj", "blk.*.attn_k", f.D, f.HD, 1.0)
    yield from f.linear(f"{f.L}.self_attn.v_proj", "blk.*.attn_v", f.D, f.HD, 1.0)
    yield from f.norm(f"{f.L}.self_attn.q_norm", "blk.*.attn_q_norm", f.HD, gain=1.4, plus_one=True)
    yield from f.norm(f"{f.L}.self_attn.k_norm", "blk.*.attn_k_norm", f.HD, gain=1.4, plus_one=True)
    yield from f.linear(f"{f.L}.self_attn.o_proj", "blk.*.attn_output", f.Q, f.D, 2.0)
    yield from f.norm(f"{f.L}.post_attention_layernorm", "blk.*.post_attention_norm", plus_one=True)
    if not experts:
        yield from f.gated(f"{f.L}.mlp")
        return
    if experts == "each":
        yield from f.named_experts()
    else:
        at = f"{f.L}.mlp"
        yield from f.linear(f"{at}.gate", "blk.*.ffn_gate_inp", f.D, f.EXPERTS, 2.5)
        yield f"{at}.experts.gate_up_proj", "blk.*.ffn_gate_up_exps.weight", (f.EXPERTS, 2 * f.EXPERT_FF, f.D), 1.3 / math.sqrt(f.D), 0.0
        yield f"{at}.experts.down_proj", "blk.*.ffn_down_exps.weight", (f.EXPERTS, f.D, f.EXPERT_FF), 2.0 / math.sqrt(f.EXPERT_FF), 0.0
    yield from f.shared_expert(f"{f.L}.mlp.shared_expert")
    yield f"{f.L}.mlp.shared_expert_gate.weight", "blk.*.ffn_gate_inp_shexp.weight", (1, f.D), 1.5 / math.sqrt(f.D), 0.0


def apart():
    """Layers of one sublayer."""
    none = {k: ... for k in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings",
                             "rope_theta")}
    eps = {"layer_norm_epsilon": 1e-5, "pad_token_id": 0}
    sizes = {"conv_kernel": 4, "expand": 2, "use_bias": False, "use_conv_bias": True}
    ssm = {"ssm.conv_kernel": 4, "ssm.inner_size": INNER, "ssm.state_size": STATE, "ssm.time_step_rank": SSM_HEADS,
           "ssm.group_count": GROUPS}
    no_heads = {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}
    yield "mamba2", f.config("Mamba2ForCausalLM", "mamba2", 3, **none, **eps, **sizes, num_heads=SSM_HEADS, head_dim=SSM_DIM,
                             n_groups=GROUPS, state_size=STATE, chunk_size=16), mamba2_alone(), ("mamba2", {**ssm, **no_heads})
    hybrid = {**eps, **sizes, "mamba_num_heads": SSM_HEADS, "mamba_head_dim": SSM_DIM, "n_groups": GROUPS,
              "ssm_state_size": STATE, "chunk_size": 16, "head_dim": f.HD, "mlp_hidden_act": "relu2", "rope_theta": ...}
    yield "nemotron_h", f.config("NemotronHForCausalLM", "nemotron_h", 5, **hybrid, hybrid_override_pattern="M-*M-"), (
        nemotron_h(False)), ("nemotron_h", {**ssm, "attention.head_count_kv": [0, 0, 1, 0, 0], "attention.key_length": f.HD,
                                            "attention.value_length": f.HD, "feed_forward_length": [0, f.FF, 0, 0, f.FF]})
    experts = {"n_routed_experts": f.EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": f.EXPERT_FF,
               "moe_shared_expert_intermediate_size": f.SHARED_FF, "routed_scaling_factor": 1.7, "norm_topk_prob": True}
    yield "nemotron_h-moe", f.config("NemotronHForCausalLM", "nemotron_h", 5, **hybrid, **experts, time_step_min=0.4,
                                     hybrid_override_pattern="ME*-E"), nemotron_h(True), None
    # as GGUF files have them: without a least time step, and no layer has a plain MLP
    yield "nemotron_h-experts", f.config("NemotronHForCausalLM", "nemotron_h", 5, **hybrid, **experts, hybrid_override_pattern="ME*ME"), (
        nemotron_h(True)), (
        "nemotron_h_moe", {**ssm, "attention.head_count_kv": [0, 0, 1, 0, 0], "attention.key_length": f.HD, "attention.value_length": f.HD,
                           "feed_forward_length": [0, f.EXPERT_FF, 0, 0, f.EXPERT_FF], "expert_count": f.EXPERTS, "expert_used_count": 3,
                           "expert_feed_forward_length": f.EXPERT_FF, "expert_shared_feed_forward_length": f.SHARED_FF,
                           "expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.7, "expert_group_count": 1})
    channels = {**none, **sizes, "state_size": MAMBA_STATE, "time_step_rank": DT_RANK, "pad_token_id": 0}
    scan = {**no_heads, "ssm.conv_kernel": 4, "ssm.inner_size": EXPANDED, "ssm.state_size": MAMBA_STATE,
            "ssm.time_step_rank": DT_RANK}
    yield "mamba", f.config("MambaForCausalLM", "mamba", 3, **{**channels, "tie_word_embeddings": True}, layer_norm_epsilon=1e-5), (
        mamba()), ("mamba", scan)
    yield "mamba-bias", f.config("MambaForCausalLM", "mamba", 2, **{**channels, "use_bias": True}, layer_norm_epsilon=1e-5), (
        mamba(True)), None
    yield "jamba", f.config("JambaForCausalLM", "jamba", 5, **{**f.RMS, "rope_theta": ...}, num_experts=f.EXPERTS, num_experts_per_tok=3,
                            expert_layer_period=2, expert_layer_offset=1, attn_layer_period=3, attn_layer_offset=1, mamba_d_state=MAMBA_STATE,
                            mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=DT_RANK, mamba_conv_bias=True, mamba_proj_bias=False,
                            pad_token_id=0), jamba(), (
        "jamba", {"ssm.conv_kernel": 4, "ssm.inner_size": EXPANDED, "ssm.state_size": MAMBA_STATE, "ssm.time_step_rank": DT_RANK,
                  "attention.head_count_kv": [0, 1, 0, 0, 1], "expert_count": f.EXPERTS, "expert_used_count": 3})
    # GGUF files have one epsilon for all norms
    yield "falcon_mamba", f.config("FalconMambaForCausalLM", "falcon_mamba", 3, **{**channels, "tie_word_embeddings": True},
                                   layer_norm_epsilon=0.02, mixer_rms_eps=0.02), mamba(), (
        "mamba", {**scan, "ssm.dt_b_c_rms": True})


def rows():
    types = ["conv", "conv", "full_attention", "conv"]
    small = {"norm_eps": 1e-5, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False, "layer_types": types,
             "tie_word_embeddings": True, "pad_token_id": 0}
    keys = {"shortconv.l_cache": 4, "attention.head_count_kv": [0, 0, 1, 0], "final_norm": "token_embd_norm"}
    yield "lfm2", f.config("Lfm2ForCausalLM", "lfm2", 4, **small, conv_bias=False), lfm2(), ("lfm2", keys)
    yield "lfm2-bias", f.config("Lfm2ForCausalLM", "lfm2", 4, **small, conv_bias=True), lfm2(True), None
    yield "lfm2_moe", f.config("Lfm2MoeForCausalLM", "lfm2_moe", 4, **{k: v for k, v in small.items() if k[:5] != "block"},
                               conv_bias=False, num_dense_layers=1, num_experts=f.EXPERTS, num_experts_per_tok=3,
                               moe_intermediate_size=f.EXPERT_FF, routed_scaling_factor=1.6, norm_topk_prob=True,
                               use_expert_bias=True), lfm2(n_dense=1), (
        "lfm2moe", {**keys, "expert_count": f.EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": f.EXPERT_FF,
                    "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_scale": 1.6})
    sizes = {"mamba_n_heads": SSM_HEADS, "mamba_d_head": SSM_DIM, "mamba_n_groups": GROUPS, "mamba_d_state": STATE,
             "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_proj_bias": False}
    granite = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.11, "logits_scaling": 1.7,
               "shared_intermediate_size": f.SHARED_FF, "tie_word_embeddings": True, "num_experts_per_tok": 3,
               "layer_types": ["mamba", "attention", "mamba", "mamba"]}
    ssm = {"ssm.conv_kernel": 4, "ssm.inner_size": INNER, "ssm.state_size": STATE, "ssm.time_step_rank": SSM_HEADS,
           "ssm.group_count": GROUPS, "attention.head_count_kv": [0, 1, 0, 0], "pairs": True, "embedding_scale": 3.0,
           "residual_scale": 0.22, "attention.scale": 0.11, "logit_scale": 1.7}
    yield "granitemoehybrid", f.config("GraniteMoeHybridForCausalLM", "granitemoehybrid", 4, **f.RMS, **sizes, **granite,
                                       num_local_experts=f.EXPERTS, position_embedding_type="nope"), granite_hybrid(True), (
        "granitehybrid", {**ssm, "expert_count": f.EXPERTS, "expert_used_count": 3, "rope.scaling.finetuned": False,
                          "expert_shared_feed_forward_length": f.SHARED_FF})
    yield "granitemoehybrid-dense", f.config("GraniteMoeHybridForCausalLM", "granitemoehybrid", 4, **f.RMS, **sizes, **granite,
                                             num_local_experts=0, position_embedding_type="rope"), granite_hybrid(False), (
        "granitehybrid", {**ssm, "feed_forward_length": f.SHARED_FF, "rope.scaling.finetuned": True})
    yield "bamba", f.config("BambaForCausalLM", "bamba", 4, **f.RMS, **sizes, attn_layer_indices=[2], pad_token_id=0,
                            partial_rotary_factor=0.5), bamba(), None
    yield "falcon_h1", f.config("FalconH1ForCausalLM", "falcon_h1", 3, **f.RMS, **sizes, **FALCON, mamba_d_ssm=INNER, head_dim=f.HD,
                                mamba_rms_norm=False, pad_token_id=0), falcon_h1(), (
        "falcon-h1", {**{k: v for k, v in ssm.items() if k.startswith("ssm.")}, "multiplied": True,
                      "attention.key_length": f.HD, "attention.value_length": f.HD})
    yield "falcon_h1-norm", f.config("FalconH1ForCausalLM", "falcon_h1", 2, **f.RMS, **sizes, **FALCON, mamba_d_ssm=INNER,
                                     head_dim=f.HD, mamba_rms_norm=True, mamba_norm_before_gate=True, pad_token_id=0), (
        falcon_h1(True)), None
    yield "recurrent_gemma", f.config(
        "RecurrentGemmaForCausalLM", "recurrent_gemma", 4, **{**f.RMS, "intermediate_size": 2 * f.FF}, block_types=[
            "recurrent", "attention", "recurrent"], attention_window_size=9, conv1d_width=4, lru_width=f.D, logits_soft_cap=6.0,
        partial_rotary_factor=0.5, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True), recurrent_gemma(), None
    yield from apart()
    delta = {"linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": VALUE_HEADS, "linear_key_head_dim": KEY_DIM,
             "linear_value_head_dim": VALUE_DIM, "linear_conv_kernel_dim": 4, "head_dim": f.HD, "partial_rotary_factor": 0.25,
             "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"]}
    moe = {"num_experts": f.EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": f.EXPERT_FF,
           "shared_expert_intermediate_size": f.SHARED_FF, "norm_topk_prob": True, "output_router_logits": False}
    hybrid = {k: v for k, v in delta.items() if k[:6] in ("linear", "layer_")}
    yield "olmo_hybrid", f.config("OlmoHybridForCausalLM", "olmo_hybrid", 4, **{**f.RMS, "rope_theta": ...}, **hybrid, pad_token_id=0,
                                  rope_parameters={"rope_theta": None, "rope_type": "default"}), olmo_hybrid(), None
    yield "olmo_hybrid-rope", f.config("OlmoHybridForCausalLM", "olmo_hybrid", 4, **f.RMS, **hybrid, pad_token_id=0,
                                       linear_allow_neg_eigval=False), olmo_hybrid(), None
    keys = {"tiled": True, "plus_one": True, "attention.key_length": f.HD, "attention.value_length": f.HD, "ssm.conv_kernel": 4,
            "ssm.inner_size": VALUES, "ssm.state_size": KEY_DIM, "ssm.time_step_rank": VALUE_HEADS, "ssm.group_count": KEY_HEADS,
            "rope.dimension_count": int(f.HD * 0.25), "full_attention_interval": 3}
    experts = {"expert_count": f.EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": f.EXPERT_FF,
               "expert_shared_feed_forward_length": f.SHARED_FF}
    yield "qwen3_next", f.config("Qwen3NextForCausalLM", "qwen3_next", 4, **f.RMS, **delta, **moe), qwen3_next(), (
        "qwen3next", {**{k: v for k, v in keys.items() if k != "tiled"}, **experts, "delta": True})
    yield "qwen3_5", f.config("Qwen3_5ForCausalLM", "qwen3_5_text", 4, **f.RMS, **delta), qwen3_next(True, None), ("qwen35", keys)
    yield "qwen3_5_moe", f.config("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 4, **f.RMS, **delta, **moe), (
        qwen3_next(True, "stacked")), ("qwen35moe", {
            **keys, **experts})


def delta_parts(x):
    """in_proj_qkvz of Qwen3-Next as two matrices, of q, k and v, and of the gate, each with the heads in their order."""
    each = np.split(x.reshape(KEY_HEADS, -1, x.shape[-1]), np.cumsum([KEY_DIM, KEY_DIM, VALUES // KEY_HEADS]), axis=1)
    q, k, v, z = (part.reshape(-1, x.shape[-1]) for part in each)
    return (("attn_qkv", np.concatenate([q, k, v])), ("attn_gate", np.ascontiguousarray(z)))


def by_turns(theirs, x):
    """Value heads as llama.cpp's converter of Qwen3.5 puts them: the first of each key head, then the second ones."""
    part = theirs.split(".")[2] if theirs.startswith("blk.") else ""
    turn = lambda y, dim: y.reshape(KEY_HEADS, -1, dim, *y.shape[1:]).swapaxes(0, 1).reshape(y.shape)  # noqa: E731
    if part in ("attn_qkv", "ssm_conv1d"):
        return np.concatenate([x[:2 * KEYS], turn(x[2 * KEYS:], VALUE_DIM)])
    if part == "ssm_out":
        return turn(x.T, VALUE_DIM).T
    if part in ("attn_gate", "ssm_beta", "ssm_alpha", "ssm_a", "ssm_dt"):
        return turn(x, VALUE_DIM if part == "attn_gate" else 1)
    return x


def stored(theirs, x, keys):
    """A tensor as llama.cpp's writer has it: its name and its values."""
    if "multiplied" in keys:
        x = falcon_multiplied(theirs, x)
    if "tiled" in keys:
        x = by_turns(theirs, x)
    if x.ndim == 3 and x.shape[1] == 1:
        x = x.squeeze(1)
    if theirs.endswith("ssm_a"):
        x = -np.exp(x)
    is_delta = {"tiled", "delta", "grouped_delta"} & set(keys)
    if theirs.endswith(("ssm_a", "ssm_d")) and "ssm.group_count" in keys and not is_delta:
        x = x.reshape(-1, 1)
    if theirs.endswith("ssm_norm.weight") and not is_delta:
        x = x.reshape(GROUPS, -1)
    if theirs == "output_norm.weight" and "final_norm" in keys:
        theirs = keys["final_norm"] + ".weight"
    return theirs, x
