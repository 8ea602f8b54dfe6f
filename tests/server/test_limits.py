"""What one request or load order names is refused before memory is taken, and the server lives."""
import json
import pathlib

import pytest

from conftest import write_model


def rss(server):
    """Bytes of memory that the server's process has now."""
    pages = pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.fixture
def explicit(tmp_path, launch):
    folder = tmp_path / "models"
    write_model(folder, "echo")
    return launch(folder, "--model-control-mode=explicit").wait_ready()


@pytest.mark.parametrize("count", [1025, 2**31 - 1])
def test_more_instances_than_a_model_may_have_refuse_the_load(explicit, count):
    config = {"backend": "identity",
              "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
              "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
              "instance_group": [{"kind": "KIND_CPU", "count": count}]}
    before = rss(explicit)
    reply = explicit.call("POST", "/v2/repository/models/echo/load",
                          {"parameters": {"config": json.dumps(config)}})
    assert reply.status == 400 and "1024" in reply.error(), reply.body
    assert rss(explicit) < before + (64 << 20)
    assert explicit.call("POST", "/v2/repository/models/echo/load", {}).status == 200
