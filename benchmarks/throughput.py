"""How many captions per second the teachers and the student of ICC score, measured in one run."""

import time
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine, resolve_device
from curation_assets.methods import get_method, teachers
from curation_assets.numeric.identity import sample_id_of
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples

STUDENT = "icc"
SCORERS = (*(method.name for method in teachers() if method.default), STUDENT)
PAPER_POOL = 8_000_000  # captions; METHODS §1.9 derives 11,111 (VBA), 4,938 (SBA) and 49.4 (student) hours from it


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
