"""Instruction counts: what is counted, and what fails."""

import json
import subprocess
import sys

from benchmarks.counts import STORED, TASKS, in_own_process, regressions


def test_a_count_is_the_same_every_time():
    assert in_own_process("kernel") == in_own_process("kernel") > 1000


def test_every_task_has_a_count_of_the_last_release():
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert set(stored["counts"]) == set(TASKS)


def test_a_fifth_more_fails():
    assert regressions({"a": 120, "b": 121}, {"a": 100, "b": 100}) == ["b"]


def test_a_typo_in_a_task_is_refused(root):
    asked = subprocess.run(
        [sys.executable, root / "benchmarks" / "counts.py", "--task", "x"], check=False, capture_output=True, text=True
    )
    assert asked.returncode == 2
