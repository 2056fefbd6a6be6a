"""All options of a pool: one class that inherits every group which an `options.py` of the package declares.

The groups are found by their files, so a folder's options need no line elsewhere. Each file imports only what its
fields are checked with.
"""

from collections.abc import Mapping
from typing import Any

from curation_assets.core.found import found_classes
from curation_assets.core.options import Options
from curation_assets.core.validation import build, checked, fields_of, is_of_one_pool


def option_groups() -> list[type[Options]]:
    """The groups of all folders, in the order of docs/user/options.md. TypeError for an option declared twice."""
    groups = found_classes("options", Options)
    owners: dict[str, type] = {}
    for group in groups:
        for option in fields_of(group):
            if owners.setdefault(option, group) is not group:
                raise TypeError(f"option {option} is declared twice: {owners[option].__module__}, {group.__module__}")
    return groups


_GROUPS = option_groups()


@checked("options")
class PoolOptions(*reversed(_GROUPS)):  # type: ignore[misc] # fields come in the order of the groups
    """Everything that a pool's declaration may set for the stages."""

    def __post_init__(self) -> None:
        for group in _GROUPS:
            if "__post_init__" in vars(group):
                vars(group)["__post_init__"](self)


def with_profile_options(declared: Mapping[str, Any], of_profile: Mapping[str, Any], where: str) -> PoolOptions:
    """Options that a pool declares over those of its profile; a mapping (`student_fit`) setting by setting.

    Raises ValueError that begins with `where` for what a profile may not set, or an option that does not exist.
    """
    own = sorted(name for name, info in fields_of(PoolOptions).items() if name in of_profile and is_of_one_pool(info))
    if own:
        raise ValueError(f"{where} may not set {', '.join(own)}: it belongs to one pool; set it in the pool's file")
    merged = dict(of_profile)
    for name, value in declared.items():
        given = merged.get(name)
        merged[name] = {**given, **value} if isinstance(given, Mapping) and isinstance(value, Mapping) else value
    return build(PoolOptions, merged, where)
