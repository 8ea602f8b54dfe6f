# SPDX-License-Identifier: Apache-2.0
"""max_time of /v1: then the answer is what there is."""
import time

import pytest

LONG = 440  # tokens, of the small model's 512 positions
MESSAGES = [{"role": "user", "content": "a"}]


def ask(server, path, **more):
    body = {"model": server.request("/v1/models")[1]["data"][0]["id"], "max_tokens": LONG, "ignore_eos": True,
            "temperature": 0, **more}
    return server.request(path, {**body, **({"messages": MESSAGES} if "chat" in path else {"prompt": "a"})})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_answer_is_what_there_is(server, path):
    start = time.monotonic()
    status, whole = ask(server, path)
    seconds = time.monotonic() - start
    assert status == 200 and whole["usage"]["completion_tokens"] == LONG, whole
    assert whole["choices"][0]["finish_reason"] == "length" and "stop_reason" not in whole["choices"][0]
    for _ in range(20):  # until less than all of it has fitted in
        seconds /= 3
        status, part = ask(server, path, max_time=max(seconds, 0.001))
        assert status == 200, part
        if part["usage"]["completion_tokens"] < LONG:
            break
    assert part["choices"][0]["finish_reason"] == "length" and part["choices"][0]["stop_reason"] == "timeout", part
    assert part["usage"]["completion_tokens"] < LONG


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_stream_ends_with_the_reason(server, path):
    status, text = ask(server, path, stream=True, max_time=0.001)
    assert status == 200 and text.rstrip().endswith("data: [DONE]"), text
    assert '"finish_reason":"length","stop_reason":"timeout"' in text and text.count("stop_reason") == 1, text[-500:]


@pytest.mark.parametrize("wrong", [0, -1, "1", 1e9])
def test_wrong_times_are_refused(server, wrong):
    status, answer = ask(server, "/v1/completions", max_time=wrong)
    assert status == 400 and answer["error"]["param"] == "max_time", answer
