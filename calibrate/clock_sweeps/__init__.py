"""Fits of time and power to sweeps of locked clocks and power limits.

To read: ``rows``, ``physics``, ``fit``, ``forecast``.
"""
