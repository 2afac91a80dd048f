"""The small immutable values that a client's methods return. `.proto` is the API's complete message."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Optional, Tuple

from muster import _proto

_ENDED = frozenset(("SUCCEEDED", "FAILED", "CANCELLED"))


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of a model on the samples that are held out."""

    step: int  # version of the parameters
    loss: float
    accuracy: Optional[float]  # in [0, 1]; None unless the model classifies


@dataclasses.dataclass(frozen=True)
class Event:
    """A change of a job."""

    time: datetime.datetime
    state: str  # after the event
    reason: str  # "CHECKPOINT_COMMITTED"
    message: str


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, as it was when the coordinator answered."""

    id: str  # "linear-1"
    state: str  # QUEUED, PREPARING, RUNNING, RECOVERING, SUSPENDED, SUCCEEDED, FAILED or CANCELLED
    reason: str  # of the last change, "COMPLETED"
    message: str  # what happened, where, why, and what to try
    step: int  # updates applied
    total_steps: int  # 0: not known yet
    loss: Optional[float]  # of the last step; None: no step yet
    evaluation: Optional[Evaluation]  # the last one
    checkpoint: Optional[str]  # the last one, "linear-1@640"
    workers: Tuple[str, ...]
    ps: Tuple[str, ...]
    warnings: Tuple[str, ...]  # settings that may not be what the user means
    create_time: datetime.datetime
    start_time: Optional[datetime.datetime]
    end_time: Optional[datetime.datetime]
    proto: Any = dataclasses.field(repr=False, compare=False)  # muster.v1.Job

    @property
    def ended(self) -> bool:
        """Returns whether the job is SUCCEEDED, FAILED or CANCELLED."""
        return self.state in _ENDED


@dataclasses.dataclass(frozen=True)
class Update:
    """A job, and its events since the update before."""

    job: Job
    events: Tuple[Event, ...]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a job."""

    name: str  # "linear-1@640"
    job: str  # "linear-1"
    step: int
    size_bytes: int
    create_time: datetime.datetime
    proto: Any = dataclasses.field(repr=False, compare=False)  # muster.v1.Checkpoint


def job_id(job: object) -> str:
    """Returns the id of a Job, or of "jobs/linear-1" or "linear-1"."""
    name = job.id if isinstance(job, Job) else str(job)
    return name[len("jobs/"):] if name.startswith("jobs/") else name


def job_of(proto: Any) -> Job:
    progress = proto.progress
    evaluation = None
    if progress.HasField("evaluation_loss"):
        accuracy = progress.evaluation_accuracy if progress.HasField("evaluation_accuracy") else None
        evaluation = Evaluation(progress.evaluation_step, progress.evaluation_loss, accuracy)
    return Job(
        id=job_id(proto.name), state=_proto.enum_name(proto, "state"), reason=proto.reason, message=proto.message,
        step=progress.step, total_steps=progress.total_steps, loss=progress.loss if progress.step > 0 else None,
        evaluation=evaluation, checkpoint=_checkpoint_name(proto.checkpoint) if proto.checkpoint else None,
        workers=tuple(proto.workers), ps=tuple(proto.ps), warnings=tuple(proto.warnings),
        create_time=_time(proto.create_time), start_time=_optional_time(proto, "start_time"),
        end_time=_optional_time(proto, "end_time"), proto=proto)


def event_of(proto: Any) -> Event:
    return Event(_time(proto.time), _proto.enum_name(proto, "state"), proto.reason, proto.message)


def checkpoint_of(proto: Any) -> Checkpoint:
    return Checkpoint(name=f"{proto.job}@{proto.step}", job=proto.job, step=proto.step, size_bytes=proto.size_bytes,
                      create_time=_time(proto.create_time), proto=proto)


def _checkpoint_name(name: str) -> str:
    """Converts "jobs/linear-1/checkpoints/640" to "linear-1@640"."""
    _, job, _, step = name.split("/")
    return f"{job}@{step}"


def _time(timestamp: Any) -> datetime.datetime:
    """Converts a protobuf timestamp to a time in UTC."""
    time: datetime.datetime = timestamp.ToDatetime(tzinfo=datetime.timezone.utc)
    return time


def _optional_time(message: Any, field: str) -> Optional[datetime.datetime]:
    return _time(getattr(message, field)) if message.HasField(field) else None
