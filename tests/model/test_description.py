"""The schema of GPU descriptions: reading, writing, deriving, and what wrong files get."""

from __future__ import annotations

import pickle
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.hardware.catalogue import load_gpu, read_gpu
from joulecast.model.hardware.description import TABLES, GpuDescription, Parameter, Table, nest
from joulecast.model.hardware.description_file import covariance_problem, line_of, parse_description, parse_facts
from joulecast.model.hardware.description_writer import dump_description, format_float

LEAF = '{value = 0.9, sd = 0.01, source = "a fit", status = "fitted"}'


def table(name: str, body: str = "") -> str:
    return f'[{name}]\nprovenance = "rows of a test"\n{body}'


def full(kernel: str = "", head: str = "") -> str:
    """A self-contained description: the H200's facts and small tables."""
    device = dump_description({"device": nest(read_gpu("h200-sxm").device)})
    tables = "\n".join(table(name, kernel if name == "kernel" else "") for name in TABLES)
    return f'schema_version = 1\nname = "test"\n{head}\n{device}\n{tables}\n'


COVARIANCE = """[kernel.parameters]
gemm.eta = {value = 0.9, sd = 0.01, unit = "1", source = "a fit", status = "fitted"}
gemm.cycles = {value = 3000, rel_sd = 0.1, source = "a fit", status = "fitted"}
[kernel.covariance]
names = ["gemm.eta", "gemm.cycles"]
matrix = [[1e-4, 0.5], [0.5, 9e4]]
[kernel.discrepancy]
gemm = {time = 0.02, energy = 0.03}
"""


def failure(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_description(text, file="x.toml")
    return str(caught.value)


def test_reads_tables() -> None:
    kernel = parse_description(full(COVARIANCE), file="x.toml").tables["kernel"]
    assert kernel["gemm.eta"] == 0.9
    assert kernel.get("gemm.other", 2.0) == 2.0
    assert kernel.parameters["gemm.cycles"].sd == 300.0
    assert kernel.discrepancy["gemm"]["energy"] == 0.03
    assert kernel.covariance.shape == (2, 2)
    with pytest.raises(UnknownNameError, match=r"'gemm\.eta'"):
        kernel["gemm.eat"]


def test_with_values_changes_only_known_parameters() -> None:
    kernel = parse_description(full(COVARIANCE), file="x.toml").tables["kernel"]
    changed = kernel.with_values({"gemm.eta": 0.5})
    assert (changed["gemm.eta"], kernel["gemm.eta"]) == (0.5, 0.9)
    with pytest.raises(UnknownNameError):
        kernel.with_values({"gemm.eat": 0.5})


def test_written_and_read_again_is_identical(tmp_path: Path) -> None:
    path = tmp_path / "test.toml"
    path.write_text(full(COVARIANCE), encoding="utf-8")
    first = load_gpu(path)
    path.write_text(dump_description(first.to_dict()), encoding="utf-8")
    second = load_gpu(path)
    assert second.to_dict() == first.to_dict()
    assert dump_description(second.to_dict()) == dump_description(first.to_dict())
    assert second.rows() == first.rows()


def test_a_derived_description_stands_alone_once_written(tmp_path: Path) -> None:
    derived = load_gpu("a40")
    path = tmp_path / "mine.toml"
    path.write_text(dump_description(derived.to_dict()), encoding="utf-8")
    assert load_gpu(path).to_dict() == derived.to_dict()


def test_pickles(tmp_path: Path) -> None:
    path = tmp_path / "test.toml"
    path.write_text(full(COVARIANCE), encoding="utf-8")
    assert pickle.loads(pickle.dumps(load_gpu(path))).to_dict() == load_gpu(path).to_dict()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_read_back(value: float) -> None:
    import tomllib

    assert tomllib.loads(f"x = {format_float(value)}")["x"] == value


def test_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot stand"):
        format_float(float("nan"))


@given(st.text())
def test_words_read_back(text: str) -> None:
    import tomllib

    written = dump_description({"a": {"x": {"value": text}}, f"-{text}": 1})
    assert tomllib.loads(written)["a"]["x"]["value"] == text


def test_misspelt_keys_name_line_and_nearest() -> None:
    text = full().replace("sm_count =", "sm_coutn =")
    line = text.splitlines().index(next(x for x in text.splitlines() if x.startswith("sm_coutn"))) + 1
    assert failure(text).startswith(f"x.toml:{line} [device.sm_coutn]: unknown key 'sm_coutn'. Did you mean 'sm_count'")
    assert "Did you mean 'kernel'" in failure(full() + table("kernle"))
    assert "Did you mean 'provenance'" in failure(full().replace("provenance", "provenence", 1))
    leaf = f"[kernel.parameters]\na = {LEAF}"
    assert "Did you mean 'source'" in failure(full(leaf.replace("source", "sorce")))
    assert "Did you mean 'value'" in failure(full(leaf.replace("value", "valeu")))
    assert "Did you mean 'gemm.eta'" in failure(full(COVARIANCE.replace('["gemm.eta"', '["gemm.eat"')))
    assert "Did you mean 'time'" in failure(full(COVARIANCE.replace("time =", "tmie =")))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("schema_version = 1", "schema_version = 2", "schema version 2 is newer than 1"),
        ("schema_version = 1", "", "schema_version is missing"),
        ("schema_version = 1", 'schema_version = "1"', "schema_version is '1'"),
        ("sd = 0.01", "sd = -0.01", "greater than or equal to 0"),
        ("sd = 0.01", "sd = 0.01, rel_sd = 0.1", "exactly one of sd and rel_sd"),
        ("sd = 0.01, ", "", "exactly one of sd and rel_sd"),
        ("value = 0.9", "value = nan", "found nan"),
        ("value = 0.9", "value = [1]", "expected a number, a word, true or false, found [1]"),
        ('status = "fitted"', 'status = "guessed"', "'guessed'"),
        ('source = "a fit"', 'source = ""', "kernel.parameters.gemm.eta.source"),
        ("[[1e-4, 0.5], [0.5, 9e4]]", "[[1e-4, 0.5], [0.4, 9e4]]", "not symmetric"),
        ("[[1e-4, 0.5], [0.5, 9e4]]", "[[1e-4, 9], [9, 9e4]]", "not positive semidefinite"),
        ("[[1e-4, 0.5], [0.5, 9e4]]", "[[-1e-4, 0.5], [0.5, 9e4]]", "variance is negative"),
        ("[[1e-4, 0.5], [0.5, 9e4]]", "[[1e-4, 0.5]]", "expected 2 rows of 2 numbers"),
        ('["gemm.eta", "gemm.cycles"]', '["gemm.eta", "gemm.eta"]', "stands twice"),
        ("time = 0.02", "time = -0.02", "at least 0"),
        ("[power]", "[power", "not valid TOML"),
        ('provenance = "rows of a test"', "provenance = 3", "valid string"),
        ("[governor]\n", "[transition.parameters]\n", "table [governor] is missing"),
        ("[device]", "[device]\nvendr = 3", "expected a value with its source, found 3"),
    ],
)
def test_wrong_files(old: str, new: str, expected: str) -> None:
    text = full(COVARIANCE)
    assert old in text
    message = failure(text.replace(old, new, 1))
    assert message.startswith("x.toml")
    assert expected in message


def test_facts_are_checked_against_the_vocabulary() -> None:
    lines = full().splitlines()
    without = "\n".join(line for line in lines if not line.startswith("sm_count"))
    assert "sm_count is missing. It is the number of multiprocessors" in failure(without)
    words = "\n".join(line if not line.startswith("sm_count") else f"sm_count = {WORD}" for line in lines)
    assert "expected a number, found 'many'" in failure(words)


WORD = '{value = "many", source = "a test", status = "estimate"}'


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("clock_step_mhz", 0.1, r"[device.clock_step_mhz]: 345 to 1980 MHz in steps of 0.1 are more than 10000 clocks"),
        ("tensor_flops_per_sm_per_cycle.bf16", 0.0, "must be at least 1 FLOP/cycle, found 0"),
    ],
)
def test_facts_that_mean_nothing_are_refused(name: str, value: float, expected: str) -> None:
    device = dict(read_gpu("h200-sxm").device)
    device[name] = replace(device[name], value=value)
    text = full()
    old = dump_description({"device": nest(read_gpu("h200-sxm").device)})
    assert expected in failure(text.replace(old, dump_description({"device": nest(device)})))


def test_a_switch_of_no_ports_joins_nothing() -> None:
    text = resources.files("joulecast.model").joinpath("catalogue_data/networks/infiniband-ndr.toml").read_text()
    with pytest.raises(InputError, match="must be at least 4, found 0"):
        parse_facts("network", text.replace("switch_ports = {value = 64", "switch_ports = {value = 0"), file="x.toml")


def test_covariance_is_judged_in_its_own_units() -> None:
    scale = np.array([1e-12, 1.0, 1e12])
    correlation = np.array([[1, 0.9, 0.8], [0.9, 1, 0.9], [0.8, 0.9, 1]])
    assert covariance_problem(correlation * np.outer(scale, scale)) is None
    assert covariance_problem(np.zeros((3, 3))) is None
    tiny = np.array([[1e-320, 1e200], [1e200, 1.0]])
    assert covariance_problem(tiny) == "a variance is too small for its covariances"
    correlation[0, 2] = correlation[2, 0] = -0.8
    assert covariance_problem(correlation * np.outer(scale, scale)) == "the matrix is not positive semidefinite"


def test_line_of_the_nearest_written_parent() -> None:
    text = 'a = 1\n[b]\nc.d = {e = 1}\n[b.f]\n"g" = 2\n'
    assert [line_of(text, key) for key in ("a", "b", "b.c.d.e", "b.f.g", "b.f.h", "z")] == [1, 2, 3, 5, 4, None]


def relative() -> GpuDescription:
    """A calibrated relative with one fitted parameter in every table."""
    parameters = {"x": Parameter(2.0, 0.1, "1", "a fit", "fitted"), "y": Parameter(4.0, 0.2, "W", "a fit", "fitted")}
    tables = {
        name: Table(
            "fit", parameters, ("x", "y"), np.array([[0.01, 0.004], [0.004, 0.04]]), {"gemm": {"time": 0.02}}, name
        )
        for name in TABLES
    }
    return GpuDescription("relative", read_gpu("h200-sxm").device, **tables, derivation="")


def test_derived_parameters_are_marked_and_wider() -> None:
    from joulecast.model.hardware.derivation import complete

    derived = complete(read_gpu("a40"), relative())
    assert derived.derivation
    for name, group in derived.tables.items():
        scaled = [group.parameters[key] for key in ("x", "y")]
        for parameter in scaled:
            assert parameter.status == "derived"
            assert "relative x" in parameter.source
            assert parameter.sd / abs(parameter.number) > 0.05
        assert covariance_problem(group.covariance) is None, name
        assert np.sqrt(np.diag(group.covariance)) == pytest.approx([p.sd for p in scaled])
        assert group.discrepancy["gemm"]["time"] > 0.02


def test_nearer_relatives_widen_less() -> None:
    from joulecast.model.hardware.derivation import complete

    sds = [complete(read_gpu(name), relative()).kernel.parameters["x"] for name in ("h100-sxm", "a40", "mi300x")]
    spread = [p.sd / p.number for p in sds]
    assert spread == sorted(spread)
    assert spread[0] < spread[1] < spread[2]


def test_a_copy_keeps_values_and_status() -> None:
    from joulecast.model.hardware.derivation import complete

    device = dump_description({"device": nest(read_gpu("h200-sxm").device)})
    text = f'schema_version = 1\nname = "mine"\n[derivation]\nrelative = "r"\nmethod = "copy"\n{device}'
    copy = complete(parse_description(text, file="mine.toml"), relative())
    assert copy.name == "mine"
    assert copy.kernel.parameters == relative().kernel.parameters


def test_a_stated_parameter_wins_over_the_derived_one() -> None:
    from joulecast.model.hardware.derivation import complete

    device = dump_description({"device": nest(read_gpu("a100-sxm-80gb").device)})
    stated = '[kernel.parameters]\nx = {value = 9, sd = 1, source = "measured", status = "measured"}'
    text = f'schema_version = 1\nname = "own"\n[derivation]\nrelative = "r"\n{device}\n{table("kernel", stated)}'
    kernel = complete(parse_description(text, file="own.toml"), relative()).kernel
    assert kernel["x"] == 9
    assert kernel.parameters["x"].status == "measured"
    assert kernel.covariance_names == ("y",)
    assert kernel.parameters["y"].status == "derived"
