# SPDX-License-Identifier: Apache-2.0
"""Repository agents: checksums, the order of actions, folders that agents put in a model's place."""
import hashlib

import pytest

from triton_server import BUILD, write_model

TELLER = BUILD / "tests/repoagents"


def agents(*rows):
    text = ""
    for name, parameters in rows:
        inner = " ".join(f'parameters {{ key: "{k}" value: "{v}" }}'
                         for k, v in parameters.items())
        text += f'{{ name: "{name}" {inner} }},'
    return "model_repository_agents { agents [ %s ] }" % text.rstrip(",")


def load(server, model="m"):
    return server.call("POST", f"/v2/repository/models/{model}/load", {})


def start(launch, folder, *args):
    return launch(folder, "--model-control-mode=explicit", *args).wait_ready()


def test_right_checksums_let_a_model_in(tmp_path, launch):
    data = bytes(range(256)) * 300
    sums = {}
    write_model(tmp_path / "r", "m")
    for n in (0, 1, 55, 56, 63, 64, 65, 119, 120, 4096, len(data)):
        (tmp_path / f"r/m/1/file{n}").write_bytes(data[:n])
        sums[f"MD5:1/file{n}"] = hashlib.md5(data[:n]).hexdigest()
    config = tmp_path / "r/m/config.pbtxt"
    config.write_text(config.read_text() + agents(("checksum", sums)))
    s = start(launch, tmp_path / "r")
    assert load(s).status == 200
    assert s.call("GET", "/v2/models/m/config").json()["model_repository_agents"]["agents"][0][
        "name"] == "checksum"


@pytest.mark.parametrize("key,value,words", [
    ("MD5:1/file", "0" * 32, "Mismatched MD5 hash for file 1/file, expect: " + "0" * 32
     + ", got: " + hashlib.md5(b"content").hexdigest()),
    ("md5:1/none", "0", "failed to open text file for read 1/none: No such file or directory"),
    ("SHA1:1/file", "0", "Unsupported checksum algorithm: SHA1"),
    ("1/file", "0", "failed to parse key: 1/file"),
    ("MD5:../../secret", "0", "must stay within the model's folder"),
])
def test_wrong_checksums_do_not(tmp_path, launch, key, value, words):
    write_model(tmp_path / "r", "m", extra=agents(("checksum", {key: value})))
    (tmp_path / "r/m/1/file").write_bytes(b"content")
    s = start(launch, tmp_path / "r")
    reply = load(s)
    assert reply.status >= 400 and words in reply.error()
    assert s.call("GET", "/v2/models/m/ready").status != 200


def test_unknown_agents_are_named(tmp_path, launch):
    write_model(tmp_path / "r", "m", extra=agents(("nobody", {})))
    reply = load(start(launch, tmp_path / "r"))
    assert "unable to find 'libtritonrepoagent_nobody.so' for repo agent 'nobody'" in reply.error()


def told(server):
    return [line.split("teller: ")[1].split()[0] for line in server.log().splitlines()
            if "teller: " in line and "teller: refused" not in line]


def test_actions_come_in_order(tmp_path, launch):
    write_model(tmp_path / "r", "m", extra=agents(("teller", {"a": "1"}), ("teller", {"b": "2"})))
    s = start(launch, tmp_path / "r", f"--repoagent-directory={TELLER}")
    assert load(s).status == 200
    assert told(s) == ["LOAD", "LOAD", "LOAD_COMPLETE", "LOAD_COMPLETE"]
    s.call("POST", "/v2/repository/models/m/unload", {})
    s.wait_log("successfully unloaded 'm'")
    assert told(s)[4:] == ["UNLOAD", "UNLOAD", "UNLOAD_COMPLETE", "UNLOAD_COMPLETE"]
    assert s.stop() == 0


@pytest.mark.parametrize("action,after", [
    ("LOAD", ["LOAD", "LOAD_FAIL"]), ("LOAD_COMPLETE", ["LOAD", "LOAD_COMPLETE", "UNLOAD",
                                                        "UNLOAD_COMPLETE"])])
def test_refusing_fails_the_load(tmp_path, launch, action, after):
    write_model(tmp_path / "r", "m", extra=agents(("teller", {"refuse": action})))
    s = start(launch, tmp_path / "r", f"--repoagent-directory={TELLER}")
    reply = load(s)
    assert reply.status >= 400 and "teller: refused" in reply.error()
    s.wait_log("teller: " + after[-1])
    assert told(s) == after


def test_failed_load_is_told(tmp_path, launch):
    write_model(tmp_path / "r", "m", extra=agents(("teller", {})))
    config = tmp_path / "r/m/config.pbtxt"
    config.write_text(config.read_text().replace('"identity"', '"nothing"'))
    s = start(launch, tmp_path / "r", f"--repoagent-directory={TELLER}")
    assert load(s).status >= 400
    assert told(s) == ["LOAD", "LOAD_FAIL"]


def test_agents_put_other_folders_in_place(tmp_path, launch):
    write_model(tmp_path / "other", "elsewhere")
    (tmp_path / "other/elsewhere/1").rename(tmp_path / "other/elsewhere/7")
    write_model(tmp_path / "r", "m", extra=agents(
        ("teller", {"to": str(tmp_path / "other/elsewhere")})))
    write_model(tmp_path / "r", "copied", extra=agents(("teller", {"copy": "yes"})))
    s = start(launch, tmp_path / "r", f"--repoagent-directory={TELLER}")
    assert load(s).status == 200 and load(s, "copied").status == 200
    assert s.call("GET", "/v2/models/m").json()["versions"] == ["7"]
    folder = next(line.split()[-1] for line in s.log().splitlines() if "LOAD /tmp/folder" in line)
    import pathlib
    assert pathlib.Path(folder).is_dir()
    s.call("POST", "/v2/repository/models/copied/unload", {})
    s.wait_log("successfully unloaded 'copied'")
    assert not pathlib.Path(folder).exists()
