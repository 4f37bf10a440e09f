"""Write the sample store of the current schema: `python tests/stores/make_sample.py`. Samples of older schemas are kept."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.outcome import Failure
from forecast_autotune.language.answers import Bins
from forecast_autotune.store.schema import VERSION
from forecast_autotune.store.sqlite import SqliteStore


def fill(store: SqliteStore) -> None:
    """Decisions that hold and not, measurements, a failure, a forecast, an abstention, a description; a key, an answer."""
    job = replace(a_job(), static_features=[{}, {"programs": 64.0, "waves": 0.484848}, *[{}] * (len(SPACE) - 2)])
    store.record_outcome(job, "run-1", SPACE[0], a_measurement(15.0), Abstention("history", "nothing alike"))
    store.record_outcome(job, "run-1", SPACE[1], a_measurement(10.0), Forecast.normal(0.4, 0.3, source="roofline"))
    store.record_outcome(job, "run-1", SPACE[2], Failure(stage="launch", message="out of resources", cost_s=0.5), None)
    store.record_decision(job, a_decision(job, SPACE[0], model=""))
    store.record_decision(job, a_decision(job, SPACE[1], run="run-2", model=""))
    store.note_pending(a_job(key={"n": 1}), "mode cached")
    store.keep_answers({"a question": Bins(probabilities=(0.125,) * 8, raw_sum=0.5)})


if __name__ == "__main__":
    path = Path(__file__).with_name(f"schema_{VERSION}.sqlite3")
    path.unlink(missing_ok=True)
    folder = path.with_name("making")
    with SqliteStore(folder, journal="rollback") as store:
        fill(store)
    (folder / "store.sqlite3").rename(path)
    (folder / "locks" / "open.lock").unlink()
    (folder / "locks").rmdir()
    folder.rmdir()
    path.chmod(0o644)
