# SPDX-License-Identifier: Apache-2.0
"""The towers of Qwen2-VL and Qwen2.5-VL for the small Qwen2 of vision.py: pictures of any size, 2 x 2 patches a token. Heads
of 24 numbers are no multiple of 16; pictures have several windows, also such that are cut off at the edges (2.5)."""

HIDDEN, HEADS, INTER, LAYERS, PATCH, MERGE, FRAMES = 72, 3, 144, 3, 4, 2, 2
MIN_PIXELS, MAX_PIXELS = 256, 1700
KINDS = ("qwen2_vl", "qwen2_5_vl")
IMAGE = "<|image_pad|>"
WORDS = [IMAGE, "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "do_convert_rgb": True, "do_resize": True, "resample": 3, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711], "patch_size": PATCH, "temporal_patch_size": FRAMES, "merge_size": MERGE,
}
PROCESSORS = {"qwen2_vl": {**PROCESSOR, "min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS},
              "qwen2_5_vl": {**PROCESSOR, "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}}}
TEMPLATE = (
    "{% set count = namespace(pictures=0) %}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] + ' ' }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}{% set count.pictures = count.pictures + 1 %}"
    "{% if add_vision_id %}Picture {{ count.pictures }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _norm(kind, name):
    yield f"{name}.weight", (HIDDEN,), 0.2, 1.0
    if kind == "qwen2_vl":
        yield f"{name}.bias", (HIDDEN,), 0.1, 0.0


def tower(out, kind, pair):
    at = "visual." if kind == "qwen2_vl" else "model.visual."
    numbers = 3 * FRAMES * PATCH * PATCH
    yield at + "patch_embed.proj.weight", (HIDDEN, 3, FRAMES, PATCH, PATCH), 1.5 / numbers**0.5, 0.0
    for i in range(LAYERS):
        layer = f"{at}blocks.{i}."
        yield from _norm(kind, layer + "norm1")
        yield from _norm(kind, layer + "norm2")
        yield from pair(layer + "attn.qkv", 3 * HIDDEN, HIDDEN, 1.6)
        yield from pair(layer + "attn.proj", HIDDEN, HIDDEN, 1.4)
        if kind == "qwen2_vl":
            yield from pair(layer + "mlp.fc1", INTER, HIDDEN, 1.4)
            yield from pair(layer + "mlp.fc2", HIDDEN, INTER, 1.5)
        else:
            yield from pair(layer + "mlp.gate_proj", INTER, HIDDEN, 1.4)
            yield from pair(layer + "mlp.up_proj", INTER, HIDDEN, 1.4)
            yield from pair(layer + "mlp.down_proj", HIDDEN, INTER, 1.5)
    square = MERGE * MERGE * HIDDEN
    yield from _norm(kind, at + "merger.ln_q")
    yield from pair(at + "merger.mlp.0", square, square)
    yield from pair(at + "merger.mlp.2", out, square, 1.5)


def rows(width, height):
    """Tokens of a picture that is not small."""
    side = PATCH * MERGE
    tall, wide = round(height / side), round(width / side)
    if tall * wide * side * side > MAX_PIXELS:
        by = (height * width / MAX_PIXELS) ** 0.5
        tall, wide = int(height / by / side), int(width / by / side)
    return tall * wide


def decoder_name(kind, name):
    """Qwen2-VL as its folders on the hub are, Qwen2.5-VL as transformers 5 saves it."""
    return name.replace("model.", "model.language_model.", 1) if kind == "qwen2_5_vl" else name


def config(kind, words, text):
    """The decoder's keys beside the tower's, or under text_config: both are met."""
    text = {k: v for k, v in text.items() if k not in ("architectures", "model_type", "rope_theta")}
    vision = {"depth": LAYERS, "hidden_act": "quick_gelu", "embed_dim": HIDDEN, "hidden_size": text["hidden_size"],
              "mlp_ratio": INTER // HIDDEN, "num_heads": HEADS, "in_channels": 3, "patch_size": PATCH, "spatial_merge_size": MERGE,
              "temporal_patch_size": FRAMES, "model_type": "qwen2_vl"}
    ids = {"image_token_id": words.index(IMAGE), "vision_start_token_id": words.index("<|vision_start|>"),
           "vision_end_token_id": words.index("<|vision_end|>"), "video_token_id": words.index("<|video_pad|>"),
           "tie_word_embeddings": text["tie_word_embeddings"], "dtype": "float32"}
    if kind == "qwen2_vl":
        return {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": kind, **text, **ids, "rope_theta": 10000.0,
                "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}, "vision_config": vision}
    vision = {**vision, "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INTER, "out_hidden_size": text["hidden_size"],
              "window_size": 16, "fullatt_block_indexes": [1], "model_type": "qwen2_5_vl_vision"}
    del vision["embed_dim"], vision["mlp_ratio"]
    text = {**text, "model_type": "qwen2_5_vl_text",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}}
    return {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": kind, **ids, "text_config": text,
            "vision_config": vision}
