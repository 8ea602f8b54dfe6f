# SPDX-License-Identifier: Apache-2.0
"""The requests, loads and ends that run while calls fail, and the repository they run on."""
import itertools
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

from harness import BUILD, DEADLINE, ROOT, TESTS, Connection, delay, write_model

sys.path.insert(0, str(TESTS / "tinymodel"))
import adapter  # noqa: E402

PYTHON_MODEL = '''import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(SECONDS)
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy()
            if CALL:
                inner = pb_utils.InferenceRequest(model_name="ident", requested_output_names=["OUTPUT0"],
                                                  inputs=[pb_utils.Tensor("INPUT0", x)]).exec()
                if inner.has_error():
                    raise pb_utils.TritonModelException(inner.error().message())
                x = inner.output_tensors()[0].as_numpy()
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x + np.int32(1))]))
        return out
'''
PYTHON_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 0
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
ENSEMBLE = """name: "both"
platform: "ensemble"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "ident" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
    output_map { key: "OUTPUT0" value: "between" } },
  { model_name: "ident" model_version: -1 input_map { key: "INPUT0" value: "between" }
    output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
"""


def tool(*args):
    subprocess.run([BUILD / "bin/nereid", *args], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, env=dict(os.environ, ASAN_OPTIONS="detect_leaks=0"))


def make_repository(folder):
    """identity models, an ensemble, Python models and a language model of random weights."""
    folder = pathlib.Path(folder)
    tiny, engine, repository = folder / "tiny", folder / "engine", folder / "repository"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", tiny],
                   check=True, stdout=subprocess.DEVNULL)
    tool("build", "--checkpoint_dir", tiny, "--output_dir", engine, "--lora_plugin", "auto", "--max_lora_rank", "8")
    adapter.write("llama", folder / ADAPTER)
    tool("repo", "--engine-dir", engine, "--tokenizer-dir", tiny, "--output-dir", repository,
         "--served-model-name", "tiny", "--set", "decoupled_mode:True,bls_instance_count:1")
    add_drafted(repository, tiny)
    write_model(repository, "ident", count=1)
    write_model(repository, "slow", count=1, extra=delay(300))
    write_model(repository, "loaded", count=1)
    write_model(repository, "kept", count=1, extra="response_cache { enable: true }")
    for name, constants in (("py", "CALL, SECONDS = False, 0"), ("pybls", "CALL, SECONDS = True, 0"),
                            ("pyslow", "CALL, SECONDS = False, 0.3")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(PYTHON_CONFIG.format(name=name))
        (repository / name / "1/model.py").write_text(f"{constants}\n{PYTHON_MODEL}")
    (repository / "both/1").mkdir(parents=True)
    (repository / "both/config.pbtxt").write_text(ENSEMBLE)
    return repository


def add_drafted(repository, checkpoint):
    """A language model whose drafts come from a checkpoint that becomes an engine whenever it is loaded."""
    shutil.copytree(repository / "tensorrt_llm", repository / "drafted")
    path = repository / "drafted/config.pbtxt"
    text = re.sub(r'^name: .*', 'name: "drafted"', path.read_text(), flags=re.M)
    text = re.sub(r'decoupled: \w+', "decoupled: false", text)
    draft = json.dumps(json.dumps({"method": "draft_model", "model": str(checkpoint), "num_speculative_tokens": 2}))
    text, n = re.subn(r'(key: "speculative_config"\s+value: \{ string_value: )"[^"]*"', lambda m: m[1] + draft, text)
    assert n == 1
    path.write_text(text)


ADAPTER = "adapter"
START = ["ident", "both", "py", "pybls", "preprocessing", "tensorrt_llm", "postprocessing", "ensemble",
         "tensorrt_llm_bls", "loaded"]


def options(models):
    return ["--model-control-mode=explicit", *(f"--load-model={m}" for m in models)]


class Case:
    timeouts = ()
    prepare = None

    def __init__(self, name, run, models, prepare=None, timeouts=(), args=(), ends=False):
        self.name, self.run, self.models, self.timeouts = name, run, models, timeouts
        self.prepare = prepare
        self.args = args  # further options of the server
        self.ends = ends  # the server ends in the middle of the request: harness.torture_end


def checked(reply, value):
    """(True, what it says) where it says 200."""
    return (True, value(reply)) if reply.status == 200 else (False, (reply.status, reply.body[:200]))


INPUT = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]}]}


def infer(model):
    def run(s):
        return checked(s.call("POST", f"/v2/models/{model}/infer", INPUT),
                       lambda r: r.json()["outputs"])
    return run


NEW = itertools.count()


def kept(s):
    """An answer that goes into the response cache, and one that comes from there."""
    said = []
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [2], "data": [next(NEW), 5]}]}
    for _ in range(2):
        r = s.call("POST", "/v2/models/kept/infer", body)
        if r.status != 200:
            return False, (r.status, r.body[:200])
        said.append(r.json()["outputs"][0]["data"] == body["inputs"][0]["data"])
    return True, said


def infer_binary(s):
    head = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [3],
                                   "parameters": {"binary_data_size": 12}}],
                       "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    r = s.call("POST", "/v2/models/ident/infer", head + struct.pack("<3i", 4, 5, 6),
               {"Inference-Header-Content-Length": str(len(head))})
    return checked(r, lambda r: r.body[int(r.fields["inference-header-content-length"]):])


PROMPT = {"text_input": "one two three", "max_tokens": 6, "temperature": 0.0, "stream": False}


def generate(model):
    def run(s):
        r = s.call("POST", f"/v2/models/{model}/generate_stream", dict(PROMPT, stream=True))
        events = [json.loads(e[6:]) for e in r.body.decode().split("\n\n") if e.startswith("data: ")]
        error = next((e["error"] for e in events if "error" in e), None)
        if r.status != 200 or error:
            return False, (r.status, error)
        return True, "".join(e["text_output"] for e in events)
    return run


def chat(guided=False, stream=True):
    body = {"model": "tiny", "prompt": "hello you", "max_tokens": 6, "temperature": 0, "stream": stream,
            "logprobs": 2}
    path = "/v1/completions"
    if guided:
        body["response_format"] = {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "object", "properties": {"a": {"enum": ["b", "c"]}},
                                    "required": ["a"], "additionalProperties": False}}}
        body["max_tokens"] = 24

    def run(s):
        r = s.call("POST", path, body)
        if r.status != 200:
            return False, (r.status, r.body[:200])
        if not stream:
            return True, r.json()["choices"]
        events = [e[6:] for e in r.body.decode().split("\n\n") if e.startswith("data: ")]
        parts = [json.loads(e) for e in events if e != "[DONE]"]
        error = next((p["error"] for p in parts if "error" in p), None)
        if error or events[-1:] != ["[DONE]"]:
            return False, error
        return True, ("".join(c["text"] for p in parts for c in p["choices"]),
                      parts[-1]["choices"][0]["finish_reason"])
    return run


def chat_stream(s):
    """What a chat says, from the pieces of its stream."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello you"}], "max_tokens": 6,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    r = s.call("POST", "/v1/chat/completions", body)
    if r.status != 200:
        return False, (r.status, r.body[:200])
    events = [e[6:] for e in r.body.decode().split("\n\n") if e.startswith("data: ")]
    parts = [json.loads(e) for e in events if e != "[DONE]"]
    error = next((p["error"] for p in parts if "error" in p), None)
    if error or events[-1:] != ["[DONE]"]:
        return False, error
    return True, ("".join(c["delta"].get("content") or "" for p in parts for c in p["choices"]),
                  [c["finish_reason"] for p in parts for c in p["choices"] if c["finish_reason"]],
                  parts[-1]["usage"]["completion_tokens"])


def response_of(r):
    """A response of /v1/responses, whole or as the last event of its stream; None: it failed."""
    if r.status != 200:
        return None
    if not r.body.startswith(b"event: "):
        return r.json()
    events = [json.loads(e.split("\ndata: ", 1)[1]) for e in r.body.decode().split("\n\n") if e]
    if [e.get("sequence_number") for e in events] != list(range(len(events))):
        return None
    return events[-1]["response"] if events[-1]["type"] in ("response.completed", "response.incomplete") else None


def responses(stream):
    """An answer, one that goes on from it, what is kept of that, and the end of both."""
    def run(s):
        body = {"model": "tiny", "input": "hello you", "max_output_tokens": 4, "temperature": 0, "stream": stream}
        texts, ids = [], []
        for _ in range(2):
            r = s.call("POST", "/v1/responses", dict(body, previous_response_id=ids[-1] if ids else None))
            answer = response_of(r)
            if not answer:
                return False, (r.status, r.body[-200:])
            ids.append(answer["id"])
            texts.append((answer["output"][0]["content"][0]["text"], answer["usage"]["input_tokens"]))
        for path in (f"/v1/responses/{ids[1]}", f"/v1/responses/{ids[1]}/input_items"):
            r = s.call("GET", path)
            if r.status != 200:
                return False, (r.status, r.body[:200])
            texts.append(r.json().get("usage", {}).get("total_tokens") or r.json()["data"][0]["content"])
        for i in ids:
            r = s.call("DELETE", f"/v1/responses/{i}")
            if r.status != 200:
                return False, (r.status, r.body[:200])
        return True, texts
    return run


def llama(s):
    """A prompt of text and ids, with only some members of the answer; a text as pieces and back."""
    r = s.call("POST", "/completion", {"prompt": ["hello", 5, " you"], "n_predict": 6, "temperature": 0, "n_probs": 1,
                                       "return_tokens": True, "logit_bias": [["zz", False]],
                                       "response_fields": ["content", "tokens", "completion_probabilities", "timings/predicted_n"]})
    if r.status != 200:
        return False, (r.status, r.body[:200])
    answer = r.json()
    # what the prefix cache kept of a failed run decides how the prompt is cut into steps, and with it the last digits
    answer["completion_probabilities"] = [p["id"] for p in answer["completion_probabilities"]]
    r = s.call("POST", "/tokenize", {"content": "hello you", "with_pieces": True})
    if r.status != 200:
        return False, (r.status, r.body[:200])
    r = s.call("POST", "/detokenize", {"tokens": [t["id"] for t in r.json()["tokens"]]})
    return (True, (answer, r.json()["content"])) if r.status == 200 else (False, (r.status, r.body[:200]))


NUMBERS = itertools.count(1000)


def new_guide(kind):
    """A guide that was never compiled before, and which one text fits."""
    def run(s):
        word = f"x{next(NUMBERS)}"
        guides = {"regex": f"{word}(ab){{2}}", "ebnf_grammar": f'root ::= "{word}" tail\ntail ::= "ab" "ab"',
                  "json_schema": json.dumps({"enum": [word + "abab"]})}
        body = dict(PROMPT, max_tokens=16, guided_decoding_guide_type=kind, guided_decoding_guide=guides[kind])
        r = s.call("POST", "/v2/models/ensemble/generate", body)
        return checked(r, lambda r: r.json()["text_output"].replace(PROMPT["text_input"], "").strip(' "') == word + "abab")
    return run


def load_adapter(s):
    """unload, load by a client's order, one answer of the adapter and one of the model."""
    s.call("POST", "/v1/unload_lora_adapter", {"lora_name": "wide"})
    r = s.call("POST", "/v1/load_lora_adapter", {"lora_name": "wide", "lora_path": str(s.folder / ADAPTER)})
    if r.status != 200:
        return False, (r.status, r.body[:200])
    texts = []
    for name in ("wide", "tiny"):
        r = s.call("POST", "/v1/completions", {"model": name, "prompt": "hello you", "max_tokens": 6, "temperature": 0})
        if r.status != 200:
            return False, (r.status, r.body[:200])
        texts.append(r.json()["choices"][0]["text"])
    return texts[0] != texts[1], texts


def get(path, value):
    def run(s):
        return checked(s.call("GET", path), lambda r: value(r.json()))
    return run


def index(s):
    return checked(s.call("POST", "/v2/repository/index", {}),
                   lambda r: sorted(m["name"] for m in r.json()))


def metrics(s):
    with Connection(s.metrics, timeout=DEADLINE) as c:
        r = c.call("GET", "/metrics")
    return checked(r, lambda r: b"nv_inference_request_success" in r.body)


def drafted(s):
    """What the model with drafts says; how many of them held does not matter."""
    inputs = {"input_ids": [5, 6, 7], "input_lengths": [3], "request_output_len": [6]}
    r = s.call("POST", "/v2/models/drafted/infer", {"inputs": [
        {"name": k, "datatype": "INT32", "shape": [1, len(v)], "data": v} for k, v in inputs.items()]})
    return checked(r, lambda r: next(o["data"] for o in r.json()["outputs"] if o["name"] == "output_ids"))


def load(model, then=None):
    """unload, load and one request."""
    def run(s):
        for order in ("unload", "load"):
            r = s.call("POST", f"/v2/repository/models/{model}/{order}", {})
            if r.status != 200:
                return False, (order, r.status, r.body[:200])
            if order == "unload":
                wait_gone(s, model)
        return then(s) if then else (True, None)
    return run


def reload(model, then):
    def run(s):
        r = s.call("POST", f"/v2/repository/models/{model}/load", {})
        return then(s) if r.status == 200 else (False, (r.status, r.body[:200]))
    return run


def load_with_config(model):
    """A load order that brings its own configuration."""
    config = {"name": model, "backend": "identity", "max_batch_size": 0,
              "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
              "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
              "instance_group": [{"count": 2, "kind": "KIND_CPU"}]}

    def run(s):
        r = s.call("POST", f"/v2/repository/models/{model}/load", {"parameters": {"config": json.dumps(config)}})
        return infer(model)(s) if r.status == 200 else (False, (r.status, r.body[:200]))
    return run


def slow(model):
    """Is with the server for 300 ms. `begun` is set when it is there."""
    def run(s, begun=None):
        with s.connect() as c:
            c.request("POST", f"/v2/models/{model}/infer", INPUT)
            if begun:
                s.call("GET", "/v2/health/live")
                begun.set()
            return checked(c.reply(), lambda r: r.json()["outputs"])
    return run


def half_streamed(s, begun=None):
    """A text of some length; `begun` is set with its first piece."""
    text = b""
    with s.connect() as c:
        c.request("POST", "/v2/models/ensemble/generate_stream", dict(PROMPT, max_tokens=64, stream=True))
        status, _ = c.head()
        if status != 200:
            return False, status
        for piece in c.chunks():
            text += piece
            if begun:
                begun.set()
    events = [json.loads(e[6:]) for e in text.decode().split("\n\n") if e.startswith("data: ")]
    error = next((e["error"] for e in events if "error" in e), None)
    return (False, error) if error else (True, "".join(e["text_output"] for e in events))


def wait_gone(s, model):
    for _ in range(1000):
        r = s.call("POST", "/v2/repository/index", {})
        row = next((m for m in r.json() if m["name"] == model), {}) if r.status == 200 else {}
        if row.get("state") in (None, "UNAVAILABLE") and r.status == 200:
            return


def shared_memory(s):
    path = pathlib.Path(f"/dev/shm/torture-{s.http}")
    path.write_bytes(struct.pack("<3i", 7, 8, 9) + b"\0" * 116)
    try:
        s.call("POST", "/v2/systemsharedmemory/region/r/unregister", {})
        r = s.call("POST", "/v2/systemsharedmemory/region/r/register",
                   {"key": f"/{path.name}", "offset": 0, "byte_size": 128})
        if r.status != 200:
            return False, (r.status, r.body[:200])
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [3], "parameters": {
                    "shared_memory_region": "r", "shared_memory_byte_size": 12}}],
                "outputs": [{"name": "OUTPUT0", "parameters": {
                    "shared_memory_region": "r", "shared_memory_byte_size": 12,
                    "shared_memory_offset": 64}}]}
        r = s.call("POST", "/v2/models/ident/infer", body)
        return checked(r, lambda r: path.read_bytes()[64:76])
    finally:
        path.unlink(missing_ok=True)


def grpc_cases():
    import grpc
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc import service_pb2_grpc

    def request(model="ident"):
        r = pb.ModelInferRequest(model_name=model)
        i = r.inputs.add(name="INPUT0", datatype="INT32", shape=[3])
        i.contents.int_contents.extend([1, 2, 3])
        return r

    def guard(ask):
        def run(s):
            with grpc.insecure_channel(f"127.0.0.1:{s.grpc}") as channel:
                try:
                    return ask(service_pb2_grpc.GRPCInferenceServiceStub(channel))
                except grpc.RpcError as e:
                    if e.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                        raise TimeoutError(str(e)) from e
                    return False, str(e.code())
        return run

    def stream(stub):
        out = []
        for r in stub.ModelStreamInfer(iter([request(), request()]), timeout=DEADLINE):
            if r.error_message:
                return False, r.error_message
            out.append(r.infer_response.raw_output_contents[0])
        return len(out) == 2, out

    return [
        Case("grpc-infer", guard(lambda x: (True, x.ModelInfer(
            request(), timeout=DEADLINE).raw_output_contents[0])), ["ident"]),
        Case("grpc-stream", guard(stream), ["ident"]),
        Case("grpc-metadata", guard(lambda x: (True, x.ModelMetadata(
            pb.ModelMetadataRequest(name="ident"), timeout=DEADLINE).inputs[0].name)), ["ident"]),
        Case("grpc-config", guard(lambda x: (True, x.ModelConfig(
            pb.ModelConfigRequest(name="ident"), timeout=DEADLINE).config.name)), ["ident"]),
    ]


LLM = ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"]


def all_cases(grpc):
    ident = infer("ident")
    cases = [
        Case("infer-json", ident, ["ident"]),
        Case("infer-binary", infer_binary, ["ident"]),
        Case("infer-ensemble", infer("both"), ["ident", "both"]),
        Case("infer-kept", kept, ["kept"], args=["--cache-config=local,size=100000"]),
        Case("shared-memory", shared_memory, ["ident"]),
        Case("metadata", get("/v2/models/ident", lambda j: j["inputs"]), ["ident"]),
        Case("config", get("/v2/models/ident/config", lambda j: j["name"]), ["ident"]),
        Case("statistics", get("/v2/models/ident/stats", lambda j: len(j["model_stats"])), ["ident"]),
        Case("index", index, ["ident"]),
        Case("metrics", metrics, ["ident"]),
        Case("generate", generate("ensemble"), LLM),
        Case("generate-bls", generate("tensorrt_llm_bls"), LLM),
        Case("completions", chat(stream=False), LLM),
        Case("completions-stream", chat(), LLM),
        Case("python", infer("py"), ["py"]),
        Case("python-bls", infer("pybls"), ["ident", "pybls"]),
        Case("guided", chat(guided=True), LLM),
        Case("load", load("loaded", infer("loaded")), ["loaded"]),
        Case("load-ensemble", load("both", infer("both")), ["ident", "both"]),
        Case("reload-ensemble", reload("both", infer("both")), ["ident", "both"]),
        Case("reload", reload("loaded", infer("loaded")), ["loaded"]),
        Case("load-tokenizer", load("postprocessing"), LLM),
        Case("load-llm", load("tensorrt_llm"), LLM),
        Case("load-draft", load("drafted", drafted), ["drafted"]),
        Case("load-config", load_with_config("loaded"), ["loaded"]),
        Case("load-python", load("py", infer("py")), ["py"]),
        Case("load-lora", load_adapter, LLM, args=["--allow-lora-loading=true"]),
        Case("chat-stream", chat_stream, LLM),
        Case("responses", responses(False), LLM),
        Case("responses-stream", responses(True), LLM),
        Case("llama", llama, LLM),
        *(Case(f"guide-{kind}", new_guide(kind), LLM) for kind in ("regex", "json_schema", "ebnf_grammar")),
        Case("end", slow("slow"), ["slow"], ends=True),
        Case("end-stream", half_streamed, LLM, ends=True),
        Case("end-python", slow("pyslow"), ["pyslow"], ends=True),
    ]
    return cases + (grpc_cases() if grpc else [])
