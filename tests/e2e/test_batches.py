# SPDX-License-Identifier: Apache-2.0
"""/v1/files and /v1/batches, driven by OpenAI's own Python package and by bare requests, over a small random model."""
import io
import json
import os
import pathlib
import socket
import time

import httpx
import openai
import pytest

from llm_server import Server

MODEL = "ensemble"
KEYS = ("first-key", "second-key")
CHAT, TEXT, EMBED, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
END = ("completed", "failed", "cancelled", "expired")


@pytest.fixture(scope="module")
def server(tiny_model, cache):
    s = Server(tiny_model, cache, *(f"--api-key={k}" for k in KEYS), "--set=embedding_pooling:mean", "--openai-file-mb=1",
               "--openai-files-mb=4", "--openai-batch-requests=3")
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, s.log_text()[-4000:]
    assert "AddressSanitizer" not in s.log_text()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key=KEYS[0], max_retries=0)


@pytest.fixture(scope="module")
def other(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key=KEYS[1], max_retries=0)


def line(i, url=TEXT, **body):
    base = {"prompt": f"number {i}", "max_tokens": 8, "temperature": 0} if url == TEXT else {}
    return {"custom_id": f"id-{i}", "method": "POST", "url": url, "body": {"model": MODEL, **base, **body}}


def upload(client, lines, name="requests.jsonl"):
    text = lines if isinstance(lines, bytes) else "".join(json.dumps(x) + "\n" for x in lines).encode()
    return client.files.create(file=(name, io.BytesIO(text)), purpose="batch")


def create(client, lines, endpoint=TEXT, window="24h", **more):
    file = upload(client, lines)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window, **more)


def wait(client, batch, states=END, seconds=60):
    until = time.monotonic() + seconds
    while batch.status not in states:
        assert time.monotonic() < until, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def read(client, file_id):
    text = client.files.content(file_id).text if file_id else ""
    return [json.loads(x) for x in text.split("\n") if x]  # splitlines knows further ends of lines


def bare(server, method, path, key=KEYS[0], **more):
    headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
    r = httpx.request(method, server.url(path), headers=headers, timeout=60, **more)
    return r.status_code, r.json()


# ---- files ----

def test_a_file_comes_and_goes(client):
    text = b'{"a": 1}\r\n\r\n--x\n' * 3
    f = upload(client, text, "na\"me \u00e9.jsonl")
    assert f.id.startswith("file-") and f.object == "file" and f.purpose == "batch" and f.bytes == len(text)
    assert f.filename == "na\"me \u00e9.jsonl" or "me" in f.filename  # clients write marks in names in several ways
    assert abs(f.created_at - time.time()) < 60 and f.expires_at - f.created_at == 30 * 86400 and f.status == "processed"
    assert client.files.retrieve(f.id) == f
    assert client.files.content(f.id).content == text
    assert f.id in [x.id for x in client.files.list()]
    assert client.files.delete(f.id).deleted
    with pytest.raises(openai.NotFoundError, match="No such File"):
        client.files.retrieve(f.id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(f.id)
    with pytest.raises(openai.NotFoundError):
        client.files.delete(f.id)


def test_an_empty_file_and_one_over_several_pieces(client):
    for n in (0, 262144 - 1, 262144, 700001):
        text = os.urandom(n)
        f = upload(client, text)
        assert f.bytes == n and client.files.content(f.id).content == text
        client.files.delete(f.id)


def test_files_expire_as_their_client_says(client):
    f = client.files.create(file=("a.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert f.expires_at - f.created_at == 3600
    client.files.delete(f.id)


def test_lists_are_cut_into_pages(client, other):
    mine = [upload(client, b"x", f"{i}") for i in range(5)]
    theirs = upload(other, b"y")
    ids = [f.id for f in reversed(mine)]
    first = client.files.list(limit=2)
    assert [f.id for f in first.data] == ids[:2] and first.has_more
    assert [f.id for f in client.files.list(limit=2)][:5] == ids  # the package follows the pages
    assert [f.id for f in client.files.list(order="asc", after=ids[3], limit=1).data] == [ids[2]]
    assert client.files.list(purpose="batch_output", after=ids[0]).data == []
    assert theirs.id not in [f.id for f in client.files.list()]
    for f in mine:
        client.files.delete(f.id)
    other.files.delete(theirs.id)


def test_the_files_of_another_key_are_not_there(client, other):
    f = upload(client, b"secret")
    for ask in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(f.id)
    with pytest.raises(openai.BadRequestError, match="input_file_id"):
        other.batches.create(input_file_id=f.id, endpoint=TEXT, completion_window="24h")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=client.base_url, api_key="none", max_retries=0).files.retrieve(f.id)
    assert client.files.content(f.id).content == b"secret"
    client.files.delete(f.id)


@pytest.mark.parametrize("parts, field, why", [
    ([("purpose", (None, "batch"))], "file", "missing"),
    ([("file", ("a", b"x"))], "purpose", "missing"),
    ([("purpose", (None, "fine-tune")), ("file", ("a", b"x"))], "purpose", "must be batch"),
    ([("purpose", (None, "batch")), ("purpose", (None, "batch")), ("file", ("a", b"x"))], "purpose", "twice"),
    ([("purpose", (None, "batch")), ("file", (None, "x"))], "file", "filename"),
    ([("purpose", (None, "batch")), ("file", ("a", b"x")), ("file", ("b", b"x"))], "file", "twice"),
    ([("purpose", (None, "batch")), ("user", (None, "me")), ("file", ("a", b"x"))], "user", "no such field"),
    ([("purpose", (None, "b" * 300)), ("file", ("a", b"x"))], "purpose", "255"),
    ([("purpose", (None, "batch")), ("file", ("a", b"x")), ("expires_after[seconds]", (None, "3600"))], "expires_after", "anchor"),
    ([("purpose", (None, "batch")), ("file", ("a", b"x")), ("expires_after[anchor]", (None, "created_at")),
      ("expires_after[seconds]", (None, "60"))], "expires_after", "3600"),
])
def test_a_form_that_is_wrong_is_told_its_field(server, parts, field, why):
    status, answer = bare(server, "POST", "/v1/files", files=parts)
    assert status == 400 and answer["error"]["param"] == field and why in answer["error"]["message"], answer
    assert answer["error"]["type"] == "invalid_request_error"


def test_what_is_no_form_is_refused(server):
    for body, headers, why in [(b"{}", {"Content-Type": "application/json"}, "multipart/form-data"),
                               (b"x", {"Content-Type": "multipart/form-data"}, "boundary"),
                               (b"x", {"Content-Type": "multipart/form-data; boundary=b"}, "last delimiter"),
                               (b"", {"Content-Type": "multipart/form-data; boundary=b"}, "no body")]:
        status, answer = bare(server, "POST", "/v1/files", content=body, headers=headers)
        assert status == 400 and why in answer["error"]["message"], answer


def test_limits_are_answered_413_and_nothing_stays(client, server):
    def small(n):
        return [("purpose", (None, "batch")), ("file", ("a", b"x" * n))]
    for n in ((1 << 20) + 1, 4 << 20):  # the second is refused before it is sent
        status, answer = bare(server, "POST", "/v1/files", files=small(n))
        assert status == 413 and answer["error"]["code"] == "file_too_large", answer
    files = [upload(client, b"x" * (1 << 20)) for _ in range(4)]
    status, answer = bare(server, "POST", "/v1/files", files=small(1))
    assert status == 413 and answer["error"]["code"] == "storage_full", answer
    for f in files:
        client.files.delete(f.id)
    client.files.delete(upload(client, b"x" * (1 << 20)).id)


def test_a_form_in_chunks_and_a_client_that_leaves(server, client):
    before = len(list(client.files.list()))
    body = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
            b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"y" * 600000 + b"\r\n--b--\r\n")

    def pieces():
        for i in range(0, len(body), 30011):
            yield body[i:i + 30011]
    status, answer = bare(server, "POST", "/v1/files", content=pieces(), headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert status == 200 and answer["bytes"] == 600000, answer
    client.files.delete(answer["id"])
    head = (f"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEYS[0]}\r\n"
            f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    for n in (0, 10, 300000, len(body) - 1):
        with socket.create_connection(("127.0.0.1", server.http)) as s:
            s.sendall(head + body[:n])
            time.sleep(0.05)
    with socket.create_connection(("127.0.0.1", server.http)) as s:  # and two in one connection, one after the other
        s.sendall((head + body) * 2)
        text = b""
        while text.count(b'"status":"processed"') < 2:
            got = s.recv(65536)
            assert got, text
            text += got
    files = list(client.files.list())
    assert len(files) == before + 2
    for f in files[:2]:
        client.files.delete(f.id)


def test_a_page_of_another_origin_may_not_upload(server):
    headers = {"Origin": "http://evil.example"}
    parts = [("purpose", (None, "batch")), ("file", ("a", b"x"))]
    assert bare(server, "POST", "/v1/files", files=parts, headers=headers)[0] == 403
    assert bare(server, "POST", "/v1/batches", content="{}", headers=headers)[0] == 403
    assert bare(server, "POST", "/v1/batches/x/cancel", headers=headers)[0] == 403
    assert bare(server, "DELETE", "/v1/files/x", headers=headers)[0] == 403


# ---- batches ----

def test_a_batch_of_completions_is_what_clients_get(client):
    batch = create(client, [line(i) for i in range(20)], metadata={"a": "b"})
    assert batch.id.startswith("batch_") and batch.object == "batch" and batch.status in ("validating", "in_progress")
    assert batch.metadata == {"a": "b"} and batch.completion_window == "24h" and batch.expires_at - batch.created_at == 86400
    batch = wait(client, batch)
    assert batch.status == "completed" and batch.errors is None and batch.error_file_id is None, batch
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (20, 20, 0)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    out = {x["custom_id"]: x for x in read(client, batch.output_file_id)}
    assert sorted(out) == sorted(f"id-{i}" for i in range(20))
    tokens = 0
    for i in (0, 7, 19):
        x, same = out[f"id-{i}"], client.completions.create(**line(i)["body"])
        assert x["error"] is None and x["response"]["status_code"] == 200 and x["id"].startswith("batch_req_")
        assert x["response"]["request_id"]
        assert x["response"]["body"]["choices"][0]["text"] == same.choices[0].text
    for x in out.values():
        tokens += x["response"]["body"]["usage"]["completion_tokens"]
    assert batch.usage.output_tokens == tokens and batch.usage.total_tokens > tokens
    file = client.files.retrieve(batch.output_file_id)
    assert file.purpose == "batch_output" and file.filename == f"{batch.id}_output.jsonl"
    assert batch.id in [b.id for b in client.batches.list()]


def test_the_other_endpoints(client):
    chat = create(client, [line(1, CHAT, messages=[{"role": "user", "content": "hello"}], max_tokens=6, temperature=0)], CHAT)
    embed = create(client, [line(1, EMBED, input=["a", "b"])], EMBED)
    responses = create(client, [line(1, RESPONSES, input="hello", max_output_tokens=6, temperature=0)], RESPONSES)
    x = read(client, wait(client, chat).output_file_id)[0]["response"]["body"]
    same = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=6, temperature=0)
    assert x["object"] == "chat.completion" and x["choices"][0]["message"]["content"] == same.choices[0].message.content
    x = read(client, wait(client, embed).output_file_id)[0]["response"]["body"]
    same = client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    assert x["data"][1]["embedding"] == pytest.approx(same.data[1].embedding, abs=1e-5)
    done = wait(client, responses)
    x = read(client, done.output_file_id)[0]["response"]["body"]
    assert x["object"] == "response" and x["usage"]["output_tokens"] == done.usage.output_tokens > 0
    with pytest.raises(openai.NotFoundError):  # it is in the file, and not kept in memory besides
        client.responses.retrieve(x["id"])


def test_requests_that_fail_stand_in_the_error_file(client):
    batch = wait(client, create(client, [line(1), line(2, temperature=9), line(3, model="none"), line(4)]))
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 2, 2)
    assert {x["custom_id"] for x in read(client, batch.output_file_id)} == {"id-1", "id-4"}
    errors = {x["custom_id"]: x["response"] for x in read(client, batch.error_file_id)}
    assert errors["id-2"]["status_code"] == 400 and errors["id-2"]["body"]["error"]["param"] == "temperature"
    assert errors["id-3"]["status_code"] == 404 and errors["id-3"]["body"]["error"]["code"] == "model_not_found"


def test_wrong_lines_are_told_by_their_number(client):
    lines = [json.dumps(x) for x in (line(1), line(1), line(2, CHAT), {**line(3), "method": "GET"}, {**line(4), "body": 7},
                                     {**line(5), "url": "/v1/none"}, {**line(6), "custom_id": None}, line(7, stream=True))]
    text = "\n".join([lines[0], "", *lines[1:], "{", ""]).encode()
    batch = wait(client, create(client, text))
    assert batch.status == "failed" and batch.failed_at and batch.output_file_id is None
    told = {e.line: (e.code, e.param) for e in batch.errors.data}
    assert told == {3: ("duplicate_custom_id", "custom_id"), 4: ("mismatched_url", "url"), 5: ("invalid_method", "method"),
                    6: ("invalid_body", "body"), 7: ("invalid_url", "url"), 8: ("invalid_custom_id", "custom_id"),
                    9: ("invalid_body", "body.stream"), 10: ("invalid_json_line", None)}
    assert batch.request_counts.total == 9 and batch.request_counts.completed == 0
    batch = wait(client, create(client, b"\n\n"))
    assert batch.status == "failed" and batch.errors.data[0].code == "empty_file" and batch.errors.data[0].line is None


@pytest.mark.parametrize("change, field", [
    ({"input_file_id": None}, "input_file_id"), ({"input_file_id": "file-none"}, "input_file_id"), ({"input_file_id": 7}, "input_file_id"),
    ({"endpoint": "/v1/models"}, "endpoint"), ({"endpoint": None}, "endpoint"),
    ({"completion_window": "1w"}, "completion_window"), ({"completion_window": "8d"}, "completion_window"),
    ({"completion_window": "0h"}, "completion_window"), ({"completion_window": 24}, "completion_window"),
    ({"metadata": []}, "metadata"), ({"metadata": {"a": 1}}, "metadata"), ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"), ({"output_expires_after": {"seconds": 3600}}, "output_expires_after"),
    ({"other": 1}, "other"),
])
def test_a_wrong_field_of_a_batch_is_named(server, client, change, field):
    body = {"input_file_id": upload(client, [line(1)]).id, "endpoint": TEXT, "completion_window": "24h", **change}
    status, answer = bare(server, "POST", "/v1/batches", content=json.dumps(body))
    assert status == 400 and answer["error"]["param"] == field, answer
    client.files.delete(client.files.list(limit=1).data[0].id)


def test_bodies_and_queries_that_cannot_be_read(server):
    assert bare(server, "POST", "/v1/batches", content="[]")[0] == 400
    assert bare(server, "POST", "/v1/batches", content="{")[0] == 400
    assert bare(server, "GET", "/v1/batches?limit=0")[0] == 400
    assert bare(server, "GET", "/v1/batches?after=batch_x")[0] == 400
    assert bare(server, "GET", "/v1/files?limit=x")[0] == 400
    assert bare(server, "GET", "/v1/files?order=up")[0] == 400
    assert bare(server, "GET", "/v1/batches/batch_x")[0] == 404
    assert bare(server, "POST", "/v1/batches/batch_x/cancel")[0] == 404
    assert bare(server, "PUT", "/v1/files")[0] == 405
    assert bare(server, "GET", "/v1/files", key="none")[0] == 401


def test_a_batch_is_cancelled_and_says_what_it_did_not_do(client, server):
    batch = create(client, [line(i, max_tokens=60, ignore_eos=True) for i in range(300)])
    batch = wait(client, batch, ("in_progress", *END))
    while batch.status == "in_progress" and batch.request_counts.completed < 3:
        batch = client.batches.retrieve(batch.id)
    shown = client.batches.cancel(batch.id)
    assert shown.status == "cancelling" and shown.cancelling_at
    batch = wait(client, shown)
    assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
    out, errors = read(client, batch.output_file_id), read(client, batch.error_file_id)
    assert len(out) == batch.request_counts.completed >= 3 and errors
    assert sorted(x["custom_id"] for x in out + errors) == sorted(f"id-{i}" for i in range(300))
    assert {x["error"]["code"] for x in errors} == {"batch_cancelled"} and errors[0]["response"] is None
    status, answer = bare(server, "POST", f"/v1/batches/{batch.id}/cancel")
    assert status == 400 and "has ended" in answer["error"]["message"]


def test_a_batch_ends_with_its_time(client):
    batch = wait(client, create(client, [line(i, max_tokens=100, ignore_eos=True) for i in range(5000)], window="2s"))
    assert batch.status == "expired" and batch.expired_at >= batch.expires_at
    errors = read(client, batch.error_file_id)
    assert {x["error"]["code"] for x in errors} == {"batch_expired"}
    assert len(errors) + batch.request_counts.completed == 5000 and batch.request_counts.failed == len(errors)
    for f in client.files.list():
        client.files.delete(f.id)


def test_a_batch_whose_answers_find_no_room_fails_and_keeps_what_it_has(client):
    lines = [line(i, max_tokens=60, ignore_eos=True, logprobs=5) for i in range(1500)]
    batch = create(client, lines)
    fill = [upload(client, b"x" * (1 << 20)) for _ in range(3)]
    batch = wait(client, batch)
    assert batch.status == "failed" and batch.errors.data[0].code == "storage_full", batch
    assert len(read(client, batch.output_file_id)) == batch.request_counts.completed > 0
    for f in [*fill, *client.files.list(purpose="batch_output")]:
        client.files.delete(f.id)


def test_batches_of_two_keys_take_turns_and_do_not_see_each_other(client, other):
    long = create(client, [line(i, max_tokens=100, ignore_eos=True) for i in range(400)])
    short = create(other, [line(i) for i in range(3)])
    short = wait(other, short)
    assert short.status == "completed" and client.batches.retrieve(long.id).status in ("validating", "in_progress")
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve(short.id)
    with pytest.raises(openai.NotFoundError):
        other.batches.cancel(long.id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(short.output_file_id)
    assert [b.id for b in other.batches.list()] == [short.id]
    client.batches.cancel(long.id)
    assert wait(client, long).status == "cancelled"
    page = client.batches.list(limit=2)
    assert page.has_more and page.data[0].id == long.id


def test_clients_are_answered_while_a_batch_runs(client):
    batch = create(client, [line(i, max_tokens=100, ignore_eos=True) for i in range(200)])
    wait(client, batch, ("in_progress", *END))
    for i in range(10):
        assert client.completions.create(**line(i)["body"]).choices[0].text
    client.batches.cancel(batch.id)
    wait(client, batch)


def test_the_input_may_be_deleted_while_it_runs(client):
    batch = create(client, [line(i) for i in range(50)])
    wait(client, batch, ("in_progress", *END))
    client.files.delete(batch.input_file_id)
    batch = wait(client, batch)
    assert batch.status == "completed" and len(read(client, batch.output_file_id)) == 50


# ---- the folder ----

def test_a_restart_goes_on_where_it_was(tiny_model, cache, tmp_path):
    folder = tmp_path / "files"
    args = (f"--openai-files-dir={folder}", "--openai-batch-requests=2", "--api-key=k")
    first = Server(tiny_model, cache, *args).wait_ready()
    client = openai.OpenAI(base_url=first.url("/v1"), api_key="k", max_retries=0)
    n = 400
    batch = create(client, [line(i, max_tokens=40, ignore_eos=True) for i in range(n)], metadata={"a": "b"})
    small = wait(client, create(client, [line(1)]))
    while client.batches.retrieve(batch.id).request_counts.completed < 5:
        time.sleep(0.01)
    taken = Server(tiny_model, cache, f"--openai-files-dir={folder}")
    assert taken.process.wait(60) != 0 and "in use by another server" in taken.log_text()
    assert first.stop() == 0
    assert f"batch {batch.id} is not finished" in first.log_text() and "goes on when a server starts" in first.log_text()
    assert folder.stat().st_mode & 0o777 == 0o700
    part = max(folder.glob("*.data"), key=lambda p: p.stat().st_size if not p.with_suffix(".json").exists() else 0)
    before = part.read_bytes().count(b"\n")
    with open(part, "ab") as f:
        f.write(b'{"custom_id": "half a li')  # as a power cut leaves it
    (folder / "file-000000000000000000000000.data").write_bytes(b"an upload that was under way")

    second = Server(tiny_model, cache, *args).wait_ready()
    client = openai.OpenAI(base_url=second.url("/v1"), api_key="k", max_retries=0)
    batch = wait(client, client.batches.retrieve(batch.id))
    out = read(client, batch.output_file_id)
    assert batch.status == "completed" and batch.request_counts.completed == n and batch.metadata == {"a": "b"}
    assert sorted(x["custom_id"] for x in out) == sorted(f"id-{i}" for i in range(n)) and before >= 5
    assert batch.usage.output_tokens == 40 * n
    again = client.batches.retrieve(small.id)
    assert again.status == "completed" and len(read(client, again.output_file_id)) == 1
    assert not (folder / "file-000000000000000000000000.data").exists()
    assert second.stop() == 0

    third = Server(tiny_model, cache, f"--openai-files-dir={folder}", "--api-key=another").wait_ready()
    foreign = openai.OpenAI(base_url=third.url("/v1"), api_key="another", max_retries=0)
    assert list(foreign.files.list()) == [] and list(foreign.batches.list()) == []
    assert third.stop() == 0


def test_a_killed_server_loses_no_line(tiny_model, cache, tmp_path):
    folder = tmp_path / "files"
    args = (f"--openai-files-dir={folder}", "--openai-batch-requests=2")
    first = Server(tiny_model, cache, *args).wait_ready()
    client = openai.OpenAI(base_url=first.url("/v1"), api_key="-", max_retries=0)
    batch = create(client, [line(i, max_tokens=40, ignore_eos=True) for i in range(300)])
    while client.batches.retrieve(batch.id).request_counts.completed < 5:
        time.sleep(0.01)
    first.process.kill()
    first.process.wait()
    second = Server(tiny_model, cache, *args).wait_ready()
    client = openai.OpenAI(base_url=second.url("/v1"), api_key="-", max_retries=0)
    batch = wait(client, client.batches.retrieve(batch.id))
    ids = [x["custom_id"] for x in read(client, batch.output_file_id)]
    assert batch.status == "completed" and sorted(ids) == sorted(f"id-{i}" for i in range(300))
    assert second.stop() == 0


def test_a_temporary_folder_ends_with_the_server(tiny_model, cache, tmp_path):
    s = Server(tiny_model, cache, env={"TMPDIR": str(tmp_path)}).wait_ready()
    client = openai.OpenAI(base_url=s.url("/v1"), api_key="-", max_retries=0)
    assert list(tmp_path.glob("nereid-files-*")) == []
    batch = create(client, [line(i, max_tokens=100, ignore_eos=True) for i in range(2000)])
    wait(client, batch, ("in_progress", *END))
    folders = list(tmp_path.glob("nereid-files-*"))
    assert len(folders) == 1 and folders[0].stat().st_mode & 0o777 == 0o700
    assert s.stop() == 0
    assert list(tmp_path.glob("nereid-files-*")) == []
    assert "is lost with the temporary folder" in s.log_text()


def test_a_folder_that_others_may_read_is_refused(tiny_model, cache, tmp_path):
    folder = pathlib.Path(tmp_path) / "open"
    folder.mkdir(mode=0o755)
    s = Server(tiny_model, cache, f"--openai-files-dir={folder}")
    assert s.process.wait(60) != 0 and "chmod 700" in s.log_text()
