"""Commands that are loaded when they are called, so that `serve` starts without torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click


class LazyGroup(click.Group):
    """A group that knows some commands by where they are: name -> "module:attribute"."""

    def __init__(self, *args: object, later: Mapping[str, str], **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._later = dict(later)

    def list_commands(self, context: click.Context) -> list[str]:
        """Return all names, loaded or not."""
        return sorted([*super().list_commands(context), *self._later])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a command, and load its module where that is still to be done."""
        place = self._later.get(name)
        if place is None:
            return super().get_command(context, name)
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
