# SPDX-License-Identifier: Apache-2.0
"""VILA 1.5: SigLIP's or CLIP's tower before the small Llama, each part in a folder of its own, and a tokenizer without the word of a picture;
and the reference, put together from transformers' towers and Llama, since transformers has no VILA. Patches on a side are odd."""
import json
import os

import hf_folder
import make_model
import weights

KINDS = {"vila": "siglip", "vila_clip": "clip"}  # the tower
ASPECT = {"vila": "resize", "vila_clip": "pad"}
ARCH, IMAGE, ROWS = "llama3", "<image>", 9


def projector(hidden, out):
    for i, rows, cols in ((2, out, 4 * hidden), (4, out, out)):
        yield f"layers.{i}.weight", (rows, cols), 1.0 / cols**0.5, 0.0
        yield f"layers.{i}.bias", (rows,), 0.2, 0.0
    yield "layers.1.weight", (4 * hidden,), 0.2, 1.0
    yield "layers.1.bias", (4 * hidden,), 0.1, 0.0


def write_folder(out, kind, tower, tower_config, processor, template):
    """tower: its tensors by their names there."""
    llm, seen, between = (os.path.join(out, name) for name in ("llm", "vision_tower", "mm_projector"))
    make_model.write_folder(ARCH, llm)
    for folder in (seen, between):
        os.makedirs(folder, exist_ok=True)
    with open(os.path.join(llm, "config.json"), encoding="utf-8") as f:
        text = json.load(f)
    path = os.path.join(llm, "tokenizer_config.json")
    with open(path, encoding="utf-8") as f:
        words = json.load(f)
    hf_folder.write_json(path, {**words, "chat_template": template})
    hf_folder.write_json(os.path.join(seen, "config.json"), tower_config)
    hf_folder.write_json(os.path.join(seen, "preprocessor_config.json"), processor)
    hf_folder.write_safetensors(os.path.join(seen, "model.safetensors"), tower, "float32")
    made = {name: weights.normal(f"vila {name}", shape, deviation, mean)
            for name, shape, deviation, mean in projector(tower_config["hidden_size"], text["hidden_size"])}
    hf_folder.write_safetensors(os.path.join(between, "model.safetensors"), made, "float32")
    of_projector = {"architectures": ["MultimodalProjector"], "mm_projector_type": "mlp_downsample", "model_type": "v2l_projector"}
    hf_folder.write_json(os.path.join(between, "config.json"), of_projector)
    hf_folder.write_json(os.path.join(out, "config.json"), {
        "architectures": ["LlavaLlamaModel"], "model_type": "llava_llama", "image_aspect_ratio": ASPECT[kind], "interpolate_mode": "linear",
        "hidden_size": text["hidden_size"], "mm_hidden_size": tower_config["hidden_size"], "mm_vision_select_layer": -2, "s2": False,
        "mm_vision_select_feature": "patch" if KINDS[kind] == "clip" else "cls_patch", "vision_resolution": -1, "llm_cfg": text,
        "vision_tower_cfg": tower_config, "mm_projector_cfg": of_projector, "resume_path": "./vlm"})


# ---- the reference ----

class Reference:
    def __init__(self, folder, kind, processor_class):
        import torch
        import transformers

        seen = os.path.join(folder, "vision_tower")
        tower = transformers.CLIPVisionModel if KINDS[kind] == "clip" else transformers.SiglipVisionModel
        self.kind, self.torch = kind, torch
        more = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
        self.tower, info = tower.from_pretrained(seen, **more)
        assert not any("post_layernorm" not in str(x) for v in info.values() for x in v), info
        self.processor = processor_class.from_pretrained(seen)
        llm = os.path.join(folder, "llm")
        self.decoder, info = transformers.AutoModelForCausalLM.from_pretrained(llm, **more)
        assert not any(info.values()), info
        self.tower.eval()
        self.decoder.eval()
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(llm)
        self.tokenizer.add_tokens([IMAGE], special_tokens=True)
        self.image_token = self.tokenizer.convert_tokens_to_ids(IMAGE)
        from safetensors.torch import load_file
        self.state = load_file(os.path.join(folder, "mm_projector", "model.safetensors"))

    def square(self, image):
        """As the published code makes squares of pictures before the tower's processor has them."""
        from PIL import Image

        if ASPECT[self.kind] == "resize":
            side = self.tower.config.image_size
            return image.resize((side, side))
        side, mean = max(image.size), tuple(int(x * 255) for x in self.processor.image_mean)
        out = Image.new("RGB", (side, side), mean)
        out.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return out

    def rows(self, image):
        torch = self.torch
        pixels = torch.tensor(self.processor([self.square(image)])["pixel_values"][0])[None]
        states = self.tower(pixels, output_hidden_states=True).hidden_states[-2][0]
        states = states[1:] if KINDS[self.kind] == "clip" else states
        side = int(len(states) ** 0.5)
        even = torch.zeros(side + side % 2, side + side % 2, states.shape[1])
        even[:side, :side] = states.reshape(side, side, -1)
        x = torch.stack([torch.cat([even[y, x], even[y, x + 1], even[y + 1, x], even[y + 1, x + 1]])
                         for y in range(0, len(even), 2) for x in range(0, len(even), 2)])
        f, w = torch.nn.functional, self.state
        x = f.layer_norm(x, x.shape[1:], w["layers.1.weight"], w["layers.1.bias"])
        x = f.linear(f.gelu(f.linear(x, w["layers.2.weight"], w["layers.2.bias"])), w["layers.4.weight"], w["layers.4.bias"])
        assert len(x) == ROWS
        return x

    def __call__(self, input_ids, image_token, seen):
        """seen: rows of all pictures, for the places of the image token, which has no embedding."""
        place = input_ids[0] == image_token
        x = self.decoder.get_input_embeddings()(self.torch.where(place, 0, input_ids[0]))[None].clone()
        x[0, place] = seen
        return self.decoder(inputs_embeds=x, use_cache=False)
