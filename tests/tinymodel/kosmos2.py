# SPDX-License-Identifier: Apache-2.0
"""Kosmos-2, small: CLIP's tower, learned queries that read what it sees beside themselves, and a decoder with sines for positions and norms
inside attention and MLP. The reference is transformers'."""
import json
import os

import hf_folder
import make_model
import tokenizer
import weights

KIND, START, END, ROW = "kosmos2", "<image>", "</image>", "<row>"  # the last one is the reference's alone
SIZE, PATCH, V, V_HEADS, V_INTER, V_LAYERS = 32, 6, 48, 2, 90, 2
D, HEADS, FF, VOCAB, LAYERS, QUERIES = 72, 3, 90, 331, 2, 5
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True, "do_resize": True, "size": {"shortest_edge": SIZE}, "resample": 3,
    "do_center_crop": True, "crop_size": {"height": SIZE, "width": SIZE}, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


def _pair(name, rows, cols, gain=1.0):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0
    yield f"{name}.bias", (rows,), 0.2, 0.0


def _norm(name, n):
    yield f"{name}.weight", (n,), 0.2, 1.0
    yield f"{name}.bias", (n,), 0.1, 0.0


def _attention(at, n, gain=1.4):
    for name in ("q", "k", "v", "out"):
        yield from _pair(f"{at}{name}_proj", n, n, gain)


def tower():
    at = "vision_model.model."
    yield at + "embeddings.class_embedding", (V,), 1.0, 0.0
    yield at + "embeddings.patch_embedding.weight", (V, 3, PATCH, PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield at + "embeddings.position_embedding.weight", ((SIZE // PATCH) ** 2 + 1, V), 0.5, 0.0
    yield from _norm(at + "pre_layrnorm", V)
    for i in range(V_LAYERS):
        layer = f"{at}encoder.layers.{i}."
        yield from _attention(layer + "self_attn.", V)
        yield from _norm(layer + "layer_norm1", V)
        yield from _norm(layer + "layer_norm2", V)
        yield from _pair(layer + "mlp.fc1", V_INTER, V, 1.4)
        yield from _pair(layer + "mlp.fc2", V, V_INTER, 1.5)
    yield from _norm(at + "post_layernorm", V)
    yield from _pair("image_to_text_projection.dense", D, V, 6.0)
    yield "image_to_text_projection.latent_query", (QUERIES, D), 1.0, 0.0
    yield from _attention("image_to_text_projection.x_attn.", D, 0.8)


def decoder():
    at = "text_model.model."
    yield at + "embed_tokens.weight", (VOCAB, D), 0.12, 0.0
    for i in range(LAYERS):
        layer = f"{at}layers.{i}."
        yield from _attention(layer + "self_attn.", D)
        yield from _norm(layer + "self_attn.inner_attn_ln", D)
        yield from _norm(layer + "self_attn_layer_norm", D)
        yield from _pair(layer + "ffn.fc1", FF, D, 1.4)
        yield from _pair(layer + "ffn.fc2", D, FF, 1.5)
        yield from _norm(layer + "ffn.ffn_layernorm", FF)
        yield from _norm(layer + "final_layer_norm", D)
    yield from _norm(at + "layer_norm", D)


def write_folder(out, template):
    make_model.write_folder("llama3", out)
    words = tokenizer.vocabulary(VOCAB)
    first = words.index("<unused0>")
    tensors = {name: weights.normal(f"kosmos2 {name}", shape, deviation, mean)
               for rows in (tower(), decoder()) for name, shape, deviation, mean in rows}
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
    hf_folder.write_json(os.path.join(out, "preprocessor_config.json"), PROCESSOR)
    hf_folder.write_json(os.path.join(out, "config.json"), {
        "architectures": ["Kosmos2ForConditionalGeneration"], "model_type": "kosmos-2", "latent_query_num": QUERIES, "dtype": "float32",
        "tie_word_embeddings": True, "text_config": {
            "model_type": "kosmos_2_text_model", "vocab_size": VOCAB, "max_position_embeddings": 512, "embed_dim": D, "layers": LAYERS, "ffn_dim": FF,
            "attention_heads": HEADS, "activation_function": "gelu", "layer_norm_eps": 1e-5, "scale_embedding": True, "add_cross_attention": False,
            "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0},
        "vision_config": {
            "model_type": "kosmos_2_vision_model", "hidden_size": V, "intermediate_size": V_INTER, "num_hidden_layers": V_LAYERS,
            "num_attention_heads": V_HEADS, "image_size": SIZE, "patch_size": PATCH, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = os.path.join(out, name)
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
        if name == "tokenizer.json":
            tokenizer.name_unused(value, (START, END, ROW), first)
            value["added_tokens"].sort(key=lambda t: t["id"])
        else:
            value["chat_template"] = template
        hf_folder.write_json(path, value)


# ---- the reference ----

class Reference:
    def __init__(self, folder, processor_class):
        import torch
        import transformers

        self.torch = torch
        self.model, info = transformers.Kosmos2ForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not any(info.values()), info
        self.model.eval()
        self.processor = processor_class.from_pretrained(folder)
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.image_token = self.tokenizer.convert_tokens_to_ids(ROW)

    def rows(self, image):
        pixels = self.torch.tensor(self.processor([image])["pixel_values"][0])[None]
        return self.model.get_image_features(pixel_values=pixels).pooler_output[0]

    def __call__(self, input_ids, image_token, seen):
        """seen: rows of all pictures, for the places of the reference's token."""
        mask = (input_ids == image_token).long()
        return self.model.text_model(input_ids=input_ids, image_embeds=seen[None], image_embeds_position_mask=mask, use_cache=False)
