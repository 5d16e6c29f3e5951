"""The installed tree: its files, that it can be moved, and that a C99 program builds against it and rolls out.

The program is built through CMake and through pkg-config, against the shared and the static library; each must print what the installed
command line gives for the same request. The build passes OUTRIDER_BUILD (its folder), OUTRIDER_CMAKE, OUTRIDER_CC
and OUTRIDER_LIBDIR, where libraries go: lib, lib64, lib/x86_64-linux-gnu.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["OUTRIDER_SOURCE"])
BUILD, CMAKE, CC = os.environ["OUTRIDER_BUILD"], os.environ["OUTRIDER_CMAKE"], os.environ["OUTRIDER_CC"]
LIB = os.environ["OUTRIDER_LIBDIR"]
CONSUMER = SOURCE / "tests/install/consumer"
MODEL = SOURCE / "tests/data/tinymath/target"
PROMPT = [10, 20, 30]

FILES = {
    "bin/outrider", "include/outrider.h", f"{LIB}/liboutrider.a", f"{LIB}/liboutrider.so", f"{LIB}/liboutrider.so.0",
    f"{LIB}/liboutrider.so.0.2.0", f"{LIB}/cmake/outrider/outriderConfig.cmake", f"{LIB}/cmake/outrider/outriderConfigVersion.cmake",
    f"{LIB}/cmake/outrider/outriderTargets.cmake", f"{LIB}/pkgconfig/outrider.pc", "share/doc/outrider/LICENSE",
    "share/doc/outrider/README.md", "share/outrider/outrider.py"}


def run(*command, **kwargs):
    """The program's stdout; shows what it said if it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, check=False, **kwargs)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def float32(x):
    return struct.unpack("<f", struct.pack("<f", float(x)))[0]


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="outrider-install-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        run(CMAKE, "--install", BUILD, "--prefix", cls.folder / "first")
        cls.prefix = cls.folder / "moved" / "tree"  # nothing may remember the first place
        cls.prefix.parent.mkdir()
        (cls.folder / "first").rename(cls.prefix)
        # Debian's CMake looks into lib and lib/x86_64-linux-gnu, not into lib64.
        cls.where = f"-Doutrider_DIR={cls.prefix / LIB}/cmake/outrider" if LIB == "lib64" else f"-DCMAKE_PREFIX_PATH={cls.prefix}"
        line = json.dumps({"id": "x", "prompt_token_ids": PROMPT, "n": 2, "stream": 17, "seed": 5, "max_new_tokens": 24})
        out = run(cls.prefix / "bin/outrider", "rollout", "--model", MODEL, "--prompts", "-", input=line + "\n")
        cls.expected = {s["sample"]: list(zip(s["token_ids"], map(float32, s["logprobs"]))) for s in map(json.loads, out.splitlines())}
        assert len(cls.expected) == 2

    def pkg_config(self, *flags):
        return run("pkg-config", *flags, "outrider", env={**os.environ, "PKG_CONFIG_PATH": str(self.prefix / LIB / "pkgconfig")}).split()

    def check_program(self, *program, **env):
        out = run(*program, MODEL, *PROMPT, env={**os.environ, **env})
        samples = {}
        for line in out.splitlines():
            sample, *tokens = line.split()
            samples[int(sample)] = [(int(t), float32(p)) for t, p in (pair.split(":") for pair in tokens)]
        self.assertEqual(samples, self.expected)

    def needed(self, program):
        """The shared libraries that a program names."""
        return [line.split("[")[1].rstrip("]") for line in run("readelf", "-d", program).splitlines() if "(NEEDED)" in line]

    def test_files(self):
        found = {str(p.relative_to(self.prefix)) for p in self.prefix.rglob("*") if not p.is_dir()}
        extra = {f for f in found - FILES if not f.startswith(f"{LIB}/cmake/outrider/outriderTargets-")}
        self.assertEqual((FILES - found, extra), (set(), set()))
        self.assertIn("0x000000000000000e (SONAME)             Library soname: [liboutrider.so.0]",
                      run("readelf", "-d", self.prefix / LIB / "liboutrider.so"))

    def test_nothing_names_a_place(self):
        texts = [p for p in self.prefix.rglob("*") if p.is_file() and p.suffix in (".cmake", ".pc", ".h")]
        self.assertGreaterEqual(len(texts), 6)
        for path in texts:
            for place in (str(self.folder), str(SOURCE), BUILD):
                self.assertNotIn(place, path.read_text(encoding="utf-8"), path)

    def test_cmake(self):
        build = self.folder / "cmake"
        run(CMAKE, "-G", "Ninja", "-S", CONSUMER, "-B", build, self.where, f"-DCMAKE_C_COMPILER={CC}",
            "-DCMAKE_C_FLAGS=-pedantic -Wall -Wextra -Werror")
        run(CMAKE, "--build", build)
        self.check_program(build / "consumer_outrider")
        self.check_program(build / "consumer_static")
        self.assertIn("liboutrider.so.0", self.needed(build / "consumer_outrider"))
        self.assertNotIn("liboutrider.so.0", self.needed(build / "consumer_static"))

    def test_cmake_refuses_another_major_version(self):
        folder = self.folder / "newer"
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.16)\nproject(p LANGUAGES C)\n"
                                               "find_package(outrider 9.0 REQUIRED)\n", encoding="utf-8")
        with self.assertRaisesRegex(AssertionError, "(?s)9.0.*version: 0.2.0"):
            run(CMAKE, "-G", "Ninja", "-S", folder, "-B", folder / "build", self.where)

    def test_python(self):
        """The module finds the library that is installed with it."""
        program = self.folder / "program.py"
        program.write_text("import outrider, sys\n"
                           "with outrider.Engine(sys.argv[1]) as engine:\n"
                           "  engine.submit([int(token) for token in sys.argv[2:]], n=2, stream=17, seed=5, max_new_tokens=24)\n"
                           "  for s in engine.results(): print(s.sample, *(f'{t}:{p!r}' for t, p in zip(s.token_ids, s.logprobs)))\n",
                           encoding="utf-8")
        self.check_program(sys.executable, program, PYTHONPATH=str(self.prefix / "share/outrider"), OUTRIDER_LIBRARY="")

    def test_pkg_config(self):
        self.assertEqual(self.pkg_config("--modversion"), ["0.2.0"])
        shared, static = self.folder / "pkg_shared", self.folder / "pkg_static"
        run(CC, "-std=c99", CONSUMER / "consumer.c", "-o", shared, *self.pkg_config("--cflags", "--libs"))
        self.assertIn("liboutrider.so.0", self.needed(shared))
        self.check_program(shared, LD_LIBRARY_PATH=str(self.prefix / LIB))
        # Beside a shared library the linker takes the static one only if told so.
        libs = ["-l:liboutrider.a" if flag == "-loutrider" else flag for flag in self.pkg_config("--cflags", "--libs", "--static")]
        run(CC, "-std=c99", CONSUMER / "consumer.c", "-o", static, *libs)
        self.assertNotIn("liboutrider.so.0", self.needed(static))
        self.check_program(static)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
