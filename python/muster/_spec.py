"""Reads jobs: a mapping, YAML text or a file becomes the API's JobSpec. The rules are those of `muster submit`.

A fault has its field path and, in YAML, its line.
"""

from __future__ import annotations

import copy
import datetime
import difflib
import math
import os
import pathlib
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np
import yaml
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from muster import _proto, errors
from muster.errors import Fault

JobLike = Union[Mapping[str, Any], str, "os.PathLike[str]"]

_TEXT_BYTES_MAX = 1 << 20
_VALUES_MAX = 10_000  # aliases expand: a few lines can expand to billions of values
_DEPTH_MAX = 32
_INTEGER = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?\.?inf|[-+]?infinity|\.?nan", re.I)
_DURATION = re.compile(r"(-?)((?:\d+(?:\.\d*)?(?:ns|us|ms|s|m|h))+|0)")
_SECONDS_MAX = 315_576_000_000  # of a protobuf Duration
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_HINT = "muster get JOB -o spec prints a job file"
# The proto reads 0 of these fields as "unset". A user never means 0 there.
_ZERO_MEANS_UNSET = frozenset(f"muster.v1.{field}" for field in (
    "WorkerCount.min", "WorkerCount.max", "JobSpec.chunk_bytes", "PolySchedule.power", "LossScale.growth_steps",
    "SyncSpec.staleness", "Compression.ratio", "Compression.rank", "BlockShuffle.window_blocks", "BlockShuffle.lanes",
    "CsvNumber.scale", "ScatterFeature.fill"))


class Places:
    """Where each field of a job is written: "linear.yaml:12"."""

    def __init__(self, file: str = "") -> None:
        self._file = file
        self._by_path: Dict[str, str] = {}

    def put(self, path: str, line: int) -> None:
        self._by_path[path] = f"{self._file}:{line}"

    def override(self, path: str) -> None:
        self._by_path[path] = "overrides"

    def of(self, path: str) -> str:
        """Returns the place of a field, or of the nearest field around it."""
        while path and path not in self._by_path:
            path = path[:max(path.rfind("."), path.rfind("["), 0)]
        return self._by_path.get(path, self._file)


def read(job: JobLike, overrides: Mapping[str, Any]) -> Tuple[Any, Places]:
    """Returns the JobSpec of a job, and where its fields are. Raises InvalidSpecError with all faults."""
    if isinstance(job, Mapping):
        places = Places()
        root = copy.deepcopy(dict(job))
        faults: List[Fault] = []
    else:
        text, name = _text_of(job)
        places = Places(name)
        root, faults = _YamlReader(name, places).read(text)
    for path, value in overrides.items():
        _override(root, path, value)
        places.override(path)
    spec = _proto.new("JobSpec")
    reader = _SpecReader(places, faults)
    reader.read_message(root, "", spec)
    ps = root.get("resources", {}).get("ps") if isinstance(root.get("resources"), Mapping) else None
    if ps == 0 and _proto.enum_name(spec.sync, "mode") != "ALLREDUCE":
        reader.add("resources.ps", "must be at least 1 (is 0); leave it out for the default, or train without ps by "
                   "sync: {mode: allreduce}")
    if reader.faults:
        raise spec_error(reader.faults)
    return spec, places


def spec_error(faults: List[Fault], reason: str = "INVALID_SPEC") -> errors.InvalidSpecError:
    return errors.InvalidSpecError("\n".join(map(str, faults)), reason=reason, faults=faults)


# The fields of each source that hold paths.
_PATHS = {"text": ("path",), "idx": ("images", "labels", "eval_images", "eval_labels"), "npz": ("path",),
          "images": ("path", "list", "eval_path", "eval_list"), "tfrecord": ("path", "eval_path"),
          "tar": ("path", "eval_path"), "csv": ("path", "eval_path")}


def _make_data_absolute(data: Any, folder: pathlib.Path) -> None:
    source = data.WhichOneof("source")
    named = [(getattr(data, source), field) for field in _PATHS.get(source, ())]
    if source == "csv":
        named += [(column.vocabulary, "path") for column in data.csv.inputs.values() if column.HasField("vocabulary")]
    _make_absolute(named, folder)
    if source == "npy":
        for name, path in list(data.npy.inputs.items()):
            data.npy.inputs[name] = os.path.normpath(folder / path)
    if source == "mixture":
        for part in data.mixture.parts:
            _make_data_absolute(part.data, folder)


def _make_absolute(named: List[Tuple[Any, str]], folder: pathlib.Path) -> None:
    for message, field in named:
        if getattr(message, field):
            setattr(message, field, os.path.normpath(folder / getattr(message, field)))


def make_paths_absolute(spec: Any, folder: pathlib.Path) -> None:
    """Makes relative paths of data, of the model's file and of a folder to resume from begin at `folder`."""
    named = [(spec.model.onnx, "path")] if spec.model.HasField("onnx") else []
    if spec.model.HasField("external"):
        named.append((spec.model.external, "path"))
    if "/" in spec.checkpoint.resume_from and not spec.checkpoint.resume_from.startswith("jobs/"):
        named.append((spec.checkpoint, "resume_from"))
    _make_absolute(named, folder)
    _make_data_absolute(spec.data, folder)


def _text_of(job: Union[str, "os.PathLike[str]"]) -> Tuple[str, str]:
    """Returns the YAML text, and its name for messages. A str with a line break or a brace is the text itself."""
    if isinstance(job, str) and ("\n" in job or "{" in job):
        return job, "job"
    try:
        content = pathlib.Path(job).read_bytes()
    except OSError as error:
        raise errors.NotFoundError(
            f"{job}: {error.strerror}; give a job as a path, as YAML text or as a dict", reason="FILE_NOT_FOUND"
        ) from None
    try:
        return content.decode("utf-8"), str(job)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise spec_error([Fault("", "not UTF-8: save the file in that encoding", f"{job}:{line}")]) from None


class _YamlReader:
    """Reads YAML to plain values. Scalars follow YAML 1.2, as in the other readers of job files: "no" is text."""

    def __init__(self, file: str, places: Places) -> None:
        self._file = file
        self._places = places
        self._values = 0
        self._faults: List[Fault] = []

    def read(self, text: str) -> Tuple[Dict[str, Any], List[Fault]]:
        """Returns the map, and faults that leave it usable."""
        if not _is_unicode(text):
            raise self._fault(1, "holds half of a character, which has no form in UTF-8")
        if len(text.encode("utf-8")) > _TEXT_BYTES_MAX:
            raise self._fault(1, f"a job file may have at most {_TEXT_BYTES_MAX} bytes")
        if (tab := re.search(r"^ *\t", text, re.M)) is not None:
            line = text.count("\n", 0, tab.start()) + 1
            raise self._fault(line, "a tab in the indentation; YAML wants spaces")
        try:
            documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            what = getattr(error, "problem", None) or str(error)
            raise self._fault(mark.line + 1 if mark else 1, f"not YAML: {what}") from None
        except RecursionError:
            raise self._fault(1, f"values nest more than {_DEPTH_MAX} deep") from None
        if len(documents) > 1:
            raise self._fault(documents[1].start_mark.line + 1, "one job per file: a second document begins here")
        root = self._value(documents[0], "", 0) if documents else None
        if root is None:
            raise self._fault(1, "the file is empty; examples/linear.yaml is a short complete one")
        if not isinstance(root, dict):
            raise self._fault(1, f"a job file is a map of fields (this is {_kind(root)})")
        if "spec" in root and "state" in root:
            line = int(self._places.of("spec").rpartition(":")[2])
            raise self._fault(line, f"this is a job as the API prints it, not a job file; {_HINT}", "spec")
        return root, self._faults

    def _fault(self, line: int, message: str, field: str = "") -> errors.InvalidSpecError:
        return spec_error([Fault(field, message, f"{self._file}:{line}")])

    def _value(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._values += 1
        if depth > _DEPTH_MAX:
            raise self._fault(1, f"values nest more than {_DEPTH_MAX} deep")
        if self._values > _VALUES_MAX:
            raise self._fault(
                1, f"holds more than {_VALUES_MAX} values (an alias counts as the values that it stands for)")
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self._places.put(f"{path}[{index}]", item.start_mark.line + 1)
                items.append(self._value(item, f"{path}[{index}]", depth + 1))
            return items
        if isinstance(node, yaml.MappingNode):
            return self._map(node, path, depth)
        return _scalar(node)

    def _map(self, node: yaml.MappingNode, path: str, depth: int) -> Dict[str, Any]:
        result: Dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._fault(1, f"a key must be a name (at {self._file}:{line})")
            field = _join(path, key_node.value)
            if key_node.value in result:
                message = f"set twice; first at {self._places.of(field)}"
                self._faults.append(Fault(field, message, f"{self._file}:{line}"))
                continue
            self._places.put(field, line)
            result[key_node.value] = self._value(value_node, field, depth + 1)
        return result


def _scalar(node: Any) -> Any:
    text: str = node.value
    if node.style is not None:  # quoted
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _override(root: Dict[str, Any], path: str, value: Any) -> None:
    """Sets a field. A member of a oneof displaces the member that the job has chosen."""
    keys = path.split(".")
    if "" in keys or len(keys) > _DEPTH_MAX:
        raise errors.InvalidArgumentError(
            f"overrides: '{path}' is not a field path; write for example {{'training.steps': 500}}")
    descriptor = _proto.message_type("muster.v1.JobSpec").DESCRIPTOR
    node = root
    for index, key in enumerate(keys):
        field = descriptor.fields_by_name.get(key) if descriptor else None
        if field is not None and field.containing_oneof is not None:
            for other in field.containing_oneof.fields:
                if other.name != key:
                    node.pop(other.name, None)
        if index == len(keys) - 1:
            node[key] = copy.deepcopy(value)
            return
        if not isinstance(node.get(key), dict):
            node[key] = {}
        node = node[key]
        descriptor = field.message_type if field is not None else None


class _SpecReader:
    """Fills a message from plain values and collects every fault."""

    def __init__(self, places: Places, faults: List[Fault]) -> None:
        self._places = places
        self.faults = faults

    def add(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message, self._places.of(path)))

    def read_message(self, value: Any, path: str, message: Any) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        if value is None and not fields:
            return  # "constant:"
        kind = fields.get("kind")
        if kind is not None and kind.enum_type is not None and isinstance(value, str):
            return self._read_field(value, path, kind, message)  # "compression: int8"
        if not isinstance(value, Mapping):
            return self.add(path, f"expects a map of {', '.join(fields)} (is {_kind(value)})")
        for key in value:
            if key not in fields:
                self.add(_join(path, key), _unknown("field", str(key), fields))
        for oneof in message.DESCRIPTOR.oneofs:
            members = [key for key in value if key in fields and fields[key].containing_oneof is oneof]
            if len(members) > 1:
                names = ", ".join(f"'{key}'" for key in members)
                self.add(_join(path, members[1]), f"only one of {names} may be set")
        for key, inner in value.items():
            if key in fields:
                self._read_field(inner, _join(path, key), fields[key], message)

    def _read_field(self, value: Any, path: str, field: Any, message: Any) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._read_map(value, path, field, getattr(message, field.name))
        elif isinstance(getattr(message, field.name), (str, bytes, int, float)):  # a scalar, an enum or a bool
            converted = self._scalar(value, path, field)
            if converted is not None:
                setattr(message, field.name, converted)
        elif field.message_type is None or hasattr(getattr(message, field.name), "add"):
            self._read_list(value, path, field, getattr(message, field.name))
        elif field.message_type.full_name == "google.protobuf.Struct":
            self._read_struct(value, path, getattr(message, field.name))
        elif field.message_type.full_name == "google.protobuf.Duration":
            self._read_duration(value, path, getattr(message, field.name))
        else:
            getattr(message, field.name).SetInParent()
            self.read_message(value, path, getattr(message, field.name))

    def _read_list(self, value: Any, path: str, field: Any, target: Any) -> None:
        if not isinstance(value, (list, tuple)):
            return self.add(path, f"expects a list (is {_kind(value)}); write it in [brackets]")
        for index, item in enumerate(value):
            item_path = f"{path}[{index}]"
            if field.message_type is not None:
                self.read_message(item, item_path, target.add())
            elif field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
                if (number := self._number(_python_number(item), item_path, field)) is not None:
                    target.append(number)
            elif (text := self._text(item, item_path)) is not None:
                target.append(text)

    def _read_map(self, value: Any, path: str, field: Any, target: Any) -> None:
        if not isinstance(value, Mapping):
            return self.add(path, f"expects a map (is {_kind(value)})")
        for key, item in value.items():
            if field.message_type.fields_by_name["value"].message_type is not None:
                target[str(key)].SetInParent()
                self.read_message(item, _join(path, key), target[str(key)])
            elif (text := self._text(item, _join(path, key))) is not None:
                target[str(key)] = text

    def _read_struct(self, value: Any, path: str, target: Any) -> None:
        plain = self._plain(value if value is not None else {}, path)
        if not isinstance(plain, dict):
            return self.add(path, f"expects a map (is {_kind(value)})")
        json_format.ParseDict(plain, target)

    def _plain(self, value: Any, path: str) -> Any:
        """Returns a JSON value; adds a fault for anything else."""
        value = _python_number(value)
        if isinstance(value, Mapping):
            return {str(key): self._plain(item, _join(path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path) or ""
        if value is None:
            self.add(path, "has no value; give one or remove the line")
        elif not isinstance(value, (int, float)):
            self.add(path, f"expects a number, text, true or false (is {_kind(value)})")
        elif not math.isfinite(value):
            self.add(path, f"must be a finite number (is {value})")
        elif isinstance(value, int) and abs(value) > 2**53:
            self.add(path, f"must be at most 2^53 (is {value})")
        else:
            return float(value)
        return 0.0

    def _read_duration(self, value: Any, path: str, target: Any) -> None:
        if value is None:
            return self.add(path, "has no value; give one or remove the line")
        seconds: Optional[float] = None
        if isinstance(value, datetime.timedelta):
            seconds = value.total_seconds()
        elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
            parts = re.findall(r"([\d.]+)(ns|us|ms|s|m|h)", match[2])
            seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts) * (-1 if match[1] else 1)
        elif value == 0 and not isinstance(value, bool):
            seconds = 0.0
        if seconds is None or abs(seconds) > _SECONDS_MAX:
            return self.add(path, f"expects a time with its unit: 500ms, 90s, 15m, 12h, 1h30m (is {_kind(value)})")
        nanos = round(seconds * 1e9)
        whole = abs(nanos) // 10**9 * (1 if nanos >= 0 else -1)
        target.seconds, target.nanos = whole, nanos - whole * 10**9

    def _scalar(self, value: Any, path: str, field: Any) -> Any:
        """Returns the value of a field that is not repeated. After a fault adds the fault and returns None."""
        value = _python_number(value)
        if value is None:
            return self.add(path, "has no value; give one or remove the line")
        if isinstance(value, (Mapping, list, tuple)):
            return self.add(path, f"expects a single value (is {_kind(value)})")
        if field.enum_type is not None:
            return self._enum(value, path, field.enum_type)
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return self._text(value, path)
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            if isinstance(value, bool):
                return value
            return self.add(path, f"expects true or false (is {_kind(value)})")
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            return self._number(value, path, field)
        return self._integer(value, path, field)

    def _text(self, value: Any, path: str) -> Optional[str]:
        if isinstance(value, (str, os.PathLike)):
            text = str(value)
            if _is_unicode(text):
                return text
            self.add(path, f"holds half of a character, which has no form in UTF-8 (is {text!a})")
        elif isinstance(value, (bool, int, float)):
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            self.add(path, f"expects text (is {shown}); write it in quotes: \"{shown}\"")
        else:
            self.add(path, f"expects text (is {_kind(value)})")
        return None

    def _enum(self, value: Any, path: str, enum: Any) -> Optional[int]:
        named: Dict[str, int] = {each.name: each.number for each in enum.values if each.number != 0}
        prefix = os.path.commonprefix(list(named))
        prefix = prefix[:prefix.rfind("_") + 1]  # "COMPRESSION_"
        known = {name[len(prefix):].lower(): number for name, number in named.items()}
        if isinstance(value, str) and value in known:
            return known[value]
        if value in named:
            self.add(path, f"{_kind(value)}: is the API's name of '{value[len(prefix):].lower()}' ({_HINT})")
        else:
            self.add(path, f"{_kind(value)}: {_unknown('value', str(value), known)}")
        return None

    def _number(self, value: Any, path: str, field: Any) -> Optional[float]:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.add(path, f"expects a number (is {_kind(value)})")
        elif not math.isfinite(value):
            self.add(path, f"must be a finite number (is {value})")
        elif value == 0 and field.full_name in _ZERO_MEANS_UNSET:
            self.add(path, "must be greater than 0 (is 0); leave it out for the default")
        else:
            return float(value)
        return None

    def _integer(self, value: Any, path: str, field: Any) -> Optional[int]:
        bits = 31 if field.cpp_type == FieldDescriptor.CPPTYPE_INT32 else 63
        is_unsigned = field.cpp_type == FieldDescriptor.CPPTYPE_UINT64
        least, most = (0, 2**64 - 1) if is_unsigned else (-(2**bits), 2**bits - 1)
        if isinstance(value, float) and value.is_integer():
            self.add(path, f"expects a whole number in plain digits; write {int(value)} instead of {value}")
        elif isinstance(value, bool) or not isinstance(value, int):
            self.add(path, f"expects a whole number (is {_kind(value)})")
        elif is_unsigned and value < 0:
            self.add(path, f"must not be negative (is {value})")
        elif not least <= value <= most:
            self.add(path, f"must be between {least} and {most} (is {value})")
        elif value == 0 and field.full_name in _ZERO_MEANS_UNSET:
            self.add(path, "must be at least 1 (is 0); leave it out for the default")
        else:
            return value
        return None


def _python_number(value: Any) -> Any:
    """Returns the same number as Python's own type, if it is one of NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def _is_unicode(text: str) -> bool:
    """Returns whether the text can be sent: Python's str may hold lone surrogates."""
    return not re.search("[\ud800-\udfff]", text)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _kind(value: Any) -> str:
    """Returns how a message names a value."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = str(value)
    return f'"{text[:60]}..."' if len(text) > 60 else f'"{text}"'


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(name, known, 1, 0.8)
    return f"unknown {what}; did you mean '{nearest[0]}'?" if nearest else f"unknown {what}; known: {', '.join(known)}"
