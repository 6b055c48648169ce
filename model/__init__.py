"""Physics: pure functions of arrays and frozen dataclasses."""
