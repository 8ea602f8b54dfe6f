# SPDX-License-Identifier: Apache-2.0
"""nereid inspect on a model repository, on one model of it, on templates and on broken configurations."""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
TEMPLATES = ROOT / "all_models" / "inflight_batcher_llm"
MODELS = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]


def run(*words):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True)


def nereid(*words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_says_the_same(made):
    engine = json.loads(nereid("inspect", made / "engine", "--json", "--verify"))
    model = json.loads(nereid("inspect", made / "llama", "--json", "--tensors"))
    config = json.loads((made / "llama/config.json").read_text())
    assert engine["kind"] == "engine" and engine["verified"] and "tokenizer" not in engine
    for o in (engine, model):
        assert (o["n_layers"], o["hidden_size"], o["n_kv_heads"], o["vocab_size"]) == (
            config["num_hidden_layers"], config["hidden_size"], config["num_key_value_heads"], config["vocab_size"])
    assert engine["limits"]["max_seq_len"] > 0 and sum(t["bytes"] for t in engine["types"].values()) == engine["weight_bytes"]
    assert len(model["tensors"]) == model["n_tensors"] and sum(t["bytes"] for t in model["tensors"]) == model["weight_bytes"]
    assert sum(math.prod(t["shape"]) for t in model["tensors"]) == model["parameters"]
    assert model["tokenizer"]["n_tokens"] > 0 and model["path"] == str(made / "llama")
    repo = json.loads(nereid("inspect", made / "repo", "--json"))
    assert repo["kind"] == "model repository" and [m["name"] for m in repo["models"]] == MODELS
    llm = next(m for m in repo["models"] if m["name"] == "tensorrt_llm")
    assert llm["backend"] == "tensorrtllm" and llm["settings"]["gpt_model_path"] == str(made / "engine")
    template = json.loads(nereid("inspect", TEMPLATES / "tensorrt_llm", "--json"))
    assert template["max_batch_size"].startswith("${")


def test_json_of_nothing_is_an_error(made, tmp_path):
    for words in ([tmp_path / "none"], [made / "llama/config.json"]):
        done = run("inspect", *words, "--json")
        assert done.returncode == 1 and not done.stdout and str(words[0]) in done.stderr
    assert run("inspect", "--families", "--json").returncode == 2


def sections(text):
    """{model: its lines}; the first line of a section is "NAME: …"."""
    parts = re.split(r"\n\n", text.strip())[1:]
    return {part.split(":")[0].split("\n")[0]: part for part in parts}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An engine, its tokenizer and a repository for them."""
    folder = tmp_path_factory.mktemp("inspect")
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out",
                    folder / "llama"], check=True, stdout=subprocess.DEVNULL)
    nereid("build", folder / "llama", "--output_dir", folder / "engine")
    nereid("repo", "--engine_dir", folder / "engine", "--tokenizer_dir", folder / "llama", "--output_dir",
           folder / "repo", "--templates", TEMPLATES, "--served_model_name", "tiny,small", "--set", "max_queue_size:7,n_threads:3")
    return folder


@pytest.fixture
def repo(made, tmp_path):
    """A copy to break."""
    return pathlib.Path(shutil.copytree(made / "repo", tmp_path / "repo"))


def model_folder(tmp_path, text, name="m"):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.pbtxt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_a_repository_shows_its_five_models(made):
    out = nereid("inspect", made / "repo")
    assert out.startswith(f"{made / 'repo'}: model repository, 5 models\n")
    found = sections(out)
    assert sorted(found) == MODELS
    assert found["ensemble"].startswith("ensemble: platform ensemble\n")
    assert "steps         preprocessing, tensorrt_llm, postprocessing" in found["ensemble"]
    for part in found.values():
        assert "\nversions      1\n" in part and "\nmax batch     64" in part
        assert "must be set" not in part
        assert re.search(r"\ntensors       \d+ inputs \(\d+ optional\), \d+ outputs\n", part)
    assert "\ninstances     1 KIND_CPU\n" in found["preprocessing"]


def test_the_model_of_an_engine_shows_engine_names_and_parameters(made):
    llm = sections(nereid("inspect", made / "repo"))["tensorrt_llm"]
    engine = (made / "engine").resolve()
    assert llm.startswith("tensorrt_llm: backend tensorrtllm\n")
    assert "\nmax batch     64, dynamic batching\n" in llm
    assert "\nserved as     tiny,small\n" in llm
    assert f"\n{nereid('inspect', engine).strip()}" in llm  # all that inspecting the engine says
    assert re.search(r"\n(parameters| {10})    n_threads = 3\n", llm)
    assert re.search(r"\n(parameters| {10})    gpt_model_type = inflight_fused_batching\n", llm)
    assert re.search(r"\nunfilled .*\$\{lora_cache_max_adapter_size\}", llm, re.S)
    assert "${n_threads}" not in llm and "${engine_dir}" not in llm


def test_the_models_of_a_tokenizer_show_what_it_is(made):
    found = sections(nereid("inspect", made / "repo"))
    line = next(x for x in nereid("inspect", made / "llama").splitlines() if x.startswith("tokenizer "))
    for name in ["preprocessing", "postprocessing"]:
        assert f"\ntokenizer in  {(made / 'llama').resolve()}\n{line}" in found[name]


def test_one_model_is_shown_as_in_its_repository(made):
    out = nereid("inspect", made / "repo" / "preprocessing")
    assert out.strip() == sections(nereid("inspect", made / "repo"))["preprocessing"]


def test_a_model_has_the_name_by_which_its_repository_knows_it(tmp_path):
    folder = model_folder(tmp_path, 'name: "m"', "elsewhere")
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "m").symlink_to(folder)
    assert sections(nereid("inspect", tmp_path / "repo"))["m"].startswith("m\nversions")
    assert nereid("inspect", f"{tmp_path}/repo/m/").startswith("m\n")
    inside = model_folder(tmp_path, 'name: "m"')
    done = subprocess.run([NEREID, "inspect", "."], cwd=inside, capture_output=True, text=True)
    assert done.stdout.startswith("m\n"), done.stderr


def test_a_template_says_what_is_unfilled():
    out = nereid("inspect", TEMPLATES)
    found = sections(out)
    assert sorted(found) == MODELS
    for name in MODELS:
        text = (TEMPLATES / name / "config.pbtxt").read_text()
        assert set(re.findall(r"\$\{\w+\}", text)) <= set(re.findall(r"\$\{\w+\}", found[name]))
    llm = found["tensorrt_llm"]
    must = llm[llm.index("\nmust be set"):]
    assert "${triton_max_batch_size}" in must and "${logits_datatype}" in must
    assert "${engine_dir}" not in must and "gpt_model_path is not set" in must
    assert max(map(len, out.splitlines())) <= 100


def test_every_form_of_the_text_format_is_read(tmp_path):
    out = nereid("inspect", model_folder(tmp_path, r"""
        # comment with "${name}"
        backend: 'py' "thon"; max_batch_size: 0x10,
        input { name: "A" dims: [ 1, -1 ] optional: true } input: < name: "B" >
        output [ { name: "C" }, { name: "D" } ]
        instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { kind: KIND_CPU } ]
        parameters: { key: "a\"\x41\101\n" value { string_value: "1" } }
        parameters [ { key: "b" value: { string_value: "old" } }, { key: "b" value: { string_value: "new" } } ]
        parameters { key: "empty" value: { string_value: "" } }  # the end"""))
    assert out == ("m: backend python\nversions      none\nmax batch     0x10\n"
                   "tensors       2 inputs (1 optional), 2 outputs\n"
                   "instances     2 KIND_GPU 0 1, 1 KIND_CPU\n"
                   'parameters    a"AA? = 1\n              b = new\n')


def test_versions_are_folders_with_numbers(made, repo):
    for name in ["10", "2", "007", "x", "-1"]:
        (repo / "ensemble" / name).mkdir()
    (repo / "ensemble" / "3").write_text("a file")
    assert "\nversions      1, 2, 10\n" in nereid("inspect", repo / "ensemble")


@pytest.mark.parametrize("text,line,reason", [
    ('name: "m"\nmax_batchsize: 4\n', 2, "a model configuration has no field 'max_batchsize'"),
    ('name: "m"\nbackend: "x\n', 2, "a string is not closed"),
    ("backend: 'x", 1, "a string is not closed"),
    ('backend: "\\q"', 1, "expected an escape like \\n or \\\", found 'q\"'"),
    ('input [\n  { name: "a" }\n  { name: "b" }\n]\n', 3, "expected ',' or ']', found '{'"),
    ('input [\n  { name: "a" },\n', 3, "expected a value, found the end of the file"),
    ('\n\ninput {\n  name: "a"\n', 3, "'{' is not closed"),
    ("backend: \n\n}", 3, "expected a value, found '}'"),
    ("}", 1, "expected the name of a field, found '}'"),
    ("backend", 1, "expected ':' or '{', found the end of the file"),
    ("max_batch_size: ${x\n}", 1, "expected ${NAME}, found '${x'"),
    ('max_batch_size: "many"', 1, "max_batch_size must be a number"),
    ('name { }', 1, "name must be a value"),
    ('input: "x"', 1, "input must be a message in '{' and '}'"),
    ('\nname: "other"', 2, "name must be that of the folder, 'm'"),
    (b"backend: \0", 1, "expected a value, found byte 0x00"),
    (b"\xff\xfe", 1, "expected the name of a field, found byte 0xff"),
    ("input {" * 70 + "}" * 70, 1, "messages are nested more than 64 deep"),
])
def test_a_broken_configuration_is_an_error_with_file_and_line(tmp_path, text, line, reason):
    folder = model_folder(tmp_path, text)
    done = run("inspect", folder)
    assert done.returncode == 1
    assert done.stderr == f"nereid inspect: {folder}/config.pbtxt:{line}: {reason}\n"


def test_models_beside_broken_ones_are_shown(repo):
    (repo / "postprocessing" / "config.pbtxt").write_text("name\n")
    (repo / "tensorrt_llm_bls" / "config.pbtxt").write_text("\nnoname: 1\n")
    done = run("inspect", repo)
    assert done.returncode == 1
    assert done.stderr == (
        f"nereid inspect: {repo}/postprocessing/config.pbtxt:2: expected ':' or '{{', found the end of the file\n"
        f"nereid inspect: {repo}/tensorrt_llm_bls/config.pbtxt:2: a model configuration has no field 'noname'\n")
    assert {"ensemble", "preprocessing", "tensorrt_llm"} == set(sections(done.stdout))


def test_an_engine_that_is_not_there_names_model_and_parameter(repo):
    config = repo / "tensorrt_llm" / "config.pbtxt"
    text, n = re.subn(r'(key: "gpt_model_path"\s+value: { string_value: )"[^"]*"', r'\1"/no/engine"', config.read_text())
    assert n == 1
    config.write_text(text)
    done = run("inspect", repo)
    assert done.returncode == 1
    assert done.stderr.startswith("nereid inspect: model 'tensorrt_llm': gpt_model_path: ")
    assert "/no/engine" in done.stderr and done.stderr.count("\n") == 1


def test_every_field_of_a_model_configuration_is_known(tmp_path):
    proto = (ROOT / "protos" / "model_config.proto").read_text()
    body = re.search(r"^message ModelConfig\b.*?^}", proto, re.S | re.M).group()
    fields = re.findall(r"(?:^|\{|;)\s*(repeated )?([\w.]+|map<[^>]*>) (\w+) = \d+;", body, re.M)
    assert len(fields) > 20
    lines = []
    for _, kind, name in fields:
        value = {"string": ': "m"', "int32": ": 1"}.get(kind, " { }")
        lines.append(name + value)
    nereid("inspect", model_folder(tmp_path, "\n".join(lines)))
