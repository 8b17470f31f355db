"""Block names: equal exactly when everything up to the block's end is equal."""

from kv_transfer.prefix import BLOCK_HASH_BYTES, BlockHasher, prompt_digest


def test_only_full_blocks_have_names() -> None:
    hasher = BlockHasher(4)
    assert hasher.hashes([1, 2, 3]) == []
    assert len(hasher.hashes(range(8))) == 2
    assert len(hasher.hashes(range(11))) == 2
    assert all(len(name) == BLOCK_HASH_BYTES for name in hasher.hashes(range(8)))


def test_a_name_covers_the_whole_sequence_before_it() -> None:
    hasher = BlockHasher(2)
    ours, theirs = hasher.hashes([1, 2, 3, 4, 5, 6]), hasher.hashes([1, 2, 9, 4, 5, 6])
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]
    assert ours[2] != theirs[2]
    assert len(set(hasher.hashes([7, 7, 7, 7]))) == 2


def test_extending_equals_starting_over() -> None:
    hasher = BlockHasher(3)
    token_ids = list(range(50, 62))
    chain: list[bytes] = []
    for num_tokens in range(len(token_ids) + 1):
        hasher.extend(chain, token_ids, num_tokens)
        assert chain == hasher.hashes(token_ids[:num_tokens])


def test_tokens_beyond_the_computed_ones_are_not_named() -> None:
    hasher = BlockHasher(2)
    chain: list[bytes] = []
    hasher.extend(chain, [1, 2, 3, 4], 3)
    assert len(chain) == 1


def test_names_differ_between_processes_and_block_sizes() -> None:
    assert BlockHasher(2).hashes([1, 2]) != BlockHasher(2).hashes([1, 2])


def test_both_legs_compute_one_digest() -> None:
    assert prompt_digest((1, 2, 3)) == prompt_digest([1, 2, 3])
    assert len(prompt_digest([])) == 16
    assert prompt_digest([1, 2]) != prompt_digest([2, 1])
    assert prompt_digest([1]) != prompt_digest([1, 0])
    assert prompt_digest([2**31 - 1]) != prompt_digest([0])
