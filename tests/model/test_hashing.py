"""Hashes that are found once: equal for what is equal, and of one process alone."""

import copy
import pickle
from dataclasses import dataclass, fields, replace

import pytest

from joulecast.model.hashing import HashedOnce, hashed_once, shared


class Counted(int):
    """A number that counts how often its hash is asked for."""

    asked = 0

    def __hash__(self) -> int:
        Counted.asked += 1
        return int(self)


@hashed_once
@dataclass(frozen=True, slots=True)
class Key(HashedOnce):
    number: int
    word: str = ""


@pytest.fixture(name="key")
def a_key() -> Key:
    Counted.asked = 0
    return Key(Counted(7))


def test_fields_are_hashed_once(key: Key) -> None:
    assert {key: 1}[key] == 1
    assert hash(key) == hash(Key(7))
    assert Counted.asked == 1


def test_a_changed_copy_has_its_own_hash(key: Key) -> None:
    hash(key)
    assert hash(replace(key, number=8)) == hash(Key(8)) != hash(key)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda key: pickle.loads(pickle.dumps(key))])
def test_the_hash_goes_with_no_copy(key: Key, again) -> None:
    """Another process has other hashes of words."""
    hash(key)
    assert not hasattr(again(key), "_hash")
    assert again(key) == key


def test_the_hash_is_no_field(key: Key) -> None:
    hash(key)
    assert [field.name for field in fields(key)] == ["number", "word"]
    assert not hasattr(key, "__dict__")


def test_equal_values_become_one() -> None:
    first = shared(Key(11, "word"))
    assert shared(Key(11, "word")) is first
    assert shared(Key(11)) is not first
