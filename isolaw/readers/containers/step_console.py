"""Consoles that announce a step and list its values next to it or below it.

::

    … Epoch 1/10 Step 3/116 Train step 3/1160 done.         AReaL's StatsLogger, then tables
    │ ppo_actor/task_reward/avg │ 3.2000e-01 │
    ========== Step 3/100 ==========                        NeMo-RL, then lists; per epoch
      • Avg Reward: 0.1200
    Iter 3: Train loss 0.000, Total rewards mean 0.100      mlx-lm-lora's GRPO, also over several lines
    … metrics_tag: {"step": 3, "metrics": {…}}              ROLL's stdout tracker
    === [GlobalReduce] - METRICS STEP 3 ===                 torchforge, then one metric a line
    Step 3 | Pass@1: 0.1100, Pass@2: 0.1300                 nanochat's chat_rl: an evaluation, and training
    Step 3/467 | Average reward: 0.12 | Average sequence length: 207.56
    SUCCESS Step 3 | Time: 13.04s | Reward: 0.1160 | …      prime-rl's orchestrator, without ``metrics.jsonl``
    SUCCESS Step 3 |    2m 5s | Reward 0.1160 | …           the same since 2026

Values get the names that they have in trackers. prime-rl's ``Val. Reward`` is ignored, because the line does
not show which policy it evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from isolaw.errors import DataError
from isolaw.readers import configs, limits
from isolaw.readers.containers.printed_config import PrintedConfig, Settings
from isolaw.readers.raw_log import HEAD, Container, RawLog, clean, finite, is_text, lines, unprefixed

_NUMBER_PATTERN = r"(-?(?:\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,3})?|nan|inf))"
_LARGEST_EXACT = 99_999  # AReaL prints five digits
# Generic file names, which do not identify the run.
_GENERIC = {"train", "output", "console", "stdout", "log", "main", "trainer", "nohup", "log_rank_0"}
_GENERIC |= {"orchestrator", "rl"}
_LONGEST_KEY = 200
_SEARCHED_BYTES = 4 * limits.MB  # much output can precede the first step
_LONGEST_STEP = 65_536  # bytes from the line of a step to its first value
_MOST_TRIED = 20  # steps without values
_SIGNS = (b"{'", b"tep ", b"STEP ", b"ter ", b"Epoch")  # of configurations and steps
_StepValues = dict[str, Any]


def _read_areal(text: str) -> _StepValues:
    cells = re.findall(rf"│ *([\w./@-]{{1,{_LONGEST_KEY}}}) *│ *{_NUMBER_PATTERN} *(?=│)", text)
    counts = {key: finite(value) for key, value in cells if key.endswith("n_seqs")}
    return {key: value for key, value in cells if counts.get(key, 0) <= _LARGEST_EXACT}


_NEMO_NAMES = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    "Avg Total Reward": "train/reward",  # with dynamic sampling, over all generated rollouts
    "Avg Filtered Reward": "train/filtered_reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Accuracy": "validation/accuracy",
    "Average response length": "validation/avg_length",
}


_NEMO_BATCH = re.compile(r"▶ Generating responses for batch of size (\d{1,9})")


def _read_nemo_rl(text: str) -> _StepValues:
    if batch := _NEMO_BATCH.match(text):
        return {"generated": batch[1]}
    match = re.match(rf"\s{{1,8}}• ([A-Z][\w ]{{1,40}}): {_NUMBER_PATTERN}(?: tokens)?\s*$", text)
    return {_NEMO_NAMES[match[1]]: match[2]} if match and match[1] in _NEMO_NAMES else {}


_MLX_NAMES = {
    "Total Rewards": "total_rewards_mean",
    "Group Rewards": "grouped_rewards_mean",
    "KL Divergence": "kl",
    "Avg tokens": "average_generated_tokens",
}


def _read_mlx_lm(text: str) -> _StepValues:
    if " loss " in text:  # all in one line
        pairs = re.findall(rf"(?:^|[:,]) ?([A-Za-z][\w /.-]{{0,100}}?) {_NUMBER_PATTERN}(?= GB|,|$)", text)
        names = [key.lower().replace(" ", "_") for key, _ in pairs]
        names = [name if name.startswith(("train_", "val_")) else f"train_{name}" for name in names]
        return dict(zip(names, (value for _, value in pairs), strict=True))
    match = re.match(rf"(?:  • )?([A-Za-z][\w .-]{{0,100}}): +(?:μ=)?{_NUMBER_PATTERN}(%?)", text)
    if not match or not (match[1] in _MLX_NAMES or "μ=" in text):
        return {}
    return {f"train_{_MLX_NAMES.get(match[1], f'{match[1]}_mean')}": match[2]}


def _read_roll(text: str) -> _StepValues:
    try:
        record = orjson.loads(text[text.index("metrics_tag: ") + len("metrics_tag: ") :])
        return dict(record["metrics"]) if isinstance(record["metrics"], dict) else {}
    except (ValueError, KeyError, TypeError):  # NaN is not JSON, and not a measurement
        return {}


def _read_forge(text: str) -> _StepValues:
    match = re.match(
        rf"\s{{0,8}}([\w./@-]{{1,{_LONGEST_KEY}}}/[\w./@-]{{1,{_LONGEST_KEY}}}): +{_NUMBER_PATTERN}\s*$", text
    )
    return {match[1]: match[2]} if match else {}


_ROLL_STEP = re.compile(r'metrics_tag: \{"step": ?(?P<step>\d{1,9}), ?"metrics": ?\{')
_FORGE_STEP = re.compile(r"=== \[[Gg]lobal_?[Rr]educe\] - METRICS STEP (?P<step>\d{1,9}) ===")
# Not of a micro-batch.
_NANOCHAT_STEP = r"^Step (?P<step>\d{1,9})(?:/\d{1,9})? \| (?:Pass@1: |Average reward: )"


def _read_nanochat(text: str) -> _StepValues:
    if sequences := re.match(r"Total sequences per step: (\d{1,9})$", text):
        return {"sequences_per_step": sequences[1]}
    if not re.match(_NANOCHAT_STEP, text):
        return {}
    values = {f"pass@{k}": value for k, value in re.findall(rf"Pass@(\d{{1,6}}): {_NUMBER_PATTERN}", text)}
    for name, key in (("reward", "reward"), ("sequence length", "sequence_length")):
        if match := re.search(rf"Average {name}: {_NUMBER_PATTERN}", text):
            values[key] = match[1]
    return values


_PRIME_RL_STEP = r"Step (?P<step>\d{1,9}) \| (?:(?:Time: )?[\d.hms ]{1,20} \| )?Reward:? (?=[-\d])"


def _read_prime_rl(text: str) -> _StepValues:
    names = {"Reward": "reward/all/mean", "Seq. Length": "seq_len/all/mean", "Val. Reward": "val_reward"}
    pairs = re.findall(rf"\| ((?:Val\. )?Reward|Seq\. Length):? {_NUMBER_PATTERN}(?= )", text[:1_000])
    return {names[name]: value for name, value in pairs} if re.search(rf"\b{_PRIME_RL_STEP}", text) else {}


@dataclass(frozen=True)
class _Form:
    """The form in which one framework announces a step and lists its values."""

    # Has the groups ``step``; ``of``, the number of steps per epoch, if the steps start again with each
    # epoch; and ``before``, if an evaluation precedes the update of the step.
    step: re.Pattern[str]
    values: Callable[[str], _StepValues]  # of one line
    signs: tuple[bytes, ...]  # every line with values contains one of these
    step_offset: int = 0  # how far the console's count is ahead of the trackers'

    def may_match(self, line: bytes) -> bool:
        """Return whether a line can contain values."""
        return any(sign in line for sign in self.signs)


_FORMS = (
    _Form(
        re.compile(r"Epoch \d{1,9}/\d{1,9} Step \d{1,9}/\d{1,9} Train step (?P<step>\d{1,9})/\d{1,9} done"),
        _read_areal,
        ("│".encode(),),
        step_offset=1,
    ),
    _Form(
        re.compile(r"={5,80} Step (?P<step>\d{1,9})/(?P<of>\d{1,9}) ={5,80}"),
        _read_nemo_rl,
        ("•".encode(), "▶ Gen".encode()),
    ),
    _Form(
        re.compile(r"^ {0,4}Iter (?P<step>\d{1,9}):(?: Train loss |(?P<before> Val loss )|\s*$)"),
        _read_mlx_lm,
        (b": ",),
    ),
    _Form(_ROLL_STEP, _read_roll, (b"metrics_tag: {",)),
    _Form(_FORGE_STEP, _read_forge, (b": ",)),
    _Form(re.compile(_NANOCHAT_STEP), _read_nanochat, (b"Pass@", b"Average reward", b"sequences per step")),
    _Form(re.compile(rf"\b{_PRIME_RL_STEP}"), _read_prime_rl, (b"Reward",)),
)
_EPOCH = re.compile(r"={5,80} Epoch (\d{1,9})/\d{1,9} ={5,80}")
# Any of the forms, anywhere in a line, because a worker's prefix can precede a step.
_STEP_IN_BYTES = re.compile(
    "|".join(re.sub(r"\^|\\b|(?<=\()\?P<\w+>", "", form.step.pattern) for form in _FORMS).encode(), re.M
)


def _find_form(text: bytes) -> _Form | None:
    """Return the form that matches a step and a value in the beginning of a console, or None."""
    tried_forms: list[_Form] = []
    for match in _STEP_IN_BYTES.finditer(text):
        start, end = text.rfind(b"\n", 0, match.start()) + 1, text.find(b"\n", match.start())
        line = unprefixed(clean(text[start : end if end >= 0 else len(text)].partition(b"\r")[0]))[1]
        if form := next((form for form in _FORMS if form.step.search(line)), None):
            lines_below = text[start : start + _LONGEST_STEP].replace(b"\r", b"\n").split(b"\n")
            candidates = [unprefixed(clean(line))[1] for line in lines_below if form.may_match(line)]
            if any(map(form.values, candidates)):
                return form
            tried_forms.append(form)
        if len(tried_forms) == _MOST_TRIED:
            return None
    return None


def _is_console(path: Path, head: bytes) -> bool:
    """Return whether a text file contains a step with values of one of the frameworks in its first 4 MB."""
    if b"\0\0\0\0" in head or not is_text(head):
        return False
    return _find_form(limits.start(path, _SEARCHED_BYTES) if len(head) >= HEAD else head) is not None


def _read(path: Path) -> Iterator[RawLog]:
    """Read a console, with one log per configuration; raise `DataError` if it has no step."""
    form = _find_form(limits.start(path, _SEARCHED_BYTES))
    log = RawLog(str(path), "step-console", configs.run_name(path, _GENERIC))
    if form is None:
        raise DataError(
            f"{path}: found no step; expected the console output of AReaL, NeMo-RL, mlx-lm-lora, ROLL, "
            "torchforge, nanochat or prime-rl"
        )
    reader = _Reader(form, log)
    for _, line in lines(path, log, at_returns=True):
        if form.may_match(line) or reader.printed.is_collecting or any(sign in line for sign in _SIGNS):
            reader.take(line)
    reader.close()
    printed = any(reader.settings.configs)
    yield from reader.settings.parts(*(({}, "") if printed else configs.find_config(path)))


class _Reader:
    """Collects the values of each step, and the configurations printed before them."""

    def __init__(self, form: _Form, log: RawLog) -> None:
        self.form, self.log = form, log
        self.printed, self.settings = PrintedConfig(), Settings(log)
        self._step, self._values = 0, _StepValues()  # values before any step were measured before training
        self._epoch = 1

    def take(self, line: bytes) -> None:
        """Process the next line of the console."""
        worker, text = unprefixed(clean(line))
        self.printed.add(worker, text)
        if epoch_match := _EPOCH.search(text):
            self._epoch = int(epoch_match[1])
        elif step_match := self.form.step.search(text):
            self._begin_step(step_match)
        if self.form.may_match(line):
            self._values |= self.form.values(text)

    def _begin_step(self, match: re.Match[str]) -> None:
        self.close()
        step = int(match["step"]) - self.form.step_offset
        if "of" in match.re.groupindex:
            step += (self._epoch - 1) * int(match["of"])
        if "before" in match.re.groupindex and match["before"] and step != self._step:
            step -= 1
        self.settings.set_config(self.printed.config)
        self._step = step

    def close(self) -> None:
        """Add the values of the last step to the log at the end of the console."""
        if self._values:
            self.log.add(self._values, self._step)
        self._values = {}


CONTAINER = Container("step-console", _read, file=_is_console)
