# SPDX-License-Identifier: Apache-2.0
"""docs/whisper.md: two engines, the repository of whisper_bls and tensorrt_llm, the client. The stand-in's text is
transformers' (tests/model/whisper_texts.json)."""
import json
import shutil
import struct
import sys

import pytest

from guide import ROOT

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import whisper  # noqa: E402

HEARD = json.loads((ROOT / "tests/model/whisper_texts.json").read_text())
VOCAB = whisper.MODELS["openai"]["vocab_size"]
CLIENT = f"{sys.executable} tools/whisper/client.py"
FILES = "tokenizer.json tokenizer_config.json generation_config.json preprocessor_config.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("whisper")
    whisper.write_folder("whisper", at / "model")
    (at / "talk.wav").write_bytes(whisper.wav())
    return at


def prepare(guide, folder, decoupled, zero_pad="false", n_mels=80, tokenizer=True, convert=None):
    """The guide's commands. Of its downloads those for the tokenizer are files of the model's folder here."""
    copy = f"cd {folder}/model; cp {FILES} $OLDPWD/model_repo_whisper/whisper_bls/1; cd $OLDPWD" if tokenizer else ""
    said, _ = guide.type(f"""
        INFERENCE_PRECISION=float32
        MAX_BEAM_WIDTH=4
        MAX_BATCH_SIZE=64
        checkpoint_dir=tllm_checkpoint
        output_dir=$PWD/whisper_large_v3_max_batch_${{MAX_BATCH_SIZE}}
        python3 examples/whisper/convert_checkpoint.py {convert or f"--model_dir {folder}/model"} --output_dir ${{checkpoint_dir}}
        trtllm-build --checkpoint_dir ${{checkpoint_dir}}/encoder \\
                    --output_dir ${{output_dir}}/encoder \\
                    --moe_plugin disable \\
                    --max_batch_size ${{MAX_BATCH_SIZE}} \\
                    --gemm_plugin disable \\
                    --bert_attention_plugin ${{INFERENCE_PRECISION}} \\
                    --max_input_len 3000 --max_seq_len=3000
        trtllm-build  --checkpoint_dir ${{checkpoint_dir}}/decoder \\
                    --output_dir ${{output_dir}}/decoder \\
                    --moe_plugin disable \\
                    --max_beam_width ${{MAX_BEAM_WIDTH}} \\
                    --max_batch_size ${{MAX_BATCH_SIZE}} \\
                    --max_seq_len 54 \\
                    --max_input_len 14 \\
                    --max_encoder_input_len 3000 \\
                    --gemm_plugin ${{INFERENCE_PRECISION}} \\
                    --bert_attention_plugin ${{INFERENCE_PRECISION}} \\
                    --gpt_attention_plugin ${{INFERENCE_PRECISION}}
        cp all_models/whisper/ model_repo_whisper -r
        cp all_models/inflight_batcher_llm/tensorrt_llm model_repo_whisper -r
        {copy}
        BACKEND=tensorrtllm
        DECOUPLED_MODE={decoupled}
        DECODER_ENGINE_PATH=${{output_dir}}/decoder
        ENCODER_ENGINE_PATH=${{output_dir}}/encoder
        MAX_TOKENS_IN_KV_CACHE=24000
        BATCHING_STRATEGY=inflight_fused_batching
        KV_CACHE_FREE_GPU_MEM_FRACTION=0.5
        EXCLUDE_INPUT_IN_OUTPUT=True
        TRITON_MAX_BATCH_SIZE=8
        MAX_QUEUE_DELAY_MICROSECONDS=0
        MAX_BEAM_WIDTH=1
        MAX_QUEUE_SIZE="0"
        ENABLE_KV_CACHE_REUSE=false
        ENABLE_CHUNKED_CONTEXT=false
        CROSS_KV_CACHE_FRACTION="0.5"
        n_mels={n_mels}
        zero_pad={zero_pad}
        python3 tools/fill_template.py -i model_repo_whisper/tensorrt_llm/config.pbtxt triton_backend:${{BACKEND}},engine_dir:${{DECODER_ENGINE_PATH}},encoder_engine_dir:${{ENCODER_ENGINE_PATH}},decoupled_mode:${{DECOUPLED_MODE}},max_tokens_in_paged_kv_cache:${{MAX_TOKENS_IN_KV_CACHE}},max_attention_window_size:${{MAX_ATTENTION_WINDOW_SIZE}},batch_scheduler_policy:${{BATCH_SCHEDULER_POLICY}},batching_strategy:${{BATCHING_STRATEGY}},kv_cache_free_gpu_mem_fraction:${{KV_CACHE_FREE_GPU_MEM_FRACTION}},exclude_input_in_output:${{EXCLUDE_INPUT_IN_OUTPUT}},triton_max_batch_size:${{TRITON_MAX_BATCH_SIZE}},max_queue_delay_microseconds:${{MAX_QUEUE_DELAY_MICROSECONDS}},max_beam_width:${{MAX_BEAM_WIDTH}},enable_kv_cache_reuse:${{ENABLE_KV_CACHE_REUSE}},normalize_log_probs:${{NORMALIZE_LOG_PROBS}},enable_chunked_context:${{ENABLE_CHUNKED_CONTEXT}},gpu_device_ids:${{GPU_DEVICE_IDS}},decoding_mode:${{DECODING_MODE}},max_queue_size:${{MAX_QUEUE_SIZE}},enable_context_fmha_fp32_acc:${{ENABLE_CONTEXT_FMHA_FP32_ACC}},cross_kv_cache_fraction:${{CROSS_KV_CACHE_FRACTION}},encoder_input_features_data_type:TYPE_FP16,logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i model_repo_whisper/whisper_bls/config.pbtxt engine_dir:${{ENCODER_ENGINE_PATH}},n_mels:$n_mels,zero_pad:$zero_pad,triton_max_batch_size:${{TRITON_MAX_BATCH_SIZE}},decoupled_mode:${{DECOUPLED_MODE}}
    """)
    return said


def launch(guide):
    guide.launch("python3 scripts/launch_triton_server.py --world_size 1 --model_repo=model_repo_whisper/ "
                 "--tensorrt_llm_model_name tensorrt_llm,whisper_bls --multimodal_gpu0_cuda_mem_pool_bytes 300000000")


def words_of(said):
    return [line for line in said.splitlines() if line.startswith("(0, ['foo'], [")]


def hear(guide, samples, lengths=None, prefix="", model="whisper_bls"):
    """The answer to JSON."""
    body = {"TEXT_PREFIX": prefix, "WAV": samples, **({} if lengths is None else {"WAV_LENS": lengths})}
    (guide.folder / "body.json").write_text(json.dumps(body))
    said, _ = guide.type(f"curl -s -X POST localhost:{guide.http}/v2/models/{model}/generate -d @body.json")
    return json.loads(said)


def samples():
    data = whisper.wav()[44:]
    return [x / 32768 for x in struct.unpack(f"<{len(data) // 2}h", data)]


def test_the_guide_of_v0_15_to_v0_19(guide, folder):
    pytest.importorskip("tritonclient.grpc.aio")
    assert "Total time of converting checkpoints: 00:00:" in prepare(guide, folder, "false")
    launch(guide)
    said, _ = guide.type(f"{CLIENT} --server-port {guide.grpc} --audio-path {folder}/talk.wav")
    heard = str((0, ["foo"], HEARD["heard"]["text"].split()))
    assert words_of(said) == [heard], said
    for line in ("task-0: 0/1\n", "RTF: ", "total_duration: 2.000 seconds\n(0.00 hours)\nprocessing time: ", "latency_variance: ",
                 "latency_50_percentile_ms: ", "latency_99_percentile_ms: ", "average_latency_ms: "):
        assert line in said, said
    said, _ = guide.type(f"{CLIENT} --server-port {guide.grpc} --audio-path {folder}/talk.wav --num-tasks 5")
    assert words_of(said) == [heard] * 5, said
    assert hear(guide, samples())["TRANSCRIPTS"] == HEARD["heard"]["text"].strip()
    assert hear(guide, samples() + [0.5] * 9, len(samples()))["TRANSCRIPTS"] == HEARD["heard"]["text"].strip()
    other = hear(guide, samples(), prefix="<|startofprev|> of the<|startoftranscript|><|de|><|translate|><|notimestamps|>")
    assert other["TRANSCRIPTS"] and other["TRANSCRIPTS"] != HEARD["heard"]["text"].strip()
    for got, part in ((hear(guide, samples()[:10], 11), "WAV_LENS is 11, expected 1 to 10"),
                      (hear(guide, [0.0] * 480001), "WAV has 480001 samples of sound, expected 1 to 480000"),
                      (hear(guide, samples()[:10], prefix=" of" * 30), "TEXT_PREFIX has 30 tokens, expected 1 to 23"),
                      (hear(guide, samples()[:10], prefix="x" * 20000), "TEXT_PREFIX has 20000 bytes")):
        assert part in got["error"], got


def test_decoupled_mode_of_the_guide(guide, folder):
    """Each answer has the text so far; features of the sound alone, which another model of them than the reference hears."""
    pytest.importorskip("tritonclient.grpc.aio")
    prepare(guide, folder, "true", zero_pad="true")
    launch(guide)
    said, _ = guide.type(f"{CLIENT} --server-port {guide.grpc} --audio-path {folder}/talk.wav --streaming")
    assert len(words_of(said)) == 1, said
    body = {"TEXT_PREFIX": "", "WAV": samples()}
    (guide.folder / "body.json").write_text(json.dumps(body))
    said, _ = guide.type(f"curl -s -X POST localhost:{guide.http}/v2/models/whisper_bls/generate_stream -d @body.json")
    texts = [json.loads(line[6:])["TRANSCRIPTS"] for line in said.splitlines() if line.startswith("data: ")]
    assert len(texts) > 3 and all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:])), texts


def test_tokens_of_the_configuration_are_not_said(guide, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    whisper.write_folder("whisper", tmp_path / "other/model", suppress_tokens=whisper.SUPPRESSED,
                         begin_suppress_tokens=whisper.FIRST_SUPPRESSED)
    prepare(guide, tmp_path / "other", "false")
    launch(guide)
    assert hear(guide, samples())["TRANSCRIPTS"] == HEARD["suppressed"]["text"].strip()


@pytest.fixture
def openai(guide):
    """assets/NAME.pt beside another one, and the same model as a Hugging Face folder."""
    whisper.write_folder("openai", guide.folder / "hf", eos_token_id=whisper.OPENAI_TEXT, no_timestamps_token_id=VOCAB - 1502,
                         decoder_start_token_id=whisper.OPENAI_TEXT + 1, max_length=448)
    (guide.folder / "assets").mkdir()
    for name in ("tiny", "large-v3-turbo"):
        whisper.write_openai("openai", guide.folder / f"assets/{name}.pt")
    whisper.write_tiktoken(guide.folder / "assets/multilingual.tiktoken")
    return guide


def test_openai_s_file_becomes_the_same_checkpoint(openai):
    """To the byte."""
    for name, dims in (("no_dims", {"n_mels": None}), ("wide", {"n_text_state": 47}), ("far", {"n_audio_ctx": 1 << 20})):
        whisper.write_openai("openai", openai.folder / f"{name}.pt", **dims)
    said, _ = openai.type("""
        cd tensorrt_llm/examples/whisper
        python3 convert_checkpoint.py --model_dir $OUT/assets --output_dir $OUT/openai --model_name large-v3-turbo
        python3 convert_checkpoint.py --model_dir $OUT/hf --output_dir $OUT/same
    """, OUT=str(openai.folder))
    assert said.count("Total time of converting checkpoints: 00:00:") == 2
    openai.type("diff -r openai same")
    for name, part in (("no_dims", "no number 'dims/n_mels'"), ("wide", "n_text_state is 47, expected n_audio_state, 48"),
                       ("far", "dims/n_audio_ctx is 1048576, expected 1 to 65536"), ("assets", "holds 2 .pt files; give one itself")):
        file = name if name == "assets" else f"{name}.pt"
        _, complained = openai.type(f"nereid convert --model_dir={file} --output_dir=none", status=1)
        assert part in complained


def test_openai_s_tokenizer_tells_the_same_text(openai, folder):
    """multilingual.tiktoken in whisper_bls/1, as the guide downloads it, beside a model with the Hugging Face folder's tokenizer."""
    prepare(openai, folder, "false", tokenizer=False, convert="--model_dir assets --model_name large-v3-turbo")
    openai.type("""
        cp -r model_repo_whisper/whisper_bls model_repo_whisper/whisper_hf
        cp assets/multilingual.tiktoken model_repo_whisper/whisper_bls/1
        cp hf/*.json model_repo_whisper/whisper_hf/1
        sed -i 's/^name: "whisper_bls"/name: "whisper_hf"/' model_repo_whisper/whisper_hf/config.pbtxt
    """)
    launch(openai)
    one, other = (hear(openai, samples(), model=model)["TRANSCRIPTS"] for model in ("whisper_bls", "whisper_hf"))
    assert len(one.split()) > 3 and one == other, (one, other)


def test_a_tokenizer_that_is_missing_is_named(guide, folder):
    prepare(guide, folder, "false", tokenizer=False)
    guide.type(f"tritonserver --model-repository=model_repo_whisper --http-port={guide.http} --grpc-port={guide.grpc} "
               f"--metrics-port={guide.metrics} >server.log 2>&1", status=1)
    assert "there is no tokenizer: set the parameter tokenizer_dir" in (guide.folder / "server.log").read_text()
