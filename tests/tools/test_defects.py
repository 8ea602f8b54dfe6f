# SPDX-License-Identifier: Apache-2.0
"""What the tools leave behind, what they say first, and what they say when something is missing."""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import hf_folder  # noqa: E402

NEREID = os.environ.get("NEREID", str(BIN / "nereid"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("defects") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def real():
    r = subprocess.run([ROOT / "scripts/fetch_model", "smollm2"], capture_output=True, text=True)
    if r.returncode:
        pytest.skip(f"model: {r.stderr.strip()}")
    return r.stdout.strip()


def nereid(*words, **env):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, env=dict(os.environ, **env))


def wait_for(condition, process):
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb,ending", [("build", "rank0.engine.tmp.*"), ("convert", "rank0.safetensors.tmp.*")])
def test_a_signal_leaves_nothing(real, tmp_path, verb, ending, sig):
    """With one thread, requantizing takes long enough for the file to be seen."""
    words = ["--workers", "1", "--dtype", "float32", "--quantize", "q4_0"] if verb == "build" else ["--quantize", "q4_0"]
    # not ignored as under nohup or &; what the program said is shown where it ends by itself
    p = subprocess.Popen(["env", f"--default-signal={sig.name[3:]}", NEREID, verb, real, "--output_dir", tmp_path, *words])
    wait_for(lambda: list(tmp_path.glob(ending)), p)
    p.send_signal(sig)
    assert p.wait() == -sig  # where the disk is busy, a write that is under way takes its time
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("run", "-p", "x"), ("serve", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"),
                                   ("serve", "--max-seq-len=100", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false")])
def test_a_signal_leaves_no_folder_in_the_cache(real, tmp_path, words):
    p = subprocess.Popen([NEREID, words[0], real, *words[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         env=dict(os.environ, NEREID_CACHE=str(tmp_path)))
    wait_for(lambda: list(tmp_path.glob("engines/*.tmp.*/rank0.engine.tmp.*")), p)
    p.send_signal(signal.SIGTERM)
    assert p.wait(30) == -signal.SIGTERM
    assert list((tmp_path / "engines").iterdir()) == []


def test_a_signal_leaves_no_temporary_engine(model, tmp_path):
    p = subprocess.Popen([NEREID, "chat", model], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=str(tmp_path)))
    wait_for(lambda: list(tmp_path.glob("*/config.json")), p)
    p.send_signal(signal.SIGTERM)
    assert p.wait(30) == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_is_swept(model, tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    old, new, held, alive = (tmp_path / f"rank0.engine.tmp.{n}" for n in (dead.pid, f"0{dead.pid}", f"00{dead.pid}", os.getpid()))
    for f in (old, new, held, alive):
        f.write_bytes(b"half")
    for f in (old, alive):
        os.utime(f, (0, 0))
    with open(held, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert nereid("build", model, "--output_dir", tmp_path).returncode == 0
    assert not old.exists() and not new.exists() and held.exists() and alive.exists()


def test_a_killed_quantize_leaves_nothing_to_the_next(model, tmp_path):
    for i in range(50):  # a file may get its name before the program is gone
        words = [NEREID, "quantize", model, "--output_dir", tmp_path / str(i), "--qformat", "int4_wo", "--no-eval"]
        p = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: list((tmp_path / str(i)).glob("*.tmp.*")), p)
        p.kill()
        p.wait()
        if list((tmp_path / str(i)).glob("*.tmp.*")):
            break
    else:
        pytest.fail("no killed run left a file")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / str(i)).glob("*.tmp.*"))


def test_steady_wants_enough_requests(model):
    few = nereid("bench", "throughput", model, "--num_requests", 4, "--concurrency", 4, "--steady")
    assert few.returncode == 2 and "more than --concurrency 4" in few.stderr and "nan" not in few.stdout
    short = nereid("bench", "throughput", model, "--num_requests", 9, "--concurrency", 8, "--steady", "--output_mean", 1)
    assert short.returncode in (0, 1) and "nan" not in short.stdout
    assert short.returncode == 0 or "more --num_requests" in short.stderr


def test_a_device_is_looked_for_before_an_engine_is_packed(real, tmp_path):
    r = nereid("run", real, "--device", "gpu", "-p", "hi", NEREID_CACHE=str(tmp_path))
    assert r.returncode == 1 and list(tmp_path.iterdir()) == []
    for part in ("known are cpu", "nereid_gpu.so", "/../lib", "NEREID_DEVICE_DIR", "make CUDA=1"):
        assert part in r.stderr


def test_a_copied_program_says_what_is_missing(model, tmp_path):
    copy = shutil.copy(NEREID, tmp_path / "nereid")
    r = subprocess.run([copy, "serve", model], capture_output=True, text=True,
                       env=dict(os.environ, NEREID_CACHE=str(tmp_path / "cache")))
    assert r.returncode == 1 and "/tritonserver' is missing" in r.stderr and "backends" in r.stderr
    assert not (tmp_path / "cache").exists()


def test_weights_that_the_configuration_has_no_place_for_are_named(model, tmp_path):
    """A model whose configuration forgets its biases answers, and answers wrongly."""
    folder = tmp_path / "biased"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    hf_folder.write_safetensors(folder / "second.safetensors", {f"model.layers.{i}.self_attn.q_proj.bias": np.ones(256, "f4") for i in (0, 1)}, "float32")
    first = (folder / "first.safetensors").read_bytes()
    header = json.loads(first[8:8 + int.from_bytes(first[:8], "little")])
    files = {name: "first.safetensors" for name in header if name != "__metadata__"}
    files |= {f"model.layers.{i}.self_attn.q_proj.bias": "second.safetensors" for i in (0, 1)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    done = nereid("run", folder, "-p", "x", "-n", "1", NEREID_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert ": 2 of the model's tensors are not used: model.layers.0.self_attn.q_proj.bias and others; does the conf" in done.stderr
    staged = nereid("build", folder, "--pp_size", "2", "-o", tmp_path / "engine")
    assert staged.returncode == 0 and "2 of the model's tensors are not used: model.layers.0.self_attn.q_proj.bias and" in staged.stderr
    plain = nereid("run", model, "-p", "x", "-n", "1", NEREID_CACHE=str(tmp_path / "cache"))
    assert plain.returncode == 0 and "not used" not in plain.stderr


def test_a_cache_that_the_device_lacks_is_refused_at_the_load(model, tmp_path):
    built = nereid("build", "--checkpoint_dir", model, "--output_dir", tmp_path / "engine", "--fp8_kv_cache")
    assert built.returncode == 0, built.stderr
    done = nereid("run", tmp_path / "engine", "--tokenizer_dir", model, "--device", "cpu", "-p", "x")
    assert done.returncode == 1 and "has no KV cache of type fp8; build the engine with another --kv_cache_dtype" in done.stderr, done.stderr
    assert "lost" not in done.stderr


def test_layers_that_the_configuration_does_not_count_are_named(model, tmp_path):
    def one_layer(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "nereid"} | {"num_hidden_layers": 1}))

    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "short"  # a checkpoint as another converter writes it
    assert nereid("convert", model, "-o", checkpoint).returncode == 0
    shutil.copytree(model, folder)
    one_layer(folder)
    one_layer(checkpoint)
    for path, first in ((folder, "model.layers.1.input_layernorm.weight"), (checkpoint, "transformer.layers.1.input_layernorm.weight")):
        done = nereid("build", path, "-o", tmp_path / "engine")
        assert done.returncode == 0 and done.stderr.count("not used") == 1
        assert f" of the model's tensors are not used: {first} and others; " in done.stderr
        assert "LlamaForCausalLM, 10 weights, " in done.stdout


@pytest.mark.parametrize("words", [["run", "-p", "x"], ["serve"], ["serve", "--build", "--max_batch_size=4"], ["serve", "NAMED"],
                                   ["eval", "-f", __file__]])
def test_a_model_without_a_tokenizer_is_refused_before_its_engine_is_built(model, tmp_path, words):
    """Small engines go into $TMPDIR, where there is no room for one."""
    folder, cache = tmp_path / "bare", tmp_path / "cache"
    shutil.copytree(model, folder)
    for f in folder.glob("*token*"):
        f.unlink()
    named = "NAMED" in words
    verb, rest = words[0], [w for w in words[1:] if w != "NAMED"]
    done = nereid(verb, f"one={folder}" if named else folder, *rest, NEREID_CACHE=cache, TMPDIR=tmp_path / "none")
    assert done.returncode == 1
    assert "no tokenizer (name one with --tokenizer_dir)" in done.stderr and not list(cache.glob("engines/*"))


def test_a_folder_without_a_model_is_not_said_to_lack_a_tokenizer(tmp_path):
    done = nereid("run", tmp_path, "-p", "x", NEREID_CACHE=tmp_path / "cache")
    assert done.returncode == 1
    assert "config.json" in done.stderr and "no tokenizer" not in done.stderr


def engines_in(folder):
    return sorted(folder.glob("nereid-engine-*"))


def running_chat(model, tmp_path, *words):
    """With its small engine in a temporary folder. Waits for a line on its input."""
    p = subprocess.Popen(["env", "--default-signal=TERM,INT", NEREID, "run", model, *words], env=dict(os.environ, TMPDIR=str(tmp_path)),
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    p.stdin.write(b"ab\n")
    p.stdin.flush()
    assert p.stdout.read(1)  # it answers, so that all files are there
    return p


@pytest.mark.parametrize("words", [[], ["--tp-size", "2"], ["--speculative-config", '{"method": "draft_model", "model": "MODEL"}']])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_temporary_engine(model, tmp_path, words, sig):
    p = running_chat(model, tmp_path, *(w.replace("MODEL", str(model)) for w in words))
    assert engines_in(tmp_path)
    p.send_signal(sig)
    p.stdin.close()
    p.wait()
    assert not engines_in(tmp_path)


def test_the_next_program_removes_the_engine_of_one_that_was_killed(model, tmp_path):
    def make_old(folder):
        for path in (*folder.iterdir(), folder):
            os.utime(path, (1, 1))

    killed = running_chat(model, tmp_path)
    (left,) = engines_in(tmp_path)
    killed.kill()
    killed.communicate()
    make_old(left)
    alive = running_chat(model, tmp_path)
    (used,) = engines_in(tmp_path)
    assert used != left
    make_old(used)
    assert nereid("run", model, "-p", "x", "-n", "1", TMPDIR=tmp_path).returncode == 0
    assert engines_in(tmp_path) == [used]
    alive.communicate()
    assert alive.returncode == 0 and not engines_in(tmp_path)
