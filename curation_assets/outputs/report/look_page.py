"""The page of a first look: states, histograms, policies, and a gallery that is sorted in the browser."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.version import __version__
from curation_assets.flow.declared import worths_of
from curation_assets.flow.worth import web_worth_of
from curation_assets.methods import Method, lower_is_better
from curation_assets.outputs.look import NO_DEFAULT, SHOWN, Look
from curation_assets.outputs.pages import inlined, page_of
from curation_assets.outputs.report import image_texts, pictures
from curation_assets.outputs.thumbnails import thumbnail_of
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import ROW_KEY

PICTURE_PX = 112  # longer side
MAX_PICTURE_BYTES = 6 << 20  # of JPEG, a third more in the page
LANGUAGES = 12  # that are shown by name


def look_page(look: Look, source: str, commands: Sequence[str], more: str) -> str:
    """The page as text: it loads nothing and runs no script but its own. `commands`, `more`: of `pool_commands`."""
    script = inlined(Path(__file__).with_name("look.js").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
    data = _data(look)
    titles = {name: title for title, names in SHOWN.items() for name in names}
    order = [*titles, *(method.name for method in look.methods if method.name not in titles)]
    methods = sorted(look.methods, key=lambda method: order.index(method.name))
    without = sum(1 for row in data["rows"] if row["has_image"] and row["picture"] is None)
    return page_of(
        Path(__file__).with_name("look.html.jinja"),
        look=look,
        source=source,
        version=__version__,
        counts=dict(look.samples["status"].value_counts(sort=True).iter_rows()),
        notes=_notes(look, methods, without),
        signals=[(titles.get(method.name, "Also"), _section(look, method)) for method in methods],
        languages=_languages(look),
        duplicates=_duplicates(look),
        policies=[_policy(look, policy) for policy in look.policies],
        commands=commands,
        more=more,
        data=inlined(json.dumps(data, ensure_ascii=False, allow_nan=False), is_json=True),
        script=script,
        digest=digest,
    )


def _section(look: Look, method: Method) -> dict[str, Any]:
    table = look.values[method.name]
    valued = table["value"].drop_nulls()
    return {
        "method": method,
        "valued": valued.len(),
        "of": table.height,
        "missing": list(table["reason"].drop_nulls().value_counts(sort=True).iter_rows()),
        "worth": _worth(look, f"signals.{method.name}"),
        "picture": pictures.data_uri(pictures.histogram_figure({method.name: valued}, method.unit))
        if valued.n_unique() > 1
        else None,
        "text": image_texts.distribution_text(method.name, valued) if valued.len() else "",
    }


def _notes(look: Look, methods: Sequence[Method], without: int) -> list[str]:
    """What has to be known before a conclusion, one sentence or two each."""
    notes = [image_texts.states_text(look.samples)] if look.samples["reason"].count() else []
    if look.urls_left:
        notes.append(
            "The images of these rows are addresses of servers, and none was asked: alignment, quality and "
            "near-duplicates are known once a pool has fetched them."
        )
    if look.judged < look.rows:
        notes.append(
            f"Policies, and what takes long on a processor, are of the first {look.judged:,} rows that were drawn; "
            "--dear-rows N takes more."
        )
    if without:
        notes.append(f"{without:,} images have no picture here: they cannot be read, or the page would be too large.")
    cautions = (
        method.caution(look.ctx.profile.roles, look.ctx.profile.methods.get(method.name, {})) for method in methods
    )
    return [*notes, *filter(None, dict.fromkeys(cautions))]


def _worth(look: Look, reference: str) -> str | None:
    """How far a number can be trusted on such rows; of captions only, what texts of web pairs gave."""
    if look.ctx.pool.has_images:
        return worths_of(look.ctx, [reference]).get(reference)
    return str(web_worth_of(reference, look.ctx.profile, None))


def _languages(look: Look) -> tuple[str | None, str] | None:
    """Picture, where there are several, and text of the most frequent languages."""
    if "english" not in look.values:
        return None
    counted = list(look.values["english"]["language"].drop_nulls().value_counts(sort=True).iter_rows())
    if not counted:
        return None
    if len(counted) > LANGUAGES:
        others = counted[LANGUAGES:]
        counted = [*counted[:LANGUAGES], (f"{len(others)} others", sum(number for _, number in others))]
    names, numbers = zip(*counted, strict=True)
    listed = ", ".join(f"{name} {number:,}" for name, number in counted)
    picture = pictures.data_uri(pictures.counts_figure(names, {"captions": numbers})) if len(names) > 1 else None
    return picture, f"Captions by language: {listed}."


def _duplicates(look: Look) -> dict[str, Any] | None:
    if look.duplicates is None:
        return None
    others = look.duplicates.filter(pl.col("quality") == 0)
    sizes = others["representative"].value_counts()["count"] + 1
    return {
        "compared": look.duplicates["quality"].count(),
        "kinds": list(others["kind"].value_counts(sort=True).iter_rows()),
        "groups": sizes.len(),
        "picture": pictures.data_uri(pictures.histogram_figure({"groups": sizes}, "images of a group"))
        if sizes.len()
        else None,
        "text": image_texts.distribution_text("sizes of groups of near-duplicates", sizes) if sizes.len() else "",
    }


def _policy(look: Look, policy: Policy) -> dict[str, Any]:
    counted = dict(look.verdicts[policy.name]["verdict"].cast(pl.String).value_counts().iter_rows())
    return {"policy": policy, **{state: counted.get(state, 0) for state in ("kept", "dropped", "failed")}}


def _data(look: Look) -> dict[str, Any]:
    """What look.js shows: signals, policies, and every row with its picture, state, values and verdicts."""
    frame = look.samples.select(*ROW_KEY, "sample_id", "caption", "tar", "member", "image_sha256", "status", "reason")
    for name, table in look.values.items():
        frame = _joined(frame, table.select(*ROW_KEY, pl.col("value").alias(f"value:{name}")))
    for name, table in look.verdicts.items():
        frame = _joined(frame, table.select(*ROW_KEY, pl.col("verdict").cast(pl.String).alias(f"verdict:{name}")))
    if "english" in look.values:
        frame = _joined(frame, look.values["english"].select(*ROW_KEY, "language"))
    if look.duplicates is not None:
        twins = look.duplicates.filter(pl.col("representative").is_duplicated())
        frame = _joined(frame, twins.select(*ROW_KEY, twin="representative"))
    rows = frame.to_dicts()
    found = _pictures(look, rows)
    names = [method.name for method in look.methods]
    return {
        "signals": [
            {"name": name, "lower": lower_is_better(f"signals.{name}"), "brief": name not in NO_DEFAULT}
            for name in names
        ],
        "policies": list(look.verdicts),
        "rows": [
            {
                "id": row["sample_id"],
                "picture": picture,
                "has_image": row["member"] is not None,
                "caption": image_texts.clamped(row["caption"]),
                "state": row["status"],
                "reason": row["reason"],
                "language": row.get("language"),
                "twin": row.get("twin"),
                "values": [row[f"value:{name}"] for name in names],
                "verdicts": [row[f"verdict:{name}"] for name in look.verdicts],
            }
            for row, picture in zip(rows, found, strict=True)
        ],
    }


def _joined(frame: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    return frame.join(
        table.with_columns(pl.col("shard").cast(pl.String)), on=ROW_KEY, how="left", maintain_order="left"
    )


def _pictures(look: Look, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Base64 of a JPEG without metadata per row, until MAX_PICTURE_BYTES are full; None without an image that can be
    shown."""
    load_image = look.ctx.image_loader()

    def picture(row: Mapping[str, Any]) -> bytes | None:
        return thumbnail_of(load_image, row, PICTURE_PX, quality=72)[0] if row["status"] == "kept" else None

    made: list[str | None] = []
    size = 0
    with (
        look.ctx.progress.task("thumbnails", len(rows)) as advance,
        ThreadPoolExecutor(look.ctx.settings.threads) as pool,
    ):
        for data in pool.map(picture, rows):
            size += len(data or b"")
            made.append(base64.b64encode(data).decode() if data and size <= MAX_PICTURE_BYTES else None)
            advance(1)
    return made
