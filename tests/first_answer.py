# SPDX-License-Identifier: Apache-2.0
"""Waits for a server on this machine that was just started in another root, and asks it."""
import json
import time
import urllib.error
import urllib.request

import pytest


def first_answer(http, server):
    """The completion that `model` gives at the port, once it is ready; fails when the process ends, or after two minutes."""
    body = json.dumps({"model": "model", "prompt": "one two", "max_tokens": 5}).encode()
    until = time.monotonic() + 120
    while True:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{http}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as r:
                return json.load(r)
        except urllib.error.HTTPError as e:
            pytest.fail(e.read().decode())
        except OSError:
            assert server.poll() is None and time.monotonic() < until
            time.sleep(0.2)
