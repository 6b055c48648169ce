"""Reports say what the results say, hold everything in one file, and are written whole or not at all."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256
from html import unescape
from importlib.resources import files

import numpy as np
import pytest
from command import status_of
from row_files import csv_text

import joulecast as jc
from joulecast.errors import InputError
from joulecast.reports import page
from joulecast.reports.charts.timeline import timeline_chart
from joulecast.reports.figures.timeline import timeline_figure
from joulecast.reports.html import table
from joulecast.reports.numbers import Unit
from joulecast.reports.page import plotly_library
from joulecast.reports.pages.predict import predict_page
from joulecast.reports.palette import ROLES
from joulecast.reports.series import timeline as timeline_series
from joulecast.reports.series.front import of_front
from joulecast.reports.series.ledger import ledger_of
from joulecast.reports.series.measured import measured_by_quantity
from joulecast.reports.write import report_of_iteration

PLAN = "llama-3.1-8b-4xh200.toml"


@pytest.fixture(scope="module")
def iteration(request):
    return jc.predict(request.getfixturevalue("examples") / PLAN)


@pytest.fixture(scope="module")
def front(request):
    return jc.front(request.getfixturevalue("examples") / PLAN)


@pytest.fixture(scope="module")
def html(iteration, front):
    return predict_page(iteration, front).html()


def answers(text):
    """JSON values that follow each other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_the_answer_stands_first(html, iteration):
    text = unescape(re.sub(r"<[^>]+>", " ", html.split("<main>")[1])).replace("\u00a0", " ").replace("\u202f", "")
    first = re.search(r"<h1>(.*?)</h1>", html).group(1)
    assert text.index(iteration.plan.workload.model_name) < text.index("One iteration takes 1.0") < 200
    assert f"{iteration.power_w / 4:.0f} W a GPU" in first


def test_what_a_front_of_several_gpus_saves(html):
    assert "of the energy without taking longer." in html


def test_every_number_of_the_gpu_has_its_source(html, iteration):
    for row in iteration.description.rows():
        assert f"<td>{row.name}</td>" in html
    section = html.split("Every number, its uncertainty and its source")[1]
    assert section.count("<tr>") == len(iteration.description.rows()) + 1


def test_nothing_is_fetched(html):
    own = html.replace(plotly_library(), "")
    assert len(own) < 3e6
    assert not re.search(r"""(src|href)\s*=|url\(|@import|fetch\(|https?://""", own)
    assert "default-src 'none'" in own


def test_a_reader_has_the_text_before_the_library_is_read(html):
    """What the browser must parse before the first words and before the first chart: seconds are not for a test."""
    text, library = html.index("</main>"), html.index(plotly_library()[:200])
    assert html.index("<h1>") < text < library
    assert text < 0.5e6
    assert len(plotly_library()) < 1.5e6, "the whole library starts three times slower than its basic bundle"


def test_the_library_is_read_once_and_charts_are_drawn_once(html):
    """Brackets spare the browser a second reading of the library, margins of ours Plotly a second drawing."""
    assert plotly_library().count("this, (() => {") == plotly_library().count("return Plotly;\n})));") == 1
    assert "automargin" not in html.replace(plotly_library(), "")


def test_the_library_is_the_one_that_was_published():
    folder = files("joulecast.reports") / "vendored"
    script = (folder / "plotly-basic.min.js").read_bytes()
    assert b"plotly.js (basic - minified) v4.1.1" in script[:200]
    assert sha256(script).hexdigest() == "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert "Permission is hereby granted" in (folder / "plotly-basic.LICENSE.txt").read_text(encoding="utf-8")


def test_power_beneath_the_timeline_is_the_energy(iteration):
    series = timeline_series.of_iteration(iteration)
    energy = sum(lane.gpus * float(np.diff(lane.time_s) @ lane.power_w) for lane in series.lanes)
    assert energy == pytest.approx(iteration.energy_j, rel=2e-3)
    assert series.limits_w == (700.0,) * len(series.lanes)


def test_a_lane_is_instructions_and_waiting(iteration):
    series = timeline_series.of_iteration(iteration)
    for lane, rank in zip(series.lanes, iteration.ranks, strict=True):
        assert len(lane.bars) == 17
        waited = sum(end - start for start, end in lane.waits(series.time_s))
        busy = sum(bar.end_s - bar.start_s for bar in lane.bars)
        assert waited + busy == pytest.approx(series.time_s, rel=1e-6)
        assert waited == pytest.approx(rank.waiting_s, abs=0.01 * series.time_s)
        communicating, lagging = (
            sum(part.share * (part.end_s - part.start_s) for part in parts)
            for parts in (lane.communication, lane.group_waiting)
        )
        assert communicating == pytest.approx(rank.exposed_communication_s - rank.group_waiting_s, rel=0.01)
        # One iteration at the mean clock of each instruction, beside the mean of several whose clocks swing.
        assert lagging == pytest.approx(rank.group_waiting_s, abs=3e-3 * series.time_s)


def test_waiting_for_the_slowest_has_its_own_colour(iteration):
    timeline = timeline_series.of_iteration(iteration)
    series = {s.name: s.role for s in timeline_chart({"": timeline}).views[0].series}
    assert series["communication"] == "communication"
    assert series["waiting for the slowest"] == "group_waiting"
    legend = timeline_figure(timeline).legends[0]
    marks = {text.get_text(): mark for text, mark in zip(legend.get_texts(), legend.legend_handles, strict=True)}
    assert marks["waiting for the slowest"].get_facecolor() != marks["communication"].get_facecolor()
    alone = replace(timeline, lanes=tuple(replace(lane, group_waiting=()) for lane in timeline.lanes))
    assert "waiting for the slowest" not in [s.name for s in timeline_chart({"": alone}).views[0].series]


def test_merging_keeps_the_time_of_communication():
    rng = np.random.default_rng(0)
    edges = np.cumsum(rng.random(400))
    start, end = edges[::2], edges[1::2]
    for most in (5, 50, 1000):
        parts = timeline_series.merged(start, end, most)
        assert len(parts) <= max(most, 1)
        assert sum(p.share * (p.end_s - p.start_s) for p in parts) == pytest.approx((end - start).sum())
    assert len(timeline_series.merged(start, end, 1000)) == 200


def test_a_plan_of_a_front_ends_when_the_front_says(front):
    for point in (front.points[0], front.points[-1]):
        series = timeline_series.of_point(front, point)
        assert max(bar.end_s for lane in series.lanes for bar in lane.bars) == pytest.approx(point.time_s, rel=1e-6)
        energy = sum(lane.gpus * float(np.diff(lane.time_s) @ lane.power_w) for lane in series.lanes)
        assert energy == pytest.approx(point.energy_j, rel=1e-6)
        clocks = [[bar.clock_mhz for bar in lane.bars] for lane in series.lanes]
        assert clocks == front.clocks_mhz(point)


def test_the_chosen_plan_is_not_slower_than_the_plan_as_it_stands(front, iteration):
    series = of_front(front, iteration)
    chosen = series.points[series.chosen]
    assert chosen.time_s <= iteration.time_s < series.points[series.chosen + 1].time_s
    alone = of_front(front)  # which knows of no plan as it stands: a share slower than the fastest is near enough
    assert 0 < alone.chosen < len(alone.points) - 1 and alone.why != series.why
    assert of_front(front, time_limit_s=9.0).chosen == len(series.points) - 1
    names = [name for name, _ in chosen.knobs]
    assert names[:2] == ["forward of stage 0", "backward of stage 0"]
    low, high = (f(front.clocks_mhz(front.points[series.chosen])[0]) for f in (min, max))
    assert any(f"{low:g}" in choice for _, choice in chosen.knobs)
    assert any(f"{high:g}" in choice for _, choice in chosen.knobs)


def test_ledgers_add_up(iteration):
    result = iteration.to_dict()
    for ledger in (ledger_of(result, "component"), ledger_of(result, "instruction")):
        assert ledger.total_j[0] * ledger.gpus[0] == pytest.approx(iteration.energy_j)
        whole = sum(e * n for e, n in zip(ledger.total_j[1:], ledger.gpus[1:], strict=True))
        assert whole == pytest.approx(iteration.energy_j)
        assert ledger.low_j < ledger.total_j[0] < ledger.high_j


def test_a_large_report_is_small_and_quick(examples):
    parallel = {"tensor": 2, "pipeline": 4}
    settings = [f"parallelism.{name}_model_parallel_size={size}" for name, size in parallel.items()]
    settings += ["cluster.gpus=8"]
    settings += ["workload.global_batch_size=64", "workload.sequence_length=2048", "schedule.recompute=full"]
    iteration, front = jc.predict(examples / PLAN, settings), jc.front(examples / PLAN, settings)
    assert front.problem.dag.instructions == 4 * 2 * 64 + 4
    begin = time.process_time()
    text = predict_page(iteration, front).html()
    assert time.process_time() - begin < 5.0  # 0.6 here; machines that are shared take several times that
    assert len(text.encode()) - len(plotly_library().encode()) < 3e6
    view = charts_of(text)["timeline"]["views"][0]
    waits = next(series["traces"][0] for series in view["series"] if series["name"] == "waiting")
    marks = [len(trace["x"]) for i, trace in enumerate(view["data"]) if trace["type"] == "bar" and i != waits]
    assert len(front.problem.dag.ranks) * 2 * 64 < sum(marks) <= timeline_series.MOST_MARKS


def test_files_are_written_whole_or_not_at_all(tmp_path, capsys, examples):
    assert status_of("predict", examples / PLAN, "--report", tmp_path / "no" / "r.html") == 2
    assert status_of("predict", examples / PLAN, "--report", tmp_path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no such folder" in err and "is a folder" in err
    with pytest.raises(InputError, match="cannot be written"):
        page.Page("t", "k", "a").write(tmp_path / "no" / "r.html")
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from joulecast.cli import main
main(sys.argv[1:])
"""


def test_a_full_disk_keeps_the_report_that_stood_there(tmp_path, examples):
    pytest.importorskip("resource")
    report = tmp_path / "r.html"
    report.write_text("the last one", encoding="utf-8")
    plain = {key: value for key, value in os.environ.items() if not key.startswith("COV")}  # coverage writes too
    command = [sys.executable, "-c", FULL, "predict", str(examples / PLAN), "--json", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, env=plain, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(
        "r.html: cannot be written: File too large. Make room, or choose another disk."
    )
    assert report.read_text(encoding="utf-8") == "the last one"
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_what_has_no_energy_is_refused(iteration):
    with pytest.raises(InputError, match="no energy"):
        predict_page(replace(iteration, energy_j=0.0))


def test_commands_write_reports_beside_a_clean_answer(tmp_path, capsys, examples, root):
    rows = root / "validate" / "recorded" / "h200_sxm" / "train_iterations.jsonl"
    assert status_of("predict", examples / PLAN, "--json", "--report", tmp_path / "p.html") == 0
    assert status_of("front", examples / PLAN, "--json", "--report", tmp_path / "f.html") == 0
    assert status_of("validate", "train", "--data", rows, "--json", "--report", tmp_path / "v.html") == 0
    out, err = capsys.readouterr()
    assert [set(answer) & {"time_s", "points", "suite"} for answer in answers(out)] == [
        {"time_s"},
        {"points"},
        {"suite"},
    ]
    assert err.count("wrote") == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.html", "p.html", "v.html"]
    text = (tmp_path / "v.html").read_text(encoding="utf-8")
    assert "measured rows are" in text and "Every number, its uncertainty" in text


def test_limits_of_a_job_show_every_weight_and_batch_size(tmp_path, examples, capsys):
    epochs, page = tmp_path / "epochs.csv", tmp_path / "limits.html"
    epochs.write_text("batch_size,epochs\n8,10\n16,9\n32,nan\n", encoding="utf-8")
    plan = examples / "llama-3.1-8b-4xh200.toml"
    limits = ("--power-limits", "700,500,300")
    assert status_of("front", plan, *limits, "--eta", "0.8", "--report", page) == 0
    text = page.read_text(encoding="utf-8")
    assert "At a weight of 0.8 of energy against time 500 W is best" in text
    assert "The best limit at every weight" in text
    assert "W at batch size" not in text
    assert status_of("front", plan, *limits, "--epochs", epochs, "--samples", 1000, "--report", page) == 0
    text = page.read_text(encoding="utf-8")
    assert "batch size 32 does not always reach the target" in text
    assert "W at batch size" in text
    capsys.readouterr()


def test_a_gpu_without_a_known_node_says_so_in_place_of_a_site(examples):
    iteration = jc.predict(examples / PLAN, ["cluster.gpu=h800-sxm"])
    assert iteration.site is None
    assert "<p>No node type is usual for h800-sxm; set <code>cluster.node</code>.</p>" in predict_page(iteration).html()
    page = predict_page(jc.predict(examples / PLAN, ["cluster.gpu=l40s", "workload.layers=8"])).html()
    assert "<p>No node type is usual for l40s; set <code>cluster.node</code> (l40s-pair, or your own).</p>" in page


def test_what_was_not_measured_is_not_drawn():
    row = {"name": "a", "measured": {"time_s": 1.0, "energy_j": None}, "predicted": {"time_s": 1.1, "energy_j": 2.0}}
    found = measured_by_quantity({"suite": "s", "rows": [row]})
    assert list(found) == ["time_s"]
    assert found["time_s"]["s"][0].error == pytest.approx(0.1)


def test_roles_exist():
    import joulecast.reports

    used = set()
    for path in __import__("pathlib").Path(joulecast.reports.__path__[0]).glob("*_chart.py"):
        used |= set(re.findall(r"\"@([a-z_]+)[/\"]", path.read_text(encoding="utf-8")))
    assert used <= set(ROLES)
    assert {"forward", "hbm", "paper"} <= set(ROLES)


def test_the_answer_alone_imports_no_plotting(examples):
    script = (
        "import sys\nfrom joulecast.cli import main\n"
        f"try: main(['predict', {str(examples / PLAN)!r}])\nexcept SystemExit: pass\n"
        "print([m for m in ('matplotlib', 'pandas', 'scipy', 'numba', 'joulecast.reports.page')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_hostile_name_stays_text(iteration):
    workload = replace(iteration.plan.workload, model_name="<script>alert(1)</script>")
    hostile = replace(iteration, plan=replace(iteration.plan, workload=workload))
    text = predict_page(hostile).html()
    assert "<script>alert" not in text


SPACE = """
[workload]
model = "llama-3.2-1b"
sequence_length = 2048
global_batch_size = 16
[cluster]
gpu = "h200-sxm"
gpus = 4
[parallelism]
tensor_model_parallel_size = [1, 2, 4]
[power]
power_limit_w = [500, 700]
[objective]
minimise = ["time", "energy"]
top = 2
"""


def test_a_sweep_shows_every_plan_and_the_best(tmp_path, capsys):
    (tmp_path / "space.toml").write_text(SPACE, encoding="utf-8")
    assert status_of("sweep", tmp_path / "space.toml", "--csv", "--report", tmp_path / "s.html") == 0
    rows = capsys.readouterr().out.splitlines()
    charts = charts_of((tmp_path / "s.html").read_text(encoding="utf-8"))
    view = charts["sweep"]["views"][0]
    assert len(view["data"][0]["x"]) == len(rows) - 1 == 6
    front, best = view["data"][1:]
    assert front["mode"] == "lines" and front["line"]["shape"] == "hv"
    assert all(above > 0 for above in best["error_x"]["array"] + best["error_y"]["array"])
    assert [v["label"] for v in charts["sweep"]["views"]] == ["energy of all GPUs", "money", "carbon, CO₂e"]
    assert "power_limit_w: 700" in "".join(best["text"])


def test_a_sweep_draws_its_constraints_and_says_where_numbers_come_from(tmp_path, capsys):
    whole = SPACE.replace('["time", "energy"]', '"time"')
    (tmp_path / "space.toml").write_text(whole, encoding="utf-8")
    assert status_of("sweep", tmp_path / "space.toml", "--csv") == 0
    rows = csv_text(capsys.readouterr().out)
    limit = sorted(float(row["time_s"]) for row in rows)[-2]  # the slowest is outside
    arguments = ("--set", f"constraints.max_time_s={limit * 1.001}", "--report", tmp_path / "s.html")
    assert status_of("sweep", tmp_path / "space.toml", *arguments) == 0
    text = (tmp_path / "s.html").read_text(encoding="utf-8")
    view = charts_of(text)["sweep"]["views"][0]
    counts = [re.search(r"\((\d+)\)", series["name"]) for series in view["series"]]
    assert [int(found.group(1)) for found in counts if found] == [5, 1, 2]
    assert view["series"][-1]["name"].startswith("at most ")
    line = view["data"][-1]
    assert line["x"][0] == line["x"][1] == pytest.approx(float(view["series"][-1]["name"].split()[2]), rel=1e-3)
    assert "Where the numbers of h200-sxm come from" in text and "Everything that the plan sets" in text
    answer = re.search(r"<h1>(.*?)</h1>", text).group(1)
    assert re.search(r"TP \d, limit \[W\] 700\.$", answer)


def test_a_sweep_tells_gpus_apart(tmp_path, capsys):
    """By colour and marker; the best have their GPU's colour, and a button hides what stands for its GPU."""
    space = SPACE.replace('"h200-sxm"', '["h100-sxm", "h200-sxm", "b200"]').replace("[500, 700]", "700")
    (tmp_path / "space.toml").write_text(space, encoding="utf-8")
    assert status_of("sweep", tmp_path / "space.toml", "--csv") == 0
    rows = csv_text(capsys.readouterr().out)
    limit = sorted(float(row["time_s"]) for row in rows)[-3] * 1.001  # the two slowest are outside
    arguments = ("--set", f"constraints.max_time_s={limit}", "--report", tmp_path / "s.html", "--json")
    assert status_of("sweep", tmp_path / "space.toml", *arguments) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    text = (tmp_path / "s.html").read_text(encoding="utf-8")
    view = charts_of(text)["sweep"]["views"][0]
    gpus = {series["name"].partition(" ")[0]: series for series in view["series"][:3]}
    assert list(gpus) == ["h100-sxm", "h200-sxm", "b200"]
    assert len({series["role"] for series in gpus.values()}) == len({series["mark"] for series in gpus.values()}) == 3
    drawn = 0
    for name, series in gpus.items():
        for trace in (view["data"][i] for i in series["traces"]):
            drawn += len(trace["x"])
            assert trace["marker"]["color"] == f"@{series['role']}"
            assert trace["marker"]["symbol"].removesuffix("-open") == series["mark"]
            assert all(f"gpu: {name}<br>" in text for text in trace["text"])
    assert drawn == len(rows) == 9
    outside = next(series for series in view["series"] if series["name"] == "outside the constraints (2)")
    assert all(view["data"][i]["marker"]["symbol"].endswith("-open") for i in outside["traces"])
    stars = next(trace for trace in view["data"] if trace.get("marker", {}).get("symbol") == "star")
    assert stars["marker"]["color"] == [f"@{gpus[row['cluster.gpu']]['role']}" for row in best]
    assert f"<span class=note>{best[0]['cluster.gpu']}</span>" in text


@pytest.mark.parametrize("limit", ["max_site_power_w=1e6", "max_time_s=1e6"])
def test_a_sweep_says_that_limits_hold_for_peaks(tmp_path, limit):
    """Plans in closed form, whose peaks are not known, may lie below the front."""
    (tmp_path / "space.toml").write_text(SPACE, encoding="utf-8")
    arguments = ("--set", f"constraints.{limit}", "--report", tmp_path / "s.html")
    assert status_of("sweep", tmp_path / "space.toml", *arguments) == 0
    text = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert ("hold for peaks" in text.partition("<script")[0]) == ("power" in limit)


def test_no_two_series_look_alike():
    from joulecast.reports.palette import series_role, series_symbol

    looks = [(series_role(i), series_symbol(i)) for i in range(64)]
    assert len(set(looks)) == 64
    assert len({role for role, _ in looks[:8]}) == len({symbol for _, symbol in looks[:8]}) == 8
    assert "star" not in {symbol for _, symbol in looks}  # what a chart points out
    script = (files("joulecast.reports") / "page.js").read_text(encoding="utf-8")
    assert all(re.search(rf'\b{symbol}"?: `<', script) for _, symbol in looks if symbol != "circle")  # in the legend


def test_a_plan_stands_in_words():
    """Nothing of how Python writes it: parts below each other, what is not set left out."""
    from joulecast.reports.sections import plan_section
    from joulecast.simulator.plan_file.plan import plan_from_dict

    workload = {"model": "llama-3.2-1b", "sequence_length": 4096, "global_batch_size": 8, "micro_batch_size": 2}
    plan = plan_from_dict(
        {
            "workload": workload,
            "cluster": {"gpu": "h200-sxm", "gpus": 4, "gpus_per_node": 4},
            "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
            "overlap": {"nanobatches": 2, "window": [1, 3]},
            "implementation": {"tiles": {"linear": [128, 256, 64]}},
            "power": {"clock_mhz": [1410, 1500], "component_limits_w": {"compute": 400}},
        }
    )
    html = plan_section(plan).before
    lines = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html))
    assert not re.search(r"[({]|=", re.sub(r"<.*?>", "", html))
    assert lines["clocks_mhz"] == "1410, 1500" and lines["component_limits_w.compute"] == "400"
    assert lines["tiles.linear"].startswith("m 128, n 256, k 64") and lines["links.domain_gpus"] == "4"
    assert "training_tokens" not in lines and "generation" not in lines


def test_a_time_limit_is_drawn_in(front, iteration):
    from joulecast.reports.charts.front import front_chart

    limited = front_chart(of_front(front, iteration, 1.25)).views[0]
    assert [series.name.replace("\u00a0", " ") for series in limited.series][-1] == "time limit 1.25 s"
    assert limited.data[-1]["x"] == [1.25, 1.25]
    assert limited.data[-1]["y"] == limited.layout["yaxis"]["range"]
    free = front_chart(of_front(front, iteration)).views[0]
    far = front_chart(of_front(front, iteration, 100.0)).views[0]  # it would make everything else small
    assert len(free.series) == len(far.series) == len(limited.series) - 1


def test_a_front_shows_how_sure_its_plans_are(front, iteration):
    from joulecast.reports.charts.front import BAND, front_chart, point_text
    from joulecast.reports.pages.front import front_page

    series = of_front(front, iteration)
    view = front_chart(series).views[0]
    (band,) = (entry for entry in view.series if entry.name == BAND)
    drawn = view.data[band.traces[0]]["y"]
    count = len(front.points)
    high, low = np.array(drawn[:count]), np.array(drawn[count:])[::-1]
    energy = np.array([p.energy_j for p in front.points]) / 1e3
    assert high[0] == low[0] == pytest.approx(energy[0], rel=1e-5)
    assert np.all(low[1:] < energy[1:]) and np.all(energy[1:] < high[1:])
    bottom, top = view.layout["yaxis"]["range"]
    assert bottom < low.min() and high.max() < top
    text = point_text(series.points[-1], series.points[0], Unit(1.0, "s"), Unit(1.0, "J")).replace("\u00a0", " ")
    ends = front.intervals[-1]
    assert f"{100 * (1 - ends.energy_ratio_p95):.3g} to {100 * (1 - ends.energy_ratio_p05):.3g} % less" in text
    assert f"{ends.time_s_p05:.3g} to {ends.time_s_p95:.3g} s" in text
    page = front_page(front, "a plan", iteration=iteration).html()
    assert f"{100 * (1 - ends.energy_ratio_p95):.3g} to" in re.search(r"90 %: ([0-9. to]+)", page).group(1)


def test_a_measured_front_has_no_band(front):
    from joulecast.plan.exact.front import Front
    from joulecast.reports.charts.front import BAND, front_chart, point_text
    from joulecast.reports.pages.front import front_page

    measured = Front(replace(front.problem, kernels=None), front.curve, front.plans)
    series = of_front(measured)
    assert BAND not in {entry.name for entry in front_chart(series).views[0].series}
    assert "90 %" not in point_text(series.points[-1], series.points[0], Unit(1.0, "s"), Unit(1.0, "J"))
    assert "less on the same cards" not in front_page(measured, "a profile").html()


def test_intervals_of_errors_are_drawn_whole():
    from joulecast.reports.charts.measured import error_chart
    from joulecast.reports.series.measured import Pair

    pairs = [Pair("near", 1.0, 1.01, 0.99, 1.03), Pair("wide", 2.0, 1.9, 1.2, 2.9)]
    low, high = error_chart({"time_s": {"iteration": pairs}}).views[0].layout["xaxis"]["range"]
    assert low < -40.0 and high > 45.0


def test_the_report_tells_whether_the_plan_fits(tmp_path, examples, capsys):
    assert status_of("predict", examples / "llama-3.1-8b-4xh200.toml", "--json", "--report", tmp_path / "p.html") == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    section = text.split("Memory of one GPU of each stage</h2>")[1].split("</section>")[0]
    least = min(stage["memory_margin_bytes"] for stage in stages) / 1e9
    assert f"The fullest GPU has {least:.3g} GB left" in section
    for part in ("parameters", "activations", "optimizer", "total", "margin"):
        assert part in section


def test_a_sweep_begins_with_what_was_asked_for(tmp_path, capsys):
    (tmp_path / "space.toml").write_text(SPACE.replace('"energy"', '"money"'), encoding="utf-8")
    assert status_of("sweep", tmp_path / "space.toml", "--json", "--report", tmp_path / "s.html") == 0
    best = json.loads(capsys.readouterr().out)["best"]
    text = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert charts_of(text)["sweep"]["views"][0]["label"] == "money"
    answer = re.search(r"<h1>(.*?)</h1>", text).group(1)
    assert f"{best[0]['money']:.3g} USD an iteration" in answer.replace("\u00a0", " ")


def test_a_sweep_of_a_run_answers_in_days_and_money_of_the_run(tmp_path, capsys):
    text = SPACE.replace('"energy"', '"money"').replace("[workload]", "[workload]\ntraining_tokens = 1e13")
    (tmp_path / "space.toml").write_text(text, encoding="utf-8")
    assert status_of("sweep", tmp_path / "space.toml", "--json", "--report", tmp_path / "s.html") == 0
    first = json.loads(capsys.readouterr().out)["best"][0]
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    answer = re.sub(r"[\u00a0\u202f]", " ", re.search(r"<h1>(.*?)</h1>", page).group(1))
    days, money = first["run_time_s"] / 86400.0, first["run_money"]
    plain = re.sub(r"(?<=\d) (?=\d)", "", answer)
    assert f"takes {float(f'{days:.3g}'):g} days and {float(f'{money:.3g}'):g} USD for the run" in plain
    assert '<div class="wide many"' in page  # room for what the run takes


def test_a_comparison_shows_intervals(tmp_path, examples, capsys):
    other = examples / "llama-3.2-3b-4xh200-ddp.toml"
    assert status_of("compare", examples / PLAN, other, "--json", "--report", tmp_path / "c.html") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    data = charts_of((tmp_path / "c.html").read_text(encoding="utf-8"))["results"]["views"][0]["data"]
    for trace, name in zip(data, results["time_s"], strict=True):
        reach = results["time_s_p95"][name] - results["time_s"][name]
        assert trace["error_x"]["array"][0] == pytest.approx(reach, rel=1e-4)


def charts_of(text):
    """Charts of a page by name."""
    data = re.search(r'id="joulecast-data">(.*?)</script>', text, re.DOTALL).group(1)
    return {chart["name"]: chart for chart in json.loads(data)["charts"]}


def test_forecast_limits_have_error_bars_and_measured_ones_none(examples):
    from joulecast.plan.limits.power_limits import JobPoint, forecast_limits, to_target
    from joulecast.reports.charts.time_energy import Dot, Group, time_energy_chart
    from joulecast.simulator.plan_file.plan import load_plan

    (point,) = forecast_limits(load_plan(examples / PLAN), [500.0])
    told = point.to_dict()
    assert told["time_s_p05"] < point.time_s < told["time_s_p95"]
    assert told["energy_j_p05"] < point.energy_j < told["energy_j_p95"]
    assert told["power_w_p05"] < told["power_w"] < told["power_w_p95"]
    ((twice,), _) = to_target([point], {point.batch_size: 2.0})
    assert twice.to_dict()["time_s_p95"] == pytest.approx(2.0 * told["time_s_p95"])
    assert "time_s_p05" not in JobPoint(500.0, 1.0, 2.0).to_dict()
    for ends in (point.time_ends, None):
        group = Group("limits", "plan", "circle", (Dot(1.0, 2.0, "one", ends, ends),))
        (trace,) = time_energy_chart("limits", "Limits", [group], "an iteration").views[0].data
        assert ("error_x" in trace) == ("error_y" in trace) == (ends is not None)


def test_without_numba_a_forecasts_report_leaves_long_fronts_out(iteration, tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.reports.write.MOST_IN_PLAIN_PYTHON", 31)
    monkeypatch.setattr("joulecast.reports.write.find_spec", lambda name: None)
    report_of_iteration(iteration, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "it has 32 instructions, which take long without numba" in text


def test_an_interval_in_a_table_has_its_thousands_apart_as_a_number_has():
    text = table([{"energy [J]": 2054000, "5-95 % of energy": "1440000 to 2930000", "time": "7.3 to 9.45"}])
    for cell in ("2_054_000", "1_440_000 to 2_930_000", "7.3 to 9.45"):
        assert f">{cell.replace('_', chr(0x202F))}</td>" in text
