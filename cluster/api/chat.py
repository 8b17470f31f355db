"""`POST /v1/chat/completions`."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response

from cluster.api.answer_schema import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    PromptLogprobs,
    Stats,
    Usage,
)
from cluster.api.answering import answered
from cluster.api.answers import ids_if, usage_of
from cluster.api.chat_plan import plan_chat
from cluster.api.intake import chat_ask
from cluster.api.logprobs import TokenNames
from cluster.api.message_parts import MessageBuilder, MessagePart, MessageParts
from cluster.api.message_shaper import MessageShaper
from cluster.api.request_ids import CallName
from cluster.api.schema import ChatCompletionRequest
from cluster.api.sse import event
from cluster.balancer.asks import Ask
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.generation import ChoiceDelta, Generation
from cluster.balancer.text import TextToken

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    return await answered(body, request, lambda: _begin(body, request), "messages")


async def _begin(body: ChatCompletionRequest, request: Request) -> "ChatAnswer":
    """Nothing may be awaited between this and the answer's first delta, which then owns the work."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    plan = plan_chat(dispatcher, body)
    ask = await chat_ask(dispatcher, body, CallName.new(request, "chatcmpl-"), plan)
    generation = await dispatcher.generate(ask)
    rules = plan.rules(dispatcher, ask.prompts[0])
    parts = MessageParts([MessageShaper(rules) for _ in range(ask.n)])
    names = TokenNames(dispatcher.text.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
    return ChatAnswer(body, ask, generation, parts, names)


@dataclass(slots=True)
class _Choice:
    """One choice of an answer that is not streamed, as far as it has come."""

    message: MessageBuilder = field(default_factory=MessageBuilder)
    tokens: list[TextToken] = field(default_factory=list)
    finish: str = ""

    def add(self, part: MessagePart) -> None:
        self.message.add(part.delta)
        self.tokens += part.tokens
        self.finish = part.finish or self.finish


class ChatAnswer:
    """One call's answer, to be read once: whole, or as the events of a stream."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        ask: Ask,
        generation: Generation,
        parts: MessageParts,
        names: TokenNames,
    ) -> None:
        self.id = ask.answer_id
        self.generation = generation
        self._created = int(time.time())
        self._body = body
        self._ask = ask
        self._parts = parts
        self._names = names

    async def whole(self) -> ChatCompletion:
        """The answer once it is complete; raises GenerationFailed."""
        choices = [_Choice() for _ in range(self._ask.n)]
        prompt_logprobs: PromptLogprobs | None = None
        async for delta in self.generation.deltas():
            prompt_logprobs = prompt_logprobs or self._prompt_logprobs(delta)
            for part in self._parts.of(delta):
                choices[part.index].add(part)
        return ChatCompletion(
            id=self.id,
            created=self._created,
            model=self._body.model,
            choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=self._usage(),
            prompt_logprobs=prompt_logprobs,
            prompt_token_ids=self._prompt_token_ids(),
        )

    async def events(self) -> AsyncIterator[bytes]:
        """Chunks; raises GenerationFailed."""
        options = self._body.streaming
        is_first = True
        async for delta in self.generation.deltas():
            for part in self._parts.of(delta):
                usage = None
                if options.counts_always:
                    usage = self._usage()
                yield self._event([self._chunk_choice(part)], usage, is_first=is_first)
                is_first = False
        if options.include_usage:
            yield self._event([], self._usage())

    def _choice(self, index: int, choice: _Choice) -> ChatChoice:
        body = self._body
        return ChatChoice(
            index=index,
            message=choice.message.message(),
            logprobs=self._logprobs(choice.tokens),
            finish_reason=choice.finish,
            token_ids=ids_if(body.return_token_ids, choice.tokens),
            stats=self._stats(index),
        )

    def _chunk_choice(self, part: MessagePart) -> ChatChunkChoice:
        body = self._body
        shows_tokens = any(token.shown for token in part.tokens)
        return ChatChunkChoice(
            index=part.index,
            delta=part.delta,
            logprobs=self._logprobs(part.tokens) if shows_tokens else None,
            finish_reason=part.finish,
            token_ids=ids_if(body.return_token_ids, part.tokens),
            stats=self._stats(part.index) if part.finish else None,
        )

    def _event(
        self, choices: list[ChatChunkChoice], usage: Usage | None, *, is_first: bool = False
    ) -> bytes:
        chunk = ChatCompletionChunk(
            id=self.id,
            created=self._created,
            model=self._body.model,
            choices=choices,
            usage=usage,
            prompt_token_ids=self._prompt_token_ids() if is_first else None,
        )
        return event(chunk, without=self._body.streaming.left_out)

    def _logprobs(self, tokens: Sequence[TextToken]) -> ChatLogprobs | None:
        num_top = self._body.num_logprobs
        return None if num_top is None else self._names.chat(tokens, num_top)

    def _usage(self) -> Usage:
        return usage_of(self._ask, self.generation, self._parts.num_reasoning_tokens)

    def _stats(self, index: int) -> Stats | None:
        return self.generation.stats_of(index).as_fields() if self._body.include_stats else None

    def _prompt_token_ids(self) -> list[int] | None:
        return list(self._ask.prompts[0]) if self._body.return_token_ids else None

    def _prompt_logprobs(self, delta: ChoiceDelta) -> PromptLogprobs | None:
        num_top = self._body.prompt_logprobs
        if num_top is None or delta.index != 0:
            return None
        return self._names.prompt(self._ask.prompts[0], delta.prompt_logprobs, num_top)
