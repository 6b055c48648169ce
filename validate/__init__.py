"""Predictions held against measured rows: loaders, metrics, suites and the report of errors.

To read: ``registry`` says which suites there are, ``suites`` runs one with the forecasts of ``adapters``, and
``summary`` scores it by ``metrics``, beside the trivial rules of ``baselines``.
"""

from __future__ import annotations

from joulecast.validate.registry import SUITES
from joulecast.validate.result import Prediction, SuiteResult
from joulecast.validate.suites import run_suite

__all__ = ["SUITES", "Prediction", "SuiteResult", "run_suite"]
