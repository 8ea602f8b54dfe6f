#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What models that see say, by transformers in float32, from pixels to log probabilities: vision_answers.json.

How the committed file was made (torch, transformers and Pillow of the versions that it names):

    python tests/model/make_vision_goldens.py [KIND...]
"""
import json
import os
import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

import numpy as np
import PIL
import safetensors.numpy
import torch
import transformers
from PIL import Image
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.donut.image_processing_pil_donut import DonutImageProcessorPil
from transformers.models.fuyu.image_processing_pil_fuyu import FuyuImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil, get_optimal_tiled_canvas
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil, get_aspect_ratio_preserving_size
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil, get_image_size_fit_to_canvas
from transformers.models.mllama.image_processing_pil_mllama import get_optimal_tiled_canvas as get_mllama_canvas
from transformers.models.mllama.processing_mllama import convert_sparse_cross_attention_mask_to_dense, get_cross_attention_token_mask
from transformers.models.nougat.image_processing_pil_nougat import NougatImageProcessorPil
from transformers.models.pix2struct.image_processing_pil_pix2struct import Pix2StructImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil, get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_all
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import blip2  # noqa: E402
import cogvlm  # noqa: E402
import donut  # noqa: E402
import fuyu  # noqa: E402
import gemma4_vision  # noqa: E402
import idefics3  # noqa: E402
import kosmos2  # noqa: E402
import mllama  # noqa: E402
import phi3_vision  # noqa: E402
import pix2struct  # noqa: E402
import pixtral  # noqa: E402
import qwen1_vl  # noqa: E402
import vila  # noqa: E402
import vision  # noqa: E402

N_NEW, TOP = 6, 5
MODELS = {"clip": (transformers.LlavaForConditionalGeneration, CLIPImageProcessorPil),
          "siglip": (transformers.LlavaForConditionalGeneration, SiglipImageProcessorPil),
          **dict.fromkeys(vision.PALIGEMMA, (transformers.PaliGemmaForConditionalGeneration, SiglipImageProcessorPil)),
          "gemma3": (transformers.Gemma3ForConditionalGeneration, Gemma3ImageProcessorPil),
          **dict.fromkeys(gemma4_vision.KINDS, (transformers.Gemma4ForConditionalGeneration, Gemma4ImageProcessorPil)),
          "llava_next": (transformers.LlavaNextForConditionalGeneration, LlavaNextImageProcessorPil),
          "llava_onevision": (transformers.LlavaOnevisionForConditionalGeneration, LlavaOnevisionImageProcessorPil),
          "internvl": (transformers.InternVLForConditionalGeneration, GotOcr2ImageProcessorPil),
          "smolvlm": (transformers.SmolVLMForConditionalGeneration, SmolVLMImageProcessorPil),
          "idefics3": (transformers.Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil),
          "idefics3_whole": (transformers.Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil),
          "pixtral": (transformers.LlavaForConditionalGeneration, PixtralImageProcessorPil),
          "mistral3": (transformers.Mistral3ForConditionalGeneration, PixtralImageProcessorPil),
          fuyu.KIND: (transformers.FuyuForCausalLM, FuyuImageProcessorPil),
          "qwen2_vl": (transformers.Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil),
          "qwen2_5_vl": (transformers.Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessorPil),
          "blip2": (transformers.Blip2ForConditionalGeneration, BlipImageProcessorPil),
          "mllama": (transformers.MllamaForConditionalGeneration, MllamaImageProcessorPil),
          "qwen3_vl": (transformers.Qwen3VLForConditionalGeneration, Qwen2VLImageProcessorPil),
          "qwen3_vl_moe": (transformers.Qwen3VLMoeForConditionalGeneration, Qwen2VLImageProcessorPil),
          "qwen3_5": (transformers.Qwen3_5ForConditionalGeneration, Qwen2VLImageProcessorPil),
          "qwen3_5_moe": (transformers.Qwen3_5MoeForConditionalGeneration, Qwen2VLImageProcessorPil)}


def tile_words(kind, rows, cols):
    """What the family's processor writes for a picture of so many tiles."""
    if kind == "smolvlm":
        return get_image_prompt_string(rows, cols, idefics3.ROWS[kind], idefics3.EDGE, idefics3.IMAGE, idefics3.WHOLE)
    words = SimpleNamespace(fake_image_token=idefics3.EDGE, global_image_tag=idefics3.WHOLE, image_token=idefics3.IMAGE,
                            image_seq_len=idefics3.ROWS[kind])
    return Idefics3Processor.replace_image_token(words, {"rows": [[rows]], "cols": [[cols]]}, 0)


def steps_in_order(p, processor):
    """The same of all sizes that a processor brings the picture to, one after the other."""
    plain, same = Image.Image.resize, []

    def resize(image, size, resample=None, *args, **kwargs):
        out = plain(image, size, resample, *args, **kwargs)
        same.append(plain(plain(image, (size[0], image.size[1]), resample), size, resample).tobytes() == out.tobytes())
        return out

    with mock.patch.object(Image.Image, "resize", resize):
        processor([Image.fromarray(p)])
    return all(same)


def same_order(p, kind):
    """Pillow takes rows first for this picture: then results are the same to the bit."""
    image, side = Image.fromarray(p), vision.SIZE.get(kind)
    short = min(image.size) if kind in ("clip", kosmos2.KIND) else None
    if kind in vision.qwen_vl.KINDS:
        factor = vision.qwen_vl.PATCH * vision.qwen_vl.MERGE
        bounds = {"min_pixels": vision.qwen_vl.MIN_PIXELS, "max_pixels": vision.qwen_vl.MAX_PIXELS}
        size = smart_resize(p.shape[0], p.shape[1], factor, **bounds)[::-1]
    elif kind in gemma4_vision.KINDS:
        x = gemma4_vision
        size = get_aspect_ratio_preserving_size(*p.shape[:2], x.PATCH, x.TOKENS * x.POOL**2, x.POOL)[::-1]
    elif kind == fuyu.KIND:
        by = min(1, fuyu.HEIGHT / p.shape[0], fuyu.WIDTH / p.shape[1])
        size = int(p.shape[1] * by), int(p.shape[0] * by)
    elif kind in pixtral.KINDS:
        side = pixtral.PATCH[kind] * pixtral.MERGE[kind]
        size = get_resize_output_image_size(p, pixtral.LONGEST, side, "channels_last")[::-1]
    else:
        size = tuple(side if short is None or s == short else int(side * s / short) for s in image.size)
    sizes = [size]
    if kind in vision.TILED:
        best = select_best_resolution(p.shape[:2], vision.PINPOINTS)
        sizes = [(side, side), get_patch_output_size(p, best, "channels_last")[::-1]]
    if kind == "mllama":
        canvas = get_mllama_canvas(*p.shape[:2], mllama.TILES, mllama.SIZE)
        sizes = [tuple(int(n) for n in get_image_size_fit_to_canvas(*p.shape[:2], *canvas, mllama.SIZE)[::-1])]
    if kind == "internvl":
        wide, tall = get_optimal_tiled_canvas(p.shape[:2], (side, side), 1, vision.MAX_TILES)
        sizes = [(side, side), (wide * side, tall * side)]
    how = 3 if kind in (qwen1_vl.KIND, kosmos2.KIND, *cogvlm.KINDS) else vision.PROCESSORS[kind]["resample"]
    return all(image.resize((size[0], image.size[1]), how).resize(size, how).tobytes() == image.resize(size, how).tobytes()
               for size in sizes)


def encode(kind, tokenizer, text, rows):
    """The prompt with as many of the image token as a picture has rows, or with its lines; Gemma3Processor writes more around
    them."""
    if kind == "gemma3":
        text = text.replace(vision.BEGIN, f"\n\n{vision.BEGIN}{vision.IMAGE[kind]}{vision.END}\n\n")
    pieces = text.split(vision.IMAGE[kind])
    assert len(pieces) == len(rows) + 1
    words = [n if isinstance(n, str) else vision.IMAGE[kind] * n for n in rows]
    whole = "".join(piece + word for piece, word in zip(pieces, words + [""]))
    return tokenizer.encode(whole, add_special_tokens=False)


class PublishedMllama:
    """transformers 5 differs from the publishers' code in two things, in which this is as they are: states in the middle of the tower are
    those in front of a layer, not behind it; and what layers that read pictures attend to is nothing for tokens before the picture, as
    what their MLPs make of it is. For a prompt that begins with its picture there is no such token."""

    def __init__(self, model):
        self.rows, self.model = None, model
        tower = model.model.vision_model
        tower.intermediate_layers_indices = [i - 1 for i in tower.intermediate_layers_indices]
        for layer in model.model.language_model.layers:
            if hasattr(layer, "cross_attn"):
                layer.cross_attn.register_forward_hook(self.leave_out)

    def leave_out(self, _module, _inputs, output):
        return (output[0] * self.rows, *output[1:]) if self.rows is not None else output

    def __call__(self, input_ids, image_token, num_tiles, **more):
        ids = input_ids[0].tolist()
        mask = convert_sparse_cross_attention_mask_to_dense([get_cross_attention_token_mask(ids, image_token)], [num_tiles], mllama.TILES, len(ids))
        seen = torch.tensor(mask)
        self.rows = seen.amax(dim=(2, 3))[..., None].float()
        out = self.model(input_ids=input_ids, cross_attention_mask=seen, **more)
        if ids[0] == image_token:
            self.rows = None
            assert torch.equal(out.logits, self.model(input_ids=input_ids, cross_attention_mask=seen, **more).logits)
        return out


def answer(kind, model, tokenizer, processor, image_token, talk):
    content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} for p in talk]
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
    pictures = [vision.pixels(*vision.PICTURES[p]) for p in talk if isinstance(p, int)]
    assert all(steps_in_order(p, processor) if kind in idefics3.KINDS else same_order(p, kind) for p in pictures)
    images = [Image.fromarray(p) for p in pictures]
    more = {"patch_size": pixtral.PATCH[kind] * pixtral.MERGE[kind]} if kind in pixtral.KINDS else {}
    more |= {"return_row_col_info": True} if kind in idefics3.KINDS else {}
    more |= {"crop_to_patches": True} if kind == "internvl" else {}  # whatever the file says, as InternVLProcessor does
    made = processor([images] if kind == "llava_onevision" else images, **more)
    grids = made.get("image_grid_thw")
    if kind == "mllama":
        text = mllama.IMAGE + talk[1] if talk == mllama.FIRST else text
        more = {k: torch.tensor(np.asarray(made[k])) for k in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")}
        more |= {"image_token": image_token, "num_tiles": made["num_tiles"][0]}
        return choices(kind, model, tokenizer.encode(text, add_special_tokens=False), more, image_token)
    if kind in vision.TILED:
        more = {"pixel_values": torch.tensor(np.stack(made["pixel_values"])), "image_sizes": torch.tensor(made["image_sizes"])}
        if kind == "llava_onevision":
            more["batch_num_images"] = torch.tensor(made["batch_num_images"])
        strategy = {} if kind == "llava_onevision" else {"vision_feature_select_strategy": "default"}
        rows = [len(x) for x in model.get_image_features(**more, **strategy).pooler_output]
    elif kind in idefics3.KINDS:
        more = {k: torch.tensor(np.asarray(made[k])) for k in ("pixel_values", "pixel_attention_mask")}
        rows = [tile_words(kind, high, wide) for high, wide in zip(made["rows"][0], made["cols"][0])]
    elif kind in gemma4_vision.KINDS:
        more = {k: torch.tensor(np.asarray(made[k])) for k in ("pixel_values", "image_position_ids")}
        rows = [gemma4_vision.BEGIN + gemma4_vision.IMAGE * int(n) + gemma4_vision.END for n in made["num_soft_tokens_per_image"]]
        return choices(kind, model, encode(kind, tokenizer, text, rows), more, image_token, rows)
    elif kind == "internvl":
        more = {"pixel_values": torch.tensor(np.stack(made["pixel_values"]))}
        rows = ["<img>" + vision.IMAGE[kind] * (16 * int(n)) + "</img>" for n in made["num_patches"]]
    elif kind in pixtral.KINDS:
        more = {"pixel_values": torch.tensor(np.stack(made["pixel_values"])), "image_sizes": torch.tensor(np.array(made["image_sizes"]))}
        rows = [pixtral.lines(kind, width, height) for height, width in made["image_sizes"]]
    elif kind == fuyu.KIND:
        sizes = [(x[0], y[0]) for x, y in zip(made["image_unpadded_heights"], made["image_unpadded_widths"])]
        seen = [image[0][:, :-(-h // fuyu.PATCH) * fuyu.PATCH, :-(-w // fuyu.PATCH) * fuyu.PATCH] for image, (h, w) in zip(made["images"], sizes)]
        more = {"pixel_values": torch.tensor(np.concatenate([processor.patchify_image(x) for x in seen])[None])}
        rows = [fuyu.lines(h, w) for h, w in sizes]
    elif grids is None:
        more, rows = {"pixel_values": torch.tensor(np.stack(made["pixel_values"]))}, [vision.ROWS[kind]] * len(pictures)
    else:
        more = {"pixel_values": torch.tensor(np.asarray(made["pixel_values"])), "image_grid_thw": torch.tensor(np.asarray(grids))}
        rows = [int(np.prod(grid)) // vision.qwen_vl.MERGE**2 for grid in grids]
    return choices(kind, model, encode(kind, tokenizer, text, rows), more, image_token, grids)


def cut_frames(kind, video):
    """pixel_values_videos and its grid: frames sized by Pillow, cut as the published processor cuts them."""
    (width, height), seeds, _ = video
    x = vision.qwen_vl
    size = x.VIDEO_PROCESSORS.get(kind, {"size": {"shortest_edge": x.MIN_PIXELS, "longest_edge": x.MAX_PIXELS}})["size"]
    bounds = {"factor": x.PATCH * x.MERGE, "min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    if x.KINDS.index(kind) < 2:
        tall, wide = smart_resize(height, width, **bounds)
    else:
        tall, wide = smart_resize_all(max(len(seeds), x.FRAMES), height, width, temporal_factor=x.FRAMES, **bounds)
    frames = [Image.fromarray(vision.pixels(width, height, seed)).resize((wide, tall), Image.Resampling.BICUBIC) for seed in seeds]
    values = (np.stack([np.asarray(f) for f in frames]) / 255 - x.PROCESSORS[kind]["image_mean"]) / x.PROCESSORS[kind]["image_std"]
    values = np.concatenate([values, values[-1:].repeat(-len(frames) % x.FRAMES, axis=0)]).transpose(0, 3, 1, 2)
    t, h, w = len(values) // x.FRAMES, tall // x.PATCH, wide // x.PATCH
    values = values.reshape(t, x.FRAMES, 3, h // x.MERGE, x.MERGE, x.PATCH, w // x.MERGE, x.MERGE, x.PATCH)
    values = values.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1)
    return torch.tensor(values, dtype=torch.float32), [t, h, w]


def places(kind, ids, image_grids, video_grids, seconds, tokens):
    """As the paper has them (and vLLM): what follows begins behind the largest place so far, also that of time. transformers 5 begins it behind
    the largest of height and width; until then the two are the same."""
    x, out, at, i = vision.qwen_vl, [], 0, 0
    images, videos = iter(image_grids), iter(zip(video_grids, seconds))
    while i < len(ids):
        if ids[i] not in tokens:
            out.append([at] * 3)
            at, i = at + 1, i + 1
            continue
        (t, h, w), step = (next(images), 0) if ids[i] == tokens[0] else next(videos)
        step = step * x.TOKENS_PER_SECOND if kind == "qwen2_5_vl" else 1
        h, w = h // x.MERGE, w // x.MERGE
        rows = [[at + int(k * step), at + r, at + c] for k in range(t) for r in range(h) for c in range(w)]
        out += rows
        at, i = max(map(max, rows)) + 1, i + len(rows)
    return torch.tensor(out).T[:, None]


def answer_frames(kind, model, tokenizer, processor, image_token, talk):
    """LLaVA-OneVision's: each frame a square."""
    content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} if isinstance(p, str) else {"type": "video"} for p in talk]
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
    side, half = vision.SIZE[kind], -(-(vision.SIZE[kind] // vision.PATCH[kind]) // 2)
    places, more, pictures = [], {}, [Image.fromarray(vision.pixels(*vision.PICTURES[p])) for p in talk if isinstance(p, int)]
    if pictures:
        made = processor([pictures])
        more = {"pixel_values": torch.tensor(np.stack(made["pixel_values"])), "image_sizes": torch.tensor(made["image_sizes"]),
                "batch_num_images": torch.tensor(made["batch_num_images"])}
        places = [vision.IMAGE[kind] * len(x) for x in model.get_image_features(**more).pooler_output]
    for rows in places:
        text = text.replace(vision.IMAGE[kind], rows.replace(vision.IMAGE[kind], "<row>"), 1)
    text = text.replace("<row>", vision.IMAGE[kind])
    videos = []
    for (width, height), seeds, _ in [p for p in talk if isinstance(p, tuple)]:
        frames = [Image.fromarray(vision.pixels(width, height, seed)).resize((side, side), Image.Resampling.BICUBIC) for seed in seeds]
        values = (np.stack([np.asarray(f) for f in frames]) / 255 - 0.5) / 0.5
        videos.append(torch.tensor(values.transpose(0, 3, 1, 2), dtype=torch.float32)[None])
        text = text.replace("<video>", "<row>" * (len(seeds) * half**2 + 1), 1)
    ids, out = tokenizer.encode(text.replace("<row>", "<video>"), add_special_tokens=False), []
    # one video a call: the published code takes videos of one length
    token, n_prompt = tokenizer.convert_tokens_to_ids("<video>"), len(ids)
    features = torch.cat([model.get_video_features(v).pooler_output[0] for v in videos])
    for _ in range(N_NEW):
        embeds = model.get_input_embeddings()(torch.tensor([ids]))
        if pictures:
            seen = torch.cat(list(model.get_image_features(**more).pooler_output))
            embeds[0, torch.tensor([i == image_token for i in ids])] = seen
        embeds[0, torch.tensor([i == token for i in ids])] = features
        best = model(inputs_embeds=embeds, use_cache=False).logits[0, -1].double().log_softmax(0).topk(TOP)
        out.append([[int(t), round(float(v), 6)] for t, v in zip(best.indices, best.values)])
        ids.append(int(best.indices[0]))
    return {"n_prompt": n_prompt, "top": out}


def answer_video(kind, model, tokenizer, processor, image_token, talk):
    x = vision.qwen_vl
    content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} if isinstance(p, str) else {"type": "video"} for p in talk]
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
    videos = [p for p in talk if isinstance(p, tuple)]
    cut = [cut_frames(kind, video) for video in videos]
    video_grids, image_grids, more = [grid for _, grid in cut], [], {}
    images = [Image.fromarray(vision.pixels(*vision.PICTURES[p])) for p in talk if isinstance(p, int)]
    if images:
        made = processor(images)
        image_grids = np.asarray(made["image_grid_thw"]).tolist()
        more = {"pixel_values": torch.tensor(np.asarray(made["pixel_values"])), "image_grid_thw": torch.tensor(image_grids)}
    more |= {"pixel_values_videos": torch.cat([values for values, _ in cut]), "video_grid_thw": torch.tensor(video_grids)}
    seconds = [x.FRAMES / (video[2] or 2) for video in videos]
    tokens = [image_token, tokenizer.convert_tokens_to_ids("<|video_pad|>")]
    apart = x.KINDS.index(kind) > 1
    place = "<|vision_start|><|video_pad|><|vision_end|>"
    for (t, _, _), (_, seeds, fps) in zip(video_grids, videos) if apart else []:
        n = len(seeds)
        times = [(k * x.FRAMES + min((k + 1) * x.FRAMES, n) - 1) / (fps or 2) / 2 for k in range(t)]
        text = text.replace(place, "".join(f"<{at:.1f} seconds>" + place.replace("video", "group") for at in times), 1)
    text = text.replace("group_pad", "video_pad")
    ids = []
    groups = [[1, h, w] for t, h, w in video_grids for _ in range(t)] if apart else video_grids
    rows = [iter([int(np.prod(g)) // x.MERGE**2 for g in grids]) for grids in (image_grids, groups)]
    for i in tokenizer.encode(text, add_special_tokens=False):
        ids += [i] * next(rows[tokens.index(i)]) if i in tokens else [i]
    out, n_prompt = [], len(ids)
    for _ in range(N_NEW):
        types = torch.tensor([[1 + tokens.index(i) if i in tokens else 0 for i in ids]])
        if not apart:
            more["position_ids"] = places(kind, ids, image_grids, video_grids, seconds, tokens)
        logits = model(input_ids=torch.tensor([ids]), use_cache=False, mm_token_type_ids=types, **more).logits[0, -1].double()
        best = logits.log_softmax(0).topk(TOP)
        out.append([[int(t), round(float(v), 6)] for t, v in zip(best.indices, best.values)])
        ids.append(int(best.indices[0]))
    return {"n_prompt": n_prompt, "top": out}


def choices(kind, model, ids, more, image_token, grids=None):
    out = []
    n_prompt = len(ids)
    for _ in range(N_NEW):
        types = torch.tensor([[int(i >= n_prompt if kind in vision.PALIGEMMA else t == image_token) for i, t in enumerate(ids)]])
        types = {"token_type_ids": types} if kind in ("gemma3", *vision.PALIGEMMA) else {"mm_token_type_ids": types} if grids is not None else {}
        cache = {} if kind in (phi3_vision.KIND, qwen1_vl.KIND, kosmos2.KIND, *cogvlm.KINDS) or kind in vila.KINDS else {"use_cache": False}
        logits = model(input_ids=torch.tensor([ids]), **cache, **more, **types).logits[0, -1].double()
        best = logits.log_softmax(0).topk(TOP)
        out.append([[int(t), round(float(v), 6)] for t, v in zip(best.indices, best.values)])
        ids.append(int(best.indices[0]))
    return {"n_prompt": n_prompt, "top": out}


def answers_phi3(folder):
    tensors = safetensors.numpy.load_file(os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    text = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "vision_config", "embd_layer", "img_processor")}
    text["rope_scaling"] = {**text["rope_scaling"], "type": "longrope"}
    model = phi3_vision.Reference(tensors, text)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for talk in vision.talks(phi3_vision.KIND):
        rows = [model.rows(Image.fromarray(vision.pixels(*vision.PICTURES[p]))) for p in talk if isinstance(p, int)]
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": phi3_vision.text_of(talk)}], tokenize=False,
                                               add_generation_prompt=True)
        ids = phi3_vision.encode(tokenizer, prompt, config["image_token_id"], [len(r) for r in rows])
        more = {"image_token": config["image_token_id"], "seen": torch.cat(rows)}
        yield choices(phi3_vision.KIND, model, ids, more, config["image_token_id"])


def answers_vila(folder, kind):
    model = vila.Reference(folder, kind, CLIPImageProcessorPil if vila.KINDS[kind] == "clip" else SiglipImageProcessorPil)
    for talk in vision.talks(kind):
        images = [Image.fromarray(vision.pixels(*vision.PICTURES[p])) for p in talk if isinstance(p, int)]
        if vila.ASPECT[kind] == "resize":
            assert all(same_order(np.asarray(image), "siglip") for image in images)
        content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} for p in talk]
        text = model.tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
        ids = model.tokenizer.encode(text.replace(vila.IMAGE, vila.IMAGE * vila.ROWS), add_special_tokens=False)
        more = {"image_token": model.image_token, "seen": torch.cat([model.rows(image) for image in images])}
        yield choices(kind, model, ids, more, model.image_token)


def answers_own(kind, model, image, rows):
    """Of references that have all of the model. image: the word of a picture's place; rows: what a processor puts there."""
    for talk in vision.talks(kind):
        images = [Image.fromarray(vision.pixels(*vision.PICTURES[p])) for p in talk if isinstance(p, int)]
        assert all(same_order(np.asarray(x), kind) for x in images)
        content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} for p in talk]
        text = model.tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
        ids = model.tokenizer.encode(text.replace(image, rows), add_special_tokens=False)
        more = {"image_token": model.image_token, "seen": torch.cat([model.rows(x) for x in images])}
        yield choices(kind, model, ids, more, model.image_token)


def answers_t5(folder):
    model, info = transformers.Blip2ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                             output_loading_info=True)
    assert not any(info.values()), info
    model.eval()
    processor = BlipImageProcessorPil.from_pretrained(folder)
    for pictures, words in blip2.T5_TALKS:
        images = [Image.fromarray(vision.pixels(*vision.PICTURES[p])) for p in pictures]
        assert all(same_order(np.asarray(image), "blip2") for image in images)
        ids, text, top = blip2.t5_prompt(pictures, words), [0], []
        if pictures:  # its forward takes one picture a text: rows are put in one after the other
            rows = torch.cat([model.get_image_features(torch.tensor(np.stack(processor([i])["pixel_values"]))).pooler_output[0] for i in images])
        x = model.get_input_embeddings()(torch.tensor([ids])).clone()
        if pictures:
            x[0, torch.tensor(ids) == blip2.T5_IMAGE] = rows
        for _ in range(N_NEW):
            logits = model.language_model(inputs_embeds=x, decoder_input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].double()
            best = logits.log_softmax(0).topk(TOP)
            top.append([[int(t), round(float(v), 6)] for t, v in zip(best.indices, best.values)])
            text.append(int(best.indices[0]))
        yield {"n_prompt": len(ids), "top": top}


def answers_pix2struct(folder):
    model, info = transformers.Pix2StructForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                                  output_loading_info=True)
    assert not any(info.values()), info
    model.eval()
    processor = Pix2StructImageProcessorPil.from_pretrained(folder)
    for picture in vision.PICTURES:
        seen = processor([Image.fromarray(vision.pixels(*picture))], return_tensors="pt")
        text, top = [0], []
        for _ in range(N_NEW):
            logits = model(**seen, decoder_input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].double()
            best = logits.log_softmax(0).topk(TOP)
            top.append([[int(t), round(float(v), 6)] for t, v in zip(best.indices, best.values)])
            text.append(int(best.indices[0]))
        yield {"n_prompt": int(seen["attention_mask"].sum()), "top": top}


def answers_pages(folder, kind):
    """Of each picture, or null where Pillow takes columns first."""
    model, info = transformers.VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                         output_loading_info=True)
    assert not any(v for k, v in info.items() if k != "missing_keys"), info
    assert all(k.endswith("relative_position_index") for k in info["missing_keys"]), info  # numbers that follow from the window
    for module in model.modules():
        if hasattr(module, "create_relative_position_index"):
            module.relative_position_index.copy_(module.create_relative_position_index())
    model.eval()
    processor = (DonutImageProcessorPil if kind == "donut" else NougatImageProcessorPil).from_pretrained(folder)
    for picture in vision.PICTURES:
        p = vision.pixels(*picture)
        if not steps_in_order(p, processor):
            yield None
            continue
        seen = {"pixel_values": torch.tensor(np.stack(processor([Image.fromarray(p)])["pixel_values"]))}
        text, top = [0], []
        for _ in range(N_NEW):
            logits = model(**seen, decoder_input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].double()
            best = logits.log_softmax(0).topk(TOP)
            top.append([[int(t), round(float(v), 6)] for t, v in zip(best.indices, best.values)])
            text.append(int(best.indices[0]))
        yield {"n_prompt": donut.ROWS, "top": top}


def answers(kind):
    kind, of_videos = kind.removesuffix("_video"), kind.endswith("_video")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        vision.write_folder(folder, kind)
        if kind in donut.KINDS:
            return list(answers_pages(folder, kind))
        if kind == pix2struct.KIND:
            return list(answers_pix2struct(folder))
        if kind == "blip2_t5":
            return list(answers_t5(folder))
        if kind == phi3_vision.KIND:
            return list(answers_phi3(folder))
        if kind == qwen1_vl.KIND:
            return list(answers_own(kind, qwen1_vl.Reference(folder), qwen1_vl.IMAGE, qwen1_vl.IMAGE * qwen1_vl.QUERIES))
        if kind == kosmos2.KIND:
            x = kosmos2
            return list(answers_own(kind, x.Reference(folder, CLIPImageProcessorPil), x.START, x.START + x.ROW * x.QUERIES + x.END))
        if kind in cogvlm.KINDS:
            return list(answers_own(kind, cogvlm.Reference(folder, kind), cogvlm.IMAGE, cogvlm.IMAGE * cogvlm.n_rows(kind)))
        if kind in vila.KINDS:
            return list(answers_vila(folder, kind))
        model_class, processor_class = MODELS[kind]
        model, info = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True,
                                                  **({"experts_implementation": "eager"} if kind.endswith("moe") else {}))
        wrong = {k: v for k, v in info.items() if v and not all("post_layernorm" in str(x) for x in v)}
        if wrong:
            raise RuntimeError(str(wrong))
        model.eval()
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        processor = processor_class.from_pretrained(folder)
        if kind == "mllama":
            model = PublishedMllama(model)
        if of_videos:
            return [(answer_frames if kind in vision.TILED else answer_video)(kind, model, tokenizer, processor, vision.image_token(folder), talk) for talk in vision.VIDEO_TALKS]
        return [answer(kind, model, tokenizer, processor, vision.image_token(folder), talk)
                for talk in vision.talks(kind) + ([mllama.FIRST] if kind == "mllama" else [])]


def main():
    path = os.path.join(HERE, "vision_answers.json")
    made_by = f"torch {torch.__version__}, transformers {transformers.__version__}, Pillow {PIL.__version__}"
    kinds, old = sys.argv[1:] or (*vision.KINDS, "blip2_t5", pix2struct.KIND, *donut.KINDS, *(f"{kind}_video" for kind in vision.VIDEO_KINDS)), {}
    if sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            old = json.load(f)
        assert old["made_by"] == made_by, old["made_by"]
    out = {"made_by": made_by, "talks": {**old.get("talks", {}), **{kind: answers(kind) for kind in kinds}}}
    assert np.isfinite([v for talks in out["talks"].values() for t in talks if t for row in t["top"] for _, v in row]).all()
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main()
