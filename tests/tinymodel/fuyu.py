# SPDX-License-Identifier: Apache-2.0
"""Fuyu: patches of a picture go through one product before the small Persimmon, and lines of them end with a word of the tokenizer. The
configuration is flat, as the published folder has it. Pictures that do not fit into the box are made smaller."""
KIND, ARCH = "fuyu", "persimmon"
PATCH, HEIGHT, WIDTH = 6, 36, 54
WORDS = ["|NEWLINE|", "|SPEAKER|"]
IMAGE = WORDS[1]
PROCESSOR = {
    "image_processor_type": "FuyuImageProcessor", "do_resize": True, "size": {"height": HEIGHT, "width": WIDTH}, "resample": 2,
    "do_pad": True, "padding_mode": "constant", "padding_value": 1.0, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": 0.5, "image_std": 0.5, "patch_size": {"height": PATCH, "width": PATCH}}


def tower(out):
    yield "vision_embed_tokens.weight", (out, 3 * PATCH * PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield "vision_embed_tokens.bias", (out,), 0.3, 0.0


def lines(height, width):
    """Words of a picture of so many pixels, as the processor has brought it into the box."""
    return (IMAGE * (-(-width // PATCH)) + WORDS[0]) * (-(-height // PATCH))


def config(words, text):
    return {**text, "architectures": ["FuyuForCausalLM"], "model_type": KIND, "image_size": 300, "patch_size": PATCH, "num_channels": 3,
            "image_token_id": words.index(IMAGE)}
