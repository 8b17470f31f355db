"""A prefill engine that neither answers nor dies: the decode engine that it may write to ends its life."""

from pathlib import Path

import pytest

from bootstrap.errors import RemoteFault
from bootstrap.sampling import SamplingParams
from tests.support.engine_cluster import EngineCluster
from tests.support.raw_balancer import RawBalancer
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import wait_for

GREEDY = SamplingParams(seed=0, max_tokens=40, temperature=0.0)


def test_a_silent_writer_ends_the_engine_and_not_the_streams_that_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decode.quarantine.QUARANTINE_LIMIT_S", 0.5)
    monkeypatch.setattr("decode.quarantine.MIN_ASKED", 1)
    with (
        EngineCluster(make_tiny_model(tmp_path), num_prefill=2) as cluster,
        RawBalancer() as balancer,
    ):
        p0, p1, d0 = (cluster.engines[name] for name in ("p0", "p1", "d0"))
        with cluster.gate("p0") as silent, cluster.gate("d0") as slow:
            lost = balancer.dispatch(p0, d0, [5, 6, 7, 8, 9], GREEDY)
            silent.wait_entered()  # its loop hears nothing any more
            wait_for(lambda: d0.load().pages["writing"], what="a manifest")
            stream = balancer.dispatch(p1, d0, [15, 16, 17], GREEDY)
            balancer.abort(d0, lost)
            slow.wait_entered()  # the other room decodes
            slow.open()
            with pytest.raises(RemoteFault, match="gives no sign of life"):
                d0.wait()
        wait_for(lambda: len(stream.tokens) == 40 or stream.failures, what="its last words")
        assert len(stream.output) == 40, "what ran there ended there"
        assert d0.load().pages["quarantined"] > 0
