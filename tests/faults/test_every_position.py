"""Some of all positions; the rest by `python -m tests.faults.every_position`."""

from tests.faults.every_position import kill_at

POSITIONS = (0, 1, 4, 31, 62)


def test_streams_go_on_at_the_next_position_whenever_decode_dies() -> None:
    results = list(kill_at(POSITIONS))
    assert len(results) == 2 * len(POSITIONS)
    assert [result for result in results if result.problem] == []
