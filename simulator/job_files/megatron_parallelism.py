"""How a Megatron job is split, over GPUs and in time: ``[parallelism]``, ``[schedule]`` and ``[overlap]``."""

from __future__ import annotations

import re

from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.flags import Flags
from joulecast.simulator.job_files.megatron_optimizer import FLAG as OPTIMIZER
from joulecast.simulator.job_files.megatron_optimizer import is_layer_wise

TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
VIRTUAL, CHUNKS = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
LAYOUT, FIRST, LAST = (
    "--pipeline-model-parallel-layout",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
)
#: Most letters of a layout once its multiples are written out.
MOST_LETTERS = 100_000


def read_parallelism(flags: Flags, draft: Draft, layers: int) -> None:
    """Put sizes, stages and what is sharded into the plan.

    Parameters
    ----------
    layers
        Blocks of the model.

    Raises
    ------
    InputError
        Sizes that contradict each other.
    """
    for flag in (TP, PP, "--context-parallel-size", "--expert-model-parallel-size"):
        size = flags.whole(flag, 1)
        if size != 1:
            draft.put(f"parallelism.{flag.strip('-').replace('-', '_')}", size, flag, flags.line(flag))
    if flags.whole("--expert-tensor-parallel-size") is not None and flags.whole("--num-experts", least=0):
        flag = "--expert-tensor-parallel-size"
        draft.put("parallelism.expert_tensor_parallel_size", flags.whole(flag), flag, flags.line(flag))
    if flags.on("--sequence-parallel") and draft.value("parallelism.tensor_model_parallel_size", 1) > 1:
        draft.put("parallelism.sequence_parallel", True, "--sequence-parallel", flags.line("--sequence-parallel"))
    _context(flags, draft)
    _stages(flags, draft, layers)
    _sharding(flags, draft)
    _overlap(flags, draft)


def _context(flags: Flags, draft: Draft) -> None:
    flag = "--cp-comm-type"
    kinds = flags.texts(flag)
    if kinds is None or draft.value("parallelism.context_parallel_size", 1) == 1:
        return
    known = {"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather", "all_gather": "all_gather", "a2a+p2p": "p2p"}
    for kind in kinds:
        if kind not in known:
            raise flags.error(f"{kind!r} is not a known value", flag, "Known: p2p, a2a, allgather.")
    if len(set(kinds)) > 1 or kinds[0] == "a2a+p2p":
        draft.warn(f"{flag} {' '.join(kinds)}: all layers are forecast with {known[kinds[0]]}, over one level")
    draft.put("parallelism.cp_comm_type", known[kinds[0]], flag, flags.line(flag))


def _stages(flags: Flags, draft: Draft, layers: int) -> None:
    """Pipeline stages, virtual ones, and their layers."""
    stages = draft.value("parallelism.pipeline_model_parallel_size", 1)
    for end in ("embedding", "loss"):
        flag = f"--account-for-{end}-in-pipeline-split"
        if flags.on(flag):
            key = f"parallelism.account_for_{end}_in_pipeline_split"
            draft.put(key, True, flag, flags.line(flag))
    virtual, flag = _virtual(flags, draft, layers, stages)
    if virtual > 1:
        key = "parallelism.virtual_pipeline_model_parallel_size"
        draft.put(key, virtual, flag, flags.line(flag))
        draft.put("schedule.name", "interleaved-1f1b", flag, flags.line(flag))
    else:
        several = stages > 1
        source, line = (PP, flags.line(PP)) if several else ("one pipeline stage", None)
        draft.put("schedule.name", "1f1b" if several else "none", source, line)
    first, last = flags.whole(FIRST), flags.whole(LAST)
    if (first or last) and stages > 1:
        _uneven(flags, draft, layers, stages * virtual, (first, last))


def _virtual(flags: Flags, draft: Draft, layers: int, stages: int) -> tuple[int, str]:
    """Virtual stages of a rank, and the flag that says so."""
    layout, chunks, each = flags.text(LAYOUT), flags.whole(CHUNKS), flags.whole(VIRTUAL)
    given = [flag for flag, value in ((LAYOUT, layout), (CHUNKS, chunks), (VIRTUAL, each)) if value]
    if len(given) > 1:
        raise flags.error(f"contradicts {given[0]}", given[1], "Give one of them.")
    if layout:
        return _laid_out(flags, draft, layout, layers, stages), LAYOUT
    if each:
        ends = ("embedding", "loss")
        blocks = layers + sum(flags.on(f"--account-for-{end}-in-pipeline-split") for end in ends)
        if blocks % stages or blocks // stages % each:
            what = f"{layers} layers in {stages} stages cannot be cut into virtual stages of {each}"
            raise flags.error(what, VIRTUAL, "Use a divisor of the layers of a stage.")
        chunks = blocks // stages // each
    return (chunks or 1), (VIRTUAL if each else CHUNKS)


def _laid_out(flags: Flags, draft: Draft, layout: str, layers: int, stages: int) -> int:
    """A layout such as ``E|(t|)*3,m|L``: the layers of each stage; how many virtual stages a rank has."""
    text = layout.replace(",", "")
    while match := re.search(r"\(([^()]*)\)\*(\d+)|([A-Za-z|])\*(\d+)", text):
        inner, count = (match[1], match[2]) if match[2] else (match[3], match[4])
        if len(text) + len(inner) * int(count) > MOST_LETTERS:
            raise flags.error("the layout has more stages than any plan", LAYOUT, "Correct its multiples.")
        text = text[: match.start()] + inner * int(count) + text[match.end() :]
    parts = text.split("|")
    counts = [part.count("t") for part in parts]
    if set(text) - set("EtmL|") or sum(counts) != layers:
        what = f"the layout has {sum(counts)} layers (t), the model {layers}"
        raise flags.error(what, LAYOUT, 'Write it as Megatron has it, such as "Et|(tt|)*30L".')
    if len(parts) % stages:
        what = f"{len(parts)} stages of the layout cannot be shared by {stages} pipeline ranks"
        raise flags.error(what, LAYOUT, f"Use a multiple of {stages} stages.")
    if len(set(counts)) > 1:
        draft.put("parallelism.stage_layers", counts, LAYOUT, flags.line(LAYOUT))
    return len(parts) // stages


def _uneven(flags: Flags, draft: Draft, layers: int, count: int, ends: tuple[int | None, int | None]) -> None:
    first, last = ends
    inner = count - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    flag = FIRST if first else LAST
    if rest < 0 or (inner and rest % inner) or (not inner and rest):
        what = f"{layers} layers with {first or 'none said'} on the first stage and {last or 'none said'} on the last"
        raise flags.error(f"{what} leave {rest} for {inner} stages", flag, "Correct the numbers of layers.")
    shares = [rest // inner if inner else 0] * inner
    given = [*([first] if first else []), *shares, *([last] if last else [])]
    draft.put("parallelism.stage_layers", given, f"{FIRST}, {LAST}", flags.line(flag))


def _sharding(flags: Flags, draft: Draft) -> None:
    """Optimizer states, gradients and parameters split over the replicas."""
    flag = "--use-distributed-optimizer"
    distributed = flags.on(flag)
    if is_layer_wise(flags) and not distributed:
        distributed, flag = True, OPTIMIZER
    strategy_flag = "--data-parallel-sharding-strategy"
    kinds = ("no_shard", "optim", "optim_grads", "optim_grads_params")
    strategy = flags.text(strategy_flag, kinds) or "no_shard"
    for name in ("--use-megatron-fsdp", "--use-custom-fsdp"):
        if not flags.on(name):
            continue
        distributed = distributed or strategy != "no_shard"
        if strategy == "optim_grads_params":
            draft.put("parallelism.fsdp", True, f"{name} {strategy_flag} {strategy}", flags.line(name))
        elif strategy == "optim_grads":
            draft.warn(f"{strategy_flag} optim_grads: gradients are forecast whole on every rank (ZeRO-1, not ZeRO-2)")
        flag = name
    stage = flags.whole("--zero-stage", 0, least=0) or 0
    if stage and flags.on("--deepspeed"):
        flag, distributed = "--zero-stage", True
        if stage == 2:
            draft.warn("--zero-stage 2: gradients are forecast whole on every rank (ZeRO-1)")
        if stage == 3:
            draft.put("parallelism.fsdp", True, flag, flags.line(flag))
    if flags.on("--use-torch-fsdp2"):
        draft.put("parallelism.fsdp", True, "--use-torch-fsdp2", flags.line("--use-torch-fsdp2"))
    if distributed and not draft.value("parallelism.fsdp"):
        draft.put("parallelism.distributed_optimizer", True, flag, flags.line(flag))


def _overlap(flags: Flags, draft: Draft) -> None:
    """What communication runs beside."""
    fsdp = draft.value("parallelism.fsdp", False)
    grad, gather = flags.on("--overlap-grad-reduce"), flags.on("--overlap-param-gather")
    line = flags.line
    if fsdp:
        if not (grad and gather) and not flags.on("--deepspeed"):
            source = "no --overlap-grad-reduce with --overlap-param-gather"
            draft.put("overlap.fsdp_prefetch", False, source)
    else:
        if grad:
            draft.put("overlap.grad_reduce", "overlapped", "--overlap-grad-reduce", line("--overlap-grad-reduce"))
        if gather:
            if not draft.value("parallelism.distributed_optimizer"):
                remedy = "Add --use-distributed-optimizer, as Megatron asks for."
                raise flags.error("there is no distributed optimizer", "--overlap-param-gather", remedy)
            draft.put("overlap.param_gather", "overlapped", "--overlap-param-gather", line("--overlap-param-gather"))
        bucket = flags.whole("--ddp-bucket-size")
        if bucket and grad:
            width = 2 if flags.on("--grad-reduce-in-bf16") else 4
            draft.put("overlap.grad_bucket_mb", bucket * width / 2**20, "--ddp-bucket-size", line("--ddp-bucket-size"))
    if flags.on("--tp-comm-overlap") and draft.value("parallelism.sequence_parallel"):
        draft.put("overlap.tp_comm", True, "--tp-comm-overlap", line("--tp-comm-overlap"))
    name = "--overlap-moe-expert-parallel-comm"
    if flags.on(name):
        draft.put("overlap.ep_comm", True, name, line(name))
    if flags.on("--use-sharp"):
        draft.put("network.sharp", True, "--use-sharp", line("--use-sharp"))
