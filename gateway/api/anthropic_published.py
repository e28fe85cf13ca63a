"""Published prompts in Anthropic's dialect, whose bodies have tools of another form."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from gateway.api.anthropic_models import PromptBody, Tool
from gateway.api.named_prompts import prompt_named, refuse_beside_prompt
from gateway.api.openai_tools import Tool as ChatTool
from gateway.published import PublishedPrompt
from gateway.service import Service
from gateway.tenants import Tenant

_B = TypeVar("_B", bound=PromptBody)


def with_published(service: Service, tenant: Tenant, body: _B) -> tuple[_B, PublishedPrompt | None]:
    """Return a body with the system's text and the tools of the prompt that it names.

    The template is to be shown the prompt's own tools, so that their text is what was published.

    Raises:
        PromptNotFoundError, RetiredVersionError: there is none for this tenant.
        InvalidRequestError: the body says system or tools itself.
    """
    if body.prompt is None:
        return body, None
    found = prompt_named(service, tenant, body.prompt)
    roles = (message.role for message in body.messages)
    refuse_beside_prompt(roles, {"system": body.system, "tools": body.tools}, "messages")
    functions = [each.function for each in msgspec.convert(found.tools, list[ChatTool])]
    tools = [
        Tool(name=each.name, input_schema=each.parameters or {}, strict=each.strict)
        for each in functions
    ]
    return replace(body, system=found.system, tools=tools), found
