"""Names of language models: which are accepted, which stay on this machine, and what they become."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forecast_autotune.core.model_names import ModelName, is_language_model, is_loopback, parse_model_name
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.language.in_transformers import TransformersModel
from forecast_autotune.language.in_vllm import VllmModel
from forecast_autotune.language.named import named
from forecast_autotune.language.server import ServedModel


@pytest.mark.parametrize(
    ("text", "runs", "model", "url", "device"),
    [
        ("http://127.0.0.1:8000", "server", "", "http://127.0.0.1:8000", ""),
        ("http://localhost:8000/", "server", "", "http://localhost:8000", ""),
        ("https://models.example.org:443/#org/name-1", "server", "org/name-1", "https://models.example.org:443", ""),
        ("http://gpu-box#adapter", "server", "adapter", "http://gpu-box", ""),
        ("http://[::1]:8000/#m", "server", "m", "http://[::1]:8000", ""),
        ("vllm:Qwen/Qwen3-0.6B", "vllm", "Qwen/Qwen3-0.6B", "", ""),
        ("vllm:/models/a@b", "vllm", "/models/a@b", "", ""),
        ("hf:/models/tiny", "hf", "/models/tiny", "", ""),
        ("hf:Qwen/Qwen3-0.6B@cpu", "hf", "Qwen/Qwen3-0.6B", "", "cpu"),
        ("hf:tiny@cuda:1", "hf", "tiny", "", "cuda:1"),
        ("hf:/me@home/tiny", "hf", "/me@home/tiny", "", ""),
        ("hf:/me@home/tiny@cuda", "hf", "/me@home/tiny", "", "cuda"),
    ],
)
def test_a_name_is_taken_apart(text: str, runs: str, model: str, url: str, device: str) -> None:
    assert is_language_model(text)
    assert parse_model_name(text) == ModelName(runs=runs, model=model, url=url, device=device)
    kinds = {"server": ServedModel, "vllm": VllmModel, "hf": TransformersModel}
    assert isinstance(named(text), kinds[runs])


@pytest.mark.parametrize(
    "text",
    [
        "http:",
        "http://",
        "http:///#m",
        "http://:8000",
        "http://host:port",
        "http://host:70000",
        "http://user@127.0.0.1:8000",
        "http://user:secret@host:8000",
        "http://127.0.0.1@evil.example:8000",
        "http://127.0.0.1\\@evil.example",
        "http://127.0.0.1\\.evil.example",
        "http://host:8000/v1",
        "http://host:8000/?x=1",
        "http://ho st:8000",
        "http://host:8000/#m\n",
        "http://[::1",
        "https://%31:1",
        "vllm:",
        "hf:",
        "hf:@cpu",
        "hf:tiny@gpu",
        "hf:tiny@cuda:x",
        "hf:tiny\t",
    ],
)
def test_a_bad_name_is_refused_with_the_accepted_forms(text: str) -> None:
    for ask in (named, parse_model_name, is_language_model):
        with pytest.raises(InvalidInputError, match="accepted are http://HOST:PORT, ") as raised:
            ask(text)
        assert repr(text) in str(raised.value)


@pytest.mark.parametrize("text", ["", "auto", "learned", "ftp://host", "vllm", "httpx", "C:/models/tiny"])
def test_other_surrogates_are_no_language_models(text: str) -> None:
    assert not is_language_model(text)
    with pytest.raises(InvalidInputError):
        named(text)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000", "http://127.8.9.10:1/#m", "https://[::1]:8000", "http://localhost", "http://LocalHost:1"],
)
def test_this_machine_is_loopback(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://128.0.0.1:8000",
        "http://0.0.0.0:8000",
        "http://10.0.0.1",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "http://localhost6",
        "http://127.1",
        "http://2130706433",
        "http://0x7f.0.0.1",
        "http://0177.0.0.1",
        "http://[::]:8000",
        "http://[::ffff:127.0.0.1]:8000",
        "http://[fe80::1]:8000",
        "https://models.example.org",
    ],
)
def test_nothing_else_is_loopback(url: str) -> None:
    assert not is_loopback(url)


@pytest.mark.parametrize(
    "url", ["http://localhost@evil.example", "http://evil.example#@localhost:1 ", "vllm:x", "localhost"]
)
def test_a_disguised_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError):
        is_loopback(url)


def test_a_fragment_does_not_make_another_machine_this_one() -> None:
    assert not is_loopback("http://evil.example/#@localhost")
    assert not is_loopback("http://evil.example/#http://127.0.0.1")


def test_naming_a_model_imports_nothing_heavy() -> None:
    program = (
        "import sys; from forecast_autotune.language.named import named;"
        "[named(t) for t in ('http://localhost:1', 'vllm:m', 'hf:m')];"
        "print(sorted({'torch', 'numpy', 'httpx', 'anyio', 'transformers', 'vllm', 'jinja2'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
