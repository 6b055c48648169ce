"""Folders that tests read from."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
#: Measured rows that are not shipped; may be absent.
SHARED_DATA = ROOT.parent / "shared" / "data"
