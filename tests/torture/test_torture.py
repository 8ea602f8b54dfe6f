# SPDX-License-Identifier: Apache-2.0
"""Each of the first calls of a kind fails once, then every some: the server lives, answers, and the
next request works. `make torture` takes every call and every case."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torture_cases as cases  # noqa: E402
import harness  # noqa: E402

ALL = {c.name: c for c in cases.all_cases(True)}
# Where memory ends while a model is loaded, the process still may end: those cases are not here.
REQUESTS = ["infer-json", "infer-binary", "infer-ensemble", "shared-memory", "metadata", "config",
            "statistics", "metrics", "grpc-infer", "grpc-stream", "grpc-metadata", "grpc-config"]
TEXTS = ["generate", "completions", "completions-stream"]
MODELS = ["ident", "both", *cases.LLM]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return cases.make_repository(tmp_path_factory.mktemp("torture"))


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    s = harness.Server(tmp_path_factory.mktemp("torture-log"), repository, *cases.options(MODELS))
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


@pytest.mark.parametrize("name,kind", [("infer-binary", "read"), ("infer-binary", "write"),
                                       ("completions-stream", "read"), ("shared-memory", "mmap")])
def test_a_connection_or_mapping_breaks(server, name, kind):
    assert run(server, name, kind, 20).n_run > 0
