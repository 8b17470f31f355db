"""What a container's probes come to: started, alive, ready. Pure; results and time go in."""

from typing import Any

Manifest = dict[str, Any]

KINDS = ("startupProbe", "livenessProbe", "readinessProbe")
_THRESHOLDS = {"failureThreshold": 3, "successThreshold": 1}


class Health:
    """One life of a container. Liveness and readiness wait for the startup probe."""

    def __init__(self, manifest: Manifest, now: float) -> None:
        self._probes = {kind: manifest[kind] for kind in KINDS if kind in manifest}
        self._due_at = {
            kind: now + probe.get("initialDelaySeconds", 0) for kind, probe in self._probes.items()
        }
        self._in_a_row = dict.fromkeys(KINDS, 0)  # successes above 0, failures below
        self.started = "startupProbe" not in self._probes
        self.ready = self.started and "readinessProbe" not in self._probes
        self.failed = ""  # the probe because of which the container must be killed

    def due(self, now: float) -> list[tuple[str, Manifest]]:
        """Probes to be made now."""
        kinds = [
            kind
            for kind in self._probes
            if self._due_at[kind] <= now and (kind == "startupProbe") != self.started
        ]
        return [(kind, self._probes[kind]) for kind in kinds]

    def probed(self, kind: str, good: bool, now: float) -> None:
        """A probe was made."""
        probe = self._probes[kind]
        self._due_at[kind] = now + probe.get("periodSeconds", 10)
        count = self._in_a_row[kind]
        count = max(count, 0) + 1 if good else min(count, 0) - 1
        self._in_a_row[kind] = count
        limits = {name: probe.get(name, value) for name, value in _THRESHOLDS.items()}
        if count <= -limits["failureThreshold"]:
            if kind == "readinessProbe":
                self.ready = False
            else:
                self.failed = kind
        elif count >= limits["successThreshold"]:
            if kind == "startupProbe":
                self.started = True
                self.ready = "readinessProbe" not in self._probes
            elif kind == "readinessProbe":
                self.ready = True
