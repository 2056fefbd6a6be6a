"""The students of single teachers (ICC, appendix A.2): their scores of captions."""

from typing import Any

import numpy as np
import polars as pl

from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names


def score_with_students(ctx: PoolContext, captions: pl.Series) -> list[pl.Series]:
    """Every caption's score by each teacher's student; null for a blank one."""
    from curation_assets.engines import load_engine

    has_words = captions.fill_null("").str.strip_chars() != ""
    columns = []
    for teacher in teacher_names(ctx):
        profile = ctx.profile.with_roles(student=f"pool:student_{teacher}")
        student: Any = load_engine("student", profile, pool_models=ctx.pool_models)
        values = np.full(len(captions), np.nan)
        values[has_words.to_numpy()] = student.score_captions(captions.filter(has_words).to_list())
        columns.append(pl.Series(teacher, values).fill_nan(None))
    return columns
