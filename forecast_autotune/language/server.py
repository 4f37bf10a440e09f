"""A language model behind a URL, served by vLLM."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import MissingExtraError
from .folders import state_of
from .labels import as_json, label_tokens, of_labels
from .model import ANSWER_TOKENS, SAMPLING, ModelBusyError, ModelError, ModelFacts, Unanswered
from .prompt import Prompt

MAX_BYTES = 8 * 2**20  # of a response; 32 answers take 40 kB
BATCH = 32  # prompts in a request for log-probabilities
WRITERS = 16  # requests for texts under way at once
WRITING = 0.9  # temperature of a program that is asked for: several from one prompt are to differ
CHARACTERS_A_TOKEN = 8  # at most, of source text: what a server says that it used is not believed below that
REQUEST = (400, 413, 422)  # statuses that speak of the prompt; all others do of the server
BUSY = (408, 425, 429, *range(500, 600))  # statuses of a server that may answer when it is asked again

T = TypeVar("T")
Answers = list[tuple[int, Any]]


class ServedModel:
    """Ask a vLLM server by the protocol of OpenAI and vLLM's own `/tokenize`.

    Each call holds connections of its own and closes them as it ends: nothing is asked any more when it has. No proxy is
    used, and no redirect followed: sources go to the named host or nowhere.

    Args:
        url: scheme, host and port.
        model: which of the served models or adapters; the first if not given.
    """

    def __init__(self, url: str, *, model: str = "") -> None:
        self.name = f"{model or 'the model'} at {url}"
        self._url, self._model = url, model
        self._known: _ServedModel | None = None

    def open(self, *, until: float) -> ModelFacts:
        """Ask which models are served, and learn how to ask the chosen one. See `LanguageModel.open`."""
        with self._line() as line:
            model, identity = _chosen(
                line.call(until, lambda: line.json("GET", "/v1/models")), self._model, self.name, self._url
            )
            if self._known is None or self._known.facts.identity != identity:
                self._known = _learned(line, model, identity, until)
        return self._known.facts

    def log_probabilities(
        self, prompts: Sequence[Prompt], *, until: float
    ) -> Iterator[tuple[int, tuple[float, ...] | Unanswered]]:
        """Ask for all prompts, `BATCH` in a request. See `LanguageModel.log_probabilities`."""
        known = self._opened()
        positions = range(len(prompts))

        async def ask(line: _Line, batch: Sequence[int], answers: Answers) -> None:
            status, body = await line.request("POST", "/v1/completions", {
                "model": known.model,
                "prompt": [prompts[i].text for i in batch],
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": 0,
                "allowed_token_ids": known.labels,
                "logprob_token_ids": known.labels,
                "return_tokens_as_token_ids": True,
            })  # fmt: skip
            if status in REQUEST and len(batch) > 1:
                for i in batch:  # one of them is at fault, but it is not said which
                    await ask(line, [i], answers)
            elif status in REQUEST:
                answers.append((batch[0], Unanswered(f"{self._url} refuses the prompt: {_message(body)}")))
            else:
                answer = line.parsed(status, body)
                answers += zip(batch, _shares(answer, len(batch), known.labels), strict=True)

        batches = [positions[start : start + BATCH] for start in range(0, len(prompts), BATCH)]
        yield from self._each(batches, 1, ask, until)

    def texts(
        self, prompts: Sequence[Prompt], *, schema: dict[str, object], until: float, sampled: bool = False
    ) -> Iterator[tuple[int, str | Unanswered]]:
        """Ask for all answers, `WRITERS` requests at a time. See `LanguageModel.texts`."""
        known = self._opened()

        async def ask(line: _Line, position: int, answers: Answers) -> None:
            text = prompts[position].text
            asked: dict[str, object] = {
                "model": known.model,
                "max_tokens": min(ANSWER_TOKENS, known.facts.context // 2),
                **({"temperature": SAMPLING, "seed": 0} if sampled else {"temperature": 0}),
                "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            }
            if known.chats:
                path = "/v1/chat/completions"
                asked["messages"] = [{"role": "user", "content": text}]
                asked["chat_template_kwargs"] = {"enable_thinking": False}  # "reasoning" is the place for it
            else:
                path = "/v1/completions"
                asked["prompt"] = text
            status, body = await line.request("POST", path, asked)
            if status in REQUEST:
                answers.append((position, Unanswered(f"{self._url} refuses the prompt: {_message(body)}")))
            else:
                answers.append((position, _text(line.parsed(status, body))))

        yield from self._each(range(len(prompts)), WRITERS, ask, until)

    def written(
        self, prompts: Sequence[str], *, until: float, most_tokens: int
    ) -> Iterator[tuple[int, WrittenAnswer | ModelError]]:
        """Ask for programs: free texts, drawn and not the likeliest. Any server of OpenAI's protocol will do.

        An error of one request is given in place of its answer: a server that limits requests answers the others.

        Args:
            prompts: one message each.
            until: by `time.monotonic`; what is not there by then is not waited for.
            most_tokens: of one answer.
        Raises:
            ModelError: it does not say which models are served, or not the wanted one; nothing was asked.
        """
        with self._line() as line:
            listed = line.call(until, lambda: line.json("GET", "/v1/models"))
        model, _ = _chosen(listed, self._model, self.name, self._url)

        async def ask(line: _Line, position: int, answers: Answers) -> None:
            try:
                status, body = await line.request("POST", "/v1/chat/completions", {
                    "model": model,
                    "messages": [{"role": "user", "content": prompts[position]}],
                    "max_tokens": most_tokens,
                    "temperature": WRITING,
                })  # fmt: skip
                if status in REQUEST:
                    refusal = Unanswered(f"{self._url} refuses the prompt: {_message(body)}")
                    answers.append((position, WrittenAnswer(refusal, tokens=0)))
                else:
                    answers.append((position, _written(line.parsed(status, body), prompts[position])))
            except ModelError as err:
                answers.append((position, err))

        yield from self._each(range(len(prompts)), WRITERS, ask, until)

    def close(self) -> None:
        """Forget what was learned of the server; connections are closed with each call."""
        self._known = None

    def _opened(self) -> _ServedModel:
        if self._known is None:
            raise ModelError(f"{self.name} is not open")
        return self._known

    def _each(
        self,
        items: Sequence[T],
        at_once: int,
        ask: Callable[[_Line, T, Answers], Awaitable[None]],
        until: float,
    ) -> Iterator[tuple[int, Any]]:
        """Ask for all items, so many at once, and tell what each of them found."""
        with self._line() as line:
            for start in range(0, len(items), at_once):
                answers: Answers = []
                trouble = line.together([(ask, item) for item in items[start : start + at_once]], answers, until)
                yield from answers
                if trouble is not None:
                    raise trouble
                if time.monotonic() >= until:
                    return

    @contextmanager
    def _line(self) -> Iterator[_Line]:
        try:
            import httpx
            from anyio.from_thread import start_blocking_portal
        except ImportError as err:
            raise MissingExtraError(
                f"{self.name} needs httpx, which cannot be imported ({err}): pip install 'forecast-autotune[server]'"
            ) from err
        with start_blocking_portal() as portal:
            client = httpx.AsyncClient(
                base_url=self._url,
                verify=self._url.startswith("https:"),  # reading the certificates takes 0.1 s
                trust_env=False,  # no proxy of the environment, no password of ~/.netrc
                follow_redirects=False,
                timeout=None,  # noqa: S113  # each call has a deadline of its own, as a whole
                headers={"accept-encoding": "identity"},  # what is small packed may be large
            )
            with portal.wrap_async_context_manager(client):
                yield _Line(client=client, portal=portal, name=self.name)


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """What a model wrote, or why there is no text, and the tokens that it read and wrote: thoughts are among them."""

    text: str | Unanswered
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServedModel:
    """What was learned of a served model: its name there, a token for each label, whether it has a form for chats."""

    model: str
    labels: list[int]
    chats: bool
    facts: ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Connections to a server, and the event loop in a thread beside that they live in."""

    client: Any
    portal: Any
    name: str

    def call(self, until: float, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to one question, or a ModelError when there is none in time."""
        import anyio

        async def asking() -> T:
            with anyio.fail_after(until - time.monotonic()):
                return await ask()

        try:
            answer: T = self.portal.call(asking)
        except TimeoutError:
            raise ModelBusyError(f"{self.name} did not answer in time") from None
        return answer

    def together(
        self, asked: Sequence[tuple[Callable[[_Line, T, Answers], Awaitable[None]], T]], answers: Answers, until: float
    ) -> ModelError | None:
        """Ask all at once until the moment has come or something breaks, which is returned; what was found stays."""
        import anyio

        trouble: list[ModelError] = []

        async def one(ask: Callable[[_Line, T, Answers], Awaitable[None]], item: T, scope: Any) -> None:
            try:
                await ask(self, item, answers)
            except ModelError as err:
                trouble.append(err)
                scope.cancel()

        async def asking() -> None:
            with anyio.move_on_after(until - time.monotonic()) as scope:
                async with anyio.create_task_group() as group:
                    for ask, item in asked:
                        group.start_soon(one, ask, item, scope)

        self.portal.call(asking)
        return trouble[0] if trouble else None

    async def json(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        return self.parsed(*await self.request(method, path, body))

    async def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, bytes]:
        """Status and body of a response."""
        import httpx

        read = bytearray()
        try:
            async with self.client.stream(method, path, json=body) as response:
                async for part in response.aiter_raw():
                    read += part
                    if len(read) > MAX_BYTES:
                        raise ModelError(f"{self.name} sent more than {MAX_BYTES >> 20} MiB in answer to {path}")
                return response.status_code, bytes(read)
        except (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError, OSError) as err:
            raise ModelBusyError.of(f"{self.name} cannot be asked", err) from err
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as err:
            raise ModelError.of(f"{self.name} cannot be asked", err) from err

    def parsed(self, status: int, body: bytes) -> Any:
        """The JSON of a body that came with a good status."""
        if 300 <= status < 400:
            raise ModelError(
                f"{self.name} answers with a redirect ({status}), which is not followed: name the place itself"
            )
        if status != 200:
            error = ModelBusyError if status in BUSY else ModelError
            raise error(f"{self.name} answers with HTTP {status}: {_message(body)}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise ModelError(f"{self.name} answers with what is no JSON: {_message(body)}") from None


def _chosen(listed: Any, wanted: str, name: str, url: str) -> tuple[str, str]:
    """Which of the models that a server lists is to be asked, and what it may be told apart by.

    That is the state of its folder where it is one of this machine; else its name, and where it is served.
    """
    try:
        cards = {str(card["id"]): card for card in listed["data"]}
    except (TypeError, KeyError):
        raise ModelError(f"{name} lists no models at /v1/models: this is no vLLM server") from None
    if not cards or (wanted and wanted not in cards):
        raise ModelError(f"{name} is not served there; served are: {_clean(', '.join(cards)) or 'none'}")
    model = wanted or next(iter(cards))
    parts = []
    of = cards.get(str(cards[model].get("parent")), {})
    for card in (cards[model], of):
        facts = [str(card.get(key)) for key in ("id", "root", "max_model_len")]
        parts += [*facts, state_of(facts[1]) or url] if card else []
    return model, " ".join(parts)


def _learned(line: _Line, model: str, identity: str, until: float) -> _ServedModel:
    """What else must be known of a model before it is asked."""
    tokenized: dict[str, Any] = {}

    def tokens_of(text: str) -> list[int]:
        status, body = line.call(until, lambda: line.request("POST", "/tokenize", {"model": model, "prompt": text}))
        if status in (404, 405, 501):
            raise ModelError(f"{line.name} has no /tokenize: this is no vLLM server, and none other can be asked")
        tokenized.update(_tokenized(line.parsed(status, body), line.name))
        tokens: list[int] = tokenized["tokens"]
        return tokens

    labels = label_tokens(tokens_of, line.name)
    chat = {"model": model, "messages": [{"role": "user", "content": "?"}]}
    status, _ = line.call(until, lambda: line.request("POST", "/tokenize", chat))
    facts = ModelFacts(identity=identity, context=tokenized["max_model_len"])
    return _ServedModel(model=model, labels=list(labels), chats=status == 200, facts=facts)


def _tokenized(answer: Any, name: str) -> dict[str, Any]:
    match answer:
        case {"tokens": [*tokens], "max_model_len": int(context)} if (
            all(type(t) is int for t in tokens) and context > 0
        ):
            return {"tokens": tokens, "max_model_len": context}
    raise ModelError(f"{name} answers /tokenize with {_clean(repr(answer))}: this is no vLLM server")


def _shares(answer: Any, prompts: int, labels: Sequence[int]) -> list[tuple[float, ...] | Unanswered]:
    """Of each prompt of a request, the labels' log-probabilities."""
    shares: list[tuple[float, ...] | Unanswered] = [
        Unanswered("the server left this prompt out of its answer")
    ] * prompts
    match answer:
        case {"choices": [*choices]}:
            pass
        case _:
            choices = []
    for choice in choices:
        match choice:
            case {"index": int(i), "logprobs": {"top_logprobs": [{**entries}, *_]}} if 0 <= i < prompts:
                shares[i] = of_labels({token: entries.get(f"token_id:{token}") for token in labels}, labels)
            case {"index": int(i)} if 0 <= i < prompts:
                shares[i] = Unanswered("the server gives no log-probabilities")
    return shares


def _text(answer: Any) -> str | Unanswered:
    """What a model wrote, of either form of answer."""
    match answer:
        case {"choices": [{"message": {"content": str(text)}}, *_]} | {"choices": [{"text": str(text)}, *_]}:
            return as_json(text)
    return Unanswered(f"the server gives no text: {_clean(repr(answer))}")


def _written(answer: Any, prompt: str) -> WrittenAnswer:
    """A free text with its tokens. A model that thinks until it may write no more has spent tokens on no text."""
    written: str | Unanswered
    match answer:
        case {"choices": [{"message": {"content": str(text)}}, *_]} if text.strip():
            written = text
        case {"choices": [{"finish_reason": str(finished)}, *_]}:
            written = Unanswered(f"finish_reason {_clean(finished)}")
        case _:
            written = Unanswered(f"the server answers {_clean(repr(answer))}")
    tokens = (len(prompt) + (len(written) if isinstance(written, str) else 0)) // CHARACTERS_A_TOKEN
    match answer:
        case {"usage": {"total_tokens": int(told)}} if told > tokens:
            tokens = told
    return WrittenAnswer(written, tokens)


def _message(body: bytes) -> str:
    """What a server says of an error, fit for a line of a log."""
    text = body[:10_000].decode(errors="replace")
    try:
        parsed = json.loads(text, strict=False)
        text = str(parsed.get("error", parsed).get("message", text))
    except (ValueError, RecursionError, AttributeError):
        pass
    return _clean(text)


def _clean(text: str) -> str:
    """At most 200 characters, none of which commands a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:2_000]).split())[:200]
