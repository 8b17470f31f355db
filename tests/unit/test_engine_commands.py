"""An administrator's commands in both cores: what they refuse, end, and let begin."""

import pytest

from bootstrap.commands import (
    CommandAnswered,
    CommitWeights,
    DiscardWeights,
    FlushCache,
)
from bootstrap.identity import Peer, WorkerRef
from bootstrap.messages import DecodeDispatch, FailureReason, LegFailed, Message, PrefillDispatch
from bootstrap.sampling import SamplingParams
from decode.core import DecodeCore
from engine.commands import HOLD_S, EngineCommands, ForgetWeights, UseWeights, WeightsLoaded
from engine.core import Post, Received
from engine.limits import EngineLimits
from kv_transfer.ledger import PageLedger
from prefill.core import PrefillCore

COMMAND, LOADED, OTHER = bytes(16), b"\x01" * 16, b"\x02" * 16
BALANCER = Peer(WorkerRef("balancer", "0" * 16), "tcp://127.0.0.1:1")
PARTNER = Peer(WorkerRef("partner", "0" * 16), "tcp://127.0.0.1:2")
SAMPLING = SamplingParams(seed=0, max_tokens=4)
LIMITS = EngineLimits(
    num_blocks=8,
    block_size=4,
    block_bytes=1024,
    vocab_size=100,
    max_model_len=32,
    max_num_seqs=4,
    max_queue=4,
    max_num_batched_tokens=32,
)
Core = PrefillCore | DecodeCore


@pytest.fixture(params=[PrefillCore, DecodeCore])
def core(request: pytest.FixtureRequest) -> Core:
    made: Core = request.param(LIMITS)
    return made


def dispatch(core: Core, room: bytes) -> Message:
    if isinstance(core, PrefillCore):
        return PrefillDispatch(room, "r", 1, 60.0, BALANCER, PARTNER, (1, 2, 3), SAMPLING)
    return DecodeDispatch(room, "r", 1, 60.0, BALANCER, PARTNER, (1, 2, 3), SAMPLING)


def tell(core: Core, message: Message, now: float = 0.0) -> list[object]:
    core.handle(Received(BALANCER, message), now)
    return core.drain()


def load_weights(core: Core, command: bytes = LOADED, now: float = 0.0) -> list[object]:
    core.handle(WeightsLoaded(BALANCER, command, "digest"), now)
    return core.drain()


def failures(instructions: list[object]) -> list[LegFailed]:
    posts = [what.message for what in instructions if isinstance(what, Post)]
    return [message for message in posts if isinstance(message, LegFailed)]


def commands(ledger: PageLedger, num_rooms: int) -> EngineCommands:
    return EngineCommands(ledger, lambda: num_rooms, lambda detail, now: None)


def ledger_with_a_cached_page() -> PageLedger:
    ledger = PageLedger(4)
    ledger.take(b"r", [], 2)
    ledger.name_block(b"r", 0, b"name")
    return ledger


# --- flush -----------------------------------------------------------------------------------


def flush(ledger: PageLedger, num_rooms: int) -> CommandAnswered:
    event = Received(BALANCER, FlushCache(COMMAND))
    (post,) = commands(ledger, num_rooms).handle(event, 0.0)
    assert isinstance(post, Post)
    assert isinstance(post.message, CommandAnswered)
    assert post.peer == BALANCER
    return post.message


def test_live_pages_refuse() -> None:
    ledger = ledger_with_a_cached_page()
    assert flush(ledger, 1) == CommandAnswered(COMMAND, refusal="1 rooms are live")
    assert ledger.lookup([b"name"])


def test_pages_in_quarantine_refuse_though_no_room_is_known() -> None:
    ledger = PageLedger(4)
    ledger.reserve(b"r", [], 2)
    ledger.expose(b"r")
    ledger.release(b"r")
    assert flush(ledger, 0).refusal


def test_an_idle_cache_is_forgotten() -> None:
    ledger = ledger_with_a_cached_page()
    ledger.release(b"r")
    assert flush(ledger, 0) == CommandAnswered(COMMAND, num_blocks=1)
    assert ledger.lookup([b"name"]) == []
    assert ledger.counts()["free"] == 4
    ledger.validate()


def test_both_cores_answer_whoever_asked(core: Core) -> None:
    assert tell(core, FlushCache(COMMAND)) == [Post(BALANCER, CommandAnswered(COMMAND))]


# --- weights ---------------------------------------------------------------------------------


def test_loaded_weights_hold_new_rooms_off_until_they_are_used(core: Core) -> None:
    tell(core, dispatch(core, b"a" * 16))
    answer = Post(BALANCER, CommandAnswered(LOADED, model_digest="digest"))
    assert load_weights(core) == [answer]
    (refused,) = failures(tell(core, dispatch(core, b"b" * 16)))
    assert (refused.room, refused.reason) == (b"b" * 16, FailureReason.DRAINING)

    out = tell(core, CommitWeights(COMMAND, LOADED))
    (ended,) = failures(out)
    assert (ended.room, ended.reason) == (b"a" * 16, FailureReason.DRAINING)
    assert out[-2:] == [UseWeights(LOADED), Post(BALANCER, CommandAnswered(COMMAND))]
    assert failures(tell(core, dispatch(core, b"c" * 16))) == []
    core.validate()


def test_weights_that_are_discarded_change_nothing(core: Core) -> None:
    tell(core, dispatch(core, b"a" * 16))
    load_weights(core)
    out = tell(core, DiscardWeights(COMMAND, LOADED))
    assert out == [ForgetWeights(LOADED), Post(BALANCER, CommandAnswered(COMMAND))]
    assert failures(tell(core, dispatch(core, b"b" * 16))) == []
    again = tell(core, DiscardWeights(COMMAND, LOADED))
    assert again == [Post(BALANCER, CommandAnswered(COMMAND))]


def test_a_refused_load_holds_nothing_off(core: Core) -> None:
    core.handle(WeightsLoaded(BALANCER, LOADED, refusal="no such folder"), 0.0)
    refusal = CommandAnswered(LOADED, refusal="no such folder")
    assert core.drain() == [Post(BALANCER, refusal)]
    assert failures(tell(core, dispatch(core, b"b" * 16))) == []


def test_only_what_is_loaded_can_be_used(core: Core) -> None:
    for prepared in (LOADED, OTHER):
        (post,) = tell(core, CommitWeights(COMMAND, prepared))
        assert isinstance(post, Post)
        assert isinstance(post.message, CommandAnswered)
        assert post.message.refusal
        load_weights(core)
    assert failures(tell(core, dispatch(core, b"b" * 16)))  # LOADED is undecided still


def test_later_weights_take_the_place_of_earlier_ones(core: Core) -> None:
    load_weights(core, OTHER)
    assert load_weights(core)[0] == ForgetWeights(OTHER)


def test_weights_that_nobody_decides_about_are_given_up(core: Core) -> None:
    load_weights(core, now=5.0)
    core.tick(5.0 + HOLD_S - 0.1)
    assert ForgetWeights(LOADED) not in core.drain()
    core.tick(5.0 + HOLD_S)
    assert ForgetWeights(LOADED) in core.drain()
    assert failures(tell(core, dispatch(core, b"b" * 16), now=70.0)) == []
