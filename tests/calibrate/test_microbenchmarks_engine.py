"""How loads keep a card busy, on a card of which only the clock is real."""

from contextlib import nullcontext

import pytest

from joulecast.calibrate.microbenchmarks.composite import BackToBack, Beside, Bursts, Chain, Idle, prepare_batch
from joulecast.calibrate.microbenchmarks.engine import (
    BATCH_S,
    IN_FLIGHT,
    MOST_LAUNCHES,
    keep_busy,
    keep_filled,
    launches_for,
    warm_up,
)
from joulecast.calibrate.microbenchmarks.kernel import Kernel


class Card:
    """A queue whose kernels take fixed times, in virtual time: the host's work costs what ``launch_s`` says."""

    def __init__(self, launch_s=1e-6):
        self.time = self.free_at = 0.0
        self.launch_s = launch_s
        self.pending = []
        self.deepest = 0
        self.waited_s = 0.0

    def now(self):
        return self.time

    def sleep(self, duration_s):
        assert duration_s >= 0
        self.time += duration_s

    def work(self, seconds):
        """Queue a kernel; the card may have run dry before."""
        self.time += self.launch_s
        self.waited_s += max(0.0, self.time - self.free_at)
        self.free_at = max(self.time, self.free_at) + seconds

    def batch(self, once, count, *, capture):
        return CardBatch(self, once, count, capture)

    def head_start(self):
        self.work(5e-5)
        self.waited_s = 0.0

    def mark(self):
        return max(self.free_at, self.time)

    def wait(self, mark):
        self.time = max(self.time, mark)

    def elapsed_s(self, first, last):
        return last - first

    def preparing(self):
        return nullcontext()

    def release(self):
        pass


class CardBatch:
    def __init__(self, card, once, count, capture):
        self.card, self.once, self.count, self.capture = card, once, count, capture

    def launch(self):
        self.card.pending = [end for end in self.card.pending if end > self.card.time]
        for _ in range(self.count if not self.capture else 1):
            self.once()
        if self.capture:  # a graph is launched at once
            launch_s, self.card.launch_s = self.card.launch_s, 0.0
            for _ in range(self.count - 1):
                self.once()
            self.card.launch_s = launch_s
        self.card.pending.append(self.card.free_at)
        self.card.deepest = max(self.card.deepest, len(self.card.pending))


def kernel(card, seconds, calls=None):
    def once():
        if calls is not None:
            calls.append(1)
        card.work(seconds)

    return Kernel(once)


def test_a_batch_lasts_about_ten_milliseconds():
    assert launches_for(BATCH_S, 1e-3) == 10
    assert launches_for(BATCH_S, 1.0) == 1
    assert launches_for(BATCH_S, 1e-9) == MOST_LAUNCHES


@pytest.mark.parametrize("seconds", [2e-5, 5e-4, 8e-3])
def test_the_time_of_a_launch_is_estimated(seconds):
    card = Card()
    assert warm_up(card, kernel(card, seconds).once) == pytest.approx(seconds, rel=0.2)


def test_the_card_never_runs_dry_and_the_queue_stays_short():
    card = Card()
    load = BackToBack(card, prepare_batch(card, kernel(card, 5e-4)))
    begin = card.now()
    count, seconds = load.run(0.15)
    wall = card.now() - begin
    assert card.deepest == IN_FLIGHT
    assert card.waited_s == 0.0
    assert seconds / count == pytest.approx(5e-4, rel=1e-6)
    assert 0.15 <= wall < 0.15 + 2.5 * IN_FLIGHT * BATCH_S
    assert seconds == pytest.approx(wall, abs=1e-4)


def test_slow_launches_do_not_show_in_graphs():
    """A kernel of 3 µs ends before Python launches the next one, but not before a graph does."""
    card = Card(launch_s=5e-6)
    short = kernel(card, 3e-6)
    count, seconds = BackToBack(card, prepare_batch(card, short)).run(0.1)
    assert seconds / count == pytest.approx(3e-6, rel=0.01)
    each = Kernel(short.once, capture=False)
    count, seconds = BackToBack(card, prepare_batch(card, each)).run(0.1)
    assert seconds / count == pytest.approx(5e-6, rel=0.05)


def test_a_short_run_launches_once():
    card, calls = Card(), []
    batch = card.batch(kernel(card, 1e-3, calls).once, 7, capture=True)
    assert keep_busy(card, batch, 1e-6)[0] == len(calls) == 7


def test_as_many_batches_as_asked_for():
    card, calls = Card(), []
    batch = card.batch(kernel(card, 1e-4, calls).once, 3, capture=True)
    count, seconds = keep_filled(card, batch, lambda launched: launched < 5)
    assert count == len(calls) == 15
    assert seconds == pytest.approx(15e-4, rel=1e-6)


def test_what_may_not_be_recorded_is_launched_each_time():
    card = Card()
    batch = prepare_batch(card, Kernel(lambda: card.work(1e-3), capture=False))
    assert batch.capture is False


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_bursts_keep_their_share(share):
    card = Card()
    batch = card.batch(kernel(card, 1e-3).once, 4, capture=True)
    load = Bursts(card, batch, 0.0, share, per_repetition=4)
    begin = card.now()
    count, busy = load.run(0.2)
    wall = card.now() - begin
    assert busy / wall == pytest.approx(share, rel=1e-3)
    assert busy / count == pytest.approx(4e-3, rel=1e-6)


def test_long_bursts_have_their_length():
    """Each is made of as many batches as fill it, and pauses follow at once."""
    card, calls = Card(), []
    batch = card.batch(kernel(card, 1e-3, calls).once, 2, capture=True)
    load = Bursts(card, batch, 0.03, 0.5, batch_s=2e-3)
    count, busy = load.run(0.055)
    assert count == len(calls) == 30
    assert busy == pytest.approx(0.03, rel=1e-6)
    assert card.now() == pytest.approx(0.06, rel=0.01)


def test_bursts_follow_a_change_of_speed():
    card = Card()
    batch = card.batch(kernel(card, 1e-3).once, 2, capture=True)
    load = Bursts(card, batch, 0.02, 0.9, batch_s=10e-3)
    load.run(0.001)
    assert load.batch_s == pytest.approx(2e-3, rel=0.01)
    assert load.run(0.001)[0] == 20


def test_a_sequence_is_one_repetition():
    card, first, second = Card(), [], []
    batches = [
        card.batch(kernel(card, 1e-4, first).once, 3, capture=True),
        card.batch(kernel(card, 1e-4, second).once, 5, capture=True),
    ]
    count, seconds = BackToBack(card, Chain(batches, 4)).run(0.03)
    assert len(first) == 3 * count
    assert len(second) == 5 * count
    assert seconds / count == pytest.approx(8e-4, rel=1e-6)


def test_beside_large_products_only_the_kernel_counts():
    card, calls, company = Card(), [], []
    group = card.batch(kernel(card, 1e-4, calls).once, 30, capture=True)
    load = Beside(card, group, card.batch(kernel(card, 12e-3, company).once, 1, capture=True))
    count, seconds = load.run(0.1)
    assert count == len(calls)
    assert seconds / count == pytest.approx(1e-4, rel=1e-6)
    assert len(company) == count / 30
    assert len(company) == pytest.approx(0.1 / 0.015, abs=2)
    assert card.waited_s < 1e-5
    assert card.deepest <= 2 * IN_FLIGHT


def test_alone_there_are_pauses_instead():
    card = Card()
    load = Beside(card, card.batch(kernel(card, 1e-4).once, 30, capture=True), None)
    begin = card.now()
    count, seconds = load.run(0.09)
    wall = card.now() - begin
    assert seconds / count == pytest.approx(1e-4, rel=1e-6)
    assert seconds / wall == pytest.approx(0.2, rel=0.1)


def test_idling_takes_its_time():
    card = Card()
    assert Idle(card).run(0.05) == (1, pytest.approx(0.05))
    assert card.now() == pytest.approx(0.05)


def test_a_resting_card_is_kept_awake():
    card, calls = Card(), []
    ping = card.batch(kernel(card, 1e-6, calls).once, 1, capture=False)
    count, seconds = Idle(card, ping, every_s=0.01).run(0.1)
    assert count == 1
    assert seconds == pytest.approx(0.1, rel=1e-3)
    assert len(calls) == 10
