"""Predictions held against measured rows: loaders, metrics, suites and the report of errors.

Each part imports only from those above it:

- ``scoring``: from predictions and measurements to figures of merit.
- ``left_out``: clocks, limits and kernels that a fit has not seen.
- ``choices``: overlap and tiles chosen by forecast.
- ``megatron_rows``, ``row_plans``, ``adapters``: from measured rows to forecasts and back.
- ``metered``: training loops of users, by their plans.
- ``published``: what others measured.
- ``registry``: which suites there are.
- ``suites``: runs one.
"""

from __future__ import annotations

from joulecast.validate.registry import SUITES
from joulecast.validate.scoring.result import Prediction, SuiteResult
from joulecast.validate.suites import run_suite

__all__ = ["SUITES", "Prediction", "SuiteResult", "run_suite"]
