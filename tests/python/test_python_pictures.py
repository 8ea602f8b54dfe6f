# SPDX-License-Identifier: Apache-2.0
"""Pictures and videos of nereid.LLM: answers are transformers' (tests/model/make_vision_goldens.py)."""
import base64
import io
import json
import pathlib
import struct
import sys
import threading
import zlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import vision  # noqa: E402

GOLDENS = json.loads((ROOT / "tests/model/vision_answers.json").read_text())["talks"]
SURE = 3e-4  # log probabilities that are nearer may change places


@pytest.fixture(scope="module")
def nereid():
    import nereid
    return nereid


@pytest.fixture
def open_kind(nereid, tmp_path):
    def make(kind):
        vision.write_folder(tmp_path / kind, kind)
        return nereid.LLM(tmp_path / kind, n_threads=1, kv_dtype="float32")
    return make


def ppm(number):
    return vision.ppm(vision.pixels(*vision.PICTURES[number]))


def frames(video, form=vision.ppm):
    (width, height), seeds, _ = video
    return [form(vision.pixels(width, height, seed)) for seed in seeds]


def talk_of(talk, as_openai=False):
    def part(p):
        if isinstance(p, str):
            return {"type": "text", "text": p}
        if isinstance(p, int) and as_openai:
            return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(ppm(p)).decode()}}
        if isinstance(p, int):
            return {"type": "image", "image": ppm(p)}
        if as_openai:
            url = "data:video/jpeg;base64," + ",".join(base64.b64encode(f).decode() for f in frames(p, vision.png))
            return {"type": "video_url", "video_url": {"url": url}, **({"fps": p[2]} if p[2] else {})}
        return {"type": "video", "video": {"frames": frames(p), **({"fps": p[2]} if p[2] else {})}}
    return [{"role": "user", "content": [part(p) for p in talk]}]


def same(output, golden):
    for got, row in zip(output.outputs[0].token_ids, golden["top"]):
        if row[0][1] - row[1][1] < SURE:
            break
        assert got == row[0][0], (output.outputs[0].token_ids, golden["top"])


def greedy(nereid):
    return nereid.SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("kind", ["clip", "qwen2_5_vl", "qwen3_vl", "llava_onevision"])
def test_chats_with_pictures_answer_as_the_reference_does(nereid, open_kind, kind):
    with open_kind(kind) as llm:
        for as_openai in (False, True):
            for golden, talk in zip(GOLDENS[kind], vision.talks(kind)):
                same(llm.chat(talk_of(talk, as_openai), greedy(nereid)), golden)
            for golden, talk in zip(GOLDENS.get(f"{kind}_video", []), vision.VIDEO_TALKS):
                same(llm.chat(talk_of(talk, as_openai), greedy(nereid)), golden)


def white(side):
    """A PNG of a few kB that takes long to read."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    pack, row = zlib.compressobj(1), b"\0" + b"\xff" * (3 * side)
    rows = b"".join(pack.compress(row) for _ in range(side)) + pack.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_text_does_not_wait_for_pictures_of_other_threads(nereid, open_kind):
    ended, png = [], white(8192)
    with open_kind("clip") as llm:
        wanted = nereid.SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        chat = [{"role": "user", "content": [{"type": "image", "image": png}, {"type": "text", "text": "the quick fox"}]}]
        llm.generate("the quick fox", wanted)
        enqueue = llm._inbox.raw.enqueue
        begun = threading.Event()

        def picture():
            ended.append(len(llm.chat(chat, wanted).outputs[0].token_ids))

        class Raw:
            """Tells when the picture's request is handed to the engine."""
            def __getattr__(self, name):
                return getattr(raw, name)

            def enqueue(self, fields):
                begun.set()
                return enqueue(fields)

        raw, llm._inbox.raw = llm._inbox.raw, Raw()
        asks = threading.Thread(target=picture)
        asks.start()
        assert begun.wait(60)
        for _ in range(5):
            assert len(llm.generate("the quick fox", wanted).outputs[0].token_ids) == 4
            ended.append("text")
        asks.join()
        assert ended == ["text"] * 5 + [4]
        assert not llm._inbox._queues and not llm._inbox._early and llm._inbox._running == 0


class Picture:
    """What of Pillow's pictures is used."""
    mode = "L"

    def __init__(self, data):
        self.data = data

    def convert(self, mode):
        assert mode == "RGB"
        out = Picture(self.data)
        out.mode = mode
        return out

    def save(self, out, format):
        assert format == "PPM" and isinstance(out, io.BytesIO) and self.mode == "RGB"
        out.write(self.data)


def test_prompts_bring_pictures_in_all_forms(nereid, open_kind, tmp_path):
    (tmp_path / "a.ppm").write_bytes(ppm(0))
    golden = GOLDENS["clip"][0]
    with open_kind("clip") as llm:
        text = llm.tokenizer.apply_chat_template([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": vision.talks("clip")[0][1]}]}])
        ids = llm.tokenizer.encode(text, add_special_tokens=False)
        for image in (ppm(0), bytearray(ppm(0)), tmp_path / "a.ppm", str(tmp_path / "a.ppm"), [Picture(ppm(0))],
                      "data:image/any;base64," + base64.b64encode(ppm(0)).decode()):
            same(llm.generate({"prompt_token_ids": ids, "multi_modal_data": {"image": image}}, greedy(nereid)), golden)
        both = llm.generate([{"prompt_token_ids": ids, "multi_modal_data": {"image": ppm(0)}}, "the quick fox"], greedy(nereid))
        same(both[0], golden)
        assert both[1].text and both[1].prompt == "the quick fox"


def test_wrong_pictures_are_told(nereid, open_kind, tmp_path):
    one = frames(vision.VIDEOS[0])
    with open_kind("qwen2_5_vl") as llm:
        def ask(**prompt):
            return llm.generate(prompt, greedy(nereid))
        for kind, text, prompt in [
                (TypeError, "multi_modal_data", {"prompt": "a", "images": []}), (TypeError, "prompt or prompt_token_ids", {"multi_modal_data": {}}),
                (TypeError, "'sound' is not known", {"prompt": "a", "multi_modal_data": {"sound": b""}}),
                (TypeError, "got int", {"prompt": "a", "multi_modal_data": {"image": 7}}),
                (FileNotFoundError, "none.png", {"prompt": "a", "multi_modal_data": {"image": str(tmp_path / "none.png")}}),
                (TypeError, "a film is not decoded", {"prompt": "a", "multi_modal_data": {"video": "film.mp4"}}),
                (TypeError, "not rate", {"prompt": "a", "multi_modal_data": {"video": {"frames": one, "rate": 2}}}),
                (nereid.InvalidArgumentError, "0 places for pictures", {"prompt": "a", "multi_modal_data": {"image": ppm(0)}}),
                (nereid.InvalidArgumentError, "0 places for videos", {"prompt": "a", "multi_modal_data": {"video": one}}),
                (nereid.InvalidArgumentError, "frames a second", {"prompt": "<|video_pad|>", "multi_modal_data": {"video": {"frames": one, "fps": 0}}}),
                (nereid.UnsupportedError, "JPEG, PNG", {"prompt": "<|video_pad|>", "multi_modal_data": {"video": [b"x"]}}),
                (ValueError, "at most 768", {"prompt": "<|video_pad|>", "multi_modal_data": {"video": {"frames": one[:1] * 769}}}),
                (ValueError, "at most 64", {"prompt": "<|image_pad|>", "multi_modal_data": {"image": [ppm(0)] * 65}})]:
            with pytest.raises(kind, match=text):
                ask(**prompt)
        assert ask(prompt="a").text is not None  # the model goes on
    with open_kind("clip") as llm, pytest.raises(nereid.UnsupportedError, match="no videos"):
        llm.generate({"prompt": "<image>", "multi_modal_data": {"video": one}})
