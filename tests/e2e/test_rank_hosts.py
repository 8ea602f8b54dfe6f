# SPDX-License-Identifier: Apache-2.0
"""One engine over ranks on two hosts, which are network namespaces; mpirun starts the ranks as a user has it do."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest

from llm_server import BIN, Server, wait_until
from hosts import are_possible  # noqa: I001  (llm_server has set its folder)
from processes import left

pytestmark = [pytest.mark.skipif(not are_possible(), reason="needs root and network namespaces"),
              pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")]
LONG = {"text_input": "A", "max_tokens": 60, "top_k": 1}
SOON = 8  # an error comes within 5 s on a machine that is not busy
N_FAULTS = int(os.environ.get("NEREID_RANK_FAULTS", "6"))  # of test_what_happens_to_ranks…


@pytest.fixture
def mpirun(hosts, tmp_path):
    """The line that starts n ranks, half of them on each host; to be run on the first."""
    one, two, _ = hosts
    agent = tmp_path / "agent"
    agent.write_text(f"""#!/bin/bash
while [[ $1 == -* ]]; do shift; done
shift
exec nsenter --net={two.net} unshare --uts bash -c "hostname two; $*"
""")
    agent.chmod(0o755)
    settings = {"plm_rsh_agent": agent, "btl": "tcp,self", "btl_tcp_if_include": "10.77.0.0/24",
                "oob_tcp_if_include": "10.77.0.0/24", "hwloc_base_binding_policy": "none"}
    words = [str(w) for k, v in settings.items() for w in ("--mca", k, v)]

    def line(n):
        return ["unshare", "--uts", "bash", "-c", 'hostname one; exec "$@"', "-", "mpirun", "--allow-run-as-root", "--host",
                f"{one.address}:{n // 2},{two.address}:{n // 2}", *words, "-n", str(n)]
    return line


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.jsonl"
    path.write_text(json.dumps({"tokens": list(range(3, 40))}) + "\n")
    return path


def log_probs(path):
    return [p for line in path.read_text().splitlines() for p in json.loads(line)["logprobs"] if p is not None]


@pytest.mark.parametrize("tp, pp", [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_ranks_of_two_hosts_compute_what_one_rank_does(hosts, mpirun, tiny_model, own_cache, tokens, tmp_path, tp, pp):
    def evaluate(out, *more):
        return list(map(str, [BIN / "nereid", "eval", tiny_model, "--tokens", tokens, "--out", tmp_path / out, "--compute-dtype",
                              "float32", "--threads", "1", *more]))

    env = dict(os.environ, NEREID_CACHE=str(own_cache))
    alone = subprocess.run(evaluate("alone"), env=env, capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    command = [*mpirun(tp * pp), *evaluate("both", "--tp-size", tp, "--pp-size", pp)]
    both = hosts[0].run(subprocess.run, command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert both.returncode == 0, both.stdout + both.stderr
    assert log_probs(tmp_path / "both") == pytest.approx(log_probs(tmp_path / "alone"), abs=1e-3)
    assert wait_until(lambda: not left(own_cache))


class OnHosts:
    """A server of four ranks on two hosts, two stages of two ranks or four ranks of one."""

    def __init__(self, hosts, mpirun, model, cache, *words):
        self.host = hosts[0]
        self.cache = cache
        self.server = self.host.run(lambda: Server(
            model, cache, *words, "--restart-on-failure=false",
            launch=lambda command, env: [*mpirun(4), *map(str, command)]).wait_ready())

    def answer(self):
        return self.host.run(self.server.generate, LONG)

    def load(self):
        return self.host.run(lambda: self.server.request("/v2/repository/models/tensorrt_llm/load", b""))

    def workers(self):
        """Those of the second host."""
        found = []
        for pid in left(self.cache):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found += [pid] if words[1:2] == [b"worker"] and int(words[2]) >= 2 else []
        return sorted(found)

    def worker(self, rank):
        """The process that computes a rank."""
        words = [b"worker", str(rank).encode()]
        return next(p for p in left(self.cache) if pathlib.Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")[1:3] == words)

    def launched(self, rank):
        """The process that mpirun started as this rank."""
        mine = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        for pid in left(self.cache):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            is_own = os.path.basename(words[0]) in (b"nereid", b"tritonserver") and words[1:2] not in ([b"worker"], [b"mpi-meet"])
            if is_own and mine in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
        raise ProcessLookupError(f"rank {rank} is gone")

    def start_again(self):
        self.host.run(self.server.start)
        self.host.run(self.server.wait_ready)

    def lose(self, how, n=4, ends=False):
        """What n requests that are under way hear when `how` happens, and how long the last one waits for that. ends: the server's end."""
        answers, times, texts = [None] * n, [0.0] * n, set()

        def ask(i):
            while answers[i] is None or answers[i][0] == 200:
                try:
                    answers[i] = self.server.generate(LONG)
                except (OSError, http.client.HTTPException) as e:  # the server is gone
                    answers[i] = (0, repr(e))
                texts.update([answers[i][1]["text_output"]] if answers[i][0] == 200 else [])
            times[i] = time.monotonic()

        def start():
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
            for t in threads:
                t.start()
            return threads

        threads = self.host.run(start)
        time.sleep(0.5)  # while requests come and go
        begin = time.monotonic()
        how()
        for t in threads:
            t.join(60)
        assert all(a and a[0] in ((0, 503) if ends else (503,)) for a in answers), answers
        assert len(texts) <= 1, texts  # whole, or an error
        return answers, max(times) - begin

    def is_ready(self):
        return self.host.run(lambda: self.server.request("/v2/models/tensorrt_llm/ready"))[0] == 200

    def end(self):
        """As a launcher is ended; nothing may be left on either host."""
        self.host.run(lambda: self.server.process.send_signal(signal.SIGTERM))
        self.host.run(lambda: self.server.process.wait(60))
        assert wait_until(lambda: not left(self.cache), 30), [pathlib.Path(f"/proc/{p}/cmdline").read_bytes() for p in left(self.cache)]


def test_metrics_and_top_say_which_host_each_rank_is_on(hosts, mpirun, tiny_model, own_cache):
    served = OnHosts(hosts, mpirun, tiny_model, own_cache, "--tp-size=2", "--pp-size=2")

    def look():
        url = served.server.url("/")
        view = subprocess.run([BIN / "nereid", "top", url, "--interval=0.4"], capture_output=True, text=True, timeout=60, check=True)
        stats = served.server.request("/ui/stats")[1]["engines"][0]["ranks"]
        return stats, view.stdout, [served.server.metric("nv_llm_rank_info", rank=str(rank), host=host)
                                    for rank, host in enumerate(["one", "one", "two (10.77.0.2)", "two (10.77.0.2)"])]

    stats, view, values = hosts[0].run(look)
    assert stats == [{"rank": 0, "host": "one"}, {"rank": 1, "host": "one"}, {"rank": 2, "host": "two (10.77.0.2)"},
                     {"rank": 3, "host": "two (10.77.0.2)"}]
    assert "ranks     0-1 on one, 2-3 on two (10.77.0.2)" in view
    assert values == [1, 1, 1, 1]
    served.end()


@pytest.fixture(params=[("--tp-size=2", "--pp-size=2"), ("--tp-size=4",)], ids=["2x2", "4"])
def served(request, hosts, mpirun, tiny_model, own_cache):
    return OnHosts(hosts, mpirun, tiny_model, own_cache, *request.param)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_of_another_host_that_is_lost_is_heard_soon_and_a_load_brings_it_back(served, how):
    status, before = served.answer()
    assert status == 200
    for number in range(2):
        pid = served.workers()[number]
        answers, seconds = served.lose(lambda: os.kill(pid, how))  # noqa: B023
        assert seconds < SOON
        assert any(f"rank {number + 2} of 4 was lost" in a["error"] for _, a in answers), answers
        assert not served.is_ready()
        assert served.load()[0] == 200, served.server.log_text()[-3000:]
        assert served.answer() == (200, before)
        assert len(served.workers()) == 2
    served.end()


def test_a_network_between_ranks_that_is_cut_is_heard_soon_and_mended(served, hosts):
    wire = hosts[2]
    status, before = served.answer()
    assert status == 200

    def cut():
        wire.is_cut = True

    answers, seconds = served.lose(cut)
    assert seconds < SOON
    assert any("was lost: its host two (10.77.0.2)" in a["error"] for _, a in answers), answers
    assert not served.is_ready()
    assert wait_until(lambda: not served.workers(), SOON)  # they end by themselves
    status, answer = served.load()
    assert status != 200 and "host two (10.77.0.2)" in answer["error"], answer
    wire.is_cut = False
    assert wait_until(lambda: served.load()[0] == 200, 60), served.server.log_text()[-3000:]
    assert served.answer() == (200, before)
    served.end()


def test_a_slow_network_that_loses_packets_changes_no_answer(served, hosts):
    wire = hosts[2]
    want = served.answer()
    wire.delay, wire.loss = 0.002, 0.01
    assert served.answer() == want and want[0] == 200
    assert wire.n_lost > 0
    served.end()


class Faults:
    """What may happen to a job of four ranks on two hosts. Each returns how long the last of four requests waited until it heard."""

    def __init__(self, served, wire, want):
        self.served, self.wire, self.want = served, wire, want

    def come_back(self, load):
        if load:
            assert wait_until(lambda: self.served.load()[0] == 200, 60), self.served.server.log_text()[-3000:]
        assert self.served.answer() == self.want
        assert len(self.served.workers()) == 2

    def of_worker(self, rank, how):
        pid = self.served.worker(rank)
        answers, seconds = self.served.lose(lambda: os.kill(pid, how))
        assert all("of 4 was lost" in a["error"] for _, a in answers), answers
        assert not self.served.is_ready()
        self.come_back(True)
        return seconds

    def of_network(self):
        def cut():
            self.wire.is_cut = True
        _, seconds = self.served.lose(cut)
        self.wire.is_cut = False
        self.come_back(True)
        return seconds

    def of_standing(self, rank):
        """The process that mpirun started stands still: rank 0, or the one that speaks for its host."""
        pid, seconds = self.served.launched(rank), 5 if rank == 0 else 2 * SOON
        go_on = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))

        def stand():
            os.kill(pid, signal.SIGSTOP)
            go_on.start()
        _, waited = self.served.lose(stand)
        go_on.cancel()
        os.kill(pid, signal.SIGCONT)
        self.come_back(True)
        return waited - (seconds if rank == 0 else 0)  # rank 0 answers nobody meanwhile

    def of_job(self, rank):
        """A launched process is killed, None: mpirun. All of the job ends."""
        pid = self.served.server.process.pid if rank is None else self.served.launched(rank)
        _, seconds = self.served.lose(lambda: os.kill(pid, signal.SIGKILL), ends=True)
        self.served.server.process.wait(60)
        assert wait_until(lambda: not left(self.served.cache), SOON)
        self.served.start_again()
        self.come_back(False)
        return seconds


@pytest.mark.timeout(60 + 40 * N_FAULTS)
def test_what_happens_to_ranks_of_two_hosts_is_heard_soon_and_mended(hosts, mpirun, tiny_model, own_cache):
    """NEREID_RANK_FAULTS of them, one after the other, each under load."""
    served = OnHosts(hosts, mpirun, tiny_model, own_cache, "--tp-size=2", "--pp-size=2")
    faults = Faults(served, hosts[2], served.answer())
    assert faults.want[0] == 200
    kinds = [("STOP", "launched 2", lambda: faults.of_standing(2)), ("KILL", "mpirun", lambda: faults.of_job(None)),
             ("STOP", "launched 0", lambda: faults.of_standing(0)), ("KILL", "worker 1", lambda: faults.of_worker(1, signal.SIGKILL)),
             ("KILL", "launched 3", lambda: faults.of_job(3)), ("STOP", "worker 1", lambda: faults.of_worker(1, signal.SIGSTOP)),
             ("cut", "network", faults.of_network), ("KILL", "worker 2", lambda: faults.of_worker(2, signal.SIGKILL)),
             ("KILL", "launched 0", lambda: faults.of_job(0)), ("STOP", "worker 3", lambda: faults.of_worker(3, signal.SIGSTOP)),
             ("KILL", "launched 1", lambda: faults.of_job(1)), ("KILL", "worker 3", lambda: faults.of_worker(3, signal.SIGKILL)),
             ("KILL", "launched 2", lambda: faults.of_job(2)), ("STOP", "worker 2", lambda: faults.of_worker(2, signal.SIGSTOP))]
    for i in range(N_FAULTS):
        how, what, happen = kinds[i % len(kinds)]
        seconds = happen()
        print(f"{how:4} {what:10} heard after {seconds:.2f} s", flush=True)
        assert seconds < SOON, (how, what, seconds)
    served.end()
