"""Mutations of learning, and of packed layers, scratch model and checkpoints; see tests/mutate.py."""

ATTENTION, TEST_ATTENTION = "edge_rl/learning/attention.py", "tests/unit/learning/test_attention.py"
ADVANTAGES, LOSSES = "edge_rl/learning/advantages.py", "edge_rl/learning/losses.py"
COLLATE, LOGPROBS, LEARNER = (
    "edge_rl/learning/collate.py",
    "edge_rl/learning/logprobs.py",
    "edge_rl/learning/learner.py",
)
PACKED, SCRATCH = "edge_rl/weights/packed.py", "edge_rl/weights/scratch.py"
CHECKPOINTS = "edge_rl/weights/checkpoints.py"
TEST_ADVANTAGES, TEST_LOSSES = "tests/unit/learning/test_advantages.py", "tests/unit/learning/test_losses.py"
TEST_COLLATE, TEST_LOGPROBS = "tests/unit/learning/test_collate.py", "tests/unit/learning/test_logprobs.py"
TEST_LEARNER, TEST_TRAINING = "tests/unit/learning/test_learner.py", "tests/invariants/test_training.py"
TEST_PACKED, TEST_SCRATCH = "tests/unit/weights/test_packed.py", "tests/unit/weights/test_scratch.py"
TEST_CHECKPOINTS = "tests/unit/weights/test_checkpoints.py"

MUTATIONS: list[tuple[str, str, str, str]] = [
    # -- advantages
    (
        ADVANTAGES,
        "return [reward for reward in rewards if reward is not None]",
        "return [reward or 0.0 for reward in rewards]",
        TEST_ADVANTAGES,
    ),
    (ADVANTAGES, "    if _is_silent(rewards):\n        return [0.0] * len(rewards)\n", "", TEST_ADVANTAGES),
    (ADVANTAGES, "mean = math.fsum(judged) / len(judged)", "mean = math.fsum(judged) / len(rewards)", TEST_ADVANTAGES),
    (
        ADVANTAGES,
        "0.0 if reward is None else reward - mean",
        "0.0 if reward is None else mean - reward",
        TEST_ADVANTAGES,
    ),
    (ADVANTAGES, "/ (count - 1))\n", "/ count)\n", TEST_ADVANTAGES),
    (
        ADVANTAGES,
        "math.fsum(value**2 for value in live) / len(live)",
        "math.fsum(value**2 for value in live) / (len(live) - 1)",
        TEST_ADVANTAGES,
    ),
    (ADVANTAGES, "        if not _is_silent(rewards)\n        for reward", "        for reward", TEST_ADVANTAGES),
    (ADVANTAGES, "        if reward is not None\n    ]\n    if not live", "    ]\n    if not live", TEST_ADVANTAGES),
    (ADVANTAGES, "count / (count - 1) if count > 1", "(count - 1) / count if count > 1", TEST_ADVANTAGES),
    # -- losses
    (
        LOSSES,
        "ratio_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)",
        "ratio_BT.clamp(1 - settings.clip_high, 1 + settings.clip_low)",
        TEST_LOSSES,
    ),
    (
        LOSSES,
        "objective_BT = torch.minimum(ratio_BT * advantages_BT, bounded_BT * advantages_BT)",
        "objective_BT = bounded_BT * advantages_BT",
        TEST_LOSSES,
    ),
    (LOSSES, "torch.minimum(ratio_BT * advantages_BT", "torch.maximum(ratio_BT * advantages_BT", TEST_LOSSES),
    (
        LOSSES,
        "torch.where(advantages_BT < 0, torch.maximum(objective_BT, floor_BT), objective_BT)",
        "objective_BT",
        TEST_LOSSES,
    ),
    (
        LOSSES,
        "torch.where(advantages_BT < 0, torch.maximum(",
        "torch.where(advantages_BT != 0, torch.maximum(",
        TEST_LOSSES,
    ),
    (LOSSES, "return gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)", "return gap_BT", TEST_LOSSES),
    (LOSSES, "    gap_BT = gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)\n", "", TEST_LOSSES),
    (
        LOSSES,
        "inputs.logprobs_BT - inputs.old_logprobs_BT, zeros_BT",
        "inputs.old_logprobs_BT - inputs.logprobs_BT, zeros_BT",
        TEST_LOSSES,
    ),
    (
        LOSSES,
        "gap_BT = torch.where(inputs.loss_mask_BT, inputs.logprobs_BT - inputs.old_logprobs_BT, zeros_BT)",
        "gap_BT = inputs.logprobs_BT - inputs.old_logprobs_BT",
        TEST_LOSSES,
    ),
    (
        LOSSES,
        "inputs.reference_logprobs_BT - inputs.logprobs_BT, zeros_BT",
        "inputs.logprobs_BT - inputs.reference_logprobs_BT, zeros_BT",
        TEST_LOSSES,
    ),
    (LOSSES, "return gap_BT.exp() - gap_BT - 1", "return gap_BT.exp() - gap_BT", TEST_LOSSES),
    (
        LOSSES,
        "objective_BT - settings.kl_coefficient * kl_BT",
        "objective_BT + settings.kl_coefficient * kl_BT",
        TEST_LOSSES,
    ),
    (LOSSES, "return objective_BT * mask_BT, metrics", "return objective_BT, metrics", TEST_LOSSES),
    (
        LOSSES,
        "return -(objective_BT.sum(dim=1) / length_B).sum() / inputs.num_rollouts, metrics",
        "return -objective_BT.sum() / inputs.num_loss_tokens, metrics",
        TEST_LOSSES,
    ),
    (LOSSES, "/ (inputs.num_rollouts * settings.max_tokens)", "/ inputs.num_rollouts", TEST_LOSSES),
    (
        LOSSES,
        "ratio_B1 = (log_ratio(inputs).sum(dim=1, keepdim=True) / length_B1).exp()",
        "ratio_B1 = log_ratio(inputs).sum(dim=1, keepdim=True).exp()",
        TEST_LOSSES,
    ),
    (LOSSES, "ratio_BT.detach().clamp(max=1 + settings.clip_high)", "ratio_BT.detach()", TEST_LOSSES),
    (LOSSES, "weight_BT = ratio_BT.detach().clamp(max=", "weight_BT = ratio_BT.clamp(max=", TEST_LOSSES),
    (
        LOSSES,
        "length_B = inputs.loss_mask_BT.sum(dim=1).clamp(min=1)",
        "length_B = inputs.loss_mask_BT.sum(dim=1)",
        TEST_LOSSES,
    ),
    (LOSSES, "(ratio_BT > 1 + settings.clip_high) & positive_BT", "(ratio_BT > 1 + settings.clip_high)", TEST_LOSSES),
    (
        LOSSES,
        "(ratio_BT < 1 - settings.clip_low) & (inputs.advantages_BT < 0)",
        "(ratio_BT < 1 - settings.clip_low)",
        TEST_LOSSES,
    ),
    # -- log-probabilities of the head
    (LOGPROBS, "                logits_CV /= temperature\n", "                pass\n", TEST_LOGPROBS),
    (
        LOGPROBS,
        "gradients.append((weights_CH - mean_CH) / temperature)",
        "gradients.append(weights_CH - mean_CH)",
        TEST_LOGPROBS,
    ),
    (LOGPROBS, "gradients.append((weights_CH - mean_CH)", "gradients.append((weights_CH)", TEST_LOGPROBS),
    (
        LOGPROBS,
        "entropies.append(total_C1.squeeze(1) - expected_C)",
        "entropies.append(total_C1.squeeze(1))",
        TEST_LOGPROBS,
    ),
    (LOGPROBS, "- total_C1.squeeze(1))\n            prob", ")\n            prob", TEST_LOGPROBS),
    (LOGPROBS, "(gradient_NH * grad_outputs[0].unsqueeze(1))", "gradient_NH", TEST_LOGPROBS),
    # -- collate: sources, positions, mask
    (
        COLLATE,
        "source.append(start + index - 1 if index else len(prompt) - 1)",
        "source.append(start + index - 1)",
        TEST_COLLATE,
    ),
    (COLLATE, "source.append(start + index - 1 if", "source.append(start + index if", TEST_COLLATE),
    (
        COLLATE,
        "                if is_policy:\n                    row_index",
        "                if True:\n                    row_index",
        TEST_COLLATE,
    ),
    (
        COLLATE,
        "range(len(prompt), len(prompt) + len(completion))",
        "range(start, start + len(completion))",
        TEST_COLLATE,
    ),
    (COLLATE, "place.append(index)", "place.append(len(place))", TEST_COLLATE),
    (
        COLLATE,
        "prompt + sum(len(item.rollout.token_ids) for item in self.items)",
        "sum(prompt + len(item.rollout.token_ids) for item in self.items)",
        TEST_COLLATE,
    ),
    (
        COLLATE,
        "num_tokens * (len(batches[-1]) + 1) <= max_tokens",
        "num_tokens * len(batches[-1]) <= max_tokens",
        TEST_COLLATE,
    ),
    (COLLATE, "key=lambda row: row.num_tokens, reverse=True)", "key=lambda row: row.num_tokens)", TEST_COLLATE),
    (COLLATE, "                row = []\n", "", TEST_COLLATE),
    (
        COLLATE,
        "index_BT=start_B1 + torch.minimum(offset_1T, length_B1 - 1)",
        "index_BT=start_B1 + offset_1T",
        TEST_COLLATE,
    ),
    (COLLATE, "is_token_BT=offset_1T < length_B1", "is_token_BT=offset_1T <= length_B1", TEST_COLLATE),
    (COLLATE, "prompt_width=max(prompts)", "prompt_width=min(prompts)", TEST_COLLATE),
    # -- attention
    (ATTENTION, "device=device) < self.prompt_length_R[", "device=device) <= self.prompt_length_R[", TEST_ATTENTION),
    (ATTENTION, "dtype=torch.bool, device=device).tril()", "dtype=torch.bool, device=device)", TEST_ATTENTION),
    (ATTENTION, "is_causal=True, scale=scaling", "is_causal=False, scale=scaling", TEST_ATTENTION),
    (ATTENTION, "attn_mask=layout_mask, scale=scaling", "attn_mask=layout_mask", TEST_ATTENTION),
    (ATTENTION, "repeats = query_RHSD.shape[1] // key_RGSD.shape[1]", "repeats = 1", TEST_ATTENTION),
    (ATTENTION, "tensor.repeat_interleave(repeats, dim=1)", "tensor.repeat(1, repeats, 1, 1)", TEST_ATTENTION),
    (
        ATTENTION,
        "value_all = torch.cat((value[layout.row_B, :, :width], value_own), dim=2)",
        "value_all = torch.cat((value[:1].expand(len(value_own), -1, -1, -1)[:, :, :width], value_own), dim=2)",
        TEST_ATTENTION,
    ),
    (
        ATTENTION,
        "layout.index_BT.shape[1] > sliding_window",
        "layout.index_BT.shape[1] > sliding_window + 1",
        TEST_ATTENTION,
    ),
    # -- learner
    (
        LEARNER,
        "(self.num_steps_taken + 1) / (self._settings.warmup_steps + 1)",
        "self.num_steps_taken / (self._settings.warmup_steps + 1)",
        TEST_LEARNER,
    ),
    (LEARNER, "warm = min(1.0, ", "warm = max(1.0, ", TEST_LEARNER),
    (LEARNER, "        if math.isfinite(norm):\n", "        if True:\n", TEST_LEARNER),
    (
        LEARNER,
        '                skipped += step_metrics["loss/skipped"]\n',
        '                skipped = step_metrics["loss/skipped"]\n',
        TEST_LEARNER,
    ),
    (LEARNER, "self._parameters, self._settings.max_grad_norm)", "self._parameters, 1e9)", TEST_LEARNER),
    (LEARNER, " and verdict.correct is not None and rollout", " and rollout", TEST_LEARNER),
    (LEARNER, " and rollout.num_policy_tokens\n", "\n", TEST_LEARNER),
    (LEARNER, "(advantage != 0.0 or needs_all)", "(advantage != 0.0)", TEST_LEARNER),
    (LEARNER, "torch.where(is_fresh_N, logprobs_N.detach(), behaviour_N)", "behaviour_N", TEST_LEARNER),
    (LEARNER, "torch.where(is_fresh_N, logprobs_N.detach(), behaviour_N)", "logprobs_N.detach()", TEST_LEARNER),
    (LEARNER, "old_N = old[index] if old else", "old_N =", TEST_LEARNER),
    (LEARNER, "fresh.append(version == policy_version)", "fresh.append(version <= policy_version)", TEST_LEARNER),
    (
        LEARNER,
        "entropy_N.sum() / num_tokens",
        "entropy_N.mean()",
        TEST_LEARNER + "::test_entropy_is_the_mean_over_policy_tokens",
    ),
    (LEARNER, "torch.no_grad(), self.model.disable_adapter():", "torch.no_grad():", TEST_LEARNER),
    (LEARNER, '"num_steps_taken": self.num_steps_taken}', '"num_steps_taken": 0}', TEST_LEARNER),
    (LEARNER, '        self._optimizer.load_state_dict(dict(state["optimizer"]))\n', "", TEST_LEARNER),
    (
        LEARNER,
        "num_tokens = sum(len(batch.target_N) for batch in batches)",
        "num_tokens = len(batches[0].target_N)",
        TEST_TRAINING,
    ),
    (
        LEARNER,
        "num_rollouts = sum(len(batch.items) for batch in batches)",
        "num_rollouts = len(batches[0].items)",
        TEST_TRAINING,
    ),
    (LEARNER, "            self._base.set_attn_implementation(usual)\n", "            pass\n", TEST_LEARNER),
    (LEARNER, "position_ids=batch.positions_RS,", "", TEST_TRAINING),
    (LEARNER, "temperature=self._temperature)", "temperature=1.0)", TEST_TRAINING),
    (LEARNER, "            loss.backward()", "            (2 * loss).backward()", TEST_TRAINING),
    # -- packed layers, scratch model, checkpoints
    (PACKED, "self._back = _pack(weight_OI.t())", "self._back = self._back or _pack(weight_OI.t())", TEST_PACKED),
    (
        PACKED,
        "        self._forth = _pack(weight_OI)\n",
        "        self._forth = getattr(self, '_forth', _pack(weight_OI))\n",
        TEST_PACKED,
    ),
    (PACKED, '    if getattr(linear, "bias", None) is not None:\n', "    if False:\n", TEST_PACKED),
    (PACKED, "is_wanted(name) and can_pack(linear)", "can_pack(linear)", TEST_PACKED),
    (SCRATCH, "alpha=scale)", "alpha=1.0)", TEST_SCRATCH),
    (
        SCRATCH,
        "weight = cast(Tensor, layer.get_base_layer().weight)",
        "weight = self._parameters[f'{name}.weight'].data",
        TEST_SCRATCH,
    ),
    (SCRATCH, "    if key not in state:\n", "    if False:\n", TEST_SCRATCH),
    (
        CHECKPOINTS,
        "            replace_folder(scratch, target)\n",
        "            scratch.mkdir(exist_ok=True)\n",
        TEST_CHECKPOINTS,
    ),
    (CHECKPOINTS, "weights_only=True", "weights_only=False", TEST_CHECKPOINTS),
    (CHECKPOINTS, 'int(path.name.removeprefix("step-")))\n', "path.name)\n", TEST_CHECKPOINTS),
    (CHECKPOINTS, "[:-keep]:", "[: -keep - 1]:", TEST_CHECKPOINTS),
    (CHECKPOINTS, ", pickle.UnpicklingError)", ")", TEST_CHECKPOINTS),
    (CHECKPOINTS, "KeyError, TypeError, RuntimeError", "KeyError, RuntimeError", TEST_CHECKPOINTS),
    (CHECKPOINTS, 'glob(".step-*")', 'glob(".step-*.partial")', TEST_CHECKPOINTS),
]
