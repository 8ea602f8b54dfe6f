#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The text client under the name and with the options of v0.5."""
import pathlib
import runpy
import sys

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "inflight_batcher_llm/client/end_to_end_grpc_client.py"

if __name__ == "__main__":
    sys.argv[0] = str(CLIENT)
    runpy.run_path(str(CLIENT), run_name="__main__")
