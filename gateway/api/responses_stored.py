"""The routes for responses that are kept, and for counting what one would read."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from gateway.api.queries import decode_query
from gateway.api.responses import KEPT_RESPONSES, read_response_body
from gateway.api.responses_kept import KeptResponse
from gateway.api.responses_models import InputItem
from gateway.api.responses_replies import Deleted, InputTokens, ItemList
from gateway.errors import InvalidRequestError, UnsupportedFieldError
from gateway.http import SERVICE, json_response, read_body, record_of, reply


class ShowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked of a kept response: it is not streamed again."""

    stream: bool | None = None


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which items are listed."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None  # the id of the item that the page follows


async def show_response(request: web.Request) -> web.Response:
    """Answer with a kept response."""
    if decode_query(request, ShowQuery).stream:
        raise UnsupportedFieldError("stream")
    return json_response(_kept(request).reply)


async def delete_response(request: web.Request) -> web.Response:
    """Forget a kept response; what went on from it stays whole."""
    response_id = request.match_info["response_id"]
    request.app[KEPT_RESPONSES].forget(record_of(request).tenant.name, response_id)
    return reply(Deleted(id=response_id))


async def list_input_items(request: web.Request) -> web.Response:
    """Answer with a page of what the model was given, earlier turns included."""
    page = decode_query(request, PageQuery)
    items = list(_kept(request).context)
    return reply(_page(items, page))


async def count_input_tokens(request: web.Request) -> web.Response:
    """Answer with how many tokens a body's prompt has; nothing is generated or kept."""
    service = request.app[SERVICE]
    service.served()  # before the body is read
    data = await read_body(request)
    tenant = record_of(request).tenant
    read = partial(read_response_body, request.app[KEPT_RESPONSES], service, tenant, data)
    found = await service.encode(read)
    counted = InputTokens(input_tokens=found.prompt.n_tokens)
    return reply(counted)


def _kept(request: web.Request) -> KeptResponse:
    tenant = record_of(request).tenant.name
    return request.app[KEPT_RESPONSES].shown(tenant, request.match_info["response_id"])


def _page(items: list[InputItem], page: PageQuery) -> ItemList:
    if page.order == "desc":
        items = items[::-1]
    if page.after is not None:
        places = [index for index, item in enumerate(items) if item.id == page.after]
        if not places:
            raise InvalidRequestError("after: this response has no such item", "after")
        items = items[places[0] + 1 :]
    shown = items[: page.limit]
    return ItemList(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(items) > len(shown),
    )
