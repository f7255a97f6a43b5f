"""scripts/*.py: fronts of the programs in python/kvbench, and tools of the repository."""

import os
import re
import subprocess
import sys
import unittest

from script_case import ROOT, SCRIPTS, FolderCase, missing, read_text


def read(path):
    return read_text(os.path.join(ROOT, path))


def python_files(folder):
    return {os.path.relpath(os.path.join(at, name), ROOT)
            for at, _, names in os.walk(os.path.join(ROOT, folder)) for name in names
            if name.endswith(".py")}


class FrontsTest(FolderCase):
    def test_every_program_has_one_front(self):
        programs, whole = {}, set()
        for front in python_files("scripts"):
            self.assertTrue(os.access(os.path.join(ROOT, front), os.X_OK), front)
            text = read(front)
            found = re.search(r"The program is (\S+)\.\"\"\"", text)
            if not found:
                whole.add(front.removeprefix("scripts/"))
                continue
            path = found[1]
            module = path.removeprefix("python/").removesuffix(".py").replace("/", ".")
            self.assertIn(f"from {module} import main", text)
            self.assertNotIn(path, programs)
            programs[path] = front
        self.assertEqual(set(programs), {path for path in python_files("python")
                                         if re.search(r"^def main\(", read(path), re.MULTILINE)})
        named = re.search(r"fronts of a few lines.*?whole: (.*?)\.\n\n", read("docs/architecture.md"), re.S)[1]
        self.assertEqual(set(re.findall(r"`(.+?)`", named)), whole)

    @unittest.skipIf(missing("pandas", "matplotlib"), "no pandas, no matplotlib")
    def test_from_any_folder_and_by_a_link(self):
        os.symlink(os.path.join(SCRIPTS, "plot_norms.py"), self.path("norms.py"))
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run([sys.executable, "norms.py", "none.csv", "-o", "x"], cwd=self.folder,
                              env=environment, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (2, "norms.py: none.csv: no such file\n"))


if __name__ == "__main__":
    unittest.main()
