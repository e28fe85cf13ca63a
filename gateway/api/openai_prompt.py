"""A conversation as the prompt that the model reads, with the places that are worth keeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.api.calls import prompt_of
from gateway.api.openai_cache import Lifetime, Marked
from gateway.api.openai_messages import Place
from gateway.config import GatewayConfig
from gateway.errors import InvalidRequestError
from gateway.service import Served
from prefixcache.errors import TemplateError


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation's token ids, and its cache breakpoints in prompt order."""

    token_ids: Sequence[int]
    breakpoints: tuple[Marked, ...] = ()


def read_chat(
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[object],
    breakpoints: Mapping[Place, Lifetime | None],
    *,
    served: Served,
    config: GatewayConfig,
    param: str,
) -> ChatPrompt:
    """Return the prompt of a conversation that came in the field `param`.

    Raises:
        ContextLengthError: it has more characters than the model's context could hold.
        InvalidRequestError: the model's template refuses it, in the template's words.
    """
    with prompt_of(param, served):
        try:
            token_ids = served.encoder.chat(
                messages,
                tools=tools or None,
                order_tool_keys=config.order_tool_keys,
                max_characters=served.max_characters,
            )
        except TemplateError as error:
            raise InvalidRequestError(f"{param}: {error}", param) from error
    return ChatPrompt(token_ids)
