"""Which layers attend to a window alone, as Hugging Face's ``config.json`` files say it."""

from __future__ import annotations

from joulecast.errors import InputError
from joulecast.model.architecture.hf_families import Family
from joulecast.model.architecture.hf_reader import Reader

#: What ``layer_types`` may name, and whether such a layer is local.
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def read_windows(reader: Reader, family: Family, layers: int) -> tuple[int, tuple[bool, ...]]:
    """Tokens of the window (0: none), and which layers have it (empty: all).

    A file names each layer's type, or how many follow each other before one that sees all, or from which layer on
    (Qwen's, which may switch windows off as a whole); else its family does.

    Raises
    ------
    InputError
        For types of layers that are not known, or not as many as layers.
    """
    if reader.data.get("sliding_window") is None or not reader.flag("use_sliding_window", True):
        return 0, ()
    pattern = _pattern(reader, family, layers)
    if pattern and not any(pattern):
        return 0, ()
    return reader.count("sliding_window"), () if all(pattern) else pattern


def _pattern(reader: Reader, family: Family, layers: int) -> tuple[bool, ...]:
    given = reader.data.get("layer_types")
    if given is not None:
        return _typed(reader, given, layers)
    if reader.data.get("max_window_layers") is not None and reader.data.get("use_sliding_window"):
        whole = reader.whole("max_window_layers")
        return tuple(layer >= whole for layer in range(layers))
    period = reader.count("sliding_window_pattern", family.period) if family.period else 0
    return (True,) * (period - 1) + (False,) if period else ()


def _typed(reader: Reader, given: object, layers: int) -> tuple[bool, ...]:
    """``layer_types``, one for each layer, as the shortest pattern that repeats."""
    known = ", ".join(LAYER_TYPES)
    if not isinstance(given, list) or not given:
        raise InputError("must be a list", file=reader.file, key="layer_types", remedy=f"Name {known} for each layer.")
    for name in given:
        if not isinstance(name, str) or name not in LAYER_TYPES:
            raise InputError(
                f"layers of type {name!r} are not known", file=reader.file, key="layer_types", remedy=f"Known: {known}."
            )
    if len(given) != layers:
        raise InputError(
            f"{len(given)} types for {layers} layers", file=reader.file, key="layer_types", remedy="Name one for each."
        )
    local = tuple(LAYER_TYPES[name] for name in given)
    periods = (n for n in range(1, layers + 1) if all(local[i] == local[i % n] for i in range(layers)))
    return local[: next(periods)]
