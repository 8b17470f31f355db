"""A real Prometheus in a folder of its own."""

import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.programs import program
from tests.support.waiting import wait_for

_ADDRESS = re.compile(r'"address":"127\.0\.0\.1:([1-9]\d*)"')


class Prometheus:
    """Scrapes `targets` (host:port) each second within the `with` block."""

    def __init__(self, folder: Path, targets: list[str], rules: Path) -> None:
        self._folder = folder
        self._targets = targets
        self._rules = rules
        self._log = folder / "prometheus.log"
        self.url = ""

    def __enter__(self) -> "Prometheus":
        config = self._folder / "prometheus.yml"
        jobs = [{"job_name": "pdserve", "static_configs": [{"targets": self._targets}]}]
        settings = {
            "global": {"scrape_interval": "1s"},
            "rule_files": [str(self._rules)],
            "scrape_configs": jobs,
        }
        config.write_text(yaml.safe_dump(settings))
        command = [
            program("prometheus", "prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.format=json",
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)
        self.url = wait_for(self._address, 60, "Prometheus's port")
        wait_for(self._is_ready, 60, "Prometheus")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def values(self, query: str) -> list[float]:
        """The present values of a query; raises for one that is wrong."""
        return [float(sample["value"][1]) for sample in self._query(query)]

    def labels(self, query: str, label: str) -> list[str]:
        """A label of each present sample."""
        return [sample["metric"][label] for sample in self._query(query)]

    def _query(self, query: str) -> list[dict[str, Any]]:
        url = f"{self.url}/api/v1/query"
        answer = httpx.get(url, params={"query": query}, timeout=60).json()
        assert answer["status"] == "success", (query, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=60).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def _address(self) -> str:
        """It says which port the system gave it."""
        said = self._log.read_text()
        assert self._process.poll() is None, said
        found = _ADDRESS.search(said)
        return f"http://127.0.0.1:{found[1]}" if found else ""
