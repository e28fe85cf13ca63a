"""Sliding windows made narrow for a moment, so that few tokens show what lies beyond them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from prefixcache.engine.model import PagedModel
from prefixcache.kv import KVStore

_SETTING = "sliding_window"  # of configurations, which masks read, and of attention modules


@contextmanager
def narrowed_windows(model: PagedModel, store: KVStore, most: int) -> Iterator[KVStore]:
    """Make every window of more than `most` positions `most` wide, and yield a store that knows.

    The store yielded shares its memory with `store`, whose windows stay. Where the layers are then
    still called with other windows, all is put back at once and `store` itself is yielded.
    """
    windows = {group.window for group in store.layout.groups if group.window is not None}
    wide = {window for window in windows if window > most}
    holders = _holders(model, wide) if wide else []
    before = [getattr(holder, _SETTING) for holder in holders]
    for holder in holders:
        setattr(holder, _SETTING, most)
    try:
        narrow = _narrow(store, most)
        if wide and not _are_called_with(model, narrow):
            _put_back(holders, before)
            narrow = store
        yield narrow
    finally:
        _put_back(holders, before)


def _holders(model: PagedModel, wide: set[int]) -> list[Any]:
    """Return the configurations and modules that say how wide one of these windows is."""
    found: dict[int, Any] = {}
    for module in model.model.modules():
        for holder in (module, getattr(module, "config", None)):
            if getattr(holder, _SETTING, None) in wide:
                found[id(holder)] = holder
    text = model.model.config.get_text_config()
    if getattr(text, _SETTING, None) in wide:
        found[id(text)] = text
    return list(found.values())


def _put_back(holders: list[Any], before: list[int]) -> None:
    for holder, window in zip(holders, before, strict=True):
        setattr(holder, _SETTING, window)


def _narrow(store: KVStore, most: int) -> KVStore:
    groups = tuple(
        group if group.window is None else replace(group, window=min(group.window, most))
        for group in store.layout.groups
    )
    narrow = copy.copy(store)
    narrow.layout = replace(store.layout, groups=groups)
    return narrow


def _are_called_with(model: PagedModel, store: KVStore) -> bool:
    shapes = model.layer_shapes()
    return all(
        shapes[layer].window == group.window
        for group in store.layout.groups
        for layer in group.layers
    )
