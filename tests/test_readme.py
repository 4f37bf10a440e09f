"""What the READMEs say holds: the example runs and prints what it is said to, every link leads somewhere."""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from api import API, api_text
from packaging.requirements import Requirement
from terminal import shown_by

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PACKAGE_README = ROOT / "forecast_autotune" / "README.md"
READMES = [
    README,
    *(p for room in ("forecast_autotune", "kernels", "calibration", "tests") for p in (ROOT / room).rglob("*.md")),
]


def test_the_page_of_public_names_is_as_the_docstrings_are() -> None:
    pytest.importorskip("triton")
    assert API.read_text() == api_text(), "make api"


def test_every_setting_is_in_the_table() -> None:
    from forecast_autotune.settings import Settings

    table = PACKAGE_README.read_text()
    for name in Settings.__dataclass_fields__:
        assert f"| `{name.upper()}` |" in table


def test_the_install_beside_another_triton_takes_every_other_dependency() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {Requirement(text).name: Requirement(text).specifier for text in project["dependencies"]}
    (line,) = (each for each in README.read_text().splitlines() if "--no-deps" in each)
    named = shlex.split(line.partition("#")[0].partition("&& pip install")[2])
    given = {Requirement(text).name: Requirement(text).specifier for text in named}
    assert given.keys() == wanted.keys() - {"torch", "triton", "nvidia-ml-py"}
    assert {name: given[name] for name in given if given[name]} == {name: wanted[name] for name in given if given[name]}


def test_the_first_readme_has_at_most_200_lines() -> None:
    assert len(README.read_text().splitlines()) <= 200


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for target in re.findall(r"(?<!\w)!?\[[^\]]*\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}, target


ROOMS = [
    p for p in READMES if p.name == "README.md" and not p.is_relative_to(ROOT / "tests") and p.parent.name != "programs"
]


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_of_a_room_is_in_its_readme(path: Path) -> None:
    """But of `programs/`, which are a package each, and of tests."""
    text = path.read_text()
    assert [each.name for each in path.parent.glob("*.py") if each.name[0] != "_" and each.stem not in text] == []


def test_no_name_of_a_test_is_longer_than_70_characters() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        names = [n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
        assert [name for name in names if name.startswith("test_") and len(name) > 70] == [], path


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_that_is_named_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make ([a-z][a-z-]*)", path.read_text()):
        assert target in targets or target.startswith("test-triton-"), target


def console_blocks(path: Path) -> list[tuple[str, str]]:
    """Each command of a README's console blocks, a line that begins with `$ `, with the output that is shown for it."""
    blocks = re.findall(r"```console\n(.*?)```", path.read_text(), re.DOTALL)
    shown = [re.split(r"^\$ ", block, flags=re.MULTILINE)[1:] for block in blocks]
    return [(command, output) for block in shown for command, _, output in (part.partition("\n") for part in block)]


def comparable(output: str) -> list[str]:
    """The words of an output, without what differs from run to run and machine to machine.

    That is figures with their units, digests, versions, the processor and its vectors, which config is a little faster than
    another and what that means, and where a line is broken.
    """
    from forecast_autotune.measure.probe import detect_hardware

    text = output.replace(detect_hardware("cpu").name, "AMD EPYC")
    text = re.sub(r"\bavx\w+", "avx", text)
    text = re.sub(r"\b\d+-kernels-[0-9a-f]{8}\b", "version", text)
    text = re.sub(r"^(why|cannot be told apart) .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\b(?=[0-9a-f]*\d)(?:[0-9a-f]{10}|[0-9a-f]{32})\b", "#", text)
    text = re.sub(r"\d+(?:[.:]\d+)*(?:\s(?:us|ms|s|min|h)\b)?", "#", text)
    text = re.sub(r"abstained|#x \(#-#\)", "forecast", text)  # what is forecast depends on what was timed first
    text = re.sub(r"^as good", "", text, flags=re.MULTILINE)
    return sorted(text.split())


def in_the_readme(folder: Path) -> dict[str, str]:
    """The environment of its commands: this interpreter's, a store of their own, no GPU."""
    paths = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "kernels"),
    }
    settings = {"FORECAST_AUTOTUNE_DIR": str(folder), "CUDA_VISIBLE_DEVICES": "", "TRITON_DEFAULT_FP_FUSION": "1"}
    return {**os.environ, **paths, **settings, "TERM": "dumb", "NO_COLOR": "1"}


def test_the_forecasts_of_the_readme_are_those_of_the_shipped_model(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    ((command, shown),) = [one for one in console_blocks(README) if one[0].startswith("forecast-autotune forecast ")]
    ran, output = shown_by(["bash", "-c", command], in_the_readme(tmp_path), ROOT, columns=80)
    assert ran == 0, output
    figures = re.compile(r"(BLOCK=\d+ num_warps=\d+) +(\d\.\d\dx) +(\d\.\d\dx to \d\.\d\dx)")
    assert len(figures.findall(shown)) == 4
    assert figures.findall(output) == figures.findall(shown)


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_every_command_of_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    environment = in_the_readme(tmp_path)
    for command, shown in console_blocks(README):
        errors = tmp_path / "stderr"  # where a closing line is; on a terminal it would tick
        ran, output = shown_by(["bash", "-c", f"({command}) 2>> {errors}"], environment, ROOT, columns=80)
        closing = [line for line in errors.read_text().splitlines(keepends=True) if "(forecast-autotune show" in line]
        errors.write_text("")
        assert ran == 0, (command, output)
        assert comparable("".join(closing) + output) == comparable(shown), f"{command}\n{output}"
