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
from ..core.outcome import Evidence, Failure, Measurement
from ..core.skill import Skill
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
SKILLS = 12
SKILLS_SHARE = 1 / 8  # of a prompt's characters, at most
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
        return self.shared + self.own

    @property
    def digest(self) -> str:
        return digest(self.shared, self.own)


def prompts(
    job: Job,
    configs: Sequence[Config],
    *,
    reference: Config | None = None,
    answer: str = "logits",
    skills: Sequence[Skill] = (),
    recordings: Sequence[Recording] = (),
    evidence: Mapping[Config, Evidence] | None = None,
    most_chars: int = CHARS,
) -> list[Prompt]:
    """One prompt for each config, to be answered by a bin of its speed-up over the reference, by default the space's own.

    Args:
        reference: a config of the job's space.
        answer: `logits`, where one label is to follow, or `reasoned`, where JSON is (`answers.SCHEMA`).
        skills: what changes of one knob did elsewhere, the most fitting first.
        recordings: of the same program at other keys or on other hardware, the most alike first: what the same two configs
            took there is told of the first few.
        evidence: what the compiler says of configs, where it was asked.
        most_chars: of each prompt. Sources are shortened to fit, at the borders of functions, and it is said; where not even
            the rest fits, skills are left out, then recordings.
    Raises:
        PromptTooLongError: with no source at all it would be longer.
    """
    evidence = evidence or {}
    reference = job.space.default if reference is None else reference
    described = _described(job)
    program = job.workload.program
    of_reference = variant_of(reference)
    sources = {v: sections_of(program, v) for v in dict.fromkeys([of_reference, *map(variant_of, configs)])}
    words: dict[str, object] = {
        "answer": answer,
        "hardware": _sheet(job.hardware),
        "program": _line(program.name),
        "language": _line(program.language),
        "key": _key(job.workload.key),
        "work": None if job.work is None else {"flops": _short(job.work.flops), "bytes": _short(job.work.bytes)},
        "skills": _first([_line(str(skill)) for skill in skills[:SKILLS]], int(SKILLS_SHARE * most_chars)),
        "elsewhere": [_place(job, recording) for recording in recordings[:ELSEWHERE]],
        "knobs": _knobs(reference),
        "launch": _launch(described.get(reference, {})),
        "compiled": _compiled(evidence.get(reference)),
    }

    def shared(source: str) -> str:
        return _template("shared").render(words, source=source)

    def own(config: Config) -> str:
        return _template(answer).render(
            knobs=_knobs(config),
            changes=_changes(reference, config),
            elsewhere=_elsewhere(recordings[:ELSEWHERE], reference, config),
            launch=_launch(described.get(config, {}), described.get(reference)),
            compiled=_compiled(evidence.get(config)),
        )

    owns = [own(c) for c in configs]
    longest_own = max(map(len, owns), default=0)
    texts = len({of_reference, *map(variant_of, configs)})
    room = most_chars - len(shared("")) - longest_own - (LEFT_OUT_CHARS if program.source else 0)
    if room < 0 and (skills or recordings):  # what was measured elsewhere makes way, skills first
        return prompts(
            job,
            configs,
            reference=reference,
            answer=answer,
            recordings=recordings if skills else (),
            evidence=evidence,
            most_chars=most_chars,
        )
    if room < 0:
        raise PromptTooLongError(
            f"a prompt without sources has {most_chars - room} characters, and {most_chars} are allowed"
        )
    room //= 1 if texts == 1 else 2
    text, kept = shortened(sources[of_reference], room)
    texts_of = {v: _indented(shortened(found, room, kept)[0]) for v, found in sources.items()}
    beginning = shared(_indented(text))
    code_of = {v: _template("code").render(source=None if v == of_reference else texts_of[v]) for v in sources}
    return [Prompt(beginning, code_of[variant_of(c)] + rest) for c, rest in zip(configs, owns, strict=True)]


def _first(lines: Sequence[str], most_chars: int) -> list[str]:
    """As many of the lines as fit."""
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= most_chars]


def _described(job: Job) -> Mapping[Config, Mapping[str, float]]:
    return dict(zip(job.space, job.described, strict=True)) if job.described else {}


def quoted(text: str) -> str:
    """Somebody else's text, without what a chat format would take for its own marks: a space is put into them."""
    return _COMMANDS.sub(lambda found: found.group() + " ", text)


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
    told = []
    for name, after in config.knobs.items():
        before = reference.knobs.get(name)
        if (type(before), before) != (type(after), after):
            told.append(f"{name} {_value(before)} -> {_value(after)}{_factor(before, after)}")
    return _line(", ".join(told))


def _value(value: Value) -> str:
    return "none" if value is None else str(value)


def _factor(before: Value, after: Value) -> str:
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) or v <= 0 for v in (before, after)):
        return ""
    return f" (x{after / before:.2g})"  # type: ignore[operator]


def _launch(described: Mapping[str, float], reference: Mapping[str, float] | None = None) -> str:
    """What a launch does, in powers of two, each with how many of them it lies above the reference's."""
    told = []
    for name in POWERS:
        value = described.get(name)
        if value is None or not math.isfinite(value):
            continue
        before = None if reference is None else reference.get(name)
        apart = "" if before is None or min(value, before) <= 0 else _apart(math.log2(value / before))
        told.append(f"{name} {_power(value)}{apart}")
    told += [f"{name} {described[name]:.1f}" for name in TENTHS if math.isfinite(described.get(name, math.nan))]
    return ", ".join(told)


def _power(value: float) -> str:
    return "0" if value <= 0 else f"2^{_half(math.log2(value)):g}"


def _apart(octaves: float) -> str:
    rounded = _half(octaves)
    return f" ({rounded:+g})" if rounded else ""


def _half(value: float) -> float:
    return round(2 * value) / 2


def _place(job: Job, recording: Recording) -> str:
    """Where a recording was made, as far as that is not here."""
    other, here = recording.workload.key, job.workload.key
    told = [f"{name} {_entry(value)}" for name, value in other.items() if here.get(name) != value]
    if recording.hardware != job.hardware:
        told.insert(0, f"on {recording.hardware}")
    if recording.workload.program.digest != job.workload.program.digest:
        told.append("in older source")
    return _line("; ".join(told)[:PLACE_CHARS]) or "under another toolchain"


def _elsewhere(recordings: Sequence[Recording], reference: Config, config: Config) -> str:
    """What a config did over the reference in each recording that knows both, in octaves, to a quarter."""
    told = []
    for number, recording in enumerate(recordings, start=1):
        before, after = recording.outcomes.get(reference), recording.outcomes.get(config)
        if isinstance(before, Measurement) and isinstance(after, Measurement):
            told.append(f"{number} ({round(4 * math.log2(before.median_us / after.median_us)) / 4:+g})")
        elif isinstance(before, Measurement) and isinstance(after, Failure) and not after.transient:
            told.append(f"{number} failed")
    return ", ".join(told)


def _compiled(evidence: Evidence | None) -> str:
    if evidence is None:
        return ""
    told = [
        ("registers", evidence.registers),
        ("spilled bytes", evidence.spill_bytes),
        ("stack bytes", evidence.stack_bytes),
        ("shared bytes", evidence.shared_bytes),
        ("code bytes", evidence.code_bytes),
        *evidence.instructions.items(),
    ]
    return ", ".join(f"{_line(str(name))} {value}" for name, value in told if value is not None)
