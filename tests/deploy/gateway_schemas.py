# SPDX-License-Identifier: Apache-2.0
"""What the custom resources of a gateway must look like, as far as ours use them: InferencePool of
inference.networking.k8s.io/v1 and HTTPRoute of gateway.networking.k8s.io/v1. The validator for Kubernetes' own kinds does not
know these; fields that are not listed are errors here, so a misspelt one is found."""
import jsonschema

NAME = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
LABEL = {"type": "string", "maxLength": 63, "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}


def obj(required, **properties):
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def listed(items, limit):
    return {"type": "array", "minItems": 1, "maxItems": limit, "items": items}


def resource(version, kind, spec):
    return obj(["apiVersion", "kind", "metadata", "spec"], apiVersion={"const": version}, kind={"const": kind},
               metadata=obj(["name"], name=NAME, labels={"type": "object", "additionalProperties": LABEL}), spec=spec)


POOL = resource("inference.networking.k8s.io/v1", "InferencePool", obj(
    ["selector", "targetPorts", "endpointPickerRef"],
    selector=obj(["matchLabels"], matchLabels={"type": "object", "minProperties": 1, "maxProperties": 64,
                                               "additionalProperties": LABEL}),
    targetPorts=listed(obj(["number"], number=PORT), 8),
    # The port may be left out only for other kinds than a service, which is the default.
    endpointPickerRef=obj(["name", "port"], name=NAME, port=obj(["number"], number=PORT),
                          failureMode={"enum": ["FailOpen", "FailClose"]})))
ROUTE = resource("gateway.networking.k8s.io/v1", "HTTPRoute", obj(
    ["parentRefs", "rules"],
    parentRefs=listed(obj(["name"], name=NAME), 32),
    rules=listed(obj(
        ["backendRefs"],
        matches=listed(obj([], path=obj([], type={"enum": ["Exact", "PathPrefix", "RegularExpression"]},
                                        value={"type": "string", "maxLength": 1024, "pattern": "^/"})), 64),
        backendRefs=listed(obj(["name"], group=NAME, kind={"type": "string", "minLength": 1, "maxLength": 63}, name=NAME), 16)),
        16)))
SCHEMAS = {"InferencePool": POOL, "HTTPRoute": ROUTE}


def validate(document):
    """Raises jsonschema.ValidationError."""
    jsonschema.validate(document, SCHEMAS[document["kind"]])
