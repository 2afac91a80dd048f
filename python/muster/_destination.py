"""Finds the coordinator and the credentials for it, by the rules of the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, Dict, Mapping, Optional, Tuple

import yaml

from muster import errors

DEFAULT_SERVER = "127.0.0.1:7070"


@dataclasses.dataclass(frozen=True)
class Destination:
    """A coordinator, and how to reach it."""

    addresses: Tuple[str, ...]  # several: one of them leads
    where: str  # for messages: "host:7070 (context prod)"
    tls: str = ""  # folder with ca.crt and, unless there is a token, tls.crt and tls.key; "": plaintext
    token_file: str = ""  # "": no token


def local_dir() -> pathlib.Path:
    """Returns the folder of the cluster that `muster local up` starts."""
    return pathlib.Path(os.environ.get("HOME", "."), ".muster", "local")


def contexts_path() -> pathlib.Path:
    """Returns the file that `muster context add` writes."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return pathlib.Path(config or pathlib.Path(os.environ.get("HOME", "."), ".config"), "muster", "contexts.yaml")


def find(server: Optional[str] = None, tls: Optional[str] = None, token_file: Optional[str] = None,
         context: Optional[str] = None) -> Destination:
    """Returns the coordinator to use.

    It comes from the first of: these arguments, the environment, the current context, the local cluster, 127.0.0.1:7070."""
    if server and context:
        raise errors.InvalidArgumentError("server and context both name a coordinator; give only one of them")
    # The values of the environment belong together: the token is for that server. If the program names a context, that
    # coordinator must not get the token.
    environment: Mapping[str, str] = {} if context else os.environ
    server = server or environment.get("MUSTER_SERVER", "")
    tls = tls or environment.get("MUSTER_TLS", "")
    token_file = token_file or environment.get("MUSTER_TOKEN_FILE", "")
    if server:
        return _secure(server, server, tls, token_file)
    name = context or environment.get("MUSTER_CONTEXT", "")
    current, contexts = _read_contexts(contexts_path())
    chosen = _context(contexts, name or current)
    tls = tls or chosen.get("tls", "")
    token_file = token_file or chosen.get("token_file", "")
    if chosen.get("server"):
        return _secure(chosen["server"], f"{chosen['server']} (context {name or current})", tls, token_file)
    record = _local_record(local_dir())
    if record is None or not record.get("whole", True):
        return _secure(DEFAULT_SERVER, DEFAULT_SERVER, tls, token_file)
    if not _coordinator_runs(record):
        raise errors.UnavailableError(
            f"the coordinator of the local cluster in {local_dir()} has ended (its log: "
            f"{local_dir() / 'logs' / 'coordinator.log'}): muster local up starts it again, muster local down removes it")
    # A local cluster runs without certificates, so tls and token_file do not apply to it.
    return Destination((record["address"],), f"{record['address']} (the local cluster)")


def is_local_cluster(state_dir: str) -> bool:
    """Returns whether a coordinator with this state folder belongs to a local cluster that runs on this host."""
    state = pathlib.Path(state_dir)
    if state.name != "state":
        return False
    record = _local_record(state.parent)
    return record is not None and _coordinator_runs(record)


def _secure(server: str, where: str, tls: str, token_file: str) -> Destination:
    addresses = tuple(address for address in server.split(",") if address)
    for address in addresses or (server,):
        port = address.rpartition(":")[2]
        is_scheme = address.startswith(("dns:", "unix:", "ipv4:", "ipv6:"))
        if not is_scheme and not (":" in address and port.isdigit() and 0 < int(port) < 65536):
            raise errors.InvalidArgumentError(f"'{address}' is not an address; write HOST:PORT, usually with port 7070")
    if token_file and not tls:
        raise errors.InvalidArgumentError(
            "the token would be sent in plaintext: give the folder of the coordinator's authority (ca.crt) with tls as "
            "well", reason="TOKEN_FILE")
    return Destination(addresses, where, tls, token_file)


def _read_contexts(path: pathlib.Path) -> Tuple[str, Dict[str, Dict[str, str]]]:
    """Returns the name of the current context, "" if none, and the contexts by name."""

    def faulty(what: str) -> errors.MusterError:
        return errors.InvalidArgumentError(f"{path}: {what}; fix it, or remove it and run muster context add")

    try:
        # The base loader leaves every scalar as text.
        root = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}
    except FileNotFoundError:
        return "", {}
    except yaml.YAMLError as error:
        raise faulty(" ".join(str(error).split())) from None
    if not isinstance(root, dict):
        raise faulty("it is not a map")
    if unknown := root.keys() - {"current", "contexts"}:
        raise faulty(f"unknown key {min(unknown)}")
    contexts: Dict[str, Dict[str, str]] = root.get("contexts") or {}
    for name, fields in contexts.items():
        if not isinstance(fields, dict):
            raise faulty(f"context {name} is not a map")
        if unknown := fields.keys() - {"server", "tls", "token_file"}:
            raise faulty(f"context {name} has the unknown key {min(unknown)}")
    return root.get("current") or "", contexts


def _context(contexts: Mapping[str, Dict[str, str]], name: str) -> Dict[str, str]:
    if not name:
        return {}
    if name in contexts:
        return contexts[name]
    known = (f"there are {', '.join(sorted(contexts))}" if contexts else
             "there are none; create one with muster context add NAME --server HOST:PORT")
    raise errors.NotFoundError(f"no context '{name}'; {known}")


def _local_record(folder: pathlib.Path) -> Optional[Dict[str, Any]]:
    """Returns the record that `muster local up` wrote of a cluster; None if there is none, or if the file is damaged."""
    try:
        record = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
        return record if "address" in record and "members" in record else None
    except (OSError, ValueError, TypeError):
        return None


def _coordinator_runs(record: Dict[str, Any]) -> bool:
    for member in record["members"]:
        if member["name"] == "coordinator":
            try:
                stat = pathlib.Path(f"/proc/{member['pid']}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                return False
            # The fields from the third on. The name before them may contain any character, so the last ')' ends it. Another
            # process may have the same pid by now, so the start time (field 22) must match.
            fields = stat.rpartition(")")[2].split()
            return fields[0] != "Z" and int(fields[19]) == member["start_ticks"]
    return False
