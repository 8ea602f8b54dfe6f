# SPDX-License-Identifier: Apache-2.0
"""The tower of Llama 3.2 Vision before the small decoder "mllama" (more_families.py), two of whose layers read pictures: tiles that see
each other, two kinds of layers, states of several layers side by side. The picture's token is behind the vocabulary, as published."""
HIDDEN, HEADS, INTER, LAYERS, GLOBAL = 72, 3, 90, 3, 2
KIND, ARCH, IMAGE = "mllama", "mllama", "<|image|>"
SIZE, PATCH, TILES = 28, 6, 4
STATES = (SIZE // PATCH) ** 2 + 1  # of a tile
TAKEN = [1, 2]  # layers in front of which states are taken
FIRST = [1, "the quick fox"]  # a prompt that begins with its picture, without a template
SHAPES = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]
PROCESSOR = {
    "image_processor_type": "MllamaImageProcessor", "do_convert_rgb": True, "do_resize": True, "do_pad": True, "do_rescale": True,
    "do_normalize": True, "rescale_factor": 1 / 255, "resample": 2, "max_image_tiles": TILES, "size": {"height": SIZE, "width": SIZE},
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


def _layer(at, gated, pair, norm):
    for name in ("q", "k", "v", "o"):
        yield f"{at}self_attn.{name}_proj.weight", (HIDDEN, HIDDEN), 1.4 / HIDDEN**0.5, 0.0
    yield from norm(at + "input_layernorm")
    yield from norm(at + "post_attention_layernorm")
    yield from pair(at + "mlp.fc1", INTER, HIDDEN, 1.4)
    yield from pair(at + "mlp.fc2", HIDDEN, INTER, 1.5)
    for name in ("gate_attn", "gate_ffn") if gated else ():
        yield at + name, (1,), 0.2, 0.9


def tower(out, pair, norm):
    at, ids = "vision_model.", len(SHAPES) + 1
    yield at + "patch_embedding.weight", (HIDDEN, 3, PATCH, PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield at + "class_embedding", (HIDDEN,), 1.0, 0.0
    yield at + "gated_positional_embedding.gate", (1,), 0.1, 0.6
    yield at + "gated_positional_embedding.embedding", (STATES, HIDDEN), 0.7, 0.0
    yield at + "gated_positional_embedding.tile_embedding.weight", (ids, TILES * STATES * HIDDEN), 0.7, 0.0
    for name in ("pre", "post"):
        yield f"{at}{name}_tile_positional_embedding.gate", (1,), 0.1, 0.8
        yield f"{at}{name}_tile_positional_embedding.embedding.weight", (ids, TILES * HIDDEN), 0.7, 0.0
        yield from norm(f"{at}layernorm_{name}")
    for stack, n in (("transformer", LAYERS), ("global_transformer", GLOBAL)):
        for i in range(n):
            yield from _layer(f"{at}{stack}.layers.{i}.", stack != "transformer", pair, norm)
    yield from pair("multi_modal_projector", out, HIDDEN * (1 + len(TAKEN)), 2.0)


def config(text, image_token):
    return {"architectures": ["MllamaForConditionalGeneration"], "model_type": KIND, "dtype": "float32", "image_token_index": image_token,
            "text_config": {**text, "model_type": "mllama_text_model", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}, "vision_config": {
                "model_type": "mllama_vision_model", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
                "num_global_layers": GLOBAL, "attention_heads": HEADS, "image_size": SIZE, "patch_size": PATCH, "max_num_tiles": TILES,
                "hidden_act": "gelu", "norm_eps": 1e-2, "intermediate_layers_indices": TAKEN, "supported_aspect_ratios": SHAPES,
                "vision_output_dim": HIDDEN * (1 + len(TAKEN))}}
