"""What an object must look like: Kubernetes' own schemas, and of custom resources the parts used here.

The former are the data of the package `kubernetes-validate`, which reads them anew for each object.
The latter are copied from the projects' definitions, closed to unknown fields, and hold no more than the
chart renders; a pod's template in them is checked by Kubernetes' own schema.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from referencing import Registry, Resource

OLDEST, NEWEST = "1.29", "1.37"

_S: dict[str, Any] = {"type": "string"}
_N: dict[str, Any] = {"type": "integer"}
_MAP: dict[str, Any] = {"type": "object", "additionalProperties": _S}
_POD: dict[str, Any] = {"type": "object", "required": ["spec"]}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


def _closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": required | optional,
    }


_SELECTOR = _closed({}, matchLabels=_MAP, matchExpressions={"type": "array"})
_GROUP = {"rayStartParams": _MAP, "template": _POD}
_RULE = _closed({"alert": _S, "expr": _S}, labels=_MAP, annotations=_MAP, **{"for": _S})
_TRIGGER = _closed(
    {"type": {"const": "prometheus"}},
    metadata=_closed(dict.fromkeys(["serverAddress", "query", "threshold"], _S)),
)

CUSTOM = {
    "ray.io/v1/RayCluster": _closed(
        {
            "rayVersion": _S,
            "headGroupSpec": _closed(_GROUP),
            "workerGroupSpecs": _list(
                _closed(
                    _GROUP | {"groupName": _S, "replicas": _N, "minReplicas": _N, "maxReplicas": _N}
                )
            ),
        }
    ),
    "keda.sh/v1alpha1/ScaledObject": _closed(
        {
            "scaleTargetRef": _closed({"name": _S}, apiVersion=_S, kind=_S),
            "triggers": _list(_TRIGGER),
        },
        minReplicaCount=_N,
        maxReplicaCount=_N,
        pollingInterval=_N,
        cooldownPeriod=_N,
    ),
    "monitoring.coreos.com/v1/ServiceMonitor": _closed(
        {
            "selector": _SELECTOR,
            "endpoints": _list(
                _closed({"port": _S}, path=_S, interval=_S, scheme=_S, tlsConfig={"type": "object"})
            ),
        }
    ),
    "monitoring.coreos.com/v1/PodMonitor": _closed(
        {"selector": _SELECTOR, "podMetricsEndpoints": _list(_closed({"port": _S}, interval=_S))}
    ),
    "monitoring.coreos.com/v1/PrometheusRule": _closed(
        {"groups": _list(_closed({"name": _S, "rules": _list(_RULE)}, interval=_S))}
    ),
    "gateway.networking.k8s.io/v1/HTTPRoute": _closed(
        {
            "parentRefs": _list(_closed({"name": _S}, namespace=_S, sectionName=_S)),
            "rules": _list(
                _closed(
                    {"backendRefs": _list(_closed({"name": _S, "port": _N}))},
                    matches=_list(_closed({"path": _closed({"type": _S, "value": _S})})),
                )
            ),
        },
        hostnames=_list(_S),
    ),
}


class SchemaError(Exception):
    """An object that its schema refuses; the message says where and why."""


def check_schema(document: dict[str, Any], version: str) -> None:
    """Raise SchemaError unless Kubernetes `version` would take the object, no unknown field in it."""
    who = f"{document['kind']}/{document['metadata'].get('name')}"
    custom = CUSTOM.get(f"{document['apiVersion']}/{document['kind']}")
    try:
        if custom is None:
            _validator(version, document["apiVersion"], document["kind"]).validate(document)
            return
        jsonschema.validate(document["spec"], custom)
        for pod in _pods(document["spec"]):
            body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
            _validator(version, "v1", "PodTemplate").validate({**body, "template": pod})
    except FileNotFoundError as error:
        raise SchemaError(f"{who}: Kubernetes {version} has none: {error.filename}") from error
    except jsonschema.ValidationError as error:
        where = ".".join(str(part) for part in error.absolute_path)
        raise SchemaError(f"{who}: .{where}: {error.message[:300]}") from error


@lru_cache
def _validator(version: str, api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)  # policy/v1 -> policy-v1
    schema = _schema(version, f"{kind.lower()}-{short}.json")
    return jsonschema.Draft202012Validator(schema, registry=_definitions(version))


@lru_cache
def _definitions(version: str) -> "Registry[Any]":
    return Resource.from_contents(_schema(version, "_definitions.json")) @ Registry()


def _schema(version: str, name: str) -> Any:
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    return json.loads((folder / f"v{version}.0-local-strict" / name).read_text())


def _pods(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in (spec.get("headGroupSpec"), *spec.get("workerGroupSpecs", ())):
        if group is not None:
            yield group["template"]
