# SPDX-License-Identifier: Apache-2.0
"""The models of vision.py as llama.cpp has them: a GGUF file of the decoder and one of the tower, with the names and keys that its
converters write, and what they store differently. Some files are as the older converters wrote them."""
import json
import os

import gguf_file
import idefics3
import numpy as np
import pixtral
import qwen_vl
import quant
import tokenizer
import vision
import weights
from specs import SPECS, Spec

KINDS = ("clip", "llava_next", "siglip", "gemma3", "smolvlm", *pixtral.KINDS, *qwen_vl.KINDS[:4])  # Qwen3.5 is not read from GGUF files
TOWER = "mmproj-model-f16.gguf"
LEGACY = ("llava_next", "qwen2_vl")  # MLP products with their names swapped, an inner width that is not true
PROJECTOR = {"clip": "mlp", "llava_next": "mlp", "siglip": "mlp", "gemma3": "gemma3", "smolvlm": "idefics3", "pixtral": "pixtral", "mistral3": "pixtral",
             "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger", "qwen3_vl": "qwen3vl_merger", "qwen3_vl_moe": "qwen3vl_merger"}
GGUF_ARCH = {"qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl", "qwen3_vl_moe": "qwen3vlmoe"}
NAMES = [
    ("embeddings.patch_embedding", "patch_embd"), ("embeddings.position_embedding", "position_embd"),
    ("embeddings.class_embedding", "class_embd"), ("encoder.layers", "blk"), ("transformer.layers", "blk"), ("blocks", "blk"),
    ("layer_norm1", "ln1"), ("layer_norm2", "ln2"), ("attention_norm", "ln1"), ("ffn_norm", "ln2"), ("norm1", "ln1"), ("norm2", "ln2"),
    ("self_attn.out_proj", "attn_out"), ("attention.o_proj", "attn_out"), ("attn.proj", "attn_out"), ("attn.qkv", "attn_qkv"),
    ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("attention.q_proj", "attn_q"),
    ("attention.k_proj", "attn_k"), ("attention.v_proj", "attn_v"), ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down"),
    ("mlp.linear_fc1", "ffn_up"), ("mlp.linear_fc2", "ffn_down"), ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"), ("feed_forward.down_proj", "ffn_down"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"), ("pre_layrnorm", "pre_ln"), ("ln_pre", "pre_ln"), ("post_layernorm", "post_ln"),
    ("patch_conv", "patch_embd"), ("patch_embed.proj", "patch_embd"), ("pos_embed", "position_embd"), ("merger.ln_q", "post_ln"),
    ("merger.norm", "post_ln"),
]
ENDS = [
    ("v.merger.mlp.", "mm."), ("v.merger.linear_fc1", "mm.0"), ("v.merger.linear_fc2", "mm.2"), ("mm.norm", "mm.input_norm"),
    ("mm.patch_merger.merging_layer", "mm.patch_merger"), ("mm.mm_soft_emb_norm", "mm.soft_emb_norm"),
    ("mm.mm_input_projection_weight", "mm.input_projection.weight"),
]


def _name(kind, name):
    for prefix in ("model.visual.", "model.vision_model.", "visual.", "vision_tower.vision_model.", "vision_tower."):
        if name.startswith(prefix):
            name = "v." + name[len(prefix):]
    name = name.replace("multi_modal_projector.", "mm.").replace("model.connector.modality_projection.proj.", "mm.model.fc.")
    if name.startswith("v.deepstack_merger_list."):
        _, _, i, part, end = name.split(".")
        part = {"linear_fc1": "fc1", "linear_fc2": "fc2"}.get(part, part)
        return f"v.deepstack.{qwen_vl.DEEP[int(i)]}.{part}.{end}"
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    for ours, theirs in ENDS:
        name = name.replace(ours, theirs)
    if kind in pixtral.KINDS:
        name = name.replace("mm.linear_", "mm.")
    name = name.replace("mm.linear_1", "mm.0").replace("mm.linear_2", "mm.2")
    if kind in LEGACY:
        swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
        for ours, theirs in swapped.items():
            if ours in name:
                return name.replace(ours, theirs)
    return "model.image_newline" if name == "image_newline" else name


def _split(kind, name, x):
    """What one tensor becomes."""
    if kind in pixtral.KINDS and (".attn_q." in name or ".attn_k." in name):
        x = gguf_file.interleave_rows(x, pixtral.HEADS)
    if name == "mm.soft_emb_norm.weight":
        x = x + np.float32(1)
    if name == "v.patch_embd.weight" and x.ndim == 5:
        return [(name, x[:, :, 0]), (name + ".1", x[:, :, 1])]
    if ".attn_qkv." in name and kind in ("qwen2_vl", "qwen2_5_vl"):
        return [(name.replace("qkv", letter), part) for letter, part in zip("qkv", np.split(x, 3))]
    return [(name, x)]


def _tower_keys(kind, config, processor, hidden):
    v = config["vision_config"]
    width = v.get("embed_dim", v["hidden_size"])
    inter = 0 if kind == "qwen2_vl" else v["intermediate_size"]
    layers = v.get("depth", v.get("num_hidden_layers"))
    side = {"pixtral": pixtral.LONGEST, "mistral3": pixtral.LONGEST, "qwen3_vl": 20, "qwen3_vl_moe": 20}
    keys = [("general.architecture", "string", "clip"), ("general.type", "string", "mmproj"),
            ("clip.has_vision_encoder", "bool", True), ("clip.projector_type", "string", PROJECTOR[kind]),
            ("clip.vision.image_size", "uint32", side.get(kind, v.get("image_size", 560))),
            ("clip.vision.patch_size", "uint32", v["patch_size"]), ("clip.vision.embedding_length", "uint32", width),
            ("clip.vision.feed_forward_length", "uint32", inter), ("clip.vision.projection_dim", "uint32", hidden),
            ("clip.vision.attention.head_count", "uint32", v.get("num_heads", v.get("num_attention_heads"))),
            ("clip.vision.attention.layer_norm_epsilon", "float32", v.get("layer_norm_eps", 1e-6)),
            ("clip.vision.image_mean", "float32s", processor["image_mean"]), ("clip.vision.image_std", "float32s", processor["image_std"])]
    if kind in vision.HAS_CLASS:  # the last layer is left out
        keys += [("clip.has_llava_projector", "bool", True), ("clip.use_gelu", "bool", False)]
        layers -= 1
    if kind == "llava_next":
        keys += [("clip.vision.image_grid_pinpoints", "int32s", [n for pair in vision.PINPOINTS for n in pair]),
                 ("clip.vision.mm_patch_merge_type", "string", "spatial_unpad"), ("clip.vision.feature_layer", "int32s", [layers])]
    if kind == "gemma3":
        side = v["image_size"] // v["patch_size"]
        keys += [("clip.use_gelu", "bool", True),
                 ("clip.vision.projector.scale_factor", "uint32", side // int(config["mm_tokens_per_image"]**0.5))]
    if kind in idefics3.KINDS:
        keys += [("clip.use_gelu", "bool", True), ("clip.vision.projector.scale_factor", "uint32", idefics3.SCALE[kind]),
                 ("clip.vision.preproc_image_size", "uint32", idefics3.LONGEST[kind])]
    if kind in pixtral.KINDS:
        keys += [("clip.use_silu", "bool", True)]
    if kind == "mistral3":
        keys += [("clip.vision.spatial_merge_size", "uint32", config["spatial_merge_size"])]
    if kind in qwen_vl.KINDS:
        keys += [("clip.vision.image_min_pixels", "uint32", qwen_vl.MIN_PIXELS), ("clip.vision.image_max_pixels", "uint32", qwen_vl.MAX_PIXELS)]
    if kind == "qwen2_5_vl":
        keys += [("clip.use_silu", "bool", True), ("clip.vision.n_wa_pattern", "uint32", v["fullatt_block_indexes"][0] + 1),
                 ("clip.vision.window_size", "uint32", v["window_size"])]
    if kind in qwen_vl.KINDS[2:]:
        keys += [("clip.use_gelu", "bool", True), ("clip.vision.spatial_merge_size", "uint32", qwen_vl.MERGE),
                 ("clip.vision.is_deepstack_layers", "bools", [i in qwen_vl.DEEP for i in range(layers)])]
    return keys + [("clip.vision.block_count", "uint32", layers)], layers


def write_tower(path, kind, config, fmt="f32"):
    hidden = SPECS[vision.ARCH[kind]].config["hidden_size"]
    keys, layers = _tower_keys(kind, config, vision.PROCESSORS[kind], hidden)
    tensors = []
    for name, shape, deviation, mean in vision.tower(hidden, kind):
        name, x = _name(kind, name), weights.normal(f"vision {name}", shape, deviation, mean)
        left_out = kind in vision.HAS_CLASS and (name.startswith("v.post_ln") or name.startswith(f"v.blk.{layers}."))
        if not left_out:
            tensors += _split(kind, name, x)
    table = []
    for name, x in tensors:
        one = quant.fitting(fmt, x.shape[-1]) if x.ndim == 2 and name.startswith(("v.blk.", "mm.")) else "f32"
        table.append((name, one, x.shape, quant.quantize(np.ascontiguousarray(x), one).reshape(-1)))
    gguf_file.write(path, keys, table)


def write_decoder(path, kind, words, template, eps):
    known = SPECS[vision.ARCH[kind]]
    arch = {"mistral": "llama", "qwen3_moe": "qwen3moe"}.get(known.name, known.gguf_arch)
    spec = known
    if not hasattr(known, "gguf_tensors"):
        spec = Spec(known.name, {**known.config, **({"rms_norm_eps": eps} if eps else {})}, arch)
    keys, tensors = gguf_file.to_gguf(spec, weights.build(known), "f32")
    if kind in GGUF_ARCH:
        old, new = arch, GGUF_ARCH[kind]
        base = {"qwen2_vl": 10000.0, "qwen2_5_vl": 10000.0}.get(kind, 5000000.0)
        keys = [(key.replace(old + ".", new + ".", 1), form, new if key == "general.architecture" else base if key == f"{old}.rope.freq_base"
                 else value) for key, form, value in keys]
        keys.append((f"{new}.rope.dimension_sections", "int32s", [*qwen_vl.SECTIONS[kind], 0]))
    for key, form, value in tokenizer.gguf_keys(known.config["vocab_size"], False):
        if key == "tokenizer.ggml.tokens":
            kinds = [1 if w == idefics3.TWO_LINES else 3 if w != old and not w.startswith("<unused") else None for w, old in zip(words, value)]
            value = words
        elif key == "tokenizer.ggml.token_type":
            value = [new or old for new, old in zip(kinds, value)]
        elif key == "tokenizer.ggml.merges" and idefics3.TWO_LINES in words:
            value = [*value, " ".join(idefics3.TWO_LINES)]
        elif key == "tokenizer.chat_template":
            value = template
        keys.append((key, form, value))
    gguf_file.write(path, keys, tensors)


def write(out, kind, fmt="f32"):
    """out/model.gguf and the tower beside it."""
    vision.write_folder(out, kind)
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(out, "tokenizer.json"), encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    with open(os.path.join(out, "tokenizer_config.json"), encoding="utf-8") as f:
        template = json.load(f)["chat_template"]
    for name in os.listdir(out):
        os.remove(os.path.join(out, name))
    eps = config["text_config"]["rms_norm_eps"] if kind == "mistral3" else None
    write_decoder(os.path.join(out, "model.gguf"), kind, sorted(vocab, key=vocab.get), template, eps)
    write_tower(os.path.join(out, TOWER), kind, config, fmt)
