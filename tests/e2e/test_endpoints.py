# SPDX-License-Identifier: Apache-2.0
"""vLLM's and llama.cpp's endpoints with ours: endpoints.tsv against the table of routes, every route against a
server and the documents, and docs/endpoints.md, which is written from both."""
import csv
import http.client
import json
import pathlib
import re
import socket

import pytest

from llm_server import ROOT

HERE = pathlib.Path(__file__).resolve().parent
PAGE = ROOT / "docs/endpoints.md"
HEAD = """# Endpoints of vLLM and llama.cpp, with ours

`tests/e2e/endpoints_page.py` writes this page from `tests/e2e/endpoints.tsv` and the table of routes
(`src/frontends/openai/openai.c`); a test asks for each of them. Theirs are those of their references as of November 2026, options that
open more included. What a field does is said on the page of its API: [openai.md](openai.md), [responses.md](responses.md),
[messages.md](messages.md), [batch.md](batch.md), [llama.md](llama.md), [ollama.md](ollama.md).
"""
OF_SERVER = re.compile(r'\{"([^"]+)", ((?:NRD_HTTP_(?:ON|IN)_[A-Z]+(?: \| )?)+), "([a-z-]+)", (\w+), nrd_oai_on_method\}')


def routes():
    """{path: methods} of the table in C, with the names of OpenAPI for parts of paths."""
    text = (ROOT / "src/frontends/openai/openai.c").read_text()
    table = text[text.index("routes[] = {"):]
    rows = OF_SERVER.findall(table[:table.index("};")])
    assert len(rows) == table[:table.index("};")].count("nrd_oai_on_method")
    out = {}
    for pattern, methods, _, _ in rows:
        name = next((f"{x}_id" for x in ("response", "file", "batch") if pattern.startswith(f"v1/{x}")), "model")
        path = "/" + re.sub(r"\{m\*?\}", "{%s}" % name, pattern)
        out[path] = {m for m in ("GET", "POST", "HEAD") if f"_{m}" in methods}
    for path in ("/api/delete", "/v1/responses/{response_id}", "/v1/files/{file_id}"):
        out[path].add("DELETE")
    return out


def rows():
    with open(HERE / "endpoints.tsv") as f:
        return list(csv.DictReader(f, delimiter="\t"))


def page():
    out, known = [HEAD], routes()
    for server in ("vLLM", "llama.cpp"):
        out.append(f"\n## {server}\n\n| theirs | ours | |\n|---|---|---|\n")
        for r in (r for r in rows() if r["server"] == server):
            ours = {"=": "the same", "-": "no"}.get(r["ours"], f"`{r['ours']}`")
            out.append(f"| `{r['method']} {r['path']}` | {ours} | {r['note']} |\n")
    out.append("\n## All of ours\n\nBeside these, `/v2` and others ([server.md](server.md)).\n\n| path | methods |\n|---|---|\n")
    for path, methods in known.items():
        out.append(f"| `{path}` | {', '.join(sorted(methods - {'HEAD'}))} |\n")
    return "".join(out)


def test_what_the_table_says_is_there_is_there():
    known = routes()
    for r in rows():
        if r["ours"] == "=":
            assert r["method"] in known.get(r["path"], ()), r
        elif r["ours"] != "-":
            assert r["ours"] in known and r["ours"] != r["path"], r
        else:
            assert r["method"] not in known.get(r["path"], ()), r
        assert r["note"] or r["ours"] != "-", r  # what is left out says why
    pairs = [(r["server"], r["method"], r["path"]) for r in rows()]
    assert len(pairs) == len(set(pairs))


def test_the_page_is_what_the_tables_make():
    assert PAGE.read_text() == page(), "tests/e2e/endpoints_page.py > docs/endpoints.md"


def test_every_route_answers(server):
    nowhere = server.request("/v1/no/such/thing", b"{}")
    assert nowhere[0] == 404
    for path, methods in routes().items():
        url = path.format(model="ensemble", response_id="resp_none", file_id="file-none", batch_id="batch_none")
        for method in methods - {"HEAD"}:
            status, answer = server.request(url, b"{}" if method == "POST" else None, method)
            assert status != 405 and (status, answer) != nowhere, (method, path, status, answer)
            assert status in (200, 400, 404), (method, path, status, answer)
            assert isinstance(answer, str if path == "/metrics" else dict | list), (method, path, answer)
            if status == 404:
                assert "{" in path, (method, path)
        assert server.request(url, None, "PATCH")[0] == 405, path


def test_a_base_url_without_v1_reaches_chats(server):
    """As with llama.cpp's server."""
    body = json.dumps({"model": "ensemble", "messages": [{"role": "user", "content": "the quick"}], "max_tokens": 4, "temperature": 0}).encode()
    (status, plain), (_, v1) = (server.request(path, body) for path in ("/chat/completions", "/v1/chat/completions"))
    assert status == 200 and plain["choices"] == v1["choices"] and plain["object"] == "chat.completion"
    assert server.request("/chat/completions", b"{}")[1] == server.request("/v1/chat/completions", b"{}")[1]


@pytest.mark.parametrize("method, path, message", [
    ("GET", "/v1/chat/completions", lambda e: e["error"]["message"]), ("POST", "/v1/models", lambda e: e["error"]["message"]),
    ("POST", "/v1/responses/resp_none", lambda e: e["error"]["message"]), ("PUT", "/v1/completions", lambda e: e["error"]["message"]),
    ("GET", "/v1/messages", lambda e: e["type"] == "error" and e["error"]["message"]), ("GET", "/api/chat", lambda e: e["error"])])
def test_another_method_is_refused_in_the_form_of_the_api(server, method, path, message):
    status, answer = server.request(path, b"{}" if method != "GET" else None, method)
    assert status == 405 and message(answer) == "This method is not allowed here."


@pytest.mark.parametrize("path, of", [
    ("/v1/chat/completions", lambda e: e["error"] if e["error"]["type"] == "invalid_request_error" else None),
    ("/v1/messages", lambda e: e["error"] if e["type"] == "error" else None), ("/api/chat", lambda e: {"message": e["error"]}),
    ("/v2/models/ensemble/generate", lambda e: {"message": e["error"]})])
def test_a_body_that_is_too_large_is_refused_in_the_form_of_the_api(server, path, of):
    """Both by its length, before it is sent, and where it comes in chunks."""
    size = 64 << 20
    for how, body in [(f"Content-Length: {size + 1}", b""), ("Transfer-Encoding: chunked", b"%x\r\n" % (size + 1) + b" " * (size + 1))]:
        with socket.create_connection(("127.0.0.1", server.http)) as s:
            s.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{how}\r\n\r\n".encode())
            data = b""
            try:
                s.sendall(body)
            except OSError:
                pass  # it has answered meanwhile
            while piece := s.recv(1 << 16):
                data += piece
        head, _, answer = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400") and b"application/json" in head, head
        assert re.match(r"request body size of \d+ bytes exceeds the maximum allowed input size of 67108864 bytes",
                        of(json.loads(answer))["message"]), answer


@pytest.mark.parametrize("path, of", [("/v1/models", lambda e: e["error"]["message"]), ("/api/tags", lambda e: e["error"]),
                                      ("/v2", lambda e: e["error"])])
def test_another_host_is_refused_in_the_form_of_the_api(server, path, of):
    connection = http.client.HTTPConnection("127.0.0.1", server.http)
    connection.request("GET", path, headers={"Host": "elsewhere.example"})
    answer = connection.getresponse()
    assert answer.status == 403 and "not a name of this server" in of(json.loads(answer.read()))
    connection.close()


def test_every_route_is_documented(server):
    described = {p: {m.upper() for m in methods} for p, methods in server.request("/openapi.json")[1]["paths"].items()}
    text = "".join((ROOT / f"docs/{p}.md").read_text() for p in ("openai", "responses", "messages", "llama", "ollama", "lora", "several-models", "batch"))
    for path, methods in routes().items():
        if path not in {"/openapi.json"}:
            assert methods - {"HEAD"} - ({"POST"} if path == "/ping" else set()) == described.pop(path, None), path
        word = re.sub(r"\{[a-z]+_id\}", "ID", path).replace("{model}", "NAME")
        assert word in text or f"`{word.removeprefix('/api/')}`" in text, path
    assert not described, "described, but not in the table of routes"
