"""Which tests judge a change of which module: the first pattern that fits counts, and the quickest tests come first."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

_GOLDEN = "codecs/test__golden.py codecs/test_low_bit_golden.py"
_CONTRACT = "codecs/test__contract.py codecs/test__hostile.py codecs/test__statistics.py"
_JOBS = " ".join(
    f"test_training.py::test_{name}"
    for name in (
        "one_worker_is_plain_sgd_bit_for_bit",
        "three_workers_follow_sgd_on_the_joint_batch_to_rounding",
        "gradient_accumulation_is_a_larger_batch",
        "every_optimizer_resumes_exactly",
        "a_resumed_run_ends_as_the_unbroken_one",
        "batch_norm_and_augmentation_resume_exactly",
        "the_metrics_of_a_step_are_those_of_its_batches_on_the_weights_before_it",
        "a_run_leaves_what_the_documentation_says",
        "bytes_of_dense_steps_are_those_of_the_weights_and_little_more",
        "a_run_that_fails_says_so_in_its_summary_and_its_evaluator_ends",
    )
)
_LOCAL = (
    "faults/test_exceptions.py faults/test_nonfinite.py faults/test_consistencies.py faults/test_other_workers.py "
    "faults/test_hostile.py"
)
_KILLED = "faults/test_death.py faults/test_aside.py faults/test_spares.py faults/test_dealt_anew.py"

# patterns below psnode/ -> tests below tests/; {stem} is the module's own name
TABLE: Mapping[str, str] = {
    "codecs/entropy/ans*": f"codecs/test_ans.py {_GOLDEN}",
    "codecs/entropy/rice*": f"codecs/test_rice.py {_GOLDEN}",
    "codecs/entropy/*": f"codecs/test_chain.py {_GOLDEN} {_CONTRACT}",
    "codecs/kernels/bitmasks*": f"codecs/test_indices.py codecs/test_tbq.py codecs/test_largest.py {_GOLDEN}",
    "codecs/kernels/clustering*": "codecs/test_lss.py codecs/test__golden.py",
    "codecs/kernels/clusters*": "codecs/test_lss.py codecs/test_sketchml.py codecs/test__golden.py",
    "codecs/kernels/dithered*": "codecs/test_dithered.py codecs/test__golden.py",
    "codecs/kernels/dots*": f"codecs/test_qsgd.py codecs/test_lss.py codecs/test_chain.py codecs/test_countsketch.py {_GOLDEN}",
    "codecs/kernels/finite*": f"codecs/test_qsgd.py codecs/test_sign.py codecs/test_topk.py worker/test_sender.py {_CONTRACT}",
    "codecs/kernels/gather*": "codecs/test_largest.py codecs/test_topk.py codecs/test__golden.py",
    "codecs/kernels/hashed*": "codecs/test_countsketch.py codecs/test__golden.py",
    "codecs/kernels/jit*": "codecs/test_jit.py",
    "codecs/kernels/memory*": f"codecs/test_rng.py codecs/test_sign.py codecs/test_qsgd.py {_GOLDEN}",
    "codecs/kernels/minmax.py": "codecs/test_minmax.py codecs/test__golden.py",
    "codecs/kernels/minmaxsketch*": "codecs/test_sketchml.py codecs/test__golden.py",
    "codecs/kernels/moments*": f"codecs/test_lss.py codecs/test_tbq.py codecs/test_terngrad.py codecs/test_polar.py {_GOLDEN}",
    "codecs/kernels/norms*": f"codecs/test_qsgd.py codecs/test_threshold.py codecs/test_terngrad.py codecs/test_randk.py "
    f"{_GOLDEN}",
    "codecs/kernels/p[al]*": f"codecs/test_qsgd.py codecs/test_lss.py codecs/test_dithered.py codecs/test_rice.py {_GOLDEN}",
    "codecs/kernels/powers*": "codecs/test_nuqsgd.py codecs/test_natural.py codecs/test__golden.py",
    "codecs/kernels/qsgd*": "codecs/test_qsgd.py codecs/test__golden.py",
    "codecs/kernels/sign*": f"codecs/test_sign.py codecs/test_scaledsign.py codecs/test_onebit.py codecs/test_jit.py {_GOLDEN}",
    "codecs/kernels/stochastic*": f"codecs/test_terngrad.py codecs/test_minmax.py {_GOLDEN}",
    "codecs/kernels/tbq*": f"codecs/test_tbq.py {_GOLDEN}",
    "codecs/kernels/ternary*": f"codecs/test_terngrad.py codecs/test_tbq.py {_GOLDEN}",
    "codecs/kernels/threefry*": f"codecs/test_rng.py {_GOLDEN}",
    "codecs/kernels/ties*": f"codecs/test_qsgd.py codecs/test_terngrad.py codecs/test_nuqsgd.py codecs/test_dithered.py "
    f"{_GOLDEN}",
    "codecs/kernels/trits*": f"codecs/test_terngrad.py codecs/test_tbq.py {_GOLDEN}",
    "codecs/kernels/water*": "codecs/test_entrywise.py codecs/test__golden.py",
    "codecs/lowrank/atoms*": "codecs/test_atoms.py codecs/test_svd.py codecs/test__golden.py",
    "codecs/lowrank/blas*": "codecs/test_blas.py codecs/test_svd.py",
    "codecs/lowrank/*": "codecs/test_spectrum.py codecs/test_randomised.py codecs/test_svd.py codecs/test__golden.py",
    "codecs/polarcodes/*": "codecs/test_polar_coder.py codecs/test_polar.py codecs/test__golden.py",
    "codecs/selection/bitmap*": "codecs/test_indices.py codecs/test_subset.py codecs/test__golden.py",
    "codecs/selection/gap*": "codecs/test_indices.py codecs/test__golden.py",
    "codecs/selection/indices*": "codecs/test_indices.py codecs/test__golden.py",
    "codecs/selection/subset*": "codecs/test_subset.py codecs/test_randk.py codecs/test__golden.py",
    "codecs/selection/*": "codecs/test_largest.py codecs/test_topk.py codecs/test_threshold.py codecs/test_chain.py "
    "codecs/test_graddrop.py codecs/test__golden.py",
    "codecs/sketches/linear*": "codecs/test_countsketch.py master/test_aggregator.py codecs/test__golden.py",
    "codecs/sketches/[bq]*": "codecs/test_sketchml.py codecs/test_lss.py codecs/test__golden.py",
    "codecs/sketches/*": "codecs/test_lss.py codecs/test_sketchml.py codecs/test__golden.py",
    "codecs/arguments.py": f"codecs/test_payload.py codecs/test_registry.py {_CONTRACT}",
    "codecs/base.py": f"codecs/test_payload.py codecs/test_identity.py {_GOLDEN} {_CONTRACT} test_feedback.py",
    "codecs/binary.py": f"codecs/test_sign.py codecs/test_onebit.py codecs/test_scaledsign.py {_GOLDEN}",
    "codecs/[bf]*16.py": f"codecs/test_sixteen.py {_GOLDEN} {_CONTRACT}",
    "codecs/bounds.py": f"codecs/test_registry.py {_CONTRACT}",
    "codecs/chain.py": f"codecs/test_chain.py codecs/test_registry.py codecs/test_topk.py {_GOLDEN} {_CONTRACT} test_feedback.py",
    "codecs/contractive.py": "codecs/test_contractive.py test_feedback.py",
    "codecs/count*.py": f"codecs/test_countsketch.py {_CONTRACT}",
    "codecs/payload.py": f"codecs/test_payload.py {_GOLDEN} codecs/test__hostile.py",
    "codecs/registry.py": f"codecs/test_registry.py codecs/test_spec.py {_CONTRACT}",
    "codecs/stages.py": f"codecs/test_chain.py codecs/test_registry.py codecs/test_blosc.py {_CONTRACT}",
    "codecs/table.py": f"codecs/test_registry.py {_GOLDEN}",
    "codecs/spec.py": "codecs/test_spec.py codecs/test_registry.py",
    "codecs/__init__.py": "codecs/test_registry.py",
    "codecs/*.py": f"codecs/test_{{stem}}.py {_GOLDEN} {_CONTRACT}",
    "feedback/*": "test_feedback.py worker/test_coder.py worker/test_sender.py test_schemes.py test_momentum.py "
    "faults/test_rescaled_memories.py",
    "checkpoint.py": "test_checkpoint.py master/test_drafts.py master/test_late_parts.py test_evaluator.py faults/test_disk.py",
    "master/a[ct]*": f"master/test_accounts.py faults/test_nonfinite.py {_JOBS} {_LOCAL} {_KILLED}",
    "master/agreement.py": f"test_untrained.py {_JOBS}",
    "master/aggregator.py": f"master/test_aggregator.py master/test_merging.py {_JOBS}",
    "master/backlog.py": f"master/test_backlog.py {_JOBS} faults/test_consistencies.py faults/test_backlog.py",
    "master/calibration.py": "master/test_calibration.py",
    "master/consistency.py": "master/test_consistency.py master/test_rounds.py faults/test_consistencies.py",
    "master/dealing.py": "master/test_dealing.py faults/test_other_workers.py faults/test_dealt_anew.py",
    "master/divergence.py": f"faults/test_nonfinite.py faults/test_exceptions.py {_JOBS}",
    "master/downlink.py": f"master/test_drafts.py {_JOBS}",
    "master/drafts.py": f"master/test_drafts.py master/test_late_parts.py master/test_statistics.py faults/test_disk.py {_JOBS} "
    f"faults/test_consistencies.py {_KILLED}",
    "master/lanes.py": f"master/test_lanes.py {_JOBS}",
    "master/members.py": f"master/test_members.py {_KILLED}",
    "master/parameters.py": f"master/test_sgd.py {_JOBS}",
    "master/patience.py": "master/test_patience.py faults/test_aside.py faults/test_stops.py",
    "master/progress.py": f"master/test_progress.py test_cli.py {_JOBS}",
    "master/reduction.py": f"master/test_merging.py {_JOBS} {_LOCAL}",
    "master/rehearsal.py": "master/test_calibration.py",
    "master/rounds.py": f"master/test_rounds.py faults/test_consistencies.py {_KILLED}",
    "master/sgd.py": f"master/test_sgd.py {_JOBS}",
    "master/standing.py": f"{_JOBS} faults/test_stops.py {_KILLED}",
    "master/startup.py": f"master/test_startup.py {_JOBS} {_LOCAL}",
    "master/heartbeat.py": f"{_JOBS} mpi/test_training.py",
    "master/*": f"{_JOBS} {_LOCAL} {_KILLED} faults/test_stops.py",
    "worker/[fg][ir]*": f"worker/test_first_use.py worker/test_hooks.py worker/test_sender.py {_JOBS}",
    "worker/arrivals.py": f"worker/test_first_use.py {_JOBS} {_KILLED} mpi/test_overlap.py",
    "worker/coder.py": f"worker/test_coder.py worker/test_sender.py faults/test_rescaled_memories.py {_JOBS}",
    "worker/computation.py": f"worker/test_computation.py {_JOBS} {_LOCAL}",
    "worker/inspection.py": f"worker/test_inspection.py {_JOBS} mpi/test_overlap.py",
    "worker/startup.py": f"worker/test_startup.py {_JOBS} {_LOCAL} mpi/test_training.py",
    "worker/hooks.py": f"worker/test_hooks.py {_JOBS}",
    "worker/replica.py": f"worker/test_replica.py worker/test_hooks.py {_JOBS}",
    "worker/sender.py": f"worker/test_sender.py worker/test_coder.py {_JOBS} {_LOCAL}",
    "worker/*": f"{_JOBS} {_LOCAL} {_KILLED} mpi/test_training.py",
}


def tests_of(path: str) -> list[str]:
    """The tests of the module in `path`, relative to the checkout. LookupError if the table has none."""
    name = path.removeprefix("psnode/")
    stem = name.rsplit("/", 1)[-1].removesuffix(".py")
    for pattern, tests in TABLE.items():
        if fnmatchcase(name, pattern):
            return list(dict.fromkeys(f"tests/{test.format(stem=stem)}" for test in tests.split()))
    raise LookupError(f"no tests are known of {path}: add a row to scripts/mutants_tests.py")
