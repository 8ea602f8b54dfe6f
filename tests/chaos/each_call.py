#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""As tests/torture, for models of the kinds in chaos_kinds.py and for those that draft: lets the n-th allocation (or
read, write, …) of a request fail, for n = 1, 2, 3 … until none fails.

usage: each_call.py [--calls alloc,mmap] [--cases 'heard,medusa*'] [--seconds 60]

Each request is answered rightly or with an error, and the same request works behind it. Prints a row for each case; ends
with 1 when something was wrong, or a server that was told to end did not end with 0."""
import argparse
import fnmatch
import http.client
import json
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from chaos_kinds import TEXT, Many, draft_config, write_models  # noqa: E402
from chaos_load import Excused, Load  # noqa: E402
from chaos_server import Victim, tiny_model  # noqa: E402

CONTROL = ["--model-control-mode=explicit", "--load-model=*", "--served-model-name=tiny", "--restart-on-failure=false"]
METHODS = ("medusa", "eagle", "ngram", "lookahead")


def cases_of(load):
    """Name and request, which returns what is wrong."""
    if not isinstance(load, Many):
        prompt = load.prompts[0]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "stream": True}
        yield "whole", lambda: load.same(load.complete(prompt)[0], prompt)
        yield "stream", lambda: load.of_stream(*load.pieces("/v1/completions", body, lambda e: e["choices"][0]["text"]
                                                            if e["choices"] else ""), prompt)
        return
    yield "seen", lambda: load.right(load.look_at(1), "see", 1)
    yield "heard", lambda: load.right(load.transcribe(0), "hear", 0)
    yield "vector", lambda: load.right(load.embed(load.prompts[0]), "vec", load.prompts[0])
    for name in TEXT:
        yield name, lambda name=name: load.right(load.complete(load.prompts[2], name)[0], name, load.prompts[2])


def asked(request):
    """(what is wrong, the error of a refused request)."""
    try:
        return request(), None
    except (Excused, OSError, http.client.HTTPException) as e:
        return ("no answer", None) if isinstance(e, TimeoutError) else (None, repr(e))
    except AssertionError as e:
        return str(e), None


def each(load, name, request, call, seconds):
    """How many were wrong."""
    begin, n, refused, n_wrong, failed = time.monotonic(), 0, 0, 0, 1
    while failed and time.monotonic() - begin < seconds and load.v.is_alive():
        n += 1
        load.v.fail([call], n, 0)
        wrong, error = asked(request)
        failed = load.v.stop_failing()
        refused += error is not None
        for _ in range(3):  # an engine that was lost is loaded again
            later, error = asked(request)
            if not error:
                break
            load.bring_back(20)
        for what in filter(None, (wrong, later, error and f"afterwards {error}")):
            n_wrong += 1
            print("WRONG", load.v.name, name, call, n, what, flush=True)
    print(f"{load.v.name + ' ' + name:20} {call:8} {n:6} {refused:8}{' and more' if failed else ''}", flush=True)
    return n_wrong + (not load.v.is_alive())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--calls", default="alloc")
    p.add_argument("--cases", default="*")
    p.add_argument("--seconds", type=float, default=60, help="for each case and kind of call at most")
    o = p.parse_args()
    n_wrong = 0
    print(f"{'case':20} {'call':8} {'to n':>6} {'refused':>8}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tiny = tiny_model(folder / "tiny")
        first, *others = write_models(folder / "kinds")

        def many():
            return Many(Victim("many", folder, first, *others))

        def draft(method):
            config = draft_config(method, tiny, folder / f"heads-{method}")
            return Load(Victim(method, folder, tiny, *CONTROL, "--speculative-config", json.dumps(config)))
        for make in (many, *(lambda m=m: draft(m) for m in METHODS)):
            load = make()
            try:
                load.v.server.wait_ready(180)
                load.learn()
                chosen = [c for c in cases_of(load) if any(fnmatch.fnmatch(x, pattern) for pattern in o.cases.split(",")
                                                           for x in (c[0], load.v.name))]
                n_wrong += sum(each(load, *c, call, o.seconds) for c in chosen for call in o.calls.split(","))
                if left := load.v.rest():
                    print("WRONG", load.v.name, "still in use:", left)
                    n_wrong += 1
            finally:
                status = load.v.stop()
            if status:
                print("WRONG", load.v.name, "ended with", status)
                n_wrong += 1
    print(f"{n_wrong} wrong")
    return n_wrong > 0


if __name__ == "__main__":
    sys.exit(main())
