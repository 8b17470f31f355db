"""Peers, dispatches and limits for tests that drive the pure cores by hand."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

from bootstrap.identity import Peer, Role, WorkerRef
from bootstrap.membership import WorkerInfo
from bootstrap.messages import DecodeDispatch, PrefillDispatch
from bootstrap.sampling import SamplingParams
from decode.core import DecodeCore
from engine.core import Post, StepPlan
from engine.limits import EngineLimits
from engine.step import SampledToken
from prefill.core import PrefillCore
from tests.support.members import worker_info

T = TypeVar("T")


def peer(worker_id: str, life: int = 0) -> Peer:
    """One life of a worker that listens nowhere."""
    return Peer(WorkerRef(worker_id, f"{life:016x}"), f"inproc://{worker_id}-{life}")


def info_of(member: Peer, role: Role) -> WorkerInfo:
    """The registration of `member`."""
    ref = member.ref
    return worker_info(ref.worker_id, role, incarnation=ref.incarnation, endpoint=member.endpoint)


BALANCER, PREFILL, DECODE, STRANGER = peer("lb"), peer("p"), peer("d"), peer("x")
PREFILL_INFO, DECODE_INFO = info_of(PREFILL, Role.PREFILL), info_of(DECODE, Role.DECODE)


def room(number: int) -> bytes:
    """A room with a number."""
    return number.to_bytes(16, "big")


def limits(**overrides: Any) -> EngineLimits:
    """Small limits: blocks of 4 tokens, 16 pages, chunks of 8 tokens."""
    values: dict[str, Any] = {
        "num_blocks": 16,
        "block_size": 4,
        "vocab_size": 100,
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_queue": 8,
        "max_num_batched_tokens": 8,
    }
    return EngineLimits(**{**values, **overrides})


def prompt(num_tokens: int, first: int = 0) -> tuple[int, ...]:
    """Distinct token ids from `first` on; prompts with other `first` share no block."""
    return tuple((first + i) % 90 for i in range(num_tokens))


def sampling(max_tokens: int = 8, **overrides: Any) -> SamplingParams:
    """Greedy sampling."""
    return SamplingParams(seed=1, max_tokens=max_tokens, temperature=0.0, **overrides)


def prefill_dispatch(number: int, token_ids: Sequence[int], **overrides: Any) -> PrefillDispatch:
    """The prefill leg of room `number`."""
    values: dict[str, Any] = {
        "attempt": 0,
        "deadline_s": 100.0,
        "reply_to": BALANCER,
        "decode": DECODE,
        "sampling": sampling(),
    }
    values.update(overrides)
    return PrefillDispatch(
        room=room(number), request_id=f"r{number}", prompt_token_ids=tuple(token_ids), **values
    )


def decode_dispatch(number: int, token_ids: Sequence[int], **overrides: Any) -> DecodeDispatch:
    """The decode leg of room `number`."""
    values: dict[str, Any] = {
        "attempt": 0,
        "deadline_s": 100.0,
        "reply_to": BALANCER,
        "prefill": PREFILL,
        "sampling": sampling(),
    }
    values.update(overrides)
    return DecodeDispatch(
        room=room(number), request_id=f"r{number}", prompt_token_ids=tuple(token_ids), **values
    )


def of_type(instructions: Iterable[object], kind: type[T]) -> list[T]:
    """The instructions of one kind."""
    return [each for each in instructions if isinstance(each, kind)]


def sent(instructions: Iterable[object], kind: type[T], to: Peer | None = None) -> list[T]:
    """Messages of one kind among the posts, in order; only those to `to` if it is given."""
    posts = [post for post in of_type(instructions, Post) if to is None or post.peer == to]
    return of_type((post.message for post in posts), kind)


def machine_settings(max_examples: int, steps: int = 40) -> settings:
    """Bounded and repeatable: a failure prints what reproduces it."""
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def step(core: PrefillCore | DecodeCore, now: float = 0.0, token_id: int = 7) -> StepPlan | None:
    """One round of an engine's loop with a model that always samples `token_id`."""
    plan = core.plan(now)
    if plan is not None:
        token = SampledToken(token_id, 0.0)
        core.complete(plan, [token if chunk.sample else None for chunk in plan.chunks], now)
    core.validate()
    return plan
