# SPDX-License-Identifier: Apache-2.0
"""Model repositories as the releases of the TensorRT-LLM backend declare them, from features.tsv: the same
tensors, types, dimensions and parameters, served by this project's own backends."""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
TAGS = ("v0.5.0 v0.6.1 v0.7.0 v0.7.1 v0.7.2 v0.8.0 v0.9.0 v0.10.0 v0.11.0 v0.12.0 v0.13.0 v0.14.0 v0.15.0 v0.16.0 "
        "v0.17.0 v0.18.0 v0.19.0 main").split()  # main: triton_backend in TensorRT-LLM's repository
RENAMED = {"random_seed": "seed", "min_length": "min_tokens"}
BACKENDS = {"preprocessing": "tokenizer", "postprocessing": "tokenizer", "tensorrt_llm": "tensorrtllm",
            "tensorrt_llm_bls": "bls"}

# Which client's input an inner model takes under another name.
TO_PRE = {"text_input": "QUERY", "max_tokens": "REQUEST_OUTPUT_LEN", "bad_words": "BAD_WORDS_DICT",
          "stop_words": "STOP_WORDS_DICT", "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
          "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS", "end_id": "END_ID", "pad_id": "PAD_ID",
          "decoder_text_input": "DECODER_QUERY", "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
          "image_input": "IMAGE", "prompt_embedding_table": "PROMPT_EMBEDDING_TABLE"}
TO_LLM = {"top_k": "runtime_top_k", "top_p": "runtime_top_p", "length_penalty": "len_penalty", "stream": "streaming"}
PRE_TO_LLM = {"INPUT_ID": "input_ids", "REQUEST_INPUT_LEN": "input_lengths", "REQUEST_OUTPUT_LEN": "request_output_len",
              "BAD_WORDS_IDS": "bad_words_list", "STOP_WORDS_IDS": "stop_words_list", "EMBEDDING_BIAS": "embedding_bias",
              "OUT_END_ID": "end_id", "OUT_PAD_ID": "pad_id", "DECODER_INPUT_ID": "decoder_input_ids",
              "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
              "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
              "OUT_PROMPT_EMBEDDING_TABLE": "prompt_embedding_table"}
THROUGH_POST = ["cum_log_probs", "output_log_probs", "context_logits", "generation_logits", "batch_index"]


def build(folder, *more, arch="llama"):
    """(engine, tokenizer) of a small random model; "-f16" behind the name: with float16 weights."""
    model = folder / "model"
    kind = ["--dtype", "float16"] if arch.endswith("-f16") else []
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", arch.removesuffix("-f16"), *kind,
                    "--out", model], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([BIN / "nereid", "build", model, "--output_dir", folder / "engine", "--gather_all_token_logits",
                    "--max_beam_width", "4", *(() if "--max_draft_len" in more else ("--max_draft_len", "8")), *more], check=True, capture_output=True)
    return folder / "engine", model


def read_rows():
    """The rows of features.tsv as dictionaries."""
    lines = (HERE / "features.tsv").read_text().splitlines()
    head = lines[0].split("\t")
    return [dict(zip(head, line.split("\t"))) for line in lines[1:]]


def rows_of(tag, model, kind):
    at = TAGS.index(tag)
    return {r["name"]: r for r in read_rows()
            if r["model"] == model and r["kind"] == kind and TAGS.index(r["from"]) <= at <= TAGS.index(r["to"])}


def spelled(tag, model, name):
    """What the release calls this input of v0.19."""
    new = RENAMED.get(name)
    return new if new in rows_of(tag, model, "input") else name


def fill(text, values):
    for name, value in values.items():
        text = text.replace("${%s}" % name, value)
    return text


def tensor_text(row, kind, values):
    flags = row["flags"].split(",")
    dtype = fill(row["type"], values)
    more = "".join([" reshape { shape: [ ] }" if "reshape" in flags else "",
                    " optional: true" if "optional" in flags else "",
                    " allow_ragged_batch: true" if "ragged" in flags else ""])
    dims = row["dims"].replace(",", ", ")
    return (f'{kind} {{ name: "{row["name"]}" data_type: {dtype if dtype.startswith("TYPE_") else "TYPE_" + dtype} '
            f'dims: [ {dims} ]{more} }}\n')


def model_text(tag, model, values):
    decoupled = model in ("tensorrt_llm", "tensorrt_llm_bls")
    out = [f'name: "{model}"\nmax_batch_size: {values["triton_max_batch_size"]}\n']
    if model != "ensemble":
        out.append(f'backend: "{BACKENDS[model]}"\n')
    if decoupled:
        out.append(f'model_transaction_policy {{ decoupled: {values["decoupled_mode"]} }}\n')
    for kind in ("input", "output"):
        out += [tensor_text(r, kind, values) for r in rows_of(tag, model, kind).values()]
    for name, r in rows_of(tag, model, "parameter").items():
        value = "" if r["type"] == "-" else fill(r["type"], values)
        out.append(f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n')
    return "".join(out)


def step_text(model, inputs, outputs):
    """One step of the ensemble; both: [(tensor of the model, tensor of the ensemble)]."""
    maps = [f'    input_map {{ key: "{a}" value: "{b}" }}\n' for a, b in inputs]
    maps += [f'    output_map {{ key: "{a}" value: "{b}" }}\n' for a, b in outputs]
    return f'  step {{\n    model_name: "{model}" model_version: -1\n' + "".join(maps) + "  }\n"


def steps_text(tag):
    client = rows_of(tag, "ensemble", "input")
    answers = rows_of(tag, "ensemble", "output")
    has = {(m, k): rows_of(tag, m, k) for m in ("preprocessing", "tensorrt_llm", "postprocessing")
           for k in ("input", "output")}
    pre_in = [(TO_PRE[c], c) for c in client if TO_PRE.get(c) in has["preprocessing", "input"]]
    passed = {PRE_TO_LLM[p]: "_" + p for p in has["preprocessing", "output"]
              if PRE_TO_LLM.get(p) in has["tensorrt_llm", "input"]}
    llm_in = list(passed.items())
    for c in client:
        name = TO_LLM.get(c, c)
        if name in has["tensorrt_llm", "input"] and name not in passed and (TO_PRE.get(c), c) not in pre_in:
            llm_in.append((name, c))
    llm_out = [("output_ids", "_TOKENS_BATCH")]
    post_in = [("TOKENS_BATCH", "_TOKENS_BATCH")]
    post_out = [("OUTPUT", "text_output")]
    if "sequence_length" in has["tensorrt_llm", "output"]:
        llm_out.append(("sequence_length", "_SEQUENCE_LENGTH"))
        post_in.append(("SEQUENCE_LENGTH", "_SEQUENCE_LENGTH"))
    for name in answers:
        upper = name.upper()
        if name in THROUGH_POST and upper in has["postprocessing", "input"]:
            llm_out.append((name, "_" + upper))
            post_in.append((upper, "_" + upper))
            post_out.append(("OUT_" + upper, name))
        elif name in has["tensorrt_llm", "output"]:
            llm_out.append((name, name))
    pre_out = [(p, "_" + p) for p in has["preprocessing", "output"] if "_" + p in passed.values()]
    return ("ensemble_scheduling {\n" + step_text("preprocessing", pre_in, pre_out) +
            step_text("tensorrt_llm", llm_in, llm_out) + step_text("postprocessing", post_in, post_out) + "}\n")


def models_of(tag):
    return sorted({r["model"] for r in read_rows() if rows_of(tag, r["model"], "input")})


def write(tag, folder, engine, tokenizer, **more):
    """A repository of that release; `more`: values of template variables."""
    values = {"tokenizer_dir": str(tokenizer), "engine_dir": str(engine), "tokenizer_type": "auto",
              "triton_max_batch_size": "16", "decoupled_mode": "true", "batching_strategy": "inflight_fused_batching",
              "logits_datatype": "TYPE_FP32", "encoder_input_features_data_type": "TYPE_FP16",
              "prompt_embedding_table_data_type": "TYPE_FP16", **more}
    for model in models_of(tag):
        text = model_text(tag, model, values)
        if model == "ensemble":
            text += 'platform: "ensemble"\n' + steps_text(tag)
        path = pathlib.Path(folder) / model
        (path / "1").mkdir(parents=True)
        (path / "config.pbtxt").write_text(text)
    return folder
