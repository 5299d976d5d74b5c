"""The line before the workers, and their limits; with workers that compute nothing, so that moments are exact."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("psutil")

import twolayer as tl
from twolayer.ask import RunSpec
from twolayer.explore.browser import _structure
from twolayer.explore.form import first_question
from twolayer.explore.messages import KINDS
from twolayer.explore.pool import LIMITS, LINE_OF_WINDOW, Busy, PageJob, Pool, ask
from twolayer.explore.structure import family, structure

# Seconds: what never comes to an end by itself, and what a busy machine may take for a moment's work.
FOR_EVER, PATIENCE = 3600.0, 60.0
FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))


@asynccontextmanager
async def pool_of(number, **more):
    async with Pool(number, command=FAKE, **more) as pool:
        while sum(worker.is_ready for worker in pool.workers) < number:
            await asyncio.sleep(0.01)
        yield pool


def question(window="a", kind="theory", address="1.2.3.4", slot="", spec=None, **options):
    return PageJob(kind, spec or {"p": options.pop("p", 1)}, options, (address, window), slot)


async def end_of(job):
    while (told := await job.next_event()).name not in ("result", "failed", "refused", "cancelled"):
        pass
    return told.name, json.loads(told.data)


def test_visitors_take_turns_whatever_they_ask_for():
    async def scenario():
        async with pool_of(1) as pool:
            blocking = question("z", seconds=0.3)
            pool.submit(blocking)
            order = []

            async def follow(job):
                order.append((await end_of(job))[1]["name"])

            many = [question("greedy", slot=str(n), name=f"greedy{n}", seconds=0.02) for n in range(5)]
            few = [question("modest", name="modest", seconds=0.02)]
            other = [question("w", address="9.9.9.9", slot=str(n), name=f"other{n}", seconds=0.02) for n in range(2)]
            for job in [*many, *few, *other]:
                pool.submit(job)
            await asyncio.gather(*(follow(job) for job in [*many, *few, *other]))
            return order

    order = asyncio.run(scenario())
    # Addresses take turns, and among the windows of an address the one that has waited longest.
    assert set(order[:2]) <= {"other0", "greedy0", "modest"} and "other0" in order[:2]
    assert order.index("other1") <= 3
    assert order.index("modest") <= 3
    assert order[-3:] == ["greedy2", "greedy3", "greedy4"]


def test_a_new_question_replaces_the_one_before():
    async def scenario():
        async with pool_of(1) as pool:
            first, second = question(seconds=FOR_EVER), question(seconds=0.0)
            kept = question(slot="pin", seconds=0.0)
            pool.submit(first)
            pool.submit(kept)
            pool.submit(second)
            async with asyncio.timeout(PATIENCE):
                return [(await end_of(job))[0] for job in (first, kept, second)]

    assert asyncio.run(scenario()) == ["cancelled", "result", "result"]


def test_a_worker_beyond_its_memory_is_ended_and_replaced():
    async def scenario():
        async with pool_of(1, memory=150 * 2**20) as pool:
            pid = pool.workers[0].process.pid
            greedy = await ask(pool, question(eat=300 * 2**20, seconds=20.0))
            after = await ask(pool, question("b"))
            return pid, greedy, json.loads(after.data)["pid"]

    pid, greedy, other = asyncio.run(scenario())
    assert greedy.name == "failed"
    assert "0.146 GB of memory" in greedy.data
    assert other != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("how", [{"seconds": 60.0}, {"seconds": 60.0, "is_deaf": True}, {"is_native": True}])
def test_a_worker_beyond_its_time_is_killed_and_replaced(how):
    async def scenario():
        async with pool_of(2, limits={"theory": 0.3}) as pool:
            pool.submit(question("other", kind="compare", seconds=60.0))  # the first job of the other worker
            slow = question(**how)
            pool.submit(slow)
            pids = {worker.process.pid for worker in pool.workers}
            end = await end_of(slow)
            after = await ask(pool, question("b", kind="explain"))  # which may take longer
            return pids, end, json.loads(after.data)["pid"]

    pids, end, other = asyncio.run(scenario())
    assert end[0] == "failed"
    assert "longer than 0.3 seconds" in end[1]["message"]
    assert other not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_cancelled_job_in_native_code_does_not_outlive_its_limit():
    async def scenario():
        async with pool_of(1, limits={"theory": 0.5}) as pool:
            (former,) = pool.workers
            job = question(is_native=True)
            pool.submit(job)
            pool.cancel(job)
            for _ in range(2000):  # although nobody waits for it
                if former not in pool.workers:
                    break
                await asyncio.sleep(0.01)
            return former in pool.workers, former.process.pid

    is_there, pid = asyncio.run(scenario())
    assert not is_there
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_answers_that_are_kept_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr("twolayer.explore.pool.ANSWER_BYTES", 10_000)

    async def scenario():
        async with pool_of(2) as pool:
            held = []
            for number in range(6):
                # Two windows ask the same at once, and the questions are not short either.
                both = [question(window, size=2000, name=str(number), more="y" * 1000) for window in ("a", "b")]
                for job in both:
                    pool.submit(job)
                for job in both:
                    await end_of(job)
                held.append(sum(len(content) + len(told.data) for content, told in pool.answers.items()))
                assert pool.bytes_of_answers == held[-1]
            await ask(pool, question(size=20_000))
            return held, len(pool.answers)

    held, left = asyncio.run(scenario())
    assert held[-1] == max(held) and 6000 < max(held) <= 10_000
    assert left == 0  # the last one alone is larger than all may be


def test_every_kind_of_job_has_a_limit():
    assert set(LIMITS) == {*KINDS, "download"}

    async def scenario():
        async with pool_of(1) as pool:
            told = await ask(pool, question(kind="program", seconds=0.3))
            return told.name, pool.watch.done()

    assert asyncio.run(scenario()) == ("result", False)  # whose watch goes on


def test_a_crash_is_told_and_the_worker_replaced():
    async def scenario():
        async with pool_of(2) as pool:
            crash = await ask(pool, question(crash=True))
            after = [await ask(pool, question("b", name=str(n))) for n in range(3)]
            return crash, after

    crash, after = asyncio.run(scenario())
    assert crash.name == "failed"
    assert "was ended" in crash.data
    assert [told.name for told in after] == ["result"] * 3


def test_a_new_worker_prepares_itself_for_the_first_question_of_a_page():
    spec = {"run": {"descriptions": ["OverlapSGD", {"kind": "SDE", "dt": 0.1}, "SaadSolla"]}}

    async def scenario():
        async with Pool(1, first=spec, command=FAKE) as pool:
            async with asyncio.timeout(PATIENCE):
                while not pool.answers:
                    await asyncio.sleep(0.01)
            job = PageJob("theory", spec, {"description": {"kind": "SDE", "dt": 0.1}}, ("1.2.3.4", "a"))
            pool.submit(job)
            return [told.name for told in job.events]

    assert asyncio.run(scenario()) == ["result"]  # at once
    assert first_question({}) == {"description": "SaadSolla"}
    assert first_question({"run": {"descriptions": ["OverlapSGD"]}}) == {}


def test_long_jobs_leave_a_worker_for_the_others():
    async def scenario():
        async with pool_of(3) as pool:
            long = [question(str(n), kind="simulate", seconds=FOR_EVER) for n in range(4)]
            for job in long:
                pool.submit(job)
            async with asyncio.timeout(PATIENCE):
                quick = [await ask(pool, question("quick", name=str(n))) for n in range(3)]
            for job in long:
                pool.cancel(job)
            return quick

    assert [told.name for told in asyncio.run(scenario())] == ["result"] * 3


def test_a_structure_goes_to_the_worker_that_has_its_programs():
    async def scenario():
        async with pool_of(3) as pool:
            pids = {}
            for number in range(9):
                told = await ask(pool, question("a", p=number % 3, name=str(number)))
                pids.setdefault(number % 3, set()).add(json.loads(told.data)["pid"])
            return pids

    pids = asyncio.run(scenario())
    assert all(len(seen) == 1 for seen in pids.values())


def test_the_line_is_bounded_and_positions_are_told():
    async def scenario():
        async with pool_of(1) as pool:
            pool.submit(question("z", seconds=30.0))
            waiting = [question("a", slot=str(n)) for n in range(LINE_OF_WINDOW)]
            for job in waiting:
                pool.submit(job)
            with pytest.raises(Busy, match="busy, and 12 requests are in line"):
                pool.submit(question("a", slot="one-more"))
            first = await waiting[3].next_event()
            return first

    told = asyncio.run(scenario())
    assert (told.name, json.loads(told.data)) == ("queued", {"position": 4})


def test_answers_are_kept_and_unread_events_are_not_piled_up():
    async def scenario():
        async with pool_of(1) as pool:
            one = await ask(pool, question(name="x"))
            again = await ask(pool, question("b", name="x"))
            job = question(partials=1000)
            pool.submit(job)
            while not job.is_over:
                await asyncio.sleep(0.01)
            return one, again, list(job.events)

    one, again, events = asyncio.run(scenario())
    assert one == again
    assert [told.name for told in events if told.name != "compiling"] == ["partial", "result"]
    assert json.loads(events[-2].data) == {"curves": [999]}


def test_workers_are_gone_with_the_pool():
    async def scenario():
        async with pool_of(2) as pool:
            pool.submit(question(seconds=60.0, is_deaf=True))
            return [worker.process.pid for worker in pool.workers]

    for pid in asyncio.run(scenario()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_numbers_do_not_change_a_structure_and_sizes_do():
    spec = {"problem": {"student": {"p": 2}, "inputs": {"d": 10}, "noise": 0.1}, "training": {"learning_rate": 1}}

    def key(path, value):
        changed = json.loads(json.dumps(spec))
        *inner, last = path
        table = changed
        for name in inner:
            table = table[name]
        table[last] = value
        return structure("theory", changed, {})

    own = structure("theory", spec, {})
    assert key(("training", "learning_rate"), 0.3) == own
    assert key(("problem", "inputs", "d"), 10**6) == own
    assert key(("problem", "noise"), 0.2) == own
    assert key(("problem", "noise"), 0.0) != own  # terms that a zero removes are not compiled
    assert key(("problem", "student", "p"), 3) != own


def test_the_kind_of_the_noise_is_part_of_a_program_for_the_page():
    def key(noise):
        problem = tl.Problem(tl.SingleIndex("sign(z)"), tl.Student(1, "erf"), tl.Gaussian(200), noise=noise)
        asked = RunSpec(problem, tl.SGD(0.3), "OverlapSGD")
        return _structure(asked, json.loads(asked.json))

    assert key(0.1) == key(0.2) and key(tl.Flips(0.1)) == key(tl.Flips(0.2))
    assert len({key(0.0), key(0.1), key(tl.Flips(0.1))}) == 3


def test_how_long_it_takes_is_said_from_structures_like_it():
    def like(p=4, activation="erf", rate=1.0, **options):
        spec = {"problem": {"student": {"p": p, "activation": activation}}, "training": {"learning_rate": rate}}
        return family("theory", spec, options)

    assert like() == like(p=5) == like(rate=0.3)
    assert len({like(), like(p=16), like(activation="relu"), like(description="SDE")}) == 4
    for hostile in ({}, {"problem": 3}, {"problem": {"student": []}, "training": "x", "run": [1]}):
        assert family("theory", hostile, {}) == family("theory", hostile, {})

    async def scenario():
        async with pool_of(1) as pool:
            for p in (4, 40, 5):
                job = question(spec={"problem": {"student": {"p": p}}}, begins=True, seconds=0.3 if p == 40 else 0.0)
                pool.submit(job)
                while (told := await job.next_event()).name != "compiling":
                    pass
                await end_of(job)
            return json.loads(told.data)["usual_seconds"]

    assert asyncio.run(scenario()) < 0.2  # as the one of four units, not as the last one
