"""`POST /v1/completions`."""

import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response

from cluster.api.answer_schema import Completion, CompletionChoice, Usage
from cluster.api.answering import answered
from cluster.api.answers import usage_of
from cluster.api.completion_choices import CompletionChoices
from cluster.api.echo import echoes
from cluster.api.intake import completion_ask
from cluster.api.logprobs import TokenNames
from cluster.api.request_ids import CallName
from cluster.api.schema import CompletionRequest
from cluster.api.sse import event
from cluster.balancer.asks import Ask
from cluster.balancer.dispatcher import Dispatcher
from cluster.balancer.generation import Generation

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue prompts, whole or as a stream."""
    return await answered(body, request, lambda: _begin(body, request), "prompt")


async def _begin(body: CompletionRequest, request: Request) -> "CompletionAnswer":
    """Nothing may be awaited between this and the answer's first delta, which then owns the work."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    ask = await completion_ask(dispatcher, body, CallName.new(request, "cmpl-"))
    tokenizer = dispatcher.text.tokenizer
    echoed = await dispatcher.text.run(lambda: echoes(body, ask, tokenizer))
    generation = await dispatcher.generate(ask)
    names = TokenNames(tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
    choices = CompletionChoices(body, ask, names, echoed, generation.stats_of)
    return CompletionAnswer(body, ask, generation, choices)


class CompletionAnswer:
    """One call's answer, to be read once: whole, or as the events of a stream."""

    def __init__(
        self, body: CompletionRequest, ask: Ask, generation: Generation, choices: CompletionChoices
    ) -> None:
        self.id = ask.answer_id
        self.generation = generation
        self._created = int(time.time())
        self._body = body
        self._ask = ask
        self._choices = choices

    async def whole(self) -> Completion:
        """The answer once it is complete; raises GenerationFailed."""
        deltas = [delta async for delta in self.generation.deltas()]
        num_choices = len(self._ask.prompts) * self._ask.n
        choices = [self._choices.joined(deltas, index) for index in range(num_choices)]
        return self._part(choices, usage_of(self._ask, self.generation))

    async def events(self) -> AsyncIterator[bytes]:
        """Chunks; raises GenerationFailed."""
        options = self._body.streaming
        async for delta in self.generation.deltas():
            choice = self._choices.next(delta)
            if choice is None:
                continue
            usage = None
            if options.counts_always:
                usage = usage_of(self._ask, self.generation)
            yield event(self._part([choice], usage), without=options.left_out)
        if options.include_usage:
            yield event(self._part([], usage_of(self._ask, self.generation)))

    def _part(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        return Completion(
            id=self.id,
            created=self._created,
            model=self._body.model,
            choices=choices,
            usage=usage,
        )
