"""Errors of Muster. All derive from MusterError.

Branch on the class or on `reason`, never on the words of a message: they change. The page "Errors" of Muster's
documents (docs/reference/errors.md) explains every reason.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Dict, Optional, Sequence, Tuple, Type

if TYPE_CHECKING:
    from muster.results import Job


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault of a request."""

    field: str  # "training.optimizer.sgd.learning_rate"; "": the whole
    message: str
    place: str = ""  # "linear.yaml:12"; "": the job did not come from a text

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.field, self.message) if part)


class MusterError(Exception):
    """Base of all errors of this package."""

    code = "UNKNOWN"  # gRPC's canonical code
    retry_seconds: Optional[float] = None  # the coordinator's wait before the next attempt; None: it gave none

    def __init__(self, message: str, *, reason: str = "", faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.reason = reason or self.code  # "JOB_NOT_FOUND"
        self.faults: Tuple[Fault, ...] = tuple(faults)


class InvalidArgumentError(MusterError):
    """An argument is not valid. `faults` lists every fault that has a field."""

    code = "INVALID_ARGUMENT"


class InvalidSpecError(InvalidArgumentError):
    """A job is not valid. `faults` lists every fault with its field and, in a job file, its line."""


class NotFoundError(MusterError):
    """The job, checkpoint, member, file or context does not exist."""

    code = "NOT_FOUND"


class AlreadyExistsError(MusterError):
    """The file or object that the call would create exists already."""

    code = "ALREADY_EXISTS"


class PermissionDeniedError(MusterError):
    """The user may not do this."""

    code = "PERMISSION_DENIED"


class UnauthenticatedError(MusterError):
    """The coordinator does not know the user: no token or certificate, or one that is not valid."""

    code = "UNAUTHENTICATED"


class FailedPreconditionError(MusterError):
    """The state of a job or of the cluster does not allow this."""

    code = "FAILED_PRECONDITION"


class AbortedError(MusterError):
    """Another change came in between. Read again, then try again."""

    code = "ABORTED"


class ResourceExhaustedError(MusterError):
    """A limit is reached, or a disk is full."""

    code = "RESOURCE_EXHAUSTED"


class UnavailableError(MusterError):
    """No coordinator answers, or it is about to stop."""

    code = "UNAVAILABLE"


class DeadlineExceededError(MusterError, TimeoutError):
    """The time that was given is over."""

    code = "DEADLINE_EXCEEDED"


class DataLossError(MusterError):
    """Data are damaged."""

    code = "DATA_LOSS"


class InternalError(MusterError):
    """A fault of Muster."""

    code = "INTERNAL"


class JobEndedError(FailedPreconditionError):
    """A job ended in another state than the one that the program waited for. `job` is its last state."""

    def __init__(self, message: str, *, reason: str = "", job: Optional[Job] = None) -> None:
        super().__init__(message, reason=reason)
        self.job = job


class LoopError(FailedPreconditionError):
    """A training program uses its job in a way that the job cannot follow. The message has the remedy."""


class WorkerLost(UnavailableError):
    """The worker of a training program ended, and none took its place in time."""


class Suspended(SystemExit):
    """The job of a training program ended or stopped before its last step. The program ends, unless it catches this.

    `reason` is "suspended", "drained", "cancelled" or "failed". The exit code is 7 (try again) for the first two, else 8: muster launch
    then looks for the cause in other programs.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(7 if reason in ("suspended", "drained") else 8)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


_BY_CODE: Dict[str, Type[MusterError]] = {
    each.code: each
    for each in (InvalidArgumentError, NotFoundError, AlreadyExistsError, PermissionDeniedError, UnauthenticatedError,
                 FailedPreconditionError, AbortedError, ResourceExhaustedError, UnavailableError, DeadlineExceededError,
                 DataLossError, InternalError)
}


def error_of(code: str, message: str, reason: str = "", faults: Sequence[Fault] = ()) -> MusterError:
    """Returns the error for a canonical code, "NOT_FOUND"."""
    kind = _BY_CODE.get(code, MusterError)
    if kind is InvalidArgumentError and faults and reason != "INVALID_REQUEST":
        kind = InvalidSpecError  # with the reason "INVALID_SPEC", "MODEL_INVALID", "DATA_NOT_FOUND", ...
    error = kind(message, reason=reason or code, faults=faults)
    error.code = code
    return error
