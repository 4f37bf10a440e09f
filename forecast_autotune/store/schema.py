"""The tables of a store, and how an older one becomes a newer one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from ..core.digest import canonical_json, digest
from ..core.workload import Program
from ..errors import InvalidInputError
from . import encoding

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x46_41_75_74  # "FAut", in the file's header: another program's database is not ours to write to

_VERSION_1 = """
CREATE TABLE hardware (
    digest TEXT PRIMARY KEY,
    value TEXT NOT NULL  -- JSON, the roofline sheet included
) WITHOUT ROWID;
CREATE TABLE toolchain (
    digest TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    seen_at REAL NOT NULL  -- seconds since the epoch: last recorded, decided or recalled under it
) WITHOUT ROWID;
CREATE TABLE program (
    digest TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    seen_at REAL NOT NULL
);
CREATE INDEX program_by_name ON program (name);
CREATE TABLE workload (
    digest TEXT PRIMARY KEY,
    program TEXT NOT NULL REFERENCES program (digest),
    value TEXT NOT NULL
);
CREATE INDEX workload_by_program ON workload (program);
CREATE TABLE outcome (
    id INTEGER PRIMARY KEY,
    workload TEXT NOT NULL REFERENCES workload (digest),
    hardware TEXT NOT NULL REFERENCES hardware (digest),
    toolchain TEXT NOT NULL REFERENCES toolchain (digest),
    config TEXT NOT NULL,  -- canonical JSON, which is its identity
    run TEXT NOT NULL,
    default_config TEXT NOT NULL,  -- what speed-ups relate to in this run
    value TEXT NOT NULL,
    recorded_at REAL NOT NULL,
    UNIQUE (workload, hardware, toolchain, config, run)
);
CREATE TABLE forecast (
    outcome INTEGER PRIMARY KEY REFERENCES outcome (id) ON DELETE CASCADE,
    value TEXT NOT NULL
);
CREATE TABLE decision (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL,  -- names workload, hardware, toolchain and space together
    workload TEXT NOT NULL REFERENCES workload (digest),
    hardware TEXT NOT NULL REFERENCES hardware (digest),
    toolchain TEXT NOT NULL REFERENCES toolchain (digest),
    space TEXT NOT NULL,
    value TEXT NOT NULL,
    decided_at REAL NOT NULL,
    superseded_at REAL,  -- NULL in the one that holds
    hits INTEGER NOT NULL DEFAULT 0,  -- recalls by processes that had it not in memory yet
    hit_at REAL
);
CREATE UNIQUE INDEX decision_that_holds ON decision (digest) WHERE superseded_at IS NULL;
CREATE INDEX decision_by_workload ON decision (workload);
CREATE TABLE pending (  -- keys met where measuring was not allowed, until they are
    digest TEXT PRIMARY KEY,  -- as of the decision that is missing
    workload TEXT NOT NULL REFERENCES workload (digest),
    hardware TEXT NOT NULL REFERENCES hardware (digest),
    toolchain TEXT NOT NULL REFERENCES toolchain (digest),
    space TEXT NOT NULL,
    space_size INTEGER NOT NULL,
    why TEXT NOT NULL,
    noted_at REAL NOT NULL,
    met_at REAL NOT NULL,  -- when a process last met it
    met INTEGER NOT NULL DEFAULT 1  -- by so many processes
) WITHOUT ROWID;
"""

_VERSION_2 = """
CREATE TABLE flight (  -- who tunes a job; says nothing any more once the job's lock is free
    job TEXT PRIMARY KEY,  -- digest as of its decision
    holder TEXT NOT NULL,
    run TEXT,  -- NULL where the work is not shared
    most INTEGER  -- so many configs may be taken; NULL: any number
) WITHOUT ROWID;
CREATE TABLE claim (  -- configs of a shared run that a process has taken
    job TEXT NOT NULL,
    config TEXT NOT NULL,
    holder TEXT NOT NULL,
    device TEXT NOT NULL,  -- digest; a process that has taken a config holds its device's lock while it lives
    until REAL,  -- seconds since the epoch, when it is free again at the latest; NULL: it was tried
    PRIMARY KEY (job, config)
) WITHOUT ROWID;
"""

_VERSION_3 = """
ALTER TABLE outcome ADD COLUMN described TEXT;  -- JSON, what could be told of the config without compiling; NULL: nothing
"""

_VERSION_4 = """
CREATE TABLE answer (  -- of language models that run here
    id INTEGER PRIMARY KEY,  -- an answer that is kept again becomes the newest
    digest TEXT NOT NULL UNIQUE,  -- of the model, the prompt and how it was asked
    value TEXT NOT NULL,
    kept_at REAL NOT NULL  -- seconds since the epoch
);
"""

# Digests, configs and names of runs are long, and each stood in a row and an index for every outcome: 800 of its 1,400
# bytes. Columns keep their names, and no table goes: a process of an older version that has the file open finds nothing here
# and is refused what it would write by the references, so that it goes on in memory. Were a column missing, it would set
# the file aside as broken. What refers to a row that is not there could not be read, and is left out.
_VERSION_5 = """
ALTER TABLE hardware RENAME TO hardware_4;
ALTER TABLE toolchain RENAME TO toolchain_4;
ALTER TABLE workload RENAME TO workload_4;
ALTER TABLE outcome RENAME TO outcome_4;
ALTER TABLE forecast RENAME TO forecast_4;
ALTER TABLE decision RENAME TO decision_4;
ALTER TABLE pending RENAME TO pending_4;
CREATE TABLE text (  -- configs in canonical JSON, which is their identity, and names of runs
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- none is given twice, here and below: who reads may hold one for a while
    value TEXT NOT NULL UNIQUE
);
CREATE TABLE hardware (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,
    value TEXT NOT NULL  -- JSON, the roofline sheet included
);
CREATE TABLE toolchain (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,
    value TEXT NOT NULL,
    seen_at REAL NOT NULL  -- seconds since the epoch: last recorded, decided or recalled under it
);
CREATE TABLE workload (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,
    program TEXT NOT NULL REFERENCES program (digest),
    value TEXT NOT NULL
);
CREATE TABLE outcome (
    id INTEGER PRIMARY KEY,
    workload INTEGER NOT NULL REFERENCES workload (id),
    hardware INTEGER NOT NULL REFERENCES hardware (id),
    toolchain INTEGER NOT NULL REFERENCES toolchain (id),
    config INTEGER NOT NULL,  -- a text, as are the next two; for a declared reference every text that is removed
    run INTEGER NOT NULL,     -- would be looked for in all rows
    default_config INTEGER NOT NULL,  -- what speed-ups relate to in this run
    value TEXT NOT NULL,
    recorded_at REAL NOT NULL,
    described TEXT,  -- JSON, what could be told of the config without compiling; NULL: nothing
    UNIQUE (workload, hardware, toolchain, config, run)
);
CREATE TABLE forecast (
    outcome INTEGER PRIMARY KEY REFERENCES outcome (id) ON DELETE CASCADE,
    value TEXT NOT NULL
);
CREATE TABLE decision (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL,  -- names workload, hardware, toolchain and space together
    workload INTEGER NOT NULL REFERENCES workload (id),
    hardware INTEGER NOT NULL REFERENCES hardware (id),
    toolchain INTEGER NOT NULL REFERENCES toolchain (id),
    space TEXT NOT NULL,
    value TEXT NOT NULL,
    decided_at REAL NOT NULL,
    superseded_at REAL,  -- NULL in the one that holds
    hits INTEGER NOT NULL DEFAULT 0,  -- recalls by processes that had it not in memory yet
    hit_at REAL
);
CREATE TABLE pending (  -- keys met where measuring was not allowed, until they are
    digest TEXT PRIMARY KEY,  -- as of the decision that is missing
    workload INTEGER NOT NULL REFERENCES workload (id),
    hardware INTEGER NOT NULL REFERENCES hardware (id),
    toolchain INTEGER NOT NULL REFERENCES toolchain (id),
    space TEXT NOT NULL,
    space_size INTEGER NOT NULL,
    why TEXT NOT NULL,
    noted_at REAL NOT NULL,
    met_at REAL NOT NULL,  -- when a process last met it
    met INTEGER NOT NULL DEFAULT 1  -- by so many processes
) WITHOUT ROWID;
INSERT OR IGNORE INTO hardware (digest, value) SELECT digest, value FROM hardware_4;
INSERT OR IGNORE INTO toolchain (digest, value, seen_at) SELECT digest, value, seen_at FROM toolchain_4;
INSERT OR IGNORE INTO workload (digest, program, value) SELECT digest, program, value FROM workload_4 ORDER BY rowid;
INSERT OR IGNORE INTO text (value) SELECT default_config FROM outcome_4;
INSERT OR IGNORE INTO text (value) SELECT config FROM outcome_4;
INSERT OR IGNORE INTO text (value) SELECT run FROM outcome_4;
INSERT OR IGNORE INTO outcome
    SELECT o.id, w.id, h.id, t.id, c.id, r.id, d.id, o.value, o.recorded_at, o.described
    FROM outcome_4 AS o CROSS JOIN workload AS w ON w.digest = o.workload CROSS JOIN hardware AS h ON h.digest = o.hardware
    CROSS JOIN toolchain AS t ON t.digest = o.toolchain CROSS JOIN text AS c ON c.value = o.config
    CROSS JOIN text AS r ON r.value = o.run CROSS JOIN text AS d ON d.value = o.default_config ORDER BY o.id;
INSERT OR IGNORE INTO forecast SELECT outcome, value FROM forecast_4 WHERE outcome IN (SELECT id FROM outcome);
INSERT OR IGNORE INTO decision
    SELECT o.id, o.digest, w.id, h.id, t.id, o.space, o.value, o.decided_at, o.superseded_at, o.hits, o.hit_at
    FROM decision_4 AS o CROSS JOIN workload AS w ON w.digest = o.workload CROSS JOIN hardware AS h ON h.digest = o.hardware
    CROSS JOIN toolchain AS t ON t.digest = o.toolchain ORDER BY o.id;
INSERT OR IGNORE INTO pending
    SELECT o.digest, w.id, h.id, t.id, o.space, o.space_size, o.why, o.noted_at, o.met_at, o.met
    FROM pending_4 AS o CROSS JOIN workload AS w ON w.digest = o.workload CROSS JOIN hardware AS h ON h.digest = o.hardware
    CROSS JOIN toolchain AS t ON t.digest = o.toolchain;
DROP TABLE pending_4;
DROP TABLE decision_4;
DROP TABLE forecast_4;
DROP TABLE outcome_4;
DROP TABLE workload_4;
DROP TABLE toolchain_4;
DROP TABLE hardware_4;
CREATE INDEX workload_by_program ON workload (program);
CREATE UNIQUE INDEX decision_that_holds ON decision (digest) WHERE superseded_at IS NULL;
CREATE INDEX decision_by_workload ON decision (workload);
"""

# The power limit leaves the hardware's digest, and so every decision's: a probe that gave no answer had made it another
# product. A process of an older version finds nothing by its digests, and is refused its own hardware's row. Descriptions
# of calls by position had been made without the arguments. Functions are ours, see `_functions`.
_VERSION_6 = """
CREATE TEMP TABLE hardware_5 AS SELECT id, product(digest, value) AS digest, value, power_limit_w(digest, value) AS limit_w
    FROM hardware;
DROP TABLE hardware;
CREATE TABLE hardware (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL,  -- of the product
    power_limit_w INTEGER NOT NULL,  -- 0: unknown
    value TEXT NOT NULL,  -- JSON, the roofline sheet included
    UNIQUE (digest, power_limit_w)
);
INSERT INTO hardware (id, digest, power_limit_w, value) SELECT id, digest, limit_w, value FROM hardware_5 ORDER BY id;
DROP TABLE temp.hardware_5;
DROP INDEX decision_that_holds;
UPDATE decision SET digest = coalesce(decision_digest(
    (SELECT digest FROM workload WHERE id = workload), (SELECT digest FROM hardware WHERE id = hardware),
    (SELECT digest FROM toolchain WHERE id = toolchain), space), digest);
CREATE UNIQUE INDEX decision_that_holds ON decision (digest, hardware) WHERE superseded_at IS NULL;
UPDATE OR REPLACE pending SET digest = coalesce(decision_digest(
    (SELECT digest FROM workload WHERE id = workload), (SELECT digest FROM hardware WHERE id = hardware),
    (SELECT digest FROM toolchain WHERE id = toolchain), space), digest);
DELETE FROM flight;
DELETE FROM claim;
UPDATE outcome SET described = NULL WHERE described IS NOT NULL AND described NOT LIKE '%"unique_bytes":%'
    AND workload IN (SELECT workload.id FROM workload JOIN program ON program.digest = workload.program
    WHERE names_tensors(workload.value, program.value));
"""

_VERSION_7 = """
ALTER TABLE workload ADD COLUMN shared TEXT;  -- digest without the constexprs in its key
UPDATE workload SET shared = shared_digest(value, program);
CREATE INDEX workload_by_shared ON workload (shared);
"""

MIGRATIONS = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5, _VERSION_6, _VERSION_7)
"""Statement lists; the one at index n turns schema n into schema n + 1. Add to the end, change none."""

VERSION = len(MIGRATIONS)

TABLES = frozenset(name for statements in MIGRATIONS for name in re.findall(r"CREATE TABLE (\w+)", statements))


_COMPUTED = -2  # in SQLite's list of an index's columns: an expression


MAX_ROWS = 2**62  # of a table; SQLite numbers them up to twice that, and then takes no more


class NewerSchemaError(Exception):
    """The file was written by a version of this package that knows more than this one."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class NotAStoreError(Exception):
    """The file is a healthy database of something else."""


def version_of(connection: sqlite3.Connection) -> int:
    """Schema version of an open database, 0 if it is empty.

    Raises:
        NewerSchemaError: this version cannot read it.
        NotAStoreError: it holds tables that are not a store's, or a store's that are not as this package makes them.
    """
    # In one transaction: else a store that another process makes in between has tables, and no application id yet.
    with _one_moment(connection):
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
        anything = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        made = _made(connection)
        numbered = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone()
        used_up = (
            numbered
            and connection.execute(
                "SELECT 1 FROM sqlite_sequence WHERE typeof(seq) IN ('integer', 'real') AND seq > ?", (MAX_ROWS,)
            ).fetchone()
        )
        own = _made_by(version) if 0 < version <= VERSION else {}
        for name in _plain_indexes(connection) if made.keys() - own.keys() else ():
            if name not in own:
                made.pop(name, None)
    if (anything and application_id != APPLICATION_ID) or (version and not anything):
        raise NotAStoreError
    if version > VERSION:
        raise NewerSchemaError(version)
    if made != own:
        name = min(n for n in made.keys() | own.keys() if made.get(n) != own.get(n))
        raise NotAStoreError(f"{name[:100]!r} in it is not as this package makes it")
    if used_up:
        raise NotAStoreError("'sqlite_sequence' in it is not as this package makes it: row numbers are used up")
    return version


def _made(connection: sqlite3.Connection) -> dict[str, str]:
    """What a database is made of, by name: each table and index in the words that made it, without comments and blanks.

    Not in it are tables of SQLite's own and tables with other names than a store's, which nobody reads; but every view and
    trigger is, and every index on a store's table. These would run within our own statements, and need never end.
    """
    objects = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return {
        str(name): re.sub(r"\s+", "", re.sub(r"--.*", "", str(sql)))
        for kind, name, table, sql in objects
        if sql is not None and (kind not in ("table", "index") or table in TABLES)
    }


def _plain_indexes(connection: sqlite3.Connection) -> set[str]:
    """Indexes that hold columns as they are, of all rows: they run nothing, and its owner may add some."""
    listed = [index for table in sorted(TABLES) for index in connection.execute(f"PRAGMA index_list({table})")]
    plain = set()
    for _, name, unique, _, partial in listed:
        quoted = name.replace('"', '""')
        columns = [column for _, column, *_ in connection.execute(f'PRAGMA index_xinfo("{quoted}")')]
        if not unique and not partial and columns and _COMPUTED not in columns:
            plain.add(name)
    return plain


@cache
def _made_by(version: int) -> dict[str, str]:
    """What a store of a version is made of."""
    import sqlite3

    with closing(sqlite3.connect(":memory:")) as connection:
        _functions(connection)
        for statement in _statements(0, version):
            connection.execute(statement)
        return _made(connection)


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Reads within this see one state of the file."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    except UnicodeDecodeError:  # SQLite quotes from a damaged schema, and what it quotes is no text
        raise NotAStoreError("its schema is damaged") from None
    finally:
        with suppress(Exception):  # nothing was written; the error of reading is the one to raise
            connection.execute("ROLLBACK")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring an open database to this version's schema, in one transaction; many processes may do it at once."""
    if version_of(connection) == VERSION:
        return
    _functions(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Looked at again with the lock held: another process may have done it while this one waited.
        for statement in _statements(version_of(connection), VERSION):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(Exception):  # the error that led here is the one to raise
                connection.execute("ROLLBACK")
        raise


def _statements(version: int, target: int) -> list[str]:
    """What turns one version's schema into a later one's.

    From nothing to version 6 each table and index is made once, in the last words for it: from one version to the next it
    took 6.7 ms of computing, in every process that opens a store, and this takes 1.2 (two busy cores).
    """
    made: dict[str, str] = {}
    if version == 0 and target >= 6:
        for statement in _split("".join(MIGRATIONS[:6])):
            if match := re.match(r"\s*CREATE (?:UNIQUE )?(?:TABLE|INDEX) (\w+)", statement):
                made[match[1]] = statement
        version = 6
    return [*made.values(), *_split("".join(MIGRATIONS[version:target]))]


def _functions(connection: sqlite3.Connection) -> None:
    """Give a connection what the migrations call; none raises, whatever stands in a row."""
    connection.create_function("product", 2, lambda named, value: _product(named, value)[0])
    connection.create_function("power_limit_w", 2, lambda named, value: _product(named, value)[1])
    connection.create_function("decision_digest", 4, _decision_digest)
    connection.create_function("names_tensors", 2, _names_tensors)
    connection.create_function("shared_digest", 2, _shared_digest)


def _product(named: str, value: object) -> tuple[str, int]:
    """A hardware's digest without its power limit, and that limit; a row whose digest is not its value's stays apart."""
    try:
        hardware = encoding.decode_hardware(encoding.from_text(value, "hardware"))
        limited = digest(canonical_json({**hardware.identity, "power_limit_w": hardware.power_limit_w}))
    except (InvalidInputError, ValueError):
        return named, 0
    return (hardware.digest, hardware.power_limit_w) if limited == named else (named, 0)


def _decision_digest(*parts: object) -> str | None:
    return digest(*parts) if all(isinstance(part, str) for part in parts) else None  # type: ignore[arg-type]


def _names_tensors(workload: object, program: object) -> bool:
    """Whether a workload is a Triton kernel's, and its features hold sizes of tensors."""
    try:
        kernel = encoding.decode_program(encoding.from_text(program, "program"))
        return kernel.language == "triton" and encoding.names_tensors(
            encoding.decode_workload(encoding.from_text(workload, "workload"), kernel)
        )
    except InvalidInputError:
        return False


def _shared_digest(workload: object, program_digest: object) -> str | None:
    """A workload's digest without constexprs, from its value and its program's digest; None where it does not decode."""
    try:
        program = Program(name="", language="", source="")  # its digest is another column
        known = encoding.decode_workload(encoding.from_text(workload, "workload"), program).without_constexprs()
    except InvalidInputError:
        return None
    checked = (known.check,) if known.check else ()
    return digest(str(program_digest), canonical_json(known.key), known.timing, *checked)


def _split(statements: str) -> list[str]:
    """Single statements: `executescript` would commit the transaction they belong to."""
    import sqlite3

    complete, pending = [], ""
    for line in statements.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            complete.append(pending)
            pending = ""
    return complete
