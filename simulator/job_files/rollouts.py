"""Engines that generate completions on the training's own GPUs, as several tools' jobs have them."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.model.framework.implementation import Implementation
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.training.generation import key_value_bytes
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.settings_file import SettingsFile

LIVE = "workload.rollout.max_num_seqs"
MEASURED = "measure it and add --set workload.rollout.wait_s=SECONDS, those of an iteration"
OWN_LOOP = "generation by transformers' own loop is not forecast"
OTHER_GPUS = "other GPUs generate, which is not forecast"
#: Bytes of a weight in an engine.
_WIDTH = 2


@dataclass(frozen=True, slots=True)
class Engine:
    """Settings of engines, most of them with their defaults.

    Attributes
    ----------
    prompts, completions
        How many are generated of at once, and completions of each.
    live
        Sequences that it serves at once, at most.
    share
        Of the GPU's memory.
    split
        GPUs that have one together.
    sleeps
        Whether it gives its memory back while the model is trained.
    """

    prompts: tuple[str, int]
    completions: str
    live: tuple[str, int | None]
    share: tuple[str, float]
    split: tuple[str, int]
    sleeps: tuple[str, bool]

    @property
    def keys(self) -> tuple[str, ...]:
        """All of them."""
        return (self.completions, *(key for key, _ in (self.prompts, self.live, self.share, self.split, self.sleeps)))


def tell_lengths(draft: Draft, key: str, tokens: int) -> None:
    """Tell that all completions have the most tokens that they may have."""
    draft.warn(
        f"all completions are forecast with {tokens} tokens ({key}), the most there may be; if they are "
        "shorter add --set workload.completion_tokens=MEAN and workload.sequence_length"
    )


def tell_split(draft: Draft, key: str, split: int) -> None:
    """Tell of an engine that several GPUs have together."""
    if split > 1:
        draft.warn(
            f"{key}: every GPU is forecast with a whole engine, not {split} with one, whose steps may take {split} "
            f"times as long; {MEASURED}"
        )


def tell_scoring(draft: Draft, keys: str) -> None:
    """Tell of completions that are scored in micro-batches of their own."""
    draft.warn(f"{keys}: completions are forecast scored in micro-batches as they are trained on")


def parameter_bytes(draft: Draft) -> int:
    """Bytes of a parameter of the model that is trained."""
    return 4 if draft.value("implementation.parameter_precision") == "fp32" else 2


def leave_out(draft: Draft, why: str) -> None:
    """Leave generation out of the plan, which then has no completions where all logits are there."""
    key, measured = "workload.completion_tokens", MEASURED
    if draft.value("implementation.log_probabilities") == "whole":
        draft.missing.pop(key, None)
        found = draft.settings.pop(key, None)
        measured += f", beside --set {key}={'MEAN' if found is None else found.value}"
    draft.warn(f"{why}; {measured}")


def put_generation(config: SettingsFile, draft: Draft, asked: Asked, engine: Engine) -> None:
    """Put engines on the GPUs that train into the plan, or tell that they are not forecast."""
    n, prompts = config.whole(engine.completions, 1) or 1, config.whole(*engine.prompts)
    split, most = config.whole(*engine.split) or 1, config.whole(*engine.live)
    if why := _unknown(draft, asked):
        leave_out(draft, f"{why}: their generation is not forecast")
        return
    source, line = config.source(engine.prompts[0])
    draft.put("workload.rollout.num_generations", n, *config.source(engine.completions))
    batch = (prompts or 1) * n
    draft.put("workload.rollout.generation_batch_size", batch, f"{source} times {config.own(engine.completions)}", line)
    room = _room(config, draft, asked, engine)
    if room is not None and room < 1:
        for name in ("num_generations", "generation_batch_size"):
            del draft.settings[f"workload.rollout.{name}"]
        share = config.own(engine.share[0])
        leave_out(draft, f"{share}: a whole engine on each GPU has no room for a sequence, and is not forecast")
        return
    if room is not None and room < (most or room + 1):
        source, line = config.source(engine.share[0])
        draft.put(LIVE, room, f"{source}: room for these", line)
    else:
        draft.put(LIVE, most, *config.source(engine.live[0]))
    tell_split(draft, config.own(engine.split[0]), split)
    if config.value(engine.sleeps[0], bool, engine.sleeps[1]):
        draft.put("workload.rollout.enable_sleep_mode", True, *config.source(engine.sleeps[0]))


def _unknown(draft: Draft, asked: Asked) -> str:
    """What of a model no engine is known of, empty where one is."""
    if "workload.model" not in draft.settings:
        return ""
    model = draft.model(asked)
    unknown = ((model.experts, "experts"), (model.latent, "latent attention"), (model.mixers, "state spaces"))
    return next((f"engines of models with {what}" for wrong, what in unknown if wrong), "")


def _room(config: SettingsFile, draft: Draft, asked: Asked, engine: Engine) -> int | None:
    """Sequences that an engine's share of the memory has room for, ``None`` where that is not known."""
    share, length = (
        config.value(engine.share[0], (int, float), engine.share[1]),
        draft.value("workload.sequence_length"),
    )
    if asked.gpu is None or "workload.model" not in draft.settings or not length:
        return None
    model = draft.model(asked)
    room = share * load_gpu(asked.gpu).number("memory_bytes") - _WIDTH * model.parameters
    return int(room // key_value_bytes(model, Implementation(dtype="bf16"), length))


def tell_moved(draft: Draft, asked: Asked, keys: str, bytes_of_each: int) -> None:
    """Tell of states that are moved to the host and back between generation and training.

    ``bytes_of_each``: of a trained parameter, over all GPUs.
    """
    much = _each(draft, asked, bytes_of_each)
    draft.warn(
        f"{keys}: what goes to the host and back once for each batch of completions{much} is forecast to stay, beside "
        f"the engine; where it does not fit there add --set {LIVE}=FEWER"
    )


def tell_reference_on_host(draft: Draft, asked: Asked, said: str) -> None:
    """Tell of a reference whose weights lie on the host between the forwards of its layers."""
    draft.warn(
        f"{said}: the reference's weights are kept on the host, and are forecast on the GPU: it takes less memory, and "
        f"each of its forwards copies them over PCIe besides{_each(draft, asked, parameter_bytes(draft))}"
    )


def _each(draft: Draft, asked: Asked, width: int) -> str:
    """How much that is on each GPU, in brackets; empty where it is not known."""
    gpus = draft.value("cluster.gpus")
    if "workload.model" not in draft.settings or not gpus:
        return ""
    return f" ({width * draft.model(asked).parameters / gpus / 1e9:.3g} GB of each GPU)"
