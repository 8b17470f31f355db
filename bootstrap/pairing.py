"""Whether a prefill and a decode engine may serve together, and if not, why. Pure."""

from bootstrap.membership import WorkerInfo


def differences(prefill: WorkerInfo, decode: WorkerInfo) -> tuple[str, ...]:
    """What keeps two engines apart; empty when KV pages of one mean the same to the other."""
    lines = list(prefill.contract.differences(decode.contract))
    for name, mine, theirs in (
        ("model", prefill.model, decode.model),
        ("transfer backend", prefill.transfer.backend, decode.transfer.backend),
    ):
        if mine != theirs:
            lines.append(f"{name}: {mine!r} != {theirs!r}")
    return tuple(lines)
