#!/usr/bin/env python3
"""Turns a CUDA file of kernels/ into C++ that runs on the emulated device of tests/cuda/emulator.h.

    emulate.py FILE.cu OUT.cpp

The kernel's text stays; replaced are what C++ has no word for: launches, dynamic shared memory, and the headers of kernels/ptx.
"""

import re
import sys


def split_arguments(text):
    """Splits at the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return parts + [text[start:].strip()]


def launches(text):
    pattern = re.compile(r"([A-Za-z_]\w*(?:<[^<>;]*>)?)<<<(.*?)>>>\((.*?)\);", re.S)

    def replace(match):
        kernel, config, arguments = match.groups()
        grid, block, shared, stream = (split_arguments(config) + ["0", "nullptr"])[:4]
        return f"emulator::check_shared(emulator::name_of({kernel}), static_cast<size_t>({shared})); emulator::launch(dim3({grid}), dim3({block}), 1, static_cast<size_t>({shared}), [=] {{ {kernel}({arguments}); }}, {stream});"

    return pattern.sub(replace, text)


def main():
    source, out = sys.argv[1:]
    text = open(source, encoding="utf-8").read()
    text = re.sub(r'#include "kernels/ptx/\w+\.h"\n', "", text)
    text = re.sub(r"extern __shared__[^;]*?uint8_t (\w+)\[\];", r"uint8_t* \1 = emulator::dynamic_shared();", text)
    text = launches(text)
    if "<<<" in text:
        sys.exit(f"{source}: a launch that is not understood")
    with open(out, "w", encoding="utf-8") as f:
        f.write(f'// Made from {source} by tests/cuda/emulate.py.\n#include "tests/cuda/emulated_ptx.h"\n#line 1 "{source}"\n{text}')


if __name__ == "__main__":
    main()
