"""How a language model is named in a setting, and which names stay on this machine; what a fitted model is called."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import InvalidInputError
from .digest import digest

FORMS = (
    "http://HOST:PORT, http://HOST:PORT/#MODEL, https://… in the same forms, vllm:MODEL, hf:MODEL, hf:MODEL@cpu, "
    "hf:MODEL@cuda:1"
)
"""The accepted names, for messages."""

_HOST = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]+:[0-9a-f:.]*")
_DEVICE = re.compile(r"cpu|cuda(?::\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name, taken apart: `runs` is `server`, `vllm` or `hf`; `url` belongs to a server, `device` to `hf`.

    `model` is empty where a server may choose, `device` where nothing was said of it.
    """

    runs: str
    model: str
    url: str = ""
    device: str = ""


def parse_model_name(text: str) -> ModelName:
    """Take a name apart.

    Raises:
        InvalidInputError: it is no name of a language model; says which forms are.
    """
    scheme, _, rest = text.partition(":")
    if any(c.isspace() or not c.isprintable() for c in text):
        raise _refused(text, "it has white space or control characters in it")
    if scheme in ("http", "https"):
        return _served(text)
    if scheme not in ("vllm", "hf"):
        raise _refused(text, "it starts like none of them")
    model, at, device = rest.rpartition("@")
    if scheme == "vllm" or not at or "/" in device:  # an @ in the name of a folder
        model, device = rest, ""
    elif not _DEVICE.fullmatch(device):
        raise _refused(text, f"{device!r} is no device")
    if not model:
        raise _refused(text, "it names no model")
    return ModelName(runs=scheme, model=model, device=device)


def is_language_model(text: str) -> bool:
    """Whether a surrogate's name is that of a language model.

    Raises:
        InvalidInputError: it starts like one and is none; says which forms are.
    """
    if text.partition(":")[0] not in ("http", "https", "vllm", "hf") or ":" not in text:
        return False
    parse_model_name(text)
    return True


def is_loopback(url: str) -> bool:
    """Whether a model's URL can lead to this machine only: 127.0.0.0/8, ::1 or localhost, written out.

    Raises:
        InvalidInputError: it is no URL of a model.
    """
    name = parse_model_name(url)
    if not name.url:
        raise _refused(url, "it is no URL")
    host = urlsplit(name.url).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name, or a number in a form that only some resolvers read
        return False
    return address in ipaddress.ip_network("127.0.0.0/8") or address == ipaddress.IPv6Address("::1")


def _served(text: str) -> ModelName:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as err:  # brackets that do not match, a port beyond 65535
        raise _refused(text, str(err)) from None
    if "@" in parts.netloc:
        raise _refused(text, "a user or a password in it is not accepted")
    if not _HOST.fullmatch(host):
        raise _refused(text, f"{host!r} is no host")
    if parts.path not in ("", "/") or parts.query:
        raise _refused(text, "nothing but #MODEL may follow the port")
    written = f"[{host}]" if ":" in host else host
    url = f"{parts.scheme}://{written}" + (f":{port}" if port is not None else "")
    return ModelName(runs="server", model=parts.fragment, url=url)


def _refused(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"{text!r} names no language model: {why}; accepted are {FORMS}")


_MODEL_VERSION = re.compile(r"[0-9]+-kernels-[0-9a-f]{8}")


def model_version(kernels: int, text: str) -> str:
    """What a fitted model is called: how many kernels taught it, and the digest of its file's text."""
    return f"{kernels}-kernels-{digest(text)[:8]}"


def is_model_version(text: str) -> bool:
    """Whether a text is what a fitted model is called; else it may be the path of one."""
    return _MODEL_VERSION.fullmatch(text) is not None
