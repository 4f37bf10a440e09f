"""Configs of the fused mixture-of-experts kernels of vLLM and SGLang.

A file stands for a layer on a device, and has a row for each batch size. Names and rows are as their readers ask for them
(vLLM 0.33.0, `fused_moe.get_moe_configs`; SGLang 0.5.23, `fused_moe_triton_config.get_moe_configs`): experts E, and N, the
width of the second product's input. The hidden size K is in no name, so that layers of several may ask for one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ...core.config import Config
from ...core.digest import Value
from ...core.hardware import Hardware
from ...core.job import Job
from ...core.text import shown
from ...core.workload import Workload
from ...errors import InvalidInputError
from ..encoding import Json
from .base import (
    VARIANT,
    ConfigFile,
    Export,
    ImportedFiles,
    Tuned,
    Where,
    checked_knobs,
    dtypes_of,
    function_of,
    own_knobs,
    parts_of,
    read_object,
)

BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Rows that the programs' own tuners write; 288 of the 330 that vLLM 0.33.0 ships have exactly these."""

ROW = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
"""Knobs that every row sets."""

WHERE = ("M", "E", "N", "K", "dtype", "block_shape", "per_channel_quant", "down", "device_name")
"""What may be stated of keys."""

MAX_ROWS = 4096

# Where a key of one's own may name them; `w2` is the second product's weights [E, K, N], as both programs call it.
_PARTS = {
    "M": ("M", "num_tokens", "hidden_states_0"),
    "E": ("E", "num_experts", "w2_0"),
    "N": ("N", "w2_2"),
    "K": ("K", "hidden_size", "w2_1"),
}
_KERNEL = "fused_moe_kernel"
_KERNEL_PARTS = ("b_ptr_0", "b_ptr_1", "b_ptr_2", "c_ptr_0", "c_ptr_1", "top_k")
_QUANTIZED = ("fp8_w8a8", "fp8_w8a16", "int8_w8a8", "int8_w8a16", "int4_w4a16")
_NAME = re.compile(
    r"E=\d{1,9},N=\d{1,9},device_name=[^,/\\]{0,128}(,dtype=\w{1,32})?(,block_shape=\[\d{1,6}, ?\d{1,6}\])?"
    r"(,per_channel_quant=True)?(_down)?\.json"
)
_FOLDER = re.compile(r"triton_\d{1,4}(_\w{1,16}){0,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a row was tuned for; all but `tokens` and `hidden` is in the file's name."""

    tokens: int
    experts: int
    width: int
    hidden: int
    dtype: str = ""
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    packed: bool = False  # `width` is that of a tensor of bytes, each of which holds two numbers
    down: bool = False  # the second product alone, which SGLang may run under a config of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedMoe:
    """The config files of one of the two programs."""

    name: str
    use: str
    extra: frozenset[str]  # knobs that a row may set beside those it must
    by_triton: bool  # whether files lie in a folder for each version of Triton
    file_name: Callable[[Layer, str], str]
    where: tuple[str, ...] = WHERE

    def export(self, tuned: Iterable[Tuned], where: Where) -> Export:
        """A file for each layer and device, with all of `BATCH_SIZES`: the rows not measured hold the default's config.

        A lookup takes the row that is nearest, so that a missing one would be ruled by another's winner.

        Raises:
            InvalidInputError: layers of several hidden sizes ask for one file.
        """
        export = Export()
        members: dict[PurePosixPath, list[tuple[Layer, Tuned]]] = {}
        for one in tuned:
            workload = one.tuning_key.workload
            try:
                self._row(one.decision.config)
                _refuse_other_variants(one)
                layer = layer_of(workload, where)
                path = self._path(
                    layer, one.tuning_key.hardware, one.tuning_key.toolchain.versions.get("triton", ""), where
                )
            except InvalidInputError as err:
                export.leave_out(f"{workload.program.name}: {err}")
                continue
            members.setdefault(path, []).append((layer, one))
        for path, rows in sorted(members.items()):
            hidden = sorted({layer.hidden for layer, _ in rows})
            if len(hidden) > 1:
                raise InvalidInputError(
                    f"{path.name} would hold rows tuned for K={' and K='.join(map(str, hidden))}, and its name tells no K: "
                    f"choose one with --where K={hidden[0]}"
                )
            self._add_file(export, path, rows)
        return export

    def _add_file(self, export: Export, path: PurePosixPath, rows: list[tuple[Layer, Tuned]]) -> None:
        """Make a file of the decisions for one name, the newest first; all of one Triton."""
        triton = rows[0][1].tuning_key.toolchain.versions.get("triton", "")
        measured: dict[int, Json] = {}
        defaults: dict[int, Json] = {}
        for layer, one in rows:
            if one.tuning_key.toolchain.versions.get("triton", "") != triton:
                export.leave_out(
                    f"{one.tuning_key.workload.program.name}: a newer decision for {path.name} has Triton {triton}"
                )
            elif layer.tokens in measured:
                export.leave_out(f"{one.tuning_key.workload.program.name}: a newer decision has its row of {path.name}")
            else:
                measured[layer.tokens] = self._row(one.decision.config)
                if one.default is not None:
                    defaults[layer.tokens] = self._row(one.default)
        if not defaults:
            for _ in measured:
                export.leave_out(f"{path.name}: the default's config is not known any more, its outcomes were removed")
            return
        content: Json = {} if self.by_triton or not triton else {"triton_version": triton}
        for tokens in sorted({*BATCH_SIZES, *measured}):
            content[str(tokens)] = measured.get(tokens) or defaults[_nearest(defaults, tokens)]
        shown_rows = ", ".join(map(str, sorted(measured)))
        rest = len(content) - len(measured) - ("triton_version" in content)
        note = f"measured for {shown_rows} tokens (K={rows[0][0].hidden}), the default's config for {rest} other batch sizes"
        export.files.append(ConfigFile(path=path, content=content, note=note))

    def _row(self, config: Config) -> Json:
        """A config as a row of a file.

        Raises:
            InvalidInputError: the program's kernel would not take its knobs.
        """
        if missing := [name for name in ROW if name not in config.knobs]:
            raise InvalidInputError(f"its configs set no {', '.join(missing)}, which {self.name}'s kernel needs")
        row: Json = {name: config[name] for name in ROW}
        for name, value in own_knobs(config).items():
            if name in row or (name == "SPLIT_K" and value in (None, 1)):  # the only one there is by now
                continue
            if name not in self.extra:
                raise InvalidInputError(f"its configs set {name}={value}, which {self.name}'s kernel does not take")
            if value is not None:
                row[name] = value
        return row

    def _path(self, layer: Layer, hardware: Hardware, triton: str, where: Where) -> PurePosixPath:
        if layer.down and not self.by_triton:
            raise InvalidInputError("it is of the second product alone, and vllm's files hold one config for both")
        name = self.file_name(layer, where.text("device_name") or hardware.name)
        if _NAME.fullmatch(name) is None:
            raise InvalidInputError(f"the device's name {shown(hardware.name)} makes no file name: state device_name")
        if not self.by_triton:
            return PurePosixPath(name)
        folder = f"triton_{triton.replace('.', '_')}"
        if _FOLDER.fullmatch(folder) is None:
            raise InvalidInputError(f"its Triton is {shown(triton)}, and sglang keeps files by Triton's version")
        return PurePosixPath("configs", folder, name)

    def parse(self, path: Path) -> tuple[PurePosixPath, Json] | None:
        """See `ConfigFormat`."""
        if _NAME.fullmatch(path.name) is None:
            return None
        rows: Json = {}
        for tokens, row in read_object(path).items():
            if tokens == "triton_version":
                continue
            if not re.fullmatch(r"[1-9]\d{0,8}", tokens):
                raise InvalidInputError(f"{path} has the row {shown(tokens)}: rows are batch sizes")
            knobs = checked_knobs(row, f"{path}, row {tokens},")
            if missing := [name for name in ROW[:4] if name not in knobs]:  # 36 rows that SGLang ships have these alone
                raise InvalidInputError(f"{path}, row {tokens}, sets no {', '.join(missing)}")
            rows[tokens] = knobs
        if not rows or len(rows) > MAX_ROWS:
            raise InvalidInputError(f"{path} has {len(rows)} rows: a config file has 1 to {MAX_ROWS}")
        folder = path.absolute().parent.name
        inside = (folder,) if self.by_triton and _FOLDER.fullmatch(folder) else ()
        return PurePosixPath(*inside, path.name.replace(", ", ",")), rows

    def suggest(self, job: Job, kept: ImportedFiles) -> list[tuple[str, Mapping[str, Value]]]:
        """The row that the program's own lookup would take."""
        if not set(ROW[:4]) <= set(job.space.default.knobs):
            return []
        try:
            layer = layer_of(job.workload, Where())
        except InvalidInputError:
            return []
        name = self.file_name(layer, job.hardware.name).replace(", ", ",")
        triton = f"triton_{job.toolchain.versions.get('triton', '').replace('.', '_')}"
        folders = sorted(kept.folders(), key=_version, reverse=True)
        for folder in sorted(folders, key=lambda folder: folder != triton):  # its own Triton's, then the newest
            if rows := kept.read(f"{folder}/{name}"):
                return [_suggestion(f"{folder}/{name}", rows, layer.tokens)]
        rows = kept.read(name)
        return [_suggestion(name, rows, layer.tokens)] if rows else []


def layer_of(workload: Workload, where: Where) -> Layer:
    """The layer that a key stands for.

    Keys of one's own name M, E, N and K, or the tensors `hidden_states` and `w2`. Those of the programs' own
    `fused_moe_kernel` are read as one of a layer's two products. What a key does not say, `where` states.

    Raises:
        InvalidInputError: something is neither said nor stated.
    """
    parts = parts_of(workload)
    product = _product_of(workload, parts, where)

    def numbered(name: str) -> int:
        def in_key() -> object:
            return product[name] if product else next((parts[p] for p in _PARTS[name] if p in parts), None)

        return where.number(name, parts, in_key)

    dtype = _dtype_of(workload, parts, where)
    return Layer(
        tokens=numbered("M"),
        experts=numbered("E"),
        width=numbered("N"),
        hidden=numbered("K"),
        dtype=dtype,
        packed=dtype == "int4_w4a16" and product is None and "N" not in parts and "w2_2" in parts,
        block_shape=_block_shape_of(parts, where),
        per_channel_quant=_is_said("per_channel_quant", where, parts.get("per_channel_quant")),
        down=bool(product and product["down"]) or _is_said("down", where, parts.get("down")),
    )


def _product_of(workload: Workload, parts: Mapping[str, object], where: Where) -> dict[str, int] | None:
    """Of a call of the programs' own kernel: sizes of the layer of which it is one product.

    The first product, [M, K] by [E, 2 N, K], hands each token to `top_k` experts; the second, [M top_k, N] by [E, K, N],
    hands each row to one. Both write [M, top_k, ...].
    """
    if function_of(workload) != _KERNEL or not all(type(parts.get(name)) is int for name in _KERNEL_PARTS):
        return None
    experts, rows, columns, tokens, choices, top_k = (int(str(parts[name])) for name in _KERNEL_PARTS)
    stated = where.text("down")
    if stated is None and choices == 1:
        raise InvalidInputError(
            "with one expert a token its two products look alike: state --where down=0 for the first, down=1 for the second"
        )
    down = top_k == 1 if stated is None else _is_said("down", where, None)
    width, hidden = (columns, rows) if down else (rows // 2, columns)
    return {"M": tokens, "E": experts, "N": width, "K": hidden, "down": down}


def _dtype_of(workload: Workload, parts: Mapping[str, object], where: Where) -> str:
    """What a file's name says of types: nothing of 16-bit floats, `float32`, or a way of quantizing."""
    stated = where.text("dtype")
    said = stated if stated is not None else parts.get("dtype")
    if said is None:
        said = next((name for name in _QUANTIZED if parts.get(f"use_{name}") is True), None)
    if isinstance(said, str):
        said = said.removeprefix("torch.")
        if said in ("none", "", "bfloat16", "float16"):
            return ""
        if not re.fullmatch(r"[a-z0-9_]{1,32}", said):
            raise InvalidInputError(f"dtype {shown(said)}: accepted are none, float32, {', '.join(_QUANTIZED)}")
        return said
    dtypes = dtypes_of(workload)
    if narrow := [dtype for dtype in dtypes if dtype.startswith(("float8", "int8", "uint8", "float4"))]:
        raise InvalidInputError(
            f"its tensors are {narrow[0]}, and how they are quantized is in the file's name: state --where dtype="
            f"{_QUANTIZED[0]}, or {', '.join(_QUANTIZED[1:])}"
        )
    floats = {dtype for dtype in dtypes if "float" in dtype}
    return "float32" if floats == {"float32"} else ""


def _block_shape_of(parts: Mapping[str, object], where: Where) -> tuple[int, int] | None:
    stated = where.text("block_shape")
    if stated is not None:
        found = re.fullmatch(r"\[?\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\]?", stated)
        if found is None:
            raise InvalidInputError(f"--where block_shape={stated}: accepted is two numbers, as in 128,128")
        shape: list[object] = [int(found[1]), int(found[2])]
    else:
        given = parts.get("block_shape")
        shape = given if isinstance(given, list) else [parts.get("group_n"), parts.get("group_k")]
    if len(shape) != 2 or not all(type(extent) is int and extent > 0 for extent in shape):
        return None
    return int(str(shape[0])), int(str(shape[1]))


def _is_said(name: str, where: Where, in_key: object) -> bool:
    stated = where.text(name)
    if stated is None:
        return in_key is True
    if stated not in ("0", "1"):
        raise InvalidInputError(f"--where {name}={stated}: accepted are 0 and 1")
    return stated == "1"


def _vllm_name(layer: Layer, device: str) -> str:
    device = re.sub(r"[\s/]+", "_", device)
    if "H200" in device.split("_"):  # all of that family read one file
        device = "NVIDIA_H200"
    if layer.packed:  # its lookup counts the numbers
        layer = replace(layer, width=2 * layer.width)
    return f"{_sizes_and(layer, device)}{_blocks(layer, ',')}.json"


def _sglang_name(layer: Layer, device: str) -> str:
    per_channel = ",per_channel_quant=True" if layer.per_channel_quant else ""
    down = "_down" if layer.down else ""
    return f"{_sizes_and(layer, device.replace(' ', '_'))}{_blocks(layer, ', ')}{per_channel}{down}.json"


def _sizes_and(layer: Layer, device: str) -> str:
    dtype = f",dtype={layer.dtype}" if layer.dtype else ""
    return f"E={layer.experts},N={layer.width},device_name={device}{dtype}"


def _blocks(layer: Layer, between: str) -> str:
    return f",block_shape=[{between.join(map(str, layer.block_shape))}]" if layer.block_shape else ""


def _refuse_other_variants(one: Tuned) -> None:
    chosen = one.decision.config.knobs.get(VARIANT)
    if one.default is not None and chosen != (default := one.default.knobs.get(VARIANT)):
        raise InvalidInputError(f"the variant {chosen} won, and files are for the default's, {default}")


def _suggestion(name: str, rows: Mapping[str, object], tokens: int) -> tuple[str, Mapping[str, Value]]:
    nearest = _nearest({int(known): None for known in rows}, tokens)
    knobs = checked_knobs(rows[str(nearest)], f"{name}, row {nearest},")
    return f"{name}, row {nearest},", {knob: value for knob, value in knobs.items() if knob != "SPLIT_K"}


def _nearest(rows: Mapping[int, object], tokens: int) -> int:
    """The row that both programs look up: of two equally near, the first."""
    return min(rows, key=lambda known: abs(known - tokens))


def _version(folder: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder))


_ROCM = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")

VLLM = FusedMoe(
    name="vllm",
    use="VLLM_TUNED_CONFIG_FOLDER={folder}",
    extra=frozenset((*_ROCM, "num_ctas", "grf_mode")),
    by_triton=False,
    file_name=_vllm_name,
)
SGLANG = FusedMoe(
    name="sglang",
    use="SGLANG_MOE_CONFIG_DIR={folder}",
    extra=frozenset((*_ROCM, "num_ctas", "USE_TMA")),
    by_triton=True,
    file_name=_sglang_name,
)
