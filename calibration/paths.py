"""Where the data of calibration lies."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TRACES = FOLDER / "traces"  # recorded spaces
EVIDENCE = FOLDER / "evidence"  # what compilers say of whole spaces
REPOSITORY = FOLDER.parent
