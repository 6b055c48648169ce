"""Real launches: kernels through PyTorch on CPU tensors, and a polling process that reads a card in real time."""

import time

import numpy as np
import pytest

from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.power_profile.clocks import fit_clock
from joulecast.calibrate.power_profile.kernels import kernel_benchmark
from joulecast.calibrate.power_profile.poller import Poller
from joulecast.calibrate.power_profile.protocol import Channel
from joulecast.calibrate.power_profile.readings import readings_of
from joulecast.errors import DeviceError, MeasurementError


class FakeLog:
    """Remembers when it was asked to log."""

    def __init__(self):
        self.began = self.ended = None
        self.closed = False

    def start(self):
        self.began = time.monotonic()

    def stop(self):
        self.ended = time.monotonic()
        return (Channel("power", "power", np.array([self.began, self.ended]), np.array([1.0, 2.0])),)

    def close(self):
        self.closed = True


class TestTorchBench:
    @pytest.fixture(scope="class")
    @classmethod
    def log(cls):
        return FakeLog()

    @pytest.fixture(scope="class")
    @classmethod
    def series(cls, log):
        pytest.importorskip("torch")
        from joulecast.calibrate.power_profile.torch_bench import TorchBench

        kernels = [kernel_benchmark("gemm:256x256x256:fp32"), kernel_benchmark("gemm:512x256x256:fp32")]
        bench = TorchBench(kernels, "cpu", log)
        found = bench.series(30, [0.02, 0.05, 0.02])
        bench.close()
        return found

    def test_every_run_has_its_marks(self, series):
        assert len(series.runs) == 3
        for run in series.runs:
            assert run.steps[0] == 0
            assert run.steps[-1] == 60
            assert np.all(np.diff(run.steps) > 0)
            assert np.all(np.diff(run.times_s) > 0)
            assert run.steps[:25].tolist() == list(range(25))

    def test_runs_begin_after_their_delays(self, series):
        gaps = [b.times_s[0] - a.times_s[-1] for a, b in zip(series.runs, series.runs[1:], strict=False)]
        assert gaps[0] > 0.05
        assert gaps[1] > 0.02

    def test_the_log_spans_all_runs(self, series, log):
        assert log.began < series.runs[0].times_s[0]
        assert series.runs[-1].times_s[-1] < log.ended
        assert series.channels[0].values.tolist() == [1.0, 2.0]
        assert log.closed

    def test_the_clock_of_cpu_tensors_is_the_hosts(self, series):
        fit = fit_clock(series.clock_reads)
        assert abs(fit.drift) < 1e-4
        middle = series.clock_reads[3].before_s
        assert fit.gpu_time(np.array(middle)) == pytest.approx(middle, abs=1e-3)

    def test_a_kernel_that_lacks_something(self):
        pytest.importorskip("torch")
        from joulecast.calibrate.power_profile.torch_bench import TorchBench

        with pytest.raises(MeasurementError):
            TorchBench([kernel_benchmark("gemm:64x64x64")], "cuda:7", FakeLog())


class TestPoller:
    def test_a_card_in_real_time_is_polled_from_another_process(self, tmp_path):
        file = tmp_path / "card.json"
        card = SimulatedCard(realtime=True, file=file)
        poller = Poller(f"sim:{file}", 0.004)
        try:
            poller.start()
            begin = time.monotonic()
            time.sleep(1.3)
            channels = {channel.name: channel for channel in poller.stop()}
        finally:
            poller.close()
            card.close()
        power = channels["power"]
        assert len(power.times_s) > 60
        assert begin - 0.2 < power.times_s[0] < begin + 0.3
        assert readings_of(power).period_s == pytest.approx(0.1, rel=0.05)
        assert channels["energy"].kind == "energy"
        assert readings_of(channels["energy"]).power_w.mean() == pytest.approx(power.values.mean(), rel=0.05)

    def test_a_card_that_is_not_there(self, tmp_path):
        with pytest.raises(DeviceError, match="no such simulated card"):
            Poller(f"sim:{tmp_path / 'none.json'}")
