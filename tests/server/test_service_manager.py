# SPDX-License-Identifier: Apache-2.0
"""What a service manager is told: sd_notify(3), sd_watchdog_enabled(3)."""
import os
import socket
import time

import pytest

from triton_server import write_model


@pytest.fixture
def manager(tmp_path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(str(tmp_path / "notify"))
    s.settimeout(30)
    yield s
    s.close()


def told(manager, what):
    """The time at which a message with this line came."""
    while True:
        if what in manager.recv(4096).decode().split("\n"):
            return time.monotonic()


def test_ready_alive_and_stopping_are_told(launch, manager, tmp_path):
    write_model(tmp_path / "models", "ident")
    s = launch(tmp_path / "models", env={"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "300000"})
    told(manager, "READY=1")
    assert s.call("GET", "/v2/health/ready").status == 200
    times = [told(manager, "WATCHDOG=1") for _ in range(6)]
    assert times[-1] - times[0] > 0.3  # every 100 ms, not as fast as it can
    s.signal()
    told(manager, "STOPPING=1")
    assert s.wait() == 0


def test_a_name_without_a_file(launch, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        name = f"nereid-{os.getpid()}"
        s.bind("\0" + name)
        s.settimeout(30)
        write_model(tmp_path / "models", "ident")
        launch(tmp_path / "models", env={"NOTIFY_SOCKET": "@" + name})
        told(s, "READY=1")


@pytest.mark.parametrize("env", [
    {"NOTIFY_SOCKET": "/no/such/socket", "WATCHDOG_USEC": "many"},
    {"NOTIFY_SOCKET": "x" * 200, "WATCHDOG_USEC": "0"},
    {"NOTIFY_SOCKET": "relative", "WATCHDOG_USEC": "99999999999999999999999"},
    {"WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}])
def test_what_is_not_for_us_changes_nothing(launch, tmp_path, env):
    write_model(tmp_path / "models", "ident")
    s = launch(tmp_path / "models", env=env).wait_ready()
    assert s.call("GET", "/v2/health/ready").status == 200
    assert "watchdog" not in [open(f"/proc/{s.process.pid}/task/{t}/comm").read().strip()
                              for t in os.listdir(f"/proc/{s.process.pid}/task")]
