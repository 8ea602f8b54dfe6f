# SPDX-License-Identifier: Apache-2.0
"""The tower of BLIP-2 before the small OPT, or before the small Flan-T5: q, k and v of a layer are one tensor; queries read the states in every second layer behind it.
They are narrower than the tower, whose sides are no multiple of patches."""
import json
import os

import encdec
import hf_folder
import weights

HIDDEN, HEADS, INTER, LAYERS = 72, 3, 90, 3
KIND, ARCH, IMAGE = "blip2", "opt", "<image>"
SIZE, PATCH = 32, 6
QUERIES, Q_HIDDEN, Q_HEADS, Q_INTER, Q_LAYERS = 7, 48, 2, 60, 3
PROCESSOR = {
    "image_processor_type": "BlipImageProcessor", "do_convert_rgb": True, "do_resize": True, "size": {"height": SIZE, "width": SIZE},
    "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
# Processors write the places of a picture in front of all, also of what a template would begin with.
TEMPLATE = (
    "{% for message in messages %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _norm(name, n):
    yield f"{name}.weight", (n,), 0.2, 1.0
    yield f"{name}.bias", (n,), 0.1, 0.0


def _attention(at, of, pair):
    yield from pair(at + "attention.query", Q_HIDDEN, Q_HIDDEN, 1.4)
    yield from pair(at + "attention.key", Q_HIDDEN, of, 1.4)
    yield from pair(at + "attention.value", Q_HIDDEN, of, 1.4)
    yield from pair(at + "output.dense", Q_HIDDEN, Q_HIDDEN, 1.4)
    yield from _norm(at + "output.LayerNorm", Q_HIDDEN)


def tower(out, pair):
    at, n = "vision_model.", (SIZE // PATCH) ** 2 + 1
    yield at + "embeddings.class_embedding", (1, 1, HIDDEN), 1.0, 0.0
    yield at + "embeddings.position_embedding", (1, n, HIDDEN), 0.5, 0.0
    yield at + "embeddings.patch_embedding.weight", (HIDDEN, 3, PATCH, PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield at + "embeddings.patch_embedding.bias", (HIDDEN,), 0.3, 0.0
    for i in range(LAYERS):
        layer = f"{at}encoder.layers.{i}."
        yield from pair(layer + "self_attn.qkv", 3 * HIDDEN, HIDDEN, 1.4)
        yield from pair(layer + "self_attn.projection", HIDDEN, HIDDEN, 1.4)
        yield from _norm(layer + "layer_norm1", HIDDEN)
        yield from _norm(layer + "layer_norm2", HIDDEN)
        yield from pair(layer + "mlp.fc1", INTER, HIDDEN, 1.4)
        yield from pair(layer + "mlp.fc2", HIDDEN, INTER, 1.5)
    yield from _norm(at + "post_layernorm", HIDDEN)
    yield "query_tokens", (1, QUERIES, Q_HIDDEN), 1.0, 0.0
    yield from _norm("qformer.layernorm", Q_HIDDEN)
    for i in range(Q_LAYERS):
        layer = f"qformer.encoder.layer.{i}."
        yield from _attention(layer + "attention.", Q_HIDDEN, pair)
        if i % 2 == 0:
            yield from _attention(layer + "crossattention.", HIDDEN, pair)
        yield from pair(layer + "intermediate_query.dense", Q_INTER, Q_HIDDEN, 1.4)
        yield from pair(layer + "output_query.dense", Q_HIDDEN, Q_INTER, 1.5)
        yield from _norm(layer + "output_query.LayerNorm", Q_HIDDEN)
    yield from pair("language_projection", out, Q_HIDDEN, 0.5)


def config(words, text):
    return {"architectures": ["Blip2ForConditionalGeneration"], "model_type": "blip-2", "dtype": "float32",
            "image_token_index": words.index(IMAGE), "num_query_tokens": QUERIES, "text_config": text, "vision_config": {
                "model_type": "blip_2_vision_model", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS, "image_size": SIZE, "patch_size": PATCH, "hidden_act": "gelu", "layer_norm_eps": 1e-6,
                "qkv_bias": True}, "qformer_config": {
                "model_type": "blip_2_qformer", "hidden_size": Q_HIDDEN, "intermediate_size": Q_INTER, "num_hidden_layers": Q_LAYERS,
                "num_attention_heads": Q_HEADS, "encoder_hidden_size": HIDDEN, "cross_attention_frequency": 2, "layer_norm_eps": 1e-12,
                "hidden_act": "gelu"}}


# ---- before Flan-T5: a prompt's places are tokens that its encoder reads ----

T5_IMAGE = 330  # the last word, <unused…>
T5_TALKS = [([0], [9, 41, 77, 260, 1]), ([3], [5, 5, 1]), ([0, 2], [*weights.tokens("blip2 t5", 40, encdec.VOCAB - 1), 1]), ([], [9, 41, 77, 1])]


def t5_prompt(pictures, words):
    return [T5_IMAGE] * (QUERIES * len(pictures)) + words


def write_t5_folder(out, pair):
    """pair: of the names and shapes of a weight and its bias."""
    encdec.write_folder("flan-t5", out)
    text = {**encdec.FLAN, "architectures": ["T5ForConditionalGeneration"]}
    tensors = {f"language_model.{k}": x for k, x in encdec.tensors("flan-t5").items()}
    tensors |= {name: weights.normal(f"vision {name}", shape, deviation, mean) for name, shape, deviation, mean in tower(text["d_model"], pair)}
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
    words = [""] * T5_IMAGE + [IMAGE]
    values = {**config(words, text), "use_decoder_only_language_model": False,
              "tie_word_embeddings": False}
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(values, f)
    hf_folder.write_json(os.path.join(out, "preprocessor_config.json"), PROCESSOR)
