"""compose.yaml and the Dockerfile name only what there is."""

import re
from pathlib import Path

import yaml

from cluster.cli import _parser
from tests.conftest import ROOT
from tests.support.chart import CHART


def test_compose_starts_a_cluster_with_flags_that_exist() -> None:
    compose = yaml.safe_load((Path(ROOT) / "compose.yaml").read_text())
    words = compose["services"]["pdserve"]["command"]
    assert words[:2] == ["pdserve", "up"]
    given = [re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in words[1:]]
    settings = vars(_parser().parse_args(given))
    assert (settings["model"], settings["prefill"], settings["decode"]) == ("demo", 1, 1)


def test_compose_shows_the_endpoint_to_this_machine_alone() -> None:
    service = yaml.safe_load((Path(ROOT) / "compose.yaml").read_text())["services"]["pdserve"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]


def test_the_image_holds_every_package_and_the_chart_names_its_ray() -> None:
    text = (Path(ROOT) / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    packages = {path.parent.name for path in Path(ROOT).glob("*/py.typed")}
    assert copied == packages
    ignored = (Path(ROOT) / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in packages} <= set(ignored)
    version = re.search(r"RAY_VERSION=(\S+)", text)
    assert version is not None
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["ray"]["version"] == version[1]
