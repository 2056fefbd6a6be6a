"""A manifest: what a stored table is, and exactly what it was made from."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from curation_assets.core.roles import ModelIdentity
from curation_assets.core.seal import UNSEALED


@dataclass(frozen=True, slots=True)
class InputVersion:
    """One table that was read, in the version that was read."""

    asset: str  # "stage/name"
    partition: str | None
    content_sha256: str


@dataclass(frozen=True)
class Manifest:
    """Identity, origin and cost of one stored table (or model folder)."""

    asset: str  # "stage/name"
    partition: str | None  # shard key; None for a global table
    content_sha256: str  # of the logical content (tables) or of the files (folders)
    code_version: str
    models: tuple[Mapping[str, str], ...]  # address, revision, weights_sha256 of each model that answered
    config_hash: str
    inputs: tuple[InputVersion, ...]
    run_id: str
    row_count: int  # rows of a table; files of a folder
    seconds: float  # wall time of the computation
    written_at: str  # UTC, ISO 8601
    files: Mapping[str, str] = field(default_factory=dict)  # of a folder: relative name → sha256
    facts: Mapping[str, Any] = field(default_factory=dict)  # what its readers know it by, beside its rows
    #: What was otherwise in the version that this one replaced: code_version, models, config_hash as they were, and
    #: what the table itself remembers of it (`Table.changes`).
    before: Mapping[str, Any] = field(default_factory=dict)
    seal: str = field(default="", compare=False)  # of the file that this stands in (seal.py); '' until it is written

    @property
    def version(self) -> InputVersion:
        """What a table that reads this one records of it."""
        return InputVersion(self.asset, self.partition, self.content_sha256)

    @property
    def contents_read(self) -> dict[tuple[str, str | None], str]:
        """(table, partition) that it was made from → the content that it had."""
        return {(read.asset, read.partition): read.content_sha256 for read in self.inputs}

    def to_json(self) -> str:
        """Sorted, indented JSON; without a seal, with the zeros that one replaces."""
        content = {**vars(self), "seal": self.seal or UNSEALED}
        content |= {
            "inputs": [{name: getattr(read, name) for name in InputVersion.__slots__} for read in self.inputs],
            "models": [dict(model) for model in self.models],
            "files": dict(self.files),
        }
        for name in ("facts", "before"):
            if not content[name]:
                del content[name]
        return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """The manifest of a stored table. Raises ValueError for JSON that is none, or holds no seal."""
        try:
            content = json.loads(text)
            inputs = tuple(InputVersion(**_shared(version)) for version in content.pop("inputs"))
            content = _shared(content)
            manifest = cls(models=tuple(content.pop("models")), inputs=inputs, **content)
        except (json.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"expected a manifest as JSON, got {text[:80]!r} ({error})") from error
        if not manifest.seal:
            raise ValueError("its manifest holds no seal: a version before 0.3 wrote it, whose tables are not read")
        return manifest

    def is_made_from(
        self,
        code_version: str,
        config_hash: str,
        models: Sequence[Mapping[str, str]],
        inputs: Sequence[InputVersion] | None,
    ) -> bool:
        """True when code, configuration, models and input contents are as given (inputs None: whatever they were)."""
        recorded = (self.code_version, [*map(dict, self.models)], self.config_hash, _in_order(self.inputs))
        wanted = (code_version, [*map(dict, models)], config_hash, None if inputs is None else _in_order(inputs))
        return not any(differences(recorded, wanted).values())


#: What makes a stored table stale, the first that holds; these, "missing" before and "upstream" after them.
DIFFERENCES = ("code", "model", "settings", "input changed")


def differences(recorded: Sequence[Any], wanted: Sequence[Any]) -> dict[str, Any]:
    """Whether a table was made from another of each of DIFFERENCES than it would be now: the one rule of staleness.

    Values of one partition as its manifest has them, or arrays over all partitions, compared element by element
    (operations/planning.py). What is None in `wanted` is not compared: inputs of a frozen table, models not there yet.
    """
    pairs = zip(DIFFERENCES, recorded, wanted, strict=True)
    return {reason: now is not None and was != now for reason, was, now in pairs}


def _shared(content: dict[str, Any]) -> dict[str, Any]:
    """With one object per different text: hundreds of thousands of manifests have few names, and hashes recur."""
    return {name: sys.intern(value) if isinstance(value, str) else value for name, value in content.items()}


def _in_order(inputs: Sequence[InputVersion]) -> list[InputVersion]:
    return sorted(inputs, key=_input_order)


def _input_order(version: InputVersion) -> tuple[str, str]:
    return version.asset, version.partition or ""


def model_records(models: Sequence[ModelIdentity | Mapping[str, str]]) -> tuple[dict[str, str], ...]:
    """Identities as plain dicts, sorted by address."""
    records: list[dict[str, Any]] = [
        asdict(model) if isinstance(model, ModelIdentity) else dict(model) for model in models
    ]
    return tuple(sorted(records, key=lambda record: record["address"]))


def utc_now() -> str:
    """The time of day, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
