# SPDX-License-Identifier: Apache-2.0
"""A model whose logits are NaN: a request of it ends with an error that says so, and the server goes on."""
import json
import struct
import subprocess
import sys

import numpy as np
import pytest

from llm_server import BIN, ROOT, Server


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    out = tmp_path_factory.mktemp("nan") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", out, "--dtype", "float32"], check=True,
                   stdout=subprocess.DEVNULL)
    return out


@pytest.fixture(scope="module")
def broken(model, tmp_path_factory):
    """The same with a last norm whose results are infinite: of both signs, so that sums of them are NaN. A NaN itself is refused."""
    out = tmp_path_factory.mktemp("nan") / "broken"
    out.mkdir()
    for path in model.iterdir():
        data = bytearray(path.read_bytes())
        if path.suffix == ".safetensors":
            n = struct.unpack("<Q", data[:8])[0]
            first, end = json.loads(data[8:8 + n])["model.norm.weight"]["data_offsets"]
            data[8 + n + first:8 + n + end] = struct.pack("<f", 3.4e38) * ((end - first) // 4)
        (out / path.name).write_bytes(data)
    return out


WHY = "the logits of the model (LlamaForCausalLM) are not numbers"


@pytest.mark.parametrize("words", [
    ["--temperature", "0"], ["--temperature", "1"], ["--top-k", "0", "--top-p", "1"], ["--top-k", "0"], ["--temperature", "0", "--repetition-penalty", "1.3"],
    ["--beam-width", "3"], ["--two-step-head"], ["--speculative-config", '{"method": "ngram"}']], ids=" ".join)
def test_run_says_it(broken, words):
    done = subprocess.run([BIN / "nereid", "run", broken, "-p", "the quick fox", "-n", "8", *words], capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout.strip()
    assert f"nereid run: {WHY}" in done.stderr


def test_a_draft_model_of_nan_only_guesses_wrong(model, broken):
    words = ["-p", "the quick fox", "-n", "12", "--temperature", "0", "--ignore-eos", "-q"]
    plain, drafted = (subprocess.run([BIN / "nereid", "run", model, *words, *more], capture_output=True) for more in (
        [], ["--speculative-config", json.dumps({"method": "draft_model", "model": str(broken), "num_speculative_tokens": 3})]))
    assert plain.returncode == drafted.returncode == 0 and drafted.stdout == plain.stdout


def test_the_server_says_it_and_goes_on(broken, tmp_path):
    grpcclient = pytest.importorskip("tritonclient.grpc")
    s = Server(broken, tmp_path).wait_ready()
    try:
        for _ in range(2):
            for path, body in (("/v2/models/ensemble/generate", {"text_input": "the fox", "max_tokens": 4, "stream": False}),
                               ("/v1/completions", {"model": "ensemble", "prompt": "the fox", "max_tokens": 4, "temperature": 0}),
                               ("/v1/completions", {"model": "ensemble", "prompt": "the fox", "max_tokens": 4, "logprobs": 2})):
                status, answer = s.request(path, body)[:2]
                assert status == 500 and WHY in json.dumps(answer), (status, answer)
        told = []
        with grpcclient.InferenceServerClient(f"127.0.0.1:{s.grpc}") as client:
            text = grpcclient.InferInput("text_input", [1, 1], "BYTES")
            text.set_data_from_numpy(np.array([[b"the fox"]], dtype=object))
            n = grpcclient.InferInput("max_tokens", [1, 1], "INT32")
            n.set_data_from_numpy(np.array([[4]], dtype=np.int32))
            client.start_stream(lambda result, error: told.append(error))
            client.async_stream_infer("ensemble", [text, n])
            client.stop_stream()
        assert WHY in told[0].message()
        assert s.request("/v2/health/ready")[0] == 200 and s.process.poll() is None
    finally:
        s.stop()
