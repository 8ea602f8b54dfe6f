# SPDX-License-Identifier: Apache-2.0
"""The towers of Qwen2-VL and Qwen2.5-VL for the small Qwen2 of vision.py, those of Qwen3-VL for its Qwen3 and, without what goes to layers, for its Qwen3.5: pictures of any size,
2 x 2 patches a token. Heads of 24 numbers are no multiple of 16; pictures have several windows, also such that are cut off at the
edges (2.5); learned positions are a square of 5 a side, and the first and the last layer's states go to the decoder's layers (3)."""
import numpy as np

HIDDEN, HEADS, INTER, LAYERS, PATCH, MERGE, FRAMES = 72, 3, 144, 3, 4, 2, 2
MIN_PIXELS, MAX_PIXELS = 256, 1700
KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
ARCH = dict(zip(KINDS, ("qwen2", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe")))
SECTIONS = dict(zip(KINDS, ([4, 6, 6], [4, 6, 6], [14, 9, 9], [6, 3, 3], [1, 1, 1], [1, 1, 1])))
POSITIONS, DEEP = 25, [0, 2]
IMAGE = "<|image_pad|>"
WORDS = [IMAGE, "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "do_convert_rgb": True, "do_resize": True, "resample": 3, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711], "patch_size": PATCH, "temporal_patch_size": FRAMES, "merge_size": MERGE,
}
PROCESSORS = {"qwen2_vl": {**PROCESSOR, "min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS},
              "qwen2_5_vl": {**PROCESSOR, "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}}}
for _kind in KINDS[2:]:
    PROCESSORS[_kind] = {**PROCESSORS["qwen2_5_vl"], "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
VIDEO_KINDS = KINDS
VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS, TOKENS_PER_SECOND = 256, 900, 3
# a file of its own, or none: then the pictures' bounds hold; those of Qwen3-VL are of all frames together
VIDEO_PROCESSORS = {kind: {"video_processor_type": "Qwen2VLVideoProcessor", "size": {
    "shortest_edge": VIDEO_MIN_PIXELS * (1 + 5 * (i > 1)), "longest_edge": VIDEO_MAX_PIXELS * (1 + 3 * (i > 1))}} for i, kind in enumerate(KINDS) if i > 0}
TEMPLATE = (
    "{% set count = namespace(pictures=0) %}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] + ' ' }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}{% set count.pictures = count.pictures + 1 %}"
    "{% if add_vision_id %}Picture {{ count.pictures }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _norm(kind, name):
    yield f"{name}.weight", (HIDDEN,), 0.2, 1.0
    if kind != "qwen2_5_vl":
        yield f"{name}.bias", (HIDDEN,), 0.1, 0.0


def _merger(at, out, pair, norm):
    square = MERGE * MERGE * HIDDEN
    yield f"{at}.norm.weight", (norm,), 0.2, 1.0
    yield f"{at}.norm.bias", (norm,), 0.1, 0.0
    yield from pair(f"{at}.linear_fc1", square, square)
    yield from pair(f"{at}.linear_fc2", out, square, 1.5)


def _tower3(out, kind, pair):
    at, numbers = "model.visual.", 3 * FRAMES * PATCH * PATCH
    yield at + "patch_embed.proj.weight", (HIDDEN, 3, FRAMES, PATCH, PATCH), 1.5 / numbers**0.5, 0.0
    yield at + "patch_embed.proj.bias", (HIDDEN,), 0.3, 0.0
    yield at + "pos_embed.weight", (POSITIONS, HIDDEN), 0.7, 0.0
    for i in range(LAYERS):
        layer = f"{at}blocks.{i}."
        yield from _norm(kind, layer + "norm1")
        yield from _norm(kind, layer + "norm2")
        yield from pair(layer + "attn.qkv", 3 * HIDDEN, HIDDEN, 1.6)
        yield from pair(layer + "attn.proj", HIDDEN, HIDDEN, 1.4)
        yield from pair(layer + "mlp.linear_fc1", INTER, HIDDEN, 1.4)
        yield from pair(layer + "mlp.linear_fc2", HIDDEN, INTER, 1.5)
    yield from _merger(at + "merger", out, pair, HIDDEN)
    for i in range(len(DEEP) if "qwen3_5" not in kind else 0):
        yield from _merger(f"{at}deepstack_merger_list.{i}", out, pair, MERGE * MERGE * HIDDEN)


def tower(out, kind, pair):
    if kind in KINDS[2:]:
        yield from _tower3(out, kind, pair)
        return
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


def decoder(kind, tensors):
    """Qwen2-VL as its folders on the hub are, Qwen2.5-VL as transformers 5 saves it. Qwen3-VL's experts are stacked, as
    [in, out]; Qwen3.5's are stacked already."""
    if kind == "qwen2_vl":
        return tensors
    if kind == "qwen3_5_moe":
        return {name.replace("model.", "model.language_model.", 1): x for name, x in tensors.items()}
    out = {name.replace("model.", "model.language_model.", 1): x for name, x in tensors.items() if ".experts." not in name}
    layers = sorted({name[:name.index(".experts.")] for name in tensors if ".experts." in name})
    for at in layers:
        def stack(part, at=at):
            n = sum(name.startswith(f"{at}.experts.") and name.endswith("down_proj.weight") for name in tensors)
            return np.stack([tensors[f"{at}.experts.{i}.{part}.weight"].T for i in range(n)])
        to = at.replace("model.", "model.language_model.", 1) + ".experts."
        out[to + "gate_up_proj"] = np.concatenate([stack("gate_proj"), stack("up_proj")], axis=2)
        out[to + "down_proj"] = stack("down_proj")
    return out


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
                "rope_scaling": {"type": "mrope", "mrope_section": SECTIONS[kind]}, "vision_config": vision}
    if kind in KINDS[2:]:
        vision = {**vision, "hidden_act": "gelu_pytorch_tanh", "hidden_size": HIDDEN, "intermediate_size": INTER,
                  "out_hidden_size": text["hidden_size"], "num_position_embeddings": POSITIONS, "deepstack_visual_indexes": DEEP,
                  "model_type": kind}
        del vision["embed_dim"], vision["mlp_ratio"]
        if "qwen3_5" in kind:
            del vision["deepstack_visual_indexes"]
            text = {**text, "model_type": f"{kind}_text", "rope_parameters": {
                "rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                "mrope_section": SECTIONS[kind]}}
            return {"architectures": [f"Qwen3_5{'Moe' if 'moe' in kind else ''}ForConditionalGeneration"], "model_type": kind, **ids, "text_config": text,
                    "vision_config": {**vision, "model_type": f"{kind}_vision"}}
        name = "Qwen3VLMoeForConditionalGeneration" if kind == "qwen3_vl_moe" else "Qwen3VLForConditionalGeneration"
        text = {**text, "model_type": f"{kind}_text", "rope_theta": 5000000.0,
                "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": SECTIONS[kind]}}
        return {"architectures": [name], "model_type": kind, **ids, "text_config": text, "vision_config": vision}
    vision = {**vision, "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INTER, "out_hidden_size": text["hidden_size"],
              "window_size": 16, "fullatt_block_indexes": [1], "tokens_per_second": TOKENS_PER_SECOND, "model_type": "qwen2_5_vl_vision"}
    del vision["embed_dim"], vision["mlp_ratio"]
    text = {**text, "model_type": "qwen2_5_vl_text",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": SECTIONS[kind]}}
    return {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": kind, **ids, "text_config": text,
            "vision_config": vision}
