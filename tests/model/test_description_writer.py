"""Text of description files: numbers of every magnitude, characters, matrices of every size."""

from __future__ import annotations

import tomllib

import pytest

from joulecast.model.hardware.description_writer import LARGEST_ARRAY, dump_description, format_float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (1e-4, "0.0001"),
        (0.000123, "0.000123"),
        (9.9e-5, "9.9e-5"),
        (1e-5, "1e-5"),
        (999999.0, "999999.0"),
        (123456.789, "123456.789"),
        (1e6, "1e6"),
        (1234567.5, "1.2345675e6"),
        (-2.5e-7, "-2.5e-7"),
        (-3e12, "-3e12"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
    ],
)
def test_numbers_are_written_in_their_shortest_form(value: float, text: str) -> None:
    assert format_float(value) == text
    assert tomllib.loads(f"x = {text}")["x"] == value


def test_infinities_are_refused() -> None:
    for value in ("inf", "-inf", "nan"):
        with pytest.raises(ValueError, match=value):
            format_float(float(value))


def test_characters_that_stand_for_themselves() -> None:
    said = dump_description({"text": ' ~\x7e\x7f\x80\x1f\t"\\é'})
    assert said == 'text = " ~~\\u007f\x80\\u001f\\t\\"\\\\é"\n'
    assert tomllib.loads(said)["text"] == ' ~~\x7f\x80\x1f\t"\\é'


def test_matrices_up_to_eight_rows_are_arrays() -> None:
    for size in (LARGEST_ARRAY, LARGEST_ARRAY + 1):
        rows = [[float(i == j) * 2.5e-9 for j in range(size)] for i in range(size)]
        said = dump_description({"kernel": {"covariance": {"names": ["a"], "matrix": rows}}})
        found = tomllib.loads(said)["kernel"]["covariance"]["matrix"]
        assert said.count("\n") == 3 + size + 1
        if size == LARGEST_ARRAY:
            assert found == rows
        else:
            assert found.splitlines()[1] == "0 2.5e-9" + " 0" * (size - 2)


def test_leaves_stand_on_a_line_and_tables_under_headers() -> None:
    said = dump_description(
        {
            "a": {"leaf": {"value": 1, "sd": 0.5}, "flat": {"time": 0.25, "energy": 1}, "b.c": {"d": {"value": True}}},
            "empty": {},
            "list": [1, 2.0, "x"],
        }
    )
    assert said == (
        'list = [1, 2.0, "x"]\n\n[a]\nleaf = {value = 1, sd = 0.5}\nflat = {time = 0.25, energy = 1}\n\n'
        '[a."b.c"]\nd = {value = true}\n\n[empty]\n'
    )


def test_what_toml_cannot_hold_is_named() -> None:
    with pytest.raises(TypeError, match="complex"):
        dump_description({"x": 1j})
