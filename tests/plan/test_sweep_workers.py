"""Sweeps over several processes, and over a Dask cluster."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

import joulecast as jc
from joulecast.errors import GuardError, InputError, UnknownNameError
from joulecast.plan.sweep import search, workers
from joulecast.plan.sweep.workers import Workers

SPLITS = {
    "parallelism__tensor_model_parallel_size": [1, 2, 4, 8],
    "parallelism__pipeline_model_parallel_size": [1, 2, 4],
    "workload__micro_batch_size": [1, 2, 4],
}


@pytest.fixture(scope="module")
def small(tables):
    """Every plan of a small space, in closed form alone."""
    return jc.sweep(tables(**SPLITS, schedule__recompute=["none", "full"]))


def test_processes_give_the_same_table(tables, small):
    again = jc.sweep(tables(**SPLITS, schedule__recompute=["none", "full"]), workers=2)
    assert again.rows == small.rows
    assert again.counts == small.counts


def test_the_first_refusal_is_told_in_whatever_order_jobs_are_done(tables, monkeypatch):
    space = tables(**SPLITS, overlap__nanobatches=[1, 2, 4])
    here = jc.sweep(space).refused
    assert here
    monkeypatch.setattr(search, "JOB_APART", 4)
    monkeypatch.setattr(Workers, "results", lambda _, work, jobs, left: ((n, work(*jobs[n])) for n in reversed(jobs)))
    assert jc.sweep(space, workers=2).refused == here


#: An expression that ends its process.
END = "__import__('os')._exit(9)"


def dying(folder):
    """Jobs whose number 1 ends its process the first time."""
    died = str(folder / "died")
    first = f"10 if __import__('os').path.exists({died!r}) else (open({died!r}, 'w').close(), {END})"
    return {n: (first if n == 1 else f"{10 * n}",) for n in range(6)}


class Breaking(ThreadPoolExecutor):
    """A pool whose jobs cannot be started."""

    def __init__(self, error):
        super().__init__(1)
        self.error = error

    def submit(self, *_, **__):
        raise self.error


def test_a_worker_that_ends_while_another_is_started_is_lost_like_others(monkeypatch):
    with Workers(2) as pool:
        made = [Breaking(OSError("handle is closed")), ThreadPoolExecutor(1)]
        monkeypatch.setattr(pool, "_new_executor", lambda: made.pop(0))
        assert dict(pool.results(eval, {0: ("7",)})) == {0: 7}
    with Workers(2) as pool, pytest.raises(OSError, match="no more processes"):
        monkeypatch.setattr(pool, "_new_executor", lambda: Breaking(OSError(11, "no more processes")))
        list(pool.results(eval, {0: ("7",)}))


def test_jobs_of_a_lost_worker_are_done_again(tmp_path, monkeypatch):
    """Workers evaluate expressions; one of them ends its process the first time."""
    with Workers(2) as pool:
        assert dict(pool.results(eval, dying(tmp_path))) == {n: 10 * n for n in range(6)}
        who = dict.fromkeys(range(6), ("__import__('os').getpid()",))
        assert len({process for _ in range(3) for _, process in pool.results(eval, who)}) <= 2  # they stay
        with pytest.raises(ValueError, match="a loss between"):
            for _ in pool.results(eval, {n: (END,) if n else ("1",) for n in range(2)}):
                raise ValueError("a loss between")
        assert dict(pool.results(eval, {0: ("7",)})) == {0: 7}
    monkeypatch.setattr(workers, "MOST_LOSSES", 2)
    with Workers(2) as pool, pytest.raises(InputError, match=r"workers were lost 2 times; 2 jobs are left"):
        list(pool.results(eval, {0: (END,), 1: (END,)}))


def test_errors_of_workers_arrive_as_they_are():
    """An error that could not be copied from process to process would look like a lost worker."""
    for error in (UnknownNameError("schedule", "1f1c", ("1f1b",)), GuardError("a law", ("plan",))):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_dask_gives_the_same_table(tables, small, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        space = tables(**SPLITS, schedule__recompute=["none", "full"], objective__top=2)
        found = jc.sweep(space, tmp_path / "rows.jsonl", dask=cluster.scheduler_address)
        assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
        with Workers(dask=cluster.scheduler_address) as pool:
            assert dict(pool.results(eval, dying(tmp_path))) == {n: 10 * n for n in range(6)}
    plain = jc.sweep(tables(**SPLITS, schedule__recompute=["none", "full"], objective__top=2))
    assert found.rows == plain.rows
    assert found.best == plain.best


def test_a_scheduler_that_does_not_answer(tables, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "CONNECT_S", 0.5)
    with pytest.raises(InputError, match="workers and dask exclude each other"):
        jc.sweep(tables(**SPLITS), workers=2, dask="tcp://127.0.0.1:9")
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        jc.sweep(tables(**SPLITS), dask="tcp://127.0.0.1:9")


def test_a_worker_computes_on_one_core(monkeypatch):
    """From Python each took all cores, for its linear algebra to wait on."""
    name = "OPENBLAS_NUM_THREADS"
    monkeypatch.delenv(name)
    with Workers(2) as workers:
        assert [found for _, found in workers.results(os.getenv, {0: (name,)})] == ["1"]
    assert name not in os.environ
