"""The works of `cargo xtask bench cluster --rivals` on Dask or Ray.

Usage: works.py dask|ray NOOPS AWAITS WORKERS EACH SECONDS
Prints one line of JSON: the version, no-op tasks per second on two workers, the median of one task submitted and awaited,
and how busy WORKERS workers were with EACH tasks of SECONDS for every one of them.
"""

import json
import statistics
import sys
import time


class Dask:
    def __init__(self, workers):
        import distributed

        self.version = distributed.__version__
        self.wait = distributed.wait
        self.cluster = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        )
        self.client = distributed.Client(self.cluster)
        self.client.wait_for_workers(workers)

    def many(self, function, inputs):
        self.wait(self.client.map(function, inputs, pure=False))

    def one(self, function, value):
        self.client.submit(function, value, pure=False).result()

    def end(self):
        self.client.close()
        self.cluster.close()


class Ray:
    def __init__(self, workers):
        import ray

        self.ray = ray
        self.version = ray.__version__
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error")
        self.functions = {function: ray.remote(function) for function in (nothing, pause)}

    def many(self, function, inputs):
        remote = self.functions[function].remote
        self.ray.get([remote(value) for value in inputs])

    def one(self, function, value):
        self.ray.get(self.functions[function].remote(value))

    def end(self):
        self.ray.shutdown()


def nothing(_):
    return None


def pause(seconds):
    # Ray takes no functions that are not written in Python.
    time.sleep(seconds)


def timed(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main():
    rival = {"dask": Dask, "ray": Ray}[sys.argv[1]]
    noops, awaits, workers, each = (int(text) for text in sys.argv[2:6])
    seconds = float(sys.argv[6])

    two = rival(2)
    # Everybody has begun and has the functions.
    two.many(nothing, range(100))
    noop = timed(lambda: two.many(nothing, range(noops)))
    awaited = [timed(lambda: two.one(nothing, number)) for number in range(awaits)]
    version = two.version
    two.end()

    many = rival(workers)
    many.many(pause, [0.001] * (10 * workers))
    took = timed(lambda: many.many(pause, [seconds] * (each * workers)))
    many.end()

    figures = {
        "version": version,
        "tasks_per_s": noops / noop,
        "p50_us": statistics.median(awaited) * 1e6,
        "efficiency": each * seconds / took,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
