"""The routes for published prompts, under /v1/prompts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from gateway.access import check_origin
from gateway.api.bodies import decode_body
from gateway.api.exchange import read_work
from gateway.api.named_prompts import Version, version_of
from gateway.api.openai_tools import Tool
from gateway.api.prompt_cards import PromptCard, cards_of
from gateway.api.queries import decode_query
from gateway.errors import AccessRefusedError, InvalidRequestError
from gateway.http import SERVICE, record_of, reply
from gateway.published import JsonObject, PromptDraft
from gateway.publisher import Entry
from gateway.routes import BODY_ERRORS, READ_ERRORS, Route, in_dialect
from gateway.service import Service
from gateway.tenants import Tenant

DIALECT = "prompts"

Name = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(?![\s\S])")]
_LONGEST_SECONDS = 10 * 366 * 86_400.0


class PublishBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt to be published."""

    name: Name
    version: Version | None = None  # above the last one; one more than it if nothing is said
    system: Annotated[str, Meta(min_length=1)]
    tools: list[JsonObject] | None = None  # as in a chat's body
    tenants: Annotated[list[str], Meta(min_length=1)] | None = None  # all, if nothing is said
    model: str | None = None  # for an adapter: its name
    ttl_seconds: Annotated[float, Meta(gt=0, le=_LONGEST_SECONDS)] | None = None  # no end
    pin: bool | None = None  # true


class PromptList(msgspec.Struct, frozen=True, kw_only=True):
    """Published prompts, by name."""

    object: str = "list"
    data: list[PromptCard]


class PromptsRetired(msgspec.Struct, frozen=True, kw_only=True):
    """What is published no more."""

    object: str = "prompt.retired"
    name: str
    versions: tuple[int, ...]


class TextQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whether system and tools are shown, too: to the operator alone."""

    text: bool = False


_DECODER = msgspec.json.Decoder(PublishBody)


async def publish_prompt(request: web.Request) -> web.Response:
    """Publish a prompt; answer once it can be matched, and the version before it cannot."""
    require_admin(request)
    service = request.app[SERVICE]
    draft = await read_work(request, _draft)
    entry = await service.prompts.publish(draft)
    state = entry.state
    cached = {} if state is None else {state.prompt_id: state.cached_tokens}
    (card,) = cards_of(service, [entry], cached, for_admin=True)
    return reply(card)


async def list_prompts(request: web.Request) -> web.Response:
    """Answer with the prompts that the tenant may use; the operator sees all."""
    with_text = _wants_text(request)
    entries = request.app[SERVICE].prompts.entries(tenant=_asker(request))
    cards = await _cards(request, entries, with_text=with_text)
    return reply(PromptList(data=cards))


async def show_prompt(request: web.Request) -> web.Response:
    """Answer with the current version of a prompt, or the version that is named if it is that."""
    with_text = _wants_text(request)
    name, version = _named(request)
    entry = request.app[SERVICE].prompts.entry(name, version, tenant=_asker(request))
    (card,) = await _cards(request, [entry], with_text=with_text)
    return reply(card)


async def retire_prompt(request: web.Request) -> web.Response:
    """Retire a prompt, or one version; nobody finds it from now on, and requests that run go on."""
    require_admin(request)
    name, version = _named(request)
    retired = await request.app[SERVICE].prompts.remove(name, version)
    versions = tuple(prompt.version for prompt in retired)
    return reply(PromptsRetired(name=name, versions=versions))


def require_admin(request: web.Request) -> None:
    """Let only the operator pass; without keys that is everybody on this machine.

    Raises:
        AccessRefusedError: a tenant's key was sent.
        OriginRefusedError: without keys, a page from elsewhere asks.
    """
    if not record_of(request).is_admin:
        raise AccessRefusedError(True)
    if request.app[SERVICE].tenancy.roster.is_open:
        check_origin(request)


def _draft(service: Service, tenant: Tenant, data: bytes) -> PromptDraft:
    body = decode_body(_DECODER, data, turn=service.decoding)
    tenants = None if body.tenants is None else tuple(dict.fromkeys(body.tenants))
    known = service.tenancy.roster.tenants
    for index, name in enumerate(tenants or ()):
        if name not in known:
            param = f"tenants[{index}]"
            raise InvalidRequestError(f"{param}: no tenant {name[:64]!r} is configured", param)
    try:
        msgspec.convert(body.tools or [], list[Tool])
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"tools: {error}", "tools") from error
    served = service.served()
    served = served if body.model is None else served.called(body.model)
    return PromptDraft(
        name=body.name,
        version=body.version,
        system=body.system,
        tools=tuple(body.tools or ()),
        tenants=tenants,
        adapter=served.adapter,
        ttl_seconds=body.ttl_seconds,
        pin=body.pin is not False,
    )


def _named(request: web.Request) -> tuple[str, int | None]:
    name, version = request.match_info["name"], request.match_info.get("version")
    return name, None if version is None else version_of(name, version)


def _asker(request: web.Request) -> Tenant | None:
    record = record_of(request)
    return None if record.is_admin else record.tenant


def _wants_text(request: web.Request) -> bool:
    wanted = decode_query(request, TextQuery).text
    if wanted:
        require_admin(request)
    return wanted


async def _cards(
    request: web.Request, entries: list[Entry], *, with_text: bool
) -> list[PromptCard]:
    service, is_admin = request.app[SERVICE], record_of(request).is_admin
    cached = await service.prompts.cached_tokens() if entries else {}
    return cards_of(service, entries, cached, for_admin=is_admin, with_text=with_text)


_ONE, _VERSION = "/v1/prompts/{name}", "/v1/prompts/{name}/{version}"
_FOUND_ERRORS = (*READ_ERRORS, 400, 404, 503)

PROMPT_ROUTES = in_dialect(  # the handlers tell the operator from tenants
    DIALECT,
    Route(
        hdrs.METH_POST,
        "/v1/prompts",
        publish_prompt,
        "Publish a prompt that chosen tenants share.",
        body=PublishBody,
        answer=PromptCard,
        errors=(*BODY_ERRORS, 404, 409, 503),
    ),
    Route(
        hdrs.METH_GET,
        "/v1/prompts",
        list_prompts,
        "List the published prompts that may be used.",
        query=TextQuery,
        answer=PromptList,
        errors=(*READ_ERRORS, 400, 503),
    ),
    *(
        Route(
            hdrs.METH_GET,
            path,
            show_prompt,
            "Show a published prompt.",
            query=TextQuery,
            answer=PromptCard,
            errors=_FOUND_ERRORS,
            operation=operation,
        )
        for path, operation in ((_ONE, "show_prompt"), (_VERSION, "show_prompt_version"))
    ),
    *(
        Route(
            hdrs.METH_DELETE,
            path,
            retire_prompt,
            "Retire a published prompt at once.",
            answer=PromptsRetired,
            errors=_FOUND_ERRORS,
            operation=operation,
        )
        for path, operation in ((_ONE, "retire_prompt"), (_VERSION, "retire_prompt_version"))
    ),
)
