"""The processes of one host that train together as one rank: a local group of torch.distributed.

Process 0 speaks with the worker. It tells the others what to compute, and their gradients are summed into its memory.
"""

from __future__ import annotations

import atexit
import datetime
import importlib
import os
from typing import Any, Callable, List, Optional, TypeVar

from muster.errors import LoopError, Suspended, WorkerLost

T = TypeVar("T")

_FOREVER = datetime.timedelta(days=365)  # user code has no deadline; the end of a process is noticed by its sockets
_BUCKET_ELEMENTS = 4 << 20


class PeerLost(LoopError):
    """Another process of this rank ended. It reported its error itself, or was killed and may start again, so the job goes on."""


class LocalGroup:
    """The group of this process. `process` is its number on this host, and `size` the number of processes."""

    def __init__(self, process: int, size: int, uses_cuda: bool) -> None:
        self.process = process
        self.size = size
        self.attachments_of_first = 0  # what process 0 told last
        self._torch: Any = importlib.import_module("torch")
        self._distributed: Any = importlib.import_module("torch.distributed")
        if not self._distributed.is_initialized():
            self._initialize()
        self._objects = self._subgroup("gloo")
        self._uses_cuda = uses_cuda and self._distributed.is_nccl_available()
        self._tensors = self._subgroup("nccl") if self._uses_cuda else self._objects
        self._first = self._distributed.get_rank() - process  # rank of process 0 in the default group

    def from_first(self, function: Callable[[], T]) -> T:
        """Calls `function` in process 0, and returns its result or raises its error in every process."""
        result: Any = None
        if self.process == 0:
            try:
                result = ("returned", function())
            except Suspended as end:
                result = ("suspended", end.reason, end.message)
            except (LoopError, WorkerLost) as error:
                result = ("raised", type(error), str(error))
        kind, *rest = self._broadcast(result)
        if kind == "returned":
            value: T = rest[0]
            return value
        if kind == "suspended":
            raise Suspended(*rest)
        raise rest[0](rest[1])

    def gather(self, value: T) -> List[T]:
        """Returns the values of all processes, in their order."""
        values: List[Any] = [None] * self.size
        self._call(lambda: self._distributed.all_gather_object(values, value, group=self._objects))
        return values

    def largest(self, flags: Any) -> Any:
        """Returns the elementwise maximum of a vector over the processes."""
        self._call(lambda: self._distributed.all_reduce(flags, self._distributed.ReduceOp.MAX, group=self._objects))
        return flags

    def add_up(self, memory: Any, device: Any) -> None:
        """Adds the memories of all processes into that of process 0. The memories of the others change, too."""
        for begin in range(0, len(memory), _BUCKET_ELEMENTS):
            part = memory[begin:begin + _BUCKET_ELEMENTS]
            sent = part.to(device) if self._uses_cuda else part
            self._call(lambda: self._distributed.reduce(sent, self._first, group=self._tensors))  # pylint: disable=cell-var-from-loop
            if self._uses_cuda and self.process == 0:
                part.copy_(sent)

    def _broadcast(self, value: Any) -> Any:
        values = [value]
        self._call(lambda: self._distributed.broadcast_object_list(values, self._first, group=self._objects))
        return values[0]

    def _call(self, function: Callable[[], Any]) -> None:
        try:
            function()
        except RuntimeError as error:
            raise PeerLost(f"process {self.process} of {self.size}: another process of this host ended; its error is the one to "
                           f"look at ({error})") from None

    def _subgroup(self, backend: str) -> Any:
        """Returns the group of this host's processes. Every process must take part in the making of every host's group."""
        world, rank = self._distributed.get_world_size(), self._distributed.get_rank()
        if world % self.size or rank % self.size != self.process:
            raise LoopError(f"torch.distributed has rank {rank} of {world}, and this is process {self.process} of {self.size} on its "
                            "host; start the same number on each host, by torchrun or muster launch --local-processes")
        found = None
        for first in range(0, world, self.size):
            ranks = list(range(first, first + self.size))
            made = self._distributed.new_group(ranks, timeout=_FOREVER, backend=backend)
            found = made if rank in ranks else found
        return found

    def _initialize(self) -> None:
        atexit.register(self._distributed.destroy_process_group)  # a thread of gloo that still runs would abort the process
        if "RANK" in os.environ:  # torchrun
            self._distributed.init_process_group("gloo", timeout=_FOREVER)
            return
        address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        if not address or not port:
            raise LoopError(f"process {self.process} of {self.size} has no MASTER_ADDR and MASTER_PORT; start the processes by "
                            "muster launch --local-processes or torchrun")
        self._distributed.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=self.process,
                                             world_size=self.size, timeout=_FOREVER)


def find(uses_cuda: bool) -> Optional[LocalGroup]:
    """Returns the group that the environment describes, by `muster launch` or torchrun; None for a single process."""
    for size, process in (("MUSTER_LOCAL_PROCESSES", "MUSTER_LOCAL_PROCESS"), ("LOCAL_WORLD_SIZE", "LOCAL_RANK")):
        if size in os.environ and process in os.environ:
            count = int(os.environ[size])
            return LocalGroup(int(os.environ[process]), count, uses_cuda) if count > 1 else None
    return None
