"""Log-probabilities of chosen tokens from hidden states, without ever holding the logits of all tokens. Knows tensors only."""

from typing import Any, cast

import torch
from torch import Tensor

# Shapes: N policy tokens, H hidden size, V vocabulary, C tokens of a chunk.
CHUNK = 256


class _HeadLogprobs(torch.autograd.Function):
    """Logprobs and entropies, chunk by chunk, with a gradient for the hidden states only.

    That gradient is a fixed vector per token, (onehot(target) - softmax) W / temperature, so the forward pass makes it.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0]
        logprobs: list[Tensor] = []
        entropies: list[Tensor] = []
        gradients: list[Tensor] = []
        for hidden_CH, target_C in zip(torch.split(hidden_NH, CHUNK), torch.split(target_N, CHUNK), strict=True):
            logits_CV = torch.nn.functional.linear(hidden_CH, weight_VH).float()
            if temperature != 1.0:
                logits_CV /= temperature
            total_C1 = logits_CV.logsumexp(dim=1, keepdim=True)
            logprobs.append(logits_CV.gather(1, target_C.unsqueeze(1)).squeeze(1) - total_C1.squeeze(1))
            probabilities_CV = (logits_CV - total_C1).exp_()
            expected_C = torch.einsum("cv,cv->c", probabilities_CV, logits_CV)
            entropies.append(total_C1.squeeze(1) - expected_C)
            if needs_grad:
                weights_CH = torch.nn.functional.embedding(target_C, weight_VH).float()
                mean_CH = (probabilities_CV.to(weight_VH.dtype) @ weight_VH).float()
                gradients.append((weights_CH - mean_CH) / temperature)
        if needs_grad:
            ctx.save_for_backward(torch.cat(gradients))
            ctx.hidden_dtype = hidden_NH.dtype
        entropy_N = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_N)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None, None]:
        (gradient_NH,) = ctx.saved_tensors
        return (gradient_NH * grad_outputs[0].unsqueeze(1)).to(ctx.hidden_dtype), None, None, None


def head_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return ([N] float32 natural log-probabilities of the targets, [N] entropies in nats), both after the temperature.

    The head is frozen: gradients reach the hidden states only. At most CHUNK x V logits exist at a time.
    """
    if not len(target_N):
        empty_N = hidden_NH.sum(dim=1).float()
        return empty_N, empty_N.detach()
    return cast(tuple[Tensor, Tensor], _HeadLogprobs.apply(hidden_NH, weight_VH, target_N, temperature))
