"""Samples as JSONL: one JSON object a line, its keys the fields of `Sample`. Knows no model, verifier or tokenizer.

A file is read completely or not at all: the first bad row stops it with the file, the line, the field and what was
expected.
"""

import difflib
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_core import to_json

from edge_rl.data.hints import insert_hints
from edge_rl.errors import DataError
from edge_rl.types import Author, Hint, HintKind, Sample, Split, TraceSegment


class _Row(BaseModel):
    """Base of what a line may hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _SegmentRow(_Row):
    author: Author
    text: str = Field(min_length=1)

    @model_validator(mode="after")
    def _is_hint_free(self) -> Self:
        if self.author is Author.HINT:
            raise ValueError("a trace is hint-free: its authors are 'policy' and 'tool'; put hints into `hints`")
        return self


class _HintRow(_Row):
    kind: HintKind
    text: str = Field(min_length=1)
    position: int | None = None
    tier: int | None = None


class SampleRow(_Row):
    """What one line holds: the fields of `Sample`, in its order."""

    id: str = Field(min_length=1)
    question: str = Field(pattern=r"\S")
    answer: str = ""
    kind: str = Field(default="numeric", min_length=1)
    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    tests: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    trace: tuple[_SegmentRow, ...] = ()
    hints: tuple[_HintRow, ...] = ()
    split: Split = Split.TRAIN
    tags: tuple[str, ...] = ()
    source: str = ""
    licence: str = ""

    @model_validator(mode="after")
    def _has_gold(self) -> Self:
        if not self.answer.strip() and not self.tests:
            raise ValueError("answer is empty; every sample needs its gold answer (kind 'code' may give tests instead)")
        return self


def load_samples(path: str | Path) -> list[Sample]:
    """Return the samples of a JSONL file, in order; blank lines are skipped.

    Raises: DataError naming file, line and field for whatever is wrong; nothing is returned then.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"sample file {path} does not exist; set data.path to a JSONL file (one sample a line)")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is no UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    samples: list[Sample] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand inside a JSON string
        if not line.strip():
            continue
        sample = _parse_sample(line, f"{path}:{number}")
        if sample.id in first_line:
            raise DataError(f"{path}:{number}: id {sample.id!r} is already used in line {first_line[sample.id]}")
        first_line[sample.id] = number
        samples.append(sample)
    if not samples:
        raise DataError(f"{path} holds no samples; write one JSON object a line with id, question and answer")
    return samples


def save_samples(samples: Sequence[Sample], path: str | Path) -> None:
    """Write samples as JSONL, completely or not at all: keys in field order, empty fields left out, LF line ends.

    Raises: DataError for a repeated id, a value that JSON cannot hold, or a file that cannot be written.
    """
    path = Path(path)
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise DataError(f"{path}: id {sample.id!r} occurs twice; ids must be unique in a file")
        seen.add(sample.id)
    content = b"".join(_dump_sample(sample) + b"\n" for sample in samples)
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None


def _parse_sample(line: str, where: str) -> Sample:
    try:
        row = SampleRow.model_validate_json(line)
    except ValidationError as error:
        raise DataError(f"{where}: {'; '.join(_explain(detail) for detail in error.errors())}") from None
    try:
        sample = Sample(
            **{name: getattr(row, name) for name in SampleRow.model_fields if name not in ("trace", "hints")},
            trace=tuple(TraceSegment(author=part.author, text=part.text) for part in row.trace),
            hints=tuple(
                Hint(kind=part.kind, text=part.text, position=part.position, tier=part.tier) for part in row.hints
            ),
        )
        insert_hints(sample.trace, [hint for hint in sample.hints if hint.position is not None])
    except DataError as error:
        raise DataError(f"{where}: hints: {error}") from None
    return sample


def _dump_sample(sample: Sample) -> bytes:
    row: dict[str, Any] = {entry.name: getattr(sample, entry.name) for entry in fields(sample)}
    row["trace"] = [{"author": part.author, "text": part.text} for part in sample.trace]
    row["hints"] = [
        {
            key: value
            for key, value in (
                ("kind", part.kind),
                ("position", part.position),
                ("tier", part.tier),
                ("text", part.text),
            )
            if value is not None
        }
        for part in sample.hints
    ]
    try:
        return to_json({key: value for key, value in row.items() if value not in ("", (), [], {})})
    except (ValueError, TypeError) as error:
        raise DataError(f"sample {sample.id!r} cannot be written as JSON: {error}") from None


def _known_keys(path: Sequence[str | int]) -> list[str]:
    models: dict[str | int, type[_Row]] = {"trace": _SegmentRow, "hints": _HintRow}
    return list((models[path[0]] if path else SampleRow).model_fields)


def _explain(detail: Any) -> str:
    """Return one line for one fault that pydantic found."""
    path: tuple[str | int, ...] = detail["loc"]
    dotted = ".".join(str(part) for part in path)
    if detail["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        return f"unknown key {dotted!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
    if detail["type"] == "missing":
        return f"{dotted} is missing"
    if detail["type"] == "json_invalid":
        return f"no valid JSON: {detail['ctx']['error']}"
    if detail["type"] in ("string_pattern_mismatch", "string_too_short"):
        return f"{dotted} is empty; expected text"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should be", "expected")
    if not path:
        return f"{message}" if detail["type"] == "value_error" else f"expected a JSON object, got {_short(detail)}"
    return f"{dotted}: {message}" + ("" if detail["type"] == "value_error" else f", got {_short(detail)}")


def _short(detail: Any) -> str:
    text = repr(detail["input"])
    return text if len(text) <= 60 else text[:57] + "..."
