"""How rooms end in the decode core: refusals, aborts, deadlines, dead peers, and quarantine."""

import pytest

from bootstrap.messages import (
    AbortRoom,
    FailureReason,
    LegFailed,
    Manifest,
    PrefillStarted,
    WriterStopped,
)
from decode.instructions import DropSwap, GiveUp, InboundClosed, TearDown, TornDown
from decode.quarantine import ASK_AGAIN_S, QUARANTINE_LIMIT_S, SETTLE_S
from engine.balancers import WATCH_S
from engine.core import PeerJoined, PeerLeft
from tests.support.cores import (
    BALANCER,
    PREFILL,
    PREFILL_INFO,
    STRANGER,
    decode_dispatch,
    of_type,
    peer,
    room,
    sampling,
    sent,
)
from tests.support.decode_rig import STATES, DecodeRig, rig_in

_F = FailureReason
R = room(1)


def gone(rig: DecodeRig, state: str, out: list[object]) -> None:
    """Room 1 has ended, its pages are back or in quarantine, and it stays ended."""
    core = rig.core
    assert R not in {room for group in groups(rig) for room in group}
    assert (DropSwap(R) in out) == (state == "retracted")
    if state == "receiving":
        assert rig.pages == {"free": 14, "quarantined": 2}
        assert of_type(out, InboundClosed) == []
    else:
        assert core.scheduler.ledger.pages_of(R) == ()
    num_rooms = core.load().num_rooms
    rig.dispatch(1)
    rig.receive(PrefillStarted(R))
    assert core.load().num_rooms == num_rooms, "a late message revived the room"


def groups(rig: DecodeRig) -> list[dict]:
    scheduler = rig.core.scheduler
    return [scheduler.admitting, scheduler.receiving, scheduler.running, scheduler.retracted]


# --- aborts and deadlines --------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_the_balancer_aborts(state: str) -> None:
    rig = rig_in(state)
    out = rig.receive(AbortRoom(R, _F.CANCELLED), BALANCER)
    assert sent(out, LegFailed) == []
    assert sent(out, AbortRoom, PREFILL) == [AbortRoom(R, _F.CANCELLED)]
    gone(rig, state, out)


@pytest.mark.parametrize("state", STATES)
def test_the_prefill_engine_aborts(state: str) -> None:
    """After the handoff it has no say: what it still believes is late."""
    rig = rig_in(state)
    out = rig.receive(AbortRoom(R, _F.TRANSFER_FAILED))
    if state in ("running", "retracted"):
        assert out == []
        assert R in {room for group in groups(rig) for room in group}
        return
    assert sent(out, LegFailed) == [LegFailed(R, _F.PEER_ABORTED, "transfer_failed")]
    gone(rig, state, out)


@pytest.mark.parametrize("state", ["expected", "admitting", "receiving"])
def test_a_prompt_that_finished_at_its_first_token_is_no_failure(state: str) -> None:
    rig = rig_in(state)
    out = rig.receive(AbortRoom(R, _F.FINISHED))
    assert sent(out, LegFailed) + sent(out, AbortRoom) == []
    gone(rig, state, out)


@pytest.mark.parametrize("state", STATES)
def test_a_stranger_aborts_nothing(state: str) -> None:
    rig = rig_in(state)
    num_rooms = rig.core.load().num_rooms
    for sender in (STRANGER, peer("p", life=1), peer("lb", life=1)):
        assert rig.receive(AbortRoom(R, _F.CANCELLED), sender) == []
    assert rig.core.load().num_rooms == num_rooms


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_the_balancer_is_gone(state: str, dead: bool) -> None:
    rig = rig_in(state)
    assert rig.event(PeerLeft(peer("lb", 7).ref, dead)) == []
    out = rig.event(PeerLeft(BALANCER.ref, dead))
    (failure,) = (each for each in sent(out, LegFailed, BALANCER) if each.room == R)
    assert failure.reason is _F.BALANCER_LOST
    told = AbortRoom(R, _F.PEER_ABORTED) in sent(out, AbortRoom, PREFILL)
    assert told == (state not in ("running", "retracted"))
    gone(rig, state, out)
    assert rig.core.load().num_rooms == 0
    rig.dispatch(9)
    assert rig.core.load().num_rooms == (not dead), "the silent may come back, the dead may not"


def test_only_rooms_of_the_lost_balancer_end() -> None:
    rig = rig_in("running")
    other = peer("lb", 7)
    rig.receive(decode_dispatch(2, (1, 2, 3), reply_to=other), other)
    rig.tick(rig.now + WATCH_S)
    assert rig.core.load().num_rooms == 1
    assert rig.core.load().counters["balancers_lost"] == 1


@pytest.mark.parametrize("state", STATES)
def test_the_deadline_passes(state: str) -> None:
    rig = rig_in(state)
    arrived_at = 1.0 if state == "retracted" else 0.0
    out = rig.tick(arrived_at + 99.9)
    assert R not in [failure.room for failure in sent(out, LegFailed)]
    out = rig.tick(arrived_at + 100.0)
    (failure,) = (each for each in sent(out, LegFailed, BALANCER) if each.room == R)
    assert failure.reason is _F.DEADLINE
    told = AbortRoom(R, _F.PEER_ABORTED) in sent(out, AbortRoom, PREFILL)
    assert told == (state not in ("running", "retracted"))
    gone(rig, state, out)


@pytest.mark.parametrize("state", STATES)
def test_the_engine_shuts_down(state: str) -> None:
    rig = rig_in(state)
    rig.core.shut_down(rig.now)
    out = rig.core.drain()
    assert R in [f.room for f in sent(out, LegFailed) if f.reason is _F.DRAINING]
    refused = sent(rig.dispatch(9), LegFailed)
    assert [(f.room, f.reason) for f in refused] == [(room(9), _F.DRAINING)]
    gone(rig, state, out)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "overrides", "reason"),
    [
        (0, {}, _F.BAD_REQUEST),
        (4, {"output_offset": 4}, _F.BAD_REQUEST),
        (4, {"sampling": sampling(1)}, _F.BAD_REQUEST),
        (4, {"sampling": sampling(4), "output_offset": 3}, _F.BAD_REQUEST),
        (60, {"sampling": sampling(20)}, _F.TOO_LARGE),
        (60, {"sampling": sampling(5)}, _F.TOO_LARGE),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    num_tokens: int, overrides: dict, reason: FailureReason
) -> None:
    rig = DecodeRig(num_blocks=40 if reason is _F.TOO_LARGE else 16)
    out = rig.dispatch(1, num_tokens, **overrides)
    assert [failure.reason for failure in sent(out, LegFailed, BALANCER)] == [reason]
    assert sent(out, AbortRoom, PREFILL) == [AbortRoom(R, _F.PEER_ABORTED)]
    rig.dispatch(1)
    assert rig.core.load().num_rooms == 0, "a refused room came back"


def test_a_request_that_just_fits_is_taken() -> None:
    rig = DecodeRig()
    assert rig.dispatch(1, 56, sampling=sampling(8)) == []


def test_more_than_the_pool_is_refused() -> None:
    rig = DecodeRig(num_blocks=4)
    (failure,) = sent(rig.dispatch(1, 10, sampling=sampling(7)), LegFailed)
    assert failure.reason is _F.TOO_LARGE
    assert rig.dispatch(2, 10, sampling=sampling(6)) == []


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    rig = DecodeRig()
    out = rig.receive(decode_dispatch(1, (1, 100)), BALANCER)
    assert [f.reason for f in sent(out, LegFailed)] == [_F.BAD_REQUEST]


def test_a_full_queue_refuses_but_running_rooms_do_not_count() -> None:
    rig = DecodeRig(max_queue=1)
    rig.run(1)
    assert rig.dispatch(2) == []
    (failure,) = sent(rig.dispatch(3), LegFailed)
    assert failure.reason is _F.QUEUE_FULL


def test_a_repeated_dispatch_is_one_room() -> None:
    rig = rig_in("running")
    assert rig.dispatch(1) == []
    assert rig.core.load().num_rooms == 1


def test_an_abort_that_overtakes_its_dispatch_wins() -> None:
    rig = DecodeRig()
    assert rig.receive(AbortRoom(R, _F.FINISHED)) == []
    rig.dispatch(1)
    rig.receive(PrefillStarted(R))
    assert rig.step() == []
    assert rig.core.load().num_rooms == 0


# --- quarantine ------------------------------------------------------------------------------


def quarantined() -> DecodeRig:
    rig = rig_in("receiving")
    rig.receive(AbortRoom(R, _F.CANCELLED), BALANCER)
    assert rig.pages == {"free": 14, "quarantined": 2}
    return rig


@pytest.mark.parametrize("epoch", [0, 1])
def test_pages_come_back_when_the_writer_says_that_it_stopped(epoch: int) -> None:
    rig = quarantined()
    assert rig.receive(WriterStopped(R, epoch)) == [InboundClosed(R)]
    assert rig.pages == {"free": 16}
    assert rig.receive(WriterStopped(R, epoch)) == []


def test_only_the_writer_itself_ends_a_quarantine_and_only_of_its_epoch() -> None:
    rig = quarantined()
    for sender in (STRANGER, BALANCER, peer("p", life=1)):
        assert rig.receive(WriterStopped(R, 1), sender) == []
        assert rig.receive(WriterStopped(R, 0), sender) == []
    assert rig.receive(WriterStopped(R, 2)) == []
    assert rig.pages == {"free": 14, "quarantined": 2}


def test_only_the_writer_itself_can_spare_a_room_its_quarantine() -> None:
    rig = rig_in("receiving")
    rig.receive(WriterStopped(R, 1), STRANGER)
    rig.receive(AbortRoom(R, _F.CANCELLED), BALANCER)
    assert rig.pages == {"free": 14, "quarantined": 2}


def test_after_a_write_cut_short_the_pages_wait_for_its_last_bytes() -> None:
    rig = quarantined()
    rig.receive(WriterStopped(R, 1, cut=True))
    rig.receive(WriterStopped(R, 0))  # the answer to a repeated abort shortens nothing
    rig.tick(SETTLE_S - 0.1)
    assert rig.pages == {"free": 14, "quarantined": 2}
    assert InboundClosed(R) in rig.tick(SETTLE_S)
    assert rig.pages == {"free": 16}


def test_a_write_cut_short_ends_a_receiving_room_even_before_its_abort_arrives() -> None:
    rig = rig_in("receiving")
    out = rig.receive(WriterStopped(R, 1, cut=True))
    (failure,) = sent(out, LegFailed, BALANCER)
    assert failure.reason is _F.TRANSFER_FAILED
    assert rig.pages == {"free": 14, "quarantined": 2}
    rig.tick(SETTLE_S)
    assert rig.pages == {"free": 16}


def test_the_writer_is_asked_again_until_it_answers() -> None:
    rig = quarantined()
    ask = [AbortRoom(R, _F.PEER_ABORTED)]
    assert sent(rig.tick(ASK_AGAIN_S - 0.1), AbortRoom) == []
    assert sent(rig.tick(ASK_AGAIN_S), AbortRoom, PREFILL) == ask
    assert sent(rig.tick(2 * ASK_AGAIN_S), AbortRoom, PREFILL) == ask
    rig.receive(WriterStopped(R, 0))
    assert sent(rig.tick(9 * ASK_AGAIN_S), AbortRoom) == []


def test_quarantined_pages_are_nobodys_until_then() -> None:
    rig = DecodeRig(num_blocks=4)
    rig.admit(1, 10, sampling=sampling(6))
    rig.receive(AbortRoom(R, _F.CANCELLED), BALANCER)
    rig.dispatch(2, 6)
    rig.receive(PrefillStarted(room(2)))
    assert sent(rig.step(), Manifest) == []
    rig.receive(WriterStopped(R, 1))
    assert len(sent(rig.step(), Manifest)) == 1


# --- dead prefill engines --------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dead", [True, False])
def test_rooms_that_still_need_a_prefill_engine_end_with_it(state: str, dead: bool) -> None:
    rig = rig_in(state)
    out = rig.event(PeerLeft(PREFILL.ref, dead))
    tear_down = TearDown(PREFILL, PREFILL_INFO.transfer.agent_name)
    assert of_type(out, TearDown) == ([tear_down] if dead else [])
    if state in ("running", "retracted"):
        assert sent(out, LegFailed) == []
        return
    (failure,) = sent(out, LegFailed, BALANCER)
    assert failure.reason is _F.PEER_LOST
    gone(rig, state, out)


def test_another_life_of_the_worker_is_another_worker() -> None:
    rig = rig_in("receiving")
    assert rig.event(PeerLeft(peer("p", life=1).ref, True)) == []
    assert R in rig.core.scheduler.receiving


def test_a_dead_writers_pages_come_back_when_its_connection_is_gone_and_settled() -> None:
    rig = rig_in("receiving")
    rig.event(PeerLeft(PREFILL.ref, True))
    rig.tick(5.0)
    assert rig.pages == {"free": 14, "quarantined": 2}
    rig.event(TornDown(PREFILL.ref))
    assert sent(rig.tick(5.0 + SETTLE_S - 0.1), AbortRoom) == []  # nobody is there to ask
    assert rig.pages == {"free": 14, "quarantined": 2}
    assert InboundClosed(R) in rig.tick(5.0 + SETTLE_S)
    assert rig.pages == {"free": 16}


def test_a_writer_that_fell_silent_first_and_is_found_dead_later_is_torn_down_then() -> None:
    rig = rig_in("receiving")
    assert of_type(rig.event(PeerLeft(PREFILL.ref, False)), TearDown) == []
    assert rig.pages == {"free": 14, "quarantined": 2}
    assert len(of_type(rig.event(PeerLeft(PREFILL.ref, True)), TearDown)) == 1
    assert of_type(rig.event(PeerLeft(PREFILL.ref, True)), TearDown) == []
    rig.event(TornDown(PREFILL.ref))
    rig.tick(SETTLE_S)
    assert rig.pages == {"free": 16}


@pytest.mark.parametrize("dead", [True, False])
def test_a_dispatch_for_a_prefill_engine_that_left_is_refused(dead: bool) -> None:
    """Its start may still arrive: pages given to it now could never come back."""
    rig = DecodeRig()
    rig.event(PeerLeft(PREFILL.ref, dead))
    (failure,) = sent(rig.dispatch(1), LegFailed, BALANCER)
    assert failure.reason is _F.PEER_LOST
    rig.receive(PrefillStarted(R))
    assert sent(rig.step(), Manifest) == []
    assert rig.pages == {"free": 16}


def test_a_prefill_engine_that_fell_silent_may_come_back() -> None:
    rig = DecodeRig()
    rig.event(PeerLeft(PREFILL.ref, False))
    rig.event(PeerJoined(PREFILL_INFO))
    assert len(rig.admit(1).pages) == 2


def test_an_engine_gives_up_its_life_when_a_writer_gives_no_sign() -> None:
    rig = quarantined()
    rig.run(2)
    for second in range(int(QUARANTINE_LIMIT_S)):
        assert of_type(rig.tick(float(second)), GiveUp) == []
    (order,) = of_type(rig.tick(QUARANTINE_LIMIT_S), GiveUp)
    assert str(PREFILL.ref) in order.detail
    assert of_type(rig.tick(QUARANTINE_LIMIT_S + 9.0), GiveUp) == []
    assert rig.pages == {"free": 12, "quarantined": 2, "in_use": 2}, "its pages are never reused"
    assert not rig.core.idle, "room 2 goes on"
    rig.receive(AbortRoom(room(2), _F.CANCELLED), BALANCER)
    assert rig.core.idle


def test_a_pause_of_the_engine_itself_is_no_silence_of_a_writer() -> None:
    rig = quarantined()
    rig.tick(0.1)
    out = rig.tick(QUARANTINE_LIMIT_S + 9.0)  # it was stopped; what came meanwhile lies unread
    assert of_type(out, GiveUp) == []
    assert len(sent(out, AbortRoom, PREFILL)) == 1
    rig.receive(WriterStopped(R, 1))
    assert of_type(rig.tick(QUARANTINE_LIMIT_S + 19.0), GiveUp) == []
    assert rig.core.idle


def test_a_quarantine_that_settles_is_no_reason_to_give_up() -> None:
    rig = quarantined()
    rig.tick(QUARANTINE_LIMIT_S - 0.1)
    rig.receive(WriterStopped(R, 1, cut=True))
    assert of_type(rig.tick(QUARANTINE_LIMIT_S + SETTLE_S), GiveUp) == []
    assert rig.core.idle
