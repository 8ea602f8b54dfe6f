# SPDX-License-Identifier: Apache-2.0
"""Requests that are meant to be costly, beside others: tests/load/attacks.py for seconds, with bounds for busy machines."""
import importlib.util
import re

import pytest

from llm_server import ROOT

PATH = ROOT / "tests/load/attacks.py"
spec = importlib.util.spec_from_file_location("attacks", PATH)
attacks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attacks)

GUIDES_KEPT = int(re.search(r"`GUIDES_KEPT` \| (\d+) ", (ROOT / "docs/limits.md").read_text())[1])
REFUSED = ("many_inputs", "gzip_bomb", "context_logits")


def push_out_guides(port):
    """An engine keeps the guides used last, hundreds of MB of them; small ones take their place."""
    for _ in range(GUIDES_KEPT):
        assert attacks.send(port, *attacks.completion(guided_choice=[attacks.mark()], max_tokens=1)) == "200"


@pytest.mark.parametrize("name", [*REFUSED, "guide_mask", "guide_places", "guide_nodes", "bias_of_many_choices", "classification",
                                  "region_made_shorter"])
def test_others_keep_their_pace_beside(server, name):
    then = (lambda: push_out_guides(server.http)) if name.startswith("guide_") else lambda: None
    seen = attacks.run(server.http, server.process.pid, name, 3, 2, then)
    for what in ("token", "live"):
        times = seen[what]
        assert isinstance(times, list) and len(times) > 3, f"{what}: {times}"
        assert attacks.percentile(times, 0.99) < 1000, f"{what}: {sorted(times)[-5:]}"
    assert seen["statuses"], "no request was answered"
    assert not any(s.startswith("5") for s in seen["statuses"]), seen["statuses"]
    if name in REFUSED:
        assert "200" not in seen["statuses"], seen["statuses"]
    assert seen["peak"] < seen["rss"] + (1 << 30), seen
    assert seen["after"] < seen["rss"] + (128 << 20), seen
