"""Which captions people should rate: a draw that covers the plane of the teachers' scores."""

import numpy as np
import polars as pl

from curation_assets.annotation.ratings_log import is_storable
from curation_assets.core.table_names import STUDENT_SCORES, TEACHER_SCORES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names
from curation_assets.flow.options import FlowOptions
from curation_assets.numeric.plane_sampling import sample_plane

DEFAULT_COUNT = 244  # ICC §4.3
#: Where the scores of the distillation sample lie, by the option fuse_on.
SCORES_OF = {"teacher": TEACHER_SCORES, "student": STUDENT_SCORES}


def draw_for_rating(ctx: PoolContext, *, count: int = DEFAULT_COUNT, cells: int = 10, seed: int = 0) -> pl.DataFrame:
    """`count` distinct captions of the pool's distillation sample: caption and one column per teacher, in random order.

    About uniform over the (VBA, SBA) plane, or the space of K teachers: `cells` intervals per teacher, equal quota per
    non-empty cell (formulas.md §1.7), of the scores that the pool fuses (option fuse_on). Captions that no line of a
    ratings file can hold are left out. Raises ValueError for too few captions, MissingTableError where the scores are
    not made yet.
    """
    names = teacher_names(ctx)
    scores = (
        ctx.store.scan(SCORES_OF[FlowOptions.of(ctx).fuse_on])
        .select("sample_id", "caption", *names)
        .collect()
        .sort("sample_id")
        .unique(subset="caption", keep="first", maintain_order=True)
    )
    scores = scores.filter(pl.Series([is_storable(text) for text in scores["caption"]], dtype=pl.Boolean))
    columns = (pl.col(name).cast(pl.Float64).fill_null(float("nan")) for name in names)
    values = scores.select(columns).to_numpy()  # (N, K)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(sample_plane(values, count, rng, cells=cells))
    return scores[rows.tolist()].select("caption", *names)
