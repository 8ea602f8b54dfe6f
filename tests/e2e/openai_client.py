# SPDX-License-Identifier: Apache-2.0
"""What the tests of /v1 share: the client, and how it is used."""
import openai
import pytest

MODEL = "ensemble"
HELLO = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key="none", max_retries=0)


def chat(client, messages=HELLO, **more):
    more.setdefault("max_tokens", 12)
    return client.chat.completions.create(model=MODEL, messages=messages, **more)


def ids_of(server, body):
    status, answer = server.request("/tokenize", dict(body, model=MODEL))
    assert status == 200, answer
    assert answer["count"] == len(answer["tokens"])
    return answer["tokens"]
