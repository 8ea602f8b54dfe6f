#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A text with pictures to the ensemble of all_models/multimodal, or to tensorrt_llm_bls, over gRPC. Pictures go as files: the
server reads and scales them."""
import base64
import pathlib
import sys
import urllib.request

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from utils import llm_client as llm  # noqa: E402

IMAGE = "https://storage.googleapis.com/sfr-vision-language-research/LAVIS/assets/merlion.png"
SERVED = ("llava", "llava_next", "llava_onevision", "gemma3", "qwen2_vl", "pixtral", "blip2", "vila", "qwen_vl", "fuyu")
REFUSED = ("mllama",)


def parse():
    parser = llm.Parser(description=__doc__)
    llm.add_connection(parser, protocol=None)
    add = parser.add_argument
    add("--text", default="Question: which city is this? Answer:")
    add("--image", default=IMAGE, help="files, addresses or data: URLs; several with commas between")
    add("--video", help="a film instead of --image, with llava_onevision; read by PyAV (pip install av)")
    add("--video_num_frames", type=int, help="so many frames of --video, at even distances")
    add("--end-id", type=int, default=-1)
    add("--pad-id", type=int, default=1)
    add("-b", "--beam-width", type=int, default=1)
    add("--temperature", type=float, default=1.0)
    add("--repetition-penalty", type=float, default=1.0)
    add("--presence-penalty", type=float)
    add("--request-output-len", type=int, default=16)
    add("--top-k", type=int, default=1)
    add("--top-p", type=float, default=0.0)
    add("--streaming", action="store_true")
    add("--use_bls", action="store_true", help="tensorrt_llm_bls, not the ensemble")
    add("--prompt_table_extra_id", type=int, help="no effect: the server tells pictures apart by themselves")
    add("--model_type", required=True, choices=SERVED + REFUSED)
    add("--hf_model_dir", help="no effect: the server prepares pictures")
    flags = parser.parse_args()
    if flags.model_type in REFUSED:
        parser.error(f"--model_type {flags.model_type} is not supported by this server; known: {', '.join(SERVED)}")
    if flags.video and flags.model_type != "llava_onevision":
        parser.error("--video goes with --model_type llava_onevision")
    if flags.video and (flags.video_num_frames or 0) < 1:
        parser.error("--video needs --video_num_frames")
    for name in ("prompt_table_extra_id", "hf_model_dir"):
        if getattr(flags, name) is not None:
            print(f"client.py: --{name} has no effect", file=sys.stderr)
    return flags


def data_url(name):
    if name.startswith("data:"):
        return name
    if name.startswith(("http://", "https://")):
        with urllib.request.urlopen(name, timeout=60) as answer:
            data = answer.read()
    else:
        data = pathlib.Path(name).read_bytes()
    return "data:image/any;base64," + base64.b64encode(data).decode()  # what it is its first bytes say


def split(names):
    """At commas, but for the one inside of a data: URL."""
    out = []
    for word in names.split(","):
        if out and out[-1].startswith("data:") and "," not in out[-1]:
            out[-1] += "," + word
        else:
            out.append(word)
    return out


def prompt(flags, n_images):
    """The text in the form of the model's chats, where it does not say itself where pictures stand; LLaVA's is made by the server."""
    if flags.model_type != "qwen2_vl" or "<|image_pad|>" in flags.text:
        return flags.text
    images = "<|vision_start|><|image_pad|><|vision_end|>" * n_images
    return ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{images}{flags.text}<|im_end|>\n<|im_start|>assistant\n")


def frames_of(path, n):
    """[1, n, height, width, 3], the pixels of n frames at even distances; fewer of a film that has fewer."""
    try:
        import av
    except ImportError:
        sys.exit("client.py: --video needs PyAV to read a film (pip install av)")
    with av.open(path) as film:
        total = film.streams.video[0].frames or sum(1 for _ in film.decode(video=0))
    wanted = set(np.arange(0, total, max(total / n, 1)).astype(int).tolist())
    with av.open(path) as film:
        return np.stack([f.to_ndarray(format="rgb24") for i, f in enumerate(film.decode(video=0)) if i in wanted])[None]


def pictures(flags):
    """(tensors, how many pictures)"""
    if flags.video:
        return {"video_bytes_input": frames_of(flags.video, flags.video_num_frames)}, 0
    images = split(flags.image)
    return {"image_url_input": llm.strings([data_url(n) for n in images])}, len(images)


def inputs(flags):
    tensors, n_images = pictures(flags)
    return {"text_input": llm.strings([prompt(flags, n_images)]), **tensors,
            "max_tokens": llm.column(flags.request_output_len), "beam_width": llm.column(flags.beam_width),
            "temperature": llm.column(flags.temperature, np.float32),
            "end_id": llm.column(None if flags.end_id < 0 else flags.end_id), "pad_id": llm.column(flags.pad_id),
            "top_k": llm.column(flags.top_k), "top_p": llm.column(flags.top_p, np.float32),
            "stream": llm.column(flags.streaming, np.bool_),
            "repetition_penalty": llm.column(flags.repetition_penalty, np.float32),
            "presence_penalty": llm.column(flags.presence_penalty, np.float32)}


def beams(result):
    return [text.decode(errors="replace") for text in result.as_numpy("text_output").ravel()]


def main():
    flags = parse()
    try:
        client = llm.connect(flags.url, "grpc", flags.verbose)
        model = llm.Model(client, "grpc", "tensorrt_llm_bls" if flags.use_bls else "ensemble")
        tensors = model.tensors(inputs(flags))
        outputs = model.requested(["text_output"])
        start = llm.now()
        if flags.streaming:
            stream = llm.Stream(client)
            stream.send(model.name, tensors, outputs=outputs)
            for result in stream:
                for i, text in enumerate(beams(result) if result.get_response().outputs else []):
                    print("[beam", i, "]: ", text, flush=True)
            stream.close()
        else:
            for i, text in enumerate(beams(client.infer(model.name, tensors, outputs=outputs))):
                print("[beam", i, "]:")
                print(text)
        print(f"[INFO] Latency: {(llm.now() - start) * 1e3:.3f} ms")
    except Exception as e:  # of the client library, or a file that is missing
        llm.fail(e)


if __name__ == "__main__":
    main()
