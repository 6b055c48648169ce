"""What people mistake in a plan: units, a run's tokens, folders in place of files. Each is refused where it stands."""

from datetime import date

import pytest
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.files import parse_toml
from joulecast.simulator.plan_file.plan import plan_from_dict


def plan(*, gpus=4, **changes):
    """Llama-3.1-8B on H200s with further keys, ``table__key``."""
    tables = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 8},
        "cluster": {"gpu": "h200-sxm", "gpus": gpus},
        "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    }
    return plan_from_dict(changed(tables, changes))


@pytest.mark.parametrize(
    ("changes", "key", "message", "remedy"),
    [
        ({"network__nic_gbit_per_s": 4e11}, "network.nic_gbit_per_s", "less than or equal to 100000", "at most"),
        ({"network__step_latency_us": 2e9}, "network.step_latency_us", "less than or equal to", "at most"),
        ({"network__nics_per_node": 10_000}, "network.nics_per_node", "less than or equal to 1024", "at most"),
        ({"network__rails": 10_000}, "network.rails", "less than or equal to 1024", "at most"),
        ({"workload__training_tokens": 15.0}, "workload.training_tokens", "fewer than the 32768 of one", "15e12"),
        ({"parallelism__stage_layers": [-1, 33]}, "parallelism.stage_layers", "a stage of -1 layers", "none below 0"),
        ({"workload__sequence_length": 1e4}, "workload.sequence_length", "10000.0 is not", "Write 10000, without a"),
        ({"workload__sequence_length": 0.5}, "workload.sequence_length", "0.5 is not", "Write a whole number."),
        ({"workload__sequence_length": True}, "workload.sequence_length", "true is not", "Write a whole number."),
        ({"site__pue": 0.5}, "site.pue", "greater than or equal to 1", "Use a value of at least 1."),
        (
            {"workload__training_tokens": 1e12, "site__node_mtbf_hours": 0.01},
            "site.node_mtbf_hours",
            "failures of 1 nodes, and checkpoints, leave",
            "Raise it",
        ),
    ],
)
def test_a_slip_is_refused_with_its_remedy(changes, key, message, remedy):
    with pytest.raises(InputError) as refused:
        plan(**changes)
    assert (refused.value.key, message in refused.value.message) == (key, True)
    assert remedy in (refused.value.remedy or "")


def test_what_is_just_possible_is_taken():
    plan(network__nic_gbit_per_s=1e5, network__step_latency_us=1e6, workload__training_tokens=32768.0)
    plan(workload__training_tokens=1e12, site__node_mtbf_hours=5.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload__model": "{folder}"}, "is a folder without a config.json"),
        ({"site__name": "{folder}/"}, "is a folder"),
        ({"workload__model": "./"}, "./: is a folder without a config.json"),
        ({"workload__model": "."}, ".: is a folder without a config.json"),
        ({"workload__model": "{folder}/none.json"}, "no such file"),
        ({"workload__model": ""}, "'': no such file"),
    ],
)
def test_a_folder_is_not_called_a_missing_file(changes, message, tmp_path):
    with pytest.raises(InputError) as refused:
        plan(**{key: value.format(folder=tmp_path) for key, value in changes.items()})
    assert refused.value.message.endswith(message)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[a]\nb = 1\nb = 2\n", 3, "an earlier line says the same key. Keep one of them."),
        ("[a]\nb = 1\n[a]\nc = 2\n", 3, "the table [a] stands here for the second time. Keep one of them."),
        ("[a]\nb = {c = 1, c = 2}\n", 2, "the key 'c' stands here for the second time. Keep one of them."),
    ],
)
def test_what_stands_twice_is_named(text, line, said):
    with pytest.raises(InputError) as error:
        parse_toml(text, "plan.toml")
    assert str(error.value) == f"plan.toml:{line}: {said}"


def test_a_date_is_shown_as_it_was_written():
    with pytest.raises(InputError, match=r"1979-01-01 is not a whole number"):
        plan(workload__sequence_length=date(1979, 1, 1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"implementation__liger_kernel": "rope"}, "liger_kernel]: 'rope' is not true, false or a list"),
        ({"workload__document_tokens": 0.5}, "document_tokens]: 0.5 is not a whole number, a list or a text in quotes"),
        ({"workload__document_tokens": [300, "a"]}, "document_tokens.1]: 'a' is not a whole number. Write a whole"),
        ({"workload__model": 5}, "model]: 5 is not a text in quotes or a table. Write a text in quotes or a table"),
        ({"implementation__fused_loss": "x"}, "fused_loss]: 'x' is not a known value. Known: false, true, native."),
        ({"implementation__muon_num_ns_steps": 100}, "Use a value below 100."),
    ],
)
def test_all_that_a_key_may_be_is_told(changes, said):
    with pytest.raises(InputError) as refused:
        plan(**changes)
    assert said in str(refused.value)
