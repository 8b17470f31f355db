"""The dashboard, the alert rules and the documents name only what `/metrics` shows."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from helm import generate_dashboard
from tests.support import conformance_cluster
from tests.support.engine_cluster import MODEL_NAME, EngineCluster
from tests.support.http_balancer import HttpBalancer
from tests.support.programs import program
from tests.support.prometheus import Prometheus
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "helm" / "pdserve" / "files" / "alerts.yaml"
METRIC = re.compile(r"\b(?:pdserve|vllm):[a-z0-9_]+")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}

model_dir = conformance_cluster.model_dir


@pytest.fixture(scope="module")
def balancer(model_dir) -> Iterator[HttpBalancer]:
    """One that has answered a request."""
    with (
        EngineCluster(model_dir) as engines,
        HttpBalancer(engines.bootstrap, model_dir, MODEL_NAME) as balancer,
    ):
        balancer.wait_ready()
        balancer.client().completions.create(model=MODEL_NAME, prompt="The tea", max_tokens=5)
        yield balancer


@pytest.fixture(scope="module")
def families(balancer) -> dict[str, str]:
    """What `/metrics` shows: names, without a counter's `_total`, and kinds."""
    lines = balancer.get("/metrics").text.splitlines()
    shown = dict(line.split()[2:] for line in lines if line.startswith("# TYPE "))
    return {
        name.removesuffix("_total"): kind
        for name, kind in shown.items()
        if not name.endswith("_created")
    }


@pytest.fixture(scope="module")
def names(families) -> set[str]:
    """Every name that a query may use."""
    return {name + suffix for name, kind in families.items() for suffix in SUFFIXES[kind]}


def expressions() -> list[str]:
    panels = generate_dashboard.dashboard()["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    return [expr.replace("$__rate_interval", "1m") for expr in queries + rules]


def test_the_dashboard_is_the_one_that_its_table_makes():
    assert generate_dashboard.PATH.read_text() == generate_dashboard.text()
    panels = json.loads(generate_dashboard.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels)


def test_queries_name_only_what_there_is(names):
    used = set().union(*(METRIC.findall(expr) for expr in expressions()))
    assert len(used) > 20
    assert used - names == set()


@pytest.mark.parametrize("document", ["operations.md", "faults.md", "api.md"])
def test_documents_name_only_what_there_is(document, names, families):
    used = set(METRIC.findall((ROOT / "docs" / document).read_text()))
    assert used - names - families.keys() == set()


def test_every_metric_is_documented(families):
    documented = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in sorted(families) if f"`{name}`" not in documented] == []


def test_the_alert_rules_pass_promtool():
    promtool = program("promtool", "prometheus")
    done = subprocess.run(
        [promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_real_prometheus_scrapes_and_answers_every_query(balancer, tmp_path):
    target = balancer.url.removeprefix("http://")
    with Prometheus(tmp_path, [target], ALERTS) as prometheus:
        # Each waits by itself: a scrape that comes too late ends all series until the next.
        ready = "max by (worker) (pdserve:engine_ready)"
        by_role = "sum by (role) (pdserve:kv_pages)"
        wait_for(lambda: prometheus.values("pdserve:ready") == [1.0], 60, "a scrape")
        wait_for(lambda: prometheus.values(ready) == [1.0, 1.0], 60, "both engines")
        for expr in expressions():
            prometheus.values(expr)
        roles = wait_for(lambda: prometheus.labels(by_role, "role"), 60, "their pages")
        assert set(roles) == {"prefill", "decode"}
