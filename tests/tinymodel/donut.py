# SPDX-License-Identifier: Apache-2.0
"""Small Donut and Nougat: three stages of Swin, of which the last has a window on a side, and mBART's decoder. Donut's pages lie as the tower's
do, Nougat's lose their margin."""
import os

import encdec
import hf_folder
import tokenizer
import weights

KINDS = ("donut", "nougat")
EMBED, HEADS, DEPTHS, WINDOW, PATCH, HEIGHT, WIDTH = 18, [3, 3, 3], [2, 3, 1], 3, 2, 48, 24
HIDDEN, FF, LAYERS = EMBED * 4, 90, 2
ROWS = (HEIGHT // PATCH // 4) * (WIDTH // PATCH // 4)
PLACE = 1
PAGE = {"do_resize": True, "size": {"height": HEIGHT, "width": WIDTH}, "resample": 2, "do_thumbnail": True, "do_pad": True, "do_rescale": True,
        "rescale_factor": 1 / 255, "do_normalize": True}
PROCESSORS = {
    "donut": {"image_processor_type": "DonutImageProcessor", **PAGE, "do_align_long_axis": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    "nougat": {"image_processor_type": "NougatImageProcessor", **PAGE, "do_align_long_axis": False, "do_crop_margin": True,
               "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}}


def _pair(name, rows, cols, gain):
    yield f"{name}.weight", (rows, cols), gain / cols**0.5, 0.0
    yield f"{name}.bias", (rows,), 0.2, 0.0


def _norm(name, n):
    yield f"{name}.weight", (n,), 0.2, 1.0
    yield f"{name}.bias", (n,), 0.1, 0.0


def _tower():
    yield "encoder.embeddings.patch_embeddings.projection.weight", (EMBED, 3, PATCH, PATCH), 1.5 / (3 * PATCH**2) ** 0.5, 0.0
    yield "encoder.embeddings.patch_embeddings.projection.bias", (EMBED,), 0.3, 0.0
    yield from _norm("encoder.embeddings.norm", EMBED)
    for stage, depth in enumerate(DEPTHS):
        n = EMBED << stage
        for i in range(depth):
            at = f"encoder.encoder.layers.{stage}.blocks.{i}."
            yield from _norm(at + "layernorm_before", n)
            yield at + "attention.self.relative_position_bias_table", ((2 * WINDOW - 1) ** 2, HEADS[stage]), 1.0, 0.0
            for name in ("query", "key", "value"):
                yield from _pair(f"{at}attention.self.{name}", n, n, 1.4)
            yield from _pair(at + "attention.output.dense", n, n, 1.4)
            yield from _norm(at + "layernorm_after", n)
            yield from _pair(at + "intermediate.dense", 4 * n, n, 1.4)
            yield from _pair(at + "output.dense", n, 4 * n, 1.5)
        if stage + 1 < len(DEPTHS):
            yield from _norm(f"encoder.encoder.layers.{stage}.downsample.norm", 4 * n)
            yield f"encoder.encoder.layers.{stage}.downsample.reduction.weight", (2 * n, 4 * n), 1.4 / (4 * n) ** 0.5, 0.0


def _decoder():
    at = "decoder.model.decoder."
    yield at + "embed_tokens.weight", (encdec.VOCAB, HIDDEN), 0.12, 0.0
    yield at + "embed_positions.weight", (130, HIDDEN), 0.5, 0.0
    for i in range(LAYERS):
        layer = f"{at}layers.{i}."
        for name, gain in (("self_attn", 1.5), ("encoder_attn", 2.0)):
            for part in ("q", "k", "v", "out"):
                yield from _pair(f"{layer}{name}.{part}_proj", HIDDEN, HIDDEN, gain)
            yield from _norm(f"{layer}{name}_layer_norm", HIDDEN)
        yield from _pair(layer + "fc1", FF, HIDDEN, 1.5)
        yield from _pair(layer + "fc2", HIDDEN, FF, 1.5)
        yield from _norm(layer + "final_layer_norm", HIDDEN)
    yield from _norm(at + "layernorm_embedding", HIDDEN)
    yield from _norm(at + "layer_norm", HIDDEN)


CONFIG = {
    "architectures": ["VisionEncoderDecoderModel"], "model_type": "vision-encoder-decoder", "is_encoder_decoder": True, "dtype": "float32",
    "decoder_start_token_id": 0, "pad_token_id": PLACE, "eos_token_id": 2, "tie_word_embeddings": True, "encoder": {
        "model_type": "donut-swin", "image_size": [HEIGHT, WIDTH], "patch_size": PATCH, "num_channels": 3, "embed_dim": EMBED, "depths": DEPTHS,
        "num_heads": HEADS, "window_size": WINDOW, "mlp_ratio": 4.0, "qkv_bias": True, "hidden_act": "gelu", "layer_norm_eps": 1e-3,
        "use_absolute_embeddings": False}, "decoder": {
        "model_type": "mbart", "is_decoder": True, "add_cross_attention": True, "is_encoder_decoder": False, "vocab_size": encdec.VOCAB,
        "d_model": HIDDEN, "decoder_layers": LAYERS, "decoder_attention_heads": 3, "decoder_ffn_dim": FF, "encoder_layers": 1,
        "encoder_attention_heads": 3, "encoder_ffn_dim": FF, "max_position_embeddings": 128, "scale_embedding": True,
        "activation_function": "gelu", "pad_token_id": PLACE, "bos_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": True}}


def write_folder(out, kind):
    os.makedirs(out, exist_ok=True)
    tensors = {name: weights.normal(f"donut {name}", shape, deviation, mean) for part in (_tower(), _decoder())
               for name, shape, deviation, mean in part}
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), CONFIG)
    hf_folder.write_json(os.path.join(out, "preprocessor_config.json"), PROCESSORS[kind])
    hf_folder.write_json(os.path.join(out, "tokenizer.json"), tokenizer.tokenizer_json(encdec.VOCAB, False))
    place = tokenizer.vocabulary(encdec.VOCAB)[PLACE]
    hf_folder.write_json(os.path.join(out, "tokenizer_config.json"), {
        **tokenizer.tokenizer_config(False), "chat_template": "{% for message in messages %}{% if message['content'] is string %}"
        "{{ message['content'] }}{% else %}{% for item in message['content'] %}{% if item['type'] == 'image' %}{{ '" + place + "' }}"
        "{% else %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"})
