"""Rows as a meter of a training loop writes them."""

PLAN = {
    "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "micro_batch_size": 4, "global_batch_size": 4},
    "cluster": {"gpu": "h200-sxm", "gpus": 1},
}
AT_ONCE = {"measured_begin_unix_s": 100.0, "measured_end_unix_s": 110.0}


def metered(plan=PLAN, **fields):
    """A row as a meter writes it."""
    return {
        "name": "plan",
        "form": "joulecast-metered-1",
        "op": "train_plan",
        "plan": plan,
        "plan_file": "plan",
        "plan_gpus": plan["cluster"]["gpus"],
        "gpus": 1,
        "rank": 0,
        "world_size": 1,
        "time_s": 0.15,
        "power_w": 690.0,
        "energy_j": 103.5,
        "sm_clock_mhz": 1600.0,
        **AT_ONCE,
        **fields,
    }
