"""The program's side of docs/loop_protocol.md: the connection to a worker, its messages, and the memory that both share."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
import math
import mmap
import os
import socket
import struct
import threading
import time
import weakref
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from muster.errors import LoopError, Suspended, WorkerLost

_LOG = logging.getLogger("muster")
PROTOCOL = 1
PATIENCE_SECONDS = 60.0
NO_GRADIENT = 1  # flag of an entry of GRADIENTS
METRICS_MAX, METRIC_NAME_BYTES_MAX = 32, 64

_HEADER = struct.Struct("<IB3x")
_GRADIENTS = struct.Struct("<qfI")
_ENTRY = struct.Struct("<IId")
_TO_PROGRAM_BYTES_MAX = 64 << 20
_ENTRIES_MAX = 50_000  # of one message to the worker, at most 1 MiB
_FAILED_BYTES_MAX = 8 << 10  # the worker keeps no more
_RETRY_SECONDS = 0.2

Floats = npt.NDArray[np.float32]


class Kind(enum.IntEnum):
    HELLO = 1
    DATA = 2
    NEXT = 3
    GRADIENTS = 4
    EVALUATION = 5
    FAILED = 6
    WELCOME = 65
    REFUSED = 66
    BEGIN = 67
    END = 68
    RESULT = 69
    WAITING = 70


class ConnectionLost(Exception):
    """The connection to the worker ended."""


class Channel:
    """A Unix stream socket with messages. Messages may be sent by several threads."""

    _open: "weakref.WeakSet[Channel]" = weakref.WeakSet()

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()
        self._lock = threading.Lock()
        self.files: List[int] = []  # descriptors that have arrived
        self.close = weakref.finalize(self, _close, connected, self.files)
        Channel._open.add(self)

    @classmethod
    def connect(cls, path: str) -> Channel:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.connect(path)
        except OSError as error:
            connecting.close()
            raise ConnectionLost(f"{path}: {error.strerror}") from None
        return cls(connecting)

    def send(self, kind: Kind, body: bytes) -> None:
        with self._lock:
            try:
                self._socket.sendall(_HEADER.pack(len(body), kind) + body)
            except OSError as error:
                raise ConnectionLost(error.strerror or str(error)) from None
            except BaseException:  # Ctrl-C may have cut the message
                self._socket.close()
                raise

    def receive(self) -> Tuple[int, bytes]:
        """Blocks until a message has arrived. May be called again after an exception by a signal."""
        while True:
            if len(self._buffer) >= _HEADER.size:
                length, kind = _HEADER.unpack_from(self._buffer)
                if length > _TO_PROGRAM_BYTES_MAX:
                    raise ConnectionLost(f"a message of {length} bytes, of at most {_TO_PROGRAM_BYTES_MAX}")
                if len(self._buffer) >= _HEADER.size + length:
                    body = bytes(self._buffer[_HEADER.size:_HEADER.size + length])
                    del self._buffer[:_HEADER.size + length]
                    return kind, body
            try:
                part, files, _, _ = socket.recv_fds(self._socket, 1 << 16, 3, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            except socket.timeout:
                raise TimeoutError from None
            except OSError as error:
                raise ConnectionLost(error.strerror or str(error)) from None
            self.files.extend(files)
            if not part:
                raise ConnectionLost("the worker closed the connection")
            self._buffer += part

    def set_timeout(self, seconds: Optional[float]) -> None:
        self._socket.settimeout(seconds)

    @classmethod
    def close_in_child(cls) -> None:
        """Closes the sockets in a forked process, so that the worker notices the end of the process that attached."""
        for channel in list(cls._open):
            channel._socket.close()


os.register_at_fork(after_in_child=Channel.close_in_child)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A row of WELCOME's table."""

    name: str
    shape: Tuple[int, ...]
    offset: int
    statistic: bool
    frozen: bool
    group: int

    @property
    def range(self) -> slice:
        """Returns where the elements are in each memory."""
        return slice(self.offset, self.offset + math.prod(self.shape))


class Welcome(NamedTuple):
    job: str
    member: str
    parameters: Tuple[Parameter, ...]
    groups: Tuple[Mapping[str, float], ...]
    optimizer: Mapping[str, Any]
    elements: int
    batch_size: int
    seed: int
    has_schedule: bool


class Begin(NamedTuple):
    """A step to compute, and this worker's part of its batch."""

    attempt: int
    step: int
    batch: int
    first_position: int
    samples: int
    rank: int
    workers: int
    generation: int
    total_steps: int
    learning_rate: Optional[float]


class Session:
    """An attached program. It attaches again if the connection ends, for up to `patience` seconds.

    Process 0 calls next(), announce() and evaluate(). Other processes of a rank only see the memory.
    """

    def __init__(self, path: str, job: str, process: int = 0, processes: int = 1, patience: float = PATIENCE_SECONDS) -> None:
        self.path = path
        self.attachments = 0  # how often the program has attached; the memory is other memory each time
        self.welcome: Welcome
        self.gradients: Floats
        self.values: Tuple[Floats, Floats]  # of even and odd versions
        self._hello = {"protocol": PROTOCOL, "version": _version(), "job": job, "process": process, "processes": processes}
        self._patience = patience
        self._data: Optional[bytes] = None
        self._channel: Optional[Channel] = None
        self._is_asked = False  # NEXT has no answer yet
        self._is_done = False
        self._lost_since: Optional[float] = None
        self._pid = os.getpid()

    def attach(self) -> None:
        """Blocks until the worker has a job for this program."""
        self.check_process()
        while self._channel is None:
            try:
                self._channel = self._attach_once()
            except ConnectionLost as error:
                self._lose(error)

    def attach_again(self) -> None:
        self.close()
        self.attach()

    def set_data(self, samples: int, evaluation_samples: int) -> None:
        """Tells the worker the number of samples; 0: a stream without end."""
        data = _json({"samples": samples, "evaluation_samples": evaluation_samples})
        if self._data is None:
            self._data = data
            self._try_to_send(Kind.DATA, data)
        elif self._data != data:
            raise LoopError(f"the program has {samples} samples, {evaluation_samples} held out, and told the job other numbers before; "
                            "give every loader of a program the same")

    def next(self, finished: Optional[Mapping[str, Any]]) -> Optional[Begin]:
        """Blocks until the next step begins, and returns it; None after the last one. Raises Suspended at any other end.

        May be called again after an exception by a signal.
        """
        attachment = self.attachments
        while not self._is_done:
            self.attach()
            assert self._channel is not None
            try:
                if not self._is_asked:
                    # A worker that was attached to later knows nothing of earlier steps.
                    report = finished if attachment == self.attachments else None
                    self._channel.send(Kind.NEXT, _json({"finished": report}))
                    self._is_asked = True
                kind, body = self._receive(self._channel, Kind.BEGIN, Kind.END)
            except ConnectionLost as error:
                self._lose(error)
                continue
            self._is_asked = False
            self._lost_since = None
            if kind == Kind.BEGIN:
                return Begin(**{name: body.get(name) for name in Begin._fields})
            self._end(body)
        return None

    def announce(self, begin: Begin, weight: float, entries: Sequence[Tuple[int, int, float]]) -> None:
        """Hands gradients over: (parameter, flags, learning rate) each. A lost connection shows in next()."""
        for first in range(0, len(entries), _ENTRIES_MAX):
            part = entries[first:first + _ENTRIES_MAX]
            body = _GRADIENTS.pack(begin.attempt, weight, len(part)) + b"".join(_ENTRY.pack(*entry) for entry in part)
            self._try_to_send(Kind.GRADIENTS, body)

    def evaluate(self, step: int, samples: int, metrics: Mapping[str, float], timeout: float) -> Optional[Dict[str, float]]:
        """Blocks for the means over all workers. Returns None if the connection or the job ended."""
        body = _json({"step": step, "samples": samples, "metrics": {name: json_number(value) for name, value in metrics.items()}})
        if not self._try_to_send(Kind.EVALUATION, body):
            return None
        assert self._channel is not None
        self._channel.set_timeout(timeout)
        try:
            while True:
                kind, result = self._receive(self._channel, Kind.RESULT, Kind.END)
                if kind == Kind.END:  # the program evaluated for longer than the worker waits
                    self._end(result)
                    return None
                if result["step"] == step:
                    return {name: float(value) for name, value in result["metrics"].items()}
        except TimeoutError:
            raise LoopError(
                f"{self.welcome.job}: no result of the evaluation at step {step} within {timeout:g} s; every worker must "
                "call evaluate() at the same step") from None
        except ConnectionLost as error:
            self._lose(error)
            return None
        finally:
            if self._channel is not None:
                self._channel.set_timeout(None)

    def fail(self, message: str) -> None:
        """Tells the worker that the program ends with an error."""
        if os.getpid() == self._pid:
            kept = message.encode("utf-8", "replace")[-_FAILED_BYTES_MAX:].decode("utf-8", "ignore")
            self._try_to_send(Kind.FAILED, _json({"message": kept}))
            self.close()

    def close(self) -> None:
        self._is_asked = False
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LoopError(f"this process was forked from {self._pid}, which attached to the worker; join in the process that trains")

    def _end(self, end: Mapping[str, str]) -> None:
        """Detaches. Raises Suspended unless the job is done."""
        self.close()
        if end["reason"] != "done":
            raise Suspended(end["reason"], _end_message(self.welcome.job, end))
        self._is_done = True

    def _attach_once(self) -> Channel:
        channel = Channel.connect(self.path)
        try:
            channel.send(Kind.HELLO, _json({**self._hello, "pid": self._pid}))
            kind, body = self._receive(channel, Kind.WELCOME, Kind.REFUSED)
            if kind == Kind.REFUSED:
                if body["reason"] == "BUSY" and self.attachments:
                    raise ConnectionLost(body["message"])  # the worker has yet to notice the end of the last connection
                raise LoopError(f"the worker at {self.path} refused this program: {body['message']}", reason=body["reason"])
            self._take(body, channel)
            if self._data is not None:
                channel.send(Kind.DATA, self._data)
            return channel
        except BaseException:
            channel.close()
            raise

    def _take(self, body: Mapping[str, Any], channel: Channel) -> None:
        if body["protocol"] != PROTOCOL:
            raise LoopError(
                f"the worker {body['version']} speaks protocol {body['protocol']} and muster {self._hello['version']} speaks "
                f"{PROTOCOL}; install the package of the worker's version")
        welcome = _welcome(body)
        if self.attachments and (welcome.job, welcome.parameters) != (self.welcome.job, self.welcome.parameters):
            raise LoopError(
                f"the worker at {self.path} now has {welcome.job} instead of {self.welcome.job}; start the program again")
        self.gradients, even, odd = _memories(channel.files, welcome.elements)
        self.values = (even, odd)
        self.welcome = welcome
        self.attachments += 1

    def _receive(self, channel: Channel, *expected: Kind) -> Tuple[int, Any]:
        while True:
            kind, body = channel.receive()
            message = json.loads(body)
            if kind == Kind.WAITING:
                self._lost_since = None
                _LOG.info("%s: %s", self.path, message["message"])
            elif kind in expected:
                return kind, message
            elif kind == Kind.REFUSED:
                raise LoopError(f"the worker at {self.path} ended the connection: {message['message']}", reason=message["reason"])
            elif kind != Kind.RESULT:  # of an evaluation whose step began again
                raise LoopError(f"the worker sent message {kind} instead of {' or '.join(each.name for each in expected)}; "
                                "install the package of the worker's version")

    def _try_to_send(self, kind: Kind, body: bytes) -> bool:
        if self._channel is None:
            return False
        try:
            self._channel.send(kind, body)
            return True
        except ConnectionLost:
            return False  # next() finds the same and attaches again

    def _lose(self, error: ConnectionLost) -> None:
        """Waits before the next attempt. Raises WorkerLost if the patience is over."""
        self.close()
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
            _LOG.warning("the connection to the worker ended (%s); attaching again for %g s", error, self._patience)
        if now - self._lost_since >= self._patience:
            raise WorkerLost(
                f"no worker takes this program at {self.path} ({error}) for {self._patience:g} s; start a worker there, then "
                "this program again: the job continues at its next step") from None
        time.sleep(min(_RETRY_SECONDS, self._patience))


def _version() -> str:
    import importlib.metadata
    try:
        return importlib.metadata.version("muster-train")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def json_number(value: float) -> Union[float, str]:
    """Returns a number as JSON has it: one that is not finite is "nan", "inf" or "-inf"."""
    return value if math.isfinite(value) else str(value)


def _welcome(body: Mapping[str, Any]) -> Welcome:
    parameters = tuple(Parameter(each["name"], tuple(each["shape"]), each["offset"], each["statistic"], each["frozen"], each["group"])
                       for each in body["parameters"])
    return Welcome(parameters=parameters, groups=tuple(body["groups"]),
                   **{name: body[name] for name in Welcome._fields if name not in ("parameters", "groups")})


def _memories(files: List[int], elements: int) -> List[Floats]:
    """Maps the memory files, and closes their descriptors. The values are mapped for reading alone if the worker wants that."""
    if len(files) != 3:
        raise LoopError(f"the worker sent {len(files)} memory files instead of 3; install the package of the worker's version")
    arrays = []
    while files:
        if os.fstat(files[0]).st_size < 4 * elements:
            raise LoopError(f"a memory file of the worker has {os.fstat(files[0]).st_size} bytes instead of {4 * elements}")
        try:
            mapped = mmap.mmap(files[0], 4 * elements)
        except PermissionError:
            mapped = mmap.mmap(files[0], 4 * elements, access=mmap.ACCESS_READ)
        except OSError as error:
            raise LoopError(f"cannot share {4 * elements} bytes of memory with the worker: {error.strerror}; the model may be too large "
                            "for this host or its limits (ulimit -v)") from None
        arrays.append(np.frombuffer(mapped, dtype=np.float32))
        os.close(files.pop(0))
    return arrays


def _close(connected: socket.socket, files: List[int]) -> None:
    connected.close()
    while files:
        os.close(files.pop())


def _end_message(job: str, end: Mapping[str, str]) -> str:
    why = f": {end['message']}" if end.get("message") else ""
    return {
        "suspended": f"{job} is suspended{why}; muster resume {job} continues it",
        "drained": f"the worker of {job} drains{why}; start the program again beside another worker",
        "cancelled": f"{job} no longer uses this worker{why}: it was cancelled or suspended, it failed, or it goes on without the worker; "
                     f"muster describe {job} says which",
    }.get(end["reason"], f"{job} failed{why}; muster describe {job} says more")
