# SPDX-License-Identifier: Apache-2.0
"""`nereid eval` gives the log probabilities that transformers gives (see make_goldens.py).

NEREID_EVAL names another program; NEREID_REQUIRE_MODELS makes an absent real model a failure.
"""

import copy
import os
import shlex
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_goldens as cg  # noqa: E402

PROGRAM = shlex.split(os.environ.get("NEREID_EVAL", cg.DEFAULT_PROGRAM))


@pytest.mark.parametrize("name", [*cg.TINY, *cg.SAME])
def test_tiny_model_gives_the_logprobs_of_the_reference(name, tmp_path):
    worst = cg.check(name, PROGRAM, cg.TOLERANCE, str(tmp_path))
    print(f"{name}: worst {worst.error:.2e} at {worst.where}")


def instruction_sets():
    """Those of the CPU device that this machine runs, from plain C on."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        flags = next((line.split() for line in f if line.startswith("flags")), [])
    needs = {"generic": [], "avx2": ["avx2", "fma", "f16c"], "avx512": ["avx512bw", "avx512dq", "avx512vl"],
             "avx512vnni": ["avx512_vnni", "avx512bw", "avx512dq", "avx512vl"],
             "amx": ["amx_tile", "amx_int8", "amx_bf16", "avx512_vnni", "avx512bw", "avx512dq", "avx512vl"]}
    return [name for name, flag in needs.items() if set(flag) <= set(flags)]


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_instruction_set_gives_the_logprobs_of_the_reference(name, isa, tmp_path):
    worst = cg.check(name, [*PROGRAM, "--isa", isa], cg.TOLERANCE, str(tmp_path))
    print(f"{name}, {isa}: worst {worst.error:.2e} at {worst.where}")


@pytest.mark.parametrize("name, tp_size", [
    ("gpt2", 2), ("gpt2", 3), ("llama3", 2), ("llama3-tied", 4), ("qwen2", 4), ("qwen3", 2), ("mistral", 2),
    ("gemma2", 2), ("gemma3", 4), ("gemma", 2), ("olmo2", 3), ("llama-gguf-q4_0", 2), ("gemma3-bin-bfloat16", 2)])
def test_several_ranks_give_the_logprobs_of_the_reference(name, tp_size, tmp_path):
    worst = cg.check(name, [*PROGRAM, "--tp-size", str(tp_size), "--threads", "1"], cg.TOLERANCE, str(tmp_path))
    print(f"{name}, {tp_size} ranks: worst {worst.error:.2e} at {worst.where}")


@pytest.mark.parametrize("name, tp_size, pp_size", [
    ("gpt2", 1, 2), ("gpt2", 2, 2), ("llama3", 1, 3), ("llama3-tied", 1, 4), ("llama3-tied", 2, 4), ("qwen3", 2, 3),
    ("gemma2", 1, 4), ("gemma2", 2, 2), ("gemma3", 2, 3), ("llama-gguf-q4_0", 2, 2)])
def test_pipeline_stages_give_the_logprobs_of_the_reference(name, tp_size, pp_size, tmp_path):
    ranks = ["--tp-size", str(tp_size), "--pp-size", str(pp_size), "--threads", "1"]
    worst = cg.check(name, [*PROGRAM, *ranks], cg.TOLERANCE, str(tmp_path))
    print(f"{name}, tp {tp_size}, pp {pp_size}: worst {worst.error:.2e} at {worst.where}")


# Seven and nine experts over three ranks, whose lists are not equally long; biases that one of the ranks adds that
# have an expert; norms over heads that ranks share; blocks of 32 numbers that an expert's parts would cut; layers without experts.
@pytest.mark.parametrize("name, tp_size, ep_size, pp_size", [
    ("mixtral", 3, 3, 1), ("qwen2_moe", 3, 3, 1), ("qwen3_moe-mixed", 3, 3, 2), ("granitemoeshared", 3, 3, 1),
    ("glm4_moe", 3, 3, 1), ("minimax_m2", 3, 3, 1), ("olmoe", 3, 1, 1), ("ernie4_5_moe", 3, 3, 1), ("exaone_moe", 3, 3, 1),
    ("deepseek_v3", 3, 3, 1), ("phimoe", 3, 3, 1), ("dbrx", 3, 3, 1), ("llama4", 3, 3, 1),
    ("gpt_oss-6", 6, 3, 1), ("gpt_oss-6", 6, 2, 1), ("gpt_oss-6", 2, 2, 2), ("gpt_oss-32-mxfp4", 3, 3, 1),
    ("qwen3_moe-ct-8-row", 3, 3, 1), ("deepseek_v3-fp8", 3, 3, 1), ("mixtral-gguf-f32", 3, 3, 1)])
def test_ranks_that_share_the_list_of_experts_give_the_logprobs_of_the_reference(name, tp_size, ep_size, pp_size, tmp_path):
    ranks = ["--tp-size", str(tp_size), "--moe-ep-size", str(ep_size), "--pp-size", str(pp_size), "--threads", "1"]
    worst = cg.check(name, [*PROGRAM, *ranks], cg.TOLERANCE, str(tmp_path))
    print(f"{name}, tp {tp_size}, ep {ep_size}, pp {pp_size}: worst {worst.error:.2e} at {worst.where}")


@pytest.mark.parametrize("name", list(cg.REAL))
def test_real_model_gives_the_logprobs_of_the_reference(name, tmp_path):
    if cg.real_path(name) is None and not os.environ.get("NEREID_REQUIRE_MODELS"):
        pytest.skip(f"{cg.REAL[name]['file']} is absent; scripts/fetch_model brings it")
    worst = cg.check(name, PROGRAM, cg.TOLERANCE, str(tmp_path))
    print(f"{name}: worst {worst.error:.2e} at {worst.where}")


def line_that_agrees(prompt):
    """What a program would print that agrees with the golden to the last digit."""
    greedy, total = prompt["greedy"], prompt["last_logsumexp"]
    ids = prompt.get("last_logit_ids") or range(len(prompt["last_logits"]))
    last = sorted(([t, v - total] for t, v in zip(ids, prompt["last_logits"])),
                  key=lambda row: -row[1])
    last = [last] if greedy["tokens"] else []
    steps = [[[t, v]] for t, v in zip(greedy["tokens"], greedy["logprobs"])]
    return {"id": prompt["id"], "logprobs": prompt["logprobs"] + greedy["logprobs"],
            "top": prompt["top"] + last + steps[1:]}


def agreeing(golden):
    return copy.deepcopy({p["id"]: line_that_agrees(p) for p in golden["prompts"]})


@pytest.mark.parametrize("name", [*cg.TINY, *cg.REAL])
def test_comparison_accepts_the_golden_itself(name):
    golden = cg.load_golden(name)
    assert cg.compare(golden, agreeing(golden), cg.TOLERANCE).error < 2e-5


def shift_logprob(lines):
    lines["n33"]["logprobs"][5] += 0.01


def shift_alternative(lines):
    lines["n33"]["top"][9][3][1] += 0.003


def hide_best(lines):
    del lines["n33"]["top"][9][0]


def other_argmax(lines):
    lines["n33"]["top"][40] = [[0, -0.1]]


def shorten(lines):
    lines["n33"]["logprobs"].pop()


def drop(lines):
    del lines["n33"]


def not_a_number(lines):
    lines["n33"]["logprobs"][3] = float("nan")


def same_alternative_twice(lines):
    lines["n33"]["top"][9].insert(1, list(lines["n33"]["top"][9][0]))


@pytest.mark.parametrize("spoil", [shift_logprob, shift_alternative, hide_best, other_argmax,
                                   shorten, drop, not_a_number, same_alternative_twice])
def test_comparison_refuses_a_spoiled_result(spoil):
    golden = cg.load_golden("llama")
    lines = agreeing(golden)
    spoil(lines)
    with pytest.raises(cg.Mismatch):
        cg.compare(golden, lines, cg.TOLERANCE)
