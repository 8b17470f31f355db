"""An answer as it grows, item by item, and the events that tell of it. Pure; knows no connection."""

import uuid
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from cluster.api.responses.answer import (
    CallItem,
    IncompleteDetails,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    ResponseUsage,
    Status,
)
from cluster.api.shaper import CallOpened, Reasoning, Shaped
from cluster.api.tools.parser import Content

Event = dict[str, Any]


class Building:
    """One answer. At any time only the last item of its output is open.

    Events are OpenAI's, numbered from 0:
    https://platform.openai.com/docs/api-reference/responses-streaming
    """

    def __init__(self, response: ResponseObject) -> None:
        self.response = response
        self._num_events = 0
        self._open: OutputItem | None = None

    def begin(self) -> list[Event]:
        """The first events, before any text."""
        whole = self.response.model_dump()
        return [
            self._event("response.created", response=whole),
            self._event("response.in_progress", response=whole),
        ]

    def add(self, pieces: Iterable[Shaped]) -> list[Event]:
        """What `pieces` add."""
        events: list[Event] = []
        for piece in pieces:
            if isinstance(piece, Content):
                events += self._add_text(piece.text)
            elif isinstance(piece, Reasoning):
                events += self._add_thought(piece.text)
            elif isinstance(piece, CallOpened):
                item = CallItem(id=_new_id("fc"), call_id=piece.id, name=piece.name)
                events += self._begin_item(item)
            else:
                events += self._add_arguments(piece.text)
        return events

    def end(self, usage: ResponseUsage, *, cut_off: bool) -> list[Event]:
        """The last events; `cut_off` when the token limit ended the answer."""
        status: Status = "incomplete" if cut_off else "completed"
        events = [] if self.response.output else self._begin_message()
        events += self._close(status)
        self.response.status, self.response.usage = status, usage
        if cut_off:
            self.response.incomplete_details = IncompleteDetails()
        return [*events, self._event(f"response.{status}", response=self.response.model_dump())]

    def failed(self, error: dict[str, Any]) -> Event:
        """The last event of an answer that breaks off; `error` is OpenAI's error object."""
        named = {name: error[name] for name in ("code", "message", "param")}
        return self._event("error", **named, error=error)

    # --- kinds of items -----------------------------------------------------------------------

    def _add_text(self, text: str) -> list[Event]:
        events = [] if isinstance(self._open, MessageItem) else self._begin_message()
        assert isinstance(self._open, MessageItem)
        self._open.content[0].text += text
        return [*events, self._of_part("response.output_text.delta", delta=text, logprobs=[])]

    def _add_thought(self, text: str) -> list[Event]:
        item, events = self._open, []
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(id=_new_id("rs"))
            events = self._begin_item(item)
            item.content.append(ReasoningText())
            events.append(self._of_part("response.content_part.added", part=_dump(ReasoningText())))
        item.content[0].text += text
        return [*events, self._of_part("response.reasoning_text.delta", delta=text)]

    def _add_arguments(self, text: str) -> list[Event]:
        item = self._open
        assert isinstance(item, CallItem)
        item.arguments += text
        return [self._of_item("response.function_call_arguments.delta", delta=text)]

    # --- items begin and end ------------------------------------------------------------------

    def _begin_message(self) -> list[Event]:
        item = MessageItem(id=_new_id("msg"))
        events = self._begin_item(item)
        item.content.append(OutputText())
        return [*events, self._of_part("response.content_part.added", part=_dump(OutputText()))]

    def _begin_item(self, item: OutputItem) -> list[Event]:
        events = self._close("completed")
        added = _dump(item)
        self._open = item
        self.response.output.append(item)
        event = self._event("response.output_item.added", output_index=self._index, item=added)
        return [*events, event]

    def _close(self, status: Status) -> list[Event]:
        item = self._open
        if item is None:
            return []
        item.status = status
        events = self._done(item)
        self._open = None
        done = self._event("response.output_item.done", output_index=self._index, item=_dump(item))
        return [*events, done]

    def _done(self, item: OutputItem) -> list[Event]:
        if isinstance(item, CallItem):
            fields = {"name": item.name, "arguments": item.arguments}
            return [self._of_item("response.function_call_arguments.done", **fields)]
        part = item.content[0]
        if isinstance(part, OutputText):
            done = self._of_part("response.output_text.done", text=part.text, logprobs=[])
        else:
            done = self._of_part("response.reasoning_text.done", text=part.text)
        return [done, self._of_part("response.content_part.done", part=_dump(part))]

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    def _of_part(self, kind: str, **fields: Any) -> Event:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None
        return self._event(kind, item_id=self._open.id, output_index=self._index, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        number = self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **fields}


def _dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump()


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
