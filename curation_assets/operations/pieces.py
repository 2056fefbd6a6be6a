"""What a run of a pool takes besides its source: models and files, found before the first of them is fetched.

Nothing here asks a network or loads a model.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from curation_assets.core.errors import ExpectedError, few
from curation_assets.core.table_names import (
    FUSION_WEIGHTS,
)
from curation_assets.core.validation import fields_of, readers_of
from curation_assets.engines.presence import Part, State, part_at, parts_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Table, Tables
from curation_assets.scoring.derived import DERIVING_ROLES
from curation_assets.sources.all_options import PoolOptions
from curation_assets.sources.declaration import list_pools
from curation_assets.stages.distilled.tables import has_shipped_weights
from curation_assets.training.options import TrainingOptions


class MissingPiecesError(ExpectedError):
    """Something that a table of the run certainly needs is not there, and no fetch would bring it."""


@dataclass(frozen=True)
class Piece:
    """A model, a part of one, or a file."""

    name: str  # "captioner", "semantic_decoder: bridge", "option labels"
    address: str  # or path; "" where none is named
    state: State
    size: int | None  # bytes on this disk; None: unknown
    tables: tuple[str, ...]  # that need it
    advice: str = ""
    is_required: bool = True  # False: something stands in for it


def pieces_of(ctx: PoolContext, tables: Tables, names: Iterable[str] | None = None) -> list[Piece]:
    """Models and files that the tables called `names` (None: all) take, by role in the order of the flow."""
    chosen = [tables[name] for name in (tables if names is None else names)]
    by_role: dict[str, list[str]] = {}
    for table in chosen:
        for role in table.needs.roles:
            by_role.setdefault(role, []).append(table.name)
    pieces = [
        _piece(ctx, tables, f"{role}: {part.name}" if part.name else role, part, users)
        for role, users in by_role.items()
        for part in parts_of(role, ctx.profile, ctx.pool_models)
    ]
    return [*pieces, *_of_students(ctx, tables, chosen), *_files(ctx, chosen)]


def cautions_of(ctx: PoolContext) -> list[str]:
    """What is known to mislead of the methods that the pool runs with the models of its profile, a sentence each."""
    sentences = [
        (method.name, method.caution(ctx.profile.roles, ctx.profile.methods.get(method.name, {})))
        for stage in ("teachers", "signals")
        for method in ctx.methods(stage)
    ]
    return [f"{name}: {sentence}" for name, sentence in sentences if sentence is not None]


def check_pieces(pieces: Iterable[Piece]) -> None:
    """Raises MissingPiecesError that names every required piece that is missing, what needs it and what to do."""
    missing = [piece for piece in pieces if piece.state == "missing" and piece.is_required]
    if missing:
        sentences = [f"{_named(piece)} (for {few(piece.tables, 3)}): {piece.advice}" for piece in missing]
        raise MissingPiecesError(
            f"nothing was started, for {len(missing)} {'piece is' if len(missing) == 1 else 'pieces are'} missing:\n  "
            + "\n  ".join(sentences)
        )


def _piece(ctx: PoolContext, tables: Tables, name: str, part: Part, users: list[str]) -> Piece:
    state, advice = part.state, part.advice
    if state == "made":
        model = part.address.removeprefix("pool:")
        if not {f"distilled/{model}", f"teachers/{model}"} & set(tables):
            state, advice = "missing", f"no table of pool {ctx.pool.name!r} makes {part.address}; see its option distil"
    column = next((column for column, role in DERIVING_ROLES.items() if role == name), None)
    if state == "missing" and column is not None and f"signals/{column}" in users:
        advice += f"; or bring the column along: options: {{given: {{{column}: FILE}}}}"
    return Piece(name, part.address, state, part.size, tuple(users), advice)


def _of_students(ctx: PoolContext, tables: Tables, chosen: list[Table]) -> list[Piece]:
    """The checkpoint that a student starts from."""
    backbone = TrainingOptions.of(ctx).student_fit.backbone
    users = [table.name for table in chosen if table.name.startswith(("distilled/icc_student", "distilled/student_"))]
    users = [name for name in users if tables[name].is_folder]
    if backbone is None or not users:
        return []
    return [_piece(ctx, tables, "student_fit: backbone", part_at("", backbone, ctx.pool_models), users)]


SHIPPED_WEIGHTS = "fusion weights fitted on captions of LAION that people rated stand in, icc is by {student}; "
NO_WEIGHTS = "no fusion weights ship for these teachers and models: `curate pool set {pool} profile=photos`, or "
RATE = "rate some of yours (curate annotate sample, rate, merge) and set options: {{labels: FILE}}"


def _files(ctx: PoolContext, chosen: list[Table]) -> list[Piece]:
    made, pieces = {table.name for table in chosen}, []
    for option, info in fields_of(PoolOptions).items():
        users, given = tuple(name for name in readers_of(info) if name in made), getattr(ctx.options, option)
        if given is None or not users:
            continue
        for one in given if isinstance(given, tuple) else (given,):
            path = Path(str(one)).expanduser()
            is_pool = option == "reference_images" and str(one) in list_pools(ctx.settings)
            state: State = "here" if path.exists() or is_pool else "missing"
            size = path.stat().st_size if path.is_file() else None
            advice = "" if state == "here" else "there is no such file; correct the option in the pool's declaration"
            pieces.append(Piece(f"option {option}", str(path), state, size, users, advice))
    if ctx.ratings is None and FUSION_WEIGHTS in made:
        is_required = FlowOptions.of(ctx).fuse_on == "student" or not has_shipped_weights(ctx)
        advice = (NO_WEIGHTS if is_required else SHIPPED_WEIGHTS) + RATE
        advice = advice.format(pool=ctx.pool.name, student=ctx.profile.address("student"))
        pieces.append(Piece("option labels", "", "missing", None, (FUSION_WEIGHTS,), advice, is_required=is_required))
    return pieces


def _named(piece: Piece) -> str:
    return f"{piece.name} {piece.address}" if piece.address else piece.name
