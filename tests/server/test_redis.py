# SPDX-License-Identifier: Apache-2.0
"""The response cache in Redis: shared under a secret, a miss where Redis is slow or away, never a wrong answer."""
import signal
import socket
import subprocess
import threading
import time

import pytest

from certificates import Authority
from ports import free_ports
from test_cache import CACHE, ask, stats
from triton_server import BUILD, delay, wait_until, write_model

SECRET = "a secret of this test"
PASSWORD = "redis-pass-word"
pytestmark = pytest.mark.skipif("no-redis" in subprocess.run([BUILD / "bin/nereid", "--version"], capture_output=True,
                                                             text=True).stdout, reason="the build is without hiredis")


class Redis:
    """redis-server on a port of the loopback address."""

    def __init__(self, folder, *args, port=None, tls=()):
        self.port, self.folder, self.args, self.tls = port or free_ports(1)[0], folder, args, list(tls)
        self.start()

    def start(self):
        ports = ["--port", "0", "--tls-port", self.port] if self.tls else ["--port", self.port]
        with open(self.folder / "redis.log", "a") as log:
            self.process = subprocess.Popen(
                [str(a) for a in ["redis-server", *ports, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                                  "--dir", self.folder, *self.tls, *self.args]], stdout=log, stderr=subprocess.STDOUT)
        wait_until(lambda: self.cli("ping") in ("PONG", "NOAUTH Authentication required."))

    def cli(self, *words):
        tls = ["--tls", "--cacert", self.tls[self.tls.index("--tls-ca-cert-file") + 1]] if self.tls else []
        return subprocess.run(["redis-cli", "-h", "localhost" if tls else "127.0.0.1", "-p", str(self.port), *map(str, tls),
                               *map(str, words)], capture_output=True, text=True).stdout.strip()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def option(self, *more):
        return [f"--cache-config=redis,{x}" for x in ("host=127.0.0.1", f"port={self.port}", *more)]


@pytest.fixture
def start_redis(tmp_path):
    started = []

    def start(*args, **kwargs):
        started.append(Redis(tmp_path, *args, **kwargs))
        return started[-1]
    yield start
    for r in started:
        if r.process.poll() is None:
            r.process.send_signal(signal.SIGCONT)
            r.kill()


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path / "models", "kept", extra=CACHE)
    write_model(tmp_path / "models", "slow", extra=CACHE + delay(300))
    return tmp_path / "models"


@pytest.fixture
def serve(launch, models):
    def start(options, *args):
        return launch(models, *options, "--log-verbose=1", *args).wait_ready()
    return start


def echo(server, values, model="kept"):
    """Asks, and says in how many seconds the right answer was there."""
    began = time.monotonic()
    reply = ask(server, model, values)
    assert reply.status == 200 and reply.json()["outputs"][0]["data"] == values
    return time.monotonic() - began


def hits(server):
    return stats(server, "kept")["cache_hit"]


def test_servers_with_one_secret_share_what_is_kept(start_redis, serve, tmp_path, monkeypatch):
    redis = start_redis()
    (tmp_path / "secret").write_text(SECRET + "\n")
    first = serve(redis.option(f"secret_file={tmp_path / 'secret'}"))
    second = serve(redis.option(f"secret={SECRET}"))
    other_salt = serve(redis.option(f"secret={SECRET}", "salt=other"))
    other_secret = serve(redis.option(f"secret={SECRET} not"))
    without = serve(redis.option())
    monkeypatch.setenv("NEREID_CACHE_SECRET", SECRET)
    by_environment = serve(redis.option())
    echo(first, [1, 2, 3])
    wait_until(lambda: redis.cli("dbsize") == "1")
    for server, want in ((second, 1), (by_environment, 1), (other_salt, 0), (other_secret, 0), (without, 0)):
        echo(server, [1, 2, 3])
        assert hits(server) == want
    assert stats(second, "kept")["executions"] == 0
    assert SECRET not in first.log() + second.log() and "no secret is configured" in without.log()
    assert "no secret is configured" not in first.log()
    text = second.call_metrics()
    assert text["nv_cache_num_hits"] == 1 and text["nv_cache_num_lookups"] == 1 and text["nv_cache_num_failures"] == 0
    assert second.stop() == 0
    again = serve(redis.option(f"secret={SECRET}"))
    echo(again, [1, 2, 3])
    assert hits(again) == 1


def test_another_configuration_has_other_keys(start_redis, serve, launch, tmp_path):
    redis = start_redis()
    first = serve(redis.option(f"secret={SECRET}"))
    write_model(tmp_path / "others", "kept", extra=CACHE + delay(1))
    second = launch(tmp_path / "others", *redis.option(f"secret={SECRET}")).wait_ready()
    echo(first, [4])
    echo(second, [4])
    assert hits(second) == 0


def test_what_others_wrote_is_not_an_answer(start_redis, serve):
    redis = start_redis()
    s = serve(redis.option(f"secret={SECRET}"))
    for values in ([1], [2]):
        echo(s, values)
    one, two = redis.cli("keys", "nereid:*").split()
    swap = redis.cli("eval", "local a = redis.call('get', KEYS[1]) redis.call('set', KEYS[1], redis.call('get', KEYS[2])) "
                     "redis.call('set', KEYS[2], a) return 'done'", 2, one, two)
    assert swap == "done"
    for values in ([1], [2]):  # each entry is well formed, under the key of the other
        echo(s, values)
    assert hits(s) == 0
    for offset in range(0, int(redis.cli("strlen", one)), 7):
        kept = redis.cli("eval", "local v = redis.call('get', KEYS[1]) redis.call('set', 'saved', v) "
                         "redis.call('setrange', KEYS[1], ARGV[1], string.char((string.byte(v, ARGV[1] + 1) + 1) % 256)) "
                         "redis.call('copy', KEYS[1], KEYS[2], 'REPLACE') return 'done'", 2, one, two, offset)
        assert kept == "done"
        for values in ([1], [2]):
            echo(s, values)
    assert hits(s) == 0
    for value in ("", "x", "NRDRSP1\n", "NRDRSP1\n" + "\x7f" * 40):
        for name in (one, two):
            redis.cli("set", name, value)
        echo(s, [1])
        echo(s, [2])
    redis.cli("del", one, two)
    redis.cli("lpush", one, "a")
    redis.cli("lpush", two, "a")
    echo(s, [1])
    assert hits(s) == 0 and "WRONGTYPE" in s.log()


def test_requests_are_answered_while_redis_is_away(start_redis, serve):
    redis = start_redis()
    s = serve(redis.option(f"secret={SECRET}"))
    echo(s, [1])
    echo(s, [1])
    assert hits(s) == 1
    redis.kill()
    assert max(echo(s, [1]) for _ in range(200)) < 1
    assert hits(s) == 1
    assert s.log().count("requests are answered without it") == 1
    assert s.call_metrics()["nv_cache_num_failures"] > 100
    redis.start()

    def is_back():
        before = hits(s)
        echo(s, [1])
        return hits(s) > before
    wait_until(is_back)
    assert "Redis answers again" in s.log()


def test_a_redis_that_hangs_costs_little(start_redis, serve):
    redis = start_redis()
    s = serve(redis.option(f"secret={SECRET}", "socket_timeout=100"))
    echo(s, [1])
    redis.process.send_signal(signal.SIGSTOP)
    took, wrong = [], []

    def run():
        try:
            took.extend(echo(s, [1]) for _ in range(100))
        except Exception as e:  # noqa: BLE001
            wrong.append(e)
    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(took) == 800
    took.sort()
    assert took[-1] < 2, took[-20:]
    assert sum(t > 0.09 for t in took) < 40  # the rest did not wait for Redis at all
    redis.process.send_signal(signal.SIGCONT)

    def is_back():
        before = hits(s)
        echo(s, [1])
        return hits(s) > before
    wait_until(is_back)


def test_connections_that_redis_closed_come_back_unnoticed(start_redis, serve):
    redis = start_redis()
    s = serve(redis.option(f"secret={SECRET}"))
    echo(s, [1])
    redis.cli("client", "kill", "type", "normal")
    wait_until(lambda: len(redis.cli("client", "list", "type", "normal").splitlines()) == 4 + 1)
    echo(s, [1])
    assert hits(s) == 1 and "answered without it" not in s.log()


def test_large_answers_are_not_kept(start_redis, serve):
    redis = start_redis()
    s = serve(redis.option(f"secret={SECRET}", "max_value_size=2000"))
    for _ in range(2):
        echo(s, [1] * 100)
        echo(s, [1] * 1000)
    assert stats(s, "kept")["cache_hit"] == 1
    assert "is larger than 'max_value_size' (2000): not kept" in s.log()
    whole = serve(redis.option(f"secret={SECRET}"))
    echo(whole, [1] * 1000)
    echo(s, [1] * 1000)  # what another server has kept is too large to be read
    assert stats(s, "kept")["cache_hit"] == 1
    wait_until(lambda: echo(s, [1] * 100) and hits(s) > 1)


def test_entries_end_after_ttl_in_their_database_under_their_prefix(start_redis, serve):
    redis = start_redis()
    s = serve(redis.option(f"secret={SECRET}", "ttl=600", "db=3", "prefix=mine/"))
    echo(s, [1])
    assert redis.cli("dbsize") == "0"
    (key,) = redis.cli("-n", 3, "keys", "*").split()
    assert key.startswith("mine/") and 500 < int(redis.cli("-n", 3, "ttl", key)) <= 600


def refuse(launch, models, options, words):
    s = launch(models, *options)
    assert s.wait(60) == 1
    for word in [words] if isinstance(words, str) else words:
        assert word in s.log(), s.log()
    return s


def test_credentials(start_redis, serve, launch, models, monkeypatch):
    redis = start_redis("--requirepass", PASSWORD)
    refuse(launch, models, redis.option(), "NOAUTH Authentication required")
    log = refuse(launch, models, redis.option("password=wrong-one"), "WRONGPASS").log()
    assert "wrong-one" not in log
    refuse(launch, models, redis.option("user=nobody", f"password={PASSWORD}"), "WRONGPASS")
    s = serve(redis.option(f"password={PASSWORD}"))
    echo(s, [1])
    echo(s, [1])
    assert hits(s) == 1 and PASSWORD not in s.log()
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", PASSWORD)
    echo(serve(redis.option()), [1])
    monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "default")
    echo(serve(redis.option()), [1])


def test_tls(start_redis, serve, launch, models, tmp_path):
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    cert, key = authority.sign("redis")
    redis = start_redis(tls=["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority.cert,
                             "--tls-auth-clients", "no"])
    s = serve(redis.option(f"cacert={authority.cert}", f"secret={SECRET}"))
    for values in ([1], [1], [5] * 100000, [5] * 100000):
        echo(s, values)
    assert hits(s) == 2 and "over TLS" in s.log()
    redis.kill()
    echo(s, [1])
    redis.start()
    wait_until(lambda: echo(s, [1]) and hits(s) > 2)
    refuse(launch, models, redis.option(f"cacert={stranger.cert}"), "TLS: ")
    refuse(launch, models, redis.option("tls=true"), "TLS: ")
    refuse(launch, models, redis.option(f"cacert={authority.cert}", "sni=another.name"), "TLS: hostname mismatch")
    refuse(launch, models, redis.option(), "Failed to initialize RedisCache")  # plain text to a port with TLS
    refuse(launch, models, redis.option("cacert=/nowhere.pem"), "'cacert': cannot use '/nowhere.pem'")
    assert s.stop() == 0


def test_clients_show_a_certificate_where_redis_wants_one(start_redis, serve, launch, models, tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.sign("redis")
    mine, my_key = authority.sign("client")
    redis = Redis.__new__(Redis)
    redis.port, redis.folder, redis.tls = free_ports(1)[0], tmp_path, []
    with open(tmp_path / "log", "w") as log:
        redis.process = subprocess.Popen(
            [str(a) for a in ["redis-server", "--port", 0, "--tls-port", redis.port, "--bind", "127.0.0.1", "--save", "",
                              "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority.cert]],
            stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Ready to accept" in (tmp_path / "log").read_text())
        refuse(launch, models, redis.option(f"cacert={authority.cert}"), "Redis (")
        s = serve(redis.option(f"cacert={authority.cert}", f"cert={mine}", f"key={my_key}", f"secret={SECRET}"))
        echo(s, [1])
        echo(s, [1])
        assert hits(s) == 1
    finally:
        redis.kill()


@pytest.mark.parametrize("options,words", [
    (["port=1"], "Must at a minimum specify 'host' and 'port'"),
    (["host=127.0.0.1"], "Must at a minimum specify 'host' and 'port'"),
    (["host=127.0.0.1", "port=nonexistent"], "'port' must be a whole number from 1 to 65535, got 'nonexistent'"),
    (["host=127.0.0.1", "port=65536"], "'port' must be a whole number from 1 to 65535, got '65536'"),
    (["host=127.0.0.1", "port=1", "pool_size=0"], "'pool_size' must be a whole number from 1 to 256"),
    (["host=127.0.0.1", "port=1", "socket_timeout=10001"], "'socket_timeout' must be a whole number from 0 to 10000"),
    (["host=127.0.0.1", "port=1", "db=-1"], "'db' must be a whole number"),
    (["host=127.0.0.1", "port=1", "cert=a"], "'cert' and 'key' go together"),
    (["host=127.0.0.1", "port=1", "tls=maybe"], "'tls' must be true or false, got 'maybe'"),
    (["host=127.0.0.1", "port=1", "tls=false", "cacert=a"], "'tls' is false"),
    (["host=127.0.0.1", "port=1", "secret=short"], "the secret must have at least 16 characters"),
    (["host=127.0.0.1", "port=1", "secret_file=/nowhere"], "'secret_file'"),
    (["host=127.0.0.1", "port=1"], "failed to connect to Redis (127.0.0.1:1): Connection refused"),
    (["host=nowhere.invalid", "port=1"], "failed to connect to Redis (nowhere.invalid:1): "),
])
def test_bad_settings_stop_the_start(launch, models, options, words):
    refuse(launch, models, [f"--cache-config=redis,{x}" for x in options], words)


class Liar:
    """Answers the greeting as Redis does, and GET with bytes of the test's."""

    def __init__(self, reply, piece=1 << 20, pause=0):
        self.reply, self.piece, self.pause = reply, piece, pause
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(c,), daemon=True).start()

    def talk(self, c):
        try:
            while data := c.recv(65536):
                if b"PING" in data:
                    c.sendall(b"+PONG\r\n")
                elif b"GET" in data:
                    for i in range(0, len(self.reply), self.piece):
                        c.sendall(self.reply[i:i + self.piece])
                        time.sleep(self.pause)
                    if not self.pause:
                        c.close()
                        return
        except OSError:
            pass


@pytest.mark.parametrize("reply,pause", [
    (b"$999999999999999\r\nabc", 0), (b"$-7\r\n", 0), (b"*1000000000\r\n", 0), (b"?\r\n", 0), (b"", 0), (b"$5\r\nab", 0),
    (b"*1\r\n" * 1000, 0), (b"$20000000\r\n" + b"x" * 20000000 + b"\r\n", 0), (b":1\r\n", 0), (b"*0\r\n", 0),
    (b"$1000\r\n" + b"x" * 1000, 0.05),  # a byte now and then: each of them comes within the time limit
])
def test_a_server_that_lies_is_a_miss(serve, reply, pause):
    liar = Liar(reply, 1 if pause else 1 << 20, pause)
    s = serve([f"--cache-config=redis,{x}" for x in ("host=127.0.0.1", f"port={liar.port}", f"secret={SECRET}")])
    assert max(echo(s, [i]) for i in range(20)) < 2
    assert hits(s) == 0
    liar.listener.close()
    assert s.stop() == 0
