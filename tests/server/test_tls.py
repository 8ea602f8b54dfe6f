# SPDX-License-Identifier: Apache-2.0
"""TLS of the HTTP, OpenAI, metrics and gRPC ports: who gets in, what is answered, what is closed."""
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

from certificates import Authority
from triton_server import BUILD, Connection, Server, delay, infer_body, wait_until, write_model

pytestmark = pytest.mark.skipif("no-tls" in subprocess.run([BUILD / "bin/nereid", "--version"], capture_output=True,
                                                           text=True).stdout, reason="the build is without OpenSSL")
HANDSHAKE_SECS = 10 + 5  # the limit, and the clock that looks


class Secure(Connection):
    def __init__(self, port, context, timeout=60):
        super().__init__(port, timeout)
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority):
    return authority.sign("server")


@pytest.fixture(scope="module")
def client_pair(authority):
    return authority.sign("client")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "echo")
    write_model(folder, "bytes", "TYPE_UINT8")
    write_model(folder, "slow", extra=delay(700))
    return folder


def options(pair, what="http"):
    return [f"--{what}-use-ssl=true", f"--{what}-server-cert={pair[0]}", f"--{what}-server-key={pair[1]}"]


@pytest.fixture(scope="module")
def context(authority):
    return ssl.create_default_context(cafile=str(authority.cert))


@pytest.fixture(scope="module")
def server(models, pair, tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("log"), models, *options(pair), "--log-verbose=1")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


def health(port, context):
    with Secure(port, context) as c:
        return c.call("GET", "/v2/health/live").status


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_answer_inference(server, authority, version):
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.minimum_version = context.maximum_version = version
    with Secure(server.http, context) as c:
        for n in (1, 1000):
            assert c.call("POST", "/v2/models/echo/infer", infer_body([n])).json()["outputs"][0]["data"] == [n]
        assert c.sock.version() == version.name.replace("v1_", "v1.")
        assert "GCM" in c.sock.cipher()[0] or "CHACHA" in c.sock.cipher()[0]


def test_old_versions_are_refused(server, authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.cert)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Secure(server.http, context)


def test_alpn(server, authority):
    for offered, agreed in ((["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), (["h2"], None)):
        context = ssl.create_default_context(cafile=str(authority.cert))
        context.set_alpn_protocols(offered)
        if agreed:
            with Secure(server.http, context) as c:
                assert c.sock.selected_alpn_protocol() == agreed
                assert c.call("GET", "/v2/health/live").status == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                Secure(server.http, context)


def test_metrics_are_encrypted_too(server, context):
    with Secure(server.metrics, context) as c:
        assert b"nv_inference_count" in c.call("GET", "/metrics").body


def test_metrics_may_stay_plain(launch, models, pair, context):
    s = launch(models, *options(pair), "--metrics-use-ssl=false").wait_ready()
    assert health(s.http, context) == 200
    assert s.call_metrics()


def test_large_bodies_in_both_directions(server, context):
    data = random.Random(1).randbytes(9_000_001)
    head = b'{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],' \
           b'"parameters":{"binary_data_output":true}}' % (len(data), len(data))
    fields = {"Inference-Header-Content-Length": len(head)}
    with Secure(server.http, context) as c:
        for _ in range(3):
            reply = c.call("POST", "/v2/models/bytes/infer", head + data, fields)
            assert reply.status == 200
            assert reply.body[int(reply.fields["inference-header-content-length"]):] == data


def test_a_slow_reader_gets_everything(server, context):
    data = bytes(3_000_000)
    head = b'{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],' \
           b'"parameters":{"binary_data_output":true}}' % (len(data), len(data))
    with Secure(server.http, context) as c:
        c.request("POST", "/v2/models/bytes/infer", head + data, {"Inference-Header-Content-Length": len(head)})
        status, fields = c.head()
        left = int(fields["content-length"]) - len(c.buffer)
        while left > 0:
            got = len(c.sock.recv(50_000))
            assert got
            left -= got
            time.sleep(0.002)
        c.buffer = b""
        assert c.call("GET", "/v2/health/live").status == 200


def test_pipelined_and_trickled_requests(server, context):
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Secure(server.http, context) as c:
        c.send(one * 50)
        for _ in range(50):
            assert c.reply().status == 200
        for i in range(len(one)):
            c.send(one[i:i + 1])
        assert c.reply().status == 200


def test_pipelined_bodies_behind_a_slow_request(server, context):
    """What has been decrypted and not yet used is not forgotten while a request is being answered."""
    def request(model, n):
        body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[%d]}]}' % n
        return b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (model, len(body)) + body
    with Secure(server.http, context) as c:
        c.send(request(b"slow", 0) + b"".join(request(b"echo", i) for i in range(1, 200)))
        for i in range(200):
            assert c.reply().json()["outputs"][0]["data"] == [i]


def test_plain_http_gets_a_400_that_says_so(server):
    for method in ("GET", "POST", "DELETE", "OPTIONS", "BREW"):
        with Connection(server.http) as c:
            reply = c.call(method, "/v2/health/live", b"x" * 100_000)
            assert reply.status == 400 and "https" in reply.error()
            assert c.is_closed()


@pytest.mark.parametrize("first", [b"\0", b"\x16\x03\x01\xff\xff" + b"\xee" * 70_000, b"\x16" * 5, b"\x80\x2e\x01\0\x02", b"\xff" * 300,
                                   b"\x16\x03\x01\x00\x04\x01\x00\x00\x00", b"get / http/1.1\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x28"])
def test_garbage_is_closed(server, context, first):
    with Connection(server.http, timeout=HANDSHAKE_SECS + 10) as c:
        try:
            c.send(first)
            c.sock.shutdown(socket.SHUT_WR)
            while c.sock.recv(4096):
                pass
        except OSError:  # reset
            pass
    assert health(server.http, context) == 200


def test_cut_and_changed_handshakes(server, authority, context):
    """Every prefix of a ClientHello, and some with a changed byte."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    rng = random.Random(5)
    cases = [hello[:n] for n in range(0, len(hello), 7)]
    for _ in range(100):
        changed = bytearray(hello)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        cases.append(bytes(changed))
    for case in cases:
        with Connection(server.http) as c:
            try:
                c.send(case)
            except ConnectionError:
                pass
    assert health(server.http, context) == 200


def test_half_open_handshakes_are_closed_and_do_not_hold_up_others(server, context):
    """limits: TLS_HANDSHAKE_SECS"""
    waiting = [Connection(server.http, timeout=HANDSHAKE_SECS + 10) for _ in range(20)]
    begin = time.monotonic()
    for i, c in enumerate(waiting):
        if i % 2:
            c.send(b"\x16\x03\x01\x02\x00")
    done = threading.Event()

    def trickle():  # one byte a second keeps no handshake open
        for byte in b"\x16\x03\x01\x02\x00" + bytes(60):
            if done.wait(1):
                return
            try:
                waiting[0].send(bytes([byte]))
            except OSError:
                return
    thread = threading.Thread(target=trickle)
    thread.start()
    for _ in range(20):
        at = time.monotonic()
        assert health(server.http, context) == 200
        assert time.monotonic() - at < 2
    for c in waiting:
        assert c.is_closed()
    took = time.monotonic() - begin
    done.set()
    thread.join()
    assert 8 < took < HANDSHAKE_SECS + 3, took


def test_a_client_that_leaves_is_cancelled(server, context):
    with server.begins("slow"):
        c = Secure(server.http, context)
        c.request("POST", "/v2/models/slow/infer", infer_body([1]))
        d = Secure(server.http, context)
        d.request("POST", "/v2/models/slow/infer", infer_body([2]))  # waits behind it
    c.close()
    d.close()
    key = 'nv_inference_request_failure{model="slow",reason="CANCELED",version="1"}'

    def cancelled():
        with Secure(server.metrics, context) as m:
            lines = m.call("GET", "/metrics").body.decode().splitlines()
        return any(line.startswith(key) and float(line.rsplit(" ", 1)[1]) > 0 for line in lines)
    wait_until(cancelled)


def test_close_notify_alone_still_gets_the_answer(server, context):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.http), timeout=30) as s:
        def until(step):
            while True:
                try:
                    result = step()
                    s.sendall(outgoing.read())
                    return result
                except ssl.SSLWantReadError:
                    s.sendall(outgoing.read())
                    data = s.recv(1 << 16)
                    assert data
                    incoming.write(data)
        until(tls.do_handshake)
        body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[54321]}]}'
        tls.write(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        s.sendall(outgoing.read())
        s.shutdown(socket.SHUT_WR)
        answer = b""
        while data := s.recv(1 << 16):
            incoming.write(data)
            try:
                while piece := tls.read(1 << 16):
                    answer += piece
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                pass
    assert b"HTTP/1.1 200" in answer and b"54321" in answer


def serial(port, authority):
    context = ssl.create_default_context(cafile=str(authority.cert))
    with Secure(port, context) as c:
        assert c.call("GET", "/v2/health/live").status == 200
        return c.sock.getpeercert()["serialNumber"]


@pytest.mark.parametrize("how", ["file", "signal"])
def test_a_new_certificate_is_taken_without_a_restart(launch, models, authority, tmp_path, how):
    old, new = authority.sign("old"), authority.sign("new")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(old[0], cert)
    shutil.copy(old[1], key)
    s = launch(models, *options((cert, key))).wait_ready()
    before = serial(s.http, authority)
    with Secure(s.http, ssl.create_default_context(cafile=str(authority.cert))) as kept:
        assert kept.call("GET", "/v2/health/live").status == 200
        cert.write_text("no certificate")
        if how == "signal":
            s.signal(signal.SIGHUP)
        s.wait_log("HTTP keeps its certificate")
        assert serial(s.http, authority) == before
        shutil.copy(new[1], key)
        shutil.copy(new[0], cert)
        if how == "signal":
            s.signal(signal.SIGHUP)
        s.wait_log("HTTP has read its certificate again")
        assert serial(s.http, authority) != before
        assert kept.call("GET", "/v2/health/live").status == 200  # open connections stay


def test_mutual(launch, models, authority, pair, client_pair, tmp_path):
    other = Authority(tmp_path, "other")
    s = launch(models, "--http-use-ssl-mutual=true", f"--http-server-cert={pair[0]}", f"--http-server-key={pair[1]}",
               f"--http-root-cert={authority.cert}").wait_ready()

    def status(pair_of_client):
        context = ssl.create_default_context(cafile=str(authority.cert))
        if pair_of_client:
            context.load_cert_chain(*pair_of_client)
        return health(s.http, context), health(s.metrics, context)
    assert status(client_pair) == (200, 200)
    for wrong in (None, other.sign("foreign")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            status(wrong)
    assert status(client_pair) == (200, 200)


@pytest.mark.parametrize("args, says", [
    (["--http-use-ssl=true"], "--http-server-cert"),
    (["--http-use-ssl-mutual=true", "--http-server-cert=a", "--http-server-key=b"], "--http-root-cert"),
    (["--http-server-cert=a"], "--http-use-ssl"),
    (["--http-use-ssl=true", "--http-server-cert=/nowhere/a", "--http-server-key=/nowhere/b"], "no certificate in '/nowhere/a'"),
])
def test_wrong_options_end_the_start(tmp_path, models, args, says):
    s = Server(tmp_path, models, *args)
    assert s.wait() == 1
    assert says in s.log()


def test_a_key_of_another_certificate_ends_the_start(tmp_path, models, pair, client_pair):
    s = Server(tmp_path, models, *options((pair[0], client_pair[1])))
    assert s.wait() == 1
    assert "private key" in s.log()


def test_top_speaks_https(server, authority, tmp_path):
    def top(*args):
        return subprocess.run([BUILD / "bin/nereid", "top", f"https://localhost:{server.http}", "--once", "--interval=0.1", *args],
                              capture_output=True, text=True, timeout=60)
    good = top(f"--ca-cert={authority.cert}")
    assert good.returncode == 0 and "echo" in good.stdout, good.stderr
    bad = top(f"--ca-cert={Authority(tmp_path, 'other').cert}")
    assert bad.returncode == 1 and "certificate" in bad.stderr, bad.stderr


# ---- gRPC ----

def grpc_live(port, root, key=None, chain=None):
    grpc = pytest.importorskip("grpc")
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
    credentials = grpc.ssl_channel_credentials(root, key, chain)
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        return GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=20).live


def skip_without_grpc(s):
    if "without the gRPC library" in s.log():
        pytest.skip("the server was built without gRPC")


def test_grpc_tls_and_a_new_certificate(launch, models, authority, tmp_path):
    grpc = pytest.importorskip("grpc")
    other = Authority(tmp_path, "other")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for folder, to in zip(authority.sign("g1"), (cert, key)):
        shutil.copy(folder, to)
    s = launch(models, *options((cert, key), "grpc")).wait_ready()
    skip_without_grpc(s)
    assert grpc_live(s.grpc, authority.cert.read_bytes())
    with pytest.raises(grpc.RpcError):
        grpc_live(s.grpc, other.cert.read_bytes())
    for file, to in zip(other.sign("g2"), (cert, key)):
        shutil.copy(file, to)
    assert grpc_live(s.grpc, other.cert.read_bytes())
    with pytest.raises(grpc.RpcError):
        grpc_live(s.grpc, authority.cert.read_bytes())


def test_grpc_mutual(launch, models, authority, pair, client_pair, tmp_path):
    grpc = pytest.importorskip("grpc")
    root = authority.cert.read_bytes()
    s = launch(models, "--grpc-use-ssl-mutual=true", f"--grpc-server-cert={pair[0]}", f"--grpc-server-key={pair[1]}",
               f"--grpc-root-cert={authority.cert}").wait_ready()
    skip_without_grpc(s)
    assert grpc_live(s.grpc, root, client_pair[1].read_bytes(), client_pair[0].read_bytes())
    foreign = Authority(tmp_path, "other").sign("foreign")
    for wrong in ((None, None), (foreign[1].read_bytes(), foreign[0].read_bytes())):
        with pytest.raises(grpc.RpcError):
            grpc_live(s.grpc, root, *wrong)
