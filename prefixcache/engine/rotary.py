"""How long a sequence may be before its length changes the angles of its earlier positions.

Cached keys have been turned by their angles, and the rows of a step, whosever they are, get theirs
from one table. So angles may depend on the position alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def longest_steady_tokens(config: Any) -> int | None:
    """Return the length up to which every position has one angle; None: there is no such limit.

    `longrope` takes other frequencies for all positions once a sequence is longer than the model
    was trained with; `dynamic` once it is longer than `max_position_embeddings`, for each length
    others. `linear`, `yarn`, `llama3` and `proportional` are fixed when the model is loaded.

    Args:
        config: a text model's configuration, as transformers has it.
    """
    own = getattr(config, "max_position_embeddings", None)
    limits = [
        parameters.get("original_max_position_embeddings", own)
        if parameters["rope_type"] == "longrope"
        else own
        for parameters in _ropes(getattr(config, "rope_parameters", None))
        if parameters["rope_type"] in ("longrope", "dynamic")
    ]
    return min((int(limit) for limit in limits if limit is not None), default=None)


def _ropes(parameters: object) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of each rope: one for all layers, or one for each type of layer."""
    if isinstance(parameters, Mapping):
        if "rope_type" in parameters:
            yield parameters
        else:
            for each in parameters.values():
                yield from _ropes(each)
