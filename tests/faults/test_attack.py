"""A write that comes late hits nobody; more of the same by `python -m tests.faults.attack`."""

from pathlib import Path

import pytest

from tests.faults.attack import NUM_OTHERS, attack, no_quarantine
from tests.support.tiny_model import make_tiny_model

NUM_ROUNDS = 40


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("attack") / "model")


def test_late_writes_have_no_victims(model_dir: Path) -> None:
    report = attack(model_dir, seed=1, num_rounds=NUM_ROUNDS)
    assert report.num_victims == 0
    assert report.num_missed < NUM_ROUNDS // 2
    assert report.num_pages_watched > NUM_ROUNDS
    assert report.num_held_back > NUM_ROUNDS


def test_without_quarantine_they_have_many(model_dir: Path) -> None:
    """Else the test above would prove nothing."""
    with no_quarantine():
        report = attack(model_dir, seed=1, num_rounds=4, num_running=NUM_OTHERS)
    assert report.num_changed_pages > 0
    assert report.num_wrong_answers > 0
