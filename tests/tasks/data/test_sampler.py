"""The shard rule: at step t of an epoch, worker r of P takes perm[(tP+r)B : (tP+r+1)B], for batch size B and the epoch's
permutation.
"""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from psnode.errors import ConfigurationError
from psnode.tasks.data.sampler import Sampler, augmentation, permutation

jobs = st.tuples(
    st.integers(1, 200),  # examples
    st.integers(1, 6),  # workers
    st.integers(1, 9),  # batch
    st.integers(1, 3),  # batches per step
    st.integers(0, 2**63 - 1),  # seed
)


def samplers(job) -> list[Sampler]:
    length, workers, batch, each, seed = job
    assume(length >= workers * batch * each)
    return [Sampler(length, worker, workers, batch, each, seed) for worker in range(workers)]


@given(jobs, st.integers(0, 3))
@settings(deadline=None)
def test_a_share_is_the_slice_that_the_rule_states(job, epoch):
    _, workers, batch, each, seed = job
    order = permutation(job[0], seed, epoch)
    for worker, sampler in enumerate(samplers(job)):
        for within in range(sampler.steps_per_epoch):
            micros = sampler.indices(1 + epoch * sampler.steps_per_epoch + within)
            assert len(micros) == each
            for number, micro in enumerate(micros):
                t = within * each + number
                assert micro.tolist() == order[(t * workers + worker) * batch : (t * workers + worker + 1) * batch].tolist()


@given(jobs)
@settings(deadline=None)
def test_shares_of_an_epoch_are_disjoint_and_leave_out_less_than_a_step(job):
    everyone = samplers(job)
    steps = range(1, everyone[0].steps_per_epoch + 1)
    taken = np.concatenate([micro for sampler in everyone for step in steps for micro in sampler.indices(step)])
    assert len(set(taken.tolist())) == len(taken)
    assert job[0] - job[1] * job[2] * job[3] < len(taken) <= job[0]


@given(jobs)
@settings(deadline=None)
def test_workers_together_take_what_one_worker_with_their_batches_takes(job):
    length, workers, batch, each, seed = job
    everyone = samplers(job)
    alone = Sampler(length, 0, 1, workers * batch, each, seed)
    assert alone.steps_per_epoch == everyone[0].steps_per_epoch
    for step in range(1, 2 * alone.steps_per_epoch + 1):
        shares = zip(*(sampler.indices(step) for sampler in everyone), strict=True)
        for together, large in zip(shares, alone.indices(step), strict=True):
            assert np.concatenate(together).tolist() == large.tolist()


@given(jobs)
@settings(deadline=None)
def test_accumulated_batches_are_the_batches_of_as_many_smaller_steps(job):
    length, workers, batch, each, seed = job
    for sampler in samplers(job):
        plain = Sampler(length, sampler.worker, workers, batch, 1, seed)
        for step in range(1, sampler.steps_per_epoch + 1):
            several = [plain.indices((step - 1) * each + number + 1)[0].tolist() for number in range(each)]
            assert [micro.tolist() for micro in sampler.indices(step)] == several


@given(jobs, st.integers(0, 30))
@settings(deadline=None)
def test_going_on_from_any_step_is_the_unbroken_sequence(job, finished):
    sampler = samplers(job)[-1]
    whole = list(sampler.wanted(1, 40))
    for unbroken, resumed in zip(whole[finished:], sampler.wanted(finished + 1, 40), strict=True):
        for one, other in zip(unbroken, resumed, strict=True):
            assert one.indices.tolist() == other.indices.tolist()
            assert one.rng.integers(2**60) == other.rng.integers(2**60)
    for step, micros in enumerate(whole, 1):
        assert [micro.indices.tolist() for micro in micros] == [indices.tolist() for indices in sampler.indices(step)]


@given(st.integers(1, 500), st.integers(0, 2**63 - 1), st.integers(0, 100))
def test_an_epoch_is_a_permutation(length, seed, epoch):
    order = permutation(length, seed, epoch)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(length))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(permutation(50, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_every_example_is_equally_likely_at_every_place():
    length, epochs = 10, 5000
    counts = np.zeros((length, length))
    for epoch in range(epochs):
        counts[np.arange(length), permutation(length, 7, epoch)] += 1
    expected = epochs / length
    statistic = ((counts - expected) ** 2 / expected).sum() * (length - 1) / length
    # chi-square with 81 degrees of freedom: 160 is exceeded with probability 4e-7
    assert statistic < 160


def test_another_process_draws_the_same():
    code = (
        "from psnode.tasks.data.sampler import *; s = Sampler(100, 1, 3, 5, 2, 9);"
        "print([m.tolist() for m in s.indices(7)], augmentation(9, 1, 7).integers(10**9))"
    )
    environment = {"PYTHONHASHSEED": "1234"}
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment).stdout
    here = Sampler(100, 1, 3, 5, 2, 9)
    assert out.strip() == f"{[m.tolist() for m in here.indices(7)]} {augmentation(9, 1, 7).integers(10**9)}"


def test_augmentation_differs_between_seeds_workers_batches_and_from_shuffling():
    draws = {augmentation(*key).integers(2**60) for key in np.ndindex(4, 4, 16)}
    assert len(draws) == 4 * 4 * 16
    generators = [micro.rng for micros in Sampler(64, 0, 1, 4, 2, 3).wanted(1, 20) for micro in micros]
    assert len({generator.integers(2**60) for generator in generators}) == 40


def test_fewer_examples_than_a_step_takes_are_refused():
    assert Sampler(24, 0, 3, 4, 2).steps_per_epoch == 1
    with pytest.raises(
        ConfigurationError, match=r"^23 training examples.*3 workers x --batch-size 4 x --batches-per-step 2 = 24"
    ):
        Sampler(23, 0, 3, 4, 2)


def test_a_share_goes_on_where_its_worker_was_though_that_is_before_the_steps_of_the_deal() -> None:
    """Check that a returning worker's share continues at its own position. The worker had taken ten steps of the deal among
    three workers; the deal among two begins after 70 epochs.
    """
    sampler = Sampler(length=60, worker=0, workers=2, batch=5, sample_offset=70 * 6 - 70 * 4)
    behind = sampler.finished(10, 3)  # 2 epochs of 4 steps and 2 steps: half an epoch, which now has 6 steps
    assert behind == 2 * 6 + 3 - sampler.sample_offset < 0
    found = [wanted for step in sampler.wanted(behind + 1, behind + 4) for wanted in step]
    expected = permutation(60, 0, 2)
    assert found[0].indices.tolist() == expected[30:35].tolist()
    assert len({int(wanted.rng.integers(2**63)) for wanted in found}) == 4
