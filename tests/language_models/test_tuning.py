# ruff: noqa: N803  # knobs are written in capitals
"""Whole tunings of plain functions by what a real vLLM server says, in good times and in bad ones."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_server import FakeServer, Reply, fake_server
from running import Running, vllm_server

import forecast_autotune as fa
from forecast_autotune.cli import main
from forecast_autotune.errors import TuningWarning
from forecast_autotune.surrogates import by_name

ASKED = "/v1/completions"
WRITTEN = "/v1/chat/completions"

Interval = tuple[float, float]
calls: list[Interval] = []


def noted(function: Callable[..., Any], *args: Any) -> Any:
    began = time.monotonic()
    found = function(*args)
    calls.append((began, time.monotonic()))
    return found


def in_blocks(x: torch.Tensor, BLOCK: int) -> torch.Tensor:
    """Block by block, which the fewer there are the faster is."""
    return noted(lambda: torch.cat([2 * block for block in x.split(BLOCK)]))  # type: ignore[no-any-return]


def in_rounds(x: torch.Tensor, ROUNDS: int) -> torch.Tensor:
    """All at once, but again and again."""
    return noted(lambda: [2 * x for _ in range(ROUNDS)][-1])  # type: ignore[no-any-return]


def doubled(values: int = 4) -> Any:
    """A function tuned anew, so many configs for each of two variants."""
    counts = range(1, values + 1)
    blocks, rounds = fa.Space.grid({"BLOCK": [64 * n for n in counts]}), fa.Space.grid({"ROUNDS": list(counts)})
    return fa.variants([(in_blocks, blocks), (in_rounds, rounds)], key="x", name="doubled")


def check_call(function: Any, size: int) -> None:
    """Call it with so many numbers; the result is right, and what was decided was measured."""
    x = torch.arange(size, dtype=torch.float32)
    assert torch.equal(function(x), 2 * x)
    assert list(function.decisions.values())[-1].basis == "measured"


@pytest.fixture(autouse=True)
def small_budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Five configs for each key; and the models that a test has named are as unknown to the next as to a new process."""
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "5")
    calls.clear()
    yield
    by_name._model.cache_clear()
    by_name._language_model.cache_clear()


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Names the model, and how it is to answer."""

    def name(model: str, answer: str = "logits,60s") -> None:
        monkeypatch.setenv("FORECAST_AUTOTUNE_SURROGATE", model)
        monkeypatch.setenv("FORECAST_AUTOTUNE_ANSWER", answer)

    return name


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> Callable[[], list[str]]:
    """What was warned of so far, in either way."""

    def texts() -> list[str]:
        logged = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("forecast_autotune")]
        return [r.getMessage() for r in logged] + [str(w.message) for w in recwarn if w.category is TuningWarning]

    return texts


def pass_on(url: str, handler: BaseHTTPRequestHandler, body: Any) -> tuple[int, bytes]:
    """Ask another server the same."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + handler.path, data=data, headers={"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request) as response:  # noqa: S310  # http
            return response.status, response.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


@contextmanager
def before(server: Running) -> Iterator[FakeServer]:
    """A server that asks another one for every answer, until a test exchanges a reply."""

    def passed(fake: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
        status, said = pass_on(server.url, handler, body)
        fake.body(handler, said, status)

    with fake_server() as proxy:
        proxy.replies = dict.fromkeys(proxy.replies, passed)
        yield proxy


def shown(capsys: pytest.CaptureFixture[str], number: int = 0) -> dict[str, Any]:
    """What the command shows of a decision, the first one made being 0."""
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    listed = sorted(json.loads(capsys.readouterr().out), key=lambda d: d["decided_at"])
    assert main(["show", listed[number]["decision"], "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def speakers(decision: dict[str, Any]) -> set[str]:
    """Whose forecasts preceded the outcomes that a decision rests on."""
    forecasts = [config["forecast"] for config in decision["configs"]]
    sources = [forecast["source"] for forecast in forecasts if "abstains" not in forecast]
    return {name for name in ("language_model", "history") if any(name in source for source in sources)}


# In good times ----------------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
import forecast_autotune as fa

def in_blocks(x, BLOCK):
    return torch.cat([2 * block for block in x.split(BLOCK)])

def in_rounds(x, ROUNDS):
    return [2 * x for _ in range(ROUNDS)][-1]

blocks, rounds = fa.Space.grid({"BLOCK": [64, 128, 256, 512]}), fa.Space.grid({"ROUNDS": [1, 2, 4, 8]})
doubled = fa.variants([(in_blocks, blocks), (in_rounds, rounds)], key="x", name="doubled")
x = torch.arange(4096.0)
assert torch.equal(doubled(x), 2 * x)
(decision,) = doubled.decisions.values()
print(decision.tried)
"""


def test_sources_are_shown_and_another_process_repeats_no_prompt(
    server: Running, ask: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def tune(budget: str) -> int:
        environment = {**os.environ, "FORECAST_AUTOTUNE_BUDGET": budget}
        ran = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=100)
        assert ran.returncode == 0, ran.stderr
        assert "language model" not in ran.stderr, ran.stderr
        return int(ran.stdout)

    with before(server) as proxy:
        ask(proxy.url)
        prompts_read = server.metric("vllm:request_success_total")
        assert tune("5") == 5
        (body,) = proxy.asks_of(ASKED)
        # Of 8 configs, the default is what others relate to.
        assert len(set(body["prompt"])) == len(body["prompt"]) == 7
        assert server.metric("vllm:request_success_total") == prompts_read + 7
        decision = shown(capsys)
        assert speakers(decision) >= {"language_model"}
        assert main(["show", "doubled", "-v"]) == 0
        assert "language_model" in capsys.readouterr().out
        assert tune("all") == 8 - 5  # the others had been tried
        assert len(proxy.asks_of(ASKED)) == 1
        assert len(proxy.asks_of("/v1/models")) == 2


@pytest.mark.parametrize("answer", ["logits,60s", "reasoned,120s"])
def test_nothing_is_asked_while_anything_is_timed(
    server: Running, ask: Callable[..., None], warned: Callable[[], list[str]], answer: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    requests: list[Interval] = []

    def timed(fake: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
        began = time.monotonic()
        status, said = pass_on(server.url, handler, body)
        requests.append((began, time.monotonic()))
        fake.body(handler, said, status)

    function = doubled(values=3)
    with before(server) as proxy:
        proxy.replies = dict.fromkeys(proxy.replies, timed)
        ask(proxy.url, answer)
        sizes = [2048, 4096]
        for size in sizes:
            check_call(function, size)
        assert len(proxy.asks_of(ASKED if answer.startswith("logits") else WRITTEN)) >= len(sizes)
    assert warned() == []
    assert all("language_model" in speakers(shown(capsys, i)) for i in range(len(sizes)))
    assert len(calls) > 100
    assert not [(r, c) for r in requests for c in calls if r[0] < c[1] and c[0] < r[1]]
    # So often did one follow the other: all requests of a key come before all timings of that key.
    moments = sorted([(r[0], "asked") for r in requests] + [(c[0], "timed") for c in calls])
    turns = [one for (_, one), (_, next_one) in zip(moments, [*moments[1:], (0.0, "")], strict=True) if one != next_one]
    assert turns == ["asked", "timed"] * len(sizes)


@pytest.mark.parametrize("runs", ["hf", "vllm"])
def test_a_model_in_this_process_is_asked_through_the_same_door(
    base: Path, ask: Callable[..., None], warned: Callable[[], list[str]], runs: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ask(f"{runs}:{base}")
    function = doubled()
    try:
        for number, size in enumerate((2048, 4096)):
            check_call(function, size)
            assert "language_model" in speakers(shown(capsys, number))
    finally:
        by_name._model(f"{runs}:{base}").close()
    assert warned() == []


# In bad times -----------------------------------------------------------------------------------------------------------


def test_a_killed_server_costs_a_warning_and_neither_decisions_nor_results(
    base: Path, ask: Callable[..., None], warned: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Once between two keys, asked directly; and once while it is asked, by another way."""
    function = doubled(values=30)
    with vllm_server(base, base.with_name("killed.log")) as mortal, before(mortal) as proxy:
        passed = proxy.replies[ASKED]

        def dying(fake: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
            if len(fake.asks_of(ASKED)) == 2:
                mortal.kill()
            passed(fake, handler, body)

        ask(mortal.url)
        check_call(function, 4096)
        assert warned() == []
        assert "language_model" in speakers(shown(capsys, 0))
        proxy.replies[ASKED] = dying
        ask(proxy.url)
        check_call(function, 2048)
        assert mortal.process.returncode is not None
        (while_asked,) = warned()
        assert f"language model the model at {proxy.url}: cannot be asked: " in while_asked
        assert "language_model" in speakers(shown(capsys, 1))  # 32 of 59 answers had come
        asked = len(proxy.asked)
        check_call(function, 1024)
        assert len(proxy.asked) == asked  # not so soon
        ask(mortal.url)
        check_call(function, 512)
        check_call(function, 256)
        _, between_keys = warned()
        assert f"language model the model at {mortal.url}: cannot be asked: " in between_keys
        assert not [i for i in (2, 3, 4) if "language_model" in speakers(shown(capsys, i))]


def later(fake: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
    fake.closed.wait(60)
    fake.json(handler, {})


@pytest.mark.parametrize("path", ["/v1/models", ASKED])
def test_a_server_that_becomes_slow_costs_no_more_than_the_limit(
    server: Running, ask: Callable[..., None], warned: Callable[[], list[str]], path: str
) -> None:
    with before(server) as proxy:
        ask(proxy.url)
        function = doubled()
        check_call(function, 4096)
        assert warned() == []
        proxy.replies[path] = later
        ask(proxy.url, "logits,2s")
        calls.clear()
        began = time.monotonic()
        check_call(function, 2048)
        assert 2.0 <= calls[0][0] - began < 30.0  # the server would take 60
        assert len(warned()) == 1
        asked = len(proxy.asked)
        check_call(function, 1024)
        assert len(proxy.asked) == asked
        assert len(warned()) == 1


def garbage(fake: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
    fake.body(handler, bytes(range(256)) * 40)


def half(fake: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"index": 0, "logprobs": {"top_logp')
    handler.close_connection = True


def nowhere(fake: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
    every = {f"token_id:{token}": "NaN" for token in body["allowed_token_ids"]}
    fake.json(handler, {"choices": [{"index": i, "logprobs": {"top_logprobs": [every]}} for i in range(-3, 99)]})


@pytest.mark.parametrize(
    ("path", "reply"),
    [("/v1/models", garbage), ("/tokenize", garbage), (ASKED, garbage), (ASKED, half), (ASKED, nowhere)],
)
def test_garbage_is_warned_of_once_and_the_result_is_right(
    server: Running, ask: Callable[..., None], warned: Callable[[], list[str]], path: str, reply: Reply,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with before(server) as proxy:
        ask(proxy.url)
        proxy.replies[path] = reply
        function = doubled()
        for number, size in enumerate((4096, 2048)):
            check_call(function, size)
            assert "language_model" not in speakers(shown(capsys, number))
        (warning,) = warned()
        assert warning.isprintable()
