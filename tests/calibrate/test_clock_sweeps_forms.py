"""CSV forms of sweeps: what they are read as, and what is wrong with broken ones, with file and line."""

import pytest

from joulecast.calibrate.clock_sweeps.forms import read_sweeps
from joulecast.errors import DataError

INFERENCE = (
    "family,variant,dtype,batch,seq,mode,attention,locked_clock_mhz,energy_j,time_ms,mean_clock_mhz,temp_c",
    "gpt,gpt2,bf16,8,128,prefill,eager,960,1.5,10,955,60",
    "gpt,gpt2,bf16,8,128,prefill,eager,1050,1.6,9,1050,61",
)
STAGES = ("stage,instruction,frequency,time,energy", "0,forward,1740,0.1,30", "1,forward,1740,0.1,30")
DGEMM = (
    "gpu,locked_sm_clock_mhz,power_w,fp64_dgemm_tflops,note",
    "h200-sxm,1410,588,46.4,at the board's limit",
    "h200-sxm,1200,461,40,",
)
EPOCHS = (
    "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power",
    "imagenet,resnet50,128,adam,100,200,98.5",
)
PIPELINE = (
    "model_name,partition_method,batch_size,dp,tp,pp,microbatch_size,num_microbatches,power_limit_0,power_limit_1,"
    "power_limit_2,time,energy,optimal_power_limit",
    'bert,"custom:0,8",256,2,1,2,8,32,250,250,0,6.0,6000,275',
    'bert,"custom:0,8",256,2,1,2,8,32,250,225,0,6.5,5900,275',
)


def written(tmp_path, lines, name="card.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_inference(tmp_path):
    row = read_sweeps(written(tmp_path, INFERENCE), "clock")[0]
    assert (row.card, row.setting, row.measured.time_s, row.measured.energy_j) == ("card", 960.0, 0.010, 1.5)
    assert row.measured.power_w == pytest.approx(150.0)
    assert row.measured.sm_clock_mhz == 955.0
    assert dict(row.key)["batch"] == 8.0 and dict(row.key)["variant"] == "gpt2"
    assert row.name == "card gpt gpt2 bf16 prefill eager 8 128 960 MHz"


def test_stages_are_copies_of_each_other(tmp_path):
    first, second = read_sweeps(written(tmp_path, STAGES), "clock")
    assert first.key != second.key and first.family == second.family


def test_dgemm_names_its_cards_and_limits(tmp_path):
    reached, other = read_sweeps(written(tmp_path, DGEMM), "clock")
    assert reached.card == "h200-sxm"
    assert (reached.at_limit, other.at_limit) == (True, False)
    assert other.measured.time_s == pytest.approx(1 / 40) and other.measured.power_w == pytest.approx(461.0)


def test_dgemm_without_notes_does_not_say_whether_a_limit_was_reached(tmp_path):
    lines = [line.rsplit(",", 1)[0] for line in DGEMM]
    assert [row.at_limit for row in read_sweeps(written(tmp_path, lines), "clock")] == [None, None]


def test_epochs(tmp_path):
    (row,) = read_sweeps(written(tmp_path, EPOCHS), "limit")
    assert (row.setting, row.measured.time_s, row.measured.energy_j) == (100.0, 200.0, 19700.0)


def test_pipelines_count_all_gpus_and_need_one_limit(tmp_path):
    same, mixed = read_sweeps(written(tmp_path, PIPELINE), "limit")
    assert (same.gpus, same.setting, same.measured.power_w, same.unusable) == (4, 250.0, 1000.0, "")
    assert "different power limits" in mixed.unusable


def test_a_folder_gives_all_sweeps_of_the_kind_and_passes_over_other_files(tmp_path):
    (tmp_path / "deep").mkdir()
    written(tmp_path, STAGES, "a.csv")
    written(tmp_path, DGEMM, "deep/b.csv")
    written(tmp_path, EPOCHS, "c.csv")
    written(tmp_path, ("sm_clock_mhz,idle_power_w", "210,44"), "idle.csv")
    assert {row.card for row in read_sweeps(tmp_path, "clock")} == {"a", "h200-sxm"}
    assert {row.card for row in read_sweeps(tmp_path, "limit")} == {"c"}


def test_what_was_not_measured_makes_a_row_unusable(tmp_path):
    lines = [*INFERENCE, "gpt,gpt2,bf16,8,128,prefill,eager,1140,,8,,", "gpt,gpt2,bf16,8,128,prefill,eager,1230,1,0,,"]
    rows = read_sweeps(written(tmp_path, lines), "clock")
    assert [row.unusable for row in rows] == ["", "", "not measured: energy_j", "not measured: time_ms"]


def changed(lines, number, old, new):
    assert old in lines[number]
    return [line.replace(old, new, 1) if i == number else line for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("lines", "kind", "line", "words"),
    [
        (changed(INFERENCE, 0, "time_ms", "time_s"), "clock", 1, ("time_ms", "'time_s'")),
        (changed(STAGES, 0, ",energy", ",joules"), "clock", 1, ("energy",)),
        (changed(EPOCHS, 0, "average_power", "power"), "limit", 1, ("average_power",)),
        (changed(INFERENCE, 1, "1.5", "-1.5"), "clock", 2, ("energy_j", "-1.5")),
        (changed(INFERENCE, 2, ",9,", ",nine,"), "clock", 3, ("time_ms", "'nine' is not a number")),
        (changed(INFERENCE, 2, ",9,", ",nan,"), "clock", 3, ("time_ms",)),
        (changed(INFERENCE, 2, "1050", "960"), "clock", 3, ("same workload and setting as in card.csv:2",)),
        (changed(INFERENCE, 1, "960", "0.96"), "clock", 2, ("no GPU has 0.96 MHz",)),
        (changed(INFERENCE, 1, ",10,", ",0.010,"), "clock", 2, ("W for one GPU", "units")),
        (changed(INFERENCE, 1, "gpt,gpt2", "gpt,"), "clock", 2, ("variant", "empty")),
        (changed(INFERENCE, 1, ",8,", ",0,"), "clock", 2, ("batch", "positive")),
        (changed(STAGES, 2, ",30", ""), "clock", 3, ("not as many values as columns",)),
        (changed(STAGES, 2, ",30", ",30,31"), "clock", 3, ("not as many values as columns",)),
        (changed(EPOCHS, 1, ",100,", ",100000,"), "limit", 2, ("no GPU has 100000 W",)),
        (changed(PIPELINE, 1, "250,250,0", "0,0,0"), "limit", 2, ("no stage has a power limit",)),
    ],
)
def test_broken_files_name_line_and_column(tmp_path, lines, kind, line, words):
    path = written(tmp_path, lines)
    with pytest.raises(DataError) as caught:
        read_sweeps(path, kind)
    assert caught.value.line == line and caught.value.file == str(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_broken_file_in_a_folder_is_not_passed_over(tmp_path):
    written(tmp_path, STAGES, "a.csv")
    written(tmp_path, changed(INFERENCE, 0, "energy_j", "energy"), "b.csv")
    with pytest.raises(DataError, match="energy_j"):
        read_sweeps(tmp_path, "clock")


@pytest.mark.parametrize(
    ("lines", "kind"), [(EPOCHS, "clock"), (STAGES, "limit"), (("a,b", "1,2"), "clock"), ((), "clock")]
)
def test_files_of_another_kind_are_said_to_hold_no_sweep(tmp_path, lines, kind):
    with pytest.raises(DataError, match="no sweep of this kind"):
        read_sweeps(written(tmp_path, lines), kind)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_sweeps(tmp_path / "none.csv", "clock")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_sweeps(binary, "clock")
