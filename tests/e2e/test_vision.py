# SPDX-License-Identifier: Apache-2.0
"""Pictures in prompts: answers to them are transformers' (tests/model/make_vision_goldens.py) from pixels to log
probabilities, by all the ways in which clients send them; what is no picture is refused by name."""
import base64
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import Tokenizer

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import blip2  # noqa: E402
import donut  # noqa: E402
import fuyu  # noqa: E402
import mllama  # noqa: E402
import pix2struct  # noqa: E402
import pixtral  # noqa: E402
import vision  # noqa: E402

GOLDENS = json.loads((ROOT / "tests/model/vision_answers.json").read_text())["talks"]
GOLDEN = GOLDENS["clip"]
TOLERANCE = float(os.environ.get("NEREID_TOLERANCE", 1e-4))  # of a log probability


def picture(number, form):
    p = vision.pixels(*vision.PICTURES[number])
    return base64.b64encode(vision.png(p) if form == "png" else vision.ppm(p)).decode()


def url(data, form="png"):
    return {"type": "image_url", "image_url": {"url": f"data:image/{form};base64,{data}"}}


def frames(video, form):
    (width, height), seeds, _ = video
    return [base64.b64encode(getattr(vision, form)(vision.pixels(width, height, seed))).decode() for seed in seeds]


def video_part(video, form, as_list):
    """The two forms in which clients send one: a URL of several pictures, and a list of URLs."""
    if as_list:
        part = {"type": "video", "video": [f"data:image/{form};base64,{frame}" for frame in frames(video, form)]}
    else:
        part = {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + ",".join(frames(video, form))}}
    return {**part, **({"fps": video[2]} if video[2] else {})}


def parts(talk, form, as_list=False):
    return [url(picture(p, form), form) if isinstance(p, int) else video_part(p, form, as_list) if isinstance(p, tuple) else {"type": "text", "text": p}
            for p in talk]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("vision")
    vision.write_folder(tmp / "llava")
    s = Server(tmp / "llava", tmp, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32").wait_ready()
    yield s
    s.stop()


def chat(server, content, **more):
    body = {"model": "ensemble", "messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0,
            "ignore_eos": True, **more}
    return server.request("/v1/chat/completions", body)


def numbers(choice):
    return [[t["logprob"] for t in token["top_logprobs"]] for token in choice["logprobs"]["content"]]


def same(choice, golden):
    """The log probabilities of the reference, as far as rounding turns no token."""
    for got, want in zip(numbers(choice), [[v for _, v in row] for row in golden["top"]], strict=True):
        assert np.allclose(got, want, rtol=0, atol=TOLERANCE)
        if want[0] - want[1] < 3 * TOLERANCE:
            break


def check(server, golden, talk, form):
    for again in range(2):  # the second time the prefix cache has the prompt
        status, answer = chat(server, parts(talk, form, again > 0), logprobs=True, top_logprobs=5)
        assert status == 200, answer
        same(answer["choices"][0], golden)
        assert answer["usage"]["prompt_tokens"] == golden["n_prompt"]


@pytest.mark.parametrize("form", ["ppm", "png"])
@pytest.mark.parametrize("i", range(len(vision.TALKS)))
def test_answers_are_those_of_the_reference(server, i, form):
    check(server, GOLDEN[i], vision.TALKS[i], form)


@pytest.mark.parametrize("kind", ["siglip", "gemma3", *vision.PALIGEMMA, *vision.TILED, "internvl", "blip2", "phi3_v", *vision.vila.KINDS, vision.qwen1_vl.KIND, *vision.cogvlm.KINDS, vision.kosmos2.KIND, *vision.gemma4_vision.KINDS, *vision.idefics3.KINDS])
def test_other_towers_answer_as_the_reference_does(tmp_path, kind):
    """A long prompt of text is computed in pieces beside Gemma's pictures, which are not."""
    vision.write_folder(tmp_path / kind, kind)
    s = Server(tmp_path / kind, tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32",
               "--build", "--max_num_tokens=200", "--build", "--max_batch_size=4").wait_ready()
    try:
        for golden, talk in zip(GOLDENS[kind], vision.talks(kind)):
            check(s, golden, talk, "png")
        check_together(s, kind)
        status, answer = chat(s, "the quick fox")
        if kind in vision.PALIGEMMA:
            assert status == 400 and "no prompt without a picture" in json.dumps(answer), answer
            status, answer = chat(s, [url(picture(0, "png"))] * (4 if kind == "paligemma2" else 8))
            most = 80 if kind == "paligemma2" else 196
            assert status == 400 and f"exceeds maximum input length ({most})" in json.dumps(answer), answer
        else:
            assert status == 200 and answer["choices"][0]["message"]["content"], answer
        if kind in vision.idefics3.KINDS:
            check_words_of_a_client(s, kind)
        if kind == vision.qwen1_vl.KIND:
            check_files_of_a_client(s, kind)
        if kind == "gemma3":
            status, answer = chat(s, [url(picture(0, "png"))] * 5)
            assert status == 400 and "exceeds maximum input length (196)" in json.dumps(answer), answer
            status, answer = chat(s, [{"type": "text", "text": "<image_soft_token> and"}, url(picture(0, "png"))])
            assert status == 400 and "2 places for pictures" in json.dumps(answer), answer
    finally:
        s.stop()


@pytest.mark.parametrize("kind", vision.qwen_vl.KINDS)
def test_pictures_of_any_size_answer_as_the_reference_does(tmp_path, kind):
    """Prompts are computed in pieces of a few tokens, which end within pictures."""
    vision.write_folder(tmp_path / kind, kind)
    s = Server(tmp_path / kind, tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32",
               "--build", "--max_num_tokens=16", "--build", "--max_batch_size=4").wait_ready()
    try:
        for golden, talk in zip(GOLDENS[kind], vision.talks(kind)):
            check(s, golden, talk, "png")
        check_together(s, kind)
        for content, part in [([url(base64.b64encode(vision.png(vision.pixels(201, 1, 1))).decode())], "200 times the other"),
                              ([{"type": "text", "text": "<|image_pad|> and"}, url(picture(0, "png"))], "places for pictures"),
                              ([{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}], "video")]:
            status, answer = chat(s, content)
            assert status == 400 and part in json.dumps(answer), answer
        check_places_of_a_client(s, kind)
    finally:
        s.stop()


@pytest.mark.parametrize("kind", vision.VIDEO_KINDS)
def test_videos_answer_as_the_reference_does(tmp_path, kind):
    """Frames in twos, an odd one, alone, beside a picture; too many. limits: VIDEO_FRAMES. Prompts are computed in pieces, which end within them."""
    vision.write_folder(tmp_path / kind, kind)
    s = Server(tmp_path / kind, tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32",
               "--build", "--max_num_tokens=16", "--build", "--max_batch_size=4").wait_ready()
    try:
        for golden, talk in zip(GOLDENS[f"{kind}_video"], vision.VIDEO_TALKS, strict=True):
            check(s, golden, talk, "png")
        status, models = s.request("/v1/models")
        assert status == 200 and "video" in models["data"][0]["architecture"]["input_modalities"], models
        check_times(s, kind)
        check_wrong_videos(s, place_of(kind))
        check_videos_by_parameter(s, kind)
    finally:
        s.stop()


def check_times(server, kind):
    """The same frames at another rate: Qwen2.5-VL places them elsewhere, whatever the prefix cache has, Qwen3-VL writes other times; Qwen2-VL
    does neither."""
    talk = vision.VIDEO_TALKS[0]
    other = [(*talk[0][:2], 0.5), talk[1]]
    answers = [chat(server, parts(t, "png"), logprobs=True, top_logprobs=5)[1] for t in (talk, other, talk)]
    first, second, third = [numbers(a["choices"][0]) for a in answers]
    assert np.allclose(first, third, rtol=0, atol=TOLERANCE)
    assert np.allclose(first, second, rtol=0, atol=TOLERANCE) == (kind in ("qwen2_vl", *vision.TILED))


def place_of(kind):
    return "<video>" if kind in vision.TILED else "<|video_pad|>"


def check_wrong_videos(server, place):
    frame = frames(vision.VIDEOS[0], "png")[0]
    small = frames(vision.VIDEOS[2], "png")[0]

    def of(url):
        return [{"type": "video_url", "video_url": {"url": url}}]
    text = {"type": "text", "text": f"{place} and"}
    for content, part in [
            (of("data:video/mp4;base64,AAAA"), "films are not decoded"), (of("http://localhost/a.mp4"), "not fetched"), (of(7), "taken as frames"),
            (of("data:video/jpeg;base64,"), "empty picture"), (of("data:video/jpeg;base64,AAAA"), "frames from 0 on"),
            (of(f"data:video/jpeg;base64,{frame};{frame}"), "base64"), (of(f"data:video/jpeg;base64,{frame},{small}"), "24 x 24"),
            (of("data:video/jpeg;base64," + ",".join([frame] * 769)), "768 frames"),
            ([{"type": "video", "video": []}], "without frames"), ([{"type": "video", "video": [frame]}], "taken as frames"),
            ([{**of(f"data:video/jpeg;base64,{frame}")[0], "fps": 0}], "fps"), ([{**of(f"data:video/jpeg;base64,{frame}")[0], "fps": "2"}], "fps"),
            ([{**of(f"data:video/jpeg;base64,{frame}")[0], "fps": 1e-3}], "frames a second"),
            ([text, *of(f"data:video/jpeg;base64,{frame}")], "2 places for videos"), (of("data:video/jpeg;base64," + ",".join([frame] * 700)), "context_length_exceeded")]:
        status, answer = chat(server, content)
        assert status == 400 and part in json.dumps(answer), (part, answer)


def check_videos_by_parameter(server, kind):
    """What tensorrt_llm itself takes; a place is one token."""
    golden, talk = GOLDENS[f"{kind}_video"][1], vision.VIDEO_TALKS[1]
    status, rendered = server.request("/apply-template", {"messages": [{"role": "user", "content": parts(talk, "png")}]})
    places = 2 if kind not in vision.qwen_vl.KINDS[2:] else sum(-(-len(p[1]) // 2) for p in talk if isinstance(p, tuple))
    assert status == 200 and rendered["prompt"].count(place_of(kind)) == places, rendered
    videos = ";".join(f"{p[2] or 2}:{','.join(frames(p, 'ppm'))}" for p in talk if isinstance(p, tuple))
    images = ",".join(picture(p, "ppm") for p in talk if isinstance(p, int))
    ids = server.request("/tokenize", {"prompt": rendered["prompt"], "add_special_tokens": False})[1]["tokens"]
    body = {"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6], "images": images, "videos": videos,
            "exclude_input_in_output": True}
    status, answer = server.generate(body, "tensorrt_llm")
    assert status == 200, answer
    tokens = [row[0][0] for row in golden["top"]]
    n = next((i for i, row in enumerate(golden["top"]) if row[0][1] - row[1][1] < 3 * TOLERANCE), len(tokens))
    assert answer["output_ids"][:n] == tokens[:n]
    for wrong, part in [("2", "begin with its frames a second"), (":AAAA", "begin with"), ("x:AAAA", "begin with"), ("2:", "no base64"),
                        ("2:AAAA;", "begin with"), (f"nan:{frames(talk[1], 'ppm')[0]};2:AAAA", "frames a second"), ("2:" + "A," * 768 + "A", "at most 768")]:
        status, answer = server.generate({**body, "videos": wrong}, "tensorrt_llm")
        assert status == 400 and part in json.dumps(answer), (wrong[:20], answer)


@pytest.mark.parametrize("kind", [*pixtral.KINDS, fuyu.KIND])
def test_lines_of_pictures_end_with_a_token(tmp_path, kind):
    """Prompts are computed in pieces, which end within lines. A client writes the image token once, or all lines."""
    vision.write_folder(tmp_path / kind, kind)
    s = Server(tmp_path / kind, tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32",
               "--build", "--max_num_tokens=16", "--build", "--max_batch_size=4").wait_ready()
    try:
        for golden, talk in zip(GOLDENS[kind], vision.talks(kind)):
            check(s, golden, talk, "png")
        check_together(s, kind)
        golden, talk = GOLDENS[kind][0], vision.talks(kind)[0]
        one, width, height = vision.IMAGE[kind], *((48, 42) if kind == "pixtral" else (48, 40))
        lines = fuyu.lines(36, 43) if kind == fuyu.KIND else pixtral.lines(kind, width, height)
        for place, ok in ((one, True), (lines, True), (one * 3, False)):
            ids = s.request("/tokenize", {"prompt": f"<|user|>{place}{talk[1]} <|assistant|>", "add_special_tokens": False})[1]["tokens"]
            status, answer = s.generate({"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6],
                                         "images": picture(talk[0], "ppm"), "exclude_input_in_output": True}, "tensorrt_llm")
            if ok:
                assert status == 200 and list(answer["output_ids"])[:6] == [row[0][0] for row in golden["top"]], answer
            else:
                assert status == 400 and "3 places for pictures" in json.dumps(answer), answer
        status, answer = chat(s, [url(base64.b64encode(vision.png(vision.pixels(201, 1, 1))).decode())])
        assert status == 400 and "is nothing once it" in json.dumps(answer), answer
    finally:
        s.stop()


@pytest.mark.parametrize("most, n_talks", [(140, 8), (600, 11)])
def test_layers_of_the_decoder_read_pictures(tmp_path, most, n_talks):
    """The places of pictures' states do not count as tokens. A long prompt is computed in pieces. Pictures side by side are seen together,
    and hide those before them. Texts run beside; blocks are shared where the pictures are the same."""
    kind, goldens, talks = "mllama", GOLDENS["mllama"], vision.talks("mllama")[:n_talks]
    vision.write_folder(tmp_path / kind, kind)
    s = Server(tmp_path / kind, tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32",
               "--build", f"--max_num_tokens={most}", "--build", "--max_batch_size=4").wait_ready()
    try:
        _, text = chat(s, "the quick fox in the wind", logprobs=True, top_logprobs=5)
        for golden, talk in zip(goldens, talks):
            check(s, golden, talk, "png")
        check_together(s, kind, n_talks)
        check_first(s, goldens[-1])
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(chat, s, "the quick fox in the wind", logprobs=True, top_logprobs=5) for _ in range(3)]
            check(s, goldens[0], talks[0], "png")
            for job in jobs:
                assert np.allclose(numbers(job.result()[1]["choices"][0])[0], numbers(text["choices"][0])[0], rtol=0, atol=TOLERANCE)
        status, answer = chat(s, parts(talks[0], "png"), n=3, logprobs=True, top_logprobs=5)
        for choice in answer["choices"]:
            same(choice, goldens[0])
        for content, part in [([url(picture(8, "png"))] * 12, "the states of 12 pictures take"),
                              ([{"type": "text", "text": "<|image|> and"}, url(picture(0, "png"))], "2 places for pictures")]:
            status, answer = chat(s, content)
            assert status == 400 and part in json.dumps(answer), answer
    finally:
        s.stop()


@pytest.mark.parametrize("more, why", [
    (["--build", "--pp_size=2"], "the engine has pipeline stages"), (["--build", "--max_num_tokens=96", "--build", "--max_batch_size=4"], "max_num_tokens is 96"),
    (["--speculative-config", '{"method": "lookahead"}'], "of speculative decoding only n-grams go with them")])
def test_what_does_not_go_with_such_layers(tmp_path, more, why):
    """Texts are answered; a picture is refused with the reason."""
    vision.write_folder(tmp_path / "mllama", "mllama")
    s = Server(tmp_path / "mllama", tmp_path, "--build", "--dtype=float32", *more).wait_ready()
    try:
        status, answer = chat(s, "the quick fox")
        assert status == 200, answer
        status, answer = chat(s, parts(vision.talks("mllama")[0], "png"))
        assert status == 400 and why in json.dumps(answer), answer
    finally:
        s.stop()


def test_an_encoder_reads_pictures(tmp_path):
    """Flan-T5's encoder, alone and several at once: texts without pictures are in the same passes."""
    vision.write_folder(tmp_path / "m", "blip2_t5")
    s = Server(tmp_path / "m", tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32", "--set",
               "normalize_log_probs:False").wait_ready()

    def ask(ids, pictures):
        images = {"images": ",".join(picture(p, "ppm") for p in pictures)} if pictures else {}
        return s.generate({"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6], "end_id": [-1], "return_log_probs": True,
                           "exclude_input_in_output": True, **images}, "tensorrt_llm")

    def check_t5(golden, answer):
        status, got = answer
        assert status == 200, got
        for i, row in enumerate(golden["top"]):
            assert got["output_ids"][i] == row[0][0] and abs(got["output_log_probs"][i] - row[0][1]) < TOLERANCE, (i, row, got)
            if row[0][1] - row[1][1] < 3 * TOLERANCE:
                break

    try:
        talks = list(zip(blip2.T5_TALKS, GOLDENS["blip2_t5"], strict=True))
        for (pictures, words), golden in talks:
            check_t5(golden, ask(blip2.t5_prompt(pictures, words), pictures))
            check_t5(golden, ask([blip2.T5_IMAGE] * len(pictures) + words, pictures))
        with ThreadPoolExecutor(8) as pool:
            jobs = [(golden, pool.submit(ask, blip2.t5_prompt(pictures, words), pictures)) for (pictures, words), golden in talks * 3]
            for golden, job in jobs:
                check_t5(golden, job.result())
        status, answer = ask([blip2.T5_IMAGE, blip2.T5_IMAGE, 1], [0])
        assert status == 400 and "2 places for pictures" in json.dumps(answer), answer
    finally:
        s.stop()


@pytest.mark.parametrize("kind", [pix2struct.KIND, *donut.KINDS])
def test_an_encoder_reads_one_picture_and_no_text(tmp_path, kind):
    """Pictures of all shapes, one by one and together; a text, or a second picture, is refused by its place."""
    vision.write_folder(tmp_path / "m", kind)
    s = Server(tmp_path / "m", tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32").wait_ready()
    goldens = {i: golden for i, golden in enumerate(GOLDENS[kind]) if golden}
    place = pix2struct.PLACE if kind == pix2struct.KIND else donut.PLACE

    def look(i):
        return chat(s, [url(picture(i, "png"))], logprobs=True, top_logprobs=5)

    def check_picture(i, answer):
        status, body = answer
        assert status == 200, body
        same(body["choices"][0], goldens[i])

    try:
        for i in goldens:
            check_picture(i, look(i))
        with ThreadPoolExecutor(8) as pool:
            for i, job in [(i, pool.submit(look, i)) for i in goldens]:
                check_picture(i, job.result())
        status, answer = s.generate({"input_ids": [place], "input_lengths": [1], "request_output_len": [6], "end_id": [-1],
                                     "images": picture(0, "ppm"), "exclude_input_in_output": True}, "tensorrt_llm")
        assert status == 200 and list(answer["output_ids"])[:6] == [row[0][0] for row in goldens[0]["top"]], answer
        for content, part in (([url(picture(0, "png")), {"type": "text", "text": "the quick fox"}], "reads one picture and no text: place 1"),
                              ([url(picture(0, "png"))] * 2, "and the request brings 2"), ("the quick fox", "reads one picture and no text")):
            status, answer = chat(s, content)
            assert status == 400 and part in json.dumps(answer), answer
    finally:
        s.stop()


def test_an_encoder_without_layers_is_opened_by_its_decoder(tmp_path):
    vision.write_folder(tmp_path / "m", "nougat")
    subprocess.run([BIN / "nereid", "build", tmp_path / "m", "-o", tmp_path / "engine"], check=True, capture_output=True)
    done = subprocess.run([BIN / "nereid", "run", tmp_path / "engine/encoder", "--tokenizer_dir", tmp_path / "m", "--prompt", "hi"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "has no layers: it is the encoder of a decoder" in done.stderr, done.stderr


def check_first(server, golden):
    """A prompt that begins with its picture: nothing is in front of it."""
    ids = server.request("/tokenize", {"prompt": mllama.IMAGE + mllama.FIRST[1], "add_special_tokens": False})[1]["tokens"]
    status, answer = server.generate({"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6],
                                      "images": picture(mllama.FIRST[0], "ppm"), "exclude_input_in_output": True}, "tensorrt_llm")
    assert status == 200 and list(answer["output_ids"])[:6] == [row[0][0] for row in golden["top"]], answer


@pytest.mark.parametrize("kind, ranks", [("mllama", "--tp_size=3"), ("qwen2_vl", "--tp_size=2"), ("qwen3_vl", "--tp_size=2"), ("qwen_vl", "--tp_size=3"), ("cogvlm", "--tp_size=3"), ("cogvlm2", "--pp_size=2"), ("kosmos2", "--pp_size=2"), ("gemma3", "--tp_size=2"), ("gemma3", "--pp_size=2"), ("paligemma2", "--tp_size=2"), ("paligemma", "--pp_size=3"), ("gemma4_wide", "--tp_size=3")])
def test_ranks_know_where_tokens_of_pictures_are(tmp_path, kind, ranks):
    """Rank 0 runs the tower; places on axes, and which tokens see what follows, go to the other one with each step. What pictures add
    behind layers is in rank 0's part of the sum. States that layers read are given to the other one."""
    vision.write_folder(tmp_path / kind, kind)
    s = Server(tmp_path / kind, tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32", "--build", ranks).wait_ready()
    try:
        for golden, talk in zip(GOLDENS[kind][:2] if kind != "mllama" else GOLDENS[kind], vision.talks(kind)):
            check(s, golden, talk, "png")
        if kind in ("gemma3", *vision.PALIGEMMA, "gemma4_wide", "mllama"):
            check_together(s, kind)
    finally:
        s.stop()


def check_words_of_a_client(server, kind):
    """The image token once for each picture, or all that the processor writes."""
    golden, talk, x = GOLDENS[kind][0], vision.talks(kind)[0], vision.idefics3
    rows = x.IMAGE * x.ROWS[kind]
    tiles = "".join("".join(f"{x.EDGE}<row_{i + 1}_col_{j + 1}>{rows}" for j in range(2)) + "\n" for i in range(2)) + "\n"
    whole = ("" if kind == "idefics3_whole" else tiles) + f"{x.EDGE}{x.WHOLE}{rows}{x.EDGE}"
    for place, ok in ((x.IMAGE, True), (whole, True), (whole + x.IMAGE, False)):
        ids = server.request("/tokenize", {"prompt": f"<|user|>{place}{talk[1]} <|assistant|>", "add_special_tokens": False})[1]["tokens"]
        assert place != whole or len(ids) == golden["n_prompt"]
        status, answer = server.generate({"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6],
                                          "images": picture(talk[0], "ppm"), "exclude_input_in_output": True}, "tensorrt_llm")
        if ok:
            assert status == 200 and list(answer["output_ids"])[:6] == [row[0][0] for row in golden["top"]], answer
        else:
            assert status == 400 and "places for pictures" in json.dumps(answer), answer


def check_files_of_a_client(server, kind):
    """A picture's token once, or as often as it has rows, or the name of any file."""
    golden, talk, x = GOLDENS[kind][0], vision.talks(kind)[0], vision.qwen1_vl
    for place in (x.IMAGE, x.IMAGE * x.QUERIES, "a/file.png"):
        status, answer = server.request("/tokenize", {"prompt": f"<|user|>{x.START}{place}{x.END}\n{talk[1]} <|assistant|>", "add_special_tokens": False})
        ids = answer["tokens"]
        status, answer = server.generate({"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6],
                                          "images": picture(talk[0], "ppm"), "exclude_input_in_output": True}, "tensorrt_llm")
        assert status == 200 and list(answer["output_ids"])[:6] == [row[0][0] for row in golden["top"]], answer


def check_places_of_a_client(server, kind):
    """The image token once for each picture, or as often as a picture has tokens."""
    golden, talk = GOLDENS[kind][1], vision.talks(kind)[1]
    text = "<|user|>what is <|vision_start|><|image_pad|><|vision_end|>and <|vision_start|><|image_pad|><|vision_end|>in the wind <|assistant|>"
    images = ",".join(picture(p, "ppm") for p in talk if isinstance(p, int))

    def ask(prompt):
        ids = server.request("/tokenize", {"prompt": prompt, "add_special_tokens": False})[1]["tokens"]
        return server.generate({"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6], "images": images,
                                "exclude_input_in_output": True}, "tensorrt_llm")

    rows = [vision.qwen_vl.rows(*vision.PICTURES[p][:2]) for p in talk if isinstance(p, int)]
    first, *rest = text.split("<|image_pad|>")
    whole = first + "".join("<|image_pad|>" * n + piece for n, piece in zip(rows, rest))
    for prompt in (text, whole):
        status, answer = ask(prompt)
        assert status == 200, answer
        assert list(answer["output_ids"])[:6] == [row[0][0] for row in golden["top"]], answer
    status, answer = ask(first + "<|image_pad|>" * (sum(rows) - 1) + rest[0] + "<|image_pad|>" + rest[1])
    assert status == 400 and "places in a row" in json.dumps(answer), answer


def check_together(server, kind, n_talks=None):
    """All at once, with prompts of text among them."""
    jobs = [(parts(talk, "png"), golden) for talk, golden in zip(vision.talks(kind)[:n_talks], GOLDENS[kind])] * 2
    texts = [f"{'the wind and the quick fox ' * 12}{i}" for i in range(4)]
    with ThreadPoolExecutor(len(jobs) + len(texts)) as pool:
        got = [pool.submit(chat, server, content, logprobs=True, top_logprobs=5) for content, _ in jobs]
        rest = [pool.submit(chat, server, text) for text in texts]
        for answer, (_, golden) in zip(got, jobs):
            status, body = answer.result()
            assert status == 200, body
            same(body["choices"][0], golden)
        assert all(r.result()[0] == (400 if kind in vision.PALIGEMMA else 200) for r in rest)


def test_log_probabilities_of_an_answer_to_a_picture(server):
    """Of the tokens that top_k leaves (normalize_log_probs, as the original has it): 0 where it leaves one."""
    place, golden = vision.IMAGE["clip"] + "\n", GOLDEN[0]
    ids = server.request("/tokenize", {"prompt": f"<|user|>{place}the quick fox <|assistant|>", "add_special_tokens": False})[1]["tokens"]
    ask = {"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [1], "images": picture(0, "ppm"), "return_log_probs": True,
           "exclude_input_in_output": True}
    total, seen = np.logaddexp.reduce([v for _, v in golden["top"][0]]), set()
    for seed in range(8):
        status, answer = server.generate({**ask, "runtime_top_k": [5], "temperature": [1.0], "random_seed": [seed]}, "tensorrt_llm")
        assert status == 200, answer
        token = np.ravel(answer["output_ids"])[0]
        seen.add(int(token))
        assert abs(np.ravel(answer["output_log_probs"])[0] - (dict(golden["top"][0])[token] - total)) < 2 * TOLERANCE, answer
    assert len(seen) > 1
    status, answer = server.generate({**ask, "runtime_top_k": [1]}, "tensorrt_llm")
    assert status == 200 and np.ravel(answer["output_log_probs"])[0] == 0, answer


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5"])
def test_a_folder_without_its_tower_is_text_alone(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(vision, "tower", lambda *_: iter(()))
    vision.write_folder(tmp_path / kind, kind)
    s = Server(tmp_path / kind, tmp_path, "--build", "--dtype=float32").wait_ready()
    try:
        status, answer = chat(s, "the quick fox")
        assert status == 200, answer
        status, answer = chat(s, [url(picture(0, "png"))])
        assert status == 400 and "only text is supported" in json.dumps(answer), answer
    finally:
        s.stop()


def test_another_picture_is_another_prompt(server):
    """The texts, and so the tokens, are the same: cached blocks must not be."""
    answers = []
    for number in (0, 1, 2, 0):
        status, answer = chat(server, [url(picture(number, "png")), {"type": "text", "text": "the quick fox"}],
                              logprobs=True, top_logprobs=5)
        assert status == 200, answer
        answers.append(numbers(answer["choices"][0]))
    assert answers[0] == answers[3]
    for other in answers[1:3]:
        assert np.abs(np.array(answers[0])[0] - np.array(other)[0]).max() > 0.01


def test_a_picture_is_computed_once(tmp_path):
    """Rows are kept by content: another question, and another order, runs no tower. A small cache forgets the longest unused. limits: PICTURE_ROWS"""
    vision.write_folder(tmp_path / "qwen", "qwen2_vl")
    row = 128 * 4  # bytes of a row of this model
    size = row * sum(vision.qwen_vl.rows(*vision.PICTURES[p][:2]) for p in (0, 3))
    s = Server(tmp_path / "qwen", tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32",
               "--set", f"picture_cache_bytes:{size}").wait_ready()
    try:
        for pictures, want in [((0,), (0, 1)), ((0, 3), (1, 2)), ((3, 0), (3, 2)), ((1, 0), (4, 3)), ((3,), (4, 4))]:
            text = f"what is {want[1]} and {want[0]}"
            status, answer = chat(s, [{"type": "text", "text": text}, *(url(picture(p, "png")) for p in pictures)])
            assert status == 200, answer
            wait_events(s, *want)
        assert 0 < s.metric("nv_llm_picture_cache_bytes") <= size
    finally:
        s.stop()


def wait_events(server, hits, misses):
    """Metrics are brought up to date ten times a second."""
    until = time.monotonic() + 60
    while True:
        now = tuple(server.metric("nv_llm_picture_events", picture_event=e) for e in ("hit", "miss"))
        if now == (hits, misses):
            return
        assert time.monotonic() < until, (now, hits, misses)


def test_text_alone_is_answered_as_before(server):
    status, answer = chat(server, "the quick fox")
    assert status == 200 and answer["choices"][0]["message"]["content"], answer


def test_other_apis_have_pictures_too(server):
    data, text = picture(0, "png"), "the quick fox"
    status, answer = chat(server, [url(data), {"type": "text", "text": text}])
    assert status == 200, answer
    want, n = answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]
    body = {"model": "ensemble", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, {"type": "text", "text": text}]}]}
    status, answer = server.request("/v1/messages", body)
    assert status == 200 and answer["content"][0]["text"] == want, answer
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] == n > answer["usage"]["input_tokens"] >= 0
    options = {"temperature": 0, "num_predict": 6}
    status, answer = server.request("/api/chat", {"model": "ensemble", "stream": False, "options": options, "ignore_eos": True,
                                                  "messages": [{"role": "user", "content": text, "images": [data]}]})
    assert status == 200 and answer["message"]["content"] == want and answer["prompt_eval_count"] == n, answer
    status, answer = server.request("/api/generate", {"model": "ensemble", "stream": False, "options": options, "prompt": text,
                                                      "ignore_eos": True, "images": [data]})
    assert status == 200 and answer["response"] == want, answer
    status, answer = server.request("/props")
    assert status == 200 and answer["modalities"]["vision"] is True


def test_responses_have_pictures_and_go_on_from_them(server):
    def said(answer):
        return answer["output"][0]["content"][0]["text"]

    seen = [{"type": "input_image", "image_url": f"data:image/png;base64,{picture(0, 'png')}", "detail": "auto"},
            {"type": "input_text", "text": "the quick fox"}]
    chats = [url(picture(0, "png")), {"type": "text", "text": "the quick fox"}]
    ask = {"model": "ensemble", "max_output_tokens": 6, "temperature": 0, "ignore_eos": True}
    status, first = server.request("/v1/responses", {**ask, "input": [{"role": "user", "content": seen}]})
    assert status == 200, first
    status, want = chat(server, chats)
    assert status == 200 and said(first) == want["choices"][0]["message"]["content"]
    assert first["usage"]["input_tokens"] == want["usage"]["prompt_tokens"] > 16
    counted = server.request("/v1/responses/input_tokens", {"model": "ensemble", "input": [{"role": "user", "content": seen}]})[1]
    assert counted["input_tokens"] == first["usage"]["input_tokens"]
    status, second = server.request("/v1/responses", {**ask, "previous_response_id": first["id"], "input": "and so"})
    assert status == 200, second
    status, want = server.request("/v1/chat/completions", {
        "model": "ensemble", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "messages": [
            {"role": "user", "content": chats}, {"role": "assistant", "content": said(first)}, {"role": "user", "content": "and so"}]})
    assert status == 200 and said(second) == want["choices"][0]["message"]["content"]
    for part, why in [({"type": "input_image", "image_url": "http://127.0.0.1/cat.png"}, "not fetched from addresses"),
                      ({"type": "input_image", "file_id": "file-1"}, "not of a file_id"),
                      ({"type": "input_file", "file_id": "file-1"}, "input_file")]:
        status, answer = server.request("/v1/responses", {**ask, "input": [{"role": "user", "content": [*seen, part]}]})
        assert status == 400 and answer["error"]["param"] == "input.0.content.2" and why in answer["error"]["message"], answer


def test_tools_answer_with_pictures(server, tmp_path):
    """Where the template has a place for them they stand in the tool's message, else in one of the user behind all tools."""
    data, call = picture(0, "png"), {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    before = [{"role": "user", "content": "look"}, {"role": "assistant", "content": "", "tool_calls": [{"id": i, **call} for i in "ab"]}]
    shown = [url(data), {"type": "text", "text": "a fox"}]
    tools = [{"role": "tool", "tool_call_id": "a", "content": shown}, {"role": "tool", "tool_call_id": "b", "content": "no fox"}]
    apart = [{"role": "tool", "tool_call_id": "a", "content": "a fox"}, tools[1], {"role": "user", "content": [url(data)]}]
    results = [{"role": "user", "content": "look"},
               {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "look", "input": {}} for i in "ab"]},
               {"role": "user", "content": [
                   {"type": "tool_result", "tool_use_id": "a", "content": [
                       {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
                       {"type": "text", "text": "a fox"}]},
                   {"type": "tool_result", "tool_use_id": "b", "content": "no fox"}]}]
    items = [{"role": "user", "content": "look"},
             *[{"type": "function_call", "call_id": i, "name": "look", "arguments": "{}"} for i in "ab"],
             {"type": "function_call_output", "call_id": "a", "output": [
                 {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}, {"type": "input_text", "text": "a fox"}]},
             {"type": "function_call_output", "call_id": "b", "output": "no fox"}]
    ask = {"model": "ensemble", "temperature": 0, "ignore_eos": True}

    def answers(s):
        for path, body in (("/v1/chat/completions", {"messages": before + tools, "max_tokens": 6}),
                           ("/v1/messages", {"messages": results, "max_tokens": 6}),
                           ("/v1/responses", {"input": items, "max_output_tokens": 6})):
            status, answer = s.request(path, {**ask, **body})
            assert status == 200, answer
            yield answer.get("choices", [{}])[0].get("message", {}).get("content") or (
                answer["content"][0]["text"] if "content" in answer else answer["output"][0]["content"][0]["text"])

    native = list(answers(server))
    status, answer = server.request("/v1/chat/completions", {**ask, "messages": before + apart, "max_tokens": 6})
    assert status == 200 and len(set(native)) == 1 and native[0] != answer["choices"][0]["message"]["content"]
    folder = tmp_path / "llava"
    vision.write_folder(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
        "{% elif m.role == 'user' %}{{ '<image>\\n' }}{% endif %}{% endfor %}{% endfor %}<|assistant|>")
    s = Server(folder, tmp_path, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32").wait_ready()
    try:
        moved = list(answers(s))
        status, answer = s.request("/v1/chat/completions", {**ask, "messages": before + apart, "max_tokens": 6})
        assert status == 200 and set(moved) == {answer["choices"][0]["message"]["content"]}
    finally:
        s.stop()


def test_a_picture_is_seen_the_way_up_that_its_camera_says(server):
    """Orientation 6: the first row is at the right, the first column at the top."""
    exif = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    pixels = vision.pixels(*vision.PICTURES[1])
    plain, turned = vision.png(pixels), vision.png(np.rot90(pixels, -1))
    end = plain.index(b"IDAT") - 4
    held = plain[:end] + struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif)) + plain[end:]
    answers = []
    for data in (held, turned, plain):
        status, answer = chat(server, [url(base64.b64encode(data).decode()), {"type": "text", "text": "so"}], logprobs=True,
                              top_logprobs=5)
        assert status == 200, answer
        answers.append(numbers(answer["choices"][0]))
    assert answers[0] == answers[1] != answers[2]


REFUSED = [
    ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/cat.png"}}], "not fetched from addresses"),
    ([{"type": "image_url", "image_url": {}}], "image_url without url"),
    ([{"type": "input_audio"}], "text and image_url are supported"),
    ([url("AAAA")], "JPEG, PNG, WebP, PPM"),
    ([url("!!!!")], "is no base64"),
    ([url("")], "messages: has an empty picture"),
    ([url(base64.b64encode(vision.png(vision.pixels(9, 9, 1))[:-30]).decode())], "picture 0: this PNG picture cannot be read"),
    ([url(base64.b64encode(b"P6\n1 2000\n255\n" + bytes(6000)).decode())], "64000 pixels"),
    ([{"type": "text", "text": "<image> and"}, url(picture(0, "png"))], "2 places for pictures"),
    ([url(picture(0, "png"))] * 65, "64 pictures"),
]


@pytest.mark.parametrize("content, part", REFUSED, ids=[p for _, p in REFUSED])
def test_what_is_no_picture_is_refused_by_name(server, content, part):
    """limits: IMAGES"""
    status, answer = chat(server, content)
    assert status == 400 and part in json.dumps(answer, ensure_ascii=False), answer
    status, answer = chat(server, "the quick fox")
    assert status == 200, answer


def test_a_request_to_the_model_itself_brings_pictures(server):
    """The parameter `images` of tensorrt_llm, with the model's image token in the prompt's ids."""
    config = server.request("/v2/models/tensorrt_llm/config")[1]
    assert server.request("/v1/models")[1]["data"][0]["architecture"]["input_modalities"] == ["text", "image"]
    assert json.loads(config["parameters"]["model_description"]["string_value"])["pictures"] is True
    golden, talk = GOLDEN[1], vision.TALKS[1]
    ids = server.request("/tokenize", {"prompt": "<|user|><image>\n<image>\nwhat is and in the wind <|assistant|>",
                                       "add_special_tokens": False})[1]["tokens"]
    images = ",".join(picture(p, "ppm") for p in talk if isinstance(p, int))
    body = {"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [6], "images": images,
            "exclude_input_in_output": True}
    status, answer = server.generate(body, "tensorrt_llm")
    assert status == 200, answer
    assert list(answer["output_ids"])[:6] == [row[0][0] for row in golden["top"]], answer
    for wrong, part in [("", "is no base64"), (images + ",", "picture 2 is no base64"), (7, "must be a string"),
                        (",".join(["AAAA"] * 65), "at most 64 pictures")]:
        status, answer = server.generate({**body, "images": wrong}, "tensorrt_llm")
        assert status == 400 and part in json.dumps(answer), answer


def test_words_that_the_tokenizer_lacks_are_named(tmp_path):
    vision.write_folder(tmp_path / "m", "idefics3")
    for word, part in ((vision.idefics3.EDGE, "the tokenizer has no token '<fake_token_around_image>'"),
                       (vision.idefics3.IMAGE, "'<image>' of the tokenizer is -1")):
        text = (tmp_path / "m/tokenizer.json").read_text()
        (tmp_path / "m/tokenizer.json").write_text(text.replace(word, "<other>"))
        run = subprocess.run([BIN / "nereid", "build", tmp_path / "m", "--output_dir", tmp_path / "e"], capture_output=True, text=True,
                             timeout=300, check=False)
        assert run.returncode and part in run.stderr, run
        (tmp_path / "m/tokenizer.json").write_text(text)


def test_norms_inside_layers_are_not_divided(tmp_path):
    vision.write_folder(tmp_path / "m", vision.kosmos2.KIND)
    run = subprocess.run([BIN / "nereid", "build", tmp_path / "m", "--output_dir", tmp_path / "e", "--tp_size", "3"], capture_output=True, text=True,
                         timeout=300, check=False)
    assert run.returncode and "tp_size 3: norms inside attention and MLP need all heads" in run.stderr, run


def test_parts_of_vila_that_are_others_are_named(tmp_path):
    vision.write_folder(tmp_path / "m", "vila")
    config, projector = tmp_path / "m/config.json", tmp_path / "m/mm_projector/model.safetensors"
    text, weights = config.read_text(), projector.read_bytes()

    def refused(part):
        run = subprocess.run([BIN / "nereid", "build", tmp_path / "m", "--output_dir", tmp_path / "e"], capture_output=True, text=True,
                             timeout=300, check=False)
        config.write_text(text)
        projector.write_bytes(weights)
        return run.returncode and part in run.stderr

    config.write_text(text.replace("mlp_downsample", "mlp_downsample_3x3_fix"))
    assert refused("the projector 'mlp_downsample_3x3_fix' (mm_projector_cfg.mm_projector_type) is not supported; known: mlp_downsample")
    config.write_text(text.replace('"resize"', '"dynamic"'))
    assert refused("'image_aspect_ratio' must be resize, pad or square, got 'dynamic'")
    projector.write_bytes(weights.replace(b"layers.4.bias", b"layers.5.bias"))
    assert refused("the tensor 'layers.5.bias' is no part of the projector mlp_downsample")
    (tmp_path / "m/vision_tower/model.safetensors").unlink()
    assert refused("m/vision_tower: no weights; expected model.safetensors")


def test_run_reads_a_picture(tmp_path):
    vision.write_folder(tmp_path / "llava")
    (tmp_path / "p.ppm").write_bytes(vision.ppm(vision.pixels(*vision.PICTURES[0])))
    run = [BIN / "nereid", "run", tmp_path / "llava", "--chat", "-p", "the quick fox", "-n", "6", "--temperature", "0", "-q",
           "--ignore-eos"]
    env = dict(os.environ, NEREID_CACHE=str(tmp_path / "cache"))
    seen = subprocess.run([*run, "--image", tmp_path / "p.ppm"], env=env, capture_output=True, text=True, timeout=300, check=True)
    blind = subprocess.run(run, env=env, capture_output=True, text=True, timeout=300, check=True)
    assert seen.stdout != blind.stdout
    words = json.loads((tmp_path / "llava/tokenizer.json").read_text())["model"]["vocab"]
    first = next(w for w, i in words.items() if i == GOLDEN[0]["top"][0][0][0])
    assert seen.stdout.lstrip().startswith(first.replace("\u0120", " ").lstrip()), (first, seen.stdout)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_run_reads_a_video(tmp_path, kind):
    """The pictures of a folder, by their names; Qwen3-VL's times are written, too."""
    vision.write_folder(tmp_path / "m", kind)
    (width, height), seeds, fps = vision.VIDEO_TALKS[0][0]
    (tmp_path / "frames").mkdir()
    for i, seed in enumerate(seeds):
        (tmp_path / f"frames/{i:03}.png").write_bytes(vision.png(vision.pixels(width, height, seed)))
    env = dict(os.environ, NEREID_CACHE=str(tmp_path / "cache"))

    def run(*more, model="m"):
        return subprocess.run([BIN / "nereid", "run", tmp_path / model, "--chat", "-p", vision.VIDEO_TALKS[0][1], "-n", "6", "--temperature", "0", "-q",
                               "--ignore-eos", "--json", *more], env=env, capture_output=True, text=True, timeout=300)
    said = run("--video", tmp_path / "frames", "--video_fps", str(fps))
    golden = GOLDENS[f"{kind}_video"][0]
    answer = json.loads(said.stdout.splitlines()[-1])
    tokenizer = Tokenizer.from_file(str(tmp_path / "m/tokenizer.json"))
    assert answer["prompt_tokens"] == golden["n_prompt"] and answer["text"] == tokenizer.decode([row[0][0] for row in golden["top"]]), answer
    (tmp_path / "none").mkdir()
    assert "expected 1 to 768" in run("--video", tmp_path / "none").stderr
    assert "frames a second" in run("--video", tmp_path / "frames", "--video_fps", "0").stderr
    vision.write_folder(tmp_path / "llava")
    assert "takes no videos" in run("--video", tmp_path / "frames", model="llava").stderr


def test_run_writes_the_words_of_a_picture(tmp_path):
    """Phi-3's template has texts alone; the place of a picture is a word of them."""
    vision.write_folder(tmp_path / "phi", "phi3_v")
    (tmp_path / "p.ppm").write_bytes(vision.ppm(vision.pixels(*vision.PICTURES[0])))
    env = dict(os.environ, NEREID_CACHE=str(tmp_path / "cache"))
    told, written = (subprocess.run([BIN / "nereid", "run", tmp_path / "phi", *prompt, "--image", tmp_path / "p.ppm", "-n", "6", "--temperature", "0", "-q",
                                     "--ignore-eos"], env=env, capture_output=True, text=True, timeout=300, check=True).stdout
                     for prompt in (["--chat", "-p", "the quick fox"], ["-p", "<|user|>\n<|image_1|>\nthe quick fox <|assistant|>\n"]))
    assert told.strip() and told == written
