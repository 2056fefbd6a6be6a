"""The guards: which private part of a library is used, with which versions it was tried, and what it gains.

Raising a library's version: docs/contributor/upgrading.md. A guard that is off leaves its part alone and takes the
public way. CURATION_FOREIGN_OFF turns guards off by name, or `all`.
"""

import functools
import logging
from dataclasses import dataclass
from importlib.metadata import version

from curation_assets.core.settings import foreign_parts_off

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Guard:
    """One use of what a library does not promise."""

    name: str
    library: str  # as its distribution is named
    tried: str  # versions that the tests passed with
    gain: str  # what is lost where it is off, as the end of a sentence

    def is_on(self) -> bool:
        """Whether the installed version is one of those tried and the environment does not turn this off."""
        return _is_on(self, not foreign_parts_off().isdisjoint(("all", self.name)))


@functools.cache  # one look at the installed version, one line in the log
def _is_on(guard: Guard, is_turned_off: bool) -> bool:
    from packaging.specifiers import SpecifierSet  # Dagster and transformers load it, `curate --help` does not

    if is_turned_off:
        logger.info("CURATION_FOREIGN_OFF turns %s off: without it %s", guard.name, guard.gain)
        return False
    installed = version(guard.library)
    if SpecifierSet(guard.tried, prereleases=True).contains(installed):
        return True
    logger.warning(
        "%s %s is not among the versions tried (%s): without %s, %s",
        guard.library, installed, guard.tried, guard.name, guard.gain,
    )  # fmt: skip
    return False


_DAGSTER = ("dagster", ">=1.13.27,<1.14")

EVENT_BATCHES = Guard("event_batches", *_DAGSTER, "every event of a shard is a transaction of its own")
INSTANCE_TABLES = Guard(
    "instance_tables", *_DAGSTER, "a takedown leaves Dagster's records on a database server to their owner"
)
RUNS_OF_COMMANDS = Guard(
    "runs_of_commands", *_DAGSTER, "runs of commands print late, through two more processes, and Jobs has them not"
)
SLEEP_FOR_SLOTS = Guard("sleep_for_slots", *_DAGSTER, "a run that waits for another one's slot takes a core")
SHARD_METADATA = Guard("shard_metadata", *_DAGSTER, "metadata of n shards takes n² steps")
SHARED_CODE_SERVER = Guard("shared_code_server", *_DAGSTER, "`curate ui` is refused")

CACHE_OF_ANY_MODEL = Guard(
    "cache_of_any_model", "transformers", ">=5.20,<6", "models whose decoder takes inputs of its own are refused"
)
OPEN_CLIP_DATA = Guard(
    "open_clip_data", "open_clip_torch", ">=3.3,<3.4", "no model is trained with open_clip's trainer"
)
WEBDATASET_SHUFFLE = Guard(
    "webdataset_shuffle", "webdataset", ">=0.2.111,<0.3", "no model is trained with open_clip's trainer"
)

GUARDS = tuple(value for value in list(globals().values()) if isinstance(value, Guard))
