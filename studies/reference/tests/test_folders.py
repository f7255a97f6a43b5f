"""kvbench_study/folders.py: folders that kvbench did not make are refused and stay."""

import os
import unittest

from study_case import FolderCase, read_text, write_text

from kvbench_study.folders import MARK, NotOurs, claim_folder


class FoldersTest(FolderCase):
    def test_new_and_empty_folders_are_taken_again_and_others_refused(self):
        for name in ("new", "empty"):
            if name == "empty":
                os.mkdir(self.path(name))
            claim_folder(self.path(name))
            self.assertEqual(os.listdir(self.path(name)), [MARK])
            write_text(self.path(name, "rows.csv"), "1")
            claim_folder(self.path(name))
        os.mkdir(self.path("users"))
        notes = write_text(self.path("users", "notes.txt"), "precious")
        for folder, said in ((self.path("users"), "notes.txt is there"), (notes, "is no folder")):
            with self.assertRaisesRegex(NotOurs, said):
                claim_folder(folder)
        self.assertEqual((os.listdir(self.path("users")), read_text(notes)), (["notes.txt"], "precious"))
        claim_folder(self.path("users"), lambda folder: True)


if __name__ == "__main__":
    unittest.main()
