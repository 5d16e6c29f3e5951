"""The objects of one instruction set hold no function that the linker could merge into baseline code.

A weak function (an ordinary inline one, or a library template) that is left out of line exists in many objects, and the linker keeps any one
of them: with a copy from a *_avx2, *_avx512 or *_amx file a program that runs on every machine would crash on an older one. This holds for
every build type, because what such files share is always inlined; the build under test is looked at.
"""

import os
import re
import subprocess
import unittest

OBJECTS = [o for o in os.environ.get("OUTRIDER_KERNEL_OBJECTS", "").split(":") if o]
NM = os.environ.get("OUTRIDER_NM", "nm")
ONE_SET = re.compile(r"_(avx2|avx512|amx)\.cpp\.o$")


def weak_functions(listing):
    """Of `nm --format=sysv`: the weak symbols that the object defines, but for data."""
    found = []
    for line in listing.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 7 and fields[2] in ("W", "V") and fields[3] != "OBJECT":
            found.append(fields[0])
    return found


def listing_of(path):
    return subprocess.run([NM, "--format=sysv", path], capture_output=True, text=True, check=True).stdout


class IsaObjects(unittest.TestCase):
    def test_no_weak_function(self):
        objects = [o for o in OBJECTS if ONE_SET.search(o)]
        sets = {ONE_SET.search(o).group(1) for o in objects}
        self.assertEqual(sets, {"avx2", "avx512", "amx"}, "OUTRIDER_KERNEL_OBJECTS")
        weak = {}
        for path in objects:
            listing = listing_of(path)
            self.assertRegex(listing, r"\|\s*T\s*\|\s*FUNC\s*\|", path)  # read as it is written
            if found := weak_functions(listing):
                weak[os.path.basename(path)] = found
        self.assertEqual(weak, {})

    def test_a_planted_one_is_found(self):
        planted = [
            "_ZSt3minIiERKT_S2_S2_|0000000000000000|   W  |              FUNC|0000000000000029|     |.text._ZSt3minIiERKT_S2_S2_",
            "_ZN3otr13linear_paddedEl|0000000000000000|   V  |            NOTYPE|0000000000000029|     |.text._ZN3otr13linear_paddedEl"]
        harmless = [
            "linear_amx              |0000000000000000|   T  |              FUNC|0000000000000029|     |.text",
            "DW.ref.__gxx_personality_v0|0000000000000000|   V  |            OBJECT|0000000000000008|     |.data.rel.local",
            "_ZN3otr11kWordsBelowE|0000000000000000|   u  |            OBJECT|000000000000005c|     |.rodata",
            "__cxa_finalize|                |   w  |            NOTYPE|                |     |*UND*"]
        self.assertEqual(weak_functions("\n".join(harmless)), [])
        self.assertEqual(weak_functions("\n".join(harmless + planted)), ["_ZSt3minIiERKT_S2_S2_", "_ZN3otr13linear_paddedEl"])

    def test_baseline_objects_have_some(self):
        """So nm is asked rightly."""
        self.assertTrue(any(weak_functions(listing_of(o)) for o in OBJECTS if not ONE_SET.search(o)))


if __name__ == "__main__":
    unittest.main()
