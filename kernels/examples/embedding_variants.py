"""Several ways to compute one thing: `fa.variants` makes one function of them and decides for each size which one runs.

Sums of embeddings: gather rows and add them up; the same for some bags at a time; torch's own operator; or count words and
multiply. Look at `key`: each shape is decided by itself, and which way wins depends on the shape. A pair of a function and
a space hands the space's knobs to the function. A variant whose result differs from the first one's leaves the race. Runs on
the CPU, and on a GPU where there is one.

Prints a line for each shape: the variant chosen, its speed against the first one's, and how many were tried.
"""

# ruff: noqa: N803  # a knob is written in capitals
import torch
import torch.nn.functional as F  # noqa: N812

import forecast_autotune as fa


def gather(table: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return table[words].sum(1)


def gather_in_blocks(table: torch.Tensor, words: torch.Tensor, BAGS: int) -> torch.Tensor:
    return torch.cat([table[block].sum(1) for block in words.split(BAGS)])


def built_in(table: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(words, table, mode="sum")


def count(table: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    counts = table.new_zeros(len(words), len(table))
    return counts.scatter_add_(1, words, table.new_ones(words.shape)) @ table


bags = fa.variants(
    [gather, (gather_in_blocks, fa.Space.grid({"BAGS": [4, 32]})), built_in, count], key="table, words", name="bags"
)

device = "cuda" if torch.cuda.is_available() else "cpu"
for vocabulary, width in ((30_000, 256), (16, 1024)):
    table = torch.rand(vocabulary, width, device=device)
    words = torch.randint(vocabulary, (64, 256), device=device)
    torch.testing.assert_close(bags(table, words), gather(table, words), rtol=1e-4, atol=1e-4)
    decision = list(bags.decisions.values())[-1]
    print(
        f"{vocabulary} words of {width}: {decision.config}: {decision.speedup or 1:.1f}x the first one's speed,",
        end=" ",
    )
    print(f"{decision.tried} of {decision.space_size} tried")
