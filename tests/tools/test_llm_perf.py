# SPDX-License-Identifier: Apache-2.0
"""inference_deploy/llm_perf.py: what it prints and writes of a small model's server."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def asked(server, path, body):
    status, answer = server.request(path, body)
    assert status == 200
    return answer


PERF = ROOT / "inference_deploy/llm_perf.py"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_llm_perf_measures_each_level(server, tmp_path, protocol):
    pytest.importorskip("tritonclient.grpc")
    ask = {"text_input": "hello 1", "max_tokens": 6, "bad_words": "", "stop_words": "", "exclude_input_in_output": True}
    right = asked(server, "/v2/models/ensemble/generate", ask)["text_output"]
    data, profile = tmp_path / "data.jsonl", tmp_path / "profile.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in [{"input": "hello 1", "output": right},
                                                              {"input": "hello 1", "output": "no such answer"},
                                                              {"input": "hello 2"}]))
    done = subprocess.run([sys.executable, PERF, "-u", f"localhost:{getattr(server, protocol)}", "-i", protocol, "-m",
                           "ensemble", "--concurrency", "1,2", "--input-data", data, "--tokenizer-path", server.model,
                           "--output-len", "6", "--profile-export-file", profile], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for line in ("Concurrency: 1", "Concurrency: 2", "Time to first token (ms)", "Input token throughput (per sec)",
                 "Output token throughput (per sec)", "Request throughput (per sec)", "50.00 % of 2 answers equal"):
        assert line in done.stdout, done.stdout
    experiments = json.loads(profile.read_text())["experiments"]
    assert [(e["experiment"]["value"], len(e["requests"])) for e in experiments] == [(1, 3), (2, 3)]
    assert all(r["timestamp"] < r["response_timestamps"][0] for e in experiments for r in e["requests"])


def test_llm_perf_refuses_what_it_cannot_read(server, tmp_path):
    pytest.importorskip("tritonclient.grpc")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n')
    for words, part in ((["--concurrency", "0"], "1 to 4096"), ([], "line 1")):
        done = subprocess.run([sys.executable, PERF, "-m", "m", "--input-data", bad, "--tokenizer-path",
                               server.model, *words], capture_output=True, text=True)
        assert done.returncode != 0 and part in done.stderr
