# SPDX-License-Identifier: Apache-2.0
"""The program: options, start-up lines, shutdown."""
import re
import signal
import subprocess
import time

import pytest

from triton_server import BUILD, delay, infer_body, write_model

PROGRAM = BUILD / "bin/tritonserver"


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60)


def test_help_and_version():
    text = run("--help")
    assert text.returncode == 0 and "--http-port <integer>" in text.stdout
    assert "2.51.0" in run("--version").stdout


@pytest.mark.parametrize("args, message", [
    (["--nonsense"], "unrecognized option '--nonsense'"),
    (["--http-port=x"], 'Bad option: "--http-port"'),
    (["--grpc-infer-thread-count=0"], 'Bad option: "--grpc-infer-thread-count"'),
    (["--trace-config=mode=zipkin"], "it is 'triton' or 'opentelemetry'"),
    (["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=ftp://a/b"],
     "expected http://host"),
    (["--trace-config=opentelemetry,bsp_max_queue_size=x"], "bsp_max_queue_size"),
    (["--trace-config=level=TIMESTAMPS"], "trace file name is not given"),
    (["--trace-config=triton,color=red"], "has no setting"),
    (["--http-port=1234", "--metrics-port=1234"], "same address and port"),
])
def test_wrong_options_end_the_program_with_a_reason(args, message):
    result = run(*args)
    assert result.returncode == 1 and message in result.stderr + result.stdout


def test_start_up_names_its_services(server):
    log = server.log()
    assert f"Started HTTPService at 127.0.0.1:{server.http}" in log
    assert f"Started Metrics Service at 127.0.0.1:{server.metrics}" in log
    assert "GRPCInferenceService" in log
    assert "successfully loaded 'ident'" in log


def test_options_without_effect_are_named(launch, repository):
    idle = ["buffer-manager-thread-count=2", "enable-peer-access=false",
            "cuda-memory-pool-byte-size=0:1000"]
    plain = launch(repository).wait_ready()
    assert "has no effect" not in plain.log()
    s = launch(repository, *[f"--{o}" for o in idle]).wait_ready()
    for option in idle:
        assert s.log().count(f"{option} has no effect: ") == 1


def test_model_that_cannot_load_ends_the_server(launch, tmp_path):
    repository = tmp_path / "broken"
    write_model(repository, "broken", extra='parameters { key: "x" ')
    s = launch(repository)
    assert s.wait() != 0
    assert "error: creating server: Internal - failed to load all models" in s.log()
    assert "broken" in s.log()


def test_what_ended_the_start_is_the_last_word_also_beside_a_log_file(launch, repository, tmp_path):
    s = launch(repository, f"--log-file={tmp_path}/log", "--openai-files-dir=/proc/none")
    assert s.wait() == 1
    last = s.log().splitlines()[-1]
    assert last.startswith("error: failed to start the OpenAI endpoints: --openai-files-dir: cannot create folder '/proc/none'"), s.log()


def test_model_that_cannot_load_is_tolerated_on_request(launch, tmp_path):
    repository = tmp_path / "mixed"
    write_model(repository, "good")
    write_model(repository, "broken", extra='parameters { key: "x" ')
    s = launch(repository, "--exit-on-error=false", "--strict-readiness=false").wait_ready()
    assert s.call("POST", "/v2/models/good/infer", infer_body([1])).status == 200
    assert s.call("POST", "/v2/models/broken/infer", infer_body([1])).status >= 400


def test_model_whose_configuration_cannot_be_read_holds_nothing_back(launch, tmp_path):
    repository = tmp_path / "mixed"
    write_model(repository, "good")
    write_model(repository, "broken", extra='parameters { key: "x" ')
    s = launch(repository, "--exit-on-error=false").wait_ready()
    assert s.call("GET", "/v2/health/ready").status == 200
    assert s.call("GET", "/v2/models/broken/ready").status == 400


def test_model_without_a_version_holds_readiness_back(launch, tmp_path):
    repository = tmp_path / "mixed"
    write_model(repository, "good")
    write_model(repository, "hollow")
    (repository / "hollow/1").rmdir()
    s = launch(repository, "--exit-on-error=false").wait_ready()
    assert s.call("GET", "/v2/health/ready").status == 400
    assert "failed to load model 'hollow': at least one version must be available" in s.log()
    assert "Not loaded: No model version was found" in s.log()


def test_failed_start_shows_the_options_and_why_whatever_the_log_shows(launch, tmp_path):
    write_model(tmp_path / "r", "broken", extra='parameters { key: "x" ')
    s = launch(tmp_path / "r")
    assert s.wait() == 1
    assert "| model_control_mode " in s.log() and "| exit_timeout " in s.log()
    s = launch(tmp_path / "r", "--log-error=false", "--log-info=false")
    assert s.wait() == 1
    assert s.log().endswith("error: creating server: Internal - failed to load all models\n")
    for more in ((), ("--exit-on-error=false",)):
        s = launch(tmp_path / "nothing", *more)
        assert s.wait() == 1
        assert "| model_repository_path[0] " in s.log()


def test_index_shows_what_serves_although_its_folder_is_gone(launch, tmp_path):
    write_model(tmp_path / "r", "first")
    s = launch(tmp_path / "r", "--model-control-mode=explicit", "--load-model=first").wait_ready()
    (tmp_path / "r/first").rename(tmp_path / "aside")
    ready = [{"name": "first", "version": "1", "state": "READY"}]
    assert s.call("POST", "/v2/repository/index").json() == ready
    assert s.call("POST", "/v2/repository/models/first/unload").status == 200
    until = time.monotonic() + 20
    while s.call("POST", "/v2/repository/index").json() and time.monotonic() < until:
        time.sleep(0.01)
    assert s.call("POST", "/v2/repository/index").json() == []


@pytest.mark.parametrize("kind,words", [
    ("missing", "Internal - failed to stat file {}"),
    ("file", "Invalid argument - repository path is not a valid directory: {}")])
def test_a_repository_that_is_no_folder_ends_the_start(launch, tmp_path, kind, words):
    path = tmp_path / kind
    if kind == "file":
        path.write_text("")
    s = launch(path)
    assert s.wait() == 1
    assert f"error: creating server: {words.format(path)}\n" in s.log()


def test_signal_is_told_whatever_the_log_shows(launch, repository):
    s = launch(repository, "--log-info=false")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            s.call("GET", "/v2/health/ready")
            break
        except ConnectionError:
            time.sleep(0.01)
    s.signal(signal.SIGTERM)
    assert s.wait() == 0
    assert "Signal (15) received.\n" in s.log()


def test_log_lines_have_their_form(launch, repository):
    s = launch(repository, "--log-format=ISO8601", "--log-verbose=1").wait_ready()
    assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ \w+\.c:\d+\] Started HTTPService", s.log(),
                     re.M)
    assert not re.search(r"Z (INFO|VERBOSE|V) ", s.log())


def test_options_table_shows_resources_of_the_rate_limiter(launch, repository):
    s = launch(repository, "--rate-limit=execution_count", "--rate-limit-resource=R1:10",
               "--rate-limit-resource=r2:7:0", "--rate-limit-resource=R1:4").wait_ready()
    assert '| rate_limit_resource[0]           | {"name":"R1", "count":4 "device":-1}' in s.log()
    assert '| rate_limit_resource[1]           | {"name":"r2", "count":7 "device":0}' in s.log()


def test_poll_interval_of_zero_is_taken(launch, tmp_path):
    write_model(tmp_path / "r", "first")
    s = launch(tmp_path / "r", "--model-control-mode=poll", "--repository-poll-secs=0").wait_ready()
    assert "| model_control_mode               | MODE_POLL " in s.log()


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port", "--metrics-port", "--openai-port", "--sagemaker-port"])
def test_port_in_use_ends_the_server_before_a_model_is_loaded(launch, server, repository, option):
    address = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--allow-sagemaker=true"]
    s = launch(repository, *address, f"{option}={server.http}")
    assert s.wait() != 0
    assert f"Socket '127.0.0.1:{server.http}' already in use; choose another port with {option}" in s.log().splitlines()[-1]
    assert "loading" not in s.log()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_an_idle_server_at_once(launch, repository, number):
    s = launch(repository).wait_ready()
    with s.connect() as idle:
        idle.call("GET", "/v2/health/live")
        start = time.monotonic()
        s.signal(number)
        assert s.wait() == 0
        assert time.monotonic() - start < 5


def test_shutdown_waits_for_requests_in_flight(launch, tmp_path):
    repository = tmp_path / "r"
    write_model(repository, "slow", extra=delay(2500))
    s = launch(repository, "--log-verbose=1").wait_ready()
    with s.connect() as c:
        with s.begins("slow"):
            c.request("POST", "/v2/models/slow/infer", infer_body([7]))
        s.signal()
        s.wait_log("Found 1 HTTP service connections")
        assert s.call("GET", "/v2/health/ready").status == 400
        assert s.call("GET", "/v2/health/live").status == 200
        reply = s.call("POST", "/v2/models/slow/infer", infer_body([8]))
        assert reply.status == 503 and "shutting down" in reply.error()
        silent = s.connect()  # holds nothing up
        s.signal()  # a second signal does no harm
        assert c.reply().json()["outputs"][0]["data"] == [7]
    assert s.wait(10) == 0
    silent.close()


def test_shutdown_gives_up_after_the_exit_timeout(launch, tmp_path):
    repository = tmp_path / "r"
    write_model(repository, "slow", extra=delay(15000))
    s = launch(repository, "--exit-timeout-secs=1", "--log-verbose=1").wait_ready()
    with s.connect() as c:
        with s.begins("slow"):
            c.request("POST", "/v2/models/slow/infer", infer_body([7]))
        start = time.monotonic()
        s.signal()
        s.wait(14)
        assert time.monotonic() - start < 12
