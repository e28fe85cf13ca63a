"""From what a user names as the model to what transformers and our text side can load."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from transformers import AutoTokenizer

from prefixcache.engine.convert import convert_gguf
from prefixcache.engine.default_model import DEFAULT_MODEL, fetch_default_model
from prefixcache.engine.model_cache import Report, cache_folder, made_once
from prefixcache.errors import ConfigError, ModelError
from prefixcache.text.tokenizer import TOKENIZER_FILE, Tokenizer

_HUB_NAME = re.compile(r"(?P<name>[\w-][\w.-]*(/[\w-][\w.-]*)?)(@(?P<revision>[\w./-]+))?")
_TOKENIZER_FILES = [
    "config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates/*",
    "vocab*",
    "merges.txt",
    "*.model",
]


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub, all of it at one commit."""

    name: str
    commit: str
    folder: Path  # a snapshot of its configuration and tokenizer files

    def __str__(self) -> str:
        return f"{self.name} at {self.commit}"


def hub_name(model: str) -> str:
    """Return `model`, a name on the hub, without the revision that it may have."""
    return model.partition("@")[0]


def resolve_model(model: str | None, *, env: Mapping[str, str], report: Report) -> Path | HubModel:
    """Return what transformers loads `model` from: a folder, or a commit on the hub.

    None is the default chat model, fetched and converted once. A folder is itself. A .gguf file
    is converted once. Anything else is a name on the hub: NAME is its newest commit,
    NAME@REVISION that of a commit, tag or branch. Its configuration and tokenizer are downloaded.

    A converted file is known again by its path, size and time of change, not by its contents:
    a start takes seconds, and hashing a large file would take longer than that.

    Raises:
        ConfigError: the file or folder is missing or no model.
        ModelError: the default model cannot be fetched, a file cannot be converted, or the hub
            cannot be reached or has no such model or revision.
    """
    if model is None:
        return _default(env, report)
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked_folder(path)
    if path.suffix == ".gguf":
        return _converted(path, env, report)
    on_hub = _HUB_NAME.fullmatch(model)
    if path.exists() or on_hub is None:
        found = "is a file" if path.exists() else "does not exist"
        raise ConfigError("model", model, f"{found}; name a folder, a .gguf file or a hub name")
    return _downloaded(on_hub["name"], on_hub["revision"])


def serving_folder(source: Path | HubModel, *, env: Mapping[str, str], report: Report) -> Path:
    """Return a folder with the tokenizer.json and chat template of `source`.

    Where there is only a tokenizer that runs in Python, transformers turns it into a fast one,
    once; it is kept in the cache folder. Code that comes with a model is never run.

    Args:
        source: what `resolve_model` returned.
        env: says where the cache folder is.
        report: takes a line for people.

    Raises:
        ModelError: there is no tokenizer that can be read.
    """
    folder = source.folder if isinstance(source, HubModel) else source
    if (folder / TOKENIZER_FILE).exists():
        return folder

    def make(part: Path) -> None:
        report(f"making a fast tokenizer for {source}, once")
        _write_fast_tokenizer(folder, part)

    kept = f"tokenizer-{folder.name}-{_fingerprint(folder)}"
    return made_once(cache_folder(env) / kept, make, report=report)


def _default(env: Mapping[str, str], report: Report) -> Path:
    cache = cache_folder(env)

    def make(part: Path) -> None:
        gguf_file = fetch_default_model(cache, env=env, report=report)
        convert_gguf(gguf_file, part, report=report)
        shutil.rmtree(gguf_file.parent)  # not needed again

    return made_once(cache / DEFAULT_MODEL, make, report=report)


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").exists():
        raise ConfigError("model", str(folder), "the folder holds no model: no config.json")
    return folder


def _converted(gguf_file: Path, env: Mapping[str, str], report: Report) -> Path:
    if not gguf_file.is_file():
        raise ConfigError("model", str(gguf_file), "does not exist")
    kept = f"{gguf_file.stem}-{_fingerprint(gguf_file)}"
    return made_once(
        cache_folder(env) / kept,
        lambda part: convert_gguf(gguf_file, part, report=report),
        report=report,
    )


def _fingerprint(path: Path) -> str:
    """Return 16 hexadecimal digits that change with the path, its size and its time of change."""
    state = path.stat()
    known = f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _downloaded(name: str, revision: str | None) -> HubModel:
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_TOKENIZER_FILES))
    except (OSError, ValueError) as error:
        asked = name if revision is None else f"{name}@{revision}"
        raise ModelError(f"{asked} cannot be had from the hub: {error}") from error
    return HubModel(name, folder.name, folder)  # the hub's cache names snapshots by commit


def _write_fast_tokenizer(folder: Path, part: Path) -> None:
    try:
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False).save_pretrained(part)
    except (ImportError, OSError, ValueError) as error:
        raise ModelError(f"{folder} has no tokenizer that can be read: {error}") from error
    made = Tokenizer.load(part)
    if made.vocab_size <= len(made.added_tokens):  # made of nothing: no vocabulary was found
        raise ModelError(f"{folder} has no tokenizer: neither {TOKENIZER_FILE} nor a vocabulary")
