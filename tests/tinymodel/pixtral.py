# SPDX-License-Identifier: Apache-2.0
"""Pixtral's tower before the small Mistral of vision.py, as LLaVA's (a row for each patch) and as Mistral 3's (2 x 2 patches a row,
behind a norm with the decoder's epsilon). Lines of rows end with a word of the tokenizer."""
HIDDEN, HEADS, INTER, LAYERS = 72, 3, 144, 3
KINDS = ("pixtral", "mistral3")
PATCH = {"pixtral": 6, "mistral3": 4}
MERGE = {"pixtral": 1, "mistral3": 2}
LONGEST = 45
WORDS = ["[IMG]", "[IMG_END]", "[IMG_BREAK]"]
IMAGE = WORDS[0]
PROCESSORS = {kind: {
    "image_processor_type": "PixtralImageProcessor", "do_convert_rgb": True, "do_resize": True, "resample": 3, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711], "size": {"longest_edge": LONGEST},
    "patch_size": {"height": PATCH[kind], "width": PATCH[kind]}} for kind in KINDS}
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% if message['content'] is string %}"
    "{{ message['content'] + ' ' }}{% else %}{% for item in message['content'] %}{% if item['type'] == 'image' %}"
    "{{ '[IMG]' }}{% else %}{{ item['text'] + ' ' }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _matrix(name, rows, cols, gain=1.0):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0


def tower(out, kind):
    at, projector, numbers = "vision_tower.", "multi_modal_projector.", 3 * PATCH[kind] ** 2
    yield at + "patch_conv.weight", (HIDDEN, 3, PATCH[kind], PATCH[kind]), 1.5 / numbers**0.5, 0.0
    yield at + "ln_pre.weight", (HIDDEN,), 0.2, 1.0
    for i in range(LAYERS):
        layer = f"{at}transformer.layers.{i}."
        yield layer + "attention_norm.weight", (HIDDEN,), 0.2, 1.0
        yield layer + "ffn_norm.weight", (HIDDEN,), 0.2, 1.0
        for name in ("q", "k", "v", "o"):
            yield from _matrix(f"{layer}attention.{name}_proj", HIDDEN, HIDDEN, 1.5)
        yield from _matrix(layer + "feed_forward.gate_proj", INTER, HIDDEN, 1.4)
        yield from _matrix(layer + "feed_forward.up_proj", INTER, HIDDEN, 1.4)
        yield from _matrix(layer + "feed_forward.down_proj", HIDDEN, INTER, 1.5)
    if kind == "mistral3":
        yield projector + "norm.weight", (HIDDEN,), 0.2, 1.0
        yield from _matrix(projector + "patch_merger.merging_layer", HIDDEN, 4 * HIDDEN, 1.4)
    for name, cols in (("linear_1", HIDDEN), ("linear_2", out)):
        yield from _matrix(projector + name, out, cols, 1.4)
        if kind == "pixtral":
            yield f"{projector}{name}.bias", (out,), 0.2, 0.0


def lines(kind, width, height):
    """Words of a picture of so many pixels, as the processor has brought it into shape."""
    side = PATCH[kind] * MERGE[kind]
    line = IMAGE * (width // side) + WORDS[2]
    return (line * (height // side))[:-len(WORDS[2])] + WORDS[1]


def config(kind, words, text):
    vision = {"model_type": "pixtral", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_channels": 3, "image_size": 64, "patch_size": PATCH[kind], "hidden_act": "silu",
              "head_dim": HIDDEN // HEADS, "rope_theta": 10000.0}
    text = {**text, "sliding_window": None}
    if kind == "mistral3":
        text["rms_norm_eps"] = 0.01
    name = "Mistral3" if kind == "mistral3" else "Llava"
    return {"architectures": [f"{name}ForConditionalGeneration"], "model_type": "mistral3" if kind == "mistral3" else "llava",
            "dtype": "float32", "image_token_index": words.index(IMAGE), "projector_hidden_act": "gelu", "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full", "multimodal_projector_bias": kind == "pixtral", "tie_word_embeddings": False,
            "spatial_merge_size": MERGE[kind], "text_config": text, "vision_config": vision}
