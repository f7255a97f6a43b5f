"""A Slurm of one node in a folder, as it is installed, and one of two scripts that only acts so."""

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from script_case import write_bytes, write_text

DAEMONS = ("munged", "slurmctld", "slurmd")
WAIT_S = 60


def program(name):
    """Daemons lie in sbin, which is not on everyone's PATH."""
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until(condition, what):
    """Raises SkipTest where it does not come true: the machine has a Slurm that cannot start."""
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise unittest.SkipTest(f"{what} did not happen within {WAIT_S} s")
        time.sleep(0.05)


class Cluster:
    """munged, slurmctld and slurmd of the user's own, with files and ports of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        absent = [name for name in (*DAEMONS, "sbatch", "squeue", "scancel", "sinfo") if not program(name)]
        if absent:
            raise unittest.SkipTest(f"no {', '.join(absent)} here (Debian: slurm-wlm)")
        os.chmod(folder, 0o755)  # munged refuses a socket that others cannot reach
        for name in ("munge", "state", "spool"):
            os.mkdir(os.path.join(folder, name), 0o755)
        self.socket = os.path.join(folder, "munge", "socket")
        self.environment = {**os.environ, "SLURM_CONF": self.configuration()}
        for name in list(self.environment):
            if name.startswith(("SBATCH_", "SQUEUE_")) or (name.startswith("SLURM_") and name != "SLURM_CONF"):
                del self.environment[name]

    def configuration(self):
        host, user = socket.gethostname().split(".")[0], getpass.getuser()
        at = self.folder
        return write_text(os.path.join(at, "slurm.conf"), f"""\
ClusterName=kvbench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={self.socket}
CredType=cred/munge
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
MpiDefault=none
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")

    def start(self):
        key = os.path.join(self.folder, "munge", "key")
        write_bytes(key, os.urandom(1024))
        os.chmod(key, 0o400)
        munge = [f"--{name}-file={os.path.join(self.folder, 'munge', name)}" for name in ("pid", "log", "seed")]
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.socket}", *munge)
        wait_until(lambda: os.path.exists(self.socket), "munged's socket")
        self.daemon("slurmctld", "-D", "-i")
        self.daemon("slurmd", "-D")
        wait_until(lambda: "idle" in self.output("sinfo", "--noheader", "--format=%T"),
                   "an idle node of slurmctld and slurmd")

    def daemon(self, name, *arguments):
        with open(os.path.join(self.folder, name + ".out"), "wb") as out:
            self.processes.append(subprocess.Popen([program(name), *arguments], stdout=out,
                                                   stderr=out, env=self.environment))

    def output(self, *command):
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment).stdout

    def stop(self):
        self.output("scancel", "--user", getpass.getuser())
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# Runs all tasks before it returns; says which in FAKE_SLURM/submitted.
SBATCH = r"""
import os, subprocess, sys
words = sys.argv[1:]
given = {}
while words[0].startswith("--"):  # then come the script and its arguments
    name, _, value = words.pop(0)[2:].partition("=")
    given[name] = value
folder = os.environ["FAKE_SLURM"]
with open(os.path.join(folder, "submitted"), "a") as file:
    file.write(given["array"] + "\n")
for index in given["array"].split(","):
    task = dict(os.environ, SLURM_ARRAY_TASK_ID=index)
    if "cpus-per-task" in given:
        task["SLURM_CPUS_PER_TASK"] = given["cpus-per-task"]
    log = given["output"].replace("%a", index).replace("%%", "%")
    with open(log, "a") as file:
        subprocess.run(["bash", *words], env=task, stdout=file, stderr=file)
print("17")
"""

SQUEUE = r"""
import os, sys
failures = os.path.join(os.environ["FAKE_SLURM"], "failures")
if os.path.exists(failures):
    os.remove(failures)
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
"""


def fake_slurm(folder):
    """An environment in which sbatch and squeue are the two above."""
    tools = os.path.join(folder, "bin")
    os.mkdir(tools)
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        path = write_text(os.path.join(tools, name), f"#!{sys.executable}\n{text}")
        os.chmod(path, 0o755)
    kept = {name: value for name, value in os.environ.items() if not re.match(r"(SLURM|SBATCH|SQUEUE)_", name)}
    return {**kept, "FAKE_SLURM": folder, "PATH": tools + os.pathsep + os.environ["PATH"]}
