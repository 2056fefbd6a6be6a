"""How many captions per second the teachers and the student of ICC score, measured in one run.

python benchmarks/throughput.py [CAPTIONS] [--profile P] [--role ROLE=ADDRESS …] [--seconds 10] [--batch-size N …]
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from curation_assets.cli.common import show, show_table
from curation_assets.cli.score import profile_for_files
from curation_assets.core.progress import ProgressReporter, reporter_for
from curation_assets.core.settings import Profile, load_settings
from curation_assets.engines import load_engine, resolve_device
from curation_assets.methods import get_method, teachers
from curation_assets.numeric.identity import sample_id_of
from curation_assets.scoring.files import read_captions
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples
from curation_assets.world.pool import plant_labelled_captions

STUDENT = "icc"
SCORERS = (*(method.name for method in teachers() if method.default), STUDENT)
PAPER_POOL = 8_000_000  # captions; formulas.md §1.9 derives 11,111 (VBA), 4,938 (SBA) and 49.4 (student) hours from it


def icc_throughput(
    profile: Profile,
    captions: Sequence[str],
    *,
    seconds: float,
    batch_sizes: Sequence[int],
    progress: ProgressReporter,
    scorers: Sequence[str] = SCORERS,
) -> pl.DataFrame:
    """One row per scorer and batch size: captions scored, seconds, captions per second, times the student's.

    Each pair scores batch after batch, going round the captions, until `seconds` have passed (at least one batch).
    Loading the models and one warm-up batch are not counted; every step from caption to value is.
    Raises ValueError for no captions, or seconds or a batch size that is not positive.
    """
    texts = [text for text in captions if text and text.strip()]
    if not texts:
        raise ValueError("throughput needs captions that are not blank")
    if not seconds > 0 or any(size < 1 for size in batch_sizes):
        raise ValueError(f"seconds and batch sizes must be above 0, got {seconds} and {list(batch_sizes)}")
    rows = []
    with progress.task("throughput", len(scorers) * len(batch_sizes)) as advance:
        for batch_size in batch_sizes:
            for scorer in scorers:
                count, passed = _time(profile, scorer, texts, seconds, batch_size)
                rows.append(
                    {"scorer": scorer, "batch_size": batch_size, "captions": count, "seconds": round(passed, 3)}
                )
                advance(1)
    per_second = pl.col("captions") / pl.col("seconds")
    student = per_second.filter(pl.col("scorer") == STUDENT).first().over("batch_size")
    return pl.DataFrame(rows).with_columns(
        per_second.alias("captions_per_second"),
        (per_second / student).alias("relative_to_student"),
        (PAPER_POOL / per_second / 3600).alias("hours_for_8m_captions"),
        pl.lit(resolve_device(profile.device)).alias("device"),
        pl.lit(profile.name).alias("profile"),
    )


def _time(profile: Profile, scorer: str, texts: list[str], seconds: float, batch_size: int) -> tuple[int, float]:
    method = with_parameters(get_method(scorer), **profile.methods.get(scorer, {}))
    sized = replace(profile, batch_size=dict.fromkeys(profile.roles, batch_size))
    roles = {role: load_engine(role, sized) for role in method.roles}

    def batch(start: int) -> pl.DataFrame:
        chosen = [texts[(start + i) % len(texts)] for i in range(batch_size)]
        # a caption met again in another round is another sample: nothing may be remembered of it
        ids = [sample_id_of(str(start + i), text) for i, text in enumerate(chosen)]
        return pl.DataFrame({"sample_id": ids, "caption": chosen})

    score_samples(method, batch(0), roles, batch_size=batch_size)
    done, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds or not done:
        score_samples(method, batch(batch_size + done), roles, batch_size=batch_size)
        done += batch_size
    return done, passed


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "captions", type=Path, nargs="?", help="txt, tsv, csv or parquet; default: captions of the scene world"
    )
    parser.add_argument("--profile", help="embedded, hub, or a profile file")
    parser.add_argument("--role", action="append", default=[], help="another model: ROLE=ADDRESS (repeat)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each scorer and batch size")
    parser.add_argument("--batch-size", type=int, action="append", help="captions at once (repeat); default: 1 and 64")
    parser.add_argument("--out", type=Path, help="also write the table as Parquet or CSV")
    chosen = parser.parse_args(arguments)
    if chosen.captions is None:
        texts = [text for text, _ in plant_labelled_captions(400, 9_100_001)]
    else:
        texts = read_captions(chosen.captions)["caption"].drop_nulls().to_list()
    measured = icc_throughput(
        profile_for_files(load_settings(None, chosen.profile).profile, chosen.role),
        texts,
        seconds=chosen.seconds,
        batch_sizes=chosen.batch_size or [1, 64],
        progress=reporter_for(),
    )
    rows = [
        (
            row["scorer"], str(row["batch_size"]), f"{row['captions']:,}", f"{row['seconds']:.1f}",
            f"{row['captions_per_second']:.2f}", f"{row['relative_to_student']:.4f}",
            f"{row['hours_for_8m_captions']:,.1f}",
        )
        for row in measured.iter_rows(named=True)
    ]  # fmt: skip
    show_table(("scorer", "batch", "captions", "seconds", "captions/s", "of the student's", "hours for 8 M"), rows)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        measured.write_parquet(chosen.out) if chosen.out.suffix == ".parquet" else measured.write_csv(chosen.out)
        show(f"Written to {chosen.out}")


if __name__ == "__main__":
    main()
