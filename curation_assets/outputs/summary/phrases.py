"""Answers that several forms give: what a release says of its sources, its cuts and its models, in sentences."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from curation_assets.audit.ledger import ledger_facts
from curation_assets.outputs.summary.facts import Answer, Facts, Number, automatic, braced
from curation_assets.stores.parquet import text_sql

#: How a source may have been obtained, as a pool declares it.
OBTAINED = ("public", "licensed", "private", "user_data", "synthetic", "crawled", "other")
SHOWN_SOURCES = 20  # by name: a column of the input may name another in each row
WORDS_PER_TOKEN = 0.75  # of English prose in the usual sub-word vocabularies; fewer in other languages


def source_answers(facts: Facts, obtained: Iterable[str], none: str) -> list[Answer]:
    """A sentence for each source that was obtained so, with the rows kept of it; `none` where there is none."""
    found = [_source_answer(facts, source) for source in facts.sources(*obtained)]
    return found or [automatic("Sources", none, basis="release.json: about.sources")]


def _source_answer(facts: Facts, source: Mapping[str, Any]) -> Answer:
    name = source["name"]
    is_it = f"source = {text_sql(name)}"
    period = period_of(source)
    text = [f"{braced(name)}: {{kept}} rows kept of {{rows}}, {{image_bytes}} bytes of images, {{words}} words"]
    text += [braced(f"{label} {source[key]}") for label, key in (("link", "url"), ("licence", "licence"),
             ("text of the licence", "licence_url")) if source.get(key)]  # fmt: skip
    text += [f"collected {period}"] if period else []
    text += [braced(source["description"])] if source.get("description") else []
    numbers = {"kept": "kept", "rows": "rows", "image_bytes": "kept_image_bytes", "words": "kept_words"}
    made: dict[str, Number] = {key: facts.number(column, "sources", is_it) for key, column in numbers.items()}
    return automatic(f"Source {name}", "; ".join(text) + ".", made, basis="release.json: about.sources")


def period_of(source: Mapping[str, Any]) -> str:
    """'2024-01-01 to 2024-03-31', or what of it a source states."""
    began, ended = source.get("collected_from"), source.get("collected_to")
    return f"{began or 'unknown'} to {ended or 'unknown'}" if began or ended else ""


def undeclared_sources(facts: Facts) -> list[str]:
    """Sources of rows that no entry of the pool's `sources:` describes with how it was obtained."""
    described = {one["name"] for one in facts.about.get("sources") or [] if one.get("obtained")}
    return [name for name in facts.counts["sources"]["source"].to_list() if name not in described]


def undeclared_answers(facts: Facts) -> list[Answer]:
    """One answer to be provided for each source that is not described; of many, the first of them by rows kept."""
    names = undeclared_sources(facts)
    more = f" (and {len(names) - SHOWN_SOURCES:,} others)" if len(names) > SHOWN_SOURCES else ""
    return [
        Answer(
            f"How source {name}{more} was obtained",
            f"`sources:` in the declaration of the pool: an entry {name} with obtained, url, licence and period",
            "missing",
        )
        for name in names[:SHOWN_SOURCES]
    ]


def collection_period(facts: Facts) -> Answer:
    """When what was kept was fetched, or what the sources state."""
    first, last = facts.number("earliest_fetched_at"), facts.number("latest_fetched_at")
    if last.value is not None:
        undated = facts.number("kept_without_fetched_at")
        text = "{first} to {last}, by the times at which images were fetched ({undated} kept rows have none)."
        return automatic("Period of collection", text, first=first, last=last, undated=undated)
    stated = [f"{one['name']} {period}" for one in facts.about.get("sources") or [] if (period := period_of(one))]
    if stated:
        return automatic("Period of collection", "; ".join(stated) + ".", basis="release.json: about.sources")
    return facts.declared_answer("Period of collection", "latest_acquisition")


def languages(facts: Facts) -> Answer:
    """Languages of captions."""
    columns = ("language", "rows", "kept", "kept_words")
    return automatic(
        "Languages",
        "{known} in captions, identified by the program or stated by the input; {unknown} kept rows have none.",
        known=facts.number("kept_languages"),
        unknown=facts.number("kept_without_language"),
        tables=[facts.counted("languages", *columns)],
    )


def licences(facts: Facts) -> Answer:
    """Licences as recorded."""
    return automatic(
        "Licences as recorded with the rows",
        "{unknown} of {kept} kept rows have none on record.",
        unknown=facts.number("kept_without_licence"),
        kept=facts.number("kept"),
        tables=[facts.counted("licences", "licence", "rows", "kept")],
    )


def synthetic(facts: Facts) -> list[Answer]:
    """Generated captions with their models, and sources that are synthetic."""
    sources = [_source_answer(facts, source) for source in facts.sources("synthetic")]
    if not facts.counts["captions"]["caption_source"].drop_nulls().len():
        text = "Captions are those that came with the images: this run chose no generated ones."
        return [*sources, automatic("Generated captions", text, tables=[facts.counted("captions")])]
    models = [*facts.models_of("signals/generated_captions"), *facts.models_of("fused/chosen_caption")]
    return [
        *sources,
        automatic(
            "Generated captions",
            "Text: of {kept} kept rows {generated} have a generated caption, which exports with --captions chosen use. "
            "Models: " + braced(models_text(models)),
            generated=facts.number("kept", "captions", "starts_with(caption_source, 'generated')"),
            kept=facts.number("kept"),
            tables=[facts.counted("captions", "caption_source", "rows", "kept")],
            basis="manifests.jsonl: signals/generated_captions, fused/chosen_caption",
        ),
    ]


def models_text(models: Iterable[Mapping[str, Any]]) -> str:
    """'hub:x/y at REVISION (weights sha256 …)', each."""
    found = (
        f"{one['address']} at {one['revision']} (weights sha256 {one.get('weights_sha256') or 'unknown'})"
        for one in models
    )
    return ("; ".join(dict.fromkeys(found)) or "none") + "."


def signals(facts: Facts) -> Answer:
    """Opt-out signals that were found, what was refused, and whether it is looked at again."""
    kinds = facts.counts["signals"]["kind"].to_list()
    return automatic(
        "Reservations found",
        f"Kinds of signal on record: {braced(', '.join(kinds) or 'none')}; per kind, rows, refused rows, and when "
        "each was checked first and last. {refused} rows in all were refused by their site and are not in the data. "
        "Of what was fetched {checks} images are looked at again each night; what may no longer be used is shown to a "
        "person, who takes it down.",
        refused=facts.number("rows", "reasons", "starts_with(reason, 'opt_out') or starts_with(reason, 'robots_txt')"),
        checks=facts.said("about", "opt_out_checks"),
        tables=[facts.counted("signals")],
    )


def download(facts: Facts) -> Answer:
    """How images were fetched."""
    settings = facts.about.get("download")
    asked = "Crawler: names, behaviour"
    if not settings:
        text = "This program opened no URL: images, where there are any, came with their sources."
        return automatic(asked, text, basis="release.json: about.download")
    said = "; ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in settings.items())
    return automatic(asked, f"Fetches of URLs that the sources list, no links followed. {said}.",
                     basis="release.json: about.download")  # fmt: skip


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "none"
    return "none" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def policy(facts: Facts) -> Answer:
    """The cuts, and every reason with its rows."""
    chosen, _, profile, _ = ledger_facts(facts.release.ledger)
    steps = "; then ".join(f"{_amount(one)} by {one.rank_by}" for one in chosen.steps)
    licences = f" with licence {', '.join(chosen.licences)}" if chosen.licences else ""
    text = (
        f"Policy {chosen.name} ({chosen.version[:12]}) of profile {profile} kept, of what could be read{licences}: "
        f"{steps}. {chosen.description}"
    ).strip()
    return automatic(
        "Selection and filtering",
        braced(text) + " It was fitted on {fitted} rows. {kept} rows kept of {rows}: every reason is in the table.",
        fitted=facts.said("pool_size", file="cuts.json"),
        kept=facts.number("kept"),
        rows=facts.number("rows"),
        tables=[facts.counted("reasons")],
        basis="ledger.parquet: its policy and cuts",
    )


def _amount(step: Any) -> str:
    if step.fraction is not None:
        return f"the best {100 * step.fraction:.4g} %"
    return f"values from {step.threshold:g}" if step.threshold is not None else f"the best {step.count:,}"


def models(facts: Facts) -> Answer:
    """Models behind the verdicts."""
    columns = ("table", "address", "revision", "weights_sha256")
    found = ("; ".join(f"{one['table']}: " + models_text([one]) for one in facts.release.models)) or "none."
    return automatic("Models that scored the data", found,
                     basis=f"release.json: models ({', '.join(columns)})")  # fmt: skip


def duplicates(facts: Facts) -> Answer:
    """Rows that are not kept since another one is there."""
    return automatic(
        "Duplicates",
        "{exact} rows with the id of an earlier one were dropped, {near} by cuts or reasons that name duplicates.",
        exact=facts.number("rows", "reasons", "reason = 'duplicate_sample_id'"),
        near=facts.number("rows", "reasons", "reason <> 'duplicate_sample_id' and reason like '%duplicate%'"),
    )


def decontamination(facts: Facts) -> Answer:
    """What the release was checked against, benchmark by benchmark."""
    basis = "release.json: about.decontamination"
    checked = facts.about.get("decontamination") or []
    if not checked:
        return automatic("Decontamination", "Checked against no benchmark.", basis=basis)
    texts, numbers = [], {}
    for index, one in enumerate(checked):
        for name in ("items", "rows", "rows_not_compared", "found"):
            numbers[f"{name}{index}"] = facts.said("about", "decontamination", index, name)
        is_it = f"reason = {text_sql('benchmark:' + one['benchmark'])}"
        numbers[f"dropped{index}"] = facts.number("rows", "reasons", is_it)
        texts.append(
            braced(f"{one['benchmark']}@sha256:{one['sha256']}: ")
            + f"{{items{index}}} items, {{found{index}}} rows found, {{dropped{index}}} dropped, by "
            + braced(", ".join(one["methods"].values()))
            + f"; of {{rows{index}}} rows {{rows_not_compared{index}}} could not be compared"
        )
    return automatic("Decontamination", "Checked against " + ". ".join(texts) + ".", numbers, basis=basis)


def personal(facts: Facts) -> Answer:
    """Whether the method `personal_data` looked at the captions."""
    is_scored = any(one["asset"] == "signals/personal_data" for one in facts.manifests)
    if not is_scored:
        return automatic("Personal data in captions", "The policy does not look for it.", basis="manifests.jsonl")
    return automatic(
        "Personal data in captions",
        "Method personal_data looked for it in captions; {dropped} rows were dropped by it.",
        dropped=facts.number("rows", "reasons", "reason like '%signals.personal_data%'"),
        basis="manifests.jsonl: signals/personal_data",
    )


def top_domains(facts: Facts) -> pl.DataFrame:
    """Rows of domains.csv: the largest tenth of the domains of kept rows by size of content; of a small company the
    largest twentieth or 1,000, whichever is less."""
    column = "is_top_twentieth_or_1000" if facts.is_sme else "is_top_tenth"
    return facts.counts["domains"].filter(column).select("rank", "domain", "rows", "image_bytes", "words")


def shift(facts: Facts, name: str) -> str:
    """How the largest groups' shares of the rows change by the selection: 'en 60.0 % → 71.2 %, …'."""
    table, column = facts.counts[name], facts.counts[name].columns[0]
    rows, kept = max(int(table["rows"].sum()), 1), max(int(table["kept"].sum()), 1)
    largest = table.sort("rows", column, descending=[True, False], nulls_last=True).head(5)
    return ", ".join(
        f"{row[column] or 'unknown'} {row['rows'] / rows:.1%} → {row['kept'] / kept:.1%}"
        for row in largest.iter_rows(named=True)
    )
