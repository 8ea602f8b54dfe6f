# SPDX-License-Identifier: Apache-2.0
"""inference_deploy/deploy_qwen.sh: a matrix of repositories, gone on with where it stopped, each of which serves."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "hf_models").mkdir()
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "qwen2", "--out",
                    folder / "hf_models/Qwen2-7B-Instruct"], check=True, stdout=subprocess.DEVNULL)
    return folder


def deploy(workspace, status=0, **lists):
    lists = {"model_size_list": "qwen2_7b", "precision_list": "fp16 int8_wo", "batch_size_list": "2",
             "input_len_output_len_list": "64,32 32,16", "triton_streaming_mode": "False", **lists}
    done = subprocess.run([ROOT / "inference_deploy/deploy_qwen.sh"], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, workspace=str(workspace), **lists))
    assert done.returncode == status, (done.stdout, done.stderr)
    rows = [line.split(None, 3) for line in (workspace / "summary.txt").read_text().splitlines()[1:]]
    return {row[0]: row[3] for row in rows}


def test_the_matrix_is_made_and_gone_on_with(workspace):
    cells = [f"qwen2_7b_{p}_tp1_pp1_isl{i}_osl{o}_bs2" for p in ("fp16", "int8_wo") for i, o in ((64, 32), (32, 16))]
    assert deploy(workspace) == dict.fromkeys(cells, "made")
    shutil.rmtree(workspace / "ensemble_models" / cells[1])
    (workspace / "ensemble_models" / (cells[1] + ".part/half")).mkdir(parents=True)  # of a run that was stopped
    assert deploy(workspace) == {**dict.fromkeys(cells, "kept"), cells[1]: "made"}
    assert not list((workspace / "ensemble_models").glob("*.part/half"))
    config = json.loads((workspace / "engines" / cells[0] / "config.json").read_text())["build_config"]
    assert (config["max_batch_size"], config["max_input_len"], config["max_seq_len"]) == (2, 64, 96)
    serve(workspace / "ensemble_models" / cells[0])


def serve(repository):
    """The repository answers as it lies there, not streaming."""
    http, grpc, metrics = free_ports(3)
    p = subprocess.Popen([ROOT / "build/bin/tritonserver", f"--model-repository={repository}", f"--http-port={http}",
                          f"--grpc-port={grpc}", f"--metrics-port={metrics}", "--http-address=127.0.0.1"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                assert p.poll() is None and time.monotonic() < until, p.stderr.read()
                time.sleep(0.05)
        body = json.dumps({"text_input": "hello", "max_tokens": 4, "bad_words": "", "stop_words": ""}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/models/ensemble/generate", body, timeout=30) as r:
            assert json.load(r)["text_output"].startswith("hello")
    finally:
        p.terminate()
        p.communicate(timeout=60)


def test_what_fails_is_named_and_the_others_are_made(workspace):
    rows = deploy(workspace, status=1, model_size_list="qwen2_72b qwen2_7b", precision_list="fp16",
                  input_len_output_len_list="16,8", PATH="/usr/bin:/bin")
    assert rows["qwen2_72b_fp16_tp8_pp1_isl16_osl8_bs2"].startswith("failed: no Qwen/Qwen2-72B-Instruct in ")
    assert rows["qwen2_7b_fp16_tp1_pp1_isl16_osl8_bs2"] == "made"
    done = subprocess.run([ROOT / "inference_deploy/deploy_qwen.sh"], capture_output=True, text=True,
                          env=dict(os.environ, workspace=str(workspace), precision_list="int3"))
    assert done.returncode == 2 and "set_param_quant_int3" in done.stderr
