# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's perf_analyzer and the ensemble of a language model: named by PERF_ANALYZER or in PATH."""
import json
import os
import shutil
import subprocess

import pytest

PROGRAM = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")


@pytest.mark.skipif(not PROGRAM, reason="no perf_analyzer")
def test_ensemble_is_profiled_through_the_stream(server, tmp_path):
    data = tmp_path / "in.json"
    data.write_text(json.dumps({"data": [{"text_input": ["hello world"], "max_tokens": [8],
                                          "end_id": [-1], "stream": [True]}]}))
    r = subprocess.run([PROGRAM, "-m", "ensemble", "-i", "grpc", "-u", f"127.0.0.1:{server.grpc}",
                        "--streaming", f"--input-data={data}", "--concurrency-range=2",
                        "--measurement-interval=500", "--stability-percentage=999",
                        "--max-trials=4"], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and "throughput:" in r.stdout, r.stdout + r.stderr
