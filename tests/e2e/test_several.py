# SPDX-License-Identifier: Apache-2.0
"""`nereid serve A B C`: several models, of which as many are loaded as memory allows."""
import concurrent.futures
import http.client
import json
import random
import socket
import subprocess
import sys
import sysconfig
import threading
import time

import httpx
import numpy as np
import ollama
import openai
import pytest

from llm_server import ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import make_model  # noqa: E402
import whisper  # noqa: E402

PROMPT = "the quick brown fox"
# Gigabytes: A, B and C take 7.6, 4.1 and 3.8 MB where there is room.
FOR_ONE, FOR_TWO = "0.0077", "0.013"
PYTHON_MODEL = '''
import os, time
import httpx
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists("{init}"):
            time.sleep(0.01)
        if os.path.exists("{marker}"):
            raise RuntimeError("no luck today")

    def execute(self, requests):
        while os.path.exists("{run}"):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
                for r in requests]
'''


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("several")
    out = {"A": root / "llama", "B": root / "qwen2", "org/C": root / "gpt2"}
    for folder in out.values():
        subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", folder.name, "--out", folder],
                       check=True, stdout=subprocess.DEVNULL)
    return out


def words(folders):
    return [f"{name}={folder}" for name, folder in folders.items()]


def start(cache, paths, *args):
    packages = sysconfig.get_paths()["purelib"]  # numpy, for models in Python
    return Server(paths[0], cache, *paths[1:], *args, env={"PYTHONPATH": packages})


@pytest.fixture
def serve(folders, cache):
    """A function that starts a server; it ends with status 0."""
    servers = []

    def make(*args, paths=None, ready=True):
        s = start(cache, paths or words(folders), *args)
        servers.append(s)
        return s.wait_ready() if ready else s

    yield make
    for s in servers:
        status = s.stop()
        assert status == 0, s.log_text()[-4000:]


def python_repository(folder, init="", run="", marker=""):
    """init, run: files; while they exist its load or a request of it goes on. marker: while it exists no load works."""
    model = folder / "echo"
    (model / "1").mkdir(parents=True)
    (model / "1/model.py").write_text(PYTHON_MODEL.format(init=init, run=run, marker=marker))
    (model / "config.pbtxt").write_text("""name: "echo"
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
""")
    return folder


def complete(s, model, **more):
    return s.request("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **more})


def text(s, model):
    status, answer = complete(s, model)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def test_each_model_takes_a_chat_template_of_its_own(serve, folders):
    asked = {"messages": [{"role": "user", "content": "x"}]}
    def prompts(*args):
        s = serve(*args)
        answers = {m: s.request("/apply-template", {"model": m, **asked}) for m in folders}
        assert all(status == 200 for status, _ in answers.values()), answers
        return {m: a["prompt"] for m, (_, a) in answers.items()}

    plain = prompts()
    own = prompts("--chat-template", "A=phi3", "--chat-template", "org/C=gemma")
    assert own["A"] == "<|user|>\nx<|end|>\n<|assistant|>\n" and own["org/C"].endswith("<start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n")
    assert own["B"] == plain["B"] and own["A"] != plain["A"]


@pytest.mark.parametrize("templates, says", [
    (["chatml"], "of several models say which one: --chat-template MODEL=FILE"),
    (["X=chatml"], "no model is called 'X'; the first is 'A'"),
    (["A=/nope"], "'/nope' is no file, and no name: chatml, gemma, llama3, mistral, phi3"),
    (["A=chatml", "A=phi3"], "'A' has two"),
    (["A=chatml", "phi3"], "of several models say which one: --chat-template MODEL=FILE")])
def test_a_chat_template_of_no_model_is_refused(folders, templates, says):
    options = [w for t in templates for w in ("--chat-template", t)]
    r = subprocess.run([ROOT / "build/bin/nereid", "serve", *words(folders), *options], capture_output=True, timeout=60)
    assert r.returncode in (1, 2) and r.stderr.decode() == f"nereid serve: --chat-template: {says}\n"


@pytest.mark.parametrize("option, value, says", [
    ("served-model-name", "x", "several get their names where they are given, as NAME=PATH"), ("lora", "x=/tmp", "give that one alone"),
    ("tokenizer-dir", "/tmp", "several have theirs in the folder of each")])
def test_what_is_about_one_model_says_what_several_have_instead(folders, option, value, says):
    r = subprocess.run([ROOT / "build/bin/nereid", "serve", *words(folders), f"--{option}", value], capture_output=True, text=True, timeout=60)
    assert r.returncode in (1, 2) and r.stderr == f"nereid serve: --{option}: is for one model that stays loaded; {says}\n"


def test_a_chat_template_of_the_only_model_has_no_name(folders):
    r = subprocess.run([ROOT / "build/bin/nereid", "serve", folders["A"], "--chat-template", "A=chatml"], capture_output=True, timeout=60)
    assert r.returncode == 2 and r.stderr == b"nereid serve: --chat-template: one model is served; MODEL= before the file is for several\n"


def states(s):
    return {m["id"]: m["status"]["value"] for m in s.request("/v1/models")[1]["data"]}


def loaded(s):
    return {m for m, state in states(s).items() if state == "loaded"}


def send(s, path, body):
    """A connection on which a request has been sent, whose answer nobody has read."""
    body = json.dumps(body).encode()
    c = socket.create_connection(("127.0.0.1", s.http), timeout=60)
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return c


def wait(what, seconds=100):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def wait_loaded(s, names):
    wait(lambda: loaded(s) == set(names))


def test_models_are_loaded_when_they_are_asked_for(serve):
    s = serve()
    assert states(s) == {"A": "unloaded", "B": "unloaded", "org/C": "unloaded"}
    assert s.request("/api/ps")[1] == {"models": []}
    client = openai.OpenAI(base_url=s.url("/v1"), api_key="none", max_retries=0)
    answer = client.chat.completions.create(model="org/C", messages=[{"role": "user", "content": PROMPT}], max_tokens=4)
    assert answer.model == "org/C" and answer.usage.completion_tokens > 0
    assert states(s) == {"A": "unloaded", "B": "unloaded", "org/C": "loaded"}
    assert client.models.retrieve("org/C").id == "org/C"
    assert s.request("/v2/models/A/generate", {"text_input": PROMPT, "max_tokens": 4})[0] == 200
    assert len(s.stream({"text_input": PROMPT, "max_tokens": 4, "stream": True}, model="B")) > 0
    assert loaded(s) == {"A", "B", "org/C"}
    assert text(s, "A") != text(s, "B") != text(s, "org/C")


def test_an_unknown_name_is_told_the_right_ones_and_one_must_be_given(serve):
    s = serve()
    status, answer = complete(s, "D")
    assert status == 404 and all(f"`{m}`" in answer["error"]["message"] for m in ("A", "B", "org/C"))
    status, answer = s.request("/v1/completions", {"prompt": PROMPT})
    assert status == 400 and answer["error"]["param"] == "model" and "GET /v1/models lists them" in answer["error"]["message"]
    text(s, "A")
    assert s.request("/tokenize", {"prompt": PROMPT})[0] == 400  # also when only one is loaded
    assert s.request("/tokenize", {"model": "B", "prompt": PROMPT})[0] == 200


def test_the_least_recently_used_model_goes(serve):
    s = serve("--model-memory-gb", FOR_TWO)
    own = {m: text(s, m) for m in ("A", "B")}
    assert loaded(s) == {"A", "B"}
    text(s, "A")
    text(s, "org/C")
    assert loaded(s) == {"A", "org/C"}
    assert text(s, "B") == own["B"] and text(s, "A") == own["A"]


def test_a_pinned_model_is_there_from_the_start_and_stays(serve):
    s = serve("--model-memory-gb", FOR_TWO, "--pin", "A")
    assert loaded(s) == {"A"}
    text(s, "B")
    text(s, "org/C")
    assert "A" in loaded(s)
    assert s.request("/models/unload", {"model": "A"})[0] == 400
    assert ollama.Client(host=s.url("")).ps().models[0].model == "A"


def test_preload_fills_the_memory_and_no_more(serve):
    s = serve("--model-memory-gb", FOR_TWO, "--preload")
    assert loaded(s) == {"A", "B"}
    assert all(m["status"]["loads"] <= 1 for m in s.request("/v1/models")[1]["data"])


def test_memory_is_accounted_exactly(serve):
    s = serve("--model-memory-gb", FOR_TWO)
    for m in ("A", "B"):
        text(s, m)
    rows = {m["model"]: m["size"] for m in s.request("/api/ps")[1]["models"]}
    for m, size in rows.items():
        assert s.metric("nv_trt_llm_runtime_memory_metrics", memory_type="reserved", model=f"{m}.tensorrt_llm") == size
    assert 0 < sum(rows.values()) <= float(FOR_TWO) * 1e9
    sizes = {m["model"]: m["size"] for m in s.request("/api/tags")[1]["models"]}
    assert set(sizes) == {"A", "B", "org/C"} and all(0 < sizes[m] < rows[m] for m in rows)


def test_what_never_fits_is_refused_and_nobody_goes_for_it(serve):
    s = serve("--model-memory-gb", "0.0045")
    text(s, "B")
    status, answer = complete(s, "A")
    assert status == 503 and "--model-memory-gb" in answer["error"]["message"]
    assert loaded(s) == {"B"}
    text(s, "org/C")


def test_keep_alive_of_the_server_and_of_ollamas_requests(serve):
    s = serve("--keep-alive", "1")
    text(s, "A")
    wait_loaded(s, [])
    client = ollama.Client(host=s.url(""))
    fine = {"temperature": 0, "num_predict": 4}
    answer = client.generate(model="A", prompt=PROMPT, keep_alive="5m", options=fine)
    assert answer.load_duration > 0 and answer.total_duration > answer.load_duration
    assert client.generate(model="A", prompt=PROMPT, keep_alive="5m", options=fine).load_duration < answer.load_duration
    client.generate(model="B", prompt=PROMPT, keep_alive=-1, options=fine)
    client.chat(model="org/C", messages=[{"role": "user", "content": PROMPT}], keep_alive=0, options=fine)
    wait_loaded(s, ["A", "B"])
    ends = {m.model: m.expires_at for m in client.ps().models}
    assert ends["B"].year == 9999 and 200 < ends["A"].timestamp() - time.time() < 310
    assert client.generate(model="A", keep_alive=0).done_reason == "unload"
    wait_loaded(s, ["B"])
    assert client.generate(model="A:latest", keep_alive="1h").done_reason == "load"
    assert client.chat(model="org/C", messages=[], keep_alive="1h").done_reason == "load"
    assert loaded(s) == {"A", "B", "org/C"}
    with pytest.raises(ollama.ResponseError, match="keep_alive"):
        client.generate(model="A", prompt=PROMPT, keep_alive="soon")


def test_sleep_frees_the_memory_and_wake_up_loads_what_was_there(serve):
    s = serve()
    assert s.request("/is_sleeping") == (200, {"is_sleeping": False})
    own = text(s, "A")
    text(s, "B")
    assert s.request("/sleep?level=1", b"", method="POST")[0] == 200
    assert s.request("/is_sleeping") == (200, {"is_sleeping": True})
    assert set(states(s).values()) == {"sleeping"} and s.request("/api/ps")[1] == {"models": []}
    status, answer = complete(s, "A")
    assert status == 503 and "/wake_up" in answer["error"]["message"]
    assert s.request("/wake_up", b"", method="POST")[0] == 200
    assert loaded(s) == {"A", "B"} and text(s, "A") == own
    assert s.request("/sleep?model=A", b"", method="POST")[0] == 200
    assert states(s) == {"A": "sleeping", "B": "loaded", "org/C": "unloaded"}
    assert s.request("/is_sleeping?model=A")[1]["is_sleeping"] and not s.request("/is_sleeping")[1]["is_sleeping"]
    assert s.request("/sleep?model=D", b"", method="POST")[0] == 404
    assert s.request("/wake_up?model=A", b"", method="POST")[0] == 200
    assert loaded(s) == {"A", "B"}


def test_orders_of_llama_cpp_and_of_triton(serve):
    s = serve()
    assert s.request("/models/load", {"model": "A"}) == (200, {"success": True})
    assert loaded(s) == {"A"}
    assert s.request("/models/unload", {"model": "A"}) == (200, {"success": True})
    wait_loaded(s, [])
    assert s.request("/models/load", {"model": "D"})[0] == 404
    assert s.request("/v2/repository/models/B/load", {})[0] == 200
    assert loaded(s) == {"B"}
    assert s.request("/v2/repository/models/B.tensorrt_llm/unload", {})[0] == 200
    wait_loaded(s, [])
    assert s.request("/v2/repository/models/B/load", {"parameters": {"config": "{\"max_batch_size\": 4}"}})[0] == 501


def test_grpc_is_told_to_load_first_and_then_answered(serve):
    grpcclient = pytest.importorskip("tritonclient.grpc")
    s = serve()
    client = grpcclient.InferenceServerClient(f"127.0.0.1:{s.grpc}")
    inputs = [grpcclient.InferInput("input_ids", [1, 2], "INT32"), grpcclient.InferInput("input_lengths", [1, 1], "INT32"),
              grpcclient.InferInput("request_output_len", [1, 1], "INT32")]
    for i, values in zip(inputs, ([[5, 6]], [[2]], [[3]])):
        i.set_data_from_numpy(np.array(values, np.int32))
    answers = []

    def ask():
        answers.clear()
        client.start_stream(lambda result, error: answers.append((result, error)))
        client.async_stream_infer("A.tensorrt_llm", inputs)
        client.stop_stream()
        return answers[0]

    result, error = ask()
    assert result is None and "ask again" in str(error)
    wait_loaded(s, ["A"])
    result, error = ask()
    assert error is None and result.as_numpy("output_ids").size > 0
    client.unload_model("A")
    wait_loaded(s, [])
    client.load_model("A")  # waits
    assert client.is_model_ready("A") and loaded(s) == {"A"}
    client.unload_model("A")
    wait_loaded(s, [])


def test_two_models_of_which_one_fits_take_turns(serve):
    s = serve("--model-memory-gb", FOR_ONE)
    own = {m: text(s, m) for m in ("A", "B")}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [(m, pool.submit(text, s, m)) for m in ("A", "B") * 20]
        assert all(job.result() == own[m] for m, job in jobs)


def ask_somehow(s, kind, model):
    """The greedy text of 8 tokens, by one of five ways."""
    if kind == "completions":
        return text(s, model)
    if kind == "stream":
        client = openai.OpenAI(base_url=s.url("/v1"), api_key="none", max_retries=0, timeout=120)
        parts = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0, stream=True)
        return "".join(p.choices[0].text for p in parts if p.choices)
    if kind == "ollama":
        answer = ollama.Client(host=s.url(""), timeout=120).generate(model=model, prompt=PROMPT, raw=True, stream=False,
                                                        options={"temperature": 0, "num_predict": 8})
        return answer.response
    if kind == "generate":
        status, answer = s.request(f"/v2/models/{model.replace('/', '--')}/generate",
                                   {"text_input": PROMPT, "max_tokens": 8, "temperature": 0, "top_k": 1}, timeout=120)
        assert status == 200, answer
        return answer["text_output"]
    status, answer = s.request("/tokenize", {"model": model, "prompt": PROMPT}, timeout=120)
    assert status == 200, answer
    return str(answer["tokens"])


def test_a_storm_over_three_models_of_which_one_fits(serve, folders):
    s = serve("--model-memory-gb", FOR_ONE)
    kinds = ["completions", "stream", "ollama", "generate", "tokenize"]
    own = {(k, m): ask_somehow(s, k, m) for m in folders for k in kinds}
    dice = random.Random(21)
    asked = [(dice.choice(kinds), dice.choice(list(folders))) for _ in range(200)]
    most, over = [], threading.Event()

    def watch():
        while not over.is_set():
            rows = s.request("/api/ps", timeout=120)[1]["models"]
            most.append((len(rows), sum(r["size"] for r in rows)))
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda q: ask_somehow(s, *q), asked))
    finally:
        over.set()
        watcher.join()
    assert all(a == own[q] for q, a in zip(asked, answers))
    assert max(n for n, _ in most) == 1 and max(size for _, size in most) <= float(FOR_ONE) * 1e9
    loads = sum(m["status"]["loads"] for m in s.request("/v1/models")[1]["data"])
    assert 3 <= loads < 200  # those who wait for one model share its turn


def test_a_client_that_goes_while_it_waits_is_forgotten(serve, folders, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    slow = python_repository(tmp_path / "slow", init=gate)
    s = serve(paths=[f"A={folders['A']}", f"slow={slow}"])
    gone = [send(s, "/v2/models/slow/generate", {"IN": [1]}) for _ in range(5)]
    wait(lambda: states(s)["slow"] == "loading")
    late = send(s, "/v1/completions", {"model": "A", "prompt": PROMPT, "max_tokens": 2})  # waits behind the load
    for c in gone + [late]:
        c.close()
    gate.unlink()
    assert s.request("/v2/models/slow/generate", {"IN": [7]}) == (
        200, {"OUT": 7, "model_name": "slow", "model_version": "1"})
    wait(lambda: all(m["status"]["requests"] == 0 for m in s.request("/v1/models")[1]["data"]))


def test_a_broken_model_is_an_error_and_is_tried_again(serve, folders, tmp_path):
    marker = tmp_path / "broken"
    marker.touch()
    repository = python_repository(tmp_path / "r", marker=marker)
    s = serve(paths=[f"A={folders['A']}", f"py={repository}"])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for status, answer in pool.map(lambda _: s.request("/v2/models/py/generate", {"IN": [1]}), range(4)):
            assert status == 503 and "no luck today" in answer["error"]
    wait(lambda: states(s)["py"] == "unloaded")
    assert text(s, "A")
    marker.unlink()
    assert s.request("/v2/models/py/generate", {"IN": [5]})[1]["OUT"] == 5


def test_sleep_waits_for_a_request_under_way(serve, tmp_path):
    gate = tmp_path / "gate"
    slow = python_repository(tmp_path / "slow", run=gate)
    s = serve(paths=[f"slow={slow}"])
    assert s.request("/v2/models/slow/generate", {"IN": [1]})[0] == 200
    gate.touch()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        job = pool.submit(s.request, "/v2/models/slow/generate", {"IN": [2]})
        wait(lambda: s.request("/v1/models")[1]["data"][0]["status"]["requests"] > 0)
        order = pool.submit(s.request, "/sleep", b"", method="POST")
        wait(lambda: states(s)["slow"] == "sleeping")  # no new request is let in
        assert not job.done() and not order.done()
        gate.unlink()
        assert job.result()[0] == 200 and order.result()[0] == 200


def test_the_end_of_the_server_in_the_middle_of_a_load(serve, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    slow = python_repository(tmp_path / "slow", init=gate)
    s = serve("--http-thread-count=1", paths=[f"slow={slow}"])
    waiting = [send(s, "/v2/models/slow/generate", {"IN": [1]}) for _ in range(3)]
    wait(lambda: states(s)["slow"] == "loading")
    states(s)  # one thread reads all requests in turn: those that wait have been read before this one
    s.process.terminate()
    for c in waiting:  # before the load ends
        answer = http.client.HTTPResponse(c)
        answer.begin()
        assert answer.status == 503 and "shutting down" in json.loads(answer.read())["error"]
        c.close()
    gate.unlink()
    assert s.stop() == 0


@pytest.mark.parametrize("args, told", [
    (["A={A}", "A={B}"], "called 'A'"),
    (["A={A}", "B={B}", "--lora", "x={A}"], "--lora"),
    (["A={A}", "B={B}", "--pin", "D"], "called 'D'"),
    (["A={A}", "B={B}", "--keep-alive", "soon"], "5m"),
    (["A={A}", "B={B}", "--model-memory-gb", "0.006", "--pin", "A", "--pin", "B"], "--model-memory-gb"),
])
def test_a_wrong_use_ends_with_a_line_that_says_so(folders, cache, args, told):
    s = start(cache, [a.format(**folders) for a in args])
    assert s.process.wait(120) != 0
    assert told in s.log_text()
    s.stop()


def test_the_single_form_stays_as_it_is(folders, cache):
    s = Server(folders["A"], cache)
    try:
        s.wait_ready()
        assert "status" not in s.request("/v1/models")[1]["data"][0]
        assert s.request("/is_sleeping") == (200, {"is_sleeping": False})
        status, answer = s.request("/sleep", b"", method="POST")
        assert status == 400 and "--keep-alive" in answer["error"]["message"]
        assert s.request("/v2/models/ensemble/ready")[0] == 200
    finally:
        assert s.stop() == 0


def test_models_of_other_kinds_have_the_cache_that_they_need(cache, tmp_path):
    """Whisper's cache also holds what its encoder read; Mamba's blocks hold nothing, and many of them would only cost memory."""
    whisper.write_folder("whisper", tmp_path / "hear")
    make_model.write_folder("mamba2", tmp_path / "mamba")
    s = start(cache, [f"hear={tmp_path / 'hear'}", f"mamba={tmp_path / 'mamba'}"]).wait_ready()
    try:
        heard = httpx.post(s.url("/v1/audio/transcriptions"), timeout=120, files={"file": ("a.wav", whisper.wav())},
                           data={"model": "hear", "language": "en"})
        assert heard.status_code == 200 and heard.json()["text"], heard.text
        assert text(s, "mamba")
        assert s.metric("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max", model="mamba.tensorrt_llm") == 1 << 20
    finally:
        status = s.stop()
    assert status == 0
