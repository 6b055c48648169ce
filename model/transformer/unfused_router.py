"""What Megatron's router runs between its product and the sending of tokens, in PyTorch's operations or in one kernel.

Without ``moe_router_fusion`` some forty operations pass over an fp32 score for each token and expert: weights, the
choice (``topk``), a tensor of weights and one of choices with a place for every expert, sums over the tokens of each
expert, and all of it but the weights' tensor once more for the loss that balances experts. Transformer Engine's kernels
do so in few.

On an H100 such routers took as long as so many element-wise passes over the scores, beside their choices
(`validate/recorded/routers`): of eight shapes, with a loss, within 18 % in all, 4 % too short in the mean, as long as
it took there to draw random scores.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.experts import Experts
from joulecast.model.framework.launches import Launch, row_wise, streaming
from joulecast.model.transformer.row_operators import choice

#: Passes over the scores in the forward and in the backward, by what makes weights of them, and how many more where
#: experts are chosen within groups [estimates, +-20 %].
SOFTMAX_PASSES, SIGMOID_PASSES, GROUPED_PASSES = (17, 6), (29, 15), 5
#: Choices: of the experts, again for the loss, and of a group's best.
CHOICES, GROUPED_CHOICES = 2, 3


def forward(experts: Experts, tokens: int, *, fused: bool) -> tuple[Launch, ...]:
    """From scores to weights and choices."""
    scores = tokens * experts.count
    chosen = choice(tokens, experts.count)
    if fused:
        whole = row_wise("softmax", "router.softmax", tokens, experts.count, dtype="fp32")
        return (whole, chosen)
    count = GROUPED_CHOICES if _grouped(experts) else CHOICES
    passes = streaming("mul", "router.unfused", scores, dtype="fp32")
    return (replace(passes, repeat=_passes(experts)[0]), replace(chosen, repeat=count))


def backward(experts: Experts, tokens: int, *, fused: bool) -> tuple[Launch, ...]:
    """From the gradients of weights to those of scores."""
    scores = tokens * experts.count
    if fused:
        return (streaming("mul", "router.softmax.grad", scores, reads=2, dtype="fp32"),)
    return (replace(streaming("mul", "router.grad.unfused", scores, dtype="fp32"), repeat=_passes(experts)[1]),)


def _passes(experts: Experts) -> tuple[int, int]:
    forward, back = SIGMOID_PASSES if "sigmoid" in experts.router else SOFTMAX_PASSES
    return (forward + GROUPED_PASSES * _grouped(experts), back)


def _grouped(experts: Experts) -> bool:
    return experts.groups > 1 or "grouped" in experts.router
