"""The operator's routes that look into the cache and change what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from gateway.api.admin import DIALECT
from gateway.api.bodies import decode_body
from gateway.api.named_prompts import Version
from gateway.api.queries import decode_query
from gateway.errors import ChangeRefusedError, InvalidRequestError, UnknownTenantError
from gateway.http import SERVICE, read_body, reply
from gateway.routes import BODY_ERRORS, READ_ERRORS, Route, in_dialect
from gateway.service import Service
from prefixcache.control import Inspection, Invalidation, InvalidationKind
from prefixcache.types import EngineStats, ModelInfo

_MOST_NODES = 100_000
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Kind = Literal["everything", "model", "adapter", "tenant", "prompt"]


class ServerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start and gauges of now, without waiting for the engine."""

    model: ModelInfo
    is_ready: bool
    queue: dict[str, int]  # answers that wait to be begun, by tenant; those without are left out
    engine: EngineStats  # the pool in blocks, the queue and the misses by reason


class TreeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the trees is shown, and whose."""

    max_nodes: Annotated[int, Meta(ge=0, le=_MOST_NODES)] = 1000
    tenant: str | None = None  # all


class InvalidateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is not to be matched any more."""

    kind: Kind
    name: Name | None = None  # of an adapter, a tenant or a prompt; a model's may be left out
    version: Version | None = None  # of a prompt: the current one, if nothing is said


class Invalidated(msgspec.Struct, frozen=True, kw_only=True):
    """What is not matched any more, from before this answer."""

    kind: Kind
    name: str | None  # null: all there is
    versions: tuple[int, ...] = ()  # of a prompt, which are retired


class AdapterBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An adapter to be loaded, or loaded again."""

    name: Name
    folder: Annotated[str, Meta(min_length=1, max_length=4096)]  # within `adapter_folders`


class ReloadBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights are read again."""

    drains: bool = True  # requests that run come to their end first


async def show_stats(request: web.Request) -> web.Response:
    """Answer with the engine's counters, the pool, the queue and the misses."""
    service = request.app[SERVICE]
    meters = [service.tenancy.meter(each) for each in service.tenancy.roster.tenants.values()]
    names = service.tenancy.roster.tenants
    waiting = dict(zip(names, (meter.n_waiting for meter in meters), strict=True))
    stats = ServerStats(
        model=service.served().info,
        is_ready=service.is_ready,
        queue={name: n_waiting for name, n_waiting in waiting.items() if n_waiting},
        engine=service.stats(),
    )
    return reply(stats)


async def show_tree(request: web.Request) -> web.Response:
    """Answer with the trees as they are now; they never have tokens, texts or salts."""
    query = decode_query(request, TreeQuery)
    control = request.app[SERVICE].control()
    found = await control.inspect(max_nodes=query.max_nodes, tenant=query.tenant)
    return reply(found)


async def invalidate(request: web.Request) -> web.Response:
    """Make what is named unmatchable, and say what that was; requests that run go on."""
    service = request.app[SERVICE]
    body = decode_body(_INVALIDATE, await read_body(request), turn=service.decoding)
    _check_fields(body)
    if body.kind == "prompt":
        assert body.name is not None  # it was checked
        retired = await service.prompts.remove(body.name, body.version)
        versions = tuple(prompt.version for prompt in retired)
        done = Invalidated(kind="prompt", name=body.name, versions=versions)
    else:
        name = await _checked_name(service, body.kind, body.name)
        kind = InvalidationKind(body.kind)
        engine_name = None if body.kind in ("everything", "model") else name
        await service.control().invalidate(Invalidation(kind=kind, name=engine_name))
        done = Invalidated(kind=body.kind, name=name)
    return reply(done)


async def load_adapter(request: web.Request) -> web.Response:
    """Load an adapter, or load it again; answer with the model as it is served from now on."""
    service = request.app[SERVICE]
    body = decode_body(_ADAPTER, await read_body(request), turn=service.decoding)
    backend, served = service.reloadable(), service.served()
    if body.name == served.names[0]:
        raise ChangeRefusedError(f"name: the model itself is called {body.name!r}")
    folder = _allowed_folder(body.folder, service.config.adapter_folders)
    info = await backend.load_adapter(body.name, str(folder))
    service.use_info(info)
    return reply(info)


async def unload_adapter(request: web.Request) -> web.Response:
    """Take an adapter away; its requests go on to their ends."""
    service = request.app[SERVICE]
    info = await service.reloadable().unload_adapter(request.match_info["name"])
    service.use_info(info)
    return reply(info)


async def reload_model(request: web.Request) -> web.Response:
    """Read the model's weights again; answer once they serve. Nothing cached is matched then."""
    service = request.app[SERVICE]
    data = await read_body(request) or b"{}"
    body = decode_body(_RELOAD, data, turn=service.decoding)
    info = await service.reloadable().reload(drains=body.drains)
    service.use_info(info)
    return reply(info)


def _check_fields(body: InvalidateBody) -> None:
    if body.kind in ("adapter", "tenant", "prompt") and body.name is None:
        raise InvalidRequestError(f"name: say which {body.kind}", "name")
    if body.kind == "everything" and body.name is not None:
        raise InvalidRequestError("name: everything has no name; leave it out", "name")
    if body.kind != "prompt" and body.version is not None:
        raise InvalidRequestError("version: only prompts have versions", "version")


async def _checked_name(service: Service, kind: Kind, name: str | None) -> str | None:
    """Return whose cache is meant.

    Raises:
        ModelNotFoundError, UnknownTenantError: there is no such thing here.
    """
    if kind == "tenant" and name is not None and name not in service.tenancy.roster.tenants:
        seen = await service.control().inspect(max_nodes=0, tenant=name)
        if not any(each.requests_total for each in seen.tenants):
            raise UnknownTenantError(name)
    if kind == "adapter" and name is not None:
        service.served().called(name)
    if kind == "model":
        model = service.served().names[0]
        served = service.served().called(name or model)
        if served.adapter is not None:
            raise InvalidRequestError(f"name: {name!r} is an adapter; the kind is adapter", "name")
        return model
    return name


def _allowed_folder(folder: str, allowed: tuple[str, ...]) -> Path:
    """Return a folder without links. Raises ChangeRefusedError: it is not within `allowed`."""
    if not allowed:
        reason = "no adapters can be loaded by request; set adapter_folders under [server]"
        raise ChangeRefusedError(reason)
    try:
        found = Path(folder).resolve()
        roots = [Path(each).resolve() for each in allowed]
    except (OSError, ValueError, RuntimeError) as error:
        raise ChangeRefusedError(f"folder: it cannot be looked at: {error}") from error
    if not any(found.is_relative_to(root) for root in roots):
        raise ChangeRefusedError("folder: it is not within adapter_folders (the setting)")
    return found


_INVALIDATE = msgspec.json.Decoder(InvalidateBody)
_ADAPTER = msgspec.json.Decoder(AdapterBody)
_RELOAD = msgspec.json.Decoder(ReloadBody)
_CHANGE_ERRORS = (*BODY_ERRORS, 404, 501, 503)

STEERING_ROUTES = in_dialect(
    DIALECT,
    Route(
        hdrs.METH_GET,
        "/admin/stats",
        show_stats,
        "Show the engine's counters, its pool, its queue and why prompts missed.",
        answer=ServerStats,
        errors=(*READ_ERRORS, 503),
    ),
    Route(
        hdrs.METH_GET,
        "/admin/tree",
        show_tree,
        "Show the trees of cached prefixes, without their tokens.",
        query=TreeQuery,
        answer=Inspection,
        errors=(*READ_ERRORS, 400, 501, 503),
    ),
    Route(
        hdrs.METH_POST,
        "/admin/invalidate",
        invalidate,
        "Make cached prefixes unmatchable at once.",
        body=InvalidateBody,
        answer=Invalidated,
        errors=_CHANGE_ERRORS,
    ),
    Route(
        hdrs.METH_POST,
        "/admin/adapters",
        load_adapter,
        "Load an adapter, or load it again.",
        body=AdapterBody,
        answer=ModelInfo,
        errors=_CHANGE_ERRORS,
    ),
    Route(
        hdrs.METH_DELETE,
        "/admin/adapters/{name}",
        unload_adapter,
        "Take an adapter away.",
        answer=ModelInfo,
        errors=(*READ_ERRORS, 400, 501, 503),
    ),
    Route(
        hdrs.METH_POST,
        "/admin/reload-model",
        reload_model,
        "Read the model's weights again.",
        body=ReloadBody,
        answer=ModelInfo,
        errors=_CHANGE_ERRORS,
    ),
)
