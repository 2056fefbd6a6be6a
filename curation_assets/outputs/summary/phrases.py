"""Answers that several forms give: what a release says of its sources, its cuts and its models, in sentences."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from curation_assets.core.table_names import NEAR_DUPLICATES
from curation_assets.flow.mixtures import mixture_in_words
from curation_assets.outputs.summary.facts import Answer, Counted, Facts, Number, automatic, braced
from curation_assets.stores.parquet import text_sql

#: How a source may have been obtained, as a pool declares it.
OBTAINED = ("public", "licensed", "private", "user_data", "synthetic", "crawled", "other")
#: The rows of `domains`: of sources that were crawled, or may have been, since nobody has declared them.
CRAWLED = "obtained is null or obtained = 'crawled'"
SHOWN_SOURCES = 20  # by name: a column of the input may name another in each row
SHOWN_NAMES = 5
LARGE_SHARE = 0.03  # of the content of all public data sets in a modality: larger ones are listed apart
WORDS_PER_TOKEN = 0.75  # of English prose in the usual sub-word vocabularies; fewer in other languages
NONE_ON_RECORD = "none on record"
KEPT = "kept > 0"


# -- sources ----------------------------------------------------------------------------------------------------------


def used(facts: Facts, question: str, *obtained: str) -> Answer:
    """Yes or no: whether kept rows are of sources that were obtained so, how many, and of which modalities."""
    where = f"obtained in ({', '.join(map(text_sql, obtained))})"
    kept, undeclared = (facts.number("kept", "sources", one) for one in (where, "obtained is null"))
    if kept.value:
        stated, numbers = modalities(facts, where)
        text = f"Yes. Kept rows: {{kept}}; sources: {{sources}}; modalities: {stated}."
        return automatic(
            question, text, numbers, kept=kept, sources=facts.number("source", "sources", f"{where} and kept > 0")
        )
    if undeclared.value:
        text = "Not known: of no source that is declared so; {undeclared} kept rows are of sources not declared."
        return automatic(question, text, undeclared=undeclared)
    text = "No: none of the {rows} kept rows of this release is of a source that is declared so."
    return automatic(question, text, rows=facts.number("kept"))


def modalities(facts: Facts, where: str) -> tuple[str, dict[str, Number]]:
    """'image ({images} images of {image_bytes} bytes), text ({captions} texts of {words} words)', as far as there are
    any, with its numbers; of the kept rows of the sources that fulfil `where`."""
    columns = {"images": "kept_images", "image_bytes": "kept_image_bytes", "captions": "kept_captions",
               "words": "kept_words"}  # fmt: skip
    numbers = {name: facts.number(column, "sources", where) for name, column in columns.items()}
    stated = ["image ({images} images of {image_bytes} bytes)"] if numbers["images"].value else []
    stated += ["text ({captions} texts of {words} words)"] if numbers["captions"].value else []
    return ", ".join(stated) or "none", numbers


def source_answers(facts: Facts, obtained: Iterable[str]) -> list[Answer]:
    """A sentence for each source with kept rows that was obtained so."""
    return [_source_answer(facts, source) for source in facts.sources(*obtained)]


def _source_answer(facts: Facts, source: Mapping[str, Any]) -> Answer:
    name = source["name"]
    is_it = f"source = {text_sql(name)}"
    period = period_of(source)
    stated, numbers = modalities(facts, is_it)
    licences = facts.counted("source_licences", "licence", "kept", where=is_it)
    text = [f"{braced(name)}: {{kept}} rows kept of {{rows}}: {stated}"]
    text += [braced(f"link {source['url']}")] if source.get("url") else []
    text += [f"licences of its kept rows: {braced(first_names(licences.rows['licence']))}"]
    text += [f"collected {period}"] if period else []
    text += [braced(source["description"])] if source.get("description") else []
    numbers = {"kept": facts.number("kept", "sources", is_it), "rows": facts.number("rows", "sources", is_it),
               **numbers}  # fmt: skip
    return automatic(f"Source {name}", "; ".join(text) + ".", numbers, basis="release.json: about.sources",
                     tables=[licences])  # fmt: skip


def first_names(names: pl.Series) -> str:
    """'cc-by-4.0, none on record, and 3 others'."""
    shown = [name or NONE_ON_RECORD for name in names.head(SHOWN_NAMES)]
    return ", ".join(shown) + (f" and {names.len() - len(shown):,} others" if names.len() > len(shown) else "")


def large_sets(facts: Facts) -> list[Answer]:
    """The public data sets of more than LARGE_SHARE of the content of all of them, and the others; none without any."""
    public = facts.kept_sources.filter(pl.col("obtained") == "public")
    columns = {"kept_image_bytes": "of the bytes of images", "kept_words": "of the words"}
    share = {name: (pl.col(name) / pl.col(name).sum()).fill_nan(0) for name in columns}
    shares = public.select("source", **share)
    is_large = pl.max_horizontal(*columns) > LARGE_SHARE
    texts = []
    for part in (shares.filter(is_large), shares.filter(~is_large)):
        named = (
            f"{row['source']} ({', '.join(f'{row[name]:.1%} {words}' for name, words in columns.items())})"
            for row in part.head(SHOWN_SOURCES).to_dicts()
        )
        more = f" and {part.height - SHOWN_SOURCES:,} others" if part.height > SHOWN_SOURCES else ""
        texts.append(", ".join(named) + more)
    counted = facts.counted("sources", "source", *columns, where="obtained = 'public' and kept > 0")
    large = f"Above {LARGE_SHARE:.0%} of the kept content of all public data sets in a modality: {texts[0]}."
    return [
        *([automatic("Large public data sets", large, tables=[counted])] if public.height else []),
        *([automatic("Other public data sets", f"{texts[1]}.", tables=[counted])] if texts[1] else []),
    ]


def period_of(source: Mapping[str, Any]) -> str:
    """'2024-01-01 to 2024-03-31', or what of it a source states."""
    began, ended = source.get("collected_from"), source.get("collected_to")
    return f"{began or 'unknown'} to {ended or 'unknown'}" if began or ended else ""


def undeclared_sources(facts: Facts) -> list[str]:
    """Sources of kept rows that no entry of the pool's `sources:` describes with how it was obtained."""
    return facts.kept_sources.filter(pl.col("obtained").is_null())["source"].to_list()


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


def collection_period(facts: Facts, where: str = "") -> Answer:
    """When the kept rows (of the sources that fulfil `where`: CRAWLED) were fetched, and what their sources state."""
    question = "Period of collection"
    first, last, undated = (
        facts.number(column, "sources", where)
        for column in ("earliest_fetched_at", "latest_fetched_at", "kept_without_fetched_at")
    )
    sources = [one for one in facts.sources() if not where or one.get("obtained") in (None, "crawled")]
    stated = [f"{one['name']} {period}" for one in sources if (period := period_of(one))] if undated.value else []
    if last.value is None and not stated:
        return facts.declared_answer(question, "collection_period")
    numbers = {} if last.value is None else {"first": first, "last": last, "undated": undated}
    text = ["{first} to {last}, by the times at which images were fetched ({undated} kept rows have none)"]
    text = (text if numbers else []) + ([f"as sources state: {braced('; '.join(stated))}"] if stated else [])
    return automatic(question, "; ".join(text) + ".", numbers, basis="release.json: about.sources" if stated else "")


def languages(facts: Facts) -> Answer:
    """Languages of captions."""
    columns = ("language", "rows", "kept", "kept_words")
    return automatic(
        "Languages",
        "{known} in captions, identified by the program or stated by the input; {unknown} kept rows have none.",
        known=facts.number("kept_languages"),
        unknown=facts.number("kept_without_language"),
        tables=[facts.counted("languages", *columns, where=KEPT)],
    )


def licences(facts: Facts) -> Answer:
    """Licences as recorded."""
    return automatic(
        "Licences as recorded with the rows",
        "{unknown} of {kept} kept rows have none on record.",
        unknown=facts.number("kept_without_licence"),
        kept=facts.number("kept"),
        tables=[facts.counted("licences", "licence", "rows", "kept", where=KEPT)],
    )


def synthetic(facts: Facts) -> list[Answer]:
    """Generated captions with their models, and sources that are synthetic."""
    sources = source_answers(facts, ("synthetic",))
    if not facts.counts["captions"]["caption_source"].drop_nulls().len():
        text = "Captions are those that came with the images: this run chose no generated ones."
        return [*sources, automatic("Generated captions", text, tables=[facts.counted("captions", where=KEPT)])]
    models = [*facts.models_of("signals/generated_captions"), *facts.models_of("fused/chosen_caption")]
    return [
        *sources,
        automatic(
            "Generated captions",
            "Text: of {kept} kept rows {generated} have a generated caption, which exports with --captions chosen use. "
            "Models: " + braced(models_text(models)),
            generated=facts.number("kept", "captions", "starts_with(caption_source, 'generated')"),
            kept=facts.number("kept"),
            tables=[facts.counted("captions", "caption_source", "rows", "kept", where=KEPT)],
            basis="manifests.jsonl: signals/generated_captions, fused/chosen_caption",
        ),
    ]


# -- what was done ----------------------------------------------------------------------------------------------------


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
    looked = "" if facts.about.get("download") else " This program asked no site: it read what images say inside alone."
    checks = facts.stated("about", "opt_out_checks")
    again = (
        "Of what was fetched {checks} images are looked at again each night; what may no longer be used is shown to a "
        "person, who takes it down."
        if checks.value
        else "Nothing is looked at again: {checks} images each night."
    )
    return automatic(
        "Reservations found",
        f"Kinds of signal on record: {braced(', '.join(kinds) or 'none')}; per kind, rows, refused rows, and when "
        f"each was checked first and last.{looked} {{refused}} rows in all were refused by their site and are not in "
        f"the data. {again}",
        refused=facts.number("rows", "reasons", "starts_with(reason, 'opt_out') or starts_with(reason, 'robots_txt')"),
        checks=checks,
        tables=[facts.counted("signals")],
    )


def download(facts: Facts) -> Answer:
    """How images were fetched."""
    settings = facts.about.get("download")
    question = "Crawler: names, behaviour"
    if not settings:
        text = "This program opened no URL: images, where there are any, came with their sources."
        return automatic(question, text, basis="release.json: about.download")
    stated = "; ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in settings.items())
    return automatic(question, f"Fetches of URLs that the sources list, no links followed. {stated}.",
                     basis="release.json: about.download")  # fmt: skip


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "none"
    if value is None:
        return "none"
    return json.dumps(value) if isinstance(value, bool) else str(value)


def policy(facts: Facts) -> Answer:
    """The cuts, and every reason with its rows."""
    chosen = facts.policy
    mixture, tables = mixture_statement(facts)
    stated = (facts.about.get("mixture") or {}).get("recipe")
    steps = "; then ".join(mixture if one.rank_by == stated else _amount(one) for one in chosen.steps)
    again = ", each as often as its value says" if chosen.repeats and not mixture else ""
    licences = f" with licence {', '.join(chosen.licences)}" if chosen.licences else ""
    text = (
        f"Policy {chosen.name} ({chosen.version[:12]}) of profile {facts.release.profile} kept, of what could be "
        f"read{licences}: {steps}{again}. {chosen.description}"
    ).strip()
    return automatic(
        "Selection and filtering",
        braced(text) + " It was fitted on {fitted} rows. {kept} rows kept of {rows}: every reason is in the table.",
        fitted=facts.stated("pool_size", file="cuts.json"),
        kept=facts.number("kept"),
        rows=facts.number("rows"),
        tables=[facts.counted("reasons"), *tables],
        basis="ledger: its policy and cuts",
    )


def _amount(step: Any) -> str:
    by = f"by {step.rank_by}"
    if step.fraction is not None:
        return f"the best {100 * step.fraction:.4g} % {by}"
    return f"values from {step.threshold:g} {by}" if step.threshold is not None else f"the best {step.count:,} {by}"


def mixture_statement(facts: Facts) -> tuple[str, list[Counted]]:
    """The mixture that the policy ranks by, with its shares as stated and as they are; '' where it ranks by none."""
    stated = facts.about.get("mixture")
    if not stated:
        return "", []
    counted = facts.counted("mixture", "mixture_group", "kept", "entries", where=KEPT)
    total = max(1, counted.rows["entries"].sum())
    had = [f"{name} {entries / total:.1%}" for name, _, entries in counted.rows.head(SHOWN_SOURCES).iter_rows()]
    more = ", …" if counted.rows.height > SHOWN_SOURCES else ""
    return f"{mixture_in_words(stated)}; shares of its {total:,} entries: {', '.join(had)}{more}", [counted]


def models(facts: Facts) -> Answer:
    """Models behind the verdicts."""
    columns = ("table", "address", "revision", "weights_sha256")
    found = ("; ".join(f"{one['table']}: " + models_text([one]) for one in facts.release.models)) or "none."
    return automatic("Models that scored the data", found,
                     basis=f"release.json: models ({', '.join(columns)})")  # fmt: skip


def duplicates(facts: Facts) -> Answer:
    """Rows that are not kept since another one is there."""
    exact = facts.number("rows", "reasons", "reason = 'duplicate_sample_id'")
    question, text = "Duplicates", "{exact} rows with the id of an earlier one were dropped"
    if not facts.was_made(NEAR_DUPLICATES):
        return automatic(question, f"{text}; near-duplicates were not looked for.", exact=exact)
    near = facts.number("rows", "reasons", "reason <> 'duplicate_sample_id' and reason like '%duplicate%'")
    return automatic(question, f"{text}, {{near}} by cuts or reasons that name duplicates.", exact=exact, near=near)


def decontamination(facts: Facts) -> Answer:
    """What the release was checked against, benchmark by benchmark."""
    basis = "release.json: about.decontamination"
    statements = decontamination_statements(facts)
    if not statements:
        return automatic("Decontamination", "Checked against no benchmark.", basis=basis)
    numbers = tuple(number for _, found in statements for number in found)
    stated = " ".join(f"{text[0].upper()}{text[1:]}" for text, _ in statements)
    return Answer("Decontamination", stated, "automatic", numbers=numbers, basis=basis)


def decontamination_statements(facts: Facts) -> list[tuple[str, tuple[Number, ...]]]:
    """A sentence per benchmark, with its numbers: what was found, and by what kept rows were compared with it."""
    return [_compared(facts, index, one) for index, one in enumerate(facts.about.get("decontamination") or [])]


def _compared(facts: Facts, index: int, one: Mapping[str, Any]) -> tuple[str, tuple[Number, ...]]:
    is_near = f"benchmark = {text_sql(one['benchmark'])}"
    numbers = {"items": facts.stated("about", "decontamination", index, "items")}
    is_recorded = facts.counts["decontamination"]["compared_by"].count() > 0
    if is_recorded:
        numbers |= {"found": facts.number("rows", "decontamination", is_near),
                    "near": facts.number("kept", "decontamination", is_near)}  # fmt: skip
    dropped = f"reason = {text_sql('benchmark:' + one['benchmark'])}"
    numbers |= {"dropped": facts.number("rows", "reasons", dropped), "kept": facts.number("kept")}
    left = [f"{reason} {count:,}" for reason, count in one["items_not_compared"].items()]
    text = braced(f"checked against {one['benchmark']}@sha256:{one['sha256']}: ") + "{items} items"
    text += f" (of which could not be compared: {', '.join(left)})" if left else ""
    if not is_recorded:  # an earlier version made the release
        text += ", {dropped} rows dropped; of {kept} kept rows it is not on record which were compared, and how."
        return automatic("", text, numbers).text, tuple(numbers.values())
    text += ", {found} rows found in it or near, {dropped} dropped, {near} kept. Of {kept} kept rows "
    ways = []
    for what, methods in (("the images of", ("bytes", "pdq", "copy")), ("the captions of", ("caption",))):
        limits = [one["methods"][method] for method in methods if method in one["methods"]]
        if set(one["methods"]) & set(methods) - {"bytes"}:
            numbers[methods[-1]] = facts.number(
                "kept", "decontamination", _is_compared(set(methods) & set(one["methods"]))
            )
            ways.append(f"{what} {{{methods[-1]}}} were compared, by {braced(', '.join(limits))}")
    numbers["none"] = facts.number("kept", "decontamination", f"not {_is_compared(one['methods'])}")
    text += "; ".join([*ways, "{none} could not be compared"]) + "."
    return automatic("", text, numbers).text, tuple(numbers.values())


def _is_compared(methods: Iterable[str]) -> str:
    """SQL: whether a row could be compared by one of them."""
    listed = ", ".join(text_sql(method) for method in sorted(methods))
    return f"list_has_any(string_split(coalesce(compared_by, ''), ' '), [{listed}])"


def personal(facts: Facts) -> Answer:
    """Whether the method `personal_data` looked at the captions."""
    if not facts.was_made("signals/personal_data"):
        return automatic("Personal data in captions", "The policy does not look for it.", basis="manifests.jsonl")
    return automatic(
        "Personal data in captions",
        "Method personal_data looked for it in captions; {dropped} rows were dropped by it.",
        dropped=facts.number("rows", "reasons", "reason like '%signals.personal_data%'"),
        basis="manifests.jsonl: signals/personal_data",
    )


def top_domains(facts: Facts) -> Counted:
    """Rows of domains.csv: the largest tenth of the domains of CRAWLED rows by size of content; of a small company the
    largest twentieth or 1,000, whichever is less."""
    column = "is_top_twentieth_or_1000" if facts.is_sme else "is_top_tenth"
    return facts.counted("domains", "rank", "domain", "rows", "image_bytes", "words", "undeclared", where=column)


def shift(facts: Facts, name: str) -> str:
    """How the largest groups' shares of the rows change by the selection: 'en 60.0 % → 71.2 %, …'."""
    table, column = facts.counts[name], facts.counts[name].columns[0]
    rows, kept = max(int(table["rows"].sum()), 1), max(int(table["kept"].sum()), 1)
    largest = table.sort("rows", column, descending=[True, False], nulls_last=True).head(SHOWN_NAMES)
    shown = [
        f"{row[column] or 'unknown'} {row['rows'] / rows:.1%} → {row['kept'] / kept:.1%}"
        for row in largest.iter_rows(named=True)
    ]
    others = [f"and {table.height - len(shown):,} others"] if table.height > len(shown) else []
    return ", ".join([*shown, *others])
