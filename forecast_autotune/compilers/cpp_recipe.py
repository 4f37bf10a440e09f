"""What an extension is built from, and what a config makes of it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.cached_property import cached_property
from ..core.config import Config
from ..core.digest import Value, canonical_json, digest
from ..core.hardware import Hardware, Toolchain
from ..core.space import Space
from ..errors import InvalidInputError
from .cuda_report import code_alone, without_comments_and_literals

Sources = tuple[str, ...] | Mapping[str, str]
"""Texts that are compiled together, or alternatives by name, of which the knob `source` picks one."""

SOURCE_KNOB = "source"

FORM = 2
"""Of what is made of the same sources and flags; raised with a change of that, so that what was built before is not used."""

_NAME = re.compile(r"\w+\Z", re.ASCII)
_NAME_OF_OPERATORS = re.compile(r"[.+-]*\w[\w.+-]*\Z", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MACRO_VALUE = re.compile(r"[\w.,:+\-*/%=]*\Z", re.ASCII)
# A header may be named by a macro, so what a macro names counts as included.
_INCLUDE = re.compile(r"^\s*#\s*(?:include|include_next|embed|define\s+\w+)\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_QUOTED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*\"([^\"\n]+)\"[^\n]*\n?", re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*\n?", re.MULTILINE)
_OF_MACROS = ("-D", "-U", "--define-macro", "--undefine-macro")
_DEFINED = re.compile(r"(-D|-U|--define-macro=|--undefine-macro=)\s*([A-Za-z_]\w*)(?:=(.*))?\Z", re.DOTALL)
_SEARCHED = re.compile(r"-(?:I|isystem|iquote|idirafter)\s*(.+)")
_SPACE = r"(?:\s|/\*(?:[^*]|\*(?!/))*\*/|//[^\n]*\n)*"
_LIBRARY = re.compile(rf"\b((?:STABLE_)?TORCH_LIBRARY(_FRAGMENT|_IMPL)?{_SPACE}\({_SPACE})([A-Za-z_]\w*)")
_REGISTERS = ("TORCH_LIBRARY", "RegisterOperators")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An extension as `torch.utils.cpp_extension.load_inline` takes it, with sources of kernels that are compiled alone.

    `arguments` are torch's own, handed on as they are.
    """

    name: str
    cpp_sources: Sources
    cuda_sources: Sources = ()
    kernel_sources: Sources = ()
    functions: Mapping[str, str] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_python_module: bool = True

    @property
    def is_cuda(self) -> bool:
        """Whether nvcc is needed."""
        return bool(self.cuda_sources)

    @cached_property
    def text(self) -> str:
        """All source text, alternatives included, with a digest of the headers: what a reader of the program reads."""
        return "\n\n".join([self.sources_text, *([f"// headers: {self.headers}"] if self.headers else [])])

    @cached_property
    def sources_text(self) -> str:
        """All source text, without the headers, of which ninja keeps account itself."""
        return _joined(self.kernel_sources, self.cuda_sources, self.cpp_sources)

    @cached_property
    def torchs_text(self) -> str:
        """What of the source text torch compiles, in a slot: all but the kernels that are compiled alone."""
        return _joined(self.cuda_sources, self.cpp_sources)

    @cached_property
    def headers(self) -> str:
        """A digest of the headers that the sources reach in the caller's include folders; empty where there are none.

        It is read off the texts, whatever their conditions say, so that it is known before anything is compiled. Which
        headers a build did read, its compiler says (see `CppCompiler`).
        """
        return self._of_headers[0]

    @property
    def _header_registers(self) -> bool:
        """Whether one of these headers registers operators."""
        return self._of_headers[1]

    @cached_property
    def _of_headers(self) -> tuple[str, bool]:
        headers = included_headers(self.sources_text, self.include_folders)
        return _digest_of(headers), any(_LIBRARY.search(code_alone(text)) for text in headers if _mentions_any(text))

    @cached_property
    def include_folders(self) -> tuple[str, ...]:
        """Folders that the caller names for headers, in its include paths and in its flags."""
        flags = [f for name in ("extra_cflags", "extra_cuda_cflags") for f in self.arguments.get(name) or ()]
        words = " ".join(map(str, flags)).replace('"', "").split()
        joined = re.sub(r"(?:^|(?<= ))(-(?:I|isystem|iquote|idirafter)) ", r"\1", " ".join(words)).split()
        named = [match[1] for word in joined if (match := _SEARCHED.match(word))]
        return (*map(str, self.arguments.get("extra_include_paths") or ()), *named)

    @cached_property
    def flags(self) -> tuple[str, ...]:
        """Every flag and build argument that may change the code, but for those that knobs set and for where headers are."""
        places = ("build_directory", "extra_include_paths", "verbose")
        kept = {k: v for k, v in self.arguments.items() if v and k not in places}
        return tuple(f"{name}={canonical_json(value)}" for name, value in sorted(kept.items()))

    def macros(self, config: Config) -> dict[str, Value]:
        """What texts find defined under a config, by name: its knobs, and what flags define; 1 where these say no more.

        The kernels' texts count: in CUDA, what flags of C++ define, only the binding finds.
        """
        given = self.arguments.get("extra_cuda_cflags" if self.is_cuda else "extra_cflags") or ()
        defined = _defined({}, given)
        for name, value in config.knobs.items():
            if self.roles.get(name) != "flag" and not (name == SOURCE_KNOB and self._has_alternatives):
                defined[name] = value
        return _defined(defined, [value for name, value in config.knobs.items() if self.roles.get(name) == "flag"])

    @property
    def _has_alternatives(self) -> bool:
        return any(isinstance(s, Mapping) for s in (self.kernel_sources, self.cuda_sources, self.cpp_sources))

    def validate(self, space: Space) -> None:
        """Refuse a space that these sources cannot be built for.

        Raises:
            InvalidInputError: the name or a knob is no C identifier, or a knob names a source that is not there, or is a
                flag without its dash.
        """
        if not (_NAME if self.is_python_module else _NAME_OF_OPERATORS).match(self.name):
            raise InvalidInputError(f"name={self.name!r}: an extension's name is letters, digits and _ only")
        alternatives = [s for s in (self.kernel_sources, self.cuda_sources, self.cpp_sources) if isinstance(s, Mapping)]
        if alternatives and SOURCE_KNOB not in space.knobs:
            raise InvalidInputError(
                f"sources are given by name ({', '.join(alternatives[0])}), but the space has no knob {SOURCE_KNOB!r} to "
                f"pick one; its knobs are {', '.join(space.knobs)}"
            )
        for knob in space.knobs:
            if not _IDENTIFIER.match(knob):
                raise InvalidInputError(f"knob {knob!r} becomes -D{knob}=…: a knob's name must be a C identifier")
        for config in space:
            for knob, value in config.knobs.items():
                if knob == SOURCE_KNOB and alternatives:
                    for names in alternatives:
                        if value not in names:
                            raise InvalidInputError(f"source={value!r}: the sources given are {', '.join(names)}")
                elif self.roles.get(knob) == "flag":
                    if not isinstance(value, str) or (value and not value.startswith("-")):
                        raise InvalidInputError(
                            f"flag {knob}={value!r}: give a compiler flag such as '-O3', or '' for none"
                        )
                elif isinstance(value, str) and not _MACRO_VALUE.match(value):
                    raise InvalidInputError(
                        f"knob {knob}={value!r} becomes a macro, and torch hands it through a shell: letters, digits and "
                        "_ . , : + - * / % = only; give what needs more a name in the source"
                    )

    def why_not_side_by_side(self) -> str:
        """What variants of these sources would do to each other in one process, as far as it can be read; empty for nothing.

        It goes by the code as it stands, whatever its conditions say.
        """
        if self._header_registers:
            return (
                "a header of extra_include_paths registers operators, and the second variant that is loaded would end the "
                "process, for their names are taken: register them in cpp_sources by TORCH_LIBRARY"
            )
        found = [each for text in self._texts for each in self._registrations[text]]
        if any(kind == "RegisterOperators" for kind, _ in found):
            return (
                "the second variant that is loaded would end the process, for the names that RegisterOperators gives are "
                "taken: use TORCH_LIBRARY"
            )
        own = {namespace for kind, namespace in found if kind != "_IMPL"}
        if others := sorted({namespace for kind, namespace in found if kind == "_IMPL"} - own):
            return (
                f"TORCH_LIBRARY_IMPL for {', '.join(others)} holds for the whole process, whatever variant was loaded last: "
                "build that apart, without a space"
            )
        return ""

    @cached_property
    def _texts(self) -> list[str]:
        kinds = (self.cpp_sources, self.cuda_sources, self.kernel_sources)
        return [text for kind in kinds for text in (kind.values() if isinstance(kind, Mapping) else kind)]

    @cached_property
    def _registrations(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """By source text, how and under which names it registers operators; what a macro of its own holds counts."""
        code = {text: without_comments_and_literals(text) if _mentions_any(text) else "" for text in self._texts}
        return {text: self._registered(code[text]) for text in self._texts}

    def _registered(self, code: str) -> list[tuple[str, str]]:
        found = [(m[2] or "", self._expanded(m[3])) for m in _LIBRARY.finditer(code)]
        return found + ([("RegisterOperators", "")] if re.search(r"\bRegisterOperators\b", code) else [])

    def variant(self, config: Config, toolchain: Toolchain, hardware: Hardware) -> Variant:
        """What this config builds: the chosen texts, its macros and flags, and the digest that names its folder."""
        defines, flags = [], []
        alternatives = self._has_alternatives
        for knob, value in config.knobs.items():
            if knob == SOURCE_KNOB and alternatives:
                continue
            if self.roles.get(knob) == "flag":
                flags += str(value).split()
            else:
                defines.append(f"-D{knob}={_macro(value)}")
        chosen = config.knobs.get(SOURCE_KNOB)
        cpp, cuda, kernel = (picked(s, chosen) for s in (self.cpp_sources, self.cuda_sources, self.kernel_sources))
        sources = {"cpp": cpp, "cuda": cuda, "kernel": kernel}
        name = digest(
            f"form {FORM}",
            self.name,
            canonical_json(sources),
            canonical_json(self.functions and dict(self.functions)),
            canonical_json([defines, flags, self.flags, self.is_python_module]),
            toolchain.digest,
            sys.implementation.cache_tag or "",
            # Code built for this very device must not be run on another that shares the folder.
            hardware.digest if "native" in " ".join([*self.flags, *flags]) else "",
            hardware.capability if self.is_cuda else "",
            *([self.headers] if self.headers else []),
        )
        found = (each for text in (*cpp, *cuda, *kernel) for each in self._registrations[text])
        renamed = {namespace: f"{namespace}_{name[:8]}" for kind, namespace in found if kind in ("", "_FRAGMENT")}
        return Variant(
            digest=name,
            defines=tuple(defines),
            flags=tuple(flags),
            cpp=tuple(self._rename(text, renamed) for text in cpp),
            cuda=tuple(self._rename(text, renamed) for text in cuda),
            kernel=tuple(self._rename(text, renamed) for text in kernel),
            namespace=None if self.is_python_module else self._namespace(renamed),
        )

    def _rename(self, text: str, renamed: Mapping[str, str]) -> str:
        return _LIBRARY.sub(lambda m: m[1] + renamed.get(self._expanded(m[3]), m[3]), text)

    def _expanded(self, namespace: str) -> str:
        return self.name if namespace == "TORCH_EXTENSION_NAME" else namespace

    def _namespace(self, renamed: Mapping[str, str]) -> str:
        """Where the operators of this variant are: torch keeps one registry a process, so each variant has its own name."""
        if len(renamed) > 1:
            raise InvalidInputError(
                f"{self.name} registers operators under {', '.join(sorted(renamed))}: with a space, use one namespace"
            )
        return next(iter(renamed.values()), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One config's build: texts, macros and flags; `digest` names it by all that goes into it."""

    digest: str
    defines: tuple[str, ...]
    flags: tuple[str, ...]
    cpp: tuple[str, ...]
    cuda: tuple[str, ...]
    kernel: tuple[str, ...]
    namespace: str | None

    @property
    def macros(self) -> list[str]:
        """The names that its flags define."""
        return [define[2:].partition("=")[0] for define in self.defines]


def as_sources(value: object, argument: str) -> Sources:
    """Sources as a user gives them: a text, several, or alternatives by name.

    Raises:
        InvalidInputError: it is none of these.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Mapping) and value and all(isinstance(t, str) for t in (*value, *value.values())):
        return dict(value)
    if isinstance(value, Sequence) and all(isinstance(t, str) for t in value):
        return tuple(value)
    raise InvalidInputError(f"{argument} is {type(value).__name__}: give a text, a list of texts, or texts by name")


def headers_digest(text: str, folders: Sequence[str]) -> str:
    """How many headers a source reaches in its include folders, and a digest of them; empty where it reaches none."""
    return _digest_of(included_headers(text, folders))


def _mentions_any(text: str) -> bool:
    return any(word in text for word in _REGISTERS)


def _digest_of(headers: Sequence[str]) -> str:
    return f"{len(headers)}, {digest(*headers)}" if headers else ""


def included_headers(text: str, folders: Sequence[str]) -> list[str]:
    """Texts of the headers that a source reaches in its include folders, each with its name: they are part of the code.

    A header that another includes is looked for beside that one too. They are named by their place in a folder, not by
    where the folder is: a checkout elsewhere is the same code.
    """
    texts: dict[tuple[int, str], str] = {}  # by which folder, and by the path in it
    waiting: list[tuple[int, str, str]] = [(-1, "", text)]
    while waiting:
        beside, within, text = waiting.pop()
        for name in _INCLUDE.findall(text):
            places = [(place, name) for place in range(len(folders))]
            if beside >= 0:
                places.append((beside, os.path.normpath(os.path.join(within, name))))
            for place, path in places:
                file = os.path.join(folders[place], path)
                if (place, path) not in texts and os.path.isfile(file):
                    with open(file, errors="replace") as opened:
                        texts[place, path] = opened.read()
                    waiting.append((place, os.path.dirname(path), texts[place, path]))
    return [f"{path} {place}\n{content}" for (place, path), content in sorted(texts.items())]


def with_headers(text: str, folders: Sequence[str]) -> str:
    """A text with the headers that it includes from these folders in their places, and theirs in them.

    One that says `#pragma once` stands there once. One that is not found, or is on the way to itself, stays a line.
    """
    there: set[str] = set()

    def written(text: str, around: tuple[str, ...]) -> str:
        def header(match: re.Match[str]) -> str:
            places = [*(os.path.dirname(path) for path in around[-1:]), *folders]
            paths = (os.path.abspath(os.path.join(place, match[1])) for place in places)
            path = next((path for path in paths if os.path.isfile(path)), None)
            if path is None or path in around:
                return match[0]
            if path in there:
                return ""
            with open(path, errors="replace") as opened:
                content = opened.read()
            if _ONCE.search(content):
                there.add(path)
            return f"{written(_ONCE.sub('', content), (*around, path)).rstrip()}\n"

        return _QUOTED.sub(header, text)

    return written(text, ())


def _joined(*kinds: Sources) -> str:
    parts = []
    for sources in kinds:
        texts = sources.items() if isinstance(sources, Mapping) else ((None, text) for text in sources)
        parts += [text if name is None else f"// source = {name}\n{text}" for name, text in texts]
    return "\n\n".join(parts)


def picked(sources: Sources, chosen: Value) -> tuple[str, ...]:
    """The texts that are compiled together, where the knob `source` is set so."""
    return (sources[str(chosen)],) if isinstance(sources, Mapping) else tuple(sources)


def _defined(before: Mapping[str, Value], flags: Sequence[object]) -> dict[str, Value]:
    """What is defined after flags, which torch hands through a shell: `-D NAME` may be two words, and a later one counts."""
    defined, words = dict(before), iter(words_of(flags))
    for word in words:
        if word in _OF_MACROS:
            word = f"{word}{'=' if word.startswith('--') else ''}{next(words, '')}"
        if match := _DEFINED.match(word):
            defined.pop(match[2], None)
            if match[1] in ("-D", "--define-macro="):
                defined[match[2]] = match[3] or 1
    return defined


def words_of(flags: Iterable[object]) -> list[str]:
    """The words that a compiler gets of flags, which torch joins and hands through a shell: one may hold several."""
    line = " ".join(map(str, flags))
    try:
        return shlex.split(line)
    except ValueError:  # a quote without end, which no shell takes
        return line.split()


def _macro(value: Value) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


def build_root(folder: os.PathLike[str] | str, recipe: Recipe) -> str:
    """Where a recipe's builds are kept: the caller's own `build_directory` if it named one."""
    return str(recipe.arguments.get("build_directory") or os.path.join(folder, "builds"))
