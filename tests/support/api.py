"""Every public name with its signature and docstring, as Markdown, into `forecast_autotune/frontends/API.md`: `make api`."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import forecast_autotune as fa
from forecast_autotune.core.cached_property import cached_property

API = Path(__file__).parents[2] / "forecast_autotune" / "frontends" / "API.md"
SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
METHODS = (types.FunctionType, classmethod, staticmethod, property, cached_property)
HEAD = """# Every public name

`import forecast_autotune as fa`. Written by `make api` from the docstrings.
"""


def api_text() -> str:
    """The whole page; the decorator once, under the name that people import."""
    names = [name for name in sorted(fa.__all__, key=str.lower) if name != "autotune"]
    return "\n".join([HEAD, *(line for name in names for line in _entry(f"fa.{name}", getattr(fa, name)))])


def _entry(name: str, value: object) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    call = getattr(value, "__call__", value) if not inspect.isroutine(value) and not inspect.isclass(value) else value  # noqa: B004
    if not (inspect.isclass(value) and issubclass(value, BaseException)):
        yield f"```python\n{name}{_signature(call)}\n```\n"
    yield from _paragraphs(inspect.getdoc(value) or "")
    if call is not value:
        yield from _paragraphs(inspect.getdoc(call) or "")
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for method, function in vars(value).items():
            if not method.startswith("_") and isinstance(function, METHODS) and (doc := inspect.getdoc(function)):
                plain = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
                shown = _signature(plain) if isinstance(plain, types.FunctionType) else ""
                yield f"- `{method}{shown}`: {doc.split(chr(10) * 2)[0].replace(chr(10), ' ')}"
        yield ""


def _signature(function: object) -> str:
    """Names and defaults; a line each where there are many."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except ValueError:
        return ""
    kept = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept, return_annotation=signature.empty)).replace("'", '"')
    text = re.sub(r"<function (\w+) at \w+>", r"\1", text)
    if len(text) <= 100:
        return text
    parts = re.split(r", (?=\*|\w+(?:=|,|$|\)))", text[1:-1])
    return "(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def _paragraphs(doc: str) -> Iterator[str]:
    """A docstring's text, with a list in the place of each of its sections."""
    section = False
    for line in doc.splitlines():
        if (heading := line.removesuffix(":")) in SECTIONS and line.endswith(":"):
            section = True
            yield f"\n**{heading}**\n"
        elif section and (item := re.fullmatch(r" {4}(\S[^:]*): (.*)", line)):
            yield f"- `{item[1]}`: {item[2]}"
        elif section and line.startswith("    "):
            yield f"  {line.strip()}"
        else:
            section = section and not line
            yield line
    yield ""


if __name__ == "__main__":
    text = api_text()
    sys.exit(API.write_text(text) != len(text))
