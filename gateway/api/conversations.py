"""Conversations as the prompts that the model reads, for every dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.api.calls import Origin, Prompts, prompt_of
from gateway.own_answers import Scope
from gateway.served import Served
from gateway.service import Service
from gateway.tenants import Tenant
from prefixcache.text import Mark


@dataclass(frozen=True, slots=True)
class ReadConversation:
    """A conversation's prompt, and how much of it each mark fixes."""

    prompts: Prompts
    fixed_tokens: tuple[int, ...]

    @property
    def token_ids(self) -> Sequence[int]:
        """The whole prompt."""
        return self.prompts.token_ids[0]

    @property
    def n_tokens(self) -> int:
        """How long the prompt is."""
        return len(self.token_ids)


def scope_of(tenant: Tenant, served: Served, salt: str | None) -> Scope:
    """Return whose earlier answers a request's conversation may have in it."""
    return Scope(tenant=tenant.name, adapter=served.adapter, salt=salt)


def read_conversation(
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[object],
    *,
    service: Service,
    served: Served,
    param: str,
    scope: Scope | None,
    marks: Sequence[Mark] = (),
    goes_on: bool = False,
    begins_with: bytes = b"",
) -> ReadConversation:
    """Return the prompt of a conversation that came in the field `param`.

    Args:
        scope: where answers of ours are known from, to be read in the tokens that they were said
            in; None: every text is read as the tokenizer reads it.
        goes_on: the last message is the assistant's, and is not over.
        begins_with: the tokens, packed, that the prompt has to begin with where an answer is known.

    Raises:
        ContextLengthError: it has more characters than the model's context could hold.
        TemplateError: the model's template refuses it.
    """
    history = None if scope is None else service.history(scope)
    if history is not None and begins_with:
        history = replace(history, begins_with=begins_with)
    with prompt_of(param, served):
        prompt = served.encoder.marked_chat(
            messages,
            marks,
            tools=tools or None,
            order_tool_keys=service.config.order_tool_keys,
            continue_last=goes_on,
            max_characters=served.max_characters,
            history=history,
        )
    origin = None if history is None else Origin(history, prompt.text, prompt.mark)
    return ReadConversation(Prompts(param, [prompt.token_ids], origin), prompt.fixed_tokens)
