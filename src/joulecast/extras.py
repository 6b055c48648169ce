"""Packages that only some uses need: which extra installs each, and the error where one is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

#: Modules, and the extra of this package that installs them.
EXTRAS = {
    "scipy": "fit",
    "pandas": "fit",
    "tomlkit": "fit",
    "numba": "fast",
    "matplotlib": "plot",
    "pyarrow": "parquet",
    "distributed": "dask",
    "torch": "torch",
    "triton": "torch",
    "pynvml": "nvml",
    "amdsmi": "amd",
}


def missing_package(error: ModuleNotFoundError) -> InputError | None:
    """What to tell where a module of an extra is missing; ``None`` for any other module."""
    name = (error.name or "").partition(".")[0]
    return _missing(name) if name in EXTRAS else None


def require(*names: str) -> None:
    """Refuse to begin what needs modules that are not installed.

    Raises
    ------
    InputError
        Naming the first of them and its extra.
    """
    for name in names:
        if not _is_there(name):
            raise _missing(name)


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table of pandas.

    Raises
    ------
    InputError
        It is not installed.
    """
    require("pandas")
    import pandas as pd

    return pd.DataFrame(list(rows))


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module that was kept from being imported
        return False


def _missing(name: str) -> InputError:
    return InputError(f"this needs {name}, which is not installed", remedy=install(EXTRAS[name]))


def install(extra: str) -> str:
    """The remedy that installs an extra.

    >>> install("fit")
    'Install it: pip install "joulecast[fit]".'
    """
    return f'Install it: pip install "joulecast[{extra}]".'
