"""Where the data of calibration lies."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TRACES = FOLDER / "traces"  # recorded spaces of the suite; the other corpora lie in folders below
EVIDENCE = FOLDER / "evidence"  # what compilers say of whole spaces
PRODUCTS = FOLDER / "products"  # matrix products as Inductor makes them: a line for each shape, with all times
POOLS = FOLDER / "pools"  # programs that rewrites made, which differ by more than knobs; see record/pools.py
REPOSITORY = FOLDER.parent

CORPORA = {
    "suite": TRACES,  # kernels with large spaces and several variants
    "small": TRACES / "small",  # kernels of a page each, with lists as people write them
    "packages": TRACES / "packages",  # kernels of other people's packages, a folder each, without their source
}
"""The folder of each corpus of recorded spaces, by name."""


def traces(*corpora: str) -> list[Path]:
    """The traces of these corpora, by default of the suite alone; those of one corpus stand together, sorted by name."""
    found: list[Path] = []
    for corpus in corpora or ("suite",):
        pattern = "*/*.jsonl.gz" if corpus == "packages" else "*.jsonl.gz"
        found += sorted(CORPORA[corpus].glob(pattern))
    return found
