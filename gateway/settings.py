"""Where settings come from: flags, before the environment, before the file, before defaults."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from gateway.config import Settings, read_tables, settings_of
from prefixcache.errors import ConfigError

PREFIX = "PREFIXCACHE_"
_SEPARATOR = "__"

Tables = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sources:
    """What settings are read from, at the start and again at a reload."""

    file: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # by table

    def read(self) -> Settings:
        """Return the settings as the sources have them now.

        Raises:
            ConfigError: the file or a variable cannot be read, or a setting is unknown, of the
                wrong type or out of range.
        """
        tables = {} if self.file is None else read_tables(self.file)
        for path, value in from_environment(self.env):
            _put(tables, path, value)
        for table, flags in self.flags.items():
            for name, value in flags.items():
                _lay_over(tables, (table, name), value)
        return settings_of(tables, "the command line" if self.file is None else str(self.file))


def from_environment(env: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield each setting that a variable gives, by its path: PREFIXCACHE_SERVER__PORT=9 and such.

    Raises:
        ConfigError: a variable with our prefix names no setting, or its text is no such value.
    """
    for variable, text in sorted(env.items()):
        if not variable.startswith(PREFIX):
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split(_SEPARATOR))
        if len(path) > 1:
            yield path, _value(variable, text, _type_at(variable, path))
        elif (table := path[0].split("_")[0]) in Settings.__struct_fields__:
            reason = f"is no setting; a table and its setting are joined by {_SEPARATOR!r}"
            raise ConfigError(variable, "...", f"{reason}, as in {_example(table)}")


def variable_of(*path: str) -> str:
    """Return the variable that gives the setting at `path`."""
    return PREFIX + _SEPARATOR.join(path).upper()


def _example(table: str) -> str:
    return {
        "tenants": variable_of("tenants", "acme", "requests_per_minute"),
        "admin": variable_of("admin", "key_hashes"),
        "engine": variable_of("engine", "threads"),
    }.get(table, variable_of("server", "port"))


def _type_at(variable: str, path: tuple[str, ...]) -> Any:
    """Return the type of the setting at `path`. Raises ConfigError where there is none."""
    found: Any = Settings
    for name in path:
        if isinstance(found, type) and issubclass(found, msgspec.Struct):
            found = get_type_hints(found).get(name)
        else:
            found = get_args(found)[1] if get_origin(found) is dict and name else None
        if found is None:
            raise ConfigError(variable, "...", f"there is no setting {'.'.join(path)}")
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        raise ConfigError(variable, "...", f"{'.'.join(path)} is a table: name a setting of it")
    return found


def _value(variable: str, text: str, wanted: Any) -> object:
    """Return `text` as a value of the type `wanted`; lists and tables are written as JSON."""
    try:
        if _is_collection(wanted):
            return msgspec.to_builtins(msgspec.json.decode(text.encode(), type=wanted))
        return msgspec.convert(text, wanted, strict=False)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(variable, "...", str(error)) from error  # its value may be a secret


def _is_collection(wanted: Any) -> bool:
    kinds = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    return any(get_origin(kind) in (dict, list, tuple) for kind in kinds)


def _put(tables: Tables, path: tuple[str, ...], value: object) -> None:
    """Set the value at `path`, replacing what is there."""
    *parents, name = path
    for parent in parents:
        inner = tables.setdefault(parent, {})
        if not isinstance(inner, dict):
            return  # the file has no table there, and is refused for it
        tables = inner
    tables[name] = value


def _lay_over(tables: Tables, path: tuple[str, str], value: object) -> None:
    """Set the value at `path`; where both are tables, entry by entry."""
    table = tables.get(path[0])
    old = table.get(path[1]) if isinstance(table, dict) else None
    if isinstance(old, dict) and isinstance(value, Mapping):
        value = {**old, **value}
    _put(tables, path, value)
