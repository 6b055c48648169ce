"""``joulecast models``: the catalogue of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.command_line.shown import add_catalogue

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig

#: What the list shows; JSON and CSV have everything.
COLUMNS = (
    "name",
    "parameters",
    "active_parameters",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "norm",
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_catalogue(app, "models", "models", list_models, show_model)


def list_models(json: bool, csv: bool) -> None:
    """Print the catalogue of models."""
    from joulecast.model.architecture.hf import load_model, model_names

    rows = [{"name": name, **_facts(load_model(name))} for name in model_names()]
    output.print_rows(rows, as_json=json, as_csv=csv, columns=COLUMNS)


def show_model(
    name: Annotated[str, typer.Argument(help="Name in the catalogue, or path of a Hugging Face config.json.")],
    json: output.JsonOption = False,
) -> None:
    """Show the sizes of one model."""
    from joulecast.model.architecture.hf import load_model

    facts = _facts(load_model(name))
    if json:
        output.print_json(facts)
    else:
        off = "experts_" if not facts["experts_count"] else None
        has = {key: value for key, value in facts.items() if (value or key in COLUMNS) and not (off and off in key)}
        output.print_pairs(has.items())
        print(f"and none of {len(facts) - len(has)} other features, which --json lists")


def _facts(model: ModelConfig) -> dict[str, Any]:
    from dataclasses import asdict

    from joulecast.model.architecture.experts import Experts, LatentAttention

    facts = asdict(model)
    facts = {name: facts[name] for name in COLUMNS if name in facts} | facts
    experts, latent, _ = facts.pop("experts"), facts.pop("latent"), facts.pop("vision")
    facts |= {f"experts_{key}": value for key, value in (experts or asdict(Experts(0, 0, 0))).items()}
    facts |= {f"latent_{key}": value for key, value in (latent or asdict(LatentAttention(0, 0, 0, 0, 0))).items()}
    return {**facts, **_seen(model), "parameters": model.parameters, "active_parameters": model.active_parameters}


def _seen(model: ModelConfig) -> dict[str, int]:
    """Sizes of the part that sees images, 0 where a model has none."""
    of = model.vision
    sizes = {name: of and getattr(of.tower, name) for name in ("layers", "hidden", "heads", "head_dim", "ffn")}
    sizes |= {name: of and getattr(of, name) for name in ("patch", "merge", "image_size", "window")}
    sizes |= {"parameters": of and of.tower_parameters, "projector_parameters": of and of.projector_parameters}
    return {f"vision_{name}": size or 0 for name, size in sizes.items()}
