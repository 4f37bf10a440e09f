"""`python -m calibration`: its verbs, and which room imports which."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import calibration
from calibration.__main__ import VERBS, main

FOLDER = Path(calibration.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))
ROOMS = {
    "record": (),
    "fit": (),
    "evaluate": ("fit",),
    "report": ("evaluate",),
    "third_party": ("record",),
    "torch_compile": (),
}  # which others each may import
PRIVATE = {"_dynamo", "_inductor", "_pytree", "_subclasses"}  # modules of torch that have no public name


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    if verb in ("gpu-report", "third-party"):
        pytest.importorskip("triton")
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m calibration {verb} ")


def test_help_lists_every_verb_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert lines == [[verb, does] for verb, (_, does) in VERBS.items()]


@pytest.mark.parametrize("words", [[], ["judge"]])
def test_another_verb_is_refused_with_the_list(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "baselines" in capsys.readouterr().err


def test_help_imports_no_verb() -> None:
    program = (
        "import sys\nfrom calibration.__main__ import main\nmain(['--help'])\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'numpy', 'forecast_autotune')"
        " or name.startswith('calibration.') and name != 'calibration.__main__'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=FOLDER.parent, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_lies_before_it(room: str) -> None:
    for path in (FOLDER / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                package = ("calibration", *path.relative_to(FOLDER).parts)[: -node.level]
                target = [*package, *(node.module or "").split(".")]
                if len(target) > 1 and target[1] in ROOMS:
                    assert target[1] in (room, *ROOMS[room]), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_private_name_of_the_package_is_imported(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = {*(node.module or "").split("."), *(alias.name for alias in node.names)} - PRIVATE - {"__future__"}
            assert not [name for name in names if re.match(r"_(?!_main__$)", name)], f"{path}:{node.lineno}"
