#!/usr/bin/env python3
"""Plants bugs, one at a time, and prints which seed of the fleet simulation finds each.

    tests/sim/planted_bugs.py [--seeds 5000] [NAME...] -- BAZEL-BUILD-COMMAND...

Run in a clean tree, by hand: each bug is a build. The command builds //tests/sim:fleet_simulation_test;
default: bazel build --config=nocuda. Exit code 1: a bug was not found, or a planted program did not build.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = "//tests/sim:fleet_simulation_test"
PROGRAM = "bazel-bin/tests/sim/fleet_simulation_test"

# Name, file, the correct source text (which must occur once), the planted text.
BUGS = [
    ("a shard that steps back keeps its newest values", "lib/shard/core/shard_versions.cc",
     "const bool steps_back = before.HasAsPrevious(chunk, first_step_);",
     "const bool steps_back = false && before.HasAsPrevious(chunk, first_step_);"),
    ("a halted shard is saved at the version before", "lib/shard/core/shard_snapshots.cc",
     "return versions_.At(chunk, version);", "return versions_.previous(chunk);"),
    ("a job goes on one step later than its shards are", "services/coordinator/job/recovery/shard_inventory.cc",
     "carried.first_step = Holds(all) ? all.newest : needed.newest;",
     "carried.first_step = (Holds(all) ? all.newest : needed.newest) + 1;"),
    ("both versions of a chunk that did not step back are in one place", "lib/shard/core/shard_versions.cc",
     "places_[chunk].previous = steps_back ? old.current : old.previous;",
     "places_[chunk].previous = old.current;"),
    ("a snapshot copies the version before", "lib/shard/core/shard_snapshots.cc",
     "store_.Copy(chunk, versions_.current(chunk), ChunkStore::kHeld);",
     "store_.Copy(chunk, versions_.previous(chunk), ChunkStore::kHeld);"),
    ("a half-filled replica passes for a whole one", "lib/shard/core/parameter_shard.cc",
     "if (!replication_.is_filled()) return {.oldest = 1, .newest = 0};", ""),
    ("a replica applies sums before it is filled", "lib/shard/core/shard_replication.cc",
     "if (!is_filled()) return false;", ""),
    ("an update is made without the last rank's gradient", "lib/shard/gate/bsp_gate.cc",
     "if (c.pushes_in < std::ssize(ranks_) || c.version >= total_steps_) return {};",
     "if (c.pushes_in + 1 < std::ssize(ranks_) || c.version >= total_steps_) return {};"),
    ("a push that was taken counts again", "lib/shard/gate/bsp_gate.cc",
     "if (state != PushState::kAwaited) return PushFate::kRepeat;",
     "if (state == PushState::kPlacing) return PushFate::kRepeat;"),
    ("a promoted replica keeps the dead ps's address", "services/coordinator/job/recovery/shard_inventory.cc",
     "next.set_address(place.address());", "next.set_address(plan_->shards(static_cast<int>(i)).address());"),
    ("every replica passes for filled", "services/coordinator/job/recovery/shard_inventory.cc",
     "Holds(held) && held->oldest <= carried.first_step && carried.first_step <= held->newest);",
     "Holds(held) || true);"),
    ("a replica on a dead ps stays in the plan", "services/coordinator/job/recovery/shard_inventory.cc",
     "if (carried.shards[i].has_backup() && !stays) {",
     "if (carried.shards[i].has_backup() && !stays && replica.leaves) {"),
    ("a promoted replica's versions are not asked for", "services/coordinator/job/recovery/shard_inventory.cc",
     "needed = Both(needed, *shard.replica.held);", ""),
    ("a process that is new after a restart passes for the old one", "services/coordinator/membership/fleet.cc",
     "arrival.is_newcomer = arrival.is_first && kind == LeaseTable::Arrival::kNew;",
     "arrival.is_newcomer = false;"),
    ("a report of an earlier generation counts in this one", "services/coordinator/job/job.cc",
     "if (report == nullptr || dropped || report->generation() != record_.generation()) {",
     "if (report == nullptr || dropped) {"),
    ("leases never end", "services/coordinator/membership/lease_table.cc",
     "if (now - member.lease_begin <= lease_) continue;", "if (now - member.lease_begin <= 1000 * lease_) continue;"),
    ("who does not come back after a restart is waited for", "services/coordinator/job/recovery/failure_detector.cc",
     "if (now >= grace_until_) {", "if (now >= grace_until_ + absl::Hours(1)) {"),
    ("an accusation comes to nothing", "services/coordinator/job/recovery/failure_detector.cc",
     "if (accusation_ && now - accusation_->time >= kAccusationSettles) {",
     "if (accusation_ && now - accusation_->time >= 1000 * kAccusationSettles) {"),
    ("a checkpoint is committed with a shard missing", "services/coordinator/checkpoints/checkpoint_round.cc",
     "if (committing_ || std::ssize(finished_) < shards_with_bytes_) return false;",
     "if (committing_ || std::ssize(finished_) + 1 < shards_with_bytes_) return false;"),
    ("a step that is known is recorded again", "services/coordinator/records/step_aggregator.cc",
     "const bool is_known = record.step() < steps_before_;", "const bool is_known = record.step() + 1 < steps_before_;"),
    ("a share of the batch is counted twice", "services/coordinator/scheduling/job_plan.cc",
     "worker.set_first_position(share.first);", "worker.set_first_position(rank == 1 ? share.first - 1 : share.first);"),
    ("shares of workers are not nodes of the sum tree", "services/coordinator/scheduling/job_plan.cc",
     "leaves = logical != 0 ? logical : count;", "leaves = logical < 0 ? logical : count;"),
    ("a shard adds in rank order instead of along the sum tree", "lib/shard/core/shard_pushes.cc",
     "return joins_.data();", "return nullptr;"),
    ("a shard adds along a tree of its ranks instead of the job's", "lib/shard/core/shard_pushes.cc",
     "const SumNode root = {.leaves = plan.spec().resources().workers().logical()};",
     "const int64_t logical = plan.spec().resources().workers().logical();\n"
     "  const SumNode root = {.leaves = logical == 0 ? 0 : plan.workers_size()};"),
    ("a recovering job is never given members again", "services/coordinator/job/recovery/recovery.cc",
     "if (!members.AllStopped() || now < resumes_not_before_) return std::nullopt;",
     "if (!members.AllStopped() || now < resumes_not_before_ + absl::Minutes(5)) return std::nullopt;"),
    ("a recovery takes who could not warm up", "services/coordinator/planning/scheduler.cc",
     "if (unprepared || has_excluded(name)) request.excluded.insert(name);",
     "if (unprepared) request.excluded.insert(name);"),
    ("that somebody could not warm up is forgotten with the generation", "services/coordinator/job/recovery/exclusion_list.cc",
     "for (auto& [name, exclusion] : exclusions_) exclusion.in_this_generation = false;", "exclusions_.clear();"),
    ("a halted shard whose ps is gone is written by nobody", "services/coordinator/job/desired_directive.cc",
     "to_write.replicas.insert(shard);", "continue;"),
    ("a halted shard whose ps is gone is saved a version ahead", "services/coordinator/job/recovery/shard_inventory.cc",
     "InPlace() const { return Without({}); }",
     "InPlace() const {\n"
     "  auto held = Without({});\n"
     "  for (size_t i = 0; held && i < shards_.size(); ++i) {\n"
     "    if (held->shards[i].member() != shards_[i].own.ps) ++held->first_step;\n"
     "  }\n"
     "  return held;\n"
     "}"),
    ("a job always goes back to its last checkpoint", "services/coordinator/job/job.cc",
     "Halting halting{.carries = carries,", "Halting halting{.carries = false && carries,"),
]


def main():
    arguments = sys.argv[1:]
    build = ["bazel", "build", "--config=nocuda"]
    if "--" in arguments:
        build = arguments[arguments.index("--") + 1:]
        arguments = arguments[:arguments.index("--")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5000)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    missed = 0
    for name, path, sound, planted in BUGS:
        if options.names and name not in options.names:
            continue
        file = ROOT / path
        text = file.read_text()
        if text.count(sound) != 1:
            sys.exit(f"{path} has this text {text.count(sound)} times instead of once: {sound}")
        file.write_text(text.replace(sound, planted))
        try:
            built = subprocess.run([*build, TARGET], cwd=ROOT, capture_output=True, text=True)
            if built.returncode != 0:
                print(f"{name}: does not build:\n{built.stderr[-3000:]}", flush=True)
                missed += 1
                continue
            run = subprocess.run([ROOT / PROGRAM], cwd=ROOT, capture_output=True, text=True,
                                 env=dict(os.environ, SEEDS=str(options.seeds)))
        finally:
            file.write_text(text)
        missed += report(name, run)
    sys.exit(1 if missed else 0)


def report(name, run):
    """Prints the outcome of a run. Returns 1 if the run did not find the bug."""
    seed = re.search(r"FIRST_SEED=(\d+)", run.stdout)
    what = re.findall(r"^\S+: ((?:I\d|the job ends|the last checkpoint|the job goes|the coordinator saves|\S+ is to continue).*)$", run.stdout, re.M)
    if run.returncode == 0:
        print(f"NOT FOUND: {name}", flush=True)
        return 1
    where = f"seed {seed[1]}" if seed else "the undisturbed run" if what else "a crash"
    if what:
        how = what[-1]
    else:
        how = next((line for line in (run.stdout + run.stderr).splitlines() if "Check failed" in line), "no message")
    print(f"{name}: {where}: {how[:100]}", flush=True)
    return 0


if __name__ == "__main__":
    main()
