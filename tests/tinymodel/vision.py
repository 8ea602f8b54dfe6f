# SPDX-License-Identifier: Apache-2.0
"""Small random models that see, as Hugging Face folders: CLIP's or SigLIP's tower before the small Llama, as LLaVA has
them, SigLIP's before the small Gemma 3, and those of pixtral.py and qwen_vl.py. The same bits every time. Sides are no multiple of patches; behind the layer
whose states are taken stands another one (CLIP); a picture of Gemma's has more tokens than its window."""
import json
import os
import struct
import zlib

import blip2
import cogvlm
import donut
import fuyu
import gemma4_vision
import hf_folder
import idefics3
import kosmos2
import make_model
import mllama
import numpy as np
import phi3_vision
import pix2struct
import pixtral
import qwen1_vl
import qwen_vl
import tokenizer
import vila
import weights
from specs import SPECS

HIDDEN, HEADS, INTER, LAYERS = 72, 3, 90, 3
TILED = ("llava_next", "llava_onevision")
PALIGEMMA = ("paligemma", "paligemma2")
KINDS = ("clip", "siglip", "gemma3", *PALIGEMMA, *TILED, "internvl", blip2.KIND, *idefics3.KINDS, *pixtral.KINDS, fuyu.KIND, *qwen_vl.KINDS, mllama.KIND, phi3_vision.KIND, *vila.KINDS, *gemma4_vision.KINDS, qwen1_vl.KIND, *cogvlm.KINDS, kosmos2.KIND)
ARCH = {"clip": "llama3", "siglip": "llama3", "gemma3": "gemma3", "paligemma": "gemma", "paligemma2": "gemma2", "llava_next": "llama3", "llava_onevision": "qwen2", "internvl": "qwen2",
        **dict.fromkeys(idefics3.KINDS, "llama3"), **dict.fromkeys(pixtral.KINDS, "mistral"), fuyu.KIND: fuyu.ARCH, **qwen_vl.ARCH, mllama.KIND: mllama.ARCH, blip2.KIND: blip2.ARCH, phi3_vision.KIND: phi3_vision.ARCH, **gemma4_vision.ARCH}
SIZE = {"clip": 32, "siglip": 32, "gemma3": 38, **dict.fromkeys(PALIGEMMA, 32), "llava_next": 32, "llava_onevision": 32, "internvl": 32, blip2.KIND: blip2.SIZE, qwen1_vl.KIND: qwen1_vl.SIZE, **cogvlm.SIZES, kosmos2.KIND: kosmos2.SIZE}
PATCH = {"clip": 6, "siglip": 6, "gemma3": 3, **dict.fromkeys(PALIGEMMA, 6), "llava_next": 6, "llava_onevision": 6, "internvl": 4}
PINPOINTS = [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]
HAS_CLASS = ("clip", "llava_next")
ROWS = {"clip": 25, "siglip": 25, "gemma3": 36, **dict.fromkeys(PALIGEMMA, 25), blip2.KIND: blip2.QUERIES}  # tokens of a picture, where all have as many
IMAGE = {"clip": "<image>", "siglip": "<image>", "gemma3": "<image_soft_token>", **dict.fromkeys((*PALIGEMMA, *TILED), "<image>"), "internvl": "<IMG_CONTEXT>",
         **dict.fromkeys(idefics3.KINDS, idefics3.IMAGE), **dict.fromkeys(pixtral.KINDS, pixtral.IMAGE), fuyu.KIND: fuyu.IMAGE, **dict.fromkeys(qwen_vl.KINDS, qwen_vl.IMAGE), mllama.KIND: mllama.IMAGE, blip2.KIND: blip2.IMAGE, phi3_vision.KIND: phi3_vision.IMAGE, **dict.fromkeys(gemma4_vision.KINDS, gemma4_vision.IMAGE)}
MAX_TILES = 6  # of InternVL
BEGIN, END = "<start_of_image>", "<end_of_image>"  # Gemma's
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ONEVISION_TEMPLATE = TEMPLATE.replace(
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text')",
    "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text')")
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% if message['content'] is string %}"
    "{{ message['content'] + ' ' }}{% else %}{% for item in message['content'] %}{% if item['type'] == 'image' %}"
    "{{ '<start_of_image>' }}{% else %}{{ item['text'] + ' ' }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
HALF = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "do_resize": True}
PROCESSORS = {
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}, "resample": 3, **HALF},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 38, "width": 38}, "resample": 2,
               "do_pan_and_scan": None, "image_seq_length": 36, **HALF},
    **idefics3.PROCESSORS,
    **pixtral.PROCESSORS,
    fuyu.KIND: fuyu.PROCESSOR,
    **qwen_vl.PROCESSORS,
    mllama.KIND: mllama.PROCESSOR,
    blip2.KIND: blip2.PROCESSOR,
    phi3_vision.KIND: phi3_vision.PROCESSOR,
    **dict.fromkeys(gemma4_vision.KINDS, gemma4_vision.PROCESSOR),
}
PROCESSORS["clip"] = {
    "image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True, "do_resize": True, "size": {"shortest_edge": 32},
    "resample": 3, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PROCESSORS.update(dict.fromkeys(PALIGEMMA, PROCESSORS["siglip"]))
PROCESSORS["llava_next"] = {**PROCESSORS["clip"], "image_processor_type": "LlavaNextImageProcessor", "do_pad": True,
                            "image_grid_pinpoints": PINPOINTS}
PROCESSORS["llava_onevision"] = {**PROCESSORS["siglip"], "image_processor_type": "LlavaOnevisionImageProcessor", "do_pad": True,
                                 "image_grid_pinpoints": PINPOINTS}
PROCESSORS["internvl"] = {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 32, "width": 32}, "resample": 3, **HALF,
                          "image_std": [0.4, 0.5, 0.6], "crop_to_patches": False, "min_patches": 1, "max_patches": MAX_TILES}


def _pair(name, rows, cols, gain=1.0):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0
    yield f"{name}.bias", (rows,), 0.2, 0.0


def _norm(name):
    yield f"{name}.weight", (HIDDEN,), 0.2, 1.0
    yield f"{name}.bias", (HIDDEN,), 0.1, 0.0


def _intern(out):
    """Heads of 24 numbers, 2 x 2 patches a row; what layers add has weights."""
    at, numbers = "vision_tower.", 3 * PATCH["internvl"] ** 2
    yield at + "embeddings.cls_token", (1, 1, HIDDEN), 1.0, 0.0
    yield at + "embeddings.position_embeddings", (1, 65, HIDDEN), 0.5, 0.0
    yield at + "embeddings.patch_embeddings.projection.weight", (HIDDEN, 3, 4, 4), 1.5 / numbers**0.5, 0.0
    yield at + "embeddings.patch_embeddings.projection.bias", (HIDDEN,), 0.3, 0.0
    for i in range(LAYERS):
        layer = f"{at}encoder.layer.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "projection_layer"):
            yield from _pair(f"{layer}attention.{name}", HIDDEN, HIDDEN, 1.4)
        yield from _norm(layer + "layernorm_before")
        yield from _norm(layer + "layernorm_after")
        yield from _pair(layer + "mlp.fc1", INTER, HIDDEN, 1.4)
        yield from _pair(layer + "mlp.fc2", HIDDEN, INTER, 1.5)
        yield layer + "lambda_1", (HIDDEN,), 0.3, 0.8
        yield layer + "lambda_2", (HIDDEN,), 0.3, 0.8
    yield "multi_modal_projector.layer_norm.weight", (4 * HIDDEN,), 0.2, 1.0
    yield "multi_modal_projector.layer_norm.bias", (4 * HIDDEN,), 0.1, 0.0
    yield from _pair("multi_modal_projector.linear_1", out, 4 * HIDDEN)
    yield from _pair("multi_modal_projector.linear_2", out, out)


def tower(out, kind):
    if kind == "internvl":
        yield from _intern(out)
        return
    if kind in idefics3.KINDS:
        yield from idefics3.tower(out, kind, _pair, _norm)
        return
    if kind == blip2.KIND:
        yield from blip2.tower(out, _pair)
        return
    if kind == phi3_vision.KIND:
        yield from phi3_vision.tower(out, _pair, _norm)
        return
    if kind == mllama.KIND:
        yield from mllama.tower(out, _pair, _norm)
        return
    if kind in qwen_vl.KINDS:
        yield from qwen_vl.tower(out, kind, _pair)
        return
    if kind in pixtral.KINDS:
        yield from pixtral.tower(out, kind)
        return
    if kind == fuyu.KIND:
        yield from fuyu.tower(out)
        return
    if kind in gemma4_vision.KINDS:
        yield from gemma4_vision.tower(out, kind)
        return
    at, patch = "vision_tower.vision_model.", PATCH[kind]
    n_patches = (SIZE[kind] // patch) ** 2
    yield at + "embeddings.patch_embedding.weight", (HIDDEN, 3, patch, patch), 1.5 / (3 * patch * patch) ** 0.5, 0.0
    if kind in HAS_CLASS:
        yield at + "embeddings.class_embedding", (HIDDEN,), 1.0, 0.0
        yield at + "embeddings.position_embedding.weight", (n_patches + 1, HIDDEN), 0.5, 0.0
        yield from _norm(at + "pre_layrnorm")
    else:
        yield at + "embeddings.patch_embedding.bias", (HIDDEN,), 0.3, 0.0
        yield at + "embeddings.position_embedding.weight", (n_patches, HIDDEN), 0.5, 0.0
    yield from _norm(at + "post_layernorm")
    for i in range(LAYERS):
        layer = f"{at}encoder.layers.{i}."
        for name in ("q", "k", "v", "out"):
            yield from _pair(f"{layer}self_attn.{name}_proj", HIDDEN, HIDDEN, 1.4)
        yield from _norm(layer + "layer_norm1")
        yield from _norm(layer + "layer_norm2")
        yield from _pair(layer + "mlp.fc1", INTER, HIDDEN, 1.4)
        yield from _pair(layer + "mlp.fc2", HIDDEN, INTER, 1.5)
    if kind == "gemma3":
        # small states, so that the epsilon of the norm behind the mean matters
        yield "multi_modal_projector.mm_soft_emb_norm.weight", (HIDDEN,), 0.3, 0.2
        yield "multi_modal_projector.mm_input_projection_weight", (HIDDEN, out), 1.5 / HIDDEN**0.5, 0.0
        return
    if kind in PALIGEMMA:
        yield from _pair("multi_modal_projector.linear", out, HIDDEN, 1.5)
        return
    if kind in TILED:
        yield "image_newline", (out,), 0.3, 0.0
    yield from _pair("multi_modal_projector.linear_1", out, HIDDEN)
    yield from _pair("multi_modal_projector.linear_2", out, out)


def image_token(out):
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        values = json.load(f)
    return values.get("image_token_index", values.get("image_token_id"))


def tower_config(kind):
    """Of CLIP and SigLIP."""
    return {
        "model_type": "clip_vision_model" if kind in HAS_CLASS else "siglip_vision_model", "hidden_size": HIDDEN,
        "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "image_size": SIZE[kind],
        "patch_size": PATCH[kind], "hidden_act": "quick_gelu" if kind in HAS_CLASS else "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-2 if kind == "gemma3" else 1e-5 if kind in HAS_CLASS else 1e-6,
        **({"projection_dim": 16} if kind in HAS_CLASS else {"vision_use_head": False})}


def config(kind, words):
    """words: the model's own, by id; those of pictures are there already."""
    text = SPECS[ARCH[kind]].config
    if kind == mllama.KIND:
        return mllama.config(text, len(words))
    if kind == phi3_vision.KIND:
        return phi3_vision.config(words, text)
    if kind == blip2.KIND:
        return blip2.config(words, text)
    if kind in qwen_vl.KINDS:
        return qwen_vl.config(kind, words, text)
    if kind in idefics3.KINDS:
        return idefics3.config(kind, words, text)
    if kind in pixtral.KINDS:
        return pixtral.config(kind, words, text)
    if kind == fuyu.KIND:
        return fuyu.config(words, text)
    if kind in gemma4_vision.KINDS:
        return gemma4_vision.config(kind, words, text)
    if kind == "internvl":
        return {"architectures": ["InternVLForConditionalGeneration"], "model_type": kind, "dtype": "float32",
                "image_token_id": words.index(IMAGE[kind]), "image_seq_length": 16, "downsample_ratio": 0.5, "projector_hidden_act": "gelu",
                "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
                "tie_word_embeddings": text.get("tie_word_embeddings", False), "text_config": text, "vision_config": {
                    "model_type": "internvl_vision", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
                    "num_attention_heads": HEADS, "image_size": [32, 32], "patch_size": [4, 4], "hidden_act": "gelu",
                    "layer_norm_eps": 1e-2, "attention_bias": True, "use_qk_norm": False, "norm_type": "layer_norm",
                    "use_mean_pooling": True}}
    out = {"dtype": "float32", "image_token_index": words.index(IMAGE[kind]), "text_config": text, "vision_config": tower_config(kind)}
    if kind == "gemma3":
        return {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": ROWS[kind],
                "boi_token_index": words.index(BEGIN), "eoi_token_index": words.index(END), **out}
    if kind in PALIGEMMA:
        if "sliding_window" in text:  # longer prompts are refused
            out["text_config"] = {**text, "sliding_window": 80}
        return {"architectures": ["PaliGemmaForConditionalGeneration"], "model_type": "paligemma", "projection_dim": text["hidden_size"],
                "hidden_size": text["hidden_size"], "vocab_size": text["vocab_size"], **out}
    name = {"llava_next": "LlavaNext", "llava_onevision": "LlavaOnevision"}.get(kind, "Llava")
    tiles = {"image_grid_pinpoints": PINPOINTS, **({"vision_aspect_ratio": "anyres_max_2", "video_token_index": words.index("<video>")} if kind == "llava_onevision" else {})}
    return {"architectures": [f"{name}ForConditionalGeneration"], "model_type": kind if kind in TILED else "llava",
            "image_seq_length": 25, "projector_hidden_act": "gelu", "vision_feature_layer": -2 if kind in HAS_CLASS else -1,
            "vision_feature_select_strategy": "default" if kind in HAS_CLASS else "full", "multimodal_projector_bias": True,
            "tie_word_embeddings": text.get("tie_word_embeddings", False), **(tiles if kind in TILED else {}), **out}


def write_folder(out, kind="clip"):
    if kind == pix2struct.KIND:
        pix2struct.write_folder(out)
        return
    if kind in donut.KINDS:
        donut.write_folder(out, kind)
        return
    if kind == "blip2_t5":
        blip2.write_t5_folder(out, _pair)
        return
    if kind == kosmos2.KIND:
        kosmos2.write_folder(out, TEMPLATE)
        return
    if kind in cogvlm.KINDS:
        cogvlm.write_folder(out, kind, TEMPLATE)
        return
    if kind == qwen1_vl.KIND:
        qwen1_vl.write_folder(out, TEMPLATE.replace("<image>", "<img><imgpad></img>"))
        return
    if kind in vila.KINDS:
        of, at = vila.KINDS[kind], "vision_tower."
        tensors = {name.removeprefix(at): weights.normal(f"vision {name}", shape, deviation, mean)
                   for name, shape, deviation, mean in tower(SPECS[vila.ARCH].config["hidden_size"], of) if name.startswith(at)}
        vila.write_folder(out, kind, tensors, tower_config(of), PROCESSORS[of], TEMPLATE)
        return
    make_model.write_folder(ARCH[kind], out)
    spec = SPECS[ARCH[kind]]
    words = tokenizer.vocabulary(spec.config["vocab_size"])
    added = [] if kind == mllama.KIND else idefics3.WORDS[kind] if kind in idefics3.KINDS else qwen_vl.WORDS if kind in qwen_vl.KINDS else pixtral.WORDS if kind in pixtral.KINDS else fuyu.WORDS if kind == fuyu.KIND else gemma4_vision.WORDS if kind in gemma4_vision.KINDS else [IMAGE[kind]] + ([BEGIN, END] if kind == "gemma3" else ["</img>", "<img>"] if kind == "internvl" else ["<video>"] if kind == "llava_onevision" else [])
    first = words.index("<unused0>")
    words[first:first + len(added)] = added
    tensors = weights.build(spec)
    tensors = qwen_vl.decoder(kind, tensors) if kind in qwen_vl.KINDS else idefics3.decoder(tensors) if kind in idefics3.KINDS else gemma4_vision.decoder(tensors) if kind in gemma4_vision.KINDS else tensors if kind == phi3_vision.KIND else {f"language_model.{k}": x for k, x in tensors.items()}
    tensors.update({name: weights.normal(f"vision {name}", shape, deviation, mean)
                    for name, shape, deviation, mean in tower(spec.config["hidden_size"], kind)})
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), config(kind, words))
    if kind == "mistral3":  # as transformers 5 saves it
        hf_folder.write_json(os.path.join(out, "processor_config.json"), {"image_processor": PROCESSORS[kind], "spatial_merge_size": 2})
    else:
        hf_folder.write_json(os.path.join(out, "preprocessor_config.json"), PROCESSORS[kind])
    if kind in qwen_vl.VIDEO_PROCESSORS:
        hf_folder.write_json(os.path.join(out, "video_preprocessor_config.json"), qwen_vl.VIDEO_PROCESSORS[kind])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = os.path.join(out, name)
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
        if name == "tokenizer.json":
            tokenizer.name_unused(value, added, first)
            if kind == "smolvlm":
                idefics3.join_newlines(value, f"<unused{len(added)}>")
            if kind == phi3_vision.KIND:  # what stands behind a picture's place is not its own
                value["added_tokens"][-1]["rstrip"] = True
            if kind == mllama.KIND:
                value["added_tokens"].append({**value["added_tokens"][0], "id": len(words), "content": mllama.IMAGE})
            value["added_tokens"].sort(key=lambda t: t["id"])
        else:
            value["chat_template"] = {"gemma3": GEMMA_TEMPLATE, **dict.fromkeys(idefics3.KINDS, pixtral.TEMPLATE.replace("[IMG]", "<image>")),
                                      **dict.fromkeys(pixtral.KINDS, pixtral.TEMPLATE), fuyu.KIND: pixtral.TEMPLATE.replace("[IMG]", fuyu.IMAGE),
                                      **dict.fromkeys(gemma4_vision.KINDS, pixtral.TEMPLATE.replace("[IMG]", gemma4_vision.IMAGE)),
                                      mllama.KIND: pixtral.TEMPLATE.replace("[IMG]", mllama.IMAGE), blip2.KIND: blip2.TEMPLATE, phi3_vision.KIND: phi3_vision.TEMPLATE,
                                      **dict.fromkeys(qwen_vl.KINDS, qwen_vl.TEMPLATE)}.get(kind, TEMPLATE.replace("<image>", IMAGE[kind]))
            if kind == "llava_onevision":
                value["chat_template"] = ONEVISION_TEMPLATE
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


PICTURES = [(45, 37, 1), (41, 64, 2), (32, 32, 3), (64, 41, 2), (100, 7, 1), (9, 13, 3), (24, 60, 2), (70, 61, 1), (150, 70, 2)]
# parts of one user message each: a text, or the number of a picture
TALKS = [[0, "the quick fox"], ["what is", 1, "and", 2, "in the wind"], [2, 2, "so"]]


# a part that is a video: width and height of its frames, their seeds, how many there are a second (None: nothing is said)
VIDEOS = [((40, 24), (1, 2, 3, 4), 2), ((45, 37), (3, 1, 2), 4), ((24, 24), (1, 2, 3, 1, 2, 3, 1, 2, 3, 4), 0.5), ((32, 24), (2,), None)]
VIDEO_KINDS = (*qwen_vl.VIDEO_KINDS, "llava_onevision")
VIDEO_TALKS = [[VIDEOS[0], "the quick fox"], ["what is", VIDEOS[1], "and", 2, "in the wind", VIDEOS[3]], ["so", VIDEOS[2], "and"]]


def talks(kind):
    """Squares are made of a wide picture: of the high one Pillow makes them columns first. Where pictures keep their shape,
    there are long ones, small ones and such that stay as they are."""
    if kind == mllama.KIND:
        return [[0, "the quick fox"], ["what is", 3, "in the wind"], [4, "so"], ["and", 6], [5, "so"], ["what is", 8], [2, "and"],
                ["the quick fox in the wind " * 6, 0, "what is so " * 12], ["what is", 1, "and", 2, "in the wind"],
                [6, 2, "so " * 40, 0, "and " * 40, 3, 5, "what is"], [2, 2, 2]]
    if kind in qwen_vl.KINDS:
        return [*TALKS, [4, "what is", 5, "in the wind", 6], ["and", 0]]
    if kind in gemma4_vision.KINDS:
        return [[0, "the quick fox"], ["what is", 1, "and", 2, "in the wind"], [4, "so"], ["and", 5, "so", 6]]
    if kind in (*pixtral.KINDS, fuyu.KIND):
        return [[0, "the quick fox"], ["what is", 3, "and", 2, "in the wind"], [4, "so", 5], ["and", 1 if kind == fuyu.KIND else 6]]
    if kind in idefics3.KINDS:
        return [[0, "the quick fox"], ["what is", 3, "and", 2, "in the wind"], [4, "so", 8], ["and", 7 if kind == "idefics3_whole" else 6]]
    if kind == "internvl":
        return [[0, "the quick fox"], ["what is", 3, "and", 2, "in the wind"], [4, "so"], ["and", 7, "so", 8]]
    if kind == phi3_vision.KIND:
        return [[0, "the quick fox"], ["what is", 1, "and", 2, "in the wind"], [4, "so"], [5, 6, 8, "and"]]
    if kind in TILED:
        return [[0, "the quick fox"], ["what is", 3, "and", 2, "in the wind"], [4, "so"], ["what is", 7], ["and", 8]]
    return TALKS if kind == "clip" else [[3 if p == 1 else p for p in talk] for talk in TALKS]
