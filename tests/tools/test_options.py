# SPDX-License-Identifier: Apache-2.0
"""The command line of nereid: one way for every verb, and what is made from its tables."""
import ctypes
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
NEREID = os.environ.get("NEREID", str(BIN / "nereid"))


def nereid(*words):
    return subprocess.run([NEREID, *words], capture_output=True, text=True)


TABLES = json.loads(nereid("options", "--json").stdout)
VERBS = [v for v in TABLES if v != "tritonserver"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_lists_what_is_used(verb):
    direct, asked = nereid(verb, "--help"), nereid("help", verb.replace("_", "-"))
    assert direct.returncode == asked.returncode == 0 and direct.stdout == asked.stdout
    for row in TABLES[verb]:
        if row["state"] != "refused" and "help" in row:
            assert row["name"].replace("-", "_") in direct.stdout.replace("-", "_"), row


@pytest.mark.parametrize("verb", VERBS)
def test_names_are_not_guessed(verb):
    for row in TABLES[verb]:
        names = {r["name"] for r in TABLES[verb]} | {a.replace("_", "-") for r in TABLES[verb] for a in r.get("aliases", "").split()}
        cut = row["name"][:-1]
        if cut not in names and len(cut) > 3:
            r = nereid(verb, cut)
            assert r.returncode == 2 and "unknown option" in r.stderr, cut


def test_bench_serve_is_called_as_it_is_typed():
    assert nereid("help", "bench", "serve").stdout == nereid("bench", "serve", "--help").stdout != nereid("help", "bench").stdout
    assert nereid("bench", "serve", "--num_request", "3").stderr.startswith("nereid bench serve: unknown option --num_request; did you mean")


def test_what_was_meant_is_said():
    assert "did you mean --temperature" in nereid("run", "m", "--temprature", "1").stderr
    assert "did you mean --http-thread-count" in nereid("serve", "m", "--http_tread_count=1").stderr
    assert "did you mean 'serve'" in nereid("serv").stderr and nereid("serv").returncode == 2
    assert "did you mean" not in nereid("frobnicate").stderr and "Usage" in nereid("frobnicate").stderr
    assert "did you mean 'bench'" in nereid("help", "bnech").stderr
    server = subprocess.run([BIN / "tritonserver", "--model-repositry=x"], capture_output=True, text=True)
    assert server.returncode == 1 and "'--model-repositry'; did you mean '--model-repository'?" in server.stderr


def test_an_unknown_element_type_is_told_with_the_known():
    r = nereid("convert", "--model_dir", "m", "--output_dir", "c", "--dtype", "float33")
    assert r.returncode == 1 and "'float33' is no known element type; known are auto, float32, float16, bfloat16" in r.stderr, r.stderr


def test_make_serve_compiles_the_instruction_set_that_is_chosen():
    sets = subprocess.run([ROOT / "scripts" / "own_isa"], capture_output=True, text=True, check=True).stdout.split()
    flags = {"generic": set(), "avx2": {"avx2"}, "avx512": {"avx2", "avx512"}, "avx512vnni": {"avx2", "avx512", "vnni"},
             "amx": {"avx2", "avx512", "vnni", "amx"}}
    assert set(nereid("version").stdout.splitlines()[1].split()) & flags["amx"] in [flags[s] for s in sets]


def test_version_says_which_open_mpi_can_be_opened():
    line = nereid("version").stdout.splitlines()[2]
    try:
        tell = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL).MPI_Get_library_version
        text = ctypes.create_string_buffer(4096)
        assert tell(text, ctypes.byref(ctypes.c_int())) == 0
        expected = text.value.decode().split(",")[0]
        assert expected.startswith("Open MPI v")
    except OSError as e:
        expected = f"none ({e})"
    assert line == f"ranks over several hosts: {expected}"


def test_version_is_a_verb_too():
    assert nereid("version").stdout == nereid("--version").stdout != ""


@pytest.mark.parametrize("words,part", [
    (["run", "m", "-p", "A", "-p", "B"], "-p is given twice"),
    (["run", "m", "-p", "A", "-f", "B"], "one of them"),
    (["chat", "m", "-p", "A"], "nereid run --chat"),
    (["run", "m", "--chat_template", "x", "-p", "A"], "--chat-template needs --chat"),
    (["run", "m", "--system", "x"], "--system needs --chat"),
    (["run", "m", "--max-tokens", "many"], "'many' is not a whole number"),
    (["run", "m", "n", "o"], "unexpected word 'o'"),
    (["run", "m", "--quiet=yes"], "takes no value"),
    (["build", "--strip_plan"], "is not supported"),
    (["build", "--max_batch_size", "0"], "--max_batch_size: 0 is not between 1 and"),
    (["build", "--max_beam_width", "0"], "--max_beam_width: 0 is not between 1 and"),
    (["bench", "latancy", "m"], "expected [throughput|latency|steps] PATH, hw, or serve URL, got 'latancy'"),
    (["repo", "--engine_dir"], "needs a value"),
    (["run", "no-model", "-p", "x", "-n", "0"], "--max-tokens: at least 1"),
    (["run", "no-model", "-p", "x", "--temperature=-1"], "--temperature: at least 0"),
    (["chat", "no-model", "--top-p", "2"], "--top-p: from 0 to 1"),
    (["run", "no-model", "-p", "x", "--min-p", "2"], "--min-p: from 0 to 1"),
])
def test_what_cannot_be_is_refused(words, part):
    r = nereid(*words)
    assert r.returncode == 2 and part in r.stderr and r.stdout == ""


def test_hyphens_and_underscores_are_the_same_in_every_program(tmp_path):
    for words in (["build", "--dry-run", "--checkpoint-dir=x"], ["build", "--dry_run", "--checkpoint_dir=x"],
                  ["detokenize", "--skip_special", "x"], ["fill-template", "--in_place", "x", "a:b"]):
        assert "unknown option" not in nereid(*words).stderr
    r = subprocess.run([BIN / "tritonserver", "--http_port=x"], capture_output=True, text=True)
    assert 'Bad option: "--http-port"' in r.stderr


def test_the_page_of_options_is_what_the_tables_say():
    """Made anew with: build/bin/nereid options --markdown > docs/options.md"""
    page, made = (ROOT / "docs/options.md").read_text(), nereid("options", "--markdown").stdout
    if not any(r["name"] == "--reuse-grpc-port" and r["state"] == "used" for r in TABLES["tritonserver"]):
        page, made = (text.split("## `tritonserver`")[0] for text in (page, made))
    assert page == made


def test_manual_pages_are_written_for_every_program(tmp_path):
    assert nereid("options", "--man", tmp_path / "man1").returncode == 0
    pages = sorted(p.name for p in (tmp_path / "man1").iterdir())
    assert pages == sorted(["nereid.1", "tritonserver.1"] + [f"nereid-{v}.1" for v in TABLES if v != "tritonserver"])
    for page in pages:
        r = subprocess.run(["groff", "-man", "-Tutf8", "-ww", tmp_path / "man1" / page], capture_output=True, text=True)
        assert r.returncode == 0 and r.stderr == "", page
    shown = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", tmp_path / "man1/nereid-run.1"],
                           capture_output=True, text=True).stdout
    assert "--temperature" in shown and "SYNOPSIS" in shown


@pytest.mark.parametrize("words,says", [
    (["--max-model-len", "99999999"], "--max-model-len: expected a number from 1 to 67108864, got '99999999'"),
    (["--parallel", "65537"], "--parallel: expected a number from 1 to 65536, got '65537'"),
    (["--kv_cache_free_gpu_mem_fraction", "3"], "--kv_cache_free_gpu_mem_fraction: expected a number above 0 and at most 1, got '3'"),
    (["-c", "many"], "-c: expected a number from 1 to 67108864, got 'many'"),
    (["--hf-token", "x"], "--hf_token is not supported: set HF_TOKEN: command lines are seen by others"),
    (["-ctk", "q8_0"], "use --kv-cache-dtype"),
    (["--revision", "main"], "ORG/NAME@REVISION"),
    (["--enable-expert-parallel"], "--enable_expert_parallel is not supported: use --moe-ep-size"),
    (["--verbose"], "--verbose is not supported: use --log-verbose=1"),
    (["--model", "a"], "--model a and m: one of them"),
])
def test_what_serve_does_not_take_is_told_in_one_line(words, says):
    r = nereid("serve", "m", *words)
    assert r.returncode == 2 and says in r.stderr and r.stderr.count("\n") == 1, r.stderr


@pytest.mark.parametrize("words", [["serve"], ["run", "-p", "a"], ["inspect"], ["inspect", "--json"], ["eval", "-f", "/dev/null"]])
def test_a_path_that_may_not_be_followed_is_no_missing_one(words, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    r = nereid(words[0], str(loop), *words[1:])
    assert r.returncode == 1 and r.stderr == f"nereid {words[0]}: cannot open '{loop}': Too many levels of symbolic links\n"


def trtllm_serve(*words):
    return subprocess.run([BIN / "trtllm-serve", *words], capture_output=True, text=True)


@pytest.mark.parametrize("words, says", [
    (["--max_beam_width", "0"], "--max_beam_width: expected a number from 1 to 4096, got '0'"),
    (["--server_role", "CONTEXT"], "see docs/disaggregated.md"),
])
def test_trtllm_serve_takes_the_words_of_its_name_sake(words, says):
    usual = "--backend pytorch --kv_cache_free_gpu_memory_fraction 0.5 --ep_size 1 --trust_remote_code --gpus_per_node 8".split()
    for command in ([], ["serve"]):
        r = trtllm_serve(*command, "no-model", *usual)
        lines = r.stderr.splitlines()
        assert r.returncode == 1 and lines[-1] == "nereid serve: 'no-model' does not exist", r.stderr
        assert [line.split()[2] for line in lines[:-1]] == ["--backend", "--trust_remote_code", "--gpus_per_node"]
        r = trtllm_serve(*command, "no-model", *words)
        assert r.returncode == 2 and says in r.stderr, r.stderr
    for command in ("disaggregated", "mm_embedding_serve"):
        r = trtllm_serve(command, "-c", "f.yml")
        assert r.returncode == 2 and r.stderr.startswith(f"trtllm-serve {command}: not supported; ")


def test_a_damaged_file_is_named_once(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for verb in ("tokenize", "run", "inspect"):
        r = nereid(verb, str(tmp_path / "m.gguf"))
        assert r.returncode == 1 and r.stderr.startswith(f"nereid {verb}: ") and r.stderr.count("m.gguf") == 1, r.stderr


def test_an_address_that_nobody_knows_is_told_before_the_model_is_opened():
    r = nereid("serve", "m", "--host", "no-host.invalid")
    assert r.returncode == 1 and r.stderr.startswith("nereid serve: address 'no-host.invalid': ") and r.stderr.count("\n") == 1
    assert r.stderr.endswith("; choose another with --host\n")


def test_an_address_of_another_machine_is_told():
    r = nereid("serve", "m", "--host", "192.0.2.1")
    assert r.returncode == 1 and r.stderr == "nereid serve: 192.0.2.1 is no address of this machine; choose another with --host\n"


def test_command_lines_of_other_servers_reach_the_model():
    """PATH behind an option that takes no value is not its value."""
    for words in (["-m", "no-model", "-ngl", "99", "-c", "4096", "-fa", "on", "--jinja", "-np", "2", "-b", "512"],
                  ["--model", "no-model", "--trust-remote-code", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--seed", "1"],
                  ["--enforce-eager", "no-model", "--max-num-batched-tokens=2048", "--max-num-seqs", "8", "--disable-log-requests"],
                  ["--enable-sleep-mode", "no-model", "--guided-decoding-backend", "xgrammar", "--async-scheduling", "--no-warmup"],
                  ["-hf", "no-model", "--no-mmap", "--alias", "x", "--device", "cpu", "-t", "2"]):
        r = nereid("serve", *words)
        lines = r.stderr.splitlines()
        assert r.returncode == 1 and "'no-model' does not exist" in lines[-1] and all("has no effect: " in x for x in lines[:-1]), r.stderr
