"""Settings: read once, in one place, complained about by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forecast_autotune.errors import InvalidInputError, SettingError, TuningWarning
from forecast_autotune.settings import Answer, RemoteStore, Settings, remote_model_permission, unknown_variables


def test_without_variables_the_defaults_hold() -> None:
    settings = Settings.from_environment({})
    assert (settings.budget, settings.mode, settings.surrogate, settings.isolate, settings.toolchain) == (
        None,
        "tune",
        None,
        "auto",
        "exact",
    )
    assert settings.dir.name == "forecast_autotune"


def test_each_variable_is_read() -> None:
    settings = Settings.from_environment(
        {
            "FORECAST_AUTOTUNE_BUDGET": "10%,2s",
            "FORECAST_AUTOTUNE_MODE": "cached",
            "FORECAST_AUTOTUNE_DIR": "~/store",
            "FORECAST_AUTOTUNE_PACKS": os.pathsep.join(["/a.jsonl", "~/b.jsonl"]),
            "FORECAST_AUTOTUNE_SURROGATE": "roofline",
            "FORECAST_AUTOTUNE_ISOLATE": "0",
            "FORECAST_AUTOTUNE_TOOLCHAIN": "any",
            "FORECAST_AUTOTUNE_SYNC": "rank0",
            "FORECAST_AUTOTUNE_REMOTE_MODEL": "1",
            "FORECAST_AUTOTUNE_ONLINE_COST": "2.5 %",
            "FORECAST_AUTOTUNE_ONLINE_CPU": "50%",
            "FORECAST_AUTOTUNE_ANSWER": "reasoned,60s",
            "FORECAST_AUTOTUNE_MODEL": "15-kernels-0c4f1a2b",
        }
    )
    assert settings == Settings(
        budget="10%,2s",
        mode="cached",
        dir=Path("~/store").expanduser(),
        packs=(Path("/a.jsonl"), Path("~/b.jsonl").expanduser()),
        surrogate="roofline",
        isolate="0",
        toolchain="any",
        sync="rank0",
        remote_model=True,
        online_cost=0.025,
        online_cpu=0.5,
        answer=Answer(form="reasoned", seconds=60.0),
        model="15-kernels-0c4f1a2b",
    )


@pytest.mark.parametrize("text", ["fitted/old.json", "./15-kernels-0c4f1a2b", "15-kernels-0C4F1A2B"])
def test_what_is_no_version_of_a_model_is_the_path_of_one(text: str) -> None:
    assert Settings.from_environment({"FORECAST_AUTOTUNE_MODEL": text}).model == str(Path(text).absolute())


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0", 0.0), ("0.2", 0.2), (".5", 0.5), ("100 %", 1.0)])
def test_what_exploring_may_cost_is_a_share(text: str, share: float) -> None:
    assert Settings.from_environment({"FORECAST_AUTOTUNE_ONLINE_COST": text}).online_cost == pytest.approx(share)


@pytest.mark.parametrize("name", ["ONLINE_COST", "ONLINE_CPU"])
@pytest.mark.parametrize("text", ["5", "-1%", "101%", "nan", "1.5", "5 percent", "1e-3"])
def test_a_share_that_is_none_is_an_error(name: str, text: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"{name}=.*accepted is a share"):
        Settings.from_environment({f"FORECAST_AUTOTUNE_{name}": text})


@pytest.mark.parametrize("text", ["0", "0%", "0.0"])
def test_learning_without_time_is_an_error_that_names_mode_cached(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"ONLINE_CPU=.*mode cached"):
        Settings.from_environment({"FORECAST_AUTOTUNE_ONLINE_CPU": text})


@pytest.mark.parametrize(
    "name", ["MODE", "SURROGATE", "ISOLATE", "TOOLCHAIN", "SYNC", "REMOTE_MODEL", "ANSWER", "INDUCTOR"]
)
def test_a_value_that_does_not_parse_is_named_with_what_is_accepted(name: str) -> None:
    with pytest.raises(SettingError, match=rf"FORECAST_AUTOTUNE_{name}='maybe': accepted are "):
        Settings.from_environment({f"FORECAST_AUTOTUNE_{name}": "maybe"})


def test_a_budget_that_does_not_parse_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"FORECAST_AUTOTUNE_BUDGET: budget '5 apples' does not parse"):
        Settings.from_environment({"FORECAST_AUTOTUNE_BUDGET": "5 apples"})


def test_the_environment_goes_before_the_code() -> None:
    assert Settings.from_environment({}, mode="first").mode == "first"
    assert Settings.from_environment({"FORECAST_AUTOTUNE_MODE": "cached"}, mode="first").mode == "cached"
    with pytest.raises(InvalidInputError, match="mode='sometimes'") as told:
        Settings.from_environment({}, mode="sometimes")
    assert not isinstance(told.value, SettingError), "it is the code's"


# Language models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["http://127.0.0.1:8000", "http://localhost:8000/#kernels", "https://[::1]:8000", "vllm:a/b", "hf:/models/b@cpu"],
)
def test_a_language_model_is_named_by_the_environment_and_by_code(name: str) -> None:
    assert Settings.from_environment({"FORECAST_AUTOTUNE_SURROGATE": f" {name} "}).surrogate == name
    assert Settings.from_environment({}, surrogate=name).surrogate == name


@pytest.mark.parametrize(
    "name", ["http://", "http://127.0.0.1:8000/v1", "vllm:", "hf:b@tpu", "ftp://127.0.0.1", "vllm"]
)
def test_an_unknown_surrogate_is_reported_with_the_accepted_forms(name: str) -> None:
    for environment, code, variable in (
        ({"FORECAST_AUTOTUNE_SURROGATE": name}, None, "FORECAST_AUTOTUNE_SURROGATE="),
        ({}, name, "surrogate="),
    ):
        with pytest.raises(InvalidInputError) as told:
            Settings.from_environment(environment, surrogate=code)
        assert str(told.value).startswith(f"{variable}{name!r}")
        assert "http://HOST:PORT" in str(told.value)


@pytest.mark.parametrize("name", ["http://10.0.0.7:8000", "https://models.example/#m", "http://127.0.0.1.example:80"])
def test_a_language_model_elsewhere_is_refused_until_that_is_allowed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"FORECAST_AUTOTUNE_SURROGATE": name}
    for environment, code in ((named, None), ({}, name), (named | {"FORECAST_AUTOTUNE_REMOTE_MODEL": "0"}, None)):
        with pytest.raises(InvalidInputError, match="set FORECAST_AUTOTUNE_REMOTE_MODEL=1 to allow that"):
            Settings.from_environment(environment, surrogate=code)
    assert Settings.from_environment(named | {"FORECAST_AUTOTUNE_REMOTE_MODEL": "1"}).surrogate == name
    monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_MODEL", "1")
    for environment, code in ((named, None), ({}, name)):
        with pytest.raises(InvalidInputError, match="REMOTE_MODEL=1"):  # the process's environment is not the one given
            Settings.from_environment(environment, surrogate=code)
    environment = remote_model_permission()
    assert Settings.from_environment(environment, surrogate=name).surrogate == name, (
        "as a front end asks when it is made"
    )


@pytest.mark.parametrize(
    ("text", "form", "seconds"),
    [
        ("logits", "logits", 10.0),
        ("reasoned", "reasoned", 10.0),
        ("reasoned,60s", "reasoned", 60.0),
        ("logits, 500ms", "logits", 0.5),
        ("logits,2min", "logits", 120.0),
    ],
)
def test_how_a_language_model_answers_and_for_how_long(text: str, form: str, seconds: float) -> None:
    answer = Settings.from_environment({"FORECAST_AUTOTUNE_ANSWER": text}).answer
    assert answer == Answer(form=form, seconds=seconds) == Answer.parse(str(answer))


@pytest.mark.parametrize("text", ["json", "logits,", "logits,16", "logits,16,30s", "logits,0s", "logits,10%", ",10s"])
def test_an_answer_that_does_not_parse_is_named_with_what_is_accepted(text: str) -> None:
    with pytest.raises(InvalidInputError) as told:
        Settings.from_environment({"FORECAST_AUTOTUNE_ANSWER": text})
    assert str(told.value).startswith(f"FORECAST_AUTOTUNE_ANSWER={text!r}: accepted are logits, reasoned")


def test_new_variables_are_known_and_misspelt_ones_named() -> None:
    environment = {f"FORECAST_AUTOTUNE_{name}": "1" for name in ("REMOTE_MODEL", "ANSWER", "ANSWERS")}
    assert unknown_variables(environment) == {"FORECAST_AUTOTUNE_ANSWERS": "FORECAST_AUTOTUNE_ANSWER"}


def test_a_misspelt_variable_is_warned_of_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUGET", "2s")
    monkeypatch.setenv("FORECAST_AUTOTUNE_XYZZY", "1")
    with pytest.warns(TuningWarning) as warned:
        Settings.from_environment()
    assert [str(w.message).partition(" is no setting of ")[::2] for w in warned] == [
        (
            "the environment variable FORECAST_AUTOTUNE_BUGET",
            "forecast_autotune: did you mean FORECAST_AUTOTUNE_BUDGET?",
        ),
        ("the environment variable FORECAST_AUTOTUNE_XYZZY", "forecast_autotune: remove it, for nothing reads it"),
    ]
    assert {w.filename for w in warned} == {__file__}
    Settings.from_environment()  # a second warning would be an error


def test_an_environment_that_is_handed_in_is_not_warned_of() -> None:
    assert Settings.from_environment({"FORECAST_AUTOTUNE_BUGET": "2s"}) == Settings.from_environment({})


def test_spaces_around_packs_are_no_part_of_their_names() -> None:
    text = os.pathsep.join([" /a b.jsonl", " hf://team/packs@v1 ", " ", "", "/c.jsonl "])
    packs = Settings.from_environment({"FORECAST_AUTOTUNE_PACKS": text}).packs
    assert [str(pack) for pack in packs] == ["/a b.jsonl", "hf://team/packs@v1", "/c.jsonl"]


def test_a_relative_folder_stays_where_it_was_when_it_was_first_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f".cache/{tmp_path.name}"  # no other test reads it
    environment = {"FORECAST_AUTOTUNE_DIR": name, "FORECAST_AUTOTUNE_PACKS": f"{name}.jsonl"}
    (tmp_path / "outputs").mkdir()
    for folder in (tmp_path, tmp_path / "outputs"):  # as a program moves that Hydra runs
        monkeypatch.chdir(folder)
        settings = Settings.from_environment(environment)
        assert settings.dir == tmp_path / name
        assert settings.packs == (tmp_path / f"{name}.jsonl",)


@pytest.mark.parametrize(
    ("text", "stands_for"),
    [
        ("s3://team/tuning", RemoteStore(url="s3://team/tuning")),
        ("file:///shared/,trusted", RemoteStore(url="file:///shared", trusted=True)),
        ("gs://team , sources,trusted", RemoteStore(url="gs://team", trusted=True, sources=True)),
        ("simplecache::s3://team/tuning", RemoteStore(url="simplecache::s3://team/tuning")),
    ],
)
def test_a_remote_store_is_a_url_and_how_far_it_is_trusted(text: str, stands_for: RemoteStore) -> None:
    assert Settings.from_environment({"FORECAST_AUTOTUNE_REMOTE_STORE": text}).remote_store == stands_for
    assert RemoteStore.parse(str(stands_for)) == stands_for


@pytest.mark.parametrize(
    "text",
    ["team", "s3:/team", "://x", "s3://", "s3://a b", "s3://a,trust", "s3://a,", ",", "file://a/b", "x::local://a"],
)
def test_a_remote_store_that_does_not_parse_is_named_with_what_is_accepted(text: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"FORECAST_AUTOTUNE_REMOTE_STORE=.*accepted is a URL that fsspec knows"
    ):
        Settings.from_environment({"FORECAST_AUTOTUNE_REMOTE_STORE": text})


def test_a_name_that_several_begin_with_may_be_any_of_them() -> None:
    environment = {"FORECAST_AUTOTUNE_REMOTE": "1", "FORECAST_AUTOTUNE_MOD": "tune"}
    assert unknown_variables(environment) == {
        "FORECAST_AUTOTUNE_REMOTE": "FORECAST_AUTOTUNE_REMOTE_STORE or FORECAST_AUTOTUNE_REMOTE_MODEL",
        "FORECAST_AUTOTUNE_MOD": "FORECAST_AUTOTUNE_MODE",
    }
