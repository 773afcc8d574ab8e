"""The settings of a run: one tree of frozen, validated sections. The only place with defaults.

Precedence: class default < recipe TOML < flags and `--set section.key=value`. The resolved tree is written into the run
folder. An unknown key is an error that names the nearest known one. Knows no stage.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, cast

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edge_rl.errors import ConfigError


class Section(BaseModel):
    """Base of every config section; the string after a field is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelConfig(Section):
    """Which weights are trained, and how the adapter looks."""

    name: str = "smollm2-135m"
    """Alias of the catalog, hub id, or local folder."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """auto: bfloat16 where the hardware computes in it, else float16 on a GPU and float32 on a CPU."""
    quantisation: Literal["none", "nf4"] = "none"
    """nf4 = QLoRA (needs a GPU and bitsandbytes)."""
    rank: int = Field(default=16, ge=1)
    """Rank of the LoRA matrices."""
    alpha: float = Field(default=32.0, gt=0)
    """LoRA scale is alpha / rank."""
    allow_large: bool = False
    """Accept a model of more than 3B parameters."""


class DataConfig(Section):
    """Which samples, and how they are asked."""

    path: str = "data_seeds/tool_math.jsonl"
    """JSONL of samples, all splits in one file."""
    system: str = "Run ```python code, read its ```output, answer as \\boxed{number}."
    """System message of every prompt: in training, evaluation and export alike."""
    think: Literal["off", "on"] = "off"
    """Thinking mode of the chat template, in training, evaluation and export alike; on needs a model that has one."""
    shots: tuple[int, ...] = (0,)
    """Worked examples in the training prompts, stage by stage, the last 0; taken from samples that carry a trace."""
    shots_success: float = Field(default=0.5, gt=0, le=1)
    """Solve rate over three steps at which the next stage begins, if not its share of the steps is over before."""


SampleOrder = Literal["shuffled", "easy_first", "mixed"]


class RolloutConfig(Section):
    """How completions are collected."""

    group_size: int = Field(default=8, ge=2)
    """K: rollouts per prompt; advantages are relative inside this group."""
    prompts_per_step: int = Field(default=6, ge=1)
    """Groups that one optimizer step trains on."""
    order: SampleOrder = "shuffled"
    """Order of the samples inside an epoch: shuffled, from easy to hard, or mixed (neighbours of unlike difficulty), by
    their running success rate."""
    max_tokens: int = Field(default=128, ge=1)
    """Longest completion in tokens, tool results included."""
    chunk_tokens: int = Field(default=128, ge=1)
    """New tokens that one rollout may gain in one step; equal to max_tokens = plain GRPO."""
    max_group_age: int = Field(default=4, ge=1)
    """Steps after which a carried group is finished without a chunk limit."""
    think_tokens: int = Field(default=0, ge=0)
    """Policy tokens after which an open think block is closed for the policy, outside the loss; 0 = no such budget."""
    max_queue_age: int = Field(default=4, ge=0)
    """Optimizer steps after which a group from the disk queue (`--rollouts-from`) is left out."""
    max_tool_calls: int = Field(default=4, ge=0)
    """Tool calls that are run per rollout."""
    tool_timeout_s: float = Field(default=5.0, gt=0)
    """Wall-clock limit of one tool call."""
    tool_output_chars: int = Field(default=800, ge=16)
    """A longer result keeps its head and tail."""
    temperature: float = Field(default=1.0, gt=0)
    """Divisor of the logits while sampling; the trainer divides by it too."""
    max_resample_rounds: int = Field(default=1, ge=1, le=8)
    """Dynamic sampling: rounds of fresh prompts to replace groups without a signal; 1 = off."""
    garble_filter: bool = True
    """Rollouts that loop, hold broken characters or noise get reward 0 and stay out of the loss; never in evaluation."""
    slots: int = Field(default=96, ge=1)
    """Sequences decoded at once."""

    @model_validator(mode="after")
    def _chunk_fits(self) -> Self:
        if self.chunk_tokens > self.max_tokens:
            raise ValueError(
                f"chunk_tokens ({self.chunk_tokens}) exceeds max_tokens ({self.max_tokens}); "
                "set chunk_tokens = max_tokens to turn chunking off"
            )
        return self


class ScoringConfig(Section):
    """How rollouts become rewards."""

    reward: str = "code_penalty"
    """Name of the reward function."""
    control: Literal["none", "random", "format"] = "none"
    """A control experiment: training verdicts are coin flips, or say only whether there is one marked answer. What such a
    run gains does not come from being right. Measurements stay true."""
    truncated: Literal["wrong", "left_out"] = "wrong"
    """A training rollout cut at max_tokens: wrong (reward 0, in the loss), or left out of mean and loss; never both."""
    code_penalty: float = Field(default=0.1, ge=0, le=0.2)
    """Taken from a rollout that ran code and whose every block failed (CoRT, arXiv:2506.09820); no code = no penalty."""
    weights: dict[str, float] = Field(default_factory=dict[str, float])
    """Parts of the reward `weighted`: name of a reward -> weight."""
    format_weight: float = Field(default=0.1, ge=0, le=0.2)
    """Added by the reward `format` for exactly one marked answer."""
    progress_weight: float = Field(default=0.5, ge=0, lt=1)
    """Most that a wrong completion can get from the reward `progress`."""
    length_low: int = Field(default=0, ge=0)
    """Policy tokens below which `length_tanh` takes something off."""
    length_high: int = Field(default=128, ge=1)
    """Policy tokens that the length rewards aim at: the limit of soft_overlong, cosine and dler_truncation."""
    length_scale: float = Field(default=64.0, gt=0)
    """Tokens over which `length_tanh` grows to three quarters."""
    length_weight: float = Field(default=0.05, ge=0, le=0.2)
    """Most that `length_tanh` takes off."""
    length_easy: int = Field(default=64, ge=1)
    """What `dler_difficulty` aims at instead where at least half of the group is right."""
    similarity_weight: float = Field(default=0.5, ge=0, lt=1)
    """Most that a wrong completion can get from the reward `code_similarity`."""
    overlong_buffer: int = Field(default=32, ge=1)
    """Tokens before length_high over which `soft_overlong` grows to its full size."""
    reward_model: str = ""
    """Hub id or folder of a sequence-classification model, for the reward `reward_model`."""
    judge_model: str = ""
    """Alias, hub id or folder of a chat model, for the reward `judge`; of another family than the policy."""
    audit_model: str = ""
    """A second judge that never enters the reward; the gap between the two is logged. Empty = none."""
    rubric: str = "Is the answer right, complete and to the point?"
    """What the judge is told to look at."""


class LearningConfig(Section):
    """How rewards become a step on the adapter."""

    num_steps: int = Field(default=20, ge=0)
    """Optimizer steps of the reinforcement stage."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Wall-clock limit of the reinforcement stage, its validations included; the step under way is finished."""
    advantage: str = "centred"
    """Name of the advantage estimator."""
    credit: str = "rollout"
    """rollout: every token of a rollout gets its advantage; turn: the tokens of each turn get their own (GTPO); gae: each
    token gets its own from a critic (PPO)."""
    gae_discount: float = Field(default=1.0, gt=0, le=1)
    """With credit = gae: what a reward is worth one token earlier."""
    gae_trace: float = Field(default=0.95, ge=0, le=1)
    """With credit = gae: lambda, how far an error of the critic reaches back."""
    value_weight: float = Field(default=0.5, ge=0)
    """With credit = gae: weight of the critic's loss."""
    critic_rate_factor: float = Field(default=10.0, gt=0)
    """With credit = gae: learning rate of the value head over that of the adapter."""
    turn_discount: float = Field(default=0.9, ge=0, le=1)
    """With credit = turn: what a reward is worth one turn earlier."""
    turn_fine: float = Field(default=0.1, ge=0, le=0.5)
    """With credit = turn: what a turn costs whose code does not parse."""
    loss: str = "dapo"
    """Name of the policy loss; dapo = clipped surrogate, mean over all tokens of the step."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate of the adapter (about ten times that of full fine-tuning)."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps of linear warm-up; constant afterwards."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(default=0.28, ge=0)
    """Ratios above 1 + clip_high are clipped (clip-higher, DAPO)."""
    dual_clip: float = Field(default=10.0, gt=1)
    """Bound on the loss of a token with a negative advantage, in units of that advantage."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the k3 estimate of KL(policy || reference); the reference is the base with the adapter off."""
    epochs: int = Field(default=1, ge=1)
    """Optimizer steps on the same rollouts."""
    mixed_groups_only: bool = False
    """Leave out groups that are all right or all wrong even where their rewards differ in another part, such as a penalty:
    the filter of DAPO's dynamic sampling. It saves their share of the update."""
    microbatch_tokens: int = Field(default=1024, ge=16)
    """Prompt and completion tokens, padding included, in one forward pass."""
    max_tokens_normaliser: int = Field(default=128, ge=1)
    """L_max of the dr_grpo loss."""
    sapo_temperature_positive: float = Field(default=1.0, gt=0)
    """Temperature of the sapo loss where the advantage is positive."""
    sapo_temperature_negative: float = Field(default=1.05, gt=0)
    """The same where it is negative; higher = narrower."""
    old_logprobs: Literal["trainer", "engine"] = "trainer"
    """What a ratio divides by. trainer: the policy that sampled, computed by the trainer (rollouts that are carried to a
    later step cost one more forward pass); engine: what the engine reported, so the clip absorbs its rounding too."""
    engine_correction: bool = True
    """With old_logprobs = trainer: weigh each token for the gap between engine and trainer."""
    correction_cap: float = Field(default=2.0, ge=1)
    """Largest such weight."""
    sequence_drift_limit: float = Field(default=3.0, gt=1)
    """A rollout whose product of weights lies above this or below its inverse is left out."""


class SupervisedConfig(Section):
    """What every supervised stage has."""

    epochs: int = Field(default=4, ge=1)
    """Passes over the examples."""
    batch_size: int = Field(default=6, ge=1)
    """Examples per optimizer step."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """Peak learning rate."""


class WarmStartConfig(SupervisedConfig):
    """Supervised fine-tuning on the hinted traces before the reinforcement stage."""

    kind: Literal["sft", "none"] = "sft"
    """sft: the samples that carry a trace, through TRL's SFTTrainer."""


class RejectionConfig(SupervisedConfig):
    """Rejection sampling after the warm start: a fresh adapter imitates the model's own right answers, and the traces."""

    kind: Literal["rft", "none"] = "none"
    """rft: sample, keep what is right and well-behaved, fine-tune a fresh adapter on it."""
    samples_per_question: int = Field(default=8, ge=1)
    """Completions that are sampled of every training question."""
    keep_per_question: int = Field(default=4, ge=1)
    """Most that are kept of one question, the shortest first."""


class PreferenceConfig(SupervisedConfig):
    """Rounds of DPO on pairs that the verifier makes of the model's own completions."""

    kind: Literal["verifier", "none"] = "none"
    """verifier: sample, pair right with wrong, optimise against the adapter as it was; then the next round."""
    rounds: int = Field(default=4, ge=1)
    """How often it samples anew; each round begins with a fresh reference and a fresh optimizer."""
    prompts_per_round: int = Field(default=32, ge=1)
    """Questions that a round samples, in the sampler's order."""
    samples_per_question: int = Field(default=8, ge=2)
    """Completions of each."""
    pairs_per_question: int = Field(default=2, ge=1)
    """Most pairs of one question."""
    max_length_ratio: float = Field(default=2.0, ge=1)
    """Longest over shortest completion of a pair; beyond it, length would tell right from wrong."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the reference."""
    nll_weight: float = Field(default=1.0, ge=0)
    """Weight of the log-likelihood of the right one; without it the likelihood of both may fall."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the pairs of a round."""


class EvaluationConfig(Section):
    """How a checkpoint is measured: held out and without hints."""

    samples_per_question: int = Field(default=8, ge=1)
    """Completions per test question."""
    questions_at_8: int = Field(default=0, ge=0)
    """So many of the test questions, evenly spread, get 8 completions where samples_per_question is less: for pass@8."""
    max_questions: int | None = Field(default=None, ge=1)
    """Use only the first so many test questions."""
    every_steps: int = Field(default=10, ge=1)
    """Steps between two validations; the best adapter by validation is kept."""
    baseline_every_steps: int = Field(default=100, ge=1)
    """Steps between two measurements of the base beside the tuned model, on the validation questions."""
    validation_samples: int = Field(default=2, ge=1)
    """Completions per validation question."""
    bootstrap: int = Field(default=10_000, ge=100)
    """Resamples of the 95 % interval."""


class ExportConfig(Section):
    """What is made of the tuned model."""

    formats: tuple[Literal["f16", "q8_0"], ...] = ("f16", "q8_0")
    """GGUF files to write; empty = no export."""
    check_questions: int = Field(default=200, ge=1)
    """Test questions that the GGUF answers in llama.cpp."""
    check_samples: int = Field(default=1, ge=1)
    """Completions per question there."""
    check_format: Literal["f16", "q8_0"] = "q8_0"
    """Which file is scored."""


GuardAction = Literal["off", "warn", "lower_lr", "roll_back", "stop"]


class GuardsConfig(Section):
    """What is watched while a run trains. Each guard has an action of its own; `actions` changes it."""

    actions: dict[str, GuardAction] = Field(default_factory=dict[str, GuardAction])
    """Guard -> off, warn, lower_lr (by lr_factor), roll_back (to the best adapter, with lower_lr) or stop (end the
    reinforcement stage; the best adapter is measured)."""
    check_every_steps: int = Field(default=50, ge=1)
    """Steps after which engine and trainer are compared again and the base's checksum is taken again; the first step of
    every process does both."""
    quiet_steps: int = Field(default=10, ge=1)
    """Steps for which a guard that spoke says nothing more."""
    lr_factor: float = Field(default=0.5, gt=0, lt=1)
    """What lower_lr multiplies the learning rate with."""
    min_entropy: float = Field(default=0.02, ge=0)
    """Nats per policy token; the entropy guard speaks below it, and where entropy halves within ten steps."""
    max_pass_at_k_fall: float = Field(default=0.05, ge=0)
    """Fall of validation pass@k at which the guard against narrowing speaks."""
    min_reward_rise: float = Field(default=0.1, ge=0)
    """Rise of the mean reward that a validation should share."""
    max_length_growth: float = Field(default=2.0, gt=1)
    """Growth of the completions without gain."""
    max_dead_share: float = Field(default=0.7, gt=0, le=1)
    """Share of groups without a signal, ..."""
    dead_steps: int = Field(default=5, ge=1)
    """... for so many steps."""
    max_truncated: float = Field(default=0.5, gt=0, le=1)
    """Share of completions cut at max_tokens, ..."""
    truncated_steps: int = Field(default=3, ge=1)
    """... for so many steps."""
    max_kl: float = Field(default=1.0, gt=0)
    """Nats per token to the reference."""
    max_unjudged: float = Field(default=0.2, ge=0, le=1)
    """Share of completions that could not be judged."""
    max_drift: float = Field(default=0.05, gt=0)
    """Mean gap between engine and trainer in nats per token."""


class RunConfig(Section):
    """Where a run lies and how it is repeated."""

    name: str = ""
    """Folder under runs/; empty = <recipe>-<model>-seed<seed>."""
    folder: str = "runs"
    """Folder of all runs."""
    seed: int = Field(default=0, ge=0)
    """Every random choice derives from it."""
    checkpoint_every_steps: int = Field(default=5, ge=1)
    """Steps between two checkpoints."""
    checkpoint_every_minutes: float = Field(default=5.0, gt=0)
    """Longest time without a checkpoint."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints to keep; the best by validation is kept besides."""
    keep_adapter_every_steps: int = Field(default=50, ge=1)
    """Steps after which the adapter of a checkpoint is kept for good, in adapters/step-N."""


class Config(Section):
    """The whole tree."""

    recipe: str = "default"
    """Which recipe it was read from; for people."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    scoring: ScoringConfig = ScoringConfig()
    learning: LearningConfig = LearningConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    rejection: RejectionConfig = RejectionConfig()
    preference: PreferenceConfig = PreferenceConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    export: ExportConfig = ExportConfig()
    guards: GuardsConfig = GuardsConfig()
    run: RunConfig = RunConfig()

    @property
    def run_dir(self) -> Path:
        """Folder of this run."""
        model = self.model.name.rstrip("/").split("/")[-1]
        return Path(self.run.folder) / (self.run.name or f"{self.recipe}-{model}-seed{self.run.seed}")


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package."""
    folder = resources.files("edge_rl") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


class About(Section):
    """What a recipe is for; the table [about] of its TOML, shown by `edge-rl train --list-recipes`."""

    purpose: str
    """When to take it, in one line."""
    source: str
    """Paper or code that it follows."""
    deviation: str = ""
    """Where it does otherwise."""


def load_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a recipe, those of its `base` underneath: a name of the package or a path to a TOML file.

    Raises: ConfigError if it does not exist, is no TOML, or its bases lead back to it.
    """
    settings = _read_recipe(name, ())
    del settings["about"]
    return settings


def about_recipe(name: str) -> About | None:
    """Return what a recipe says about itself; None for a file of a user's own that says nothing.

    Raises: ConfigError as `load_recipe` does, and for an [about] that lacks a line or has one too many.
    """
    about = _read_recipe(name, ())["about"]
    if about is None:
        return None
    try:
        return About.model_validate(about)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg'].lower()}" for detail in error.errors()
        )
        raise ConfigError(
            f"recipe {name}: [about] needs purpose and source, and may have deviation: {problems}"
        ) from None


def _read_recipe(name: str, above: tuple[str, ...]) -> dict[str, Any]:
    """Return settings with the recipe's own [about] (or None); `above` are the recipes that are based on it."""
    if name in above:
        raise ConfigError(f"recipe {name}: its base leads back to it: {' -> '.join((*above, name))}")
    text, where = _recipe_text(name)
    try:
        own = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: no valid TOML: {error}") from None
    own.setdefault("recipe", Path(name).stem)
    base = own.pop("base", None)
    if not isinstance(base, str | None):
        raise ConfigError(f"{where}: base = {base!r}, but it names another recipe")
    below = {} if base is None else _read_recipe(base, (*above, name))
    return _overlay(below, own) | {"about": own.get("about")}


def _recipe_text(name: str) -> tuple[str, str]:
    """Return (the TOML, what to call it in a message)."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"recipe file {name} does not exist; known recipes: {', '.join(recipe_names())}")
        return path.read_text(encoding="utf-8"), name
    if name not in recipe_names():
        raise ConfigError(f"recipe {name!r} does not exist; {suggest(name, recipe_names())}")
    text = (resources.files("edge_rl") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    return text, f"recipe {name}"


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees in one; where both have a key that is no section, the upper one wins."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(value, dict) and isinstance(under, dict)
        merged[key] = _overlay(cast(dict[str, Any], under), cast(dict[str, Any], value)) if both else value
    return merged


def resolve(recipe: str, overrides: Mapping[str, Any], assignments: Sequence[str] = ()) -> Config:
    """Return the tree of a recipe with `overrides` ("section.key" -> value) and "section.key=value" strings applied last.

    Raises: ConfigError for an unknown key, a value that does not fit, or an impossible combination.
    """
    settings = load_recipe(recipe)
    for key, value in overrides.items():
        _assign(settings, key, value)
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--set {assignment!r}: expected section.key=value")
        _assign(settings, key.strip(), _parse_value(text.strip()))
    return build(settings)


def build(settings: Mapping[str, Any]) -> Config:
    """Return the validated tree of nested settings.

    Raises: ConfigError, naming the key, the value and what was allowed.
    """
    try:
        return Config.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(detail) for detail in error.errors())) from None


def to_toml(config: Config) -> str:
    """Return the resolved tree as TOML; `build` reads it back unchanged. Keys that are None are left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def suggest(given: str, known: Sequence[str]) -> str:
    """Return advice: the nearest known name, or all of them."""
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _assign(settings: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    node = settings
    for section in sections:
        child: Any = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{dotted}: {section!r} is a value, not a section")
        node = cast(dict[str, Any], child)
    node[key] = value


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _known_keys(path: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] = Config
    for name in path:
        annotation = model.model_fields[str(name)].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return list(model.model_fields)


def _explain(detail: Any) -> str:
    path = detail["loc"]
    dotted = ".".join(str(part) for part in path)
    if detail["type"] == "extra_forbidden":
        return f"unknown key {dotted}; {suggest(str(path[-1]), _known_keys(path[:-1]))}"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{dotted or 'config'}: {message}, got {detail['input']!r}" if path else message
