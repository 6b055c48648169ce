"""Mutation testing finds every module of ``model/``, functions that are alive, and what they remember."""

from __future__ import annotations

import gc

from benchmarks.mutants import ROOT, Caches, Mutant, drawn, functions, importers, put_in
from joulecast.model.cluster import collectives
from joulecast.model.hardware import derivation_rules
from joulecast.model.hardware.catalogue import load_training

MODEL = ROOT / "model"


def one_of(file: str, change: str) -> Mutant:
    """The mutant of a file with this change."""
    return next(one for one in drawn([MODEL / file], 10**6, seed=0) if one.change == change)


def test_functions_that_were_frozen_are_found_and_changed():
    gc.freeze()
    one = one_of("cluster/collectives.py", "threads / DEFAULT_THREADS  ->  threads * DEFAULT_THREADS")
    place = functions()[str(one.file), one.owner]
    assert place == [collectives.copy_share]
    before = collectives.copy_share.__code__
    try:
        put_in(one, place, Caches())
        assert collectives.copy_share(256) == 1.0
    finally:
        collectives.copy_share.__code__ = before
    assert collectives.copy_share(256) < 1.0


def test_what_functions_remember_is_forgotten():
    caches = Caches()
    load_training()
    assert load_training.cache_info().currsize
    caches.clear()
    assert not load_training.cache_info().currsize


def test_modules_of_tables_are_tested_by_those_that_import_them():
    one = one_of("hardware/derivation_rules.py", "0.97  ->  1.455")
    assert (one.module, one.owner) == (derivation_rules.__name__, None)
    assert {file.name for file in importers(one)} == {"derivation.py", "derivation_supplement.py"}
