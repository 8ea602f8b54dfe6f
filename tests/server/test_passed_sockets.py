# SPDX-License-Identifier: Apache-2.0
"""Listening sockets from the program that starts the server: sd_listen_fds(3)."""
import contextlib
import os
import pathlib
import socket
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from certificates import Authority
from triton_server import BUILD, Connection, delay, environment, infer_body, wait_until, write_model
from passing import start_with  # triton_server has set its folder


def listening(family=socket.AF_INET, address="127.0.0.1"):
    s = socket.socket(family)
    s.bind((address, 0))
    s.listen(64)
    return s


def port(s):
    return s.getsockname()[1]


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path / "models", "ident")
    return tmp_path / "models"


@pytest.fixture
def start(tmp_path):
    """Starts a server with these sockets; it is stopped at the end."""
    started = []

    def begin(sockets, names, repository, *args, program="tritonserver", env=None):
        what = [f"--model-repository={repository}"] if program == "tritonserver" else ["serve", str(repository)]
        log = tmp_path / f"log-{len(started)}"
        with open(log, "w") as f:
            p = start_with(sockets, names, BUILD / "bin" / program, *what, *args, variables=env, env=environment(), stdout=f,
                           stderr=subprocess.STDOUT)
        started.append(p)
        p.said = log.read_text
        return p

    yield begin
    for p in started:
        with contextlib.suppress(ProcessLookupError):
            p.terminate()
        p.wait(60)


def ready(p):
    def look():
        assert p.poll() is None, p.said()
        return "Started Metrics Service at " in p.said()
    wait_until(look, 60)


@pytest.mark.parametrize("program", ["tritonserver", "nereid"])
def test_who_connects_before_the_server_is_there_is_answered(start, repository, program):
    grpc, metrics, http = sockets = [listening() for _ in range(3)]
    answers = []

    def ask_grpc():
        with grpc_client.InferenceServerClient(f"127.0.0.1:{port(grpc)}") as c:
            given = grpc_client.InferInput("INPUT0", [2], "INT32")
            given.set_data_from_numpy(np.array([3, 4], np.int32))
            answers.append(c.infer("ident", [given], client_timeout=60).as_numpy("OUTPUT0").tolist())

    thread = threading.Thread(target=ask_grpc)
    thread.start()
    with Connection(port(http)) as c, Connection(port(metrics)) as m:
        c.request("POST", "/v2/models/ident/infer", infer_body([1, 2]))
        m.request("GET", "/metrics")
        p = start(sockets, "grpc:metrics:http", repository, program=program)
        assert c.reply().json()["outputs"][0]["data"] == [1, 2]
        assert b"nv_inference_request_success" in m.reply().body
    thread.join(60)
    assert answers == [[3, 4]]
    ready(p)
    for name, s in (("HTTPService", http), ("GRPCInferenceService", grpc), ("Metrics Service", metrics)):
        assert f"Started {name} at 127.0.0.1:{port(s)}" in p.said()
    for fd in (3, 4, 5):  # what it starts itself does not hold the ports
        flags = int(pathlib.Path(f"/proc/{p.pid}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0], 8)
        assert flags & os.O_CLOEXEC


def test_who_connects_between_two_servers_is_answered(start, repository):
    """Also while the first one still answers what is under way."""
    write_model(repository, "slow", extra=delay(1500))
    http = listening()
    other = ["--allow-grpc=false", "--allow-metrics=false"]
    first = start([http], "http", repository, *other)
    with Connection(port(http)) as under_way, Connection(port(http)) as c:
        under_way.request("POST", "/v2/models/slow/infer", infer_body([1]))
        assert Connection(port(http)).call("GET", "/v2/health/ready").status == 200
        first.terminate()
        wait_until(lambda: "Found 1 HTTP service connections" in first.said())
        with Connection(port(http)) as late:
            late.request("GET", "/v2/health/ready")
            assert under_way.reply().status == 200
            assert first.wait(60) == 0
            start([http], "http", repository, *other)
            assert late.reply().status == 200
        assert c.is_closed()


@pytest.mark.parametrize("names", [None, "", "nereid.socket:nereid.socket:nereid.socket", "unknown:grpc"])
def test_sockets_without_a_protocols_name_go_by_their_order(start, repository, names):
    sockets = [listening() for _ in range(3)]
    ready(start(sockets, names, repository))
    with Connection(port(sockets[0])) as c:
        assert c.call("GET", "/v2").json()["name"] == "triton"
    with Connection(port(sockets[2])) as c:
        assert b"nv_inference" in c.call("GET", "/metrics").body
    with grpc_client.InferenceServerClient(f"127.0.0.1:{port(sockets[1])}") as c:
        assert c.is_server_ready()


def test_ports_that_are_not_passed_are_opened(start, repository):
    http = listening(socket.AF_INET6, "::1")
    p = start([http], "http", repository, "--grpc-port=0", "--metrics-port=0", "--http-port=1")
    ready(p)
    assert f"Started HTTPService at ::1:{port(http)}" in p.said()
    assert f"Chat and live view at http://[::1]:{port(http)}/" in p.said()
    top = subprocess.run([BUILD / "bin/nereid", "top", "--once", f"http://[::1]:{port(http)}"], capture_output=True, text=True)
    assert top.returncode == 0 and "ident" in top.stdout, top.stderr
    shown = p.said().split("Started GRPCInferenceService at 0.0.0.0:")[1].split()[0]
    with grpc_client.InferenceServerClient(f"127.0.0.1:{shown}") as c:
        assert c.is_server_ready()


def test_grpc_with_tls(start, repository, tmp_path):
    authority, grpc = Authority(tmp_path), listening()
    cert, key = authority.sign("server")
    ready(start([grpc], "grpc", repository, "--allow-http=false", "--metrics-port=0", "--grpc-use-ssl=true",
                f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"))
    with grpc_client.InferenceServerClient(f"localhost:{port(grpc)}", ssl=True, root_certificates=str(authority.cert)) as c:
        assert c.is_server_ready()


def test_grpc_goes_on_listening_when_descriptors_run_out(start, repository):
    """The passed port is guarded as one that the server opens."""
    grpc = listening()
    p = start([grpc], "grpc", repository, "--allow-http=false", "--metrics-port=0")
    ready(p)
    limit = len(os.listdir(f"/proc/{p.pid}/fd")) + 4
    subprocess.run(["prlimit", f"--nofile={limit}:{limit}", "--pid", str(p.pid)], check=True)
    many = [socket.create_connection(("127.0.0.1", port(grpc))) for _ in range(12)]
    wait_until(lambda: "gRPC service cannot accept a connection" in p.said())
    for s in many:
        s.close()

    def alive():
        with grpc_client.InferenceServerClient(f"127.0.0.1:{port(grpc)}") as c:
            try:
                return c.is_server_live(client_timeout=2)
            except grpc_client.InferenceServerException:
                return False

    wait_until(alive)


def test_sockets_of_another_process_are_not_ours(start, repository):
    passed = listening()
    p = start([passed], "http", repository, "--http-port=0", "--grpc-port=0", "--metrics-port=0", env={"LISTEN_PID": "1"})
    ready(p)
    assert f"HTTPService at 0.0.0.0:{port(passed)}\n" not in p.said()


def unix(tmp_path):
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(tmp_path / "s"))
    s.listen()
    return s


@pytest.mark.parametrize("what, names, args, env, message", [
    ("tcp", "http", [], {"LISTEN_FDS": "many"}, "LISTEN_FDS: expected the number of sockets that are passed, 0 to 3 "
                                                "(http, grpc, metrics), got 'many'"),
    ("tcp", "http", [], {"LISTEN_FDS": "4"}, "got '4'"),
    ("tcp", "htpp", [], {}, "LISTEN_FDNAMES: descriptor 3: expected http, grpc or metrics, got 'htpp'"),
    ("tcp tcp", "http:http", [], {}, "LISTEN_FDNAMES: descriptors 3 and 4 are both named 'http'; expected one socket for it"),
    ("udp", "http", [], {}, "descriptor 3 (http): expected a stream socket that listens"),
    ("silent", "grpc", [], {}, "descriptor 3 (grpc): expected a stream socket that listens"),
    ("unix", "http", [], {}, "descriptor 3 (http): expected a socket at an IPv4 or IPv6 address"),
    ("tcp", "http", [], {"LISTEN_FDS": "2"}, "descriptor 4 (grpc): expected a stream socket that listens"),
    ("tcp", "metrics", ["--allow-metrics=false"], {}, "descriptor 3 is a socket for metrics, and --allow-metrics=false")])
@pytest.mark.parametrize("program", ["tritonserver", "nereid"])
def test_what_cannot_be_used_is_named(start, repository, tmp_path, what, names, args, env, message, program):
    make = {"tcp": listening, "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "silent": socket.socket,
            "unix": lambda: unix(tmp_path)}
    p = start([make[w]() for w in what.split()], names, repository, *args, env=env, program=program)
    assert p.wait(60) != 0
    assert message in p.said()
