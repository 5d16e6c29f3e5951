#!/usr/bin/env python3
"""linear's machine code, of the objects that are named: behind its products, a fence that waits for every store of a thread (MEMBAR.ALL.GPU) stands
once, where the cluster meets at the end; anywhere before, it would be paid for every slot or tile. Skipped without cuobjdump and nvdisasm."""
import re
import shutil
import subprocess
import sys
import unittest

FUNCTION = re.compile(r"^\s*Function : (\w+)$", re.M)
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)")


def faults_of(name, instructions):
    """What is wrong with one kernel."""
    products = [i for i, op in enumerate(instructions) if op.startswith("HGMMA")]
    fences = [i for i, op in enumerate(instructions) if op.startswith("MEMBAR") and op.endswith("GPU")]
    meetings = [i for i, op in enumerate(instructions) if op == "UCGABAR_ARV"]
    if not products:
        return [f"{name}: no products"]
    if len(meetings) != 2:
        return [f"{name}: the cluster meets {len(meetings)} times"]
    return [f"{name}: a fence at {i}, not at the meeting at {meetings[1]}" for i in fences if not meetings[1] - 8 <= i < meetings[1]]


class Fences(unittest.TestCase):
    def test_linear_waits_for_its_stores_once(self):
        if not shutil.which("cuobjdump") or not shutil.which("nvdisasm"):
            self.skipTest("no cuobjdump and nvdisasm")
        (built,) = [path for path in OBJECTS if path.endswith("/linear_sm90.cu.o")]
        code = subprocess.run(["cuobjdump", "--dump-sass", built], check=True, capture_output=True, text=True).stdout
        _, *parts = FUNCTION.split(code)
        kernels = {name: INSTRUCTION.findall(text) for name, text in zip(parts[::2], parts[1::2]) if "linear_kernel" in name}
        self.assertEqual(len(kernels), 24)  # seven tiles, and five of experts; two epilogues
        self.assertEqual([fault for name, ops in kernels.items() for fault in faults_of(name, ops)], [])

    def test_a_fence_before_an_arrival_is_found(self):
        good = ["UCGABAR_ARV", "UCGABAR_WAIT", "HGMMA.64x8x16.F32.BF16", "SYNCS.ARRIVE.TRANS64.RED.A1T0", "STG.E", "MEMBAR.ALL.GPU", "ERRBAR", "UCGABAR_ARV"]
        self.assertEqual(faults_of("good", good), [])
        self.assertEqual(len(faults_of("bad", good[:3] + ["MEMBAR.ALL.GPU"] + ["NOP"] * 8 + good[3:])), 1)


if __name__ == "__main__":
    OBJECTS = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
