"""What a time limit that no plan keeps is answered with."""

from __future__ import annotations

import math

from joulecast.errors import InputError

#: Digits of a time in a remedy.
DIGITS = 6


def no_plan_so_fast(time_s: float, fastest_s: float, key: str = "--time-limit") -> InputError:
    """The error, whose remedy is a limit that the fastest plan keeps: its time, rounded up.

    Parameters
    ----------
    time_s, fastest_s
        What was asked for, and what the fastest plan takes [s].
    key
        What asked for this time.

    >>> no_plan_so_fast(0.982994, 0.982994038).remedy
    'The fastest takes 0.982995 s.'
    """
    places = DIGITS - 1 - math.floor(math.log10(fastest_s))
    shown = math.ceil(fastest_s * 10.0**places) / 10.0**places
    return InputError(f"no plan takes {time_s:g} s or less", key=key, remedy=f"The fastest takes {shown:.{DIGITS}g} s.")
