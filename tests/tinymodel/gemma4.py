# SPDX-License-Identifier: Apache-2.0
"""Tiny models of Gemma 4. Layers without a window have wider heads, of which a quarter of the pairs turns, and a number multiplies
the state behind each layer.

gemma4        six layers, of which the last three read keys and values of others and have an MLP of twice the width; a second
              embedding
gemma4-dense  layers without a window have one head of keys for three, and no product for values
gemma4-moe    the same with experts beside each MLP"""

import math

import numpy as np

import families as f

WIDE, PER_LAYER = 40, 20
TYPES = [*2 * ["sliding_attention"], "full_attention"]


class Gemma4(f.Family):
    """shared: layers that read keys and values of others; kv, full_kv: heads of keys in layers with and without a window."""

    def __init__(self, name, repeats, shared, per_layer, kv, full_kv, experts=0):
        self.experts = experts
        self.types, self.shared, self.per_layer, self.kv, self.full_kv = repeats * TYPES, shared, per_layer, kv, full_kv
        layers = len(self.types)
        c = f.config("Gemma4ForCausalLM", "gemma4_text", layers, kv, rms_norm_eps=1e-6, head_dim=f.HD, sliding_window=9,
                     layer_types=self.types, rope_theta=..., tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
                     rope_parameters={
                         "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
                     final_logit_softcapping=6.0, global_head_dim=WIDE, attention_k_eq_v=full_kv != kv,
                     num_global_key_value_heads=full_kv if full_kv != kv else None, num_kv_shared_layers=shared,
                     use_double_wide_mlp=shared > 0, hidden_size_per_layer_input=per_layer, vocab_size_per_layer_input=f.VOCAB,
                     pad_token_id=0, enable_moe_block=experts > 0)
        if experts:
            c.update(num_experts=experts, top_k_experts=3, moe_intermediate_size=f.EXPERT_FF)
        extra = {"attention.key_length": WIDE, "attention.value_length": WIDE, "attention.key_length_swa": f.HD,
                 "attention.value_length_swa": f.HD, "attention.sliding_window": 9, "final_logit_softcapping": 6.0,
                 "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "rope.dimension_count": WIDE, "rope.dimension_count_swa": f.HD,
                 "embedding_length_per_layer_input": per_layer, "attention.shared_kv_layers": shared}
        if experts:
            extra |= {"expert_count": experts, "expert_used_count": 3, "expert_feed_forward_length": f.EXPERT_FF}
        if shared:
            extra["feed_forward_length"] = [f.FF * (2 if self._reads(i) else 1) for i in range(layers)]
        if full_kv != kv:
            extra["attention.head_count_kv"] = [kv if self._slides(i) else full_kv for i in range(layers)]
        super().__init__(name, c, self._rows(layers), ("gemma4", extra))

    def _slides(self, layer):
        return self.types[layer] == "sliding_attention"

    def _reads(self, layer):
        return layer >= len(self.types) - self.shared

    def _rows(self, layers):
        yield "model.embed_tokens.weight", "token_embd.weight", (f.VOCAB, f.D), 0.5 / math.sqrt(f.D), 0.0
        if self.per_layer:
            yield "model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", (f.VOCAB, layers * self.per_layer), 0.3, 0.0
            yield from f.linear("model.per_layer_model_projection", "per_layer_model_proj", f.D, layers * self.per_layer, math.sqrt(f.D))
            yield from f.norm("model.per_layer_projection_norm", "per_layer_proj_norm", self.per_layer)
        for i in range(layers):
            yield from self._layer(f"model.layers.{i}", f"blk.{i}", i)
        yield from f.norm("model.norm", "output_norm", gain=4.0)

    def _layer(self, at, blk, i):
        hd = f.HD if self._slides(i) else WIDE
        kv, ff = self.kv if self._slides(i) else self.full_kv, f.FF * (2 if self._reads(i) else 1)
        for hf, gguf, gain in (("input_layernorm", "attn_norm", 1.0), ("post_attention_layernorm", "post_attention_norm", 0.7),
                               ("pre_feedforward_layernorm", "ffn_norm", 1.0), ("post_feedforward_layernorm", "post_ffw_norm", 0.7)):
            yield from f.norm(f"{at}.{hf}", f"{blk}.{gguf}", gain=gain)
        yield from f.linear(f"{at}.self_attn.q_proj", f"{blk}.attn_q", f.D, f.HEADS * hd)
        yield from f.norm(f"{at}.self_attn.q_norm", f"{blk}.attn_q_norm", hd, gain=0.6)
        if not self._reads(i):
            yield from f.linear(f"{at}.self_attn.k_proj", f"{blk}.attn_k", f.D, kv * hd)
            yield from f.norm(f"{at}.self_attn.k_norm", f"{blk}.attn_k_norm", hd, gain=0.6)
            if self._slides(i) or self.full_kv == self.kv:
                yield from f.linear(f"{at}.self_attn.v_proj", f"{blk}.attn_v", f.D, kv * hd)
        yield from f.linear(f"{at}.self_attn.o_proj", f"{blk}.attn_output", f.HEADS * hd, f.D, 1.5)
        yield from f.linear(f"{at}.mlp.gate_proj", f"{blk}.ffn_gate", f.D, ff, 1.5)
        yield from f.linear(f"{at}.mlp.up_proj", f"{blk}.ffn_up", f.D, ff)
        yield from f.linear(f"{at}.mlp.down_proj", f"{blk}.ffn_down", ff, f.D, 1.5)
        if self.per_layer:
            yield from f.linear(f"{at}.per_layer_input_gate", f"{blk}.inp_gate", f.D, self.per_layer, 1.5)
            yield from f.linear(f"{at}.per_layer_projection", f"{blk}.proj", self.per_layer, f.D)
            yield from f.norm(f"{at}.post_per_layer_input_norm", f"{blk}.post_norm", gain=0.5)
        if self.experts:
            n, ff = self.experts, f.EXPERT_FF
            for hf, gguf, gain in (("pre_feedforward_layernorm_2", "pre_ffw_norm_2", 1.0), ("post_feedforward_layernorm_1", "post_ffw_norm_1", 0.8),
                                   ("post_feedforward_layernorm_2", "post_ffw_norm_2", 0.9)):
                yield from f.norm(f"{at}.{hf}", f"{blk}.{gguf}", gain=gain)
            yield from f.linear(f"{at}.router.proj", f"{blk}.ffn_gate_inp", f.D, n, 2.5 * math.sqrt(f.D))
            yield f"{at}.router.scale", f"{blk}.ffn_gate_inp.scale", (f.D,), 0.2, 1.0
            yield f"{at}.router.per_expert_scale", f"{blk}.ffn_down_exps.scale", (n,), 0.3, 1.0
            yield f"{at}.experts.gate_up_proj", f"{blk}.ffn_gate_up_exps.weight", (n, 2 * ff, f.D), 1.3 / math.sqrt(f.D), 0.0
            yield f"{at}.experts.down_proj", f"{blk}.ffn_down_exps.weight", (n, f.D, ff), 2.0 / math.sqrt(ff), 0.0
        yield f"{at}.layer_scalar", f"{blk}.layer_output_scale.weight", (1,), 0.3, 0.8

    def gguf_tensors(self, tensors):
        for name, x in super().gguf_tensors(tensors):  # gate and up of experts stay in one
            if "ffn_gate_exps" in name:
                layer = name.split(".")[1]
                yield name.replace("gate", "gate_up"), tensors[f"model.layers.{layer}.experts.gate_up_proj"]
            elif "ffn_up_exps" not in name:
                yield name, x
        turned = int(WIDE * 0.25) // 2
        yield "rope_freqs.weight", np.array([1.0] * turned + [1e30] * (WIDE // 2 - turned), np.float32)

    def gguf_keys(self):
        yield from super().gguf_keys()
        yield "gemma4.attention.sliding_window_pattern", "bools", [t == "sliding_attention" for t in self.types]


MODELS = {"gemma4": Gemma4("gemma4", 2, 3, PER_LAYER, 1, 1), "gemma4-dense": Gemma4("gemma4-dense", 1, 0, 0, 3, 1),
          "gemma4-moe": Gemma4("gemma4-moe", 1, 0, 0, 3, 1, f.EXPERTS)}
