"""A user's verifier, as the kind `python` calls it."""

import time


def verify(completion: str, answer: str) -> bool:
    """Return whether the completion ends with the answer."""
    return completion.strip().endswith(answer) and "boxed" not in completion


def hang(completion: str, answer: str) -> bool:
    """Never return in time."""
    time.sleep(60)
    return True


def fail(completion: str, answer: str) -> bool:
    """Raise."""
    raise RuntimeError("broken on purpose")


def reward(prompts: list[str], completions: list[str], answer: list[str], **columns: object) -> list[float | None]:
    """Return a reward with TRL's calling convention: None for an empty completion."""
    return [None if not text else float(text.endswith(gold)) for text, gold in zip(completions, answer, strict=True)]
