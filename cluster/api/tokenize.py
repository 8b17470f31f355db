"""`POST /tokenize` and `POST /detokenize`, as vLLM has them."""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.api.conversation import ChatMessage, template_messages
from cluster.api.errors import ApiError, unknown_model
from cluster.api.schema import MAX_MESSAGES, MAX_PROMPT_CHARS, MAX_TOKENS, TokenId
from cluster.balancer.dispatcher import Dispatcher
from engine.chat_template import BadTemplateInput

router = APIRouter()


class TokenizeRequest(BaseModel):
    """A text, or a conversation as the chat template would write it; one of the two.

    `add_special_tokens` is true by default for a text, whose special tokens nobody else would add,
    and false for a conversation, whose template does.
    """

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=256)] | None = None
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = (
        None
    )
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_of", "Either 'prompt' or 'messages' is needed")
        return self


class Tokenized(BaseModel):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(BaseModel):
    """Token ids, special ones included."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=256)] | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True)]


class Detokenized(BaseModel):
    """Answer of `/detokenize`."""

    prompt: str


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> Tokenized:
    """The ids that a prompt or a conversation becomes."""
    dispatcher = _dispatcher(request, body.model)
    text = dispatcher.text
    try:
        token_ids = await _token_ids(body, dispatcher)
    except BadTemplateInput as error:
        raise ApiError(400, str(error), param="messages") from error
    limits = [pool.max_output(0) for pool in dispatcher.core.members.pools]
    return Tokenized(
        count=len(token_ids),
        max_model_len=max(limits, default=None),
        tokens=list(token_ids),
        token_strs=text.tokenizer.pieces(token_ids) if body.return_token_strs else None,
    )


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> Detokenized:
    """The text of ids."""
    text = _dispatcher(request, body.model).text
    largest = max(body.tokens, default=0)
    if largest >= text.tokenizer.vocab_size:
        message = f"Token id {largest} is not in the vocabulary of {text.tokenizer.vocab_size} ids."
        raise ApiError(400, message, param="tokens")
    return Detokenized(prompt=await text.decode(body.tokens))


async def _token_ids(body: TokenizeRequest, dispatcher: Dispatcher) -> tuple[int, ...]:
    special = body.add_special_tokens
    if body.prompt is not None:
        return await dispatcher.text.encode(body.prompt, special is not False)
    return await dispatcher.text.chat(
        template_messages(body.messages or ()),
        add_special_tokens=special is True,
        add_generation_prompt=body.add_generation_prompt,
    )


def _dispatcher(request: Request, model: str | None) -> Dispatcher:
    dispatcher: Dispatcher = request.app.state.dispatcher
    if model is not None and model != dispatcher.settings.model_name:
        raise unknown_model(model)
    return dispatcher
