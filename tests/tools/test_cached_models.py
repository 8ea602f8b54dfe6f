# SPDX-License-Identifier: Apache-2.0
"""list, show, rm and prune: what they tell of the cache, and that they remove what was meant and nothing else."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
pytestmark = pytest.mark.skipif("no-hub" in subprocess.run([NEREID, "--version"], capture_output=True, text=True).stdout,
                                reason="the build is without libcurl")
DAY = 24 * 3600


def nereid(*words, code=0, **kwargs):
    r = subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                       **kwargs)
    assert r.returncode == code, r.stdout + r.stderr
    return r


def pull(*names):
    return [pathlib.Path(nereid("pull", n, "-q").stdout.strip()) for n in names]


def listed():
    return {e["name"]: e for e in json.loads(nereid("list", "--json").stdout)}


def theirs(hub, repo, *files):
    """As huggingface_hub fetches them."""
    script = "import sys; from huggingface_hub import hf_hub_download as d; [d(sys.argv[1], f) for f in sys.argv[2:]]"
    subprocess.run([sys.executable, "-c", script, repo, *files], check=True, env=os.environ | {"HF_HUB_DISABLE_XET": "1"},
                   capture_output=True)


def age(path, days):
    when = time.time() - days * DAY
    os.utime(path, (when, when))


def grow_old(tmp_path, hub, days):
    for p in (tmp_path / "nereid/pulled").iterdir():
        age(p, days)
    for p in hub.cache.glob("models--*/blobs/*"):
        age(p, days)


def test_an_empty_cache_says_how_to_fill_it(hub):
    r = nereid("list")
    assert r.stdout == "" and "nereid pull ORG/NAME" in r.stderr and listed() == {}


def test_list_tells_name_size_type_and_parameters_whoever_fetched_it(hub, tiny):
    pull("org/tiny", "org/ggufs:Q8_0", "org/ggufs:Q6_K", "org/ggufs:Q8_0@v1")
    theirs(hub, "org/ggufs", "m-BF16.gguf")
    got = listed()
    assert set(got) == {"org/tiny", "org/ggufs:BF16", "org/ggufs:Q6_K", "org/ggufs:Q8_0"} | {
        f"org/ggufs:{t}@v1" for t in ("BF16", "Q6_K", "Q8_0")}
    e = got["org/tiny"]
    n = sum(len(d) for d in tiny.values()) + len(hub.repos["org/tiny"]["README.md"])
    assert e["bytes"] == n and e["family"] == "LlamaForCausalLM" and e["licence"] == "mit" and e["type"] and e["is_ours"]
    assert len(tiny["model.safetensors"]) / 5 < e["parameters"] < len(tiny["model.safetensors"])
    assert got["org/ggufs:Q6_K"]["bytes"] == 3 * 9004 and not got["org/ggufs:BF16"]["is_ours"]
    table = nereid("list").stdout.splitlines()
    assert table[0].split() == ["NAME", "SIZE", "TYPE", "PARAMETERS", "MODIFIED"] and len(table) == 8
    (path,) = pull("org/tiny")
    assert all(pathlib.Path(x["path"]).exists() for x in got.values()) and got["org/tiny"]["path"] == str(path)


def test_every_name_in_the_list_is_an_id_that_means_this_model(hub, monkeypatch):
    pull("org/tiny", "org/ggufs", "org/ggufs:Q8_0", "org/ggufs:Q6_K@v1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, e in listed().items():
        assert json.loads(nereid("show", name, "--json").stdout)["path"] == e["path"]


def test_show_tells_what_inspect_says_with_licence_and_template(hub, tiny):
    hub.repos["org/chat"] = tiny | {"chat_template.jinja": b"{{ messages[0].content }}",
                                    "README.md": b"---\nlanguage: en\nlicense: 'apache-2.0'\n---\ntext"}
    pull("org/chat")
    text = nereid("show", "org/chat").stdout
    for part in ("licence       apache-2.0", "architecture  LlamaForCausalLM", "tokenizer", hub.commit("org/chat")):
        assert part in text
    assert nereid("show", "org/chat", "--template").stdout == "{{ messages[0].content }}\n"
    e = json.loads(nereid("show", "org/chat", "--json").stdout)
    assert e["template"] == "{{ messages[0].content }}" and e["commit"] == hub.commit("org/chat")
    assert "is not in the cache: nereid pull org/tiny" in nereid("show", "org/tiny", code=1).stderr
    assert json.loads(nereid("show", listed()["org/chat"]["path"], "--json").stdout)["parameters"] == e["parameters"]


def test_rm_asks_and_removes_only_what_was_named(hub, tmp_path):
    q4, q8, q6 = pull("org/ggufs", "org/ggufs:Q8_0", "org/ggufs:Q6_K")
    r = nereid("rm", "org/ggufs:Q8_0", code=1)
    assert "add --yes" in r.stderr and q8.exists()
    r = json.loads(nereid("rm", "org/ggufs:Q8_0", "--yes", "--json").stdout)
    assert r == {"removed": ["org/ggufs:Q8_0"], "bytes": q8_size(hub)}
    assert set(listed()) == {"org/ggufs:Q4_K_M", "org/ggufs:Q6_K"} and q4.exists() and q6.exists()
    assert len(list((hub.cache / "models--org--ggufs/blobs").iterdir())) == 5  # three parts of Q6_K; Q4_K_M and its tower
    nereid("rm", "org/ggufs:Q6_K", "org/ggufs:Q4_K_M", "-y")
    assert not (hub.cache / "models--org--ggufs").exists() and not list((tmp_path / "nereid/pulled").iterdir())
    assert "is not in the cache" in nereid("rm", "org/ggufs:Q8_0", "-y", code=1).stderr
    assert "is not in the cache" in nereid("rm", "org/tiny", "-y", code=1).stderr
    assert "no model's name" in nereid("rm", "../..", "-y", code=1).stderr


def q8_size(hub):
    return len(hub.repos["org/ggufs"]["m-Q8_0.gguf"])


def test_rm_of_a_revision_keeps_what_others_share_and_of_a_model_takes_all(hub, tiny):
    (old,) = pull("org/tiny@v1")
    hub.repos["org/tiny"] = hub.repos["org/tiny"] | {"README.md": b"another"}
    (new,) = pull("org/tiny")
    assert old != new
    nereid("rm", "org/tiny@v1", "-y")
    assert not old.exists() and (new / "model.safetensors").read_bytes() == tiny["model.safetensors"]
    assert nereid("run", "org/tiny", "-p", "a", "-n", "1", "-q", env=os.environ | {"HF_HUB_OFFLINE": "1"}).stdout
    (hub.cache / "models--org--tiny/blobs/x.incomplete").write_bytes(b"part")
    nereid("rm", "org/tiny", "-y")
    assert not (hub.cache / "models--org--tiny").exists()


def test_rm_takes_what_was_made_of_a_model_and_nothing_else(hub, tmp_path):
    (old_q8,) = pull("org/ggufs:Q8_0@v1")
    hub.repos["org/ggufs"] = hub.repos["org/ggufs"] | {"README.md": b"another"}
    q8, q6, folder = pull("org/ggufs:Q8_0", "org/ggufs:Q6_K", "org/tiny")

    def made(name, model):
        path = tmp_path / "nereid" / name
        path.mkdir(parents=True)
        (path / "file").write_bytes(b"x" * 1000)
        if model:
            (path / ".made_from").write_text(str(model.resolve()))
        return path

    shared, of_q6, of_folder, repo, other, old = (
        made("engines/shared-1", q8), made("tokenizers/q6-1", q6), made("engines/tiny-1", folder),
        made("repositories/tiny-2", folder), made("engines/other-1", tmp_path / "other"), made("engines/old-1", None))
    assert q8 != old_q8 and q8.resolve() == old_q8.resolve()  # both revisions link to one file
    r = json.loads(nereid("rm", "org/ggufs:Q8_0@v1", "--yes", "--json").stdout)
    assert r["removed"] == ["org/ggufs:Q8_0@v1"] and shared.exists()
    r = nereid("rm", "org/ggufs:Q6_K", code=1)
    assert "add --yes" in r.stderr and of_q6.exists()
    r = json.loads(nereid("rm", "org/ggufs:Q6_K", "org/ggufs:Q8_0", "--yes", "--json").stdout)
    assert r["removed"] == ["org/ggufs:Q6_K", "tokenizers/q6-1", "org/ggufs:Q8_0", "engines/shared-1"]
    assert not of_q6.exists() and not shared.exists() and of_folder.exists()
    text = nereid("rm", "org/tiny", "-y").stdout
    assert "removed engines/tiny-1" in text and "removed repositories/tiny-2" in text
    assert not of_folder.exists() and not repo.exists() and other.exists() and old.exists()


def test_rm_of_a_file_of_another_address(hub):
    hub.plain["/x.gguf"] = b"GGUF1234"
    url = hub.url.replace("127.0.0.1", "localhost") + "/x.gguf"
    (path,) = pull(url)
    assert list(listed()) == [url]
    nereid("rm", url, "-y")
    assert not path.exists() and listed() == {}


def test_links_in_the_cache_are_removed_and_not_followed(hub, tmp_path):
    pull("org/tiny")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("x")
    (hub.cache / "models--org--tiny/snapshots/elsewhere").symlink_to(tmp_path / "precious")
    nereid("rm", "org/tiny", "-y")
    assert (tmp_path / "precious/file").exists() and not (hub.cache / "models--org--tiny").exists()


def pruned(*words):
    return {e["name"] for e in json.loads(nereid("prune", "--json", *words).stdout)["removed"]}


def test_prune_removes_by_age_what_this_program_has_fetched_or_made(hub, tmp_path):
    pull("org/tiny", "org/ggufs:Q8_0")
    theirs(hub, "org/big", "m-Q8_0.gguf")
    engine = tmp_path / "nereid/engines/some-0123"
    engine.mkdir(parents=True)
    (engine / "rank0.engine").write_bytes(b"x" * 1000)
    assert pruned("--yes") == set()
    grow_old(tmp_path, hub, 40)
    age(engine, 40)
    ours = {"org/tiny", "org/ggufs:Q8_0", "engines/some-0123"}
    assert pruned("--dry-run") == ours and pruned("--dry-run", "--older-than", "50d") == set()
    assert pruned("--dry-run", "--all", "--older-than", "2w") == ours | {"org/big:Q8_0"}
    nereid("run", "org/tiny", "-p", "a", "-n", "1", "-q")  # is used now
    assert "add --yes" in nereid("prune", code=1).stderr
    assert pruned("--yes") == ours - {"org/tiny"} and not engine.exists()
    assert set(listed()) == {"org/tiny", "org/big:Q8_0"}


def test_prune_by_size_removes_what_was_not_used_longest(hub, tmp_path):
    q8, tiny_dir = pull("org/ggufs:Q8_0", "org/tiny")
    for p in (tmp_path / "nereid/pulled").iterdir():
        age(p, 3 if "ggufs" in p.name else 2)
    total = sum(e["bytes"] for e in listed().values())
    assert pruned("--max-size", f"{total}B", "--yes") == set()
    assert pruned("--max-size", f"{total - 1}B", "--yes") == {"org/ggufs:Q8_0"} and not q8.exists() and tiny_dir.exists()
    assert pruned("--max-size", "0", "--yes") == {"org/tiny"}


@pytest.mark.parametrize("words", [("--older-than", "x"), ("--older-than", "5y"), ("--max-size", "many"),
                                   ("--older-than", "99999999999999d"), ("--max-size", "-1")])
def test_ages_and_sizes_that_are_none(hub, words):
    assert "expected a number" in nereid("prune", *words, code=2).stderr
