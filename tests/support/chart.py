"""The chart as `helm template` renders it, and looks at what came out."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT
from tests.support.helm_tools import helm

Manifest = dict[str, Any]

CHART = Path(ROOT) / "helm" / "pdserve"
VALUES = {
    path.name.removesuffix("-values.yaml"): path for path in sorted(CHART.glob("ci/*-values.yaml"))
}
APIS = (
    "ray.io/v1",
    "keda.sh/v1alpha1",
    "monitoring.coreos.com/v1",
    "gateway.networking.k8s.io/v1",
)
ROLES = ("head", "prefill", "decode", "balancer")


def run_helm(*arguments: str, major: int = 4) -> "subprocess.CompletedProcess[str]":
    """Helm with folders of its own: nothing of the user's is read or written."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home}
        environment |= {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [str(helm(major)), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def render(
    *files: Path, sets: Sequence[str] = (), release: str = "pd", apis: Sequence[str] = APIS
) -> list[Manifest]:
    """Every object; fails when helm does."""
    rendered = template(*files, sets=sets, release=release, apis=apis)
    assert rendered.returncode == 0, rendered.stderr
    return [document for document in yaml.safe_load_all(rendered.stdout) if document]


@lru_cache(maxsize=64)
def template(
    *files: Path, sets: Sequence[str] = (), release: str = "pd", apis: Sequence[str] = APIS
) -> "subprocess.CompletedProcess[str]":
    """`helm template`, which may fail. `sets` and `apis` are tuples."""
    arguments = ["template", release, str(CHART), "--namespace", "serving"]
    for file in files:
        arguments += ["--values", str(file)]
    for value in sets:
        arguments += ["--set", value]
    for api in apis:
        arguments += ["--api-versions", api]
    return run_helm(*arguments)


def one(objects: Sequence[Manifest], kind: str, ending: str = "") -> Manifest:
    """The only object of `kind` whose name ends so."""
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(ending)]
    assert len(found) == 1, f"{kind} ...{ending}: {[o['metadata']['name'] for o in found]}"
    return found[0]


def pod_templates(objects: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """(name, pod template) of everything that makes pods, pods of their own included."""
    for document in objects:
        name, spec = document["metadata"]["name"], document.get("spec", {})
        if document["kind"] == "Pod":
            yield name, {"metadata": document["metadata"], "spec": spec}
        elif document["kind"] == "RayCluster":
            yield f"{name}/head", spec["headGroupSpec"]["template"]
            for group in spec["workerGroupSpecs"]:
                yield f"{name}/{group['groupName']}", group["template"]
        elif "template" in spec:
            yield name, spec["template"]


def containers(template: Manifest) -> list[Manifest]:
    """All containers of a pod template, those that run first included."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]
