# SPDX-License-Identifier: Apache-2.0
"""/v1/responses with background: made without a client, asked for, cancelled, followed; with OpenAI's Python package."""
import json
import shutil
import time

import httpx
import openai
import pytest

from llm_server import Server

MODEL = "ensemble"
FOX = "the quick brown fox"
KEYS = ("first-key", "second-key")
UNDER_WAY = ("queued", "in_progress")


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    """The small model with room for an answer that nobody waits out."""
    folder = tmp_path_factory.mktemp("background") / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(config, max_position_embeddings=200000)))
    return folder


@pytest.fixture(scope="module")
def server(folder, cache):
    s = Server(folder, cache, *(f"--api-key={k}" for k in KEYS), "--openai-background=3", "--strict-model-names=true")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def connect(server, key):
    return openai.OpenAI(base_url=server.url("/v1"), api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    return connect(server, KEYS[0])


def start(client, tokens=12, **more):
    return client.responses.create(**{"model": MODEL, "input": FOX, "background": True, "max_output_tokens": tokens,
                                      "temperature": 0, "extra_body": {"ignore_eos": True}, **more})


def start_long(client, **more):
    return start(client, 190000, **more)


def wait(client, r, wanted=lambda r: r.status not in UNDER_WAY):
    end = time.monotonic() + 120
    while not wanted(r):
        assert time.monotonic() < end, r
        time.sleep(0.02)
        r = client.responses.retrieve(r.id)
    return r


def test_an_answer_is_made_without_its_client(client):
    same = client.responses.create(model=MODEL, input=FOX, max_output_tokens=12, temperature=0, extra_body={"ignore_eos": True})
    r = start(client, metadata={"a": "b"})
    assert r.status == "queued" and r.background and r.output == [] and r.usage is None and r.metadata == {"a": "b"}
    done = wait(client, r)
    assert done.status == same.status == "incomplete" and done.output_text == same.output_text and done.id == r.id
    assert done.background and done.usage.output_tokens == 12 and done.created_at == r.created_at
    assert [i.content[0].text for i in client.responses.input_items.list(r.id)] == [FOX]
    later = client.responses.create(model=MODEL, input="so", previous_response_id=r.id, max_output_tokens=2)
    assert later.usage.input_tokens > done.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.cancel(r.id)
    assert "has ended" in e.value.message
    client.responses.delete(r.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(r.id)


def test_a_long_answer_is_shown_and_cancelled(client):
    r = wait(client, start_long(client), lambda r: r.status == "in_progress")
    assert r.output == [] and [i.content[0].text for i in client.responses.input_items.list(r.id)] == [FOX]
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input="so", previous_response_id=r.id)
    for _ in range(2):
        r = client.responses.cancel(r.id)
        assert r.status == "cancelled" and r.error is None
    assert client.responses.retrieve(r.id).status == "cancelled"
    client.responses.delete(r.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel(r.id)


def test_too_many_are_refused_until_one_ends(client, server):
    jobs = [start_long(client) for _ in range(3)]
    with pytest.raises(openai.InternalServerError) as e:
        start(client)
    assert e.value.status_code == 503 and "--openai-background" in e.value.message
    client.responses.cancel(jobs[0].id)
    client.responses.delete(jobs[1].id)  # which cancels it
    assert wait(client, start(client)).status == "incomplete"
    client.responses.cancel(jobs[2].id)
    wait_for_metric(server)


def wait_for_metric(server):
    """Nothing runs in the engine: what was cancelled takes no memory."""
    end = time.monotonic() + 60
    while server.metric("nv_trt_llm_request_metrics", request_type="active") > 0:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stream_is_left_and_taken_up_again(client):
    stream = start(client, 60, stream=True)
    begun = [next(stream) for _ in range(4)]
    assert [e.type for e in begun[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert begun[0].response.status == begun[1].response.status == "queued" and begun[0].response.background
    stream.close()
    name, last = begun[0].response.id, begun[-1].sequence_number
    rest = list(client.responses.retrieve(name, stream=True, starting_after=last))
    events = begun + rest
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert rest[-1].type == "response.incomplete"
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    done = client.responses.retrieve(name)
    assert text == done.output_text == rest[-1].response.output_text and done.usage.output_tokens == 60
    again = list(client.responses.retrieve(name, stream=True))
    assert [e.to_dict() for e in again] == [e.to_dict() for e in events]
    assert list(client.responses.retrieve(name, stream=True, starting_after=len(events))) == []


def test_a_stream_ends_where_its_answer_is_cancelled(client):
    stream = start_long(client, stream=True)
    name = next(stream).response.id
    with client.responses.retrieve(name, stream=True) as other:
        assert [next(other).type for _ in range(3)][-1] == "response.in_progress"
        client.responses.cancel(name)
        for events in (stream, other):
            assert all(e.type != "response.completed" for e in events)
    assert client.responses.retrieve(name).status == "cancelled"


def test_no_key_reaches_the_answers_of_another(client, server):
    r, other = start_long(client, stream=True), connect(server, KEYS[1])
    name = next(r).response.id
    for call in (other.responses.retrieve, other.responses.cancel, other.responses.delete, other.responses.input_items.list,
                 lambda i: list(other.responses.retrieve(i, stream=True))):
        with pytest.raises(openai.NotFoundError) as e:
            call(name)
        assert e.value.code == "response_not_found"
    client.responses.cancel(name)


def test_errors_name_the_field(client, server):
    for more, part in (({"store": False}, "needs store"), ({"background": "yes"}, "true or false")):
        with pytest.raises(openai.BadRequestError) as e:
            start(client, **more)
        assert e.value.param == "background" and part in e.value.message
    with pytest.raises(openai.NotFoundError):
        start(client, model="nothing")
    r = wait(client, start(client))
    plain = client.responses.create(model=MODEL, input=FOX, max_output_tokens=1)
    for name in (r.id, plain.id):
        with pytest.raises(openai.BadRequestError) as e:
            list(client.responses.retrieve(name, stream=True))
        assert e.value.param == "stream"
    for after in ("x", "-1", "99999999999999999999"):
        got = httpx.get(server.url(f"/v1/responses/{r.id}?stream=true&starting_after={after}"), headers={"x-api-key": KEYS[0]})
        assert got.status_code == 400 and got.json()["error"]["param"] == "starting_after"


def test_it_can_be_turned_off(folder, cache):
    s = Server(folder, cache, "--openai-responses-kept=0")
    try:
        with pytest.raises(openai.BadRequestError) as e:
            start(connect(s.wait_ready(), "none"))
        assert "--openai-responses-kept=0" in e.value.message
    finally:
        assert s.stop() == 0


def test_the_end_of_the_server_does_not_wait_for_it(folder, cache):
    s = Server(folder, cache)
    try:
        client = connect(s.wait_ready(), "none")
        wait(client, start_long(client), lambda r: r.status == "in_progress")
        stream = start_long(client, stream=True)
        assert next(stream).type == "response.created"
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]
    with pytest.raises((httpx.HTTPError, StopIteration)):
        while True:
            next(stream)
