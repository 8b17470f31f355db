"""A load balancer whose incarnation the cluster counts as ended, on real processes: it must not go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.client import BootstrapClient
from bootstrap.service import BootstrapService
from tests.support.balancer_process import BalancerProcess
from tests.support.bootstrap_facts import make_peer, make_ref
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for


@pytest.fixture
def observer() -> Iterator[tuple[BootstrapService, BootstrapClient]]:
    """A bootstrap service and somebody who sees its members."""
    service = BootstrapService("tcp://127.0.0.1:0")
    service.start()
    me = make_peer(make_ref("observer"))
    client = BootstrapClient(service.endpoint, me, None, lambda event: None)
    client.start()
    client.wait_ready(30.0)
    yield service, client
    client.stop()
    service.stop()


def test_an_ended_balancer_stops_and_says_why(
    observer: tuple[BootstrapService, BootstrapClient], tmp_path: Path
) -> None:
    service, client = observer
    model_dir = make_tiny_model(tmp_path / "model")
    log = tmp_path / "log"
    with BalancerProcess(service.endpoint, model_dir, "tiny", log) as balancer:
        wait_for(lambda: len(client.balancers()) == 1, 60.0, "a balancer")
        (member,) = client.balancers()
        assert member.info.url == balancer.url
        client.evict(member.info.peer.ref)
        assert balancer.wait_ended(60.0) != 0
    assert "as ended" in log.read_text()
    wait_for(lambda: client.balancers() == (), what="no balancer")
