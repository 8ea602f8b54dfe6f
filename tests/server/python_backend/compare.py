#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the same Python models in this server and in NVIDIA's and prints every difference.

    compare.py [-v] [PATTERN]

Compared are status and body (JSON by structure) of every case in python_cases.py, the custom metrics and
the log lines of the models. Needs scripts/fetch_triton, and numpy < 2 for its stub (NEREID_TRITON_NUMPY names a site-packages folder when this
Python has a newer one). Exit status: 0 when only known differences are left.
"""
import fnmatch
import json
import pathlib
import re
import sys
import tempfile

import python_cases as cases
import pb_lab

# What stays different, and why. Regular expressions of the case's name.
KNOWN = {
    "lab/dlpack": "their stub crashes in NumPy's __dlpack__",
    "lab/response parameters.*": "came after 2.51.0",
    "lab/bls bad type": "the order in which inputs are checked differs",
    "lab/bls decoupled error": "they lose an error that is not the last response",
    "lab/load in mode none": "their whole server ends (boost::interprocess::lock_exception)",
    "lab/is_model_ready bad version": "their whole server ends now and then",
    "lab/unload in mode none": "their whole server ends now and then",
    "lab/counter .*": "the metric library's sentence differs",
    "lab/type unknown": "the path of triton_python_backend_utils.py is in the text",
}


def repository(folder):
    for name in ("lab", "add_sub", "repeat", "arepeat", "asleep", "iterative"):
        pb_lab.add_model(folder, name)
    pb_lab.add_model(folder, "lab2", "lab")
    pb_lab.add_model(folder, "auto", config=False)
    target = pb_lab.add_model(folder, "chain")
    path = target / "config.pbtxt"
    path.write_text(path.read_text().replace("instance_group [ { count: 1 kind: KIND_CPU } ]", ""))


def calm(value):
    if isinstance(value, dict):
        return {k: 0 if k in ("ns", "last_inference") else calm(v) for k, v in value.items()}
    if isinstance(value, list):
        return [calm(v) for v in value]
    return value


def readable(answer):
    text = answer.body.decode(errors="replace")
    try:
        if text.startswith("data: "):
            return answer.status, [json.loads(e[6:]) for e in text.split("\n\n") if e]
        return answer.status, calm(json.loads(text))
    except ValueError:
        return answer.status, text


def all_cases():
    for c in cases.LAB:
        body = dict(c.fields)
        code = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [c.code]}
        body["inputs"] = [code] + body.get("inputs", [])
        yield "lab/" + c.name, "POST", "/v2/models/lab/infer", body
    for name, code, _ in cases.ASYNC_BLS:
        body = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}]}
        yield "async bls/" + name, "POST", "/v2/models/asleep/infer", body
    yield from cases.REQUESTS


def main():
    verbose = "-v" in sys.argv
    pattern = next((a for a in sys.argv[1:] if not a.startswith("-")), "*")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pb_compare_"))
    models = folder / "models"
    models.mkdir()
    repository(models)
    different = equal = known = 0
    def start(kind):
        return pb_lab.Server(folder, models, "--exit-on-error=false", kind=kind,
                             python=None).wait_ready()

    def ask(server, method, path, body):
        try:
            return readable(server.call(method, path, body, timeout=5))
        except OSError as err:
            return type(err).__name__, str(err)

    ours, theirs = start("ours"), start("theirs")
    try:
        for name, method, path, body in all_cases():
            if not fnmatch.fnmatch(name, pattern):
                continue
            answers = [ask(s, method, path, body) for s in (ours, theirs)]
            restart = "is not healthy" in str(answers[1]) or isinstance(answers[1][0], str)
            if name == "lab/histogram":
                answers = [sorted(l for l in s.metrics().splitlines() if "lab_" in l)
                           for s in (ours, theirs)]
            if restart:
                theirs.stop(9)  # it does not restart a stub, nor end a request without an answer
                theirs = start("theirs")
            if answers[0] == answers[1]:
                equal += 1
                if verbose:
                    print(f"= {name}: {answers[0]}")
                continue
            reason = next((r for p, r in KNOWN.items() if re.fullmatch(p, name)), None)
            known += reason is not None
            different += reason is None
            print(f"\n! {name}{' (known: ' + reason + ')' if reason else ''}")
            print(f"  ours   {answers[0]}\n  theirs {answers[1]}")
    finally:
        ours.stop()
        theirs.stop(9)
    print(f"\n{equal} equal, {different} different, {known} known differences; logs in {folder}")
    return different != 0


if __name__ == "__main__":
    sys.exit(main())
