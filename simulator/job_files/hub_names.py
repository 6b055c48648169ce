"""Models as jobs name them: repositories of Hugging Face's hub, or folders with a ``config.json``."""

from __future__ import annotations

import re
from difflib import get_close_matches

from joulecast.errors import InputError, short
from joulecast.model.architecture.hf import ALIASES, load_model, model_names
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.named_files import named_path
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell_values import marks
from joulecast.simulator.job_files.told import QUANTISED

#: What a repository's name has behind or in front of a model's, whose shape it leaves as it is.
_TUNED = re.compile(
    r"[-_](instruct|base|chat|it|pt|pretrain|hf|bf16|thinking|sft|sft-mixture|dpo|1m|v0\.1|17b-\d+e|\d{4})$"
)
_OWNED = ("meta-",)
#: Where the hub's cache keeps a repository.
_CACHED = re.compile(r"models--[^/]+--([^/]+)/snapshots/")
#: What a repository's name has within a model's: its date, and further training or names that change no size.
_WITHIN = (
    (re.compile(r"^(olmo-2)-\d{4}(?=-)"), r"\1"),
    (re.compile(r"^(qwen2\.5)-(?:coder|math)(?=-)"), r"\1"),
    (re.compile(r"^(qwen3)-coder(?=-30b-a3b)"), r"\1"),
    (re.compile(r"^(?:deepseek-r1-distill)-qwen(?=-(?:7|14|32)b$)"), "qwen2.5"),
    (re.compile(r"^(?:deepseek-r1-distill)-llama(?=-(?:8|70)b$)"), "llama-3.1"),
    (re.compile(r"^deepseek-r1-0528-(?=qwen3-8b$)"), ""),
    (re.compile(r"^gemma-1\.1(?=-)"), "gemma"),
    (re.compile(r"^codegemma(?=-)"), "gemma"),
    (re.compile(r"^smollm(?=-\d)"), "smollm2"),
    (re.compile(r"^(tinyllama)_v1\.1$"), r"\1-1.1b"),
    (re.compile(r"^(tinyllama-1\.1b)-intermediate-step-.*$"), r"\1"),
    (re.compile(r"^(phi-4)-reasoning(?:-plus)?$"), r"\1"),
    (re.compile(r"^hermes-3-(?=llama-3\.\d-)"), ""),
    (re.compile(r"^(llama-3\.1)-(?:tulu-3(?:\.1)?|nemotron|nemotron-nano)-(8b|70b)(?:-v\d)?(?=-|$)"), r"\1-\2"),
    (re.compile(r"^yi(?:-1\.5)?-(\d+b)(-chat)?(?:-\d+k)?$"), r"yi-\1"),
    (re.compile(r"^codellama-(7b|13b)-python"), r"llama-2-\1"),  # without the tokens that fill in
    (re.compile(r"^(codellama-(?:34b|70b))-python"), r"\1"),
    (re.compile(r"^granite-3\.[0-3](?=-[28]b)"), "granite-3.1"),
    (re.compile(r"^phi-3-mini-128k(?=-|$)"), "phi-3.5-mini"),  # whose window is as wide
    (re.compile(r"^(phi-3-medium)-4k(?=-|$)"), r"\1"),
    (re.compile(r"^(phi-4-mini)-reasoning$"), r"\1"),
    (re.compile(r"^(tinyllama)(-chat)?$"), r"\1-1.1b"),
    (re.compile(r"^vicuna-(\d+b)-v1\.5$"), r"llama-2-\1"),
    (re.compile(r"^(?:zephyr|mistral)-7b-(?:sft-)?(?:alpha|beta)$"), "mistral-7b"),
    (re.compile(r"^c4ai-command-r-v01$"), "command-r-35b"),
    (re.compile(r"^bloom-7b1$"), "bloom-7b"),
    (re.compile(r"^qwq-32b$"), "qwen2.5-32b"),
)
#: How repositories are called whose weights are stored in bitsandbytes' 4 bits, or otherwise in few.
_FOUR_BITS = re.compile(r"[-_](unsloth[-_])?bnb[-_]4bit$", re.IGNORECASE)
_FEW_BITS = re.compile(
    r"[-_.](gptq|awq|aqlm|hqq|exl2|gguf|fp8|nvfp4|w4a16|w8a8|bnb[-_]8bit|4bit|8bit)(?![a-z])", re.IGNORECASE
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
    ('qwen2.5-7b', 'deepseek-r1-distill-qwen-1.5b')
    >>> hub_model("/cache/models--Qwen--Qwen3-8B/snapshots/9c925d64d72725edaf899c6cb9c377fd0709d9c5")
    'qwen3-8b'
    """
    cached = _CACHED.search(name)
    own = (cached[1] if cached else name.rstrip("/").rpartition("/")[2]).lower()
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


def in_four_bits(name: str | None) -> bool:
    """Whether a repository's weights are stored in bitsandbytes' 4 bits, as its name says.

    >>> in_four_bits("unsloth/Qwen3-14B-unsloth-bnb-4bit"), in_four_bits("unsloth/Qwen3-14B")
    (True, False)
    """
    return name is not None and _FOUR_BITS.search(name) is not None


def _whole(draft: Draft, name: str, source: tuple[str, int | None], *, four_bits: bool) -> str:
    """The name of the model whose weights these are in fewer bits.

    Raises
    ------
    InputError
        They are stored in bits that no plan has.
    """
    whole = _FOUR_BITS.sub("", name)
    if (four_bits and whole != name) or not (found := _FEW_BITS.search(name)):
        return whole
    remedy = f"Name the model whose weights are in 16 bits, such as {name[: found.start()]}, to forecast its training."
    raise InputError(QUANTISED, file=draft.file, line=source[1], key=f"{source[0]} {name}", remedy=remedy)


def _unknown(name: str) -> str:
    """What is said of a model that the catalogue has not: the nearest by name, and how to give its own shape."""
    own = _TUNED.sub("", name.rpartition("/")[2].lower())
    near = get_close_matches(own, model_names(), n=1, cutoff=ALIKE)
    known = f"the nearest by name is {near[0]}, for a model of that shape (--model {near[0]})" if near else _KNOWN
    return f"{name} is not in the catalogue; {known}; else save its config.json from its page of the hub: --model PATH"


def put_named_model(
    draft: Draft, asked: Asked, name: str | None, source: tuple[str, int | None], *, four_bits: bool = False
) -> None:
    """Put the model that a job names into the plan, or what is missing of it.

    ``four_bits``: whether its reader knows weights that are stored in bitsandbytes' 4 bits.

    Raises
    ------
    InputError
        Its weights are stored in bits that no plan has.
    """
    if asked.model is not None:
        asked.named_model()
        draft.put("workload.model", asked.model, "--model")
        return
    remedy = "a name of `joulecast models` or the path of a config.json (--model)"
    if name is None:
        draft.missing["workload.model"] = remedy
        return
    path = named_path(f"{name.rstrip('/')}/config.json", draft.file)
    name = short(" ".join(name.split()), MOST_LETTERS)
    known = str(path) if path else hub_model(_whole(draft, name, source, four_bits=four_bits))
    if known is None:
        draft.missing["workload.model"] = _unknown(name)
        return
    load_model(known)
    draft.put("workload.model", known, f"{source[0]} {name}", source[1])


def name_at(config: SettingsFile, key: str) -> str | None:
    """The model that a setting names, where folders in front may be variables that nothing sets."""
    found = config.raw(key)
    if isinstance(found, str) and marks(found) and not marks(last := found.rpartition("/")[2]):
        config.know([key])
        return last
    name: str | None = config.value(key, str)
    return name
