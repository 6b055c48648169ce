"""Nothing may be missing from the wheel: setuptools leaves out in silence what pyproject.toml does not list."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from paths import ROOT, TESTS

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = SETTINGS["tool"]["setuptools"]
#: Top-level folders that are sub-packages.
FOLDERS = [name for name in ("calibrate", "model", "plan", "simulator", "validate") if (ROOT / name).is_dir()]
DATA_ENDINGS = {".css", ".csv", ".js", ".json", ".jsonl", ".md", ".toml", ".txt", ".typed"}


def source_folder(package: str) -> Path:
    """The folder that holds a package, by the nearest entry of package-dir."""
    known = SETUPTOOLS["package-dir"]
    parts = package.split(".")
    for end in range(len(parts), 0, -1):
        parent = ".".join(parts[:end])
        if parent in known:
            return ROOT.joinpath(known[parent], *parts[end:])
    raise AssertionError(f"no folder for {package}")


def own_files(folder: Path) -> set[Path]:
    """Files below a folder, without following the symlinks to other folders."""
    return {
        p
        for p in folder.rglob("*")
        if p.is_file()
        and "__pycache__" not in p.parts
        and not any(q.is_symlink() for q in (p, *p.parents) if q != ROOT and ROOT in q.parents)
    }


def shipped_files() -> set[str]:
    """Every module and data file as it must stand in the wheel."""
    roots = {"joulecast": ROOT / "src" / "joulecast"} | {f"joulecast/{name}": ROOT / name for name in FOLDERS}
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for prefix, folder in roots.items()
        for path in own_files(folder)
        if path.suffix in DATA_ENDINGS | {".py"}
    }


def test_every_folder_with_modules_is_a_listed_package():
    packages = {str(Path(name).parent).replace("/", ".") for name in shipped_files() if name.endswith(".py")}
    assert packages == set(SETUPTOOLS["packages"])


def test_listed_packages_are_regular_packages():
    for package in SETUPTOOLS["packages"]:
        assert (source_folder(package) / "__init__.py").is_file(), package


def test_type_checkers_find_the_folders():
    for name in FOLDERS:
        link = ROOT / "src" / "joulecast" / name
        assert link.is_symlink(), link
        assert link.resolve() == ROOT / name


def test_version_is_stated_once_for_all():
    import joulecast

    assert SETTINGS["project"]["version"] == joulecast.__version__


def test_public_names_exist():
    import joulecast

    for name in joulecast.__all__:
        assert getattr(joulecast, name) is not None
    assert set(joulecast.__all__) <= set(dir(joulecast))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = joulecast.nonsense


def test_no_public_function_hides_a_sub_package():
    import joulecast

    assert not {"model", "simulator", "calibrate", "validate", "plan"} & set(joulecast.__all__)
    modules = {p.stem for p in (ROOT / "src" / "joulecast").glob("*.py")}
    assert not modules & set(joulecast.__all__)


def test_no_two_files_of_tests_have_the_same_name():
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_wheel_holds_everything_and_imports(tmp_path):
    source = tmp_path / "source"  # a copy: a build leaves files behind, which later builds would take up again
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("src", *FOLDERS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    expected = shipped_files()
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("joulecast-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
        archive.extractall(tmp_path / "unpacked")
    assert inside == expected

    unpacked = tmp_path / "unpacked"
    script = f"import sys, runpy; sys.path.insert(0, {str(unpacked)!r}); sys.argv = ['', '--anywhere']; "
    script += f"runpy.run_path({str(TESTS / 'support' / 'import_everything.py')!r})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert str(unpacked) in done.stdout
