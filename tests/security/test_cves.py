# SPDX-License-Identifier: Apache-2.0
"""What others' inference servers were found to do wrong, by the number of its CVE (the year is left out where the
name is long). docs/security.md says which ones cannot occur here, and why."""
import concurrent.futures
import json
import pathlib
import random
import socket
import threading
import time

import pytest

from triton_server import Connection, infer_body, wait_until

INFER = "/v2/models/echo/infer"
CHAT = "/v1/chat/completions"


def rss(server):
    return int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def alive(server):
    assert server.process.poll() is None
    assert server.call("POST", INFER, infer_body([1])).status == 200


def chat(llm, **fields):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, **fields}
    return llm.request(CHAT, body)


def chat_alive(llm):
    assert llm.process.poll() is None
    status, answer = chat(llm)
    assert status == 200, answer


# ---- Triton ----

@pytest.mark.parametrize("path", [INFER, "/v2/models/text/generate", "/v2/repository/models/echo/load", "/v2/logging",
                                  "/v2/systemsharedmemory/region/r/register", "/v1/completions"])
def test_cve_2025_23310_23311_chunked_bodies_of_one_byte_pieces(lab, path):
    before = rss(lab)
    with lab.connect() as c:
        c.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(50):
                c.send(b"1\r\n \r\n" * 20_000)
            c.send(b"0\r\n\r\n")
        except ConnectionError:
            pass
        assert c.reply().status >= 400
    assert rss(lab) - before < 64 << 20
    alive(lab)


def test_cve_2025_23317_random_bytes_at_the_http_port(lab):
    rng = random.Random(23317)
    for _ in range(200):
        with lab.connect(timeout=20) as c:
            try:
                c.send(rng.choice([b"", b"POST ", b"GET /v2/", b"POST /v2/models/echo/infer HTTP/1.1\r\n"]) + rng.randbytes(400))
                c.sock.shutdown(socket.SHUT_WR)
                while c.sock.recv(4096):
                    pass
            except ConnectionError:
                pass
    alive(lab)


def test_cve_2025_23319_23320_23334_errors_name_no_region_and_foreign_regions_stay_shut(lab):
    """An answer over the limit told the name of the server's own region, which could then be registered."""
    own = {pathlib.Path(line.split()[-1]).name for line in pathlib.Path(f"/proc/{lab.process.pid}/maps").read_text().splitlines()
           if "/dev/shm/" in line}
    answers = [lab.call("POST", INFER, {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [4],
                                                    "parameters": {"shared_memory_region": "none", "shared_memory_byte_size": 16}}]}),
               lab.call("POST", INFER, infer_body([1]) | {"outputs": [{"name": "OUTPUT0", "parameters": {
                   "shared_memory_region": "none", "shared_memory_byte_size": 1 << 60}}]})]
    for key in ("/../../etc/passwd", "/nothing", "", "/" + "x" * 5000, "../x"):
        answers.append(lab.call("POST", "/v2/systemsharedmemory/region/r/register", {"key": key, "byte_size": 64, "offset": 0}))
    for answer in answers:
        assert answer.status >= 400
        assert "/dev/shm" not in answer.error() and not any(name in answer.error() for name in own)


@pytest.mark.parametrize("offset, size", [(0, 1 << 63), (1 << 63, 8), ((1 << 64) - 8, 16), (4096, 1), (0, 4097), (0, 0)])
def test_cve_2024_0088_offsets_of_shared_memory(lab, offset, size):
    name = f"cve0088-{lab.http}"
    path = pathlib.Path("/dev/shm") / name
    path.write_bytes(bytes(4096))
    try:
        answer = lab.call("POST", "/v2/systemsharedmemory/region/cve/register", {"key": f"/{name}", "byte_size": size, "offset": offset})
        if answer.status == 200:  # then using it past its end is refused
            body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [2048], "parameters": {
                "shared_memory_region": "cve", "shared_memory_byte_size": 8192}}]}
            assert lab.call("POST", INFER, body).status >= 400
    finally:
        lab.call("POST", "/v2/systemsharedmemory/region/cve/unregister", {})
        path.unlink()
    alive(lab)


@pytest.mark.parametrize("name", ["echo;id", "$(id)", "`id`", "..%2f..%2fetc", "%2e%2e/%2e%2e/etc", "a%00b", "a%0ab", "-rf", "%7c", "~root"])
def test_cve_2025_23316_names_of_models_are_no_commands(lab, name):
    for verb in ("load", "unload"):
        with lab.connect() as c:
            answer = c.call("POST", f"/v2/repository/models/{name}/{verb}", {})
        assert answer.status >= 400 or verb == "unload", answer.body  # to unload what is not there is no error
    assert not any("\nroot:" in line for line in lab.log().splitlines())
    alive(lab)


def test_cve_2025_23321_23322_streams_cancelled_at_every_moment(llm):
    body = json.dumps({"model": "tiny", "prompt": "the quick", "max_tokens": 60, "stream": True, "ignore_eos": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    rng = random.Random(23322)
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", llm.http), timeout=20) as s:
            s.sendall(head + body)
            left = rng.randrange(6000)
            while left > 0:
                data = s.recv(min(left, 500))
                if not data:
                    break
                left -= len(data)
    chat_alive(llm)


@pytest.mark.parametrize("shape", [[0], [-1], [-(2**63)], [2**63 - 1], [2**62, 4], [2**32, 2**32], [2**33, 2**31], [1] * 1000, []])
def test_cve_2025_23323_23324_23326_23327_23331_23335_23336_shapes(lab, shape):
    for dtype in ("INT32", "BYTES", "FP64"):
        body = {"inputs": [{"name": "INPUT0", "datatype": dtype, "shape": shape, "data": [1]}]}
        answer = lab.call("POST", INFER, body)
        assert answer.status >= 400 or shape == [0], answer.body  # nothing of the data belongs to an empty tensor
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": shape, "parameters": {"binary_data_size": 4}}]})
    answer = lab.call("POST", INFER, body.encode() + bytes(4), {"Inference-Header-Content-Length": len(body)})
    assert answer.status >= 400
    alive(lab)


@pytest.mark.parametrize("size", [-1, 2**63, 2**64 - 1, 5, 3])
def test_cve_2025_23331_sizes_of_binary_inputs(lab, size):
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": size}}]})
    answer = lab.call("POST", INFER, body.encode() + bytes(4), {"Inference-Header-Content-Length": len(body)})
    assert answer.status in (400, 500)
    alive(lab)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("path", [INFER, "/v2/models/text/generate", "/v2/repository/models/echo/load", "/v2/trace/setting",
                                  "/v1/chat/completions", "/v2/logging"])
def test_cve_2025_23325_nested_json(lab, path, opening):
    for body in (opening * 1_000_000, b'{"inputs":' + opening * 500_000, b'{"parameters":{"config":' + opening * 300_000):
        assert lab.call("POST", path, body).status >= 400
    alive(lab)


@pytest.mark.parametrize("byte", [b"\0", b"\x01", b"\xff", b"\\"])
def test_long_bodies_with_bytes_that_are_no_json(lab, byte):
    """Where long arrays are looked for, the search stood at a zero byte for ever."""
    for body in (b'{"a":[' + byte, b'{"inputs":[{"b":{' + byte, b'{"inputs":[{"data":[1,' + byte):
        with lab.connect(timeout=20) as c:
            c.request("POST", INFER, body + b" " * 5000)
            assert c.reply().status >= 400
    alive(lab)


def test_cve_2025_33201_33211_lengths_that_are_not_true(lab):
    for length in ("4294967296", "18446744073709551615", "18446744073709551616", "-1", "+5", "0x10", "1e3", "5 5", ""):
        with lab.connect(timeout=20) as c:
            c.send(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{{}}")
            assert c.reply().status >= 400, length
    alive(lab)


def test_cve_2024_0087_the_log_file_cannot_be_set_by_a_request(lab, tmp_path):
    target = tmp_path / "log"
    answer = lab.call("POST", "/v2/logging", {"log_file": str(target)})
    assert answer.status in (400, 501)
    lab.call("POST", INFER, infer_body([1]))
    assert not target.exists()
    answer = lab.call("POST", "/v2/trace/setting", {"trace_file": str(target), "trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    assert answer.status in (400, 501)
    lab.call("POST", INFER, infer_body([1]))
    assert not target.exists()


def test_cve_2026_24206_24207_the_key_is_asked_for_by_the_path_that_is_served(lab, tmp_path):
    from triton_server import Server
    s = Server(tmp_path, lab.models, "--api-key=secret").wait_ready()
    try:
        for path in ("/v2/models/echo/infer", "/v2//models/echo/infer", "//v2/models/echo/infer", "/v2/models/%65cho/infer",
                     "/V2/models/echo/infer", "/v2/models/echo/infer/", "/v2/models/echo/infer?x=/v2/health/live",
                     "/v2/health/../models/echo/infer", "/v2/health/%2e%2e/models/echo/infer", "/v2/models/echo/infer#",
                     "/v2;a=b/models/echo/infer", "http://localhost/v2/models/echo/infer", "/v2/models/echo/versions/1/infer"):
            for host in ("localhost", "localhost/v2/health/live", "localhost#", "localhost?"):
                with s.connect() as c:
                    body = json.dumps(infer_body([1]))
                    c.send(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}")
                    assert c.reply().status != 200, (path, host)
    finally:
        assert s.stop() == 0


def test_cve_2026_24173_requests_that_are_nothing(lab):
    for body in (b"{}", b"[]", b"null", b"1", b'"', b'{"inputs":null}', b'{"inputs":{}}', b'{"inputs":[null]}', b'{"inputs":[[]]}',
                 b'{"inputs":[{"name":null}]}', b'{"inputs":[{"name":"INPUT0","shape":{}}]}', b"\xff\xfe", b"{" * 3):
        assert lab.call("POST", INFER, body).status in (400, 500), body  # 500 where Triton says so
    alive(lab)


# ---- vLLM ----

def test_cve_2024_8768_an_empty_prompt(llm):
    for prompt in ("", [], [""], [[]]):
        status, _ = llm.request("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 2})
        assert status in (200, 400)
    status, _ = llm.request(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": ""}], "max_tokens": 2})
    assert status == 200
    chat_alive(llm)


def test_cve_2025_48887_tool_calls_that_never_end(llm):
    name = "f" * 64
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]
    begin = time.monotonic()
    status, answer = chat(llm, tools=tools, messages=[{"role": "user", "content": "[" + "A" * 2000 + "(=" * 500}])
    assert status in (200, 400), answer
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("guide", [{"guided_regex": "("}, {"guided_regex": "(a+)+$" * 10}, {"guided_regex": "[" * 3000},
                                   {"guided_json": {"type": "something"}}, {"guided_json": {"pattern": "(", "type": "string"}},
                                   {"guided_json": {"$ref": "#"}}, {"guided_grammar": "root ::= root"}, {"guided_grammar": ""},
                                   {"guided_grammar": "root ::= (" * 2000}, {"guided_grammar": "x"},
                                   {"guided_json": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}},
                                   {"guided_choice": []}, {"guided_choice": [""]}])
def test_cve_2025_48942_48943_48944_and_2026_25048_guides_that_cannot_be(llm, guide):
    status, answer = chat(llm, **guide)
    assert status in (200, 400), answer
    chat_alive(llm)


def test_cve_2026_25048_nested_guides(llm):
    schema = {"type": "string"}
    for _ in range(60):
        schema = {"type": "array", "items": schema}
    assert chat(llm, guided_json=schema)[0] in (200, 400)
    assert chat(llm, guided_grammar="root ::= " + "(" * 20000 + '"a"' + ")" * 20000)[0] in (200, 400)
    assert chat(llm, guided_regex="(" * 20000 + "a" + ")" * 20000)[0] in (200, 400)
    chat_alive(llm)


def test_cve_2025_48956_huge_headers(lab):
    for head in (b"X: " + b"a" * 1_000_000, b"\r\n".join(b"X%d: a" % i for i in range(100_000)), b"X" * 1_000_000 + b": a"):
        with lab.connect() as c:
            try:
                c.send(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            except ConnectionError:
                pass
            try:
                assert c.reply().status == 431 or c.is_closed()
            except ConnectionError:
                pass
    alive(lab)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "file:///etc/passwd", "http://169.254.169.254/", "\\\\host\\x", "data:image/png;base64,AAAA"])
def test_cve_2025_6242_2026_24779_2026_34753_no_url_is_fetched(llm, url):
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen(1)
        trap.settimeout(0.2)
        url = url.replace(":1/", f":{trap.getsockname()[1]}/")
        for kind in ("image_url", "input_audio", "video_url"):
            content = [{"type": kind, kind: {"url": url}}]
            status, answer = chat(llm, messages=[{"role": "user", "content": content}])
            assert status == 400 and "passwd" not in json.dumps(answer).replace(url, "")
        with pytest.raises(TimeoutError):
            trap.accept()


def test_cve_2025_61620_62426_templates_of_requests(llm):
    bomb = "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}"
    assert chat(llm, chat_template=bomb)[0] == 400
    begin = time.monotonic()
    for kwargs in ({"tokenize": True}, {"chat_template": bomb}, {"messages": []}, {"add_generation_prompt": "x" * 100000}, {"a": [[]] * 10000}):
        assert chat(llm, chat_template_kwargs=kwargs)[0] in (200, 400)
    assert time.monotonic() - begin < 20
    chat_alive(llm)


@pytest.mark.parametrize("fields", [{"n": 10**9}, {"n": 0}, {"n": -1}, {"n": 129}, {"logprobs": True, "top_logprobs": 10**6},
                                    {"stop": ["a"] * 10**5}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 2**63}])
def test_cve_2026_34756_numbers_without_a_limit(llm, fields):
    """limits: CHOICES, STOPS"""
    status, answer = chat(llm, **fields)
    assert status == 400, answer
    chat_alive(llm)


def test_cve_2026_44222_special_tokens_in_a_user_s_text_are_text(llm):
    """The chat format's own marks come from its template alone."""
    def count(messages):
        status, answer = llm.request("/tokenize", {"model": "tiny", "messages": messages})
        assert status == 200, answer
        return answer["tokens"]
    marks = ["<|im_start|>", "<|im_end|>", "</s>", "<s>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>"]
    base = count([{"role": "user", "content": ""}])
    for mark in marks:
        status, answer = llm.request("/tokenize", {"model": "tiny", "prompt": mark, "add_special_tokens": False})
        ids = answer["tokens"]
        if len(ids) != 1:
            continue  # no special token of this tokenizer
        got = count([{"role": "user", "content": f"a{mark}b"}])
        assert got.count(ids[0]) == base.count(ids[0]), mark


def test_cve_2026_48746_the_host_field_decides_nothing(lab, tmp_path):
    from triton_server import Server
    s = Server(tmp_path, lab.models, "--api-key=secret", "--allowed-host=*").wait_ready()
    try:
        for host in ("localhost/v2/health/live?", "/v2/health/live", "a@b", "localhost:1/..", "[::1]/v2", "\\", "*"):
            with s.connect() as c:
                body = json.dumps(infer_body([1]))
                c.send(f"POST {INFER} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Host: /v2/health\r\nContent-Length: {len(body)}\r\n\r\n{body}")
                assert c.reply().status in (400, 401)
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e308"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
def test_cve_2026_54235_numbers_that_are_none(llm, field, value):
    body = b'{"model":"tiny","prompt":"a","max_tokens":1,"%s":%s}' % (field.encode(), value.encode())
    status, answer = llm.request("/v1/completions", body)
    assert status == 400, answer
    chat_alive(llm)


def test_cve_2026_73555_22778_errors_carry_no_paths_and_no_addresses(llm):
    wrong = [("/v1/completions", {"model": "none", "prompt": "a"}), (CHAT, {"model": "tiny"}), (CHAT, {"model": "preprocessing", "messages": []}),
             (CHAT, {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]}),
             ("/v1/embeddings", {"model": "tiny", "input": {}}), ("/v2/models/none/infer", {}), ("/v2/models/ensemble/generate", {}),
             ("/v2/models/ensemble/generate", {"text_input": 5, "max_tokens": 1}), ("/v2/repository/models/none/load", {}),
             ("/v2/repository/models/ensemble/load", {"parameters": {"config": "{}"}}), ("/v2/models/tensorrt_llm/infer", {"inputs": []}),
             ("/tokenize", {"model": "tiny", "prompt": 3}), ("/v1/models/none", None), ("/v2/systemsharedmemory/region/a/register", {"key": "/a", "byte_size": 9})]
    for path, body in wrong:
        status, answer = llm.request(path, body)
        text = json.dumps(answer)
        assert status >= 400, (path, body)
        assert not any(folder in text for folder in llm.folders) and "0x" not in text and "/dev/shm" not in text, text


@pytest.mark.parametrize("bias", [{"999999999": 1}, {"-1": 1}, {"x": 1}, {"18446744073709551616": 1}, {"1": 1e400}, {"1": "x"}, [1], {"4294967296": 5}])
def test_vllm_16529_a_bias_of_no_token(llm, bias):
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1, "logit_bias": bias}).replace("Infinity", "1e400")
    status, answer = llm.request("/v1/completions", body.encode())
    assert status == 400, answer
    chat_alive(llm)


@pytest.mark.parametrize("ids", [[-1], [10**9], [2**31], [2**63], [1.5], [None]])
def test_vllm_token_ids_out_of_range(llm, ids):
    status, answer = llm.request("/v1/completions", {"model": "tiny", "prompt": ids, "max_tokens": 1})
    assert status == 400, answer
    chat_alive(llm)


# ---- what all of them had: many at once ----

def test_attacks_at_once_leave_others_their_pace(llm):
    """While refused requests come as fast as they can, health is answered."""
    stop = threading.Event()

    def attack(seed):
        rng = random.Random(seed)
        while not stop.is_set():
            chat(llm, **rng.choice([{"n": 10**9}, {"guided_regex": "("}, {"temperature": "x"}, {"messages": []}, {"stop": ["a"] * 1000}]))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(attack, i) for i in range(4)]
        slowest = 0
        for _ in range(50):
            at = time.monotonic()
            assert llm.request("/v2/health/live")[0] == 200
            slowest = max(slowest, time.monotonic() - at)
        stop.set()
        for t in tasks:
            t.result()
    assert slowest < 2, slowest


# ---- orders of pages ----

def test_a_page_must_say_that_it_sends_json(lab):
    body = b'{"log_verbose_level":1}'
    origin = {"Origin": f"http://localhost:{lab.http}", "Host": f"localhost:{lab.http}"}
    for fields, status in (({}, 200), ({"Content-Type": "application/x-www-form-urlencoded"}, 200), ({"Content-Type": "application/octet-stream"}, 200),
                           ({"Sec-Fetch-Site": "same-origin", "Content-Type": "text/plain"}, 415), ({"Sec-Fetch-Site": "same-site"}, 415),
                           ({"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json; charset=utf-8"}, 200)):
        assert lab.call("POST", "/v2/logging", body, fields).status == status, fields
    with Connection(lab.http) as c:
        lines = "".join(f"{k}: {v}\r\n" for k, v in {**origin, "Content-Type": "text/plain"}.items())
        c.send(f"POST /v2/logging HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert c.reply().status == 415
    wait_until(lambda: lab.call("GET", "/v2/health/live").status == 200)
