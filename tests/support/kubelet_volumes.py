"""From a pod's manifest to what its containers really get: variables, mounts and commands.

Owns the contents of volumes: emptyDir, hostPath, ConfigMaps and Secrets, in the sandbox's own memory.
"""

import base64
import re
from collections.abc import Iterator
from typing import Any

from tests.support.kubelet_container import ContainerSpec, Mount
from tests.support.sandbox import Sandbox

Manifest = dict[str, Any]

_REFERENCE = re.compile(r"\$(\$)?\((\w+)\)")


def resolve(
    spec: Manifest,
    cluster: list[Manifest],
    name: str,
    address: str,
    sandbox: Sandbox,
    volumes_name: str,
) -> list[ContainerSpec]:
    """The pod's containers, those that run first first; its volumes are made in `sandbox`."""
    root = f"{sandbox.folder}/volumes/{volumes_name}"
    group = spec["securityContext"]["fsGroup"]
    sources = {
        volume["name"]: _make(volume, cluster, f"{root}/{volume['name']}", sandbox, group)
        for volume in spec["volumes"]
    }
    fields = {"status.podIP": address, "metadata.name": name}
    return [
        _container(manifest, spec, cluster, sources, fields, sandbox)
        for manifest in (*spec.get("initContainers", ()), *spec["containers"])
    ]


def _container(
    manifest: Manifest,
    spec: Manifest,
    cluster: list[Manifest],
    sources: dict[str, str],
    fields: dict[str, str],
    sandbox: Sandbox,
) -> ContainerSpec:
    variables: dict[str, str] = {}
    for entry in manifest.get("env", ()):
        variables[entry["name"]] = _value(entry, cluster, fields, variables)
    mounts = [
        Mount(sources[mount["name"]], mount["mountPath"], bool(mount.get("readOnly")))
        for mount in manifest["volumeMounts"]
    ]
    for mount in mounts:  # the kubelet makes them too, whatever the root is
        if not mount.target.startswith(("/dev/", "/tmp")):
            sandbox.run("mkdir", "-p", f"{sandbox.image}{mount.target}")
    mounts.append(Mount(f"{sandbox.folder}/hosts", "/etc/hosts", True))
    words = [*manifest["command"], *manifest.get("args", ())]
    return ContainerSpec(
        manifest=manifest,
        command=tuple(_expanded(word, variables) for word in words),
        variables=tuple(variables.items()),
        mounts=tuple(mounts),
        user=spec["securityContext"]["runAsUser"],
    )


def _value(
    entry: Manifest, cluster: list[Manifest], fields: dict[str, str], known: dict[str, str]
) -> str:
    if "value" in entry:
        return _expanded(entry["value"], known)
    source = entry["valueFrom"]
    if "fieldRef" in source:
        return fields[source["fieldRef"]["fieldPath"]]
    wanted = source["secretKeyRef"]
    return _data(cluster, "Secret", wanted["name"])[wanted["key"]].decode()


def _expanded(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` by its value, `$$(NAME)` as `$(NAME)`, unknown names as they are."""

    def replace(found: "re.Match[str]") -> str:
        if found[1]:
            return f"$({found[2]})"
        return variables.get(found[2], found[0])

    return _REFERENCE.sub(replace, text)


def _make(
    volume: Manifest, cluster: list[Manifest], path: str, sandbox: Sandbox, group: int
) -> str:
    """The volume's folder."""
    if "hostPath" in volume:
        return str(volume["hostPath"]["path"])
    sandbox.run("mkdir", "-p", path)
    if "emptyDir" in volume:
        if volume["emptyDir"].get("medium") == "Memory":
            limit = volume["emptyDir"]["sizeLimit"].removesuffix("i").lower()
            sandbox.run("mount", "-t", "tmpfs", "-o", f"size={limit}", "shm", path)
        sandbox.run("chmod", "2777", path)
    for name, content in _files(volume, cluster):
        script = 'printf %s "$1" | base64 -d > "$2"; chown "0:$3" "$2"; chmod 440 "$2"'
        coded = base64.b64encode(content).decode()
        sandbox.run("sh", "-c", script, "_", coded, f"{path}/{name}", str(group))
    return path


def _files(volume: Manifest, cluster: list[Manifest]) -> Iterator[tuple[str, bytes]]:
    if "configMap" in volume:
        yield from _data(cluster, "ConfigMap", volume["configMap"]["name"]).items()
    for source in volume.get("projected", {}).get("sources", ()):
        data = _data(cluster, "Secret", source["secret"]["name"])
        for item in source["secret"]["items"]:
            yield item["path"], data[item["key"]]


def _data(cluster: list[Manifest], kind: str, name: str) -> dict[str, bytes]:
    found = next(o for o in cluster if o["kind"] == kind and o["metadata"]["name"] == name)
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in found["data"].items()}
    return {key: value.encode() for key, value in found["data"].items()}
