# SPDX-License-Identifier: Apache-2.0
"""Small random Whisper models as Hugging Face folders, and a sound for them. The same bits every time."""
import base64
import math
import os
import struct

import numpy as np

import hf_folder
import weights
from encdec import _biased, _layer_norm, _linear

WORDS = """the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what
all were we when your can said there use an each which she do how their if will up other about out many then them these so some her
would make like him into time has look two more write go see number no way could people my than first water been call who oil its
now find long down day did get come made may part""".split()
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>", "<|startofprev|>",
           "<|notimestamps|>"]
END, START, EN, DE, TRANSCRIBE, TRANSLATE, PREVIOUS, NO_TIMES = range(len(WORDS), len(WORDS) + len(SPECIAL))
VOCAB = NO_TIMES + 1 + 1501


def _attention(at, d, gain):
    for proj, g in (("q_proj", gain), ("k_proj", gain), ("v_proj", 1.0), ("out_proj", 1.4)):
        yield from (_linear if proj == "k_proj" else _biased)(f"{at}.{proj}", d, d, g)


def _stack(name, c, positions, gain):
    d, ff = c["d_model"], c[f"{name}_ffn_dim"]
    yield f"model.{name}.embed_positions.weight", (positions, d), 0.4, 0.0
    for i in range(c[f"{name}_layers"]):
        at = f"model.{name}.layers.{i}"
        for part in ("self_attn", "encoder_attn")[:1 + (name == "decoder")]:
            yield from _attention(f"{at}.{part}", d, 2.5 if part == "encoder_attn" else 1.6)
            yield from _layer_norm(f"{at}.{part}_layer_norm", d)
        yield from _biased(f"{at}.fc1", d, ff, 1.5)
        yield from _biased(f"{at}.fc2", ff, d, 1.5)
        yield from _layer_norm(f"{at}.final_layer_norm", d)
    yield from _layer_norm(f"model.{name}.layer_norm", d, gain)


def _whisper(c):
    d, mels = c["d_model"], c["num_mel_bins"]
    yield "model.encoder.conv1.weight", (d, mels, 3), 1.5 / (3 * mels) ** 0.5, 0.0
    yield "model.encoder.conv1.bias", (d,), 0.2, 0.0
    yield "model.encoder.conv2.weight", (d, d, 3), 2.0 / (3 * d) ** 0.5, 0.0
    yield "model.encoder.conv2.bias", (d,), 0.2, 0.0
    yield from _stack("encoder", c, c["max_source_positions"], 1.0)
    yield "model.decoder.embed_tokens.weight", (c["vocab_size"], d), 0.3, 0.0
    yield from _stack("decoder", c, c["max_target_positions"], 2.0)


def _sizes(**more):
    return {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "is_encoder_decoder": True,
            "vocab_size": VOCAB, "num_mel_bins": 80, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "num_hidden_layers": 2,
            "encoder_attention_heads": 3, "decoder_attention_heads": 4, "encoder_ffn_dim": 70, "decoder_ffn_dim": 100,
            "max_source_positions": 1500, "max_target_positions": 60, "activation_function": "gelu", "scale_embedding": False,
            "pad_token_id": END, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START,
            "tie_word_embeddings": True, "dropout": 0.0, "torch_dtype": "float32", **more}


# the second: odd sizes, another activation behind the layers' first product, scaled embeddings, inputs of any length
MODELS = {"whisper": _sizes(),
          "odd": _sizes(vocab_size=331, num_mel_bins=7, d_model=36, encoder_attention_heads=2, decoder_attention_heads=3,
                        max_source_positions=45, activation_function="relu", scale_embedding=True)}
PROMPT = [START, EN, TRANSCRIBE, NO_TIMES]
# what the model likes best, and what it begins with
SUPPRESSED, FIRST_SUPPRESSED = [WORDS.index("into"), VOCAB - 1], [WORDS.index("could"), END]
# a sound of several windows: the tokens of a window and what stands before it, the steps of 20 ms within which its first time lies
TIMED_SECONDS, TIMED_CONTEXT, MAX_FIRST_TIME = 45, 48, 50
# as OpenAI's files are: layers are four times as wide inside, and tokens that are no text follow those that are
OPENAI_TEXT = 256 + 40
MODELS["openai"] = _sizes(vocab_size=OPENAI_TEXT + 1608, encoder_ffn_dim=192, decoder_ffn_dim=192, bos_token_id=OPENAI_TEXT,
                          eos_token_id=OPENAI_TEXT, pad_token_id=OPENAI_TEXT, decoder_start_token_id=OPENAI_TEXT + 1)
_OPENAI_NAMES = (("model.", ""), (".layers.", ".blocks."), ("encoder_attn_layer_norm", "cross_attn_ln"), ("encoder_attn", "cross_attn"),
                 ("self_attn_layer_norm", "attn_ln"), ("self_attn", "attn"), ("q_proj", "query"), ("k_proj", "key"),
                 ("v_proj", "value"), ("out_proj", "out"), ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("final_layer_norm", "mlp_ln"),
                 ("embed_positions.weight", "positional_embedding"), ("embed_tokens", "token_embedding"),
                 ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"))
# frames of the odd model's inputs
INPUTS = {"whole": 90, "short": 52, "uneven": 53, "one": 1}


def tensors(name):
    out = {at: weights.normal(f"whisper {name} {at}", shape, deviation, mean)
           for at, shape, deviation, mean in _whisper(MODELS[name])}
    if name == "whisper":  # words are likelier than times, and not always the same
        out["model.decoder.embed_tokens.weight"][:len(WORDS)] *= np.float32(1.5)
        out["model.decoder.embed_positions.weight"] *= np.float32(3)
    if name == "openai":  # so are tokens of several letters
        out["model.decoder.embed_tokens.weight"][256:OPENAI_TEXT] *= np.float32(2.5)
        out["model.decoder.embed_positions.weight"] *= np.float32(3)
    return out


def openai_dims(name):
    c = MODELS[name]
    return {"n_mels": c["num_mel_bins"], "n_audio_ctx": c["max_source_positions"], "n_audio_state": c["d_model"],
            "n_audio_head": c["encoder_attention_heads"], "n_audio_layer": c["encoder_layers"], "n_vocab": c["vocab_size"],
            "n_text_ctx": c["max_target_positions"], "n_text_state": c["d_model"], "n_text_head": c["decoder_attention_heads"],
            "n_text_layer": c["decoder_layers"]}


def write_openai(name, path, dtype="float32", **dims):
    """The model in OpenAI's form. dims: what the file says otherwise; None: nothing of it."""
    out = {}
    for at, x in tensors(name).items():
        for hf, theirs in _OPENAI_NAMES:
            at = at.replace(hf, theirs)
        out[at] = x
    said = {k: v for k, v in {**openai_dims(name), **dims}.items() if v is not None}
    hf_folder.write_bin(path, out, dtype, dims=said)


def openai_tokens():
    """Bytes of each token that is text: all bytes, then pairs of tokens."""
    out = [bytes([b]) for b in range(256)]
    for word in WORDS:
        for n in range(2, len(word) + 2):
            token = (" " + word)[:n].encode()
            if token not in out and len(out) < OPENAI_TEXT:
                out.append(token)
    return out


def write_tiktoken(path):
    with open(path, "w", encoding="ascii") as f:
        f.writelines(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(openai_tokens()))


def features(name):
    return weights.normal(f"whisper features {name}", (INPUTS[name], 7), 0.5, 0.2)


def wav(seconds=2, rate=16000):
    """A tone that rises."""
    n = int(seconds * rate)
    data = b"".join(struct.pack("<h", round(9000 * math.sin(i * i * 1e-5))) for i in range(n))
    return (b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
            + b"data" + struct.pack("<I", len(data)) + data)


def _openai_tokenizer():
    """What multilingual.tiktoken says, as a tokenizer.json that is enough for decoding: without merges."""
    languages = 99
    marks = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>"] + [f"<|x{i}|>" for i in range(1, languages)] + [
        "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    chars = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    made = _tokenizer()
    made["model"]["vocab"] = {"".join(chars[b] for b in token): i for i, token in enumerate(openai_tokens())}
    made["added_tokens"] = [{**made["added_tokens"][0], "id": OPENAI_TEXT + i, "content": s} for i, s in enumerate(marks)]
    return made


def _tokenizer():
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "added_tokens": [{"id": END + i, "content": s, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False} for i, s in enumerate(SPECIAL)],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "merges": [],
                      "vocab": {"\u0120" + w: i for i, w in enumerate(WORDS)}}}


def write_folder(name, out, max_length=24, **generation):
    os.makedirs(out, exist_ok=True)
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors(name), "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), MODELS[name])
    hf_folder.write_json(os.path.join(out, "tokenizer.json"), _openai_tokenizer() if name == "openai" else _tokenizer())
    hf_folder.write_json(os.path.join(out, "tokenizer_config.json"), {"eos_token": "<|endoftext|>"})
    hf_folder.write_json(os.path.join(out, "generation_config.json"),
                         {"is_multilingual": True, "max_length": max_length, "eos_token_id": END, "pad_token_id": END,
                          "decoder_start_token_id": START, "no_timestamps_token_id": NO_TIMES, **generation})
    hf_folder.write_json(os.path.join(out, "preprocessor_config.json"),
                         {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MODELS[name]["num_mel_bins"],
                          "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30})
