"""What a start shows, with a terminal and without."""

import io

import pytest
from rich.console import Console

from cluster.progress import Progress


def test_without_a_terminal_each_stage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Console(file=io.StringIO(), force_terminal=False))
    with progress.shown():
        progress.say("model", "download", 0.0)
        progress.say("model", "download", 0.5)
        progress.say("model", "convert")
        progress.say("ray", "starting")
        progress.say("ray", "starting")
        progress.say("ray", "running", done=True)
    lines = [line.split("s  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["model: download", "model: convert", "ray: starting", "ray: running"]


def test_a_terminal_shows_a_row_per_part_with_its_share() -> None:
    screen = io.StringIO()
    progress = Progress(Console(file=screen, force_terminal=True, color_system=None, width=60))
    with progress.shown():
        progress.say("model", "download [x]", 0.42)
        progress.say("ray", "running", done=True)
    last = screen.getvalue().splitlines()
    assert any(line.rstrip().endswith("model  download [x]  42%") for line in last)
    assert any(line.startswith("✓  ray    running") for line in last)
