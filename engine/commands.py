"""An administrator's commands to one engine, as its core carries them out between steps.

Pure. Which rooms are here is the core's to know; pages are the ledger's.
"""

from bootstrap.messages import CommandAnswered, FlushCache
from kv_transfer.ledger import PageLedger


def flush_cache(message: FlushCache, ledger: PageLedger, num_rooms: int) -> CommandAnswered:
    """Forget what `ledger` has cached unless a room is here or holds pages, also in quarantine."""
    num_holding = max(num_rooms, len(ledger.rooms()))
    if num_holding:
        return CommandAnswered(message.command, refusal=f"{num_holding} rooms are live")
    return CommandAnswered(message.command, num_blocks=ledger.flush_cache())
