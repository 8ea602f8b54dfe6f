# SPDX-License-Identifier: Apache-2.0
"""ci/L0_backend_trtllm/test.sh: the five models by the clients of tools/, in a folder of its own."""
import re
import socket
import sys

import pytest

pytest.importorskip("tritonclient.grpc")
LINE = "bash ci/L0_backend_trtllm/test.sh"


def settings(guide, models, ranks):
    return {"MODEL": str(models["gpt2"]), "RANKS": ranks, "HTTP_PORT": str(guide.http), "GRPC_PORT": str(guide.grpc), "METRICS_PORT": str(guide.metrics), "PYTHON": sys.executable}


def test_the_driver_passes_on_one_rank_and_on_two(guide, models):
    said, _ = guide.type(LINE, timeout=300, **settings(guide, models, "1 2"))
    assert said.endswith("\n***\n*** Test Passed\n***\n") and "FAILED" not in said
    assert said.count("[INFO] Functionality test succeed.") == 4 and len(re.findall(r"^0: My name is.", said, re.M)) == 2
    logs = {p.name: p.read_text(errors="replace") for p in guide.folder.glob("*_server.log")}
    assert set(logs) == {f"{n}gpu_{mode}_server.log" for n in (1, 2) for mode in
                         ("V1_decoupled_False", "inflight_fused_batching_decoupled_False", "inflight_fused_batching_decoupled_True")}
    for name, text in logs.items():
        assert f"MPI size: {name[0]}, MPI local size: {name[0]}, rank: 0" in text


def test_the_driver_fails_where_a_server_does_not_start(guide, models):
    with socket.create_server(("0.0.0.0", guide.http)):
        said, _ = guide.type(LINE, status=1, timeout=300, **settings(guide, models, "1"))
    assert said.endswith("\n***\n*** Test FAILED\n***\n") and said.count("*** the server did not start") == 3
