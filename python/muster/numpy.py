"""Trains a job of Muster from a loop over NumPy arrays: one process of one worker.

    import muster.numpy as mn

    job = mn.join({"w": w, "b": b}, "job.yaml")
    for batch in job.batches(samples=1000):
        job.step(gradients(job.params, x[batch.indices]), loss=loss)

docs/python.md shows more.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from muster._job import Job as _Job
from muster._job import check_table
from muster._loop import NO_GRADIENT, PATIENCE_SECONDS, Begin, Session
from muster._sample_order import Indices
from muster._submission import Coordinator, Spec, job_of, socket_path
from muster.errors import LoopError

__all__ = ["Batch", "Job", "join"]

Array = npt.NDArray[Any]
Params = Mapping[str, npt.NDArray[np.float32]]


class Batch(NamedTuple):
    """This worker's part of the batch of a step."""

    step: int
    epoch: int
    indices: Indices  # numbers of samples; empty for a stream
    samples: int


def join(params: Mapping[str, Array], spec: Optional[Spec] = None, *, job: Optional[str] = None, statistics: Any = (),
         socket: Optional[str] = None, server: Optional[str] = None, tls: Optional[str] = None, token_file: Optional[str] = None,
         context: Optional[str] = None, patience: float = PATIENCE_SECONDS) -> Job:
    """Submits the job `spec`, a path, YAML text or a dict, with `params` as the first values, and attaches to this host's worker.

    With `job`, an id or a name, or in a program that a worker or `muster launch` started, it only attaches. `statistics` are the
    names of arrays that the optimizer must not touch: each worker hands over new values, and the job keeps their mean. `socket` is
    the worker's, by default MUSTER_PROGRAM_SOCKET. The next four arguments are those of muster.Client. If the worker ends, the
    program waits `patience` seconds for another one.
    """
    if int(os.environ.get("MUSTER_LOCAL_PROCESSES", "1")) > 1:
        raise LoopError("muster.numpy trains with one process of each worker; start the program with --local-processes 1")
    firsts: Dict[str, npt.NDArray[np.float32]] = {}
    for name, array in params.items():
        if not np.issubdtype(np.asarray(array).dtype, np.floating):
            raise LoopError(f"'{name}' is of type {np.asarray(array).dtype}; a parameter must be of floating-point numbers")
        firsts[name] = np.asarray(array, dtype=np.float32)
    coordinator = Coordinator(server, tls, token_file, context)
    attached = job_of(spec, job, 0, lambda: firsts, list(statistics), coordinator)
    session = Session(socket or socket_path(), attached, patience=patience)
    session.attach()
    check_table(session.welcome.job, session.welcome.parameters,
                [(name, array.shape, name in statistics) for name, array in firsts.items()])
    return Job(session, None, coordinator)


class Job(_Job):
    """A job that this program trains.

    Either iterate batches(), where step() returns at once, or call `params = job.step(gradients)` alone, which waits for the
    next values.
    """

    _is_iterated = False

    @property
    def params(self) -> Params:
        """Returns read-only views of the values of this step, by name. They change with the next step; copy what you keep.

        Before the first step it waits for the first values. After the last step they are the job's last values.
        """
        if self._begin is None and not self._done and not self._is_iterated:
            self._set_samples(0, 0)
            self._advance()
        version = self._now.total_steps if self._is_complete else self._now.step
        memory = self._session.values[version % 2]
        views: Dict[str, npt.NDArray[np.float32]] = {}
        for each in self._session.welcome.parameters:
            view = memory[each.range].reshape(each.shape)
            view.flags.writeable = False
            views[each.name] = view
        return views

    @property
    def learning_rate(self) -> float:
        """Returns the learning rate of group 0 in this step: of the job file's optimizer and schedule."""
        scheduled = self._now.learning_rate
        return self._session.welcome.groups[0]["learning_rate"] if scheduled is None else scheduled

    def batches(self, samples: int = 0, *, evaluation_samples: int = 0) -> Iterator[Batch]:
        """Yields a batch for each step. Call step() once in each. `samples` is the number of all samples; 0: a stream.

        A step is yielded again if the members of the job have changed. Raises muster.Suspended if the job ends early.
        """
        if self._begin is not None and not self._is_iterated:
            raise LoopError("job.params or step() began a step before batches(); use them in the loop of batches() only")
        self._is_iterated = True
        self._set_samples(samples, evaluation_samples)
        while (begin := self._advance()) is not None:
            indices = self._order.indices(begin.batch, begin.first_position, begin.samples) if self._order else np.empty(0, np.int64)
            yield Batch(begin.step, self.epoch, indices, begin.samples)

    def step(self, gradients: Mapping[str, Optional[Array]], *, loss: Optional[float] = None, weight: Optional[float] = None,
             learning_rate: Optional[float] = None) -> Optional[Params]:
        """Hands over the gradients of this step, means over the worker's samples. Each name needs one, or None: no gradient.

        In batches() it returns None at once. Otherwise it waits, and returns the values of the next step; None after the last.
        `weight` is that of weigh(). `learning_rate` replaces the job file's in all groups.
        """
        begin = self._now
        if self._is_pushed:
            raise LoopError(f"step {begin.step}: step() was called twice; iterate batches() for the next step")
        if weight is not None:
            self.weigh(weight)
        if loss is not None:
            self.log(loss=loss)
        self._times.backward_began()
        factor = self._step_weight()
        entries = []
        trained = self._trained()
        if unknown := set(gradients) - {each.name for each in self._session.welcome.parameters}:
            raise LoopError(f"step {begin.step}: {self.id} has no parameter '{sorted(unknown)[0]}'")
        for index, each in trained:
            if each.name not in gradients:
                raise LoopError(f"step {begin.step}: no gradient of '{each.name}'; give None if it has none")
            gradient = gradients[each.name]
            rate = self._rate(begin, each.group) if learning_rate is None else learning_rate
            entries.append((index, NO_GRADIENT if gradient is None else 0, rate))
            if gradient is None:
                continue
            if np.shape(gradient) != each.shape:
                raise LoopError(f"step {begin.step}: the gradient of '{each.name}' has shape {list(np.shape(gradient))}, and the "
                                f"parameter {list(each.shape)}")
            view = self._session.gradients[each.range].reshape(each.shape)
            np.multiply(gradient, np.float32(factor), out=view, casting="same_kind")
        self._announce(entries, factor)
        self._is_pushed = True
        if self._is_iterated:
            return None
        return self.params if self._advance() is not None else None

    def _advance(self) -> Optional[Begin]:
        begin = self._next()
        self._times.begin(0.0)
        return begin

    def _rate(self, begin: Begin, group: int) -> float:
        groups = self._session.welcome.groups
        if begin.learning_rate is None:
            return groups[group]["learning_rate"]
        return begin.learning_rate * (groups[group]["learning_rate"] / groups[0]["learning_rate"])


