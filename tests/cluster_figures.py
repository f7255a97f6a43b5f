"""What tests of figures of `kvbench cluster` share."""

import os

from plot_tables import DrawingCase
from script_case import call, program

from kvbench import command

HEAD = "trace,prompt,layer,kv_head,what,"


class Figures(DrawingCase):
    """A scratch folder, tables in it, and the scripts in this process."""

    def write(self, name, header, lines):
        return self.write_file(name, "\n".join([header, *lines]) + "\n")

    def run_script(self, module, *arguments):
        return call(lambda: command.run_main(module.main), program(module), *arguments)

    def expect_error(self, module, text, *arguments):
        result = self.run_script(module, *arguments, "-o", self.path("out"))
        self.assertEqual(result.code, 2, result.err)
        last = result.err.strip().splitlines()[-1]
        self.assertTrue(last.startswith(program(module) + ": "), last)
        self.assertIn(text, last)
        self.assertFalse(os.path.exists(self.path("out.png")))

    def expect_pictures(self, module, *arguments):
        """Runs twice: PNG and PDF are made, and of the same bytes."""
        contents = []
        for stem in ("first", "second"):
            result = self.run_script(module, *arguments, "-o", self.path(stem))
            self.assertEqual(result.code, 0, result.err)
            with open(self.path(stem) + ".png", "rb") as png, \
                    open(self.path(stem) + ".pdf", "rb") as pdf:
                contents.append((png.read(), pdf.read()))
        self.assertEqual(contents[0][0][:4], b"\x89PNG")
        self.assertEqual(contents[0][1][:4], b"%PDF")
        self.assertTrue(contents[0] == contents[1], "two runs differ")  # no dump of the bytes
        return result
