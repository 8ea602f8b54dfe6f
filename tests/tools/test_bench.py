# SPDX-License-Identifier: Apache-2.0
"""nereid bench: its tables, what it writes as JSON, what it refuses."""
import json
import os
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    return folder


def bench(folder, *words):
    report = folder / "report.json"
    done = subprocess.run([NEREID, "bench", *map(str, words), "--json", report, "--device", "cpu"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text()), done.stdout


@pytest.mark.parametrize("option", ["--num_requests", "--concurrency", "--output_len"])
def test_counts_of_nothing_are_refused(model, option):
    done = subprocess.run([NEREID, "bench", "throughput", model, option, "0"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == f"nereid bench: {option} must be at least 1, not 0\n"


def test_lengths_that_do_not_fit_are_told_and_those_that_were_measured_are_reported(model, tmp_path):
    longest = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    done = subprocess.run([NEREID, "bench", "latency", model, "--input_len", str(2 * longest), "--output_len", "3", "--num_requests", "1",
                           "--json", tmp_path / "r"], capture_output=True, text=True, check=True)
    assert f"input {2 * longest} and output 3 do not fit" in done.stderr and f"input {longest - 3}, output 3\n" in done.stdout
    report = json.loads((tmp_path / "r").read_text())
    assert (report["input_mean"], report["output_mean"]) == (longest - 3, 3)
    assert report["total_tokens_per_s"] * report["seconds"] == pytest.approx(longest)


def test_a_data_set(model, tmp_path):
    rows = [{"task_id": 0, "input_ids": [5, 6, 7, 8], "output_tokens": 3}, {"task_id": 1, "prompt": "hello", "output_tokens": 5},
            {"input_ids": [9] * 10000, "output_tokens": 3}, {"input_ids": [1, 2], "output_tokens": 9}]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    report, text = bench(tmp_path, "throughput", model, "--dataset", tmp_path / "set.jsonl", "--concurrency", 2)
    assert report["num_requests"] == 3  # one is longer than the model takes
    assert report["output_tokens_per_s"] * report["seconds"] == pytest.approx(3 + 5 + 9)
    n_in = report["total_tokens_per_s"] * report["seconds"] - 17 - 6
    assert 1 <= round(n_in) <= 5 and report["output_mean"] == 6  # "hello" is of bytes and what they were joined to
    report, _ = bench(tmp_path, "latency", model, "--dataset", tmp_path / "set.jsonl", "--num_requests", 4)
    assert report["output_tokens_per_s"] * report["seconds"] == pytest.approx(3 + 5 + 9 + 3)  # from the first again


@pytest.mark.parametrize("words, row, why", [
    (["throughput"], {"input_ids": [100000]}, "has the token id 100000, the model"), (["throughput"], {"input_ids": [-1]}, "no text in"),
    (["throughput"], {"input_ids": [1] * 9999}, "no prompt (of at most 511 tokens)"), ([], {"input_ids": [1]}, "--dataset is of `throughput` and `latency`"),
    (["steps"], {"input_ids": [1]}, "--dataset is of"), (["throughput", "--steady"], {"input_ids": [1]}, "--dataset is of")])
def test_what_a_data_set_may_not_have(model, tmp_path, words, row, why):
    (tmp_path / "set.jsonl").write_text(json.dumps(row) + "\n")
    done = subprocess.run([NEREID, "bench", *words[:1], model, *words[1:], "--dataset", tmp_path / "set.jsonl"], capture_output=True, text=True)
    assert done.returncode in (1, 2) and why in done.stderr, done.stderr


def test_table_and_profile(model, tmp_path):
    report, text = bench(tmp_path, model, "--max_sequences", 4, "--input_len", 16, "--output_len", 32,
                         "--profile", "--profile_every", 4)
    assert [r["sequences"] for r in report["rows"]] == [1, 2, 4]
    assert all(r["prefill_tokens_per_s"] > 0 and r["decode_tokens_per_s"] > 0 for r in report["rows"])
    decode = {r["operation"]: r for r in report["profile"] if not r["prompts"]}
    assert {"step", "qkv", "attention", "up", "down", "head+sample"} <= decode.keys()
    assert all(decode[name]["floor_s"] > 0 for name in ("step", "qkv", "attention", "up", "down", "head+sample"))
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    assert decode["qkv"]["calls"] == layers * decode["qkv"]["steps"] > 0
    assert "of floor" in text


@pytest.mark.parametrize("streaming", [False, True])
def test_throughput(model, tmp_path, streaming):
    n_out = 200 if streaming else 8  # so many that a reader whom the machine lets wait cannot find them all at once
    report, _ = bench(tmp_path, "throughput", model, "--num_requests", 6, "--concurrency", 3, "--input_len", 12,
                      "--output_len", n_out, *(["--streaming"] if streaming else []))
    assert report["num_requests"] == 6
    assert report["output_tokens_per_s"] * report["seconds"] == pytest.approx(6 * n_out)
    assert report["total_tokens_per_s"] * report["seconds"] == pytest.approx(6 * (12 + n_out))
    assert ("longest_gap_ms_p99" in report) == streaming
    if streaming:
        assert report["longest_gap_ms_p99"] >= report["time_per_output_token_ms_mean"] * 0.5


def test_steady(model, tmp_path):
    report, text = bench(tmp_path, "throughput", model, "--num_requests", 40, "--concurrency", 4, "--input_len", 12,
                         "--output_len", 64, "--steady", "--runs", 2)
    assert 0 < report["steady_s"] < report["seconds"] and "with all places taken" in text
    # each run is given by its steady part, the last one at the end too
    rates = [float(line.split()[2]) for line in text.splitlines() if line.startswith("run ")]
    assert rates == pytest.approx([report["first_run_output_tokens_per_s"], report["steady_output_tokens_per_s"]], abs=0.1)
    # the last four or so are not waited for
    assert 30 <= report["num_requests"] < 40
    # of 40 answers all but the beginnings of the first four and what the last four still lack
    assert 20 * 64 < round(report["steady_output_tokens_per_s"] * report["steady_s"]) <= 40 * 64


def test_plots(model, tmp_path):
    svg = "{http://www.w3.org/2000/svg}"
    picture, page = tmp_path / "rates.svg", tmp_path / "run.html"
    bench(tmp_path, model, "--max_sequences", 4, "--input_len", 8, "--output_len", 8, "--plot", picture)
    prefill, decode = ElementTree.parse(picture).iter(svg + "polyline")
    assert len(prefill.get("points").split()) == len(decode.get("points").split()) == 3
    _, text = bench(tmp_path, "throughput", model, "--num_requests", 6, "--concurrency", 3, "--input_len", 8,
                    "--output_len", 8, "--streaming", "--plot", page)
    written = page.read_text()
    assert text[text.index("requests"):].strip() in written
    lines = list(ElementTree.fromstring(written[written.index("<svg"):written.index("</svg>") + 6]).iter(svg + "polyline"))
    assert [len(line.get("points").split()) for line in lines] == [60, 6, 6, 6, 6]
    nowhere = subprocess.run([NEREID, "bench", "latency", model, "--num_requests", "1", "--output_len", "2", "--device", "cpu",
                              "--plot", tmp_path / "no" / "such.svg"], capture_output=True, text=True)
    assert nowhere.returncode == 1 and "such.svg" in nowhere.stderr


def test_timeline(model, tmp_path):
    trace = tmp_path / "trace.json"
    bench(tmp_path, "throughput", model, "--num_requests", 4, "--concurrency", 2, "--input_len", 8,
          "--output_len", 16, "--profile_every", 4, "--trace", trace)
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    steps = [e for e in events if e["tid"] == 2]
    assert len(steps) == len([e for e in events if e["tid"] == 1]) >= 2 * 16
    for before, after in zip(steps, steps[1:]):
        assert after["ts"] >= before["ts"] + before["dur"] - 1
    assert sum(e["args"]["tokens"] for e in steps) == 4 * (8 + 15)
    parts = [e for e in events if e["tid"] == 3]
    assert {"qkv", "attention", "head+sample"} <= {e["name"] for e in parts}
    assert all(any(s["ts"] - 1 <= p["ts"] and p["ts"] + p["dur"] <= s["ts"] + s["dur"] + 1 for s in steps)
               for p in parts)


def test_latency(model, tmp_path):
    report, _ = bench(tmp_path, "latency", model, "--num_requests", 3, "--input_len", 8, "--output_len", 8)
    assert 0 < report["time_to_first_token_ms_p50"] < report["latency_ms_p50"]


def shape(folder, name, **small):
    """An engine of random weights, of the shape tests/gpu/NAME.json but smaller."""
    config = json.loads((ROOT / f"tests/gpu/{name}.json").read_text()) | small
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([NEREID, "build", "--load_format", "dummy", "--model_config", folder / "config.json", "--output_dir",
                    folder / "engine", "--device", "cpu"], check=True, stdout=subprocess.DEVNULL)
    return folder / "engine"


def test_vectors(tmp_path):
    engine = shape(tmp_path, "bert-base", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    report, text = bench(tmp_path, "throughput", engine, "--num_requests", 9, "--input_len", 20, "--concurrency", 4)
    assert report["num_requests"] == 9 and report["output_tokens_per_s"] == 0
    assert report["total_tokens_per_s"] == pytest.approx(20 * report["requests_per_s"]) and "input throughput" in text
    assert "time_to_first_token_ms_mean" not in report and report["latency_ms_p50"] > 0
    for words in ([engine], ["throughput", engine, "--streaming"]):
        done = subprocess.run([NEREID, "bench", *words, "--device", "cpu"], capture_output=True, text=True)
        assert done.returncode == 1 and "vector" in done.stderr


def test_sound(tmp_path):
    engine = shape(tmp_path, "whisper-large-v3", d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                   decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=600, max_source_positions=50,
                   decoder_start_token_id=1, bos_token_id=2, eos_token_id=2, pad_token_id=3)
    report, text = bench(tmp_path, "throughput", engine, "--num_requests", 3, "--output_len", 5, "--concurrency", 2)
    assert report["sound_s_per_s"] == pytest.approx(report["requests_per_s"]) and "seconds a second" in text  # 100 frames of 10 ms
    assert report["output_tokens_per_s"] == pytest.approx(5 * report["requests_per_s"])


def test_machine(tmp_path):
    report, text = bench(tmp_path, "hw", "--threads", 1)
    for rate in ("read_bytes_per_s", "eight_bit_ops_per_s", "float_ops_per_s"):
        assert report["one_thread"][rate] > 1e8 and report["all_threads"][rate] > 1e8
    assert "one thread" in text and "GB/s" in text


@pytest.mark.parametrize("words", [[], ["speed", "x"], ["throughput", "x", "--output_len", "0"]])
def test_refused(words):
    done = subprocess.run([NEREID, "bench", *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("nereid bench:")
