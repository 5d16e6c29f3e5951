"""How sdpa.py and int4.py time PyTorch: by CUDA events."""

import statistics

import torch


def median_us(body, count):
    """Median microseconds of one body(i), i < count, over nine rounds after two that warm up."""
    times = []
    for _ in range(11):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for i in range(count):
            body(i)
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / count)
    return statistics.median(times[2:])
