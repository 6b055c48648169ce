"""The command line as a whole: help, formats, cost of starting."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
import typer
from command import run
from paths import ROOT
from row_files import csv_text

import joulecast
from joulecast import cli
from joulecast.cli import main, one_line
from joulecast.command_line import output
from joulecast.files import write_text

HEAVY = ("torch", "pandas", "numba", "scipy.optimize", "tomlkit", "rich")


def loaded_modules(*arguments):
    """Modules that a fresh interpreter has loaded after one command."""
    code = (
        "import sys, contextlib, io\n"
        "from joulecast.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    try: main({list(arguments)!r})\n"
        "    except SystemExit as stop: status = stop.code\n"
        "print(status, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *modules = done.stdout.split()
    assert status in ("0", "None"), done.stderr
    return set(modules)


def test_help_names_every_command(capsys):
    status, out, err = run(capsys, "--help")
    assert (status, err) == (0, "")
    for command in ("predict", "validate", "gpus", "models", "calibrate", "doctor"):
        assert f"\n  {command}" in out


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"joulecast {joulecast.__version__}\n", "")


def test_help_is_that_of_all_commands_with_their_options(monkeypatch, capsys):
    """Help leaves the options out, of which it says nothing; the words are the same."""
    described = run(capsys, "--help")
    monkeypatch.setattr(cli, "Described", typer.Typer)
    assert run(capsys, "--help") == described


def test_help_imports_nothing_heavy():
    assert not loaded_modules("--help") & {*HEAVY, "numpy", "pydantic", "simpy"}


def test_predict_imports_nothing_heavy(examples):
    assert not loaded_modules("predict", str(examples / "llama-3.1-8b-4xh200.toml")) & set(HEAVY)


def test_predict_as_json_csv_and_text(capsys, examples):
    plan = str(examples / "llama-3.1-8b-4xh200.toml")
    status, out, err = run(capsys, "predict", plan, "--json", "--csv")
    whole = json.loads(out)
    assert (status, err) == (0, "")
    assert whole["time_s_p05"] < whole["time_s"] < whole["time_s_p95"]
    assert sum(whole["energy_by_component_j"].values()) == pytest.approx(whole["energy_j"])
    stages = csv_text(run(capsys, "predict", plan, "--csv")[1])
    assert [s["stage"] for s in stages] == ["0", "1"]
    assert sum(float(s["energy_j"]) * int(s["gpus"]) for s in stages) == pytest.approx(whole["energy_j"])
    _, out, _ = run(capsys, "predict", plan, "--set", "power.power_limit_w=500")
    assert "llama-3.1-8b on 4 x h200-sxm, 32768 tokens an iteration" in out
    assert "5-95 %" in out


def test_gpus_as_json_csv_and_text(capsys):
    names = [row["name"] for row in json.loads(run(capsys, "gpus", "--json")[1])]
    assert "h200-sxm" in names
    assert [row["name"] for row in csv_text(run(capsys, "gpus", "--csv")[1])] == names
    status, out, _ = run(capsys, "gpus", "show", "h100-sxm")
    assert status == 0
    assert "sm_count" in out
    assert re.search(r"registers_per_sm +65536 ", out)  # a count that is known has all of its digits
    assert re.search(r"memory_bytes +8\.552e\+10 ", out)
    assert json.loads(run(capsys, "gpus", "show", "h100-sxm", "--json")[1])["name"] == "h100-sxm"


def test_the_list_of_gpus_says_in_a_few_words_where_they_come_from(capsys):
    shown = {line.split()[0]: line for line in run(capsys, "gpus")[1].splitlines()}
    assert max(map(len, shown.values())) < 170
    assert shown["h200-sxm"].endswith("  fitted")
    assert shown["h100-sxm"].endswith("  derived: same architecture")
    assert shown["mi300x"].endswith("  derived: other vendor")


def test_a_model_is_shown_by_what_it_has(capsys):
    dense, experts = (run(capsys, "models", "show", name)[1] for name in ("qwen2.5-32b", "deepseek-v3"))
    assert re.search(r"^qkv_bias +true$", dense, re.M)
    assert "experts" not in dense and "latent" not in dense and "alibi" not in dense
    assert re.search(r"^experts_groups +8$", experts, re.M)
    whole = json.loads(run(capsys, "models", "show", "qwen2.5-32b", "--json")[1])
    assert f"and none of {len(whole) - len(dense.splitlines()) + 1} other features" in dense


def test_models_as_json_csv_and_text(capsys):
    status, out, _ = run(capsys, "models", "--json")
    listed = json.loads(out)
    assert status == 0
    assert {"name", "parameters", "layers"} <= set(listed[0])
    _, out, _ = run(capsys, "models", "--csv")
    table = csv_text(out)
    assert [row["name"] for row in table] == [row["name"] for row in listed]
    _, out, _ = run(capsys, "models")
    assert "llama-3.1-8b" in out
    assert "\x1b" not in out


def test_show_model(capsys):
    status, out, _ = run(capsys, "models", "show", "llama-3.1-8b", "--json")
    assert (status, json.loads(out)["parameters"]) == (0, 8_030_261_248)


def test_doctor(capsys):
    status, out, err = run(capsys, "doctor", "--json")
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert report["joulecast"] == joulecast.__version__
    assert {"numpy", "torch", "amdsmi"} <= {p["package"] for p in report["packages"]}
    assert "problem" in report["nvidia"]
    assert run(capsys, "doctor")[0] == 0


def test_doctor_survives_broken_vendor_bindings(capsys, monkeypatch):
    from joulecast.command_line import machine

    def broken():
        raise KeyError("ROCM_HOME")

    monkeypatch.setattr(machine, "amd_devices", broken)
    status, out, _ = run(capsys, "doctor", "--json")
    assert status == 0
    assert json.loads(out)["amd"]["problem"].startswith("KeyError")


def test_one_line():
    assert one_line("a:\n  b\n\nc") == "a: b c"


def test_plain_values():
    import numpy as np

    assert output.plain({"a": np.arange(2), "b": np.float64("inf"), "c": {1}, "d": np.bool_(True)}) == {
        "a": [0, 1],
        "b": None,
        "c": [1],
        "d": True,
    }


def test_files_are_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "file.txt"
    write_text(target, "text")
    assert target.read_text() == "text"
    with pytest.raises(joulecast.InputError, match="cannot be written"):
        write_text(tmp_path / "missing" / "file.txt", "text")
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_package_is_one_line_that_names_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setattr("joulecast.validate.run_suite", lambda *a, **k: __import__("scipy.optimize"))
    status, out, err = run(capsys, "validate", "kernels", "--data", "rows.jsonl", "--folds", "2")
    assert (status, out) == (2, "")
    assert err == 'error: this needs scipy, which is not installed. Install it: pip install "joulecast[fit]".\n'


def test_a_frame_without_pandas_is_the_same_line(monkeypatch):
    result = joulecast.gpu("h200-sxm").predict(joulecast.Gemm(m=1024, n=1024, k=1024, dtype="bf16"))
    assert len(result.to_frame()) == 1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(joulecast.InputError, match=r'this needs pandas.*pip install "joulecast\[fit\]"'):
        result.to_frame()


def test_a_missing_module_of_no_extra_is_a_defect(monkeypatch):
    monkeypatch.setattr("joulecast.validate.run_suite", lambda *a, **k: __import__("joulecast.nowhere"))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        main(["validate", "kernels", "--data", "rows.jsonl"])


def test_every_extra_that_is_named_exists():
    from joulecast.extras import EXTRAS

    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(EXTRAS.values()) <= set(written["project"]["optional-dependencies"])


def test_gpus_show_says_what_a_description_states_of_its_own(capsys):
    own = ["product", "power_limit_w", "min_power_limit_w", "max_power_limit_w"]
    assert f"(like gh200 but for {', '.join(own)};" in run(capsys, "gpus", "show", "gh200-120gb")[1]
    shown = json.loads(run(capsys, "gpus", "show", "gh200-120gb", "--json")[1])
    assert shown["like"] == {"name": "gh200", "but_for": own}
