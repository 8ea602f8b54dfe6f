# SPDX-License-Identifier: Apache-2.0
"""GGUF files: the container (write, read) and what llama.cpp calls and stores differently.

`to_gguf` turns the tensors of a Hugging Face model into those of a file, `from_gguf` is its
inverse and also builds the Hugging Face config from the metadata, so it serves files that were not
made here.
"""

import math
import struct

import numpy as np

import quant

MAGIC = b"GGUF"
ALIGN = 32
I2_S = 36  # bitnet.cpp's number, which ggml does not use
SCALARS = {  # name: (number in the file, struct code)
    "uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"),
    "uint32": (4, "I"), "int32": (5, "i"), "float32": (6, "f"), "bool": (7, "?"),
    "uint64": (10, "Q"), "int64": (11, "q"), "float64": (12, "d"),
}
STRING, ARRAY = 8, 9
BY_NUMBER = {number: code for number, code in SCALARS.values()}


# ---- container ----


def _string(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def _value(kind, value):
    if kind == "string":
        return struct.pack("<I", STRING) + _string(value)
    if kind == "strings":
        head = struct.pack("<IIQ", ARRAY, STRING, len(value))
        return head + b"".join(map(_string, value))
    if kind.endswith("s"):
        number, code = SCALARS[kind[:-1]]
        head = struct.pack("<IIQ", ARRAY, number, len(value))
        return head + struct.pack(f"<{len(value)}{code}", *value)
    number, code = SCALARS[kind]
    return struct.pack("<I", number) + struct.pack("<" + code, value)


def write(path, keys, tensors, version=3):
    """keys: (name, kind, value); tensors: (name, format, shape with the longest stride first,
    bytes as uint8 array)."""
    out = [MAGIC, struct.pack("<IQQ", version, len(tensors), len(keys))]
    out += [_string(name) + _value(kind, value) for name, kind, value in keys]
    offset = 0
    for name, fmt, shape, data in tensors:
        dims = shape[::-1]  # the file counts the contiguous dimension first
        out.append(_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        out.append(struct.pack("<IQ", I2_S if fmt == "i2_s" else quant.FORMATS[fmt].type_id, offset))
        offset += data.size + -data.size % ALIGN
    head = b"".join(out)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGN))
        for _, _, _, data in tensors:
            f.write(data.tobytes() + b"\0" * (-data.size % ALIGN))


def i2_s(codes, scale):
    """A matrix of -1, 0 and 1 as bitnet.cpp has it: quarters of 128 numbers beside each other, the first in the highest bits."""
    quarters = (codes + 1).reshape(-1, 4, 32).astype(np.uint8)
    packed = quarters[:, 0] << 6 | quarters[:, 1] << 4 | quarters[:, 2] << 2 | quarters[:, 3]
    return np.frombuffer(packed.tobytes() + np.float32(scale).tobytes() + bytes(28), np.uint8)


class File:
    """keys {name: value}, formats {name: format}; `tensor(name)` dequantizes."""

    def __init__(self, path):
        self.data = np.memmap(path, np.uint8, "r")
        self.at = 0
        if self._take(4).tobytes() != MAGIC:
            raise ValueError(f"{path}: not a GGUF file")
        self.version, n_tensors, n_keys = self._unpack("IQQ")
        if self.version not in (2, 3):
            raise ValueError(f"{path}: GGUF version {self.version}")
        self.keys = {}
        for _ in range(n_keys):
            name = self._string()
            self.keys[name] = self._value(self._unpack("I")[0])
        self.table = {}
        for _ in range(n_tensors):
            name = self._string()
            shape = self._unpack(f"{self._unpack('I')[0]}Q")[::-1]
            type_id, offset = self._unpack("IQ")
            self.table[name] = (quant.BY_TYPE_ID[type_id], shape, offset)
        align = self.keys.get("general.alignment", ALIGN)
        self.start = self.at + -self.at % align

    def _take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def _unpack(self, codes):
        return struct.unpack("<" + codes, self._take(struct.calcsize("<" + codes)))

    def _string(self):
        return self._take(self._unpack("Q")[0]).tobytes().decode()

    def _value(self, number):
        if number == STRING:
            return self._string()
        if number == ARRAY:
            kind, n = self._unpack("IQ")
            if kind in (STRING, ARRAY):
                return [self._value(kind) for _ in range(n)]
            return list(self._unpack(f"{n}{BY_NUMBER[kind]}"))
        return self._unpack(BY_NUMBER[number])[0]

    def tensor(self, name):
        fmt, shape, offset = self.table[name]
        f = quant.FORMATS[fmt]
        row = shape[-1] // f.block * f.size
        n = int(np.prod(shape[:-1])) * row
        raw = self.data[self.start + offset:self.start + offset + n]
        return quant.dequantize(raw.reshape(*shape[:-1], row), fmt)


# ---- names ----

_GPT2_NAMES = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
}
_GPT2_BLOCK = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}
_BLOCK = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
_PRE_NORM_BLOCK = {**_BLOCK, "post_attention_layernorm": "ffn_norm"}
_GEMMA_BLOCK = {
    **_BLOCK, "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}


def name_pairs(arch, n_layers):
    """(Hugging Face name, GGUF name) without .weight / .bias."""
    if arch == "gpt2":
        top, block, place = _GPT2_NAMES, _GPT2_BLOCK, "transformer.h"
    else:
        top, place = _NAMES, "model.layers"
        block = _GEMMA_BLOCK if arch in ("gemma2", "gemma3") else _PRE_NORM_BLOCK
    yield from top.items()
    for i in range(n_layers):
        for ours, theirs in block.items():
            yield f"{place}.{i}.{ours}", f"blk.{i}.{theirs}"


# ---- what is stored differently ----


def interleave_rows(x, n_heads):
    """llama files rotate neighbouring rows (2i, 2i+1) where Hugging Face rotates (i, i + half)."""
    per_head = x.reshape(n_heads, 2, x.shape[0] // n_heads // 2, -1)
    return per_head.swapaxes(1, 2).reshape(x.shape)


def deinterleave_rows(x, n_heads):
    per_head = x.reshape(n_heads, x.shape[0] // n_heads // 2, 2, -1)
    return per_head.swapaxes(1, 2).reshape(x.shape)


def _convert(arch, hf_name, x, n_heads, n_kv_heads, back):
    if arch == "gpt2" and x.ndim == 2 and ".h." in hf_name:
        return np.ascontiguousarray(x.T)  # Conv1D is stored [in, out], files hold [out, in]
    if arch == "llama" and (".q_proj." in hf_name or ".k_proj." in hf_name):
        heads = n_heads if ".q_proj." in hf_name else n_kv_heads
        return deinterleave_rows(x, heads) if back else interleave_rows(x, heads)
    if arch.startswith("gemma") and "norm" in hf_name:
        return x - np.float32(1) if back else x + np.float32(1)
    return x


def rope_factors(config):
    """llama3 scaling as the divisors of each frequency, or None."""
    scaling = config.get("rope_scaling")
    if not scaling or scaling["rope_type"] != "llama3":
        return None
    hd = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    old = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for i in range(hd // 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (2 * i / hd)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(scaling["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def _metadata(arch, name, config, fmt):
    c = config
    file_types = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9,
                  "q2_k": 10, "q3_k": 12, "q4_k": 15, "q5_k": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32}
    keys = [("general.architecture", "string", arch), ("general.type", "string", "model"),
            ("general.name", "string", f"tiny {name}"),
            ("general.file_type", "uint32", file_types.get(fmt, 1024)),  # 1024: guessed
            ("general.quantization_version", "uint32", 2)]

    def add(key, kind, value):
        keys.append((f"{arch}.{key}", kind, value))

    if arch == "gpt2":
        add("block_count", "uint32", c["n_layer"])
        add("context_length", "uint32", c["n_positions"])
        add("embedding_length", "uint32", c["n_embd"])
        add("feed_forward_length", "uint32", 4 * c["n_embd"])
        add("attention.head_count", "uint32", c["n_head"])
        add("attention.layer_norm_epsilon", "float32", c["layer_norm_epsilon"])
        return keys
    hd = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    add("block_count", "uint32", c["num_hidden_layers"])
    add("context_length", "uint32", c["max_position_embeddings"])
    add("embedding_length", "uint32", c["hidden_size"])
    add("feed_forward_length", "uint32", c["intermediate_size"])
    add("attention.head_count", "uint32", c["num_attention_heads"])
    add("attention.head_count_kv", "uint32", c["num_key_value_heads"])
    add("attention.layer_norm_rms_epsilon", "float32", c["rms_norm_eps"])
    if arch not in ("gemma", "gemma2"):  # their files leave the base at the default
        add("rope.freq_base", "float32", c["rope_theta"])
    if c.get("head_dim"):
        add("attention.key_length", "uint32", hd)
        add("attention.value_length", "uint32", hd)
    if arch == "llama":
        add("vocab_size", "uint32", c["vocab_size"])
        add("rope.dimension_count", "uint32", hd)
    if arch in ("gemma2", "gemma3"):
        add("attention.sliding_window", "uint32", c["sliding_window"])
        if c["attn_logit_softcapping"]:
            add("attn_logit_softcapping", "float32", c["attn_logit_softcapping"])
        if c["final_logit_softcapping"]:
            add("final_logit_softcapping", "float32", c["final_logit_softcapping"])
    return keys


def to_gguf(spec, tensors, fmt, type_of=None):
    """(keys without the tokenizer, tensors for write()). type_of(name, shape): the format of a
    matrix, where not all have `fmt`."""
    arch, c = spec.gguf_arch, spec.config
    if hasattr(spec, "gguf_tensors"):  # families.py: float32, but experts of fmt
        keys = [("general.architecture", "string", arch), ("general.name", "string", f"tiny {spec.name}"),
                *spec.gguf_keys()]
        chosen = [(name, fmt if name.endswith("_exps.weight") else "f32", x) for name, x in spec.gguf_tensors(tensors)]
        return keys, [(name, one, x.shape, quant.quantize(x, one).reshape(-1)) for name, one, x in chosen]
    n_layers = c.get("num_hidden_layers", c.get("n_layer"))
    out = []
    for hf, theirs in name_pairs(arch, n_layers):
        for end in (".weight", ".bias"):
            if hf + end not in tensors:
                continue
            x = _convert(arch, hf + end, tensors[hf + end], c.get("num_attention_heads"),
                         c.get("num_key_value_heads"), False)
            # Vectors and learned positions stay float32 in every file.
            plain = x.ndim == 1 or theirs == "position_embd"
            chosen = ("f32" if plain else type_of(theirs + end, x.shape) if type_of
                      else quant.fitting(fmt, x.shape[-1]))
            data = quant.quantize(x, chosen).reshape(-1)
            out.append((theirs + end, chosen, x.shape, data))
    factors = rope_factors(c)
    if factors is not None:
        out.append(("rope_freqs.weight", "f32", factors.shape, factors.view(np.uint8)))
    return _metadata(arch, spec.name, c, fmt), out


# ---- back ----


def config_from_gguf(f):
    """The Hugging Face config, from the metadata alone. Exact for the families named here."""
    arch = f.keys["general.architecture"]
    if "rope_freqs.weight" in f.table or f"{arch}.rope.scaling.type" in f.keys:
        raise ValueError("scaled positions cannot be turned back into a config")

    def key(name, default=None):
        return f.keys.get(f"{arch}.{name}", default)

    n_vocab = f.table["token_embd.weight"][1][0]
    if arch == "gpt2":
        return {"model_type": "gpt2", "n_layer": key("block_count"), "n_embd": key(
            "embedding_length"), "n_head": key("attention.head_count"), "n_positions": key(
            "context_length"), "vocab_size": n_vocab, "activation_function": "gelu_new",
            "layer_norm_epsilon": key("attention.layer_norm_epsilon")}
    heads, hidden = key("attention.head_count"), key("embedding_length")
    head_dim = key("attention.key_length") or hidden // heads
    c = {
        "model_type": {"gemma3": "gemma3_text"}.get(arch, arch),
        "num_hidden_layers": key("block_count"), "hidden_size": hidden,
        "intermediate_size": key("feed_forward_length"), "num_attention_heads": heads,
        "num_key_value_heads": key("attention.head_count_kv"), "head_dim": head_dim,
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon"), "vocab_size": n_vocab,
        "rope_theta": key("rope.freq_base", 10000.0),
        "max_position_embeddings": key("context_length"),
        "tie_word_embeddings": "output.weight" not in f.table,
    }
    if arch in ("gemma2", "gemma3"):
        c.update(
            hidden_activation="gelu_pytorch_tanh", sliding_window=key("attention.sliding_window"),
            query_pre_attn_scalar=head_dim,
            attn_logit_softcapping=key("attn_logit_softcapping"),
            final_logit_softcapping=key("final_logit_softcapping"))
    if arch == "gemma3":  # neither the pattern nor the local base is in the file
        c.update(sliding_window_pattern=6, rope_local_base_freq=10000.0)
    return c


def from_gguf(f):
    """{Hugging Face name: float32 array} of a File."""
    arch = f.keys["general.architecture"]
    out = {}
    for hf, theirs in name_pairs(arch, f.keys[f"{arch}.block_count"]):
        for end in (".weight", ".bias"):
            if theirs + end in f.table:
                out[hf + end] = np.ascontiguousarray(_convert(
                    arch, hf + end, f.tensor(theirs + end),
                    f.keys[f"{arch}.attention.head_count"],
                    f.keys.get(f"{arch}.attention.head_count_kv"), True))
    return out
