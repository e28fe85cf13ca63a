"""A conversation as the prompt that the model reads, with the places that are worth keeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.api.calls import prompt_of
from gateway.api.openai_cache import MAX_BREAKPOINTS, Lifetime, Marked
from gateway.api.openai_messages import Place
from gateway.config import GatewayConfig
from gateway.errors import InvalidRequestError
from gateway.service import Served
from prefixcache.errors import TemplateError
from prefixcache.text import Mark


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

    Of its breakpoints only as many are found as can count, the latest.

    Raises:
        ContextLengthError: it has more characters than the model's context could hold.
        InvalidRequestError: the model's template refuses it, in the template's words.
    """
    latest = list(breakpoints.items())[-MAX_BREAKPOINTS:]  # each costs as much as its prompt
    with prompt_of(param, served):
        try:
            prompt = served.encoder.marked_chat(
                messages,
                [Mark(*place) for place, _ in latest],
                tools=tools or None,
                order_tool_keys=config.order_tool_keys,
                max_characters=served.max_characters,
            )
        except TemplateError as error:
            raise InvalidRequestError(f"{param}: {error}", param) from error
    marked = zip(prompt.fixed_tokens, latest, strict=True)
    return ChatPrompt(prompt.token_ids, tuple(Marked(n, ttl) for n, (_, ttl) in marked))
