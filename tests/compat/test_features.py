# SPDX-License-Identifier: Apache-2.0
"""Every input, output and parameter of features.tsv, tried on the last release that has it: what it changes,
what it gives, or by which words it is refused. A row without an entry below fails."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import eagle_heads
import medusa_heads
import redrafter_heads
import repositories
from test_repositories import Repository, grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

LLM, PRE, POST, ENSEMBLE, BLS = "tensorrt_llm", "preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls"
PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12], [40, 41, 42, 43], [100, 90, 80, 70], [3, 1, 4, 1], [200, 7, 200, 7]]
TEXTS = ["the quick brown fox", "one two three", "a b c d e", "hello"]
HIDDEN = 256  # of the small llama
LOOKAHEAD = "test_features.py::test_lookahead_decoding"
TABLE = np.full((3, HIDDEN), 0.125, np.float16)
SAMPLED = {"runtime_top_k": 50, "random_seed": 3}


def changes(value, **more):
    return ("changes", value, more)


def same(value, **more):
    return ("same", value, more)


def refused(value, words, **more):
    return ("refused", value, more, words)


def gives(value, output, **more):
    return ("gives", value, more, output)


def elsewhere(test):
    """file::function of the test that shows it."""
    return ("elsewhere", test)


WHOLE = "test_repositories.py::test_the_ensemble_and_the_bls_model_answer_the_same"
ADAPTER = "../e2e/test_lora.py::test_first_request_brings_the_weights_later_ones_the_number"
ADAPTER_CACHE = "../e2e/test_lora.py::test_small_caches_and_prefetched_folders"
GUIDE = "test_features.py::test_a_guide_holds"
RETENTION = "test_features.py::test_retention_keeps_what_it_names"
TABLE_TEST = "test_features.py::test_a_table_through_the_text_models"
HANDOVER = "../e2e/test_disaggregated.py::test_answers_are_those_of_one_model"
DRAFTS = "test_draft_model.py::test_the_answer_is_the_one_without_drafts"
NO_PICTURES = "unexpected inference input|not supported|IMAGE|image"

COUNTED = "test_features.py::test_min_tokens_and_counts_of_tokens"

LLM_INPUTS = {
    "input_ids": changes([9, 8, 7, 6]), "input_lengths": changes(3), "request_output_len": changes(3),
    "end_id": elsewhere("test_features.py::test_end_id_ends"), "pad_id": same(0), "beam_width": changes(4),
    "temperature": changes(4.0, **SAMPLED), "runtime_top_k": changes(50, random_seed=3),
    "runtime_top_p": changes(0.999, random_seed=3), "len_penalty": elsewhere("test_features.py::test_length_penalty"),
    "repetition_penalty": changes(4.0), "min_length": elsewhere("test_features.py::test_end_id_ends"),
    "presence_penalty": changes(9.0), "frequency_penalty": changes(9.0), "random_seed": changes(9, **SAMPLED),
    "seed": changes(9, runtime_top_k=50), "min_tokens": elsewhere(COUNTED), "return_num_input_tokens": gives(True, "num_input_tokens"),
    "return_num_output_tokens": gives(True, "num_output_tokens"),
    "stop": elsewhere("test_repositories.py::test_a_stop_of_an_id_that_nobody_has"),
    "streaming": elsewhere("test_repositories.py::test_streams_have_a_piece_for_each_token"),
    "stop_words_list": elsewhere("test_features.py::test_word_lists"),
    "bad_words_list": elsewhere("test_features.py::test_word_lists"),
    "embedding_bias": changes([0.0] * 17 + [1000.0]), "return_log_probs": gives(True, "output_log_probs"),
    "prompt_embedding_table": elsewhere("test_prompt_table.py::test_logits_are_those_of_inputs_embeds"),
    "prompt_vocab_size": elsewhere("test_prompt_table.py::test_a_wrong_table_is_refused_by_field_and_limit"),
    "prompt_table_extra_ids": elsewhere("test_prompt_table.py::test_extra_ids_keep_blocks_apart"),
    "draft_input_ids": elsewhere("test_drafts.py::test_answer_is_the_one_without_a_draft"),
    "draft_logits": elsewhere("test_drafts.py::test_logits_of_the_draft"),
    "draft_acceptance_threshold": elsewhere("test_drafts.py::test_logits_of_the_draft"),
    "return_context_logits": gives(True, "context_logits"),
    "return_generation_logits": gives(True, "generation_logits"),
    "lora_weights": elsewhere(ADAPTER), "lora_config": elsewhere(ADAPTER), "lora_task_id": elsewhere(ADAPTER),
    "runtime_top_p_min": changes(0.9, runtime_top_p=0.95, runtime_top_p_decay=0.1, temperature=4.0, random_seed=3),
    "runtime_top_p_decay": changes(0.05, runtime_top_p=0.99, temperature=4.0, random_seed=3),
    "runtime_top_p_reset_ids": elsewhere("test_features.py::test_a_reset_id_restores_top_p"),
    "early_stopping": elsewhere("../unit/engine/test_scheduler.c::test_every_sequence_gets_what_it_gets_alone"),
    "beam_search_diversity_rate": changes(5.0, beam_width=4), "decoder_input_ids": same([4]),
    "decoder_input_lengths": same(1),
    "num_return_sequences": elsewhere("test_repositories.py::test_several_sequences_through_the_bls_model"),
    "exclude_input_in_output": changes(True),
    "context_phase_params": elsewhere(HANDOVER),
    "encoder_input_features": elsewhere("../e2e/test_whisper.py::test_texts_are_those_of_the_reference"),
    "encoder_output_lengths": elsewhere("../e2e/test_whisper.py::test_the_beginning_may_come_as_the_decoders"),
    "cross_attention_mask": elsewhere("../e2e/test_encdec.py::test_states_of_the_encoder_are_hidden_by_a_mask"),
    "return_kv_cache_reuse_stats": gives(True, "kv_cache_alloc_new_blocks"),
    "skip_cross_attn_blocks": refused(True, "skip_cross_attn_blocks is not supported"),
    "retention_token_range_starts": elsewhere(RETENTION),
    "retention_token_range_ends": elsewhere(RETENTION),
    "retention_token_range_priorities": elsewhere(RETENTION),
    "retention_token_range_durations_ms": elsewhere(RETENTION),
    "retention_decode_priority": elsewhere(RETENTION), "retention_decode_duration_ms": elsewhere(RETENTION),
    "return_perf_metrics": gives(True, "first_token_time_ns"),
    "mrope_rotary_cos_sin": elsewhere("../e2e/test_mrope.py::test_given_places_answer_as_the_pictures_do"),
    "mrope_position_deltas": elsewhere("../e2e/test_mrope.py::test_given_places_answer_as_the_pictures_do"),
    "guided_decoding_guide_type": changes("json"), "guided_decoding_guide": elsewhere(GUIDE),
    **{n: elsewhere(LOOKAHEAD) for n in ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")},
}

TEXT_INPUTS = {
    "text_input": changes("another text"), "max_tokens": changes(3), "bad_words": elsewhere(WHOLE), "stop_words": elsewhere(WHOLE),
    "end_id": elsewhere("test_features.py::test_end_id_ends"), "pad_id": same(0), "top_k": changes(50, random_seed=3),
    "top_p": changes(0.999, random_seed=3), "temperature": changes(4.0, top_k=50, random_seed=3),
    "length_penalty": elsewhere("test_features.py::test_length_penalty"), "repetition_penalty": changes(4.0),
    "min_length": elsewhere("test_features.py::test_end_id_ends"), "presence_penalty": changes(9.0),
    "frequency_penalty": changes(9.0), "random_seed": changes(9, top_k=50), "beam_width": changes(4),
    "seed": changes(9, top_k=50), "min_tokens": elsewhere(COUNTED), "return_num_input_tokens": gives(True, "num_input_tokens"),
    "return_num_output_tokens": gives(True, "num_output_tokens"),
    "stream": elsewhere("test_repositories.py::test_streams_have_a_piece_for_each_token"),
    "return_log_probs": gives(True, "output_log_probs"), "embedding_bias_words": elsewhere("test_features.py::test_bias_by_words"),
    "embedding_bias_weights": elsewhere("test_features.py::test_bias_by_words"),
    "return_context_logits": gives(True, "context_logits"), "return_generation_logits": gives(True, "generation_logits"),
    "decoder_text_input": same("a"), "prompt_table_extra_id": same(7),
    "prompt_embedding_table": elsewhere(TABLE_TEST), "prompt_vocab_size": elsewhere(TABLE_TEST),
    "num_return_sequences": elsewhere("test_repositories.py::test_several_sequences_through_the_bls_model"),
    "lora_task_id": elsewhere(ADAPTER), "lora_weights": elsewhere(ADAPTER), "lora_config": elsewhere(ADAPTER), "exclude_input_in_output": changes(True),
    "return_kv_cache_reuse_stats": gives(True, "kv_cache_alloc_new_blocks"),
    "return_perf_metrics": gives(True, "first_token_time_ns"),
    "guided_decoding_guide_type": changes("json"),
    "guided_decoding_guide": elsewhere(GUIDE),
    "image_input": elsewhere("test_features.py::test_pictures_are_refused"), "num_draft_tokens": elsewhere(DRAFTS),
    "use_draft_logits": elsewhere("test_draft_model.py::test_logits_of_the_draft_model"), "image_bytes_input": elsewhere("test_features.py::test_pictures_are_refused"),
    "image_url_input": elsewhere("test_features.py::test_pictures_are_refused"),
    "video_bytes_input": elsewhere("test_features.py::test_pictures_are_refused"),
}

PRE_TEST = "test_features.py::test_preprocessing_makes_every_output"
PICTURES = "test_features.py::test_pictures_are_refused"
POST_TEST = "test_features.py::test_postprocessing_passes_on_what_it_gets"
PRE_INPUTS = {n: elsewhere(PRE_TEST) for n in (
    "QUERY", "BAD_WORDS_DICT", "STOP_WORDS_DICT", "REQUEST_OUTPUT_LEN", "EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS", "END_ID",
    "PAD_ID", "DECODER_QUERY", "PROMPT_TABLE_EXTRA_ID")}
PRE_INPUTS.update({n: elsewhere(PICTURES) for n in ("IMAGE", "IMAGE_BYTES", "IMAGE_URL", "IMAGES", "VIDEO_BYTES")},
                  PROMPT_EMBEDDING_TABLE=elsewhere("test_features.py::test_preprocessing_passes_a_table_on"))
PRE_OUTPUTS = {n: elsewhere(PRE_TEST) for n in (
    "INPUT_ID", "REQUEST_INPUT_LEN", "BAD_WORDS_IDS", "STOP_WORDS_IDS", "REQUEST_OUTPUT_LEN", "EMBEDDING_BIAS", "OUT_END_ID",
    "OUT_PAD_ID", "DECODER_INPUT_ID", "REQUEST_DECODER_INPUT_LEN", "OUT_PROMPT_TABLE_EXTRA_IDS")}
PRE_OUTPUTS.update({n: elsewhere(PICTURES) for n in (
    "PIXEL_VALUES", "ASPECT_RATIO_IDS", "ASPECT_RATIO_MASK", "CROSS_ATTENTION_MASK", "IMAGE_SIZES", "IS_VIDEO_INPUT",
    "ATTENTION_MASK", "IMAGE_GRID_THW", "VISION_INPUT_ID")},
    OUT_PROMPT_EMBEDDING_TABLE=elsewhere("test_features.py::test_preprocessing_passes_a_table_on"))

# What must be asked for so that an output comes.
ASK = {"cum_log_probs": "return_log_probs", "output_log_probs": "return_log_probs", "context_logits": "return_context_logits",
       "generation_logits": "return_generation_logits"}
PERF = ["kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns",
        "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate", "total_accepted_draft_tokens",
        "total_draft_tokens"]
ASK.update(dict.fromkeys(PERF, "return_perf_metrics"), num_input_tokens="return_num_input_tokens",
           num_output_tokens="return_num_output_tokens")
OUTPUTS = {**{n: gives(True, n) for n in ASK}, "output_ids": elsewhere(WHOLE), "sequence_length": elsewhere(WHOLE),
           "text_output": elsewhere(WHOLE), "batch_index": elsewhere("test_features.py::test_rows_of_a_batch_are_numbered"),
           "sequence_index": elsewhere("test_repositories.py::test_several_sequences_through_the_bls_model"),
           "context_phase_params": elsewhere(HANDOVER)}

SET = "test_features.py::test_parameters_that_change_nothing_say_so"
BLS_PICTURES = "../guides/test_multimodal.py::test_pixels_that_the_client_scaled"
REFUSED = "test_features.py::test_parameters_that_are_refused"
NO_EFFECT = {"enable_trt_overlap": "true", "worker_path": "/x",
             "kv_cache_onboard_blocks": "false",
             "enable_context_fmha_fp32_acc": "true", "multi_block_mode": "false", "participant_ids": "0",
             "cross_kv_cache_fraction": "0.5", "speculative_decoding_fast_logits": "true", "num_nodes": "2",
             "request_stats_max_iterations": "10", "gpu_weights_percent": "0.5"}  # the last one on a CPU
REFUSE = {"multimodal_model_path": "/x"}
OPEN = "test_repositories.py::test_every_parameter_left_open_is_named"
MODES = "../e2e/test_modes.py::test_every_mode_gives_the_same_text"
LLM_PARAMETERS = {
    "lora_cache_max_adapter_size": elsewhere(ADAPTER_CACHE), "lora_cache_host_memory_bytes": elsewhere(ADAPTER_CACHE),
    "lora_prefetch_dir": elsewhere(ADAPTER_CACHE), "lora_cache_optimal_adapter_size": elsewhere("../unit/engine/test_lora.c::test_pages_are_brought_and_given_up_by_those_not_held"),
    "lora_cache_gpu_memory_fraction": elsewhere("../unit/engine/test_lora.c::test_an_adapter_that_can_never_fit_is_refused"),
    **{n: elsewhere(SET) for n in NO_EFFECT if n != "participant_ids"},
    "xgrammar_tokenizer_info_path": elsewhere("test_features.py::test_guides_over_the_file_that_xgrammar_reads"),
    "encoder_model_path": elsewhere("../e2e/test_encdec.py::test_two_engines_as_the_converter_leaves_them"),
    "max_beam_width": elsewhere("test_repositories.py::test_beams_while_streaming"), "FORCE_CPU_ONLY_INPUT_TENSORS": elsewhere(WHOLE),
    "gpt_model_type": elsewhere("../e2e/test_modes.py::test_a_wrong_parameter_ends_the_start_with_its_reason"),
    "gpt_model_path": elsewhere(WHOLE), "max_tokens_in_paged_kv_cache": elsewhere(MODES), "batch_scheduler_policy": elsewhere(MODES),
    "kv_cache_free_gpu_mem_fraction": elsewhere(OPEN), "exclude_input_in_output": elsewhere("test_features.py::test_input[tensorrt_llm-exclude_input_in_output]"),
    "max_num_sequences": elsewhere("test_features.py::test_so_many_sequences_are_in_a_step"),
    "max_kv_cache_length": elsewhere("test_features.py::test_the_window_s_older_name"),
    "max_attention_window_size": elsewhere("test_features.py::test_an_attention_window_changes_long_answers"),
    "sink_token_length": elsewhere("test_features.py::test_an_attention_window_changes_long_answers"),
    "enable_kv_cache_reuse": elsewhere("test_repositories.py::test_reuse_is_on_by_default_in_the_newest_release"),
    "normalize_log_probs": elsewhere("test_features.py::test_log_probabilities_of_the_whole_distribution"),
    "enable_chunked_context": elsewhere("test_prompt_table.py::test_prompts_in_chunks"), "gpu_device_ids": elsewhere("../unit/backends/test_places.c::test_each_instance_has_its_list_and_one_alone_is_everyones"),
    "decoding_mode": elsewhere("test_features.py::test_decoding_modes"),
    "medusa_choices": elsewhere("test_features.py::test_medusa_decoding"),
    "eagle_choices": elsewhere("test_features.py::test_eagle_decoding"),
    **{n: elsewhere(LOOKAHEAD) for n in ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")},
    "kv_cache_host_memory_bytes": elsewhere("../unit/executor/test_executor.c::test_blocks_come_back_from_host_memory"), "cancellation_check_period_ms": elsewhere(OPEN),
    "stats_check_period_ms": elsewhere(OPEN), "iter_stats_max_iterations": elsewhere(OPEN), "executor_worker_path": elsewhere(WHOLE),
    "gpu_weights_percent": elsewhere("../gpu/graph_check.c::compare_streamed"),
    "cuda_graph_mode": elsewhere("../gpu/graph_check.c::compare_modes"), "cuda_graph_cache_size": elsewhere("../gpu/graph_check.c::compare_modes"),
    "participant_ids": elsewhere("../e2e/test_orchestrator.py::test_models_take_the_ranks_that_they_name"),
    "tokenizer_dir": elsewhere(GUIDE), "guided_decoding_backend": elsewhere(GUIDE),
}
PRE_PARAMETERS = {"tokenizer_dir": elsewhere(WHOLE), "tokenizer_type": elsewhere("test_repositories.py::test_tokenizer_type_has_its_effect"),
                  "add_special_tokens": elsewhere("test_repositories.py::test_tokenizer_type_has_its_effect"),
                  "skip_special_tokens": elsewhere("test_features.py::test_postprocessing_passes_on_what_it_gets"),
                  **{n: elsewhere(PICTURES) for n in ("gpt_model_path", "max_num_images", "hf_model_path")},
                  **{n: elsewhere(REFUSED) for n in ("visual_model_path", "multimodal_model_path")}}
BLS_PARAMETERS = {"accumulate_tokens": elsewhere("../e2e/test_modes.py::test_bls_accumulates_tokens_when_told_to"),
                  "tensorrt_llm_model_name": elsewhere(WHOLE), "multimodal_encoders_name": elsewhere(BLS_PICTURES),
                  "tensorrt_llm_draft_model_name": elsewhere(DRAFTS)}

TABLES = {(LLM, "input"): LLM_INPUTS, (ENSEMBLE, "input"): TEXT_INPUTS, (BLS, "input"): TEXT_INPUTS, (PRE, "input"): PRE_INPUTS,
          (PRE, "output"): PRE_OUTPUTS, (PRE, "parameter"): PRE_PARAMETERS, (POST, "parameter"): PRE_PARAMETERS,
          (LLM, "output"): OUTPUTS, (ENSEMBLE, "output"): OUTPUTS, (BLS, "output"): OUTPUTS, (LLM, "parameter"): LLM_PARAMETERS,
          (BLS, "parameter"): BLS_PARAMETERS}
for kind in ("input", "output"):
    TABLES[POST, kind] = {n: elsewhere(POST_TEST) for n in (
        "TOKENS_BATCH", "SEQUENCE_LENGTH", "CUM_LOG_PROBS", "OUTPUT_LOG_PROBS", "CONTEXT_LOGITS", "GENERATION_LOGITS", "BATCH_INDEX",
        "OUTPUT", "OUT_CUM_LOG_PROBS", "OUT_OUTPUT_LOG_PROBS", "OUT_CONTEXT_LOGITS", "OUT_GENERATION_LOGITS", "OUT_BATCH_INDEX")}


def features():
    """(model, kind, name) -> the last release that has it."""
    out = {}
    for r in repositories.read_rows():
        out[r["model"], r["kind"], r["name"]] = r["to"]
    return out


FEATURES = features()


def result(model, kind, name):
    """(what the row does, its test) for docs/features.md."""
    how, *rest = TABLES[model, kind][name]
    own = f"test_features.py::test_input[{model}-{name}]"
    if how == "elsewhere":
        test = rest[0]
        what = ("no effect, said in the log" if test == SET else
                "refused" if test in (REFUSED, PICTURES) else "works")
        target = test.partition("[")[2].rstrip("]").partition("-")
        if target[2] and TABLES.get((target[0], "input"), {}).get(target[2], ("",))[0] == "refused":
            what = "refused"
        return what, test
    if kind == "output":
        return "works", f"test_features.py::test_output[{name}-{model}]"
    return {"changes": "works", "gives": "works", "same": "accepted, changes nothing alone", "refused": "refused"}[how], own


def page():
    """docs/features.md."""
    out = ["# Inputs, outputs and parameters, release by release", "",
           "Every tensor and parameter of the published repositories of the TensorRT-LLM backend, what it does here, and the test",
           "that shows it. Written by `tests/compat/features_page.py` from `tests/compat/features.tsv`; tests without a folder are in",
           "`tests/compat`. *Refused* means an error that names the field, and other requests go on. `main`: after v0.19 the",
           "repositories are part of TensorRT-LLM's, as `triton_backend`; this is its `main` of July 2026.", ""]
    counts = {}
    for model in (LLM, PRE, POST, ENSEMBLE, BLS):
        out += [f"## {model}", "", "| kind | name | releases | result | test |", "|---|---|---|---|---|"]
        for (m, kind, name), last in FEATURES.items():
            if m != model:
                continue
            first = next(r["from"] for r in repositories.read_rows() if (r["model"], r["kind"], r["name"]) == (m, kind, name))
            what, test = result(m, kind, name)
            counts[what] = counts.get(what, 0) + 1
            test = test.replace("../", "tests/")
            out.append(f"| {kind} | `{name}` | {first} to {last} | {what} | `{test}` |")
        out.append("")
    out.insert(6, "; ".join(f"{n} {what}" for what, n in sorted(counts.items(), key=lambda c: -c[1])) + ".\n")
    return "\n".join(out).rstrip() + "\n"


def test_every_row_has_a_test():
    missing = [key for key in FEATURES if key[2] not in TABLES[key[:2]]]
    assert not missing


@pytest.mark.parametrize("test", sorted({s[1] for t in TABLES.values() for s in t.values() if s[0] == "elsewhere"}))
def test_the_tests_that_rows_name_are_there(test):
    file, _, function = test.partition("::")
    name = function.partition("[")[0]
    text = (repositories.HERE / file).read_text()
    assert re.search(rf"^def {name}\(" if file.endswith(".py") else rf"^static \w+ {name}\(", text, re.M)
    assert file.endswith(".py") or file.startswith("../gpu/") or f"cmocka_unit_test({name})" in text


def test_the_page_is_that_of_this_table():
    text = (repositories.ROOT / "docs/features.md").read_text()
    assert text == page(), "docs/features.md is old: tests/compat/features_page.py > docs/features.md"


@pytest.fixture(scope="module")
def servers(engine, tmp_path_factory):
    """tag -> a running repository of that release."""
    running = {}

    def get(tag):
        if tag not in running:
            folder = tmp_path_factory.mktemp(tag)
            running[tag] = Repository(tag, folder, engine, max_beam_width="4")
            running[tag].open()
        return running[tag]

    yield get
    for s in running.values():
        s.close()


def tensor(s, model, name, value):
    name = repositories.spelled(s.tag, model, name)
    row = repositories.rows_of(s.tag, model, "input")[name]
    dtype = {"INT32": np.int32, "UINT64": np.uint64, "INT64": np.int64, "FP32": np.float32, "FP16": np.float16, "BOOL": bool,
             "UINT8": np.uint8, "STRING": object, "${logits_datatype}": np.float32}.get(row["type"], np.float16)
    array = np.array([value if isinstance(value, (list, np.ndarray)) else [value]], dtype)
    t = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    t.set_data_from_numpy(array)
    return t


def ask_ids(s, **more):
    """For each prompt: (ids, names of the outputs); an error as its text."""
    requests = []
    for i, ids in enumerate(PROMPTS):
        values = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 8, **more}
        requests.append(([tensor(s, LLM, n, v) for n, v in values.items()], str(i)))
    out = {}
    for name, result in s.ask(*requests):
        if name is None:
            return result
        if result.as_numpy("output_ids") is not None:
            out[name] = (result.as_numpy("output_ids").tolist(), {o.name for o in result.get_response().outputs})
    return [out[str(i)] for i in range(len(PROMPTS))]


def ask_texts(s, model, **more):
    out = []
    for text in TEXTS:
        body = {"text_input": text, "max_tokens": 8, "bad_words": "", "stop_words": "",
                **{repositories.spelled(s.tag, model, n): v for n, v in more.items()}}
        status, answer = s.generate(json.loads(json.dumps(body)), model)
        if status != 200:
            return str(answer)
        out.append((answer["text_output"], set(answer)))
    return out


def ask(s, model, **more):
    return ask_ids(s, **more) if model == LLM else ask_texts(s, model, **more)


CASES = [pytest.param(*key, id=f"{key[0]}-{key[2]}") for key in FEATURES if key[1] == "input" and
         TABLES[key[:2]].get(key[2], ("elsewhere",))[0] != "elsewhere"]


@pytest.mark.parametrize("model, kind, name", CASES)
def test_input(servers, model, kind, name):
    s = servers(FEATURES[model, kind, name])
    how, value, more, *rest = TABLES[model, kind][name]
    got = ask(s, model, **{**more, name: value})
    if how == "refused":
        assert isinstance(got, str) and rest[0] in got, got
        return
    assert not isinstance(got, str), got
    base = ask(s, model, **more)
    if how == "gives":
        assert all(rest[0] in names for _, names in got) and not any(rest[0] in names for _, names in base)
        assert [a for a, _ in got] == [a for a, _ in base]
    else:
        assert ([a for a, _ in got] != [a for a, _ in base]) == (how == "changes")


@pytest.mark.parametrize("model", [LLM, ENSEMBLE, BLS])
@pytest.mark.parametrize("name", list(ASK))
def test_output(servers, model, name):
    assert (model, "output", name) in FEATURES
    got = ask(servers(FEATURES[model, "output", name]), model, **{ASK[name]: True})
    assert all(name in names for _, names in got), got


def test_end_id_ends(servers):
    s = servers("v0.19.0")
    base = ask_ids(s, exclude_input_in_output=True)[0][0][0][0]
    end = base[2]
    at = base.index(end)
    cut = ask_ids(s, exclude_input_in_output=True, end_id=end)[0][0][0][0]
    assert cut == base[:at]
    longer = ask_ids(s, exclude_input_in_output=True, end_id=end, min_length=at + 2)[0][0][0][0]
    assert len(longer) >= at + 2 and end not in longer[:at + 2]
    for model in (ENSEMBLE, BLS):
        text = ask_texts(s, model, exclude_input_in_output=True)[0][0]
        ends = [ask_texts(s, model, exclude_input_in_output=True, end_id=i)[0][0] for i in range(3, 256, 9)]
        assert any(len(t) < len(text) for t in ends) or len(set(ends)) == 1


def test_min_tokens_and_counts_of_tokens(servers):
    """Releases after v0.19 have min_tokens for min_length, and count."""
    s = servers("main")
    base = ask_ids(s, exclude_input_in_output=True)[0][0][0][0]
    end = base[2]
    at = base.index(end)
    assert ask_ids(s, exclude_input_in_output=True, end_id=end)[0][0][0][0] == base[:at]
    longer = ask_ids(s, exclude_input_in_output=True, end_id=end, min_tokens=at + 2)[0][0][0][0]
    assert len(longer) >= at + 2 and end not in longer[:at + 2]
    wants = {"return_num_input_tokens": True, "return_num_output_tokens": True}

    def counts(**more):
        values = {"input_ids": PROMPTS[0], "input_lengths": 4, "request_output_len": 5, **wants, **more}
        answers = [r for _, r in s.ask(([tensor(s, LLM, n, v) for n, v in values.items()], "1")) if r.as_numpy("output_ids") is not None]
        assert all(r.as_numpy("num_input_tokens").tolist() == [[4]] for r in answers)
        assert all(r.as_numpy("num_output_tokens").tolist() == [[r.as_numpy("output_ids").size]] for r in answers)
        return [r.as_numpy("num_output_tokens").item() for r in answers]

    assert counts() == [9] and counts(exclude_input_in_output=True) == [5] and counts(beam_width=2) == [18]
    assert counts(streaming=True) == [1] * 5
    for model in (ENSEMBLE, BLS):
        body = {"text_input": "one two three", "max_tokens": 5, "exclude_input_in_output": True, **wants}
        status, answer = s.generate(body, model)
        assert status == 200 and answer["num_output_tokens"] == 5 and answer["num_input_tokens"] > 0, answer
    status, answer = s.generate({"text_input": "a", "max_tokens": 2, "num_draft_tokens": 2, **wants}, BLS)
    assert status != 200, answer


def test_logits_of_beams_do_not_stream(servers):
    s = servers("v0.19.0")
    got = ask_ids(s, streaming=True, beam_width=2, return_generation_logits=True)
    assert "return_generation_logits while streaming needs beam_width 1, got 2" in got
    assert not isinstance(ask_ids(s, streaming=True, beam_width=2), str)


def test_what_an_engine_or_a_cpu_cannot_obey_is_told(engine, tmp_path):
    repo = with_values(engine, tmp_path, "v0.19.0", {"max_beam_width": "8", "gpu_device_ids": "0", "sink_token_length": "4",
                                                         "max_attention_window_size": "-3"})
    s = Prepared("v0.19.0", repo, tmp_path)
    try:
        s.open()
        for line in ("max_beam_width 8 is above what the engine was built for: 4 applies", "gpu_device_ids has no effect on a CPU",
                     "sink_token_length has no effect without max_attention_window_size",
                     "max_attention_window_size '-3' is not a list of integers from 0 on, ignored"):
            assert s.log_text().count(line) == 1, line
    finally:
        s.close()


def test_a_misspelled_parameter_is_told_with_the_name_it_stands_for(engine, tmp_path):
    repo = with_values(engine, tmp_path, "v0.19.0", {})
    with open(repo / "tensorrt_llm/config.pbtxt", "a") as f:
        for name in ("kv_cache_free_gpu_memory_fraction", "max_beam_with", "parameter_of_my_own"):
            f.write(f'parameters {{ key: "{name}" value {{ string_value: "1" }} }}\n')
    s = Prepared("v0.19.0", repo, tmp_path)
    try:
        s.open()
        said = [line.split("model 'tensorrt_llm': ")[1] for line in s.log_text().splitlines() if "did you mean" in line]
        assert sorted(said) == [f"parameter '{wrong}' is not known and has no effect; did you mean '{right}'?" for wrong, right in (
            ("kv_cache_free_gpu_memory_fraction", "kv_cache_free_gpu_mem_fraction"), ("max_beam_with", "max_beam_width"))]
    finally:
        s.close()


def test_no_parameter_that_is_read_can_be_told_as_misspelled():
    backend = pathlib.Path(__file__).resolve().parents[2] / "src/backends/tensorrtllm"
    known = set(re.findall(r'"(\w+)"', (backend / "warnings.c").read_text().split("*const known[] = {")[1].split("};")[0]))
    read = {name for file in backend.glob("*.c") for name in re.findall(
        r'(?:(?:config_param\w*|param_\w+)\((?:m|&m->config), "|\bROW\("|CONFIG_ROW\()(\w+)', file.read_text())} - {"key"}
    assert len(read) > 40 and read <= known, read - known


def test_word_lists(servers):
    s = servers("v0.19.0")
    base = ask_ids(s, exclude_input_in_output=True)[0][0][0][0]
    word = np.array([[base[2]], [1]])
    assert ask_ids(s, exclude_input_in_output=True, stop_words_list=word)[0][0][0][0] == base[:base.index(base[2]) + 1]
    assert base[2] not in ask_ids(s, exclude_input_in_output=True, bad_words_list=word)[0][0][0][0]


def test_a_reset_id_restores_top_p(servers):
    s = servers("v0.19.0")
    more = {"runtime_top_p": 0.99, "runtime_top_p_decay": 0.05, "temperature": 4.0, "random_seed": 3}
    base = ask_ids(s, **more)
    first = base[0][0][0][0][len(PROMPTS[0])]  # the reset comes with the first token
    assert ask_ids(s, runtime_top_p_reset_ids=first, **more) != base


def test_retention_ranges_are_checked(servers):
    s = servers("v0.19.0")
    whole = {"retention_token_range_starts": [0], "retention_token_range_ends": [2], "retention_token_range_priorities": [50],
             "retention_token_range_durations_ms": [1000]}
    assert ask_ids(s, **whole) == ask_ids(s)
    for name in list(whole)[1:]:
        assert "retention" in ask_ids(s, **{**whole, name: [1, 2]})
    assert "priority" in ask_ids(s, **{**whole, "retention_token_range_priorities": [101]})


def test_a_table_through_the_text_models(tmp_path):
    """Texts have no ids past the vocabulary: a table is checked, and changes nothing."""
    s = Repository("v0.19.0", tmp_path, repositories.build(tmp_path, "--max_prompt_embedding_table_size", "2"))

    def answer(model, table, rows):
        values = (("text_input", b"ab"), ("max_tokens", 4), ("prompt_embedding_table", table), ("prompt_vocab_size", rows))
        got = s.ask(([tensor(s, model, n, v) for n, v in values], "1"), model=model)
        return got[0][1] if got[0][0] is None else got[0][1].as_numpy("text_output").item()

    try:
        s.open()
        for model in (ENSEMBLE, BLS):
            assert "max_prompt_embedding_table_size" in answer(model, TABLE, 3)
            assert "'prompt_vocab_size' is 3, expected 1 to 2" in answer(model, TABLE[:2], 3)
            assert answer(model, TABLE[:2], 2).startswith(b"ab")
    finally:
        s.close()


def test_a_guide_holds(servers):
    s = servers("v0.19.0")
    for guide, shape in (("[0-9]{4}", r"\d{4}"), ("(yes|no)", "(yes|no)")):
        more = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": guide}
        for model in (ENSEMBLE, BLS):
            for answer, _ in ask_texts(s, model, exclude_input_in_output=True, **more):
                assert re.fullmatch(shape, answer), answer
        ids = {str(a) for a, _ in ask_ids(s, exclude_input_in_output=True, **more)}
        assert not ids & {str(a) for a, _ in ask_ids(s, exclude_input_in_output=True)}
    assert "guided_decoding_guide" in ask_ids(s, guided_decoding_guide="x")


def with_info_file(engine, folder, text):
    """A server whose tensorrt_llm knows the tokenizer only by a file of xgrammar_tokenizer_info_path with this text."""
    path = folder / "info.json"
    path.write_text(text)
    repo = with_values(engine, folder, "v0.19.0", {"xgrammar_tokenizer_info_path": str(path), "guided_decoding_backend": "xgrammar"})
    config = repo / "tensorrt_llm/config.pbtxt"
    config.write_text(config.read_text().replace(f'"{engine[1]}"', '""'))
    return Prepared("v0.19.0", repo, folder)


def test_guides_over_the_file_that_xgrammar_reads(engine, tmp_path):
    script = repositories.ROOT / "examples/generate_xgrammar_tokenizer_info.py"
    subprocess.run([sys.executable, script, "--model_dir", engine[1], "--output_dir", tmp_path / "made"], check=True)
    text = (tmp_path / "made/xgrammar_tokenizer_info.json").read_text()
    info = json.loads(text)
    tokenizer = json.loads(info["tokenizer_str"])
    assert len(info["encoded_vocab"]) == len(set(tokenizer["model"]["vocab"]) | {t["content"] for t in tokenizer["added_tokens"]})
    assert info["encoded_vocab"][info["stop_token_ids"][0]] == json.loads((engine[1] / "tokenizer_config.json").read_text())["eos_token"]
    none = subprocess.run([sys.executable, script, "--model_dir", tmp_path, "--output_dir", tmp_path], capture_output=True, text=True)
    assert none.returncode == 1 and "tokenizer_dir names the folder" in none.stderr
    s = with_info_file(engine, tmp_path, text)
    try:
        for answer, _ in ask_texts(s.open(), ENSEMBLE, exclude_input_in_output=True, guided_decoding_guide_type="regex",
                                   guided_decoding_guide="[0-9]{4}"):
            assert re.fullmatch(r"\d{4}", answer), answer
    finally:
        s.close()


def test_a_wrong_file_for_xgrammar_is_told(engine, tmp_path):
    s = with_info_file(engine, tmp_path, '{"encoded_vocab": [], "tokenizer_str": 7}')
    try:
        assert "tokenizer_str" in ask_ids(s.open(), guided_decoding_guide_type="json")
        assert not isinstance(ask_ids(s), str)
    finally:
        s.close()
    (tmp_path / "info.json").unlink()
    s = Prepared("v0.19.0", tmp_path / "repo", tmp_path)
    assert s.process.wait(30) != 0
    assert "xgrammar_tokenizer_info_path" in s.log_text() and "does not exist" in s.log_text()
    s.stop()


def test_retention_keeps_what_it_names(engine, tmp_path):
    """A cache of few blocks: what other prompts push out, and what a priority keeps as long as it lasts."""
    repo = with_values(engine, tmp_path, "v0.19.0", {"max_tokens_in_paged_kv_cache": "512", "enable_kv_cache_reuse": "true"})
    s = Prepared("v0.19.0", repo, tmp_path)
    count = iter(range(1, 10000))

    def ask_one(ids, n_new=1, **more):
        values = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": n_new, "return_perf_metrics": True,
                  "exclude_input_in_output": True, **more}
        answers = s.ask(([tensor(s, LLM, n, v) for n, v in values.items()], "1"))
        assert answers[0][0] is not None, answers
        return answers[0][1]

    def prompt(n=100):
        start = next(count)
        return [3 + start % 300] * 2 + [3 + (start * 7 + i) % 300 for i in range(n - 2)]

    def reused(ids):
        return ask_one(ids).as_numpy("kv_cache_reused_blocks").item()

    def push_out():
        for _ in range(12):
            ask_one(prompt())

    def retained(**more):
        return {"retention_token_range_starts": [0], "retention_token_range_ends": [96], "retention_token_range_priorities": [100], **more}

    try:
        s.open()
        plain, kept, brief = prompt(), prompt(), prompt()
        ask_one(plain)
        assert reused(plain) > 0
        push_out()
        assert reused(plain) == 0
        ask_one(kept, **retained())
        ask_one(brief, **retained(retention_token_range_durations_ms=[50]))
        time.sleep(0.1)  # the duration of the second
        push_out()
        assert reused(kept) > 0 == reused(brief)
        # The answer's own blocks, beside a prompt of no priority.
        answers = []
        for more in ({"retention_decode_priority": 100}, {"retention_decode_priority": 100, "retention_decode_duration_ms": 50}):
            ids = prompt()
            new = ask_one(ids, n_new=100, **retained(), **more).as_numpy("output_ids").flatten().tolist()
            time.sleep(0.1)
            push_out()
            answers.append(reused(ids + new))
        assert answers[0] > answers[1] > 0
    finally:
        s.close()


def test_decoding_modes(engine, tmp_path, servers):
    for mode in ("auto", "top_k_top_p", "medusa", "redrafter"):
        folder = tmp_path / mode
        folder.mkdir()
        s = Prepared("v0.19.0", with_values(engine, folder, "v0.19.0", {"decoding_mode": mode}), folder)
        if mode in ("medusa", "redrafter"):
            assert s.process.wait(30) != 0 and f"has no {'Medusa heads' if mode == 'medusa' else 'ReDrafter'}" in s.log_text()
            s.stop()
            continue
        try:
            assert ask_ids(s.open()) == ask_ids(servers("v0.19.0"))
        finally:
            s.close()


def test_lookahead_decoding(engine, tmp_path, servers):
    """The same tokens in fewer steps; sizes of the model, and smaller ones of a request."""
    sizes = {"lookahead_window_size": "4", "lookahead_ngram_size": "3", "lookahead_verification_set_size": "4"}
    s = Prepared("v0.19.0", with_values(engine, tmp_path, "v0.19.0", {"decoding_mode": "lookahead", **sizes}), tmp_path)
    try:
        s.open()
        plain = servers("v0.19.0")
        assert ask_ids(s) == ask_ids(plain)
        smaller = {"lookahead_window_size": 2, "lookahead_ngram_size": 2, "lookahead_verification_set_size": 1}
        assert ask_ids(s, **smaller) == ask_ids(plain)
        assert "lookahead_ngram_size is 4, expected 2 to 3" in str(ask_ids(s, lookahead_ngram_size=4))
        assert "beam_width is 2, lookahead decoding takes 1" in str(ask_ids(s, beam_width=2))
        assert "lookahead_window_size needs" in str(ask_ids(plain, lookahead_window_size=2))
    finally:
        s.close()
    repo = with_values(engine, tmp_path / "open", "v0.19.0", {"decoding_mode": "lookahead", **sizes, "lookahead_ngram_size": ""})
    s = Prepared("v0.19.0", repo, tmp_path / "open")
    assert s.process.wait(30) != 0
    said = s.log_text()
    s.stop()
    assert "Decoding mode is set to lookahead but lookahead parameters are not specified" in said and "(lookahead_ngram_size is open)" in said


def test_medusa_decoding(engine, tmp_path, servers):
    """Heads of random weights beside the engine, and choices of which they make a tree: the same tokens."""
    folder, tokenizer = engine
    config = json.loads((folder / "config.json").read_text())["pretrained_config"]
    with_heads = tmp_path / "engine"
    shutil.copytree(folder, with_heads)
    medusa_heads.write_folder(tmp_path / "heads", 3, 1, config["hidden_size"], config["vocab_size"])
    shutil.copy(tmp_path / "heads/medusa_lm_head.safetensors", with_heads)
    for n, (choices, words) in enumerate([("{0}, {1}, {0, 0}, {0, 2}", None), ("{0}, {1, 0}", "medusa_choices are no tree")]):
        folder = tmp_path / str(n)
        folder.mkdir()
        s = Prepared("v0.19.0", with_values((with_heads, tokenizer), folder, "v0.19.0", {"decoding_mode": "medusa", "medusa_choices": choices}), folder)
        if words:
            assert s.process.wait(30) != 0 and words in s.log_text()
            s.stop()
            continue
        try:
            s.open()
            assert ask_ids(s) == ask_ids(servers("v0.19.0"))
            assert "beam_width is 2, medusa decoding takes 1" in str(ask_ids(s, beam_width=2))
        finally:
            s.close()


def test_eagle_decoding(engine, tmp_path, servers):
    """Heads of random weights in the engine's folder; trees by default, or of choices: the same tokens."""
    folder, tokenizer = engine
    with_heads = tmp_path / "engine"
    shutil.copytree(folder, with_heads)
    eagle_heads.Heads(eagle_heads.model_of(tokenizer), 1).write(with_heads / "eagle")
    for n, (choices, words) in enumerate([("", None), ("{0}, {1}, {0, 0}, {0, 2}", None), ("{0}, {1, 0}", "eagle_choices are no tree")]):
        folder = tmp_path / str(n)
        folder.mkdir()
        values = {"decoding_mode": "eagle", **({"eagle_choices": choices} if choices else {})}
        s = Prepared("v0.19.0", with_values((with_heads, tokenizer), folder, "v0.19.0", values), folder)
        if words:
            assert s.process.wait(30) != 0 and words in s.log_text()
            s.stop()
            continue
        try:
            s.open()
            assert ask_ids(s) == ask_ids(servers("v0.19.0"))
            assert "beam_width is 2, eagle decoding takes 1" in str(ask_ids(s, beam_width=2))
        finally:
            s.close()


def test_redrafter_decoding(engine, tmp_path, servers):
    """A recurrent drafter of random weights in the engine's folder: the same tokens."""
    folder, tokenizer = engine
    with_it = tmp_path / "engine"
    shutil.copytree(folder, with_it)
    redrafter_heads.Drafter(eagle_heads.model_of(tokenizer), 96).write(with_it / "redrafter")
    s = Prepared("v0.19.0", with_values((with_it, tokenizer), tmp_path, "v0.19.0", {"decoding_mode": "redrafter"}), tmp_path)
    try:
        s.open()
        assert ask_ids(s) == ask_ids(servers("v0.19.0"))
        assert "beam_width is 2, redrafter decoding takes 1" in str(ask_ids(s, beam_width=2))
    finally:
        s.close()


def test_length_penalty(servers):
    """With end tokens on the way, so that hypotheses of different lengths end."""
    s = servers("v0.19.0")
    beams = {"beam_width": 4, "request_output_len": 16, "exclude_input_in_output": True}
    ends = sorted({i for answer, _ in ask_ids(s, **beams) for beam in answer[0] for i in beam[2:8]})
    cases = [dict(beams, end_id=end) for end in ends]
    assert any(ask_ids(s, len_penalty=0.0, **c) != ask_ids(s, len_penalty=5.0, **c) for c in cases)
    more = {"beam_width": 4, "end_id": ends[len(ends) // 2]}
    for model in (ENSEMBLE, BLS):
        texts = [ask_texts(s, model, length_penalty=p, **dict(more, end_id=e)) for p in (0.0, 5.0) for e in ends]
        assert texts[:len(ends)] != texts[len(ends):]


def test_bias_by_words(servers):
    s = servers("v0.19.0")
    for model in (ENSEMBLE, BLS):
        base = ask_texts(s, model)
        assert ask_texts(s, model, embedding_bias_words=["z"], embedding_bias_weights=[90.0]) != base
        assert "one weight per phrase" in ask_texts(s, model, embedding_bias_words=["z", "y"], embedding_bias_weights=[90.0])


def test_rows_of_a_batch_are_numbered(servers):
    s = servers("v0.19.0")
    inputs = []
    for name, value in (("input_ids", PROMPTS[:2]), ("input_lengths", [[4], [4]]), ("request_output_len", [[4], [4]])):
        array = np.array(value, np.int32)
        t = grpc.InferInput(name, list(array.shape), "INT32")
        t.set_data_from_numpy(array)
        inputs.append(t)
    answers = [r for _, r in s.ask((inputs, "1")) if r.as_numpy("output_ids") is not None]
    assert sorted(int(r.as_numpy("batch_index")[0, 0]) for r in answers) == [0, 1]


def infer(s, model, **values):
    with grpc.InferenceServerClient(f"127.0.0.1:{s.grpc}") as c:
        return c.infer(model, [tensor(s, model, n, v) for n, v in values.items()])


def test_preprocessing_makes_every_output(servers):
    s = servers("v0.19.0")
    r = infer(s, PRE, QUERY=b"ab cd", REQUEST_OUTPUT_LEN=7, BAD_WORDS_DICT=[b"x"], STOP_WORDS_DICT=[b"y", b"z"],
              EMBEDDING_BIAS_WORDS=[b"q"], EMBEDDING_BIAS_WEIGHTS=[2.5], END_ID=3, PAD_ID=4, DECODER_QUERY=b"e",
              PROMPT_TABLE_EXTRA_ID=9)
    n = int(r.as_numpy("REQUEST_INPUT_LEN")[0, 0])
    assert r.as_numpy("INPUT_ID").shape == (1, n) == r.as_numpy("OUT_PROMPT_TABLE_EXTRA_IDS").shape
    assert r.as_numpy("BAD_WORDS_IDS").shape[:2] == (1, 2) and r.as_numpy("STOP_WORDS_IDS")[0, 1, :2].tolist() == [1, 2]
    assert r.as_numpy("REQUEST_OUTPUT_LEN").tolist() == [[7]] and r.as_numpy("EMBEDDING_BIAS").max() == 2.5
    assert (r.as_numpy("OUT_END_ID").tolist(), r.as_numpy("OUT_PAD_ID").tolist()) == ([[3]], [[4]])
    assert r.as_numpy("DECODER_INPUT_ID").shape[1] == int(r.as_numpy("REQUEST_DECODER_INPUT_LEN")[0, 0])


def test_preprocessing_passes_a_table_on(servers):
    r = infer(servers("v0.12.0"), PRE, QUERY=b"ab", REQUEST_OUTPUT_LEN=7, PROMPT_EMBEDDING_TABLE=TABLE)
    assert np.array_equal(r.as_numpy("OUT_PROMPT_EMBEDDING_TABLE")[0], TABLE)


@pytest.mark.parametrize("tag, name, value", [
    ("v0.12.0", "IMAGE", np.zeros((3, 224, 224), np.float16)), ("v0.19.0", "IMAGE_BYTES", np.zeros((1, 2, 2, 3), np.uint8)),
    ("v0.19.0", "IMAGE_URL", b"data:"), ("main", "IMAGES", [b"data:"]), ("v0.19.0", "VIDEO_BYTES", np.zeros((1, 2, 2, 3), np.uint8))])
def test_pictures_are_refused(servers, tag, name, value):
    with pytest.raises(InferenceServerException, match=f"{name} is not supported"):
        infer(servers(tag), PRE, QUERY=b"ab", REQUEST_OUTPUT_LEN=7, **{name: value})


def test_postprocessing_passes_on_what_it_gets(servers):
    s = servers("v0.13.0")
    values = {"CUM_LOG_PROBS": [-1.5], "OUTPUT_LOG_PROBS": [[-1.0, -0.5]], "CONTEXT_LOGITS": [[1.0, 2.0]],
              "GENERATION_LOGITS": [[[3.0, 4.0]]], "BATCH_INDEX": [6]}
    r = infer(s, POST, TOKENS_BATCH=[[72, 105, 33]], SEQUENCE_LENGTH=[2], **values)
    assert len(r.as_numpy("OUTPUT")) == 1
    for name, value in values.items():
        assert r.as_numpy("OUT_" + name).tolist() == [value]


def with_values(engine, folder, tag, values):
    """A repository whose parameters have these values; not started."""
    repositories.write(tag, folder / "repo", *engine)
    for path in (folder / "repo").glob("*/config.pbtxt"):
        text = path.read_text()
        for name, value in values.items():
            head = f'parameters {{ key: "{name}" value {{ string_value: "'
            at = text.find(head)
            if at >= 0:
                end = text.index('"', at + len(head))
                text = text[:at + len(head)] + value + text[end:]
        path.write_text(text)
    return folder / "repo"


class Prepared(Repository):
    def __init__(self, tag, repo, folder):
        self.tag, self.client = tag, None
        super(Repository, self).__init__(repo, folder)


@pytest.mark.parametrize("tag", sorted({FEATURES[LLM, "parameter", n] for n in NO_EFFECT}))
def test_parameters_that_change_nothing_say_so(engine, tmp_path, tag):
    names = [n for n in NO_EFFECT if FEATURES[LLM, "parameter", n] == tag]
    s = Prepared(tag, with_values(engine, tmp_path, tag, {n: NO_EFFECT[n] for n in names}), tmp_path)
    try:
        s.open()
        for name in names:
            told = [x for x in s.log_text().splitlines() if name in x]
            assert len(told) == 1 and "has no effect" in told[0], (name, told)
    finally:
        s.close()


@pytest.mark.parametrize("name", list(REFUSE))
def test_parameters_that_are_refused(engine, tmp_path, name):
    s = Prepared("v0.19.0", with_values(engine, tmp_path, "v0.19.0", {name: REFUSE[name]}), tmp_path)
    assert s.process.wait(30) != 0
    assert name in s.log_text() and "not supported by this version" in s.log_text()
    s.stop()


def test_the_longest_queue_that_a_configuration_can_have(engine, tmp_path):
    repo = with_values(engine, tmp_path, "v0.19.0", {})
    config = repo / "tensorrt_llm/config.pbtxt"
    config.write_text(config.read_text() + "dynamic_batching { default_queue_policy { max_queue_size: 4294967295 } }\n")
    s = Prepared("v0.19.0", repo, tmp_path)
    try:
        assert not isinstance(ask_ids(s.open()), str)
    finally:
        s.close()


def test_an_attention_window_changes_long_answers(engine, tmp_path):
    answers = []
    for i, values in enumerate(({}, {"max_attention_window_size": "6"}, {"max_attention_window_size": "6", "sink_token_length": "2"},
                                {"max_attention_window_size": "6,64"})):  # layers in turns
        folder = tmp_path / str(i)
        folder.mkdir()
        s = Prepared("v0.19.0", with_values(engine, folder, "v0.19.0", values), folder)
        try:
            answers.append(str(ask_ids(s.open(), request_output_len=24)))
        finally:
            s.close()
    assert len(set(answers)) == 4


def test_the_window_s_older_name(engine, tmp_path):
    answers = {}
    for tag, values in (("v0.6.1", {}), ("v0.6.1", {"max_kv_cache_length": "6"}), ("v0.7.2", {"max_attention_window_size": "6"})):
        folder = tmp_path / str(len(answers))
        folder.mkdir()
        s = Prepared(tag, with_values(engine, folder, tag, values), folder)
        try:
            answers[len(answers)] = s.open().ask((s.inputs(n_new=24), "1"))[0][1].as_numpy("output_ids").tolist()
        finally:
            s.close()
    assert answers[0] != answers[1] == answers[2]


def test_so_many_sequences_are_in_a_step(engine, tmp_path):
    s = Prepared("v0.7.2", with_values(engine, tmp_path, "v0.7.2", {"max_num_sequences": "2"}), tmp_path)
    try:
        assert all(name for name, _ in s.open().ask(*((s.inputs(), str(i)) for i in range(8))))
        assert 'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 2\n' in s.metrics_text()
    finally:
        s.close()


def test_log_probabilities_of_the_whole_distribution(engine, tmp_path, servers):
    s = Prepared("v0.19.0", with_values(engine, tmp_path, "v0.19.0", {"normalize_log_probs": "false"}), tmp_path)

    def first(server):
        answers = server.ask((server.inputs(return_log_probs=True), "1"))
        return [r for _, r in answers if r.as_numpy("output_log_probs") is not None][0].as_numpy("output_log_probs")

    try:
        assert (first(s.open()) < 0).all() and (first(servers("v0.19.0")) == 0).all()
    finally:
        s.close()
