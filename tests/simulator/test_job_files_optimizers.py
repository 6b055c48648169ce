"""Optimizers of jobs beside PyTorch's AdamW, in the words of plans."""

import pytest
from trainer_jobs import AXOLOTL, COMMAND, FACTORY, SFT, TORCHTUNE

import joulecast as jc

PLAIN = COMMAND.replace("--config_file fsdp.yaml ", "")
AXOLOTL_DDP = AXOLOTL.replace("deepspeed: deepspeed_configs/zero3_bf16.json\n", "")


def convert(tmp_path, text, name, **options):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", "gpus": 8, **options})


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("adamw_8bit", "adamw-8bit"),
        ("adamw_bnb_8bit", "adamw-8bit"),
        ("paged_adamw_8bit", "adamw-8bit"),
        ("paged_adamw_32bit", "adamw-32bit"),
        ("lion_8bit", "lion-8bit"),
        ("paged_lion_32bit", "lion-32bit"),
        ("adafactor", "adafactor"),
        ("sgd", "sgd"),
        ("sgd --optim_args momentum=0.9,nesterov=true", "sgd-momentum"),
        ("sgd --optim_args momentum=0", "sgd"),
    ],
)
def test_the_trainers_names(tmp_path, name, ours):
    found = convert(tmp_path, PLAIN.replace("adamw_torch_fused", name), "job.sh")
    assert found.tables["implementation"]["optimizer"] == ours
    assert found.sources["implementation.optimizer"] == "optim (line 7)"
    assert ("moments are forecast in the GPU's memory" in " ".join(found.warnings)) == ("paged" in name)
    with_adapters = convert(tmp_path, PLAIN.replace("adamw_torch_fused", f"{name} --use_peft"), "job.sh")
    assert with_adapters.tables["implementation"]["optimizer"] == ours


def test_torchaos_adamw_is_told_beside_adapters_and_refused_without(tmp_path):
    narrow = PLAIN.replace("adamw_torch_fused", "adamw_torch_8bit")
    found = convert(tmp_path, narrow.replace("--packing", "--packing --use_peft"), "job.sh")
    assert "optimizer" not in found.tables["implementation"]
    assert "adamw_torch_8bit: adapters, which are few" in " ".join(found.warnings)
    with pytest.raises(jc.InputError, match="the step and the states of adamw_torch_8bit are not known"):
        convert(tmp_path, narrow, "job.sh")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (AXOLOTL_DDP.replace("adamw_torch_fused", "adamw_bnb_8bit"), "optimizer"),
        (FACTORY + "cutoff_len: 2048\noptim: adamw_8bit\n", "optim"),
        (SFT + "optim: paged_adamw_8bit\n", "optim"),
    ],
)
def test_tools_that_are_built_on_it(tmp_path, text, key):
    found = convert(tmp_path, text, "job.yaml")
    assert found.tables["implementation"]["optimizer"] == "adamw-8bit"
    assert found.sources["implementation.optimizer"].startswith(f"{key} (line ")
    assert jc.convert(tmp_path / "job.yaml", gpu="h100-sxm", gpus=8).tables == found.tables


@pytest.mark.parametrize(
    ("component", "ours", "gpus"),
    [
        ("bitsandbytes.optim.PagedAdamW8bit", "adamw-8bit", 1),
        ("bitsandbytes.optim.PagedAdamW", "adamw-32bit", 1),
        ("torch.optim.SGD", "sgd", 8),
        ("torch.optim.SGD\n  momentum: 0.9", "sgd-momentum", 8),
    ],
)
def test_torchtunes_classes(tmp_path, component, ours, gpus):
    found = convert(tmp_path, TORCHTUNE.replace("torch.optim.AdamW", component), "job.yaml", gpus=gpus)
    assert found.tables["implementation"]["optimizer"] == ours
    assert "fused kernels" not in " ".join(found.warnings)


def test_what_cannot_step_shards_says_where_and_what_to_do(tmp_path):
    text = TORCHTUNE.replace("torch.optim.AdamW", "bitsandbytes.optim.AdamW8bit")
    with pytest.raises(jc.InputError, match=r"job.yaml:\d+ \[optimizer._component_, in a plan.*shards of FSDP"):
        convert(tmp_path, text, "job.yaml")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (AXOLOTL_DDP.replace("adamw_torch_fused", "muon"), "optimizer (line "),
        (FACTORY.replace("lora", "full") + "cutoff_len: 2048\nuse_muon: true\n", "use_muon (line "),
    ],
)
def test_trainers_own_copies_of_muon_are_forecast_as_pytorchs(tmp_path, text, source):
    found = convert(tmp_path, text, "job.yaml")
    assert found.tables["implementation"]["optimizer"] == "muon"
    assert found.sources["implementation.optimizer"].startswith(source)
    assert "forecast as torch.optim.Muon" in " ".join(found.warnings)


def test_muon_that_a_trainer_does_not_have_or_run_is_refused(tmp_path):
    with pytest.raises(jc.InputError, match="the step and the states of muon are not known"):
        convert(tmp_path, PLAIN.replace("adamw_torch_fused", "muon"), "job.sh")
    with pytest.raises(jc.InputError, match=r"deepspeed, .*Muon of parameters that FSDP shards"):
        convert(tmp_path, AXOLOTL.replace("adamw_torch_fused", "muon"), "job.yaml")
    off = convert(tmp_path, FACTORY + "cutoff_len: 2048\nuse_muon: false\n", "job.yaml")
    assert "optimizer" not in off.tables["implementation"]
