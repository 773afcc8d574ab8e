import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_rl.data import seeds
from edge_rl.data.seeds import load_samples, save_samples
from edge_rl.errors import DataError
from edge_rl.types import Author, Hint, HintKind, Sample, Split, TraceSegment

ROW: dict[str, Any] = {"id": "a", "question": "2 plus 2?", "answer": "4"}
FULL = Sample(
    id="full",
    question="What is 12 times 34?\u2028é",
    answer="408",
    kind="numeric",
    options={"tolerance": 0.5, "deep": {"list": [1, None, "x"]}},
    tests=("assert True",),
    tools=("python",),
    trace=(
        TraceSegment(author=Author.POLICY, text="12 times 34 is```python\nprint(12 * 34)\n```"),
        TraceSegment(author=Author.TOOL, text="\n```output\n408\n```\n"),
        TraceSegment(author=Author.POLICY, text="\\boxed{408}."),
    ),
    hints=(
        Hint(kind=HintKind.DELAYED_CODE, text=" ... by code.\n", position=14),
        Hint(kind=HintKind.FREE, text="Think of 12 * 34.", tier=2),
    ),
    split=Split.TEST,
    tags=("hinted", "skill:product"),
    source="here",
    licence="Apache-2.0",
)


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "data.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_save_samples_and_load_samples_round_trip_every_field(tmp_path: Path) -> None:
    samples = [FULL, Sample(id="small", question="2 plus 2?", answer="4")]
    save_samples(samples, tmp_path / "deep" / "data.jsonl")
    assert load_samples(tmp_path / "deep" / "data.jsonl") == samples
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["data.jsonl"]


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(
    st.lists(
        st.builds(
            Sample,
            id=text,
            question=text.map("q".__add__),
            answer=text.map("4".__add__),
            tools=st.lists(text, max_size=2).map(tuple),
            options=st.dictionaries(text, st.integers() | text | st.booleans() | st.none(), max_size=2),
            split=st.sampled_from(Split),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda sample: sample.id,
    )
)
def test_save_samples_and_load_samples_round_trip_any_text(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]
) -> None:
    path = tmp_path_factory.mktemp("seeds") / "data.jsonl"
    save_samples(samples, path)
    assert load_samples(path) == samples


def test_save_samples_writes_fields_in_order_and_leaves_empty_ones_out(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    save_samples([Sample(id="a", question="2 plus 2?", answer="4", tags=("x",))], path)
    assert path.read_bytes() == (
        b'{"id":"a","question":"2 plus 2?","answer":"4","kind":"numeric","split":"train","tags":["x"]}\n'
    )


def test_save_samples_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = write(tmp_path, ROW)
    before = path.read_bytes()
    with pytest.raises(DataError, match="id 'a' occurs twice"):
        save_samples([Sample(id="a", question="q", answer="1")] * 2, path)
    with pytest.raises(DataError, match="sample 'b' cannot be written as JSON"):
        save_samples([Sample(id="b", question="q", answer="1", options={"x": object()})], path)
    with pytest.raises(DataError, match="cannot be written"):
        save_samples([Sample(id="b", question="q", answer="1")], path / "below" / "data.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder: cannot be written"):
        save_samples([Sample(id="b", question="q", answer="1")], tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.jsonl"]


def test_sample_schema_has_exactly_the_fields_of_the_record() -> None:
    assert seeds.SampleRow.model_fields.keys() == {field.name for field in fields(Sample)}
    assert list(seeds.SampleRow.model_fields) == [field.name for field in fields(Sample)]


def test_load_samples_skips_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROW).encode() + b"\r\n\r\n")
    assert load_samples(path) == [Sample(id="a", question="2 plus 2?", answer="4")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "anser": "4"}, "unknown key 'anser'; did you mean 'answer'?"),
        ({**ROW, "zzz": 1}, "unknown key 'zzz'; known: id, question, answer"),
        ({"id": "a", "answer": "4"}, "question is missing"),
        ({"question": "q", "answer": "4"}, "id is missing"),
        ({**ROW, "id": ""}, "id is empty; expected text"),
        ({**ROW, "question": " \n"}, "question is empty; expected text"),
        ({**ROW, "answer": 4}, "answer: expected a valid string, got 4"),
        ({**ROW, "answer": " "}, "answer is empty; every sample needs its gold answer"),
        ({"id": "a", "question": "q"}, "answer is empty; every sample needs its gold answer"),
        ({**ROW, "split": "dev"}, "split: expected 'train', 'validation' or 'test', got 'dev'"),
        ({**ROW, "tools": "python"}, "tools: expected a valid array, got 'python'"),
        ({**ROW, "tags": [1]}, "tags.0: expected a valid string, got 1"),
        ({**ROW, "options": []}, "options: expected an object, got []"),
        ({**ROW, "trace": [{"author": "policy"}]}, "trace.0.text is missing"),
        (
            {**ROW, "trace": [{"author": "tool", "text": "x", "txt": 1}]},
            "unknown key 'trace.0.txt'; did you mean 'text'?",
        ),
        ({**ROW, "trace": [{"author": "hint", "text": "x"}]}, "trace.0: a trace is hint-free"),
        ({**ROW, "hints": [{"kind": "delay", "text": "x", "tier": 1}]}, "hints.0.kind: expected 'delayed_code', "),
        ({**ROW, "hints": [{"kind": "free", "text": "x"}]}, "hints: hint 'x' needs exactly one of position and tier"),
        ({**ROW, "hints": [{"kind": "free", "text": "x", "position": 1}]}, "but its trace has 0 characters"),
        (
            {
                **ROW,
                "trace": [{"author": "tool", "text": "xy"}],
                "hints": [{"kind": "free", "text": "x", "position": 1}],
            },
            "hints: hint at offset 1 would split a tool result",
        ),
        ("[1]", "expected a JSON object, got [1]"),
        ('{"id": "a"', "no valid JSON: EOF while parsing"),
        ("not json", "no valid JSON: "),
    ],
)
def test_load_samples_names_line_field_and_expectation(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path, {**ROW, "id": "first"}, row)
    with pytest.raises(DataError) as caught:
        load_samples(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_samples_rejects_a_repeated_id(tmp_path: Path) -> None:
    path = write(tmp_path, ROW, {**ROW, "id": "b"}, ROW)
    with pytest.raises(DataError, match=r"data.jsonl:3: id 'a' is already used in line 1"):
        load_samples(path)


def test_load_samples_accepts_tests_in_place_of_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "question": "q", "kind": "code", "tests": ["assert f() == 1"]})
    assert load_samples(path)[0].tests == ("assert f() == 1",)


def test_load_samples_says_what_to_do_about_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.jsonl does not exist; set data.path"):
        load_samples(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="does not exist"):
        load_samples(tmp_path)
    with pytest.raises(DataError, match="holds no samples"):
        load_samples(write(tmp_path, ""))
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"id": "é"}'.encode("latin-1"))
    with pytest.raises(DataError, match=r"byte 8 is no UTF-8; save the file as UTF-8"):
        load_samples(latin)
