"""The workers' side of docs/loop_protocol.md with bsp, over programs of this process and others. Exact, and without a cluster.

The workers of a job share one state, which the shards would hold: the values of the parameters and the optimizer's slots.
"""

import collections
import json
import mmap
import os
import socket
import struct
import tempfile
import threading

import numpy as np

HELLO, DATA, NEXT, GRADIENTS, EVALUATION, FAILED = range(1, 7)
WELCOME, REFUSED, BEGIN, END, RESULT, WAITING = range(65, 71)


class FakeJob:
    """A job with `workers` workers, each with a socket in `paths`. A context manager."""

    def __init__(self, values, optimizer=None, *, statistics=(), groups=None, group_of=None, frozen=(), batch_size=8, steps=3,
                 workers=1, seed=0, schedule=None, shares=None, protocol=1, waits=0, seals=False):
        self.optimizer = optimizer or {"kind": "sgd", "learning_rate": 0.1}
        self.groups = groups or [{"learning_rate": self.optimizer["learning_rate"], "weight_decay": self.optimizer.get("weight_decay", 0.0)}]
        self.batch_size, self.steps, self.workers, self.seed = batch_size, steps, workers, seed
        self.schedule = schedule  # step -> learning rate of group 0
        self.shares = shares or {}  # step -> [(first position, samples)] of the ranks
        self.again = {}  # step -> [(shares or None, step to begin again at)]; used once its gradients are complete
        self.protocol, self.waits = protocol, waits
        self.table, offset = [], 0
        for name, value in values.items():
            self.table.append({"name": name, "shape": list(np.shape(value)), "offset": offset, "statistic": name in statistics,
                               "frozen": name in frozen, "group": (group_of or {}).get(name, 0)})
            offset += (int(np.size(value)) + 15) // 16 * 16
        self.elements = max(offset, 16)
        self.version, self.attempt = 0, 0
        self.values = {name: np.array(value, np.float32) for name, value in values.items()}
        self.slots = collections.defaultdict(lambda: {})
        self.history = {0: self._state()}
        self.finished, self.messages, self.data, self.failures, self.hellos = [], [], [], [], []
        self.end_with = None  # {"reason", "message"}
        self._pushed = {}  # rank -> {parameter: (array or None, learning rate)}
        self._weights = {}
        self._begun = {}  # rank -> attempt that it was told
        self._evaluations = {}  # step -> {rank: (samples, metrics)}
        self._condition = threading.Condition()
        self._folder = tempfile.TemporaryDirectory(dir="/tmp")
        self.paths = [f"{self._folder.name}/worker-{rank}.sock" for rank in range(workers)]
        self._listeners, self._connections = [None] * workers, [[] for _ in range(workers)]
        self.files = [[_memory_file(4 * self.elements, seals and index) for index in range(3)] for _ in range(workers)]
        self.memory = [[np.frombuffer(mmap.mmap(file, 4 * self.elements, access=mmap.ACCESS_READ if index == 0 else mmap.ACCESS_WRITE),
                                      np.float32) for index, (file, _) in enumerate(files)] for files in self.files]

    def __enter__(self):
        for rank in range(self.workers):
            self.start(rank)
        return self

    def __exit__(self, *_):
        for rank in range(self.workers):
            self.stop(rank)
        for files in self.files:
            for pair in files:
                for file in set(pair):
                    os.close(file)
        self._folder.cleanup()

    def start(self, rank):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.paths[rank])
        listener.listen()
        self._listeners[rank] = listener
        threading.Thread(target=self._accept, args=(rank, listener), daemon=True).start()

    def stop(self, rank):
        """Ends the worker as a kill would."""
        with self._condition:
            listener, self._listeners[rank] = self._listeners[rank], None
            if listener is not None:
                os.unlink(self.paths[rank])
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()
            for connection in self._connections[rank]:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._connections[rank].clear()
            self._pushed, self._weights = {}, {}  # the step begins again
            self.attempt += 1
            self._condition.notify_all()

    def end(self, reason, message=""):
        with self._condition:
            self.end_with = {"reason": reason, "message": message}
            self._condition.notify_all()

    def wait(self, predicate, timeout=60):
        """Blocks until predicate() holds after a message."""
        with self._condition:
            assert self._condition.wait_for(predicate, timeout)

    def _accept(self, rank, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._condition:
                self._connections[rank].append(connection)
            threading.Thread(target=self._serve, args=(rank, connection), daemon=True).start()

    def _serve(self, rank, connection):
        try:
            kind, body = _receive(connection)
            hello = json.loads(body)
            self.hellos.append(hello)
            if hello["protocol"] != self.protocol:
                _send(connection, REFUSED, {"reason": "PROTOCOL", "message": f"protocol {hello['protocol']} is not {self.protocol}"})
                return
            with self._condition:
                self._begun.pop(rank, None)  # a program that attaches is told the step
            for _ in range(self.waits):
                _send(connection, WAITING, {"message": "no job for this worker yet"})
            _send(connection, WELCOME, {
                "protocol": self.protocol, "version": "0.3.0", "job": "fake-1", "member": f"worker-{rank}", "parameters": self.table,
                "groups": self.groups, "optimizer": self.optimizer, "elements": self.elements, "batch_size": self.batch_size,
                "seed": self.seed, "has_schedule": self.schedule is not None, "of a later version": 1},
                [shown for _, shown in self.files[rank]])
            while True:
                kind, body = _receive(connection)
                with self._condition:
                    self._take(rank, connection, kind, body)
                    self._condition.notify_all()
        except EOFError:
            pass
        finally:
            connection.close()

    def _take(self, rank, connection, kind, body):
        self.messages.append((rank, kind))
        if kind == GRADIENTS:
            self._take_gradients(rank, body)
            return
        message = json.loads(body)
        if kind == DATA:
            self.data.append(message)
        elif kind == FAILED:
            self.failures.append(message["message"])
        elif kind == NEXT:
            if message["finished"] is not None:
                self.finished.append((rank, message["finished"]))
            self._condition.wait_for(lambda: self.end_with or self.version >= self.steps or self._begun.get(rank) != self.attempt
                                     or connection not in self._connections[rank])
            self._answer(rank, connection)
        elif kind == EVALUATION and self.end_with:
            _send(connection, END, self.end_with)
        elif kind == EVALUATION:
            parts = self._evaluations.setdefault(message["step"], {})
            parts[rank] = (message["samples"], message["metrics"])
            self._condition.notify_all()
            self._condition.wait_for(lambda: len(parts) == self.workers or connection not in self._connections[rank])
            samples = sum(count for count, _ in parts.values())
            names = {name for _, metrics in parts.values() for name in metrics}
            means = {name: sum(count * metrics.get(name, 0) for count, metrics in parts.values()) / samples for name in names}
            _send(connection, RESULT, {"step": message["step"], "samples": samples, "metrics": means})
        else:
            raise AssertionError(f"message {kind}")

    def _answer(self, rank, connection):
        if connection not in self._connections[rank]:
            return  # stop() ended it
        memory = self.memory[rank][1 + self.version % 2]
        for row in self.table:
            memory[row["offset"]:row["offset"] + self.values[row["name"]].size] = self.values[row["name"]].ravel()
        if self.end_with or self.version >= self.steps:
            _send(connection, END, self.end_with or {"reason": "done", "message": ""})
            return
        self._begun[rank] = self.attempt
        first, samples = self.share(self.version)[rank]
        _send(connection, BEGIN, {
            "attempt": self.attempt, "step": self.version, "batch": self.version, "first_position": first, "samples": samples,
            "rank": rank, "workers": self.workers, "generation": 1, "total_steps": self.steps,
            "learning_rate": self.schedule(self.version) if self.schedule else None})

    def share(self, step):
        size, count = self.batch_size, self.workers
        return self.shares.get(step) or [(size * rank // count, size * (rank + 1) // count - size * rank // count) for rank in range(count)]

    def _take_gradients(self, rank, body):
        attempt, weight, count = struct.unpack_from("<qfI", body)
        assert len(body) == 16 + 16 * count and weight > 0
        if attempt != self.attempt:
            return
        assert self._weights.setdefault(rank, weight) == weight, "the weight of a step is the same in all messages"
        pushed = self._pushed.setdefault(rank, {})
        for index in range(count):
            number, flags, rate = struct.unpack_from("<IId", body, 16 + 16 * index)
            row = self.table[number]
            assert number not in pushed, f"{row['name']} was announced twice"
            end = row["offset"] + int(np.prod(row["shape"], dtype=np.int64))
            pushed[number] = (None if flags & 1 else self.memory[rank][0][row["offset"]:end].copy(), rate)
        trained = sum(not row["frozen"] for row in self.table)
        if len(self._pushed) == self.workers and all(len(each) == trained for each in self._pushed.values()):
            self._complete()

    def _complete(self):
        plan = self.again.get(self.version, [])
        if plan:
            shares, step = plan.pop(0)
            if shares:
                self.shares[step] = shares
            self.version = step
            self.values = {name: value.copy() for name, value in self.history[step][0].items()}
            self.slots = collections.defaultdict(lambda: {}, {
                name: {slot: value.copy() for slot, value in slots.items()} for name, slots in self.history[step][1].items()})
        else:
            for number, row in enumerate(self.table):
                if not row["frozen"]:
                    self._update(row, [self._pushed[rank][number] for rank in range(self.workers)])
            self.version += 1
            self.history[self.version] = self._state()
        self._pushed, self._weights = {}, {}
        self.attempt += 1

    def _update(self, row, contributions):
        rates = {rate for _, rate in contributions}
        arrays = [array for array, _ in contributions if array is not None]
        if not arrays:
            return
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array
        g = total * np.float32(1 / sum(float(np.float32(weight)) for weight in self._weights.values()))
        name = row["name"]
        if row["statistic"]:
            self.values[name] = g.reshape(row["shape"])
            return
        assert len(rates) == 1, f"{name}: the workers name the learning rates {rates}"
        p = self.values[name].ravel()
        decay = self.groups[row["group"]]["weight_decay"]
        self.values[name] = step_of(self.optimizer, p, g, self.slots[name], rates.pop(), decay, self.version + 1).reshape(row["shape"])

    def _state(self):
        return ({name: value.copy() for name, value in self.values.items()},
                {name: {slot: value.copy() for slot, value in slots.items()} for name, slots in self.slots.items()})


def step_of(optimizer, p, g, slots, rate, decay, t):
    """Returns the values after one update, by the formulas of kernels/optimizer/optimizer.h in float32."""
    f, kind = np.float32, optimizer["kind"]
    if kind == "sgd":
        momentum = optimizer.get("momentum", 0.0)
        g = g + f(decay) * p
        if not momentum:
            return p - f(rate) * g
        slots["b"] = f(momentum) * slots.get("b", np.zeros_like(p)) + g
        return p - f(rate) * (g + f(momentum) * slots["b"] if optimizer.get("nesterov") else slots["b"])
    beta1, beta2 = optimizer["beta1"], optimizer["beta2"]
    if kind == "adamw":
        p = p * f(1 - rate * decay)
    else:
        assert kind == "adam", kind
        g = g + f(decay) * p
    slots["m"] = f(beta1) * slots.get("m", np.zeros_like(p)) + f(1 - beta1) * g
    slots["v"] = f(beta2) * slots.get("v", np.zeros_like(p)) + f(1 - beta2) * g * g
    return p - f(rate / (1 - beta1**t)) * slots["m"] / (np.sqrt(slots["v"]) * f(1 / np.sqrt(1 - beta2**t)) + f(optimizer["epsilon"]))


def _memory_file(size, is_read_only):
    """Returns two descriptors of a memory file: the worker's and the program's."""
    file = os.memfd_create("fake-worker")
    os.ftruncate(file, size)
    shown = os.open(f"/proc/self/fd/{file}", os.O_RDONLY) if is_read_only else file
    return file, shown


def _send(connection, kind, body, files=()):
    text = json.dumps(body, allow_nan=False).encode()
    message = struct.pack("<IB3x", len(text), kind) + text
    try:
        if files:
            sent = socket.send_fds(connection, [message], list(files))
            message = message[sent:]
        connection.sendall(message)
    except OSError as error:
        raise EOFError from error


def _receive(connection):
    length, kind = struct.unpack("<IB3x", _read(connection, 8))
    assert length <= 1 << 20
    return kind, _read(connection, length)


def _read(connection, count):
    data = b""
    while len(data) < count:
        try:
            part = connection.recv(count - len(data))
        except OSError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        data += part
    return data
