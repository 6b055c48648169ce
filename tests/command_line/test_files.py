"""Files are written whole or not at all, and what is no plain file stays what it is."""

import os
import stat
from pathlib import Path

import pytest

from joulecast.errors import InputError
from joulecast.files import write_folder, write_text


def test_a_file_is_replaced_whole_or_left(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "one\n")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=r"a\.txt: cannot be written: No space left on device"):
        write_text(path, "two\n")
    assert path.read_text() == "one\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "there" / "file.txt")
    write_text(link, "one\n")
    assert link.is_symlink()
    assert (tmp_path / "there" / "file.txt").read_text() == "one\n"


def test_a_folder_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, Path()):
        with pytest.raises(InputError, match="is a folder"):
            write_text(path, "one\n")
    with pytest.raises(InputError, match="is the current folder"):
        write_folder(Path(), {"a.txt": "one\n"})
    with pytest.raises(InputError, match="no such folder"):
        write_folder(tmp_path / "no" / "new", {"a.txt": "one\n"})
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    """It refuses to remove a draft that is not there, too."""
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_text(tmp_path / "no" / "a.txt", "one\n")


def test_a_device_gets_the_bytes_and_stays_a_device(tmp_path):
    """The superuser could otherwise replace a device by a file."""
    write_text(Path(os.devnull), "nothing\n")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "words\n")
    assert os.read(reader, 99) == b"words\n"
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_a_full_device_is_named():
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left"):
        write_text(Path("/dev/full"), "words\n")
