"""A tiny model with an adapter and the engine that samples from it, as a run has them.

policy = make_policy(tmp_path)
policy.engine.load_adapter(policy.save(), policy_version=1)
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from edge_rl.config import LearningConfig, ModelConfig
from edge_rl.learning.learner import Learner
from edge_rl.rollout.engines.hf import HfEngine
from edge_rl.weights.adapters import attach_adapter, save_adapter
from edge_rl.weights.packed import pack_linears
from edge_rl.weights.scratch import ScratchModel, copy_of
from tests.builders_models import make_tiny_model, randomise_adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model with an adapter, and an engine over its scratch copy."""

    model: PeftModel
    scratch: ScratchModel
    engine: HfEngine
    folder: Path

    def save(self, name: str = "adapter") -> Path:
        """Write the adapter; return its folder."""
        save_adapter(self.model, self.folder / name)
        return self.folder / name


def make_policy(
    folder: Path, *, slots: int = 4, packed: bool = True, std: float = 0.05, family: str = "llama"
) -> Policy:
    """Return a float32 policy of two layers; its adapter has values of size `std` (0: it changes nothing)."""
    base = make_tiny_model(family).requires_grad_(False)
    plain = copy_of(base)
    model = attach_adapter(base, ModelConfig(rank=4, alpha=8.0), 0)
    if std:
        randomise_adapter(model, std=std)
    if packed:
        pack_linears(model, keep_weight=True, is_wanted=lambda name: name.endswith(".base_layer"))
    scratch = ScratchModel(plain, model)
    return Policy(model=model, scratch=scratch, engine=HfEngine(plain, scratch.load, slots=slots), folder=folder)


class RecordingLearner(Learner):
    """Keeps the gradient instead of taking a step."""

    def __init__(self, model: PeftModel, settings: LearningConfig, *, temperature: float = 1.0) -> None:
        super().__init__(model, settings, temperature=temperature, pad_token_id=2)
        self.gradients: dict[str, torch.Tensor] = {}

    def _apply_gradient(self) -> float:
        self.gradients = gradients_of(self.model)
        return 0.0


def gradients_of(model: PeftModel) -> dict[str, torch.Tensor]:
    """Return the gradients of the adapter by name, and forget them."""
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def trainable(model: PeftModel) -> dict[str, torch.Tensor]:
    """Return copies of the adapter's weights by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel | PeftModel, token_ids: tuple[int, ...], num_prompt: int, *, temperature: float = 1.0
) -> torch.Tensor:
    """Return [T] log-probabilities of the tokens after the prompt, by the model's own forward pass without a cache."""
    logits_TV = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, num_prompt - 1 : -1].double()
    targets_T1 = torch.tensor(token_ids[num_prompt:]).unsqueeze(1)
    return (logits_TV / temperature).log_softmax(dim=-1).gather(1, targets_T1).squeeze(1)
