# SPDX-License-Identifier: Apache-2.0
"""/v1 as a server: long prompts, clients that go away, keys and their limits, ports, a tokenizer that changes."""
import asyncio
import contextlib
import http.client
import json
import shutil
import socket
import threading
import time

import openai
import pytest

from llm_server import Server, free_ports, wait_until
from openai_client import HELLO, MODEL, chat, client, ids_of  # noqa: F401 (client is a fixture)


@pytest.fixture
def server_of_a_copy(tiny_model, tmp_path):
    """The server, and the folder that its tokenizer lies in."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    s = Server(folder, tmp_path, "--model-control-mode=explicit", "--load-model=*")
    try:
        yield s.wait_ready(), folder
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def test_a_tokenizer_that_changed_in_its_folder_is_taken_at_the_next_load(server_of_a_copy):
    server, folder = server_of_a_copy
    text = "the quick brown fox"

    def preprocessed():
        status, answer = server.request("/v2/models/preprocessing/infer", {"inputs": [
            {"name": "QUERY", "shape": [1, 1], "datatype": "BYTES", "data": [text]},
            {"name": "REQUEST_OUTPUT_LEN", "shape": [1, 1], "datatype": "INT32", "data": [4]}],
            "outputs": [{"name": "INPUT_ID"}]})
        assert status == 200, answer
        return answer["outputs"][0]["data"]

    before = ids_of(server, {"prompt": text})
    assert preprocessed() == before
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert preprocessed() == before  # until it is loaded again
    status, answer = server.request("/v2/repository/models/preprocessing/load", {}, "POST")
    assert status == 200, answer
    after = preprocessed()
    assert len(after) > len(before)
    assert wait_until(lambda: ids_of(server, {"prompt": text}) == after)


def test_a_long_prompt_does_not_hold_up_other_requests(tiny_model, cache):
    """With one event loop: it answers others while a worker tokenizes."""
    s = Server(tiny_model, cache, "--http-thread-count=1")
    text = "the quick brown fox jumps over the lazy dog " * 300000
    took = {}

    def ask():
        begin = time.monotonic()
        took["status"], took["answer"] = s.request("/tokenize", {"model": MODEL, "prompt": text}, timeout=120)
        took["long"] = time.monotonic() - begin

    def workers():
        return s.request("/ui/stats")[1]["workers"]

    try:
        s.wait_ready()
        long = threading.Thread(target=ask)
        long.start()
        assert wait_until(lambda: workers()["running"] == 1, 60)
        begin = time.monotonic()
        ids = ids_of(s, {"prompt": "the quick brown fox"})
        short = time.monotonic() - begin
        assert long.is_alive(), "the long text was tokenized before the short one was answered"
        long.join()
        assert took["status"] == 200 and took["answer"]["count"] > 100 * len(ids)
        assert short < took["long"] / 2, (short, took["long"])
        assert workers()["running"] == 0 and workers()["done"] >= 1
    finally:
        assert s.stop() == 0


def test_a_client_that_leaves_while_a_worker_reads_leaves_nothing(tiny_model, cache):
    s = Server(tiny_model, cache, "--http-thread-count=1")
    body = json.dumps({"model": MODEL, "prompt": "the quick brown fox " * 200000}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    try:
        s.wait_ready()
        for _ in range(6):
            c = socket.create_connection(("127.0.0.1", s.http))
            c.sendall(head + body)
            c.close()
        assert wait_until(lambda: (w := s.request("/ui/stats")[1]["workers"])["running"] == w["waiting"] == 0, 120)
        assert len(ids_of(s, {"prompt": "the quick brown fox"})) > 0
    finally:
        assert s.stop() == 0


def test_tokenize_and_back(server):
    ids = ids_of(server, {"prompt": "the quick brown fox", "add_special_tokens": False})
    status, answer = server.request("/detokenize", {"model": MODEL, "tokens": ids})
    assert status == 200 and answer["prompt"].strip() == "the quick brown fox"
    assert server.request("/detokenize", {"model": MODEL, "tokens": [-1]})[0] == 400


def test_clients_that_go_away_stop_the_work(client, server):
    def outputs(kind):
        return server.metric(f"nv_llm_output_token_len_{kind}", model="tensorrt_llm")
    done, tokens = outputs("count"), outputs("sum")
    streams = [chat(client, max_tokens=100000, stream=True, n=4, extra_body={"ignore_eos": True}) for _ in range(4)]
    for s in streams:
        next(iter(s))
        s.close()
    assert wait_until(lambda: outputs("count") == done + 16)
    assert outputs("sum") - tokens < 16 * 400  # each would have gone on to almost 500


def test_async_and_many_at_once(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.url("/v1"), api_key="none") as c:
            async def one(i):
                stream = await c.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, seed=i % 4,
                                                         stream=True)
                return "".join([e.choices[0].delta.content or "" async for e in stream])
            return await asyncio.gather(*(one(i) for i in range(32)))
    texts = asyncio.run(main())
    assert all(texts[i] == texts[i % 4] for i in range(32))


def test_keys_rate_limit_and_origins(tiny_model, cache, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nsecond-key\n")
    s = Server(tiny_model, cache, "--api-key=first-key", f"--api-key-file={keys}", "--key-rate-limit=3",
               "--cors-origin=https://page.example")
    try:
        s.wait_ready()
        for key in ["", "first-ke", "first-key1", "wrong"]:
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=s.url("/v1"), api_key=key or "x", max_retries=0).models.list()
        assert s.request("/v1/models")[0] == 401
        assert s.request("/v2/health/ready")[0] == 200
        second = openai.OpenAI(base_url=s.url("/v1"), api_key="second-key", max_retries=0)
        for _ in range(3):
            chat(second, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as e:
            chat(second, max_tokens=1)
        assert int(e.value.response.headers["Retry-After"]) > 0
        chat(openai.OpenAI(base_url=s.url("/v1"), api_key="first-key", max_retries=0), max_tokens=1)
        c = http.client.HTTPConnection("127.0.0.1", s.http, timeout=30)
        for origin, allowed in [("https://page.example", "https://page.example"), ("https://other.example", None)]:
            c.request("OPTIONS", "/v1/chat/completions", headers={"Origin": origin})
            r = c.getresponse()
            assert r.status == 204 and r.headers["Access-Control-Allow-Origin"] == allowed
            r.read()
    finally:
        assert s.stop() == 0


def test_a_key_has_so_many_tokens_and_answers_at_once(tiny_model, cache):
    s = Server(tiny_model, cache, "--api-key=a", "--api-key=b", "--openai-max-concurrent=1", "--openai-token-limit=2")
    try:
        s.wait_ready()
        first, second = (openai.OpenAI(base_url=s.url("/v1"), api_key=k, max_retries=0) for k in "ab")

        def refused(client):
            with pytest.raises(openai.RateLimitError) as e:
                chat(client, max_tokens=1)
            assert int(e.value.response.headers["Retry-After"]) > 0
            return e.value.message

        stream = chat(first, max_tokens=100000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        assert "requests of this key at once" in refused(first)
        chat(second, max_tokens=1)  # with its prompt more than a minute's tokens
        assert "tokens for this key" in refused(second)
        stream.close()
        assert wait_until(lambda: "tokens for this key" in refused(first))  # its place is free, its tokens are used
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("beside", [True, False])
def test_a_port_of_their_own(tiny_model, cache, beside):
    (port,) = free_ports(1)
    s = Server(tiny_model, cache, f"--openai-port={port}", "--api-key=k", f"--allow-http={str(beside).lower()}")
    own = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
    try:
        if beside:
            s.wait_ready()
        assert wait_until(lambda: "Started OpenAI endpoints" in s.log_text())
        whole = chat(own, temperature=0).choices[0].message.content
        assert "".join(e.choices[0].delta.content or "" for e in chat(own, temperature=0, stream=True)) == whole
        if beside:
            there = openai.OpenAI(base_url=s.url("/v1"), api_key="k", max_retries=0)
            assert chat(there, temperature=0).choices[0].message.content == whole
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for path, status in [("/v2/health/ready", 404), ("/", 404), ("/v1/models", 401), ("/openapi.json", 401)]:
            c.request("GET", path)
            r = c.getresponse()
            r.read()
            assert r.status == status, path
        with pytest.raises(OSError) if not beside else contextlib.nullcontext():
            s.request("/v2/health/ready")
    finally:
        assert s.stop() == 0


def test_the_endpoints_can_be_turned_off(tiny_model, cache):
    s = Server(tiny_model, cache, "--allow-openai=false")
    try:
        s.wait_ready()
        assert s.request("/v1/models")[0] == 404
    finally:
        s.stop()
