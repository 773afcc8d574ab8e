import re

from edge_rl.weights.modelfile import model_card, modelfile
from tests.builders_models import tiny_tokenizer


def _render(template: str, messages: list[dict[str, str]]) -> str:
    """The part of Go's templates that our Modelfile uses: one range over the messages."""
    match = re.fullmatch(r"\{\{- range \.Messages \}\}(.*)\{\{ end \}\}(.*)", template, re.DOTALL)
    assert match is not None
    body, tail = match.groups()
    parts = [body.replace("{{ .Role }}", m["role"]).replace("{{ .Content }}", m["content"]) for m in messages]
    return "".join(parts) + tail


def test_modelfile_template_renders_like_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    text = modelfile("model-q8_0.gguf", vocabulary=list(tokenizer.get_vocab()), system="Be brief.", context=2048)
    template = text.split('TEMPLATE """', 1)[1].split('"""', 1)[0]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 7 * 8?"}]
    expected = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert _render(template, chat) == expected


def test_modelfile_has_a_quoted_relative_source_and_values_for_all() -> None:
    text = modelfile("m.gguf", vocabulary=["<|im_start|>", "<|im_end|>"], system="", context=512)
    assert text.startswith('FROM "./m.gguf"\n')
    assert 'PARAMETER stop "<|im_end|>"' in text and "SYSTEM" not in text
    assert all(len(line.split(maxsplit=2)) == 3 for line in text.splitlines() if line.startswith("PARAMETER"))


def test_modelfile_of_llama_stops_at_its_own_marker() -> None:
    vocabulary = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    text = modelfile("m.gguf", vocabulary=vocabulary, system='say """hi"""', context=512)
    assert 'PARAMETER stop "<|eot_id|>"' in text and "<|im_end|>" not in text
    assert text.count('"""') == 4  # template and system, each opened and closed once


def test_modelfile_of_an_unknown_family_leaves_the_template_to_the_gguf() -> None:
    assert "TEMPLATE" not in modelfile("m.gguf", vocabulary=["a"], system="", context=512)


def test_model_card_names_base_and_licence() -> None:
    card = model_card({"base": "owner/tiny", "licence": "MIT"}, {"steps": 3})
    assert card.startswith("# owner/tiny, tuned")
    assert "| licence | MIT |" in card and "| steps | 3 |" in card
