"""What must not drift in what the chart renders: selectors, probes, security, drains, policies."""

import re
from pathlib import Path

import pytest

from tests.support.chart import (
    ROLES,
    VALUES,
    Manifest,
    containers,
    one,
    pod_templates,
    render,
)

DEFAULT = render()
WORKLOADS = {
    "head": one(DEFAULT, "StatefulSet", "-head"),
    "prefill": one(DEFAULT, "StatefulSet", "-prefill"),
    "decode": one(DEFAULT, "StatefulSet", "-decode"),
    "balancer": one(DEFAULT, "Deployment"),
}


def pod(role: str, objects: list[Manifest] = DEFAULT) -> Manifest:
    kind = "Deployment" if role == "balancer" else "StatefulSet"
    return one(objects, kind, f"-{role}")["spec"]["template"]["spec"]


def container(role: str, name: str, objects: list[Manifest] = DEFAULT) -> Manifest:
    return next(c for c in containers({"spec": pod(role, objects)}) if c["name"] == name)


def environment(found: Manifest) -> dict[str, str]:
    return {e["name"]: e["value"] for e in found["env"] if "value" in e}


@pytest.mark.parametrize("role", ROLES)
def test_selectors_are_those_of_the_first_release(role: str) -> None:
    """They are immutable: a change would make every upgrade fail."""
    assert WORKLOADS[role]["spec"]["selector"] == {
        "matchLabels": {
            "app.kubernetes.io/name": "pdserve",
            "app.kubernetes.io/instance": "pd",
            "app.kubernetes.io/component": role,
        }
    }


@pytest.mark.parametrize("role", ["head", "prefill", "decode"])
def test_immutable_fields_of_stateful_sets_are_those_of_the_first_release(role: str) -> None:
    spec = WORKLOADS[role]["spec"]
    assert spec["serviceName"] == f"pd-pdserve-{role}"
    assert spec.get("podManagementPolicy") == (None if role == "head" else "Parallel")
    assert "volumeClaimTemplates" not in spec


def test_no_value_changes_a_selector() -> None:
    labels = {f"{role}.podLabels.team": "x" for role in ROLES}
    changed = render(sets=(*(f"{k}={v}" for k, v in labels.items()), "image.tag=next"))
    for role in ROLES:
        kind = WORKLOADS[role]["kind"]
        now = one(changed, kind, f"-{role}")["spec"]
        assert now["selector"] == WORKLOADS[role]["spec"]["selector"]
        assert now["template"]["metadata"]["labels"]["team"] == "x"


@pytest.mark.parametrize("name", ["default", *VALUES])
def test_every_pod_meets_the_restricted_level(name: str) -> None:
    objects = render(*([VALUES[name]] if name in VALUES else []))
    for where, template in pod_templates(objects):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, where
        assert spec["securityContext"]["runAsUser"] == 10001, where
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert spec["automountServiceAccountToken"] is False, where
        assert spec["enableServiceLinks"] is False, where
        for found in containers(template):
            context = found["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, where
            assert context["readOnlyRootFilesystem"] is True, where
            assert context["capabilities"]["drop"] == ["ALL"], where
            added = context["capabilities"].get("add", [])
            assert added == (
                ["IPC_LOCK"] if name == "gpu-rdma" and found["name"] == "engine" else []
            ), where
            mounts = {mount["mountPath"]: mount for mount in found["volumeMounts"]}
            assert "/tmp" in mounts
            if found["name"] != "fetch-model" and "/models" in mounts:
                assert mounts["/models"]["readOnly"] is True


def test_a_slow_load_is_not_killed_and_a_frozen_loop_is() -> None:
    engine = container("decode", "engine")
    startup = engine["startupProbe"]
    assert startup["httpGet"]["path"] == "/api/local_raylet_healthz"
    assert startup["periodSeconds"] * startup["failureThreshold"] == 30 * 60
    beat = environment(engine)["PDSERVE_BEAT_FILE"]
    assert engine["livenessProbe"]["exec"]["command"][-1] == (
        f'[ ! -e {beat} ] || [ -n "$(find {beat} -mmin -5)" ]'
    )
    assert engine["readinessProbe"]["exec"]["command"][-1] == f'[ -n "$(find {beat} -mmin -1)" ]'
    assert engine["lifecycle"]["postStart"]["exec"]["command"] == ["rm", "-f", beat]


def test_a_balancer_starts_when_requests_pass_and_then_stays_in_the_service() -> None:
    balancer = container("balancer", "balancer")
    paths = {
        kind: balancer[kind]["httpGet"]["path"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/ready",
        "livenessProbe": "/health",
        "readinessProbe": "/health",
    }
    tls = render(sets=("balancer.tls.existingSecret=cert",))
    assert container("balancer", "balancer", tls)["startupProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_the_grace_is_longer_than_the_drain() -> None:
    sets = ("decode.drainSeconds=600", "balancer.shutdownGraceSeconds=90")
    objects = render(sets=sets)
    decode, engine = pod("decode", objects), container("decode", "engine", objects)
    assert environment(engine)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "605"  # then Ray kills
    assert decode["terminationGracePeriodSeconds"] == 630
    assert "--drain-s=600" in container("head", "supervisor", objects)["args"]
    assert pod("head", objects)["terminationGracePeriodSeconds"] == 660
    balancer = container("balancer", "balancer", objects)
    assert "--shutdown-grace-s=90" in balancer["args"]
    assert "--drain-delay-s=10" in balancer["args"]
    assert pod("balancer", objects)["terminationGracePeriodSeconds"] == 10 + 90 + 15


def test_ray_runs_workers_at_the_niceness_of_everybody_else() -> None:
    for role, name in (("head", "ray"), ("prefill", "engine"), ("decode", "engine")):
        found = environment(container(role, name))
        assert found["RAY_worker_niceness"] == "0"
        assert found["RAY_AUTH_MODE"] == "token"


def test_ray_starts_before_the_supervisor_and_ends_after_it() -> None:
    spec = pod("head")
    ray = spec["initContainers"][-1]
    assert (ray["name"], ray["restartPolicy"]) == ("ray", "Always")
    assert "startupProbe" in ray
    assert [c["name"] for c in spec["containers"]] == ["supervisor"]


def test_engines_offer_one_slot_of_their_role_each() -> None:
    for role in ("prefill", "decode"):
        engine = container(role, "engine")
        assert engine["command"] == ["ray", "start", "--address=pd-pdserve-head:6379"]
        assert f"--labels=pd-role={role}" in engine["args"]
        assert f'--resources={{"pd_{role}": 1}}' in engine["args"]
        assert "--block" in engine["args"]


def test_the_number_of_engines_restarts_nobody() -> None:
    few, many = render(), render(sets=("prefill.replicas=5", "decode.replicas=9"))
    for role in ("head", "prefill", "decode"):
        before, after = (one(o, "StatefulSet", f"-{role}")["spec"] for o in (few, many))
        assert before["template"] == after["template"]
    assert one(many, "StatefulSet", "-decode")["spec"]["replicas"] == 9


def test_settings_restart_the_head() -> None:
    def checksum(*sets: str) -> str:
        head = one(render(sets=sets), "StatefulSet", "-head")
        return head["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum("settings.num_blocks=64") != checksum()
    assert checksum("settings.num_blocks=64") == checksum("settings.num_blocks=64")


def test_autoscalers_own_the_number_of_replicas() -> None:
    objects = render(sets=("balancer.hpa.enabled=true", "decode.keda.enabled=true"))
    assert "replicas" not in one(objects, "Deployment")["spec"]
    assert "replicas" not in one(objects, "StatefulSet", "-decode")["spec"]
    assert "replicas" in one(objects, "StatefulSet", "-prefill")["spec"]
    target = one(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == one(objects, "Deployment")["metadata"]["name"]
    scaled = one(objects, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "pd-pdserve-decode"
    assert scaled["maxReplicaCount"] == 16
    for trigger in scaled["triggers"]:
        query = trigger["metadata"]["query"]
        assert 'namespace="serving",service="pd-pdserve-balancer"' in query


def test_budgets_never_block_a_drain_for_ever() -> None:
    for budget in (o for o in DEFAULT if o["kind"] == "PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert not budget["metadata"]["name"].endswith("-head")


def test_devices_are_asked_for_by_name_and_only_when_on() -> None:
    plain = container("decode", "engine")
    assert set(plain["resources"]["limits"]) == {"memory"}
    objects = render(VALUES["gpu-rdma"])
    limits = container("decode", "engine", objects)["resources"]["limits"]
    assert (limits["amd.com/gpu"], limits["rdma/hca_shared"]) == ("2", "2")
    assert "--num-gpus=2" in container("decode", "engine", objects)["args"]
    assert pod("prefill", objects)["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "hostNetwork" not in pod("balancer", objects)


def test_only_engines_reach_the_data_plane() -> None:
    spec = one(DEFAULT, "NetworkPolicy", "-engines")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    allowed = {}
    for rule in spec["ingress"]:
        (peer,) = rule["from"]
        selector = peer["podSelector"]
        assert selector["matchLabels"]["app.kubernetes.io/instance"] == "pd"
        allowed[tuple(selector["matchExpressions"][0]["values"])] = rule.get("ports")
    assert allowed[("prefill", "decode")] is None  # every port
    assert allowed[("balancer",)] == [{"port": 20000, "endPort": 32767, "protocol": "TCP"}]
    assert allowed.keys() == {("prefill", "decode"), ("balancer",), ("head",)}


def test_mailboxes_and_policies_agree_on_ports() -> None:
    from bootstrap.inbox import INBOX_PORTS

    assert (INBOX_PORTS.start, INBOX_PORTS.stop - 1) == (20000, 32767)


def test_the_kuberay_pods_are_those_of_the_stateful_sets() -> None:
    objects = render(VALUES["kuberay"])
    assert not [o for o in objects if o["kind"] == "StatefulSet"]
    cluster = one(objects, "RayCluster")["spec"]
    assert [g["groupName"] for g in cluster["workerGroupSpecs"]] == ["prefill", "decode"]
    decode = cluster["workerGroupSpecs"][1]
    assert (decode["replicas"], decode["maxReplicas"]) == (4, 16)
    assert decode["rayStartParams"]["resources"] == """'{"pd_decode": 1}'"""
    assert decode["rayStartParams"]["num-gpus"] == "1"
    head = cluster["headGroupSpec"]["template"]["spec"]
    assert [c["name"] for c in head["containers"]] == ["ray", "supervisor"]
    assert "command" not in head["containers"][0]  # the operator writes it
    selector = one(objects, "Service", "-head")["spec"]["selector"]
    labels = cluster["headGroupSpec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()


def test_hostile_text_arrives_as_it_is() -> None:
    objects = render(VALUES["hostile"])
    args = container("balancer", "balancer", objects)["args"]
    name = """quotes " and ' and {{ braces }} and $$(POD_IP) and # hash: colon"""
    assert f"--model-name={name}" in args  # the kubelet makes `$(` of `$$(`
    question = environment(one(objects, "Pod")["spec"]["containers"][0])["PDSERVE_QUESTION"]
    assert question == """What is "1 + 1"? {{ .Release.Name }} # it's: 2"""


def test_large_numbers_of_a_file_stay_whole(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("balancer: {settings: {max_request_bytes: 33554432, pair_wait_s: 0.5}}\n")
    args = container("balancer", "balancer", render(values))["args"]
    assert "--max-request-bytes=33554432" in args
    assert "--pair-wait-s=0.5" in args


def test_notes_name_the_next_command() -> None:
    from tests.support.chart import CHART, run_helm

    done = run_helm("install", "pd", str(CHART), "--dry-run=client", "--namespace", "serving")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "helm --namespace serving test pd --logs" in notes
    assert re.search(r"curl http://127.0.0.1:8000/v1/chat/completions .*Bearer \$KEY", notes)
