"""From a run folder to checked files, through the door."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_rl.config import Config, build, to_toml
from edge_rl.data.seeds import save_samples
from edge_rl.errors import ExportError
from edge_rl.export import export, main
from edge_rl.pipeline import exporting
from edge_rl.types import Sample, Split
from edge_rl.weights import llama_cpp
from edge_rl.weights.adapters import attach_adapter, save_adapter
from edge_rl.weights.loading import load_base
from tests.builders_models import randomise_adapter, save_tiny_model, tiny_config

pytestmark = pytest.mark.skipif(
    llama_cpp.importlib.util.find_spec("xllamacpp") is None, reason="pip install 'edge_rl[export]'"
)


def _make_run(tmp_path: Path, **changes: Any) -> tuple[Path, Config]:
    """A run folder as training leaves it, with spaces and brackets in its name."""
    base = tiny_config(save_tiny_model(tmp_path / "tiny base"))
    data = tmp_path / "data.jsonl"
    splits = [Split.TRAIN, *[Split.VALIDATION] * 3, Split.TEST]
    samples = [
        Sample(id=f"s{index}", question=f"What is {index} + 7?", answer=str(index + 7), split=split)
        for index, split in enumerate(splits)
    ]
    save_samples(samples, data)
    settings = {
        "model": base.model_dump(),
        "data": {"path": str(data)},
        "run": {"folder": str(tmp_path / "My Runs"), "name": "run 1 (best)"},
    }
    config = build(settings | changes)
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.toml").write_text(to_toml(config))
    tuned = attach_adapter(load_base(base, "cpu")[0], base, 0)
    randomise_adapter(tuned)
    save_adapter(tuned, config.run_dir / "best" / "adapter")
    return config.run_dir, config


@pytest.mark.slow
def test_export_door_writes_checked_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, _ = _make_run(tmp_path)
    assert main([str(run_dir), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    folder = run_dir / "export"
    assert printed == json.loads((folder / "export.json").read_text())
    assert {path.name for path in folder.iterdir()} == {
        "merged", "model-f16.gguf", "model-q8_0.gguf", "export.json", "Modelfile", "README.md",
    }  # fmt: skip
    assert printed["merge"]["num_changed"] == 14
    assert printed["parity"]["f16"]["top1_agreement"] >= 0.97
    assert printed["gguf"]["q8_0"]["bytes"] == (folder / "model-q8_0.gguf").stat().st_size
    # nothing that is shared names this machine or a question
    for path in (folder / "README.md", folder / "Modelfile", folder / "export.json"):
        assert str(tmp_path) not in path.read_text() and "+ 7" not in path.read_text(), path
    assert str(tmp_path).encode() not in (folder / "model-f16.gguf").read_bytes()[:100_000]
    assert str(tmp_path) not in (folder / "merged" / "config.json").read_text()


@pytest.mark.slow
def test_second_export_leaves_no_file_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, _ = _make_run(tmp_path)
    (run_dir / "export").mkdir()
    for name in ("model-q8_0.gguf", "model-f16.failed", "Modelfile"):
        (run_dir / "export" / name).write_text("old")
    assert main([str(run_dir), "--merge-only"]) == 0
    assert {path.name for path in (run_dir / "export").iterdir()} == {"merged", "export.json", "README.md"}
    assert "14 of 14 matrices changed" in capsys.readouterr().out


def _keep_rows(weight: Any, num_heads: int) -> Any:
    return weight


@pytest.mark.slow
def test_file_that_fails_its_check_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_rl.weights import gguf

    monkeypatch.setattr(gguf, "halves_to_interleaved", _keep_rows)
    run_dir, _ = _make_run(tmp_path)
    with pytest.raises(ExportError, match="do not use it"):
        export(run_dir, formats=("f16",))
    names = {path.name for path in (run_dir / "export").iterdir()}
    assert "model-f16.failed" in names and "model-f16.gguf" not in names and "export.json" not in names
    assert (run_dir / "best" / "adapter" / "adapter_model.safetensors").is_file()


def _failure(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and "Traceback" not in error
    return error


def test_folder_that_is_no_run_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no run folder" in _failure([str(tmp_path)], capsys)


def test_run_without_an_adapter_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, _ = _make_run(tmp_path)
    (run_dir / "best" / "adapter" / "adapter_model.safetensors").unlink()
    assert "train first" in _failure([str(run_dir)], capsys)


def _almost_full(path: Path) -> SimpleNamespace:
    return SimpleNamespace(free=1000)


def test_full_disk_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, config = _make_run(tmp_path)
    monkeypatch.setattr(exporting.shutil, "disk_usage", _almost_full)
    assert "the adapter is kept" in _failure([str(run_dir)], capsys)
    assert not (run_dir / "export" / "merged").exists()
    with pytest.raises(ExportError, match=r"GB are free"):
        exporting.check_toolchain(config)


def test_toolchain_check_names_a_family_without_a_converter(tmp_path: Path) -> None:
    config = build({"model": {"name": "gemma3-270m"}, "run": {"folder": str(tmp_path)}})
    with pytest.raises(ExportError, match=r"gemma3_text.*export\.formats=\[\]"):
        exporting.check_toolchain(config)
    exporting.check_toolchain(build({"model": {"name": "gemma3-270m"}, "export": {"formats": []}}))
    exporting.check_toolchain(build({"run": {"folder": str(tmp_path)}}))
