"""A copy of the index with one fault planted in it, and its own tests run on that copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("prefixcache/index", "tests/index")
SECONDS = 300  # longer than any run; a fault that hangs the index is a failed test here


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A slip that somebody could make, and the tests of tests/index that tell of it."""

    name: str
    module: str  # of prefixcache.index, dotted
    old: str  # stands there exactly once
    new: str
    why: str  # what makes it plausible
    tests: tuple[str, ...]  # as pytest names them in tests/index; with the fault, one fails


def copy_index(target: Path) -> None:
    """Copy the index, what it imports and its tests to `target`."""
    for part in PARTS:
        shutil.copytree(ROOT / part, target / part)
    shared = (ROOT / "tests" / name for name in ("__init__.py", "conftest.py"))
    for source in [*ROOT.glob("prefixcache/*.py"), *shared]:
        shutil.copy2(source, target / source.relative_to(ROOT))
    (target / "pytest.ini").write_text("[pytest]\nmarkers = slow\n", encoding="utf-8")


def plant(fault: Fault, target: Path) -> None:
    """Change the copy of the index in `target`."""
    path = target.joinpath("prefixcache/index", *fault.module.split(".")).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    found = text.count(fault.old)
    assert found == 1, f"{fault.name}: its old text is {found} times in {fault.module}, not once"
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()  # it may look as new as the text


def run_tests(
    target: Path, tests: Sequence[str], *options: str
) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy in `target`, named from tests/index on, up to the first failure."""
    names = [f"tests/index/{test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-m", "not slow", *options]
    environment = {
        "PREFIXCACHE_EXAMPLES": "20",  # of state machines: a fault is no rare event
        **os.environ,
        "PYTHONPATH": str(target),
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins take longer than the tests
    }
    return subprocess.run(
        [*command, *names],
        cwd=target,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
