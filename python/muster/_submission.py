"""How a training program finds its worker, and who submits the job."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
import tempfile
import uuid
from typing import Callable, Dict, Mapping, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from muster import _model_file
from muster.errors import LoopError

Spec = Union[Mapping[str, object], str, "os.PathLike[str]"]
Tensors = Mapping[str, npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class Coordinator:
    """The arguments of muster.Client."""

    server: Optional[str] = None
    tls: Optional[str] = None
    token_file: Optional[str] = None
    context: Optional[str] = None


def socket_path() -> str:
    """Returns the socket of the worker: MUSTER_PROGRAM_SOCKET, or the only one in the workers' folder."""
    if named := os.environ.get("MUSTER_PROGRAM_SOCKET"):
        return named
    folder = pathlib.Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"muster-{os.getuid()}")
    try:
        found = sorted(str(each) for each in folder.glob("*.sock") if stat.S_ISSOCK(each.stat().st_mode))
    except OSError:
        found = []
    if len(found) == 1:
        return found[0]
    some = f"several workers have a socket: {', '.join(found)}" if found else f"no worker has a socket in {folder}"
    raise LoopError(f"{some}; set MUSTER_PROGRAM_SOCKET to the --program_socket of one, or start the program by muster launch")


def job_of(spec: Optional[Spec], job: Optional[str], process: int, tensors: Callable[[], Tensors], statistics: Sequence[str],
           coordinator: Coordinator) -> str:
    """Returns the job to attach to: an id or a name, "" for any. Submits it if nothing else does.

    A worker that started this program names the job in MUSTER_JOB. With MUSTER_SUBMIT=0 another process submits.
    """
    if found := os.environ.get("MUSTER_JOB"):
        return found
    if job is not None or spec is None:
        return job or ""
    if process > 0:
        return ""
    if os.environ.get("MUSTER_SUBMIT") == "0":
        from muster import _spec  # needs protobuf
        name: str = _spec.read(spec, {})[0].name
        return name
    return _submit(spec, tensors(), statistics, coordinator)


def _submit(spec: Spec, tensors: Tensors, statistics: Sequence[str], coordinator: Coordinator) -> str:
    from muster import _spec
    from muster.client import Client  # needs gRPC
    launch = os.environ.get("MUSTER_LAUNCH_ID") or str(uuid.uuid4())
    with tempfile.TemporaryDirectory(prefix="muster-") as temporary:
        # The coordinator reads the file while it creates the job.
        path = pathlib.Path(os.environ.get("MUSTER_MODEL_DIR") or temporary, f"{launch}.safetensors").absolute()
        _model_file.write(path, tensors, statistics)
        overrides: Dict[str, object] = {"model.external.path": str(path), "data.external": {}}
        # A launch has a number of workers. Its programs would wait for ever for a job of fewer.
        read = _spec.read(spec, {})[0]
        for field, own in (("model", read.model), ("data", read.data)):
            if own.WhichOneof("source") not in (None, "external"):
                raise LoopError(f"the job file has {field}.{own.WhichOneof('source')}, and the program brings its own {field}; remove that "
                                "field, or train the job without a program: muster run")
        if (workers := os.environ.get("MUSTER_WORKERS")) and not read.resources.HasField("workers"):
            overrides["resources.workers"] = {"min": int(workers), "max": int(workers)}
        with Client(**dataclasses.asdict(coordinator)) as client:
            job = client.jobs.submit(spec, overrides=overrides, request_id=launch)
            return job.id
