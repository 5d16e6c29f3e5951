"""tools/sm90-registers finds a kernel that spills, one that is new or gone, and one with other registers than the report kept says."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/sm90-registers"
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("sm90_registers", str(TOOL))
tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("sm90_registers", loader))
loader.exec_module(tool)

ONE, TWO = "_ZN3otr12_GLOBAL__N_110one_kernelILi8ELb1EEEvi", "_ZN3otr12_GLOBAL__N_110two_kernelEPf"


def report(*kernels, version="V13.0.88"):
    """As nvcc-keeping-report leaves it, of (entry, registers, bytes spilled)."""
    text = f"{version}\nptxas info    : 0 bytes gmem\n"
    for entry, registers, spilt in kernels:
        text += (f"ptxas info    : Compiling entry function '{entry}' for 'sm_90a'\nptxas info    : Function properties for {entry}\n"
                 f"    {spilt} bytes stack frame, {spilt} bytes spill stores, 0 bytes spill loads\nptxas info    : Used {registers} registers, used 1 barriers\n")
    return text


class Registers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build, self.kept = pathlib.Path(folder.name) / "build", pathlib.Path(folder.name) / "kept.md"
        self.object = self.build / "kernels/CMakeFiles/otr_kernels_sm90.dir/op/op_sm90.cu.o.ptxas"
        self.object.parent.mkdir(parents=True)
        self.object.with_suffix("").touch()
        self.write((ONE, 40, 0), (TWO, 62, 0))
        self.assertEqual(self.run_tool("--write")[0], 0)

    def write(self, *kernels, **how):
        self.object.write_text(report(*kernels, **how), encoding="utf-8")

    def run_tool(self, *flags):
        done = subprocess.run([sys.executable, TOOL, "--build", self.build, "--report", self.kept, *flags], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_the_table_names_kernels_and_the_compiler(self):
        text = self.kept.read_text(encoding="utf-8")
        self.assertIn("compiler V13.0.88", text)
        self.assertIn("| op_sm90 | `one_kernel<8, true>` | 40 |\n| op_sm90 | `two_kernel` | 62 |\n", text)
        self.assertEqual(self.run_tool("--check"), (0, "2 kernels, none spills\n"))

    def test_what_differs_is_found(self):
        for kernels, what in ((((ONE, 40, 0), (TWO, 62, 8)), "two_kernel has 16 bytes of stack or spilled"), (((ONE, 41, 0), (TWO, 62, 0)), "one_kernel<8, true> has 41 registers, in the report 40"),
                              (((ONE, 40, 0),), "two_kernel is in the report and was not built"),
                              (((ONE, 40, 0), (TWO, 62, 0), (TWO.replace("two", "new"), 8, 0)), "new_kernel is not in the report")):
            self.write(*kernels)
            code, text = self.run_tool("--check")
            self.assertEqual(code, 1, what)
            self.assertIn(what, text)

    def test_another_compiler_may_give_other_registers_and_not_spill(self):
        self.write((ONE, 44, 0), (TWO, 60, 0), version="V13.1.2")
        self.assertEqual(self.run_tool("--check")[0], 0)
        self.write((ONE, 44, 4), (TWO, 60, 0), version="V13.1.2")
        self.assertEqual(self.run_tool("--check")[0], 1)

    def test_two_kernels_of_one_name_are_an_error(self):
        # Overloads differ in their parameters, which the table leaves out.
        self.write((ONE, 40, 0), (TWO, 62, 0), (TWO.replace("EPf", "EPi"), 62, 8))
        for flag in ("--check", "--write"):
            code, text = self.run_tool(flag)
            self.assertEqual((code, text), (1, "sm90-registers: op_sm90: two kernels are called two_kernel in the table\n"))

    def test_a_report_whose_object_is_gone_is_skipped(self):
        old = self.object.with_name("old_sm90.cu.o.ptxas")
        old.write_text(report((ONE, 40, 16), version="V12.0.1"), encoding="utf-8")
        self.assertEqual(self.run_tool("--check"), (0, "2 kernels, none spills\n"))
        old.with_suffix("").touch()
        self.assertEqual(self.run_tool("--check")[0], 1)

    def test_nothing_built_is_no_success(self):
        self.object.unlink()
        code, text = self.run_tool("--check")
        self.assertEqual(code, 2)
        self.assertIn("no reports", text)


if __name__ == "__main__":
    unittest.main()
