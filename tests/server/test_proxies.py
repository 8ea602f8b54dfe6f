# SPDX-License-Identifier: Apache-2.0
"""--trusted-proxies: who asks behind a proxy, and that nobody else is believed."""
import pytest

from triton_server import wait_until, write_model

ORDER = "/v2/repository/index"


def start(launch, tmp_path, *options):
    write_model(tmp_path / "models", "echo")
    return launch(tmp_path / "models", "--log-verbose=1", *options).wait_ready()


def told(s, n, fields):
    """The client of the n-th request for this path, as the log has it."""
    assert s.call("GET", f"/v2/models/n{n}", b"", fields).status == 404
    wait_until(lambda: f"/v2/models/n{n}" in s.log())
    (line,) = [x for x in s.log().splitlines() if f"HTTP request: GET /v2/models/n{n}" in x]
    return line.split(f"/v2/models/n{n}")[1].strip()


def test_a_trusted_proxy_tells_the_client(launch, tmp_path):
    s = start(launch, tmp_path, "--trusted-proxies=10.0.0.0/8,127.0.0.1", "--trusted-proxies=::1")
    cases = [({}, "127.0.0.1"), ({"X-Forwarded-For": "198.51.100.7"}, "198.51.100.7"),
             ({"X-Forwarded-For": "203.0.113.5, 198.51.100.7, 10.1.1.1"}, "198.51.100.7"),
             ({"Forwarded": 'for="[2001:db8::9]:80";proto=https'}, "2001:db8::9"),
             ({"X-Forwarded-For": "198.51.100.7, %%%"}, "127.0.0.1"),
             ({"X-Forwarded-For": ",,,,"}, "127.0.0.1"), ({"X-Forwarded-For": "1" * 3000}, "127.0.0.1"),
             ({"Forwarded": "for=198.51.100.7", "X-Forwarded-For": "198.51.100.8"}, "127.0.0.1")]
    for n, (fields, client) in enumerate(cases):
        assert told(s, n, fields) == f"of {client}", fields


def test_others_are_not_believed(launch, tmp_path):
    s = start(launch, tmp_path, "--trusted-proxies=10.0.0.0/8")
    assert told(s, 1, {"X-Forwarded-For": "198.51.100.7"}) == "of 127.0.0.1"


def test_without_the_option_the_line_is_tritons(launch, tmp_path):
    s = start(launch, tmp_path)
    assert told(s, 1, {"X-Forwarded-For": "198.51.100.7"}) == ""


@pytest.mark.parametrize("trusted", [True, False])
def test_the_scheme_tells_pages_of_the_same_origin(launch, tmp_path, trusted):
    s = start(launch, tmp_path, f"--trusted-proxies={'127.0.0.1' if trusted else '10.0.0.1'}")

    def status(origin, proto):
        fields = {"Origin": f"{origin}://localhost", "Content-Type": "application/json"}
        return s.call("POST", ORDER, {}, {**fields, **({"X-Forwarded-Proto": proto} if proto else {})}).status
    assert status("https", "https") == status("http", None) == status("https", None) == 200
    assert status("http", "https") == (403 if trusted else 200)


@pytest.mark.parametrize("value", ["10.0.0.1/8", "proxy", "10.0.0.0/33", "1.2.3.4,::/x"])
def test_what_is_no_network_ends_the_start(launch, tmp_path, value):
    write_model(tmp_path / "models", "echo")
    s = launch(tmp_path / "models", f"--trusted-proxies={value}")
    assert s.process.wait(30) != 0
    assert "--trusted-proxies" in s.log() and "expected addresses or networks" in s.log()
