# SPDX-License-Identifier: Apache-2.0
"""Models of other kinds than chaos_load.py's, in one server that loads them when they are asked for and has not room for
all: encoder-decoders, Whisper, one that sees, one of vectors, experts, and recurrent ones, whose states are kept for
prompts that begin alike. And the small Llama with heads that draft for it."""
import base64
import http.client
import json
import subprocess
import time

from chaos_load import N_NEW, Excused, Load
from chaos_server import BUILD

import eagle_heads  # noqa: I001  (tests, and tests/tinymodel: paths of chaos_server)
import encdec
import encoders
import make_model
import medusa_heads
import vision
import whisper

RECURRENT = ("mamba", "mamba2", "nemotron_h", "qwen3_next")
TEXT = ("t5", "bart", "mixtral", *RECURRENT)
# Gigabytes: all together take more.
MEMORY = "0.2"
LONG = "the quick brown fox jumps over the lazy dog and what comes then is told to all who listen in the wind "


def write_models(folder):
    """NAME=PATH of each."""
    folder.mkdir()
    encdec.write_folder("flan-t5", folder / "t5")
    encdec.write_folder("bart", folder / "bart")
    whisper.write_folder("whisper", folder / "hear")
    vision.write_folder(folder / "see")
    encoders.write_folder("bert", folder / "vec", "mean_tokens")
    for name in ("mixtral", *RECURRENT):
        make_model.write_folder(name, folder / name)
    return [f"{p.name}={p}" for p in sorted(folder.iterdir())]


def draft_config(method, tiny, folder):
    """What --speculative-config takes for heads that guess well along one text and badly elsewhere."""
    config = json.loads((tiny / "config.json").read_text())
    if method == "medusa":
        medusa_heads.write_folder(folder, 3, 1, config["hidden_size"], config["vocab_size"])
        return {"method": method, "model": str(folder), "adaptive": False}
    if method == "eagle":
        model = eagle_heads.model_of(tiny)
        said = subprocess.run([BUILD / "bin/nereid", "tokenize", tiny], input=LONG[:40] + "\n", capture_output=True, text=True, check=True)
        prompt = [int(x) for x in said.stdout.split()]
        text = model.greedy(prompt, 24)
        heads = eagle_heads.Heads(model, 1)
        model.states(text)
        heads.fit(text, len(prompt), 2)
        path = heads.write(folder, "safetensors", "layers.0.")
        return {"method": method, "model": str(path), "num_speculative_tokens": 3, "adaptive": False}
    return {"method": method}


class Many(Load):
    """Load on the server of write_models."""

    def __init__(self, victim):
        super().__init__(victim)
        self.prompts = [LONG * (1 + i % 2) + f"number {i}" for i in range(6)]
        self.pictures = [base64.b64encode(vision.png(vision.pixels(*p))).decode() for p in vision.PICTURES[:4]]
        self.sounds = [whisper.wav(s) for s in (1, 2)]
        self.kinds = [self.written, self.written, self.written_stream, self.twice, self.generated, self.seen, self.heard, self.vector,
                      self.leave]

    models = ("hear", "see", "vec", *TEXT)

    def learn(self):
        """Asked a second time, from kept blocks and states, the answers are the same."""
        for again in range(2):
            got = {(m, p): self.complete(p, m)[0] for m in TEXT for p in self.prompts}
            got |= {("see", i): self.look_at(i) for i in range(len(self.pictures))}
            got |= {("hear", i): self.transcribe(i) for i in range(len(self.sounds))}
            got |= {("vec", p): self.embed(p) for p in self.prompts}
            wrong = [k for k in got if again and not self.alike(got[k], self.expected[k])]
            assert not wrong, f"asked again, {wrong} are different"
            self.expected = got
        assert len({repr(v) for v in got.values()}) > len(got) / 2

    def bring_back(self, seconds=60):
        """Nothing to do: what was lost is loaded when it is asked for."""

    def settle(self, rng):
        """Until no load is under way, which may have begun while something was broken."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if not any(m["status"]["value"] == "loading" for m in self.v.server.request("/v1/models")[1]["data"]):
                    return None
            except (OSError, http.client.HTTPException, KeyError, TypeError):
                pass
            time.sleep(0.05)
        return "a load does not end"

    # ---- requests ----

    @staticmethod
    def alike(a, b):
        return a == b if not isinstance(a, list) else max(abs(x - y) for x, y in zip(a, b)) < 1e-4

    def right(self, got, *key):
        return None if self.alike(got, self.expected[key]) else f"{key}: {got!r} instead of {self.expected[key]!r}"

    def talk(self, i, **more):
        url = {"url": f"data:image/png;base64,{self.pictures[i]}"}
        return {"model": "see", "max_tokens": N_NEW, "temperature": 0, **more, "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": url}, {"type": "text", "text": "what is it"}]}]}

    def look_at(self, i):
        return self.call("/v1/chat/completions", self.talk(i))["choices"][0]["message"]["content"]

    def form(self, i):
        """(headers, body) of a form with a sound."""
        parts = [f'--cut\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in
                 (("model", "hear"), ("language", "en"))]
        parts.append(b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + self.sounds[i] + b"\r\n--cut--\r\n")
        return {"Content-Type": "multipart/form-data; boundary=cut"}, b"".join(parts)

    def transcribe(self, i):
        headers, body = self.form(i)
        c = http.client.HTTPConnection("127.0.0.1", self.v.server.http, timeout=120)
        try:
            c.request("POST", "/v1/audio/transcriptions", body, headers)
            r = c.getresponse()
            answer = json.loads(r.read())
        finally:
            c.close()
        if r.status != 200:
            raise Excused(f"transcriptions: {r.status} {answer['error']}")
        return answer["text"]

    def embed(self, prompt):
        return self.call("/v1/embeddings", {"model": "vec", "input": prompt[-60:]})["data"][0]["embedding"]

    # ---- kinds of load ----

    def written(self, rng):
        model, prompt = rng.choice(TEXT), rng.choice(self.prompts)
        return self.right(self.complete(prompt, model)[0], model, prompt)

    def twice(self, rng):
        model, prompt = rng.choice(TEXT), rng.choice(self.prompts)
        got = self.complete(prompt, model, n=2)
        return self.right(got[0], model, prompt) or self.right(got[1], model, prompt)

    def written_stream(self, rng):
        model, prompt = rng.choice(TEXT), rng.choice(self.prompts)
        body = {"model": model, "prompt": prompt, "max_tokens": N_NEW, "temperature": 0, "stream": True}
        got, ended = self.pieces("/v1/completions", body, lambda e: "".join(c["text"] for c in e["choices"]))
        if not ended and self.expected[model, prompt].startswith(got):
            raise Excused(f"a stream ended after {got!r}")
        return self.right(got, model, prompt)

    def generated(self, rng):
        model, prompt = rng.choice(TEXT), rng.choice(self.prompts)
        return self.right(self.call(f"/v2/models/{model}/generate", self.v2_body(prompt))["text_output"], model, prompt)

    def seen(self, rng):
        i = rng.randrange(len(self.pictures))
        return self.right(self.look_at(i), "see", i)

    def heard(self, rng):
        i = rng.randrange(len(self.sounds))
        return self.right(self.transcribe(i), "hear", i)

    def vector(self, rng):
        prompt = rng.choice(self.prompts)
        return self.right(self.embed(prompt), "vec", prompt)

    def to_leave(self, rng):
        what = rng.randrange(4)
        if what == 0:
            headers, body = self.form(rng.randrange(len(self.sounds)))
            return "/v1/audio/transcriptions", headers, body
        if what == 1:
            return "/v1/chat/completions", {}, json.dumps(self.talk(0, stream=True, ignore_eos=True)).encode()
        body = {"model": rng.choice(TEXT), "prompt": rng.choice(self.prompts), "max_tokens": 100, "ignore_eos": True, "stream": True}
        return "/v1/completions", {}, json.dumps(body).encode()


