# SPDX-License-Identifier: Apache-2.0
"""Small random encoder-decoder models as Hugging Face folders: T5 as it first was, Flan-T5's shape, mT5, BART, mBART,
Marian, Pegasus, M2M100. The same bits every time."""
import json
import os
import re

import numpy as np

import gguf_file
import hf_folder
import tokenizer
import weights

VOCAB = 331


def _norm(name, n, gain=1.0):
    yield f"{name}.weight", (n,), 0.2 * gain, gain


def _linear(name, n_in, n_out, gain):
    yield f"{name}.weight", (n_out, n_in), gain / n_in ** 0.5, 0.0


def _t5_attention(at, c, gain):
    """Scores are not scaled: q and k are small enough for that."""
    d, q = c["d_model"], c["num_heads"] * c["d_kv"]
    yield from _linear(f"{at}.q", d, q, gain / c["d_kv"] ** 0.5)
    yield from _linear(f"{at}.k", d, q, gain)
    yield from _linear(f"{at}.v", d, q, 1.2)
    yield from _linear(f"{at}.o", q, d, 1.2)


def _t5_stack(name, c, n_layers, cross):
    d, ff = c["d_model"], c["d_ff"]
    gated = c["feed_forward_proj"].startswith("gated-")
    for i in range(n_layers):
        at = f"{name}.block.{i}.layer"
        yield from _t5_attention(f"{at}.0.SelfAttention", c, 1.6)
        if i == 0:
            yield (f"{at}.0.SelfAttention.relative_attention_bias.weight",
                   (c["relative_attention_num_buckets"], c["num_heads"]), 1.5, 0.0)
        yield from _norm(f"{at}.0.layer_norm", d)
        if cross:
            yield from _t5_attention(f"{at}.1.EncDecAttention", c, 2.0)
            yield from _norm(f"{at}.1.layer_norm", d)
        last = f"{at}.{2 if cross else 1}"
        for part in ("wi_0", "wi_1") if gated else ("wi",):
            yield from _linear(f"{last}.DenseReluDense.{part}", d, ff, 1.5)
        yield from _linear(f"{last}.DenseReluDense.wo", ff, d, 1.5)
        yield from _norm(f"{last}.layer_norm", d)
    yield from _norm(f"{name}.final_layer_norm", d, 2.0)


def _t5(c):
    tied = c["tie_word_embeddings"]
    # tied states are divided by the root of their size before the head
    yield "shared.weight", (VOCAB, c["d_model"]), 1.0 if tied else 0.7, 0.0
    yield from _t5_stack("encoder", c, c["num_layers"], False)
    yield from _t5_stack("decoder", c, c["num_decoder_layers"], True)
    if not tied:
        yield from _linear("lm_head", c["d_model"], VOCAB, 1.0)


def _sizes(kind, name, **more):
    return {"architectures": [name], "model_type": kind, "is_encoder_decoder": True, "vocab_size": VOCAB,
            "d_model": 72, "num_heads": 3, "d_kv": 24, "d_ff": 90, "num_layers": 2, "num_decoder_layers": 3,
            "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
            "feed_forward_proj": "relu", "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1,
            "decoder_start_token_id": 0, "n_positions": 512, "dropout_rate": 0.0, "torch_dtype": "float32", **more}


# heads of 24: no whole vectors. Heads that are not the hidden size, fewer buckets, other numbers of layers.
T5 = _sizes("t5", "T5ForConditionalGeneration")
FLAN = _sizes("t5", "T5ForConditionalGeneration", feed_forward_proj="gated-gelu", tie_word_embeddings=False, d_model=64,
              num_heads=4, d_kv=32, d_ff=100, num_layers=3, num_decoder_layers=2)
MT5 = _sizes("mt5", "MT5ForConditionalGeneration", feed_forward_proj="gated-gelu", tie_word_embeddings=False, d_model=96,
             num_heads=3, d_kv=16, relative_attention_num_buckets=16, relative_attention_max_distance=40,
             decoder_start_token_id=7)


# ---- BART: norms of sums, biases, learned positions behind two rows; mBART: norms in front ----


def _biased(name, n_in, n_out, gain):
    yield from _linear(name, n_in, n_out, gain)
    yield f"{name}.bias", (n_out,), 0.1, 0.0


def _layer_norm(name, n, gain=1.0):
    yield from _norm(name, n, gain)
    yield f"{name}.bias", (n,), 0.1, 0.0


def _bart_ends(name, c):
    yield f"model.{name}.embed_positions.weight", (c["max_position_embeddings"] + 2, c["d_model"]), 0.4, 0.0
    yield from _layer_norm(f"model.{name}.layernorm_embedding", c["d_model"])


def _bart_stack(name, c, cross, last_norm):
    d, ff = c["d_model"], c[f"{name}_ffn_dim"]
    for i in range(c[f"{name}_layers"]):
        at = f"model.{name}.layers.{i}"
        for part in ("self_attn", "encoder_attn")[:1 + cross]:
            for proj, gain in (("q_proj", 1.6), ("k_proj", 1.6), ("v_proj", 1.0), ("out_proj", 1.4)):
                yield from _biased(f"{at}.{part}.{proj}", d, d, gain)
            yield from _layer_norm(f"{at}.{part}_layer_norm", d)
        yield from _biased(f"{at}.fc1", d, ff, 1.5)
        yield from _biased(f"{at}.fc2", ff, d, 1.5)
        yield from _layer_norm(f"{at}.final_layer_norm", d)
    if last_norm:
        yield from _layer_norm(f"model.{name}.layer_norm", d, 2.0)


def _bart(c):
    yield "model.shared.weight", (VOCAB, c["d_model"]), 0.3, 0.0
    yield "final_logits_bias", (1, VOCAB), 0.5, 0.0
    for name in ("encoder", "decoder"):
        yield from _bart_ends(name, c)
        yield from _bart_stack(name, c, name == "decoder", c["model_type"] == "mbart")


def _sinusoidal(c):
    """Marian, Pegasus and M2M100: positions are computed. Scaled embeddings of their size."""
    yield "model.shared.weight", (VOCAB, c["d_model"]), 0.15 if c["model_type"] == "marian" else 0.11, 0.0
    if c["model_type"] != "m2m_100":
        yield "final_logits_bias", (1, VOCAB), 0.5, 0.0
    for name in ("encoder", "decoder"):
        yield from _bart_stack(name, c, name == "decoder", c["model_type"] != "marian")


def _fsmt(c):
    """fairseq's: both networks have the embedding under a name of their own, and it is the head."""
    yield "model.encoder.embed_tokens.weight", (VOCAB, c["d_model"]), 0.15, 0.0
    for name in ("encoder", "decoder"):
        yield from _bart_stack(name, c, name == "decoder", False)


def _bart_sizes(kind, name, **more):
    return {"architectures": [name], "model_type": kind, "is_encoder_decoder": True, "vocab_size": VOCAB, "d_model": 72,
            "encoder_layers": 2, "decoder_layers": 3, "num_hidden_layers": 2, "encoder_attention_heads": 3,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 90, "decoder_ffn_dim": 100, "max_position_embeddings": 400,
            "activation_function": "gelu", "scale_embedding": False, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
            "decoder_start_token_id": 2, "tie_word_embeddings": True, "dropout": 0.0, "torch_dtype": "float32", **more}


# heads of the decoder are of 18; the first token that BART chooses is given
BART = _bart_sizes("bart", "BartForConditionalGeneration", forced_bos_token_id=0)
MBART = _bart_sizes("mbart", "MBartForConditionalGeneration", d_model=96, decoder_attention_heads=6, scale_embedding=True,
                    decoder_start_token_id=9, activation_function="relu")
# an odd size has one sine more than cosines; the activation of opus-mt; a banned token that would often be the best
MARIAN = _bart_sizes("marian", "MarianMTModel", d_model=75, decoder_attention_heads=5, scale_embedding=True,
                     decoder_start_token_id=330, pad_token_id=330, eos_token_id=0, activation_function="swish",
                     forced_eos_token_id=0, bad_words_ids=[[240]])
# positions begin behind the padding's id, which stands in no text here: transformers counts no padding
M2M_100 = _bart_sizes("m2m_100", "M2M100ForConditionalGeneration", d_model=96, decoder_attention_heads=6, scale_embedding=True,
                      pad_token_id=6, forced_bos_token_id=11, activation_function="relu")
PEGASUS = _bart_sizes("pegasus", "PegasusForConditionalGeneration", d_model=96, decoder_attention_heads=6, scale_embedding=True,
                      pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, activation_function="relu")
# what a text never has is the padding
FSMT = _bart_sizes("fsmt", "FSMTForConditionalGeneration", scale_embedding=True, activation_function="relu", langs=["en", "fr"],
                   src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, decoder_attention_heads=6, max_length=100, bad_words_ids=[[1]], tie_word_embeddings=False)
del FSMT["vocab_size"]
MODELS = {"t5": (T5, list(_t5(T5))), "flan-t5": (FLAN, list(_t5(FLAN))), "mt5": (MT5, list(_t5(MT5))),
          "bart": (BART, list(_bart(BART))), "mbart": (MBART, list(_bart(MBART))),
          "marian": (MARIAN, list(_sinusoidal(MARIAN))), "m2m_100": (M2M_100, list(_sinusoidal(M2M_100))),
          "pegasus": (PEGASUS, list(_sinusoidal(PEGASUS))), "fsmt": (FSMT, list(_fsmt(FSMT)))}
# one that ends within a block, some of several blocks with distances in every bucket, one token
PROMPTS = {name: [*weights.tokens(f"encdec {name}", n, VOCAB), 1] for name, n in
           (("short", 5), ("long", 300), ("middle", 40))} | {"one": [9]}
DECODER = [0, *weights.tokens("encdec decoder", 6, VOCAB)]


def cross_mask(n_states, n_rows):
    """Rows of the decoder's beginning and a few behind it see more and more of the encoder's states, in no order; the last does not see all."""
    seen_from = [(7 * i + 3) % (n_rows + 2) if i else 0 for i in range(n_states)]
    return [[level <= row for level in seen_from] for row in range(n_rows)]

# What generate() is told by generation_config.json: ends that come early, late and not by themselves.
_KINDS = {
    "short": {"num_beams": 4, "length_penalty": 0.6, "early_stopping": False, "max_length": 24},
    "long": {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 3, "max_length": 24},
    "never": {"num_beams": 3, "length_penalty": 1.0, "early_stopping": "never", "min_length": 10, "max_length": 20,
              "no_repeat_ngram_size": 2},
    "forced": {"num_beams": 4, "length_penalty": 2.0, "early_stopping": False, "max_length": 9},
    "greedy": {"no_repeat_ngram_size": 2, "min_length": 6, "max_new_tokens": 14},
}
_ENDS = {"t5": 17, "bart": 258, "marian": 25}  # what these models like to say early
_SUPPRESSED = {"t5": [217, 21], "bart": [120], "marian": [43, 78]}  # and what they would begin with


def _generation(name):
    c, end = MODELS[name][0], _ENDS[name]
    own = {k: c[k] for k in ("decoder_start_token_id", "pad_token_id", "forced_bos_token_id", "bad_words_ids") if k in c}
    for kind, values in _KINDS.items():
        more = {"forced_eos_token_id": end} if kind in ("forced", "greedy") else {}
        if kind in ("never", "greedy"):
            more["suppress_tokens"] = _SUPPRESSED[name]
        yield kind, {**own, "eos_token_id": end, **values, **more}


GENERATION = {name: dict(_generation(name)) for name in _ENDS}


def tensors(name):
    made = {at: weights.normal(f"encdec {name} {at}", shape, deviation, mean) for at, shape, deviation, mean in MODELS[name][1]}
    if name == "fsmt":  # one dictionary
        for other in ("embed_tokens", "output_projection"):
            made[f"model.decoder.{other}.weight"] = made["model.encoder.embed_tokens.weight"]
    return made


def prompt(name, kind):
    """FSMT's padding is 1, which transformers gives no position."""
    return [9 if i == 1 and name == "fsmt" else i for i in PROMPTS[kind]]


def write_folder(name, out, generation=None):
    """generation: of generation_config.json; None: there is no such file."""
    os.makedirs(out, exist_ok=True)
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors(name), "float32")
    end = {"eos_token_id": generation["eos_token_id"]} if generation else {}
    hf_folder.write_json(os.path.join(out, "config.json"), {**MODELS[name][0], **end})
    if generation:
        hf_folder.write_json(os.path.join(out, "generation_config.json"), generation)
    text = tokenizer.tokenizer_json(VOCAB, False)
    hf_folder.write_json(os.path.join(out, "tokenizer.json"), text)
    config = tokenizer.tokenizer_config(False)
    config.pop("chat_template", None)
    if end:
        config["eos_token"] = tokenizer.vocabulary(VOCAB)[end["eos_token_id"]]
    hf_folder.write_json(os.path.join(out, "tokenizer_config.json"), config)


# ---- fairseq: model.pt, dictionaries and codes ----


def _fairseq_tensors(name, old):
    """old: as before its version 0.9, with q, k and v in one matrix and norms by number."""
    numbers = {"self_attn_layer_norm": "layer_norms.0", "final_layer_norm": "layer_norms.1"}
    rest = tensors(name)
    if old:
        rest["model.decoder.embed_out"] = rest.pop("model.decoder.output_projection.weight")
    while rest:
        at = next(iter(rest))
        own = at.removeprefix("model.")
        x = rest.pop(at)
        if old and ".q_proj." in at:
            parts = [x, *(rest.pop(at.replace("q_proj", f"{p}_proj")) for p in "kv")]
            x, own = np.concatenate(parts), re.sub(r"q_proj\.(\w+)", r"in_proj_\1", own)
        elif old and own.startswith("encoder.layers."):
            own = re.sub(r"\b(self_attn|final)_layer_norm\b", lambda m: numbers[m[0]], own)
        yield own, x


def write_fairseq(out, old=True, name="fsmt", **more):
    """more: arguments of the training."""
    c = MODELS[name][0]
    args = {"arch": "transformer", "activation_fn": c["activation_function"], "share_all_embeddings": False, "dropout": 0.1,
            "share_decoder_input_output_embed": False, "max_source_positions": 400, "max_target_positions": 300,
            "adaptive_softmax_cutoff": None, "source_lang": "en", "target_lang": "fr"}
    for kind in ("encoder", "decoder"):
        args |= {f"{kind}_embed_dim": c["d_model"], f"{kind}_layers": c[f"{kind}_layers"], f"{kind}_ffn_embed_dim": c[f"{kind}_ffn_dim"],
                 f"{kind}_attention_heads": c[f"{kind}_attention_heads"], f"{kind}_normalize_before": False}
    os.makedirs(out, exist_ok=True)
    hf_folder.write_fairseq_pt(os.path.join(out, "model.pt"), dict(_fairseq_tensors(name, old)), {**args, **more}, old)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../text/fairseq_texts.json"), encoding="utf-8") as f:
        made = json.load(f)
    for language in ("en", "fr"):
        with open(os.path.join(out, f"dict.{language}.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"{w} {1000 - i}\n" for i, w in enumerate(made["dictionary"])))
    with open(os.path.join(out, "bpecodes"), "w", encoding="utf-8") as f:
        f.write("\n".join(made["codes"]) + "\n")


# ---- GGUF ----

_GGUF = {"SelfAttention.q": "attn_q", "SelfAttention.k": "attn_k", "SelfAttention.v": "attn_v", "SelfAttention.o": "attn_o",
         "SelfAttention.relative_attention_bias": "attn_rel_b", "EncDecAttention.q": "cross_attn_q", "EncDecAttention.k": "cross_attn_k",
         "EncDecAttention.v": "cross_attn_v", "EncDecAttention.o": "cross_attn_o", "DenseReluDense.wi_0": "ffn_gate",
         "DenseReluDense.wi_1": "ffn_up", "DenseReluDense.wi": "ffn_up", "DenseReluDense.wo": "ffn_down"}


def gguf_name(name):
    if not name.startswith(("encoder.", "decoder.")):
        return {"shared.weight": "token_embd.weight", "lm_head.weight": "output.weight"}[name]
    kind = name[:3]
    if "final_layer_norm" in name:
        return f"{kind}.output_norm.weight"
    block, layer, part = re.fullmatch(r"\w+\.block\.(\d+)\.layer\.(\d)\.(.*)\.weight", name).groups()
    norms = ("attn_norm", "cross_attn_norm", "ffn_norm") if kind == "dec" else ("attn_norm", "ffn_norm")
    return f"{kind}.blk.{block}.{norms[int(layer)] if part == 'layer_norm' else _GGUF[part]}.weight"


def gguf_keys(name):
    c, plain = MODELS[name][0], "float32"
    numbers = {"context_length": c["n_positions"], "embedding_length": c["d_model"], "feed_forward_length": c["d_ff"],
               "block_count": c["num_layers"], "decoder_block_count": c["num_decoder_layers"], "attention.head_count": c["num_heads"],
               "attention.key_length": c["d_kv"], "attention.value_length": c["d_kv"],
               "attention.relative_buckets_count": c["relative_attention_num_buckets"],
               "decoder_start_token_id": c["decoder_start_token_id"]}
    return [("general.architecture", "string", "t5"), ("general.name", "string", f"tiny {name}"),
            *((f"t5.{key}", "uint32", n) for key, n in numbers.items()),
            *((f"t5.attention.layer_norm_{kind}", plain, c["layer_norm_epsilon"]) for kind in ("epsilon", "rms_epsilon"))]


def write_gguf(name, out):
    """A T5 as llama.cpp's converter stores it."""
    gguf_file.write(out, [*gguf_keys(name), *tokenizer.gguf_keys(VOCAB, False)], [
        (gguf_name(at), "f32", x.shape, np.ascontiguousarray(x).view(np.uint8).reshape(-1)) for at, x in tensors(name).items()])
