"""Plans that last until a time at most."""

from __future__ import annotations

import math

from joulecast.errors import InputError

#: What a limit on time is multiplied by, so that rounding does not leave out the plan that takes just as long.
ROOM = 1.0 + 1e-12
#: Digits of a time in a remedy.
DIGITS = 6


def none_within(time_s: float, fastest_s: float, key: str = "--time-limit") -> InputError:
    """The error, whose remedy is a limit that the fastest plan keeps: its time, rounded up.

    Parameters
    ----------
    time_s, fastest_s
        What was asked for, and what the fastest plan takes [s].
    key
        What asked for this time.

    >>> none_within(0.982994, 0.982994038).remedy
    'The fastest takes 0.982995 s.'
    """
    places = DIGITS - 1 - math.floor(math.log10(fastest_s))
    shown = math.ceil(fastest_s / ROOM * 10.0**places) / 10.0**places
    return InputError(f"no plan takes {time_s:g} s or less", key=key, remedy=f"The fastest takes {shown:.{DIGITS}g} s.")
