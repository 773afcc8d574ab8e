"""Rollouts that are no language any more: loops, broken characters, noise. Knows tokens, text and numbers; no model.

Such a rollout is marked GARBLED: its reward is 0 and counts in its group's mean, and its tokens stay out of the loss, since
lowering ten copies of one sentence teaches nothing about the task. The thresholds are ours and wide on purpose: MiniCPM4
(arXiv:2506.07900) names such a filter and gives none. What is looked for:

    loop           the completion ends with one n-gram of tokens, over and over
    broken         characters that stand for bytes of no text
    repetition     a long text that compresses to almost nothing
    noise          tokens that the policy itself found most unlikely, all along
"""

import zlib
from collections.abc import Sequence

from edge_rl.types import Author, Rollout, Segment

MAX_PERIOD = 32
"""Longest n-gram whose repetition is looked for, in tokens."""
MIN_REPEATS = 8
MIN_LOOP_TOKENS = 48
"""A loop has at least so many repeats and covers at least so many tokens: "1 1 1 1" and a row of dashes are none."""
MAX_BROKEN_SHARE = 0.05
MAX_COMPRESSION = 12.0
MIN_TEXT_CHARACTERS = 400
"""Shorter texts say nothing by how they compress."""
MIN_MEAN_LOGPROB = -8.0
"""In nats; the entropy of a uniform draw from 50,000 tokens is 10.8."""
MIN_NOISE_TOKENS = 16
REPLACEMENT_CHARACTER = "\ufffd"


def garble_reason(rollout: Rollout) -> str | None:
    """Return why a finished rollout is garbled, None if it is not."""
    token_ids = [token for segment in _own(rollout) for token in segment.token_ids]
    period = loop_period(token_ids)
    if period is not None:
        return f"ends with {period} tokens over and over"
    text = rollout.policy_text
    if text.count(REPLACEMENT_CHARACTER) > MAX_BROKEN_SHARE * len(text):
        return f"more than {MAX_BROKEN_SHARE:.0%} broken characters"
    if compression_ratio(text) > MAX_COMPRESSION:
        return f"compresses to less than 1/{MAX_COMPRESSION:.0f}"
    logprobs = [logprob for segment in _own(rollout) for logprob in segment.behaviour_logprobs]
    if len(logprobs) >= MIN_NOISE_TOKENS and sum(logprobs) / len(logprobs) < MIN_MEAN_LOGPROB:
        return f"mean logprob below {MIN_MEAN_LOGPROB}"
    return None


def loop_period(token_ids: Sequence[int]) -> int | None:
    """Return the length of the n-gram that the sequence ends with over and over; None if there is none.

    A last, unfinished repeat is allowed. Example: 5 6 7 then (1 2) thirty times and 1 -> 2.
    """
    for period in range(1, MAX_PERIOD + 1):
        length = 0
        for index in range(len(token_ids) - 1, period - 1, -1):
            if token_ids[index] != token_ids[index - period]:
                break
            length += 1
        covered = length + period
        if length and covered >= MIN_LOOP_TOKENS and covered // period >= MIN_REPEATS:
            return period
    return None


def compression_ratio(text: str) -> float:
    """Return bytes over compressed bytes (zlib); 1 for a text that is too short to say."""
    if len(text) < MIN_TEXT_CHARACTERS:
        return 1.0
    data = text.encode("utf-8", errors="replace")
    return len(data) / len(zlib.compress(data, 6))


def _own(rollout: Rollout) -> list[Segment]:
    return [segment for segment in rollout.segments if segment.author is Author.POLICY]
