# SPDX-License-Identifier: Apache-2.0
"""/v1/audio/transcriptions and /v1/audio/translations, by OpenAI's own Python package and by bare forms. The model is a backend of
the tests (backends/hearing) that answers with listed ids and tells what it was asked."""
import io
import json
import math
import pathlib
import shutil
import struct

import httpx
import openai
import pytest

from triton_server import BUILD, Server

WORDS = ["hello", "world", "good", "day", "to", "you", "all", "again", "-->", "la"]
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>", "<|startofprev|>",
           "<|notimestamps|>"]
END, START, EN, DE, TRANSCRIBE, TRANSLATE, PREVIOUS, NO_TIMES = range(len(WORDS), len(WORDS) + len(SPECIAL))
HELLO, WORLD, GOOD, DAY, TO, YOU, ALL, AGAIN, ARROW, LA = range(len(WORDS))


def at(seconds):
    return NO_TIMES + 1 + round(seconds / 0.02)


def wav(seconds, rate=16000):
    n = int(seconds * rate)
    data = b"".join(struct.pack("<h", round(9000 * math.sin(i * i * 1e-5))) for i in range(n))
    return (b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
            + b"data" + struct.pack("<I", len(data)) + data)


SHORT, LONG = wav(2), wav(31.5, 8000)

CONFIG = """name: "{name}"
backend: "tensorrtllm"
max_batch_size: 8
input [ {{ name: "encoder_input_features" data_type: {dtype} dims: [ -1, -1 ] }},
        {{ name: "encoder_output_lengths" data_type: TYPE_INT32 dims: [ 1 ] }},
        {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] }},
        {{ name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] }},
        {{ name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }},
        {{ name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] optional: true }},
        {{ name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }},
        {{ name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true }},
        {{ name: "runtime_top_p" data_type: TYPE_FP32 dims: [ 1 ] optional: true }},
        {{ name: "random_seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }},
        {{ name: "return_log_probs" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
        {{ name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }} ]
output [ {{ name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
         {{ name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }},
         {{ name: "cum_log_probs" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "tokenizer_dir" value: {{ string_value: "{tokenizer}" }} }}
parameters {{ key: "answers" value: {{ string_value: "{answers}" }} }}
parameters {{ key: "log" value: {{ string_value: "{log}" }} }}
"""

SENTENCE = [HELLO, WORLD]
# model: the ids of its answers, one after the other, and the sum of their log probabilities
MODELS = {
    "plain": [(SENTENCE, -0.3)],
    "times": [([at(0), HELLO, WORLD, at(0.8), at(1), GOOD, ARROW, DAY, at(1.9)], -0.9)],
    "asked": [([DE], 0), (SENTENCE, -0.3)],
    "mute": [([TRANSCRIBE], 0)],
    # the first window ends within a sentence, which is heard again from 28 s on
    "long": [([at(0), HELLO, at(10), at(10), WORLD, at(28), at(28)], -1), ([at(0), GOOD, DAY, at(3.5)], -0.2)],
    "loop": [([LA] * 60, -1), ([LA] * 3, -9), (SENTENCE, -0.3)],
    "silent": [([at(0), HELLO, at(10), at(10), WORLD, at(28), at(28)], "-30/0.9"), ([at(0), GOOD, at(1)], "-0.2/0.9")],
    "sure": [([at(0), HELLO, at(1)], "-0.3/0.9")],
    **{f"doubtful{i}": [([at(0), HELLO, at(1)], "-30/0.4"), ([at(0), GOOD, at(1)], "-0.2/0.4")] for i in range(4)},
    "listed": [([at(0), HELLO, at(1)], -30)],
    "still": [([at(0), HELLO, at(0.02), at(0.02)], -0.1)],
    "broken": [([], 0)],
    "half": [(SENTENCE, -0.3)],
    "streamed": [([at(0), HELLO, at(10), at(10), WORLD, at(28), at(28)], -1), ([at(0), GOOD, DAY, at(3.5)], -0.2)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def server(folder):
    for name, multilingual in (("tokenizer", True), ("english", False)):
        (folder / name).mkdir()
        (folder / name / "tokenizer.json").write_text(json.dumps({
            "added_tokens": [{"id": len(WORDS) + i, "content": s, "special": True} for i, s in enumerate(SPECIAL)],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "ignore_merges": True, "merges": [], "vocab": {"\u0120" + w: i for i, w in enumerate(WORDS)}}}))
        (folder / name / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
        (folder / name / "generation_config.json").write_text(json.dumps({"is_multilingual": multilingual, "max_length": 448,
                                                                                "max_initial_timestamp_index": 50}))
        (folder / name / "preprocessor_config.json").write_text(json.dumps({"feature_size": 80, "sampling_rate": 16000}))
    repository = folder / "models"
    for name, answers in [*MODELS.items(), ("english", [(SENTENCE, -0.3)])]:
        (repository / name / "1").mkdir(parents=True)
        shutil.copy(BUILD / "tests/backends/hearing/libtriton_hearing.so", repository / name / "libtriton_tensorrtllm.so")
        (repository / name / "config.pbtxt").write_text(CONFIG.format(
            name=name, dtype="TYPE_FP16" if name == "half" else "TYPE_FP32", log=folder / f"{name}.log",
            tokenizer=folder / ("english" if name == "english" else "tokenizer"),
            answers=";".join(" ".join(map(str, ids)) + f"/{p}" for ids, p in answers)))
    s = Server(folder, repository)
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, s.log()[-4000:]
    assert "AddressSanitizer" not in s.log()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.http}/v1", api_key="none", max_retries=0)


def asked(folder, model):
    return [json.loads(x) for x in (folder / f"{model}.log").read_text().splitlines()]


def post(server, path="transcriptions", sound=SHORT, **fields):
    r = httpx.post(f"http://127.0.0.1:{server.http}/v1/audio/{path}", files={"file": ("a.wav", sound)} if sound is not None else
                   {"none": ("", b"")}, data=fields, timeout=60)
    return r


def error(r, status=400):
    assert r.status_code == status, r.text
    return r.json()["error"]


def test_a_short_file_is_one_question(client, folder):
    t = client.audio.transcriptions.create(model="plain", file=("a.wav", io.BytesIO(SHORT)), language="en")
    assert t.text == "hello world"
    assert t.usage.type == "duration" and t.usage.seconds == 2
    (q,) = asked(folder, "plain")
    assert q["shape"] == [1, 3000, 80] and q["encoder_output_lengths"] == [1500]
    assert q["input_ids"] == [START, EN, TRANSCRIBE, NO_TIMES]
    assert q["request_output_len"] == [224] and q["end_id"] == [END] and q["runtime_top_k"] == [1] and q["temperature"] == []
    assert any(abs(v) > 1e-3 for v in q["features"]) and "logit_bias" not in q


def test_half_precision_has_the_same_features(client, folder, server):
    assert post(server, model="half", language="en").json()["text"] == "hello world"
    assert post(server, model="plain", language="en").status_code == 200
    half, full = asked(folder, "half")[-1], asked(folder, "plain")[-1]
    assert half["features"] == pytest.approx(full["features"], abs=1e-3) and half["shape"] == full["shape"]


def test_the_prompt_stands_before_the_sound(server, folder):
    assert post(server, model="plain", language="english", prompt="to you").json()["text"] == "hello world"
    assert asked(folder, "plain")[-1]["input_ids"] == [PREVIOUS, TO, YOU, START, EN, TRANSCRIBE, NO_TIMES]


def test_translation_is_another_task(client, folder):
    t = client.audio.translations.create(model="asked", file=("a.wav", io.BytesIO(SHORT)))
    assert t.text == "hello world"
    language, q = asked(folder, "asked")
    assert language["input_ids"] == [START] and language["request_output_len"] == [1]
    assert set(language["logit_bias"]) == {str(EN), str(DE)}
    assert q["input_ids"] == [START, DE, TRANSLATE, NO_TIMES]


def test_a_model_that_names_no_language_is_told_about(server):
    assert "field language" in error(post(server, model="mute"), 500)["message"]


def test_english_models_are_not_told_a_language(server, folder):
    assert post(server, model="english").json()["text"] == "hello world"
    assert asked(folder, "english")[-1]["input_ids"] == [START, NO_TIMES]
    assert "does not translate" in error(post(server, "translations", model="english"))["message"]


def test_segments_have_times(client, folder):
    t = client.audio.transcriptions.create(model="times", file=("a.wav", io.BytesIO(SHORT)), language="de",
                                           response_format="verbose_json", timestamp_granularities=["segment"])
    assert (t.task, t.language, t.duration, t.text) == ("transcribe", "german", 2.0, "hello world good --> day")
    assert [(s.id, s.start, s.end, s.text) for s in t.segments] == [(0, 0, 0.8, " hello world"), (1, 1, 1.9, " good --> day")]
    assert t.segments[0].tokens == [at(0), HELLO, WORLD, at(0.8)]
    assert t.segments[0].avg_logprob == pytest.approx(-0.09) and t.segments[0].temperature == 0
    assert asked(folder, "times")[0]["input_ids"] == [START, DE, TRANSCRIBE]


def test_subtitles(server):
    r = post(server, model="times", language="de", response_format="srt")
    assert r.headers["content-type"].startswith("text/plain")
    assert r.text == "1\n00:00:00,000 --> 00:00:00,800\nhello world\n\n2\n00:00:01,000 --> 00:00:01,900\ngood -> day\n\n"
    r = post(server, model="times", language="de", response_format="vtt")
    assert r.headers["content-type"].startswith("text/vtt")
    assert r.text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.800\nhello world\n\n")
    assert post(server, model="plain", language="en", response_format="text").text == "hello world\n"


def test_long_sound_goes_on_where_the_times_end(server, folder):
    r = post(server, model="long", sound=LONG, language="en", response_format="verbose_json").json()
    assert r["text"] == "hello world good day" and r["duration"] == 31.5
    assert [(s["start"], s["end"], s["seek"]) for s in r["segments"]] == [(0, 10, 0), (10, 28, 0), (28, 31.5, 2800)]
    first, second = asked(folder, "long")
    assert first["input_ids"] == [START, EN, TRANSCRIBE]
    assert second["input_ids"] == [PREVIOUS, at(0), HELLO, at(10), at(10), WORLD, at(28), START, EN, TRANSCRIBE]
    assert first["features"] != second["features"] and second["shape"] == [1, 3000, 80]


def test_what_repeats_or_is_improbable_is_asked_for_again(server, folder):
    r = post(server, model="loop", language="en", response_format="verbose_json").json()
    assert r["text"] == "hello world" and r["segments"][0]["temperature"] == pytest.approx(0.4)
    assert [q["temperature"] for q in asked(folder, "loop")] == [[], pytest.approx([0.2]), pytest.approx([0.4])]


def test_a_window_without_speech_is_left_out(server, folder):
    """It is not asked for again, and the next one begins behind it, whatever times it has."""
    r = post(server, model="silent", sound=LONG, language="en", response_format="verbose_json").json()
    assert [(s["seek"], s["text"], s["no_speech_prob"]) for s in r["segments"]] == [(3000, " good", 0.9)]
    assert [q["input_ids"] for q in asked(folder, "silent")] == [[START, EN, TRANSCRIBE]] * 2


def test_what_the_model_is_sure_of_is_kept(server):
    r = post(server, model="sure", language="en", response_format="verbose_json").json()
    assert [(s["text"], s["no_speech_prob"]) for s in r["segments"]] == [(" hello", 0.9)]


@pytest.mark.parametrize("model, fields, text, n", [
    ("doubtful0", {}, "good", 2), ("doubtful1", {"logprob_threshold": "-100"}, "hello", 1),
    ("doubtful2", {"no_speech_threshold": "0.3"}, "", 1),
    ("doubtful3", {"compression_ratio_threshold": "0.1", "temperature": "0,0.3,0.9"}, "good", 3)])
def test_thresholds_are_the_clients(server, folder, model, fields, text, n):
    """The first answer is improbable, and the model is not sure whether there is speech."""
    r = post(server, model=model, language="en", response_format="verbose_json", **fields)
    assert r.status_code == 200 and r.json()["text"] == text, r.text
    assert len(asked(folder, model)) == n


def test_temperatures_may_be_listed_and_the_seed_named(server, folder):
    assert post(server, model="listed", language="en", temperature="0,0.5,0.25", seed="7").status_code == 200
    a = asked(folder, "listed")
    assert [q["temperature"] for q in a] == [[], pytest.approx([0.5]), pytest.approx([0.25])]
    assert [q["random_seed"] for q in a] == [[], [8], [9]]


def test_times_are_asked_for_with_their_rule(server, folder):
    n = len(asked(folder, "times"))
    assert post(server, model="times", language="en", response_format="verbose_json", prompt="to").status_code == 200
    assert post(server, model="times", language="en").status_code == 200
    times, none = asked(folder, "times")[n:]
    assert times["no_timestamps_token_id"] == NO_TIMES and times["max_initial_timestamp_index"] == 50
    assert "no_timestamps_token_id" not in none
    assert (times["no_speech_token_id"], times["no_speech_position"]) == (NO_TIMES - 1, 2)
    assert (none["no_speech_token_id"], none["no_speech_position"]) == (NO_TIMES - 1, 0)


def test_a_temperature_that_is_given_stays(server, folder):
    n = len(asked(folder, "plain"))
    assert post(server, model="plain", language="en", temperature="0.7").status_code == 200
    assert [q["temperature"] for q in asked(folder, "plain")[n:]] == [pytest.approx([0.7])]


def test_a_model_that_stands_still_ends(server, folder):
    assert post(server, model="still", language="en", response_format="verbose_json").status_code == 200
    assert len(asked(folder, "still")) == 4


def test_a_stream_has_a_delta_for_each_segment(client):
    with client.audio.transcriptions.create(model="streamed", file=("a.wav", io.BytesIO(LONG)), language="en", stream=True) as s:
        events = list(s)
    assert [e.type for e in events] == ["transcript.text.delta"] * 3 + ["transcript.text.done"]
    assert [e.delta for e in events[:3]] == ["hello", " world", " good day"]
    assert events[3].text == "hello world good day"


def test_the_model_may_be_wrong(server):
    assert "nothing was heard" in error(post(server, model="broken", language="en"))["message"]
    r = post(server, model="broken", language="en", stream="true")
    assert "nothing was heard" in r.text


@pytest.mark.parametrize("fields, param, text", [
    ({"language": "klingon"}, "language", "no language of this model"),
    ({"response_format": "xml"}, "response_format", "json, text, verbose_json, srt or vtt"),
    ({"temperature": "2"}, "temperature", "from 0 to 1"),
    ({"temperature": "nan"}, "temperature", "from 0 to 1"),
    ({"temperature": "0,"}, "temperature", "from 0 to 1"),
    ({"temperature": "0,0,0,0,0,0,0,0,0"}, "temperature", "up to 8"),
    ({"seed": "-1"}, "seed", "whole number"),
    ({"no_speech_threshold": "2"}, "no_speech_threshold", "from 0 to 1"),
    ({"logprob_threshold": "1"}, "logprob_threshold", "to 0"),
    ({"compression_ratio_threshold": "nan"}, "compression_ratio_threshold", "from 0"),
    ({"timestamp_granularities[]": "word", "response_format": "verbose_json"}, "timestamp_granularities", "must be segment"),
    ({"timestamp_granularities[]": "segment"}, "timestamp_granularities", "verbose_json"),
    ({"stream": "maybe"}, "stream", "true or false"),
    ({"stream": "true", "response_format": "srt"}, "stream", "json or text"),
    ({"include[]": "logprobs"}, "include", "logprobs"),
    ({"prompt": "x" * 65537}, "prompt", "65536 bytes"),
    ({"model": "m" * 300}, "model", "255 bytes"),
])
def test_fields_are_checked(server, fields, param, text):
    e = error(post(server, **{"model": "plain", **fields}))
    assert e["param"].startswith(param) and text in e["message"], e


def test_files_are_checked(server):
    assert "WAV, FLAC, MP3 and Ogg are read" in error(post(server, model="plain", language="en", sound=b"this is a text"))["message"]
    assert "M4A" in error(post(server, model="plain", language="en", sound=b"\0\0\0\x18ftypM4A ")) ["message"].upper()
    assert error(post(server, model="plain", sound=None))["param"] == "file"
    e = error(post(server, model="nobody", language="en"), 404)
    assert "nobody" in e["message"]


def test_a_form_of_another_kind_is_refused(server):
    r = httpx.post(f"http://127.0.0.1:{server.http}/v1/audio/transcriptions", json={"model": "plain"})
    assert r.status_code == 400 and "multipart/form-data" in r.text


def test_too_large_a_file_is_refused_before_it_is_sent(server):
    with server.connect() as c:
        c.sock.sendall(b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
                       b"Content-Length: 200000000\r\n\r\n")
        r = c.reply()
    assert r.status == 413 and b"104857600" in r.body


def test_compressed_files_are_read(server, folder):
    """A second of a tone as FLAC, made here with verbatim frames."""
    r = post(server, model="plain", language="en", sound=flac(16000, 16))
    if r.status_code != 200:
        assert "libsndfile1-dev" in r.text
        pytest.skip("built without libsndfile")
    assert r.json()["text"] == "hello world" and r.json()["usage"]["seconds"] == 1


def crc(data, width, poly):
    value = 0
    for b in data:
        value ^= b << (width - 8)
        for _ in range(8):
            value = (value << 1 ^ (poly if value >> (width - 1) & 1 else 0)) & ((1 << width) - 1)
    return value


def flac(rate, blocks):
    """rate samples in `blocks` frames, each a verbatim subframe of 16 bits."""
    size = rate // blocks
    info = struct.pack(">HH", size, size) + b"\0" * 6 + ((rate << 44) | (0 << 41) | (15 << 36) | rate).to_bytes(8, "big") + b"\0" * 16
    out = b"fLaC" + b"\x80" + len(info).to_bytes(3, "big") + info
    for i in range(blocks):
        head = b"\xff\xf8" + bytes([0x70, 0x08, i]) + struct.pack(">H", size - 1)  # size in 16 bits, mono, 16 bits, rate of the info
        head += bytes([crc(head, 8, 0x07)])
        body = b"\x02" + b"".join(struct.pack(">h", round(9000 * math.sin(k / 5))) for k in range(size))
        frame = head + body
        out += frame + struct.pack(">H", crc(frame, 16, 0x8005))
    return out
