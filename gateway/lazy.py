"""Commands that are loaded when they are called, so that `serve` starts without torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

import click


class Later(NamedTuple):
    """A command that is not loaded yet."""

    place: str  # "module:attribute"
    summary: str  # what a list of commands says of it: its own first sentence, or shorter


class LazyGroup(click.Group):
    """A group that knows some commands by where they are, and lists them without loading them."""

    def __init__(self, *args: object, later: Mapping[str, Later], **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._later = dict(later)

    def list_commands(self, context: click.Context) -> list[str]:
        """Return all names, loaded or not."""
        return sorted([*super().list_commands(context), *self._later])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a command, and load its module where that is still to be done."""
        later = self._later.get(name)
        if later is None:
            return super().get_command(context, name)
        module, _, attribute = later.place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what there is, each with a sentence."""
        told = {name: later.summary for name, later in self._later.items()}
        told |= {name: command.get_short_help_str() for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(told.items()))
