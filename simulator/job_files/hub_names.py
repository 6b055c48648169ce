"""Models as jobs name them: repositories of Hugging Face's hub, or folders with a ``config.json``."""

from __future__ import annotations

import re

from joulecast.errors import short
from joulecast.model.architecture.hf import ALIASES, load_model, model_names
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.named_files import named_path

#: What a repository's name has behind or in front of a model's, whose shape it leaves as it is.
_TUNED = re.compile(r"[-_](instruct|base|chat|it|pt|pretrain|hf|bf16|thinking|v0\.1|17b-\d+e|\d{4})$")
_OWNED = ("meta-",)
#: Letters of a name that is shown.
MOST_LETTERS = 100


def hub_model(name: str) -> str | None:
    """The catalogue's name of a model of the hub; ``None`` where it has none.

    >>> hub_model("meta-llama/Meta-Llama-3-8B-Instruct"), hub_model("Qwen/Qwen3-30B-A3B-Instruct-2507")
    ('llama-3.1-8b', 'qwen3-30b-a3b')
    >>> hub_model("Llama-2-7b-chat-hf"), hub_model("Qwen/Qwen2-7B"), hub_model("Mistral-Nemo-Base-2407")
    ('llama-2-7b', 'qwen2.5-7b', 'mistral-nemo-12b')
    """
    own = name.rstrip("/").rpartition("/")[2].lower()
    known = {*model_names(), *ALIASES}
    for prefix in _OWNED:
        own = own.removeprefix(prefix)
    for text in (own, re.sub(r"^(llama-?3)(?=-\d+b)", "llama-3.1", own), re.sub(r"^llama3", "llama-3", own)):
        while text not in known and (shorter := _TUNED.sub("", text)) != text:
            text = shorter
        if text in known:
            return ALIASES.get(text, text)
    return None


def put_named_model(draft: Draft, asked: Asked, name: str | None, source: tuple[str, int | None]) -> None:
    """Put the model that a job names into the plan, or what is missing of it."""
    if asked.model is not None:
        asked.named_model()
        draft.put("workload.model", asked.model, "--model")
        return
    remedy = "a name of `joulecast models` or the path of a config.json (--model)"
    if name is None:
        draft.missing["workload.model"] = remedy
        return
    path = named_path(f"{name.rstrip('/')}/config.json", draft.file)
    known = str(path) if path else hub_model(name)
    name = short(" ".join(name.split()), MOST_LETTERS)
    if known is None:
        draft.missing["workload.model"] = f"{name} is not in the catalogue; {remedy}"
        return
    load_model(known)
    draft.put("workload.model", known, f"{source[0]} {name}", source[1])
