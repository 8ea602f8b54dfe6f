# SPDX-License-Identifier: Apache-2.0
"""The second half of test_cves.py: what was published in 2026 about pictures, sounds, uploads, models that sleep, drafts and files."""
import base64
import concurrent.futures
import json
import pathlib
import random
import select
import struct
import subprocess
import sys
import threading
import time

import httpx
import pytest

import llm_server
from test_cves import alive, rss
from triton_server import Connection

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
    s = llm_server.Server(f"hear={tmp / 'hear'}", tmp, f"see={tmp / 'see'}", "--max-request-memory-mb=48", "--openai-file-mb=2",
                          f"--openai-files-dir={tmp / 'files'}")
    s.folder = tmp
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


# ---- uploads ----

UPLOADS = ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/files"]


@pytest.mark.parametrize("path", UPLOADS)
def test_cve_2026_55646_an_upload_that_is_too_long_is_refused_before_it_is_read(senses, path):
    with Connection(senses.http) as c:
        c.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {1 << 40}\r\n\r\n")
        reply = c.reply()  # of the head alone
    assert reply.status == 413 and reply.json()["error"]["code"] == "file_too_large", reply.body
    assert senses.request("/v2/health/live")[0] == 200


@pytest.mark.parametrize("path", UPLOADS)
def test_cve_2026_55646_an_upload_in_chunks_takes_no_more_memory_than_a_request_may(senses, path):
    """Its length is not known before: it ends where the limit is, not where the client ends."""
    piece = b"\0" * (1 << 20)
    chunk = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    before, most, sent, refused = rss(senses), 0, 0, False
    with Connection(senses.http) as c:
        c.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
               f"Transfer-Encoding: chunked\r\n\r\n{len(head):x}\r\n")
        try:
            c.send(head + b"\r\n")
            while sent < 400 and not refused:
                c.send(chunk)
                sent += 1
                most = max(most, rss(senses))
                refused = bool(select.select([c.sock], [], [], 0)[0])
        except ConnectionError:
            refused = True
        assert refused and sent < 400
        try:
            assert c.reply().status in (400, 413)
        except ConnectionError:
            pass  # it closed while more was on its way
    assert most - before < 64 << 20, (before, most)
    assert senses.request("/v2/health/live")[0] == 200


@pytest.mark.parametrize("name", ["../../../x7302", "/tmp/x7302", "..\\x7302", "%2e%2e/x7302", "a/../../x7302"])
def test_cve_2026_7302_names_of_uploads_are_no_paths(senses, name):
    for path, data in (("/v1/files", {"purpose": "batch"}), ("/v1/audio/transcriptions", {"model": "hear", "language": "en"})):
        r = httpx.post(senses.url(path), timeout=60, files={"file": (name, b"x7302")}, data=data)
        assert r.status_code in (200, 400), r.text
        if r.status_code == 200:
            assert httpx.get(senses.url(f"/v1/files/{r.json()['id']}/content"), timeout=60).content == b"x7302"
            assert httpx.delete(senses.url(f"/v1/files/{r.json()['id']}"), timeout=60).status_code == 200
    assert not pathlib.Path("/tmp/x7302").exists()
    assert not list(senses.folder.rglob("*x7302*")) and not any((p / "x7302").exists() for p in senses.folder.parents)


# ---- drafts, and models that sleep ----

def test_cve_2026_54234_drafts_of_requests_that_are_left_in_the_middle(tmp_path):
    """Others' tokens stay the same ones while requests with drafts come and go at every moment."""
    make_model.write_folder("llama", tmp_path / "tiny")
    s = llm_server.Server(tmp_path / "tiny", tmp_path, "--served-model-name=tiny", "--speculative-config", '{"method": "ngram"}')
    whole = {"model": "tiny", "prompt": "one two one two one two", "max_tokens": 24, "temperature": 0, "ignore_eos": True}

    def leave(seed):
        rng = random.Random(seed)
        for _ in range(12):
            body = json.dumps({**whole, "stream": True, "temperature": 1.5, "max_tokens": 100, "seed": rng.randrange(1 << 30)})
            with Connection(s.http) as c:
                c.request("POST", "/v1/completions", body.encode(), {"Connection": "close"})
                assert c.sock.recv(12) == b"HTTP/1.1 200"
                for _ in range(rng.randrange(6)):
                    c.sock.recv(1 << rng.randrange(4, 12))
    try:
        s.wait_ready()
        expected = s.request("/v1/completions", whole)[1]["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            tasks = [pool.submit(leave, i) for i in range(4)]
            while not all(t.done() for t in tasks):
                status, answer = s.request("/v1/completions", whole)
                assert status == 200 and answer["choices"][0]["text"] == expected, answer
            for t in tasks:
                t.result()
    finally:
        status = s.stop()
    assert status == 0, s.log_text()[-4000:]


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


# ---- fields of requests ----

@pytest.mark.parametrize("fields", [{"input": [-1]}, {"input": [[5, -2**31]]}, {"input": [2**31]}, {"input": [10**9]}])
def test_cve_2026_93592_negative_token_ids_for_vectors(llm, fields):
    for path in ("/v1/embeddings", "/pooling"):
        status, answer = llm.request(path, {"model": "tiny", **fields})
        assert 400 <= status < 500, (path, answer)
    assert llm.request("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1})[0] == 200


@pytest.mark.parametrize("fields", [
    {"kv_transfer_params": {"tp_size": 2**40, "remote_host": "127.0.0.1", "remote_port": 1, "do_remote_prefill": True}},
    {"mm_processor_kwargs": {"size": 10**9, "code_revision": "x"}}, {"media_io_kwargs": {"video": {"num_frames": 10**9}}},
    {"allowed_token_ids": [10**9]}, {"allowed_token_ids": [-1]}], ids=lambda f: next(iter(f)))
def test_cve_2026_93436_93840_94622_to_94627_fields_of_other_servers(llm, fields):
    """They are refused, or told to be unknown and left out: none of them sizes or connects anything."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "temperature": 0}
    usual = llm.request("/v1/completions", body)[1]["choices"][0]["text"]
    status, answer = llm.request("/v1/completions", {**body, **fields})
    assert status == 400 or (status == 200 and answer["choices"][0]["text"] == usual), answer


@pytest.mark.parametrize("regex", ["((((a+)+)+)+)+b", "(a|a|aa)*" * 30 + "b", "((a{1,99}){1,99}){1,99}", "(.*){50}x", "(a?){200}a{200}"])
def test_cve_2026_55574_73556_regular_expressions_that_backtrack(llm, regex):
    status, answer = llm.request("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 8, "structured_outputs": {"regex": regex}})
    assert status in (200, 400), answer
    assert llm.request("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1})[0] == 200


# ---- files ----

@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "../../etc/passwd", "%2e%2e%2f" * 50 + "dev%2fzero", "..%5c..%5cx", "%2fdev%2fzero",
                                  "..", ".", "%252e%252e%252f", "echo%2f..%2fecho"])
def test_cve_2026_24209_no_part_of_a_path_leads_out_of_the_repository(lab, name):
    for method, path in (("GET", f"/v2/models/{name}"), ("GET", f"/v2/models/{name}/config"), ("GET", f"/v2/models/echo/versions/{name}/ready"),
                         ("GET", f"/v2/models/{name}/stats"), ("POST", f"/v2/models/{name}/infer"), ("POST", f"/v2/models/echo/versions/{name}/infer"),
                         ("POST", f"/v2/repository/models/{name}/load"), ("POST", f"/v2/systemsharedmemory/region/{name}/register"),
                         ("POST", f"/v2/models/{name}/trace/setting")):
        with lab.connect() as c:
            answer = c.call(method, path, {"inputs": [], "key": f"/../..{name}", "offset": 0, "byte_size": 8} if method == "POST" else b"")
        assert answer.status >= 400, (method, path, answer.body)
        assert b"root:" not in answer.body
    alive(lab)


@pytest.mark.parametrize("dims", [[2**63], [2**32, 2**32], [2**31, 2**31, 2**31], [2**62, 4], [2**40, 2**24 + 32], [2**64 - 32], [0, 2**63]],
                         ids=lambda d: "x".join(map(str, d)))
def test_cve_2026_33298_sizes_of_tensors_that_do_not_fit(tmp_path, dims):
    path = tmp_path / "m.gguf"
    for kind in (0, 1, 2, 12):  # float32, float16, Q4_0, Q4_K
        tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, 0)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(4096))
        done = subprocess.run([llm_server.BIN / "nereid", "inspect", path], capture_output=True, text=True)
        assert done.returncode == 1 and "more elements than the limit" in done.stderr, done

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
