"""The checkpoints of a coordinator: `client.checkpoints`, and folders with checkpoints: `muster.read_checkpoint`."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
import shutil
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from muster import _proto, errors
from muster._connection import Connection, Retry
from muster._progress import Progress
from muster.results import Checkpoint, Job, checkpoint_of, job_id

if TYPE_CHECKING:
    Arrays = Dict[str, npt.NDArray[Any]]

_STALL_SECONDS = 60.0
_SAVE_SECONDS = 600.0
_MANIFEST = "manifest.json"
_DTYPES = {"F32": "<f4"}

CheckpointRef = Union[Checkpoint, Job, str]


class Checkpoints:
    """Reads checkpoints. One is given as a Checkpoint, as "linear-1@640", or by a job for its last one."""

    def __init__(self, connection: Connection, progress: bool) -> None:
        self._connection = connection
        self._progress = progress

    def list(self, job: Union[Job, str, None] = None) -> List[Checkpoint]:
        """Returns the checkpoints of a job, or of all jobs, oldest step first."""
        request = _proto.new("ListCheckpointsRequest", parent=f"jobs/{job_id(job)}" if job else "")
        response = self._connection.call("CheckpointService.ListCheckpoints", request)
        return [checkpoint_of(each) for each in response.checkpoints]

    def get(self, checkpoint: CheckpointRef) -> Checkpoint:
        """Returns one checkpoint."""
        name = checkpoint.name if isinstance(checkpoint, Checkpoint) else job_id(checkpoint)
        request = _proto.new("GetCheckpointRequest", name=name)
        return checkpoint_of(self._connection.call("CheckpointService.GetCheckpoint", request))

    def save(self, job: Union[Job, str]) -> Checkpoint:
        """Takes a checkpoint of a running job now. Blocks until it is committed."""
        request = _proto.new("SaveCheckpointRequest", job=job_id(job))
        # A retry would take another one.
        return checkpoint_of(
            self._connection.call("CheckpointService.SaveCheckpoint", request, timeout=_SAVE_SECONDS, retry=False))

    def download(self, checkpoint: CheckpointRef, folder: Union[str, "os.PathLike[str]"], *,
                 progress: Optional[bool] = None) -> pathlib.Path:
        """Downloads every file into a new folder, and checks its SHA-256. The folder appears whole or not at all."""
        target = pathlib.Path(folder)
        if target.exists():
            raise errors.AlreadyExistsError(f"{target} exists already; name a folder that does not")
        found = self.get(checkpoint)
        partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
        partial.mkdir(parents=True)
        try:
            with self._bar(found, found.size_bytes, progress) as bar:
                done = 0
                for file in found.proto.files:
                    with open(_path(partial, file.name), "xb") as output:
                        done = self._receive(found, file, output, lambda size: bar.set(size), done)
                with open(partial / _MANIFEST, "xb") as output:
                    for part in self._parts(found, _MANIFEST):
                        output.write(part.data)
            _check_manifest(partial, found)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return target

    def read(self, checkpoint: CheckpointRef, *, slots: bool = False, progress: Optional[bool] = None) -> Arrays:
        """Returns the values of every parameter by its name, as NumPy arrays.

        With `slots` also the optimizer's values: "weight.momentum", "weight.m", ... Nothing is written to disk.
        """
        found = self.get(checkpoint)
        files = [file for file in found.proto.files if slots or file.name.startswith("model-")]
        arrays: Arrays = {}
        with self._bar(found, sum(file.size_bytes for file in files), progress) as bar:
            done = 0
            for file in files:
                buffer = bytearray(file.size_bytes)
                done = self._receive(found, file, _Filler(buffer), lambda size: bar.set(size), done)
                arrays.update(_tensors(buffer, file.name))
        return arrays

    def load_state_dict(self, model: Any, checkpoint: CheckpointRef, *, strict: bool = True,
                        progress: Optional[bool] = None) -> Any:
        """Loads the values into a torch model of the same parameter names, and returns what its load_state_dict returns.

        - Buffers that Muster does not train keep their values: constants, `num_batches_tracked` of batch norms.
        - A parameter with two names, as a head that is tied to an embedding, takes the value of the name that is saved.
        - With `strict` a parameter that the checkpoint lacks, and a name that the model lacks, is an error.
        """
        return load_arrays(model, self.read(checkpoint, progress=progress), strict=strict)

    def _bar(self, checkpoint: Checkpoint, size: int, progress: Optional[bool]) -> Progress:
        return Progress(checkpoint.name, "B", self._progress if progress is None else progress, size)

    def _receive(self, checkpoint: Checkpoint, file: Any, output: Union[IO[bytes], _Filler],
                 tell: Callable[[int], None], done: int) -> int:
        """Writes one file to `output` and checks it. Returns `done` and the size of the file together."""
        digest, size = hashlib.sha256(), 0
        for part in self._parts(checkpoint, file.name):
            output.write(part.data)
            digest.update(part.data)
            size += len(part.data)
            tell(done + size)
        if size != file.size_bytes or digest.hexdigest() != file.sha256:
            raise errors.DataLossError(
                f"{checkpoint.name}: {file.name} is damaged ({size} of {file.size_bytes} bytes arrived, and the SHA-256 "
                f"does not agree); try again, and check it with muster checkpoint verify {checkpoint.name}")
        return done + size

    def _parts(self, checkpoint: Checkpoint, file: str) -> Iterator[Any]:
        """Yields the parts of a file in order. After a break the next stream begins behind the last part."""
        request = _proto.new("ReadCheckpointRequest", name=checkpoint.proto.name, file=file)
        retry = Retry(self._connection)
        while True:
            begin = request.offset
            try:
                for part in self._connection.stream("CheckpointService.ReadCheckpoint", request, timeout=_STALL_SECONDS):
                    if part.file != file or part.offset != request.offset:
                        raise errors.DataLossError(
                            f"{checkpoint.name}: {part.file} at byte {part.offset} arrived instead of {file} at byte "
                            f"{request.offset}; try again")
                    yield part
                    retry.succeeded()
                    request.offset += len(part.data)
                return
            except errors.DeadlineExceededError:
                if request.offset == begin:
                    raise errors.DeadlineExceededError(
                        f"{checkpoint.name}: no data from the coordinator at {self._connection.where} for "
                        f"{_STALL_SECONDS:g} s; check its disk and the network, then try again") from None
            except errors.MusterError as error:
                retry.wait(error)


def read_checkpoint(folder: Union[str, "os.PathLike[str]"], *, slots: bool = False, verify: bool = True) -> Arrays:
    """Reads a checkpoint's folder, as `client.checkpoints.download` or `muster checkpoint get` makes it."""
    path = pathlib.Path(folder)
    arrays: Arrays = {}
    for file in _manifest(path)["files"]:
        if not slots and not file["name"].startswith("model-"):
            continue
        buffer = bytearray(_path(path, file["name"]).read_bytes())
        if verify and hashlib.sha256(buffer).hexdigest() != file["sha256"]:
            raise errors.DataLossError(f"{path / file['name']} is damaged: its SHA-256 is not that of {_MANIFEST}")
        arrays.update(_tensors(buffer, str(path / file["name"])))
    return arrays


def load_arrays(model: Any, arrays: Mapping[str, npt.NDArray[Any]], *, strict: bool = True) -> Any:
    """Loads arrays into a torch model, as Checkpoints.load_state_dict does."""
    torch = importlib.import_module("torch")  # needed here alone
    own = model.state_dict(keep_vars=True)
    trained = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    names = {id(own[name]): name for name in trained if name in own}
    for name, tensor in own.items():
        if name not in trained and id(tensor) in names:
            trained[name] = trained[names[id(tensor)]]
    buffers = {name: own[name] for name, _ in model.named_buffers() if name in own}
    return model.load_state_dict({**buffers, **trained}, strict=strict)


class _Filler:
    """Writes into a buffer of the right size."""

    def __init__(self, buffer: bytearray) -> None:
        self._view = memoryview(buffer)
        self._size = 0

    def write(self, data: bytes) -> None:
        end = self._size + len(data)
        if end > len(self._view):
            raise errors.DataLossError(f"more than the {len(self._view)} bytes of the file arrived; try again")
        self._view[self._size:end] = data
        self._size = end


def _path(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the path of a file of a checkpoint. Only a plain name is allowed, so that nothing outside the folder is touched."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise errors.DataLossError(f"{folder}: '{name}' is not the name of a file of a checkpoint")
    return folder / name


def _manifest(folder: pathlib.Path) -> Dict[str, Any]:
    path = folder / _MANIFEST
    try:
        manifest: Dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise errors.NotFoundError(f"{path} does not exist: the folder holds no checkpoint") from None
    except ValueError as error:
        raise errors.DataLossError(f"{path} is damaged: {error}") from None
    if manifest.get("format_version") != 1:
        raise errors.FailedPreconditionError(
            f"{path}: format {manifest.get('format_version')} is not 1; use a newer version of this package")
    return manifest


def _check_manifest(folder: pathlib.Path, checkpoint: Checkpoint) -> None:
    named = {file["name"]: file["sha256"] for file in _manifest(folder)["files"]}
    if named != {file.name: file.sha256 for file in checkpoint.proto.files}:
        raise errors.DataLossError(f"{checkpoint.name}: {_MANIFEST} names other files than the coordinator; try again")


def _tensors(buffer: bytearray, file: str) -> Iterator[Tuple[str, npt.NDArray[Any]]]:
    """Yields the tensors of a safetensors file, as views of the buffer (docs/checkpoint_format.md)."""
    try:
        length = int.from_bytes(buffer[:8], "little")
        header = json.loads(buffer[8:8 + length])
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            begin, end = tensor["data_offsets"]
            data = memoryview(buffer)[8 + length + begin:8 + length + end]
            yield name, np.frombuffer(data, dtype=_DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.DataLossError(f"{file} is not a file of a checkpoint: {error!r}") from None
