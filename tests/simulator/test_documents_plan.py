"""Plans whose sequences are packed: what they say, what is refused, and what the forecast makes of it."""

import math
from dataclasses import replace

import pytest

import joulecast as jc
from joulecast.errors import InputError, NotYetError
from joulecast.model.kernels.operators import Attention
from joulecast.plan.sweep.plan_text import plan_text
from joulecast.plan.sweep.rows import with_files
from joulecast.plan.sweep.space import load_space
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.documents import imbalance
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict

KEY = "workload.document_tokens"


def tables(*, model="llama-3.2-1b", gpus=1, sequence=4096, batch=2, parallelism=None, **keys):
    run = {"modules": "transformers", "attention_backend": "flash-attn-2"}
    return {
        "workload": {"model": model, "layers": 2, "sequence_length": sequence, "global_batch_size": batch}
        | {key: value for key, value in keys.items() if key.startswith("document_")},
        "cluster": {"gpu": "h200-sxm", "gpus": gpus},
        "parallelism": parallelism or {},
        "implementation": run | keys.get("implementation", {}),
    }


def plan(**keys):
    return plan_from_dict(tables(**keys))


def attention_of(of):
    launches = [launch.operator for kinds in plan_program(of).ranks[0].types for launch in kinds]
    return [one for one in launches if isinstance(one, Attention)]


def stripped(answer):
    return {key: value for key, value in answer.to_dict().items() if key != "assumptions"}


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"attention_backend": "cudnn"},
        {"attention_backend": "cudnn", "modules": "joint"},
        {"framework": "megatron", "modules": "joint"},
    ],
)
@pytest.mark.parametrize("packing", ["cut", "whole"])
def test_one_document_a_sequence_changes_no_bit(run, packing):
    plain = forecast(plan(implementation=run))
    whole = forecast(plan(implementation=run, document_tokens=4096, document_packing=packing))
    assert stripped(whole) == stripped(plain)


def test_kernels_for_lengths_get_each_document():
    kernels = attention_of(plan(document_tokens=1024))
    assert {one.documents.pieces for one in kernels} == {((1024.0, 4.0),)}
    assert {one.direction for one in kernels} == {"forward", "backward"}


def test_documents_save_time_and_energy_and_model_operations_alike():
    plain, apart = forecast(plan()), forecast(plan(document_tokens=512))
    assert apart.time_s < plain.time_s
    assert apart.energy_j < plain.energy_j
    assert apart.ranks[0].memory_bytes == plain.ranks[0].memory_bytes
    # Attention's operations of Llama-3.2-1B: 4 a pair, value and head forward, twice that backward, two layers.
    saved = plain.model_flops_per_s * plain.time_s - apart.model_flops_per_s * apart.time_s
    pairs = (4096**2 - 8 * 512**2) / 2
    assert saved == pytest.approx(2 * 2 * 3 * 4 * pairs * 32 * 64)


def test_pytorch_s_own_attention_takes_them_as_a_mask_and_computes_the_square():
    run = {"attention_backend": "cudnn"}
    plain, masked = (plan(implementation=run, **more) for more in ({}, {"document_tokens": 512}))
    assert {(one.each_score, one.causal, one.documents) for one in attention_of(masked)} == {("mask", False, None)}
    slow, quick = forecast(masked), forecast(plain)
    assert slow.time_s > quick.time_s
    # Two bytes of mask for a pair, and keys and values for every head.
    assert slow.ranks[0].memory_bytes - quick.ranks[0].memory_bytes > 2 * 2 * 4096**2
    assert any("computes the whole square" in said for said in slow.assumptions)


def test_transformers_own_attention_computes_the_square_in_any_case():
    run = {"attention_backend": "unfused"}
    times = [forecast(plan(implementation=run, **more)).time_s for more in ({}, {"document_tokens": 512})]
    assert times[0] == times[1]


@pytest.mark.parametrize("modules", ["joint", "transformers", "torchtitan"])
def test_flex_attention_goes_by_squares(modules):
    run = {"attention_backend": "flex", "modules": modules}
    times = [forecast(plan(implementation=run, document_tokens=length)).time_s for length in (256, 1024, 4096)]
    assert times == sorted(times)


def test_a_file_has_lengths_and_how_many(tmp_path):
    (tmp_path / "lengths.csv").write_text("tokens,count\n300,2\n724,1\n")
    path = tmp_path / "plan.toml"
    path.write_text(
        '[workload]\nmodel = "llama-3.2-1b"\nsequence_length = 1024\nglobal_batch_size = 2\n'
        'document_tokens = "lengths.csv"\n[cluster]\ngpu = "h200-sxm"\ngpus = 1\n'
        '[implementation]\nattention_backend = "flash-attn-2"\n'
    )
    found = load_plan(path)
    again = load_plan(path, [f"{KEY}=[300, 300, 724]"])
    assert found.workload.packed == again.workload.packed
    (tmp_path / "lengths.csv").write_text("tokens\n300\n-4\n")
    with pytest.raises(InputError, match=r"lengths.csv:3 \[tokens\]: '-4' is not a positive number"):
        load_plan(path)
    (tmp_path / "lengths.csv").write_text("length\n300\n")
    with pytest.raises(InputError, match=r"lengths.csv:1: no column of documents' lengths. Name it tokens"):
        load_plan(path)
    (tmp_path / "lengths.csv").write_text("tokens\n")
    with pytest.raises(InputError, match="no lengths of documents"):
        load_plan(path)
    (tmp_path / "lengths.csv").write_text("tokens,count\n300,1e308\n200,1e308\n")
    with pytest.raises(InputError, match=r"lengths.csv: inf documents in all. Give counts"):
        load_plan(path)
    (tmp_path / "lengths.csv").unlink()
    with pytest.raises(InputError, match=r"plan.toml:5 \[workload.document_tokens\]: lengths.csv: no such file"):
        load_plan(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"document_tokens": 0}, "a document has one token at least"),
        ({"document_tokens": []}, "a document has one token at least"),
        ({"document_packing": "whole"}, "says nothing without their lengths"),
        ({"document_tokens": 300, "implementation": {"attention_backend": "flash-attention-2"}}, "flash-attn-2, flex"),
        (
            {"document_tokens": 300, "implementation": {"modules": "joint", "attention_backend": "cudnn"}},
            "documents of packed sequences in cudnn under modules of one's own are not known",
        ),
        (
            {"document_tokens": 300, "implementation": {"modules": "torchtitan", "attention_backend": "cudnn"}},
            "in cudnn under torchtitan",
        ),
        (
            {
                "document_tokens": 300,
                "model": "llama-4-scout",
                "sequence": 16384,
                "implementation": {"modules": "joint", "attention_backend": "flash-attn-2"},
            },
            "with chunks",
        ),
        ({"implementation": {"modules": "joint", "framework": "megatron", "attention_backend": "flex"}}, "PyTorch's"),
    ],
)
def test_what_is_not_known_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        plan(**keys)


def split(**keys):
    return plan(
        gpus=2,
        parallelism={"context_parallel_size": 2} | keys.pop("parallelism", {}),
        implementation={"framework": "megatron", "modules": "joint"},
        **keys,
    )


def test_documents_are_known_around_a_ring_and_of_heads_that_are_exchanged():
    with pytest.raises(NotYetError, match="keys of split sequences that are gathered"):
        split(document_tokens=512, parallelism={"cp_comm_type": "all_gather"})
    apart = attention_of(split(document_tokens=512, parallelism={"cp_comm_type": "a2a"}))
    assert {(one.sequence, one.documents.pieces) for one in apart} == {(4096, ((512.0, 8.0),))}
    around = attention_of(split(document_tokens=512))
    assert {one.documents.pieces for one in around} == {((256.0, 8.0),)}
    assert {(one.causal, one.documents.unmasked) for one in around} == {(True, 0.0), (False, 0.5)}


def test_local_layers_keep_documents_apart_too():
    run = {"modules": "joint", "attention_backend": "flash-attn-2"}
    found = plan(model="gemma-2-2b", sequence=8192, document_tokens=6000, implementation=run)
    assert {(one.window, one.documents is None) for one in attention_of(found)} == {(4096, False), (0, False)}
    alone = plan(model="gemma-2-2b", sequence=8192, implementation=run)
    apart, whole = forecast(found), forecast(alone)
    assert apart.time_s < whole.time_s
    assert apart.model_flops_per_s * apart.time_s < whole.model_flops_per_s * whole.time_s


LENGTHS = [100, 200, 300, 500, 900, 3000]


@pytest.mark.parametrize("fsdp", [False, True])
def test_replicas_wait_for_the_one_with_longer_documents(fsdp):
    found = plan(gpus=8, batch=8 * 4, document_tokens=LENGTHS, parallelism={"fsdp": fsdp})
    of = found.workload.packed
    # The expected largest of eight normal values lies 1.42 standard deviations above their mean.
    meets = 1 if fsdp else 4
    assert imbalance(found) == pytest.approx(1 + 1.42 * of.spread / math.sqrt(meets), rel=0.01)
    (documents,) = {one.documents for one in attention_of(found)}
    assert documents.pairs() == pytest.approx(imbalance(found) * of.documents.pairs())
    assert any("as the one with most pairs" in said for said in forecast(found).assumptions)


def test_no_rank_has_more_than_one_document_a_sequence():
    found = plan(gpus=8, batch=8, document_tokens=[4000, 4096])
    most = 0.5 * 4096**2 / found.workload.packed.documents.pairs()
    assert 1.0 < imbalance(found) <= most


def test_one_rank_waits_for_nobody():
    assert imbalance(plan(document_tokens=LENGTHS)) == 1.0
    assert implementation_of(plan(document_tokens=LENGTHS)).documents is not None


def test_the_closed_form_agrees():
    plans = [plan(document_tokens=LENGTHS), plan()]
    found = closed_form(plans)
    assert found.time_s.tolist() == pytest.approx([forecast(one).time_s for one in plans], rel=0.01)
    assert found.time_s[0] < found.time_s[1]


def test_comparisons_name_the_key_and_not_what_follows_from_it(tmp_path):
    from joulecast.plan.comparison.compare import compare

    plans = [plan(document_tokens=300), plan(document_tokens=600)]
    found = compare([forecast(one) for one in plans], ("a", "b"))
    assert dict(found.keys) == {KEY: (300, 600)}
    quantities = {one.quantity for one in found.against[0].ledgers}
    assert {"time_s", "energy_j"} <= quantities or quantities


def test_a_list_in_a_space_is_of_one_plan(tmp_path):
    from joulecast.plan.sweep.values import table_values
    from joulecast.simulator.plan_file.source import Source

    found = table_values("workload", {"document_tokens": [300, 600]}, Source())
    assert found == {KEY: ([300, 600],)}
    several = table_values("workload", {"document_tokens": [[300], [600]]}, Source())
    assert several == {KEY: ([300], [600])}


def test_a_space_offers_files_of_lengths(tmp_path):
    """Plans elsewhere find them, and a sweep is not continued with other lengths in them."""
    space_file, elsewhere = tmp_path / "space.toml", tmp_path / "plans"
    for name, length in (("short", 300), ("long", 1500)):
        (tmp_path / f"{name}.csv").write_text(f"tokens\n{length}\n")
    space_file.write_text(
        '[workload]\nmodel = "llama-3.2-1b"\nlayers = 2\nsequence_length = 2048\nglobal_batch_size = 1\n'
        'document_tokens = ["short.csv", "long.csv", 1500]\n[cluster]\ngpu = "h200-sxm"\ngpus = 1\n'
        '[implementation]\nattention_backend = "flash-attention-2"\n[objective]\ntop = 0\n'
    )
    space = with_files(load_space(space_file))
    times = {row[KEY]: row["time_s"] for row in jc.sweep(space_file).rows}
    assert times["short.csv"] < times["long.csv"] == times[1500]
    elsewhere.mkdir()
    (elsewhere / "plan.toml").write_text(plan_text(space, {"plan": 0, KEY: "short.csv"}, elsewhere))
    found = load_plan(elsewhere / "plan.toml").workload
    assert found.packed == plan(sequence=2048, document_tokens=300).workload.packed
    (tmp_path / "short.csv").write_text("tokens\n400\n")
    assert with_files(space).files != space.files


def test_public_names_take_it(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        '[workload]\nmodel = "llama-3.2-1b"\nlayers = 2\nsequence_length = 2048\nglobal_batch_size = 1\n'
        'document_tokens = 700\n[cluster]\ngpu = "h200-sxm"\ngpus = 1\n'
        '[implementation]\nattention_backend = "flash-attention-2"\n'
    )
    found = jc.predict(path)
    assert "joined in random order and cut every 2048 tokens" in " ".join(found.assumptions)
    assert found.plan.workload == replace(found.plan.workload, document_packing="cut")


@pytest.mark.parametrize("tokens", [10**9 + 1, 10**400, [300, 10**30]])
def test_documents_longer_than_any_are_refused(tokens):
    with pytest.raises(InputError, match=r"document_tokens\]: no document is so long. Give lengths of at most 1"):
        plan(document_tokens=tokens)
