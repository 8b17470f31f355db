"""What a conversation asks for beside its text: tools, a format, thinking apart; and how it is had.

Owns the way from a request's fields to its prompt, its grammar and the shape of its answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bootstrap.sampling import GrammarSpec
from cluster.api.conversation import template_messages
from cluster.api.reasoning import BEGIN, opens_reasoning, splits_reasoning
from cluster.api.schema import ChatCompletionRequest
from cluster.api.shaper import ShapeRules
from cluster.api.structured import check_grammar, requested_grammar
from cluster.api.tools.formats import HERMES, tool_format
from cluster.api.tools.grammar import after_thinking
from cluster.api.tools.plan import ToolPlan, plan_tools, prompt_of
from cluster.balancer.dispatcher import Dispatcher

_NUM_LAST = 16  # tokens; enough for a marker in single bytes and white space


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """`messages` and `template` are what the chat template gets.

    `content` is what the visible text must match, because of the field `param`.
    """

    messages: Sequence[Mapping[str, Any]]
    template: Mapping[str, Any]
    tools: ToolPlan | None
    content: GrammarSpec | None
    param: str
    splits_reasoning: bool

    async def grammar(self, dispatcher: Dispatcher, prompt: Sequence[int]) -> GrammarSpec | None:
        """What the whole answer to `prompt` must match; raises ApiError for what cannot be."""
        grammar = self.content if self.tools is None else self.tools.grammar(self.content)
        if grammar is None:
            return None
        thinking = self._thinking(dispatcher, prompt)
        if thinking is not None:
            grammar = after_thinking(grammar, opened=thinking)
        param = self.param if self.tools is None else "tools"
        await check_grammar(dispatcher.text.grammars, grammar, param)
        return grammar

    def rules(self, dispatcher: Dispatcher, prompt: Sequence[int]) -> ShapeRules:
        """How the answers to `prompt` are taken apart."""
        return ShapeRules(self._thinking(dispatcher, prompt), self.tools)

    def keeps_special_tokens(self, dispatcher: Dispatcher) -> bool:
        """Whether markers that the answer is taken apart by are special tokens of the model."""
        markers = [BEGIN] if self.splits_reasoning else []
        markers += [] if self.tools is None else [self.tools.format.begin]
        return any(dispatcher.text.tokenizer.is_special(marker) for marker in markers)

    def _thinking(self, dispatcher: Dispatcher, prompt: Sequence[int]) -> bool | None:
        if not self.splits_reasoning:
            return None
        last = dispatcher.text.tokenizer.decode(prompt[-_NUM_LAST:], skip_special_tokens=False)
        return opens_reasoning(last)


def plan_chat(dispatcher: Dispatcher, body: ChatCompletionRequest) -> ChatPlan:
    """How the answer to `body` is made; raises ApiError for what cannot be."""
    settings, tokenizer = dispatcher.settings, dispatcher.text.tokenizer
    format = tool_format(settings.tool_call_parser, tokenizer.chat_template)
    tools = plan_tools(body, format)
    native = tokenizer.template_reads("tools")
    said = template_messages(body.messages)
    messages, definitions = prompt_of(said, tools, format or HERMES, native=native)
    content, param = requested_grammar(body)
    return ChatPlan(
        messages=messages,
        template={**(body.chat_template_kwargs or {}), "tools": definitions},
        tools=tools,
        content=content,
        param=param,
        splits_reasoning=splits_reasoning(settings.reasoning_parser, tokenizer.chat_template),
    )
