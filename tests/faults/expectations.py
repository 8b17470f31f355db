"""The one outcome that each cell of the fault matrix may have, and the time to it.

One row per step, one column per fault; the three letters are the moments before, during and after.

    S  the same answer; nobody noticed        E  continued elsewhere: on another engine or a successor
    R  again on the only pair, or elsewhere   L  503 with one pair, elsewhere with two
    V  503 with one pair, same with two       M  elsewhere with one pair, same with two
    O  same with one pair, elsewhere with two C  cancelled, as the client wished
    .  means nothing; `cells` or `injection` says why
"""

from tests.faults.cells import Cell, Fault, Layout, Position, Step
from tests.faults.results import Outcome

# fmt: off
_MESSAGES = """
                delay  drop  repeat  reorder  truncate  corrupt
register        .SS    .SS   .SS     .SS      .SS       .SS
dispatch-p      .S.    .R.   .SS     .S.      .R.       .R.
dispatch-d      .S.    .R.   .SS     .S.      .R.       .R.
admit           .SS    .SS   .SS     .SS      .SS       .SS
manifest        .SS    .SS   .SS     .SS      .SS       .SS
write-0         .S.    .S.   .S.     .S.      .S.       .S.
write-1         .S.    .S.   .S.     .S.      .S.       .S.
write-2         .S.    .S.   .S.     ...      .S.       .S.
first-token     RRS    SRS   SSS     SOS      SRS       SRS
commit          SS.    SS.   SSS     SS.      SS.       SS.
accept          SS.    SS.   SSS     SS.      SS.       SS.
token-batch     SSS    RRR   SSS     SSS      RRR       RRR
finish          SSS    RRS   SSS     SSS      RRS       RRS
release         SSS    RSS   SSS     SSS      RSS       RSS
heartbeat       .SS    .SS   .SS     .SS      .SS       .SS
cancel-p        CC.    CC.   CCC     CC.      CC.       CC.
cancel-d        CC.    CC.   CCC     CC.      CC.       CC.
writer-stopped  CC.    CC.   CCC     CC.      CC.       CC.
"""

_ENGINES = """
                kill-p kill-d stop-p stop-d restart-p restart-d move-p move-d replace-p replace-d
register        VVV    VVV    VVV    VVV    SSM       SSM       SSM    SSM    SMM       SMM
dispatch-p      LLL    LLL    LLL    LLL    EEE       EEE       EEE    EEE    EEE       EEE
dispatch-d      LLL    LLL    LLL    LLL    EEE       EEE       EEE    EEE    EEE       EEE
admit           LLL    LLL    LLL    LLL    EEE       EEE       EEE    EEE    EEE       EEE
manifest        LLL    LLL    LLL    LLL    EEE       EEE       EEE    EEE    EEE       EEE
write-0         LLL    LLL    LLL    LLL    EEE       EEE       EEE    EEE    EEE       EEE
write-1         LLL    LLL    LLL    LLL    EEE       EEE       EEE    EEE    EEE       EEE
write-2         LLL    LLL    LLS    LLL    EEE       EEE       EEE    EEE    EES       EEE
first-token     LLL    LLL    LLL    LLL    EEE       EEE       EEE    EEE    EEE       EEE
commit          LLS    LLL    LSS    LLL    EES       EEE       EES    EEE    ESS       EEE
accept          SSS    LLL    SSS    LLL    SSS       EEE       SSS    EEE    SSS       EEE
token-batch     SSS    LLL    SSS    LLL    SSS       EEE       SSS    EEE    SSS       EEE
finish          SSS    LLS    SSS    LSS    SSS       EES       SSS    EES    SSS       ESS
release         SSS    SSS    SSS    SSS    SSS       SSS       SSS    SSS    SSS       SSS
heartbeat       SSS    LLL    SSS    LLL    SSS       EEE       SSS    EEE    SSS       EEE
cancel-p        CCC    CCC    CCC    CCC    CCC       CCC       CCC    CCC    CCC       CCC
cancel-d        CCC    CCC    CCC    CCC    CCC       CCC       CCC    CCC    CCC       CCC
writer-stopped  CCC    CCC    CCC    CCC    CCC       CCC       CCC    CCC    CCC       CCC
"""

_LINKS = """
                refuse reset hole
register        S.S    SSS   VVV
dispatch-p      R.R    SRS   LLL
dispatch-d      R.S    SRS   LLL
admit           S.S    SSS   LLL
manifest        S.R    SSS   LLL
write-0         R.R    RRS   LLL
write-1         R.R    RRS   LLL
write-2         R.S    RRS   LLL
first-token     R.S    SRS   LLS
commit          S.S    SSS   LLS
accept          S.S    SSS   SSS
token-batch     S.S    SRS   LLL
finish          S.S    SRS   LLS
release         S.S    SSS   SSS
heartbeat       S.S    SSS   SSS
cancel-p        C.C    CCC   CCC
cancel-d        C.C    CCC   CCC
writer-stopped  C.C    CCC   CCC
"""
# fmt: on

_OUTCOMES: dict[str, tuple[Outcome, Outcome]] = {  # with one pair, with two
    "S": (Outcome.SAME, Outcome.SAME),
    "R": (Outcome.AGAIN, Outcome.ELSEWHERE),
    "E": (Outcome.ELSEWHERE, Outcome.ELSEWHERE),
    "L": (Outcome.UNAVAILABLE, Outcome.ELSEWHERE),
    "V": (Outcome.UNAVAILABLE, Outcome.SAME),
    "M": (Outcome.ELSEWHERE, Outcome.SAME),
    "O": (Outcome.SAME, Outcome.ELSEWHERE),
    "C": (Outcome.CANCELLED, Outcome.CANCELLED),
}

# From the fault to the client's outcome, its whole answer included; seconds.
_LOST = 2.4  # two reports that do not name the room, and the next attempt
_GONE = 2.5  # the eviction, and the wait for a pair
_SILENT = 4.9  # the lease, the same wait
_WITHIN_S: dict[Fault, float] = {
    Fault.DELAY: 1.7,
    Fault.DROP: _LOST,
    Fault.REPEAT: 0.3,
    Fault.REORDER: _LOST,
    Fault.TRUNCATE: _LOST,
    Fault.CORRUPT: _LOST,
    Fault.KILL_P: _GONE,
    Fault.KILL_D: _GONE,
    Fault.STOP_P: _SILENT,
    Fault.STOP_D: _SILENT,
    Fault.RESTART_P: 0.4,
    Fault.RESTART_D: 0.4,
    Fault.MOVE_P: 0.4,
    Fault.MOVE_D: 0.4,
    Fault.REPLACE_P: 0.8,
    Fault.REPLACE_D: 0.8,
    Fault.REFUSE: 1.8,
    Fault.RESET: _LOST,
    Fault.HOLE: 8.0,
}


def _read(*tables: str) -> dict[tuple[Step, Fault, Position], str]:
    found = {}
    for table in tables:
        head, *rows = table.strip("\n").splitlines()
        faults = [Fault(name) for name in head.split()]
        for row in rows:
            name, *letters = row.split()
            for fault, three in zip(faults, letters, strict=True):
                for position, letter in zip(Position, three, strict=True):
                    found[Step(name), fault, position] = letter
    return found


_LETTERS = _read(_MESSAGES, _ENGINES, _LINKS)


def is_meant(cell: Cell) -> bool:
    """Whether the table has an outcome for the cell."""
    return _LETTERS[cell.step, cell.fault, cell.position] != "."


def allowed(cell: Cell) -> tuple[Outcome, float]:
    """The cell's one outcome, and within how many seconds of the fault the client has it."""
    pair = _OUTCOMES[_LETTERS[cell.step, cell.fault, cell.position]]
    return pair[0 if cell.layout is Layout.ONE_PAIR else 1], _WITHIN_S[cell.fault]
