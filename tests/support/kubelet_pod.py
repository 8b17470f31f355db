"""One pod for real: a network of its own, its volumes, and its containers in order.

Owns a thread that probes and restarts. Init containers run to their end one by one; those with
`restartPolicy: Always` are sidecars, which must have started before the next and end last.
"""

import subprocess
import sys
import threading
import time
from typing import Any

from tests.support.kubelet_container import Container, ContainerSpec, Pause
from tests.support.kubelet_health import Health
from tests.support.kubelet_volumes import resolve
from tests.support.sandbox import Sandbox, only_child

Manifest = dict[str, Any]

# Holds namespaces; as PID 1 of a shared one it also buries whoever lost its parent.
_PAUSE = """
import os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
socket.sethostname(sys.argv[1])
print("ready", flush=True)
while signal.sigwait({signal.SIGCHLD}):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        continue
"""
_TURN_S = 0.1
_BACKOFF_S = 1.0  # before a container starts again


class Pod:
    """Starts at once; `ready` and `phase` change by themselves, until `delete` returns."""

    def __init__(
        self, name: str, address: str, template: Manifest, cluster: list[Manifest], sandbox: Sandbox
    ) -> None:
        self.name, self.address = name, address
        self.labels: dict[str, str] = template["metadata"]["labels"]
        self.ready = False
        self.terminating = False
        self.killed_by: list[str] = []  # probes that ended a container
        self.trouble = ""  # why the pod's thread ended, if it did by itself
        self.exit_code: int | None = None  # of a pod that is not restarted
        self._spec, self._sandbox = template["spec"], sandbox
        self._folder = sandbox.folder.parent / "pods" / f"{name}-{address.rpartition('.')[2]}"
        self._folder.mkdir(parents=True)
        self._pause = self._start_pause()
        specs = resolve(self._spec, cluster, name, address, sandbox, self._folder.name)
        self.containers = {spec.name: self._container(spec) for spec in specs}
        self._health: dict[str, Health] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"pod-{name}", daemon=True)
        self._thread.start()

    @property
    def log(self) -> str:
        """Of all containers."""
        logs = (f"--- {self.name}/{name}\n{c.log}" for name, c in self.containers.items())
        return "\n".join(logs)

    def delete(self, grace_s: float | None = None) -> float:
        """End it as the kubelet does; seconds that it took. `grace_s` 0: as when its node is lost."""
        begun = time.monotonic()
        self.terminating = True
        self._stopping.set()
        self._thread.join(120)
        grace = self._grace_s if grace_s is None else grace_s
        end = begun + grace
        for sidecars in (False, True):
            stops = [
                threading.Thread(target=self._stop, args=(container, end))
                for container in self.containers.values()
                if _is_sidecar(container.spec) == sidecars
            ]
            for stop in stops:
                stop.start()
            for stop in stops:
                stop.join(grace + 90)
        self._pause_process.kill()
        self._pause_process.wait()
        return time.monotonic() - begun

    @property
    def _grace_s(self) -> float:
        return float(self._spec.get("terminationGracePeriodSeconds", 30))

    def _stop(self, container: Container, end: float) -> None:
        left_s = max(0.0, end - time.monotonic())
        if left_s:
            container.stop(left_s)
        else:
            container.kill()

    def _start_pause(self) -> Pause:
        shares = bool(self._spec.get("shareProcessNamespace"))
        own = ["-p", "-f", "--kill-child"] if shares else []
        command = ["unshare", "-n", "-u", "-i", *own, sys.executable, "-S", "-c", _PAUSE, self.name]
        self._pause_process = subprocess.Popen(
            self._sandbox.inside(*command), stdout=subprocess.PIPE, text=True
        )
        assert self._pause_process.stdout is not None
        with self._pause_process.stdout as output:
            assert output.readline() == "ready\n", f"no pause process for {self.name}"
        pid = self._pause_process.pid
        pid = (only_child(pid) or 0) if shares else pid
        self._sandbox.connect(pid, self.address)
        return Pause(pid, self.address, shares)

    def _container(self, spec: ContainerSpec) -> Container:
        return Container(spec, self._sandbox, self._pause, self._folder)

    # --- the pod's thread --------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            if self._run_init_containers():
                for manifest in self._spec["containers"]:
                    self._start(manifest["name"])
                while not self._stopping.wait(_TURN_S):
                    self._turn()
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            self.trouble = repr(error)
        finally:
            self.ready = False

    def _run_init_containers(self) -> bool:
        for manifest in self._spec.get("initContainers", ()):
            self._start(manifest["name"])
            container = self.containers[manifest["name"]]
            while not self._stopping.wait(_TURN_S):
                if not _is_sidecar(container.spec) and container.exit_code is not None:
                    assert container.exit_code == 0, f"{container.spec.name}: {container.log}"
                    break
                self._tend(container)
                if _is_sidecar(container.spec) and self._health[container.spec.name].started:
                    break
            else:
                return False
        return True

    def _start(self, name: str) -> None:
        self.containers[name].start()
        self._health[name] = Health(self.containers[name].spec.manifest, time.monotonic())

    def _turn(self) -> None:
        if self._spec.get("restartPolicy") == "Never":
            (container,) = self.containers.values()
            self.exit_code = container.exit_code
            return
        lasting = [c for c in self.containers.values() if _lasts(c.spec, self._spec)]
        for container in lasting:
            self._tend(container)
        self.ready = all(self._health[c.spec.name].ready for c in lasting)

    def _tend(self, container: Container) -> None:
        name, now = container.spec.name, time.monotonic()
        health = self._health[name]
        if container.exit_code is not None and _lasts(container.spec, self._spec):
            if not self._stopping.wait(_BACKOFF_S):
                self._start(name)
            return
        for kind, probe in health.due(now):
            if self._stopping.is_set():
                return
            health.probed(kind, container.probe(probe), time.monotonic())
        if health.failed:
            self.killed_by.append(f"{name}: {health.failed}")
            container.stop(self._grace_s)
            self._start(name)


def _is_sidecar(spec: ContainerSpec) -> bool:
    return spec.manifest.get("restartPolicy") == "Always"


def _lasts(spec: ContainerSpec, pod: Manifest) -> bool:
    return _is_sidecar(spec) or any(c["name"] == spec.name for c in pod["containers"])
