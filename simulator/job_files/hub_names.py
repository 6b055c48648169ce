"""Models as jobs name them: repositories of Hugging Face's hub, or folders with a ``config.json``."""

from __future__ import annotations

import re
from difflib import get_close_matches

from joulecast.errors import short
from joulecast.model.architecture.hf import ALIASES, load_model, model_names
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.named_files import named_path

#: What a repository's name has behind or in front of a model's, whose shape it leaves as it is.
_TUNED = re.compile(r"[-_](instruct|base|chat|it|pt|pretrain|hf|bf16|thinking|v0\.1|17b-\d+e|\d{4})$")
_OWNED = ("meta-",)
#: What a repository's name has within a model's: its date, and further training or names that change no size.
_WITHIN = (
    (re.compile(r"^(olmo-2)-\d{4}(?=-)"), r"\1"),
    (re.compile(r"^(qwen2\.5)-(?:coder|math)(?=-)"), r"\1"),
    (re.compile(r"^(qwen3)-coder(?=-30b-a3b)"), r"\1"),
    (re.compile(r"^(?:deepseek-r1-distill)-qwen(?=-(?:7|14|32)b$)"), "qwen2.5"),  # that of 1.5B has a head of its own
    (re.compile(r"^(?:deepseek-r1-distill)-llama(?=-(?:8|70)b$)"), "llama-3.1"),
    (re.compile(r"^deepseek-r1-0528-(?=qwen3-8b$)"), ""),
    (re.compile(r"^gemma-1\.1(?=-)"), "gemma"),
    (re.compile(r"^codegemma(?=-)"), "gemma"),
    (re.compile(r"^smollm(?=-\d)"), "smollm2"),
    (re.compile(r"^(tinyllama)_v1\.1$"), r"\1-1.1b"),
    (re.compile(r"^(tinyllama-1\.1b)-intermediate-step-.*$"), r"\1"),
    (re.compile(r"^(phi-4)-reasoning(?:-plus)?$"), r"\1"),
    (re.compile(r"^hermes-3-(?=llama-3\.1-)"), ""),
    (re.compile(r"^vicuna-(\d+b)-v1\.5$"), r"llama-2-\1"),
    (re.compile(r"^zephyr-7b-(?:alpha|beta)$"), "mistral-7b"),
    (re.compile(r"^c4ai-command-r-v01$"), "command-r-35b"),
    (re.compile(r"^bloom-7b1$"), "bloom-7b"),
    (re.compile(r"^qwq-32b$"), "qwen2.5-32b"),
)
#: How alike a name must be to be offered (difflib's ratio).
ALIKE = 0.65
_KNOWN = "a name of `joulecast models` (--model)"
#: Letters of a name that is shown.
MOST_LETTERS = 100


def hub_model(name: str) -> str | None:
    """The catalogue's name of a model of the hub; ``None`` where it has none.

    >>> hub_model("meta-llama/Meta-Llama-3-8B-Instruct"), hub_model("Qwen/Qwen3-30B-A3B-Instruct-2507")
    ('llama-3.1-8b', 'qwen3-30b-a3b')
    >>> hub_model("Llama-2-7b-chat-hf"), hub_model("Qwen/Qwen2-7B"), hub_model("Mistral-Nemo-Base-2407")
    ('llama-2-7b', 'qwen2.5-7b', 'mistral-nemo-12b')
    >>> hub_model("Qwen/Qwen2.5-Coder-7B-Instruct"), hub_model("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    ('qwen2.5-7b', None)
    """
    own = name.rstrip("/").rpartition("/")[2].lower()
    known = {*model_names(), *ALIASES}
    for prefix in _OWNED:
        own = own.removeprefix(prefix)
    for within, shape in _WITHIN:
        own = within.sub(shape, own)
    for text in (own, re.sub(r"^(llama-?3)(?=-\d+b)", "llama-3.1", own), re.sub(r"^llama3", "llama-3", own)):
        while text not in known and (shorter := _TUNED.sub("", text)) != text:
            text = shorter
        if text in known:
            return ALIASES.get(text, text)
    return None


def _unknown(name: str) -> str:
    """What is said of a model that the catalogue has not: the nearest by name, and how to give its own shape."""
    own = _TUNED.sub("", name.rpartition("/")[2].lower())
    near = get_close_matches(own, model_names(), n=1, cutoff=ALIKE)
    known = f"the nearest by name is {near[0]}, for a model of that shape (--model {near[0]})" if near else _KNOWN
    return f"{name} is not in the catalogue; {known}; else save its config.json from its page of the hub: --model PATH"


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
        draft.missing["workload.model"] = _unknown(name)
        return
    load_model(known)
    draft.put("workload.model", known, f"{source[0]} {name}", source[1])
