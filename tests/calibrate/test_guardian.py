"""A card's settings are given back on every way out, proven with real processes on a simulated card."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.guardian import borrowed_settings
from joulecast.calibrate.devices.protocol import Settings
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_sensors import Faults
from joulecast.errors import DeviceError, PermissionDeniedError

OWN = Settings(power_limit_w=650.0)
BORROWED = Settings((345.0, 1200.0), 400.0)
#: What a calibration does: it sets the card, says so, and goes on until something happens.
SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.guardian import borrowed_settings
from joulecast.calibrate.devices.protocol import Settings
way = sys.argv[2]
with borrowed_settings(open_device(sys.argv[1])) as borrowed:
    if way != "nothing set":
        borrowed.apply(Settings((345.0, 1200.0), 400.0))
    child = os.fork() if way == "forked" else 0
    if way == "forked" and child == 0:
        time.sleep(120.0)  # holds everything open that its parent had
        os._exit(0)
    print(borrowed._guardian.pid, child, flush=True)
    sys.stdin.readline()
    if way == "exception":
        raise RuntimeError("something broke")
    if way == "exit at once":
        os._exit(5)
    if way in ("wait", "forked", "nothing set"):
        time.sleep(120.0)
"""


@pytest.fixture
def new_card(tmp_path):
    """Files of cards with a limit of their own."""

    def create(name="card"):
        file = tmp_path / f"{name}.json"
        SimulatedCard(file=file).apply(OWN)
        return file

    return create


@pytest.fixture
def file(new_card):
    return new_card()


def settings(file):
    return open_device(f"sim:{file}").settings()


def wait_for(condition, patience_s=60.0):
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_gone(pid):
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return True


class Calibration:
    """A main process that has borrowed the card's settings."""

    def __init__(self, file, way):
        self.file = file
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, f"sim:{file}", way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.guardian = self.child = 0

    def started(self):
        """Once it has set the card."""
        words = self.process.stdout.readline().split()
        self.guardian, self.child = (int(word) for word in words)
        return self

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self):
        """Exit status, once both processes are gone."""
        status = self.process.wait(60)
        gone = not self.guardian or wait_for(lambda: is_gone(self.guardian))
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        assert gone, "the guardian is still there"
        return status


@pytest.fixture
def calibration():
    """Starts main processes; none outlives its test."""
    running = []

    def start(way, file):
        running.append(Calibration(file, way))
        return running[-1]

    yield start
    for main in running:
        main.process.kill()
        main.ends()


WAYS = {
    "normal end": ("end", None, 0),
    "exception": ("exception", None, 1),
    "exit at once": ("exit at once", None, 5),
    "Ctrl-C": ("wait", signal.SIGINT, -signal.SIGINT),
    "SIGTERM": ("wait", signal.SIGTERM, -signal.SIGTERM),
    "kill -9": ("wait", signal.SIGKILL, -signal.SIGKILL),
}


def test_settings_are_given_back_on_every_way_out(calibration, new_card):
    # All at once: starting an interpreter takes most of the time.
    running = {name: calibration(way, new_card(name)) for name, (way, _, _) in WAYS.items()}
    for name, (_, kill, _) in WAYS.items():
        main = running[name].started()
        assert settings(main.file) == BORROWED
        main.go_on()
        if kill is not None:
            time.sleep(0.1)
            main.process.send_signal(kill)
    for name, (_, _, status) in WAYS.items():
        assert running[name].ends() == status, name
        assert settings(running[name].file) == OWN, name


@pytest.mark.parametrize(("said", "left"), [(b"armed\n", OWN), (b"armed\nrestored\n", BORROWED), (b"", BORROWED)])
def test_what_a_parent_said_counts_though_it_ended_before_anybody_listened(file, said, left):
    open_device(f"sim:{file}").apply(BORROWED)
    own = json.dumps(asdict(OWN))
    guardian = [sys.executable, "-P", "-m", "joulecast.calibrate.devices.guardian", f"sim:{file}", own, "1"]
    assert subprocess.run(guardian, input=said, capture_output=True, check=True, timeout=60).stdout == b"ready\n"
    assert settings(file) == left


def test_a_forked_child_that_holds_the_pipe_open_hinders_nothing(file, calibration):
    main = calibration("forked", file).started()
    main.process.kill()
    main.process.wait(60)
    try:
        assert wait_for(lambda: settings(file) == OWN)
        assert not is_gone(main.child)
    finally:
        os.kill(main.child, signal.SIGKILL)
    main.ends()


def test_where_nothing_was_set_nothing_is_given_back(file, calibration):
    main = calibration("nothing set", file).started()
    SimulatedCard.open(file).apply(Settings(power_limit_w=300.0))  # somebody else, meanwhile
    main.process.kill()
    main.ends()
    assert settings(file) == Settings(power_limit_w=300.0)


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "kill -9"])
def test_when_the_guardian_dies_the_settings_are_given_back_at_once(file, kill):
    with borrowed_settings(open_device(f"sim:{file}")) as borrowed:
        borrowed.apply(BORROWED)
        assert settings(file) == BORROWED
        os.kill(borrowed._guardian.pid, kill)
        assert wait_for(lambda: settings(file) == OWN)

        def refused():
            try:
                borrowed.apply(BORROWED)
            except DeviceError as error:
                return "guards the card's settings has died" in str(error)
            return False

        assert wait_for(refused)
    assert wait_for(lambda: settings(file) == OWN)


def test_ctrl_c_reaches_the_whole_group_but_not_the_guardian(file, calibration):
    main = calibration("wait", file).started()
    assert os.getsid(main.guardian) == main.guardian != os.getsid(main.process.pid)
    os.kill(main.guardian, signal.SIGINT)
    os.kill(main.guardian, signal.SIGHUP)
    time.sleep(0.1)
    assert settings(file) == BORROWED
    assert not is_gone(main.guardian)
    main.process.kill()
    main.ends()
    assert settings(file) == OWN


def test_in_this_process_too(file):
    card = open_device(f"sim:{file}")
    with pytest.raises(RuntimeError), borrowed_settings(card) as borrowed:
        borrowed.apply(BORROWED)
        guardian = borrowed._guardian.pid
        raise RuntimeError
    assert card.settings() == OWN
    assert is_gone(guardian)


def test_a_refused_value_leaves_nothing_behind(file):
    with pytest.raises(DeviceError, match="cannot be set"), borrowed_settings(open_device(f"sim:{file}")) as borrowed:
        borrowed.apply(BORROWED)
        borrowed.apply(Settings(power_limit_w=5000.0))
    assert settings(file) == OWN


def test_a_card_of_this_process_alone_needs_no_guardian():
    card = SimulatedCard()
    with borrowed_settings(card) as borrowed:
        assert borrowed._guardian is None
        borrowed.apply(BORROWED)
        assert card.settings() == BORROWED
    assert card.settings() == Settings()


def test_without_the_right_nothing_is_started(tmp_path):
    card = SimulatedCard(faults=Faults(privileged=False), file=tmp_path / "card.json")
    message = r"neither clocks nor the power limit.*passively"
    with pytest.raises(PermissionDeniedError, match=message), borrowed_settings(card):
        pytest.fail("it let us in")


def test_a_guardian_that_cannot_open_the_card_is_an_error_before_anything_is_set(file):
    card = open_device(f"sim:{file}")
    text = file.read_text(encoding="utf-8")
    file.unlink()
    with pytest.raises(DeviceError, match=r"does not start.*no such simulated card"), borrowed_settings(card):
        pytest.fail("it let us in")
    file.write_text(text, encoding="utf-8")
    assert settings(file) == OWN
