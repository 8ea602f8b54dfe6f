# SPDX-License-Identifier: Apache-2.0
"""A model for the Python backend that runs the engine itself, under the name that programs for TensorRT-LLM
import: the server, the backend's process and the executor's threads together."""
import json
import os
import pathlib
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

CONFIG = """name: "llm" backend: "python" max_batch_size: 0
model_transaction_policy { decoupled: true }
input { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "output_ids" data_type: TYPE_INT32 dims: [ -1 ] }
parameters { key: "engine" value { string_value: "ENGINE" } }
"""
MODEL = '''
import datetime, json, threading
import numpy as np
import triton_python_backend_utils as pb_utils
import tensorrt_llm.bindings.executor as trtllm


class TritonPythonModel:
    def initialize(self, args):
        path = json.loads(args["model_config"])["parameters"]["engine"]["string_value"]
        self.executor = trtllm.Executor(path, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig(n_threads=1))
        self.senders, self.lock, self.running = {}, threading.Lock(), True
        self.thread = threading.Thread(target=self.answer)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            get = lambda name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            sender = request.get_response_sender()
            try:
                with self.lock:
                    one = self.executor.enqueue_request(trtllm.Request(
                        get("input_ids").tolist(), max_new_tokens=int(get("request_output_len")[0]), streaming=True))
                    self.senders[one] = sender
            except Exception as e:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(e))),
                            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self):
        while self.running:
            for r in self.executor.await_responses(timeout=datetime.timedelta(milliseconds=1)):
                with self.lock:
                    sender = self.senders[r.request_id]
                ids = np.array(r.result.output_token_ids[0], np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("output_ids", ids)]),
                            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if r.result.is_final else 0)

    def finalize(self):
        self.running = False
        self.thread.join()
        self.executor.shutdown()
        print("engine closed", flush=True)
'''


@pytest.fixture(scope="module")
def server(engine, build_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("form")
    (folder / "repository/llm/1").mkdir(parents=True)
    (folder / "repository/llm/config.pbtxt").write_text(CONFIG.replace("ENGINE", str(engine)))
    (folder / "repository/llm/1/model.py").write_text(MODEL)
    module = build_folder / "python"
    env = dict(os.environ, PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
               PYTHONPATH=f"{module}:{module}/nereid/compat")
    http, grpc, metrics = free_ports(3)
    log = folder / "server.log"
    with open(log, "w") as out:
        process = subprocess.Popen(
            [build_folder / "bin/tritonserver", f"--model-repository={folder}/repository", "--http-address=127.0.0.1",
             "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", f"--http-port={http}", f"--grpc-port={grpc}",
             f"--metrics-port={metrics}"], stdout=out, stderr=subprocess.STDOUT, env=env)
    url = f"http://127.0.0.1:{http}/v2"
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        try:
            if urllib.request.urlopen(url + "/health/ready", timeout=5).status == 200:
                break
        except OSError:
            time.sleep(0.05)
    yield url
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 0, log.read_text()
    assert "engine closed" in log.read_text()


def stream(url, ids, n):
    """The pieces, or the error's text."""
    body = json.dumps({"input_ids": ids, "request_output_len": n}).encode()
    with urllib.request.urlopen(urllib.request.Request(url + "/models/llm/generate_stream", body), timeout=60) as r:
        events = [json.loads(line[5:]) for line in r.read().decode().splitlines() if line.startswith("data:")]
    return [e.get("error") or e["output_ids"] for e in events]


def test_a_model_in_python_streams_what_the_engine_makes(server, engine):
    from nereid import executor as trtllm
    with trtllm.Executor(engine, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig(n_threads=1)) as x:
        expected = x.await_responses(x.enqueue_request(trtllm.Request([5, 6, 7], 8)))[0].result.output_token_ids[0]
    pieces = stream(server, [5, 6, 7], 8)
    flat = [i for p in pieces for i in (p if isinstance(p, list) else [p])]
    assert len(pieces) == 8 and [5, 6, 7] + flat == expected


def test_the_engines_refusal_reaches_the_client(server):
    with pytest.raises(urllib.error.HTTPError) as refused:
        stream(server, [5, 6, 7], 0)
    assert "max_new_tokens" in refused.value.read().decode()
    assert len(stream(server, [5, 6, 7], 3)) == 3
