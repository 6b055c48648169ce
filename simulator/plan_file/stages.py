"""How a plan cuts the model over its GPUs: the pipeline's schedule and stages, and the replicas that are left."""

from __future__ import annotations

from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.schedule_names import schedule_alias, unknown_schedule
from joulecast.simulator.plan_file.schema import PlanFile
from joulecast.simulator.plan_file.schema_parallelism import ParallelismTable
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.schedules import BOTH_ENDS, TWO_WAY, schedule_names

TP, PP = "parallelism.tensor_model_parallel_size", "parallelism.pipeline_model_parallel_size"
VP = "parallelism.virtual_pipeline_model_parallel_size"


def schedule_name(parsed: PlanFile, source: Source) -> str:
    """Our name of the schedule; it must exist, and go with the plan's stages."""
    name = schedule_alias(parsed.schedule.name)
    if name not in schedule_names():
        raise place(unknown_schedule(parsed.schedule.name), source, "schedule.name")
    stages, virtual = (
        parsed.parallelism.pipeline_model_parallel_size,
        parsed.parallelism.virtual_pipeline_model_parallel_size,
    )
    if name == "none" and stages > 1:
        raise source.error(
            f"schedule 'none' is a loop on one stage, but there are {stages} pipeline stages",
            "schedule.name",
            remedy=f"Choose one of {', '.join(n for n in schedule_names() if n != 'none')}.",
        )
    if virtual > 1 and stages == 1:
        raise source.error("virtual stages need more than one pipeline stage", VP, remedy="Set it to 1.")
    if name in BOTH_ENDS:
        _both_ends(name, stages, virtual, source)
        return name
    if virtual > 1 and name != "interleaved-1f1b":
        raise source.error(
            f"schedule {name!r} has one stage per rank, not {virtual}",
            VP,
            remedy="Set schedule.name = 'interleaved-1f1b', or this key to 1.",
        )
    if name == "interleaved-1f1b" and virtual == 1 and stages > 1:
        raise source.error(
            "schedule 'interleaved-1f1b' needs virtual stages", "schedule.name", remedy=f"Set {VP} to 2 or more."
        )
    return name


def _both_ends(name: str, stages: int, virtual: int, source: Source) -> None:
    """What a pipeline whose first rank holds the first and the last stage must have."""
    if stages == 1:
        raise source.error(
            f"schedule {name!r} is of a pipeline, but there is one stage",
            "schedule.name",
            remedy=f"Set {PP} to 2 or more, or choose 1f1b.",
        )
    if name in TWO_WAY:
        if virtual != 1:
            raise source.error(
                f"schedule {name!r} has one stage of each copy of the model per rank, not {virtual}",
                VP,
                remedy="Set it to 1, or leave it out.",
            )
        if stages % 2:
            raise source.error(
                f"schedule {name!r} runs halves of the ranks in mirror image, not {stages} ranks",
                PP,
                remedy=f"Use {stages - 1} or {stages + 1}.",
            )
    elif virtual not in (1, 2):
        raise source.error(
            f"schedule {name!r} has two stages per rank, not {virtual}", VP, remedy="Set it to 2, or leave it out."
        )


def data_parallel_size(parsed: PlanFile, source: Source) -> int:
    """Data-parallel size: the GPUs left after tensor, context and pipeline parallelism."""
    gpus, split = parsed.cluster.gpus, parsed.parallelism
    context = split.context_parallel_size
    product = split.tensor_model_parallel_size * split.pipeline_model_parallel_size * context
    named = f"tensor {split.tensor_model_parallel_size} x pipeline {split.pipeline_model_parallel_size}"
    named += f" x context {context}" if context > 1 else ""
    if gpus % product:
        raise source.error(
            f"{gpus} GPUs cannot be split into {named} = {product}",
            "cluster.gpus",
            remedy=f"Use a multiple of {product} GPUs, or other sizes in [parallelism].",
        )
    data = gpus // product
    if split.data_parallel_size not in (None, data):
        raise source.error(
            f"data-parallel size is {data} ({gpus} GPUs / {product}), not {split.data_parallel_size}",
            "parallelism.data_parallel_size",
            remedy="Leave the key out, or make the sizes multiply to the number of GPUs.",
        )
    return data


def stage_layers(table: ParallelismTable, virtual: int, layers: int, source: Source) -> tuple[int, ...]:
    """Blocks of each virtual stage, ``virtual`` of them a rank: evenly, as evenly as may be, or as given."""
    count = table.pipeline_model_parallel_size * virtual
    key = "parallelism.stage_layers"
    stages = VP if table.virtual_pipeline_model_parallel_size > 1 else PP
    if table.stage_layers is not None:
        for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
            if getattr(table, name):
                raise source.error(
                    "the stages' layers are given", f"parallelism.{name}", remedy=f"Leave it out, or {key}."
                )
        if table.stage_layers == "balanced":
            if count > layers:
                raise source.error(
                    f"{layers} layers are fewer than {count} stages", stages, remedy=f"Use at most {layers} stages."
                )
            return balanced_layers(layers, count)
        given = tuple(table.stage_layers)
        if len(given) != count or sum(given) != layers or min(given) < 0:
            least = min(given, default=0)
            fewest = f"a stage of {least} layers" if least < 0 else f"{sum(given)} layers"
            raise source.error(
                f"{list(given)} has {len(given)} stages and {fewest}, "
                f"the plan {count} stages and the model {layers} layers",
                key,
                remedy=f"Give {count} numbers, none below 0, that add up to {layers}.",
            )
        return given
    first, last = table.account_for_embedding_in_pipeline_split, table.account_for_loss_in_pipeline_split
    blocks = layers + first + last
    if blocks % count or blocks // count < first + last * (count == 1):
        counted = f" with embedding or head, {blocks} blocks," if first or last else ""
        raise source.error(
            f"{layers} layers{counted} cannot be split evenly over {count} stages",
            stages,
            remedy=f'Use a number of stages that divides {blocks}, or {key} = "balanced" or a list.',
        )
    shares = [blocks // count] * count
    shares[0] -= first
    shares[-1] -= last
    return tuple(shares)


def balanced_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as evenly as may be; the first and the last stages, which have more to do, have fewer.

    >>> balanced_layers(61, 16)
    (3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3)
    """
    base, more = divmod(layers, stages)
    first = (stages - more) // 2
    return tuple(base + (first <= stage < first + more) for stage in range(stages))
