# SPDX-License-Identifier: Apache-2.0
"""The load tests use the server and the models of tests/server."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
from triton_server import launch  # noqa: E402,F401
