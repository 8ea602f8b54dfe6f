# SPDX-License-Identifier: Apache-2.0
"""Adapters through the server, as clients of the published repositories send them: weights with the first
request, the number alone afterwards; through all three models; what is wrong is named."""
import concurrent.futures
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import adapter  # noqa: E402

http = pytest.importorskip("tritonclient.http")
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

MODULES = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "o_proj": 4, "gate_proj": 5, "down_proj": 6, "up_proj": 7}
TEXT = "the quick brown fox"
N_NEW = 12


def arrays(seed):
    """lora_weights and lora_config of an adapter."""
    rows, numbers = [], []
    for module, (down, up, scale) in adapter.pairs_of("llama", seed).items():
        rows.append(np.concatenate([down.ravel(), (up * np.float32(scale)).ravel()]))
        numbers.append([MODULES[module.split(".")[-1]], int(module.split(".")[2]), down.shape[0]])
    width = max(map(len, rows))
    w = np.stack([np.pad(r, (0, width - len(r))) for r in rows]).astype(np.float16)
    return w[None], np.array(numbers, np.int32)[None]


def tensor(name, value, dtype=None):
    array = np.array(value, dtype) if dtype else value
    t = http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    t.set_data_from_numpy(array)
    return t


def text_inputs():
    return [tensor("text_input", [[TEXT.encode()]], np.object_), tensor("max_tokens", [[N_NEW]], np.int32),
            tensor("end_id", [[-1]], np.int32)]


def id_inputs():
    return [tensor("input_ids", [[5, 17, 33, 60, 21, 9]], np.int32), tensor("input_lengths", [[6]], np.int32),
            tensor("request_output_len", [[N_NEW]], np.int32), tensor("end_id", [[-1]], np.int32)]


def adapter_inputs(number, weights=None):
    out = [tensor("lora_task_id", [[number]], np.uint64)] if number is not None else []
    if weights:
        out += [tensor("lora_weights", weights[0]), tensor("lora_config", weights[1])]
    return out


@pytest.fixture(scope="module")
def plain(tiny_model, cache):
    s = Server(tiny_model, cache, "--set", "decoupled_mode:False")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


def answer(client, model, number=None, weights=None):
    inputs = (id_inputs() if model == "tensorrt_llm" else text_inputs()) + adapter_inputs(number, weights)
    r = client.infer(model, inputs)
    return r.as_numpy("output_ids").tolist() if model == "tensorrt_llm" else r.as_numpy("text_output").tolist()


def alone(server, model, number):
    """By a client of its own: one belongs to one thread."""
    with http.InferenceServerClient(f"127.0.0.1:{server.http}") as c:
        return answer(c, model, number)


@pytest.mark.parametrize("model", ["tensorrt_llm", "ensemble", "tensorrt_llm_bls"])
def test_first_request_brings_the_weights_later_ones_the_number(plain, model):
    base = {"tensorrt_llm": 100, "ensemble": 200, "tensorrt_llm_bls": 300}[model]
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        with pytest.raises(InferenceServerException, match=re.escape(
                f"LoRA task {base} not found in cache. Please send LoRA weights with request")):
            answer(c, model, base)
        none = answer(c, model)
        want = {base + i: answer(c, model, base + i, arrays(f"{i}")) for i in range(4)}
        assert len({str(v) for v in [none, *want.values()]}) == 5, "every adapter answers in its own way"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [(n, pool.submit(alone, plain, model, n)) for n in [None, *want] * 6]
        for number, job in jobs:
            assert job.result() == (none if number is None else want[number])


def test_all_models_share_the_adapters(plain):
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        first = answer(c, "ensemble", 400, arrays("x"))
        assert answer(c, "tensorrt_llm_bls", 400) == first
        assert answer(c, "tensorrt_llm", 400) == answer(c, "tensorrt_llm", 401, arrays("x"))


def change_config(row, column, value):
    def change(w, k):
        k[0, row, column] = value
        return w, k
    return change


def nan(w, k):
    w[0, 2, 7] = np.nan
    return w, k


@pytest.mark.parametrize(("change", "words"), [
    (change_config(0, 2, 65), "lora_config: row 0 (attn_q of layer 0): rank 65, expected 1 to 64 (max_lora_rank)"),
    (change_config(0, 0, 99), "lora_config: row 0 (no module of layer 0): module id 99 is unknown"),
    (change_config(0, 1, -1), "layer -1, but the model has layers"),
    (nan, "lora_config: row 2 (attn_v of layer 0): holds NaN"),
    (lambda w, k: (w[:, :, :-50], k), "an adapter of another model"),
    (lambda w, k: (w, k[:, :-1]), "input 'lora_config' must have the shape [1, rows, 3], as many rows"),
    (lambda w, k: (w.astype(np.float32), k), "lora_weights"),
    (lambda w, k: (w, k.astype(np.int64)), "lora_config"),
    (lambda w, k: (w, None), "lora_weights is given without lora_config"),
    (lambda w, k: (None, k), "lora_config is given without lora_weights"),
])
def test_what_is_wrong_is_named_and_others_go_on(plain, change, words):
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        before = answer(c, "tensorrt_llm", 500, arrays("good"))
        w, k = change(*arrays("bad"))
        inputs = id_inputs() + adapter_inputs(501)
        inputs += [tensor("lora_weights", w)] if w is not None else []
        inputs += [tensor("lora_config", k)] if k is not None else []
        with pytest.raises(InferenceServerException, match=re.escape(words)):
            c.infer("tensorrt_llm", inputs)
        with pytest.raises(InferenceServerException, match="LoRA task 501 not found"):
            answer(c, "tensorrt_llm", 501)
        assert answer(c, "tensorrt_llm", 500) == before


def test_weights_without_a_number(plain):
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        with pytest.raises(InferenceServerException, match="lora_weights and lora_config need a lora_task_id above 0"):
            answer(c, "tensorrt_llm", None, arrays("a"))


def test_small_caches_and_prefetched_folders(tiny_model, cache, tmp_path):
    """A thousandfold change of adapters is a unit test's; here the parameters reach the engine."""
    for number in (7, 8, 9):
        w, k = arrays(f"folder{number}")
        folder = tmp_path / "adapters" / str(number)
        folder.mkdir(parents=True)
        np.save(folder / "model.lora_weights.npy", w)
        np.save(folder / "model.lora_config.npy", k)
    (tmp_path / "adapters" / "notes").mkdir()
    size = arrays("folder7")[0].nbytes
    s = Server(tiny_model, cache, "--set", f"decoupled_mode:False,lora_prefetch_dir:{tmp_path / 'adapters'},"
               f"lora_cache_host_memory_bytes:{2 * size},lora_cache_max_adapter_size:4")
    try:
        s.wait_ready()
        assert "folder 'notes' is left out" in s.log_text()
        with http.InferenceServerClient(f"127.0.0.1:{s.http}") as c:
            for number in (7, 8, 9, 7, 8, 9):  # more than fit: read again
                assert answer(c, "tensorrt_llm", number) == answer(c, "tensorrt_llm", 50, arrays(f"folder{number}"))
                answer(c, "tensorrt_llm", number)  # is still there
            cached = {"host_adapters": 2, "pinned": 0}
            want = {"hit": 6, "miss": 6, "stored": 15, "evicted_host": 13}
            until = time.monotonic() + 20
            while True:  # they are brought up to date ten times a second
                events = {n: s.metric("nv_llm_lora_events", lora_event=n) for n in want}
                now = {n: s.metric("nv_llm_lora_cache", lora_cache_type=n) for n in cached}
                if (events, now) == (want, cached):
                    break
                assert time.monotonic() < until, (events, now)
            assert 0 < s.metric("nv_llm_lora_cache", lora_cache_type="host_bytes") <= 2 * size
            assert s.metric("nv_llm_lora_swap_us", lora_swap_to="host") > 0
            w, k = arrays("big")
            k[0, 0, 2] = 5
            with pytest.raises(InferenceServerException, match="rank 5, expected 1 to 4"):
                answer(c, "tensorrt_llm", 60, (w, k))
    finally:
        assert s.stop() == 0


def test_a_prefetched_folder_that_is_wrong_ends_the_start(tiny_model, cache, tmp_path):
    (tmp_path / "3").mkdir()
    s = Server(tiny_model, cache, "--set", f"lora_prefetch_dir:{tmp_path}")
    assert s.process.wait(60) != 0
    assert "lora_prefetch_dir" in s.log_text() and "holds no LoRA adapter" in s.log_text()
    s.stop()


def test_adapter_of_the_command_line_gives_the_server_s_answer(plain, tiny_model, tmp_path):
    path = adapter.write("llama", tmp_path / "a", "float16", seed="cli")
    r = subprocess.run([BIN / "nereid", "run", tiny_model, "--lora_dir", path, "-p", TEXT, "-n", str(N_NEW),
                        "--temperature", "0", "--ignore_eos"], capture_output=True, text=True, check=True, timeout=300)
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        text = answer(c, "ensemble", 600, arrays("cli"))[0]
    assert r.stdout.rstrip("\n") == (text.decode() if isinstance(text, bytes) else text[0].decode()).removeprefix(TEXT)


# ---- names of /v1 ----


def complete(server, model, **more):
    status, a = server.request("/v1/completions", dict({"model": model, "prompt": TEXT, "max_tokens": N_NEW,
                                                        "temperature": 0, "ignore_eos": True}, **more))
    return status, a["choices"][0]["text"] if status == 200 else a["error"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return {name: adapter.write("llama-dora" if name == "two" else "llama", folder / name, "float16", seed=name)
            for name in ("one", "two", "three")}


@pytest.fixture(scope="module")
def named(tiny_model, cache, folders):
    s = Server(tiny_model, cache, "--served-model-name", "base", "--lora", f"one={folders['one']}",
               "--lora", f"org/two={folders['two']}", "--allow-lora-loading=true")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


def listed(server):
    return {m["id"]: (m.get("parent"), m.get("root")) for m in server.request("/v1/models")[1]["data"]}


def test_adapters_are_models_of_their_own(named, plain, folders):
    """Side by side too, one of them with gains."""
    assert listed(named) == {"base": (None, None), "one": ("base", folders["one"]), "org/two": ("base", folders["two"])}
    texts = {name: complete(named, name)[1] for name in ("base", "one", "org/two")}
    assert len(set(texts.values())) == 3
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        text = answer(c, "ensemble", 703, arrays("one"))[0]
        assert (text if isinstance(text, bytes) else text[0]).decode() == TEXT + texts["one"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [(n, pool.submit(complete, named, n)) for n in texts for _ in range(8)]
        assert all(job.result() == (200, texts[n]) for n, job in jobs)


def test_chat_streams_and_embeds_with_an_adapter(named):
    ask = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 8, "temperature": 0}
    a = named.request("/v1/chat/completions", dict(ask, model="one"))[1]
    b = named.request("/v1/chat/completions", dict(ask, model="base"))[1]
    assert a["model"] == "one" and a["choices"] != b["choices"]
    va, vb = (named.request("/v1/embeddings", {"model": m, "input": TEXT})[1]["data"][0]["embedding"] for m in ("one", "base"))
    assert len(va) == len(vb) and np.abs(np.array(va) - np.array(vb)).max() > 0.01


def load(server, **body):
    return server.request("/v1/load_lora_adapter", body)


def unload(server, name):
    return server.request("/v1/unload_lora_adapter", {"lora_name": name})


def test_load_and_unload_at_run_time(named, folders):
    assert complete(named, "three")[0] == 404
    status, text = load(named, lora_name="three", lora_path=folders["three"])
    assert status == 200, text
    assert listed(named)["three"] == ("base", folders["three"])
    first = complete(named, "three")
    assert first[0] == 200 and first[1] not in (complete(named, "base")[1], complete(named, "one")[1])
    status, text = load(named, lora_name="three", lora_path=folders["one"])
    assert status == 400 and "has already been loaded" in text["error"]["message"]
    assert unload(named, "three")[0] == 200
    assert "three" not in listed(named) and complete(named, "three")[0] == 404
    assert unload(named, "three")[0] == 404
    assert load(named, lora_name="three", lora_path=folders["one"])[0] == 200  # the name, another folder
    assert complete(named, "three")[1] == complete(named, "one")[1]
    assert unload(named, "three")[0] == 200


@pytest.mark.parametrize(("body", "field", "words"), [
    ({"lora_name": "x"}, "lora_path", "Both 'lora_name' and 'lora_path' must be provided"),
    ({"lora_path": "x"}, "lora_name", "Both 'lora_name' and 'lora_path' must be provided"),
    ({"lora_name": "x", "lora_path": "/nowhere"}, "lora_path", "/nowhere holds no LoRA adapter"),
    ({"lora_name": "base", "lora_path": "/nowhere"}, "lora_name", "is the name of a model"),
    ({"lora_name": "one", "lora_path": "/nowhere"}, "lora_name", "has already been loaded"),
    ({"lora_name": "a\nb", "lora_path": "/nowhere"}, "lora_name", "control characters"),
    ({"lora_name": "x", "lora_path": "/nowhere", "base_model_name": "none"}, None, "The model `none` does not exist"),
])
def test_what_cannot_be_loaded_is_named(named, body, field, words):
    status, a = load(named, **body)
    assert status in (400, 404) and words in a["error"]["message"], a
    assert field is None or a["error"]["param"] == field
    assert set(listed(named)) == {"base", "one", "org/two"}


def test_loading_has_to_be_allowed(plain, folders):
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        status, a = plain.request(path, {"lora_name": "x", "lora_path": folders["one"]})
        assert status >= 400 and "--allow-lora-loading" in a["error"]["message"]


def test_folders_cannot_be_named_by_clients_of_v2(named, folders):
    body = {"text_input": TEXT, "max_tokens": 2, "lora_task_id": 99, "triton_lora_dir": folders["three"]}
    status, a = named.generate(body)
    assert status == 400 and "triton_" in a["error"]


@pytest.mark.parametrize(("words", "text"), [
    (["--lora", "one"], "expected NAME=FOLDER"),
    (["--lora", "one=/nowhere"], "'/nowhere' does not exist"),
])
def test_wrong_words_of_serve(tiny_model, words, text):
    r = subprocess.run([BIN / "nereid", "serve", tiny_model, *words], capture_output=True, text=True, timeout=60)
    assert r.returncode != 0 and text in r.stderr


def test_an_adapter_that_does_not_fit_ends_the_start(tiny_model, cache, tmp_path):
    path = adapter.write("qwen2", tmp_path / "a")
    s = Server(tiny_model, cache, "--lora", f"wrong={path}")
    assert s.process.wait(60) != 0
    assert "LoRA adapter 'wrong'" in s.log_text() and "an adapter of another model" in s.log_text()
    s.stop()
