// Measures a bare loop over a substrate. Prints Gbit/s of payload in one direction, and the median
// round trip of one message in microseconds.
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "glog/logging.h"
#include "tests/bench/bare_loop.h"

ABSL_FLAG(std::string, substrate, "shm", "shm, ucx-shm, ucx-tcp or tcp");
ABSL_FLAG(int, workers, 1, "processes that push");
ABSL_FLAG(int, servers, 1, "processes that sum and apply");
ABSL_FLAG(int64_t, bytes, 4096, "bytes of a message");
ABSL_FLAG(int, tensors, 64, "messages in flight together");
ABSL_FLAG(int64_t, steps, 100, "steps of a round");
ABSL_FLAG(int, rounds, 5, "rounds; the median is printed");
ABSL_FLAG(bool, poll, true, "both sides spin; otherwise they sleep while idle");
ABSL_FLAG(bool, alone, true, "measure round trips of single messages as well");

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  absl::SetProgramUsageMessage("push -> sum -> apply -> values, without Muster");
  absl::ParseCommandLine(argc, argv);
  const auto result = muster::RunBareLoop({.substrate = absl::GetFlag(FLAGS_substrate),
                                           .workers = absl::GetFlag(FLAGS_workers),
                                           .servers = absl::GetFlag(FLAGS_servers),
                                           .message_bytes = absl::GetFlag(FLAGS_bytes),
                                           .tensors = absl::GetFlag(FLAGS_tensors),
                                           .steps = absl::GetFlag(FLAGS_steps),
                                           .rounds = absl::GetFlag(FLAGS_rounds),
                                           .poll = absl::GetFlag(FLAGS_poll),
                                           .alone = absl::GetFlag(FLAGS_alone)});
  if (!result.ok()) {
    std::fprintf(stderr, "bare_loop: %s\n", result.status().ToString().c_str());
    return 64;
  }
  std::printf("%.3f %.2f\n", result->gigabits_per_second, result->round_trip_microseconds);
  return 0;
}
