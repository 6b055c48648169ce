"""PyTorch, loaded late, and what it lacks or refuses put into words."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from joulecast.calibrate.devices.protocol import Device
from joulecast.errors import MeasurementError

#: What a microbenchmark may need beyond PyTorch, and what to do where it is missing.
REMEDIES = {
    "triton": "Install triton; it needs a GPU",
    "cudnn-attention": "It needs PyTorch with cuDNN 9 and an NVIDIA GPU of compute capability 8.0 or newer",
    "flash-attention": "It needs PyTorch built with FlashAttention-2 and a GPU of compute capability 8.0 or newer",
    "flash-attention-3": "It needs PyTorch with FlashAttention-3 activated",
    "fp8": "It needs a GPU of compute capability 8.9 or newer",
}
#: Compute capability from which matrix products of 8-bit floats exist.
FP8_CAPABILITY = (8, 9)
ATTENTION_CAPABILITY = (8, 0)
#: First lines of driver messages are kept up to this length.
MESSAGE_LENGTH = 200


def load_torch() -> Any:
    """The module ``torch``.

    Raises
    ------
    MeasurementError
        It is not installed or cannot be loaded.
    """
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise MeasurementError(
            f"PyTorch cannot be loaded ({first_line(error)})", remedy="Install it: pip install 'joulecast[torch]'."
        ) from None


def card_locator(torch: Any, index: int) -> str:
    """Where :func:`joulecast.calibrate.devices.open_device` finds the card that PyTorch gives this number."""
    if torch.version.hip is not None:
        return f"amd:{index}"
    return f"nvml:GPU-{torch.cuda.get_device_properties(index).uuid}"


def torch_index(device: Device) -> int:
    """PyTorch's number of a card: it counts only what ``CUDA_VISIBLE_DEVICES`` shows, in an order of its own.

    Raises
    ------
    MeasurementError
        PyTorch is missing, or does not see the card.
    """
    from joulecast.calibrate.devices.nvml import NvmlCard

    torch = load_torch()
    if not isinstance(device, NvmlCard):
        return int(device.facts.locator.rpartition(":")[2])
    wanted = device.identifier
    for index in range(torch.cuda.device_count()):
        if wanted.endswith(str(torch.cuda.get_device_properties(index).uuid)):
            return index
    raise MeasurementError(
        f"PyTorch does not see {device.facts.locator} ({wanted})",
        key=device.facts.locator,
        remedy="It needs a build of PyTorch for this GPU, and CUDA_VISIBLE_DEVICES must not hide it.",
    )


def first_line(error: BaseException) -> str:
    """What a library says first, without its traceback of other languages."""
    text = str(error).strip()
    return text.splitlines()[0][:MESSAGE_LENGTH] if text else type(error).__name__


@contextmanager
def in_words(torch: Any, name: str) -> Iterator[None]:
    """Turn what PyTorch raises while it prepares or runs ``name`` into one readable error.

    Raises
    ------
    MeasurementError
        Out of memory, or a kernel, data type or backend that this card or build does not have.
    """
    out_of_memory = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    try:
        yield
    except out_of_memory as error:
        _let_go(error)
        raise MeasurementError(
            f"{name}: out of GPU memory ({first_line(error)})",
            remedy="Free the card's memory or choose a smaller benchmark.",
        ) from None
    except (RuntimeError, ValueError, TypeError, AttributeError, MemoryError, ImportError) as error:
        _let_go(error)
        raise MeasurementError(f"{name}: {first_line(error)}", remedy="This card or PyTorch cannot run it.") from error
    except Exception as error:
        # Errors of Triton have no base that could be named without importing it.
        if not type(error).__module__.startswith("triton"):
            raise
        _let_go(error)
        raise MeasurementError(f"{name}: Triton: {first_line(error)}", remedy="This card cannot run it.") from error


def _let_go(error: BaseException) -> None:
    """Free the buffers that the frames of the error hold, even while somebody keeps the error."""
    traceback.clear_frames(error.__traceback__)


def missing_needs(torch: Any, device: Any, needs: tuple[str, ...]) -> tuple[str, ...]:
    """Which of ``needs`` this machine lacks.

    On CPU tensors attention and 8-bit products run as the CPU's own kernels, so only Triton can be missing there.
    """
    if device.type == "cpu":
        return tuple(need for need in needs if need == "triton" and not _triton_on_cpu())
    capability = tuple(torch.cuda.get_device_capability(device))
    nvidia = torch.version.hip is None
    present = {
        "triton": importlib.util.find_spec("triton") is not None,
        "cudnn-attention": nvidia and torch.backends.cudnn.is_available() and capability >= ATTENTION_CAPABILITY,
        "flash-attention": torch.backends.cuda.is_flash_attention_available() and capability >= ATTENTION_CAPABILITY,
        "flash-attention-3": False,
        "fp8": hasattr(torch, "float8_e4m3fn") and (not nvidia or capability >= FP8_CAPABILITY),
    }
    return tuple(need for need in needs if not present.get(need, False))


def _triton_on_cpu() -> bool:
    """Triton's interpreter runs kernels on CPU tensors; it is switched on from outside, for tests."""
    if importlib.util.find_spec("triton") is None:
        return False
    knobs = importlib.import_module("triton")
    return bool(knobs.knobs.runtime.interpret) if hasattr(knobs, "knobs") else False


def refuse_missing(name: str, missing: tuple[str, ...]) -> None:
    """Raise the error of a benchmark that lacks something.

    Raises
    ------
    MeasurementError
        Unless ``missing`` is empty.
    """
    if missing:
        remedies = "; ".join(REMEDIES.get(need, "Joulecast does not know how to provide it") for need in missing)
        raise MeasurementError(f"{name}: {', '.join(missing)} is missing here", remedy=f"{remedies}.")
