"""Measured collectives within and between nodes: the reader, the fit of a network's rates, and the suite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulecast.calibrate.studies.network_fit import NetworkConstants, fit_network, network_times
from joulecast.calibrate.studies.network_rows import NetworkRow, every_second_size, read_network_rows
from joulecast.errors import DataError, InputError
from joulecast.validate import run_suite
from joulecast.validate.published.network import LARGE, SMALL

HEADER = "system,collective,num_gpus,bytes,median_time_s,n,gpus_per_node_used\n"
TRUTH = {"gpu.a100_dgx": 20e9, "node.a100_dgx": 60e9, "host_share": 0.6}


def series(system: str, gpus: int, per_node: int, kind: str = "all_reduce") -> list[NetworkRow]:
    return [NetworkRow(2, system, kind, gpus, 2.0**p, per_node, 1.0) for p in range(20, 28)]


ROWS = [
    *series("a100_dgx", 2, 1),
    *series("a100_dgx", 4, 2),
    *series("a100_dgx", 16, 8),
    *series("a100_pairwise_nvlink", 4, 4),
    *series("a100_dgx", 8, 8),
]


def test_the_fit_finds_the_rates_that_made_the_rows() -> None:
    times = network_times(ROWS, NetworkConstants(TRUTH))
    made = [replace(row, time_s=float(time)) for row, time in zip(ROWS, times, strict=True)]
    found = fit_network(made[::2]).values
    assert dict(found) == pytest.approx(TRUTH, rel=1e-3)
    assert network_times(made, NetworkConstants(found)) == pytest.approx(times, rel=1e-3)


def test_where_a_row_runs() -> None:
    places = {(row.system, row.gpus, row.per_node): (row.joined_by, row.nodes) for row in ROWS}
    assert places == {
        ("a100_dgx", 2, 1): ("network", 2),
        ("a100_dgx", 4, 2): ("network", 2),
        ("a100_dgx", 16, 8): ("network", 2),
        ("a100_pairwise_nvlink", 4, 4): ("host", 1),
        ("a100_dgx", 8, 8): ("links", 1),
    }


def test_halves_share_no_size_of_a_series() -> None:
    fitted, others = every_second_size(ROWS)
    assert sorted(fitted + others) == list(range(len(ROWS)))
    keys = [{(ROWS[i].system, ROWS[i].gpus, ROWS[i].bytes) for i in part} for part in (fitted, others)]
    assert not keys[0] & keys[1]


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("system,bytes\n", "collective", "no column collective"),
        (HEADER + "b100,all_reduce,2,1024,1e-5,1,2\n", "system", "b100"),
        (HEADER + "a100_dgx,all_redcue,2,1024,1e-5,1,2\n", "collective", "all_redcue"),
        (HEADER + "a100_dgx,all_reduce,2,1024,,1,2\n", "median_time_s", "not a positive number"),
        (HEADER + "a100_dgx,all_reduce,2,-1,1e-5,1,2\n", "bytes", "not a positive number"),
    ],
)
def test_broken_tables_name_line_and_key(tmp_path: Path, text: str, key: str, says: str) -> None:
    file = tmp_path / "medians.csv"
    file.write_text(text)
    with pytest.raises(DataError) as error:
        read_network_rows(file)
    assert (error.value.file, error.value.key) == (str(file), key)
    assert says in str(error.value)


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "medians.csv"
    file.write_text(HEADER + "h100_dgx,send_recv,2,1048576,5.4e-05,1,1\n")
    with pytest.raises(DataError, match="one size only"):
        run_suite("network", file)
    with pytest.raises(InputError, match="rows name"):
        run_suite("network", file, gpu="h200-sxm")
    with pytest.raises(DataError, match="no such file"):
        run_suite("network", tmp_path / "nothing.csv")


def test_published_medians(data: Path) -> None:
    """Sizes that nothing was fitted to. Rates between the A100 nodes jump by factors from size to size."""
    file = data / "published" / "allreduce_medians.csv"
    if not file.exists():
        pytest.skip("published/allreduce_medians.csv is not here")
    result = run_suite("network", file)
    summary = result.summary
    assert summary["within a node, >= 16 MB"]["time_error_percent"] < 8
    assert summary["h100_dgx, >= 16 MB"]["time_error_percent"] < 4
    assert summary["over the host, >= 16 MB"]["time_error_percent"] < 3
    assert summary["between nodes, >= 16 MB"]["time_error_percent"] < 18
    assert summary["between nodes, < 16 MB"]["time_error_percent"] < 26
    for group in ("within a node", "over the host", "between nodes", "all"):
        assert summary[group]["time_error_percent"] < summary[group]["time_baseline_percent"], group
    large, small = (result.details["constants"][size] for size in (LARGE, SMALL))
    assert 0.4 < small["host_share"] < large["host_share"] < 0.9
    assert small["node.a100_dgx"] < 0.6 * large["node.a100_dgx"], "fewer adapters"
    assert np.isfinite([*large.values(), *small.values()]).all()


def test_a_size_without_rows_has_the_rates_of_the_other(tmp_path: Path) -> None:
    """Of two sizes one is fitted to and one is scored."""
    file = tmp_path / "medians.csv"
    lines = ["h100_dgx,send_recv,2,1048576,5.4e-05,1,1\n", "h100_dgx,send_recv,2,67108864,1.9e-3,1,1\n"]
    file.write_text(HEADER + "".join(lines))
    rates = run_suite("network", file).details["constants"]
    assert rates[LARGE] == rates[SMALL] and rates[SMALL]["gpu.h100_dgx"] > 1e10
