# SPDX-License-Identifier: Apache-2.0
"""docs/multimodal.md with small models: the engine, the tower in a folder of its own, the repository with multimodal_encoders, the client.
The answers are those that tensorrt_llm gives when its engine sees the pictures, which tests/e2e/test_vision.py compares with
transformers."""
import base64
import json
import re
import sys

import numpy as np
import pytest

grpcclient = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

from guide import ROOT

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import vision  # noqa: E402

CLIENT = f"{sys.executable} tools/multimodal/client.py"
TEXT = "Question: which city is this? Answer:"
N_TOKENS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    at = tmp_path_factory.mktemp("sees")
    for kind in ("clip", "gemma3", "qwen2_vl", "qwen3_vl", "llava_onevision", "blip2", "vila", "qwen_vl", "cogvlm", "kosmos2", "fuyu"):
        vision.write_folder(at / kind, kind)
    for i, spec in enumerate(vision.PICTURES):
        (at / f"{i}.png").write_bytes(vision.png(vision.pixels(*spec)))
    return at


# How the folder of the tower is called and made; encoders of v0.17 have no queue.
FORMS = {"v0.19": ("build_multimodal_engine.py", "multimodal_encoder", "multimodal_model_path", ",max_queue_delay_microseconds:20000"),
         "v0.17": ("build_visual_engine.py", "vision_encoder", "visual_model_path", "")}


def prepare(guide, model, family, decoupled, model_type="llava", of="v0.19"):
    program, folder, key, queue = FORMS[of]
    guide.type(f"""
        export HF_MODEL_PATH={model} UNIFIED_CKPT_PATH=tmp/trt_models/llava/fp16/1-gpu ENGINE_PATH=$PWD/tmp/trt_engines/llava/fp16/1-gpu
        export MULTIMODAL_ENGINE_PATH=$PWD/tmp/trt_engines/{model.name}/{folder} ENCODER_INPUT_FEATURES_DTYPE=TYPE_FP16
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
        python3 tensorrt_llm/examples/multimodal/{program} --model_path ${{HF_MODEL_PATH}} --model_type {model_type} --max_batch_size 8
        cp all_models/inflight_batcher_llm/ multimodal_ifb -r
        cp all_models/multimodal/ensemble multimodal_ifb -r
        cp all_models/multimodal/multimodal_encoders multimodal_ifb -r
        python3 tools/fill_template.py -i multimodal_ifb/tensorrt_llm/config.pbtxt triton_backend:tensorrtllm,triton_max_batch_size:8,decoupled_mode:{decoupled},max_beam_width:1,engine_dir:${{ENGINE_PATH}},enable_kv_cache_reuse:False,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,enable_chunked_context:False,encoder_input_features_data_type:${{ENCODER_INPUT_FEATURES_DTYPE}},logits_datatype:TYPE_FP32,cross_kv_cache_fraction:0.5
        python3 tools/fill_template.py -i multimodal_ifb/preprocessing/config.pbtxt tokenizer_dir:${{HF_MODEL_PATH}},triton_max_batch_size:8,preprocessing_instance_count:1,{key}:${{MULTIMODAL_ENGINE_PATH}},engine_dir:${{ENGINE_PATH}},max_num_images:1{queue}
        python3 tools/fill_template.py -i multimodal_ifb/postprocessing/config.pbtxt tokenizer_dir:${{HF_MODEL_PATH}},triton_max_batch_size:8,postprocessing_instance_count:1
        python3 tools/fill_template.py -i multimodal_ifb/ensemble/config.pbtxt triton_max_batch_size:8,logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i multimodal_ifb/tensorrt_llm_bls/config.pbtxt triton_max_batch_size:8,decoupled_mode:{decoupled},bls_instance_count:1,accumulate_tokens:False,tensorrt_llm_model_name:tensorrt_llm,multimodal_encoders_name:multimodal_encoders,logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i multimodal_ifb/multimodal_encoders/config.pbtxt triton_max_batch_size:8,{key}:${{MULTIMODAL_ENGINE_PATH}},encoder_input_features_data_type:${{ENCODER_INPUT_FEATURES_DTYPE}},hf_model_path:${{HF_MODEL_PATH}}{queue}
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


def run_py(guide, want, model, image, folders=None, more=""):
    """examples/multimodal/run.py prints the answer that the server gives behind the question."""
    new = re.split("ASSISTANT:|assistant\n", want)[-1].strip()
    folders = folders or (f"--visual_engine_dir tmp/trt_engines/{model.name}/multimodal_encoder "
                          "--llm_engine_dir tmp/trt_engines/llava/fp16/1-gpu")
    said, _ = guide.type(f"python3 tensorrt_llm/examples/multimodal/run.py --max_new_tokens {N_TOKENS} --input_text '{TEXT}' "
                         f"--hf_model_dir {model} {folders} --image_path {image} {more}")
    lines = [line.split(" [TRT-LLM] [I] ")[-1] for line in said.splitlines()]
    assert lines[0] == lines[-1] == 57 * "-" and lines[2] == f"[Q] ['{TEXT}']", said
    answers = [line for line in lines if line.startswith("[A]: ")]
    assert answers and set(answers) == {f"[A]: {[new]}"}, (said, want)
    assert any(re.fullmatch(f"Generated [1-{N_TOKENS}] tokens", line) for line in lines), said
    return answers, lines


def test_llava_of_the_guide(guide, folders):
    prepare(guide, folders / "clip", "llama", "False")
    one, other = folders / "0.png", folders / "2.png"
    want = pictured(guide, f"USER:\n<image>{TEXT} ASSISTANT:", one)
    assert want != pictured(guide, f"USER:\n<image>{TEXT} ASSISTANT:", other)
    for words in ([], ["--use_bls"], ["--prompt_table_extra_id", 1]):
        said = run(guide, "--text", TEXT, "--image", one, "--model_type", "llava", *words)
        assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
    run_py(guide, want, folders / "clip", one)
    guide.type("mkdir both && ln -s ../tmp/trt_engines/llava/fp16/1-gpu both/llm && ln -s ../tmp/trt_engines/clip/multimodal_encoder both/vision")
    answers, lines = run_py(guide, want, folders / "clip", one, "--engine_dir both", "--batch_size 2 --run_profiling")
    assert len(answers) == 2 and lines[-3] == "Latencies per batch (msec)" and float(lines[-2].removeprefix("e2e generation: ")) > 0
    for words, part in (("--engine_dir both --image_path none.png", "none.png"), ("--engine_dir there", "no folder 'there/vision'"),
                        ("--engine_dir both --video_path a.mp4", "--video_path is not supported"), ("", "--engine_dir is needed")):
        said = guide.type(f"python3 tensorrt_llm/examples/multimodal/run.py --hf_model_dir {folders / 'clip'} {words} || true")[1]
        assert part in said, said
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


def scaled(spec):
    """What CLIP's processor makes of a picture that has the tower's size: [3, height, width]."""
    settings = vision.PROCESSORS["clip"]
    numbers = (vision.pixels(*spec) / 255 - settings["image_mean"]) / settings["image_std"]
    return numbers.astype(np.float16).transpose(2, 0, 1)


def infer(client, model, outputs, **tensors):
    named = []
    for name, array in tensors.items():
        named.append(grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        named[-1].set_data_from_numpy(array)
    return client.infer(model, named, outputs=[grpcclient.InferRequestedOutput(o) for o in outputs])


def test_pixels_that_the_client_scaled(guide, folders):
    """image_input, which the published client sends for LLaVA, in both layouts, and multimodal_encoders alone. The folder is
    that of the guides up to v0.17."""
    prepare(guide, folders / "clip", "llama", "False", of="v0.17")
    client = grpcclient.InferenceServerClient(f"localhost:{guide.grpc}")
    want = ask(guide, text_input=TEXT, image_url_input=url(folders / "2.png"))["text_output"]
    array = scaled(vision.PICTURES[2])[None, None]
    text = np.array([[TEXT.encode()]], dtype=np.object_)
    for model in ("ensemble", "tensorrt_llm_bls"):
        for image in (array, np.ascontiguousarray(array.transpose(0, 1, 3, 4, 2))):
            answer = infer(client, model, ["text_output"], text_input=text, image_input=image,
                           max_tokens=np.array([[N_TOKENS]], dtype=np.int32))
            assert answer.as_numpy("text_output").ravel()[0].decode() == want, model
    outputs = ["OUT_PROMPT_EMBEDDING_TABLE", "OUT_PROMPT_VOCAB_SIZE", "OUT_IMAGE_SIZES"]
    files = np.array([[(folders / "2.png").read_bytes()]], dtype=np.object_)
    table = [infer(client, "multimodal_encoders", outputs, **t) for t in ({"IMAGE": array}, {"pixel_values": array}, {"image_files": files})]
    rows = [t.as_numpy(outputs[0]) for t in table]
    assert [r.shape for r in rows] == 3 * [(1, vision.ROWS["clip"], rows[0].shape[-1])] and np.ptp(rows[0].astype(np.float32)) > 0.1
    assert (rows[0] == rows[1]).all() and np.abs(rows[0].astype(np.float32) - rows[2]).max() < 0.02
    assert [t.as_numpy(outputs[1]).tolist() for t in table] == 3 * [[[vision.ROWS["clip"]]]]
    assert table[2].as_numpy(outputs[2]).tolist() == [[[32, 32]]]
    two = infer(client, "multimodal_encoders", outputs, image_files=np.array(2 * [[files[0, 0], (folders / "0.png").read_bytes()]],
                                                                          dtype=np.object_))
    assert two.as_numpy(outputs[0]).shape[:2] == (2, 2 * vision.ROWS["clip"])
    assert two.as_numpy(outputs[2]).tolist() == 2 * [[[32, 32], [37, 45]]]
    for tensors, part in (({"IMAGE": array[..., :16]}, "expected|[batch, pictures, 3, 32, 32]"),
                          ({"IMAGE": array, "image_files": files}, "only one of them may come"),
                          ({"image_files": np.array([[b"hello"]], dtype=np.object_)}, "picture 0"),
                          ({"IMAGE": array * np.float16(np.inf)}, "not finite"),
                          ({"IMAGE": array, "image_grid_thw": np.ones((1, 3), dtype=np.int64)}, "image_grid_thw is not supported")):
        with pytest.raises(InferenceServerException) as told:
            infer(client, "multimodal_encoders", outputs, **tensors)
        assert part.split("|")[-1] in str(told.value), told.value


def test_sizes_of_pictures_belong_to_their_rows(guide, folders):
    prepare(guide, folders / "qwen3_vl", "qwen", "False", "qwen3_vl")
    client = grpcclient.InferenceServerClient(f"localhost:{guide.grpc}")
    outputs = ["OUT_PROMPT_EMBEDDING_TABLE", "OUT_PROMPT_VOCAB_SIZE", "OUT_IMAGE_SIZES"]
    prompt = "<|vision_start|><|image_pad|><|vision_end|> and <|vision_start|><|image_pad|><|vision_end|> differ"
    pictures = [folders / "0.png", folders / "4.png"]
    want = pictured(guide, prompt, *pictures)
    assert ask(guide, text_input=prompt, image_url_input=[url(p) for p in pictures])["text_output"] == want
    assert ask(guide, "tensorrt_llm_bls", text_input=prompt, image_url_input=[url(p) for p in pictures],
               prompt_table_extra_id=1)["text_output"] == want
    seen = infer(client, "multimodal_encoders", outputs, image_files=np.array([[p.read_bytes() for p in pictures]], dtype=np.object_))
    table, sizes = seen.as_numpy(outputs[0]), seen.as_numpy(outputs[2])
    pre = infer(client, "preprocessing", ["INPUT_ID"], QUERY=np.array([[prompt.encode()]], dtype=np.object_),
                REQUEST_OUTPUT_LEN=np.array([[N_TOKENS]], dtype=np.int32))
    ids = pre.as_numpy("INPUT_ID")
    rest = {"input_ids": ids, "input_lengths": np.array([[ids.shape[1]]], dtype=np.int32),
            "request_output_len": np.array([[N_TOKENS]], dtype=np.int32)}
    tokens = infer(client, "tensorrt_llm", ["output_ids", "sequence_length"], prompt_embedding_table=table, image_sizes=sizes, **rest)
    assert tokens.as_numpy("output_ids").shape[-1] > ids.shape[1]
    for more, part in (({"prompt_embedding_table": table[:, 1:], "image_sizes": sizes}, "and pictures of these image_sizes become"),
                       ({"image_sizes": sizes}, "image_sizes needs a prompt_embedding_table"),
                       ({"prompt_embedding_table": table, "image_sizes": -sizes}, "must hold integers of at least 1"),
                       ({"prompt_embedding_table": table, "image_sizes": sizes[:, :, :1]}, "image_sizes"),
                       ({"prompt_embedding_table": table[..., :16], "image_sizes": sizes}, "what the model takes of a picture")):
        with pytest.raises(InferenceServerException) as told:
            infer(client, "tensorrt_llm", ["output_ids", "sequence_length"], **more, **rest)
        assert part in str(told.value), told.value
    assert "come as files, not as pixels" not in ask(guide, text_input="no picture")["text_output"]
    with pytest.raises(InferenceServerException, match="takes pictures of many sizes"):
        infer(client, "multimodal_encoders", outputs, IMAGE=np.zeros((1, 1, 3, 32, 32), dtype=np.float16))


def test_onevision_is_asked_in_its_own_form(guide, folders):
    prepare(guide, folders / "llava_onevision", "qwen", "False", "llava_onevision")
    want = pictured(guide, f"<|im_start|>user <image>\n{TEXT}<|im_end|><|im_start|>assistant\n", folders / "0.png")
    run_py(guide, want, folders / "llava_onevision", folders / "0.png")
    said = run(guide, "--text", TEXT, "--image", folders / "0.png", "--model_type", "llava_onevision")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)


def test_videos_of_onevision(guide, folders):
    """The frames of a video through the repository's models are what the engine sees of videos that it gets itself."""
    prepare(guide, folders / "llava_onevision", "qwen", "False", "llava_onevision")
    client = grpcclient.InferenceServerClient(f"localhost:{guide.grpc}")
    (width, height), seeds, _ = vision.VIDEOS[0]
    frames = np.stack([vision.pixels(width, height, seed) for seed in seeds])
    videos = "2:" + ",".join(base64.b64encode(vision.ppm(f)).decode() for f in frames)
    want = ask(guide, text_input=f"<|im_start|>user <video>\n{TEXT}<|im_end|><|im_start|>assistant\n", videos=videos)["text_output"]
    n = np.array([[N_TOKENS]], dtype=np.int32)

    def answer(model, question, film):
        text = np.array([[question.encode()]], dtype=np.object_)
        r = infer(client, model, ["text_output"], text_input=text, video_bytes_input=film, max_tokens=n)
        return r.as_numpy("text_output").ravel()[0].decode()

    for model in ("ensemble", "tensorrt_llm_bls"):
        assert answer(model, TEXT, frames[None]) == want
        assert answer(model, TEXT, np.ascontiguousarray(frames.transpose(0, 3, 1, 2))[None]) == want
        assert answer(model, TEXT, frames[None, ::-1].copy()) != want
        assert answer(model, f"<|im_start|>user <video>\n{TEXT}<|im_end|><|im_start|>assistant\n", frames[None]) == want
    outputs = ["OUT_PROMPT_EMBEDDING_TABLE", "OUT_PROMPT_VOCAB_SIZE", "OUT_IMAGE_SIZES"]
    files = np.array([[vision.ppm(f) for f in frames]], dtype=np.object_)
    seen = infer(client, "multimodal_encoders", outputs, image_files=files, is_video_input=np.array([[True]]))
    assert seen.as_numpy(outputs[2]).tolist() == [4 * [[height, width]]]
    rows = int(seen.as_numpy(outputs[1]).item())
    assert rows % len(frames) == 1 and seen.as_numpy(outputs[0]).shape[1] == rows  # of all frames, and what follows the last
    for film, question, part in ((frames[None, :0], TEXT, "0 frames a row, expected 1 to 768"), (frames[None], "<video> <video>", "places"),
                                 (np.zeros((1, 769, 1, 1, 3), np.uint8), TEXT, "769 frames a row, expected 1 to 768")):
        with pytest.raises(InferenceServerException) as told:
            answer("ensemble", question, film)
        assert part in str(told.value), told.value
    odd = np.array([[vision.ppm(frames[0]), vision.ppm(frames[1][:16])]], dtype=np.object_)
    with pytest.raises(InferenceServerException, match="frame 1 has 40 x 16 pixels"):
        infer(client, "multimodal_encoders", outputs, image_files=odd, is_video_input=np.array([[True]]))
    said = guide.type(f"{CLIENT} --video a.mp4 --model_type llava --video_num_frames 2 || true")[1]
    assert "--video goes with --model_type llava_onevision" in said
    said = guide.type(f"{CLIENT} --video a.mp4 --model_type llava_onevision || true")[1]
    assert "--video needs --video_num_frames" in said
    av = pytest.importorskip("av")
    with av.open(str(guide.folder / "film.mkv"), "w") as film:
        stream = film.add_stream("ffv1", rate=5, width=width, height=height, pix_fmt="bgr0")
        for i in range(2 * len(frames)):  # every other one is taken
            for packet in stream.encode(av.VideoFrame.from_ndarray(frames[i // 2] if i % 2 == 0 else 255 - frames[i // 2], format="rgb24")):
                film.mux(packet)
        for packet in stream.encode(None):
            film.mux(packet)
    said = run(guide, "--text", TEXT, "--video", "film.mkv", "--video_num_frames", len(frames), "--model_type", "llava_onevision")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)


def test_towers_that_are_not_there_are_named(guide, folders, models):
    build = "python3 tensorrt_llm/examples/multimodal/build_multimodal_engine.py"
    vision.write_folder(guide.folder / "charts", "pix2struct")
    vision.write_folder(guide.folder / "pages", "nougat")
    for words, part in ((f"--model_path {folders / 'clip'} --model_type blip2", "--model_type is 'blip2', and "),
                        (f"--model_path {models['llama']} --model_type llama", "has no vision tower here"),
                        ("--model_path charts --model_type pix2struct", "the encoder of pix2struct is in its engine"),
                        ("--model_path pages --model_type nougat", "the encoder of vision-encoder-decoder is in its engine"),
                        (f"--model_path {folders / 'clip'} --max_hw_dims 0", "--max_hw_dims 1 to")):
        said = guide.type(f"{build} {words} || true")[1]
        assert part in said, said
    assert "Total time of building the multimodal engine: " in guide.type(f"{build} --model_path {folders / 'qwen2_vl'} --max_hw_dims 16")[0]


def test_decoupled_mode_of_the_guide(guide, folders):
    prepare(guide, folders / "clip", "llama", "True")
    for words in ([], ["--use_bls"]):
        said = run(guide, "--text", TEXT, "--image", folders / "0.png", "--model_type", "llava", "--streaming", *words)
        assert said.startswith("[beam 0 ]:  ") and said.count("[beam 0 ]:  ") > 3, said


def test_gemma_takes_pictures_at_its_own_token(guide, folders):
    prepare(guide, folders / "gemma3", "gemma", "False", "gemma3")
    prompt = "<start_of_image><image_soft_token><end_of_image> the quick fox"
    want = pictured(guide, prompt, folders / "0.png")
    assert want != pictured(guide, prompt, folders / "3.png")
    said = run(guide, "--text", prompt, "--image", folders / "0.png", "--model_type", "gemma3")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), said
    assert "has 0 places for pictures" in ask(guide, text_input=TEXT, image_url_input=url(folders / "0.png"))["error"]


def test_pictures_of_blip2_stand_in_front_of_all(guide, folders):
    prepare(guide, folders / "blip2", "opt", "False", "blip2")
    want = pictured(guide, f"<image>{TEXT}", folders / "0.png")
    assert want != pictured(guide, f"<image>{TEXT}", folders / "2.png")
    said = run(guide, "--text", TEXT, "--image", folders / "0.png", "--model_type", "blip2")
    client = grpcclient.InferenceServerClient(f"localhost:{guide.grpc}")
    ask_ids = {"QUERY": np.array([[TEXT.encode()]], dtype=np.object_), "REQUEST_OUTPUT_LEN": np.array([[N_TOKENS]], dtype=np.int32)}
    plain = infer(client, "preprocessing", ["INPUT_ID"], **ask_ids).as_numpy("INPUT_ID")[0].tolist()
    two = np.array([[url(folders / "0.png").encode(), url(folders / "2.png").encode()]], dtype=np.object_)
    seen = infer(client, "preprocessing", ["INPUT_ID"], IMAGE_URL=two, **ask_ids).as_numpy("INPUT_ID")[0].tolist()
    assert seen[2:] == plain and seen[0] == seen[1] == vision.image_token(folders / "blip2")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)


def test_fuyu_of_the_guide(guide, folders):
    """Pictures stand in front of all, and what the answer begins behind at the end."""
    prepare(guide, folders / "fuyu", "gpt", "False", "fuyu")
    want = pictured(guide, f"|SPEAKER|{TEXT}<0x04>", folders / "0.png")
    assert want != pictured(guide, f"|SPEAKER|{TEXT}<0x04>", folders / "2.png")
    said = run(guide, "--text", TEXT, "--image", folders / "0.png", "--model_type", "fuyu")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)


def test_vila_of_the_guide(guide, folders):
    """A text stands in the form of a talk, also with places of its own."""
    prepare(guide, folders / "vila", "llama", "False", "vila --vila_path tmp/hf_models/VILA")
    form = ("A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
            "answers to the user's questions. USER: {} ASSISTANT:")
    one, other = folders / "0.png", folders / "2.png"
    want = pictured(guide, form.format(f"<image>{TEXT}"), one)
    said = run(guide, "--text", TEXT, "--image", one, "--model_type", "vila")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
    run_py(guide, want, folders / "vila", one)
    text = f"{TEXT} <image> and <image>"
    want = pictured(guide, form.format(text), one, other)
    assert want != pictured(guide, form.format(text), other, one)
    said = run(guide, "--text", text, "--image", f"{one},{other}", "--model_type", "vila")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)


def test_pictures_of_qwen_vl_have_numbers(guide, folders):
    """A text without places stands in the form of its chat; a file's name between the tokens of a picture is one."""
    prepare(guide, folders / "qwen_vl", "qwen", "False", "qwen_vl")
    form = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    one, other = folders / "0.png", folders / "2.png"
    places = "Picture 1: <img><imgpad></img>\nPicture 2: <img><imgpad></img>\n"
    want = pictured(guide, form.format(places + TEXT), one, other)
    assert want != pictured(guide, form.format(places + TEXT), other, one)
    said = run(guide, "--text", TEXT, "--image", f"{one},{other}", "--model_type", "qwen_vl")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
    text = f"Picture 1: <img>a/b.png</img>\n{TEXT}"
    want = pictured(guide, f"Picture 1: <img><imgpad></img>\n{TEXT}", one)
    said = run(guide, "--text", text, "--image", one, "--model_type", "qwen_vl")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)


@pytest.mark.parametrize("kind, model_type", [("cogvlm", "cogvlm"), ("kosmos2", "kosmos-2")])
def test_models_without_a_form_take_a_text_with_its_places(guide, folders, kind, model_type):
    """Rows of CogVLM stand at places of their own; those of Kosmos-2 are scaled as the decoder's embeddings are."""
    prepare(guide, folders / kind, "llama", "False", model_type)
    text, one, other = "<image>so", folders / "0.png", folders / "2.png"
    want = pictured(guide, text, one)
    assert want != pictured(guide, text, other)
    assert ask(guide, text_input=text, image_url_input=url(one))["text_output"] == want


def test_models_that_are_not_served_are_named(guide):
    for words, part in (("--model_type mllama", "--model_type mllama is not supported by this server; known: llava, llava_next, "),
                        ("--model_type llava --video a.mp4", "--video goes with --model_type llava_onevision")):
        assert part in guide.type(f"{CLIENT} {words}", status=2)[1]


def test_qwen_is_asked_in_the_form_of_its_chats(guide, folders):
    prepare(guide, folders / "qwen2_vl", "qwen", "False", "qwen2_vl")
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    one, other = folders / "0.png", folders / "2.png"
    chat = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{{}}{TEXT}<|im_end|>\n<|im_start|>assistant\n")
    want = pictured(guide, chat.format(picture), one)
    assert want != pictured(guide, chat.format(picture), other)
    said = run(guide, "--text", TEXT, "--image", one, "--model_type", "qwen2_vl")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
    run_py(guide, want, folders / "qwen2_vl", one)
    want = pictured(guide, chat.format(2 * picture), one, other)
    said = run(guide, "--text", TEXT, "--image", f"{one},{other}", "--model_type", "qwen2_vl")
    assert said.startswith(f"[beam 0 ]:\n{want}\n[INFO]"), (said, want)
