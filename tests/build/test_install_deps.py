# SPDX-License-Identifier: Apache-2.0
"""What is installed is said before; without root and sudo a sentence says what to do."""
import pathlib
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/install_deps"


def run(folder, *args, uid=1000, installed="", sudo=False, unknown=""):
    """The script with an apt of our own, which writes down how it was called."""
    programs = {
        "dpkg": f'case " {installed} " in *" $2 "*) exit 0;; esac; exit 1',
        "apt-cache": f'case " {unknown} " in *" $2 "*) exit 0;; esac; echo "  Candidate: 1.0"',
        "apt-get": f'echo "$@" >> {folder}/calls',
        "id": f"echo {uid}",
    }
    if sudo:
        programs["sudo"] = f'echo sudo >> {folder}/calls; exec "$@"'
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    for name in ("bash", "sed", "grep", "env"):
        if not (folder / name).exists():
            (folder / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())
    done = subprocess.run(["bash", SCRIPT, *args], env={"PATH": str(folder)}, text=True,
                          capture_output=True, check=False)
    calls = (folder / "calls").read_text() if (folder / "calls").exists() else ""
    return done, calls


def test_without_root_and_sudo_a_sentence_says_what_to_do(tmp_path):
    done, calls = run(tmp_path)
    assert done.returncode == 1 and calls == ""
    assert "As root, run:" in done.stderr and "apt-get install gcc make" in done.stderr


@pytest.mark.parametrize("uid,sudo", [(0, False), (1000, True)])
def test_what_will_be_installed_is_said_with_its_reason(tmp_path, uid, sudo):
    have = "gcc make pkg-config libpcre2-dev libutf8proc-dev python3 python3-venv python3-pip curl"
    done, calls = run(tmp_path, uid=uid, installed=have, sudo=sudo)
    assert done.returncode == 0, done.stderr
    assert "what the server is made with" in done.stderr and "only the tests" not in done.stderr
    assert "libevent-dev" in calls and "gcc" not in calls and "libgrpc-dev" in calls
    assert ("sudo" in calls) == sudo and ("sudo may ask" in done.stderr) == sudo


def test_nothing_missing_does_nothing(tmp_path):
    have = ("gcc make pkg-config libevent-dev libssl-dev zlib1g-dev libprotobuf-c-dev protobuf-c-compiler "
            "libpcre2-dev libutf8proc-dev libyaml-dev libcurl4-openssl-dev libexpat1-dev libsndfile1-dev libjpeg-dev libpng-dev "
            "libwebp-dev libhiredis-dev "
            "python3 python3-venv python3-pip curl ca-certificates libgrpc-dev")
    done, calls = run(tmp_path, installed=have)
    assert (done.returncode, done.stderr, calls) == (0, "", "")
    done, calls = run(tmp_path, "test", installed=have)
    assert done.returncode == 1 and "libcmocka-dev" in done.stderr


@pytest.mark.parametrize("unknown,chrome,comes", [("", False, True), ("chromium", False, False), ("", True, False)])
def test_the_tests_of_the_page_get_a_browser(tmp_path, unknown, chrome, comes):
    """Debian's; Ubuntu's lists have none, and one that is there is enough."""
    if chrome:
        (tmp_path / "google-chrome").write_text("#!/bin/sh\n")
        (tmp_path / "google-chrome").chmod(0o755)
    done, calls = run(tmp_path, "test", uid=0, unknown=unknown)
    assert done.returncode == 0 and "libcmocka-dev" in calls, done.stderr
    assert (" chromium" in calls) == comes, calls
    assert "chromium" not in run(tmp_path, uid=0)[1].splitlines()[-1]
