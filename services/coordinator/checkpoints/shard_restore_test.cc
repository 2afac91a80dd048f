#include "services/coordinator/checkpoints/shard_restore.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/known_checkpoint.h"

namespace muster::shard_restore_test {
namespace {

// The ps tries again after this error: see CheckpointClient.
TEST(ShardRestoreTest, AMissingDescriptorIsARetryableError) {
  const auto plan = std::make_shared<const v1::JobPlan>(KnownPlan());
  const std::string folder = TestFolder();
  ASSERT_TRUE(WriteKnownCheckpoint(folder, *plan, /*step=*/4, /*edition=*/1).ok());
  const std::string checkpoint = CheckpointPath(folder, 4);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int first_free = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(first_free);
  const absl::Cleanup restore = [&] { setrlimit(RLIMIT_NOFILE, &before); };

  // Open() needs descriptors for the manifest, each file, and its header.
  int descriptors = 0;
  absl::Status opened;
  do {
    const rlimit few{.rlim_cur = static_cast<rlim_t>(first_free + descriptors),
                     .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    opened = ShardRestore::Open(plan, checkpoint, 0).status();
    EXPECT_TRUE(opened.ok() || absl::IsUnavailable(opened)) << opened;
  } while (!opened.ok() && ++descriptors < 10);
  EXPECT_TRUE(opened.ok()) << opened;
  EXPECT_GE(descriptors, 3);
}

}  // namespace
}  // namespace muster::shard_restore_test
