# SPDX-License-Identifier: Apache-2.0
"""The clients and benchmarks under the names of the published guides: what they print of a small model's server."""
import csv
import json
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("tritonclient.grpc")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from llm_server import Server  # noqa: E402

CORE = "inflight_batcher_llm/client/inflight_batcher_llm_client.py"
TEXT = "inflight_batcher_llm/client/end_to_end_grpc_client.py"
SPECULATIVE = "inflight_batcher_llm/client/e2e_grpc_speculative_decoding_client.py"
SPECULATIVE_TEST = "tools/inflight_batcher_llm/speculative_decoding_test.py"
QUEUE_TEST = "tools/inflight_batcher_llm/test_max_queue_size.py"
BENCH = "tools/inflight_batcher_llm/benchmark_core_model.py"
MS = r"\d+\.\d+ ms"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    return folder


def served(model, cache, *args):
    s = Server(model, cache, *args)
    try:
        yield s.wait_ready()
    finally:
        s.stop()


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    yield from served(model, tmp_path_factory.mktemp("plain"), "--set", "decoupled_mode:False")


@pytest.fixture(scope="module")
def stream(model, tmp_path_factory):
    yield from served(model, tmp_path_factory.mktemp("stream"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.json"
    path.write_text(json.dumps([{"input": f"number {i}", "instruction": "say more", "output": "one two three four"}
                                for i in range(5)]))
    return path


def run(script, *words, status=0, cwd=None):
    done = subprocess.run([sys.executable, ROOT / script, *map(str, words)], capture_output=True, text=True,
                          timeout=120, cwd=cwd)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stdout + done.stderr


def grpc(server):
    return f"localhost:{server.grpc}"


def address(server, protocol):
    return ["-i", protocol, "-u", f"localhost:{getattr(server, protocol)}"]


# ---- tensorrt_llm ----

def ids_file(tmp_path, ids, name="ids.csv"):
    (tmp_path / name).write_text(",".join(map(str, ids)) + "\n")
    return tmp_path / name


@pytest.mark.parametrize("streams", [False, True])
def test_core_client(plain, stream, tmp_path, streams):
    words = ["-u", grpc(stream if streams else plain), "--input-tokens-csv", ids_file(tmp_path, [5, 6, 7]),
             "--request_output_len", 6, "--end-id", -1, *(["--streaming"] if streams else [])]
    lines = run(CORE, *words).splitlines()
    assert lines[:2] == ["=========", "Input sequence:  [5, 6, 7]"]
    out = json.loads(lines[-1].removeprefix("Output sequence:  "))
    if streams:
        pieces = [json.loads(x) for x in lines[2:-2]]
        assert len(pieces) >= 2 and sum(pieces, []) == out and len(out) == 6
    else:
        assert out[:3] == [5, 6, 7] and len(out) == 9
    assert lines[-2] == "Got completed request"
    new = out[-6:]
    text = run(CORE, *words, "--check-output", "--output-tokens-csv", ids_file(tmp_path, new, "want.csv"))
    assert text.endswith("\n=====\nPASS!\n=====\n") and f"expected_output_ids =  {new}" in text
    text = run(CORE, *words, "-c", "--output-tokens-csv", ids_file(tmp_path, [0] + new[1:], "not.csv"), status=1)
    assert "FAIL!" in text


def test_core_client_with_a_tokenizer(plain, model):
    text = run(CORE, "-u", grpc(plain), "--tokenizer-dir", model, "--text", "hello there", "--request-output-len", 4,
               "--return-log-probs")
    assert re.search(r"^Using pad_id:  \d+\nUsing end_id:  \d+\nInput sequence:  \[", text, re.M)
    assert "Input: hello there\nOutput beam 0: " in text
    assert "cum_log_probs: [[" in text and "output_log_probs: [[[" in text


@pytest.mark.parametrize("how", [[], ["--stop-via-request-cancel"], ["--request-id", "7"]])
def test_core_client_stops_early(stream, tmp_path, how):
    text = run(CORE, "-u", grpc(stream), "--input-tokens-csv", ids_file(tmp_path, [5, 6, 7]), "--end-id", -1, "-S",
               "--request-output-len", 1000, "--stop-after-ms", 20, *how)
    assert ("Request is cancelled" if "--stop-via-request-cancel" in how else "Got completed request") in text


def test_core_client_asks_for_sizes_of_lookahead(plain, model, tmp_path):
    words = ["--input-tokens-csv", ids_file(tmp_path, [5, 6, 7, 5, 6, 7]), "--request-output-len", 12, "--end-id", -1]
    sizes = "lookahead_window_size:4,lookahead_ngram_size:3,lookahead_verification_set_size:4"
    s = Server(model, tmp_path, "--set", f"decoupled_mode:False,decoding_mode:lookahead,{sizes}")
    try:
        s.wait_ready()
        want = run(CORE, "-u", grpc(plain), *words)
        assert run(CORE, "-u", grpc(s), *words, "--lookahead_config", "[2, 2, 1]") == want
        said = run(CORE, "-u", grpc(s), *words, "--lookahead_config=2,4,1", status=1)
        assert "lookahead_ngram_size is 4, expected 2 to 3" in said
    finally:
        s.stop()


def test_core_client_says_what_the_server_said(plain, tmp_path):
    text = run(CORE, "-u", grpc(plain), "--input-tokens-csv", ids_file(tmp_path, [5]), "--model-name", "nobody", status=1)
    assert "Received an error from server:" in text and "nobody" in text


# ---- text ----

def test_text_client(plain, stream):
    assert re.match(r"0: My name is.+", run(TEXT, "-u", grpc(plain), "-p", "My name is", "-o", 8), re.S)
    alone = run(TEXT, "-u", grpc(plain), "-p", "My name is", "-o", 8, "--exclude-input-in-output")
    assert not alone.startswith("0: My name is")
    text = run(TEXT, "-u", grpc(stream), "-p", "My name is", "-o", 8, "--streaming", "--model-name", "tensorrt_llm_bls")
    assert len(text.splitlines()) >= 4 and "\n0: " in text


def test_text_client_takes_batches_and_checks(stream):
    words = ["-u", grpc(stream), "-p", '["My name is", "two"]', "--batch-inputs", "-o", 4]
    rows = run(TEXT, *words)
    texts = [re.search(rf"^{i}: (.*?)(?=\n1: |\n\Z)", rows, re.S | re.M).group(1) for i in (0, 1)]
    run(TEXT, *words, "--check-outputs", "--expected-outputs", json.dumps(texts))
    assert "differ" in run(TEXT, *words, "--check-outputs", "--expected-outputs", '["a", "b"]', status=1)


@pytest.fixture(scope="module")
def drafting(model, tmp_path_factory):
    """The target is its own draft model here, so every draft holds."""
    folder = tmp_path_factory.mktemp("drafting")
    nereid = ROOT / "build/bin/nereid"
    for words in (["convert", "--model_dir", model, "--output_dir", folder / "ckpt"],
                  ["build", "--checkpoint_dir", folder / "ckpt", "--max_draft_len", "5", "--output_dir", folder / "engine"]):
        subprocess.run([nereid, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield from served(folder / "engine", folder, "--tokenizer_dir", model, "--set",
                      "decoupled_mode:False,tensorrt_llm_draft_model_name:tensorrt_llm")


def test_speculative_client_ends_with_the_model_s_own_text(drafting):
    status, answer = drafting.generate({"text_input": "hello there", "max_tokens": 13, "bad_words": "", "stop_words": ""})
    assert status == 200
    words = ["--url-target", grpc(drafting), "-p", "hello there", "-o", 13]
    assert run(SPECULATIVE, *words) == f"Final text:\n {answer['text_output']}\n"
    said = run(SPECULATIVE, *words, "-v", "--num-draft-tokens", 3)
    rounds = [len(json.loads(x)) for x in re.findall(r"draft_tokens:\n(.*)", said)]
    assert rounds[:3] == [3, 3, 3] and said.count("Target model input ids:") == 4


@pytest.mark.parametrize("how", [[], ["--execute-bls-speculative-decoding", "--num-draft-tokens", 3]])
def test_texts_with_drafts_are_compared_with_those_without(drafting, plain, dataset, how):
    words = ["--max-input-len", 200, "--dataset", dataset, "--url-target", grpc(drafting), "--url-draft", grpc(drafting), *how]
    lines = run(SPECULATIVE_TEST, *words, "--url-control", grpc(drafting)).splitlines()
    assert lines == [f"{i}: Outputs match" for i in range(1, 6)] + ["failed/total: 0/5"]
    lines = run(SPECULATIVE_TEST, *words, "--url-control", grpc(plain), "--disable-output-comparison").splitlines()
    assert lines == ["Not checking output"] * 5 + ["failed/total: 0/5"]


def test_a_control_model_that_says_something_else_is_told(drafting, dataset, tmp_path):
    other = tmp_path / "gpt2"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "gpt2", "--out", other], check=True,
                   stdout=subprocess.DEVNULL)
    for s in served(other, tmp_path):
        text = run(SPECULATIVE_TEST, "--max-input-len", 200, "--dataset", dataset, "--url-target", grpc(drafting), "--url-control",
                   grpc(s), status=1)
        assert "1: Outputs don't match" in text and text.rstrip().endswith("failed/total: 5/5")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_that_a_full_queue_refuses_are_counted(model, tmp_path, protocol):
    asked = ["-p", protocol, "--num-requests", 40, "--input-tokens-csv", ids_file(tmp_path, [5, 6, 7]), "--request-output-len", 200]
    mode = "decoupled_mode:" + str(protocol == "grpc")
    for s in served(model, tmp_path, "--set", mode + ",max_queue_size:2", "--build", "--max_batch_size=1"):
        text = run(QUEUE_TEST, "-u", f"localhost:{getattr(s, protocol)}", *asked)
        refused = int(re.search(r"^(\d+) of 40 requests were refused because the queue was full$", text, re.M).group(1))
        assert 1 <= refused <= 39 and "others failed" not in text
        text = run(QUEUE_TEST, "-u", f"localhost:{getattr(s, protocol)}", *asked, "--num-requests", 1, status=1)
        assert "0 of 1 requests" in text


def test_streaming_client_of_the_first_release(stream):
    said = run("tools/inflight_batcher_llm/end_to_end_streaming_client.py", "-u", grpc(stream), "-p", "My name is", "-S",
               "--output_len", 6)
    assert said == run(TEXT, "-u", grpc(stream), "-p", "My name is", "-S", "-o", 6) and len(said.splitlines()) > 3


# ---- benchmarks ----

TABLE = ["Requests/Sec", "OP tokens/sec", "Avg. latency (ms)", "P99 latency (ms)", "P90 latency (ms)",
         "Avg. IP tokens per request", "Avg. OP tokens per request", "Avg. InFlight requests", "Total latency (ms)",
         "Total requests"]
LENGTHS = ["--input-mean", 20, "--input-stdev", 2, "--output-mean", 8, "--output-stdev", 1]


@pytest.mark.parametrize("decoupled", [False, True])
def test_benchmark_prints_the_published_table(plain, stream, tmp_path, decoupled):
    words = [*address(stream if decoupled else plain, "grpc"), "--vocab-size", 300, "--op-stats-csv", tmp_path / "op.csv",
             "--dump-perfetto-trace", *(["--decoupled"] if decoupled else [])]
    # A common option behind the workload's name, with underscores, as guides have it.
    text = run(BENCH, *words, "token-norm-dist", *LENGTHS, "--num_requests", 12, "--request-rate", 200, cwd=tmp_path)
    lines = text.splitlines()
    assert lines[:3] == ["token-norm-dist", "[INFO] Warm up for benchmarking.", "[INFO] Start benchmarking on 12 prompts."]
    assert re.fullmatch(rf"\[INFO\] Total Latency: {MS}", lines[3])
    assert re.fullmatch(rf"\[INFO\] Total request latencies: {MS}", lines[4])
    rows = [[c.strip() for c in x.split("|")[1:3]] for x in lines[5:] if x.startswith("|")]
    assert rows[0] == ["Stat", "Value"] and [r[0] for r in rows[1:]] == TABLE
    assert all(re.fullmatch(r"-?\d+\.\d\d", r[1]) for r in rows[1:])
    values = {k: float(v) for k, v in rows[1:]}
    assert values["Total requests"] == 12 and 18 <= values["Avg. IP tokens per request"] <= 24
    assert values["Avg. OP tokens per request"] > 0 or decoupled
    row, = csv.DictReader((tmp_path / "op.csv").open())
    assert float(row["Requests/Sec"]) == pytest.approx(values["Requests/Sec"], abs=0.01)
    events = json.loads((tmp_path / "prfetto_dump.json").read_text())
    assert len(events) == 12 and all(e["dur"] > 0 for e in events)


def test_reports_are_joined(tmp_path):
    figures = "Requests/Sec,OP tokens/sec\n"
    (tmp_path / "H100__gpt__v1__guaranteed_no_evict__cnn__-1.csv").write_text(figures + "5.00,9.00\n")
    (tmp_path / "H100__gpt__inflight__max_utilization__cnn__10.csv").write_text(figures + "7.00,8.00\n7.50,8.50\n")
    words = ["--directory_path", tmp_path, "--output_filename", tmp_path / "all.csv"]
    for _ in range(2):  # what it wrote is none of what it reads
        run("scripts/benchmarking/collate_reports.py", *words)
        rows = list(csv.DictReader((tmp_path / "all.csv").open()))
        assert [(r["Scheduler Policy"], r["REQ_RATE"], r["Requests/Sec"]) for r in rows] == [
            ("max_utilization", "10", "7.00"), ("max_utilization", "10", "7.50"), ("NA", "-1", "5.00")]
    (tmp_path / "short.csv").write_text(figures + "1,2\n")
    assert "short.csv: expected a name of 6 parts" in run("scripts/benchmarking/collate_reports.py", *words, status=1)


def test_the_batch_size_of_a_repository_is_set(tmp_path):
    for name in ("ensemble", "tensorrt_llm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(f'name: "{name}"\nmax_batch_size: 8\nparameters {{ key: "max_batch_size" }}\n')
    run("scripts/benchmarking/replace_bs.py", tmp_path, 64)
    for name in ("ensemble", "tensorrt_llm"):
        text = (tmp_path / name / "config.pbtxt").read_text()
        assert text == f'name: "{name}"\nmax_batch_size: 64\nparameters {{ key: "max_batch_size" }}\n'
    assert "no config.pbtxt" in run("scripts/benchmarking/replace_bs.py", tmp_path / "ensemble" / "nothing", 64, status=1)


def test_benchmark_over_http_and_of_data_sets(plain, model, dataset, tmp_path):
    text = run(BENCH, *address(plain, "http"), "--num-requests", 6, "dataset", "--dataset", dataset, "--tokenizer-dir", model)
    assert text.startswith("dataset\nTokenizer: Tokens per word =  ") and "on 5 prompts" in text and "|" not in text
    text = run("tools/inflight_batcher_llm/identity_test.py", *address(plain, "grpc"), "--max_input_len", 300,
               "--tokenizer_dir", model, "--dataset", dataset, "--time_bet_reqs", 0.001)
    assert "P99 latency" in text
    wanted = tmp_path / "perf.json"
    wanted.write_text('{"here": {"Requests/Sec": 1e9}}')
    text = run(BENCH, *address(plain, "grpc"), "--vocab-size", 300, "--num-requests", 4, "--check-perf-json", wanted,
               "--check-perf-key", "here", "token-from-histogram", "--histogram-key", "example", status=1)
    assert "Requests/Sec" in text.splitlines()[-1]


@pytest.mark.parametrize("protocol, mode", [("http", "sync"), ("grpc", "async")])
def test_gpt_benchmark_prints_latency_and_throughput(plain, protocol, mode):
    lines = run("tools/gpt/benchmark_core_model.py", *address(plain, protocol), "-b", 1, "-s", 24, "-o", 20, "-topp", 0.6,
                "-m", mode, "-p", 3, "-n", 2, "-w", "--vocab_size", 300).splitlines()
    assert lines[:2] == ["[INFO] sending requests to warm up", "[INFO] Batch size: 1, Start len: 24, Output len: 20"]
    latency = float(re.fullmatch(r"\[INFO\] Latency: (\d+\.\d{1,3}) ms", lines[2]).group(1))
    rate = float(re.fullmatch(r"\[INFO\] Throughput: (\d+\.\d{1,3}) sentences / sec", lines[3]).group(1))
    assert rate == pytest.approx(1000 / latency, rel=0.01)


@pytest.mark.parametrize("protocol, mode", [("http", "sync"), ("http", "async"), ("grpc", "sync"), ("grpc", "async")])
def test_gpt_benchmark_with_a_batch_on_a_model_that_is_not_decoupled(plain, protocol, mode):
    """Its rows are requests that run together; -b 8 is the default."""
    key = 'nv_inference_request_success{model="tensorrt_llm",version="1"}'

    def count():
        line = next(line for line in plain.metrics_text().splitlines() if line.startswith(key))
        return float(line.split()[-1])

    before = count()
    lines = run("tools/gpt/benchmark_core_model.py", *address(plain, protocol), "-m", mode, "-p", 3, "-n", 2, "--vocab_size",
                300).splitlines()
    assert lines[0] == "[INFO] Batch size: 8, Start len: 8, Output len: 10"
    latency = float(re.fullmatch(r"\[INFO\] Latency: (\d+\.\d{1,3}) ms", lines[1]).group(1))
    rate = float(re.fullmatch(r"\[INFO\] Throughput: (\d+\.\d{1,3}) sentences / sec", lines[2]).group(1))
    assert rate == pytest.approx(8 * 1000 / latency, rel=0.01)
    assert count() - before == 8 * 3 * 2


def test_gpt_clients_with_a_batch(plain, model):
    for name in ("client", "client_async"):
        for protocol in ("http", "grpc"):
            text = run(f"tools/gpt/{name}.py", *address(plain, protocol), "-b", 3, "-t", "hello there", "-o", 6, "--tokenizer_dir",
                       model)
            assert re.match(r"\[INFO\] Latency: \d+\.\d+ ms\nInput: hello there\nOutput: ", text)


def test_gpt_clients(plain, model, tmp_path):
    for name in ("client", "client_async"):
        text = run(f"tools/gpt/{name}.py", *address(plain, "http"), "-t", "hello there", "-o", 6, "--tokenizer_dir", model)
        assert re.match(rf"\[INFO\] Latency: \d+\.\d+ ms\nInput: hello there\nOutput: ", text)
    run("tools/gpt/gen_input_data.py", "-b", 1, "-s", 8, "--num_samples", 3, cwd=tmp_path)
    rows = json.loads((tmp_path / "input_data.json").read_text())["data"]
    assert len(rows) == 3 and rows[0]["input_ids"]["shape"] == [8] and len(rows[0]) == 16
    text = run("tools/gpt/end_to_end_test.py", *address(plain, "grpc"), "-b", 2, "-o", 6)
    assert text.count("============After ensemble============") == 2 and re.search(rf"\[INFO\] Latency: {MS}\nInput: ", text)


def test_end_to_end_test(plain, dataset):
    lines = run("tools/inflight_batcher_llm/end_to_end_test.py", *address(plain, "http"), "--max-input-len", 200, "--dataset",
                dataset, "--test-bls").splitlines()
    assert lines[:4] == ["[INFO] Start testing on 5 prompts.", "[INFO] Functionality test succeed.",
                         "[INFO] Warm up for benchmarking.", "[INFO] Start benchmarking on 5 prompts."]
    assert re.fullmatch(rf"\[INFO\] Total Latency: {MS}", lines[4])


@pytest.mark.parametrize("script, words, part", [
    (BENCH, ["--decoupled", "token-norm-dist", *LENGTHS], "Protocol must be set to 'grpc'"),
    (CORE, ["--requested-outputs", "sequence_length"], "output_ids"),
    (CORE, ["--lookahead_config", "[1,2]"], "three whole numbers"),
    (CORE, ["--lookahead_config", "[1,x,3]"], "three whole numbers"),
    (TEXT, ["-p", "x", "--lora-path", "y"], "--lora-task-id"),
    (TEXT, ["-p", "x", "--check-outputs"], "--expected-outputs"),
    ("tools/gpt/benchmark_core_model.py", ["-b", 0], "at least 1"),
])
def test_what_cannot_be_is_refused(script, words, part):
    assert part in run(script, *words, status=2)
