"""How many GPUs launchers start, and settings that stand in two places: options, configurations, texts of scripts."""

import pytest
from trainer_jobs import FSDP

import joulecast as jc
from joulecast.errors import InputError
from joulecast.simulator.job_files.shell import read_script

TRAINER = "--model_name_or_path Qwen/Qwen3-8B --max_length 2048 --per_device_train_batch_size 1 --bf16 --packing"
ZERO = '{"zero_optimization": {"stage": 2}}'


def convert(tmp_path, text, **options):
    (tmp_path / "fsdp.yaml").write_text(FSDP, encoding="utf-8")
    path = tmp_path / "job.sh"
    path.write_text(f"{text}\n", encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", **options})


@pytest.mark.parametrize(
    ("launcher", "gpus", "per_node"),
    [
        ("deepspeed --include 'a:0,1@b:0,1' train.py", 4, 2),
        ("deepspeed --include a:0,1,2@b:0 train.py", 4, None),
        ("deepspeed --include a@b:0 train.py", None, None),  # all of a, however many
        ("deepspeed --num_gpus 8 --exclude a:0 train.py", None, None),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --exclude a:0 train.py", None, None),
        ("srun --exclude=node1 -N 2 torchrun --nproc_per_node 8 train.py", 16, None),
        ("deepspeed --module --num_gpus=8 a.b", 8, None),
        ("deepspeed --module --num_gpus 8 --no_local_rank a.b", 8, None),
        ("torchrun --nnodes 2:4 --nproc_per_node 8 train.py", 32, None),
        ("srun --gres=gpu:4 -N 2 torchrun --nproc_per_node gpu train.py", 8, 4),
        ("srun --gpus-per-node=h100:4 -N 2 torchrun --nproc_per_node=auto train.py", 8, 4),
        ("accelerate launch --config_file fsdp.yaml --num_processes 8 train.py", 8, 4),
        ("accelerate launch --config_file fsdp.yaml --num_machines 4 train.py", 16, 4),
    ],
)
def test_launchers_say_how_many_gpus_there_are(tmp_path, launcher, gpus, per_node):
    cluster = convert(tmp_path, f"{launcher} {TRAINER} --fsdp full_shard").tables["cluster"]
    assert (cluster.get("gpus"), cluster.get("gpus_per_node")) == (gpus, per_node)


def test_the_most_of_an_elastic_jobs_nodes_is_told(tmp_path):
    found = convert(tmp_path, f"torchrun --nnodes=2:4 --nproc_per_node 8 train.py {TRAINER}")
    assert "the most of 2:4" in found.sources["cluster.gpus"]


@pytest.mark.parametrize(
    ("batch", "gpus"),
    [
        ("--gres=gpu:h100:4(S:0-1)", 8),
        ("--gres=nvme:1,gpu:4", 8),
        ("--gpus-per-node=a100:4", 8),
        ("--gpus=8", 8),
        ("-G h100:8 # in all", 8),
        ("--exclusive --gres gpu:4 --mem=0", 8),
        ("--gres=nvme:4", None),
    ],
)
def test_gpus_of_a_batch(tmp_path, batch, gpus):
    script = f"#SBATCH -N 2 {batch}\nsrun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_GPUS_ON_NODE"
    assert convert(tmp_path, f"{script} train.py {TRAINER}").tables["cluster"].get("gpus") == gpus


@pytest.mark.parametrize(
    ("options", "key", "expected"),
    [
        ("--fsdp_sharding_strategy SHARD_GRAD_OP", "parallelism.fsdp_reshard_after_forward", False),
        ("--fsdp_sharding_strategy NO_SHARD", "parallelism.fsdp", None),
        ("--use_deepspeed --zero_stage 2", "parallelism.distributed_optimizer", True),
        ("--num_processes 16", "cluster.gpus", 16),
    ],
)
def test_options_of_accelerate_win_over_its_configuration(tmp_path, options, key, expected):
    found = convert(tmp_path, f"accelerate launch --config_file fsdp.yaml {options} train.py {TRAINER}").tables
    table, name = key.split(".")
    assert found.get(table, {}).get(name) == expected


@pytest.mark.parametrize(
    "written",
    [
        f"cat > ds.json <<EOF\n{ZERO}\nEOF",
        f"DS=./ds.json; cat <<'EOF' >$DS\n{ZERO}\nEOF",
        f"N=2\ncat <<EOF > ds.json\n{ZERO.replace('2', '$N')}\nEOF",
        f"if [ 1 = 1 ]; then\n  cat <<-EOF | tee ds.json > /dev/null\n\t{ZERO}\n\tEOF\nfi",
        f"tee ds.json <<B\n{ZERO}\nB",
        f"if [ ! -f ds.json ]; then\ncat > ds.json <<EOF\n{ZERO}\nEOF\nfi",
    ],
)
def test_a_configuration_may_stand_in_the_script_itself(tmp_path, written):
    found = convert(tmp_path, f"{written}\ndeepspeed --num_gpus 8 train.py --deepspeed ds.json {TRAINER}")
    assert found.tables["parallelism"] == {"distributed_optimizer": True}
    assert found.sources["parallelism.distributed_optimizer"].startswith("ds.json:1 zero_optimization.stage")


def test_a_text_that_is_not_written_before_is_no_file(tmp_path):
    start = f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {TRAINER}"
    with pytest.raises(InputError, match=r"no such file: ds\.json"):
        convert(tmp_path, f"cat <<EOF\n{ZERO}\nEOF\n{start}")
    with pytest.raises(InputError, match=r"\$STAGE.*--env STAGE=VALUE"):
        convert(tmp_path, f"cat <<EOF >ds.json\n{ZERO.replace('2', '$STAGE')}\nEOF\n{start}")


def test_texts_that_a_script_writes_are_a_shells():
    text = "A=1\ncat >a <<EOF\n$A \"b\" 'c' \\\"d \\$e $((\nEOF\ncat >b <<'EOF'\n$A 'x'\nEOF\nrun"
    script = read_script(text, "a.sh", {})
    assert script.written["b"] == "$A 'x'\n"
    assert script.written["a"].startswith('1 "b" \'c\' \\"d $e ')
    assert [[word.text for word in command.words] for command in script.commands] == [["run"]]
    assert script.commands[0].line == 8
