# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: values follow their schema, what the templates make of them follows Kubernetes', and says what the plain
manifests say. Where helm is, it is asked too."""
import json
import pathlib
import re
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml

import gateway_schemas
import helm_subset
import lws_schema

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm"
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
GPU = yaml.safe_load((CHART / "gpu.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
ALL = {"autoscaling": {"enabled": True}, "models": {"claim": "mine"}, "args": ["--tp-size=2", "--api-key=a b"],
       "nodeSelector": {"kind": "fast"}, "tolerations": [{"key": "x", "operator": "Exists"}]}
CASES = {"cpu": {}, "gpu": GPU, "all": ALL, "class": {"models": {"storageClass": "nfs"}},
         "pool": {"inferencePool": {"enabled": True}},
         "hosts": {"hosts": {"enabled": True}, "autoscaling": {"enabled": True}, "inferencePool": {"enabled": True}},
         "built": {"hosts": {"enabled": True, "size": 4, "tp": 0}, "model": "/models/engine", "replicas": 2}}


def objects(over):
    values = helm_subset.merged(DEFAULTS, over)
    jsonschema.validate(values, SCHEMA)
    defines = helm_subset.definitions((CHART / "templates/_pod.tpl").read_text())
    made = [yaml.safe_load(helm_subset.render(f.read_text(), {"Values": values, "Release": {"Name": "demo"}}, defines))
            for f in sorted((CHART / "templates").glob("*.yaml"))]
    return {d["kind"]: d for d in made if d}


@pytest.mark.parametrize("version", ["1.28", "1.37"])
@pytest.mark.parametrize("case", CASES)
def test_what_the_chart_makes_follows_the_schema_of_kubernetes(case, version):
    made = objects(CASES[case])
    for d in made.values():
        if d["kind"] in gateway_schemas.SCHEMAS:
            gateway_schemas.validate(d)
        elif d["kind"] == "LeaderWorkerSet":
            lws_schema.validate(d, version)
        else:
            kubernetes_validate.validate(d, version, strict=True)
    assert ("InferencePool" in made) == ("HTTPRoute" in made) == (case in ("pool", "hosts"))
    assert ("HorizontalPodAutoscaler" in made) == (case in ("all", "hosts")) and ("PersistentVolumeClaim" in made) == (case != "all")
    assert ("LeaderWorkerSet" in made) == ("Deployment" not in made) == (case in ("hosts", "built"))


def test_it_makes_what_the_plain_manifests_have():
    plain = {d["kind"]: d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes/nereid.yaml").read_text()) if d}
    made = objects({"autoscaling": {"enabled": True}})

    def container(d):
        return d["Deployment"]["spec"]["template"]["spec"]["containers"][0]

    for part in ("ports", "startupProbe", "readinessProbe", "livenessProbe", "securityContext", "volumeMounts", "resources", "env"):
        assert container(made)[part] == container(plain)[part], part
    for path in (("Deployment", "spec", "template", "spec", "securityContext"), ("Service", "spec", "ports"),
                 ("Deployment", "spec", "template", "spec", "terminationGracePeriodSeconds"),
                 ("HorizontalPodAutoscaler", "spec", "metrics"), ("HorizontalPodAutoscaler", "spec", "behavior"),
                 ("PodDisruptionBudget", "spec", "maxUnavailable"), ("PersistentVolumeClaim", "spec", "accessModes")):
        a, b = made, plain
        for key in path:
            a, b = a[key], b[key]
        assert a == b, path


def test_it_makes_the_pool_of_the_plain_manifest():
    plain = {d["kind"]: d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes/pool.yaml").read_text())}
    made = objects(CASES["pool"])
    for part in ("targetPorts", "endpointPickerRef"):
        assert made["InferencePool"]["spec"][part] == plain["InferencePool"]["spec"][part], part
    assert made["HTTPRoute"]["spec"]["parentRefs"] == plain["HTTPRoute"]["spec"]["parentRefs"]
    assert made["InferencePool"]["spec"]["selector"] == made["Deployment"]["spec"]["selector"]
    assert made["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0]["name"] == made["InferencePool"]["metadata"]["name"]


def test_several_hosts_are_those_of_the_plain_manifest():
    plain = {d["kind"]: d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes/hosts.yaml").read_text())}
    made = objects(CASES["built"])
    for key in ("startupPolicy", "rolloutStrategy"):
        assert made["LeaderWorkerSet"]["spec"][key] == plain["LeaderWorkerSet"]["spec"][key], key
    for a, b in zip(lws_schema.pods(made["LeaderWorkerSet"]), lws_schema.pods(plain["LeaderWorkerSet"])):
        assert a["spec"]["terminationGracePeriodSeconds"] == b["spec"]["terminationGracePeriodSeconds"]
        (one,), (other,) = a["spec"]["containers"], b["spec"]["containers"]
        assert set(one) == set(other) | {"imagePullPolicy"}
        for part in set(other) - {"image", "args"}:
            assert one[part] == other[part], part
        assert one["args"] == ["/models/engine", "--host=0.0.0.0", "--exit-timeout-secs=45"]


def test_pods_of_several_hosts_build_one_engine_and_serve_it():
    made = objects(CASES["hosts"])
    group = made["LeaderWorkerSet"]
    leader, worker = lws_schema.pods(group)
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2 and "replicas" not in group["spec"]
    assert made["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"] == {
        "apiVersion": group["apiVersion"], "kind": group["kind"], "name": group["metadata"]["name"]}
    for selector in (made["Service"]["spec"]["selector"], made["InferencePool"]["spec"]["selector"]["matchLabels"]):
        assert [selector.items() <= t["metadata"]["labels"].items() for t in (leader, worker)] == [True, False]
    assert leader["spec"]["initContainers"] == worker["spec"]["initContainers"]
    (build,), (serve,) = leader["spec"]["initContainers"], leader["spec"]["containers"]
    assert build["command"] + build["args"] == ["nereid", "build", DEFAULTS["model"], "--tp_size=1", "--pp_size=2",
                                                "--output_dir=/cache/engine/demo"]
    assert serve["args"][:2] == ["/cache/engine/demo", f"--tokenizer-dir={DEFAULTS['model']}"]
    assert serve["args"] == worker["spec"]["containers"][0]["args"]
    for key in ("image", "resources", "securityContext", "volumeMounts"):
        assert build[key] == serve[key], key


def test_parts_name_each_other():
    made = objects({"autoscaling": {"enabled": True}})
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert made["Deployment"]["spec"]["selector"]["matchLabels"] == labels == made["Service"]["spec"]["selector"]
    assert made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert made["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == made["Deployment"]["metadata"]["name"]
    assert "replicas" not in made["Deployment"]["spec"]  # the autoscaler's
    volumes = made["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"]["claimName"] == made["PersistentVolumeClaim"]["metadata"]["name"]
    container = objects(ALL)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][-2:] == ALL["args"]
    assert objects(GPU)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_every_value_is_used_and_every_used_value_is_there():
    used = set(re.findall(r"\.Values\.([\w.]+)", "".join(f.read_text() for f in (CHART / "templates").iterdir())))

    def leaves(data, path=""):
        for key, value in data.items():
            inside = isinstance(value, dict) and value and f"{path}{key}" not in used
            yield from leaves(value, f"{path}{key}.") if inside else [f"{path}{key}"]
    assert used == set(leaves(DEFAULTS))


@pytest.mark.parametrize("wrong", [{"replica": 2}, {"image": {"tag": ""}}, {"replicas": "two"}, {"cacheSize": "much"},
                                   {"service": {"type": "Public"}}, {"autoscaling": {"minReplicas": 0}},
                                   {"inferencePool": {"failureMode": "Fail"}}, {"inferencePool": {"pickerPort": 0}},
                                   {"hosts": {"size": 1}}, {"hosts": {"pp": 0}}, {"hosts": {"tp": "2"}}])
def test_a_wrong_value_is_refused(wrong):
    with pytest.raises(jsonschema.ValidationError):
        objects(wrong)


def test_the_version_is_the_programs():
    version = re.search(r"^NRD_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M)[1]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version == DEFAULTS["image"]["tag"] and GPU["image"]["tag"] == f"{version}-cuda"


@pytest.mark.skipif(not shutil.which("helm"), reason="no helm")
@pytest.mark.parametrize("case", CASES)
def test_helm_makes_the_same(case, tmp_path):
    (tmp_path / "v.yaml").write_text(yaml.safe_dump(CASES[case]))
    subprocess.run(["helm", "lint", CHART, "-f", tmp_path / "v.yaml"], check=True)
    said = subprocess.check_output(["helm", "template", "demo", CHART, "-f", tmp_path / "v.yaml"], text=True)
    assert {d["kind"]: d for d in yaml.safe_load_all(said) if d} == objects(CASES[case])
