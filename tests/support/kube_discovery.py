"""How the API server describes itself: versions, groups, resources, and who validates fields."""

from typing import Any

# group version: resource -> kind; all but namespaces are namespaced
RESOURCES: dict[str, dict[str, str]] = {
    "v1": {
        "configmaps": "ConfigMap",
        "namespaces": "Namespace",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "pods": "Pod",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {
        "deployments": "Deployment",
        "replicasets": "ReplicaSet",
        "statefulsets": "StatefulSet",
    },
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "batch/v1": {"jobs": "Job"},
    "networking.k8s.io/v1": {"ingresses": "Ingress", "networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
}
CUSTOM_RESOURCES: dict[str, dict[str, str]] = {
    "gateway.networking.k8s.io/v1": {"httproutes": "HTTPRoute"},
    "keda.sh/v1alpha1": {"scaledobjects": "ScaledObject"},
    "monitoring.coreos.com/v1": {
        "podmonitors": "PodMonitor",
        "prometheusrules": "PrometheusRule",
        "servicemonitors": "ServiceMonitor",
    },
    "ray.io/v1": {"rayclusters": "RayCluster"},
}

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
# Clients that find these leave validation to the server.
_QUERY = ("fieldValidation", "dryRun", "fieldManager", "force")

Table = dict[str, dict[str, str]]


def document(parts: list[str], table: Table, version: str) -> Any | None:
    """The answer for a path that names no object, or None when it is no such path."""
    if parts == ["version"]:
        return {"major": "1", "minor": version.split(".")[1], "gitVersion": f"v{version}.0"}
    if parts and parts[0] in ("healthz", "readyz", "livez"):
        return "ok"
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(table)}
    if parts == ["openapi", "v3"]:
        paths = {_path(gv): {"serverRelativeURL": f"/openapi/v3/{_path(gv)}"} for gv in table}
        return {"paths": paths}
    if parts[:2] == ["openapi", "v3"]:
        return _openapi("/".join(parts[3:]), table)
    return None


def resource_list(group_version: str, table: Table) -> Any:
    """`/apis/GROUP/VERSION`."""
    resources = [
        {
            "name": name,
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": name != "namespaces",
            "verbs": _VERBS,
        }
        for name, kind in table[group_version].items()
    ]
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}


def _groups(table: Table) -> list[dict[str, Any]]:
    groups = []
    for group_version in table:
        if "/" in group_version:
            group, version = group_version.split("/")
            entry = {"groupVersion": group_version, "version": version}
            groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
    return groups


def _path(group_version: str) -> str:
    return f"{'apis' if '/' in group_version else 'api'}/{group_version}"


def _openapi(group_version: str, table: Table) -> Any:
    group, _, version = group_version.rpartition("/")
    query = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY]
    paths = {}
    for name, kind in table[group_version].items():
        patch = {
            "parameters": query,
            "responses": {},
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        }
        paths[f"/{_path(group_version)}/{name}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "kubernetes", "version": "1"}, "paths": paths}
