"""A conversation as the prompt that the model reads, with the places that are worth keeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.api.calls import Prompts
from gateway.api.conversations import read_conversation
from gateway.api.named_prompts import system_message
from gateway.api.openai_cache import MAX_BREAKPOINTS, Lifetime, Marked
from gateway.api.openai_messages import Place
from gateway.errors import InvalidRequestError
from gateway.own_answers import Scope
from gateway.published import PublishedPrompt
from gateway.served import Served
from gateway.service import Service
from prefixcache.errors import TemplateError
from prefixcache.text import Mark


@dataclass(frozen=True, slots=True)
class ReadChat:
    """A conversation's prompt, and its cache breakpoints in prompt order."""

    prompts: Prompts
    breakpoints: tuple[Marked, ...]

    @property
    def n_tokens(self) -> int:
        """How long the prompt is."""
        return len(self.prompts.token_ids[0])


def read_chat(
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[object],
    breakpoints: Mapping[Place, Lifetime | None],
    *,
    service: Service,
    served: Served,
    scope: Scope,
    param: str,
    published: PublishedPrompt | None = None,
) -> ReadChat:
    """Return the prompt of a conversation that came in the field `param`.

    An answer of ours in it is read in the tokens that it was said in, if `scope` has it.
    Of its breakpoints only as many are found as can count, the latest. It begins with the
    system's text of `published`, whose tools are `tools`.

    Raises:
        ContextLengthError: it has more characters than the model's context could hold.
        InvalidRequestError: the model's template refuses it, in the template's words.
    """
    latest = list(breakpoints.items())[-MAX_BREAKPOINTS:]  # each costs as much as its prompt
    if published is not None:
        messages = [system_message(published), *messages]
        latest = [((index + 1, part), ttl) for (index, part), ttl in latest]
    try:
        read = read_conversation(
            messages,
            tools,
            service=service,
            served=served,
            param=param,
            scope=scope,
            marks=[Mark(*place) for place, _ in latest],
        )
    except TemplateError as error:
        if error.param == "tools":
            raise
        raise InvalidRequestError(f"{param}: {error}", param) from error
    marked = zip(read.fixed_tokens, latest, strict=True)
    found = tuple(Marked(n_tokens, ttl) for n_tokens, (_, ttl) in marked)
    return ReadChat(read.prompts, found)
