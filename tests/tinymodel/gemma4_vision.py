# SPDX-License-Identifier: Apache-2.0
"""Gemma 4's tower before its small decoders: with a second embedding (gemma4), and with pictures that are seen both ways in layers with a
window, and standardized means (gemma4_wide). Products of the former have bounds, which differ and cut off much. Heads have no width that devices know."""
HIDDEN, HEADS, INTER, LAYERS = 72, 3, 90, 3
ARCH = {"gemma4": "gemma4", "gemma4_wide": "gemma4-dense"}
KINDS = tuple(ARCH)
WORDS = ["<|image|>", "<|image>", "<image|>"]
IMAGE, BEGIN, END = WORDS
PATCH, POOL, TOKENS, POSITIONS = 4, 3, 70, 300
PROCESSOR = {"image_processor_type": "Gemma4ImageProcessor", "do_convert_rgb": True, "do_resize": True, "resample": 3, "do_rescale": True,
             "rescale_factor": 1 / 255, "do_normalize": False, "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0],
             "patch_size": PATCH, "pooling_kernel_size": POOL, "max_soft_tokens": TOKENS}


def tower(out, kind):
    at, numbers = "model.vision_tower.", 3 * PATCH**2
    yield at + "patch_embedder.input_proj.weight", (HIDDEN, numbers), 1.5 / numbers**0.5, 0.0
    yield at + "patch_embedder.position_embedding_table", (2, POSITIONS, HIDDEN), 0.5, 0.0
    for i in range(LAYERS):
        layer = f"{at}encoder.layers.{i}."
        for name, gain in (("input", 1.0), ("post_attention", 0.8), ("pre_feedforward", 1.0), ("post_feedforward", 0.8)):
            yield f"{layer}{name}_layernorm.weight", (HIDDEN,), 0.2, gain
        for name in "qk":
            yield f"{layer}self_attn.{name}_norm.weight", (HIDDEN // HEADS,), 0.2, 0.6
        for name in "qkvo":
            yield f"{layer}self_attn.{name}_proj.linear.weight", (HIDDEN, HIDDEN), 1.4 / HIDDEN**0.5, 0.0
        yield layer + "mlp.gate_proj.linear.weight", (INTER, HIDDEN), 1.4 / HIDDEN**0.5, 0.0
        yield layer + "mlp.up_proj.linear.weight", (INTER, HIDDEN), 1.4 / HIDDEN**0.5, 0.0
        yield layer + "mlp.down_proj.linear.weight", (HIDDEN, INTER), 1.5 / INTER**0.5, 0.0
        for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"):
            for end in ("input", "output") if kind == "gemma4" else ():
                yield f"{layer}{name}_proj.{end}_min", (), 0.2, -0.9
                yield f"{layer}{name}_proj.{end}_max", (), 0.2, 0.9
    if kind == "gemma4_wide":
        yield at + "std_bias", (HIDDEN,), 3.0, 0.0
        yield at + "std_scale", (HIDDEN,), 0.02, 0.1
    yield "model.embed_vision.embedding_projection.weight", (out, HIDDEN), 1.5 / HIDDEN**0.5, 0.0


def decoder(tensors):
    return {k.replace("model.", "model.language_model.", 1): x for k, x in tensors.items()}


def config(kind, words, text):
    text = {**text, "use_bidirectional_attention": "vision" if kind == "gemma4_wide" else None}
    return {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "dtype": "float32", "tie_word_embeddings": True,
            "image_token_id": words.index(IMAGE), "boi_token_id": words.index(BEGIN), "eoi_token_id": words.index(END), "text_config": text,
            "audio_config": None, "vision_config": {
                "model_type": "gemma4_vision", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "patch_size": PATCH,
                "pooling_kernel_size": POOL, "position_embedding_size": POSITIONS, "rms_norm_eps": 1e-3, "standardize": kind == "gemma4_wide",
                "use_clipped_linears": kind == "gemma4", "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}}
