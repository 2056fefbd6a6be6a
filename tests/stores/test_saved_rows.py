"""A teacher killed inside a shard goes on from its last save, with the same numbers."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.methods import get_method
from curation_assets.scoring.batches import BrokenEngineError
from curation_assets.scoring.files import score_file, unfinished_folder
from curation_assets.scoring.samples import score_samples
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.saved_rows import SavedRows
from tests.support.paths import PROFILES

CAPTIONS = [f"a {colour} {thing}" for colour in ("red", "blue", "green", "old") for thing in ("kite", "boat", "tree")]
SHARD = "mine-000000"


class KilledError(BaseException):
    """As a signal would: nothing on the way catches it."""


class CountingDecoder:
    """Gives back the caption without its first letter; refuses what it is told to."""

    def __init__(self, dies_at: int | None = None, refuses: str = "\0") -> None:
        self.asked: list[str] = []
        self.dies_at = dies_at
        self.refuses = refuses

    def reconstruct_captions(self, captions: Sequence[str]) -> list[list[str]]:
        if self.dies_at is not None and len(self.asked) + len(captions) > self.dies_at:
            raise KilledError
        if any(self.refuses in text for text in captions):
            raise RuntimeError(self.refuses)
        self.asked += captions
        return [[text[1:], text] if "red" in text else [text[1:]] for text in captions]


def samples(captions: Sequence[str | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {"sample_id": [f"{i:032x}" for i in range(len(captions))], "caption": captions},
        schema_overrides={"caption": pl.String},
    )


def run(decoder: CountingDecoder, folder: Path, captions: Sequence[str | None], batch_size: int = 3) -> pl.DataFrame:
    return score_samples(
        get_method("sba"),
        samples(captions),
        {"semantic_decoder": decoder},
        batch_size=batch_size,
        saved=SavedRows(folder, every_seconds=0),
    )


def test_a_killed_run_asks_only_for_the_rest(tmp_path: Path) -> None:
    captions = [*CAPTIONS[:2], None, "", *CAPTIONS[2:]]
    whole = run(CountingDecoder(), tmp_path / "whole", captions)
    with pytest.raises(KilledError):
        run(CountingDecoder(dies_at=7), tmp_path / "killed", captions)
    rest = CountingDecoder()
    resumed = run(rest, tmp_path / "killed", captions, batch_size=4)
    assert resumed.equals(whole)
    assert resumed.schema == whole.schema
    saved_before = 7  # rows 0–8 hold seven captions, one null and one blank; the next batch would have been ten
    assert len(rest.asked) == len(CAPTIONS) - saved_before
    again = CountingDecoder()
    assert run(again, tmp_path / "killed", captions).equals(whole)
    assert again.asked == []


def test_a_run_stopped_by_hand_keeps_what_it_has(tmp_path: Path) -> None:
    """Ctrl+C long before the first save is due."""

    def stop_after(rows: int) -> Callable[[int], None]:
        done = [0]

        def advance(count: int) -> None:
            done[0] += count
            if done[0] >= rows:
                raise KeyboardInterrupt

        return advance

    def run_with(decoder: CountingDecoder, progress: Callable[[int], None] | None) -> pl.DataFrame:
        roles = {"semantic_decoder": decoder}
        saved = SavedRows(tmp_path / "stopped")
        return score_samples(get_method("sba"), samples(CAPTIONS), roles, batch_size=3, progress=progress, saved=saved)

    with pytest.raises(KeyboardInterrupt):
        run_with(CountingDecoder(), stop_after(6))
    rest = CountingDecoder()
    assert run_with(rest, None).equals(run(CountingDecoder(), tmp_path / "whole", CAPTIONS))
    assert rest.asked == CAPTIONS[6:]


def test_failures_are_kept_with_their_reason_and_do_not_look_like_a_broken_engine(tmp_path: Path) -> None:
    captions = [*CAPTIONS, "a bad kite", "a bad boat"]
    with pytest.raises(KilledError):
        run(CountingDecoder(dies_at=9), tmp_path, captions)
    resumed = run(CountingDecoder(refuses="bad"), tmp_path, captions, batch_size=2)
    assert resumed["reason"].to_list() == [None] * 12 + ["engine_error:RuntimeError"] * 2
    assert resumed["value"].null_count() == 2
    with pytest.raises(BrokenEngineError):
        run(CountingDecoder(refuses="a"), tmp_path / "other", captions)


def test_a_damaged_part_is_computed_again(tmp_path: Path) -> None:
    whole = run(CountingDecoder(), tmp_path, CAPTIONS)
    parts = sorted(tmp_path.glob("part-*.parquet"))
    assert len(parts) == 4
    parts[1].write_bytes(b"cut")
    decoder = CountingDecoder()
    assert run(decoder, tmp_path, CAPTIONS).equals(whole)
    assert decoder.asked == CAPTIONS[3:6]


def test_nothing_is_written_before_its_time(tmp_path: Path) -> None:
    saved = SavedRows(tmp_path / "quick")
    score_samples(get_method("sba"), samples(CAPTIONS), {"semantic_decoder": CountingDecoder()}, saved=saved)
    assert not (tmp_path / "quick").exists()


def test_a_stopped_command_over_a_file_goes_on_where_it_was(tmp_path: Path) -> None:
    """As `curate score`: input order, duplicates, blank lines and gaps are those of a run that nobody stopped."""
    source, out = tmp_path / "captions.txt", tmp_path / "scores.parquet"
    captions = [*CAPTIONS[:4], "", CAPTIONS[1], *CAPTIONS[4:]]
    source.write_text("\n".join(captions) + "\n")
    made_by = {"models": {"semantic_decoder": "counting"}}

    def score(decoder: CountingDecoder, to: Path, **facts: object) -> pl.DataFrame:
        roles = {"semantic_decoder": decoder}
        options = {"batch_size": 3, "made_by": {**made_by, **facts}, "save_every_seconds": 0.0}
        return score_file(get_method("sba"), source, to, roles, **options)  # type: ignore[arg-type]

    whole = score(CountingDecoder(), tmp_path / "whole.parquet")
    assert whole["caption"].to_list() == captions
    with pytest.raises(KilledError):
        score(CountingDecoder(dies_at=7), out)
    assert not out.exists(), "half a file is no file"
    assert unfinished_folder(out).is_dir()
    rest = CountingDecoder()
    assert score(rest, out).equals(whole)
    assert len(rest.asked) == len(CAPTIONS) + 1 - 5  # rows 0–5 were saved, one of them blank
    assert pl.read_parquet(out).equals(whole)
    assert not unfinished_folder(out).exists()

    out.unlink()
    with pytest.raises(KilledError):
        score(CountingDecoder(dies_at=7), out)
    other_model = CountingDecoder()
    score(other_model, out, models={"semantic_decoder": "another"})
    assert len(other_model.asked) == len(CAPTIONS) + 1, "what another model said is not taken over"


class KillingProgress:
    """A reporter that ends the run after so many rows of the teacher."""

    def __init__(self, after: int | None) -> None:
        self.left = after
        self.rows = 0

    @contextlib.contextmanager
    def task(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        def advance(count: int) -> None:
            self.rows += count if name.startswith(("vba", "sba")) else 0
            if self.left is not None and self.rows >= self.left:
                raise KilledError

        yield advance

    def note(self, line: str) -> None:
        """Say nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("teacher", ["vba", "sba"])
def test_a_pools_teacher_goes_on_inside_its_shard(tmp_path: Path, teacher: str) -> None:
    """The shipped models through the flow: killed after two batches, resumed, equal to an uninterrupted run."""
    table = f"teachers/{teacher}"
    profile = tmp_path / "small.yaml"
    shipped = (PROFILES / "embedded.yaml").read_text()
    profile.write_text(
        re.sub(r"(semantic_decoder|text_to_image): 64", r"\1: 4", shipped).replace("steps: 5", "steps: 2")
    )
    pl.DataFrame({"caption": CAPTIONS}).write_csv(tmp_path / "captions.csv")

    def shard_after(home: Path, kill_after: int | None, every: float) -> PoolContext:
        settings = load_settings(home, str(profile))
        if not (home / "pools").exists():
            add_pool(settings, "mine", tmp_path / "captions.csv", options={"distil": True, "save_every_seconds": every})
        ctx = PoolContext.open(settings, "mine", progress=KillingProgress(kill_after))  # type: ignore[arg-type]
        tables = tables_of(ctx)
        raw = [name for name in tables if name.startswith("raw/")]
        for name in (*raw, "teachers/distillation_fraction", "teachers/distillation_sample", table):
            materialise_table(ctx, tables[name], SHARD if tables[name].grain == "shard" else None, tables=tables)
        return ctx

    whole = shard_after(tmp_path / "a", None, 60.0)
    with pytest.raises(KilledError):
        shard_after(tmp_path / "b", 8, 0.0)
    unfinished = whole.store.__class__(tmp_path / "b" / "work" / "mine").unfinished_path(table, SHARD)
    saved = SavedRows(next(unfinished.iterdir())).read()
    assert saved is not None
    assert saved.height == 8
    resumed = shard_after(tmp_path / "b", None, 0.0)
    first, second = (ctx.store.manifest(table, SHARD) for ctx in (whole, resumed))
    assert first is not None
    assert second is not None
    assert first.content_sha256 == second.content_sha256
    assert not unfinished.exists(), "nothing is left beside a finished table"
