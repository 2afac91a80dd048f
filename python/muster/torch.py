"""Trains a job of Muster from a PyTorch loop: one worker, of one process or one for each GPU.

    import muster.torch as mt

    job = mt.join(model, "job.yaml")
    optimizer = job.optimizer(model)
    for x, y in job.loader(dataset):
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.log(loss=loss)

docs/from_your_pytorch_loop.md shows more.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import logging
import os
import pickle
import time
import warnings
from typing import Any, Callable, ContextManager, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from muster import _local_group
from muster._job import Job as _Job
from muster._job import check_table
from muster._local_group import LocalGroup
from muster._loop import NO_GRADIENT, PATIENCE_SECONDS, Begin, Session
from muster._submission import Coordinator, Spec, job_of, socket_path
from muster.errors import LoopError

torch: Any = importlib.import_module("torch")  # Any, so that the types can be checked without torch

__all__ = ["Job", "join"]

_LOG = logging.getLogger("muster")
_MESSAGE_ELEMENTS = 1 << 18  # gradients are announced together up to 1 MiB
_HISTORY_BYTES = 256 << 20
_EXACT_IN_F32 = 1 << 24
_CLIP = ("clip by training.clip.global_norm in the job file, which clips the mean over all workers; for another change of gradients use "
         "job.optimizer(model, overlap=False), which sends them in step()")


def join(model: Any, spec: Optional[Spec] = None, *, job: Optional[str] = None, socket: Optional[str] = None, server: Optional[str] = None,
         tls: Optional[str] = None, token_file: Optional[str] = None, context: Optional[str] = None,
         patience: float = PATIENCE_SECONDS) -> Job:
    """Submits the job `spec`, a path, YAML text or a dict, with the values of `model`, and attaches to this host's worker.

    Parameters with requires_grad are trained. Buffers of state_dict() are statistics: the job keeps the mean over the workers. With
    `job`, an id or a name, or in a program that a worker or `muster launch` started, it only attaches. `socket` is the worker's, by
    default MUSTER_PROGRAM_SOCKET. The next four arguments are those of muster.Client. If the worker ends, the program waits `patience`
    seconds for another one.
    """
    table = _Table(model)
    group = _local_group.find(any(each.is_cuda for each in table.tensors.values()))
    process, processes = (group.process, group.size) if group else (0, 1)
    coordinator = Coordinator(server, tls, token_file, context)

    def attach() -> Session:
        attached = job_of(spec, job, process, table.values, table.statistics, coordinator)
        session = Session(socket or socket_path(), attached, process, processes, patience)
        session.attach()
        return session

    session = attach() if process == 0 else None
    if group is not None:
        group.from_first(lambda: None)  # the others attach after process 0
        session = session or attach()
    assert session is not None
    check_table(session.welcome.job, session.welcome.parameters,
                [(name, tuple(each.shape), name in table.statistics) for name, each in table.tensors.items()])
    return Job(session, group, coordinator, table)


class Job(_Job):
    """A job that this program trains."""

    def __init__(self, session: Session, group: Optional[LocalGroup], coordinator: Coordinator, table: _Table) -> None:
        super().__init__(session, group, coordinator)
        self._table = table
        self._rows = {each.name: (index, each) for index, each in enumerate(session.welcome.parameters)}
        self._memory = _Memory(session, group)
        self._optimizer: Any = None
        self._attached: Dict[str, Any] = {}
        self._history = _History()
        self._first_states: Dict[str, _State] = {}
        self._replayed: Dict[str, Tuple[int, int]] = {}  # step and count of a scheduler

    def optimizer(self, parameters: Any, *, overlap: bool = True) -> Any:
        """Returns a torch.optim.Optimizer whose step() hands the gradients over. The job's shards update the values.

        `parameters` is the model, its parameters, or groups of them as in torch.optim. The groups' learning rates count in each step.
        Other settings are those of the job file; a group that names another value is an error. `overlap=False` sends all gradients in
        step(), so that the program may change them after backward().
        """
        if self._optimizer is not None:
            raise LoopError("the job has an optimizer already; make one optimizer with several groups")
        overlaps = overlap and self._group is None and hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
        self._optimizer = _optimizer_class()(self, self._groups(parameters), overlaps)
        return self._optimizer

    def loader(self, dataset: Any, *, stream: bool = False, by_epoch: bool = False, accumulate: int = 1, evaluation_samples: int = 0,
               **arguments: Any) -> Loader:
        """Returns the batches of this worker: one for each step, or `accumulate` parts of it. All waiting for the job is in next().

        `dataset` is a map-style dataset. `arguments` are those of torch's DataLoader except batch_size, shuffle, sampler,
        batch_sampler and drop_last: the job file has the batch size, and the order is a function of its seed. With `stream=True`
        `dataset` is the program's own loader or iterable, and each of its items is one step.

        One iteration has all steps of the job. With `by_epoch` it ends after each epoch, and the next one goes on. `evaluation_samples` is
        the number of held-out samples for evaluate().
        """
        if accumulate < 1:
            raise LoopError(f"accumulate must be at least 1 (is {accumulate})")
        if stream:
            if arguments or accumulate > 1 or by_epoch:
                raise LoopError("with stream=True the program's own loader decides; give it the arguments")
            return Loader(self, _Stream(self, dataset), 0, evaluation_samples, False)
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"):
            if name in arguments:
                raise LoopError(f"job.loader() takes no {name}; the job file has data.batch_size and data.seed. For a loader of your own "
                                "use job.loader(loader, stream=True)")
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise LoopError(f"{type(dataset).__name__} has no length or no items by number; use job.loader(dataset, stream=True)")
        return Loader(self, _Map(self, dataset, accumulate, arguments), len(dataset), evaluation_samples, by_epoch)

    def attach(self, **objects: Any) -> None:
        """Names objects with a state that follows the steps: a scheduler, a counter, an average of values.

        Each has state_dict() and load_state_dict(). If a step begins again, it gets the state that it had at the start of that step. A
        program that starts in the middle of a job steps torch's schedulers once for each step before; other objects are the program's.
        """
        for name, each in objects.items():
            if not hasattr(each, "state_dict") or not hasattr(each, "load_state_dict"):
                raise LoopError(f"attach({name}=...): a {type(each).__name__} has no state_dict() and load_state_dict()")
            self._attached[name] = each

    def no_sync(self) -> ContextManager[None]:
        """Does nothing: gradients are sent at the last backward() of a step by themselves. For programs that call it."""
        return contextlib.nullcontext()

    def _groups(self, parameters: Any) -> List[Dict[str, Any]]:
        """Returns torch's parameter groups, one for each group of the job file, or those of the program after a check."""
        given = list(parameters.parameters() if hasattr(parameters, "parameters") else parameters)
        groups = [dict(each) for each in given] if given and isinstance(given[0], Mapping) else [{"params": given}]
        welcome = self._session.welcome
        names = {id(tensor): name for name, tensor in self._table.trained.items()}
        result: List[Dict[str, Any]] = []
        seen: set[int] = set()
        for group in groups:
            mine = group.pop("params")
            by_group: Dict[int, List[Any]] = {}
            for tensor in [mine] if isinstance(mine, torch.Tensor) else mine:
                if not tensor.requires_grad or id(tensor) in seen:
                    continue
                if id(tensor) not in names:
                    raise LoopError(f"a parameter of shape {list(tensor.shape)} is not in the model that joined, or was frozen then; "
                                    "join after the model is complete")
                seen.add(id(tensor))
                by_group.setdefault(self._rows[names[id(tensor)]][1].group, []).append(tensor)
            for number, tensors in sorted(by_group.items()):
                settings = {**_settings(welcome.optimizer), "weight_decay": welcome.groups[number]["weight_decay"]}
                for key, value in group.items():
                    theirs = settings.get(key)
                    if key not in ("lr", "initial_lr") and theirs is not None and value != theirs:
                        raise LoopError(f"group with '{names[id(tensors[0])]}': {key} is {value}, and {theirs} in the job file; "
                                        + ("set it in training.parameter_groups" if key == "weight_decay" else
                                           "all groups share it: set it in training.optimizer"))
                rate = welcome.groups[number]["learning_rate"]
                result.append({"params": tensors, **settings, "lr": rate, **group})
        if missing := [names[each] for each in names if each not in seen]:
            raise LoopError(f"the optimizer has no '{missing[0]}'; give it all parameters of the model, and freeze those that shall stay "
                            "(requires_grad_(False)) before join()")
        return result

    def _advance(self) -> Optional[Begin]:
        """Begins a step: waits for it, brings the values into the model, and sets states back if the step begins again."""
        if self._optimizer is None:
            raise LoopError("the job has no optimizer; call job.optimizer(model) before the loader")
        previous = self._begin
        begin = self._next()
        if begin is None:
            self._show_last_values(previous)
            return None
        self._memory.follow()
        self._table.check_still_frozen()
        with torch.no_grad():
            self._bring_values(begin)
        self._restore(previous, begin)
        self._optimizer.begin_step(begin)
        return begin

    def _show_last_values(self, last: Optional[Begin]) -> None:
        """Brings the values after the last step into the model, in memory of its own."""
        if last is None or not self._memory.is_current():
            return  # this program made no step, so the model has its first values
        with torch.no_grad():
            self._bring_values(last._replace(step=last.total_steps))
            values = self._memory.values[last.total_steps % 2]
            for name, tensor in self._table.tensors.items():
                if tensor.data_ptr() == values[name].data_ptr():
                    tensor.data = tensor.data.clone()

    def _bring_values(self, begin: Begin) -> None:
        values = self._memory.values[begin.step % 2]
        for name, tensor in self._table.tensors.items():
            value = values[name]
            if name in self._table.statistics:
                tensor.copy_(value if tensor.is_floating_point() else value.round())
            elif self._memory.may_share and tensor.dtype == torch.float32 and not tensor.is_cuda:
                tensor.data = value
            else:
                tensor.data.copy_(value)

    def _restore(self, previous: Optional[Begin], begin: Begin) -> None:
        """Gives attached objects the states that they have at the start of the step."""
        objects = {**self._attached, "": self._optimizer.rates}
        if previous is None:
            self._first_states = {name: _State(each.state_dict()) for name, each in objects.items()}
            if begin.step > 0:
                self._replay(begin.step, objects)
        elif begin.step > previous.step + 1:  # the others made steps without this worker
            for _ in range(begin.step - previous.step - 1):
                for each in self._attached.values():
                    if _is_scheduler(each):
                        each.step()
        elif begin.step != previous.step + 1:
            _LOG.info("%s: step %d begins again", self.id, begin.step)
            if not self._history.restore(begin.step, objects):
                self._replay(begin.step, objects)
        self._check_replayed(begin)
        self._history.keep(begin.step, objects)

    def _replay(self, step: int, objects: Mapping[str, Any]) -> None:
        """Steps the schedulers as often as the job did. Raises an error for other objects, whose states nobody knows."""
        schedulers = {name: each for name, each in self._attached.items() if _is_scheduler(each)}
        others = [name for name in self._attached if name not in schedulers]
        loaded = [name for name, each in schedulers.items() if self._first_states[name].load()["last_epoch"] != 0]
        if others and self._history:
            raise LoopError(f"{self.id} goes back to step {step}, and the state of '{others[0]}' does not reach so far; start the program "
                            "again with a state of that step")
        if others or loaded:
            warnings.warn(f"{self.id} begins at step {step}; load the states of {', '.join(others + loaded)} at that step before the "
                          "loop, unless the program has done so", stacklevel=5)
        if loaded:
            return
        for name in (*schedulers, ""):
            objects[name].load_state_dict(self._first_states[name].load())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wants a step of the optimizer between two steps of a scheduler
            for _ in range(step):
                for each in schedulers.values():
                    each.step()
        self._replayed = {name: (step, each.last_epoch) for name, each in schedulers.items()}

    def _check_replayed(self, begin: Begin) -> None:
        """Raises an error if a scheduler that was replayed does not step once in each step."""
        for name, (step, count) in self._replayed.items():
            if begin.step == step + 1 and self._attached[name].last_epoch != count + 1:
                raise LoopError(f"'{name}' does not step once in each step of the job, so a program that starts at step {step} cannot find "
                                "its state; use training.schedule in the job file, or load its state before the loop")
        if any(begin.step != step for step, _ in self._replayed.values()):
            self._replayed = {}

    def _seed(self, begin: Begin) -> None:
        """Makes dropout and the like repeat if the step begins again."""
        process = self._group.process if self._group else 0
        words = np.random.SeedSequence([self._session.welcome.seed, begin.step, begin.rank, process]).generate_state(2, np.uint32)
        torch.manual_seed(int(words[0]) << 31 ^ int(words[1]))


class Loader:
    """The batches of a program, by Job.loader()."""

    def __init__(self, job: Job, source: Union[_Map, _Stream], samples: int, evaluation_samples: int, by_epoch: bool) -> None:
        job._set_samples(samples, evaluation_samples)
        self._job = job
        self._source = source
        self._by_epoch = by_epoch
        self._batches = samples // job._session.welcome.batch_size
        self._ended = -1  # the last epoch that ended an iteration

    def __len__(self) -> int:
        """Returns the number of steps of an epoch."""
        if not self._batches:
            raise TypeError("a stream has no length")
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        while (begin := job._advance()) is not None:
            yield from self._source.items(begin)
            ends_epoch = self._by_epoch and (begin.batch + 1) % self._batches == 0
            epoch = begin.batch // self._batches if self._by_epoch else 0
            # The last step has to be reported. A step that begins again ends no second iteration.
            if ends_epoch and begin.step + 1 < begin.total_steps and epoch > self._ended:
                self._ended = epoch
                return


class _Map:
    """Reads batches of a map-style dataset."""

    def __init__(self, job: Job, dataset: Any, accumulate: int, arguments: Dict[str, Any]) -> None:
        self._job = job
        self._accumulate = accumulate
        self._sampler = _BatchSampler(job, accumulate)
        self._loader = torch.utils.data.DataLoader(dataset, batch_sampler=self._sampler, **arguments)
        self._parts: Any = None

    def items(self, begin: Begin) -> Iterator[Any]:
        began = time.perf_counter()
        first, count = self._job._share(begin)
        if self._parts is None or not self._sampler.expects(begin.batch, first, count):
            self._sampler.restart(begin.batch, first, count, begin.total_steps - begin.step)
            self._parts = iter(self._loader)
        if count < self._accumulate:
            raise LoopError(f"step {begin.step}: this process has {count} samples, which accumulate={self._accumulate} cannot divide; set "
                            "a larger data.batch_size or a smaller number")
        self._job._seed(begin)
        self._sampler.took_step()
        for part in range(self._accumulate):
            data = next(self._parts)
            if part == 0:
                self._job._times.begin(time.perf_counter() - began)
            yield data


class _Stream:
    """Reads the items of the program's own loader. It begins again when it ends."""

    def __init__(self, job: Job, source: Iterable[Any]) -> None:
        self._job = job
        self._source = source
        self._items: Optional[Iterator[Any]] = None
        self._item: Any = None
        self._step: Optional[int] = None

    def items(self, begin: Begin) -> Iterator[Any]:
        began = time.perf_counter()
        self._job._seed(begin)
        if begin.step != self._step:  # a step that begins again gets the same item
            self._item = self._next(begin)
            self._step = begin.step
        self._job._times.begin(time.perf_counter() - began)
        yield self._item

    def _next(self, begin: Begin) -> Any:
        for _ in range(2):
            if self._items is None:
                self._items = iter(self._source)
            for item in self._items:
                return item
            self._items = None
        raise LoopError(f"the stream ended at step {begin.step} of {begin.total_steps}, and cannot begin again; give a longer one, or an "
                        "iterable instead of an iterator")


class _Table:
    """The tensors of a model that the job knows, by name: its trained parameters, then its statistics."""

    def __init__(self, model: Any) -> None:
        self.trained: Dict[str, Any] = {}
        self._frozen: Dict[str, Any] = {}
        for name, tensor in model.named_parameters():
            if tensor.requires_grad:
                _check_tensor(name, tensor)
                self.trained[name] = tensor
            else:
                self._frozen[name] = tensor
        for name, module in model.named_modules():
            if getattr(module, "sparse", False) is True and getattr(module, "weight", None) is not None and module.weight.requires_grad:
                raise LoopError(f"'{f'{name}.weight'.lstrip('.')}' gets sparse gradients; use {type(module).__name__}(sparse=False)")
        if not self.trained:
            raise LoopError("the model has no parameter with requires_grad")
        saved = model.state_dict(keep_vars=True)
        buffers = {name: each for name, each in model.named_buffers() if saved.get(name) is each and _is_statistic(each)}
        self.statistics = list(buffers)
        self.tensors = {**self.trained, **buffers}

    def values(self) -> Dict[str, npt.NDArray[np.float32]]:
        return {name: each.detach().to("cpu", torch.float32).numpy() for name, each in self.tensors.items()}

    def check_still_frozen(self) -> None:
        for name, tensor in self._frozen.items():
            if tensor.requires_grad:
                raise LoopError(f"'{name}' was frozen when the program joined, and has requires_grad now; the job does not have it. "
                                "Submit a job with it, and freeze it by training.parameter_groups")
        for name, tensor in self.trained.items():
            if not tensor.requires_grad:
                tensor.requires_grad_(True)
                raise LoopError(f"'{name}' was frozen after the program joined; freeze it before join(), or by training.parameter_groups")


def _check_tensor(name: str, tensor: Any) -> None:
    what = ""
    if hasattr(tensor, "device_mesh") or hasattr(tensor, "placements"):
        what = "is a DTensor; keep whole parameters in each process"
    elif isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        what = "has no values yet; run one forward pass before join()"
    elif tensor.is_sparse or tensor.layout != torch.strided:
        what = "is sparse; use a dense parameter"
    elif tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        what = f"is {str(tensor.dtype)[6:]}; use float32: the job holds its values in float32"
    elif tensor.is_meta:
        what = "is on the meta device; give it values before join()"
    if what:
        raise LoopError(f"'{name}' {what}")


def _is_statistic(buffer: Any) -> bool:
    """Returns whether float32 can hold the buffer. Others, such as masks, are constants of the program."""
    if buffer.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return bool(torch.isfinite(buffer).all())
    if buffer.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        return bool(buffer.numel() == 0 or buffer.abs().max() < _EXACT_IN_F32)
    return False


def _settings(optimizer: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the optimizer's settings under torch's names."""
    names = {"epsilon": "eps"}
    settings = {names.get(key, key): value for key, value in optimizer.items()
                if key not in ("kind", "beta1", "beta2", "learning_rate", "weight_decay")}
    if "beta1" in optimizer:
        settings["betas"] = (optimizer["beta1"], optimizer["beta2"])
    return settings


class _Memory:
    """The shared memory as tensors. A process that does not speak with the worker has gradients of its own."""

    def __init__(self, session: Session, group: Optional[LocalGroup]) -> None:
        self._session = session
        self._is_first = group is None or group.process == 0
        self._attachment = 0
        self.values: Tuple[Dict[str, Any], Dict[str, Any]]  # of even and odd versions, by name
        self.gradients: Dict[str, Any]
        self.all_gradients: Any  # the memory of `gradients`
        self.may_share = False
        self.follow()

    def is_current(self) -> bool:
        """Returns whether this is the memory of the present attachment."""
        return self._attachment == self._session.attachments

    def follow(self) -> None:
        """Takes the memory of the present attachment."""
        session = self._session
        if self.is_current():
            return
        self._attachment = session.attachments
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of memory that is read-only
            even, odd = (self._by_name(torch.frombuffer(each, dtype=torch.float32)) for each in session.values)
            self.values = (even, odd)
            self.all_gradients = (torch.frombuffer(session.gradients, dtype=torch.float32) if self._is_first else
                                  torch.zeros(session.welcome.elements))
            self.gradients = self._by_name(self.all_gradients)
        # A program that wrote into read-only memory would crash.
        self.may_share = all(each.flags.writeable for each in session.values)

    def _by_name(self, memory: Any) -> Dict[str, Any]:
        return {each.name: memory[each.range].view(each.shape) for each in self._session.welcome.parameters}


def _is_scheduler(each: Any) -> bool:
    """Returns whether torch's scheduler depends on the number of its steps alone."""
    schedulers = torch.optim.lr_scheduler
    base = getattr(schedulers, "LRScheduler", None) or schedulers._LRScheduler  # the latter in torch 1
    return isinstance(each, base) and not isinstance(each, schedulers.ReduceLROnPlateau)


class _History:
    """The states of attached objects at the start of the last steps."""

    def __init__(self) -> None:
        self._states: Deque[Tuple[int, Dict[str, _State]]] = collections.deque()
        self._bytes = 0

    def keep(self, step: int, objects: Mapping[str, Any]) -> None:
        while self._states and self._states[-1][0] >= step:
            self._forget(self._states.pop())
        states = {name: _State(each.state_dict()) for name, each in objects.items()}
        self._states.append((step, states))
        self._bytes += sum(each.size for each in states.values())
        while self._bytes > _HISTORY_BYTES and len(self._states) > 2:
            self._forget(self._states.popleft())

    def restore(self, step: int, objects: Mapping[str, Any]) -> bool:
        """Returns whether the states of that step are known."""
        for at, states in reversed(self._states):
            if at == step:
                for name, state in states.items():
                    objects[name].load_state_dict(state.load())
                return True
        return False

    def __bool__(self) -> bool:
        return bool(self._states)

    def _forget(self, entry: Tuple[int, Dict[str, _State]]) -> None:
        self._bytes -= sum(each.size for each in entry[1].values())


class _State:
    """A copy of a state. Functions and classes are not copied: a scheduler's method would bring the scheduler and its optimizer along."""

    def __init__(self, state: Any) -> None:
        self._functions: List[Any] = []
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._number_of  # type: ignore[method-assign]
        pickler.dump(state)
        self._bytes = buffer.getvalue()
        self.size = len(self._bytes) + 100  # with the objects around it

    def load(self) -> Any:
        unpickler = pickle.Unpickler(io.BytesIO(self._bytes))
        unpickler.persistent_load = lambda number: self._functions[number]  # type: ignore[method-assign]
        return unpickler.load()

    def _number_of(self, each: Any) -> Optional[int]:
        if not callable(each):
            return None
        self._functions.append(each)
        return len(self._functions) - 1


class _BatchSampler:
    """Yields the sample numbers of this process, ahead of the steps as DataLoader asks for them.

    It assumes that the steps and this process's part of the batches go on as they are. expects() tells whether that holds.
    """

    def __init__(self, job: Job, accumulate: int) -> None:
        self._job = job
        self._accumulate = accumulate
        self._first = self._count = self._steps = 0
        self._begin = self._next = 0

    def restart(self, batch: int, first: int, count: int, steps: int) -> None:
        self._begin = self._next = batch
        self._first, self._count, self._steps = first, count, steps

    def expects(self, batch: int, first: int, count: int) -> bool:
        return (batch, first, count) == (self._next, self._first, self._count) and batch < self._begin + self._steps

    def took_step(self) -> None:
        self._next += 1

    def __iter__(self) -> Iterator[List[int]]:
        order = self._job._order
        assert order is not None
        for batch in range(self._begin, self._begin + self._steps):
            indices = order.indices(batch, self._first, self._count).tolist()
            parts = self._accumulate
            for part in range(parts):
                yield indices[self._count * part // parts:self._count * (part + 1) // parts]


class _Rates:
    """The settings of the optimizer's groups as a state that follows the steps."""

    def __init__(self, groups: List[Dict[str, Any]]) -> None:
        self._groups = groups

    def state_dict(self) -> List[Dict[str, Any]]:
        return [{key: value for key, value in group.items() if key != "params"} for group in self._groups]

    def load_state_dict(self, state: List[Dict[str, Any]]) -> None:
        for group, settings in zip(self._groups, state):
            group.update(settings)


class _Sent:
    """A gradient that was handed over before step()."""

    def __init__(self, gradient: Any, rate: float) -> None:
        self.gradient = gradient
        self.version: int = gradient._version
        self.rate = rate


def _optimizer_class() -> Any:
    """Returns the class, which needs torch."""

    class MusterOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
        """The optimizer of a job. Its step() hands the gradients over, and next(loader) brings the new values."""

        _step_supports_amp_scaling = True  # GradScaler then gives itself to step(), which refuses it

        def __init__(self, job: Job, groups: List[Dict[str, Any]], overlaps: bool) -> None:
            super().__init__(groups, {})
            self.rates = _Rates(self.param_groups)
            self._push = _Push(job, self.param_groups, overlaps)

        def step(self, closure: Optional[Callable[[], Any]] = None, *, grad_scaler: Any = None) -> Any:
            """Hands over the gradients that backward() did not. Returns what `closure` does."""
            if grad_scaler is not None:
                raise LoopError("GradScaler scales the loss by a factor of each worker, which the job cannot follow; use bfloat16, which "
                                "needs none: torch.autocast(device, dtype=torch.bfloat16)")
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with torch.no_grad():
                self._push.finish()
            return loss

        def begin_step(self, begin: Begin) -> None:
            self._push.begin(begin)

    return MusterOptimizer


class _Push:
    """Hands the gradients of each step over.

    The first step sends all of them in step(), and learns how often the hook of each parameter runs. From then on a gradient is copied and
    announced when its hook runs for the last time.
    """

    def __init__(self, job: Job, groups: List[Dict[str, Any]], overlaps: bool) -> None:
        self._job = job
        self._groups = groups
        self._overlaps = overlaps
        self._names = {id(tensor): name for name, tensor in job._table.trained.items()}
        self._expected: Dict[str, int] = {}  # how often the hook of a parameter runs in a step
        self._counts: Dict[str, int] = {}
        self._versions: Dict[str, int] = {}  # of a gradient after its last hook
        self._sent: Dict[str, _Sent] = {}
        self._last: Dict[str, Tuple[int, int]] = {}  # address and version of a gradient at the end of the last step
        self._value_versions: Dict[str, int] = {}
        self._waiting: List[Tuple[int, int, float]] = []  # copied and not announced yet
        self._waiting_elements = 0
        self._warned = False
        self._begin: Optional[Begin] = None
        self._weight = 0.0
        self._scheduled: Dict[int, float] = {}
        self._rows = {name: row for name, row in job._rows.items() if not row[1].frozen}
        self._group_of = {self._names[id(tensor)]: group for group in groups for tensor in group["params"]}
        self._uses_cuda = any(tensor.is_cuda for tensor in job._table.trained.values())
        self._to_send = len(self._group_of.keys() & self._rows.keys())
        if overlaps:
            for tensor in job._table.trained.values():
                if hasattr(tensor, "muster_hook"):  # of a job that the model joined before
                    tensor.muster_hook.remove()
                tensor.muster_hook = tensor.register_post_accumulate_grad_hook(self._accumulated)

    def begin(self, begin: Begin) -> None:
        self._begin = begin
        self._weight = 0.0
        self._counts.clear()
        self._versions.clear()
        self._sent.clear()
        self._waiting, self._waiting_elements = [], 0
        self._value_versions = {name: tensor._version for name, tensor in self._job._table.trained.items()}
        if begin.learning_rate is not None:
            first = self._job._session.welcome.groups[0]["learning_rate"]
            for number, group in enumerate(self._groups):
                row = self._job._rows[self._names[id(group["params"][0])]][1]
                group["lr"] = begin.learning_rate * (self._job._session.welcome.groups[row.group]["learning_rate"] / first)
                self._scheduled[number] = group["lr"]

    def finish(self) -> None:
        """Hands over what is left: gradients, parameters without one, and statistics."""
        job = self._job
        begin = job._now
        if job._is_pushed or self._begin is None:
            raise LoopError(f"step {begin.step}: optimizer.step() was called twice; take the next batch of the loader first")
        for number, rate in self._scheduled.items():
            if self._groups[number]["lr"] != rate:
                raise LoopError(f"the program set the learning rate {self._groups[number]['lr']}, and the job file has a schedule, which set "
                                f"{rate}; remove one of the two")
        job._times.backward_began()
        self._check_values()
        weight = self._take_weight()
        sends = {}
        for name, tensor in job._table.trained.items():
            self._check_sent(name, tensor)
            if name in self._rows and name not in self._sent:
                sends[name] = tensor.grad
        self._hand_over(sends, weight)
        self._warn_of_accumulation()
        if self._overlaps:
            self._expected = dict(self._counts)
        job._is_pushed = True

    def _accumulated(self, tensor: Any) -> None:
        """Runs when a gradient of `tensor` has been added."""
        name = self._names[id(tensor)]
        job = self._job
        with job._lock:
            if self._begin is None or job._is_pushed:
                return  # backward() outside of a step
            job._times.backward_began()
            self._counts[name] = count = self._counts.get(name, 0) + 1
            if name in self._sent:
                raise LoopError(f"'{name}' got another gradient after {self._expected[name]} backward() calls of the step, as many as in the "
                                "step before; use job.optimizer(model, overlap=False) if their number grows")
            if count == self._expected.get(name) and name in self._rows:
                with torch.no_grad():
                    self._send_early(name, tensor.grad)
            else:
                self._versions[name] = tensor.grad._version

    def _send_early(self, name: str, gradient: Any) -> None:
        rate = float(self._group_of[name]["lr"])
        weight = self._take_weight()
        index = self._rows[name][0]
        self._copy(name, gradient, weight)
        self._sent[name] = _Sent(gradient, rate)
        self._job._announced.add(index)
        self._waiting.append((index, 0, rate))
        self._waiting_elements += gradient.numel()
        if self._waiting_elements >= _MESSAGE_ELEMENTS or len(self._sent) == self._to_send:
            self._flush(weight)

    def _flush(self, weight: float) -> None:
        if self._uses_cuda:
            torch.cuda.synchronize()  # the copies may be on several streams
        waiting, self._waiting, self._waiting_elements = self._waiting, [], 0
        self._job._announce(waiting, weight)

    def _hand_over(self, gradients: Mapping[str, Any], weight: float) -> None:
        """Copies and announces gradients and statistics. In a group it adds those of all processes first."""
        job = self._job
        group = job._group
        for name, gradient in gradients.items():
            if gradient is not None:
                self._copy(name, gradient, weight)
        for name in job._table.statistics:
            self._copy(name, job._table.tensors[name], weight)
        present = {name: gradient is not None for name, gradient in gradients.items()}
        if group is not None:
            present, weight = self._add_up(present, weight)
        if group is None or group.process == 0:
            for name, is_there in present.items():
                rate = float(self._group_of[name]["lr"])
                self._waiting.append((self._rows[name][0], 0 if is_there else NO_GRADIENT, rate))
            self._waiting += [(job._rows[name][0], 0, 0.0) for name in job._table.statistics if not job._rows[name][1].frozen]
            self._flush(weight)

    def _add_up(self, present: Dict[str, bool], weight: float) -> Tuple[Dict[str, bool], float]:
        job, group = self._job, self._job._group
        assert group is not None
        mine = torch.tensor(list(present.values()), dtype=torch.uint8)
        anywhere = group.largest(mine.clone())
        for name, is_mine, is_there in zip(present, mine.tolist(), anywhere.tolist()):
            if is_there and not is_mine:
                job._memory.gradients[name].zero_()
        group.add_up(job._memory.all_gradients, next(iter(job._table.trained.values())).device)
        weights = group.gather(weight)
        return dict(zip(present, map(bool, anywhere.tolist()))), float(np.float32(sum(weights)))

    def _copy(self, name: str, gradient: Any, weight: float) -> None:
        if gradient.layout != torch.strided:
            raise LoopError(f"the gradient of '{name}' is sparse; use sparse=False")
        target = self._job._memory.gradients[name]
        if gradient.dtype == torch.float32 and not gradient.is_cuda:
            torch.mul(gradient, weight, out=target)
        else:
            target.copy_(gradient.to(torch.float32) * weight, non_blocking=True)

    def _take_weight(self) -> float:
        if self._weight == 0.0:
            self._weight = self._job._step_weight()
        return self._weight

    def _check_sent(self, name: str, tensor: Any) -> None:
        """Raises an error if a gradient changed after it was sent, or would have been if this was not the first step."""
        sent = self._sent.get(name)
        if sent is None:
            if self._overlaps and tensor.grad is not None and tensor.grad._version != self._versions.get(name, tensor.grad._version):
                raise LoopError(f"the gradient of '{name}' was changed after backward(), where it is sent; {_CLIP}")
            return
        if tensor.grad is not sent.gradient or sent.gradient._version != sent.version:
            raise LoopError(f"the gradient of '{name}' was changed after backward(), where it was sent; {_CLIP}")
        if float(self._group_of[name]["lr"]) != sent.rate:
            raise LoopError(f"the learning rate of '{name}' changed from {sent.rate} between backward() and step(); change it before "
                            "backward() or after step()")

    def _check_values(self) -> None:
        for name, tensor in self._job._table.trained.items():
            if tensor._version != self._value_versions[name]:
                raise LoopError(f"'{name}' was changed in this step, and the job would lose the change; only the optimizer changes parameters")

    def _warn_of_accumulation(self) -> None:
        """Warns once if a gradient was added to the one of the step before."""
        now = {name: (tensor.grad.data_ptr(), tensor.grad._version) for name, tensor in self._job._table.trained.items()
               if tensor.grad is not None}
        for name, (address, version) in now.items():
            count = self._counts.get(name, 1)
            if not self._warned and self._last.get(name) == (address, version - count) and count > 0:
                self._warned = True
                warnings.warn(f"the gradient of '{name}' contains the one of the step before; call optimizer.zero_grad() after "
                              "optimizer.step()", stacklevel=5)
        self._last = now


