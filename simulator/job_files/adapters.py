"""Adapters (LoRA) of Hugging Face's trainers and of what is built on them, as ``[workload.lora]``.

Switches, names and defaults are those of TRL's ``ModelConfig`` (1.16), LLaMA-Factory (0.9) and Axolotl (0.19), and of
scripts like theirs; what PEFT itself takes is that of ``LoraConfig`` (0.21).
"""

from __future__ import annotations

import re

from joulecast.model.architecture.hf import load_model
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import QUANTISED, by_name
from joulecast.simulator.plan_file.lora import ALL, module_names

RANK, DROPOUT, TARGETS = "lora_r", "lora_dropout", "lora_target_modules"
#: Other names that scripts have for these.
RANKS, DROPOUTS = (RANK, "lora_rank", "peft_lora_r", "r"), (DROPOUT, "peft_lora_dropout")
TARGETED = (TARGETS, "lora_target", "lora_modules", "target_modules")
#: Switches of scripts, and names that each say the same by being there.
SWITCHES = ("use_peft", "use_peft_lora", "use_lora", "lora_enable", "lora")
KINDS = ("finetuning_type", "adapter", "peft_type")
SIZES = (*RANKS, "lora_alpha", TARGETS)
#: PEFT's defaults: where queries, keys and values are one product, that.
PEFT_RANK, PEFT_TARGETS, PEFT_JOINT = 8, ["q_proj", "v_proj"], ["qkv_proj"]

_TRAINED = "what is trained whole beside adapters cannot be said in a plan"
_OTHER = "adapters of another kind than LoRA's are not known"
_SOME = "adapters of some layers alone are not known"
#: Settings with which the forecast would be far off.
_REFUSED = by_name(
    {
        "modules_to_save lora_modules_to_save additional_target": _TRAINED,
        "use_dora lora_use_dora peft_use_dora lora_target_parameters": _OTHER,
        "peft_layers_to_transform layers_to_transform lora_layers_to_transform peft_layers_pattern": _SOME,
    }
)
#: Switches of weights in 4 bits beside adapters, and of scales in 8 bits beside these.
_FOUR_BITS = ("load_in_4bit", "use_4bit_quantization", "use_qlora", "q_lora", "qlora")
_DOUBLE = ("use_bnb_nested_quant", "use_nested_quant", "bnb_4bit_use_double_quant", "double_quantization")
#: LLaMA-Factory's switch that casts norms, and those alone, to fp32.
_WIDE_NORMS = "upcast_layernorm"
#: Kernels of Axolotl's own, and with which of its settings it leaves them off where none of them is said.
_UNFUSED = ("rl", "trust_remote_code", "load_in_8bit")
_FUSED = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")


def read_adapters(config: SettingsFile, draft: Draft, stored: str | None) -> bool:
    """Put a job's adapters into the plan, if it trains any.

    ``stored``: the setting that names a model whose weights are stored in bitsandbytes' 4 bits.

    Raises
    ------
    InputError
        Adapters of which a forecast would be far off.
    """
    small, found = _four_bits(config) or stored, _switch(config)
    config.know((*SWITCHES, *KINDS, *SIZES, *TARGETED, *DROPOUTS, *_REFUSED))
    config.asked |= {"quantization_bit", "quantization_method", _WIDE_NORMS, *_FOUR_BITS, *_DOUBLE}
    if not found:
        if small and not small.endswith("lora"):
            remedy = "Name the model in 16 bits" if small == stored else "Leave it out"
            raise config.error(QUANTISED, small, f"{remedy} to forecast the training of all weights.")
        if not small:
            return False
    for key, what in _REFUSED.items():
        if config.raw(key) not in (None, False, "", [], "none"):
            raise config.error(what, key, "Leave it out to forecast the job without it.")
    rank = config.first(RANKS)
    draft.put("workload.lora.rank", config.whole(rank, PEFT_RANK), *config.source(rank))
    _targets(config, draft)
    dropout = config.first(DROPOUTS)
    draft.put("workload.lora.dropout", float(config.value(dropout, (int, float), 0.0)), *config.source(dropout))
    if small:
        _put_four_bits(config, draft, small, stored)
    if _fuses(config):
        draft.warn(
            "Axolotl's own kernels of adapters are fused: the iteration is shorter than with PEFT's, as forecast"
        )
    return True


def _switch(config: SettingsFile) -> str | None:
    """The setting by which a job trains adapters.

    Raises
    ------
    InputError
        It trains others than LoRA's.
    """
    for key in KINDS:
        kind = str(config.value(key, (str, bool), "")).lower() if config.own(key) in _said(config) else ""
        kind = kind if kind != "qlora" else "lora"
        if kind not in ("", "full", "false", "lora"):
            what = f"the job trains with {kind}, which no plan can say"
            raise config.error(what, key, "Set it to lora, or leave it out to forecast the training of all weights.")
        if kind == "lora":
            return key
        if kind == "full":
            return None
    switches = [key for key in SWITCHES if config.given(key)]
    if switches:
        return next((key for key in switches if config.raw(key) not in (False, "false", "none")), None)
    if _is_axolotl(config) or _is_trl(config):
        return None  # their sizes are of adapters that they have a switch for
    return next((key for key in SIZES if config.raw(key)), None)


def _four_bits(config: SettingsFile) -> str | None:
    """The setting by which weights are kept in bitsandbytes' 4 bits.

    Raises
    ------
    InputError
        They are kept in other bits.
    """
    bits, method = "quantization_bit", "quantization_method"
    if config.raw(bits) not in (None, 4) or str(config.raw(method) or "bnb").lower() not in ("bnb", "bitsandbytes"):
        key = method if config.raw(bits) in (None, 4) else bits
        raise config.error(QUANTISED, key, "Set quantization_bit to 4 with bitsandbytes, or leave it out.")
    if config.raw(bits):
        return bits
    if str(config.raw("adapter")).lower() == "qlora":
        return "adapter"
    return next((key for key in _FOUR_BITS if config.raw(key) not in (None, False, "false")), None)


def _put_four_bits(config: SettingsFile, draft: Draft, key: str, stored: str | None) -> None:
    """Put how the frozen weights are kept into the plan; those that are ``stored`` so stay so, with small scales."""
    draft.put("workload.lora.base_precision", "nf4", *config.source(key))
    double = config.first(_DOUBLE)
    double = double if config.given(double) else next((name for name in _DOUBLE if name in config.defaults), double)
    if stored:
        draft.put("workload.lora.double_quantisation", True, "repositories of this kind have small scales")
        if "unsloth-bnb" in str(config.raw(stored)).lower():
            draft.warn(
                f"{config.own(stored)}: some of its layers are stored in 16 bits, and all are forecast in 4: it takes "
                "more memory"
            )
    elif _is_axolotl(config):
        draft.put("workload.lora.double_quantisation", True, "Axolotl quantises scales too")
    elif config.value(double, bool, False):
        draft.put("workload.lora.double_quantisation", True, *config.source(double))
    # TRL's SFT (1.16) does not call prepare_model_for_kbit_training, and Axolotl casts back what it made fp32.
    if config.raw(_WIDE_NORMS) is True:  # linear layers give fp32 all the same, embedding and head are counted twofold
        draft.put("workload.lora.prepared", True, *config.source(_WIDE_NORMS))
    elif not config.names and not _is_trl(config):  # a script of the user's own
        draft.warn(
            "norms, embedding and head beside weights in 4 bits are forecast in 16; where the script calls "
            "prepare_model_for_kbit_training, add --set workload.lora.prepared=true"
        )


def _fuses(config: SettingsFile) -> bool:
    """Whether Axolotl's own kernels run: as it is told, else without dropout (``check_auto_enable_lora_kernels``)."""
    if any(config.raw(key) is not None for key in _FUSED):
        return any(config.raw(key) for key in _FUSED)
    return _is_axolotl(config) and config.raw(DROPOUT) == 0 and not any(config.raw(key) for key in _UNFUSED)


def _is_axolotl(config: SettingsFile) -> bool:
    return config.own("model_name_or_path") == "base_model"


def _is_trl(config: SettingsFile) -> bool:
    return RANK in config.defaults


def _said(config: SettingsFile) -> set[str]:
    """Names that the job or its tool gives a value."""
    return {config.own(key) for key in KINDS if config.given(key)} | set(config.defaults)


def _targets(config: SettingsFile, draft: Draft) -> None:
    """Linear layers by their names: a list, or a text with commas or spaces between them."""
    if config.raw("lora_target_linear") is True:
        draft.put("workload.lora.target_modules", ALL, *config.source("lora_target_linear"))
    else:
        key = config.first(TARGETED)
        found = config.value(key, (str, list), None)
        default = _peft_targets(draft)
        if found is None:
            draft.warn(f"no {config.own(TARGETS)}: adapters are forecast beside {' and '.join(default)}, PEFT's choice")
        names = [name for name in re.split(r"[,\s]+", found) if name] if isinstance(found, str) else found
        every = names in (["all"], ["all-linear"], ["all_linear"])
        draft.put("workload.lora.target_modules", ALL if every else names or default, *config.source(key))
    config.asked.add("lora_target_linear")


def _peft_targets(draft: Draft) -> list[str]:
    """What PEFT has adapters beside where nothing says it (``TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING``)."""
    model = draft.value("workload.model")
    joint = model is not None and set(PEFT_JOINT) <= set(module_names(load_model(model)))
    return PEFT_JOINT if joint else PEFT_TARGETS


def put_precision(config: SettingsFile, draft: Draft, *, loads_narrow: bool) -> None:
    """Put the type of the adapters, and of what is frozen beside them, into the plan.

    PEFT keeps adapters in fp32 unless told otherwise. DeepSpeed casts the whole model to the type that it multiplies,
    and steps a copy of the adapters in fp32. ``loads_narrow``: frozen weights are loaded in that type.
    """
    narrow, pure = draft.value("workload.precision"), config.first(("pure_bf16", "bfloat16"))
    small = draft.value("workload.lora.base_precision") is not None
    if draft.value("implementation.main_parameters"):
        draft.put("workload.lora.precision", narrow, "DeepSpeed casts adapters as it multiplies")
    elif small and _is_trl(config):
        draft.put("workload.lora.precision", narrow, "TRL casts adapters beside weights in 4 bits")
    elif config.raw(pure) is True:
        draft.put("workload.lora.precision", narrow, *config.source(pure))
    elif config.raw("peft_autocast_adapter_dtype") is False or config.raw("autocast_adapter_dtype") is False:
        draft.put("workload.lora.precision", narrow, "autocast_adapter_dtype false")
    config.asked |= {"peft_autocast_adapter_dtype", "autocast_adapter_dtype"}
    if (loads_narrow or small) and not draft.value("implementation.parameter_precision"):
        draft.put("implementation.parameter_precision", narrow, "frozen weights are loaded as they are multiplied")
