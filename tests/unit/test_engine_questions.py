"""What an engine does with questions for a sign of life, on the mailbox's thread."""

from types import SimpleNamespace

from bootstrap.messages import Ping, Pong
from engine import loop
from engine.host import EngineHost
from engine.loop import Inbox
from engine.settings import EngineSettings
from tests.support.cores import BALANCER


def test_questions_are_answered_and_fill_no_memory_while_the_loop_is_far_behind(monkeypatch):
    monkeypatch.setattr(loop, "MAX_EVENTS", 3)
    posted = []
    nowhere = {"model_dir": "", "model_name": "m", "bootstrap": "tcp://127.0.0.1:1"}
    host = EngineHost(EngineSettings(worker_id="p", **nowhere), lambda *_: None)
    host._mailbox = SimpleNamespace(post=lambda peer, message: posted.append((peer, message)))
    host._loop = SimpleNamespace(inbox=Inbox())
    for _ in range(5):
        host._on_message(BALANCER, Ping())
    assert posted == [(BALANCER, Pong())] * 5
    assert len(host._loop.inbox.take(0.0)) == 3
