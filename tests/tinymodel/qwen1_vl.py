# SPDX-License-Identifier: Apache-2.0
"""Qwen-VL: its tower before a small Qwen 1; and the reference, which transformers does not have: the tower in torch, from the description of
the published model, and transformers' Qwen 2, which is Qwen 1 with other names. Patches on a side are more than learned positions."""
import json
import os

import hf_folder
import make_model
import tokenizer
import weights

KIND, IMAGE, START, END = "qwen_vl", "<imgpad>", "<img>", "</img>"
SIZE, PATCH, HIDDEN, HEADS, LAYERS, RATIO = 40, 2, 72, 3, 3, 1.26
QUERIES, OUT, OUT_HEADS = 9, 384, 3  # heads of queries have 128 numbers
INTER, FF, VOCAB, N_LAYERS = int(HIDDEN * RATIO), 90, 331, 2
MEAN, DEVIATION = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
AT = "transformer.visual."
NAMES = {"model.embed_tokens": "transformer.wte", "model.layers": "transformer.h", "model.norm": "transformer.ln_f", "input_layernorm": "ln_1",
         "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj", "mlp.gate_proj": "mlp.w2", "mlp.up_proj": "mlp.w1",
         "mlp.down_proj": "mlp.c_proj"}


def _pair(name, rows, cols, gain=1.0):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0
    yield f"{name}.bias", (rows,), 0.2, 0.0


def _norm(name, n):
    yield f"{name}.weight", (n,), 0.2, 1.0
    yield f"{name}.bias", (n,), 0.1, 0.0


def tower():
    yield "conv1.weight", (HIDDEN, 3, PATCH, PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield "positional_embedding", (256, HIDDEN), 0.5, 0.0
    yield from _norm("ln_pre", HIDDEN)
    for i in range(LAYERS):
        layer = f"transformer.resblocks.{i}."
        yield from _norm(layer + "ln_1", HIDDEN)
        yield from _norm(layer + "ln_2", HIDDEN)
        yield from _pair(layer + "attn.in_proj", 3 * HIDDEN, HIDDEN, 1.4)
        yield from _pair(layer + "attn.out_proj", HIDDEN, HIDDEN, 1.4)
        yield from _pair(layer + "mlp.c_fc", INTER, HIDDEN, 1.4)
        yield from _pair(layer + "mlp.c_proj", HIDDEN, INTER, 1.5)
    yield "attn_pool.pos_embed", (QUERIES, OUT), 0.7, 0.0
    yield "attn_pool.query", (QUERIES, OUT), 1.0, 0.0
    yield "attn_pool.kv_proj.weight", (OUT, HIDDEN), 1.0 / HIDDEN**0.5, 0.0
    yield "attn_pool.attn.in_proj_weight", (3 * OUT, OUT), 1.4 / OUT**0.5, 0.0
    yield "attn_pool.attn.in_proj_bias", (3 * OUT,), 0.2, 0.0
    yield from _pair("attn_pool.attn.out_proj", OUT, OUT, 1.4)
    yield from _norm("attn_pool.ln_q", OUT)
    yield from _norm("attn_pool.ln_kv", OUT)
    yield from _norm("ln_post", OUT)
    yield "proj", (OUT, OUT), 0.3 / OUT**0.5, 0.0


def decoder():
    """By the names of Qwen 2."""
    yield "model.embed_tokens.weight", (VOCAB, OUT), 0.3, 0.0
    for i in range(N_LAYERS):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (OUT,), 0.2, 1.0
        yield at + "post_attention_layernorm.weight", (OUT,), 0.2, 1.0
        for name in ("q_proj", "k_proj", "v_proj"):
            yield from _pair(f"{at}self_attn.{name}", OUT, OUT, 1.4)
        yield at + "self_attn.o_proj.weight", (OUT, OUT), 1.4 / OUT**0.5, 0.0
        yield at + "mlp.gate_proj.weight", (FF, OUT), 1.4 / OUT**0.5, 0.0
        yield at + "mlp.up_proj.weight", (FF, OUT), 1.4 / OUT**0.5, 0.0
        yield at + "mlp.down_proj.weight", (OUT, FF), 1.5 / FF**0.5, 0.0
    yield "model.norm.weight", (OUT,), 0.2, 1.0
    yield "lm_head.weight", (VOCAB, OUT), 1.5 / OUT**0.5, 0.0


def _made(rows):
    return {name: weights.normal(f"qwen-vl {name}", shape, deviation, mean) for name, shape, deviation, mean in rows}


def _published(tensors):
    """Qwen 1 has q, k and v as one tensor."""
    import numpy as np

    out = {}
    for name, x in tensors.items():
        if ".q_proj." in name:
            whole = np.concatenate([tensors[name.replace("q_proj", f"{c}_proj")] for c in "qkv"])
            name, x = name.replace("self_attn.q_proj", "attn.c_attn"), whole
        elif ".k_proj." in name or ".v_proj." in name:
            continue
        for old, new in NAMES.items():
            name = name.replace(old, new)
        out[name] = x
    return out


def write_folder(out, template):
    make_model.write_folder("qwen", out)
    words = tokenizer.vocabulary(VOCAB)
    first = words.index("<unused0>")
    tensors = {**_published(_made(decoder())), **{AT + name: x for name, x in _made(tower()).items()}}
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "hidden_size": OUT, "num_hidden_layers": N_LAYERS, "num_attention_heads": 3,
        "kv_channels": 128, "intermediate_size": 2 * FF, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-6, "max_position_embeddings": 512,
        "seq_length": 512, "rotary_emb_base": 10000, "rotary_pct": 1.0, "use_dynamic_ntk": True, "use_logn_attn": True, "no_bias": True,
        "tie_word_embeddings": False, "torch_dtype": "float32", "visual": {
            "heads": HEADS, "image_size": SIZE, "image_start_id": first, "layers": LAYERS, "mlp_ratio": RATIO, "output_dim": OUT,
            "patch_size": PATCH, "width": HIDDEN, "n_queries": QUERIES}})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = os.path.join(out, name)
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
        if name == "tokenizer.json":
            tokenizer.name_unused(value, (START, END, IMAGE), first)
            value["added_tokens"].sort(key=lambda t: t["id"])
        else:
            value["chat_template"] = template
        hf_folder.write_json(path, value)


# ---- the reference ----

class Reference:
    def __init__(self, folder):
        import torch
        import transformers

        self.torch = torch
        self.w = {k: torch.tensor(v) for k, v in _made(tower()).items()}
        self.decoder = transformers.Qwen2ForCausalLM._from_config(transformers.Qwen2Config(
            hidden_size=OUT, intermediate_size=FF, num_hidden_layers=N_LAYERS, num_attention_heads=3, num_key_value_heads=3, vocab_size=VOCAB,
            rms_norm_eps=1e-6, max_position_embeddings=512, rope_theta=10000.0, tie_word_embeddings=False), attn_implementation="eager")
        self.decoder.load_state_dict({k: torch.tensor(v) for k, v in _made(decoder()).items()})
        self.decoder.eval()
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.image_token = self.tokenizer.convert_tokens_to_ids(IMAGE)

    def pair(self, name, x):
        return self.torch.nn.functional.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def norm(self, name, x):
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], 1e-6)

    def spread(self, square, n):
        """A square of learned rows, over n ones."""
        f, (old, new) = self.torch.nn.functional, (int(len(square) ** 0.5), int(n**0.5))
        at = square.reshape(1, old, old, -1).permute(0, 3, 1, 2)
        return f.interpolate(at, size=(new, new), mode="bicubic", align_corners=False).permute(0, 2, 3, 1).reshape(n, -1)

    def rows(self, image):
        torch, f = self.torch, self.torch.nn.functional
        import numpy as np
        from PIL import Image

        small = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        x = torch.tensor(np.asarray(small)).permute(2, 0, 1).float() / 255
        x = (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]
        x = f.conv2d(x[None], self.w["conv1.weight"], stride=PATCH)[0].flatten(1).T
        x = self.norm("ln_pre", x + self.spread(self.w["positional_embedding"], len(x)))
        for i in range(LAYERS):
            at, dim = f"transformer.resblocks.{i}.", HIDDEN // HEADS
            heads = self.pair(at + "attn.in_proj", self.norm(at + "ln_1", x)).view(len(x), HEADS, 3 * dim)
            q, k, v = (heads[..., j * dim:(j + 1) * dim].transpose(0, 1) for j in range(3))
            seen = ((q @ k.transpose(1, 2)) / dim**0.5).softmax(-1) @ v
            x = x + self.pair(at + "attn.out_proj", seen.transpose(0, 1).reshape(len(x), HIDDEN))
            x = x + self.pair(at + "mlp.c_proj", f.gelu(self.pair(at + "mlp.c_fc", self.norm(at + "ln_2", x))))
        pool = torch.nn.MultiheadAttention(OUT, OUT_HEADS)
        pool.load_state_dict({k.removeprefix("attn_pool.attn."): v for k, v in self.w.items() if k.startswith("attn_pool.attn.")})
        x, place = self.norm("attn_pool.ln_kv", self.pair("attn_pool.kv_proj", x)), self.w["attn_pool.pos_embed"]
        q = self.norm("attn_pool.ln_q", self.w["attn_pool.query"]) + place
        out = pool(q, x + self.spread(place, len(x)), x)[0]
        return self.norm("ln_post", out) @ self.w["proj"]

    def __call__(self, input_ids, image_token, seen):
        """seen: rows of all pictures, for the places of the image token."""
        x = self.decoder.model.embed_tokens(input_ids).clone()
        x[0, input_ids[0] == image_token] = seen
        return self.decoder(inputs_embeds=x, use_cache=False)
