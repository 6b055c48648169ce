"""Plans that last until a time at most."""

from __future__ import annotations

from joulecast.errors import InputError

#: What a limit on time is multiplied by, so that rounding does not leave out the plan that takes just as long.
ROOM = 1.0 + 1e-12


def none_within(time_s: float, fastest_s: float, key: str = "--time-limit") -> InputError:
    """The error where even the fastest plan takes longer."""
    return InputError(f"no plan takes {time_s:g} s or less", key=key, remedy=f"The fastest takes {fastest_s:.6g} s.")
