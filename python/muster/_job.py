"""The part of a training program's job that NumPy and PyTorch share: steps, logs, evaluations and ends."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np

from muster._local_group import LocalGroup, PeerLost
from muster._loop import METRIC_NAME_BYTES_MAX, METRICS_MAX, NO_GRADIENT, Begin, Parameter, Session, json_number
from muster._sample_order import Indices, SampleOrder
from muster._submission import Coordinator
from muster.errors import LoopError, Suspended

_LOG = logging.getLogger("muster")
_EVALUATION_SECONDS = 600.0
Shapes = Sequence[Tuple[str, Tuple[int, ...], bool]]  # name, shape, whether it is a statistic


class Job:
    """A job that this program trains, as one of its workers. A context manager: an exception inside ends the job as failed."""

    def __init__(self, session: Session, group: Optional[LocalGroup], coordinator: Coordinator) -> None:
        self._session = session
        self._group = group
        self._coordinator = coordinator
        self._begin: Optional[Begin] = None
        self._is_pushed = False  # the step's gradients were handed over
        self._done = False
        self._is_evaluated = False  # in this step
        self._is_complete = False  # all steps were made, and the last values are in the memory
        self._attachments_of_step = 0
        self._weight: Optional[float] = None
        self._announced: set[int] = set()
        self._sums: Dict[str, Any] = {}  # of what the program logged in this step
        self._counts: Dict[str, int] = {}
        self._times = _Times()
        self._evaluation_samples = 0
        self._order: Optional[SampleOrder] = None
        self._lock = threading.RLock()  # a GPU's gradients arrive in threads of torch
        _report_exceptions(self)
        atexit.register(self._end_early)

    @property
    def id(self) -> str:
        """Returns the job's id, "mnist-3"."""
        return self._session.welcome.job

    @property
    def rank(self) -> int:
        """Returns the number of this worker among the job's workers. It may change when one leaves or joins."""
        return self._now.rank

    @property
    def world_size(self) -> int:
        """Returns the number of the job's workers."""
        return self._now.workers

    @property
    def step_number(self) -> int:
        """Returns the step that the program computes: 0 for the first."""
        return self._now.step

    @property
    def total_steps(self) -> int:
        return self._now.total_steps

    @property
    def epoch(self) -> int:
        """Returns the number of passes over the samples before this one; 0 for a stream."""
        return self._order.epoch(self._now.batch) if self._order else 0

    def weigh(self, weight: float) -> None:
        """Sets the weight of this worker's gradient in this step, before backward().

        The gradient of a step is the mean over the workers by these weights. The default is the worker's number of samples
        divided by the batch size; for a mean over tokens give their number.
        """
        if not 0 < weight < float("inf"):
            raise LoopError(f"the weight of a step must be a positive number (is {weight})")
        if self._announced or self._is_pushed:
            raise LoopError(f"step {self.step_number}: the weight was set after a gradient was sent; set it before backward()")
        self._weight = weight

    def log(self, **metrics: Any) -> None:
        """Logs metrics of this step, means over this worker's samples. Never blocks: tensors are read later.

        `loss` is the loss of the step. Several values of one name in one step are averaged.
        """
        for name, value in metrics.items():
            if len(name.encode()) > METRIC_NAME_BYTES_MAX or (name not in self._sums and len(self._sums) > METRICS_MAX):
                raise LoopError(f"log({name}=...): a step has at most {METRICS_MAX} metrics besides the loss, and a name at most "
                                f"{METRIC_NAME_BYTES_MAX} bytes")
            value = value.detach() if hasattr(value, "detach") else value
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def evaluate(self, function: Callable[[Indices], Mapping[str, float]], samples: Optional[int] = None, *,
                 timeout: float = _EVALUATION_SECONDS) -> Dict[str, float]:
        """Returns the means of metrics over held-out samples. Every worker must call it in the same steps, after the step.

        The workers share the `samples`, and each is evaluated once. `function` gets this worker's sample numbers and returns
        the means over them. The default of `samples` is the number that the loader or batches() got. Returns an empty dict if
        a worker left meanwhile, or the job ended.
        """
        count = self._evaluation_samples if samples is None else samples
        if count < 1:
            raise LoopError("evaluate() has no held-out samples; give their number: evaluate(function, samples=1000)")
        begin = self._now
        if self._done:
            raise LoopError(f"evaluate() after the end of {self.id}; call it in the last step, inside the loop: "
                            "if job.step_number == job.total_steps - 1")
        if not self._is_pushed:
            raise LoopError(f"evaluate() in step {begin.step} before its gradients were handed over; call it after step()")
        if self._is_evaluated:
            raise LoopError(f"evaluate() was called twice in step {begin.step}; return all metrics from one function")
        self._is_evaluated = True
        processes, process = (self._group.size, self._group.process) if self._group else (1, 0)
        parts, part = begin.workers * processes, begin.rank * processes + process
        indices = np.arange(count * part // parts, count * (part + 1) // parts, dtype=np.int64)
        means = function(indices) if len(indices) else {}
        share = (len(indices), {name: float(value) for name, value in means.items()})
        with self._noting_the_end():
            if self._group is None:
                return self._session.evaluate(begin.step, *share, timeout) or {}
            shares = self._group.gather(share)
            samples = sum(each for each, _ in shares)
            return self._group.from_first(lambda: self._session.evaluate(begin.step, samples, _mean(shares), timeout) or {})

    def save(self) -> Optional[concurrent.futures.Future[Any]]:
        """Takes a checkpoint while the job goes on, and returns its future. Returns None in workers of another rank than 0.

        Needs the coordinator: MUSTER_SERVER, or the arguments of join().
        """
        if self.rank != 0 or (self._group and self._group.process != 0):
            return None
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        threading.Thread(target=self._save, args=(future,), daemon=True).start()
        return future

    def close(self) -> None:
        """Detaches from the worker. The job waits for another program, unless it has ended."""
        atexit.unregister(self._end_early)
        self._session.close()

    def _note_end(self) -> None:
        self._done = True
        atexit.unregister(self._end_early)

    def _end_early(self) -> None:
        """Fails the job when the program ends without an exception before the job does. Otherwise the other workers would wait."""
        if self._done or os.getpid() != self._session._pid or (self._group and self._group.process > 0):
            return
        if self._session._channel is None:  # an error was reported, or the worker is lost
            return
        where = f"in step {self._begin.step} of {self._begin.total_steps}" if self._begin else "before its first step"
        message = (f"the program ended {where}, and {self.id} has not ended; take every batch of the loader. job.close() lets another "
                   f"program continue, muster cancel {self.id} ends the job")
        _LOG.error("%s", message)
        self._session.fail(message)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if _is_failure(error):
            self._session.fail("".join(traceback.format_exception(kind, error, trace)))
        elif error is None:
            self._end_early()
        self.close()

    @property
    def _now(self) -> Begin:
        self._session.check_process()
        if self._begin is None:
            raise LoopError("no step has begun; the loader or batches() begins it")
        return self._begin

    def _set_samples(self, samples: int, evaluation_samples: int) -> None:
        """Tells the worker the number of samples; 0 for a stream."""
        welcome = self._session.welcome
        if samples and samples < welcome.batch_size:
            raise LoopError(f"{self.id} has data.batch_size {welcome.batch_size} and the program only {samples} samples; "
                            "set a smaller batch size in the job file")
        self._order = SampleOrder(welcome.seed, samples, welcome.batch_size) if samples else None
        self._evaluation_samples = evaluation_samples
        if self._group is None or self._group.process == 0:
            self._session.set_data(samples, evaluation_samples)

    def _next(self) -> Optional[Begin]:
        """Blocks until the next step begins; None after the last one. All waiting for the job is here."""
        self._session.check_process()
        if self._done:
            return None
        if self._begin is not None and not self._is_pushed:
            raise LoopError(f"step {self._begin.step} has no gradients, and the program asks for the next step; call "
                            "optimizer.step() once for each batch of the loader (job.step(gradients) in muster.numpy)")
        finished = self._finished() if self._begin is not None else None
        with self._noting_the_end():
            begin = self._session.next(finished) if self._group is None else self._next_of_group(finished)
        if begin is None:
            self._note_end()
        # A program that attached only to learn of the end has other memory, without the last values.
        self._is_complete = begin is None and self._attachments_of_step == self._session.attachments
        self._attachments_of_step = self._session.attachments
        if begin is not None:
            self._begin = begin
            self._is_pushed = False
            self._is_evaluated = False
        self._weight = None
        self._announced.clear()
        self._sums, self._counts = {}, {}
        return begin

    @contextlib.contextmanager
    def _noting_the_end(self) -> Iterator[None]:
        try:
            yield
        except Suspended as end:
            self._note_end()
            _LOG.warning("%s", end)
            raise

    def _next_of_group(self, finished: Optional[Mapping[str, Any]]) -> Optional[Begin]:
        assert self._group is not None
        begin, attachments = self._group.from_first(lambda: (self._session.next(finished), self._session.attachments))
        if self._group.process > 0 and begin is not None and attachments != self._group.attachments_of_first:
            if self._group.attachments_of_first:
                self._session.attach_again()
            self._group.attachments_of_first = attachments
        if begin is not None and begin.samples < self._group.size:
            raise LoopError(f"{self.id}: this worker's part of step {begin.step} has {begin.samples} samples for {self._group.size} "
                            "processes; set a larger data.batch_size, or start fewer processes")
        return begin

    def _share(self, begin: Begin) -> Tuple[int, int]:
        """Returns the first position in the batch and the number of samples of this process."""
        if self._group is None:
            return begin.first_position, begin.samples
        first = begin.samples * self._group.process // self._group.size
        end = begin.samples * (self._group.process + 1) // self._group.size
        return begin.first_position + first, end - first

    def _step_weight(self) -> float:
        """Returns the weight as the message has it, so that the gradients get the very same factor."""
        weight = self._weight if self._weight is not None else self._share(self._now)[1] / self._session.welcome.batch_size
        return float(np.float32(weight))

    def _announce(self, entries: Sequence[Tuple[int, int, float]], weight: float) -> None:
        """Hands parameters of this step over: (index, flags, learning rate)."""
        if entries:
            self._announced.update(index for index, _, _ in entries)
            self._session.announce(self._now, weight, entries)

    def _trained(self) -> List[Tuple[int, Parameter]]:
        return [(index, each) for index, each in enumerate(self._session.welcome.parameters) if not each.frozen]

    def _finished(self) -> Dict[str, Any]:
        """Returns the report of the step, with means over the processes of the rank."""
        begin = self._now
        means = {name: float(value) / self._counts[name] for name, value in self._sums.items()}
        if self._group is not None:
            shares = self._group.gather((self._share(begin)[1], means))
            means = _mean([(count, each) for count, each in shares if count])
        numbers = {name: json_number(value) for name, value in means.items()}
        self._times.end()
        return {"attempt": begin.attempt, "step": begin.step, "samples": begin.samples, "loss": numbers.pop("loss", None),
                "metrics": numbers, "forward_seconds": self._times.forward, "backward_seconds": self._times.backward,
                "data_seconds": self._times.data}

    def _save(self, future: concurrent.futures.Future[Any]) -> None:
        try:
            from muster.client import Client  # needs gRPC
            c = self._coordinator
            with Client(c.server, tls=c.tls, token_file=c.token_file, context=c.context) as client:
                future.set_result(client.checkpoints.save(self.id))
        except BaseException as error:  # pylint: disable=broad-except
            future.set_exception(error)


class _Times:
    """How long the parts of a step took."""

    def __init__(self) -> None:
        self.data = self.forward = self.backward = 0.0
        self._marks: List[float] = []

    def begin(self, data_seconds: float) -> None:
        self.data, self.forward, self.backward = data_seconds, 0.0, 0.0
        self._marks = [time.perf_counter()]

    def backward_began(self) -> None:
        if len(self._marks) == 1:
            self._marks.append(time.perf_counter())

    def end(self) -> None:
        """Ends the step. Without a mark all of it counts as the forward pass."""
        if self._marks:
            now = time.perf_counter()
            begin, middle = self._marks[0], self._marks[-1] if len(self._marks) > 1 else now
            self.forward, self.backward = middle - begin, now - middle
            self._marks = []


def _mean(shares: Sequence[Tuple[int, Mapping[str, float]]]) -> Dict[str, float]:
    """Returns the means over the samples of all shares. A metric counts in the shares that have it."""
    means: Dict[str, float] = {}
    for name in sorted({name for count, metrics in shares for name in metrics if count}):
        having = [(count, metrics[name]) for count, metrics in shares if name in metrics]
        means[name] = sum(count * value for count, value in having) / sum(count for count, _ in having)
    return means


def check_table(job: str, parameters: Sequence[Parameter], own: Shapes) -> None:
    """Raises LoopError with the first difference between the job's parameters and the program's."""
    remedy = "the model is not the one that the job was submitted with; submit a new job for it"
    theirs = {each.name: each for each in parameters}
    for name, shape, is_statistic in own:
        found = theirs.pop(name, None)
        if found is None:
            raise LoopError(f"{job} has no parameter '{name}', and the program has; {remedy}")
        if found.shape != shape:
            raise LoopError(f"'{name}' has shape {list(shape)} in the program and {list(found.shape)} in {job}; {remedy}")
        if found.statistic != is_statistic:
            kinds = ("a parameter", "a statistic")
            raise LoopError(f"'{name}' is {kinds[is_statistic]} in the program and {kinds[found.statistic]} in {job}; {remedy}")
    for name in theirs:
        raise LoopError(f"the program has no parameter '{name}', and {job} has; {remedy}")


def _is_failure(error: Optional[BaseException]) -> bool:
    """Returns whether an exception ends the job as failed."""
    return isinstance(error, Exception) and not isinstance(error, PeerLost)


def _report_exceptions(job: Job) -> None:
    """Reports an exception that ends the program."""
    before, known = sys.excepthook, weakref.ref(job)

    def report(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        found = known()
        if found is not None:
            atexit.unregister(found._end_early)
        if found is not None and _is_failure(error):
            found._session.fail("".join(traceback.format_exception(kind, error, trace)))
        elif found is not None and isinstance(error, KeyboardInterrupt) and not found._done and os.getpid() == found._session._pid:
            _LOG.warning("%s waits for another program; muster cancel %s ends it", found.id, found.id)
        before(kind, error, trace)

    sys.excepthook = report


__all__ = ["NO_GRADIENT", "Job", "check_table"]
