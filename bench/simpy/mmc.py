"""The M/M/c queue in SimPy: prints the seconds it took and the mean wait as JSON. Used by `cargo xtask bench sim`."""

import json
import random
import sys
import time

import simpy


def job(env, servers, service, waits):
    arrived = env.now
    with servers.request() as request:
        yield request
        waits[0] += env.now - arrived
        yield env.timeout(service)


def source(env, servers, jobs, rate, mean, rng, waits):
    for _ in range(jobs):
        yield env.timeout(rng.expovariate(rate))
        env.process(job(env, servers, rng.expovariate(1.0 / mean), waits))


def main():
    jobs, servers, rate, mean, seed = (float(argument) for argument in sys.argv[1:6])
    rng = random.Random(int(seed))
    start = time.perf_counter()
    env = simpy.Environment()
    waits = [0.0]
    env.process(source(env, simpy.Resource(env, int(servers)), int(jobs), rate, mean, rng, waits))
    env.run()
    print(json.dumps({"seconds": time.perf_counter() - start, "mean_wait_s": waits[0] / jobs}))


main()
