"""Which layers attend to a window alone, and which have rotary embedding, as Hugging Face's files say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joulecast.model.architecture.hf_family import Family
from joulecast.model.architecture.hf_reader import Reader, shortest


def read_windows(reader: Reader, family: Family, layers: int) -> tuple[int, tuple[bool, ...]]:
    """Tokens of the window (0: none), and which layers have it (empty: all).

    A file names each layer's type, or how many follow each other before one that sees all, or from which layer on
    (Qwen's, which may switch windows off as a whole); else its family does.

    Raises
    ------
    InputError
        For types of layers that are not known, or not as many as layers.
    """
    if family.state_space is not None:
        return 0, ()
    key = family.key("sliding_window")
    _check_types(reader, family)
    if reader.data.get(key) is None or not reader.flag("use_sliding_window", True):
        return 0, ()
    pattern = _pattern(reader, family, layers)
    if pattern and not any(pattern):
        return 0, ()
    return reader.count(key), () if all(pattern) else pattern


def read_rotary_pattern(
    reader: Reader, family: Family, layers: int, window: int, local: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Which layers have rotary embedding (empty: all), of which those of ``local`` see a ``window`` alone.

    Raises
    ------
    InputError
        For a list that has less than one entry for each layer, or others than 0 and 1.
    """
    if family.plain_layers in ("global", "beside windows"):
        rotated = window or (family.plain_layers == "beside windows" and reader.data.get("sliding_window") is None)
        return local if rotated else (False,)
    return _listed_rotary(reader, layers) if family.plain_layers == "listed" else ()


def _listed_rotary(reader: Reader, layers: int) -> tuple[bool, ...]:
    given = reader.data.get("no_rope_layers")
    if not given:
        every = reader.count("no_rope_layer_interval")
        given = [(layer + 1) % every != 0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or any(one not in (0, 1) for one in given):
        problem = f"must have a 0 (without rotary embedding) or 1 for each of {layers} layers"
        raise reader.error("no_rope_layers", problem, "Correct it, or leave it out.")
    rotary = [bool(one) for one in given[:layers]]
    return () if all(rotary) else shortest(rotary)


def _pattern(reader: Reader, family: Family, layers: int) -> tuple[bool, ...]:
    given = reader.data.get("layer_types")
    if given is not None:
        return _typed(reader, given, layers, _types(family))
    if family.chunked:
        return _listed_rotary(reader, layers)
    if reader.data.get("max_window_layers") is not None and reader.data.get("use_sliding_window"):
        whole = reader.whole("max_window_layers")
        return tuple(layer >= whole for layer in range(layers))
    period = reader.count("sliding_window_pattern", family.period) if family.period else 0
    return (True,) * (period - 1) + (False,) if period else ()


def _types(family: Family) -> dict[str, bool]:
    """What ``layer_types`` may name, and whether such a layer is local."""
    return {"full_attention": False, family.local_type: True}


def _check_types(reader: Reader, family: Family) -> None:
    """``layer_types`` name known layers, where a file has them."""
    given = reader.data.get("layer_types")
    if given is None:
        return
    known = ", ".join(types := _types(family))
    if not isinstance(given, list) or not given:
        raise reader.error("layer_types", "must be a list", f"Name {known} for each layer.")
    for name in given:
        if not isinstance(name, str) or name not in types:
            raise reader.error("layer_types", f"layers of type {name!r} are not known", f"Known: {known}.")


def _typed(reader: Reader, given: Sequence[str], layers: int, types: Mapping[str, bool]) -> tuple[bool, ...]:
    """``layer_types``, one for each layer, as the shortest pattern that repeats."""
    if len(given) != layers:
        raise reader.error("layer_types", f"{len(given)} types for {layers} layers", "Name one for each.")
    return shortest([types[name] for name in given])
