# SPDX-License-Identifier: Apache-2.0
"""Small .nemo archives of the GPT models of more_families.py, in the forms in which NeMo saved such models."""

import io
import json
import os
import struct
import tarfile
import tempfile

import numpy as np

import hf_folder
import tokenizer
import weights
from families import D, FF, HD, HEADS, VOCAB
from specs import SPECS

# model_config.yaml, as OmegaConf writes it
USUAL = f"""mcore_gpt: true
micro_batch_size: 4
global_batch_size: 8
tensor_model_parallel_size: 1
pipeline_model_parallel_size: 1
virtual_pipeline_model_parallel_size: null
encoder_seq_length: 256
max_position_embeddings: 256
num_layers: 3
hidden_size: {D}
ffn_hidden_size: {FF}
num_attention_heads: {HEADS}
num_query_groups: 1
kv_channels: {HD}
transformer_block_type: pre_ln
layernorm_epsilon: 1.0e-05
hidden_dropout: 0.0
optim:
  name: fused_adam
  lr: 0.0001
  betas:
  - 0.9
  - 0.95
data:
  data_prefix: []
  index_mapping_dir: null   # beside the data
  splits_string: 900,50,50
precision: bf16-mixed
target: nemo.collections.nlp.models.language_modeling.megatron_gpt_model.MegatronGPTModel
nemo_version: 1.22.0
"""
OWN = {
    "nemo_gpt": "bias: true\nactivation: gelu\nnormalization: layernorm\nposition_embedding_type: learned_absolute\n",
    "nemo_gpt-rms": "bias: false\nactivation: fast-swiglu\nnormalization: rmsnorm\nposition_embedding_type: rope\n"
                    "seq_len_interpolation_factor: 2\nshare_embeddings_and_output_weights: false\n",
    "nemo_gpt_1p": "bias: false\nactivation: squared-relu\nnormalization: layernorm1p\nposition_embedding_type: rope\n"
                   "rotary_percentage: 0.5\nshare_embeddings_and_output_weights: false\n",
}
BPE = "tokenizer:\n  library: megatron\n  type: GPT2BPETokenizer\n  model: null\n  vocab_file: nemo:0a1b_vocab.json\n  merge_file: nemo:0a1b_merges.txt\n"
PIECES = "tokenizer:\n  library: sentencepiece\n  type: null\n  model: nemo:0a1b_tokenizer.model\n"

# names in the state dictionary: of Megatron core without Transformer Engine's norms in front of products, with them, of NeMo's own layers,
# and of those of Transformer Engine
RENAMES = {
    "plain": [],
    "core": [(".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"), (".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_")],
    "own": [("decoder.", "language_model.encoder."), ("embedding.w", "language_model.embedding.w"), ("embedding.p", "language_model.embedding.p"),
            ("output_layer", "language_model.output_layer"), ("linear_qkv", "query_key_value"), ("linear_proj", "dense"),
            ("pre_mlp_layernorm", "post_attention_layernorm"), ("linear_fc1_up", "dense_h_to_4h_2"), ("linear_fc1", "dense_h_to_4h"),
            ("linear_fc2", "dense_4h_to_h")],
    "te": [("decoder.", "language_model.encoder."), (".input_layernorm.", ".self_attention.layernorm_qkv.layer_norm_"),
           ("linear_qkv", "layernorm_qkv"), ("linear_proj", "proj"), (".pre_mlp_layernorm.", ".layernorm_mlp.layer_norm_"),
           ("mlp.linear_fc1.", "layernorm_mlp.fc1_"), ("mlp.linear_fc2.", "layernorm_mlp.fc2_"), ("embedding.w", "language_model.embedding.w"),
           ("embedding.p", "language_model.embedding.p"), ("output_layer", "language_model.output_layer")],
}


def tensors(name, form):
    """Gate and up are one tensor but in NeMo's own layers."""
    out, all_of = {}, weights.build(SPECS[name])
    for key, x in all_of.items():
        up = all_of.get(key.replace("linear_fc1.", "linear_fc1_up.")) if "linear_fc1." in key else None
        if "linear_fc1_up" in key and form != "own":
            continue
        if up is not None and form != "own":
            x = np.concatenate([x, up])
        for old, new in RENAMES[form]:
            key = key.replace(old, new)
        out[f"model.{key}"] = x
    return out


def zarr(all_of):
    """Files of folders with one chunk each; those of layers are stacked."""
    stacked = {}
    for key, x in all_of.items():
        parts = key.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if at is None:
            stacked[key] = x
        else:
            stacked.setdefault(".".join(parts[:at] + parts[at + 1:]), []).append(x)
    for key, x in stacked.items():
        x = np.ascontiguousarray(np.stack(x) if isinstance(x, list) else x, "<f4")
        head = {"shape": x.shape, "chunks": x.shape, "dtype": "<f4", "compressor": None, "fill_value": None, "filters": None, "order": "C",
                "zarr_format": 2}
        yield f"model_weights/{key}/.zarray", json.dumps(head).encode()
        yield f"model_weights/{key}/{'.'.join('0' * x.ndim)}", x.tobytes()
    yield "model_weights/model.decoder.layers.self_attention.linear_qkv._extra_state/shard_0_3.pt", b"no tensor"


def ckpt(all_of):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x")
        hf_folder.write_bin(path, all_of, "float32")
        with open(path, "rb") as f:
            return f.read()


def pieces_file():
    """A SentencePiece file (Unigram): <unk>, <s>, </s>, then pieces, each longer one likelier than its letters."""
    words = ["<unk>", "<s>", "</s>", *"\u2581abcdefghijklmnopqrstuvwxyz", "\u2581one", "\u2581two"]
    out = b""
    for i, word in enumerate(words):
        kind = 2 if i == 0 else 3 if i < 3 else 1
        text = word.encode()
        piece = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", -1.0 - (len(word) == 1)) + b"\x18" + bytes([kind])
        out += b"\x0a" + bytes([len(piece)]) + piece
    return out


def write(path, name, form="core", pieces=None, changed=(), more=(), words=True):
    """form: of RENAMES, or "zarr". pieces: a SentencePiece file; else GPT-2's vocabulary. changed: (old, new) in model_config.yaml.
    more: (name, bytes) of files in the place of the weights. words: with a tokenizer."""
    config = USUAL + OWN[name] + (PIECES if pieces else BPE)
    for old, new in changed:
        assert old in config
        config = config.replace(old, new)
    files = [("./model_config.yaml", config.encode())]
    if more:
        files += more
    elif form == "zarr":
        files += zarr(tensors(name, "core"))
    else:
        files.append(("./model_weights.ckpt", ckpt(tensors(name, form))))
    if pieces:
        files.append(("./0a1b_tokenizer.model", pieces))
    elif words:
        words = [w.replace("<eos>", "<|endoftext|>") for w in tokenizer.vocabulary(VOCAB)]
        files += [("./0a1b_vocab.json", json.dumps({w: i for i, w in enumerate(words)}).encode()),
                  ("./0a1b_merges.txt", "\n".join(["#version: 0.2", *tokenizer.merges()]).encode())]
    with tarfile.open(path, "w") as archive:
        for file_name, data in files:
            info = tarfile.TarInfo(file_name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
