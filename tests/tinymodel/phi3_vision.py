# SPDX-License-Identifier: Apache-2.0
"""The tower of Phi-3-vision before the small Phi-3 with LongRoPE; and what transformers does not have: its processor and how rows are put
together, in numpy and torch, from the description of the published model."""
import math
import re

KIND, ARCH, IMAGE = "phi3_v", "phi3-longrope", "<|image|>"
HIDDEN, HEADS, INTER, LAYERS = 72, 3, 90, 3
SIZE, PATCH, CROPS = 32, 8, 4
ROWS = SIZE // PATCH // 2  # on a side of a tile
MEAN, DEVIATION = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
PROCESSOR = {"image_processor_type": "Phi3VImageProcessor", "auto_map": {"AutoProcessor": "processing_phi3_v.Phi3VProcessor"},
             "num_crops": CROPS, "num_img_tokens": ROWS**2, "image_mean": MEAN, "image_std": DEVIATION}
# As published: texts, in which clients write <|image_1|> and so on.
TEMPLATE = (
    "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}{{- '<|assistant|>\n' -}}{% endif %}"
)
AT = "model.vision_embed_tokens."
TOWER = {"model_type": "clip_vision_model", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
         "num_attention_heads": HEADS, "image_size": SIZE, "patch_size": PATCH, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
         "projection_dim": 16}


def tower(out, pair, norm):
    at = AT + "img_processor.vision_model."
    yield at + "embeddings.class_embedding", (HIDDEN,), 1.0, 0.0
    yield at + "embeddings.patch_embedding.weight", (HIDDEN, 3, PATCH, PATCH), 1.5 / (3 * PATCH * PATCH) ** 0.5, 0.0
    yield at + "embeddings.position_embedding.weight", ((SIZE // PATCH) ** 2 + 1, HIDDEN), 0.5, 0.0
    yield from norm(at + "pre_layrnorm")
    yield from norm(at + "post_layernorm")
    for i in range(LAYERS):
        layer = f"{at}encoder.layers.{i}."
        for name in ("q", "k", "v", "out"):
            yield from pair(f"{layer}self_attn.{name}_proj", HIDDEN, HIDDEN, 1.4)
        yield from norm(layer + "layer_norm1")
        yield from norm(layer + "layer_norm2")
        yield from pair(layer + "mlp.fc1", INTER, HIDDEN, 1.4)
        yield from pair(layer + "mlp.fc2", HIDDEN, INTER, 1.5)
    yield AT + "glb_GN", (1, 1, 4 * HIDDEN), 1.0, 0.0
    yield AT + "sub_GN", (1, 1, 1, 4 * HIDDEN), 1.0, 0.0
    yield from pair(AT + "img_projection.0", out, 4 * HIDDEN)
    yield from pair(AT + "img_projection.2", out, out)


def config(words, text):
    """The published one does not say how large the tower is, nor which token stands for a picture: those of all sizes are the same."""
    scaling = {**text["rope_scaling"], "type": "su"}
    return {**text, "architectures": ["Phi3VForCausalLM"], "model_type": KIND, "dtype": "float32", "rope_scaling": scaling,
            "image_token_id": words.index(IMAGE), "vision_config": TOWER, "embd_layer": {
                "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp", "use_hd_transform": True,
                "with_learnable_separator": True}, "img_processor": {
                "image_dim_out": HIDDEN, "model_name": "openai/clip-vit-large-patch14-336", "name": "clip_vision_model",
                "num_img_tokens": ROWS**2}}


# ---- the reference ----

def fitted(width, height):
    """The sides that the longer side of a picture and the other one are brought to."""
    shape = max(width, height) / min(width, height)
    n = 1
    while (n + 1) * math.ceil((n + 1) / shape) <= CROPS:
        n += 1
    return n * SIZE, int(n * SIZE / shape)


def numbers(image):
    """image: Pillow's. The whole [3, SIZE, SIZE] and tiles by rows, [1 + n, 3, SIZE, SIZE]; and how many tiles there are, high and wide."""
    import numpy as np
    import torch
    from PIL import Image

    tall = image.width < image.height
    wide = image.transpose(Image.Transpose.TRANSPOSE) if tall else image
    scaled = wide.resize(fitted(*image.size), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (scaled.width, -(-scaled.height // SIZE) * SIZE), (255, 255, 255))
    canvas.paste(scaled, (0, (canvas.height - scaled.height) // 2))
    canvas = canvas.transpose(Image.Transpose.TRANSPOSE) if tall else canvas
    x = torch.tensor(np.asarray(canvas)).permute(2, 0, 1).float() / 255
    x = (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]
    whole = torch.nn.functional.interpolate(x[None], size=(SIZE, SIZE), mode="bicubic")
    high, across = canvas.height // SIZE, canvas.width // SIZE
    tiles = [x[:, i * SIZE:(i + 1) * SIZE, j * SIZE:(j + 1) * SIZE] for i in range(high) for j in range(across)]
    return torch.cat([whole, torch.stack(tiles)]), high, across


def lines(states, high, wide, end):
    """states [tiles, patches, hidden]: squares of 2 x 2 patches, by lines over all tiles, each with `end` behind it."""
    import torch

    side = SIZE // PATCH
    at = states.reshape(high, wide, side, side, -1).permute(0, 2, 1, 3, 4).reshape(high * side, wide * side, -1)
    rows = []
    for y in range(0, high * side, 2):
        rows += [torch.cat([at[y, x], at[y, x + 1], at[y + 1, x], at[y + 1, x + 1]]) for x in range(0, wide * side, 2)] + [end]
    return torch.stack(rows)


class Reference:
    """CLIP's tower, what is learned besides, and Phi-3."""

    def __init__(self, tensors, text_config):
        import torch
        import transformers

        state = {k: torch.tensor(v) for k, v in tensors.items()}
        self.tower = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**TOWER))
        known = set(self.tower.state_dict())
        part = {k.removeprefix(AT + "img_processor."): v for k, v in state.items() if k.startswith(AT + "img_processor.")}
        if not any(k.startswith("vision_model.") for k in known):
            part = {k.removeprefix("vision_model."): v for k, v in part.items()}
        self.tower.load_state_dict(part, strict=False)
        assert not known - set(part) - {"embeddings.position_ids", "vision_model.embeddings.position_ids"}, known - set(part)
        self.decoder = transformers.Phi3ForCausalLM._from_config(transformers.Phi3Config(**text_config), attn_implementation="eager")
        left = self.decoder.load_state_dict({k: v for k, v in state.items() if not k.startswith(AT)}, strict=False)
        assert not left.unexpected_keys and not left.missing_keys, left
        self.state = state
        self.tower.eval()
        self.decoder.eval()

    def rows(self, image):
        import torch

        pixels, high, wide = numbers(image)
        states = self.tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
        end, between = self.state[AT + "sub_GN"].flatten(), self.state[AT + "glb_GN"].flatten()
        x = torch.cat([lines(states[1:], high, wide, end), between[None], lines(states[:1], 1, 1, end)])
        for i in (0, 2):
            x = torch.nn.functional.linear(x, self.state[f"{AT}img_projection.{i}.weight"], self.state[f"{AT}img_projection.{i}.bias"])
            x = torch.nn.functional.gelu(x) if i == 0 else x
        assert len(x) == (high * wide + 1) * ROWS**2 + 1 + (high + 1) * ROWS
        return x

    def __call__(self, input_ids, image_token, seen):
        """seen: rows of all pictures, for the places of the image token."""
        x = self.decoder.model.embed_tokens(input_ids)
        x[0, input_ids[0] == image_token] = seen
        return self.decoder(inputs_embeds=x, use_cache=False)


def text_of(talk):
    """What a client of the published processor writes for parts of a message."""
    parts, n = [], 0
    for part in talk:
        n += isinstance(part, int)
        parts.append(f"<|image_{n}|>" if isinstance(part, int) else part)
    return "\n".join(parts)


def encode(tokenizer, text, image_token, counts):
    """Stretches between pictures are encoded apart."""
    pieces = re.split(r"<\|image_\d+\|>", text)
    assert len(pieces) == len(counts) + 1
    ids = []
    for piece, n in zip(pieces, [*counts, 0]):
        ids += tokenizer.encode(piece, add_special_tokens=False) + [image_token] * n
    return ids
