"""A timeline of more instructions than a picture can tell apart shows the shares of slots of time."""

import numpy as np
import pytest

from joulecast.cli import main
from joulecast.reports.charts.timeline import timeline_chart
from joulecast.reports.figures.timeline import BAR_ROW, timeline_figure
from joulecast.reports.series.slots import MOST_BARS, crowded, slots_of
from joulecast.reports.series.timeline import Bar, Interval, Lane, TimelineSeries

PAIRS = 400
PLAN = "llama-3.1-8b-4xh200.toml"


def timeline(pairs=PAIRS, lanes=2):
    """Forwards of 1 s and backwards of 2 s in turn; then two seconds of nothing."""
    time_s, bars = 0.0, []
    for i in range(pairs):
        bars += [Bar("forward", i, time_s, time_s + 1.0, 600.0), Bar("backward", i, time_s + 1.0, time_s + 3.0, 700.0)]
        time_s += 5.0
    speech = (Interval(0.0, time_s, 0.25),)
    own = Lane(0, 8, tuple(bars), speech, speech, np.array([0.0, time_s]), np.array([650.0]))
    return TimelineSeries(time_s, (own,) * lanes, (700.0,) * lanes)


def test_slots_hold_as_much_of_each_kind_as_the_instructions():
    whole = timeline()
    slots = slots_of(whole, whole.lanes[0])
    lasts = {role: sum((x.end_s - x.start_s) * x.share for x in own) for role, own in slots.items()}
    assert lasts == pytest.approx({"forward": PAIRS * 1.0, "backward": PAIRS * 2.0, "waiting": PAIRS * 2.0}, rel=1e-6)
    for x, y in zip(slots["forward"], slots["backward"], strict=True):
        assert (x.foot, y.foot) == (0.0, pytest.approx(x.share))
        assert 0.0 < x.share < y.share < 1.0


def test_only_crowded_timelines_are_drawn_in_slots():
    few, many = timeline(MOST_BARS // 2), timeline(MOST_BARS // 2 + 1)
    assert (crowded(few), crowded(many)) == (False, True)
    marks = [len(timeline_chart({"": one}).views[0].data[0]["x"]) for one in (few, many)]
    assert marks == [2 * MOST_BARS // 2, 2 * 160]


@pytest.mark.parametrize(
    ("batch", "says"), [(4, "point at one to see its clock"), (160, "the share of time that each")]
)
def test_the_page_of_a_front_says_what_is_drawn(batch, says, tmp_path, examples, monkeypatch):
    change = [
        "--set",
        "workload.global_batch_size=" + str(batch),
        "--set",
        "workload.layers=2",
        "--set",
        "workload.sequence_length=256",
    ]
    file = tmp_path / "front.html"
    monkeypatch.setattr("sys.argv", ["joulecast", "front", str(examples / PLAN), *change, "--report", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert says in file.read_text(encoding="utf-8")


def test_communication_is_as_high_as_its_share():
    """From the foot of its row, waiting for the slowest from the row's top."""
    view = timeline_chart({"": timeline(2)}).views[0]
    traces = {one.role: view.data[one.traces[0]] for one in view.series}
    for role, low in (("communication", 0.0), ("group_waiting", 0.75)):
        middle, height = traces[role]["y"][1], traces[role]["width"][1]
        assert height == pytest.approx(0.25 * 0.09, rel=0.05)
        assert (middle - height / 2 - (0.57 - 0.09 / 2)) / 0.09 == pytest.approx(low, abs=0.02)


def test_the_figure_of_a_crowded_timeline_has_every_kind():
    colours = {tuple(np.round(x.get_facecolor()[0], 3)) for x in timeline_figure(timeline()).axes[0].collections}
    assert len(colours) >= 4  # forward, backward, waiting, communication


def test_boxes_of_a_kind_are_drawn_at_once_and_where_they_were():
    """A call for each of them took a figure of two stages five seconds."""
    whole = timeline()
    axis = timeline_figure(whole).axes[0]
    assert len(axis.collections) == 2 * 5  # forward, backward, waiting, communication and waiting for the slowest
    drawn = axis.collections[0].get_paths()
    slots = next(iter(slots_of(whole, whole.lanes[0]).values()))
    assert len(drawn) == len(slots) > 100
    low, high = 1 + BAR_ROW[0], BAR_ROW[1]
    for path, slot in zip(drawn, slots, strict=True):
        (left, foot), (right, top) = path.vertices.min(axis=0), path.vertices.max(axis=0)
        assert (left, right) == pytest.approx((slot.start_s, slot.end_s))
        assert (foot, top) == pytest.approx((low + high * slot.foot, low + high * (slot.foot + slot.share)))
