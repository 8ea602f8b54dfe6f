# SPDX-License-Identifier: Apache-2.0
"""A model is offered under its own name; the repository's names keep working."""
import json
import shutil
import subprocess
import sys
import urllib.request

import openai
import pytest

from llm_server import BIN, ROOT, Server
from ports import free_ports

ASK = {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 6, "temperature": 0}
ALIASES = ["ensemble", "tensorrt_llm", "tensorrt_llm_bls"]


@pytest.fixture(scope="module")
def named(tiny_model, cache, tmp_path_factory):
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("named") / "Tiny-Llama-1.5")
    s = Server(folder, cache)
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


def ids(server):
    return [m["id"] for m in server.request("/v1/models")[1]["data"]]


def test_the_folders_name_is_the_models(named):
    assert ids(named) == ["Tiny-Llama-1.5"]
    status, answer = named.request("/v1/chat/completions", dict(ASK, model="Tiny-Llama-1.5"))
    assert status == 200 and answer["model"] == "Tiny-Llama-1.5"
    assert named.request("/v1/models/Tiny-Llama-1.5")[1]["id"] == "Tiny-Llama-1.5"


@pytest.mark.parametrize("alias", ALIASES)
def test_the_repositorys_names_are_aliases(named, alias):
    own = named.request("/v1/chat/completions", dict(ASK, model="Tiny-Llama-1.5"))[1]["choices"]
    status, answer = named.request("/v1/chat/completions", dict(ASK, model=alias))
    assert status == 200 and answer["choices"] == own and answer["model"] == alias
    assert named.request(f"/v1/models/{alias}")[0] == 200


def test_a_wrong_name_is_told_the_right_one(tiny_model, cache):
    s = Server(tiny_model, cache, "--strict-model-names=true", "--served-model-name=Tiny-Llama-1.5")
    try:
        s.wait_ready()
        client = openai.OpenAI(base_url=s.url("/v1"), api_key="none", max_retries=0)
        for call in (lambda: client.chat.completions.create(model="tiny", messages=ASK["messages"]),
                     lambda: client.models.retrieve("preprocessing")):
            with pytest.raises(openai.NotFoundError) as e:
                call()
            assert e.value.code == "model_not_found" and "`Tiny-Llama-1.5`" in e.value.body["message"]
            assert "ensemble" not in e.value.body["message"]
    finally:
        assert s.stop() == 0


CHAT = {"messages": ASK["messages"], "max_tokens": 4}
ANY_NAME = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "the quick", "max_tokens": 4}), ("/v1/messages", CHAT),
            ("/v1/messages/count_tokens", CHAT), ("/v1/responses", {"input": "the quick", "max_output_tokens": 16}),
            ("/api/chat", {"messages": ASK["messages"], "stream": False, "options": {"num_predict": 4}}),
            ("/api/generate", {"prompt": "the quick", "options": {"num_predict": 4}}), ("/completion", {"prompt": "a", "n_predict": 4}),
            ("/tokenize", {"prompt": "the quick"}), ("/v1/chat/completions", dict(CHAT, stream=True))]


def post(server, path, body):
    request = urllib.request.Request(server.url(path), json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as r:
        return r.headers.get_all("x-nereid-warning"), r.read().decode()


@pytest.mark.parametrize("path, body", ANY_NAME)
def test_one_model_answers_to_any_name_and_says_so(named, path, body):
    warnings, text = post(named, path, dict(body, model="gpt-4o"))
    assert warnings == ["this server has no model 'gpt-4o': 'Tiny-Llama-1.5' answers"]
    assert "gpt-4o" not in text and ("Tiny-Llama-1.5" in text or "count" in path or "token" in path)
    for known in ("Tiny-Llama-1.5", "ensemble"):
        assert post(named, path, dict(body, model=known))[0] is None


def test_one_model_answers_where_none_is_named(named):
    warnings, text = post(named, "/v1/chat/completions", CHAT)
    assert warnings is None and json.loads(text)["model"] == "Tiny-Llama-1.5"
    status, answer = named.request("/v1/chat/completions", dict(CHAT, model=3))
    assert status == 400 and answer["error"]["param"] == "model"


def test_a_warning_stays_one_line_and_stands_beside_others(named):
    warnings, _ = post(named, "/v1/chat/completions", dict(CHAT, model="a\r\nx: \u00e4" + "b" * 500, nonsense=1))
    assert sorted(warnings) == ["this server has no model 'a..x: .." + "b" * 92 + "': 'Tiny-Llama-1.5' answers", "unknown fields: nonsense"]
    assert named.request("/v1/models/gpt-4o")[0] == 404  # it is not listed, and not described


def test_a_model_that_comes_and_goes_is_loaded_by_any_name(tiny_model, cache):
    s = Server(f"A={tiny_model}", cache, "--allow-pull=false")
    try:
        s.wait_ready()
        assert post(s, "/v1/chat/completions", dict(CHAT, model="gpt-4o"))[0] == ["this server has no model 'gpt-4o': 'A' answers"]
    finally:
        assert s.stop() == 0


def test_an_unknown_path_below_v1_has_an_error_of_its_api(named):
    client = openai.OpenAI(base_url=named.url("/v1"), api_key="none", max_retries=0)
    for ask in (lambda: client.get("/nothing", cast_to=object), lambda: client.moderations.create(input="x")):
        with pytest.raises(openai.NotFoundError) as e:
            ask()
        assert "/v1/" in e.value.body["message"] and "/openapi.json" in e.value.body["message"]
        assert e.value.code == "unknown_url"
    status, answer = named.request("/v1/messages/nothing", {})
    assert status == 404 and answer["type"] == "error"


def test_v2_keeps_its_names(named):
    assert named.request("/v2/models/ensemble")[0] == 200
    assert named.request("/v2/models/Tiny-Llama-1.5")[0] in (400, 404)


def test_the_live_view_shows_the_name(named):
    named.request("/v1/chat/completions", dict(ASK, model="ensemble"))
    engine = named.request("/ui/stats")[1]["engines"][0]
    assert engine["name"] == "Tiny-Llama-1.5" and engine["model"] == "tensorrt_llm"
    shown = subprocess.run([BIN / "nereid", "top", "--once", named.url("/")], capture_output=True, text=True).stdout
    assert "Tiny-Llama-1.5  (tensorrt_llm version 1)" in shown


def test_served_model_name_gives_other_names(tiny_model, cache):
    s = Server(tiny_model, cache, "--served-model-name", "org/a-model,b")
    try:
        s.wait_ready()
        assert ids(s) == ["org/a-model", "b"]
        for name in ("org/a-model", "b", *ALIASES):
            assert s.request("/v1/chat/completions", dict(ASK, model=name))[0] == 200, name
        status, answer = s.request("/v1/models/llama")
        assert status == 404 and "`org/a-model`, `b`" in answer["error"]["message"]
    finally:
        assert s.stop() == 0


def run(*words):
    return subprocess.run([BIN / "nereid", *map(str, words)], capture_output=True, text=True)


def name_in(repo):
    text = (repo / "tensorrt_llm/config.pbtxt").read_text()
    return text.split('key: "served_model_name"')[1].split('string_value: "')[1].split('"')[0]


def test_repo_writes_the_name(tiny_model, tmp_path):
    engine = tmp_path / "my engine"
    assert run("build", tiny_model, "--output_dir", engine).returncode == 0
    args = ["repo", "--engine_dir", engine, "--tokenizer_dir", tiny_model, "--output_dir", tmp_path / "repo"]
    assert run(*args).returncode == 0 and name_in(tmp_path / "repo") == "my engine"
    assert run(*args, "--served-model-name=x,y").returncode == 0 and name_in(tmp_path / "repo") == "x,y"
    for bad in ('a"b', "a,,b", ",", "a\nb", "x" * 300):
        r = run(*args, "--served_model_name", bad)
        assert r.returncode == 1 and "served_model_name" in r.stderr, bad


def test_a_repository_has_its_names_in_its_configuration(tiny_model, cache, tmp_path):
    engine, repo = tmp_path / "e", tmp_path / "repo"
    assert run("build", tiny_model, "--output_dir", engine).returncode == 0
    assert run("repo", "--engine_dir", engine, "--tokenizer_dir", tiny_model, "--output_dir", repo).returncode == 0
    ports = [f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), free_ports(3))]
    r = run("serve", repo, "--served-model-name", "x", *ports)
    assert r.returncode == 1 and "served_model_name" in r.stderr and "tensorrt_llm/config.pbtxt" in r.stderr
    config = repo / "tensorrt_llm/config.pbtxt"
    config.write_text(config.read_text().replace('string_value: "e"', 'string_value: "${served_model_name}"'))
    s = Server(repo, cache)
    try:
        s.wait_ready()
        assert sorted(ids(s)) == ["ensemble", "tensorrt_llm"]
    finally:
        assert s.stop() == 0


def test_a_gguf_files_name_is_without_its_ending(cache, tmp_path):
    file = tmp_path / "Some.Model-Q8_0.gguf"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--format", "gguf",
                    "--out", file], check=True, stdout=subprocess.DEVNULL)
    s = Server(file, cache)
    try:
        s.wait_ready()
        assert ids(s) == ["Some.Model-Q8_0"]
    finally:
        assert s.stop() == 0


def test_a_snapshot_of_the_hub_has_the_hubs_name(tiny_model, cache, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "models--Org--Tiny-1B/snapshots/0123456789abcdef")
    s = Server(folder, cache)
    try:
        s.wait_ready()
        assert ids(s) == ["Org/Tiny-1B"]
        assert s.request("/v1/models/Org/Tiny-1B")[1]["id"] == "Org/Tiny-1B"
    finally:
        assert s.stop() == 0
