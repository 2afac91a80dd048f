"""The messages and methods of the API, from a descriptor set in a pool of their own.

The pool is not protobuf's default one, so the messages cannot clash with those of the user's program.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> descriptor_pool.DescriptorPool:
    path = pathlib.Path(__file__).with_name("_protos.bin")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ImportError(f"{path} is missing; in Muster's sources run python/muster/make_protos.sh {path}") from None
    pool = descriptor_pool.DescriptorPool()
    # A file comes after those that it imports.
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _load()


@functools.lru_cache(maxsize=None)
def message_type(full_name: str) -> Any:
    """The class of a message, "google.rpc.ErrorInfo"."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))


def new(message: str, /, **fields: Any) -> Any:
    """A message of the API: new("GetJobRequest", name="jobs/linear-1")."""
    return message_type(f"muster.v1.{message}")(**fields)


def enum_name(message: Any, field: str) -> str:
    """The name of an enum field's value; "9" if only a newer coordinator knows the value."""
    number: int = getattr(message, field)
    value = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return value.name if value else str(number)


class Method(NamedTuple):
    path: str  # "/muster.v1.JobService/GetJob"
    request: Any  # classes
    response: Any


@functools.lru_cache(maxsize=None)
def method(name: str) -> Method:
    """A method by its short name, "JobService.GetJob"."""
    service_name, _, method_name = name.partition(".")
    service = _POOL.FindServiceByName(f"muster.v1.{service_name}")
    found = service.methods_by_name[method_name]
    return Method(f"/{service.full_name}/{method_name}", message_type(found.input_type.full_name),
                  message_type(found.output_type.full_name))
