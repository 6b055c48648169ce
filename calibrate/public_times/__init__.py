"""Kernel times that other projects published, in their own forms, as measured rows: times only, clocks unknown."""
