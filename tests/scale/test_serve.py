"""The service with its encoders on Ray Serve: all tests of the single-process service, and what can go wrong between.

The imported tests run as they are, over HTTP; only who encodes is another one. One Ray serves them all. One is written
anew: an unexpected error happens in another process here.
"""

# ruff: noqa: F401, F403, F811
# (imported tests and fixtures are used by being there)

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from talon_ocd import Talon
from talon_ocd.durable import DurableStream
from talon_ocd.errors import ConfigError, ModelError
from tests.cli.running import refused
from tests.cli.test_serve import serving
from tests.service import running as running_module
from tests.service.running import WAIT, digits, running
from tests.service.test_categories import *
from tests.service.test_concurrency import *
from tests.service.test_decide import *
from tests.service.test_docs import *
from tests.service.test_events import *
from tests.service.test_limits import *
from tests.service.test_openapi import *
from tests.service.test_security import *

# last: none of the modules above may put another fixture in their place
from tests.service.conftest import client, folder, served  # isort: skip

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Ray's own models
    pytest.importorskip("ray.serve", reason="the service on Ray needs the extra ray")
    import ray
    from ray import serve
    from ray.serve.handle import DeploymentHandle
    from ray.util import placement_group, remove_placement_group

    from talon_ocd.scale import serve_encoding
    from talon_ocd.scale.connection import connected
    from talon_ocd.scale.serve_encoding import ServeEncoding
    from talon_ocd.scale.serve_replica import Replica
from talon_ocd.scale.settings import RaySettings
from tests.scale.mortal import DEADLY, SURPRISING, MortalReplica


@pytest.fixture(scope="module", autouse=True)
def on_ray(fitted: Talon, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two replicas that encode for every service of this module, on a Ray with room for two more."""
    stream = tmp_path_factory.mktemp("ray") / "stream"
    with pytest.MonkeyPatch.context() as patch, connected(RaySettings(encoders=4)):
        patch.setattr(serve_encoding, "Replica", MortalReplica)
        with serve_encoding.running_replicas(fitted, model, stream, RaySettings(encoders=2)) as replicas:

            def encoding(_: DurableStream) -> ServeEncoding:
                return ServeEncoding(replicas, WAIT, fitted.backbone.device)

            patch.setattr(running_module, "ENCODING", encoding)
            yield


def test_an_unexpected_error_is_a_500_that_tells_nothing(  # type: ignore[no-redef]  # that of one process
    fitted: Talon, folder: Path
) -> None:
    with running(fitted, folder) as service:
        refused = service.client().decide(digits()[0], f"?source={quote(SURPRISING)}")
        assert refused.status == 500
        assert "secret" not in str(refused.problem("internal"))
        assert service.client().decide(digits()[0]).json["index"] == 0


def deadly(file: Path) -> str:
    return "?source=" + quote(f"{DEADLY}{file}")


def test_the_images_of_a_dead_replica_are_encoded_again(fitted: Talon, folder: Path, tmp_path: Path) -> None:
    with running(fitted, folder) as service, ThreadPoolExecutor(8) as pool:

        def send(number: int) -> int:
            query = deadly(tmp_path / str(number)) if number == 5 else ""
            answer = service.client().decide(digits()[number], query, key=f"key-{number}")
            assert answer.status == 200, answer
            return int(answer.json["index"])

        assert sorted(pool.map(send, range(30))) == list(range(30))
        assert service.service.stream.answered == 30
    assert (tmp_path / "5").exists()


def test_a_full_ray_is_told(fitted: Talon, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    shutdown: Any = DeploymentHandle.shutdown

    def noted(handle: DeploymentHandle[Any]) -> None:
        ended.append(handle.app_name)
        shutdown(handle)

    monkeypatch.setattr(DeploymentHandle, "shutdown", noted)
    monkeypatch.setattr(serve_encoding, "LONGEST_START", 0.5)
    taken = placement_group([{"CPU": 2}])
    ray.get(taken.ready())
    try:
        with (
            pytest.raises(ConfigError, match="do others hold the CPUs"),
            serve_encoding.running_replicas(fitted, model, folder, RaySettings(encoders=1)),
        ):
            raise AssertionError("all CPUs are taken")
    finally:
        remove_placement_group(taken)
    assert serve_encoding.app_name(folder) not in serve.status().applications
    assert ended == [serve_encoding.app_name(folder)]


def test_a_ray_that_does_not_answer_is_not_waited_for(
    fitted: Talon, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve_encoding, "LONGEST_END", 0.5)
    name, one = serve_encoding.app_name(folder), RaySettings(encoders=1)
    controller: Any = ray.get_actor("SERVE_CONTROLLER_ACTOR", "serve")
    process: int = ray.get(controller.get_pid.remote())
    try:
        with serve_encoding.running_replicas(fitted, model, folder, one):
            os.kill(process, signal.SIGSTOP)
        assert "Ray does not answer" in caplog.text
    finally:
        os.kill(process, signal.SIGCONT)
    ends = time.monotonic() + WAIT
    while name in serve.status().applications:  # it had been told, after all
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_encoders_that_do_not_end_are_told(
    fitted: Talon, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by a traceback of a thread: warnings of those are errors here."""

    def delete(name: str) -> None:
        serve_delete(name)
        raise TimeoutError("weren't deleted after 60s")

    serve_delete = serve.delete
    monkeypatch.setattr(serve, "delete", delete)
    with serve_encoding.running_replicas(fitted, model, folder, RaySettings(encoders=1)):
        pass
    assert "could not be told to end (weren't deleted after 60s)" in caplog.text


def test_the_command_joins_a_ray_and_survives(model: Path, folder: Path) -> None:
    """Killed, it finds its encoders again; told to stop, it answers what waits and takes them away."""
    options = ("--engine", "ray", "--address", ray.get_runtime_context().gcs_address, "--encoders", "1")
    name = serve_encoding.app_name(folder)
    with serving(model, folder, *options) as (asking, started):
        before = [asking.decide(image, key=f"k{at}").json["index"] for at, image in enumerate(digits()[:6])]
        assert started.stop(signal.SIGKILL) != 0
    assert name in serve.status().applications
    with serving(model, folder, *options) as (asking, started), ThreadPoolExecutor(4) as pool:
        again = [asking.decide(image, key=f"k{at}").json["index"] for at, image in enumerate(digits()[:6])]
        assert before == again == list(range(6))
        list(pool.map(asking.decide, digits()[6:20]))
        assert started.stop(signal.SIGTERM) == 0
    assert name not in serve.status().applications
    with Talon.from_pretrained(model).stream(folder) as stream:
        assert stream.answered == 20


def test_options_of_ray_are_checked(model: Path, folder: Path) -> None:
    words = ("serve", "-m", model, "--stream", folder, "--port", "0")
    assert "--engine ray" in refused(*words, "--encoders", "2")
    assert "at least 1" in refused(*words, "--engine", "ray", "--encoders", "0")
    assert "this Ray has 4" in refused(*words, "--engine", "ray", "--encoders", "5")
    assert "this Ray has 4" in refused(*words, "--engine", "ray", "--encoders", "5-6")
    assert "the fewest, at least 1" in refused(*words, "--engine", "ray", "--encoders", "4-1")
    assert "as in 1-4" in refused(*words, "--engine", "ray", "--encoders", "few")


def test_equal_paths_of_two_machines_are_two_streams(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = serve_encoding.app_name(folder)
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    assert serve_encoding.app_name(folder) != here


def test_another_model_is_refused(fitted: Talon, model: Path, folder: Path) -> None:
    with pytest.raises(ModelError, match="another model"):
        Replica(str(model), "the fingerprint of another one", None)
    assert Replica(str(model), fitted.fingerprint(), None) is not None
