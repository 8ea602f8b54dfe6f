# SPDX-License-Identifier: Apache-2.0
"""The load tests use the server and the models of tests/server."""
import importlib.util
import pathlib
import sys

PATH = pathlib.Path(__file__).resolve().parents[1] / "server/conftest.py"
spec = importlib.util.spec_from_file_location("server_conftest", PATH)
module = sys.modules.setdefault("server_conftest", importlib.util.module_from_spec(spec))
spec.loader.exec_module(module)
launch = module.launch
