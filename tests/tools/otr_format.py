"""Writes .otr files, good and broken ones, independently of the program: for tests that must get past its checksums.

zstd is called through ctypes, because Python has no module for it and the program needs the library anyway.
"""

import ctypes
import json
import struct

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
ZSTD = ctypes.CDLL("libzstd.so.1")
for name in ("compressBound", "compress2", "isError", "CCtx_setParameter"):
    getattr(ZSTD, "ZSTD_" + name).restype = ctypes.c_size_t
ZSTD.ZSTD_createCCtx.restype = ctypes.c_void_p
WINDOW_LOG, CONTENT_SIZE_FLAG, CHECKSUM_FLAG = 101, 200, 201  # ZSTD_c_…


def rotate(value, bits):
    return (value << bits | value >> (64 - bits)) & MASK


def xxh64(data):
    """XXH64 with seed 0."""
    size, at = len(data), 0

    def mix(lane, word):
        return rotate((lane + word * P2) & MASK, 31) * P1 & MASK

    total = P5
    if size >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= size:
            lanes = [mix(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", data, at), strict=True)]
            at += 32
        total = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            total = ((total ^ mix(0, lane)) * P1 + P4) & MASK
    total = (total + size) & MASK
    for width, code, bits, scale, plus in ((8, "<Q", 27, P1, P4), (4, "<I", 23, P2, P3), (1, "<B", 11, P1, 0)):
        while at + width <= size:
            word = struct.unpack_from(code, data, at)[0]
            total ^= mix(0, word) if width == 8 else word * (P1 if width == 4 else P5) & MASK
            total = (rotate(total, bits) * scale + plus) & MASK
            at += width
    for shift, scale in ((33, P2), (29, P3), (32, 1)):
        total = (total ^ total >> shift) * scale & MASK
    return total


KEYS = P1, P2, P3, P4, P5, 0x94D049BB133111EB, 0xBF58476D1CE4E5B9, 0xD6E8FEB86659FD93


def frame_sum(data):
    """What loader/frame_sum.h says."""
    sums, keys, at = list(KEYS), list(KEYS), 0
    while at + 64 <= len(data):
        words = struct.unpack_from("<8Q", data, at)
        for i in range(8):
            keyed = words[i] ^ keys[i]
            sums[i] = (sums[i] + words[i ^ 1] + (keyed & 0xFFFFFFFF) * (keyed >> 32)) & MASK
            keys[i] = (keys[i] + 0x9E3779B97F4A7C15) & MASK
        at += 64
    return xxh64(struct.pack("<8Q", *sums) + data[at:] + struct.pack("<Q", len(data)))


def compress(data, window_log=0, content_size=True, checksum=False):
    """One zstd frame."""
    context = ctypes.c_void_p(ZSTD.ZSTD_createCCtx())
    for parameter, value in ((WINDOW_LOG, window_log), (CONTENT_SIZE_FLAG, content_size), (CHECKSUM_FLAG, checksum)):
        ZSTD.ZSTD_CCtx_setParameter(context, parameter, int(value))
    out = ctypes.create_string_buffer(ZSTD.ZSTD_compressBound(ctypes.c_size_t(len(data))))
    size = ZSTD.ZSTD_compress2(context, out, ctypes.c_size_t(len(out)), data, ctypes.c_size_t(len(data)))
    ZSTD.ZSTD_freeCCtx(context)
    if ZSTD.ZSTD_isError(ctypes.c_size_t(size)):
        raise ValueError("zstd refuses")
    return out.raw[:size]


def frame_entry(offset, stored, raw_size):
    return [offset, len(stored), raw_size, f"{frame_sum(stored):016x}"]


def preamble(header_offset, header_stored, header_raw, version=3, **changes):
    """The first 64 bytes, sums included."""
    fields = {"magic": b"OUTRIDER", "version": version, "flags": 0, "offset": header_offset, "stored": len(header_stored),
              "raw": header_raw, "hash": xxh64(header_stored), "zero": 0} | changes
    packed = struct.pack("<8sIIQQQQQ", *fields.values())
    return packed + struct.pack("<Q", xxh64(packed))


def assemble(frames, header, header_stored=None, **changes):
    """A file of these frames (bytes) and this header (an object, or text), with right sums."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    stored = compress(text) if header_stored is None else header_stored
    return preamble(64 + len(frames), stored, len(text), **changes) + frames + stored


def small(files):
    """A file of these texts and no weights."""
    frames, items = b"", {}
    for name, text in files.items():
        stored = compress(text)
        stored = stored if len(stored) < len(text) else text
        items[name] = {"bytes": len(text), "planes": False, "frames": [frame_entry(64 + len(frames), stored, len(text))]}
        frames += stored
    return frames, {"layout": "vnni32", "files": items, "weights": {}}
