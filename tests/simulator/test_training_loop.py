"""What Hugging Face's Trainer adds to an iteration of transformers' modules."""

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.simulator.plan_file.trainer_waits import (
    CLIPPED,
    COLLATED,
    LOOPED,
    READ_BACK,
    SWITCHED,
    WALKED,
    trainer_launches,
)
from joulecast.simulator.plan_file.training_loop import ASKED, LAUNCH_S, loop_wait_s

PLAN = {
    "workload": {
        "model": "llama-3.2-1b",
        "sequence_length": 2048,
        "micro_batch_size": 4,
        "global_batch_size": 8,
        "precision": "bf16",
    },
    "cluster": {"gpu": "h200-sxm", "gpus": 1},
    "implementation": {"framework": "pytorch-eager", "modules": "transformers"},
}
TRAINER = ["implementation.training_loop=trainer"]


def plan(*overrides):
    return plan_from_dict(PLAN, overrides=overrides)


def launches(*overrides):
    return trainer_launches(plan(*TRAINER, *overrides))


def test_the_gpu_waits_while_the_trainer_walks_over_modules_and_clips_tensors():
    """Llama has 13 modules and 9 tensors a layer, in transformers' code; two micro-batches share what a step costs."""
    assert loop_wait_s(plan()) == pytest.approx(ASKED * LAUNCH_S)
    assert loop_wait_s(plan("implementation.compile=true")) == 0.0
    assert launches() == pytest.approx(WALKED * 13 * 16 + LOOPED + CLIPPED * 9 * 16 / 2)
    assert loop_wait_s(plan(*TRAINER)) == pytest.approx((ASKED + launches()) * LAUNCH_S)
    slow = loop_wait_s(plan(*TRAINER, "implementation.host_launch_us=76"))
    assert slow == pytest.approx(2 * loop_wait_s(plan(*TRAINER)))


def test_norms_of_queries_and_keys_are_modules_too():
    few = launches("workload.model=qwen3-1.7b")
    assert few == pytest.approx(WALKED * 15 * 28 + LOOPED + CLIPPED * 11 * 28 / 2)


def test_peft_puts_ten_modules_and_two_tensors_around_a_product():
    lora = ["workload.lora.rank=8", 'workload.lora.target_modules=["q_proj","v_proj"]']
    assert launches(*lora) == pytest.approx(WALKED * (13 + 2 * 10) * 16 + LOOPED + CLIPPED * 2 * 2 * 16 / 2)
    compared = launches(*lora, "workload.objective=dpo", "workload.reference=adapters-off")
    assert compared == pytest.approx(launches(*lora) + SWITCHED * 2 * 16)


def test_batches_of_lists_cost_by_the_token_unless_workers_make_them():
    own, workers = (launches(f"implementation.dataloader_num_workers={n}") for n in (0, 2))
    assert own == pytest.approx(launches() + COLLATED * 4 * 2048)
    assert workers == launches()
    pairs = "workload.objective=dpo"
    made = launches(pairs, "implementation.dataloader_num_workers=0") - launches(pairs)
    assert made == pytest.approx(COLLATED * 2 * 4 * 2048)


def test_trl_reads_metrics_of_finetuning_back():
    assert launches("implementation.log_probabilities=chunked") == pytest.approx(launches() + READ_BACK)
    pairs = "workload.objective=dpo"
    assert launches(pairs, "implementation.log_probabilities=chunked") == launches(pairs)


def test_workers_are_known_of_the_trainer():
    with pytest.raises(InputError, match=r"implementation\.dataloader_num_workers.*Trainer"):
        plan("implementation.dataloader_num_workers=0")


@pytest.mark.parametrize("liger", ["true", "false"])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_trainer_waits_for_no_less_than_the_models_own_code(layers, liger):
    short = [f"workload.layers={layers}", f"implementation.liger_kernel={liger}"]
    assert loop_wait_s(plan(*short, *TRAINER)) >= loop_wait_s(plan(*short))


def test_an_iteration_takes_the_waits_and_the_copied_logits_longer():
    """Two micro-batches: their waits, and 128,256 logits of 8,192 tokens read in bf16 and written in fp32."""
    locked = ["power.clock_mhz=1200"]
    own, trainer = jc.predict(PLAN, locked), jc.predict(PLAN, [*locked, *TRAINER])
    copied = 2 * 8192 * 128256 * 6 / 4.8e12
    more = trainer.time_s - own.time_s - 2 * loop_wait_s(plan(*TRAINER))
    assert copied < more < 5.0 * copied
    assert trainer.power_w < own.power_w


def test_at_the_power_limit_clocks_rise_in_the_waits():
    own, trainer = jc.predict(PLAN), jc.predict(PLAN, TRAINER)
    assert trainer.clock_mhz > own.clock_mhz
    assert trainer.power_w == pytest.approx(own.power_w, rel=0.01)


@pytest.mark.parametrize(
    "run",
    [
        [],
        TRAINER,
        ["implementation.liger_kernel=true"],
        ["implementation.optimizer=adamw-8bit"],
        ["workload.objective=dpo", "workload.reference=precomputed"],
        ["workload.model=qwen2.5-vl-3b", "workload.images.height=448"],
    ],
    ids=lambda run: " ".join(run) or "usual",
)
def test_graphs_wait_as_little_as_for_a_host_that_takes_no_time(run):
    run = [*run, "workload.layers=2"]
    usual, *others = (
        jc.predict(PLAN, [*run, *how])
        for how in ([], ["implementation.cuda_graphs=true"], ["implementation.host_launch_us=0"])
    )
    assert others[0].time_s == others[1].time_s < usual.time_s
    assert not any("lets the GPU wait" in said for said in others[0].assumptions)


def test_no_logits_are_copied_without_mixed_precision():
    wide = ["workload.precision=fp32", "power.clock_mhz=1500"]  # which no limit lowers
    own, trainer = jc.predict(PLAN, wide), jc.predict(PLAN, [*wide, *TRAINER])
    assert trainer.time_s - own.time_s == pytest.approx(
        2 * (loop_wait_s(plan(*TRAINER)) - loop_wait_s(plan())), rel=0.02
    )


def test_the_closed_form_has_it_too():
    one = plan(*TRAINER)
    assert closed_form([one]).time_s[0] == pytest.approx(jc.predict(one).time_s, rel=2e-3)


def test_other_modules_have_no_trainer():
    with pytest.raises(InputError, match=r"implementation\.training_loop.*modules of transformers"):
        plan(*TRAINER, "implementation.modules=torchtitan")
