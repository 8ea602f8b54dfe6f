# SPDX-License-Identifier: Apache-2.0
"""CogVLM and CogVLM2, small, and the reference, which transformers does not have: in torch, from the description of the published models.
CogVLM2 makes a row of 2 x 2 patches, and has fewer heads of keys."""
import json
import os

import hf_folder
import make_model
import tokenizer
import weights

KINDS = {"cogvlm": 3, "cogvlm2": 1}  # heads of keys
IMAGE = "<image>"
V, V_HEADS, V_INTER, V_LAYERS = 48, 2, 90, 2
PATCH = 6
SIZES = {"cogvlm": 32, "cogvlm2": 36}
D, HEADS, HD, FF, VOCAB, LAYERS = 72, 3, 24, 90, 331, 2
MEAN, DEVIATION = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
EPS = 1e-5


def side(kind):
    return SIZES[kind] // PATCH


def n_rows(kind):
    return (side(kind) // (2 if kind == "cogvlm2" else 1)) ** 2 + 2


def _pair(name, rows, cols, gain=1.0):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0
    yield f"{name}.bias", (rows,), 0.2, 0.0


def _norm(name, n):
    yield f"{name}.weight", (n,), 0.2, 1.0
    yield f"{name}.bias", (n,), 0.1, 0.0


def tower(kind):
    at = "model.vision."
    yield at + "patch_embedding.proj.weight", (V, 3, PATCH, PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield at + "patch_embedding.proj.bias", (V,), 0.3, 0.0
    yield at + "patch_embedding.cls_embedding", (1, V), 1.0, 0.0
    yield at + "patch_embedding.position_embedding.weight", (side(kind) ** 2 + 1, V), 0.5, 0.0
    for i in range(V_LAYERS):
        layer = f"{at}transformer.layers.{i}."
        yield from _norm(layer + "input_layernorm", V)
        yield from _pair(layer + "attention.query_key_value", 3 * V, V, 1.4)
        yield from _pair(layer + "attention.dense", V, V, 1.4)
        yield from _norm(layer + "post_attention_layernorm", V)
        yield from _pair(layer + "mlp.fc1", V_INTER, V, 1.4)
        yield from _pair(layer + "mlp.fc2", V, V_INTER, 1.5)
    if kind == "cogvlm2":
        yield at + "conv.weight", (V, V, 2, 2), 1.2 / (4 * V) ** 0.5, 0.0
        yield at + "conv.bias", (V,), 0.2, 0.0
    yield at + "linear_proj.linear_proj.weight", (D, V), 1.0 / V**0.5, 0.0
    yield from _norm(at + "linear_proj.norm1", D)
    yield at + "linear_proj.gate_proj.weight", (FF, D), 1.4 / D**0.5, 0.0
    yield at + "linear_proj.dense_h_to_4h.weight", (FF, D), 1.4 / D**0.5, 0.0
    yield at + "linear_proj.dense_4h_to_h.weight", (D, FF), 1.5 / FF**0.5, 0.0
    yield at + "boi", (1, 1, D), 0.5, 0.0
    yield at + "eoi", (1, 1, D), 0.5, 0.0


def decoder(kind):
    qkv = D + 2 * KINDS[kind] * HD
    yield "model.embed_tokens.weight", (VOCAB, D), 0.4, 0.0
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (D,), 0.2, 1.0
        yield at + "post_attention_layernorm.weight", (D,), 0.2, 1.0
        for of in ("vision", "language"):
            yield f"{at}self_attn.{of}_expert_query_key_value.weight", (qkv, D), 1.4 / D**0.5, 0.0
            yield f"{at}self_attn.{of}_expert_dense.weight", (D, D), 1.4 / D**0.5, 0.0
            yield f"{at}mlp.{of}_mlp.gate_proj.weight", (FF, D), 1.4 / D**0.5, 0.0
            yield f"{at}mlp.{of}_mlp.up_proj.weight", (FF, D), 1.4 / D**0.5, 0.0
            yield f"{at}mlp.{of}_mlp.down_proj.weight", (D, FF), 1.5 / FF**0.5, 0.0
        if kind == "cogvlm2":
            yield f"{at}self_attn.vision_expert_query_key_value.bias", (qkv,), 0.3, 0.0
    yield "model.norm.weight", (D,), 0.2, 1.0
    yield "lm_head.weight", (VOCAB, D), 1.5 / D**0.5, 0.0


def tensors(kind):
    return {name: weights.normal(f"{kind} {name}", shape, deviation, mean)
            for rows in (tower(kind), decoder(kind)) for name, shape, deviation, mean in rows}


def write_folder(out, kind, template):
    make_model.write_folder("llama3", out)
    words = tokenizer.vocabulary(VOCAB)
    image = words.index("<unused0>")
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors(kind), "float32")
    more = {"num_multi_query_heads": KINDS[kind]} if kind == "cogvlm2" else {}
    hf_folder.write_json(os.path.join(out, "config.json"), {
        "architectures": ["CogVLMForCausalLM"], "hidden_act": "silu", "hidden_size": D, "intermediate_size": FF, "max_position_embeddings": 512,
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "pad_token_id": image, "rms_norm_eps": EPS, "template_version": "chat",
        "tie_word_embeddings": False, "torch_dtype": "float32", "vocab_size": VOCAB, **more, "vision_config": {
            "dropout_prob": 0.0, "hidden_act": "gelu", "hidden_size": V, "image_size": SIZES[kind], "in_channels": 3, "intermediate_size": V_INTER,
            "layer_norm_eps": 1e-6, "num_heads": V_HEADS, "num_hidden_layers": V_LAYERS, "num_positions": side(kind) ** 2 + 1,
            "patch_size": PATCH}})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = os.path.join(out, name)
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
        if name == "tokenizer.json":
            del value["model"]["vocab"]["<unused0>"]
            value["model"]["vocab"][IMAGE] = image
            value["added_tokens"].append({**value["added_tokens"][0], "id": image, "content": IMAGE})
            value["added_tokens"].sort(key=lambda t: t["id"])
        else:
            value["chat_template"] = template
        hf_folder.write_json(path, value)


# ---- the reference ----

class Reference:
    def __init__(self, folder, kind):
        import torch
        import transformers

        self.torch, self.kind = torch, kind
        self.w = {k: torch.tensor(v) for k, v in tensors(kind).items()}
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.image_token = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def pair(self, name, x):
        return self.torch.nn.functional.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def layer_norm(self, name, x, eps):
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], eps)

    def rms_norm(self, name, x):
        return x * self.torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * self.w[name + ".weight"]

    def rows(self, image):
        import numpy as np
        from PIL import Image

        torch, f, at, n = self.torch, self.torch.nn.functional, "model.vision.", SIZES[self.kind]
        x = torch.tensor(np.asarray(image.resize((n, n), Image.Resampling.BICUBIC))).permute(2, 0, 1).float() / 255
        x = (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]
        x = f.conv2d(x[None], self.w[at + "patch_embedding.proj.weight"], self.w[at + "patch_embedding.proj.bias"], stride=PATCH)[0].flatten(1).T
        x = torch.cat([self.w[at + "patch_embedding.cls_embedding"], x]) + self.w[at + "patch_embedding.position_embedding.weight"]
        for i in range(V_LAYERS):
            layer = f"{at}transformer.layers.{i}."
            qkv = self.pair(layer + "attention.query_key_value", x).view(len(x), 3, V_HEADS, V // V_HEADS)
            q, k, v = (qkv[:, j].transpose(0, 1) for j in range(3))
            seen = ((q @ k.transpose(1, 2)) / (V // V_HEADS) ** 0.5).softmax(-1) @ v
            seen = self.pair(layer + "attention.dense", seen.transpose(0, 1).reshape(len(x), V))
            x = x + self.layer_norm(layer + "input_layernorm", seen, 1e-6)
            made = self.pair(layer + "mlp.fc2", f.gelu(self.pair(layer + "mlp.fc1", x)))
            x = x + self.layer_norm(layer + "post_attention_layernorm", made, 1e-6)
        x = x[1:]
        if self.kind == "cogvlm2":
            square = x.T.reshape(1, V, side(self.kind), side(self.kind))
            x = f.conv2d(square, self.w[at + "conv.weight"], self.w[at + "conv.bias"], stride=2)[0].flatten(1).T
        x = f.gelu(self.layer_norm(at + "linear_proj.norm1", self.pair(at + "linear_proj.linear_proj", x), 1e-5))
        x = f.silu(self.pair(at + "linear_proj.gate_proj", x)) * self.pair(at + "linear_proj.dense_h_to_4h", x)
        x = self.pair(at + "linear_proj.dense_4h_to_h", x)
        return torch.cat([self.w[at + "boi"][0], x, self.w[at + "eoi"][0]])

    def split(self, names, x, of_picture):
        """Each row through the product of its own."""
        return self.torch.where(of_picture[:, None], self.pair(names.format("vision"), x), self.pair(names.format("language"), x))

    def turn(self, x, place):
        """x: [heads, tokens, HD]"""
        torch = self.torch
        base = 500000.0 if self.kind == "cogvlm2" else 10000.0
        angle = place[:, None] / base ** (torch.arange(0, HD, 2) / HD)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        return x * cos + torch.cat([-x[..., HD // 2:], x[..., :HD // 2]], -1) * sin

    def __call__(self, input_ids, image_token, seen):
        """seen: rows of all pictures, for the places of the image token. The first one of a picture and its last one count as text."""
        torch, f, w = self.torch, self.torch.nn.functional, self.w
        ids, n, kv = input_ids[0], n_rows(self.kind), KINDS[self.kind]
        is_row = ids == image_token
        number = torch.where(is_row, is_row.cumsum(0) - 1, -1) % n  # in its picture
        of_picture = is_row & (number < n - 1)
        place = (~is_row | (number < 2) | (number == n - 1)).long().cumsum(0).float() - 1
        x = w["model.embed_tokens.weight"][ids].clone()
        x[is_row] = seen
        mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
        for i in range(LAYERS):
            at = f"model.layers.{i}."
            qkv = self.split(at + "self_attn.{}_expert_query_key_value", self.rms_norm(at + "input_layernorm", x), of_picture)
            q, k, v = (part.view(len(ids), -1, HD).transpose(0, 1) for part in qkv.split([D, kv * HD, kv * HD], -1))
            q, k = self.turn(q, place), self.turn(k, place)
            k, v = (t.repeat_interleave(HEADS // kv, 0) for t in (k, v))
            out = ((q @ k.transpose(1, 2)) / HD**0.5 + mask).softmax(-1) @ v
            x = x + self.split(at + "self_attn.{}_expert_dense", out.transpose(0, 1).reshape(len(ids), D), of_picture)
            y = self.rms_norm(at + "post_attention_layernorm", x)
            y = f.silu(self.split(at + "mlp.{}_mlp.gate_proj", y, of_picture)) * self.split(at + "mlp.{}_mlp.up_proj", y, of_picture)
            x = x + self.split(at + "mlp.{}_mlp.down_proj", y, of_picture)
        logits = f.linear(self.rms_norm("model.norm", x), w["lm_head.weight"])
        from types import SimpleNamespace
        return SimpleNamespace(logits=logits[None])
