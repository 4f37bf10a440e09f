"""The preprocessor: directives of a CUDA text, macros and the caller's own headers. Knobs stay names in the result."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .values import AbstainError, RefusedError

# What is opened ends with the line or text at the latest: no text takes time by the square of its length.
_STRING, _CHARACTER = r'"(?:\\.|[^"\\\n])*(?:"|$|\\?\Z)', r"'(?:\\.|[^'\\\n]){1,8}'"
_COMMENT = re.compile(rf"//[^\n]*|/\*.*?(?:\*/|\Z)|({_STRING}|{_CHARACTER})", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)")
_DEFINE = re.compile(r"(\w+)(\(([^)]*)\))?[ \t]*(.*)", re.DOTALL)
_TOKEN = re.compile(rf"{_STRING}|{_CHARACTER}|[A-Za-z_]\w*|\.?\d[\w.]*", re.MULTILINE)
_REGISTERS = re.compile(r"\b__maxnreg__\s*\([^()]*\)")  # tree-sitter's grammar does not have it
_ALIGNED = re.compile(r"\b__align__\s*\(")  # nor this, an older way to write it
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_UNROLL = re.compile(r"unroll\b(?!\s*\(?\s*1\s*\)?\s*$)")
MAX_NESTED = 32  # macros within macros, headers within headers
MAX_CHARACTERS = 2_000_000  # of a text with its headers and of what macros stand for; the suite's have 9,000


@dataclass(frozen=True, slots=True)
class Macro:
    """What a name is replaced by; parameters are None where it takes none."""

    parameters: tuple[str, ...] | None
    body: str


class Preprocessor:
    """One text for one config; `conditions` holds the names that told what is left of it, knobs or not.

    Args:
        knobs: values by name; they are defined, and stay names in the text.
        folders: where headers in quotes are looked for.
        evaluate: the value of an expression in C.
    """

    def __init__(self, knobs: Mapping[str, object], folders: Sequence[str], evaluate: Callable[[str], int]) -> None:
        self._knobs, self._folders, self._evaluate = dict(knobs), folders, evaluate
        self._macros = {"__CUDACC__": Macro(None, "1"), "__CUDA_ARCH__": Macro(None, "900")}
        self._once: set[str] = set()
        self._parts: list[str] = []
        self._guessed = False  # whether the condition that is read asks of what the compiler defines
        self._guesses = 0  # of the conditions that are open
        self._characters = 0  # read and put for macros so far
        self.conditions: set[str] = set()

    def run(self, text: str) -> str:
        """The text as the compiler sees it.

        Raises:
            AbstainError: it says what this preprocessor does not know.
        """
        self._read(text, beside=None, depth=0)
        return "".join(self._parts)

    def _read(self, text: str, beside: str | None, depth: int) -> None:
        if depth > MAX_NESTED:
            raise AbstainError("headers without end")
        self._count(len(text))
        text = _COMMENT.sub(lambda match: match[1] or " ", text.replace("\\\n", " "))
        text = _ALIGNED.sub("alignas(", _REGISTERS.sub(" ", text))
        waiting: list[str] = []
        open_ifs: list[tuple[bool, bool, bool, bool]] = []  # is read, was read already, all around is read, is guessed
        for line in text.split("\n"):
            directive = _DIRECTIVE.match(line)
            reading = not open_ifs or open_ifs[-1][0]
            if directive is None:
                if reading:
                    waiting.append(line)
                continue
            self._flush(waiting)
            self._guessed, name, rest = False, directive[1], directive[2].strip()
            if name in ("if", "ifdef", "ifndef"):
                holds = reading and self._holds(name, rest)
                open_ifs.append((holds, holds, reading, self._guessed))
                self._guesses += self._guessed
            elif name in ("elif", "else", "endif"):
                if not open_ifs:
                    raise AbstainError(f"#{name} without #if")
                _, was_read, around, guessed = open_ifs.pop()
                self._guesses -= guessed
                if name != "endif":
                    holds = around and not was_read and (name == "else" or self._holds("if", rest))
                    open_ifs.append((holds, was_read or holds, around, guessed or self._guessed))
                    self._guesses += guessed or self._guessed
            elif reading:
                self._obey(name, rest, beside, depth)
        self._flush(waiting)
        if open_ifs:
            raise AbstainError("#if without #endif")

    def _flush(self, waiting: list[str]) -> None:
        if waiting:
            self._parts.append(self.expand("\n".join(waiting)) + "\n")
            waiting.clear()

    def _obey(self, name: str, rest: str, beside: str | None, depth: int) -> None:
        if name == "define" and (match := _DEFINE.match(rest)):
            parameters = None if match[2] is None else tuple(p.strip() for p in match[3].split(",") if p.strip())
            self._knobs.pop(match[1], None)
            self._macros[match[1]] = Macro(parameters, match[4].strip())
        elif name == "undef":
            self._knobs.pop(rest, None)
            self._macros.pop(rest, None)
        elif name == "include" and rest.startswith('"'):
            self._include(rest.strip('"'), beside, depth)
        elif name == "error" and self._guesses:
            raise AbstainError(f"#error {rest}, by what the compiler defines")
        elif name == "error":
            raise RefusedError(f"#error {rest}")
        elif name == "pragma" and rest == "once" and beside is not None:
            self._once.add(beside)
        elif name == "pragma" and _UNROLL.match(" ".join(rest.split())):
            count = self.expand(rest.removeprefix("unroll")).strip().removeprefix("(").removesuffix(")").strip()
            self._parts.append(f"[[unroll({count})]]\n" if count else "[[unroll]]\n")

    def _include(self, name: str, beside: str | None, depth: int) -> None:
        places = [*([os.path.dirname(beside)] if beside else []), *self._folders]
        path = next((p for p in (os.path.join(place, name) for place in places) if os.path.isfile(p)), None)
        if path is None:
            raise AbstainError(f"header {name} is not there")
        if path not in self._once:
            with open(path, encoding="utf-8", errors="replace") as opened:
                self._read(opened.read(), path, depth + 1)

    def _holds(self, name: str, rest: str) -> bool:
        if name != "if":
            return self._is_defined(rest.split()[0] if rest else "") == (name == "ifdef")
        text = _DEFINED.sub(lambda match: str(int(self._is_defined(match[1] or match[2]))), rest)
        text = self.expand(text)

        def number(match: re.Match[str]) -> str:
            word = match[0]
            if not (word[0].isalpha() or word[0] == "_"):
                return word
            self.conditions.add(word)
            self._guessed |= word not in self._knobs
            value = self._knobs.get(word, 0)
            return str(int(value) if isinstance(value, bool) else value)

        return self._evaluate(_TOKEN.sub(number, text)) != 0

    def _is_defined(self, name: str) -> bool:
        self.conditions.add(name)
        is_defined = name in self._macros or name in self._knobs
        self._guessed |= not is_defined and name.startswith(("__CUDA", "__NV"))
        return is_defined

    def expand(self, text: str, depth: int = 0, hidden: frozenset[str] = frozenset()) -> str:
        """The text with macros replaced, and those in what replaces them."""
        if depth > MAX_NESTED:
            raise AbstainError("macros without end")
        parts, at = [], 0
        while (match := _TOKEN.search(text, at)) is not None:
            parts.append(text[at : match.start()])
            at, word = match.end(), match[0]
            macro = self._macros.get(word) if word not in hidden else None
            if macro is None:
                parts.append(word)
                continue
            body = macro.body
            if macro.parameters is not None:
                arguments, end = _arguments(text, at)
                if arguments is None:
                    parts.append(word)
                    continue
                at = end
                body = self._filled(macro, arguments, depth, hidden)
            self._count(len(body) + 1)
            parts.append(self.expand(body, depth + 1, hidden | {word}))
        return "".join(parts) + text[at:]

    def _filled(self, macro: Macro, arguments: list[str], depth: int, hidden: frozenset[str]) -> str:
        names = macro.parameters or ()
        if "#" in macro.body or "..." in names or len(arguments) != len(names):
            raise AbstainError("a macro that joins or takes any number of words")
        values = {n: self.expand(a, depth + 1, hidden) for n, a in zip(names, arguments, strict=True)}

        def filled(match: re.Match[str]) -> str:
            self._count(len(values.get(match[0], "")))
            return values.get(match[0], match[0])

        return _TOKEN.sub(filled, macro.body)

    def _count(self, characters: int) -> None:
        self._characters += characters
        if self._characters > MAX_CHARACTERS:
            raise AbstainError("a text that is too long, or macros without end")


def _arguments(text: str, at: int) -> tuple[list[str] | None, int]:
    """Arguments of a macro's call that opens behind `at`, and where it ends; None where none opens."""
    while at < len(text) and text[at].isspace():
        at += 1
    if at >= len(text) or text[at] != "(":
        return None, at
    found: list[str] = []
    depth, begin = 0, at + 1
    for place in range(at, len(text)):
        character = text[place]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                last = text[begin:place].strip()
                return [*found, *([last] if last or found else [])], place + 1
        elif character == "," and depth == 1:
            found.append(text[begin:place].strip())
            begin = place + 1
    raise AbstainError("a macro's call without end")
