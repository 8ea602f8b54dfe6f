# SPDX-License-Identifier: Apache-2.0
"""cache_salt and --cache-salt-per-key: whose prompts may share cached blocks."""
import itertools
import json
import pathlib
import urllib.error
import urllib.request

import pytest

from llm_server import Server

KEYS = ("first-key", "second-key")
words = itertools.count()


def prompt():
    """A prompt that nobody has asked yet."""
    return f"number {next(words)} " + "the quick brown fox jumps over the lazy dog " * 12


@pytest.fixture(scope="module")
def per_key(tiny_model, cache):
    keys = pathlib.Path(cache) / "keys-of-isolation"
    keys.write_text("\n".join(KEYS))
    s = Server(tiny_model, cache, f"--api-key-file={keys}", "--cache-salt-per-key=true", "--served-model-name=tiny")
    try:
        yield s.wait_ready()
    finally:
        s.stop()


@pytest.fixture(scope="module")
def plain(tiny_model, cache):
    s = Server(tiny_model, cache, "--served-model-name=tiny")
    try:
        yield s.wait_ready()
    finally:
        s.stop()


def post(server, path, body, key=None):
    fields = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(server.url(path), json.dumps(body).encode(), fields)
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def cached(server, text, salt=None, key=None):
    body = {"model": "tiny", "prompt": text, "max_tokens": 1, **({"cache_salt": salt} if salt else {})}
    status, answer = post(server, "/v1/completions", body, key)
    assert status == 200, answer
    return answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


def test_prompts_share_blocks_within_one_salt_only(plain):
    text = prompt()
    assert cached(plain, text) == 0
    assert cached(plain, text) > 0
    for salt in ("a", "b", "A", "a" * 1024):
        assert cached(plain, text, salt) == 0
        assert cached(plain, text, salt) > 0
    assert cached(plain, text) > 0


@pytest.mark.parametrize("salt", ["", "x" * 1025, 5, ["a"], "a\0b"])
def test_what_is_no_salt_is_refused(plain, salt):
    """limits: CACHE_SALT"""
    status, answer = post(plain, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1, "cache_salt": salt})
    assert status == 400 and answer["error"]["param"] == "cache_salt"


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_v2_takes_the_same_salt(plain, model):
    for salt in (None, "z"):
        text = prompt()
        body = {"text_input": text, "max_tokens": 1, **({"cache_salt": salt} if salt else {})}
        status, answer = post(plain, f"/v2/models/{model}/generate", body)
        assert status == 200, answer
        assert cached(plain, text, "another") == 0
        assert cached(plain, text, None if salt else "z") == 0
        assert cached(plain, text, salt) > 0
    status, answer = post(plain, f"/v2/models/{model}/generate", {"text_input": "x", "max_tokens": 1, "cache_salt": "y" * 1025})
    assert status == 400 and "cache_salt" in answer["error"]


def test_keys_do_not_share(per_key):
    text = prompt()
    for key in KEYS:
        for salt in (None, "s"):
            assert cached(per_key, text, salt, key) == 0
            assert cached(per_key, text, salt, key) > 0
            status, answer = post(per_key, "/v2/models/ensemble/generate", {"text_input": text, "max_tokens": 1}, key)
            assert status == 200, answer


def test_a_client_cannot_name_another_key_s_world(per_key):
    text = prompt()
    assert cached(per_key, text, None, KEYS[0]) == 0
    for name in ("cache_salt_of_key", "cache_salt"):
        body = {"text_input": text, "max_tokens": 1, name: "0" * 32}
        assert post(per_key, "/v2/models/ensemble/generate", body, KEYS[1])[0] == 200
    assert cached(per_key, text, None, KEYS[0]) > 0
    assert cached(per_key, prompt(), None, KEYS[0]) == 0


def test_the_option_needs_keys(tiny_model, cache):
    s = Server(tiny_model, cache, "--cache-salt-per-key=true")
    with pytest.raises(RuntimeError, match="--cache-salt-per-key needs"):
        s.wait_ready()
