"""AMD SMI through ``amdsmi``: loading it late, its errors in the words of this project, and its values."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from joulecast.errors import DeviceError, PermissionDeniedError


class AmdSmi:
    """The binding, initialised.

    Attributes
    ----------
    lib
        The module ``amdsmi``.

    Raises
    ------
    DeviceError
        The package, ROCm's library below it, or the driver is missing; the message says which.
    """

    def __init__(self) -> None:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                import amdsmi
        except ImportError as error:
            raise DeviceError(
                "the package amdsmi is missing",
                key="package",
                remedy="Install the one that comes with ROCm (/opt/rocm/share/amd_smi), or pip install amdsmi.",
            ) from error
        # Without ROCm the import prints and fails: with KeyError, OSError, AttributeError or an exit, by version.
        except (Exception, SystemExit) as error:
            detail = " ".join(said.getvalue().split()) or f"{type(error).__name__}: {error}"
            raise DeviceError(
                f"AMD SMI's library cannot be loaded ({detail})",
                key="driver",
                remedy="Install ROCm's amd-smi-lib, of amdsmi's version.",
            ) from error
        self.lib: Any = amdsmi
        try:
            amdsmi.amdsmi_init()
        except Exception as error:  # the binding's own classes, which change by version
            if _is_refusal(error):
                raise PermissionDeniedError(
                    "the AMD driver lets this user see no GPU",
                    key="permission",
                    remedy="Join the groups that own /dev/kfd and /dev/dri: render and video.",
                ) from error
            raise DeviceError(
                f"no AMD driver answers: {_said(error)}", key="driver", remedy="Check that amd-smi list works."
            ) from error

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that must work.

        Raises
        ------
        PermissionDeniedError
            The driver refuses it to this user.
        DeviceError
            Any other failure.
        """
        try:
            return getattr(self.lib, name)(*arguments)
        except Exception as error:  # the binding's own classes, TypeError and AttributeError
            if _is_refusal(error):
                raise PermissionDeniedError(
                    f"the driver refuses {name} to this user", remedy="Run as root, or calibrate passively."
                ) from error
            raise DeviceError(f"{name} failed: {_said(error)}") from error

    def optional(self, name: str, *arguments: Any) -> Any:
        """Call a function that a card, driver or binding may lack; ``None`` where it does."""
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                return getattr(self.lib, name)(*arguments)
        except Exception:  # noqa: BLE001 - by version: own classes, TypeError, AttributeError, UnicodeDecodeError
            return None

    def shut_down(self) -> None:
        """Let go of the driver."""
        self.optional("amdsmi_shut_down")


#: What the hardware writes into fields that it does not have, their largest number; older bindings pass it on.
_ABSENT = (2**16 - 1, 2**32 - 1, 2**64 - 1)


def number(value: Any) -> float | None:
    """A number, ``None`` for what the binding or the hardware writes where there is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value in _ABSENT:
        return None
    return float(value)


def text(value: Any) -> str:
    """A string that older bindings return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, PermissionError) or "NO_PERM" in _said(error).upper()


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
