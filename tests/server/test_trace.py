# SPDX-License-Identifier: Apache-2.0
"""Traces: files with time stamps and tensors, and spans for an OpenTelemetry collector."""
import http.server
import json
import ssl
import subprocess
import threading
import time

import pytest

from certificates import Authority
from triton_server import BUILD, infer_body, wait_until, write_model

CHAIN = """name: "chain"
platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "mid" } },
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "mid" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
"""
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Takes what is posted to it."""

    def __init__(self, status=200, tls=None):
        posts = self.posts = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posts.append((self.path, self.headers["Content-Type"], json.loads(body)))
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        return [s for _, _, body in self.posts for r in body["resourceSpans"]
                for scope in r["scopeSpans"] for s in scope["spans"]]

    def wait(self, n, seconds=20):
        until = time.monotonic() + seconds
        while len(self.spans()) < n:
            assert time.monotonic() < until, self.posts
            time.sleep(0.02)
        return self.spans()


@pytest.fixture
def collector():
    c = Collector()
    yield c
    c.server.shutdown()


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "ident", count=2)
    (folder / "chain/1").mkdir(parents=True)
    (folder / "chain/config.pbtxt").write_text(CHAIN)
    return folder


def otel(collector, *more):
    return ("--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS",
            f"--trace-config=opentelemetry,url={collector.url}",
            "--trace-config=opentelemetry,bsp_schedule_delay=100", *more)


def names(span):
    return [e["name"] for e in span["events"]]


def test_spans_of_an_ensemble_form_one_tree(launch, models, collector):
    s = launch(models, *otel(collector, "--trace-config=rate=1",
                             "--trace-config=opentelemetry,resource=service.name=mine",
                             "--trace-config=opentelemetry,resource=zone=a=b")).wait_ready()
    before = time.time_ns()
    body = dict(infer_body([1, 2]), id="my id")
    assert s.call("POST", "/v2/models/chain/infer", body).status == 200
    spans = collector.wait(6)
    path, content_type, post = collector.posts[0]
    assert (path, content_type) == ("/v1/traces", "application/json")
    resource = {a["key"]: a["value"]["stringValue"]
                for a in post["resourceSpans"][0]["resource"]["attributes"]}
    assert resource == {"service.name": "mine", "zone": "a=b"}
    assert len({x["traceId"] for x in spans}) == 1 and len({x["spanId"] for x in spans}) == 6
    by_id = {x["spanId"]: x for x in spans}
    root = [x for x in spans if "parentSpanId" not in x]
    assert [x["name"] for x in root] == ["InferRequest"]
    assert {"HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START",
            "HTTP_SEND_END"} <= set(names(root[0]))
    tree = sorted((x["name"], by_id[x["parentSpanId"]]["name"]) for x in spans
                  if "parentSpanId" in x)
    assert tree == [("chain", "InferRequest"), ("compute", "ident"), ("compute", "ident"),
                    ("ident", "chain"), ("ident", "chain")]
    for x in spans:
        begin, end = int(x["startTimeUnixNano"]), int(x["endTimeUnixNano"])
        assert before - 10**9 < begin <= end < time.time_ns() + 10**9
        assert len(x["spanId"]) == 16 and len(x["traceId"]) == 32 and x["kind"] == 2
    chain = next(x for x in spans if x["name"] == "chain")
    attributes = {a["key"]: list(a["value"].values())[0] for a in chain["attributes"]}
    assert attributes["triton.model_name"] == "chain"
    assert attributes["triton.request_id"] == "my id"
    ident = next(x for x in spans if x["name"] == "ident")
    assert names(ident)[:2] == ["REQUEST_START", "QUEUE_START"]
    assert names(ident)[-1] == "REQUEST_END"
    settings = s.call("GET", "/v2/trace/setting").json()
    assert settings["trace_mode"] == "opentelemetry" and "trace_file" not in settings
    assert settings["bsp_schedule_delay"] == "100" and settings["bsp_max_queue_size"] == "2048"
    assert settings["url"] == collector.url


@pytest.mark.skipif("no-tls" in subprocess.run([BUILD / "bin/nereid", "--version"], capture_output=True, text=True).stdout,
                    reason="the build is without OpenSSL")
@pytest.mark.parametrize("known", [True, False])
def test_a_collector_behind_tls(launch, models, tmp_path, monkeypatch, known):
    authority = Authority(tmp_path)
    collector = Collector(tls=authority.sign("collector"))
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    s = launch(models, *otel(collector, "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS")).wait_ready()
    assert s.call("POST", "/v2/models/chain/infer", infer_body([1, 2])).status == 200
    if known:
        assert {x["name"] for x in collector.wait(3)} >= {"InferRequest"}
        assert "took no spans" not in s.log()
    else:
        wait_until(lambda: "took no spans" in s.log())
        assert "the server's certificate: " in s.log() and not collector.posts
    collector.server.shutdown()


def test_traceparent_joins_a_trace_and_overrides_the_rate(launch, models, collector):
    s = launch(models, *otel(collector, "--trace-config=rate=1000000")).wait_ready()
    for parent in ("garbage", PARENT[:-1], "00-" + "0" * 32 + PARENT[35:], "ff" + PARENT[2:]):
        s.call("POST", "/v2/models/ident/infer", infer_body([1]), {"traceparent": parent})
    r = s.call("POST", "/v2/models/ident/infer", infer_body([1]), {"traceparent": PARENT})
    assert r.status == 200
    spans = collector.wait(3)
    assert len(spans) == 3 and {x["traceId"] for x in spans} == {PARENT[3:35]}
    root = next(x for x in spans if x["name"] == "InferRequest")
    assert root["parentSpanId"] == PARENT[36:52]


def test_spans_that_are_left_go_out_at_the_end(launch, models, collector):
    s = launch(models, "--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS",
               "--trace-config=rate=1", f"--trace-config=opentelemetry,url={collector.url}",
               "--trace-config=opentelemetry,bsp_max_export_batch_size=4").wait_ready()
    for i in range(5):
        s.call("POST", "/v2/models/ident/infer", infer_body([i]))
    assert s.stop() == 0
    assert len(collector.spans()) == 15
    assert all(sum(len(x["spans"]) for x in body["resourceSpans"][0]["scopeSpans"]) <= 4
               for _, _, body in collector.posts)


def test_collector_that_is_away_costs_requests_nothing(launch, models, collector):
    url = collector.url
    collector.server.server_close()
    s = launch(models, "--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS",
               "--trace-config=rate=1", f"--trace-config=opentelemetry,url={url}",
               "--trace-config=opentelemetry,bsp_schedule_delay=50").wait_ready()
    for i in range(20):
        assert s.call("POST", "/v2/models/ident/infer", infer_body([i])).status == 200
    s.wait_log("took no spans")
    assert s.stop() == 0


def test_tensors_are_written_with_their_values(launch, models, tmp_path):
    file = tmp_path / "trace.json"
    s = launch(models, "--trace-config=level=TENSORS", "--trace-config=rate=1",
               f"--trace-config=triton,file={file}").wait_ready()
    assert s.call("POST", "/v2/models/ident/infer", infer_body([7, 8])).status == 200
    assert s.stop() == 0
    entries = json.loads(file.read_text())
    tensors = {e["activity"]: e["tensor"] for e in entries if "activity" in e}
    assert tensors["TENSOR_QUEUE_INPUT"] == {"name": "INPUT0", "data": "7,8", "shape": "2",
                                             "dtype": "INT32"}
    assert tensors["TENSOR_BACKEND_OUTPUT"]["data"] == "7,8"
    assert not any("timestamps" in e for e in entries)


def test_files_take_turns_and_models_have_settings_of_their_own(launch, models, tmp_path):
    s = launch(models, "--trace-config=rate=1",
               f"--trace-config=triton,file={tmp_path / 't'}",
               "--trace-config=triton,log-frequency=2").wait_ready()
    on = {"trace_level": ["TIMESTAMPS"], "trace_count": "5"}
    assert s.call("POST", "/v2/models/ident/trace/setting", on).status == 200
    for i in range(8):
        s.call("POST", "/v2/models/ident/infer", infer_body([i]))
        s.call("POST", "/v2/models/chain/infer", infer_body([i]))
    left = s.call("GET", "/v2/models/ident/trace/setting").json()
    assert left["trace_count"] == "0" and left["trace_level"] == ["TIMESTAMPS"]
    assert s.stop() == 0
    found = {}
    for i in range(3):
        entries = json.loads((tmp_path / f"t.{i}").read_text())
        found[i] = [e["model_name"] for e in entries if "model_name" in e]
    assert found == {0: ["ident"] * 2, 1: ["ident"] * 2, 2: ["ident"]}
    assert not (tmp_path / "t.3").exists()


def test_the_older_options_still_count(launch, models, tmp_path):
    s = launch(models, f"--trace-file={tmp_path / 'old'}", "--trace-level=TIMESTAMPS",
               "--trace-rate=7", "--trace-count=3", "--trace-log-frequency=9",
               "--trace-config=rate=2").wait_ready()
    settings = s.call("GET", "/v2/trace/setting").json()
    assert settings == {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "3",
                        "log_frequency": "9", "trace_file": str(tmp_path / "old"),
                        "trace_mode": "triton"}
