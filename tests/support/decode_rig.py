"""A decode core led by hand into each state of a room."""

from bootstrap.identity import Peer
from bootstrap.messages import DecodeDispatch, HandoffRecord, Manifest, Message, PrefillStarted
from decode.core import DecodeCore
from engine.core import BalancerIsMember, PeerJoined, Received
from kv_transfer.prefix import prompt_digest
from tests.support.cores import (
    BALANCER,
    PREFILL,
    PREFILL_INFO,
    decode_dispatch,
    limits,
    prompt,
    room,
    sampling,
    sent,
    step,
)

STATES = ("expected", "admitting", "receiving", "running", "retracted")


class DecodeRig:
    """The core knows balancer and prefill engine; `now` is the caller's to move."""

    def __init__(self, *, joined: bool = True, **overrides: object) -> None:
        self.core = DecodeCore(limits(**overrides))
        self.now = 0.0
        self.event(BalancerIsMember(BALANCER.ref))
        if joined:
            self.event(PeerJoined(PREFILL_INFO))

    def event(self, event: object) -> list[object]:
        """Handle one event; what the core put out."""
        self.core.handle(event, self.now)
        self.core.validate()
        return self.core.drain()

    def receive(self, message: Message, sender: Peer = PREFILL) -> list[object]:
        """A message arrives."""
        return self.event(Received(sender, message))

    def dispatch(self, number: int, num_tokens: int = 6, **overrides: object) -> list[object]:
        """Room `number` is dispatched with a prompt of its own."""
        token_ids = prompt(num_tokens, first=10 * number)
        return self.receive(decode_dispatch(number, token_ids, **overrides), BALANCER)

    def tick(self, now: float) -> list[object]:
        """Let time pass until `now`."""
        self.now = now
        self.core.tick(now)
        self.core.validate()
        return self.core.drain()

    def step(self, token_id: int = 7) -> list[object]:
        """One round: plan, run, complete."""
        step(self.core, self.now, token_id)
        return self.core.drain()

    def admit(self, number: int, num_tokens: int = 6, **overrides: object) -> Manifest:
        """Room `number` is dispatched, started, and given pages."""
        self.dispatch(number, num_tokens, **overrides)
        self.receive(PrefillStarted(room(number)))
        (manifest,) = sent(self.step(), Manifest, PREFILL)
        return manifest

    def record(self, number: int, **overrides: object) -> HandoffRecord:
        """The record that the prefill engine would send for an admitted room."""
        request = self.core.scheduler.receiving[room(number)]
        dispatch: DecodeDispatch = request.dispatch
        values = {
            "epoch": request.epoch,
            "token_id": 99,
            "position": dispatch.output_offset,
            "num_prompt_tokens": len(dispatch.prompt_token_ids),
            "prompt_digest": prompt_digest(dispatch.prompt_token_ids),
        }
        return HandoffRecord(room(number), **{**values, **overrides})

    def run(self, number: int, num_tokens: int = 6, **overrides: object) -> list[object]:
        """Room `number` decodes; what the record set off."""
        self.admit(number, num_tokens, **overrides)
        return self.receive(self.record(number))

    @property
    def pages(self) -> dict[str, int]:
        """Pages by state, without the empty states."""
        return {state: n for state, n in self.core.load().pages.items() if n}


def rig_in(state: str) -> DecodeRig:
    """Room 1 is in `state`. Beside a retracted room 1, an older room 2 runs."""
    if state == "retracted":
        rig = DecodeRig(num_blocks=6, prefix_caching=False)
        rig.run(2, 7, sampling=sampling(16))
        rig.now += 1.0
        rig.run(1, 7, sampling=sampling(16))
        while room(1) not in rig.core.scheduler.retracted:
            rig.step()
        return rig
    rig = DecodeRig()
    if state == "expected":
        rig.dispatch(1)
    elif state == "admitting":
        rig.dispatch(1)
        rig.receive(PrefillStarted(room(1)))
    elif state == "receiving":
        rig.admit(1)
    else:
        rig.run(1)
    return rig
