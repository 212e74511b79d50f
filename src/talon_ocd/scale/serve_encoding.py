"""Encoders of a served stream on Ray Serve (layer: scale).

The service stays where the stream's folder is, with its one owner and its own doors; only what has no memory, decoding
and the trunk, is done by replicas. Ray Serve starts them, looks after them, and replaces those that die.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from talon_ocd.durable import DurableStream
from talon_ocd.errors import ConfigError
from talon_ocd.images import ImageItem, Limits
from talon_ocd.scale.connection import connected
from talon_ocd.scale.serve_replica import Replica, Reply, Upload
from talon_ocd.scale.settings import RaySettings
from talon_ocd.service.encoding import EncodedImages
from talon_ocd.service.problems import busy
from talon_ocd.talon import Talon

PER_REPLICA = 2
"""Micro-batches of a replica at once: one is decoded while the other goes through the trunk."""
TRIES = 3
"""Replicas that may die of a micro-batch before it is refused."""
LONGEST_START = 300.0
"""Seconds that replicas may take to start and load the model."""
LONGEST_END = 30.0
"""Seconds that replicas may take to end."""
LOAD: dict[str, Any] = {
    "target_ongoing_requests": 1.0,
    "metrics_interval_s": 1.0,
    "look_back_period_s": 4.0,
    "upscale_delay_s": 2.0,
    "downscale_delay_s": 60.0,
}
"""When Ray Serve starts another replica: if each had more than one micro-batch for some seconds; a minute with less
ends one. By default it would hear of the load every ten seconds only, and then wait for half a minute."""
LOOK_SECONDS = 2.0
"""How often Ray Serve looks whether a replica lives; a dead one is replaced."""
FINISH_SECONDS = 5.0
"""How long a replica that shall end may take to finish, and one that never began is waited for."""
REST_SECONDS = 0.1
"""How often a replica that shall end looks whether it has finished; Ray Serve would wait for two seconds."""
_QUIET = {"log_level": "ERROR", "enable_access_log": False}
_log = logging.getLogger("talon_ocd.service")


@dataclass(frozen=True)
class Replicas:
    """Encoders that run.

    Attributes:
        handle: how they are reached.
        number: how many there are at most.
    """

    handle: DeploymentHandle[Any]
    number: int


class ServeEncoding:
    """Lets replicas encode; a micro-batch whose replica dies is given to another one.

    Args:
        replicas: who encodes.
        seconds: how long anybody waits for an answer.
        device: where the owner wants trunk outputs.
        at_end: called when it is closed.
    """

    def __init__(
        self, replicas: Replicas, seconds: float, device: torch.device, at_end: Callable[[], None] = lambda: None
    ) -> None:
        self.ahead = PER_REPLICA * replicas.number
        self._handle, self._seconds, self._device, self._at_end = replicas.handle, seconds, device, at_end
        self._senders = ThreadPoolExecutor(self.ahead, thread_name_prefix="talon-ray")

    def encode(self, items: Sequence[ImageItem], limits: Limits) -> Future[EncodedImages]:
        """Begin to encode a micro-batch."""
        return self._senders.submit(self._ask, [_upload(item) for item in items], limits)

    def close(self) -> None:
        """Finish what was begun, and end."""
        self._senders.shutdown(wait=True)
        self._at_end()

    def _ask(self, uploads: Sequence[Upload], limits: Limits) -> EncodedImages:
        ends = time.monotonic() + self._seconds
        for _ in range(TRIES):
            response = self._handle.encode.remote(uploads, limits)
            try:
                reply: Reply = response.result(timeout_s=max(ends - time.monotonic(), 0.0))
                return reply.encoded(uploads, self._device)
            except RayActorError as error:  # nothing was decided yet: it can be done again
                _log.warning("an encoder is gone (%s); another one gets its images.", type(error).__name__)
            except TimeoutError:  # nobody waits any longer
                response.cancel()  # type: ignore[no-untyped-call]
                break
            except RayServeException as error:
                _log.error("encoders can't be reached: %s", error)
                break
        raise busy("no encoder could take the image; nothing was learned, send it again.", 5)


def encoding_on_ray(
    talon: Talon, model: Path, seconds: float, settings: RaySettings
) -> Callable[[DurableStream], ServeEncoding]:
    """Return what a ``Service`` takes as ``encoding``: the replicas live as long as the service of a stream.

    Args:
        talon: the owner's model.
        model: the folder that it comes from; all machines must see it.
        seconds: how long a client waits for its answer.
        settings: where they run, and how many.
    """

    def begin(stream: DurableStream) -> ServeEncoding:  # the folder is locked by now: nobody else has its encoders
        with ExitStack() as stack:
            replicas = stack.enter_context(running_replicas(talon, model, stream.folder, settings))
            return ServeEncoding(replicas, seconds, talon.backbone.device, stack.pop_all().close)

    return begin


@contextmanager
def running_replicas(talon: Talon, model: Path, stream: Path, settings: RaySettings) -> Iterator[Replicas]:
    """Run encoders for the stream of a folder."""
    with connected(settings) as number:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it tells every step that it takes
        serve.start(proxy_location="Disabled", logging_config=_QUIET)
        name = app_name(stream)
        device = "cuda" if settings.gpus_per_encoder else None
        app = _deployment(number, settings).bind(str(model.resolve()), talon.fingerprint(), device)
        handle: DeploymentHandle[Any] | None = None
        try:
            handle = _begun(app, name)
            _wait_until_running(name)
            yield Replicas(handle, number)
        finally:
            _end(handle, name)


def app_name(stream: Path) -> str:
    """Return what Ray Serve calls the encoders of a stream; after a crash the next service takes them over.

    Machines that share a Ray may have streams under the same path: each is known by its machine, too.
    """
    return f"talon-{sha256(f'{socket.gethostname()}:{stream.resolve()}'.encode()).hexdigest()[:12]}"


def _begun(app: serve.Application, name: str) -> DeploymentHandle[Any]:
    target = serve.RunTarget(app, name=name, route_prefix=None, logging_config=_QUIET)
    handle: DeploymentHandle[Any] = serve.run_many([target], wait_for_applications_running=False)[0]
    return handle


def _wait_until_running(name: str) -> None:
    """Wait for replicas; ``serve.run`` would wait for ever where there is no room for them."""
    ends = time.monotonic() + LONGEST_START
    while (status := serve.status().applications[name]).status != ApplicationStatus.RUNNING:
        if status.status == ApplicationStatus.DEPLOY_FAILED:
            raise ConfigError(f"the encoders could not be started; can all machines read the model? ({status.message})")
        if time.monotonic() > ends:
            raise ConfigError(
                f"the encoders did not start within {LONGEST_START:g} s; do others hold the CPUs or GPUs of this Ray? "
                "Give fewer --encoders, or wait for them."
            )
        time.sleep(REST_SECONDS)


def _end(handle: DeploymentHandle[Any] | None, name: str) -> None:
    """Let replicas end; a Ray that does not answer any more is not waited for, because the stream must be closed."""

    def end() -> None:
        try:
            if handle is not None:
                handle.shutdown()  # it would tell of its load when Ray is gone
            serve.delete(name)
        except (RayError, RayServeException, TimeoutError) as error:  # the last: Ray Serve's own, after a minute
            _log.error("the encoders could not be told to end (%s).", error)

    ending = threading.Thread(target=end, name="talon-ray-end", daemon=True)
    ending.start()
    ending.join(LONGEST_END)
    if ending.is_alive():
        _log.error("Ray does not answer; the encoders could not be told to end.")


def _deployment(number: int, settings: RaySettings) -> Any:
    least = settings.least_encoders
    scaling = {"min_replicas": least, "max_replicas": number, **LOAD}
    return serve.deployment(
        **({"autoscaling_config": scaling} if least else {"num_replicas": number}),
        max_ongoing_requests=PER_REPLICA,
        ray_actor_options={"num_cpus": settings.cpus_per_encoder, "num_gpus": settings.gpus_per_encoder},
        health_check_period_s=LOOK_SECONDS,
        graceful_shutdown_wait_loop_s=REST_SECONDS,
        graceful_shutdown_timeout_s=FINISH_SECONDS,
    )(Replica)


def _upload(item: ImageItem) -> Upload:
    if not isinstance(item.payload, bytes):
        raise TypeError(f"{item.source}: only images in memory are served, not {type(item.payload).__name__}.")
    return Upload(item.source, item.payload)
