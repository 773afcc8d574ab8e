"""The server, the comparison and the engine over it, on tiny models of each family."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoTokenizer

from edge_rl.errors import EngineError, ExportError, MissingExtraError
from edge_rl.rollout.engines.llama_cpp import LlamaCppEngine
from edge_rl.types import GenerationRequest, Segment, generate_all
from edge_rl.weights import llama_cpp, parity
from edge_rl.weights.gguf import write_gguf
from edge_rl.weights.llama_cpp import LlamaServer, serve
from edge_rl.weights.merging import load_merged
from edge_rl.weights.parity import LIMITS, ParityReport, compare, token_corpus
from tests.builders_models import CHAT_TEMPLATE, make_tiny_model, save_tiny_model, tiny_tokenizer

pytestmark = [
    pytest.mark.llama_cpp,
    pytest.mark.skipif(llama_cpp.importlib.util.find_spec("xllamacpp") is None, reason="pip install 'edge_rl[export]'"),
]
PROMPT = (1, 40, 50, 60, 70)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LlamaServer]:
    write_gguf(folder, folder.parent / "m.gguf", "f16", provenance={})
    with serve(folder.parent / "m.gguf", slots=4, context=256, threads=1) as running:
        yield running


def _keep_rows(weight: Any, num_heads: int) -> Any:
    return weight


def _find_nothing(name: str) -> None:
    return None


def _request(**changes: Any) -> GenerationRequest:
    facts: dict[str, Any] = {
        "key": "a", "token_ids": PROMPT, "max_new_tokens": 12, "stop_token_ids": frozenset({2}), "seed": 3,
    }  # fmt: skip
    return GenerationRequest(**(facts | changes))


def _model_logprobs(folder: Path, prompt: tuple[int, ...], segment: Segment) -> torch.Tensor:
    ids = torch.tensor([[*prompt, *segment.token_ids]])
    with torch.no_grad():
        logits = cast(Any, load_merged(folder))(ids).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(segment.token_ids)[:, None])[:, 0]


def test_server_starts_and_ends_with_its_block(folder: Path) -> None:
    write_gguf(folder, folder.parent / "short.gguf", "f16", provenance={})
    with serve(folder.parent / "short.gguf", slots=1, context=64) as running:
        assert running.tokenize("<|im_start|>user")[0] == 1
    with pytest.raises(ExportError, match="stopped answering"):
        running.tokenize("a")


def test_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ExportError, match=r"does not load .*bad\.gguf"), serve(tmp_path / "bad.gguf"):
        pass


def test_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", _find_nothing)
    with pytest.raises(MissingExtraError, match=r"edge_rl\[export\]"), serve(Path("x.gguf")):
        pass


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("format", ["f16", "q8_0"])
def test_file_in_llama_cpp_agrees_with_transformers(tmp_path: Path, family: str, format: Any) -> None:
    folder = save_tiny_model(tmp_path / "model", family, rows=352)
    write_gguf(folder, tmp_path / "m.gguf", format, provenance={})
    tokenizer = cast(Any, AutoTokenizer.from_pretrained(folder))
    with serve(tmp_path / "m.gguf", slots=1, context=512, threads=1) as running:
        report = compare(running, load_merged(folder), tokenizer, [PROMPT, (1, 90, 91, 92)], format=format)
    assert report.num_texts >= 200 and report.num_chats == 5
    assert report.num_positions > 8
    assert report.mean_logprob_gap < (0.01 if format == "f16" else 0.25)


def test_wrong_order_of_rows_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_rl.weights import gguf

    monkeypatch.setattr(gguf, "halves_to_interleaved", _keep_rows)
    folder = save_tiny_model(tmp_path / "model")
    write_gguf(folder, tmp_path / "m.gguf", "f16", provenance={})
    tokenizer = cast(Any, AutoTokenizer.from_pretrained(folder))
    with (
        serve(tmp_path / "m.gguf", slots=1, context=512, threads=1) as running,
        pytest.raises(ExportError, match="gives other answers in llama"),
    ):
        compare(running, load_merged(folder), tokenizer, [PROMPT], format="f16")


def test_other_cuts_of_text_are_caught(server: LlamaServer) -> None:
    with pytest.raises(ExportError, match="into other tokens than the tokenizer"):
        compare(server, make_tiny_model(), tiny_tokenizer("qwen2"), [PROMPT], format="f16")


def test_other_chat_template_is_caught(server: LlamaServer) -> None:
    tokenizer = tiny_tokenizer()
    copy = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    copy.chat_template = CHAT_TEMPLATE.replace("assistant", "model")
    with pytest.raises(ExportError, match="renders the chat template as"):
        parity._compare_chats(server, copy)  # pyright: ignore[reportPrivateUsage]


def test_check_draws_the_line_at_the_limits() -> None:
    limits = LIMITS["f16"]
    facts: dict[str, Any] = {
        "format": "f16", "num_texts": 1, "num_chats": 1, "num_positions": 100, "top1_agreement": limits.top1_agreement,
        "mean_logprob_gap": limits.mean_gap, "max_logprob_gap": limits.max_gap,
    }  # fmt: skip
    check = parity._check  # pyright: ignore[reportPrivateUsage]
    check(ParityReport(**facts), limits)
    changes: list[dict[str, Any]] = [
        {"top1_agreement": 0.969},
        {"mean_logprob_gap": 0.021},
        {"max_logprob_gap": 0.26},
        {"max_logprob_gap": math.nan},
    ]
    for change in changes:
        with pytest.raises(ExportError, match="do not use it"):
            check(ParityReport(**(facts | change)), limits)


def test_token_corpus_is_large_and_holds_specials_and_prompts() -> None:
    corpus = token_corpus(["<|im_end|>"], ["a prompt"])
    assert len(set(corpus)) >= 200
    assert "<|im_end|>user\nHi 12<|im_end|> tail" in corpus and corpus[-1] == "a prompt"


def test_probabilities_are_trusted_up_to_the_first_gap() -> None:
    entries = [{"id": 5}, {"id": 6}, {"id": 9}]
    answer = {"tokens": [5, 6, 7, 8, 9], "completion_probabilities": entries}
    assert llama_cpp.aligned_probabilities(answer) == entries[:2]
    assert llama_cpp.aligned_probabilities({"tokens": [7]}) == []


# The engine


def test_engine_logprobs_are_those_of_the_model(server: LlamaServer, folder: Path) -> None:
    requests = [_request(key=str(seed), seed=seed) for seed in range(6)]
    for segment in generate_all(LlamaCppEngine(server), requests):
        expected = _model_logprobs(folder, PROMPT, segment)
        assert torch.allclose(torch.tensor(segment.behaviour_logprobs), expected, atol=0.05)


def test_engine_samples_the_full_distribution(server: LlamaServer, folder: Path) -> None:
    """200 draws of one token: the mean of their logprobs is minus the entropy, within four standard errors."""
    requests = [_request(key=str(seed), seed=seed, max_new_tokens=1) for seed in range(200)]
    tokens = [segment.token_ids[0] for segment in generate_all(LlamaCppEngine(server), requests)]
    with torch.no_grad():
        logprobs = cast(Any, load_merged(folder))(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    mean = float((logprobs.exp() * logprobs).sum())
    deviation = float((logprobs.exp() * (logprobs - mean) ** 2).sum()) ** 0.5
    assert abs(float(logprobs[tokens].mean()) - mean) < 4 * deviation / 200**0.5


def test_engine_repeats_a_seed_and_differs_between_seeds(server: LlamaServer) -> None:
    engine = LlamaCppEngine(server)
    seeds = (("a", 3), ("b", 3), ("c", 4))
    # short: other neighbours in the batch round otherwise, and in the long run a draw falls on the other side
    first, same, other = generate_all(engine, [_request(key=key, seed=seed, max_new_tokens=5) for key, seed in seeds])
    assert first.token_ids == same.token_ids
    assert first.token_ids != other.token_ids


def test_engine_is_greedy_at_temperature_zero(server: LlamaServer, folder: Path) -> None:
    segment = generate_all(LlamaCppEngine(server), [_request(temperature=0.0, max_new_tokens=4)])[0]
    with torch.no_grad():
        logits = cast(Any, load_merged(folder))(torch.tensor([[*PROMPT, *segment.token_ids]])).logits[0]
    assert logits[len(PROMPT) - 1 : -1].argmax(-1).tolist() == list(segment.token_ids)


def test_engine_stops_after_a_stop_token(server: LlamaServer) -> None:
    free = generate_all(LlamaCppEngine(server), [_request(stop_token_ids=frozenset())])[0].token_ids
    stop = free[5]
    cut = generate_all(LlamaCppEngine(server), [_request(stop_token_ids=frozenset({stop}))])[0].token_ids
    assert cut == free[: free.index(stop) + 1]


def test_engine_asks_stop_when_only_after_watched_tokens(server: LlamaServer) -> None:
    vocabulary = tiny_tokenizer().get_vocab()
    watched = frozenset(index for token, index in vocabulary.items() if "e" in token and len(token) < 3)
    asked: list[tuple[int, ...]] = []

    def stop_when(written: Any) -> bool:
        asked.append(tuple(written))
        return len(asked) == 2

    request = _request(max_new_tokens=100, watch_token_ids=watched, stop_when=stop_when, stop_token_ids=frozenset())
    segment = generate_all(LlamaCppEngine(server), [request])[0]
    assert len(asked) == 2 and asked[1] == segment.token_ids
    assert all(written[-1] in watched for written in asked)
    inside = [place for place, token in enumerate(segment.token_ids) if token in watched]
    assert inside == [len(asked[0]) - 1, len(asked[1]) - 1]
    # no logprob is reported for the text that it stopped at, nor for parts of a character; the others are known
    unknown = {place for place, value in enumerate(segment.behaviour_logprobs) if math.isnan(value)}
    assert set(inside) <= unknown and len(unknown) < len(segment.token_ids) / 4


def test_engine_follows_up_in_order_and_stamps_the_version(server: LlamaServer) -> None:
    engine = LlamaCppEngine(server)
    engine.load_adapter(None, policy_version=4)
    seen: dict[str, list[Segment]] = {}

    def follow_up(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
        seen.setdefault(request.key, []).append(segment)
        if len(seen[request.key]) == 3:
            return None
        return _request(key=request.key, token_ids=(*request.token_ids, *segment.token_ids, 99), max_new_tokens=3)

    engine.generate([_request(key=str(index), max_new_tokens=3) for index in range(9)], follow_up)
    assert {key: len(segments) for key, segments in seen.items()} == {str(index): 3 for index in range(9)}
    assert {segment.policy_version for segments in seen.values() for segment in segments} == {4}


def test_engine_passes_on_what_a_follow_up_raises(server: LlamaServer) -> None:
    def follow_up(request: GenerationRequest, segment: Segment) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        LlamaCppEngine(server).generate([_request(key=str(index)) for index in range(8)], follow_up)


class _GapServer:
    """Answers once, without the probability of the second token, which ends inside a character."""

    slots = 1

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        entries = [{"id": 40, "logprob": -0.5}, {"id": 42, "logprob": -0.7}]
        return {"tokens": [40, 41, 42], "completion_probabilities": entries}


def test_engine_gives_nan_from_the_first_unreported_token_on() -> None:
    segment = generate_all(LlamaCppEngine(_GapServer()), [_request(max_new_tokens=3)])[0]
    assert segment.token_ids == (40, 41, 42)
    assert segment.behaviour_logprobs[0] == -0.5
    assert all(math.isnan(value) for value in segment.behaviour_logprobs[1:])


def test_engine_without_logprobs_gives_nan_and_the_same_tokens(server: LlamaServer) -> None:
    exact = generate_all(LlamaCppEngine(server), [_request()])[0]
    quick = generate_all(LlamaCppEngine(server, logprobs=False), [_request()])[0]
    assert quick.token_ids == exact.token_ids
    assert all(math.isnan(value) for value in quick.behaviour_logprobs)


def test_engine_refuses_an_adapter(server: LlamaServer) -> None:
    with pytest.raises(EngineError, match="has its adapter merged"):
        LlamaCppEngine(server).load_adapter(Path("adapter"), policy_version=1)


def test_engine_fills_a_slot_to_its_last_token(server: LlamaServer) -> None:
    request = _request(max_new_tokens=256 - len(PROMPT), stop_token_ids=frozenset())
    assert len(generate_all(LlamaCppEngine(server), [request])[0].token_ids) == 256 - len(PROMPT)


def test_engine_says_that_a_prompt_is_too_long(server: LlamaServer) -> None:
    with pytest.raises(ExportError, match=r"llama\.cpp refused /completion"):
        generate_all(LlamaCppEngine(server), [_request(token_ids=(40,) * 2000)])
