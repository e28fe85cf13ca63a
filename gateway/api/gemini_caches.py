"""/v1beta/cachedContents: beginnings of prompts that are read in and kept until they expire."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec
from aiohttp import web

from gateway.api.calls import Prompts, check_count, make_call, prompt_of
from gateway.api.exchange import read_work
from gateway.api.gemini_models import CacheBody, PromptFields, read_fields
from gateway.api.gemini_prompt import declarations_of, messages_of, template_tool
from gateway.api.tool_use import JsonObject
from gateway.api.wishes import Wishes
from gateway.cached_contents import CachedContent, CachedContents
from gateway.errors import InvalidRequestError
from gateway.http import SERVICE, defer_continue, json_response, record_of
from gateway.service import Call, Served, Service
from gateway.tenants import Tenant
from prefixcache.text import Mark
from prefixcache.types import Retain

CACHED_CONTENTS: web.AppKey[CachedContents] = web.AppKey("cached_contents", CachedContents)

VERSIONS = ("v1beta", "v1")  # of paths; clients have either

_DEFAULT_SECONDS = 3600.0
_MAX_SECONDS = 30 * 24 * 3600.0
_MAX_PAGE = 1000
_DEFAULT_PAGE = 50
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s", re.ASCII)
_EXPIRY_FIELDS = frozenset({"ttl", "expireTime", "expire_time", "expiration.ttl"})
_FOLLOWING = {"role": "user", "content": "."}  # any turn: what it shares with others is kept


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
    listed: JsonObject = {"cachedContents": [_resource(cached) for cached in page]}
    if has_more:
        listed["nextPageToken"] = page[-1].id
    return json_response(msgspec.json.encode(listed))


async def show_cached_content(request: web.Request) -> web.Response:
    """Answer with one cached content; its contents are not shown again."""
    return _shown(request.app[CACHED_CONTENTS].get(record_of(request).tenant.name, _id(request)))


async def change_cached_content(request: web.Request) -> web.Response:
    """Change when one expires; nothing else can be changed."""
    caches, tenant = request.app[CACHED_CONTENTS], record_of(request).tenant
    caches.get(tenant.name, _id(request))
    expires = await read_work(request, partial(_new_expiry, request))
    changed = caches.expire_at(tenant.name, _id(request), expires)
    await _run(request, await request.app[SERVICE].encode(partial(_reread, request, changed)))
    return _shown(changed)


async def delete_cached_content(request: web.Request) -> web.Response:
    """Forget one; what the engine holds for it goes as its time is up or room is needed."""
    request.app[CACHED_CONTENTS].remove(record_of(request).tenant.name, _id(request))
    return json_response(b"{}")


def add_cache_routes(app: web.Application) -> None:
    """Add the routes, and the memory of what tenants keep."""
    service = app[SERVICE]
    app[CACHED_CONTENTS] = CachedContents(
        max_per_tenant=service.config.max_cached_contents, now=service.wall_clock
    )
    for version in VERSIONS:
        path = f"/{version}/cachedContents"
        app.router.add_post(path, create_cached_content, expect_handler=defer_continue)
        app.router.add_get(path, list_cached_contents)
        one = f"{path}/{{cached_id}}"
        app.router.add_get(one, show_cached_content)
        app.router.add_patch(one, change_cached_content, expect_handler=defer_continue)
        app.router.add_delete(one, delete_cached_content)


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
    expires = _expiry(body, now) or now + _DEFAULT_SECONDS
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
        n_tokens=len(token_ids),
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
    service: Service, tenant: Tenant, served: Served, token_ids: list[int], seconds: float
) -> Call | None:
    """Return a call that reads a prompt, says nothing, and has it kept."""
    if not token_ids or seconds <= 0:
        return None
    wishes = Wishes(max_tokens=0, retain=(Retain(len(token_ids), seconds),))
    return make_call(service, tenant, served, Prompts("contents", [token_ids]), wishes)


def _fixed_ids(service: Service, served: Served, fields: PromptFields) -> list[int]:
    """Return the tokens that every prompt begins with which goes on from `fields`."""
    declared = declarations_of(fields)
    check_count("contents", len(fields.contents or ()), service.config.max_messages)
    check_count("tools", len(declared), service.config.max_tools)
    messages = messages_of(fields)
    if not messages and not declared:
        raise InvalidRequestError("contents: there is nothing to cache", "contents")
    mark = Mark(len(messages) - 1 if messages else None)
    with prompt_of("contents", served):
        prompt = served.encoder.marked_chat(
            [*messages, _FOLLOWING],
            [mark],
            tools=[template_tool(each) for each in declared] or None,
            order_tool_keys=service.config.order_tool_keys,
            max_characters=served.max_characters,
        )
    return prompt.token_ids[: prompt.fixed_tokens[0]]


def _new_expiry(request: web.Request, service: Service, tenant: Tenant, data: bytes) -> float:
    """Return the time that a PATCH asks for.

    Raises:
        InvalidRequestError: it asks for no time, or for anything else.
    """
    body = read_fields(CacheBody, data, turn=service.decoding)
    mask = request.query.get("updateMask", request.query.get("update_mask", ""))
    asked = {field for field in mask.split(",") if field}
    if asked - _EXPIRY_FIELDS:
        raise InvalidRequestError("updateMask: only ttl and expireTime can change", "updateMask")
    for name in ("contents", "system_instruction", "tools", "tool_config", "display_name"):
        if not asked and getattr(body, name) is not None:
            raise InvalidRequestError("only ttl and expireTime can change", name)
    expires = _expiry(body, service.wall_clock())
    if expires is None:
        raise InvalidRequestError("ttl: it or expireTime is needed", "ttl")
    return expires


def _expiry(body: CacheBody, now: float) -> float | None:
    """Return when `body` wants to expire. Raises InvalidRequestError: not in the future."""
    if body.ttl is not None and body.expire_time is not None:
        raise InvalidRequestError("ttl: leave it out beside expireTime", "ttl")
    if body.ttl is not None:
        found = _DURATION.fullmatch(body.ttl)
        if found is None:
            raise InvalidRequestError("ttl: seconds are needed, such as 300s", "ttl")
        return now + _checked(float(found[1]), "ttl")
    if body.expire_time is None:
        return None
    try:
        expires = datetime.fromisoformat(body.expire_time)
    except ValueError as error:
        message = "expireTime: a time is needed, such as 2026-12-01T12:00:00Z"
        raise InvalidRequestError(message, "expireTime") from error
    aware = expires if expires.tzinfo is not None else expires.replace(tzinfo=UTC)
    return now + _checked(aware.timestamp() - now, "expireTime")


def _checked(seconds: float, param: str) -> float:
    if not 0 < seconds <= _MAX_SECONDS:
        raise InvalidRequestError(
            f"{param}: must be in the future, and at most {_MAX_SECONDS:g} seconds from now", param
        )
    return seconds


def _id(request: web.Request) -> str:
    return request.match_info["cached_id"]


def _shown(cached: CachedContent) -> web.Response:
    return json_response(msgspec.json.encode(_resource(cached)))


def _resource(cached: CachedContent) -> JsonObject:
    shown: JsonObject = {
        "name": f"cachedContents/{cached.id}",
        "model": f"models/{cached.model}",
        "createTime": _time(cached.created),
        "updateTime": _time(cached.updated),
        "expireTime": _time(cached.expires),
        "usageMetadata": {"totalTokenCount": cached.n_tokens},
    }
    if cached.display_name is not None:
        shown["displayName"] = cached.display_name
    return shown


def _time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
