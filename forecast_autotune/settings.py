"""Settings: where `FORECAST_AUTOTUNE_*` is read and checked."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

from .core.budget import BudgetLimits
from .core.model_names import FORMS, is_language_model, is_loopback, is_model_version
from .core.user_warnings import warn_once
from .errors import InvalidInputError, SettingError, TuningWarning

PREFIX = "FORECAST_AUTOTUNE_"

NO_HOME = Path("/nonexistent")  # Debian's name for the home folder of those who have none

Mode = Literal["tune", "online", "cached", "forecast", "first", "strict"]
Isolate = Literal["auto", "0", "1"]
ToolchainMatch = Literal["exact", "any"]
Sync = Literal["store", "rank0", "none"]

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "MODE": get_args(Mode),
    "ISOLATE": get_args(Isolate),
    "TOOLCHAIN": get_args(ToolchainMatch),
    "SYNC": get_args(Sync),
}
_SWITCHES = ("REMOTE_MODEL", "INDUCTOR")

SURROGATES = ("auto", "history", "learned", "roofline")
"""Names of surrogates; `auto` is the others, blended. Language models go by `model_names.FORMS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a language model answers, and how many seconds one tuning run may wait for it."""

    form: str = "logits"
    seconds: float = 10.0

    @classmethod
    def parse(cls, text: str) -> Answer:
        """Read `logits` or `reasoned`, alone or with a limit as in `reasoned,60s`.

        Raises:
            InvalidInputError: it is neither.
        """
        form, comma, limit = (part.strip() for part in text.partition(","))
        try:
            seconds = BudgetLimits.parse(limit).seconds if comma and "," not in limit else None
        except InvalidInputError:
            seconds = None
        if form not in ("logits", "reasoned") or (comma and not seconds):
            raise InvalidInputError(f"{text!r}: accepted are logits, reasoned, or either with a limit (reasoned,60s)")
        return cls(form=form, seconds=seconds or cls().seconds)

    def __str__(self) -> str:
        return f"{self.form},{self.seconds:g}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStore:
    """A store that machines share: where it is, and how far it is trusted.

    `trusted`: decisions in it are believed. Else the config of one is the first to be tried. `sources`: what is sent holds
    the source text of kernels and the messages of failures; else digests stand in their place.
    """

    url: str
    trusted: bool = False
    sources: bool = False

    @classmethod
    def parse(cls, text: str) -> RemoteStore:
        """Read a URL of fsspec's, followed by `,trusted`, `,sources` or both.

        Raises:
            InvalidInputError: it is none.
        """
        url, *words = (part.strip() for part in text.split(","))
        if not is_url(url) or not set(words) <= {"trusted", "sources"}:
            raise InvalidInputError(
                f"{text!r}: accepted is a URL that fsspec knows, such as s3://bucket/folder, gs://bucket/folder or "
                "file:///folder (its whole path), and after it ,trusted or ,sources or both"
            )
        return cls(url=url.rstrip("/"), trusted="trusted" in words, sources="sources" in words)

    def __str__(self) -> str:
        return ",".join([without_password(self.url), *(["trusted"] * self.trusted), *(["sources"] * self.sources)])


@dataclass(frozen=True, slots=True, kw_only=True)
class PackUrl:
    """A pack behind a URL: of a manifest with a digest, or at a revision of a hub's that the URL names."""

    url: str
    digest: str = ""  # SHA-256 of the manifest, 64 hex digits

    @property
    def pinned(self) -> bool:
        """Whether it stays what it is. A branch or a tag of a hub's may name something else tomorrow; a commit does not."""
        return bool(self.digest) or re.fullmatch("[0-9a-f]{40}", self.revision) is not None

    @property
    def revision(self) -> str:
        """Of a hub's: the name of a branch or a tag, or the digest of a commit; empty elsewhere."""
        named = re.match(_HUB_REVISION, self.url)
        return named[1] if named else ""

    @classmethod
    def parse(cls, text: str) -> PackUrl:
        """Read `URL#DIGEST`, or `hf://…@COMMIT`. A branch or tag is read too: who asks the hub can tell its commit.

        Raises:
            InvalidInputError: it is neither.
        """
        url, _, digest = text.partition("#")
        named = re.fullmatch("[0-9a-f]{64}", digest) or (not digest and re.match(_HUB_REVISION, url))
        if not is_url(url) or not named:
            raise InvalidInputError(
                f"{without_password(text)!r} is no URL that is pinned: give URL#DIGEST, with the digest that "
                "'forecast-autotune export' printed, or hf://…@COMMIT, with the commit's 40 hex digits; a folder's URL is "
                "file:/// and its whole path"
            )
        return cls(url=url.rstrip("/"), digest=digest)

    def __str__(self) -> str:
        return without_password(self.url) + (f"#{self.digest}" if self.digest else "")


# As huggingface_hub reads it: behind the repository's name; any later @ is part of a file's name.
_HUB_REVISION = "hf://(?:(?:datasets|kernels|models|spaces)/)?[^/@]+/[^/@]+@(refs/(?:convert|pr)/[^/@]+|[^/@]+)"

_SCHEME = "[a-z][a-z0-9+.-]*"
_UP_TO = rf"(?:[^{os.pathsep}]*[^\s{os.pathsep}])?"  # the next separator, without spaces before it
_PACKS = re.compile(
    rf"{_SCHEME}://[^/#\s{os.pathsep}]*:[0-9]+(?=\s*(?:{os.pathsep}|$))|"  # nothing but a host and its port
    rf"{_SCHEME}://{_UP_TO}(?::[0-9]+(?=[/#]){_UP_TO})?|[^\s{os.pathsep}]{_UP_TO}"  # a URL may name a port
)


def is_url(text: str) -> bool:
    """Whether a text has a URL's form, fsspec's chains of them (`simplecache::s3://…`) included.

    One of a file needs its whole path: fsspec would look for another below wherever each process stands.
    """
    return re.fullmatch(rf"(?:{_SCHEME}::)*(?!(?:file|local)://[^/~]){_SCHEME}://[^\s\x00-\x1f\x7f]+", text) is not None


def without_password(url: str) -> str:
    """A URL as it may be shown: the name and password before its host are left out, and what follows a `?`."""
    return re.sub(r"\?.*", "?…", re.sub(r"://[^/@]*:[^/@]*@", "://…@", url))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says, checked; a field is None where it says nothing and the front end's default holds."""

    budget: str | None = None
    mode: Mode = "tune"
    dir: Path = field(default_factory=lambda: default_dir())
    packs: tuple[Path | PackUrl, ...] = ()
    remote_store: RemoteStore | None = None
    surrogate: str | None = None
    isolate: Isolate = "auto"
    toolchain: ToolchainMatch = "exact"
    sync: Sync = "store"
    remote_model: bool = False  # whether a language model on another machine may be asked
    inductor: bool = False
    answer: Answer = field(default_factory=Answer)
    online_cost: float = 0.05  # of the time in tuned kernels, what exploring may take in mode online
    online_cpu: float = 0.05  # of one core's time, what learning may take in mode online
    model: str | None = None  # of the fitted one: a version, or an absolute path, that of a kept one included

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, mode: Mode | None = None, surrogate: str | None = None
    ) -> Settings:
        """Read `FORECAST_AUTOTUNE_*`; `mode` and `surrogate` hold where it says nothing of them.

        Of the process's own environment, each variable that is no setting is warned of once.

        Raises:
            SettingError: a value does not parse; names the variable, the value and the accepted forms.
            InvalidInputError: `mode` or `surrogate` does not.
        """
        if environment is None:
            _warn_of_unknown_variables()
        variables = os.environ if environment is None else environment
        values: dict[str, object] = {}

        def read(name: str) -> str:
            return variables.get(PREFIX + name, "").strip()

        def parsed(name: str, parse: Callable[[str], object], between: str = "=") -> None:
            if text := read(name):
                try:
                    values[name.lower()] = parse(text)
                except InvalidInputError as err:
                    raise SettingError(f"{PREFIX}{name}{between}{err}") from None

        if mode is not None:
            if mode not in _CHOICES["MODE"]:
                raise InvalidInputError(f"mode={mode!r}: accepted are {', '.join(_CHOICES['MODE'])}")
            values["mode"] = mode
        for name, accepted in _CHOICES.items():
            parsed(name, partial(_choice, accepted))
        for name in _SWITCHES:
            parsed(name, _switch)
        remote_model = values.get("remote_model") is True
        if surrogate is not None:
            check_surrogate(surrogate, "surrogate", remote_model=remote_model)
            values["surrogate"] = surrogate
        parsed("SURROGATE", partial(_surrogate, remote_model=remote_model))
        parsed("ANSWER", Answer.parse)
        parsed("ONLINE_COST", partial(_share, "the time in tuned kernels, 5% or 0.05; 0 explores nothing"))
        parsed("ONLINE_CPU", _cpu_share)
        parsed("BUDGET", _budget, between=": ")
        parsed("REMOTE_STORE", RemoteStore.parse)
        parsed("DIR", _path)
        parsed("PACKS", lambda whole: tuple(_pack(part, whole) for part in _PACKS.findall(whole)))
        parsed("MODEL", lambda text: text if is_model_version(text) else str(_path(text)))
        settings = cls(**values)  # type: ignore[arg-type]
        if settings.model is not None and is_model_version(settings.model):
            kept = kept_model(settings.dir, settings.model)
            return replace(settings, model=str(kept)) if kept.is_file() else settings
        return settings


# How values are read. What they raise begins with the value; the name of its variable is put before it.


def _choice(accepted: Sequence[str], text: str) -> str:
    if text not in accepted:
        raise InvalidInputError(f"{text!r}: accepted are {', '.join(accepted)}")
    return text


def _switch(text: str) -> bool:
    return _choice(("0", "1"), text) == "1"


def _share(of: str, text: str) -> float:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)\s*%|(0|1|[01]?\.\d{1,6})", text)
    share = math.nan if match is None else float(match[1]) / 100 if match[1] else float(match[2])
    if not 0 <= share <= 1:
        raise InvalidInputError(f"{text!r}: accepted is a share of {of}")
    return share


def _cpu_share(text: str) -> float:
    share = _share("one core's time, 5% or 0.05, above 0", text)
    if not share:
        raise InvalidInputError(f"{text!r}: with no time nothing is learned; mode cached does that")
    return share


def _budget(text: str) -> str:
    BudgetLimits.parse(text)
    return text


def _pack(text: str, whole: str) -> Path | PackUrl:
    if "://" not in text:
        return _path(text, whole)
    try:
        return PackUrl.parse(text)
    except InvalidInputError as err:
        raise InvalidInputError(f"{without_password(whole)!r}: {err}") from None


def _path(text: str, whole: str = "") -> Path:
    try:
        if "\0" in text:
            raise RuntimeError("it holds a NUL character")
        return _anchored(Path(text).expanduser())
    except RuntimeError as err:  # ~ of a user who is not known here, say
        raise InvalidInputError(f"{whole or text!r}: {err}; accepted is a path, ~ being your home folder") from None


@cache
def _anchored(path: Path) -> Path:
    """A relative path as it was meant when it was first read: a program may change its folder."""
    return path.absolute()


def _surrogate(text: str, *, remote_model: bool) -> str:
    model = is_language_model(text)
    if not model and text not in SURROGATES:
        raise InvalidInputError(f"{text!r}: accepted are {', '.join(SURROGATES)}, {FORMS}")
    if model and text.startswith("http") and not is_loopback(text) and not remote_model:
        raise InvalidInputError(
            f"{text!r} is not on this machine, and a language model is sent the source text of kernels: "
            f"set {PREFIX}REMOTE_MODEL=1 to allow that"
        )
    return text


def check_surrogate(text: str, variable: str, *, remote_model: bool) -> None:
    """Whether a text names a surrogate that may be asked; `remote_model` allows a language model on another machine.

    Raises:
        InvalidInputError: it does not; names the variable, the value and what is accepted.
    """
    try:
        _surrogate(text, remote_model=remote_model)
    except InvalidInputError as err:
        raise InvalidInputError(f"{variable}={err}") from None


def remote_model_permission() -> dict[str, str]:
    """Of the process's environment, the variable that allows a language model on another machine, if it does.

    Whoever checks what code alone says gives it as the environment: what the code may name is for the user to allow.
    """
    name = PREFIX + "REMOTE_MODEL"
    return {name: "1"} if os.environ.get(name, "").strip() == "1" else {}


def wants_inductor() -> bool:
    """Whether the environment asks for Inductor's candidates to be narrowed; what does not parse is told of elsewhere."""
    return os.environ.get(PREFIX + "INDUCTOR", "").strip() == "1"


def kept_model(folder: Path, version: str) -> Path:
    """Where a store's folder has a fitted model that decided there, if it has it."""
    return folder / "models" / f"{version}.json"


def default_dir() -> Path:
    """The platform's cache folder for this user; removing it costs time, nothing else."""
    import platformdirs

    with suppress(RuntimeError):
        folder = Path(platformdirs.user_cache_dir("forecast_autotune", appauthor=False))
        if folder.is_absolute():
            return folder
    # A user whom the system does not know, and HOME not set, as containers have it. What cannot be made leaves the store
    # in memory, with a warning; a folder named ~ in the current one, or one in /tmp that others may have made, would not do.
    return NO_HOME / ".cache" / "forecast_autotune"


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment with changes for a process to start; None takes a variable out."""
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


def unknown_variables(environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Variables that start like ours and are none of them, each with the name, or names, it was perhaps meant to be."""
    env = os.environ if environment is None else environment
    known = [name.upper() for name in Settings.__dataclass_fields__]
    strange = [name for name in env if name.upper().startswith(PREFIX) and name.removeprefix(PREFIX) not in known]
    if not strange:
        return {}
    import difflib

    def meant(name: str) -> str | None:
        given = name.upper().removeprefix(PREFIX)
        longer = [each for each in known if each.startswith(f"{given}_")]
        close = longer or difflib.get_close_matches(given, known, 1)
        return " or ".join(PREFIX + each for each in close) or None

    return {name: meant(name) for name in sorted(strange)}


def _warn_of_unknown_variables() -> None:
    for name, meant in unknown_variables().items():
        hint = f"did you mean {meant}?" if meant else "remove it, for nothing reads it"
        warn_once(f"the environment variable {name} is no setting of forecast_autotune: {hint}", TuningWarning)
