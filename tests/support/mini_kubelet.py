"""Runs what a chart renders: its pods in namespaces of this machine, its Services as host names.

Owns which pods there are and the file of host names that all of them share. A Service has no address of
its own: its name means the pods behind it, so its port must be theirs. Needs root; see `sandbox`.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.chart import one
from tests.support.kubelet_pod import Pod
from tests.support.sandbox import SUBNET, Sandbox
from tests.support.waiting import wait_for

Manifest = dict[str, Any]


class MiniKubelet:
    """From entry to exit. Pods start when asked, end when deleted, and all end at exit."""

    def __init__(self, objects: list[Manifest], folder: Path) -> None:
        self._objects = objects
        self._sandbox = Sandbox(folder)
        self._addresses = (f"{SUBNET}.{number}" for number in itertools.count(11))
        self.pods: dict[str, Pod] = {}
        self._known_hosts = ""

    def __enter__(self) -> "MiniKubelet":
        self._sandbox.__enter__()
        self.update_hosts()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for pod in self.pods.values():  # pytest shows it with the failure
                print(f"{pod.log[-6000:]}\n{pod.trouble}")
        for pod in self.pods.values():
            pod.delete(grace_s=0)
        self._sandbox.__exit__(kind, error, trace)

    @property
    def sandbox(self) -> Sandbox:
        """Where everything runs."""
        return self._sandbox

    def start_all(self) -> None:
        """Every replica of every workload that has none yet, all at once."""
        for workload in self._objects:
            if workload["kind"] in ("Deployment", "StatefulSet"):
                for number in range(workload["spec"]["replicas"]):
                    if f"{workload['metadata']['name']}-{number}" not in self.pods:
                        self.start(workload["metadata"]["name"], number)

    def start(self, workload: str, number: int) -> Pod:
        """A pod of a workload, with an address that no pod had before."""
        manifest = next(
            o
            for o in self._objects
            if o["kind"] in ("Deployment", "StatefulSet") and o["metadata"]["name"] == workload
        )
        return self._start(f"{workload}-{number}", manifest["spec"]["template"])

    def start_pod(self, name: str) -> Pod:
        """A pod that no workload owns."""
        return self._start(name, one(self._objects, "Pod", name))

    def delete(self, name: str, grace_s: float | None = None) -> float:
        """End a pod; seconds that it took."""
        pod = self.pods[name]
        pod.terminating = True
        self.update_hosts()
        took_s = pod.delete(grace_s)
        del self.pods[name]
        self.update_hosts()
        return took_s

    def wait_ready(self, *names: str, timeout_s: float = 120.0) -> None:
        """Until these pods are ready."""

        def all_ready() -> bool:
            self.update_hosts()
            pods = [self.pods[name] for name in names]
            broken = [f"{pod.name}: {pod.trouble}" for pod in pods if pod.trouble]
            assert not broken, broken
            return all(pod.ready for pod in pods)

        wait_for(all_ready, timeout_s, f"{', '.join(names)} to be ready")

    def endpoints(self, service: str) -> list[str]:
        """Addresses of the pods that a Service leads to."""
        return list(self._endpoints(one(self._objects, "Service", service)))

    def update_hosts(self) -> None:
        """What DNS would say now; pods see it at once."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{pod.address} {pod.name}" for pod in list(self.pods.values())]
        for service in (o for o in self._objects if o["kind"] == "Service"):
            name = service["metadata"]["name"]
            lines += [f"{address} {name}" for address in self._endpoints(service)]
        text = "\n".join(lines) + "\n"
        if text != self._known_hosts:
            # In place: the file is mounted in every pod.
            self._sandbox.run("sh", "-c", 'printf %s "$1" > "$2"', "_", text, self._hosts)
            self._known_hosts = text

    @property
    def _hosts(self) -> str:
        return f"{self._sandbox.folder}/hosts"

    def _start(self, name: str, template: Manifest) -> Pod:
        pod = Pod(name, next(self._addresses), template, self._objects, self._sandbox)
        self.pods[name] = pod
        self.update_hosts()
        return pod

    def _endpoints(self, service: Manifest) -> Iterator[str]:
        spec = service["spec"]
        for pod in list(self.pods.values()):
            chosen = spec["selector"].items() <= pod.labels.items()
            serving = pod.ready or spec.get("publishNotReadyAddresses", False)
            if chosen and serving and not pod.terminating:
                yield pod.address
