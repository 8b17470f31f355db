"""What a Kubernetes API server refuses beyond its schemas: the rules that a chart can break.

Pure: an object comes in, perhaps with the one that it replaces, and a reason goes out as an error.
"""

import re
from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

MAX_LABEL = 63
MAX_PORT_NAME = 15
# What controllers add to a name to make the labels and names of what they own.
_SUFFIXES = {"StatefulSet": len("-0123456789"), "Deployment": len("-0123456789-abcde")}

_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_IMMUTABLE = {
    "Deployment": ("selector",),
    "StatefulSet": ("selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy"),
    "Job": ("template", "selector"),
    "PersistentVolumeClaim": ("storageClassName", "accessModes", "volumeName"),
}


class Invalid(Exception):
    """An object that no API server takes."""


def check_rules(new: Manifest, old: Manifest | None = None) -> None:
    """Raise Invalid for the first rule that the object breaks."""
    for problem in (*_named(new), *_labelled(new), *_by_kind(new), *_changed(new, old)):
        raise Invalid(f'{new["kind"]} "{new["metadata"].get("name")}" is invalid: {problem}')


def _named(new: Manifest) -> Iterator[str]:
    name, kind = new["metadata"].get("name", ""), new["kind"]
    pattern = _DNS_LABEL if kind == "Service" else _DNS_SUBDOMAIN
    if not pattern.fullmatch(name):
        yield f"metadata.name: {name!r}"
    longest = MAX_LABEL - _SUFFIXES.get(kind, 0)
    if kind in _SUFFIXES and len(name) > longest:
        yield f"metadata.name: {name!r}: pods' names and labels made of it exceed {MAX_LABEL}"


def _labelled(new: Manifest) -> Iterator[str]:
    metadata = [new["metadata"]]
    template = (new.get("spec") or {}).get("template")
    if isinstance(template, dict) and "metadata" in template:
        metadata.append(template["metadata"])
    for part in metadata:
        for key, value in (part.get("labels") or {}).items():
            if len(value) > MAX_LABEL or not _LABEL_VALUE.fullmatch(value):
                yield f"label {key}={value!r}"


def _by_kind(new: Manifest) -> Iterator[str]:
    spec, kind = new.get("spec") or {}, new["kind"]
    if kind in ("Deployment", "StatefulSet"):
        wanted = (spec["selector"].get("matchLabels")) or {}
        labels = (spec["template"].get("metadata") or {}).get("labels") or {}
        if not wanted or any(labels.get(key) != value for key, value in wanted.items()):
            yield "spec.selector does not match the template's labels"
    if kind == "PodDisruptionBudget" and ("minAvailable" in spec) == ("maxUnavailable" in spec):
        yield "exactly one of minAvailable and maxUnavailable is needed"
    if kind in ("Deployment", "StatefulSet", "Job"):
        yield from _pod(spec["template"]["spec"], spec.get("volumeClaimTemplates") or [])
    if kind == "Pod":
        yield from _pod(spec, [])


def _pod(spec: Manifest, claims: list[Manifest]) -> Iterator[str]:
    volumes = [volume["name"] for volume in spec.get("volumes") or []]
    volumes += [claim["metadata"]["name"] for claim in claims]
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    names = [container["name"] for container in every]
    for what, given in (("volume", volumes), ("container", names)):
        if len(given) != len(set(given)):
            yield f"duplicate {what} in {given}"
    for container in every:
        yield from (
            f"container {container['name']}: {why}" for why in _container(container, volumes)
        )
    for container in spec.get("initContainers") or []:
        if "restartPolicy" not in container and (
            "livenessProbe" in container or "lifecycle" in container
        ):
            yield f"container {container['name']}: probes and hooks are for those that stay"


def _container(container: Manifest, volumes: list[str]) -> Iterator[str]:
    paths = [mount["mountPath"] for mount in container.get("volumeMounts") or []]
    if len(paths) != len(set(paths)):
        yield f"duplicate mountPath in {paths}"
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in volumes:
            yield f"volumeMount {mount['name']} has no volume"
    ports = [port["name"] for port in container.get("ports") or [] if port.get("name")]
    if len(ports) != len(set(ports)) or any(len(name) > MAX_PORT_NAME for name in ports):
        yield f"port names {ports}"
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(kind) or {}
        port = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
        if isinstance(port, str) and port not in ports:
            yield f"{kind}: no port {port!r}"
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name in {*requests, *limits}:
        if "/" in name and str(limits.get(name)) != str(requests.get(name, limits.get(name))):
            yield f"{name}: the request of a device must equal its limit"


def _changed(new: Manifest, old: Manifest | None) -> Iterator[str]:
    if old is None:
        return
    before, after = old.get("spec") or {}, new.get("spec") or {}
    for field in _IMMUTABLE.get(new["kind"], ()):
        if before.get(field) != after.get(field):
            yield f"spec.{field} is immutable"
    if new["kind"] == "Service" and before.get("clusterIP") == "None" != after.get("clusterIP"):
        yield "spec.clusterIP is immutable"
