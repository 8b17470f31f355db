"""An administrator's commands in both cores: refused while anything is live, else carried out."""

import pytest

from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import CommandAnswered, FlushCache
from decode.core import DecodeCore
from engine.commands import flush_cache
from engine.core import Post, Received
from engine.limits import EngineLimits
from kv_transfer.ledger import PageLedger
from prefill.core import PrefillCore

COMMAND = bytes(16)
BALANCER = Peer(WorkerRef("balancer", "0" * 16), "tcp://127.0.0.1:1")
LIMITS = EngineLimits(
    num_blocks=8,
    block_size=4,
    vocab_size=100,
    max_model_len=32,
    max_num_seqs=4,
    max_queue=4,
    max_num_batched_tokens=32,
)


def ledger_with_a_cached_page() -> PageLedger:
    ledger = PageLedger(4)
    ledger.take(b"r", [], 2)
    ledger.name_block(b"r", 0, b"name")
    return ledger


def test_live_pages_refuse() -> None:
    ledger = ledger_with_a_cached_page()
    answer = flush_cache(FlushCache(COMMAND), ledger, 1)
    assert answer == CommandAnswered(COMMAND, refusal="1 rooms are live")
    assert ledger.lookup([b"name"])


def test_pages_in_quarantine_refuse_though_no_room_is_known() -> None:
    ledger = PageLedger(4)
    ledger.reserve(b"r", [], 2)
    ledger.expose(b"r")
    ledger.release(b"r")
    assert flush_cache(FlushCache(COMMAND), ledger, 0).refusal


def test_an_idle_cache_is_forgotten() -> None:
    ledger = ledger_with_a_cached_page()
    ledger.release(b"r")
    assert flush_cache(FlushCache(COMMAND), ledger, 0) == CommandAnswered(COMMAND, num_blocks=1)
    assert ledger.lookup([b"name"]) == []
    assert ledger.counts()["free"] == 4
    ledger.validate()


@pytest.mark.parametrize("kind", [PrefillCore, DecodeCore])
def test_both_cores_answer_whoever_asked(kind: type[PrefillCore] | type[DecodeCore]) -> None:
    core = kind(LIMITS)
    core.handle(Received(BALANCER, FlushCache(COMMAND)), 0.0)
    posts = [what for what in core.drain() if isinstance(what, Post)]
    assert posts == [Post(BALANCER, CommandAnswered(COMMAND))]
