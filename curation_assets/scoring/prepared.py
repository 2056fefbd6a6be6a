"""A method made ready to score what no pool holds: its settings, its models, and what decides the values."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
from PIL import Image

from curation_assets.core.roles import ROLES
from curation_assets.core.settings import PHOTO_PROFILE, Profile, Settings, load_profile
from curation_assets.core.validation import check_known
from curation_assets.methods import Method, get_method
from curation_assets.scoring.batches import LoadImage, Progress
from curation_assets.scoring.derived import DERIVED_COLUMNS, DERIVING_ROLES
from curation_assets.scoring.files import load_row_image, samples_to_score
from curation_assets.scoring.parameters import described_settings, with_parameters
from curation_assets.scoring.samples import score_samples
from curation_assets.stores.images import ImageRejected, as_rgb

DEFAULT_BATCH = 256  # samples, where the profile gives no role of the method a batch size
#: An image of a pair: a path, a decoded image, or None for a pair that has none.
ImageInput = Path | str | Image.Image | None


@dataclass(frozen=True)
class PreparedMethod:
    """A method with its settings fixed and its models loaded."""

    method: Method
    roles: Mapping[str, Any]  # engines by role name
    batch_size: int  # samples
    settings: Mapping[str, Any]
    made_by: Mapping[str, Any]  # models, generation settings and settings, JSON-able


def prepare_method(
    name: str, profile: Profile, columns: Collection[str] = (), settings: Mapping[str, Any] | None = None
) -> PreparedMethod:
    """Load what method `name` needs for samples that bring `columns`; `settings` go over the profile's: NAME of the
    method, or ROLE.NAME of a model that it runs, such as {'student.precision': 'bfloat16'}.

    Raises ValueError for an unknown method or setting, ModelUnavailableError for weights that are not on this disk.
    """
    from curation_assets.engines import load_engine  # torch waits until the arguments are known to be sound

    method = get_method(name)
    needed = roles_needed(method, columns)
    merged = dict(profile.methods.get(name, {}))
    for text, value in (settings or {}).items():
        role, sign, setting = text.partition(".")
        if sign:
            check_known(f"method {name} (in {text})", "role", [role], needed)
            profile = profile.with_generation(role, **{setting: value})
        else:
            merged[text] = value
    ready = with_parameters(method, **merged)
    roles = {role: load_engine(role, profile) for role in needed}
    return PreparedMethod(
        method=ready,
        roles=roles,
        batch_size=min((profile.batch_size.get(role, DEFAULT_BATCH) for role in roles), default=DEFAULT_BATCH),
        settings=merged,
        made_by={
            "models": {role: vars(engine.identity) for role, engine in roles.items()},
            "generation": {role: dict(profile.generation.get(role, {})) for role in roles},
            "settings": described_settings(method, merged),
        },
    )


def profile_for_method(settings: Settings, method: str) -> Profile:
    """The profile that scores files: what the caller chose, else that of photographs for a method that reads images.

    Raises ValueError for an unknown method.
    """
    read = set(get_method(method).columns)
    if settings.is_profile_chosen or not read & {"image", *DERIVED_COLUMNS}:
        return settings.profile
    return load_profile(PHOTO_PROFILE)


def profile_without_pool(profile: Profile, roles: Mapping[str, str] | None = None) -> Profile:
    """The profile with other addresses for some roles, and the shipped student where it names a pool's own.

    Raises ValueError for an unknown role.
    """
    given = dict(roles or {})
    check_known("roles", "role", given, ROLES)
    if profile.roles.get("student", "").startswith("pool:"):
        given.setdefault("student", "embedded:icc_student")
    return profile.with_roles(**given)


def roles_needed(method: Method, columns: Collection[str]) -> list[str]:
    """Roles to load: the method's, and those that derive columns that it reads and `columns` lack."""
    deriving = [DERIVING_ROLES[name] for name in method.columns if name in DERIVING_ROLES and name not in columns]
    return list(dict.fromkeys([*method.roles, *deriving]))


def score_captions(
    prepared: PreparedMethod, captions: Iterable[str | None], progress: Progress | None = None
) -> pl.DataFrame:
    """Values of N captions: caption, value (null with a reason), reason, and the method's details; N rows in order.

    Raises ValueError for a method that looks at images, and for what is no list of texts.
    """
    table = pl.DataFrame({"caption": several(captions, "captions")}, schema={"caption": pl.String})
    samples = samples_to_score(prepared.method, table, Path("captions"))
    return _scored(prepared, table, samples, None, progress)


def score_pairs(
    prepared: PreparedMethod,
    images: Sequence[ImageInput],
    captions: Sequence[str | None],
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Values of N image–caption pairs: image (path, null for an image in memory), caption, value, reason, details.

    Raises ValueError where there are not as many images as captions, and for what is no list of texts or images.
    """
    images, captions = several(images, "images"), several(captions, "captions")
    if len(images) != len(captions):
        raise ValueError(f"expected one caption per image, got {len(images)} images and {len(captions)} captions")
    names = [_name_of(image) for image in images]
    schema = {"image": pl.String, "caption": pl.String, "position": pl.Int64}
    table = pl.DataFrame({"image": names, "caption": list(captions), "position": range(len(names))}, schema=schema)

    def load_image(row: Mapping[str, Any]) -> Image.Image:
        image = images[row["position"]]
        if isinstance(image, Image.Image):
            return as_rgb(image)
        return load_row_image(Path("pairs"), row)  # relative to the working folder

    samples = samples_to_score(prepared.method, table, Path("pairs"), load_image)
    paths = [None if isinstance(image, Image.Image) else name for image, name in zip(images, names, strict=True)]
    shown = table.select(pl.Series("image", paths, dtype=pl.String), "caption")
    return _scored(prepared, shown, samples, load_image, progress)


def several(values: Iterable[Any], what: str) -> list[Any]:
    """The values as a list. Raises ValueError for what is none, and for captions that are neither a text nor None."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{what}: expected a list, got {type(values).__name__} {str(values)[:60]!r}; put it in a list")
    listed = list(values)
    odd = next((place for place, one in enumerate(listed) if not isinstance(one, str | None)), None)
    if what == "captions" and odd is not None:
        got = listed[odd]
        raise ValueError(f"captions[{odd}]: expected a text or None, got {type(got).__name__} {str(got)[:60]!r}")
    return listed


def _scored(
    prepared: PreparedMethod,
    shown: pl.DataFrame,
    samples: pl.DataFrame,
    load_image: LoadImage | None,
    progress: Progress | None,
) -> pl.DataFrame:
    scored = score_samples(
        prepared.method,
        samples,
        prepared.roles,
        load_image=load_image,
        batch_size=prepared.batch_size,
        progress=progress,
    )
    return shown.hstack(scored.drop("sample_id"))


def _name_of(image: ImageInput) -> str | None:
    """What an image goes by in its sample_id: its path, or the hash of its pixels."""
    if image is None:
        return None
    if not isinstance(image, Image.Image):
        return str(image)
    try:
        pixels = as_rgb(image).tobytes()
    except ImageRejected:  # the row keeps the reason; see `load_image`
        return "sha256:"
    return "sha256:" + sha256(repr(image.size).encode() + pixels).hexdigest()
