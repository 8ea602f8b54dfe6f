# SPDX-License-Identifier: Apache-2.0
"""What a LeaderWorkerSet (leaderworkerset.x-k8s.io/v1) must look like, as far as ours use it. Fields that are not listed are errors,
so a misspelt one is found. Its templates are pods', which Kubernetes' own schema judges."""
import jsonschema
import kubernetes_validate

from gateway_schemas import obj, resource

SHARE = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]}
TEMPLATE = {"type": "object"}
SET = resource("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", obj(
    ["leaderWorkerTemplate"],
    replicas={"type": "integer", "minimum": 0, "maximum": 1000000},
    startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
    rolloutStrategy=obj(["type"], type={"const": "RollingUpdate"}, rollingUpdateConfiguration=obj(
        [], partition={"type": "integer", "minimum": 0}, maxUnavailable=SHARE, maxSurge=SHARE)),
    leaderWorkerTemplate=obj(
        ["workerTemplate"], size={"type": "integer", "minimum": 1}, leaderTemplate=TEMPLATE, workerTemplate=TEMPLATE,
        restartPolicy={"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]})))


def pods(document):
    """The templates of leader and workers."""
    group = document["spec"]["leaderWorkerTemplate"]
    return group["leaderTemplate"], group["workerTemplate"]


def validate(document, version):
    """Raises ValidationError of jsonschema or of kubernetes_validate."""
    jsonschema.validate(document, SET)
    rollout = document["spec"].get("rolloutStrategy", {}).get("rollingUpdateConfiguration", {})
    if rollout.get("maxUnavailable", 1) == 0 and rollout.get("maxSurge", 0) == 0:
        raise jsonschema.ValidationError("maxUnavailable and maxSurge are both 0")
    for template in pods(document):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template},
                                     version, strict=True)
