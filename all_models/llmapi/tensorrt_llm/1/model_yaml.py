# SPDX-License-Identifier: Apache-2.0
"""model.yaml: what it may say, read without a library. Of YAML it has mappings, nested by their indentation, of numbers,
texts, true, false, null and lists in brackets; a line of anything else is refused."""
import re

# Name in model.yaml: name in nereid.LLM, which takes fields of the executor's configuration too.
MODEL = {"model": "model", "tokenizer": "tokenizer", "device": "device", "tensor_parallel_size": "tensor_parallel_size",
         "pipeline_parallel_size": "pipeline_parallel_size", "moe_expert_parallel_size": "moe_expert_parallel_size",
         "max_batch_size": "max_batch_size", "max_num_tokens": "max_num_tokens", "n_threads": "n_threads",
         "enable_chunked_prefill": "enable_chunked_context"}
KV_CACHE = {"free_gpu_memory_fraction": "kv_cache_free_mem_fraction", "max_tokens": "max_tokens_in_paged_kv_cache",
            "enable_block_reuse": "enable_kv_cache_reuse", "host_cache_size": "kv_cache_host_memory_bytes",
            "max_attention_window": "max_attention_window", "sink_token_length": "sink_token_length"}
# What the original's engine is told and this one finds out, or has not got two of.
NO_EFFECT = {"backend", "dtype", "trust_remote_code", "max_seq_len", "max_input_len", "cuda_graph_config", "attn_backend",
             "disable_overlap_scheduler", "print_iter_log", "enable_iter_perf_stats", "gpus_per_node", "build_config"}
TRITON = {"max_batch_size": 0, "decoupled": False, "cancellation_check_period_ms": 100}


class Bad(ValueError):
    """Something in the file: the message says where."""


def _scalar(text, where):
    if text.startswith("["):
        if not text.endswith("]"):
            raise Bad(f"{where}: a list must end on its line, got '{text}'")
        inside = text[1:-1].strip()
        return [_scalar(item.strip(), where) for item in inside.split(",")] if inside else []
    if text[:1] in "\"'" and text[:1]:
        if len(text) < 2 or text[-1] != text[0] or "\\" in text:
            raise Bad(f"{where}: expected a text between two quotes on one line, got {text}")
        return text[1:-1]
    if text[:1] in ("{", "|", ">", "&", "*", "!") and text[:1]:
        raise Bad(f"{where}: expected a number or a text, got '{text}'")
    if text in ("", "~", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parse(text, name="model.yaml"):
    """The mapping in a text."""
    whole = {}
    levels = [(0, whole)]  # (indentation, mapping), outermost first
    opened = None          # (mapping, key) of a line without a value: deeper lines are its mapping
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}, line {number}"
        bare = re.match(r"""(?:[^#"']|"[^"]*"|'[^']*'|(?<=\S)#)*""", line).group().rstrip()
        if not bare.strip() or bare.strip() == "---":
            continue
        if "\t" in bare[:len(bare) - len(bare.lstrip())]:
            raise Bad(f"{where}: indentation must be of blanks, got a tab")
        indent = len(bare) - len(bare.lstrip(" "))
        key, colon, value = bare.strip().partition(":")
        if not colon or (value and not value.startswith(" ")) or not re.fullmatch(r"[A-Za-z_]\w*", key):
            raise Bad(f"{where}: expected 'name: value', got '{bare.strip()}'")
        if indent > levels[-1][0] and opened:
            inner = {}
            opened[0][opened[1]] = inner
            levels.append((indent, inner))
        while indent < levels[-1][0]:
            levels.pop()
        if indent != levels[-1][0]:
            raise Bad(f"{where}: '{key}' has an indentation of {indent}, expected {levels[-1][0]}")
        mapping = levels[-1][1]
        if key in mapping:
            raise Bad(f"{where}: '{key}' stands there twice")
        mapping[key] = _scalar(value.strip(), where)
        opened = (mapping, key) if not value.strip() else None
    return whole


def _names(given, table, what, more=()):
    for key in given:
        if key not in table and key not in more:
            raise Bad(f"{what}: '{key}' is not known; expected one of {', '.join(sorted([*table, *more]))}")


def read(path):
    """(options of nereid.LLM, triton_config, names without effect) of a file."""
    try:
        with open(path, encoding="utf-8") as f:
            given = parse(f.read(), path)
    except (OSError, UnicodeDecodeError) as e:
        raise Bad(f"{path}: {e}") from None
    triton = given.pop("triton_config", None) or {}
    cache = given.pop("kv_cache_config", None) or {}
    for name, part in (("triton_config", triton), ("kv_cache_config", cache)):
        if not isinstance(part, dict):
            raise Bad(f"{path}: {name} must have its own lines, got '{part}'")
    _names(given, MODEL, path, NO_EFFECT)
    _names(cache, KV_CACHE, f"{path}: kv_cache_config")
    _names(triton, TRITON, f"{path}: triton_config")
    if not isinstance(given.get("model"), str) or not given["model"]:
        raise Bad(f"{path}: model must name a folder, a file or a model of the hub, got '{given.get('model')}'")
    options = {MODEL[k]: v for k, v in given.items() if k in MODEL and v is not None}
    options.update({KV_CACHE[k]: v for k, v in cache.items() if v is not None})
    return options, {**TRITON, **triton}, sorted(set(given) & NO_EFFECT - {"backend"})
