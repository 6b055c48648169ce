"""Kernel times that other projects published, in their own forms, as measured rows: times only, clocks unknown.

- ``read``: reads them and tells their forms apart: LLMCompass's, ``simumax``, ``vidur``; ``form``: what they share.
"""
