"""Asking a server that misbehaves: an answer, a reason or an end in time, and nothing else."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, Reply, fake_server

from forecast_autotune.language.model import ModelError, Unanswered
from forecast_autotune.language.prompt import Prompt
from forecast_autotune.language.server import ServedModel

PROMPTS = [Prompt("shared ", f"own {i}\n# Forecast\nbin:") for i in range(3)]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


def opened(fake: FakeServer, model: str = "") -> ServedModel:
    served = ServedModel(fake.url, model=model)
    served.open(until=soon())
    return served


def asked(served: ServedModel, prompts: Sequence[Prompt] = PROMPTS, seconds: float = 10) -> dict[int, Any]:
    return dict(served.log_probabilities(prompts, until=soon(seconds)))


def says(status: int, body: bytes) -> Reply:
    return lambda fake, handler, _: fake.body(handler, body, status)


def drips(fake: FakeServer, handler: BaseHTTPRequestHandler, _: object) -> None:
    """A byte now and then: no single wait is long."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not fake.closed.wait(0.05):
        handler.wfile.write(b" ")


def drips_headers(fake: FakeServer, handler: BaseHTTPRequestHandler, _: object) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not fake.closed.wait(0.05):
        handler.wfile.write(b"x")


def silent(fake: FakeServer, handler: BaseHTTPRequestHandler, _: object) -> None:
    fake.closed.wait(60)
    handler.close_connection = True


def endless(fake: FakeServer, handler: BaseHTTPRequestHandler, _: object) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not fake.closed.is_set():
        handler.wfile.write(b"[" * 65536)


def breaks_off(_: FakeServer, handler: BaseHTTPRequestHandler, __: object) -> None:
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [')
    handler.close_connection = True


def test_each_prompt_gets_its_own_answer_whatever_their_order(fake: FakeServer) -> None:
    found = asked(opened(fake))
    assert found == {i: tuple(-float(n + i) for n in range(1, 9)) for i in range(3)}
    (request,) = fake.asks_of("/v1/completions")
    assert request["prompt"] == [p.text for p in PROMPTS]
    assert request["allowed_token_ids"] == request["logprob_token_ids"] == list(range(65, 73))
    assert request["temperature"] == 0


def test_many_prompts_are_asked_in_batches(fake: FakeServer) -> None:
    found = asked(opened(fake), PROMPTS * 30)
    assert sorted(found) == list(range(90))
    assert [len(r["prompt"]) for r in fake.asks_of("/v1/completions")] == [32, 32, 26]


def test_labels_follow_without_a_space_where_only_that_is_one_token(fake: FakeServer) -> None:
    fake.replies["/tokenize"] = lambda s, h, body: s.json(
        h, {"tokens": [ord(c) for c in body.get("prompt", "")], "max_model_len": 1000}
    )
    assert len(asked(opened(fake))) == 3
    (request,) = fake.asks_of("/v1/completions")
    assert request["allowed_token_ids"] == list(range(65, 73))


def test_a_label_that_is_several_tokens_is_named(fake: FakeServer) -> None:
    fake.replies["/tokenize"] = lambda s, h, body: s.json(
        h, {"tokens": [n for c in body["prompt"] for n in divmod(ord(c), 16)], "max_model_len": 1000}
    )
    with pytest.raises(ModelError, match=r"the model at http.*label 'A' is not one token"):
        opened(fake)


def test_the_named_model_is_asked_and_one_that_is_not_served_is_refused(fake: FakeServer) -> None:
    fake.replies["/v1/models"] = lambda s, h, _: s.json(h, {"data": [s.card, {**s.card, "id": "other"}]})
    asked(opened(fake, "other"))
    assert {r["model"] for path, r in fake.asked if r} == {"other"}
    with pytest.raises(ModelError, match="not served there; served are: fake, other"):
        opened(fake, "third")


def test_a_folder_on_this_machine_tells_a_retrained_model_apart(fake: FakeServer, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_text("1")
    fake.card["root"] = str(tmp_path)
    served = ServedModel(fake.url)
    first = served.open(until=soon())
    assert served.open(until=soon()) == first
    assert len(fake.asks_of("/tokenize")) == 10  # the second time nothing but the list of models is asked for
    os.utime(weights, ns=(0, 5))
    assert served.open(until=soon()).identity != first.identity
    fake.card["max_model_len"] = 500
    assert served.open(until=soon()).identity != first.identity


def test_an_adapter_is_identified_by_its_base_model_too(fake: FakeServer) -> None:
    changed = {"id": "changed", "root": "/adapter", "parent": "fake", "max_model_len": None}
    fake.replies["/v1/models"] = lambda s, h, _: s.json(h, {"data": [s.card, changed]})
    served = ServedModel(fake.url, model="changed")
    first = served.open(until=soon())
    fake.card["root"] = "/elsewhere"
    assert served.open(until=soon()).identity != first.identity


@pytest.mark.parametrize("reply", [drips, drips_headers, silent])
def test_a_server_that_takes_its_time_is_left_when_the_moment_comes(fake: FakeServer, reply: Reply) -> None:
    served = opened(fake)
    fake.replies["/v1/completions"] = fake.replies["/v1/chat/completions"] = reply
    began = time.monotonic()
    assert asked(served, seconds=0.3) == {}
    assert dict(served.texts(PROMPTS, schema={}, until=soon(0.3))) == {}
    fake.replies["/v1/models"] = reply
    with pytest.raises(ModelError, match="did not answer in time"):
        served.open(until=soon(0.3))
    assert time.monotonic() - began < 20


def test_what_came_before_the_moment_is_kept(fake: FakeServer) -> None:
    served = opened(fake)

    def then_slow(server: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
        if len(server.asks_of("/v1/completions")) > 1:
            server.closed.wait(60)
        server.json(handler, {"choices": server.choices(len(body["prompt"]))})

    fake.replies["/v1/completions"] = then_slow
    assert sorted(asked(served, PROMPTS * 30, seconds=2.0)) == list(range(32))


def test_an_iterator_that_is_closed_asks_nothing_more(fake: FakeServer) -> None:
    answering = opened(fake).log_probabilities(PROMPTS * 30, until=soon())
    next(answering)
    answering.close()  # type: ignore[attr-defined]
    opened(fake)  # by then, what is asked without us would have come
    assert len(fake.asks_of("/v1/completions")) == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (says(500, b'{"error": {"message": "engine \x1b[31m is\\n dead"}}'), r"HTTP 500: engine \[31m is dead"),
        (says(503, b"x" * 9_000), "HTTP 503: x{200}$"),
        (says(302, b""), r"redirect \(302\)"),
        (says(404, b"{}"), "HTTP 404"),
        (says(200, b"<html>hello</html>"), "what is no JSON: <html>hello"),
        (says(200, b"[" * 100_000), "what is no JSON"),
        (says(200, b"\xff\xfe\x00"), "what is no JSON"),
        (says(200, b""), "what is no JSON"),
        (endless, "more than 8 MiB"),
        (breaks_off, "cannot be asked: RemoteProtocolError"),
        (lambda _, h, __: h.wfile.write(b"hello\r\n\r\n"), "cannot be asked: RemoteProtocolError"),
    ],
)
def test_a_server_that_breaks_down_is_an_error_with_its_words(fake: FakeServer, reply: Reply, reason: str) -> None:
    served = opened(fake)
    fake.replies.update(dict.fromkeys(fake.replies, reply))
    for ask in (
        lambda: asked(served),
        lambda: list(served.texts(PROMPTS, schema={}, until=soon())),
        lambda: opened(fake),
    ):
        with pytest.raises(ModelError, match=reason) as raised:
            ask()
        assert str(raised.value).isprintable()


def test_no_redirect_is_followed(fake: FakeServer) -> None:
    def elsewhere(_: FakeServer, handler: BaseHTTPRequestHandler, __: object) -> None:
        handler.send_response(307)
        handler.send_header("Location", f"{fake.url}/stolen")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    served = opened(fake)
    fake.replies["/v1/completions"] = elsewhere
    with pytest.raises(ModelError, match="redirect"):
        asked(served)
    assert not fake.asks_of("/stolen")


def test_no_proxy_gets_the_sources(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert len(asked(opened(fake))) == 3


@pytest.mark.parametrize("value", [None, "1", True, [], math.nan, math.inf, 0.5])
def test_a_label_without_a_log_probability_leaves_its_prompt_unanswered(fake: FakeServer, value: object) -> None:
    def one_wrong(server: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
        choices = server.choices(len(body["prompt"]))
        choices[0]["logprobs"]["top_logprobs"][0]["token_id:68"] = value
        server.json(handler, {"choices": choices})

    fake.replies["/v1/completions"] = one_wrong
    found = asked(opened(fake))
    assert isinstance(found.pop(2), Unanswered)
    assert all(isinstance(answer, tuple) for answer in found.values())


@pytest.mark.parametrize("entries", [{}, {"token_id:65": -1.0}, {" A": -1.0, " B": -2.0}])
def test_missing_labels_leave_a_prompt_unanswered(fake: FakeServer, entries: dict[str, float]) -> None:
    choice = {"index": 1, "logprobs": {"top_logprobs": [entries]}}
    fake.replies["/v1/completions"] = lambda s, h, _: s.json(h, {"choices": [choice]})
    found = asked(opened(fake))
    assert sorted(found) == [0, 1, 2]
    assert "left this prompt out" in found[0].reason
    assert "None" in found[1].reason


@pytest.mark.parametrize(
    "said",
    [
        {"choices": [{"index": 0, "text": "A"}]},
        {"choices": [{"index": 0, "logprobs": None}]},
        {"choices": [{"index": 0, "logprobs": {"top_logprobs": []}}, {"index": 77}, {"index": "0"}, 5]},
        {"choices": [{"index": 0, "logprobs": {"top_logprobs": [None]}}]},
    ],
)
def test_a_server_without_log_probabilities_is_reported_as_such(fake: FakeServer, said: object) -> None:
    fake.replies["/v1/completions"] = lambda s, h, _: s.json(h, said)
    found = asked(opened(fake))
    assert "no log-probabilities" in found[0].reason
    assert "left this prompt out" in found[2].reason


@pytest.mark.parametrize("said", [[], None, 7, {"choices": 3}, {"choices": None}, {}, {"choices": {"index": 0}}])
def test_an_answer_of_another_form_leaves_all_prompts_unanswered(fake: FakeServer, said: object) -> None:
    fake.replies["/v1/completions"] = fake.replies["/v1/chat/completions"] = lambda s, h, _: s.json(h, said)
    served = opened(fake)
    assert all(isinstance(answer, Unanswered) for answer in asked(served).values())
    written = dict(served.texts(PROMPTS, schema={}, until=soon()))
    assert sorted(written) == [0, 1, 2]
    assert all(isinstance(answer, Unanswered) for answer in written.values())


def test_one_refused_prompt_does_not_cost_the_others_their_answers(fake: FakeServer) -> None:
    def picky(server: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
        if any("own 1" in text for text in body["prompt"]):
            server.json(handler, {"error": {"message": "maximum context length is 10 tokens"}}, 400)
        else:
            server.json(handler, {"choices": server.choices(len(body["prompt"]))})

    fake.replies["/v1/completions"] = picky
    found = asked(opened(fake))
    assert "maximum context length is 10 tokens" in found.pop(1).reason
    assert sorted(found) == [0, 2]
    assert all(isinstance(answer, tuple) for answer in found.values())


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_that_cannot_tokenize_is_reported_as_no_vllm_server(fake: FakeServer, status: int) -> None:
    fake.replies["/tokenize"] = says(status, b'{"detail": "Not Found"}')
    with pytest.raises(ModelError, match="has no /tokenize: this is no vLLM server"):
        opened(fake)


@pytest.mark.parametrize(
    "said", [{}, [], {"tokens": "abc", "max_model_len": 5}, {"tokens": [1], "max_model_len": None}]
)
def test_tokens_of_another_form_are_reported_as_of_no_vllm_server(fake: FakeServer, said: object) -> None:
    fake.replies["/tokenize"] = lambda s, h, _: s.json(h, said)
    with pytest.raises(ModelError, match="no vLLM server"):
        opened(fake)


@pytest.mark.parametrize("said", [{}, [], {"data": 5}, {"data": [5]}, {"data": [{}]}, {"data": []}, {"data": None}])
def test_a_list_of_models_of_another_form_is_an_error(fake: FakeServer, said: object) -> None:
    fake.replies["/v1/models"] = lambda s, h, _: s.json(h, said)
    with pytest.raises(ModelError, match=r"lists no models|served are: none"):
        opened(fake)


def test_nobody_at_the_url_is_an_error(fake: FakeServer) -> None:
    for url in ("http://127.0.0.1:9", "http://name.invalid:8000", "http://a..b:1", f"http://{'a' * 70}.b:1"):
        with pytest.raises(ModelError, match=f"{re.escape(url)} cannot be asked"):
            ServedModel(url).open(until=soon())


def test_texts_hold_a_chat_model_to_the_schema(fake: FakeServer) -> None:
    served = opened(fake)
    assert dict(served.texts(PROMPTS, schema={"type": "object"}, until=soon())) == dict.fromkeys(range(3), "said")
    for request in fake.asks_of("/v1/chat/completions"):
        assert request["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert request["messages"][0]["content"] in {p.text for p in PROMPTS}


def test_a_model_without_a_form_for_chats_is_asked_to_go_on(fake: FakeServer) -> None:
    fake.replies["/tokenize"] = lambda s, h, body: (
        s.json(h, {"error": "no chat template"}, 400) if "messages" in body else s.tokenize(h, body)
    )
    served = opened(fake)
    fake.replies["/v1/completions"] = lambda s, h, body: s.json(h, {"choices": [{"text": f"after {body['prompt']}"}]})
    written = dict(served.texts(PROMPTS, schema={}, until=soon()))
    assert written == {i: f"after {p.text}".replace("\n", " ") for i, p in enumerate(PROMPTS)}


def test_a_refused_text_leaves_the_others_theirs(fake: FakeServer) -> None:
    served = opened(fake)
    fake.replies["/v1/chat/completions"] = lambda s, h, body: (
        s.json(h, {"message": "too long"}, 400)
        if "own 2" in json.dumps(body)
        else s.json(h, {"choices": [{"message": {"content": "{}"}}]})
    )
    written = dict(served.texts(PROMPTS, schema={}, until=soon()))
    assert "too long" in written.pop(2).reason  # type: ignore[union-attr]
    assert written == {0: "{}", 1: "{}"}


@pytest.mark.parametrize(
    ("choice", "usage", "reason", "tokens"),
    [
        ({"finish_reason": "length", "message": {"content": None}}, 5_000, "finish_reason length", 5_000),
        ({"finish_reason": "stop", "message": {"content": " \n"}}, 7, "finish_reason stop", 100),
        ({"message": {}}, 5_000, "the server answers {'choices': [{'message': {}}]", 5_000),
    ],
)
def test_what_an_answer_without_text_used_is_told(
    fake: FakeServer, choice: object, usage: int, reason: str, tokens: int
) -> None:
    fake.replies["/v1/chat/completions"] = lambda s, h, _: s.json(
        h, {"choices": [choice], "usage": {"total_tokens": usage}}
    )
    ((_, answer),) = ServedModel(fake.url).written(["p" * 800], until=soon(), most_tokens=9)
    assert isinstance(answer.text, Unanswered)
    assert answer.text.reason.startswith(reason)
    assert answer.tokens == tokens


def test_an_error_without_text_is_told_by_its_cause() -> None:
    import httpx

    try:
        raise httpx.ReadError("") from ConnectionResetError("reset by peer")
    except httpx.ReadError as err:
        told = str(ModelError.of("it cannot be asked", err))
    assert told == "it cannot be asked: ReadError: reset by peer"
    assert str(ModelError.of("it cannot be asked", TimeoutError())) == "it cannot be asked: TimeoutError"


def test_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from forecast_autotune.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'forecast-autotune\[server\]'"):
        ServedModel("http://127.0.0.1:9").open(until=soon())


def test_asking_what_was_never_opened_is_an_error() -> None:
    with pytest.raises(ModelError, match="is not open"):
        asked(ServedModel("http://127.0.0.1:9"))


def test_an_interrupt_ends_the_asking_at_once(fake: FakeServer) -> None:
    served = opened(fake)

    def interrupts(server: FakeServer, handler: BaseHTTPRequestHandler, body: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        silent(server, handler, body)

    fake.replies["/v1/completions"] = interrupts
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asked(served, seconds=60)
    assert time.monotonic() - began < 30


def test_a_program_with_an_event_loop_can_ask(fake: FakeServer) -> None:
    async def program() -> dict[int, Any]:
        return asked(opened(fake))

    assert len(asyncio.run(program())) == 3
