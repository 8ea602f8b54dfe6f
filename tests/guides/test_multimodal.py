# SPDX-License-Identifier: Apache-2.0
"""docs/multimodal.md with small LLaVA, Gemma 3 and Qwen2-VL models: the engine with its tower, the repository, the client. The answers are
those of /v1/chat/completions, which tests/e2e/test_vision.py compares with transformers."""
import base64
import json
import sys

import pytest

from guide import ROOT

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import vision  # noqa: E402

CLIENT = f"{sys.executable} tools/multimodal/client.py"
TEXT = "Question: which city is this? Answer:"
N_TOKENS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    at = tmp_path_factory.mktemp("sees")
    for kind in ("clip", "gemma3", "qwen2_vl"):
        vision.write_folder(at / kind, kind)
    for i, spec in enumerate(vision.PICTURES):
        (at / f"{i}.png").write_bytes(vision.png(vision.pixels(*spec)))
    return at


def prepare(guide, model, family, decoupled):
    guide.type(f"""
        export HF_MODEL_PATH={model} UNIFIED_CKPT_PATH=tmp/trt_models/llava/fp16/1-gpu ENGINE_PATH=$PWD/tmp/trt_engines/llava/fp16/1-gpu
        export MULTIMODAL_ENGINE_PATH=$ENGINE_PATH ENCODER_INPUT_FEATURES_DTYPE=TYPE_FP16
        python3 tensorrt_llm/examples/{family}/convert_checkpoint.py \\
            --model_dir ${{HF_MODEL_PATH}} \\
            --output_dir ${{UNIFIED_CKPT_PATH}} \\
            --dtype float16
        trtllm-build \\
            --checkpoint_dir ${{UNIFIED_CKPT_PATH}} \\
            --output_dir ${{ENGINE_PATH}} \\
            --gemm_plugin float16 \\
            --max_batch_size 8 \\
            --max_input_len 224 \\
            --max_seq_len 250 \\
            --max_multimodal_len 4608
        cp all_models/inflight_batcher_llm/ multimodal_ifb -r
        cp all_models/multimodal/ensemble multimodal_ifb -r
        python3 tools/fill_template.py -i multimodal_ifb/tensorrt_llm/config.pbtxt triton_backend:tensorrtllm,triton_max_batch_size:8,decoupled_mode:{decoupled},max_beam_width:1,engine_dir:${{ENGINE_PATH}},enable_kv_cache_reuse:False,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,enable_chunked_context:False,encoder_input_features_data_type:${{ENCODER_INPUT_FEATURES_DTYPE}},logits_datatype:TYPE_FP32,cross_kv_cache_fraction:0.5
        python3 tools/fill_template.py -i multimodal_ifb/preprocessing/config.pbtxt tokenizer_dir:${{HF_MODEL_PATH}},triton_max_batch_size:8,preprocessing_instance_count:1,multimodal_model_path:${{MULTIMODAL_ENGINE_PATH}},engine_dir:${{ENGINE_PATH}},max_num_images:1,max_queue_delay_microseconds:20000
        python3 tools/fill_template.py -i multimodal_ifb/postprocessing/config.pbtxt tokenizer_dir:${{HF_MODEL_PATH}},triton_max_batch_size:8,postprocessing_instance_count:1
        python3 tools/fill_template.py -i multimodal_ifb/ensemble/config.pbtxt triton_max_batch_size:8,logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i multimodal_ifb/tensorrt_llm_bls/config.pbtxt triton_max_batch_size:8,decoupled_mode:{decoupled},bls_instance_count:1,accumulate_tokens:False,tensorrt_llm_model_name:tensorrt_llm,multimodal_encoders_name:multimodal_encoders,logits_datatype:TYPE_FP32
    """)
    guide.launch("python3 scripts/launch_triton_server.py --world_size 1 --model_repo=multimodal_ifb/ --tensorrt_llm_model_name "
                 "tensorrt_llm,multimodal_encoders --multimodal_gpu0_cuda_mem_pool_bytes 300000000")


def post(guide, path, body):
    (guide.folder / "body.json").write_text(json.dumps(body))
    return json.loads(guide.type(f"curl -s -X POST localhost:{guide.http}/{path} -d @body.json")[0])


def ask(guide, model="ensemble", **more):
    return post(guide, f"v2/models/{model}/generate", {"max_tokens": N_TOKENS, **more})


def url(path):
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def pictured(guide, prompt, *paths):
    """The answer to a prompt as it is, with pictures as tensorrt_llm's parameter: what the front ends send."""
    images = ",".join(base64.b64encode(p.read_bytes()).decode() for p in paths)
    return ask(guide, text_input=prompt, images=images)["text_output"]


def run(guide, *words):
    quoted = " ".join(f"'{w}'" for w in map(str, words))
    said, _ = guide.type(f"{CLIENT} -u localhost:{guide.grpc} --request-output-len {N_TOKENS} {quoted}")
    assert "\n[INFO] Latency: " in said, said
    return said


def test_llava_of_the_guide(guide, folders):
    pytest.importorskip("tritonclient.grpc")
    prepare(guide, folders / "clip", "llama", "False")
    one, other = folders / "0.png", folders / "2.png"
    want = pictured(guide, f"USER:\n<image>{TEXT} ASSISTANT:", one)
    assert want != pictured(guide, f"USER:\n<image>{TEXT} ASSISTANT:", other)
    for words in ([], ["--use_bls"], ["--prompt_table_extra_id", 1]):
        said = run(guide, "--text", TEXT, "--image", one, "--model_type", "llava", *words)
        assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
    said = run(guide, "--text", "<image> and <image> differ", "--image", f"{one},{url(other)}", "--model_type", "llava")
    assert said.startswith(f"[beam 0 ]:\n{pictured(guide, '<image> and <image> differ', one, other)}\n[INFO]")
    pixels = vision.pixels(*vision.PICTURES[0])
    for model in ("ensemble", "tensorrt_llm_bls"):
        assert ask(guide, model, text_input=TEXT, image_url_input=url(one))["text_output"] == want
        for array in (pixels, pixels.transpose(2, 0, 1)):
            tensor = {"name": "image_bytes_input", "datatype": "UINT8", "shape": [1, 1, *array.shape], "data": array.ravel().tolist()}
            text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [TEXT]}
            n = {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [N_TOKENS]}
            answer = post(guide, f"v2/models/{model}/infer", {"inputs": [tensor, text, n]})
            assert [o["data"] for o in answer["outputs"] if o["name"] == "text_output"] == [[want]], answer
    assert ask(guide, text_input="no picture")["text_output"]
    for more, part in (({"image_url_input": "http://example.com/a.png"}, "not fetched from addresses"),
                       ({"image_url_input": "data:image/png;base64,!!!!"}, "IMAGE_URL is no base64"),
                       ({"image_url_input": "data:image/png;base64,aGVsbG8="}, "picture 0"),
                       ({"image_url_input": [url(one)] * 65}, "IMAGE_URL has 65 pictures a row, expected 1 to 64"),
                       ({"image_url_input": url(one), "text_input": "<image><image>"}, "has 2 places for pictures")):
        answer = ask(guide, **{"text_input": TEXT, **more})
        assert part in answer["error"], answer


def test_decoupled_mode_of_the_guide(guide, folders):
    pytest.importorskip("tritonclient.grpc")
    prepare(guide, folders / "clip", "llama", "True")
    for words in ([], ["--use_bls"]):
        said = run(guide, "--text", TEXT, "--image", folders / "0.png", "--model_type", "llava", "--streaming", *words)
        assert said.startswith("[beam 0 ]:  ") and said.count("[beam 0 ]:  ") > 3, said
    assert "multimodal_encoders_name has no effect" in (guide.folder / "server.log").read_text()


def test_gemma_takes_pictures_at_its_own_token(guide, folders):
    pytest.importorskip("tritonclient.grpc")
    prepare(guide, folders / "gemma3", "gemma", "False")
    prompt = "<start_of_image><image_soft_token><end_of_image> the quick fox"
    want = pictured(guide, prompt, folders / "0.png")
    assert want != pictured(guide, prompt, folders / "3.png")
    said = run(guide, "--text", prompt, "--image", folders / "0.png", "--model_type", "gemma3")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), said
    assert "has 0 places for pictures" in ask(guide, text_input=TEXT, image_url_input=url(folders / "0.png"))["error"]


def test_models_that_are_not_served_are_named(guide):
    pytest.importorskip("tritonclient.grpc")
    for words, part in (("--model_type blip2", "--model_type blip2 is not supported by this server; known: llava, gemma3"),
                        ("--model_type llava --video a.mp4", "--video is not supported")):
        assert part in guide.type(f"{CLIENT} {words}", status=2)[1]


def test_qwen_is_asked_in_the_form_of_its_chats(guide, folders):
    pytest.importorskip("tritonclient.grpc")
    prepare(guide, folders / "qwen2_vl", "qwen", "False")
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    one, other = folders / "0.png", folders / "2.png"
    chat = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{{}}{TEXT}<|im_end|>\n<|im_start|>assistant\n")
    want = pictured(guide, chat.format(picture), one)
    assert want != pictured(guide, chat.format(picture), other)
    said = run(guide, "--text", TEXT, "--image", one, "--model_type", "qwen2_vl")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
    want = pictured(guide, chat.format(2 * picture), one, other)
    said = run(guide, "--text", TEXT, "--image", f"{one},{other}", "--model_type", "qwen2_vl")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
