"""Collectives on CPU tensors: two processes that act as one."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from joulecast.calibrate.microbenchmarks.catalogue import multi_gpu
from joulecast.calibrate.microbenchmarks.distributed import in_turn
from joulecast.calibrate.microbenchmarks.group_runner import GroupLoad, GroupRunner
from joulecast.calibrate.microbenchmarks.group_work import shrink_group_row
from joulecast.errors import MeasurementError

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
MODULE = "joulecast.calibrate.microbenchmarks.distributed"
#: What every rank does: the code under test on small rows, compared with what all ranks' inputs give.
RANK = textwrap.dedent("""
    import datetime, json, sys
    import torch
    import torch.distributed as dist
    from joulecast.calibrate.microbenchmarks.catalogue import multi_gpu
    from joulecast.calibrate.microbenchmarks.group_work import BITS, Ranks, shrink_group_row, work_of
    from joulecast.calibrate.microbenchmarks.kernel import Bench

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    cpu, rows = torch.device("cpu"), {b.name: shrink_group_row(b.row) for b in multi_gpu(2)}
    ranks = Ranks(torch, cpu)
    me, other = ranks.rank, 1 - ranks.rank

    def drawn(row, rank, *shape):
        return Bench(torch, cpu, row, f"x/{rank}").values(*shape)

    def run(row, times=1):
        work = work_of(Bench(torch, cpu, row, f"x/{me}"), ranks)
        for _ in range(times):
            work.once()
        return work.result()

    def close(a, b):
        scale = b.double().abs().max().item()
        assert scale > 0 and (a.double() - b.double()).abs().max().item() <= 0.02 * scale

    row = {"op": "all_reduce", "bytes": 4096, "dtype": "bf16"}
    each = [drawn(row, rank, 2048).double() * 2.0**-BITS for rank in (0, 1)]
    close(run(row), each[0] + each[1])
    close(run(row, 4), 8 * (each[0] + each[1]))
    assert run(row, 300).isfinite().all()
    row = {**row, "op": "all_gather"}
    assert torch.equal(run(row), torch.cat([drawn(row, rank, 1024) for rank in (0, 1)]))
    row = {**row, "op": "reduce_scatter"}
    close(run(row), sum(drawn(row, rank, 2, 1024).double()[me] for rank in (0, 1)))
    row = {**row, "op": "all_to_all"}
    assert torch.equal(run(row), torch.cat([drawn(row, rank, 2, 1024)[me] for rank in (0, 1)]))
    row = {**row, "op": "p2p"}
    assert torch.equal(run(row), drawn(row, 0, 2048))
    row = {**row, "op": "broadcast"}
    assert torch.equal(run(row), drawn(row, 0, 2048))

    name = next(name for name, row in rows.items() if row["op"] == "overlap" and row["mode"] == "sequential")
    whole = {**rows[name], "part": "layer"}
    one = torch.cat(run(whole))
    two = torch.cat(run({**whole, "mode": "nanobatch"}))
    assert one.shape == two.shape == (2, 16, 64)
    close(two, one)
    for part, modes in (("attn", ("compute", "sequential", "overlap")), ("mlp", ("compute", "overlap"))):
        for mode in modes:
            once, thrice = (run({**whole, "part": part, "mode": mode}, times) for times in (1, 3))
            assert torch.equal(thrice, once if mode == "compute" else 4 * once)
    late = {**whole, "part": "attn", "mode": "overlap", "scope": "after_qkv"}
    assert torch.equal(run(late, 3), 4 * run(late))
    gathered = next(row for row in rows.values() if row["op"] == "gemm_allgather")
    for mode in ("sequential", "concurrent"):
        product, everything = run({**gathered, "mode": mode})
        assert product.abs().sum() > 0 and everything.abs().sum() > 0
    for bad in ({"part": "tail"}, {"mode": "polka"}, {"scope": "polka"}, {"part": "layer", "mode": "x"}, {"op": "x"}):
        try:
            run({**late, **bad})
        except Exception as error:
            assert type(error).__name__ == "MeasurementError", error
        else:
            raise AssertionError(bad)
    dist.destroy_process_group()
    print("fine")
""")


@pytest.mark.parametrize("gpus", [2, 4])
def test_any_beginning_spans_all_kinds(gpus):
    """Little time is spent on some of everything."""
    benchmarks = multi_gpu(gpus)
    ordered = in_turn(benchmarks)
    assert sorted(b.name for b in ordered) == sorted(b.name for b in benchmarks)
    strata = {b.stratum for b in benchmarks}
    assert {b.stratum for b in ordered[: len(strata)]} == strata
    reduced = [b.row for b in ordered if b.row["op"] == "all_reduce"][:6]
    assert max(row["bytes"] for row in reduced) / min(row["bytes"] for row in reduced) >= 256
    assert len({row["ctas"] for row in reduced}) >= 2


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **more}


@needs_torch
def test_collectives_give_what_they_should(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script)],
            env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for process in processes:
            out, err = process.communicate(timeout=100)
            assert process.returncode == 0, err[-3000:]
            assert out.strip().endswith("fine")
    finally:
        for process in processes:
            process.kill()


def launch(folder, *more):
    return subprocess.run(
        [
            *[sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2"],
            *["--master-port", str(free_port()), "-m", MODULE],
            *["--record", str(folder), "--device", "cpu", "--window", "0.01", *more],
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@needs_torch
@pytest.mark.slow
def test_a_recording_of_every_kind(tmp_path):
    """One small size of each collective; a second start goes on where the first one ended."""
    words = "_2_None_65536,p2p_1048576,attn_compute,gemm_allgather_2_concurrent_8192_8192_8192"
    ended = launch(tmp_path, "--only", words)
    assert ended.returncode == 0, ended.stderr[-3000:]
    before = (tmp_path / "recording.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in before]
    rows = {line["name"]: line for line in lines if line["record"] == "row"}
    assert {row["op"] for row in rows.values()} == {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("p2p", "overlap", "gemm_allgather"),
    }
    assert all(0 < row["time_s"] < 1 and row["gpus"] == 2 for row in rows.values())
    assert lines[0]["record"] == "card"
    assert lines[-1]["record"] == "end"
    again = launch(tmp_path, "--only", words)
    assert again.returncode == 0, again.stderr[-3000:]
    after = (tmp_path / "recording.jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    assert [json.loads(line)["record"] for line in after[len(before) :]] == ["end"]


@needs_torch
def test_outside_of_a_group():
    ended = subprocess.run(
        [sys.executable, "-m", MODULE, "--record", "nowhere", "--device", "cpu"],
        env={key: value for key, value in environment().items() if key not in ("RANK", "LOCAL_RANK")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "torch.distributed.run" in ended.stderr
    assert "Traceback" not in ended.stderr


class Members:
    """Members of which every repetition takes a known time, the second one a little longer."""

    def __init__(self, once_s, fail_on=""):
        self.once_s, self.fail_on, self.commands = once_s, fail_on, []

    def lead(self, command):
        self.commands.append(dict(command))
        if command["do"] == self.fail_on:
            raise MeasurementError("rank 1: out of GPU memory")
        if command["do"] == "run":
            seconds = command["count"] * command["batches"] * self.once_s
            return [seconds, 1.1 * seconds]
        return [0.0, 0.0]


@pytest.mark.parametrize("once_s", [2e-5, 1e-3, 0.3])
def test_all_members_launch_the_same_number(once_s):
    members = Members(once_s)
    load = GroupLoad(members, "x")
    count, seconds = load.run(2.0)
    assert seconds == pytest.approx(count * once_s * 1.1)
    assert seconds == pytest.approx(2.0, rel=0.1)
    last = members.commands[-1]
    assert last["count"] * last["batches"] == count
    assert last["count"] * once_s <= max(0.012, once_s)


def test_a_load_is_closed_on_all_members():
    members = Members(1e-3)
    runner = GroupRunner(members, 2)
    one = multi_gpu(2)[0]
    runner.prepare(one).close()
    assert members.commands[0] == {"do": "prepare", "name": one.name, "row": one.row}
    assert [c["do"] for c in members.commands][-1] == "close"
    runner.end()
    assert members.commands[-1]["do"] == "end"


def test_a_load_that_fails_is_closed():
    members = Members(1e-3, fail_on="run")
    with pytest.raises(MeasurementError, match="rank 1: out of GPU memory"):
        GroupRunner(members, 2).prepare(multi_gpu(2)[0])
    assert members.commands[-1]["do"] == "close"


def test_the_number_of_gpus_must_fit():
    with pytest.raises(MeasurementError, match="takes 4 GPUs, here are 2"):
        GroupRunner(Members(1e-3), 2).prepare(multi_gpu(4)[0])


@pytest.mark.parametrize("one", multi_gpu(4), ids=lambda b: b.name)
def test_small_rows(one):
    small = shrink_group_row(one.row)
    assert set(small) == set(one.row)
    assert small.get("bytes", 0) <= 4 * 4096
    assert all(small[key] == one.row[key] for key in ("op", "gpus", "mode", "part", "ctas", "tp") if key in one.row)
    if one.row["op"] == "overlap":
        assert small["heads"] % small["tp"] == small["kv_heads"] % small["tp"] == 0
