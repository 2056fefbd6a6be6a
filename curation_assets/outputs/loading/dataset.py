"""Datasets of torch over a subset: `SubsetSamples` by number, `SubsetStream` in a shuffled order that can be resumed.

The order, ranks, workers and resuming are described in docs/user/loader.md, the choices in docs/decisions/0076.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import torch.distributed
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from curation_assets.core.errors import StoreError
from curation_assets.core.settings import is_in_bucket
from curation_assets.numeric.block_order import BlockOrder
from curation_assets.outputs.exports.subset import Subset, missing_counts
from curation_assets.outputs.loading.places import located
from curation_assets.outputs.loading.spans import Members
from curation_assets.stores.content_hash import frame_sha256
from curation_assets.stores.denylist import TAKEDOWN, Denylist
from curation_assets.stores.images import ImageLimits, decode_image, for_training, scored_image
from curation_assets.stores.objects import open_home

IMAGE, PIXELS, KEY = "image", "pixels", "key"
SHUFFLE_WINDOW = 1024  # entries; of photographs as trainings store them 20 to 100 MB
READ_ENTRIES = 512  # that a process reads at a time, and holds until they are taken
REFRESH_SECONDS = 900.0  # that what is known of a bucket may be old
SHOWN = 5
_ALWAYS = ("sample_id", "shard", "tar", "member", "image_sha256", "image_bytes", "offset", "length")  # columns held
MAX_WORKERS = 1024  # of one rank

Sample = dict[str, Any]
Missing = Literal["error", "skip"]


class MissingSampleError(StoreError, LookupError):
    """A sample of a subset is not where it was, or not what it was."""


class TakenDownError(MissingSampleError):
    """A sample was taken down since the dataset was opened."""


class _Shared:
    """Numbers that the main process and its workers share, whichever way these are started, and however long they live:
    persistent workers hear of a new epoch."""

    names = ("epoch", "position", "has_begun", "in_workers")

    def __init__(self) -> None:
        self.values = torch.zeros(len(self.names), dtype=torch.int64).share_memory_()
        self.skipped = torch.zeros(MAX_WORKERS, dtype=torch.int64).share_memory_()  # each counts in its own place

    def __getitem__(self, name: str) -> int:
        return int(self.values[self.names.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        self.values[self.names.index(name)] = value


@dataclass(frozen=True)
class Reading:
    """What is given of a sample."""

    columns: tuple[str, ...]
    transform: Callable[[Sample], Any] | None
    missing: Missing
    home: Path
    limits: ImageLimits

    @property
    def with_image(self) -> bool:
        """Whether tars are read."""
        return IMAGE in self.columns or PIXELS in self.columns


class SubsetSamples(Dataset[Any]):
    """The entries of a subset by number, in source order; a sample of multiplicity m is m entries in a row."""

    def __init__(self, subset: Subset, reading: Reading) -> None:
        check_columns(reading.columns, subset)
        self.name, self._process, self._reading = subset.name, os.getpid(), reading
        self._root, rows = subset.ctx.store.root, subset.rows
        missing = subset.missing.with_columns(detail=pl.lit(None, pl.String))
        if reading.with_image:
            rows, lost = located(subset)
            missing = pl.concat([missing, lost])
        self.missing = missing_counts(missing)  # reason → samples that are left out
        errors = missing.height - self.missing.get(f"dropped:{TAKEDOWN}", 0)
        if errors and reading.missing == "error":
            shown = missing.filter(pl.col("reason") != f"dropped:{TAKEDOWN}").drop("multiplicity").head(SHOWN)
            first = "; ".join(": ".join(filter(None, row)) for row in shown.iter_rows())
            raise MissingSampleError(
                f"{errors:,} of the {rows.height + missing.height:,} samples of {subset.name!r} are not where they "
                f'were: {first}. Bring them back, or leave them out with missing="skip"'
            )
        if not rows.height:
            raise ValueError(f"subset {subset.name!r} has no sample that can be read: {self.missing}")
        self._file, self._tars = _files(rows, self._root)
        files = pl.Series("file", self._file, dtype=pl.Int64)  # the order has blocks that end with them
        self.digest = frame_sha256(rows.select("sample_id", "multiplicity", files))[:16]
        kept = [name for name in rows.columns if name in {*reading.columns, *_ALWAYS}]
        # Arrow's own: what workers read after a fork must not wait for threads of polars
        self._rows: pa.Table = rows.select(kept).to_arrow(compat_level=pl.CompatLevel.newest())
        self._ends = np.cumsum(rows["multiplicity"].to_numpy())

    @property
    def files(self) -> np.ndarray:
        """(N,) number of the tar of each entry."""
        return np.repeat(self._file, np.diff(self._ends, prepend=0))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())  # in a worker that is not forked

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, entry: int) -> Any:
        return self.__getitems__([entry])[0]

    def __getitems__(self, entries: Sequence[int]) -> list[Any]:
        """Several entries, read together: torch's own DataLoader asks so for batches.

        Raises MissingSampleError for a member that changed or is missing, and for a sample taken down since the dataset
        was opened: a number must have its sample, whatever `missing` is. IndexError for a number beyond the entries.
        """
        numbers = np.asarray(entries, np.int64)
        if beyond := numbers[(numbers < -len(self)) | (numbers >= len(self))].tolist():
            raise IndexError(f"{self.name!r} has {len(self)} entries, there is no {beyond[0]}")
        read = list(self.read(numbers % len(self)))
        for sample in read:
            if isinstance(sample, MissingSampleError):
                raise sample
        return [self.given(sample) for sample in read if not isinstance(sample, MissingSampleError)]

    def read(self, entries: np.ndarray) -> Iterator[Sample | MissingSampleError]:
        """Samples of entries in this order, before `given`, or why one cannot be given."""
        if is_in_bucket(self._reading.home):
            if os.getpid() != self._process:  # a fork has the client's threads no more, and would wait for them
                raise ValueError(
                    "a home in a bucket is not read by workers that are forked: give the DataLoader "
                    'multiprocessing_context="forkserver"'
                )
            open_home(self._reading.home, max_age=REFRESH_SECONDS)  # what other machines took down since, too
        rows = np.searchsorted(self._ends, entries, side="right")
        chosen, place = np.unique(rows, return_inverse=True)
        columns, data = dict(zip(self._rows.column_names, self._rows.columns, strict=True)), dict[int, bytes]()
        records = [{name: column[row].as_py() for name, column in columns.items()} for row in chosen.tolist()]
        if self._reading.with_image:
            offsets, lengths = (np.array([one[name] for one in records], np.int64) for name in ("offset", "length"))
            data = Members(self._tars, self._file[chosen], offsets, lengths).read(np.arange(len(chosen)))
        denylist = Denylist.load(self._reading.home)
        for entry, row, at in zip(entries.tolist(), rows.tolist(), place.tolist(), strict=True):
            first = self._ends[row - 1] if row else 0
            sample = {**records[at], KEY: f"{records[at]['sample_id']}-{entry - first}"}
            if denylist.has("uid", sample["sample_id"]):
                yield TakenDownError(f"sample {sample['sample_id']} was taken down; open the dataset again")
                continue
            if self._reading.with_image:
                image: bytes | None = data[at]
                if image is None or hashlib.sha256(image).hexdigest() != sample["image_sha256"]:
                    # moved inside its tar, or not there any more
                    image, _, found = scored_image(self._root / sample["tar"], sample["member"], sample["image_sha256"])
                    if image is None:
                        yield _changed(sample, found)
                        continue
                sample[IMAGE] = image
            yield sample

    def given(self, sample: Sample) -> Any:
        """The columns of a sample, through `transform`."""
        reading = self._reading
        if PIXELS in reading.columns:
            sample[PIXELS] = decode_image(sample[IMAGE], reading.limits)
        if IMAGE in reading.columns:
            sample[IMAGE] = for_training(sample[IMAGE], reading.limits)[0]
        chosen = {name: sample[name] for name in reading.columns}
        return chosen if reading.transform is None else reading.transform(chosen)

    @property
    def leaves_out(self) -> bool:
        """Whether samples that are missing are left out."""
        return self._reading.missing == "skip"


class SubsetStream(IterableDataset[Any]):
    """The entries of a subset in the order of an epoch, each once over all ranks and DataLoader workers."""

    def __init__(
        self,
        samples: SubsetSamples,
        *,
        shuffle_seed: int | None = None,
        shuffle_window: int = SHUFFLE_WINDOW,
        batch_size: int = 1,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        for name, value in (("shuffle_window", shuffle_window), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if shuffle_seed is not None and shuffle_seed < 0:
            raise ValueError(f"shuffle_seed must be at least 0, or None for the source's order, got {shuffle_seed}")
        self.samples = samples
        self.rank, self.world_size = _ranks(rank, world_size)
        self._batch, self._drop_last = batch_size, drop_last
        self._order = BlockOrder(samples.files, shuffle_window, shuffle_seed)
        self._of = f"{samples.digest}:{shuffle_seed}:{shuffle_window}"  # what a state's order is of
        self._shared = _Shared()
        self._resume: tuple[int, int, int, list[int]] | None = None  # epoch, position, taken since, by which readers
        self._taken = 0  # positions of this reader since the shared position

    @property
    def missing(self) -> dict[str, int]:
        """Reason → samples that were not there when the dataset was opened, and are left out."""
        return self.samples.missing

    @property
    def skipped(self) -> int:
        """Entries left out while reading, by all workers so far: changed, missing, or taken down since."""
        return int(self._shared.skipped.sum())

    @property
    def epoch(self) -> int:
        """The epoch of the order in force."""
        return self._shared["epoch"]

    def __len__(self) -> int:
        """Entries of this rank in a whole epoch: over all ranks at most a batch apart, with `drop_last` equal."""
        share = _Share(0, len(self.samples), self._batch, self.rank, self.world_size, self._drop_last)
        return share.count

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch at its beginning, in an order of its own; before every one, as with torch's samplers."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._begin_at(epoch, 0, 0, [])

    def _begin_at(self, epoch: int, position: int, taken: int, readers: list[int]) -> None:
        shared, self._taken = self._shared, taken
        shared["epoch"], shared["position"], shared["has_begun"], shared["in_workers"] = epoch, position, 0, 0
        self._resume = (epoch, position, taken, readers) if taken else None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        shared, epoch, position = self._shared, self.epoch, self._shared["position"]
        taken, readers = 0, [self.world_size, workers, self._batch]
        if self._resume is not None and self._resume[:2] == (epoch, position):
            taken = self._resume[2]
            if self._resume[3] != readers:
                raise _AmidStepError(self._resume[3], readers)
        if worker == 0:
            if shared["has_begun"] and (position or taken):
                raise ValueError(
                    "this epoch was resumed in its middle, and reading it again would begin there; call "
                    "set_epoch(epoch) before every epoch"
                )
            shared["has_begun"] = 1
        if info is not None:
            shared["in_workers"] = 1
        self._taken = taken
        share = self._share(worker, workers)
        for positions in share.chunks(taken, READ_ENTRIES):
            entries = self._order.at(positions, epoch)
            for sample in self.samples.read(entries):
                self._taken += 1
                if not isinstance(sample, MissingSampleError):
                    yield self.samples.given(sample)
                elif self.samples.leaves_out or isinstance(sample, TakenDownError):
                    shared.skipped[worker] += 1
                else:
                    raise sample

    def _share(self, worker: int = 0, workers: int = 1) -> "_Share":
        reader, readers = self.rank + self.world_size * worker, self.world_size * workers
        position, count = self._shared["position"], len(self.samples)
        return _Share(position, count, self._batch, reader, readers, self._drop_last, self.world_size)

    # -- resuming -------------------------------------------------------------------------------------------------

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where this rank is: plain numbers and texts, to be saved with a checkpoint.

        `consumed`: samples that came out of the DataLoader since `set_epoch` or `load_state_dict`, steps × batch size.
        None: those that this object gave itself, without workers. Every rank's state is the same after equal steps.
        Raises ValueError without `consumed` where workers read: they are ahead of what the training has seen.
        """
        info, taken = get_worker_info(), self._taken if consumed is None else consumed
        position, workers = self._shared["position"], 1 if info is None else info.num_workers
        if info is None:
            if consumed is None and self._shared["in_workers"]:
                raise ValueError(
                    "workers read ahead of what came out of the DataLoader: give consumed, the steps since set_epoch "
                    "or load_state_dict times batch_size (which the dataset must know, too)"
                )
            taken += self._resume[2] if consumed is not None and self._resume is not None else 0
            share = self._share()
            if not 0 <= taken <= share.count:
                raise ValueError(f"consumed must be 0 to {share.count}, the samples left of this rank, got {taken}")
            if self.world_size == 1 or taken % self._batch == 0:
                position, taken = min(position + taken * self.world_size, share.end), 0
            elif taken == share.count:
                position, taken = share.end, 0
        return {
            "of": self._of,
            "epoch": self.epoch,
            "position": position,
            "taken": taken,  # by this reader alone
            "readers": [self.world_size, workers, self._batch],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: before the DataLoader is iterated, in every rank.

        Of states taken between steps ranks, workers and batch size may be others now. Raises ValueError for a state of
        another subset or order, and of one amid a step where these have changed.
        """
        if state["of"] != self._of:
            raise ValueError(
                f"the state is of {state['of']}, this dataset is {self._of} (samples:seed:window): its samples or the "
                "order have changed; begin the next epoch with set_epoch"
            )
        info = get_worker_info()
        readers = [self.world_size, 1 if info is None else info.num_workers, self._batch]
        if state["taken"] and state["readers"] != readers:
            raise _AmidStepError(state["readers"], readers)
        self._begin_at(state["epoch"], state["position"], state["taken"], readers)


class _AmidStepError(ValueError):
    def __init__(self, before: list[int], now: list[int]) -> None:
        super().__init__(f"the state was taken amid a step by [ranks, workers, batch size] {before}; now it is {now}")


@dataclass(frozen=True)
class _Share:
    """Positions of one reader of `readers`: of the batches from `start` on every `readers`-th, its number first."""

    start: int
    stop: int
    batch: int
    reader: int
    readers: int
    drop_last: bool
    ranks: int | None = None  # with `drop_last`: batches that come together; None: `readers`

    @property
    def end(self) -> int:
        """Position after the last that anybody reads."""
        step = self.batch * (self.ranks or self.readers)
        return self.start + (self.stop - self.start) // step * step if self.drop_last else self.stop

    @property
    def count(self) -> int:
        """Positions of this reader."""
        whole, rest = divmod(self.end - self.start, self.batch * self.readers)
        return whole * self.batch + min(max(rest - self.reader * self.batch, 0), self.batch)

    def chunks(self, taken: int, size: int) -> Iterator[np.ndarray]:
        """The positions after the first `taken`, at least `size` at a time."""
        for first in range(taken, self.count, max(size, self.batch)):
            mine = np.arange(first, min(first + max(size, self.batch), self.count))
            yield self.start + (mine // self.batch * self.readers + self.reader) * self.batch + mine % self.batch


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, ranks): as given, of torch.distributed, of the environment, else one."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"give rank and world_size, or neither; got {rank} and {world_size}")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be 0 to world_size - 1, got rank {rank} of {world_size}")
    return rank, world_size


def _files(rows: pl.DataFrame, root: Path) -> tuple[np.ndarray, tuple[Path, ...]]:
    """Number of the tar of each row, which neighbours in one tar share, and the tars."""
    runs = rows["tar"].fill_null("").rle().struct
    files = np.arange(len(lengths := runs.field("len")), dtype=np.int32)
    return np.repeat(files, lengths.to_numpy()), tuple(root / name for name in runs.field("value"))


def check_columns(columns: Sequence[str], subset: Subset) -> None:
    """Raise ValueError for none, for one that is not there, and for images of a pool that has captions only."""
    known = [KEY, IMAGE, PIXELS, *(name for name in subset.rows.columns if name != "multiplicity")]
    unknown = [name for name in columns if name not in known]
    if unknown or not columns:
        raise ValueError(f"columns must be some of {', '.join(known)}; got {', '.join(unknown) or 'none'}")
    if {IMAGE, PIXELS} & {*columns} and subset.rows["tar"].null_count() == subset.rows.height > 0:
        raise ValueError("this pool has captions only: leave image and pixels out of columns")


def _changed(sample: Sample, found: str) -> MissingSampleError:
    return MissingSampleError(
        f"shard {sample['shard']}: member {sample['member']} of {sample['tar']} (sample {sample['sample_id']}) was "
        f"{sample['image_bytes']:,} bytes with sha256 {sample['image_sha256']}; found {found}. Bring it back, or leave "
        'such samples out with missing="skip"'
    )
