"""The models as clients of the Anthropic dialect list them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from aiohttp import web

from gateway.api.served_models import named_model, served_for
from gateway.http import reply
from gateway.served import Served


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a model."""

    type: str = "model"
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int

    @classmethod
    def of(cls, served: Served) -> ModelCard:
        """Return the card of the served model, or of an adapter."""
        return cls(
            id=served.name,
            display_name=served.name,
            created_at=datetime.fromtimestamp(served.since, UTC).isoformat().replace("+00:00", "Z"),
            max_input_tokens=served.info.max_model_tokens,
            max_tokens=served.info.max_model_tokens,
        )


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """All models on one page."""

    data: list[ModelCard]
    has_more: bool = False
    first_id: str | None
    last_id: str | None


async def list_models(request: web.Request) -> web.Response:
    """Answer with the list of models that the tenant may ask."""
    cards = [ModelCard.of(served) for served in served_for(request)]
    first_id, last_id = (cards[0].id, cards[-1].id) if cards else (None, None)
    page = ModelPage(data=cards, first_id=first_id, last_id=last_id)
    return reply(page)


async def show_model(request: web.Request) -> web.Response:
    """Answer with one model or adapter, if it is served."""
    return reply(ModelCard.of(named_model(request)))
