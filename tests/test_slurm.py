"""scripts/slurm: a replay as an array of Slurm jobs, on a real Slurm of one node and on a fake one."""

import os
import subprocess
import sys
import tempfile

from script_case import KVBENCH, ROOT, FolderCase, read_text, untimed, write_text
from slurm_cluster import Cluster, fake_slurm

RUN = os.path.join(ROOT, "scripts", "slurm", "run.py")
OPTIONS = ["--algorithm", "uniform,snapkv,balancekv", "--budget", "0.5", "--sink", "4", "--recent",
           "64", "--queries", "32"]

# Stands for kvbench. The first attempts of shards 2 and 3 of a replay end early, once their logs
# have rows: 2 is killed with its job, 3 gets SIGTERM as Slurm sends it before the time limit. It
# is stopped meanwhile, so that it cannot end first.
UNLUCKY = r"""#!/bin/bash
shard=$(grep -oP -- '--shard \K\d+' <<< "$*")
if [[ $1 == replay && $shard == [23] ]] && mkdir first-$shard 2> /dev/null; then
  pid=$$ job=$PPID
  (
    until [[ $(grep -c -a ,prefill, out.shard-$shard-of-3.csv.log) -gt 1 ]]; do
      kill -0 $pid || exit
    done 2> /dev/null
    kill -STOP $pid
    if [[ $shard == 2 ]]; then
      kill -STOP $job  # or it could still say how kvbench ended
      kill -KILL $job $pid
    else
      scancel --signal=TERM --batch "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
      until (( 0x$(awk '/^ShdPnd/ { print $2 }' /proc/$pid/status) & 1 << 14 )); do :; done
      kill -CONT $pid
    fi
  ) &
fi
exec "$REAL_KVBENCH" "$@"
"""


class SlurmCase(FolderCase):
    environment = {}

    def setUp(self):
        super().setUp()
        if not KVBENCH:
            self.skipTest("KVBENCH names no program")

    def kvbench_is(self, text):
        """This script stands for kvbench, which it finds as $REAL_KVBENCH."""
        os.chmod(self.write_file("kvbench", text), 0o755)
        self.environment = {**self.environment, "KVBENCH": self.path("kvbench"),
                            "REAL_KVBENCH": os.path.abspath(KVBENCH)}

    def trace(self, *shape):
        self.done("synth", "-o", self.path("t.h5"), "--layers", "2", "--d", "16", "--dv", "8", *shape)

    def drive(self, *arguments, options=(), shards=3):
        return subprocess.run(
            [sys.executable, RUN, "t.h5", "-o", "out.csv", "--shards", str(shards), "--poll", "0.1",
             *arguments, "--", *OPTIONS, *options],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)

    def expect_whole(self, *options):
        """out.csv is what one run without shards writes."""
        self.done("replay", self.path("t.h5"), "-o", self.path("whole.csv"), *OPTIONS, *options)
        self.assertEqual(untimed(self.path("out.csv")), untimed(self.path("whole.csv")))


class RealSlurmTest(SlurmCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cluster = Cluster(os.path.realpath(folder.name))
        cls.addClassCleanup(cluster.stop)
        cluster.start()
        cls.environment = cluster.environment

    def test_shards_that_are_killed_or_run_out_of_time_go_on(self):
        self.trace("--n", "2048")
        self.kvbench_is(UNLUCKY)
        seeds = ["--seeds", "60"]
        done = self.drive("--summarize", options=[*seeds, "--threads", "1"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 shards: 1,2,3\n", done.stderr)
        self.assertIn("shard 2/3: killed\n", done.stderr)
        self.assertIn("shard 3/3: interrupted, by the time limit or scancel\n", done.stderr)
        self.assertIn("2 shards: 2,3\n", done.stderr)
        self.assertEqual(done.stderr.count("run.py: job "), 2, done.stderr)
        self.assertIn("balancekv", done.stdout)
        for shard, code in (("2", ""), ("3", "replay.sbatch: exit code 130")):
            log = read_text(self.path(f"out.shard-{shard}-of-3.log"))
            self.assertIn("of them resumed", log)
            self.assertIn(code, log)
        self.expect_whole(*seeds)
        again = self.drive(options=[*seeds, "--threads", "1"])
        self.assertEqual((again.returncode, again.stderr), (0, "run.py: out.csv exists; nothing to run\n"))

    def test_an_array_that_a_driver_left_is_waited_for(self):
        self.trace("--n", "256")
        self.kvbench_is('#!/bin/bash\nif [[ $1 == replay ]]; then\n  until [[ -e go ]]; do :; done\n'
                        'fi\nexec "$REAL_KVBENCH" "$@"\n')
        command = [sys.executable, RUN, "t.h5", "-o", "out.csv", "--shards", "2", "--poll", "0.1", "--", *OPTIONS]
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True,
                              stderr=subprocess.PIPE) as first:
            while "in the queue" not in (line := first.stderr.readline()):
                self.assertTrue(line, "the driver ended")
            first.kill()
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True,
                              stderr=subprocess.PIPE) as second:
            said = second.stderr.readline()
            write_text(self.path("go"), "")
            said += second.stderr.read()
        self.assertEqual(second.returncode, 0, said)
        self.assertIn("2 shards in the queue", said)
        self.assertNotIn("run.py: job ", said)  # it submitted nothing
        self.expect_whole()

    def test_wrong_options_are_not_tried_again(self):
        self.trace("--n", "256")
        self.kvbench_is('#!/bin/bash\nexec "$REAL_KVBENCH" "$@"\n')
        done = self.drive(options=["--seeds", "x"])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("kvbench: error: ", done.stderr)
        self.assertIn("an option or an input is wrong; see out.shard-1-of-3.log", done.stderr)
        self.assertEqual(done.stderr.count("run.py: job "), 1, done.stderr)


class FakeSlurmTest(SlurmCase):
    def setUp(self):
        super().setUp()
        self.environment = fake_slurm(self.folder)
        self.trace("--n", "256")

    def submitted(self):
        return read_text(self.path("submitted")).split()

    def failing(self, shard, code, times=99):
        """The first attempts of a shard end with this code."""
        self.kvbench_is(f'#!/bin/bash\nif [[ "$*" == *"--shard {shard}/"* ]]; then\n'
                        f'  echo x >> tries\n  (( $(wc -l < tries) > {times} )) || exit {code}\nfi\n'
                        'exec "$REAL_KVBENCH" "$@"\n')

    def test_only_what_failed_is_submitted_again(self):
        self.failing(2, 3, times=3)
        done = self.drive("--retries", "1")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("shard 2/3: unfinished after 2 attempts; see out.shard-2-of-3.log", done.stderr)
        self.assertEqual(self.submitted(), ["1,2,3", "2"])
        self.assertFalse(os.path.exists(self.path("out.csv")))
        done = self.drive("--retries", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.submitted(), ["1,2,3", "2", "2", "2"])
        self.expect_whole()

    def test_a_program_that_is_not_there_is_not_tried_again(self):
        self.failing(1, 127)
        done = self.drive()
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("kvbench was not found", done.stderr)
        self.assertEqual(self.submitted(), ["1,2,3"])

    def test_another_command_does_not_take_its_parts(self):
        self.failing(2, 3)
        config = ["--config", self.write_file("grid.toml", "seeds = 2\n")]
        self.assertEqual(self.drive("--retries", "0", *config).returncode, 3)
        for change in ({"options": ["--seeds", "2"]}, {"shards": 4}, {}):
            if not change:  # the same words, another configuration
                self.write_file("grid.toml", "seeds = 3\n")
            done = self.drive(*config, **change)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("out.run.json", done.stderr)
        self.assertEqual(self.submitted(), ["1,2,3"])

    def test_a_queue_that_does_not_answer_is_asked_again(self):
        self.failing(9, 3)
        self.write_file("failures", "")
        done = self.drive()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Unable to contact slurm controller; retrying\n", done.stderr)
        self.expect_whole()

    def test_tasks_use_the_processors_that_they_get(self):
        self.kvbench_is('#!/bin/bash\necho "$*" >> calls\nexec "$REAL_KVBENCH" "$@"\n')
        self.assertEqual(self.drive("--sbatch=--cpus-per-task=2").returncode, 0)
        calls = [line for line in read_text(self.path("calls")).splitlines() if "replay" in line]
        self.assertEqual([line.count("--threads 2") for line in calls], [1, 1, 1])

    def test_a_foreign_table_is_left_alone(self):
        self.failing(9, 3)
        self.write_file("out.csv", "mine\n")
        done = self.drive()
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(read_text(self.path("out.csv")), "mine\n")
        self.assertFalse(os.path.exists(self.path("submitted")))

    def test_it_shows_what_was_asked_for(self):
        self.failing(9, 3)
        done = self.drive("--summarize", "--plot", "pareto", "--plot", "stream")
        self.assertIn("snapkv", done.stdout)
        self.assertGreater(os.path.getsize(self.path("out.pareto.png")), 1000)
        # The table is whole; the second picture needs another protocol.
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("expected rows of --protocol stream", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.expect_whole()

    def test_usage(self):
        self.failing(9, 3)
        config = self.write_file("export.toml", "seeds = 2\n[replay]\n  export-caches = 'c.h5'\n")
        exported = "--export-caches: all shards would write one file"
        for says, arguments, options in (
                ("--shards: got 0", ["--shards", "0"], []), ("--retries: got -1", ["--retries", "-1"], []),
                ("got `none`, expected one of amnesia", ["--plot", "none"], []),
                ("none.toml: no such file", ["--config", "none.toml"], []),
                ("--output: got 'table.txt'", ["--output", "table.txt"], []),
                ("--shard after --", [], ["--shard", "1/2"]), (exported, [], ["--export-caches", "c.h5"]),
                (exported, [], ["--export-caches=c.h5"]), (exported, ["--config", config], [])):
            done = self.drive(*arguments, options=options)
            self.assertEqual(done.returncode, 2)
            self.assertIn(says, done.stderr)
        self.assertFalse(os.path.exists(self.path("submitted")))
