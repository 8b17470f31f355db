"""A scripted model over a real wire: the first token from prefill, the rest from decode."""

from pathlib import Path

import pytest

from bootstrap.sampling import FinishReason, SamplingParams
from tests.support.engine_cluster import EngineCluster
from tests.support.raw_balancer import RawBalancer
from tests.support.scripted_model import Script
from tests.support.tiny_model import EOS_TOKEN_ID, make_tiny_model
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_engines_say_what_the_script_has(model_dir: Path) -> None:
    script = Script(otherwise=[50, 51, 52])
    script.say([7, 8, 9, 10, 11], [100, 101, 102, 103])
    sampling = SamplingParams(seed=0, max_tokens=9, stop_token_ids=(EOS_TOKEN_ID,))
    with EngineCluster(model_dir, script=script) as cluster, RawBalancer() as balancer:
        p0, d0 = cluster.engines["p0"], cluster.engines["d0"]
        told = balancer.dispatch(p0, d0, [7, 8, 9, 10, 11], sampling)
        other = balancer.dispatch(p0, d0, [20] * 9, sampling)
        later = balancer.dispatch(p0, d0, [7, 8, 9, 10, 11, 100, 101], sampling, output_offset=2)
        for outcome in (told, other, later):
            wait_for(lambda outcome=outcome: outcome.finish, what="an answer")
        assert told.output == [100, 101, 102, 103, EOS_TOKEN_ID]
        assert told.finish is FinishReason.STOP
        assert other.output == [50, 51, 52, EOS_TOKEN_ID]
        assert later.output == [102, 103, EOS_TOKEN_ID]
        cluster.wait_idle()
