# SPDX-License-Identifier: Apache-2.0
"""A tiny Gemma 3n: six layers, of which the last three read keys and values of others, two of one layer and one of another;
some MLPs keep a share of their numbers; fewer tokens have a second embedding than there are."""

import math
import statistics

import numpy as np

import families as f

PER_LAYER, RANK, STATES, LAYERS, SHARED, SECOND = 20, 10, 4, 6, 3, 300
SPARSE = [0.95, 0.7, 0.0, 0.9, 0.0, 0.6]
TYPES = 2 * [*2 * ["sliding_attention"], "full_attention"]


def rows(at="model"):
    layer = f"{at}.layers.*"
    yield f"{at}.embed_tokens.weight", "token_embd.weight", (f.VOCAB, f.D), 0.5 / math.sqrt(f.D), 0.0
    yield f"{at}.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", (SECOND, LAYERS * PER_LAYER), 0.3, 0.0
    yield from f.linear(f"{at}.per_layer_model_projection", "per_layer_model_proj", f.D, LAYERS * PER_LAYER, math.sqrt(f.D))
    yield from f.norm(f"{at}.per_layer_projection_norm", "per_layer_proj_norm", PER_LAYER)
    for i in range(STATES - 1):
        yield from f.linear(f"{at}.altup_projections.{i}", f"altup_proj.{i}", f.D, f.D)
        yield from f.linear(f"{at}.altup_unembed_projections.{i}", f"altup_unembd_proj.{i}", f.D, f.D)
    for hf, gguf, gain in (("input_layernorm", "attn_norm", 1.0), ("post_attention_layernorm", "post_attention_norm", 0.7),
                           ("pre_feedforward_layernorm", "ffn_norm", 1.0), ("post_feedforward_layernorm", "post_ffw_norm", 0.7),
                           ("laurel.post_laurel_norm", "laurel_post_norm", 0.5), ("altup.router_norm", "altup_router_norm", 1.0),
                           ("post_per_layer_input_norm", "post_norm", 0.5)):
        yield from f.norm(f"{layer}.{hf}", f"blk.*.{gguf}", gain=gain)
    yield from f.qkv(f"{layer}.self_attn", 1, qk=1.0)
    yield from f.norm(f"{layer}.self_attn.q_norm", "blk.*.attn_q_norm", f.HD, gain=0.6)
    yield from f.norm(f"{layer}.self_attn.k_norm", "blk.*.attn_k_norm", f.HD, gain=0.6)
    yield from f.linear(f"{layer}.self_attn.o_proj", "blk.*.attn_output", f.Q, f.D, 1.5)
    yield from f.gated(f"{layer}.mlp")
    yield from f.linear(f"{layer}.laurel.linear_left", "blk.*.laurel_l", f.D, RANK)
    yield from f.linear(f"{layer}.laurel.linear_right", "blk.*.laurel_r", RANK, f.D)
    yield from f.linear(f"{layer}.per_layer_input_gate", "blk.*.inp_gate", f.D, PER_LAYER, 1.5)
    yield from f.linear(f"{layer}.per_layer_projection", "blk.*.proj", PER_LAYER, f.D)
    yield f"{layer}.altup.modality_router.weight", "blk.*.altup_router.weight", (STATES, f.D), 4.0, 0.0
    yield f"{layer}.altup.prediction_coefs.weight", "blk.*.altup_predict_coef.weight", (STATES * STATES, STATES), 0.2, 0.0
    yield f"{layer}.altup.correction_coefs.weight", "blk.*.altup_correct_coef.weight", (STATES, STATES), 0.3, 0.0
    yield f"{layer}.altup.correct_output_scale", "blk.*.altup_correct_scale.weight", (f.D,), 0.2, 1.0
    yield from f.norm(f"{at}.norm", "output_norm", gain=4.0)


def config():
    return f.config("Gemma3nForCausalLM", "gemma3n_text", LAYERS, rms_norm_eps=1e-6, head_dim=f.HD, sliding_window=9, layer_types=TYPES,
                    rope_theta=..., rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                                     "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
                    hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, final_logit_softcapping=6.0,
                    vocab_size_per_layer_input=SECOND, hidden_size_per_layer_input=PER_LAYER, altup_num_inputs=STATES,
                    altup_active_idx=0, altup_correct_scale=True, num_kv_shared_layers=SHARED, laurel_rank=RANK, pad_token_id=0,
                    activation_sparsity_pattern=SPARSE)


class Gemma3n(f.Family):
    def __init__(self):
        super().__init__("gemma3n", config(), rows(), ("gemma3n", {
            "attention.key_length": f.HD, "attention.value_length": f.HD, "attention.sliding_window": 9,
            "final_logit_softcapping": 6.0, "rope.freq_base": 1e6, "altup.active_idx": 0, "altup.num_inputs": STATES,
            "embedding_length_per_layer_input": PER_LAYER, "attention.shared_kv_layers": SHARED}))

    def _is_there(self, hf, layer):
        return layer < LAYERS - SHARED or not any(f".{name}." in hf for name in ("k_proj", "v_proj", "k_norm"))

    def gguf_tensors(self, tensors):
        """The projections of the states lie in one tensor, and layers that use no keys and values of their own have some."""
        for name, x in super().gguf_tensors(tensors):
            stem, _, rest = name.partition(".")
            if stem in ("altup_proj", "altup_unembd_proj"):
                if rest == "0.weight":
                    hf = "altup_projections" if stem == "altup_proj" else "altup_unembed_projections"
                    yield f"{stem}.weight", np.stack([tensors[f"model.{hf}.{i}.weight"] for i in range(STATES - 1)])
                continue
            yield name, x
            if name.startswith("blk.0.attn_") and name.split(".")[2] in ("attn_k", "attn_v", "attn_k_norm"):
                for i in range(LAYERS - SHARED, LAYERS):
                    yield name.replace("blk.0", f"blk.{i}"), x + np.float32(1)

    def gguf_keys(self):
        yield from super().gguf_keys()
        deviations = [statistics.NormalDist().inv_cdf(p) if p else -math.inf for p in SPARSE]
        yield "gemma3n.activation_sparsity_scale", "float32s", deviations
        yield "gemma3n.attention.sliding_window_pattern", "bools", [t == "sliding_attention" for t in TYPES]
