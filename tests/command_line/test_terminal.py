"""What a terminal, a pipe and a shell see: clean answers, progress that does not stay, completion, exit statuses."""

import builtins
import csv
import io
import json
import os
import pty
import re
import subprocess
import sys

import pytest
from command import status_of

from joulecast.cli import ORDER
from joulecast.errors import GuardError

PLAN = "examples/llama-3.1-8b-4xh200.toml"
ROWS = "validate/recorded/h200_sxm/train_iterations.jsonl"
COMMANDS = {
    "predict": ("predict", PLAN),
    "front": ("front", PLAN),
    "compare": ("compare", PLAN, "examples/llama-3.2-3b-4xh200-ddp.toml"),
    "validate": ("validate", "train", "--data", ROWS),
    "sweep": ("sweep", "examples/sweep-llama-8b-power.toml", "--set", "objective.top=0"),
    "gpus": ("gpus",),
    "gpu": ("gpus", "show", "h200-sxm"),
    "models": ("models",),
    "nodes": ("nodes",),
    "networks": ("networks",),
    "sites": ("sites",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_answers_are_clean(name, capsys, monkeypatch, root):
    monkeypatch.chdir(root)
    assert status_of(*COMMANDS[name], "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert "\x1b" not in out + err
    assert status_of(*COMMANDS[name], "--csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])}


def test_other_answers_are_clean(capsys, monkeypatch, root):
    monkeypatch.chdir(root)
    for command in (("models", "show", "llama-3.1-8b"), ("doctor",)):
        assert status_of(*command, "--json") == 0
        assert json.loads(capsys.readouterr().out)


def in_terminal(script, **environment):
    """What a script writes to a terminal of its own."""
    parent, child = pty.openpty()
    env = (
        {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
        | {"TERM": "xterm-256color"}
        | environment
    )
    done = subprocess.Popen([sys.executable, "-c", script], stdout=child, stderr=child, stdin=child, env=env)
    os.close(child)
    text = b""
    try:
        while part := os.read(parent, 65536):
            text += part
    except OSError:  # the other end has closed
        pass
    done.wait(timeout=60)
    os.close(parent)
    return text.decode()


WORK = """
import time
from joulecast.command_line.output import working
with working('thinking'):
    time.sleep(0.4)
print('done')
"""


def test_progress_is_drawn_on_a_terminal_and_goes():
    text = in_terminal(WORK)
    assert "thinking" in text
    assert text.rstrip().endswith("done")
    assert "\x1b[2K" in text  # the line is wiped
    assert "\x1b[32m" in text
    plain = in_terminal(WORK, NO_COLOR="1")
    assert "thinking" in plain and "\x1b[32m" not in plain
    assert in_terminal(WORK, TERM="dumb").split() == ["done"]


def test_progress_is_nothing_in_a_pipe():
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


BAR = """
from joulecast.command_line.progress import ProgressBar
with ProgressBar() as bar:
    for i in range(4):
        bar.show(i + 1, 4, 'plans')
print('done')
"""


def test_a_bar_is_wiped_on_a_terminal_and_nothing_elsewhere():
    text = in_terminal(BAR)
    assert "4/4 plans" in text
    assert text.split("\r")[-2].startswith("\x1b[K") and "done" in text.split("\r")[-2]
    assert in_terminal(BAR, TERM="dumb").split() == ["done"]
    done = subprocess.run([sys.executable, "-c", BAR], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_tables_are_drawn_on_a_terminal_only(capsys):
    script = "from joulecast.cli import main\nmain(['sites'])"
    assert "┃" in in_terminal(script)
    assert "\x1b" not in in_terminal(script, NO_COLOR="1", TERM="dumb")
    assert status_of("sites") == 0
    assert "┃" not in capsys.readouterr().out


def test_help_lists_what_most_people_need_first_each_on_a_line(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert status_of("--help") == 0
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines][:4] == ["predict", "convert", "compare", "sweep"]
    assert [line.split()[0] for line in lines] == list(ORDER)
    assert not [line for line in lines if line.endswith("...") or len(line) > 80]


@pytest.mark.parametrize("command", ORDER)
def test_help_names_values_by_what_they_are(command, capsys):
    assert status_of(command, "--help") == 0
    assert not re.search(r"--\S+ <", capsys.readouterr().out)


def test_help_names_every_suite():
    from joulecast.commands.validate import SUITES
    from joulecast.validate import registry

    assert sorted(", ".join(SUITES).split(", ")) == sorted([*registry.SUITES, *registry.OTHER_FORMS])


@pytest.mark.parametrize("width", [50, 80, 200])
def test_no_value_is_cut_off_on_a_terminal_of_any_width(width, capsys):
    rows = [{"stage": i, **{f"quantity_{k} [s]": 1000.0 + 10 * i + k for k in range(9)}} for i in range(8)]
    rows = [{**row, "source": f"a long story of where the numbers of row {row['stage']} come from"} for row in rows]
    script = "from joulecast.command_line.output import print_table\n"
    script += f"rows = {rows!r}\nprint_table(rows)\nprint_table(rows[:2])"
    text = re.sub(r"\x1b\[[0-9;]*m", "", in_terminal(script, COLUMNS=str(width)))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for i, row in enumerate(rows):
        for name, value in row.items():
            if isinstance(value, float):
                shown = f"{value:.4g}"
                assert len(re.findall(rf"\b{shown}\b", text)) == (2 if i < 2 else 1), (name, shown)
    assert text.count("story") == 10


def test_shells_complete_commands(monkeypatch):
    monkeypatch.setenv("_JOULECAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "joulecast pr")
    monkeypatch.setenv("COMP_CWORD", "1")
    script = "from joulecast.cli import main\nmain([])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["predict", "profile"]


def test_exit_statuses_are_those_of_the_page(monkeypatch, capsys, root):
    monkeypatch.chdir(root)
    assert status_of("--version") == 0
    assert status_of("predict") == 2
    assert status_of("predict", "none.toml") == 2
    assert status_of("nonsense") == 2

    def broken(*_):
        raise GuardError("energy is lost")

    monkeypatch.setattr("joulecast.simulator.iteration.forecast.check_iteration", broken)
    assert status_of("predict", PLAN) == 3
    assert "error: energy is lost" in capsys.readouterr().err  # and the plan, for the report
    text = (root / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    for status in (0, 1, 2, 3, 130):
        assert re.search(rf"\n\| {status}(, \d+)* \| ", text)


def test_an_interruption_has_a_status_of_its_own(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("joulecast.command_line.output.print_json", interrupted)
    assert status_of("sites", "--json") == 130
    monkeypatch.setattr("joulecast.cli.build_app", interrupted)
    assert status_of("sites") == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [("sites",), ("gpus", "show", "h200-sxm", "--json")])
def test_a_full_disk_is_one_line(arguments):
    script = f"from joulecast.cli import main\nmain({list(arguments)!r})"
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the answer cannot be written: ")
    assert len(done.stderr.splitlines()) == 1


def in_shell(line, **environment):
    """What a shell sees of a line in which JC stands for the command."""
    command = line.replace("JC", f'"{sys.executable}" -m joulecast')
    plain = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    return subprocess.run(["sh", "-c", command], capture_output=True, env=plain | environment, check=False)


def test_a_terminal_without_unicode_gets_codes_of_letters():
    """Those that it has not, as standard error shows them; JSON stays JSON."""
    shown = in_shell("JC gpus show h200-sxm", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"\\u" in shown.stdout or b"\\x" in shown.stdout
    plain, coded = (in_shell("JC gpus show h200-sxm --json", PYTHONIOENCODING=e) for e in ("utf-8", "ascii"))
    assert json.loads(plain.stdout) == json.loads(coded.stdout)
    assert not plain.stdout.isascii()


@pytest.mark.parametrize(("closing", "answers"), [(">&-", False), ("2>&-", True), ("<&-", True), (">&- 2>&-", False)])
def test_a_closed_stream_is_no_failure(closing, answers, root):
    """Messages of a closed standard error do not go to standard output."""
    done = in_shell(f"JC predict {root / PLAN} --json {closing}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) if answers else done.stdout == b""


def test_an_error_without_standard_error_is_a_status_alone():
    done = in_shell("JC predict none.toml 2>&-")
    assert (done.returncode, done.stdout) == (2, b"")


def test_an_interruption_while_the_command_loads_has_its_status(monkeypatch):
    from joulecast import __main__ as start

    def interrupted(name, *rest):
        if name == "joulecast.cli":
            raise KeyboardInterrupt
        return load(name, *rest)

    load = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as stop:
        start.main()
    assert stop.value.code == 130
