# SPDX-License-Identifier: Apache-2.0
"""Models by name, against a hub on this machine: which files are fetched, where they lie, what survives a broken
connection, and that nothing which the hub says is believed."""
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from hub_server import BIG, git_hash, sha256

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
pytestmark = pytest.mark.skipif("no-hub" in subprocess.run([NEREID, "--version"], capture_output=True, text=True).stdout,
                                reason="the build is without libcurl")


def nereid(*words, **kwargs):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, timeout=120, **kwargs)


def pull(name, *words):
    r = nereid("pull", name, *words)
    assert r.returncode == 0, r.stderr
    return pathlib.Path(r.stdout.strip())


def refused(name, *parts):
    r = nereid("pull", name)
    assert r.returncode == 1 and r.stdout == "", r.stdout + r.stderr
    errors = [line for line in r.stderr.splitlines() if line.startswith("nereid pull: ")]
    assert len(errors) == 1, r.stderr
    for p in parts:
        assert p in errors[0], errors[0]
    return errors[0]


def leftovers(hub):
    return [p for p in hub.cache.rglob("*") if ".incomplete" in p.name or ".tmp." in p.name]


# ---- what is fetched, and where it lies ----

def test_a_folder_is_fetched_with_what_the_model_needs_in_the_layout_of_huggingface_hub(hub, tiny):
    path = pull("org/tiny")
    assert path == hub.cache / "models--org--tiny/snapshots" / hub.commit("org/tiny")
    assert {p.name for p in path.iterdir()} == hub.files_asked() == set(tiny) | {"README.md"}
    for p in path.iterdir():
        data = hub.repos["org/tiny"][p.name]
        assert p.is_symlink() and p.read_bytes() == data
        assert os.readlink(p) == f"../../blobs/{sha256(data) if len(data) >= 4096 else git_hash(data)}"
    assert (path.parents[1] / "refs/main").read_text() == hub.commit("org/tiny")
    assert leftovers(hub) == []


def test_cve_2026_47155_all_files_come_from_the_revision_that_the_name_had(hub):
    """Only the first question names the branch: the list and each file are asked for by the commit, so that a branch
    which moves in between brings no file of its new state."""
    for name in ("org/tiny", "org/tiny@v1"):
        pull(name)
        asked = [p for _, p, _ in hub.asked]
        commit = hub.commit("org/tiny")
        assert len([p for p in asked if "/revision/" in p]) == 1 and "/revision/" in asked[0], asked
        rest = [p for p in asked[1:] if "/resolve/" in p or "/tree/" in p]
        assert rest and all(f"/tree/{commit}" in p or f"/resolve/{commit}/" in p for p in rest), asked
        hub.asked.clear()


def test_huggingface_hub_finds_what_was_pulled_and_we_find_what_it_has_fetched(hub, monkeypatch):
    script = ("import sys; from huggingface_hub import hf_hub_download as d, scan_cache_dir as s; "
              "print(d(sys.argv[1], sys.argv[2])); w = s().warnings; assert not w, w")

    def theirs(*words, **env):
        r = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=120,
                           env=os.environ | {"HF_HUB_DISABLE_XET": "1"} | env)
        assert r.returncode == 0, r.stderr
        return pathlib.Path(r.stdout.strip())
    path = pull("org/tiny")
    assert theirs("org/tiny", "model.safetensors", HF_HUB_OFFLINE="1") == path / "model.safetensors"
    their_path = theirs("org/ggufs", "m-Q8_0.gguf")
    n = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    r = nereid("run", "org/ggufs:Q8_0", "-p", "x")
    assert "not in the cache" not in r.stderr and len(hub.asked) == n  # it is opened: a file that is no real model
    monkeypatch.delenv("HF_HUB_OFFLINE")
    before = len(hub.sent)
    assert pull("org/ggufs:Q8_0") == their_path
    assert {hub_path.rsplit("/")[-1] for hub_path, _, _ in hub.sent[before:]} == {"mmproj-BF16.gguf"}  # theirs has brought none


@pytest.mark.parametrize("name,expected", [
    ("org/ggufs", ["m-Q4_K_M.gguf"]), ("hf:org/ggufs:q8_0", ["m-Q8_0.gguf"]), ("org/ggufs:BF16", ["m-BF16.gguf"]),
    ("org/ggufs/m-Q8_0.gguf", ["m-Q8_0.gguf"]), ("org/ggufs:Q6_K@v1", [f"UD-Q6_K/m-Q6_K-0000{i}-of-00003.gguf" for i in (1, 2, 3)]),
    ("org/ggufs@v1:Q8_0", ["m-Q8_0.gguf"]), ("URL/org/ggufs/resolve/main/m-BF16.gguf", ["m-BF16.gguf"]),
])
def test_one_gguf_file_is_chosen_by_type_name_or_address(hub, name, expected):
    path = pull(name.replace("URL", hub.url))
    tower = {"mmproj-BF16.gguf"} if "Q6_K" not in name else set()  # it lies beside the others
    assert hub.files_asked() == set(expected) | tower
    assert str(path).endswith(expected[0]) and path.read_bytes() == hub.repos["org/ggufs"][expected[0]]
    assert (hub.cache / "models--org--ggufs/refs/v1").exists() == ("@v1" in name)


def test_a_file_of_another_address_is_fetched_and_kept(hub, tmp_path):
    hub.plain["/x/some.gguf"] = b"GGUF" + BIG
    hub.plain["/x/page.gguf"] = b"<html>"
    url = f"{hub.url.replace('127.0.0.1', 'localhost')}/x/some.gguf"
    path = pull(url)
    assert path.read_bytes() == hub.plain["/x/some.gguf"] and tmp_path / "nereid/files" in path.parents
    n = len(hub.asked)
    assert nereid("inspect", path).returncode == 1 and nereid("run", url, "-p", "x").returncode == 1 and len(hub.asked) == n
    refused(url.replace("some", "page"), "is no GGUF file")
    refused(url.replace("some", "none"), "HTTP status 404")


def test_large_files_come_in_parts_and_the_token_stays_with_the_hub(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    path = pull("org/big")
    assert path.read_bytes() == hub.repos["org/big"]["m-Q8_0.gguf"]
    assert len({first for _, first, _ in hub.sent}) == 6
    assert {t for server, _, t in hub.asked if server == "hub"} == {"Bearer hf_secret"}
    assert {t for server, _, t in hub.asked if server == "cdn"} == {None}


def test_the_token_of_a_login_is_used(hub, tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/token").write_text("hf_file\n")
    pull("org/tiny")
    assert {t for server, _, t in hub.asked if server == "hub"} == {"Bearer hf_file"}


# ---- connections ----

def test_connections_that_break_are_gone_on_with(hub):
    hub.cuts, hub.cut_after = 12, 300_000
    assert pull("org/big").read_bytes() == hub.repos["org/big"]["m-Q8_0.gguf"]
    assert hub.cuts == 0 and sum(n for _, _, n in hub.sent) < 4 * len(BIG)
    assert any(first % (4 << 20) for _, first, _ in hub.sent)


def test_what_an_ended_pull_has_is_gone_on_with(hub):
    hub.delay = 0.4
    p = subprocess.Popen([NEREID, "pull", "org/big"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not any(f.stat().st_size >= 4 << 20 for f in leftovers(hub)):
        assert time.monotonic() < until and p.poll() is None
        time.sleep(0.01)
    p.send_signal(signal.SIGKILL)
    p.wait()
    (part,) = leftovers(hub)
    has = part.stat().st_size
    assert part.read_bytes() == hub.repos["org/big"]["m-Q8_0.gguf"][:has]
    hub.delay, hub.sent = 0, []
    assert pull("org/big").read_bytes() == hub.repos["org/big"]["m-Q8_0.gguf"]
    assert min(first for _, first, _ in hub.sent) == has and leftovers(hub) == []


def test_a_beginning_of_something_else_is_found_out(hub):
    blobs = hub.cache / "models--org--big/blobs"
    blobs.mkdir(parents=True)
    data = hub.repos["org/big"]["m-Q8_0.gguf"]
    (blobs / f"{sha256(data)}.incomplete").write_bytes(b"something else" * 100)
    assert pull("org/big").read_bytes() == data


def test_a_server_without_ranges_will_do(hub):
    hub.ranges = False
    assert pull("org/big").read_bytes() == hub.repos["org/big"]["m-Q8_0.gguf"]
    hub.plain["/x/some.gguf"] = b"GGUF" + BIG
    hub.cuts, hub.cut_after = 2, 5_000_000
    assert pull(hub.url.replace("127.0.0.1", "localhost") + "/x/some.gguf").read_bytes() == b"GGUF" + BIG


def test_addresses_that_expire_are_asked_for_again(hub):
    hub.expires = 3
    assert pull("org/big").read_bytes() == hub.repos["org/big"]["m-Q8_0.gguf"]
    assert hub.signature > 0


def test_a_hub_that_is_busy_is_asked_again(hub):
    hub.busy, hub.retry_after = 2, 1
    start = time.monotonic()
    pull("org/tiny")
    assert time.monotonic() - start > 1.9
    hub.busy, hub.retry_after = 1, 3600
    refused("org/ggufs", "asks to wait 3600 seconds", "HF_TOKEN")


def test_two_pulls_of_one_model_fetch_it_once(hub):
    hub.delay = 0.1
    ps = [subprocess.Popen([NEREID, "pull", "org/big", "-q"], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {p.communicate(timeout=120)[0].strip() for p in ps}
    assert len(paths) == 1 and pathlib.Path(paths.pop()).read_bytes() == hub.repos["org/big"]["m-Q8_0.gguf"]
    assert len(hub.sent) == 6


def test_a_file_that_huggingface_hub_is_fetching_is_waited_for(hub):
    data = hub.repos["org/big"]["m-Q8_0.gguf"]
    locks, blobs = hub.cache / ".locks/models--org--big", hub.cache / "models--org--big/blobs"
    locks.mkdir(parents=True)
    blobs.mkdir(parents=True)
    with open(locks / f"{sha256(data)}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        p = subprocess.Popen([NEREID, "pull", "org/big"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "being pulled by another program" not in p.stderr.readline():
            assert p.poll() is None
        (blobs / sha256(data)).write_bytes(data)
    assert pathlib.Path(p.communicate(timeout=60)[0].strip()).read_bytes() == data and hub.sent == []


# ---- what the hub says is not believed ----

@pytest.mark.parametrize("name", ["../../../../evil", "/tmp/evil", "a/../../evil", "a\\b", "a//b", "x" * 300, "a\nb", ""])
def test_names_that_lead_elsewhere_are_refused(hub, name, tmp_path):
    hub.lies["config.json"] = {"path": name}
    refused("org/tiny", "is no name of a file inside the model")
    assert not list(tmp_path.rglob("*evil*")) and hub.files_asked() == set()


@pytest.mark.parametrize("lie", [{"oid": "../../x"}, {"oid": "A" * 40}, {"size": -1}, {"size": 1 << 60}, {"size": "9"},
                                 {"lfs": {"oid": "../x", "size": 5}}, {"oid": None}])
def test_hashes_and_sizes_that_are_none_are_refused(hub, lie):
    hub.lies["config.json"] = lie
    refused("org/tiny", "config.json")
    assert hub.files_asked() == set()


def test_more_than_the_disk_has_is_said_before(hub):
    data = hub.repos["org/big"]["m-Q8_0.gguf"]
    hub.lies["m-Q8_0.gguf"] = {"lfs": {"oid": sha256(data), "size": 1 << 40}}
    refused("org/big", "needs 1099.51 GB more", "set HF_HOME")
    assert hub.files_asked() == set()


def test_wrong_content_and_wrong_lengths_do_not_get_a_name(hub):
    data = hub.repos["org/big"]["m-Q8_0.gguf"]
    hub.corrupt = True
    refused("org/big", "SHA-256", "pull it again")
    assert leftovers(hub) == [] and not (hub.cache / "models--org--big/blobs" / sha256(data)).exists()
    hub.corrupt, hub.total = False, len(data) + 5
    refused("org/big", "the file was changed")
    hub.total = 0
    hub.lies["m-Q8_0.gguf"] = {"lfs": {"oid": sha256(data), "size": len(data) - 5}}
    refused("org/big", "expected from 0 of")
    hub.lies, hub.ranges, hub.extra = {}, False, b"more"
    hub.repos["org/small"] = {"m.gguf": b"GGUFsmall"}
    hub.lies["m.gguf"] = {"size": 5, "oid": git_hash(b"GGUFs")}
    refused("org/small", "more than the 5 bytes")
    assert not (hub.cache / "models--org--small/snapshots").exists()


def test_a_pointer_of_git_lfs_is_no_model(hub, tiny):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    hub.repos["org/copy"] = tiny | {"model.safetensors": pointer}
    refused("org/copy", "model.safetensors", "Git LFS pointer")


@pytest.mark.parametrize("where", ["http://192.0.2.7/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "http://user:pw@127.0.0.1/x",
                                   "http://127.0.0.1.evil.example/x", "http://localhost.evil.example/x"])
def test_redirections_to_what_is_not_encrypted_are_not_followed(hub, where):
    hub.redirect = where
    error = refused("org/big")
    assert "not encrypted" in error or "user's name" in error or "no address" in error


def test_redirections_that_never_end_and_lists_that_go_elsewhere(hub):
    hub.redirect = "/org/big/resolve/main/m-Q8_0.gguf"
    refused("org/big", "more than 8 redirections")
    hub.next_host = hub.cdn_url
    refused("org/tiny", "goes on at another host")


# ---- refusals, each with what to do ----

def test_refusals_say_what_to_do(hub, monkeypatch):
    hub.refusals = {"org/gated": (401, "GatedRepo"), "org/closed": (403, "Other")}
    refused("org/gated", "'org/gated' is gated: accept its terms at", f"{hub.url}/org/gated", "set HF_TOKEN")
    assert "\x07" not in refused("org/closed", "HTTP status 403", "set HF_TOKEN")
    refused("org/none", "has no model 'org/none', or it is private", "set HF_TOKEN")
    refused("org/tiny@nope", "has no revision 'nope'")
    refused("org/ggufs:Q2_K", "no GGUF file of type Q2_K; it has Q4_K_M, Q6_K, Q8_0, BF16")
    refused("org/ggufs/none.gguf", "org/ggufs has no file 'none.gguf'")
    monkeypatch.setenv("HF_TOKEN", "wrong")
    refused("org/none", "this token may not see it")
    hub.refusals["org/tiny"] = (401, "")
    refused("org/tiny", "does not take the token", "/settings/tokens")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused("org/tiny", "HF_HUB_OFFLINE is set")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    refused("org/tiny", "try again: what has come is kept")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    refused("org/tiny", "HF_ENDPOINT", "use https://")


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "a/b:", "a/b@", "a/../b", "-a/b", "a/b--c", "hf:", "a/b@../../x", "a/b:x/y",
                                  "http://127.0.0.1/page.html"])
def test_what_is_no_name_is_refused(hub, name):
    if not name.startswith("-"):
        refused(name, "expected" if not name.startswith("http") else "must be that of a GGUF file")
    assert hub.asked == []


# ---- the verbs that take a model ----

def test_run_pulls_what_is_not_there_and_asks_nobody_the_next_time(hub):
    words = ("org/tiny", "-p", "ab", "-n", "4", "--temperature", "0", "-q")
    first = nereid("run", *words)
    assert first.returncode == 0 and "org/tiny" in first.stderr, first.stderr
    n = len(hub.asked)
    second = nereid("run", *words)
    assert second.returncode == 0 and second.stdout == first.stdout and len(hub.asked) == n
    local = nereid("run", hub.cache / "models--org--tiny/snapshots" / hub.commit("org/tiny"), *words[1:])
    assert local.stdout == first.stdout


def test_a_folder_wins_and_both_are_told(hub, tmp_path):
    pull("org/tiny")
    (tmp_path / "org/tiny").mkdir(parents=True)
    r = nereid("run", "org/tiny", "-p", "x", cwd=tmp_path)
    assert r.returncode == 1 and "is taken from this folder; the hub's model of that name is hf:org/tiny" in r.stderr
    assert nereid("run", "hf:org/tiny", "-p", "x", "-n", "1", cwd=tmp_path).returncode == 0
    assert nereid("run", "org/nothing.gguf", "-p", "x").stderr == "nereid run: 'org/nothing.gguf' does not exist\n"
    assert "no file or folder 'org/none' is here" in nereid("run", "org/none", "-p", "x").stderr


def test_convert_build_eval_and_bench_take_names(hub, tmp_path):
    assert nereid("convert", "--model_dir", "org/tiny", "--output_dir", tmp_path / "ckpt").returncode == 0
    assert nereid("build", "--checkpoint_dir", "org/tiny", "--output_dir", tmp_path / "engine").returncode == 0
    (tmp_path / "text").write_text("a b c d e f g h " * 20)
    assert "perplexity" in nereid("eval", "org/tiny", "-f", tmp_path / "text").stdout
    assert nereid("bench", "org/tiny", "--max_sequences", 1, "--input_len", 4, "--output_len", 2).returncode == 0


def test_pull_as_json(hub):
    r = nereid("pull", "org/tiny", "--json", "--quiet")
    assert json.loads(r.stdout)["path"].endswith(hub.commit("org/tiny")) and r.stderr == ""
