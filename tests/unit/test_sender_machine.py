"""Random walks through the transfer machine: what a peer's page safety rests on, at every step."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv_transfer.sender import (
    ENDED,
    Commit,
    Instruction,
    Sender,
    SendState,
    StartWrite,
    Stopped,
    WriteFailed,
)
from tests.support.cores import machine_settings

_S = SendState


class SenderMachine(RuleBasedStateMachine):
    """The model counts computed blocks, writes in flight, and what was announced."""

    @initialize(num_blocks=st.integers(1, 6))
    def begin(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.sender = Sender(range(100, 100 + num_blocks))
        self.num_computed = 0
        self.first_block: int | None = None
        self.prompt_done = self.failed = self.ended = self.any_lost = False
        self.in_flight: dict[int, tuple[int, ...]] = {}
        self.sent: list[int] = []
        self.final: list[Commit | Stopped] = []
        self.asked: list[tuple[int, ...]] = []

    def carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, StartWrite):
                assert not self.final or self.asked
                assert not self.failed
                assert not self.ended
                blocks = tuple(local - 100 for local, _ in instruction.pairs)
                assert [remote - 200 for _, remote in instruction.pairs] == list(blocks)
                assert max(blocks) < self.num_computed, "bytes that are not final"
                if self.asked:
                    assert blocks == self.asked.pop()
                    self.final.pop()
                else:
                    self.sent += blocks
                self.in_flight[instruction.write] = blocks
            elif isinstance(instruction, WriteFailed):
                self.failed = True
            else:
                assert not self.in_flight, "said while a write is in flight"
                self.final.append(instruction)
        if any(isinstance(each, Commit) for each in instructions):
            assert self.sent == list(range(self.first_block or 0, self.num_blocks))
            assert self.prompt_done
            assert not self.failed

    @precondition(lambda self: not self.prompt_done and self.sender.state not in ENDED)
    @rule(data=st.data())
    def compute_blocks(self, data: st.DataObject) -> None:
        self.num_computed = data.draw(st.integers(self.num_computed, self.num_blocks))
        self.carry_out(self.sender.blocks_computed(self.num_computed))

    @precondition(lambda self: not self.prompt_done and self.sender.state not in ENDED)
    @rule()
    def compute_all(self) -> None:
        self.num_computed, self.prompt_done = self.num_blocks, True
        self.carry_out(self.sender.computed())

    @precondition(lambda self: self.sender.state in (_S.WAITING, _S.READY))
    @rule(data=st.data())
    def manifest(self, data: st.DataObject) -> None:
        self.first_block = data.draw(st.integers(0, self.num_blocks))
        pages = range(200 + self.first_block, 200 + self.num_blocks)
        assert self.sender.covers(self.first_block, len(pages))
        self.carry_out(self.sender.manifest(9, self.first_block, pages))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), lost=st.booleans())
    def write_ends(self, data: st.DataObject, lost: bool) -> None:
        write = data.draw(st.sampled_from(sorted(self.in_flight)))
        del self.in_flight[write]
        self.any_lost |= lost
        self.carry_out(self.sender.written(write, "lost" if lost else None))

    @precondition(lambda self: self.sender.state is _S.COMMITTED)
    @rule()
    def accepted(self) -> None:
        self.sender.accepted()

    @precondition(lambda self: self.sender.state is _S.COMMITTED and self.sent)
    @rule(data=st.data())
    def damaged(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.sent), min_size=1, unique=True))
        assert self.sender.was_written(blocks)
        self.asked.append(tuple(blocks))
        self.carry_out(self.sender.damaged(blocks))

    @rule()
    def end(self) -> None:
        if self.sender.state is _S.COMMITTED:
            self.final.clear()
        self.ended = True
        self.carry_out(self.sender.end())

    @invariant()
    def holds(self) -> None:
        self.sender.validate()
        assert len(self.sent) == len(set(self.sent)), "a block went out twice"
        assert len(self.final) <= 1
        state = self.sender.state
        assert (state is _S.STOPPED) == any(isinstance(f, Stopped) for f in self.final)
        if self.final and isinstance(self.final[0], Stopped):
            assert self.final[0].cut == self.any_lost
            assert self.final[0].epoch == (0 if self.first_block is None else 9)
        if (self.ended or self.failed) and not self.in_flight:
            assert state in ENDED
        elif self.prompt_done and self.first_block is not None and not self.in_flight:
            assert state in (_S.COMMITTED, _S.DONE)


SenderMachine.TestCase.settings = machine_settings(200, steps=20)
TestSenderMachine = SenderMachine.TestCase
