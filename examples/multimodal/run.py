#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A question about a picture, with the options and lines of the published examples/multimodal/run.py: `nereid run --image`.

The engine keeps the vision tower of its model, so that of --visual_engine_dir is only looked for. Guides up to v0.17 name both
folders, later ones the folder above (--engine_dir)."""
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "scripts")]
import common_options  # noqa: E402
import nereid_programs  # noqa: E402

IMAGE = "https://storage.googleapis.com/sfr-vision-language-research/LAVIS/assets/merlion.png"
TEXT = "Question: which city is this? Answer:"
LINE = "---------------------------------------------------------"
# How a question is asked, by model_type of config.json; other models by their chat template.
PROMPTS = {"llava": "USER:\n<image>{} ASSISTANT:",
           "llava_llama": "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and "
                          "polite answers to the user's questions. USER: <image>{} ASSISTANT:",
           "llava_onevision": "<|im_start|>user <image>\n{}<|im_end|><|im_start|>assistant\n",
           "qwen2_vl": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
                       "<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n"}
NO_EFFECT = {"visual_engine_name": 1, "session": 1, "log_level": 1, "use_py_session": 0, "decoder_llm": 0, "debug_mode": 0,
             "multi_block_mode": "?", "enable_context_fmha_fp32_acc": "?", "enable_chunked_context": 0, "path_sep": 1,
             "prompt_sep": 1, "cross_kv_cache_fraction": 1, "profiling_iterations": 1}
REFUSED = ("video_path", "video_num_frames", "check_accuracy", "lora_task_uids", "blip2_encoder", "blip_encoder", "nougat")


class Options(common_options.Options):
    def _add_common(self):
        self.no_effect(NO_EFFECT)
        self.refused(REFUSED)


def arguments():
    p = Options(__doc__)
    p.option("max_new_tokens", type=int, default=128)
    p.option("hf_model_dir", required=True, help="the model's folder: its config.json and tokenizer")
    p.option("llm_engine_dir", help="the engine of `trtllm-build`")
    p.option("visual_engine_dir", help="the folder of build_visual_engine.py")
    p.option("engine_dir", help="a folder with llm and vision, in place of the two others")
    p.option("image_path", nargs="+", help="a file or an address")
    p.option("input_text", nargs="+", default=[TEXT], help="each text is a question of its own about the picture")
    p.option("batch_size", type=int, default=1, help="how often the picture is asked about, where there is one text")
    p.option("num_beams", type=int, default=1, help="the best of them is printed")
    p.option("top_k", type=int, default=1)
    p.option("top_p", type=float, default=0.0)
    p.option("temperature", type=float, default=1.0)
    p.option("repetition_penalty", type=float, default=1.0)
    p.option("kv_cache_free_gpu_memory_fraction", type=float)
    p.option("run_profiling", action="store_true", help="the time of each question too")
    args = p.parse()
    if args.engine_dir:
        args.llm_engine_dir = args.llm_engine_dir or os.path.join(args.engine_dir, "llm")
        args.visual_engine_dir = args.visual_engine_dir or os.path.join(args.engine_dir, "vision")
    if not args.llm_engine_dir:
        p.error("--llm_engine_dir or --engine_dir is needed")
    if args.visual_engine_dir and not os.path.isdir(args.visual_engine_dir):
        p.error(f"--visual_engine_dir: there is no folder '{args.visual_engine_dir}'")
    if args.image_path and len(args.image_path) > 1:
        p.error("--image_path: one picture; `nereid chat` and the server take several")
    if args.batch_size < 1 or (args.batch_size > 1 and len(args.input_text) > 1):
        p.error("--batch_size must be above 0, and 1 where --input_text has several texts")
    return args


def prompt_words(hf_model_dir, text):
    """The question as options of `nereid run`."""
    path = os.path.join(hf_model_dir, "config.json")
    try:
        with open(path, encoding="utf-8") as f:
            form = PROMPTS.get(json.load(f).get("model_type"))
    except (OSError, ValueError, AttributeError) as e:
        sys.exit(f"run.py: --hf_model_dir: {path}: {e}")
    return ["--chat", f"--prompt={text}"] if form is None else [f"--prompt={form.format(text)}"]


def picture(name, folder):
    """Its file; what an address holds is written into `folder`."""
    if not name.startswith(("http://", "https://")):
        return name
    path = os.path.join(folder, "picture")
    try:
        with urllib.request.urlopen(name, timeout=60) as answer, open(path, "wb") as f:
            f.write(answer.read())
    except OSError as e:
        sys.exit(f"run.py: {name}: {e} (--image_path names a picture of your own)")
    return path


def ask(args, image, text):
    """(answer, tokens, seconds)"""
    words = ["run", args.llm_engine_dir, f"--tokenizer_dir={args.hf_model_dir}", f"--image={image}", "--generation_config=none",
             f"--max_tokens={args.max_new_tokens}", f"--beam_width={args.num_beams}", f"--top_k={args.top_k}",
             f"--top_p={args.top_p or 1.0}", f"--temperature={args.temperature}", "--seed=0",
             f"--repetition_penalty={args.repetition_penalty}", *prompt_words(args.hf_model_dir, text)]
    if args.kv_cache_free_gpu_memory_fraction is not None:
        words.append(f"--kv_cache_free_gpu_mem_fraction={args.kv_cache_free_gpu_memory_fraction}")
    done = subprocess.run([nereid_programs.need("nereid"), *words], check=False, capture_output=True, text=True, errors="replace")
    rates = re.search(r"prompt: (\d+) tokens, ([\d.]+) tokens/s; decode: (\d+) tokens(?:, ([\d.]+) tokens/s)?", done.stderr)
    if done.returncode != 0 or not rates:
        sys.stderr.write(done.stderr)
        sys.exit(done.returncode or 1)
    n_prompt, prompt_rate, n_new, rate = (float(x or 0) for x in rates.groups())
    seconds = (n_prompt / prompt_rate if prompt_rate else 0) + ((n_new - 1) / rate if rate else 0)
    return done.stdout.strip(), int(n_new), seconds


def main():
    args = arguments()
    texts = args.input_text * args.batch_size
    with tempfile.TemporaryDirectory() as folder:
        image = picture(args.image_path[0] if args.image_path else IMAGE, folder)
        answers = [ask(args, image, text) for text in texts]
    common_options.log(LINE)
    common_options.log(f"\n[Q] {args.input_text}")
    for answer, _, _ in answers:
        common_options.log(f"\n[A]: {[answer]}")
    if args.num_beams == 1:
        common_options.log(f"Generated {answers[0][1]} tokens")
    if args.run_profiling:
        common_options.log("Latencies per batch (msec)")
        common_options.log(f"e2e generation: {1000 * sum(a[2] for a in answers):.1f}")
    common_options.log(LINE)


if __name__ == "__main__":
    main()
