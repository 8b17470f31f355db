"""What both cores say of their rooms: pages, progress, what each waits for, and pages of no room."""

from typing import Any

import pytest

from bootstrap import codec
from bootstrap.identity import Peer
from bootstrap.inspection import MAX_REPORTED, AskLedger, LedgerReport, RoomReport, Wait
from bootstrap.messages import (
    AbortRoom,
    Envelope,
    FailureReason,
    HandoffRecord,
    Manifest,
    PrefillStarted,
    WriterStopped,
)
from bootstrap.sampling import GrammarKind, GrammarSpec
from decode.core import DecodeCore
from engine.core import PeerJoined, Post, Received
from engine.inspection import WATCH_INTERVAL_S, LedgerAsked, TransferView
from kv_transfer.prefix import prompt_digest
from prefill.core import PrefillCore
from prefill.handoffs import Handoffs, TransferClosed
from tests.support.cores import (
    BALANCER,
    DECODE,
    DECODE_INFO,
    PREFILL,
    PREFILL_INFO,
    decode_dispatch,
    limits,
    of_type,
    prefill_dispatch,
    prompt,
    room,
    sampling,
    step,
)

COMMAND = bytes(16)
SENDER = Peer(PREFILL.ref, "tcp://127.0.0.1:1")
GRAMMAR = GrammarSpec(GrammarKind.JSON_OBJECT, "")
Core = PrefillCore | DecodeCore


def ask(
    core: Core, now: float = 0.0, transfers: dict[bytes, TransferView] | None = None, **fields: Any
) -> LedgerReport:
    """What the core answers, having crossed the wire; whatever it put out before is dropped."""
    core.drain()
    core.handle(LedgerAsked(BALANCER, AskLedger(COMMAND, **fields), transfers or {}), now)
    (post,) = of_type(core.drain(), Post)
    assert post.peer == BALANCER
    frame = codec.encode(Envelope(SENDER, BALANCER.ref, post.message))
    report = codec.decode(frame).body
    assert isinstance(report, LedgerReport)
    assert report.command == COMMAND
    assert sum(report.pages.values()) == report.num_pages
    return report


def of(report: LedgerReport, number: int) -> RoomReport:
    (found,) = [each for each in report.rooms if each.room == room(number)]
    return found


def view(state: str, num_in_flight: int = 0, num_writes: int = 0, peer: Peer = DECODE):
    return TransferView(peer, state, 1, num_writes, num_in_flight, 3, 0.0)


def receive(core: Core, message: Any, sender: Peer = BALANCER, now: float = 0.0) -> None:
    core.handle(Received(sender, message), now)


# --- prefill ---------------------------------------------------------------------------------


def prefill_core(**overrides: Any) -> PrefillCore:
    return PrefillCore(limits(**overrides))


def test_an_engine_without_rooms_tells_its_pool() -> None:
    report = ask(prefill_core())
    assert (report.num_pages, report.pages["free"], report.rooms) == (16, 16, ())
    assert (report.num_rooms, report.num_orphan_pages, report.more) == (0, 0, False)


def test_a_queue_says_who_is_before_whom() -> None:
    core = prefill_core(max_num_seqs=1)
    for number in (1, 2, 3):
        receive(core, prefill_dispatch(number, prompt(10, number)))
    step(core, now=1.0)
    report = ask(core, now=4.0)
    first, second, third = (of(report, number) for number in (1, 2, 3))
    assert (first.state, first.waits_for) == ("computing", Wait.NOTHING)
    assert first.progress.num_computed_tokens == 8
    assert first.pages == {"in_use": 3}
    assert (second.state, second.waits_for) == ("queued", Wait.SEQUENCES)
    assert third.waits_for is Wait.TURN
    assert third.detail == "queued behind 1 prompt, 10 tokens"
    assert (third.request_id, third.balancer, third.peer) == ("r3", BALANCER.ref, DECODE.ref)
    assert third.age_s == 4.0


def test_the_next_prompt_says_how_many_pages_it_lacks() -> None:
    core = prefill_core(num_blocks=5, max_num_batched_tokens=64)
    receive(core, prefill_dispatch(1, prompt(16)))
    receive(core, prefill_dispatch(2, prompt(12, 30)))
    step(core)
    second = of(ask(core), 2)
    assert (second.waits_for, second.detail) == (Wait.PAGES, "next; waits for 3 pages, 1 free")


def test_a_computed_prompt_waits_for_its_grammar() -> None:
    core = prefill_core(max_num_batched_tokens=64)
    receive(core, prefill_dispatch(1, prompt(9), sampling=sampling(grammar=GRAMMAR)))
    step(core)
    assert of(ask(core), 1).waits_for is Wait.GRAMMAR


@pytest.mark.parametrize(
    ("transfer", "wait", "words"),
    [
        (view("ready"), Wait.MANIFEST, "waits for the manifest of d@000000"),
        (view("flushing", 2, 5), Wait.WRITES, "waits for 2 of 5 writes to d@000000"),
        (None, Wait.NOTHING, "its transfer closes"),
    ],
)
def test_a_prompt_that_is_sent_waits_for_its_transfer(
    transfer: TransferView | None, wait: Wait, words: str
) -> None:
    core = prefill_core()
    receive(core, prefill_dispatch(1, prompt(8)))
    step(core)
    transfers = {} if transfer is None else {room(1): transfer}
    sent = of(ask(core, transfers=transfers), 1)
    assert (sent.state, sent.waits_for, sent.detail) == ("sending", wait, words)
    assert sent.pages == {"leased": 2}


def test_an_aborted_prompt_waits_for_the_writes_that_read_its_pages() -> None:
    core = prefill_core()
    receive(core, prefill_dispatch(1, prompt(8)))
    step(core)
    receive(core, AbortRoom(room(1), FailureReason.CANCELLED))
    closing = of(ask(core, transfers={room(1): view("stopping", 1, 2)}), 1)
    assert (closing.state, closing.waits_for) == ("closing", Wait.WRITES)
    assert closing.detail == "ended; its pages wait for 1 of 2 writes to d@000000"


def test_a_room_of_which_only_the_transfer_is_left_waits_for_acceptance() -> None:
    core = prefill_core()
    report = ask(core, transfers={room(1): view("committed", 0, 2)})
    remains = of(report, 1)
    assert (remains.state, remains.waits_for) == ("committed", Wait.ACCEPTANCE)
    assert remains.balancer is None
    assert report.num_rooms == 1


def test_handoffs_tell_how_far_each_transfer_is() -> None:
    core, handoffs = prefill_core(), Handoffs(64)
    handoffs.decode_joined(DECODE_INFO)
    receive(core, prefill_dispatch(1, prompt(8)))
    step(core)
    for instruction in core.drain():
        name = type(instruction).__name__
        if name == "OpenTransfer":
            handoffs.open(instruction)
        elif name == "PromptComputed":
            handoffs.prompt_computed(instruction)
    assert handoffs.views()[room(1)].state == "ready"
    handoffs.manifest(DECODE, Manifest(room(1), 7, 0, (4, 5)))
    seen = handoffs.views()[room(1)]
    assert (seen.state, seen.epoch, seen.peer) == ("flushing", 7, DECODE)
    assert (seen.num_in_flight, seen.num_writes, seen.num_sent_blocks) == (1, 1, 2)


# --- decode ----------------------------------------------------------------------------------


def decode_core(**overrides: Any) -> DecodeCore:
    core = DecodeCore(limits(**overrides))
    core.handle(PeerJoined(PREFILL_INFO), 0.0)
    return core


def start(core: DecodeCore, number: int, num_tokens: int = 8, now: float = 0.0) -> None:
    receive(core, decode_dispatch(number, prompt(num_tokens, number)), now=now)
    receive(core, PrefillStarted(room(number)), PREFILL, now)


def commit(core: DecodeCore, number: int, num_tokens: int = 8) -> None:
    (manifest,) = [
        post.message
        for post in of_type(core.drain(), Post)
        if isinstance(post.message, Manifest) and post.message.room == room(number)
    ]
    digest = prompt_digest(prompt(num_tokens, number))
    record = HandoffRecord(room(number), manifest.epoch, 5, 0, num_tokens, digest)
    receive(core, record, PREFILL)


def test_an_expected_room_says_what_has_not_come() -> None:
    core = DecodeCore(limits())
    receive(core, decode_dispatch(1, prompt(8)))
    receive(core, decode_dispatch(2, prompt(8), sampling=sampling(grammar=GRAMMAR)))
    unknown, grammar = (of(ask(core), number) for number in (1, 2))
    assert (unknown.waits_for, unknown.detail) == (
        Wait.PEER,
        "waits for p@000000 to register here",
    )
    assert (grammar.waits_for, grammar.state) == (Wait.GRAMMAR, "expected")
    core.handle(PeerJoined(PREFILL_INFO), 0.0)
    assert of(ask(core), 1).detail == "waits for p@000000 to begin the prompt"


def test_a_started_room_waits_for_pages_or_for_others() -> None:
    core = decode_core(num_blocks=5)
    start(core, 1, 12)
    step(core)
    start(core, 2)
    start(core, 3)
    step(core)
    receiving, second, third = (of(ask(core), number) for number in (1, 2, 3))
    assert (receiving.waits_for, receiving.pages) == (Wait.RECORD, {"writing": 3})
    assert receiving.detail == "waits for the handoff record of p@000000"
    assert second.waits_for is Wait.PAGES
    assert second.detail == "next; waits for 3 pages, 2 free, 1 of them for growth"
    assert (third.waits_for, third.detail) == (Wait.TURN, "waits for pages behind 1 prompt")


def test_a_running_room_waits_for_nothing_and_a_retracted_one_for_pages() -> None:
    core = decode_core(num_blocks=5)
    for number in (1, 2):
        start(core, number)
        step(core)
        commit(core, number)
    step(core)
    while not core.scheduler.retracted:
        step(core)
    first, second = (of(ask(core), number) for number in (1, 2))
    assert (first.state, first.waits_for) == ("running", Wait.NOTHING)
    assert first.progress.num_output_tokens > 1
    assert (second.state, second.waits_for, second.pages) == ("retracted", Wait.PAGES, {})
    assert second.detail.startswith("retracted; waits for 3 pages, ")
    start(core, 3)
    third = of(ask(core), 3)
    assert (third.waits_for, third.detail) == (
        Wait.TURN,
        "waits for pages behind 1 retracted request",
    )


def test_a_quarantined_room_says_whom_it_waits_for_and_how_long_it_settles() -> None:
    core = decode_core()
    start(core, 1)
    step(core)
    receive(core, AbortRoom(room(1), FailureReason.CANCELLED), now=1.0)
    for now in (2.0, 3.0):
        core.tick(now)
    held = of(ask(core, now=4.0), 1)
    assert (held.state, held.waits_for, held.pages) == (
        "quarantined",
        Wait.WRITER,
        {"quarantined": 2},
    )
    assert held.detail == "quarantined: waits for p@000000 to say that it stopped, asked 3 times"
    assert (held.age_s, held.in_state_s) == (3.0, 3.0)
    receive(core, WriterStopped(room(1), cut=True), PREFILL, 4.0)
    settling = of(ask(core, now=4.8), 1)
    assert (settling.waits_for, settling.detail) == (
        Wait.SETTLING,
        "quarantined: settling, 1.2 s left",
    )


# --- both ------------------------------------------------------------------------------------


@pytest.fixture(params=["prefill", "decode"])
def core(request: pytest.FixtureRequest) -> Core:
    return prefill_core() if request.param == "prefill" else decode_core()


def ledger_of(core: Core):
    return core.ledger if isinstance(core, PrefillCore) else core.scheduler.ledger


def test_pages_of_a_room_that_nobody_knows_are_named_and_counted(core: Core) -> None:
    ledger_of(core).take(b"x" * 16, [], 3)
    report = ask(core)
    assert report.num_orphan_pages == 3
    (orphan,) = report.orphans
    assert (orphan.room, orphan.pages) == (b"x" * 16, {"in_use": 3})
    assert core.load().counters["orphan_pages"] == 0  # nobody has looked yet
    core.tick(10.0)
    assert core.load().counters["orphan_pages"] == 3
    ledger_of(core).release(b"x" * 16)
    core.tick(10.0 + WATCH_INTERVAL_S)
    assert core.load().counters["orphan_pages"] == 0


def test_pages_in_quarantine_or_under_a_write_are_no_orphans() -> None:
    core = decode_core()
    start(core, 1)
    step(core)
    receive(core, AbortRoom(room(1), FailureReason.CANCELLED), now=1.0)
    core.tick(2.0)
    assert core.load().counters["orphan_pages"] == 0
    sender = prefill_core()
    receive(sender, prefill_dispatch(1, prompt(8)))
    step(sender)
    receive(sender, AbortRoom(room(1), FailureReason.CANCELLED))
    sender.tick(2.0)
    assert sender.load().counters["orphan_pages"] == 0
    sender.handle(TransferClosed(room(1)), 2.0)
    assert ask(sender).num_rooms == 0


def test_rooms_come_page_by_page_in_their_order(core: Core) -> None:
    core = prefill_core(max_queue=600, max_num_seqs=1)
    numbers = [(7 * n) % 521 for n in range(1, 521)]
    for number in numbers:
        receive(core, prefill_dispatch(number, prompt(4)))
    seen: list[bytes] = []
    sizes = []
    while True:
        report = ask(core, after=seen[-1] if seen else b"")
        assert report.num_rooms == len(numbers)
        seen += [each.room for each in report.rooms]
        sizes.append(len(report.rooms))
        if not report.more:
            break
    assert sizes == [MAX_REPORTED, MAX_REPORTED, len(numbers) - 2 * MAX_REPORTED]
    assert seen == [room(number) for number in sorted(numbers)]


def test_one_room_is_told_with_its_pages(core: Core) -> None:
    if isinstance(core, PrefillCore):
        receive(core, prefill_dispatch(1, prompt(8)))
    else:
        start(core, 1)
    step(core)
    report = ask(core, room=room(1))
    assert [each.room for each in report.rooms] == [room(1)]
    assert report.page_indices == ledger_of(core).pages_of(room(1))
    assert len(report.page_indices) == 2
    nobody = ask(core, room=room(9))
    assert (nobody.rooms, nobody.page_indices) == ((), ())


def test_time_in_a_state_begins_when_it_is_first_seen() -> None:
    core = prefill_core(max_num_seqs=1)
    receive(core, prefill_dispatch(1, prompt(8)))
    receive(core, prefill_dispatch(2, prompt(8, 40)))
    core.tick(1.0)
    assert of(ask(core, now=3.0), 2).in_state_s == 2.0
    step(core, now=3.0)
    step(core, now=3.0)
    core.tick(4.0)
    assert (of(ask(core, now=6.0), 2).state, of(ask(core, now=6.0), 2).in_state_s) == (
        "sending",
        2.0,
    )


def test_ages_that_no_message_can_carry_are_cut() -> None:
    core = decode_core()
    receive(core, decode_dispatch(1, prompt(8), deadline_s=1e6))
    assert of(ask(core, now=5e6), 1).age_s == 1e6
