# SPDX-License-Identifier: Apache-2.0
"""The second half of test_cves.py: what was published in 2026 about pictures, sounds, models that sleep, drafts and files."""
import base64
import concurrent.futures
import json
import struct
import subprocess
import sys
import threading
import time

import httpx
import pytest

import llm_server
from test_cves import alive

sys.path.insert(0, str(llm_server.ROOT / "tests/tinymodel"))
import make_model  # noqa: E402
import vision  # noqa: E402
import whisper  # noqa: E402


@pytest.fixture(scope="module")
def senses(tmp_path_factory):
    """One that hears, one that sees, and one that goes after each request and drafts."""
    tmp = tmp_path_factory.mktemp("senses")
    whisper.write_folder("whisper", tmp / "hear")
    vision.write_folder(tmp / "see")
    s = llm_server.Server(f"hear={tmp / 'hear'}", tmp, f"see={tmp / 'see'}")
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, s.log_text()[-4000:]


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("drafts")
    make_model.write_folder("llama", tmp / "tiny")
    s = llm_server.Server(f"tiny={tmp / 'tiny'}", tmp, "--keep-alive=0", "--speculative-config", '{"method": "ngram"}')
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, s.log_text()[-4000:]


# ---- pictures and sounds ----

def see(senses, *urls):
    parts = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    return senses.request("/v1/chat/completions", {"model": "see", "max_tokens": 2, "messages": [
        {"role": "user", "content": [*parts, {"type": "text", "text": "what"}]}]})


def picture(width, height):
    return base64.b64encode(vision.png(vision.pixels(width, height, 1))).decode()


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (2, 1), (1, 600)])
def test_cve_2026_22773_pictures_of_a_pixel(senses, size):
    status, answer = see(senses, f"data:image/png;base64,{picture(*size)}")
    assert status in (200, 400), answer
    assert see(senses, f"data:image/png;base64,{picture(20, 20)}")[0] == 200


def test_cve_2026_5497_thousands_of_frames_in_a_request(senses):
    one = picture(8, 8)
    status, answer = see(senses, *[f"data:image/png;base64,{one}"] * 5000)
    assert status == 400 and "pictures" in answer["error"]["message"]
    for url in ("data:video/jpeg;base64," + ",".join([one] * 5000), "data:image/png;base64," + ",".join([one] * 5000)):
        assert see(senses, url)[0] == 400
    assert see(senses, f"data:image/png;base64,{one}")[0] == 200


def wav(n, rate=16000, channels=1, bits=16, said=None):
    width = channels * bits // 8
    head = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * width & 0xffffffff, width & 0xffff, bits)
    return b"RIFF" + struct.pack("<I", 36 + n) + b"WAVEfmt " + head + b"data" + struct.pack("<I", n if said is None else said) + bytes(n)


@pytest.mark.parametrize("sound, statuses", [
    (wav(2000, said=2**32 - 1), (200, 400)), (wav(1000, rate=0), (400,)), (wav(1000, rate=1), (400,)), (wav(1000, rate=2**31), (400,)),
    (wav(1000, channels=0), (400,)), (wav(1000, channels=65535, bits=8), (400,)), (wav(100, bits=0), (400,)), (b"", (400,)),
    (b"RIFF", (400,)), (b"fLaC" + bytes(100), (400,)), (b"OggS" + bytes(100), (400,)), (b"ID3" + bytes(100), (400,)),
    (wav(8_000_000, rate=1000, bits=8), (400,))],  # 8,000 seconds
    ids=["length", "rate-0", "rate-1", "rate-2^31", "channels-0", "channels-65535", "bits-0", "nothing", "riff", "flac", "ogg", "mp3", "hours"])
def test_cve_2026_34760_54233_sounds_that_lie(senses, sound, statuses):
    r = httpx.post(senses.url("/v1/audio/transcriptions"), timeout=120, files={"file": ("a.wav", sound)},
                   data={"model": "hear", "language": "en"})
    assert r.status_code in statuses, r.text
    assert "/" not in r.json().get("error", {}).get("message", ""), "no path in it"
    assert senses.request("/v2/health/live")[0] == 200


# ---- drafts, and models that sleep ----

@pytest.mark.parametrize("fields", [{"repetition_penalty": 1.5}, {"frequency_penalty": 1.5}, {"presence_penalty": -1.5}, {"min_tokens": 5},
                                    {"repetition_penalty": 0.5, "logit_bias": {"7": -100}, "temperature": 0.7}])
def test_cve_2026_44223_penalties_where_tokens_are_drafted(drafts, fields):
    status, answer = drafts.request("/v1/completions", {"model": "tiny", "prompt": "one two one two one two", "max_tokens": 12,
                                                        "temperature": 0, "ignore_eos": True, **fields})
    assert status == 200 and answer["usage"]["completion_tokens"] == 12, answer


def test_cve_2026_43631_models_that_sleep_while_they_are_asked(drafts):
    """Each request loads the model, and behind it the model goes; orders to sleep come in between."""
    stop, seen = threading.Event(), set()

    def ask(number):
        while not stop.is_set():
            body = {"model": "tiny", "prompt": f"number {number}", "max_tokens": 8, "stream": bool(number % 2)}
            status, answer = drafts.request("/v1/completions", body)
            assert status in (200, 503), answer
            seen.add(status)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(ask, i) for i in range(4)]
        for _ in range(8):
            time.sleep(0.05)  # only lets some requests begin
            assert drafts.request("/sleep", b"", method="POST")[0] == 200
            assert drafts.request("/is_sleeping")[1] == {"is_sleeping": True}
            assert drafts.request("/wake_up", b"", method="POST")[0] == 200
        until = time.monotonic() + 60
        while 200 not in seen and time.monotonic() < until:
            time.sleep(0.05)
        stop.set()
        for t in tasks:
            t.result()
    assert drafts.request("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2})[0] == 200


# ---- files ----

@pytest.mark.parametrize("name", ["../x", "1/../../x", "/etc/x", "1/./../../../x", "..", "1/x\0y", "1//../../x"])
def test_cve_2026_24208_files_of_a_load_order_stay_in_their_folder(lab, name):
    config = {"name": "echo", "backend": "identity", "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
              "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}]}
    answer = lab.call("POST", "/v2/repository/models/echo/load", {"parameters": {
        "config": json.dumps(config), f"file:{name}": base64.b64encode(b"x").decode()}})
    assert answer.status >= 400, answer.body
    assert not (lab.models / "x").exists() and not (lab.models.parent / "x").exists()
    alive(lab)


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.999])
def test_cve_2026_7482_tensors_that_reach_beyond_the_end_of_a_gguf_file(tmp_path, keep):
    path = tmp_path / "m.gguf"
    subprocess.run([sys.executable, llm_server.ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--format", "gguf", "--out", path],
                   check=True, stdout=subprocess.DEVNULL)
    data = path.read_bytes()
    path.write_bytes(data[:int(len(data) * keep)])
    for words in (["inspect", path], ["build", "--model_dir", path, "--output_dir", tmp_path / "engine"]):
        done = subprocess.run([llm_server.BIN / "nereid", *words], capture_output=True, text=True)
        assert done.returncode == 1 and "m.gguf" in done.stderr, done
    assert not (tmp_path / "engine/rank0.engine").exists()
