"""What the READMEs say holds: the example runs and prints what it is said to, every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PACKAGE_README = ROOT / "forecast_autotune" / "README.md"
READMES = [
    README,
    *(p for room in ("forecast_autotune", "kernels", "calibration", "tests") for p in (ROOT / room).rglob("*.md")),
]


@pytest.mark.thorough
def test_the_example_prints_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    example = re.search(r"```python\n(import .*?)```", text, re.DOTALL)
    printed = re.search(r"^It prints `(.+?)`", text, re.MULTILINE)
    assert example is not None
    assert printed is not None
    exec(example[1], {})  # noqa: S102
    assert capsys.readouterr().out == f"{printed[1]}\n"


def test_every_setting_is_in_the_table() -> None:
    from forecast_autotune.settings import Settings

    table = PACKAGE_README.read_text()
    for name in Settings.__dataclass_fields__:
        assert f"| `{name.upper()}` |" in table


def test_the_first_readme_has_at_most_200_lines() -> None:
    assert len(README.read_text().splitlines()) <= 200


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_that_is_named_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make ([a-z][a-z-]*)", path.read_text()):
        assert target in targets or target.startswith("test-triton-"), target
