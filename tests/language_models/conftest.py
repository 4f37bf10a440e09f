"""Tiny models, and a real vLLM server for them, once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Running, vllm_server
from tiny_models import make_adapter, make_model, pieces_tokenizer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))  # vLLM and what it imports warn of each other


@pytest.fixture(autouse=True)
def own_models_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked for on the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "base", pieces_tokenizer())


@pytest.fixture(scope="session")
def adapter(base: Path) -> Path:
    return make_adapter(base.with_name("adapter"), base)


@pytest.fixture(scope="session")
def server(base: Path, adapter: Path) -> Iterator[Running]:
    """Serves the model as `tiny` and its adapter as `changed`."""
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"changed={adapter}")
    with vllm_server(base, base.with_name("server.log"), *lora) as running:
        yield running
