"""/v1beta/cachedContents: beginnings of prompts that are read in and kept until they expire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET

from gateway.api.calls import Prompts, check_count, make_call
from gateway.api.conversations import read_conversation
from gateway.api.exchange import read_work
from gateway.api.gemini_expiry import expiry_of, new_expiry, shown_time
from gateway.api.gemini_models import CacheBody, PromptFields, read_fields
from gateway.api.gemini_objects import (
    CachedContentReply,
    CachedContentsReply,
    CachedUsage,
    Nothing,
)
from gateway.api.gemini_prompt import declarations_of, messages_of, template_tool
from gateway.api.wishes import Wishes
from gateway.cached_contents import CachedContent, CachedContents
from gateway.error_replies import GoogleErrorReply
from gateway.errors import InvalidRequestError
from gateway.http import SERVICE, record_of, reply
from gateway.routes import ANSWER_ERRORS, READ_ERRORS, Route, in_dialect, in_versions
from gateway.served import Call, Served
from gateway.service import Service
from gateway.tenants import Tenant
from prefixcache.index import pack
from prefixcache.text import Mark
from prefixcache.types import Retain

CACHED_CONTENTS: web.AppKey[CachedContents] = web.AppKey("cached_contents", CachedContents)

DIALECT = "gemini"
VERSIONS = ("v1beta", "v1")  # of paths; clients have either

_DEFAULT_SECONDS = 3600.0
_MAX_PAGE = 1000
_DEFAULT_PAGE = 50
_FOLLOWING = {"role": "user", "content": "."}  # any turn: what it shares with others is kept


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which of what is kept is listed."""

    page_size: int | None = None
    page_token: str | None = None  # of the page before


class MaskQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which fields a change is for."""

    update_mask: str | None = None


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A content that is to be read in, and the call that does it."""

    cached: CachedContent
    call: Call | None  # None: too short for a block of KV


async def create_cached_content(request: web.Request) -> web.Response:
    """Read a beginning in, keep it, and answer with its name."""
    caches = request.app[CACHED_CONTENTS]
    caches.check_room(record_of(request).tenant.name)
    prefill = await read_work(request, _prefill)
    await _run(request, prefill.call)
    caches.add(record_of(request).tenant.name, prefill.cached)
    return _shown(prefill.cached)


async def list_cached_contents(request: web.Request) -> web.Response:
    """Answer with a page of what the tenant keeps."""
    asked = request.query.get("pageSize", request.query.get("page_size", str(_DEFAULT_PAGE)))
    if not asked.isdecimal() or len(asked) > 9:
        raise InvalidRequestError("pageSize: a whole number is needed", "pageSize")
    size = min(int(asked) or _DEFAULT_PAGE, _MAX_PAGE)
    after = request.query.get("pageToken", request.query.get("page_token")) or None
    tenant = record_of(request).tenant
    page, has_more = request.app[CACHED_CONTENTS].page(tenant.name, after=after, size=size)
    listed = CachedContentsReply(
        cached_contents=[_resource(cached) for cached in page],
        next_page_token=page[-1].id if has_more else UNSET,
    )
    return reply(listed)


async def show_cached_content(request: web.Request) -> web.Response:
    """Answer with one cached content; its contents are not shown again."""
    return _shown(request.app[CACHED_CONTENTS].get(record_of(request).tenant.name, _id(request)))


async def change_cached_content(request: web.Request) -> web.Response:
    """Change when one expires; nothing else can be changed."""
    caches, tenant = request.app[CACHED_CONTENTS], record_of(request).tenant
    caches.get(tenant.name, _id(request))
    expires = await read_work(request, partial(new_expiry, request))
    changed = caches.expire_at(tenant.name, _id(request), expires)
    await _run(request, await request.app[SERVICE].encode(partial(_reread, request, changed)))
    return _shown(changed)


async def delete_cached_content(request: web.Request) -> web.Response:
    """Forget one; what the engine holds for it goes as its time is up or room is needed."""
    request.app[CACHED_CONTENTS].remove(record_of(request).tenant.name, _id(request))
    return reply(Nothing())


async def _run(request: web.Request, call: Call | None) -> None:
    """Have the engine read a prompt, and wait until it has."""
    if call is None:
        return
    service, record = request.app[SERVICE], record_of(request)
    ledger = call.ledger()
    call = service.admitted(call, record.admission, ledger)
    record.ledger = ledger
    async with service.run(call, ledger) as events:
        async for _ in events:
            pass


def _prefill(service: Service, tenant: Tenant, data: bytes) -> _Prefill:
    body = read_fields(CacheBody, data, turn=service.decoding)
    if body.model is None:
        raise InvalidRequestError("model: missing", "model")
    served = service.served_as(body.model.removeprefix("models/"), tenant)
    now = service.wall_clock()
    expires = expiry_of(body, now) or now + _DEFAULT_SECONDS
    token_ids = _fixed_ids(service, served, body)
    fields = PromptFields(
        contents=body.contents,
        system_instruction=body.system_instruction,
        tools=body.tools,
        tool_config=body.tool_config,
    )
    cached = CachedContent(
        id=service.new_id(),
        model=served.name,
        display_name=body.display_name,
        fields=fields,
        token_ids=pack(token_ids),
        created=now,
        updated=now,
        expires=expires,
    )
    return _Prefill(cached, _reading(service, tenant, served, token_ids, expires - now))


def _reread(request: web.Request, cached: CachedContent) -> Call | None:
    """Return the call that has the engine keep what is cached for its new time."""
    service, tenant = request.app[SERVICE], record_of(request).tenant
    served = service.served_as(cached.model, tenant)
    token_ids = _fixed_ids(service, served, cached.fields)
    seconds = cached.expires - service.wall_clock()
    return _reading(service, tenant, served, token_ids, seconds)


def _reading(
    service: Service, tenant: Tenant, served: Served, token_ids: Sequence[int], seconds: float
) -> Call | None:
    """Return a call that reads a prompt, says nothing, and has it kept."""
    if not token_ids or seconds <= 0:
        return None
    wishes = Wishes(max_tokens=0, retain=(Retain(len(token_ids), seconds),))
    return make_call(service, tenant, served, Prompts("contents", [token_ids]), wishes)


def _fixed_ids(service: Service, served: Served, fields: PromptFields) -> Sequence[int]:
    """Return the tokens that every prompt begins with which goes on from `fields`."""
    declared = declarations_of(fields)
    check_count("contents", len(fields.contents or ()), service.config.max_messages)
    check_count("tools", len(declared), service.config.max_tools)
    messages = messages_of(fields)
    if not messages and not declared:
        raise InvalidRequestError("contents: there is nothing to cache", "contents")
    mark = Mark(len(messages) - 1 if messages else None)
    read = read_conversation(
        [*messages, _FOLLOWING],
        [template_tool(each) for each in declared],
        service=service,
        served=served,
        param="contents",
        scope=None,  # what is known of answers may be forgotten before the content is
        marks=[mark],
    )
    return read.token_ids[: read.fixed_tokens[0]]


def _id(request: web.Request) -> str:
    return request.match_info["cached_id"]


def _shown(cached: CachedContent) -> web.Response:
    return reply(_resource(cached))


def _resource(cached: CachedContent) -> CachedContentReply:
    return CachedContentReply(
        name=f"cachedContents/{cached.id}",
        model=f"models/{cached.model}",
        create_time=shown_time(cached.created),
        update_time=shown_time(cached.updated),
        expire_time=shown_time(cached.expires),
        usage_metadata=CachedUsage(total_token_count=cached.n_tokens),
        display_name=UNSET if cached.display_name is None else cached.display_name,
    )


_ONE = "/cachedContents/{cached_id}"

CACHE_ROUTES = in_dialect(
    DIALECT,
    *in_versions(
        VERSIONS,
        (
            Route(
                hdrs.METH_POST,
                "/cachedContents",
                create_cached_content,
                "Read the beginning of prompts in, and keep it for a time.",
                body=CacheBody,
                answer=CachedContentReply,
                errors=ANSWER_ERRORS,
            ),
            Route(
                hdrs.METH_GET,
                "/cachedContents",
                list_cached_contents,
                "List what is kept.",
                query=PageQuery,
                answer=CachedContentsReply,
                errors=(*READ_ERRORS, 400),
            ),
            Route(
                hdrs.METH_GET,
                _ONE,
                show_cached_content,
                "Tell about one cached content.",
                answer=CachedContentReply,
                errors=(*READ_ERRORS, 404),
            ),
            Route(
                hdrs.METH_PATCH,
                _ONE,
                change_cached_content,
                "Change when one expires.",
                body=CacheBody,
                query=MaskQuery,
                answer=CachedContentReply,
                errors=ANSWER_ERRORS,
            ),
            Route(
                hdrs.METH_DELETE,
                _ONE,
                delete_cached_content,
                "Forget one.",
                answer=Nothing,
                errors=(*READ_ERRORS, 404, 429),
            ),
        ),
    ),
    error=GoogleErrorReply,
)
