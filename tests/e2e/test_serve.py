# SPDX-License-Identifier: Apache-2.0
"""`nereid serve`: what it checks before it builds, and what it tells once it is ready."""
import json
import os
import pathlib
import re
import socket
import subprocess
import time
import urllib.request

import pytest

from llm_server import BIN, Server, free_ports


def serve(*words, cache, **env):
    return subprocess.run([BIN / "nereid", "serve", *map(str, words)], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, NEREID_CACHE=str(cache), **env))


def summary(server):
    return server.log_text().split("\nReady: ", 1)[1]


def test_the_start_ends_with_a_summary(tiny_model, cache):
    s = Server(tiny_model, cache, "--served-model-name=tiny,other")
    try:
        s.wait_ready()
        while "curl" not in s.log_text().split("\nReady: ")[-1]:  # it comes right behind the ports
            assert s.process.poll() is None
        lines = dict(line.split(None, 1) for line in summary(s).splitlines()[1:] if line.startswith("  "))
        context = json.loads((tiny_model / "config.json").read_text())["max_position_embeddings"]
        base = f"http://127.0.0.1:{s.http}"
        assert lines["model"] == "tiny,other" and lines["context"] == f"{context} tokens"
        assert lines["device"].startswith(("cpu: ", "cuda: ")) and "of weights" in lines["memory"]
        assert (lines["chat"], lines["OpenAI"], lines["Triton"]) == (f"{base}/", f"{base}/v1", f"{base}/v2")
        assert "| Model" not in s.log_text() and "| Option" not in s.log_text()
        answer = subprocess.run(["sh", "-c", "curl -s " + lines["curl"]], capture_output=True, text=True).stdout
        assert json.loads(answer)["model"] == "tiny" and json.loads(answer)["choices"]
    finally:
        assert s.stop() == 0


def test_beams_that_are_asked_for_are_built_and_served(tiny_model, cache):
    s = Server(tiny_model, cache, "--max-beam-width=3")
    try:
        s.wait_ready()
        for width, is_fine in ((3, True), (4, False)):
            status, answer = s.request("/v2/models/ensemble/generate", {"text_input": "fox", "max_tokens": 2, "beam_width": width})
            assert (status == 200) == is_fine, answer
        assert "beam_width (4) exceeds max_beam_width (3)" in answer["error"]
    finally:
        assert s.stop() == 0


def trtllm_serve(*words, cache):
    return subprocess.run([BIN / "trtllm-serve", *map(str, words)], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, NEREID_CACHE=str(cache)))


@pytest.mark.parametrize("option", ["--extra_llm_api_options ", "--extra-llm-api-options=", "--config ", "--config="])
def test_the_file_of_trtllm_serve_is_read(tiny_model, cache, tmp_path, option):
    file = tmp_path / "extra.yml"
    file.write_text("""# as in the guides of trtllm-serve
max_batch_size: 3
max_beam_width: 2
dtype: auto
cuda_graph_config:
  enable_padding: true
  batch_sizes:
  - 1
  - 2
moe_config: {backend: CUTLASS}
kv_cache_config: {dtype: "auto", free_gpu_memory_fraction: 0.25,  # of the rest
    max_tokens: 96, enable_block_reuse: false}
print_iter_log: true
""")
    r = trtllm_serve("serve", tiny_model, "--max_batch_size", 7, *f"{option}{file}".split(), "--prepare-only", cache=cache)
    assert r.returncode == 0, r.stderr
    for name in ("cuda_graph_config", "moe_config", "print_iter_log"):
        assert r.stderr.count(f"--extra_llm_api_options: '{name}' has no effect") == 1
    made = json.loads(r.stdout.splitlines()[-1])["repository"]
    [config] = pathlib.Path(made).glob("*.tensorrt_llm/config.pbtxt")
    text = config.read_text()
    for name, value in (("max_beam_width", "2"), ("kv_cache_free_gpu_mem_fraction", "0.25"), ("max_tokens_in_paged_kv_cache", "96"),
                        ("enable_kv_cache_reuse", "false")):
        assert re.search(rf'key: "{name}"\s*value: {{\s*string_value: "{value}"', text), name
    engine = re.search(r'key: "gpt_model_path"\s*value: {\s*string_value: "([^"]*)"', text)[1]
    with open(f"{engine}/config.json") as f:
        assert json.load(f)["build_config"]["max_batch_size"] == 3  # the file wins over the line, as in the original


@pytest.mark.parametrize("text, why", [
    ("speculative_config:\n  decoding_type: Foo\n", "speculative_config: decoding_type 'Foo' is not supported; known are NGram, DraftTarget"),
    ("speculative_config:\n  decoding_type: MTP\n  max_window_size: 3\n", "speculative_config: 'max_window_size' is not supported"),
    ("speculative_config:\n  decoding_type: NGram\n  max_draft_len: 0\n", "num_speculative_tokens must be a number from 1"),
    ("speculative_config: MTP\n", "'speculative_config': expected names and values"), ("decoding_config: {}\n", "'decoding_config' is not supported: use --spec"),
    ("no_such: 1\n", "'no_such' is not known"), ("kv_cache_config: fp8\n", "'kv_cache_config': expected names and values"),
    ("kv_cache_config:\n  dtype: fp8\n   max_tokens: 3\n", "line 3: "),
    ("kv_cache_config:\n  no_such: 1\n", "kv_cache_config: 'no_such' is not known"), ("max_batch_size: 0\n", "--max_batch_size: expected a number from 1"),
    ("max_batch_size: [1]\n", "'max_batch_size': expected one value on one line"),
    ("tokenizer: 'a\n", "line 2: "), ("- a\n", "expected names and values"),
])
def test_what_the_file_of_trtllm_serve_may_not_have(tiny_model, tmp_path, text, why):
    (tmp_path / "f").write_text(text)
    r = trtllm_serve(tiny_model, "--extra_llm_api_options", tmp_path / "f", cache=tmp_path / "cache")
    assert r.returncode in (1, 2) and why in r.stderr and not (tmp_path / "cache").exists(), r.stderr


@pytest.mark.parametrize("text, want", [
    ("{decoding_type: NGram, max_draft_len: 4, max_matching_ngram_size: 2, is_keep_all: true, is_use_oldest: null}",
     {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2}),
    ("{decoding_type: Lookahead, max_window_size: 4, max_ngram_size: 3, max_verification_set_size: 5}",
     {"method": "lookahead", "lookahead_window_size": 4, "lookahead_ngram_size": 3, "lookahead_verification_set_size": 5}),
    ("{decoding_type: MTP, num_nextn_predict_layers: 3, use_mtp_vanilla: false}", {"method": "mtp", "num_speculative_tokens": 3}),
    ("{decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: 'a \"b\"', eagle3_one_model: true}",
     {"method": "eagle3", "num_speculative_tokens": 3, "model": 'a "b"'}),
    ("{decoding_type: Draft_Target, max_draft_len: 2, speculative_model: small}", {"method": "draft_model", "num_speculative_tokens": 2, "model": "small"}),
    ("{decoding_type: Medusa, speculative_model: heads, medusa_choices: [[0], [0, 0]], num_medusa_heads: 4, max_draft_len: 7}",
     {"method": "medusa", "model": "heads", "medusa_choices": [[0], [0, 0]]})])
def test_drafts_of_the_file_of_trtllm_serve(tiny_model, cache, tmp_path, text, want):
    (tmp_path / "f").write_text(f"speculative_config: {text}\n")
    r = trtllm_serve(tiny_model, "--extra_llm_api_options", tmp_path / "f", "--prepare-only", cache=cache)
    assert r.returncode == 0, r.stderr
    [config] = pathlib.Path(json.loads(r.stdout.splitlines()[-1])["repository"]).glob("*.tensorrt_llm/config.pbtxt")
    value = re.search(r'key: "speculative_config"\s*value: {\s*string_value: ("(?:[^"\\]|\\.)*")', config.read_text())[1]
    assert json.loads(json.loads(value)) == want


def test_the_example_names_the_key_that_is_wanted(tiny_model, cache):
    s = Server(tiny_model, cache, env={"NEREID_API_KEY": "sk-secret"})
    try:
        s.wait_ready()
        while "curl" not in s.log_text().split("\nReady: ")[-1]:
            assert s.process.poll() is None
        assert "sk-secret" not in s.log_text()
        line = summary(s)[summary(s).index("curl "):].splitlines()[0]
        for key, answers in (("sk-secret", True), ("sk-other", False)):
            said = subprocess.run(["sh", "-c", line.replace("curl", "curl -s", 1).replace("KEY", key)], capture_output=True, text=True)
            assert ("choices" in json.loads(said.stdout)) == answers, said
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("words", ["--log-verbose=1", "--log-tables=true"])
def test_tables_are_logged_where_they_are_asked_for(tiny_model, cache, words):
    s = Server(tiny_model, cache, words)
    try:
        s.wait_ready()
        assert all(f"| {head}" in s.log_text() for head in ("Backend", "Model", "Option"))
    finally:
        assert s.stop() == 0


def test_what_is_off_is_not_in_it(tiny_model, tmp_path):
    """And what was made for it tells its model, so that nereid rm finds it."""
    cache = tmp_path / "cache"
    cache.mkdir()
    s = Server(tiny_model, cache, "--allow-openai=false", "--ui=false")
    try:
        s.wait_ready()
        while "Triton  " not in s.log_text():
            assert s.process.poll() is None
        assert "OpenAI  " not in summary(s) and "chat  " not in summary(s) and "curl" not in summary(s)
    finally:
        assert s.stop() == 0
    made = [p / ".made_from" for kind in ("engines", "repositories") for p in (cache / kind).iterdir() if p.is_dir()]
    assert len(made) == 2 and all(p.read_text() == str(tiny_model.resolve()) for p in made), made
    for p in made:  # as earlier releases left them: what is used again is told its model
        p.unlink()
    s = Server(tiny_model, cache, "--allow-openai=false", "--ui=false")
    try:
        s.wait_ready()
    finally:
        assert s.stop() == 0
    assert all(p.read_text() == str(tiny_model.resolve()) for p in made)


@pytest.mark.parametrize("words,part", [
    (["--http-port=99999"], "--http-port: expected a number from 0 to 65535, got '99999'"), (["--log-verbose=x"], '"--log-verbose"'), (["--nonsense"], "unknown option"),
    (["--hots=1"], "did you mean --host"), (["--http-port=4", "--metrics-port=4"], "same address and port"),
    (["--key-rate-limit=-1"], "expected a value between 0 and"), (["--trusted-proxies=10.0.0.1/8"], "got '10.0.0.1/8'"),
    (["--model-repo=x"], "unknown option"), (["--strict-readiness"], "needs a value"),
    (["--speculative-config", '{"method": "suffix"}'], "method 'suffix' is not supported; known: ngram, draft_model"),
])
def test_options_are_checked_first(tiny_model, tmp_path, words, part):
    r = serve(tiny_model, *words, cache=tmp_path / "cache")
    assert r.returncode == 2 and part in r.stderr and "Serving" not in r.stderr and r.stdout == "" and r.stderr.count("\n") == 1
    assert not (tmp_path / "cache").exists()


def test_a_file_has_options_and_the_command_line_wins(tiny_model, cache, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("""# as vllm serve --config has it
---
port: 1        # the command line has another
http_port: 2
max-model-len: 64
served-model-name: 'it''s'\r
enable-prefix-caching:
set:
  - "kv_cache_host_memory_bytes:4096"
  - max_beam_width:1
""")
    s = Server(tiny_model, cache, "--config", str(file))
    try:
        s.wait_ready()
        assert s.request("/v1/models")[1]["data"][0]["id"] == "it's"
        while "Triton  " not in s.log_text():
            assert s.process.poll() is None
        assert "context   64 tokens" in summary(s)
        parameters = s.request("/v2/models/tensorrt_llm/config")[1]["parameters"]
        assert parameters["kv_cache_host_memory_bytes"]["string_value"] == "4096" and parameters["max_beam_width"]["string_value"] == "1"
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("text,part", [
    ("port 8000", "line 1: expected 'option: value', or '- value' below 'option:'"), ("\n  port: 1", "line 2: expected"),
    ("- a", "line 1: expected"), ("port: 1\n- 2", "line 2: expected"), ("set:\n- ", "line 2: a value is missing"),
    ("set: [a, b]", "line 1: a list has its values on lines of their own"), ("model: 'a", "line 1: a quote is not closed"),
    ("prot: 1", "unknown option --prot; did you mean --port"), ("config: x", "--config x: one file, which names no other"),
    ("model: a\0b", "holds the character NUL"), (None, "nowhere.yaml"), ("a: b\n" * 300, "at most 256 options"),
])
def test_what_is_wrong_in_the_file_is_told_with_its_line(tmp_path, text, part):
    file = tmp_path / ("nowhere.yaml" if text is None else "serve.yaml")
    if text is not None:
        file.write_text(text)
    r = serve("--config", file, cache=tmp_path / "cache")
    assert r.returncode == 2 and part in r.stderr and len(r.stderr.splitlines()) == 1, r.stderr


@pytest.mark.parametrize("words,part", [
    (["--build", "--max_batch_siz=4"], "did you mean --max-batch-size (see nereid build --help)"),
    (["--build=--help"], "(see nereid build --help)"), (["--build", "--use_smooth_quant"], "nereid quantize --qformat int8_sq"),
    (["--build", "--build_config=/nowhere.json"], "/nowhere.json"), (["--quantization", "q9"], "quantization 'q9' is not supported; known: int8"),
    (["--build", "--speculative_decoding_mode=medusa"], "nereid convert --medusa_model_dir writes one"),
])
def test_what_the_builder_refuses_is_told_on_one_line(tiny_model, tmp_path, words, part):
    r = serve(tiny_model, *words, "--http-port=0", "--metrics-port=0", "--grpc-port=0", cache=tmp_path / "cache")
    assert r.returncode == 1 and part in r.stderr and r.stderr.startswith("nereid serve: ")
    assert len(r.stderr.splitlines()) == 1 and not list((tmp_path / "cache/engines").glob("*"))


@pytest.mark.parametrize("taken", ["--http-port", "--grpc-port", "--metrics-port"])
def test_a_taken_port_is_told_before_the_model_is_built(tiny_model, tmp_path, taken):
    http, grpc, metrics = free_ports(3)
    ports = {"--http-port": http, "--grpc-port": grpc, "--metrics-port": metrics}
    with socket.create_server(("127.0.0.1", ports[taken])):
        r = serve(tiny_model, "--host", "127.0.0.1", *[f"{k}={v}" for k, v in ports.items()], cache=tmp_path / "cache")
    if taken == "--grpc-port" and r.returncode == 0:
        pytest.skip("this build has no gRPC")
    assert r.returncode == 1 and f"127.0.0.1:{ports[taken]}" in r.stderr and f"another port with {taken}" in r.stderr
    assert len(r.stderr.splitlines()) == 1 and not (tmp_path / "cache").exists()


def test_a_device_is_looked_for_first(tiny_model, tmp_path):
    r = serve(tiny_model, "--set", "device:gpu", "--port", free_ports(1)[0], "--metrics-port=0", "--grpc-port=0",
              cache=tmp_path / "cache")
    assert r.returncode == 1 and "nereid_gpu.so" in r.stderr and not (tmp_path / "cache").exists()


def test_short_names_mean_the_long_ones(tiny_model, cache):
    http, grpc, metrics = free_ports(3)
    s = Server(tiny_model, cache, "--port", str(http), "--host=127.0.0.1", "-c", "64", f"--grpc_port={grpc}",
               f"--metrics_port={metrics}")
    s.http = http
    try:
        s.wait_ready()
        while "Triton  " not in s.log_text():
            assert s.process.poll() is None
        assert "context   64 tokens" in summary(s)
        assert f"HTTPService at 127.0.0.1:{http}" in s.log_text()
    finally:
        assert s.stop() == 0


def drafts_counted(server, total):
    """What the metrics say of drafts, when the last step is among them."""
    for _ in range(100):
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=10).read().decode()
        counts = {name: sum(float(v) for v in re.findall(pattern + r"\S* (\S+)", text)) for name, pattern in (
            ("drafts", r"nv_llm_drafts\{"), ("proposed", r'nv_llm_draft_tokens\{draft_token_type="proposed"'),
            ("accepted", r'nv_llm_draft_tokens\{draft_token_type="accepted"'), ("us", r"nv_llm_draft_us\{"))}
        if counts["proposed"] == total:
            break
        time.sleep(0.05)
    return counts


@pytest.mark.parametrize("config", [{"method": "ngram", "prompt_lookup_min": 1},
                                    {"method": "draft_model", "adaptive": False}], ids=["ngram", "draft_model"])
def test_drafts_change_no_answer(tiny_model, cache, config):
    if config["method"] == "draft_model":
        config["model"] = str(tiny_model)
    answers = []
    for options in ((), ("--speculative-config", json.dumps(config))):
        s = Server(tiny_model, cache, *options)
        try:
            s.wait_ready()
            body = {"text_input": "one two three one two three one two", "max_tokens": 40, "return_perf_metrics": True}
            r = urllib.request.urlopen(urllib.request.Request(
                f"http://127.0.0.1:{s.http}/v2/models/ensemble/generate", json.dumps(body).encode()), timeout=60)
            answers.append(json.loads(r.read()))
            answers[-1]["metrics"] = drafts_counted(s, answers[-1]["total_draft_tokens"])
        finally:
            assert s.stop() == 0
    assert answers[0]["text_output"] == answers[1]["text_output"]
    assert answers[0]["total_draft_tokens"] == 0 and answers[1]["total_draft_tokens"] > 0
    for a in answers:
        drafted, held = a["total_draft_tokens"], a["total_accepted_draft_tokens"]
        assert a["metrics"]["proposed"] == drafted and a["metrics"]["accepted"] == held
        assert (a["metrics"]["drafts"] > 0) == (drafted > 0) and a["acceptance_rate"] == pytest.approx(held / max(drafted, 1))
    assert (answers[1]["metrics"]["us"] > 0) == (config["method"] == "draft_model")


@pytest.mark.parametrize("options, address, warns", [
    ((), "127.0.0.1", False), (("--host=0.0.0.0",), "0.0.0.0", True),
    (("--http-address=0.0.0.0",), "0.0.0.0", True), (("--host=0.0.0.0", "--api-key=k"), "0.0.0.0", False)])
def test_other_machines_have_to_be_let_in(tiny_model, cache, options, address, warns):
    s = Server(tiny_model, cache, *options, address=None)
    try:
        s.wait_ready()
        for service, port in (("HTTPService", s.http), ("Metrics Service", s.metrics)):
            s.wait_log(f"Started {service} at {address}:{port}")
        log = s.log_text()
        assert log.count("no key is asked for") == warns
    finally:
        assert s.stop() == 0


def test_a_key_may_come_from_the_environment(tiny_model, cache, monkeypatch):
    monkeypatch.setenv("NEREID_API_KEY", "secret")
    s = Server(tiny_model, cache)
    try:
        s.wait_ready()
        assert s.request("/v1/models")[0] == 401
        assert "secret" not in open(f"/proc/{s.process.pid}/cmdline").read()
    finally:
        assert s.stop() == 0
    s = Server(tiny_model, cache, "--api-key=other")
    try:
        s.wait_ready()
        r = subprocess.run(["curl", "-s", "-H", "Authorization: Bearer secret", s.url("/v1/models")], capture_output=True)
        assert b"invalid_api_key" in r.stdout
    finally:
        assert s.stop() == 0


def test_run_and_serve_have_one_engine_in_the_cache(tiny_model, tmp_path):
    """What serve has packed, run opens, also where it alone would pack for itself; with other options there are two."""
    env = dict(os.environ, NEREID_CACHE=str(tmp_path))
    s = Server(tiny_model, tmp_path)
    try:
        s.wait_ready()
    finally:
        assert s.stop() == 0
    (engine,) = (tmp_path / "engines").iterdir()
    before = (engine / "rank0.engine").stat()
    os.utime(engine, (1, 1))
    r = subprocess.run([BIN / "nereid", "run", tiny_model, "-p", "a", "-n", "1", "-q"], env=env, capture_output=True, text=True)
    assert r.returncode == 0 and "[####" not in r.stderr, r.stderr
    after = (engine / "rank0.engine").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns) and engine.stat().st_mtime > 1
    s = Server(tiny_model, tmp_path, "--max-seq-len=40")
    try:
        s.wait_ready()
    finally:
        assert s.stop() == 0
    assert "40 tokens" in s.log_text()  # told a moment after it is ready
    assert len(list((tmp_path / "engines").iterdir())) == 2
