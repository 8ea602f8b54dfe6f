# SPDX-License-Identifier: Apache-2.0
"""Waits go by the steady clock: a wall clock that jumps while a server runs changes nothing."""
import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import chaos_server  # noqa: E402
from chaos_load import Load  # noqa: E402

DAY = 86400


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    v = chaos_server.Victim("clock", folder, chaos_server.tiny_model(folder / "tiny"), "--served-model-name=tiny",
                            "--grpc-max-response-pool-size=1")
    try:
        v.server.wait_ready()
        yield v
    finally:
        v.move_clock(0)
        status = v.stop()
    assert status == 0


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_stream_that_waits_for_its_client_goes_on_although_the_clock_jumps(victim, jump):
    """With room for one answer the sender waits for room, at most a minute: by which clock?"""
    load = Load(victim)
    load.prompts = load.prompts[:4]
    victim.move_clock(0)
    load.learn()
    victim.move_clock(jump)
    rng = random.Random(1)
    for _ in range(12):
        assert load.grpc_stream(rng) is None


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_the_jump_is_seen_where_the_time_of_day_is_asked_for(victim, jump):
    victim.move_clock(0)
    body = {"model": "tiny", "prompt": "A", "max_tokens": 2}
    before = victim.call("/v1/completions", body)[1]["created"]
    victim.move_clock(jump)
    assert abs(victim.call("/v1/completions", body)[1]["created"] - before - jump) < 60
