#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed and accuracy of a text model at several numbers of clients: first tokens, input and output tokens apart.

    llm_perf.py -u localhost:8001 -i grpc -m ensemble --concurrency 1,2,4 --input-data prompts.jsonl \\
        --tokenizer-path TOKENIZER --profile-export-file profile.json

A line of the input is {"input": text} with, if accuracy is to be told, "output": the answer that is right.
"""
import http.client
import json
import pathlib
import sys
import threading

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from utils import llm_client as llm  # noqa: E402

PERCENTS = (50, 90, 95, 99)


def parse():
    parser = llm.Parser(description=__doc__, formatter_class=llm.argparse.RawTextHelpFormatter)
    llm.add_connection(parser, protocol="grpc")
    add = parser.add_argument
    add("-m", "--model-name", required=True)
    add("--concurrency", default="1", help="numbers of clients with commas between; each is measured in turn")
    add("--input-data", required=True, help="lines of JSON")
    add("--tokenizer-path", required=True, help="counts tokens")
    add("--profile-export-file", default=None, help="times of every request, in the form of perf_analyzer")
    add("--output-len", type=int, default=None, help="tokens to ask for; default: those of the line's output, or 100")
    flags = parser.parse_args()
    try:
        flags.levels = [int(x) for x in flags.concurrency.split(",")]
    except ValueError:
        flags.levels = []
    if not flags.levels or min(flags.levels) < 1 or max(flags.levels) > 4096:
        parser.error(f"--concurrency: expected numbers from 1 to 4096 with commas between, got '{flags.concurrency}'")
    return flags


def tokens_of(tokenizer, answer):
    return tokenizer.encode(answer, add_special_tokens=False)  # no server puts a beginning before an answer


def read_work(flags, tokenizer):
    work = []
    with open(flags.input_data, encoding="utf-8") as f:
        for i, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as e:
                sys.exit(f"{flags.input_data}: line {i}: {e}")
            if not isinstance(row, dict) or not isinstance(row.get("input"), str):
                sys.exit(f"{flags.input_data}: line {i}: expected an object with \"input\"")
            right = row.get("output")
            n_out = flags.output_len or (len(tokens_of(tokenizer, right)) if right else 100)
            work.append({"text": row["input"], "right": right, "n_out": max(1, n_out),
                         "n_in": len(tokenizer.encode(row["input"]))})
    return work or sys.exit(f"{flags.input_data}: no prompts")


class Grpc:
    """A client with a stream of its own; `ask` yields pieces of text."""

    def __init__(self, flags):
        self.client = llm.connect(flags.url, "grpc", flags.verbose)
        self.model = llm.Model(self.client, "grpc", flags.model_name)
        config = self.client.get_model_config(flags.model_name, as_json=True)["config"]
        self.streams = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.stream = llm.Stream(self.client)

    def ask(self, w):
        inputs = {"text_input": np.array([[w["text"].encode()]], dtype=object), "max_tokens": llm.column(w["n_out"]),
                  "stream": llm.column(self.streams, np.bool_),
                  "exclude_input_in_output": llm.column(True, np.bool_)}
        self.stream.send(self.model.name, self.model.tensors(inputs, ("stream", "exclude_input_in_output")))
        for result in self.stream:
            text = result.as_numpy("text_output")
            if text is not None and text.size:
                yield text.ravel()[0].decode("utf-8", "replace")

    def close(self):
        self.stream.close()


class Http:
    """The same over generate_stream."""

    def __init__(self, flags):
        self.path = f"/v2/models/{flags.model_name}/generate_stream"
        self.connection = http.client.HTTPConnection(flags.url or "localhost:8000", timeout=600)
        self.connection.request("GET", f"/v2/models/{flags.model_name}/config")
        answer = self.connection.getresponse()
        config = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(config.get("error", answer.reason))
        self.streams = config.get("model_transaction_policy", {}).get("decoupled", False)

    def ask(self, w):
        body = {"text_input": w["text"], "max_tokens": w["n_out"], "bad_words": "", "stop_words": "",
                "stream": self.streams, "exclude_input_in_output": True}
        self.connection.request("POST", self.path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(answer.read().decode(errors="replace"))
        for line in answer:
            if line.startswith(b"data:"):
                row = json.loads(line[5:])
                if "error" in row:
                    raise RuntimeError(row["error"])
                yield row.get("text_output", "")

    def close(self):
        self.connection.close()


def run_level(flags, work, n_clients):
    """[(work, start, [time of each piece], text)] and the seconds of all."""
    turns, done, errors, lock = iter(work), [], [], threading.Lock()
    clients = [(Grpc if flags.protocol == "grpc" else Http)(flags) for _ in range(n_clients)]
    for _ in clients[0].ask(work[0]):
        pass  # what is made at the first request is not measured

    def serve(client):
        try:
            while not errors:
                with lock:
                    w = next(turns, None)
                if w is None:
                    return
                start, times, text = llm.now(), [], ""
                for piece in client.ask(w):
                    times.append(llm.now())
                    text += piece
                with lock:
                    done.append((w, start, times, text))
        except Exception as e:  # of the client library
            errors.append(e)

    threads = [threading.Thread(target=serve, args=(c,)) for c in clients]
    begin = llm.now()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seconds = llm.now() - begin
    if errors:
        raise errors[0]
    for c in clients:
        c.close()
    return done, seconds, clients[0].streams


def spread(name, values):
    cells = "".join(f"  p{p}: {llm.percentile(values, p / 100):.2f}" for p in PERCENTS)
    return f"{name:<32} avg: {sum(values) / len(values):.2f}{cells}  max: {max(values):.2f}"


def accuracy(done, tokenizer):
    """Share of answers that are as they should be, and of tokens up to the first that is not."""
    judged = [(w["right"], text) for w, _, _, text in done if w["right"]]
    if not judged:
        return None
    equal = same = total = 0
    for right, text in judged:
        equal += right.strip() == text.strip()
        a, b = tokens_of(tokenizer, right.strip()), tokens_of(tokenizer, text.strip())
        total += len(a)
        same += next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return equal / len(judged), same / max(total, 1), len(judged)


def report(level, done, seconds, streams, tokenizer):
    n_in = sum(w["n_in"] for w, *_ in done)
    n_out = sum(len(tokens_of(tokenizer, text)) for *_, text in done)
    print(f"Concurrency: {level}")
    print(f"{'Requests':<32} {len(done)}")
    if streams:
        print(spread("Time to first token (ms)", [(t[0] - s) * 1e3 for _, s, t, _ in done if t]))
    print(spread("Request latency (ms)", [(t[-1] - s) * 1e3 for _, s, t, _ in done if t]))
    print(f"{'Request throughput (per sec)':<32} {len(done) / seconds:.2f}")
    print(f"{'Input token throughput (per sec)':<32} {n_in / seconds:.2f}")
    print(f"{'Output token throughput (per sec)':<32} {n_out / seconds:.2f}")
    right = accuracy(done, tokenizer)
    if right:
        print(f"{'Accuracy':<32} {right[0] * 100:.2f} % of {right[2]} answers equal, {right[1] * 100:.2f} % of tokens "
              "before the first that differs")
    print(flush=True)


def main():
    flags = parse()
    tokenizer = llm.open_tokenizer(flags.tokenizer_path)
    work, experiments = read_work(flags, tokenizer), []
    for level in flags.levels:
        try:
            done, seconds, streams = run_level(flags, work, level)
        except Exception as e:  # of the client library
            llm.fail(e)
        if not all(times for _, _, times, _ in done):
            sys.exit("an answer was empty: nothing can be said of its times")
        report(level, done, seconds, streams, tokenizer)
        experiments.append({"experiment": {"mode": "concurrency", "value": level},
                            "requests": [{"timestamp": int(s * 1e9), "response_timestamps": [int(t * 1e9) for t in times]}
                                         for _, s, times, _ in done]})
    if flags.profile_export_file:
        with open(flags.profile_export_file, "w", encoding="utf-8") as f:
            json.dump({"service_kind": "triton", "endpoint": "", "experiments": experiments}, f)


if __name__ == "__main__":
    main()
