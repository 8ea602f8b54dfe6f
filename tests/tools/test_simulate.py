# SPDX-License-Identifier: Apache-2.0
"""nereid bench steps and nereid simulate: what is measured can be read, and a table of known steps gives known times."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))

# A step takes 10 ms, with a prompt of 64 tokens 20 ms, whatever else it does.
STEPS = {"device": "paper", "tp_size": 2, "pp_size": 1, "max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 512,
         "mixed_context_tokens": 0, "n_kv_blocks": 256, "tokens_per_block": 16, "prompt_pair_us": 0,
         "generation": [{"rows": 1, "context": 32, "ms": 10}, {"rows": 4, "context": 32, "ms": 10}],
         "prompts": [{"tokens": 64, "ms": 20}]}


def simulate(tmp_path, *words, steps=STEPS, status=0):
    table, out = tmp_path / "table.json", tmp_path / "out.json"
    table.write_text(json.dumps({"steps": steps}))
    done = subprocess.run([NEREID, "simulate", table, *map(str, words), "--json", out], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return json.loads(out.read_text())[0] if status == 0 else done.stderr


def test_what_bench_measures_simulate_reads(tmp_path):
    model, table = tmp_path / "llama", tmp_path / "steps.json"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", model], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([NEREID, "bench", "steps", model, "--max_sequences", "4", "--json", table, "--device", "cpu"], check=True,
                   capture_output=True)
    steps = json.loads(table.read_text())["steps"]
    assert {p["rows"] for p in steps["generation"]} == {1, 2, 4}
    assert all(p["ms"] > 0 for p in steps["generation"] + steps["prompts"])
    assert len({p["context"] for p in steps["generation"]}) > 1 and len(steps["prompts"]) > 3
    one = simulate(tmp_path, "--request_rate", 5, "--num_requests", 50, steps=steps)
    assert one["ranks"] == 1 and 0 < one["time_to_first_token_ms_p50"] <= one["latency_ms_p50"]

    # the same arrivals at the engine itself: it takes at least as long as they do
    subprocess.run([NEREID, "bench", "throughput", model, "--request_rate", "40", "--num_requests", "20", "--input_len", "8", "--output_len",
                    "2", "--json", tmp_path / "load.json", "--device", "cpu"], check=True, capture_output=True)
    load = json.loads((tmp_path / "load.json").read_text())
    paper = simulate(tmp_path, "--request_rate", 40, "--num_requests", 20, "--input_len", 8, "--output_len", 2)
    assert load["request_rate"] == 40 and load["num_requests"] == 20
    assert load["seconds"] > 20 / paper["requests_per_s"] - 0.1 > 0.2


@pytest.mark.parametrize("words", [["latency", "--request_rate", "4"], ["throughput", "--request_rate", "-1"],
                                   ["throughput", "--request_rate", "4", "--steady"]])
def test_a_rate_of_requests_is_of_throughput(words):
    done = subprocess.run([NEREID, "bench", words[0], "MODEL", *words[1:]], capture_output=True, text=True)
    assert done.returncode == 2 and "--request_rate is a positive number, of `throughput`" in done.stderr


def test_times_follow_from_the_steps(tmp_path):
    a = simulate(tmp_path, "--request_rate", 1, "--arrivals", "constant", "--num_requests", 10, "--input_len", 64, "--output_len", 11)
    assert a["time_to_first_token_ms_p99"] == pytest.approx(20)
    assert a["time_per_output_token_ms_mean"] == pytest.approx(10)
    assert a["latency_ms_p50"] == pytest.approx(120)
    assert (a["replicas"], a["ranks"], a["most_running"]) == (1, 2, 1)
    assert a["busy"] == pytest.approx(10 * 0.12 / 9.12)


def test_the_least_number_of_replicas_keeps_the_limits(tmp_path):
    words = ("--request_rate", 40, "--num_requests", 400, "--input_len", 64, "--output_len", 21)
    limits = ("--goodput", "ttft:100,tpot:20")
    least = simulate(tmp_path, *words, *limits)
    assert least["limits_kept"] and least["replicas"] > 1
    assert simulate(tmp_path, *words, *limits, "--replicas", least["replicas"])["limits_kept"]
    assert not simulate(tmp_path, *words, *limits, "--replicas", least["replicas"] - 1)["limits_kept"]
    few = simulate(tmp_path, *words, *limits, "--max_replicas", 1)
    assert few["replicas"] == 1 and not few["limits_kept"]


def test_stages_share_the_steps_of_many_sequences(tmp_path):
    words = ("--request_rate", 1000, "--num_requests", 64, "--input_len", 64, "--output_len", 33)
    one, two = (simulate(tmp_path, *words, "--stages", n) for n in (1, 2))
    assert two["ranks"] == 2 * one["ranks"]
    assert one["output_tokens_per_s"] < two["output_tokens_per_s"] < 2.01 * one["output_tokens_per_s"]


@pytest.mark.parametrize(("change", "words"), [
    ({"generation": []}, '"generation" has no measurement'),
    ({"prompts": [{"tokens": 64, "ms": 0}]}, '"prompts" number 0: "ms" must be above 0'),
    ({"n_kv_blocks": 0}, '"n_kv_blocks" is 0, expected 1 or more'),
    ({"pp_size": 2}, "measure the engine of one stage, and give --stages 2"),
    ({"generation": STEPS["generation"][::-1]}, "rows, then contexts must ascend"),
])
def test_tables_that_cannot_be_used_are_named(tmp_path, change, words):
    error = simulate(tmp_path, "--request_rate", 1, steps=dict(STEPS, **change), status=1)
    assert words in error and "table.json" in error


def test_requests_that_do_not_fit_are_named(tmp_path):
    assert "blocks of the KV cache, which has 256" in simulate(tmp_path, "--request_rate", 1, "--input_len", 5000, status=1)
    assert "--request_rate or --trace" in simulate(tmp_path, status=2)
