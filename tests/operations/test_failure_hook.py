"""A failed run is reported to a real command and a real server; neither changes how the run ends."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.definitions import build_definitions
from curation_assets.defs.dead_runs import KILLED
from curation_assets.defs.failures import COMMAND, failure_sensor, problems_of
from curation_assets.defs.launch import RunFailedError, prepare_instance, run_pool
from curation_assets.operations import failure_hook
from curation_assets.operations.failure_hook import FailureHook
from curation_assets.sources.declaration import add_pool
from tests.support.lineage_pools import jpeg, write_tar
from tests.support.raw_server import RawServer, Visit, reply

RAW = ["raw/registered_shards", "raw/downloads", "raw/samples"]
BAD = "photos-000001"
PYTHON = (sys.executable, "-c")


def bad_pool(home: Path) -> Settings:
    """Two shards; the second holds no image that can be decoded, so a blocking check fails."""
    for shard in range(2):
        rows = [
            (f"{n:06d}", "http://a.example/1.jpg", f"thing {n}", b"no jpeg" if shard else jpeg(n)) for n in range(4)
        ]
        write_tar(home / "tars" / f"{shard:06d}.tar", rows)
    settings = load_settings(home, "embedded")
    add_pool(settings, "photos", home / "tars", options={"min_success_rate": 0.75})
    return settings


def writer(path: Path) -> str:
    """A command that keeps what it reads, a line per message."""
    code = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read() + b'\\n')"
    return json.dumps([sys.executable, "-c", code, str(path)])


def messages(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def receiving(visits: list[bytes]) -> Any:
    """An answer that keeps the body of a POST."""

    def answer(visit: Visit) -> None:
        head, _, came = visit.head.partition("\r\n\r\n")
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        body = came.encode("latin-1")
        while len(body) < length:
            body += visit.connection.recv(65_536)
        visits.append(body)
        reply(204)(visit)

    return answer


def test_a_run_that_fails_tells_a_command_which_shard_was_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard"
    bad_pool(tmp_path)
    monkeypatch.setenv("CURATION_ON_FAILURE", writer(heard))
    with pytest.raises(RunFailedError):
        run_pool(load_settings(tmp_path, "embedded"), "photos", tables=RAW)
    (message,) = messages(heard)
    assert (message["event"], message["pool"], message["job"]) == ("run_failed", "photos", "photos_shards")
    (problem,) = message["problems"]
    assert problem.startswith(f"raw/samples of shard {BAD}: only 0.0% of the")
    run_pool(load_settings(tmp_path, "embedded"), "photos", tables=RAW, shards=["0"])
    assert len(messages(heard)) == 1, "a run that succeeds tells nobody"


def test_a_run_of_the_ui_tells_a_server_through_the_sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[bytes] = []
    bad_pool(tmp_path)
    with RawServer({"/hook": receiving(bodies)}) as server:
        monkeypatch.setenv("CURATION_ON_FAILURE", server.url("/hook"))
        monkeypatch.setenv("CURATION_ON_FAILURE_HOSTS", server.host)
        settings = load_settings(tmp_path, "embedded")
        definitions = build_definitions(settings)
        with prepare_instance(settings) as instance:
            instance.add_dynamic_partitions("photos", ["photos-000000", BAD])
            tags = {"dagster/asset_partition_range_start": "photos-000000", "dagster/asset_partition_range_end": BAD}
            selection = [dg.AssetKey(["photos", *name.split("/")]) for name in RAW]
            result = definitions.resolve_job_def("photos_shards").execute_in_process(
                instance=instance, tags=tags, asset_selection=selection, raise_on_error=False
            )
            assert not result.success
            (problem,) = problems_of(instance, result.dagster_run)
            assert problem.startswith(f"raw/samples of shard {BAD}: only 0.0%")
            sensor = failure_sensor(settings)
            assert sensor is not None
            context = dg.build_run_status_sensor_context(
                sensor_name="failed_runs",
                dagster_event=result.get_run_failure_event(),
                dagster_instance=instance,
                dagster_run=result.dagster_run,
            ).for_run_failure()
            sensor(context)
        (body,) = bodies
        message = json.loads(body)
        assert (message["pool"], message["problems"]) == ("photos", [problem])
        assert message["runs"] == [result.run_id]
        assert server.heads[0].startswith("POST /hook ")


def test_commands_tell_by_themselves_unless_they_were_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard"
    monkeypatch.setenv("CURATION_ON_FAILURE", writer(heard))
    sensor = failure_sensor(load_settings(tmp_path, "embedded"))
    assert sensor is not None

    @dg.op
    def breaks() -> None:
        raise ValueError("disk on fire")

    @dg.job
    def broken() -> None:
        breaks()

    command = {COMMAND: "curate run photos"}
    with dg.instance_for_test() as instance:
        for tags, count in ((command, 0), ({**command, KILLED: "pid 7 on host"}, 1), ({}, 2)):
            result = broken.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
            context = dg.build_run_status_sensor_context(
                sensor_name="failed_runs",
                dagster_event=result.get_run_failure_event(),
                dagster_instance=instance,
                dagster_run=instance.get_run_by_id(result.run_id),
            ).for_run_failure()
            sensor(context)
            assert len(messages(heard)) == count
    assert messages(heard)[-1]["problems"] == ["breaks: ValueError: disk on fire"]


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (FailureHook(words=("/no/such/program",)), "No such file"),
        (
            FailureHook(words=(sys.executable, "-c", "import sys; sys.exit('mail is down')")),
            "exit status 1; mail is down",
        ),
        (FailureHook(words=(sys.executable, "-c", "import time; time.sleep(600)")), "not done after 0.5 s"),
        (FailureHook(url="http://127.0.0.1:1/secret", allow_hosts=("127.0.0.1",)), "refused"),
        (FailureHook(url="http://localhost:8099/secret"), "is refused (private_address)"),
    ],
)
def test_a_receiver_that_fails_costs_a_sentence_and_no_secret(
    hook: FailureHook, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_hook, "MAX_SECONDS", 0.5)
    began = time.monotonic()
    said = hook.report("photos", ["raw/samples of shard photos-000001: bad"])
    assert said is not None
    assert sentence in said
    assert "secret" not in said
    assert time.monotonic() - began < 60


def test_a_server_that_refuses_or_never_answers_costs_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_hook, "MAX_SECONDS", 0.5)
    with RawServer(
        {"/no": reply(500), "/slow": lambda visit: visit.wait(60), "/away": reply(302, Location="/no")}
    ) as server:
        for path, sentence in (("/no", "HTTP 500"), ("/slow", "timed out"), ("/away", "HTTP 302")):
            said = FailureHook(url=server.url(path), allow_hosts=(server.host,)).report("photos", [])
            assert said is not None
            assert sentence in said, path


@pytest.mark.parametrize("text", ["notify --pool", "[]", "[1]", '{"a": 1}', "ftp://a.example/", '[""]'])
def test_what_is_no_hook_is_refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_ON_FAILURE", text)
    with pytest.raises(ValueError, match="CURATION_ON_FAILURE must be a JSON list"):
        FailureHook.of(load_settings(tmp_path, "embedded"))


def test_a_private_host_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_ON_FAILURE", "http://127.0.0.1:8099/token-1234")
    with pytest.raises(ValueError, match=r"refused \(private_address\).*CURATION_ON_FAILURE_HOSTS") as refusal:
        FailureHook.of(load_settings(tmp_path, "embedded"))
    assert "token" not in str(refusal.value)
    monkeypatch.setenv("CURATION_ON_FAILURE_HOSTS", "127.0.0.1:8099, other.example")
    hook = FailureHook.of(load_settings(tmp_path, "embedded"))
    assert hook is not None
    assert hook.allow_hosts == ("127.0.0.1:8099", "other.example")
