"""Where KV bytes lie, and how block pairs become copies."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.layout import KVLayout, Run, merge_runs

LAYOUT = KVLayout(
    num_blocks=5, num_kv_heads=3, num_layers=30, block_size=16, head_dim=64, itemsize=4
)


def test_sizes_follow_the_shape() -> None:
    assert LAYOUT.shape == (5, 3, 30, 2, 16, 64)
    assert LAYOUT.block_bytes == 737_280
    assert LAYOUT.num_bytes == 5 * 737_280


def test_blocks_for_rounds_up() -> None:
    assert [LAYOUT.blocks_for(n) for n in (0, 1, 16, 17, 32, 33)] == [0, 1, 1, 2, 2, 3]


def test_nothing_is_no_run() -> None:
    assert merge_runs([], 100) == []


def test_neighbours_on_both_sides_merge() -> None:
    assert merge_runs([(4, 7), (5, 8), (6, 9)], 100) == [Run(400, 700, 300)]


def test_a_gap_on_either_side_starts_a_new_run() -> None:
    assert merge_runs([(0, 0), (2, 1)], 100) == [Run(0, 0, 100), Run(200, 100, 100)]
    assert merge_runs([(0, 0), (1, 2)], 100) == [Run(0, 0, 100), Run(100, 200, 100)]


def test_descending_and_repeated_pages_do_not_merge() -> None:
    assert len(merge_runs([(3, 3), (2, 2), (1, 1)], 100)) == 3
    assert len(merge_runs([(1, 1), (1, 2)], 100)) == 2


PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20)


@given(PAIRS)
def test_runs_copy_what_the_pairs_say(pairs: list[tuple[int, int]]) -> None:
    """Copying run by run leaves the same bytes as copying block by block, in order."""
    block = 4
    source = random.Random(0).randbytes(10 * block)
    by_block, by_run = bytearray(10 * block), bytearray(10 * block)
    for local, remote in pairs:
        by_block[remote * block : (remote + 1) * block] = source[
            local * block : (local + 1) * block
        ]
    runs = merge_runs(pairs, block)
    for run in runs:
        by_run[run.remote_offset : run.remote_offset + run.num_bytes] = source[
            run.local_offset : run.local_offset + run.num_bytes
        ]
    assert by_run == by_block
    assert sum(run.num_bytes for run in runs) == len(pairs) * block


@given(PAIRS)
def test_no_two_neighbouring_runs_could_still_merge(pairs: list[tuple[int, int]]) -> None:
    runs = merge_runs(pairs, 4)
    for first, second in itertools.pairwise(runs):
        assert (
            first.local_offset + first.num_bytes,
            first.remote_offset + first.num_bytes,
        ) != (second.local_offset, second.remote_offset)
