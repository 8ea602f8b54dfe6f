# SPDX-License-Identifier: Apache-2.0
"""Devices that cannot be had: one line that names what is wrong and offers the CPU."""
import json
import os
import subprocess

import pytest

from llm_server import BIN, Server
from test_lost_engine import DEVICES


def bench(model, device, **env):
    p = subprocess.run([BIN / "nereid", "bench", "latency", model, "--device", device, "--num_requests", "1"],
                       capture_output=True, text=True, timeout=60, env=dict(os.environ, **env))
    assert p.returncode == 1
    return [line for line in p.stderr.splitlines() if line.startswith("nereid")]


@pytest.mark.parametrize("device, part", [
    ("stale", "was built for another version of nereid"), ("none", "nereid_none.so is neither in"),
    ("cuda", "cuda"), ("../cuda", "letters, digits and _ only")])
def test_one_line_and_the_cpu(tiny_model, device, part):
    if device == "cuda" and os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU")
    lines = bench(tiny_model, device, NEREID_DEVICE_DIR=str(DEVICES))
    assert len(lines) == 1 and part in lines[0], lines
    assert '"cpu"' in lines[0] or device == "../cuda", lines


def test_ranks_have_the_device_of_the_first(tiny_model, tmp_path):
    """A rank that finds none of its own would compute on the CPU and wait for the others forever."""
    (tmp_path / "nereid_cuda.so").write_bytes((DEVICES / "nereid_faulty.so").read_bytes())
    env = dict(os.environ, NEREID_CACHE=str(tmp_path / "cache"), NEREID_DEVICE_DIR=str(tmp_path), NEREID_TEST_ONE_DEVICE="1")
    p = subprocess.run([BIN / "nereid", "run", tiny_model, "-p", "A", "-n", "2", "--tp-size", "2"], capture_output=True,
                       text=True, timeout=120, env=env)
    assert p.returncode == 1 and "faulty: device 1 asked for, there is one" in p.stderr, p.stderr


def test_a_plugin_without_a_driver_is_told_of_and_the_cpu_computes(tiny_model, own_cache, tmp_path):
    """Where there is no plug-in nothing is said."""
    if os.path.exists("/dev/nvidiactl") or (BIN / "../lib/nereid_cuda.so").exists():
        pytest.skip("there is a plug-in for a GPU")
    (tmp_path / "nereid_cuda.so").write_bytes((DEVICES / "nereid_faulty.so").read_bytes())
    for there in (True, False):
        env = {"NEREID_DEVICE_DIR": str(tmp_path if there else DEVICES), "NEREID_TEST_NO_DRIVER": "1"}
        s = Server(tiny_model, own_cache, env=env)
        try:
            s.wait_ready()
            assert ("the CPU is used: faulty: no driver on this machine" in s.log_text()) == there, s.log_text()
        finally:
            s.stop()


def build(model, out, *more):
    return subprocess.run([BIN / "nereid", "build", model, "--tp_size", "2", "-o", out, "--device", "rows", *more], capture_output=True,
                          text=True, timeout=60)


def test_an_engine_without_custom_all_reduce_asks_the_device_for_a_library(tiny_model, tmp_path):
    """The CPU has one way only; a device that has no library says so, of such an engine alone."""
    for word, by_library in (("enable", False), ("disable", True)):
        engine = tmp_path / word
        p = build(tiny_model, engine, "--use_custom_all_reduce", word)
        assert p.returncode == 0, p.stderr
        assert json.loads((engine / "config.json").read_text())["build_config"]["plugin_config"]["use_custom_all_reduce"] is not by_library
        for device in ("cpu", "faulty"):
            p = subprocess.run([BIN / "nereid", "bench", "latency", engine, "--device", device, "--num_requests", "1", "--output_len", "2"],
                               capture_output=True, text=True, timeout=120, env=dict(os.environ, NEREID_DEVICE_DIR=str(DEVICES)))
            refused = by_library and device == "faulty"
            assert (p.returncode != 0) == refused, p.stderr
            assert ("there is no library for sums over ranks" in p.stderr) == refused, p.stderr
    p = build(tiny_model, tmp_path / "wrong", "--use_custom_all_reduce", "sometimes")
    assert p.returncode == 2 and "use_custom_all_reduce" in p.stderr and "'sometimes'" in p.stderr, p.stderr
    assert not (tmp_path / "wrong").exists()


def test_an_engines_configuration_hands_the_choices_on(tiny_model, tmp_path):
    choices = {"use_custom_all_reduce": False, "use_fp8_context_fmha": True}
    words = [x for name, on in choices.items() for x in (f"--{name}", "enable" if on else "disable")]
    assert build(tiny_model, tmp_path / "first", *words).returncode == 0
    p = build(tiny_model, tmp_path / "second", "--build_config", tmp_path / "first/config.json")
    assert p.returncode == 0, p.stderr
    plugin = json.loads((tmp_path / "second/config.json").read_text())["build_config"]["plugin_config"]
    assert choices.items() <= plugin.items(), plugin
    p = subprocess.run([BIN / "nereid", "inspect", tmp_path / "second"], capture_output=True, text=True, timeout=60)
    assert "prompts' attention in 8 bits" in p.stdout, p.stdout + p.stderr
