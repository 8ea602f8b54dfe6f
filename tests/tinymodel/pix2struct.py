# SPDX-License-Identifier: Apache-2.0
"""A small Pix2Struct: an encoder that reads the patches of a picture, and T5's decoder. Pictures are made as large as MOST patches."""
import os

import encdec
import hf_folder
import tokenizer
import weights

KIND = "pix2struct"
HIDDEN, HEADS, HEAD, FF, LAYERS, PATCH, SEATS, MOST = 72, 3, 24, 90, 2, 6, 64, 40
PLACE = 0  # <pad>
PROCESSOR = {"image_processor_type": "Pix2StructImageProcessor", "do_convert_rgb": True, "do_normalize": True, "is_vqa": False,
             "max_patches": MOST, "patch_size": {"height": PATCH, "width": PATCH}}


def _linear(name, rows, cols, gain):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0


def _norm(name, gain=1.0):
    yield f"{name}.weight", (HIDDEN,), 0.2 * gain, gain


def _attention(at, gain):
    """Scores are not scaled."""
    yield from _linear(at + "query", HIDDEN, HIDDEN, gain / HEAD**0.5)
    yield from _linear(at + "key", HIDDEN, HIDDEN, gain)
    yield from _linear(at + "value", HIDDEN, HIDDEN, 1.2)
    yield from _linear(at + "output", HIDDEN, HIDDEN, 1.2)


def _mlp(at):
    yield from _linear(at + "wi_0", FF, HIDDEN, 1.5)
    yield from _linear(at + "wi_1", FF, HIDDEN, 1.5)
    yield from _linear(at + "wo", HIDDEN, FF, 1.5)


def _shapes():
    yield from _linear("encoder.embeddings.patch_projection", HIDDEN, 3 * PATCH**2, 1.5)
    yield "encoder.embeddings.patch_projection.bias", (HIDDEN,), 0.3, 0.0
    yield "encoder.embeddings.row_embedder.weight", (SEATS, HIDDEN), 0.7, 0.0
    yield "encoder.embeddings.column_embedder.weight", (SEATS, HIDDEN), 0.7, 0.0
    for i in range(LAYERS):
        at = f"encoder.encoder.layer.{i}."
        yield from _attention(at + "attention.", 1.6)
        yield from _mlp(at + "mlp.")
        yield from _norm(at + "pre_mlp_layer_norm")
        yield from _norm(at + "pre_attention_layer_norm")
    yield from _norm("encoder.layernorm", 2.0)
    yield "decoder.embed_tokens.weight", (encdec.VOCAB, HIDDEN), 0.7, 0.0
    yield "decoder.layer.0.self_attention.attention.relative_attention_bias.weight", (32, HEADS), 1.5, 0.0
    for i in range(LAYERS + 1):
        at = f"decoder.layer.{i}."
        yield from _attention(at + "self_attention.attention.", 1.6)
        yield from _norm(at + "self_attention.layer_norm")
        yield from _attention(at + "encoder_decoder_attention.attention.", 2.0)
        yield from _norm(at + "encoder_decoder_attention.layer_norm")
        yield from _mlp(at + "mlp.DenseReluDense.")
        yield from _norm(at + "mlp.layer_norm")
    yield from _norm("decoder.final_layer_norm", 2.0)
    yield from _linear("decoder.lm_head", encdec.VOCAB, HIDDEN, 1.0)


CONFIG = {
    "architectures": ["Pix2StructForConditionalGeneration"], "model_type": KIND, "is_encoder_decoder": True, "dtype": "float32",
    "tie_word_embeddings": False, "pad_token_id": PLACE, "eos_token_id": 1, "decoder_start_token_id": 0, "text_config": {
        "model_type": "pix2struct_text_model", "vocab_size": encdec.VOCAB, "hidden_size": HIDDEN, "d_kv": HEAD, "d_ff": FF,
        "num_layers": LAYERS + 1, "num_heads": HEADS, "layer_norm_epsilon": 1e-6, "pad_token_id": PLACE, "eos_token_id": 1,
        "decoder_start_token_id": 0, "is_decoder": True}, "vision_config": {
        "model_type": "pix2struct_vision_model", "hidden_size": HIDDEN, "patch_embed_hidden_size": 3 * PATCH**2, "d_ff": FF, "d_kv": HEAD,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "seq_len": SEATS, "layer_norm_eps": 1e-6}}


def write_folder(out):
    os.makedirs(out, exist_ok=True)
    tensors = {name: weights.normal(f"pix2struct {name}", shape, deviation, mean) for name, shape, deviation, mean in _shapes()}
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), CONFIG)
    hf_folder.write_json(os.path.join(out, "preprocessor_config.json"), PROCESSOR)
    hf_folder.write_json(os.path.join(out, "tokenizer.json"), tokenizer.tokenizer_json(encdec.VOCAB, False))
    place = tokenizer.vocabulary(encdec.VOCAB)[PLACE]
    hf_folder.write_json(os.path.join(out, "tokenizer_config.json"), {
        **tokenizer.tokenizer_config(False), "chat_template": "{% for message in messages %}{% if message['content'] is string %}"
        "{{ message['content'] }}{% else %}{% for item in message['content'] %}{% if item['type'] == 'image' %}{{ '" + place + "' }}"
        "{% else %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"})
