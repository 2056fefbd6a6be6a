"""What limits of machine and language stop ends with a sentence and the exit status of its kind, and is no bug."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import torch
import typer

from curation_assets.cli.common import errors_as_sentences
from curation_assets.cli.score import settings_given
from curation_assets.core.errors import StoreError
from curation_assets.scoring.files import _as_list
from curation_assets.stores.arrays import load_npy
from curation_assets.stores.catalog import interrupt_queries, open_pool
from curation_assets.stores.costs import COSTS, read_attempts
from curation_assets.stores.queries import QueryError, select
from curation_assets.stores.releases import RELEASE_FILE, read_release
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.subsets import packed_ids
from tests.support.command import curate
from tests.support.lineage_pools import webdataset_pool

ENDLESS = "select sum(range) from range(1000000000000000)"
HUGE = 10**15  # bytes


def stopped_soon() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background commands ignore it
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()


def sum_of_a_pool(folder: Path) -> None:
    with open_pool(ShardStore(folder), []) as connection:
        connection.execute(ENDLESS)


def test_what_duckdb_computes_is_ended_from_another_thread(tmp_path: Path) -> None:
    """DuckDB makes an error of its own of it, which a run took for a failed table, and went on with the next."""
    threading.Timer(1, interrupt_queries).start()
    with pytest.raises(KeyboardInterrupt):
        sum_of_a_pool(tmp_path)


def test_ctrl_c_while_duckdb_works_for_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stopped_soon()
    with pytest.raises(typer.Exit) as stop, errors_as_sentences():
        sum_of_a_pool(tmp_path)
    assert stop.value.exit_code == 128 + signal.SIGINT
    assert capfd.readouterr().err.startswith("stopped;")


def too_much_for_duckdb() -> None:
    duckdb.connect(config={"memory_limit": "1MB"}).execute("create table t as select range from range(10000000)")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: np.empty(HUGE, np.uint8),
        lambda: torch.empty(HUGE, dtype=torch.uint8),
        lambda: pa.allocate_buffer(HUGE),
        lambda: bytearray(HUGE),
        too_much_for_duckdb,
    ],
    ids=["numpy", "torch", "pyarrow", "python", "duckdb"],
)
def test_memory_that_is_refused(ask: Callable[[], object], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stop, errors_as_sentences():
        ask()
    assert stop.value.exit_code == 1
    said = capfd.readouterr().err
    assert said.startswith("error not enough memory (")
    assert "are free on this machine" in said
    assert "bug" not in said


@pytest.mark.slow
def test_values_inside_values_in_a_declaration_or_an_option(tmp_path: Path) -> None:
    webdataset_pool(tmp_path, shards=1, per_shard=2)
    deep = "[" * 20_000 + "]" * 20_000
    with (tmp_path / "pools" / "photos.yaml").open("a") as file:
        file.write(f"languages: {deep}\n")
    for words in (["pool", "set", "photos", "size=3"], ["pool", "list"]):
        run = curate(*words, home=tmp_path)
        assert run.exit_code == 1, run.output
        assert "photos.yaml is no YAML: its values are nested too deeply" in run.output
    with pytest.raises(ValueError, match="nested too deeply"):
        settings_given([f"alpha={deep}"])


def test_json_inside_json_in_a_caption_a_release_or_a_log(tmp_path: Path) -> None:
    deep = "[" * 100_000
    assert _as_list(deep) == [deep], "it is a caption"
    (tmp_path / RELEASE_FILE).write_text(deep)
    with pytest.raises(StoreError, match=r"release.json is damaged"):
        read_release(tmp_path)
    (tmp_path / COSTS).mkdir()
    (tmp_path / COSTS / "attempts-host-1.jsonl").write_text(f"{deep}\n")
    assert read_attempts(tmp_path).height == 0


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_npy_whose_header_says_terabytes(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "ids.npy"
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype("u8,u8")), "fortran_order": False, "shape": (10**12,)}
    write = np.lib.format.write_array_header_1_0 if version == (1, 0) else np.lib.format.write_array_header_2_0
    with path.open("wb") as file:
        write(file, header)
        file.write(bytes(160))
    for read in (load_npy, packed_ids):
        with pytest.raises(
            ValueError, match=r"ids.npy cannot be read as .npy: .* 16,000,000,000,000 bytes; 160 follow"
        ):
            read(path)
    np.save(path, np.zeros(10, "u8"))
    assert len(load_npy(path)) == 10


@pytest.mark.parametrize(
    "condition",
    ["not " * 900 + "true", "not " * 100_000 + "true", "(" * 900 + "true" + ")" * 900, "0" + " + 1" * 50_000 + " > 0"],
    ids=["not", "more of it", "brackets", "sum"],
)
def test_a_query_of_expressions_inside_expressions(condition: str) -> None:
    """Refused, or answered."""
    query = f"select 1 as one where {condition}"
    try:
        _, rows, _ = select(query, {}, lambda pool: pytest.fail(pool), max_rows=5, seconds=60)
    except QueryError:
        return
    assert rows == [[1]]
