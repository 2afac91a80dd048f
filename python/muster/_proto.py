"""The messages and methods of the API, from a descriptor set in a pool of their own.

The pool is not protobuf's default one, so the messages cannot clash with those of the user's program.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any, Dict, NamedTuple, Tuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> Tuple[descriptor_pool.DescriptorPool, Dict[str, Any]]:
    """Returns the pool, and the classes of its messages by their full names."""
    path = pathlib.Path(__file__).with_name("_protos.bin")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ImportError(f"{path} is missing; in Muster's sources run python/muster/make_protos.sh {path}") from None
    files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:  # each comes after those that it imports
        pool.AddSerializedFile(file.SerializeToString())
    # All classes are kept, because protobuf 4.22 to 4.24 crashes at a field whose class was collected.
    classes: Dict[str, Any] = {}
    types = [each for file in files for each in pool.FindFileByName(file.name).message_types_by_name.values()]
    while types:
        descriptor = types.pop()
        classes[descriptor.full_name] = message_factory.GetMessageClass(descriptor)
        types += descriptor.nested_types
    return pool, classes


_POOL, _CLASSES = _load()


def message_type(full_name: str) -> Any:
    """Returns the class of a message, "google.rpc.ErrorInfo"."""
    return _CLASSES[full_name]


def new(message: str, /, **fields: Any) -> Any:
    """Returns a message of the API: new("GetJobRequest", name="jobs/linear-1")."""
    return message_type(f"muster.v1.{message}")(**fields)


def enum_name(message: Any, field: str) -> str:
    """Returns the name of an enum field's value; "9" if only a newer coordinator knows the value."""
    number: int = getattr(message, field)
    value = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return value.name if value else str(number)


class Method(NamedTuple):
    path: str  # "/muster.v1.JobService/GetJob"
    request: Any  # classes
    response: Any


@functools.lru_cache(maxsize=None)
def method(name: str) -> Method:
    """Returns a method by its short name, "JobService.GetJob"."""
    service_name, _, method_name = name.partition(".")
    service = _POOL.FindServiceByName(f"muster.v1.{service_name}")
    found = service.methods_by_name[method_name]
    return Method(f"/{service.full_name}/{method_name}", message_type(found.input_type.full_name),
                  message_type(found.output_type.full_name))
