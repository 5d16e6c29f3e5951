"""Outrider's C library from Python, by ctypes alone: samples of a prompt, with their log-probs.

    python3 ctypes_rollout.py MODEL ID...

The library is build/release/lib/liboutrider.so, or what OUTRIDER_LIBRARY names. runtime/outrider.h says what the structs mean; a shorter
struct than the library's is allowed, so that fields which are added there later need not be added here.
"""

import ctypes
import json
import os
import sys
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

LIBRARY = os.environ.get("OUTRIDER_LIBRARY", str(Path(__file__).resolve().parents[2] / "build/release/lib/liboutrider.so"))
OK, TIMEOUT, IDLE = 0, 7, 11  # otr_status
REASONS = ("stop", "length", "abort", "error", "score")


def struct(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_size", c_size_t), *fields.items()]})


EngineOptions = struct(
    "EngineOptions", model_path=c_char_p, device=c_char_p, isa=c_char_p, policy=c_char_p, max_batch=c_int32, prefill_chunk=c_int32,
    num_threads=c_int32, kv_bytes=c_uint64, drafters=POINTER(c_char_p), num_drafters=c_size_t, history=c_int32, pin_threads=c_int32,
    profile_path=c_char_p, trace_path=c_char_p, num_workers=c_int32)
SamplingParams = struct(
    "SamplingParams", temperature=c_float, top_k=c_int32, top_p=c_float, min_p=c_float, repetition_penalty=c_float, presence_penalty=c_float,
    frequency_penalty=c_float, seed=c_uint64, max_new_tokens=c_int32, ignore_eos=c_int32, stop_token_ids=POINTER(c_int32),
    num_stop_token_ids=c_size_t)
GroupRequest = struct("GroupRequest", prompt_token_ids=POINTER(c_int32), num_prompt_tokens=c_size_t, n=c_int32, first_sample=c_uint32,
                      stream=c_uint64, tag=c_uint64, sampling=POINTER(SamplingParams))
AppendRequest = struct("AppendRequest", token_ids=POINTER(c_int32), num_tokens=c_size_t, tag=c_uint64, sampling=POINTER(SamplingParams))
ResultView = struct("ResultView", group_id=c_uint64, tag=c_uint64, sample=c_uint32, finish_reason=c_int32, num_tokens=c_size_t,
                    token_ids=POINTER(c_int32), logprobs=POINTER(c_float), raw_logprobs=POINTER(c_float), error=c_char_p)

otr = ctypes.CDLL(LIBRARY)
otr.otr_last_error.restype = c_char_p
otr.otr_last_error.argtypes = [c_void_p]
otr.otr_engine_destroy.argtypes = otr.otr_result_destroy.argtypes = [c_void_p]
otr.otr_engine_create.argtypes = [POINTER(EngineOptions), POINTER(c_void_p)]
otr.otr_submit.argtypes = [c_void_p, POINTER(GroupRequest), POINTER(c_uint64)]
otr.otr_append.argtypes = [c_void_p, c_void_p, POINTER(AppendRequest), POINTER(c_uint64)]
otr.otr_wait.argtypes = [c_void_p, c_int64, POINTER(c_void_p)]
otr.otr_result_get.argtypes = [c_void_p, POINTER(ResultView), c_size_t]
for init in ("otr_engine_options_init", "otr_sampling_params_init", "otr_group_request_init", "otr_append_request_init"):
    getattr(otr, init).argtypes = [c_void_p, c_size_t]


def check(status, engine=None):
    if status != OK:
        raise RuntimeError(otr.otr_last_error(engine).decode())


def made(kind, init, **fields):
    """A struct with the library's defaults, and these fields."""
    filled = kind()
    check(init(ctypes.byref(filled), ctypes.sizeof(filled)))
    for name, value in fields.items():
        setattr(filled, name, value)
    return filled


def append(engine, result, token_ids):
    """The sample goes on behind these tokens."""
    turn = made(AppendRequest, otr.otr_append_request_init, token_ids=(c_int32 * len(token_ids))(*token_ids), num_tokens=len(token_ids))
    check(otr.otr_append(engine, result, ctypes.byref(turn), ctypes.byref(c_uint64())), engine)


def results(engine, answer=None):
    """Every sample that is outstanding, as it finishes. What `answer` returns for it is the next turn's beginning: say, what a tool gave,
    or None if there is none. A call may not be interrupted, so none is long: Ctrl-C works between two."""
    result = c_void_p()
    while (status := otr.otr_wait(engine, 100, ctypes.byref(result))) != IDLE:
        if status == TIMEOUT:
            continue
        check(status, engine)
        view = ResultView()
        check(otr.otr_result_get(result, ctypes.byref(view), ctypes.sizeof(view)))
        size = view.num_tokens  # a slice copies: the arrays are the library's
        sample = {"sample": view.sample, "token_ids": view.token_ids[:size], "logprobs": view.logprobs[:size],
                  "raw_logprobs": view.raw_logprobs[:size], "finish_reason": REASONS[view.finish_reason]}
        answered = answer(sample) if answer else None
        if answered is not None:
            append(engine, result, answered)
        check(otr.otr_result_destroy(result))
        yield sample


def roll_out(model, prompt, n=4, stream=17, answer=None, **sampling):
    """Samples of one prompt, and their further turns (see results()). `stream` is to be another one for every prompt and step."""
    engine, group = c_void_p(), c_uint64()
    options = made(EngineOptions, otr.otr_engine_options_init, model_path=os.fsencode(model))
    check(otr.otr_engine_create(ctypes.byref(options), ctypes.byref(engine)))
    try:
        params = made(SamplingParams, otr.otr_sampling_params_init, **sampling)
        request = made(GroupRequest, otr.otr_group_request_init, prompt_token_ids=(c_int32 * len(prompt))(*prompt), num_prompt_tokens=len(prompt),
                       n=n, stream=stream, sampling=ctypes.pointer(params))
        check(otr.otr_submit(engine, ctypes.byref(request), ctypes.byref(group)), engine)
        yield from results(engine, answer)
    finally:
        otr.otr_engine_destroy(engine)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: ctypes_rollout.py MODEL ID...")
    for line in roll_out(sys.argv[1], [int(token) for token in sys.argv[2:]], seed=5, max_new_tokens=48):
        print(json.dumps(line), flush=True)
