# SPDX-License-Identifier: Apache-2.0
"""Servers and clients on hosts of their own, with a network between them that is slow, loses packets and is cut."""
import json
import threading
import time
import urllib.request

import pytest

from llm_server import Server
from hosts import are_possible  # noqa: I001  (llm_server has set its folder)

pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root and network namespaces")
LONG = {"text_input": "A", "max_tokens": 100, "top_k": 1, "stream": True}


@pytest.fixture
def server(hosts, tiny_model, cache):
    """Of two ranks, on the first host."""
    s = hosts[0].run(lambda: Server(tiny_model, cache, "--tp-size=2", "--restart-on-failure=false", address="0.0.0.0").wait_ready())
    try:
        yield s
    finally:
        assert hosts[0].run(s.stop) == 0, s.log_text()[-4000:]


def read_stream(s, address, began=None):
    """Its text; `began` is set behind the first piece."""
    request = urllib.request.Request(f"http://{address}:{s.http}/v2/models/ensemble/generate_stream", data=json.dumps(LONG).encode())
    text = ""
    with urllib.request.urlopen(request, timeout=60) as r:
        for line in r:
            if line.startswith(b"data: "):
                text += json.loads(line[6:])["text_output"]
                if began:
                    began.set()
    return text


def at_once(n, function, *words):
    """In the host whose thread calls it."""
    out = [None] * n

    def one(i):
        out[i] = function(*words)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def test_streams_are_whole_over_a_slow_network_that_loses_packets(hosts, server):
    one, two, wire = hosts
    want = one.run(read_stream, server, "127.0.0.1")
    wire.delay, wire.loss = 0.02, 0.03
    assert two.run(at_once, 4, read_stream, server, one.address) == [want] * 4
    assert want and wire.n_lost > 0


def test_a_network_that_is_cut_holds_up_nobody_else(hosts, server):
    """Clients that are gone without a word: others are answered as before, and the server ends in order."""
    one, two, wire = hosts
    want = one.run(read_stream, server, "127.0.0.1")
    began = threading.Event()
    lost = []

    def leave():
        try:
            lost.append(read_stream(server, one.address, began))
        except OSError as e:
            lost.append(e)

    def start():
        threads = [threading.Thread(target=leave) for _ in range(4)]
        for t in threads:
            t.start()
        return threads

    wire.delay = 0.02
    threads = two.run(start)
    assert began.wait(30)
    wire.is_cut = True
    for _ in range(3):
        begin = time.monotonic()
        assert one.run(at_once, 3, read_stream, server, "127.0.0.1") == [want] * 3
        assert time.monotonic() - begin < 5
    wire.is_cut = False  # TCP goes on where it was
    for t in threads:
        t.join(60)
    assert lost == [want] * 4
