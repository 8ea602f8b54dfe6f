# SPDX-License-Identifier: Apache-2.0
"""The families of tests/tinymodel/families.py beyond their goldens (test_goldens.py): prompts in pieces and in other
batches, ranks, quantized weights; what a device lacks; and the table that `nereid inspect --families` prints."""

import json
import os
import shutil
import statistics
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import check_goldens as cg  # noqa: E402
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import qwen_vl  # noqa: E402
from encdec import MODELS as ENCODER_DECODERS  # noqa: E402
from encoders import ENCODERS  # noqa: E402
from more_families import FAMILIES  # noqa: E402
import weights  # noqa: E402
from specs import SPECS  # noqa: E402
from whisper import MODELS as WHISPER  # noqa: E402

NEREID = os.path.join(cg.ROOT, "build", "bin", "nereid")
WHOLE = [n for n in cg.TINY if cg.TINY[n]["arch"] in FAMILIES and cg.TINY[n]["format"] == "safetensors"]
# of one KV head ranks have copies; longrope-short is an engine of one rank; a norm over all heads stays whole
RANKS = ["phi3", "smollm3", "granite", "granite_swa", "glm4", "exaone4", "cohere", "nemotron", "stablelm", "phi", "gptj", "gpt_neo", "gpt_neox",
         "falcon", "falcon-40b", "opt", "xglm", "bloom", "mpt", "mixtral", "qwen3_moe-mixed", "qwen2_moe", "granitemoeshared", "granitemoe_swa",
         "glm4_moe", "phimoe", "gpt_oss", "apertus", "cohere-plus", "stablelm-12b", "falcon-rw", "olmo", "hunyuan_v1_moe",
         "nanochat", "ernie4_5_moe", "dots1", "exaone_moe", "dbrx", "llama4", "baichuan2-13b", "deepseek_v2", "deepseek_v2-lite",
         "gemma4", "gemma4-dense", "gemma4-moe", "codegen", "opt-350m", "hy_v3", "cohere2_moe", "afmoe",
         "bailing_moe", "persimmon", "grok", "arctic", "nemo_gpt", "nemo_gpt_1p"]


def check(name, folder, *more):
    cg.check(name, [NEREID, "eval", *more], cg.TOLERANCE, str(folder))


@pytest.mark.parametrize("name", WHOLE)
def test_prompts_in_pieces_give_the_logprobs_of_the_reference(name, tmp_path):
    check(name, tmp_path, "--max-num-tokens", "12", "--max-batch-size", "2", "--threads", "1")


@pytest.mark.parametrize("name", RANKS)
def test_several_ranks_give_the_logprobs_of_the_reference(name, tmp_path):
    check(name, tmp_path, "--tp-size", "3", "--threads", "1")


@pytest.mark.parametrize("name, pp_size", [("smollm3", 2), ("bloom", 3), ("olmo2", 3), ("qwen3_moe-mixed", 2), ("glm4_moe", 3),
                                           ("gpt_oss", 2), ("mllama", 2), ("llama4", 4), ("apertus", 3), ("deepseek_v3", 3), ("gemma4-dense", 3), ("gemma4-moe", 3),
                                           ("grok", 3), ("arctic", 3), ("nemo_gpt", 3)])
def test_several_stages_give_the_logprobs_of_the_reference(name, pp_size, tmp_path):
    """Which layers have no positions or no experts, the norm of the embeddings and heads' slopes are a stage's own
    affair."""
    check(name, tmp_path, "--pp-size", str(pp_size), "--threads", "1")


def run(*words, env=None):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, **(env or {})})


@pytest.mark.parametrize("name, quantize", [("olmo2", "q8_0"), ("cohere", "q8_0"), ("gpt_neox", "q8_0"), ("bloom", "q8_0"),
                                            ("mixtral", "int8"), ("qwen2_moe", "int8"), ("granitemoe", "q8_0"), ("gpt_oss", "q8_0"),
                                            ("apertus", "q8_0"), ("dbrx", "int8"), ("llama4", "q8_0"),
                                            ("deepseek_v2", "int8"), ("deepseek_v2-lite", "int8"),
                                            ("lfm2", "q8_0"), ("granitemoehybrid-dense", "q8_0"), ("bamba", "q4_0"), ("falcon_h1", "q8_0"),
                                            ("mamba", "q8_0"), ("falcon_mamba", "q8_0"), ("mamba2", "q8_0"),
                                            ("nemotron_h", "q8_0"), ("nemotron_h-moe", "int8"),
                                            ("recurrent_gemma", "q8_0"), ("nanochat", "q8_0"), ("gemma3n", "int8"), ("gemma4", "q8_0"),
                                            ("gemma4-dense", "int8"), ("gemma4-moe", "q8_0"), ("opt-350m", "int8"),
                                            ("cohere2_moe", "q8_0"), ("olmo_hybrid", "q8_0")])
def test_quantized_weights_change_little(name, quantize, tmp_path):
    """Layers without a norm in front, side by side, with stacked weights, with experts: the inputs of their products
    are converted on other ways than a norm's."""
    golden = cg.load_golden(name)
    model, engine = cg.write_tiny(name, str(tmp_path)), tmp_path / "engine"
    built = run("build", model, "-o", engine, "--quantize", quantize)
    assert built.returncode == 0, built.stderr
    lines = cg.evaluate([NEREID, "eval"], str(engine), golden, str(tmp_path), more=())
    for prompt in golden["prompts"]:
        pairs = list(zip(lines[prompt["id"]]["logprobs"][1:], prompt["logprobs"][1:]))
        # where rounding gives a token other experts it becomes an outlier; queries of two products have twice the rounding
        assert statistics.median(abs(got - want) for got, want in pairs) < (0.2 if name == "deepseek_v2" else 0.1), name


@pytest.mark.parametrize("name, part", [("olmo2", "a norm over all heads of the queries"),
                                        ("bloom", "position biases (ALiBi)"), ("mixtral", "mixture of experts"),
                                        ("gpt_oss", "attention sinks"), ("apertus", "the activation xIELU"),
                                        ("cohere-plus", "bounds, scales or further norms of queries and keys"),
                                        ("deepseek_v3", "latent attention"), ("gemma3n", "several states of each token (AltUp)"), ("lfm2", "layers with a recurrent state")])
def test_a_device_that_lacks_a_mode_refuses_by_its_name(name, part, tmp_path):
    model = cg.write_tiny(name, str(tmp_path))
    ids = tmp_path / "ids"
    ids.write_text('{"id": "a", "tokens": [5, 6, 7]}\n')
    done = run("eval", model, "--tokens", ids, "--out", tmp_path / "out", "--device", "faulty",
               env={"NEREID_DEVICE_DIR": os.path.join(cg.ROOT, "build", "tests", "devices")})
    assert done.returncode == 1
    assert f"models need {part}, which" in done.stderr and 'use the device "cpu"' in done.stderr


def test_a_config_with_an_infinite_limit_is_read(tmp_path):
    """Python writes Infinity, which is no JSON, into the configurations of published Mamba-2 models."""
    model = cg.write_tiny("mamba2", str(tmp_path))
    path = os.path.join(model, "config.json")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.rstrip().rstrip("}") + ', "time_step_limit": [0.0, Infinity]}')
    assert run("build", model, "-o", tmp_path / "engine").returncode == 0


@pytest.mark.parametrize("key, change, words", [
    ("xielu.alpha_n", lambda x: x[:-1], "'xielu.alpha_n' must be a list of 3 numbers, one for each layer"),
    ("xielu.alpha_p", None, "'xielu.alpha_p' must be a list of 3 numbers, one for each layer"),
    ("xielu.beta", lambda x: [*x[:-1], 0.7], "'xielu.beta' of layer 2 is 0.7, expected 0.5")])
def test_numbers_of_an_activation_in_metadata_are_checked(key, change, words, tmp_path, monkeypatch):
    keys = list(FAMILIES["apertus"].gguf_keys())
    spoiled = [(k, kind, change(x) if k == key else x) for k, kind, x in keys if k != key or change]
    monkeypatch.setattr(FAMILIES["apertus"], "gguf_keys", lambda: spoiled)
    done = run("build", cg.write_tiny("apertus-gguf-f32", str(tmp_path)), "-o", tmp_path / "engine")
    assert done.returncode == 1 and words in done.stderr, done.stderr


def test_grok_with_an_mlp_beside_experts_is_refused(tmp_path, monkeypatch):
    """Grok-2 calls itself as Grok-1 does in GGUF files."""
    grok = FAMILIES["grok"]
    monkeypatch.setattr(grok, "rows", [*grok.rows, ("model.layers.*.mlp.up_proj.weight", "blk.*.ffn_up.weight", (54, 72), 1.0, 0.0)])
    path = tmp_path / "m.gguf"
    make_model.write_gguf("grok", str(path))
    r = run("build", path, "-o", tmp_path / "engine")
    assert r.returncode == 1 and "'blk.0.ffn_up.weight'), as Grok-2 has: of this family Grok-1 is supported" in r.stderr


def test_layers_with_a_state_run_on_one_rank(tmp_path):
    done = run("build", cg.write_tiny("lfm2", str(tmp_path)), "-o", tmp_path / "engine", "--tp-size", "3")
    assert done.returncode == 1 and "tp_size 3, pp_size 1: layers with a recurrent state run on one rank" in done.stderr


def test_tokens_with_several_states_run_on_one_rank(tmp_path):
    done = run("build", cg.write_tiny("gemma3n", str(tmp_path)), "-o", tmp_path / "engine", "--tp-size", "3")
    assert done.returncode == 1
    assert "tp_size 3: a model whose tokens have several states runs as one rank" in done.stderr
    done = run("quantize", "-m", tmp_path / "gemma3n", "-o", tmp_path / "quantized", "--qformat", "int8_wo")
    assert done.returncode == 1 and "'gemma3n_text' has tokens with several states, and is not quantized here" in done.stderr


def test_embeddings_of_each_layer_are_of_one_stage(tmp_path):
    done = run("build", cg.write_tiny("gemma4", str(tmp_path)), "-o", tmp_path / "engine", "--pp-size", "2")
    assert done.returncode == 1 and "pp_size 2: layers that share keys and values (num_kv_shared_layers) are of one stage" in done.stderr


@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
def test_towers_in_front_of_a_model_are_left_unread(name, tmp_path):
    """A folder as it is published: sizes in text_config, names behind language_model, keys and values in all layers, towers."""
    spec, folder = SPECS[name], tmp_path / "published"
    folder.mkdir()
    text = {k: v for k, v in spec.config.items() if k != "architectures"}
    if name == "gemma3n":
        text["intermediate_size"] = [text["intermediate_size"]] * text["num_hidden_layers"]
    hf_folder.write_json(folder / "config.json", {
        "architectures": [f"{name.capitalize()}ForConditionalGeneration"], "model_type": name, "text_config": text,
        "vision_config": {"model_type": f"{name}_vision"}, "audio_config": {"model_type": f"{name}_audio"}})
    tensors = {name.replace("model.", "model.language_model.", 1): x for name, x in weights.build(spec).items()}
    for i in range(3, 6):
        for part in ("k_proj", "v_proj", "k_norm"):
            at = "model.language_model.layers.%d.self_attn." + part + ".weight"
            tensors[at % i] = tensors[at % 0] + 1
    for part in ("vision_tower.timm_model.conv_stem.conv.weight", "audio_tower.conformer.0.norm.weight", "embed_vision.embedding.weight"):
        tensors[f"model.{part}"] = tensors["model.language_model.norm.weight"]
    hf_folder.write_safetensors(folder / "model.safetensors", tensors, "float32")
    built = run("build", folder, "-o", tmp_path / "engine")
    assert built.returncode == 0, built.stderr
    assert "3 tensors of towers for pictures and sounds are left unread: the model takes text alone" in built.stderr + built.stdout
    assert "not used" not in built.stderr + built.stdout
    golden = cg.load_golden(name)
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(folder), golden, str(tmp_path)), cg.TOLERANCE)


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "gemma4-dense", "gemma4-moe"])
def test_a_checkpoint_of_layers_that_differ_is_that_of_the_model(name, tmp_path):
    model = cg.write_tiny(name, str(tmp_path))
    for command in (["convert", "--model_dir", model, "--output_dir", tmp_path / "checkpoint"],
                    ["build", tmp_path / "checkpoint", "-o", tmp_path / "two"], ["build", model, "-o", tmp_path / "one"]):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one" / "rank0.engine").read_bytes() == (tmp_path / "two" / "rank0.engine").read_bytes()


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "granitemoeshared", "glm4_moe", "gpt_oss", "dbrx", "llama4",
                                  "deepseek_v3", "gemma4-moe", "arctic"])
@pytest.mark.parametrize("ep, more", [("1", ["--moe_tp_size", "3", "--moe_ep_size", "1"]), ("3", ["--moe_tp_size", "1"])])
def test_an_engine_of_a_checkpoint_is_that_of_the_model(name, ep, more, tmp_path):
    """Experts of several files or tensors are one below the other in a checkpoint; the routers' corrections stay
    float32 in half precision."""
    model = cg.write_tiny(name, str(tmp_path))
    for command in (["convert", "--model_dir", model, "--output_dir", tmp_path / "checkpoint", "--dtype", "bfloat16",
                     "--tp_size", "3", *more],
                    ["build", tmp_path / "checkpoint", "-o", tmp_path / "two"],
                    ["build", model, "-o", tmp_path / "one", "--dtype", "bfloat16", "--tp_size", "3", "--moe_ep_size", ep]):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert (tmp_path / "one" / f"rank{rank}.engine").read_bytes() == (tmp_path / "two" / f"rank{rank}.engine").read_bytes()


def evaluated(engine, folder):
    tokens, out = folder / "tokens.jsonl", folder / "out.jsonl"
    tokens.write_text(json.dumps({"tokens": list(range(1, 60))}) + "\n")
    done = run("eval", engine, "--tokens", tokens, "--out", out, "--compute-dtype", "float32", "--threads", "1")
    assert done.returncode == 0, done.stderr
    return out.read_text()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name, tp, pp", [("gpt2", 3, 1), ("llama3-tied", 4, 1), ("llama3-tied", 2, 2), ("bloom", 3, 1), ("gemma2", 2, 2),
                                          ("llama-gguf-q4_0", 2, 1), ("qwen3", 2, 1)])
def test_a_divided_embedding_gives_the_same_numbers(name, tp, pp, dim, tmp_path):
    """To the bit: all but one rank add zeros. It takes less room, and divided by tokens a tied LM head none of its own."""
    model = cg.write_tiny(name, str(tmp_path))
    by = ["--use_parallel_embedding", "--embedding_sharding_dim", dim]
    ranks = ["--tp_size", tp, "--pp_size", pp]
    for command in (["build", model, "-o", tmp_path / "whole", *ranks],
                    ["build", model, "-o", tmp_path / "divided", *by, *ranks],
                    ["convert", "--model_dir", model, "--output_dir", tmp_path / "checkpoint", *by, *ranks],
                    ["build", tmp_path / "checkpoint", "-o", tmp_path / "of_checkpoint"]):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    whole, divided = tmp_path / "whole", tmp_path / "divided"
    told = json.loads((divided / "config.json").read_text())["pretrained_config"]
    assert told["use_parallel_embedding"] and told["embedding_sharding_dim"] == dim
    assert evaluated(divided, tmp_path) == evaluated(whole, tmp_path)
    for rank in range(tp * pp):
        mine = (divided / f"rank{rank}.engine").read_bytes()
        assert mine == (tmp_path / "of_checkpoint" / f"rank{rank}.engine").read_bytes()
        assert rank >= tp or len(mine) < (whole / f"rank{rank}.engine").stat().st_size


def test_an_embedding_that_cannot_be_divided_is_refused(tmp_path):
    model = cg.write_tiny("qwen3", str(tmp_path))
    done = run("convert", "--model_dir", model, "--output_dir", tmp_path / "whole", "--tp_size", "2")
    assert done.returncode == 0, done.stderr
    done = run("build", tmp_path / "whole", "-o", tmp_path / "engine", "--use_parallel_embedding")
    assert done.returncode == 1 and "was converted with the whole embedding in each rank" in done.stderr
    config = tmp_path / "whole" / "config.json"
    told = json.loads(config.read_text())
    for dim, tied in ((2, False), (-1, False), (1, True)):
        config.write_text(json.dumps({**told, "use_parallel_embedding": True, "embedding_sharding_dim": dim, "share_embedding_table": tied}))
        done = run("build", tmp_path / "whole", "-o", tmp_path / "engine")
        assert done.returncode == 1 and f"embedding_sharding_dim is {dim}" in done.stderr
    config.write_text(json.dumps({**told, "use_parallel_embedding": True, "embedding_sharding_dim": 1}))
    done = run("build", tmp_path / "whole", "-o", tmp_path / "engine")
    assert done.returncode == 1 and "transformer.vocab_embedding.weight" in done.stderr # it has the whole one
    for verb in (["build", model, "-o"], ["convert", "--model_dir", model, "--output_dir"]):
        done = run(*verb, tmp_path / "two", "--tp_size", 2, "--use_parallel_embedding", "--embedding_sharding_dim", 2)
        assert done.returncode == 1 and "--embedding_sharding_dim is 2, expected 0" in done.stderr


@pytest.mark.parametrize("name, words, message", [
    ("mixtral", ["--moe_ep_size", "2"], "moe_ep_size 2 must divide tp_size (1)"),
    ("mixtral", ["--moe_tp_size", "2"], "must be --tp_size 1"),
    ("mixtral", ["--tp_size", "3", "--moe_tp_size", "3", "--moe_ep_size", "3"], "must be --tp_size 3"),
    ("mixtral", ["--moe_ep_size", "-1"], "moe_ep_size"),
    ("qwen2", ["--tp_size", "2", "--moe_ep_size", "2"], "moe_ep_size 2: the model has no experts")])
def test_ranks_that_do_not_fit_the_experts_are_refused(name, words, message, tmp_path):
    done = run("convert", "--model_dir", cg.write_tiny(name, str(tmp_path)), "--output_dir", tmp_path / "out", *words)
    assert done.returncode == 1 and message in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_engine_knows_which_rank_has_which_experts(tmp_path):
    """In checkpoint, engine and `nereid inspect`; who asks for another division is told."""
    model = cg.write_tiny("gpt_oss-6", str(tmp_path))
    done = run("build", model, "-o", tmp_path / "engine", "--tp_size", "6", "--moe_ep_size", "3")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "engine" / "config.json", encoding="utf-8") as f:
        mapping = json.load(f)["pretrained_config"]["mapping"]
    assert mapping == {"world_size": 6, "tp_size": 6, "pp_size": 1, "moe_tp_size": 2, "moe_ep_size": 3}
    done = run("inspect", tmp_path / "engine")
    assert "ranks         6: tp 6, pp 1, of experts tp 2, ep 3\n" in done.stdout
    for rank, experts in enumerate(["0 to 1 (part 1", "2 to 3 (part 1", "4 to 6 (part 1", "0 to 1 (part 2", "2 to 3 (part 2",
                                    "4 to 6 (part 2"]):
        assert f"  rank {rank}      layers 0 to 3, experts {experts} of 2)\n" in done.stdout
    done = run("eval", tmp_path / "engine", "--tokens", "1", "--out", tmp_path / "out", "--moe_ep_size", "2")
    assert done.returncode == 1 and "--moe-ep-size 2:" in done.stderr and "was built for moe_ep_size 3" in done.stderr


def test_files_of_ranks_that_were_built_apart_are_refused(tmp_path):
    """Of the same sizes, with other numbers: nothing else tells them apart."""
    for name, seed in (("one", "1"), ("two", "2")):
        done = run("build", "--load_format", "dummy", "--model_config", os.path.join(cg.write_tiny("llama3", str(tmp_path)), "config.json"),
                   "-o", tmp_path / name, "--tp-size", "2", "--seed", seed)
        assert done.returncode == 0, done.stderr
    ids = tmp_path / "ids"
    ids.write_text('{"id": "a", "tokens": [5, 6, 7]}\n')
    assert run("eval", tmp_path / "one", "--tokens", ids, "--out", tmp_path / "out", "--threads", "1").returncode == 0
    shutil.copy(tmp_path / "two" / "rank1.engine", tmp_path / "one" / "rank1.engine")
    done = run("eval", tmp_path / "one", "--tokens", ids, "--out", tmp_path / "out", "--threads", "1")
    assert done.returncode == 1 and "rank1.engine: is of another build than config.json" in done.stderr


def test_sizes_that_the_ranks_do_not_divide_are_refused(tmp_path):
    """54 numbers of an expert, 90 of an MLP."""
    done = run("build", cg.write_tiny("qwen3_moe-mixed", str(tmp_path)), "-o", tmp_path / "engine", "--tp-size", "5")
    assert done.returncode == 1 and "tp_size 5" in done.stderr


def test_inspect_shows_experts(tmp_path):
    done = run("inspect", cg.write_tiny("glm4_moe", str(tmp_path)))
    assert "experts       2 of 9, each of 54, shared of 108, from 2 of 3 groups, none in 1 layers\n" in done.stdout


def test_inspect_shows_latent_rows(tmp_path):
    done = run("inspect", cg.write_tiny("deepseek_v3", str(tmp_path)))
    assert "attention     3 heads of 28, latent rows of 36 + 8 for keys and values\n" in done.stdout
    assert "cache         264 B a token in 16 bits\n" in done.stdout


def test_latent_rows_are_not_kept_in_8_bits(tmp_path):
    done = run("build", cg.write_tiny("deepseek_v3", str(tmp_path)), "-o", tmp_path / "engine", "--kv_cache_dtype", "int8")
    assert done.returncode == 1 and "kv_cache_dtype int8 is not supported with latent attention" in done.stderr


def families():
    done = run("inspect", "--families")
    assert done.returncode == 0
    return done.stdout


def test_the_documents_show_the_table_of_families():
    with open(os.path.join(cg.ROOT, "docs", "models.md"), encoding="utf-8") as f:
        page = f.read()
    begin, end = "<!-- families: nereid inspect --families -->\n", "<!-- /families -->"
    assert page.split(begin)[1].split(end)[0] == families()


def test_every_family_has_a_reference():
    shown = {cell.strip(" `") for line in families().splitlines()[2:] for cell in line.split("|")[2].split(",")}
    tested = {spec.config["model_type"] for spec in SPECS.values()}
    tested |= {config["model_type"] for config, _ in ENCODERS.values()}  # tests/e2e/test_encoders.py
    tested |= {config["model_type"] for config, _ in ENCODER_DECODERS.values()}  # tests/e2e/test_encdec.py
    tested |= {config["model_type"] for config in WHISPER.values()}  # tests/e2e/test_whisper.py
    tested |= {*qwen_vl.KINDS, "cogvlm", "kosmos-2", "fuyu", "pix2struct", "vision-encoder-decoder"}  # tests/e2e/test_vision.py
    assert tested <= shown
    others = {"mistral3", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "gemma4_unified_text", "stablelm_epoch", "phi-msft", "RefinedWeb", "RefinedWebModel", "roberta", "camembert",
              "llama4", "hunyuan", "kimi_k2", "iquestcoder", "mllama_text_model", "phi3_v", "kosmos_2_text_model", "bailing_moe_v2", "gte"}  # the same rows
    assert shown - tested == others
