"""Fronts of plans and of measured jobs, and other questions to them.

- ``forecast_front``: the front of a plan, from forecasts.
- ``profile``: measured profiles, as Zeus writes them; ``profile_front`` makes a front's problem of one.
- ``stragglers``: what is saved while a pipeline or a rank is slower; ``switching``: what changing a clock costs.
- ``joint_choice``: overlap and tiles chosen together at every clock; ``choice_result`` is what it finds.
"""
