# SPDX-License-Identifier: Apache-2.0
"""A small random model that sees, as a Hugging Face folder: CLIP's tower before the small Llama, as LLaVA 1.5 has them.
The same bits every time. Sides are no multiple of patches, one layer stands behind the one whose states are taken."""
import json
import os
import struct
import zlib

import hf_folder
import make_model
import numpy as np
import tokenizer
import weights
from specs import SPECS

ARCH = "llama3"
SIZE, PATCH, HIDDEN, HEADS, INTER, LAYERS = 32, 6, 72, 3, 90, 3
ROWS = (SIZE // PATCH) ** 2
IMAGE = "<image>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True, "do_resize": True, "size": {"shortest_edge": SIZE},
    "resample": 3, "do_center_crop": True, "crop_size": {"height": SIZE, "width": SIZE}, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def _pair(name, rows, cols, gain=1.0):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0
    yield f"{name}.bias", (rows,), 0.2, 0.0


def _norm(name):
    yield f"{name}.weight", (HIDDEN,), 0.2, 1.0
    yield f"{name}.bias", (HIDDEN,), 0.1, 0.0


def tower(out):
    at = "vision_tower.vision_model."
    yield at + "embeddings.class_embedding", (HIDDEN,), 1.0, 0.0
    yield at + "embeddings.patch_embedding.weight", (HIDDEN, 3, PATCH, PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield at + "embeddings.position_embedding.weight", (ROWS + 1, HIDDEN), 0.5, 0.0
    yield from _norm(at + "pre_layrnorm")
    yield from _norm(at + "post_layernorm")
    for i in range(LAYERS):
        layer = f"{at}encoder.layers.{i}."
        for name in ("q", "k", "v", "out"):
            yield from _pair(f"{layer}self_attn.{name}_proj", HIDDEN, HIDDEN, 1.4)
        yield from _norm(layer + "layer_norm1")
        yield from _norm(layer + "layer_norm2")
        yield from _pair(layer + "mlp.fc1", INTER, HIDDEN, 1.4)
        yield from _pair(layer + "mlp.fc2", HIDDEN, INTER, 1.5)
    yield from _pair("multi_modal_projector.linear_1", out, HIDDEN)
    yield from _pair("multi_modal_projector.linear_2", out, out)


def image_token(out):
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        return json.load(f)["image_token_index"]


def write_folder(out):
    make_model.write_folder(ARCH, out)
    spec = SPECS[ARCH]
    vocab = spec.config["vocab_size"]
    token = tokenizer.vocabulary(vocab).index("<unused0>")
    tensors = {f"language_model.{name}": x for name, x in weights.build(spec).items()}
    tensors.update({name: weights.normal(f"vision {name}", shape, deviation, mean)
                    for name, shape, deviation, mean in tower(spec.config["hidden_size"])})
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "dtype": "float32",
        "image_token_index": token, "image_seq_length": ROWS, "projector_hidden_act": "gelu", "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default", "multimodal_projector_bias": True, "tie_word_embeddings": False,
        "text_config": spec.config,
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "image_size": SIZE, "patch_size": PATCH, "hidden_act": "quick_gelu",
            "layer_norm_eps": 1e-5, "projection_dim": 16},
    })
    hf_folder.write_json(os.path.join(out, "preprocessor_config.json"), PROCESSOR)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = os.path.join(out, name)
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
        if name == "tokenizer.json":
            words = value["model"]["vocab"]
            del words["<unused0>"]
            words[IMAGE] = token
            value["added_tokens"].append({**value["added_tokens"][0], "id": token, "content": IMAGE})
            value["added_tokens"].sort(key=lambda t: t["id"])
        else:
            value["chat_template"] = TEMPLATE
        hf_folder.write_json(path, value)


# ---- pictures ----

def pixels(width, height, seed):
    """Waves: smooth as photographs are, the same everywhere. [height, width, 3] bytes."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x * (0.11 + 0.05 * seed) + c) + np.cos(y * (0.17 + 0.03 * seed) - c * x * 0.02) for c in range(3)]
    return np.floor(127.5 + 60 * np.stack(waves, axis=-1)).astype(np.uint8)


def ppm(p):
    return b"P6\n%d %d\n255\n" % (p.shape[1], p.shape[0]) + p.tobytes()


def png(p):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + row.tobytes() for row in p)
    head = struct.pack(">IIBBBBB", p.shape[1], p.shape[0], 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PICTURES = [(45, 37, 1), (41, 64, 2), (32, 32, 3)]
# parts of one user message each: a text, or the number of a picture
TALKS = [[0, "the quick fox"], ["what is", 1, "and", 2, "in the wind"], [2, 2, "so"]]
