"""The flow: the one word per stage that names key prefix, asset group, schema, SQL folder and file alike."""

#: Stages in the order in which data flows. Reading from a later stage is refused (see `check_reads_forward`).
STAGES: tuple[str, ...] = (
    "raw",
    "teachers",
    "standardised",
    "distilled",
    "signals",
    "fused",
    "filtered",
    "downstream",
)


class BackwardsReadError(ValueError):
    """An asset or SQL model reads from a stage that comes after its own."""


def stage_position(stage: str) -> int:
    """Place of `stage` in the flow, 0 is first. Raises ValueError for a word that is no stage."""
    try:
        return STAGES.index(stage)
    except ValueError:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}; got {stage!r}") from None


def check_reads_forward(reader: str, upstream: str) -> None:
    """Refuse a read against the flow. Both are 'stage/name' (or just 'stage').

    Raises BackwardsReadError when `upstream` belongs to a later stage than `reader`.
    """
    reader_stage, upstream_stage = reader.split("/")[0], upstream.split("/")[0]
    if stage_position(upstream_stage) > stage_position(reader_stage):
        raise BackwardsReadError(
            f"{reader} reads {upstream}, against the flow {' → '.join(STAGES)}; "
            f"move the reader to stage {upstream_stage!r} or later, or read an earlier table"
        )
