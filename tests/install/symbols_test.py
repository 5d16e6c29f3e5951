"""The names that the libraries give to whoever links them.

The shared library exports what symbols.txt lists, under one version, and nothing else: a function that is missing or new is noticed here.
The static library defines nothing strong outside the namespace otr and the prefix otr_ (what templates leave is weak and merges).
The build passes OUTRIDER_BUILD.
"""

import os
import subprocess
import unittest
from pathlib import Path

LIB = Path(os.environ["OUTRIDER_BUILD"]) / "lib"
LISTED = (Path(__file__).parent / "symbols.txt").read_text(encoding="utf-8").split()
HEADER = (Path(__file__).parents[2] / "runtime/outrider.h").read_text(encoding="utf-8")
OURS = ("otr_", "otr::", "non-virtual thunk to otr::", "vtable for otr::", "typeinfo for otr::", "typeinfo name for otr::")


def nm(*flags):
    """(type, name) of every symbol."""
    out = subprocess.run(["nm", *map(str, flags)], capture_output=True, text=True, check=True).stdout
    return [(line[17], line[19:]) for line in out.splitlines() if len(line) > 19 and line[18] == " "]


class Symbols(unittest.TestCase):
    def test_shared(self):
        found = nm("-D", "--defined-only", LIB / "liboutrider.so")
        self.assertEqual([name for kind, name in found if kind == "A"], ["OUTRIDER_0"])
        exported = sorted(name for kind, name in found if kind != "A")
        self.assertEqual(exported, [f"{name}@@OUTRIDER_0" for name in LISTED])

    def test_the_header_declares_them(self):
        self.assertEqual(LISTED, sorted(LISTED))
        for name in LISTED:
            self.assertRegex(HEADER, rf"OTR_API [^;]*\b{name}\(")
        self.assertEqual(HEADER.count("\nOTR_API "), len(LISTED))

    def test_static(self):
        strong = [name for kind, name in nm("-g", "-C", "--defined-only", LIB / "liboutrider.a") if kind in "TDBRC"]
        self.assertGreater(len(strong), 100)
        self.assertEqual([name for name in strong if not name.startswith(OURS)], [])
        self.assertEqual(sorted(name for name in strong if name.startswith("otr_")), LISTED)


if __name__ == "__main__":
    unittest.main()
