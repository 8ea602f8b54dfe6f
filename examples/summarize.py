#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers to the texts of a data set beside its references: ROUGE, perplexity and speed, with the options and lines of
the published summarize.py. The data set is a local file; the module `nereid` and `nereid eval` do the work."""
import collections
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "scripts"))
import common_options  # noqa: E402
import nereid_programs  # noqa: E402
import rouge  # noqa: E402
from common_options import log  # noqa: E402

# {task: (folder of the published data set, key of the text, key of the reference, part)}
TASKS = {"summarize": ("ccdv/cnn_dailymail", "article", "highlights", "test"),
         "summarize_long": ("tau/zero_scrolls", "input", "output", "validation"),
         "code_completion": ("openai_humaneval", "prompt", "canonical_solution", "test"),
         "eval_context_ppl": ("SlimPajama-6B", "text", "text", "test")}
FORMATS = (".jsonl", ".json", ".csv")
QWEN2_SYSTEM = ("You are a helpful assistant, please summarize the article entered by the user with one or two "
                "sentences.")
RULE = "-" * 57
Run = collections.namedtuple("Run", "name beam_name what file given model")  # what is asked, and how lines call it


def arguments():
    p = common_options.Options("Compares answers of an engine, or of a checkpoint, with the references of a data set.")
    common_options.hf_options(p)
    p.option("eval_task", choices=tuple(TASKS), default="summarize")
    p.option("dataset_path", help="JSON lines, a JSON list or CSV with the task's keys")
    p.option("dataset_dir", help="folder with such a file: test.jsonl, or the data set's name and then test.jsonl")
    p.option("output_dir", help="gets the answers: trtllm.out, hf.out")
    for name, default in (("batch_size", 1), ("output_len", 100), ("max_input_length", 923), ("min_input_length", 0)):
        p.option(name, type=int, default=default)
    for name in ("tensorrt_llm_rouge1_threshold", "tensorrt_llm_ppl_threshold"):
        p.option(name, type=float, default=15.0)
    for name in ("eval_ppl", "estimate_accuracy_std_dev", "no_add_special_tokens"):
        p.option(name, action="store_true")
    p.no_effect({"rouge_dir": 1, "dataset_cache_dir": 1})
    args = p.parse()
    if not (args.test_trt_llm or args.test_hf):
        p.error("nothing to do: --test_trt_llm, --test_hf or both")
    if args.test_hf and not args.hf_model_dir:
        p.error("--test_hf needs --hf_model_dir")
    if args.batch_size < 1 or args.max_ite < 1:
        p.error("--batch_size and --max_ite must be at least 1")
    if args.eval_task == "eval_context_ppl":
        args.output_len, args.eval_ppl = 1, True
    args.tokenizer_dir = args.tokenizer_dir or args.hf_model_dir
    return args


# ---- the data set ----


def dataset_file(args):
    if args.dataset_path:
        return args.dataset_path
    name, _, _, part = TASKS[args.eval_task]
    if args.dataset_dir is None:
        raise ValueError("nothing is downloaded: --dataset_path names a file with the keys "
                         f"'{TASKS[args.eval_task][1]}' and '{TASKS[args.eval_task][2]}' in each line of JSON")
    tried = [os.path.join(args.dataset_dir, folder, part + ending) for folder in (name, "") for ending in FORMATS]
    for path in tried:
        if os.path.exists(path):
            return path
    raise ValueError("there is none of " + ", ".join(f"'{path}'" for path in tried))


def read_dataset(path, keys, n):
    """The first n pairs (text, reference)."""
    with open(path, encoding="utf-8", newline="") as f:
        if path.endswith(".csv"):
            rows = list(csv.DictReader(f))
        elif path.endswith(".json"):
            rows = json.load(f)
        else:
            rows = [json.loads(line) for line in f if line.strip()]
    out = []
    for i, row in enumerate(rows[:n]):
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys):
            raise ValueError(f"{path}: entry {i + 1} has no texts '{keys[0]}' and '{keys[1]}'")
        out.append(tuple(row[key] for key in keys))
    if not out:
        raise ValueError(f"{path} has no entries")
    return out


# ---- prompts ----


def is_qwen2(folder):
    """Of an engine or checkpoint: the published program asks these by their chat template."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
    except (OSError, ValueError):
        return False
    config = config.get("pretrained_config", config)
    return "qwen2" in str(config.get("qwen_type", config.get("model_type", ""))).lower()


def prompt_ids(args, tokenizer, text, chat):
    text = (text + (" TL;DR: " if args.eval_task == "summarize" else "")).strip().replace(" n't", "n't")
    if chat and tokenizer.has_chat_template:
        text = tokenizer.apply_chat_template([{"role": "system", "content": QWEN2_SYSTEM}, {"role": "user", "content": text}])
    return tokenizer.encode(text, add_special_tokens=not args.no_add_special_tokens)[:args.max_input_length]


# ---- answers and what they are worth ----


class Results:
    """Of one model: answers, their scores, and the sequences whose perplexity is wanted; each [beam][text]."""

    def __init__(self, n_beams):
        self.seconds, self.n_tokens = 0.0, 0
        self.scores, self.sequences = [[] for _ in range(n_beams)], [[] for _ in range(n_beams)]
        self.lines = []

    def add(self, number, output, reference):
        for beam, answer in enumerate(output.outputs):
            self.n_tokens += len(answer.token_ids)
            self.scores[beam].append(rouge.scores(reference, answer.text))
            self.sequences[beam].append(output.prompt_token_ids + answer.token_ids)
            self.lines.append(f"[{number}] [Beam {beam}] {answer.text}\n")


def answer_all(args, nereid, run, pairs):
    """Results of all texts, batch_size at a time."""
    start = time.monotonic()
    with common_options.open_llm(nereid, args, run.model) as llm:
        log(f"Load {run.what} takes: {time.monotonic() - start} sec")
        chat, results, shown = is_qwen2(run.model), Results(args.num_beams), False
        for at in range(0, len(pairs), args.batch_size):
            batch = [(i, prompt_ids(args, llm.tokenizer, pairs[i][0], chat))
                     for i in range(at, min(at + args.batch_size, len(pairs)))]
            batch = [(i, ids) for i, ids in batch if len(ids) > args.min_input_length]
            if not batch:
                continue
            params = common_options.sampling(nereid, args, len(batch), args.output_len)
            if not shown:  # one that does not count, as in the published program
                show(run.beam_name, pairs[batch[0][0]], llm.generate([batch[0][1]], params[:1])[0])
                shown = True
            start = time.monotonic()
            outputs = llm.generate([ids for _, ids in batch], params)
            results.seconds += time.monotonic() - start
            for (i, _), output in zip(batch, outputs):
                results.add(i, output, pairs[i][1])
    if not shown:
        raise ValueError(f"no text has more tokens than --min_input_length {args.min_input_length}")
    return results


def show(name, pair, output):
    for line in (RULE, f"{name} Generated: ", f" Input: {[pair[0]]}", f"\n Reference: {[pair[1]]}",
                 f"\n Output: {[[answer.text for answer in output.outputs]]}", RULE):
        log(line)


def perplexities(args, model, sequences):
    """Of each list of ids: exp of the mean negative log probability of those after the first."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told = os.path.join(folder, "tokens"), os.path.join(folder, "scores")
        with open(asked, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"id": i, "tokens": ids}) + "\n" for i, ids in enumerate(sequences))
        words = [nereid_programs.need("nereid"), "eval", model, "--tokens", asked, "--out", told]
        words += ["--lora-dir", args.lora_dir] if args.lora_dir else []
        subprocess.run(words, check=True, stdout=sys.stderr)
        with open(told, encoding="utf-8") as f:
            rows = [json.loads(line)["logprobs"][1:] for line in f]
    return [math.exp(-sum(row) / len(row)) if row else math.nan for row in rows]


def report(args, run, results):
    """The lines of the published program. -> what --check_accuracy looks at: (rouge1 or None, perplexity or None)"""
    log(f"{run.name} (total latency: {results.seconds} sec)")
    log(f"{run.name} (total output tokens: {results.n_tokens})")
    log(f"{run.name} (tokens per second: {results.n_tokens / results.seconds})")
    checked = [None, None]
    for beam, (scores, sequences) in enumerate(zip(results.scores, results.sequences)):
        log(f"{run.beam_name} beam {beam} result")
        for key in rouge.NAMES if args.eval_task != "eval_context_ppl" else ():
            values = [100 * s[key] for s in scores]
            mean = statistics.fmean(values)
            log(f"  {key}: {mean}" + (f" ({statistics.pstdev(values)})" if args.estimate_accuracy_std_dev else ""))
            if beam == 0 and key == "rouge1":
                checked[0] = mean
        if args.eval_ppl:
            mean = statistics.fmean(perplexities(args, run.model, sequences))
            log(f"  Per-token perplexity: {mean}")
            if beam == 0:
                checked[1] = mean
    return checked


def write_answers(args, run, lines):
    os.makedirs(args.output_dir, exist_ok=True)
    with open(os.path.join(args.output_dir, run.file), "w", encoding="utf-8") as f:
        f.write(f"{'Engine' if run.what == 'engine' else 'Model'} path: {run.given}\nTokenizer path: {args.tokenizer_dir}\n")
        f.writelines(lines)


def check(args, rouge1, perplexity):
    limit = args.tensorrt_llm_rouge1_threshold
    if rouge1 is not None and rouge1 <= limit:
        sys.exit(f"[FAILED] rouge1 ({rouge1}) is smaller than threshold ({limit}).")
    limit = args.tensorrt_llm_ppl_threshold
    if perplexity is not None and perplexity >= limit:
        sys.exit(f"[FAILED] average PPL ({perplexity}) is larger than threshold ({limit}).")


def main():
    args = arguments()
    nereid = nereid_programs.module()
    try:
        _, text, reference, _ = TASKS[args.eval_task]
        pairs = read_dataset(dataset_file(args), (text, reference), args.batch_size * args.max_ite)
        with tempfile.TemporaryDirectory() as folder:
            runs = []
            if args.test_trt_llm:
                runs.append(Run("TensorRT-LLM", "TensorRT-LLM", "engine", "trtllm.out", args.engine_dir, args.engine_dir))
            if args.test_hf:
                runs.append(Run("Hugging Face", "HF", "HF model", "hf.out", args.hf_model_dir,
                                common_options.hf_engine(args, folder)))
            # all answers first, then all results, as in the published program
            for run, results in [(run, answer_all(args, nereid, run, pairs)) for run in runs]:
                if args.output_dir:
                    write_answers(args, run, results.lines)
                found = report(args, run, results)
                if args.check_accuracy and run.what == "engine":
                    check(args, *found)
    except (nereid.Error, OSError, ValueError, subprocess.CalledProcessError) as e:
        sys.exit(f"summarize.py: {e}")


if __name__ == "__main__":
    main()
