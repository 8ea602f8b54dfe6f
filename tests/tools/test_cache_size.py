# SPDX-License-Identifier: Apache-2.0
"""Engines of the cache: what there is and of what, how much they may take together, and what is in use stays."""
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time

import pytest
from llm_server import BIN, ROOT, Server

DAY = 24 * 3600
MB = 1000000


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", out], check=True,
                   stdout=subprocess.DEVNULL)
    return out


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache/engines").mkdir(parents=True)
    return tmp_path / "cache"


def engine(cache, name, days, size=400 * MB):
    """As an old one lies there: with an encoder of its own."""
    folder = cache / "engines" / name
    (folder / "encoder").mkdir(parents=True)
    for file in ("rank0.engine", "encoder/rank0.engine"):
        (folder / file).touch()
        os.truncate(folder / file, size // 2)  # which takes no room
    when = time.time() - days * DAY
    os.utime(folder, (when, when))
    return folder


def nereid(cache, *words, **env):
    env = os.environ | {"NEREID_CACHE": str(cache), "HF_HOME": str(cache / "hf")} | env
    r = subprocess.run([BIN / "nereid", *map(str, words)], capture_output=True, text=True, timeout=120, env=env,
                       stdin=subprocess.DEVNULL, check=False)
    assert r.returncode == 0, r.stdout + r.stderr
    return r


def made(cache):
    return {e["name"]: e for e in json.loads(nereid(cache, "list", "--made", "--json").stdout)}


def names(cache):
    return {p.name for p in (cache / "engines").iterdir()}


@contextlib.contextmanager
def held(folder):
    """As a program that uses it."""
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def serving(model, cache, tmp_path, size):
    s = Server(model, cache, env={"NEREID_CACHE_MAX_SIZE": size, "XDG_RUNTIME_DIR": str(tmp_path)})
    try:
        yield s.wait_ready()
    finally:
        s.stop()


def test_a_new_engine_takes_the_place_of_those_not_used_longest(model, cache, tmp_path):
    for i, name in enumerate(["newest", "newer", "held", "old", "older"]):
        engine(cache, name, i + 1)
    with held(cache / "engines/held"), serving(model, cache, tmp_path, "1500MB") as s:
        mine = {n for n in names(cache) if n.startswith("llama-")}
        assert len(mine) == 1 and names(cache) == mine | {"newest", "newer", "held"}  # 2000 MB of old ones, and its own
        assert s.log_text().count("which was not used longest") == 2
        assert s.generate({"text_input": "ab", "max_tokens": 2})[0] == 200


def test_what_is_in_use_or_new_stays_however_small_the_limit_is(model, cache, tmp_path):
    engine(cache, "old", 3)
    engine(cache, "held", 4)
    with held(cache / "engines/held"), serving(model, cache, tmp_path, "1B") as s:
        assert "old" not in names(cache) and len(names(cache)) == 2
        seen = made(cache)
        (name,) = {n for n in seen if n.startswith("engines/llama-")}
        assert seen["engines/held"]["in_use"] and seen[name]["in_use"] and seen[name]["made_from"] == str(model)
        assert time.time() - os.stat(seen[name]["path"]).st_mtime < 60 < seen[name]["bytes"]
        # another runtime folder: nothing tells that the server runs, but that it holds what it uses
        nereid(cache, "prune", "--max-size", "0", "--yes", XDG_RUNTIME_DIR=str(cache))
        assert len(names(cache)) == 2 and len(made(cache)) == len(seen)
        assert s.generate({"text_input": "ab", "max_tokens": 2})[0] == 200
    assert not any(e["in_use"] for e in made(cache).values())
    nereid(cache, "prune", "--max-size", "0", "--yes")
    assert made(cache) == {} and names(cache) == set()


def test_an_engine_that_is_there_is_used_again_and_nothing_goes(model, cache, tmp_path):
    with serving(model, cache, tmp_path, "0"):
        pass
    engine(cache, "old", 400)
    before = names(cache)
    with serving(model, cache, tmp_path, "1B"):
        assert names(cache) == before
    with serving(model, cache, tmp_path, "0"):  # 0 is no limit
        assert names(cache) == before


@pytest.mark.parametrize("text, shown", [("50GB", "50.0 GB"), ("0", "any size"), ("1500M", "1.5 GB"), ("none", None), ("101%", None),
                                         ("-1", None), (None, None), ("25%", None)])
def test_the_limit_is_a_size_or_a_share_of_the_disk(cache, text, shown):
    engine(cache, "one", 1)
    r = nereid(cache, "list", "--made", **({"NEREID_CACHE_MAX_SIZE": text} if text else {}))
    row = r.stdout.splitlines()[1].split()
    assert row[0] == "engines/one" and row[-1] == "-" and row[-2] == "no"
    usual = nereid(cache, "list", "--made", NEREID_CACHE_MAX_SIZE="25%").stderr
    last = r.stderr.splitlines()[-1]
    assert f"of at most {shown} " in last if shown else last == usual.strip()
    assert ("expected a number" in r.stderr) == (text in ("none", "101%", "-1"))
