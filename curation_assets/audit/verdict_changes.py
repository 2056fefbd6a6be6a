"""What became of verdicts when tables were made again, and which models, versions and settings are others than before.

Each table's manifest keeps what the version that it replaced had otherwise (`Manifest.before`).
"""

from collections import Counter
from dataclasses import dataclass

from curation_assets.audit.ledger import ledger_policies, manifests_behind
from curation_assets.core.plain_json import number
from curation_assets.selection.cut import cut_of_frame
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.shard_store import ShardStore

_MADE_FROM = {"code_version": "version", "models": "model", "config_hash": "settings"}


@dataclass(frozen=True)
class VerdictChanges:
    """Changes of one policy's verdicts, over the rows that were judged before."""

    policy: str
    flips: dict[str, int]  # 'kept → dropped' → rows
    thresholds: tuple[float | None, float | None]  # of the last step, before and after
    why: list[str]  # sentences: tables of which version, model or settings are others

    @property
    def has_moved(self) -> bool:
        """Whether the cut is another."""
        return self.thresholds[0] != self.thresholds[1]


def verdict_changes(store: ShardStore, since: str = "") -> list[VerdictChanges]:
    """Policies of which a verdict or the cut is another than before, by name, by tables written at the time `since`
    (UTC, ISO 8601) or later."""
    found = []
    for name in ledger_policies(store):
        flips, behind, cut = Counter[str](), dict[str, Manifest](), store.manifest(f"filtered/{name}_cut")
        threshold = cut_of_frame(store.read(f"filtered/{name}_cut")).threshold
        was = threshold
        if cut is not None and cut.written_at >= since:
            was = number(cut.before.get("threshold", threshold))
        for shard in store.partitions(f"filtered/{name}"):
            manifest = store.manifest(f"filtered/{name}", shard)
            if manifest is not None and manifest.written_at >= since and manifest.before.get("verdicts"):
                flips.update(manifest.before["verdicts"])
                behind |= {one.asset: one for one in manifests_behind(store, manifest.asset, shard)}
        if flips or was != threshold:
            causes = [_cause(one) for _, one in sorted(behind.items()) if one.written_at >= since]
            found.append(VerdictChanges(name, dict(sorted(flips.items())), (was, threshold), [*filter(None, causes)]))
    return found


def _cause(manifest: Manifest) -> str:
    """'signals/icc: version 3 → 4'; '' where only its inputs are others. Of a policy's tables the policy matters."""
    before = manifest.before
    if manifest.asset.startswith("filtered/"):
        was, now = (str(code).split()[-1:] for code in (before.get("code_version", ""), manifest.code_version))
        return "the policy is another" if was and was != now and manifest.facts else ""
    changed = [
        f"{word} {_shown(before[name])} → {_shown(getattr(manifest, name))}"
        for name, word in _MADE_FROM.items()
        if name in before
    ]
    return f"{manifest.asset}: {', '.join(changed)}" if changed else ""


def _shown(made_from: object) -> str:
    if isinstance(made_from, list | tuple):
        return " and ".join(sorted(f"{one['address']} {one['weights_sha256'][:8]}" for one in made_from)) or "none"
    return str(made_from)[:8]
