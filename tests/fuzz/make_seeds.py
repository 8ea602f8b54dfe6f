#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of targets whose inputs are files or messages: tests/fuzz/corpus/TARGET/NAME.

    make_seeds.py [--out tests/fuzz/corpus]

Small models come from tests/tinymodel, so that a new form of file there becomes a seed here. The rest of
the corpus was written by hand. Needs numpy."""
import argparse
import base64
import functools
import io
import json
import os
import pathlib
import struct
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/tinymodel"), str(ROOT / "tests")]
import encdec  # noqa: E402
import encoders  # noqa: E402
import gguf_file  # noqa: E402
import hf_folder  # noqa: E402
import nemo  # noqa: E402
import medusa_heads as medusa_file  # noqa: E402
import quantized  # noqa: E402
import tokenizer  # noqa: E402
import trtllm_checkpoint  # noqa: E402
from more_families import FAMILIES  # noqa: E402

BORDER = b"\n=====\n"
HIDDEN, HEADS, KV_HEADS, INTER, VOCAB = 16, 2, 1, 32, 320
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
          "rms_norm_eps": 1e-05, "tie_word_embeddings": True, "max_position_embeddings": 64,
          "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": HEADS,
          "num_key_value_heads": KV_HEADS, "intermediate_size": INTER, "vocab_size": VOCAB,
          "rope_theta": 10000.0, "bos_token_id": 2, "eos_token_id": 1, "torch_dtype": "float16"}


def text(value):
    return json.dumps(value, separators=(",", ":")).encode()


def written(write, *args):
    """What a writer of files wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x")
        write(path, *args)
        return pathlib.Path(path).read_bytes()


def llama_tensors(vocab=VOCAB):
    head, layer = HIDDEN // HEADS, "model.layers.0."
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,),
              layer + "input_layernorm.weight": (HIDDEN,), layer + "post_attention_layernorm.weight": (HIDDEN,),
              layer + "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
              layer + "self_attn.k_proj.weight": (KV_HEADS * head, HIDDEN),
              layer + "self_attn.v_proj.weight": (KV_HEADS * head, HIDDEN),
              layer + "self_attn.o_proj.weight": (HIDDEN, HIDDEN), layer + "mlp.gate_proj.weight": (INTER, HIDDEN),
              layer + "mlp.up_proj.weight": (INTER, HIDDEN), layer + "mlp.down_proj.weight": (HIDDEN, INTER)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def unigram():
    words = ["<unk>", "<s>", "\u2581one", "\u2581two", "\u2581", "o", "n", "e", "t", "w"]
    return {"version": "1.0", "added_tokens": [{"id": 0, "content": "<unk>", "special": True},
                                               {"id": 1, "content": "<s>", "special": True}],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
            "post_processor": None, "decoder": {"type": "Metaspace", "replacement": "\u2581",
                                                "prepend_scheme": "always"},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [[w, -float(i)] for i, w in enumerate(words)]}}


def checkpoints():
    weights = written(hf_folder.write_safetensors, llama_tensors(), "float16")
    few = dict(CONFIG, vocab_size=10)
    yield "llama", [text(CONFIG), weights, text(tokenizer.tokenizer_json(VOCAB, True)),
                    text(tokenizer.tokenizer_config(True))]
    yield "unigram", [text(few), written(hf_folder.write_safetensors, llama_tensors(10), "float32"), text(unigram()),
                      text({"bos_token": "<s>", "chat_template": "{{ messages[0].content }}"})]
    ones = {name: x + 1 for name, x in llama_tensors(10).items()}
    for name in ("gptq-4", "auto-round-asym", "hqq-4", "torchao-intx", "torchao-floats", "quark-uint4", "bitnet", "bitnet-online", "mlx-4", "awq", "awq-gemv", "fp8", "ct-4-asym", "ct-8-row", "ct-nvfp4", "modelopt-awq", "modelopt-awq-columns", "modelopt-w4a8-columns", "ct-mxfp8", "bnb-nf4-double", "bnb-int8"):
        quantized.RECIPES[name] = {**quantized.RECIPES[name], "group": HIDDEN}
        tensors, fields, _ = quantized.quantized(ones, name)
        yield name, [text({**few, "quantization_config": fields}),
                     written(hf_folder.write_safetensors, tensors, "float16")]
        if name == "modelopt-awq":
            yield "modelopt-beside", [text(few), written(hf_folder.write_safetensors, tensors, "float16"), b"", b"", b"",
                                      text({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "W4A16_AWQ", "group_size": HIDDEN, "exclude_modules": ["lm_head"]}})]
    for kind, make in (("qint8", lambda x: quantized.Integers("", x, 8, -1, True)), ("qint4", lambda x: quantized.Shifted(x, 4, HIDDEN, False))):
        stored, qmap = {}, {}
        for name, x in ones.items():
            if not quantized.is_linear(name, x):
                stored[name] = x
                continue
            parts, said = quantized.quanto(name[:-len(".weight")], make(x))
            stored.update(parts)
            qmap[name[:-len(".weight")]] = {"weights": said, "activations": "none"}
        yield f"quanto-{kind}", [text(few), written(hf_folder.write_safetensors, stored, "float16"), b"", b"", b"", b"", text(qmap)]
    quantized.RECIPES["ct-marlin-4"]["group"] = -1
    for name, width in (("gptq-p-7", 32), ("gptq-8-act", 64), ("mlx-8", 32), ("ct-8-asym", 64), ("ct-24-fp8", 32), ("torchao-int4", 64), ("torchao-tiles-2", 32)):
        wide = {key: np.ones([width if n in (HIDDEN, HIDDEN // HEADS) else n for n in x.shape], np.float32) for key, x in ones.items()}
        quantized.RECIPES[name]["group"] = 32
        tensors, fields, _ = quantized.quantized(wide, name)
        yield name, [text({**few, "hidden_size": width, "num_key_value_heads": HEADS, "quantization_config": fields}),
                     written(hf_folder.write_safetensors, tensors, "float16")]
    square = {key: np.ones([64 if n != 10 else n for n in x.shape], np.float32) for key, x in ones.items()}
    told = {key: ((np.arange(x.size) * 7919 % 1009 / 504 - 1) ** 3).reshape(x.shape).astype(np.float32) for key, x in square.items()}
    for name, made in (("ct-marlin-4", square), ("eetq", told)):
        tensors, fields, _ = quantized.quantized(made, name)
        yield name, [text({**few, "hidden_size": 64, "intermediate_size": 64, "num_key_value_heads": HEADS, "quantization_config": fields}),
                     written(hf_folder.write_safetensors, tensors, "float16")]
    quantized.RECIPES["ct-4"]["group"] = 32
    tensors, fields, _ = quantized.quantized(square, "ct-4")
    tensors["model.layers.0.mlp.down_proj.R4_input.weight"] = np.eye(32, dtype=np.float32)
    places = [{"targets": ["re:.*down_proj$"], "location": at, "inverse": False} for at in ("input", "weight_input")]
    fields["transform_config"] = {"config_groups": {"R4": {"type": "hadamard", "apply": places}}}
    yield "ct-rotated", [text({**few, "hidden_size": 64, "intermediate_size": 64, "num_key_value_heads": HEADS, "quantization_config": fields}),
                         written(hf_folder.write_safetensors, tensors, "float16")]
    # numbers of which most are small, by which the order of codes is told
    wide = {key: np.ones([64 if n in (HIDDEN, HIDDEN // HEADS) else n for n in x.shape]) for key, x in ones.items()}
    wide = {key: ((np.arange(x.size) * 7919 % 1009 / 504 - 1) ** 3).reshape(x.shape).astype(np.float32) for key, x in wide.items()}
    quantized.RECIPES["gptq-4-asym"]["group"] = 32
    for name in ("fp8-bytes", "awq-columns", "nvfp4", "nvfp4-linear", "mxfp4", "fp8-blocks", "sq", "sq-smoother", "sq-channel-tensor", "w8a16", "gptq-zeros",
                 "qserve-group", "qserve-channel", "mixed"):
        is_wide = name in ("w8a16", "gptq-zeros", "mxfp4", "qserve-group", "qserve-channel")
        made = wide if is_wide else ones
        tensors, fields = trtllm_checkpoint.mixed(made) if name == "mixed" else trtllm_checkpoint.checkpoint(made, name, "plain")
        layers = fields.pop("layers", None)
        sizes = {"hidden_size": 64, "num_key_value_heads": HEADS} if is_wide else {}
        yield "trtllm-" + name, [text({**few, **sizes, "architecture": "LlamaForCausalLM", "dtype": "float16", "quantization": fields,
                                       "position_embedding_type": "rope_gpt_neox"}),
                                 written(hf_folder.write_safetensors, tensors, "float16"),
                                 *([b"", b"", text({"quantized_layers": layers})] if layers else [])]
    for name in ("gemma3n", "gemma4"):
        yield name, [text(FAMILIES[name].config), weights]
    tensors, fields, _ = quantized.quantized(gpt_oss_tensors(), "mxfp4")
    oss = {**few, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 2,
           "num_experts_per_tok": 1, "quantization_config": fields}
    yield "mxfp4", [text(oss), written(hf_folder.write_safetensors, tensors, "float16")]


def gpt_oss_tensors():
    """Experts alone: what their reader looks at."""
    at = "model.layers.0.mlp.experts."
    return {at + "gate_up_proj": np.ones((2, 32, 64), np.float32), at + "down_proj": np.ones((2, 32, 32), np.float32)}


def lora_modules():
    layer = "base_model.model.model.layers.0."
    for name, n_in, n_out in ((layer + "self_attn.q_proj", HIDDEN, HIDDEN), (layer + "mlp.down_proj", INTER, HIDDEN)):
        yield name + ".lora_A.weight", np.ones((2, n_in), np.float32)
        yield name + ".lora_B.weight", np.ones((n_out, 2), np.float32)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def adapters():
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "fan_in_fan_out": False, "r": 2,
              "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"], "use_rslora": False,
              "rank_pattern": {}, "alpha_pattern": {"down_proj": 3}}
    tensors = dict(lora_modules())
    yield "peft", b"\0" + BORDER.join([text(config), written(hf_folder.write_safetensors, tensors, "float32")])
    yield "bin", b"\1" + BORDER.join([text(config), written(hf_folder.write_bin, tensors, "float16")])
    width = 2 * (HIDDEN + HIDDEN)
    rows = np.array([[[1, 0, 2], [4, 0, 2]]], np.int32)
    yield "npy", b"\2" + BORDER.join([npy(rows), npy(np.ones((1, 2, width), np.float16))])
    dora = {n.replace("lora_A.weight", "lora_magnitude_vector"): np.ones(HIDDEN, np.float32) for n in tensors if ".lora_A." in n}
    yield "dora", b"\0" + BORDER.join([text(dict(config, use_dora=True)),
                                       written(hf_folder.write_safetensors, tensors | dora, "float32")])
    numbers = np.append(rows[0, 0], 1).astype(np.int32)
    yield "dora_rows", b"\3" + bytes([1, width // 16 + 1, 0, 4]) + numbers.tobytes() + np.ones(width + HIDDEN, np.float32).tobytes()
    yield "rows", b"\3" + bytes([1, width // 16, 0, 3]) + rows[0, 0].tobytes() + np.ones(width, np.float32).tobytes()


def eagle_heads():
    """For the model that fuzz_eagle.c describes: 16 wide, 2 heads of 8 with one of keys, 32 between the MLP's products."""
    for kind, layer, form in ((1, "layers.0.", "bin"), (3, "midlayer.", "safetensors")):
        wide = 32 if kind == 3 else 16
        shapes = {"self_attn.q_proj": (16, wide), "self_attn.k_proj": (8, wide), "self_attn.v_proj": (8, wide), "self_attn.o_proj": (16, 16),
                  "mlp.gate_proj": (32, 16), "mlp.up_proj": (32, 16), "mlp.down_proj": (16, 32), "post_attention_layernorm": (16,)}
        if kind == 3:
            shapes |= {"hidden_norm": (16,), "input_layernorm": (16,)}
        tensors = {f"{layer}{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
        tensors["fc.weight"] = np.ones((16, 48 if kind == 3 else 32), np.float32)
        config = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "intermediate_size": 32, "vocab_size": 320, "rms_norm_eps": 1e-5, "max_position_embeddings": 128}
        if kind == 3:
            config |= {"draft_vocab_size": 8, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}
            tensors |= {"norm.weight": np.ones(16, np.float32), "lm_head.weight": np.ones((8, 16), np.float32),
                        "d2t": np.arange(8, dtype=np.int64)}
        write = hf_folder.write_bin if form == "bin" else hf_folder.write_safetensors
        yield f"eagle{kind}", bytes([(kind == 3) | (form == "bin") << 1]) + BORDER.join([text(config), written(write, tensors, "float16")])


def medusas():
    """For a model 16 wide with 40 tokens: fuzz_medusa.c."""
    rng = np.random.default_rng(2)
    one = {"0.0.linear.weight": (16, 16), "0.0.linear.bias": (16,), "0.1.weight": (40, 16), "1.0.linear.weight": (16, 16), "1.1.weight": (40, 16)}
    ones = {name: np.ones(shape, np.float32) for name, shape in one.items()}
    yield "heads", b"\0" + BORDER.join([text({"medusa_num_heads": 2}), written(hf_folder.write_safetensors, ones, "float16")])
    small = {"token_map": np.arange(3, 40, 5, dtype=np.int64), "lm_heads.0.weight_scale": np.ones((8, 1), np.float32),
             "lm_heads.0.weight": rng.integers(-127, 127, (8, 16)).astype(np.int8), "blocks.0.layers.0.weight": np.ones((16, 16), np.float32),
             "blocks.1.layers.0.weight": np.ones((16, 16), np.float32)}
    yield "shared", b"\3" + BORDER.join([text({"num_heads": 2}), written(medusa_file.write, small)])
    fp8 = {**small, "blocks.0.layers.0.weight": np.full((16, 16), 56, np.uint8).view("V1"), "blocks.0.layers.0.weight_scale": np.ones(1, np.float32)}
    yield "fp8", b"\3" + BORDER.join([text({"num_heads": 2}), written(medusa_file.write, fp8)])
    yield "pt", b"\1" + BORDER.join([text({}), written(hf_folder.write_bin, {k: v for k, v in ones.items() if "linear" in k}, "float16")])


def redrafters():
    """For a model 16 wide with 40 tokens: fuzz_redrafter.c."""
    ones = {"rnn_u.weight": (16, 16), "rnn_u.bias": (16,), "rnn_w.weight": (16, 16), "lm_head.0.linear.weight": (24, 24),
            "lm_head.0.linear.bias": (24,), "input_proj.weight": (24, 32), "input_proj.bias": (24,), "lm_head.1.weight": (40, 24)}
    tensors = {name: np.ones(shape, np.float32) for name, shape in ones.items()}
    config = {"hidden_size": 16, "vocab_size": 40, "exit_dim": 24, "num_draft_layers": 1, "rnn": True}
    yield "folder", b"\0" + BORDER.join([text(config), written(hf_folder.write_safetensors, tensors, "float16")])
    inside = {"drafter." + name.replace("lm_head.1", "lm_head").replace("lm_head.0", "layers.0"): t for name, t in tensors.items()}
    fields = {"redrafter_num_layers": 1, "redrafter_hidden_size": 16, "redrafter_exit_dim": 24, "redrafter_is_rnn": True,
              "redrafter_num_beams": 4, "redrafter_draft_len_per_beam": 3, "vocab_size": 40}
    yield "checkpoint", b"\2" + BORDER.join([text(fields), written(hf_folder.write_safetensors, inside, "float16")])


def gguf_files():
    """Families whose hooks read lists of layers; and a block of each type that only files have."""
    for name in ("gemma3n", "gemma4", "apertus", "grok", "arctic"):
        family = FAMILIES[name]
        keys = [("general.architecture", "string", family.gguf_arch), *family.gguf_keys(),
                (f"{family.gguf_arch}.vocab_size", "uint32", VOCAB)]
        yield name, written(gguf_file.write, keys, [("per_layer_token_embd.weight", "f32", (2, 3), np.ones((2, 3), np.float32)),
                                                    ("blk.0.laurel_l.weight", "f32", (2, 3), np.ones((2, 3), np.float32))])
    embedding = [("token_embd.weight", "f32", (2, 3), np.ones((2, 3), np.float32))]
    yield "t5", written(gguf_file.write, encdec.gguf_keys("flan-t5"), embedding)
    dense = [(f"dense_{i}.weight", "f32", (3, 2), np.ones((3, 2), np.float32)) for i in (2, 3)]
    yield "gemma-embedding", written(gguf_file.write, encoders.gemma_gguf_keys("mean_tokens"), embedding + dense)
    head = [(f"{name}.weight", "f32", (1, 3), np.ones((1, 3), np.float32)) for name in ("cls", "cls.output")]
    yield "reranker", written(gguf_file.write, encoders.classifier_gguf_keys("xlm-roberta-rerank"), embedding + head)
    codes = np.arange(512).reshape(4, 128) % 3 - 1
    yield "i2_s", written(gguf_file.write, [("general.architecture", "string", "bitnet-b1.58")],
                          [("blk.0.attn_q.weight", "i2_s", (4, 128), gguf_file.i2_s(codes, 0.5))])
    yield from gguf_types()


def gguf_types():
    """A block of each type that only files have, of bytes that differ."""
    kinds = {"tq1_0": 34, "tq2_0": 35, "iq1_s": 19, "iq1_m": 29, "iq2_xxs": 16, "iq2_xs": 17, "iq2_s": 22, "iq3_xxs": 18, "iq3_s": 21}
    blocks = [(name, "f32", (256,), np.arange(5, 5 + 1024, dtype=np.uint32).astype(np.uint8)) for name in kinds]
    data = bytearray(written(gguf_file.write, [("general.architecture", "string", "llama")], blocks))
    for name, type_id in kinds.items():  # blocks are shorter than the numbers that were written in their places
        at = data.index(name.encode()) + len(name) + 4 + 8
        data[at:at + 4] = type_id.to_bytes(4, "little")
    yield "types", bytes(data)


def gguf_tokenizers():
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581one", "\u2581", "o", "n", "e"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * 5]
    keys = [("tokenizer.ggml.tokens", "strings", words), ("tokenizer.ggml.token_type", "int32s", kinds),
            ("tokenizer.ggml.scores", "float32s", [-float(i) for i in range(len(words))]),
            ("tokenizer.ggml.bos_token_id", "uint32", 1), ("tokenizer.ggml.eos_token_id", "uint32", 2)]
    forms = {"gpt2": tokenizer.gguf_keys(VOCAB, True)}
    for model in ("llama", "t5"):
        forms[model] = [("tokenizer.ggml.model", "string", model), *keys]
    for name, form in forms.items():
        data = written(gguf_file.write, [("general.architecture", "string", "llama"), *form], [])
        yield name, data + BORDER + "one two <s> \u00e9".encode()


def tokenizer_folders():
    """The main files, then tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json, config.json
    and chat_template.jinja; the text before all."""
    said = "one two <s> <pad> \u00e9".encode()
    small = [{**tokenizer.tokenizer_config(True), "added_tokens_decoder": {"3": {"content": "<pad>", "special": True}}},
             {"bos_token": {"content": "<s>", "lstrip": True}, "additional_special_tokens": ["<one>"]}, {"<one>": 12},
             {"eos_token_id": [1, 2], "bos_token_id": 1}, {"eos_token_id": 1, "vocab_size": 320}]
    rest = [*(text(x) for x in small), b"{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"]
    model = (ROOT / "tests/fuzz/corpus/tokenizer_model/bpe").read_bytes()
    model = model[2:2 + int.from_bytes(model[:2], "little")]
    words = ["<unk>", "<s>", "<pad>", "o", "n", "e", "t", "w", "\u0120", "on", "one", "tw", "two"]
    class_of = {**small[0], "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    yield "json", b"\0" + BORDER.join([said, text(unigram()), *rest])
    yield "model", b"\1" + BORDER.join([said, model, text({**small[0], "tokenizer_class": "LlamaTokenizer", "legacy": False}), *rest[1:]])
    yield "vocab", b"\2" + BORDER.join([said, text({w: i for i, w in enumerate(words)}), b"#version: 0.2\no n\non e\nt w\ntw o\n",
                                        text(class_of), *rest[1:]])
    pieces = (ROOT / "tests/fuzz/corpus/tokenizer_model/unigram").read_bytes()
    pieces = pieces[2:2 + int.from_bytes(pieces[:2], "little")]
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    words = text({w: i for i, w in enumerate(["</s>", "<unk>", "<pad>", "\u2581one", "o", "n", ">>fr<<"])})
    yield "marian", b"\3" + BORDER.join([b">>fr<< " + said, pieces, words, text({}), text(names)])
    languages = [text({"src_lang": "en"}), text({**names, "additional_special_tokens": ["__en__", "__fr__"]}), b"",
                 text({"decoder_start_token_id": 0})]
    yield "m2m_100", b"\4" + BORDER.join([said, model, words, *languages])
    args = {"source_lang": "en", "target_lang": "en"}
    words = b"t@@ 9\nwo 8\non@@ 7\ne 6\n&apos; 5\n"
    yield "fairseq", b"\x09" + BORDER.join([said, written(hf_folder.write_fairseq_pt, {}, args), words, b"#version: 0.2\nw o</w>\no n\n"])
    codes = [text({"tokenizer_class": "MBartTokenizer"}), text({**names, "additional_special_tokens": ["en_XX", "fr"]})]
    yield "mbart", b"\5" + BORDER.join([said, pieces, *codes, b"", languages[-1]])
    ranks = b"".join(base64.b64encode(w.encode()) + b" %d\n" % i for i, w in enumerate(["o", "n", "e", " ", "t", "on", "one", " t"]))
    chat = text({"chat_format": "chatml", "eos_token_id": 8})
    yield "qwen", b"\6" + BORDER.join([said, ranks, text({"tokenizer_class": "QWenTokenizer"}), b"", b"", chat])
    names = {"9": {"content": "<s>", "special": True}, "11": {"content": "<pad>", "special": True}}
    yield "kimi", b"\7" + BORDER.join([said, ranks, text({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": names})])
    names = {"8": {"content": "[gMASK]", "special": True}, "9": {"content": "<sop>", "special": True}}
    yield "glm4", b"\1" + BORDER.join([said, ranks, text({"tokenizer_class": "ChatGLM4Tokenizer", "added_tokens_decoder": names})])
    yield "byt5", b"\x08" + BORDER.join([said, text({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 3})])


def field(number, data):
    n, out = len(data), bytearray([number << 3 | 2])
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes([n]) + data


def grpc_messages():
    tensor = field(1, b"IN") + field(2, b"INT32") + b"\x18\x03"
    typed = tensor + field(5, field(2, b"\x01\x02\x03"))
    parameter = field(4, field(1, b"priority") + field(2, b"\x10\x05"))
    head = field(1, b"ident") + field(2, b"1") + field(3, b"id")
    out = field(6, field(1, b"OUT") + field(2, field(1, b"classification") + field(2, b"\x10\x01")))
    yield "typed", b"\0\0" + head + parameter + field(5, typed) + out
    yield "raw", b"\x07\1" + head + field(5, tensor) + out + field(7, bytes(12))
    yield "long", b"\5\2" + head + field(5, tensor) + b"\xfe" + field(7, b"abc") + b"\xfe" + out
    yield "bytes", b"\4\3" + head + b"\xfe\xfe\xfe" + parameter


def ipc_messages():
    def tensor(name, dims, n, how, where):
        return (struct.pack("<I", len(name)) + name + b"\0" + struct.pack("<II", 8, len(dims)) +
                struct.pack(f"<{len(dims)}q", *dims) + struct.pack("<QBQ", n, how, where))
    body = tensor(b"OUT", [3], 12, 0, 0) + tensor(b"BIG", [2, 2], 16, 1, 1 << 20) + tensor(b"R", [1], 4, 3, 4096)
    yield "message", b"\0" + struct.pack("<Q", 8 + len(body)) + body + bytes(64)
    yield "blocks", b"\1" + b"".join(bytes([k * 4 + k % 2]) + struct.pack("<Q", 100 * k) for k in range(8)) + bytes(
        [2, 6, 10, 14]) + bytes(8) + b"\3" + struct.pack("<Q", 64) + bytes(16)
    yield "text", b"\3hello\0there"


def http_requests():
    def post(path, body, more=""):
        body = body if isinstance(body, bytes) else text(body)
        return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body
    ident = {"id": "a", "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]}]}
    texts = {"inputs": [*ident["inputs"], {"name": "TEXT", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"]}],
             "outputs": [{"name": "OUT", "parameters": {"classification": 2}}]}
    head = text({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 2],
                             "parameters": {"binary_data_size": 8}}],
                 "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]})
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 12}
    shared = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 3], "parameters": region}],
              "outputs": [{"name": "OUT", "parameters": dict(region, shared_memory_offset=64)}]}
    register = {"key": "/nereid-fuzz-http", "offset": 0, "byte_size": 4096}
    infer = "/v2/models/ident/infer"
    yield "infer", b"\2" + post(infer, ident) + post(infer, texts)
    yield "binary", b"\3" + post(infer, head + bytes(8), f"Inference-Header-Content-Length: {len(head)}\r\n")
    yield "shm", b"\0" + post("/v2/systemsharedmemory/region/r/register", register) + post(infer, shared) + (
        b"GET /v2/systemsharedmemory/status HTTP/1.1\r\nHost: localhost\r\n\r\n") + post(
            "/v2/systemsharedmemory/region/r/unregister", b"")
    yield "generate", b"\2" + post("/v2/models/gen/generate_stream", {"text_input": "one", "n": 3, "f": [1, 2.5]})
    yield "generate_one", b"\2" + post("/v2/models/gen/generate", {"text_input": "x", "parameters": {"p": True}})
    yield "chunked", (b"\1POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                      b"Transfer-Encoding: chunked\r\n\r\n" + f"{len(text(ident)):x}\r\n".encode() + text(ident) +
                      b"\r\n0\r\n\r\n")
    for name, path in (("ready", "/v2/health/ready"), ("meta", "/v2/models/gen/versions/1"), ("config", "/v2/models/ident/config"),
                       ("stats", "/v2/models/stats")):
        yield name, b"\4" + f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def small_texts():
    numbers = ",".join(map(str, range(20)))
    config = {"name": "m", "backend": "identity", "max_batch_size": 8,
              "input": [{"name": "A", "data_type": "TYPE_INT32", "dims": [-1], "reshape": {"shape": [1, -1]}}],
              "output": [{"name": "B", "data_type": "TYPE_STRING", "dims": [2]}],
              "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
              "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 100},
              "parameters": {"k": {"string_value": "v"}}, "version_policy": {"latest": {"num_versions": 2}}}
    sequence = dict(config, sequence_batching={"oldest": {"max_candidate_sequences": 4}, "control_input": [
        {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}],
        "state": [{"input_name": "S", "output_name": "T", "data_type": "TYPE_FP32", "dims": [4]}]})
    del sequence["dynamic_batching"]
    ensemble = {"name": "m", "platform": "ensemble", "input": config["input"], "output": config["output"],
                "ensemble_scheduling": {"step": [{"model_name": "a", "model_version": -1, "input_map": {"X": "A"},
                                                  "output_map": {"Y": "B"}}]}}
    yield "config/model", text(config)
    yield "config/sequence", text(sequence)
    yield "config/ensemble", text(ensemble)
    yield "tensor_text/ints", b'\x08{"inputs":[{"name":"A","data":[\1' + numbers.encode() + b"]}]}"
    yield "tensor_text/nested", b'\x0b{"id":"x","inputs":[{"data":[1]},{"data":[[1.5,-2e3],\1[3,4]],"b":{}}]}'
    yield "forwarded/list", (b"10.0.0.0/8,::1\nX-Forwarded-For: 203.0.113.5, 198.51.100.7:80, 10.1.1.1\r\n"
                             b"X-Forwarded-Proto: https\r\n")
    yield "forwarded/new", b'2001:db8::/32\nForwarded: for="[2001:db8::9]:80";proto=http;by=_x, for=10.1.2.3\r\n'
    yield "traceparent/valid", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    yield "traceparent/later", b"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes"
    yield "base64/padded", b"AQIDBA=="
    yield "base64/lines", b"AQID\r\nBAUG\n/+"
    yield "shm/system", b"r\tr\t@\t4\t4096\ng\tr\t\t8\t16\ns\tr\nu\tr\np\nu\tr\n"
    yield "shm/names", b"r\t\xc3\xa9 \"/\\\t@\t0\t10000\nr\ta\t/../etc/passwd\t0\t1\ns\nu\n"
    yield "embeddings/text", b"\0" + text({"model": "m", "input": ["abc", "cab"], "encoding_format": "base64"})
    yield "embeddings/ids", b"\0" + text({"model": "m", "input": [[1, 2], [3]], "dimensions": 4, "other": 1})
    yield "embeddings/rerank", b"\3" + text({"query": "abc", "documents": ["cab", {"text": "a"}], "top_n": 1,
                                             "truncate_prompt_tokens": 4, "return_documents": False})
    yield "embeddings/texts", b"\4" + text({"query": "abc", "texts": ["cab", "a"], "raw_scores": True, "truncate": True,
                                            "return_text": True})
    yield "embeddings/score", b"\5" + text({"text_1": ["abc", "b"], "text_2": ["cab", "a"], "max_tokens_per_doc": 2})
    yield "embeddings/classify", b"\6" + text({"input": ["abc", {"text": "a", "text_pair": "b"}, [1, 2]],
                                               "use_activation": False})
    yield "embeddings/tokenize", b"\1" + text({"model": "m", "prompt": "abc<s>", "add_special_tokens": False})
    yield "embeddings/messages", b"\1" + text({"model": "m", "messages": [{"role": "user", "content": "abc"}],
                                               "chat_template_kwargs": {"x": 1}})
    yield "embeddings/detokenize", b"\2" + text({"model": "m", "tokens": [1, 2, 256, 0]})
    files = [{"type": "file", "path": "config.json", "size": 9, "oid": "0" * 40}, {"type": "directory", "path": "a"},
             {"type": "file", "path": "a/m-Q4_K_M-00001-of-00002.gguf", "size": 99, "oid": "1" * 40,
              "lfs": {"oid": "2" * 64, "size": 99, "pointerSize": 12}},
             {"type": "file", "path": "a/m-Q4_K_M-00002-of-00002.gguf", "size": 99, "oid": "3" * 40}]
    yield "deploy/lists", text({"models": ["a=org/A-7B:Q4", "/m/b.gguf"], "precisions": ["fp16", "int8_wo", "q4_k"],
                                "batch_sizes": [1, "8"], "lengths": [[2048, 1024], "128,20"], "set": ["decoupled_mode:False"],
                                "build": ["--max_num_tokens=8192"], "device": "cpu", "output_dir": "out", "pp_size": 2})
    yield "deploy/objects", text({"models": [{"name": "a", "path": "b", "tokenizer_dir": "c", "tp_size": 4, "pp_size": 2}],
                                  "precisions": [{"name": "mine", "convert": ["--qformat", "fp8"]}], "tp_size": 8})
    yield "hub/files", b"\0" + text(files)
    yield "hub/folder", b"\0" + text([files[0], dict(files[2], path="model.safetensors")])
    yield "hub/elsewhere", b"\0" + text([dict(files[0], path="../x")])
    yield "hub/description", b"\1" + text({"id": "org/name", "sha": "0" * 40, "siblings": []})


def towers():
    """Files of vision towers of a few numbers, which have their decoder's words, too."""
    words = ["<image>", "<image_soft_token>", "<|image_pad|>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    layer = {"ln1": (8,), "ln2": (8,), "attn_out": (8, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
    apart = {"attn_q": (8, 8), "attn_k": (8, 8), "attn_v": (8, 8)}
    square = {"mm.0": (32, 32), "mm.2": (8, 32), "v.post_ln": (8,)}
    kinds = {
        "mlp": (apart, {"v.class_embd": (8,), "v.position_embd.weight": (5, 8), "v.pre_ln": (8,), "mm.0": (8, 8), "mm.2": (8, 8)}, []),
        "gemma3": (apart, {"v.position_embd.weight": (4, 8), "v.post_ln": (8,), "mm.soft_emb_norm.weight": (8,),
                           "mm.input_projection.weight": (8, 8)}, [("clip.vision.projector.scale_factor", "uint32", 2)]),
        "pixtral": ({**apart, "ffn_gate": (16, 8)}, {"v.pre_ln.weight": (8,), "mm.input_norm.weight": (8,), "mm.patch_merger.weight": (8, 32),
                                                     "mm.1": (8, 8), "mm.2": (8, 8)}, []),
        "qwen2.5vl_merger": ({**apart, "ffn_gate": (16, 8)}, {**square, "v.patch_embd.weight.1": (8, 3, 2, 2)},
                             [("clip.vision.n_wa_pattern", "uint32", 1), ("clip.vision.image_max_pixels", "uint32", 64)]),
        "qwen3vl_merger": ({"attn_qkv": (24, 8)}, {
            **square, "v.patch_embd.weight.1": (8, 3, 2, 2), "v.position_embd.weight": (4, 8), "v.deepstack.0.norm": (32,),
            "v.deepstack.0.fc1": (32, 32), "v.deepstack.0.fc2": (8, 32)},
            [("clip.vision.is_deepstack_layers", "bools", [True]), ("clip.vision.image_max_pixels", "uint32", 64)]),
    }
    for kind, (more, rest, keys) in kinds.items():
        shapes = {"v.patch_embd": (8, 3, 2, 2), **{f"v.blk.0.{name}": shape for name, shape in {**layer, **more}.items()}, **rest}
        tensors = []
        for name, shape in shapes.items():
            alone = name.endswith((".weight", ".1", "class_embd"))
            both = [(name, shape)] if alone else [(f"{name}.weight", shape), (f"{name}.bias", shape[:1])]
            tensors += [(n, "f16", s, np.full(int(np.prod(s)), 0.5, np.float16).view(np.uint8)) for n, s in both]
        sizes = {"image_size": 4, "patch_size": 2, "embedding_length": 8, "block_count": 1, "attention.head_count": 2}
        keys = [("general.architecture", "string", "clip"), ("clip.has_vision_encoder", "bool", True),
                ("clip.projector_type", "string", kind), ("tokenizer.ggml.tokens", "strings", words),
                ("clip.vision.image_mean", "float32s", [0.5, 0.5, 0.5]), *((f"clip.vision.{k}", "uint32", v) for k, v in sizes.items()), *keys]
        with tempfile.TemporaryDirectory() as tmp:
            gguf_file.write(f"{tmp}/t", keys, tensors)
            yield kind, pathlib.Path(tmp, "t").read_bytes()


def rank_messages():
    """Frames, and words put into the good structures of fuzz_ranks.c."""
    def frame(at, data, mark, value):
        return struct.pack("<QQQII", at, len(data), mark, value, 0) + data
    yield "frames", b"f" + frame(64, b"sixteen bytes...", 32, 1) + frame(0, b"", 36, 7) + frame(500, b"until the ends", 0, 2)
    yield "outside", b"f" + frame(0, bytes(8), 8, 1) + struct.pack("<QQQII", 2**64 - 8, 16, 510, 1, 0)
    for kind in b"hewrc":
        yield chr(kind), bytes([kind]) + b"".join(struct.pack(">H", at) + struct.pack("<i", word) for at, word in ((0, 2), (140, -1)))


def nemo_archives():
    """Of one layer, with its weights in a file of PyTorch and in a folder of zarr; and the settings alone."""
    few = {"embedding.word_embeddings.weight": (3, 2), "decoder.layers.0.mlp.linear_fc1.weight": (nemo.FF, 2)}
    few = {f"model.{name}": np.ones(shape, np.float32) for name, shape in few.items()}
    for name, files in (("core", [("model_weights.ckpt", nemo.ckpt(few))]), ("zarr", list(nemo.zarr(few)))):
        yield name, written(functools.partial(nemo.write, more=files, words=False), "nemo_gpt")
    yield "yaml", (nemo.USUAL + nemo.OWN["nemo_gpt"] + nemo.BPE + "a: [x, {'b': \"\\u00e9\"}]\nc: |\n  d\n").encode()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=ROOT / "tests/fuzz/corpus")
    out = pathlib.Path(p.parse_args().out)
    seeds = dict(small_texts())
    seeds |= {f"checkpoint/{name}": BORDER.join(parts) for name, parts in checkpoints()}
    for target, make in (("lora", adapters), ("eagle", eagle_heads), ("medusa", medusas), ("redrafter", redrafters), ("gguf", gguf_files), ("gguf_tokenizer", gguf_tokenizers), ("mmproj", towers), ("tokenizer_folder", tokenizer_folders), ("grpc_decode", grpc_messages),
                         ("python_ipc", ipc_messages), ("ranks", rank_messages), ("http", http_requests)):
        seeds |= {f"{target}/{name}": data for name, data in make()}
    sizes = {f"{kind}_{of}": 2 for kind in ("encoder", "decoder") for of in ("embed_dim", "layers", "attention_heads", "ffn_embed_dim")}
    tensors = {f"{kind}.embed_tokens.weight": np.ones((3, 2), np.float32) for kind in ("encoder", "decoder")}
    tensors |= {"encoder.layers.0.self_attn.in_proj_bias": np.ones(6, np.float32), "encoder.layers.0.layer_norms.1.bias": np.ones(2, np.float32)}
    seeds["torch_bin/fairseq"] = written(hf_folder.write_fairseq_pt, tensors, sizes)
    seeds |= {f"nemo/{name}": data for name, data in nemo_archives()}
    for name, data in seeds.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
