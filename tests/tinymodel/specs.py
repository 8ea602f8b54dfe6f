# SPDX-License-Identifier: Apache-2.0
"""The tiny architectures: their config.json, tensor names and shapes, and how large weights are.

The shapes are chosen to break assumptions, not to be pretty: grouped and multi-query attention,
head sizes that are not hidden / heads, windows shorter than the prompts, a vocabulary of odd size.
At least one variant of each way to store weights has rows of 256 values, so that every block
format applies; the others fall back as llama.cpp does.

Weight sizes: a matrix entry has deviation gain / sqrt(fan in), so a block changes the residual
stream about as much as what came before it; q and k have a gain above 1 so that attention is
neither uniform nor one-hot; the last norm brings logits to a deviation of 1 to 3.
"""

import math

from more_families import FAMILIES


class Spec:
    """One architecture. `tensors()` yields (name, shape, kind, deviation, mean)."""

    def __init__(self, name, config, gguf_arch=None, no_gguf=None, prefix=None):
        self.name, self.config = name, config
        self.gguf_arch = gguf_arch  # general.architecture
        self.no_gguf = no_gguf  # why the family has no GGUF form here
        self.prefix = prefix  # what stands before gpt2's tensor names

    @property
    def seed(self):
        """Variants that differ only in spelling share their weights (and golden)."""
        return "gpt2" if self.name.startswith("gpt2") else self.name

    def tensors(self):
        if self.config["model_type"] == "gpt2":
            return _gpt2(self.config)
        return _decoder(self.config)


def _gpt2(c):
    d, ffn = c["n_embd"], 4 * c["n_embd"]

    def norm(name):
        yield f"{name}.weight", (d,), 0.2, 1.0
        yield f"{name}.bias", (d,), 0.1, 0.0

    def conv(name, n_in, n_out, gain):
        # Conv1D: stored [in, out]
        yield f"{name}.weight", (n_in, n_out), gain / math.sqrt(n_in), 0.0
        yield f"{name}.bias", (n_out,), 0.1, 0.0

    yield "transformer.wte.weight", (c["vocab_size"], d), 0.16, 0.0
    yield "transformer.wpe.weight", (c["n_positions"], d), 0.10, 0.0
    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}"
        yield from norm(f"{p}.ln_1")
        yield from conv(f"{p}.attn.c_attn", d, 3 * d, 1.5)
        yield from conv(f"{p}.attn.c_proj", d, d, 1.0)
        yield from norm(f"{p}.ln_2")
        yield from conv(f"{p}.mlp.c_fc", d, ffn, 1.2)
        yield from conv(f"{p}.mlp.c_proj", ffn, d, 1.2)
    yield from norm("transformer.ln_f")


def _decoder(c):
    d, ffn = c["hidden_size"], c["intermediate_size"]
    hd = c.get("head_dim") or d // c["num_attention_heads"]
    nq, nkv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    family = c["model_type"]
    gemma = family.startswith("gemma")
    post_norms = gemma and family != "gemma"
    tied = c.get("tie_word_embeddings", False)
    qk_norm = family in ("qwen3", "gemma3_text")

    def norm(name, n, gain=1.0):
        yield f"{name}.weight", (n,), 0.2 * gain, gain - (1.0 if gemma else 0.0)

    def linear(name, n_in, n_out, gain, bias=0.0):
        yield f"{name}.weight", (n_out, n_in), gain / math.sqrt(n_in), 0.0
        if bias:
            yield f"{name}.bias", (n_out,), bias, 0.0

    # A tied table is also the output matrix: short rows, else a token predicts itself. Gemma
    # multiplies its rows by sqrt(d) on the way in, so they are shorter still.
    embed = (0.5 / math.sqrt(d)) if gemma else (1.0 / math.sqrt(d)) if tied else 0.7
    bias = 0.5 if family == "qwen2" else 0.0
    qk = 1.0 if qk_norm else (2.0 if gemma else 1.4)
    yield "model.embed_tokens.weight", (c["vocab_size"], d), embed, 0.0
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        yield from norm(f"{p}.input_layernorm", d)
        yield from linear(f"{p}.self_attn.q_proj", d, nq, qk, bias)
        yield from linear(f"{p}.self_attn.k_proj", d, nkv, qk, bias)
        yield from linear(f"{p}.self_attn.v_proj", d, nkv, 1.0, bias)
        yield from linear(f"{p}.self_attn.o_proj", nq, d, 1.5)
        if qk_norm:
            yield from norm(f"{p}.self_attn.q_norm", hd, 1.4)
            yield from norm(f"{p}.self_attn.k_norm", hd, 1.4)
        yield from norm(f"{p}.post_attention_layernorm", d, 2.0 if post_norms else 1.0)
        if post_norms:
            yield from norm(f"{p}.pre_feedforward_layernorm", d)
            yield from norm(f"{p}.post_feedforward_layernorm", d, 2.0)
        yield from linear(f"{p}.mlp.gate_proj", d, ffn, 1.5)
        yield from linear(f"{p}.mlp.up_proj", d, ffn, 1.0)
        yield from linear(f"{p}.mlp.down_proj", ffn, d, 1.5)
    yield from norm("model.norm", d, 4.0 if gemma else 2.0)
    if not tied:
        yield from linear("lm_head", d, c["vocab_size"], 1.0)


def _gpt2_config(**more):
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": 96,
        "n_head": 6,
        "n_layer": 4,
        "n_positions": 256,
        "n_ctx": 256,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 389,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        **more,
    }


def _decoder_config(architecture, model_type, **more):
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_dropout": 0.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
        **more,
    }


def _gemma_config(architecture, model_type, **more):
    config = _decoder_config(architecture, model_type, hidden_activation="gelu_pytorch_tanh",
                             tie_word_embeddings=True, **more)
    del config["hidden_act"]  # gemma reads hidden_activation
    return config


def _make():
    llama, mistral = "LlamaForCausalLM", "MistralForCausalLM"
    yield Spec("gpt2", _gpt2_config(), "gpt2", prefix="transformer.")
    # As the published gpt2 folders: no prefix, and the causal mask stored as a buffer.
    yield Spec("gpt2-plain", _gpt2_config(), "gpt2", prefix="")
    yield Spec("llama", _decoder_config(
        llama, "llama", hidden_size=256, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, intermediate_size=512, vocab_size=320, rope_theta=10000.0,
        rms_norm_eps=1e-5), "llama")
    yield Spec("llama3", _decoder_config(
        llama, "llama", hidden_size=128, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, intermediate_size=352, vocab_size=512, rope_theta=500000.0,
        rms_norm_eps=1e-5, rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}), "llama")
    yield Spec("llama3-tied", _decoder_config(
        llama, "llama", hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, head_dim=32, intermediate_size=160, vocab_size=384,
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_scaling={
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 128}), "llama")
    yield Spec("qwen2", _decoder_config(
        "Qwen2ForCausalLM", "qwen2", hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=320, vocab_size=640, rope_theta=1000000.0,
        tie_word_embeddings=True, use_sliding_window=False, sliding_window=512,
        max_window_layers=3), "qwen2")
    yield Spec("qwen3", _decoder_config(
        "Qwen3ForCausalLM", "qwen3", hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=256, vocab_size=448,
        rope_theta=1000000.0, use_sliding_window=False, sliding_window=None,
        max_window_layers=3), "qwen3")
    yield Spec("mistral", _decoder_config(
        mistral, "mistral", hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=288, vocab_size=352,
        rope_theta=10000.0, rms_norm_eps=1e-5, sliding_window=24),
        no_gguf="GGUF files of this family carry no sliding window")
    # As the first published files: "gelu", by which they mean its approximation.
    gemma1 = _decoder_config(
        "GemmaForCausalLM", "gemma", hidden_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, head_dim=48, intermediate_size=512, vocab_size=410,
        rope_theta=10000.0, tie_word_embeddings=True)
    gemma1["hidden_act"] = "gelu"
    yield Spec("gemma", gemma1, "gemma")
    yield Spec("llama-dynamic", _decoder_config(
        llama, "llama", hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=224, vocab_size=336, rope_theta=10000.0,
        rms_norm_eps=1e-5, max_position_embeddings=64,
        rope_scaling={"rope_type": "dynamic", "factor": 3.0}),
        no_gguf="GGUF files cannot say that positions are scaled by the length")
    yield Spec("gemma2", _gemma_config(
        "Gemma2ForCausalLM", "gemma2", hidden_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=256,
        vocab_size=768, rope_theta=10000.0, sliding_window=16, query_pre_attn_scalar=48,
        attn_logit_softcapping=4.0, final_logit_softcapping=6.0),
        no_gguf="a GGUF file cannot say that query_pre_attn_scalar is not head_dim; "
                "use gemma2-hd")
    yield Spec("gemma2-hd", _gemma_config(
        "Gemma2ForCausalLM", "gemma2", hidden_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=1, head_dim=32, intermediate_size=256,
        vocab_size=330, rope_theta=10000.0, sliding_window=20, query_pre_attn_scalar=32,
        attn_logit_softcapping=3.0, final_logit_softcapping=5.0), "gemma2")
    yield Spec("gemma3", _gemma_config(
        "Gemma3ForCausalLM", "gemma3_text", hidden_size=256, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, intermediate_size=256,
        vocab_size=500, rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window=24,
        sliding_window_pattern=6, query_pre_attn_scalar=64, rope_scaling=None,
        attn_logit_softcapping=None, final_logit_softcapping=None), "gemma3")
    # The newer spelling: a list of layer types; scaled positions on the global layers only.
    yield Spec("gemma3-linear", _gemma_config(
        "Gemma3ForCausalLM", "gemma3_text", hidden_size=64, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, intermediate_size=128,
        vocab_size=1000, rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window=8,
        layer_types=5 * ["sliding_attention"] + ["full_attention"], query_pre_attn_scalar=40,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        attn_logit_softcapping=None, final_logit_softcapping=None),
        no_gguf="a GGUF file cannot say that query_pre_attn_scalar is not head_dim; use gemma3")


SPECS = {**{spec.name: spec for spec in _make()}, **FAMILIES}
