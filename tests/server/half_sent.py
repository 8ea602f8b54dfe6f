# SPDX-License-Identifier: Apache-2.0
"""A gRPC client by hand (RFC 9113) whose messages never end: it sends what the server opens its windows for."""
import socket
import struct
import time

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW, MAX_FRAME = 4, 5  # numbers of settings


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def field(name, value):
    """One header field, as literals."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class HalfSent:
    """n_streams calls of ModelInfer on one connection; each promises a message of n_bytes."""

    def __init__(self, port, n_streams, n_bytes):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.buffer, self.room, self.initial, self.frame_bytes = b"", 65535, 65535, 16384
        self.windows, self.left = {}, {}  # of streams that are open
        self.sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        self.read(5)
        head = b"\x83\x86" + field(b":path", b"/inference.GRPCInferenceService/ModelInfer") + field(b":authority", b"localhost") + \
            field(b"content-type", b"application/grpc") + field(b"te", b"trailers")
        for stream in range(1, 2 * n_streams, 2):
            self.windows[stream], self.left[stream] = self.initial, n_bytes - 1
            self.sock.sendall(frame(HEADERS, END_HEADERS, stream, head))
            self.send(stream, b"\0" + struct.pack(">I", n_bytes))

    def close(self):
        self.sock.close()

    def send(self, stream, data):
        self.windows[stream] -= len(data)
        self.room -= len(data)
        self.sock.settimeout(20)
        self.sock.sendall(frame(DATA, 0, stream, data))

    def settings(self, payload):
        for key, value in struct.iter_unpack(">HI", payload):
            if key == INITIAL_WINDOW:
                self.windows = {s: w + value - self.initial for s, w in self.windows.items()}
                self.initial = value
            if key == MAX_FRAME:
                self.frame_bytes = value
        self.sock.sendall(frame(SETTINGS, ACK, 0))

    def take(self, kind, flags, stream, payload):
        if kind == WINDOW and stream == 0:
            self.room += int.from_bytes(payload, "big")
        elif kind == WINDOW and stream in self.windows:
            self.windows[stream] += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            self.settings(payload)
        elif kind == PING and not flags & ACK:
            self.sock.sendall(frame(PING, ACK, 0, payload))
        elif kind == RESET:
            self.windows.pop(stream, None)

    def read(self, seconds):
        self.sock.settimeout(seconds)
        try:
            got = self.sock.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return
        if not got:
            raise ConnectionError("closed by the server")
        self.buffer += got
        while len(self.buffer) >= 9:
            n = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + n:
                break
            head, payload = self.buffer[:9], self.buffer[9:9 + n]
            self.buffer = self.buffer[9 + n:]
            self.take(head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7fffffff, payload)

    def push(self, seconds):
        """Sends until there has been no room for so many seconds, or nothing is left but the last byte of each."""
        idle = time.monotonic()
        while time.monotonic() - idle < seconds and any(self.left[s] for s in self.windows):
            moved = False
            for stream in list(self.windows):
                n = min(self.windows.get(stream, 0), self.room, self.frame_bytes, self.left[stream], 1 << 18)
                if n > 0:
                    self.left[stream] -= n
                    self.send(stream, bytes(n))
                    moved = True
            idle = time.monotonic() if moved else idle
            self.read(0 if moved else 0.05)
