"""Reading the small text files of a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from prefixcache.errors import ModelError

SPECIAL_TOKENS_MAP = "special_tokens_map.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


def read_settings(folder: Path) -> dict[str, object]:
    """Return the tokenizer's settings in `folder`; where two files differ, tokenizer_config wins.

    A folder without such files has none.

    Raises:
        ModelError: a file is there and is not a JSON object.
    """
    return _read_object(folder / SPECIAL_TOKENS_MAP) | _read_object(folder / TOKENIZER_CONFIG)


def special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the named special tokens, such as `bos_token`, with their text."""
    named = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text
    return named


def _read_object(file: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
