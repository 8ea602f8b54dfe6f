# SPDX-License-Identifier: Apache-2.0
"""/api/pull and /api/delete: models of a hub come into a running server and go out of it."""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import httpx
import ollama
import pytest

from llm_server import ROOT, Server

sys.path.insert(0, str(ROOT / "tests/tools"))
from hub_server import Hub  # noqa: E402

NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
pytestmark = pytest.mark.skipif("no-hub" in subprocess.run([NEREID, "--version"], capture_output=True, text=True).stdout,
                                reason="the build is without libcurl")
NAME = "org/tiny"
ONE = {"temperature": 0, "num_predict": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", out], check=True,
                   stdout=subprocess.DEVNULL)
    return out


@pytest.fixture
def hub(folder):
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    h = Hub({NAME: files, "org/other": files})
    yield h
    h.close()


def environment(hub, tmp_path):
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_CACHE": "", "HF_TOKEN": "", "HF_HUB_OFFLINE": "",
            "HF_HUB_DOWNLOAD_TIMEOUT": "20", "HOME": str(tmp_path), "no_proxy": "127.0.0.1,localhost"}


@pytest.fixture
def serve(folder, hub, tmp_path):
    servers = []

    def start(*args, word=None):
        s = Server(word or f"first={folder}", tmp_path, *args, env=environment(hub, tmp_path))
        servers.append(s)
        return s.wait_ready()

    yield start
    for s in servers:
        status = s.stop()
        assert status == 0, f"the server ended with {status}:\n{s.log_text()[-4000:]}"


def lines(s, body):
    with httpx.stream("POST", s.url("/api/pull"), json=body, timeout=120) as r:
        assert r.status_code == 200, r.read()
        assert r.headers["content-type"] == "application/x-ndjson"
        return [json.loads(x) for x in r.iter_lines() if x]


def names(s):
    return [m["name"] for m in s.request("/api/tags")[1]["models"]]


def answer(s, model):
    status, body = s.request("/api/generate", {"model": model, "prompt": "the quick", "raw": True, "stream": False, "options": ONE})
    assert status == 200, body
    return body["response"]



def test_a_pulled_model_answers_and_a_deleted_one_is_gone(serve, hub, tmp_path):
    s = serve()
    client = ollama.Client(host=s.url(""))
    seen = lines(s, {"model": f"hf.co/{NAME}"})
    assert seen[0] == {"status": "pulling manifest"} and seen[-1] == {"status": "success"}
    large = [x for x in seen if "digest" in x]
    total = len(hub.repos[NAME]["model.safetensors"])
    assert large and all(x["digest"].startswith("sha256:") and x["total"] > 0 for x in large)
    last = {x["digest"]: x for x in large}
    assert all(x["completed"] == x["total"] for x in last.values()) and total in [x["total"] for x in large]
    assert names(s) == ["first", NAME]
    assert answer(s, NAME) == answer(s, "first") == answer(s, f"{NAME}:latest")
    assert {m["id"]: m["status"]["value"] for m in s.request("/v1/models")[1]["data"]} == {"first": "loaded", NAME: "loaded"}

    before = len(hub.sent)
    assert client.pull(NAME).status == "success" and len(hub.sent) == before  # it is here, and the newest: nothing is fetched
    assert client.delete(NAME).status == "success"
    assert names(s) == ["first"] and not list((tmp_path / "hf/hub").glob("models--*"))
    status, body = s.request("/api/generate", {"model": NAME, "prompt": "x"})
    assert status == 404 and "this server has `first`" in body["error"]
    assert "error" not in client.pull(NAME) and answer(s, NAME)  # and again
    assert names(s) == ["first", NAME]


def loads(s):
    return {m["id"]: (m["status"]["value"], m["status"]["pulled"]) for m in s.request("/v1/models")[1]["data"]}


def test_a_pulled_model_is_there_after_a_restart(serve, hub, tmp_path):
    s = serve()
    for name in (NAME, "org/other"):
        assert s.request("/api/pull", {"model": name, "stream": False}) == (200, {"status": "success"})
    told = answer(s, NAME)
    assert s.request("/api/delete", {"model": "org/other"}, method="DELETE")[0] == 200
    assert s.stop() == 0
    before = len(hub.asked)
    s.start()
    s.wait_ready()
    s.wait_log(f"  pulled    {NAME}\n")
    assert names(s) == ["first", NAME]
    assert loads(s) == {"first": ("unloaded", False), NAME: ("unloaded", True)}
    assert answer(s, NAME) == told and loads(s)[NAME] == ("loaded", True)
    assert len(hub.asked) == before  # what is in the cache is served without a question

    other = serve("--allow-pull=false")  # what clients bring is not wanted there
    assert names(other) == ["first"]
    assert s.request("/api/delete", {"model": NAME}, method="DELETE")[0] == 200
    assert names(s) == ["first"] and not list((tmp_path / "hf/hub").glob("models--*"))
    assert s.stop() == 0
    s.start()
    assert names(s.wait_ready()) == ["first"]


def test_what_is_removed_by_hand_is_not_served_again(serve, hub, tmp_path):
    s = serve()
    assert s.request("/api/pull", {"model": NAME, "stream": False}) == (200, {"status": "success"})
    assert s.stop() == 0
    subprocess.run([NEREID, "rm", "--yes", f"hf:{NAME}"], env=os.environ | s.env, check=True, capture_output=True)
    s.start()
    assert names(s.wait_ready()) == ["first"]


def test_a_second_pull_brings_the_newest_revision(serve, hub, folder, tmp_path):
    s = serve()
    assert s.request("/api/pull", {"model": NAME, "stream": False}) == (200, {"status": "success"})
    old = answer(s, NAME)
    newer = tmp_path / "newer"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "qwen3", "--out", newer],
                   check=True, stdout=subprocess.DEVNULL)
    hub.repos[NAME] = {p.name: p.read_bytes() for p in newer.iterdir() if p.is_file()}
    assert answer(s, NAME) == old
    assert s.request("/api/pull", {"model": NAME, "stream": False}) == (200, {"status": "success"})
    new = answer(s, NAME)
    assert new != old and names(s) == ["first", NAME]
    assert s.stop() == 0
    s.start()
    assert answer(s.wait_ready(), NAME) == new
    assert s.request("/api/delete", {"model": NAME}, method="DELETE")[0] == 200
    assert names(s) == ["first"]


def test_a_type_and_a_revision_are_part_of_the_name(serve, hub, tmp_path):
    gguf = tmp_path / "m-Q8_0.gguf"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", gguf, "--format", "gguf",
                    "--quant", "q8_0"], check=True, stdout=subprocess.DEVNULL)
    hub.repos["org/ggufs"] = {gguf.name: gguf.read_bytes()}
    s = serve()
    for name in ("org/ggufs:Q8_0", f"{NAME}@main"):
        assert s.request("/api/pull", {"model": name, "stream": False}) == (200, {"status": "success"})
        assert answer(s, name) and s.request(f"/v1/models/{name}")[1]["status"]["pulled"]
        assert s.request("/api/delete", {"model": name}, method="DELETE")[0] == 200
    assert names(s) == ["first"] and not list((tmp_path / "hf/hub").glob("models--*/snapshots/*/*"))


def test_what_others_had_in_the_cache_stays_there(serve, hub, tmp_path):
    s = serve()
    env = os.environ | s.env
    subprocess.run([NEREID, "pull", NAME, "-q"], env=env, check=True, capture_output=True)
    assert s.request("/api/pull", {"model": NAME, "stream": False}) == (200, {"status": "success"})
    assert s.request("/api/delete", {"name": NAME}, method="DELETE")[0] == 200
    assert names(s) == ["first"] and list((tmp_path / "hf/hub/models--org--tiny/blobs").iterdir())


def test_two_who_ask_for_one_model_share_its_pull(serve, hub):
    s = serve()
    hub.delay = 0.2
    with httpx.stream("POST", s.url("/api/pull"), json={"model": NAME}, timeout=120) as a:
        rest = a.iter_lines()
        next(rest)
        both = lines(s, {"model": NAME})
        assert [json.loads(x) for x in rest][-1] == both[-1] == {"status": "success"}
    paths = [p for p, first, _ in hub.sent if first == 0]
    assert len(paths) == len(set(paths))


def wait_for(what, seconds=60):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def children(s):
    """Processes that prepare a model for this server: they have its cache."""
    found = []
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"--prepare-only" in (p / "cmdline").read_bytes() and s.env["NEREID_CACHE"].encode() in (p / "environ").read_bytes():
                found.append(p.name)
        except OSError:
            pass  # it has ended, or is another's
    return found


def test_a_pull_ends_when_the_last_client_leaves_and_can_go_on(serve, hub):
    s = serve()
    hub.delay = 30
    c = http.client.HTTPConnection("127.0.0.1", s.http, timeout=60)
    c.request("POST", "/api/pull", json.dumps({"model": NAME}))
    assert json.loads(c.getresponse().readline()) == {"status": "pulling manifest"}
    assert children(s)
    c.close()
    wait_for(lambda: not children(s))
    hub.delay = 0

    def again():
        status, body = s.request("/api/pull", {"model": NAME, "stream": False})
        assert status == 200 or "ask again" in body["error"]
        return status == 200
    wait_for(again)
    assert answer(s, NAME)


def test_a_few_pulls_run_together_and_the_next_comes_later(serve, hub):
    """limits: PULLS"""
    s = serve()
    hub.delay = 30
    clients = []
    for i in range(4):
        hub.repos[f"org/m{i}"] = hub.repos[NAME]
        clients.append(http.client.HTTPConnection("127.0.0.1", s.http, timeout=60))
        clients[i].request("POST", "/api/pull", json.dumps({"model": f"org/m{i}"}))
        assert json.loads(clients[i].getresponse().readline()) == {"status": "pulling manifest"}
    status, body = s.request("/api/pull", {"model": NAME, "stream": False})
    assert status == 503 and "4 models are being pulled" in body["error"], body
    for c in clients:
        c.close()
    wait_for(lambda: not children(s))


def test_errors_say_what_to_do(serve, hub, folder):
    s = serve()
    for name in ("llama3.2", "https://example.com/a/b.gguf", "http://127.0.0.1/x/y", "../x/y", "org/../x", "-q/x", "/etc/passwd"):
        status, body = s.request("/api/pull", {"model": name})
        assert status == 400 and "ORG/NAME[:QUANT]" in body["error"], name
    assert s.request("/api/pull", {})[1]["error"] == "model: must be the name of a model"
    status, body = s.request("/api/pull", {"model": "org/none", "stream": False})
    assert status == 404 and "org/none" in body["error"]
    seen = lines(s, {"model": "org/none"})
    assert "org/none" in seen[-1]["error"] and "success" not in str(seen)
    status, body = s.request("/api/delete", {"model": "first"}, method="DELETE")
    assert status == 400 and "was not pulled" in body["error"]
    assert s.request("/api/delete", {"model": "org/none"}, method="DELETE")[0] == 404
    for path in ("/api/push", "/api/create", "/api/copy"):
        assert s.request(path, {"model": "first"})[0] == 400, path
    r = httpx.post(s.url("/api/pull"), json={"model": NAME}, headers={"Origin": "http://evil.example"})
    assert r.status_code == 403 and names(s) == ["first"]


def test_only_who_may_load_may_pull(serve, hub, folder):
    s = serve("--api-key", "secret")
    assert s.request("/api/pull", {"model": NAME})[0] == s.request("/api/delete", {"model": NAME}, method="DELETE")[0] == 401
    r = httpx.post(s.url("/api/pull"), json={"model": NAME, "stream": False}, headers={"Authorization": "Bearer secret"}, timeout=120)
    assert r.status_code == 200, r.text
    off = serve("--allow-pull=false")
    status, body = off.request("/api/pull", {"model": NAME})
    assert status == 400 and "--allow-pull" in body["error"]
    everybodys = serve("--host=0.0.0.0")
    status, body = everybodys.request("/api/pull", {"model": NAME})
    assert status == 400 and "--allow-pull" in body["error"]
    for more in (["--allow-pull=true"], ["--api-key", "secret"]):
        s = serve("--host=0.0.0.0", *more)
        r = httpx.post(s.url("/api/pull"), json={"model": "org/none", "stream": False}, headers={"Authorization": "Bearer secret"}, timeout=120)
        assert "--allow-pull" not in r.text, r.text
    one = serve(word=folder)
    status, body = one.request("/api/pull", {"model": NAME})
    assert status == 400 and "--keep-alive -1" in body["error"]


def test_the_end_of_the_server_ends_a_pull(serve, hub):
    s = serve()
    hub.delay = 30
    c = http.client.HTTPConnection("127.0.0.1", s.http, timeout=60)
    c.request("POST", "/api/pull", json.dumps({"model": NAME}))
    r = c.getresponse()
    r.readline()
    s.process.send_signal(signal.SIGTERM)
    assert "error" in json.loads(r.read().splitlines()[-1])
    s.process.wait(60)
    assert not children(s)
