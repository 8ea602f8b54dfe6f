# SPDX-License-Identifier: Apache-2.0
"""nereid bench serve: what it sends to a small model's server, what it counts, what it writes."""
import csv
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
sys.path.insert(0, str(ROOT / "tests"))
from llm_server import Server  # noqa: E402
from ports import free_ports  # noqa: E402

BUILD = ROOT / os.environ.get("NEREID_BUILD", "build")
NEREID = os.environ.get("NEREID", str(BUILD / "bin" / "nereid"))


def bench(*words, status=0):
    done = subprocess.run([NEREID, "bench", "serve", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout if status != 2 else done.stderr


@pytest.fixture(scope="module")
def responder():
    subprocess.run(["make", "-s", "build/tests/load/responder"], cwd=ROOT, check=True)
    with subprocess.Popen([BUILD / "tests/load/responder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as p:
        yield f"127.0.0.1:{p.stdout.readline().strip()}"
        p.stdin.close()


@pytest.fixture
def paced():
    """A server whose first token comes 100 ms after a request, each further one 20 ms after the one before."""
    port, = free_ports(1)
    with subprocess.Popen([sys.executable, ROOT / "tests/load/paced.py", "--port", str(port)]) as p:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        p.terminate()


def test_the_times_are_those_of_a_server_that_keeps_time(paced, tmp_path):
    bench(paced, "--api", "chat", "-n", 24, "--concurrency", 4, "--input_len", 8, "--output_len", 32, "--json", tmp_path / "a.json",
          "--csv", tmp_path / "a.csv")
    level, = json.loads((tmp_path / "a.json").read_text())["levels"]
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    # Less than what the server waits cannot be; more comes of a busy machine, but not to all requests.
    for name, least, most in (("ttft_ms", 100, 200), ("e2el_ms", 720, 1000)):
        values = sorted(float(r[name]) for r in rows)
        assert least <= values[0] < most
        assert values[11] - 0.01 <= level[name]["p50"] <= values[12] + 0.01
    assert min(abs(float(r["tpot_ms"]) - 20) for r in rows) < 0.6
    for r in rows:
        assert 31 * float(r["tpot_ms"]) <= float(r["e2el_ms"]) - float(r["ttft_ms"]) + 0.1  # the end comes behind the last token
    assert level["output_tokens"] == 24 * 32


def url(server):
    return f"http://127.0.0.1:{server.http}"


@pytest.mark.parametrize("api", ["chat", "completions", "generate", "generate_stream"])
def test_every_request_is_answered_and_every_token_counted(server, tmp_path, api):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "html")}

    def count():
        return server.metric("nv_inference_request_success", model="tensorrt_llm")

    before = count()
    text = bench(url(server), "--api", api, "-n", 12, "--concurrency", 3, "--input_len", 10, "--output_len", 8,
                 "--ignore_eos", "--goodput", "ttft:60000,e2el:0.0001", "--tokenizer", server.model,
                 *(w for kind, path in files.items() for w in (f"--{kind}", path)))
    until = time.monotonic() + 20
    while count() - before < 13 and time.monotonic() < until:  # a model counts a request after it has answered
        time.sleep(0.01)
    assert count() - before == 13  # one to warm up
    level, = json.loads(files["json"].read_text())["levels"]
    assert (level["completed"], level["failed"], level["max_concurrent"]) == (12, 0, 3)
    if api in ("chat", "completions"):
        assert level["output_tokens"] == 12 * 8
    assert level["output_tokens"] > 0 and level["input_tokens"] >= 12 * 10
    assert level["connections"] == 3  # they are used again
    assert level["good_requests_per_s"] == 0
    streams = api != "generate"
    assert ("ttft_ms" in level) == streams and ("Time to first token (ms)" in text) == streams
    if streams:
        assert 0 < level["ttft_ms"]["p50"] <= level["e2el_ms"]["p50"] and level["tpot_ms"]["n"] == 12
        assert level["itl_ms"]["n"] > 12
    rows = list(csv.DictReader(files["csv"].open()))
    assert len(rows) == 12 and all(r["ok"] == "1" and float(r["e2el_ms"]) > 0 for r in rows)
    assert "<svg" in files["html"].read_text() and "Requests/s" in files["html"].read_text()


def bench_grpc(server, tmp_path, api, model):
    out = tmp_path / "out.json"
    bench(f"grpc://127.0.0.1:{server.grpc}", "--protocol", "grpc", "--api", api, "--model", model, "-n", 12, "--concurrency",
          3, "--input_len", 10, "--output_len", 8, "--ignore_eos", "--vocab", 200, "--header", "X-Test: 1", "--json", out)
    level, = json.loads(out.read_text())["levels"]
    assert (level["completed"], level["failed"], level["max_concurrent"]) == (12, 0, 3)
    return level


@pytest.mark.parametrize("model", ["tensorrt_llm", "ensemble"])
def test_streams_of_grpc_are_used_again(server, tmp_path, model):
    level = bench_grpc(server, tmp_path, "infer_stream", model)
    assert level["connections"] == 3
    assert 0 < level["ttft_ms"]["p50"] <= level["e2el_ms"]["p50"] and level["itl_ms"]["n"] > 12
    if model == "tensorrt_llm":
        assert level["output_tokens"] == 12 * 8 and level["tpot_ms"]["n"] == 12


@pytest.mark.parametrize("model", ["tensorrt_llm", "ensemble"])
def test_calls_of_grpc(server, tmp_path, model):
    whole = Server(server.model, tmp_path, "--set", "decoupled_mode:False")
    try:
        level = bench_grpc(whole.wait_ready(), tmp_path, "infer", model)
    finally:
        whole.stop()
    assert "ttft_ms" not in level and level["output_tokens"] == 12 * 8


@pytest.mark.parametrize("kept", ["min_length", "min_tokens", None])
def test_the_shortest_answer_is_asked_for_by_the_models_own_name(server, tmp_path, kept):
    """Up to v0.19 repositories have min_length, after it min_tokens."""
    model, engine, repo = server.model, tmp_path / "engine", tmp_path / "repo"
    subprocess.run([NEREID, "build", model, "--output_dir", engine], check=True, capture_output=True)
    subprocess.run([NEREID, "repo", "--engine_dir", engine, "--tokenizer_dir", model, "--output_dir", repo, "--set",
                    "decoupled_mode:False"], check=True, capture_output=True)
    config = repo / "ensemble/config.pbtxt"
    text = config.read_text()
    for name in {"min_length", "min_tokens"} - {kept}:
        text, n = re.subn(r"input_map \{\s*key: \"%s\".*?\},?|\{\s*name: \"%s\".*?\}," % (name, name), "", text, flags=re.S)
        assert n == 2
    config.write_text(text)
    old = Server(repo, tmp_path).wait_ready()
    try:
        words = "--api", "infer", "-n", 4, "--input_len", 10, "--output_len", 8, "--ignore_eos"
        for where in ([url(old)], [f"127.0.0.1:{old.grpc}", "--protocol", "grpc"]):
            if kept:
                bench(*where, *words, "--json", tmp_path / "a.json")
                level, = json.loads((tmp_path / "a.json").read_text())["levels"]
                assert (level["completed"], level["output_tokens"]) == (4, 4 * 8)
            else:
                done = subprocess.run([NEREID, "bench", "serve", *map(str, (*where, *words))], capture_output=True, text=True)
                assert done.returncode == 1
                assert "--ignore_eos: model 'ensemble' has no input min_length or min_tokens" in done.stderr
        for where in ([url(old)], [f"127.0.0.1:{old.grpc}", "--protocol", "grpc"]):
            done = subprocess.run([NEREID, "bench", "serve", *map(str, (*where, *words)), "--model", "nobody"],
                                  capture_output=True, text=True)
            assert done.returncode == 1 and "the inputs of model 'nobody' are not known: " in done.stderr
            assert "'nobody' is not found" in done.stderr
    finally:
        old.stop()


def test_an_open_loop_sends_when_it_is_time(responder, tmp_path):
    out = tmp_path / "out.json"
    bench(responder, "--api", "generate", "-n", 40, "--request_rate", 40, "--arrivals", "constant", "--csv",
          tmp_path / "c", "--json", out)
    level, = json.loads(out.read_text())["levels"]
    assert level["completed"] == 40 and level["duration_s"] >= 39 / 40 and level["request_rate"] == 40
    due = [float(r["due_s"]) for r in csv.DictReader((tmp_path / "c").open())]
    assert sorted(due) == pytest.approx([i / 40 for i in range(40)], abs=1e-5)


def test_several_levels_are_measured_and_compared(responder, tmp_path):
    out = tmp_path / "out.json"
    bench(responder, "--api", "generate", "-n", 200, "--concurrency", "1,2,8", "--json", out, "--html",
          tmp_path / "page.html")
    assert [x["concurrency"] for x in json.loads(out.read_text())["levels"]] == [1, 2, 8]
    assert "Output tokens a second" in (tmp_path / "page.html").read_text()


def test_each_level_has_prompts_of_its_own(server, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out.json"
    data.write_text("".join(json.dumps({"prompt": "one two", "max_tokens": n}) + "\n" for n in (2, 3, 4, 5)))
    bench(url(server), "--dataset", data, "-n", 2, "--concurrency", "1,2", "--ignore_eos", "--warmup", 0, "--json", out)
    assert [x["output_tokens"] for x in json.loads(out.read_text())["levels"]] == [5, 9]


def test_many_requests_go_through_one_thread(responder, tmp_path):
    out = tmp_path / "out.json"
    bench(responder, "--api", "generate", "-n", 2000, "--concurrency", 32, "--json", out)
    level, = json.loads(out.read_text())["levels"]
    assert level["failed"] == 0 and level["completed"] == 2000 and level["connections"] == 32


def test_a_duration_says_how_long(responder, tmp_path):
    out = tmp_path / "out.json"
    bench(responder, "--api", "generate", "--duration", 1, "--concurrency", 2, "--json", out)
    level, = json.loads(out.read_text())["levels"]
    assert level["failed"] == 0 and level["completed"] >= 2 and level["duration_s"] >= 1


def test_a_trace_says_when_and_how_long(server, tmp_path):
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    trace.write_text("".join(json.dumps({"timestamp": 100 * i, "output_length": i + 2}) + "\n" for i in range(5)))
    bench(url(server), "--api", "chat", "--trace", trace, "--ignore_eos", "--json", out)
    level, = json.loads(out.read_text())["levels"]
    assert level["completed"] == 5 and level["output_tokens"] == sum(range(2, 7)) and level["duration_s"] >= 0.4


@pytest.mark.parametrize("text", [
    json.dumps([{"conversations": []}, {"conversations": [{"from": "human", "value": "one two"},
                                                          {"from": "gpt", "value": "a b c d"}]}]),
    '{"prompt": "one two", "max_tokens": 5}\n',
    json.dumps([{"input": "one", "instruction": "two", "output": "a b c d"}]),
    '{"messages": [{"role": "user", "content": "one two"}], "output_length": 5}\n"only text"\n',
])
def test_prompts_of_files(server, tmp_path, text):
    data, out = tmp_path / "data", tmp_path / "out.json"
    data.write_text(text)
    bench(url(server), "--dataset", data, "-n", 1, "--ignore_eos", "--json", out)
    level, = json.loads(out.read_text())["levels"]
    assert level["completed"] == 1 and level["output_tokens"] == 5  # without a tokenizer four words are 5


def test_groups_share_their_beginning(server, tmp_path):
    echo = tmp_path / "out.json"
    before = cached(server)
    bench(url(server), "--api", "completions", "-n", 6, "--input_len", 200, "--prefix_len", 190, "--output_len", 2,
          "--vocab", 200, "--ids", "--json", echo)
    assert json.loads(echo.read_text())["levels"][0]["input_tokens"] == 6 * 200
    until = time.monotonic() + 20
    while cached(server) < before + 25:  # five blocks of 32 tokens for each; told a moment later
        assert time.monotonic() < until
        time.sleep(0.05)


def cached(server):
    """Blocks that prompts found in the cache."""
    status, text = server.request("/ui/stats")
    assert status == 200
    return sum(e["kv_blocks"]["reused"] for e in text["engines"])


@pytest.mark.parametrize("words, part", [
    (["--api", "infer"], "decoupled"),
    (["--protocol", "grpc", "--api", "infer"], "decoupled"),
    (["--protocol", "grpc", "--api", "infer_stream", "--model", "nobody"], "nobody"),
    (["--api", "generate", "--model", "nobody"], "nobody"),
])
def test_a_server_that_refuses_ends_it(server, words, part):
    address = f"127.0.0.1:{server.grpc}" if "grpc" in words else url(server)
    done = subprocess.run([NEREID, "bench", "serve", address, *words], capture_output=True, text=True)
    assert done.returncode == 1 and part in done.stderr and done.stdout == ""


@pytest.fixture(scope="module")
def short(server, tmp_path_factory):
    """A server whose model takes few tokens: fewer than 128 words are, here where a letter is about one."""
    s = Server(server.model, tmp_path_factory.mktemp("cache"), "--build=--max_input_len=100", "--build=--max_seq_len=120")
    try:
        yield s.wait_ready()
    finally:
        s.stop()


@pytest.mark.parametrize("words", [
    ["--api", "chat"], ["--api", "chat", "--no_stream"], ["--api", "generate"], ["--api", "generate_stream"],
    ["--protocol", "grpc", "--api", "infer_stream"],
])
def test_prompts_that_nobody_has_measured_fit_the_model(short, words):
    address = f"127.0.0.1:{short.grpc}" if "grpc" in words else url(short)
    words = [NEREID, "bench", "serve", address, *words, "-n", "40", "--concurrency", "4", "--output_len", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr  # none of forty was too long
    told = re.match(r"nereid bench serve: --input_len (\d+) instead of 128, which was refused: .*\b100\b", done.stderr)
    assert told and 1 < int(told[1]) < 128, done.stderr
    done = subprocess.run([*words, "--input_len", "128"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and re.search(r"\b100\b", done.stderr) and done.stdout == ""  # what is asked for is not changed


def test_failures_are_counted_and_told(server, tmp_path):
    text = bench(url(server), "--api", "generate", "--warmup", 0, "-n", 3, "--model", "nobody", "--json",
                 tmp_path / "j", status=1)
    level, = json.loads((tmp_path / "j").read_text())["levels"]
    assert level["failed"] == 3 and level["completed"] == 0 and "nobody" in level["error"]
    assert "First failure" in text


@pytest.mark.parametrize("words, part", [
    (["--api", "soap"], "--api: expected generate"),
    (["--input_len", "normal:3"], "--input_len"),
    (["--output_len", "0"], "--output_len"),
    (["--goodput", "first:3"], "--goodput"),
    (["--request_rate", "fast"], "--request_rate"),
    (["--api", "raw"], "--body"),
    (["--api", "chat", "--ids"], "--ids"),
    (["--dataset", "/nowhere"], "/nowhere"),
    (["ftp://x"], "only http"),
    (["http://127.0.0.1:1"], "refused"),
    (["--protocol", "smoke"], "--protocol: expected http or grpc"),
    (["--protocol", "grpc"], "--protocol grpc: expected --api infer"),
    (["--api", "infer_stream"], "needs --protocol grpc"),
    (["http://127.0.0.1:1", "--protocol", "grpc", "--api", "infer"], "status 14"),
    (["ftp://x", "--protocol", "grpc", "--api", "infer"], "only http"),
    (["grpcs://127.0.0.1:1", "--protocol", "grpc", "--api", "infer", "--ca_cert", "/nowhere"], "--ca_cert"),
])
def test_what_cannot_be_is_refused(responder, words, part):
    words = words if "://" in words[0] else [responder, *words]
    done = subprocess.run([NEREID, "bench", "serve", *words], capture_output=True, text=True)
    assert done.returncode == 1 and part in done.stderr, done.stderr
