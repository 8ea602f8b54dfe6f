# SPDX-License-Identifier: Apache-2.0
"""The tower of Idefics3 and SmolVLM before the small Llama of vision.py: all layers and the norm behind them, squares of patches side by
side, one product. Pictures are cut into tiles behind words: of SmolVLM tokens of their own, and two newlines are one token; of Idefics3
text. "idefics3_whole" sees only the whole of a picture."""
HIDDEN, HEADS, INTER, LAYERS = 72, 3, 90, 3
KINDS = ("smolvlm", "idefics3", "idefics3_whole")
SIZE = {"smolvlm": 32, "idefics3": 36, "idefics3_whole": 32}
PATCH = {"smolvlm": 4, "idefics3": 3, "idefics3_whole": 4}
SCALE = {"smolvlm": 2, "idefics3": 3, "idefics3_whole": 1}
LONGEST = {"smolvlm": 61, "idefics3": 70, "idefics3_whole": 48}
ROWS = {kind: (SIZE[kind] // PATCH[kind] // SCALE[kind]) ** 2 for kind in KINDS}  # of a tile
IMAGE, EDGE, WHOLE, TWO_LINES = "<image>", "<fake_token_around_image>", "<global-img>", "\u010a\u010a"
WORDS = {"smolvlm": [EDGE, "<row_2_col_2>", IMAGE, "<row_1_col_1>", WHOLE, "<row_1_col_2>", "<row_2_col_1>"],
         **dict.fromkeys(("idefics3", "idefics3_whole"), [IMAGE, EDGE])}
PROCESSORS = {kind: {
    "image_processor_type": "Idefics3ImageProcessor", "do_convert_rgb": True, "do_resize": True, "do_image_splitting": kind != "idefics3_whole",
    "size": {"longest_edge": LONGEST[kind]}, "max_image_size": {"longest_edge": SIZE[kind]}, "resample": 1, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.4, 0.5, 0.6], "do_pad": True}
    for kind in KINDS}


def tower(out, kind, pair, norm):
    at, patch, side = "model.vision_model.", PATCH[kind], SIZE[kind] // PATCH[kind]
    yield at + "embeddings.patch_embedding.weight", (HIDDEN, 3, patch, patch), 1.5 / (3 * patch * patch) ** 0.5, 0.0
    yield at + "embeddings.patch_embedding.bias", (HIDDEN,), 0.3, 0.0
    yield at + "embeddings.position_embedding.weight", (side * side, HIDDEN), 0.5, 0.0
    yield from norm(at + "post_layernorm")
    for i in range(LAYERS):
        layer = f"{at}encoder.layers.{i}."
        for name in ("q", "k", "v", "out"):
            yield from pair(f"{layer}self_attn.{name}_proj", HIDDEN, HIDDEN, 1.4)
        yield from norm(layer + "layer_norm1")
        yield from norm(layer + "layer_norm2")
        yield from pair(layer + "mlp.fc1", INTER, HIDDEN, 1.4)
        yield from pair(layer + "mlp.fc2", HIDDEN, INTER, 1.5)
    square = HIDDEN * SCALE[kind] ** 2
    yield "model.connector.modality_projection.proj.weight", (out, square), 1.4 / square**0.5, 0.0


def decoder(tensors):
    return {k if k.startswith("lm_head.") else "model.text_model." + k.removeprefix("model."): x for k, x in tensors.items()}


def config(kind, words, text):
    name = kind.removesuffix("_whole")
    text = {**text, "tie_word_embeddings": kind == "smolvlm"}  # the outer one holds
    return {"architectures": ["SmolVLMForConditionalGeneration" if name == "smolvlm" else "Idefics3ForConditionalGeneration"],
            "model_type": name, "dtype": "float32", "image_token_id": words.index(IMAGE), "scale_factor": SCALE[kind],
            "tie_word_embeddings": False, "text_config": text, "vision_config": {
                "model_type": name + "_vision", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS, "image_size": SIZE[kind], "patch_size": PATCH[kind], "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-2}}


def join_newlines(tokenizer, free):
    """Two newlines become the token of the word `free`."""
    vocab = tokenizer["model"]["vocab"]
    vocab[TWO_LINES] = vocab.pop(free)
    tokenizer["model"]["merges"].append("\u010a \u010a")
