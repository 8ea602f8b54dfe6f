# SPDX-License-Identifier: Apache-2.0
"""Questions whose answers are known. Each returns what is wrong, or None; `Excused` is an error that says what the
server could not do: right while something is broken, else wrong."""
import http.client
import json
import queue
import re
import socket
import time

N_NEW = 12


class Excused(Exception):
    """An error answer, or an answer that broke off."""


class Load:
    def __init__(self, victim, adapters=(), has_python=False, has_echo=False):
        self.v, self.adapters = victim, list(adapters)
        self.prompts = [f"the quick brown fox number {i} jumps over" for i in range(12)]
        self.number = 0
        self.kinds = [self.text, self.many, self.guided, self.stream, self.v2, self.v2_stream, self.grpc_stream, self.leave]
        self.kinds += [self.echo, self.grpc] if has_echo else []
        self.kinds += [self.python] if has_python else []
        self.kinds += [self.adapter] if self.adapters else []

    def learn(self):
        """The right answers: of the server before anything is broken."""
        self.expected = {p: self.complete(p)[0] for p in self.prompts}
        self.with_adapter = {(a, p): self.complete(p, model=a)[0] for a in self.adapters for p in self.prompts[:4]}
        assert len(set(self.with_adapter.values()) | set(self.expected.values())) > len(self.adapters) + 1

    def bring_back(self, seconds=60):
        """Loads a lost model until it answers. What the last load said otherwise."""
        until, answer = time.monotonic() + seconds, None
        while time.monotonic() < until:
            answer = self.v.load("tensorrt_llm")
            if answer[0] == 200 and self.v.server.request("/v2/models/ensemble/ready")[0] == 200:
                return None
            time.sleep(0.2)
        return f"the model does not come back: {answer}"

    def settle(self, rng):
        """Waits for what a fault left under way; what is wrong with it. A stub that died is found dead by the next request,
        whose error belongs to the fault, and is started again."""
        until, said = time.monotonic() + 60, None
        while self.python in self.kinds and time.monotonic() < until and self.v.is_alive():
            try:
                return self.python(rng)
            except (Excused, OSError, http.client.HTTPException) as e:
                said = repr(e)
                time.sleep(0.1)
            except AssertionError as e:
                return str(e)
        return said

    # ---- helpers ----

    def call(self, path, body, good=(200,)):
        status, answer = self.v.call(path, body)
        if status in good:
            return answer
        if not isinstance(answer, dict) or "error" not in answer:
            raise AssertionError(f"{status} without an error: {answer}")
        raise Excused(f"{path}: {status} {answer['error']}")

    def complete(self, prompt, model="tiny", **fields):
        a = self.call("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": N_NEW, "temperature": 0, **fields})
        return [c["text"] for c in sorted(a["choices"], key=lambda c: c["index"])]

    def same(self, got, prompt):
        return None if got == self.expected[prompt] else f"{got!r} instead of {self.expected[prompt]!r}"

    def pieces(self, path, body, text_of):
        """Text of a stream of server-sent events, and whether it came to its end."""
        text, ended = "", False
        c = http.client.HTTPConnection("127.0.0.1", self.v.server.http, timeout=120)
        try:
            c.request("POST", path, json.dumps(body))
            r = c.getresponse()
            if r.status != 200:
                raise Excused(f"{path}: {r.status} {r.read()[:300]}")
            for line in r:
                if line.strip() == b"data: [DONE]":
                    ended = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise Excused(f"{path}: {event['error']}")
                    text += text_of(event)
        finally:
            c.close()
        return text, ended

    # ---- language ----

    def text(self, rng):
        prompt = rng.choice(self.prompts)
        return self.same(self.complete(prompt)[0], prompt)

    def many(self, rng):
        prompt = rng.choice(self.prompts)
        got = self.complete(prompt, n=3)
        return None if got == [self.expected[prompt]] * 3 else got

    def guided(self, rng):
        rule = f"[0-9]{{{rng.randrange(1, 5)}}}" if rng.random() < 0.8 else f"(ab|cd){{{rng.randrange(1, 4)}}}x{rng.randrange(10**6)}"
        got = self.complete(rng.choice(self.prompts), guided_regex=rule, temperature=1, max_tokens=40)[0]
        return None if re.fullmatch(rule, got) else f"{got!r} is not {rule}"

    def adapter(self, rng):
        key = rng.choice(list(self.with_adapter))
        got = self.complete(key[1], model=key[0])[0]
        return None if got == self.with_adapter[key] else f"{key}: {got!r}"

    def stream(self, rng):
        prompt = rng.choice(self.prompts)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": N_NEW, "temperature": 0, "stream": True}
        got, ended = self.pieces("/v1/completions", body, lambda e: "".join(c["text"] for c in e["choices"]))
        return self.of_stream(got, ended, prompt)

    def of_stream(self, got, ended, prompt):
        if not ended and self.expected[prompt].startswith(got):
            raise Excused(f"a stream ended after {got!r}")
        return self.same(got, prompt)

    def v2_body(self, prompt, **more):
        return {"text_input": prompt, "max_tokens": N_NEW, "top_k": 1, "exclude_input_in_output": True, **more}

    def v2(self, rng):
        """The two text models give the same, and each request's id comes back."""
        prompt, model = rng.choice(self.prompts), rng.choice(["ensemble", "tensorrt_llm_bls"])
        self.number += 1
        name = f"{rng.random()}-{self.number}"
        a = self.call(f"/v2/models/{model}/generate", self.v2_body(prompt, id=name))
        return self.same(a["text_output"], prompt) if a.get("id", name) == name else f"id {a['id']} instead of {name}"

    def v2_stream(self, rng):
        prompt, model = rng.choice(self.prompts), rng.choice(["ensemble", "tensorrt_llm_bls"])
        got, _ = self.pieces(f"/v2/models/{model}/generate_stream", self.v2_body(prompt, stream=True),
                             lambda e: e["text_output"])
        return self.of_stream(got, got == self.expected[prompt], prompt)

    def grpc_stream(self, rng):
        import numpy as np
        import tritonclient.grpc as client
        from tritonclient.utils import InferenceServerException
        prompt, seen = rng.choice(self.prompts), queue.Queue()
        inputs = []
        for name, value, kind, array in (("text_input", prompt.encode(), "BYTES", np.object_), ("max_tokens", N_NEW, "INT32", np.int32),
                                         ("top_k", 1, "INT32", np.int32), ("exclude_input_in_output", True, "BOOL", np.bool_),
                                         ("stream", True, "BOOL", np.bool_)):
            t = client.InferInput(name, [1, 1], kind)
            t.set_data_from_numpy(np.array([[value]], array))
            inputs.append(t)
        text, name, final = "", str(rng.random()), False
        with client.InferenceServerClient(f"127.0.0.1:{self.v.server.grpc}") as c:
            c.start_stream(lambda result, error: seen.put((result, error)))
            try:
                c.async_stream_infer("ensemble", inputs, request_id=name, enable_empty_final_response=True)
            except InferenceServerException as e:
                raise Excused(str(e)) from e
            while not final:
                try:
                    result, error = seen.get(timeout=120)
                except queue.Empty:
                    return "no answer in 120 s"
                if error:
                    raise Excused(str(error))
                r = result.get_response()
                if r.id != name:
                    return f"id {r.id} instead of {name}"
                final = r.parameters["triton_final_response"].bool_param
                piece = result.as_numpy("text_output")
                text += piece.ravel()[0].decode() if piece is not None and piece.size else ""
        return self.of_stream(text, text == self.expected[prompt], prompt)

    def to_leave(self, rng):
        """(path, header fields, body) of a request for a long answer."""
        if rng.random() < 0.5:
            path = "/v1/completions"
            body = {"model": "tiny", "prompt": rng.choice(self.prompts), "max_tokens": 200, "ignore_eos": True, "stream": rng.random() < 0.7}
        else:
            path = f"/v2/models/{rng.choice(['ensemble', 'tensorrt_llm_bls'])}/generate_stream"
            body = self.v2_body(rng.choice(self.prompts), stream=True) | {"max_tokens": 100}
        return path, {}, json.dumps(body).encode()

    def receive(self, s, n):
        """Bytes of an answer. A whole answer of hundreds of tokens takes minutes on a busy machine: nothing is wrong while the
        engine goes on."""
        steps = None
        while True:
            try:
                return s.recv(n)
            except TimeoutError:
                before, steps = steps, self.steps()
                if steps == before:
                    raise

    def steps(self):
        """Of the engine's models, since they were loaded."""
        lines = self.v.server.metrics_text().splitlines()
        return [line for line in lines if 'general_type="iteration_counter"' in line]

    def leave(self, rng):
        """A client that goes away after a number of bytes sent or read."""
        path, fields, body = self.to_leave(rng)
        lines = "".join(f"{k}: {v}\r\n" for k, v in fields.items())
        data = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body
        try:
            with socket.create_connection(("127.0.0.1", self.v.server.http), timeout=120) as s:
                if rng.random() < 0.3:
                    s.sendall(data[:rng.randrange(len(data))])
                    return None
                s.sendall(data)
                left = rng.randrange(3000)
                while left > 0 and (got := self.receive(s, min(left, 512))):
                    left -= len(got)
        except TimeoutError:
            return "neither an answer nor an end in 240 s, and the engine stands still"
        except OSError:
            pass
        return None

    # ---- tensors ----

    def echo(self, rng):
        data = [rng.randrange(-2**31, 2**31) for _ in range(rng.choice([1, 3, 1000]))]
        name = str(rng.random())
        a = self.call("/v2/models/echo/infer", {"id": name, "inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [len(data)], "data": data}]})
        return None if a["outputs"][0]["data"] == data and a["id"] == name else "another's data"

    @staticmethod
    def sum_of(a, b):
        return {"inputs": [{"name": n, "datatype": "FP32", "shape": [1, 1], "data": [v]} for n, v in (("A", a), ("B", b))]}

    def python(self, rng):
        a, b = rng.randrange(1000), rng.randrange(1000)
        answer = self.call("/v2/models/add_sub/infer", self.sum_of(a, b))
        values = sorted(o["data"][0] for o in answer["outputs"])
        return None if values == sorted([a + b, a - b]) else values

    def grpc(self, rng):
        import numpy as np
        import tritonclient.grpc as client
        from tritonclient.utils import InferenceServerException
        data = np.array([rng.randrange(2**31) for _ in range(5)], np.int32)
        x = client.InferInput("INPUT0", [5], "INT32")
        x.set_data_from_numpy(data)
        try:
            with client.InferenceServerClient(f"127.0.0.1:{self.v.server.grpc}") as c:
                got = c.infer("echo", [x], client_timeout=120).as_numpy("OUTPUT0")
        except InferenceServerException as e:
            if "Deadline" in str(e):
                return "no answer in 120 s"
            raise Excused(str(e)) from e
        return None if got.tolist() == data.tolist() else "another's data"
