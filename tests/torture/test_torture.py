# SPDX-License-Identifier: Apache-2.0
"""Each of the first calls of a kind fails once, then every some: the server lives, answers, and the
next request works. `make torture` takes every call and every case."""
import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torture_cases as cases  # noqa: E402
import harness  # noqa: E402

ALL = {c.name: c for c in cases.all_cases(True)}
REQUESTS = ["infer-json", "infer-binary", "infer-ensemble", "shared-memory", "metadata", "config",
            "statistics", "index", "metrics", "grpc-infer", "grpc-stream", "grpc-metadata", "grpc-config"]
GUIDES = ["guide-regex", "guide-json_schema", "guide-ebnf_grammar"]
TEXTS = ["generate", "completions", "completions-stream", "chat-stream", "responses", "responses-stream", "llama"]
LOADS = ["load", "load-config", "load-python", "load-lora", "load-draft"]
LOADS_WITHOUT_MEMORY = ["load", "load-config", "load-ensemble", "reload", "reload-ensemble", "load-tokenizer", "load-llm", "load-draft"]
MODELS = ["ident", "both", "loaded", "py", "drafted", *cases.LLM]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return cases.make_repository(tmp_path_factory.mktemp("torture"))


@pytest.fixture(scope="module")
def server(repository):
    s = harness.Server(repository.parent, repository, *cases.options(MODELS), "--allow-lora-loading=true")
    log = s.log_path
    try:
        yield s
    finally:
        code = s.stop()
    assert code == 0, log.read_text()[-3000:]


def run(server, name, kind, most_each):
    r, _ = harness.torture(ALL[name], None, kind, most_each, server=server, seconds=20)
    assert not r.broken, r.broken[0]
    return r


@pytest.mark.parametrize("name", REQUESTS)
def test_memory_ends_once(server, name):
    r = run(server, name, "alloc", 60)
    assert r.n_run > 0 and r.n_refused > 0, "nothing failed: the library is not in the server"


@pytest.mark.parametrize("name", TEXTS)
def test_memory_ends_once_behind_a_text(server, name):
    r = run(server, name, "alloc", 25)
    assert r.n_run > 20 and r.n_refused > 0


@pytest.mark.parametrize("name", GUIDES)
def test_memory_ends_once_while_a_guide_is_compiled(server, name):
    """Each guide is new; one of which a part is missing would let other texts pass."""
    r = run(server, name, "alloc", 60)
    assert r.n_run > 40 and r.n_refused > 0


def test_memory_ends_once_while_an_adapter_is_loaded(server):
    r = run(server, "load-lora", "alloc", 60)
    assert r.n_run > 20 and r.n_refused > 0


@pytest.mark.parametrize("name", LOADS_WITHOUT_MEMORY)
def test_memory_ends_once_while_a_model_is_loaded(server, name):
    """And unloaded before. The order fails and says why, and the next one works."""
    r, _ = harness.torture(ALL[name], None, "alloc", 20, server=server, seconds=6)
    assert not r.broken, r.broken[0]
    answers = [text for text in r.refusals if "Connection" not in text]  # the connection itself had no memory
    silent = [text for text in answers if "out of memory" not in text]
    assert r.n_run > 10 and answers and not silent, silent


@pytest.mark.parametrize("name,kind", [("infer-binary", "read"), ("infer-binary", "write"),
                                       ("completions-stream", "read"), ("shared-memory", "mmap")])
def test_a_connection_or_mapping_breaks(server, name, kind):
    assert run(server, name, kind, 20).n_run > 0


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("kind", ["open", "read", "process", "look", "thread"])
def test_a_load_fails_in_the_middle(server, name, kind):
    r, _ = harness.torture(ALL[name], None, kind, 12, server=server, seconds=6)
    assert not r.broken, r.broken[0]


@pytest.mark.parametrize("kind", ["write", "epoll", "alloc"])
def test_the_server_ends_in_the_middle_of_a_request(repository, kind):
    def start():
        return harness.Server(repository.parent, repository, *cases.options(["slow"]))
    r = harness.torture_end(ALL["end"], start, kind, 3, seconds=6)
    assert not r.broken, r.broken[0]


@pytest.mark.parametrize("name", ["infer-json", "completions-stream"])
def test_a_write_that_fails_delays_no_answer(server, name):
    """Among them the ring that wakes an event loop: lost, its task would wait for the next tick."""
    case = ALL[name]
    for n in range(1, 12):
        server.arm("write", n)
        began = time.monotonic()
        harness.attempt(case, server)
        took = time.monotonic() - began
        server.disarm()
        assert took < 2, (n, took, server.where())


def test_a_server_that_stands_idle_takes_no_memory(repository, tmp_path):
    """Its queues are swept twenty times a second."""
    s = harness.Server(tmp_path, repository, *cases.options(MODELS), "--metrics-interval-ms=100000")
    try:
        harness.attempt(ALL["infer-json"], s)
        time.sleep(1)  # what follows the start and the request
        s.arm("alloc", 0)
        time.sleep(2)
        assert s.control.n_calls == 0
    finally:
        assert s.stop() == 0
