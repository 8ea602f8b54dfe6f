# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's perf_analyzer against this server, unmodified: named by PERF_ANALYZER or found in PATH."""
import os
import shutil
import subprocess

import pytest

from triton_server import Server, write_model

PROGRAM = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")

pytestmark = pytest.mark.skipif(not PROGRAM, reason="no perf_analyzer")

DECOUPLED = ("model_transaction_policy { decoupled: true }\n"
             'parameters { key: "responses" value: { string_value: "20" } }\n')


def analyze(*args):
    """Any measurement counts as stable: what matters is that it comes about without errors."""
    r = subprocess.run([PROGRAM, "--measurement-interval=500", "--stability-percentage=999",
                        "--max-trials=4", *args], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "throughput:" in r.stdout, r.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perf")
    write_model(folder / "models", "ident", count=2)
    write_model(folder / "models", "tokens", extra=DECOUPLED)
    write_model(folder / "models", "seq", extra="sequence_batching { }\n")
    s = Server(folder, folder / "models", "--grpc-address=127.0.0.1").wait_ready()
    yield s
    assert s.stop() == 0, s.log()


def where(server, protocol):
    return ["-i", protocol, "-u", f"127.0.0.1:{server.http if protocol == 'http' else server.grpc}"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("more", [[], ["--shared-memory=system", "--output-shared-memory-size=64"],
                                  ["--request-rate-range=200"], ["--async"]],
                         ids=["plain", "shared memory", "rate", "async"])
def test_plain_model(server, protocol, more):
    analyze("-m", "ident", "--shape=INPUT0:4", "--concurrency-range=2" if not more or
            "rate" not in more[0] else "--max-threads=2", *where(server, protocol), *more)


def test_decoupled_model(server):
    analyze("-m", "tokens", "--shape=INPUT0:4", "--streaming", *where(server, "grpc"))


@pytest.mark.parametrize("protocol, more", [("http", []), ("grpc", []), ("grpc", ["--streaming"])])
def test_sequence_model(server, protocol, more):
    analyze("-m", "seq", "--shape=INPUT0:4", "--concurrency-range=2", "--sequence-length=10",
            *where(server, protocol), *more)
