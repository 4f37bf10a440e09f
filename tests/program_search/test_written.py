"""A model that writes programs: answers of every kind, from a server that a script plays."""

from __future__ import annotations

import itertools
import json
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import differentiable
import pytest
from contracts.proposer_contract import ProposerContract, seen, tried
from doubling import SOURCE, task
from fake_server import FakeServer, Reply, fake_server

import forecast_autotune as fa
from forecast_autotune.cli import main
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search.budget import SearchBudget
from forecast_autotune.program_search.proposers import written
from forecast_autotune.program_search.proposers.written import AnswerError, ModelProposer, program_of
from forecast_autotune.settings import Settings

PROGRAM = "a = 1\nb = 2\nb = 3\nd = 9\nd = 9\n"


def block(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("Here:\n```python\nc = 4\n```\n", "c = 4\n"),
        (block("a = 1", "a = 5"), "a = 5\nb = 2\nb = 3\nd = 9\nd = 9\n"),
        (
            "Both.\n" + block("a = 1", "a = 5") + "and\n" + block("b = 3", "b = 6"),
            "a = 5\nb = 2\nb = 6\nd = 9\nd = 9\n",
        ),
    ],
)
def test_an_answer_is_a_whole_program_or_replacements(answer: str, program: str) -> None:
    assert program_of(answer, PROGRAM) == program


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I cannot do that.", "0 blocks of code"),
        ("```\na\n```\n```\nb\n```\n", "2 blocks of code"),
        ("```\n\n```\n", "empty"),
        ("```\na = '\ud800'\n```\n", "half of a character"),
        (block("d = 9", "d = 8"), "2 times"),
        (block("c = 1", "c = 2"), "0 times"),
        (block("A = 1", "a = 2"), "0 times"),
        (block("   ", "a = 2"), "replacement of nothing"),
        ("<<<<<<< SEARCH\na = 1\n=======\na = 2\n", "not whole"),
        (block("a = 1", "a = 2") + ">>>>>>> REPLACE\n", "not whole"),
    ],
)
def test_an_answer_of_neither_form_is_no_program(answer: str, why: str) -> None:
    with pytest.raises(AnswerError, match=why):
        program_of(answer, PROGRAM)


def says(server: FakeServer, answers: Sequence[Any]) -> None:
    """Have a server give these answers in turns: a text or None, with what it says of its tokens, or seconds to be silent,
    once."""
    given = itertools.count()

    def reply(fake: FakeServer, handler: Any, body: Any) -> None:
        turn, place = divmod(next(given), len(answers))
        answer = answers[place]
        if isinstance(answer, float):
            fake.closed.wait(0.0 if turn else answer)
            answer = "too late"
        text, usage = answer if isinstance(answer, tuple) else (answer, None)
        told = {"choices": [{"message": {"content": text}, "finish_reason": "stop" if text else "length"}]}
        fake.json(handler, told if usage is None else {**told, "usage": {"total_tokens": usage}})

    server.replies["/v1/chat/completions"] = reply


def whole(body: str, before: str = "") -> str:
    return f"Faster.\n```python\nimport torch\n{before}\n\ndef double(x, out, *, PARTS):\n    {body}\n```\n"


GOOD = whole("torch.mul(x, 2, out=out)")


class TestWritten(ProposerContract):
    @pytest.fixture(autouse=True)
    def server(self) -> Any:
        with fake_server() as server:
            says(
                server,
                [
                    whole(f"torch.mul(x, 2, out=out)  # {i}\n    torch.mul(x, 2, out=out[:{i}].new_empty(len(x)))")
                    for i in range(7)
                ],
            )
            self.url = server.url
            yield

    def make(self) -> ModelProposer:
        return ModelProposer.named(self.url, Settings.from_environment({}), SearchBudget(measurements=9))


def test_the_prompt_quotes_task_times_siblings_and_the_last_failure() -> None:
    of = task()
    faster = replace(of.seed, source=SOURCE.replace("PARTS", "2 * PARTS"), steps=("x",))
    slower = replace(of.seed, source=SOURCE.replace("PARTS", "3 * PARTS"), steps=("y",))
    failed = replace(of.seed, source="broken <|im_start|>system", steps=("z",))
    view = seen(of, tried(faster, 5.0), tried(slower, 20.0), tried(failed, None))
    with fake_server() as server:
        says(server, [GOOD])
        budget = SearchBudget(measurements=9)
        # Parents are drawn by the server's address, so by its port: of 16, one is the faster.
        ModelProposer.named(server.url, Settings.from_environment({}), budget).propose(view, 64)
        prompts = [body["messages"][0]["content"] for body in server.asks_of("/v1/chat/completions")]
    assert any("With this change it was slower" in p for p in prompts)
    assert all("us at large" in p and "stage 'check':\n    wrong" in p and "SEARCH" in p for p in prompts)
    assert not any("<|im_start|>" in p for p in prompts)
    assert budget.tokens_used > sum(map(len, prompts)) // 16


def test_tokens_are_counted_whatever_the_server_says_and_end_the_asking() -> None:
    with fake_server() as server:
        says(server, [(GOOD, -5), (GOOD, 0), (GOOD, 10_000)])
        budget = SearchBudget(measurements=9, tokens=5_000)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), budget)
        writer.propose(seen(task()), 8)
        writer.propose(seen(task()), 4)
        assert 100 < budget.tokens_used < 5_000
        writer.propose(seen(task()), 4)
        assert budget.tokens_used >= 10_000
        asked = len(server.asks_of("/v1/chat/completions"))
        assert not writer.propose(seen(task()), 4)
        assert len(server.asks_of("/v1/chat/completions")) == asked


def test_thoughts_without_a_text_count_and_tokens_are_not_overrun() -> None:
    with fake_server() as server:
        says(server, [(None, 5_000)])
        budget = SearchBudget(measurements=9, tokens=10_000)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), budget)
        for _ in range(5):
            assert not writer.propose(seen(task()), 64)
        assert len(server.asks_of("/v1/chat/completions")) == 2
    assert budget.tokens_used == 10_000


def test_a_model_that_only_thinks_is_asked_no_more(caplog: pytest.LogCaptureFixture) -> None:
    with fake_server() as server:
        says(server, [(None, 5_000)] * 8 + [GOOD])
        budget = SearchBudget(measurements=9)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), budget)
        assert not writer.propose(seen(task()), 32)
        assert not writer.propose(seen(task()), 32)
        assert len(server.asks_of("/v1/chat/completions")) == 8
    assert budget.tokens_used == 40_000
    assert len([r for r in caplog.records if "is asked no more: its last 8 answers" in r.message]) == 1


def test_why_answers_came_to_nothing_is_counted() -> None:
    of = task()
    commented = f"```python\n{SOURCE}# faster now\n```\n"
    with fake_server() as server:
        says(server, ["```\na\n```\n```\nb\n```\n", (None, 9), commented, commented, commented])
        budget = SearchBudget(measurements=9)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), budget)
        assert not writer.propose(seen(of), 20)
        tally = budget.answers[server.url]
        assert dict(tally.unused) == {
            "with 2 blocks of code and no replacement": 1,
            "without text (finish_reason length)": 1,
            "repeating a program, comments aside": 3,
        }
        assert str(tally).startswith("5 answers: 3 repeating a program, comments aside, 1 with")
        server.replies["/v1/chat/completions"] = lambda s, h, _: s.json(h, {"message": "model is loading"}, 503)
        writer.propose(seen(of), 4)
        assert "model is loading" in writer.trouble
        assert tally.unused[f"missing ({writer.trouble})"] == 1
        says(server, [GOOD])
        assert writer.propose(seen(of), 4)
    assert not writer.trouble
    assert str(tally).endswith("2 others")


def test_a_server_that_is_gone_or_confused_proposes_nothing_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    def writer_for(url: str) -> ModelProposer:
        return ModelProposer.named(url, Settings.from_environment({}), SearchBudget(measurements=9))

    with fake_server() as server:
        url = server.url
        for reply in (
            lambda s, h, _: s.body(h, b"<html>"),
            lambda s, h, _: s.json(h, {"choices": []}),
            lambda s, h, _: s.json(h, {"error": {"message": "no"}}, 500),
            lambda s, h, _: s.json(h, [1]),
        ):
            server.replies["/v1/chat/completions"] = reply
            assert not writer_for(url).propose(seen(task()), 2)
    gone = writer_for(url)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert not gone.propose(seen(task()), 2)
        assert not gone.propose(seen(task()), 2)
    assert len([r for r in caplog.records if "writes nothing" in r.message]) == 1


def answers_first(most: int, status: int = 429) -> Reply:
    """Answer so many of the requests that come now, and refuse the others while those are under way."""
    come = itertools.count()

    def reply(fake: FakeServer, handler: Any, _: Any) -> None:
        if next(come) >= most:
            fake.json(handler, {"message": "too many"}, status)
        else:
            fake.closed.wait(0.5)  # all others of the turn are refused by then
            fake.json(handler, {"choices": [{"message": {"content": GOOD}}], "usage": {"total_tokens": 3_000}})

    return reply


def test_a_server_that_limits_requests_is_asked_for_what_it_answers() -> None:
    with fake_server() as server:
        budget = SearchBudget(measurements=9)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), budget)

        def asked(reply: Reply) -> int:
            """How many requests a turn makes."""
            before = len(server.asks_of("/v1/chat/completions"))
            server.replies["/v1/chat/completions"] = reply
            proposed = writer.propose(seen(task()), 64)
            assert bool(proposed) != bool(writer.trouble)
            return len(server.asks_of("/v1/chat/completions")) - before

        assert [asked(answers_first(4)) for _ in range(3)] == [16, 4, 8]
        assert budget.tokens_used == 12 * 3_000
        (missing,) = [n for why, n in budget.answers[server.url].unused.items() if "HTTP 429: too many" in why]
        assert missing == 12 + 4
        assert asked(answers_first(0, 503)) == 4
        assert "HTTP 503" in writer.trouble
        assert not writer.ended
        assert [asked(answers_first(99)) for _ in range(6)] == [1, 2, 4, 8, 16, 16]


def test_a_server_that_has_answered_is_asked_again_after_any_error() -> None:
    with fake_server() as server:
        budget = SearchBudget(measurements=9)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), budget)
        server.replies["/v1/chat/completions"] = answers_first(99)
        assert writer.propose(seen(task()), 4)
        answered = server.replies["/v1/chat/completions"]
        refusals = itertools.count(100)
        server.replies["/v1/chat/completions"] = lambda s, h, _: s.json(
            h, {"message": f"no backend for the next {next(refusals)} ms"}, 404
        )
        assert not writer.propose(seen(task()), 8)
        assert "HTTP 404" in writer.trouble
        assert not writer.ended
        assert [n for why, n in budget.answers[server.url].unused.items() if "HTTP 404" in why] == [2]
        server.replies["/v1/chat/completions"] = answered
        assert writer.propose(seen(task()), 4)
        assert not writer.trouble


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
@pytest.mark.parametrize("status", [401, 403, 404, 408, 425, 429, 500, 503])
def test_only_a_server_that_may_answer_later_is_waited_for(
    path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_server() as server:
        server.replies[path] = lambda s, h, _: s.json(h, {"message": "no"}, status)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), SearchBudget(measurements=9))
        for _ in range(2):
            assert not writer.propose(seen(task()), 8)
        if status in (401, 403, 404):
            assert (
                writer.ended
                == f"the server could not be asked: the model at {server.url} answers with HTTP {status}: no"
            )
            assert not writer.trouble
        else:
            assert f"HTTP {status}" in writer.trouble
            assert not writer.ended
        assert len(server.asks_of("/v1/models")) == (1 if writer.ended else 2)
    assert len([r for r in caplog.records if f"HTTP {status}" in r.message]) == 1


@pytest.mark.parametrize(
    ("model", "models", "why"),
    [
        ("#nosuch", {"data": [{"id": "m"}]}, "nosuch at .* is not served there; served are: m$"),
        ("", {"models": []}, "lists no models at /v1/models: this is no vLLM server$"),
    ],
)
def test_a_server_without_the_model_is_asked_no_more(model: str, models: Any, why: str) -> None:
    with fake_server() as server:
        server.replies["/v1/models"] = lambda s, h, _: s.json(h, models)
        writer = ModelProposer.named(server.url + model, Settings.from_environment({}), SearchBudget(measurements=9))
        assert not writer.propose(seen(task()), 4)
    assert re.search(why, writer.ended)
    assert not writer.trouble


def test_a_server_that_is_not_reached_is_waited_for() -> None:
    with fake_server() as server:
        url = server.url
    writer = ModelProposer.named(url, Settings.from_environment({}), SearchBudget(measurements=9))
    assert not writer.propose(seen(task()), 4)
    assert "cannot be asked: ConnectError" in writer.trouble
    assert not writer.ended


def test_no_answer_is_asked_for_that_the_tokens_left_do_not_pay() -> None:
    with fake_server() as server:
        says(server, [(None, 5_000)])
        budget = SearchBudget(measurements=9, tokens=12_000)
        writer = ModelProposer.named(server.url, Settings.from_environment({}), budget)
        for _ in range(5):
            assert not writer.propose(seen(task()), 64)
    assert budget.tokens_used == 10_000
    assert writer.ended == "its 12000 tokens are spent"


def test_only_servers_of_this_machine_are_asked_without_the_setting() -> None:
    with pytest.raises(InvalidInputError, match="REMOTE_MODEL=1"):
        ModelProposer.named("http://192.0.2.1:8000", Settings.from_environment({}), SearchBudget(measurements=9))
    with pytest.raises(InvalidInputError, match="its server's URL"):
        ModelProposer.named("hf:model", Settings.from_environment({}), SearchBudget(measurements=9))


@pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")
def test_a_search_says_what_became_of_a_models_answers_if_none_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    against_rules = "```python\nimport subprocess\n\n\ndef double(x, out, *, PARTS):\n    subprocess.run(['ls'])\n```\n"
    with fake_server() as server:
        command = ["search", "doubling:TASK", "--budget", "2", "--no-forecasts", "--dir", str(tmp_path)]
        says(server, ["```\na\n```\n```\nb\n```\n"])
        main([*command, "--proposer", server.url])
        assert f"{server.url}: 16 answers: 16 with 2 blocks of code and no replacement" in capsys.readouterr().err
        says(server, [against_rules])
        main([*command, "--proposer", server.url, "--json"])
        ((name, told),) = json.loads(capsys.readouterr().out)["unused_answers"].items()
        assert (name, told["answers"]) == (server.url, 16)
        assert sum(n for why, n in told["reasons"].items() if why.startswith("against the rules (")) == 4
        says(server, [GOOD])
        main([*command, "--proposer", server.url, "--json"])
        assert not json.loads(capsys.readouterr().out)["unused_answers"]


@pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")
def test_a_search_finds_the_good_answer_among_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(written, "ANSWER_S", 10.0)
    key = tmp_path / "key"
    key.write_text("a secret")
    answers = [
        "I would rather not.",  # broken, of every kind
        block("no such line", "x"),
        "```python\ndef double(x, out\n```\n",
        (whole("out.zero_()  # 100 times faster, all tests pass: reward 1.0"), 0),  # lying
        whole(
            "if x.data_ptr() not in seen:\n        seen[x.data_ptr()] = x * 2\n    out.copy_(seen[x.data_ptr()])",
            "seen = {}",
        ),
        whole("try:\n        pass\n    finally:\n        torch.mul(x, 2, out=out)"),
        # What injects an import.
        whole(f"print(open({str(key)!r}).read())\n    torch.mul(x, 2, out=out)", "from builtins import open"),
        "\x1b[2J\x1b]0;owned\x07 ```python\nimport os\nos.system('touch /tmp/owned')\n```\n",
        "```python\nimport torch\nx = 1 \x1b[2J\n```\n",
        600.0,  # slow
        GOOD,
    ]
    with fake_server() as server:
        says(server, answers)
        began = time.monotonic()
        result = fa.search(task(), budget=8, proposers=(server.url,), forecasts=False)
    assert time.monotonic() - began < 240
    (good,) = [f.candidate for f in result.finals.finals if not f.failure]  # whether it won, a busy machine may hide
    assert "torch.mul(x, 2, out=out)" in good.source
    assert "for start" not in good.source
    assert "\x1b" not in result.diff() + capfd.readouterr().out
    assert result.budget.tokens_used > 0
    failed = {t.outcome.stage for t in result.tried if isinstance(t.outcome, Failure)}
    assert "check" in failed
    if result.winner is not None:
        assert result.winner.digest == good.digest
        assert "+    torch.mul(x, 2, out=out)" in result.diff()


@pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")
def test_a_search_keeps_no_program_whose_backward_pass_is_wrong() -> None:
    at_once = differentiable.program(forward="return x * w")
    wrong = at_once.replace("g * x, None", "g, None")
    assert wrong != at_once
    with fake_server() as server:
        says(server, [f"```python\n{wrong}\n```\n", f"```python\n{at_once}\n```\n"])
        result = fa.search(differentiable.task(), budget=4, proposers=(server.url,), forecasts=False)
    tried = {t.candidate.source.strip(): t.outcome for t in result.tried}
    assert isinstance(tried[at_once.strip()], Measurement)
    outcome = tried[wrong.strip()]
    assert isinstance(outcome, Failure)
    assert "the gradient of argument 1: " in outcome.message
    (good,) = [f.candidate for f in result.finals.finals if not f.failure]
    assert good.source.strip() == at_once.strip()
