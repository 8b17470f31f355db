"""A decode scheduler and the hands that a core would lend it."""

from decode.request import DecodeRequest
from decode.scheduler import DecodeScheduler
from engine.core import StepPlan
from tests.support.cores import decode_dispatch, limits, prompt


class Rig:
    """A scheduler and the hands that a core would lend it; time is the number of calls."""

    def __init__(self, **overrides: object) -> None:
        self.scheduler = DecodeScheduler(limits(**overrides))
        self.now = 0.0
        self.pace_s = 1.0

    def start(self, number: int, num_tokens: int, first: int | None = None) -> DecodeRequest:
        token_ids = prompt(num_tokens, first=10 * number if first is None else first)
        hashes = self.scheduler.hasher.hashes(token_ids)
        dispatch = decode_dispatch(number, token_ids)
        request = DecodeRequest(dispatch, self.now, list(token_ids), hashes)
        self.scheduler.started(request)
        return request

    def plan(self) -> StepPlan | None:
        """The next plan; what it admits is exposed."""
        self.now += self.pace_s
        plan, admitted = self.scheduler.plan(self.now)
        for request in admitted:
            self.scheduler.ledger.expose(request.room)
        self.scheduler.validate()
        return plan

    def commit(self, request: DecodeRequest) -> None:
        self.now += self.pace_s
        self.scheduler.commit(request, 99, self.now)
        self.scheduler.validate()

    def run(self, number: int, num_tokens: int, first: int | None = None) -> DecodeRequest:
        """A request that decodes."""
        request = self.start(number, num_tokens, first)
        self.plan()
        self.commit(request)
        return request

    def step(self) -> StepPlan | None:
        """A step in which every running request gets a token."""
        plan = self.plan()
        for request in list(self.scheduler.running.values()):
            self.scheduler.append(request, 98)
        self.scheduler.validate()
        return plan

    def numbers(self, group: dict[bytes, DecodeRequest]) -> list[int]:
        return [int.from_bytes(each, "big") for each in group]

    @property
    def counts(self) -> dict[str, int]:
        return {state: n for state, n in self.scheduler.ledger.counts().items() if n}
