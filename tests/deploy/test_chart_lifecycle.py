"""The real helm against an API server in memory: install, upgrade, test, rollback, uninstall."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, VALUES, template
from tests.support.helm_tools import helm, kubectl
from tests.support.kube_api import KubeApi
from tests.support.kube_schemas import NEWEST, OLDEST

TIMEOUT = ("--timeout", "180s")
WAIT = ("--wait", *TIMEOUT)


class Client:
    """helm and kubectl of one user of one API server."""

    def __init__(self, api: KubeApi, folder: Path, major: int) -> None:
        self._major = major
        config = folder / "kubeconfig"
        api.write_kubeconfig(config)
        self._environment = {**os.environ, "HOME": str(folder), "KUBECONFIG": str(config)}
        for kind in ("CACHE", "CONFIG", "DATA"):
            self._environment[f"HELM_{kind}_HOME"] = str(folder / kind.lower())

    def helm(self, *arguments: str) -> str:
        return self._run(str(helm(self._major)), *arguments)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self._run(str(kubectl(self._major)), *arguments, text=text)

    def _run(self, *command: str, text: str | None = None) -> str:
        done = subprocess.run(
            command,
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with KubeApi(NEWEST, custom_resources=True) as api:
        yield api


def secrets(api: KubeApi) -> dict[str, Any]:
    return {n: s["data"] for n, s in api.objects("secrets").items() if not n.startswith("sh.helm")}


def ours(api: KubeApi) -> list[str]:
    kinds = ("deployments", "statefulsets", "services", "configmaps", "networkpolicies", "pods")
    return [name for kind in kinds for name in api.objects(kind)]


@pytest.mark.parametrize("major", [3, 4])
def test_a_release_lives_and_leaves_nothing(api: KubeApi, tmp_path: Path, major: int) -> None:
    client = Client(api, tmp_path, major)
    client.helm("install", "pd", str(CHART), *WAIT)
    made = secrets(api)
    assert set(made["pd-pdserve-auth"]) == {"cluster-secret", "ray-token", "api-keys", "admin-keys"}
    before = api.objects("statefulsets")["pd-pdserve-head"]

    client.helm("upgrade", "pd", str(CHART), "--set", "decode.replicas=3", *WAIT)
    assert api.objects("statefulsets")["pd-pdserve-decode"]["spec"]["replicas"] == 3
    assert secrets(api) == made, "an upgrade keeps what was made once"
    after = api.objects("statefulsets")["pd-pdserve-head"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]

    client.helm("test", "pd", *TIMEOUT)
    assert list(api.objects("pods")) == ["pd-pdserve-test"]

    client.helm("rollback", "pd", "1", *WAIT)
    assert api.objects("statefulsets")["pd-pdserve-decode"]["spec"]["replicas"] == 1
    assert secrets(api) == made

    client.helm("uninstall", "pd", *WAIT)
    left = [name for name in ours(api) if name != "pd-pdserve-test"]  # helm keeps hooks' pods
    assert left == []
    assert secrets(api) == {}


def test_everything_on_installs_and_upgrades_from_the_defaults(
    api: KubeApi, tmp_path: Path
) -> None:
    """Immutable fields stay as they are, whatever is turned on later."""
    client = Client(api, tmp_path, 4)
    client.helm("install", "pd", str(CHART), "--set", "nameOverride=serving")
    client.helm("upgrade", "pd", str(CHART), "--values", str(VALUES["full"]))
    assert "pd-serving-balancer" in api.objects("horizontalpodautoscalers")
    assert "pd-serving" in api.objects("servicemonitors")
    assert secrets(api) == {"pd-serving-auth": secrets(api)["pd-serving-auth"]}
    assert set(secrets(api)["pd-serving-auth"]) == {"admin-keys"}, "the others are the user's own"


def test_two_releases_live_in_one_namespace(api: KubeApi, tmp_path: Path) -> None:
    client = Client(api, tmp_path, 4)
    client.helm("install", "one", str(CHART))
    client.helm("install", "two", str(CHART))
    made = secrets(api)
    assert made["one-pdserve-auth"] != made["two-pdserve-auth"]
    client.helm("uninstall", "one")
    assert set(secrets(api)) == {"two-pdserve-auth"}


def test_the_server_refuses_what_kubernetes_would(tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    with KubeApi(OLDEST) as api:
        client = Client(api, tmp_path, 4)
        manifest = next(
            o for o in yaml.safe_load_all(template().stdout) if o and o["kind"] == "Deployment"
        )
        apply = ("apply", "--dry-run=server", "--namespace=default", "--filename=-")
        manifest["metadata"].pop("namespace", None)
        client.kubectl(*apply, text=yaml.safe_dump(manifest))
        bad = {**manifest, "spec": {**manifest["spec"], "bogus": 1}}
        with pytest.raises(RuntimeError, match="bogus"):
            client.kubectl(*apply, text=yaml.safe_dump(bad))
        bad = {**manifest, "spec": {**manifest["spec"], "selector": {"matchLabels": {"a": "b"}}}}
        with pytest.raises(RuntimeError, match="selector does not match"):
            client.kubectl(*apply, text=yaml.safe_dump(bad))
