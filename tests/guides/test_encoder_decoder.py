# SPDX-License-Identifier: Apache-2.0
"""docs/encoder_decoder.md: two checkpoints and two engines, the five models, curl, the client, a data set, streaming; and
examples/enc_dec. Stand-ins for t5-small and bart-base whose answers are transformers' (tests/model/encdec_texts.json)."""
import json
import sys

import pytest

from guide import ROOT
from test_entry_points import python
from test_guides import check

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import encdec  # noqa: E402

NAMES = {"t5": "t5-small", "bart": "bart-base"}
TEXTS = json.loads((ROOT / "tests/model/encdec_texts.json").read_text())["models"]
PRECISION = "float32"  # of the guide: float16
N_CHECKED = 8          # first tokens: the guide's cache has 16 bits, the reference 32
CLIENT = f"{sys.executable} inflight_batcher_llm/client/inflight_batcher_llm_client.py"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    at = tmp_path_factory.mktemp("encdec")
    for kind, name in NAMES.items():
        encdec.write_folder(kind, at / name)
    return at


def exports(kind, folders):
    return f"""
        export MODEL_NAME={NAMES[kind]} MODEL_TYPE={kind} HF_MODEL_PATH={folders}/{NAMES[kind]}
        export UNIFIED_CKPT_PATH=$PWD/ckpt/$MODEL_NAME ENGINE_PATH=$PWD/engines/$MODEL_NAME INFERENCE_PRECISION={PRECISION}
        export TP_SIZE=1 MAX_BEAM_WIDTH=1 MAX_BATCH_SIZE=8 INPUT_LEN=256 OUTPUT_LEN=201
    """


def build(guide, kind, folders):
    fmha = "--context_fmha disable" if kind == "t5" else ""
    return guide.type(exports(kind, folders) + f"""
        python3 tensorrt_llm/examples/enc_dec/convert_checkpoint.py \\
        --model_type ${{MODEL_TYPE}} \\
        --model_dir ${{HF_MODEL_PATH}} \\
        --output_dir ${{UNIFIED_CKPT_PATH}} \\
        --dtype ${{INFERENCE_PRECISION}} \\
        --tp_size ${{TP_SIZE}}

        trtllm-build --checkpoint_dir ${{UNIFIED_CKPT_PATH}}/encoder \\
        --output_dir ${{ENGINE_PATH}}/encoder \\
        --kv_cache_type disabled \\
        --moe_plugin disable \\
        --max_beam_width ${{MAX_BEAM_WIDTH}} \\
        --max_input_len ${{INPUT_LEN}} \\
        --max_batch_size ${{MAX_BATCH_SIZE}} \\
        --gemm_plugin ${{INFERENCE_PRECISION}} \\
        --bert_attention_plugin ${{INFERENCE_PRECISION}} \\
        --gpt_attention_plugin ${{INFERENCE_PRECISION}} {fmha}

        trtllm-build --checkpoint_dir ${{UNIFIED_CKPT_PATH}}/decoder \\
        --output_dir ${{ENGINE_PATH}}/decoder \\
        --moe_plugin disable \\
        --max_beam_width ${{MAX_BEAM_WIDTH}} \\
        --max_batch_size ${{MAX_BATCH_SIZE}} \\
        --gemm_plugin ${{INFERENCE_PRECISION}} \\
        --bert_attention_plugin ${{INFERENCE_PRECISION}} \\
        --gpt_attention_plugin ${{INFERENCE_PRECISION}} \\
        --max_input_len 1 \\
        --max_encoder_input_len ${{INPUT_LEN}} \\
        --max_seq_len ${{OUTPUT_LEN}} {fmha}
    """)


def repository(guide, kind, folders, decoupled):
    guide.type(exports(kind, folders) + f"""
        cp all_models/inflight_batcher_llm/ enc_dec_ifb -r
        python3 tools/fill_template.py -i enc_dec_ifb/tensorrt_llm/config.pbtxt triton_backend:tensorrtllm,triton_max_batch_size:${{MAX_BATCH_SIZE}},decoupled_mode:{decoupled},max_beam_width:${{MAX_BEAM_WIDTH}},engine_dir:${{ENGINE_PATH}}/decoder,encoder_engine_dir:${{ENGINE_PATH}}/encoder,kv_cache_free_gpu_mem_fraction:0.8,cross_kv_cache_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:False,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,enable_chunked_context:False,max_queue_size:0,encoder_input_features_data_type:TYPE_FP16,logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i enc_dec_ifb/preprocessing/config.pbtxt tokenizer_dir:${{HF_MODEL_PATH}},triton_max_batch_size:${{MAX_BATCH_SIZE}},preprocessing_instance_count:1
        python3 tools/fill_template.py -i enc_dec_ifb/postprocessing/config.pbtxt tokenizer_dir:${{HF_MODEL_PATH}},triton_max_batch_size:${{MAX_BATCH_SIZE}},postprocessing_instance_count:1
        python3 tools/fill_template.py -i enc_dec_ifb/ensemble/config.pbtxt triton_max_batch_size:${{MAX_BATCH_SIZE}},logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i enc_dec_ifb/tensorrt_llm_bls/config.pbtxt triton_max_batch_size:${{MAX_BATCH_SIZE}},decoupled_mode:{decoupled},bls_instance_count:1,accumulate_tokens:False,logits_datatype:TYPE_FP32
    """)
    guide.launch("python3 scripts/launch_triton_server.py --world_size 1 --model_repo=enc_dec_ifb/")


def client(guide, folders, kind, *words):
    """The client's line with the ids of a prompt whose answer is known, and how many to ask for."""
    want = TEXTS[kind]["short"]["greedy"]["tokens"][:N_CHECKED]
    ids = ",".join(map(str, encdec.PROMPTS["short"]))
    said, _ = guide.type(f"""
        echo {ids} > ids.csv; echo {','.join(map(str, want))} > want.csv
        {CLIENT} -u localhost:{guide.grpc} --input-tokens-csv ids.csv --output-tokens-csv want.csv --check-output \\
            --request-output-len {len(want)} --exclude-input-in-output --end-id 330 --pad-id 0 --beam-width 1 {' '.join(words)}
    """)
    return said


@pytest.mark.parametrize("kind", list(NAMES))
def test_the_guide_of_v0_11_to_v0_19(kind, guide, folders):
    pytest.importorskip("tritonclient.grpc")
    (guide.folder / "inflight_batcher_llm").symlink_to(ROOT / "inflight_batcher_llm")
    said, _ = build(guide, kind, folders)
    assert "Total time of converting checkpoints: 00:00:" in said
    assert said.count("Total time of building all engines: 00:00:") == 2
    repository(guide, kind, folders, "False")
    question = {"text_input": "Summarize the following news article: (CNN)Following last year", "max_tokens": 24,
                "bad_words": "", "stop_words": ""}
    check(guide.generate(question))
    check(guide.generate(question, "tensorrt_llm_bls"), "tensorrt_llm_bls")
    words = {**question, "bad_words": ["drummer", "hometown"], "stop_words": ["Tickets", "sale"]}
    check(guide.generate(words))
    said = client(guide, folders, kind)
    assert "Got completed request" in said and "PASS!" in said and "Output token matching rate: 1.0" in said, said
    said, _ = guide.type(f"""{CLIENT} -u localhost:{guide.grpc} --text "translate English to German: This is good" \\
        --request-output-len 20 --exclude-input-in-output --tokenizer-dir {folders}/{NAMES[kind]} --beam-width 1""")
    assert said.startswith("=========\nUsing pad_id:  0\nUsing end_id:  1\nInput sequence:  [")
    assert "Input: translate English to German: This is good\nOutput beam 0: " in said and "\nOutput sequence:  [" in said
    data = [{"input": f"line {i}", "instruction": "Summarize", "output": "one two three"} for i in range(5)]
    (guide.folder / "simple_data.json").write_text(json.dumps(data))
    said, _ = guide.type(f"{sys.executable} tools/inflight_batcher_llm/end_to_end_test.py -u localhost:{guide.http} "
                         "--dataset simple_data.json --max-input-len 500")
    assert "[INFO] Functionality test succeed." in said and "[INFO] Total Latency: " in said


def test_decoupled_mode_of_the_guide(guide, folders):
    pytest.importorskip("tritonclient.grpc")
    (guide.folder / "inflight_batcher_llm").symlink_to(ROOT / "inflight_batcher_llm")
    build(guide, "t5", folders)
    repository(guide, "t5", folders, "True")
    said = client(guide, folders, "t5", "--streaming")
    assert "PASS!" in said and said.count("\n[") >= N_CHECKED, said


def test_run_py_of_both_engines(guide, folders):
    """examples/enc_dec/run.py and examples/run.py name the folder of both engines."""
    pytest.importorskip("numpy")
    build(guide, "bart", folders)
    words = ["--engine_dir", guide.folder / "engines/bart-base", "--engine_name", "bart-base", "--model_name", folders / "bart-base",
             "--max_new_token=8", "--num_beams=1", "--compare_hf_fp32"]
    said = python(ROOT / "examples/enc_dec/run.py", *words).stdout
    assert "BOS=2, PAD=0, EOS=1\ninput text:  ['translate English to German: The house is wonderful.'," in said
    assert "TRT-LLM output text:  [" in said and f"Precision: {PRECISION}" in said
    ours, theirs = (next(line for line in said.splitlines() if line.startswith(f"{who} output_ids")).split(":", 1)[1]
                    for who in ("TRT-LLM", "HF"))
    assert ours == theirs
    assert said.endswith("TRT-LLM results match HF FP32 results with literal match rate 1.0\n")
    said = python(ROOT / "examples/run.py", "--engine_dir", guide.folder / "engines/bart-base", "--tokenizer_dir",
                  folders / "bart-base", "--max_output_len", 8, "--input_text",
                  "translate English to German: The house is wonderful.").stdout
    assert "Output [Text 0 Beam 0]: " in said


def test_run_py_says_what_is_missing(folders, tmp_path):
    done = python(ROOT / "examples/enc_dec/run.py", "--engine_dir", tmp_path, "--model_name", folders / "t5-small", status=1)
    assert done.stderr.startswith("run.py: ") and "decoder/config.json" in done.stderr


def test_only_an_encoder_does_without_a_cache(guide, folders):
    said = guide.type(f"""
        nereid convert {folders}/t5-small --output_dir ckpt
        trtllm-build --checkpoint_dir ckpt/decoder --output_dir engine --kv_cache_type disabled
    """, status=1)[1]
    assert "--kv_cache_type disabled is not supported" in said
