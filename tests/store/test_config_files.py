"""Config files of other programs: written from decisions, taken in, and what a job makes of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import TOOLCHAIN, a_job
from deadline import DeadlineError, deadline_in
from moe import DEFAULT, H100, SPACE, UNSET, config, keep, layer_job

from forecast_autotune.cli._parsing import FORMATS as NAMES
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError, StoreWarning
from forecast_autotune.store.config_files import FLA, FORMATS, SGLANG, VLLM, imported
from forecast_autotune.store.config_files.base import Export, Tuned, Where, dtypes_of, write
from forecast_autotune.store.config_files.fused_moe import BATCH_SIZES, Layer, layer_of
from forecast_autotune.store.config_files.imported import (
    FOLDER,
    count_imported,
    import_files,
    remove_imported,
    suggested,
)
from forecast_autotune.store.queries import StoreFile

MIXTRAL = "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3"


def exported(folder: Path, known: Any = VLLM, where: Sequence[str] = (), **filters: Any) -> Export:
    return known.export(StoreFile(folder).each_tuned(**filters), Where(where, known.where))


KERNEL = Space([Config({"BLOCK": b, "num_warps": w, "num_stages": 2, **UNSET}) for b in (64, 128, 256) for w in (2, 4)])


def kernel_job(**key: object) -> Job:
    """A job of a Triton kernel."""
    return a_job(name="fla.ops.chunk.chunk_kernel", key=key, space=KERNEL)


def files_of(export: Export) -> dict[str, Any]:
    return {str(file.path): file.content for file in export.files}


def why(export: Export) -> str:
    (reason,) = export.left_out
    return reason


def test_the_command_knows_every_format() -> None:
    assert tuple(FORMATS) == NAMES


# Writing ----------------------------------------------------------------------------------------------------------------


def test_rows_that_were_not_measured_hold_the_defaults_config(tmp_path: Path) -> None:
    keep(tmp_path, layer_job({"M": 64}), SPACE[3])
    keep(tmp_path, layer_job({"M": 100}), SPACE[5])
    ((name, content),) = files_of(exported(tmp_path)).items()
    assert name == f"{MIXTRAL}.json"
    assert content.pop("triton_version") == "3.9.0"
    assert [int(tokens) for tokens in content] == sorted({*BATCH_SIZES, 100})
    assert content["64"] == {**DEFAULT, "BLOCK_SIZE_M": 32, "num_warps": 8}
    assert content["100"] == {**DEFAULT, "BLOCK_SIZE_M": 64, "num_warps": 8}
    assert [tokens for tokens, row in content.items() if row != DEFAULT] == ["64", "100"]


def test_a_row_not_measured_holds_the_default_of_the_nearest_that_was(tmp_path: Path) -> None:
    other = Space([SPACE[4], SPACE[0]])
    keep(tmp_path, layer_job({"M": 8}), SPACE[1])
    keep(tmp_path, layer_job({"M": 4096}, space=other), SPACE[0])
    ((_, content),) = files_of(exported(tmp_path)).items()
    assert content["16"]["BLOCK_SIZE_M"] == 16
    assert content["3072"]["BLOCK_SIZE_M"] == 64
    assert content["4096"]["BLOCK_SIZE_M"] == 16


def test_layers_of_two_hidden_sizes_share_no_file(tmp_path: Path) -> None:
    keep(tmp_path, layer_job({"M": 1}), SPACE[3])
    keep(tmp_path, layer_job({"M": 64, "K": 2048}), SPACE[5])
    with pytest.raises(InvalidInputError, match=r"tuned for K=2048 and K=4096, .* choose one with --where K=2048"):
        exported(tmp_path)
    export = exported(tmp_path, where=["K=4096"])
    ((_, content),) = files_of(export).items()
    assert (content["1"]["BLOCK_SIZE_M"], content["64"]["BLOCK_SIZE_M"]) == (32, 16)
    assert why(export) == "moe: it was tuned for another K than 4096"


def test_sglang_keeps_a_folder_for_each_triton_and_vllm_the_newest(tmp_path: Path) -> None:
    older = Toolchain(versions={**TOOLCHAIN.versions, "triton": "3.6.0"})
    keep(tmp_path, layer_job(toolchain=older), SPACE[3], decided_at=1e9)
    keep(tmp_path, layer_job(), SPACE[5], decided_at=2e9)
    by_triton = files_of(exported(tmp_path, SGLANG))
    assert set(by_triton) == {f"configs/triton_{v}/{MIXTRAL}.json" for v in ("3_6_0", "3_9_0")}
    assert all(tokens.isdigit() for content in by_triton.values() for tokens in content), (
        "it reads every key as a number"
    )
    export = exported(tmp_path)
    assert files_of(export)[f"{MIXTRAL}.json"]["1"]["BLOCK_SIZE_M"] == 64
    assert why(export) == f"moe: a newer decision for {MIXTRAL}.json has Triton 3.9.0"


@pytest.mark.parametrize(
    ("dtypes", "where", "ending"),
    [
        ({"x": "torch.float16"}, [], ""),
        ({"x": "torch.float32", "i": "torch.int64"}, [], ",dtype=float32"),
        ({"x": "torch.bfloat16", "w": "torch.float8_e4m3fn"}, ["dtype=fp8_w8a8"], ",dtype=fp8_w8a8"),
        ({"w": "torch.int8"}, ["dtype=int8_w8a16", "block_shape=128,64"], ",dtype=int8_w8a16,block_shape=[128,64]"),
        ({"w": "torch.int8"}, ["dtype=none"], ""),
    ],
)
def test_a_name_says_how_a_layer_is_quantized(
    tmp_path: Path, dtypes: dict[str, str], where: list[str], ending: str
) -> None:
    keep(tmp_path, layer_job({"dtypes": dtypes}))
    assert list(files_of(exported(tmp_path, where=where))) == [f"{MIXTRAL}{ending}.json"]
    if where and "none" not in where[0]:
        assert "how they are quantized is in the file's name: state --where dtype=" in why(exported(tmp_path))


def test_sglang_writes_block_shapes_and_channels_its_own_way(tmp_path: Path) -> None:
    keep(tmp_path, layer_job({"dtype": "fp8_w8a8", "block_shape": [128, 128], "per_channel_quant": True}))
    (name,) = files_of(exported(tmp_path, SGLANG))
    assert name.endswith(",dtype=fp8_w8a8,block_shape=[128, 128],per_channel_quant=True.json")
    (name,) = files_of(exported(tmp_path, VLLM))
    assert name.endswith(",dtype=fp8_w8a8,block_shape=[128,128].json")


def test_what_a_key_says_under_other_names_can_be_stated(tmp_path: Path) -> None:
    keep(tmp_path, layer_job({"M": None, "N": None, "E": None, "tokens": 24, "two_n": 28672}))
    assert why(exported(tmp_path)).startswith(
        "moe: its key says no M: state it with --where M=NUMBER, or M=PART of K, tokens"
    )
    ((name, content),) = files_of(exported(tmp_path, where=["M=tokens", "N=two_n/2", "E=8"])).items()
    assert name == f"{MIXTRAL}.json"
    assert content["24"]["num_warps"] == 8
    for statement, complaint in (
        ("N=two_n/3", "not a multiple of 3"),
        ("N=width", "its key has no such part"),
        ("N=²", "its key has no such part"),
        ("N=0", "a positive whole number"),
    ):
        assert complaint in why(exported(tmp_path, where=["M=tokens", "E=8", statement]))
    with pytest.raises(InvalidInputError, match="accepted is NAME=VALUE with M, E, N, K, dtype"):
        exported(tmp_path, where=["H=8"])


def test_a_constexpr_named_dtype_is_no_tensors() -> None:
    key = {"given constexprs": {"dtype": "fp32"}, "dtypes": {"x_ptr": "torch.float16"}}
    assert dtypes_of(kernel_job(**key).workload) == ["float16"]


def test_a_key_of_the_layers_tensors_says_all(tmp_path: Path) -> None:
    def tensor(*shape: int) -> dict[str, object]:
        return {"dtype": "bfloat16", "shape": list(shape), "stride": [1] * len(shape)}

    tensors = {"hidden_states": tensor(48, 4096), "w1": tensor(8, 28672, 4096), "w2": tensor(8, 4096, 14336)}
    keep(tmp_path, a_job(name="fused_experts", key=tensors, space=SPACE, hardware=H100))
    ((name, content),) = files_of(exported(tmp_path)).items()
    assert name == f"{MIXTRAL}.json"
    assert content["48"]["num_warps"] == 8


@pytest.mark.parametrize(("program", "width"), [(VLLM, 14336), (SGLANG, 7168)])
def test_vllm_counts_the_numbers_of_packed_weights(tmp_path: Path, program: Any, width: int) -> None:
    def tensor(dtype: str, *shape: int) -> dict[str, object]:
        return {"dtype": dtype, "shape": list(shape), "stride": [1] * len(shape)}

    tensors = {"hidden_states": tensor("bfloat16", 48, 4096), "w2": tensor("uint8", 8, 4096, 7168)}
    keep(tmp_path, a_job(name="fused_experts", key=tensors, space=SPACE, hardware=H100))
    (name,) = files_of(exported(tmp_path, program, where=["dtype=int4_w4a16"]))
    assert f"E=8,N={width},device_name=NVIDIA_H100_80GB_HBM3,dtype=int4_w4a16.json" in name


@pytest.mark.parametrize(
    ("device", "name"),
    [("NVIDIA H200 NVL", "NVIDIA_H200"), ("AMD Instinct MI300X", "AMD_Instinct_MI300X"), ("A/B  C", "A_B_C")],
)
def test_vllm_names_devices_its_own_way(tmp_path: Path, device: str, name: str) -> None:
    keep(tmp_path, layer_job(hardware=replace(H100, name=device)))
    assert list(files_of(exported(tmp_path))) == [f"E=8,N=14336,device_name={name}.json"]
    assert list(files_of(exported(tmp_path, where=["device_name=NVIDIA X"]))) == [
        "E=8,N=14336,device_name=NVIDIA_X.json"
    ]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"knob": 3}, "its configs set knob=3, which vllm's kernel does not take"),
        ({"USE_TMA": True}, "its configs set USE_TMA=True"),
        ({"ir_override": "x.ttir"}, "its configs set ir_override"),
        ({"maxnreg": 128}, "its configs set maxnreg=128"),
    ],
)
def test_a_config_that_the_programs_kernel_refuses_is_left_out(
    tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    space = Space([config(**changed), config(**changed, BLOCK_SIZE_M=32)])
    keep(tmp_path, layer_job(space=space))
    export = exported(tmp_path)
    assert export.files == []
    assert complaint in why(export)


def test_knobs_that_the_kernels_take_are_written(tmp_path: Path) -> None:
    space = Space([config(SPLIT_K=1, waves_per_eu=2, num_ctas=n) for n in (1, 2)])
    keep(tmp_path, layer_job(space=space))
    ((_, content),) = files_of(exported(tmp_path)).items()
    assert content["1"] == {**DEFAULT, "waves_per_eu": 2, "num_ctas": 2}
    assert content["2"] == {**DEFAULT, "waves_per_eu": 2}


def test_forecasts_and_rehearsals_are_in_no_file(tmp_path: Path) -> None:
    keep(tmp_path, layer_job(hardware=replace(H100, kind="stub", name="rehearsed NVIDIA H100")))
    keep(tmp_path, layer_job({"M": 8}), basis="default")
    export = exported(tmp_path)
    assert (export.files, export.left_out) == ([], {})


def test_a_decision_whose_default_is_forgotten_fills_no_other_row(tmp_path: Path) -> None:
    job = layer_job()
    keep(tmp_path, job)
    with StoreFileWithout(tmp_path) as connection:
        connection.execute("DELETE FROM outcome")
    assert "the default's config is not known any more" in why(exported(tmp_path))


class StoreFileWithout:
    """A store's database, to take something out of it."""

    def __init__(self, folder: Path) -> None:
        import sqlite3

        self.connection = sqlite3.connect(folder / "store.sqlite3")

    def __enter__(self) -> Any:
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.commit()
        self.connection.close()


def test_a_file_of_fla_has_an_entry_for_each_key(tmp_path: Path) -> None:
    for n in (64, 128):
        keep(tmp_path, kernel_job(n=n, causal=True, dtypes={"x": "torch.bfloat16"}))
    ((name, content),) = files_of(exported(tmp_path, FLA)).items()
    assert name == "chunk_kernel.json"
    assert [entry["autotune_key"] for entry in content["autotune_entries"].values()] in (
        [[64, True, "torch.bfloat16"], [128, True, "torch.bfloat16"]],
        [[128, True, "torch.bfloat16"], [64, True, "torch.bfloat16"]],
    )
    config_of = {"kwargs": {"BLOCK": 64}, "num_warps": 4, "num_stages": 2, **UNSET}
    assert all(entry["config"] == config_of for entry in content["autotune_entries"].values())
    assert "default_config" not in content, "no config was measured for all keys"


def test_fla_gets_the_configs_of_one_device(tmp_path: Path) -> None:
    keep(tmp_path, a_job())
    keep(tmp_path, a_job(hardware=H100))
    with pytest.raises(
        InvalidInputError, match=r"NVIDIA H100 80GB HBM3 .* and NVIDIA H200 .* choose one with --hardware"
    ):
        exported(tmp_path, FLA)
    assert len(exported(tmp_path, FLA, hardware="H200").files) == 1


# Reading ----------------------------------------------------------------------------------------------------------------


def a_file(folder: Path, content: object, name: str = f"{MIXTRAL}.json") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def taken_in(store: Path, file: Path, known: Any = VLLM) -> Path:
    assert import_files(store, known, [file]) == (1, 0)
    (kept,) = (path for path in (store / FOLDER).rglob("*") if path.is_file())
    return kept


ROWS = {"1": {**DEFAULT, "num_warps": 8}, "64": {**DEFAULT, "BLOCK_SIZE_M": 64}}


def test_what_is_exported_can_be_imported_and_is_suggested(tmp_path: Path) -> None:
    job = layer_job({"M": 64})
    for known in (VLLM, SGLANG):
        keep(tmp_path / "here", job, SPACE[3])
        for file in exported(tmp_path / "here", known).files:
            write(tmp_path / known.name, file)
        elsewhere = tmp_path / f"{known.name} elsewhere"
        assert import_files(elsewhere, known, [tmp_path / known.name]) == (1, 0)
        assert suggested(elsewhere, job) == (SPACE[3],)
        assert suggested(elsewhere, layer_job({"M": 1})) == (SPACE[0],)
    keep(tmp_path / "fla here", kernel_job(n=64))
    for file in exported(tmp_path / "fla here", FLA).files:
        write(tmp_path / "fla", file)
    import_files(tmp_path / "fla elsewhere", FLA, [tmp_path / "fla"])
    assert suggested(tmp_path / "fla elsewhere", kernel_job(n=64)) == (KERNEL[1],)


def test_vllms_files_of_packed_weights_are_suggested(tmp_path: Path) -> None:
    def tensor(*shape: int) -> dict[str, object]:
        return {"dtype": "bfloat16", "shape": list(shape), "stride": [1] * len(shape)}

    key = {"dtype": "int4_w4a16", "hidden_states": tensor(48, 4096), "w2": tensor(8, 4096, 7168)}
    row = {name: SPACE[3][name] for name in DEFAULT}
    taken_in(tmp_path, a_file(tmp_path / "theirs", {"48": row}, f"{MIXTRAL},dtype=int4_w4a16.json"))
    assert suggested(tmp_path, a_job(key=key, space=SPACE, hardware=H100)) == (SPACE[3],)


def test_the_row_that_is_nearest_is_suggested(tmp_path: Path) -> None:
    taken_in(tmp_path, a_file(tmp_path / "in", {"triton_version": "3.4.0", **ROWS}))
    assert suggested(tmp_path, layer_job({"M": 20})) == (SPACE[1],)
    assert suggested(tmp_path, layer_job({"M": 4096})) == (SPACE[4],)


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": replace(H100, name="NVIDIA A100")},
        {"key": {"E": 16}},
        {"key": {"dtype": "fp8_w8a8"}},
        {"key": {"N": 7}},
    ],
)
def test_files_of_other_layers_and_devices_suggest_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    taken_in(tmp_path, a_file(tmp_path / "in", ROWS))
    assert suggested(tmp_path, layer_job(**changes)) == ()


def test_a_config_outside_the_space_is_not_suggested(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = {"1": {**DEFAULT, "BLOCK_SIZE_M": 256}, "64": {**DEFAULT, "USE_TMA": True}}
    taken_in(tmp_path, a_file(tmp_path / "in", rows))
    assert suggested(tmp_path, layer_job({"M": 1})) == ()
    assert suggested(tmp_path, layer_job({"M": 64})) == ()
    outside, strange = caplog.messages
    assert "row 1, of vllm names is none of its configs: add it to them to have it tried (BLOCK_SIZE_M=256" in outside
    assert "row 64, of vllm names is not tried, for the kernel has no knob USE_TMA" in strange


def test_sglangs_files_of_ones_own_triton_go_first_then_the_newest(tmp_path: Path) -> None:
    for version, rows in (("3_2_0", {"1": ROWS["64"]}), ("3_10_0", {"1": ROWS["1"]})):
        import_files(tmp_path, SGLANG, [a_file(tmp_path / f"triton_{version}", rows)])
    assert suggested(tmp_path, layer_job()) == (SPACE[1],), "3.10 is newer than 3.2"
    import_files(tmp_path, SGLANG, [a_file(tmp_path / "triton_3_9_0", {"1": {**DEFAULT, "BLOCK_SIZE_M": 32}})])
    assert suggested(tmp_path, layer_job()) == (SPACE[2],)
    remove_imported(tmp_path)
    import_files(tmp_path, SGLANG, [a_file(tmp_path / "mine", ROWS)])
    assert suggested(tmp_path, layer_job()) == (SPACE[1],), "one of no Triton in particular"


def test_fla_suggests_the_key_then_one_alike_then_the_default(tmp_path: Path) -> None:
    def entry(key: list[object], block: int) -> dict[str, object]:
        options = {"num_warps": 2, "num_stages": 2, "num_ctas": 1, "maxnreg": None}
        return {"autotune_key": key, "config": {"kwargs": {"BLOCK": block}, **options}}

    def block(n: object) -> int:
        (config,) = suggested(tmp_path, kernel_job(n=n))
        return int(str(config["BLOCK"]))

    whole = {
        "autotune_entries": {"a": entry([64], 128), "b": entry([96], 256)},
        "default_config": entry([], 64)["config"],
    }
    # Named by no key's MD5: the keys themselves are what counts.
    kept = taken_in(tmp_path, a_file(tmp_path / "in", whole, "chunk_kernel.json"), FLA)
    assert (block(96), block(64), block(128), block("text")) == (256, 128, 128, 64)
    kept.unlink()
    taken_in(tmp_path, a_file(tmp_path / "in", entry([], 256)["config"], "chunk_kernel.json"), FLA)
    assert block(64) == 256, "as older versions wrote it"


# What is no config file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"1": {"BLOCK_SIZE_M": 16, "BLOCK', "is no JSON"),
        ("[1, 2]", "a config file is one JSON object"),
        ({}, "has 0 rows"),
        ({"schema": 2, **ROWS}, "has the row 'schema': rows are batch sizes"),
        ({"0": ROWS["1"]}, "rows are batch sizes"),
        ({"1": [16, 64]}, "a config is an object of knobs"),
        ({"1": {"BLOCK_SIZE_M": 16}}, "sets no BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M"),
        ({"1": {**DEFAULT, "x": "a" * 65}}, "knobs are named whole numbers"),
        ({"1": {**DEFAULT, "num_warps": 2**40}}, "knobs are named whole numbers"),
        ({"1": {**DEFAULT, "a b": 1}}, "knobs are named whole numbers"),
        ({"1": {**DEFAULT, "num_warps": {}}}, "knobs are named whole numbers"),
        ("[" * 100_000, "is no JSON"),
        ('{"1": NaN}', "numbers must be finite"),
        ('{"1": {"BLOCK_SIZE_M": ' + "9" * 5000 + "}}", "is no JSON"),
        (" " * (4 << 20) + "{}", "holds more than 4 MiB"),
        ({str(i): ROWS["1"] for i in range(1, 5000)}, "a config file has 1 to 4096"),
    ],
    ids=range(16),
)
def test_a_broken_file_is_refused_and_nothing_is_taken_in(tmp_path: Path, content: object, complaint: str) -> None:
    good = a_file(tmp_path / "in", ROWS)
    bad = a_file(tmp_path / "in", content, f"{MIXTRAL},dtype=fp8_w8a8.json")
    with pytest.raises(InvalidInputError, match="nothing was imported: ") as refused:
        import_files(tmp_path, VLLM, [good, bad])
    assert complaint in str(refused.value)
    assert str(bad) in str(refused.value)
    assert len(str(refused.value)) < 600
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"x": 1}, "it is no config file of FLA"),
        ({"autotune_entries": [1]}, "it is no config file of FLA"),
        ({"autotune_entries": {"a": 1}}, "an entry is an object"),
        ({"autotune_entries": {"a": {"config": {"kwargs": {"B": 1}}}}}, "has the autotune_key missing"),
        ({"autotune_entries": {"a": {"autotune_key": [1], "config": {"B": 1}}}}, "an object with kwargs"),
        ({"autotune_entries": {"a": {"autotune_key": [{}], "config": {"kwargs": {"B": 1}}}}}, "has an object in its"),
        ({"default_config": {"kwargs": {"B": 1.5}}}, "knobs are named whole numbers"),
    ],
)
def test_a_broken_file_of_fla_is_refused(tmp_path: Path, content: object, complaint: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        import_files(tmp_path, FLA, [a_file(tmp_path / "in", content, "kernel.json")])
    assert complaint in str(refused.value)


def test_bytes_links_and_pipes_are_no_config_files(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    a_file(folder, ROWS)
    (folder / f"{MIXTRAL},dtype=bytes.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InvalidInputError, match="is no UTF-8 text"):
        import_files(tmp_path, VLLM, [folder])
    (folder / f"{MIXTRAL},dtype=bytes.json").unlink()
    (folder / f"{MIXTRAL},dtype=link.json").symlink_to("/dev/zero")
    os.mkfifo(folder / f"{MIXTRAL},dtype=pipe.json")
    (folder / "around.json").symlink_to(folder)
    (folder / "README.json").write_text("{}")
    assert import_files(tmp_path, VLLM, [folder]) == (1, 1)
    with pytest.raises(InvalidInputError, match="is no plain file"):
        import_files(tmp_path, VLLM, [folder / f"{MIXTRAL},dtype=pipe.json"])
    with pytest.raises(InvalidInputError, match="has no name that vllm looks for"):
        import_files(tmp_path, VLLM, [folder / "README.json"])


@pytest.mark.parametrize("content", ["{", "[]", '{"1": 7}', '{"1": {"num_warps": []}}', '{"x": {}}', "{}"])
def test_a_kept_file_that_breaks_later_is_left_out(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, content: str
) -> None:
    kept = taken_in(tmp_path, a_file(tmp_path / "in", ROWS))
    kept.write_text(content)
    assert suggested(tmp_path, layer_job()) == ()
    assert all(issubclass(warned.category, StoreWarning) for warned in recwarn)
    assert len(recwarn) <= 1
    kept.unlink()
    kept.symlink_to("/dev/zero")
    with pytest.warns(StoreWarning, match="it is no plain file"):
        assert suggested(tmp_path, layer_job()) == ()


@pytest.mark.parametrize(("owner", "name"), [(Path, "stat"), (imported, "read_text"), (imported, "_in_space")])
def test_a_deadline_while_kept_files_are_read_is_not_lost(tmp_path: Path, owner: Any, name: str) -> None:
    taken_in(tmp_path, a_file(tmp_path / "in", ROWS))
    with deadline_in(owner, name), pytest.raises(DeadlineError):
        suggested(tmp_path, layer_job())


def test_a_config_file_leads_out_of_no_folder(tmp_path: Path) -> None:
    for name in ("E=1,N=1,device_name=..\\..\\x.json", "E=1,N=1,device_name=x,dtype=a,dtype=b.json", "E=1,N=1.json"):
        assert VLLM.parse(Path(name)) is None
    keep(tmp_path, layer_job(hardware=replace(H100, name="..\\..\\x,dtype=y")))
    assert "makes no file name" in why(exported(tmp_path))
    keep(tmp_path / "fla", a_job(name="../kernel"))
    assert "it is no Triton kernel" in why(exported(tmp_path / "fla", FLA))


def test_imported_files_are_removed_together(tmp_path: Path) -> None:
    assert count_imported(tmp_path) == 0
    taken_in(tmp_path, a_file(tmp_path / "in", ROWS))
    assert count_imported(tmp_path) == 1
    remove_imported(tmp_path)
    assert count_imported(tmp_path) == 0
    assert suggested(tmp_path, layer_job()) == ()


def test_a_job_of_other_knobs_is_asked_for_nothing(tmp_path: Path) -> None:
    taken_in(tmp_path, a_file(tmp_path / "in", ROWS))
    assert suggested(tmp_path, a_job()) == ()
    assert suggested(tmp_path / "none", layer_job()) == ()
    assert isinstance(SPACE[0], Config)


# A whole layer that is tuned ------------------------------------------------------------------------------------------


def test_the_key_of_a_function_that_runs_the_layer_tells_the_layer(own_settings: Path) -> None:
    torch = pytest.importorskip("torch")
    import forecast_autotune as fa

    tried = []

    def layer(hidden_states: Any, w1: Any, w2: Any, topk_ids: Any, **config: int) -> Any:
        tried.append(config)
        return hidden_states @ w1[0].T[:, : w2.shape[2]] @ w2[0].T

    space = fa.Space([DEFAULT, {**DEFAULT, "BLOCK_SIZE_M": 32}])
    tuned = fa.variants([(layer, space)], key="hidden_states, w2", budget="all")
    tuned(torch.ones(24, 8), torch.ones(4, 32, 8), torch.ones(4, 8, 16), torch.zeros(24, 2, dtype=torch.int32))
    (stored,) = StoreFile(own_settings).decisions()
    assert layer_of(stored.tuning_key.workload, Where()) == Layer(
        tokens=24, experts=4, width=16, hidden=8, dtype="float32"
    )
    here = replace(stored.tuning_key, hardware=H100)  # it ran on this CPU, whose decisions go into no file
    assert exported(own_settings).files == []
    variant = stored.decision.config["variant"]
    one = Tuned(tuning_key=here, decision=stored.decision, default=Config({**space.default.knobs, "variant": variant}))
    ((name, content),) = files_of(VLLM.export([one], Where())).items()
    assert name == "E=4,N=16,device_name=NVIDIA_H100_80GB_HBM3,dtype=float32.json"
    assert content["24"] in tried
    other = replace(one, default=Config({**space.default.knobs, "variant": "other"}))
    assert why(VLLM.export([other], Where())).endswith(
        f"the variant {variant} won, and files are for the default's, other"
    )
