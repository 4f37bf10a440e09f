"""What a language model is asked: one candidate against a reference, on given hardware, in the words of `templates/`.

Everything that candidates of one space have in common comes first, so that a model that keeps what it has read reads it
once. What the caller's code says (sources, names) stands indented and is stripped of what chat formats take for commands.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.digest import Value, digest
from ..core.hardware import Hardware
from ..core.job import Job, Recording
from ..core.knob_effect import KnobEffect, value_text
from ..core.outcome import Evidence, Failure, Measurement
from ..core.workload import Program
from .sources import MARGIN, sections_of, shortened, variant_of

if TYPE_CHECKING:
    from jinja2 import Environment, Template

CHARS = 24_000
"""Of a prompt, at most; some 8,000 tokens of code. What is longer is read more slowly, and no better by small models."""

CHARS_PER_TOKEN = 2.15
"""At least so many make a token: of recorded spaces' prompts 2.2 to 3.0 in Mistral's first tokenizer, 2.4 to 3.4 in its
later one, 2.7 to 4.0 in ours (`calibration.fit.training.small_model`)."""

LEFT_OUT_CHARS = 200  # of the lines that name what was left out
PLACE_CHARS = 160  # of a recording's whereabouts
KNOB_EFFECTS = 12
KNOB_EFFECTS_SHARE = 1 / 8  # of a prompt's characters, at most
ELSEWHERE = 4  # recordings that a prompt tells of

# Launch features that a reader can use: as powers of two, and as tenths.
POWERS = (
    "programs", "waves", "trips", "tile_elements", "per_thread", "registers", "shared_bytes", "blocks_per_unit",
    "loaded_bytes", "traffic_bytes", "us_flops", "us_memory", "us_bound", "launches",
)  # fmt: skip
TENTHS = ("wave_tail", "overshoot", "shared_share")

_COMMANDS = re.compile(
    r"<(?=[|\uff5c][^<>\n]{1,60}[|\uff5c]>)"  # <|im_end|> and its like
    r"|<(?=/?(?:s|bos|eos|pad|unk|think|tool_call|start_of_turn|end_of_turn|eot_id)>)"
    r"|\[(?=/?(?:INST|SYS|TOOL_CALLS)\])|<(?=/?<?/?SYS>>)"
)


class PromptTooLongError(Exception):
    """Not even a shortened prompt fits; the message says what was needed."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text for a language model: `shared` begins every prompt of a space, `own` is what this candidate adds."""

    shared: str
    own: str

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self.shared + self.own

    @property
    def digest(self) -> str:
        """Names the prompt by its content."""
        return digest(self.shared, self.own)


def prompts(
    job: Job,
    configs: Sequence[Config],
    *,
    reference: Config | None = None,
    answer: str = "logits",
    knob_effects: Sequence[KnobEffect] = (),
    recordings: Sequence[Recording] = (),
    evidence: Mapping[Config, Evidence] | None = None,
    most_chars: int = CHARS,
) -> list[Prompt]:
    """One prompt for each config, to be answered by a bin of its speed-up over the reference, by default the space's own.

    Args:
        reference: a config of the job's space.
        answer: `logits`, where one label is to follow, or `reasoned`, where JSON is (`answers.SCHEMA`).
        knob_effects: what changes of one knob did elsewhere, the most fitting first.
        recordings: of the same program at other keys or on other hardware, the most alike first: what the same two configs
            took there is told of the first few.
        evidence: what the compiler says of configs, where it was asked.
        most_chars: of each prompt. Sources are shortened to fit, at the borders of functions, and it is said; where not even
            the rest fits, knob effects are left out, then recordings.
    Raises:
        PromptTooLongError: with no source at all it would be longer.
    """
    evidence = evidence or {}
    reference = job.space.default if reference is None else reference
    shown = recordings[:ELSEWHERE]
    features = dict(zip(job.space, job.static_features, strict=True)) if job.static_features else {}
    common = _common_words(job, reference, answer, features, evidence) | {
        "knob_effects": _first(
            [_line(str(effect)) for effect in knob_effects[:KNOB_EFFECTS]], int(KNOB_EFFECTS_SHARE * most_chars)
        ),
        "elsewhere": [_place(job, recording) for recording in shown],
    }
    owns = [_template(answer).render(_own_words(config, reference, features, evidence, shown)) for config in configs]
    longest_own = max(map(len, owns), default=0)
    names_left_out = LEFT_OUT_CHARS if job.workload.program.source else 0
    room = most_chars - len(_template("shared").render(common, source="")) - longest_own - names_left_out
    if room < 0 and (knob_effects or recordings):  # what was measured elsewhere makes way, knob effects first
        kept = recordings if knob_effects else ()
        return prompts(
            job, configs, reference=reference, answer=answer, recordings=kept, evidence=evidence, most_chars=most_chars
        )
    if room < 0:
        raise PromptTooLongError(
            f"a prompt without sources has {most_chars - room} characters, and {most_chars} are allowed"
        )
    text, code_of = _code(job.workload.program, variant_of(reference), [variant_of(c) for c in configs], room)
    beginning = _template("shared").render(common, source=text)
    return [Prompt(beginning, code_of[variant_of(c)] + rest) for c, rest in zip(configs, owns, strict=True)]


def _common_words(
    job: Job,
    reference: Config,
    answer: str,
    features: Mapping[Config, Mapping[str, float]],
    evidence: Mapping[Config, Evidence],
) -> dict[str, object]:
    """What `templates/shared.j2` is filled with, but for sources, knob effects and recordings."""
    return {
        "answer": answer,
        "hardware": _sheet(job.hardware),
        "program": _line(job.workload.program.name),
        "language": _line(job.workload.program.language),
        "key": _key(job.workload.key),
        "work": None if job.work is None else {"flops": _short(job.work.flops), "bytes": _short(job.work.bytes)},
        "knobs": _knobs(reference),
        "launch": _launch(features.get(reference, {})),
        "compiled": _compiled(evidence.get(reference)),
    }


def _own_words(
    config: Config,
    reference: Config,
    features: Mapping[Config, Mapping[str, float]],
    evidence: Mapping[Config, Evidence],
    recordings: Sequence[Recording],
) -> dict[str, object]:
    """What the template of an answer's form is filled with for one config."""
    return {
        "knobs": _knobs(config),
        "changes": _changes(reference, config),
        "elsewhere": _elsewhere(recordings, reference, config),
        "launch": _launch(features.get(config, {}), features.get(reference)),
        "compiled": _compiled(evidence.get(config)),
    }


def _code(
    program: Program, reference: str | None, variants: Sequence[str | None], room: int
) -> tuple[str, dict[str | None, str]]:
    """The reference's source, shortened to fit; and for each variant the part of a prompt that shows its own.

    Args:
        reference, variants: see `variant_of`.
        room: characters for the reference's source and a variant's.
    """
    sources = {v: sections_of(program, v) for v in dict.fromkeys([reference, *variants])}
    room //= 1 if len(sources) == 1 else 2
    text, kept = shortened(sources[reference], room)
    own = {v: _indented(shortened(sections, room, kept)[0]) for v, sections in sources.items()}
    parts = {v: _template("code").render(source=None if v == reference else own[v]) for v in sources}
    return _indented(text), parts


def _first(lines: Sequence[str], most_chars: int) -> list[str]:
    """As many of the lines as fit."""
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= most_chars]


def quoted(text: str) -> str:
    """Somebody else's text, without what a chat format would take for its own marks: a space is put into them."""
    return _COMMANDS.sub(lambda match: match.group() + " ", text)


def _line(text: str) -> str:
    """The same on one line, so that none of it stands where a heading of ours would."""
    return quoted(" ".join(text.split()))


def _indented(text: str) -> str:
    """Quoted, every line behind the margin, where no heading of ours stands."""
    return "\n".join(f"{' ' * MARGIN}{line}" for line in quoted(text).splitlines())


@cache
def _template(name: str) -> Template:
    return _environment().get_template(f"{name}.j2")


@cache
def _environment() -> Environment:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(  # sandboxed though the templates are ours: what fills them is not
        loader=jinja2.PackageLoader("forecast_autotune.language"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,  # what is shared ends a line, and what follows begins one
    )


# Numbers as words --------------------------------------------------------------------------------------------------------


def _sheet(hardware: Hardware) -> list[tuple[str, str]]:
    """The lines of a hardware sheet that are known."""
    lines = [
        ("device", _line(hardware.name)),
        ("kind", hardware.kind),
        ("capability", _line(hardware.capability)),
        ("partition", _line(hardware.partition)),
        ("multiprocessors", _short(hardware.units)),
        ("warp", _short(hardware.warp_size)),
        ("threads of a block", _short(hardware.max_threads)),
        ("shared memory of a block", _short(hardware.shared_bytes, "B")),
        ("L2 cache", _short(hardware.l2_bytes, "B")),
        ("memory", _short(hardware.memory_gib * 2**30, "B")),
        ("memory bandwidth", _short(hardware.bandwidth_gb_per_s * 1e9, "B/s")),
        ("float32 peak", _short(hardware.peak_gflops * 1e9, "flop/s")),
        ("tensor peak", _short(hardware.peak_tensor_gflops * 1e9, "flop/s")),
        ("power limit", _short(hardware.power_limit_w, "W")),
    ]
    return [(name, value) for name, value in lines if value and value != "0"]


def _short(value: float, unit: str = "") -> str:
    """Three digits and a prefix; empty for 0, which stands for unknown."""
    if not value or not math.isfinite(value):
        return ""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if prefix == 'k' else size):.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}".rstrip()


def _key(key: Mapping[str, object]) -> list[str]:
    return [_line(f"{name}: {_entry(value)}") for name, value in key.items()]


def _entry(value: object) -> str:
    if isinstance(value, Mapping) and "dtype" in value and "shape" in value:
        return f"{value['dtype']} [{' x '.join(str(n) for n in value['shape'])}]"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _knobs(config: Config) -> str:
    return _line(", ".join(f"{name}={value}" for name, value in config.knobs.items() if value is not None))


def _changes(reference: Config, config: Config) -> str:
    """The knobs in which a config differs, each with the factor where there is one."""
    changes = []
    for name, after in config.knobs.items():
        before = reference.knobs.get(name)
        if (type(before), before) != (type(after), after):
            changes.append(f"{name} {value_text(before)} -> {value_text(after)}{_factor(before, after)}")
    return _line(", ".join(changes))


def _factor(before: Value, after: Value) -> str:
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) or v <= 0 for v in (before, after)):
        return ""
    return f" (x{after / before:.2g})"  # type: ignore[operator]


def _launch(features: Mapping[str, float], reference: Mapping[str, float] | None = None) -> str:
    """What a launch does, in powers of two, each with how many of them it lies above the reference's."""
    words = []
    for name in POWERS:
        value = features.get(name)
        if value is None or not math.isfinite(value):
            continue
        before = None if reference is None else reference.get(name)
        apart = "" if before is None or min(value, before) <= 0 else _apart(math.log2(value / before))
        words.append(f"{name} {_power(value)}{apart}")
    words += [f"{name} {features[name]:.1f}" for name in TENTHS if math.isfinite(features.get(name, math.nan))]
    return ", ".join(words)


def _power(value: float) -> str:
    return "0" if value <= 0 else f"2^{_half(math.log2(value)):g}"


def _apart(octaves: float) -> str:
    rounded = _half(octaves)
    return f" ({rounded:+g})" if rounded else ""


def _half(value: float) -> float:
    return round(2 * value) / 2


def _place(job: Job, recording: Recording) -> str:
    """Where a recording was made, as far as it differs from the job."""
    other, own = recording.workload.key, job.workload.key
    differences = [f"{name} {_entry(value)}" for name, value in other.items() if own.get(name) != value]
    if recording.hardware != job.hardware:
        differences.insert(0, f"on {recording.hardware}")
    if recording.workload.program.digest != job.workload.program.digest:
        differences.append("in older source")
    return _line("; ".join(differences)[:PLACE_CHARS]) or "under another toolchain"


def _elsewhere(recordings: Sequence[Recording], reference: Config, config: Config) -> str:
    """What a config did over the reference in each recording that knows both, in octaves, to a quarter."""
    effects = []
    for number, recording in enumerate(recordings, start=1):
        before, after = recording.outcomes.get(reference), recording.outcomes.get(config)
        if isinstance(before, Measurement) and isinstance(after, Measurement):
            effects.append(f"{number} ({round(4 * math.log2(before.median_us / after.median_us)) / 4:+g})")
        elif isinstance(before, Measurement) and isinstance(after, Failure) and not after.transient:
            effects.append(f"{number} failed")
    return ", ".join(effects)


def _compiled(evidence: Evidence | None) -> str:
    if evidence is None:
        return ""
    figures = [
        ("registers", evidence.registers),
        ("spilled bytes", evidence.spill_bytes),
        ("stack bytes", evidence.stack_bytes),
        ("shared bytes", evidence.shared_bytes),
        ("code bytes", evidence.code_bytes),
        *evidence.instructions.items(),
    ]
    return ", ".join(f"{_line(str(name))} {value}" for name, value in figures if value is not None)
