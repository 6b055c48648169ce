"""GPU descriptions of other packages: found through their entry points, and named with their package."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from command import status_of

import joulecast.model
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.sessions.base import base_name
from joulecast.command_line.machine import catalogue
from joulecast.errors import InputError, UnknownNameError
from joulecast.model.hardware.catalogue import all_gpus, gpu_names, gpu_package, load_gpu

SHIPPED = Path(joulecast.model.__file__).parent / "catalogue_data" / "gpus"


def install(folder: Path, entries: str, code: str) -> None:
    """A distribution ``fake-cards 1.2`` with the module ``fake_cards``, as pip would leave it."""
    info = folder / "fake_cards-1.2.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: fake-cards\nVersion: 1.2\n")
    info.joinpath("entry_points.txt").write_text(f"[joulecast.gpus]\n{entries}\n")
    module = folder / "fake_cards"
    module.mkdir()
    module.joinpath("__init__.py").write_text(code)
    data = module / "cards"
    data.mkdir()
    for name in ("quick-card", "slow-card"):
        text = SHIPPED.joinpath("a40.toml").read_text().replace('name = "a40"', f'name = "{name}"')
        data.joinpath(f"{name}.toml").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of imports."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "fake_cards", raising=False)
    return folder


CODE = """
from pathlib import Path
FOLDER = Path(__file__).parent / "cards"
def slow(): return FOLDER / "slow-card.toml"
NUMBER = 3
def missing(): return FOLDER / "no.toml"
"""


def test_a_folder_gives_a_gpu_for_each_file(site: Path) -> None:
    install(site, "cards = fake_cards:FOLDER", CODE)
    assert {"quick-card", "slow-card", "a40"} <= set(gpu_names())
    assert load_gpu("quick-card").number("sm_count") == load_gpu("a40").number("sm_count")
    assert gpu_package("quick-card") == "fake-cards 1.2"
    assert gpu_package("a40") == ""


def test_a_path_in_a_packages_description_starts_in_its_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "cards = fake_cards:FOLDER", CODE)
    kin = site / "fake_cards" / "cards" / "kin-card.toml"
    fact = 'sm_count = {value = 60, rel_sd = 0, source = "a page", status = "data sheet"}'
    kin.write_text(f'schema_version = 1\nname = "kin-card"\nlike = "quick-card.toml"\n[device]\n{fact}\n')
    monkeypatch.chdir(tmp_path)
    assert load_gpu("kin-card").number("sm_count") == 60
    kin.with_name("odd-card.toml").write_text(kin.read_text().replace("sm_count", "sm_cnt"))
    with pytest.raises(InputError, match="unknown key 'sm_cnt'") as caught:
        load_gpu("odd-card")
    assert caught.value.file == str(kin.with_name("odd-card.toml"))


def test_a_package_installed_later_is_seen_and_the_search_is_not_repeated(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "quick-card" not in gpu_names()
    install(site, "cards = fake_cards:FOLDER", CODE)
    assert "quick-card" in gpu_names()
    monkeypatch.setattr(metadata, "entry_points", None)
    assert "quick-card" in gpu_names()


def test_a_function_gives_one_file_under_the_name_of_the_entry_point(site: Path) -> None:
    install(site, "our-card = fake_cards:slow", CODE)
    assert "our-card" in gpu_names()
    assert "slow-card" not in gpu_names()
    assert load_gpu("our-card").name == "slow-card"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard output of a command."""
    assert status_of(*arguments) == 0
    return capsys.readouterr().out


def test_the_command_line_says_whose_gpu_it_is(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "cards = fake_cards:FOLDER", CODE)
    assert "from package fake-cards 1.2" in answer(capsys, "gpus", "show", "quick-card").splitlines()[0]
    shown = json.loads(answer(capsys, "gpus", "show", "quick-card", "--json"))
    assert shown["package"] == "fake-cards 1.2"
    listed = {row["name"]: row["package"] for row in json.loads(answer(capsys, "gpus", "--json"))}
    assert (listed["quick-card"], listed["a40"]) == ("fake-cards 1.2", "joulecast")
    assert "package" not in json.loads(answer(capsys, "gpus", "show", "a40", "--json"))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("cards = fake_cards:nothing", "cannot be loaded"),
        ("cards = fake_cards:NUMBER", "gives int, not a path"),
        ("cards = fake_cards:missing", "does not exist"),
        ("a40 = fake_cards:slow", "joulecast has already"),
    ],
)
def test_a_broken_package_is_named_and_hides_no_other_gpu(
    site: Path, entries: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, entries, CODE)
    _, (problem,) = all_gpus()
    assert str(problem).startswith("fake-cards 1.2: ") and words in str(problem)
    assert load_gpu("a40").name == "a40" and "a40" in gpu_names()
    with pytest.raises(UnknownNameError, match=f"unknown GPU 'a41'; fake-cards 1.2: .*{words}.*'a40'"):
        load_gpu("a41")
    assert status_of("gpus") == 2
    listed, told = capsys.readouterr()
    assert "\na40 " in listed and told == f"error: {problem}\n"
    assert words in catalogue()


def test_a_broken_description_of_a_package_is_named_and_hides_no_other(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "cards = fake_cards:FOLDER", CODE)
    file = site / "fake_cards" / "cards" / "torn-card.toml"
    file.write_text(file.with_name("quick-card.toml").read_text().replace("sm_count", "sm_cnt"))
    assert status_of("gpus", "--json") == 2
    listed, told = capsys.readouterr()
    names = {row["name"] for row in json.loads(listed)}
    assert "slow-card" in names and "torn-card" not in names
    assert told.startswith(f"error: fake-cards 1.2: {file}:") and "'sm_cnt'. Update" in told
    assert base_name(SimulatedCard("h200-sxm").facts) == "h200-sxm"


def test_unknown_names_come_with_the_nearest_of_other_packages(site: Path) -> None:
    install(site, "cards = fake_cards:FOLDER", CODE)
    with pytest.raises(UnknownNameError, match="'quick-card'"):
        load_gpu("quik-card")
