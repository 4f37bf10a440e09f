"""What all threads of a block have alike in a kernel, and where they all come together, as far as its text tells.

What differs among threads is followed from `threadIdx` through all that is assigned, in whatever order, and through the
conditions under which it is. What the text does not settle, such as a call of a function that it lacks, counts as different.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .c_text import CountedLoop, closing, counted
from .cuda_text import Function, commas

_WORD = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
_CALL = re.compile(r"(?<!\w)(\w+)\s*(?:<[^;(){}]*?>\s*)?\(")
_METHOD = re.compile(r"(?<![\w.>\])])(\w+)(?:\[[^\[\]]*\])?\s*(?:\.|->)\s*\w+\s*\(")
_CONTROL = re.compile(r"\b(if|for|while|switch)\b(?:\s*constexpr\b)?\s*\(")
_DO = re.compile(r"\bdo\b")
_JUMP = re.compile(r"\b(return|goto|break|continue)\b")
_ASSIGNED = re.compile(r"(?<![=!<>])(?:<<|>>|[-+*/%&|^])?=(?!=)")
_COUNTED_UP = re.compile(
    r"(?:\+\+|--)\s*\(?\s*\*?\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:(?:\[[^\[\]]*\]|(?:\.|->)\s*\w+)\s*)*(?:\+\+|--)"
)
_CONSTRUCTED = re.compile(r"(?<=[\w>*&])\s+[*&]*\s*(\w+)\s*([({])")
_TAKEN = re.compile(r"(?<=[=(,{;?:])\s*&\s*(\w+)")  # its address
_REFERENCE = re.compile(r"(?:[\w>]\s*|,\s*)[&*]+\s*\(?\s*(?:(?:const|__restrict__)\s+)*\Z")  # or a pointer
_PLACE = re.compile(r"\s*\w+(?:\s*\[.*\])?\s*", re.DOTALL)
_SHARED = re.compile(r"\b__shared__\b[^;]*;")
_LAMBDA = re.compile(r"(?<![\w)\]])\[[^\[\];]*\]\s*(?:\([^;{}]*\)\s*(?:mutable\b\s*)?)?\{")
_OTHER = re.compile(r"\b(?:asm|__asm__|goto)\b")
_STATEMENT = re.compile(r"\b(?:if|else|for|while|do|switch|return|break|continue)\b")
_WRITES = re.compile(r"(?<![=!<>])=(?!=)|\+\+|--")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\\n|\\.)*)", re.MULTILINE)
_TYPE = re.compile(
    r"\b(?:using\s+(\w+)\s*=|(?:struct|class)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)|typedef\b[^;]*?(\w+)\s*;)"
)

_KEYWORD = re.compile(r"if|for|while|switch|return|else|do|case|new|throw|sizeof|alignof|alignas|decltype")
_PURE = re.compile(
    r"(?:static|reinterpret|const)_cast|min|max|abs|f?(?:abs|min|max|ma)f?|(?:__)?(?:exp|exp2|log|log2|sin|cos|pow)f|tanhf|r?sqrtf"
    r"|floorf|ceilf|__ldg|__syncthreads|unsigned|int|long|short|char|bool|float|double|size_t|u?int\d+_t"
)
"""What gives the same for the same arguments, and changes none."""
_DIFFERENT = frozenset({"threadIdx", "asm", "__asm__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A statement that may run its body or not, or several times: places of its header, inside the parentheses, and body."""

    kind: str
    start: int
    header: tuple[int, int]
    body: tuple[int, int]

    def __contains__(self, at: int) -> bool:
        return self.body[0] <= at < self.body[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What is written to a name: where, and of which text it depends."""

    name: str
    at: int
    given: str
    value: tuple[int, int] | None = None  # where what an assignment gives stands


class BlockAlike:
    """A kernel's text, read for what all threads of a block have alike.

    Raises:
        ValueError: how its statements nest is not clear, or it has functions, assembly or jumps within.
    """

    def __init__(self, code: str, kernel: Function, functions: Sequence[Function]) -> None:
        self._code, self._span, self._functions = code, kernel.body, functions
        if _LAMBDA.search(code, kernel.body[0] + 1, kernel.body[1]) or _OTHER.search(code, *kernel.body):
            raise ValueError(f"{kernel.name} has functions, assembly or jumps within")
        self._types = {name for match in _TYPE.finditer(code) for name in match.groups() if name}
        self._macros = {match[1]: match[2] for match in _MACRO.finditer(code)}
        if any(_STATEMENT.search(text) for _, _, text in self._mentioned()):
            raise ValueError(f"{kernel.name} has statements by macros")
        self._known = {function.name for function in functions} | self._types | self._macros.keys()
        self._different = set(_DIFFERENT)
        self._follow_text()
        self.controls = sorted(_controls(code, *kernel.body), key=lambda control: control.start)
        self.writes = list(self._writes())
        for match in _SHARED.finditer(code, *kernel.body):
            declared = re.sub(r"\[[^\]]*\]|__shared__|(?:alignas|__align__)\s*\([^)]*\)", " ", match[0])
            self._different |= {name for name in _WORD.findall(declared)[1:] if not self._is_known(name)}
        self._follow()

    def is_alike(self, text: str) -> bool:
        """Whether an expression has the same value in all threads of a block."""
        return not self._different.intersection(_WORD.findall(text)) and all(
            self._is_known(match[1]) for match in _CALL.finditer(text)
        )

    def _is_known(self, name: str) -> bool:
        """Whether the text or this file knows what stands before brackets, and a name that is declared does not."""
        return name in self._known or bool(_PURE.fullmatch(name) or _KEYWORD.fullmatch(name))

    def is_reached_together(self, at: int) -> bool:
        """Whether all threads of a block come to a place, and equally often."""
        around = [control for control in self.controls if at in control]
        if any(self._splits(control) for control in around):
            return False
        loops = [control for control in around if control.kind != "if"]
        # None has left before, nor goes another way round a loop that the place is in
        return not any(
            (match[1] == "return" or any(match.start() in loop for loop in loops))
            and any(match.start() in control and self._splits(control) for control in self.controls)
            for match in _JUMP.finditer(self._code, self._span[0], max([at, *(loop.body[1] for loop in loops)]))
        )

    def around(self, at: int) -> list[Control]:
        """What a place is in, from the outside in."""
        return [control for control in self.controls if at in control]

    def is_in_a_header(self, at: int) -> bool:
        """Whether a place is in what decides whether statements run."""
        return any(control.header[0] <= at < control.header[1] for control in self.controls)

    def written(self, start: int, end: int) -> list[Write]:
        """What is written between two places."""
        return [write for write in self.writes if start <= write.at < end]

    def _splits(self, control: Control) -> bool:
        """Whether threads of a block may go different ways there."""
        if not self.is_alike(self._code[slice(*control.header)]):
            return True
        return control.kind != "if" and any(
            match.start() in other
            and other.start > control.start
            and not self.is_alike(self._code[slice(*other.header)])
            for match in _JUMP.finditer(self._code, *control.body)
            for other in self.controls
        )

    def _follow_text(self) -> None:
        """Add names of macros and functions whose own text differs among threads."""
        while True:
            found = {name for name, text in self._macros.items() if not self.is_alike(text)} | {
                function.name for function in self._functions if not self.is_alike(self._code[slice(*function.body)])
            }
            if found <= self._different:
                return
            self._different |= found

    def _follow(self) -> None:
        """Add names to which something is written that differs, or by some of the threads alone."""
        while True:
            split = [control for control in self.controls if self._splits(control)]
            found = {
                write.name
                for write in self.writes
                if not self.is_alike(write.given) or any(write.at in control for control in split)
            }
            if found <= self._different:
                return
            self._different |= found

    def _writes(self) -> Iterator[Write]:
        code, (start, end) = self._code, self._span
        for match in _ASSIGNED.finditer(code, start, end):
            stop = _end_of_value(code, match.end())
            name_at, names = _assigned(code, match.start())
            given = code[name_at : match.start()].partition("[")[2] + " " + code[match.end() : stop]
            for name in names:
                yield Write(name=name, at=name_at, given=given, value=(match.end(), stop))
            statement = code[max(code.rfind(mark, 0, name_at) for mark in ";{}(") + 1 : name_at]
            if names and _REFERENCE.search(statement) and not statement.lstrip().startswith("const "):
                # What is written to it, is to what it names
                for name in set(_WORD.findall(code[match.end() : stop])):
                    yield Write(name=name, at=name_at, given=names[0])
        for match in _COUNTED_UP.finditer(code, start, end):
            yield Write(name=match[1] or match[2], at=match.start(), given="")
        for match in _CONSTRUCTED.finditer(code, start, end):
            before = re.compile(r"\w+\Z").search(code, max(start, match.start() - 40), match.start())
            if not self._is_known(match[1]) and (before is None or not _KEYWORD.fullmatch(before[0])):
                yield Write(name=match[1], at=match.start(1), given=code[match.end() : closing(code, match.end() - 1)])
        for match in _TAKEN.finditer(code, start, end):
            yield Write(name=match[1], at=match.start(1), given="threadIdx")
        for match in _METHOD.finditer(code, start, end):
            yield Write(name=match[1], at=match.start(1), given="threadIdx")
        for _, at, text in self._mentioned():
            for name in _WORD.findall(text) if _WRITES.search(text) else ():
                yield Write(name=name, at=at, given="threadIdx")
        yield from self._passed()

    def _mentioned(self) -> Iterator[tuple[str, int, str]]:
        """Macros that the kernel mentions, and those in them: name, place in the kernel, text."""
        wanted = [(match[0], match.start()) for match in _WORD.finditer(self._code, *self._span)]
        seen = set()
        while wanted:
            name, at = wanted.pop()
            if name in self._macros and (name, at) not in seen:
                seen.add((name, at))
                yield name, at, self._macros[name]
                wanted += [(word, at) for word in _WORD.findall(self._macros[name])]

    def _passed(self) -> Iterator[Write]:
        """Names that are handed to a function which may write to them."""
        code = self._code
        for match in _CALL.finditer(code, *self._span):
            by_value = match[1].startswith("__") or match[1] in self._types or _PURE.fullmatch(match[1])
            macro = self._macros.get(match[1], "=")
            if by_value or _KEYWORD.fullmatch(match[1]) or not _WRITES.search(macro):
                continue
            last = closing(code, match.end() - 1)
            wanted = [
                [code[a:b].strip() for a, b in _parted(code, *function.arguments)]
                for function in self._functions
                if function.name == match[1]
            ]
            for i, (a, b) in enumerate(_parted(code, match.end(), last)):
                takes = [each[i] for each in wanted if i < len(each)]
                if takes and all(one.startswith("const ") or not re.search("[&*]", one) for one in takes):
                    continue
                if not takes and not _PLACE.fullmatch(code, a, b):
                    continue
                for name in _WORD.findall(code[a:b]):
                    yield Write(name=name, at=a, given="threadIdx")


def _parted(code: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for comma in [*commas(code, start, end), end]:
        yield start, comma
        start = comma + 1


def _end_of_value(code: str, at: int) -> int:
    """Where the expression that begins at a place ends."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth < 0 or (depth == 0 and code[i] in ",;"):
            return i
    return len(code)


def _assigned(code: str, at: int) -> tuple[int, list[str]]:
    """Where what is assigned to before a place begins, and the names in it that are written to."""
    while True:
        at = len(code[:at].rstrip())
        if at and code[at - 1] in ")]":
            opened = _opening(code, at - 1)
            if code[at - 1] == ")":
                return opened, _WORD.findall(code[opened:at])
            if re.search(r"\bauto\s*[&*]*\s*\Z", code[max(0, opened - 20) : opened]):
                return opened, _WORD.findall(code[opened:at])
            at = opened
            continue
        word = re.search(r"(\w+)\s*\Z", code[max(0, at - 200) : at])
        if word is None:
            return at, []
        at -= len(word[0])
        if member := re.search(r"(?:\.|->)\s*\Z", code[max(0, at - 20) : at]):
            at -= len(member[0])
            continue
        return at, [word[1]]


def _opening(code: str, at: int) -> int:
    """Where the bracket that closes at a place opens."""
    depth = 0
    for i in range(at, -1, -1):
        depth += (code[i] in ")]}") - (code[i] in "([{")
        if depth == 0:
            return i
    return 0


def _closed(code: str, at: int) -> int:
    if (end := closing(code, at)) < 0:
        raise ValueError("a bracket that is not closed")
    return end


def _controls(code: str, start: int, end: int) -> Iterator[Control]:
    for match in _CONTROL.finditer(code, start, end):
        header = (match.end(), _closed(code, match.end() - 1))
        last = _end_of_statement(code, header[1] + 1)
        if match[1] == "if" and (other := re.compile(r"\s*else\b").match(code, last)):
            last = _end_of_statement(code, other.end())
        yield Control(kind=match[1], start=match.start(), header=header, body=(header[1] + 1, last))
    for match in _DO.finditer(code, start, end):
        last = _end_of_statement(code, match.end())
        again = re.compile(r"\s*while\s*\(").match(code, last)
        if again is None:
            raise ValueError("a loop without an end")
        header = (again.end(), _closed(code, again.end() - 1))
        yield Control(kind="do", start=match.start(), header=header, body=(match.end(), last))


def _end_of_statement(code: str, at: int) -> int:
    at = re.compile(r"(?:\s|#[^\n]*)*").match(code, at).end()  # type: ignore[union-attr]  # matches anywhere
    if code.startswith("{", at):
        return _closed(code, at) + 1
    if match := _CONTROL.match(code, at):
        last = _end_of_statement(code, _closed(code, match.end() - 1) + 1)
        other = re.compile(r"\s*else\b").match(code, last) if match[1] == "if" else None
        return last if other is None else _end_of_statement(code, other.end())
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if code[i] == ";" and depth == 0:
            return i + 1
        if depth < 0:
            break
    raise ValueError("a statement without an end")


def count_of(code: str, control: Control) -> CountedLoop | None:
    """What a loop counts, where its header says so plainly."""
    count = counted(code[slice(*control.header)]) if control.kind == "for" else None
    if count is None or "=" in count.first or any(re.search("[?=&|^]", part) for part in (count.end, count.stride)):
        return None
    return None if any([*commas(part, 0, len(part))] for part in (count.first, count.end)) else count
