# SPDX-License-Identifier: Apache-2.0
"""nereid deploy and inference_deploy/deploy_qwen.sh: a matrix of repositories, gone on with where it stopped, each of
which serves."""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402

NEREID = ROOT / "build/bin/nereid"
CELLS = [f"tiny_{p}_tp1_pp1_isl{i}_osl{o}_bs2" for p in ("fp16", "int8_wo") for i, o in ((64, 32), (32, 16))]


def make_model(where):
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "qwen2", "--out", where],
                   check=True, stdout=subprocess.DEVNULL)
    return where


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


def rows_of(text):
    return {line.split()[0]: line.split(None, 3)[3].split("  ")[-1] for line in text.splitlines()[1:]}


def deploy(*args, status=0, **env):
    done = subprocess.run([NEREID, "deploy", *map(str, args)], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, HF_HUB_OFFLINE="1", **env))
    assert done.returncode == status, (done.stdout, done.stderr)
    return rows_of(done.stdout) if done.stdout else done.stderr.strip()


def matrix(tmp_path, model, **more):
    file = tmp_path / "matrix.json"
    file.write_text(json.dumps({"models": [{"name": "tiny", "path": str(model)}], "precisions": ["fp16", "int8_wo"],
                                "batch_sizes": [2], "lengths": [[64, 32], "32,16"], "set": ["decoupled_mode:False"],
                                "output_dir": str(tmp_path / "out"), **more}))
    return file


def test_the_matrix_is_made_and_gone_on_with(tmp_path, model):
    file, out = matrix(tmp_path, model), tmp_path / "out"
    assert deploy(file, "--dry-run") == dict.fromkeys(CELLS, "to make: convert, build, repository")
    assert not out.exists()
    assert deploy(file) == dict.fromkeys(CELLS, "made")
    assert rows_of((out / "summary.txt").read_text()) == dict.fromkeys(CELLS, "made")
    config = json.loads((out / "engines" / CELLS[0] / "config.json").read_text())["build_config"]
    assert (config["max_batch_size"], config["max_input_len"], config["max_seq_len"]) == (2, 64, 96)
    assert sorted(os.listdir(out / "checkpoints")) == ["tiny_fp16_tp1_pp1", "tiny_int8_wo_tp1_pp1"]
    # What a run that was stopped leaves: a folder in the making, and one without the word that it is whole.
    (out / "engines" / (CELLS[1] + ".part/half")).mkdir(parents=True)
    (out / ".ready/engines" / (CELLS[1] + ".json")).unlink()
    shutil.rmtree(out / "ensemble_models" / CELLS[2])
    missing = {CELLS[1]: "to make: build, repository", CELLS[2]: "to make: repository"}
    assert deploy(file, "--dry-run") == {**dict.fromkeys(CELLS, "ready"), **missing}
    assert deploy(file) == {**dict.fromkeys(CELLS, "ready"), CELLS[1]: "made", CELLS[2]: "made"}
    assert deploy(file) == dict.fromkeys(CELLS, "ready")
    assert not list(out.glob("*/*.part"))


def test_what_other_options_made_is_made_again(tmp_path, model):
    one = ["--model", f"m={make_model(tmp_path / 'own')}", "--lengths", "32,16", "--precision", "fp16", "--batch-size=2", "-o",
           tmp_path / "out"]
    name = "m_fp16_tp1_pp1_isl32_osl16_bs2"
    assert deploy(*one) == {name: "made"}
    assert deploy(*one, "--set", "decoupled_mode:False", "-n") == {name: "to make: repository"}
    assert deploy(*one, "--build", "--kv_cache_dtype=float32", "-n") == {name: "to make: build, repository"}
    os.utime(tmp_path / "own/config.json", (1, 1))
    assert deploy(*one, "-n") == {name: "to make: convert, build, repository"}
    assert deploy(*one) == {name: "made"}
    config = (tmp_path / "out/ensemble_models" / name / "tensorrt_llm/config.pbtxt").read_text()
    assert "max_batch_size: 2" in config and "decoupled: True" in config and str(tmp_path / "out/engines" / name) in config


@pytest.mark.parametrize("program", ["tritonserver", "nereid"])
def test_a_repository_serves(tmp_path, model, program):
    out = tmp_path / "out"
    deploy(matrix(tmp_path, model), "--precision", "int8_wo", "--lengths", "32,16")
    serve(out / "ensemble_models" / CELLS[3], program)


def serve(repository, program):
    """It answers as it lies there, not streaming, under its model's name too."""
    http, grpc, metrics = free_ports(3)
    what = [f"--model-repository={repository}"] if program == "tritonserver" else ["serve", str(repository)]
    p = subprocess.Popen([ROOT / "build/bin" / program, *what, f"--http-port={http}", f"--grpc-port={grpc}",
                          f"--metrics-port={metrics}", "--http-address=127.0.0.1"],
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
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/v1/models", timeout=30) as r:
            assert "tiny" in [m["id"] for m in json.load(r)["data"]]
    finally:
        p.terminate()
        p.communicate(timeout=60)


def test_what_fails_is_named_and_the_others_are_made(tmp_path, model):
    broken = make_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    file = matrix(tmp_path, model, lengths=[[16, 8], [32, 8]], precisions=["fp16"], models=[
        f"broken={broken}", f"tiny={model}", {"path": "org/Not-Here-7B:Q4", "tp_size": 2}])
    rows = deploy(file, status=1)
    names = ["broken_fp16_tp1_pp1_isl16_osl8_bs2", "tiny_fp16_tp1_pp1_isl16_osl8_bs2", "broken_fp16_tp1_pp1_isl32_osl8_bs2",
             "Not-Here-7B_fp16_tp2_pp1_isl16_osl8_bs2"]
    assert len(rows) == 6 and rows[names[1]] == "made"
    assert rows[names[0]].startswith("failed: nereid convert: ") and "model.safetensors" in rows[names[0]]
    assert rows[names[2]] == rows[names[0]]
    assert rows[names[3]].startswith("failed: ") and "org/Not-Here-7B" in rows[names[3]]
    log = (tmp_path / "out/logs" / f"{names[0]}.log").read_text()
    assert log.startswith("nereid convert --model_dir ")
    # The step that rows share is not tried twice in a run, and tried again in the next.
    assert not (tmp_path / "out/logs" / f"{names[2]}.log").exists()
    make_model(broken)
    assert deploy(file, status=1)[names[0]] == "made"


def test_one_that_is_ended_leaves_nothing_that_looks_ready(tmp_path, model):
    """Ended in the middle of a step, the step ends too, and the next run makes what is missing."""
    out = tmp_path / "out"
    ended = 0
    for delay in (0.005, 0.02, 0.04, 0.08):
        p = subprocess.Popen([NEREID, "deploy", matrix(tmp_path, model)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        p.send_signal(signal.SIGTERM)
        ended += p.wait(60) != 0
    assert ended > 0
    assert set(deploy(matrix(tmp_path, model)).values()) <= {"made", "ready"}
    assert deploy(matrix(tmp_path, model), "-n") == dict.fromkeys(CELLS, "ready")
    assert not list(out.glob("*/*.part"))
    serve(out / "ensemble_models" / CELLS[0], "tritonserver")


def test_two_do_not_work_in_one_folder(tmp_path, model):
    (tmp_path / "out/.ready").mkdir(parents=True)
    with open(tmp_path / "out/.ready/lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert "another nereid deploy works in" in deploy(matrix(tmp_path, model), status=1)


@pytest.mark.parametrize("change, message", [
    ({"models": []}, "there is no model"),
    ({"models": ["a=x", "a=y"]}, "models: two are called 'a'"),
    ({"models": [{"name": "a"}]}, "models: an entry has no path"),
    ({"models": [{"path": "a", "tp": 2}]}, "models: 'tp' is none of name, path"),
    ({"models": [{"path": "a", "tp_size": 0}]}, "models: tp_size: expected a whole number from 1 to 1024, got 0"),
    ({"models": ["a/b=x"]}, "models: name: expected a name of 1 to 100 letters"),
    ({"precisions": ["int3"]}, "quantization 'int3' is not supported"),
    ({"precisions": [{"name": "x"}]}, "precisions: an entry has no convert"),
    ({"batch_sizes": [0]}, "batch_sizes: expected a whole number from 1 to 16777216, got '0'"),
    ({"batch_sizes": 8}, "batch_sizes: expected a list, got integer"),
    ({"lengths": [[1, 2, 3]]}, "lengths: expected pairs of whole numbers, [INPUT, OUTPUT]"),
    ({"lengths": ["2048"]}, "lengths: expected INPUT,OUTPUT in tokens, as 2048,1024, got '2048'"),
    ({"batch_sizes": list(range(1, 66))}, "batch_sizes: at most 64 entries"),
    ({"batch": [1]}, "'batch' is none of models, precisions")])
def test_a_wrong_matrix_is_refused_before_anything_is_made(tmp_path, model, change, message):
    said = deploy(matrix(tmp_path, model, **change), status=2)
    assert message in said
    assert not (tmp_path / "out").exists()


# ---- the script of the kit ----

@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "the \"work\" space"
    (folder / "hf_models").mkdir(parents=True)
    make_model(folder / "hf_models/Qwen2-7B-Instruct")
    return folder


def kit(workspace, *args, status=0, **lists):
    lists = {"model_size_list": "qwen2_7b", "precision_list": "fp16 int8_wo", "batch_size_list": "2",
             "input_len_output_len_list": "64,32 32,16", "triton_streaming_mode": "False", **lists}
    done = subprocess.run([ROOT / "inference_deploy/deploy_qwen.sh", *args], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, workspace=str(workspace), HF_HUB_OFFLINE="1", **lists))
    assert done.returncode == status, (done.stdout, done.stderr)
    return rows_of(done.stdout) if done.stdout else done.stderr


def test_the_kit_makes_its_folders(workspace):
    cells = [f"qwen2_7b_{p}_tp1_pp1_isl{i}_osl{o}_bs2" for p in ("fp16", "int8_wo") for i, o in ((64, 32), (32, 16))]
    assert kit(workspace) == dict.fromkeys(cells, "made")
    assert kit(workspace, "--dry-run") == dict.fromkeys(cells, "ready")
    serve_kit = workspace / "ensemble_models" / cells[0]
    assert "decoupled: False" in (serve_kit / "tensorrt_llm/config.pbtxt").read_text()


def test_the_kit_names_what_fails(workspace):
    rows = kit(workspace, status=1, model_size_list="qwen2_72b qwen2_72b_tp4pp2 qwen2_7b", precision_list="fp16",
               input_len_output_len_list="16,8")
    assert "Qwen/Qwen2-72B-Instruct" in rows["qwen2_72b_fp16_tp8_pp1_isl16_osl8_bs2"]
    assert rows["qwen2_72b_tp4pp2_fp16_tp4_pp2_isl16_osl8_bs2"].startswith("failed: ")
    assert rows["qwen2_7b_fp16_tp1_pp1_isl16_osl8_bs2"] == "made"
    assert "set_param_quant_int3" in kit(workspace, status=2, precision_list="int3")
