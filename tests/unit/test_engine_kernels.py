"""Attention over pages, and small matrix products: against plain definitions."""

import pytest
import torch
from torch.nn.functional import linear

from bootstrap.errors import LocalMisuse
from engine.arena import arena_tensor
from engine.kernels.small_rows import project
from engine.kernels.torch_cpu import TorchCpuAttention
from engine.step import SequenceChunk
from kv_transfer.layout import KVLayout

LAYOUT = KVLayout(num_blocks=24, num_kv_heads=2, num_layers=2, block_size=4, head_dim=8, itemsize=4)
NUM_HEADS = 6
SCALE = 0.3


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def filled_arena(value=None):
    arena = random(*LAYOUT.shape)
    return arena if value is None else arena.fill_(value)


def kernel(arena):
    return TorchCpuAttention(arena, LAYOUT, NUM_HEADS, SCALE)


def chunk(num_tokens, start, pages):
    return SequenceChunk([0] * num_tokens, start, pages)


def attend_plainly(query, keys, values):
    """One token's [heads, head_dim] over [context, kv_heads, head_dim]."""
    out = torch.empty_like(query)
    for head in range(NUM_HEADS):
        kv_head = head // (NUM_HEADS // LAYOUT.num_kv_heads)
        scores = (keys[:, kv_head] @ query[head]) * SCALE
        out[head] = scores.softmax(0) @ values[:, kv_head]
    return out


def context(arena, layer, pages, length):
    """Keys and values of positions 0..length, read slot by slot."""
    slots = [(pages[p // LAYOUT.block_size], p % LAYOUT.block_size) for p in range(length)]
    keys = torch.stack([arena[page, :, layer, 0, offset] for page, offset in slots])
    values = torch.stack([arena[page, :, layer, 1, offset] for page, offset in slots])
    return keys, values


MIXES = {
    "decode": [chunk(1, 9, [3, 1, 7])],
    "first token": [chunk(1, 0, [5])],
    "prefill": [chunk(11, 0, [2, 9, 4])],
    "later chunk": [chunk(5, 6, [8, 2, 6])],
    "ragged decodes": [
        chunk(1, n, list(range(i * 6, i * 6 + 6))) for i, n in enumerate((0, 3, 4, 22))
    ],
    "similar decodes": [
        chunk(1, n, [i * 3, i * 3 + 2, i * 3 + 1]) for i, n in enumerate((8, 9, 11))
    ],
    "all at once": [
        chunk(1, 7, [0, 1]),
        chunk(6, 0, [2, 3]),
        chunk(1, 8, [4, 5, 6]),
        chunk(3, 5, [9, 8]),
        chunk(1, 3, [7]),
    ],
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("layer", [0, 1])
def test_attention_over_pages_is_attention_over_the_sequence(name, layer):
    chunks, arena = MIXES[name], filled_arena()
    num_tokens = sum(len(c.token_ids) for c in chunks)
    step = kernel(arena).begin(chunks)
    key, value = random(num_tokens, 2, 8), random(num_tokens, 2, 8) * 2
    query = random(num_tokens, NUM_HEADS, 8)
    step.write(layer, key, value)
    out = step.attend(layer, query)
    row = 0
    for c in chunks:
        for position in range(c.start, c.start + len(c.token_ids)):
            expected = attend_plainly(query[row], *context(arena, layer, c.pages, position + 1))
            torch.testing.assert_close(out[row], expected, rtol=1e-5, atol=1e-5)
            row += 1


@pytest.mark.parametrize("name", MIXES)
def test_writes_touch_only_the_new_tokens_slots(name):
    chunks, arena = MIXES[name], filled_arena()
    before = arena.clone()
    num_tokens = sum(len(c.token_ids) for c in chunks)
    key, value = random(num_tokens, 2, 8), random(num_tokens, 2, 8) + 1
    kernel(arena).begin(chunks).write(1, key, value)
    row = 0
    for c in chunks:
        for position in range(c.start, c.start + len(c.token_ids)):
            page, offset = c.pages[position // 4], position % 4
            assert torch.equal(arena[page, :, 1, 0, offset], key[row])
            assert torch.equal(arena[page, :, 1, 1, offset], value[row])
            before[page, :, 1, :, offset] = arena[page, :, 1, :, offset]
            row += 1
    assert torch.equal(arena, before)


@pytest.mark.parametrize("name", MIXES)
def test_what_others_left_in_the_pages_is_never_seen(name):
    """Unwritten slots may hold NaN of a room that failed."""
    chunks, arena = MIXES[name], filled_arena(torch.nan)
    for c in chunks:
        for position in range(c.start):
            arena[c.pages[position // 4], :, :, :, position % 4] = 0.5
    num_tokens = sum(len(c.token_ids) for c in chunks)
    step = kernel(arena).begin(chunks)
    step.write(0, random(num_tokens, 2, 8), random(num_tokens, 2, 8))
    assert step.attend(0, random(num_tokens, NUM_HEADS, 8)).isfinite().all()


@pytest.mark.parametrize(
    "bad",
    [chunk(1, 4, [3]), chunk(5, 0, [3]), chunk(1, 0, [24]), chunk(1, 0, [-1]), chunk(0, 0, [1])],
)
def test_chunks_that_their_pages_do_not_cover_are_our_bug(bad):
    with pytest.raises(LocalMisuse):
        kernel(filled_arena()).begin([bad])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 40])
@pytest.mark.parametrize("width", [64, 576, 2048])
def test_projection_is_linear(rows, width, dtype):
    x, weight, bias = (t.to(dtype) for t in (random(rows, width), random(96, width), random(96)))
    for b in (None, bias):
        out = project(x, weight, b)
        assert out.is_contiguous()
        torch.testing.assert_close(out, linear(x, weight, b), rtol=1e-4, atol=1e-3)


def test_the_arena_is_the_given_memory():
    memory = bytearray(LAYOUT.num_bytes + 100)
    arena = arena_tensor(memoryview(memory), LAYOUT, "float32")
    assert arena.shape == LAYOUT.shape
    arena[1, 0, 0, 0, 0, 0] = 1.0
    assert memory[LAYOUT.block_bytes : LAYOUT.block_bytes + 4] == b"\x00\x00\x80\x3f"


def test_an_arena_that_does_not_fit_is_our_bug():
    with pytest.raises(LocalMisuse, match="bytes for"):
        arena_tensor(memoryview(bytearray(LAYOUT.num_bytes - 1)), LAYOUT, "float32")
    with pytest.raises(LocalMisuse, match="read-only"):
        arena_tensor(memoryview(bytes(LAYOUT.num_bytes)), LAYOUT, "float32")
    with pytest.raises(LocalMisuse, match="bfloat16"):
        arena_tensor(memoryview(bytearray(LAYOUT.num_bytes)), LAYOUT, "bfloat16")
