import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import torch as safetensors_torch

from edge_rl.config import ModelConfig
from edge_rl.errors import CheckpointError, ExportError
from edge_rl.weights import merging
from edge_rl.weights.adapters import attach_adapter, save_adapter
from edge_rl.weights.loading import load_base, load_tokenizer
from edge_rl.weights.merging import MergeReport, adapter_facts, check_folder, check_vocabulary, merge
from tests.builders_models import make_tiny_model, randomise_adapter, save_tiny_model, tiny_config, tiny_tokenizer

PROMPTS = ([1, 40, 50, 60], [1, 77, 78, 79, 80, 2])


def _adapter(tmp_path: Path, *, std: float = 0.05, family: str = "llama", **model: Any) -> tuple[ModelConfig, Path]:
    config = tiny_config(save_tiny_model(tmp_path / "base", family, **model))
    tuned = attach_adapter(load_base(config, "cpu")[0], config, 0)
    if std:
        randomise_adapter(tuned, std=std)
    save_adapter(tuned, tmp_path / "adapter")
    return config, tmp_path / "adapter"


def test_merge_proves_what_it_changed(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    report = merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    assert report.dtype == "float16"
    assert report.num_adapted == report.num_changed == 14
    assert report.max_delta > 0.01 and report.max_delta_error <= 0.5
    assert 0 < report.max_logprob_gap < 0.05
    assert report.num_positions == 10 and report.warnings == ()


def test_merged_folder_is_whole_and_needs_no_adapter_library(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    folder = tmp_path / "My Models" / "run 1 (best)"
    merge(config, adapter, folder, prompts=PROMPTS)
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
    assert "lora" not in " ".join(safetensors_torch.load_file(folder / "model.safetensors"))
    code = (
        "import sys; sys.modules['peft'] = None\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})\n"
        f"print(model.dtype, AutoTokenizer.from_pretrained({str(folder)!r}).chat_template is not None)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "torch.float16 True"


def test_tied_embedding_is_stored_once_and_stays_tied(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    assert "lm_head.weight" not in safetensors_torch.load_file(tmp_path / "merged" / "model.safetensors")
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is True


def test_untied_head_is_kept(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path, tied=False)
    merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    assert "lm_head.weight" in safetensors_torch.load_file(tmp_path / "merged" / "model.safetensors")


def test_every_turn_end_is_an_end_token_of_the_merged_model(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    path = tmp_path / "base" / "generation_config.json"
    settings: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(settings | {"eos_token_id": 0}))
    merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    assert json.loads((tmp_path / "merged" / "generation_config.json").read_text())["eos_token_id"] == [0, 2]


def test_adapter_that_changes_nothing_is_a_warning(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path, std=0.0)
    report = merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    assert report.num_changed == 0
    assert "the adapter changes nothing" in report.warnings[0]


def test_merge_that_changes_nothing_though_the_adapter_does_is_refused(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path, std=1e-12)
    with pytest.raises(ExportError, match="changed none of 14 matrices"):
        merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    assert not (tmp_path / "merged").exists()


def test_merge_refuses_values_that_are_not_finite(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    path = adapter / "adapter_model.safetensors"
    state = safetensors_torch.load_file(path)
    next(iter(state.values()))[0, 0] = float("nan")
    safetensors_torch.save_file(state, path)
    with pytest.raises(ExportError, match="not finite"):
        merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)


@pytest.mark.parametrize(("dtype", "stored"), [("auto", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32")])
def test_merge_keeps_large_weights_out_of_float16(tmp_path: Path, dtype: str, stored: str) -> None:
    config, adapter = _adapter(tmp_path)
    path = tmp_path / "base" / "model.safetensors"
    state = safetensors_torch.load_file(path)
    # a row of the embedding that no prompt uses, so that the logits stay small elsewhere
    state["model.layers.0.self_attn.v_proj.weight"][0, 0] = 7.0e4
    state["model.layers.0.self_attn.o_proj.weight"][:, [0, 16]] = 0.0
    safetensors_torch.save_file(state, path, metadata={"format": "pt"})
    (adapter / "base.json").unlink()
    randomless = safetensors_torch.load_file(adapter / "adapter_model.safetensors")
    safetensors_torch.save_file(
        {name: tensor * ("lora_A" in name) for name, tensor in randomless.items()},
        adapter / "adapter_model.safetensors",
    )
    assert merge(config, adapter, tmp_path / "merged", prompts=PROMPTS, dtype=dtype).dtype == stored


def test_merge_refuses_float16_for_large_weights(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    path = tmp_path / "base" / "model.safetensors"
    state = safetensors_torch.load_file(path)
    state["model.layers.0.self_attn.v_proj.weight"][0, 0] = 7.0e4
    safetensors_torch.save_file(state, path, metadata={"format": "pt"})
    (adapter / "base.json").unlink()
    with pytest.raises(ExportError, match=r"7e\+04 is beyond float16"):
        merge(config, adapter, tmp_path / "merged", prompts=PROMPTS, dtype="float16")
    with pytest.raises(ExportError, match="choose auto, float16"):
        merge(config, adapter, tmp_path / "merged", prompts=PROMPTS, dtype="int8")


def test_merge_of_a_4_bit_run_loads_a_full_copy(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    four_bit = config.model_copy(update={"quantisation": "nf4"})
    assert merge(four_bit, adapter, tmp_path / "merged", prompts=PROMPTS).num_changed == 14


def test_second_merge_replaces_the_folder(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "model-00002-of-00002.safetensors").touch()
    merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    assert [path.name for path in (tmp_path / "merged").glob("*.safetensors*")] == ["model.safetensors"]


def test_merge_refuses_an_adapter_of_another_base(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    save_tiny_model(tmp_path / "base", seed=5)
    with pytest.raises(CheckpointError, match="load the base it was trained on"):
        merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)


def test_merge_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="the adapter is untouched"):
        merge(config, adapter, tmp_path / "file" / "merged", prompts=PROMPTS)


def test_base_without_a_chat_template_exports_the_kits_prompt(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    (tmp_path / "base" / "chat_template.jinja").unlink()
    merge(config, adapter, tmp_path / "merged", prompts=PROMPTS)
    from edge_rl.data.prompts import build_prompt
    from edge_rl.types import Sample

    plain, exported = (load_tokenizer(tiny_config(tmp_path / name)) for name in ("base", "merged"))
    sample = Sample(id="a", question="What is 6 * 7?", answer="42")
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": sample.question}]
    ids = cast(list[int], exported.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    assert tuple(ids) == build_prompt(sample, cast(Any, plain), system="Be brief.").token_ids


def test_check_vocabulary_names_a_token_without_a_row() -> None:
    tokenizer = tiny_tokenizer()
    check_vocabulary(make_tiny_model(rows=384), tokenizer)  # more rows than tokens: fine
    with pytest.raises(ExportError, match=r"has id 300, but the embedding has 300 rows \(320 tokens"):
        check_vocabulary(make_tiny_model(rows=300), tokenizer)


def _folder(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_check_folder_refuses_an_adapter_in_place_of_weights(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                     "adapter_model.safetensors")  # fmt: skip
    with pytest.raises(ExportError, match=r"lacks model\.safetensors and has stray adapter_model\.safetensors"):
        check_folder(folder)


def test_check_folder_reads_the_index(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path, "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "a.safetensors"
    )
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ExportError, match=r"lacks b\.safetensors"):
        check_folder(folder)
    (folder / "b.safetensors").touch()
    check_folder(folder)


def test_check_folder_wants_a_chat_template(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    with pytest.raises(ExportError, match=r"lacks chat_template\.jinja"):
        check_folder(folder)


def _report(**changes: Any) -> MergeReport:
    facts: dict[str, Any] = {
        "folder": "f", "dtype": "float16", "num_adapted": 1, "num_changed": 1, "max_delta": 1.0, "max_delta_error": 0.5,
        "max_logprob_gap": 0.05, "top1_agreement": 1.0, "num_positions": 1,
    }  # fmt: skip
    return MergeReport(**(facts | changes))


def test_check_draws_the_line_at_rounding() -> None:
    merging._check(_report())  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ExportError, match="rounding steps off"):
        merging._check(_report(max_delta_error=1.01))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ExportError, match="differs from base"):
        merging._check(_report(max_logprob_gap=0.051))  # pyright: ignore[reportPrivateUsage]
    merging._check(_report(max_logprob_gap=0.051, dtype="bfloat16"))  # pyright: ignore[reportPrivateUsage]


def test_merged_logprobs_are_those_of_the_adapter(tmp_path: Path) -> None:
    config, adapter = _adapter(tmp_path)
    report = merge(config, adapter, tmp_path / "merged", prompts=PROMPTS, dtype="float32")
    assert report.max_logprob_gap < 1e-4
    base = merging.load_merged(tmp_path / "base")
    merged = merging.load_merged(tmp_path / "merged")
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        assert not torch.allclose(cast(Any, base)(ids).logits, cast(Any, merged)(ids).logits, atol=1e-2)


def test_adapter_facts_hash_the_weights(tmp_path: Path) -> None:
    _, adapter = _adapter(tmp_path)
    facts = adapter_facts(adapter)
    assert len(facts["sha256"]) == 64 and facts["vocab"] == 320
    with pytest.raises(CheckpointError, match=r"holds no adapter_model\.safetensors"):
        adapter_facts(tmp_path)
