#!/usr/bin/env python3
"""Starts one container of a pod as a process, as a container runtime would: container.py SPEC.json. Needs root.

The process is in the pod's network, has its own mounts and process namespace, and is process 1. Its root contains the image's
files and the volumes. It has the user and the restricted rights of the manifest. Writes the process id to `pid_file`. Exits
with the program's exit code, or with 128 plus the number of the signal that ended it.
"""

import ctypes
import json
import os
import signal
import sys

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITIES = 41
libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}{arguments}: {os.strerror(number)}")


def mount(source, target, kind=None, flags=0, data=None):
    text = [None if value is None else value.encode() for value in (source, target, kind)]
    call("mount", *text, ctypes.c_ulong(flags), None if data is None else data.encode())


def bind(source, target, read_only):
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount(None, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def enter(spec):
    root = spec["root"]
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    bind(spec["image"], root, read_only=False)
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("dev", root + "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for device in ("null", "zero", "full", "random", "urandom"):
        with open(f"{root}/dev/{device}", "w", encoding="utf-8"):
            pass
        bind(f"/dev/{device}", f"{root}/dev/{device}", read_only=False)
    os.mkdir(root + "/dev/shm")
    mount("shm", root + "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=64m")
    for volume in spec["mounts"]:
        bind(volume["source"], root + volume["target"], volume["read_only"])
    if spec["read_only_root"]:
        mount(None, root, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)
    os.chroot(root)
    os.chdir("/")


def lower(spec):
    if spec["drop_capabilities"]:
        for capability in range(CAPABILITIES):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails only for capabilities that the kernel does not know
    os.setgroups(spec["groups"])
    os.setresgid(*[spec["gid"]] * 3)
    os.setresuid(*[spec["uid"]] * 3)
    if spec["no_new_privileges"]:
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    for kind, flag in (("net", CLONE_NEWNET), ("uts", CLONE_NEWUTS), ("ipc", CLONE_NEWIPC)):
        with open(f"/proc/{spec['pod_pid']}/ns/{kind}", "rb") as namespace:
            call("setns", namespace.fileno(), flag)
    call("unshare", CLONE_NEWNS | CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        try:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            enter(spec)
            lower(spec)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores SIGPIPE; the program must not inherit that
            os.execve(spec["argv"][0], spec["argv"], spec["env"])
        except OSError as error:
            print(f"container: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    with open(spec["pid_file"] + ".new", "w", encoding="utf-8") as file:
        file.write(str(child))
    os.rename(spec["pid_file"] + ".new", spec["pid_file"])
    status = os.waitpid(child, 0)[1]
    sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


if __name__ == "__main__":
    main()
