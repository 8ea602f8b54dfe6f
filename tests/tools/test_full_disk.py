# SPDX-License-Identifier: Apache-2.0
"""A disk that is full: what makes files refuses before it works, leaves nothing and touches nothing; a server goes on."""
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from llm_server import BIN, ROOT, Server, wait_until

sys.path.insert(0, str(ROOT / "tests"))
from small_disk import SmallDisk  # noqa: E402


@pytest.fixture
def disk(tmp_path):
    try:
        d = SmallDisk(tmp_path / "disk", "256k")
    except OSError as e:
        pytest.skip(str(e))
    yield d
    d.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", out], check=True,
                   stdout=subprocess.DEVNULL)
    assert (out / "model.safetensors").stat().st_size > 256 << 10
    return out


def nereid(disk, *words):
    env = os.environ | {"NEREID_CACHE": str(disk.folder / "cache")}
    return subprocess.run(disk.command([BIN / "nereid", *words]), capture_output=True, text=True, timeout=120, env=env,
                          stdin=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize("words", [("convert",), ("build",), ("quantize", "--qformat", "full_prec", "--no_eval"),
                                   ("quantize", "--qformat", "int8_wo", "--no_eval")])
def test_what_has_no_room_is_refused_before_the_work(disk, model, words):
    out = disk.folder / "out"
    old = {"architecture": "LlamaForCausalLM"}  # what the verb may write over
    old = json.dumps({"pretrained_config": old} if words[0] == "build" else old)
    (disk.seen / "out").mkdir()
    (disk.seen / "out/config.json").write_text(old)
    (disk.seen / "out/report.json").write_text("{}")
    disk.fill()
    r = nereid(disk, *words, model, "--output_dir", out)
    assert r.returncode == 1, r.stdout + r.stderr
    found = re.search(r"no room for '(.*)': it takes ([\d.]+) MB, and '(.*)' has ([\d.]+) MB free: (.*)", r.stderr)
    assert found and found[1] == found[3] == str(out) and float(found[2]) > float(found[4]) == 0 and "prune" in found[5]
    assert disk.files() == ["filler", "out/config.json", "out/report.json"]
    assert (disk.seen / "out/config.json").read_text() == old


def test_an_engine_of_the_cache_that_has_no_room(disk, model):
    r = nereid(disk, "serve", model)
    assert r.returncode == 1 and "no room for" in r.stderr and "'%s/cache/engines' has" % disk.folder in r.stderr
    assert disk.files() == []


@pytest.fixture
def cache_disk(tmp_path):
    """40 MB, of which 5 % are 2 MB, with two old engines of 10 MB."""
    try:
        d = SmallDisk(tmp_path / "disk", "40m")
    except OSError as e:
        pytest.skip(str(e))
    for days, name in ((2, "newer"), (3, "older")):
        folder = d.seen / "cache/engines" / name
        folder.mkdir(parents=True)
        (folder / "rank0.engine").write_bytes(bytes(10 << 20))
        os.utime(folder, (time.time() - days * 86400,) * 2)
    yield d
    d.close()


@pytest.mark.parametrize("taken_mb, limit, left", [(0, "100%", ["newer", "older"]), (14, "100%", ["newer"]), (17, "1TB", ["newer"]),
                                                   (14, "0", ["newer", "older"])])
def test_old_engines_of_the_cache_make_room_where_the_disk_is_nearly_full(cache_disk, model, monkeypatch, taken_mb, limit, left):
    """The model takes 5.4 MB: with 14 MB of others it would have room, and leave too little."""
    monkeypatch.setenv("NEREID_CACHE_MAX_SIZE", limit)
    (cache_disk.seen / "filler").write_bytes(bytes(taken_mb << 20))
    r = nereid(cache_disk, "serve", model, "--prepare-only")
    assert r.returncode == 0, r.stdout + r.stderr
    made = sorted(p.name for p in (cache_disk.seen / "cache/engines").iterdir())
    assert [n for n in made if not n.startswith("llama-")] == left and len(made) == len(left) + 1
    assert r.stderr.count("which was not used longest: the disk is nearly full") == 2 - len(left)


def test_a_repository_that_breaks_off_leaves_nothing(disk, model, tmp_path):
    """Its files are small: nobody asks before, the write itself fails."""
    built = subprocess.run([BIN / "nereid", "build", model, "--output_dir", tmp_path / "engine"], capture_output=True, text=True,
                           check=False)
    assert built.returncode == 0, built.stderr
    disk.fill()
    r = nereid(disk, "repo", "--engine_dir", tmp_path / "engine", "--tokenizer_dir", model, "--output_dir", disk.folder / "repository")
    assert r.returncode == 1 and "No space left on device" in r.stderr and "nereid prune" in r.stderr, r.stderr
    assert disk.files() == ["filler"]


def test_a_server_goes_on_and_says_what_it_could_not_write(disk, model, tmp_path):
    log, trace = disk.seen / "server.log", disk.seen / "trace.json"
    s = Server(model, tmp_path, f"--log-file={disk.folder}/server.log", f"--openai-files-dir={disk.folder}/files",
               "--log-verbose=1", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1",
               f"--trace-config=triton,file={disk.folder}/trace.json", launch=lambda command, env: disk.command(command))
    ask = {"text_input": "ab", "max_tokens": 4}
    try:
        assert wait_until(lambda: log.exists() and "Started Metrics Service" in log.read_text(), 60), s.log_text()
        assert s.generate(ask)[0] == 200
        disk.fill()
        for _ in range(40):
            assert s.generate(ask)[0] == 200
        assert wait_until(lambda: "cannot write the log file" in s.log_text())
        body = (b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; '
                b'name="file"; filename="f.jsonl"\r\n\r\n' + b"y" * 100000 + b"\r\n--x--\r\n")
        form = urllib.request.Request(s.url("/v1/files"), body, {"Content-Type": "multipart/form-data; boundary=x"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(form, timeout=20)
        assert refused.value.code == 413 and b"disk is full" in refused.value.read()
        disk.empty()
        assert s.generate(ask)[0] == 200
        assert wait_until(lambda: re.search(r"^\(\d+ log lines before this were dropped: the disk was full\)$", log.read_text(), re.M))
    finally:
        s.stop()
    assert not re.search(r".[IWE]\d{4} \d\d:\d\d:\d\d", log.read_text())  # a line that was cut short is ended
    assert s.log_text().count("cannot write the log file") < 10  # once each time; a short line may find room between
    traces = json.loads(trace.read_text())
    assert 1 < len({t["id"] for t in traces}) < 42 * 4
