# SPDX-License-Identifier: Apache-2.0
"""Options that run.py, summarize.py and mmlu.py share, with the names of the published programs, and what the module
`nereid` gets of them. scripts/ is on the path of modules."""
import argparse
import ast
import json
import os
import subprocess
import sys
import time

import nereid_programs

# Taken, and said once on the standard error: what they choose is chosen elsewhere, or always so.
# Values: 0 a switch, 1 an option with a value, "?" with or without one.
NO_EFFECT = {"tokenizer_type": 1, "log_level": 1, "use_py_session": 0, "debug_mode": 0, "no_prompt_template": 0,
             "multi_block_mode": "?", "enable_context_fmha_fp32_acc": "?", "cuda_graph_mode": "?", "gpu_weights_percent": 1,
             "lora_ckpt_source": 1, "enable_chunked_context": 0, "kv_cache_enable_block_reuse": 0, "cross_kv_cache_fraction": 1,
             "return_all_generated_tokens": 0, "fail_fast_on_attention_window_too_large": 0}
MEDUSA, LOOKAHEAD, REDRAFTER, EAGLE = 5, 6, 7, 8  # numbers of decoding_mode


def program():
    return os.path.basename(sys.argv[0])


class Options(argparse.ArgumentParser):
    """Long options with underscores and with hyphens; parse() says what has no effect and refuses what is missing."""

    def __init__(self, description):
        super().__init__(description=description, allow_abbrev=False)
        self._no_effect, self._refused = [], []
        self._add_common()

    def option(self, name, *others, **more):
        hyphens = ["--" + n.replace("_", "-") for n in (name, *others) if "_" in n]
        self.add_argument(*("--" + n for n in (name, *others)), *hyphens, dest=name, **more)

    def no_effect(self, names):
        for name, n in names.items():
            self._no_effect.append(name)
            self.option(name, **({"action": "store_true"} if n == 0 else {"nargs": "?", "const": True} if n == "?" else {}))

    def refused(self, names):
        for name in names:
            self._refused.append(name)
            self.option(name, nargs="?", const=True)

    def parse(self):
        args = self.parse_args()
        for name in self._refused:
            if getattr(args, name) is not None:
                self.error(f"--{name} is not supported")
        for name in self._no_effect:
            if getattr(args, name) not in (None, False):
                print(f"{program()}: --{name} has no effect", file=sys.stderr)
        return args

    def _add_common(self):
        self.option("engine_dir", default="engine_outputs")
        self.option("tokenizer_dir")
        self.option("vocab_file", help="tokenizer.model or another file, where there is no --tokenizer_dir")
        self.add_argument("--no-kv_cache_enable_block_reuse", "--no-kv-cache-enable-block-reuse", action="store_true",
                          dest="no_block_reuse", help="every prompt is computed as a whole")
        self.option("lora_dir")
        self.option("lora_task_uids", nargs="+", help="for each input: -1 none, else the adapter of --lora_dir")
        for name, default in (("num_beams", 1), ("top_k", 1), ("random_seed", 0)):
            self.option(name, type=int, default=default)
        for name in ("no_repeat_ngram_size", "early_stopping", "end_id", "sink_token_length", "max_tokens_in_paged_kv_cache"):
            self.option(name, type=int)
        self.option("max_attention_window_size", type=int, nargs="+")
        for name, default in (("temperature", 1.0), ("top_p", 0.0), ("min_p", 0.0), ("length_penalty", 1.0), ("repetition_penalty", 1.0),
                              ("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("beam_search_diversity_rate", 0.0),
                              ("kv_cache_free_gpu_memory_fraction", None)):
            self.option(name, type=float, default=default)
        for name in ("stop_words", "bad_words"):
            self.option(name, nargs="+", action="append", help="of the first input; once more: of the next")
        self.option("medusa_choices", help="[[0], [1], [0, 0]]: of an engine with Medusa heads")
        self.option("eagle_choices", help="the same of an engine with EAGLE heads")
        self.option("eagle_use_dynamic_tree", action="store_true", help="the tree of EAGLE-2, as without eagle_choices")
        self.option("eagle_dynamic_tree_max_top_k", type=int)
        self.option("eagle_posterior_threshold", type=float, help="typical acceptance of drawn answers")
        self.option("lookahead_config", help="[7, 7, 7]: window, n-gram, verification set")
        self.option("prompt_lookup_config", "ngram_config", help="[10, 2, [0]]: drafted tokens, tokens that are compared, GPUs (not read)")
        self.option("draft_target_model_config", help="[4, [0], [0], False]: drafted tokens; GPUs and logits are not read")
        self.option("draft_engine_dir", help="the draft model of draft_target_model_config")
        self.no_effect(NO_EFFECT)


def hf_options(options):
    """Of the programs that compare an engine with the checkpoint it was made of."""
    options.option("hf_model_dir", "hf_model_location", help="the checkpoint, and its tokenizer where --tokenizer_dir is not given")
    options.option("hf_data_type", "data_type", choices=("fp32", "fp16", "bf16", "float32", "float16", "bfloat16"),
                   help="type in which --test_hf computes (that of the checkpoint)")
    options.option("test_trt_llm", action="store_true", help="the engine of --engine_dir")
    options.option("test_hf", action="store_true", help="the checkpoint of --hf_model_dir, run by Nereid")
    options.option("check_accuracy", action="store_true", help="a result past its threshold ends the program with status 1")
    options.option("max_ite", type=int, default=20)
    options.no_effect({"hf_device_map_auto": 0})
    options.refused(("num_return_sequences",))


def hf_engine(args, folder):
    """What --test_hf opens: the checkpoint itself, or an engine of --hf_data_type, which is built into `folder`."""
    if args.hf_data_type is None:
        return args.hf_model_dir
    dtype = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(args.hf_data_type, args.hf_data_type)
    words = ("build", args.hf_model_dir, "--dtype", dtype, "-o", folder, "--max_beam_width", str(args.num_beams))
    done = subprocess.run([nereid_programs.need("nereid"), *words], check=False, stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(1)  # it said why
    return folder


def numbers(name, text, n):
    """The first n whole numbers of a list."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = None
    if not isinstance(found, list) or len(found) < n or not all(isinstance(x, int) for x in found[:n]):
        raise ValueError(f"--{name} must be a list that begins with {n} whole number{'s' * (n > 1)}, got '{text}'")
    return found[:n]


def drafts(args):
    """How several tokens a step are guessed, as options of an executor."""
    if args.medusa_choices is not None:
        return {"decoding_mode": MEDUSA, "medusa_choices": args.medusa_choices}
    typical = {} if args.eagle_posterior_threshold is None else {"eagle_posterior_threshold": args.eagle_posterior_threshold}
    if args.eagle_choices is not None:
        return {"decoding_mode": EAGLE, "eagle_choices": args.eagle_choices, **typical}
    if args.eagle_use_dynamic_tree or args.eagle_dynamic_tree_max_top_k is not None or typical:
        return {"decoding_mode": EAGLE, "eagle_top_k": args.eagle_dynamic_tree_max_top_k, **typical}
    if args.lookahead_config is not None:
        window, ngram, verify = numbers("lookahead_config", args.lookahead_config, 3)
        return {"decoding_mode": LOOKAHEAD, "lookahead_window_size": window, "lookahead_ngram_size": ngram,
                "lookahead_verification_set_size": verify}
    if args.draft_target_model_config is not None:
        if args.draft_engine_dir is None:
            raise ValueError("--draft_target_model_config needs --draft_engine_dir")
        n, = numbers("draft_target_model_config", args.draft_target_model_config, 1)
        return {"speculative_config": json.dumps({"method": "draft_model", "model": args.draft_engine_dir, "num_speculative_tokens": n})}
    if args.prompt_lookup_config is not None:
        n, most = numbers("prompt_lookup_config", args.prompt_lookup_config, 2)
        return {"speculative_config": json.dumps({"method": "ngram", "num_speculative_tokens": n, "prompt_lookup_min": 1,
                                                  "prompt_lookup_max": most})}
    if os.path.isdir(os.path.join(args.engine_dir, "redrafter")):
        return {"decoding_mode": REDRAFTER}  # what the engine was built for
    return {}


def open_llm(nereid, args, model):
    """An engine, or what `nereid build` takes, with the options of the cache."""
    options = {"max_beam_width": args.num_beams, "enable_lora": args.lora_dir is not None or None,
               "kv_cache_free_mem_fraction": args.kv_cache_free_gpu_memory_fraction,
               "max_attention_window": args.max_attention_window_size, "sink_token_length": args.sink_token_length,
               "max_tokens_in_paged_kv_cache": args.max_tokens_in_paged_kv_cache,
               "enable_kv_cache_reuse": False if args.no_block_reuse else None, **drafts(args)}
    llm = nereid.LLM(model, tokenizer=args.tokenizer_dir or args.vocab_file, **{k: v for k, v in options.items() if v is not None})
    if llm.tokenizer is None:
        llm.close()
        raise ValueError(f"'{model}' has no tokenizer; --tokenizer_dir names one")
    if args.lora_dir:
        llm.load_lora(1, args.lora_dir)
    return llm


def sampling(nereid, args, n_prompts, max_tokens, logprobs=None):
    """SamplingParams of each prompt."""
    def of(lists, i):
        return lists[i] if lists and i < len(lists) else []

    common = {"max_tokens": max_tokens, "temperature": args.temperature, "top_k": args.top_k,
              "top_p": args.top_p or 1.0, "min_p": args.min_p, "repetition_penalty": args.repetition_penalty,
              "presence_penalty": args.presence_penalty, "frequency_penalty": args.frequency_penalty,
              "beam_width": args.num_beams, "length_penalty": args.length_penalty, "seed": args.random_seed,
              "n": getattr(args, "num_return_sequences", None) or 1, "early_stopping": args.early_stopping, "logprobs": logprobs,
              "beam_search_diversity_rate": args.beam_search_diversity_rate,
              "no_repeat_ngram_size": args.no_repeat_ngram_size or 0}
    if args.end_id is not None:
        common.update(ignore_eos=True, stop_token_ids=[args.end_id])
    uids = args.lora_task_uids or []
    return [nereid.SamplingParams(stop=of(args.stop_words, i), bad_words=of(args.bad_words, i),
                                  lora_id=int(args.lora_dir is not None and (i >= len(uids) or int(uids[i]) >= 0)), **common)
            for i in range(n_prompts)]


def log(text):
    """A line as the published programs' logger writes it."""
    print(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [TRT-LLM] [I] {text}", flush=True)
