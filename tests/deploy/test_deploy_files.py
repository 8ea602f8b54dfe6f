# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/: each is checked by the program that reads it, and what they ask a server for exists."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import jsonschema
import kubernetes_validate
import pytest
import yaml

import gateway_schemas
import lws_schema

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tests/e2e"))
from llm_server import Server, free_ports  # noqa: E402


def run(*args):
    p = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stdout + p.stderr
    return p.stdout + p.stderr


# ---- systemd ----

def test_systemd_knows_every_line_of_the_unit(tmp_path):
    text = (DEPLOY / "systemd/nereid.service").read_text()
    unit = tmp_path / "nereid.service"
    unit.write_text(text.replace("/opt/nereid/bin/nereid", str(ROOT / "build/bin/nereid")))
    said = run("systemd-analyze", "verify", "--man=no", str(unit))
    assert "nereid.service" not in said, said


def test_systemd_knows_every_line_of_the_socket_and_its_ports_are_those_of_the_server(tmp_path):
    for name in ("nereid.service", "nereid.socket"):
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/nereid/bin/nereid", str(ROOT / "build/bin/nereid")))
    said = run("systemd-analyze", "verify", "--man=no", str(tmp_path / "nereid.socket"))
    assert "nereid." not in said, said
    usage = run(str(ROOT / "build/bin/tritonserver"), "--help")
    defaults = [re.search(rf"--{name}-port.*?[Dd]efault is (\d+)", usage, re.S)[1] for name in ("http", "grpc", "metrics")]
    assert re.findall(r"^ListenStream=127.0.0.1:(\d+)", text, re.M) == defaults


def test_the_unit_leaves_the_server_time_to_stop():
    unit = dict(line.split("=", 1) for line in (DEPLOY / "systemd/nereid.service").read_text().splitlines()
                if "=" in line and line[0] not in "#[")
    usage = run(str(ROOT / "build/bin/tritonserver"), "--help")
    default = int(re.search(r"--exit-timeout-secs.*?[Dd]efault is (\d+)", usage, re.S)[1])
    assert int(unit["TimeoutStopSec"]) > default


def test_options_of_the_configuration_are_options_of_serve():
    conf = (DEPLOY / "systemd/nereid.conf").read_text()
    usage = run(str(ROOT / "build/bin/nereid"), "serve", "--help")
    for option in re.findall(r"--[a-z-]+", conf.split("NEREID_OPTIONS=")[1]):
        assert option in usage


@pytest.mark.parametrize("name", ["systemd/nereid.service", "docker/Dockerfile", "docker/Dockerfile.cuda", "kubernetes/nereid.yaml",
                                  "kubernetes/hosts.yaml", "helm/templates/_pod.tpl"])
def test_models_that_are_fetched_lie_in_the_cache(name):
    """The user of each has no home that it may write, where the hub's cache would be."""
    text = (DEPLOY / name).read_text()
    cache, hub = (re.search(rf"\b{v}(?:=|, value: |\b[^\n]*\n +value: )([^\s}}]+)", text)[1] for v in ("NEREID_CACHE", "HF_HOME"))
    assert hub == f"{cache}/huggingface"


# ---- Slurm ----

def test_the_slurm_script_starts_the_server_once_a_task(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    script = DEPLOY / "slurm/nereid.sub"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "8"}
    words = subprocess.run(["bash", script, "my repo", "--http-port", "9000"], env=env, capture_output=True, text=True, check=True,
                           timeout=60).stdout.splitlines()
    server = words.index("tritonserver")
    assert "--ntasks" not in " ".join(words) and "--cpus-per-task=8" in words[:server]  # the job's tasks, with their processors
    assert words[server + 1:] == ["--model-repository=my repo", "--exit-timeout-secs=45", "--http-port", "9000"]
    known = run(str(ROOT / "build/bin/tritonserver"), "--help")
    assert "--exit-timeout-secs" in known and "--model-repository" in known
    head = re.findall(r"^#SBATCH --(\S+?)=(\S+)$", script.read_text(), re.M)
    assert dict(head)["nodes"] == "1" and dict(head)["signal"] == "TERM@60"
    none = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert none.returncode != 0 and "REPOSITORY" in none.stderr


# ---- containers ----

@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_what_the_image_copies_is_there(name):
    for line in (DEPLOY / "docker" / name).read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for path in line.split()[1:-1]:
                assert (ROOT / path).exists(), line


def test_the_image_has_the_libraries_that_the_programs_need():
    if "bookworm" not in pathlib.Path("/etc/os-release").read_text():
        return  # the list has the names of Debian 12, which the image is made from
    names = (DEPLOY / "docker/runtime_packages").read_text().split()
    files = [f for pattern in ("bin/*", "lib/*.so", "backends/*/*.so") for f in (ROOT / "build").glob(pattern)]
    needed = set()
    for f in files:
        out = subprocess.run(["readelf", "-d", f], capture_output=True, text=True).stdout
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", out))
    needed -= {lib.name for lib in files} | {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    needed = {n for n in needed if not n.startswith("libnereid")}
    assert needed
    missing = []
    for lib in needed:
        owners = subprocess.run(["dpkg-query", "-S", f"*/{lib}"], capture_output=True, text=True).stdout
        if not {line.split(":")[0] for line in owners.splitlines()} & set(names):
            missing.append((lib, owners.strip()))
    assert not missing
    # What https is checked with: apt would only recommend it.
    assert "ca-certificates" in names and "ca-certificates" in (DEPLOY / "docker/Dockerfile.cuda").read_text()


def test_compose_mounts_files_that_are_there():
    services = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())["services"]
    for s in services.values():
        for v in s.get("volumes", []):
            source = v.split(":")[0]
            if source.startswith(".."):
                assert (DEPLOY / "docker" / source).exists(), v
    assert (DEPLOY / "docker" / services["nereid"]["build"]["context"] / services["nereid"]["build"]["dockerfile"]).exists()


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="no docker-compose")
def test_compose_takes_the_file_and_says_what_it_needs():
    """Its own reader, with its schema; what it makes of the file is what is started."""
    words = ["docker-compose", "-f", str(DEPLOY / "docker/compose.yaml"), "config"]
    env = {k: v for k, v in os.environ.items() if k not in ("MODELS", "MODEL")}
    said = subprocess.run(words, env={**env, "MODELS": "/srv/models", "MODEL": "m.gguf"}, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    services = yaml.safe_load(said.stdout)["services"]
    assert set(services) == {"nereid", "prometheus", "grafana"}
    assert services["nereid"]["command"] == ["/models/m.gguf", "--host", "0.0.0.0"]
    assert any(v.startswith("/srv/models:/models:ro") for v in services["nereid"]["volumes"])
    for given, says in (({"MODELS": "/srv"}, "the file or folder in MODELS that is served"), ({"MODEL": "m"}, "the folder of models")):
        said = subprocess.run(words, env={**env, **given}, capture_output=True, text=True, timeout=60)
        assert said.returncode != 0 and says in said.stderr


# ---- Kubernetes ----

def documents(name):
    return [d for d in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()) if d]


@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_manifests_follow_the_schema(version):
    for d in documents("nereid.yaml"):
        kubernetes_validate.validate(d, version, strict=True)


def test_a_wrong_manifest_is_found():
    d = next(d for d in documents("nereid.yaml") if d["kind"] == "Deployment")
    d["spec"]["template"]["spec"]["containers"][0]["portz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(d, "1.37", strict=True)


def test_manifests_fit_each_other():
    kinds = {d["kind"]: d for d in documents("nereid.yaml")}
    pod = kinds["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    container = pod["spec"]["containers"][0]
    ports = {p["name"] for p in container["ports"]}
    assert {p["targetPort"] for p in kinds["Service"]["spec"]["ports"]} <= ports
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
    timeout = int(container["args"][container["args"].index("--exit-timeout-secs") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > timeout
    patch = documents("gpu.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
    assert patch["name"] == container["name"]
    for f in documents("kustomization.yaml")[0]["resources"]:
        assert (DEPLOY / "kubernetes" / f).exists()


def test_the_pool_of_a_gateway_has_the_pods_of_the_deployment():
    pool, route = documents("pool.yaml")
    for d in (pool, route):
        gateway_schemas.validate(d)
    pod = next(d for d in documents("nereid.yaml") if d["kind"] == "Deployment")["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    http, = (p["containerPort"] for p in pod["spec"]["containers"][0]["ports"] if p["name"] == "http")
    assert pool["spec"]["targetPorts"] == [{"number": http}]
    backend, = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["group"], backend["kind"], backend["name"]) == (pool["apiVersion"].split("/")[0], pool["kind"],
                                                                    pool["metadata"]["name"])


@pytest.mark.parametrize("wrong", [{"targetPorts": []}, {"targetPorts": [{"number": 0}]}, {"targetPort": 8000},
                                   {"endpointPickerRef": {"name": "picker"}}, {"selector": {"matchLabels": {}}}])
def test_a_wrong_pool_is_found(wrong):
    pool = documents("pool.yaml")[0]
    pool["spec"].update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        gateway_schemas.validate(pool)


@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_the_manifest_of_several_hosts_follows_its_schemas(version):
    group, *others = documents("hosts.yaml")
    lws_schema.validate(group, version)
    for d in others:
        kubernetes_validate.validate(d, version, strict=True)


@pytest.mark.parametrize("path, wrong", [((), {"replica": 1}), (("leaderWorkerTemplate",), {"size": 0}),
                                         (("leaderWorkerTemplate",), {"restartPolicy": "Always"}),
                                         (("rolloutStrategy", "rollingUpdateConfiguration"), {"maxSurge": 0}),
                                         (("leaderWorkerTemplate", "workerTemplate", "spec"), {"container": []})])
def test_a_wrong_manifest_of_several_hosts_is_found(path, wrong):
    group = documents("hosts.yaml")[0]
    part = group["spec"]
    for key in path:
        part = part[key]
    part.update(wrong)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        lws_schema.validate(group, "1.37")


def test_pods_of_several_hosts_fit_each_other():
    group, *others = documents("hosts.yaml")
    kinds = {d["kind"]: d["spec"] for d in others}
    leader, worker = lws_schema.pods(group)
    assert group["spec"]["startupPolicy"] == "LeaderCreated"  # a leader becomes ready by its workers
    assert group["metadata"]["name"] not in [d["metadata"]["name"] for d in others if d["kind"] == "Service"]  # the controller's
    labels = [t["metadata"]["labels"] for t in (leader, worker)]
    for selector in (kinds["PodDisruptionBudget"]["selector"], kinds["NetworkPolicy"]["podSelector"],
                     kinds["NetworkPolicy"]["ingress"][0]["from"][0]["podSelector"]):
        assert all(selector["matchLabels"].items() <= pod.items() for pod in labels)
    selects = [kinds["Service"]["selector"].items() <= pod.items() for pod in labels]
    assert selects == [True, False]  # workers serve nobody
    alone = next(d for d in documents("nereid.yaml") if d["kind"] == "Service")["spec"]
    assert not any(alone["selector"].items() <= pod.items() for pod in labels)
    assert kinds["Service"]["ports"] == alone["ports"]
    (serves,), (follows,) = (t["spec"]["containers"] for t in (leader, worker))
    for part in ("image", "args", "env", "resources", "securityContext", "volumeMounts"):
        assert serves[part] == follows[part], part
    assert {p["name"] for p in serves["ports"]} >= {p["targetPort"] for p in alone["ports"]}
    assert "ports" not in follows and not [key for key in follows if key.endswith("Probe")]
    assert {m["name"] for m in serves["volumeMounts"]} == {v["name"] for v in worker["spec"]["volumes"]}
    assert leader["spec"]["terminationGracePeriodSeconds"] == worker["spec"]["terminationGracePeriodSeconds"] > int(
        serves["args"][serves["args"].index("--exit-timeout-secs") + 1])


# ---- Prometheus and Grafana ----

@pytest.fixture(scope="module")
def monitored(tmp_path_factory):
    """A server that has answered, and a Prometheus that has asked it; gives a function that queries it."""
    folder = tmp_path_factory.mktemp("monitored")
    model = folder / "tiny"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", model],
                   check=True, stdout=subprocess.DEVNULL)
    server = Server(model, folder).wait_ready()
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{server.metrics}"]}]
    shutil.copy(DEPLOY / "prometheus/alerts.yaml", folder)
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port, = free_ports(1)
    with open(folder / "prometheus.log", "w") as log:
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--web.listen-address=127.0.0.1:{port}",
             f"--storage.tsdb.path={folder}/data"], stdout=log, stderr=subprocess.STDOUT)

    def ask(path, **query):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}", timeout=20) as r:
            return json.load(r)["data"]

    try:
        until = time.monotonic() + 60
        scraped = 0
        while scraped < 4:  # rates need some; and requests in between
            assert time.monotonic() < until, (folder / "prometheus.log").read_text()
            assert server.generate({"text_input": "a b c", "max_tokens": 8})[0] == 200
            time.sleep(0.5)
            try:
                found = ask("/api/v1/query", query="count_over_time(nv_inference_request_success[1m])")["result"]
                scraped = max([int(r["value"][1]) for r in found], default=0)
            except OSError:
                pass
        yield ask
    finally:
        prometheus.terminate()
        prometheus.wait()
        assert server.stop() == 0


def test_prometheus_takes_the_configuration_and_the_alerts():
    run("promtool", "check", "config", str(DEPLOY / "prometheus/prometheus.yaml"))
    assert "7 rules found" in run("promtool", "check", "rules", str(DEPLOY / "prometheus/alerts.yaml"))


def test_the_server_tells_what_the_picker_of_a_pool_asks_for(monitored):
    told = [s.split('"') for s in re.findall(r"`(nv_trt_llm_\w+\{\w+=\"\w+\"\})`", (ROOT / "docs/deploy.md").read_text())]
    assert len(told) == 5
    for before, value, after in told:
        found = monitored("/api/v1/query", query=f'{before}"{value}"{after}')["result"]
        assert len(found) == 1, (before, value)


def test_every_metric_of_an_alert_is_one_of_the_server(monitored):
    rules = monitored("/api/v1/rules")["groups"][0]["rules"]
    assert len(rules) == 7
    for r in rules:
        assert r["health"] in ("ok", "unknown"), r
        for name in set(re.findall(r"\b(?:nv_\w+|up)\b", r["query"])):
            if name == "nv_inference_request_failure":
                continue  # there from the first failure on
            assert monitored("/api/v1/query", query=name)["result"], name
        assert r["state"] == "inactive", r


def test_every_panel_of_the_dashboard_draws_something(monitored):
    dashboard = json.loads((DEPLOY / "grafana/nereid.json").read_text())
    for panel in dashboard["panels"]:
        found = 0
        for t in panel["targets"]:
            query = t["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$model", ".*")
            assert "$" not in query
            found += len(monitored("/api/v1/query", query=query)["result"])
        assert found, panel["title"]
    for v in dashboard["templating"]["list"]:
        if v["type"] == "query":
            metric, label = re.match(r"label_values\((\w+).*, (\w+)\)", v["query"]["query"]).groups()
            assert any(label in r["metric"] for r in monitored("/api/v1/query", query=metric)["result"])


def test_the_dashboard_has_only_what_grafana_reads():
    """Its own library reads all of it and writes the same again: a field that it does not know would be lost."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard
    register_default_plugins()

    def lost(a, b):
        if isinstance(a, dict):
            return [f".{k}{rest}" for k in a for rest in (lost(a[k], b[k]) if k in b else [""])]
        if isinstance(a, list) and len(a) == len(b):
            return [f"[{i}]{rest}" for i, (x, y) in enumerate(zip(a, b)) for rest in lost(x, y)]
        return [] if a == b else [""]

    def again(d):
        return json.loads(JSONEncoder().encode(Dashboard.from_json(d)))

    dashboard = json.loads((DEPLOY / "grafana/nereid.json").read_text())
    assert lost(dashboard, again(dashboard)) == []
    dashboard["panels"][0]["fieldConfig"]["defaults"]["units"] = "short"
    assert lost(dashboard, again(dashboard)) == [".panels[0].fieldConfig.defaults.units"]
