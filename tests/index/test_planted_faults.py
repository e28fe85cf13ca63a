"""The tests of the index tell of faults: each of these, planted in a copy, makes one fail."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.index.faults import FAULTS
from tests.index.planting import Fault, copy_index, plant, run_tests

PASSED, FAILED = 0, 1  # pytest's exit codes; anything else is no verdict

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    copy_index(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Done]]]:
    """The runs of the faults that were chosen, by name: one for each processor at a time."""
    chosen = [item for item in request.session.items if isinstance(item, pytest.Function)]
    faults = [
        fault
        for item in chosen
        if item.originalname == test_a_planted_fault_is_caught.__name__
        and isinstance(fault := item.callspec.params["fault"], Fault)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {fault.name: pool.submit(run_planted, fault) for fault in faults}
        pool.shutdown(cancel_futures=True)


def run_planted(fault: Fault) -> Done:
    with TemporaryDirectory() as folder:
        copy_index(Path(folder))
        plant(fault, Path(folder))
        return run_tests(Path(folder), fault.tests)


def assert_caught(done: Done, fault: Fault) -> None:
    """Fail unless a test failed, rather than a collection, an import or a fixture."""
    told = "FAILED tests/index" in done.stdout and "ERROR tests/index" not in done.stdout
    assert done.returncode == FAILED and told, (  # noqa: PT018
        f"{fault.module}: {fault.why}\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_a_planted_fault_is_caught(fault: Fault, runs: dict[str, Future[Done]]) -> None:
    """The tests that it names do not pass."""
    assert_caught(runs[fault.name].result(), fault)


def test_without_a_fault_the_same_tests_pass(copy: Path) -> None:
    """So what makes them fail is the fault."""
    tests = sorted({test for fault in FAULTS for test in fault.tests})
    done = run_tests(copy, tests)
    assert done.returncode == PASSED, done.stdout[-3000:]


def test_faults_are_told_apart() -> None:
    """Each has a name and a change of its own."""
    for kind in ("name", "change"):
        counts = Counter(
            fault.name if kind == "name" else (fault.module, fault.old, fault.new)
            for fault in FAULTS
        )
        assert counts.most_common(1)[0][1] == 1, counts.most_common(1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_the_whole_suite_catches_a_planted_fault(fault: Fault, copy: Path) -> None:
    """Whoever does not know which tests to run finds it too."""
    plant(fault, copy)
    done = run_tests(copy, [""], f"--ignore=tests/index/{Path(__file__).name}")
    assert_caught(done, fault)
