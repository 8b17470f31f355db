"""Values that cannot work are refused before anything is installed, in words that say what is wrong."""

import json

import pytest

from tests.support.chart import CHART, template

REFUSED = {
    "balancr.replicas=1": "additional properties 'balancr' not allowed",
    "decode.replica=1": "additional properties 'replica' not allowed",
    "prefill.replicas=-1": "at '/prefill/replicas': minimum: got -1, want 0",
    "image.tag=a b": "at '/image/tag': 'a b' does not match pattern",
    "image.digest=sha256:12": "at '/image/digest'",
    "ray.mode=operator": "at '/ray/mode': value must be one of 'builtin', 'kuberay'",
    "model.source=some words": "at '/model/source': 'some words' does not match pattern",
    "model.cache.type=nfs": "at '/model/cache/type': value must be one of",
    "settings.ray_address=auto": "settings.ray_address: the chart sets it",
    "balancer.settings.port=1": "balancer.settings.port: the chart sets it",
    "decode.pdb.maxUnavailable=0": "at '/decode/pdb/maxUnavailable': minimum: got 0, want 1",
    "decode.gpu.resourceName=gpu": "at '/decode/gpu/resourceName': 'gpu' does not match pattern",
    "head.extraArgs={log-level}": "at '/head/extraArgs/0': 'log-level' does not match pattern",
    "balancer.service.type=Public": "at '/balancer/service/type': value must be one of",
    "decode.podLabels.app\\.kubernetes\\.io/name=x": "decode.podLabels: app.kubernetes.io/name is what",
    "decode.replicas=99": "decode.replicas=99: at most decode.maxReplicas=16",
    "model.cache.type=existingClaim": "model.cache.existingClaim is needed",
    "model.cache.type=hostPath": "model.cache.hostPath is needed",
    "model.source=/models/x": "an emptyDir starts empty; allowed model.cache.type for it are",
}


@pytest.mark.parametrize(("value", "words"), REFUSED.items())
def test_a_bad_value_is_refused(value: str, words: str) -> None:
    done = template(sets=(value,))
    assert done.returncode != 0
    assert words in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("ray.mode=kuberay",), "ray.mode=kuberay: this cluster has no ray.io/v1"),
        (("decode.keda.enabled=true",), "this cluster has no keda.sh/v1alpha1; install KEDA"),
        (("monitoring.podMonitor.enabled=true",), "install the Prometheus operator first"),
        (("httpRoute.enabled=true",), "install the Gateway API first"),
    ],
)
def test_a_missing_api_is_named(sets: tuple[str, ...], words: str) -> None:
    done = template(sets=sets, apis=())
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("ray.mode=kuberay", "decode.keda.enabled=true"), "KEDA scales StatefulSets"),
        (("ray.mode=kuberay", "head.extraRayArgs={--x}"), "the operator writes Ray's command"),
        (("balancer.hpa.enabled=true", "balancer.hpa.minReplicas=9"), "at most balancer.hpa.max"),
        (
            ("model.source=/models/x", "model.cache.type=pvc", "model.revision=v1"),
            'model.revision="v1": the folder',
        ),
    ],
)
def test_values_that_cannot_work_together_are_refused(sets: tuple[str, ...], words: str) -> None:
    done = template(sets=sets)
    assert done.returncode != 0
    assert words in done.stderr, done.stderr


def test_every_object_of_the_schema_is_closed_or_passed_on() -> None:
    """A typing error in a key never goes unseen, but where text is passed on to Kubernetes."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    open_ones = []

    def walk(node: object, path: str) -> None:
        if isinstance(node, dict):
            closed = node.get("additionalProperties") is False
            if node.get("type") == "object" and "properties" in node and not closed:
                open_ones.append(path)
            for key, value in node.items():
                walk(value, f"{path}/{key}")

    walk(schema, "")
    assert open_ones == []
