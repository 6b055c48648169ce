"""Kernel times that other projects published, in their own forms, as measured rows: times only, clocks unknown.

- ``read``: reads them, each in its ``form``: ``llmcompass``, ``simumax``, ``vidur``.
"""
