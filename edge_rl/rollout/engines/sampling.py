"""Draw one token per row from logits, with its exact log-probability, in one pass. Knows tensors only.

The draw inverts the cumulative distribution at a uniform number that depends only on the rollout's seed and the position
in its sequence: neighbours, batch size and chunk edges do not change it.
"""

import hashlib
import struct

import torch
from torch import Tensor

from edge_rl.errors import EngineError

# Shapes: B rows, V vocabulary, N blocks of BLOCK tokens.
BLOCK = 256


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends only on its arguments."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def sample(logits_BV: Tensor, uniform_B: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return ([B] token ids, [B] natural log-probabilities after division by the temperature).

    A row with temperature 0 takes its most likely token; the log-probability is then that of the undivided logits.

    Raises: EngineError for logits that are NaN or infinite.
    """
    greedy_B = temperature_B == 0
    scale_B = torch.where(greedy_B, torch.ones_like(temperature_B), temperature_B)
    logits_BV = logits_BV.float()
    if not bool((scale_B == 1).all()):
        logits_BV = logits_BV / scale_B.unsqueeze(1)
    top_B, argmax_B = logits_BV.max(dim=1)
    if not bool(torch.isfinite(top_B).all()):
        raise EngineError(
            "the model returned logits that are not finite; its weights or the adapter are damaged, or the dtype is too "
            "narrow: try model.dtype=float32 or a lower learning rate"
        )
    weights_BV = (logits_BV - top_B.unsqueeze(1)).exp_()
    rows, vocabulary = weights_BV.shape
    if vocabulary % BLOCK:
        weights_BV = torch.nn.functional.pad(weights_BV, (0, BLOCK - vocabulary % BLOCK))
    weights_BNK = weights_BV.view(rows, -1, BLOCK)
    # Block sums first: a running sum over the whole vocabulary in float32 would lose the tail, in float64 be slow.
    cumulative_BN = weights_BNK.sum(dim=2).double().cumsum(dim=1)
    total_B = cumulative_BN[:, -1]
    target_B1 = (uniform_B.double() * total_B).unsqueeze(1)
    block_B1 = torch.searchsorted(cumulative_BN, target_B1, right=True).clamp_(max=cumulative_BN.shape[1] - 1)
    upper_B1 = cumulative_BN.gather(1, block_B1)
    lower_B1 = torch.where(block_B1 > 0, cumulative_BN.gather(1, (block_B1 - 1).clamp(min=0)), 0.0)
    inner_BK = weights_BNK[torch.arange(rows, device=block_B1.device), block_B1.squeeze(1)].double().cumsum(dim=1)
    # The share inside the block times its own sum stays below that sum, so a token of weight zero is never drawn.
    share_B1 = ((target_B1 - lower_B1) / (upper_B1 - lower_B1)).clamp(0.0, 1.0 - 1e-12)
    inside_B1 = torch.searchsorted(inner_BK, share_B1 * inner_BK[:, -1:], right=True)
    drawn_B = (block_B1 * BLOCK + inside_B1).squeeze(1)
    token_B = torch.where(greedy_B, argmax_B, drawn_B)
    logprob_B = (logits_BV.gather(1, token_B.unsqueeze(1)).squeeze(1) - top_B).double() - total_B.log()
    return token_B, logprob_B
