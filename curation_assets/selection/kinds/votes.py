"""Kind `votes`: voters with bands (keep, abstain, drop) and a label model that weighs them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, checked, setting
from curation_assets.methods import lower_is_better, oriented
from curation_assets.numeric.votes import DROP, KEEP, Voters, band_votes, fit_voters, keep_posterior
from curation_assets.selection.kinds import Kind, floats, no_reason, scored


@checked("voter")
class Voter:
    """One signal's votes: keep from `keep_from` on, drop what is worse than `drop_below`, between both none."""

    signal: str = setting(description="stage.table whose value votes; where it has none, it abstains.")
    keep_from: Number = setting(unit="of the signal", description="Values as good vote to keep.")
    drop_below: Number = setting(unit="of the signal", description="Values worse than it vote to drop.")

    def __post_init__(self) -> None:
        keep_from, drop_below = self.band
        if keep_from < drop_below:
            bound = "at most" if lower_is_better(self.signal) else "at least"
            raise ValueError(
                f"{self.signal}: keep_from must be {bound} drop_below {self.drop_below}, got {self.keep_from}"
            )

    @property
    def band(self) -> tuple[float, float]:
        """keep_from and drop_below among values of which higher is better."""
        return oriented(self.signal, float(self.keep_from)), oriented(self.signal, float(self.drop_below))

    @property
    def name(self) -> str:
        """The signal without its stage."""
        return self.signal.partition(".")[2]


@checked("votes")
class KIND(Kind):
    """Ranks by P(good | votes) of a label model fitted on the pool's own votes (formulas.md §15.6)."""

    voters: tuple[Voter, ...] = setting(description="Who votes; two or more signals.")

    def __post_init__(self) -> None:
        if len(self.signals) < 2 or len(set(self.signals)) < len(self.signals):
            raise ValueError(f"votes need two or more different signals, got {list(self.signals)}")

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of the voters."""
        return tuple(voter.signal for voter in self.voters)

    def votes(self, rows: pl.DataFrame) -> np.ndarray:
        """(N, V) int8."""
        return np.stack([band_votes(floats(rows, voter.signal), *voter.band) for voter in self.voters], axis=1)

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per voter: how it votes on good and on bad samples, how often, and the share of good ones."""
        votes = np.concatenate([self.votes(rows) for rows in shards])
        voters = fit_voters(votes)
        return pl.DataFrame(
            {
                "voter": self.signals,
                "keep_if_good": voters.keep_if_good,
                "keep_if_bad": voters.keep_if_bad,
                "keep_votes": (votes == KEEP).sum(axis=0),
                "drop_votes": (votes == DROP).sum(axis=0),
                "abstentions": (votes == 0).sum(axis=0),
                "prior": [voters.prior] * len(self.voters),
            }
        )

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """P(good); each voter's vote (1, 0, -1); who voted to drop."""
        votes = self.votes(rows)
        voters = Voters(fit["prior"][0], fit["keep_if_good"].to_numpy(), fit["keep_if_bad"].to_numpy())
        names = np.array([voter.name for voter in self.voters])
        patterns, pattern_of = np.unique(votes == DROP, axis=0, return_inverse=True)
        sentences = [f"votes to drop: {', '.join(names[one])}" if one.any() else "no vote to drop" for one in patterns]
        return scored(
            keep_posterior(votes, voters),
            no_reason(rows),
            [sentences[number] for number in pattern_of],
            **{f"{voter.name}_vote": votes[:, number] for number, voter in enumerate(self.voters)},
        )
