"""Tests that judge a mutant, by the changed module: the first matching pattern counts, and the quickest tests come first."""

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
_KILLED = "faults/test_death.py faults/test_suspended.py faults/test_spares.py faults/test_resharding.py"
_CODECS = (
    "adacomp bf16 blosc countmean countsketch dithered entrywise fourier fp16 graddrop identity lss minmax natural nuqsgd onebit "
    "polar qsgd randk scaledsign sign sketchml svd tbq terngrad threshold topk"
)

# patterns below psnode/ -> tests below tests/; {stem} is the name of the module
TABLE: Mapping[str, str] = {
    "codecs/abilities.py": f"codecs/test__contract.py codecs/test__measure.py {_GOLDEN}",
    "codecs/entropy/ans*": f"codecs/test_ans.py {_GOLDEN}",
    "codecs/entropy/rice*": f"codecs/test_rice.py {_GOLDEN}",
    "codecs/entropy/*": f"codecs/test_chain.py {_GOLDEN} {_CONTRACT}",
    "codecs/kernels/adacomp*": "codecs/test_adacomp.py",
    "codecs/kernels/bitmasks*": f"codecs/test_indices.py codecs/test_tbq.py codecs/test_largest.py {_GOLDEN}",
    "codecs/kernels/clustering*": "codecs/test_lss.py codecs/test__golden.py",
    "codecs/kernels/cluster_ids*": "codecs/test_lss.py codecs/test_sketchml.py codecs/test__golden.py",
    "codecs/kernels/dithered*": "codecs/test_dithered.py codecs/test__golden.py",
    "codecs/kernels/dots*": f"codecs/test_dots.py codecs/test_qsgd.py codecs/test_lss.py codecs/test_countsketch.py {_GOLDEN}",
    "codecs/kernels/entries*": "codecs/test_topk.py codecs/test_entrywise.py codecs/test__measure.py",
    "codecs/kernels/finite*": f"codecs/test_qsgd.py codecs/test_sign.py codecs/test_topk.py exchange/test_sender.py {_CONTRACT}",
    "codecs/kernels/fixed_point*": f"codecs/test_qsgd.py codecs/test_minmax.py codecs/test_dithered.py {_GOLDEN}",
    "codecs/kernels/large_values*": "codecs/test_largest.py codecs/test_topk.py codecs/test__golden.py",
    "codecs/kernels/hashed*": "codecs/test_countsketch.py codecs/test__golden.py",
    "codecs/kernels/jit*": "codecs/test_jit.py",
    "codecs/kernels/llvm/*": f"codecs/test_llvm.py codecs/test_rng.py codecs/test_polar.py {_GOLDEN}",
    "codecs/kernels/cache_hints*": f"codecs/test_rng.py codecs/test_sign.py codecs/test_qsgd.py {_GOLDEN}",
    "codecs/kernels/minmaxsketch*": "codecs/test_sketchml.py codecs/test__golden.py",
    "codecs/kernels/root_mean_square*": f"codecs/test_lss.py codecs/test_tbq.py codecs/test_terngrad.py codecs/test_polar.py "
    f"{_GOLDEN}",
    "codecs/kernels/norms*": f"codecs/test_qsgd.py codecs/test_threshold.py codecs/test_terngrad.py codecs/test_randk.py "
    f"{_GOLDEN}",
    "codecs/kernels/p[al]*": f"codecs/test_qsgd.py codecs/test_lss.py codecs/test_dithered.py codecs/test_rice.py {_GOLDEN}",
    "codecs/kernels/qsgd*": "codecs/test_qsgd.py codecs/test__golden.py",
    "codecs/kernels/rows*": "rows/test_language.py rows/test_bytes.py rows/test_row_codec.py",
    "codecs/device/change*": "exchange/device/test_change.py",
    "codecs/device/contractive_forms*": "codecs/device/test_contractive_forms.py",
    "codecs/device/tree_sums*": "codecs/device/test_tree_sums.py",
    "codecs/device/cupy/*": "rows/test_cupy_kernels.py exchange/device/test_segments.py",
    "codecs/device/staging_buffer*": "exchange/device/test_staging.py",
    "codecs/device/*": "codecs/device/test_checks.py codecs/device/test_selections.py codecs/device/test_spectral.py",
    "codecs/rows/cuda/*": "rows/test_source.py rows/test_cuda_text.py",
    "codecs/rows/selection_rank*": "rows/test_selection_rank.py",
    "codecs/rows/usual*": "studies/test_gpu_bounds.py",
    "codecs/rows/*": "rows/test_language.py rows/test_bytes.py rows/test_source.py rows/test_row_codec.py",
    "codecs/kernels/sign*": f"codecs/test_sign.py codecs/test_scaledsign.py codecs/test_onebit.py {_GOLDEN}",
    "codecs/kernels/tbq*": f"codecs/test_tbq.py {_GOLDEN}",
    "codecs/kernels/sums*": f"codecs/test_tbq.py codecs/test_terngrad.py codecs/test__contract.py {_GOLDEN}",
    "codecs/kernels/ternary*": f"codecs/test_terngrad.py codecs/test_tbq.py {_GOLDEN}",
    "codecs/kernels/threefry*": f"codecs/test_rng.py {_GOLDEN}",
    "codecs/kernels/ties*": f"codecs/test_qsgd.py codecs/test_terngrad.py codecs/test_nuqsgd.py codecs/test_dithered.py "
    f"{_GOLDEN}",
    "codecs/kernels/trees*": f"rows/test_sums.py codecs/test_scaledsign.py codecs/test_onebit.py {_GOLDEN}",
    "codecs/kernels/trits*": f"codecs/test_terngrad.py codecs/test_tbq.py {_GOLDEN}",
    "codecs/selection/waterfilling*": "codecs/test_entrywise.py codecs/test__golden.py",
    "codecs/kernels/cosines*": "codecs/test_fourier.py codecs/test__golden.py",
    "codecs/lowrank/atoms*": "codecs/test_atoms.py codecs/test_svd.py codecs/test__golden.py",
    "codecs/lowrank/blas_threads*": "codecs/test_blas.py codecs/test_svd.py",
    "codecs/lowrank/*": "codecs/test_spectrum.py codecs/test_randomised.py codecs/test_svd.py codecs/test__golden.py",
    "codecs/polarcodes/kernel_parts.py": "exchange/test_compilation.py",
    "codecs/polarcodes/*": "codecs/test_polar_coder.py codecs/test_polar.py codecs/test__golden.py",
    "codecs/selection/bitmap*": "codecs/test_indices.py codecs/test_subset.py codecs/test__golden.py",
    "codecs/selection/gap*": "codecs/test_indices.py codecs/test__golden.py",
    "codecs/selection/indices*": "codecs/test_indices.py codecs/test__golden.py",
    "codecs/selection/subset*": "codecs/test_subset.py codecs/test_randk.py codecs/test__golden.py",
    "codecs/selection/*": "codecs/test_largest.py codecs/test_topk.py codecs/test_threshold.py codecs/test_chain.py "
    "codecs/test_graddrop.py codecs/test__golden.py",
    "codecs/sketches/linear*": "codecs/test_countsketch.py exchange/shard/test_aggregator.py codecs/test__golden.py",
    "codecs/sketches/[bq]*": "codecs/test_sketchml.py codecs/test_lss.py codecs/test__golden.py",
    "codecs/sketches/*": "codecs/test_lss.py codecs/test_sketchml.py codecs/test__golden.py",
    "codecs/base.py": f"codecs/test_payload.py codecs/test_identity.py {_GOLDEN} {_CONTRACT} feedback/test_feedback.py",
    "codecs/one_bit_base.py": f"codecs/test_sign.py codecs/test_onebit.py codecs/test_scaledsign.py {_GOLDEN}",
    "codecs/[bf]*16.py": f"codecs/test_half_precision.py {_GOLDEN} {_CONTRACT}",
    "codecs/bounds.py": f"codecs/test_registry.py {_CONTRACT}",
    "codecs/chain.py": f"codecs/test_chain.py codecs/test_registry.py codecs/test_topk.py {_GOLDEN} {_CONTRACT} "
    f"feedback/test_feedback.py",
    "codecs/contractive.py": "codecs/test_contractive.py feedback/test_feedback.py",
    "codecs/count*.py": f"codecs/test_countsketch.py {_CONTRACT}",
    "codecs/payload.py": f"codecs/test_payload.py {_GOLDEN} codecs/test__hostile.py",
    "codecs/traits.py": f"codecs/test_registry.py {_CONTRACT}",
    "codecs/sinks.py": f"codecs/test_qsgd.py exchange/test_sender.py {_GOLDEN} {_CONTRACT}",
    "codecs/sources.py": f"codecs/test_qsgd.py codecs/test_topk.py exchange/test_sender.py {_GOLDEN} {_CONTRACT}",
    "codecs/arrays.py": f"codecs/test_inputs.py codecs/test_registry.py {_CONTRACT}",
    "codecs/registry/__init__.py": f"codecs/test_registry.py codecs/test_spec.py codecs/test_extensions.py {_CONTRACT}",
    "codecs/registry/python_files.py": "codecs/test_extensions.py test_own_code_ends.py",
    "codecs/stages.py": f"codecs/test_chain.py codecs/test_registry.py codecs/test_blosc.py {_CONTRACT}",
    "codecs/table.py": f"codecs/test_registry.py {_GOLDEN}",
    "codecs/spec.py": "codecs/test_spec.py codecs/test_registry.py",
    "codecs/__init__.py": "codecs/test_registry.py",
    "codecs/*.py": f"codecs/test_{{stem}}.py {_GOLDEN} {_CONTRACT}",
    "feedback/*": "feedback/test_feedback.py exchange/test_segment_coder.py exchange/test_sender.py "
    "config/test_schemes.py feedback/test_momentum.py feedback/test_compensated.py "
    "faults/test_rescaled_memories.py",
    "exchange/collectives.py": "ddp/test_comm_hook.py",
    "exchange/feedback_memories.py": "exchange/test_feedback_memories.py faults/test_other_plans.py "
    "faults/test_rescaled_memories.py",
    "records/branches.py": "test_evaluator.py test_soundness.py records/test_checkpoint.py",
    "records/directory_lock.py": "test_training.py jobs/test_launch.py",
    "records/directory.py": f"test_soundness.py faults/test_disk.py faults/test_other_plans.py {_JOBS}",
    "records/evaluations.py": "test_evaluator.py records/test_retention.py worker/test_stepwise.py jobs/test_session_alone.py",
    "records/generations.py": "records/test_generations.py master/test_example_dealing.py master/start/test_startup.py",
    "records/history.py": "faults/test_history.py faults/test_consistencies.py",
    "records/journal.py": "records/test_journal.py faults/test_disk.py",
    "records/loggers/*": "records/test_loggers.py",
    "records/machines.py": "test_training.py::test_a_run_leaves_what_the_documentation_says",
    "records/metrics.py": f"records/test_metrics.py master/lines/test_progress.py faults/test_disk.py {_JOBS}",
    "records/redistribution.py": "master/start/test_startup.py faults/test_other_workers.py faults/test_rescaled_memories.py",
    "records/retention.py": "records/test_retention.py records/test_checkpoint.py master/checkpoints/test_pending.py "
    "test_soundness.py faults/test_disk.py",
    "records/timeline.py": "records/test_timeline.py",
    "records/weights.py": "records/test_weights.py",
    "records/state_names.py": "records/test_state_names.py exchange/test_feedback_memories.py faults/test_other_plans.py",
    "records/staging.py": "records/test_staging.py records/test_checkpoint.py master/checkpoints/test_pending.py "
    "master/checkpoints/test_late_parts.py faults/test_disk.py",
    "records/tensorfile.py": "records/test_tensorfile.py records/test_hashed_file.py records/test_checkpoint.py",
    "records/hashed_file.py": "records/test_hashed_file.py faults/test_disk.py",
    "records/snapshots/snapshot_memory.py": "records/test_snapshot_memory.py records/test_snapshot.py",
    "records/snapshots/snapshot_thread.py": "records/test_snapshot_thread.py worker/test_checkpoint_part.py",
    "records/snapshots/snapshot.py": "records/test_snapshot.py faults/test_disk.py",
    "records/checkpoint.py": "records/test_checkpoint.py master/checkpoints/test_pending.py "
    "master/checkpoints/test_late_parts.py test_evaluator.py faults/test_disk.py",
    "master/example_dealing.py": f"master/test_example_dealing.py master/test_applied.py faults/test_counting.py "
    f"faults/test_other_workers.py faults/test_resharding.py {_JOBS}",
    "master/evaluated.py": "worker/test_stepwise.py jobs/test_session_alone.py mpi/test_session.py",
    "master/start/agreement.py": f"test_untrained.py {_JOBS}",
    "exchange/shard/aggregator.py": f"exchange/shard/test_aggregator.py exchange/shard/test_merging.py {_JOBS}",
    "exchange/flow_control.py": f"exchange/test_flow_control.py {_JOBS} faults/test_consistencies.py faults/test_flow_control.py",
    "master/start/autotune.py": "master/start/test_autotune.py",
    "exchange/shard/consistency.py": "exchange/shard/test_consistency.py exchange/shard/test_rounds.py "
    "exchange/shard/test_rounds_by_brute_force.py "
    "faults/test_consistencies.py",
    "master/divergence.py": f"faults/test_nonfinite.py faults/test_exceptions.py {_JOBS}",
    "exchange/shard/downlink.py": f"exchange/shard/test_shard.py {_JOBS}",
    "master/checkpoints/buffers.py": "master/checkpoints/test_buffers.py tasks/test_sized_buffers.py",
    "master/checkpoints/contents.py": "master/checkpoints/test_pending.py master/checkpoints/test_late_parts.py "
    "test_soundness.py faults/test_disk.py",
    "master/checkpoints/soundness.py": "master/checkpoints/test_pending.py test_soundness.py",
    "master/checkpoints/dues.py": "master/checkpoints/test_dues.py records/test_retention.py",
    "master/checkpoints/pending.py": f"master/checkpoints/test_pending.py master/checkpoints/test_late_parts.py "
    f"master/checkpoints/test_buffers.py faults/test_disk.py {_JOBS} "
    f"faults/test_consistencies.py {_KILLED}",
    "master/checkpoints/checkpoint_thread.py": "master/checkpoints/test_pending.py faults/test_disk.py",
    "worker/checkpoint_part.py": f"master/checkpoints/test_late_parts.py worker/test_checkpoint_part.py {_JOBS}",
    "exchange/shard/executor.py": f"exchange/shard/test_executor.py {_JOBS}",
    "master/__init__.py": f"test_soundness.py master/lines/test_downlink_notice.py {_JOBS} {_LOCAL} {_KILLED} "
    "faults/test_stops.py",
    "master/recorder.py": f"master/test_recorder.py faults/test_nonfinite.py {_JOBS} {_LOCAL}",
    "master/lines/downlink_notice.py": "master/lines/test_downlink_notice.py",
    "master/start/resuming.py": f"test_soundness.py faults/test_other_plans.py {_JOBS}",
    "master/readmission.py": f"master/test_round_boundary.py {_JOBS} {_KILLED} faults/test_suspended.py",
    "master/round_boundary.py": "master/test_round_boundary.py exchange/shard/test_unapplied.py faults/test_counting.py "
    f"exchange/shard/test_median_clipping.py test_soundness.py {_JOBS} {_LOCAL} {_KILLED} faults/test_stops.py",
    "exchange/shard/median_clipping.py": "exchange/shard/test_median_clipping.py",
    "exchange/shard/norm_cap.py": "exchange/shard/test_norm_cap.py faults/test_norm_cap.py",
    "exchange/shard/norm_verdicts.py": "exchange/shard/test_norm_cap.py faults/test_norm_cap.py faults/test_honest_outliers.py",
    "master/member_list.py": f"master/test_member_list.py master/test_membership.py {_KILLED}",
    "master/membership.py": f"master/test_membership.py master/test_round_boundary.py "
    f"{_JOBS} {_LOCAL} {_KILLED} faults/test_stops.py",
    "exchange/update/parameters.py": f"exchange/update/test_parameters.py exchange/update/test_sgd.py {_JOBS}",
    "exchange/update/*updates.py": f"exchange/update/test_parameters.py test_parameter_groups.py test_optimizers.py {_JOBS}",
    "exchange/update/moving_average.py": "test_moving_average.py",
    "exchange/update/weight_vector.py": "exchange/update/test_weight_vector.py exchange/shard/test_parts.py",
    "exchange/update/served_model.py": f"exchange/update/test_weight_vector.py test_moving_average.py {_JOBS}",
    "exchange/shard/state.py": "exchange/shard/test_parts.py test_moving_average.py",
    "tasks/optimizers.py": "test_optimizers.py",
    "tasks/parameter_groups.py": "test_parameter_groups.py",
    "tasks/device.py": "tasks/test_device.py test_precision.py",
    "master/deadlines.py": "master/test_deadlines.py faults/test_suspended.py faults/test_stops.py",
    "master/lines/progress.py": f"master/lines/test_progress.py cli/test_cli.py {_JOBS}",
    "exchange/shard/reduction.py": f"exchange/shard/test_merging.py {_JOBS} {_LOCAL}",
    "master/start/trial_run.py": "master/start/test_autotune.py",
    "exchange/shard/shard_events.py": f"exchange/shard/test_shard.py faults/test_norm_cap.py {_JOBS}",
    "exchange/shard/shard.py": f"exchange/shard/test_shard.py {_JOBS} {_LOCAL}",
    "exchange/shard/unapplied.py": "exchange/shard/test_unapplied.py faults/test_consistencies.py",
    "exchange/shard/rounds.py": f"exchange/shard/test_rounds.py exchange/shard/test_rounds_by_brute_force.py "
    f"faults/test_consistencies.py {_KILLED}",
    "exchange/update/sgd.py": f"exchange/update/test_sgd.py {_JOBS}",
    "master/job_state.py": f"{_JOBS} faults/test_stops.py {_KILLED}",
    "master/start/startup.py": f"master/start/test_startup.py exchange/test_footprint.py {_JOBS} {_LOCAL}",
    "master/heartbeat.py": f"{_JOBS} mpi/test_training.py",
    "master/*": f"{_JOBS} {_LOCAL} {_KILLED} faults/test_stops.py",
    "worker/[fg][ir]*": f"worker/test_first_use.py worker/test_backward_hooks.py exchange/test_sender.py {_JOBS}",
    "exchange/weights_receiver.py": "exchange/test_weights_receiver.py worker/test_first_use.py "
    f"{_JOBS} {_KILLED} mpi/test_overlap.py",
    "exchange/segment_coder.py": f"exchange/test_segment_coder.py exchange/test_sender.py "
    f"faults/test_rescaled_memories.py {_JOBS}",
    "worker/training_loop.py": f"worker/test_loop.py {_JOBS} {_LOCAL} {_KILLED} mpi/test_training.py",
    "worker/computation.py": f"worker/test_computation.py test_untrained.py {_JOBS} {_LOCAL}",
    "worker/inspection.py": f"worker/test_inspection.py {_JOBS} mpi/test_overlap.py",
    "worker/handshake.py": f"worker/test_handshake.py {_JOBS} {_LOCAL} mpi/test_training.py",
    "worker/backward_hooks.py": f"worker/test_backward_hooks.py {_JOBS}",
    "exchange/device/*": "exchange/device/test_change.py exchange/device/test_segments.py exchange/device/test_rules.py",
    "exchange/replica.py": f"exchange/test_replica.py exchange/device/test_change.py worker/test_backward_hooks.py {_JOBS}",
    "exchange/trained_model.py": f"exchange/test_trained_model.py {_JOBS}",
    "exchange/flat_model.py": f"exchange/test_trained_model.py exchange/shard/test_shard.py {_JOBS}",
    "exchange/sender.py": f"exchange/test_sender.py exchange/test_segment_coder.py {_JOBS} {_LOCAL}",
    "exchange/*": f"exchange/shard/test_merging.py exchange/test_sender.py {_JOBS} {_LOCAL} {_KILLED}",
    "worker/*": f"{_JOBS} {_LOCAL} {_KILLED} mpi/test_training.py",
}


def tests_of(path: str) -> list[str]:
    """Return the tests of the module in `path`, which is relative to the checkout.

    Raises LookupError if the table has no tests for this module.
    """
    name = path.removeprefix("psnode/")
    stem = name.rsplit("/", 1)[-1].removesuffix(".py")
    for pattern, tests in TABLE.items():
        if fnmatchcase(name, pattern):
            return list(dict.fromkeys(f"tests/{test.format(stem=stem)}" for test in tests.split()))
    raise LookupError(f"no tests are known of {path}: add a row to scripts/mutants_tests.py")


def chosen(path: str) -> list[str]:
    """Return pytest arguments for a mutant in `path`.

    If the mutant is in a codec, they restrict the tests of all codecs (tests/codecs/test__*.py) to this codec.
    """
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(".py")
    return ["-k", f"not test__ or {stem}"] if folder == "psnode/codecs" and stem in _CODECS.split() else []
