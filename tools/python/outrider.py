"""Outrider's C library from Python, by ctypes and the standard library alone. runtime/outrider.h is the manual of every call and field.

    with outrider.Engine("tests/data/tinymath/target", policy="auto") as engine:
        engine.submit([10, 20, 30], n=8, stream=17, max_new_tokens=48)   # a stream of its own for every prompt and step
        for sample in engine.results():
            print(sample.sample, list(sample.token_ids), sample.finish_reason)

The library is what OUTRIDER_LIBRARY names, or the one of this repository's release build or installation, or the system's. Any thread may call
anything. Calls on an engine are short; waits are made of short ones, so that Ctrl-C works between two. A child that was forked has no use for its
parent's engines, and may drop or close them.
"""

import array
import ctypes
import json
import numbers
import os
import threading
import time
import weakref
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from pathlib import Path

STATUS = ("ok", "invalid_argument", "invalid_handle", "bad_input", "unsupported", "never_fits", "out_of_memory", "timeout", "io_error", "fault",
          "internal", "idle", "busy", "lost")
REASONS = ("stop", "length", "abort", "error", "score")
DTYPES = {"bfloat16": 0, "float16": 1, "float32": 2}
WEIGHTS, KV, ALL = 1, 2, 3  # what sleeps

# ---- The header's structs and functions


def _struct(kind, /, sized=True, **fields):
    return type(kind, (ctypes.Structure,), {"_fields_": [("struct_size", c_size_t)] * sized + list(fields.items())})


EngineOptions = _struct(
    "EngineOptions", model_path=c_char_p, device=c_char_p, isa=c_char_p, policy=c_char_p, max_batch=c_int32, prefill_chunk=c_int32,
    num_threads=c_int32, kv_bytes=c_uint64, drafters=POINTER(c_char_p), num_drafters=c_size_t, history=c_int32, pin_threads=c_int32,
    profile_path=c_char_p, trace_path=c_char_p, num_workers=c_int32, worker_processes=c_int32, worker_executable=c_char_p,
    worker_timeout_ms=c_int32, max_worker_restarts=c_int32, num_draft_workers=c_int32, keep_checkpoints=c_int32, nccl_library=c_char_p,
    nccl_unique_id=c_void_p, nccl_unique_id_bytes=c_size_t, nccl_num_ranks=c_int32, nccl_first_rank=c_int32, nccl_timeout_ms=c_int32,
    reserved=c_int32)
SamplingParams = _struct(
    "SamplingParams", temperature=c_float, top_k=c_int32, top_p=c_float, min_p=c_float, repetition_penalty=c_float, presence_penalty=c_float,
    frequency_penalty=c_float, seed=c_uint64, max_new_tokens=c_int32, ignore_eos=c_int32, stop_token_ids=POINTER(c_int32),
    num_stop_token_ids=c_size_t)
GroupRequest = _struct("GroupRequest", prompt_token_ids=POINTER(c_int32), num_prompt_tokens=c_size_t, n=c_int32, first_sample=c_uint32,
                       stream=c_uint64, tag=c_uint64, sampling=POINTER(SamplingParams))
ScoreRequest = _struct("ScoreRequest", prompt_token_ids=POINTER(c_int32), num_prompt_tokens=c_size_t, token_ids=POINTER(c_int32),
                       num_tokens=c_size_t, tag=c_uint64, sampling=POINTER(SamplingParams))
AppendRequest = _struct("AppendRequest", token_ids=POINTER(c_int32), num_tokens=c_size_t, tag=c_uint64, sampling=POINTER(SamplingParams))
Tensor = _struct("Tensor", name=c_char_p, dtype=c_int32, shape=POINTER(c_int64), num_dims=c_size_t, data=c_void_p, data_bytes=c_size_t)
WeightSpan = _struct("WeightSpan", sized=False, first_token=c_size_t, weight_version=c_uint64)
ResultView = _struct(
    "ResultView", group_id=c_uint64, tag=c_uint64, sample=c_uint32, finish_reason=c_int32, num_tokens=c_size_t, token_ids=POINTER(c_int32),
    logprobs=POINTER(c_float), raw_logprobs=POINTER(c_float), error=c_char_p, spec_num_draft_tokens=c_int64, spec_num_accepted_tokens=c_int64,
    spec_num_verify_steps=c_int64, weight_version=c_uint64, weight_spans=POINTER(WeightSpan), num_weight_spans=c_size_t,
    error_status=c_int32)

_ARGUMENTS = {
    "status_text": (c_int32,), "finish_reason_text": (c_int32,), "version": (), "last_error": (c_void_p,), "serve_worker": (c_int32,),
    "engine_create": (POINTER(EngineOptions), POINTER(c_void_p)), "engine_destroy": (c_void_p,),
    "submit": (c_void_p, POINTER(GroupRequest), POINTER(c_uint64)), "score": (c_void_p, POINTER(ScoreRequest), POINTER(c_uint64)),
    "append": (c_void_p, c_void_p, POINTER(AppendRequest), POINTER(c_uint64)), "cancel": (c_void_p, c_uint64),
    "pause": (c_void_p,), "resume": (c_void_p,), "wait": (c_void_p, c_int64, POINTER(c_void_p)),
    "result_get": (c_void_p, POINTER(ResultView), c_size_t), "result_sampling": (c_void_p, POINTER(SamplingParams), c_size_t),
    "result_destroy": (c_void_p,), "weights_begin": (c_void_p, c_uint64), "weights_expect_all": (c_void_p,), "weights_put": (c_void_p, POINTER(Tensor)), "weights_commit": (c_void_p,),
    "sleep": (c_void_p, c_int32), "wake": (c_void_p, c_int32),
    "kv_export": (c_void_p, POINTER(c_int32), c_size_t, c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "kv_import": (c_void_p, c_char_p, c_size_t, POINTER(c_size_t)),
    "checkpoint_save": (c_void_p, c_char_p, c_char_p, c_size_t), "checkpoint_load": (c_void_p, c_char_p),
    "checkpoint_user_data": (c_char_p, c_void_p, c_size_t, POINTER(c_size_t)),
    "reward": (c_void_p, c_uint64, c_uint32, c_float), "history_commit": (c_void_p,), "history_save": (c_void_p, c_char_p),
    "history_load": (c_void_p, c_char_p), "stats": (c_void_p, c_void_p, c_size_t, POINTER(c_size_t)),
    **{f"{kind}_init": (c_void_p, c_size_t)
       for kind in ("engine_options", "sampling_params", "group_request", "score_request", "append_request", "tensor")}}


def _load():
    above = Path(__file__).resolve().parent.parent.parent  # the repository, or where it is installed
    folders = ("build/release/lib", "lib", "lib64", "lib/x86_64-linux-gnu")
    places = [place for place in (above / folder / "liboutrider.so" for folder in folders) if place.exists()]
    library = ctypes.CDLL(os.environ.get("OUTRIDER_LIBRARY") or str((places or ["liboutrider.so"])[0]))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, "otr_" + name)
        function.argtypes = arguments
        function.restype = c_char_p if name in ("status_text", "finish_reason_text", "version", "last_error") else c_int32
    return library


_library = _load()


def _call(name):
    return getattr(_library, "otr_" + name)


class Error(RuntimeError):
    """A call that failed: `status` is one of STATUS, the text is the library's."""

    def __init__(self, status, text):
        super().__init__(status, text)
        self.status = STATUS[status] if status < len(STATUS) else str(status)

    def __str__(self):
        return self.args[1]


def _check(status, engine=None):
    if status != 0:
        raise Error(status, _library.otr_last_error(engine).decode())


def _integer(kind, name, value):
    """`value` as ctypes would take it, which leaves out what does not fit."""
    kept = kind(value).value
    if kept != value:
        raise OverflowError(f"{name}: {value} is out of range")
    return kept


_INTEGERS = (c_int32, c_int64, c_uint32, c_uint64, c_size_t)


def _set(made, **fields):
    kinds = dict(made._fields_)
    for name, value in fields.items():
        if name not in kinds or name == "struct_size":
            raise TypeError(f"{type(made).__name__} has no {name!r}")
        setattr(made, name, _integer(kinds[name], name, value) if kinds[name] in _INTEGERS else value)
    return made


def _made(kind, init, /, **fields):
    """A struct with the library's defaults and these fields."""
    made = kind()
    _check(_call(init)(byref(made), sizeof(made)))
    return _set(made, **fields)


def _ids(token_ids):
    ids = array.array("i", iter(token_ids))  # of bytes, their numbers
    return (c_int32 * len(ids)).from_buffer_copy(ids)


def _sampling(fields, result=None):
    """A pointer to sampling parameters, the others those of `result` or the library's defaults; None without any."""
    fields = {name: value for name, value in fields.items() if value is not None}
    if not fields:
        return None
    if "stop_token_ids" in fields:
        stops = fields["stop_token_ids"]
        ids = _ids([stops] if isinstance(stops, numbers.Integral) else stops)
        fields |= {"stop_token_ids": ids, "num_stop_token_ids": len(ids)}
    if result is None:
        return ctypes.pointer(_made(SamplingParams, "sampling_params_init", **fields))
    had = SamplingParams()
    _check(_library.otr_result_sampling(result, byref(had), sizeof(had)))
    return ctypes.pointer(_set(had, **fields))


# ---- What the engine is used by


class _Taken:
    """A result's handle, whoever has it. It belongs to the process that made it, not to a child that was forked."""

    handle = c_void_p()  # should a signal's handler raise before __init__ has set it

    def __init__(self):
        self.handle, self._pid = c_void_p(), os.getpid()

    def __del__(self):
        if self.handle.value and self._pid == os.getpid():
            _library.otr_result_destroy(self.handle)


class Result:
    """A finished sample or score. token_ids, logprobs and raw_logprobs are arrays of 32-bit numbers, of which numpy.asarray, and torch.frombuffer
    where there are any, make no copy; logprobs is None for a score without sampling parameters. weight_spans: [(first token, version of the weights
    that drew from there)]. Copies and what was pickled have all of that, but cannot be appended to."""

    def __init__(self, taken):
        self._taken = taken
        view = ResultView()
        _check(_library.otr_result_get(taken.handle, byref(view), sizeof(view)))

        def copy(kind, values):
            return array.array(kind, ctypes.string_at(values, 4 * view.num_tokens) if view.num_tokens else b"") if values else None

        self.group, self.tag, self.sample = view.group_id, view.tag, view.sample
        self.finish_reason, self.error = REASONS[view.finish_reason], view.error.decode()
        self.error_status = STATUS[view.error_status]  # "fault": the sample's own; "lost" and others: the engine's
        self.token_ids = copy("i", view.token_ids)
        self.logprobs, self.raw_logprobs = copy("f", view.logprobs), copy("f", view.raw_logprobs)
        self.spec_num_draft_tokens, self.spec_num_accepted_tokens = view.spec_num_draft_tokens, view.spec_num_accepted_tokens
        self.spec_num_verify_steps, self.weight_version = view.spec_num_verify_steps, view.weight_version
        self.weight_spans = [(s.first_token, s.weight_version) for s in view.weight_spans[:view.num_weight_spans]]

    def __getstate__(self):
        return self.__dict__ | {"_taken": None}

    def __repr__(self):
        return f"<Result group={self.group} sample={self.sample} {self.finish_reason}: {len(self.token_ids)} tokens>"

    @property
    def _handle(self):
        if self._taken is None:
            raise ValueError("a copy of a result cannot be appended to")
        return self._taken.handle


def _destroy(handle, pid):
    if pid == os.getpid():
        _library.otr_engine_destroy(handle)


class Engine:
    """An engine. Options are the fields of otr_engine_options, with a list of texts for `drafters`. It ends with close(), with the `with` it is
    used in, or when nobody refers to it any more."""

    def __init__(self, model_path, *, drafters=(), **options):
        self._handle, self._pid = c_void_p(), os.getpid()
        self._end = weakref.finalize(self, _destroy, self._handle, self._pid)
        # Of unfinished groups, the samples that were not returned yet, and what was taken for others than those who wait for them. Groups whose
        # results nobody wants. All guarded by _lock; changes that a signal's handler may break off can be made twice.
        self._owed, self._kept, self._abandoned, self._lock = {}, {}, set(), threading.Lock()
        self._turn, self._waiting = threading.RLock(), 0  # who has _turn takes the next result
        drafters = [drafters] if isinstance(drafters, (str, os.PathLike)) else drafters
        texts = {name: os.fsencode(value) for name, value in options.items() if isinstance(value, (str, os.PathLike))}
        if isinstance(unique := options.get("nccl_unique_id"), bytes):
            texts |= {"nccl_unique_id": ctypes.cast(ctypes.create_string_buffer(unique, len(unique)), c_void_p),
                      "nccl_unique_id_bytes": len(unique)}
        made = _made(EngineOptions, "engine_options_init", model_path=os.fsencode(model_path), num_drafters=len(drafters),
                     drafters=(c_char_p * len(drafters))(*map(os.fsencode, drafters)), **options | texts)
        _check(_library.otr_engine_create(byref(made), byref(self._handle)))
        self._on_gpus = (made.device or b"").startswith(b"cuda") or (made.isa or b"").startswith(b"cuda")

    def close(self):
        """Abandons whatever is outstanding. Results that were taken stay."""
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _check_process(self):
        if self._pid != os.getpid():
            raise RuntimeError("the engine is the parent process'; a forked child needs one of its own")

    def _do(self, name, *arguments):
        self._check_process()
        _check(_call(name)(self._handle, *arguments), self._handle)

    def _request(self, name, *arguments, samples=range(1), groups=None):
        """The id of a new group, also appended to `groups`."""
        self._check_process()
        group = c_uint64()
        try:
            with self._lock:
                try:
                    self._do(name, *arguments, byref(group))
                finally:  # a signal may have come when the group was there
                    if group.value:
                        self._owed[group.value] = set(samples)
                if groups is not None:
                    groups.append(group.value)
            return group.value
        except BaseException:
            if group.value:  # nobody knows the group
                self._abandon(group.value)
            raise

    # Requests: each gives a group id. Keywords that are not named are fields of otr_sampling_params.

    def submit(self, prompt, *, stream, n=1, first_sample=0, tag=0, **sampling):
        return self._submit(prompt, None, stream, n, first_sample, tag, sampling)

    def _submit(self, prompt, groups, stream, n, first_sample, tag, sampling):
        ids = _ids(prompt)
        request = _made(GroupRequest, "group_request_init", prompt_token_ids=ids, num_prompt_tokens=len(ids), n=n, first_sample=first_sample,
                        stream=stream, tag=tag, sampling=_sampling(sampling))
        return self._request("submit", request, samples=range(first_sample, first_sample + n), groups=groups)

    def score(self, prompt, token_ids, *, tag=0, **sampling):
        """The log-probs of `token_ids` behind `prompt`: bit-equal to those of the samples that drew them."""
        before, ids = _ids(prompt), _ids(token_ids)
        return self._request("score", _made(ScoreRequest, "score_request_init", prompt_token_ids=before, num_prompt_tokens=len(before),
                                            token_ids=ids, num_tokens=len(ids), tag=tag, sampling=_sampling(sampling)))

    def append(self, result, token_ids=(), *, tag=0, **sampling):
        """The sample goes on behind these tokens, with the sampling parameters that it had but for those given here. Its max_new_tokens are counted
        anew."""
        self._check_process()
        handle, ids = result._handle, _ids(token_ids)
        request = _made(AppendRequest, "append_request_init", token_ids=ids, num_tokens=len(ids), tag=tag, sampling=_sampling(sampling, handle))
        return self._request("append", handle, request, samples=[result.sample])

    def cancel(self, group):
        """Whether there was anything to end: False of a group that is finished or unknown."""
        try:
            self._do("cancel", _integer(c_uint64, "group", group) or (1 << 64) - 1)
        except Error as error:
            if error.status != "invalid_argument":
                raise
            return False
        return True

    def cancel_all(self):
        self._do("cancel", 0)

    def wait(self, seconds=None, *, groups=None):
        """The next result; None if nothing is outstanding. TimeoutError: none came within `seconds` (None: no limit). With `groups`, a container of
        ids that requests of this object gave, the next one of theirs; the others' stay for whoever waits for them, or for any. Threads take turns of
        20 ms."""
        self._check_process()
        end = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._waiting += 1
        try:
            while True:
                with self._lock:
                    if groups is not None and not any(samples and group in groups for group, samples in self._owed.items()):
                        return None
                left = 0.02 if end is None else min(0.02, max(0.0, end - time.monotonic()))
                result = self._take(groups, None)
                if result is False:
                    try:
                        if self._turn.acquire(timeout=left):
                            result = self._take(groups, int(1000 * left))
                    finally:  # a signal may have come before anyone knew that it was acquired
                        if self._turn._is_owned():
                            self._turn.release()
                if result is not False:
                    return result
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(f"no result within {seconds} s")
                if self._waiting > 1:
                    time.sleep(0.001)  # so that others have their turn: what was taken may be theirs
        finally:
            with self._lock:
                self._waiting -= 1

    def _take(self, groups, milliseconds):
        """The next result of these groups; None: nothing is outstanding; False: there is none yet. Without milliseconds, of those that were kept; with
        them by whose turn it is."""
        taken = None
        try:
            with self._lock:
                for group, kept in self._kept.items():
                    if groups is None or group in groups:
                        taken = kept[-1]
                        kept.pop()
                        if not kept:
                            del self._kept[group]
                        break
            if taken is None:
                if milliseconds is None:
                    return False
                taken = _Taken()
                try:
                    self._do("wait", milliseconds, byref(taken.handle))
                except Error as error:
                    if error.status in ("timeout", "idle"):
                        return None if error.status == "idle" else False
                    raise
            result = Result(taken)
            with self._lock:
                wanted = result.group not in self._abandoned
                mine = wanted and (groups is None or result.group in groups)
                if mine or not wanted:
                    owed = self._owed.get(result.group, set())
                    owed.discard(result.sample)
                    if not owed:
                        self._owed.pop(result.group, None)
                        self._abandoned.discard(result.group)
            if mine:
                return result
            if wanted:
                self._keep(taken)
            return False
        except BaseException:
            if taken is not None and taken.handle.value:  # a signal came in between
                self._keep(taken)
            raise

    def _keep(self, taken):
        result = Result(taken)
        with self._lock:
            self._owed.setdefault(result.group, set()).add(result.sample)
            kept = self._kept.setdefault(result.group, [])
            if all(other is not taken for other in kept):
                kept.append(taken)

    def _abandon(self, group):
        with self._lock:
            if self._kept.get(group):
                self._owed[group] -= {Result(taken).sample for taken in self._kept.pop(group)}
            if self._owed.get(group):
                self._abandoned.add(group)
            else:
                self._owed.pop(group, None)
        try:
            self.cancel(group)
        except Error:  # the engine is closed, say
            pass

    def results(self, groups=None):
        """Results until nothing is outstanding, what is submitted or appended meanwhile included; with `groups` until theirs are there."""
        while (result := self.wait(groups=groups)) is not None:
            yield result

    def generate(self, prompts, *, streams, n=1, **sampling):
        """n samples of every prompt: a list a prompt, by sample. `streams`: one a prompt, unique to it and the step. Several threads may do so at
        once. Interrupted, or where a prompt is refused, it cancels what it has begun; until that is over, as results() waits for, update_weights() is
        "busy"."""
        prompts, streams = list(prompts), list(streams)
        if len(prompts) != len(streams) or len(set(streams)) != len(streams):
            raise ValueError("streams: one a prompt, each of its own")
        groups = []
        try:
            for prompt, stream in zip(prompts, streams):
                self._submit(prompt, groups, stream, n, 0, 0, sampling)
            found = {group: [] for group in groups}
            for _ in range(n * len(groups)):
                result = self.wait(groups=found)
                if result is None:
                    raise RuntimeError("a thread that waits for any result took one of these")
                found[result.group].append(result)
        except BaseException:
            for group in groups:
                self._abandon(group)
            raise
        return [sorted(samples, key=lambda r: r.sample) for samples in found.values()]

    def pause(self):
        self._do("pause")

    def resume(self):
        self._do("resume")

    # Weights

    def begin_weights(self, version):
        self._do("weights_begin", _integer(c_uint64, "version", version))

    def expect_all_weights(self):
        self._do("weights_expect_all")

    def put_weight(self, name, tensor):
        """`tensor`: of torch (one of a GPU has its work done; it comes to the host unless the engine is on GPUs) or of numpy, which are read where
        they lie unless they lie in pieces; or (dtype, shape, buffer) with a dtype of DTYPES and any object of contiguous bytes."""
        if hasattr(tensor, "data_ptr"):
            where = str(getattr(tensor, "device", "cpu"))
            if hasattr(tensor, "full_tensor"):
                raise ValueError(f"{name}: a part of a distributed tensor: put its full_tensor()")
            if where == "meta" or (tensor.numel() > 0 and tensor.data_ptr() == 0):
                raise ValueError(f"{name}: the tensor has no memory")
            # A GPU makes one piece of several at a time of its own, which we should have to wait for.
            if where != "cpu" and not (where.startswith("cuda") and self._on_gpus and tensor.is_contiguous()):
                tensor = tensor.cpu()
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            dtype, shape, data = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.data_ptr()
            size = tensor.numel() * tensor.element_size()
        elif hasattr(tensor, "__array_interface__"):
            if not tensor.flags.c_contiguous:
                tensor = tensor.copy()
            dtype, shape, data, size = str(tensor.dtype), tensor.shape, tensor.__array_interface__["data"][0], tensor.nbytes
        else:
            dtype, shape, buffer = tensor
            held = bytes(memoryview(buffer).cast("B"))
            size, data = len(held), ctypes.cast(c_char_p(held), c_void_p)
        if dtype not in DTYPES:
            raise ValueError(f"{name}: dtype {dtype} cannot be loaded ({', '.join(DTYPES)} can)")
        self._do("weights_put", _made(Tensor, "tensor_init", name=name.encode(), dtype=DTYPES[dtype], shape=(c_int64 * len(shape))(*shape),
                                      num_dims=len(shape), data=data, data_bytes=size))

    def commit_weights(self):
        self._do("weights_commit")

    def update_weights(self, version, named_tensors, *, complete=True):
        """begin, a put for each (name, tensor), commit. Unfinished samples need a pause() before and a resume() after. `complete`: all of them are
        there, or it fails. What has failed is under way still and shuts the engine: once more, with all tensors, mends it."""
        self.begin_weights(version)
        if complete:
            self.expect_all_weights()
        for name, tensor in named_tensors:
            self.put_weight(name, tensor)
        self.commit_weights()

    def sleep(self, what=ALL):
        self._do("sleep", what)

    def wake(self, what=ALL):
        self._do("wake", what)

    # Files and pages

    def reward(self, result, reward):
        self._do("reward", result.group, result.sample, reward)

    def commit_history(self):
        self._do("history_commit")

    def save_history(self, path):
        self._do("history_save", os.fsencode(path))

    def load_history(self, path):
        self._do("history_load", os.fsencode(path))

    def save_checkpoint(self, path, user_data=b""):
        self._do("checkpoint_save", os.fsencode(path), user_data, len(user_data))

    def load_checkpoint(self, path):
        self._do("checkpoint_load", os.fsencode(path))

    def export_pages(self, token_ids):
        """(bytes, how many of the tokens they cover)."""
        self._check_process()
        size, covered, ids = c_size_t(), c_size_t(), _ids(token_ids)

        def export(buffer, capacity):
            return _library.otr_kv_export(self._handle, ids, len(ids), buffer, capacity, byref(size), byref(covered))

        return _sized(export, size, self._handle), covered.value

    def import_pages(self, data):
        covered = c_size_t()
        self._do("kv_import", data, len(data), byref(covered))
        return covered.value

    def stats(self):
        self._check_process()
        size = c_size_t()
        text = _sized(lambda buffer, capacity: _library.otr_stats(self._handle, buffer, capacity, byref(size)), size, self._handle)
        return json.loads(text.split(b"\0", 1)[0])


def _sized(write, size, engine=None):
    """The bytes that a call writes which says what it needs, should that be more than there is."""
    buffer = ctypes.create_string_buffer(1)
    while (status := write(buffer, len(buffer))) == STATUS.index("invalid_argument") and size.value > len(buffer):
        buffer = ctypes.create_string_buffer(size.value)
    _check(status, engine)
    return buffer.raw[:size.value]


def checkpoint_user_data(path):
    size = c_size_t()
    return _sized(lambda buffer, capacity: _library.otr_checkpoint_user_data(os.fsencode(path), buffer, capacity, byref(size)), size)


def version():
    return _library.otr_version().decode()
