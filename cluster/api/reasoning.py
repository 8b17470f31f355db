"""An answer that thinks first: `<think>...</think>` apart from what follows it.

Pure text. Owns where thinking begins and ends; knows nothing of tool calls or chunks.
"""

from collections.abc import Callable

AUTO = "auto"
NONE = "none"
BEGIN = "<think>"
END = "</think>"


def splits_reasoning(parser: str, template: str | None) -> bool:
    """Whether answers are split; `auto` goes by whether the chat template knows the marker.

    `qwen3` and `deepseek_r1` are the same here: whether the prompt has opened the thinking already
    is seen from the prompt.
    """
    return END in (template or "") if parser == AUTO else parser != NONE


def opens_reasoning(prompt_end: str) -> bool:
    """Whether a prompt that ends so leaves the model inside its thinking."""
    return prompt_end.rstrip().endswith(BEGIN)


class ReasoningSplitter:
    """Splits one answer, in pieces of any size, into (reasoning, content).

    Only the first thing in an answer can be reasoning. White space that touches a marker is dropped.
    """

    def __init__(self, *, opened: bool) -> None:
        """`opened`: the answer begins inside the reasoning."""
        self._held = ""
        self._num_pushed = 0
        self._num_before = 0  # characters up to the end of the end marker
        self._fresh = True  # nothing of the present part was returned yet
        self._state: Callable[[], tuple[str, str]] = self._inside if opened else self._before

    def push(self, text: str) -> tuple[str, str]:
        """More reasoning and more content; either may be empty."""
        self._held += text
        self._num_pushed += len(text)
        return self._state()

    @property
    def num_chars(self) -> int:
        """How much of the text so far is reasoning, markers included."""
        return self._num_pushed if self._state == self._inside else self._num_before

    def finish(self) -> tuple[str, str]:
        """What was held back, once the text has ended."""
        held, self._held = self._held, ""
        if self._state == self._inside:
            return self._trimmed(_without_partial(held)).rstrip(), ""
        return "", held

    def _before(self) -> tuple[str, str]:
        seen = self._held.lstrip()
        if seen.startswith(BEGIN):
            self._held = seen[len(BEGIN) :]
            self._state = self._inside
            return self._inside()
        if BEGIN.startswith(seen):
            return "", ""
        self._state = self._after
        self._fresh = False  # no marker, so this white space is the model's own
        return self._after()

    def _inside(self) -> tuple[str, str]:
        at = self._held.find(END)
        if at >= 0:
            reasoning = self._trimmed(self._held[:at]).rstrip()
            self._held = self._held[at + len(END) :]
            self._num_before = self._num_pushed - len(self._held)
            self._state, self._fresh = self._after, True
            return reasoning, self._after()[1]
        whole = _without_partial(self._held).rstrip()
        self._held = self._held[len(whole) :]
        return self._trimmed(whole), ""

    def _after(self) -> tuple[str, str]:
        content, self._held = self._trimmed(self._held), ""
        return "", content

    def _trimmed(self, text: str) -> str:
        """`text` without the white space that follows a marker."""
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        return text


def _without_partial(text: str) -> str:
    """`text` up to where an end marker may have begun."""
    for num in range(len(END) - 1, 0, -1):
        if text.endswith(END[:num]):
            return text[:-num]
    return text
