"""Mutation testing: how many small wrong changes do the tests notice?

``python benchmarks/mutations.py [--count 300] [--seed 0] [--only PATH] [--jobs 2] [TEST_FILE ...]`` first runs the
tests once and notes which of them run which line of ``model/`` (or of the folder or file that ``--only`` names, such
as ``simulator/closed_form``), and for how long. Then it changes one operator, comparison, number, call or condition at
a time, drawn with a fixed seed from all of them, and runs the tests of the changed line, quick files first, until one
fails. Prints the share that some test noticed, and each change that none did. A mutant lives in a process of its own;
no file is changed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.abc
import importlib.machinery
import math
import os
import pickle
import resource
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

from mutants import ROOT, Caches, Mutant, drawn, functions, importers, mutant, put_in

#: Tests that run the model only in other processes, or not at all, or for long.
NOT_THESE = (
    "test_docs.py", "test_fuzz.py", "test_mutants.py", "test_packaging.py", "test_regenerate.py",
    "test_reports_browser.py", "test_sweep.py", "test_sweep_command.py", "test_sweep_files.py", "test_sweep_workers.py",
)  # fmt: skip
#: Other processes do the work of these, and know no mutation.
ELSEWHERE = "not dask and not worker"
#: A test that takes longer than this notices nothing here [s].
LONGEST_S = 8.0
#: How long the tests of one mutant may take together, where a function is changed, and where all is imported anew [s].
TOGETHER_S, ANEW_S = 60.0, 25.0
#: What a process may compute beyond that: a mutant that needs more hangs, which somebody notices [s].
HANGS_S = 150.0
NOTICED, LIVED, BROKEN = 1, 0, 9


@dataclass
class Known:
    """What a run without a mutation shows: seconds of each test, and the tests of each line of what is changed."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[tuple[str, int], set[str]] = field(default_factory=functools.partial(defaultdict, set))
    failing: list[str] = field(default_factory=list)


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module as a mutant."""

    def __init__(self, changed: Mutant) -> None:
        self.changed = changed

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Claims the module."""
        if name != self.changed.module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.changed.file))

    def exec_module(self, module: ModuleType) -> None:
        """Runs the mutant's code in the module."""
        module.__file__ = str(self.changed.file)
        exec(self.changed.code, module.__dict__)


class Runner:
    """Collects the tests once, and runs some of them in a new process for every mutant."""

    def __init__(self, mutants: list[Mutant], asked: argparse.Namespace) -> None:
        self.mutants, self.asked = mutants, asked
        self.room = ROOT / Path(asked.only).parts[0]
        self.failed = False
        self.lived: list[Mutant] = []
        self.ran = 0
        self.known = Known()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Notes a failure."""
        self.failed |= report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        """Takes the place of pytest's own loop."""
        self.items = {item.nodeid: item for item in session.items}
        self.known = self._base()
        self.functions, self.caches = functions(), Caches()
        running: dict[int, Mutant] = {}
        end = time.monotonic() + 60.0 * self.asked.minutes
        for one in self.mutants:
            if time.monotonic() > end:
                break
            running[self._start(one)] = one
            if len(running) >= self.asked.jobs:
                self._wait(running)
        while running:
            self._wait(running)
        return True

    def _base(self) -> Known:
        """What the tests do without a mutation; those that an earlier run knows, as its file says."""
        store = Path(self.asked.map or tempfile.mkstemp()[1])
        known: Known = pickle.loads(store.read_bytes()) if store.is_file() and store.stat().st_size else Known()
        child = os.fork()
        if child == 0:
            quiet()
            self._watch(known)
            store.write_bytes(pickle.dumps(known))
            os._exit(0)
        os.waitpid(child, 0)
        known = pickle.loads(store.read_bytes())
        if self.asked.map is None:
            store.unlink()
        return known

    def _watch(self, known: Known) -> None:
        import coverage

        items = [item for item in self.items.values() if item.nodeid not in known.seconds]
        watch = coverage.Coverage(data_file=None, config_file=False, source=[str(self.room)])
        watch.start()
        caches = Caches()
        for number, (item, after) in enumerate(zip_longest(items, items[1:])):
            caches.clear()  # else of what several tests ask for only the first would be seen to run it
            watch.switch_context(str(number))
            begin, self.failed = time.process_time(), False
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            known.seconds[item.nodeid] = time.process_time() - begin
            if self.failed:
                known.failing.append(item.nodeid)
        watch.stop()
        data = watch.get_data()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                known.tests[file, line] |= {items[int(c)].nodeid for c in contexts if c}

    def _start(self, one: Mutant) -> int:
        """A process with the mutant, which ends with whether a test failed."""
        chosen = self._chosen(one)
        seen = (str(one.file), one.line) in self.known.tests  # else an import runs it, if anything does
        place = self.functions.get((str(one.file), one.owner)) if seen else None
        if not place and one.module in sys.modules:
            return self._anew(one, chosen)
        child = os.fork()
        if child:
            return child
        quiet()
        limit(TOGETHER_S + HANGS_S)
        end = BROKEN
        try:
            if place:
                put_in(one, place, self.caches)
            else:
                sys.meta_path.insert(0, Loader(one))
            end = NOTICED if self._any_fails(chosen) else LIVED
        finally:
            os._exit(end)

    def _any_fails(self, chosen: list[str]) -> bool:
        items = [self.items[name] for name in chosen]
        self.failed = False
        for item, after in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                return True
        return False

    def _anew(self, one: Mutant, chosen: list[str]) -> int:
        """The same for what an import runs: a process that imports everything again."""
        whole: dict[str, float] = defaultdict(float)
        for name, seconds in self.known.seconds.items():
            whole[name.partition("::")[0]] += seconds
        files = list(dict.fromkeys(name.partition("::")[0] for name in chosen))
        few = [file for file, spent in zip(files, accumulate(whole[f] for f in files), strict=True) if spent < ANEW_S]
        child = os.fork()
        if child == 0:
            options = ["--one", f"{one.file.relative_to(ROOT)}:{one.number}", *(few or files[:1])]
            os.execv(sys.executable, [sys.executable, __file__, *options])
        return child

    def _chosen(self, one: Mutant) -> list[str]:
        """Tests of the changed line, by files; of what an import runs those of the module, or of what imports it.

        Files of the module's name come first, then those of the modules that import it, then quick ones.
        """
        lines = self.known.tests
        near = lines.get((str(one.file), one.line), set()) if one.owner else set()
        users = set() if one.owner else importers(one)
        near = self._sharing(near) or self._that_run({one.file}) or self._that_run(users)
        seconds = self.known.seconds
        usable = [name for name in self.items if name in near and seconds.get(name, 0.0) <= LONGEST_S]
        usable = [name for name in usable if name not in self.known.failing]
        by_file: dict[str, list[str]] = defaultdict(list)
        for name in usable:
            by_file[name.partition("::")[0]].append(name)
        mean = {file: sum(map(seconds.__getitem__, names)) / len(names) for file, names in by_file.items()}
        chosen: list[str] = []
        spent, most = 0.0, TOGETHER_S if one.owner else ANEW_S
        first = [f"test_{one.file.stem}"], [f"test_{file.stem}" for file in users]
        for file in sorted(by_file, key=lambda file: (*(Path(file).stem not in some for some in first), mean[file])):
            for name in by_file[file]:
                if spent + seconds[name] <= most:
                    chosen.append(name)
                    spent += seconds[name]
        return chosen

    def _sharing(self, names: set[str]) -> set[str]:
        """These tests, and those that take what a fixture made once for a file: only the first is seen to run it."""
        made = {once for name in names & self.items.keys() for once in made_once(self.items[name])}
        return names | {name for name, item in self.items.items() if made & made_once(item)}

    def _that_run(self, files: set[Path]) -> set[str]:
        """Tests that run a line of one of the files."""
        names = {str(file) for file in files}
        return set().union(*(tests for (file, _), tests in self.known.tests.items() if file in names))

    def _wait(self, running: dict[int, Mutant]) -> None:
        child, status = os.wait()
        one = running.pop(child)
        self.ran += 1
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == BROKEN:
            raise RuntimeError(f"{one.file.name}:{one.line} could not be put in")
        if status == LIVED:
            self.lived.append(one)
            print(f"unnoticed: {one.file.relative_to(ROOT)}:{one.line}: {one.change}", flush=True)
        if self.ran % 10 == 0:
            said = f"{self.ran} of {len(self.mutants)}, {self.ran - len(self.lived)} noticed"
            print(said, file=sys.stderr, flush=True)


def made_once(item: Any) -> set[Any]:
    """Fixtures of a test that are made once for its file."""
    return {made[-1] for made in item._fixtureinfo.name2fixturedefs.values() if made[-1].scope == "module"}


def quiet() -> None:
    """Nothing of this process is printed, and its children end with it."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def limit(seconds: float) -> None:
    """End this process once it has computed for so long."""
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))


def one_anew(place: str, tests: list[str]) -> int:
    """Import everything with the mutant of ``file:number`` and run files of tests."""
    import pytest

    if not tests:
        return LIVED
    name, _, number = place.partition(":")
    quiet()
    limit(2.0 * TOGETHER_S + HANGS_S)
    sys.meta_path.insert(0, Loader(mutant(ROOT / name, int(number))))
    return NOTICED if pytest.main([*OPTIONS, "-x", *tests]) not in (0, 5) else LIVED


OPTIONS = [
    "-q", "-s", "-m", "not slow and not long", "-k", ELSEWHERE, "--hypothesis-profile=mutations",
    *(f"-pno:{name}" for name in ("xdist", "benchmark", "cacheprovider")),
]  # fmt: skip


def tests_of_the_model() -> list[str]:
    """Files of tests that import something which leads to ``model/``."""
    words = ("joulecast.model", "joulecast.simulator", "joulecast.plan", "joulecast.validate", "import joulecast as jc")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    kept = [file for file in files if file.name not in NOT_THESE]
    return [str(file) for file in kept if any(word in file.read_text(encoding="utf-8") for word in words)]


def interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was counted."""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return middle - reach, middle + reach


def main() -> int:
    """Draw, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="model", help="a folder or file, such as model/kernels/gemm.py")
    parser.add_argument("--least", type=float, default=80.0, help="share that must be noticed [%%]")
    parser.add_argument("--minutes", type=float, default=600.0, help="draw no further mutant after so long")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once")
    parser.add_argument("--map", help="file that keeps which test runs which line")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("tests", nargs="*", help="files of tests; all that lead to model/ where none is named")
    asked = parser.parse_args()
    os.chdir(ROOT)
    import pytest

    if asked.one:
        return one_anew(asked.one, asked.tests)
    changed = ROOT / asked.only
    files = [changed] if changed.is_file() else sorted(changed.rglob("*.py"))
    runner = Runner(drawn(files, asked.count, asked.seed), asked)
    pytest.main([*OPTIONS, *(asked.tests or tests_of_the_model())], plugins=[runner])
    failing = runner.known.failing
    if not runner.ran or len(failing) > 0.01 * len(runner.known.seconds):
        print(f"tests fail without any mutation: {', '.join(failing[:9])}", file=sys.stderr)
        return 2
    share = 1.0 - len(runner.lived) / runner.ran
    low, high = interval(share, runner.ran)
    print(
        f"mutations of {asked.only}: {runner.ran - len(runner.lived)} of {runner.ran} noticed, {100 * share:.0f} % "
        f"(95 % interval {100 * low:.0f} to {100 * high:.0f} %)"
    )
    return int(100.0 * share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
