"""Runs a program and kills it with -9 before the nth call that changes a file (x86-64 Linux)."""

import ctypes
import os
import platform
import signal
import subprocess

TRACEME, PEEKUSER, SYSCALL, SETOPTIONS = 0, 3, 24, 0x4200
SYSGOOD, EXITKILL = 0x1, 0x100000
CALL_NUMBER = 8 * 15  # orig_rax in struct user
# write, pwrite64, writev, open, openat, creat, ftruncate, truncate, rename, renameat, renameat2,
# unlink, unlinkat, mkdir, mkdirat, rmdir, fsync, fdatasync, flock
CHANGES = {1, 18, 20, 2, 257, 85, 77, 76, 82, 264, 316, 87, 263, 83, 258, 84, 74, 75, 73}


def _libc():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return libc


LIBC = _libc() if platform.system() == "Linux" and platform.machine() == "x86_64" else None


def run_until(words, folder, call):
    """Runs a program, and kills it before its main thread's `call`th call that may change a file.

    call     from 1; 0: never
    returns  how many such calls were begun, and whether it was killed; None where tracing is not
             allowed
    """
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
                          preexec_fn=lambda: LIBC.ptrace(TRACEME, 0, None, None)) as child:
        pid, status = os.waitpid(child.pid, 0)
        if not os.WIFSTOPPED(status):
            child.returncode = os.waitstatus_to_exitcode(status)
            return None
        LIBC.ptrace(SETOPTIONS, pid, None, SYSGOOD | EXITKILL)
        calls, inside, passed = 0, False, 0
        while True:
            LIBC.ptrace(SYSCALL, pid, None, passed)  # fails of one that is about to die
            _, status = os.waitpid(pid, 0)
            if not os.WIFSTOPPED(status):
                child.returncode = os.waitstatus_to_exitcode(status)
                return calls, child.returncode == -signal.SIGKILL
            stopped = os.WSTOPSIG(status)
            passed = 0 if stopped & 0x80 or stopped == signal.SIGTRAP else stopped
            if not stopped & 0x80:
                continue
            inside = not inside
            if inside and LIBC.ptrace(PEEKUSER, pid, CALL_NUMBER, None) in CHANGES:
                calls += 1
                if calls == call:
                    os.kill(pid, signal.SIGKILL)
