# SPDX-License-Identifier: Apache-2.0
"""What the clients and benchmarks of this repository share: options, connections, tensors, answers."""
import argparse
import math
import os
import queue
import sys
import time

import numpy as np


class Parser(argparse.ArgumentParser):
    """Long options may be written with hyphens or underscores: releases differ."""

    def add_argument(self, *names, **kwargs):
        every = list(names)
        for name in names:
            for other in ("--" + name[2:].replace("-", "_"), "--" + name[2:].replace("_", "-")):
                if name.startswith("--") and other not in every:
                    every.append(other)
        return super().add_argument(*every, **kwargs)


def add_connection(parser, protocol="http"):
    """-v, -u, -i; protocol None: gRPC only, without -i."""
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is sent and received")
    parser.add_argument("-u", "--url", help="server; localhost:8000 (http) or localhost:8001 (grpc)")
    if protocol:
        parser.add_argument("-i", "--protocol", type=str.lower, choices=["http", "grpc"], default=protocol)


def library(protocol):
    if protocol == "grpc":
        import tritonclient.grpc as module
    else:
        import tritonclient.http as module
    return module


def connect(url, protocol, verbose=False, concurrency=1, **tls):
    if protocol == "grpc":
        return library(protocol).InferenceServerClient(url or "localhost:8001", verbose=verbose, **tls)
    return library(protocol).InferenceServerClient(url or "localhost:8000", verbose=verbose, concurrency=concurrency,
                                                   connection_timeout=600, network_timeout=600)


NUMPY = {"INT32": np.int32, "UINT32": np.uint32, "INT64": np.int64, "UINT64": np.uint64, "FP32": np.float32,
         "FP16": np.float16, "BOOL": np.bool_, "BYTES": np.object_}


class Model:
    """One model of a server. Types come from its metadata: releases have them as INT32 or UINT32."""

    def __init__(self, client, protocol, name):
        self.client, self.protocol, self.name = client, protocol, name
        if protocol == "grpc":
            meta = client.get_model_metadata(name, as_json=True)
        else:
            meta = client.get_model_metadata(name)
        self.types = {t["name"]: t["datatype"] for t in meta["inputs"]}
        self.outputs = [t["name"] for t in meta["outputs"]]

    def tensors(self, arrays, where_known=()):
        """InferInput of each array; None is left out, and names of where_known that the model lacks."""
        made = []
        for name, array in arrays.items():
            if array is None or (name in where_known and name not in self.types):
                continue
            array = np.asarray(array)
            wanted = NUMPY.get(self.types.get(name, ""))
            if wanted is not None and array.dtype != wanted:
                array = array.astype(wanted)
            kinds = {np.dtype(v): k for k, v in NUMPY.items()}
            tensor = library(self.protocol).InferInput(name, list(array.shape),
                                                       self.types.get(name) or kinds[array.dtype])
            tensor.set_data_from_numpy(array)
            made.append(tensor)
        return made

    def infer(self, arrays, where_known=(), **options):
        return self.client.infer(self.name, self.tensors(arrays, where_known), **options)

    def stream(self, arrays, request_id=""):
        """Answers of one request on a stream of its own (gRPC), up to the final one."""
        yield from self.stream_tensors(self.tensors(arrays), request_id)

    def stream_tensors(self, tensors, request_id=""):
        stream = Stream(self.client)
        try:
            stream.send(self.name, tensors, request_id)
            for result in stream:
                if result.get_response().outputs:  # the final one may be empty
                    yield result
        finally:
            stream.close()

    def requested(self, names):
        return [library(self.protocol).InferRequestedOutput(name) for name in names] if names else None


def column(value, dtype=np.int32, batch=1):
    """[batch, 1] of one value; None stays None: the input is left out."""
    return None if value is None else np.full((batch, 1), value, dtype)


def strings(values):
    return np.array([[v.encode() if isinstance(v, str) else v for v in values]], dtype=object)


def core_inputs(ids, output_len, end_id=None, pad_id=None):
    """The inputs that tensorrt_llm cannot do without; ids [n]."""
    ids = np.asarray(ids, np.int32).reshape(1, -1)
    return {"input_ids": ids, "input_lengths": column(ids.shape[1]), "request_output_len": column(output_len),
            "end_id": column(end_id), "pad_id": column(pad_id)}


def is_final(result):
    p = result.get_response().parameters
    return "triton_final_response" not in p or p["triton_final_response"].bool_param


class Stream:
    """Requests on one gRPC stream; answers in the order in which they come."""

    def __init__(self, client, timeout=None, **options):
        self.client, self.answers = client, queue.Queue()
        client.start_stream(callback=lambda result, error: self.answers.put((result, error)),
                            stream_timeout=timeout, **options)

    def send(self, model, tensors, request_id="", outputs=None, **options):
        self.client.async_stream_infer(model, tensors, request_id=request_id, outputs=outputs,
                                       enable_empty_final_response=True, **options)

    def __iter__(self):
        """Answers up to the final one."""
        while True:
            result, error = self.answers.get()
            if error:
                raise error
            yield result
            if is_final(result):
                return

    def close(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)


class Tokenizer:
    """Text and ids as the server has them: the module `nereid` does it, transformers where that is not built."""

    def __init__(self, folder):
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../scripts"))
        import nereid_programs
        try:
            self.ours = nereid_programs.module().Tokenizer(folder)
            self.decode = lambda ids: self.ours.decode(ids, skip_special_tokens=False)
        except SystemExit as e:
            try:
                import transformers
            except ImportError:
                raise e from None
            self.ours = transformers.AutoTokenizer.from_pretrained(folder)
            self.decode = self.ours.decode
        self.encode = self.ours.encode
        self.eos_token_id, pad = self.ours.eos_token_id, self.ours.pad_token_id
        self.pad_token_id = self.eos_token_id if pad is None or pad < 0 else pad


def open_tokenizer(folder, kind="auto"):
    """kind: of releases that had to be told; the files say it."""
    if kind not in ("auto", "t5", "llama"):
        raise SystemExit(f"--tokenizer-type: expected auto, t5 or llama, got {kind}")
    if not os.path.exists(folder):
        raise SystemExit(f"--tokenizer-dir: there is no {folder}")
    return Tokenizer(folder)


# ---- load ----

def pauses(kind, rate, n, seed=420):
    """Seconds before each of n requests; a rate of -1: none."""
    if rate <= 0:
        return [0.0] * n
    if kind == "constant":
        return [1 / rate] * n
    return np.random.default_rng(seed).exponential(1 / rate, n).tolist()


def normal_lengths(mean, stdev, n, seed):
    return [max(1, math.ceil(x)) for x in np.random.default_rng(seed).normal(mean, stdev, n)]


def percentile(values, p):
    return sorted(values)[max(1, math.ceil(p * len(values))) - 1]


def pretty_table(rows, headers):
    """Cells in the middle of their columns, with a frame."""
    width = [max(len(str(r[i])) for r in [headers, *rows]) + 2 for i in range(len(headers))]
    rule = "+" + "+".join("-" * w for w in width) + "+"
    lines = ["|" + "|".join(str(c).center(w) for c, w in zip(r, width)) + "|" for r in [headers, *rows]]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def read_prompts(path, max_words=None):
    """(prompt, tokens to ask for) of a JSON list of {input, instruction, output}."""
    import json
    rows = json.load(open(path, encoding="utf-8"))
    out = []
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or not {"input", "instruction", "output"} <= row.keys():
            raise SystemExit(f"{path}: entry {i} needs input, instruction and output")
        prompt = row["input"] + " " + row["instruction"]
        if max_words is None or int(len(prompt.split(" ")) / 1.3) <= max_words:
            out.append((prompt, row["output"]))
    return out


def fail(error):
    """One line on stderr, status 1: what the server said."""
    print(error.message() if hasattr(error, "message") else error, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # threads of an open stream would wait for answers that do not come any more


def now():
    return time.perf_counter()
