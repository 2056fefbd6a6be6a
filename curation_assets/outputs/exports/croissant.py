"""Croissant 1.1 descriptions of an export, with PROV-O provenance and RAI fields; mlcroissant checks each one.

Written by hand rather than through mlcroissant's Metadata: that knows no PROV-O, and names one RAI field wrongly
(rai:dataDataManipulationProtocol).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curation_assets.core.version import __version__
from curation_assets.outputs.exports.manifest import Export
from curation_assets.outputs.summary.croissant_rai import FORM as RAI_FORM
from curation_assets.outputs.summary.croissant_rai import rai_properties
from curation_assets.outputs.summary.declared import SUMMARY_FILE, read_declared
from curation_assets.outputs.summary.facts import Facts, Section
from curation_assets.outputs.summary.phrases import KEPT, first_names
from curation_assets.stores.documents import save_json
from curation_assets.stores.releases import PROVENANCE_FILE, SUBSET_PARQUET
from curation_assets.stores.samples import OWN_ID

CROISSANT = "croissant.json"
CONFORMS_TO = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]

#: Croissant 1.1's standard @context, with the prefix of PROV-O.
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{
        name: f"cr:{name}"
        for name in (
            "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject",
            "fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5",
            "parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate",
            "separator", "source", "subField", "transform",
        )
    },
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "prov": "http://www.w3.org/ns/prov#",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}  # fmt: skip


class InvalidCroissantError(ValueError):
    """mlcroissant refuses a description."""


def write_croissant(export: Export, content: Mapping[str, Any]) -> None:
    """Check a description and write it to the export's croissant.json. Raises InvalidCroissantError."""
    check_croissant(content)
    save_json(export.folder / CROISSANT, content)


def check_croissant(content: Mapping[str, Any]) -> None:
    """Let mlcroissant parse and check a description. Raises InvalidCroissantError with its words."""
    import mlcroissant as mlc

    try:
        mlc.Dataset(json.loads(json.dumps(content)))  # it changes what it is given
    except (mlc.ValidationError, ValueError) as error:
        raise InvalidCroissantError(f"mlcroissant refuses the description: {error}") from error


def huggingface_croissant(export: Export, license_name: str, has_images: bool) -> dict[str, Any]:
    """Croissant of the Parquet folder: one record per sample, with the image as an image."""
    columns = {"sample_id": "sc:Text", "caption": "sc:Text", "url": "sc:URL", "image_sha256": "sc:Text"}
    columns |= {"width": "sc:Integer", "height": "sc:Integer", "shard": "sc:Text", "source_row": "sc:Integer"}
    columns |= {"multiplicity": "sc:Integer", **({OWN_ID: "sc:Text"} if OWN_ID in export.subset.rows.columns else {})}
    columns |= {name: "sc:URL" if name.endswith("_url") else "sc:Text" for name in export.subset.provenance}
    columns |= dict.fromkeys(export.subset.signals, "sc:Float")
    fields = [_field(name, kind, "parquet-files") for name, kind in columns.items()]
    if has_images:
        image = _field("image", "sc:ImageObject", "parquet-files")
        image["source"]["transform"] = {"jsonPath": "bytes"}
        fields.insert(1, image)
    file_set = _file_set("parquet-files", "data/*.parquet", "application/x-parquet")
    return _description(export, [file_set], fields, license_name)


def webdataset_croissant(export: Export, license_name: str = "unknown") -> dict[str, Any]:
    """Croissant of the tars: one record per row of the tables beside them; `key` finds its members."""
    columns = {"key": "sc:Text", "uid": "sc:Text", "caption": "sc:Text", "url": "sc:URL", "sha256": "sc:Text"}
    columns |= {"width": "sc:Integer", "height": "sc:Integer"}
    fields = [_field(name, kind, "tables") for name, kind in columns.items()]
    return _description(export, [_file_set("tables", "*.parquet", "application/x-parquet")], fields, license_name)


def release_croissant(facts: Facts, sections: Sequence[Section]) -> dict[str, Any]:
    """Croissant of a release: one record per kept sample, with RAI properties of the summary."""
    release = facts.release
    columns = {"sample_id": "sc:Text", "multiplicity": "sc:Integer"}
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": f"{release.pool}_{release.name}",
        "description": f"{release.counts['kept']} samples of pool {release.pool}, chosen by policy {release.subset}.",
        "conformsTo": CONFORMS_TO,
        "license": _licence_of(facts),
        "url": f"urn:sha256:{release.sha256}",
        "version": "1.0.0",
        "sdVersion": __version__,
        "dateCreated": release.created_at,
        "datePublished": release.created_at,
        "citeAs": f"{release.pool}/{release.name}, sha256 {release.sha256}",
        "creator": {"@type": "sc:Organization", "name": release.software},
        "distribution": _file_objects({"path": path, **facts} for path, facts in sorted(release.files.items())),
        "recordSet": [
            _record_set([_field(name, kind, SUBSET_PARQUET, "fileObject") for name, kind in columns.items()])
        ],
        **{f"rai:{name}": text for name, text in rai_properties(sections).items()},
    }


def _licence_of(facts: Facts) -> str:
    """Licences of the kept rows, the most rows first."""
    return first_names(facts.counted("licences", "licence", where=KEPT).rows["licence"])


def _file_set(identity: str, pattern: str, encoding: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": identity,
        "name": identity,
        "encodingFormat": encoding,
        "includes": pattern,
    }


def _field(name: str, kind: str, source: str, of: str = "fileSet") -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"samples/{name}",
        "name": name,
        "dataType": kind,
        "source": {of: {"@id": source}, "extract": {"column": name}},
    }


def _description(
    export: Export, file_sets: list[dict[str, Any]], fields: list[dict[str, Any]], license_name: str
) -> dict[str, Any]:
    facts = export.facts
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": f"{facts['pool']}_{facts['name']}",
        "description": _summary(export),
        "conformsTo": CONFORMS_TO,
        "license": license_name,
        "url": export.out.as_uri(),
        "version": "1.0.0",
        "sdVersion": __version__,
        "dateCreated": export.created_at,
        "datePublished": export.created_at,
        "citeAs": f"{facts['pool']}/{facts['name']}, manifest sha256 in manifest.json",
        "creator": {"@type": "sc:Organization", "name": f"curation_assets {__version__}"},
        "distribution": [*_file_objects(export.files()), *file_sets],
        "recordSet": [_record_set(fields)],
        **{f"rai:{name}": text for name, text in rai_fields(export).items()},
        **_provenance(export),
    }


def _record_set(fields: list[dict[str, Any]]) -> dict[str, Any]:
    key = "samples/key" if any(field["name"] == "key" for field in fields) else "samples/sample_id"
    return {
        "@type": "cr:RecordSet",
        "@id": "samples",
        "name": "samples",
        "description": "One record per sample; of a webdataset, per entry.",
        "key": {"@id": key},
        "field": fields,
    }


def _summary(export: Export) -> str:
    facts = export.facts
    chosen = facts["chosen_by"]
    how = f"by policy {chosen['policy']['name']}" if chosen["kind"] == "policy" else "by a given list"
    how += f", release {facts['release']}" if facts["release"] else ""
    return f"{export.counts[0]} samples of pool {facts['pool']}, chosen {how}."


_ENCODINGS = {".parquet": "application/x-parquet", ".tar": "application/x-tar", ".json": "application/json"}


def _file_objects(files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The data files with hash and size, so that a copy can be checked."""
    return [
        {
            "@type": "cr:FileObject",
            "@id": file["path"],
            "name": file["path"],
            "contentUrl": file["path"],
            "contentSize": f"{file['bytes']} B",
            "encodingFormat": _ENCODINGS[suffix],
            "sha256": file["sha256"],
        }
        for file in files
        if (suffix := "." + file["path"].rpartition(".")[2]) in (".parquet", ".tar")
    ]


def _provenance(export: Export) -> dict[str, Any]:
    """PROV-O: derived from these shards, generated by the policy's run with these models."""
    facts = export.facts
    shards = [
        {
            "@type": "prov:Entity",
            "@id": f"urn:sha256:{shard['content_sha256']}",
            "prov:label": f"{facts['pool']}/raw/samples of {shard['shard']}",
        }
        for shard in facts["shards"]
    ]
    models = [
        {
            "@type": ["prov:Entity", "prov:Plan"],
            "@id": f"urn:sha256:{model['weights_sha256']}" if model["weights_sha256"] else f"urn:model:{index}",
            "prov:label": f"{model['address']} revision {model['revision']}, used by {model['table']}",
        }
        for index, model in enumerate(facts["models"])
    ]
    chosen = facts["chosen_by"]
    activity: dict[str, Any] = {
        "@type": "prov:Activity",
        "@id": f"urn:sha256:{chosen.get('policy_version') or chosen['sha256']}",
        "prov:label": f"curation policy {chosen['policy']['name']}"
        if chosen["kind"] == "policy"
        else f"list {chosen['path']}",
        "prov:endedAtTime": export.created_at,
        "prov:used": _without_repeats([*shards, *models]),
        "prov:wasAssociatedWith": {
            "@type": "prov:SoftwareAgent",
            "@id": f"urn:software:curation_assets-{__version__}",
            "prov:label": f"curation_assets {__version__}",
        },
    }
    return {"prov:wasDerivedFrom": _without_repeats(shards), "prov:wasGeneratedBy": activity}


def _without_repeats(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One model may serve several tables: one entity per @id, the labels joined."""
    by_id: dict[str, dict[str, Any]] = {}
    for entity in entities:
        known = by_id.setdefault(entity["@id"], dict(entity))
        if entity["prov:label"] not in known["prov:label"]:
            known["prov:label"] += f"; {entity['prov:label']}"
    return list(by_id.values())


def rai_fields(export: Export) -> dict[str, Any]:
    """The RAI texts, from facts alone; of a release all that its summary in Croissant's form has.

    What an export is of its own comes before: how it was chosen, and that it is never rewritten.
    """
    own = _own_rai_fields(export)
    release = export.subset.release
    if release is None or PROVENANCE_FILE not in release.files:  # of a version before 0.4
        return own
    facts = Facts(release, read_declared(export.subset.ctx.settings.home / SUMMARY_FILE))
    return {**own, **rai_properties(RAI_FORM.sections(facts)), **{name: own[name] for name in _OF_THE_EXPORT}}


#: RAI properties whose text is an export's own.
_OF_THE_EXPORT = ("dataCollection", "dataManipulationProtocol", "dataReleaseMaintenancePlan")


def _own_rai_fields(export: Export) -> dict[str, str]:
    facts, pool = export.facts, export.subset.ctx.pool
    chosen = facts["chosen_by"]
    if chosen["kind"] == "policy":
        mixture = {chosen["policy"]["rank_by"]: facts["mixture"]} if facts.get("mixture") else {}
        cuts = "; then ".join(
            f"{mixture[cut['rank_by']]}: {cut['kept']} of {cut['candidates']}"
            if cut["rank_by"] in mixture
            else f"the best {cut['kept']} of {cut['candidates']} by {cut['rank_by']}"
            for cut in chosen["cuts"]
        )
        repeated = f" Repeats counted they are {facts['entries']} entries." if chosen["policy"].get("repeats") else ""
        before = "Duplicates and empty captions were dropped before."
        manipulation = f"Samples were selected, not changed: {cuts}.{repeated} {before}"
    else:
        manipulation = f"Samples were selected, not changed: those that {chosen['path']} lists."
    limits = [
        "Selection follows model scores: what the models cannot read or were not trained on is under-represented.",
        f"{facts['samples']} samples of {len(facts['shards'])} shards; shares by domain and caption length are in the "
        "card.",
    ]
    if facts["models"]:
        limits.append("Models: " + ", ".join(sorted({model["address"] for model in facts["models"]})) + ".")
    personal = (
        "None: the scenes are synthetic."
        if pool.is_planted
        else "Captions, URLs and images are those of their sources and may name or show people; nothing was blurred or "
        "removed for that reason unless a policy above says so."
    )
    return {
        "dataCollection": pool.source_kind.collected(pool),
        "dataManipulationProtocol": manipulation,
        "dataLimitations": " ".join(limits),
        "personalSensitiveInformation": personal,
        "dataReleaseMaintenancePlan": (
            "This export is never rewritten. After a takedown a new one is made and this one is flagged in the pool "
            "it came from; compare sample_ids.npy."
            + (f" What is taken down is listed at {feed}." if (feed := facts.get("takedown_feed")) else "")
        ),
    }
