"""What controllers would make of an object in a cluster where everything works at once."""

import copy
import hashlib
import json
import uuid
from typing import Any

Manifest = dict[str, Any]

NOW = "2026-01-01T00:00:00Z"


def fill_in(new: Manifest) -> None:
    """Defaults that the API server sets, and the status that controllers would come to."""
    kind, spec = new["kind"], new.get("spec") or {}
    if kind == "Service":
        spec.setdefault("clusterIP", "10.96.0.10")
        spec.setdefault("type", "ClusterIP")
        if spec["type"] == "LoadBalancer":
            new["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    status = _STATUS.get(kind)
    if status is not None:
        counts = dict.fromkeys(_COUNTS.get(kind, ()), spec.get("replicas", 1))
        observed = {"observedGeneration": new["metadata"]["generation"]}
        new["status"] = {**observed, **counts, **copy.deepcopy(status)}


def replica_set(deployment: Manifest) -> Manifest:
    """The ReplicaSet of a Deployment: helm 3 waits for it."""
    spec, metadata = deployment["spec"], deployment["metadata"]
    template = copy.deepcopy(spec["template"])
    text = json.dumps(template, sort_keys=True).encode()
    digest = hashlib.sha256(text).hexdigest()[:10]
    template["metadata"]["labels"]["pod-template-hash"] = digest
    replicas = spec.get("replicas", 1)
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-{digest}",
            "namespace": metadata["namespace"],
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "labels": template["metadata"]["labels"],
            "ownerReferences": [{**owner, "name": metadata["name"], "uid": metadata["uid"]}],
        },
        "spec": {"replicas": replicas, "selector": spec["selector"], "template": template},
        "status": {
            **dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), replicas),
            "observedGeneration": 1,
        },
    }


_COUNTS = {
    "Deployment": ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"),
    "StatefulSet": (
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "currentReplicas",
        "availableReplicas",
    ),
}
_STATUS: dict[str, Manifest] = {
    "Deployment": {
        "conditions": [
            {"type": "Available", "status": "True"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        ]
    },
    "StatefulSet": {"currentRevision": "r1", "updateRevision": "r1"},
    "Pod": {
        "phase": "Succeeded",
        "startTime": NOW,
        "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}],
    },
    "PersistentVolumeClaim": {"phase": "Bound"},
    "PodDisruptionBudget": {
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "disruptionsAllowed": 1,
        "expectedPods": 1,
    },
}
