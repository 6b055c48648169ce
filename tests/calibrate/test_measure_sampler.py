"""The sampler's process: what it sees, what it costs, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_sensors import Faults
from joulecast.calibrate.measure.sampler import ProcessSampler, SamplerPool, VirtualSampler
from joulecast.calibrate.measure.sampling_process import LONGEST_PERIOD_S
from joulecast.errors import DeviceError, MeasurementError

#: A card whose readings cost so much of a core and block for so long.
COSTLY = """
import sys, time
from joulecast.calibrate.devices.protocol import Device, Sample
from joulecast.calibrate.devices.card_process import serve
from joulecast.calibrate.measure.sampling_process import SampledCard
spin_s, block_s = map(float, sys.argv[1:])
class Card(Device):
    def apply(self, settings):
        pass
    def sample(self):
        begin, end = time.monotonic(), time.process_time() + spin_s
        while time.process_time() < end:
            pass
        time.sleep(block_s)
        now = time.monotonic()
        return Sample((begin + now) / 2, now - begin, energy_j=700.0 * now, reasons=("power_limit",))
serve(SampledCard(Card(), 0.02), 1)
"""


#: A card that writes down its power, with calls that keep a core as busy as an H200's driver does.
BUSY_DRIVER = """
import time
from joulecast.calibrate.devices.protocol import Device, PowerReading, Sample
from joulecast.calibrate.devices.card_process import serve
from joulecast.calibrate.measure.sampling_process import SampledCard
def spin(duration_s):
    end = time.thread_time() + duration_s
    while time.thread_time() < end:
        pass
class Card(Device):
    history_step_s = 0.02
    def apply(self, settings):
        pass
    def sample(self, *, counter=True):
        begin = time.monotonic()
        spin(0.0003 + counter * 0.0047)
        now = time.monotonic()
        return Sample((begin + now) / 2, now - begin, energy_j=700.0 * now if counter else None, sm_clock_mhz=1500.0)
    def power_history(self, since_s):
        spin(0.001)
        newest = int((time.monotonic() - 0.011) / 0.02)
        return [PowerReading(k * 0.02, 700.0) for k in range(newest - 118, newest + 1) if k * 0.02 > since_s + 1e-3]
serve(SampledCard(Card(), 0.02), 1)
"""

#: A process that wakes up as often as one that samples beside a history, and does nothing.
BARE = """
import time
from joulecast.calibrate.devices.card_process import irregular, serve
from joulecast.calibrate.measure.collector import CHEAP_PERIOD_S
class Bare:
    begin_s = None
    def first_answer(self):
        return {}
    def obey(self, line):
        if self.begin_s is None:
            self.count, self.begin_cpu_s = 0, time.process_time()
            self.begin_s = self.next_s = time.monotonic()
        spent_s = time.monotonic() - self.begin_s
        return {"core_share": (time.process_time() - self.begin_cpu_s) / spent_s}
    def wait_s(self):
        return None if self.begin_s is None else max(self.next_s - time.monotonic(), 0.0)
    def read(self):
        self.count += 1
        self.next_s = time.monotonic() + CHEAP_PERIOD_S * irregular(self.count)
serve(Bare(), 1)
"""


@pytest.fixture(scope="module")
def locator(tmp_path_factory):
    file = tmp_path_factory.mktemp("card") / "card"
    SimulatedCard(file=file, realtime=True)
    return f"sim:{file}"


@pytest.fixture(scope="module")
def sampler(locator):
    sampler = ProcessSampler(locator)
    yield sampler
    sampler.close()


def gathered(sampler, count, patience_s=60.0):
    """At least so many samples; a busy machine is given time for them."""
    found, end = [], time.monotonic() + patience_s
    while len(found) < count and time.monotonic() < end:
        time.sleep(0.1)
        found += sampler.take()[0]
    return found


def test_a_process_samples_in_the_machines_time(sampler):
    sampler.start()
    begin = time.monotonic()
    first = gathered(sampler, 4)
    second = gathered(sampler, 2) + sampler.stop()[0]
    end = time.monotonic()
    times = [s.time_s for s in [*first, *second]]
    assert begin - 0.1 < times[0] and times[-1] < end
    assert times == sorted(times)
    assert len(first) >= 4 and len(second) >= 2
    assert all(s.power_w is not None and isinstance(s.reasons, tuple) for s in first)
    time.sleep(0.15)
    assert sampler.take() == ([], [])  # stopped
    sampler.start()
    assert all(s.time_s > end for s in sampler.stop()[0])


def test_a_stall_is_seen_and_does_not_hold_up_the_caller(tmp_path):
    SimulatedCard(file=tmp_path / "card", realtime=True, faults=Faults(stall_every_s=0.3, stall_s=1.5))
    sampler = ProcessSampler(f"sim:{tmp_path / 'card'}")
    try:
        begin = time.monotonic()
        sampler.start()
        assert time.monotonic() - begin < 1.0
        time.sleep(1.0)
        assert max(s.call_s for s in sampler.stop()[0]) > 1.4
    finally:
        sampler.close()


@pytest.mark.parametrize(("spin_s", "block_s", "fastest_s"), [(0.0, 0.005, 0.02), (0.0003, 0.0, 0.03)])
def test_sampling_costs_a_hundredth_of_a_core(spin_s, block_s, fastest_s):
    """The share that it keeps to, and starting and stopping; more where it may slow down no further."""
    process = subprocess.Popen(
        [sys.executable, "-c", COSTLY, str(spin_s), str(block_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    with process, process.stdin, process.stdout:
        answers = [json.loads(process.stdout.readline())]
        for command, wait_s in (("start 1", 3.0), ("stop 2", 0.0)):
            process.stdin.write(f"{command}\n".encode())
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
            time.sleep(wait_s)
    ready, started, stopped = answers
    assert ready == {"history_step_s": None} and started["to"] == 1
    times = [values[0] for values in stopped["samples"]]
    assert len(times) >= 5
    gaps = sorted(b - a for a, b in pairwise(times))
    mean_s = sum(gaps) / len(gaps)
    assert 0.0 < stopped["core_share"] < (0.012 if mean_s < 0.9 * LONGEST_PERIOD_S else 0.05)
    assert mean_s > fastest_s  # it slowed down for the cost, not more than it may
    assert gaps[len(gaps) // 2] < 0.15


def conversation(script, commands):
    """What a sampling process answers to (command, seconds to wait afterwards)."""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        with process.stdin, process.stdout:
            answers = [json.loads(process.stdout.readline())]
            for number, (command, wait_s) in enumerate(commands):
                process.stdin.write(f"{command} {number}\n".encode())
                process.stdin.flush()
                answers.append(json.loads(process.stdout.readline()))
                time.sleep(wait_s)
    return answers


def test_beside_a_history_the_costly_counter_is_hardly_read():
    """The calls of a benchmark: those of a real driver are counted, and cost what they cost on an H200.

    Our own work beside them depends on the machine: with a driver that costs nothing it is held against that of a
    process which only wakes up as often, at the same time.
    """
    commands = [("start", 0.5), ("take", 0.5), ("take", 2.6), ("take", 0.0), ("stop", 0.0)]
    ready, _, *taken = conversation(BUSY_DRIVER, commands)
    assert ready == {"history_step_s": 0.02}
    free = BUSY_DRIVER.replace("thread_time() < end", "thread_time() < 0.0")
    with ThreadPoolExecutor(2) as pool:
        (*_, ours), (*_, bare) = pool.map(conversation, (free, BARE), (commands, commands))
    assert 0.0 < ours["core_share"] < 3.0 * bare["core_share"]
    powers = [when for answer in taken for when, _ in answer["history"]]
    steps = [b - a for a, b in pairwise(powers)]
    assert min(steps) == pytest.approx(0.02, abs=1e-6) == max(steps)  # nothing twice, nothing left out
    assert powers[-1] - powers[0] > 3.5
    times = [values[0] for answer in taken for values in answer["samples"]]
    energies = [values[2] for answer in taken for values in answer["samples"] if values[2] is not None]
    assert len(energies) == 2 and energies[1] - energies[0] > 700.0 * 3.0
    gaps = [b - a for a, b in pairwise(times)]
    assert 0.05 < sum(gaps) / len(gaps) < 0.11 and max(gaps) < 0.25
    driver_s = len(times) * 0.0003 + len(energies) * 0.0047 + len(taken) * 0.001
    assert driver_s / (times[-1] - times[0]) < 0.008


def test_a_dense_counter_is_read_in_every_sample():
    _, _, stopped = conversation(BUSY_DRIVER, [("start-dense", 1.0), ("stop", 0.0)])
    assert stopped["history"] == [] and len(stopped["samples"]) > 5
    assert all(values[2] is not None for values in stopped["samples"])


def test_a_process_brings_the_history_along(sampler):
    assert sampler.history_step_s == 0.02
    begin = time.monotonic()
    sampler.start()
    time.sleep(0.4)
    samples, first = sampler.take()
    assert sum(s.energy_j is not None for s in samples) == 1
    time.sleep(0.1)
    found = [*first, *sampler.stop()[1]]
    assert [b.time_s - a.time_s for a, b in pairwise(found)] == pytest.approx([0.02] * (len(found) - 1))
    assert found[0].time_s > begin and found[-1].time_s - found[0].time_s > 0.4
    sampler.start(dense_counter=True)
    time.sleep(0.2)
    samples, readings = sampler.stop()
    assert all(s.energy_j is not None for s in samples) and readings == []


def test_readings_are_spread_irregularly(sampler):
    sampler.start()
    times = [s.time_s for s in gathered(sampler, 12) + sampler.stop()[0]]
    gaps = sorted(b - a for a, b in pairwise(times))
    assert gaps[-2] > 1.3 * gaps[1]


def test_a_card_that_cannot_be_opened(tmp_path):
    with pytest.raises(DeviceError, match="no such simulated card"):
        ProcessSampler(f"sim:{tmp_path / 'missing'}")


def test_a_card_that_dies(tmp_path):
    SimulatedCard(file=tmp_path / "card", realtime=True, faults=Faults(dies_at_s=time.monotonic()))
    sampler = ProcessSampler(f"sim:{tmp_path / 'card'}")
    try:
        sampler.start()
        time.sleep(0.3)
        with pytest.raises(DeviceError, match="does not answer any more"):
            sampler.stop()
    finally:
        sampler.close()


def test_a_killed_sampler_is_told(locator):
    sampler = ProcessSampler(locator)
    sampler.start()
    os.kill(sampler._process.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="the process that reads the card ended: killed"):
        sampler.take()
    sampler.close()
    with pytest.raises(MeasurementError, match="closed"):
        sampler.start()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_worker_does_not_keep_the_sampler(locator):
    """Workers of a data loader inherit the pipe to the sampler, and may live longer."""
    sampler = ProcessSampler(locator)
    sampler.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking while there are threads
        worker = os.fork()
    if worker == 0:
        time.sleep(30)
        os._exit(0)
    try:
        begin = time.monotonic()
        sampler.close()
        assert time.monotonic() - begin < 1.5
        assert sampler._process._process.returncode == 0
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_an_interrupted_question_does_not_confuse_the_next(sampler):
    sampler.start()
    time.sleep(0.2)
    sampler._asked += 1
    sampler._process.say(f"take {sampler._asked}")  # its asker never read the answer
    time.sleep(0.2)
    sampler.stop()
    assert sampler.take() == ([], [])


def test_the_sampler_ends_with_a_killed_parent(locator):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from joulecast.calibrate.measure.sampler import ProcessSampler\n"
            "s = ProcessSampler(sys.argv[1]); s.start(); print(s._process.pid, flush=True); time.sleep(60)",
            locator,
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = Path("/proc") / parent.stdout.readline().decode().strip()
    assert child.is_dir()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60.0
    while child.is_dir() and "State:\tZ" not in (child / "status").read_text() and time.monotonic() < end:
        time.sleep(0.05)
    assert not child.is_dir() or "State:\tZ" in (child / "status").read_text()


def test_nothing_heavy_is_imported():
    script = "import sys, joulecast.calibrate.measure.sampler\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "scipy", "numpy", "pandas", "pydantic"} & set(found)


def test_virtual_time_is_sampled_while_it_passes():
    card = SimulatedCard()
    sampler = VirtualSampler(card)
    card.sleep(1.0)
    sampler.start()
    card.sleep(1.0)
    first, _ = sampler.take()
    card.sleep(0.5)
    second, _ = sampler.stop()
    card.sleep(0.5)
    assert sampler.take() == ([], [])
    times = [s.time_s for s in [*first, *second]]
    assert 1.0 < times[0] < 1.06 and 2.44 < times[-1] <= 2.51
    assert len(times) == pytest.approx(1.5 / 0.0573 + 1, abs=2)


def test_a_pool_keeps_its_samplers(locator):
    virtual, real = SimulatedCard(), SimulatedCard.open(Path(locator.removeprefix("sim:")))
    with SamplerPool() as pool:
        assert isinstance(pool(virtual), VirtualSampler)
        sampler = pool(real)
        assert isinstance(sampler, ProcessSampler) and pool(real) is sampler
        sampler.start()
        sampler.stop()
        assert pool.core_share == sampler.core_share > 0.0
    with pytest.raises(MeasurementError, match="closed"):
        sampler.start()


def test_a_process_with_thousands_of_open_files_still_hears_the_sampler(locator):
    """A training loop may hold more files than ``select`` can watch: 1024."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 1300:
        pytest.skip("this machine allows no process so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300) if soft >= 0 else soft, hard))
    files = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while files[-1] < 1100:
            files.append(os.open(os.devnull, os.O_RDONLY))
        sampler = ProcessSampler(locator)
        try:
            sampler.start()
            assert sampler.stop() is not None
        finally:
            sampler.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
