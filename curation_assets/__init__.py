"""curation_assets: from a noisy image–text pool to an audited, high-quality subset.

    import curation_assets as ca

    ca.score_captions("icc", ["a dog on a red sofa", "the best day ever"])    # value and reason per caption
    ca.score_pairs("clip_score", ["dog.jpg"], ["a dog on a red sofa"])
    pool = ca.add_pool("mine", "photos/", home="data")                        # or ca.open_pool("mine", home="data")
    pool.run()
    pool.subset("icc")                                                        # the kept samples, as polars
    pool.table("signals/icc"), pool.scan("raw/samples")                       # any table, read or lazy
    ca.dataset("release:first", home="data", shuffle_seed=0)                  # to train on, from the tars as they are
    pool.why(sample_id), pool.diff("icc", "clip")

What each does, with its errors, is in `curation_assets.api`. Names are imported when they are first used: importing the
package itself loads neither polars nor torch nor Dagster.
"""

from typing import TYPE_CHECKING, Any

from curation_assets.core.version import __version__

if TYPE_CHECKING:
    from curation_assets.api import (
        ExpectedError,
        Pool,
        add_pool,
        dataset,
        list_methods,
        list_pools,
        open_pool,
        score_captions,
        score_file,
        score_pairs,
    )
    from curation_assets.defs.component import CurationPool

__all__ = [
    "CurationPool",
    "ExpectedError",
    "Pool",
    "__version__",
    "add_pool",
    "dataset",
    "list_methods",
    "list_pools",
    "open_pool",
    "score_captions",
    "score_file",
    "score_pairs",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    # A component of other teams' Dagster projects: the one name that needs Dagster.
    return getattr(
        import_module("curation_assets.defs.component" if name == "CurationPool" else "curation_assets.api"), name
    )


def __dir__() -> list[str]:
    return __all__
