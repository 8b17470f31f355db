"""The chart renders, under every set of values, what Kubernetes would take; its text is in order."""

import subprocess
import sys

import pytest
import yaml

from helm import generate_readme
from tests.support.chart import CHART, VALUES, Manifest, pod_templates, render, run_helm
from tests.support.kube_rules import check_rules
from tests.support.kube_schemas import NEWEST, OLDEST, SchemaError, check_schema

SETS = ("default", *VALUES)
LONG = "a-release-whose-name-is-as-long-as-helm-lets-one-be-x"

TIDY = (
    "{extends: default, rules: {line-length: {max: 130}, braces: {max-spaces-inside: 1},"
    " document-start: disable}}"
)
# Templates indent as they like; what matters of the result is what it means.
RENDERED = (
    "{extends: default, rules: {line-length: disable, braces: disable, document-start: disable,"
    " indentation: disable, trailing-spaces: disable, comments-indentation: disable,"
    " empty-lines: disable, hyphens: disable, octal-values: disable}}"
)


def rendered(name: str, release: str = "pd") -> list[Manifest]:
    return render(*([VALUES[name]] if name in VALUES else []), release=release)


def yamllint(rules: str, *paths: str, text: str | None = None) -> None:
    command = [sys.executable, "-m", "yamllint", "--strict", "--config-data", rules, *paths]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_are_tidy_yaml() -> None:
    files = [CHART / "Chart.yaml", CHART / "values.yaml", *VALUES.values()]
    yamllint(TIDY, *map(str, files))


@pytest.mark.parametrize("name", SETS)
def test_lint_finds_nothing(name: str) -> None:
    values = ["--values", str(VALUES[name])] if name in VALUES else []
    done = run_helm("lint", "--strict", str(CHART), *values)
    # `lint` knows no cluster: what needs an API beyond Kubernetes' own is refused, as it should be.
    if name in ("full", "kuberay"):
        assert "this cluster has no" in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", SETS)
def test_every_object_is_valid(name: str, version: str) -> None:
    objects = rendered(name)
    assert len(objects) > 8
    for document in objects:
        check_schema(document, version)
        check_rules(document)


@pytest.mark.parametrize("name", SETS)
def test_rendered_text_is_yaml_without_duplicate_keys(name: str) -> None:
    values = ["--values", str(VALUES[name])] if name in VALUES else []
    apis = ["--api-versions=ray.io/v1,keda.sh/v1alpha1,monitoring.coreos.com/v1"]
    apis.append("--api-versions=gateway.networking.k8s.io/v1")
    done = run_helm("template", "pd", str(CHART), *values, *apis)
    assert done.returncode == 0, done.stderr
    yamllint(RENDERED, "-", text=done.stdout)


@pytest.mark.parametrize("name", SETS)
def test_the_longest_release_name_still_makes_valid_names(name: str) -> None:
    for document in rendered(name, release=LONG):
        check_schema(document, NEWEST)
        check_rules(document)


def test_helm_3_renders_the_same() -> None:
    def objects(major: int) -> list[Manifest]:
        done = run_helm("template", "pd", str(CHART), major=major)
        assert done.returncode == 0, done.stderr
        documents = [o for o in yaml.safe_load_all(done.stdout) if o]
        for document in documents:
            if document["kind"] == "Secret":
                document["data"] = sorted(document["data"])  # made anew each time
        return documents

    def by_name(documents: list[Manifest]) -> dict[tuple[str, str], Manifest]:
        return {(o["kind"], o["metadata"]["name"]): o for o in documents}

    assert by_name(objects(3)) == by_name(objects(4))


def test_two_releases_in_one_namespace_share_nothing() -> None:
    near = LONG[:-1] + "y"
    for first, second in (("one", "two"), (LONG, near)):
        names = [
            {(o["kind"], o["metadata"]["name"]) for o in rendered("default", release=release)}
            for release in (first, second)
        ]
        assert not names[0] & names[1]
        labels = [
            tuple(sorted(template["metadata"]["labels"].items()))
            for release in (first, second)
            for _, template in pod_templates(rendered("default", release=release))
        ]
        assert len(labels) == len(set(labels))


def test_the_readme_tells_every_value() -> None:
    assert generate_readme.README.read_text() == generate_readme.readme(), (
        "run `python helm/generate_readme.py`"
    )


def test_the_schema_catches_what_it_must() -> None:
    good = next(o for o in rendered("kuberay") if o["kind"] == "RayCluster")
    check_schema(good, NEWEST)
    for spoil in (
        lambda o: o["spec"].update(workerGroupSpec=[]),
        lambda o: o["spec"]["headGroupSpec"].pop("template"),
        lambda o: o["spec"]["workerGroupSpecs"][0]["template"]["spec"].update(container=[]),
    ):
        bad = yaml.safe_load(yaml.safe_dump(good))
        spoil(bad)
        with pytest.raises(SchemaError):
            check_schema(bad, NEWEST)
